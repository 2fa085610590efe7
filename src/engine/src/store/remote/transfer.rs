//! One read of one value: the request, its body on the way to where it belongs, and what is done when it breaks off.
//!
//! A body that breaks off is not lost: the next request asks for the rest, of the same version.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use futures_util::StreamExt;
use futures_util::future::{Either, select};
use object_store::path::Path;
use object_store::{GetOptions, GetRange, GetResult, ObjectMeta};
use tokio::time::{Instant, timeout};

use super::client::Note;
use super::options::Policy;
use super::patience::{Fault, Patience, judge, text};
use super::{Found, Part, RemoteStore};
use crate::error::{Error, Result};
use crate::store::{Sink, too_long};

/// Where bytes go.
pub(super) enum Target<'a> {
    /// To memory of a fixed length.
    Slice(&'a mut [u8]),
    /// To memory that grows up to so many bytes.
    Grow(&'a mut Vec<u8>, u64),
    /// To where so many are taken as they come.
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

    /// Writes `bytes` behind the `at` bytes that count.
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
                return to.put(bytes).map_err(|e| Fault::Lasting(e.message().to_owned()));
            }
        }
        Ok(())
    }
}

/// A body that has begun.
struct Progress {
    /// Offset of its first byte in the value.
    from: u64,
    /// Its bytes.
    len: usize,
    /// Those that are there.
    have: usize,
    meta: ObjectMeta,
}

impl Progress {
    /// Whether another answer can be told to be of the same version.
    fn can_resume(&self) -> bool {
        self.have > 0 && (self.meta.e_tag.is_some() || self.meta.last_modified.timestamp() != 0)
    }

    fn same(&self, other: &ObjectMeta) -> bool {
        let mine = &self.meta;
        mine.size == other.size && mine.e_tag == other.e_tag && mine.last_modified == other.last_modified
    }
}

/// What is to be read.
pub(super) struct Transfer<'a> {
    pub store: &'a RemoteStore,
    pub key: &'a str,
    pub path: Path,
    pub part: Part,
    /// The version that it must be.
    pub version: Option<&'a Arc<str>>,
}

type Outcome<T> = std::result::Result<T, Fault>;

/// `If-Match` compares strongly: weak tags never match.
fn strong(tag: Option<&str>) -> Option<String> {
    tag.filter(|t| !t.starts_with("W/") && !t.trim().is_empty()).map(str::to_owned)
}

/// How the version of a value without a tag begins: as a weak tag, which no condition of a request can be made of.
const DATED: &str = "W/dated ";

/// The server's tag. One without any text tells nothing apart.
fn tag(meta: &ObjectMeta) -> Option<&str> {
    meta.e_tag.as_deref().filter(|tag| !matches!(tag.trim(), "" | "\"\"" | "W/\"\""))
}

/// What tells versions of a value apart: the server's tag, or else size and date.
pub(super) fn version(meta: &ObjectMeta) -> Arc<str> {
    match tag(meta) {
        Some(tag) => tag.into(),
        None => format!("{DATED}{} {}", meta.size, meta.last_modified.timestamp()).into(),
    }
}

/// Whether a version changes with the value: there is a tag, or a date.
pub(crate) fn is_dated_or_tagged(version: &str) -> bool {
    version.strip_prefix(DATED).is_none_or(|rest| !rest.ends_with(" 0"))
}

/// How a version begins that is anything up to a date: what else tells of a value may know no more than when it was read.
const NOT_AFTER: &str = "W/not after ";

/// Whatever a value was until a date, in seconds since 1970.
pub fn not_after(seconds: i64) -> Arc<str> {
    format!("{NOT_AFTER}{seconds}").into()
}

/// Whether an answer is of another version. A server that sends tags only now and then is believed.
fn replaced(wanted: &str, meta: &ObjectMeta) -> bool {
    if let Some(seconds) = wanted.strip_prefix(NOT_AFTER) {
        return seconds.parse().is_ok_and(|s: i64| meta.last_modified.timestamp() > s);
    }
    tag(meta).is_none() == wanted.starts_with(DATED) && *version(meta) != *wanted
}

