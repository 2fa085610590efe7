//! Tests of damaged chunks on the GPU. Each gives the values that the CPU reads, or an error if the CPU gives one. The
//! next chunk is read as if nothing had happened.

use std::path::Path;

use zarrs::array::codec::{BloscCodec, BloscCompressor, BloscShuffleMode};
use zarrs::array::{BytesToBytesCodecTraits, CodecOptions};

use super::tests::write_v2;
use super::{DeviceBuffers, Reader};
use crate::gpu::driver::DeviceBuffer;
use crate::gpu::driver::test_gpu::{Random, gpu};
use dali_zarr_base::error::Result;
use dali_zarr_codecs::testing::{gzip, lz4, sample, zlib, zstd};
use dali_zarr_samples::spec::{Device, DimKey, Spec};

/// Elements of a chunk.
const ELEMENTS: usize = 30_011;

/// Writes an array of int32, see [`write_v2`].
fn store(folder: &Path, codecs: &serde_json::Value, chunks: &[Vec<u8>]) {
    write_v2(folder, "<i4", ELEMENTS, codecs, chunks);
}

fn open(folder: &Path, device: Device) -> Reader {
    let spec = Spec::default().with(|s| {
        s.source.paths = vec![folder.to_str().unwrap().to_owned()];
        s.samples.dims = vec![DimKey::parse("0")];
        s.samples.window = vec![1].into();
        s.batch_size = 1;
        s.device = device;
        s.resources.device_memory_limit = Some(64 << 20);
        s.resources.host_memory_limit = Some(64 << 20);
    });
    Reader::open(spec).unwrap()
}

fn blosc(data: &[u8], codec: BloscCompressor, shuffle: BloscShuffleMode) -> Vec<u8> {
    let codec = BloscCodec::new(codec, 5.try_into().unwrap(), None, shuffle, Some(4)).unwrap();
    codec.encode(data.into(), &CodecOptions::default()).unwrap().into_owned()
}

/// Appends the CRC-32C of a chunk to it.
fn sealed(mut chunk: Vec<u8>) -> Vec<u8> {
    chunk.extend(crc32c::crc32c(&chunk).to_le_bytes());
    chunk
}

/// Shuffles bytes: the first bytes of all elements of four bytes, then the second ones, and so on.
fn shuffled(data: &[u8]) -> Vec<u8> {
    (0..4).flat_map(|j| data.iter().skip(j).step_by(4).copied()).collect()
}

/// Damages a chunk: cuts its end, exchanges two pieces, overwrites a byte near its start, or flips bits.
fn damage(chunk: &mut Vec<u8>, random: &mut Random) {
    let mut below = |n: usize| (random.next() % n.max(1) as u64) as usize;
    match below(8) {
        0 => chunk.truncate(below(chunk.len())),
        1 => {
            let (a, b, n) = (below(chunk.len()), below(chunk.len()), 1 + below(16));
            for i in 0..n.min(chunk.len() - a.max(b)) {
                chunk.swap(a + i, b + i);
            }
        }
        2 => {
            let at = below(chunk.len().min(64));
            chunk[at] = below(256) as u8;
        }
        _ => {
            for _ in 0..=below(3) {
                let at = below(chunk.len());
                chunk[at] ^= 1 << below(8);
            }
        }
    }
}

/// Reads all batches on the GPU and on the CPU, and compares them one by one. Returns how many were errors on both, and
/// which chunks could be read only on the GPU.
fn compare(folder: &Path, chunks: usize, what: &str) -> (usize, Vec<String>) {
    let Some(gpu) = gpu() else { return (0, Vec::new()) };
    let (on_cpu, on_gpu) = (open(folder, Device::Cpu), open(folder, Device::Gpu(0)));
    let bytes = ELEMENTS * 4;
    let memory: Vec<DeviceBuffer> =
        (0..on_gpu.buffers_wanted()).map(|_| DeviceBuffer::alloc(&gpu.device, bytes).unwrap()).collect();
    let lend = |id: usize| on_gpu.lend(DeviceBuffers { id: id as u64, outputs: vec![memory[id].ptr()], ready: 0 });
    (0..memory.len()).for_each(|id| lend(id).unwrap());
    let (mut errors, mut lenient) = (0, Vec::new());
    for i in 0..chunks {
        let expected: Result<Vec<u8>> = on_cpu.next_batch().map(|b| b.host[0].as_slice().to_vec());
        let found = on_gpu.next_batch().map(|b| {
            let id = b.buffers.unwrap() as usize;
            let bytes = gpu.download(&memory[id]);
            lend(id).unwrap();
            bytes
        });
        match (expected, found) {
            (Ok(expected), Ok(found)) => {
                assert!(expected == found, "{what}: chunk {i} has other values than on the CPU")
            }
            (Err(e), Err(found)) => {
                assert!(i + 1 < chunks, "{what}: the whole chunk: {e}");
                errors += 1;
                assert!(found.message().contains(&format!("{i}.0")), "{what}: {found} doesn't name chunk {i}.0");
            }
            (Ok(_), Err(e)) => panic!("{what}: chunk {i} can be read on the CPU, but: {e}"),
            (Err(e), Ok(_)) => lenient.push(format!("chunk {i}: {e}")),
        }
    }
    // Dropped before `memory`, to which this reader writes ahead.
    drop(on_gpu);
    (errors, lenient)
}

