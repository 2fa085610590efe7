//! Checks what the user asks for along one dimension: region, windows, step, pads, segments.

use super::cuts::Cut;
use super::starts::above;
use crate::spec::{OutOfBounds, Region, Segments};
use dali_zarr_base::error::{Error, Result};

/// Returns the region of interest along a dimension of length `len`. Negative bounds count from the end.
pub(super) fn region(name: &str, len: i64, roi_start: Option<i64>, roi_end: Option<i64>) -> Result<Region> {
    let bound = |what: &str, value: i64| {
        let at = if value < 0 { value + len } else { value };
        if at < 0 || at > len {
            return Err(Error::value(format!("{what}: {value} is outside dimension \"{name}\" of length {len}")));
        }
        Ok(at)
    };
    let roi_start = bound("roi_start", roi_start.unwrap_or(0))?;
    let roi_end = bound("roi_end", roi_end.unwrap_or(len))?;
    if roi_end <= roi_start {
        return Err(Error::value(format!(
            "roi_start, roi_end: along \"{name}\" the region of interest [{roi_start}, {roi_end}) is empty, so the store holds no sample"
        )));
    }
    Ok(Region { first: roi_start, end: roi_end, spacing: 1 })
}

/// Checks what was selected of a dimension of length `len`. Returns it with its end rounded up, so that its length is a
/// multiple of the spacing. The spacing may be longer than the dimension, of which one element is selected then: with
/// several stores it is that of the others.
pub(super) fn selected(name: &str, len: i64, region: Region) -> Result<Region> {
    let Region { first, end, spacing } = region;
    if first < 0 || end <= first || end > len || !(1..=1 << 40).contains(&spacing) {
        return Err(Error::value(format!(
            "_regions: expected elements of dimension \"{name}\" of length {len}, but found {first} to before {end} at a \
             distance of {spacing}"
        )));
    }
    Ok(Region { end: above(end, first, spacing), ..region })
}

/// Checks that a number is from `least` to 2^40, and returns it.
fn limit(what: &str, name: &str, value: i64, least: i64) -> Result<i64> {
    if value < least || value > 1 << 40 {
        return Err(Error::value(format!("{what}: expected {least} to 2^40 along \"{name}\", found {value}")));
    }
    Ok(value)
}

/// Returns how each array is cut along one dimension.
pub(super) fn cut(name: &str, region: Region, windows: &[Option<i64>], strides: &[Option<i64>]) -> Result<Vec<Cut>> {
    let one = |(&window, &stride): (&Option<i64>, &Option<i64>)| {
        let (window, dropped) = match window.unwrap_or(0) {
            0 => (1, true),
            -1 => ((region.end - region.first) / region.spacing, false),
            w => (limit("window", name, w, 1)?, false),
        };
        let stride = limit("stride", name, stride.unwrap_or(1), 1)?;
        let cut = Cut { window, dropped, stride, scaled: None };
        if cut.span().is_none() {
            return Err(Error::value(format!("window, stride: too large along \"{name}\"")));
        }
        Ok(cut)
    };
    windows.iter().zip(strides).map(one).collect()
}

/// What the user asks for along one dimension.
pub(super) struct Requested<'a> {
    /// Whether it is the first of `dims`.
    pub first: bool,
    pub name: &'a str,
    pub region: Region,
    pub breaks: Vec<i64>,
    pub random: bool,
    pub step: Option<i64>,
    pub overlap: Option<i64>,
    /// `pad_before` and `pad_after`.
    pub pads: [Option<i64>; 2],
}

impl Requested<'_> {
    /// Returns how many elements before and after their segment windows may reach; `None` if neither was given. `span`
    /// is the number of elements that a sample spans.
    pub(super) fn pads(&self, span: i64, policy: OutOfBounds) -> Result<Option<(i64, i64)>> {
        let name = self.name;
        for (what, given) in ["pad_before", "pad_after"].into_iter().zip(self.pads) {
            let Some(given) = given else { continue };
            if !policy.fills() {
                return Err(Error::value(format!(
                    "{what}: expected out_of_bounds_policy=\"pad\" or \"edge\", which say what the elements outside are, but found \"{}\"",
                    if policy == OutOfBounds::Drop { "drop" } else { "error" }
                )));
            }
            let spacing = self.region.spacing;
            if given < 0 || given >= span {
                return Err(Error::value(format!(
                    "{what}: expected 0 to {} along \"{name}\", one less than the elements that a sample spans, found {}",
                    (span - 1) / spacing,
                    given / spacing
                )));
            }
        }
        let [before, after] = self.pads;
        Ok((before.is_some() || after.is_some()).then(|| (before.unwrap_or(0), after.unwrap_or(0))))
    }

    /// Returns the distance between sample starts in elements. `window` is the number of elements of the longest
    /// window, which is the default distance.
    pub(super) fn step(&self, window: i64) -> Result<i64> {
        let name = self.name;
        match (self.step, self.overlap) {
            (None | Some(0), None) if self.random => Ok(1),
            (Some(step), _) if self.random => Err(Error::value(format!(
                "step, random_crop: along \"{name}\" samples start anywhere, since random_crop names it, but step has \
                 {step} for it; give 0 there, or take it out of random_crop"
            ))),
            (_, Some(overlap)) if self.random && overlap != 0 => Err(Error::value(format!(
                "overlap, random_crop: along \"{name}\" samples start anywhere, since random_crop names it, but overlap has \
                 {overlap} for it; leave it out there, or take it out of random_crop"
            ))),
            (_, Some(_)) if self.random => Ok(1),
            (Some(step), _) => limit("step", name, step, 1),
            (None, Some(overlap)) if overlap < 0 || overlap >= window => Err(Error::value(format!(
                "overlap: expected 0 to {} along \"{name}\", one less than the window, found {overlap}",
                window - 1
            ))),
            // Without the limit of a given step, since a window may be longer.
            (None, overlap) => Ok(window - overlap.unwrap_or(0)),
        }
    }
}

/// Returns for each of `count` segments whether it was chosen; `None` if all were.
pub(super) fn chosen(segments: &Segments, count: usize) -> Result<Option<Vec<bool>>> {
    let chosen = match segments {
        Segments::All => return Ok(None),
        Segments::Mask(mask) if mask.len() == count => mask.clone(),
        Segments::Mask(mask) => {
            return Err(Error::value(format!(
                "segments: expected true or false for each of the {count} segments between breaks, found {}",
                mask.len()
            )));
        }
        Segments::Numbers(numbers) => {
            let mut chosen = vec![false; count];
            for &number in numbers {
                let at = if number < 0 { number.saturating_add(count as i64) } else { number };
                match usize::try_from(at).ok().and_then(|at| chosen.get_mut(at)) {
                    Some(one) if *one => {
                        return Err(Error::value(format!(
                            "segments: expected each segment once, but found segment {at} twice"
                        )));
                    }
                    Some(one) => *one = true,
                    None => {
                        return Err(Error::index(format!(
                            "segments: segment {number} isn't one of the {count} segments between breaks"
                        )));
                    }
                }
            }
            chosen
        }
    };
    match chosen.contains(&true) {
        true => Ok(Some(chosen)),
        false => Err(Error::value(format!(
            "segments: expected at least one of the {count} segments between breaks, found none"
        ))),
    }
}
