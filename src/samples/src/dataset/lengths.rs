//! Chunks of several lengths along one dimension, in runs of neighbouring chunks of one length. All of it is arithmetic: the
//! memory depends on the number of runs, not on that of chunks.

/// Neighbouring chunks of one length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LengthRun {
    /// The number of its first chunk.
    pub chunk: u64,
    /// The first element of that chunk.
    pub start: u64,
    /// Elements in each chunk, at least 1.
    pub len: u64,
    /// Number of chunks, at least 1.
    pub count: u64,
}

impl LengthRun {
    /// Returns the end of its last chunk.
    pub fn end(&self) -> u64 {
        self.start + self.len * self.count
    }

    /// Returns the number of the chunk that holds the element `at` of this run.
    pub fn chunk_at(&self, at: u64) -> u64 {
        self.chunk + (at - self.start) / self.len
    }
}

/// Where a run begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bound {
    /// The number of its first chunk.
    chunk: u64,
    /// The first element of that chunk.
    start: u64,
}

/// The lengths of the chunks along one dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkLengths {
    /// The bounds of the runs, then the number of all chunks with the end of the last one. Both numbers strictly increase,
    /// and neighbouring runs have different lengths.
    bounds: Vec<Bound>,
}

impl Default for ChunkLengths {
    fn default() -> Self {
        Self { bounds: vec![Bound { chunk: 0, start: 0 }] }
    }
}

impl ChunkLengths {
    /// Adds `count` chunks of `len` elements at the end. Returns false and adds nothing if the last one would end behind
    /// [`i64::MAX`]. Without elements nothing is added.
    #[must_use]
    pub fn push(&mut self, len: u64, count: u64) -> bool {
        let Bound { chunk, start } = self.last();
        let end = len.checked_mul(count).and_then(|elements| start.checked_add(elements));
        let Some(start) = end.filter(|&end| end <= i64::MAX as u64) else { return false };
        if len == 0 || count == 0 {
            return true;
        }
        let chunk = chunk + count;
        // A run of the same length goes on.
        if self.runs() > 0 && self.run(self.runs() - 1).len == len {
            self.bounds.pop();
        }
        self.bounds.push(Bound { chunk, start });
        true
    }

    fn last(&self) -> Bound {
        self.bounds[self.bounds.len() - 1]
    }

    /// Returns the number of runs.
    pub fn runs(&self) -> usize {
        self.bounds.len() - 1
    }

    /// Returns a run by its number.
    pub fn run(&self, number: usize) -> LengthRun {
        let (Bound { chunk, start }, next) = (self.bounds[number], self.bounds[number + 1]);
        let (count, elements) = (next.chunk - chunk, next.start - start);
        // Most lists of different lengths have runs of one chunk. They need no division.
        let len = if count == 1 { elements } else { elements / count };
        LengthRun { chunk, start, len, count }
    }

    /// Returns the run with the element at `position`, and those after it. None if it lies behind the last chunk.
    pub fn from(&self, position: u64) -> impl Iterator<Item = LengthRun> {
        let first = self.bounds[1..].partition_point(|bound| bound.start <= position);
        (first..self.runs()).map(|number| self.run(number))
    }

    /// Returns the run with the chunk `index`, which must be less than [`Self::count`].
    fn with(&self, index: u64) -> LengthRun {
        // If each run is one chunk, runs and chunks have the same numbers.
        let same = usize::try_from(index).ok().filter(|&i| i < self.runs() && self.bounds[i].chunk == index);
        self.run(same.unwrap_or_else(|| self.bounds.partition_point(|bound| bound.chunk <= index) - 1))
    }

    /// Returns the number of chunks.
    pub fn count(&self) -> u64 {
        self.last().chunk
    }

    /// Returns the end of the last chunk.
    pub fn end(&self) -> u64 {
        self.last().start
    }

    /// Returns the chunk of the element at `position`; the number of chunks if it lies behind the last one.
    pub fn chunk_at(&self, position: u64) -> u64 {
        self.from(position).next().map_or(self.count(), |run| run.chunk_at(position))
    }

    /// Returns the first element of the chunk `index`, which must be less than [`Self::count`].
    pub fn start(&self, index: u64) -> u64 {
        let run = self.with(index);
        run.start + (index - run.chunk) * run.len
    }

    /// Returns the elements of the chunk `index`, which must be less than [`Self::count`].
    pub fn len(&self, index: u64) -> u64 {
        self.with(index).len
    }

    /// Returns the most elements of a chunk, at least 1.
    pub fn longest(&self) -> u64 {
        self.from(0).map(|run| run.len).max().unwrap_or(1)
    }

