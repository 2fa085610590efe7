//! Checks the values that jobs give against their definition.
//!
//! `unsafe` is allowed here: jobs hold addresses of the tests' vectors.

#![allow(unsafe_code)]

use super::*;
use crate::geometry::Norm;
use dali_zarr_kernels::{Job, Layout, Shuffle, Source};
use half::f16;

fn job(src: u64, dst: u64, dims: &[(u32, i64, i64)], source: Source) -> Job {
    Job { source: source as u32, ..Job::new(src, dst, dims.iter().copied()) }
}

/// Applies an operation to a vector of elements.
fn apply<S: Copy, D: Copy + Default>(values: &[S], op: &Op, source: Source) -> Vec<D> {
    let mut out = vec![D::default(); values.len()];
    let n = values.len() as u32;
    let j = job(values.as_ptr() as u64, out.as_mut_ptr() as u64, &[(n, 1, 1)], source);
    // SAFETY: both vectors have `n` elements of the types that the operation names.
    unsafe { run(&j, op) };
    out
}

fn plain(src: DType, dst: DType) -> Op {
    op(
        src,
        0,
        &Decoding::default(),
        &Norm { array: 0, fillna: None, mean_stddev: None, fill: 0.0, dtype: dst, imaginary: false },
        false,
    )
    .0
}

#[test]
fn casts_round_and_saturate() {
    let f = [0.5f32, 1.5, 2.5, -0.5, -1.5, f32::NAN, f32::INFINITY, -f32::INFINITY, 300.4, -129.0];
    let to_i8: Vec<i8> = apply(&f, &plain(DType::F32, DType::I8), Source::Chunk);
    assert_eq!(to_i8, [0, 2, 2, 0, -2, 0, 127, -128, 127, -128]);
    let to_u8: Vec<u8> = apply(&f, &plain(DType::F32, DType::U8), Source::Chunk);
    assert_eq!(to_u8, [0, 2, 2, 0, 0, 0, 255, 0, 255, 0]);
    let ints = [i64::MAX, i64::MIN, -1, 255, (1 << 24) + 1, 0x7fff_ffbf_ffff_ffff];
    let to_u32: Vec<u32> = apply(&ints, &plain(DType::I64, DType::U32), Source::Chunk);
    assert_eq!(to_u32, [u32::MAX, 0, 0, 255, (1 << 24) + 1, u32::MAX]);
    let to_f32: Vec<f32> = apply(&ints, &plain(DType::I64, DType::F32), Source::Chunk);
    assert_eq!(to_f32, ints.map(|i| i as f32), "one rounding, not two");
    let halves: Vec<u16> = apply(&[65504.0f64, 65520.0, 1e-8, 0.1], &plain(DType::F64, DType::F16), Source::Chunk);
    assert_eq!(halves, [65504.0, 65520.0, 1e-8, 0.1].map(|v| f16::from_f64(v).to_bits()));
    let bools: Vec<u8> = apply(&[0.0f32, 0.3, f32::NAN], &plain(DType::F32, DType::Bool), Source::Chunk);
    assert_eq!(bools, [0, 1, 1]);
    let from_bool: Vec<f32> = apply(&[0u8, 1, 7], &plain(DType::Bool, DType::F32), Source::Chunk);
    assert_eq!(from_bool, [0.0, 1.0, 1.0]);
}

#[test]
fn decoding_then_normalisation_then_cast() {
    let decoding = Decoding {
        missing: vec![(-999i16) as u16 as u64],
        scale: Some(0.01),
        offset: Some(273.15),
        decoded: Some(DType::F64),
        ..Decoding::default()
    };
    let norm = Norm {
        array: 0,
        fillna: None,
        mean_stddev: Some((280.0, 12.5)),
        fill: -1.0,
        dtype: DType::F32,
        imaginary: false,
    };
    let (op, _) = op(DType::I16, 7, &decoding, &norm, true);
    let stored = [-999i16, 0, 1234, -32768].map(|v| v.swap_bytes());
    let got: Vec<f32> = apply(&stored, &op, Source::Chunk);
    let want = |v: f64| ((v * 0.01 + 273.15 - 280.0) / 12.5) as f32;
    assert!(got[0].is_nan());
    assert_eq!(got[1..], [want(0.0), want(1234.0), want(-32768.0)]);
    assert_eq!(
        apply::<i16, f32>(&stored, &op, Source::Fill),
        [want(7.0); 4],
        "the fill value is decoded like any other"
    );
    assert_eq!(apply::<i16, f32>(&stored, &op, Source::Pad), [-1.0; 4], "elements outside are not");
}

