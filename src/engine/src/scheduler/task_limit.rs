//! Finds how many decode threads should work in the GPU's place while a model trains.
//!
//! More threads relieve the GPU, but they take cores, caches and memory bandwidth from the thread that launches the
//! model's kernels. Which effect is larger depends on the model and the machine. It shows only in the time from one batch
//! that the consumer takes to the next. So trials find the limit. A trial alternates windows of batches with the present
//! limit and with a candidate. The shorter window of a pair wins the pair. The trial ends when one side leads by enough
//! pairs.
//!
//! Training stops now and then for a validation or a checkpoint, perhaps at the same place of each pair. So the slowest
//! parts of a window aren't counted, and pairs are counted instead of adding up their times. A part has several batches,
//! because many training loops wait for the GPU every few steps: then one step is long and the next ones are short. No
//! constant here depends on the speed of a machine.

use std::time::Duration;

/// The least number of timed parts of a window. A part has as many batches as can wait. So short and long steps of a burst
/// of the GPU mostly fall into the same part.
const MIN_PARTS: usize = 8;
/// The least number of timed batches of a window.
const MIN_TIMED: usize = 32;
/// The candidate is accepted if it leads by this many pairs.
const ACCEPT: i32 = 4;
/// The candidate is refused if the present limit leads by this many pairs.
const REFUSE: i32 = 3;
/// How many of the slowest parts of a window aren't counted. Two: a window may have two validations, and its neighbour one.
const LEFT_OUT: usize = 2;
/// The candidate is refused if the trial has decided nothing after this number of pairs.
const MAX_PAIRS: usize = 24;
/// Windows without a trial: at first, and after a trial that was interrupted.
const FIRST_PAUSE: usize = 1;
/// Windows without a trial after a larger and a smaller limit were refused. The number doubles each time, up to
/// [`MAX_PAUSE`].
const MIN_PAUSE: usize = 32;
const MAX_PAUSE: usize = 512;

/// The limit on tasks of the decode threads that run in the GPU's place at a time.
#[derive(Debug)]
pub(super) struct TaskLimit {
    /// The present limit.
    limit: usize,
    /// The smallest limit that is tried.
    min: usize,
    /// The largest limit that is tried.
    max: usize,
    /// Number of batches of a part. The first part of a window isn't timed: the limit of the window before may have
    /// applied to its batches.
    part: usize,
    /// Number of parts of a window.
    parts: usize,
    /// The trial under way; `None` between trials.
    trial: Option<Trial>,
    /// Number of batches until the next trial.
    pause: usize,
    /// Number of windows of the next pause.
    next_pause: usize,
    /// Whether the next candidate is larger than the limit.
    up: bool,
    /// Whether candidates are twice the limit or half of it. Otherwise they are a quarter more or less. This changes with
    /// each pause after two candidates were refused.
    coarse: bool,
    /// Number of candidates that were refused in a row.
    refused: usize,
}

/// A comparison of the limit with a candidate.
#[derive(Debug)]
struct Trial {
    /// The limit that is compared with the present one.
    candidate: usize,
    /// Number of pairs that the candidate won, minus the number that it lost.
    lead: i32,
    /// Number of windows that have ended.
    windows: usize,
    /// Number of batches that were taken in this window.
    batches: usize,
    /// Times of the pair's windows, without their slowest parts: with the limit, with the candidate.
    times: [Duration; 2],
    /// The time of this part so far.
    part: Duration,
    /// The times of the slowest parts of this window.
    slowest: [Duration; LEFT_OUT],
}

impl Trial {
    fn new(candidate: usize) -> Self {
        Self {
            candidate,
            lead: 0,
            windows: 0,
            batches: 0,
            times: [Duration::ZERO; 2],
            part: Duration::ZERO,
            slowest: [Duration::ZERO; LEFT_OUT],
        }
    }

    /// Whether the candidate applies in this window: in one of each pair. This is the Thue-Morse sequence. So neither a
    /// drift nor a pattern with a period of two or four windows favours a side.
    fn uses_candidate(&self) -> bool {
        !self.windows.count_ones().is_multiple_of(2)
    }

