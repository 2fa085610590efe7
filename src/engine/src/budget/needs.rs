//! What a reader must hold in memory at a time, for the division of memory. The numbers come from the dataset, the
//! plans and the codecs. Plain values.

use super::rates::WaveTime;
use dali_zarr_base::error::Error;
use dali_zarr_base::memory::arena::rounded;

/// Most batches in preparation, if the user doesn't say how many.
pub const MAX_BATCHES: usize = 32;

/// Returns the error of a limit that is too small for one chunk and one batch, with `tables` bytes of tables.
pub(super) fn too_small(argument: &str, limit: u64, smallest: usize, tables: usize) -> Error {
    let tables = with_tables(tables);
    Error::value(format!(
        "{argument}: expected at least {smallest} bytes for one chunk and one batch of this dataset{tables}, found {limit}"
    ))
}

/// Returns the part of an error that says how many bytes tables take; empty if there are none.
pub(super) fn with_tables(bytes: usize) -> String {
    if bytes > 0 {
        format!(" and {bytes} bytes of tables of starts and weights, of segments, and of the order")
    } else {
        String::new()
    }
}

/// What one reader must hold. Bytes, unless said otherwise.
#[derive(Clone, Copy, Debug)]
pub struct Needs {
    /// All outputs of one batch.
    pub batch: usize,
    /// The most encoded bytes of a chunk, as usual encoders write it. 0 if no chunk is staged in host memory.
    pub encoded: usize,
    /// The largest decoded chunk.
    pub decoded: usize,
    /// The largest decoded chunk that the CPU decodes for a GPU. 0 if there is none.
    pub host_decoded: usize,
    /// Scratch memory of the decoder on each decode thread, for decoders that don't decode in place.
    pub per_thread: usize,
    /// Scratch memory of the CPU's decoder when it decodes a chunk that the GPU couldn't.
    pub fallback: usize,
    /// Scratch memory of a decode thread when it decodes in the GPU's place, to leave the GPU to a model that trains.
    /// `None` if it never does.
    pub sharing: Option<usize>,
    /// The largest index of a shard.
    pub index: usize,
    /// Tables of starts and weights, segments between breaks, and the lists of the order.
    pub tables: usize,
    /// What these tables take temporarily when the reader is opened, before other memory is reserved.
    pub opening: usize,
    /// Buffers of all threads that read. 0 unless files are read past the page cache (`use_o_direct`).
    pub read_buffers: usize,
    /// Encoded bytes of all requests to remote stores that may be under way. 0 if all stores are local. A disk answers
    /// soon, but a server must be asked long before the bytes are needed.
    pub request_bytes: usize,
    /// The offsets of ragged rows. They are held as long as the reader.
    pub rows: usize,
    /// All chunks of the data set, encoded and decoded.
    pub all: usize,
    /// All decoded chunks that a typical batch needs, as they lie in memory.
    pub working_set: usize,
    /// What each further batch in a row adds to `working_set`: chunks that the batches before it don't need.
    pub new_per_batch: usize,
    /// Decoded chunks that one batch needs and that a later one of the batches planned ahead needs again.
    pub used_again: usize,
    /// With chunk-aware shuffling: all decoded chunks of one shuffle window. A batch draws its samples from them, so
    /// they are worth keeping if memory allows.
    pub shuffled: Option<usize>,
    /// Number of jobs of a typical batch.
    pub jobs: usize,
    /// Needs of delivery to a GPU. `None` if batches are delivered to the CPU.
    pub device: Option<DeviceNeeds>,
}

/// What delivery to a GPU needs besides [`Needs`].
#[derive(Clone, Copy, Debug)]
pub struct DeviceNeeds {
    /// What the GPU decodes, if anything.
    pub decoding: Option<Decoding>,
    /// The largest piece of a chunk that goes through a lane's staging buffer. 0 if none does: large decoded chunks are
    /// copied straight to their slots.
    pub staged: usize,
    /// Staged bytes for each decoded byte in flight, in a typical wave.
    pub staged_ratio: f64,
    /// Decoded bytes of the smallest chunk, or of a typical stream inside a chunk. The number of streams in a wave
    /// follows from it.
    pub stream: usize,
    /// The best size of the device memory to which GPUDirect Storage reads files before the GPU decodes them. 0 if it
    /// isn't used.
    pub gds_buffer: usize,
    /// How long waves take.
    pub time: WaveTime,
}

/// What the GPU's decoders need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decoding {
    /// Bytes of workspace with which a lane can decode any one chunk.
    pub least_workspace: usize,
    /// Bytes of workspace for each MiB of decoded bytes in a wave. With less, a wave is decoded in rounds.
    pub workspace_per_mib: usize,
    /// Further bytes of workspace, which are left free for what a library takes from the driver.
    pub left_free: usize,
}

impl Decoding {
    /// What a lane needs whose decoders take nothing.
    pub const NONE: Self = Self { least_workspace: 0, workspace_per_mib: 0, left_free: 0 };

    /// Returns the bytes of workspace for a wave of `decoded` bytes.
    pub fn workspace(&self, decoded: usize) -> usize {
        let share = (decoded as u128 * self.workspace_per_mib as u128) >> 20;
        usize::try_from(share).unwrap_or(usize::MAX).max(self.least_workspace).saturating_add(self.left_free)
    }
}

