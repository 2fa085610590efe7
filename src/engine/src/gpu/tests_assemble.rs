//! Compares `dz_assemble` with the same code on the host, for random boxes and operations.
//!
//! `unsafe` is allowed here: kernels are launched on buffers of the test.

#![allow(unsafe_code)]

use crate::gpu::driver::AssembleArrays;
use crate::gpu::driver::test_gpu::{Gpu, Random, bytes_of, gpu};
use crate::gpu::plain_copies::{MIN_COPY, start_plain_copies};
use dali_zarr_base::dtype::DType;
use dali_zarr_kernels::{Job, Layout, NORM_TABLE, Op, Shuffle, Source, TILE, host};
use dali_zarr_samples::assemble::Ops;

/// The number of counters of replaced NaNs.
const COUNTERS: usize = 3;

/// Makes a random operation, and returns its missing values too if they don't fit in it. It replaces NaNs only if
/// `fills` is set.
fn op(random: &mut Random, fills: bool) -> (Op, Vec<f64>) {
    let dtypes = DType::ALL;
    let src = dtypes[random.below(12) as usize];
    let plain = random.below(3) == 0;
    let dst = if plain { src } else { dtypes[random.below(12) as usize] };
    let mut flag = || i32::from(!plain && random.below(3) == 0);
    let (has_scale, has_offset, has_norm, missing) = (flag(), flag(), flag(), 2 * flag());
    let flag_of_fillna = i32::from(fills && random.below(2) == 0);
    let mask = u64::MAX >> (64 - 8 * src.size());
    let common = Op {
        src_dtype: src as i32,
        dst_dtype: dst as i32,
        swap: random.below(2) as i32,
        num_missing: missing,
        has_scale,
        has_offset,
        has_norm,
        decoded: 0,
        missing: [random.next() & mask, 3 & mask],
        fill: random.next() & mask,
        scale: 0.01 * (random.below(1000) as f64 - 500.0),
        offset: 273.15,
        mean: random.below(1000) as f64 / 7.0,
        stddev: 1.0 + random.below(100) as f64 / 3.0,
        pad: random.below(10_000) as f64 / 3.0 - 1000.0,
        fillna: random.below(1000) as f64 / 3.0,
        has_fillna: flag_of_fillna,
        counter: random.below(COUNTERS as u64) as i32,
    };
    match random.below(6) {
        0 => {
            let factor = f64::from_bits(random.next());
            let op = Op {
                num_missing: 0,
                has_offset: 0,
                has_scale: 1,
                scale: factor,
                decoded: DType::I64 as i32,
                has_fillna: 0,
                ..common
            };
            (op, Vec::new())
        }
        1 => {
            let mut missing: Vec<f64> = (0..3 + random.below(200)).map(|i| i as f64 - 100.0).collect();
            missing.extend([f64::NEG_INFINITY, f64::INFINITY]);
            missing.sort_by(f64::total_cmp);
            (Op { num_missing: missing.len() as i32, ..common }, missing)
        }
        _ => (common, Vec::new()),
    }
}

/// Makes a random box whose source spans fewer than `src_len` elements. Also returns the elements that its output
/// spans.
fn random_box(random: &mut Random, src_len: u64) -> (Job, u64) {
    let ndim = 1 + random.below(4) as usize;
    let mut job = Job::new(0, 0, (0..ndim).map(|_| (1, 0, 0)));
    job.source = [0, 0, 0, 0, 1, 2][random.below(6) as usize];
    let (mut src, mut dst) = (1i64, 1i64);
    let dense = random.below(2) == 0;
    let mut lowest = 0i64;
    for d in (0..ndim).rev() {
        let largest = if d == ndim - 1 { 700 } else { [70, 40, 12, 5][ndim - 1 - d] };
        let extent = 1 + random.below(largest) as i64;
        job.extent[d] = extent as u32;
        job.src_stride[d] = match random.below(8) {
            0 if !dense => 0,
            1 if !dense => -src,
            _ => src,
        };
        job.dst_stride[d] = dst;
        if job.src_stride[d] < 0 {
            lowest -= src * (extent - 1);
        }
        src *= extent;
        dst *= extent;
        if !dense {
            src += 4 * random.below(3) as i64;
            dst += 4 * random.below(2) as i64;
        }
    }
    if src as u64 >= src_len {
        return random_box(random, src_len);
    }
    // `src` and `dst` count elements for now. The caller, which knows addresses and element sizes, changes them.
    job.src = (-lowest) as u64 + random.below((src_len - src as u64).min(9));
    job.dst = random.below(5);
    let span = job.dst + dst as u64;
    (job, span)
}

