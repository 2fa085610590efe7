//! The decode threads and the lanes of a random world: how tasks and waves end, and what memory must hold before and
//! after them.

use std::iter::repeat;
use std::ops::Range;

use dali_zarr_kernels::{Job, Layout};

use super::{RandomWorld, fault};
use crate::messages::{Content, Event, Item, Payload, ReadId, Task, Wave};
use crate::scheduler::Scheduler;
use crate::scheduler::simulation::memory::{Held, Span};
use dali_zarr_base::error::{Error, Result};
use dali_zarr_samples::plan::ChunkId;

/// Checks that an address lies in an output of a batch that has memory, and that the wave waits until it may be written.
fn expect_ready(address: u64, wave: &Wave, scheduler: &Scheduler) -> Result<()> {
    let outputs = scheduler.batches.iter().flat_map(|(_, batch)| batch.outputs.iter().map(move |&base| (base, batch)));
    let before = outputs.filter(|&(base, _)| base <= address).max_by_key(|&(base, _)| base);
    let (_, batch) = before.ok_or_else(|| Error::runtime(format!("{address:#x} is in no output")))?;
    match batch.ready() {
        Some(event) if !wave.assembly.after.contains(&event) => {
            Err(Error::runtime(format!("a wave writes to {address:#x} before event {event}")))
        }
        _ => Ok(()),
    }
}

