//! Tests of admission, merging, oversized chunks and completion.

use std::sync::Arc;

use dali_zarr_kernels::Source;

use super::{Bench, Rows};
use crate::chunk_index::{Entries, ShardIndex};
use crate::messages::{Event, Read, ReadRange};
use crate::scheduler::memory::MemoryKind;
use crate::scheduler::simulation::SimulatedWork;
use dali_zarr_base::error::Error;
use dali_zarr_base::memory::Lease;
use dali_zarr_base::memory::arena::rounded;
use dali_zarr_stores::ObjectVersion;

/// Bytes of a decoded row.
const ROW: usize = 256;

/// One chunk for each sample. Each batch has one sample, and is a copy of a chunk.
fn single() -> Rows {
    Rows { chunk: 1, batch: 1, ..Rows::default() }
}

/// One chunk for each sample. Each batch has three. Chunk `i` is this range.
fn ranges(ranges: &[(&'static str, u64, u64)]) -> Rows {
    Rows { chunk: 1, batch: 3, ranges: ranges.to_vec(), ..Rows::default() }
}

/// For each read its object, offset and bytes. Reads of keys have no offset.
fn described(reads: &[(Read, Lease)]) -> Vec<(Option<&str>, Option<u64>, usize)> {
    let offset = |range| match range {
        ReadRange::From(from) => Some(from),
        ReadRange::Whole | ReadRange::Exact => None,
    };
    reads.iter().map(|(read, to)| (read.object.name.as_deref(), offset(read.range), to.len())).collect()
}

fn free(bench: &Bench) -> usize {
    bench.free(MemoryKind::Staging)
}

// ---- admission ----

#[test]
fn chunks_are_read_in_the_order_of_need_while_memory_lasts() {
    let encoded = rounded(Bench::new(&single(), 1 << 20).encoded());
    let mut bench = Bench::new(&single(), encoded);
    let mut reads = bench.reads();
    assert_eq!(reads.iter().map(|(read, _)| &*read.key).collect::<Vec<_>>(), ["a/c/0/0"]);
    let shortage = bench.simulation.scheduler.shortage.unwrap();
    assert_eq!((shortage.kind, shortage.staging, shortage.batch), (MemoryKind::Staging, encoded, 1));
    bench.end_read(reads.remove(0), Ok(Some(10)));
    let task = bench.tasks().remove(0);
    assert!(bench.waits());
    bench.end_task(task, None);
    assert!(bench.take().is_ok());
    assert_eq!(bench.reads()[0].0.key, "a/c/1/0");
}

#[test]
fn no_more_reads_begin_than_the_rules_allow() {
    let mut bench = Bench::new(&Rows { batch: 4, ..single() }, 1 << 20);
    let mut reads = bench.reads();
    assert_eq!(reads.len(), 6, "of eight chunks");
    bench.end_read(reads.remove(0), Ok(Some(9)));
    assert_eq!(bench.work().len(), 2, "a task, and the next read");
}

#[test]
fn a_chunk_that_fills_an_output_is_decoded_there() {
    let mut bench = Bench::new(&single(), 1 << 20);
    let mut reads = bench.reads();
    assert_eq!(free(&bench), (1 << 20) - reads.len() * rounded(bench.encoded()), "nothing for decoded bytes");
    bench.end_read(reads.remove(0), Ok(Some(10)));
    let task = bench.tasks().remove(0);
    let output = bench.simulation.scheduler.batches.get(0).unwrap().outputs[0];
    assert_eq!((task.items[0].decoded.address(), task.assembly.jobs.len()), (output, 0));
    bench.end_task(task, None);
    assert!(bench.take().is_ok());
}

#[test]
fn a_chunk_of_several_batches_is_decoded_once_and_kept() {
    let mut bench = Bench::new(&Rows { chunk: 3, ..single() }, 1 << 20);
    let mut reads = bench.reads();
    assert_eq!(reads.len(), 1, "one chunk for both active batches");
    bench.end_read(reads.remove(0), Ok(Some(10)));
    let task = bench.tasks().remove(0);
    assert_eq!((task.items.len(), task.assembly.jobs.len(), task.assembly.served.len()), (1, 2, 2));
    bench.end_task(task, None);
    assert!(bench.take().is_ok() && bench.take().is_ok());
    // The third batch is served from memory, and needs no decoding.
    let task = bench.tasks().remove(0);
    assert!(task.items.is_empty() && task.assembly.served[0].batch == 2);
}

// ---- merging ----

#[test]
fn a_merged_read_crosses_small_gaps() {
    let gap = 64 << 10;
    let chunks = [("o", 0, 100), ("o", 100 + gap, 100), ("o", 200 + 2 * gap + 1, 100)];
    let mut bench = Bench::new(&ranges(&chunks), 1 << 20);
    let reads = bench.reads();
    let usual = bench.encoded();
    assert_eq!(described(&reads)[..2], [(Some("o"), Some(0), 200 + gap as usize), (None, None, usual)]);
}

#[test]
fn chunks_of_one_object_are_merged_over_those_of_others() {
    let mut bench = Bench::new(&ranges(&[("o", 50, 50), ("p", 0, 50), ("o", 0, 50)]), 1 << 20);
    let mut reads = bench.reads();
    let usual = bench.encoded();
    assert_eq!(described(&reads)[..2], [(Some("o"), Some(0), 100), (None, None, usual)]);
    // Each chunk gets its part of the bytes.
    bench.end_read(reads.remove(0), Ok(Some(100)));
    let task = bench.tasks().remove(0);
    let parts = task.items.iter().map(|item| (item.id.index, item.encoded.as_ref().unwrap().bytes.offset()));
    assert_eq!(parts.collect::<Vec<_>>(), [(2, 0), (0, 50)]);
}

#[test]
fn chunks_of_a_merged_read_that_failed_are_read_alone() {
    let mut bench = Bench::new(&ranges(&[("o", 0, 50), ("o", 50, 50), ("o", 100, 50)]), 1 << 20);
    let mut reads = bench.reads();
    assert_eq!(described(&reads)[0], (Some("o"), Some(0), 150));
    bench.end_read(reads.remove(0), Err(Error::runtime("refused")));
    let mut again = bench.reads();
    assert_eq!(again.iter().map(|(read, _)| &*read.key).collect::<Vec<_>>(), ["a/c/0/0", "a/c/1/0", "a/c/2/0"]);
    assert!(again.iter().all(|(read, _)| read.object.name.is_none()));
    bench.end_read(again.remove(1), Err(Error::runtime("damaged")));
    for read in again {
        bench.end_read(read, Ok(Some(50)));
    }
    for task in bench.tasks() {
        bench.end_task(task, None);
    }
    assert_eq!(bench.take().unwrap_err().message(), "damaged", "the batch fails for the chunk itself");
}

#[test]
fn if_memory_never_holds_a_merged_read_it_brings_fewer_chunks() {
    let chunks = [("o", 0, 256), ("o", 256, 256), ("o", 512, 256), ("o", 768, 256)];
    let mut bench = Bench::new(&Rows { batch: 4, ..ranges(&chunks) }, 512);
    let mut reads = bench.reads();
    assert_eq!(described(&reads), [(Some("o"), Some(0), 512)], "the half with the first chunk");
    bench.end_read(reads.remove(0), Ok(Some(512)));
    let task = bench.tasks().remove(0);
    bench.end_task(task, None);
    assert_eq!(described(&bench.reads()), [(Some("o"), Some(512), 512)]);
}

// ---- shards ----

#[test]
fn chunks_of_a_missing_shard_are_filled() {
    let mut bench = Bench::new(&Rows { shard: 3, ..single() }, 1 << 20);
    let work = bench.work();
    let [SimulatedWork::Index(shard), ..] = work[..] else { panic!("expected an index first") };
    bench.handle(Event::Index(shard, Ok(None)));
    let tasks = bench.tasks();
    assert!(tasks.iter().flat_map(|task| &task.assembly.jobs).all(|job| job.source == Source::Fill as u32));
    tasks.into_iter().for_each(|task| bench.end_task(task, None));
    assert!(bench.take().is_ok() && bench.take().is_ok());
}

#[test]
fn batches_fail_if_the_index_of_their_shard_cannot_be_read() {
    let mut bench = Bench::new(&Rows { shard: 3, ..single() }, 1 << 20);
    let [SimulatedWork::Index(shard), ..] = bench.work()[..] else { panic!("expected an index first") };
    bench.handle(Event::Index(shard, Err(Error::runtime("no index"))));
    assert_eq!(bench.take().unwrap_err().message(), "no index");
}

#[test]
fn chunks_of_a_shard_are_read_together() {
    let mut bench = Bench::new(&Rows { shard: 3, ..single() }, 1 << 20);
    let [SimulatedWork::Index(shard), ..] = bench.work()[..] else { panic!("expected an index first") };
    let entries = Entries::Read(vec![Some((1000, 20)), Some((1020, 30)), Some((0, 20))]);
    let index = Arc::new(ShardIndex { entries, version: Some(ObjectVersion::Tag("v1".into())) });
    bench.handle(Event::Index(shard, Ok(Some(index))));
    let reads = bench.reads();
    // Two batches are active, so two chunks are wanted.
    assert_eq!(described(&reads), [(None, Some(1000), 50)]);
    assert_eq!(reads[0].0.object.version, Some(ObjectVersion::Tag("v1".into())), "in the version of the index");
}

// ---- oversized chunks ----

#[test]
fn an_oversized_chunk_is_read_again_with_its_size() {
    let mut bench = Bench::new(&single(), 1 << 20);
    let mut reads = bench.reads();
    let usual = bench.encoded();
    bench.end_read(reads.remove(0), Ok(Some(usual + 1000)));
    let mut again = bench.reads();
    assert_eq!((&*again[0].0.key, again[0].1.len()), ("a/c/0/0", usual + 1000));
    bench.end_read(again.remove(0), Ok(Some(usual + 2000)));
    let error = bench.take().unwrap_err();
    assert!(error.message().contains("replaced while it was read"), "{}", error.message());
}

#[test]
fn a_chunk_that_memory_cannot_hold_fails_its_batch_alone() {
    let mut bench = Bench::new(&single(), 4096);
    let mut reads = bench.reads();
    bench.end_read(reads.remove(0), Ok(Some(5000)));
    let error = bench.take().unwrap_err();
    assert!(error.message().contains("give a host_memory_limit of"), "{}", error.message());
    bench.end_read(reads.remove(0), Ok(Some(10)));
    let task = bench.tasks().remove(0);
    bench.end_task(task, None);
    assert!(bench.take().is_ok());
}

// ---- completion ----

#[test]
fn a_failed_chunk_fails_each_batch_that_needs_it_and_no_other() {
    let mut bench = Bench::new(&Rows { chunk: 3, ..single() }, 1 << 20);
    let mut reads = bench.reads();
    bench.end_read(reads.remove(0), Ok(Some(10)));
    let task = bench.tasks().remove(0);
    bench.end_task(task, Some(&Error::runtime("damaged")));
    assert_eq!(free(&bench), 1 << 20, "its memory is back");
    for _ in 0..2 {
        assert_eq!(bench.take().unwrap_err().message(), "damaged");
    }
    // The third batch of the chunk was only planned.
    let mut next = bench.reads();
    assert_eq!(bench.take().unwrap_err().message(), "damaged");
    next.extend(bench.reads());
    bench.end_read(next.remove(0), Ok(Some(10)));
    let task = bench.tasks().remove(0);
    bench.end_task(task, None);
    assert!(bench.take().is_ok());
}

#[test]
fn a_missing_chunk_is_filled() {
    let mut bench = Bench::new(&single(), 1 << 20);
    let mut reads = bench.reads();
    bench.end_read(reads.remove(0), Ok(None));
    let task = bench.tasks().remove(0);
    assert!(task.items.is_empty() && task.assembly.jobs[0].source == Source::Fill as u32);
    assert_eq!(task.assembly.jobs[0].extent[0] as usize * 4, ROW);
    bench.end_task(task, None);
    assert!(bench.take().is_ok());
}

#[test]
fn memory_comes_back_when_the_last_batch_is_served() {
    let mut bench = Bench::new(&Rows { chunk: 2, ..single() }, 1 << 20);
    let mut reads = bench.reads();
    bench.end_read(reads.remove(0), Ok(Some(10)));
    let task = bench.tasks().remove(0);
    assert_eq!(free(&bench), (1 << 20) - rounded(10) - rounded(2 * ROW), "encoded and decoded bytes");
    bench.end_task(task, None);
    assert_eq!(free(&bench), 1 << 20);
}
