//! The trait that a lane knows its decoders by.

use crate::budget::Decoding;
use crate::gpu::driver::{DecodeArrays, Module, Stream};
use crate::gpu::streams::EncodedStream;
use crate::gpu::tables::Tables;
use crate::messages::Wave;
use dali_zarr_base::error::Result;
use dali_zarr_codecs::streams::ChunkStream;

/// A decoder of streams on the GPU.
pub(in crate::gpu) trait StreamDecoder {
    /// Returns the workspace that a lane needs if the largest stream decodes to `largest` bytes. Uses no device.
    fn needs(&self, _largest: usize) -> Decoding {
        Decoding::NONE
    }

    /// Whether a lane with this room can decode the stream.
    fn takes(&self, _stream: &ChunkStream, _room: LaneCapacity) -> bool {
        true
    }

    /// Returns how many of these streams, from the first on, fit in one round. [`StreamDecoder::takes`] has accepted
    /// each.
    fn fits(&self, streams: &[EncodedStream], _room: LaneCapacity) -> usize {
        streams.len()
    }

    /// Enqueues the decoding of `streams`. [`Launch::arrays`] are their entries in the tables. A status and a size are
    /// written for every stream. The caller checks both.
    ///
    /// # Errors
    /// If the driver refuses the launch.
    ///
    /// # Safety
    /// The entries were sent on the launch's stream. They name memory that stays valid until the stream has passed this
    /// point. The streams were accepted by [`StreamDecoder::takes`], and fit in the round.
    unsafe fn enqueue(&self, launch: &mut Launch<'_>, streams: &[EncodedStream]) -> Result<()>;
}

/// What a lane has room for in one round.
#[derive(Clone, Copy)]
pub(in crate::gpu) struct LaneCapacity {
    /// Bytes of workspace.
    pub workspace: usize,
    /// Blocks of zstd frames in the tables.
    pub blocks: usize,
}

/// The arguments of [`StreamDecoder::enqueue`].
pub(in crate::gpu) struct Launch<'a> {
    pub module: &'a Module,
    pub stream: &'a Stream,
    pub tables: &'a mut Tables,
    /// Device addresses of the entries of its streams.
    pub arrays: DecodeArrays,
    pub wave: &'a Wave,
    /// Device address of the staging buffer, which holds the encoded bytes.
    pub staging: u64,
    /// Device address (a multiple of 8) and bytes.
    pub workspace: (u64, usize),
}