#[test]
fn nans_are_replaced_and_counted() {
    let norm = |mean_stddev, fillna| Norm {
        array: 3,
        fillna,
        mean_stddev,
        fill: f64::NAN,
        dtype: DType::F32,
        imaginary: false,
    };
    let stored = [f32::NAN, 1.0, f32::INFINITY, -f32::NAN, -2.0];
    let count = |op: &Op, source| {
        let mut out = [0f32; 5];
        let j = job(stored.as_ptr() as u64, out.as_mut_ptr() as u64, &[(5, 1, 1)], source);
        // SAFETY: both arrays have five elements of the types that the operation names.
        (unsafe { run(&j, op) }, out)
    };
    let plain = op(DType::F32, f32::NAN.to_bits().into(), &Decoding::default(), &norm(None, Some(7.0)), false).0;
    assert!(!is_copy(&plain) && plain.counter == 3);
    assert_eq!(count(&plain, Source::Chunk), (2, [7.0, 1.0, f32::INFINITY, 7.0, -2.0]));
    assert_eq!(count(&plain, Source::Fill), (5, [7.0; 5]), "what the store lacks has the array's fill value");
    let (replaced, out) = count(&plain, Source::Pad);
    assert!(replaced == 0 && out.iter().all(|x| x.is_nan()), "a value of the output stays");
    let both = op(DType::F32, 0, &Decoding::default(), &norm(Some((1.0, 2.0)), Some(7.0)), false).0;
    assert_eq!(count(&both, Source::Chunk), (2, [3.0, 0.0, f32::INFINITY, 3.0, -1.5]));
    assert_eq!(count(&both, Source::Fill), (0, [-0.5; 5]));
    let kept = op(DType::F32, 0, &Decoding::default(), &norm(None, None), false).0;
    assert!(is_copy(&kept));
}

#[test]
fn only_contiguous_bytes_in_their_true_order_are_plain_copies() {
    let plain = plain(DType::F32, DType::F32);
    let whole = job(64, 128, &[(5, 1, 1)], Source::Chunk);
    assert_eq!(copied_bytes(&whole, &plain), Some(20));
    let shuffled = Layout { shuffle: Shuffle::Byte as u8, ..Layout::NONE };
    for other in [
        job(64, 128, &[(5, 2, 1)], Source::Chunk),
        job(64, 128, &[(5, 1, 2)], Source::Chunk),
        job(64, 128, &[(5, 0, 1)], Source::Chunk),
        job(64, 128, &[(2, 7, 5), (5, 1, 1)], Source::Chunk),
        job(64, 128, &[(5, 1, 1)], Source::Fill),
        job(64, 128, &[(5, 1, 1)], Source::Pad),
        Job { layout: shuffled, ..whole },
    ] {
        assert_eq!(copied_bytes(&other, &plain), None, "{other:?}");
    }
    for other in [
        Op { swap: 1, ..plain },
        Op { dst_dtype: DType::F64 as i32, ..plain },
        Op { has_norm: 1, ..plain },
        Op { has_fillna: 1, ..plain },
        // Bool values other than 0 and 1 become 1.
        Op { src_dtype: DType::Bool as i32, dst_dtype: DType::Bool as i32, ..plain },
    ] {
        assert_eq!(copied_bytes(&whole, &other), None, "{other:?}");
    }
}

#[test]
fn decoding_to_float32_rounds_each_step() {
    let decoding = Decoding {
        scale: Some(f64::from(0.1f32)),
        offset: Some(1.0e6),
        decoded: Some(DType::F32),
        ..Decoding::default()
    };
    let norm = Norm { array: 0, fillna: None, mean_stddev: None, fill: 0.0, dtype: DType::F32, imaginary: false };
    let stored = [1.5f32, 12345.678, -7.25];
    let got: Vec<f32> = apply(&stored, &op(DType::F32, 0, &decoding, &norm, false).0, Source::Chunk);
    assert_eq!(got, stored.map(|v| v * 0.1f32 + 1.0e6f32));
}

