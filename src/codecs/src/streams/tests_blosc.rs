//! Chunks of c-blosc, split into streams, decode to the original bytes. No input makes streams that leave their bounds.

use crate::blosc::streams::{BloscStream, BloscStreams, Inner, max_streams, split};
use crate::testing::{SHUFFLES, blosc, sample};
use crate::{BloscCodec as Inside, Chain, Compression};
use dali_zarr_kernels::{Layout, Shuffle, StreamKind, host};
use proptest::prelude::*;
use std::borrow::Cow;
use zarrs::array::codec::{BloscCodec, BloscCompressor, BloscShuffleMode};
use zarrs::array::{BytesRepresentation, BytesToBytesCodecTraits, CodecOptions};

const CODECS: [BloscCompressor; 6] = [
    BloscCompressor::LZ4,
    BloscCompressor::LZ4HC,
    BloscCompressor::Snappy,
    BloscCompressor::Zlib,
    BloscCompressor::Zstd,
    BloscCompressor::BloscLZ,
];
const TYPESIZES: [usize; 13] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 255];

/// Decompresses with c-blosc. `None` if it refuses the chunk.
fn unblosc(chunk: &[u8], len: usize) -> Option<Vec<u8>> {
    let codec = BloscCodec::new(BloscCompressor::LZ4, 1u8.try_into().unwrap(), None, SHUFFLES[0], Some(1)).unwrap();
    let size = BytesRepresentation::FixedSize(len as u64);
    codec.decode(Cow::Borrowed(chunk), &size, &CodecOptions::default()).ok().map(Cow::into_owned)
}

/// Decodes a stream to `len` bytes with another project's decoder. `None` if that fails.
fn reference(codec: Inner, stream: &[u8], len: usize) -> Option<Vec<u8>> {
    let mut out = vec![0; len];
    let n = match codec {
        Inner::Lz4 => lz4_flex::block::decompress_into(stream, &mut out).ok()?,
        Inner::Snappy => match snap::raw::decompress_len(stream) {
            Ok(n) if n == len => snap::raw::Decoder::new().decompress(stream, &mut out).ok()?,
            _ => return None,
        },
        Inner::Zlib => {
            let mut decoder = flate2::Decompress::new(true);
            let end = decoder.decompress(stream, &mut out, flate2::FlushDecompress::Finish).ok()?;
            (end == flate2::Status::StreamEnd).then_some(decoder.total_out() as usize)?
        }
        Inner::Zstd => zstd_safe::decompress(&mut out[..], stream).ok()?,
    };
    (n == len).then_some(out)
}

/// Decodes every stream to its place, with [`reference`]. LZ4, Snappy and stored streams are also decoded by this
/// project's code, which must give the same.
fn decode(split_chunk: &BloscStreams, chunk: &[u8], len: usize) -> Option<Vec<u8>> {
    let mut out = vec![0; len];
    for part in &split_chunk.streams {
        let stream = &chunk[part.src_offset as usize..][..part.src_len as usize];
        let to = &mut out[part.dst_offset as usize..][..part.dst_len as usize];
        let (kind, expected) = match split_chunk.codec {
            Some(codec) if !part.raw => {
                let kind = match codec {
                    Inner::Lz4 => Some(StreamKind::Lz4),
                    Inner::Snappy => Some(StreamKind::Snappy),
                    Inner::Zlib | Inner::Zstd => None,
                };
                (kind, reference(codec, stream, to.len()))
            }
            _ => (Some(StreamKind::Stored), Some(stream.to_vec())),
        };
        if let Some(kind) = kind {
            let whole = host::stream(kind, stream, to, 4096) == Ok(to.len());
            assert_eq!(whole.then_some(&to[..]), expected.as_deref(), "{part:?}");
        }
        to.copy_from_slice(&expected?);
    }
    Some(out)
}

/// Undoes the shuffle of decoded bytes, block by block and bit by bit.
fn unshuffle(data: &[u8], layout: Layout) -> Vec<u8> {
    if layout == Layout::NONE {
        return data.to_vec();
    }
    assert_eq!(layout.nbytes as usize, data.len());
    let size = usize::from(layout.typesize);
    let mut out = Vec::with_capacity(data.len());
    for block in data.chunks(layout.blocksize as usize) {
        let n = block.len() / size;
        let bits = layout.shuffle == Shuffle::Bit as u8;
        if bits && !n.is_multiple_of(8) {
            out.extend_from_slice(block);
            continue;
        }
        for i in 0..n {
            out.extend((0..size).map(|j| match bits {
                false => block[j * n + i],
                true => (0..8).map(|b| (block[(8 * j + b) * (n / 8) + i / 8] >> (i % 8) & 1) << b).sum(),
            }));
        }
        out.extend_from_slice(&block[n * size..]);
    }
    out
}

