//! Finished batches, and the memory that they are written to. It lies below the scheduler, which fills what the reader
//! hands out.

use crate::dtype::DType;
use crate::memory::HostBuffer;

/// One output of every batch: the same for all samples, since all samples have one shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputInfo {
    /// The shape of one sample; empty for scalars.
    pub shape: Vec<i64>,
    /// The element type.
    pub dtype: DType,
    /// DALI's layout, one letter per dimension; empty where the dimensions have no known letters.
    pub layout: String,
    /// What it holds, for messages: the array's name, or the names of the stacked ones.
    pub name: String,
}

impl OutputInfo {
    /// Bytes of one sample.
    pub fn sample_bytes(&self) -> usize {
        self.shape.iter().product::<i64>() as usize * self.dtype.size()
    }
}

/// Device memory for all outputs of one batch, lent by the host; the reader writes it and gives it back with a batch.
#[derive(Clone, Debug)]
pub struct DeviceBuffers {
    /// The host's name for this set; comes back in [`Batch::buffers`].
    pub id: u64,
    /// For each output the device address of `batch_size * sample_bytes` contiguous bytes, aligned to 8.
    pub outputs: Vec<u64>,
    /// A `CUevent` after which the memory may be written (0: at once). It must live until the set comes back.
    pub ready: u64,
}

/// A finished batch: full, dense, and complete in memory (nothing is pending on any stream).
#[derive(Debug)]
pub struct Batch {
    /// With [`Device::Cpu`](crate::spec::Device::Cpu): one buffer per output. Empty otherwise.
    pub host: Vec<HostBuffer>,
    /// With [`Device::Gpu`](crate::spec::Device::Gpu): the lent set that was filled. `None` otherwise.
    pub buffers: Option<u64>,
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
