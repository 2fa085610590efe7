//! Boxes of the containers of JPEG 2000 and JPEG XL: a length, a type, and what it holds.

/// A box's type and what it holds.
pub(super) type Part<'a> = (&'a [u8], &'a [u8]);

/// Reads the next box of `rest`. `None` at the end.
///
/// # Errors
/// If it is truncated.
pub(super) fn next<'a>(rest: &mut &'a [u8]) -> Result<Option<Part<'a>>, String> {
    if rest.is_empty() {
        return Ok(None);
    }
    let truncated = || "a box is truncated".to_owned();
    let (length, more) = rest.split_first_chunk::<4>().ok_or_else(truncated)?;
    let (kind, more) = more.split_at_checked(4).ok_or_else(truncated)?;
    let (start, end) = match u32::from_be_bytes(*length) {
        // To the end of the file.
        0 => (8, rest.len()),
        1 => {
            let long = more.first_chunk::<8>().ok_or_else(truncated)?;
            (16, usize::try_from(u64::from_be_bytes(*long)).map_err(|_| truncated())?)
        }
        length => (8, length as usize),
    };
    let inside = rest.get(start..end).ok_or_else(truncated)?;
    *rest = &rest[end..];
    Ok(Some((kind, inside)))
}
