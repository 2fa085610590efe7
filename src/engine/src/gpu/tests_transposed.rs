//! Compares `dz_assemble_transposed` with the same code on the host, for random boxes and operations; and measures it.
//!
//! `unsafe` is allowed here: kernels are launched on buffers of the test.

#![allow(unsafe_code)]

use std::time::Instant;

use crate::gpu::driver::AssembleArrays;
use crate::gpu::driver::test_gpu::{Gpu, Random, bytes_of, gpu};
use dali_zarr_base::dtype::DType;
use dali_zarr_kernels::{Job, Layout, Op, Shuffle, host};
use dali_zarr_samples::assemble::Ops;

/// The elements of the source.
const SRC: usize = 4 << 20;
const CHANNELS: u64 = 900;

/// Makes a random transposed box, in elements. Also returns the elements that its output spans. `None` if the source is too
/// large for it.
fn random_box(random: &mut Random) -> Option<(Job, u64)> {
    let ndim = 2 + random.below(3) as usize;
    let most = [[700, 300], [3, 5000], [5000, 3], [90, 90]][random.below(4) as usize];
    let lens: Vec<i64> = (0..ndim).map(|d| 1 + random.below(*most.get(d).unwrap_or(&3)) as i64).collect();
    let (mut src, mut dst, mut back) = (1i64, 1i64, 0);
    let mut dims = vec![(1u32, 0i64, 0i64); ndim];
    for (d, dim) in dims.iter_mut().enumerate() {
        let step = [src, src, src, -src, 2 * src][random.below(5) as usize];
        (dim.0, dim.1) = (lens[d] as u32, step);
        back += if step < 0 { -step * (lens[d] - 1) } else { 0 };
        src += step.abs() * (lens[d] - 1) + random.below(3) as i64;
    }
    for d in [1, 0, 2, 3].into_iter().filter(|&d| d < ndim) {
        dims[d].2 = dst;
        dst = dst * lens[d] + random.below(2) as i64 * 3;
    }
    let outer: Vec<_> = (2..ndim).rev().map(|d| dims[d]).collect();
    let job = Job::new(back as u64, 0, outer.into_iter().chain([dims[0], dims[1]]));
    (job.is_transposed() && src + back < SRC as i64 / 8 - 64).then_some((job, dst as u64))
}

/// Makes a random operation between types of every size, and returns its missing values too if they don't fit in it.
fn random_op(random: &mut Random) -> (Op, Vec<f64>) {
    let dtypes = DType::ALL;
    let common = [DType::U8, DType::F32, DType::U16];
    let src = if random.below(2) == 0 { common[random.below(3) as usize] } else { dtypes[random.below(13) as usize] };
    let is_plain = random.below(3) == 0;
    let dst = match random.below(3) {
        _ if is_plain => src,
        0 => dtypes[random.below(13) as usize],
        _ => DType::F32,
    };
    let mut flag = || i32::from(!is_plain && random.below(3) == 0);
    let (has_scale, has_norm, missing, has_fillna) = (flag(), flag(), flag(), flag());
    let op = Op {
        swap: random.below(2) as i32,
        num_missing: missing,
        missing: [7, 0],
        has_scale,
        scale: 0.25,
        has_norm,
        mean: 3.5,
        stddev: 0.75,
        has_fillna,
        fillna: -3.5,
        ..Op::cast(src as i32, dst as i32)
    };
    if random.below(6) > 0 || is_plain {
        return (op, Vec::new());
    }
    let many: Vec<f64> = (0..40).map(|i| f64::from(i * 5)).collect();
    (Op { num_missing: 40, ..op }, many)
}

