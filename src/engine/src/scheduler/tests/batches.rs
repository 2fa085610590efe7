//! Tests of [`Batches`] alone.

use std::sync::Arc;

use dali_zarr_kernels::{Job, Layout, Source};

use super::some_rules;
use crate::chunk_index::{ChunkInfo, LATER, Location};
use crate::messages::{Assembly, Served};
use crate::route::Route;
use crate::scheduler::batches::{Batches, JobSource};
use crate::scheduler::chunks::{Chunk, ChunkState, OutputPart, OutputPlace};
use crate::scheduler::{BatchAccount, Rules};
use dali_zarr_base::error::Error;
use dali_zarr_base::memory::{Ledger, Pool};
use dali_zarr_samples::batch::DeviceBuffers;
use dali_zarr_samples::plan::{BatchPlan, ChunkId, ChunkUse};

fn id(index: u64) -> ChunkId {
    ChunkId { array: 0, part: 0, index }
}

/// Returns a chunk that these batches use, each as its use number 0.
fn chunk(users: &[u64]) -> Chunk {
    let info = ChunkInfo { location: Location::Key, decoded: 1, route: Route::Raw, remote: false };
    let mut chunk = Chunk::new(id(0), info, 1);
    users.iter().for_each(|&batch| chunk.need(batch, 0));
    chunk
}

/// Returns the plan of a batch with one use, which has this many jobs.
fn plan(jobs: usize) -> BatchPlan {
    let job = |i| Job::new(4 * i as u64, 8 * i as u64, [(1, 1, 1)]);
    BatchPlan {
        uses: vec![ChunkUse { chunk: id(0), jobs: 0..jobs }],
        jobs: (0..jobs).map(job).collect(),
        ..BatchPlan::default()
    }
}

fn lent(id: u64) -> DeviceBuffers {
    DeviceBuffers { id, outputs: vec![1000 * (id + 1)], ready: 7 }
}

/// Returns batches with device memory for `sets` of them, of which `planned` are planned.
fn batches(rules: Rules, sets: u64, planned: usize) -> Batches {
    let mut batches = Batches::new(rules, None, None);
    (0..sets).for_each(|set| batches.lend(lent(set)));
    for _ in 0..planned {
        assert!(batches.ask());
        batches.add(plan(2), vec![(0, 0)], 1, None);
    }
    batches
}

fn active(batches: &mut Batches) -> Vec<u64> {
    std::iter::from_fn(|| batches.activate().unwrap()).collect()
}

#[test]
fn plans_are_requested_for_active_batches_and_the_lookahead() {
    let asked = |rules: Rules| {
        let mut batches = Batches::new(rules, None, None);
        (0..100).take_while(|_| batches.ask()).count()
    };
    assert_eq!(asked(some_rules()), 4);
    assert_eq!(asked(Rules { batch_jobs: 1 << 18, ..some_rules() }), 2, "two, however many jobs they have");
}

#[test]
fn batches_become_active_in_order_while_there_is_memory() {
    let mut few = batches(some_rules(), 1, 3);
    assert_eq!(active(&mut few), [0]);
    assert!(few.get(0).unwrap().outputs == [1000] && few.get(1).unwrap().outputs.is_empty());
    few.lend(lent(1));
    few.lend(lent(2));
    assert_eq!(active(&mut few), [1], "two at most");
    few.served(&[Served { batch: 0, uses: 1 }]);
    assert!(few.deliver(None).unwrap().is_ok());
    assert_eq!((active(&mut few), few.active_end()), (Vec::new(), 2), "one waits for the consumer");
    few.taken();
    assert_eq!(active(&mut few), [2]);
}

#[test]
fn a_batch_does_not_wait_for_the_plans_after_it() {
    let mut in_order = batches(some_rules(), 4, 1);
    assert!(in_order.ask());
    assert_eq!(active(&mut in_order), [0]);
    assert!(in_order.planner_is_late());
}

#[test]
fn only_active_batches_are_served() {
    let mut batches = batches(some_rules(), 4, 3);
    assert_eq!(active(&mut batches), [0, 1]);
    let (mut chunk, mut assembly) = (chunk(&[0, 1, 2]), Assembly::default());
    let from = JobSource::Slot(500, Layout::NONE);
    assert_eq!(batches.serve_batch(&mut chunk, from, 0, &mut assembly), 1, "one, as asked for");
    assert_eq!(batches.serve(&mut chunk, from, &mut assembly), 1);
    let places: Vec<_> = assembly.jobs.iter().map(|job| (job.src, job.dst)).collect();
    assert_eq!(places, [(500, 1000), (504, 1008), (500, 2000), (504, 2008)]);
    assert_eq!(assembly.served, [0, 1].map(|batch| Served { batch, uses: 1 }));
    assert_eq!((assembly.after, chunk.users()), (vec![7, 7], &[(2, 0)][..]));
    assert_eq!(chunk.take_serving()[..], [0, 1], "these fail if the chunk can't be decoded");
}

#[test]
fn a_missing_chunk_is_filled() {
    let mut batches = batches(some_rules(), 1, 1);
    active(&mut batches);
    let mut assembly = Assembly::default();
    batches.serve(&mut chunk(&[0]), JobSource::Missing, &mut assembly);
    assert!(assembly.jobs.len() == 2 && assembly.jobs.iter().all(|job| job.source == Source::Fill as u32));
}