    /// Returns the most chunks that `span` neighbouring elements can lie in. `span` must be at least 1.
    pub fn most_within(&self, span: u64) -> u64 {
        let mut most = 0;
        // The run with the last of the elements.
        let mut last = 0;
        for run in self.from(0) {
            let mut i = 0;
            while i < run.count {
                // Elements from the last one of a chunk on lie in most chunks.
                let reached = (run.start + (i + 1) * run.len - 1).saturating_add(span - 1);
                if reached >= self.end() {
                    // The later they begin, the fewer chunks are left.
                    return most.max(self.count() - (run.chunk + i));
                }
                while self.bounds[last + 1].start <= reached {
                    last += 1;
                }
                let to = self.run(last);
                let chunks = |i: u64, reached: u64| to.chunk_at(reached) + 1 - (run.chunk + i);
                // While the last element is in one run, each chunk later gives as many chunks or fewer, if the chunks of
                // that run are as long as these or longer. If they are shorter, it gives as many or more.
                let steps = ((to.end() - 1 - reached) / run.len).min(run.count - 1 - i);
                most = most.max(chunks(i, reached)).max(chunks(i + steps, reached + steps * run.len));
                i += steps + 1;
            }
        }
        most
    }

    /// Removes the chunks that begin at `extent` or behind it.
    pub fn truncate(&mut self, extent: u64) {
        let used = self.bounds[..self.runs()].partition_point(|bound| bound.start < extent);
        let end = used.checked_sub(1).map(|number| {
            let run = self.run(number);
            let count = (extent - run.start).div_ceil(run.len).min(run.count);
            Bound { chunk: run.chunk + count, start: run.start + count * run.len }
        });
        self.bounds.truncate(used);
        self.bounds.push(end.unwrap_or(Bound { chunk: 0, start: 0 }));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(list: &[(u64, u64)]) -> ChunkLengths {
        let mut lengths = ChunkLengths::default();
        list.iter().for_each(|&(len, count)| assert!(lengths.push(len, count)));
        lengths
    }

    /// The most chunks that `span` elements lie in, by trying all places.
    fn most_by_hand(chunks: &[usize], span: u64) -> u64 {
        let span = usize::try_from(span).unwrap().min(chunks.len()).max(1);
        chunks.windows(span).map(|window| (window[span - 1] - window[0] + 1) as u64).max().unwrap_or(0)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn runs_are_as_a_list_of_chunks(
            list in prop::collection::vec((1u64..9, 1u64..7), 0..9), extent in 0u64..200, span in 1u64..120,
        ) {
            let mut lengths = of(&list);
            let mut all: Vec<u64> = list.iter().flat_map(|&(len, n)| std::iter::repeat_n(len, n as usize)).collect();
            for cut in [false, true] {
                if cut {
                    lengths.truncate(extent);
                    let mut end = 0;
                    all.retain(|len| { let start = end; end += len; start < extent });
                }
                // The chunk of each element.
                let chunks: Vec<usize> = (0..all.len()).flat_map(|i| std::iter::repeat_n(i, all[i] as usize)).collect();
                prop_assert_eq!((lengths.count(), lengths.end()), (all.len() as u64, chunks.len() as u64));
                let mut start = 0;
                for (i, &len) in all.iter().enumerate() {
                    prop_assert_eq!((lengths.start(i as u64), lengths.len(i as u64)), (start, len));
                    start += len;
                }
                for (position, &chunk) in chunks.iter().enumerate() {
                    prop_assert_eq!(lengths.chunk_at(position as u64), chunk as u64);
                }
                prop_assert_eq!(lengths.chunk_at(start), lengths.count());
                prop_assert_eq!(lengths.longest(), all.iter().copied().max().unwrap_or(1));
                prop_assert_eq!(lengths.most_within(span), most_by_hand(&chunks, span), "{:?} {}", all, span);
                prop_assert!(lengths.runs() <= all.chunk_by(|a, b| a == b).count());
            }
        }
    }

    #[test]
    fn long_runs_take_no_memory() {
        const MANY: u64 = 1 << 40;
        let lengths = of(&[(3, MANY), (3, MANY), (1, 5), (7, MANY)]);
        assert_eq!((lengths.runs(), lengths.count()), (3, 3 * MANY + 5));
        assert_eq!((lengths.start(2 * MANY + 4), lengths.len(2 * MANY + 4)), (6 * MANY + 4, 1));
        assert_eq!(lengths.chunk_at(6 * MANY + 5 + 7 * 1000 + 6), 2 * MANY + 5 + 1000);
        assert_eq!([1, 2, 6, 7, 8].map(|span| lengths.most_within(span)), [1, 2, 6, 7, 7]);
        assert_eq!(lengths.most_within(u64::MAX), lengths.count());
        let mut cut = lengths.clone();
        cut.truncate(3 * MANY - 1);
        assert_eq!((cut.runs(), cut.count(), cut.end()), (1, MANY, 3 * MANY));
    }

    #[test]
    fn ends_beyond_all_numbers_are_refused() {
        let mut lengths = of(&[(1 << 62, 1)]);
        assert!(!lengths.push(1 << 62, 1) && !lengths.push(1 << 40, 1 << 40) && !lengths.push(u64::MAX, u64::MAX));
        assert!(lengths.push((1 << 62) - 1, 1));
        assert_eq!((lengths.count(), lengths.end()), (2, i64::MAX as u64));
    }
}
