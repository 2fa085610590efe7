//! [`plan`] finds where the parts of a zstd frame's blocks lie (RFC 8878), so that the device can decode all blocks at
//! once.
//!
//! It reads only headers, a few bytes of each block. The device reads the entropy-coded parts and the descriptions of
//! tables, and trusts none of them. Everything in a plan is verified: every part lies within the frame, and every table
//! that a block repeats is defined by an earlier block.

use dali_zarr_kernels::zstd::{Block, BlockKind, FramePlan, LiteralsKind};

const MAGIC: u32 = 0xfd2f_b528;
/// Most bytes of a block, decoded or compressed.
const MAX_BLOCK: usize = 128 << 10;
/// Largest window in bytes that the reference decoder accepts by default.
const MAX_WINDOW: u64 = 128 << 20;
/// Most bytes of one frame, decoded or compressed. An offset has 28 bits in the workspace, and symbols take some of its
/// values.
pub const MAX_FRAME: usize = 128 << 20;

/// Plans the decoding of `data`, which must be exactly one frame that decodes to `decoded_len` bytes.
///
/// # Errors
/// The reason why the device can't decode the frame, worded as the end of a sentence.
pub fn plan(data: &[u8], decoded_len: usize) -> Result<FramePlan, &'static str> {
    if decoded_len == 0 || decoded_len > MAX_FRAME || data.len() > MAX_FRAME {
        return Err("it is empty, or larger than the GPU's decoder takes");
    }
    let header = frame_header(data, decoded_len)?;
    let mut scan = Scan { data, max_block: header.max_block, huffman: None, tables: [None; 3], workspace: 0 };
    let mut blocks = Vec::with_capacity(decoded_len.div_ceil(header.max_block) + 1);
    let mut at = header.size;
    // Bounds of the decoded length. Its exact value is unknown, because the lengths of matches are entropy-coded.
    let (mut least, mut most) = (0usize, 0usize);
    loop {
        let raw = little_endian(data, at, 3).ok_or("its zstd frame ends before its last block")?;
        let size = (raw >> 3) as usize;
        at += 3;
        if size > header.max_block {
            return Err("a block of its zstd frame is larger than its window allows");
        }
        let kind = match (raw >> 1) & 3 {
            0 => BlockKind::Raw,
            1 => BlockKind::Run,
            2 => BlockKind::Compressed,
            _ => return Err("its zstd frame has a block of a reserved type"),
        };
        let stored = if kind == BlockKind::Run { 1 } else { size };
        if stored > data.len() - at {
            return Err("its zstd frame ends within a block");
        }
        let mut block = Block {
            frame: 0,
            kind,
            literals_kind: LiteralsKind::Raw,
            modes: 0,
            reserved: 0,
            at: at as u32,
            size: size as u32,
            literals_at: 0,
            literals_size: 0,
            literals: 0,
            sequences_at: 0,
            sequences: 0,
            huffman: 0,
            tables: [0; 3],
            literals_to: 0,
            sequences_to: 0,
            unused: 0,
        };
        let (low, high) = match kind {
            BlockKind::Compressed => scan.block(&mut block, blocks.len() as u32)?,
            _ => (size, size),
        };
        blocks.push(block);
        at += stored;
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
        checksum = Some(little_endian(data, at, 4).ok_or("its zstd frame ends before its checksum")? as u32);
        at += 4;
    }
    if at != data.len() {
        return Err("there is more than one zstd frame, or something after it");
    }
    Ok(FramePlan {
        blocks,
        len: data.len() as u32,
        capacity: decoded_len as u32,
        max_block: header.max_block as u32,
        workspace: u32::try_from(scan.workspace).map_err(|_| "it is larger than the GPU's decoder takes")?,
        checksum,
    })
}

/// Returns `n` bytes (at most 8) at `at` as a little-endian number; `None` if `data` ends before.
fn little_endian(data: &[u8], at: usize, n: usize) -> Option<u64> {
    let bytes = data.get(at..at.checked_add(n)?)?;
    Some(bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
}

struct Header {
    size: usize,
    max_block: usize,
    checksum: bool,
}

/// Parses the frame header, section 3.1.1.1.
fn frame_header(data: &[u8], decoded_len: usize) -> Result<Header, &'static str> {
    const SHORT: &str = "its zstd frame ends within its header";
    if little_endian(data, 0, 4).ok_or(SHORT)? != u64::from(MAGIC) {
        return Err("it does not begin with a zstd frame");
    }
    let descriptor = *data.get(4).ok_or(SHORT)?;
    if descriptor & 0b1_1011 != 0 {
        return Err("its zstd frame needs a dictionary, or uses reserved bits");
    }
    let single_segment = descriptor & 0x20 != 0;
    let mut at = 5;
    let mut window = decoded_len as u64;
    if !single_segment {
        let byte = *data.get(at).ok_or(SHORT)?;
        let base = 1u64 << (10 + (byte >> 3));
        window = base + base / 8 * u64::from(byte & 7);
        at += 1;
        if window > MAX_WINDOW {
            return Err("its zstd frame needs a window of more than 128 MiB");
        }
    }
    let width = match descriptor >> 6 {
        0 => usize::from(single_segment),
        flag => 1 << flag,
    };
    let mut size = little_endian(data, at, width).ok_or(SHORT)?;
    if width == 2 {
        size += 256;
    }
    if width > 0 && size != decoded_len as u64 {
        return Err("its zstd frame has another content size than the chunk's length");
    }
    let max_block = usize::try_from(window).map_or(MAX_BLOCK, |window| window.min(MAX_BLOCK));
    Ok(Header { size: at + width, max_block, checksum: descriptor & 4 != 0 })
}

