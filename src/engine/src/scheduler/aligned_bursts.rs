//! Begins bursts of the GPU's decoding (see [`sharing`](super::sharing)) at the same batches in all processes that train
//! one model.
//!
//! In data-parallel training all GPUs wait for each other in every step. A burst slows the step during which it runs. If
//! each process decodes when its own queue is low, each burst of each process slows all of them. If they decode in the
//! same step, they wait once.
//!
//! The processes don't talk to each other. But all of them take a batch in each step, so they count the same batches. A
//! burst begins at a batch whose number is a multiple of a *period*: the largest power of two for which the queue lasts.
//! Processes whose queues last differently long have different periods. One of these is then a multiple of the other, so
//! every burst of the longer period still meets one of the shorter.

/// The longest period, in batches.
const MAX_PERIOD: u64 = 1 << 10;

/// Tells at which batches bursts begin.
#[derive(Debug, Default)]
pub(super) struct AlignedBursts {
    /// Number of batches that were taken.
    number: u64,
    /// The value of `number` when it was last asked whether a burst begins. Several batches may be taken in between.
    asked: u64,
    /// The most batches that waited since the last burst, and the number when it was so last.
    peak: Option<(usize, u64)>,
}

impl AlignedBursts {
    /// Records that a batch was taken.
    pub fn taken(&mut self) {
        self.number += 1;
    }

    /// Records that a burst begins.
    pub fn began(&mut self) {
        self.peak = None;
    }

    /// Returns whether a burst begins now, while none runs, and `waiting` finished batches wait, of at most
    /// `max_waiting`. It must begin before fewer than `reserve` wait, and the next chance is a period away.
    pub fn begins(&mut self, waiting: usize, reserve: usize, max_waiting: usize) -> bool {
        let before = std::mem::replace(&mut self.asked, self.number);
        let (most, since) = match self.peak {
            Some((most, since)) if waiting < most => (most, since),
            _ => {
                self.peak = Some((waiting, self.number));
                return false;
            }
        };
        // The batches that the queue loses for each one that is taken. The CPU finishes the rest.
        let loss = (most - waiting) as f64 / (self.number - since).max(1) as f64;
        let lasts = max_waiting.saturating_sub(reserve) as f64 / loss;
        let mut period = MAX_PERIOD;
        while period > 1 && period as f64 > lasts {
            period /= 2;
        }
        let is_chance = self.number.is_multiple_of(period) || self.number / period > before / period;
        is_chance && (waiting as f64) < reserve as f64 + loss * period as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The queue of one process. The CPU finishes `cpu` batches for each one that is taken; a burst fills the queue.
    struct Process {
        bursts: AlignedBursts,
        waiting: f64,
        cpu: f64,
    }

    const MAX_WAITING: usize = 16;
    const RESERVE: usize = 2;

    impl Process {
        fn new(cpu: f64, waiting: usize) -> Self {
            Self { bursts: AlignedBursts::default(), waiting: waiting as f64, cpu }
        }

        /// Takes a batch. Returns whether a burst began, and whether fewer batches than the reserve wait.
        fn take(&mut self) -> (bool, bool) {
            self.bursts.taken();
            self.waiting += self.cpu - 1.0;
            let low = self.waiting < RESERVE as f64;
            let begins = self.bursts.begins(self.waiting as usize, RESERVE, MAX_WAITING);
            if begins || low {
                self.bursts.began();
                self.waiting = MAX_WAITING as f64;
                self.bursts.begins(MAX_WAITING, RESERVE, MAX_WAITING);
            }
            (begins || low, low)
        }
    }

    #[test]
    fn processes_decode_in_the_same_steps() {
        for (cpus, first) in
            [([0.1, 0.1], [16, 9]), ([0.4, 0.5], [16, 11]), ([0.4, 0.7], [12, 16]), ([0.0, 0.8], [16, 16])]
        {
            let mut processes = [0, 1].map(|i| Process::new(cpus[i], first[i]));
            let (mut bursts, mut steps, mut lows) = ([0_usize; 2], 0, 0);
            for step in 0..2000 {
                let now = [0, 1].map(|i| processes[i].take());
                if step < 100 {
                    continue;
                }
                (0..2).for_each(|i| bursts[i] += usize::from(now[i].0));
                steps += usize::from(now[0].0 || now[1].0);
                lows += now.iter().filter(|(_, low)| *low).count();
            }
            let most = bursts[0].max(bursts[1]);
            assert!(steps * 10 <= most * 11, "{cpus:?}: {bursts:?} bursts in {steps} steps");
            assert!(lows * 50 <= bursts[0] + bursts[1], "{cpus:?}: the queue was low {lows} times");
            for (cpu, bursts) in cpus.iter().zip(bursts) {
                let fewest = 1900.0 * (1.0 - cpu) / (MAX_WAITING - RESERVE) as f64;
                assert!((bursts as f64) < 2.2 * fewest + 2.0, "{cpu}: {bursts}, {fewest} would be enough");
            }
        }
    }

    #[test]
    fn a_multiple_of_the_period_that_is_skipped_counts() {
        let mut bursts = AlignedBursts::default();
        let mut begins = |taken: u64, waiting| {
            (0..taken).for_each(|_| bursts.taken());
            bursts.begins(waiting, RESERVE, MAX_WAITING)
        };
        // A batch is lost for each one that is taken: the queue lasts for 14, and the period is 8.
        assert_eq!(
            [begins(0, 16), begins(5, 11), begins(2, 9), begins(2, 7), begins(1, 6)],
            [false, false, false, true, false]
        );
    }

    #[test]
    fn a_queue_that_loses_nothing_needs_no_burst() {
        let mut bursts = AlignedBursts::default();
        for _ in 0..5000 {
            bursts.taken();
            assert!(!bursts.begins(8, RESERVE, MAX_WAITING));
        }
    }
}
