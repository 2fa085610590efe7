//! Tests of reads by GPUDirect Storage: to the GDS buffer, or to slots.

use super::{Bench, Compressor, Rows, gpu};
use crate::chunk_index::DIRECT_COPY;
use crate::messages::{Event, GdsTarget};
use crate::scheduler::memory::MemoryKind;
use dali_zarr_base::error::Error;
use dali_zarr_base::memory::arena::rounded;

const STAGING: usize = 1 << 20;
const SLOTS: usize = 1 << 20;
/// Elements of a row of 128 KiB: large enough for cuFile.
const WIDTH: u64 = 32 << 10;

/// Compressed chunks in files, one for each batch.
fn files() -> Rows {
    Rows { chunk: 1, batch: 1, width: WIDTH, files: true, ..Rows::default() }
}

/// Returns a reader with room in its GDS buffer for this many encoded chunks of the rows, and with two active batches.
fn bench(rows: &Rows, chunks: usize) -> Bench {
    let encoded = rounded(Bench::new(rows, STAGING).encoded());
    Bench::on_gpu(rows, gpu(SLOTS, chunks * encoded), |_| {})
}

fn address(target: Option<GdsTarget>) -> u64 {
    match target {
        Some(GdsTarget::Buffer(address)) => address,
        other => panic!("expected the GDS buffer, found {other:?}"),
    }
}

#[test]
fn lanes_copy_from_the_gds_buffer_and_then_its_range_is_free() {
    let mut bench = bench(&files(), 2);
    let all = bench.free(MemoryKind::GdsBuffer);
    let mut reads = bench.reads();
    assert_eq!(bench.free(MemoryKind::GdsBuffer), 0, "two reads are under way");
    let addresses = [address(reads[0].0.gds), address(reads[1].0.gds)];
    assert_eq!(addresses[0].abs_diff(addresses[1]) as usize, all / 2);
    bench.end_read(reads.remove(0), Ok(Some(1000)));
    assert_eq!(bench.free(MemoryKind::GdsBuffer), all / 2 - rounded(1000), "only what was read is kept");
    let mut wave = bench.wave();
    assert_eq!((wave.chunks[0].source, wave.chunks[0].bytes), (addresses[0], 1000));
    assert_ne!(wave.chunks[0].source, wave.payloads[0].bytes.address());
    bench.handle(Event::Copied(std::mem::take(&mut wave.payloads)));
    assert_eq!(bench.free(MemoryKind::GdsBuffer), all / 2);
}

#[test]
fn a_chunk_waits_while_the_gds_buffer_is_full_and_holds_no_other_memory() {
    // A row that isn't decoded to an output: its bytes are no multiple of 16.
    let rows = Rows { width: WIDTH - 1, ..files() };
    let mut bench = bench(&rows, 1);
    let mut reads = bench.reads();
    assert_eq!(reads.len(), 1, "the other chunk waits");
    let shortage = bench.simulation.scheduler.shortage.unwrap();
    assert_eq!((shortage.kind, shortage.batch), (MemoryKind::GdsBuffer, 1));
    let encoded = rounded(bench.encoded());
    let free = (bench.free(MemoryKind::Staging), bench.free(MemoryKind::Slots));
    assert_eq!(free, (STAGING - encoded, SLOTS - 4 * WIDTH as usize), "only the first has memory");
    bench.end_read(reads.remove(0), Ok(Some(1000)));
    let mut wave = bench.wave();
    bench.handle(Event::Copied(std::mem::take(&mut wave.payloads)));
    assert_eq!(bench.reads()[0].0.key, "a/c/1/0", "now there is room");
}

#[test]
fn a_read_that_failed_gives_its_range_back() {
    let mut bench = bench(&files(), 2);
    let all = bench.free(MemoryKind::GdsBuffer);
    let mut reads = bench.reads();
    bench.end_read(reads.remove(0), Err(Error::runtime("refused")));
    bench.end_read(reads.remove(0), Ok(None));
    assert_eq!(bench.free(MemoryKind::GdsBuffer), all);
    assert_eq!(bench.take().unwrap_err().message(), "refused");
}

#[test]
fn other_chunks_are_read_to_host_memory_only() {
    let others = [
        ("it is no file", Rows { files: false, ..files() }, 2),
        ("it is small", Rows { width: 1 << 10, ..files() }, 2),
        ("the CPU decodes it", Rows { compressor: Compressor::Bzip2, ..files() }, 2),
        ("it is uncompressed, and small", Rows { compressor: Compressor::None, ..files() }, 2),
    ];
    for (why, rows, chunks) in others {
        let mut bench = bench(&rows, chunks);
        let all = bench.free(MemoryKind::GdsBuffer);
        let (read, _) = bench.reads().remove(0);
        assert!(read.gds.is_none() && bench.free(MemoryKind::GdsBuffer) == all, "{why}");
    }
    let mut bench = Bench::on_gpu(&files(), gpu(SLOTS, 64 << 10), |_| {});
    let reads = bench.reads();
    assert!(reads.len() == 2 && reads[0].0.gds.is_none(), "the whole buffer is smaller than the chunk");
}

#[test]
fn large_uncompressed_chunks_are_read_to_their_slots() {
    let rows = Rows { width: DIRECT_COPY as u64 / 4, compressor: Compressor::None, ..files() };
    let mut bench = bench(&rows, 2);
    let all = bench.free(MemoryKind::GdsBuffer);
    let read = bench.reads().remove(0);
    assert!(matches!(read.0.gds, Some(GdsTarget::Slots)) && read.0.uploads.len() == 1);
    assert_eq!(bench.free(MemoryKind::GdsBuffer), all);
    // Nothing is left to be copied when the read ends.
    let slot = read.0.uploads[0].to;
    bench.end_read(read, Ok(Some(DIRECT_COPY)));
    let wave = bench.wave();
    assert!(wave.chunks.is_empty() && wave.assembly.jobs[0].src == slot);
    bench.end_wave(wave, None);
    assert!(bench.take().is_ok());
}