/// The code for the CPU and the kernels' source, compiled for the host, give the same bits.
#[test]
fn rare_operations_give_the_same_on_both_sides() {
    let mut seed = 7u64;
    let mut random = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        seed >> 7 ^ seed << 23
    };
    for src in DType::ALL {
        let mask = u64::MAX >> (64 - 8 * src.size());
        let mut stored: Vec<u64> = (0..64).map(|_| random() & mask).collect();
        stored.extend([0, 1, 2, mask, mask >> 1, (mask >> 1) + 1]);
        let bytes: Vec<u8> = stored.iter().flat_map(|v| v.to_le_bytes()[..src.size()].to_vec()).collect();
        for dst in DType::ALL {
            let listed = Decoding {
                // A third of the stored values; for 64-bit types also their neighbours, which may equal them in
                // float64.
                missing: stored.iter().step_by(3).flat_map(|&v| [v, v ^ u64::from(src.size() == 8)]).collect(),
                scale: Some(0.1),
                decoded: Some(DType::F64),
                ..Decoding::default()
            };
            let integers =
                Decoding { int_scale: Some(random() as i64), decoded: Some(DType::I64), ..Decoding::default() };
            let pairs = [(None, None), (Some((1.5, 3.0)), None), (None, Some(-3.5)), (Some((1.5, 3.0)), Some(0.25))];
            let pairs = pairs.map(|(mean_stddev, fillna)| Norm {
                array: 0,
                fillna,
                mean_stddev,
                fill: 2.5,
                dtype: dst,
                imaginary: false,
            });
            let stays = Decoding::default();
            let ops = pairs.iter().flat_map(|norm| {
                // After a factor in int64 there are no NaNs to replace.
                let d = if norm.fillna.is_some() { [&listed, &stays] } else { [&listed, &integers] };
                d.map(|d| op(src, stored[5], d, norm, false))
            });
            let ops = Ops::new(ops);
            for (number, of) in [Source::Chunk, Source::Fill].iter().flat_map(|s| (0..8).map(move |n| (n, *s))) {
                let mut outs = [0, 1].map(|_| vec![0u8; stored.len() * dst.size()]);
                let mut replaced = [0, 0];
                for (by_kernels, out) in [false, true].into_iter().zip(&mut outs) {
                    let n = stored.len() as u32;
                    let mut j = job(bytes.as_ptr() as u64, out.as_mut_ptr() as u64, &[(n, 1, 1)], of);
                    j.op = number;
                    if by_kernels {
                        // SAFETY: both vectors have `n` elements of the types that the operation names.
                        unsafe { dali_zarr_kernels::host::assemble(&[j], &ops, &mut replaced[1..]) };
                    } else {
                        // SAFETY: as above.
                        replaced[0] = unsafe { run(&j, &ops[number as usize]) };
                    }
                }
                assert_eq!(replaced[0], replaced[1], "{src} {dst}, op {number}, {of:?}: how many were replaced");
                let nan = |bytes: &[u8], d: DType| match d {
                    DType::F16 => f16::from_le_bytes(bytes.try_into().unwrap()).is_nan(),
                    DType::BF16 => half::bf16::from_le_bytes(bytes.try_into().unwrap()).is_nan(),
                    DType::F32 => f32::from_le_bytes(bytes.try_into().unwrap()).is_nan(),
                    DType::F64 => f64::from_le_bytes(bytes.try_into().unwrap()).is_nan(),
                    _ => false,
                };
                let (a, b) = (outs[0].chunks(dst.size()), outs[1].chunks(dst.size()));
                for (i, (a, b)) in a.zip(b).enumerate() {
                    assert!(
                        a == b || nan(a, dst) && nan(b, dst),
                        "{src} {dst}, op {number}, {of:?}, element {i} {:#x}: {a:?} {b:?}",
                        stored[i]
                    );
                }
            }
        }
    }
}

#[test]
fn values_that_mean_missing_are_found_in_lists_of_any_length() {
    let norm = Norm { array: 0, fillna: None, mean_stddev: None, fill: 0.0, dtype: DType::F32, imaginary: false };
    let stored: Vec<i16> = (-300..300).collect();
    for n in [3, 4, 7, 100] {
        let values: Vec<i16> = (0..n).map(|i| (i * 37 % 101 - 50) * 3).collect();
        let missing = values.iter().map(|&v| u64::from(v as u16)).collect();
        let decoding = Decoding { missing, decoded: Some(DType::F32), ..Decoding::default() };
        // A clone stays valid after the original is dropped.
        let ops = Ops::new([op(DType::I16, 0, &decoding, &norm, false)]).clone();
        let got: Vec<f32> = apply(&stored, &ops[0], Source::Chunk);
        for (v, x) in stored.iter().zip(got) {
            assert!(if values.contains(v) { x.is_nan() } else { x == f32::from(*v) }, "{n}: {v} {x}");
        }
    }
    let decoding = Decoding {
        missing: [1.0, -0.0, f32::INFINITY].map(|v: f32| u64::from(v.to_bits())).to_vec(),
        decoded: Some(DType::F32),
        ..Decoding::default()
    };
    let ops = Ops::new([op(DType::F32, 0, &decoding, &norm, false)]);
    let got: Vec<f32> = apply(&[0.0f32, -0.0, 1.0, f32::INFINITY, -1.0, f32::NEG_INFINITY], &ops[0], Source::Chunk);
    assert_eq!(got.iter().map(|x| x.is_nan()).collect::<Vec<_>>(), [true, true, true, true, false, false]);
}

