//! Tests the decoder of LZ4 and Snappy blocks, run by all lanes of a warp, with other implementations and with damaged
//! blocks.

use dali_zarr_kernels::StreamKind::{self, Lz4, Snappy, Stored};
use dali_zarr_kernels::host;
use proptest::prelude::*;

const CORRUPT: i32 = 12;
const TOO_LONG: i32 = 15;
const TRUNCATED: i32 = 20;

/// Memory between two inaccessible pages. It ends where the second one begins. It begins where the first one ends only
/// if its length is a multiple of the page size.
struct Fenced {
    map: *mut u8,
    room: usize,
    begin: usize,
    len: usize,
}

/// Returns the size of a memory page.
fn page() -> usize {
    // SAFETY: it only returns a number.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap()
}

impl Fenced {
    fn new(bytes: &[u8]) -> Self {
        let page = page();
        let room = bytes.len().div_ceil(page).max(1) * page;
        // SAFETY: new memory of this size, whose inner part is made accessible before it is used.
        let map = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let map = libc::mmap(std::ptr::null_mut(), room + 2 * page, libc::PROT_NONE, flags, -1, 0);
            assert_ne!(map, libc::MAP_FAILED);
            let inner = map.cast::<u8>().add(page);
            assert_eq!(libc::mprotect(inner.cast(), room, libc::PROT_READ | libc::PROT_WRITE), 0);
            map.cast::<u8>()
        };
        let mut fenced = Self { map, room, begin: page + room - bytes.len(), len: bytes.len() };
        fenced.before().fill(0xa7);
        fenced.bytes().copy_from_slice(bytes);
        fenced
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: within the accessible part.
        unsafe { std::slice::from_raw_parts_mut(self.map.add(self.begin), self.len) }
    }

    /// Returns the accessible bytes before the memory.
    fn before(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.map.add(page()), self.room - self.len) }
    }
}

impl Drop for Fenced {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this size.
        unsafe { libc::munmap(self.map.cast(), self.room + 2 * page()) };
    }
}

/// Decodes in fenced memory. A write before the output fails the test; an access after input or output ends the
/// process.
fn decode(kind: StreamKind, stream: &[u8], room: usize, ring: u32) -> Result<Vec<u8>, i32> {
    let (mut input, mut output) = (Fenced::new(stream), Fenced::new(&vec![0x5c; room]));
    let result = host::stream(kind, input.bytes(), output.bytes(), ring);
    assert!(output.before().iter().all(|b| *b == 0xa7), "written before the output");
    assert!(input.bytes() == stream, "the input was written to");
    result.map(|n| output.bytes()[..n].to_vec())
}

fn noise(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed.wrapping_mul(2).wrapping_add(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> 11
    }
}

/// Makes data of several kinds: noise, runs, text, smooth floats, byte planes of smooth floats, noise that repeats over
/// a long distance.
fn sample(kind: u8, len: usize, seed: u64) -> Vec<u8> {
    let mut next = noise(seed);
    let float = |i: usize| ((i as f32 * 0.013).sin() * 300.0 + 280.0).to_le_bytes();
    match kind % 6 {
        0 => (0..len).map(|_| next() as u8).collect(),
        1 => (0..len).map(|i| (i / 700) as u8).collect(),
        2 => {
            let words = ["wind ", "temperature ", "at ", "two ", "metres ", "of geopotential "];
            let mut text: Vec<u8> = Vec::new();
            while text.len() < len {
                text.extend(words[next() as usize % words.len()].bytes());
            }
            text.truncate(len);
            text
        }
        3 => (0..len).map(|i| float(i / 4 / 3)[i % 4]).collect(),
        4 => (0..len).map(|i| float(i)[3 - (4 * i / len.max(1)).min(3)]).collect(),
        _ => {
            let block: Vec<u8> = (0..6000).map(|_| next() as u8).collect();
            (0..len).map(|i| if next().is_multiple_of(300) { 1 } else { block[i % 6000] }).collect()
        }
    }
}

fn encode(kind: StreamKind, data: &[u8]) -> Vec<u8> {
    match kind {
        Lz4 => lz4_flex::block::compress(data),
        Snappy => snap::raw::Encoder::new().compress_vec(data).unwrap(),
        Stored => data.to_vec(),
    }
}

/// Decodes a stream with other implementations; `None` if they refuse it.
fn reference(kind: StreamKind, stream: &[u8], room: usize) -> Option<Vec<u8>> {
    match kind {
        Lz4 => lz4_flex::block::decompress(stream, room).ok(),
        Snappy => (snap::raw::decompress_len(stream).ok()? <= room)
            .then(|| snap::raw::Decoder::new().decompress_vec(stream).ok())?,
        Stored => Some(stream.to_vec()),
    }
}

