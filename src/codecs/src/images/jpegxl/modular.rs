//! Modular channels (ISO/IEC 18181-1, H.5), decoded only to find where they end.
//!
//! The low frequencies of an image and what describes its blocks are such channels. Behind them there are headers, which
//! make the crate take memory. What isn't usual of them is refused.

use super::entropy::{Numbers, signed};
use super::reader::Reader;
use super::tree::{Node, StreamHeader, Transforms, Tree, Weights};

/// The number of properties that don't look at other channels.
const PROPERTIES: usize = 16;

/// Values around a pixel.
#[derive(Clone, Copy, Debug)]
struct Around {
    left: i64,
    top: i64,
    top_left: i64,
    top_right: i64,
    left_left: i64,
    top_top: i64,
    top_right_right: i64,
}

/// Reads a stream of channels with these widths and heights, and leaves the reader behind it.
///
/// # Errors
/// If the stream is damaged, or isn't as libjxl writes it.
pub(super) fn skip(
    reader: &mut Reader<'_>,
    channels: &[(u32, u32)],
    number: u32,
    shared: Option<&Tree>,
    allowed: Transforms,
) -> Result<(), String> {
    let header = StreamHeader::read(reader, allowed)?;
    let mut channels = channels.to_vec();
    header.palettes.iter().try_for_each(|palette| palette.apply(&mut channels))?;
    let samples: u64 = channels.iter().map(|&(width, height)| u64::from(width) * u64::from(height)).sum();
    let own;
    let tree = if header.shared {
        shared.ok_or("it lacks the tree that all groups share")?
    } else {
        own = Tree::read(reader, samples)?;
        &own
    };
    let widest = channels.iter().map(|&(width, _)| width).max().unwrap_or(0);
    let mut numbers = Numbers::new(&tree.code, reader, widest as usize)?;
    for (channel, (width, height)) in channels.into_iter().enumerate() {
        let (width, mut rows) = (width as usize, [vec![], vec![], vec![]]);
        rows.iter_mut().for_each(|row: &mut Vec<i64>| row.resize(width, 0));
        let mut weighted = Weighted::new(header.weights, width);
        let height = if width > 0 { height as usize } else { 0 };
        for y in 0..height {
            rows.rotate_right(1);
            let mut properties = [0; 256];
            (properties[0], properties[1], properties[2]) = (channel as i64, i64::from(number), y as i64);
            for x in 0..width {
                let around = Around::of(&rows, x, y);
                let guess = weighted.predict(&around, x, y);
                around.describe(&mut properties, x, weighted.error);
                let (predictor, offset, factor, context) = leaf(tree, &properties)?;
                let coded = signed(numbers.next(reader, context as usize)?);
                let value = (i64::from(coded) * i64::from(factor))
                    .saturating_add(around.predict(predictor, guess) + i64::from(offset));
                if i32::try_from(value).is_err() {
                    return Err("values of low frequencies are too large".to_owned());
                }
                weighted.learn(value, x);
                rows[0][x] = value;
            }
        }
    }
    numbers.finish()
}

/// Returns the predictor, the offset, the factor and the context of the leaf for these properties.
fn leaf(tree: &Tree, properties: &[i64; 256]) -> Result<(u8, i32, u32, u32), String> {
    let mut at = 0;
    loop {
        match tree.nodes[at] {
            Node::Leaf { predictor, offset, factor, context } => return Ok((predictor, offset, factor, context)),
            Node::Split { property, .. } if usize::from(property) >= PROPERTIES => {
                return Err("low frequencies depend on other channels, which has no decoder".to_owned());
            }
            Node::Split { property, value, left } => {
                at = left as usize + usize::from(properties[usize::from(property)] <= i64::from(value));
            }
        }
    }
}

impl Around {
    /// Of the pixel `x` of the first row, with the rows before it.
    fn of(rows: &[Vec<i64>; 3], x: usize, y: usize) -> Self {
        let [row, above, second] = rows;
        let left = match (x, y) {
            (0, 0) => 0,
            (0, _) => above[0],
            _ => row[x - 1],
        };
        let top = if y > 0 { above[x] } else { left };
        let top_left = if x > 0 && y > 0 { above[x - 1] } else { left };
        let top_right = if x + 1 < row.len() && y > 0 { above[x + 1] } else { top };
        let left_left = if x > 1 { row[x - 2] } else { left };
        let top_top = if y > 1 { second[x] } else { top };
        let top_right_right = if x + 2 < row.len() && y > 0 { above[x + 2] } else { top_right };
        Self { left, top, top_left, top_right, left_left, top_top, top_right_right }
    }

