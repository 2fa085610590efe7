//! Whether an image is that of a chunk.

use std::fmt;

use dali_zarr_base::dtype::DType;

/// The chunk that an image must have the elements of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expected<'a> {
    /// The extents of the stored axes, slowest first.
    pub shape: &'a [u64],
    /// The type of the elements.
    pub dtype: DType,
}

/// What an image's header says. The channels of a pixel lie beside each other: rows, columns, channels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub height: u64,
    pub width: u64,
    pub channels: u64,
    pub dtype: DType,
}

/// Why an image isn't decoded.
#[derive(Debug)]
pub(crate) enum Unfit {
    /// It can't be decoded. The text says why.
    Damaged(String),
    /// Its header doesn't fit the chunk. The text says what was found.
    Other(String),
}

impl Unfit {
    /// Makes the reason of an image that is damaged.
    pub fn damaged(reason: impl fmt::Display) -> Self {
        Self::Damaged(reason.to_string())
    }
}

impl Expected<'_> {
    /// Compares an image's header with the chunk.
    ///
    /// # Errors
    /// If the image has another type, or isn't the chunk with each of its axes made of neighbouring axes of the chunk.
    pub fn check(&self, found: &Found) -> Result<(), Unfit> {
        let axes = [found.height, found.width, found.channels];
        if found.dtype == self.dtype && groups(self.shape, axes) {
            Ok(())
        } else {
            Err(Unfit::Other(found.to_string()))
        }
    }
}

/// Whether each of `axes` is the product of neighbouring extents of `shape`, and all of them are used.
fn groups(shape: &[u64], axes: [u64; 3]) -> bool {
    let suffix = |wanted: u64| {
        let mut product = 1u64;
        let mut products = shape.iter().rev().map(|&extent| {
            product = product.saturating_mul(extent);
            product
        });
        wanted == 1 || products.any(|product| product == wanted)
    };
    let [first, second, third] = axes;
    let Some(inner) = second.checked_mul(third) else { return false };
    let all = shape.iter().fold(1u64, |all, &extent| all.saturating_mul(extent));
    axes.iter().all(|&extent| extent > 0) && first.checked_mul(inner) == Some(all) && suffix(third) && suffix(inner)
}

impl fmt::Display for Expected<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} with the shape {:?}", self.dtype.name(), self.shape)
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { height, width, channels, dtype } = self;
        write!(f, "{height} rows of {width} pixels with {channels} channels of {}", dtype.name())
    }
}

#[cfg(test)]
mod tests {
    use super::groups;

    #[test]
    fn images_of_chunks() {
        for (shape, axes) in [
            (&[48, 64, 3][..], [48, 64, 3]),
            (&[1, 48, 64, 3], [48, 64, 3]),
            (&[1, 48, 1, 64, 3], [48, 64, 3]),
            (&[48, 64], [48, 64, 1]),
            (&[48, 64, 1], [48, 64, 1]),
            (&[1, 48, 64], [48, 64, 1]),
            // Two images above each other.
            (&[2, 48, 64, 3], [96, 64, 3]),
            (&[64], [1, 64, 1]),
            (&[1, 1], [1, 1, 1]),
            (&[], [1, 1, 1]),
            (&[5, 2], [5, 1, 2]),
        ] {
            assert!(groups(shape, axes), "{shape:?} {axes:?}");
        }
        for (shape, axes) in [
            (&[48, 64, 3][..], [64, 48, 3]),
            (&[48, 64, 3], [48, 64, 4]),
            (&[48, 64, 3], [48, 64, 1]),
            (&[48, 64, 3], [48, 65, 3]),
            (&[3, 48, 64], [48, 64, 3]),
            (&[48, 64], [0, 64, 1]),
            (&[48, 64], [u64::MAX, 64, 3]),
            (&[0, 64], [0, 64, 1]),
            (&[2, 3], [3, 2, 1]),
        ] {
            assert!(!groups(shape, axes), "{shape:?} {axes:?}");
        }
    }
}
