//! Decides whether the CPU or the GPU decodes a chunk. Only [`decide`] does, from [`Facts`]: the others ask it.
//!
//! The facts become known one after the other, and each is asked about once:
//!
//! | when | what is known | who asks |
//! |---|---|---|
//! | a reader is opened | the user's choice, the codecs of each array, the size of its chunks | `reader/routing.rs` |
//! | it is started on a GPU | whether that has decoders for images | `reader/division.rs` |
//! | its memory is divided | the rates that are [`Expected`] | `reader/division.rs` |
//! | a chunk waits for a lane | the state of [`Training`] | `scheduler/waves.rs` |
//! | a lane has its bytes | whether they are [`Streams`] that the lane takes | `gpu/streams.rs` |
//!
//! The first two answers hold for all chunks of an array in one store ([`Decisions`]), for as long as the reader runs. The last
//! two are for one chunk, and hold until it is decoded: if it is read again, it is asked about again.

#![forbid(unsafe_code)]

use dali_zarr_samples::spec::DecodeDevice;

/// How chunks are decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// Not at all: they are stored uncompressed.
    Raw,
    /// On the CPU.
    Cpu,
    /// On the GPU.
    Gpu,
}

/// Which decoders there are for the codecs of an array.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Codec {
    /// None is needed: the chunks are stored uncompressed.
    Uncompressed,
    /// Those of the CPU.
    OnlyCpu,
    /// Those of the CPU, and one of the GPU.
    Gpu {
        /// Decoded bytes of the largest chunk that the GPU's decoder takes.
        most: usize,
        /// Whether the decoder is there: it knows this variant of the codec, and can be loaded.
        available: bool,
    },
}

/// Decoded bytes per second that are expected of the GPU and of the CPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Expected {
    /// The GPU with the memory that the reader has.
    pub gpu: f64,
    /// The GPU with as much memory as it can use.
    pub gpu_at_most: f64,
    /// The CPU's threads.
    pub cpu: f64,
}

impl Expected {
    /// Whether the CPU is faster because device memory is short. False if the CPU is faster than the GPU with any amount of
    /// memory: then memory isn't the reason, and doesn't decide.
    pub fn cpu_is_faster(&self) -> bool {
        self.cpu > self.gpu && self.gpu_at_most > self.cpu
    }
}

/// The state of training while a chunk waits for a lane.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Training {
    /// Whether a core may decode in the GPU's place: finished batches wait for the consumer, and a core is idle.
    pub core_is_idle: bool,
    /// The number of batches that the consumer takes before the first one that needs the chunk.
    pub due_after: usize,
    /// The number of batches that the consumer takes while a core decodes a chunk; 0 if it isn't known.
    pub task_batches: usize,
}

/// What a lane finds in the bytes of a chunk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Streams {
    /// Whether they are streams that the lane's decoders take.
    pub are_taken: bool,
    /// How many of these bytes are staged.
    pub staged: usize,
    /// Bytes of the lane's staging buffer.
    pub room: usize,
}

/// What is known of a chunk, or of all chunks of an array in one store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    /// The argument `decode_device`.
    pub asked: DecodeDevice,
    /// Whether batches are delivered to a GPU.
    pub to_gpu: bool,
    pub codec: Codec,
    /// Decoded bytes of the largest chunk.
    pub largest: usize,
    /// `None`: memory isn't divided yet, or GPUDirect Storage reads to the GPU.
    pub expected: Option<Expected>,
    /// `None`: the chunk doesn't wait for a lane.
    pub training: Option<Training>,
    /// `None`: the chunk isn't in a lane.
    pub streams: Option<Streams>,
}

impl Facts {
    /// A chunk of which no more is known than that its array is decoded on the GPU.
    pub const OF_GPU: Self = Self {
        asked: DecodeDevice::Auto,
        to_gpu: true,
        codec: Codec::Gpu { most: usize::MAX, available: true },
        largest: 0,
        expected: None,
        training: None,
        streams: None,
    };
}

/// The fact that decided.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Why {
    /// The chunks are stored uncompressed.
    Uncompressed,
    /// Batches are delivered to the CPU.
    DeliveredToCpu,
    /// The user asked for the CPU.
    Asked,
    /// The GPU has no decoder for the codecs.
    Codecs,
    /// The GPU's decoder takes chunks of `most` decoded bytes.
    TooLarge { most: usize },
    /// The GPU's decoder isn't there.
    NoDecoder,
    /// The CPU is faster, since device memory is short.
    DeviceMemory(Expected),
    /// A core decodes it while the model trains.
    IdleCore,
    /// The lane's decoders refuse its bytes.
    Refused,
    /// The GPU has a decoder.
    Decoder,
}

/// Where chunks are decoded, and why.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Decision {
    pub route: Route,
    pub why: Why,
}

/// The decisions of a reader, by array and part.
pub(crate) type Decisions = Vec<Vec<Decision>>;

/// Whether the GPU decodes anything, even if it is only a shuffle or a checksum around stored bytes.
pub(crate) fn uses_gpu(decisions: &Decisions) -> bool {
    decisions.iter().flatten().any(|decision| decision.route == Route::Gpu)
}