/// Makes a random shuffle for a chunk of `len` bytes with elements of `size` bytes. Its elements mostly have the same
/// size, as writers choose it.
fn random_layout(random: &mut Random, len: usize, size: usize) -> Layout {
    let typesize = if random.below(4) > 0 { size as u64 } else { 1 + random.below(255) };
    let blocksize = match random.below(4) {
        0 => 1 + random.below(100_000),
        1 => 8 * typesize * (1 + random.below(2000)),
        _ => typesize << (6 + random.below(10)),
    };
    let shuffle = [Shuffle::Byte, Shuffle::Bit][random.below(2) as usize];
    Layout {
        nbytes: len as u32,
        blocksize: blocksize as u32,
        shuffle: shuffle as u8,
        typesize: typesize as u8,
        reserved: 0,
    }
}

/// Runs jobs: by `dz_assemble_channels` if their operations have tables of channels, else by `dz_assemble_fill` if
/// `fills` is set, else by `dz_assemble`. Returns the counters of replaced NaNs.
fn run(gpu: &Gpu, jobs: &[Job], ops: &[Op], fills: bool) -> Vec<u64> {
    let mut starts = vec![0u32];
    for job in jobs {
        let count: u64 = job.extent[..job.ndim as usize].iter().map(|&e| u64::from(e)).product();
        starts.push(starts.last().unwrap() + count.div_ceil(u64::from(TILE)) as u32);
    }
    let by_channel = ops[jobs[0].op as usize].has_norm == NORM_TABLE;
    let (n, tiles) = (jobs.len() as u32, *starts.last().unwrap());
    let (jobs, starts, ops) = (gpu.upload(&bytes_of(jobs)), gpu.upload(&bytes_of(&starts)), gpu.upload(&bytes_of(ops)));
    let counters = gpu.upload(&[0; 8 * COUNTERS]);
    let arrays = AssembleArrays {
        jobs: jobs.ptr(),
        tile_start: starts.ptr(),
        ops: ops.ptr(),
        counters: fills.then_some(counters.ptr()),
    };
    // SAFETY: the arrays are as described, and the stream is synchronised before they are freed; the caller vouches for
    // the boxes.
    unsafe {
        match by_channel {
            true => gpu.module.launch_channels(&gpu.stream, &arrays, n, tiles).unwrap(),
            false => gpu.module.launch_assemble(&gpu.stream, &arrays, n, tiles).unwrap(),
        }
    };
    gpu.stream.synchronize().unwrap();
    let found = gpu.download(&counters);
    found.chunks_exact(8).map(|n| u64::from_ne_bytes(n.try_into().unwrap())).collect()
}

#[test]
fn gpu_assemble_agrees_with_the_host() {
    let Some(gpu) = gpu() else { return };
    const SRC: usize = 4 << 20;
    for round in 0..12u64 {
        let mut random = Random(round * 7919 + 1);
        let mut source = random.bytes(SRC);
        // Ordinary numbers: floats with random bits are seldom small.
        for (i, value) in source.chunks_exact_mut(4).enumerate().filter(|(i, _)| i % 3 == 0) {
            value.copy_from_slice(&(i as f32 * 0.37 - 9000.0).to_le_bytes());
        }
        let fills = round % 2 == 1;
        let ops = Ops::new((0..40).map(|_| op(&mut random, fills)));
        let numbers = gpu.upload(&bytes_of(ops.numbers()));
        let (mut jobs, mut at) = (Vec::new(), 0u64);
        for _ in 0..if round == 0 { 1 } else { 300 } {
            let index = random.below(ops.len() as u64) as usize;
            let (src, dst) = (DType::ALL[ops[index].src_dtype as usize], DType::ALL[ops[index].dst_dtype as usize]);
            let (mut job, span) = random_box(&mut random, (SRC / src.size()) as u64 - 64);
            job.op = index as u32;
            job.src *= src.size() as u64;
            if random.below(2) == 0 {
                // The chunk doesn't always end where an element or a block ends.
                let nbytes = SRC - random.below(64) as usize;
                job.layout = random_layout(&mut random, nbytes, src.size());
                (job.src_offset, job.src) = (job.src as u32, 0);
            }
            at = at.next_multiple_of(if random.below(2) == 0 { 16 } else { dst.size() as u64 });
            job.dst = at + job.dst * dst.size() as u64;
            at += span * dst.size() as u64;
            jobs.push(job);
        }
        let mut expected = vec![0xcdu8; at as usize];
        let moved = |src: u64, dst: u64| -> Vec<Job> {
            jobs.iter().map(|job| Job { src: job.src + src, dst: job.dst + dst, ..*job }).collect()
        };
        let mut counters = [0; COUNTERS];
        // SAFETY: the boxes lie within the two buffers.
        unsafe { host::assemble(&moved(source.as_ptr() as u64, expected.as_mut_ptr() as u64), &ops, &mut counters) };
        let (src, dst) = (gpu.upload(&source), gpu.upload(&vec![0xcdu8; at as usize]));
        let replaced = run(&gpu, &moved(src.ptr(), dst.ptr()), &ops.at(numbers.ptr()), fills);
        assert_eq!(replaced, counters, "round {round}: how many NaNs were replaced");
        let found = gpu.download(&dst);
        for job in &jobs {
            let op = &ops[job.op as usize];
            let size = DType::ALL[op.dst_dtype as usize].size();
            let n = job.ndim as usize;
            let span: i64 = (0..n).map(|d| i64::from(job.extent[d] - 1) * job.dst_stride[d]).sum::<i64>() + 1;
            let range = job.dst as usize..job.dst as usize + span as usize * size;
            let wrong = found[range.clone()].iter().zip(&expected[range.clone()]).position(|(a, b)| a != b);
            if let Some(byte) = wrong {
                let element = range.start + byte / size * size;
                panic!(
                    "round {round}, {job:?}, {op:?}: element at byte {byte} is {:02x?}, expected {:02x?}",
                    &found[element..element + size],
                    &expected[element..element + size]
                );
            }
        }
        assert!(found == expected, "round {round}: something outside the boxes was written");
    }
}

