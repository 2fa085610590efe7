//! Where the bytes of a Zarr hierarchy come from: keys, whole values, and byte ranges of them.
//!
//! A store knows nothing of Zarr. It must never turn a failure into "missing": a missing chunk is a fill value, a
//! failed read is an error. Local stores implement [`Store`], remote ones [`AsyncStore`], by which their chunks are read;
//! for metadata [`Blocking`] makes a [`Store`] of them too.

#![forbid(unsafe_code)]

mod blocking;
mod failed;
mod icechunk;
mod links;
mod local;
pub mod remote;
mod unbuffered;

pub(crate) use unbuffered::PER_THREAD as UNBUFFERED_PER_THREAD;
mod zip;

pub use blocking::Blocking;
pub use icechunk::{Choice, Version};
pub use local::LocalStore;
pub use remote::RemoteStore;
pub use zip::{LocalZip, RemoteZip};

use std::fs::File;
use std::sync::Arc;

use async_trait::async_trait;

use crate::error::{Error, Result};

/// Which bytes of a value go to a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All of them, if the buffer is long enough: else nothing is read, and the size tells.
    Whole,
    /// As many as the buffer has, from this offset on.
    From(u64),
    /// As many as the buffer has, up to the value's end; if there are fewer nothing is read, and the size tells.
    Last,
}

/// When something is read: how patiently, if that takes requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// While a pipeline is built. Somebody waits, and what fails is more often a wrong URL than a busy server.
    Building,
    /// While it runs: as many tries as the options allow.
    Running,
}

/// What a read came upon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Bytes of the whole value.
    pub size: u64,
    /// What changes whenever the value does (an ETag, a file's times), if the store has such a thing and tells.
    pub version: Option<Arc<str>>,
}

/// A value that is (part of) a file of this machine.
#[derive(Debug)]
pub struct InFile {
    /// Open for reading.
    pub file: File,
    /// Where the value begins in it.
    pub start: u64,
    /// Its bytes.
    pub size: u64,
}

/// Takes bytes as they come.
pub trait Sink: Send {
    /// Bytes come from the first one on, perhaps once more.
    fn begin(&mut self);

    /// The next bytes.
    ///
    /// # Errors
    /// If they can't be right: none are sent any more.
    fn put(&mut self, bytes: &[u8]) -> Result<()>;
}

/// A flat set of values with names such as `t2m/c/0/0/0`, below one location.
pub trait Store: Send + Sync {
    /// The path or URL, as it stands in messages.
    fn location(&self) -> &str;

    /// Reads bytes of the value of `key` to the front of `to`; `None` if there is no such key. With `version` the value must
    /// be the one that [`Found`] told of.
    ///
    /// # Errors
    /// If that can't be found out, if what is there isn't a value, ends before the bytes that [`Part::From`] asks for, or was
    /// replaced. A store that isn't local reads as in [`Phase::Running`].
    fn read(&self, key: &str, part: Part, version: Option<&Arc<str>>, to: &mut [u8]) -> Result<Option<Found>>;

    /// The whole value of `key`, of at most `most` bytes; `None` if there is none. For metadata: a store that isn't local reads as
    /// in [`Phase::Building`].
    ///
    /// # Errors
    /// As [`Self::read`], and if the value is longer.
    fn get(&self, key: &str, most: u64) -> Result<Option<Vec<u8>>>;

    /// [`Self::get`] for each of `keys`, in their order; at the same time where that is faster.
    fn get_many(&self, keys: &[String], most: u64) -> Vec<Result<Option<Vec<u8>>>> {
        keys.iter().map(|key| self.get(key, most)).collect()
    }

    /// Whether `key` has a value. Asks, but reads nothing.
    ///
    /// # Errors
    /// If that can't be found out.
    fn exists(&self, key: &str) -> Result<bool>;

    /// The names right below `prefix` that have names below them in turn (directories), sorted; `None` if the store
    /// can't list.
    ///
    /// # Errors
    /// If listing fails.
    fn children(&self, prefix: &str) -> Result<Option<Vec<String>>>;

    /// Whether values are (parts of) files of this machine, which [`Self::in_file`] opens.
    fn has_files(&self) -> bool {
        false
    }

