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
    /// The GPU's engine for images decodes most of them: see `Step::image_for_gpu`.
    Image,
    /// The host verifies the checksum and skips it: see `Step::inside`.
    Checksum,
}

/// An image that the GPU's engine for images decodes. Its pixels have a byte for each channel, and no padding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuImage {
    /// Where it lies in the encoded chunk.
    pub range: Range<usize>,
    /// Pixels in a row.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// 1 (gray) or 3 (RGB).
    pub channels: u32,
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
    Image,
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
        Some(OnGpu::Image) if shuffle == 1 => packed = Packed::Image,
        _ => {}
    }
    if packed != Packed::Stored {
        steps.next();
    }
    // Blosc has its own shuffle, and a layout can describe only one of them.
    let twice = shuffle > 1 && matches!(packed, Packed::Compressed(Compression::Blosc(..)));
    (steps.all(|step| step == OnGpu::Checksum) && !twice).then_some(GpuLayout { packed, shuffle })
}
