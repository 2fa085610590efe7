//! Stores that are reached by requests: S3, Google Cloud Storage, Azure and plain HTTP, over the object_store crate.
//!
//! That crate knows the services: URLs, signatures, credentials, ranges. What is asked how often, when to give up and
//! where to go on is decided here ([`transfer`]), so that it is the same for all of them, can be counted, and can be
//! tested with faults at will. No request is made only to learn a length, except where a service can't do without.

mod asking;
mod client;
mod connect;
#[cfg(test)]
pub(crate) mod fake;
mod io;
mod options;
mod pace;
mod patience;
mod profile;
#[cfg(test)]
mod tests;
mod transfer;
mod values;

pub(super) use connect::{knows, shown};
pub(crate) use io::blocking;
pub use io::{Counters, Io};
pub(crate) use transfer::is_dated_or_tagged;
pub(super) use transfer::not_after;

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use object_store::ObjectStore;
use object_store::client::HttpConnector;
use object_store::path::Path;
use tokio::time::Instant;

use super::failed::Failed;
use super::{AsyncStore, Found, Part, Phase, Sink};
use crate::error::{Error, Result};
use asking::Asking;
use client::Connector;
use options::Policy;
use pace::Pace;
use patience::{Fault, Patience};
use transfer::{Target, Transfer};

/// For so long a key that was seen is taken to be there: a sparse array asks after its metadata once in that time, not
/// once for each missing chunk.
const CONFIRMED: Duration = Duration::from_secs(10);

/// A store that is reached by requests.
pub struct RemoteStore {
    location: String,
    store: Box<dyn ObjectStore>,
    prefix: Path,
    suffixes: bool,
    lists: bool,
    policy: Policy,
    pace: Pace,
    asking: Asking,
    io: Arc<Io>,
    confirmed: Mutex<HashMap<String, Arc<Confirmed>>>,
}

/// What is known of whether a key is there.
#[derive(Default)]
struct Confirmed {
    /// When it was seen. Locked while it is asked for.
    seen: tokio::sync::Mutex<Option<Instant>>,
    failed: Failed,
}

impl RemoteStore {
    /// Opens the store at `location`; nothing is sent yet.
    ///
    /// # Errors
    /// [`Error::value`] for URLs and options that aren't known, make no sense, or hold secrets.
    pub fn open(location: &str, options: &[(String, String)], io: Arc<Io>) -> Result<Self> {
        #[cfg(test)]
        if let Some(fake) = fake::fake(location, options, &io) {
            return fake;
        }
        let connector = Connector::new(Arc::clone(&io.counters));
        Self::open_with(location, options, io, connector)
    }

    fn open_with(
        location: &str,
        options: &[(String, String)],
        io: Arc<Io>,
        connector: impl HttpConnector,
    ) -> Result<Self> {
        let (policy, options) = options::divide(options)?;
        let connected = connect::connect(location, &options, connector)?;
        Ok(Self {
            location: connect::shown(location),
            store: connected.store,
            prefix: connected.prefix,
            suffixes: connected.suffixes,
            lists: connected.lists,
            policy,
            pace: Pace::default(),
            asking: Asking::default(),
            io,
            confirmed: Mutex::default(),
        })
    }

    /// Bytes of a value, for `sink` as they come: they are never in memory all together.
    ///
    /// # Errors
    /// As [`AsyncStore::read`], and what `sink` says.
    pub(super) async fn stream(
        &self,
        key: &str,
        range: Range<u64>,
        version: Option<&Arc<str>>,
        phase: Phase,
        sink: &mut dyn Sink,
    ) -> Result<Option<Found>> {
        let len = usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(usize::MAX);
        let transfer = Transfer { store: self, key, path: self.path(key)?, part: Part::From(range.start), version };
        transfer.run(&self.policy(phase), Target::Sink(sink, len)).await
    }

