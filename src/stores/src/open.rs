//! Opens stores from paths, URLs and `storage_options`.

use std::path::Path;
use std::sync::Arc;

use super::icechunk::{IcechunkOptions, Version};
use super::reference::{has_extension, is_document, strip_scheme};
use super::virtual_chunks::VirtualChunks;
use super::zip::{split_path, split_url};
use super::{LocalStore, ReadFiles, References, RemoteStore, Repository, Runtime, Store, Zip, block_on, local, object};
use dali_zarr_base::error::{Error, Result, Site, shown};

/// Whether `location` is the URL of a remote store.
pub fn is_remote(location: &str) -> bool {
    let location = strip_scheme(location).unwrap_or(location);
    location.split_once("://").is_some_and(|(scheme, _)| !scheme.eq_ignore_ascii_case("file"))
}

/// Refuses chained URLs of fsspec, such as `simplecache::s3://bucket/store`.
fn check_chain(location: &str) -> Result<()> {
    const LINKS: [&str; 6] = ["simplecache", "filecache", "blockcache", "cached", "zip", "tar"];
    let protocols: Vec<&str> = location.split("::").map(|l| l.split_once("://").map_or(l, |(p, _)| p)).collect();
    let Some((_, inner)) = location.rsplit_once("::") else { return Ok(()) };
    // Local paths, the paths of URLs and IPv6 addresses may contain colons too.
    let is_link = LINKS.contains(&protocols[0]) && !Path::new(location).exists();
    if !is_link && (!protocols[0].bytes().all(|b| b.is_ascii_alphanumeric()) || !inner.contains("://")) {
        return Ok(());
    }
    let hint = if protocols.iter().any(|p| p.contains("cache")) {
        ", and cache_dir to keep its chunks on a local disk"
    } else {
        ", with the path inside of it behind it if it is a zip archive"
    };
    let inner = shown(inner);
    Err(Error::value(format!(
        "path: expected a path or a URL, but found a chain of fsspec's ({}), which this reader doesn't follow; give {inner} itself{hint}",
        protocols.join("::")
    )))
}

/// Whether the option `virtual_chunks` in `options` names a server.
pub fn has_remote_places(options: &[(String, String)]) -> bool {
    let icechunk = IcechunkOptions::take(options).ok().and_then(|(icechunk, _)| icechunk);
    icechunk.is_some_and(|icechunk| icechunk.virtual_chunks.iter().any(|place| is_remote(place)))
}

/// Opens the stores of one call of [`open`]: holds its options, and what the stores share.
struct Opener<'a> {
    /// Options of remote stores.
    options: Vec<(String, String)>,
    /// Paths and URLs of the stores, and of the places where virtual chunks may lie.
    locations: Vec<&'a str>,
    how: ReadFiles,
    threads: usize,
    runtime: Option<Arc<Runtime>>,
    /// The places where virtual chunks may lie; `None` until they are first needed.
    virtual_chunks: Option<Arc<VirtualChunks>>,
}

/// Opens the stores at `locations`: directories (paths or `file://` URLs), object stores and HTTP servers, zip archives
/// in any of them, and references. `options` configure remote stores, choose the branch, tag or snapshot of Icechunk
/// repositories (a store with such a choice must be a repository), or say where virtual chunks may lie. `threads`
/// threads drive requests.
///
/// # Errors
/// [`Error::value`] if there is no store of a known kind, or an option is unknown, wrong or a secret.
pub fn open(
    locations: &[String],
    options: &[(String, String)],
    threads: usize,
    how: ReadFiles,
) -> Result<Vec<Arc<dyn Store>>> {
    locations.iter().try_for_each(|location| check_chain(strip_scheme(location).unwrap_or(location)))?;
    let (icechunk, options) = IcechunkOptions::take(options)?;
    let icechunk = icechunk.unwrap_or_default();
    icechunk.check(locations.len())?;
    let all = locations.iter().chain(&icechunk.virtual_chunks).map(|l| strip_scheme(l).unwrap_or(l));
    let all: Vec<&str> = all.collect();
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
    let mut opener = Opener { options, locations: all, how, threads, runtime: None, virtual_chunks: None };
    locations.iter().enumerate().map(|(i, location)| opener.any(&icechunk, i, location)).collect()
}

/// Opens the main branch of the Icechunk repository in `store`; `None` if `store` holds no repository. Makes requests,
/// so call it only if `store` has no metadata of Zarr.
///
/// # Errors
/// If there is a repository that can't be read.
pub fn repository(store: &Arc<dyn Store>) -> Result<Option<Arc<dyn Store>>> {
    let version = Version::default();
    let open = Repository::open(store, &version, Arc::default());
    Ok(block_on(&**store, open)?.map(|repository| Arc::new(repository) as _))
}

/// Opens the references in the directory `store`; `None` if it holds none. Files that they refer to can't be read,
/// since no place is allowed.
///
/// # Errors
/// If there are references that can't be read.
pub fn references(store: &Arc<dyn Store>) -> Result<Option<Arc<dyn Store>>> {
    let open = References::open_directory(store, store.location(), Arc::default());
    Ok(block_on(&**store, open)?.map(|references| Arc::new(references) as _))
}

