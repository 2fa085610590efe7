//! Turns the codecs in metadata into a [`ChunkFormat`]: an order of axes and a byte order, which the assembler undoes,
//! and a [`Chain`] of all other codecs.

use serde_json::{Map, Value};
use zarrs::array::FillValue;

use super::chain::{Chain, Side, Size, Step};
use super::codec_entry::{CodecEntry, Format};
use super::codec_list::{CodecList, unknown};
use super::filters::{SwapBytes, Transpose};
use super::registry::{Entry, find};
use super::zarrs_codec::{ZarrsCodec, fill_value};
use super::{ChunkFormat, decoded_bytes};
use dali_zarr_base::dtype::DType;
use dali_zarr_base::error::{Error, Result};

/// The fields of v2 metadata that say how chunks are encoded.
pub struct V2Codecs {
    /// Whether `order` is "F".
    pub fortran: bool,
    /// Number of last dimensions that `order` doesn't reorder: 1 for complex elements (real and imaginary part).
    pub kept_dims: usize,
    /// Whether elements are big-endian, as the data type says.
    pub big_endian: bool,
    /// `filters`, empty for null.
    pub filters: Vec<Value>,
    /// `compressor`.
    pub compressor: Option<Value>,
}

impl CodecList {
    /// Returns the format of chunks with elements of `dtype`. `fill` holds the bits of the fill value; `largest` is the
    /// shape of the largest chunk.
    ///
    /// # Errors
    /// If there is no decoder for one of the codecs, or they don't fit together.
    pub fn format(&self, dtype: DType, fill: u64, largest: &[u64]) -> Result<ChunkFormat> {
        let mut building = Building::new(Format::V3, dtype, fill, (0..largest.len()).collect(), largest)?;
        let mut swap = false;
        for (name, configuration) in self.entries() {
            match name.as_str() {
                "transpose" if !building.serialized => {
                    building.transpose(transposition(configuration.get("order"), building.side.shape.len())?)?;
                }
                // virtual-tiff's codec of pixels with several channels: the axes in reverse order, then "bytes".
                "bytes" | "ChunkyCodec" if !building.serialized => {
                    if name == "ChunkyCodec" {
                        building.transpose((0..building.side.shape.len()).rev().collect())?;
                    }
                    building.serialized = true;
                    let size = building.side.dtype.size();
                    let swapped = foreign_endian(configuration)? && size > 1;
                    if swapped && building.names.iter().any(|name| name.ends_with("imagecodecs_floatpred")) {
                        return Err(unknown(
                            "imagecodecs_floatpred before big-endian \"bytes\"",
                            "its bytes have an order of their own",
                        ));
                    }
                    if swapped {
                        match building.steps.as_slice() {
                            [] => swap = true,
                            _ => building.push(Box::new(SwapBytes(size)))?,
                        }
                    }
                }
                _ => building.add(name, configuration)?,
            }
        }
        if !building.serialized {
            return Err(unknown(
                &building.names.join(", "),
                "none of them turns elements into bytes, as \"bytes\" does",
            ));
        }
        Ok(building.finish(swap))
    }
}

impl V2Codecs {
    /// Like [`CodecList::format`], for v2 metadata.
    pub fn format(&self, dtype: DType, fill: u64, largest: &[u64]) -> Result<ChunkFormat> {
        let mut order: Vec<usize> = (0..largest.len()).collect();
        if self.fortran {
            order[..largest.len() - self.kept_dims].reverse();
        }
        let mut building = Building::new(Format::V2, dtype, fill, order, largest)?;
        for codec in self.filters.iter().chain(&self.compressor) {
            let (Some(configuration), Some(name)) = (codec.as_object(), codec.get("id").and_then(Value::as_str)) else {
                return Err(Error::value(format!(
                    "expected filters and compressor to be objects with an id, but found {}",
                    dali_zarr_base::json::shown(codec)
                )));
            };
            building.add(name, configuration)?;
        }
        // zarrs decodes to native byte order.
        let swap = dtype.size() > 1 && self.big_endian != cfg!(target_endian = "big") && !building.native;
        Ok(building.finish(swap))
    }
}

/// Builds a chain. Codecs are added in the order in which they encode.
struct Building {
    format: Format,
    dtype: DType,
    /// Stored axis `k` is the array's axis `order[k]`.
    order: Vec<usize>,
    names: Vec<String>,
    steps: Vec<Box<dyn Step>>,
    /// The encoded side of the last step, for the largest chunk.
    side: Side,
    /// The fill value on that side. `None` after steps that may change it.
    fill: Option<FillValue>,
    /// Whether a v3 codec has turned the elements into bytes.
    serialized: bool,
    /// Whether the first step decodes to native byte order, whatever the array's byte order is.
    native: bool,
}

impl Building {
    fn new(format: Format, dtype: DType, fill: u64, order: Vec<usize>, largest: &[u64]) -> Result<Self> {
        let shape = order.iter().map(|&axis| largest[axis]).collect();
        let side = Side { size: Size::Exactly(decoded_bytes(largest, dtype)?), shape, dtype };
        let fill = Some(fill_value(fill, dtype));
        let (names, steps) = (Vec::new(), Vec::new());
        Ok(Self { format, dtype, order, names, steps, side, fill, serialized: false, native: false })
    }

