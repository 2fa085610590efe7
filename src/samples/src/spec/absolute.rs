//! Makes the paths of a reader absolute when its arguments are read. The current directory may change afterwards, while
//! stores are opened in another thread, or a reader is opened anew.

use std::path::{Path, PathBuf};

use super::{ArrayArgument, Spec, is_location};
use dali_zarr_base::table::kept::is_name;
use dali_zarr_stores as store;

/// The option of stores with the directory that relative paths in references are relative to.
const DIRECTORY: &str = store::DIRECTORY_OPTION;

impl Spec {
    /// Makes all paths absolute. Relative ones lie below the current directory; if there is none, they stay, and opening
    /// them says so.
    pub(super) fn make_absolute(&mut self) {
        let Ok(current) = std::env::current_dir() else { return };
        self.make_absolute_below(&current);
    }

    fn make_absolute_below(&mut self, current: &Path) {
        let of_array = |name: &mut String| {
            if is_location(name) {
                *name = absolute(name, current);
            }
        };
        self.source.paths.iter_mut().for_each(|path| *path = absolute(path, current));
        // The name of the output stays as it was given.
        self.source.arrays.iter_mut().for_each(|ArrayArgument { array, .. }| of_array(array));
        let samples = &mut self.samples;
        samples.breaks.ends.iter_mut().for_each(of_array);
        [&mut samples.ragged, &mut samples.ragged_ends].into_iter().flatten().for_each(of_array);
        // Other names are those of arrays in the store of `path`.
        let has_store = !self.source.paths.is_empty();
        for table in [&mut samples.starts, &mut self.order.weights].into_iter().flatten() {
            if !is_name(table) && (!has_store || table.ends_with(".npy") || is_location(table)) {
                *table = absolute(table, current);
            }
        }
        if let Some(folder) = self.resources.cache_dir.as_mut().filter(|folder| !folder.starts_with("~")) {
            *folder = folder.to_str().map_or_else(|| current.join(&folder), |text| absolute(text, current).into());
        }
        let options = &mut self.source.storage_options;
        if options.iter().any(|(name, _)| name == store::VIRTUAL_CHUNKS_OPTION)
            && options.iter().all(|(name, _)| name != DIRECTORY)
            && let Some(current) = current.to_str()
        {
            options.push((DIRECTORY.to_owned(), current.to_owned()));
        }
    }
}

/// Returns the absolute path that `location` means. URLs, also those with a link of fsspec's before them, stay.
fn absolute(location: &str, current: &Path) -> String {
    for prefix in ["reference://", "reference::"] {
        let named = location.split_at_checked(prefix.len()).filter(|(scheme, _)| scheme.eq_ignore_ascii_case(prefix));
        if let Some((scheme, rest)) = named {
            return format!("{scheme}{}", absolute(rest, current));
        }
    }
    let is_link = || {
        let link = location.split_once("::").map(|(link, _)| link);
        link.is_some_and(|link| link.bytes().all(|b| b.is_ascii_alphanumeric())) && !current.join(location).exists()
    };
    if location.is_empty() || location.starts_with('/') || location.contains("://") || is_link() {
        return location.to_owned();
    }
    // Without "." in it. ".." stays: it isn't the folder above if it follows a symbolic link.
    let path: PathBuf = current.join(location).components().collect();
    path.into_os_string().into_string().unwrap_or_else(|_| location.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_paths_become_absolute() {
        let folder = tempfile::tempdir().unwrap();
        let current = folder.path().to_str().unwrap();
        std::fs::write(folder.path().join("zip::here"), "").unwrap();
        for (given, expected) in [
            ("a.zarr", "{}/a.zarr"),
            ("./a b//c/", "{}/a b/c"),
            ("../x/../a.zarr", "{}/../x/../a.zarr"),
            (".", "{}"),
            ("zip::here", "{}/zip::here"),
            ("12:30.zarr", "{}/12:30.zarr"),
            ("reference://refs.json", "reference://{}/refs.json"),
            ("reference::a/refs.json", "reference::{}/a/refs.json"),
            ("/a/./b", "/a/./b"),
            ("", ""),
            ("reference://", "reference://"),
            ("reference:///a", "reference:///a"),
            ("file:///a", "file:///a"),
            ("s3://bucket/a", "s3://bucket/a"),
            ("simplecache::s3://bucket/a", "simplecache::s3://bucket/a"),
            ("simplecache::a.zarr", "simplecache::a.zarr"),
        ] {
            assert_eq!(absolute(given, folder.path()), expected.replace("{}", current), "{given}");
        }
    }

    #[test]
    fn all_paths_of_the_arguments() {
        let text = r#"{"path": ["a.zarr", "/b.zarr"], "arrays": {"x": "./c/x", "t": "t2m"}, "breaks": ["../e/ends", "ends"],
            "ragged": "./r/offsets", "starts": "s.npy", "weights": "weights", "cache_dir": "cache",
            "storage_options": {"virtual_chunks": "s3://v/"}}"#;
        let mut spec = Spec::of_arguments(super::super::read::object(text.as_bytes()).unwrap()).unwrap();
        spec.make_absolute_below(Path::new("/now"));
        assert_eq!(spec.source.paths, ["/now/a.zarr", "/b.zarr"]);
        let arrays: Vec<_> = spec.source.arrays.iter().map(|a| (&*a.output, &*a.array)).collect();
        assert_eq!(arrays, [("x", "/now/c/x"), ("t", "t2m")]);
        assert_eq!(spec.samples.breaks.ends, ["/now/../e/ends", "ends"]);
        assert_eq!(spec.samples.ragged.as_deref(), Some("/now/r/offsets"));
        assert_eq!(spec.samples.starts.as_deref(), Some("/now/s.npy"));
        assert_eq!(spec.order.weights.as_deref(), Some("weights"), "the name of an array in the store");
        assert_eq!(spec.resources.cache_dir.as_deref(), Some(Path::new("/now/cache")));
        assert_eq!(spec.source.storage_options[1], (DIRECTORY.to_owned(), "/now".to_owned()));
        let before = spec.source.clone();
        spec.make_absolute_below(Path::new("/later"));
        assert_eq!((spec.source.paths, spec.source.storage_options), (before.paths, before.storage_options));
    }
}