#[test]
fn decodes_every_kind_and_length() {
    for kind in [Lz4, Snappy, Stored] {
        for ring in [4096, 8192] {
            for data in 0..6 {
                for len in [0usize, 1, 2, 3, 15, 16, 17, 31, 33, 100, 511, 513, 1024, 1500, 4095, 5000, 40_000, 300_001]
                {
                    let data = sample(data, len, 7);
                    let stream = encode(kind, &data);
                    let what = format!("{kind:?}, ring {ring}, {len} bytes");
                    assert!(decode(kind, &stream, len, ring).as_deref() == Ok(&data[..]), "{what}");
                    assert!(decode(kind, &stream, len + 77, ring).as_deref() == Ok(&data[..]), "{what}, more room");
                    if len > 0 {
                        assert_eq!(decode(kind, &stream, len - 1, ring), Err(TOO_LONG), "{what}, less room");
                    }
                }
            }
        }
    }
}

/// Makes an LZ4 block of sequences, each with literals, offset and length of the match. `last` are literals without a
/// match.
fn lz4_block(sequences: &[(&[u8], u16, usize)], last: &[u8]) -> Vec<u8> {
    fn more(block: &mut Vec<u8>, mut length: usize) {
        while length >= 255 {
            block.push(255);
            length -= 255;
        }
        block.push(length as u8);
    }
    let mut block = Vec::new();
    let matches = sequences.iter().map(|(literals, offset, length)| (*literals, Some((*offset, length - 4))));
    for (literals, copy) in matches.chain([(last, None)]) {
        let length = copy.map_or(0, |(_, length)| length);
        block.push((literals.len().min(15) << 4 | length.min(15)) as u8);
        if literals.len() >= 15 {
            more(&mut block, literals.len() - 15);
        }
        block.extend_from_slice(literals);
        if let Some((offset, length)) = copy {
            block.extend(offset.to_le_bytes());
            if length >= 15 {
                more(&mut block, length - 15);
            }
        }
    }
    block
}

#[test]
fn matches_of_every_offset_and_length_repeat_what_was_there() {
    let seed: Vec<u8> = (0..=255).collect();
    for offset in (1..40).chain([63, 64, 127, 128, 129, 200, 255, 256]) {
        for length in [4, 5, 17, 18, 19, 31, 32, 33, 127, 128, 500, 511, 512, 513, 1300, 20_000] {
            let block = lz4_block(&[(&seed, offset, length), (b"x", 1, 4), (b"", 3, 18)], b"end of it");
            let expected = lz4_flex::block::decompress(&block, 400 + length).unwrap();
            for ring in [4096, 8192] {
                assert!(decode(Lz4, &block, expected.len(), ring).as_ref() == Ok(&expected), "{offset} {length}");
            }
        }
    }
}

#[test]
fn short_sequences_may_overlap_their_own_literals() {
    let mut sequences: Vec<(&[u8], u16, usize)> = vec![(b"0123456789abcdefghijklmnopqrstuvwxyz", 30, 4)];
    for literals in 0..15 {
        for length in 4..19 {
            for offset in [1, 2, 3, 5, 7, 11, 13, 17, 19, 31] {
                sequences.push((&b"ABCDEFGHIJKLMNO"[..literals], offset, length));
            }
        }
    }
    let block = lz4_block(&sequences, b"that was all of them, and this is long enough to be the end");
    let expected = lz4_flex::block::decompress(&block, 1 << 20).unwrap();
    assert!(decode(Lz4, &block, expected.len(), 4096).as_ref() == Ok(&expected));
}

