//! Reads past the page cache (`O_DIRECT`), for data larger than memory. The page cache would help none of these reads,
//! and would drop what other programs keep in it.
//!
//! Such reads begin and end at multiples of a disk's block size, in the file and in memory. Each thread reads whole
//! blocks to a buffer of its own and copies the wanted bytes from there. A read through the page cache makes one copy
//! too.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;

/// Offsets, lengths and addresses are multiples of this many bytes. It is a multiple of every block size of disks.
const BLOCK: usize = 4096;

/// Most bytes that one system call reads.
const PIECE: usize = 1 << 20;

/// Bytes of the buffer of each thread that reads past the page cache.
pub const BYTES_PER_THREAD: usize = PIECE + BLOCK;

thread_local! {
    static PIECE_OF_THREAD: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Fills `to` from `offset` of a file that was opened with `O_DIRECT`.
///
/// # Errors
/// Errors of `pread`; `UnexpectedEof` if the file ends before `to` is full.
pub(super) fn read_exact_at(file: &File, to: &mut [u8], offset: u64) -> io::Result<()> {
    PIECE_OF_THREAD.with_borrow_mut(|memory| {
        memory.resize(BYTES_PER_THREAD, 0);
        let aligned = memory.as_ptr().align_offset(BLOCK);
        read_by_pieces(file, to, offset, &mut memory[aligned..aligned + PIECE])
    })
}

fn read_by_pieces(file: &File, to: &mut [u8], offset: u64, piece: &mut [u8]) -> io::Result<()> {
    let mut have = 0;
    while have < to.len() {
        let at = offset + have as u64;
        let begin = at / BLOCK as u64 * BLOCK as u64;
        let skip = (at - begin) as usize;
        let wanted = (skip + to.len() - have).next_multiple_of(BLOCK).min(piece.len());
        let read = match file.read_at(&mut piece[..wanted], begin) {
            Ok(read) => read,
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
        // Fewer bytes than asked for: a signal, or the end of the file. The next read tells which.
        let new = read.saturating_sub(skip).min(to.len() - have);
        if new == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        to[have..have + new].copy_from_slice(&piece[skip..skip + new]);
        have += new;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::OpenOptions;
    use std::os::unix::fs::OpenOptionsExt;

    #[test]
    fn any_range_of_any_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("value");
        let mut seed = 1u64;
        let mut random = |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize % below
        };
        for len in [0, 1, 4095, 4096, 4097, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 12_345] {
            let bytes: Vec<u8> = (0..len).map(|_| random(256) as u8).collect();
            std::fs::write(&path, &bytes).unwrap();
            let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
            for _ in 0..50 {
                let from = random(len + 1);
                let to = from + random(len - from + 1);
                let mut got = vec![7; to - from];
                read_exact_at(&file, &mut got, from as u64).unwrap();
                assert_eq!(got, bytes[from..to], "{from}..{to} of {len}");
                let mut beyond = vec![0; len - from + 1 + random(10_000)];
                let error = read_exact_at(&file, &mut beyond, from as u64).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
            }
        }
    }
}
