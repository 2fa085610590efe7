//! Filters and checksums of numcodecs and zarr-extensions, in v2 and v3, and the compressors that only chains use.
//! Each file has a family of codecs. Each codec is a [`Step`](super::chain::Step), except LZMA and base64, which
//! `compressor.rs` makes steps of.

mod arithmetic;
pub(crate) mod base64;
mod cast_value;
mod checksum;
mod element;
mod layout;
mod lzma;
mod scale_offset;

pub(super) use arithmetic::Arithmetic;
pub(super) use cast_value::CastValue;
pub(super) use checksum::{Checksum, Checksummed};
pub(super) use element::TypeWithOrder;
pub(super) use layout::{PackBits, Shuffle, SwapBytes, Transpose};
pub(super) use lzma::Lzma;
pub(super) use scale_offset::ScaleOffset;
