//! Where the samples along one axis start: at equal distances, on one grid or on one for each segment between breaks.

/// A stretch of starts at equal distances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    /// Index of its first start among all starts.
    number: i64,
    /// Its first start.
    first: i64,
    /// The segment that its samples belong to. `None`: the segment of each sample follows from its start.
    segment: Option<u32>,
}

/// The starts of samples along one axis. They take memory for each segment between breaks, whatever the number of
/// starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Starts {
    step: i64,
    count: i64,
    /// In ascending order of their numbers.
    runs: Vec<Run>,
}

impl Starts {
    /// Makes `count` starts: `first`, `first + step`, and so on. Their segments aren't recorded; [`super::Axis::start`]
    /// finds them.
    pub fn grid(first: i64, step: i64, count: i64) -> Self {
        Self { step, count, runs: vec![Run { number: 0, first, segment: None }] }
    }

    /// Makes no starts, to which [`Self::push`] adds some.
    pub(super) fn none(step: i64) -> Self {
        Self { step, count: 0, runs: Vec::new() }
    }

    /// Adds the starts of a segment from `first` to `last`, if there are any.
    pub(super) fn push(&mut self, first: i64, last: i64, segment: usize) {
        if last >= first {
            self.runs.push(Run { number: self.count, first, segment: Some(segment as u32) });
            self.count = self.count.saturating_add((last - first) / self.step + 1);
        }
    }

    /// Makes those of the starts `first`, `first + step`, ... within `bounds` that read elements of one segment only.
    /// `bounds` has the bounds of the segments. A start `s` reads elements from `s + reach.0` to before `s + reach.1`.
    pub fn within(first: i64, step: i64, reach: (i64, i64), bounds: &[i64]) -> Self {
        let rooms: Vec<_> = bounds.windows(2).map(|two| (two[0] - reach.0, two[1] - reach.1)).collect();
        Self::in_rooms(first, step, &rooms, bounds[bounds.len() - 1] - 1)
    }

    /// Makes those of the starts `first`, `first + step`, ... up to `last` that lie in the room of a segment: its first and its
    /// last possible start. `rooms` has that of each segment, in their order.
    pub(super) fn in_rooms(first: i64, step: i64, rooms: &[(i64, i64)], last: i64) -> Self {
        let mut all = Self::none(step);
        for (i, &(from, to)) in rooms.iter().enumerate() {
            all.push(above(from, first, step), to.min(last), i);
        }
        all
    }

    /// Makes a grid of starts for each segment. The first start reads from `pad.0` elements before the segment on, the
    /// last one to at most `pad.1` elements after it. Segments without elements have no start.
    pub fn each(step: i64, reach: (i64, i64), pad: (i64, i64), bounds: &[i64]) -> Self {
        let mut all = Self::none(step);
        for (i, segment) in bounds.windows(2).enumerate().filter(|(_, segment)| segment[0] < segment[1]) {
            all.push(segment[0] - pad.0 - reach.0, segment[1] + pad.1 - reach.1, i);
        }
        all
    }

    /// Makes one start for each segment that has elements: its first element.
    pub fn of_segments(bounds: &[i64]) -> Self {
        let mut all = Self::none(1);
        for (i, segment) in bounds.windows(2).enumerate().filter(|(_, segment)| segment[0] < segment[1]) {
            all.push(segment[0], segment[0], i);
        }
        all
    }

