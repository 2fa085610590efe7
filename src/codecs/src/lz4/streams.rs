//! LZ4 blocks with their decoded size before them (u32, little-endian), as numcodecs' LZ4 writes them. The block format
//! is that of lz4's `lz4_Block_format.md`. The GPU decodes them with `dz_lz4`, which is safe for damaged data, so the
//! host doesn't read the block.

use crate::stream::{HeaderResult, Stream, bytes};

pub(crate) fn inspect(data: &[u8], decoded_len: usize) -> HeaderResult<Stream> {
    let size = bytes(data, 0).ok_or("it is too short for the size before an LZ4 block")?;
    if u32::from_le_bytes(size) as usize != decoded_len {
        return Err("the size before its LZ4 block is not the chunk's length");
    }
    if data.len() == 4 {
        return Err("its LZ4 block is empty");
    }
    Ok(Stream { start: 4, len: data.len() - 4, checksum: None })
}