/// State of the scan over a frame's blocks.
struct Scan<'a> {
    data: &'a [u8],
    max_block: usize,
    /// Index of the last block that defined a Huffman table.
    huffman: Option<u32>,
    /// Indexes of the last blocks that defined tables of literal lengths, offsets and match lengths.
    tables: [Option<u32>; 3],
    /// Bytes of workspace taken so far.
    workspace: u64,
}

impl Scan<'_> {
    /// Scans a compressed block, section 3.1.1.2.3, which lies within the frame. Returns the least and the most bytes
    /// that it may decode to.
    fn block(&mut self, block: &mut Block, index: u32) -> Result<(usize, usize), &'static str> {
        let content = &self.data[block.at as usize..(block.at + block.size) as usize];
        let used = self.literals(block, content, index)?;
        self.sequences(block, &content[used..], index)?;
        let literals = block.literals as usize;
        if block.sequences == 0 {
            return Ok((literals, literals));
        }
        // A match is at least three bytes long.
        let least = literals + 3 * block.sequences as usize;
        if least > self.max_block {
            return Err("a block of its zstd frame decodes to more than a block may");
        }
        block.sequences_to = self.take(8 * u64::from(block.sequences))?;
        Ok((least, self.max_block))
    }

    /// Takes room in the workspace. Returns its byte offset.
    fn take(&mut self, bytes: u64) -> Result<u32, &'static str> {
        let at = u32::try_from(self.workspace).map_err(|_| "it is larger than the GPU's decoder takes")?;
        self.workspace += bytes.next_multiple_of(16);
        Ok(at)
    }

    /// Parses the header of the literals section, 3.1.1.3.1. Returns the section's length in bytes; it lies within
    /// `data`.
    fn literals(&mut self, block: &mut Block, data: &[u8], index: u32) -> Result<usize, &'static str> {
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
        let header = little_endian(data, 0, header_len).ok_or(BAD)? as usize;
        let (count, stored);
        if first & 2 == 0 {
            count = if header_len == 1 { header >> 3 } else { header >> 4 };
            (block.literals_kind, stored) =
                if first & 1 == 0 { (LiteralsKind::Raw, count) } else { (LiteralsKind::Run, 1) };
        } else {
            let width = [10, 10, 14, 18][usize::from(format)];
            let mask = (1usize << width) - 1;
            (count, stored) = ((header >> 4) & mask, (header >> (4 + width)) & mask);
            block.literals_kind = if format == 0 { LiteralsKind::OneStream } else { LiteralsKind::FourStreams };
            // The reference decoder refuses four streams with fewer than six literals.
            if count == 0 || (format != 0 && count < 6) {
                return Err(BAD);
            }
            if first & 3 == 2 {
                self.huffman = Some(index);
            }
            block.huffman =
                self.huffman.ok_or("a block of its zstd frame repeats a Huffman table that was not given")?;
            block.literals_to = self.take(count as u64)?;
        }
        if count > self.max_block || stored > data.len() - header_len {
            return Err(BAD);
        }
        block.literals = count as u32;
        block.literals_at = block.at + header_len as u32;
        block.literals_size = stored as u32;
        Ok(header_len + stored)
    }

    /// Parses the header of the sequences section, 3.1.1.3.2. The section is all of `data`, the rest of the block.
    fn sequences(&mut self, block: &mut Block, data: &[u8], index: u32) -> Result<(), &'static str> {
        const BAD: &str = "the sequences of a block of its zstd frame are damaged";
        let byte = |at: usize| data.get(at).map(|&b| u32::from(b)).ok_or(BAD);
        let (count, at) = match byte(0)? {
            0 if data.len() == 1 => return Ok(()),
            0 => return Err(BAD),
            n @ 1..128 => (n, 1),
            n @ 128..255 => (((n - 128) << 8) + byte(1)?, 2),
            _ => (byte(1)? + (byte(2)? << 8) + 0x7f00, 3),
        };
        let modes = byte(at)?;
        // The last byte of the bits holds a mark, so it isn't zero.
        if modes & 3 != 0 || count == 0 || data.len() == at + 1 || data.last() == Some(&0) {
            return Err(BAD);
        }
        block.modes = modes as u8;
        block.sequences = count;
        block.sequences_at = block.at + block.size - (data.len() - at - 1) as u32;
        for (table, (last, shift)) in block.tables.iter_mut().zip(self.tables.iter_mut().zip([6, 4, 2])) {
            if (modes >> shift) & 3 != 3 {
                *last = Some(index);
            }
            *table = last.ok_or("a block of its zstd frame repeats tables that were not given")?;
        }
        Ok(())
    }
}
