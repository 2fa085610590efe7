//! How device memory is divided: outputs of batches, lanes that decode waves, and slots for decoded chunks.
//!
//! A stream takes the same time however many streams are decoded at the same time, until the GPU is full
//! ([`super::rates`]). So the throughput is the decoded bytes in flight divided by the seconds that a wave takes.
//! [`Shape::rate`] is this model. It was within 6 % of measurements of 60 shapes of five stores, with the kernels of
//! that time.
//!
//! The division is the shape with the highest rate of all shapes that fit. The set of shapes doesn't depend on the
//! limit, so more memory never gives less. Of shapes with the same rate the smallest is taken, because memory that
//! isn't used isn't reserved.

use super::needs::{DeviceNeeds, MAX_BATCHES, Needs, too_small};
use super::rates::WaveTime;
use dali_zarr_base::error::Result;
use dali_zarr_base::memory::arena::{ALIGN, rounded};

/// The highest default limit in bytes, unless the smallest possible limit is higher.
pub const MAX_DEFAULT_DEVICE: u64 = 8 << 30;
/// The default limit is chosen to give this share of the throughput of [`MAX_DEFAULT_DEVICE`], within
/// [`default_at_most`].
const DEFAULT_SHARE: f64 = 0.95;

/// Most encoded bytes per second, however much memory there is: the bus to the device is full then.
const BUS_RATE: f64 = 50e9;
/// The share of the bus rate that is enough: no more memory is taken to exceed it.
const ENOUGH: f64 = 0.97;
/// Decoded bytes per second at which a wave is copied and assembled. This time comes on top of the time that its
/// streams take.
const WAVE_RATE: f64 = 60e9;
/// Decoded bytes per second at which chunks are read.
const READ_RATE: f64 = 80e9;
/// Seconds from a freed slot to the next chunk in it, if no chunk was read ahead.
const READ_LATENCY: f64 = 0.5e-3;

/// The numbers of lanes that are tried.
const LANES: [usize; 6] = [1, 2, 3, 4, 6, 8];
/// Most decoded bytes of one wave.
const MAX_WAVE: usize = 1 << 30;
/// Most streams of one wave.
const MAX_STREAMS: usize = 32_768;

/// Bytes of each lane's tables for each stream of a wave.
pub const TABLE_PER_STREAM: usize = 168;
/// Bytes of each lane's tables for each block of zstd frames.
pub const TABLE_PER_BLOCK: usize = 96;
/// Bytes of each lane's table of jobs.
pub const JOB_TABLE: usize = 1 << 20;

/// How device memory is divided.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceBudget {
    /// Batches that may be in preparation or waiting. Each takes [`Needs::batch`] bytes, which the host program lends.
    pub batches: usize,
    /// How many of `batches` are for finished batches that wait: 0 or 1. The others are for batches in
    /// preparation.
    pub waiting: usize,
    /// Number of lanes: waves that run at a time.
    pub lanes: usize,
    /// Most decoded bytes of the chunks in one wave.
    pub wave_decoded: usize,
    /// Bytes of each lane's staging buffer. If chunks compress badly, a wave holds fewer of them.
    pub wave_encoded: usize,
    /// Most chunks in one wave, and most streams in one round of a lane.
    pub wave_streams: usize,
    /// Most blocks of zstd frames in one round of a lane.
    pub wave_blocks: usize,
    /// Bytes of tables of each lane, on the device and in host memory.
    pub tables: usize,
    /// Bytes of workspace of each lane.
    pub workspace: usize,
    /// Bytes of the block for decoded chunks.
    pub slots: usize,
    /// How many bytes of `slots` are for chunks that are read while all lanes are busy.
    pub ahead: usize,
    /// Bytes of the block to which GPUDirect Storage reads files. 0: none.
    pub gds_buffer: usize,
}

impl DeviceBudget {
    /// Returns the bytes of all device memory: reserved by the reader, and lent for outputs.
    pub fn total(&self, needs: &Needs) -> usize {
        self.batches * needs.batch
            + self.lanes * (self.wave_encoded + self.workspace + rounded(self.tables))
            + self.slots
            + self.gds_buffer
    }

    /// Returns the expected decoded bytes per second, for chunks whose waves take `time`.
    pub fn rate(&self, needs: &Needs, time: WaveTime) -> f64 {
        let Self { batches, waiting, lanes, wave_decoded: wave, ahead, .. } = *self;
        Shape { batches: batches - waiting, lanes, wave, ahead }.rate(needs, time)
    }
}

/// The numbers that a division chooses. All others follow from them.
#[derive(Clone, Copy, Debug)]
struct Shape {
    /// Batches in preparation.
    batches: usize,
    /// Lanes that run waves at the same time.
    lanes: usize,
    /// Decoded bytes of one wave.
    wave: usize,
    /// Decoded bytes of the chunks that are read while all lanes are busy.
    ahead: usize,
}

