//! What is fuzzed, as functions of bytes: the targets of cargo-fuzz call them with what it invents, and a test of the engine
//! (`src/engine/tests/integration/corpus.rs`) with what it found.
//!
//! An input is one byte that chooses a decoder, the decoded size as two little-endian bytes, and the encoded data. For
//! images the two bytes are the rows and the columns, and the first one also chooses the channels and the type.

use std::sync::OnceLock;

use dali_zarr_base::dtype::DType;
use dali_zarr_codecs::streams::{SplitChunk, split};
use dali_zarr_codecs::{BloscCodec, Chain, ChunkFormat, Compression, zstd};
use dali_zarr_kernels::zstd::{GOOD, Wave};
use dali_zarr_kernels::{StreamKind, host};
use serde_json::{Value, json};

/// The compressors of whole chunks that the GPU may decode.
const COMPRESSIONS: [Compression; 5] =
    [Compression::Zstd, Compression::Gzip, Compression::Zlib, Compression::Lz4, Compression::Blosc(BloscCodec::Lz4, 0)];

/// Splits an input into the choice, the decoded size and the data.
fn fields(input: &[u8]) -> Option<(usize, usize, &[u8])> {
    let (&[kind, low, high], data) = input.split_first_chunk::<3>()?;
    Some((kind.into(), u16::from_le_bytes([low, high]).into(), data))
}

/// Whatever the bytes are, what is given to the GPU lies within the chunk, and its outputs cover the decoded chunk once.
///
/// # Panics
/// If they don't.
pub fn open_chunk(input: &[u8]) {
    let Some((kind, len, chunk)) = fields(input) else { return };
    let len = len * 4;
    let packed = Chain::from(COMPRESSIONS[kind % COMPRESSIONS.len()]);
    let mut opened = SplitChunk::default();
    if split(&packed, chunk, len, &mut opened).is_err() {
        return;
    }
    let mut parts = opened.streams;
    parts.sort_by_key(|p| p.to);
    let mut end = 0;
    for part in &parts {
        assert!(part.start + part.len <= chunk.len());
        assert_eq!(part.to, end);
        end += part.decoded;
    }
    assert_eq!(end, len);
}

/// The formats that [`decode_chunk`] chooses from: each compressor, checksum and filter that has a decoder of its own, and
/// rows of them in which a decoder doesn't know how much comes out.
fn formats() -> &'static [ChunkFormat] {
    static FORMATS: OnceLock<Vec<ChunkFormat>> = OnceLock::new();
    FORMATS.get_or_init(|| {
        let bytes = || json!({"name": "bytes", "configuration": {"endian": "little"}});
        let raw = json!([{"id": 33, "preset": 6}]);
        let chains: [Value; 24] = [
            json!(["bytes", "zstd"]),
            json!(["bytes", "gzip"]),
            json!(["bytes", "numcodecs.zlib"]),
            json!(["bytes", "numcodecs.lz4"]),
            json!(["bytes", "blosc"]),
            json!(["bytes", "numcodecs.bz2"]),
            json!(["bytes", {"name": "numcodecs.lzma", "configuration": {"format": 1}}]),
            json!(["bytes", {"name": "numcodecs.lzma", "configuration": {"format": 2}}]),
            json!(["bytes", {"name": "numcodecs.lzma", "configuration": {"format": 3, "filters": raw}}]),
            json!(["bytes", "crc32c"]),
            json!(["bytes", "numcodecs.crc32", "numcodecs.adler32"]),
            json!(["bytes", "numcodecs.fletcher32", "numcodecs.jenkins_lookup3"]),
            json!(["bytes", {"name": "numcodecs.shuffle", "configuration": {"elementsize": 4}}, "numcodecs.zlib"]),
            json!(["bytes", "zstd", "zstd"]),
            json!(["bytes", "numcodecs.lz4", "gzip"]),
            json!(["bytes", "gzip", "numcodecs.lz4"]),
            json!(["bytes", "blosc", "numcodecs.zlib"]),
            json!(["bytes", "zstd", "blosc"]),
            json!(["bytes", "numcodecs.bz2", "numcodecs.bz2"]),
            json!(["bytes", {"name": "numcodecs.lzma", "configuration": {"format": 1}}, "numcodecs.lzma"]),
            json!(["bytes", "numcodecs.lzma", "zstd", "crc32c"]),
            json!([{"name": "numcodecs.delta", "configuration": {"dtype": "<i4", "astype": "<i2"}}, "bytes"]),
            json!([{"name": "numcodecs.quantize", "configuration": {"digits": 2, "dtype": "<f4"}}, "bytes", "blosc"]),
            json!(["bytes", "zstd", "crc32c"]),
        ];
        let format = |chain: &Value| {
            let list: Vec<Value> = chain
                .as_array()
                .into_iter()
                .flatten()
                .map(|c| if c == "bytes" { bytes() } else { c.clone() })
                .collect();
            let dtype = if chain.to_string().contains("quantize") { DType::F32 } else { DType::I32 };
            ChunkFormat::from_v3(&Value::from(list), dtype, 0, &[1 << 16])
                .unwrap_or_else(|e| panic!("{chain} is a format: {e}"))
        };
        chains.iter().map(format).collect()
    })
}

