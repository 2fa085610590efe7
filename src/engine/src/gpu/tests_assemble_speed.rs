//! Measures how fast `dz_assemble` is.
//!
//! `unsafe` is allowed here: kernels are launched on buffers of the test.

#![allow(unsafe_code)]

use std::time::Instant;

use dali_zarr_kernels::{Job, Layout, Op, Shuffle, TILE};

use crate::gpu::driver::test_gpu::{bytes_of, gpu};
use crate::gpu::driver::{AssembleArrays, DeviceBuffer, copy_device_async, memset_async};
use dali_zarr_base::dtype::DType;

/// Prints the bytes read and written per second, and those of the driver's copy for comparison.
#[test]
#[ignore = "checks nothing but speed: for measurements"]
fn gpu_assemble_bandwidth() {
    let Some(gpu) = gpu() else { return };
    const FIELD: u32 = 721 * 1440;
    const FIELDS: u32 = 200;
    let len = (FIELD * FIELDS) as usize * 4;
    let (src, dst) = (DeviceBuffer::alloc(&gpu.device, len).unwrap(), DeviceBuffer::alloc(&gpu.device, len).unwrap());
    // SAFETY: within the buffer.
    unsafe { memset_async(&gpu.stream, src.ptr(), 0x3f, len).unwrap() };
    let timed = |bytes: usize, enqueue: &dyn Fn()| {
        enqueue();
        gpu.stream.synchronize().unwrap();
        let start = Instant::now();
        for _ in 0..20 {
            enqueue();
        }
        gpu.stream.synchronize().unwrap();
        20.0 * bytes as f64 / start.elapsed().as_secs_f64() / 1e9
    };
    // SAFETY: within the buffers.
    let copy = timed(2 * len, &|| unsafe { copy_device_async(&gpu.stream, dst.ptr(), src.ptr(), len).unwrap() });
    println!("cuMemcpyDtoD: {copy:.0} GB/s");
    let counters = gpu.upload(&[0; 8]);
    let shuffled = |rows: u32, columns: u32, skip: u64, op: Op, src_size: u64, layout: Layout| {
        let jobs: Vec<Job> = (0..FIELDS)
            .map(|f| {
                let chunk = src.ptr() + u64::from(f) * u64::from(FIELD) * src_size;
                let inside = if layout == Layout::NONE { skip * src_size } else { 0 };
                let to = dst.ptr() + u64::from(f) * u64::from(FIELD) * 4;
                let dims = [(rows, 1440, i64::from(columns)), (columns, 1, 1)];
                Job { layout, src_offset: (skip * src_size) as u32, ..Job::new(chunk + inside, to, dims) }
            })
            .collect();
        let tiles = (rows * columns).div_ceil(TILE);
        let starts: Vec<u32> = (0..=FIELDS).map(|f| f * tiles).collect();
        let (jobs, starts, ops) =
            (gpu.upload(&bytes_of(&jobs)), gpu.upload(&bytes_of(&starts)), gpu.upload(&bytes_of(&[op])));
        let bytes = (rows * columns * FIELDS) as usize * (DType::ALL[op.dst_dtype as usize].size() + src_size as usize);
        let arrays = AssembleArrays {
            jobs: jobs.ptr(),
            tile_start: starts.ptr(),
            ops: ops.ptr(),
            counters: (op.has_fillna != 0).then_some(counters.ptr()),
        };
        timed(bytes, &|| {
            // SAFETY: the arrays are as described; the boxes lie within the buffers; `timed` awaits the launches.
            unsafe { gpu.module.launch_assemble(&gpu.stream, &arrays, FIELDS, FIELDS * tiles).unwrap() };
        })
    };
    let assemble = |rows, columns, skip, op, src_size| shuffled(rows, columns, skip, op, src_size, Layout::NONE);
    let float = Op::cast(DType::F32 as i32, DType::F32 as i32);
    let norm = Op { has_norm: 1, mean: 1.0, stddev: 3.0, ..float };
    let i16_scaled =
        Op { src_dtype: DType::I16 as i32, has_scale: 1, has_offset: 1, scale: 0.1, offset: 273.15, ..float };
    let general = Op { src_dtype: DType::U16 as i32, dst_dtype: DType::I32 as i32, ..float };
    let plain = assemble(721, 1440, 0, float, 4);
    println!("plain float32: {plain:.0} GB/s");
    println!("other byte order: {:.0} GB/s", assemble(721, 1440, 0, Op { swap: 1, ..float }, 4));
    println!("crop of 640x1280, aligned: {:.0} GB/s", assemble(640, 1280, 40 * 1440 + 80, float, 4));
    println!("crop of 640x1280, odd: {:.0} GB/s", assemble(640, 1280, 40 * 1440 + 81, float, 4));
    println!("normalised float32: {:.0} GB/s", assemble(721, 1440, 0, norm, 4));
    println!("int16 with scale and offset to float32: {:.0} GB/s", assemble(721, 1440, 0, i16_scaled, 2));
    let filled = |op: Op, size| assemble(721, 1440, 0, Op { has_fillna: 1, ..op }, size);
    let (one, both, packed) = (filled(float, 4), filled(norm, 4), filled(i16_scaled, 2));
    println!("NaN replaced: float32 {one:.0} GB/s, normalised {both:.0}, int16 to float32 {packed:.0}");
    println!("uint16 to int32, the general path: {:.0} GB/s", assemble(721, 1440, 0, general, 2));
    let layout = |shuffle: Shuffle, typesize: u8, size: u32| Layout {
        nbytes: FIELD * size,
        blocksize: 128 << 10,
        shuffle: shuffle as u8,
        typesize,
        reserved: 0,
    };
    let u16_plain = Op { src_dtype: DType::U16 as i32, dst_dtype: DType::U16 as i32, ..float };
    for (what, op, size) in [
        ("float32", float, 4),
        ("float32, normalised", norm, 4),
        ("int16 to float32", i16_scaled, 2),
        ("uint16", u16_plain, 2),
    ] {
        for shuffle in [Shuffle::Byte, Shuffle::Bit] {
            let of = |rows, columns, skip| {
                shuffled(rows, columns, skip, op, u64::from(size), layout(shuffle, size as u8, size))
            };
            let (whole, crop, odd) = (of(721, 1440, 0), of(640, 1280, 40 * 1440 + 80), of(640, 1280, 40 * 1440 + 81));
            println!("{shuffle:?} shuffle, {what}: {whole:.0} GB/s, crop {crop:.0}, odd crop {odd:.0}");
        }
    }
    let other = shuffled(721, 1440, 0, float, 4, layout(Shuffle::Byte, 8, 4));
    println!("byte shuffle by 8, float32: {other:.0} GB/s");
    let unshuffled = shuffled(721, 1440, 0, float, 4, layout(Shuffle::Byte, 4, 4));
    assert!(unshuffled > 500.0, "byte shuffle of float32 reaches {unshuffled:.0} GB/s");
    assert!(plain > 0.6 * copy, "the plain copy reaches {plain:.0} GB/s of the driver's {copy:.0}");
}
