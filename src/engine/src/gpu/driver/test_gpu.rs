//! Helpers of the tests that need a GPU. Each of these tests begins with [`gpu`]. Without a GPU it prints why, and
//! ends.

use super::{Device, DeviceBuffer, Module, PinnedBuffer, Stream, copy_to_device_async, copy_to_host_async};
use std::sync::Arc;

pub(crate) struct Gpu {
    pub(crate) device: Arc<Device>,
    pub(crate) stream: Stream,
    pub(crate) module: Module,
}

/// Opens the first GPU. If there is none, prints why the test is skipped, and returns `None`.
pub(crate) fn gpu() -> Option<Gpu> {
    match Device::open(0) {
        Ok(device) => {
            let stream = Stream::new(&device).unwrap();
            let module = Module::load(&device).unwrap();
            Some(Gpu { device, stream, module })
        }
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}

/// The bytes of plain values.
pub(crate) fn bytes_of<T: Copy>(values: &[T]) -> Vec<u8> {
    // SAFETY: used with structures without padding, and integers.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), size_of_val(values)) }.to_vec()
}

impl Gpu {
    /// Returns a new device buffer with these bytes.
    pub(crate) fn upload(&self, bytes: &[u8]) -> DeviceBuffer {
        let buffer = DeviceBuffer::alloc(&self.device, bytes.len()).unwrap();
        // SAFETY: both have that many bytes, and the copy is awaited.
        unsafe { copy_to_device_async(&self.stream, buffer.ptr(), bytes.as_ptr(), bytes.len()).unwrap() };
        self.stream.synchronize().unwrap();
        buffer
    }

    /// Waits for everything that is enqueued, and returns the bytes of a device buffer.
    pub(crate) fn download(&self, buffer: &DeviceBuffer) -> Vec<u8> {
        let mut pinned = PinnedBuffer::alloc(&self.device, buffer.len()).unwrap();
        // SAFETY: both have that many bytes, and the copy is awaited.
        unsafe { copy_to_host_async(&self.stream, pinned.ptr(), buffer.ptr(), buffer.len()).unwrap() };
        self.stream.synchronize().unwrap();
        pinned.as_slice().to_vec()
    }
}

/// Reproducible numbers (xorshift).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns a number from 0 to `n - 1`.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 11) % n
    }

    pub(crate) fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| (self.next() >> 32) as u8).collect()
    }
}