impl Shape {
    /// Returns the expected decoded bytes per second.
    fn rate(&self, needs: &Needs, time: WaveTime) -> f64 {
        let (wave, ahead) = (self.wave as f64, self.ahead as f64);
        let late = if self.ahead < needs.decoded { READ_LATENCY } else { 0.0 };
        // The waves of all lanes share the GPU.
        let all = self.lanes as f64 * wave;
        let latency = time.latency + all / time.gpu + late;
        let lanes = all / (latency + wave / WAVE_RATE + (wave - ahead).max(0.0) / READ_RATE);
        // A batch ends one wave's latency after the decoding of its last chunk began, and holds its memory until then.
        let of_batches = needs.of_batches(self.batches).max(1) as f64 / latency;
        // The least of `full`, `lanes` and `of_batches`, with a smooth bend where two are alike.
        let full = full_rate(needs);
        full / (1.0 + (full / lanes).powi(6) + (full / of_batches).powi(6)).powf(1.0 / 6.0)
    }

    /// Returns the bytes that each lane takes: staging, workspace, tables.
    fn lane(&self, device: &DeviceNeeds) -> [usize; 3] {
        let staging = match device.staged {
            0 => ALIGN,
            staged => rounded(staged).max(rounded((self.wave as f64 * device.staged_ratio) as usize)),
        };
        let workspace = device.decoding.map_or(ALIGN, |decoding| rounded(decoding.workspace(self.wave)));
        [staging, workspace, tables_for(streams_in(device, self.wave), self.wave)]
    }

    fn bytes(&self, needs: &Needs, device: &DeviceNeeds) -> usize {
        let [staging, workspace, tables] = self.lane(device);
        self.bytes_of(needs, staging.saturating_add(workspace).saturating_add(rounded(tables)))
    }

    /// Returns the bytes of the shape, if each lane takes `lane` bytes besides the slots of its wave.
    fn bytes_of(&self, needs: &Needs, lane: usize) -> usize {
        let outputs = self.batches.saturating_mul(needs.batch);
        self.lanes.saturating_mul(lane.saturating_add(self.wave)).saturating_add(self.ahead).saturating_add(outputs)
    }
}

/// All shapes that are tried for a reader with these needs.
struct Shapes<'a> {
    needs: &'a Needs,
    device: &'a DeviceNeeds,
    /// The numbers of batches that are tried.
    numbers_of_batches: Vec<usize>,
    /// The sizes of waves that are tried.
    waves: Vec<Wave>,
}

/// One of the sizes of waves that are tried.
#[derive(Clone, Copy)]
struct Wave {
    /// Number of chunks of the largest size in one wave.
    chunks: usize,
    /// Bytes of each lane besides the slots of its wave.
    lane: usize,
    /// How many of these bytes are for the lane's tables.
    tables: usize,
}

/// A shape with its expected decoded bytes per second and its bytes of memory.
#[derive(Clone, Copy)]
struct Rated {
    shape: Shape,
    rate: f64,
    bytes: usize,
}

impl<'a> Shapes<'a> {
    /// `batches` is the number of batches that the user asked for, if any.
    fn new(needs: &'a Needs, device: &'a DeviceNeeds, batches: Option<usize>) -> Self {
        let numbers_of_batches = match batches {
            Some(batches) => vec![batches.max(1)],
            None => (1..=6).chain([8, 10, 12, 16, 20, 24, MAX_BATCHES]).collect(),
        };
        let streams = MAX_STREAMS.saturating_mul(device.stream);
        let most = MAX_WAVE.min(streams) / rounded(needs.decoded);
        let step = |&chunks: &usize| Some((chunks + 1).max(chunks + chunks / 8));
        let wave = |chunks| {
            let shape = Shape { batches: 1, lanes: 1, wave: chunks * rounded(needs.decoded), ahead: 0 };
            let [staging, workspace, tables] = shape.lane(device);
            Wave { chunks, lane: staging.saturating_add(workspace).saturating_add(rounded(tables)), tables }
        };
        let sizes = std::iter::successors(Some(1), step).take_while(|&chunks| chunks == 1 || chunks <= most);
        let waves = sizes.map(wave).collect();
        Self { needs, device, numbers_of_batches, waves }
    }

