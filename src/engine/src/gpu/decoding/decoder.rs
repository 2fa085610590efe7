//! What each decoder of the GPU is to a lane ([`StreamDecoder`]), and which one decodes which streams ([`choose`]).

use crate::budget::Decoding;
use crate::codec::streams::{ChunkStream, StreamCodec, ZstdDecoder};
use crate::error::{Error, Result};
use crate::gpu::driver::{DecodeArrays, Module, Stream};
use crate::gpu::streams::Stream as Encoded;
use crate::gpu::tables::Tables;
use crate::messages::Wave;

use super::kernels::{Inflate, Lz4, ZstdKernels};
use super::nvcomp::Nvcomp;

/// A decoder of streams on the GPU.
pub(in crate::gpu) trait StreamDecoder {
    /// Whether it is there.
    ///
    /// # Errors
    /// What to install.
    fn available(&self) -> Result<()> {
        Ok(())
    }

    /// What a lane needs for streams of which the largest decodes to `largest` bytes. Touches no device.
    ///
    /// # Errors
    /// If the decoder isn't there, or takes no streams as large.
    fn needs(&self, _largest: usize) -> Result<Decoding> {
        Ok(Decoding { least_workspace: 0, workspace_per_mib: 0 })
    }

    /// Whether a lane with this room can decode a stream.
    fn takes(&self, _stream: &ChunkStream, _room: LaneCapacity) -> bool {
        true
    }

    /// How many of the first of these streams fit in one round, each of which [`StreamDecoder::takes`] accepted.
    ///
    /// # Errors
    /// As for [`StreamDecoder::needs`].
    fn fits(&self, streams: &[Encoded], _room: LaneCapacity) -> Result<usize> {
        Ok(streams.len())
    }

    /// Enqueues the decoding of `streams`, whose entries in the tables are the launch's arrays. Statuses and sizes are written for every
    /// stream, [`POISON`](crate::gpu::driver::POISON) where the decoder gives none. The caller compares them.
    ///
    /// # Errors
    /// If the decoder isn't there, or the call is refused.
    ///
    /// # Safety
    /// The entries were sent on the launch's stream. They name memory that stays valid until the stream has passed this point. The
    /// streams were let pass by [`crate::codec::streams::split`], and fit.
    unsafe fn enqueue(&self, launch: &mut Launch<'_>, streams: &[Encoded]) -> Result<()>;
}

/// What a lane has for one round.
#[derive(Clone, Copy)]
pub(in crate::gpu) struct LaneCapacity {
    /// Bytes of workspace.
    pub workspace: usize,
    /// Blocks of zstd frames.
    pub blocks: usize,
}

/// What decoders are launched with.
pub(in crate::gpu) struct Launch<'a> {
    pub module: &'a Module,
    pub stream: &'a Stream,
    pub tables: &'a mut Tables,
    /// The entries of its streams.
    pub arrays: DecodeArrays,
    pub wave: &'a Wave,
    /// Where encoded bytes are.
    pub staging: u64,
    /// Address, a multiple of 8, and bytes.
    pub workspace: (u64, usize),
}

/// The decoder of streams of this kind.
pub(in crate::gpu) const fn choose(codec: StreamCodec, zstd: ZstdDecoder) -> &'static dyn StreamDecoder {
    match (codec, zstd) {
        (StreamCodec::Zstd, ZstdDecoder::Kernels) => &ZstdKernels,
        (StreamCodec::Zstd, ZstdDecoder::Nvcomp) => &Nvcomp,
        (StreamCodec::Deflate, _) => &Inflate,
        (StreamCodec::Lz4 | StreamCodec::Snappy, _) => &Lz4,
    }
}

/// The environment variable that names the decoder of zstd frames on the GPU: `kernels` (the default) or `nvcomp`, for
/// comparison.
const ZSTD: &str = "DALI_ZARR_ZSTD";

/// The decoder of zstd frames that the environment asks for.
///
/// # Errors
/// If there is none of this name.
pub(in crate::gpu) fn zstd_decoder() -> Result<ZstdDecoder> {
    match std::env::var(ZSTD).ok().as_deref() {
        None | Some("" | "kernels") => Ok(ZstdDecoder::Kernels),
        Some("nvcomp") => Ok(ZstdDecoder::Nvcomp),
        Some(other) => Err(Error::value(format!(
            "{ZSTD}: expected \"kernels\" or \"nvcomp\" in the environment, found \"{other}\""
        ))),
    }
}
