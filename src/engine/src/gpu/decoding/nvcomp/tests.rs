//! nvCOMP gets the frames of real encoders. Most damaged frames don't reach it, and no bytes make the check panic.

use super::check_frame_for_nvcomp;
use dali_zarr_codecs::streams::{SplitChunk, StreamCodec, split};
use dali_zarr_codecs::testing::{SHUFFLES, blosc};
use dali_zarr_codecs::testing::{sample, zstd};
use dali_zarr_codecs::zstd::plan;
use dali_zarr_codecs::{BloscCodec, Chain, Compression};
use proptest::prelude::*;
use zarrs::array::codec::BloscCompressor;

/// Plans and checks a frame, as is done before nvCOMP gets it.
fn check(frame: &[u8], decoded_len: usize) -> Result<(), &'static str> {
    check_frame_for_nvcomp(frame, &plan(frame, decoded_len)?)
}

#[test]
fn frames_of_every_level_are_accepted() {
    for level in (-50..0).step_by(7).chain(0..20) {
        for kind in 0..5 {
            let data = sample(kind, if level > 9 { 150_000 } else { 300_000 });
            for (checksum, size) in [(false, true), (true, true), (true, false)] {
                let frame = zstd(&data, level, checksum, size);
                check(&frame, data.len()).unwrap_or_else(|e| panic!("level {level}, kind {kind}, size {size}: {e}"));
            }
        }
    }
}

#[test]
fn frames_of_every_length_are_accepted() {
    for len in [1, 5, 100, 255, 256, 4096, 65_791, 131_072, 700_001] {
        for kind in 0..5 {
            for level in [1, 3, 7] {
                let frame = zstd(&sample(kind, len), level, false, true);
                check(&frame, len).unwrap_or_else(|e| panic!("{len} bytes of kind {kind}, level {level}: {e}"));
                check(&frame, 0).unwrap_err();
                check(&frame, len + 1).unwrap_err();
            }
        }
    }
}

/// Checks the frames in a chunk of Blosc. Returns their number.
fn check_blosc(data: &[u8], shuffle: usize, typesize: usize, level: u8, blocksize: usize) -> usize {
    let chunk = blosc(data, BloscCompressor::Zstd, SHUFFLES[shuffle], typesize, level, blocksize);
    let chain = Chain::from(Compression::Blosc(BloscCodec::Zstd, 0));
    let mut split_chunk = SplitChunk::default();
    if let Err(reason) = split(&chain, &chunk, data.len(), &mut split_chunk) {
        assert!(blocksize > 0 && blocksize < 2048 && reason.contains("shorter streams"), "{reason}");
        return 0;
    }
    let frames: Vec<_> = split_chunk.streams.iter().filter(|s| s.codec == Some(StreamCodec::Zstd)).collect();
    for frame in &frames {
        check_frame_for_nvcomp(&chunk[frame.start..frame.start + frame.len], frame.plan.as_ref().unwrap())
            .unwrap_or_else(|e| panic!("{} B, shuffle {shuffle}, level {level}, {blocksize}: {e}", data.len()));
    }
    frames.len()
}

#[test]
fn frames_inside_blosc_are_accepted() {
    let mut frames = 0;
    for shuffle in 0..3 {
        for level in 0..10 {
            frames += check_blosc(&sample(1, 300_000), shuffle, 4, level, 0);
            frames += check_blosc(&sample(4, 300_002), shuffle, 2, level, 0);
        }
        for typesize in [1, 2, 3, 4, 8, 16, 17, 255] {
            for (kind, len) in [(1, 70_000 + typesize), (4, 6_400 * typesize), (0, 40_001), (3, 1029)] {
                frames += check_blosc(&sample(kind, len), shuffle, typesize, 5, 0);
            }
            frames += check_blosc(&sample(4, 50_003), shuffle, typesize, 5, 4096);
        }
        for len in [1, 2, 3, 15, 127, 128, 129, 511, 512, 1023, 1024, 65_535, 65_537, 600_004] {
            for blocksize in [0, 128, 1000, 8192, 65_536] {
                frames += check_blosc(&sample(1, len), shuffle, 4, 5, blocksize);
            }
        }
    }
    assert!(frames > 1000, "only {frames} frames were checked");
}

#[test]
fn a_frame_that_is_cut_is_refused() {
    for kind in 0..5 {
        let data = sample(kind, 140_000);
        for frame in [zstd(&data, 3, false, true), zstd(&data, 3, true, false)] {
            for len in (0..frame.len()).step_by((frame.len() / 997).max(1)) {
                check(&frame[..len], data.len()).unwrap_err();
            }
        }
    }
}

/// At least half of the single changed bits near the start of a frame without a checksum must be found.
#[test]
fn most_damage_to_tables_and_lengths_is_seen() {
    let data = sample(4, 131_072);
    let frame = zstd(&data, 3, false, true);
    let (mut seen, mut all) = (0, 0);
    for at in 0..frame.len().min(60) {
        for bit in 0..8 {
            let mut bad = frame.clone();
            bad[at] ^= 1 << bit;
            all += 1;
            seen += usize::from(check(&bad, data.len()).is_err());
        }
    }
    assert!(seen * 2 > all, "only {seen} of {all} changed bits in the first bytes were seen");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..600), len in 0usize..100_000) {
        let _ = check(&bytes, len);
    }

    #[test]
    fn no_change_makes_it_panic(
        kind in 0u8..5,
        len in 1usize..20_000,
        level in 1i32..10,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
        cuts: bool,
    ) {
        let mut frame = zstd(&sample(kind, len), level, level % 2 == 0, level % 3 != 0);
        for (at, value) in changes {
            // Half of the changes are near the beginning, where headers and tables are.
            let range = if value % 2 == 0 { frame.len() } else { frame.len().min(40) };
            let at = at.index(range);
            frame[at] = value;
        }
        if cuts {
            frame.truncate(cut.index(frame.len()));
        }
        let _ = check(&frame, len);
    }
}
