//! Tests of decoded chunks that are kept for later batches, and evicted for sooner ones.

use std::sync::atomic::Ordering::Relaxed;

use super::{Bench, Rows, gpu};
use crate::scheduler::memory::MemoryKind;
use crate::scheduler::simulation::SimulatedWork;

/// Bytes of a decoded row.
const ROW: usize = 256;

/// Batch `n` has the rows `n` and `n + 3`, each a chunk. So each chunk from the fourth on is needed again three batches
/// later.
fn twice() -> Rows {
    Rows { chunk: 1, batch: 1, offsets: vec![0, 3], ..Rows::default() }
}

/// Returns a reader with one active batch, with room for this many decoded chunks. Three more batches are planned.
fn bench(chunks: usize) -> Bench {
    Bench::on_gpu(&twice(), gpu(chunks * ROW, 0), |rules| {
        (rules.max_active, rules.lookahead, rules.working_set) = (1, 3, ROW);
    })
}

/// Lets the reader finish the next batch, and takes it. Returns the rows that it read for the batch.
fn next(bench: &mut Bench) -> Vec<u64> {
    let mut rows = Vec::new();
    loop {
        let work = bench.work();
        if work.is_empty() {
            break;
        }
        for work in work {
            match work {
                SimulatedWork::Read { read, to, .. } => {
                    rows.push(read.key.split('/').nth(2).unwrap().parse().unwrap());
                    bench.end_read((read, to), Ok(Some(10)));
                }
                SimulatedWork::Wave { wave, .. } => bench.end_wave(wave, None),
                _ => panic!("expected reads and waves only"),
            }
        }
    }
    assert!(bench.take().is_ok());
    rows
}

#[test]
fn chunks_are_kept_for_the_batches_that_need_them() {
    let mut bench = bench(8);
    let rows: Vec<_> = (0..5).map(|_| next(&mut bench)).collect();
    assert_eq!(rows, [&[0, 3][..], &[1, 4], &[2, 5], &[6], &[7]], "the fourth and fifth are decoded already");
    assert_eq!((bench.stats.evictions.load(Relaxed), bench.stats.chunks_read_again.load(Relaxed)), (0, 0));
}

#[test]
fn the_chunk_that_is_needed_last_makes_room_for_a_sooner_one() {
    // When the third batch becomes active, the chunks 3 and 4 are kept, and no slot is free. It needs one for chunk 5.
    let mut bench = bench(2);
    let rows: Vec<_> = (0..3).map(|_| next(&mut bench)).collect();
    assert_eq!(rows, [[0, 3], [1, 4], [2, 5]]);
    assert_eq!(bench.stats.evictions.load(Relaxed), 1);
    let is_kept = |bench: &Bench, row: u64| {
        let scheduler = &bench.simulation.scheduler;
        scheduler.chunks.iter().any(|chunk| chunk.id().index == row && chunk.slot().is_some())
    };
    assert_eq!([3, 4].map(|row| is_kept(&bench, row)), [true, false], "the fourth batch comes before the fifth");
    assert_eq!((next(&mut bench), next(&mut bench)), (vec![6], vec![7, 4]), "the evicted chunk is read again");
    assert_eq!(bench.stats.chunks_read_again.load(Relaxed), 1);
}

#[test]
fn a_chunk_is_not_evicted_while_memory_has_room() {
    let mut bench = bench(4);
    for _ in 0..3 {
        next(&mut bench);
    }
    assert_eq!((bench.stats.evictions.load(Relaxed), bench.free(MemoryKind::Slots)), (0, ROW), "three are kept");
}

/// Batch `n` has the rows `n` and `n + 4`. One batch is active, and one more is planned, so the fifth batch is not
/// planned when the first one is delivered.
fn far(chunks: usize) -> Bench {
    let rows = Rows { offsets: vec![0, 4], ..twice() };
    Bench::on_gpu(&rows, gpu(chunks * ROW, 0), |rules| {
        (rules.max_active, rules.lookahead, rules.working_set) = (1, 1, 2 * ROW);
    })
}

#[test]
fn chunks_are_kept_for_batches_that_are_not_planned_yet() {
    let mut bench = far(12);
    let rows: Vec<_> = (0..8).map(|_| next(&mut bench)).collect();
    assert_eq!(rows, [&[0, 4][..], &[1, 5], &[2, 6], &[3, 7], &[8], &[9], &[10], &[11]]);
    assert_eq!((bench.stats.evictions.load(Relaxed), bench.stats.chunks_read_again.load(Relaxed)), (0, 0));
    // The next epoch isn't foreseen by this one.
    assert_eq!(next(&mut bench), [0, 4]);
}

#[test]
fn what_memory_can_not_keep_for_them_is_counted() {
    // The chunks 4, 5 and 6 are kept when the third batch is delivered, and no slot is free. The fourth batch needs one.
    let mut bench = far(3);
    let rows: Vec<_> = (0..8).map(|_| next(&mut bench)).collect();
    assert_eq!(rows[..3], [[0, 4], [1, 5], [2, 6]]);
    let read: usize = rows.iter().map(Vec::len).sum();
    let again = bench.stats.chunks_read_again.load(Relaxed);
    assert!(again > 0 && again == read as u64 - 12, "{rows:?} {again}");
    assert_eq!(bench.stats.evictions.load(Relaxed), again, "each is read again, once");
}
