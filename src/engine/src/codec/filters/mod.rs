//! Chains of codecs that are decoded on the CPU, one step after the other: compressors, checksums and the filters of
//! numcodecs and zarr-extensions, in v2 and v3.
//!
//! A step turns bytes into bytes. The metadata say how many there are at each point of the chain, up to the first
//! compressor; from there on a limit is known. Nothing that a chunk claims about itself makes a step take more memory than
//! that, and a chunk decodes to exactly the size of its shape or to an error.
//!
//! [`parse`] reads metadata; a family of codecs is a file.

mod arithmetic;
mod base64;
mod cast_value;
mod checksum;
mod element;
mod layout;
mod lzma;
mod pack;
mod parse;
mod scale_offset;

pub(super) use parse::{refuse, v2, v3};

use std::ops::Range;

use super::{Compression, wrong_size};
use crate::dtype::DType;
use crate::error::{Error, Result};
use arithmetic::Arithmetic;
use cast_value::CastValue;
use checksum::Checksum;
use pack::Packer;
use scale_offset::ScaleOffset;

/// Codecs that are undone here, beside a transposition and a byte order that the assembler undoes.
#[derive(Debug)]
pub struct Chain {
    names: String,
    /// Stored axis `k` is the array's axis `order[k]`.
    order: Vec<usize>,
    /// In the order in which they encode.
    steps: Vec<Step>,
}

/// One codec.
#[derive(Clone, Debug)]
enum Step {
    /// On elements.
    Arithmetic(Arithmetic),
    ScaleOffset(ScaleOffset),
    CastValue(CastValue),
    /// Eight bools in a byte.
    PackBits,
    /// Of elements of that size: axis `k` of what is encoded is axis `order[k]` of what is decoded.
    Transpose(Vec<usize>, usize),
    /// The byte order of elements of that size.
    Swap(usize),
    /// On bytes: elements of that size.
    Shuffle(usize),
    /// Which stands before the data, or behind.
    Checksum(Checksum, bool),
    Pack(Packer),
}

/// How many bytes there are between two steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    Exactly(usize),
    AtMost(usize),
}

/// What is known of a step's decoded side.
#[derive(Clone, Debug)]
struct Side {
    size: Size,
    shape: Vec<u64>,
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
}

impl Chain {
    /// The codecs `steps` (`names` in messages) of chunks of `dtype`, whose largest has the shape `largest`.
    ///
    /// # Errors
    /// If a step can't follow the one before.
    fn new(names: String, order: Vec<usize>, steps: Vec<Step>, dtype: DType, largest: &[u64]) -> Result<Self> {
        let chain = Self { names, order, steps };
        chain.sides(largest, super::decoded_bytes(largest, dtype)?).map_err(|reason| {
            Error::value(format!(
                "expected codecs that fit together, but found {}: {reason}; rewrite the array with another codec, or \
                 leave it out",
                chain.names
            ))
        })?;
        Ok(chain)
    }

    /// The codecs' names, in the order in which they encode.
    pub fn names(&self) -> &str {
        &self.names
    }

    /// The compressor, and the size of the elements whose bytes were shuffled before it (1: they weren't), if there is nothing
    /// else but checksums of what is encoded.
    pub(super) fn packed(&self) -> Option<(Option<Compression>, u8)> {
        let (shuffle, rest) = match self.steps.as_slice() {
            [Step::Shuffle(size), rest @ ..] => (u8::try_from((*size).max(1)).ok()?, rest),
            rest => (1, rest),
        };
        let (compression, rest) = match rest {
            [Step::Pack(Packer::Common(compression)), rest @ ..] => (Some(*compression), rest),
            rest => (None, rest),
        };
        // Blosc shuffles itself; both at once have no layout.
        let twice = shuffle > 1 && matches!(compression, Some(Compression::Blosc(..)));
        let sealed = rest.iter().all(|step| matches!(step, Step::Checksum(..)));
        (sealed && !twice).then_some((compression, shuffle))
    }

    /// What of `encoded` lies between the checksums that were computed last, which are verified.
    ///
    /// # Errors
    /// If one is wrong.
    pub(super) fn unseal(&self, encoded: &[u8]) -> Result<Range<usize>> {
        let mut range = 0..encoded.len();
        for step in self.steps.iter().rev() {
            let Step::Checksum(checksum, at_start) = step else { break };
            let data = checksum.verify(&encoded[range.clone()], *at_start)?.len();
            let start = range.start + if *at_start { checksum::BYTES } else { 0 };
            range = start..start + data;
        }
        Ok(range)
    }

