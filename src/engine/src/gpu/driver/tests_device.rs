//! Devices, memory, copies, events; checksums and gathered copies on the device.

use super::test_gpu::{Random, bytes_of, gpu};
use super::{
    Device, DeviceBuffer, Event, PinnedBuffer, check, copy_device_async, copy_to_device_async, copy_to_host_async,
    error_code, memset_async,
};
use cudarc::driver::sys::CUresult;
use dali_zarr_base::error::{Code, ErrorKind};
use dali_zarr_kernels::{ChecksumJob, ChecksumKind, ChecksumResult, CopyJob, GATHER_TILE, host};

#[test]
fn a_device_that_is_not_there_is_an_error() {
    for ordinal in [4711, -1] {
        let error = Device::open(ordinal).unwrap_err();
        let text = error.message();
        assert!(
            text.contains("no CUDA driver was found") || text.contains(&format!("no GPU with number {ordinal}")),
            "{text}"
        );
        assert_eq!((error.code(), error.kind()), (Code::DeviceFailed, ErrorKind::Runtime));
    }
}

#[test]
fn a_lost_device_is_told_from_a_full_one() {
    assert_eq!(error_code(CUresult::CUDA_ERROR_OUT_OF_MEMORY), Code::OutOfMemory);
    for lost in [CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, CUresult::CUDA_ERROR_ECC_UNCORRECTABLE] {
        assert_eq!(error_code(lost), Code::DeviceFailed);
    }
}

#[test]
fn gpu_errors_of_the_driver_have_its_name_and_a_code() {
    let Some(_gpu) = gpu() else { return };
    let error = check("cuEventRecord", CUresult::CUDA_ERROR_INVALID_HANDLE).unwrap_err();
    assert!(error.message().contains("cuEventRecord failed: CUDA_ERROR_INVALID_HANDLE"), "{error}");
    assert_eq!((error.code(), error.kind()), (Code::DeviceFailed, ErrorKind::Runtime));
}

#[test]
fn gpu_copies_arrive() {
    let Some(gpu) = gpu() else { return };
    assert!(gpu.device.multiprocessors() > 0 && gpu.device.ordinal() == 0);
    let (free, total) = gpu.device.memory_info().unwrap();
    assert!(free > 0 && free <= total);
    const LEN: usize = 3 << 20;
    let mut pinned = PinnedBuffer::alloc(&gpu.device, LEN).unwrap();
    assert!(pinned.as_slice().iter().all(|b| *b == 0));
    pinned.as_slice().copy_from_slice(&Random(5).bytes(LEN));
    let expected = pinned.as_slice().to_vec();
    let (a, b) = (DeviceBuffer::alloc(&gpu.device, LEN).unwrap(), DeviceBuffer::alloc(&gpu.device, LEN).unwrap());
    assert_eq!(a.ptr() % 256, 0);
    let other = super::Stream::new(&gpu.device).unwrap();
    let event = Event::new(&gpu.device).unwrap();
    // SAFETY: all ranges lie in live buffers, and the streams are awaited.
    unsafe {
        copy_to_device_async(&other, a.ptr(), pinned.ptr(), LEN).unwrap();
        event.record(&other).unwrap();
        gpu.stream.wait_event(event.raw()).unwrap();
        copy_device_async(&gpu.stream, b.ptr(), a.ptr(), LEN).unwrap();
        memset_async(&gpu.stream, b.ptr() + 100, 7, 50).unwrap();
        copy_to_host_async(&gpu.stream, pinned.ptr(), b.ptr(), LEN).unwrap();
    }
    gpu.stream.synchronize().unwrap();
    assert!(event.is_done().unwrap());
    let found = pinned.as_slice();
    assert!(found[..100] == expected[..100] && found[150..] == expected[150..]);
    assert!(found[100..150].iter().all(|b| *b == 7));
}

/// Large buffers are mapped, faulted in by several threads, and registered.
#[test]
fn gpu_copies_arrive_in_large_buffers() {
    let Some(gpu) = gpu() else { return };
    for len in [(32 << 20) - 1, 32 << 20, (48 << 20) + 12_345] {
        let mut pinned = PinnedBuffer::alloc(&gpu.device, len).unwrap();
        assert_eq!((pinned.ptr() as usize % 4096, pinned.len()), (0, len));
        assert!(pinned.as_slice().iter().all(|b| *b == 0));
        let expected = Random(len as u64).bytes(len);
        pinned.as_slice().copy_from_slice(&expected);
        let there = DeviceBuffer::alloc(&gpu.device, len).unwrap();
        // SAFETY: all ranges lie in live buffers, and the stream is awaited.
        unsafe { copy_to_device_async(&gpu.stream, there.ptr(), pinned.ptr(), len).unwrap() };
        gpu.stream.synchronize().unwrap();
        pinned.as_slice().fill(0);
        // SAFETY: as above.
        unsafe { copy_to_host_async(&gpu.stream, pinned.ptr(), there.ptr(), len).unwrap() };
        gpu.stream.synchronize().unwrap();
        assert!(*pinned.as_slice() == expected[..]);
        // A buffer that goes while a copy of it is under way waits for the copy.
        // SAFETY: `there` lives until the stream is awaited, and the buffer waits for its transfers.
        unsafe { copy_to_device_async(&gpu.stream, there.ptr(), pinned.ptr(), len).unwrap() };
        drop(pinned);
        gpu.stream.synchronize().unwrap();
    }
}

