//! Transposed boxes give the same values as their elements one by one: in this module, and in the kernel's source.
//!
//! `unsafe` is allowed here: jobs hold addresses of the tests' vectors.

#![allow(unsafe_code)]

use super::*;
use crate::geometry::Norm;
use dali_zarr_kernels::host;
use half::{bf16, f16};

/// A generator of numbers that look random.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 7) ^ (self.0 << 23)
    }

    fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 11) % n
    }
}

const CHANNELS: usize = 900;

fn pair(channel: usize) -> (f64, f64) {
    (channel as f64 * 7.25 - 300.0, 0.3 + channel as f64 / 9.0)
}

/// Makes a random transposed box, in elements, and returns the elements of its source and of its output.
fn random_box(random: &mut Random) -> (Job, usize, usize) {
    let ndim = 2 + random.below(3) as usize;
    let most = [[700, 40], [40, 300], [90, 90], [9, 700]][random.below(4) as usize];
    let lens: Vec<i64> = (0..ndim).map(|d| 1 + random.below(*most.get(d).unwrap_or(&3)) as i64).collect();
    // The first dimension is the nearest in the source, the second one in the output.
    let (mut src, mut dst) = (1i64, 1i64);
    let mut dims = vec![(1u32, 0i64, 0i64); ndim];
    let mut back = 0;
    for (d, dim) in dims.iter_mut().enumerate() {
        let step = [src, src, src, -src, 2 * src][random.below(5) as usize];
        (dim.0, dim.1) = (lens[d] as u32, step);
        back += if step < 0 { -step * (lens[d] - 1) } else { 0 };
        src += step.abs() * (lens[d] - 1) + random.below(3) as i64;
    }
    let by_output = [1, 0, 2, 3];
    for d in by_output.into_iter().filter(|&d| d < ndim) {
        dims[d].2 = dst;
        dst = dst * lens[d] + random.below(2) as i64 * 3;
    }
    let outer = (2..ndim).rev().map(|d| dims[d]).collect::<Vec<_>>();
    let job = Job::new(back as u64, 0, outer.into_iter().chain([dims[0], dims[1]]));
    (job, (src + back + 1) as usize, dst as usize)
}

fn is_nan(bytes: &[u8], dtype: DType) -> bool {
    match dtype {
        DType::F16 => f16::from_le_bytes(bytes.try_into().unwrap()).is_nan(),
        DType::BF16 => bf16::from_le_bytes(bytes.try_into().unwrap()).is_nan(),
        DType::F32 => f32::from_le_bytes(bytes.try_into().unwrap()).is_nan(),
        DType::F64 => f64::from_le_bytes(bytes.try_into().unwrap()).is_nan(),
        _ => false,
    }
}

/// Calls `f` with the index of each element of a box.
fn each(job: &Job, mut f: impl FnMut(&[i64])) {
    let n = job.ndim as usize;
    let mut at = vec![0i64; n];
    loop {
        f(&at);
        let Some(d) = (0..n).rev().find(|&d| at[d] + 1 < i64::from(job.extent[d])) else { return };
        at[d] += 1;
        at[d + 1..].fill(0);
    }
}

