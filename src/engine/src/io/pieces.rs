//! The chunks of a merged read, if there is a cache: which chunks the cache has, and which reads bring the others.

use std::ops::Range;

use super::Merge;
use crate::cache::{Cache, Name};
use crate::messages::Read;
use dali_zarr_stores::{ByteRange, Found};

/// The pieces of one merged read (a piece is the range of one chunk), by offset.
pub(super) struct Pieces {
    names: Vec<Name>,
    cached: Vec<bool>,
}

impl Pieces {
    /// Returns the pieces of a read that begins at offset `from`, from store number `store`.
    pub fn new(cache: &Cache, store: usize, read: &Read, from: u64) -> Self {
        let name = |piece: &Range<usize>| {
            cache.name(store, read.name(), ByteRange::From(from + piece.start as u64), piece.len())
        };
        let names: Vec<Name> = read.pieces.iter().map(name).collect();
        let cached = vec![false; names.len()];
        Self { names, cached }
    }

    /// Copies the pieces that the memory cache has to `to`, the destination of the read.
    pub fn get_from_memory(&mut self, cache: &Cache, read: &Read, to: &mut [u8]) {
        let version = read.object.version.as_ref();
        for (i, piece) in read.pieces.iter().enumerate() {
            self.cached[i] = cache.get_from_memory(&self.names[i], version, &mut to[piece.clone()]).is_some();
        }
    }

    /// Whether all pieces were found in the cache.
    pub fn complete(&self) -> bool {
        self.cached.iter().all(|&cached| cached)
    }

    /// Copies the remaining pieces that the disk cache has. Blocks.
    pub fn get_from_disk(&mut self, cache: &Cache, read: &Read, to: &mut [u8]) {
        let Some(version) = &read.object.version else { return };
        for (i, piece) in read.pieces.iter().enumerate() {
            self.cached[i] = self.cached[i] || cache.get_from_disk(&self.names[i], version, &mut to[piece.clone()]);
        }
    }

    /// Returns the ranges that must be read from the store, relative to the start of the read. They don't touch each
    /// other.
    pub fn missing(&self, read: &Read, merge: &Merge) -> Vec<Range<usize>> {
        let mut runs: Vec<Range<usize>> = Vec::new();
        let (mut wanted, mut wasted) = (0u64, 0u64);
        for (piece, _) in read.pieces.iter().zip(&self.cached).filter(|&(_, &cached)| !cached) {
            match runs.last_mut() {
                Some(run) if piece.start <= run.end || merge.spans((piece.start - run.end) as u64, wanted, wasted) => {
                    wasted += piece.start.saturating_sub(run.end) as u64;
                    run.end = run.end.max(piece.end);
                }
                _ => {
                    (wanted, wasted) = (0, 0);
                    runs.push(piece.clone());
                }
            }
            wanted += piece.len() as u64;
        }
        runs
    }

    /// Puts the pieces that were read into the cache. `reads` has the ranges that were read, in order.
    pub fn keep(&self, cache: &Cache, read: &Read, reads: &[(Range<usize>, Found)], to: &[u8]) {
        for (i, piece) in read.pieces.iter().enumerate().filter(|&(i, _)| !self.cached[i]) {
            let run = reads.partition_point(|(run, _)| run.end < piece.end);
            if let Some((_, found)) = reads.get(run) {
                cache.keep(&self.names[i], found, &to[piece.clone()]);
            }
        }
    }
}

/// Returns the length of the piece that a read of `range` brought to a buffer of `to` bytes. `None` if nothing was
/// read: see [`ByteRange`].
pub(super) fn whole(range: ByteRange, found: &Found, to: usize) -> Option<usize> {
    match range {
        ByteRange::Whole => usize::try_from(found.size).ok().filter(|&size| size <= to),
        ByteRange::Last => (found.size >= to as u64).then_some(to),
        ByteRange::From(_) => Some(to),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::{ReadObject, ReadRange};
    use dali_zarr_samples::spec::Spec;
    use dali_zarr_stores::{LocalStore, ObjectVersion, ReadFiles, Store};
    use std::sync::Arc;

    const MERGE: Merge = Merge { gap: 10, limit: 1000, waste: 5 };

    #[test]
    fn what_is_lacking_is_merged_over_small_gaps() {
        let dir = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> =
            Arc::new(LocalStore::open(dir.path().to_str().unwrap(), ReadFiles::default()).unwrap());
        let cache =
            Cache::open(&Spec::default().with(|s| s.resources.cache_size = 1 << 20), &[store]).unwrap().unwrap();
        let pieces = vec![0..10, 10..20, 25..30, 30..32, 32..36, 60..65, 62..72];
        let read = Read {
            id: 0,
            array: 0,
            part: 0,
            key: "k".into(),
            object: ReadObject { name: None, version: Some(ObjectVersion::Tag("v".into())) },
            range: ReadRange::From(100),
            len: 72,
            uploads: Vec::new(),
            pieces,
            gds: None,
        };
        let bytes: Vec<u8> = (0..72).collect();
        let found = Found { size: 500, version: Some(ObjectVersion::Tag("v".into())) };
        let all = Pieces::new(&cache, 0, &read, 100);
        assert_eq!(all.missing(&read, &MERGE), [0..36, 60..72]);
        // Reading the range 10..36 puts the second, third and fifth piece into the cache.
        let mut some = Pieces::new(&cache, 0, &read, 100);
        some.cached = [true, false, false, true, false, true, true].to_vec();
        let missing = some.missing(&read, &MERGE);
        assert!(missing.len() == 1 && missing[0] == (10..36), "{missing:?}");
        some.keep(&cache, &read, &[(10..36, found)], &bytes);
        let mut to = [0; 72];
        let mut next = Pieces::new(&cache, 0, &read, 100);
        next.get_from_memory(&cache, &read, &mut to);
        assert_eq!(next.cached, [false, true, true, false, true, false, false]);
        assert_eq!((&to[10..20], &to[25..30], &to[32..36]), (&bytes[10..20], &bytes[25..30], &bytes[32..36]));
        assert_eq!(next.missing(&read, &MERGE), [0..10, 30..32, 60..72], "too far, and pieces that overlap");
        let object = ReadObject { name: None, version: Some(ObjectVersion::Tag("w".into())) };
        let other = Read { object, pieces: std::iter::once(10..20).collect(), key: "k".into(), ..read };
        let mut of_other = Pieces::new(&cache, 0, &other, 100);
        of_other.get_from_memory(&cache, &other, &mut to);
        assert_eq!(of_other.cached, [false], "of another version");
    }
}
