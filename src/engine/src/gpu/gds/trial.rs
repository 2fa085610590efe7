//! Measures which way from local files to the device is faster: cuFile, or a read by the system and a copy.
//!
//! `unsafe` is allowed here: device memory is written by address.

#![allow(unsafe_code)]

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::chunk_index::ChunkIndex;
use crate::gpu::driver::{CuFile, Device, DeviceBuffer, PinnedBuffer, Stream, copy_to_device_async};
use crate::messages::FilePart;
use dali_zarr_base::error::Result;
use dali_zarr_samples::plan::ChunkId;
use dali_zarr_stores::{ByteRange, Phase, block_on};

/// How many chunks are timed, after a first one that is not.
const TIMED: usize = 8;
/// At most this many bytes of a chunk are read.
const MAX_BYTES: usize = 16 << 20;
/// At most this many chunks are looked for. Many of them may be missing, or in the same shard.
const LOOKED_FOR: u64 = 64;

/// Whether cuFile is faster than a read by the system and a copy, measured on the first part with enough chunks. False
/// if no part has enough.
///
/// # Errors
/// If one of the two ways fails.
pub(super) fn is_faster(
    cufile: &'static CuFile,
    chunk_index: &ChunkIndex,
    mut parts: impl Iterator<Item = (u16, u16)>,
    device: &Arc<Device>,
) -> Result<bool> {
    let rates = parts.find_map(|(array, part)| rates(cufile, chunk_index, array, part, device).transpose());
    Ok(rates.transpose()?.is_some_and(|[gds, posix]| gds > posix))
}

/// Returns the bytes per second of cuFile, then of the system. `None` if fewer than two chunks are found.
fn rates(
    cufile: &'static CuFile,
    chunk_index: &ChunkIndex,
    array: u16,
    part: u16,
    device: &Arc<Device>,
) -> Result<Option<[f64; 2]>> {
    let (memory, mut host) = (DeviceBuffer::alloc(device, MAX_BYTES)?, PinnedBuffer::alloc(device, MAX_BYTES)?);
    // SAFETY: dropped before the memory, and all reads to it are done by then.
    let _registered = unsafe { cufile.register(device, memory.ptr(), memory.len()) };
    let stream = Stream::new(device)?;
    let store = chunk_index.store(array, part);
    let mut times: Vec<(usize, [Duration; 2])> = Vec::new();
    for key in keys(chunk_index, array, part) {
        let Some(value) = store.in_file(&key, None)? else { continue };
        let len = usize::try_from(value.size).unwrap_or(usize::MAX).min(MAX_BYTES);
        if len == 0 {
            continue;
        }
        // cuFile first, because a read by the system fills the page cache.
        let begin = Instant::now();
        device.bind()?;
        let whole = FilePart { offset: value.start, len, to: memory.ptr() };
        // SAFETY: the context is bound, and the buffer has room.
        unsafe { cufile.read(&value.file, &[whole])? };
        let gds = begin.elapsed();
        let begin = Instant::now();
        let bytes = &mut host.as_slice()[..len];
        block_on(&**store, store.read(&key, ByteRange::From(0), None, Phase::Running, bytes))?;
        // SAFETY: both buffers have room, and the copy is waited for.
        unsafe { copy_to_device_async(&stream, memory.ptr(), bytes.as_ptr(), len)? };
        stream.synchronize()?;
        times.push((len, [gds, begin.elapsed()]));
        if times.len() > TIMED {
            break;
        }
    }
    // The first chunk is left out: it includes the time of setting up.
    let Some((_, timed @ [_, ..])) = times.split_first() else { return Ok(None) };
    let rate = |way: usize| {
        let bytes: usize = timed.iter().map(|(len, _)| len).sum();
        let time: Duration = timed.iter().map(|(_, times)| times[way]).sum();
        bytes as f64 / time.as_secs_f64().max(1e-9)
    };
    Ok(Some([rate(0), rate(1)]))
}