#[test]
fn transposed_boxes_give_what_their_elements_give() {
    let mut random = Random(29);
    let (mut far, mut tiles) = (0, 0);
    for (round, (src, dst)) in
        DType::ALL.iter().flat_map(|s| DType::ALL.map(|d| (*s, d))).cycle().take(1500).enumerate()
    {
        let (mut job, read, written) = random_box(&mut random);
        let elements: u64 = job.extent[..job.ndim as usize].iter().map(|&n| u64::from(n)).product();
        if !job.is_transposed() || elements > 30_000 {
            continue;
        }
        let mask = u64::MAX >> (64 - 8 * src.size());
        let stored: Vec<u8> = (0..read)
            .flat_map(|i| {
                let small = if i % 3 == 0 { u64::from((i as f32 * 0.37 - 50.0).to_bits()) } else { random.next() };
                (small & mask).to_le_bytes()[..src.size()].to_vec()
            })
            .collect();
        let many = (0..40).map(|i| (i * 37) & mask).collect();
        let decoding = match random.below(6) {
            0 => Decoding {
                missing: vec![7, 9 & mask],
                scale: Some(0.1),
                decoded: Some(DType::F32),
                ..Decoding::default()
            },
            1 => Decoding { missing: many, offset: Some(273.15), decoded: Some(DType::F64), ..Decoding::default() },
            2 => Decoding { int_scale: Some(3), decoded: Some(DType::I64), ..Decoding::default() },
            _ => Decoding::default(),
        };
        let fillna = (decoding.int_scale.is_none() && random.below(3) == 0).then_some(-3.5);
        let is_normal = random.below(2) == 0;
        let channels = random.below(3) == 0;
        let dim = random.below(u64::from(job.ndim)) as usize;
        let (first, step) = ([0, 3][random.below(2) as usize], [1, 1, 0][random.below(3) as usize]);
        if channels {
            job.set_channels(dim, first, step);
        }
        let swap = random.below(2) == 0;
        let norm = |c: usize| Norm {
            array: 0,
            fillna,
            mean_stddev: (channels || is_normal).then(|| pair(c)),
            fill: 2.5,
            dtype: dst,
            imaginary: false,
        };
        let of = |c: usize| op(src, 5, &decoding, &norm(c), swap);
        let (with_table, missing) = of(0);
        let alone = (0..CHANNELS).map(of).map(|(op, missing)| (op, missing, Vec::new()));
        let ops = Ops::with_tables(alone.chain([(with_table, missing, (0..CHANNELS).map(pair).collect())]));
        let used = &ops[if channels { CHANNELS } else { 0 }];
        let (from, to) = (src.size(), dst.size());
        let mut outs = [0, 1, 2].map(|_| vec![0xcdu8; written * to]);
        let mut replaced = [0u64; 3];
        let place = |job: &Job, out: &mut [u8]| Job {
            src: stored.as_ptr() as u64 + job.src * from as u64,
            dst: out.as_mut_ptr() as u64,
            op: if channels { CHANNELS as u32 } else { 0 },
            ..*job
        };
        let at = place(&job, &mut outs[0]);
        // SAFETY: both vectors have room for the box; the table has more channels than jobs name.
        replaced[0] = unsafe { run(&at, used) };
        let at = place(&job, &mut outs[1]);
        // SAFETY: as above.
        let count = unsafe { host::assemble_transposed(&at, used, &mut replaced[1..2]) };
        assert_eq!(Some(count), at.transposed_tiles(to), "{at:?}");
        tiles += count;
        far += u64::from(transposed::is_far(&at));
        let base = place(&job, &mut outs[2]);
        each(&job, |index| {
            let sum = |strides: &[i64], size: usize| {
                index.iter().zip(strides).map(|(i, stride)| i * stride).sum::<i64>() * size as i64
            };
            let channel = if channels { first + step * index[dim] } else { 0 };
            let one = Job::new(
                (base.src as i64 + sum(&job.src_stride, from)) as u64,
                (base.dst as i64 + sum(&job.dst_stride, to)) as u64,
                [(1, 1, 1)],
            );
            // SAFETY: an element of the box.
            replaced[2] += unsafe { run(&one, &ops[channel as usize]) };
        });
        let what = format!("round {round}: {src} to {dst}, {job:?}, {decoding:?}, fillna {fillna:?}");
        assert_eq!(replaced, [replaced[2]; 3], "{what}");
        for (k, name) in ["the CPU", "the kernel's source"].into_iter().enumerate() {
            if outs[k] == outs[2] {
                continue;
            }
            for (i, (a, b)) in outs[k].chunks(to).zip(outs[2].chunks(to)).enumerate() {
                let same = a == b || k == 1 && is_nan(a, dst) && is_nan(b, dst);
                assert!(same, "{name}, {what}: element {i}: {a:02x?}, expected {b:02x?}");
            }
        }
    }
    assert!(far > 300 && tiles > 2000, "{far} boxes were taken block by block, and {tiles} tiles");
}

