//! Compares `dz_assemble_between` with the same code on the host, for random boxes and operations; and measures it.
//!
//! `unsafe` is allowed here: kernels are launched on buffers of the test.

#![allow(unsafe_code)]

use std::time::Instant;

use crate::gpu::driver::AssembleArrays;
use crate::gpu::driver::test_gpu::{Gpu, Random, bytes_of, gpu};
use dali_zarr_base::dtype::DType;
use dali_zarr_kernels::{Job, Op, TILE, host};
use dali_zarr_samples::assemble::Ops;

/// The bytes of the source.
const SRC: usize = 8 << 20;
const CHANNELS: u64 = 900;

/// Makes a random box, in elements. Also returns the elements that its source and its output span.
fn random_box(random: &mut Random) -> (Job, u64, u64) {
    let ndim = 1 + random.below(4) as usize;
    let mut dims = vec![(1u32, 0i64, 0i64); ndim];
    let (mut src, mut dst) = (1i64, 1i64);
    for (d, dim) in dims.iter_mut().enumerate().rev() {
        let most = if d + 1 == ndim { [12_000, 300, 64][random.below(3) as usize] } else { 5 };
        // Many rows are multiples of four, which vectors need.
        let n = (1 + random.below(most)).next_multiple_of(if random.below(2) == 0 { 4 } else { 1 }) as i64;
        let step = [src, src, src, 0][random.below(4) as usize];
        *dim = (n as u32, step, dst);
        src += step * (n - 1);
        dst = dst * n + random.below(2) as i64 * 3;
    }
    (Job::new(0, 0, dims), src as u64, dst as u64)
}

fn random_op(random: &mut Random) -> Op {
    let number =
        |random: &mut Random| if random.below(2) == 0 { DType::F32 } else { DType::ALL[1 + random.below(12) as usize] };
    let (values, dst) = (number(random), number(random));
    let mut flag = || i32::from(random.below(2) == 0);
    let (has_norm, has_fillna) = (flag(), flag());
    // The stored type isn't that of the elements, which were decoded before.
    Op {
        decoded: values as i32,
        swap: 1,
        num_missing: 1,
        missing: [7, 0],
        has_scale: 1,
        scale: 0.25,
        has_norm,
        mean: 3.5,
        stddev: 0.75,
        has_fillna,
        fillna: -3.5,
        ..Op::cast(DType::I16 as i32, dst as i32)
    }
}

fn launch(gpu: &Gpu, jobs: &[Job], ops: &[Op]) -> u64 {
    let mut starts = vec![0u32];
    for job in jobs {
        let elements: u32 = job.extent[..job.ndim as usize].iter().product();
        starts.push(starts.last().unwrap() + elements.div_ceil(TILE));
    }
    let (n, tiles) = (jobs.len() as u32, *starts.last().unwrap());
    let (jobs, starts, ops) = (gpu.upload(&bytes_of(jobs)), gpu.upload(&bytes_of(&starts)), gpu.upload(&bytes_of(ops)));
    let counters = gpu.upload(&[0; 8]);
    let arrays =
        AssembleArrays { jobs: jobs.ptr(), tile_start: starts.ptr(), ops: ops.ptr(), counters: Some(counters.ptr()) };
    // SAFETY: the arrays are as described, and the stream is synchronised before they are freed; the caller vouches for
    // the boxes.
    unsafe { gpu.module.launch_between(&gpu.stream, &arrays, n, tiles).unwrap() };
    gpu.stream.synchronize().unwrap();
    u64::from_ne_bytes(gpu.download(&counters).try_into().unwrap())
}

