//! What the GPU decodes of a chain: which of its steps it can undo, and what is left to it of a whole chain.

use std::ops::Range;

use super::Compression;

/// How the GPU decodes a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnGpu {
    /// Not at all.
    No,
    /// A kernel decodes the streams of the chunk.
    Streams(Compression),
    /// The assembling kernel undoes this byte shuffle of elements of this many bytes.
    Shuffle(usize),
    /// A library of the GPU decodes most images of this format: see `Step::image_for_gpu`.
    Image(ImageFormat),
    /// The host verifies the checksum and skips it: see `Step::inside`.
    Checksum,
}

/// A format of images that a library of the GPU decodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageFormat {
    /// Baseline JPEG.
    Jpeg,
    /// JPEG 2000, part 1.
    Jpeg2k,
}

/// An image that a library of the GPU decodes. The channels of a pixel lie beside each other, and rows without padding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuImage {
    /// Where it lies in the encoded chunk.
    pub range: Range<usize>,
    /// Pixels in a row.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// Values of a pixel. JPEG: 1 (gray) or 3 (RGB).
    pub channels: u32,
    /// Bits of a value. Up to 8 take a byte, more take two.
    pub bits: u8,
    /// Whether values have a sign.
    pub signed: bool,
}

/// What the GPU decodes of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GpuLayout {
    pub packed: Packed,
    /// The element size in bytes of the byte shuffle before. 1: no shuffle.
    pub shuffle: u8,
}

/// How a chain that the GPU decodes packs the bytes of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packed {
    Stored,
    Compressed(Compression),
    Image(ImageFormat),
}

/// Returns what the GPU decodes. `None` if the chain has any other steps, except checksums at its end.
pub(super) fn gpu_layout(steps: impl Iterator<Item = OnGpu>) -> Option<GpuLayout> {
    let mut steps = steps.peekable();
    let (mut packed, mut shuffle) = (Packed::Stored, 1);
    if let Some(OnGpu::Shuffle(size)) = steps.peek() {
        shuffle = u8::try_from((*size).max(1)).ok()?;
        steps.next();
    }
    match steps.peek() {
        Some(OnGpu::Streams(found)) => packed = Packed::Compressed(*found),
        Some(OnGpu::Image(format)) if shuffle == 1 => packed = Packed::Image(*format),
        _ => {}
    }
    if packed != Packed::Stored {
        steps.next();
    }
    // Blosc has its own shuffle, and a layout can describe only one of them.
    let twice = shuffle > 1 && matches!(packed, Packed::Compressed(Compression::Blosc(..)));
    (steps.all(|step| step == OnGpu::Checksum) && !twice).then_some(GpuLayout { packed, shuffle })
}