    /// Ends a part of this window. If it is one of the slowest, it displaces another one, which is counted instead.
    fn end_part(&mut self) {
        let mut time = std::mem::take(&mut self.part);
        for slowest in &mut self.slowest {
            if time > *slowest {
                std::mem::swap(slowest, &mut time);
            }
        }
        self.times[usize::from(self.uses_candidate())] += time;
    }

    /// Ends a window. Returns whether the candidate is accepted, once that is known.
    fn end_window(&mut self) -> Option<bool> {
        (self.windows, self.batches, self.slowest) = (self.windows + 1, 0, [Duration::ZERO; LEFT_OUT]);
        if !self.windows.is_multiple_of(2) {
            return None;
        }
        let [limit, candidate] = std::mem::take(&mut self.times);
        self.lead += if candidate < limit { 1 } else { -1 };
        let ended = self.lead >= ACCEPT || self.lead <= -REFUSE || self.windows >= 2 * MAX_PAIRS;
        ended.then_some(self.lead >= ACCEPT)
    }
}

impl TaskLimit {
    /// Makes a limit that never changes.
    pub fn fixed(limit: usize) -> Self {
        Self::new(limit, [limit, limit], 0)
    }

    /// Makes a limit from 1 to `max` that begins at `begin`. Trials change it. At most `max_waiting` finished batches can
    /// wait.
    pub fn found(begin: usize, max: usize, max_waiting: usize) -> Self {
        Self::new(begin.min(max), [1.min(max), max], max_waiting)
    }

    fn new(limit: usize, [min, max]: [usize; 2], max_waiting: usize) -> Self {
        let part = max_waiting.max(1);
        let parts = 1 + MIN_PARTS.max(MIN_TIMED.div_ceil(part));
        Self {
            limit,
            min,
            max,
            part,
            parts,
            trial: None,
            pause: FIRST_PAUSE * part * parts,
            next_pause: MIN_PAUSE,
            up: true,
            coarse: true,
            refused: 0,
        }
    }

    /// Returns the limit that applies now.
    pub fn get(&self) -> usize {
        self.trial.as_ref().filter(|trial| trial.uses_candidate()).map_or(self.limit, |trial| trial.candidate)
    }

    /// Records that the consumer took a batch, `interval` after the batch before. Called only while the CPU helps.
    pub fn taken(&mut self, interval: Duration) {
        let Some(trial) = &mut self.trial else {
            self.pause = self.pause.saturating_sub(1);
            if self.pause == 0 {
                self.begin_trial();
            }
            return;
        };
        trial.batches += 1;
        if trial.batches > self.part {
            trial.part += interval;
            if trial.batches.is_multiple_of(self.part) {
                trial.end_part();
            }
        }
        if trial.batches == self.parts * self.part
            && let Some(accepted) = trial.end_window()
        {
            self.end_trial(accepted);
        }
    }

    /// Records that the CPU no longer helps. This ends a trial without a result: the times of its windows now have another
    /// cause.
    pub fn interrupt(&mut self) {
        if self.trial.take().is_some() {
            self.rest(FIRST_PAUSE);
        }
    }

    /// Returns the next candidate, see [`Self::coarse`]; `None` if the limit is the bound on that side. Coarse steps are
    /// large, because the effect of a small one is lost in the noise of most training loops.
    fn candidate(&self) -> Option<usize> {
        let quarter = (self.limit / 4).max(1);
        let candidate = match (self.coarse, self.up) {
            (true, true) => 2 * self.limit,
            (true, false) => self.limit / 2,
            (false, true) => self.limit + quarter,
            (false, false) => self.limit.saturating_sub(quarter),
        };
        let candidate = candidate.clamp(self.min, self.max);
        (candidate != self.limit).then_some(candidate)
    }

    fn begin_trial(&mut self) {
        match self.candidate() {
            Some(candidate) => self.trial = Some(Trial::new(candidate)),
            None => self.refuse(),
        }
    }