impl RandomWorld<'_> {
    /// Checks that encoded bytes are those of the chunk.
    fn expect_encoded(&mut self, id: ChunkId, read: ReadId, bytes: Span) -> Result<()> {
        if !self.memory.holds(bytes) {
            return Ok(());
        }
        let chunks = self.reads.get(&read).ok_or_else(|| Error::runtime("bytes of an unknown read"))?;
        if !chunks.contains(&(id, bytes.address)) {
            return Err(Error::runtime(format!(
                "{id:?} is decoded from {bytes:?}, but read {read} brought it elsewhere"
            )));
        }
        self.memory.expect(bytes, Held::Read(read))
    }

    /// Checks that the bytes of an item are those of its chunk. Returns the read that brought them.
    fn expect_item(&mut self, item: &Item) -> Result<ReadId> {
        let (read, bytes) = match &item.encoded {
            Some(Payload { read, bytes }) => (*read, Span::from(bytes)),
            None => {
                let read = self.in_place.get(&item.id).copied();
                (read.ok_or_else(|| Error::runtime("a chunk without bytes is decoded"))?, Span::from(&item.decoded))
            }
        };
        self.expect_encoded(item.id, read, bytes)?;
        Ok(read)
    }

    /// Checks that jobs would read the right chunks now.
    fn expect_jobs(&mut self, jobs: &[Job], scheduler: &Scheduler) -> Result<()> {
        for job in jobs {
            if let Some(chunk) = self.batches.chunk_of(job, &scheduler.batches, |id| {
                self.missing.chunk(id) || self.tolerates && self.missing.bad(id)
            })? {
                self.memory.expect(Span { address: job.src, len: 1 }, Held::Decoded(chunk))?;
            }
        }
        Ok(())
    }

    fn run_jobs(&mut self, jobs: &[Job], scheduler: &Scheduler) -> Result<()> {
        self.expect_jobs(jobs, scheduler)?;
        jobs.iter().try_for_each(|job| self.batches.done(job.dst, &scheduler.batches))
    }

    pub(super) fn begin_task(&mut self, task: &Task, scheduler: &Scheduler) -> Result<()> {
        for item in &task.items {
            self.expect_item(item)?;
            if item.encoded.is_some() {
                self.memory.begin(Span::from(&item.decoded), Held::Decoding(item.id))?;
            }
        }
        self.expect_jobs(&task.assembly.jobs[task.ready_jobs.clone()], scheduler)
    }

    pub(super) fn end_task(&mut self, task: Task, scheduler: &Scheduler) -> Result<Vec<Event>> {
        let mut results = Vec::new();
        let mut run: Vec<Range<usize>> = Vec::new();
        for item in &task.items {
            let read = self.expect_item(item)?;
            let bad = self.missing.bad_chunk(item.id);
            let good = !bad && !self.random.chance(self.faults.decode);
            let before = if item.encoded.is_none() { Held::Read(read) } else { Held::Decoding(item.id) };
            let after = if good { Held::Decoded(item.id) } else { Held::Nothing };
            let decoded = Span::from(&item.decoded);
            self.memory.change(decoded, before, after)?;
            results.push(if good {
                if !self.memory.holds(decoded) {
                    // It is decoded to an output.
                    self.batches.done(decoded.address, &scheduler.batches)?;
                }
                run.push(item.jobs.clone());
                Ok(Layout::NONE)
            } else {
                Err(self.undecodable(item.id, bad))
            });
        }
        run.push(task.ready_jobs.clone());
        run.into_iter().try_for_each(|jobs| self.run_jobs(&task.assembly.jobs[jobs], scheduler))?;
        Ok(vec![Event::Decoded(task.ended(results))])
    }

    /// Returns the error of a decoder.
    pub(super) fn undecodable(&mut self, id: ChunkId, bad: bool) -> Error {
        if !(bad && self.tolerates) {
            self.failed.insert(id);
        }
        if bad { Error::damaged("these bytes can't be decoded") } else { fault("a decoder") }
    }

    pub(super) fn expect_wave(&mut self, wave: &Wave) -> Result<()> {
        if wave.chunks.len() != wave.payloads.len() {
            return Err(Error::runtime("a wave has chunks without bytes"));
        }
        for (chunk, Payload { read, bytes }) in wave.chunks.iter().zip(&wave.payloads) {
            match (chunk.content, self.reads.contains_key(read)) {
                (Content::Encoded, _) | (Content::Decoded, true) => {
                    self.expect_encoded(chunk.id, *read, bytes.into())?;
                }
                (Content::Decoded, false) => self.memory.expect(bytes.into(), Held::Decoded(chunk.id))?,
            }
        }
        Ok(())
    }

    pub(super) fn begin_wave(&mut self, wave: &Wave, scheduler: &Scheduler) -> Result<()> {
        self.expect_wave(wave)?;
        for chunk in &wave.chunks {
            let to = Span { address: chunk.to, len: chunk.decoded_bytes };
            self.memory.begin(to, Held::Decoding(chunk.id))?;
            if !self.memory.holds(to) {
                expect_ready(chunk.to, wave, scheduler)?;
            }
        }
        wave.assembly.jobs.iter().try_for_each(|job| expect_ready(job.dst, wave, scheduler))?;
        self.expect_jobs(&wave.assembly.jobs[wave.ready_jobs.clone()], scheduler)
    }

    pub(super) fn end_wave(&mut self, lane: usize, wave: Wave, scheduler: &Scheduler) -> Result<Event> {
        if self.random.chance(self.faults.lane) {
            self.broken = true;
            return Ok(Event::Wave(wave.ended(lane, repeat(Err(fault("a lane"))), Err(fault("a lane")))));
        }
        let mut results = Vec::new();
        let mut run = vec![wave.ready_jobs.clone()];
        for chunk in &wave.chunks {
            // What the CPU has decoded is good.
            let bad = chunk.content == Content::Encoded && self.missing.bad_chunk(chunk.id);
            let good = !bad && !self.random.chance(self.faults.decode);
            let to = Span { address: chunk.to, len: chunk.decoded_bytes };
            let after = if good { Held::Decoded(chunk.id) } else { Held::Nothing };
            self.memory.change(to, Held::Decoding(chunk.id), after)?;
            results.push(if good {
                if !self.memory.holds(to) {
                    // It goes to an output.
                    self.batches.done(to.address, &scheduler.batches)?;
                }
                run.push(chunk.jobs.clone());
                Ok(Layout::NONE)
            } else {
                Err(self.undecodable(chunk.id, bad))
            });
        }
        run.into_iter().try_for_each(|jobs| self.run_jobs(&wave.assembly.jobs[jobs], scheduler))?;
        Ok(Event::Wave(wave.ended(lane, results, Ok(()))))
    }
}
