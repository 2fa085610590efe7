//! From paths, URLs and `storage_options` to stores.

use std::path::Path;
use std::sync::Arc;

use super::icechunk::{IcechunkOptions, Version};
use super::virtual_chunks::VirtualChunks;
use super::zip::{split_path, split_url};
use super::{LocalStore, RemoteStore, Repository, Runtime, Store, Zip, block_on, local, object};
use crate::error::{Error, Result};

/// Whether `location` is the URL of a remote store.
pub fn is_remote(location: &str) -> bool {
    location.split_once("://").is_some_and(|(scheme, _)| !scheme.eq_ignore_ascii_case("file"))
}

/// Refuses chained URLs of fsspec, such as `simplecache::s3://bucket/store`.
fn check_chain(location: &str) -> Result<()> {
    const LINKS: [&str; 6] = ["simplecache", "filecache", "blockcache", "cached", "zip", "tar"];
    let protocols: Vec<&str> = location.split("::").map(|l| l.split_once("://").map_or(l, |(p, _)| p)).collect();
    let Some((_, inner)) = location.rsplit_once("::") else { return Ok(()) };
    // Paths of files and of URLs may have colons too, and so have addresses of IPv6.
    let is_link = LINKS.contains(&protocols[0]) && !Path::new(location).exists();
    if !is_link && (!protocols[0].bytes().all(|b| b.is_ascii_alphanumeric()) || !inner.contains("://")) {
        return Ok(());
    }
    let hint = if protocols.iter().any(|p| p.contains("cache")) {
        ", and cache_dir to keep its chunks on a local disk"
    } else {
        ", with the path inside of it behind it if it is a zip archive"
    };
    let inner = if inner.contains("://") { object::shown(inner) } else { inner.to_owned() };
    Err(Error::value(format!(
        "path: expected a path or a URL, but found a chain of fsspec's ({}), which this reader doesn't follow; give {inner} itself{hint}",
        protocols.join("::")
    )))
}

/// How files of local stores are read.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadFiles {
    /// Past the page cache, except by [`Store::get`].
    pub unbuffered: bool,
    /// Whether versions are told of whole values too, which takes time.
    pub versions: bool,
}

/// The options of one call of [`open`], and what its stores share.
struct Opener<'a> {
    /// Those of remote stores.
    options: Vec<(String, String)>,
    /// Paths, and places of virtual chunks.
    locations: Vec<&'a String>,
    how: ReadFiles,
    threads: usize,
    runtime: Option<Arc<Runtime>>,
}

/// Opens the stores at `locations`: directories (paths or `file://` URLs), object stores and HTTP servers, and zip archives in any
/// of them. `options` belong to the remote ones, or choose what of Icechunk repositories is read; all stores must be repositories
/// then. `threads` threads drive requests.
///
/// # Errors
/// [`Error::value`] if there is no store of a known kind, or an option is unknown, wrong or a secret.
pub fn open(
    locations: &[String],
    options: &[(String, String)],
    threads: usize,
    how: ReadFiles,
) -> Result<Vec<Arc<dyn Store>>> {
    locations.iter().try_for_each(|location| check_chain(location))?;
    let (icechunk, options) = IcechunkOptions::take(options)?;
    icechunk.as_ref().map_or(Ok(()), |i| i.check(locations.len()))?;
    let all: Vec<&String> = locations.iter().chain(icechunk.iter().flat_map(|i| &i.virtual_chunks)).collect();
    if !all.iter().any(|l| is_remote(l)) && !options.is_empty() {
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
    let mut opener = Opener { options, locations: all, how, threads, runtime: None };
    let stores = locations.iter().map(|l| opener.store(l)).collect::<Result<Vec<_>>>()?;
    match &icechunk {
        None => Ok(stores),
        Some(icechunk) => {
            stores.into_iter().enumerate().map(|(i, store)| opener.repository(icechunk, i, store)).collect()
        }
    }
}

/// The main branch of the Icechunk repository that `store` holds; `None` if it holds none. Makes requests: call it only if there are
/// no metadata of Zarr.
///
/// # Errors
/// If there is one that can't be read.
pub fn repository(store: &Arc<dyn Store>) -> Result<Option<Arc<dyn Store>>> {
    let version = Version::default();
    let open = Repository::open(store, &version, VirtualChunks::default());
    Ok(block_on(&**store, open)?.map(|repository| Arc::new(repository) as _))
}

impl Opener<'_> {
    fn store(&mut self, location: &String) -> Result<Arc<dyn Store>> {
        if is_remote(location) { self.remote(location) } else { self.local(location) }
    }

    fn local(&self, location: &str) -> Result<Arc<dyn Store>> {
        let root = local::root(location)?;
        match split_path(&root) {
            Some(_) if self.how.unbuffered => Err(Error::value(format!(
                "use_o_direct: expected directories, but store {location} is a zip archive, which is read through the page cache; leave \
                 use_o_direct out"
            ))),
            Some((file, inner)) => Ok(Arc::new(Zip::open_file(location, &file, &inner)?)),
            None => Ok(Arc::new(LocalStore::open(location, self.how)?)),
        }
    }

    fn remote(&mut self, location: &String) -> Result<Arc<dyn Store>> {
        // Each kind of store gets the options that it knows, and those that no other kind here knows: it refuses them.
        let known = |name: &str| self.locations.iter().any(|other| object::knows(other, name));
        let of_kind = |(name, _): &&(String, String)| object::knows(location, name) || !known(name);
        let options: Vec<_> = self.options.iter().filter(of_kind).cloned().collect();
        let runtime = match &self.runtime {
            Some(runtime) => Arc::clone(runtime),
            None => Arc::clone(self.runtime.insert(Runtime::new(self.threads)?)),
        };
        let Some((archive, inner)) = split_url(location) else {
            return Ok(Arc::new(RemoteStore::open(location, &options, runtime)?));
        };
        let base: Arc<dyn Store> = Arc::new(RemoteStore::open(archive, &options, runtime)?);
        Ok(Arc::new(Zip::open_in(&base, &inner)?))
    }

    /// The repository in store number `i`.
    fn repository(&mut self, icechunk: &IcechunkOptions, i: usize, store: Arc<dyn Store>) -> Result<Arc<dyn Store>> {
        let version = icechunk.version(i);
        if version.is_none() && icechunk.virtual_chunks.is_empty() {
            // Reading its metadata will show what it holds.
            return Ok(store);
        }
        let place = |prefix: &String| {
            let store = self.store(prefix).map_err(|e| e.within("storage_options: virtual_chunks"))?;
            Ok((prefix.clone(), store))
        };
        let places = icechunk.virtual_chunks.iter().map(place).collect::<Result<Vec<_>>>()?;
        let wanted = version.clone().unwrap_or_default();
        let open = Repository::open(&store, &wanted, VirtualChunks::new(places));
        match (block_on(&*store, open)?, version) {
            (Some(repository), _) => Ok(Arc::new(repository)),
            (None, None) => Ok(store),
            (None, Some(version)) => Err(Error::value(format!(
                "store {}: expected an Icechunk repository, since storage_options choose its {version}, but found none with it; check \
                 the path and the name",
                store.location()
            ))),
        }
    }
}
