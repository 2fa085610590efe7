//! Finished batches, and the memory that they are written to. This module lies below the scheduler, because the
//! scheduler fills the batches that the reader hands out.

use dali_zarr_base::dtype::DType;
use dali_zarr_base::memory::HostBuffer;

/// Describes one output, the same in every batch. All samples have one shape, unless the output is ragged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputInfo {
    /// The shape of one sample; empty for scalars. For a ragged output, the greatest length of a sample along each
    /// dimension.
    pub shape: Vec<i64>,
    /// The names of its dimensions, in the order of `shape`.
    pub dims: Vec<String>,
    /// The element type.
    pub dtype: DType,
    /// DALI's layout, one letter per dimension; empty where the dimensions have no known letters.
    pub layout: String,
    /// The name for messages: that of the array, or those of the stacked arrays.
    pub name: String,
    /// The offset of its elements along the first axis. `None` without the argument `offsets`, and for masks and the index.
    pub offset: Option<i64>,
    /// How samples differ. `None` if the output isn't ragged.
    pub ragged: Option<Ragged>,
    /// Bytes behind the samples in the memory of a batch, for each sample: the decoded elements between which values are
    /// interpolated. A multiple of [`SCRATCH_ALIGN`]; 0 if none are.
    pub scratch: usize,
}

/// How the samples of a ragged output differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ragged {
    /// The dimensions in which they differ, by position, in ascending order.
    pub dims: Vec<usize>,
    /// The most elements that one batch can have: the sum over its samples.
    pub most: u64,
}

/// The memory behind the samples of a batch begins at a multiple of this many bytes, and so does that of each sample.
pub const SCRATCH_ALIGN: usize = 16;

impl OutputInfo {
    /// Returns the bytes of one sample. For a ragged output, those of a sample with the greatest length along each
    /// dimension.
    pub fn sample_bytes(&self) -> usize {
        self.shape.iter().product::<i64>() as usize * self.dtype.size()
    }

    /// Returns the most bytes of memory that this output needs for a batch of `batch_size` samples.
    pub fn batch_bytes(&self, batch_size: usize) -> usize {
        let bytes = match &self.ragged {
            None => self.sample_bytes().saturating_mul(batch_size),
            Some(ragged) => usize::try_from(ragged.most).unwrap_or(usize::MAX).saturating_mul(self.dtype.size()),
        };
        match self.scratch {
            0 => bytes,
            scratch => self.scratch_begin(batch_size).saturating_add(scratch.saturating_mul(batch_size)).max(bytes),
        }
    }

    /// Returns the offset of the memory behind the samples, in a batch of `samples` samples.
    pub fn scratch_begin(&self, samples: usize) -> usize {
        self.sample_bytes().saturating_mul(samples).checked_next_multiple_of(SCRATCH_ALIGN).unwrap_or(usize::MAX)
    }
}

/// Device memory for all outputs of one batch. The host program lends it. The reader fills it and gives it back with a
/// batch.
#[derive(Clone, Debug)]
pub struct DeviceBuffers {
    /// The host program's number for this set. It comes back in [`Batch::buffers`].
    pub id: u64,
    /// For each output, the device address of [`OutputInfo::batch_bytes`] contiguous bytes, aligned to 8 bytes.
    pub outputs: Vec<u64>,
    /// The `CUevent` after which the memory may be written (0: at once). The event must live until the set comes back.
    pub ready: u64,
}

/// A finished batch. It has all of its samples, side by side in memory. Nothing is pending on any stream.
#[derive(Debug)]
pub struct Batch {
    /// With [`Device::Cpu`](crate::spec::Device::Cpu): one buffer per output. Empty otherwise.
    pub host: Vec<HostBuffer>,
    /// With [`Device::Gpu`](crate::spec::Device::Gpu): the [`DeviceBuffers::id`] of the set that was filled. `None`
    /// otherwise.
    pub buffers: Option<u64>,
    /// Its number of samples. In a caller's order, those that fill up the batch don't count.
    pub samples: usize,
    /// With ragged rows: the length of each sample along the first dimension of ragged outputs. Empty otherwise.
    pub lengths: Vec<i64>,
    /// For each output whose samples have the shapes of their stores: these shapes, one after the other; empty for other
    /// outputs. Empty if there are no such outputs.
    pub shapes: Vec<Vec<i64>>,
    /// The names of the samples.
    pub names: Names,
}

/// Names of samples, for people: the store and the start along each axis, such as `era5.zarr time=17 latitude=0`.
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// All names, one after the other without separators.
    pub text: String,
    /// For each name, the byte offset in `text` where it ends.
    pub ends: Vec<u32>,
}