    fn policy(&self, phase: Phase) -> Cow<'_, Policy> {
        match phase {
            Phase::Building => Cow::Owned(self.policy.building()),
            Phase::Running => Cow::Borrowed(&self.policy),
        }
    }

    async fn ask(&self, path: &Path) -> std::result::Result<Found, Fault> {
        self.asking.ask(&*self.store, path).await
    }

    async fn timed<T>(
        &self,
        request: impl Future<Output = std::result::Result<T, Fault>>,
    ) -> std::result::Result<T, Fault> {
        let limit = self.policy.request;
        tokio::time::timeout(limit, request).await.unwrap_or_else(|_| Err(Fault::late(limit)))
    }

    /// Waits before another try, if there may be one.
    async fn pause(&self, patience: &mut Patience<'_>, fault: Fault, have: u64) -> Result<()> {
        let pause = patience.another(fault, have)?;
        tokio::time::sleep(pause).await;
        self.io.counters.retries.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Ok(())
    }

    fn path(&self, key: &str) -> Result<Path> {
        let path = match self.prefix.as_ref() {
            "" => key.to_owned(),
            prefix => format!("{prefix}/{key}"),
        };
        Path::parse(path).map_err(|e| self.within(key, &Error::runtime(e.to_string())))
    }

    fn within(&self, key: &str, e: &Error) -> Error {
        match key {
            // The URL is a value's own.
            "" => e.within(format!("store {}", self.location)),
            _ => e.within(format!("store {}: key {key:?}", self.location)),
        }
    }
}

#[async_trait]
impl AsyncStore for RemoteStore {
    fn location(&self) -> &str {
        &self.location
    }

    fn io(&self) -> &Arc<Io> {
        &self.io
    }

    async fn read(
        &self,
        key: &str,
        part: Part,
        version: Option<&Arc<str>>,
        phase: Phase,
        to: &mut [u8],
    ) -> Result<Option<Found>> {
        let transfer = Transfer { store: self, key, path: self.path(key)?, part, version };
        transfer.run(&self.policy(phase), Target::Slice(to)).await
    }

    async fn get(&self, key: &str, most: u64, phase: Phase) -> Result<Option<Vec<u8>>> {
        let mut bytes = Vec::new();
        let transfer = Transfer { store: self, key, path: self.path(key)?, part: Part::Whole, version: None };
        let found = transfer.run(&self.policy(phase), Target::Grow(&mut bytes, most)).await?;
        Ok(found.map(|_| bytes))
    }

    async fn confirm(&self, key: &str) -> Result<bool> {
        let began = Instant::now();
        let confirmed = {
            let mut all = self.confirmed.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(all.entry(key.to_owned()).or_default())
        };
        // Whoever asks at the same time waits for the same answer.
        let mut seen = confirmed.seen.lock().await;
        if seen.is_some_and(|at| at.elapsed() < CONFIRMED) {
            return Ok(true);
        }
        if let Some(e) = confirmed.failed.since(began) {
            return Err(e);
        }
        let there = self.head(key).await.inspect_err(|e| confirmed.failed.note(e))?.is_some();
        if there {
            *seen = Some(Instant::now());
        }
        Ok(there)
    }

    async fn head(&self, key: &str) -> Result<Option<Found>> {
        let path = self.path(key)?;
        let mut patience = Patience::new(&self.policy);
        loop {
            match self.timed(self.ask(&path)).await {
                Ok(found) => return Ok(Some(found)),
                Err(Fault::Missing) => return Ok(None),
                Err(fault) => self.pause(&mut patience, fault, 0).await.map_err(|e| self.within(key, &e))?,
            }
        }
    }

    async fn children(&self, prefix: &str) -> Result<Option<Vec<String>>> {
        if !self.lists {
            return Ok(None);
        }
        let path = self.path(prefix)?;
        let policy = self.policy(Phase::Building);
        let mut patience = Patience::new(&policy);
        loop {
            let list = async { self.store.list_with_delimiter(Some(&path)).await.map_err(|e| Fault::of_list(&e)) };
            match self.timed(list).await {
                Ok(list) => {
                    let names = list.common_prefixes.iter().filter_map(|p| p.filename().map(str::to_owned));
                    let mut names: Vec<_> = names.collect();
                    names.sort();
                    return Ok(Some(names));
                }
                Err(fault) => self.pause(&mut patience, fault, 0).await.map_err(|e| self.within(prefix, &e))?,
            }
        }
    }
}
