//! References by key: sorted, so that a key is found by bisection and the names below a prefix without a list of them.

use std::cmp::Ordering;

use super::targets::{MAX_BYTES, Target, Targets, too_large};
use crate::error::{Error, Result};

/// The longest key.
const MAX_KEY: usize = 4 << 10;

/// All references of a document.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// All keys, one after the other, in the order of their numbers.
    keys: String,
    /// Where each key begins.
    begins: Vec<u32>,
    targets: Targets,
}

impl Index {
    /// Where targets of keys go, until [`Self::finish`].
    pub fn targets(&mut self) -> &mut Targets {
        &mut self.targets
    }

    /// Adds a key whose value doesn't exist so far, and gives the number of its target. Of equal keys the last one counts.
    ///
    /// # Errors
    /// If it is too long, or all of it takes too much memory.
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

    /// Sorts the keys. Only after that they are found.
    pub fn finish(&mut self) {
        let mut order: Vec<u32> = (0..self.begins.len() as u32).collect();
        // Of equal keys the last one first, which the next step keeps.
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

    /// The number of the first key that isn't less than `key`.
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

    /// Where the value of `key` is; `None` if there is none.
    pub fn find(&self, key: &str) -> Option<Target<'_>> {
        let at = self.bound(key);
        (at < self.begins.len() && self.key(at) == key).then(|| self.targets.get(at))?
    }

    /// The names right below `prefix` (empty, or with a slash at its end) that have names below them in turn, sorted.
    pub fn children(&self, prefix: &str) -> Vec<String> {
        let mut children: Vec<String> = Vec::new();
        let mut at = self.bound(prefix);
        while at < self.begins.len() {
            let Some(below) = self.key(at).strip_prefix(prefix) else { break };
            match below.split_once('/') {
                Some((name, _)) => {
                    children.extend((!name.is_empty()).then(|| name.to_owned()));
                    // On to the first key behind all that begin so: '0' follows the slash.
                    at = self.bound(&format!("{prefix}{name}0"));
                }
                None => at += 1,
            }
        }
        children.sort();
        children
    }

    /// Bytes that it takes.
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
