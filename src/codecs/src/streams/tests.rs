//! Streams of real encoders go to the GPU. Damaged streams go to the CPU, or have a checksum where the damage can't be
//! seen in the headers. No bytes make the code panic.

use super::{SplitChunk, StreamCodec, Verdict, inspect, split};
use crate::stream::Checksum;
use crate::testing::{gzip, lz4, sample, zlib, zstd};
use crate::{ChunkFormat, Compression};
use dali_zarr_base::dtype::DType;
use dali_zarr_kernels::{Layout, Shuffle};
use proptest::prelude::*;

/// Finds the stream inside filters and checksums, and the order of its decoded bytes.
#[test]
fn seals_and_shuffles_are_opened() {
    let codecs = serde_json::json!([
        "bytes", {"name": "numcodecs.shuffle", "configuration": {"elementsize": 3}}, "numcodecs.zlib",
        "numcodecs.crc32", "crc32c"
    ]);
    let data = sample(1, 3000);
    let shuffled: Vec<u8> = (0..3).flat_map(|j| data.iter().skip(j).step_by(3).copied()).collect();
    let stream = zlib(&shuffled, 6);
    let mut chunk = [crc32fast::hash(&stream).to_le_bytes().as_slice(), &stream].concat();
    chunk.extend(crc32c::crc32c(&chunk).to_le_bytes());
    let format = ChunkFormat::from_v3(&codecs, DType::U8, 0, &[3000]).unwrap();
    let mut out = vec![0; data.len()];
    format.decode(&chunk, &[3000], &mut out).unwrap();
    assert_eq!(out, data);

    let packed = format.gpu_chain().unwrap();
    let mut split_chunk = SplitChunk::default();
    split(packed, &chunk, 3000, &mut split_chunk).unwrap();
    let [part] = split_chunk.streams.as_slice() else { panic!("{split_chunk:?}") };
    // zlib's header has two bytes, its checksum four; CRC-32 before it has four.
    assert_eq!((part.start, part.len, part.to, part.decoded), (4 + 2, stream.len() - 6, 0, 3000));
    assert_eq!(part.codec, Some(StreamCodec::Deflate));
    let decoded = &mut vec![0; 3000];
    assert_eq!(dali_zarr_kernels::host::inflate(&chunk[part.start..part.start + part.len], decoded, false), Ok(3000));
    assert_eq!(*decoded, shuffled);
    let Layout { nbytes, blocksize, shuffle, typesize, .. } = split_chunk.layout;
    assert_eq!((nbytes, blocksize, shuffle, typesize), (3000, 3000, Shuffle::Byte as u8, 3));

    for at in 0..chunk.len() {
        let mut wrong = chunk.clone();
        wrong[at] ^= 1;
        assert!(split(packed, &wrong, 3000, &mut split_chunk).is_err(), "{at}");
    }
    assert!(split(packed, &chunk, 3001, &mut split_chunk).is_err(), "no whole elements");

    let plain = ChunkFormat::from_v3(&serde_json::json!(["bytes", "crc32c"]), DType::U8, 0, &[5]).unwrap();
    let chunk = [b"abcde".as_slice(), &crc32c::crc32c(b"abcde").to_le_bytes()].concat();
    split(plain.gpu_chain().unwrap(), &chunk, 5, &mut split_chunk).unwrap();
    assert_eq!((split_chunk.streams[0].codec, split_chunk.streams[0].start, split_chunk.streams[0].len), (None, 0, 5));
    assert!(split(plain.gpu_chain().unwrap(), &chunk, 4, &mut split_chunk).is_err());
}

fn reason(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Cpu(reason) => reason,
        Verdict::Gpu { .. } => panic!("expected a verdict for the CPU, found {verdict:?}"),
    }
}

const LENGTHS: [usize; 9] = [1, 5, 100, 255, 256, 4096, 65_791, 131_072, 700_001];

