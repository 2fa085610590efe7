//! Arrays of another resolution along one axis: which element of an array lies where an element of the grid array lies.
//! Maps are ratios of whole numbers, so that they are exact at any distance from the start.
//!
//! A sample is a box: from half an element before the centre of its first element to half an element after that of its last
//! one. The boxes of all arrays have the same centre. A box that doesn't begin where an element does begins at the nearest
//! element; of two, at the later one. With `scale_method="previous"` it begins at the element before.

use crate::spec::ScaleMethod;
use dali_zarr_base::error::{Error, Result};

/// Where the elements of an array lie along a dimension.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place {
    /// The centre of the first element.
    pub first: f64,
    /// The distance from each element to the next one, not 0. Negative: places descend.
    pub distance: f64,
}

impl Place {
    /// Returns the number of elements in a length. `what`, `dim` and `array` are for messages.
    ///
    /// # Errors
    /// If it isn't whole, or not at least 1.
    pub(super) fn elements(&self, length: f64, what: &str, dim: &str, array: &str) -> Result<i64> {
        let distance = self.distance.abs();
        let count = length / distance;
        let whole = count.round();
        if !(count - whole).abs().le(&(WHOLE * whole.max(1.0))) || !(1.0..=(1u64 << 40) as f64).contains(&whole) {
            return Err(Error::value(format!(
                "{what}: expected a multiple of {}, the distance of elements along \"{dim}\" in array '{array}', but found {}; give a \
                 multiple, or windows by output",
                shown(distance),
                shown(length)
            )));
        }
        Ok(whole as i64)
    }
}

/// How far a count of elements may be from a whole number, relative to it.
const WHOLE: f64 = 1e-6;
/// Places that are less than this apart, in elements, count as the same. Coordinates of single precision and decimal
/// fractions are rounded.
const SAME: f64 = 0.01;
/// Ratios of distances are at least as exact as for this many elements.
const LEAST: i64 = 1000;
/// Places that are none of the fractions that ratios of distances give are rounded to a part of an element.
const PARTS: i64 = 1000;

/// Maps elements of the grid array, along one axis, to those of another array: `(at * numerator + constant) / denominator`,
/// rounded down. Bounds of elements have another constant than starts, which depend on the windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scaled {
    /// The numerator, above 0.
    pub numerator: i64,
    /// The denominator, above 0 and even.
    pub denominator: i64,
    /// The constant of starts.
    pub start: i64,
    /// The constant of the bounds of elements.
    pub bound: i64,
    /// Number of elements of the array and of the grid array.
    pub lens: (i64, i64),
    /// Which element a box begins at that begins between two.
    pub method: ScaleMethod,
}

/// An array along one axis, to compare it with the grid array.
#[derive(Clone, Copy, Debug)]
pub(super) struct Along {
    pub place: Place,
    /// Number of its elements.
    pub len: i64,
    /// Number of its elements in a sample.
    pub window: i64,
}

impl Scaled {
    /// Returns the map from the elements of `grid` to those of `own`; `None` if the same elements have the same numbers.
    ///
    /// # Errors
    /// Why there is none, as a part of a message.
    pub(super) fn new(grid: Along, own: Along, method: ScaleMethod) -> std::result::Result<Option<Self>, String> {
        let ratio = grid.place.distance / own.place.distance;
        if ratio < 0.0 {
            return Err("places that ascend in one and descend in the other".into());
        }
        let (p, q) = fraction(ratio, SAME / (grid.len.max(grid.window).max(LEAST) as f64)).ok_or_else(too_far)?;
        // The grid's first centre in elements of the array, in halves of the ratio's fractions if it is one of them.
        let shift = (grid.place.first - own.place.first) / own.place.distance;
        let halves = shift * 2.0 * q as f64;
        let is_half = (halves - halves.round()).abs() <= SAME * 2.0 * q as f64;
        let f = if is_half { 1 } else { PARTS };
        let shift = (halves * f as f64).round();
        if shift.is_nan() || shift.abs() > (1u64 << 60) as f64 {
            return Err(too_far());
        }
        let (p, q, f, shift) = (i128::from(p), i128::from(q), i128::from(f), shift as i128);
        if p == q && shift == 0 && grid.window == own.window && grid.len == own.len {
            return Ok(None);
        }
        // Twice the number of elements between the first centre of a window and the window's centre.
        let (half_grid, half_own) = (i128::from(grid.window) - 1, i128::from(own.window) - 1);
        // `q * f` is half the denominator: rounding down after adding it is rounding to the nearest.
        let rounding = if method == ScaleMethod::Nearest { q * f } else { 0 };
        let start = shift + half_grid * p * f - half_own * q * f + rounding;
        // An element's bound lies half an element before its centre. It is rounded as starts are, so that a box that fits in a
        // region of the grid's elements fits in that of the array's.
        let bound = shift - p * f + q * f + rounding;
        let narrow = |n: i128| i64::try_from(n).ok().filter(|n| n.unsigned_abs() < 1 << 60).ok_or_else(too_far);
        Ok(Some(Self {
            numerator: narrow(2 * p * f)?,
            denominator: narrow(2 * q * f)?,
            start: narrow(start)?,
            bound: narrow(bound)?,
            lens: (own.len, grid.len),
            method,
        }))
    }

