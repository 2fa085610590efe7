//! Groups from which samples are cut: finds those that the argument `groups` names, and reads the metadata of their
//! arrays. A group is a store of the dataset, but all groups of a store share what is opened of it.

mod pattern;

use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use super::array::Described;
use super::hierarchy::Hierarchy;
use super::{Arrays, Dataset, Kept, Sought, Wanted, describe_named, in_hierarchy, metadata_error};
use crate::spec::{ArrayArgument, Concat, Member, Spec};
use dali_zarr_base::error::{Code, Error, Result, Site};
use dali_zarr_stores::{self as store, ReadFiles, Store};
pub(super) use pattern::Pattern;

/// Most groups, as most stores of a reader.
pub(super) const MAX_GROUPS: usize = u16::MAX as usize;
/// Number of groups whose documents are read and held at the same time.
const TOGETHER: usize = 32;
/// Most names that a message shows.
const SHOWN: usize = 10;

/// Returns the spec with the groups that its argument `groups` names: `paths` has the location of each. Without groups, or
/// if they were found before, it is the same spec. `kept` are the groups that a reader had when it was opened first.
///
/// # Errors
/// If a store can't be opened or listed, if a pattern has no group, or if there are too many.
pub fn resolved<'a>(spec: &'a Spec, kept: &[Member]) -> Result<Cow<'a, Spec>> {
    let source = &spec.source;
    if !source.is_grouped() || !source.members.is_empty() {
        return Ok(Cow::Borrowed(spec));
    }
    source.check()?;
    for (what, given) in [("ragged", &spec.samples.ragged), ("ragged_ends", &spec.samples.ragged_ends)] {
        if given.is_some() {
            return Err(Error::value(format!(
                "{what}: expected none with groups, each of which has samples of its own; leave one of them out"
            )));
        }
    }
    let members = if kept.is_empty() { found(spec)? } else { kept.to_vec() };
    Ok(Cow::Owned(spec.clone().with(|s| {
        s.source.paths = members.iter().map(Member::location).collect();
        s.source.members = members;
        s.samples.concat = Concat::Samples;
    })))
}

impl Member {
    /// Returns the location of the group.
    pub fn location(&self) -> String {
        format!("{}/{}", self.store.trim_end_matches('/'), self.group)
    }
}

/// Finds the groups of all stores: in the order of the stores and of the names or patterns, and by name among those of a
/// pattern. Each comes once.
fn found(spec: &Spec) -> Result<Vec<Member>> {
    let source = &spec.source;
    let patterns = source.groups.iter().map(|text| Pattern::new(text)).collect::<Result<Vec<_>>>()?;
    let is_listed = patterns.iter().any(|pattern| !pattern.is_name());
    let mut members = Vec::new();
    for path in &source.paths {
        let mut known = HashSet::new();
        let mut add = |group: String| {
            if known.insert(group.clone()) {
                members.push(Member { store: path.clone(), group });
            }
            if members.len() > MAX_GROUPS {
                return Err(Error::value(format!(
                    "groups: expected at most {MAX_GROUPS} groups, but found more in {path}; name fewer, or give a narrower pattern"
                )));
            }
            Ok(())
        };
        if !is_listed {
            patterns.iter().try_for_each(|pattern| add(pattern.name()))?;
            continue;
        }
        let how = ReadFiles { unbuffered: spec.resources.use_o_direct, versions: false };
        let opened = store::open(std::slice::from_ref(path), &source.storage_options, spec.io_threads(), how)?;
        let (_, of_patterns) = in_hierarchy(Sought::Groups, &opened[0], &|store, hierarchy| {
            patterns.iter().map(|pattern| matching(&**store, &hierarchy, pattern)).collect::<Result<Vec<_>>>()
        })?;
        of_patterns.into_iter().flatten().try_for_each(&mut add)?;
    }
    Ok(members)
}

