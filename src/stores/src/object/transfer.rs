//! One read of one value: the request, its body, and what happens when the body breaks off.
//!
//! Bytes that arrived before the break are kept: the next request asks for the rest of the same version.

use std::pin::pin;
use std::sync::atomic::Ordering::Relaxed;

use futures_util::StreamExt;
use futures_util::future::{Either, select};
use object_store::{GetOptions, GetRange, GetResult, ObjectMeta};
use tokio::time::{Instant, timeout};

use super::RemoteStore;
use super::classify::{broken_off, classify};
use super::client::Note;
use super::names::ObjectName;
use crate::retry::{Fault, Policy, Retries};
use crate::{ByteRange, Found, ObjectVersion, Sink, too_long};
use dali_zarr_base::error::{Code, Error, Result, Site};

/// The destination of a read.
pub(super) enum Target<'a> {
    /// Memory of a fixed length.
    Slice(&'a mut [u8]),
    /// Memory that grows with the value, up to this many bytes.
    Grow(&'a mut Vec<u8>, u64),
    /// A sink that takes this many bytes.
    Sink(&'a mut dyn Sink, usize),
}

impl Target<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Slice(to) => to.len(),
            Self::Grow(to, _) => to.len(),
            Self::Sink(_, len) => *len,
        }
    }

    /// Writes `bytes` after the first `at` bytes of the target.
    fn put(&mut self, at: usize, bytes: &[u8]) -> Outcome<()> {
        match self {
            Self::Slice(to) => to[at..at + bytes.len()].copy_from_slice(bytes),
            Self::Grow(to, _) => {
                to.truncate(at);
                to.extend_from_slice(bytes);
            }
            Self::Sink(to, _) => {
                if at == 0 {
                    to.begin();
                }
                return to.put(bytes).map_err(Fault::Permanent);
            }
        }
        Ok(())
    }
}

/// A body that has begun to arrive.
struct Progress {
    /// Offset of its first byte in the value.
    from: u64,
    /// Bytes of the whole body.
    len: usize,
    /// Bytes that have arrived.
    have: usize,
    meta: ObjectMeta,
}

impl Progress {
    /// Whether the next request may ask for the rest: bytes have arrived, and a tag or a date shows whether the next
    /// answer has the same version.
    fn can_resume(&self) -> bool {
        self.have > 0 && (tag(&self.meta).is_some() || self.meta.last_modified.timestamp() != 0)
    }

    fn same(&self, other: &ObjectMeta) -> bool {
        let mine = &self.meta;
        mine.size == other.size && mine.e_tag == other.e_tag && mine.last_modified == other.last_modified
    }
}

/// One read.
pub(super) struct Transfer<'a> {
    pub store: &'a RemoteStore,
    pub key: &'a str,
    pub name: ObjectName,
    pub range: ByteRange,
    /// The version that the value must have.
    pub version: Option<&'a ObjectVersion>,
}

type Outcome<T> = std::result::Result<T, Fault>;

/// Returns the tag for `If-Match`; `None` if it is weak or empty. `If-Match` compares strongly, so weak tags never
/// match.
fn strong(tag: Option<&str>) -> Option<String> {
    tag.filter(|t| !t.starts_with("W/") && !t.trim().is_empty()).map(str::to_owned)
}

/// Returns the server's tag; `None` if there is none or its text is empty.
fn tag(meta: &ObjectMeta) -> Option<&str> {
    meta.e_tag.as_deref().filter(|tag| !matches!(tag.trim(), "" | "\"\"" | "W/\"\""))
}

/// Returns the version of a value: the server's tag, or else its size and date.
pub(super) fn version(meta: &ObjectMeta) -> ObjectVersion {
    match tag(meta) {
        Some(tag) => ObjectVersion::Tag(tag.into()),
        None => ObjectVersion::Dated { size: meta.size, seconds: meta.last_modified.timestamp() },
    }
}

/// Returns the tag that a value must have; `None` if it must have none.
fn wanted_tag(version: Option<&ObjectVersion>) -> Option<&str> {
    match version {
        Some(ObjectVersion::Tag(tag)) => Some(tag),
        _ => None,
    }
}

/// Whether an answer has another version than `wanted`. An answer with a tag isn't compared with a version without one,
/// nor the reverse: it is accepted.
fn replaced(wanted: &ObjectVersion, meta: &ObjectMeta) -> bool {
    match (wanted, tag(meta)) {
        (ObjectVersion::NotAfter(date), _) => meta.last_modified.timestamp() > *date,
        (ObjectVersion::Tag(_), None) | (ObjectVersion::Dated { .. }, Some(_)) => false,
        _ => version(meta) != *wanted,
    }
}

fn found(meta: &ObjectMeta) -> Found {
    Found { size: meta.size, version: Some(version(meta)) }
}