/// Decides whether the CPU or the GPU decodes.
pub(crate) fn decide(facts: &Facts) -> Decision {
    let Facts { asked, to_gpu, codec, largest, expected, training, streams } = *facts;
    let may_choose = asked == DecodeDevice::Auto;
    let why = match (codec, expected, training, streams) {
        (Codec::Uncompressed, ..) => Why::Uncompressed,
        _ if !to_gpu => Why::DeliveredToCpu,
        _ if asked == DecodeDevice::Cpu => Why::Asked,
        (Codec::OnlyCpu, ..) => Why::Codecs,
        (Codec::Gpu { most, .. }, ..) if largest > most => Why::TooLarge { most },
        (Codec::Gpu { available: false, .. }, ..) => Why::NoDecoder,
        (_, Some(expected), ..) if may_choose && expected.cpu_is_faster() => Why::DeviceMemory(expected),
        (_, _, Some(now), _) if may_choose && now.core_is_idle && now.due_after >= now.task_batches => Why::IdleCore,
        (.., Some(found)) if !found.are_taken || found.staged > found.room => Why::Refused,
        (Codec::Gpu { .. }, ..) => Why::Decoder,
    };
    let route = match why {
        Why::Uncompressed => Route::Raw,
        Why::Decoder => Route::Gpu,
        _ => Route::Cpu,
    };
    Decision { route, why }
}

#[cfg(test)]
mod tests {
    use super::*;
    use DecodeDevice::{Auto, Cpu, Gpu};

    const ZSTD: Codec = Codec::Gpu { most: 128, available: true };
    const BLOSCLZ: Codec = Codec::Gpu { most: 128, available: false };
    /// With little device memory, with enough of it, and where the CPU would win with any memory.
    const SHORT: Expected = Expected { gpu: 1e9, gpu_at_most: 40e9, cpu: 5e9 };
    const ENOUGH: Expected = Expected { gpu: 6e9, gpu_at_most: 40e9, cpu: 5e9 };
    const NEVER: Expected = Expected { gpu: 1e9, gpu_at_most: 1e9, cpu: 5e9 };
    const EVEN: Expected = Expected { gpu: 5e9, gpu_at_most: 40e9, cpu: 5e9 };

    #[test]
    fn the_user_the_codec_the_size_and_memory_decide_about_an_array() {
        let raw = Codec::Uncompressed;
        let too_large = Why::TooLarge { most: 128 };
        let memory = Why::DeviceMemory(SHORT);
        for (to_gpu, asked, codec, largest, expected, why) in [
            // Uncompressed chunks are decoded nowhere.
            (true, Auto, raw, 1000, Some(SHORT), Why::Uncompressed),
            (true, Gpu, raw, 1000, None, Why::Uncompressed),
            (false, Cpu, raw, 1000, None, Why::Uncompressed),
            // Where batches are delivered to, then the user.
            (false, Auto, ZSTD, 100, None, Why::DeliveredToCpu),
            (false, Auto, Codec::OnlyCpu, 100, None, Why::DeliveredToCpu),
            (true, Cpu, ZSTD, 100, Some(ENOUGH), Why::Asked),
            (true, Cpu, Codec::OnlyCpu, 100, None, Why::Asked),
            // What the GPU can't decode. With "gpu" the reader refuses the array for this reason.
            (true, Auto, Codec::OnlyCpu, 100, None, Why::Codecs),
            (true, Gpu, Codec::OnlyCpu, 100, None, Why::Codecs),
            (true, Auto, ZSTD, 129, None, too_large),
            (true, Gpu, ZSTD, 129, None, too_large),
            (true, Auto, BLOSCLZ, 129, None, too_large),
            (true, Auto, BLOSCLZ, 128, None, Why::NoDecoder),
            (true, Gpu, BLOSCLZ, 128, None, Why::NoDecoder),
            // What it can decode.
            (true, Auto, ZSTD, 128, None, Why::Decoder),
            (true, Gpu, ZSTD, 128, None, Why::Decoder),
            (true, Auto, ZSTD, 100, Some(SHORT), memory),
            (true, Auto, ZSTD, 100, Some(ENOUGH), Why::Decoder),
            (true, Auto, ZSTD, 100, Some(EVEN), Why::Decoder),
            (true, Auto, ZSTD, 100, Some(NEVER), Why::Decoder),
            (true, Gpu, ZSTD, 100, Some(SHORT), Why::Decoder),
        ] {
            let facts = Facts { asked, to_gpu, codec, largest, expected, ..Facts::OF_GPU };
            let route = match why {
                Why::Uncompressed => Route::Raw,
                Why::Decoder => Route::Gpu,
                _ => Route::Cpu,
            };
            assert_eq!(decide(&facts), Decision { route, why }, "{facts:?}");
        }
    }

    #[test]
    fn training_and_the_bytes_decide_about_a_chunk() {
        let idle = |due_after, task_batches| Some(Training { core_is_idle: true, due_after, task_batches });
        let busy = |due_after, task_batches| Some(Training { core_is_idle: false, due_after, task_batches });
        let found = |are_taken, staged| Some(Streams { are_taken, staged, room: 64 });
        for (asked, training, streams, route, why) in [
            (Auto, idle(4, 4), None, Route::Cpu, Why::IdleCore),
            (Auto, idle(0, 0), None, Route::Cpu, Why::IdleCore),
            (Auto, idle(3, 4), None, Route::Gpu, Why::Decoder),
            (Auto, busy(9, 0), None, Route::Gpu, Why::Decoder),
            (Gpu, idle(9, 0), None, Route::Gpu, Why::Decoder),
            (Auto, None, found(true, 64), Route::Gpu, Why::Decoder),
            (Auto, None, found(true, 65), Route::Cpu, Why::Refused),
            (Auto, None, found(false, 1), Route::Cpu, Why::Refused),
            // The user can't force a decoder to take bytes that it doesn't know.
            (Gpu, None, found(false, 1), Route::Cpu, Why::Refused),
        ] {
            let facts = Facts { asked, training, streams, ..Facts::OF_GPU };
            assert_eq!(decide(&facts), Decision { route, why }, "{facts:?}");
        }
    }
}
