//! Boxes read from shuffled chunks equal those from the same chunks in true order, for any shuffle, box and types.

use dali_zarr_kernels::host::{self, Reach};
use dali_zarr_kernels::{Job, Layout, Op, Shuffle};
use proptest::prelude::*;

/// Shuffles `data` as c-blosc does before it compresses.
fn shuffled(data: &[u8], layout: Layout) -> Vec<u8> {
    let size = usize::from(layout.typesize);
    let mut out = Vec::with_capacity(data.len());
    for block in data.chunks(layout.blocksize as usize) {
        let n = block.len() / size;
        let (whole, tail) = block.split_at(n * size);
        if layout.shuffle == Shuffle::Byte as u8 {
            out.extend((0..size).flat_map(|j| (0..n).map(move |i| whole[i * size + j])));
        } else if n.is_multiple_of(8) {
            for row in 0..8 * size {
                let bit = |i: usize| whole[i * size + row / 8] >> (row % 8) & 1;
                out.extend((0..n / 8).map(|byte| (0..8).map(|k| bit(8 * byte + k) << k).sum::<u8>()));
            }
        } else {
            out.extend_from_slice(whole);
        }
        out.extend_from_slice(tail);
    }
    out
}

fn layout(shuffle: Shuffle, typesize: u8, blocksize: u32, nbytes: usize) -> Layout {
    Layout { nbytes: nbytes as u32, blocksize, shuffle: shuffle as u8, typesize, reserved: 0 }
}

fn op(src: i32, dst: i32, swap: bool, scaled: bool) -> Op {
    let scaled = i32::from(scaled);
    Op { swap: swap.into(), num_missing: scaled, has_scale: scaled, missing: [7, 0], scale: 0.37, ..Op::cast(src, dst) }
}

const SIZES: [usize; 12] = [1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8];

/// Copies `bytes` to memory at a multiple of 16.
fn aligned(bytes: &[u8]) -> Vec<u128> {
    bytes.chunks(16).map(|c| u128::from_le_bytes(std::array::from_fn(|i| c.get(i).copied().unwrap_or(0)))).collect()
}

fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 20) as u8
        })
        .collect()
}

/// One dimension of a box: number of elements, stride in the source, stride in the output.
type Dim = (u32, i64, i64);

/// Makes a box that begins `first` elements of `size` bytes after the chunk's beginning.
fn job(dims: &[Dim], layout: Layout, first: usize, size: usize) -> Job {
    Job { layout, src_offset: (first * size) as u32, ..Job::new(0, 0, dims.iter().copied()) }
}

/// Runs the job on the shuffled bytes, and without a layout on the bytes in true order. Both outputs must be equal. If
/// the job is a plain copy, the device's loads must give the same output too; returns which ones were used.
fn check(data: &[u8], job: Job, op: Op, dst_skip: usize) -> Option<Reach> {
    let (src_size, dst_size) = (SIZES[op.src_dtype as usize], SIZES[op.dst_dtype as usize]);
    let last: i64 = (0..job.ndim as usize).map(|d| i64::from(job.extent[d] - 1) * job.dst_stride[d]).sum();
    let room = (last as usize + 1) * dst_size + dst_skip * dst_size + 64;
    let run = |bytes: &[u8], mut job: Job, plain_layout: bool, loads: bool| {
        let source = aligned(bytes);
        let mut out = aligned(&vec![0xc5; room]);
        job.src = source.as_ptr() as u64;
        job.dst = out.as_mut_ptr() as u64 + (dst_skip * dst_size) as u64;
        if plain_layout {
            job.src += u64::from(job.src_offset);
            job.layout = Layout::NONE;
        }
        let mut reach = None;
        // SAFETY: the tests make boxes that lie within the chunk, and the output has room for the last element.
        unsafe {
            match loads {
                false => host::assemble(&[job], &[op], &mut []),
                true => reach = Some(host::copy_shuffled(&job, src_size as i32)),
            }
        }
        (out, reach)
    };
    let stored = shuffled(data, job.layout);
    let expected = run(data, job, true, false).0;
    assert!(run(&stored, job, false, false).0 == expected, "{job:?} {op:?}");
    // A bool is never copied plainly: it is written as 0 or 1.
    if op.src_dtype == 0 || op.src_dtype != op.dst_dtype || op.swap != 0 || op.num_missing != 0 {
        return None;
    }
    let (found, reach) = run(&stored, job, false, true);
    assert!(found == expected, "{reach:?} {job:?} {op:?}");
    reach
}

const U8: i32 = 5;
const U16: i32 = 6;
const U64: i32 = 8;
const F32: i32 = 10;