    fn end_trial(&mut self, accepted: bool) {
        let Some(trial) = self.trial.take() else { return };
        tracing::debug!(
            "{} instead of {} threads that decode in the GPU's place: {} after {} pairs of windows",
            trial.candidate,
            self.limit,
            if accepted { "faster" } else { "not faster" },
            trial.windows / 2
        );
        if !accepted {
            return self.refuse();
        }
        // The next candidate lies in the same direction. The other direction counts as refused for now: the old limit lies
        // there, and has just lost.
        (self.limit, self.refused, self.next_pause) = (trial.candidate, 1, MIN_PAUSE);
        self.begin_trial();
    }

    /// Turns to the other direction, or pauses if both were refused.
    fn refuse(&mut self) {
        self.up = !self.up;
        self.refused += 1;
        if self.refused < 2 {
            return self.begin_trial();
        }
        (self.refused, self.coarse) = (0, !self.coarse);
        self.rest(self.next_pause);
        self.next_pause = (2 * self.next_pause).min(MAX_PAUSE);
    }

    fn rest(&mut self, windows: usize) {
        self.pause = windows * self.parts * self.part;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the milliseconds of a training step with this number of decode threads.
    type Model = fn(f64) -> f64;

    /// Each step is one CUDA graph: threads cost nothing and relieve the GPU.
    const GRAPHS: Model = |threads| 8.0 * (1.1 - 0.005 * threads);
    /// A thread launches kernels one by one: more than 8 decode threads slow it.
    const LAUNCHES: Model = |threads| 8.0 * (1.08 + 0.01 * (8.0 - threads).abs() + 0.01 * (threads - 8.0).max(0.0));

    /// A training loop.
    #[derive(Clone, Copy)]
    struct Training {
        model: Model,
        /// Times of steps vary by this share in each direction.
        noise: f64,
        /// A validation follows every so many steps.
        validates: usize,
        /// The loop waits for the GPU every so many steps: that step is long, and four steps before it are short.
        waits: usize,
    }

    impl Training {
        const fn new(model: Model, noise: f64) -> Self {
            Self { model, noise, validates: 700, waits: usize::MAX }
        }

        /// Trains for `batches` steps. Returns the mean time of the steps after the first `skipped`, without
        /// validations, and for each limit how many of these steps it applied to.
        fn run(self, limit: &mut TaskLimit, batches: usize, skipped: usize, seed: u64) -> (f64, Vec<usize>) {
            let (mut state, mut sum, mut counts, mut owed) = (seed, 0.0, vec![0; 65], 0.0);
            for batch in 0..batches {
                let threads = limit.get();
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let chance = (state >> 40) as f64 / f64::from(1 << 24);
                // Every sixth step a burst takes a part of the GPU.
                let burst = if batch % 6 == 0 { 1.2 } else { 0.96 };
                let validation = if batch % self.validates == self.validates - 1 { 400.0 } else { 0.0 };
                let step = (self.model)(threads as f64) * burst * (1.0 + self.noise * (2.0 * chance - 1.0));
                if batch >= skipped {
                    sum += step;
                    counts[threads] += 1;
                }
                owed += step + validation;
                let left = self.waits - 1 - batch % self.waits;
                let interval = if (1..=4).contains(&left) { 0.02 } else { std::mem::take(&mut owed) };
                limit.taken(Duration::from_secs_f64(interval / 1e3));
            }
            (sum / (batches - skipped) as f64, counts)
        }
    }

    #[test]
    fn it_takes_all_threads_where_that_pays() {
        for seed in 0..20 {
            let mut limit = TaskLimit::found(8, 16, 10);
            assert_eq!(limit.get(), 8);
            let (mean, counts) = Training::new(GRAPHS, 0.1).run(&mut limit, 40_000, 10_000, seed);
            assert!(mean < 1.01 * GRAPHS(16.0), "{seed}: {mean} {counts:?}");
            assert!(counts[16] > 20_000, "{seed}: {counts:?}");
        }
    }

    #[test]
    fn it_leaves_cores_to_a_thread_that_launches_kernels() {
        for (noise, largest) in [(0.05, 1.02), (0.3, 1.03)] {
            let mut sum = 0.0;
            for seed in 0..20 {
                let mut limit = TaskLimit::found(8, 16, 10);
                let (mean, counts) = Training::new(LAUNCHES, noise).run(&mut limit, 40_000, 0, seed);
                assert!(mean < largest * LAUNCHES(8.0), "{seed} {noise}: {mean} {counts:?}");
                sum += mean;
            }
            assert!(sum / 20.0 < 1.015 * LAUNCHES(8.0), "{noise}: {}", sum / 20.0);
        }
    }

    #[test]
    fn it_follows_a_model_that_changes() {
        for seed in 0..20 {
            let mut limit = TaskLimit::found(8, 16, 10);
            Training::new(GRAPHS, 0.1).run(&mut limit, 40_000, 0, seed);
            let (mean, counts) = Training::new(LAUNCHES, 0.1).run(&mut limit, 140_000, 70_000, seed);
            assert!(mean < 1.03 * LAUNCHES(8.0), "{seed}: {mean} {counts:?}");
        }
    }

    #[test]
    fn it_keeps_its_bounds_where_nothing_matters() {
        for max in [1_usize, 2, 3, 64] {
            let mut limit = TaskLimit::found(max.div_ceil(2), max, 4);
            let (_, counts) = Training::new(|_| 8.0, 0.2).run(&mut limit, 50_000, 0, 3);
            assert_eq!(counts[0] + counts.iter().skip(max + 1).sum::<usize>(), 0, "{max}: {counts:?}");
        }
    }

    #[test]
    fn validations_at_the_same_place_of_each_pair_dont_mislead_it() {
        // A window has 90 batches.
        for (every, seed) in
            [30, 50, 90, 100, 150, 180, 200, 400].into_iter().flat_map(|every| (0..5).map(move |seed| (every, seed)))
        {
            for (model, best) in [(GRAPHS as Model, 16.0), (LAUNCHES, 8.0)] {
                let mut limit = TaskLimit::found(8, 16, 10);
                let training = Training { validates: every, ..Training::new(model, 0.05) };
                let (mean, _) = training.run(&mut limit, 60_000, 20_000, seed);
                assert!(mean < 1.01 * model(best), "{every} {seed}: {limit:?}");
            }
        }
    }

    #[test]
    fn a_loop_that_waits_for_the_gpu_every_few_steps_doesnt_mislead_it() {
        // Whether a trial finds the best limit depends on how the long steps fall into windows. With some numbers, the
        // windows of a pair differ by more than the limits do, and the limit stays where it was.
        for (every, seed) in [5, 10, 12, 16, 20, 24, 25, 36, 50, 72, 100]
            .into_iter()
            .flat_map(|every| (0..5).map(move |seed| (every, seed)))
        {
            for (model, best) in [(GRAPHS as Model, 16.0), (LAUNCHES, 8.0)] {
                let mut limit = TaskLimit::found(8, 16, 10);
                let training = Training { waits: every, ..Training::new(model, 0.05) };
                let (mean, _) = training.run(&mut limit, 60_000, 20_000, seed);
                let found = if [12, 24, 36].contains(&every) { 8.0 } else { best };
                assert!(mean < 1.006 * model(found), "{every} {seed}: {mean} {limit:?}");
            }
        }
    }

    #[test]
    fn a_fixed_limit_stays() {
        for limit in [0, 1, 12] {
            let (_, counts) = Training::new(|_| 8.0, 0.5).run(&mut TaskLimit::fixed(limit), 20_000, 0, 4);
            assert_eq!(counts[limit], 20_000);
        }
    }

    #[test]
    fn an_interrupted_trial_changes_nothing() {
        let mut limit = TaskLimit::found(8, 16, 10);
        let mut tried = 0;
        for _ in 0..20_000 {
            limit.taken(Duration::from_millis(8));
            if limit.get() != 8 {
                tried += 1;
                limit.interrupt();
                assert_eq!(limit.get(), 8);
            }
        }
        assert!(tried > 10);
    }
}