    /// Returns the shape with the highest rate of all that fit into `total` bytes of device memory and `tables` bytes
    /// of host memory. Rates above `enough` bytes per second count as `enough`: of the shapes that reach it, the
    /// smallest is returned. `None` if no shape fits.
    fn best(&self, total: usize, tables: usize, enough: f64) -> Option<Rated> {
        let mut best: Option<Rated> = None;
        for &batches in &self.numbers_of_batches {
            for lanes in LANES {
                for ahead in 0..3 {
                    for &Wave { chunks, lane, tables: each } in &self.waves {
                        let Some(shape) = self.shape(batches, lanes, chunks, ahead) else { break };
                        let bytes = shape.bytes_of(self.needs, lane);
                        if bytes > total || lanes.saturating_mul(each) > tables {
                            break;
                        }
                        let rate = shape.rate(self.needs, self.device.time).min(enough);
                        if best.is_none_or(|b| rate > b.rate || (rate == b.rate && bytes < b.bytes)) {
                            best = Some(Rated { shape, rate, bytes });
                        }
                        if rate >= enough {
                            break;
                        }
                    }
                }
            }
        }
        best
    }

    /// Returns the bytes of the smallest shape that gives [`DEFAULT_SHARE`] of the throughput of
    /// [`MAX_DEFAULT_DEVICE`], at most [`default_at_most`].
    fn enough(&self) -> usize {
        let best = |enough| self.best(MAX_DEFAULT_DEVICE as usize, usize::MAX, enough);
        let most = best(ENOUGH * full_rate(self.needs)).map_or(0.0, |best| best.rate);
        best(DEFAULT_SHARE * most).map_or(0, |best| best.bytes).min(default_at_most(self.needs))
    }

    /// Returns the shape with these numbers of batches, lanes and chunks in a wave, which reads `ahead` halves of a
    /// wave ahead. `None` if the waves of all lanes hold more chunks than this number of batches needs.
    fn shape(&self, batches: usize, lanes: usize, chunks: usize, ahead: usize) -> Option<Shape> {
        let chunk = rounded(self.needs.decoded);
        let useful = self.needs.of_batches(batches).div_ceil(chunk).max(1);
        let waves = lanes.saturating_mul(chunks);
        let ahead = (chunks * ahead).div_ceil(2).min(useful.checked_sub(waves)?);
        Some(Shape { batches, lanes, wave: chunks * chunk, ahead: ahead * chunk })
    }
}

/// Returns the most decoded bytes per second that the bus allows, however much memory there is.
fn full_rate(needs: &Needs) -> f64 {
    let ratio = needs.device.map_or(1.0, |device| if device.staged > 0 { device.staged_ratio } else { 1.0 });
    BUS_RATE / ratio.clamp(0.25, 1.0)
}

/// Returns how many streams a wave of `decoded` bytes may have.
fn streams_in(device: &DeviceNeeds, decoded: usize) -> usize {
    (decoded / device.stream.max(1)).clamp(1, MAX_STREAMS)
}

/// Returns the most blocks of zstd frames in a round: two for each 128 KiB of decoded bytes, twice what encoders make,
/// and two for each stream.
const fn blocks_for(streams: usize, decoded: usize) -> usize {
    2 * streams + 2 * (decoded >> 17)
}

/// Returns the bytes of the tables of a lane.
const fn tables_for(streams: usize, decoded: usize) -> usize {
    streams * TABLE_PER_STREAM + blocks_for(streams, decoded) * TABLE_PER_BLOCK + JOB_TABLE
}

/// Returns the bytes of the tables of a lane that takes one chunk at a time. 0 without a device.
pub(super) fn least_tables(needs: &Needs) -> usize {
    let chunk = rounded(needs.decoded);
    needs.device.map_or(0, |device| tables_for(streams_in(&device, chunk), chunk))
}

/// Returns the smallest shape: one lane, one chunk at a time.
fn smallest_shape(needs: &Needs, batches: Option<usize>) -> Shape {
    Shape { batches: batches.unwrap_or(1).max(1), lanes: 1, wave: rounded(needs.decoded), ahead: 0 }
}

/// Returns the smallest possible limit on device memory in bytes: memory for one chunk, and for this number of `batches`
/// (`None`: one). 0 without a device.
pub fn smallest_device(needs: &Needs, batches: Option<usize>) -> u64 {
    let Some(device) = needs.device else { return 0 };
    let gds_buffer = if device.gds_buffer > 0 { rounded(needs.encoded) } else { 0 };
    smallest_shape(needs, batches).bytes(needs, &device).saturating_add(gds_buffer) as u64
}

/// Returns the most bytes that the default limit takes for throughput. The model needs the memory, and asks for a part
/// of what the reader could give.
pub(super) const fn default_at_most(needs: &Needs) -> usize {
    (2usize << 30).saturating_add(needs.batch)
}

