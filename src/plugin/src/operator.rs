//! The reader behind one operator of DALI: it may be opened later than it is made, and batches whose wait was interrupted are left
//! out. [`crate::bridge`] is how the C++ shim reaches it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use dali_zarr_engine::error::{Error, Result};
use dali_zarr_engine::reader::{Batch, DeviceBuffers, OutputInfo, Reader, ReaderMeta};
use dali_zarr_engine::spec::Spec;

use crate::interrupts;
use crate::opening::{Opened, Opening};
use crate::registry::Registered;
use crate::unwind::Fenced;

/// A reader that may not be open.
#[derive(Default)]
pub struct Operator {
    /// On its way, where the host waits for it.
    opening: Option<Arc<Opening>>,
    open: OnceLock<Result<Opened>>,
    interrupted: Mutex<Interrupted>,
}

/// Batches that nobody took, since the waits for them were interrupted.
#[derive(Default)]
struct Interrupted {
    /// How many there are. They are left out, so that readers of one pipeline stay in step.
    batches: u32,
    /// What was lent, by its number, to be lent again when a batch is left out.
    lent: BTreeMap<u64, DeviceBuffers>,
}

fn not_open() -> Error {
    Error::runtime("the reader isn't open")
}

fn open(spec: &Spec, wait: bool, num_outputs: usize) -> Result<Opened> {
    let open = if wait { Reader::prepare } else { Reader::open };
    let reader = Fenced::new(open(spec.clone())?);
    let found = reader.outputs().len();
    if found != num_outputs {
        return Err(Error::runtime(format!(
            "internal error: the schema declares {num_outputs} outputs, but the engine gives {found}"
        )));
    }
    Ok((Registered::new(spec, &reader), reader))
}

impl Operator {
    fn both(&self) -> Result<&Opened> {
        let open = match &self.opening {
            Some(opening) => self.open.get_or_init(|| opening.take()),
            None => self.open.get().ok_or_else(not_open)?,
        };
        open.as_ref().map_err(Clone::clone)
    }

    fn reader(&self) -> Result<&Reader> {
        self.both().map(|(_, reader)| &**reader)
    }

    fn interrupted(&self) -> MutexGuard<'_, Interrupted> {
        self.interrupted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the store and starts the threads. `arguments` are a JSON object. Batches are prepared at once, or, if it shall `wait`,
    /// from the first [`Self::next_batch`] or a [`Self::restore`] on. If the host has asked for it, this returns before the store is
    /// open; all that follows but [`Self::delivered`] waits until it is. `num_outputs` are what the schema declares, and `place` says
    /// where in the host's program the operator was made.
    ///
    /// # Errors
    /// If the arguments are wrong, or, without a host that waits, the store can't be opened.
    pub fn open(&mut self, arguments: &[u8], wait: bool, num_outputs: usize, place: String) -> Result<()> {
        let spec = Spec::from_json(arguments)?;
        match Opening::start(move || open(&spec, wait, num_outputs), place)? {
            Ok(opening) => self.opening = Some(opening),
            Err(work) => self.open = OnceLock::from(Ok(work()?)),
        }
        Ok(())
    }

    /// Waits until the reader is open.
    ///
    /// # Errors
    /// If it can't be, as all that follows.
    pub fn opened(&self) -> Result<()> {
        self.reader().map(|_| ())
    }

    /// What each batch holds, and the samples of one.
    pub fn outputs(&self) -> Result<(&[OutputInfo], usize)> {
        let reader = self.reader()?;
        Ok((reader.outputs(), reader.batch_size()))
    }

    /// What DALI's iterators ask.
    pub fn meta(&self) -> Result<ReaderMeta> {
        let (registered, reader) = self.both()?;
        registered.described();
        Ok(reader.meta())
    }

    /// How many sets of device memory the reader wants to be lent.
    pub fn buffers_wanted(&self) -> Result<usize> {
        Ok(self.reader()?.buffers_wanted())
    }

    /// Lends a set of device memory.
    pub fn lend(&self, set: DeviceBuffers) -> Result<()> {
        self.reader()?.lend(set.clone())?;
        self.interrupted().lent.insert(set.id, set);
        Ok(())
    }

    /// Waits for the next batch.
    pub fn next_batch(&self) -> Result<Batch> {
        let reader = self.reader()?;
        loop {
            let mut ended = false;
            let batch = reader.next_batch_while(&mut || interrupts::check().inspect_err(|_| ended = true));
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

    /// How many samples were handed out: all that a checkpoint has to remember until it is written.
    pub fn delivered(&self) -> u64 {
        // DALI asks while it builds a pipeline too, when nobody may wait.
        self.open.get().and_then(|open| open.as_ref().ok()).map_or(0, |(_, reader)| reader.delivered())
    }

    /// The state after so many samples.
    pub fn state_at(&self, delivered: u64) -> Result<String> {
        Ok(self.reader()?.state_at(delivered))
    }

    /// Goes on where `state` was written; before the first batch only.
    pub fn restore(&mut self, state: &str) -> Result<()> {
        self.reader()?;
        let Some(Ok((_, reader))) = self.open.get_mut() else { return Err(not_open()) };
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
