//! Divides memory among the parts of a reader. [`divide`] is given what the reader needs, what the user asked for and
//! what the machine has. It returns how much each part gets. It is called once, before anything is reserved. `explain`
//! calls it too, and prints the result. Nothing is reserved, opened or measured here.
//!
//! - [`needs`]: what the dataset, the plans and the codecs need.
//! - [`host`]: the division of host memory, for batches delivered to the CPU and to a GPU.
//! - [`device`]: the division of device memory.
//! - [`rates`]: the measured speed of codecs.

#![forbid(unsafe_code)]

pub mod device;
pub mod host;
pub mod needs;
pub mod rates;
#[cfg(test)]
mod tests;

pub use device::DeviceBudget;
pub use host::{HostBudget, LimitFinder};
pub use needs::{Decoding, DeviceNeeds, MAX_BATCHES, Needs};
pub use rates::{Rates, WaveTime};

use dali_zarr_base::error::{Error, Result};
use dali_zarr_base::memory::{Machine, shown};
use dali_zarr_samples::spec::{Spec, cores};

/// The memory limits of a reader in bytes: those of the user, or defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Host memory.
    pub host: u64,
    /// Device memory; 0 if batches are delivered to the CPU.
    pub device: u64,
}

/// What the user asked for.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// The limit on host memory.
    pub host: Option<u64>,
    /// The limit on device memory.
    pub device: Option<u64>,
    /// Number of batches to prepare (`prefetch_queue_depth`).
    pub batches: Option<usize>,
    /// Number of decode threads.
    pub threads: usize,
    /// Number of samples of a batch, for messages.
    pub batch_size: usize,
}

impl Asked {
    /// Takes the values from a spec.
    pub fn of(spec: &Spec) -> Self {
        Self {
            host: spec.resources.host_memory_limit,
            device: spec.resources.device_memory_limit,
            batches: spec.resources.prefetch_queue_depth,
            threads: spec.resources.decode_threads.unwrap_or_else(cores).max(1),
            batch_size: spec.batch_size,
        }
    }
}

/// The memory of the machine. `None` where it isn't known.
#[derive(Clone, Debug, Default)]
pub(crate) struct MachineMemory {
    pub host: Option<Machine>,
    /// Bytes of host memory that this reader may share with others of the process. `None`: half of the machine's.
    pub share: Option<u64>,
    /// Bytes of device memory: free, and in all.
    pub device: Option<(u64, u64)>,
}

/// What each part of a reader gets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Budget {
    /// Batches that may be in preparation or waiting.
    pub batches: usize,
    /// Host memory.
    pub host: HostBudget,
    /// Device memory, if batches are delivered to a GPU.
    pub device: Option<DeviceBudget>,
}

/// A division, and what it was made from.
#[derive(Clone, Debug)]
pub(crate) struct Division {
    /// The smallest limits with which the reader runs.
    pub smallest: Limits,
    /// The limits that were divided. If the user's limits are refused, these are the smallest ones.
    pub limits: Limits,
    pub budget: Budget,
    /// The error if a reader with the user's limits can't be built.
    pub refused: Option<Error>,
}

impl Division {
    /// Returns the budget of the reader.
    ///
    /// # Errors
    /// If a reader with the user's limits can't be built.
    pub fn accepted(self) -> Result<Budget> {
        self.refused.map_or(Ok(self.budget), Err)
    }

    /// Whether a reader with the user's limits can be built.
    pub fn is_accepted(&self) -> bool {
        self.refused.is_none()
    }
}

/// Returns the smallest limits with which a reader runs.
pub fn smallest(needs: &Needs, batches: Option<usize>) -> Limits {
    Limits { host: host::smallest_host(needs, batches), device: device::smallest_device(needs, batches) }
}

/// Divides the memory of a reader.
///
/// # Errors
/// If not even the smallest limits can be divided, which is an internal error. Limits that are too small, and a machine
/// with too little memory, are reported in [`Division::refused`].
pub(crate) fn divide(needs: &Needs, asked: &Asked, there: &MachineMemory) -> Result<Division> {
    let smallest = smallest(needs, asked.batches);
    let lacking = lacking(needs, asked, there, smallest);
    let limits = if lacking.is_some() { smallest } else { limits(needs, asked, there, smallest) };
    let (budget, too_small) = match divide_limits(needs, asked, limits) {
        Ok(budget) => (budget, None),
        Err(e) => (divide_limits(needs, asked, smallest)?, Some(e)),
    };
    Ok(Division { smallest, limits, budget, refused: lacking.or(too_small) })
}

/// Returns the error of a machine that has less memory than the smallest limits; `None` if it has enough or its memory
/// is unknown.
fn lacking(needs: &Needs, asked: &Asked, there: &MachineMemory, smallest: Limits) -> Option<Error> {
    let lacks = |which: &str, smallest: u64, total: u64, says: &str| {
        Error::memory(format!(
            "{which} memory: expected at least {smallest} bytes ({}) for one chunk and {} of this dataset{} (a batch of {} \
             samples has {} bytes, the largest chunk {}), but found {total} bytes ({}) in all ({says}); use a smaller batch_size, \
             window or prefetch_queue_depth, or smaller chunks",
            shown(smallest),
            match asked.batches {
                Some(n @ 2..) => format!("{n} batches"),
                _ => "one batch".into(),
            },
            if which == "host" { needs::with_tables(needs.tables) } else { String::new() },
            asked.batch_size,
            needs.batch,
            needs.decoded,
            shown(total)
        ))
    };
    if let Some(host) = there.host.as_ref().filter(|host| host.total < smallest.host) {
        return Some(lacks("host", smallest.host, host.total, &host.says));
    }
    let (_, total) = there.device.filter(|&(_, total)| total < smallest.device)?;
    Some(lacks("device", smallest.device, total, "of the GPU"))
}

/// Returns the limits to use on a machine that has enough memory for the smallest ones.
fn limits(needs: &Needs, asked: &Asked, there: &MachineMemory, smallest: Limits) -> Limits {
    let total = there.host.as_ref().map(|host| host.total);
    let default = host::default_host(needs, smallest.host);
    let host = host::host_limit(asked.host, default, smallest.host, total, there.share);
    let device = match needs.device {
        None => 0,
        Some(_) => {
            let (free, all) = there.device.unwrap_or((u64::MAX, u64::MAX));
            let default = || device::default_device(needs, asked.batches).min(free / 2).max(smallest.device);
            asked.device.unwrap_or_else(default).min(all)
        }
    };
    Limits { host, device }
}

/// Divides these limits.
fn divide_limits(needs: &Needs, asked: &Asked, limits: Limits) -> Result<Budget> {
    let Some(on_device) = &needs.device else {
        let host = host::divide_cpu(limits.host, needs, asked.batches, asked.threads)?;
        return Ok(Budget { batches: host.batches, host, device: None });
    };
    // Who gives a limit may know of chunks that take more bytes than usual.
    let needs = &Needs { all: if asked.host.is_some() { usize::MAX } else { needs.all }, ..*needs };
    let tables = host::host_tables(limits.host, needs)?;
    let device = device::divide(limits.device, needs, on_device, asked.batches, tables)?;
    let host = host::divide_for_gpu(limits.host, needs, device.lanes * device.tables, asked.threads)?;
    Ok(Budget { batches: device.batches, host, device: Some(device) })
}
