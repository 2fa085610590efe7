//! Tests of chunks whose store must read an index (a manifest, a reference file) before it tells where they lie.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::{Bench, Rows};
use crate::chunk_index::{Entries, ShardId, ShardIndex};
use crate::messages::{Event, ReadRange};
use crate::scheduler::simulation::SimulatedWork;
use dali_zarr_base::error::Error;

/// Four chunks, two for each batch. They are neighbours in one object. The first index has the chunks of the first
/// batch, and the second index those of the second.
fn indexed(indexes_are_read: &Arc<AtomicBool>) -> Rows {
    Rows {
        chunk: 1,
        batch: 2,
        ranges: (0..4).map(|i| ("o", 100 * i, 100)).collect(),
        indexes_are_read: Some(Arc::clone(indexes_are_read)),
        ..Rows::default()
    }
}

/// A read of chunks: its key, its offset in an object, and the bytes of its destination.
type Described = (String, Option<u64>, usize);

/// Splits work into the numbers of the indexes that are to be read, and the reads of chunks.
fn split(work: Vec<SimulatedWork>) -> (Vec<u64>, Vec<Described>) {
    let (mut indexes, mut reads) = (Vec::new(), Vec::new());
    for work in work {
        match work {
            SimulatedWork::Index(shard) => indexes.push(shard.index),
            SimulatedWork::Read { read, to, .. } => {
                let offset = if let ReadRange::From(offset) = read.range { Some(offset) } else { None };
                reads.push((read.key, offset, to.len()));
            }
            _ => panic!("expected reads only"),
        }
    }
    (indexes, reads)
}

/// Tells the scheduler that the store has read an index.
fn end(bench: &mut Bench, index: u64) {
    // The index stays in the store.
    let read = ShardIndex { entries: Entries::Read(Vec::new()), version: None };
    bench.handle(Event::Index(ShardId { array: 0, part: 0, index }, Ok(Some(Arc::new(read)))));
}

#[test]
fn chunks_wait_for_the_index_of_their_store_and_are_then_read_together() {
    let is_read = Arc::default();
    let mut bench = Bench::new(&indexed(&is_read), 1 << 20);
    // The second pair of planned batches has chunks that are listed in no index: they need the next ones.
    let (indexes, reads) = split(bench.work());
    assert_eq!((&indexes[..2], reads), (&[0, 1][..], vec![]), "indexes are read ahead, each once");
    is_read.store(true, Relaxed);
    end(&mut bench, 0);
    assert_eq!(split(bench.work()).1, [("a/c/0/0".into(), Some(0), 200)], "the others wait for their own index");
    end(&mut bench, 1);
    assert_eq!(split(bench.work()).1, [("a/c/2/0".into(), Some(200), 200)]);
}

#[test]
fn a_chunk_that_the_read_index_does_not_list_is_read_by_its_key() {
    let mut bench = Bench::new(&indexed(&Arc::default()), 1 << 20);
    split(bench.work());
    // The store still can't tell where the chunks lie.
    end(&mut bench, 0);
    let usual = bench.encoded();
    assert_eq!(split(bench.work()).1, [("a/c/0/0".into(), None, usual), ("a/c/1/0".into(), None, usual)]);
}

#[test]
fn a_batch_fails_if_the_index_of_its_store_cannot_be_read() {
    let mut bench = Bench::new(&indexed(&Arc::default()), 1 << 20);
    split(bench.work());
    bench.handle(Event::Index(ShardId { array: 0, part: 0, index: 0 }, Err(Error::runtime("no index"))));
    assert_eq!(bench.take().unwrap_err().message(), "no index");
    assert!(bench.waits(), "the second batch has another index");
}

#[test]
fn indexes_are_read_one_after_the_other_if_memory_holds_no_two() {
    let is_read: Arc<AtomicBool> = Arc::default();
    let few = |rules: &mut crate::scheduler::Rules| (rules.index_limit, rules.largest_index) = (100, 100);
    let mut bench = Bench::with(&indexed(&is_read), 1 << 20, None, few);
    assert_eq!(split(bench.work()), (vec![0], vec![]), "the second is not read ahead");
    end(&mut bench, 0);
    let (indexes, reads) = split(bench.work());
    assert_eq!((&indexes[..], reads.len()), (&[1][..], 2));
}

#[test]
fn an_index_that_was_read_meanwhile_is_not_read_again() {
    let is_read: Arc<AtomicBool> = Arc::default();
    let few = |rules: &mut crate::scheduler::Rules| (rules.index_limit, rules.largest_index) = (100, 100);
    let mut bench = Bench::with(&indexed(&is_read), 1 << 20, None, few);
    assert_eq!(split(bench.work()), (vec![0], vec![]));
    // Another reader of the same store has read the second index.
    is_read.store(true, Relaxed);
    end(&mut bench, 0);
    let (indexes, reads) = split(bench.work());
    assert!(indexes.is_empty(), "{indexes:?}");
    assert_eq!(reads, [("a/c/0/0".into(), Some(0), 200), ("a/c/2/0".into(), Some(200), 200)]);
}
