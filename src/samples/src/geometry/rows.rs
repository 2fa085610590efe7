//! The rows of ragged arrays: which elements each has, and which arrays are ragged.

use std::sync::Arc;

use super::{ArrayShape, Picked};
use crate::spec::{DimKey, Spec};
use dali_zarr_base::error::{Error, Result};

/// The rows of ragged arrays. It is cheap to clone.
#[derive(Clone, Debug)]
pub struct Rows {
    /// The argument with the array of offsets, for messages: `ragged="X/indptr"`.
    pub(super) argument: String,
    /// The group of that array; empty for the root.
    group: String,
    /// First element of each row, and the end of the last row; counted over all stores.
    offsets: Arc<Vec<u64>>,
    /// For each store, the number of its rows and the end of its last row, counted in this store alone.
    pub(super) stores: Vec<(u64, u64)>,
    /// Number of columns of the matrix that the rows are from; `None` if its group doesn't tell.
    columns: Option<u64>,
    /// Maximum number of elements that are read of a row; `u64::MAX`: all.
    max_length: u64,
    /// The rows that `pick` takes; `None`: all.
    pub(super) pick: Option<Picked>,
}

/// The elements of a row that are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowSpan {
    /// The first element.
    pub first: u64,
    /// Number of elements.
    pub len: u64,
}

impl Rows {
    /// Makes rows from the offsets of each store, which are one more than its rows. `array` is the name of the array of
    /// offsets. `argument` names both in messages.
    ///
    /// # Errors
    /// If offsets descend, if an offset is too large, if there is no row, or if several stores are joined and the rows
    /// of one don't begin at element 0.
    pub fn new(argument: String, array: &str, stores: Vec<Vec<u64>>, max_length: Option<u64>) -> Result<Self> {
        let group = array.trim_matches('/').rsplit_once('/').map_or("", |(group, _)| group).to_owned();
        let several = stores.len() > 1;
        let mut counts = Vec::with_capacity(stores.len());
        let mut offsets: Vec<u64> = Vec::new();
        for (store, own) in stores.into_iter().enumerate() {
            if let Some(i) = own.windows(2).position(|pair| pair[0] > pair[1]) {
                return Err(Error::value(format!(
                    "{argument}: expected offsets that don't descend, but entry {} is {}, after {}",
                    i + 1,
                    own[i + 1],
                    own[i]
                )));
            }
            let (&first, &last) = own.first().zip(own.last()).unwrap_or((&0, &0));
            if several && first != 0 {
                return Err(Error::value(format!(
                    "{argument}: expected the rows of each store to begin at 0, since stores are joined, but those of store \
                     number {store} begin at {first}"
                )));
            }
            if last > i64::MAX as u64 / 4 {
                return Err(Error::value(format!("{argument}: the last offset is {last}, more than can be addressed")));
            }
            counts.push((own.len().saturating_sub(1) as u64, last));
            if offsets.is_empty() {
                offsets = own;
            } else {
                let before = offsets[offsets.len() - 1];
                offsets.extend(own.iter().skip(1).map(|offset| before + offset));
            }
        }
        if offsets.len() < 2 {
            return Err(Error::value(format!("{argument}: expected at least one row, but found none")));
        }
        let (offsets, max_length) = (Arc::new(offsets), max_length.unwrap_or(u64::MAX));
        Ok(Self { argument, group, offsets, stores: counts, columns: None, max_length, pick: None })
    }

    /// Returns the same rows, with the number of columns of their matrix.
    #[must_use]
    pub fn of_columns(self, columns: Option<u64>) -> Self {
        Self { columns, ..self }
    }

    /// Returns the number of columns of the rows' matrix; `None` if it isn't known.
    pub fn columns(&self) -> Option<u64> {
        self.columns
    }

    /// Returns the bytes of host memory that the offsets take.
    pub fn bytes(&self) -> usize {
        self.offsets.capacity() * size_of::<u64>()
    }

    /// Returns the number of rows, before `pick`.
    pub fn count(&self) -> u64 {
        self.offsets.len() as u64 - 1
    }

