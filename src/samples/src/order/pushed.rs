//! The order of a caller: batches of samples that the caller pushes, while a reader plans those that it pushed before.
//!
//! What waits is bounded: [`MOST_BATCHES`] batches and [`MOST_SAMPLES`] samples. A push that finds the queue full changes
//! nothing, and never waits. [`Pushes::close`] ends all waits, so that no thread waits for a caller that is gone.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::Sample;
use super::batches::Batches;

/// Most batches that wait to be planned.
pub const MOST_BATCHES: usize = 1024;
/// Most samples that wait to be planned. A single batch may have more.
pub const MOST_SAMPLES: usize = 1 << 17;

/// What became of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushed {
    /// The batch waits to be planned.
    Taken,
    /// As much waits as may wait. The same push may succeed after a batch was taken.
    Full,
    /// The reader has ended.
    Closed,
}

/// The batches that a caller has pushed.
#[derive(Debug)]
pub struct Pushes {
    batch_size: usize,
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Vec<Sample>>,
    /// The number of samples in `waiting`.
    samples: usize,
    /// For each batch that was pushed and not taken by the consumer, its number of samples.
    sizes: VecDeque<usize>,
    /// The epoch of the last batch, and how many samples of it were pushed.
    epoch: (u64, u64),
    /// Threads that wait for a batch.
    waiters: usize,
    is_closed: bool,
}

impl Pushes {
    /// Makes an empty queue of batches of at most `batch_size` samples.
    pub fn new(batch_size: usize) -> Self {
        Self { batch_size, queue: Mutex::default(), changed: Condvar::new() }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a batch of samples, given by their numbers. Random crops are drawn by the sample, and by its place in the epoch
    /// if `draws` isn't [`Draws::BySample`].
    ///
    /// # Panics
    /// If there are no samples, or more than fit in a batch. The caller has checked it.
    pub fn push(&self, numbers: &[u64], epoch: u64, draws: Draws) -> Pushed {
        assert!((1..=self.batch_size).contains(&numbers.len()), "a batch has from 1 to {} samples", self.batch_size);
        let mut queue = self.queue();
        if queue.is_closed {
            return Pushed::Closed;
        }
        let room = queue.waiting.len() < MOST_BATCHES && queue.samples + numbers.len() <= MOST_SAMPLES;
        if !room && !queue.waiting.is_empty() {
            return Pushed::Full;
        }
        let first = match draws {
            Draws::From(first) => Some(first),
            Draws::BySample => None,
            Draws::GoOn => Some(if queue.epoch.0 == epoch { queue.epoch.1 } else { 0 }),
        };
        queue.epoch = (epoch, first.unwrap_or(0) + numbers.len() as u64);
        let sample = |(index, place): (&u64, u64)| Sample {
            epoch,
            index: *index,
            draw: first.map_or(*index, |first| draw(*index, first + place)),
        };
        queue.waiting.push_back(numbers.iter().zip(0..).map(sample).collect());
        queue.samples += numbers.len();
        queue.sizes.push_back(numbers.len());
        let is_waited_for = queue.waiters > 0;
        drop(queue);
        // Without a waiter there is no need for a system call.
        if is_waited_for {
            self.changed.notify_all();
        }
        Pushed::Taken
    }

    /// Ends the queue: what waits is dropped, and all waits end.
    pub fn close(&self) {
        let mut queue = self.queue();
        queue.is_closed = true;
        queue.waiting.clear();
        queue.samples = 0;
        drop(queue);
        self.changed.notify_all();
    }

    /// Returns the number of samples of the next batch that the consumer takes, without those that fill it up.
    pub fn take_size(&self) -> Option<usize> {
        self.queue().sizes.pop_front()
    }

    /// Returns the next batch, filled up with repetitions of its last sample. `None` if none waits, and `waits` is false
    /// or the queue was closed.
    fn take(&self, waits: bool) -> Option<Vec<Sample>> {
        let mut queue = self.queue();
        while waits && queue.waiting.is_empty() && !queue.is_closed {
            queue.waiters += 1;
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            queue.waiters -= 1;
        }
        let mut samples = queue.waiting.pop_front()?;
        queue.samples -= samples.len();
        drop(queue);
        let last = *samples.last()?;
        samples.resize(self.batch_size, last);
        Some(samples)
    }
}

/// What random crops depend on, beside the seed, the epoch and the sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Draws {
    /// The sample's place in its epoch. The batch's first sample has this place.
    From(u64),
    /// The same; the batch follows the last batch, if that was of the same epoch.
    GoOn,
    /// Nothing more: a sample has the same crop wherever it comes in an epoch.
    BySample,
}

