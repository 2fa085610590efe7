//! Tables that the host gives to the library, by name. Arguments are text, so the host keeps a table here and passes
//! its name.
//!
//! A table lives until it is released and no reader uses it any more. The name contains the process number, because a
//! pipeline that is sent to another process can't take its tables along.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::{Element, Table};
use crate::error::{Error, Result};

/// The prefix of the names of kept tables.
const PREFIX: &str = "table:";

/// A table of either element type.
#[derive(Clone, Debug)]
pub enum AnyTable {
    /// A table of starts.
    Int64(Arc<Table<i64>>),
    /// A table of weights.
    Float64(Arc<Table<f64>>),
}

impl AnyTable {
    fn type_name(&self) -> &'static str {
        match self {
            Self::Int64(_) => i64::NAME,
            Self::Float64(_) => f64::NAME,
        }
    }
}

static TABLES: Mutex<BTreeMap<String, AnyTable>> = Mutex::new(BTreeMap::new());
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Keeps a table, and returns the name that arguments use for it.
pub fn keep(table: AnyTable) -> String {
    let name = format!("{PREFIX}{}:{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    TABLES.lock().unwrap_or_else(PoisonError::into_inner).insert(name.clone(), table);
    name
}

/// Releases a table. Readers that were opened with it still hold it. Does nothing if there is no table of this name.
pub fn release(name: &str) {
    let table = TABLES.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    // The memory is freed after the lock is released.
    drop(table);
}

/// Whether `text` has the form of a kept table's name.
pub fn is_name(text: &str) -> bool {
    text.starts_with(PREFIX)
}

/// Returns the table of a name.
///
/// # Errors
/// If there is no such table, or it has another element type.
pub fn find<T: Element>(name: &str) -> Result<Arc<Table<T>>> {
    let found = TABLES.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned();
    let Some(found) = found else {
        return Err(Error::value(format!(
            "the table {name} isn't in this process's memory (process {}): it was given as an array, in another process or to a \
             reader that is gone; save it as .npy and give its path",
            std::process::id()
        )));
    };
    let table = T::of_any(&found).map(Arc::clone);
    table.ok_or_else(|| Error::dtype(format!("expected {}, but the array is {}", T::NAME, found.type_name())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_kept_until_they_are_released() {
        let table = Arc::new(Table::new(vec![1, 2, 3, 4], 2).unwrap());
        let name = keep(AnyTable::Int64(Arc::clone(&table)));
        assert!(is_name(&name) && !is_name("table.npy"));
        let found = find::<i64>(&name).unwrap();
        assert!(Arc::ptr_eq(&found, &table));
        assert!(find::<f64>(&name).unwrap_err().message().contains("expected float64, but the array is int64"));
        release(&name);
        release(&name);
        assert!(find::<i64>(&name).unwrap_err().message().contains("save it as .npy"));
        assert_eq!(found.row(1), [3, 4]);
    }
}
