//! Shares the decoding between the CPU's idle cores and the GPU while a model trains on the GPU.
//!
//! A decoder takes the GPU from the model: training waits while a wave runs. So the GPU should decode only what the CPU can't
//! decode in time. The number of finished batches that wait for the consumer tells:
//! - While more than [`Sharing::reserve`] batches wait, the GPU decodes nothing, and what was read waits for the CPU.
//! - When no more than that wait, a wave takes all that was read. Large waves cost the GPU less for each chunk than small
//!   ones, and the queue is filled again at once.
//! - The reserve must last until such a wave ends. It is doubled when no batch is left, and lowered slowly while batches are
//!   left: multiplicative increase, additive decrease, with a floor that remembers for a time what was too low.
//!
//! A consumer that takes batches as fast as they come leaves none waiting. Then the GPU decodes everything: the CPU's share
//! would only take bandwidth from the reads. The CPU helps from the time on when all batches that memory allows are finished.
//! No constant here depends on the speed of a machine: the counts are in batches.

/// Decides which chunks the CPU decodes for the GPU, and when the GPU decodes.
#[derive(Debug)]
pub(super) struct Sharing {
    /// Tasks of the decode threads for chunks that the GPU could decode: the limit, and those that run. 0: never any.
    max_tasks: usize,
    tasks: usize,
    /// The most batches that can wait.
    max_waiting: usize,
    /// While more batches than this wait, the GPU decodes nothing. `max_waiting`: it decodes everything, and the CPU nothing.
    reserve: usize,
    /// The reserve isn't lowered below this while `floor_left` is above zero.
    floor: usize,
    floor_left: usize,
    /// Batches that were taken since the reserve was changed.
    taken: usize,
}

/// The reserve is lowered after so many times `max_waiting` batches.
const LOWER_AFTER: usize = 2;
/// A floor is forgotten after so many times `max_waiting` batches.
const FORGET_AFTER: usize = 32;

impl Sharing {
    /// For at most `max_tasks` tasks of the decode threads at a time (0: the CPU never helps), where at most `max_waiting`
    /// finished batches can wait.
    pub fn new(max_tasks: usize, max_waiting: usize) -> Self {
        Self { max_tasks, tasks: 0, max_waiting, reserve: max_waiting, floor: 0, floor_left: 0, taken: 0 }
    }

    /// Whether the CPU helps at all now: the consumer is slower than the reader.
    pub fn is_on(&self) -> bool {
        self.max_tasks > 0 && self.reserve < self.max_waiting
    }

    /// The consumer took a batch, and `waiting` finished ones are left.
    pub fn taken(&mut self, waiting: usize) {
        if !self.is_on() {
            return;
        }
        self.taken += 1;
        self.floor_left = self.floor_left.saturating_sub(1);
        if waiting == 0 {
            self.floor = (2 * self.reserve + 1).min(self.max_waiting);
            self.floor_left = FORGET_AFTER * self.max_waiting;
            (self.reserve, self.taken) = (self.floor, 0);
        } else if self.taken >= LOWER_AFTER * self.max_waiting {
            let floor = if self.floor_left > 0 { self.floor } else { 0 };
            self.reserve = (self.reserve - self.reserve.min(1 + self.reserve / 4)).max(floor.min(self.reserve));
            self.taken = 0;
        }
    }

    /// All batches that memory allows are finished and wait.
    pub fn full(&mut self) {
        if self.max_tasks > 0 && !self.is_on() {
            (self.reserve, self.taken) = (self.max_waiting / 2, 0);
        }
    }

    /// Whether the GPU may decode, while `waiting` finished batches wait.
    pub fn gpu_decodes(&self, waiting: usize) -> bool {
        !self.is_on() || waiting <= self.reserve
    }

    /// Whether the CPU may begin to decode another chunk.
    pub fn cpu_decodes(&self) -> bool {
        self.is_on() && self.tasks < self.max_tasks
    }

    /// The CPU begins to decode a chunk.
    pub fn begin(&mut self) {
        self.tasks += 1;
    }

    /// The CPU has decoded a chunk.
    pub fn end(&mut self) {
        self.tasks -= 1;
    }

    /// Chunks that the CPU decodes now.
    pub fn tasks(&self) -> usize {
        self.tasks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader and a consumer in batches: the CPU finishes `cpu` batches for each one that is taken, and the GPU, when it may,
    /// fills the queue after `latency` more were taken. Returns the batches that the GPU decoded, and how often none was left,
    /// in `rounds` batches after as many for settling.
    fn consume(cpu: f64, latency: usize, max_waiting: usize, rounds: usize) -> (f64, usize, Sharing) {
        let mut sharing = Sharing::new(8, max_waiting);
        let (mut waiting, mut wave, mut by_gpu, mut empty) = (max_waiting as f64, None, 0.0, 0);
        sharing.full();
        for round in 0..2 * rounds {
            let counted = round >= rounds;
            if waiting < 1.0 {
                empty += usize::from(counted);
                // The consumer waits for the wave.
                let all = max_waiting as f64 - waiting;
                by_gpu += if counted { all } else { 0.0 };
                (waiting, wave) = (max_waiting as f64, None);
            }
            waiting -= 1.0;
            sharing.taken(waiting as usize);
            if sharing.is_on() {
                waiting = (waiting + cpu).min(max_waiting as f64);
            }
            wave = match wave {
                None if sharing.gpu_decodes(waiting as usize) => Some(latency),
                Some(0) => {
                    by_gpu += if counted { max_waiting as f64 - waiting } else { 0.0 };
                    waiting = max_waiting as f64;
                    None
                }
                Some(left) => Some(left - 1),
                None => None,
            };
            if waiting >= max_waiting as f64 {
                sharing.full();
            }
        }
        (by_gpu, empty, sharing)
    }

    #[test]
    fn a_cpu_that_is_fast_enough_decodes_everything() {
        let (by_gpu, empty, _) = consume(1.2, 3, 16, 2000);
        assert_eq!((by_gpu, empty), (0.0, 0));
    }

    #[test]
    fn the_gpu_decodes_what_the_cpu_cannot() {
        for (cpu, latency) in [(0.5, 2), (0.5, 4), (0.8, 3), (0.2, 2)] {
            let rounds = 4000;
            let (by_gpu, empty, sharing) = consume(cpu, latency, 16, rounds);
            let least = (1.0 - cpu) * rounds as f64;
            assert!(by_gpu < 1.25 * least, "{cpu} {latency}: {by_gpu} for {least}; {sharing:?}");
            assert!(empty * 100 < rounds, "{cpu} {latency}: {empty}");
        }
    }

    #[test]
    fn a_consumer_that_leaves_no_batch_gets_the_gpu() {
        let mut sharing = Sharing::new(8, 8);
        assert!(!sharing.is_on() && sharing.gpu_decodes(8));
        (0..100).for_each(|_| sharing.taken(0));
        assert!(!sharing.is_on());
        sharing.full();
        assert!(sharing.is_on() && !sharing.gpu_decodes(8) && sharing.cpu_decodes());
        (0..2).for_each(|_| sharing.taken(0));
        assert!(!sharing.is_on() && sharing.gpu_decodes(8) && !sharing.cpu_decodes());
    }

    #[test]
    fn without_tasks_it_is_never_on() {
        let mut sharing = Sharing::new(0, 8);
        sharing.full();
        assert!(!sharing.is_on() && !sharing.cpu_decodes() && sharing.gpu_decodes(8));
    }
}
