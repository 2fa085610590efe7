//! What readers found when they were opened for the first time. A host that opens the same reader again and again, as a
//! loader does after a break in mid-epoch, keeps this here by name and passes the name in the hidden argument
//! `_opening`. So the reader has the same samples each time: the shapes of arrays, the snapshots of repositories, and
//! the values that say which samples there are. Chunks are read anew.
//!
//! An opening lives until it is released.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::opening::Inputs;
use dali_zarr_base::memory::PerProcess;
use dali_zarr_samples::dataset::Kept;
use dali_zarr_samples::spec::Member;

/// What a reader found when it was opened.
pub(super) struct Opening {
    pub dataset: Kept,
    /// The groups of the dataset, if samples are cut from groups.
    pub members: Vec<Member>,
    pub inputs: Inputs,
    /// See [`dali_zarr_samples::spec::Breaks::found`].
    pub breaks: Vec<Vec<i64>>,
}

/// The openings by name; `None` until a reader is opened with the name.
type Openings = BTreeMap<String, Option<Arc<Opening>>>;

static OPENINGS: PerProcess<Mutex<Openings>> = PerProcess::new();
static NEXT: AtomicU64 = AtomicU64::new(1);

fn openings() -> MutexGuard<'static, Openings> {
    OPENINGS.get().lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes a name, under which the next opening with it is kept.
pub fn keep() -> String {
    let name = format!("opening:{}:{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    openings().insert(name.clone(), None);
    name
}

/// Releases an opening. Does nothing if there is none of this name.
pub fn release(name: &str) {
    let opening = openings().remove(name);
    // The memory is freed after the lock is released.
    drop(opening);
}

/// Returns the opening of a name; `None` if no reader was opened with it, or in another process.
pub(super) fn find(name: &str) -> Option<Arc<Opening>> {
    openings().get(name).cloned().flatten()
}

/// Keeps an opening, if its name was made and isn't released.
pub(super) fn fill(name: &str, opening: Opening) {
    if let Some(place) = openings().get_mut(name) {
        place.get_or_insert_with(|| Arc::new(opening));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opening(breaks: Vec<Vec<i64>>) -> Opening {
        let (stores, arrays, parents, groups) = (vec![], vec![], vec![], vec![]);
        let dataset = Kept::of(&dali_zarr_samples::dataset::Dataset { stores, arrays, parents, groups });
        Opening { dataset, members: vec![], inputs: Inputs::default(), breaks }
    }

    #[test]
    fn the_first_opening_is_kept_until_it_is_released() {
        let name = keep();
        assert!(find(&name).is_none());
        fill(&name, opening(vec![vec![1]]));
        fill(&name, opening(vec![vec![2]]));
        assert_eq!(find(&name).unwrap().breaks, [[1]]);
        release(&name);
        release(&name);
        fill(&name, opening(vec![]));
        assert!(find(&name).is_none());
    }
}
