//! Finished batches, and the memory that they are written to. It lies below the scheduler, which fills what the reader
//! hands out.

use crate::dtype::DType;
use crate::memory::HostBuffer;

/// One output of every batch. All samples have one shape, unless it is ragged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputInfo {
    /// The shape of one sample; empty for scalars. Of a ragged output, that of the longest: samples differ in the first dimension.
    pub shape: Vec<i64>,
    /// The element type.
    pub dtype: DType,
    /// DALI's layout, one letter per dimension; empty where the dimensions have no known letters.
    pub layout: String,
    /// What it holds, for messages: the array's name, or the names of the stacked ones.
    pub name: String,
    /// For a ragged output, the most elements along the first dimension that all samples of a batch have together.
    pub ragged: Option<u64>,
}

impl OutputInfo {
    /// Bytes of one sample; of the longest, if it is ragged.
    pub fn sample_bytes(&self) -> usize {
        self.shape.iter().product::<i64>() as usize * self.dtype.size()
    }

    /// Elements of a sample; of a ragged output, those for each element along the first dimension.
    pub fn unit_elements(&self) -> i64 {
        self.shape[usize::from(self.ragged.is_some())..].iter().product()
    }

    /// Bytes of a batch of `batch_size` samples, at most.
    pub fn batch_bytes(&self, batch_size: usize) -> usize {
        let units = self.ragged.map_or(batch_size, |elements| usize::try_from(elements).unwrap_or(usize::MAX));
        (self.unit_elements() as usize * self.dtype.size()).saturating_mul(units)
    }
}

/// Device memory for all outputs of one batch, lent by the host; the reader writes it and gives it back with a batch.
#[derive(Clone, Debug)]
pub struct DeviceBuffers {
    /// The host's name for this set; comes back in [`Batch::buffers`].
    pub id: u64,
    /// For each output the device address of [`OutputInfo::batch_bytes`] contiguous bytes, aligned to 8.
    pub outputs: Vec<u64>,
    /// A `CUevent` after which the memory may be written (0: at once). It must live until the set comes back.
    pub ready: u64,
}

/// A finished batch: full, with its samples side by side, and complete in memory (nothing is pending on any stream).
#[derive(Debug)]
pub struct Batch {
    /// With [`Device::Cpu`](crate::spec::Device::Cpu): one buffer per output. Empty otherwise.
    pub host: Vec<HostBuffer>,
    /// With [`Device::Gpu`](crate::spec::Device::Gpu): the lent set that was filled. `None` otherwise.
    pub buffers: Option<u64>,
    /// With ragged outputs: for each sample, its elements along their first dimension. Empty otherwise.
    pub lengths: Vec<i64>,
    /// What the samples are called.
    pub names: Names,
}

/// What samples are called, for people: their store, and their start along each axis, as `era5.zarr time=17 latitude=0`.
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// The names, one after the other.
    pub text: String,
    /// Where each ends.
    pub ends: Vec<u32>,
}