impl Transfer<'_> {
    /// Reads the value or range, with retries; `None` if there is no such key.
    ///
    /// # Errors
    /// A permanent failure, or the last one when the policy allows no more tries.
    pub async fn run(&self, policy: &Policy, mut to: Target<'_>) -> Result<Option<Found>> {
        if to.len() == 0 && matches!(self.range, ByteRange::From(_) | ByteRange::Last) {
            // HTTP has no range of zero bytes.
            return self.nothing(policy).await;
        }
        let mut retries = Retries::new(policy, &self.store.location, self.key);
        let mut progress = None;
        let (mut seen, mut resumes) = (false, true);
        loop {
            let resumed = progress.is_some();
            let attempt = timeout(policy.request, self.attempt(&mut progress, &mut to)).await;
            let fault = match attempt.unwrap_or_else(|_| Err(Fault::late(policy.request))) {
                Ok(found) => return Ok(Some(found)),
                Err(Fault::Missing) if !seen => return Ok(None),
                // A server without ranges can't resume the body, but can send it anew. This refusal isn't counted as a
                // failure: the broken body before it was.
                Err(Fault::Permanent(_) | Fault::Refused(_)) if resumed => {
                    (progress, resumes) = (None, false);
                    continue;
                }
                // So may be one that a status of the user's choice makes a missing key.
                Err(Fault::Missing) if resumed && !self.store.missing.is_empty() => {
                    (progress, resumes) = (None, false);
                    continue;
                }
                Err(fault) => fault,
            };
            seen |= progress.is_some();
            if matches!(fault, Fault::Replaced) || !resumes || !progress.as_ref().is_some_and(Progress::can_resume) {
                progress = None;
            }
            let fault = match (fault, self.version) {
                (Fault::Replaced, Some(_)) => {
                    Fault::Permanent(Error::coded(Code::Replaced, "it was replaced since its index was read"))
                }
                (fault, _) => fault,
            };
            let have = progress.as_ref().map_or(0, |p| p.have as u64);
            self.store.pause(&mut retries, fault, have).await.map_err(|e| self.failed(&e, to.len()))?;
        }
    }

    async fn nothing(&self, policy: &Policy) -> Result<Option<Found>> {
        let mut retries = Retries::new(policy, &self.store.location, self.key);
        loop {
            match self.store.timed(self.store.probe(&self.name)).await {
                Ok(found) => return Ok(Some(found)),
                Err(Fault::Missing) => return Ok(None),
                Err(fault) => self.store.pause(&mut retries, fault, 0).await.map_err(|e| self.failed(&e, 0))?,
            }
        }
    }

    fn failed(&self, e: &Error, len: usize) -> Error {
        let what = match self.range {
            ByteRange::Whole => "the value".to_owned(),
            ByteRange::From(offset) => format!("bytes {offset} to {}", offset + len as u64),
            ByteRange::Last => format!("the last {len} bytes"),
        };
        let range = match self.range {
            ByteRange::From(offset) => Site::default().range(offset, len),
            _ => Site::default(),
        };
        self.store.within(self.key, &e.within(format!("{what} can't be read")).placed(range))
    }

    async fn attempt(&self, progress: &mut Option<Progress>, to: &mut Target<'_>) -> Outcome<Found> {
        let wanted = wanted_tag(self.version);
        let (range, tag) = match (&*progress, self.range) {
            (Some(p), _) => {
                (Some(GetRange::Bounded(p.from + p.have as u64..p.from + p.len as u64)), p.meta.e_tag.as_deref())
            }
            (None, ByteRange::Whole) => (None, wanted),
            (None, ByteRange::From(offset)) => (Some(GetRange::Bounded(offset..offset + to.len() as u64)), wanted),
            (None, ByteRange::Last) if self.store.suffixes => (Some(GetRange::Suffix(to.len() as u64)), wanted),
            (None, ByteRange::Last) => {
                let head = self.store.probe(&self.name).await?;
                let Some(offset) = head.size.checked_sub(to.len() as u64) else { return Ok(head) };
                let options = options(Some(GetRange::Bounded(offset..head.size)), wanted_tag(head.version.as_ref()));
                let answer = self.answer(options).await?;
                return self.body(answer, progress, to).await;
            }
        };
        let answer = self.answer(options(range, tag)).await?;
        self.body(answer, progress, to).await
    }

    /// Sends the request, and a second one if the answer takes much longer than usual.
    async fn answer(&self, options: GetOptions) -> Outcome<GetResult> {
        let store = self.store;
        let send = || {
            let note = Note::of_value(&self.name);
            let mut options = options.clone();
            options.extensions.insert(note.clone());
            async move {
                let began = Instant::now();
                let result = store.store.get_opts(&self.name.path, options).await;
                store.hedging.answered(began.elapsed());
                result.map_err(|e| classify(e, &note, &store.missing))
            }
        };
        let mut first = pin!(send());
        let Some(slow) = store.hedging.slow().filter(|_| store.policy.hedge) else { return first.await };
        if let Ok(answer) = timeout(slow, first.as_mut()).await {
            return answer;
        }
        if !store.hedging.allow() {
            return first.await;
        }
        store.runtime.counters.hedges.fetch_add(1, Relaxed);
        let second = pin!(send());
        let transient = |answer: &Outcome<GetResult>| matches!(answer, Err(Fault::Transient(..) | Fault::Unsent(_)));
        match select(first, second).await {
            Either::Left((answer, other)) if transient(&answer) => other.await,
            Either::Right((answer, other)) if transient(&answer) => other.await,
            Either::Left((answer, _)) | Either::Right((answer, _)) => answer,
        }
    }

    /// Writes the body of an answer to the target, after the bytes that earlier answers brought.
    async fn body(&self, answer: GetResult, progress: &mut Option<Progress>, to: &mut Target<'_>) -> Outcome<Found> {
        let (meta, range) = (answer.meta.clone(), answer.range.clone());
        if self.version.is_some_and(|v| replaced(v, &meta)) {
            return Err(Fault::Replaced);
        }
        if progress.as_ref().is_some_and(|p| !p.same(&meta)) {
            return Err(Fault::Replaced);
        }
        let p = match progress {
            Some(p) => p,
            None => {
                match (self.range, &*to) {
                    (ByteRange::Whole, Target::Slice(to)) if meta.size > to.len() as u64 => return Ok(found(&meta)),
                    (ByteRange::Whole, Target::Grow(_, most)) if meta.size > *most => {
                        let e = too_long(&self.store.location, self.key, *most, meta.size);
                        return Err(Fault::Permanent(e));
                    }
                    (ByteRange::Last, _) if meta.size < to.len() as u64 => return Ok(found(&meta)),
                    (ByteRange::From(offset), _) if range.end < offset + to.len() as u64 => {
                        return Err(Fault::Permanent(Error::damaged(format!(
                            "the value ends before: it has {} bytes; it is truncated or was replaced",
                            meta.size
                        ))));
                    }
                    _ => {}
                }
                let len = match self.range {
                    ByteRange::Whole => meta.size as usize,
                    _ => to.len(),
                };
                progress.insert(Progress { from: range.start, len, have: 0, meta })
            }
        };
        let mut body = answer.into_stream();
        while let Some(bytes) = body.next().await {
            let bytes = bytes.map_err(broken_off)?;
            self.store.runtime.counters.bytes.fetch_add(bytes.len() as u64, Relaxed);
            if bytes.len() > p.len - p.have {
                let announced = p.len;
                *progress = None;
                return Err(Fault::transient(format!("more bytes than the {announced} that were announced")));
            }
            to.put(p.have, &bytes)?;
            p.have += bytes.len();
        }
        if p.have < p.len {
            return Err(Fault::transient(format!("{} bytes instead of {}", p.have, p.len)));
        }
        Ok(found(&p.meta))
    }
}

