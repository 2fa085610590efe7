//! Finds how many decode threads should work in the GPU's place while a model trains.
//!
//! More threads relieve the GPU, but they take cores, caches and memory bandwidth from the thread that launches the
//! model's kernels. Which effect is larger depends on the model and the machine. It shows only in the time from one batch
//! that the consumer takes to the next. So trials find the limit. A trial alternates windows of batches with the present
//! limit and with a candidate. The shorter window of a pair wins the pair. The trial ends when one side leads by enough
//! pairs.
//!
//! Training stops now and then for a validation or a checkpoint, perhaps at the same place of each pair. So the longest
//! steps of a window aren't counted, and pairs are counted instead of adding up their times. No constant here depends on
//! the speed of a machine.

use std::time::Duration;

/// A window has this many timed batches for each batch that can wait. That is a few bursts of the GPU.
const TIMED: usize = 4;
/// The least number of timed batches of a window. With fewer, one slow step would decide it.
const MIN_TIMED: usize = 32;
/// The candidate is accepted if it leads by this many pairs.
const ACCEPT: i32 = 4;
/// The candidate is refused if the present limit leads by this many pairs.
const REFUSE: i32 = 3;
/// How many of the longest steps of a window aren't counted. Two, because a window may have one more validation than its
/// neighbour.
const LEFT_OUT: usize = 2;
/// The candidate is refused if the trial has decided nothing after this number of pairs.
const MAX_PAIRS: usize = 24;
/// Windows without a trial: at first, and after a trial that was interrupted.
const FIRST_PAUSE: usize = 4;
/// Windows without a trial after a larger and a smaller limit were refused. The number doubles each time, up to
/// [`MAX_PAUSE`].
const MIN_PAUSE: usize = 32;
const MAX_PAUSE: usize = 512;

/// The limit on tasks of the decode threads that run in the GPU's place at a time.
#[derive(Debug)]
pub(super) struct TaskLimit {
    /// The present limit.
    limit: usize,
    min: usize,
    max: usize,
    /// The first batches of a window, which aren't timed: the limit of the window before may have applied to them.
    untimed: usize,
    /// The other batches of a window.
    timed: usize,
    /// The trial under way; `None` between trials.
    trial: Option<Trial>,
    /// Number of batches until the next trial.
    pause: usize,
    /// Number of windows of the next pause.
    next_pause: usize,
    /// Whether the next candidate is larger than the limit.
    up: bool,
    /// Number of candidates that were refused in a row.
    refused: usize,
}

/// A comparison of the limit with a candidate. The order within pairs alternates, so that a drift favours neither.
#[derive(Debug)]
struct Trial {
    candidate: usize,
    /// Number of pairs that the candidate won, minus the number that it lost.
    lead: i32,
    /// Number of windows that have ended.
    windows: usize,
    /// Number of batches that were taken in this window.
    batches: usize,
    /// Times of the pair's windows, without their longest steps: with the limit, with the candidate.
    times: [Duration; 2],
    /// The longest steps of this window.
    longest: [Duration; LEFT_OUT],
}

impl Trial {
    fn new(candidate: usize) -> Self {
        Self {
            candidate,
            lead: 0,
            windows: 0,
            batches: 0,
            times: [Duration::ZERO; 2],
            longest: [Duration::ZERO; LEFT_OUT],
        }
    }

    /// Whether the candidate applies in this window: in the second, third, sixth, seventh, ...
    fn uses_candidate(&self) -> bool {
        matches!(self.windows % 4, 1 | 2)
    }

    /// Counts a step of this window. If it is one of the longest, it displaces another one, which is counted instead.
    fn time(&mut self, mut step: Duration) {
        for longest in &mut self.longest {
            if step > *longest {
                std::mem::swap(longest, &mut step);
            }
        }
        self.times[usize::from(self.uses_candidate())] += step;
    }

