//! An operation with a table of channels gives the same values as one box for each channel: in this module, and in the
//! kernel's source.
//!
//! `unsafe` is allowed here: jobs hold addresses of the tests' vectors.

#![allow(unsafe_code)]

use super::*;
use crate::geometry::Norm;
use dali_zarr_kernels::{Layout, Shuffle, Source, host};
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

const CHANNELS: usize = 700;

/// Returns the mean and stddev of a channel.
fn pair(channel: usize) -> (f64, f64) {
    (channel as f64 * 7.25 - 300.0, 0.3 + channel as f64 / 9.0)
}

fn norm(mean_stddev: (f64, f64), fillna: Option<f64>, dtype: DType) -> Norm {
    Norm { array: 0, fillna, mean_stddev: Some(mean_stddev), fill: 2.5, dtype, imaginary: false }
}

/// Makes a random box with a dimension of channels. Returns the job, the elements of its source and of its output, and
/// the dimension.
fn random_box(random: &mut Random) -> (Job, usize, usize, usize) {
    let ndim = 1 + random.below(4) as usize;
    let dim = random.below(ndim as u64) as usize;
    let mut job = Job::new(0, 0, (0..ndim).map(|_| (1, 0, 0)));
    let (mut src, mut dst, mut back) = (1i64, 1i64, 0i64);
    for d in (0..ndim).rev() {
        let most = if d == dim { [3, 8, 40, 600][random.below(4) as usize] } else { 6 };
        let n = 1 + random.below(most) as i64;
        // Strides of the source may be negative or zero, or leave gaps.
        let step = [src, src, src, 2 * src, -src, 0][random.below(6) as usize];
        (job.extent[d], job.src_stride[d], job.dst_stride[d]) = (n as u32, step, dst);
        back += if step < 0 { -step * (n - 1) } else { 0 };
        src += step.abs() * (n - 1);
        dst = dst * n + random.below(2) as i64;
    }
    job.src = back as u64;
    (job, (src + back) as usize, dst as usize, dim)
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

#[test]
fn a_table_gives_what_boxes_of_each_channel_give() {
    let mut random = Random(11);
    for (round, (src, dst)) in DType::ALL.iter().flat_map(|s| DType::ALL.map(|d| (*s, d))).cycle().take(800).enumerate()
    {
        let (mut job, read, written, dim) = random_box(&mut random);
        let (first, step) = ([0, 3][random.below(2) as usize], [1, 1, 0][random.below(3) as usize]);
        job.set_channels(dim, first, step);
        job.source = [Source::Chunk, Source::Chunk, Source::Fill][random.below(3) as usize] as u32;
        let mask = u64::MAX >> (64 - 8 * src.size());
        let stored: Vec<u8> = (0..read)
            .flat_map(|i| {
                let small = if i % 3 == 0 { u64::from((i as f32 * 0.37 - 50.0).to_bits()) } else { random.next() };
                (small & mask).to_le_bytes()[..src.size()].to_vec()
            })
            .collect();
        let many = (0..40).map(|i| (i * 37) & mask).collect();
        let decoding = match random.below(4) {
            0 => Decoding::default(),
            1 => Decoding {
                missing: vec![7, 9 & mask],
                scale: Some(0.1),
                decoded: Some(DType::F32),
                ..Decoding::default()
            },
            2 => Decoding { missing: many, offset: Some(273.15), decoded: Some(DType::F64), ..Decoding::default() },
            _ => Decoding { int_scale: Some(3), decoded: Some(DType::I64), ..Decoding::default() },
        };
        // After a factor in int64 there are no NaNs to replace.
        let fillna = (decoding.int_scale.is_none() && random.below(2) == 0).then_some(-3.5);
        let (fill, swap) = (random.next() & mask, random.below(2) == 0);
        let of = |channel: usize| op(src, fill, &decoding, &norm(pair(channel), fillna, dst), swap);
        let (with_table, missing) = of(0);
        let alone = (0..CHANNELS).map(of).map(|(op, missing)| (op, missing, Vec::new()));
        let ops = Ops::with_tables(alone.chain([(with_table, missing, (0..CHANNELS).map(pair).collect())]));
        let (src_size, dst_size) = (src.size(), dst.size());
        let place = |job: &Job, out: &mut [u8]| Job {
            src: stored.as_ptr() as u64 + job.src * src_size as u64,
            dst: out.as_mut_ptr() as u64,
            op: CHANNELS as u32,
            ..*job
        };
        let mut outs = [0, 1, 2].map(|_| vec![0xcdu8; written * dst_size]);
        let mut replaced = [0u64; 3];
        let at = place(&job, &mut outs[0]);
        // SAFETY: both vectors have room for the box; the table has more channels than jobs name.
        replaced[0] = unsafe { run(&at, &ops[CHANNELS]) };
        let at = place(&job, &mut outs[1]);
        // SAFETY: as above.
        unsafe { host::assemble(&[at], &ops, &mut replaced[1..2]) };
        let at = place(&job, &mut outs[2]);
        for i in 0..i64::from(job.extent[dim]) {
            let mut one = at;
            one.extent[dim] = 1;
            one.src = (one.src as i64 + i * job.src_stride[dim] * src_size as i64) as u64;
            one.dst += (i * job.dst_stride[dim]) as u64 * dst_size as u64;
            // SAFETY: as above.
            replaced[2] += unsafe { run(&one, &ops[(first + step * i) as usize]) };
        }
        let what = format!("round {round}: {src} to {dst}, {job:?}, {decoding:?}, fillna {fillna:?}");
        assert_eq!(replaced, [replaced[2]; 3], "{what}");
        for (k, name) in ["the CPU", "the kernel's source"].into_iter().enumerate() {
            for (i, (a, b)) in outs[k].chunks(dst_size).zip(outs[2].chunks(dst_size)).enumerate() {
                let same = a == b || k == 1 && is_nan(a, dst) && is_nan(b, dst);
                assert!(same, "{name}, {what}: element {i}: {a:02x?}, expected {b:02x?}");
            }
        }
    }
}

#[test]
fn shuffled_chunks_have_channels_too() {
    // The box has 6 rows of 5 pixels with 3 channels. The chunk has 8 pixels in a row.
    let elements: Vec<f32> = (0..6 * 8 * 3).map(|i| i as f32 * 0.7 - 20.0).collect();
    let bytes: Vec<u8> = elements.iter().flat_map(|v| v.to_le_bytes()).collect();
    let n = elements.len();
    let shuffled: Vec<u8> = (0..4 * n).map(|at| bytes[at % n * 4 + at / n]).collect();
    let norm = norm(pair(0), None, DType::F32);
    let (plain, missing) = op(DType::F32, 0, &Decoding::default(), &norm, false);
    let ops = Ops::with_tables([(plain, missing, (0..3).map(pair).collect())]);
    let mut outs = [vec![0f32; 6 * 5 * 3], vec![0f32; 6 * 5 * 3]];
    let layout = Layout {
        nbytes: 4 * n as u32,
        blocksize: 4 * n as u32,
        shuffle: Shuffle::Byte as u8,
        typesize: 4,
        reserved: 0,
    };
    for (out, chunk) in outs.iter_mut().zip([&bytes, &shuffled]) {
        let skip = 2 * 3u64;
        let base = chunk.as_ptr() as u64;
        let mut job = Job::new(base + 4 * skip, out.as_mut_ptr() as u64, [(6, 24, 15), (5, 3, 3), (3, 1, 1)]);
        job.set_channels(2, 0, 1);
        if std::ptr::eq(chunk, &shuffled) {
            job.arrange(base, layout);
        }
        // SAFETY: the box lies within the chunk and the output.
        unsafe { host::assemble(&[job], &ops, &mut []) };
    }
    let expected = |at: usize| {
        let (row, pixel, channel) = (at / 15, at / 3 % 5, at % 3);
        let (mean, stddev) = pair(channel);
        ((f64::from(elements[row * 24 + (pixel + 2) * 3 + channel]) - mean) / stddev) as f32
    };
    let expected: Vec<f32> = (0..6 * 5 * 3).map(expected).collect();
    assert_eq!(outs, [expected.clone(), expected]);
}