    /// See [`super::ChunkFormat::usual_encoded_bytes`]: what each step adds, at most, to what the one before wrote.
    pub(super) fn usual_encoded_bytes(&self, decoded: usize) -> usize {
        self.steps.iter().fold(decoded, |bytes, step| step.encoded_bytes(bytes, Packer::usual_encoded_bytes))
    }

    /// See [`super::ChunkFormat::max_encoded_bytes`].
    pub(super) fn max_encoded_bytes(&self, decoded: usize) -> usize {
        self.steps.iter().fold(decoded, |bytes, step| step.encoded_bytes(bytes, Packer::max_encoded_bytes))
    }

    /// The most bytes that decoding holds at a time, beside the encoded chunk and the decoded one.
    pub(super) fn scratch_bytes(&self, decoded: usize) -> usize {
        let mut sizes = vec![decoded];
        for step in &self.steps {
            sizes.push(step.encoded_bytes(sizes[sizes.len() - 1], Packer::max_inside));
        }
        // Between two steps there is one buffer, and while one runs there are two; but the first step writes to the chunk's own
        // memory, and what the last checksums stand around is read where it lies. Blosc takes something for itself.
        let sealed = self.steps.iter().rev().take_while(|step| matches!(step, Step::Checksum(..))).count();
        let end = self.steps.len() - sealed;
        let buffer = |i: usize| if i == 0 || i == end { 0 } else { sizes[i] };
        let of = |i: usize| {
            let own = if let Step::Pack(packer) = &self.steps[i] { packer.working_bytes(sizes[i]) } else { 0 };
            buffer(i).saturating_add(buffer(i + 1)).saturating_add(own)
        };
        (0..end).map(of).max().unwrap_or(0)
    }