#[test]
fn a_failure_reaches_the_active_batches_that_need_the_chunk() {
    let mut batches = batches(some_rules(), 2, 3);
    active(&mut batches);
    let mut failed = chunk(&[1, 2]);
    batches.fail(&mut failed);
    assert_eq!(failed.users().len(), 2, "it has not failed yet");
    failed.resolve(ChunkState::Failed(Error::runtime("first")));
    batches.fail(&mut failed);
    batches.fail_batch(1, &Error::runtime("second"));
    assert_eq!(failed.users(), [(2, 0)], "batch 2 isn't active");
    assert!(batches.deliver(None).is_none(), "batch 0 isn't finished");
    batches.served(&[Served { batch: 0, uses: 1 }]);
    assert_eq!(batches.deliver(None).unwrap().unwrap().buffers, Some(0));
    assert_eq!(batches.deliver(None).unwrap().unwrap_err().message(), "first");
    assert!(batches.deliver(None).is_none());
    // Nobody sees the outputs of the failed batch, so they are there for the next one.
    (0..2).for_each(|_| batches.taken());
    assert_eq!(active(&mut batches), [2]);
    assert_eq!(batches.get(2).unwrap().outputs, [2000]);
}

#[test]
fn if_the_reader_is_broken_batches_that_are_not_finished_fail() {
    let mut batches = batches(some_rules(), 2, 3);
    active(&mut batches);
    batches.served(&[Served { batch: 0, uses: 1 }]);
    let broken = Error::runtime("broken");
    assert!(batches.deliver(Some(&broken)).unwrap().is_ok());
    assert!(batches.deliver(Some(&broken)).unwrap().is_err());
    assert!(batches.deliver(Some(&broken)).is_none() && batches.is_full(), "two wait for the consumer");
    batches.taken();
    assert!(batches.deliver(Some(&broken)).unwrap().is_err(), "it was only planned");
    // A thread may still write to the outputs of batch 1.
    assert!(batches.ask());
    batches.add(plan(1), vec![(0, 0)], 1, None);
    (0..2).for_each(|_| batches.taken());
    assert!(active(&mut batches).is_empty(), "its memory isn't used again");
}

#[test]
fn a_consumer_without_batches_gets_an_error() {
    let mut batches = batches(some_rules(), 0, 1);
    assert!(!batches.deliver_error(), "a batch will come");
    let mut none = Batches::new(some_rules(), None, None);
    assert!(none.deliver_error() && !none.deliver_error(), "one, until it is taken");
    none.taken();
    assert!(none.deliver_error());
    batches.deliver(Some(&Error::runtime("broken"))).unwrap().unwrap_err();
    assert!(!batches.deliver_error(), "the batch is such an error");
}

#[test]
fn a_part_of_an_output_is_lent_once_and_comes_back() {
    let mut batches = Batches::new(some_rules(), Some(vec![Pool::invented(4096, 1, 1 << 20)]), None);
    assert!(batches.ask());
    batches.add(plan(1), vec![(0, 0)], 1, None);
    let part = OutputPart { batch: 0, place: OutputPlace::Host { output: 0, offset: 100 } };
    assert!(batches.lend_part(part, 10).is_none(), "it isn't active");
    active(&mut batches);
    let lease = batches.lend_part(part, 10).unwrap();
    assert_eq!(lease.address(), batches.get(0).unwrap().outputs[0] + 100);
    assert!(batches.lend_part(part, 1).is_none() && !batches.get(0).unwrap().is_whole());
    batches.give_back(part, lease);
    assert!(batches.get(0).unwrap().is_whole() && batches.lend_part(part, 1).is_some());
}

#[test]
fn memory_for_batches_beyond_the_first_is_drawn() {
    let ledger = Arc::new(Ledger::default());
    ledger.set_share(500);
    let account = ledger.open(0, || ());
    let drawing = BatchAccount { account: Arc::clone(&account), bytes: 100, reserved: 1, drawn: 0 };
    let rules = Rules { max_active: 4, ..some_rules() };
    let mut batches = Batches::new(rules, Some(vec![Pool::invented(4096, 1, 1 << 20)]), Some(drawing));
    for _ in 0..5 {
        assert!(batches.ask());
        batches.add(plan(2), vec![(0, 0)], 1, None);
    }
    assert_eq!((active(&mut batches), account.drawn()), (vec![0, 1, 2], 200), "batches take half of the share");
    batches.served(&[Served { batch: 0, uses: 1 }]);
    assert!(batches.deliver(None).unwrap().is_ok());
    assert_eq!((active(&mut batches), account.drawn()), (vec![], 200), "it waits to be taken");
    batches.taken();
    assert_eq!(account.drawn(), 100);
    assert_eq!((active(&mut batches), account.drawn()), (vec![3], 200));
}

#[test]
fn a_chunk_is_kept_if_memory_is_expected_to_hold_it() {
    let in_order = Rules { working_set: 10, shuffled: None, ..some_rules() };
    assert!(in_order.keeps_for(10, 100) && !in_order.keeps_for(11, 100));
    // Batches in random order need the same chunks again.
    let shuffled = Rules { shuffled: Some(150), ..in_order };
    assert!(shuffled.keeps_for(16, 100) && !shuffled.keeps_for(17, 100));
    assert!(shuffled.keeps_for(LATER, 150) && !shuffled.keeps_for(LATER, 149));
}
