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
use super::task_limit::TaskLimit;
use crate::messages::Take;

/// Decides which chunks the CPU decodes for the GPU, and when the GPU decodes.
#[derive(Debug)]
pub(super) struct Sharing {
    /// Most tasks of the decode threads in the GPU's place at a time; 0: the CPU never helps.
    max_tasks: TaskLimit,
    /// Number of such tasks that run now.
    tasks: usize,
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

/// Returns the number of batches after which the reserve is lowered, unless it was raised before.
fn window(max_waiting: usize) -> usize {
    (LOWER_AFTER * max_waiting).max(MIN_WINDOW)
}

impl Sharing {
    /// Makes the state before the first batch. At most `max_waiting` finished batches can wait (0: there is no GPU).
    /// `several_shards`: other processes probably train the same model, each with a shard of the samples.
    pub fn new(max_tasks: TaskLimit, max_waiting: usize, several_shards: bool) -> Self {
        Self {
            max_tasks,
            tasks: 0,
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
        self.max_tasks.get()
    }

    /// Whether the CPU helps now.
    pub fn cpu_helps(&self) -> bool {
        self.is_on && self.max_tasks.get() > 0
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
        self.max_tasks.taken(take.interval);
        self.taken += 1;
        self.lateness += late;
        self.floor_left = self.floor_left.saturating_sub(1);
        let highest = self.max_waiting - 2;
        if self.lateness > RAISE_AFTER && self.reserve >= highest {
            (self.is_on, self.on_time) = (false, 0);
            self.max_tasks.interrupt();
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
            let tasks = self.max_tasks.get();
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
        self.is_on && self.tasks < self.max_tasks.get()
    }

    /// Records that the CPU begins to decode a chunk, and that `encoded` other chunks that were read are left.
    pub fn begin(&mut self, encoded: usize) {
        self.tasks += 1;
        self.burst &= encoded > self.left_for_cpu;
    }

    /// Records that the CPU has decoded a chunk, or failed to.
    pub fn end(&mut self) {
        self.tasks -= 1;
    }

    /// Returns the number of chunks that the CPU decodes now in the GPU's place.
    pub fn tasks(&self) -> usize {
        self.tasks
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A batch for which the consumer waited, after it had worked. Both times are in units of 8 ms.
    fn take(waited: u32, worked: u32) -> Take {
        let [waited, worked] = [waited, worked].map(|n| n * Duration::from_millis(8));
        Take { waited, interval: waited + worked }
    }

    /// Simulates a reader and a consumer, in batches. The CPU finishes `cpu` batches for each one that is taken. A
    /// burst of the GPU, when it is allowed, fills the queue after `latency` more batches were taken. Returns the
    /// batches that the GPU decoded, the number of its bursts, and how often no batch was left, counted over `rounds`
    /// batches after as many others for settling.
    fn consume(cpu: f64, latency: usize, max_waiting: usize, rounds: usize) -> (f64, usize, usize) {
        let mut sharing = Sharing::new(TaskLimit::fixed(8), max_waiting, false);
        let (mut waiting, mut wave) = (max_waiting as f64, None);
        let (mut by_gpu, mut bursts, mut empty, mut waits) = (0.0, 0, 0, 0);
        sharing.queue_is_full();
        for round in 0..2 * rounds {
            if round == rounds {
                (by_gpu, bursts, empty) = (0.0, 0, 0);
            }
            if waiting < 1.0 {
                // The consumer waits for the burst.
                wave = Some(0);
                waits += 1;
            } else {
                waiting -= 1.0;
                sharing.taken(take(waits, 1), waiting as usize);
                empty += std::mem::take(&mut waits) as usize;
            }
            if sharing.is_on {
                waiting = (waiting + cpu).min(max_waiting as f64);
            }
            wave = match wave {
                None if sharing.for_gpu(1, waiting as usize, true) > 0 => {
                    sharing.launched(0, 0);
                    bursts += 1;
                    Some(latency)
                }
                Some(0) => {
                    sharing.ended(0);
                    by_gpu += max_waiting as f64 - waiting;
                    waiting = max_waiting as f64;
                    None
                }
                other => other.map(|left| left - 1),
            };
            if waiting >= max_waiting as f64 {
                sharing.queue_is_full();
            }
        }
        (by_gpu, bursts, empty)
    }

    #[test]
    fn a_cpu_that_is_fast_enough_decodes_everything() {
        assert_eq!(consume(1.2, 3, 10, 2000), (0.0, 0, 0));
    }

    #[test]
    fn the_gpu_decodes_what_the_cpu_cannot_in_large_bursts() {
        for (cpu, latency) in [(0.5, 2), (0.5, 4), (0.8, 3), (0.2, 2)] {
            let rounds = 4000;
            let (by_gpu, bursts, empty) = consume(cpu, latency, 16, rounds);
            let least = (1.0 - cpu) * rounds as f64;
            assert!(by_gpu < 1.1 * least, "{cpu} {latency}: {by_gpu} for {least}");
            assert!(by_gpu / bursts as f64 >= 6.0, "{cpu} {latency}: {by_gpu} in {bursts}");
            assert!(empty * 25 < rounds, "{cpu} {latency}: {empty}");
        }
    }

    /// Whether the GPU decodes while `waiting` batches wait.
    fn decodes(sharing: &mut Sharing, waiting: usize) -> bool {
        sharing.for_gpu(1, waiting, true) > 0
    }

    #[test]
    fn a_consumer_that_leaves_no_batch_gets_the_gpu() {
        let mut sharing = Sharing::new(TaskLimit::fixed(8), 8, false);
        assert!(!sharing.is_on && decodes(&mut sharing, 8));
        (0..100).for_each(|_| sharing.taken(take(1, 0), 0));
        assert!(!sharing.is_on);
        sharing.launched(0, 0);
        sharing.ended(0);
        sharing.queue_is_full();
        assert!(sharing.is_on && !decodes(&mut sharing, 8) && sharing.cpu_decodes());
        assert!(sharing.has_time(3) && !sharing.has_time(2), "the reserve is a quarter of them");
        (0..12).for_each(|_| sharing.taken(take(1, 0), 0));
        assert!(!sharing.is_on && decodes(&mut sharing, 8) && !sharing.cpu_decodes() && !sharing.has_time(8));
    }

    #[test]
    fn batches_that_are_finished_together_dont_look_like_a_slow_consumer() {
        for (together, max_waiting) in [(5, 8), (5, 4), (10, 3), (24, 8)] {
            let mut sharing = Sharing::new(TaskLimit::fixed(8), max_waiting, false);
            let (mut on, mut offs) = (0, 0);
            for batch in 0..6000 {
                sharing.queue_is_full();
                let before = sharing.is_on;
                // The consumer waits for the first batch of each group three times as long as it works on one.
                sharing.taken(take(if batch % together == 0 { 3 } else { 0 }, 1), max_waiting / 2);
                on += usize::from(sharing.is_on);
                offs += usize::from(before && !sharing.is_on);
            }
            assert!(on < 2400 && offs <= 12, "{together} {max_waiting}: on for {on}, off {offs} times");
        }
    }

    #[test]
    fn it_is_on_again_when_no_batch_was_late_for_a_time_though_the_queue_is_never_full() {
        for was_on in [false, true] {
            let mut sharing = Sharing::new(TaskLimit::fixed(8), 8, false);
            if was_on {
                sharing.queue_is_full();
                (0..12).for_each(|_| sharing.taken(take(1, 0), 0));
            }
            (0..15).for_each(|_| sharing.taken(take(0, 1), 5));
            assert!(!sharing.is_on);
            (0..40).for_each(|_| sharing.taken(take(0, 1), 5));
            assert!(sharing.is_on);
        }
    }

    #[test]
    fn waits_that_come_again_and_again_raise_the_reserve_however_few_batches_there_are() {
        for max_waiting in [4, 10, 32] {
            let mut sharing = Sharing::new(TaskLimit::fixed(8), max_waiting, false);
            sharing.queue_is_full();
            let first = sharing.reserve();
            (0..50 * max_waiting).for_each(|batch| sharing.taken(take(u32::from(batch % 8 == 0), 1), 1));
            assert!(sharing.reserve().is_none_or(|reserve| Some(reserve) > first), "{max_waiting}: {sharing:?}");
        }
    }

    #[test]
    fn one_burst_at_a_time_unless_no_batch_waits() {
        let mut sharing = Sharing::new(TaskLimit::fixed(8), 8, false);
        sharing.queue_is_full();
        assert!(
            !decodes(&mut sharing, 3) && decodes(&mut sharing, 2) && decodes(&mut sharing, 3),
            "until all is launched"
        );
        sharing.launched(2, 1);
        assert!(decodes(&mut sharing, 2));
        sharing.launched(3, 0);
        assert!(!decodes(&mut sharing, 2) && decodes(&mut sharing, 0));
        sharing.ended(2);
        assert!(!decodes(&mut sharing, 2));
        sharing.ended(3);
        assert!(decodes(&mut sharing, 2));
    }

    #[test]
    fn a_burst_ends_when_the_cpu_has_taken_all_or_the_queue_is_full() {
        let mut sharing = Sharing::new(TaskLimit::fixed(8), 8, false);
        sharing.queue_is_full();
        assert!(decodes(&mut sharing, 2) && decodes(&mut sharing, 3));
        sharing.begin(1);
        assert!(decodes(&mut sharing, 3), "another chunk waits");
        sharing.begin(0);
        assert!(!decodes(&mut sharing, 3) && decodes(&mut sharing, 2));
        sharing.queue_is_full();
        assert!(!decodes(&mut sharing, 8));
    }

    #[test]
    fn a_burst_leaves_the_last_of_many_chunks_to_the_cpu() {
        let mut sharing = Sharing::new(TaskLimit::fixed(8), 8, false);
        sharing.queue_is_full();
        assert_eq!(sharing.for_gpu(64, 2, true), 48, "two for each task");
        assert_eq!([sharing.for_gpu(30, 3, true), sharing.for_gpu(16, 3, true)], [14, 0]);
        assert_eq!(sharing.for_gpu(16, 3, false), 16, "the CPU has no memory for them");
        assert_eq!(sharing.for_gpu(16, 0, true), 16, "no batch waits");
        sharing.launched(0, 16);
        assert_eq!(sharing.for_gpu(16, 2, true), 0, "the burst has ended");
        sharing.ended(0);
        assert_eq!(sharing.for_gpu(31, 2, true), 31, "few chunks");
        let mut alone = Sharing::new(TaskLimit::fixed(0), 8, false);
        alone.queue_is_full();
        assert_eq!(alone.for_gpu(64, 2, true), 64, "the CPU doesn't help");
    }

    #[test]
    fn several_processes_begin_bursts_at_the_same_batches() {
        let mut sharing = Sharing::new(TaskLimit::fixed(0), 8, true);
        sharing.queue_is_full();
        // The queue loses a batch for each one that is taken, and lasts for six: the period is four.
        let mut began = Vec::new();
        for (number, waiting) in (1..=7).zip([7, 6, 5, 4, 7, 6, 5]) {
            sharing.taken(take(0, 1), waiting);
            assert_eq!(sharing.for_gpu(0, waiting, true), 0, "nothing to decode");
            if decodes(&mut sharing, waiting) {
                began.push((number, waiting));
                sharing.launched(0, 0);
                sharing.ended(0);
            }
        }
        assert_eq!(began, [(4, 4)], "before the queue is as low as the reserve");
    }

    #[test]
    fn without_tasks_the_gpu_decodes_all_in_bursts() {
        let mut sharing = Sharing::new(TaskLimit::fixed(0), 8, false);
        sharing.queue_is_full();
        assert!(!sharing.cpu_helps() && !sharing.cpu_decodes());
        assert!(!decodes(&mut sharing, 3) && decodes(&mut sharing, 2));
    }

    #[test]
    fn without_a_gpu_or_with_few_batches_it_is_never_on() {
        for batches in [0, 2] {
            let mut sharing = Sharing::new(TaskLimit::fixed(8), batches, false);
            sharing.queue_is_full();
            (0..1000).for_each(|_| sharing.taken(take(0, 1), batches));
            assert!(!sharing.is_on && !sharing.cpu_decodes() && decodes(&mut sharing, batches));
        }
    }
}
