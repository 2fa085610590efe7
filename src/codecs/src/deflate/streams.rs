//! Gzip members (RFC 1952) and zlib streams (RFC 1950), both around deflate (RFC 1951). Written by: zarr's `gzip` codec,
//! numcodecs' GZip and Zlib. The GPU decodes the raw deflate stream inside, with `dz_inflate_*`, which are safe for
//! damaged data.
//!
//! The host reads the header, the trailer, and the deflate stream up to the first entropy-coded block, with that
//! block's code lengths. If they are damaged, the CPU decodes the chunk and gives the precise error. Damage after that
//! is found only by decoding.

use crate::bits::Bits;
use crate::stream::{Checksum, HeaderResult, Stream, bytes};

/// The largest expansion of deflate: a match decodes to at most 258 bytes and takes at least two bits.
const MAX_RATIO: usize = 1032;

pub(crate) fn inspect_gzip(data: &[u8], decoded_len: usize) -> HeaderResult<Stream> {
    const SHORT: &str = "its gzip member ends within its header";
    let [id1, id2, method, flags]: [u8; 4] = bytes(data, 0).ok_or(SHORT)?;
    if (id1, id2, method) != (0x1f, 0x8b, 8) {
        return Err("it does not begin with a gzip member");
    }
    const HEADER_CRC: u8 = 2;
    const EXTRA: u8 = 4;
    const NAME: u8 = 8;
    const COMMENT: u8 = 16;
    if flags & (HEADER_CRC | 0xe0) != 0 {
        return Err("its gzip header has a checksum of its own, or reserved bits");
    }
    let mut at = 10;
    if flags & EXTRA != 0 {
        at += 2 + usize::from(u16::from_le_bytes(bytes(data, at).ok_or(SHORT)?));
    }
    for _ in 0..(flags & NAME).count_ones() + (flags & COMMENT).count_ones() {
        let text = data.get(at..).ok_or(SHORT)?;
        at += text.iter().position(|byte| *byte == 0).ok_or(SHORT)? + 1;
    }
    let trailer = data.len().checked_sub(8).filter(|trailer| *trailer > at).ok_or(SHORT)?;
    let crc = u32::from_le_bytes(bytes(data, trailer).ok_or(SHORT)?);
    let size = u32::from_le_bytes(bytes(data, trailer + 4).ok_or(SHORT)?);
    if size as usize != decoded_len {
        return Err("its gzip trailer does not give the chunk's length, or it has several members");
    }
    blocks(&data[at..trailer], decoded_len)?;
    Ok(Stream { start: at, len: trailer - at, checksum: Some(Checksum::Crc32(crc)) })
}

pub(crate) fn inspect_zlib(data: &[u8], decoded_len: usize) -> HeaderResult<Stream> {
    const SHORT: &str = "its zlib stream is too short";
    let [cmf, flags]: [u8; 2] = bytes(data, 0).ok_or(SHORT)?;
    if cmf & 15 != 8 || cmf >> 4 > 7 || (u16::from(cmf) << 8 | u16::from(flags)) % 31 != 0 {
        return Err("it does not begin with a zlib stream");
    }
    if flags & 0x20 != 0 {
        return Err("its zlib stream needs a dictionary");
    }
    let trailer = data.len().checked_sub(4).filter(|at| *at > 2).ok_or(SHORT)?;
    let adler = u32::from_be_bytes(bytes(data, trailer).ok_or(SHORT)?);
    blocks(&data[2..trailer], decoded_len)?;
    Ok(Stream { start: 2, len: trailer - 2, checksum: Some(Checksum::Adler32(adler)) })
}

/// Checks the stored blocks, up to the end or the first block of another type (RFC 1951 section 3.2.3). Of that block
/// it checks only the code lengths.
fn blocks(data: &[u8], decoded_len: usize) -> HeaderResult<()> {
    const SHORT: &str = "its deflate stream ends within a block's header";
    if data.len().saturating_mul(MAX_RATIO) < decoded_len {
        return Err("its deflate stream is too short for the chunk's length");
    }
    let mut produced = 0;
    let mut rest = data;
    loop {
        let mut bits = Bits::new(rest);
        let last = bits.read(1).ok_or(SHORT)? == 1;
        match bits.read(2).ok_or(SHORT)? {
            0 => {
                let [l0, l1, n0, n1]: [u8; 4] = bytes(rest, 1).ok_or(SHORT)?;
                let len = usize::from(u16::from_le_bytes([l0, l1]));
                if [!l0, !l1] != [n0, n1] {
                    return Err("a stored block of its deflate stream has two different lengths");
                }
                rest = rest.get(5 + len..).ok_or("its deflate stream ends within a stored block")?;
                produced += len;
                if produced > decoded_len || (last && (produced != decoded_len || !rest.is_empty())) {
                    return Err("its deflate stream does not decode to the chunk's length");
                }
                if last {
                    return Ok(());
                }
            }
            1 => return Ok(()),
            2 => return codes(&mut bits).ok_or("the codes of its deflate stream are damaged"),
            _ => return Err("its deflate stream has a block of a reserved type"),
        }
    }
}

/// Checks the code lengths of a dynamic block, section 3.2.7. `None` if they are invalid.
fn codes(bits: &mut Bits<'_>) -> Option<()> {
    const ORDER: [usize; 19] = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];
    let literals = bits.read(5)? as usize + 257;
    let distances = bits.read(5)? as usize + 1;
    let given = bits.read(4)? as usize + 4;
    if literals > 286 || distances > 30 {
        return None;
    }
    let mut lengths = [0u8; 19];
    for &symbol in &ORDER[..given] {
        lengths[symbol] = bits.read(3)? as u8;
    }
    if unused(&lengths) != 0 {
        return None;
    }
    let mut all: Vec<u8> = Vec::with_capacity(literals + distances);
    while all.len() < literals + distances {
        let (value, count) = match symbol(bits, &lengths)? {
            length @ 0..16 => (length, 1),
            16 => (*all.last()?, 3 + bits.read(2)?),
            17 => (0, 3 + bits.read(3)?),
            _ => (0, 11 + bits.read(7)?),
        };
        all.resize(all.len() + count as usize, value);
    }
    let (literal, distance) = all.split_at_checked(literals)?;
    if all.len() != literals + distances || literal[256] == 0 || unused(literal) != 0 {
        return None;
    }
    // A block with a single distance may give it a code of one bit. A block without matches may have no distance codes.
    let used = distance.iter().filter(|length| **length > 0).count();
    (unused(distance) == 0 || used == 0 || (used == 1 && distance.contains(&1))).then_some(())
}

/// Returns how many of the 2^15 possible 15-bit codes these code lengths leave unused. Negative if they use too many.
fn unused(lengths: &[u8]) -> i32 {
    (1 << 15) - lengths.iter().filter(|length| **length > 0).map(|&length| 1 << (15 - length)).sum::<i32>()
}

/// Reads one symbol of the Huffman code for code lengths, bit by bit (section 3.2.2). Its codes have at most 7 bits.
fn symbol(bits: &mut Bits<'_>, lengths: &[u8; 19]) -> Option<u8> {
    let (mut code, mut first) = (0, 0);
    for length in 1..=7 {
        code = code << 1 | bits.read(1)?;
        let with = || lengths.iter().enumerate().filter(move |(_, l)| **l == length);
        let count = with().count() as u32;
        if code < first + count {
            return with().nth((code - first) as usize).map(|(symbol, _)| symbol as u8);
        }
        first = (first + count) << 1;
    }
    None
}