fn found(meta: &ObjectMeta) -> Found {
    Found { size: meta.size, version: Some(version(meta)) }
}

impl Transfer<'_> {
    /// Reads; `None` if there is no such key.
    ///
    /// # Errors
    /// What lasts, or the last of what the policy's patience was spent on.
    pub async fn run(&self, policy: &Policy, mut to: Target<'_>) -> Result<Option<Found>> {
        if to.len() == 0 && matches!(self.part, Part::From(_) | Part::Last) {
            // There is no request for no bytes.
            return self.nothing(policy).await;
        }
        let mut patience = Patience::new(policy);
        let mut progress = None;
        let (mut seen, mut resumes) = (false, true);
        loop {
            let resumed = progress.is_some();
            let attempt = timeout(policy.request, self.attempt(&mut progress, &mut to)).await;
            let fault = match attempt.unwrap_or_else(|_| Err(Fault::late(policy.request))) {
                Ok(found) => return Ok(Some(found)),
                Err(Fault::Missing) if !seen => return Ok(None),
                // A server that gives whole values only can't go on, but begin again: what was wrong is what broke off before.
                Err(Fault::Lasting(_) | Fault::Refused(_)) if resumed => {
                    (progress, resumes) = (None, false);
                    continue;
                }
                Err(fault) => fault,
            };
            seen |= progress.is_some();
            if fault == Fault::Replaced || !resumes || !progress.as_ref().is_some_and(Progress::can_resume) {
                progress = None;
            }
            let fault = match (fault, self.version) {
                (Fault::Replaced, Some(_)) => Fault::Lasting("it was replaced since its index was read".into()),
                (fault, _) => fault,
            };
            let have = progress.as_ref().map_or(0, |p| p.have as u64);
            self.store.pause(&mut patience, fault, have).await.map_err(|e| self.failed(&e, to.len()))?;
        }
    }

    async fn nothing(&self, policy: &Policy) -> Result<Option<Found>> {
        let mut patience = Patience::new(policy);
        loop {
            match self.store.timed(self.store.ask(&self.path)).await {
                Ok(found) => return Ok(Some(found)),
                Err(Fault::Missing) => return Ok(None),
                Err(fault) => self.store.pause(&mut patience, fault, 0).await.map_err(|e| self.failed(&e, 0))?,
            }
        }
    }

    fn failed(&self, e: &Error, len: usize) -> Error {
        let what = match self.part {
            Part::Whole => "the value".to_owned(),
            Part::From(offset) => format!("bytes {offset} to {}", offset + len as u64),
            Part::Last => format!("the last {len} bytes"),
        };
        self.store.within(self.key, &e.within(format!("{what} can't be read")))
    }

    async fn attempt(&self, progress: &mut Option<Progress>, to: &mut Target<'_>) -> Outcome<Found> {
        let wanted = self.version.map(|v| &**v);
        let (range, tag) = match (&*progress, self.part) {
            (Some(p), _) => {
                (Some(GetRange::Bounded(p.from + p.have as u64..p.from + p.len as u64)), p.meta.e_tag.as_deref())
            }
            (None, Part::Whole) => (None, wanted),
            (None, Part::From(offset)) => (Some(GetRange::Bounded(offset..offset + to.len() as u64)), wanted),
            (None, Part::Last) if self.store.suffixes => (Some(GetRange::Suffix(to.len() as u64)), wanted),
            (None, Part::Last) => {
                let head = self.store.ask(&self.path).await?;
                let Some(offset) = head.size.checked_sub(to.len() as u64) else { return Ok(head) };
                let options = options(Some(GetRange::Bounded(offset..head.size)), head.version.as_deref());
                let answer = self.answer(options).await?;
                return self.body(answer, progress, to).await;
            }
        };
        let answer = self.answer(options(range, tag)).await?;
        self.body(answer, progress, to).await
    }

    /// Asks; and asks once more, if the answer takes much longer than usual.
    async fn answer(&self, options: GetOptions) -> Outcome<GetResult> {
        let store = self.store;
        let send = || {
            let note = Note::default();
            let mut options = options.clone();
            options.extensions.insert(note.clone());
            async move {
                let began = Instant::now();
                let result = store.store.get_opts(&self.path, options).await;
                store.pace.answered(began.elapsed());
                result.map_err(|e| judge(&e, &note.get()))
            }
        };
        let mut first = pin!(send());
        let Some(slow) = store.pace.slow().filter(|_| store.policy.hedge) else { return first.await };
        if let Ok(answer) = timeout(slow, first.as_mut()).await {
            return answer;
        }
        if !store.pace.hedge() {
            return first.await;
        }
        store.io.counters.hedges.fetch_add(1, Relaxed);
        let second = pin!(send());
        let passing = |answer: &Outcome<GetResult>| matches!(answer, Err(Fault::Passing(..) | Fault::Unsent(_)));
        match select(first, second).await {
            Either::Left((answer, other)) if passing(&answer) => other.await,
            Either::Right((answer, other)) if passing(&answer) => other.await,
            Either::Left((answer, _)) | Either::Right((answer, _)) => answer,
        }
    }

    /// Takes a body to where it belongs, or goes on with it.
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
                match (self.part, &*to) {
                    (Part::Whole, Target::Slice(to)) if meta.size > to.len() as u64 => return Ok(found(&meta)),
                    (Part::Whole, Target::Grow(_, most)) if meta.size > *most => {
                        let e = too_long(&self.store.location, self.key, *most, meta.size);
                        return Err(Fault::Lasting(e.message().to_owned()));
                    }
                    (Part::Last, _) if meta.size < to.len() as u64 => return Ok(found(&meta)),
                    (Part::From(offset), _) if range.end < offset + to.len() as u64 => {
                        return Err(Fault::Lasting(format!(
                            "the value ends before: it has {} bytes; it is truncated or was replaced",
                            meta.size
                        )));
                    }
                    _ => {}
                }
                let len = match self.part {
                    Part::Whole => meta.size as usize,
                    _ => to.len(),
                };
                progress.insert(Progress { from: range.start, len, have: 0, meta })
            }
        };
        let mut body = answer.into_stream();
        while let Some(bytes) = body.next().await {
            let bytes = bytes.map_err(|e| Fault::Passing(format!("the answer broke off: {}", text(&e)), None))?;
            self.store.io.counters.bytes.fetch_add(bytes.len() as u64, Relaxed);
            if bytes.len() > p.len - p.have {
                let announced = p.len;
                *progress = None;
                return Err(Fault::Passing(format!("more bytes than the {announced} that were announced"), None));
            }
            to.put(p.have, &bytes)?;
            p.have += bytes.len();
        }
        if p.have < p.len {
            return Err(Fault::Passing(format!("{} bytes instead of {}", p.have, p.len), None));
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
    fn tags_without_text_tell_nothing() {
        let meta = |e_tag: &str, size| ObjectMeta {
            location: Path::from("k"),
            last_modified: Default::default(),
            size,
            e_tag: Some(e_tag.to_owned()),
            version: None,
        };
        for empty in ["", "\"\"", "W/\"\""] {
            assert_eq!(*version(&meta(empty, 5)), *format!("{DATED}5 0"));
            assert!(
                replaced(&version(&meta(empty, 5)), &meta(empty, 6)) && !is_dated_or_tagged(&version(&meta(empty, 5)))
            );
        }
        assert_eq!(*version(&meta("\"x\"", 5)), *"\"x\"");
        assert_eq!(strong(Some("")), None);
    }
}
