//! How much memory a reader needs, and its reservation.

use std::sync::Arc;

use super::OutputInfo;
use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::flow::Block;
use crate::flow::budget::{self, Needs};
use crate::flow::catalog::{Catalog, Route};
use crate::flow::tasks::Shared;
use crate::geometry::Geometry;
use crate::gpu;
use crate::memory::arena::Arena;
use crate::memory::{HostBlock, Pool};
use crate::order::Order;
use crate::spec::{Device, Spec};

/// Chunks that one batch may need: what is known of each takes some hundred bytes of host memory.
const MAX_BATCH_CHUNKS: u64 = 1 << 19;

/// Refuses batches of so many chunks that planning them would take more memory than holding them.
pub(super) fn bound_chunks(spec: &Spec, dataset: &Dataset, geometry: &Geometry) -> Result<()> {
    let mut total = 0u64;
    for placement in &geometry.placements {
        let (view, array) = (&geometry.views[placement.array], &dataset.arrays[placement.array]);
        let most = |part: &crate::dataset::Part| {
            view.dims.iter().zip(&part.grid).fold(1u64, |n, (dim, grid)| {
                let elements = match dim.role {
                    crate::geometry::Role::Whole => dim.len,
                    crate::geometry::Role::Axis(a) => geometry.axes[a].window as u64,
                };
                let runs = if dim.pick.is_some() { elements } else { grid.count().min(elements) };
                n.saturating_mul(runs)
            })
        };
        let chunks = array.parts.iter().map(most).max().unwrap_or(0).saturating_mul(spec.batch_size as u64);
        total = total.saturating_add(chunks);
        if total > MAX_BATCH_CHUNKS {
            return Err(Error::value(format!(
                "array '{}': a batch needs more than {MAX_BATCH_CHUNKS} chunks, since they are small beside the samples; \
                 use a smaller batch_size or window, or larger chunks",
                array.name
            )));
        }
    }
    Ok(())
}

/// What the reader must hold at a time.
pub(super) fn needs(spec: &Spec, catalog: &Catalog, outputs: &[OutputInfo], order: &mut Order) -> Result<Needs> {
    let too_large = |name: &str| Error::value(format!("array '{name}': a chunk has more bytes than can be addressed"));
    let batch = outputs
        .iter()
        .try_fold(0usize, |n, o| n.checked_add(o.sample_bytes().checked_mul(spec.batch_size)?))
        .filter(|&n| n < 1 << 46)
        .ok_or_else(|| Error::value("a batch has more bytes than can be addressed"))?;
    let mut needs = Needs {
        batch,
        encoded: 0,
        decoded: 0,
        bounced: 0,
        per_thread: 0,
        index: 0,
        working_set: 0,
        smallest: usize::MAX,
        jobs: 0,
    };
    let gpu = matches!(spec.device, Device::Gpu(_));
    for (array, routes) in catalog.dataset.arrays.iter().zip(&catalog.routes) {
        for (part, route) in array.parts.iter().zip(routes) {
            let elements = part
                .largest_chunk()
                .iter()
                .try_fold(array.dtype.size(), |n, &l| n.checked_mul(usize::try_from(l).ok()?));
            let decoded = elements.filter(|&n| n < 1 << 44).ok_or_else(|| too_large(&array.name))?;
            needs.decoded = needs.decoded.max(decoded);
            let stream = match route {
                Route::Gpu(compression) => compression.typical_stream(decoded),
                _ => decoded,
            };
            needs.smallest = needs.smallest.min(stream.max(1));
            let encoded = match route {
                Route::Raw if !gpu && part.sharding.is_none() => 0,
                Route::Raw => decoded,
                _ => part.format.max_encoded_bytes(decoded),
            };
            needs.encoded = needs.encoded.max(encoded);
            if gpu && *route == Route::Cpu {
                needs.bounced = needs.bounced.max(decoded);
            }
            let working = part.format.scratch_bytes(decoded);
            needs.per_thread = needs.per_thread.max(working);
            if let Some(sharding) = &part.sharding {
                needs.index = needs.index.max(sharding.slots() * size_of::<Option<(u64, u64)>>() + 128);
            }
        }
    }
    let samples: Vec<u64> = (0..spec.batch_size as u64).map(|k| order.sample(k)).collect();
    let plan = catalog.planner.plan(&samples);
    needs.jobs = plan.jobs.len();
    needs.working_set = plan.uses.iter().map(|u| catalog.decoded_bytes(u.chunk)).sum();
    Ok(needs)
}

/// The memory of a reader, reserved.
pub(super) struct Memory {
    pub window: usize,
    pub threads: usize,
    pub indexes: usize,
    pub staging: Block,
    pub slots: Option<Block>,
    pub pools: Vec<Arc<Pool>>,
    pub lanes: Option<Box<dyn crate::flow::wave::Lanes>>,
    pub owned: Vec<Box<dyn Send>>,
}

pub(super) fn reserve(spec: &Spec, needs: &Needs, outputs: &[OutputInfo], shared: &Shared) -> Result<Memory> {
    let cores = std::thread::available_parallelism().map_or(4, usize::from);
    let threads = spec.decode_threads.unwrap_or(cores).max(1);
    let window = spec.prefetch_queue_depth;
    let counts =
        [("prefetch_queue_depth", window), ("io_threads", spec.io_threads), ("decode_threads", spec.decode_threads)];
    for (what, count) in counts {
        if let Some(n) = count
            && !(1..=1024).contains(&n)
        {
            return Err(Error::value(format!("{what}: expected a number from 1 to 1024, found {n}")));
        }
    }
    let host_limit = spec.host_memory_limit.unwrap_or(budget::DEFAULT_HOST);
    let Device::Gpu(ordinal) = spec.device else {
        // Without a limit from the user, a dataset with large chunks gets what it needs.
        let limit = match spec.host_memory_limit {
            Some(limit) => limit,
            None => budget::smallest_cpu(needs, window).saturating_mul(3).max(host_limit),
        };
        let b = budget::cpu(limit, needs, window, threads)?;
        let block = HostBlock::map(b.block)?;
        let staging = Block { arena: Arena::new(b.block), base: block.address() };
        let pools = outputs.iter().map(|o| Pool::new(o.sample_bytes() * spec.batch_size, 1)).collect();
        return Ok(Memory {
            window: b.window,
            threads: b.threads,
            indexes: b.indexes,
            staging,
            slots: None,
            pools,
            lanes: None,
            owned: vec![Box::new(block)],
        });
    };
    let g = gpu::open(ordinal, spec, needs, window, threads, shared)?;
    Ok(Memory {
        window: g.window,
        threads: g.threads,
        indexes: g.indexes,
        staging: Block { arena: Arena::new(g.staging.1), base: g.staging.0 },
        slots: Some(Block { arena: Arena::new(g.slots.1), base: g.slots.0 }),
        pools: Vec::new(),
        lanes: Some(g.lanes),
        owned: g.owned,
    })
}
