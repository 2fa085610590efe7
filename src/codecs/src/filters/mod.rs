//! Filters and checksums of numcodecs, imagecodecs and zarr-extensions, in v2 and v3. Each file has a family of codecs, and each
//! codec is a [`Step`](super::chain::Step). [`element`] and [`number`] serve those that compute with elements.

mod arithmetic;
mod cast_value;
mod checksum;
mod element;
mod layout;
mod number;
mod predictor;
mod scale_offset;

pub(super) use arithmetic::Arithmetic;
pub(super) use cast_value::CastValue;
pub(super) use checksum::{Checksum, Checksummed};
pub(super) use layout::{PackBits, Shuffle, SwapBytes, Transpose};
pub(super) use predictor::Predictor;
pub(super) use scale_offset::ScaleOffset;
