//! The predictors of TIFF, as imagecodecs has them: `imagecodecs_delta` (predictor 2, differences of elements) and
//! `imagecodecs_floatpred` (predictor 3, differences of the bytes of floats). virtual-tiff's `HorizontalDeltaCodec` is
//! the first of them without a configuration.
//!
//! In v2 the filter gets bytes, and its configuration has the shape and the type, which may be others than the array's.
//! In v3 it gets the chunk. virtual-tiff writes the shape and the type in v3 too.

use crate::chain::{Side, Step};
use crate::codec_entry::{CodecEntry, Format, TypeWithOrder};
use crate::wrong_size;
use dali_zarr_base::dtype::DType;
use dali_zarr_base::error::{Error, Result};

/// A predictor of TIFF.
#[derive(Clone, Debug)]
pub(crate) struct Predictor {
    kind: Kind,
    /// Size of an element in bytes.
    size: usize,
    shape: Shape,
    /// The axis along which there are differences, counted from the end: 0 is the last one.
    axis_from_end: usize,
    /// Distance in rows of the last axis between the bytes of a difference. 1, 2 or 4.
    dist: usize,
}

/// The shape of the elements.
#[derive(Clone, Debug)]
enum Shape {
    /// The chunk's.
    Chunk,
    /// One row of all elements: in v2, if the configuration has no shape.
    Row,
    /// The one in the configuration.
    Given(Vec<u64>),
}

impl Shape {
    /// Returns the extents for a chunk of the shape `chunk` with this number of elements.
    fn extents<'a>(&'a self, chunk: &'a [u64], row: &'a [u64; 1]) -> &'a [u64] {
        match self {
            Self::Chunk => chunk,
            Self::Row => row,
            Self::Given(shape) => shape,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Differences of elements. `swap`: they are in the other byte order than this machine's.
    Differences { swap: bool },
    /// The first bytes of all elements of a row, then their second bytes, and so on, from the most significant one; of
    /// these bytes the differences. `swap`: decoded elements are in the other byte order than this machine's.
    Bytes { swap: bool },
}

impl Predictor {
    /// Reads the configuration of `imagecodecs_delta`.
    ///
    /// # Errors
    /// If a field is wrong or unknown.
    pub(crate) fn delta(entry: &CodecEntry<'_>) -> Result<Self> {
        let (given, shape) = layout(entry)?;
        // imagecodecs takes bytes without a type as one row of bytes.
        let bytes = TypeWithOrder::native(DType::U8);
        let given = given.unwrap_or(entry.own().unwrap_or(bytes));
        let (axis_from_end, dist) = places(entry, &shape)?;
        if dist != 1 {
            return Err(entry.wrong("dist", "1, the only distance that imagecodecs has"));
        }
        Ok(Self { kind: Kind::Differences { swap: given.swap }, size: given.dtype.size(), shape, axis_from_end, dist })
    }

    /// Reads the configuration of `imagecodecs_floatpred`.
    ///
    /// # Errors
    /// If a field is wrong or unknown.
    pub(crate) fn floating(entry: &CodecEntry<'_>) -> Result<Self> {
        let (given, shape) = layout(entry)?;
        let given = given.or(entry.own()).ok_or_else(|| entry.wrong("dtype", "one of NumPy's types"))?;
        let size = given.dtype.size();
        if !matches!(size, 2 | 4 | 8) {
            return Err(entry.wrong("dtype", "a type of 2, 4 or 8 bytes"));
        }
        let (axis_from_end, dist) = places(entry, &shape)?;
        if axis_from_end > 1 {
            return Err(entry.wrong("axis", "the last axis or the one before it"));
        }
        if !matches!(dist, 1 | 2 | 4) {
            return Err(entry.wrong("dist", "1, 2 or 4"));
        }
        Ok(Self { kind: Kind::Bytes { swap: given.swap }, size, shape, axis_from_end, dist })
    }