    /// Makes the starts of one grid from `bounds[0]` to before the last of `bounds`, each with its segment. That is the
    /// segment with all elements that the start reads between these two bounds. If there is none, it is the segment
    /// that the start lies in.
    pub fn told(step: i64, reach: (i64, i64), bounds: &[i64]) -> Self {
        let mut all = Self::none(step);
        let (first, end) = (bounds[0], bounds[bounds.len() - 1]);
        // The element from which on starts have no segment yet, and the segment at which the search for that of this
        // element begins.
        let (mut at, mut own) = (first, 0);
        let mut lie_in = |all: &mut Self, at: i64, to: i64| {
            let mut at = at;
            while at < to {
                while bounds[own + 1] <= at {
                    own += 1;
                }
                all.push(above(at, first, step), to.min(bounds[own + 1]) - 1, own);
                at = bounds[own + 1];
            }
        };
        for (i, segment) in bounds.windows(2).enumerate().filter(|(_, segment)| segment[0] < segment[1]) {
            // Elements read before the first segment or after the last one don't count, but at least one element must
            // be read between them.
            let from = if segment[0] == first { first - reach.1 + 1 } else { segment[0] - reach.0 };
            let to = if segment[1] == end { end - reach.0 } else { segment[1] - reach.1 + 1 };
            let (from, to) = (from.max(at), to.min(end));
            if from < to {
                lie_in(&mut all, at, from);
                all.push(above(from, first, step), to - 1, i);
                at = to;
            }
        }
        lie_in(&mut all, at, end);
        all
    }

    /// Returns the starts of the segments for which `is_chosen` is true.
    ///
    /// # Panics
    /// If the segments of the starts aren't recorded.
    pub fn only(&self, is_chosen: impl Fn(usize) -> bool) -> Self {
        let mut all = Self::none(self.step);
        for (n, Run { first, segment, .. }) in self.stretches() {
            let segment = segment.expect("each start has a segment") as usize;
            if is_chosen(segment) {
                all.push(first, first + (n - 1) * self.step, segment);
            }
        }
        all
    }

    /// Returns the number of starts.
    pub fn count(&self) -> i64 {
        self.count
    }

    /// Gives back memory that isn't used.
    pub fn shrink_to_fit(&mut self) {
        self.runs.shrink_to_fit();
    }

    /// Returns the bytes of memory that the starts take.
    pub fn bytes(&self) -> u64 {
        (size_of::<Run>() * self.runs.capacity()) as u64
    }

    /// Returns the `k`-th start, and its segment if that is recorded. `k` must be less than [`Self::count`].
    pub fn at(&self, k: i64) -> (i64, Option<usize>) {
        let run = self.runs[self.runs.partition_point(|run| run.number <= k) - 1];
        (run.first + (k - run.number) * self.step, run.segment.map(|s| s as usize))
    }

    /// Returns the number of a start, the inverse of [`Self::at`]. With a `segment`, only starts that are recorded as its own
    /// are found. `None` if there is no such start.
    pub fn find(&self, at: i64, segment: Option<usize>) -> Option<i64> {
        let runs = &self.runs;
        let number = |i: usize| {
            let (run, end) = (runs.get(i)?, runs.get(i + 1).map_or(self.count, |next| next.number));
            let apart = at.checked_sub(run.first).filter(|apart| *apart >= 0 && apart % self.step == 0)?;
            let is_own = segment.is_none_or(|segment| run.segment.is_none_or(|own| own as usize == segment));
            Some(run.number + apart / self.step).filter(|&k| is_own && k < end)
        };
        // The run is found at once if runs ascend, as they do unless segments overlap.
        let before = runs.partition_point(|run| match (segment, run.segment) {
            (Some(segment), Some(own)) => (own as usize, run.first) <= (segment, at),
            _ => run.first <= at,
        });
        before.checked_sub(1).and_then(number).or_else(|| (0..runs.len()).find_map(number))
    }

    fn stretches(&self) -> impl Iterator<Item = (i64, Run)> {
        let end = |i: usize| self.runs.get(i + 1).map_or(self.count, |next| next.number);
        self.runs.iter().enumerate().map(move |(i, &run)| (end(i) - run.number, run))
    }

    /// Returns the stretches of starts at equal distances, each as the number of its starts and its first start.
    pub fn runs(&self) -> impl Iterator<Item = (i64, i64)> {
        self.stretches().map(|(n, run)| (n, run.first))
    }

    /// Returns the segments of these stretches; `None` where the segment isn't recorded.
    pub fn segments(&self) -> impl Iterator<Item = Option<usize>> {
        self.runs.iter().map(|run| run.segment.map(|s| s as usize))
    }

    /// Returns the distance between neighbouring starts of a stretch.
    pub fn step(&self) -> i64 {
        self.step
    }
}

