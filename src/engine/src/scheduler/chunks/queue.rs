//! The queue of wanted chunks, in the order of need: batch by batch, and within a batch in the order in which they were
//! queued.
//!
//! An entry is not removed when its chunk is no longer wanted. It is skipped when its turn comes, so nothing has to be
//! searched. The caller says whether an entry is up to date.

use std::collections::{BTreeSet, VecDeque};

use crate::messages::Handle;

/// A wanted chunk: the batch that needs it first, its place in the queue within the batch, and its handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::scheduler) struct Wanted {
    pub batch: u64,
    pub order: u64,
    pub handle: Handle,
}

/// The chunks whose first user is one batch, in order. `next` is the number of chunks that had their turn.
#[derive(Debug, Default)]
struct List {
    entries: Vec<(u64, Handle)>,
    next: usize,
}

/// The queue.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Number of the batch to which `lists[0]` belongs.
    first: u64,
    lists: VecDeque<List>,
    /// Chunks that had their turn and are wanted again, in their old places.
    again: BTreeSet<Wanted>,
}

impl Queue {
    /// Adds a batch.
    pub fn plan(&mut self) {
        self.lists.push_back(List::default());
    }

    /// Removes the first batch.
    pub fn deliver(&mut self) {
        self.lists.pop_front();
        self.first += 1;
        while self.again.first().is_some_and(|w| w.batch < self.first) {
            self.again.pop_first();
        }
    }

    /// Adds a chunk behind all others of its batch. `order` must grow from call to call.
    pub fn push(&mut self, w: Wanted) {
        if let Some(list) = self.lists.get_mut(w.batch.wrapping_sub(self.first) as usize) {
            debug_assert!(list.entries.last().is_none_or(|last| last.0 < w.order));
            list.entries.push((w.order, w.handle));
        }
    }

    /// Puts a chunk back in its old place.
    pub fn push_again(&mut self, w: Wanted) {
        self.again.insert(w);
    }

    /// Returns the first wanted chunk of the batches before `limit`. `wanted` says whether an entry is up to date.
    pub fn head(&mut self, limit: u64, wanted: impl Fn(&Wanted) -> bool) -> Option<Wanted> {
        while let Some(first) = self.again.first()
            && !wanted(first)
        {
            self.again.pop_first();
        }
        let again = self.again.first().copied().filter(|w| w.batch < limit);
        for (i, list) in self.lists.iter_mut().enumerate() {
            let batch = self.first + i as u64;
            if batch >= limit || again.is_some_and(|w| w.batch < batch) {
                break;
            }
            while let Some(&(order, handle)) = list.entries.get(list.next) {
                let w = Wanted { batch, order, handle };
                if wanted(&w) {
                    return Some(again.map_or(w, |a| a.min(w)));
                }
                list.next += 1;
            }
        }
        again
    }

    /// Returns the entries after `head`, for batches before `limit`: those of `again` if `head` is one of these,
    /// otherwise those of `lists`. Some may be out of date.
    pub fn after(&self, head: Wanted, limit: u64) -> impl Iterator<Item = Wanted> {
        let from_again = self.again.contains(&head);
        let again = self.again.range((std::ops::Bound::Excluded(head), std::ops::Bound::Unbounded)).copied();
        let again = again.take_while(move |w| from_again && w.batch < limit);
        let at = head.batch.wrapping_sub(self.first) as usize;
        let lists = self.lists.iter().enumerate().skip(at).take_while(move |(i, _)| (*i as u64) < limit - self.first);
        let lists = lists.flat_map(move |(i, list)| {
            let batch = self.first + i as u64;
            list.entries[list.next..].iter().map(move |&(order, handle)| Wanted { batch, order, handle })
        });
        again.chain(lists.filter(move |w| !from_again && *w > head))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn w(batch: u64, order: u64) -> Wanted {
        Wanted { batch, order, handle: order as Handle }
    }

    #[test]
    fn the_order_is_that_of_need() {
        let mut q = Queue::default();
        (0..3).for_each(|_| q.plan());
        for (batch, order) in [(0, 1), (1, 2), (0, 3), (2, 4), (1, 5)] {
            q.push(w(batch, order));
        }
        let mut gone: Vec<u64> = Vec::new();
        let mut seen = Vec::new();
        while let Some(head) = q.head(2, |w| !gone.contains(&w.order)) {
            seen.push(head.order);
            gone.push(head.order);
        }
        assert_eq!(seen, [1, 3, 2, 5], "the third batch isn't asked for");
        assert_eq!(q.head(3, |w| !gone.contains(&w.order)), Some(w(2, 4)));
    }

    #[test]
    fn what_is_wanted_again_comes_in_its_old_place() {
        let mut q = Queue::default();
        (0..2).for_each(|_| q.plan());
        (1..=4).for_each(|order| q.push(w(0, order)));
        q.push(w(1, 5));
        // 1 to 3 had their turn; 2 comes back.
        assert_eq!(q.head(2, |w| w.order > 3), Some(w(0, 4)));
        q.push_again(w(0, 2));
        assert_eq!(q.head(2, |w| w.order == 2 || w.order > 3), Some(w(0, 2)));
        assert_eq!(q.head(2, |w| w.order > 3), Some(w(0, 4)), "out of date again");
        assert_eq!(q.after(w(0, 4), 2).collect::<Vec<_>>(), [w(1, 5)]);
        assert_eq!(q.after(w(0, 4), 1).count(), 0);
        q.deliver();
        assert_eq!(q.head(2, |_| true), Some(w(1, 5)));
    }
}
