//! Copy streams, which copy uncompressed chunks to the device. Each fetch thread has one.
//!
//! `unsafe` is allowed here: the scheduler's ranges are copied by address.

#![allow(unsafe_code)]

use std::sync::Arc;

use crate::error::Result;
use crate::gpu::driver::{Device, Event, Stream, copy_to_device_async};
use crate::memory::Span;
use crate::messages::Upload;

/// A CUDA stream, and the events before and after the copies that were enqueued last.
pub(super) struct StreamUpload {
    stream: Stream,
    begun: Event,
    copied: Event,
}

impl StreamUpload {
    pub fn new(device: &Arc<Device>) -> Result<Self> {
        let upload = Self { stream: Stream::new(device)?, begun: Event::timed(device)?, copied: Event::timed(device)? };
        // Recorded now, so that they can be queried before the first copy.
        upload.begun.record(&upload.stream)?;
        upload.copied.record(&upload.stream)?;
        Ok(upload)
    }
}

impl Upload for StreamUpload {
    unsafe fn start(&mut self, copies: &[(Span, u64)]) -> Result<()> {
        self.stream.device().bind()?;
        self.begun.record(&self.stream)?;
        let started = copies.iter().try_for_each(|&(from, to)| {
            // SAFETY: the caller vouches for both ranges.
            unsafe { copy_to_device_async(&self.stream, to, from.address as *const u8, from.len) }
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

    fn wait(&self) -> Result<f64> {
        self.stream.device().bind()?;
        self.copied.synchronize()?;
        self.copied.seconds_since(&self.begun)
    }
}

impl Drop for StreamUpload {
    fn drop(&mut self) {
        // The memory of the copies may be freed next. If the device has failed, nothing is in flight any more.
        let _ = self.stream.device().bind().and_then(|()| self.stream.synchronize());
    }
}
