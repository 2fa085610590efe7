//! The reader as its hosts see it: open, ask what it delivers, take finished batches.

use crate::dtype::DType;
use crate::error::{Error, Result};
pub use crate::memory::HostBuffer;
use crate::spec::Spec;

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

/// The numbers that DALI's iterators ask of a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReaderMeta {
    /// Samples in an epoch, over all shards.
    pub epoch_size: i64,
    /// The same, padded so that all shards are equal.
    pub epoch_size_padded: i64,
    /// As in the spec.
    pub number_of_shards: i64,
    /// As in the spec.
    pub shard_id: i64,
    /// As in the spec.
    pub pad_last_batch: bool,
    /// As in the spec.
    pub stick_to_shard: bool,
}



/// Device memory for all outputs of one batch, lent by the host; the reader writes it and gives it back with a batch.
#[derive(Clone, Debug)]
pub struct DeviceBuffers {
    /// The host's name for this set; comes back in [`Batch::buffers`].
    pub id: u64,
    /// For each output the device address of `batch_size * sample_bytes` contiguous bytes, aligned to 256.
    pub outputs: Vec<u64>,
    /// A `CUevent` after which the memory may be written (0: at once). It must live until the set comes back.
    pub ready: u64,
}

/// A finished batch: full, dense, and complete in memory (nothing is pending on any stream).
pub struct Batch {
    /// With [`crate::spec::Device::Cpu`]: one buffer per output. Empty otherwise.
    pub host: Vec<HostBuffer>,
    /// With [`crate::spec::Device::Gpu`]: the lent set that was filled. `None` otherwise.
    pub buffers: Option<u64>,
}

/// A running reader: its threads, memory and devices. Dropping it ends all of them.
pub struct Reader {}

impl Reader {
    /// Opens the store, checks the spec against it, reserves the memory and starts the threads.
    ///
    /// # Errors
    /// Whatever is wrong with the arguments or the metadata, named.
    pub fn open(spec: Spec) -> Result<Self> {
        let _ = spec;
        Err(Error::runtime("not built yet"))
    }

    /// What each batch holds, in order.
    pub fn outputs(&self) -> &[OutputInfo] {
        &[]
    }

    /// For DALI's iterators.
    pub fn meta(&self) -> ReaderMeta {
        todo!()
    }

    /// With [`crate::spec::Device::Gpu`]: how many sets of device buffers the host must lend before the first batch.
    /// After that, one for each batch taken keeps the reader running at full speed.
    pub fn buffers_wanted(&self) -> usize {
        0
    }

    /// Lends a set of device buffers.
    ///
    /// # Errors
    /// If the set doesn't fit [`Self::outputs`], or the reader delivers to the CPU.
    pub fn lend(&self, set: DeviceBuffers) -> Result<()> {
        let _ = set;
        Ok(())
    }

    /// The next batch, in order; waits for it.
    ///
    /// # Errors
    /// What failed for a chunk that the batch needs. The next call gives the next batch.
    pub fn next_batch(&self) -> Result<Batch> {
        Err(Error::runtime("not built yet"))
    }
}
