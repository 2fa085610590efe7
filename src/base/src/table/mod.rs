//! Tables of numbers in memory: the starts of samples (`starts`) or how often each sample comes (`weights`). A
//! checkpoint has a hash of a table instead of its values.
//!
//! A table comes from a NumPy file ([`npy`]), from a Zarr array (read by `dali_zarr_engine::reader`), or from the host's memory
//! ([`kept`]). It is in memory once, even if several readers use it.

pub mod kept;
mod npy;

pub use npy::read_npy;

use crate::digest::digest;
use crate::error::{Error, Result};
use crate::memory::{Machine, shown};

/// A type of table elements, of 8 bytes.
pub trait Element: Copy + Send + Sync + 'static {
    /// The type's name in NumPy.
    const NAME: &'static str;
    /// The type's letter and size in headers of `.npy` files.
    const NPY: &'static str;
    /// Makes an element from its bytes in little-endian order.
    fn from_le(bytes: [u8; 8]) -> Self;
    /// Returns the element's bits.
    fn bits(self) -> u64;
    /// Returns the table in `table` if its elements have this type.
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

/// A table of numbers, stored row by row.
#[derive(Debug)]
pub struct Table<T> {
    values: Vec<T>,
    columns: usize,
    digest: String,
}

impl<T: Element> Table<T> {
    /// Makes a table from its values, row by row.
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

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.values.len() / self.columns
    }

    /// Returns the number of values in a row, at least 1.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Returns a row.
    ///
    /// # Panics
    /// If `row` isn't less than the number of rows.
    pub fn row(&self, row: usize) -> &[T] {
        &self.values[row * self.columns..(row + 1) * self.columns]
    }

    /// Returns all values, row by row.
    pub fn values(&self) -> &[T] {
        &self.values
    }

    /// Returns a hash of 128 bits of the values and the shape, as text. It must never change between versions, because
    /// checkpoints have it.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Returns the memory of the values in bytes.
    pub fn bytes(&self) -> u64 {
        8 * self.values.capacity() as u64
    }
}

/// Makes an empty list with room for `count` values. `limit` is the number of bytes that the user's memory limit
/// leaves, `None` if there is no limit.
///
/// # Errors
/// If the memory is more than `limit`, more than the machine has, or can't be allocated.
pub fn room<T>(count: u64, limit: Option<u64>) -> Result<Vec<T>> {
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
