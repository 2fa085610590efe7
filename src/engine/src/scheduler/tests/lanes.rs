//! Tests of waves: what a lane gets, and what follows when it ends. Chunks that the CPU decodes for a GPU.

use std::sync::atomic::Ordering::Relaxed;

use dali_zarr_kernels::Source;

use super::{Bench, Compressor, Rows, gpu};
use crate::messages::{Content, Event, Read, Wave};
use crate::route::Route;
use crate::scheduler::memory::MemoryKind;
use crate::scheduler::simulation::SimulatedWork;
use dali_zarr_base::error::Error;
use dali_zarr_base::memory::Lease;
use dali_zarr_base::memory::arena::rounded;

/// Bytes of the memory for a decoded row, and of the slots of the tests.
const ROW: usize = 256;
const SLOTS: usize = 1 << 16;
const STAGING: usize = 1 << 20;

/// The elements and the bytes of a row that the GPU decodes to a slot: no multiple of 16.
const WIDTH: u64 = 63;
const UNEVEN: usize = 252;

/// One chunk for each row, two for each batch. They are decoded to slots.
fn pairs() -> Rows {
    Rows { chunk: 1, batch: 2, width: WIDTH, ..Rows::default() }
}

/// Ends all reads that the scheduler hands out, each with this number of bytes.
fn end_reads(bench: &mut Bench, bytes: usize) {
    for read in bench.reads() {
        bench.end_read(read, Ok(Some(bytes)));
    }
}

/// Ends the first of these reads with 100 bytes. Returns the wave with its chunk.
fn read_one(bench: &mut Bench, reads: &mut Vec<(Read, Lease)>) -> Wave {
    bench.end_read(reads.remove(0), Ok(Some(100)));
    bench.wave()
}

// ---- what a wave has ----

#[test]
fn a_wave_has_all_chunks_that_wait_with_their_bytes_slots_and_jobs() {
    let mut bench = Bench::on_gpu(&pairs(), gpu(SLOTS, 0), |_| {});
    end_reads(&mut bench, 100);
    let wave = bench.wave();
    assert_eq!(wave.chunks.iter().map(|c| c.id.index).collect::<Vec<_>>(), [0, 1, 2, 3], "of both active batches");
    let scheduler = &bench.simulation.scheduler;
    for (i, (chunk, payload)) in wave.chunks.iter().zip(&wave.payloads).enumerate() {
        assert_eq!((chunk.content, chunk.bytes, chunk.decoded_bytes), (Content::Encoded, 100, UNEVEN));
        assert_eq!(chunk.source, payload.bytes.address(), "its own bytes in page-locked memory");
        let slot = scheduler.chunks[chunk.handle].slot().unwrap();
        assert_eq!(chunk.to, scheduler.memory.slot_address(slot));
        // Each chunk is all of one sample.
        assert_eq!((chunk.jobs.clone(), wave.assembly.jobs[i].src), (i..i + 1, chunk.to));
    }
    assert_eq!((wave.payloads.len(), wave.assembly.jobs.len(), wave.ready_jobs.clone()), (4, 4, 4..4));
    assert_eq!(wave.assembly.served.iter().map(|s| (s.batch, s.uses)).collect::<Vec<_>>(), [(0, 2), (1, 2)]);
    assert!(bench.waits());
    bench.end_wave(wave, None);
    assert!(bench.take().is_ok() && bench.take().is_ok());
    assert_eq!(bench.stats.waves.load(Relaxed), 1);
}

/// Checks that the chunks of the wave of batches 0 and 1 go to their samples, without slots and jobs.
fn expect_placed(bench: &Bench, wave: &Wave) {
    let batches = &bench.simulation.scheduler.batches;
    for chunk in &wave.chunks {
        let output = batches.get(chunk.id.index / 2).unwrap().outputs[0];
        assert_eq!(chunk.to, output + chunk.id.index % 2 * chunk.decoded_bytes as u64);
        assert!(chunk.jobs.is_empty());
    }
    assert!(wave.assembly.jobs.is_empty() && wave.pinned.is_empty());
    assert_eq!(wave.assembly.served.iter().map(|s| (s.batch, s.uses)).collect::<Vec<_>>(), [(0, 2), (1, 2)]);
    assert_eq!(bench.free(MemoryKind::Slots), SLOTS);
}