    /// Ends a window. Returns whether the candidate is accepted, once that is known.
    fn end_window(&mut self) -> Option<bool> {
        (self.windows, self.batches, self.longest) = (self.windows + 1, 0, [Duration::ZERO; LEFT_OUT]);
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
        let timed = (TIMED * max_waiting).max(MIN_TIMED);
        let window = max_waiting + timed;
        Self {
            limit,
            min,
            max,
            untimed: max_waiting,
            timed,
            trial: None,
            pause: FIRST_PAUSE * window,
            next_pause: MIN_PAUSE,
            up: true,
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
        if trial.batches > self.untimed {
            trial.time(interval);
        }
        if trial.batches == self.untimed + self.timed
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

    /// Returns the next candidate, a quarter more or less than the limit; `None` if that is beyond the bounds.
    fn candidate(&self) -> Option<usize> {
        let step = (self.limit / 4).max(1);
        let candidate =
            if self.up { (self.limit + step).min(self.max) } else { self.limit.saturating_sub(step).max(self.min) };
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
        if !accepted {
            return self.refuse();
        }
        // The next candidate lies in the same direction. The other direction counts as refused: the old limit has just lost.
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
        self.refused = 0;
        self.rest(self.next_pause);
        self.next_pause = (2 * self.next_pause).min(MAX_PAUSE);
    }

    fn rest(&mut self, windows: usize) {
        self.pause = windows * (self.untimed + self.timed);
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

    /// Trains as [`train_and_validate`] does, with a validation every 700 steps.
    fn train(
        limit: &mut TaskLimit,
        model: Model,
        noise: f64,
        batches: usize,
        skipped: usize,
        seed: u64,
    ) -> (f64, Vec<usize>) {
        train_and_validate(limit, model, noise, batches, skipped, seed, 700)
    }

    /// Trains for `batches` steps whose times vary by `noise` in each direction. A validation follows every `every`-th
    /// step. Returns the mean time of the steps after the first `skipped`, without validations, and for each limit how
    /// many of these steps it applied to.
    fn train_and_validate(
        limit: &mut TaskLimit,
        model: Model,
        noise: f64,
        batches: usize,
        skipped: usize,
        seed: u64,
        every: usize,
    ) -> (f64, Vec<usize>) {
        let (mut state, mut sum, mut counts) = (seed, 0.0, vec![0; 65]);
        for batch in 0..batches {
            let threads = limit.get();
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let chance = (state >> 40) as f64 / f64::from(1 << 24);
            // Every sixth step a burst takes a part of the GPU.
            let burst = if batch % 6 == 0 { 1.2 } else { 0.96 };
            let validation = if batch % every == every - 1 { 400.0 } else { 0.0 };
            let step = model(threads as f64) * burst * (1.0 + noise * (2.0 * chance - 1.0));
            if batch >= skipped {
                sum += step;
                counts[threads] += 1;
            }
            limit.taken(Duration::from_secs_f64((step + validation) / 1e3));
        }
        (sum / (batches - skipped) as f64, counts)
    }

    #[test]
    fn it_takes_all_threads_where_that_pays() {
        for seed in 0..20 {
            let mut limit = TaskLimit::found(8, 16, 10);
            assert_eq!(limit.get(), 8);
            let (mean, counts) = train(&mut limit, GRAPHS, 0.1, 40_000, 10_000, seed);
            assert!(mean < 1.01 * GRAPHS(16.0), "{seed}: {mean} {counts:?}");
            assert!(counts[16] > 20_000, "{seed}: {counts:?}");
        }
    }

    #[test]
    fn it_leaves_cores_to_a_thread_that_launches_kernels() {
        for (seed, noise) in (0..20).flat_map(|seed| [(seed, 0.05), (seed, 0.3)]) {
            let mut limit = TaskLimit::found(8, 16, 10);
            let (mean, counts) = train(&mut limit, LAUNCHES, noise, 40_000, 0, seed);
            assert!(mean < 1.02 * LAUNCHES(8.0), "{seed} {noise}: {mean} {counts:?}");
        }
    }

    #[test]
    fn it_follows_a_model_that_changes() {
        for seed in 0..20 {
            let mut limit = TaskLimit::found(8, 16, 10);
            train(&mut limit, GRAPHS, 0.1, 40_000, 0, seed);
            let (mean, counts) = train(&mut limit, LAUNCHES, 0.1, 140_000, 70_000, seed);
            assert!(mean < 1.03 * LAUNCHES(8.0), "{seed}: {mean} {counts:?}");
        }
    }

    #[test]
    fn it_keeps_its_bounds_where_nothing_matters() {
        for max in [1_usize, 2, 3, 64] {
            let mut limit = TaskLimit::found(max.div_ceil(2), max, 4);
            let (_, counts) = train(&mut limit, |_| 8.0, 0.2, 50_000, 0, 3);
            assert_eq!(counts[0] + counts.iter().skip(max + 1).sum::<usize>(), 0, "{max}: {counts:?}");
        }
    }

    #[test]
    fn validations_at_the_same_place_of_each_pair_dont_mislead_it() {
        // A window has 50 batches.
        for (every, seed) in
            [30, 50, 100, 150, 200, 400].into_iter().flat_map(|every| (0..5).map(move |seed| (every, seed)))
        {
            for (model, best) in [(GRAPHS as Model, 16.0), (LAUNCHES, 8.0)] {
                let mut limit = TaskLimit::found(8, 16, 10);
                let (mean, _) = train_and_validate(&mut limit, model, 0.05, 60_000, 20_000, seed, every);
                assert!(mean < 1.01 * model(best), "{every} {seed}: {limit:?}");
            }
        }
    }

    #[test]
    fn a_fixed_limit_stays() {
        for limit in [0, 1, 12] {
            let (_, counts) = train(&mut TaskLimit::fixed(limit), |_| 8.0, 0.5, 20_000, 0, 4);
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