fn launch(gpu: &Gpu, jobs: &[Job], host_ops: &[Op], ops: &[Op]) -> u64 {
    let mut starts = vec![0u32];
    for job in jobs {
        let size = DType::ALL[host_ops[job.op as usize].dst_dtype as usize].size();
        starts.push(starts.last().unwrap() + job.transposed_tiles(size).unwrap() as u32);
    }
    let (n, tiles) = (jobs.len() as u32, *starts.last().unwrap());
    let (jobs, starts, ops) = (gpu.upload(&bytes_of(jobs)), gpu.upload(&bytes_of(&starts)), gpu.upload(&bytes_of(ops)));
    let counters = gpu.upload(&[0; 8]);
    let arrays =
        AssembleArrays { jobs: jobs.ptr(), tile_start: starts.ptr(), ops: ops.ptr(), counters: Some(counters.ptr()) };
    // SAFETY: the arrays are as described, and the stream is synchronised before they are freed; the caller vouches for
    // the boxes.
    unsafe { gpu.module.launch_transposed(&gpu.stream, &arrays, n, tiles).unwrap() };
    gpu.stream.synchronize().unwrap();
    u64::from_ne_bytes(gpu.download(&counters).try_into().unwrap())
}

#[test]
fn gpu_transposed_agrees_with_the_host() {
    let Some(gpu) = gpu() else { return };
    for round in 0..12u64 {
        let mut random = Random(round * 5147 + 3);
        let mut source = random.bytes(SRC);
        for (i, value) in source.chunks_exact_mut(4).enumerate().filter(|(i, _)| i % 3 == 0) {
            value.copy_from_slice(&(i as f32 * 0.37 - 9000.0).to_le_bytes());
        }
        let table: Vec<(f64, f64)> = (0..CHANNELS).map(|c| (c as f64 * 7.25 - 300.0, 0.3 + c as f64 / 9.0)).collect();
        let ops = Ops::with_tables((0..40).map(|number| {
            let (op, missing) = random_op(&mut random);
            (op, missing, if number < 30 { Vec::new() } else { table.clone() })
        }));
        let numbers = gpu.upload(&bytes_of(ops.numbers()));
        let (mut jobs, mut at) = (Vec::new(), 0u64);
        while jobs.len() < 60 {
            let Some((mut job, span)) = random_box(&mut random) else { continue };
            let index = random.below(ops.len() as u64) as usize;
            let (src, dst) = (DType::ALL[ops[index].src_dtype as usize], DType::ALL[ops[index].dst_dtype as usize]);
            job.op = index as u32;
            if index >= 30 {
                job.set_channels(random.below(u64::from(job.ndim)) as usize, 3, [1, 0][random.below(2) as usize]);
                // As many channels as the table has.
                let (dim, ..) = job.channels();
                if job.extent[dim] > CHANNELS as u32 - 4 {
                    continue;
                }
            }
            job.src *= src.size() as u64;
            if random.below(3) == 0 {
                let shuffle = [Shuffle::Byte, Shuffle::Bit][random.below(2) as usize] as u8;
                let typesize = if random.below(3) > 0 { src.size() as u8 } else { 3 };
                let blocksize = (u32::from(typesize) << (5 + random.below(10))) + random.below(2) as u32;
                job.layout = Layout { nbytes: SRC as u32, blocksize, shuffle, typesize, reserved: 0 };
                (job.src_offset, job.src) = (job.src as u32, 0);
            }
            at = at.next_multiple_of(dst.size() as u64);
            job.dst = at;
            at += span * dst.size() as u64;
            jobs.push(job);
        }
        let moved = |src: u64, dst: u64| -> Vec<Job> {
            jobs.iter().map(|job| Job { src: job.src + src, dst: job.dst + dst, ..*job }).collect()
        };
        let mut expected = vec![0xcdu8; at as usize];
        let mut counters = [0];
        for job in moved(source.as_ptr() as u64, expected.as_mut_ptr() as u64) {
            // SAFETY: the boxes lie within the two buffers, and the table has all channels.
            unsafe { host::assemble_transposed(&job, &ops[job.op as usize], &mut counters) };
        }
        let (src, dst) = (gpu.upload(&source), gpu.upload(&vec![0xcdu8; at as usize]));
        let replaced = launch(&gpu, &moved(src.ptr(), dst.ptr()), &ops, &ops.at(numbers.ptr()));
        assert_eq!(replaced, counters[0], "round {round}: how many NaNs were replaced");
        let found = gpu.download(&dst);
        if let Some(byte) = found.iter().zip(&expected).position(|(a, b)| a != b) {
            let job = jobs.iter().rev().find(|job| job.dst <= byte as u64).unwrap();
            panic!("round {round}: byte {byte} differs: {job:?}, {:?}", ops[job.op as usize]);
        }
    }
}