/// Returns [`Sample::draw`] for a sample at a place of its epoch. Places and samples that differ give numbers that differ, as
/// far as 64 bits go.
fn draw(index: u64, place: u64) -> u64 {
    dali_zarr_base::random::key(&[index, place])
}

impl Batches for std::sync::Arc<Pushes> {
    fn next(&mut self, waits: bool) -> Option<Vec<Sample>> {
        self.take(waits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn indices(batch: Option<Vec<Sample>>) -> Option<Vec<u64>> {
        batch.map(|samples| samples.iter().map(|sample| sample.index).collect())
    }

    #[test]
    fn batches_come_in_the_order_of_pushes_and_are_filled_up() {
        let mut pushes = Arc::new(Pushes::new(3));
        assert_eq!(pushes.next(false), None);
        assert_eq!(pushes.push(&[5, 4], 7, Draws::GoOn), Pushed::Taken);
        assert_eq!(pushes.push(&[1, 2, 3], 7, Draws::GoOn), Pushed::Taken);
        let first = pushes.next(true).unwrap();
        assert_eq!(first.iter().map(|s| (s.epoch, s.index)).collect::<Vec<_>>(), [(7, 5), (7, 4), (7, 4)]);
        assert_eq!(first[1], first[2]);
        assert_eq!(indices(pushes.next(false)), Some(vec![1, 2, 3]));
        assert_eq!((pushes.take_size(), pushes.take_size(), pushes.take_size()), (Some(2), Some(3), None));
    }

    #[test]
    fn what_waits_is_bounded() {
        let mut pushes = Arc::new(Pushes::new(1 << 18));
        for _ in 0..MOST_BATCHES {
            assert_eq!(pushes.push(&[0], 0, Draws::GoOn), Pushed::Taken);
        }
        assert_eq!(pushes.push(&[0], 0, Draws::GoOn), Pushed::Full);
        pushes.next(true).unwrap();
        assert_eq!(pushes.push(&[0], 0, Draws::GoOn), Pushed::Taken);
        let mut pushes = Arc::new(Pushes::new(1 << 18));
        assert_eq!(
            pushes.push(&vec![0; MOST_SAMPLES + 1], 0, Draws::GoOn),
            Pushed::Taken,
            "a large batch is never refused"
        );
        assert_eq!(pushes.push(&[0], 0, Draws::GoOn), Pushed::Full);
        pushes.next(true).unwrap();
        assert_eq!(pushes.push(&[0], 0, Draws::GoOn), Pushed::Taken);
    }

    #[test]
    fn closing_ends_waits() {
        let pushes = Arc::new(Pushes::new(1));
        let mut waiting = Arc::clone(&pushes);
        let thread = std::thread::spawn(move || waiting.next(true));
        std::thread::sleep(std::time::Duration::from_millis(20));
        pushes.close();
        assert_eq!(thread.join().unwrap(), None);
        assert_eq!(pushes.push(&[0], 0, Draws::GoOn), Pushed::Closed);
    }

    #[test]
    fn crops_depend_on_the_sample_and_its_place() {
        let draws = |numbers: &[u64], epoch, draws| {
            let mut pushes = Arc::new(Pushes::new(8));
            pushes.push(numbers, epoch, draws);
            let batch = pushes.next(false).unwrap_or_default();
            batch[..numbers.len()].iter().map(|sample| sample.draw).collect::<Vec<_>>()
        };
        let all = draws(&[3, 3, 4], 0, Draws::From(0));
        assert!(all[0] != all[1] && all[1] != all[2]);
        assert_eq!(all[1..], draws(&[3, 4], 0, Draws::From(1)), "a restored reader goes on at this place");
        assert_eq!(draws(&[3, 3], 0, Draws::BySample), [3, 3]);
        let pushes = Pushes::new(8);
        for epoch in [0, 0, 1] {
            pushes.push(&[3, 3], epoch, Draws::GoOn);
        }
        let mut pushes = Arc::new(pushes);
        let drawn: Vec<u64> = (0..3).flat_map(|_| pushes.next(false).unwrap()[..2].to_vec()).map(|s| s.draw).collect();
        assert_eq!(drawn[..4], draws(&[3, 3, 3, 3], 0, Draws::From(0)));
        assert_eq!(drawn[4..], drawn[..2], "places are counted anew in each epoch");
    }
}
