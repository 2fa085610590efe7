//! Zstandard frames, RFC 8878. Written by: zarr's `zstd` codec (v3's default), numcodecs' Zstd. Decoded on the GPU by
//! nvCOMP if that is asked for; the kernels of this project have a walk of their own, `dali_zarr_kernels::zstd_plan`.
//!
//! Walked: the frame header, the chain of blocks, in each compressed block the literals' and the sequences' section with
//! their tables, the lengths of all of them, and the checksum's place.

use super::entropy::{self, Huffman};
use crate::codec::stream::{Checksum, Stream, Walk, bytes};

const MAGIC: u32 = 0xfd2f_b528;
/// Of a block, decoded or compressed.
const MAX_BLOCK: usize = 128 << 10;
/// The largest window that the reference decoder takes without being asked to.
const MAX_WINDOW: u64 = 128 << 20;

pub(in crate::codec) fn inspect(data: &[u8], decoded_len: usize) -> Walk<Stream> {
    let header = frame_header(data, decoded_len)?;
    let mut at = header.size;
    let mut state = BlockWalk { max_block: header.max_block, huffman: None, sequence_tables: false };
    // The decoded length is known only between bounds, since the lengths of matches are entropy-coded.
    let (mut least, mut most) = (0usize, 0usize);
    loop {
        let raw: [u8; 3] = bytes(data, at).ok_or("its zstd frame ends before its last block")?;
        let raw = u32::from_le_bytes([raw[0], raw[1], raw[2], 0]);
        let size = (raw >> 3) as usize;
        at += 3;
        if size > header.max_block {
            return Err("a block of its zstd frame is larger than its window allows");
        }
        let stored = if (raw >> 1) & 3 == 1 { 1 } else { size };
        let content = data.get(at..at + stored).ok_or("its zstd frame ends within a block")?;
        at += stored;
        let (low, high) = match (raw >> 1) & 3 {
            0 | 1 => (size, size),
            2 => state.block(content)?,
            _ => return Err("its zstd frame has a block of a reserved type"),
        };
        least += low;
        most += high;
        if least > decoded_len {
            return Err("its zstd frame decodes to more than the chunk's length");
        }
        if raw & 1 == 1 {
            break;
        }
    }
    if most < decoded_len {
        return Err("its zstd frame decodes to less than the chunk's length");
    }
    let mut checksum = None;
    if header.checksum {
        let stored = bytes(data, at).ok_or("its zstd frame ends before its checksum")?;
        checksum = Some(Checksum::Xxh64Low(u32::from_le_bytes(stored)));
        at += 4;
    }
    if at != data.len() {
        return Err("there is more than one zstd frame, or something after it");
    }
    Ok(Stream { start: 0, len: data.len(), checksum })
}

struct Header {
    size: usize,
    max_block: usize,
    checksum: bool,
}

/// Section 3.1.1.1.
fn frame_header(data: &[u8], decoded_len: usize) -> Walk<Header> {
    const SHORT: &str = "its zstd frame ends within its header";
    if u32::from_le_bytes(bytes(data, 0).ok_or(SHORT)?) != MAGIC {
        return Err("it does not begin with a zstd frame");
    }
    let descriptor = *data.get(4).ok_or(SHORT)?;
    if descriptor & 0b1_1011 != 0 {
        return Err("its zstd frame needs a dictionary, or uses reserved bits");
    }
    let single_segment = descriptor & 0x20 != 0;
    let mut at = 5;
    let mut window = 0;
    if !single_segment {
        let byte = *data.get(at).ok_or(SHORT)?;
        let base = 1u64 << (10 + (byte >> 3));
        window = base + base / 8 * u64::from(byte & 7);
        at += 1;
    }
    let size = match descriptor >> 6 {
        0 if single_segment => Some(u64::from(*data.get(at).ok_or(SHORT)?)),
        0 => None,
        1 => Some(u64::from(u16::from_le_bytes(bytes(data, at).ok_or(SHORT)?)) + 256),
        2 => Some(u64::from(u32::from_le_bytes(bytes(data, at).ok_or(SHORT)?))),
        _ => Some(u64::from_le_bytes(bytes(data, at).ok_or(SHORT)?)),
    };
    at += match descriptor >> 6 {
        0 => usize::from(single_segment),
        flag => 1 << flag,
    };
    if size.is_some_and(|size| size != decoded_len as u64) {
        return Err("its zstd frame has another content size than the chunk's length");
    }
    if single_segment {
        window = decoded_len as u64;
    } else if window > MAX_WINDOW {
        return Err("its zstd frame needs a window of more than 128 MiB");
    }
    let max_block = usize::try_from(window).map_or(MAX_BLOCK, |window| window.min(MAX_BLOCK));
    Ok(Header { size: at, max_block, checksum: descriptor & 4 != 0 })
}

/// Tables that a block may reuse from the blocks before it.
struct BlockWalk {
    max_block: usize,
    huffman: Option<Huffman>,
    sequence_tables: bool,
}

