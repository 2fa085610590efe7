//! Orders of parts of a frame: its sections, its coefficients (ISO/IEC 18181-1, F.3.2).

use super::entropy::Numbers;
use super::reader::{Reader, ceil_log2};

/// Reads an order of so many parts, of which the first stay where they are. Returns for each of those behind the first
/// the number of its place among what is left.
pub(super) fn permutation(
    reader: &mut Reader<'_>,
    numbers: &mut Numbers<'_>,
    size: u32,
    first: u32,
) -> Result<Vec<u32>, String> {
    let context = |value: u32| ceil_log2(value.saturating_add(1)).min(7) as usize;
    let wrong = || "an order of its parts is wrong".to_owned();
    let count = numbers.next(reader, context(size))?;
    if count > size - first {
        return Err(wrong());
    }
    let mut places = Vec::new();
    let mut last = 0;
    for at in first..first + count {
        last = numbers.next(reader, context(last))?;
        if last >= size - at {
            return Err(wrong());
        }
        places.push(last);
    }
    Ok(places)
}