/// Boxes of channels of every kind: types with and without specialised code; chunks that are not shuffled, shuffled,
/// and missing.
#[test]
fn gpu_channels_agree_with_the_host() {
    let Some(gpu) = gpu() else { return };
    const SRC: usize = 4 << 20;
    const CHANNELS: u64 = 900;
    for round in 0..12u64 {
        let mut random = Random(round * 6151 + 5);
        let mut source = random.bytes(SRC);
        for (i, value) in source.chunks_exact_mut(4).enumerate().filter(|(i, _)| i % 3 == 0) {
            value.copy_from_slice(&(i as f32 * 0.37 - 9000.0).to_le_bytes());
        }
        let table: Vec<(f64, f64)> = (0..CHANNELS).map(|c| (c as f64 * 7.25 - 300.0, 0.3 + c as f64 / 9.0)).collect();
        let ops = Ops::with_tables((0..40).map(|number| {
            let (op, missing) = op(&mut random, round % 2 == 1);
            let common = [DType::F32, DType::U8, DType::U16].map(|d| d as i32);
            let dtypes = (common.get(number).copied().unwrap_or(op.src_dtype), op.dst_dtype);
            let (src_dtype, dst_dtype) = if number < 3 { (dtypes.0, DType::F32 as i32) } else { dtypes };
            (Op { src_dtype, dst_dtype, ..op }, missing, table.clone())
        }));
        let numbers = gpu.upload(&bytes_of(ops.numbers()));
        let (mut jobs, mut at) = (Vec::new(), 0u64);
        for _ in 0..300 {
            let index = random.below(ops.len() as u64) as usize;
            let (src, dst) = (DType::ALL[ops[index].src_dtype as usize], DType::ALL[ops[index].dst_dtype as usize]);
            let (mut job, span) = random_box(&mut random, (SRC / src.size()) as u64 - 64);
            (job.op, job.source) = (index as u32, job.source % 2);
            job.src *= src.size() as u64;
            job.set_channels(
                random.below(u64::from(job.ndim)) as usize,
                random.below(200) as i64,
                random.below(2) as i64,
            );
            if random.below(2) == 0 {
                let nbytes = SRC - random.below(64) as usize;
                job.layout = random_layout(&mut random, nbytes, src.size());
                (job.src_offset, job.src) = (job.src as u32, 0);
            }
            at = at.next_multiple_of(dst.size() as u64);
            job.dst = at + job.dst * dst.size() as u64;
            at += span * dst.size() as u64;
            jobs.push(job);
        }
        let moved = |src: u64, dst: u64| -> Vec<Job> {
            jobs.iter().map(|job| Job { src: job.src + src, dst: job.dst + dst, ..*job }).collect()
        };
        let (mut expected, mut counters) = (vec![0xcdu8; at as usize], [0; COUNTERS]);
        // SAFETY: the boxes lie within the two buffers, and the tables have more channels than jobs name.
        unsafe { host::assemble(&moved(source.as_ptr() as u64, expected.as_mut_ptr() as u64), &ops, &mut counters) };
        let (src, dst) = (gpu.upload(&source), gpu.upload(&vec![0xcdu8; at as usize]));
        let replaced = run(&gpu, &moved(src.ptr(), dst.ptr()), &ops.at(numbers.ptr()), round % 2 == 1);
        assert_eq!(replaced, counters, "round {round}: how many NaNs were replaced");
        let found = gpu.download(&dst);
        let wrong = found.iter().zip(&expected).position(|(a, b)| a != b);
        if let Some(byte) = wrong {
            let job = jobs.iter().rev().find(|job| job.dst <= byte as u64).unwrap();
            panic!("round {round}: byte {byte} differs: {job:?}, {:?}", ops[job.op as usize]);
        }
    }
}

