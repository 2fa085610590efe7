//! The usage of a folder: how many bytes it holds, in a file that all processes share.
//!
//! The file is locked only while the number is read or changed. A process that dies between changing the number and
//! changing the folder leaves a number that is too large, never one that is too small. So the folder is counted again
//! now and then. A count may miss pieces that other threads write or remove meanwhile, one for each thread. Then the
//! number is wrong until the next count.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

const MAGIC: &[u8; 8] = b"dzusage1";
/// Bytes of the file: magic, bytes of the folder, time of the count (8 bytes each), checksum (4 bytes).
const LEN: usize = 28;

/// How often the lock is tried. Others hold it for microseconds.
const TRIES: usize = 200;
/// The pause between two tries.
const PAUSE: Duration = Duration::from_millis(1);

/// After this time the folder should be counted again.
pub(super) const RECOUNT: Duration = Duration::from_secs(3600);

/// The usage of a folder.
pub(super) struct Usage {
    path: PathBuf,
    file: Mutex<Option<File>>,
}

/// The content of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Count {
    /// Bytes that the folder holds.
    pub bytes: u64,
    /// When the folder was counted, in seconds since 1970. 0: it should be counted again.
    pub counted: u64,
}

impl Count {
    /// Whether the folder should be counted again.
    pub fn is_old(self) -> bool {
        now().abs_diff(self.counted) > RECOUNT.as_secs()
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

impl Usage {
    pub fn new(path: PathBuf) -> Self {
        Self { path, file: Mutex::new(None) }
    }

    /// The content of the file. `None` if it is missing or damaged.
    ///
    /// # Errors
    /// If it can't be read.
    pub fn get(&self) -> io::Result<Option<Count>> {
        self.locked(|file| Ok(read(file)))
    }

    /// Adds `by` bytes to the number, and returns the new number.
    ///
    /// # Errors
    /// If the file can't be written, or its number isn't known: then the folder must be counted.
    pub fn change(&self, by: i64) -> io::Result<u64> {
        self.locked(|file| {
            let count = read(file).ok_or(ErrorKind::InvalidData)?;
            let bytes = count.bytes.saturating_add_signed(by);
            // More is subtracted than was added: another program has enlarged files. So the folder is counted again.
            let wrong = by < 0 && count.bytes < by.unsigned_abs();
            write(file, Count { bytes, counted: if wrong { 0 } else { count.counted } })?;
            Ok(bytes)
        })
    }

    /// Marks the number as wrong, so that the folder is counted at the next regular time.
    ///
    /// # Errors
    /// If the file can't be written.
    pub fn mark_stale(&self) -> io::Result<()> {
        self.locked(|file| read(file).map_or(Ok(()), |count| write(file, Count { counted: 0, ..count })))
    }

    /// Counts the folder with `count`, which returns its bytes, and returns the new number. Others may change the
    /// folder meanwhile.
    ///
    /// # Errors
    /// If the file can't be written.
    pub fn recount(&self, count: impl FnOnce() -> u64) -> io::Result<u64> {
        let before = self.get()?;
        let found = count();
        self.locked(|file| {
            // The count may or may not include pieces that others have added meanwhile, so these are added. Pieces that
            // they have removed are noticed by the next count.
            let added = read(file).zip(before).map_or(0, |(now, before)| now.bytes.saturating_sub(before.bytes));
            let bytes = found.saturating_add(added);
            write(file, Count { bytes, counted: now() })?;
            Ok(bytes)
        })
    }

    /// Calls `act` while the file is locked.
    ///
    /// # Errors
    /// If the file can't be opened or locked, or `act` fails.
    fn locked<T>(&self, act: impl FnOnce(&File) -> io::Result<T>) -> io::Result<T> {
        let mut slot = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        // If somebody has removed the file, it is created again.
        let open = match slot.take() {
            Some(file) if file.metadata()?.nlink() > 0 => file,
            _ => {
                let mut options = OpenOptions::new();
                options.read(true).write(true).create(true).truncate(false);
                options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(&self.path)?
            }
        };
        let file = slot.insert(open);
        for _ in 0..TRIES {
            match file.try_lock() {
                Ok(()) => {
                    let result = act(file);
                    file.unlock()?;
                    return result;
                }
                Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSE),
                Err(TryLockError::Error(e)) => return Err(e),
            }
        }
        Err(ErrorKind::WouldBlock.into())
    }
}

/// Returns the content of the file at `path` without locking it. `None` if it is missing or damaged.
pub(super) fn read_unlocked(path: &Path) -> Option<Count> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    read(&OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?)
}

fn read(file: &File) -> Option<Count> {
    let mut bytes = [0; LEN];
    file.read_exact_at(&mut bytes, 0).ok()?;
    let crc = u32::from_le_bytes(bytes[24..].try_into().ok()?);
    let number = |at: usize| bytes[at..at + 8].try_into().map(u64::from_le_bytes).ok();
    let right = bytes[..8] == *MAGIC && crc == crc32c::crc32c(&bytes[..24]);
    if right { Some(Count { bytes: number(8)?, counted: number(16)? }) } else { None }
}

fn write(file: &File, count: Count) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(LEN);
    bytes.extend(MAGIC);
    bytes.extend(count.bytes.to_le_bytes());
    bytes.extend(count.counted.to_le_bytes());
    bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
    file.write_all_at(&bytes, 0)
}
