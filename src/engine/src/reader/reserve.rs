//! Reserves the memory of a reader, as its budget says.

use std::sync::Arc;

use super::OutputInfo;
use crate::budget::{Budget, Needs};
use crate::gpu;
use crate::gpu::driver::{CuFile, Device};
use crate::messages::{Lanes, Shared};
use crate::scheduler::{BatchAccount, DeviceArena, ReaderMemory};
use dali_zarr_base::error::Result;
use dali_zarr_base::memory::arena::Arena;
use dali_zarr_base::memory::{Account, HostArena, HostBlock, Pool};
use dali_zarr_samples::spec::Spec;

/// The memory of a reader, and the lanes that use it.
pub(super) struct Reserved {
    // The first field is dropped first: lanes use the memory.
    pub lanes: Option<Box<dyn Lanes>>,
    pub memory: ReaderMemory,
}

/// Reserves host memory, for batches of `batch_size` samples that are delivered to the CPU. With an `account` the block for
/// chunks and the number of batches grow with what can be drawn.
///
/// # Errors
/// If the system refuses.
pub(super) fn on_host(
    spec: &Spec,
    budget: &Budget,
    needs: &Needs,
    outputs: &[OutputInfo],
    account: Option<&Arc<Account>>,
) -> Result<Reserved> {
    let block = HostBlock::map(budget.host.block)?;
    let staging = match account {
        None => HostArena::new(block),
        Some(account) => HostArena::growing(block, needs.cpu_chunk(), Arc::clone(account)),
    };
    let pool = |o: &OutputInfo| Pool::drawing(o.batch_bytes(spec.batch_size), budget.host.idle, account.cloned());
    let pools = outputs.iter().map(pool).collect();
    let batches = account.map(|account| BatchAccount {
        account: Arc::clone(account),
        bytes: needs.batch as u64,
        reserved: needs.least_batches(spec.resources.prefetch_queue_depth),
        drawn: 0,
    });
    let memory = ReaderMemory { staging, slots: None, gds_buffer: None, gds: false, pools, batches, owned: Vec::new() };
    Ok(Reserved { lanes: None, memory })
}

/// Reserves memory for batches that are delivered to a device, and starts the lanes.
///
/// # Errors
/// If memory can't be had, or the device fails.
pub(super) fn on_device(
    device: &Arc<Device>,
    budget: &Budget,
    needs: &Needs,
    shared: &Shared,
    cufile: Option<&'static CuFile>,
) -> Result<Reserved> {
    let g = gpu::open(device, budget, needs, shared, cufile)?;
    let arena = |(base, bytes): (u64, usize)| DeviceArena { arena: Arena::new(bytes), base };
    let memory = ReaderMemory {
        staging: HostArena::new(g.staging),
        slots: Some(arena(g.slots)),
        gds_buffer: g.gds_buffer.map(arena),
        gds: cufile.is_some(),
        pools: Vec::new(),
        batches: None,
        owned: g.owned,
    };
    Ok(Reserved { lanes: Some(g.lanes), memory })
}