/// Checks that inputs lie in the chunk, that outputs are side by side, and that there aren't too many streams.
fn check_bounds(split_chunk: &BloscStreams, chunk: &[u8], len: usize) {
    assert!(split_chunk.streams.len() <= max_streams(len));
    let mut at = 0;
    for &BloscStream { src_offset, src_len, dst_offset, dst_len, raw } in &split_chunk.streams {
        assert!(src_len > 0 && dst_len > 0 && src_offset as usize + src_len as usize <= chunk.len());
        assert_eq!((dst_offset, raw), (at, src_len == dst_len));
        at += dst_len;
    }
    assert_eq!(at as usize, len);
    let Layout { nbytes, blocksize, typesize, .. } = split_chunk.layout;
    assert!(split_chunk.layout == Layout::NONE || (nbytes as usize == len && blocksize >= 1 && typesize >= 1));
}

/// Reads the headers of every stream of a chunk, as is done before the GPU gets it.
fn walk(chunk: &[u8], len: usize) -> Result<(), &'static str> {
    let packed = Chain::from(Compression::Blosc(Inside::Zstd, 0));
    super::split(&packed, chunk, len, &mut super::SplitChunk::default())
}

/// Compresses `data` with c-blosc, then splits, inspects, decodes and unshuffles the chunk.
fn check(data: &[u8], codec: BloscCompressor, shuffle: BloscShuffleMode, typesize: usize, level: u8, blocksize: usize) {
    let chunk = blosc(data, codec, shuffle, typesize, level, blocksize);
    let what =
        format!("{codec:?} {shuffle:?} typesize {typesize} level {level} blocks of {blocksize}, {} B", data.len());
    let plain_copy = chunk[2] & 2 != 0;
    let split_chunk = match split(&chunk, data.len()) {
        Err(reason) if matches!(codec, BloscCompressor::BloscLZ) && !plain_copy => {
            return assert!(reason.contains("BloscLZ"), "{what}: {reason}");
        }
        // Tiny blocks, which c-blosc was told to make, give too many streams.
        Err(reason) if blocksize > 0 && blocksize < 2048 => {
            return assert!(reason.contains("shorter streams"), "{what}: {reason}");
        }
        Err(reason) => panic!("{what}: {reason}"),
        Ok(split_chunk) => split_chunk,
    };
    check_bounds(&split_chunk, &chunk, data.len());
    walk(&chunk, data.len()).unwrap_or_else(|reason| panic!("{what}: {reason}"));
    let decoded = decode(&split_chunk, &chunk, data.len()).unwrap_or_else(|| panic!("{what}: does not decode"));
    assert!(unshuffle(&decoded, split_chunk.layout) == data, "{what}: {:?}", split_chunk.layout);
}

#[test]
fn every_compressor_shuffle_and_typesize_is_opened() {
    for codec in CODECS {
        for shuffle in SHUFFLES {
            for typesize in TYPESIZES {
                for (kind, len) in [(1, 70_000 + typesize), (4, 6_400 * typesize), (0, 40_001), (3, 1029)] {
                    check(&sample(kind, len), codec, shuffle, typesize, 5, 0);
                }
                check(&sample(4, 50_003), codec, shuffle, typesize, 5, 4096);
            }
        }
    }
}

#[test]
fn every_level_and_many_lengths_are_opened() {
    for codec in CODECS {
        for level in 0..10 {
            check(&sample(1, 300_000), codec, SHUFFLES[1], 4, level, 0);
            check(&sample(4, 300_002), codec, SHUFFLES[2], 2, level, 0);
        }
        for len in [1, 2, 3, 15, 127, 128, 129, 511, 512, 1023, 1024, 65_535, 65_537, 600_004] {
            for shuffle in SHUFFLES {
                for blocksize in [0, 128, 1000, 8192, 65_536] {
                    check(&sample(1, len), codec, shuffle, 4, 5, blocksize);
                }
            }
        }
    }
}

#[test]
fn a_plain_copy_and_a_field_of_era5_have_the_plans_that_the_format_gives_them() {
    let data = sample(1, 4096);
    let copy = split(&blosc(&data, BloscCompressor::Zstd, SHUFFLES[1], 4, 0, 0), 4096).unwrap();
    let all = BloscStream { src_offset: 16, src_len: 4096, dst_offset: 0, dst_len: 4096, raw: true };
    assert_eq!(copy, BloscStreams { codec: None, streams: vec![all], layout: Layout::NONE });
    let field = sample(1, 721 * 1440 * 4);
    let split_chunk = split(&blosc(&field, BloscCompressor::LZ4, SHUFFLES[1], 4, 5, 0), field.len()).unwrap();
    let layout =
        Layout { nbytes: 721 * 1440 * 4, blocksize: 512 << 10, shuffle: Shuffle::Byte as u8, typesize: 4, reserved: 0 };
    assert_eq!(
        (split_chunk.codec, split_chunk.layout, split_chunk.streams.len()),
        (Some(Inner::Lz4), layout, 7 * 4 + 1)
    );
    assert_eq!((split_chunk.streams[5].dst_len, split_chunk.streams[28].dst_len), (128 << 10, 482_944));
}