#[test]
fn gpu_between_agrees_with_the_host() {
    let Some(gpu) = gpu() else { return };
    for round in 0..12u64 {
        let mut random = Random(round * 6121 + 3);
        let mut source = random.bytes(SRC);
        for (i, value) in source.chunks_exact_mut(4).enumerate().filter(|(i, _)| i % 3 == 0) {
            value.copy_from_slice(&(i as f32 * 0.37 - 9000.0).to_le_bytes());
        }
        let table: Vec<(f64, f64)> = (0..CHANNELS).map(|c| (c as f64 * 7.25 - 300.0, 0.3 + c as f64 / 9.0)).collect();
        let ops =
            Ops::with_tables((0..40).map(|number| {
                (random_op(&mut random), vec![7.0], if number < 30 { Vec::new() } else { table.clone() })
            }));
        let numbers = gpu.upload(&bytes_of(ops.numbers()));
        let (mut jobs, mut at) = (Vec::new(), 0u64);
        while jobs.len() < 60 {
            let (mut job, read, written) = random_box(&mut random);
            let index = random.below(ops.len() as u64) as usize;
            let (values, dst) = (DType::ALL[ops[index].decoded as usize], DType::ALL[ops[index].dst_dtype as usize]);
            job.op = index as u32;
            if index >= 30 {
                job.set_channels(random.below(u64::from(job.ndim)) as usize, 3, [1, 0][random.below(2) as usize]);
                // As many channels as the table has.
                let (dim, ..) = job.channels();
                if job.extent[dim] > CHANNELS as u32 - 4 {
                    continue;
                }
            }
            let apart = read.next_multiple_of(if random.below(2) == 0 { 4 } else { 1 });
            if (read + apart) * values.size() as u64 > SRC as u64 {
                continue;
            }
            let is_back = random.below(2) == 0;
            let weight = [0.0, 0.25, 1.0 / 3.0, 1.0][random.below(4) as usize];
            job.set_between(if is_back { -(apart as i64) } else { apart as i64 }, weight);
            job.src = if is_back { apart * values.size() as u64 } else { 0 };
            at = at.next_multiple_of(if random.below(2) == 0 { 16 } else { dst.size() as u64 });
            job.dst = at;
            at += written * dst.size() as u64;
            jobs.push(job);
        }
        let moved = |src: u64, dst: u64| -> Vec<Job> {
            let move_one = |job: &Job| {
                let mut job = *job;
                (job.src, job.dst) = (job.src + src, job.dst + dst);
                job
            };
            jobs.iter().map(move_one).collect()
        };
        let mut expected = vec![0xcdu8; at as usize];
        let mut counters = [0];
        let on_host = moved(source.as_ptr() as u64, expected.as_mut_ptr() as u64);
        // SAFETY: the boxes lie within the two buffers, and the table has all channels.
        unsafe { host::assemble(&on_host, &ops, &mut counters) };
        let (src, dst) = (gpu.upload(&source), gpu.upload(&vec![0xcdu8; at as usize]));
        let replaced = launch(&gpu, &moved(src.ptr(), dst.ptr()), &ops.at(numbers.ptr()));
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
fn gpu_between_bandwidth() {
    let Some(gpu) = gpu() else { return };
    let source = gpu.upload(&vec![0x3fu8; 1 << 30]);
    let out = gpu.upload(&vec![0u8; 1 << 30]);
    let field = 721 * 1440u64;
    let count = (1u64 << 30) / (field * 4) - 1;
    for (what, dst, has_norm) in [
        ("float32", DType::F32, 0),
        ("float32, normalised", DType::F32, 1),
        ("float32 to float16, normalised", DType::F16, 1),
    ] {
        let op = Op { has_norm, stddev: 3.0, decoded: DType::F32 as i32, ..Op::cast(DType::F32 as i32, dst as i32) };
        let job = |i: u64| {
            let to = out.ptr() + i * field * dst.size() as u64;
            let mut job = Job::new(source.ptr() + i * field * 4, to, [(field as u32, 1, 1)]);
            job.set_between(field as i64, 0.25);
            job
        };
        let jobs: Vec<Job> = (0..count).map(job).collect();
        let each = field.div_ceil(u64::from(TILE));
        let starts: Vec<u32> = (0..=count).map(|i| (i * each) as u32).collect();
        let (table, starts, ops) =
            (gpu.upload(&bytes_of(&jobs)), gpu.upload(&bytes_of(&starts)), gpu.upload(&bytes_of(&[op])));
        let arrays = AssembleArrays { jobs: table.ptr(), tile_start: starts.ptr(), ops: ops.ptr(), counters: None };
        // SAFETY: the arrays are as described; the boxes lie within the buffers; the stream is awaited below.
        let run = || unsafe {
            gpu.module.launch_between(&gpu.stream, &arrays, count as u32, (count * each) as u32).unwrap();
        };
        run();
        gpu.stream.synchronize().unwrap();
        let start = Instant::now();
        (0..10).for_each(|_| run());
        gpu.stream.synchronize().unwrap();
        let bytes = 10 * count * field * (8 + dst.size() as u64);
        println!("{what}: {:.0} GB/s", bytes as f64 / start.elapsed().as_secs_f64() / 1e9);
    }
}
