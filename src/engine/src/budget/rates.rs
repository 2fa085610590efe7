//! What is known of codecs before a chunk is read: how long the GPU's decoders take, how fast a core is, how well data are
//! compressed. Measured on one NVIDIA H200 with 16 Xeon cores, float32 fields of 721 x 1440; the GPU's gzip and zlib on an
//! H100.
//!
//! By these numbers memory is divided, and `route` decides who decodes. They never decide what a reader delivers.

use dali_zarr_codecs::{BloscCodec, Chain, Compression, ImageFormat};

/// How long waves take, for chunks of one size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WaveTime {
    /// Seconds from the launch of a small wave to its end.
    pub latency: f64,
    /// Decoded bytes per second of a full GPU. The time of a wave grows by the decoded bytes of all waves under way,
    /// divided by this.
    pub gpu: f64,
}

impl WaveTime {
    /// The time of no waves: it doesn't change the result of [`Self::max`].
    pub const NONE: Self = Self { latency: 0.0, gpu: f64::INFINITY };

    /// Returns the time of waves with chunks of both kinds.
    pub const fn max(self, other: Self) -> Self {
        Self { latency: self.latency.max(other.latency), gpu: self.gpu.min(other.gpu) }
    }
}

/// The measured rates of a codec.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Seconds from the launch of a small wave to its end, without the part that depends on the size of chunks.
    wave: f64,
    /// Further seconds for each MiB of the largest chunk.
    wave_per_mib: f64,
    /// Waves take no longer for chunks of more MiB than this: these have more streams, not longer ones.
    longest_mib: f64,
    /// Decoded bytes per second of a full GPU.
    gpu: f64,
    /// Chunks per second of a full GPU, however small they are.
    chunks: f64,
    /// Decoded bytes per second of one core.
    core: f64,
    /// Encoded bytes for each decoded byte.
    ratio: f64,
}

/// Decoded bytes per second of one core for the rest of its work on a chunk that it decodes for a GPU: page by page the
/// chunk is read, written, and read again by the copy.
const CORE_OVERHEAD: f64 = 0.7e9;

impl Rates {
    /// Returns the rates for chunks with this compression; `None`: uncompressed.
    pub const fn of(compression: Option<Compression>) -> Self {
        const fn one(wave: f64, wave_per_mib: f64, gpu: f64, core: f64) -> Rates {
            Rates { wave, wave_per_mib, longest_mib: f64::MAX, gpu, chunks: f64::MAX, core, ratio: 0.625 }
        }
        const fn blosc(wave: f64, wave_per_mib: f64, gpu: f64, core: f64) -> Rates {
            Rates { longest_mib: 4.0, ..one(wave, wave_per_mib, gpu, core) }
        }
        match compression {
            None => Self { ratio: 1.0, ..one(3.5e-3, 0.0, 1e12, 10e9) },
            Some(Compression::Zstd) => one(1.85e-3, 0.62e-3, 120e9, 0.9e9),
            Some(Compression::Lz4) => one(1.0e-3, 3.2e-3, 130e9, 4e9),
            Some(Compression::Gzip | Compression::Zlib) => one(1.0e-3, 2.3e-3, 125e9, 0.26e9),
            Some(Compression::Blosc(BloscCodec::Zstd, _)) => blosc(2.5e-3, 0.25e-3, 200e9, 1.4e9),
            Some(Compression::Blosc(BloscCodec::Zlib, _)) => blosc(1.5e-3, 0.5e-3, 90e9, 0.4e9),
            Some(Compression::Blosc(..)) => blosc(1.5e-3, 0.65e-3, 300e9, 6.4e9),
        }
    }

    /// Returns the rates for the chunks of `chain`; `None`: the GPU doesn't decode them.
    pub fn of_chain(chain: Option<&Chain>) -> Self {
        match chain {
            None => Self::of(None),
            Some(chain) => chain.image_format().map_or_else(|| Self::of(chain.compression()), Self::of_images),
        }
    }

    /// Returns those of JPEG images of 480 x 640 pixels (4:2:0, quality 90), and of JPEG 2000 tiles of 1024 x 1024 uint16
    /// (lossless).
    const fn of_images(format: ImageFormat) -> Self {
        const fn one(wave: f64, gpu: f64, chunks: f64, core: f64, ratio: f64) -> Rates {
            Rates { wave, wave_per_mib: 0.0, longest_mib: f64::MAX, gpu, chunks, core, ratio }
        }
        match format {
            ImageFormat::Jpeg => one(2e-3, 23e9, f64::MAX, 0.4e9, 0.2),
            ImageFormat::Jpeg2k => one(12e-3, 1.1e9, 650.0, 0.011e9, 0.5),
        }
    }

    /// Returns how long waves take with chunks of `decoded` decoded bytes.
    pub fn time(&self, decoded: usize) -> WaveTime {
        let latency = self.wave + self.wave_per_mib * (decoded as f64 / f64::from(1 << 20)).min(self.longest_mib);
        WaveTime { latency, gpu: self.gpu.min(self.chunks * decoded.max(1) as f64) }
    }

    /// Returns the decoded bytes per second of `threads` threads of the CPU, for batches on a GPU.
    pub fn on_cpu(&self, threads: usize) -> f64 {
        threads as f64 / (1.0 / self.core + 1.0 / CORE_OVERHEAD)
    }

    /// Returns the typical encoded bytes for each decoded byte.
    pub const fn ratio(&self) -> f64 {
        self.ratio
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_decode_as_fast_as_measured() {
        const BLOSC_LZ4: Compression = Compression::Blosc(BloscCodec::Lz4, 0);
        for (compression, measured) in [(Compression::Zstd, 5.7e9), (BLOSC_LZ4, 10.6e9)] {
            let expected = Rates::of(Some(compression)).on_cpu(16);
            assert!((0.85..1.15).contains(&(expected / measured)), "{compression:?}: {expected:.2e}");
        }
    }

    #[test]
    fn waves_take_as_long_as_measured() {
        let ms = |compression, bytes: usize| 1e3 * Rates::of(Some(compression)).time(bytes).latency;
        assert!((4.1..4.7).contains(&ms(Compression::Zstd, 4_152_960)));
        assert!((1.7..2.1).contains(&ms(Compression::Zstd, 64 << 10)));
        assert!((13.0..15.0).contains(&ms(Compression::Lz4, 4_152_960)));
        assert!((9.8..11.0).contains(&ms(Compression::Gzip, 4_152_960)));
        let blosc = Compression::Blosc(BloscCodec::Lz4, 0);
        assert!((3.8..4.5).contains(&ms(blosc, 4_152_960)));
        assert!((3.8..4.5).contains(&ms(blosc, 154 << 20)), "a large chunk has more streams");
    }
}
