//! Inflates deflated entries piece by piece while they arrive. Only the wanted bytes are kept, so neither the
//! compressed nor the whole entry is ever in memory. Checksums are verified.

use crc32fast::Hasher;
use flate2::{Decompress, FlushDecompress, Status};

use super::directory::Entry;
use crate::Sink;
use dali_zarr_base::error::{Error, Result};

/// Bytes of the buffer for inflated bytes that aren't wanted.
const SCRATCH: usize = 16 << 10;

pub(super) struct Inflater<'a> {
    decoder: Decompress,
    crc: Hasher,
    expected_crc: u32,
    size: u64,
    /// Offset in the inflated entry at which `to` begins.
    from: u64,
    to: &'a mut [u8],
    scratch: Vec<u8>,
    ended: bool,
}

impl<'a> Inflater<'a> {
    /// Inflates `entry`, and keeps the bytes from `from` on that fit into `to`.
    pub fn new(entry: &Entry, from: u64, to: &'a mut [u8]) -> Self {
        Self {
            decoder: Decompress::new(false),
            crc: Hasher::new(),
            expected_crc: entry.crc,
            size: entry.size,
            from,
            to,
            scratch: vec![0; SCRATCH],
            ended: false,
        }
    }

    /// # Errors
    /// If the data ended too early, or their size or checksum isn't that of the directory.
    pub fn finish(self) -> Result<()> {
        if !self.ended || self.decoder.total_out() != self.size {
            return Err(Error::damaged(format!(
                "expected {} inflated bytes, but found {}; the archive is damaged",
                self.size,
                self.decoder.total_out()
            )));
        }
        check_crc(self.expected_crc, self.crc.finalize())
    }
}

impl Sink for Inflater<'_> {
    fn begin(&mut self) {
        self.decoder.reset(false);
        self.crc.reset();
        self.ended = false;
    }

    fn put(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !self.ended {
            let (read, written) = (self.decoder.total_in(), self.decoder.total_out());
            let room = room(written, self.size, self.from, self.to, &mut self.scratch);
            let status = self
                .decoder
                .decompress(bytes, room, FlushDecompress::None)
                .map_err(|e| Error::damaged(format!("expected deflated data, but found other bytes: {e}")))?;
            let (took, made) = (self.decoder.total_in() - read, (self.decoder.total_out() - written) as usize);
            if self.decoder.total_out() > self.size {
                let size = self.size;
                return Err(Error::damaged(format!(
                    "expected {size} inflated bytes, but found more; the archive is damaged"
                )));
            }
            self.crc.update(&room[..made]);
            bytes = &bytes[took as usize..];
            self.ended = status == Status::StreamEnd;
            if bytes.is_empty() && made < room.len() || took == 0 && made == 0 {
                break;
            }
        }
        Ok(())
    }
}

/// Returns the buffer for the inflated bytes from `at` on: the rest of `to`, which begins at `from`, or the scratch
/// buffer.
fn room<'a>(at: u64, size: u64, from: u64, to: &'a mut [u8], scratch: &'a mut [u8]) -> &'a mut [u8] {
    let within = at.checked_sub(from).and_then(|i| usize::try_from(i).ok()).filter(|&i| i < to.len());
    if let Some(i) = within {
        return &mut to[i..];
    }
    // One byte more at the end: the decoder needs room to see the end, or an entry that is too long.
    let most = if at < from { from - at } else { size.saturating_sub(at) + 1 };
    let len = scratch.len().min(usize::try_from(most).unwrap_or(usize::MAX));
    &mut scratch[..len]
}

/// # Errors
/// If the checksums differ.
pub(super) fn check_crc(expected: u32, found: u32) -> Result<()> {
    if expected == found {
        return Ok(());
    }
    Err(Error::damaged(format!("expected the CRC-32 {expected:08x}, but found {found:08x}; the archive is damaged")))
}
