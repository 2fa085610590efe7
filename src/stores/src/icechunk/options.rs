//! The `storage_options` for Icechunk repositories: which snapshot is read, and where virtual chunks may lie.

use std::path::PathBuf;

use dali_zarr_base::error::{Error, Result, shown};

/// The option with the places where virtual chunks may lie.
pub const VIRTUAL_CHUNKS_OPTION: &str = "virtual_chunks";
/// A hidden option beside [`VIRTUAL_CHUNKS_OPTION`]: the directory that relative paths in references are relative to, as
/// it was current when the reader was made.
pub const DIRECTORY_OPTION: &str = "_directory";

/// Which snapshot is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Version {
    /// The latest snapshot of a branch.
    Branch(String),
    /// The snapshot of a tag.
    Tag(String),
    /// A snapshot by its name.
    Snapshot(String),
}

impl Default for Version {
    fn default() -> Self {
        Self::Branch("main".into())
    }
}

/// Which snapshot of each repository is read, and where virtual chunks may lie.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IcechunkOptions {
    /// Empty: no version is chosen. One element: it holds for all stores. Otherwise one element for each store. An
    /// element of `None` chooses no version, and the store may be no repository.
    versions: Vec<Option<Version>>,
    /// URLs below which virtual chunks may lie. Each ends with a slash.
    pub virtual_chunks: Vec<String>,
    /// The directory that relative paths in references are relative to; `None`: the current one.
    pub directory: Option<PathBuf>,
}

/// Names and values of options.
type Options = Vec<(String, String)>;

impl IcechunkOptions {
    /// Divides `options` into those of Icechunk, if there are any, and the others.
    ///
    /// # Errors
    /// [`Error::value`] if several options choose a version, or a place of virtual chunks isn't a URL.
    pub fn take(options: &[(String, String)]) -> Result<(Option<Self>, Options)> {
        let mut chosen: Option<(String, Vec<Option<Version>>)> = None;
        let mut virtual_chunks = Vec::new();
        let mut directory = None;
        let mut rest = Vec::new();
        for (name, value) in options {
            let wanted = match name.trim().to_ascii_lowercase().as_str() {
                "branch" => vec![Some(Version::Branch(value.clone()))],
                "tag" => vec![Some(Version::Tag(value.clone()))],
                "snapshot_id" if !value.contains(',') => vec![Some(Version::Snapshot(value.clone()))],
                "snapshot_id" => {
                    let of_each = value.split(',').map(str::trim);
                    of_each.map(|id| (!id.is_empty()).then(|| Version::Snapshot(id.to_owned()))).collect()
                }
                DIRECTORY_OPTION => {
                    directory = Some(PathBuf::from(value));
                    continue;
                }
                VIRTUAL_CHUNKS_OPTION => {
                    for url in value.split(',').map(str::trim).filter(|url| !url.is_empty()) {
                        let Some((scheme, rest)) = url.split_once("://") else {
                            return Err(Error::value(format!(
                                "storage_options: virtual_chunks: expected URLs with commas between them, such as \
                                 \"file:///data/,s3://bucket/\", but found {:?}",
                                shown(url)
                            )));
                        };
                        if scheme.eq_ignore_ascii_case("vcc") {
                            return Err(Error::value(format!(
                                "storage_options: virtual_chunks: expected URLs of the places themselves, but found {url}, the name \
                                 of one; give the URL that the repository's configuration has for it (url_prefix)"
                            )));
                        }
                        // The root of a file system is the slash alone.
                        virtual_chunks.push(format!(
                            "{}://{}/",
                            scheme.to_ascii_lowercase(),
                            rest.trim_end_matches('/')
                        ));
                    }
                    continue;
                }
                _ => {
                    rest.push((name.clone(), value.clone()));
                    continue;
                }
            };
            if let Some((other, _)) = chosen.replace((name.clone(), wanted)) {
                return Err(Error::value(format!(
                    "storage_options: expected one of branch, tag and snapshot_id, but found {other} and {name}"
                )));
            }
        }
        let any = chosen.is_some() || !virtual_chunks.is_empty();
        let versions = chosen.map(|(_, versions)| versions).unwrap_or_default();
        Ok((any.then_some(Self { versions, virtual_chunks, directory }), rest))
    }

    /// # Errors
    /// [`Error::value`] if there are several versions, but not one for each of `stores` stores.
    pub fn check(&self, stores: usize) -> Result<()> {
        match self.versions.len() {
            n if n <= 1 || n == stores => Ok(()),
            n => Err(Error::value(format!(
                "storage_options: snapshot_id: expected one for all paths, or as many as there are in path ({stores}), but found \
                 {n}; leave entries of paths empty of which none is to be chosen"
            ))),
        }
    }

    /// Returns the version that is chosen for store number `i`. `None`: the store may be no repository.
    pub fn version(&self, i: usize) -> Option<Version> {
        match self.versions.as_slice() {
            [] => None,
            [all] => all.clone(),
            each => each.get(i).cloned().flatten(),
        }
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Branch(name) => write!(f, "branch {name:?}"),
            Self::Tag(name) => write!(f, "tag {name:?}"),
            Self::Snapshot(name) => write!(f, "snapshot {name:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(options: &[(&str, &str)]) -> Result<(Option<IcechunkOptions>, Options)> {
        IcechunkOptions::take(&options.iter().map(|&(k, v)| (k.to_owned(), v.to_owned())).collect::<Vec<_>>())
    }

    #[test]
    fn one_version_for_all_or_one_for_each() {
        let snapshot = |id: &str| Some(Version::Snapshot(id.to_owned()));
        let all = taken(&[("Snapshot_ID", "A")]).unwrap().0.unwrap();
        assert_eq!((all.version(0), all.version(7)), (snapshot("A"), snapshot("A")));
        assert!(all.check(1).is_ok() && all.check(9).is_ok());
        let each = taken(&[("snapshot_id", "A, ,B")]).unwrap().0.unwrap();
        assert_eq!([0, 1, 2].map(|i| each.version(i)), [snapshot("A"), None, snapshot("B")]);
        assert!(each.check(3).is_ok());
        for stores in [1, 2, 4] {
            let error = each.check(stores).unwrap_err();
            assert!(error.message().contains(&format!("in path ({stores}), but found 3")), "{error}");
        }
        let main = taken(&[("virtual_chunks", "s3://b"), ("region", "x")]).unwrap();
        assert_eq!(main.0.unwrap().version(1), None);
        assert_eq!(main.1, [("region".to_owned(), "x".to_owned())]);
        assert_eq!(taken(&[("region", "x")]).unwrap().0, None);
        let error = taken(&[("tag", "a"), ("snapshot_id", "A,B")]).unwrap_err();
        assert!(error.message().contains("but found tag and snapshot_id"), "{error}");
    }

    #[test]
    fn places_of_virtual_chunks_end_with_one_slash() {
        for (given, expected) in [
            ("file:///", &["file:///"][..]),
            ("file:////", &["file:///"]),
            ("file:///data, s3://bucket/a//,", &["file:///data/", "s3://bucket/a/"]),
            ("https://host", &["https://host/"]),
        ] {
            assert_eq!(taken(&[("virtual_chunks", given)]).unwrap().0.unwrap().virtual_chunks, expected, "{given}");
        }
        assert!(taken(&[("virtual_chunks", "/data")]).unwrap_err().message().contains("expected URLs"));
    }
}