fn options(range: Option<GetRange>, tag: Option<&str>) -> GetOptions {
    GetOptions { range, if_match: strong(tag), ..GetOptions::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_another_version_are_found() {
        let meta = |e_tag: Option<&str>| ObjectMeta {
            location: "k".into(),
            last_modified: std::time::SystemTime::UNIX_EPOCH
                .checked_add(std::time::Duration::from_secs(50))
                .unwrap()
                .into(),
            size: 5,
            e_tag: e_tag.map(str::to_owned),
            version: None,
        };
        let tag = |text: &str| ObjectVersion::Tag(text.into());
        let dated = |size, seconds| ObjectVersion::Dated { size, seconds };
        let file = ObjectVersion::File { size: 5, seconds: 50, nanoseconds: 0, born: 0 };
        for (wanted, of_tagged, of_untagged) in [
            (tag("\"x\""), false, false),
            (tag("\"y\""), true, false),
            (tag("W/\"x\""), true, false),
            // A tag that looks like a date is a tag.
            (tag("W/dated 5 60"), true, false),
            (dated(5, 50), false, false),
            (dated(6, 50), false, true),
            (dated(5, 51), false, true),
            (ObjectVersion::NotAfter(50), false, false),
            (ObjectVersion::NotAfter(49), true, true),
            (file, true, true),
        ] {
            let is_replaced = [Some("\"x\""), None].map(|e_tag| replaced(&wanted, &meta(e_tag)));
            assert_eq!(is_replaced, [of_tagged, of_untagged], "{wanted:?}");
            let sent = strong(wanted_tag(Some(&wanted)));
            assert_eq!(
                sent.is_some(),
                matches!(&wanted, ObjectVersion::Tag(tag) if tag.starts_with('"')),
                "{wanted:?}"
            );
        }
    }

    #[test]
    fn empty_tags_are_no_tags() {
        let meta = |e_tag: &str, size| ObjectMeta {
            location: "k".into(),
            last_modified: Default::default(),
            size,
            e_tag: Some(e_tag.to_owned()),
            version: None,
        };
        for empty in ["", "\"\"", "W/\"\""] {
            let found = version(&meta(empty, 5));
            assert_eq!(found, ObjectVersion::Dated { size: 5, seconds: 0 });
            assert!(replaced(&found, &meta(empty, 6)) && !found.is_dated_or_tagged());
        }
        assert_eq!(version(&meta("\"x\"", 5)), ObjectVersion::Tag("\"x\"".into()));
        let resumes = |e_tag| Progress { from: 0, len: 9, have: 4, meta: meta(e_tag, 9) }.can_resume();
        assert!(resumes("\"x\"") && !resumes("") && !resumes("\"\""));
        assert_eq!(strong(Some("")), None);
    }
}