#[test]
fn a_chunk_that_is_all_of_a_sample_goes_to_the_output() {
    let mut bench = Bench::on_gpu(&Rows { width: 64, ..pairs() }, gpu(SLOTS, 0), |_| {});
    end_reads(&mut bench, 100);
    let wave = bench.wave();
    assert_eq!(wave.chunks.iter().map(|c| c.content).collect::<Vec<_>>(), [Content::Encoded; 4]);
    expect_placed(&bench, &wave);
    bench.end_wave(wave, None);
    assert!(bench.take().is_ok() && bench.take().is_ok());
    // What the CPU has decoded may be of any length.
    let bzip2 = Rows { compressor: Compressor::Bzip2, ..pairs() };
    let mut bench = Bench::on_gpu(&bzip2, gpu(SLOTS, 0), |_| {});
    end_reads(&mut bench, 100);
    bench.tasks().into_iter().for_each(|task| bench.end_task(task, None));
    let wave = bench.wave();
    assert_eq!(wave.chunks.iter().map(|c| c.content).collect::<Vec<_>>(), [Content::Decoded; 4]);
    expect_placed(&bench, &wave);
    bench.end_wave(wave, Some(&Error::runtime("damaged")));
    assert_eq!((bench.free(MemoryKind::Slots), bench.free(MemoryKind::Staging)), (SLOTS, STAGING));
    assert!(bench.take().is_err() && bench.take().is_err());
}

#[test]
fn a_chunk_that_another_batch_needs_goes_to_a_slot() {
    let rows = Rows { width: 64, batch: 1, offsets: vec![0, 3], ..pairs() };
    let mut bench = Bench::on_gpu(&rows, gpu(SLOTS, 0), |rules| (rules.max_active, rules.lookahead) = (1, 3));
    end_reads(&mut bench, 100);
    let wave = bench.wave();
    let outputs = &bench.simulation.scheduler.batches.get(0).unwrap().outputs;
    let goes_to_output: Vec<_> = wave.chunks.iter().map(|c| (c.id.index, c.to == outputs[0])).collect();
    assert_eq!(goes_to_output, [(0, true), (3, false)], "batch 3 needs row 3 again");
    assert_eq!(wave.assembly.jobs.iter().map(|job| job.src).collect::<Vec<_>>(), [wave.chunks[1].to]);
    bench.end_wave(wave, None);
    assert!(bench.take().is_ok());
}

#[test]
fn bytes_come_back_when_they_are_copied_and_slots_when_the_wave_has_ended() {
    let mut bench = Bench::on_gpu(&pairs(), gpu(SLOTS, 0), |_| {});
    end_reads(&mut bench, 100);
    let mut wave = bench.wave();
    let free = |bench: &Bench| (bench.free(MemoryKind::Staging), bench.free(MemoryKind::Slots));
    let (bytes, slots) = (4 * rounded(100), 4 * ROW);
    assert_eq!(free(&bench), (STAGING - bytes, SLOTS - slots));
    bench.handle(Event::Copied(std::mem::take(&mut wave.payloads)));
    assert_eq!(free(&bench), (STAGING, SLOTS - slots));
    bench.end_wave(wave, None);
    assert_eq!(free(&bench), (STAGING, SLOTS), "no other batch needs the chunks");
}

#[test]
fn a_lane_gets_its_next_wave_when_the_last_has_ended() {
    let mut bench = Bench::on_gpu(&Rows { batch: 1, ..pairs() }, gpu(SLOTS, 0), |_| {});
    let mut reads = bench.reads();
    let first = read_one(&mut bench, &mut reads);
    bench.end_read(reads.remove(0), Ok(Some(100)));
    assert!(bench.waves().is_empty(), "there is one lane");
    bench.end_wave(first, None);
    assert_eq!(bench.wave().chunks.iter().map(|c| c.id.index).collect::<Vec<_>>(), [1]);
}

