//! Copy streams, which copy uncompressed chunks to the device. Each fetch thread has one.
//!
//! `unsafe` is allowed here: copies go on while the CPU does other things, to device addresses.

#![allow(unsafe_code)]

use std::sync::Arc;

use crate::gpu::driver::{Device, Event, Stream, copy_to_device_async};
use crate::messages::{Upload, UploadPart};
use dali_zarr_base::error::Result;
use dali_zarr_base::memory::Lease;

/// A CUDA stream, and the events before and after the copies that were enqueued last.
pub(super) struct StreamUpload {
    stream: Stream,
    begun: Event,
    copied: Event,
    /// What the copies read. It is given back when they are done.
    from: Option<Lease>,
}

impl StreamUpload {
    pub fn new(device: &Arc<Device>) -> Result<Self> {
        let (begun, copied) = (Event::timed(device)?, Event::timed(device)?);
        let upload = Self { stream: Stream::new(device)?, begun, copied, from: None };
        // Recorded now, so that they can be queried before the first copy.
        upload.begun.record(&upload.stream)?;
        upload.copied.record(&upload.stream)?;
        Ok(upload)
    }
}

impl Upload for StreamUpload {
    unsafe fn start(&mut self, from: Lease, parts: &[UploadPart]) -> Result<()> {
        let from = &**self.from.insert(from);
        self.stream.device().bind()?;
        self.begun.record(&self.stream)?;
        let started = parts.iter().try_for_each(|&UploadPart { offset, len, to }| {
            let part = &from[offset..offset + len];
            // SAFETY: nobody writes to the lease until the copies are done, and the caller vouches for the destination.
            unsafe { copy_to_device_async(&self.stream, to, part.as_ptr(), len) }
        });
        let started = started.and_then(|()| self.copied.record(&self.stream));
        if started.is_err() {
            // `copied` is not recorded after the copies that were started, so nobody could wait for them later.
            let _ = self.stream.synchronize();
        }
        started
    }

    fn is_done(&self) -> Result<bool> {
        self.stream.device().bind()?;
        self.copied.is_done()
    }

    fn wait(&mut self) -> (Option<Lease>, Result<f64>) {
        let done = self.stream.device().bind().and_then(|()| self.copied.synchronize());
        let seconds = done.and_then(|()| self.copied.seconds_since(&self.begun));
        (self.from.take(), seconds)
    }
}

impl Drop for StreamUpload {
    fn drop(&mut self) {
        // The lease is dropped next, and its memory may be freed. If the device has failed, nothing is in flight any
        // more.
        let _ = self.stream.device().bind().and_then(|()| self.stream.synchronize());
    }
}
