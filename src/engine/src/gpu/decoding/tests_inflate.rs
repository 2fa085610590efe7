//! Compares the kernels for deflate streams with the same code on the host, and measures how fast they are.

use crate::gpu::driver::test_gpu::{Gpu, Random, bytes_of, gpu};
use crate::gpu::driver::{DecodeArrays, DeviceBuffer, Event, memset_async};
use dali_zarr_codecs::testing::sample;
use dali_zarr_kernels::{INFLATE, InflateKernel, host, inflate_kernel};
use flate2::write::DeflateEncoder;
use std::io::Write;

/// Bytes between outputs that the kernels must not change.
const GUARD: usize = 512;

fn deflate(data: &[u8], level: u32) -> Vec<u8> {
    let mut encoder = DeflateEncoder::new(Vec::new(), flate2::Compression::new(level));
    encoder.write_all(data).unwrap();
    encoder.finish().unwrap()
}

/// The kernels whose blocks have enough shared memory on this device, with their indexes in [`INFLATE`].
fn launchable(gpu: &Gpu) -> impl Iterator<Item = (usize, InflateKernel)> {
    let room = gpu.device.shared_memory() as u32;
    INFLATE.into_iter().enumerate().filter(move |(_, kernel)| kernel.shared <= room)
}

/// Raw deflate streams on the device, at any alignment, and room for their outputs.
struct Batch {
    /// For each stream: where its output begins, and the room for it in bytes.
    outputs: Vec<(usize, usize)>,
    arrays: [DeviceBuffer; 6],
    _input: DeviceBuffer,
    output: DeviceBuffer,
}

impl Batch {
    /// Uploads streams. Each is given with the room for its output in bytes.
    fn new(gpu: &Gpu, streams: &[(&[u8], usize)]) -> Self {
        let (mut input, mut ins, mut outputs, mut room) = (Vec::new(), Vec::new(), Vec::new(), 0);
        for &(bytes, capacity) in streams {
            ins.push((input.len() as u64, bytes.len() as u64));
            input.extend_from_slice(bytes);
            outputs.push((room, capacity));
            room += capacity + GUARD;
        }
        input.resize(input.len().next_multiple_of(4).max(4), 0);
        let input = gpu.upload(&input);
        let output = DeviceBuffer::alloc(&gpu.device, room).unwrap();
        let upload = |values: Vec<u64>| gpu.upload(&bytes_of(&values));
        let arrays = [
            upload(ins.iter().map(|i| input.ptr() + i.0).collect()),
            upload(ins.iter().map(|i| i.1).collect()),
            upload(outputs.iter().map(|o| o.1 as u64).collect()),
            upload(vec![u64::MAX; streams.len()]),
            upload(vec![u64::MAX; streams.len()]),
            upload(outputs.iter().map(|o| output.ptr() + o.0 as u64).collect()),
        ];
        Self { outputs, arrays, _input: input, output }
    }

    fn clear(&self, gpu: &Gpu) {
        // SAFETY: the whole buffer.
        unsafe { memset_async(&gpu.stream, self.output.ptr(), 0x5a, self.output.len()).unwrap() };
    }

    fn enqueue(&self, gpu: &Gpu, which: usize) {
        let [in_ptrs, in_sizes, out_caps, out_sizes, statuses, out_ptrs] =
            self.arrays.each_ref().map(DeviceBuffer::ptr);
        let arrays = DecodeArrays { in_ptrs, in_sizes, out_caps, out_sizes, statuses, out_ptrs, kinds: 0 };
        // SAFETY: all arrays have an entry for each stream, about live buffers, which the batch keeps.
        unsafe { gpu.module.launch_inflate_by(which, &gpu.stream, &arrays, self.outputs.len() as u32).unwrap() };
    }

    /// Returns for each stream its status and the number of bytes that it decoded to.
    fn statuses(&self, gpu: &Gpu) -> Vec<(i32, usize)> {
        let (sizes, statuses) = (gpu.download(&self.arrays[3]), gpu.download(&self.arrays[4]));
        let word = |from: &[u8], at: usize| u32::from_le_bytes(from[at..at + 4].try_into().unwrap());
        (0..self.outputs.len()).map(|i| (word(&statuses, 4 * i) as i32, word(&sizes, 8 * i) as usize)).collect()
    }

