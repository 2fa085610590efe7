//! Where the bytes of a Zarr hierarchy come from: keys, whole values, and byte ranges of them.
//!
//! A store knows nothing of Zarr. It must never turn a failure into "missing": a missing chunk is a fill value, a
//! failed read is an error.

#![forbid(unsafe_code)]

mod local;

pub use local::LocalStore;

use std::sync::Arc;

use crate::error::{Error, Result};

/// A flat set of values with names such as `t2m/c/0/0/0`, below one location.
pub trait Store: Send + Sync {
    /// The path or URL, as it stands in messages.
    fn location(&self) -> &str;

    /// Opens the value of `key`; `None` if there is none.
    ///
    /// # Errors
    /// If that can't be found out, or what is there isn't a value.
    fn open(&self, key: &str) -> Result<Option<Box<dyn Object>>>;

    /// The whole value of `key`; `None` if there is none.
    ///
    /// # Errors
    /// As [`Self::open`] and [`Object::read_at`].
    fn get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        let Some(object) = self.open(key)? else { return Ok(None) };
        let len = usize::try_from(object.len())
            .map_err(|_| Error::runtime(format!("key {key:?} holds {} bytes, too many for memory", object.len())))?;
        let mut bytes = vec![0; len];
        object.read_at(0, &mut bytes)?;
        Ok(Some(bytes))
    }

    /// Whether `key` has a value. Asks, but reads nothing.
    ///
    /// # Errors
    /// As [`Self::open`].
    fn exists(&self, key: &str) -> Result<bool> {
        Ok(self.open(key)?.is_some())
    }

    /// The names right below `prefix` that have names below them in turn (directories), sorted; `None` if the store
    /// can't list.
    ///
    /// # Errors
    /// If listing fails.
    fn children(&self, prefix: &str) -> Result<Option<Vec<String>>>;
}

/// An open value: later reads see the value that was opened, also if its key is replaced meanwhile.
pub trait Object: Send + Sync {
    /// Bytes.
    fn len(&self) -> u64;

    /// Whether it holds nothing.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `buf` with the bytes from `offset` on.
    ///
    /// # Errors
    /// If they can't be read, or the value ends before.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()>;
}

/// Opens the store at `location`: a directory, as a path or a `file://` URL.
///
/// # Errors
/// [`Error::value`] if there is no store of a kind that is read.
pub fn open(location: &str) -> Result<Arc<dyn Store>> {
    if let Some((scheme, _)) = location.split_once("://")
        && scheme != "file"
    {
        return Err(Error::value(format!(
            "store {location}: expected a local directory (a path or a file:// URL), but found the scheme \
             {scheme:?}, which isn't read; mount or copy the store to a local path"
        )));
    }
    Ok(Arc::new(LocalStore::open(location)?))
}
