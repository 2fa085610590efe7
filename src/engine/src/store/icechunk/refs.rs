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
    /// The version.
    pub version: Version,
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
        let mut version = None;
        let mut outside = Vec::new();
        let mut rest = Vec::new();
        for (name, value) in options {
            let wanted = match name.trim().to_ascii_lowercase().as_str() {
                "branch" => Version::Branch(value.clone()),
                "tag" => Version::Tag(value.clone()),
                "snapshot_id" => Version::Snapshot(value.clone()),
                "virtual_chunks" => {
                    for url in value.split(',').map(str::trim).filter(|url| !url.is_empty()) {
                        if !url.contains("://") {
                            return Err(Error::value(format!(
                                "storage_options: virtual_chunks: expected URLs with commas between them, such as \
                                 \"file:///data/,s3://bucket/\", but found {url:?}"
                            )));
                        }
                        outside.push(format!("{}/", url.trim_end_matches('/')));
                    }
                    continue;
                }
                _ => {
                    rest.push((name.clone(), value.clone()));
                    continue;
                }
            };
            if let Some(other) = version.replace(wanted) {
                return Err(Error::value(format!(
                    "storage_options: expected one of branch, tag and snapshot_id, but found {other} and {name}"
                )));
            }
        }
        let chosen = version.is_some() || !outside.is_empty();
        Ok((chosen.then(|| Self { version: version.unwrap_or_default(), outside }), rest))
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