    /// As [`Self::statuses`], and for each stream also its output with the guard behind it.
    fn results(&self, gpu: &Gpu) -> Vec<(i32, usize, Vec<u8>)> {
        let bytes = gpu.download(&self.output);
        let output = |&(at, capacity): &(usize, usize)| bytes[at..at + capacity + GUARD].to_vec();
        self.statuses(gpu).into_iter().zip(&self.outputs).map(|(s, place)| (s.0, s.1, output(place))).collect()
    }
}

/// Returns good and damaged streams of all kinds, each with the room for its output.
fn streams(random: &mut Random) -> Vec<(Vec<u8>, usize)> {
    let mut streams: Vec<(Vec<u8>, usize)> = vec![(Vec::new(), 10), (vec![7], 10)];
    for len in [0usize, 1, 7, 258, 4096, 65_536, 131_073, 1_000_000] {
        for content in 0..5u8 {
            for level in [0, 1, 3, 6, 9] {
                streams.push((deflate(&sample(content, len), level), len));
            }
        }
        streams.push((deflate(&vec![3; len], 6), len));
        streams.push((deflate(&random.bytes(300).repeat(len / 300 + 1)[..len], 6), len));
    }
    for _ in 0..150 {
        let len = 100 + random.below(40_000) as usize;
        let good = deflate(&sample(random.below(5) as u8, len), random.below(10) as u32);
        for round in 0..10 {
            let mut bytes = good.clone();
            for _ in 0..round.min(1) + random.below(3) {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] = random.next() as u8;
            }
            if round == 1 {
                bytes.truncate(bytes.len() * 3 / 4);
            }
            streams.push((bytes, len - (round / 9) as usize * random.below(50) as usize));
        }
    }
    streams
}

/// DALI_ZARR_TEST_STREAMS limits the number of streams (roughly), for tools that slow the kernels down.
#[test]
fn gpu_inflates_as_the_host_does() {
    let Some(gpu) = gpu() else { return };
    let mut streams = streams(&mut Random(31));
    if let Some(most) = std::env::var("DALI_ZARR_TEST_STREAMS").ok().and_then(|n| n.parse::<usize>().ok()) {
        let step = streams.len().div_ceil(most.max(1));
        streams = streams.into_iter().filter(|(_, capacity)| *capacity < 70_000).step_by(step).collect();
    }
    let expected: Vec<(Result<usize, i32>, Vec<u8>)> = streams
        .iter()
        .map(|(bytes, capacity)| {
            let mut out = vec![0; *capacity];
            (host::inflate(bytes, &mut out, false), out)
        })
        .collect();
    let given: Vec<(&[u8], usize)> = streams.iter().map(|(bytes, capacity)| (&bytes[..], *capacity)).collect();
    let batch = Batch::new(&gpu, &given);
    for (which, InflateKernel { name, .. }) in launchable(&gpu) {
        batch.clear(&gpu);
        batch.enqueue(&gpu, which);
        let mut good = 0;
        for (i, (status, size, bytes)) in batch.results(&gpu).into_iter().enumerate() {
            let (result, out) = &expected[i];
            assert_eq!(if status == 0 { Ok(size) } else { Err(status) }, *result, "{name}, stream {i}");
            assert!(bytes[streams[i].1..].iter().all(|b| *b == 0x5a), "{name}, stream {i}: written beyond the end");
            if let Ok(n) = *result {
                assert!(bytes[..n] == out[..n], "{name}, stream {i}: wrong values");
                good += 1;
            }
        }
        println!("{name}: {} streams as on the host, {good} of them good", streams.len());
    }
}

