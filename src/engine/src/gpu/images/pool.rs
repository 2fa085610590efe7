//! The decoders of images of this process: a few for each GPU and format, which lanes of all readers use in turns. To make one
//! takes a fifth of a second, and memory that only the driver knows of. So they are kept.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::ImageDecoder;
use crate::gpu::driver::Device;
use dali_zarr_base::error::Result;
use dali_zarr_base::memory::PerProcess;
use dali_zarr_codecs::ImageFormat;

/// Decoders for each GPU and format. On an H200 one gave 17,000 JPEG frames of 480 x 640 a second, two 24,500, three and six
/// 29,500.
const MOST: usize = 3;

/// The decoders of this process. In a forked child those of its parent are of no use.
static POOL: PerProcess<Pool> = PerProcess::new();

#[derive(Default)]
struct Pool {
    decoders: Mutex<Vec<Decoders>>,
    /// A decoder was given back, or couldn't be made.
    changed: Condvar,
}

/// The GPU of decoders, and their format.
type Kind = (i32, ImageFormat);

/// The decoders of a kind that nobody uses, and how many there are in all.
struct Decoders {
    kind: Kind,
    free: Vec<ImageDecoder>,
    made: usize,
}

/// A decoder that is used by one lane.
pub(in crate::gpu) struct Lent {
    kind: Kind,
    decoder: Option<ImageDecoder>,
}

impl Pool {
    fn lock(&self) -> MutexGuard<'_, Vec<Decoders>> {
        self.decoders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the decoders of a kind.
fn of(pool: &mut Vec<Decoders>, kind: Kind) -> &mut Decoders {
    let at = pool.iter().position(|decoders| decoders.kind == kind).unwrap_or_else(|| {
        pool.push(Decoders { kind, free: Vec::new(), made: 0 });
        pool.len() - 1
    });
    &mut pool[at]
}

/// Lends a decoder of this GPU for images of this format. Waits for one if there are as many as there may be, or no further one
/// can be made. Who lends several takes them in the order of [`FORMATS`](super::FORMATS), so that nobody waits in a circle.
///
/// # Errors
/// If there is none, and none can be made.
pub(in crate::gpu) fn lend(device: &Arc<Device>, format: ImageFormat) -> Result<Lent> {
    let (pool, kind) = (POOL.get(), (device.ordinal(), format));
    let mut most = MOST;
    let mut found = pool.lock();
    loop {
        let decoders = of(&mut found, kind);
        if let Some(decoder) = decoders.free.pop() {
            return Ok(Lent { kind, decoder: Some(decoder) });
        }
        if decoders.made >= most {
            found = pool.changed.wait(found).unwrap_or_else(PoisonError::into_inner);
            continue;
        }
        decoders.made += 1;
        drop(found);
        let decoder = ImageDecoder::new(device, format);
        found = pool.lock();
        match decoder {
            Ok(decoder) => return Ok(Lent { kind, decoder: Some(decoder) }),
            Err(error) => {
                let decoders = of(&mut found, kind);
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
        of(&mut pool.lock(), self.kind).free.extend(self.decoder.take());
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