#[test]
fn a_field_of_float32_goes_in_units_whatever_its_last_block_is() {
    let data = noise(90 * 1440 * 4, 3);
    for shuffle in [Shuffle::Byte, Shuffle::Bit] {
        for blocksize in [1 << 16, 50_016, data.len() as u32, 96] {
            let whole = job(&[(data.len() as u32 / 4, 1, 1)], layout(shuffle, 4, blocksize, data.len()), 0, 4);
            assert_eq!(check(&data, whole, op(F32, F32, false, false), 0), Some(Reach::Units), "{shuffle:?}");
            let rows = [(80, 1440, 640), (640, 1, 1)];
            let crop = job(&rows, layout(shuffle, 4, blocksize, data.len()), 88, 4);
            assert_eq!(check(&data, crop, op(F32, F32, false, false), 0), Some(Reach::Units));
            let odd = job(&rows, layout(shuffle, 4, blocksize, data.len()), 89, 4);
            assert_eq!(check(&data, odd, op(F32, F32, false, false), 0), Some(Reach::Elements));
            assert_eq!(check(&data, crop, op(F32, F32, false, false), 1), Some(Reach::Elements));
        }
    }
}

#[test]
fn blocks_of_any_length_and_their_tails_are_read() {
    for (dtype, size) in [(U8, 1), (U16, 2), (F32, 4), (U64, 8)] {
        for shuffle in [Shuffle::Byte, Shuffle::Bit] {
            for typesize in [1u8, 2, 3, 4, 5, 8, 16, 17, 255] {
                for (n, blocksize) in [(1000, 1024), (1001, 1000), (64, 64 * size as u32), (77, 1), (500, 999), (9, 3)]
                {
                    let data = noise(n * size, u64::from(typesize));
                    let blocksize = blocksize.min(data.len() as u32);
                    let whole = job(&[(n as u32, 1, 1)], layout(shuffle, typesize, blocksize, data.len()), 0, size);
                    let reach = check(&data, whole, op(dtype, dtype, false, false), 0);
                    if usize::from(typesize) != size {
                        assert_eq!(reach, Some(Reach::Bytes));
                    }
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn any_box_of_any_types_is_that_of_the_true_bytes(
        (src_dtype, dst_dtype, same) in (0i32..12, 0i32..12, prop::bool::weighted(0.6)),
        (swap, scaled) in (prop::bool::weighted(0.2), prop::bool::weighted(0.2)),
        bits: bool,
        typesize in prop_oneof![3 => Just(None), 1 => (1u8..20).prop_map(Some), 1 => any::<u8>().prop_map(|t| Some(t.max(1)))],
        blocksize in prop_oneof![2 => (4u32..7).prop_map(|e| 8 << e), 1 => 1u32..3000, 1 => (1u32..40).prop_map(|k| 32 * k)],
        dims in prop::collection::vec((1u32..9, prop_oneof![4 => Just(1i64), 1 => Just(0), 1 => Just(-1)], 0i64..2, 0i64..2), 0..3),
        (inner, inner_step) in (prop_oneof![(1u32..20).prop_map(|k| 8 * k), 1u32..160], prop_oneof![5 => Just(1i64), 1 => Just(-1), 1 => Just(2)]),
        (before, after, dst_skip) in (prop_oneof![Just(0usize), Just(16), 0usize..40], 0usize..40, prop_oneof![3 => Just(0usize), 1 => 1usize..5]),
        seed: u64,
    ) {
        let dst_dtype = if same { src_dtype } else { dst_dtype };
        let size = SIZES[src_dtype as usize];
        let mut out = vec![(inner, inner_step, 1i64)];
        let (mut src, mut dst) = (i64::from(inner) * inner_step.abs(), i64::from(inner));
        for &(n, sign, src_gap, dst_gap) in &dims {
            out.push((n, sign * src, dst));
            src = src * i64::from(n) + 8 * src_gap;
            dst = dst * i64::from(n) + 8 * dst_gap;
        }
        out.reverse();
        let (mut low, mut high) = (0i64, 0i64);
        for &(n, step, _) in &out {
            let reach = i64::from(n - 1) * step;
            (low, high) = (low + reach.min(0), high + reach.max(0));
        }
        let first = before + (-low) as usize;
        let count = first + high as usize + 1 + after;
        let data = noise(count * size, seed);
        let shuffle = if bits { Shuffle::Bit } else { Shuffle::Byte };
        let blocksize = blocksize.min(data.len() as u32);
        let layout = layout(shuffle, typesize.unwrap_or(size as u8), blocksize, data.len());
        check(&data, job(&out, layout, first, size), op(src_dtype, dst_dtype, swap, scaled), dst_skip);
    }
}
