//! The folder of the disk cache, shared by all processes that use it, with a limit on its bytes.
//!
//! ```text
//! CACHE_DIR/dali-zarr-1/3f/3f…  a piece, named by the hash of its name
//!                       tmp/…   pieces that are being written
//!                       usage   how many bytes the folder holds (`usage.rs`)
//! ```
//!
//! A file gets its name when it is complete, so readers see all of it or nothing. Its bytes are added to the usage
//! before it is written, and subtracted after it is removed. So the folder never holds more than the usage says,
//! whenever a process dies. Nothing outside of `dali-zarr-1` is touched. In the subfolders for pieces, files that are
//! not named like a piece are not touched either.
//!
//! `unsafe` is allowed here, because the free space of a file system is found with libc's `statvfs`.

#![allow(unsafe_code)]

use std::fs;
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use super::file::{self, FileLookup};
use super::usage::Usage;
use super::{Name, Piece};
use dali_zarr_base::error::{Error, Result};
use dali_zarr_base::random::{below, mix};

/// Changes with the format of the folder.
const BASE: &str = "dali-zarr-1";

/// How many subfolders the pieces are spread over, so that each stays short enough to be listed.
const FOLDERS: u64 = 256;

/// A file takes a multiple of this many bytes on a disk.
const BLOCK: u64 = 4096;

/// When the folder is full of pieces in use, one new piece in this many is kept, and random others are removed for it.
/// To keep more would write to the disk without end, and remove pieces that are as useful as the new ones.
pub(super) const ADMITTED: u64 = 16;

/// How many subfolders, and how many files in each, are searched for unused pieces.
const LOOKS: (usize, usize) = (4, 8);

/// A file that is still incomplete after this time was left by a process that died.
const STALE: Duration = Duration::from_secs(600);

/// At most this many pieces of a subfolder are listed.
const LISTED: usize = 1 << 16;

/// The folder of a disk cache.
pub(super) struct Folder {
    base: PathBuf,
    usage: Usage,
    random: AtomicU64,
    /// How many temporary names were given out.
    written: AtomicU64,
    /// The step at which a test lets the process die; 0: it lives.
    #[cfg(test)]
    pub dies_at: AtomicU64,
}

/// The result of writing a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteResult {
    /// The piece was written. True if the folder had no room for it at first.
    Written(bool),
    /// There was no room, and no piece could be removed for it.
    Full,
    /// The piece was there already.
    Present,
}

/// Which pieces may be removed for a new one, and how many were removed.
#[derive(Default)]
pub(super) struct Evictions {
    /// Whether any piece may be removed. If false, chance decides: one time in [`ADMITTED`], any piece may be removed.
    pub admitted: bool,
    /// Pieces that nobody has used since this time may be removed.
    pub unused_since: Option<SystemTime>,
    /// How many pieces were removed.
    pub evicted: u64,
    /// Whether unused pieces were among them.
    pub unused: bool,
}

/// Returns the bytes that a file of `len` bytes takes on the disk.
pub(super) fn charge(len: u64) -> u64 {
    len.saturating_add(BLOCK - 1) / BLOCK * BLOCK
}

/// Returns the bytes that the folder below `root` holds, as its usage says. 0 if there is none.
pub(super) fn held(root: &Path) -> u64 {
    super::usage::read_unlocked(&root.join(BASE).join("usage")).map_or(0, |count| count.bytes)
}