#[test]
fn errors_say_what_is_wrong() {
    let long = [b'x'; 100];
    let good = lz4_block(&[(b"abcd", 4, 8)], &long);
    let length = decode(Lz4, &good, 1000, 4096).unwrap().len();
    assert_eq!(length, 112);
    assert_eq!(decode(Lz4, &good, length - 1, 4096), Err(TOO_LONG));
    assert_eq!(decode(Lz4, &lz4_block(&[(b"abcd", 5, 8)], &long), 1000, 4096), Err(CORRUPT), "before the first byte");
    assert_eq!(decode(Lz4, &lz4_block(&[(b"abcd", 0, 8)], &long), 1000, 4096), Err(CORRUPT), "an offset of zero");
    assert_eq!(decode(Lz4, &[], 10, 4096), Err(TRUNCATED));
    assert_eq!(decode(Lz4, &[0], 10, 4096), Ok(vec![]));
    assert_eq!(decode(Lz4, &[0x10], 10, 4096), Err(TRUNCATED));
    assert_eq!(decode(Lz4, &[&[0xf0][..], &[255; 3000]].concat(), 10, 4096), Err(TRUNCATED), "a length without an end");
    assert_eq!(decode(Lz4, &[0x14, 7, 1, 0], 100, 4096), Err(TRUNCATED), "no literals behind the last match");
    assert_eq!(decode(Snappy, &[], 10, 4096), Err(TRUNCATED));
    assert_eq!(decode(Snappy, &[0], 10, 4096), Ok(vec![]));
    assert_eq!(decode(Snappy, &[3, 0, 7], 10, 4096), Err(TRUNCATED), "fewer bytes than it says");
    assert_eq!(decode(Snappy, &[1, 4, 7, 7], 10, 4096), Err(TOO_LONG), "more bytes than it says");
    assert_eq!(decode(Snappy, &[255; 9], 10, 4096), Err(CORRUPT), "a length of too many bytes");
    assert_eq!(decode(Snappy, &[11, 0, 7, 2, 0, 0], 20, 4096), Err(CORRUPT), "an offset of zero");
    assert_eq!(decode(Snappy, &[5, 0xfc, 255, 255, 255, 255], 20, 4096), Err(TOO_LONG));
    assert_eq!(decode(Stored, &[1, 2, 3], 2, 4096), Err(TOO_LONG));
}

#[test]
fn every_cut_of_a_block_is_seen_or_shorter() {
    let data = sample(2, 2500, 5);
    for kind in [Lz4, Snappy] {
        let stream = encode(kind, &data);
        for len in 0..stream.len() {
            let found = decode(kind, &stream[..len], data.len(), 4096);
            assert!(found.as_ref().map_or(true, |found| found.len() < data.len()), "{kind:?} cut to {len}");
            assert_eq!(found.ok(), reference(kind, &stream[..len], data.len()));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12_000))]

    /// A damaged stream gives the same bytes as the other implementation, or an error if that one fails.
    #[test]
    fn damage_has_the_same_outcome_as_elsewhere(
        snappy: bool,
        ring in prop_oneof![Just(4096u32), Just(8192)],
        (data, len, seed) in (0u8..6, prop_oneof![3 => 1usize..1500, 1 => 1usize..12_000], any::<u64>()),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..5),
        cut in prop_oneof![3 => Just(usize::MAX), 1 => 0usize..2000],
        room in prop_oneof![2 => Just(None), 1 => (0usize..20_000).prop_map(Some)],
    ) {
        let kind = if snappy { Snappy } else { Lz4 };
        let mut stream = encode(kind, &sample(data, len, seed));
        for (at, value) in changes {
            let at = at.index(stream.len());
            stream[at] = value;
        }
        stream.truncate(cut);
        let room = room.unwrap_or(len);
        let found = decode(kind, &stream, room, ring);
        prop_assert_eq!(found.ok(), reference(kind, &stream, room));
    }

    #[test]
    fn random_bytes_end(snappy: bool, bytes in prop::collection::vec(any::<u8>(), 0..400), room in 0usize..3000) {
        let kind = if snappy { Snappy } else { Lz4 };
        prop_assert_eq!(decode(kind, &bytes, room, 4096).ok(), reference(kind, &bytes, room));
    }

    /// Sequences with literals and matches of any length and distance, which encoders seldom write.
    #[test]
    fn any_sequences_are_decoded(
        parts in prop::collection::vec((0usize..40, any::<u16>(), prop_oneof![4 => 4usize..40, 1 => 4usize..3000]), 0..60),
        long in prop_oneof![3 => 0usize..100, 1 => 0usize..9000],
        last in 0usize..60,
    ) {
        let literals = sample(0, 9100, parts.len() as u64);
        let mut produced = long + 8;
        let mut sequences: Vec<(&[u8], u16, usize)> = vec![(&literals[..long + 8], 1, 4)];
        produced += 4;
        for (n, offset, length) in &parts {
            produced += n;
            // Half of the offsets are short, so that matches overlap themselves.
            let reach = if offset % 2 == 0 { produced.min(40) } else { produced.min(65_535) };
            sequences.push((&literals[..*n], (usize::from(*offset) % reach + 1).min(65_535) as u16, *length));
            produced += length;
        }
        let block = lz4_block(&sequences, &literals[..last]);
        let expected = lz4_flex::block::decompress(&block, produced + last).ok();
        prop_assert_eq!(decode(Lz4, &block, produced + last, 4096).ok(), expected.clone());
        prop_assert_eq!(decode(Lz4, &block, produced + last, 8192).ok(), expected);
    }
}
