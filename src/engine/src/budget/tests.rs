//! Tests what memory limits give.

use super::device::{self, MAX_DEFAULT_DEVICE, rate_at_most, smallest_device};
use super::needs::tests::{FIELD, MIB, Numbers, on_gpu};
use super::*;
use crate::route::Expected;
use dali_zarr_base::memory::arena::rounded;
use dali_zarr_codecs::{BloscCodec, Compression};

const GIB: u64 = 1 << 30;

/// Makes a user's request with these limits.
fn asked(host: Option<u64>, device: Option<u64>, batches: Option<usize>) -> Asked {
    Asked { host, device, batches, threads: 16, batch_size: 16 }
}

fn divide_limits(needs: &Needs, asked: &Asked) -> Budget {
    divide(needs, asked, &MachineMemory::default()).unwrap().accepted().unwrap()
}

/// Returns the device's part of the budget with this limit and plenty of host memory.
fn device(needs: &Needs, limit: u64, batches: Option<usize>) -> DeviceBudget {
    divide_limits(needs, &asked(Some(64 * GIB), Some(limit), batches)).device.unwrap()
}

/// Returns the needs of chunks of `chunk` bytes with this compression, with `fields` fields of 4.15 MB in a batch.
fn fields(fields: usize, chunk: usize, compression: Option<Compression>) -> Needs {
    let rates = Rates::of(compression);
    let zstd = compression == Some(Compression::Zstd);
    let decoding = Decoding {
        least_workspace: if zstd { 3 * chunk + (64 << 10) } else { 0 },
        workspace_per_mib: if zstd { 5 * MIB / 4 } else { 0 },
        left_free: 0,
    };
    let n = on_gpu(fields * FIELD, chunk);
    let d = n.device.unwrap();
    Needs {
        device: Some(DeviceNeeds {
            decoding: compression.map(|_| decoding),
            staged: if compression.is_some() { d.staged } else { 0 },
            staged_ratio: rates.ratio(),
            stream: compression.map_or(chunk, |c| c.typical_stream(chunk)),
            time: rates.time(chunk),
            ..d
        }),
        ..n
    }
}

const BLOSC: Option<Compression> = Some(Compression::Blosc(BloscCodec::Lz4, 0));
const ZSTD: Option<Compression> = Some(Compression::Zstd);