#[test]
fn a_wave_keeps_the_limits_of_the_lane() {
    let mut limited = gpu(SLOTS, 0);
    limited.limits.chunks = 3;
    let mut bench = Bench::on_gpu(&pairs(), limited, |_| {});
    end_reads(&mut bench, 100);
    let wave = bench.wave();
    assert_eq!(wave.chunks.len(), 3);
    bench.end_wave(wave, None);
    assert_eq!(bench.wave().chunks.len(), 1);
}

#[test]
fn jobs_of_a_decoded_chunk_go_with_a_wave_that_decodes_nothing() {
    let mut bench = Bench::on_gpu(&Rows { chunk: 3, batch: 1, ..pairs() }, gpu(SLOTS, 0), |_| {});
    end_reads(&mut bench, 100);
    let first = bench.wave();
    let handle = first.chunks[0].handle;
    assert_eq!((first.chunks.len(), first.assembly.jobs.len()), (1, 2), "one chunk for both active batches");
    bench.end_wave(first, None);
    assert!(bench.take().is_ok() && bench.take().is_ok());
    // The third batch is the last that needs the chunk. It becomes active now.
    let wave = bench.wave();
    assert!(wave.chunks.is_empty() && wave.payloads.is_empty());
    assert_eq!((wave.assembly.jobs.len(), wave.ready_jobs.clone(), &wave.pinned[..]), (1, 0..1, &[handle][..]));
    // The fourth batch has reserved a slot too.
    assert_eq!(bench.free(MemoryKind::Slots), SLOTS - 6 * ROW, "the jobs of the wave read the first");
    bench.end_wave(wave, None);
    assert_eq!(bench.free(MemoryKind::Slots), SLOTS - 3 * ROW);
}

#[test]
fn ready_jobs_come_behind_those_of_the_chunks_of_a_wave() {
    let mut bench = Bench::on_gpu(&Rows { batch: 1, ..pairs() }, gpu(SLOTS, 0), |rules| rules.max_active = 3);
    let mut reads = bench.reads();
    let first = read_one(&mut bench, &mut reads);
    // Meanwhile the second chunk turns out to be missing, and the third waits for the lane.
    bench.end_read(reads.remove(0), Ok(None));
    bench.end_read(reads.remove(0), Ok(Some(100)));
    assert!(bench.waves().is_empty());
    bench.end_wave(first, None);
    let wave = bench.wave();
    assert_eq!(wave.chunks.iter().map(|c| (c.id.index, c.jobs.clone())).collect::<Vec<_>>(), [(2, 0..1)]);
    assert_eq!((wave.ready_jobs.clone(), wave.pinned.len()), (1..2, 1));
    let sources: Vec<_> = wave.assembly.jobs.iter().map(|job| job.source).collect();
    assert_eq!(sources, [Source::Chunk as u32, Source::Fill as u32]);
    bench.end_wave(wave, None);
    assert!((0..3).all(|_| bench.take().is_ok()));
}

// ---- failures ----

#[test]
fn a_chunk_that_the_lane_cannot_decode_fails_its_batches_alone() {
    let mut bench = Bench::on_gpu(&Rows { batch: 1, ..pairs() }, gpu(SLOTS, 0), |_| {});
    let mut reads = bench.reads();
    let wave = read_one(&mut bench, &mut reads);
    bench.end_wave(wave, Some(&Error::runtime("damaged")));
    assert_eq!((bench.free(MemoryKind::Slots), bench.take().unwrap_err().message()), (SLOTS - ROW, "damaged"));
    let wave = read_one(&mut bench, &mut reads);
    bench.end_wave(wave, None);
    assert!(bench.take().is_ok());
}

#[test]
fn after_a_lane_failed_no_wave_is_launched_and_all_batches_fail() {
    let mut bench = Bench::on_gpu(&Rows { batch: 1, ..pairs() }, gpu(SLOTS, 0), |_| {});
    let mut reads = bench.reads();
    let wave = read_one(&mut bench, &mut reads);
    bench.fail_lane(wave, &Error::runtime("lost"));
    bench.end_read(reads.remove(0), Ok(Some(100)));
    assert!(bench.work().is_empty());
    for _ in 0..3 {
        assert_eq!(bench.take().unwrap_err().message(), "lost");
    }
}

