//! The surroundings of a scheduler in a random world: how long each piece of work takes, and what is planned and taken.
//! [`store`] says how reads end, and [`decoders`] how tasks and waves end.

mod decoders;
mod store;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::Random;
use super::faults::{Faults, MissingKeys};
use crate::chunk_index::{ChunkIndex, Foresight, Location, Plan, ShardId};
use crate::messages::{Event, ReadDone, ReadId};
use crate::scheduler::simulation::expected::Batched;
use crate::scheduler::simulation::memory::Memory;
use crate::scheduler::simulation::{SimulatedWork, World, task_events, wave_events};
use crate::scheduler::{Finished, Scheduler};
use dali_zarr_base::error::{Code, Error, Result};
use dali_zarr_base::memory::Account;
use dali_zarr_samples::order::Sample;
use dali_zarr_samples::plan::ChunkId;

/// The surroundings of one scheduler.
pub(super) struct RandomWorld<'a> {
    pub random: Random,
    /// If host memory is shared: the reader's account, and that of all others.
    pub others: Option<(Arc<Account>, Arc<Account>)>,
    pub unusual: bool,
    pub chunk_index: &'a ChunkIndex,
    pub missing: MissingKeys<'a>,
    pub faults: Faults,
    pub foresight: Foresight,
    /// Usual longest duration of each kind of work, in nanoseconds. The order of the kinds is in [`World::begin`].
    pub times: [u64; 6],
    pub planner_takes_time: bool,
    pub eager: f64,
    pub memory: Memory,
    pub batches: Batched,
    /// For each read its chunks, and the address to which the bytes of each chunk go.
    pub reads: HashMap<ReadId, Vec<(ChunkId, u64)>>,
    /// The last read of each chunk that was read in place.
    pub in_place: HashMap<ChunkId, ReadId>,
    /// Whether the reader goes on without bad chunks.
    pub tolerates: bool,
    /// Whether it replaces the samples that need them.
    pub replaces: bool,
    pub failed: HashSet<ChunkId>,
    pub failed_shards: HashSet<ShardId>,
    /// Whether a lane or a thread died. Then the world only checks that every batch comes to an end.
    pub broken: bool,
    /// Number of pieces of work that may still begin before the reader is dropped.
    pub left: u64,
    /// Whether the reader was dropped because of this number.
    pub dropped: bool,
}

impl RandomWorld<'_> {
    /// Lets other readers take or give back host memory. Returns whether they ask the reader for some.
    fn share(&mut self) -> bool {
        let Some((own, others)) = &self.others else { return false };
        match self.random.below(8) {
            0 => drop(others.draw(1 + self.random.below(own.left().max(1)))),
            1 => others.give_back(others.drawn()),
            2 => own.set_unused(self.random.chance(0.5)),
            _ => {}
        }
        self.random.chance(0.1)
    }

    /// Checks the next batch, which was delivered, and returns its samples: none after a thread died. If samples are replaced,
    /// those of a batch that failed are `None`.
    ///
    /// # Errors
    /// If it is incomplete, or failed though none of its chunks did.
    pub fn delivered(&mut self, finished: &Finished) -> Result<Vec<Option<Sample>>> {
        if self.broken {
            return Ok(Vec::new());
        }
        let (failed, shards, chunk_index) = (&self.failed, &self.failed_shards, self.chunk_index);
        // A batch that was planned again may fail before the world sees its new plan.
        let none_left = finished.as_ref().is_err_and(|e| e.code() == Code::Damaged);
        let may_fail = self.replaces && (none_left || !failed.is_empty() || !shards.is_empty());
        let samples = self.batches.deliver(finished, |id| {
            let index = match chunk_index.location(id) {
                Location::Shard(shard, _) | Location::Unread(shard) => shards.contains(&shard),
                Location::Key | Location::Range(_) => false,
            };
            may_fail || failed.contains(&id) || index
        })?;
        let is_known = finished.is_ok() || !self.replaces;
        Ok(samples.into_iter().map(|sample| is_known.then_some(sample)).collect())
    }

    /// Returns the events of work that ends after a thread died.
    fn end_broken(&mut self, work: SimulatedWork) -> Vec<Event> {
        match work {
            SimulatedWork::Read { read, to, copying } => {
                let done = ReadDone { id: read.id, to, result: Err(fault("everything")) };
                vec![if copying { Event::Uploaded(done) } else { Event::Fetched(done) }]
            }
            SimulatedWork::Index(shard) => vec![Event::Index(shard, Err(fault("everything")))],
            SimulatedWork::Task(task) => task_events(task, Err(fault("everything"))),
            SimulatedWork::Wave { lane, wave, .. } => {
                wave_events(lane, wave, Err(fault("everything")), Err(fault("everything")))
            }
            SimulatedWork::Plan | SimulatedWork::Lend(_) => Vec::new(),
        }
    }
}

