//! Architectures as CMake's variable CUDAARCHS has them, for `build.rs` and a test.

/// Each architecture (`90`, `90a`) with "sm" (machine code) or "compute" (PTX).
///
/// # Errors
/// The text has another form.
pub(crate) fn parsed(text: &str) -> Result<Vec<(&str, &'static str)>, String> {
    let mut all = Vec::new();
    for one in text.split(';') {
        let (name, kinds): (&str, &[_]) = match one.rsplit_once('-') {
            Some((name, "real")) => (name, &["sm"]),
            Some((name, "virtual")) => (name, &["compute"]),
            _ => (one, &["sm", "compute"]),
        };
        // Code for 90a runs on 90 alone, that for 100f on its family.
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

/// What `native` stands for, given the compute capabilities of this machine's GPUs, one a line: machine code for each.
///
/// # Errors
/// There is none.
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