    fn of(self, at: i64, constant: i64) -> i64 {
        let sum = i128::from(at) * i128::from(self.numerator) + i128::from(constant);
        clamped(sum.div_euclid(i128::from(self.denominator)))
    }

    /// Returns the array's element at which a sample begins that starts at the grid's element `at`. It may lie outside.
    pub fn start(self, at: i64) -> i64 {
        self.of(at, self.start)
    }

    /// Returns the array's elements in a segment of the grid, which are none if both are equal. The ends of the grid are no
    /// bounds: there the array ends where it ends itself.
    pub(super) fn within(self, (from, to): (i64, i64)) -> (i64, i64) {
        let (len, grid_len) = self.lens;
        let bound = |at: i64| match at {
            ..=0 => 0,
            at if at >= grid_len => len,
            at => self.of(at, self.bound).clamp(0, len),
        };
        (bound(from), bound(to))
    }

    /// Returns about how many of the grid's elements are as long as so many of the array's, at least 1.
    pub fn of_grid(self, elements: u64) -> u64 {
        let count = u128::from(elements) * u128::from(self.denominator.unsigned_abs());
        (count / u128::from(self.numerator.unsigned_abs())).clamp(1, 1 << 62) as u64
    }

    /// Returns the first and the last start in the grid at which `window` elements of the array lie between two of its
    /// elements. There is none if the first is after the last.
    pub(super) fn fitting(self, window: i64, (from, to): (i64, i64)) -> (i64, i64) {
        let (n, d, add) = (i128::from(self.numerator), i128::from(self.denominator), i128::from(self.start));
        // start(s) >= at is s * n + add >= at * d.
        let least = |at: i128| -((add - at * d).div_euclid(n));
        let last = i128::from(to) - i128::from(window) + 1;
        (clamped(least(from.into())), clamped(least(last) - 1))
    }

    /// Returns how far boxes that start at `first` or a multiple of `step` after it begin from the array's element at which
    /// they are read, at most; in elements of the array.
    pub fn beside(self, first: i64, step: i64) -> f64 {
        let (n, d) = (i128::from(self.numerator), i128::from(self.denominator));
        let apart = gcd(i128::from(step) * n, d);
        let least = (i128::from(first) * n + i128::from(self.start)).rem_euclid(d) % apart;
        // An element begins exactly where a box does if what was added for rounding is left.
        let added = if self.method == ScaleMethod::Nearest { d / 2 } else { 0 };
        let of = |rest: i128| (rest - added).unsigned_abs();
        of(least).max(of(least + d - apart)) as f64 / d as f64
    }
}

/// Formats a number for messages, without long rows of zeros.
fn shown(number: f64) -> String {
    if (1e-6..1e16).contains(&number.abs()) || number == 0.0 { number.to_string() } else { format!("{number:e}") }
}

fn too_far() -> String {
    "places too far apart to compute with".into()
}

fn clamped(n: i128) -> i64 {
    n.clamp(-(1 << 62), 1 << 62) as i64
}