#[test]
fn what_the_gpu_can_not_decode_says_why() {
    let data = sample(1, 20_000);
    let good = blosc(&data, BloscCompressor::LZ4, SHUFFLES[1], 4, 5, 8192);
    let with = |at: usize, value: &[u8]| {
        let mut chunk = good.clone();
        chunk[at..at + value.len()].copy_from_slice(value);
        split(&chunk, data.len()).unwrap_err()
    };
    assert!(with(0, &[3]).contains("version of the format"));
    assert!(with(1, &[2]).contains("version of the compressor"));
    assert!(with(2, &[good[2] | 4]).contains("Blosc 2"));
    assert!(with(2, &[good[2] | 8]).contains("version of the format"));
    assert!(with(2, &[good[2] | 0xe0]).contains("unknown compressor"));
    assert!(with(2, &[good[2] & 0x1f]).contains("BloscLZ"));
    assert!(with(2, &[good[2] | 2]).contains("plain copy"));
    assert!(with(3, &[0]).contains("a size that it can't have"));
    assert!(with(3, &[7]).contains("streams of one length"));
    assert!(with(4, &[1]).contains("chunk's length"));
    assert!(with(8, &[0; 4]).contains("a size that it can't have"));
    assert!(with(8, &[255; 4]).contains("a size that it can't have"));
    assert!(with(8, &[1, 0, 0, 0]).contains("shorter streams"));
    assert!(with(12, &[1]).contains("encoded chunk"));
    assert!(with(16, &[255; 4]).contains("outside"));
    assert!(with(16, &(good.len() as u32 - 3).to_le_bytes()).contains("outside"));
    let first = u32::from_le_bytes(good[16..20].try_into().unwrap()) as usize;
    assert!(with(first, &[0; 4]).contains("outside"));
    assert!(with(first, &[255; 4]).contains("outside"));
    assert!(with(first, &i32::MAX.to_le_bytes()).contains("outside"));
    assert!(split(&good[..15], data.len()).unwrap_err().contains("too short"));
    assert!(split(&good[..good.len() - 1], data.len()).unwrap_err().contains("encoded chunk"));
    assert!(split(&good, data.len() + 1).unwrap_err().contains("chunk's length"));
    assert!(split(&[], 0).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn chunks_of_any_shape_are_opened(
        kind in 0u8..5,
        len in 1usize..80_000,
        (codec, shuffle) in (0..CODECS.len(), 0..3usize),
        typesize in prop_oneof![1usize..20, 1usize..256],
        level in 0u8..10,
        blocksize in prop_oneof![Just(0), 128usize..20_000],
    ) {
        check(&sample(kind, len), CODECS[codec], SHUFFLES[shuffle], typesize, level, blocksize);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    /// A damaged chunk is refused, or its streams stay in bounds. If they decode, and c-blosc decodes the chunk too,
    /// both give the same bytes.
    #[test]
    fn damage_stays_in_bounds(
        kind in 0u8..5,
        len in 1usize..3000,
        (codec, shuffle) in (0..5usize, 0..3usize),
        typesize in 1usize..10,
        blocksize in prop_oneof![Just(0), 128usize..2000],
        header in prop::collection::vec((0usize..64, any::<u8>()), 0..3),
        anywhere in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        cut in prop_oneof![4 => Just(usize::MAX), 1 => 0usize..3000],
        repair: bool,
    ) {
        let mut chunk = blosc(&sample(kind, len), CODECS[codec], SHUFFLES[shuffle], typesize, 5, blocksize);
        let n = chunk.len();
        for (at, value) in header {
            chunk[at % n] = value;
        }
        for (at, value) in anywhere {
            chunk[at.index(n)] = value;
        }
        chunk.truncate(cut);
        if repair && chunk.len() >= 16 {
            let n = chunk.len() as u32;
            chunk[12..16].copy_from_slice(&n.to_le_bytes());
        }
        if let Ok(split_chunk) = split(&chunk, len) {
            check_bounds(&split_chunk, &chunk, len);
            if walk(&chunk, len).is_ok() && let Some(decoded) = decode(&split_chunk, &chunk, len) {
                let expected = unblosc(&chunk, len);
                prop_assert!(expected.is_none_or(|e| e == unshuffle(&decoded, split_chunk.layout)));
            }
        }
    }

    #[test]
    fn random_bytes_are_refused_or_stay_in_bounds(
        tail in prop::collection::vec(any::<u8>(), 0..200),
        (flags, typesize, len, blocksize) in (any::<u8>(), any::<u8>(), 1u32..5000, 1u32..5000),
    ) {
        let size = tail.len() as u32 + 16;
        let mut chunk = vec![2, 1, flags & !8, typesize];
        for field in [len, blocksize, size] {
            chunk.extend(field.to_le_bytes());
        }
        chunk.extend(tail.iter().enumerate().map(|(i, b)| if i % 4 == 0 { *b } else { 0 }));
        if let Ok(split_chunk) = split(&chunk, len as usize) {
            check_bounds(&split_chunk, &chunk, len as usize);
        }
    }
}
