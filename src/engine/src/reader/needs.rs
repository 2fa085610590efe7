//! How much memory a reader needs, and its reservation.

use std::sync::Arc;

use super::OutputInfo;
use crate::budget::{self, DeviceBudget, HostBudget, Limits, Needs};
use crate::chunk_index::{ChunkIndex, Route};
use crate::dataset::{Dataset, Sharding};
use crate::error::{Error, Result};
use crate::geometry::Geometry;
use crate::gpu;
use crate::io::MERGE_REMOTE;
use crate::memory::arena::{Arena, rounded};
use crate::memory::{HostBlock, Machine, Pool, shown};
use crate::messages::Shared;
use crate::order::{Order, Sample};
use crate::scheduler::oversized::Room;
use crate::scheduler::{Block, Rules};
use crate::spec::{Device, Spec, cores};
use crate::store::{Latency, O_DIRECT_BYTES_PER_THREAD};

/// Chunks that one batch may need: what is known of each takes some hundred bytes of host memory.
const MAX_BATCH_CHUNKS: u64 = 1 << 19;

/// Jobs that are planned to see what a window of shuffled samples needs.
const LOOK_AT_JOBS: usize = 1 << 16;

/// Batches that are planned ahead at most; the scheduler has a limit on their jobs too.
const MOST_LOOKAHEAD: f64 = 4096.0;

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
pub(super) fn needs(spec: &Spec, catalog: &ChunkIndex, outputs: &[OutputInfo], order: &mut Order) -> Result<Needs> {
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
        fallback: 0,
        index: 0,
        reading: if spec.use_o_direct { spec.io_threads() * O_DIRECT_BYTES_PER_THREAD } else { 0 },
        landing: 0,
        requested: 0,
        working_set: 0,
        shuffled: None,
        smallest: usize::MAX,
        jobs: 0,
    };
    let gpu = matches!(spec.device, Device::Gpu(_));
    for (array, routes) in catalog.dataset.arrays.iter().zip(&catalog.routes) {
        for (part, route) in array.parts.iter().zip(routes) {
            let decoded = part.largest_bytes;
            needs.decoded = needs.decoded.max(decoded);
            let stream = match (route, part.format.packed()) {
                (Route::Gpu, Some(packed)) => packed.typical_stream(decoded),
                _ => decoded,
            };
            needs.smallest = needs.smallest.min(stream.max(1));
            let encoded = match route {
                Route::Raw if !gpu && part.sharding.is_none() => 0,
                Route::Raw => decoded,
                _ => part.format.usual_encoded_bytes(decoded),
            };
            needs.encoded = needs.encoded.max(encoded);
            if catalog.dataset.stores[part.store].latency() == Latency::Remote {
                let alone = if catalog.dataset.stores[part.store].has_extents() { usize::MAX } else { 1 };
                let slots = part.sharding.as_ref().map_or(alone, Sharding::entries);
                let request = encoded.saturating_mul(slots).min(encoded.max(MERGE_REMOTE.limit as usize));
                needs.requested = needs.requested.max(spec.io_concurrency().saturating_mul(rounded(request)));
            }
            if gpu && *route == Route::Cpu {
                needs.bounced = needs.bounced.max(decoded);
            }
            let working = part.format.scratch_bytes(decoded);
            // What the GPU decodes goes to the CPU now and then, one chunk at a time.
            let whose = if *route == Route::Gpu { &mut needs.fallback } else { &mut needs.per_thread };
            *whose = (*whose).max(working);
            if let Some(sharding) = &part.sharding {
                needs.index = needs.index.max(sharding.entries() * size_of::<Option<(u64, u64)>>() + 128);
            }
        }
    }
    Ok(ordered(needs, spec, catalog, order))
}

/// The same needs for samples in this order.
pub(crate) fn ordered(needs: Needs, spec: &Spec, catalog: &ChunkIndex, order: &mut Order) -> Needs {
    let (jobs, working_set) = first_samples(catalog, order, spec.batch_size as u64);
    Needs { jobs, working_set, shuffled: window_bytes(catalog, order, jobs.div_ceil(spec.batch_size)), ..needs }
}

/// The jobs of an order's first samples, and the bytes of the decoded chunks that they need.
fn first_samples(catalog: &ChunkIndex, order: &mut Order, samples: u64) -> (usize, usize) {
    let samples: Vec<Sample> = (0..samples).map(|k| order.sample(k)).collect();
    let plan = catalog.planner.plan(&samples);
    (plan.jobs.len(), plan.uses.iter().map(|u| catalog.decoded_bytes(u.chunk)).sum())
}