    /// The value of `key` as bytes of a file, opened for reads past the page cache if the file system has them; `None` if
    /// there is no such key. With `version` the value must be the one that [`Found`] told of.
    ///
    /// # Errors
    /// As [`Self::read`]; or if there are no files.
    fn in_file(&self, key: &str, _version: Option<&Arc<str>>) -> Result<Option<InFile>> {
        Err(Error::runtime(format!("store {}: key {key:?} isn't in a file of this machine", self.location())))
    }

    /// Names the snapshot that is read, if the store has such things.
    fn snapshot(&self) -> Option<String> {
        None
    }

    /// The same store for asynchronous reads, if it isn't local.
    fn remote(&self) -> Option<&Arc<dyn AsyncStore>> {
        None
    }
}

/// A store whose answers have to be waited for, by tasks on the threads of its [`remote::Io`].
#[async_trait]
pub trait AsyncStore: Send + Sync {
    /// As [`Store::location`].
    fn location(&self) -> &str;

    /// The threads that drive its requests.
    fn io(&self) -> &Arc<remote::Io>;

    /// As [`Store::read`], but as patiently as `phase` says; so are all requests that it takes.
    ///
    /// # Errors
    /// As there, after the last try.
    async fn read(
        &self,
        key: &str,
        part: Part,
        version: Option<&Arc<str>>,
        phase: Phase,
        to: &mut [u8],
    ) -> Result<Option<Found>>;

    /// As [`Store::get`], but as patiently as `phase` says; so are all requests that it takes.
    ///
    /// # Errors
    /// As there, after the last try.
    async fn get(&self, key: &str, most: u64, phase: Phase) -> Result<Option<Vec<u8>>>;

    /// What there is of the value of `key`; `None` if there is none. Asks, but reads nothing. In [`Phase::Running`].
    ///
    /// # Errors
    /// If that can't be found out.
    async fn head(&self, key: &str) -> Result<Option<Found>>;

    /// Whether `key` is there, or was a moment ago. In [`Phase::Running`].
    ///
    /// # Errors
    /// If that can't be found out.
    async fn confirm(&self, key: &str) -> Result<bool>;

    /// As [`Store::children`], in [`Phase::Building`].
    ///
    /// # Errors
    /// As there.
    async fn children(&self, prefix: &str) -> Result<Option<Vec<String>>>;

    /// As [`Store::snapshot`].
    fn snapshot(&self) -> Option<String> {
        None
    }
}

/// The bytes of a value of `size` bytes that go to a buffer of `len`: offset and number. `None` if nothing is read.
///
/// # Errors
/// If the value ends before them.
pub(crate) fn window(part: Part, size: u64, len: usize) -> Result<Option<(u64, usize)>> {
    let wanted = len as u64;
    match part {
        Part::Whole => Ok((size <= wanted).then_some((0, size as usize))),
        Part::Last => Ok(size.checked_sub(wanted).map(|offset| (offset, len))),
        Part::From(offset) if offset.checked_add(wanted).is_some_and(|end| end <= size) => Ok(Some((offset, len))),
        Part::From(offset) => Err(Error::runtime(format!(
            "expected {len} bytes at offset {offset}, but the value ends before: it has {size} bytes"
        ))),
    }
}

/// The error for a value of which more bytes would have to be read than is sensible.
fn too_long(location: &str, key: &str, most: u64, size: u64) -> Error {
    Error::runtime(format!("store {location}: key {key:?}: expected at most {most} bytes, but found {size}"))
}

/// Whether `location` is a URL of a store that isn't local.
pub fn is_remote(location: &str) -> bool {
    location.split_once("://").is_some_and(|(scheme, _)| scheme != "file")
}

/// How files of local stores are read.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadFiles {
    /// Past the page cache, but for those that [`Store::get`] gives.
    pub unbuffered: bool,
    /// Telling versions apart also of those that are read whole, which takes time.
    pub versions: bool,
}