impl BlockWalk {
    /// A compressed block, section 3.1.1.2.3: the least and the most bytes that it may decode to.
    fn block(&mut self, content: &[u8]) -> Walk<(usize, usize)> {
        let (literals, used) = self.literals(content)?;
        let sequences = self.sequences(content.get(used..).unwrap_or(&[]))?;
        if sequences == 0 {
            return Ok((literals, literals));
        }
        // A match is at least three bytes long.
        let least = literals + 3 * sequences;
        if least > self.max_block {
            return Err("a block of its zstd frame decodes to more than a block may");
        }
        Ok((least, self.max_block))
    }

    /// The literals' section, 3.1.1.3.1: the literals, and the section's bytes.
    fn literals(&mut self, data: &[u8]) -> Walk<(usize, usize)> {
        const BAD: &str = "the literals of a block of its zstd frame are damaged";
        let first = *data.first().ok_or(BAD)?;
        let format = (first >> 2) & 3;
        let header_len = match (first & 3, format) {
            (0 | 1, 0 | 2) => 1,
            (0 | 1, 1) => 2,
            (0 | 1, _) => 3,
            (_, 0 | 1) => 3,
            (_, 2) => 4,
            _ => 5,
        };
        let header = data.get(..header_len).ok_or(BAD)?;
        let header = header.iter().rev().fold(0usize, |value, &byte| value << 8 | usize::from(byte));
        if first & 2 == 0 {
            let count = if header_len == 1 { header >> 3 } else { header >> 4 };
            let stored = if first & 1 == 0 { count } else { 1 };
            if count > self.max_block || header_len + stored > data.len() {
                return Err(BAD);
            }
            return Ok((count, header_len + stored));
        }
        let width = [10, 10, 14, 18][usize::from(format)];
        let mask = (1usize << width) - 1;
        let (count, size) = ((header >> 4) & mask, (header >> (4 + width)) & mask);
        if count > self.max_block || count == 0 {
            return Err(BAD);
        }
        let mut content = data.get(header_len..header_len + size).ok_or(BAD)?;
        if first & 3 == 2 {
            let table = entropy::huffman(content).ok_or("a Huffman table of its zstd frame is damaged")?;
            content = &content[table.used..];
            self.huffman = Some(table);
        }
        let table = self.huffman.ok_or("a block of its zstd frame repeats a Huffman table that was not given")?;
        let fits = if format == 0 { table.fits(content, count) } else { four_streams(&table, content, count) };
        if fits { Ok((count, header_len + size)) } else { Err(BAD) }
    }

    /// The sequences' section, 3.1.1.3.2, which takes all of `data`: how many sequences there are.
    fn sequences(&mut self, data: &[u8]) -> Walk<usize> {
        const BAD: &str = "the sequences of a block of its zstd frame are damaged";
        let byte = |at: usize| data.get(at).map(|&b| usize::from(b)).ok_or(BAD);
        let (count, mut at) = match byte(0)? {
            0 if data.len() == 1 => return Ok(0),
            0 => return Err(BAD),
            n @ 1..128 => (n, 1),
            n @ 128..255 => (((n - 128) << 8) + byte(1)?, 2),
            _ => (byte(1)? + (byte(2)? << 8) + 0x7f00, 3),
        };
        let modes = byte(at)?;
        at += 1;
        if modes & 3 != 0 || count == 0 {
            return Err(BAD);
        }
        // Literal lengths, offsets, match lengths: the largest symbol, and the logarithm of the largest table.
        for (shift, max_symbol, max_log) in [(6, 35, 9), (4, 31, 8), (2, 52, 9)] {
            match (modes >> shift) & 3 {
                0 => {}
                1 => {
                    if byte(at)? > max_symbol {
                        return Err(BAD);
                    }
                    at += 1;
                }
                2 => {
                    let table = data.get(at..).and_then(|data| entropy::distribution(data, max_symbol, max_log));
                    at += table.ok_or("an FSE table of its zstd frame is damaged")?.used;
                }
                _ if self.sequence_tables => {}
                _ => return Err("a block of its zstd frame repeats tables that were not given"),
            }
        }
        // The bits themselves end with a mark in their last byte.
        match data.get(at..) {
            Some([.., last]) if *last != 0 => {}
            _ => return Err(BAD),
        }
        self.sequence_tables = true;
        Ok(count)
    }
}

/// Four streams behind a table of the first three's sizes, section 3.1.1.3.1.6.
fn four_streams(table: &Huffman, content: &[u8], count: usize) -> bool {
    let Some(jumps) = bytes::<6>(content, 0) else { return false };
    let each = count.div_ceil(4);
    let Some(last) = count.checked_sub(3 * each) else { return false };
    let mut rest = &content[6..];
    for pair in jumps.chunks_exact(2) {
        let size = usize::from(u16::from_le_bytes([pair[0], pair[1]]));
        let Some((stream, after)) = rest.split_at_checked(size) else { return false };
        if !table.fits(stream, each) {
            return false;
        }
        rest = after;
    }
    table.fits(rest, last)
}