/// Bytes of the decoded chunks that a window of shuffled samples needs, which have `jobs` jobs each; `None` if the order has
/// no windows.
fn window_bytes(catalog: &ChunkIndex, order: &mut Order, jobs: usize) -> Option<usize> {
    let (samples, _) = order.window()?;
    // Of a long window a part is planned, and the rest is thought to be like it.
    let planned = samples.clamp(1, (LOOK_AT_JOBS / jobs.max(1)).max(1) as u64);
    let bytes = first_samples(catalog, order, planned).1 as u128 * u128::from(samples) / u128::from(planned);
    Some(usize::try_from(bytes).unwrap_or(usize::MAX))
}

/// The memory of a reader, reserved.
pub(super) struct Memory {
    pub window: usize,
    pub threads: usize,
    pub indexes: usize,
    pub staging: Block,
    pub slots: Option<Block>,
    pub landing: Option<Block>,
    /// Whether files are read to the device.
    pub past_host: bool,
    pub pools: Vec<Arc<Pool>>,
    pub lanes: Option<Box<dyn crate::messages::Lanes>>,
    pub owned: Vec<Box<dyn Send>>,
}

/// How the memory of a reader is divided. Pure arithmetic: nothing is reserved.
pub(crate) enum Division {
    Cpu(HostBudget),
    Gpu(DeviceBudget, HostBudget),
}

/// Batches that are planned ahead of those in preparation; `window` is that of [`Order::window`].
///
/// With a window they must reach so far that chunks are kept for its samples. A sample comes from any of the window's `blocks`, so after `blocks * ln(100 b)` samples all `b` samples of a block have come
/// with hardly an exception, and after the whole window without any.
fn lookahead(window: Option<(u64, u64)>, active: usize, batch: usize) -> usize {
    let least = active.max(8);
    let Some((samples, blocks)) = window else { return least };
    let each = samples as f64 / blocks.max(1) as f64;
    let reach = (blocks as f64 * (100.0 * each).ln()).min(samples as f64);
    // The first batches of the next window need its chunks before the last ones have used theirs.
    least.max((reach / batch as f64).ceil().min(MOST_LOOKAHEAD) as usize + 1)
}

/// What the scheduler goes by for samples in this order, with room for `window` batches and `indexes` bytes of shard indexes.
pub(crate) fn rules(spec: &Spec, needs: &Needs, order: &Order, window: usize, indexes: usize) -> Rules {
    Rules {
        reads: [spec.io_threads(), spec.io_concurrency()],
        max_active: window,
        lookahead: lookahead(order.window(), window, spec.batch_size),
        index_limit: indexes,
        largest_index: needs.index,
        batch_jobs: needs.jobs,
        working_set: needs.working_set,
        shuffled: needs.shuffled,
        index_output: spec.return_index,
        shared_tasks: 0,
        room: Room::new(needs, spec.prefetch_queue_depth, spec.device != Device::Cpu),
    }
}

/// Refuses numbers of threads and batches that no machine has room for.
pub(super) fn bound_counts(spec: &Spec) -> Result<()> {
    let window = spec.prefetch_queue_depth;
    let counts = [
        ("prefetch_queue_depth", window),
        ("io_threads", spec.io_threads),
        ("io_concurrency", spec.io_concurrency),
        ("decode_threads", spec.decode_threads),
    ];
    for (what, count) in counts {
        if let Some(n) = count
            && !(1..=1024).contains(&n)
        {
            return Err(Error::value(format!("{what}: expected a number from 1 to 1024, found {n}")));
        }
    }
    Ok(())
}

/// The least of each kind of memory with which a reader runs.
///
/// # Errors
/// If a decoder can't take chunks of this size, or is missing.
pub(crate) fn smallest(spec: &Spec, needs: &Needs, catalog: &ChunkIndex) -> Result<Limits> {
    let window = spec.prefetch_queue_depth;
    match spec.device {
        Device::Cpu => Ok(Limits { host: budget::smallest_cpu(needs, window), device: 0 }),
        Device::Gpu(_) => gpu::smallest(spec, needs, catalog),
    }
}

/// The memory that there is, as far as that is known.
#[derive(Clone, Debug, Default)]
pub(crate) struct There {
    pub host: Option<Machine>,
    /// Bytes of device memory: those that are free, and all.
    pub device: Option<(u64, u64)>,
}

