//! Breaks: the elements along the first of `dims` at which one segment ends and the next begins.

use std::cmp::Ordering;

use super::View;
use crate::spec::Spec;
use dali_zarr_base::error::{Error, Result};

/// Returns the breaks along the first of `dims`, in ascending order: those that were asked for, and the borders between
/// stores unless samples may cross them. If a break comes several times, the segments in between are empty.
pub(super) fn breaks(spec: &Spec, name: &str, len: i64, views: &[View]) -> Result<Vec<i64>> {
    let mut asked = Vec::with_capacity(spec.samples.breaks.at.len());
    for &b in &spec.samples.breaks.at {
        let at = if b < 0 { b + len } else { b };
        if at <= 0 || at >= len {
            return Err(Error::value(format!(
                "breaks: expected elements of dimension \"{name}\" that have one before them, 1 to {} (or negative, from the \
                 end), found {b}",
                len - 1
            )));
        }
        asked.push(at);
    }
    if !spec.samples.cross_stores {
        for view in views {
            let Some((d, starts)) = &view.joined else { continue };
            match view.dims[*d].picked(0) {
                None => asked.extend(starts[1..starts.len() - 1].iter().map(|&s| s as i64)),
                // Picked elements may lie in the stores in any order.
                Some(pick) => {
                    let store = |&at: &u64| starts.partition_point(|&s| s <= at);
                    let borders = pick.windows(2).enumerate().filter(|(_, p)| store(&p[0]) != store(&p[1]));
                    asked.extend(borders.map(|(i, _)| i as i64 + 1));
                }
            }
        }
    }
    asked.sort_unstable();
    asked.dedup();
    Ok(spec.samples.breaks.found.iter().fold(asked, |all, found| merged(&all, found)))
}

/// Merges two ascending lists. A value comes as often as in the list that has it more often.
pub fn merged(one: &[i64], other: &[i64]) -> Vec<i64> {
    let mut all = Vec::with_capacity(one.len().max(other.len()));
    let (mut i, mut j) = (0, 0);
    while let (Some(&a), Some(&b)) = (one.get(i), other.get(j)) {
        let order = a.cmp(&b);
        all.push(a.min(b));
        i += usize::from(order != Ordering::Greater);
        j += usize::from(order != Ordering::Less);
    }
    all.extend_from_slice(&one[i..]);
    all.extend_from_slice(&other[j..]);
    all
}

#[cfg(test)]
mod tests {
    use super::merged;

    #[test]
    fn lists_are_merged() {
        for (one, other, expected) in [
            (&[][..], &[][..], &[][..]),
            (&[1, 4], &[], &[1, 4]),
            (&[1, 4, 4, 9], &[0, 4, 6], &[0, 1, 4, 4, 6, 9]),
            (&[3, 3], &[3, 3, 3, 5], &[3, 3, 3, 5]),
        ] {
            assert_eq!((merged(one, other), merged(other, one)), (expected.to_vec(), expected.to_vec()));
        }
    }
}
