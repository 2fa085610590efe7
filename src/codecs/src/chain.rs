//! Chains of codecs: every codec implements [`Step`], and a [`Chain`] decodes its steps one after the other on the CPU.
//!
//! A step turns bytes into bytes. The metadata give the number of bytes at each point of the chain, up to the first
//! compressor; after it only a limit is known. No step takes more memory than that, whatever a chunk's headers claim. A
//! chunk decodes to exactly the size of its shape or to an error.

use std::fmt::Debug;
use std::ops::Range;

use super::on_gpu::{GpuImage, GpuLayout, ImageFormat, OnGpu, Packed, gpu_layout};
use super::{Compression, wrong_size};
use dali_zarr_base::dtype::DType;
use dali_zarr_base::error::{Error, Result};

/// One codec of a chain, with its configuration.
pub(super) trait Step: Debug + Send + Sync {
    /// Returns this step's encoded side for the decoded side `side`. `Err` says why the codec can't stand there.
    fn encoded_side(&self, side: &Side) -> Result<Side, String>;

    /// Decodes `input` and fills `out`. A codec of elements reads `shape`, the shape of the decoded elements.
    ///
    /// # Errors
    /// If `input` is damaged, or decodes to another size than that of `out`.
    fn decode(&self, input: &[u8], shape: &[u64], out: &mut [u8]) -> Result<()>;

    /// Decodes `input` to at most `limit` bytes. Used where a compressor follows an earlier step, so the exact size of
    /// the decoded bytes isn't known.
    fn decode_at_most(&self, input: &[u8], _limit: usize) -> Result<Vec<u8>> {
        let mut out = vec![0; input.len()];
        self.decode(input, &[], &mut out)?;
        Ok(out)
    }

    /// Returns the range of the decoded bytes within `encoded`, if `encoded` contains them unchanged (beside a
    /// checksum).
    ///
    /// # Errors
    /// If the checksum is wrong or missing.
    fn inside(&self, _encoded: &[u8]) -> Result<Option<Range<usize>>> {
        Ok(None)
    }

    /// Returns how the GPU decodes this step.
    fn on_gpu(&self) -> OnGpu {
        OnGpu::No
    }

    /// Returns the image in `encoded`, if it has the elements of `shape` and a library of the GPU decodes it.
    ///
    /// # Errors
    /// The reason why the CPU has to decode it, as the end of a sentence.
    fn image_for_gpu(&self, _encoded: &[u8], _shape: &[u64]) -> Result<GpuImage, &'static str> {
        Err("it isn't an image")
    }

    /// Whether this step is an image codec that loses values: see [`Chain::lossy_images`].
    fn lossy_image(&self) -> Option<bool> {
        Some(false)
    }

    /// See [`super::ChunkFormat::usual_encoded_bytes`].
    fn usual_encoded_bytes(&self, decoded: usize) -> usize {
        decoded
    }

    /// See [`super::ChunkFormat::max_encoded_bytes`].
    fn max_encoded_bytes(&self, decoded: usize) -> usize {
        self.usual_encoded_bytes(decoded)
    }

    /// Returns the limit on this step's encoded bytes where another codec encodes them again. Their number is known
    /// only after that codec is decoded, so memory for the limit must be reserved.
    fn max_inside(&self, decoded: usize) -> usize {
        self.usual_encoded_bytes(decoded)
    }

    /// Returns the working memory in bytes for decoding to `decoded` bytes, without input and output. 0 if it doesn't
    /// depend on the chunk.
    fn working_bytes(&self, _decoded: usize) -> usize {
        0
    }
}

/// The number of bytes between two steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    Exactly(usize),
    AtMost(usize),
}

/// What the metadata tell about the decoded or encoded side of a step.
#[derive(Clone, Debug)]
pub(super) struct Side {
    pub size: Size,
    pub shape: Vec<u64>,
    pub dtype: DType,
}

