//! Reserves the memory of a reader, as its budget says.

use std::sync::Arc;

use super::OutputInfo;
use crate::budget::{Budget, Needs};
use crate::error::Result;
use crate::gpu;
use crate::gpu::driver::{CuFile, Device};
use crate::memory::arena::Arena;
use crate::memory::{HostArena, HostBlock, Pool};
use crate::messages::{Lanes, Shared};
use crate::scheduler::DeviceArena;

/// The memory of a reader, reserved.
pub(super) struct Memory {
    // The first field is dropped first: lanes use the memory of the other fields.
    pub lanes: Option<Box<dyn Lanes>>,
    pub staging: HostArena,
    pub slots: Option<DeviceArena>,
    pub gds_buffer: Option<DeviceArena>,
    /// Whether GPUDirect Storage reads files to the device.
    pub gds: bool,
    pub pools: Vec<Arc<Pool>>,
    pub owned: Vec<Box<dyn Send>>,
}

impl Memory {
    /// Reserves host memory, for batches of `batch_size` samples that are delivered to the CPU.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn on_host(budget: &Budget, outputs: &[OutputInfo], batch_size: usize) -> Result<Self> {
        let staging = HostArena::new(HostBlock::map(budget.host.block)?);
        let pool = |o: &OutputInfo| Pool::new(o.batch_bytes(batch_size), budget.host.idle);
        Ok(Self {
            staging,
            slots: None,
            gds_buffer: None,
            gds: false,
            pools: outputs.iter().map(pool).collect(),
            lanes: None,
            owned: Vec::new(),
        })
    }

    /// Reserves memory for batches that are delivered to a device, and starts the lanes.
    ///
    /// # Errors
    /// If memory can't be had, or the device fails.
    pub fn on_device(
        device: &Arc<Device>,
        budget: &Budget,
        needs: &Needs,
        shared: &Shared,
        cufile: Option<&'static CuFile>,
    ) -> Result<Self> {
        let g = gpu::open(device, budget, needs, shared, cufile)?;
        let arena = |(base, bytes): (u64, usize)| DeviceArena { arena: Arena::new(bytes), base };
        Ok(Self {
            staging: HostArena::new(g.staging),
            slots: Some(arena(g.slots)),
            gds_buffer: g.gds_buffer.map(arena),
            gds: cufile.is_some(),
            pools: Vec::new(),
            lanes: Some(g.lanes),
            owned: g.owned,
        })
    }
}