#[test]
fn gpu_assemble_finds_the_job_of_each_tile_among_many() {
    let Some(gpu) = gpu() else { return };
    // Sizes around the tile, and many jobs of one element: the search has one, two, three and four rounds.
    for n in [1u64, 31, 33, 1025, 40_000] {
        let mut random = Random(n);
        let lengths: Vec<u32> = (0..n).map(|i| if i % 50 == 49 { TILE * 2 + i as u32 % 3 } else { 1 }).collect();
        let total: u64 = lengths.iter().map(|&l| u64::from(l)).sum();
        let source = random.bytes(total as usize);
        let (src, dst) = (gpu.upload(&source), gpu.upload(&vec![0; total as usize]));
        let mut at = 0;
        let jobs: Vec<Job> = lengths
            .iter()
            .map(|&len| {
                let job = Job::new(src.ptr() + at, dst.ptr() + at, [(len, 1, 1)]);
                at += u64::from(len);
                job
            })
            .collect();
        let plain = Op::cast(DType::U8 as i32, DType::U8 as i32);
        run(&gpu, &jobs, &[plain], false);
        assert!(gpu.download(&dst) == source, "{n} jobs");
    }
}

#[test]
fn gpu_copies_what_is_only_copied_and_leaves_the_rest_to_the_kernel() {
    let Some(gpu) = gpu() else { return };
    const LEN: usize = MIN_COPY / 4;
    let mut random = Random(17);
    let source = random.bytes(8 * MIN_COPY);
    let plain = Op::cast(DType::F32 as i32, DType::F32 as i32);
    let ops = [plain, Op { swap: 1, ..plain }];
    let whole = |n: usize| [(n as u32, 1, 1)];
    let shuffle = Layout {
        nbytes: 4 * LEN as u32,
        blocksize: 4 * LEN as u32,
        shuffle: Shuffle::Byte as u8,
        typesize: 4,
        reserved: 0,
    };
    // Each job writes its own part of the output. Jobs with neighbouring sources have neighbouring
    // parts.
    let job = |at: u64, src: u64| Job::new(src + 4 * LEN as u64 * at, 8 * LEN as u64 * at, whole(LEN));
    let jobs = |src: u64, dst: u64| -> Vec<Job> {
        let jobs = [
            job(0, src),
            job(1, src),
            Job { op: 1, ..job(2, src) },
            Job { layout: shuffle, ..job(3, src) },
            Job { source: Source::Fill as u32, ..job(4, src) },
            Job { extent: Job::new(0, 0, whole(LEN - 1)).extent, ..job(5, src) },
            Job { extent: Job::new(0, 0, whole(2 * LEN)).extent, ..job(6, src) },
            // Rows with gaps.
            Job::new(job(5, src).src, job(7, src).dst, [(2, LEN as i64, LEN as i64 + 1), (LEN as u32 - 1, 1, 1)]),
        ];
        jobs.map(|job| Job { dst: job.dst + dst, ..job }).to_vec()
    };
    let bytes = 8 * 8 * LEN;
    let mut expected = vec![0xcdu8; bytes];
    // SAFETY: the boxes lie within the two buffers.
    unsafe { host::assemble(&jobs(source.as_ptr() as u64, expected.as_mut_ptr() as u64), &ops, &mut []) };
    let (src, dst) = (gpu.upload(&source), gpu.upload(&vec![0xcdu8; bytes]));
    let jobs = jobs(src.ptr(), dst.ptr());
    // SAFETY: as above; the buffers live until the downloads have awaited the stream.
    let others = unsafe { start_plain_copies(&gpu.stream, jobs.iter(), &ops) }.unwrap();
    assert_eq!(others.iter().map(|job| job.dst).collect::<Vec<_>>(), [2, 3, 4, 5, 7].map(|i| jobs[i].dst));
    let found = gpu.download(&dst);
    for (at, len) in [(0, LEN), (1, LEN), (6, 2 * LEN)] {
        let part = 8 * LEN * at..8 * LEN * at + 4 * len;
        assert!(found[part.clone()] == expected[part], "the copy of job {at}");
    }
    let others: Vec<Job> = others.into_iter().copied().collect();
    run(&gpu, &others, &ops, false);
    assert!(gpu.download(&dst) == expected, "all jobs");
}