impl Side {
    /// Returns the number of elements of `size` bytes. `Err` if the exact number of bytes isn't known or isn't a
    /// multiple.
    pub fn elements(&self, size: usize) -> Result<usize, String> {
        match self.size {
            Size::AtMost(_) => Err("a filter of elements stands behind a compressor".to_owned()),
            Size::Exactly(bytes) if bytes.is_multiple_of(size) => Ok(bytes / size),
            Size::Exactly(bytes) => Err(format!("{bytes} bytes aren't a whole number of elements of {size} bytes")),
        }
    }

    /// Returns this side with each element of type `from` converted to one of type `to`.
    pub fn converted(&self, from: DType, to: DType) -> Result<Self, String> {
        let bytes = self.elements(from.size())?.checked_mul(to.size());
        let bytes = bytes.filter(|&bytes| isize::try_from(bytes).is_ok());
        let size = Size::Exactly(bytes.ok_or("it doesn't fit into memory")?);
        Ok(Self { size, shape: self.shape.clone(), dtype: to })
    }
}

/// The codecs of an array, except those that the assembler undoes: transpositions at the start, and the byte order.
#[derive(Debug)]
pub struct Chain {
    names: String,
    /// In the order in which they encode.
    steps: Vec<Box<dyn Step>>,
    /// The result of [`gpu_layout()`] for these steps.
    gpu_layout: Option<GpuLayout>,
}

/// The bytes between two steps.
enum Held<'a> {
    Borrowed(&'a [u8]),
    Owned(Vec<u8>, Range<usize>),
}

impl Held<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Borrowed(bytes) => bytes,
            Self::Owned(bytes, range) => &bytes[range.clone()],
        }
    }

    fn narrow(self, inside: Range<usize>) -> Self {
        match self {
            Self::Borrowed(bytes) => Self::Borrowed(&bytes[inside]),
            Self::Owned(bytes, range) => Self::Owned(bytes, range.start + inside.start..range.start + inside.end),
        }
    }
}

impl From<Vec<u8>> for Held<'_> {
    fn from(bytes: Vec<u8>) -> Self {
        let all = 0..bytes.len();
        Self::Owned(bytes, all)
    }
}

impl Chain {
    /// Makes a chain of `steps`. `names` names the codecs in messages.
    pub(super) fn new(names: String, steps: Vec<Box<dyn Step>>) -> Self {
        let gpu_layout = gpu_layout(steps.iter().map(|step| step.on_gpu()));
        let names = match (steps.as_slice(), gpu_layout) {
            ([], _) => "uncompressed".into(),
            ([_], Some(GpuLayout { packed: Packed::Compressed(compression), .. })) => compression.name().into(),
            _ => names,
        };
        Self { names, steps, gpu_layout }
    }

    /// Returns the codecs' names, in the order in which they encode.
    pub fn names(&self) -> &str {
        &self.names
    }

    /// Whether chunks are images of a codec that doesn't keep values exactly. `None` if the metadata don't say so.
    pub fn lossy_images(&self) -> Option<bool> {
        let told = self.steps.iter().map(|step| step.lossy_image());
        told.reduce(|one, other| if one == Some(false) { other } else { one }).unwrap_or(Some(false))
    }

    /// Whether the chain has no codecs: bytes are stored unchanged.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Whether the GPU may decode the chain: an optional byte shuffle, an optional compressor, or an image; then any
    /// number of checksums. An empty chain has nothing to decode.
    pub(super) fn is_for_gpu(&self) -> bool {
        self.gpu_layout.is_some() && !self.is_empty()
    }

    /// Returns the compressor of a chain that the GPU may decode. `None` if it has no compressor.
    pub fn compression(&self) -> Option<Compression> {
        self.gpu_layout.and_then(|layout| match layout.packed {
            Packed::Compressed(compression) => Some(compression),
            Packed::Stored | Packed::Image(_) => None,
        })
    }