    /// virtual-tiff's `HorizontalDeltaCodec`: differences along the last axis.
    pub(crate) fn horizontal(entry: &CodecEntry<'_>) -> Result<Self> {
        if let Some((key, _)) = entry.configuration.iter().next() {
            return Err(entry.wrong(key, "no fields"));
        }
        let kind = Kind::Differences { swap: false };
        Ok(Self { kind, size: entry.side.dtype.size(), shape: Shape::Chunk, axis_from_end: 0, dist: 1 })
    }

    /// Returns the number of elements along the axis, and of those behind each of them: those that `shape` gives.
    fn row(&self, shape: &[u64]) -> Option<(usize, usize)> {
        let at = shape.len().checked_sub(self.axis_from_end + 1)?;
        let behind = shape[at + 1..].iter().product::<u64>();
        Some((usize::try_from(shape[at]).ok()?, usize::try_from(behind).ok()?))
    }
}

/// Reads the type and the shape that a configuration gives.
fn layout(entry: &CodecEntry<'_>) -> Result<(Option<TypeWithOrder>, Shape)> {
    let known = ["shape", "dtype", "axis", "dist"];
    let unknown = entry.configuration.iter().find(|(key, value)| {
        let id = entry.format == Format::V2 && *key == "id";
        !id && !value.is_null() && !known.contains(&key.as_str())
    });
    if let Some((key, _)) = unknown {
        return Err(entry.wrong(key, "one of the fields shape, dtype, axis and dist"));
    }
    let dtype = entry.field("dtype").map(|_| entry.typed("dtype", None)).transpose()?;
    let wrong = || entry.wrong("shape", "a list of whole numbers");
    let shape = entry.field("shape").map(|found| {
        let extents = found.as_array().ok_or_else(wrong)?;
        extents.iter().map(|extent| extent.as_u64()).collect::<Option<Vec<_>>>().ok_or_else(wrong)
    });
    let shape = match (shape.transpose()?, entry.format) {
        (Some(given), _) => Shape::Given(given),
        (None, Format::V3) => Shape::Chunk,
        (None, Format::V2) => Shape::Row,
    };
    Ok((dtype, shape))
}

/// Reads the axis, counted from the end, and the distance.
fn places(entry: &CodecEntry<'_>, shape: &Shape) -> Result<(usize, usize)> {
    let ndim = shape.extents(&entry.side.shape, &[1]).len() as i64;
    let axis = entry.field("axis").map_or(Some(-1), |found| found.as_i64());
    let axis = axis.map(|axis| if axis < 0 { axis } else { axis - ndim }).filter(|axis| (-ndim..0).contains(axis));
    let axis = axis.ok_or_else(|| entry.wrong("axis", &format!("one of the {ndim} axes")))?;
    let dist = entry.field("dist").map_or(Some(1), |found| found.as_u64()).and_then(|n| usize::try_from(n).ok());
    let dist = dist.ok_or_else(|| entry.wrong("dist", "a whole number"))?;
    Ok(((-1 - axis) as usize, dist))
}

impl Step for Predictor {
    fn encoded_side(&self, side: &Side) -> Result<Side, String> {
        let elements = side.elements(self.size)? as u64;
        let row = [elements];
        let shape = self.shape.extents(&side.shape, &row);
        let product = shape.iter().try_fold(1u64, |all, &extent| all.checked_mul(extent));
        if product != Some(elements) {
            return Err(format!("the shape {shape:?} isn't that of {elements} elements of {} bytes", self.size));
        }
        Ok(side.clone())
    }