/// Returns the keys of chunks (or of their shards) that are spread evenly over an array, each key once.
fn keys(chunk_index: &ChunkIndex, array: u16, part: u16) -> impl Iterator<Item = String> + '_ {
    let grid = &chunk_index.dataset.arrays[array as usize].parts[part as usize].grid;
    let chunks = grid.iter().fold(1u64, |n, g| n.saturating_mul(g.count()));
    let some = chunks.min(LOOKED_FOR);
    let mut found = HashSet::new();
    (0..some).filter_map(move |i| {
        let index = (u128::from(i) * u128::from(chunks) / u128::from(some)) as u64;
        let key = chunk_index.key(ChunkId { array, part, index });
        found.insert(key.clone()).then_some(key)
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::gpu::driver::test_gpu::gpu;
    use crate::reader::opening::UnstartedReader;
    use dali_zarr_samples::spec::{DimKey, Spec};

    /// Writes an array of uint8 with `chunks` chunks of 300,000 bytes. A chunk exists if `has` is true for its number.
    fn store(folder: &Path, chunks: usize, has: impl Fn(usize) -> bool) -> Arc<ChunkIndex> {
        let metadata = serde_json::json!({
            "zarr_format": 3, "node_type": "array", "shape": [chunks, 300_000], "data_type": "uint8", "fill_value": 0,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1, 300_000]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "codecs": [{"name": "bytes"}],
        });
        std::fs::write(folder.join("zarr.json"), metadata.to_string()).unwrap();
        for chunk in (0..chunks).filter(|&c| has(c)) {
            let bytes: Vec<u8> = (0..300_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
            std::fs::create_dir_all(folder.join(format!("c/{chunk}"))).unwrap();
            std::fs::write(folder.join(format!("c/{chunk}/0")), bytes).unwrap();
        }
        let paths = vec![folder.to_str().unwrap().to_owned()];
        UnstartedReader::new(&Spec::default().with(|s| {
            s.source.paths = paths;
            s.samples.dims = vec![DimKey::parse("0")];
        }))
        .unwrap()
        .chunk_index
    }

    #[test]
    fn keys_are_from_all_over_the_array_and_each_is_looked_for_once() {
        let folder = tempfile::tempdir().unwrap();
        let found: Vec<_> = keys(&store(folder.path(), 640, |_| false), 0, 0).collect();
        assert_eq!(found.len(), 64);
        assert_eq!(found[..2], ["c/0/0", "c/10/0"]);
        assert_eq!(found[63], "c/630/0");
        let found: Vec<_> = keys(&store(folder.path(), 3, |_| false), 0, 0).collect();
        assert_eq!(found, ["c/0/0", "c/1/0", "c/2/0"]);
    }

    /// Must also pass in cuFile's compatibility mode.
    #[test]
    fn gpu_times_both_ways_where_there_are_chunks_enough() {
        let Some(gpu) = gpu() else { return };
        let folder = tempfile::tempdir().unwrap();
        let device = gpu.device;
        let chunk_index = store(folder.path(), 40, |c| c % 3 == 1);
        let metadata = std::fs::File::open(folder.path().join("zarr.json")).unwrap();
        // SAFETY: nothing is read.
        let Ok(cufile) = CuFile::open().and_then(|cufile| unsafe { cufile.read(&metadata, &[]) }.map(|()| cufile))
        else {
            println!("skipped: cuFile isn't there, or doesn't take files of this file system");
            return;
        };
        let both = rates(cufile, &chunk_index, 0, 0, &device).unwrap().unwrap();
        println!("cuFile {:.2} GB/s, pread and a copy {:.2} GB/s", both[0] / 1e9, both[1] / 1e9);
        // From 1 MB/s, slower than any disk in use, to 10 TB/s, faster than any memory.
        assert!(both.iter().all(|rate| (1e6..1e13).contains(rate)), "{both:?}");
        is_faster(cufile, &chunk_index, [(0, 0)].into_iter(), &device).unwrap();
        // One chunk is too few to measure, and so is none.
        for there in [1, 0] {
            let folder = tempfile::tempdir().unwrap();
            let chunk_index = store(folder.path(), 40, |c| c < there);
            assert_eq!(rates(cufile, &chunk_index, 0, 0, &device).unwrap(), None);
            assert!(!is_faster(cufile, &chunk_index, [(0, 0)].into_iter(), &device).unwrap());
        }
    }
}
