//! Tables that say which samples there are (`starts`) or how often each comes (`weights`): numbers in memory, with a hash that
//! stands for them in checkpoints.
//!
//! A table comes from a file of NumPy ([`npy`]), from a Zarr array (read by [`crate::reader`]), or from the host's memory
//! ([`kept`]). It is held once, whoever uses it.

pub mod kept;
mod npy;

pub(crate) use npy::read_npy;

use crate::digest::digest;
use crate::error::{Error, Result};
use crate::memory::{Machine, shown};

/// A type of element: 8 bytes.
pub trait Element: Copy + Send + Sync + 'static {
    /// Its name in NumPy.
    const NAME: &'static str;
    /// Its letter and size in the headers of `.npy` files.
    const NPY: &'static str;
    /// From its bytes, the lowest first.
    fn from_le(bytes: [u8; 8]) -> Self;
    /// Its bits.
    fn bits(self) -> u64;
    /// A table of it, among tables of any type.
    fn of_any(table: &kept::AnyTable) -> Option<&std::sync::Arc<Table<Self>>>;
}

impl Element for i64 {
    const NAME: &'static str = "int64";
    const NPY: &'static str = "i8";
    fn from_le(bytes: [u8; 8]) -> Self {
        Self::from_le_bytes(bytes)
    }
    fn bits(self) -> u64 {
        self as u64
    }
    fn of_any(table: &kept::AnyTable) -> Option<&std::sync::Arc<Table<Self>>> {
        if let kept::AnyTable::Int64(table) = table { Some(table) } else { None }
    }
}

impl Element for f64 {
    const NAME: &'static str = "float64";
    const NPY: &'static str = "f8";
    fn from_le(bytes: [u8; 8]) -> Self {
        Self::from_le_bytes(bytes)
    }
    fn bits(self) -> u64 {
        self.to_bits()
    }
    fn of_any(table: &kept::AnyTable) -> Option<&std::sync::Arc<Table<Self>>> {
        if let kept::AnyTable::Float64(table) = table { Some(table) } else { None }
    }
}

/// Rows of numbers.
#[derive(Debug)]
pub struct Table<T> {
    values: Vec<T>,
    columns: usize,
    digest: String,
}

impl<T: Element> Table<T> {
    /// A table of these values, row by row.
    ///
    /// # Errors
    /// If the values aren't whole rows.
    pub fn new(values: Vec<T>, columns: usize) -> Result<Self> {
        if columns == 0 || !values.len().is_multiple_of(columns) {
            return Err(Error::value(format!("expected rows of {columns} values, but found {} values", values.len())));
        }
        let digest = digest(values.iter().map(|value| value.bits()), columns as u64);
        Ok(Self { values, columns, digest })
    }

    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.values.len() / self.columns
    }

    /// Values in each row, at least 1.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// One row.
    ///
    /// # Panics
    /// If there are no more than `row` rows.
    pub fn row(&self, row: usize) -> &[T] {
        &self.values[row * self.columns..(row + 1) * self.columns]
    }

    /// All values, row by row.
    pub fn values(&self) -> &[T] {
        &self.values
    }

    /// A text that stands for all values, 128 bits of hash. It never changes from one version to another.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> u64 {
        8 * self.values.capacity() as u64
    }
}

/// An empty list with room for `count` values.
///
/// # Errors
/// If the process may not have so much memory: `limit` is what the user's limit leaves, if there is one.
pub(crate) fn room<T>(count: u64, limit: Option<u64>) -> Result<Vec<T>> {
    let bytes = count.saturating_mul(size_of::<T>() as u64);
    if let Some(limit) = limit.filter(|&limit| bytes > limit) {
        return Err(Error::value(format!(
            "host_memory_limit: a table of {count} numbers needs {bytes} bytes, but {limit} are left; use a limit that is larger by at \
             least {} bytes",
            bytes - limit
        )));
    }
    let lacking =
        |has: &str| Error::memory(format!("a table of {count} numbers needs {} of host memory{has}", shown(bytes)));
    if let Some(machine) = Machine::find().filter(|machine| machine.total < bytes) {
        return Err(lacking(&format!(", but there are {} in all ({})", shown(machine.total), machine.says)));
    }
    let mut values = Vec::new();
    let count = usize::try_from(count).map_err(|_| lacking(""))?;
    values.try_reserve_exact(count).map_err(|_| lacking(", which the system refuses"))?;
    Ok(values)
}

#[cfg(test)]
mod tests;