    fn decode(&self, input: &[u8], shape: &[u64], out: &mut [u8]) -> Result<()> {
        if input.len() != out.len() || !input.len().is_multiple_of(self.size) {
            return Err(wrong_size(out.len(), input.len()));
        }
        let elements = out.len() / self.size;
        let all = [elements as u64];
        let shape = self.shape.extents(shape, &all);
        let (count, behind) = self
            .row(shape)
            .filter(|(count, behind)| elements == 0 || elements.is_multiple_of(count * behind))
            .ok_or_else(|| Error::damaged(format!("expected elements of the shape {shape:?}, but found {elements}")))?;
        if elements == 0 {
            return Ok(());
        }
        let row = count * behind * self.size;
        match self.kind {
            Kind::Differences { swap } => {
                out.copy_from_slice(input);
                for row in out.chunks_exact_mut(row) {
                    match self.size {
                        1 => sums::<u8, 1>(row, behind, swap),
                        2 => sums::<u16, 2>(row, behind, swap),
                        4 => sums::<u32, 4>(row, behind, swap),
                        _ => sums::<u64, 8>(row, behind, swap),
                    }
                }
            }
            Kind::Bytes { swap } => {
                let dist = behind * self.dist;
                if !(count * behind).is_multiple_of(dist) {
                    return Err(Error::damaged(format!(
                        "expected rows of a multiple of {dist} elements, but found {}",
                        count * behind
                    )));
                }
                let mut sums = vec![0; row];
                for (from, to) in input.chunks_exact(row).zip(out.chunks_exact_mut(row)) {
                    bytes(from, &mut sums, dist);
                    gather(&sums, to, self.size, cfg!(target_endian = "big") != swap);
                }
            }
        }
        Ok(())
    }

    fn working_bytes(&self, decoded: usize) -> usize {
        if matches!(self.kind, Kind::Bytes { .. }) { decoded } else { 0 }
    }
}

/// An unsigned integer, whose sums wrap.
trait Sum<const N: usize>: Copy {
    fn load(bytes: [u8; N]) -> Self;
    fn swapped(self) -> Self;
    fn plus(self, other: Self) -> Self;
    fn store(self) -> [u8; N];
}

macro_rules! sum {
    ($($t:ty, $n:literal;)*) => {$(
        impl Sum<$n> for $t {
            #[inline(always)]
            fn load(bytes: [u8; $n]) -> Self {
                Self::from_ne_bytes(bytes)
            }
            #[inline(always)]
            fn swapped(self) -> Self {
                self.swap_bytes()
            }
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn store(self) -> [u8; $n] {
                self.to_ne_bytes()
            }
        }
    )*};
}
sum! { u8, 1; u16, 2; u32, 4; u64, 8; }

/// Adds to each element of `row` the one `behind` elements before it.
fn sums<T: Sum<N>, const N: usize>(row: &mut [u8], behind: usize, swap: bool) {
    let (elements, _) = row.as_chunks_mut::<N>();
    let order = |v: T| if swap { v.swapped() } else { v };
    if behind == 1 {
        let mut last: Option<T> = None;
        for element in elements {
            let own = order(T::load(*element));
            let sum = last.map_or(own, |last| own.plus(last));
            *element = order(sum).store();
            last = Some(sum);
        }
        return;
    }
    for at in behind..elements.len() {
        let sum = order(T::load(elements[at])).plus(order(T::load(elements[at - behind])));
        elements[at] = order(sum).store();
    }
}

/// Fills `sums`: each is the byte of `from` plus the sum `dist` bytes before.
fn bytes(from: &[u8], sums: &mut [u8], dist: usize) {
    sums.copy_from_slice(from);
    if dist == 1 {
        let mut last = 0u8;
        for sum in sums {
            last = last.wrapping_add(*sum);
            *sum = last;
        }
        return;
    }
    for at in dist..sums.len() {
        sums[at] = sums[at].wrapping_add(sums[at - dist]);
    }
}

/// Gathers elements of `size` bytes from planes of bytes, the most significant one first. `big`: to big-endian
/// elements.
fn gather(planes: &[u8], to: &mut [u8], size: usize, big: bool) {
    let count = to.len() / size;
    for (plane, values) in planes.chunks_exact(count).enumerate() {
        let at = if big { plane } else { size - 1 - plane };
        for (element, value) in to.chunks_exact_mut(size).zip(values) {
            element[at] = *value;
        }
    }
}

#[cfg(test)]
#[path = "tests_predictor.rs"]
mod tests;
