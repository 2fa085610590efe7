//! For tests of this crate and of the crates above it: data of several kinds, and encoders.

use std::borrow::Cow;
use std::io::Write;

use flate2::write::{GzEncoder, ZlibEncoder};
use zarrs::array::BytesToBytesCodecTraits;
use zarrs::array::CodecOptions;
use zarrs::array::codec::{BloscCodec, BloscCompressor, BloscShuffleMode};
use zstd_safe::{CCtx, CParameter};

/// The ways in which Blosc permutes bytes.
pub const SHUFFLES: [BloscShuffleMode; 3] =
    [BloscShuffleMode::NoShuffle, BloscShuffleMode::Shuffle, BloscShuffleMode::BitShuffle];

/// Returns data of one of five kinds: noise, smooth floats, text, runs, noisy int16.
pub fn sample(kind: u8, len: usize) -> Vec<u8> {
    let mut state = u64::from(kind) * 977 + len as u64 + 1;
    let mut noise = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    match kind % 5 {
        0 => (0..len).map(|_| noise() as u8).collect(),
        1 => (0..len.div_ceil(4)).flat_map(|i| ((i as f32 * 0.01).sin() * 300.0).to_le_bytes()).take(len).collect(),
        2 => (0..len).map(|_| b"the quick brown fox jumps "[(noise() % 26) as usize]).collect(),
        3 => (0..len).map(|i| (i / 1000) as u8).collect(),
        _ => (0..len.div_ceil(2))
            .flat_map(|i| ((i as u16 / 7).wrapping_add((noise() % 5) as u16)).to_le_bytes())
            .take(len)
            .collect(),
    }
}

/// Compresses to a zstd frame.
pub fn zstd(data: &[u8], level: i32, checksum: bool, content_size: bool) -> Vec<u8> {
    let mut context = CCtx::create();
    context.set_parameter(CParameter::CompressionLevel(level)).unwrap();
    context.set_parameter(CParameter::ChecksumFlag(checksum)).unwrap();
    context.set_parameter(CParameter::ContentSizeFlag(content_size)).unwrap();
    let mut out = Vec::with_capacity(zstd_safe::compress_bound(data.len()));
    context.compress2(&mut out, data).unwrap();
    out
}

/// Compresses to a member of gzip.
pub fn gzip(data: &[u8], level: u32) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::new(level));
    encoder.write_all(data).unwrap();
    encoder.finish().unwrap()
}

/// Compresses to a stream of zlib.
pub fn zlib(data: &[u8], level: u32) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), flate2::Compression::new(level));
    encoder.write_all(data).unwrap();
    encoder.finish().unwrap()
}

/// Compresses as LZ4 of numcodecs does.
pub fn lz4(data: &[u8]) -> Vec<u8> {
    let mut out = (data.len() as u32).to_le_bytes().to_vec();
    out.extend(lz4_flex::block::compress(data));
    out
}

/// Compresses with c-blosc.
pub fn blosc(
    data: &[u8],
    codec: BloscCompressor,
    shuffle: BloscShuffleMode,
    typesize: usize,
    level: u8,
    blocksize: usize,
) -> Vec<u8> {
    let level = level.try_into().unwrap();
    let codec = BloscCodec::new(codec, level, Some(blocksize), shuffle, Some(typesize)).unwrap();
    codec.encode(Cow::Borrowed(data), &CodecOptions::default()).unwrap().into_owned()
}
