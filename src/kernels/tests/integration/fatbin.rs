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

#[test]
fn there_is_machine_code_for_every_architecture_and_ptx_for_the_rest() {
    let found = entries();
    for arch in [75, 80, 86, 89, 90, 100, 120] {
        assert!(found.contains(&(2, arch)), "no machine code for {arch} in {found:?}");
    }
    for arch in [75, 120] {
        assert!(found.contains(&(1, arch)), "no PTX for {arch} in {found:?}");
    }
}