#[test]
fn a_batch_of_decoded_chunks_fails_if_the_lane_failed_that_assembles_it() {
    let mut bench = Bench::on_gpu(&Rows { chunk: 3, batch: 1, ..pairs() }, gpu(SLOTS, 0), |_| {});
    end_reads(&mut bench, 100);
    let first = bench.wave();
    bench.end_wave(first, None);
    assert!(bench.take().is_ok() && bench.take().is_ok());
    // The third batch needs nothing but the decoded chunk. So the wave has no chunk that could fail.
    let wave = bench.wave();
    assert_eq!((wave.chunks.len(), wave.assembly.served[0].batch), (0, 2));
    bench.fail_lane(wave, &Error::runtime("lost"));
    assert_eq!(bench.take().unwrap_err().message(), "lost", "its jobs may not have run");
}

// ---- chunks that the CPU decodes ----

#[test]
fn what_the_cpu_decodes_is_copied_to_its_slot() {
    let rows = Rows { chunk: 3, compressor: Compressor::Bzip2, batch: 1, width: 21, ..pairs() };
    let mut bench = Bench::on_gpu(&rows, gpu(SLOTS, 0), |rules| rules.max_active = 1);
    let mut reads = bench.reads();
    bench.end_read(reads.remove(0), Ok(Some(100)));
    let task = bench.tasks().remove(0);
    let decoded = task.items[0].decoded.address();
    assert!(task.assembly.jobs.is_empty(), "the GPU assembles");
    assert_eq!(bench.free(MemoryKind::Staging), STAGING - rounded(100) - ROW);
    bench.end_task(task, None);
    assert_eq!(bench.free(MemoryKind::Staging), STAGING - ROW, "the encoded bytes are not needed any more");
    let wave = bench.wave();
    let chunk = &wave.chunks[0];
    assert_eq!((chunk.content, chunk.source, chunk.bytes), (Content::Decoded, decoded, UNEVEN));
    bench.end_wave(wave, None);
    assert!(bench.take().is_ok());
}

#[test]
fn idle_cores_decode_in_the_place_of_a_gpu_that_has_time() {
    let rules = |rules: &mut crate::scheduler::Rules| (rules.max_active, rules.shared_tasks) = (4, 2);
    let mut bench = Bench::on_gpu(&Rows { batch: 1, ..pairs() }, gpu(SLOTS, 0), rules);
    // All batches were finished once: the consumer is the slower side.
    bench.simulation.scheduler.waves.sharing.queue_is_full();
    end_reads(&mut bench, 100);
    let mut tasks = Vec::new();
    let mut waves = Vec::new();
    for work in bench.work() {
        match work {
            SimulatedWork::Task(task) => tasks.push(task),
            SimulatedWork::Wave { wave, .. } => waves.push(wave),
            _ => {}
        }
    }
    assert_eq!(
        tasks.iter().map(|task| task.items[0].id.index).collect::<Vec<_>>(),
        [3, 2],
        "no more than the rule says; the last ones, since it isn't known how long a task takes"
    );
    assert_eq!(bench.stats.chunks_shared.load(Relaxed), 2);
    let handle = tasks[0].items[0].handle;
    assert_eq!(bench.simulation.scheduler.chunks[handle].info().route, Route::Gpu, "as its array");
    // No batch waits, so the GPU decodes the others.
    assert_eq!(waves.iter().flat_map(|wave| &wave.chunks).map(|c| c.id.index).collect::<Vec<_>>(), [0, 1]);
    bench.end_task(tasks.remove(0), None);
    bench.end_wave(waves.remove(0), None);
    let wave = bench.wave();
    assert_eq!((wave.chunks[0].id.index, wave.chunks[0].content), (3, Content::Decoded));
    let scheduler = &bench.simulation.scheduler;
    assert_eq!(wave.chunks[0].to, scheduler.batches.get(3).unwrap().outputs[0], "it needs its slot no more");
    assert_eq!(scheduler.waves.sharing.tasks(), 1);
}