/// Returns the bytes that the disk of `path` has free for ordinary users.
pub(super) fn free(path: &Path) -> io::Result<u64> {
    let path = std::ffi::CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: statvfs is plain numbers, for which zeros are valid.
    let mut about: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path ends with a zero, and the structure is there to be written.
    if unsafe { libc::statvfs(path.as_ptr(), &raw mut about) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(about.f_bavail.saturating_mul(about.f_frsize))
}

impl Folder {
    /// Creates the folder below `root` if it is missing, and tries to write to it.
    ///
    /// # Errors
    /// [`Error::value`] if that can't be done.
    pub fn open(root: &Path) -> Result<Self> {
        let base = root.join(BASE);
        let wrong = |e: io::Error| {
            Error::value(format!(
                "cache_dir: expected a folder on a local disk that can be made and written, but {}: {e}",
                root.display()
            ))
        };
        let folder = Self {
            usage: Usage::new(base.join("usage")),
            base,
            random: AtomicU64::new(RandomState::new().build_hasher().finish()),
            written: AtomicU64::new(0),
            #[cfg(test)]
            dies_at: AtomicU64::new(0),
        };
        let probe = folder.temporary();
        let tried = fs::create_dir_all(folder.base.join("tmp"))
            .and_then(|()| file::write(&probe, b"?", b""))
            .and_then(|()| fs::remove_file(&probe))
            .and_then(|()| folder.usage.get());
        match tried.map_err(|e| (e.kind(), e)) {
            // The folder can be used, but the disk is full, or others hold the lock of the usage. The cache keeps no
            // new pieces as long as that lasts.
            Err((io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::WouldBlock, _)) => {
                let _ = fs::remove_file(&probe);
            }
            other => drop(other.map_err(|(_, e)| wrong(e))?),
        }
        Ok(folder)
    }

    /// Returns the bytes that the folder holds, as its usage says. 0 if the usage can't be read.
    pub fn bytes(&self) -> u64 {
        self.usage.get().ok().flatten().map_or(0, |count| count.bytes)
    }

    /// Removes incomplete files of processes that died. Counts the bytes again if there were such files, or the last
    /// count is old or missing.
    pub fn tidy(&self) {
        let stale = self.remove_stale();
        if stale || self.usage.get().ok().flatten().is_none_or(super::usage::Count::is_old) {
            // If the usage can't be written, no piece will be written either.
            let _ = self.usage.recount(|| self.count());
        }
    }

    /// Looks for the file of a piece.
    pub fn look(&self, name: &Name) -> FileLookup {
        file::look(&self.path(name), name)
    }

    /// Writes a piece, if the folder then holds at most `limit` bytes. Removes other pieces for it as `room` allows.
    ///
    /// # Errors
    /// If it can't be written. No partial file is left.
    pub fn put(&self, piece: &Piece, limit: u64, room: &mut Evictions) -> io::Result<WriteResult> {
        let version = piece.version.as_ref();
        let present = self.look(&piece.name);
        let damaged = matches!(present, FileLookup::Damaged);
        if let FileLookup::Piece(present) = present
            && present.version.as_ref() == version
            && present.len == piece.bytes.len()
        {
            return Ok(WriteResult::Present);
        }
        let Some(head) = file::head(&piece.name, version, piece.size, &piece.bytes) else {
            return Ok(WriteResult::Full);
        };
        let bytes = charge((head.len() + piece.bytes.len()) as u64);
        if bytes > limit {
            return Ok(WriteResult::Full);
        }
        let total = self.usage.change(bytes as i64)?;
        self.step(1)?;
        let full = total > limit;
        if full && !self.drop_unused(limit, room)? {
            let admitted = room.admitted || self.random(ADMITTED) == 0;
            if !admitted || !self.make_room(limit, &mut room.evicted)? {
                self.usage.change(-(bytes as i64))?;
                return Ok(WriteResult::Full);
            }
        }
        self.step(2)?;
        let temporary = self.temporary();
        let result = self.place(&temporary, &self.path(&piece.name), &head, &piece.bytes);
        match result {
            Ok(Some(_)) if damaged => self.usage.mark_stale()?,
            Ok(Some(replaced)) => drop(self.usage.change(-(replaced as i64))?),
            Ok(None) => {}
            Err(e) if died(&e) => return Err(e),
            Err(e) => {
                let _ = fs::remove_file(&temporary);
                self.usage.change(-(bytes as i64))?;
                return Err(e);
            }
        }
        Ok(WriteResult::Written(full))
    }

    /// Writes a file and gives it its name. Returns the bytes on the disk of a file that had this name before.
    fn place(&self, temporary: &Path, path: &Path, head: &[u8], bytes: &[u8]) -> io::Result<Option<u64>> {
        match file::write(temporary, head, bytes) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                // Somebody has removed the folder.
                fs::create_dir_all(self.base.join("tmp"))?;
                file::write(temporary, head, bytes)?;
            }
            other => other?,
        }
        self.step(3)?;
        let replaced = self.take(path);
        match fs::rename(temporary, path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                fs::create_dir_all(path.parent().unwrap_or(&self.base))?;
                fs::rename(temporary, path)?;
            }
            other => other?,
        }
        self.step(4)?;
        Ok(replaced)
    }

    /// Removes a piece.
    pub fn remove(&self, name: &Name) {
        match self.look(name) {
            FileLookup::Piece(_) => drop(self.remove_file(&self.path(name))),
            FileLookup::Damaged => self.discard(name),
            FileLookup::Missing => {}
        }
    }

    /// Removes the file of a damaged piece. Its length may differ from the bytes that were added to the usage, so the
    /// folder is counted again.
    pub fn discard(&self, name: &Name) {
        let path = self.path(name);
        if fs::remove_file(&path).or_else(|_| fs::remove_dir(&path)).is_ok() {
            // If this fails, the folder is counted at the next regular time.
            let _ = self.usage.mark_stale();
        }
    }

    /// Removes a file, and subtracts its bytes from the usage. False if one of the two failed, or another process
    /// removed the file.
    fn remove_file(&self, path: &Path) -> bool {
        // If the usage can't be changed, it is too large until the folder is counted again.
        self.take(path).is_some_and(|bytes| self.usage.change(-(bytes as i64)).is_ok())
    }

    /// Removes a file, and returns the bytes that it took on the disk. If several threads or processes try at the same
    /// time, only one gets the bytes. They are those of the removed file, even if another file gets its name meanwhile.
    fn take(&self, path: &Path) -> Option<u64> {
        let aside = self.temporary();
        // A folder with such a name isn't the cache's.
        fs::symlink_metadata(path).ok().filter(|m| !m.is_dir())?;
        fs::rename(path, &aside).ok()?;
        let bytes = fs::symlink_metadata(&aside).ok().filter(fs::Metadata::is_file).map_or(0, |m| charge(m.len()));
        // If the file can't be removed now, it is removed later with the incomplete files.
        fs::remove_file(&aside).is_ok().then_some(bytes)
    }

    /// Removes unused pieces until the folder holds at most `limit` bytes. False if that is not enough.
    fn drop_unused(&self, limit: u64, room: &mut Evictions) -> io::Result<bool> {
        let Some(since) = room.unused_since else { return Ok(false) };
        for _ in 0..LOOKS.0 {
            let mut all: Vec<_> = self.pieces(self.random(FOLDERS)).take(LISTED).collect();
            for _ in 0..LOOKS.1.min(all.len()) {
                let path = all.swap_remove(self.random(all.len() as u64) as usize);
                let used = fs::symlink_metadata(&path).and_then(|meta| meta.modified());
                if used.is_ok_and(|used| used < since) && self.remove_file(&path) {
                    room.evicted += 1;
                    room.unused = true;
                    if self.usage.change(0)? <= limit {
                        return Ok(true);
                    }
                }
            }
        }
        Ok(false)
    }

    /// Removes random pieces until the folder holds at most `limit` bytes. False if it can't.
    fn make_room(&self, limit: u64, evicted: &mut u64) -> io::Result<bool> {
        let first = self.random(FOLDERS);
        for number in 0..FOLDERS {
            let mut all: Vec<_> = self.pieces((first + number) % FOLDERS).take(LISTED).collect();
            while !all.is_empty() {
                if self.usage.change(0)? <= limit {
                    return Ok(true);
                }
                let victim = all.swap_remove(self.random(all.len() as u64) as usize);
                *evicted += u64::from(self.remove_file(&victim));
            }
        }
        Ok(self.usage.change(0)? <= limit)
    }

    /// Returns the files of pieces in one of the subfolders.
    fn pieces(&self, folder: u64) -> impl Iterator<Item = PathBuf> + use<> {
        let is_piece = |name: &[u8]| name.len() == 32 && name.iter().all(u8::is_ascii_hexdigit);
        let entries = fs::read_dir(self.base.join(format!("{folder:02x}"))).into_iter().flatten().flatten();
        entries.filter(move |e| is_piece(e.file_name().as_bytes())).map(|e| e.path())
    }

    /// Adds up the bytes of all files. Incomplete files come first: a file that gets its name meanwhile may be counted
    /// twice, but none is missed.
    fn count(&self) -> u64 {
        let bytes = |path: &Path| fs::symlink_metadata(path).ok().filter(fs::Metadata::is_file).map_or(0, |m| m.len());
        let written: u64 = self.temporaries().iter().map(|path| charge(bytes(path))).sum();
        let pieces = (0..FOLDERS).flat_map(|folder| self.pieces(folder));
        written + pieces.map(|path| charge(bytes(&path))).sum::<u64>()
    }

    fn temporaries(&self) -> Vec<PathBuf> {
        fs::read_dir(self.base.join("tmp"))
            .map_or_else(|_| Vec::new(), |entries| entries.filter_map(|e| e.ok().map(|e| e.path())).collect())
    }

    /// Removes files that will never be complete. True if there were any.
    fn remove_stale(&self) -> bool {
        let is_stale = |path: &Path| {
            let meta = fs::symlink_metadata(path).ok()?;
            let age = SystemTime::now().duration_since(meta.modified().ok()?).ok()?;
            Some(meta.is_file() && age > STALE)
        };
        let stale = self.temporaries().into_iter().filter(|path| is_stale(path) == Some(true));
        stale.filter(|path| fs::remove_file(path).is_ok()).count() > 0
    }

    fn temporary(&self) -> PathBuf {
        let number = self.written.fetch_add(1, Relaxed);
        // The name must be unique among several readers of this process, and among processes in other containers, which
        // may have the same process id.
        self.base.join("tmp").join(format!("{}-{:016x}-{number}", std::process::id(), self.random.load(Relaxed)))
    }

    fn path(&self, name: &Name) -> PathBuf {
        let half = |seed: u8| {
            let mut hasher = DefaultHasher::new();
            (seed, &name.bytes).hash(&mut hasher);
            hasher.finish()
        };
        let text = format!("{:016x}{:016x}", half(1), half(2));
        self.base.join(&text[..2]).join(text)
    }

    fn random(&self, n: u64) -> u64 {
        below(mix(self.random.fetch_add(dali_zarr_base::random::GOLDEN, Relaxed)), n)
    }

    /// A point at which a test can let the process die.
    #[cfg(test)]
    fn step(&self, number: u64) -> io::Result<()> {
        if self.dies_at.load(Relaxed) == number { Err(io::Error::other("died")) } else { Ok(()) }
    }

    #[cfg(not(test))]
    #[expect(clippy::unused_self, clippy::unnecessary_wraps, reason = "tests have them die here")]
    fn step(&self, _: u64) -> io::Result<()> {
        Ok(())
    }
}

/// Whether a test has let the process die: then nothing is cleaned up.
fn died(e: &io::Error) -> bool {
    cfg!(test) && e.to_string() == "died"
}

#[cfg(test)]
#[path = "tests_folder.rs"]
mod tests;
