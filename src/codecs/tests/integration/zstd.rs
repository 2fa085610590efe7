//! Tests the decoder of zstd frames with the reference implementation's encoder and decoder, and with damaged frames.

use dali_zarr_codecs::zstd::plan;
use dali_zarr_kernels::host;
use dali_zarr_kernels::zstd::{EXECUTE, Wave};
use zstd_safe::{CCtx, CParameter};

/// A generator of random numbers, the same in each run.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

const KINDS: u8 = 9;

/// Makes data of one of several kinds.
fn sample(kind: u8, len: usize, seed: u64) -> Vec<u8> {
    let mut noise = Noise(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    match kind % KINDS {
        // Temperatures as GRIB packs them: 16 bits of a smooth field behind a reference.
        0 | 1 => {
            let (mut value, mut slope) = (20_000f64, 0f64);
            let floats: Vec<u8> = (0..len.div_ceil(4))
                .flat_map(|_| {
                    slope = slope * 0.98 + (noise.below(2001) as f64 - 1000.0) * 0.02;
                    value = (value + slope).clamp(0.0, 65_535.0);
                    (215.437f32 + value.round() as f32 / 512.0).to_le_bytes()
                })
                .collect();
            if kind % KINDS != 1 {
                return floats[..len].to_vec();
            }
            // The same, byte-shuffled.
            let n = floats.len() / 4;
            (0..len).map(|i| floats[i % n * 4 + i / n]).collect()
        }
        2 => (0..len).map(|_| b"the quick brown fox jumps over"[noise.below(30)]).collect(),
        3 => (0..len).map(|i| (i / 1000) as u8).collect(),
        4 => (0..len).map(|_| noise.next() as u8).collect(),
        // Repeats of earlier data, from near and far, with new bytes between them.
        5 => {
            let mut data: Vec<u8> = Vec::with_capacity(len + 300);
            while data.len() < len {
                for _ in 0..noise.below(6) {
                    data.push(noise.below(16) as u8);
                }
                let back = 1 + if noise.below(2) == 0 { noise.below(60) } else { noise.below(60_000) };
                let most = if noise.below(20) == 0 { 3000 } else { 20 };
                for _ in 0..3 + noise.below(most) {
                    data.push(data.len().checked_sub(back).map_or(7, |at| data[at]));
                }
            }
            data.truncate(len);
            data
        }
        // Records: the same offset again and again.
        6 => (0..len).map(|i| if i % 24 < 20 { (i % 24) as u8 } else { noise.next() as u8 & 15 }).collect(),
        // Few values, which get short codes; then a stretch of other values.
        7 => (0..len)
            .map(|i| if i % 40_000 < 30_000 { noise.below(40).min(3) as u8 } else { noise.below(250) as u8 })
            .collect(),
        _ => vec![0; len],
    }
}

/// Options of the encoder.
#[derive(Clone, Copy, Debug)]
struct How {
    level: i32,
    checksum: bool,
    content_size: bool,
    long: bool,
}

const PLAIN: How = How { level: 3, checksum: false, content_size: true, long: false };

fn compress(data: &[u8], how: How) -> Vec<u8> {
    let mut context = CCtx::create();
    context.set_parameter(CParameter::CompressionLevel(how.level)).unwrap();
    context.set_parameter(CParameter::ChecksumFlag(how.checksum)).unwrap();
    context.set_parameter(CParameter::ContentSizeFlag(how.content_size)).unwrap();
    context.set_parameter(CParameter::EnableLongDistanceMatching(how.long)).unwrap();
    let mut out = Vec::with_capacity(zstd_safe::compress_bound(data.len()));
    context.compress2(&mut out, data).unwrap();
    out
}

/// Decodes a frame into an output between guard bytes. The error is the plan's reason, or the status if it isn't 0.
fn decode(frame: &[u8], len: usize) -> Result<Vec<u8>, String> {
    let plan = plan(frame, len)?;
    const GUARD: usize = 64;
    // Each allocation is exactly as long as its content, so that a sanitizer sees every access outside it.
    let frame = frame.to_vec();
    let mut out = vec![0xa7u8; len + 2 * GUARD];
    let mut wave = Wave::default();
    wave.push(&plan, frame.as_ptr() as u64, out[GUARD..].as_mut_ptr() as u64);
    // SAFETY: the plan is of these bytes, and the output has room for `len` bytes behind the guard.
    let results = unsafe { host::zstd(&wave) };
    assert!(out[..GUARD].iter().chain(&out[GUARD + len..]).all(|b| *b == 0xa7), "written outside the output");
    match results[..] {
        [(n, 0)] => {
            assert_eq!(n, len as u64);
            Ok(out[GUARD..GUARD + len].to_vec())
        }
        [(n, status)] => {
            assert!(n <= len as u64);
            Err(format!("status {status}"))
        }
        _ => unreachable!("one frame has one result"),
    }
}

fn check(data: &[u8], how: How, what: &str) {
    let frame = compress(data, how);
    match decode(&frame, data.len()) {
        Ok(found) => assert!(found == data, "{what}, {} bytes, {how:?}: other bytes", data.len()),
        Err(reason) => panic!("{what}, {} bytes, {how:?}: {reason}", data.len()),
    }
}

#[test]
fn every_level_and_kind() {
    for level in [-5, -1, 1, 2, 3, 4, 5, 6, 9, 12, 15, 17, 19] {
        for kind in 0..KINDS {
            let len = if level > 9 { 140_000 } else { 400_000 };
            let how = How { level, checksum: level % 2 == 0, content_size: level % 3 != 0, long: false };
            check(&sample(kind, len, 5), how, &format!("kind {kind}"));
        }
    }
}

#[test]
fn every_small_length() {
    for len in 1..=300 {
        for kind in 0..KINDS {
            let how = How { level: [1, 3, 19][len % 3], checksum: len % 2 == 0, ..PLAIN };
            check(&sample(kind, len, len as u64), how, &format!("kind {kind}"));
        }
    }
}

#[test]
fn chunk_sizes() {
    for len in [65_535, 65_536, 65_537, 131_072, 131_073, 1 << 20, 4_152_960] {
        for kind in [0, 1, 3, 5, 6, 7] {
            check(&sample(kind, len, 3), PLAIN, &format!("kind {kind}"));
        }
    }
}

#[test]
fn long_distances() {
    let piece = sample(5, 300_000, 1);
    let mut data = piece.clone();
    data.extend(sample(4, 3_000_000, 2));
    data.extend(&piece);
    check(&data, How { long: true, ..PLAIN }, "a repeated piece");
}

#[test]
fn blocks_that_repeat_tables_and_offsets() {
    // Blocks of one kind follow each other, so that later ones repeat the tables of earlier ones.
    for seed in 0..6 {
        let mut data = Vec::new();
        for part in 0..8 {
            data.extend(sample([6, 6, 0, 7, 7, 5, 1, 1][part], 90_000 + 7919 * seed, seed as u64 + 1));
        }
        for level in [1, 3, 7] {
            check(&data, How { level, checksum: true, ..PLAIN }, "parts");
        }
    }
}

#[test]
fn many_frames_in_a_wave() {
    let samples: Vec<Vec<u8>> = (0..40).map(|i| sample(i as u8, 1000 + 5000 * i, i as u64)).collect();
    let frames: Vec<Vec<u8>> = samples.iter().map(|data| compress(data, PLAIN)).collect();
    let mut outputs: Vec<Vec<u8>> = samples.iter().map(|data| vec![1; data.len()]).collect();
    let mut wave = Wave::default();
    for ((frame, data), out) in frames.iter().zip(&samples).zip(&mut outputs) {
        wave.push(&plan(frame, data.len()).unwrap(), frame.as_ptr() as u64, out.as_mut_ptr() as u64);
    }
    let threads = |multiprocessors| EXECUTE[wave.execute_kernel(multiprocessors)].1;
    assert_eq!(threads(132), 1024);
    assert_eq!(threads(19), 256);
    assert_eq!(threads(4), 128);
    assert_eq!(threads(1), 128);
    // SAFETY: plans, frames and outputs belong together, and all of them are alive.
    let results = unsafe { host::zstd(&wave) };
    for ((out, data), result) in outputs.iter().zip(&samples).zip(results) {
        assert_eq!(result, (data.len() as u64, 0));
        assert!(out == data);
    }
}

#[test]
fn what_the_host_refuses() {
    let data = sample(0, 5000, 1);
    let frame = compress(&data, PLAIN);
    let reason = |frame: &[u8], len: usize| plan(frame, len).unwrap_err();
    assert!(reason(&frame, 4999).contains("another content size"));
    assert!(reason(&frame, 0).contains("empty"));
    assert!(reason(&[], 10).contains("ends within its header"));
    assert!(reason(&[&frame[..], &frame[..]].concat(), 5000).contains("more than one"));
    assert!(reason(&[0x50, 0x2a, 0x4d, 0x18, 0, 0, 0, 0], 10).contains("does not begin"));
    for len in 0..frame.len() {
        assert!(plan(&frame[..len], 5000).is_err(), "cut to {len} of {}", frame.len());
    }
    let mut dictionary = frame.clone();
    dictionary[4] |= 1;
    assert!(reason(&dictionary, 5000).contains("dictionary"));
    let unsized_frame = compress(&data, How { content_size: false, ..PLAIN });
    assert!(plan(&unsized_frame, 5000).is_ok());
    assert_eq!(decode(&unsized_frame, 4900).unwrap_err(), "status 15");
    assert_eq!(decode(&unsized_frame, 5100).unwrap_err(), "status 20");
    // The plan has the checksum, although the decoder doesn't verify it.
    let checked = compress(&data, How { checksum: true, ..PLAIN });
    let expected = u32::from_le_bytes(checked[checked.len() - 4..].try_into().unwrap());
    assert_eq!(plan(&checked, 5000).unwrap().checksum, Some(expected));
}

#[test]
fn the_workspace_is_bounded() {
    for kind in 0..KINDS {
        for level in [-5, 1, 3, 19] {
            for len in [100, 70_000, 500_000] {
                let frame = compress(&sample(kind, len, 9), How { level, ..PLAIN });
                let plan = plan(&frame, len).unwrap();
                assert!(plan.workspace as usize <= len * 8 / 3 + 32 * plan.blocks.len());
            }
        }
    }
}

/// A damaged frame gives the same bytes as the reference, or an error. If the reference fails, it must give an error.
#[test]
fn damage_has_the_same_outcome_as_elsewhere() {
    let mut noise = Noise(77);
    let (mut accepted, mut refused, mut stricter) = (0, 0, 0);
    for round in 0..25_000u32 {
        let kind = noise.below(usize::from(KINDS)) as u8;
        let len = match round % 50 {
            0 => 140_000 + noise.below(200_000),
            1..5 => 1 + noise.below(40),
            _ => 1 + noise.below(6000),
        };
        let data = sample(kind, len, u64::from(round) + 1);
        let how = How { level: noise.below(12) as i32 - 3, checksum: false, content_size: round % 3 != 0, long: false };
        let mut frame = compress(&data, how);
        for _ in 0..1 + noise.below(3) {
            // The first bytes hold headers and tables, the last ones the marks of bit streams.
            let at = match noise.below(3) {
                0 => 4 + noise.below(frame.len().min(80) - 4),
                1 => frame.len() - 1 - noise.below(frame.len().min(20)),
                _ => noise.below(frame.len()),
            };
            match noise.below(3) {
                0 => frame[at] ^= 1 << noise.below(8),
                1 => frame[at] = noise.next() as u8,
                _ => frame[at] = frame[noise.below(frame.len())],
            }
        }
        let mut expected = vec![0u8; len];
        let reference = zstd_safe::decompress(&mut expected[..], &frame);
        match (decode(&frame, len), reference) {
            (Ok(found), Ok(n)) => {
                assert!(n == len && found == expected, "round {round}: other bytes than the reference");
                accepted += 1;
            }
            (Ok(_), Err(code)) => {
                panic!("round {round}: the reference says {}", zstd_safe::get_error_name(code));
            }
            (Err(_), Ok(n)) if n == len => stricter += 1,
            (Err(_), _) => refused += 1,
        }
    }
    assert!(accepted > 1000 && refused > 1000, "{accepted} accepted, {refused} refused");
    // Some frames only the reference decodes: it doesn't check that a stream of literals is used up at its end, and it
    // has features that the GPU's decoder refuses.
    assert!(stricter < 1000, "{stricter} frames were refused that the reference decodes");
}

#[test]
fn warps_of_the_entropy_kernel_stand_together() {
    use dali_zarr_kernels::zstd::{Grid, entropy, entropy_shared};
    const SEQUENCES: u32 = 46_080;
    let grid = |blocks, warps: u32, shared| Grid { blocks, threads: 32 * warps, shared };
    // A warp works on the sequences of 16 compressed blocks, or on the literals of eight.
    assert_eq!(entropy(0, 227 << 10), grid(0, 1, SEQUENCES));
    assert_eq!(entropy(9, 227 << 10), grid(1 + 1, 2, 2 * SEQUENCES));
    assert_eq!(
        entropy(81, 227 << 10),
        grid(2 + 2, 6, 227 << 10),
        "six warps of sequences and eleven of literals: five or six fit"
    );
    assert_eq!(entropy(81, 99 << 10), grid(3 + 6, 2, 99 << 10));
    assert_eq!(entropy(81, 64 << 10), grid(6 + 11, 1, 64 << 10));
    assert_eq!(entropy(8000, 1 << 20), grid(63 + 125, 8, 8 * SEQUENCES));
    assert_eq!(entropy_shared(16 << 10), SEQUENCES, "a warp needs this much");
    assert_eq!(entropy_shared(227 << 10), 227 << 10);
    assert_eq!(entropy_shared(1 << 20), 8 * SEQUENCES);
}

/// The second stream of literals has only two bits, fewer than the three literals that the decoder reads before its
/// output is aligned.
#[test]
fn a_stream_of_literals_that_ends_at_once_is_damage() {
    let frame = [
        0x28, 0xb5, 0x2f, 0xfd, 0, 0, 0xdd, 0, 0, 0x46, 0xc1, 5, 0x8a, 0x12, 0x34, 0x56, 0x78, 0x9a, 0xb0, 7, 0, 1, 0,
        1, 0, 0, 0, 0, 0, 0, 0, 0x80, 0x80, 0x80, 0x80, 0,
    ];
    assert!(plan(&frame, 20).is_ok(), "the host sees nothing wrong");
    assert!(decode(&frame, 20).is_err());
}

#[test]
fn random_bytes_end() {
    let mut noise = Noise(5);
    for _ in 0..3000 {
        // A valid header, then one compressed block of random bytes.
        let size = 1 + noise.below(400);
        let len = 1 + noise.below(3000);
        let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0xa0];
        frame.extend((len as u32).to_le_bytes());
        frame.extend(&((size as u32) << 3 | 5).to_le_bytes()[..3]);
        frame.extend((0..size).map(|_| noise.next() as u8));
        let mut expected = vec![0u8; len];
        let reference = zstd_safe::decompress(&mut expected[..], &frame);
        if let Ok(found) = decode(&frame, len) {
            assert_eq!(reference, Ok(len));
            assert!(found == expected);
        }
    }
}
