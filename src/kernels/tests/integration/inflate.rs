//! Tests the decoder of deflate streams with another implementation's encoder and decoder, and with damaged streams.

use dali_zarr_kernels::{INFLATE, host, inflate_kernel};
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;
use flate2::{Compression, Decompress, FlushDecompress, Status};
use miniz_oxide::deflate::core::{
    CompressionStrategy, CompressorOxide, TDEFLFlush, TDEFLStatus, compress, create_comp_flags_from_zip_params,
};
use proptest::prelude::*;
use std::io::{Read, Write};

const CORRUPT: i32 = 12;
const TOO_LONG: i32 = 15;
const TRUNCATED: i32 = 20;

/// Decodes with as many threads as a kernel, and again with few threads and small buffers. Both results must be equal.
fn inflate(stream: &[u8], out: &mut [u8]) -> Result<usize, i32> {
    let result = host::inflate(stream, out, false);
    let mut other = vec![0xa7; out.len()];
    assert_eq!(host::inflate(stream, &mut other, true), result);
    if let Ok(n) = result {
        assert!(other[..n] == out[..n]);
    }
    result
}

fn sample(kind: u8, len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut noise = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 20) as u8
    };
    (0..len)
        .map(|i| match kind % 4 {
            0 => noise(),
            1 => (i / 700) as u8,
            2 => b"the quick brown fox "[usize::from(noise()) % 20],
            _ => ((i as f32 * 0.02).sin() * 300.0).to_le_bytes()[i % 4],
        })
        .collect()
}

fn deflate(data: &[u8], level: u32) -> Vec<u8> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::new(level));
    encoder.write_all(data).unwrap();
    encoder.finish().unwrap()
}

/// Encodes with a given strategy, which flate2's encoder doesn't take.
fn deflate_by(data: &[u8], level: u8, strategy: CompressionStrategy) -> Vec<u8> {
    let flags = create_comp_flags_from_zip_params(level.into(), -15, strategy as i32);
    let mut out = vec![0; data.len() * 2 + 1000];
    let (status, read, written) = compress(&mut CompressorOxide::new(flags), data, &mut out, TDEFLFlush::Finish);
    assert_eq!((status, read), (TDEFLStatus::Done, data.len()));
    out.truncate(written);
    out
}

#[test]
fn decodes_every_strategy() {
    use CompressionStrategy::{Default, Filtered, Fixed, HuffmanOnly, RLE};
    for strategy in [Default, Filtered, Fixed, HuffmanOnly, RLE] {
        for kind in 0..4 {
            for len in [1usize, 258, 5000, 200_000] {
                let data = sample(kind, len, 3);
                let mut out = vec![0; len];
                assert_eq!(inflate(&deflate_by(&data, 6, strategy), &mut out), Ok(len), "{strategy:?} kind {kind}");
                assert!(out == data, "{strategy:?} kind {kind} length {len}");
            }
        }
    }
}

/// Segments decode to nothing, to less than a batch and to more, by turns. Matches reach into other batches, and
/// overlap themselves at every distance.
#[test]
fn batches_of_all_sizes() {
    let mut data = Vec::new();
    for period in 1..200 {
        data.extend(sample(0, period, period as u64).repeat(3000 / period));
        data.extend(sample(2, period, 5));
    }
    data.extend(std::iter::repeat_n(9, 400_000));
    data.extend_from_within(380_000..440_000);
    for level in [1, 6, 9] {
        let mut out = vec![0; data.len()];
        assert_eq!(inflate(&deflate(&data, level), &mut out), Ok(data.len()), "level {level}");
        assert!(out == data, "level {level}");
    }
}

#[test]
fn decodes_every_level_and_length() {
    for level in 0..10 {
        for kind in 0..4 {
            for len in [0usize, 1, 2, 257, 258, 259, 4096, 70_000, 300_000] {
                let data = sample(kind, len, 77);
                let mut out = vec![0; len];
                assert_eq!(inflate(&deflate(&data, level), &mut out), Ok(len), "level {level} kind {kind}");
                assert!(out == data, "level {level} kind {kind} length {len}");
            }
        }
    }
}

#[test]
fn the_fewer_the_streams_the_more_threads_each_has() {
    let threads = |streams, shared: u32| INFLATE[inflate_kernel(streams, 132, shared << 10)].threads;
    let h100 = [1, 264, 265, 528, 100_000].map(|streams| threads(streams, 227));
    assert_eq!(h100, [512, 512, 256, 256, 256]);
    // On an A100 and an L40S, blocks of 256 threads would leave more threads idle. A T4 has no room for blocks of 512.
    assert_eq!([265, 100_000].map(|streams| threads(streams, 163)), [512; 2]);
    assert_eq!([1, 133, 100_000].map(|streams| threads(streams, 99)), [512; 3]);
    assert_eq!([0, 1, 100_000].map(|streams| threads(streams, 64)), [256; 3]);
}

