//! Where the decoded bytes of a chunk go.

use dali_zarr_base::memory::{Lease, arena};

/// A part of an output of a batch. A chunk is decoded or copied there if the batch needs a copy of the whole chunk.
#[derive(Clone, Copy, Debug)]
pub(in crate::scheduler) struct OutputPart {
    /// The batch's number.
    pub batch: u64,
    pub place: OutputPlace,
}

/// The place of a part of an output.
#[derive(Clone, Copy, Debug)]
pub(in crate::scheduler) enum OutputPlace {
    /// In host memory, of which the chunk has a lease: the output's number in the batch, and the offset of the first byte.
    Host { output: u32, offset: usize },
    /// On the device, at this address. The chunk has neither a slot nor a job.
    Device(u64),
}

impl OutputPart {
    /// Returns the address of its first byte, if it is on the device.
    pub fn on_device(self) -> Option<u64> {
        match self.place {
            OutputPlace::Host { .. } => None,
            OutputPlace::Device(address) => Some(address),
        }
    }
}

/// The memory for the decoded bytes of a chunk.
#[derive(Default)]
pub(in crate::scheduler) struct DecodedMemory {
    /// Host memory: a part of an output if `output` is in host memory, otherwise staging.
    pub host: Option<Lease>,
    /// The part of an output to which the chunk goes.
    pub output: Option<OutputPart>,
    /// Device memory.
    pub slot: Option<arena::Range>,
}
