//! Images as steps of a chain ([`Image`]), and what their decoders have in common ([`Decoder`]).

use std::fmt::Debug;

use super::fit::{Expected, Unfit};
use crate::chain::{Side, Size, Step};
use crate::codec_entry::CodecEntry;
use crate::damaged;
use crate::on_gpu::{GpuImage, ImageFormat, OnGpu};
use dali_zarr_base::dtype::DType;
use dali_zarr_base::error::{Error, Result};

/// A decoder of one format of images.
pub(crate) trait Decoder: Debug + Send + Sync {
    /// The types of pixels that it decodes.
    const TYPES: &'static [DType];

    /// Fills `out`, which has the chunk's size, with the pixels in native byte order.
    ///
    /// # Errors
    /// If `encoded` is damaged, or is an image that doesn't fit the chunk.
    fn decode(&self, encoded: &[u8], expected: &Expected<'_>, out: &mut [u8]) -> Result<(), Unfit>;

    /// Returns the format for a library of the GPU, if one decodes images of this configuration, for chunks whose last axis
    /// has so many elements.
    fn on_gpu(&self, _last: u64) -> Option<ImageFormat> {
        None
    }

    /// Returns the image, if a library of the GPU decodes it, and gives what [`Decoder::decode`] gives (or, if it is lossy,
    /// nearly so).
    ///
    /// # Errors
    /// The reason why the CPU has to decode it, as the end of a sentence.
    fn for_gpu(&self, _encoded: &[u8], _expected: &Expected<'_>) -> Result<GpuImage, &'static str> {
        Err("the GPU has no decoder for it")
    }

    /// Whether images of this configuration lose values. `None` if the configuration doesn't say so.
    fn is_lossy(&self) -> Option<bool>;

    /// Returns the most working memory in bytes for decoding to `decoded` bytes, without input and output.
    fn working_bytes(&self, decoded: usize) -> usize;
}

/// An image codec as a step of a chain.
#[derive(Debug)]
pub(crate) struct Image<D> {
    name: String,
    decoder: D,
    dtype: DType,
    /// The extent of the last stored axis of the largest chunk.
    last: u64,
}

impl<D: Decoder> Image<D> {
    /// Makes the step of the codec `entry`.
    ///
    /// # Errors
    /// If the codec has no images of the array's type.
    pub(crate) fn new(entry: &CodecEntry<'_>, decoder: D) -> Result<Self> {
        let dtype = entry.side.dtype;
        if !D::TYPES.contains(&dtype) {
            let types = D::TYPES.iter().map(|dtype| dtype.name()).collect::<Vec<_>>().join(", ");
            return Err(Error::value(format!(
                "codec \"{}\": expected elements of the type {types}, but found {}; rewrite the array with another \
                 codec, or leave it out",
                entry.name,
                dtype.name()
            )));
        }
        Ok(Self { name: entry.name.to_owned(), decoder, dtype, last: entry.side.shape.last().copied().unwrap_or(1) })
    }
}

impl<D: Decoder> Step for Image<D> {
    fn encoded_side(&self, side: &Side) -> Result<Side, String> {
        let bytes = side.elements(self.dtype.size())? * self.dtype.size();
        if side.dtype != self.dtype {
            return Err(format!("{} has elements of {}", self.name, self.dtype.name()));
        }
        Ok(Side { size: Size::AtMost(self.max_inside(bytes)), ..side.clone() })
    }

    fn decode(&self, input: &[u8], shape: &[u64], out: &mut [u8]) -> Result<()> {
        let expected = Expected { shape, dtype: self.dtype };
        let fitting = out.len() as u64 == shape.iter().product::<u64>().saturating_mul(self.dtype.size() as u64);
        if !fitting {
            return Err(Error::runtime(format!(
                "expected room for a chunk of {shape:?}, but found {} bytes",
                out.len()
            )));
        }
        self.decoder.decode(input, &expected, out).map_err(|unfit| match unfit {
            Unfit::Damaged(reason) => damaged(&self.name, input.len(), reason),
            Unfit::Other(found) => Error::damaged(format!(
                "expected {} data of {expected}, but found {found}; the chunk is damaged or of another array",
                self.name
            )),
        })
    }

    fn decode_at_most(&self, _input: &[u8], _limit: usize) -> Result<Vec<u8>> {
        Err(Error::damaged(format!("expected a chunk of a known shape for {}, but found none", self.name)))
    }

    fn on_gpu(&self) -> OnGpu {
        self.decoder.on_gpu(self.last).map_or(OnGpu::No, OnGpu::Image)
    }

    fn image_for_gpu(&self, encoded: &[u8], shape: &[u64]) -> Result<GpuImage, &'static str> {
        self.decoder.for_gpu(encoded, &Expected { shape, dtype: self.dtype })
    }

    fn lossy_image(&self) -> Option<bool> {
        self.decoder.is_lossy()
    }

    fn usual_encoded_bytes(&self, decoded: usize) -> usize {
        // Noise at the best quality takes somewhat more than its own size in each of the formats.
        decoded.saturating_add(decoded / 4).saturating_add(4096)
    }

    fn max_encoded_bytes(&self, _decoded: usize) -> usize {
        // Each format has parts that hold no pixels: profiles, texts, previews.
        usize::MAX
    }

    fn max_inside(&self, decoded: usize) -> usize {
        decoded.saturating_mul(2).saturating_add(64 << 10)
    }

    fn working_bytes(&self, decoded: usize) -> usize {
        self.decoder.working_bytes(decoded)
    }
}