/// Prints the bytes read and written per second.
#[test]
#[ignore = "checks nothing but speed: for measurements"]
fn gpu_transposed_bandwidth() {
    let Some(gpu) = gpu() else { return };
    let source = gpu.upload(&vec![0x3fu8; 1 << 30]);
    let out = gpu.upload(&vec![0u8; 1 << 30]);
    let op = |src: DType, dst: DType, has_norm: i32| Op { has_norm, stddev: 255.0, ..Op::cast(src as i32, dst as i32) };
    let (u8, f32) = (DType::U8, DType::F32);
    // An image of 96 x 96 x 3, with colours first: 16 images in a box. Fields of 100 variables and 40320 cells, with variables
    // last. And the same fields as they come, by this kernel's rival.
    let image = [(16u32, 27648i64, 27648i64), (3, 1, 9216), (9216, 3, 1)];
    let field = [(40_320u32, 1i64, 100i64), (100, 40_320, 1)];
    for (what, dims, op) in [
        ("uint8 images to float32 in [0, 1], colours first", &image[..], op(u8, f32, 1)),
        ("uint8 images, colours first", &image, op(u8, u8, 0)),
        ("float32 images, normalised, colours first", &image, op(f32, f32, 1)),
        ("float32 fields, variables last", &field, op(f32, f32, 0)),
        ("float32 fields, normalised, variables last", &field, op(f32, f32, 1)),
    ] {
        let elements: u64 = dims.iter().map(|dim| u64::from(dim.0)).product();
        let [from, to] = [op.src_dtype, op.dst_dtype].map(|dtype| DType::ALL[dtype as usize].size() as u64);
        let count = (1u64 << 30) / (elements * to);
        let jobs: Vec<Job> = (0..count)
            .map(|i| Job::new(source.ptr() + i * elements * from, out.ptr() + i * elements * to, dims.iter().copied()))
            .collect();
        let mut rates = Vec::new();
        for is_tiled in [true, false] {
            let each = if is_tiled { jobs[0].transposed_tiles(to as usize).unwrap() } else { elements.div_ceil(8192) };
            let starts: Vec<u32> = (0..=count).map(|i| (i * each) as u32).collect();
            let (table, starts, ops) =
                (gpu.upload(&bytes_of(&jobs)), gpu.upload(&bytes_of(&starts)), gpu.upload(&bytes_of(&[op])));
            let arrays = AssembleArrays { jobs: table.ptr(), tile_start: starts.ptr(), ops: ops.ptr(), counters: None };
            let run = || {
                let (n, tiles) = (count as u32, (count * each) as u32);
                // SAFETY: the arrays are as described; the boxes lie within the buffers; the stream is awaited below.
                unsafe {
                    match is_tiled {
                        true => gpu.module.launch_transposed(&gpu.stream, &arrays, n, tiles).unwrap(),
                        false => gpu.module.launch_assemble(&gpu.stream, &arrays, n, tiles).unwrap(),
                    }
                }
            };
            run();
            gpu.stream.synchronize().unwrap();
            let start = Instant::now();
            (0..10).for_each(|_| run());
            gpu.stream.synchronize().unwrap();
            rates.push(10.0 * (count * elements * (from + to)) as f64 / start.elapsed().as_secs_f64() / 1e9);
        }
        println!("{what}: {:.0} GB/s, and {:.0} by dz_assemble", rates[0], rates[1]);
    }
}
