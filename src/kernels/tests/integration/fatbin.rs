//! What the embedded fat binary holds.

use dali_zarr_kernels::FATBIN;

/// Kind (1: PTX, 2: machine code) and architecture of every entry.
fn entries() -> Vec<(u16, u32)> {
    let u16_at = |at: usize| u16::from_le_bytes(FATBIN[at..at + 2].try_into().unwrap());
    let u32_at = |at: usize| u32::from_le_bytes(FATBIN[at..at + 4].try_into().unwrap());
    let u64_at = |at: usize| u64::from_le_bytes(FATBIN[at..at + 8].try_into().unwrap());
    assert_eq!(u32_at(0), 0xba55_ed50, "the magic number of a fat binary");
    let (mut at, mut found) = (u16_at(6) as usize, Vec::new());
    let end = at + u64_at(8) as usize;
    while at < end {
        found.push((u16_at(at), u32_at(at + 28)));
        at += u32_at(at + 4) as usize + u64_at(at + 8) as usize;
    }
    found
}

/// What `CUDAARCHS` or build.rs names, in the same form.
fn named() -> Vec<(u16, u32)> {
    let mut all = Vec::new();
    for one in env!("DALI_ZARR_ARCHITECTURES").split(';') {
        let number = one.split('-').next().unwrap().parse().unwrap();
        all.extend((!one.ends_with("-virtual")).then_some((2, number)));
        all.extend((!one.ends_with("-real")).then_some((1, number)));
    }
    all
}

#[test]
fn there_is_code_for_every_architecture_that_is_named() {
    let (mut found, mut named) = (entries(), named());
    found.sort_unstable();
    named.sort_unstable();
    assert_eq!(found, named);
    assert!(named.iter().any(|&(kind, _)| kind == 1), "no PTX for GPUs to come");
}

#[test]
fn unless_others_are_named_there_is_machine_code_from_75_to_120_and_ptx_for_the_rest() {
    assert!(include_str!("../../build.rs").contains("\"75;80-real;86-real;89-real;90-real;100-real;120\""));
}
