//! The decode threads: they decode chunks on the CPU and assemble batches that are delivered there.
//!
//! `unsafe` is allowed here: jobs refer to memory by address.

#![allow(unsafe_code)]

use std::time::Instant;

use crossbeam_channel::Receiver;
use dali_zarr_kernels::Layout;

use crate::messages::{Assembly, Decode, Event, Item, Shared, Task, Workers};
use crate::route::Route;
use crate::stats::Stats;
use dali_zarr_base::error::Result;
use dali_zarr_base::nvtx;
use dali_zarr_samples::assemble;

/// The decode threads.
pub(crate) struct DecodePool(Workers<Task>);

impl DecodePool {
    /// Starts `threads` threads. With `background` they have a low priority, so that the threads of the training
    /// process get the cores first.
    ///
    /// # Errors
    /// If the system refuses to start a thread.
    pub fn new(threads: usize, background: bool, shared: &Shared) -> Result<Self> {
        let body = || {
            let shared = shared.clone();
            Ok(move |work| run(&work, &shared))
        };
        Workers::new("decode", threads, background, shared, body).map(Self)
    }
}

impl Decode for DecodePool {
    fn run(&self, task: Task) {
        self.0.send(task);
    }
}

fn run(work: &Receiver<Task>, shared: &Shared) {
    for mut task in work {
        if shared.stopped() {
            continue;
        }
        let mut results = Vec::with_capacity(task.items.len());
        for item in &mut task.items {
            let start = Instant::now();
            let result = decode(item, shared);
            let decoded = Instant::now();
            if result.is_ok() {
                assemble(&task.assembly, item.jobs.clone(), shared);
            }
            let counter = match (&result, shared.chunk_index.route(item.id)) {
                (Err(_), _) => &shared.stats.chunks_failed,
                (Ok(()), Route::Raw) => &shared.stats.chunks_uncompressed,
                (Ok(()), _) => &shared.stats.chunks_decoded_cpu,
            };
            Stats::add(counter, 1);
            Stats::time(&shared.stats.decode_ns, decoded - start);
            Stats::time(&shared.stats.assemble_ns, decoded.elapsed());
            results.push(result.map(|()| Layout::NONE));
        }
        let start = Instant::now();
        assemble(&task.assembly, task.ready_jobs.clone(), shared);
        Stats::time(&shared.stats.assemble_ns, start.elapsed());
        if shared.events.send(Event::Decoded(task.ended(results))).is_err() {
            return;
        }
    }
}

fn assemble(assembly: &Assembly, jobs: std::ops::Range<usize>, shared: &Shared) {
    if jobs.is_empty() {
        return;
    }
    let _range = nvtx::range(c"dali_zarr assemble");
    for job in &assembly.jobs[jobs] {
        let op = &shared.ops[job.op as usize];
        // SAFETY: the job's addresses come from the scheduler. It keeps the decoded chunk that the job reads, and the
        // part of the output that the job writes belongs to this task alone.
        let replaced = unsafe { assemble::run(job, op) };
        if replaced > 0 {
            shared.stats.nans_replaced.add(op.counter as usize, replaced);
        }
    }
}

/// Decodes one chunk, unless it was read in place. An error or panic of the decoder becomes an error that names the
/// chunk.
fn decode(item: &mut Item, shared: &Shared) -> Result<()> {
    let Some(encoded) = &item.encoded else { return Ok(()) };
    let _range = nvtx::range(c"dali_zarr decode");
    let decoded = shared.chunk_index.decode(item.id, &encoded.bytes, &mut item.decoded);
    decoded.map_err(|e| e.at(shared.chunk_index.site(item.id)))
}