/// Whatever the bytes are, the CPU's decoders end in a value or an error.
///
/// # Panics
/// If one of them does.
pub fn decode_chunk(input: &[u8]) {
    let Some((kind, len, chunk)) = fields(input) else { return };
    let format = &formats()[kind % formats().len()];
    let mut out = vec![0; len * 4];
    let _ = format.decode(chunk, &[len as u64], &mut out);
}

/// Whatever the bytes are, the decoders of images end in a value or an error.
///
/// # Panics
/// If one of them does.
pub fn decode_image(input: &[u8]) {
    let Some((&[kind, height, width], data)) = input.split_first_chunk::<3>() else { return };
    const CODECS: [&str; 4] = ["imagecodecs_jpeg", "imagecodecs_png", "imagecodecs_webp", "imagecodecs_jpeg2k"];
    let channels = 1 + u64::from(kind >> 2 & 3);
    let (codec, dtype) = if kind >> 5 & 1 == 1 {
        ("imagecodecs_jpegxl", [DType::U8, DType::U16, DType::F16, DType::F32][usize::from(kind & 3)])
    } else {
        let deep = kind >> 4 & 1 == 1 && kind & 1 == 1;
        (CODECS[usize::from(kind & 3)], if deep { DType::U16 } else { DType::U8 })
    };
    let shape = [height.into(), width.into(), channels];
    let Ok(format) = ChunkFormat::from_v3(&json!([codec]), dtype, 0, &shape) else { return };
    let Ok(len) = format.decoded_bytes(&shape) else { return };
    let _ = format.decode(data, &shape, &mut vec![0; len]);
}

/// Whatever the bytes are, the GPU's decoders (their twins on the CPU, from the same source) stay within their buffers, and what
/// they decode is what other decoders make of it, where those take it.
///
/// # Panics
/// If it isn't.
pub fn decode_streams(input: &[u8]) {
    let Some((kind, room, stream)) = fields(input) else { return };
    // Whole words are read: a frame must lie in an allocation that ends at one.
    let mut padded = stream.to_vec();
    padded.resize(stream.len().next_multiple_of(8), 0);
    let mut out = vec![0; room.next_multiple_of(8)];
    let input = &padded[..stream.len()];
    let decoded = match kind % 4 {
        0 => host::inflate(input, &mut out[..room], kind & 4 != 0).ok(),
        1 => host::stream(StreamKind::Lz4, input, &mut out[..room], 4096).ok(),
        2 => host::stream(StreamKind::Snappy, input, &mut out[..room], 4096).ok(),
        _ => zstd::plan(input, room).ok().and_then(|plan| {
            let mut wave = Wave::default();
            wave.push(&plan, input.as_ptr() as u64, out.as_mut_ptr() as u64);
            // SAFETY: the plan is of these bytes, and the output has room for its capacity.
            let frames = unsafe { host::zstd(&wave) };
            assert_eq!(frames.len(), 1);
            (frames[0].1 == GOOD).then_some(frames[0].0 as usize)
        }),
    };
    let Some(decoded) = decoded else { return };
    assert!(decoded <= room);
    let mut other = vec![0; decoded];
    let taken = match kind % 4 {
        0 => {
            let mut inflate = flate2::Decompress::new(false);
            let status = inflate.decompress(input, &mut other, flate2::FlushDecompress::Finish);
            status.is_ok_and(|s| s == flate2::Status::StreamEnd) && inflate.total_out() == decoded as u64
        }
        1 => lz4_flex::block::decompress_into(input, &mut other).is_ok_and(|n| n == decoded),
        2 => snap::raw::Decoder::new().decompress(input, &mut other).is_ok_and(|n| n == decoded),
        _ => Compression::Zstd.decode(input, &mut other).is_ok(),
    };
    assert!(!taken || other == out[..decoded], "other values than another decoder's");
}
