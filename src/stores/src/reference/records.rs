//! The Parquet files of a directory of references. Each is read when its first reference is needed, and stays in memory.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::layout::{Layout, RecordRow};
use super::targets::{MAX_BYTES, Targets, too_large};
use super::url::Resolver;
use super::{METADATA, parquet, record};
use crate::shared_failure::SharedFailure;
use crate::{Phase, Store};
use dali_zarr_base::error::{Error, Result};

/// The Parquet files of a directory.
pub(super) struct Records {
    base: Arc<dyn Store>,
    layout: Layout,
    resolver: Resolver,
    /// By array name, then by the number of the file in the array.
    files: Mutex<HashMap<String, HashMap<u64, Arc<Record>>>>,
    /// The number that the next file gets.
    numbers: AtomicU64,
    /// Bytes that all files take in memory.
    bytes: AtomicU64,
}

/// A Parquet file that is read when it is first needed.
#[derive(Default)]
pub(super) struct Record {
    /// Tells the file apart from the others, for [`Store::unread_index`].
    pub number: u64,
    /// The targets of its rows, once it was read. `None` in the cell: there is no such file, so none of its values
    /// exist.
    pub targets: OnceCell<Option<Targets>>,
    failure: SharedFailure,
}

impl Records {
    /// Makes the list of files, none of which is read.
    pub fn new(base: Arc<dyn Store>, layout: Layout, resolver: Resolver) -> Self {
        let (numbers, bytes) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { base, layout, resolver, files: Mutex::default(), numbers, bytes }
    }

    /// Returns where the reference of a chunk's key is; `None` if it can't be in any file.
    pub fn find<'a>(&self, key: &'a str) -> Option<RecordRow<'a>> {
        self.layout.find(key)
    }

    /// Returns the file of a row.
    pub fn file(&self, at: &RecordRow<'_>) -> Arc<Record> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let of_array = match files.get_mut(at.array) {
            Some(of_array) => of_array,
            None => files.entry(at.array.to_owned()).or_default(),
        };
        let new = || Arc::new(Record { number: self.numbers.fetch_add(1, Relaxed), ..Record::default() });
        Arc::clone(of_array.entry(at.file).or_insert_with(new))
    }

    /// Reads a Parquet file, unless it is in memory. Tasks that need it at the same time wait for one request.
    pub async fn load(&self, record: &Record, at: &RecordRow<'_>, phase: Phase) -> Result<()> {
        let began = Instant::now();
        let read = async || match record.failure.since(began) {
            Some(e) => Err(e),
            None => self.read(at, phase).await.inspect_err(|e| record.failure.note(e)),
        };
        let targets = record.targets.get_or_try_init(read).await?;
        match targets {
            Some(targets) if at.row >= targets.len() as u64 => Err(Error::runtime(format!(
                "{}: expected row {}, but found {} rows; the references are damaged",
                at.key(),
                at.row,
                targets.len()
            ))),
            _ => Ok(()),
        }
    }

    async fn read(&self, at: &RecordRow<'_>, phase: Phase) -> Result<Option<Targets>> {
        let key = at.key();
        let Some(bytes) = self.base.get(&key, parquet::MAX_BYTES, phase).await? else {
            // Writers leave out files without any reference.
            if self.base.exists(METADATA).await? {
                return Ok(None);
            }
            return Err(Error::runtime(format!(
                "expected {key} beside {METADATA}, but both are gone; the references were deleted or moved while they were read"
            )));
        };
        let targets = record::parse(&bytes, &self.resolver).map_err(|e| e.within(key))?;
        let bytes = targets.memory() + self.bytes.fetch_add(targets.memory(), Relaxed);
        if bytes > MAX_BYTES { Err(too_large(bytes)) } else { Ok(Some(targets)) }
    }
}
