//! Tests of what is explained about memory: too small limits, and memory that the machine lacks.

use super::tests::{spec, store};
use super::{explain, explain_on};
use crate::budget::MachineMemory;
use dali_zarr_base::memory::Machine;
use dali_zarr_samples::spec::{DecodeDevice, Device, Spec};

#[test]
fn a_limit_that_is_too_small_is_explained() {
    let folder = tempfile::tempdir().unwrap();
    store(folder.path(), 24, 4);
    for device in [Device::Cpu, Device::Gpu(0)] {
        let (host_memory_limit, device_memory_limit) = (Some(1), Some(1));
        let tiny = spec(folder.path(), 2).with(|s| {
            s.device = device;
            s.resources.host_memory_limit = host_memory_limit;
            s.resources.device_memory_limit = device_memory_limit;
        });
        let e = explain(&tiny).unwrap();
        let refused = e.memory.refused().unwrap();
        assert!(refused.contains("memory_limit"), "{refused}");
        let (host, device) = (e.memory.division.smallest.host, e.memory.division.smallest.device);
        // The smallest limits are accepted, and one byte less isn't.
        let good = tiny.with(|s| {
            s.resources.host_memory_limit = Some(host);
            s.resources.device_memory_limit = Some(device);
        });
        assert!(explain(&good).unwrap().memory.refused().is_none());
        let less = good.clone().with(|s| s.resources.host_memory_limit = Some(host - 1));
        assert!(explain(&less).unwrap().memory.refused().is_some());
        if good.device != Device::Cpu {
            let less = good.with(|s| s.resources.device_memory_limit = Some(device - 1));
            assert!(explain(&less).unwrap().memory.refused().is_some());
        }
    }
}

/// The limit on device memory decides where chunks are decoded, and the reason is given. If the user chose the device,
/// the choice is kept.
#[test]
fn the_cpu_decodes_where_device_memory_is_short() {
    let folder = tempfile::tempdir().unwrap();
    let metadata = serde_json::json!({
        "zarr_format": 2, "shape": [64, 721, 1440], "chunks": [1, 721, 1440], "dtype": "<f4", "fill_value": 0, "order": "C",
        "filters": null, "compressor": {"id": "zstd", "level": 1},
    });
    std::fs::write(folder.path().join(".zarray"), metadata.to_string()).unwrap();
    let spec = |device_memory_limit, decode_device| {
        Spec::default().with(|s| {
            s.source.paths = vec![folder.path().to_str().unwrap().to_owned()];
            s.batch_size = 16;
            s.device = Device::Gpu(0);
            s.resources.decode_threads = Some(16);
            s.resources.device_memory_limit = device_memory_limit;
            s.resources.decode_device = decode_device;
        })
    };
    let told = |limit, decode_device| {
        let e = explain(&spec(limit, decode_device)).unwrap().to_json();
        let of = &e["arrays"][0]["stores"][0];
        (of["decoded_on"].as_str().unwrap().to_owned(), of["why"].as_str().unwrap().to_owned(), e["memory"].clone())
    };
    let (on, _, memory) = told(None, DecodeDevice::Auto);
    assert_eq!(on, "gpu");
    let smallest = memory["smallest_device_memory_limit"].as_u64();
    let used = memory["device_memory_used"].as_u64().unwrap();
    assert!(used <= memory["device_memory_limit"].as_u64().unwrap() && used > smallest.unwrap(), "{memory}");
    let (on, why, memory) = told(smallest, DecodeDevice::Auto);
    assert_eq!(on, "cpu");
    assert!(
        why.contains("decoded on the CPU: device_memory_limit (") && why.contains(" or more the GPU decodes it"),
        "{why}"
    );
    assert!(memory["refused"].is_null() && memory["device_memory_used"].as_u64() <= smallest, "{memory}");
    for (limit, how) in [(smallest, DecodeDevice::Gpu), (Some(1 << 30), DecodeDevice::Auto)] {
        assert_eq!(told(limit, how).0, "gpu", "{limit:?} {how:?}");
    }
}

/// Explains `spec` on a machine with `total` bytes of memory, of which `available` are available.
fn told_on(spec: &Spec, total: u64, available: u64) -> serde_json::Value {
    let host = Some(Machine { total, says: "/sys/fs/cgroup/memory.max".into(), available });
    explain_on(spec, &MachineMemory { host, ..MachineMemory::default() }).unwrap().to_json()
}

#[test]
fn memory_that_the_machine_lacks_is_told() {
    const GIB: u64 = 1 << 30;
    let folder = tempfile::tempdir().unwrap();
    // A sample of 40 GiB, in chunks of 1 GiB.
    let metadata = serde_json::json!({
        "zarr_format": 2, "shape": [10, 40, GIB], "chunks": [1, 1, GIB], "dtype": "|u1", "fill_value": 0, "order": "C",
        "filters": null, "compressor": null,
    });
    std::fs::write(folder.path().join(".zarray"), metadata.to_string()).unwrap();
    let paths = vec![folder.path().to_str().unwrap().to_owned()];
    for device in [Device::Cpu, Device::Gpu(0)] {
        let spec = Spec::default().with(|s| {
            s.source.paths = paths.clone();
            s.device = device;
            s.resources.device_memory_limit = Some(500 * GIB);
            s.resources.io_threads = Some(2);
            s.resources.decode_threads = Some(2);
        });
        let smallest = told_on(&spec, 1000 * GIB, 1000 * GIB)["memory"]["smallest_host_memory_limit"].as_u64().unwrap();
        let told = told_on(&spec, smallest - 1, GIB);
        let why = told["memory"]["refused"].as_str().unwrap();
        assert!(why.starts_with(&format!("host memory: expected at least {smallest} bytes (")), "{why}");
        assert!(
            why.contains(&format!("but found {} bytes", smallest - 1)) && why.contains("(/sys/fs/cgroup/memory.max)")
        );
        assert!(told["advice"][0].as_str().unwrap().contains("isn't built"), "{told}");
        // If the machine has just the smallest limit, a reader takes it. Otherwise it takes half of the machine's
        // memory, if that is less than the default.
        let limit = |total: u64| told_on(&spec, total, total)["memory"]["host_memory_limit"].as_u64().unwrap();
        assert_eq!(limit(smallest), smallest);
        assert_eq!(limit(4 * smallest), 2 * smallest);
        assert!((2.9..3.01).contains(&(limit(1000 * smallest) as f64 / smallest as f64)));
        // If other processes hold memory, there is only a warning.
        let told = told_on(&spec, 100 * smallest, 2 * GIB);
        let advice = told["advice"][0].as_str().unwrap();
        assert!(told["memory"]["refused"].is_null() && advice.contains("2.0 GiB are available now"), "{told}");
        let more = spec.clone().with(|s| {
            s.resources.host_memory_limit = Some(1 << 50);
            s.resources.cache_size = 7 * GIB;
        });
        let told = told_on(&more, 800 * GIB, 700 * GIB);
        assert_eq!(told["memory"]["host_memory_limit"], 700 * GIB);
        let advice = [0, 1].map(|i| told["advice"][i].as_str().unwrap());
        assert!(advice[0].starts_with("host_memory_limit: 1048576.0 GiB are more than the 800.0 GiB"), "{advice:?}");
        assert!(advice[1].contains("may take 707.0 GiB") && advice[1].contains("cache_size"), "{advice:?}");
    }
}
