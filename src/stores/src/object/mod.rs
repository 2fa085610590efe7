//! Stores that are reached by requests: S3, Google Cloud Storage, Azure and plain HTTP, over the crate object_store.
//!
//! That crate knows the services: URLs, signatures, credentials, ranges. This module decides when to try again, when to
//! give up and where to resume ([`transfer`], [`super::retry`]). So this is the same for all services, is counted, and
//! can be tested with any fault. No request is made only to learn a size, except where a service requires it.

mod classify;
mod client;
mod connect;
pub mod credentials;
mod error_body;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod fake;
mod head;
mod hedging;
mod names;
mod options;
mod profile;
mod signing;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_answers;
#[cfg(test)]
mod tests_limits;
#[cfg(test)]
mod tests_names;
mod transfer;
mod validate;

pub(super) use options::knows;

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use object_store::ObjectStore;
use object_store::client::HttpConnector;
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::DELIMITER;
use tokio::time::Instant;

use super::retry::{Fault, Policy, Retries};
use super::shared_failure::SharedFailure;
use super::{ByteRange, Found, Latency, ObjectVersion, Phase, Runtime, Sink, Store};
use client::{Connector, Note};
use dali_zarr_base::error::{Error, Result, Site, shown};
use head::HeadProbe;
use hedging::Hedging;
use names::ObjectName;
use options::OwnOptions;
use transfer::{Target, Transfer};

/// How long a key that was found is assumed to exist. So the metadata of a sparse array are asked for once in that
/// time, not for each missing chunk.
const EXISTS: Duration = Duration::from_secs(10);

/// Most bytes of all names of a list.
const MAX_NAMES: usize = 16 << 20;

/// A store that is reached by requests.
pub struct RemoteStore {
    /// The URL, without secrets.
    location: String,
    store: Arc<dyn ObjectStore>,
    /// Path that is put before all keys, with a slash at its end; empty if there is none.
    prefix: String,
    /// Whether it can read the last bytes of an object of unknown size.
    suffixes: bool,
    /// The same store, if it can list keys.
    lists: Option<Arc<dyn PaginatedListStore>>,
    policy: Policy,
    /// Statuses that the user takes for "there is no such key".
    missing: Vec<u16>,
    hedging: Hedging,
    head_probe: HeadProbe,
    runtime: Arc<Runtime>,
    known_keys: Mutex<HashMap<String, Arc<KnownKey>>>,
}

/// Whether a key is known to exist.
#[derive(Default)]
struct KnownKey {
    /// When the key was last found; `None` if never. Locked while a request for it is under way.
    found: tokio::sync::Mutex<Option<Instant>>,
    failure: SharedFailure,
}

impl RemoteStore {
    /// Opens the store at `location`; nothing is sent yet.
    ///
    /// # Errors
    /// [`Error::value`] for unknown URLs and options, wrong values and secrets.
    pub fn open(location: &str, options: &[(String, String)], runtime: Arc<Runtime>) -> Result<Self> {
        #[cfg(any(test, feature = "testing"))]
        if let Some(fake) = fake::fake(location, options, &runtime) {
            return fake;
        }
        let connector = Connector::new(Arc::clone(&runtime.counters));
        Self::open_with(location, options, runtime, connector)
    }

    fn open_with(
        location: &str,
        options: &[(String, String)],
        runtime: Arc<Runtime>,
        connector: Connector<impl HttpConnector>,
    ) -> Result<Self> {
        let (credentials, options) = credentials::take(location, options)?;
        let (OwnOptions { policy, missing }, mut options) = options::divide(&options)?;
        options.extend(credentials);
        let connected = connect::connect(location, &options, connector)?;
        Ok(Self {
            location: shown(location),
            store: connected.store,
            prefix: connected.prefix,
            suffixes: connected.suffixes,
            lists: connected.lists,
            policy,
            missing,
            hedging: Hedging::default(),
            head_probe: HeadProbe::default(),
            runtime,
            known_keys: Mutex::default(),
        })
    }

    fn transfer<'a>(
        &'a self,
        key: &'a str,
        range: ByteRange,
        version: Option<&'a ObjectVersion>,
    ) -> Result<Transfer<'a>> {
        Ok(Transfer { store: self, key, name: self.name(key)?, range, version })
    }

    fn policy(&self, phase: Phase) -> Cow<'_, Policy> {
        match phase {
            Phase::Building => Cow::Owned(self.policy.building()),
            Phase::Running => Cow::Borrowed(&self.policy),
        }
    }

    async fn probe(&self, name: &ObjectName) -> std::result::Result<Found, Fault> {
        self.head_probe.head(&*self.store, name, &self.missing).await
    }

    async fn timed<T>(
        &self,
        request: impl Future<Output = std::result::Result<T, Fault>>,
    ) -> std::result::Result<T, Fault> {
        let limit = self.policy.request;
        tokio::time::timeout(limit, request).await.unwrap_or_else(|_| Err(Fault::late(limit)))
    }

    /// Waits before the next try, and counts it. `have` bytes have arrived so far.
    ///
    /// # Errors
    /// If there is no next try.
    async fn pause(&self, retries: &mut Retries<'_>, fault: Fault, have: u64) -> Result<()> {
        let pause = retries.next_pause(fault, have)?;
        tokio::time::sleep(pause).await;
        self.runtime.counters.retries.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Ok(())
    }

    fn name(&self, key: &str) -> Result<ObjectName> {
        let name = ObjectName::new(&format!("{}{key}", self.prefix));
        name.map_err(|e| self.within(key, &Error::runtime(e.to_string()).caused_by(e)))
    }

    fn within(&self, key: &str, e: &Error) -> Error {
        // An empty key means that the store's URL is that of one value, such as an archive: the URL says all.
        e.at(Site { key: Some(key.to_owned()).filter(|key| !key.is_empty()), ..Site::store(&*self.location) })
    }
}