    /// Returns the number of elements of all rows, before `pick` and `max_length`.
    pub fn elements(&self) -> u64 {
        self.offsets[self.offsets.len() - 1] - self.offsets[0]
    }

    /// Returns what is read of the row at position `at` of the first axis.
    pub fn span(&self, at: i64) -> RowSpan {
        let row = self.pick.as_ref().map_or(at as usize, |pick| pick.of(0)[at as usize] as usize);
        let (start, end) = (self.offsets[row], self.offsets[row + 1]);
        RowSpan { first: start, len: (end - start).min(self.max_length) }
    }

    /// Returns the first element of each row, and the end of the last row.
    pub fn offsets(&self) -> &[u64] {
        &self.offsets
    }

    /// Returns the maximum number of elements that are read of a row; `None`: all.
    pub fn max_length(&self) -> Option<u64> {
        (self.max_length < u64::MAX).then_some(self.max_length)
    }

    /// Returns for each array whether it is ragged.
    ///
    /// # Errors
    /// - The first dimension of an array has neither one element for each row nor the elements of all rows.
    /// - No array is ragged, or ragged arrays differ in length.
    pub(super) fn classify(&self, spec: &Spec, arrays: &[ArrayShape]) -> Result<Vec<bool>> {
        let named = match spec.samples.dims.first() {
            Some(DimKey::Name(name)) if arrays.iter().any(|a| a.dims.first() == Some(name)) => Some(name),
            _ => None,
        };
        let one = |array: &ArrayShape| {
            let mut lens = array.parts.iter().map(|part| part.first().copied());
            let each = |want: fn(&(u64, u64)) -> u64| {
                array.parts.len() == self.stores.len()
                    && array.parts.iter().zip(&self.stores).all(|(part, of)| part.first() == Some(&want(of)))
            };
            let longer = self.stores.len() == 1 && array.parts[0].first().is_some_and(|&len| len > self.stores[0].1);
            match (each(|of| of.1), each(|of| of.0)) {
                (true, true) => {
                    Ok(named.map_or_else(|| self.is_in_group(array), |name| array.dims.first() == Some(name)))
                }
                (false, true) => Ok(false),
                (true, false) => Ok(true),
                (false, false) if longer => Ok(true),
                (false, false) => {
                    let (rows, end) = self.stores.iter().fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1));
                    let found = match lens.try_fold(0u64, |n, len| Some(n.saturating_add(len?))) {
                        Some(len) => format!("{len} along its first dimension"),
                        None => "no dimension".into(),
                    };
                    Err(Error::value(format!(
                        "{}: expected arrays of {end} elements, to which its rows reach, or of {rows}, one for each row, but \
                         array '{}' has {found}",
                        self.argument, array.name
                    )))
                }
            }
        };
        let ragged: Vec<bool> = arrays.iter().map(one).collect::<Result<_>>()?;
        let lens = |array: &ArrayShape| -> Vec<u64> { array.parts.iter().map(|part| part[0]).collect() };
        let mut all = arrays.iter().zip(&ragged).filter(|(_, is_ragged)| **is_ragged).map(|(array, _)| array);
        let Some(first) = all.next() else {
            return Err(Error::value(format!(
                "{}: expected an array of {} elements, to which its rows reach, but all have one for each row; leave {} out",
                self.argument,
                self.stores.iter().map(|of| of.1).sum::<u64>(),
                self.argument.split('=').next().unwrap_or_default()
            )));
        };
        match all.find(|other| lens(other) != lens(first)) {
            Some(other) => Err(Error::value(format!(
                "{}: expected ragged arrays of one length, but array '{}' has {} elements and array '{}' {}",
                self.argument, first.name, first.parts[0][0], other.name, other.parts[0][0]
            ))),
            None => Ok(ragged),
        }
    }

    /// Whether an array lies in the group of the offsets, or below it.
    fn is_in_group(&self, array: &ArrayShape) -> bool {
        let below = array.name.trim_matches('/').strip_prefix(&self.group);
        self.group.is_empty() || below.is_some_and(|rest| rest.starts_with('/'))
    }
}
