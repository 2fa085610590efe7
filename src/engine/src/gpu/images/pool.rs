//! The decoders of images of this process: a few for each GPU, which lanes of all readers use in turns. To make one takes a
//! fifth of a second, and memory that only the driver knows of. So they are kept.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::ImageDecoder;
use crate::gpu::driver::Device;
use dali_zarr_base::error::Result;
use dali_zarr_base::memory::PerProcess;

/// Decoders for each GPU. On an H200 one gave 17,000 frames of 480 x 640 a second, two 24,500, three and six 29,500.
const MOST: usize = 3;

/// The decoders of this process. In a forked child those of its parent are of no use.
static POOL: PerProcess<Pool> = PerProcess::new();

#[derive(Default)]
struct Pool {
    decoders: Mutex<Vec<Decoders>>,
    /// A decoder was given back, or couldn't be made.
    changed: Condvar,
}

/// The decoders of a GPU that nobody uses, and how many there are in all.
struct Decoders {
    ordinal: i32,
    free: Vec<ImageDecoder>,
    made: usize,
}

/// A decoder that is used by one lane.
pub(in crate::gpu) struct Lent {
    ordinal: i32,
    decoder: Option<ImageDecoder>,
}

impl Pool {
    fn lock(&self) -> MutexGuard<'_, Vec<Decoders>> {
        self.decoders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the decoders of a GPU.
fn of(pool: &mut Vec<Decoders>, ordinal: i32) -> &mut Decoders {
    let at = pool.iter().position(|decoders| decoders.ordinal == ordinal).unwrap_or_else(|| {
        pool.push(Decoders { ordinal, free: Vec::new(), made: 0 });
        pool.len() - 1
    });
    &mut pool[at]
}

/// Lends a decoder of this GPU. Waits for one if there are as many as there may be, or no further one can be made.
///
/// # Errors
/// If there is none, and none can be made.
pub(in crate::gpu) fn lend(device: &Arc<Device>) -> Result<Lent> {
    let (pool, ordinal) = (POOL.get(), device.ordinal());
    let mut most = MOST;
    let mut found = pool.lock();
    loop {
        let decoders = of(&mut found, ordinal);
        if let Some(decoder) = decoders.free.pop() {
            return Ok(Lent { ordinal, decoder: Some(decoder) });
        }
        if decoders.made >= most {
            found = pool.changed.wait(found).unwrap_or_else(PoisonError::into_inner);
            continue;
        }
        decoders.made += 1;
        drop(found);
        let decoder = ImageDecoder::new(device);
        found = pool.lock();
        match decoder {
            Ok(decoder) => return Ok(Lent { ordinal, decoder: Some(decoder) }),
            Err(error) => {
                let decoders = of(&mut found, ordinal);
                decoders.made -= 1;
                pool.changed.notify_all();
                most = decoders.made;
                if most == 0 {
                    return Err(error);
                }
            }
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let pool = POOL.get();
        of(&mut pool.lock(), self.ordinal).free.extend(self.decoder.take());
        // Lanes of other GPUs wait too.
        pool.changed.notify_all();
    }
}

impl Deref for Lent {
    type Target = ImageDecoder;

    fn deref(&self) -> &ImageDecoder {
        self.decoder.as_ref().expect("it is taken when it is dropped")
    }
}

impl DerefMut for Lent {
    fn deref_mut(&mut self) -> &mut ImageDecoder {
        self.decoder.as_mut().expect("it is taken when it is dropped")
    }
}
