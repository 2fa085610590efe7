//! Parses lists of GPU architectures in the form of CMake's CUDAARCHS, for `build.rs` and a test.

/// Returns each architecture (`90`, `90a`) with "sm" (machine code) or "compute" (PTX). `90` yields both.
///
/// # Errors
/// If the text has another form.
pub(crate) fn parsed(text: &str) -> Result<Vec<(&str, &'static str)>, String> {
    let mut all = Vec::new();
    for one in text.split(';') {
        let (name, kinds): (&str, &[_]) = match one.rsplit_once('-') {
            Some((name, "real")) => (name, &["sm"]),
            Some((name, "virtual")) => (name, &["compute"]),
            _ => (one, &["sm", "compute"]),
        };
        // Suffixes: code for 90a runs only on 90, and code for 100f only on the family of 100.
        let digits = name.strip_suffix(['a', 'f']).unwrap_or(name);
        if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err(format!(
                "CUDAARCHS: expected \"native\", or architectures as \"80-real;90a-real;90\" has them, found \"{text}\""
            ));
        }
        all.extend(kinds.iter().map(|&kind| (name, kind)));
    }
    Ok(all)
}

/// Returns the architectures that `native` stands for: machine code for each GPU. `capabilities` lists the compute
/// capabilities of this machine's GPUs, one per line.
///
/// # Errors
/// If `capabilities` lists no GPU.
pub(crate) fn native(capabilities: &str) -> Result<String, String> {
    let plain = capabilities.lines().map(|line| line.trim().replace('.', ""));
    let mut found: Vec<String> = plain.filter(|n| n.parse::<u32>().is_ok()).map(|n| format!("{n}-real")).collect();
    found.sort();
    found.dedup();
    match found.is_empty() {
        true => Err(
            "CUDAARCHS=native: expected a GPU, but nvidia-smi tells none; name its architecture, as CUDAARCHS=90 does"
                .into(),
        ),
        false => Ok(found.join(";")),
    }
}
