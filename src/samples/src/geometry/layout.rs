//! DALI's layout letters for dimension names.

/// Returns the letter that DALI's operators use for a dimension: F (frames), D (depth), H (height), W (width) or C
/// (channels). `None` for other names.
fn letter(dim: &str) -> Option<char> {
    Some(match dim.to_ascii_lowercase().as_str() {
        "lat" | "latitude" | "y" | "height" | "rows" => 'H',
        "lon" | "longitude" | "x" | "width" | "columns" => 'W',
        "level" | "plev" | "lev" | "isobaricinhpa" | "pressure_level" | "depth" | "z" => 'D',
        "time" | "t" | "valid_time" | "init_time" | "date" | "step" | "frame" => 'F',
        "channel" | "channels" | "variable" | "band" | "c" => 'C',
        _ => return None,
    })
}

/// Returns the layout of an output whose dimensions have these names. The layout is empty if a name has no letter, or if a
/// letter would come twice.
pub(super) fn of<S: AsRef<str>>(dims: &[S]) -> String {
    let letters: Option<String> = dims.iter().map(|d| letter(d.as_ref())).collect();
    match letters {
        Some(l) if (1..l.len()).all(|i| !l[..i].contains(&l[i..=i])) => l,
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn known_names_have_letters() {
        assert_eq!(super::of(&["channel", "latitude", "lon"]), "CHW");
        assert_eq!(super::of(&["time", "level", "lat", "lon"]), "FDHW");
        assert_eq!(super::of(&["time", "t"]), "");
        assert_eq!(super::of(&["values"]), "");
        assert_eq!(super::of::<&str>(&[]), "");
    }
}
