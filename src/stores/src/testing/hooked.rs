//! A local store for tests that observe, delay or answer reads.

use async_trait::async_trait;

use crate::{ByteRange, Found, Latency, LocalStore, ObjectVersion, Phase, ReadFiles, Store};
use dali_zarr_base::error::Result;

/// Called with each key that is read. If it returns `Some`, that is the answer of [`Store::read`].
type Hook = Box<dyn Fn(&str) -> Option<Found> + Send + Sync>;

/// A local store with a hook for each read.
pub struct Hooked(LocalStore, Hook);

impl Hooked {
    /// Opens the directory at `path`. `hook` is called with each key.
    pub fn open(path: &str, hook: impl Fn(&str) -> Option<Found> + Send + Sync + 'static) -> Self {
        Self(LocalStore::open(path, ReadFiles::default()).unwrap(), Box::new(hook))
    }
}

#[async_trait]
impl Store for Hooked {
    fn location(&self) -> &str {
        self.0.location()
    }
    fn latency(&self) -> Latency {
        Latency::Local
    }
    async fn read(
        &self,
        key: &str,
        range: ByteRange,
        version: Option<&ObjectVersion>,
        phase: Phase,
        to: &mut [u8],
    ) -> Result<Option<Found>> {
        match (self.1)(key) {
            Some(found) => Ok(Some(found)),
            None => self.0.read(key, range, version, phase, to).await,
        }
    }
    async fn get(&self, key: &str, max: u64, phase: Phase) -> Result<Option<Vec<u8>>> {
        (self.1)(key);
        self.0.get(key, max, phase).await
    }
    async fn head(&self, key: &str) -> Result<Option<Found>> {
        self.0.head(key).await
    }
    async fn exists(&self, key: &str) -> Result<bool> {
        self.0.exists(key).await
    }
    async fn children(&self, prefix: &str) -> Result<Option<Vec<String>>> {
        self.0.children(prefix).await
    }
}
