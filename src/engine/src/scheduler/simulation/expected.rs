//! Checks each batch of a simulated reader: every element of its outputs is written once, from the right chunk.

use std::collections::{HashMap, VecDeque};

use dali_zarr_kernels::{Job, Source};

use super::lent;
use crate::scheduler::Finished;
use crate::scheduler::batches::Batches;
use dali_zarr_base::error::{Error, Result};
use dali_zarr_samples::order::Sample;
use dali_zarr_samples::plan::{BatchPlan, ChunkId};

/// A planned batch.
struct Expected {
    samples: Vec<Sample>,
    /// The chunk that each job reads. `None`: it fills elements outside of the region of interest.
    jobs: Vec<Option<ChunkId>>,
    done: Vec<bool>,
    /// The number of jobs that run before those between elements, which come last.
    before_between: usize,
    /// The index of each job, by output and by the offset of the first byte that the job writes there.
    by_place: HashMap<(u32, u64), usize>,
    /// Addresses of its outputs. Empty until a job of it runs.
    outputs: Vec<u64>,
    /// How often it was planned again.
    replans: u32,
}

impl Expected {
    fn new(samples: Vec<Sample>, plan: &BatchPlan, replans: u32) -> Self {
        let (jobs, by_place, outputs) = (Vec::new(), HashMap::new(), Vec::new());
        let mut expected = Self { samples, jobs, done: Vec::new(), before_between: 0, by_place, outputs, replans };
        let mut add = |job: &Job, chunk| {
            expected.by_place.insert((job.output, job.dst), expected.jobs.len());
            expected.jobs.push(chunk);
        };
        for chunk_use in &plan.uses {
            plan.jobs[chunk_use.jobs.clone()].iter().for_each(|job| add(job, Some(chunk_use.chunk)));
        }
        plan.pads.iter().chain(&plan.between).for_each(|job| add(job, None));
        expected.before_between = expected.jobs.len() - plan.between.len();
        expected.done = vec![false; expected.jobs.len()];
        expected
    }
}

/// The batches that were planned and not delivered yet.
pub(super) struct Batched {
    first: u64,
    list: VecDeque<Expected>,
    /// Bytes of each output of a batch.
    output_bytes: Vec<u64>,
}

impl Batched {
    pub fn new(output_bytes: Vec<u64>) -> Self {
        Self { first: 0, list: VecDeque::new(), output_bytes }
    }

    /// Records a planned batch of these samples.
    pub fn plan(&mut self, samples: Vec<Sample>, plan: &BatchPlan) {
        self.list.push_back(Expected::new(samples, plan, 0));
    }

    /// Takes note of the batches that were planned again, with other samples.
    pub fn follow(&mut self, batches: &Batches) {
        for (number, batch) in batches.iter() {
            if let Some(expected) = self.list.get_mut((number - self.first) as usize)
                && expected.replans != batch.replans
            {
                *expected = Expected::new(batch.samples.clone(), &batch.plan, batch.replans);
            }
        }
    }

    /// Finds the batch and the job that writes at an address.
    fn find(&mut self, address: u64, batches: &Batches) -> Result<(&mut Expected, usize)> {
        for (number, batch) in batches.iter() {
            for (output, (&base, &bytes)) in batch.outputs.iter().zip(&self.output_bytes).enumerate() {
                if (base..base + bytes).contains(&address) {
                    let expected = &mut self.list[(number - self.first) as usize];
                    expected.outputs.clone_from(&batch.outputs);
                    let job = expected.by_place.get(&(output as u32, address - base)).copied();
                    let job =
                        job.ok_or_else(|| Error::runtime(format!("batch {number} has no job at {address:#x}")))?;
                    return Ok((expected, job));
                }
            }
        }
        Err(Error::runtime(format!("a job writes to {address:#x}, which belongs to no batch in preparation")))
    }

    /// Returns the chunk that a job must read, before or when it runs. `None` if it must read none.
    ///
    /// # Errors
    /// If the job belongs to no batch, writes the fill value for a chunk that isn't missing, or reads a chunk where it
    /// should not.
    pub fn chunk_of(
        &mut self,
        job: &Job,
        batches: &Batches,
        missing: impl Fn(ChunkId) -> bool,
    ) -> Result<Option<ChunkId>> {
        let (expected, at) = self.find(job.dst, batches)?;
        let chunk = expected.jobs[at];
        match (chunk, job.source) {
            (None, source) if source == Source::Pad as u32 => Ok(None),
            (None, source) if source == Source::Between as u32 => {
                match expected.done[..expected.before_between].contains(&false) {
                    true => Err(Error::runtime("a job between elements runs before they are decoded")),
                    false => Ok(None),
                }
            }
            (Some(chunk), source) if source == Source::Fill as u32 && missing(chunk) => Ok(None),
            (Some(chunk), source) if source == Source::Chunk as u32 => Ok(Some(chunk)),
            _ => Err(Error::runtime(format!("a job has source {} where {chunk:?} is expected", job.source))),
        }
    }

    /// Records that the job which writes at an address has run.
    ///
    /// # Errors
    /// If it ran before, or no job should write there.
    pub fn done(&mut self, address: u64, batches: &Batches) -> Result<()> {
        let (expected, at) = self.find(address, batches)?;
        if std::mem::replace(&mut expected.done[at], true) {
            return Err(Error::runtime(format!("the job at {address:#x} runs twice")));
        }
        Ok(())
    }

    /// Checks the next batch, which was delivered, and returns its samples. An error must come from a chunk that failed.
    ///
    /// # Errors
    /// If it is incomplete, has outputs to which its jobs did not write, or failed for no reason.
    pub fn deliver(&mut self, finished: &Finished, failed: impl Fn(ChunkId) -> bool) -> Result<Vec<Sample>> {
        let number = self.first;
        let expected = self.list.pop_front().ok_or_else(|| Error::runtime("a batch that was never planned"))?;
        self.first += 1;
        match finished {
            Ok(batch) => {
                let left = expected.done.iter().filter(|done| !**done).count();
                if left > 0 {
                    return Err(Error::runtime(format!("batch {number} is delivered with {left} jobs left")));
                }
                let outputs: Vec<u64> = match batch.buffers {
                    Some(id) => lent(id, self.output_bytes.len()).collect(),
                    None => batch.host.iter().map(|buffer| buffer.as_ptr() as u64).collect(),
                };
                if !expected.outputs.is_empty() && expected.outputs != outputs {
                    return Err(Error::runtime(format!("batch {number} is delivered with the outputs of another")));
                }
            }
            Err(e) if !expected.jobs.iter().flatten().any(|&chunk| failed(chunk)) => {
                return Err(e.within(format!("batch {number} fails though none of its chunks did")));
            }
            Err(_) => {}
        }
        Ok(expected.samples)
    }
}