#[test]
fn tiles_fit_into_shared_memory() {
    // `host::assemble_transposed` fails if they don't.
    let plain = |dtype: DType| Op::cast(dtype as i32, dtype as i32);
    for dtype in [DType::U8, DType::F32, DType::F64] {
        for near in (1..140).chain([1000, 4095, 4096, 4097]) {
            for far in (1..140).chain([1000, 2047, 2049]) {
                if near * far > 40_000 {
                    continue;
                }
                let room = vec![0x77u8; (near as usize + 2 * far as usize) * dtype.size()];
                let mut out = vec![0u8; near as usize * dtype.size()];
                let last = 2 * (u64::from(far) - 1) * dtype.size() as u64;
                let (src, dst) = (room.as_ptr() as u64 + last, out.as_mut_ptr() as u64);
                let job = Job::new(src, dst, [(near, 1, 1), (far, -2, 0)]);
                // SAFETY: the source has room for the box, and all elements of a row go to one place.
                let count = unsafe { host::assemble_transposed(&job, &plain(dtype), &mut []) };
                assert_eq!(Some(count), job.transposed_tiles(dtype.size()), "{near} x {far}");
                assert!(out.iter().all(|&byte| byte == 0x77));
            }
        }
    }
}

/// Prints how long images and fields take.
#[test]
#[ignore = "checks nothing but speed: for measurements"]
fn transposed_speed() {
    let timed = |what: &str, job: &Job, op: &Op, bytes: usize| {
        let mut least = f64::MAX;
        for _ in 0..20 {
            let start = std::time::Instant::now();
            // SAFETY: the box lies within the two vectors.
            unsafe { run(job, op) };
            least = least.min(start.elapsed().as_secs_f64());
        }
        println!("{what}: {:.3} ms, {:.1} GB/s", 1e3 * least, bytes as f64 / least / 1e9);
    };
    let of = |src: DType, dst: DType, has_norm: i32| Op { has_norm, stddev: 255.0, ..Op::cast(src as i32, dst as i32) };
    let images: Vec<u8> = (0..16 * 96 * 96 * 3).map(|i: u32| ((i * 37) >> 3) as u8).collect();
    let floats: Vec<f32> = images.iter().map(|&v| f32::from(v)).collect();
    let mut out = vec![0f32; images.len()];
    let image = [(16, 27_648, 27_648), (3, 1, 9216), (9216, 3, 1)];
    let upright = [(16 * 27_648, 1, 1)];
    let n = images.len();
    for (what, src, from, op, dims) in [
        ("uint8 images to [0, 1], colours first", images.as_ptr() as u64, 1, of(DType::U8, DType::F32, 1), &image[..]),
        ("uint8 images to [0, 1], as they are", images.as_ptr() as u64, 1, of(DType::U8, DType::F32, 1), &upright),
        ("uint8 images to float32, colours first", images.as_ptr() as u64, 1, of(DType::U8, DType::F32, 0), &image),
        ("float32 images to [0, 1], colours first", floats.as_ptr() as u64, 4, of(DType::F32, DType::F32, 1), &image),
        ("float32 images, colours first", floats.as_ptr() as u64, 4, of(DType::F32, DType::F32, 0), &image),
    ] {
        let job = Job::new(src, out.as_mut_ptr() as u64, dims.iter().copied());
        timed(what, &job, &op, n * (from + 4));
    }
    let fields: Vec<f32> = (0..100 * 40_320).map(|i: u32| (i % 1000) as f32).collect();
    let mut out = vec![0f32; fields.len()];
    for (what, op, dims) in [
        ("float32 fields, variables last", of(DType::F32, DType::F32, 0), &[(40_320, 1, 100), (100, 40_320, 1)][..]),
        (
            "float32 fields, normalised, variables last",
            of(DType::F32, DType::F32, 1),
            &[(40_320, 1, 100), (100, 40_320, 1)],
        ),
        ("float32 fields, as they are", of(DType::F32, DType::F32, 0), &[(4_032_000, 1, 1)]),
        ("float32 fields, normalised, as they are", of(DType::F32, DType::F32, 1), &[(4_032_000, 1, 1)]),
    ] {
        let job = Job::new(fields.as_ptr() as u64, out.as_mut_ptr() as u64, dims.iter().copied());
        timed(what, &job, &op, 8 * fields.len());
    }
}