impl Opener<'_> {
    /// Opens store number `i`, which is at `location`.
    fn any(&mut self, icechunk: &IcechunkOptions, i: usize, location: &str) -> Result<Arc<dyn Store>> {
        let version = icechunk.version(i);
        let no_repository = |version: &Version| {
            Error::value(format!(
                "expected an Icechunk repository, since storage_options choose its {version}, but found none with it; \
                 check the path and the name"
            ))
            .at(Site::store(location))
        };
        if let Some(references) = self.references(icechunk, location)? {
            return version.map_or_else(|| Ok(Arc::new(references) as _), |version| Err(no_repository(&version)));
        }
        let store = self.store(location)?;
        if version.is_none() && icechunk.virtual_chunks.is_empty() {
            // Whether it holds a repository or references is found out when its metadata are read.
            return Ok(store);
        }
        let places = self.virtual_chunks(icechunk)?;
        if version.is_none() {
            let open = References::open_directory(&store, location, Arc::clone(&places));
            if let Some(references) = block_on(&*store, open)? {
                return Ok(Arc::new(references));
            }
        }
        let wanted = version.clone().unwrap_or_default();
        let open = Repository::open(&store, &wanted, places);
        match (block_on(&*store, open)?, version) {
            (Some(repository), _) => Ok(Arc::new(repository)),
            (None, None) => Ok(store),
            (None, Some(version)) => Err(no_repository(&version)),
        }
    }

    /// Opens the references at `location`, if its name says that they are there; for a local file also if its first
    /// byte does.
    fn references(&mut self, icechunk: &IcechunkOptions, location: &str) -> Result<Option<References>> {
        let named = strip_scheme(location);
        let inner = named.unwrap_or(location);
        if inner.is_empty() && named.is_some() {
            return Err(Error::value(
                "expected a path or URL behind reference://, such as reference:///data/refs.json, but found nothing; \
                 what fsspec calls \"fo\" goes there",
            )
            .at(Site::store(location)));
        }
        let root = if is_remote(inner) { None } else { Some(local::root(inner)?) };
        let is_file = match &root {
            // A URL is judged by its name, as in fsspec: no request, no listing.
            None => has_extension(inner, &["json"]) || named.is_some() && !has_extension(inner, &["parq", "parquet"]),
            Some(root) => root.is_file() && (named.is_some() || is_document(root)),
        };
        if !is_file && named.is_none() && !has_extension(inner, &["parq", "parquet"]) {
            return Ok(None);
        }
        let places = self.virtual_chunks(icechunk)?;
        if !is_file {
            let base = self.store(inner)?;
            let references = block_on(&*base, References::open_directory(&base, location, places))?;
            return match named {
                Some(_) if references.is_none() => Err(Error::value(
                    "expected references, a JSON document or a directory with .zmetadata and Parquet files, but found \
                     neither; check the path",
                )
                .at(Site::store(location))),
                _ => Ok(references),
            };
        }
        let (base, key): (Arc<dyn Store>, _) = match &root {
            None => (self.store(inner)?, String::new()),
            Some(root) => {
                let (folder, name) = (root.parent().unwrap_or(Path::new("")), root.file_name().unwrap_or_default());
                let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
                let wrong = || Error::value("expected a path in UTF-8").at(Site::store(location));
                let (folder, name) = folder.to_str().zip(name.to_str()).ok_or_else(wrong)?;
                (Arc::new(LocalStore::open(folder, ReadFiles::default())?), name.to_owned())
            }
        };
        block_on(&*base, References::open_document((Arc::clone(&base), &key), location, places)).map(Some)
    }

    /// Opens the stores of the places where virtual chunks may lie. Later calls return the same ones.
    fn virtual_chunks(&mut self, icechunk: &IcechunkOptions) -> Result<Arc<VirtualChunks>> {
        if let Some(virtual_chunks) = &self.virtual_chunks {
            return Ok(Arc::clone(virtual_chunks));
        }
        let place = |prefix: &String| {
            let store = self.store(prefix).map_err(|e| e.within("storage_options: virtual_chunks"))?;
            Ok((prefix.clone(), store))
        };
        let places = icechunk.virtual_chunks.iter().map(place).collect::<Result<Vec<_>>>()?;
        let virtual_chunks = Arc::new(VirtualChunks::new(places, icechunk.directory.clone()));
        Ok(Arc::clone(self.virtual_chunks.insert(virtual_chunks)))
    }

    fn store(&mut self, location: &str) -> Result<Arc<dyn Store>> {
        if is_remote(location) { self.remote(location) } else { self.local(location) }
    }

    fn local(&self, location: &str) -> Result<Arc<dyn Store>> {
        let root = local::root(location)?;
        match split_path(&root) {
            Some(_) if self.how.unbuffered => Err(Error::value(format!(
                "use_o_direct: expected directories, but store {} is a zip archive, which is read through the page cache; leave \
                 use_o_direct out",
                shown(location)
            ))),
            Some((file, inner)) => Ok(Arc::new(Zip::open_file(location, &file, &inner)?)),
            None => Ok(Arc::new(LocalStore::open(location, self.how)?)),
        }
    }

    fn remote(&mut self, location: &str) -> Result<Arc<dyn Store>> {
        // Each kind of store gets the options that it knows. Options that no store here knows go to all of them: they
        // refuse them.
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
}
