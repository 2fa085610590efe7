//! The reader of one DALI operator. It may be opened after the operator was made, and it skips batches whose wait was
//! interrupted. The C++ shim calls it through [`crate::bridge`].

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use dali_zarr_base::error::{Error, Result};
use dali_zarr_engine::reader::{Batch, DeviceBuffers, OutputInfo, Reader, ReaderMeta};
use dali_zarr_samples::order::Draws;
use dali_zarr_samples::spec::Spec;

use crate::interrupts;
use crate::opening::{OpenReader, Opening};
use crate::process::Process;
use crate::registry::{self, Registered};
use crate::runs::Listed;
use crate::unwind::Fenced;

/// A reader that may not be open yet.
pub struct Operator {
    process: Process,
    listed: Listed,
    /// The opening on another thread, if the host waits for it itself.
    opening: Option<Arc<Opening>>,
    open: OnceLock<Result<OpenReader>>,
    interrupted: Mutex<Interrupted>,
}

impl Default for Operator {
    fn default() -> Self {
        let (process, listed) = (Process::current(), Listed::default());
        Self { process, listed, opening: None, open: OnceLock::new(), interrupted: Mutex::default() }
    }
}

/// Batches that nobody took, because the waits for them were interrupted.
#[derive(Default)]
struct Interrupted {
    /// Number of batches still to skip, so that the readers of one pipeline stay in step.
    batches: u32,
    /// All sets that were lent, by id. The set of a skipped batch is lent again.
    lent: BTreeMap<u64, DeviceBuffers>,
}

fn not_open() -> Error {
    Error::runtime("the reader isn't open")
}

fn open(spec: &Spec, wait: bool, num_outputs: usize) -> Result<OpenReader> {
    let open = if wait { Reader::prepare } else { Reader::open };
    let reader = Fenced::new(open(spec.clone())?);
    let found = reader.outputs().len();
    if found != num_outputs {
        return Err(Error::runtime(format!(
            "internal error: the schema declares {num_outputs} outputs, but the engine gives {found}"
        )));
    }
    Ok(OpenReader { registered: Registered::new(spec, &reader), reader })
}

impl Operator {
    /// Whether this is a forked child of the process in which the operator was made.
    pub fn is_inherited(&self) -> bool {
        !self.process.is_current()
    }

    fn taken(&self) -> Result<&OpenReader> {
        // Before anything else: in a forked child even a lock may be waited for in vain.
        self.process.check()?;
        let open = match &self.opening {
            Some(opening) => self.open.get_or_init(|| opening.take()),
            None => self.open.get().ok_or_else(not_open)?,
        };
        open.as_ref().map_err(Clone::clone)
    }

    fn reader(&self) -> Result<&Reader> {
        self.taken().map(|open| &*open.reader)
    }

    fn interrupted(&self) -> MutexGuard<'_, Interrupted> {
        self.interrupted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the store and starts the threads. `arguments` is a JSON object. Batches are prepared at once, or, with
    /// `wait`, only after the first [`Self::next_batch`] or a [`Self::restore`]. `num_outputs` is the number that the
    /// schema declares. `place` says where in the host's program the operator was made.
    ///
    /// If the host waits for stores itself ([`crate::opening::defer`]), this returns before the store is open. Then all
    /// methods below except [`Self::delivered`] wait until it is, and return its error.
    ///
    /// # Errors
    /// If the arguments are wrong. If the host doesn't wait itself, also if the store can't be opened.
    pub fn open(&mut self, arguments: &[u8], wait: bool, num_outputs: usize, place: String) -> Result<()> {
        let spec = Spec::from_json(arguments)?;
        match Opening::start(move || open(&spec, wait, num_outputs), place, self.listed.number)? {
            Ok(opening) => self.opening = Some(opening),
            Err(work) => self.open = OnceLock::from(Ok(work()?)),
        }
        Ok(())
    }

    /// Waits until the reader is open.
    ///
    /// # Errors
    /// If the reader can't be opened.
    pub fn opened(&self) -> Result<()> {
        self.reader().map(|_| ())
    }

    /// Returns the outputs of each batch, and the number of samples in a batch.
    pub fn outputs(&self) -> Result<(&[OutputInfo], usize)> {
        let reader = self.reader()?;
        Ok((reader.outputs(), reader.batch_size()))
    }

    /// Returns the numbers that DALI's iterators ask for. Stores the reader's number in this thread (see
    /// [`crate::registry`]).
    pub fn meta(&self) -> Result<ReaderMeta> {
        let OpenReader { registered, reader } = self.taken()?;
        registered.described();
        Ok(reader.meta())
    }

    /// Returns how many sets of device memory to lend before the first batch.
    pub fn buffers_wanted(&self) -> Result<usize> {
        Ok(self.reader()?.buffers_wanted())
    }

    /// Lends a set of device memory.
    pub fn lend(&self, set: DeviceBuffers) -> Result<()> {
        self.reader()?.lend(set.clone())?;
        self.interrupted().lent.insert(set.id, set);
        Ok(())
    }

    /// Pushes the samples of the next batch, in the caller's order: their numbers, or with `columns` not 0 so many entries of
    /// the index output for each. Places of random crops are counted on from batch to batch.
    ///
    /// # Errors
    /// If there is no such sample, or their number is wrong. The next batch is the one that is pushed next.
    pub fn push(&self, samples: &[i64], columns: usize) -> Result<()> {
        let pusher = self.reader()?.pusher().ok_or_else(registry::own_order)?;
        let found = if columns > 0 { pusher.find(samples, columns)? } else { samples.to_vec() };
        // An operator pushes one batch, and then takes it.
        if pusher.push(&found, 0, Draws::GoOn)? { Ok(()) } else { Err(Error::runtime("too many batches wait")) }
    }

    /// Waits for the next batch.
    pub fn next_batch(&self) -> Result<Batch> {
        let reader = self.reader()?;
        let runs = &self.listed.runs;
        let _run = runs.begin();
        loop {
            let mut ended = false;
            let batch = reader.next_batch_while(&mut || interrupts::check(runs).inspect_err(|_| ended = true));
            let mut interrupted = self.interrupted();
            if ended {
                interrupted.batches += 1;
                return batch;
            }
            if interrupted.batches == 0 {
                return batch;
            }
            interrupted.batches -= 1;
            let left_out = batch.ok().and_then(|batch| batch.buffers);
            if let Some(set) = left_out.and_then(|id| interrupted.lent.get(&id)).cloned() {
                reader.lend(set)?;
            }
        }
    }

    /// Returns the number of samples handed out; 0 if the reader isn't open. A checkpoint holds only this number until
    /// it is written.
    pub fn delivered(&self) -> u64 {
        // DALI also calls this while it builds a pipeline, when the operator must not wait.
        let open = self.open.get().and_then(|open| open.as_ref().ok());
        open.and_then(|open| open.reader.own().ok()).map_or(0, Reader::delivered)
    }

    /// Returns the state after `delivered` samples.
    pub fn state_at(&self, delivered: u64) -> Result<String> {
        Ok(self.reader()?.state_at(delivered))
    }

    /// Continues from `state`. Only allowed before the first batch.
    pub fn restore(&mut self, state: &str) -> Result<()> {
        self.reader()?;
        let Some(Ok(OpenReader { reader, .. })) = self.open.get_mut() else { return Err(not_open()) };
        reader.restore(state)
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        if let Some(opening) = &self.opening {
            opening.abandon();
        }
    }
}
