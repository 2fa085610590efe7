//! Decides when the GPU decodes, and shares the decoding with the CPU's idle cores, while a model trains on the GPU.
//!
//! A decoder takes the GPU from the model: training waits while a wave runs. So the GPU should decode only what the CPU
//! can't decode in time, and in few large waves. The decisions follow from the number of finished batches that wait for
//! the consumer:
//! - While more than a *reserve* of batches wait, the GPU decodes nothing. Chunks that were read wait; the CPU decodes
//!   them if it helps. Decoded chunks wait until they serve a whole batch, if memory has room
//!   ([`waves`](super::waves)).
//! - When no more than the reserve wait, a *burst* begins: waves decode the chunks that were read, and the queue is
//!   filled again. The burst leaves the last chunks to the CPU, because its cores would be idle until more is read. A
//!   burst ends when no chunks are left for it, or the queue is full, and its waves have ended. The next burst begins
//!   only then: a wave takes nearly as long for few chunks as for many, so few large waves take less of the GPU.
//! - The reserve must last until a burst ends. It is raised when the consumer had to wait (batches were late), and
//!   lowered slowly otherwise. A floor remembers for a time which reserve was too low. The lateness of a batch is a
//!   share: how long the consumer waited for it, divided by the time since the consumer took the batch before. A
//!   consumer with a queue of its own, such as DALI, loses nothing while these shares are small.
//!
//! The CPU takes long for a chunk, compared with a burst. So it takes the chunks in their order only while they are not
//! needed before it can have decoded them ([`Sharing::task_batches`]). Otherwise it takes the last one that was read, if
//! that isn't needed too soon either, and the next burst decodes the first ones. The reserve then needn't last until the
//! CPU has finished.
//!
//! If a consumer takes batches as fast as they come, none wait, whatever the reserve. Then the GPU decodes everything:
//! the CPU's share would only take bandwidth from the reads. The CPU begins to help when all batches that memory allows
//! are finished, or when no batch was late for a time. Where several batches need the same chunk, they are finished
//! together: a fast consumer finds all of them, then none. So each time that batches were late even with the highest
//! reserve, twice as many batches in a row must not be late before the CPU helps again.
//!
//! Where several processes train one model, bursts begin earlier, at batches that all processes count alike
//! ([`aligned_bursts`](super::aligned_bursts)).
//!
//! No constant here depends on the speed of a machine: the counts are in batches, and lateness is a share.

use std::collections::BTreeSet;

use super::aligned_bursts::AlignedBursts;
use crate::messages::Take;

/// Decides which chunks the CPU decodes for the GPU, and when the GPU decodes.
#[derive(Debug)]
pub(super) struct Sharing {
    /// Most tasks of the decode threads in the GPU's place at a time; 0: the CPU never helps.
    max_tasks: usize,
    /// Number of such tasks that run now.
    tasks: usize,
    /// The sum of `tasks` at each batch that was taken, and the number of tasks that ended. Both forget earlier batches
    /// ([`KEPT`]). The quotient is the mean duration of a task, in batches.
    task_durations: f64,
    tasks_ended: f64,
    /// The most finished batches that can wait for the consumer. 0: there is no GPU.
    max_waiting: usize,
    /// Whether the consumer is slower than the reader. If so, the GPU decodes in bursts, and the CPU helps.
    is_on: bool,
    /// While more batches than this wait, the GPU decodes nothing.
    reserve: usize,
    /// The reserve isn't lowered below this while `floor_left` is above zero.
    floor: usize,
    /// Number of batches until the floor is forgotten.
    floor_left: usize,
    /// Number of batches that were taken since the reserve was changed.
    taken: usize,
    /// The sum of their lateness.
    lateness: f64,
    /// While `is_on` is false: the number of batches in a row that weren't late.
    on_time: usize,
    /// The value of `on_time` from which `is_on` may become true again.
    on_time_needed: usize,
    /// Whether `is_on` has ever been true.
    was_on: bool,
    /// Whether a burst may launch more waves: chunks are left for it.
    burst: bool,
    /// Number of chunks that the burst leaves to the CPU.
    left_for_cpu: usize,
    /// The lanes with a wave that decodes.
    decoding: BTreeSet<usize>,
    /// Where other processes train the same model: when bursts begin, before the queue is as low as the reserve.
    aligned: Option<AlignedBursts>,
}

