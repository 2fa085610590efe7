//! Blocking calls of a store whose answers have to be waited for.

use std::sync::Arc;

use futures_util::StreamExt;

use super::{AsyncStore, Found, Part, Phase, Store};
use crate::error::Result;

/// Documents that are asked for at the same time.
const TOGETHER: usize = 64;

/// A remote store as a [`Store`]: each call waits, while the calling thread drives the request.
pub struct Blocking(Arc<dyn AsyncStore>);

impl Blocking {
    /// The same store, for callers that aren't tasks.
    pub fn new(store: Arc<dyn AsyncStore>) -> Self {
        Self(store)
    }

    fn wait<T>(&self, answer: impl Future<Output = T>) -> T {
        self.0.io().block_on(answer)
    }
}

impl Store for Blocking {
    fn location(&self) -> &str {
        self.0.location()
    }

    fn read(&self, key: &str, part: Part, version: Option<&Arc<str>>, to: &mut [u8]) -> Result<Option<Found>> {
        self.wait(self.0.read(key, part, version, Phase::Running, to))
    }

    fn get(&self, key: &str, most: u64) -> Result<Option<Vec<u8>>> {
        self.wait(self.0.get(key, most, Phase::Building))
    }

    fn get_many(&self, keys: &[String], most: u64) -> Vec<Result<Option<Vec<u8>>>> {
        let gets = keys.iter().map(|key| self.0.get(key, most, Phase::Building));
        self.wait(futures_util::stream::iter(gets).buffered(TOGETHER).collect())
    }

    fn exists(&self, key: &str) -> Result<bool> {
        self.wait(self.0.confirm(key))
    }

    fn children(&self, prefix: &str) -> Result<Option<Vec<String>>> {
        self.wait(self.0.children(prefix))
    }

    fn snapshot(&self) -> Option<String> {
        self.0.snapshot()
    }

    fn remote(&self) -> Option<&Arc<dyn AsyncStore>> {
        Some(&self.0)
    }
}
