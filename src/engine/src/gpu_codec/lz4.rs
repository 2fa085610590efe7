//! LZ4 blocks with their decoded size before them, as numcodecs' LZ4 writes them (u32, little-endian; the block format
//! is that of lz4's `lz4_Block_format.md`). Decoded on the GPU by nvCOMP.
//!
//! Walked: every token, so that nothing that reaches the GPU reads or writes out of bounds.

use super::{Stream, Walk, bytes};

/// A match is at least as long, and so is not the last thing in a block.
const MIN_MATCH: usize = 4;

pub(super) fn inspect(data: &[u8], decoded_len: usize) -> Walk<Stream> {
    const SHORT: &str = "its LZ4 block ends within a sequence";
    let size = bytes(data, 0).ok_or("it is too short for the size before an LZ4 block")?;
    if u32::from_le_bytes(size) as usize != decoded_len {
        return Err("the size before its LZ4 block is not the chunk's length");
    }
    let block = &data[4..];
    let (mut at, mut produced) = (0usize, 0usize);
    loop {
        let token = *block.get(at).ok_or(SHORT)?;
        at += 1;
        let literals = length(block, &mut at, token >> 4).ok_or(SHORT)?;
        at = at.checked_add(literals).filter(|at| *at <= block.len()).ok_or(SHORT)?;
        produced += literals;
        if at == block.len() {
            break;
        }
        let offset = usize::from(u16::from_le_bytes(bytes(block, at).ok_or(SHORT)?));
        at += 2;
        if offset == 0 || offset > produced {
            return Err("a match in its LZ4 block refers to bytes before the chunk");
        }
        produced += length(block, &mut at, token & 15).ok_or(SHORT)? + MIN_MATCH;
        if produced > decoded_len {
            break;
        }
    }
    if produced != decoded_len {
        return Err("its LZ4 block does not decode to the chunk's length");
    }
    Ok(Stream { start: 4, len: block.len(), checksum: None })
}

/// A length that begins with four bits of a token and goes on in bytes while they are full. Bounded by 255 times the
/// block's length, which fits.
fn length(block: &[u8], at: &mut usize, nibble: u8) -> Option<usize> {
    let mut length = usize::from(nibble);
    if nibble == 15 {
        loop {
            let byte = *block.get(*at)?;
            *at += 1;
            length += usize::from(byte);
            if byte != 255 {
                break;
            }
        }
    }
    Some(length)
}