/// A batch was late if the consumer waited for it for more than this share of the time since the one before.
const LATE: f64 = 0.5;
/// The reserve is raised when the sum of lateness since its last change is above this.
const RAISE_AFTER: f64 = 1.25;
/// The reserve is lowered after this many times `max_waiting` batches. Half of their lateness is then forgotten.
const LOWER_AFTER: usize = 2;
/// The reserve is not lowered after fewer batches than this: they say too little.
const MIN_WINDOW: usize = 16;
/// At most this many times [`window`] batches must not be late before `is_on` becomes true again.
const MAX_ON_TIME: usize = 32;
/// A floor is forgotten after this many times `max_waiting` batches.
const FORGET_AFTER: usize = 32;
/// `is_on` stays false with fewer batches than this in memory: none could wait while others are decoded.
const MIN_WAITING: usize = 3;

/// The weight of what is known of earlier tasks, at each batch that is taken.
const KEPT: f64 = 1.0 - 1.0 / 32.0;
/// A task may take this many times as long as the mean of all.
const LONGEST_TASK: f64 = 2.0;

/// Returns the number of batches after which the reserve is lowered, unless it was raised before.
fn window(max_waiting: usize) -> usize {
    (LOWER_AFTER * max_waiting).max(MIN_WINDOW)
}

impl Sharing {
    /// Makes the state before the first batch. At most `max_waiting` finished batches can wait (0: there is no GPU).
    /// `several_shards`: other processes probably train the same model, each with a shard of the samples.
    pub fn new(max_tasks: usize, max_waiting: usize, several_shards: bool) -> Self {
        Self {
            max_tasks,
            tasks: 0,
            task_durations: 0.0,
            tasks_ended: 0.0,
            max_waiting,
            is_on: false,
            reserve: 0,
            floor: 0,
            floor_left: 0,
            taken: 0,
            lateness: 0.0,
            on_time: 0,
            on_time_needed: window(max_waiting),
            was_on: false,
            burst: false,
            left_for_cpu: 0,
            decoding: BTreeSet::new(),
            aligned: several_shards.then(AlignedBursts::default),
        }
    }

    /// The most chunks that the CPU decodes at a time, now.
    pub fn max_tasks(&self) -> usize {
        self.max_tasks
    }

    /// Whether the CPU helps now.
    pub fn cpu_helps(&self) -> bool {
        self.is_on && self.max_tasks > 0
    }

    /// Returns the reserve: while more batches than this wait, the GPU decodes nothing. `None` while the consumer is
    /// the faster side.
    pub fn reserve(&self) -> Option<usize> {
        self.is_on.then_some(self.reserve)
    }

    /// Whether nothing is urgent: the consumer is the slower side, and more than the reserve of finished batches wait.
    pub fn has_time(&self, waiting: usize) -> bool {
        self.is_on && waiting > self.reserve
    }

    /// Records that all batches that memory allows are finished and wait. This ends a burst.
    pub fn queue_is_full(&mut self) {
        self.burst = false;
        if !self.was_on || self.on_time >= self.on_time_needed {
            self.turn_on();
        }
    }

    fn turn_on(&mut self) {
        if self.is_on || self.max_waiting < MIN_WAITING {
            return;
        }
        (self.is_on, self.was_on) = (true, true);
        self.aligned.iter_mut().for_each(AlignedBursts::began);
        (self.floor, self.floor_left) = (1, FORGET_AFTER * self.max_waiting);
        self.set_reserve(self.first_reserve(), 0.0);
    }

    fn first_reserve(&self) -> usize {
        (self.max_waiting / 4).max(1)
    }

    /// `late`: what is remembered of the lateness so far.
    fn set_reserve(&mut self, reserve: usize, late: f64) {
        (self.reserve, self.taken, self.lateness) = (reserve, 0, late);
    }