/// Returns the limit in bytes if the user sets none, before looking at the device. It is the smallest limit that is
/// expected to give [`DEFAULT_SHARE`] of the throughput of [`MAX_DEFAULT_DEVICE`], at most [`default_at_most`], plus
/// memory for the chunks that are worth keeping.
pub(super) fn default_device(needs: &Needs, batches: Option<usize>) -> u64 {
    let Some(device) = needs.device else { return 0 };
    let enough = Shapes::new(needs, &device, batches).enough();
    // One batch more: a finished one that waits.
    let outputs = if batches.is_none() { needs.batch } else { 0 };
    let bytes = enough.saturating_add(outputs).saturating_add(needs.kept()).saturating_add(device.gds_buffer) as u64;
    let smallest = smallest_device(needs, batches);
    bytes.div_ceil(1 << 20).saturating_mul(1 << 20).min(MAX_DEFAULT_DEVICE).max(smallest)
}

/// Returns the expected decoded bytes per second with as much device memory as is useful, for chunks whose waves take
/// `time`. 0 without a device.
pub fn rate_at_most(needs: &Needs, batches: Option<usize>, time: WaveTime) -> f64 {
    let Some(device) = &needs.device else { return 0.0 };
    let best =
        Shapes::new(needs, device, batches).best(MAX_DEFAULT_DEVICE as usize, usize::MAX, ENOUGH * full_rate(needs));
    best.map_or(0.0, |best| best.shape.rate(needs, time))
}

/// Returns the smallest limit in bytes with which `rate` decoded bytes per second are expected; [`u64::MAX`] if no
/// limit is enough.
pub fn limit_for_rate(needs: &Needs, batches: Option<usize>, rate: f64) -> u64 {
    let Some(device) = &needs.device else { return u64::MAX };
    let best = Shapes::new(needs, device, batches).best(usize::MAX, usize::MAX, rate);
    best.filter(|best| best.rate >= rate).map_or(u64::MAX, |best| best.bytes as u64)
}

/// Returns the bytes of slots for chunks that later batches need too. `total` are the bytes to divide, of which the
/// smallest division takes `least`.
///
/// Keeping chunks saves decoding. So memory for the chunks of one batch comes before throughput, and memory for other
/// chunks before the last few percent of throughput.
fn kept(needs: &Needs, shapes: &Shapes<'_>, total: usize, least: usize) -> usize {
    let first = needs.kept().min(needs.working_set).min((total - least) / 2);
    let others = needs.kept() - first;
    if others == 0 {
        return first;
    }
    let beyond = (total - first).saturating_sub(shapes.enough().max(least));
    first + others.min(beyond)
}

/// Divides `limit` bytes of device memory. `batches` is the number of batches that the user asked for, if any.
/// `host_tables` is the most that the tables of all lanes may take in host memory, in bytes.
///
/// # Errors
/// If one chunk and one batch don't fit. The error names the smallest limit that would be enough.
pub(super) fn divide(
    limit: u64,
    needs: &Needs,
    device: &DeviceNeeds,
    batches: Option<usize>,
    host_tables: usize,
) -> Result<DeviceBudget> {
    let total = usize::try_from(limit).unwrap_or(usize::MAX);
    let smallest = smallest_device(needs, batches) as usize;
    if total < smallest {
        return Err(too_small("device_memory_limit", limit, smallest, 0));
    }
    let min_gds_buffer = if device.gds_buffer > 0 { rounded(needs.encoded) } else { 0 };
    let gds_buffer = match device.gds_buffer {
        0 => 0,
        wanted => rounded(wanted).min(total / 8).min(total - smallest).max(min_gds_buffer),
    };
    let total = total - gds_buffer;
    let shapes = Shapes::new(needs, device, batches);
    let kept = kept(needs, &shapes, total, smallest - min_gds_buffer);
    let best = shapes.best(total - kept, host_tables, ENOUGH * full_rate(needs));
    let shape = best.map_or(smallest_shape(needs, batches), |best| best.shape);
    // If memory is left, one more batch: a finished one that waits, while `shape.batches` others are in preparation.
    let left = total - kept - shape.bytes(needs, device);
    let waiting = usize::from(batches.is_none() && shape.batches < MAX_BATCHES && left >= needs.batch);
    let [wave_encoded, workspace, tables] = shape.lane(device);
    let streams = streams_in(device, shape.wave);
    Ok(DeviceBudget {
        batches: shape.batches + waiting,
        waiting,
        lanes: shape.lanes,
        wave_decoded: shape.wave,
        wave_encoded,
        wave_streams: streams,
        wave_blocks: blocks_for(streams, shape.wave),
        tables,
        workspace,
        slots: shape.lanes * shape.wave + shape.ahead + kept / ALIGN * ALIGN,
        ahead: shape.ahead,
        gds_buffer: gds_buffer / ALIGN * ALIGN,
    })
}
