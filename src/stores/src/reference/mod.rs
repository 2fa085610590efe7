//! References as stores: they say which parts of other files are the values of keys. kerchunk and VirtualiZarr write
//! them as one JSON [`document`] or as a directory of Parquet files ([`layout`], [`record`]).
//!
//! A document is read when the store is opened. A Parquet file is read when its first reference is needed, and stays in
//! memory. After that a value costs one read, or none if it is inline. The files that are referred to are read as
//! [`VirtualChunks`]: only where the user allows it.

mod document;
mod generator;
mod index;
mod layout;
mod parquet;
mod record;
mod records;
mod targets;
mod template;
#[cfg(test)]
mod tests;
mod url;

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;

use super::virtual_chunks::{VirtualChunks, gone, of_object, version_at};
use super::{ByteRange, Extent, Found, Latency, METADATA_DOCUMENTS, ObjectVersion, Phase, Runtime, Store};
use dali_zarr_base::error::{Code, Error, ErrorKind, Result, Site, shown};
use dali_zarr_base::json;
use index::Index;
use layout::{Layout, RecordRow};
use records::{Record, Records};
use targets::Target;
use url::Resolver;

/// Most bytes of a JSON document. One of ten million references has about 1 GB.
const MAX_DOCUMENT: u64 = 2 << 30;
/// Most bytes of a `.zmetadata`: the same limit as for consolidated metadata.
const MAX_METADATA: u64 = 256 << 20;
/// The key of the document that has all metadata of a directory.
const METADATA: &str = ".zmetadata";

/// A store of references.
pub struct References {
    location: String,
    /// All references of a JSON document; of a directory only the metadata documents.
    index: Index,
    records: Option<Records>,
    virtual_chunks: Arc<VirtualChunks>,
    latency: Latency,
    runtime: Option<Arc<Runtime>>,
}

/// A reference that was found: in the index, or in a row of a Parquet file.
enum Hit<'a> {
    Index(Target<'a>),
    Record(Arc<Record>, usize),
}

impl Hit<'_> {
    fn target(&self) -> Option<Target<'_>> {
        match self {
            Self::Index(target) => Some(*target),
            Self::Record(record, row) => record.targets.get()?.as_ref()?.get(*row),
        }
    }
}

/// Returns the path or URL after the prefix `reference://` or `reference::`, which says that references are there.
/// `None` without the prefix.
pub(super) fn strip_scheme(location: &str) -> Option<&str> {
    let (scheme, rest) = location.split_at_checked("reference://".len()).unwrap_or((location, ""));
    if scheme.eq_ignore_ascii_case("reference://") { Some(rest) } else { location.strip_prefix("reference::") }
}

/// Whether a file of this machine looks like a document of references: by its name or its first byte.
pub(super) fn is_document(file: &Path) -> bool {
    use std::io::Read;
    if file.file_name().and_then(|name| name.to_str()).is_some_and(|name| METADATA_DOCUMENTS.contains(&name)) {
        return false;
    }
    let mut begin = [0; 16];
    let first = std::fs::File::open(file).and_then(|mut f| f.read(&mut begin));
    has_extension(&file.to_string_lossy(), &["json"])
        || first.is_ok_and(|len| begin[..len].trim_ascii_start().starts_with(b"{"))
}

/// Whether a path or URL ends with one of these extensions. Slashes at the end don't matter.
pub(super) fn has_extension(location: &str, extensions: &[&str]) -> bool {
    let extension = location.trim_end_matches('/').rsplit_once('.').map(|(_, extension)| extension);
    extension.is_some_and(|found| extensions.iter().any(|e| found.eq_ignore_ascii_case(e)))
}

impl References {
    /// Opens the document at `key` of `base`. Errors name the store by `location`.
    ///
    /// # Errors
    /// [`Error::value`] if it isn't there, or isn't a document of references.
    pub(super) async fn open_document(
        (base, key): (Arc<dyn Store>, &str),
        location: &str,
        virtual_chunks: Arc<VirtualChunks>,
    ) -> Result<Self> {
        let open = async {
            let bytes = base.get(key, MAX_DOCUMENT, Phase::Building).await?;
            let bytes = bytes.ok_or_else(|| {
                Error::coded(Code::NotFound, "expected a JSON document, but found nothing; check the path")
            })?;
            document::parse(&bytes, Resolver::new(virtual_chunks.directory()))
        };
        let index = open.await.map_err(|e| as_references(location, &e))?;
        Ok(Self::new(location, &base, index, None, virtual_chunks))
    }

