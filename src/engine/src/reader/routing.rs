//! Asks [`route`](crate::route) about the arrays of a reader that is opened: what their codecs and the sizes of their chunks
//! decide. Says why, where the user may have expected the GPU.

use crate::gpu;
use crate::route::{Codec, Decisions, Facts, Why, decide};
use dali_zarr_base::error::{Error, Result, Site};
use dali_zarr_codecs::ImageFormat;
use dali_zarr_codecs::streams::max_decoded;
use dali_zarr_samples::dataset::{ArrayPart, Dataset};
use dali_zarr_samples::spec::{DecodeDevice, Device, Spec};

/// Says why the CPU decodes an array, where the user may have expected the GPU.
pub(crate) struct Note {
    /// Index of the array.
    pub array: usize,
    /// Index of the part of the array, which is its store.
    pub part: usize,
    pub text: String,
}

/// Decides about each part of each array by the codecs and the sizes. Returns a note for each part that the CPU decodes because
/// the GPU can't. `missing_images`: the formats of images for which it has no decoder, and why; before it is asked, none.
///
/// # Errors
/// If the GPU can't, but the user asked for it.
pub(super) fn of_arrays(
    spec: &Spec,
    dataset: &Dataset,
    missing_images: &[(ImageFormat, Error)],
) -> Result<(Decisions, Vec<Note>)> {
    let (asked, to_gpu) = (spec.resources.decode_device, matches!(spec.device, Device::Gpu(_)));
    if asked == DecodeDevice::Gpu && !to_gpu {
        return Err(Error::value(
            "decode_device=\"gpu\" needs device=\"gpu\": batches that are delivered to the CPU are decoded there",
        ));
    }
    let (mut decisions, mut notes) = (Vec::new(), Vec::new());
    for (a, array) in dataset.arrays.iter().enumerate() {
        let mut parts = Vec::new();
        for (p, part) in array.parts.iter().enumerate() {
            let chain = part.format.gpu_chain().filter(|_| to_gpu && asked != DecodeDevice::Cpu);
            let missing = chain.and_then(|chain| gpu::available(chain, missing_images).err());
            let codec = codec(part, missing.is_none());
            let decision = decide(&Facts { asked, to_gpu, codec, largest: part.largest_bytes, ..Facts::OF_GPU });
            if let Some(lacks) = lacking(part, decision.why, missing) {
                let (store, name) = (dataset.stores[part.store].location(), &*array.name);
                if asked == DecodeDevice::Gpu {
                    return Err(lacks.error(store, name));
                }
                notes.push(Note { array: a, part: p, text: lacks.note(store, name) });
            }
            parts.push(decision);
        }
        decisions.push(parts);
    }
    Ok((decisions, notes))
}

/// Returns which decoders there are for a part of an array. `available`: those of the GPU are there, if it has some.
fn codec(part: &ArrayPart, available: bool) -> Codec {
    match part.format.gpu_chain() {
        _ if part.format.chain.is_empty() => Codec::Uncompressed,
        None => Codec::OnlyCpu,
        Some(chain) => Codec::Gpu { most: max_decoded(chain), available },
    }
}

/// What the GPU lacks to decode an array.
enum Lacks<'a> {
    /// A decoder for these codecs.
    Codecs(&'a str),
    /// A decoder for so large chunks, or the decoder itself.
    Decoder(Error),
}

/// Returns what the GPU lacks to decode a part of an array; `None` if that wasn't the reason. `missing` is the error of its
/// decoder.
fn lacking(part: &ArrayPart, why: Why, missing: Option<Error>) -> Option<Lacks<'_>> {
    match why {
        Why::Codecs => Some(Lacks::Codecs(part.format.chain.names())),
        Why::TooLarge { most } => Some(Lacks::Decoder(Error::value(format!(
            "expected chunks of at most {most} decoded bytes, which is what the GPU's decoder takes, but found {}",
            part.largest_bytes
        )))),
        Why::NoDecoder => missing.map(Lacks::Decoder),
        _ => None,
    }
}

impl Lacks<'_> {
    fn note(&self, store: &str, array: &str) -> String {
        match self {
            Self::Codecs(names) => format!(
                "store {store}, array '{array}': its codecs ({names}) are decoded on the CPU, since the GPU decodes only \
                 uncompressed, Blosc, zstd, gzip, zlib and LZ4 chunks, shuffled before and with checksums behind, and images of \
                 JPEG and JPEG 2000"
            ),
            Self::Decoder(e) => format!("store {store}, array '{array}': decoded on the CPU: {e}"),
        }
    }

    fn error(self, store: &str, array: &str) -> Error {
        match self {
            Self::Codecs(_) => {
                Error::value(format!("{}; use decode_device=\"auto\" or \"cpu\"", self.note(store, array)))
            }
            Self::Decoder(e) => e.at(Site::store(store).array(array)),
        }
    }
}
