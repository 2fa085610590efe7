//! Where the decoded bytes of a chunk go.

use dali_zarr_base::memory::{Lease, arena};

/// A part of an output of a batch. A chunk is decoded there if the batch needs a copy of the whole chunk.
#[derive(Clone, Copy, Debug)]
pub(in crate::scheduler) struct OutputPart {
    /// The batch's number.
    pub batch: u64,
    /// The output's number in the batch.
    pub output: usize,
    /// The offset of the first byte in the output.
    pub offset: usize,
}

/// The memory for the decoded bytes of a chunk.
#[derive(Default)]
pub(in crate::scheduler) struct DecodedMemory {
    /// Host memory, and the part of an output that it is (`None`: it is staging).
    pub host: Option<(Lease, Option<OutputPart>)>,
    /// Device memory.
    pub slot: Option<arena::Range>,
}