    /// Returns the format of the chunks, if they are images that a library of the GPU may decode.
    pub fn image_format(&self) -> Option<ImageFormat> {
        self.gpu_layout.and_then(|layout| match layout.packed {
            Packed::Image(format) => Some(format),
            Packed::Stored | Packed::Compressed(_) => None,
        })
    }

    /// See [`super::ChunkFormat::image_for_gpu`]. `stored` is the chunk's shape in the order of its stored axes.
    pub(super) fn image_for_gpu(&self, encoded: &[u8], stored: &[u64]) -> Result<GpuImage, &'static str> {
        let inside = self.strip_checksums(encoded).map_err(|_| "a checksum around it is wrong")?;
        let first = self.steps.first().ok_or("it isn't an image")?;
        let image = first.image_for_gpu(&encoded[inside.clone()], stored)?;
        Ok(GpuImage { range: inside.start + image.range.start..inside.start + image.range.end, ..image })
    }

    /// Returns the element size in bytes of the byte shuffle, for a chain that the GPU may decode. 1 means that there
    /// is no shuffle (Blosc may still shuffle itself).
    pub fn shuffle(&self) -> u8 {
        self.gpu_layout.map_or(1, |layout| layout.shuffle)
    }

    /// Whether what a chain that the GPU may decode gives lies in the order of the elements, and needs no unshuffling.
    pub fn decodes_in_order(&self) -> bool {
        self.gpu_layout.is_some_and(|GpuLayout { packed, shuffle }| {
            shuffle == 1 && !matches!(packed, Packed::Compressed(Compression::Blosc(..)))
        })
    }

    /// See [`Compression::typical_stream`].
    pub fn typical_stream(&self, decoded: usize) -> usize {
        self.compression().map_or(decoded, |c| c.typical_stream(decoded))
    }

    /// Verifies the checksums at the end of the chain and returns the range of the bytes inside them.
    ///
    /// # Errors
    /// If a checksum is wrong or missing.
    pub fn strip_checksums(&self, encoded: &[u8]) -> Result<Range<usize>> {
        let mut range = 0..encoded.len();
        for step in self.steps.iter().rev().take_while(|step| step.on_gpu() == OnGpu::Checksum) {
            if let Some(inside) = step.inside(&encoded[range.clone()])? {
                range = range.start + inside.start..range.start + inside.end;
            }
        }
        Ok(range)
    }

    /// See [`super::ChunkFormat::usual_encoded_bytes`]. Each step adds its overhead to the size after the step before
    /// it.
    pub(super) fn usual_encoded_bytes(&self, decoded: usize) -> usize {
        self.steps.iter().fold(decoded, |bytes, step| step.usual_encoded_bytes(bytes))
    }

    /// See [`super::ChunkFormat::max_encoded_bytes`].
    pub(super) fn max_encoded_bytes(&self, decoded: usize) -> usize {
        self.steps.iter().fold(decoded, |bytes, step| step.max_encoded_bytes(bytes))
    }

    /// Returns the peak of scratch memory in bytes for decoding to `decoded` bytes, without the encoded and the decoded
    /// chunk.
    pub(super) fn scratch_bytes(&self, decoded: usize) -> usize {
        let mut sizes = vec![decoded];
        for step in &self.steps {
            sizes.push(step.max_inside(sizes[sizes.len() - 1]));
        }
        // Each step reads from one buffer and writes to another. No buffer is needed for the output of step 0, which
        // goes to the decoded chunk, nor for the bytes inside the checksums at the end, which are read in place.
        let sealed = self.steps.iter().rev().take_while(|step| step.on_gpu() == OnGpu::Checksum).count();
        let end = self.steps.len() - sealed;
        let buffer = |i: usize| if i == 0 || i == end { 0 } else { sizes[i] };
        let of = |i: usize| {
            let own = self.steps[i].working_bytes(sizes[i]);
            buffer(i).saturating_add(buffer(i + 1)).saturating_add(own)
        };
        (0..end).map(of).max().unwrap_or(0)
    }

    /// Fills `out` with the decoded chunk: elements of `dtype` in C order of the shape `stored`.
    ///
    /// # Errors
    /// If `encoded` is damaged, or decodes to another size than that of `out`.
    pub(super) fn decode(&self, encoded: &[u8], stored: &[u64], dtype: DType, out: &mut [u8]) -> Result<()> {
        match self.steps.as_slice() {
            [] if encoded.len() == out.len() => {
                out.copy_from_slice(encoded);
                return Ok(());
            }
            [] => {
                return Err(Error::damaged(format!(
                    "expected {} uncompressed bytes, but found {}; the chunk is {}",
                    out.len(),
                    encoded.len(),
                    if encoded.len() < out.len() { "truncated" } else { "not what the metadata says" }
                )));
            }
            // A single compressor: the size of its input isn't known, so there is nothing to compare.
            [step] if matches!(step.on_gpu(), OnGpu::Streams(_)) => return step.decode(encoded, stored, out),
            _ => {}
        }
        let sides = self.sides(stored, dtype, out.len()).map_err(Error::runtime)?;
        let mut held = Held::Borrowed(encoded);
        for (i, step) in self.steps.iter().enumerate().rev() {
            if let Size::Exactly(expected) = sides[i + 1].size
                && held.bytes().len() != expected
            {
                return Err(wrong_size(expected, held.bytes().len()));
            }
            held = match (step.inside(held.bytes())?, sides[i].size) {
                (Some(inside), _) => held.narrow(inside),
                (None, Size::AtMost(limit)) => step.decode_at_most(held.bytes(), limit)?.into(),
                (None, Size::Exactly(_)) if i == 0 => return step.decode(held.bytes(), &sides[i].shape, out),
                (None, Size::Exactly(size)) => {
                    let mut bytes = vec![0; size];
                    step.decode(held.bytes(), &sides[i].shape, &mut bytes)?;
                    bytes.into()
                }
            };
        }
        let decoded = held.bytes();
        if decoded.len() != out.len() {
            return Err(wrong_size(out.len(), decoded.len()));
        }
        out.copy_from_slice(decoded);
        Ok(())
    }

    /// Decodes a chunk whose decoded size isn't known, to at most `limit` bytes.
    ///
    /// # Errors
    /// If `encoded` is damaged, or decodes to more bytes.
    pub(super) fn decode_at_most(&self, encoded: &[u8], limit: usize) -> Result<Vec<u8>> {
        let mut limits = vec![limit];
        for step in &self.steps {
            limits.push(step.max_inside(limits[limits.len() - 1]));
        }
        let mut held = Held::Borrowed(encoded);
        for (step, &limit) in self.steps.iter().zip(&limits).rev() {
            held = match step.inside(held.bytes())? {
                Some(inside) => held.narrow(inside),
                None => step.decode_at_most(held.bytes(), limit)?.into(),
            };
        }
        let decoded = held.bytes();
        if decoded.len() > limit {
            return Err(Error::damaged(format!("expected at most {limit} decoded bytes, but found {}", decoded.len())));
        }
        Ok(decoded.to_vec())
    }

    /// Returns the decoded side of each step, followed by the encoded side of the last step. `Err` says why a step
    /// doesn't fit.
    fn sides(&self, stored: &[u64], dtype: DType, decoded: usize) -> Result<Vec<Side>, String> {
        let mut sides = Vec::with_capacity(self.steps.len() + 1);
        sides.push(Side { size: Size::Exactly(decoded), shape: stored.to_vec(), dtype });
        for (i, step) in self.steps.iter().enumerate() {
            sides.push(step.encoded_side(&sides[i])?);
        }
        Ok(sides)
    }
}

#[cfg(test)]
#[path = "tests_chain.rs"]
mod tests;