    /// Records that the consumer took a batch, and that `waiting` finished ones are left.
    pub fn taken(&mut self, take: Take, waiting: usize) {
        self.aligned.iter_mut().for_each(AlignedBursts::taken);
        let late = (take.waited.as_secs_f64() / take.interval.as_secs_f64().max(1e-9)).min(1.0);
        if !self.is_on {
            self.on_time = if late > LATE { 0 } else { self.on_time + 1 };
            if self.on_time >= self.on_time_needed && waiting >= self.first_reserve() {
                self.turn_on();
            }
            return;
        }
        self.task_durations = KEPT * self.task_durations + self.tasks as f64;
        self.tasks_ended *= KEPT;
        self.taken += 1;
        self.lateness += late;
        self.floor_left = self.floor_left.saturating_sub(1);
        let highest = self.max_waiting - 2;
        if self.lateness > RAISE_AFTER && self.reserve >= highest {
            (self.is_on, self.on_time) = (false, 0);
            self.on_time_needed = (2 * self.on_time_needed).min(MAX_ON_TIME * window(self.max_waiting));
        } else if self.lateness > RAISE_AFTER {
            (self.floor, self.floor_left) =
                ((self.reserve + 1 + self.reserve / 2).min(highest), FORGET_AFTER * self.max_waiting);
            self.set_reserve(self.floor, 0.0);
        } else if self.taken >= window(self.max_waiting) {
            if self.floor_left == 0 {
                (self.floor, self.on_time_needed) = (1, window(self.max_waiting));
            }
            self.set_reserve(self.reserve.saturating_sub(1 + self.reserve / 4).max(self.floor), self.lateness / 2.0);
        }
    }

    /// Returns how many of the `encoded` chunks that were read the GPU may decode now, while `waiting` finished batches
    /// wait. A burst leaves the last chunks to the CPU, if there are many chunks and `cpu_decodes` is true. So decode
    /// threads have work during the burst, and until more is read.
    pub fn for_gpu(&mut self, encoded: usize, waiting: usize, cpu_decodes: bool) -> usize {
        if !self.burst && self.decoding.is_empty() && (waiting <= self.reserve || self.begins_aligned(waiting, encoded))
        {
            self.aligned.iter_mut().for_each(AlignedBursts::began);
            let tasks = self.max_tasks;
            let leaves_some = self.cpu_helps() && encoded >= 4 * tasks;
            (self.burst, self.left_for_cpu) = (true, if leaves_some { 2 * tasks } else { 0 });
        }
        if !self.is_on || waiting == 0 {
            encoded
        } else if self.burst {
            encoded.saturating_sub(if cpu_decodes { self.left_for_cpu } else { 0 })
        } else {
            0
        }
    }

    /// Whether a burst begins before the queue is as low as the reserve, so that all processes decode in the same step.
    /// Without chunks to decode it would begin with the next one that is read, in any step.
    fn begins_aligned(&mut self, waiting: usize, encoded: usize) -> bool {
        let (is_on, reserve, max_waiting) = (self.is_on, self.reserve, self.max_waiting);
        let begins = |aligned: &mut AlignedBursts| aligned.begins(waiting, reserve, max_waiting);
        is_on && self.aligned.as_mut().is_some_and(begins) && encoded > 0
    }

    /// Records that a wave that decodes was launched on a lane, and that `encoded` chunks that were read are left.
    pub fn launched(&mut self, lane: usize, encoded: usize) {
        self.decoding.insert(lane);
        self.burst &= encoded > self.left_for_cpu;
    }

    /// Records that the wave of a lane ended.
    pub fn ended(&mut self, lane: usize) {
        self.decoding.remove(&lane);
    }

    /// Whether the CPU may begin to decode another chunk.
    pub fn cpu_decodes(&self) -> bool {
        self.is_on && self.tasks < self.max_tasks
    }

    /// Returns after how many batches a chunk must be needed, so that the CPU can decode it before: [`LONGEST_TASK`] times
    /// the mean duration of a task. Tasks of more than the mean are risked for the last batch that can be in preparation:
    /// the CPU would decode nothing otherwise. `None` if the duration isn't known, because tasks have hardly ended lately.
    pub fn task_batches(&self) -> Option<usize> {
        if self.tasks_ended < 1.0 {
            return None;
        }
        let mean = self.task_durations / self.tasks_ended;
        let last = self.max_waiting.saturating_sub(1).max(mean.ceil() as usize);
        Some(((LONGEST_TASK * mean).ceil() as usize).min(last))
    }

    /// Records that the CPU begins to decode a chunk, and that `encoded` other chunks that were read are left.
    pub fn begin(&mut self, encoded: usize) {
        self.tasks += 1;
        self.burst &= encoded > self.left_for_cpu;
    }

    /// Records that the CPU has decoded a chunk, or failed to.
    pub fn end(&mut self) {
        self.tasks -= 1;
        self.tasks_ended += 1.0;
    }

    /// Returns the number of chunks that the CPU decodes now in the GPU's place.
    pub fn tasks(&self) -> usize {
        self.tasks
    }
}

#[cfg(test)]
mod tests;
