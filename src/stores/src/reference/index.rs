//! References sorted by key. So bisection finds a key, and the names below a prefix need no list of their own.

use std::cmp::Ordering;

use super::targets::{MAX_BYTES, Target, Targets, too_large};
use dali_zarr_base::error::{Error, Result};

/// Most bytes of a key.
const MAX_KEY: usize = 4 << 10;

/// References by key.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// All keys, one after the other, in the order of their numbers.
    keys: String,
    /// Where each key begins in `keys`.
    begins: Vec<u32>,
    targets: Targets,
}

impl Index {
    /// Returns the targets, to which those of keys are added until [`Self::finish`].
    pub fn targets(&mut self) -> &mut Targets {
        &mut self.targets
    }

    /// Adds a key, and returns the number of its target: so far the value doesn't exist. Of equal keys the last one
    /// counts.
    ///
    /// # Errors
    /// If the key is too long, or the index takes too much memory.
    pub fn push(&mut self, key: &str) -> Result<usize> {
        let begin = u32::try_from(self.keys.len() + key.len()).map_err(|_| too_large(MAX_BYTES + 1))?;
        if key.len() > MAX_KEY {
            return Err(Error::runtime(format!(
                "expected keys of at most {MAX_KEY} bytes, but found one of {}",
                key.len()
            )));
        }
        self.keys.push_str(key);
        self.begins.push(begin - key.len() as u32);
        let memory = self.memory();
        if memory > MAX_BYTES {
            return Err(too_large(memory));
        }
        self.targets.push()
    }

    /// Sorts the keys. Keys are found only after this.
    pub fn finish(&mut self) {
        let mut order: Vec<u32> = (0..self.begins.len() as u32).collect();
        // Of equal keys the last one comes first, and the next step keeps the first.
        order.sort_unstable_by(|&a, &b| self.key(a as usize).cmp(self.key(b as usize)).then(b.cmp(&a)));
        order.dedup_by(|next, kept| self.key(*next as usize) == self.key(*kept as usize));
        let mut keys = String::with_capacity(self.keys.len());
        let mut begins = Vec::with_capacity(order.len());
        for &i in &order {
            begins.push(keys.len() as u32);
            keys.push_str(self.key(i as usize));
        }
        self.targets.reorder(&order);
        self.targets.finish();
        (self.keys, self.begins) = (keys, begins);
    }

    fn key(&self, i: usize) -> &str {
        let end = self.begins.get(i + 1).map_or(self.keys.len(), |&end| end as usize);
        &self.keys[self.begins[i] as usize..end]
    }

    /// Returns the number of the first key that isn't less than `key`.
    fn bound(&self, key: &str) -> usize {
        let (mut from, mut to) = (0, self.begins.len());
        while from < to {
            let middle = from + (to - from) / 2;
            match self.key(middle).cmp(key) {
                Ordering::Less => from = middle + 1,
                _ => to = middle,
            }
        }
        from
    }

    /// Returns where the value of `key` is; `None` if there is none.
    pub fn find(&self, key: &str) -> Option<Target<'_>> {
        let at = self.bound(key);
        (at < self.begins.len() && self.key(at) == key).then(|| self.targets.get(at))?
    }

    /// Returns the names directly below `prefix` that have names below them, sorted. `prefix` is empty or ends with a
    /// slash.
    pub fn children(&self, prefix: &str) -> Vec<String> {
        let mut children: Vec<String> = Vec::new();
        let mut at = self.bound(prefix);
        while at < self.begins.len() {
            let Some(below) = self.key(at).strip_prefix(prefix) else { break };
            match below.split_once('/') {
                Some((name, _)) => {
                    children.extend((!name.is_empty()).then(|| name.to_owned()));
                    // Continues at the first key that isn't below this name: '0' is the character after the slash.
                    at = self.bound(&format!("{prefix}{name}0"));
                }
                None => at += 1,
            }
        }
        children.sort();
        children
    }

    /// Returns the bytes that the index takes in memory.
    pub fn memory(&self) -> u64 {
        self.targets.memory() + (self.keys.len() + self.begins.len() * size_of::<u32>()) as u64
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.begins.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_equal_keys_counts() {
        let mut index = Index::default();
        let keys = ["b/0.0", "a/10", "a/2", ".zgroup", "a/2", "a/b/c/0", "a.b/0", "a/2", ""];
        for (i, key) in keys.iter().enumerate() {
            let at = index.push(key).unwrap();
            let place = index.targets().bytes(&[i as u8]);
            index.targets().set_inline(at, &place);
        }
        index.finish();
        assert_eq!(index.len(), 7);
        for (key, expected) in
            [("b/0.0", Some(0)), ("a/10", Some(1)), ("a/2", Some(7)), ("", Some(8)), ("a/3", None), ("c", None)]
        {
            let expected = expected.map(|i: u8| vec![i]);
            assert_eq!(index.find(key), expected.as_deref().map(Target::Inline), "{key}");
        }
        assert_eq!(index.children(""), ["a", "a.b", "b"]);
        assert_eq!(index.children("a/"), ["b"]);
        assert_eq!(index.children("a/b/"), ["c"]);
        assert!(index.children("none/").is_empty());
        assert!(index.push(&"k".repeat(MAX_KEY + 1)).is_err());
    }
}