    /// Writes the properties that trees look at, but for the first three.
    fn describe(&self, properties: &mut [i64; 256], x: usize, error: i64) {
        let Self { left, top, top_left, top_right, left_left, top_top, .. } = *self;
        // The gradient of the pixel before.
        let before = properties[9];
        properties[3..PROPERTIES].copy_from_slice(&[
            x as i64,
            top.abs(),
            left.abs(),
            top,
            left,
            left - before,
            left + top - top_left,
            left - top_left,
            top_left - top,
            top - top_right,
            top - top_top,
            left - left_left,
            error,
        ]);
        // They have 32 bits, as in the crate.
        properties[3..PROPERTIES].iter_mut().for_each(|property| *property = i64::from(*property as i32));
    }

    fn predict(&self, predictor: u8, weighted: i64) -> i64 {
        let Self { left, top, top_left, top_right, left_left, top_top, top_right_right } = *self;
        let gradient = left + top - top_left;
        match predictor {
            0 => 0,
            1 => left,
            2 => top,
            3 => (left + top) / 2,
            4 => {
                if (gradient - left).abs() < (gradient - top).abs() {
                    left
                } else {
                    top
                }
            }
            5 => gradient.clamp(left.min(top), left.max(top)),
            6 => weighted,
            7 => top_right,
            8 => top_left,
            9 => left_left,
            10 => (left + top_left) / 2,
            11 => (top + top_left) / 2,
            12 => (top + top_right) / 2,
            _ => (6 * top - 2 * top_top + 7 * left + left_left + top_right_right + 3 * top_right + 8) / 16,
        }
    }
}

/// The predictor that weights four others by their errors around (H.5.2).
struct Weighted {
    weights: Weights,
    width: usize,
    /// The errors of each of the four, and of the whole, in this row and the one above. They have 32 bits, as in the crate.
    errors: [Vec<([u32; 4], i32)>; 2],
    guesses: [i64; 5],
    /// The largest error of the whole around.
    error: i64,
}

impl Weighted {
    fn new(weights: Weights, width: usize) -> Self {
        let row = || vec![([0; 4], 0); width];
        Self { weights, width, errors: [row(), row()], guesses: [0; 5], error: 0 }
    }

    fn predict(&mut self, around: &Around, x: usize, y: usize) -> i64 {
        if y > 0 && x == 0 {
            self.errors.swap(0, 1);
        }
        let [row, above] = &self.errors;
        let (north, west) = (above[x], if x > 0 { row[x - 1].1 } else { 0 });
        let (north_east, north_west) = (above[(x + 1).min(self.width - 1)], above[x.saturating_sub(1)]);
        let [n, w, nw, ne, nn] =
            [around.top, around.left, around.top_left, around.top_right, around.top_top].map(|value| value << 3);
        let [tn, tw, tnw, tne] = [north.1, west, north_west.1, north_east.1].map(i64::from);
        let p = self.weights.errors;
        let all = [
            w + ne - n,
            n - (((tw + tn + tne) * p[0]) >> 5),
            w - (((tw + tn + tnw) * p[1]) >> 5),
            n - ((tnw * p[2] + tn * p[3] + tne * p[4] + (nn - n) * p[5] + (nw - w) * p[6]) >> 5),
        ];
        let mut weights = [0i64; 4];
        for (i, weight) in weights.iter_mut().enumerate() {
            let error = u64::from(north.0[i].wrapping_add(north_east.0[i]).wrapping_add(north_west.0[i]));
            let shift = (error + 1).ilog2().saturating_sub(5);
            let inverse = (1 << 24) / ((error >> shift) + 1);
            *weight = (4 + ((u64::from(self.weights.most[i]) * inverse) >> shift)) as i64;
        }
        let shift = weights.iter().sum::<i64>().ilog2() - 4;
        weights.iter_mut().for_each(|weight| *weight >>= shift);
        let sum: i64 = weights.iter().sum();
        let total = (sum >> 1) - 1 + weights.iter().zip(all).map(|(weight, guess)| weight * guess).sum::<i64>();
        let mut guess = (total * ((1 << 24) / sum)) >> 24;
        if ((tn ^ tw) | (tn ^ tnw)) <= 0 {
            guess = guess.clamp(w.min(n).min(ne), w.max(n).max(ne));
        }
        self.guesses = [all[0], all[1], all[2], all[3], guess];
        self.error = [tw, tn, tnw, tne].into_iter().fold(0, |most, e: i64| if e.abs() > most.abs() { e } else { most });
        (guess + 3) >> 3
    }

    fn learn(&mut self, value: i64, x: usize) {
        let value = value << 3;
        let mut errors = [0; 4];
        for (error, guess) in errors.iter_mut().zip(self.guesses) {
            *error = (((guess - value).abs() + 3) >> 3) as u32;
        }
        self.errors[0][x] = (errors, (self.guesses[4] - value) as i32);
        // The one above on the right takes these too, in the first row as well.
        if x + 1 < self.width {
            for (above, error) in self.errors[1][x + 1].0.iter_mut().zip(errors) {
                *above = above.wrapping_add(error);
            }
        }
    }
}