impl Needs {
    /// Returns the decoded bytes of the chunks that a number of batches in a row need.
    pub fn of_batches(&self, batches: usize) -> usize {
        self.working_set.saturating_add(self.new_per_batch.saturating_mul(batches.saturating_sub(1)))
    }

    /// Returns the bytes of one chunk, encoded and decoded, if batches are delivered to the CPU.
    pub fn cpu_chunk(&self) -> usize {
        rounded(self.encoded) + rounded(self.decoded)
    }

    /// Returns the smallest number of batches that may be in preparation, if the user asked for this number.
    pub fn least_batches(&self, asked: Option<usize>) -> usize {
        asked.unwrap_or(1).max(1)
    }

    /// Returns the bytes of decoded chunks that are worth keeping for later batches.
    pub fn kept(&self) -> usize {
        self.shuffled.unwrap_or(0).max(self.used_again)
    }

    /// Returns the bytes in which the CPU decodes a chunk that the GPU couldn't decode. One lane at a time uses this
    /// memory. 0 if the GPU decodes nothing.
    pub fn fallback_bytes(&self) -> usize {
        if self.on_gpu() { self.decoded + self.fallback } else { 0 }
    }

    /// Whether the GPU decodes anything.
    pub fn on_gpu(&self) -> bool {
        self.device.is_some_and(|device| device.decoding.is_some())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A field of 721 x 1440 float32.
    pub const FIELD: usize = 721 * 1440 * 4;
    pub const MIB: usize = 1 << 20;

    /// Needs of batches of `batch` bytes that use each chunk once, delivered to the CPU.
    pub fn needs(batch: usize, chunk: usize) -> Needs {
        Needs {
            batch,
            encoded: chunk + chunk / 8,
            decoded: chunk,
            host_decoded: 0,
            per_thread: 0,
            fallback: 0,
            sharing: None,
            index: 0,
            tables: 0,
            opening: 0,
            read_buffers: 0,
            request_bytes: 0,
            rows: 0,
            all: usize::MAX,
            working_set: batch,
            new_per_batch: batch,
            used_again: 0,
            shuffled: None,
            jobs: 0,
            device: None,
        }
    }

    /// The same for zstd frames that a GPU decodes.
    pub fn on_gpu(batch: usize, chunk: usize) -> Needs {
        let decoding = Decoding { least_workspace: 3 * chunk + (64 << 10), workspace_per_mib: MIB, left_free: 0 };
        let device = DeviceNeeds {
            decoding: Some(decoding),
            staged: chunk + chunk / 8,
            staged_ratio: 0.625,
            stream: chunk,
            gds_buffer: 0,
            time: WaveTime { latency: 5e-3, gpu: 200e9 },
        };
        Needs { device: Some(device), ..needs(batch, chunk) }
    }

    /// Random numbers from a seed.
    pub struct Numbers(pub u64);

    impl Numbers {
        pub fn below(&mut self, n: usize) -> usize {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 20) as usize % n.max(1)
        }

        /// Returns random needs of any order of magnitude.
        pub fn needs(&mut self, gpu: bool) -> Needs {
            let decoded = (self.below(64 * MIB) >> self.below(20)) + 1;
            let working_set = decoded + (self.below(100 * MIB) >> self.below(20));
            let device = gpu.then(|| self.device(decoded));
            Needs {
                batch: 1 + (self.below(200 * MIB) >> self.below(16)),
                encoded: decoded + decoded / 8,
                decoded,
                host_decoded: self.below(2) * decoded,
                per_thread: self.below(2) * self.below(3 * decoded),
                fallback: self.below(2) * self.below(3 * decoded),
                sharing: (gpu && self.below(2) == 1).then(|| self.below(3 * decoded)),
                index: self.below(MIB),
                tables: self.below(2) * self.below(100 * MIB),
                opening: self.below(2) * self.below(200 * MIB),
                read_buffers: self.below(2) * self.below(MIB),
                request_bytes: self.below(2) * self.below(300 * MIB),
                rows: self.below(2) * self.below(50 * MIB),
                all: usize::MAX,
                working_set,
                new_per_batch: self.below(working_set + 1),
                used_again: self.below(2) * self.below(working_set),
                shuffled: (self.below(2) == 1).then_some(self.below(500 * MIB)),
                jobs: 0,
                device,
            }
        }

        fn device(&mut self, decoded: usize) -> DeviceNeeds {
            let decoding = Decoding {
                least_workspace: self.below(2) * (3 * decoded + (64 << 10)),
                workspace_per_mib: self.below(2) * self.below(2 * MIB),
                left_free: self.below(2) * self.below(100 * MIB),
            };
            DeviceNeeds {
                decoding: (self.below(4) > 0).then_some(decoding),
                staged: self.below(2) * (decoded + decoded / 8),
                staged_ratio: self.below(200) as f64 / 100.0,
                stream: 1 + self.below(decoded),
                gds_buffer: self.below(2) * self.below(50 * MIB),
                time: WaveTime {
                    latency: 1e-4 * (1 + self.below(300)) as f64,
                    gpu: 1e10 * (1 + self.below(30)) as f64,
                },
            }
        }
    }
}
