//! Codec chains that the GPU may decode: one compressor or none, perhaps with a byte shuffle before it and checksums
//! after it.

use std::ops::Range;

use super::Compression;
use super::filters::Chain;
use crate::error::Result;

/// A codec chain that the GPU may decode.
#[derive(Debug)]
pub struct Packed {
    compression: Option<Compression>,
    shuffle: u8,
    /// All steps, if there are more than the compressor.
    chain: Option<Box<Chain>>,
}

impl From<Compression> for Packed {
    fn from(compression: Compression) -> Self {
        Self { compression: Some(compression), shuffle: 1, chain: None }
    }
}

impl Packed {
    /// Takes a chain, if it has no other codecs.
    ///
    /// # Errors
    /// The chain, if it is more.
    pub(super) fn new(chain: Chain) -> Result<Self, Chain> {
        match chain.packed() {
            Some((compression, shuffle)) => Ok(Self { compression, shuffle, chain: Some(Box::new(chain)) }),
            None => Err(chain),
        }
    }

    /// The compressor; `None`: bytes are stored as they are.
    pub fn compression(&self) -> Option<Compression> {
        self.compression
    }

    /// Bytes of an element of the byte shuffle. 1: there is no shuffle, except Blosc's own.
    pub fn shuffle(&self) -> u8 {
        self.shuffle
    }

    /// The range of `encoded` inside the checksums, which are verified.
    ///
    /// # Errors
    /// If one of them is wrong.
    pub fn unseal(&self, encoded: &[u8]) -> Result<Range<usize>> {
        self.chain.as_ref().map_or(Ok(0..encoded.len()), |chain| chain.unseal(encoded))
    }

    /// The codecs' names, in the order in which they encode.
    pub(super) fn names(&self) -> &str {
        match &self.chain {
            Some(chain) => chain.names(),
            None => self.compression.map_or("uncompressed", Compression::name),
        }
    }

    /// Fills `out` with a chunk of `shape`, on the CPU.
    pub(super) fn decode(&self, encoded: &[u8], shape: &[u64], out: &mut [u8]) -> Result<()> {
        match (&self.chain, self.compression) {
            (Some(chain), _) => chain.decode(encoded, shape, out),
            (None, Some(compression)) => compression.decode(encoded, out),
            (None, None) => unreachable!("nothing to undo is no packing"),
        }
    }

    /// See [`super::ChunkFormat::usual_encoded_bytes`].
    pub(super) fn usual_encoded_bytes(&self, decoded: usize) -> usize {
        match (&self.chain, self.compression) {
            (Some(chain), _) => chain.usual_encoded_bytes(decoded),
            (None, compression) => compression.map_or(decoded, |c| c.usual_encoded_bytes(decoded)),
        }
    }

    /// See [`super::ChunkFormat::max_encoded_bytes`].
    pub(super) fn max_encoded_bytes(&self, decoded: usize) -> usize {
        match (&self.chain, self.compression) {
            (Some(chain), _) => chain.max_encoded_bytes(decoded),
            (None, compression) => compression.map_or(decoded, |c| c.max_encoded_bytes(decoded)),
        }
    }

    /// See [`super::ChunkFormat::scratch_bytes`].
    pub(super) fn scratch_bytes(&self, decoded: usize) -> usize {
        match (&self.chain, self.compression) {
            (Some(chain), _) => chain.scratch_bytes(decoded),
            (None, compression) => compression.map_or(0, |c| c.working_bytes(decoded)),
        }
    }

    /// See [`Compression::typical_stream`].
    pub fn typical_stream(&self, decoded: usize) -> usize {
        self.compression.map_or(decoded, |c| c.typical_stream(decoded))
    }
}
