//! The targets of references, in memory: 24 bytes for each, every URL once, and the inline values.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::sync::Arc;

use dali_zarr_base::error::{Error, Result};

/// Most bytes that all references of a store may take in memory.
pub(super) const MAX_BYTES: u64 = 4 << 30;
/// Most bytes of a URL.
pub(super) const MAX_URL: usize = 64 << 10;

/// Where the value of a key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target<'a> {
    /// In the references.
    Inline(&'a [u8]),
    /// All of a file.
    Whole(&'a Arc<str>),
    /// `len` bytes of a file, from `offset` on.
    Range { url: &'a Arc<str>, offset: u64, len: u64 },
}

/// [`Packed::source`] of a value that doesn't exist.
const MISSING: u32 = u32::MAX;
/// [`Packed::source`] of an inline value. Smaller ones are the numbers of URLs.
const INLINE: u32 = u32::MAX - 1;
/// Bytes that a URL takes besides its text: reference counts, and a pointer to it.
const URL_BYTES: u64 = 40;
/// [`Packed::len`] of a whole file.
const WHOLE: u64 = u64::MAX;

#[derive(Clone, Copy, Debug)]
struct Packed {
    source: u32,
    offset: u64,
    len: u64,
}

/// Targets by their numbers, from 0 on.
#[derive(Debug, Default)]
pub(super) struct Targets {
    packed: Vec<Packed>,
    /// Each URL once.
    urls: Vec<Arc<str>>,
    /// Bytes that the URLs take.
    url_bytes: u64,
    inline: Vec<u8>,
    /// The numbers of URLs by their hashes, while targets are added. Of two URLs with the same hash only the first is
    /// found again.
    known: HashMap<u64, u32>,
    hasher: RandomState,
}

impl Targets {
    /// Returns the number of targets.
    pub fn len(&self) -> usize {
        self.packed.len()
    }

    /// Returns the number of a URL, and keeps the URL if it is new.
    ///
    /// # Errors
    /// If the URL is too long, or there are too many.
    pub fn url(&mut self, url: &str) -> Result<u32> {
        // Most references name the same file as the one before.
        if self.urls.last().is_some_and(|last| **last == *url) {
            return Ok(self.urls.len() as u32 - 1);
        }
        let hash = self.hasher.hash_one(url);
        let known = self.known.get(&hash).copied();
        if let Some(number) = known.filter(|&number| *self.urls[number as usize] == *url) {
            return Ok(number);
        }
        let number = self.urls.len() as u32;
        if url.len() > MAX_URL || number >= INLINE {
            return Err(Error::runtime(format!(
                "expected URLs of at most {MAX_URL} bytes, {INLINE} of them, but found one of {} after {number} others",
                url.len()
            )));
        }
        self.urls.push(url.into());
        self.url_bytes += URL_BYTES + url.len() as u64;
        if known.is_none() {
            self.known.insert(hash, number);
        }
        Ok(number)
    }

    /// Keeps an inline value, and returns its place for [`Self::set_inline`].
    pub fn bytes(&mut self, value: &[u8]) -> Range<u64> {
        let at = self.inline.len() as u64;
        self.inline.extend_from_slice(value);
        at..self.inline.len() as u64
    }

    /// Adds a target for a value that doesn't exist yet, and returns the target's number.
    ///
    /// # Errors
    /// If all targets together take too much memory.
    pub fn push(&mut self) -> Result<usize> {
        self.packed.push(Packed { source: MISSING, offset: 0, len: 0 });
        self.check()?;
        Ok(self.packed.len() - 1)
    }

    /// Adds targets for values that don't exist, until there are `len`.
    pub fn grow(&mut self, len: usize) {
        self.packed.resize(len, Packed { source: MISSING, offset: 0, len: 0 });
    }

    /// Sets target number `i` to the inline value at `place`.
    pub fn set_inline(&mut self, i: usize, place: &Range<u64>) {
        self.packed[i] = Packed { source: INLINE, offset: place.start, len: place.end - place.start };
    }

    /// Sets target number `i` to the file of URL number `url`. `range` is an offset and a length if the target is only
    /// a part of the file.
    ///
    /// # Errors
    /// If the end of the range doesn't fit into 64 bits.
    pub fn set_file(&mut self, i: usize, url: u32, range: Option<(u64, u64)>) -> Result<()> {
        let (offset, len) = range.unwrap_or((0, WHOLE));
        if range.is_some_and(|(offset, len)| offset.checked_add(len).is_none_or(|end| end == WHOLE)) {
            return Err(Error::runtime(format!(
                "expected a range within a file, but found {len} bytes at offset {offset}; the references are damaged"
            )));
        }
        self.packed[i] = Packed { source: url, offset, len };
        Ok(())
    }

    /// Returns target number `i`; `None` if its value doesn't exist.
    pub fn get(&self, i: usize) -> Option<Target<'_>> {
        let &Packed { source, offset, len } = self.packed.get(i)?;
        match source {
            MISSING => None,
            INLINE => Some(Target::Inline(&self.inline[offset as usize..(offset + len) as usize])),
            url if len == WHOLE => Some(Target::Whole(&self.urls[url as usize])),
            url => Some(Target::Range { url: &self.urls[url as usize], offset, len }),
        }
    }

    /// Puts targets in another order: number `order[i]` becomes number `i`. Targets that aren't in `order` are dropped.
    pub fn reorder(&mut self, order: &[u32]) {
        self.packed = order.iter().map(|&i| self.packed[i as usize]).collect();
    }

    /// Returns the bytes that all targets together take in memory.
    pub fn memory(&self) -> u64 {
        (self.packed.len() * size_of::<Packed>() + self.inline.len()) as u64 + self.url_bytes
    }

    /// # Errors
    /// If all targets together take too much memory.
    pub fn check(&self) -> Result<()> {
        match self.memory() {
            bytes if bytes <= MAX_BYTES => Ok(()),
            bytes => Err(too_large(bytes)),
        }
    }

    /// Frees the memory that is needed only while targets are added.
    pub fn finish(&mut self) {
        self.known = HashMap::new();
        self.packed.shrink_to_fit();
        self.urls.shrink_to_fit();
        self.inline.shrink_to_fit();
    }
}

/// Makes the error for references that take `bytes` bytes, more than [`MAX_BYTES`].
pub(super) fn too_large(bytes: u64) -> Error {
    Error::runtime(format!(
        "expected references of at most {MAX_BYTES} bytes in memory, but found {bytes}; reference larger chunks, or divide the \
         data set"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_by_their_numbers() {
        let mut targets = Targets::default();
        for i in 0..1000usize {
            assert_eq!(targets.push().unwrap(), i);
            let url = targets.url(&format!("s3://bucket/{}", i % 7)).unwrap();
            assert_eq!(url as usize, i % 7);
            match i % 4 {
                0 => targets.set_file(i, url, None).unwrap(),
                1 => targets.set_file(i, url, Some((i as u64, 5))).unwrap(),
                2 => {
                    let place = targets.bytes(&[i as u8; 3]);
                    targets.set_inline(i, &place);
                }
                _ => {}
            }
        }
        targets.finish();
        for i in 0..1000usize {
            let url = &format!("s3://bucket/{}", i % 7).into();
            let inline = [i as u8; 3];
            let expected = match i % 4 {
                0 => Some(Target::Whole(url)),
                1 => Some(Target::Range { url, offset: i as u64, len: 5 }),
                2 => Some(Target::Inline(&inline)),
                _ => None,
            };
            assert_eq!(targets.get(i), expected);
        }
        assert_eq!(targets.get(1000), None);
        assert!(targets.memory() < 1000 * 24 + 1000 + 8 * 40);
    }

    #[test]
    fn absurd_ranges_and_urls_are_errors() {
        let mut targets = Targets::default();
        let i = targets.push().unwrap();
        for (offset, len) in [(u64::MAX, 1), (1, u64::MAX), (0, u64::MAX), (u64::MAX, 0)] {
            let error = targets.set_file(i, 0, Some((offset, len))).unwrap_err();
            assert!(error.message().contains("expected a range within a file"), "{error}");
        }
        targets.url(&"a".repeat(MAX_URL)).unwrap();
        assert!(targets.url(&"a".repeat(MAX_URL + 1)).is_err());
    }
}
