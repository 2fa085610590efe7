//! Checks the entries of the embedded fat binary.

use dali_zarr_kernels::FATBIN;

#[path = "../../architectures.rs"]
mod architectures;

/// Returns the kind (1: PTX, 2: machine code) and the architecture of every entry.
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

/// Returns the architectures of `CUDAARCHS` or build.rs in the same form. 90a is an entry for 90.
fn named() -> Vec<(u16, u32)> {
    let all = architectures::parsed(env!("DALI_ZARR_ARCHITECTURES")).unwrap();
    let number = |name: &str| name.trim_end_matches(char::is_alphabetic).parse().unwrap();
    all.into_iter().map(|(name, kind)| (if kind == "sm" { 2 } else { 1 }, number(name))).collect()
}

#[test]
fn there_is_code_for_every_architecture_that_is_named() {
    let (mut found, mut named) = (entries(), named());
    found.sort_unstable();
    named.sort_unstable();
    assert_eq!(found, named);
}

#[test]
fn unless_others_are_named_there_is_machine_code_from_75_to_120_and_ptx_for_the_rest() {
    let list = "75;80-real;86-real;89-real;90-real;100-real;120";
    assert!(include_str!("../../build.rs").contains(&format!("\"{list}\"")));
    assert!(architectures::parsed(list).unwrap().contains(&("120", "compute")), "no PTX for GPUs to come");
}

#[test]
fn architectures_as_cmake_names_them() {
    let parsed = architectures::parsed("75;80-real;90a-real;100f-virtual").unwrap();
    assert_eq!(parsed, [("75", "sm"), ("75", "compute"), ("80", "sm"), ("90a", "sm"), ("100f", "compute")]);
    for text in ["all", "", "90;", "sm_90", "9.0", "90x", "a", "90-real,100", "90-", "native;90"] {
        let message = architectures::parsed(text).unwrap_err();
        assert!(message.starts_with("CUDAARCHS: expected \"native\", or architectures as"), "{message}");
        assert!(message.ends_with(&format!("found \"{text}\"")), "{message}");
    }
}

#[test]
fn native_is_what_this_machine_has() {
    assert_eq!(architectures::native("9.0\n9.0\n12.0\n").unwrap(), "120-real;90-real");
    for none in ["", "No devices were found\n", "NVIDIA-SMI has failed because it couldn't communicate\n", "[N/A]\n"] {
        assert!(architectures::native(none).unwrap_err().contains("CUDAARCHS=native: expected a GPU"), "{none}");
    }
}