#[test]
fn strided_boxes_of_every_size() {
    fn check<T: Copy + Default + PartialEq + std::fmt::Debug>(dtype: DType, of: fn(u64) -> T) {
        let src: Vec<T> = (0..120).map(of).collect();
        let mut dst = [T::default(); 200];
        // A transposed box with one reversed and one broadcast dimension.
        let dims = [(3, 0, 60), (4, -5, 1), (5, 20, 4)];
        let j = job(&raw const src[17] as u64, &raw mut dst[2] as u64, &dims, Source::Chunk);
        // SAFETY: the largest source index is 17 + 80, the smallest 2; the largest destination 2 + 120 + 3 + 16.
        unsafe { run(&j, &plain(dtype, dtype)) };
        for (a, b, c) in (0..3).flat_map(|a| (0..4).flat_map(move |b| (0..5).map(move |c| (a, b, c)))) {
            assert_eq!(dst[2 + a * 60 + b + c * 4], src[17 - b * 5 + c * 20]);
        }
    }
    check::<u8>(DType::U8, |v| v as u8);
    check::<i16>(DType::I16, |v| v as i16 * 200);
    check::<f32>(DType::F32, |v| v as f32 * 1.5);
    check::<i64>(DType::I64, |v| (v as i64) << 40);
}

/// Rows are taken in tiles, whose elements may have to be moved before and after.
#[test]
fn a_row_gives_what_its_elements_give_alone() {
    let mut seed = 3u64;
    let stored: Vec<u64> = (0..2000)
        .map(|_| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            seed.rotate_left(20)
        })
        .collect();
    let base = stored.as_ptr() as u64 + 8000;
    let plain = Decoding::default();
    let packed = Decoding {
        missing: vec![0, 1],
        scale: Some(0.1),
        offset: Some(3.0),
        decoded: Some(DType::F32),
        ..Decoding::default()
    };
    let integers = Decoding { int_scale: Some(3), decoded: Some(DType::I64), ..Decoding::default() };
    let some = Some((1.5, 3.0));
    let operations = [(&plain, None, None), (&plain, some, None), (&packed, some, Some(7.0)), (&integers, None, None)];
    for (src, dst) in
        [(DType::I16, DType::F32), (DType::F64, DType::I8), (DType::F32, DType::F16), (DType::U8, DType::F64)]
    {
        for ((decoding, mean_stddev, fillna), swap) in operations.iter().flat_map(|o| [(*o, false), (*o, true)]) {
            let norm = Norm { array: 0, fillna, mean_stddev, fill: 0.0, dtype: dst, imaginary: false };
            let op = op(src, 0, decoding, &norm, swap).0;
            for (n, from, to) in [(255, 1, 1), (256, -1, 1), (257, 1, 3), (450, 2, 1), (600, 0, 2)] {
                let mut outs = [0, 1].map(|_| vec![0u64; 2000]);
                let [row, alone] = [0, 1].map(|i| outs[i].as_mut_ptr() as u64);
                let (steps, sizes) = ([from, to], [src, dst].map(|d| d.size() as i64));
                // SAFETY: the source begins in the middle of 16,000 bytes, and takes at most 900 elements of 8 bytes to
                // either side. The destinations have 16,000 bytes, of which 1,200 elements of 8 bytes are used.
                let replaced = unsafe {
                    let whole = run(&job(base, row, &[(n, from, to)], Source::Chunk), &op);
                    let one = |i: i64| {
                        let [s, d] = [0, 1].map(|k| (i * steps[k] * sizes[k]) as u64);
                        run(&job(base.wrapping_add(s), alone + d, &[(1, 1, 1)], Source::Chunk), &op)
                    };
                    [whole, (0..i64::from(n)).map(one).sum()]
                };
                assert_eq!(replaced[0], replaced[1], "{src} {dst} {n} {from} {to}");
                assert!(outs[0] == outs[1], "{src} {dst} {n} {from} {to}, {op:?}");
                assert!(from == 0 || outs[0].iter().any(|x| *x != 0));
            }
        }
    }
}

#[test]
fn nan_payloads_survive_a_copy() {
    let bits = [0x7ff0_dead_beef_0001u64, 0x8000_0000_0000_0000, 1];
    let got: Vec<u64> = apply(&bits, &plain(DType::F64, DType::F64), Source::Chunk);
    assert_eq!(got, bits);
    let swapped = Op { swap: 1, ..plain(DType::F64, DType::F64) };
    let got: Vec<u64> = apply(&bits.map(u64::swap_bytes), &swapped, Source::Chunk);
    assert_eq!(got, bits);
}