#[test]
fn hand_made_streams() {
    let mut out = [0u8; 400];
    // A dynamic block whose first length repeats the one before, which there isn't; later ones lie behind the input.
    assert_eq!(inflate(&[0x05, 0x09, 0xa4, 0x20, 0x00], &mut out), Err(CORRUPT));
    // A fixed block: "a", a match of 258 at distance 1, the end (bits: 1 10000 as 01; codes of section 3.2.6).
    let fixed = [0x4b, 0x1c, 0x05, 0x00];
    let mut reference = Vec::new();
    DeflateDecoder::new(&fixed[..]).read_to_end(&mut reference).unwrap();
    assert_eq!(inflate(&fixed, &mut out), Ok(reference.len()));
    assert_eq!(out[..reference.len()], reference);
    assert_eq!(inflate(&[0x07], &mut out), Err(CORRUPT), "a reserved type");
    assert_eq!(inflate(&[], &mut out), Err(TRUNCATED));
    assert_eq!(inflate(&[1, 3, 0, 0xfc, 0xff, 7, 8, 9], &mut out), Ok(3));
    assert_eq!(inflate(&[1, 3, 0, 0xfc, 0xff, 7, 8], &mut out), Err(TRUNCATED));
    assert_eq!(inflate(&[1, 3, 0, 0xfd, 0xff, 7, 8, 9], &mut out), Err(CORRUPT));
    assert_eq!(inflate(&[1, 3, 0, 0xfc, 0xff, 7, 8, 9, 0], &mut out), Err(TRUNCATED), "bytes after the end");
    assert_eq!(inflate(&[1, 3, 0, 0xfc, 0xff, 7, 8, 9], &mut out[..2]), Err(TOO_LONG));
    // A fixed block that begins with a match.
    assert_eq!(inflate(&[0x03, 0x02, 0x00], &mut out), Err(CORRUPT));
}

#[test]
fn a_cut_in_the_lengths_of_codes_is_seen_as_one() {
    let data: Vec<u8> = (0..40_000u32).map(|i| ((i * i) >> 7) as u8 ^ (i >> 3) as u8).collect();
    let stream = deflate(&data, 9);
    let mut out = vec![0; data.len()];
    for len in 1..100 {
        assert_eq!(inflate(&stream[..len], &mut out), Err(TRUNCATED), "cut to {len}");
    }
}

#[test]
fn every_cut_is_seen() {
    let data = sample(2, 3000, 5);
    let stream = deflate(&data, 6);
    let mut out = vec![0; data.len()];
    for len in 0..stream.len() {
        assert!(inflate(&stream[..len], &mut out).is_err(), "cut to {len} of {}", stream.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    /// A damaged stream gives the same bytes as the other implementation, or an error if that one fails.
    #[test]
    fn damage_has_the_same_outcome_as_elsewhere(
        kind in 0u8..4,
        len in 1usize..6000,
        seed: u64,
        level in 0u32..10,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..5),
        room in 0usize..8000,
    ) {
        let mut stream = deflate(&sample(kind, len, seed), level);
        for (at, value) in changes {
            let at = at.index(stream.len());
            stream[at] = value;
        }
        // Guard bytes before and after the output.
        let mut out = vec![0xa7u8; room + 600];
        let found = inflate(&stream, &mut out[300..300 + room]);
        prop_assert!(out[..300].iter().chain(&out[300 + room..]).all(|b| *b == 0xa7));
        let mut reference = vec![0; room + 1];
        let mut decoder = Decompress::new(false);
        let outcome = decoder.decompress(&stream, &mut reference, FlushDecompress::Finish);
        let complete = matches!(outcome, Ok(Status::StreamEnd)) && decoder.total_in() == stream.len() as u64;
        let n = decoder.total_out() as usize;
        if complete && n <= room {
            prop_assert_eq!(found, Ok(n));
            prop_assert!(out[300..300 + n] == reference[..n]);
        } else {
            prop_assert!(found.is_err(), "found {:?}, elsewhere {:?}", found, outcome);
        }
    }

    #[test]
    fn random_bytes_end(bytes in prop::collection::vec(any::<u8>(), 0..300), room in 0usize..1000) {
        let mut out = vec![0; room];
        if let Ok(n) = inflate(&bytes, &mut out) {
            let mut reference = Vec::new();
            DeflateDecoder::new(&bytes[..]).read_to_end(&mut reference).unwrap();
            prop_assert_eq!(&reference[..], &out[..n]);
        }
    }
}