fn fault(what: &str) -> Error {
    Error::runtime(format!("{what} fails in this world"))
}

impl World for RandomWorld<'_> {
    fn begin(&mut self, now: u64, work: &SimulatedWork, scheduler: &Scheduler) -> Result<u64> {
        let begun = matches!(
            work,
            SimulatedWork::Lend(_)
                | SimulatedWork::Read { copying: true, .. }
                | SimulatedWork::Wave { copied: true, .. }
        );
        if !begun && self.left == 0 {
            self.dropped = true;
            return Err(Error::runtime("the reader is dropped in this world"));
        }
        self.left -= u64::from(!begun);
        self.batches.follow(&scheduler.batches);
        let kind = match work {
            SimulatedWork::Plan => 0,
            SimulatedWork::Read { read, to, copying } => {
                if !copying {
                    self.begin_read(read, to.into(), scheduler)?;
                }
                1
            }
            SimulatedWork::Index(_) => 2,
            SimulatedWork::Task(task) => {
                if !self.broken {
                    self.begin_task(task, scheduler)?;
                }
                3
            }
            SimulatedWork::Wave { wave, copied, .. } => {
                if !copied && !self.broken {
                    self.begin_wave(wave, scheduler)?;
                }
                4
            }
            SimulatedWork::Lend(_) => 5,
        };
        let long = if self.random.chance(0.03) { 50 } else { 1 };
        Ok(now + long * (1 + self.random.below(self.times[kind])))
    }

    fn end(&mut self, work: SimulatedWork, scheduler: &Scheduler) -> Result<(Vec<Event>, Option<SimulatedWork>)> {
        let died = !self.broken && self.random.chance(self.faults.died);
        self.broken |= died;
        if self.broken {
            let mut events = self.end_broken(work);
            if died {
                events.insert(0, Event::Died(fault("a thread")));
            }
            return Ok((events, None));
        }
        let asked = self.share();
        let (mut events, then) = match work {
            SimulatedWork::Read { read, to, copying } => self.end_read(read, to, copying, scheduler)?,
            SimulatedWork::Index(shard) => (vec![self.index(shard)], None),
            SimulatedWork::Task(task) => (self.end_task(task, scheduler)?, None),
            SimulatedWork::Wave { lane, mut wave, copied: false } => {
                self.expect_wave(&wave)?;
                let copied = Event::Copied(std::mem::take(&mut wave.payloads));
                (vec![copied], Some(SimulatedWork::Wave { lane, wave, copied: true }))
            }
            SimulatedWork::Wave { lane, wave, copied: true } => (vec![self.end_wave(lane, wave, scheduler)?], None),
            SimulatedWork::Plan | SimulatedWork::Lend(_) => (Vec::new(), None),
        };
        if asked {
            events.push(Event::GiveBack);
        }
        Ok((events, then))
    }

    fn plan(&mut self) -> Plan {
        let upcoming = self.foresight.next(self.chunk_index, true).unwrap_or_default();
        let samples = upcoming.samples.clone();
        let plan = self.chunk_index.plan_upcoming(upcoming);
        self.batches.plan(samples, &plan.batch);
        plan
    }

    fn planner_takes_time(&self) -> bool {
        self.planner_takes_time
    }

    fn takes_now(&mut self) -> bool {
        self.random.chance(self.eager)
    }
}
