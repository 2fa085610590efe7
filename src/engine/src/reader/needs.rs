//! Finds how much memory a reader needs ([`Needs`]) from its dataset, its plans and its codecs.

use super::OutputInfo;
use crate::budget::{Budget, DeviceNeeds, HostBudget, LimitFinder, MAX_BATCHES, Needs, Rates, WaveTime};
use crate::chunk_index::{ChunkIndex, DIRECT_COPY, bytes_in_reach};
use crate::gpu;
use crate::io::MERGE_REMOTE;
use crate::route::{Decisions, Facts, Route, Training, decide};
use crate::scheduler::Rules;
use dali_zarr_base::error::{Error, Result};
use dali_zarr_base::memory::arena::rounded;
use dali_zarr_samples::dataset::{ArrayPart, Dataset, DimGrid, Sharding};
use dali_zarr_samples::geometry::{Geometry, Role, Rows};
use dali_zarr_samples::order::{Order, Sample};
use dali_zarr_samples::plan::{BatchPlan, ChunkId, ChunkMap};
use dali_zarr_samples::spec::{DecodeDevice, Device, Spec};
use dali_zarr_stores::{Latency, O_DIRECT_BYTES_PER_THREAD};

/// Maximum number of chunks that one batch may need. Each takes some hundred bytes of host memory while it is planned.
const MAX_BATCH_CHUNKS: u64 = 1 << 19;

/// Maximum number of jobs that are planned to see what a shuffle window, or several batches in a row, need.
const MAX_PLANNED_JOBS: usize = 1 << 16;

/// Minimum number of batches that are planned ahead. The scheduler limits their jobs too.
const MIN_LOOKAHEAD: usize = 8;

/// If all chunks of an epoch have more decoded bytes than this, it is not worth while to keep some of them until a random
/// order that ignores chunks needs them again.
const MAX_EPOCH: u128 = 4 << 30;