/// The stores that are measured, by their names.
fn stores(batch: usize) -> [(&'static str, Needs); 4] {
    [
        ("zstd", fields(batch, FIELD, ZSTD)),
        ("Blosc lz4", fields(batch, FIELD, BLOSC)),
        ("zstd, shards of 64 KiB", fields(batch, 64 << 10, ZSTD)),
        ("uncompressed", fields(batch, FIELD, None)),
    ]
}

/// Prints for each store and limit: lanes, waves, batches, slots, all memory that is used, and the expected throughput.
/// To see what a constant does: `cargo test -p dali-zarr-engine --lib what_a_limit_gives -- --nocapture`.
#[test]
fn what_a_limit_gives() {
    // Limits, and for each the least share that it is expected to give of the throughput of the largest limit, in
    // percent.
    let small =
        [(GIB / 4, 5), (3 * GIB / 8, 12), (5 * GIB / 8, 24), (GIB, 36), (2 * GIB, 58), (4 * GIB, 82), (8 * GIB, 99)];
    let large = [(1_000_000_000, 25), (2_000_000_000, 52), (4_000_000_000, 75), (8_000_000_000, 99)];
    let mut wrong = Vec::new();
    for (batch, limits) in [(16, &small[..]), (128, &large[..])] {
        for (name, needs) in stores(batch) {
            let time = needs.device.unwrap().time;
            let rate = |limit| device(&needs, limit, None).rate(&needs, time);
            let most = rate(limits[limits.len() - 1].0);
            println!("{name}, batches of {} MB: default {} MiB", needs.batch / 1_000_000, default(&needs) / MIB as u64);
            for &(limit, least) in limits {
                let d = device(&needs, limit, None);
                let share = 100.0 * rate(limit) / most;
                let mb = |bytes: usize| bytes as f64 / 1e6;
                let told = format!(
                    "{:6} MiB: {} lanes x {:5.1} MB, {:4.1} read ahead, batches {:2}, slots {:5.1} MB, in all {:5.0} MB: {:4.1} GB/s, \
                     {share:3.0} %",
                    limit / MIB as u64,
                    d.lanes,
                    mb(d.wave_decoded),
                    mb(d.ahead),
                    d.batches,
                    mb(d.slots),
                    mb(d.total(&needs)),
                    rate(limit) / 1e9
                );
                println!("{told}");
                let several = d.wave_decoded >= 2 * needs.decoded || d.lanes >= 2;
                if share < f64::from(least) || !several {
                    wrong.push(format!("{name}, batches of {}: {told}, expected {least} %", needs.batch));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Returns the limit if the user sets none.
fn default(needs: &Needs) -> u64 {
    divide(needs, &asked(None, None, None), &MachineMemory::default()).unwrap().limits.device
}

#[test]
fn the_default_gives_nearly_all_or_is_small() {
    for batch in [16, 128] {
        for (name, needs) in stores(batch) {
            let limit = default(&needs);
            let small = (device::default_at_most(&needs) + needs.batch) as u64;
            assert!(limit <= small + MIB as u64 && (batch != 16 || limit <= 9 * GIB / 4), "{name}: {limit}");
            let time = needs.device.unwrap().time;
            let share = device(&needs, limit, None).rate(&needs, time) / rate_at_most(&needs, None, time);
            assert!(share > 0.949 || limit >= small && share > 0.58, "{name}: {share} with {limit}");
        }
    }
    // At most half of the free memory, but never less than what is accepted.
    let needs = fields(16, FIELD, ZSTD);
    let on = |free| {
        let there = MachineMemory { host: None, share: None, device: Some((free, 80 * GIB)) };
        divide(&needs, &asked(None, None, None), &there).unwrap().limits.device
    };
    assert_eq!(on(70 * GIB), default(&needs));
    assert_eq!(on(GIB), GIB / 2);
    assert_eq!(on(1000), smallest_device(&needs, None));
    // Chunks that are worth keeping are kept by default.
    let shuffled = Needs { shuffled: Some(GIB as usize), ..needs };
    assert!(default(&shuffled) >= default(&needs) + GIB);
    let kept = device(&shuffled, default(&shuffled), None).slots - device(&needs, default(&needs), None).slots;
    assert!(kept as f64 > 0.99 * GIB as f64, "{kept}");
}

/// With more memory the rate never falls, and no part of memory is counted twice. Tested with needs of all kinds.
#[test]
fn throughput_grows_with_the_limit_and_limits_are_kept() {
    let mut numbers = Numbers(3);
    for _ in 0..2000 {
        let needs = numbers.needs(true);
        let batches = (numbers.below(3) == 0).then_some(1 + numbers.below(5));
        let of = needs.device.unwrap();
        let smallest = smallest_device(&needs, batches);
        let host = smallest_host(&needs) + (numbers.below(4 << 30) >> numbers.below(16)) as u64;
        let mut limits: Vec<u64> =
            (0..12).map(|_| smallest + (numbers.below(16 << 30) >> numbers.below(30)) as u64).collect();
        limits.push(smallest);
        limits.sort_unstable();
        let mut before = 0.0;
        for limit in limits {
            let budget = divide_limits(&needs, &asked(Some(host), Some(limit), batches));
            let (d, h) = (budget.device.unwrap(), budget.host);
            let told = || format!("{limit} {batches:?}: {d:?} of {needs:?}");
            assert!(d.total(&needs) as u64 <= limit, "{}: {}", d.total(&needs), told());
            let beside = h.shared * needs.sharing.unwrap_or(0).saturating_sub(needs.per_thread);
            let decoders = h.threads * needs.per_thread + beside;
            let on_host = needs.fallback_bytes() + d.lanes * d.tables + h.block + h.indexes + decoders;
            assert!((on_host + needs.read_buffers + needs.rows) as u64 <= host, "{on_host} of {host}: {}", told());
            let rate = d.rate(&needs, of.time);
            assert!(rate >= before, "{rate} < {before}: {}", told());
            before = rate;
            // Any one chunk can be read, staged and decoded.
            assert!(d.slots >= needs.decoded && d.wave_decoded >= needs.decoded, "{}", told());
            assert!(d.wave_encoded >= of.staged && (of.gds_buffer == 0 || d.gds_buffer >= needs.encoded), "{}", told());
            assert!(of.decoding.is_none_or(|decoding| d.workspace >= decoding.least_workspace), "{}", told());
            assert!(d.batches >= batches.unwrap_or(1) && batches.is_none_or(|asked| d.batches == asked), "{}", told());
            // No slots that no wave can fill, and no waves that no batch can fill.
            let useful = needs.of_batches(d.batches) + 2 * rounded(needs.decoded) + needs.kept();
            assert!(d.slots <= useful, "{useful}: {}", told());
        }
        let less = divide(&needs, &asked(Some(host), Some(smallest - 1), batches), &MachineMemory::default()).unwrap();
        let refused = less.accepted().unwrap_err();
        assert!(refused.message().contains(&format!("device_memory_limit: expected at least {smallest} bytes")));
    }
}

fn smallest_host(needs: &Needs) -> u64 {
    smallest(needs, None).host
}

/// The curve has no cliffs: a tenth more memory never gives much more throughput, once several chunks fit.
#[test]
fn the_curve_over_the_limit_is_smooth() {
    for batch in [16, 128] {
        for (name, needs) in stores(batch) {
            let time = needs.device.unwrap().time;
            let rate = |limit: f64| device(&needs, limit as u64, None).rate(&needs, time);
            let mut limit = (2 * needs.batch + 40 * FIELD) as f64;
            while limit < 8e9 {
                let (here, more) = (rate(limit), rate(1.1 * limit));
                assert!(
                    more < 1.35 * here,
                    "{name}, batches of {}: {here:.2e} at {limit:.2e}, then {more:.2e}",
                    needs.batch
                );
                limit *= 1.02;
            }
        }
    }
}

/// If a machine or a GPU has too little memory, the error has both numbers, whatever the user asked for.
#[test]
fn what_the_machine_lacks_is_refused() {
    let needs = fields(16, FIELD, ZSTD);
    let there = MachineMemory { host: None, share: None, device: Some((GIB, 64 << 20)) };
    for limit in [None, Some(1), Some(64 * GIB)] {
        let refused = divide(&needs, &asked(None, limit, None), &there).unwrap().accepted().unwrap_err();
        assert!(refused.message().starts_with("device memory: expected at least "), "{refused}");
    }
    let there = MachineMemory { host: None, share: None, device: Some((GIB, 2 * GIB)) };
    let limits = divide(&needs, &asked(None, Some(64 * GIB), None), &there).unwrap().limits;
    assert_eq!(limits.device, 2 * GIB, "no more than there is");
}

/// With little device memory the CPU is expected to be faster. With the limit that is named, the GPU is.
#[test]
fn the_cpu_decodes_where_device_memory_is_short() {
    for (name, compression) in [("zstd", Compression::Zstd), ("Blosc lz4", Compression::Blosc(BloscCodec::Lz4, 0))] {
        let needs = fields(16, FIELD, Some(compression));
        let rates = Rates::of(Some(compression));
        let time = rates.time(FIELD);
        let expected = |limit| Expected {
            gpu: device(&needs, limit, None).rate(&needs, time),
            gpu_at_most: rate_at_most(&needs, None, time),
            cpu: rates.on_cpu(16),
        };
        assert!(expected(smallest_device(&needs, None)).cpu_is_faster(), "{name}");
        assert!(!expected(2 * GIB).cpu_is_faster(), "{name}");
        let limit = device::limit_for_rate(&needs, None, rates.on_cpu(16));
        assert!(expected(limit - (32 << 20)).cpu_is_faster() && !expected(limit).cpu_is_faster(), "{name}: {limit}");
    }
    assert_eq!(device::limit_for_rate(&on_gpu(FIELD, FIELD), Some(1), 1e12), u64::MAX);
    assert!(default(&fields(16, FIELD, Some(Compression::Gzip))) <= MAX_DEFAULT_DEVICE);
}