#[test]
fn every_zstd_level_goes_to_the_gpu() {
    for level in [-50, -5, -1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19] {
        for kind in 0..5 {
            let data = sample(kind, if level > 9 { 150_000 } else { 300_000 });
            for (checksum, size) in [(false, true), (true, true), (true, false)] {
                let frame = zstd(&data, level, checksum, size);
                let verdict = inspect(Compression::Zstd, &frame, data.len());
                let expected = checksum
                    .then(|| u32::from_le_bytes(frame[frame.len() - 4..].try_into().unwrap()))
                    .map(Checksum::Xxh64Low);
                let all = Verdict::Gpu { start: 0, len: frame.len(), checksum: expected };
                assert_eq!(verdict, all, "level {level}, kind {kind}, content size {size}");
                if size {
                    assert!(matches!(inspect(Compression::Zstd, &frame, data.len() + 1), Verdict::Cpu(_)));
                }
            }
        }
    }
}

#[test]
fn every_length_goes_to_the_gpu() {
    for len in LENGTHS {
        for kind in 0..5 {
            let data = sample(kind, len);
            for level in [1, 3, 7] {
                for (codec, compressed) in [
                    (Compression::Zstd, zstd(&data, level, false, true)),
                    (Compression::Gzip, gzip(&data, level as u32)),
                    (Compression::Zlib, zlib(&data, level as u32)),
                    (Compression::Lz4, lz4(&data)),
                ] {
                    let verdict = inspect(codec, &compressed, len);
                    assert!(matches!(verdict, Verdict::Gpu { .. }), "{codec:?} {len} {kind} {level}: {verdict:?}");
                    assert!(matches!(inspect(codec, &compressed, 0), Verdict::Cpu(_)));
                    if codec != Compression::Zlib {
                        // A wrong decoded length is refused. For zlib only the checksum after decoding finds it.
                        let other = if len == 1 { len + 1 } else { len - 1 };
                        assert!(matches!(inspect(codec, &compressed, other), Verdict::Cpu(_)), "{codec:?} {len}");
                    }
                }
            }
        }
    }
}

#[test]
fn stored_deflate_is_walked_to_its_end() {
    let data = sample(0, 200_000);
    for (codec, compressed) in [(Compression::Gzip, gzip(&data, 0)), (Compression::Zlib, zlib(&data, 0))] {
        assert!(matches!(inspect(codec, &compressed, data.len()), Verdict::Gpu { .. }));
        let text = reason(inspect(codec, &compressed[..compressed.len() / 2], data.len()));
        assert!(text.contains("stored block") || text.contains("trailer"), "{text}");
        assert!(matches!(inspect(codec, &compressed, data.len() + 1), Verdict::Cpu(_)));
    }
}

#[test]
fn the_part_for_the_gpu_and_the_checksums() {
    let data = sample(1, 10_000);
    let z = zlib(&data, 6);
    let tail: [u8; 4] = z[z.len() - 4..].try_into().unwrap();
    let expected =
        Verdict::Gpu { start: 2, len: z.len() - 6, checksum: Some(Checksum::Adler32(u32::from_be_bytes(tail))) };
    assert_eq!(inspect(Compression::Zlib, &z, data.len()), expected);
    let l = lz4(&data);
    let expected = Verdict::Gpu { start: 4, len: l.len() - 4, checksum: None };
    assert_eq!(inspect(Compression::Lz4, &l, data.len()), expected);
    let g = gzip(&data, 6);
    let crc: [u8; 4] = g[g.len() - 8..g.len() - 4].try_into().unwrap();
    let expected =
        Verdict::Gpu { start: 10, len: g.len() - 18, checksum: Some(Checksum::Crc32(u32::from_le_bytes(crc))) };
    assert_eq!(inspect(Compression::Gzip, &g, data.len()), expected);
}

