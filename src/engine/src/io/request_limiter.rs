//! Limits how many requests are under way.

use tokio::sync::{Semaphore, SemaphorePermit};

/// The first requests may ask for this many bytes together. All requests share the bandwidth. So without this limit the
/// chunks of the first batch would arrive only together with everything else that is requested.
const FIRST_BYTES: usize = 32 << 20;
/// Bytes of one permit of [`RequestLimiter::byte_permits`].
const UNIT: usize = 64 << 10;

/// Limits the number of requests under way, and at first their bytes too. The limit on bytes starts at [`FIRST_BYTES`],
/// and each request that ends raises it by its bytes. So it soon has no effect, unless the server is slow.
pub(super) struct RequestLimiter {
    requests: Semaphore,
    byte_permits: Semaphore,
}

/// The permission for one request.
pub(super) struct RequestPermit<'a> {
    /// Counts the request as long as this permit lives.
    _request: Option<SemaphorePermit<'a>>,
    /// The permits for its bytes.
    byte_permits: Option<SemaphorePermit<'a>>,
    limiter: &'a RequestLimiter,
    /// Its bytes, in units of [`UNIT`] bytes.
    units: u32,
}

impl RequestLimiter {
    pub fn new(max_requests: usize) -> Self {
        Self {
            requests: Semaphore::new(max_requests.clamp(1, Semaphore::MAX_PERMITS)),
            byte_permits: Semaphore::new(FIRST_BYTES / UNIT),
        }
    }

    /// Waits until a request for `bytes` bytes may begin.
    pub async fn acquire(&self, bytes: usize) -> RequestPermit<'_> {
        let units = bytes.div_ceil(UNIT).min(FIRST_BYTES / UNIT) as u32;
        // Neither semaphore is ever closed.
        let byte_permits = self.byte_permits.acquire_many(units).await.ok();
        RequestPermit { _request: self.requests.acquire().await.ok(), byte_permits, limiter: self, units }
    }

    /// Permits for requests without a body, for which bytes don't count.
    pub fn requests(&self) -> &Semaphore {
        &self.requests
    }
}

impl Drop for RequestPermit<'_> {
    fn drop(&mut self) {
        drop(self.byte_permits.take());
        if self.limiter.byte_permits.available_permits() < Semaphore::MAX_PERMITS / 4 {
            self.limiter.byte_permits.add_permits(self.units as usize);
        }
    }
}