fn gcd(a: i128, b: i128) -> i128 {
    let (mut a, mut b) = (a.abs(), b.abs());
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Returns the fraction with the smallest denominator, among the convergents, that differs from a number above 0 by at most
/// `tolerance`. `None` if its parts are too large.
fn fraction(number: f64, tolerance: f64) -> Option<(i64, i64)> {
    const LARGEST: f64 = (1u64 << 31) as f64;
    let (mut before, mut last, mut rest) = ((0.0, 1.0), (1.0, 0.0), number);
    loop {
        let whole = rest.floor();
        let next: (f64, f64) = (whole * last.0 + before.0, whole * last.1 + before.1);
        if !(next.0 <= LARGEST && next.1 <= LARGEST) {
            return None;
        }
        // A number so small that its fraction is 0 is none of the tolerance's.
        if next.0 > 0.0 && (number - next.0 / next.1).abs() <= tolerance {
            return Some((next.0 as i64, next.1 as i64));
        }
        (before, last, rest) = (last, next, (rest - whole).recip());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn fractions_of_scales() {
        for (number, expected) in [
            (1.0, (1, 1)),
            (0.5, (1, 2)),
            (6.0, (6, 1)),
            (1.0 / 6.0, (1, 6)),
            (0.29 / 0.65, (29, 65)),
            (1.5, (3, 2)),
            (f64::from(10.0_f32) / 20.000_001, (1, 2)),
        ] {
            assert_eq!(fraction(number, 1e-6), Some(expected), "{number}");
        }
        assert_eq!(fraction(1e-12, 1e-6), None);
        assert_eq!(fraction(f64::INFINITY, 1e-6), None);
        assert_eq!(fraction(f64::NAN, 1e-6), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]
        /// In units of which distances and places are whole, so that the expected elements are computed exactly.
        #[test]
        fn boxes_have_one_centre(
            distances in (1i64..40, 1i64..40), firsts in (-500i64..500, -500i64..500), lens in (1i64..80, 1i64..80),
            windows in (1i64..20, 1i64..20), descends: bool, unit in prop::sample::select(vec![1.0, 0.1, 0.65, 1e-3, 8.0]),
            at in -100i64..200, bounds in (-5i64..90, 0i64..90), step in 1i64..9, takes_previous: bool,
        ) {
            let sign = if descends { -1 } else { 1 };
            let place = |first: i64, distance: i64| Place { first: (sign * first) as f64 * unit, distance: (sign * distance) as f64 * unit };
            let grid = Along { place: place(firsts.0, distances.0), len: lens.0, window: windows.0 };
            let own = Along { place: place(firsts.1, distances.1), len: lens.1, window: windows.1 };
            let method = if takes_previous { ScaleMethod::Previous } else { ScaleMethod::Nearest };
            let map = Scaled::new(grid, own, method).unwrap();
            // Twice each place, since centres of boxes are halves. The first bound of the box, from the array's first one, as a
            // fraction of its distance.
            let centre = |s: i64| 2 * firsts.0 + 2 * s * distances.0 + (windows.0 - 1) * distances.0;
            let begins = |s: i64| centre(s) - windows.1 * distances.1 - (2 * firsts.1 - distances.1);
            let rounded = |twice: i64, distance: i64| {
                if takes_previous { twice.div_euclid(2 * distance) } else { (twice + distance).div_euclid(2 * distance) }
            };
            let expected = |s: i64| rounded(begins(s), distances.1);
            let Some(map) = map else {
                prop_assert!((0..50).all(|s| expected(s) == s));
                prop_assert_eq!(lens.0, lens.1);
                return Ok(());
            };
            prop_assert_eq!(map.start(at), expected(at));
            let bound = |e: i64| match e {
                ..=0 => 0,
                e if e >= lens.0 => lens.1,
                e => rounded(2 * firsts.0 + (2 * e - 1) * distances.0 - (2 * firsts.1 - distances.1), distances.1).clamp(0, lens.1),
            };
            let (from, to) = (bounds.0, bounds.0 + bounds.1);
            prop_assert_eq!(map.within((from, to)), (bound(from), bound(to)));
            let (first, last) = map.fitting(windows.1, (bound(from), bound(to)));
            for s in -3000..3000 {
                let is_in = bound(from) <= expected(s) && expected(s) + windows.1 <= bound(to);
                prop_assert_eq!(first <= s && s <= last, is_in, "{}", s);
            }
            let beside = (0..200).map(|k| begins(at + k * step)).map(|twice| {
                let rest = twice.rem_euclid(2 * distances.1);
                (if takes_previous { rest } else { rest.min(2 * distances.1 - rest) }) as f64 / (2 * distances.1) as f64
            });
            let most = beside.fold(0.0, f64::max);
            prop_assert!((map.beside(at, step) - most).abs() < 1e-3, "{} {}", map.beside(at, step), most);
        }
    }
}
