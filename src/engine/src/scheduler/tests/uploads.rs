//! Tests of uncompressed chunks that the reading thread copies to the device.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::{Bench, Compressor, Rows, gpu};
use crate::chunk_index::{DIRECT_COPY, Entries, ShardIndex};
use crate::messages::{Event, Read, ReadDone, ReadRange, UploadPart};
use crate::scheduler::memory::MemoryKind;
use crate::scheduler::simulation::SimulatedWork;
use dali_zarr_base::error::Error;
use dali_zarr_base::memory::Lease;

const SLOTS: usize = 4 * DIRECT_COPY;
const STAGING: usize = 1 << 20;

/// Uncompressed chunks that are just large enough, one for each batch.
fn large() -> Rows {
    Rows { chunk: 1, batch: 1, width: DIRECT_COPY as u64 / 4, compressor: Compressor::None, ..Rows::default() }
}

/// One read at a time of a local store, and this number of active batches.
fn one_by_one(rows: &Rows, max_active: usize) -> Bench {
    Bench::on_gpu(rows, gpu(SLOTS, 0), |rules| (rules.reads, rules.max_active) = ([1, 1], max_active))
}

/// Ends a read whose bytes were copied to the device.
fn end_upload(bench: &mut Bench, (read, to): (Read, Lease), error: Option<Error>) {
    let result = error.map_or(Ok(Some(to.len())), Err);
    bench.handle(Event::Uploaded(ReadDone { id: read.id, to, result }));
}

#[test]
fn the_reading_thread_copies_a_large_uncompressed_chunk_to_its_slot() {
    let mut bench = one_by_one(&large(), 1);
    let (read, to) = bench.reads().remove(0);
    let scheduler = &bench.simulation.scheduler;
    let slot = scheduler.chunks.iter().find_map(|chunk| chunk.slot()).unwrap();
    let part = UploadPart { offset: 0, len: DIRECT_COPY, to: scheduler.memory.slot_address(slot) };
    assert_eq!((&read.uploads[..], to.len()), (&[part][..], DIRECT_COPY));
    assert!(matches!(read.range, ReadRange::Exact) && read.gds.is_none());
    bench.handle(Event::Uploading);
    assert!(bench.waits() && bench.work().is_empty(), "it is not on the device yet");
    end_upload(&mut bench, (read, to), None);
    assert_eq!(bench.free(MemoryKind::Staging), STAGING, "nothing reads the host's copy");
    // A wave runs its job, and copies nothing.
    let wave = bench.wave();
    assert!(wave.chunks.is_empty() && wave.assembly.jobs[0].src == part.to);
    bench.end_wave(wave, None);
    assert!(bench.take().is_ok());
    let counted = [&bench.stats.chunks_uncompressed, &bench.stats.chunks_read, &bench.stats.chunks_from_memory];
    assert_eq!(counted.map(|n| n.load(Relaxed)), [1, 1, 0]);
}

#[test]
fn the_next_read_begins_while_the_last_one_is_copied() {
    let mut bench = one_by_one(&large(), 2);
    let first = bench.reads().remove(0);
    assert!(bench.reads().is_empty(), "one read at a time");
    bench.handle(Event::Uploading);
    let second = bench.reads().remove(0);
    assert_eq!((&*first.0.key, &*second.0.key), ("a/c/0/0", "a/c/1/0"));
    assert_eq!((bench.simulation.scheduler.reads.uploads(), bench.simulation.scheduler.reads.in_flight()), (1, 2));
    end_upload(&mut bench, first, None);
    assert_eq!((bench.simulation.scheduler.reads.uploads(), bench.simulation.scheduler.reads.in_flight()), (0, 1));
}

#[test]
fn a_copy_that_failed_fails_the_batch_and_gives_all_memory_back() {
    let mut bench = one_by_one(&large(), 1);
    let read = bench.reads().remove(0);
    bench.handle(Event::Uploading);
    end_upload(&mut bench, read, Some(Error::runtime("no copy")));
    assert_eq!((bench.free(MemoryKind::Staging), bench.free(MemoryKind::Slots)), (STAGING, SLOTS));
    assert_eq!(bench.take().unwrap_err().message(), "no copy");
}

#[test]
fn each_chunk_of_a_merged_read_is_copied_to_its_own_slot() {
    let mut bench = one_by_one(&Rows { shard: 3, batch: 2, ..large() }, 1);
    let [SimulatedWork::Index(shard), ..] = bench.work()[..] else { panic!("expected an index first") };
    let len = DIRECT_COPY as u64;
    let entries = Entries::Read(vec![Some((len + 512, len)), Some((0, len)), None]);
    bench.handle(Event::Index(shard, Ok(Some(Arc::new(ShardIndex { entries, version: None })))));
    let (read, to) = bench.reads().remove(0);
    assert_eq!(to.len(), 2 * DIRECT_COPY + 512);
    let parts: Vec<_> = read.uploads.iter().map(|part| (part.offset, part.len)).collect();
    assert_eq!(parts, [(0, DIRECT_COPY), (DIRECT_COPY + 512, DIRECT_COPY)], "in the order of the shard");
    let slots: Vec<u64> = read.uploads.iter().map(|part| part.to).collect();
    bench.handle(Event::Uploading);
    end_upload(&mut bench, (read, to), None);
    let wave = bench.wave();
    let mut sources: Vec<_> = wave.assembly.jobs.iter().map(|job| (job.dst, job.src)).collect();
    sources.sort_unstable();
    assert_eq!(sources.iter().map(|job| job.1).collect::<Vec<_>>(), [slots[1], slots[0]], "in the order of the batch");
}

#[test]
fn smaller_and_compressed_chunks_are_not_copied_by_the_reading_thread() {
    for rows in [Rows { width: large().width - 1, ..large() }, Rows { compressor: Compressor::Zstd, ..large() }] {
        let mut bench = one_by_one(&rows, 1);
        let read = bench.reads().remove(0);
        assert!(read.0.uploads.is_empty());
        bench.end_read(read, Ok(Some(1000)));
        assert_eq!(bench.wave().chunks.len(), 1, "a lane copies it");
    }
}
