//! What a lane of the GPU gets: chunks to be copied and decoded together, and the jobs that follow.

use std::fs::File;

use super::chunks::Handle;
use super::tasks::{GroupId, Outcome, Served, Work};
use crate::budget::DeviceBudget;
use crate::error::Result;
use crate::memory::Span;
use crate::plan::ChunkId;

/// What the bytes of a chunk in a wave are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// Decoded: uncompressed in the store, or decoded by the CPU.
    Decoded,
    /// Encoded, by what the GPU undoes.
    Encoded,
}

/// One chunk of a wave.
pub(crate) struct WaveChunk {
    pub id: ChunkId,
    pub handle: Handle,
    /// In page-locked memory.
    pub bytes: Span,
    /// Where they are copied from: there, or on the device, if they were read to it.
    pub source: u64,
    pub content: Content,
    /// The read whose memory `bytes` lies in.
    pub group: GroupId,
    /// Device address where its decoded bytes go.
    pub slot: u64,
    pub decoded_bytes: usize,
    /// Into [`Work::jobs`].
    pub jobs: std::ops::Range<usize>,
}

/// Work for one lane.
#[derive(Default)]
pub(crate) struct Wave {
    pub chunks: Vec<WaveChunk>,
    pub work: Work,
    /// Jobs that read no chunk of this wave.
    pub loose: std::ops::Range<usize>,
    /// Small things to be written to device memory: address and bytes.
    pub uploads: Vec<(u64, Vec<u8>)>,
    /// Chunks whose memory the loose jobs read.
    pub pinned: Vec<Handle>,
}

impl Wave {
    /// The reads whose memory its chunks lie in, and how many chunks of each.
    pub fn groups(&self) -> Vec<(GroupId, u32)> {
        let mut groups: Vec<(GroupId, u32)> = Vec::new();
        for chunk in &self.chunks {
            match groups.last_mut() {
                Some((group, n)) if *group == chunk.group => *n += 1,
                _ => groups.push((chunk.group, 1)),
            }
        }
        groups
    }
}

/// What became of a wave.
pub(crate) struct WaveDone {
    pub lane: usize,
    pub outcomes: Vec<Outcome>,
    pub served: Vec<Served>,
    pub pinned: Vec<Handle>,
    /// If the lane itself failed, no job has run for certain, and the device may be lost.
    pub result: Result<()>,
}

/// How much one wave may hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaveLimits {
    /// Bytes that travel through the lane's staging buffer.
    pub encoded: usize,
    /// Decoded bytes of chunks that the GPU decodes.
    pub decoded: usize,
    /// Chunks.
    pub chunks: usize,
}

impl From<&DeviceBudget> for WaveLimits {
    fn from(b: &DeviceBudget) -> Self {
        Self { encoded: b.wave_encoded, decoded: b.wave_decoded, chunks: b.wave_streams }
    }
}

/// Decoded chunks of this size and more are copied to their slots one by one; smaller ones travel together.
pub(crate) const DIRECT_COPY: usize = 256 << 10;

/// A fetch thread's own way to the device: it copies what it has read while it reads the next chunk. Dropping it waits.
pub(crate) trait Upload: Send {
    /// Starts copying each span of page-locked memory to its device address.
    ///
    /// # Errors
    /// If the device refuses. What was started before goes on.
    ///
    /// # Safety
    /// The spans stay as they are, and the destinations have room for them, until [`Self::wait`] or [`Self::is_done`]
    /// has said that all is done.
    unsafe fn start(&mut self, copies: &[(Span, u64)]) -> Result<()>;
    /// Whether everything is done.
    ///
    /// # Errors
    /// If a copy failed.
    fn is_done(&self) -> Result<bool>;
    /// Sleeps until everything is done; returns the seconds that the last [`Self::start`]'s copies took.
    ///
    /// # Errors
    /// If a copy failed.
    fn wait(&self) -> Result<f64>;
}

/// A fetch thread's way from files to the device, past the host (GPUDirect Storage).
pub(crate) trait Storage: Send {
    /// Reads parts of a file, each to a device address: offset in the file, bytes, address. Done when it returns.
    ///
    /// # Errors
    /// If the file ends before, or can't be read.
    ///
    /// # Safety
    /// Each address has room for its part.
    unsafe fn read(&self, file: &File, parts: &[(u64, usize, u64)]) -> Result<()>;
    /// Copies what was read to page-locked memory, too. Done when it returns.
    ///
    /// # Errors
    /// If the device refuses.
    ///
    /// # Safety
    /// There are as many bytes at `from`, and nobody else uses `to`.
    unsafe fn copy_back(&self, from: u64, to: Span) -> Result<()>;
}

/// The lanes of a GPU, as the scheduler sees them.
pub(crate) trait Lanes: Send {
    /// How many waves run at a time.
    fn count(&self) -> usize;
    /// What each may hold.
    fn limits(&self) -> WaveLimits;
    /// One fetch thread's way to the device.
    ///
    /// # Errors
    /// If the device has no stream left.
    fn upload(&self) -> Result<Box<dyn Upload>>;
    /// One fetch thread's way past the host, if this reader uses it.
    ///
    /// # Errors
    /// If the device has no stream left.
    fn storage(&self) -> Result<Option<Box<dyn Storage>>>;
    /// Starts a wave on an idle lane; [`super::Event::Copied`] and [`super::Event::Wave`] follow.
    fn launch(&self, lane: usize, wave: Wave);
}
