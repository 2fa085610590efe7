//! Which snapshot is read: what branches and tags point to.

use super::file::{self, Id, Kind, MOST};
use super::flat::{Table, Tables};
use super::snapshot::damaged;
use crate::error::{Error, Result};
use crate::store::Store;

/// What was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Version {
    /// The last snapshot of a branch.
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

/// What of a repository is to be read, as `storage_options` tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Of all repositories (none: the default), or of each; `None`: whatever is there, which may be no repository.
    versions: Vec<Option<Version>>,
    /// URLs, with slashes at their ends, below which virtual chunks may be.
    pub outside: Vec<String>,
}

/// Names and values.
type Options = Vec<(String, String)>;

impl Choice {
    /// Takes a choice out of `options`, if there is one among them.
    ///
    /// # Errors
    /// [`Error::value`] if there are several versions, or what isn't a URL.
    pub fn take(options: &[(String, String)]) -> Result<(Option<Self>, Options)> {
        let mut chosen: Option<(String, Vec<Option<Version>>)> = None;
        let mut outside = Vec::new();
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
                "virtual_chunks" => {
                    for url in value.split(',').map(str::trim).filter(|url| !url.is_empty()) {
                        let Some((scheme, rest)) = url.split_once("://") else {
                            return Err(Error::value(format!(
                                "storage_options: virtual_chunks: expected URLs with commas between them, such as \
                                 \"file:///data/,s3://bucket/\", but found {url:?}"
                            )));
                        };
                        // Of the root of a file system nothing is left but the slash.
                        outside.push(format!("{}://{}/", scheme.to_ascii_lowercase(), rest.trim_end_matches('/')));
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
        let any = chosen.is_some() || !outside.is_empty();
        let versions = chosen.map(|(_, versions)| versions).unwrap_or_default();
        Ok((any.then_some(Self { versions, outside }), rest))
    }

    /// Refuses as many versions as there aren't stores.
    ///
    /// # Errors
    /// [`Error::value`] then.
    pub fn check(&self, stores: usize) -> Result<()> {
        match self.versions.len() {
            n if n <= 1 || n == stores => Ok(()),
            n => Err(Error::value(format!(
                "storage_options: snapshot_id: expected one for all paths, or as many as there are in path ({stores}), but found \
                 {n}; leave entries of paths empty of which none is to be chosen"
            ))),
        }
    }

    /// What is to be read of store number `i`; `None`: whatever is there, which may be no repository.
    pub fn version(&self, i: usize) -> Option<Version> {
        match self.versions.as_slice() {
            [] => Some(Version::default()),
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

/// The snapshot of `version` in the repository at `base`; `None` if there is no repository.
///
/// # Errors
/// If there is one that can't be read or has no such version.
pub(super) fn resolve(base: &dyn Store, version: &Version) -> Result<Option<Id>> {
    let wrong = |e: Error| Error::value(e.message());
    let by_name = match version {
        Version::Snapshot(name) => Some(file::id(name).ok_or_else(|| {
            Error::value(format!("expected the name of a snapshot (20 digits and letters), but found {name:?}"))
        })?),
        _ => None,
    };
    match base.get("repo", MOST).map_err(wrong)? {
        Some(repo) => of_repo(&repo, version, by_name).map(Some).map_err(|e| Error::value(format!("repo: {e}"))),
        None => match by_name {
            // The snapshot's own file tells whether it is there.
            Some(id) => Ok(Some(id)),
            None => of_refs(base, version).map_err(wrong),
        },
    }
}

/// Since version 2, all is in one file.
pub(super) fn of_repo(repo: &[u8], version: &Version, by_name: Option<Id>) -> Result<Id> {
    let (_, bytes) = file::open(repo, Kind::Repository)?;
    let root = Table::root(&bytes)?;
    let status = root.table(5)?;
    if let Some(status) = status.filter(|s| s.u8(0).is_ok_and(|availability| availability == 2)) {
        let reason = status.text(2)?.unwrap_or("no reason is given");
        return Err(Error::value(format!("expected a repository that may be read, but it is offline: {reason}")));
    }
    let snapshots = root.tables(4)?;
    let missing = |refs: Tables<'_>| {
        let names: Vec<String> = refs.take(30).filter_map(|r| Some(format!("{:?}", r.ok()?.text(0).ok()??))).collect();
        Error::value(format!("expected the {version}, but found {}", listed(&names)))
    };
    let refs = match (version, by_name) {
        (_, Some(id)) => {
            for snapshot in snapshots {
                if snapshot?.fixed(0)? == Some(id) {
                    return Ok(id);
                }
            }
            return Err(Error::value(format!(
                "expected the {version}, but found none of that name; it may have expired"
            )));
        }
        (Version::Tag(_), _) => 1,
        _ => 2,
    };
    let (Version::Branch(name) | Version::Tag(name) | Version::Snapshot(name)) = version;
    for found in root.tables(refs)? {
        let found = found?;
        if found.text(0)? == Some(name) {
            let snapshot = snapshots.get(found.u32(1)? as usize)?;
            return snapshot.fixed(0)?.ok_or_else(|| damaged("a snapshot has no name"));
        }
    }
    Err(missing(root.tables(refs)?))
}

/// In version 1, each branch and each tag has its file.
fn of_refs(base: &dyn Store, version: &Version) -> Result<Option<Id>> {
    let (kind, name) = match version {
        Version::Tag(name) => ("tag", name),
        Version::Branch(name) | Version::Snapshot(name) => ("branch", name),
    };
    if name.is_empty() || name.contains('/') {
        return Err(Error::value(format!("expected a {kind}'s name without a slash, but found {name:?}")));
    }
    let key = format!("refs/{kind}.{name}/ref.json");
    let mut keys = vec![key.clone()];
    keys.extend((kind == "tag").then(|| format!("{key}.deleted")));
    let mut files = base.get_many(&keys, 1 << 20).into_iter();
    let file = files.next().transpose()?.flatten();
    if files.next().transpose()?.flatten().is_some() {
        return Err(Error::value(format!("expected the {version}, but it was deleted")));
    }
    let Some(file) = file else {
        let known: Vec<String> = match base.children("refs") {
            Ok(Some(names)) => {
                names.iter().filter_map(|n| Some(format!("{:?}", n.strip_prefix(kind)?.strip_prefix('.')?))).collect()
            }
            _ => Vec::new(),
        };
        if known.is_empty() {
            return Ok(None);
        }
        return Err(Error::value(format!("expected the {version}, but found {}", listed(&known))));
    };
    let document: serde_json::Value = serde_json::from_slice(&file)
        .map_err(|e| damaged(&format!("{key}: expected JSON, but found other bytes: {e}")))?;
    let snapshot = document.get("snapshot").and_then(|s| s.as_str()).and_then(file::id);
    snapshot.map(Some).ok_or_else(|| damaged(&format!("{key}: expected the name of a snapshot")))
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { "none".into() } else { format!("only {}", names.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(options: &[(&str, &str)]) -> Result<(Option<Choice>, Options)> {
        Choice::take(&options.iter().map(|&(k, v)| (k.to_owned(), v.to_owned())).collect::<Vec<_>>())
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
        assert_eq!(main.0.unwrap().version(1), Some(Version::default()));
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
            assert_eq!(taken(&[("virtual_chunks", given)]).unwrap().0.unwrap().outside, expected, "{given}");
        }
        assert!(taken(&[("virtual_chunks", "/data")]).unwrap_err().message().contains("expected URLs"));
    }
}