#[async_trait]
impl Store for RemoteStore {
    fn location(&self) -> &str {
        &self.location
    }

    fn latency(&self) -> Latency {
        Latency::Remote
    }

    fn runtime(&self) -> Option<&Arc<Runtime>> {
        Some(&self.runtime)
    }

    async fn read(
        &self,
        key: &str,
        range: ByteRange,
        version: Option<&ObjectVersion>,
        phase: Phase,
        to: &mut [u8],
    ) -> Result<Option<Found>> {
        self.transfer(key, range, version)?.run(&self.policy(phase), Target::Slice(to)).await
    }

    async fn stream(
        &self,
        key: &str,
        range: Range<u64>,
        version: Option<&ObjectVersion>,
        phase: Phase,
        sink: &mut dyn Sink,
    ) -> Result<Option<Found>> {
        let len = usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(usize::MAX);
        let transfer = self.transfer(key, ByteRange::From(range.start), version)?;
        transfer.run(&self.policy(phase), Target::Sink(sink, len)).await
    }

    async fn get(&self, key: &str, max: u64, phase: Phase) -> Result<Option<Vec<u8>>> {
        let mut bytes = Vec::new();
        let transfer = self.transfer(key, ByteRange::Whole, None)?;
        let found = transfer.run(&self.policy(phase), Target::Grow(&mut bytes, max)).await?;
        Ok(found.map(|_| bytes))
    }

    async fn exists(&self, key: &str) -> Result<bool> {
        let began = Instant::now();
        let known = {
            let mut all = self.known_keys.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(all.entry(key.to_owned()).or_default())
        };
        // Tasks that ask at the same time wait for one answer.
        let mut found = known.found.lock().await;
        if found.is_some_and(|at| at.elapsed() < EXISTS) {
            return Ok(true);
        }
        if let Some(e) = known.failure.since(began) {
            return Err(e);
        }
        let exists = self.head(key).await.inspect_err(|e| known.failure.note(e))?.is_some();
        if exists {
            *found = Some(Instant::now());
        }
        Ok(exists)
    }

    async fn head(&self, key: &str) -> Result<Option<Found>> {
        let name = self.name(key)?;
        let mut retries = Retries::new(&self.policy, &self.location, key);
        loop {
            match self.timed(self.probe(&name)).await {
                Ok(found) => return Ok(Some(found)),
                Err(Fault::Missing) => return Ok(None),
                Err(fault) => self.pause(&mut retries, fault, 0).await.map_err(|e| self.within(key, &e))?,
            }
        }
    }

    async fn children(&self, prefix: &str) -> Result<Option<Vec<String>>> {
        let Some(lists) = &self.lists else { return Ok(None) };
        let below = format!("{}{prefix}", self.prefix);
        let below = match below.trim_matches('/') {
            "" => None,
            below => Some(format!("{below}{DELIMITER}")),
        };
        let policy = self.policy(Phase::Building);
        let mut retries = Retries::new(&policy, &self.location, prefix);
        loop {
            match self.timed(listed(&**lists, below.as_deref())).await {
                Ok(names) => return Ok(Some(names.into_iter().collect())),
                Err(fault) => self.pause(&mut retries, fault, 0).await.map_err(|e| self.within(prefix, &e))?,
            }
        }
    }
}

/// Lists the names directly below `prefix` that have names below them. In pages, because only the request of a page
/// carries a [`Note`].
async fn listed(lists: &dyn PaginatedListStore, prefix: Option<&str>) -> std::result::Result<BTreeSet<String>, Fault> {
    let (mut names, mut page_token, mut bytes) = (BTreeSet::new(), None, 0);
    loop {
        let note = Note::of_list();
        let mut options =
            PaginatedListOptions { delimiter: Some(DELIMITER.into()), page_token, ..PaginatedListOptions::default() };
        options.extensions.insert(note.clone());
        let page = lists.list_paginated(prefix, options).await;
        let page = page.map_err(|e| classify::classify_listing(e, &note))?;
        for name in page.result.common_prefixes.iter().filter_map(|p| p.filename()) {
            let name = note.stand_ins().map_or_else(|| name.to_owned(), |stand_ins| stand_ins.restore(name));
            bytes += name.len();
            names.insert(name);
        }
        if bytes > MAX_NAMES {
            return Err(Fault::Permanent(Error::runtime(format!(
                "expected a list with at most {MAX_NAMES} bytes of names, but found more; give the paths of the arrays"
            ))));
        }
        page_token = page.page_token;
        if page_token.is_none() {
            return Ok(names);
        }
    }
}