    /// Opens the directory of Parquet files in `base`; `None` if it isn't one.
    ///
    /// # Errors
    /// [`Error::value`] if it can't be read.
    pub(super) async fn open_directory(
        base: &Arc<dyn Store>,
        location: &str,
        virtual_chunks: Arc<VirtualChunks>,
    ) -> Result<Option<Self>> {
        let within = |e: Error| as_references(location, &e.within(METADATA));
        let Some(bytes) = base.get(METADATA, MAX_METADATA, Phase::Building).await.map_err(within)? else {
            return Ok(None);
        };
        let Ok(mut metadata) = json::parse(&bytes) else { return Ok(None) };
        drop(bytes);
        if !is_metadata_of_references(&metadata) {
            return Ok(None);
        }
        let layout = Layout::new(&metadata).map_err(within)?;
        let index = documents(&mut metadata).map_err(within)?;
        let records = Records::new(Arc::clone(base), layout, Resolver::new(virtual_chunks.directory()));
        Ok(Some(Self::new(location, base, index, Some(records), virtual_chunks)))
    }

    fn new(
        location: &str,
        base: &Arc<dyn Store>,
        index: Index,
        records: Option<Records>,
        virtual_chunks: Arc<VirtualChunks>,
    ) -> Self {
        let runtime = base.runtime().or_else(|| virtual_chunks.runtime()).cloned();
        // References on a disk mostly refer to files that aren't on a disk.
        let latency = if runtime.is_some() { Latency::Remote } else { Latency::Local };
        Self { location: shown(location), index, records, virtual_chunks, latency, runtime }
    }

    /// Finds the reference of `key`, and reads its Parquet file if need be. `None` if there is no such reference.
    ///
    /// # Errors
    /// If its file can't be read.
    async fn find(&self, key: &str, phase: Phase) -> Result<Option<Hit<'_>>> {
        if let Some(target) = self.index.find(key) {
            return Ok(Some(Hit::Index(target)));
        }
        let Some((records, at)) = self.row(key) else { return Ok(None) };
        let record = records.file(&at);
        records.load(&record, &at, phase).await?;
        Ok(Some(Hit::Record(record, at.row as usize)))
    }

    /// Returns where the reference of a chunk's key is in the Parquet files; `None` if it can't be there.
    fn row<'a>(&self, key: &'a str) -> Option<(&Records, RecordRow<'a>)> {
        let records = self.records.as_ref()?;
        Some((records, records.find(key)?))
    }

    /// Reads bytes of a value that is a whole file.
    async fn read_whole(
        &self,
        url: &Arc<str>,
        range: ByteRange,
        version: Option<&ObjectVersion>,
        phase: Phase,
        to: &mut [u8],
    ) -> Result<Found> {
        // References may be written anew and name another file, so the version of a value has the file's URL.
        let of_file = version.and_then(|version| of_object(version, url, None));
        let found = self.virtual_chunks.read(url, range, of_file, phase, to).await?;
        found.map(|found| of_whole(url, found)).ok_or_else(|| gone(url))
    }

    fn within(&self, key: &str, e: &Error) -> Error {
        e.at(Site::store(&*self.location).key(key))
    }
}

/// Returns size and version of a value that is a whole file, given those of the file.
fn of_whole(url: &Arc<str>, found: Found) -> Found {
    Found { size: found.size, version: version_at(url, None, found.version) }
}

fn as_references(location: &str, e: &Error) -> Error {
    let place = Site::store(location);
    e.within(format!("{place}, as references")).of_kind(ErrorKind::Value).placed(place)
}

/// Makes the index of a directory: its metadata documents, and all of them together as consolidated metadata.
fn documents(metadata: &mut Value) -> Result<Index> {
    let mut index = Index::default();
    let mut add = |key: &str, document: &Value| {
        let i = index.push(key)?;
        let place = index.targets().bytes(document.to_string().as_bytes());
        index.targets().set_inline(i, &place);
        index.targets().check()
    };
    for (key, document) in metadata.get("metadata").and_then(Value::as_object).into_iter().flatten() {
        add(key, document)?;
    }
    if let Some(metadata) = metadata.as_object_mut() {
        metadata.remove("record_size");
    }
    add(METADATA, metadata)?;
    index.finish();
    Ok(index)
}

/// Whether a `.zmetadata` belongs to references, and not to a Zarr group.
pub fn is_metadata_of_references(document: &Value) -> bool {
    layout::record_size(document).is_some()
}

#[async_trait]
impl Store for References {
    fn location(&self) -> &str {
        &self.location
    }

    fn latency(&self) -> Latency {
        self.latency
    }

    fn runtime(&self) -> Option<&Arc<Runtime>> {
        self.runtime.as_ref()
    }