/// Refuses batches that need more than [`MAX_BATCH_CHUNKS`] chunks. To plan them would take more memory than to hold
/// them. `store` is the store of the geometry, if it isn't that of all.
pub(super) fn bound_chunks(spec: &Spec, dataset: &Dataset, geometry: &Geometry, store: Option<usize>) -> Result<()> {
    let batch = spec.batch_size as u64;
    let mut total = 0u64;
    for placement in &geometry.placements {
        let (view, array) = (&geometry.views[placement.array], &dataset.arrays[placement.array]);
        let most = |part: &dali_zarr_samples::dataset::ArrayPart| {
            view.dims.iter().zip(&part.grid).fold(1u64, |n, (dim, grid)| {
                let (elements, span) = match dim.role {
                    Role::Whole => (dim.len, dim.len),
                    Role::Axis(a) => {
                        let cut = &view.cuts[a];
                        (cut.window as u64, cut.span().map_or(u64::MAX, |span| span as u64))
                    }
                    Role::Ragged => return n.saturating_mul(of_rows(grid, &geometry.outputs[placement.output], batch)),
                };
                let runs = if dim.pick.is_some() { elements } else { grid.most_within(span).min(elements) };
                n.saturating_mul(runs)
            })
        };
        let parts = match store {
            Some(store) if array.parts.len() > 1 => &array.parts[store..=store],
            _ => &array.parts,
        };
        let chunks = parts.iter().map(most).max().unwrap_or(0).saturating_mul(batch);
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

/// Returns how many chunks along the ragged dimension a row needs, on average over the longest rows of a batch.
fn of_rows(grid: &DimGrid, output: &OutputInfo, batch: u64) -> u64 {
    let most = match grid {
        DimGrid::Regular { chunk, .. } => {
            let of_element = output.shape[1..].iter().product::<i64>().max(1) as u64;
            output.ragged.as_ref().map_or(0, |ragged| ragged.most) / of_element / chunk.max(&1) / batch + 2
        }
        DimGrid::Irregular(_) => output.shape[0] as u64,
    };
    most.min(grid.count())
}

/// Returns what the reader must hold in memory at a time, if chunks are decoded as `decisions` say.
///
/// # Errors
/// If a batch is too large for any machine, or a decoder is missing.
pub(super) fn needs(
    spec: &Spec,
    chunk_index: &ChunkIndex,
    decisions: &Decisions,
    outputs: &[OutputInfo],
    order: &mut Order,
) -> Result<Needs> {
    let batch = outputs
        .iter()
        .try_fold(0usize, |n, o| n.checked_add(o.batch_bytes(spec.batch_size)))
        .filter(|&n| n < 1 << 46)
        .ok_or_else(|| Error::value("a batch has more bytes than can be addressed"))?;
    let mut needs = Needs {
        batch,
        encoded: 0,
        decoded: 0,
        host_decoded: 0,
        per_thread: 0,
        fallback: 0,
        sharing: None,
        index: 0,
        tables: 0,
        opening: 0,
        read_buffers: if spec.resources.use_o_direct { spec.io_threads() * O_DIRECT_BYTES_PER_THREAD } else { 0 },
        request_bytes: 0,
        rows: chunk_index.planner.geometry().rows.as_ref().map_or(0, Rows::bytes),
        all: 0,
        working_set: 0,
        new_per_batch: 0,
        used_again: 0,
        shuffled: None,
        jobs: 0,
        device: device_needs(spec, chunk_index, decisions)?,
    };
    let may_share = may_share(spec.resources.decode_device);
    for RoutedPart { part, route, .. } in parts(&chunk_index.dataset, decisions) {
        let decoded = part.largest_bytes;
        needs.decoded = needs.decoded.max(decoded);
        let gpu = needs.device.is_some();
        let encoded = match route {
            Route::Raw if !gpu && part.sharding.is_none() => 0,
            Route::Raw => decoded,
            _ => part.format.usual_encoded_bytes(decoded),
        };
        needs.encoded = needs.encoded.max(encoded);
        let chunks = part.grid.iter().fold(1u64, |n, grid| n.saturating_mul(grid.count())) as usize;
        needs.all = needs.all.saturating_add(chunks.saturating_mul(rounded(encoded).saturating_add(rounded(decoded))));
        if chunk_index.dataset.stores[part.store].latency() == Latency::Remote {
            let alone = if chunk_index.dataset.stores[part.store].has_extents() { usize::MAX } else { 1 };
            let slots = part.sharding.as_ref().map_or(alone, Sharding::entries);
            let request = encoded.saturating_mul(slots).min(encoded.max(MERGE_REMOTE.limit as usize));
            needs.request_bytes = needs.request_bytes.max(spec.io_concurrency().saturating_mul(rounded(request)));
        }
        if gpu && route == Route::Cpu {
            needs.host_decoded = needs.host_decoded.max(decoded);
        }
        let working = part.format.scratch_bytes(decoded);
        // The CPU decodes a chunk in the GPU's place now and then, one at a time.
        let whose = if route == Route::Gpu { &mut needs.fallback } else { &mut needs.per_thread };
        *whose = (*whose).max(working);
        if route == Route::Gpu && may_share {
            needs.sharing = needs.sharing.max(Some(working));
        }
        if let Some(sharding) = &part.sharding {
            needs.index = needs.index.max(sharding.entries() * size_of::<Option<(u64, u64)>>() + 128);
        }
    }
    Ok(ordered(needs, spec, chunk_index, order))
}

/// Whether cores may decode chunks in the GPU's place while a model trains.
fn may_share(asked: DecodeDevice) -> bool {
    let training = Training { core_is_idle: true, due_after: MAX_BATCHES, task_batches: 0 };
    decide(&Facts { asked, training: Some(training), ..Facts::OF_GPU }).route == Route::Cpu
}

/// A part of an array, and how its chunks are decoded.
pub(super) struct RoutedPart<'a> {
    /// Index of the array in the dataset.
    pub array: usize,
    /// Index of the part in the array.
    pub number: usize,
    pub part: &'a ArrayPart,
    /// How its chunks are decoded.
    pub route: Route,
}

/// Returns all parts of all arrays.
pub(super) fn parts<'a>(dataset: &'a Dataset, decisions: &'a Decisions) -> impl Iterator<Item = RoutedPart<'a>> {
    dataset.arrays.iter().zip(decisions).enumerate().flat_map(|(array, (of, decisions))| {
        let parts = of.parts.iter().zip(decisions).enumerate();
        parts.map(move |(number, (part, decision))| RoutedPart { array, number, part, route: decision.route })
    })
}

/// Returns what delivery to a GPU needs; `None` with [`Device::Cpu`].
fn device_needs(spec: &Spec, chunk_index: &ChunkIndex, decisions: &Decisions) -> Result<Option<DeviceNeeds>> {
    if spec.device == Device::Cpu {
        return Ok(None);
    }
    let decoding = gpu::decoding(&chunk_index.dataset, decisions);
    let mut device =
        DeviceNeeds { decoding, staged: 0, staged_ratio: 0.0, stream: usize::MAX, gds_buffer: 0, time: WaveTime::NONE };
    for RoutedPart { array, number, part, route } in parts(&chunk_index.dataset, decisions) {
        let decoded = part.largest_bytes;
        let chain = part.format.gpu_chain().filter(|_| route == Route::Gpu);
        let rates = Rates::of_chain(chain);
        let (stream, staged) = match chain {
            Some(chain) => (chain.typical_stream(decoded), part.format.usual_encoded_bytes(decoded)),
            // Decoded chunks of at least `DIRECT_COPY` bytes are copied straight to their slots. If chunks differ in
            // size, some may be smaller.
            None if chunk_index.equal_bytes[array][number].is_some_and(|bytes| bytes >= DIRECT_COPY) => (decoded, 0),
            None => (decoded, decoded.min(DIRECT_COPY)),
        };
        device.stream = device.stream.min(stream.max(1));
        device.staged = device.staged.max(staged);
        if staged > 0 {
            device.staged_ratio = device.staged_ratio.max(rates.ratio());
        }
        device.time = device.time.max(rates.time(decoded));
    }
    Ok(Some(device))
}

/// Returns `needs` with those numbers that depend on the order of the samples. Plans some batches to find them.
pub(crate) fn ordered(needs: Needs, spec: &Spec, chunk_index: &ChunkIndex, order: &mut Order) -> Needs {
    let batch = spec.batch_size as u64;
    let first = plan(chunk_index, order, 0..batch);
    let jobs = first.jobs.len();
    let shuffled = window_bytes(chunk_index, order, jobs.div_ceil(spec.batch_size));
    let working_set = first.uses.iter().map(|u| slot_bytes(chunk_index, u.chunk)).sum();
    let batches = (MAX_PLANNED_JOBS / jobs.max(1)).clamp(1, MIN_LOOKAHEAD + 1) as u64;
    let later = (1..batches).map(|i| plan(chunk_index, order, i * batch..(i + 1) * batch));
    let (new_per_batch, used_again) = in_a_row(chunk_index, working_set, std::iter::once(first).chain(later));
    Needs { jobs, working_set, new_per_batch, used_again, shuffled, ..needs }
}

fn plan(chunk_index: &ChunkIndex, order: &mut Order, samples: std::ops::Range<u64>) -> BatchPlan {
    let samples: Vec<Sample> = samples.map(|k| order.sample(k)).collect();
    chunk_index.planner.plan(&samples)
}

/// Returns the bytes that a decoded chunk takes in its slot.
fn slot_bytes(chunk_index: &ChunkIndex, chunk: ChunkId) -> usize {
    rounded(chunk_index.decoded_bytes(chunk))
}

/// Returns two numbers of bytes of decoded chunks, for batches in a row. The first is what each batch adds to the
/// batches before it, on average ([`Needs::new_per_batch`]). The second is what the batches before some moment share
/// with the batches after it, at most ([`Needs::used_again`]).
fn in_a_row(chunk_index: &ChunkIndex, working_set: usize, batches: impl Iterator<Item = BatchPlan>) -> (usize, usize) {
    // For each chunk, the last batch so far that needs it.
    let mut last: ChunkMap<usize> = ChunkMap::default();
    // For each batch, the bytes of chunks that are needed before its end and again after it.
    let mut shared: Vec<usize> = Vec::new();
    let mut new = 0;
    for (i, batch) in batches.enumerate() {
        shared.push(0);
        for chunk in batch.uses.iter().map(|u| u.chunk) {
            let bytes = slot_bytes(chunk_index, chunk);
            match last.insert(chunk, i) {
                Some(before) => shared[before..i].iter_mut().for_each(|end| *end += bytes),
                None => new += bytes,
            }
        }
    }
    let fresh = match shared.len() {
        0 | 1 => working_set,
        n => new.saturating_sub(working_set) / (n - 1),
    };
    (fresh, shared.into_iter().max().unwrap_or(0))
}

/// Returns the bytes of the decoded chunks that a shuffle window needs. In a random order without windows, returns those
/// of the epoch, unless they are more than [`MAX_EPOCH`]. `None` if there are none. `jobs` is the number of jobs of each
/// sample.
fn window_bytes(chunk_index: &ChunkIndex, order: &mut Order, jobs: usize) -> Option<usize> {
    let samples = order.reach();
    if samples == 0 {
        return None;
    }
    let all = bytes_in_reach(&chunk_index.dataset, &chunk_index.planner, 0);
    if order.window().is_none() {
        return usize::try_from(all).ok().filter(|_| all <= MAX_EPOCH);
    }
    // Of a long window only a part is planned. The rest is assumed to be like it.
    let planned = samples.clamp(1, (MAX_PLANNED_JOBS / jobs.max(1)).max(1) as u64);
    let samples_of_part: Vec<Sample> = (0..planned).map(|k| order.sample(k)).collect();
    let of_part: usize = chunk_index
        .planner
        .chunks_of_samples(&samples_of_part)
        .into_iter()
        .map(|chunk| slot_bytes(chunk_index, chunk))
        .sum();
    let bytes = of_part as u128 * u128::from(samples) / u128::from(planned);
    Some(usize::try_from(bytes.min(all)).unwrap_or(usize::MAX))
}

/// Returns [`Rules::shared_tasks`], if the user gave this number of decode threads. By default half of the threads are left
/// to the thread that launches a model's kernels, which needs the cores and the bandwidth of memory too.
fn shared_tasks(given: Option<usize>, host: &HostBudget) -> usize {
    if given.is_some() { host.shared } else { host.shared.min(host.threads.div_ceil(2)) }
}

/// Returns the rules that the scheduler follows, with this budget.
pub(crate) fn rules(spec: &Spec, needs: &Needs, budget: &Budget) -> Rules {
    Rules {
        reads: [spec.io_threads(), spec.io_concurrency()],
        max_active: budget.batches,
        lookahead: budget.batches.max(MIN_LOOKAHEAD),
        index_limit: budget.host.indexes,
        largest_index: needs.index,
        batch_jobs: needs.jobs,
        working_set: needs.working_set,
        shuffled: needs.shuffled,
        index_output: spec.samples.return_index,
        shared_tasks: shared_tasks(spec.resources.decode_threads, &budget.host),
        several_shards: spec.order.num_shards > 1,
        limit_finder: LimitFinder::new(needs, spec.resources.prefetch_queue_depth),
    }
}

/// Refuses numbers of threads, requests and batches that no machine has room for.
pub(super) fn bound_counts(spec: &Spec) -> Result<()> {
    let counts = [
        ("prefetch_queue_depth", spec.resources.prefetch_queue_depth),
        ("io_threads", spec.resources.io_threads),
        ("io_concurrency", spec.resources.io_concurrency),
        ("decode_threads", spec.resources.decode_threads),
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

/// Returns how many bytes of device memory are best for reads of files: two reads for each thread.
pub(super) fn gds_buffer(spec: &Spec, encoded: usize) -> usize {
    (2 * spec.io_threads()).saturating_mul(encoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_cores_are_left_to_the_training_process() {
        let host = |threads, shared| HostBudget { batches: 0, idle: 0, block: 0, indexes: 0, threads, shared };
        let tasks = |given, threads, shared| shared_tasks(given, &host(threads, shared));
        assert_eq!(tasks(None, 16, 16), 8);
        assert_eq!(tasks(None, 16, 5), 5, "memory for five");
        assert_eq!([tasks(None, 7, 7), tasks(None, 2, 2), tasks(None, 1, 1)], [4, 1, 1]);
        assert_eq!(tasks(Some(16), 16, 16), 16, "what the user gave");
    }
}