/// DALI_ZARR_DAMAGED=1000 damages 1000 chunks of each case, ten thousand in all. The default of 50 is enough to see
/// that the test works.
#[test]
fn gpu_damaged_chunks_end_as_on_the_cpu() {
    if gpu().is_none() {
        return;
    }
    let many: usize = std::env::var("DALI_ZARR_DAMAGED").ok().and_then(|n| n.parse().ok()).unwrap_or(50);
    type Encoder = fn(&[u8], usize) -> Vec<u8>;
    let lz: Encoder =
        |d, i| blosc(d, BloscCompressor::LZ4, [BloscShuffleMode::Shuffle, BloscShuffleMode::NoShuffle][i % 2]);
    let cases: [(&str, serde_json::Value, Encoder); 10] = [
        ("blosc lz4", serde_json::json!({"id": "blosc", "cname": "lz4"}), lz),
        ("blosc zstd", serde_json::json!({"id": "blosc", "cname": "zstd"}), |d, i| {
            blosc(d, BloscCompressor::Zstd, [BloscShuffleMode::Shuffle, BloscShuffleMode::BitShuffle][i % 2])
        }),
        ("blosc zlib", serde_json::json!({"id": "blosc", "cname": "zlib"}), |d, _| {
            blosc(d, BloscCompressor::Zlib, BloscShuffleMode::Shuffle)
        }),
        ("blosc snappy", serde_json::json!({"id": "blosc", "cname": "snappy"}), |d, _| {
            blosc(d, BloscCompressor::Snappy, BloscShuffleMode::Shuffle)
        }),
        ("zstd", serde_json::json!({"id": "zstd"}), |d, i| zstd(d, 1 + i as i32 % 9, i.is_multiple_of(2), true)),
        ("gzip", serde_json::json!({"id": "gzip"}), |d, i| gzip(d, 1 + i as u32 % 9)),
        ("zlib", serde_json::json!({"id": "zlib"}), |d, i| zlib(d, 1 + i as u32 % 9)),
        ("lz4", serde_json::json!({"id": "lz4"}), |d, _| lz4(d)),
        ("sealed zstd", serde_json::json!([{"id": "zstd"}, {"id": "crc32c"}]), |d, _| sealed(zstd(d, 3, false, true))),
        ("shuffled lz4", serde_json::json!([{"id": "shuffle", "elementsize": 4}, {"id": "lz4"}]), |d, _| {
            lz4(&shuffled(d))
        }),
    ];
    let only = std::env::var("DALI_ZARR_DAMAGED_ONLY").ok();
    for (what, compressor, encode) in cases {
        if only.as_ref().is_some_and(|only| !only.split(',').any(|o| o == what)) {
            continue;
        }
        let mut random = Random(what.len() as u64 * 7919 + 5);
        let mut chunks: Vec<Vec<u8>> = (0..many)
            .map(|i| {
                let data: Vec<u8> = sample(i as u8, ELEMENTS * 4);
                let mut chunk = encode(&data, i);
                damage(&mut chunk, &mut random);
                chunk
            })
            .collect();
        // The last chunk is whole: it shows that the CUDA context still works.
        chunks.push(encode(&sample(1, ELEMENTS * 4), 0));
        let folder = tempfile::tempdir().unwrap();
        store(folder.path(), &compressor, &chunks);
        let (errors, lenient) = compare(folder.path(), chunks.len(), what);
        println!("{what}: {errors} errors in {many} damaged chunks; {} can only be read on the GPU", lenient.len());
        assert!(lenient.is_empty(), "{what}: the CPU refuses {}, such as {}", lenient.len(), lenient[0]);
        assert!(errors > many / 10, "{what}: {errors} errors in {many} damaged chunks");
    }
}

#[test]
fn what_the_damage_is_done_to_is_sound() {
    let data = sample(1, ELEMENTS * 4);
    for (codecs, chunk) in [
        (serde_json::json!({"id": "gzip"}), gzip(&data, 1)),
        (serde_json::json!({"id": "zlib"}), zlib(&data, 1)),
        (serde_json::json!({"id": "lz4"}), lz4(&data)),
        (serde_json::json!([{"id": "zstd"}, {"id": "crc32c"}]), sealed(zstd(&data, 3, false, true))),
        (serde_json::json!([{"id": "shuffle", "elementsize": 4}, {"id": "lz4"}]), lz4(&shuffled(&data))),
    ] {
        let folder = tempfile::tempdir().unwrap();
        store(folder.path(), &codecs, &[chunk]);
        assert_eq!(open(folder.path(), Device::Cpu).next_batch().unwrap().host[0].as_slice(), data, "{codecs}");
    }
}