/// Opens the stores at `locations`: directories, as paths or `file://` URLs, and URLs of object stores and HTTP servers; and
/// zip archives in any of these. `options` are those of the remote ones, or choose what is read of Icechunk repositories, which all of
/// them are then; `threads` drive requests.
///
/// # Errors
/// [`Error::value`] if there is no store of a kind that is read, or an option is unknown, wrong or a secret.
pub fn open(
    locations: &[String],
    options: &[(String, String)],
    threads: usize,
    how: ReadFiles,
) -> Result<Vec<Arc<dyn Store>>> {
    let mut io = None;
    let (choice, options) = Choice::take(options)?;
    choice.as_ref().map_or(Ok(()), |c| c.check(locations.len()))?;
    let outside = choice.iter().flat_map(|c| &c.outside);
    if !locations.iter().chain(outside).any(|l| is_remote(l)) && !options.is_empty() {
        return Err(Error::value(
            "storage_options: expected none but branch, tag, snapshot_id or virtual_chunks, since every path is local; leave others out, or give \
             the URL of a remote store",
        ));
    }
    if how.unbuffered && locations.iter().all(|l| is_remote(l)) {
        return Err(Error::value(
            "use_o_direct: expected a local path among the stores; servers have page caches of their own",
        ));
    }
    let all: Vec<&String> = locations.iter().chain(choice.iter().flat_map(|c| &c.outside)).collect();
    let mut open = |location: &String| -> Result<Arc<dyn Store>> {
        if !is_remote(location) {
            return open_local(location, how);
        }
        // Stores of other kinds beside it may have options of their own. What none of them knows is refused by each.
        let options: Vec<_> = options
            .iter()
            .filter(|(name, _)| remote::knows(location, name) || !all.iter().any(|other| remote::knows(other, name)))
            .cloned()
            .collect();
        let io = match &io {
            Some(io) => Arc::clone(io),
            None => Arc::clone(io.insert(remote::Io::new(threads)?)),
        };
        open_remote(location, &options, io)
    };
    let stores = locations.iter().map(&mut open).collect::<Result<Vec<_>>>()?;
    let Some(choice) = &choice else { return Ok(stores) };
    let mut repositories = Vec::new();
    for (i, (store, location)) in stores.iter().zip(locations).enumerate() {
        let version = choice.version(i);
        if version.is_none() && choice.outside.is_empty() {
            // What it holds is found out when its metadata are read.
            repositories.push(Arc::clone(store));
            continue;
        }
        let source = |prefix: &String| {
            let store = open(prefix).map_err(|e| e.within("storage_options: virtual_chunks"))?;
            icechunk::Source::new(prefix.clone(), store)
        };
        let sources = choice.outside.iter().map(source).collect::<Result<_>>()?;
        let repository = icechunk::open(store, &version.clone().unwrap_or_default(), sources)?;
        repositories.push(match (repository, version) {
            (Some(repository), _) => repository,
            (None, None) => Arc::clone(store),
            (None, Some(version)) => {
                return Err(Error::value(format!(
                    "store {location}: expected an Icechunk repository, since storage_options choose its {version}, but found none with \
                     it; check the path and the name"
                )));
            }
        });
    }
    Ok(repositories)
}

/// The main branch of the Icechunk repository that `store` holds; `None` if it holds none. Costs requests: for stores in which no
/// metadata of Zarr were found.
///
/// # Errors
/// If there is one that can't be read.
pub fn repository(store: &Arc<dyn Store>) -> Result<Option<Arc<dyn Store>>> {
    icechunk::open(store, &Version::default(), Vec::new())
}

fn open_local(location: &str, how: ReadFiles) -> Result<Arc<dyn Store>> {
    let root = local::root(location)?;
    match zip::split_path(&root) {
        Some(_) if how.unbuffered => Err(Error::value(format!(
            "use_o_direct: expected directories, but store {location} is a zip archive, which is read through the page cache; leave \
             use_o_direct out"
        ))),
        Some((file, inner)) => Ok(Arc::new(LocalZip::open(location, &file, &inner)?)),
        None => Ok(Arc::new(LocalStore::open(location, how)?)),
    }
}

fn open_remote(location: &str, options: &[(String, String)], io: Arc<remote::Io>) -> Result<Arc<dyn Store>> {
    let Some((archive, inner)) = zip::split_url(location) else {
        return Ok(Arc::new(Blocking::new(Arc::new(RemoteStore::open(location, options, io)?))));
    };
    let base = Arc::new(RemoteStore::open(archive, options, Arc::clone(&io))?);
    Ok(Arc::new(Blocking::new(Arc::new(io.block_on(RemoteZip::open(base, &inner))?))))
}