    /// Fills `out` with a chunk of `shape` (in the array's axes), in C order of the stored axes.
    pub(super) fn decode(&self, encoded: &[u8], shape: &[u64], out: &mut [u8]) -> Result<()> {
        let stored: Vec<u64> = self.order.iter().map(|&axis| shape[axis]).collect();
        let sides = self.sides(&stored, out.len()).map_err(Error::runtime)?;
        let mut held = Held::Borrowed(encoded);
        for (i, step) in self.steps.iter().enumerate().rev() {
            let after = sides.get(i + 1).map(|side| side.size);
            if let Some(Size::Exactly(expected)) = after
                && held.bytes().len() != expected
            {
                return Err(wrong_size(expected, held.bytes().len()));
            }
            held = match step {
                Step::Checksum(checksum, at_start) => {
                    let data = checksum.verify(held.bytes(), *at_start)?.len();
                    let skipped = if *at_start { checksum::BYTES } else { 0 };
                    match held {
                        Held::Borrowed(bytes) => Held::Borrowed(&bytes[skipped..skipped + data]),
                        Held::Owned(bytes, range) => {
                            let start = range.start + skipped;
                            Held::Owned(bytes, start..start + data)
                        }
                    }
                }
                Step::Pack(packer) if let Size::AtMost(limit) = sides[i].size => {
                    let bytes = packer.decode_at_most(held.bytes(), limit)?;
                    let range = 0..bytes.len();
                    Held::Owned(bytes, range)
                }
                _ if i == 0 => return step.decode(held.bytes(), &sides[i].shape, out),
                _ => {
                    let size = match sides[i].size {
                        Size::Exactly(size) => size,
                        Size::AtMost(_) => held.bytes().len(),
                    };
                    let mut bytes = vec![0; size];
                    step.decode(held.bytes(), &sides[i].shape, &mut bytes)?;
                    Held::Owned(bytes, 0..size)
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

    /// The decoded side of each step, and the encoded side of the last; `Err` says which step doesn't fit.
    fn sides(&self, stored: &[u64], decoded: usize) -> Result<Vec<Side>, String> {
        let mut side = Side { size: Size::Exactly(decoded), shape: stored.to_vec() };
        let mut sides = Vec::with_capacity(self.steps.len() + 1);
        for step in &self.steps {
            let next = step.encoded_side(&side)?;
            sides.push(std::mem::replace(&mut side, next));
        }
        sides.push(side);
        Ok(sides)
    }
}

impl Step {
    /// What this step makes of `side` when it encodes.
    fn encoded_side(&self, side: &Side) -> Result<Side, String> {
        let elements = |size: usize| match side.size {
            Size::AtMost(_) => Err("a filter of elements stands behind a compressor".to_owned()),
            Size::Exactly(bytes) if bytes.is_multiple_of(size) => Ok(bytes / size),
            Size::Exactly(bytes) => Err(format!("{bytes} bytes aren't a whole number of elements of {size} bytes")),
        };
        let exactly = |elements: usize, size: usize| {
            let bytes = elements.checked_mul(size).filter(|&bytes| isize::try_from(bytes).is_ok());
            bytes.map(Size::Exactly).ok_or_else(|| "it doesn't fit into memory".to_owned())
        };
        let (size, shape) = match self {
            Self::Arithmetic(arithmetic) => {
                let count = elements(arithmetic.decoded.dtype.size())?;
                (exactly(count, arithmetic.encoded.dtype.size())?, side.shape.clone())
            }
            Self::ScaleOffset(codec) => {
                let size = codec.dtype.size();
                (exactly(elements(size)?, size)?, side.shape.clone())
            }
            Self::CastValue(codec) => {
                let count = elements(codec.decoded.size())?;
                (exactly(count, codec.encoded.size())?, side.shape.clone())
            }
            Self::PackBits => {
                let bytes = layout::packed_bytes(elements(1)?);
                (Size::Exactly(bytes), vec![bytes as u64])
            }
            Self::Transpose(order, size) => {
                let count = elements(*size)? as u64;
                if order.len() != side.shape.len() || side.shape.iter().product::<u64>() != count {
                    return Err("a transposition of other axes than there are".into());
                }
                (side.size, order.iter().map(|&axis| side.shape[axis]).collect())
            }
            Self::Swap(size) => (exactly(elements(*size)?, *size)?, side.shape.clone()),
            Self::Shuffle(_) => (side.size, side.shape.clone()),
            Self::Checksum(..) => {
                let size = match side.size {
                    Size::Exactly(bytes) => exactly(bytes.saturating_add(checksum::BYTES), 1)?,
                    Size::AtMost(bytes) => Size::AtMost(bytes.saturating_add(checksum::BYTES)),
                };
                (size, side.shape.clone())
            }
            Self::Pack(packer) => {
                let (Size::Exactly(bytes) | Size::AtMost(bytes)) = side.size;
                (Size::AtMost(packer.max_inside(bytes)), side.shape.clone())
            }
        };
        Ok(Side { size, shape })
    }

    /// Fills `out` from `input`: what the step makes of `shape` elements, all of it.
    fn decode(&self, input: &[u8], shape: &[u64], out: &mut [u8]) -> Result<()> {
        match self {
            Self::Arithmetic(arithmetic) => arithmetic.decode(input, out),
            Self::ScaleOffset(codec) => return codec.decode(input, out),
            Self::CastValue(codec) => return codec.decode(input, out),
            Self::PackBits => return layout::unpack_bits(input, out),
            Self::Transpose(order, size) => layout::untranspose(input, shape, order, *size, out),
            Self::Swap(size) => {
                out.copy_from_slice(input);
                element::swap_bytes(out, *size);
            }
            Self::Shuffle(size) if input.len() == out.len() => return layout::unshuffle(input, *size, out),
            Self::Shuffle(_) => return Err(wrong_size(out.len(), input.len())),
            Self::Checksum(checksum, at_start) => {
                let data = checksum.verify(input, *at_start)?;
                if data.len() != out.len() {
                    return Err(wrong_size(out.len(), data.len()));
                }
                out.copy_from_slice(data);
            }
            Self::Pack(packer) => return packer.decode(input, out),
        }
        Ok(())
    }

    /// The most bytes to which it encodes `decoded` bytes; `packed` says so of compressors.
    fn encoded_bytes(&self, decoded: usize, packed: impl Fn(&Packer, usize) -> usize) -> usize {
        let resized = |from: DType, to: DType| (decoded / from.size()).saturating_mul(to.size());
        match self {
            Self::Arithmetic(arithmetic) => resized(arithmetic.decoded.dtype, arithmetic.encoded.dtype),
            Self::CastValue(codec) => resized(codec.decoded, codec.encoded),
            Self::PackBits => layout::packed_bytes(decoded),
            Self::ScaleOffset(_) | Self::Transpose(..) | Self::Swap(_) | Self::Shuffle(_) => decoded,
            Self::Checksum(..) => decoded.saturating_add(checksum::BYTES),
            Self::Pack(packer) => packed(packer, decoded),
        }
    }
}

#[cfg(test)]
mod tests;