/// Makes a field of float32 like those of weather models: smooth, with noise at all scales, rounded to 16 bits of its
/// range.
fn field(random: &mut Random, rows: usize, columns: usize) -> Vec<f32> {
    let mut sum = vec![0f32; rows * columns];
    for octave in 0..9 {
        let step = 256 >> octave;
        let (high, wide) = (rows / step + 2, columns / step + 2);
        let knots: Vec<f32> = (0..high * wide).map(|_| random.below(1 << 20) as f32 / (1 << 20) as f32).collect();
        let strength = (step as f32 / 256.0).powf(1.3);
        for (i, to) in sum.iter_mut().enumerate() {
            let (r, c) = (i / columns, i % columns);
            let (y, x) = ((r % step) as f32 / step as f32, (c % step) as f32 / step as f32);
            let knot = |dr: usize, dc: usize| knots[(r / step + dr) * wide + c / step + dc];
            let (top, bottom) = (knot(0, 0) * (1.0 - x) + knot(0, 1) * x, knot(1, 0) * (1.0 - x) + knot(1, 1) * x);
            *to += strength * (top * (1.0 - y) + bottom * y);
        }
    }
    sum.iter().map(|v| 230.0 + (v * 20_000.0).round() / 512.0).collect()
}

/// Prints the decoded bytes per second of each kernel for streams of 4 MB, and of small ones.
#[test]
#[ignore = "takes a minute and checks nothing but the values: for measurements"]
fn gpu_bench_inflate() {
    let Some(gpu) = gpu() else { return };
    let mut random = Random(8);
    let plain: Vec<Vec<u8>> = (0..4).map(|_| bytes_of(&field(&mut random, 721, 1440))).collect();
    let shuffled = plain.iter().map(|p| (0..4).flat_map(|b| p.iter().skip(b).step_by(4)).copied().collect()).collect();
    for (name, data) in [("float32", plain), ("float32, bytes shuffled", shuffled)] as [(&str, Vec<Vec<u8>>); 2] {
        for (len, counts) in
            [(data[0].len(), &[1, 16, 64, 256, 512][..]), (128 << 10, &[512, 8192]), (8 << 10, &[32768])]
        {
            let parts: Vec<&[u8]> = data.iter().flat_map(|d| d.chunks_exact(len).take(8)).collect();
            let packed: Vec<Vec<u8>> = parts.iter().map(|p| deflate(p, 5)).collect();
            let small: usize = packed.iter().map(Vec::len).sum();
            println!("{name}, level 5, {} KiB each, ratio {:.2}", len >> 10, (len * parts.len()) as f64 / small as f64);
            for &n in counts {
                let batch = Batch::new(&gpu, &(0..n).map(|i| (&packed[i % packed.len()][..], len)).collect::<Vec<_>>());
                let mut line = String::new();
                for (which, InflateKernel { name: kernel, .. }) in launchable(&gpu) {
                    batch.clear(&gpu);
                    batch.enqueue(&gpu, which);
                    assert!(batch.statuses(&gpu).iter().all(|&found| found == (0, len)), "{kernel}: not decoded");
                    // To compare a gigabyte would take longer than everything else.
                    if n * len < 300_000_000 {
                        for (i, (_, _, bytes)) in batch.results(&gpu).into_iter().enumerate() {
                            assert!(bytes[..len] == *parts[i % parts.len()], "{kernel}: wrong values");
                        }
                    }
                    let (start, end) = (Event::timed(&gpu.device).unwrap(), Event::timed(&gpu.device).unwrap());
                    start.record(&gpu.stream).unwrap();
                    for _ in 0..2 {
                        batch.enqueue(&gpu, which);
                    }
                    end.record(&gpu.stream).unwrap();
                    end.synchronize().unwrap();
                    let seconds = end.seconds_since(&start).unwrap() / 2.0;
                    line += &format!(", {kernel} {:.1}", (n * len) as f64 / seconds / 1e9);
                }
                let multiprocessors = gpu.device.multiprocessors() as u32;
                let chosen = INFLATE[inflate_kernel(n, multiprocessors, gpu.device.shared_memory() as u32)].name;
                println!("  {n:5} streams, GB/s{line}; chosen: {chosen}");
            }
        }
    }
}