#[test]
fn gpu_memory_that_is_not_there_is_an_error_with_numbers() {
    let Some(gpu) = gpu() else { return };
    let (_, total) = gpu.device.memory_info().unwrap();
    let error = DeviceBuffer::alloc(&gpu.device, total * 2).unwrap_err();
    assert_eq!((error.code(), error.kind()), (Code::OutOfMemory, ErrorKind::Memory));
    let text = error.to_string();
    assert!(text.contains("cuMemAlloc") && text.contains("CUDA_ERROR_OUT_OF_MEMORY"), "{text}");
    assert!(text.contains(&total.to_string()) && text.contains("device_memory_limit"), "{text}");
    assert!(DeviceBuffer::alloc(&gpu.device, 0).unwrap().len() == 0);
    assert!(PinnedBuffer::alloc(&gpu.device, 0).unwrap().as_slice().is_empty());
}

#[test]
fn gpu_threads_bind_and_wait() {
    let Some(gpu) = gpu() else { return };
    std::thread::scope(|scope| {
        for seed in 1..5u64 {
            let gpu = &gpu;
            scope.spawn(move || {
                let stream = super::Stream::new(&gpu.device).unwrap();
                let data = Random(seed).bytes(1 << 20);
                let buffer = DeviceBuffer::alloc(&gpu.device, data.len()).unwrap();
                let mut back = vec![0u8; data.len()];
                // SAFETY: both ranges are live, and the stream is awaited.
                unsafe {
                    copy_to_device_async(&stream, buffer.ptr(), data.as_ptr(), data.len()).unwrap();
                    copy_to_host_async(&stream, back.as_mut_ptr(), buffer.ptr(), data.len()).unwrap();
                }
                stream.synchronize().unwrap();
                assert!(back == data);
            });
        }
    });
}

#[test]
fn gpu_checksums_agree_with_the_host() {
    let Some(gpu) = gpu() else { return };
    let mut random = Random(11);
    let data = random.bytes(9 << 20);
    let buffer = gpu.upload(&data);
    let kinds = [ChecksumKind::Crc32, ChecksumKind::Adler32, ChecksumKind::Xxh64Low, ChecksumKind::Crc32c];
    let mut lengths = vec![0usize, 1, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 100, 255, 256, 257];
    lengths.extend([511, 512, 513, 4095, 4096, 4097, 8191, 65_536, 65_537, 1 << 20, (4 << 20) + 5]);
    lengths.extend((0..40).map(|_| random.below(300_000) as usize));
    let (mut jobs, mut expected) = (Vec::new(), Vec::new());
    for (i, &len) in lengths.iter().enumerate() {
        for kind in kinds {
            let at = random.below(((data.len() - len) / 16) as u64) as usize * 16;
            let sum = host::checksum(kind, &data[at..at + len]);
            let wrong = u32::from(i % 5 == 4);
            jobs.push(ChecksumJob {
                data: buffer.ptr() + at as u64,
                len: len as u64,
                kind: kind as u32,
                expected: sum ^ wrong,
            });
            expected.push(ChecksumResult { mismatch: wrong, found: sum });
        }
    }
    let (list, results) = (gpu.upload(&bytes_of(&jobs)), gpu.upload(&vec![0xff; jobs.len() * 8]));
    // SAFETY: the arrays and buffers are live until the download has awaited the stream.
    unsafe { gpu.module.launch_checksum(&gpu.stream, list.ptr(), jobs.len() as u32, results.ptr()).unwrap() };
    let found = gpu.download(&results);
    for (i, (job, expected)) in jobs.iter().zip(&expected).enumerate() {
        assert_eq!(found[i * 8..i * 8 + 8], bytes_of(&[*expected]), "{job:?}");
    }
}

#[test]
fn gpu_gather_copies_pieces_of_any_alignment() {
    let Some(gpu) = gpu() else { return };
    let mut random = Random(23);
    let data = random.bytes(6 << 20);
    let (mut copies, mut at) = (Vec::new(), 0usize);
    let mut expected = Vec::new();
    for i in 0..3000 {
        let len = match i % 10 {
            0 => random.below(400_000) as usize,
            1 => GATHER_TILE as usize + i % 5,
            _ => random.below(70) as usize,
        };
        let from = random.below((data.len() - len) as u64) as usize;
        let gap = random.below(20) as usize;
        expected.resize(at + gap, 0xee);
        at += gap;
        expected.extend_from_slice(&data[from..from + len]);
        copies.push((from, at, len));
        at += len;
    }
    // The last piece ends with its buffer, so that compute-sanitizer finds reads beyond its end.
    copies.push((data.len() - 37, at, 37));
    expected.extend_from_slice(&data[data.len() - 37..]);
    let (src, dst) = (gpu.upload(&data), gpu.upload(&vec![0xee; expected.len()]));
    let mut starts = vec![0u32];
    let list: Vec<CopyJob> = copies
        .iter()
        .map(|&(from, to, len)| {
            starts.push(starts.last().unwrap() + len.div_ceil(GATHER_TILE as usize) as u32);
            CopyJob { src: src.ptr() + from as u64, dst: dst.ptr() + to as u64, len: len as u64 }
        })
        .collect();
    let (n, tiles) = (list.len() as u32, *starts.last().unwrap());
    let (list, starts) = (gpu.upload(&bytes_of(&list)), gpu.upload(&bytes_of(&starts)));
    // SAFETY: the arrays and pieces are live until the download has awaited the stream; no piece overlaps another.
    unsafe { gpu.module.launch_gather(&gpu.stream, list.ptr(), starts.ptr(), n, tiles).unwrap() };
    let found = gpu.download(&dst);
    let wrong = found.iter().zip(&expected).position(|(a, b)| a != b);
    assert_eq!(wrong, None, "first wrong byte");
}
