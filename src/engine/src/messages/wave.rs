//! Work for a lane of the GPU: chunks that are copied and decoded together, and their jobs. Also the traits by which
//! the scheduler knows a GPU.
//!
//! `unsafe` is allowed here: methods of the traits write to device addresses, for which the caller vouches.

#![allow(unsafe_code)]

use std::fs::File;

use dali_zarr_kernels::Layout;

use super::{Assembly, Handle, Outcome, Payload, Served, UploadPart};
use crate::budget::DeviceBudget;
use dali_zarr_base::error::Result;
use dali_zarr_base::memory::Lease;
use dali_zarr_samples::plan::ChunkId;
use dali_zarr_stores::ObjectVersion;

/// What the bytes of a chunk in a wave are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// Decoded: stored uncompressed, or decoded by the CPU.
    Decoded,
    /// Encoded, to be decoded by the GPU.
    Encoded,
}

/// One chunk of a wave.
pub(crate) struct WaveChunk {
    pub id: ChunkId,
    pub handle: Handle,
    /// The number of its bytes.
    pub bytes: usize,
    /// The address that they are copied from: that of the chunk's [`Payload`], or one in the GDS buffer on the device.
    pub source: u64,
    pub content: Content,
    /// The version of the object that was read, if the read asked for one.
    pub version: Option<ObjectVersion>,
    /// The device address to which it goes: that of its slot, or of the part of an output that it is, without a job.
    pub to: u64,
    pub decoded_bytes: usize,
    /// The chunk's jobs, as a range in [`Assembly::jobs`].
    pub jobs: std::ops::Range<usize>,
}

/// Work for one lane.
#[derive(Default)]
pub(crate) struct Wave {
    pub chunks: Vec<WaveChunk>,
    /// The bytes of each chunk in `chunks`, in page-locked memory. Empty once they are copied.
    pub payloads: Vec<Payload>,
    pub assembly: Assembly,
    /// Jobs of chunks that were decoded before, or are missing, as a range in [`Assembly::jobs`].
    pub ready_jobs: std::ops::Range<usize>,
    /// Small values to be written to device memory (sample indexes): address and bytes.
    pub uploads: Vec<(u64, Vec<u8>)>,
    /// Chunks whose memory the ready jobs read.
    pub pinned: Vec<Handle>,
}

impl Wave {
    /// Ends the wave of a lane. `results` has the result of each chunk, in the order of the chunks, and `result` is that
    /// of the lane.
    pub fn ended(self, lane: usize, results: impl IntoIterator<Item = Result<Layout>>, result: Result<()>) -> WaveDone {
        let mut results = results.into_iter();
        let outcome = |chunk: &WaveChunk| Outcome {
            handle: chunk.handle,
            result: results.next().expect("each chunk has a result"),
        };
        let outcomes = self.chunks.iter().map(outcome).collect();
        WaveDone { lane, outcomes, served: self.assembly.served, pinned: self.pinned, result }
    }
}

/// The results of a wave.
pub(crate) struct WaveDone {
    pub lane: usize,
    pub outcomes: Vec<Outcome>,
    pub served: Vec<Served>,
    pub pinned: Vec<Handle>,
    /// An error if the lane itself failed. Then jobs may not have run, and the device may be lost.
    pub result: Result<()>,
}

/// The most that one wave may hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaveLimits {
    /// Bytes that travel through the lane's staging buffer.
    pub encoded: usize,
    /// Decoded bytes of chunks that the GPU decodes.
    pub decoded: usize,
    /// Number of chunks.
    pub chunks: usize,
}

impl From<&DeviceBudget> for WaveLimits {
    fn from(b: &DeviceBudget) -> Self {
        Self { encoded: b.wave_encoded, decoded: b.wave_decoded, chunks: b.wave_streams }
    }
}

/// A part of a file, which GPUDirect Storage reads to the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FilePart {
    /// The offset of its first byte in the file.
    pub offset: u64,
    /// The number of its bytes.
    pub len: usize,
    /// The device address that it is read to.
    pub to: u64,
}

/// The copy stream of a thread that reads. It copies to the device what was read, while the thread reads the next
/// chunk. It has the lease of what it copies. Dropping it waits until all copies are done.
pub(crate) trait Upload: Send {
    /// Starts copying parts of page-locked memory to the device. Their offsets are those in `from`. The copies of the
    /// last call must be done, and `from` taken back by [`Self::wait`].
    ///
    /// # Errors
    /// If the device refuses a copy. The copies that were started before have ended then.
    ///
    /// # Safety
    /// Each device address must have room for its part until [`Self::wait`] returns.
    unsafe fn start(&mut self, from: Lease, parts: &[UploadPart]) -> Result<()>;
    /// Whether all copies are done.
    ///
    /// # Errors
    /// If a copy failed.
    fn is_done(&self) -> Result<bool>;
    /// Sleeps until all copies are done. Returns the lease of the last [`Self::start`] (`None` if it was returned
    /// before), and the seconds that its copies took, or an error if a copy failed.
    fn wait(&mut self) -> (Option<Lease>, Result<f64>);
}

/// GPUDirect Storage for one thread that reads: it reads files to the device without a copy in host memory.
pub(crate) trait Storage: Send {
    /// Reads parts of a file to the device. Returns when all parts are there.
    ///
    /// # Errors
    /// If the file is too short, or can't be read.
    ///
    /// # Safety
    /// Each address must have room for its part.
    unsafe fn read(&self, file: &File, parts: &[FilePart]) -> Result<()>;
    /// Copies bytes from the device address `from` to page-locked memory. Returns when they are there.
    ///
    /// # Errors
    /// If the device refuses.
    ///
    /// # Safety
    /// There must be as many bytes at `from` as `to` has.
    unsafe fn copy_back(&self, from: u64, to: &mut [u8]) -> Result<()>;
}

/// The lanes of a GPU. A lane takes one wave at a time.
pub(crate) trait Lanes: Send {
    /// Returns the number of lanes.
    fn count(&self) -> usize;
    /// Returns the most that the wave of one lane may hold.
    fn limits(&self) -> WaveLimits;
    /// Makes a copy stream for one thread that reads.
    ///
    /// # Errors
    /// If the device has no stream left.
    fn upload(&self) -> Result<Box<dyn Upload>>;
    /// Opens GPUDirect Storage for one thread that reads. `None` if this reader doesn't use it.
    ///
    /// # Errors
    /// If the device has no stream left.
    fn storage(&self) -> Result<Option<Box<dyn Storage>>>;
    /// Starts a wave on an idle lane. [`crate::messages::Event::Copied`] and then [`crate::messages::Event::Wave`]
    /// follow.
    fn launch(&self, lane: usize, wave: Wave);
}