#[test]
fn what_is_not_one_plain_frame_goes_to_the_cpu() {
    let data = sample(1, 50_000);
    let frame = zstd(&data, 3, false, true);
    let twice = [&frame[..], &frame].concat();
    assert!(reason(inspect(Compression::Zstd, &twice, data.len())).contains("more than one zstd frame"));
    let skippable = [&[0x50, 0x2a, 0x4d, 0x18, 1, 0, 0, 0, 9][..], &frame].concat();
    assert!(reason(inspect(Compression::Zstd, &skippable, data.len())).contains("does not begin"));
    let mut dictionary = frame.clone();
    dictionary[4] |= 1;
    assert!(reason(inspect(Compression::Zstd, &dictionary, data.len())).contains("dictionary"));
    let two_members = [gzip(&data[..25_000], 6), gzip(&data[25_000..], 6)].concat();
    assert!(reason(inspect(Compression::Gzip, &two_members, data.len())).contains("several members"));
    let mut hashed = gzip(&data, 6);
    hashed[3] = 2;
    assert!(reason(inspect(Compression::Gzip, &hashed, data.len())).contains("checksum of its own"));
    let mut preset = zlib(&data, 6);
    preset[1] = 0x20 | (31 - ((u16::from(preset[0]) << 8 | 0x20) % 31) as u8);
    assert!(reason(inspect(Compression::Zlib, &preset, data.len())).contains("dictionary"));
}

#[test]
fn optional_fields_of_gzip_are_skipped() {
    let data = sample(1, 5_000);
    let plain = gzip(&data, 6);
    for (flags, fields) in
        [(4u8, &b"\x03\x00abc"[..]), (8, b"name\0"), (16, b"comment\0"), (28, b"\x00\x00n\0c\0"), (1, b"")]
    {
        let mut member = [&plain[..10], fields, &plain[10..]].concat();
        member[3] = flags;
        match inspect(Compression::Gzip, &member, data.len()) {
            Verdict::Gpu { start, len, .. } => assert_eq!(member[start..start + len], plain[10..plain.len() - 8]),
            verdict => panic!("flags {flags}: {verdict:?}"),
        }
        let cut = inspect(Compression::Gzip, &member[..12.min(10 + fields.len())], data.len());
        assert!(matches!(cut, Verdict::Cpu(_)));
    }
}

#[test]
fn a_frame_that_is_cut_never_reaches_the_gpu() {
    for kind in 0..5 {
        let data = sample(kind, 140_000);
        for (codec, compressed) in [
            (Compression::Zstd, zstd(&data, 3, false, true)),
            (Compression::Zstd, zstd(&data, 3, true, false)),
            (Compression::Gzip, gzip(&data, 5)),
        ] {
            let step = (compressed.len() / 997).max(1);
            for len in (0..compressed.len()).step_by(step) {
                let verdict = inspect(codec, &compressed[..len], data.len());
                assert!(matches!(verdict, Verdict::Cpu(_)), "{codec:?} kind {kind} cut to {len}: {verdict:?}");
            }
        }
    }
}

fn codecs() -> impl Strategy<Value = Compression> {
    prop_oneof![Just(Compression::Zstd), Just(Compression::Gzip), Just(Compression::Zlib), Just(Compression::Lz4)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_bytes_make_it_panic(codec in codecs(), bytes in prop::collection::vec(any::<u8>(), 0..600), len in 0usize..100_000) {
        let verdict = inspect(codec, &bytes, len);
        if let Verdict::Gpu { start, len, .. } = verdict {
            prop_assert!(start + len <= bytes.len());
        }
    }

    #[test]
    fn no_change_makes_it_panic(
        codec in codecs(),
        kind in 0u8..5,
        len in 1usize..20_000,
        level in 1u32..10,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
        cuts: bool,
    ) {
        let data = sample(kind, len);
        let mut bytes = match codec {
            Compression::Zstd => zstd(&data, level as i32, level % 2 == 0, level % 3 != 0),
            Compression::Gzip => gzip(&data, level),
            Compression::Zlib => zlib(&data, level),
            Compression::Lz4 => lz4(&data),
            Compression::Blosc(..) => unreachable!("it is no stream"),
        };
        for (at, value) in changes {
            // Half of the changes are near the beginning, where headers and tables are.
            let range = if value % 2 == 0 { bytes.len() } else { bytes.len().min(40) };
            let at = at.index(range);
            bytes[at] = value;
        }
        if cuts {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Verdict::Gpu { start, len, .. } = inspect(codec, &bytes, data.len()) {
            prop_assert!(start + len <= bytes.len());
        }
    }
}
