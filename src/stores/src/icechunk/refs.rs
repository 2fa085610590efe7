//! Finds the snapshot that a branch or a tag points to.

use futures_util::future::join_all;

use super::Version;
use super::file::{self, FileKind, Id, MAX_FILE};
use super::flat::{Table, Tables};
use super::snapshot::damaged;
use crate::{Phase, Store};
use dali_zarr_base::error::{Error, ErrorKind, Result};

/// Returns the snapshot that `version` means in the repository at `base`, and the configuration if the file `repo` has
/// it; `None` if there is no repository.
///
/// # Errors
/// If there is a repository that can't be read or has no such version.
pub(super) async fn resolve(base: &dyn Store, version: &Version) -> Result<Option<(Id, Option<Vec<u8>>)>> {
    let wrong = |e: Error| e.of_kind(ErrorKind::Value);
    let by_name = match version {
        Version::Snapshot(name) => Some(file::id(name).ok_or_else(|| {
            Error::value(format!("expected the name of a snapshot (20 digits and letters), but found {name:?}"))
        })?),
        _ => None,
    };
    match base.get("repo", MAX_FILE, Phase::Building).await.map_err(wrong)? {
        Some(repo) => of_repo(&repo, version, by_name).map(Some).map_err(|e| wrong(e).within("repo")),
        None => match by_name {
            // Whether the snapshot exists is found out when its own file is read.
            Some(id) => Ok(Some((id, None))),
            None => Ok(of_refs(base, version).await.map_err(wrong)?.map(|id| (id, None))),
        },
    }
}

/// Finds the snapshot in the file `repo`. In version 2 of the specification it has all branches and tags, and mostly the
/// configuration.
pub(super) fn of_repo(repo: &[u8], version: &Version, by_name: Option<Id>) -> Result<(Id, Option<Vec<u8>>)> {
    let (_, bytes) = file::open(repo, FileKind::Repository)?;
    let root = Table::root(&bytes)?;
    let id = snapshot_of(&root, version, by_name)?;
    Ok((id, root.bytes(9)?.map(<[u8]>::to_vec)))
}

fn snapshot_of(root: &Table<'_>, version: &Version, by_name: Option<Id>) -> Result<Id> {
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

/// Finds the snapshot in version 1 of the specification, where each branch and each tag has a file of its own.
async fn of_refs(base: &dyn Store, version: &Version) -> Result<Option<Id>> {
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
    let mut files = join_all(keys.iter().map(|key| base.get(key, 1 << 20, Phase::Building))).await.into_iter();
    let file = files.next().transpose()?.flatten();
    if files.next().transpose()?.flatten().is_some() {
        return Err(Error::value(format!("expected the {version}, but it was deleted")));
    }
    let Some(file) = file else {
        let known: Vec<String> = match base.children("refs").await {
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