    /// Adds a step.
    ///
    /// # Errors
    /// If it can't follow the one before.
    fn push(&mut self, step: Box<dyn Step>) -> Result<()> {
        self.side = step.encoded_side(&self.side).map_err(|reason| {
            Error::value(format!(
                "expected codecs that fit together, but found {}: {reason}; rewrite the array with another codec, or \
                 leave it out",
                self.names.join(", ")
            ))
        })?;
        self.steps.push(step);
        Ok(())
    }

    /// Adds a transposition. One before any step is not a step: the assembler undoes it.
    fn transpose(&mut self, order: Vec<usize>) -> Result<()> {
        self.names.push("transpose".into());
        if !self.steps.is_empty() {
            return self.push(Box::new(Transpose { order, size: self.side.dtype.size() }));
        }
        // The axes of this transposition are the stored axes after the one before it.
        self.order = order.iter().map(|&axis| self.order[axis]).collect();
        self.side.shape = order.iter().map(|&axis| self.side.shape[axis]).collect();
        Ok(())
    }

    /// Adds the codec of this name.
    ///
    /// # Errors
    /// If there is no decoder for it, or it can't stand here.
    fn add(&mut self, name: &str, configuration: &Map<String, Value>) -> Result<()> {
        self.names.push(name.to_owned());
        let (make, on_bytes) = match find(name, self.format) {
            Some(Entry::Refused(what)) => {
                return Err(Error::dtype(format!(
                    "expected codecs for arrays of numbers, but found {name}, which is for {what}; write the array again with \
                     numbers and without this codec, or leave it out"
                )));
            }
            Some(Entry::Elements(make)) => (make, false),
            Some(Entry::Bytes(make)) => (make, true),
            Some(Entry::Image(make)) => {
                if self.format == Format::V2 && !self.order.is_sorted() && self.side.shape.iter().any(|&n| n > 1) {
                    return Err(unknown(&self.names.join(", "), "images have no order \"F\""));
                }
                self.serialized = true;
                (make, true)
            }
            None => return self.add_foreign(name, configuration),
        };
        self.check_place(name, on_bytes)?;
        let given = CodecEntry { name, configuration, format: self.format, array: self.dtype, side: &self.side };
        if let Some(step) = make(&given)? {
            self.fill = None;
            self.push(step)?;
        }
        Ok(())
    }

    fn add_foreign(&mut self, name: &str, configuration: &Map<String, Value>) -> Result<()> {
        let step = ZarrsCodec::new(name, self.format, configuration, &self.side, self.fill.as_ref())?;
        self.check_place(name, false)?;
        self.native |= self.steps.is_empty();
        self.serialized |= step.is_serializer();
        self.fill = step.encoded_fill();
        self.push(Box::new(step))
    }

    /// Refuses codecs of bytes before v3's serializer, and all other codecs after it.
    fn check_place(&self, name: &str, on_bytes: bool) -> Result<()> {
        if self.format == Format::V2 || on_bytes == self.serialized {
            return Ok(());
        }
        let place = if on_bytes { "before" } else { "behind" };
        Err(unknown(&self.names.join(", "), format!("{name} stands {place} the codec that turns elements into bytes")))
    }

    fn finish(self, swap: bool) -> ChunkFormat {
        let chain = Chain::new(self.names.join(", "), self.steps);
        ChunkFormat { order: self.order, swap, chain, dtype: self.dtype }
    }
}

/// Whether the codec "bytes" with this configuration writes the other byte order than this machine's.
fn foreign_endian(configuration: &Map<String, Value>) -> Result<bool> {
    let big = match configuration.get("endian") {
        None | Some(Value::Null) => cfg!(target_endian = "big"),
        Some(Value::String(e)) if e == "little" => false,
        Some(Value::String(e)) if e == "big" => true,
        Some(found) => {
            return Err(Error::value(format!(
                "codec \"bytes\": expected the endian \"little\" or \"big\", but found {}",
                dali_zarr_base::json::shown(found)
            )));
        }
    };
    Ok(big != cfg!(target_endian = "big"))
}

fn transposition(order: Option<&Value>, ndim: usize) -> Result<Vec<usize>> {
    let wrong = || {
        Error::value(format!(
            "codec \"transpose\": expected the order to be a permutation of 0 to {}, but found {}",
            ndim.saturating_sub(1),
            dali_zarr_base::json::shown(order.unwrap_or(&Value::Null))
        ))
    };
    let order: Vec<usize> = match order {
        Some(Value::String(s)) if s == "C" => (0..ndim).collect(),
        Some(Value::String(s)) if s == "F" => (0..ndim).rev().collect(),
        Some(Value::Array(axes)) => axes
            .iter()
            .map(|axis| axis.as_u64().and_then(|a| usize::try_from(a).ok()))
            .collect::<Option<_>>()
            .ok_or_else(wrong)?,
        _ => return Err(wrong()),
    };
    let mut sorted = order.clone();
    sorted.sort_unstable();
    if sorted.iter().copied().eq(0..ndim) { Ok(order) } else { Err(wrong()) }
}