/// Returns the groups of a store that match a pattern, in the order of their names.
fn matching(store: &dyn Store, hierarchy: &Hierarchy<'_>, pattern: &Pattern) -> Result<Vec<String>> {
    if pattern.is_name() {
        return Ok(vec![pattern.name()]);
    }
    let unlisted = || {
        Error::value(
            "groups: expected names, since the store has no consolidated metadata and can't be listed, but found a pattern; give a list of \
             names",
        )
        .at(Site::store(store.location()))
    };
    let (mut groups, mut others) = (vec![String::new()], BTreeSet::new());
    for segment in pattern.segments() {
        let mut below = Vec::new();
        for group in &groups {
            let prefix = if group.is_empty() { String::new() } else { format!("{group}/") };
            if segment.is_name() {
                below.push(format!("{prefix}{segment}"));
            } else {
                let names = metadata_error(hierarchy.groups_below(&prefix, MAX_GROUPS))?.ok_or_else(unlisted)?;
                for name in names {
                    if segment.matches(&name) {
                        below.push(format!("{prefix}{name}"));
                    } else if others.len() < SHOWN {
                        others.insert(format!("{prefix}{name}"));
                    }
                }
            }
            if below.len() > MAX_GROUPS {
                return Err(Error::value(format!(
                    "groups: expected at most {MAX_GROUPS} groups, but \"{pattern}\" has more; give a narrower pattern"
                ))
                .at(Site::store(store.location())));
            }
        }
        groups = below;
    }
    if groups.is_empty() {
        let there = match others.len() {
            0 => "no groups there".to_owned(),
            _ => format!("only {}", others.iter().map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", ")),
        };
        return Err(Error::value(format!(
            "groups: expected a group that matches \"{pattern}\", but found {there}; a pattern finds groups that have metadata"
        ))
        .with_code(Code::NotFound)
        .at(Site::store(store.location())));
    }
    groups.sort_by(|a, b| pattern::natural(a, b));
    Ok(groups)
}

/// Opens the stores of the groups of `spec`, and reads the metadata of their arrays.
///
/// # Errors
/// As [`Dataset::open_as`].
pub(super) fn open(spec: &Spec, kept: Option<&Kept>) -> Result<Vec<Arrays>> {
    let members = &spec.source.members;
    let runs: Vec<&[Member]> = members.chunk_by(|a, b| a.store == b.store).collect();
    let locations: Vec<String> = runs.iter().map(|run| run[0].store.clone()).collect();
    let how = ReadFiles { unbuffered: spec.resources.use_o_direct, versions: spec.resources.cache_size > 0 };
    let stores = store::open(&locations, &spec.source.storage_options, spec.io_threads(), how)?;
    let mut first = 0;
    let mut all = Vec::with_capacity(members.len());
    for (run, store) in runs.into_iter().zip(stores) {
        let snapshot = kept.and_then(|kept| kept.snapshots.get(first)).and_then(Option::as_ref);
        let (store, described) = of_store(spec, snapshot.unwrap_or(&store), run, first, kept)?;
        all.extend(described.into_iter().map(|described| (Arc::clone(&store), described)));
        first += run.len();
    }
    Ok(all)
}

type OfGroups = Vec<Vec<(ArrayArgument, Described)>>;

/// Reads the metadata of the arrays of one store's groups. The first is store number `first` of the dataset.
fn of_store(
    spec: &Spec,
    store: &Arc<dyn Store>,
    groups: &[Member],
    first: usize,
    kept: Option<&Kept>,
) -> Result<(Arc<dyn Store>, OfGroups)> {
    let wanted = Wanted::of(spec);
    let named = |group: &str| -> Vec<(usize, ArrayArgument)> {
        let one = |(at, array): (usize, &ArrayArgument)| {
            let path = format!("{group}/{}", array.array.trim_matches('/'));
            (wanted[at].at, ArrayArgument { output: array.output.clone(), array: path })
        };
        spec.source.arrays.iter().enumerate().map(one).collect()
    };
    let names: Vec<String> = named(&groups[0].group).into_iter().map(|(_, array)| array.array).collect();
    in_hierarchy(Sought::Names(&names), store, &|store, mut hierarchy| {
        let mut all = Vec::with_capacity(groups.len());
        for (run, some) in groups.chunks(TOGETHER).enumerate() {
            let arrays: Vec<_> = some.iter().map(|member| named(&member.group)).collect();
            let names: Vec<String> = arrays.iter().flatten().map(|(_, array)| array.array.clone()).collect();
            // The groups may name dimensions, as those of OME-Zarr do.
            hierarchy.read_ahead(&names, true);
            for (i, arrays) in arrays.into_iter().enumerate() {
                let number = first + run * TOGETHER + i;
                all.push(describe_named(spec, arrays, number, &**store, &hierarchy, kept)?);
            }
        }
        Ok(all)
    })
}

impl Dataset {
    /// Returns the location of a store, or of the group that is one.
    pub fn location(&self, store: usize) -> String {
        let location = self.stores[store].location();
        match self.groups.get(store) {
            Some(group) => format!("{}/{group}", location.trim_end_matches('/')),
            None => location.to_owned(),
        }
    }

    /// Returns the path of an array in its store, which has the name `name` in each store of `path`, or in each group.
    pub fn path_of(&self, store: usize, name: &str) -> String {
        self.groups.get(store).map_or_else(|| name.to_owned(), |group| format!("{group}/{}", name.trim_matches('/')))
    }
}
