//! A manifest: it says where chunks are. In memory it is a table sorted by coordinates, with 32 bytes for each chunk
//! and four for each of its coordinates, and the bytes of inline chunks.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use zstd_safe::{DCtx, DDict};

use super::containers::{Containers, SCHEME};
use super::file::{self, FileKind, Id, MAX_FILE};
use super::flat::Table;
use super::snapshot::damaged;
use crate::ObjectVersion;
use crate::virtual_chunks::version_of;
use dali_zarr_base::error::Result;

/// Most dimensions of an array: NumPy's limit.
const MAX_DIMS: usize = 64;
/// An array or a chunk takes at least this many bytes of the file. Otherwise the file claims more than it holds.
const MIN_BYTES: usize = 16;
/// Most bytes of a virtual chunk's location, with its version.
const MAX_LOCATION: usize = 64 << 10;

/// URL and version of a file with virtual chunks.
type Location = (Arc<str>, Option<ObjectVersion>);

/// The state for reading locations, made once for a manifest. To prepare the dictionary takes 40 us, to decompress a
/// location 0.3 us.
struct Locations<'a> {
    /// The number of each location, its place in [`Manifest::locations`].
    known: HashMap<Location, u32>,
    dictionary: &'a [u8],
    /// `None` until the first compressed location.
    decoder: Option<(DCtx<'static>, DDict<'static>)>,
    text: Vec<u8>,
}

impl Locations<'_> {
    fn decompressed(&mut self, location: &[u8]) -> Result<Arc<str>> {
        let (context, dictionary) = match &mut self.decoder {
            Some(decoder) => decoder,
            none => {
                let dictionary = DDict::try_create(self.dictionary);
                let dictionary = dictionary.ok_or_else(|| damaged("the dictionary of locations isn't one of zstd"))?;
                self.text.reserve_exact(MAX_LOCATION);
                none.insert((DCtx::create(), dictionary))
            }
        };
        context
            .decompress_using_ddict(&mut self.text, location, dictionary)
            .map_err(|e| damaged(&format!("a chunk's location isn't zstd data: {}", zstd_safe::get_error_name(e))))?;
        std::str::from_utf8(&self.text).map(Arc::from).map_err(|_| damaged("a chunk's location isn't UTF-8"))
    }
}