/// Returns the first of `first`, `first + step`, ... that is at least `least`.
pub(super) fn above(least: i64, first: i64, step: i64) -> i64 {
    let apart = (least - first).max(0);
    first + (apart / step + i64::from(apart % step > 0)) * step
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the bounds of segments, in ascending order. Segments may be empty.
    fn bounds(mut cuts: Vec<i64>) -> Vec<i64> {
        cuts.sort_unstable();
        cuts.push(60);
        cuts
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn starts_are_those_that_fit(
            cuts in prop::collection::vec(0i64..60, 1..8), first in 0i64..20, step in 1i64..7, least in -9i64..9,
            len in 1i64..9,
        ) {
            let bounds = bounds(cuts);
            let first = bounds[0] + first;
            let expected: Vec<i64> = (0..100)
                .map(|i| first + i * step)
                .take_while(|s| s < bounds.last().unwrap())
                .filter(|s| bounds.windows(2).any(|b| b[0] <= s + least && s + least + len <= b[1]))
                .collect();
            let starts = Starts::within(first, step, (least, least + len), &bounds);
            let got: Vec<i64> = (0..starts.count()).map(|k| starts.at(k).0).collect();
            prop_assert_eq!(&got, &expected);
            for at in -20..90 {
                let number = expected.iter().position(|&start| start == at).map(|k| k as i64);
                prop_assert_eq!(starts.find(at, None), number);
            }
            let runs: Vec<i64> = starts.runs().flat_map(|(n, s)| (0..n).map(move |i| s + i * step)).collect();
            prop_assert_eq!(runs, expected);
            for (k, start) in got.into_iter().enumerate() {
                let segment = starts.at(k as i64).1.unwrap();
                prop_assert!(bounds[segment] <= start + least && start + least + len <= bounds[segment + 1]);
            }
        }

        #[test]
        fn each_segment_has_a_grid(
            cuts in prop::collection::vec(-5i64..60, 1..8), step in 1i64..7, least in -9i64..9, len in 1i64..9,
            pad: (prop::sample::Index, prop::sample::Index), chosen in any::<u8>(),
        ) {
            let bounds = bounds(cuts);
            let pad = (pad.0.index(len as usize) as i64, pad.1.index(len as usize) as i64);
            let is_chosen = |segment: usize| chosen >> segment & 1 == 1;
            let expected: Vec<(i64, Option<usize>)> = bounds.windows(2).enumerate().filter(|(i, b)| is_chosen(*i) && b[0] < b[1]).flat_map(|(i, b)| {
                let last = b[1] - b[0] - len + pad.1;
                (-pad.0..=last).step_by(step as usize).map(move |from| (b[0] + from - least, Some(i)))
            }).collect();
            let starts = Starts::each(step, (least, least + len), pad, &bounds).only(is_chosen);
            for (at, segment) in (-20..90).flat_map(|at| (0..9).map(move |segment| (at, segment))) {
                let number = expected.iter().position(|start| *start == (at, Some(segment))).map(|k| k as i64);
                prop_assert_eq!(starts.find(at, Some(segment)), number);
            }
            prop_assert_eq!((0..starts.count()).map(|k| starts.at(k)).collect::<Vec<_>>(), expected);
        }

        #[test]
        fn starts_on_one_grid_are_told_their_segments(
            cuts in prop::collection::vec(-5i64..60, 1..8), step in 1i64..7, least in -9i64..9, len in 1i64..9,
        ) {
            let bounds = bounds(cuts);
            let (from, end) = (bounds[0], bounds[bounds.len() - 1]);
            let of = |start: i64| {
                let (first, last) = ((start + least).max(from), (start + least + len).min(end));
                let holds = |b: &[i64]| first < last && b[0] <= first && last <= b[1];
                let around = |b: &[i64]| b[0] <= start && start < b[1];
                bounds.windows(2).position(holds).or(bounds.windows(2).position(around))
            };
            let expected: Vec<_> = (from..end).step_by(step as usize).map(|start| (start, of(start))).collect();
            let starts = Starts::told(step, (least, least + len), &bounds);
            prop_assert_eq!((0..starts.count()).map(|k| starts.at(k)).collect::<Vec<_>>(), expected);
        }
    }
}