/// The limits of a spec where there is so much memory.
///
/// # Errors
/// [`ErrorKind::Memory`](crate::error::ErrorKind::Memory) if a reader needs more than that.
pub(crate) fn limits(spec: &Spec, needs: &Needs, catalog: &ChunkIndex, there: &There) -> Result<Limits> {
    let smallest = smallest(spec, needs, catalog)?;
    let lacks = |which: &str, smallest: u64, total: u64, says: &str| {
        Error::memory(format!(
            "{which} memory: expected at least {smallest} bytes ({}) for one chunk and {} of this dataset (a batch of {} samples \
             has {} bytes, the largest chunk {}), but found {total} bytes ({}) in all ({says}); use a smaller batch_size, \
             window or prefetch_queue_depth, or smaller chunks",
            shown(smallest),
            match spec.prefetch_queue_depth {
                Some(n @ 2..) => format!("{n} batches"),
                _ => "one batch".into(),
            },
            spec.batch_size,
            needs.batch,
            needs.decoded,
            shown(total)
        ))
    };
    if let Some(host) = there.host.as_ref().filter(|host| host.total < smallest.host) {
        return Err(lacks("host", smallest.host, host.total, &host.says));
    }
    if let Some((_, total)) = there.device.filter(|&(_, total)| total < smallest.device) {
        return Err(lacks("device", smallest.device, total, "of the GPU"));
    }
    let default = match spec.device {
        // A dataset with large chunks gets what it needs.
        Device::Cpu => Limits { host: smallest.host.saturating_mul(3).max(budget::DEFAULT_HOST), device: 0 },
        Device::Gpu(_) => gpu::default_limits(needs, catalog, there.device.map(|(free, _)| free)),
    };
    let all = there.device.map_or(u64::MAX, |(_, total)| total);
    Ok(Limits {
        host: budget::host_limit(
            spec.host_memory_limit,
            default.host,
            smallest.host,
            there.host.as_ref().map(|host| host.total),
        ),
        device: match spec.device {
            Device::Cpu => 0,
            Device::Gpu(_) => spec.device_memory_limit.unwrap_or(default.device).min(all),
        },
    })
}

/// Divides these limits.
///
/// # Errors
/// If they are too small, with the smallest that would do; or if a number of threads or batches is absurd.
pub(crate) fn divide(spec: &Spec, needs: &Needs, catalog: &ChunkIndex, limits: Limits) -> Result<Division> {
    let threads = spec.decode_threads.unwrap_or_else(cores).max(1);
    match spec.device {
        Device::Cpu => Ok(Division::Cpu(budget::cpu(limits.host, needs, spec.prefetch_queue_depth, threads)?)),
        Device::Gpu(_) => {
            let (device, host) = gpu::divide(spec, needs, catalog, limits, threads)?;
            Ok(Division::Gpu(device, host))
        }
    }
}

/// Bytes of device memory that files are best read to: two reads for each thread.
fn landing(spec: &Spec, needs: &Needs) -> usize {
    (2 * spec.io_threads()).saturating_mul(needs.encoded)
}

pub(super) fn reserve(spec: &Spec, needs: &Needs, outputs: &[OutputInfo], shared: &Shared) -> Result<Memory> {
    let device = match spec.device {
        Device::Cpu => None,
        Device::Gpu(ordinal) => Some(crate::gpu::driver::Device::open(ordinal)?),
    };
    let cufile = match &device {
        Some(device) => gpu::gds::choose(spec, &shared.chunk_index, device)?,
        None => None,
    };
    let needs = &Needs { landing: cufile.map_or(0, |_| landing(spec, needs)), ..*needs };
    let memory = device.as_ref().map(|d| d.memory_info()).transpose()?;
    let there = There { host: Machine::find(), device: memory.map(|(free, total)| (free as u64, total as u64)) };
    let limits = limits(spec, needs, &shared.chunk_index, &there)?;
    match (divide(spec, needs, &shared.chunk_index, limits)?, device) {
        (Division::Gpu(b, h), Some(device)) => {
            let g = gpu::open(&device, &b, &h, needs, shared, cufile)?;
            Ok(Memory {
                window: b.window,
                threads: h.threads,
                indexes: h.indexes,
                staging: Block { arena: Arena::new(g.staging.1), base: g.staging.0 },
                slots: Some(Block { arena: Arena::new(g.slots.1), base: g.slots.0 }),
                landing: g.gds_buffer.map(|(base, bytes)| Block { arena: Arena::new(bytes), base }),
                past_host: cufile.is_some(),
                pools: Vec::new(),
                lanes: Some(g.lanes),
                owned: g.owned,
            })
        }
        (Division::Gpu(_, b) | Division::Cpu(b), _) => {
            let block = HostBlock::map(b.block)?;
            let staging = Block { arena: Arena::new(b.block), base: block.address() };
            let pools = outputs.iter().map(|o| Pool::new(o.sample_bytes() * spec.batch_size, b.idle)).collect();
            Ok(Memory {
                window: b.window,
                threads: b.threads,
                indexes: b.indexes,
                staging,
                slots: None,
                landing: None,
                past_host: false,
                pools,
                lanes: None,
                owned: vec![Box::new(block)],
            })
        }
    }
}
