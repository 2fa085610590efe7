//! Reserves the memory of a reader, as its budget says.

use std::sync::Arc;

use super::OutputInfo;
use crate::budget::{Budget, Needs};
use crate::error::Result;
use crate::gpu;
use crate::gpu::driver::{CuFile, Device};
use crate::memory::arena::Arena;
use crate::memory::{HostBlock, Pool};
use crate::messages::{Lanes, Shared};
use crate::scheduler::Block;

/// The memory of a reader, reserved.
pub(super) struct Memory {
    pub staging: Block,
    pub slots: Option<Block>,
    pub gds_buffer: Option<Block>,
    /// Whether GPUDirect Storage reads files to the device.
    pub gds: bool,
    pub pools: Vec<Arc<Pool>>,
    pub lanes: Option<Box<dyn Lanes>>,
    pub owned: Vec<Box<dyn Send>>,
}

impl Memory {
    /// Reserves host memory, for batches of `batch_size` samples that are delivered to the CPU.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn on_host(budget: &Budget, outputs: &[OutputInfo], batch_size: usize) -> Result<Self> {
        let block = HostBlock::map(budget.host.block)?;
        let staging = Block { arena: Arena::new(budget.host.block), base: block.address() };
        let pool = |o: &OutputInfo| Pool::new(o.batch_bytes(batch_size), budget.host.idle);
        Ok(Self {
            staging,
            slots: None,
            gds_buffer: None,
            gds: false,
            pools: outputs.iter().map(pool).collect(),
            lanes: None,
            owned: vec![Box::new(block)],
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
        Ok(Self {
            staging: Block { arena: Arena::new(g.staging.1), base: g.staging.0 },
            slots: Some(Block { arena: Arena::new(g.slots.1), base: g.slots.0 }),
            gds_buffer: g.gds_buffer.map(|(base, bytes)| Block { arena: Arena::new(bytes), base }),
            gds: cufile.is_some(),
            pools: Vec::new(),
            lanes: Some(g.lanes),
            owned: g.owned,
        })
    }
}