    async fn read(
        &self,
        key: &str,
        range: ByteRange,
        version: Option<&ObjectVersion>,
        phase: Phase,
        to: &mut [u8],
    ) -> Result<Option<Found>> {
        let read = async {
            let hit = self.find(key, phase).await?;
            let found = match hit.as_ref().and_then(Hit::target) {
                None => return Ok(None),
                Some(Target::Inline(bytes)) => {
                    let size = bytes.len() as u64;
                    if let Some((offset, len)) = range.resolve(size, to.len())? {
                        to[..len].copy_from_slice(&bytes[offset as usize..][..len]);
                    }
                    Found { size, version: None }
                }
                Some(Target::Whole(url)) => self.read_whole(url, range, version, phase, to).await?,
                Some(Target::Range { url, offset, len }) => {
                    self.virtual_chunks.read_value(&extent(url, offset, len), range, version, phase, to).await?
                }
            };
            Ok(Some(found))
        };
        read.await.map_err(|e: Error| self.within(key, &e))
    }

    async fn get(&self, key: &str, max: u64, phase: Phase) -> Result<Option<Vec<u8>>> {
        let get = async {
            let hit = self.find(key, phase).await?;
            let (size, extent) = match hit.as_ref().and_then(Hit::target) {
                None => return Ok(None),
                Some(Target::Inline(bytes)) if bytes.len() as u64 <= max => return Ok(Some(bytes.to_vec())),
                Some(Target::Inline(bytes)) => (bytes.len() as u64, None),
                Some(Target::Whole(url)) => {
                    let bytes = self.virtual_chunks.get(url, max, phase).await?;
                    return bytes.map(Some).ok_or_else(|| gone(url));
                }
                Some(Target::Range { url, offset, len }) => (len, Some(extent(url, offset, len))),
            };
            let Some(extent) = extent.filter(|_| size <= max) else {
                return Err(Error::runtime(format!("expected at most {max} bytes, but found {size}")));
            };
            let mut bytes = vec![0; size as usize];
            self.virtual_chunks.read_value(&extent, ByteRange::Whole, None, phase, &mut bytes).await?;
            Ok(Some(bytes))
        };
        get.await.map_err(|e: Error| self.within(key, &e))
    }

    async fn head(&self, key: &str) -> Result<Option<Found>> {
        let head = async {
            let hit = self.find(key, Phase::Running).await?;
            let found = match hit.as_ref().and_then(Hit::target) {
                None => return Ok(None),
                // The value is in memory: no cache is faster.
                Some(Target::Inline(bytes)) => Found { size: bytes.len() as u64, version: None },
                Some(Target::Whole(url)) => {
                    let found = self.virtual_chunks.head(url).await?;
                    of_whole(url, found.ok_or_else(|| gone(url))?)
                }
                Some(Target::Range { url, offset, len }) => {
                    self.virtual_chunks.head_value(&extent(url, offset, len)).await?
                }
            };
            Ok(Some(found))
        };
        head.await.map_err(|e: Error| self.within(key, &e))
    }

    async fn is_version_of_current_target(&self, key: &str, version: &ObjectVersion) -> Result<bool> {
        let hit = self.find(key, Phase::Running).await.map_err(|e| self.within(key, &e))?;
        let (object, range) = match hit.as_ref().and_then(Hit::target) {
            Some(Target::Whole(url)) => (url, None),
            Some(Target::Range { url, offset, len }) => (url, Some((offset, len))),
            Some(Target::Inline(_)) | None => return Ok(false),
        };
        Ok(of_object(version, object, range).is_some())
    }

    /// Looks at the references alone, since they don't change while the store is open. The files that they name aren't
    /// asked.
    async fn exists(&self, key: &str) -> Result<bool> {
        let hit = self.find(key, Phase::Running).await.map_err(|e| self.within(key, &e))?;
        Ok(hit.is_some_and(|hit| hit.target().is_some()))
    }

    async fn children(&self, prefix: &str) -> Result<Option<Vec<String>>> {
        Ok(Some(self.index.children(prefix)))
    }

    fn has_extents(&self) -> bool {
        true
    }

    fn unread_index(&self, key: &str) -> Option<u64> {
        let (records, at) = self.row(key)?;
        let record = records.file(&at);
        record.targets.get().is_none().then_some(record.number)
    }

    async fn read_index(&self, key: &str) -> Result<()> {
        self.find(key, Phase::Running).await.map(drop).map_err(|e| self.within(key, &e))
    }

    fn locate(&self, key: &str) -> Option<Extent> {
        let hit = match self.index.find(key) {
            Some(target) => Hit::Index(target),
            None => {
                let (records, at) = self.row(key)?;
                Hit::Record(records.file(&at), at.row as usize)
            }
        };
        match hit.target()? {
            Target::Range { url, offset, len } => Some(extent(url, offset, len)),
            Target::Inline(_) | Target::Whole(_) => None,
        }
    }

    async fn read_extent(&self, extent: &Extent, phase: Phase, to: &mut [u8]) -> Result<Option<Found>> {
        let Extent { object, version, offset, .. } = extent;
        self.virtual_chunks.read(object, ByteRange::From(*offset), version.as_ref(), phase, to).await
    }
}

fn extent(url: &Arc<str>, offset: u64, len: u64) -> Extent {
    Extent { object: Arc::clone(url), version: None, offset, len }
}