/// Where a chunk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chunk<'a> {
    /// In the manifest.
    Inline(&'a [u8]),
    /// In an object of the repository.
    Native { object: Id, offset: u64, len: u64 },
    /// In a file outside of the repository. If there is a `version`, the file must have it.
    Virtual { url: &'a Arc<str>, version: Option<&'a ObjectVersion>, offset: u64, len: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    Inline,
    Native(Id),
    Virtual(u32),
}

#[derive(Clone, Copy, Debug)]
struct Ref {
    kept: Kept,
    offset: u64,
    len: u64,
}

#[derive(Debug)]
struct Array {
    node: [u8; 8],
    dims: usize,
    /// Where the coordinates of its chunks begin in [`Manifest::coords`].
    coords: usize,
    refs: Range<usize>,
}

#[derive(Debug, Default)]
pub(super) struct Manifest {
    /// Sorted by node.
    arrays: Vec<Array>,
    coords: Vec<u32>,
    refs: Vec<Ref>,
    inline: Vec<u8>,
    /// The files of virtual chunks, each once.
    locations: Vec<Location>,
    location_bytes: u64,
}

impl Manifest {
    /// Parses the file of the manifest `id`.
    ///
    /// # Errors
    /// If it is damaged, or another file.
    pub fn parse(file: &[u8], id: &Id) -> Result<Self> {
        let (_, bytes) = file::open(file, FileKind::Manifest)?;
        let root = Table::root(&bytes)?;
        if root.fixed(0)? != Some(*id) {
            return Err(damaged("expected the manifest of the file's name, but found another one"));
        }
        let dictionary = root.bytes(2)?.unwrap_or_default();
        let mut manifest = Self::default();
        let (known, decoder, text) = (HashMap::new(), None, Vec::new());
        let mut locations = Locations { known, dictionary, decoder, text };
        for array in root.tables(1)? {
            let array = array?;
            let node = array.fixed(0)?.ok_or_else(|| damaged("an array has no number"))?;
            let (coords, first) = (manifest.coords.len(), manifest.refs.len());
            let mut dims = 0;
            for (i, chunk) in array.tables(1)?.enumerate() {
                let chunk = chunk?;
                let index = chunk.numbers(0)?.ok_or_else(|| damaged("a chunk has no coordinates"))?;
                if i == 0 {
                    dims = index.len();
                }
                if index.len() != dims || dims > MAX_DIMS {
                    return Err(damaged("expected equally many coordinates of all chunks of an array"));
                }
                manifest.coords.extend(index);
                let kept = manifest.kept(&chunk, &mut locations)?;
                manifest.refs.push(kept);
                let claimed = manifest.refs.len() * MIN_BYTES + manifest.inline.len() + manifest.coords.len() * 4;
                if claimed > bytes.len() {
                    return Err(damaged("expected chunks that take their share of the file"));
                }
            }
            let of_array = &manifest.coords[coords..];
            if dims > 0 && !of_array.chunks(dims).is_sorted_by(|a, b| a < b)
                || dims == 0 && manifest.refs.len() > first + 1
            {
                return Err(damaged("expected chunks in the order of their coordinates"));
            }
            manifest.arrays.push(Array { node, dims, coords, refs: first..manifest.refs.len() });
            if manifest.arrays.len() * MIN_BYTES > bytes.len() {
                return Err(damaged("expected each array once"));
            }
        }
        manifest.arrays.sort_by_key(|a| a.node);
        manifest.coords.shrink_to_fit();
        manifest.refs.shrink_to_fit();
        manifest.inline.shrink_to_fit();
        Ok(manifest)
    }

    fn kept(&mut self, chunk: &Table<'_>, locations: &mut Locations<'_>) -> Result<Ref> {
        let (offset, len) = (chunk.u64(2)?, chunk.u64(3)?);
        if offset.checked_add(len).is_none() {
            return Err(damaged("a chunk ends beyond the largest number"));
        }
        if let Some(inline) = chunk.bytes(1)? {
            let offset = self.inline.len() as u64;
            self.inline.extend_from_slice(inline);
            return Ok(Ref { kept: Kept::Inline, offset, len: inline.len() as u64 });
        }
        if let Some(object) = chunk.fixed(4)? {
            return Ok(Ref { kept: Kept::Native(object), offset, len });
        }
        let url: Arc<str> = match (chunk.text(5)?, chunk.bytes(8)?) {
            (Some(location), _) => location.into(),
            (None, Some(compressed)) => locations.decompressed(compressed)?,
            (None, None) => return Err(damaged("a chunk is nowhere")),
        };
        let location = (url, version_of(chunk.text(6)?, chunk.u32(7)?));
        let number = match locations.known.get(&location) {
            Some(&number) => number,
            None => {
                let len = location.0.len() + location.1.as_ref().map_or(0, ObjectVersion::text_bytes);
                self.location_bytes += len as u64;
                if len > MAX_LOCATION || self.location_bytes > MAX_FILE {
                    return Err(damaged("expected shorter locations of chunks"));
                }
                let number = self.locations.len() as u32;
                self.locations.push(location.clone());
                locations.known.insert(location, number);
                number
            }
        };
        Ok(Ref { kept: Kept::Virtual(number), offset, len })
    }

    /// Whether virtual chunks lie in containers that are named.
    pub fn has_containers(&self) -> bool {
        self.locations.iter().any(|(url, _)| url.starts_with(SCHEME))
    }

    /// Replaces names of containers by their URLs. Those without a URL stay: only their chunks can't be read.
    ///
    /// # Errors
    /// If the URLs take too much memory.
    pub fn resolve(&mut self, containers: &Containers) -> Result<()> {
        for (location, _) in &mut self.locations {
            let Some(url) = containers.url(location) else { continue };
            self.location_bytes = self.location_bytes - location.len() as u64 + url.len() as u64;
            if self.location_bytes > MAX_FILE {
                return Err(damaged("expected shorter locations of chunks"));
            }
            *location = url;
        }
        Ok(())
    }

    /// Returns where a chunk is; `None` if the manifest doesn't have it.
    pub fn find(&self, node: &[u8; 8], coords: &[u32]) -> Option<Chunk<'_>> {
        let array = &self.arrays[self.arrays.binary_search_by_key(node, |a| a.node).ok()?];
        if array.dims != coords.len() {
            return None;
        }
        let of = |i: usize| &self.coords[array.coords + i * array.dims..][..array.dims];
        let (mut from, mut to) = (0, array.refs.len());
        while from < to {
            let middle = from + (to - from) / 2;
            match of(middle).cmp(coords) {
                std::cmp::Ordering::Less => from = middle + 1,
                std::cmp::Ordering::Greater => to = middle,
                std::cmp::Ordering::Equal => return Some(self.chunk(&self.refs[array.refs.start + middle])),
            }
        }
        None
    }

    fn chunk(&self, found: &Ref) -> Chunk<'_> {
        let Ref { kept, offset, len } = *found;
        match kept {
            Kept::Inline => Chunk::Inline(&self.inline[offset as usize..(offset + len) as usize]),
            Kept::Native(object) => Chunk::Native { object, offset, len },
            Kept::Virtual(number) => {
                let (url, version) = &self.locations[number as usize];
                Chunk::Virtual { url, version: version.as_ref(), offset, len }
            }
        }
    }

    /// Returns the bytes that the manifest takes in memory.
    pub fn bytes(&self) -> u64 {
        let refs = self.refs.len() * size_of::<Ref>() + self.coords.len() * 4;
        let locations = self.locations.len() * size_of::<Location>();
        (refs + self.inline.len() + self.arrays.len() * size_of::<Array>() + locations) as u64 + self.location_bytes
    }
}
