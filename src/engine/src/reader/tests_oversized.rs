//! Tests of oversized chunks, which have far more encoded bytes than usual encoders write. They are read like others,
//! in whatever memory there is.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use flate2::write::{GzEncoder, ZlibEncoder};
use serde_json::{Value, json};

use super::Reader;
use super::opening::UnstartedReader;
use super::tests::write_v2;
use dali_zarr_base::error::Result;
use dali_zarr_codecs::testing::{gzip, sample, zlib, zstd};
use dali_zarr_samples::spec::Spec;
use dali_zarr_stores::Found;
use dali_zarr_stores::testing::Hooked;
use dali_zarr_stores::testing::{Server, publish};

/// Bytes of a decoded chunk.
const LEN: usize = 5000;

/// Returns the decoded bytes of chunk `i`.
fn data(i: usize) -> Vec<u8> {
    sample(i as u8, LEN)
}

/// Returns gzip members with nothing in them but extra fields, around a member with the data.
fn long_gzip(data: &[u8]) -> Vec<u8> {
    let empty =
        flate2::GzBuilder::new().extra([7; 65_000]).write(Vec::new(), flate2::Compression::new(1)).finish().unwrap();
    let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::new(1));
    encoder.write_all(data).unwrap();
    [empty.repeat(10), encoder.finish().unwrap(), empty.repeat(10)].concat()
}

/// Encodes as zlib, and flushes after each byte.
fn long_zlib(data: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), flate2::Compression::new(1));
    for byte in data {
        encoder.write_all(&[*byte]).unwrap();
        encoder.flush().unwrap();
    }
    encoder.finish().unwrap()
}

/// Encodes as zstd, with a skippable frame of `skipped` bytes before the data.
fn long_zstd(data: &[u8], skipped: usize) -> Vec<u8> {
    let mut out = [0x50, 0x2a, 0x4d, 0x18].to_vec();
    out.extend((skipped as u32).to_le_bytes());
    out.resize(out.len() + skipped, 9);
    out.extend(zstd(data, 3, true, true));
    out
}

/// Encodes as Blosc, in blocks of 128 bytes that are LZ4 blocks of literals only, with `gap` bytes before them.
fn long_blosc(data: &[u8], gap: usize) -> Vec<u8> {
    let mut out = vec![2, 1, 1 << 5 | 0x10, 1];
    let starts = 16 + 4 * data.len().div_ceil(128);
    out.extend([data.len() as u32, 128, 0].iter().flat_map(|n| n.to_le_bytes()));
    out.resize(starts + gap, 0);
    for (i, block) in data.chunks(128).enumerate() {
        let at = out.len() as u32;
        out[16 + 4 * i..20 + 4 * i].copy_from_slice(&at.to_le_bytes());
        let mut literals = vec![(block.len().min(15) << 4) as u8];
        literals.extend(block.len().checked_sub(15).map(|more| more as u8));
        literals.extend(block);
        out.extend((literals.len() as u32).to_le_bytes());
        out.extend(literals);
    }
    let len = out.len() as u32;
    out[12..16].copy_from_slice(&len.to_le_bytes());
    out
}

/// Returns empty bzip2 streams, a stream with the data, and bytes behind it that are no stream.
fn long_bz2(data: &[u8]) -> Vec<u8> {
    let stream = |data: &[u8]| {
        let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::new(1));
        encoder.write_all(data).unwrap();
        encoder.finish().unwrap()
    };
    [stream(&[]).repeat(100), stream(data), vec![1; 20_000]].concat()
}

fn long_xz(data: &[u8]) -> Vec<u8> {
    let mut encoder = liblzma::write::XzEncoder::new(Vec::new(), 1);
    encoder.write_all(data).unwrap();
    [encoder.finish().unwrap(), vec![0; 40_000]].concat()
}

fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
    bytes
}

/// Returns a shard of two chunks, of which the second is missing, with `gap` bytes before the first.
fn shard(chunk: Vec<u8>, gap: usize) -> Vec<u8> {
    let index = [gap as u64, chunk.len() as u64, u64::MAX, u64::MAX].iter().flat_map(|n| n.to_le_bytes()).collect();
    [vec![5; gap], chunk, sealed(index)].concat()
}

/// Writes an array of these shards. Each has two chunks, one for each row.
fn write_shards(folder: &Path, inner: &Value, outer: &Value, shards: &[Vec<u8>]) {
    let mut codecs = vec![json!({"name": "sharding_indexed", "configuration": {
        "chunk_shape": [1, LEN], "codecs": inner, "index_codecs": ["bytes", "crc32c"],
    }})];
    codecs.extend(outer.as_array().unwrap().iter().cloned());
    let metadata = json!({
        "zarr_format": 3, "node_type": "array", "shape": [2 * shards.len(), LEN], "data_type": "uint8", "fill_value": 0,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, LEN]}},
        "chunk_key_encoding": {"name": "v2", "configuration": {"separator": "."}}, "codecs": codecs,
    });
    std::fs::write(folder.join("zarr.json"), metadata.to_string()).unwrap();
    for (i, shard) in shards.iter().enumerate() {
        std::fs::write(folder.join(format!("{i}.0")), shard).unwrap();
    }
}

fn spec(folder: &Path) -> Spec {
    Spec::default().with(|s| {
        s.source.paths = vec![folder.to_str().unwrap().to_owned()];
        s.batch_size = 1;
    })
}

/// Reads `samples` samples.
fn read(spec: Spec, samples: usize) -> Result<Vec<Vec<u8>>> {
    let reader = Reader::open(spec)?;
    (0..samples).map(|_| Ok(reader.next_batch()?.host[0].as_slice().to_vec())).collect()
}

/// Returns the number behind `words` in a message.
fn named(message: &str, words: &str) -> u64 {
    let rest = message.split(words).nth(1).unwrap_or_else(|| panic!("{message}"));
    rest.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
}

#[test]
fn chunks_of_every_codec_that_are_longer_than_usual() {
    type Encoder = fn(&[u8]) -> Vec<u8>;
    let cases: [(Value, Encoder, Encoder); 8] = [
        (json!({"id": "gzip"}), |d| gzip(d, 5), long_gzip),
        (json!({"id": "zlib"}), |d| zlib(d, 5), long_zlib),
        (json!({"id": "zstd"}), |d| zstd(d, 3, true, true), |d| long_zstd(d, 300_000)),
        (json!({"id": "blosc", "cname": "lz4"}), |d| long_blosc(d, 0), |d| long_blosc(d, 50_000)),
        (json!({"id": "bz2"}), long_bz2, long_bz2),
        (json!({"id": "lzma"}), long_xz, long_xz),
        (json!([{"id": "zstd"}, {"id": "crc32c"}]), |d| sealed(zstd(d, 3, true, true)), |d| sealed(long_zstd(d, 9000))),
        // A compressor within another one: not so far beyond the usual size.
        (
            json!([{"id": "gzip"}, {"id": "zstd"}]),
            |d| zstd(&gzip(d, 5), 3, true, true),
            |d| long_zstd(&[gzip(&[], 1).repeat(300), gzip(d, 1)].concat(), 300_000),
        ),
    ];
    for (codecs, usual, long) in cases {
        let dir = tempfile::tempdir().unwrap();
        // Long chunks come between usual ones, in the order of need.
        let chunks: Vec<_> = (0..9).map(|i| if i % 4 == 1 { long(&data(i)) } else { usual(&data(i)) }).collect();
        write_v2(dir.path(), "|u1", LEN, &codecs, &chunks);
        let expected: Vec<_> = (0..18).map(|i| data(i % 9)).collect();
        let found = read(spec(dir.path()), 18).unwrap_or_else(|e| panic!("{codecs}: {e}"));
        assert!(found == expected, "{codecs}");
        let cached = spec(dir.path()).with(|s| s.resources.cache_size = 8 << 20);
        assert!(read(cached, 18).unwrap() == expected, "{codecs} from the cache");
    }
}

#[test]
fn chunks_in_shards_and_shards_with_gaps() {
    let expected: Vec<Vec<u8>> = (0..10).map(|i| if i % 2 == 0 { data(i) } else { vec![0; LEN] }).collect();
    for (inner, outer, long) in [
        (json!(["bytes", "zstd"]), json!([]), true),
        (json!(["bytes", "zstd"]), json!(["crc32c"]), true),
        (json!(["bytes"]), json!(["crc32c"]), false),
    ] {
        let shards: Vec<_> = (0..5)
            .map(|i| {
                let chunk = if long { long_zstd(&data(2 * i), 100_000 * (i % 2)) } else { data(2 * i) };
                let shard = shard(chunk, 300_000 * (i % 3));
                if outer == json!([]) { shard } else { sealed(shard) }
            })
            .collect();
        let dir = tempfile::tempdir().unwrap();
        write_shards(dir.path(), &inner, &outer, &shards);
        assert!(read(spec(dir.path()), 10).unwrap() == expected, "{inner} {outer}");
    }
}

/// A chunk that doesn't fit gives an error that names a sufficient limit. The other batches come.
#[test]
fn memory_is_enough_or_the_limit_that_would_be_is_named() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let long = long_zstd(&data(1), 3 << 20);
    let usual = |i| zstd(&data(i), 3, true, true);
    write_v2(dirs[0].path(), "|u1", LEN, &json!({"id": "zstd"}), &[usual(0), long.clone(), usual(2)]);
    write_shards(dirs[1].path(), &json!(["bytes", "zstd"]), &json!([]), &[shard(usual(0), 0), shard(long, 0)]);
    for (dir, samples, bad) in [(&dirs[0], 3, 1), (&dirs[1], 4, 2)] {
        let with = |limit| spec(dir.path()).with(|s| s.resources.host_memory_limit = Some(limit));
        let smallest = named(Reader::open(with(1)).err().unwrap().message(), "at least ");
        let reader = Reader::open(with(smallest)).unwrap();
        for i in 0..9 {
            let Err(e) = reader.next_batch() else {
                assert_ne!(i % samples, bad);
                continue;
            };
            assert!(i % samples == bad && e.message().contains(".0"), "batch {i}: {e}");
            let limit = named(e.message(), "host_memory_limit of ");
            assert!(limit > smallest && limit < 64 << 20, "{e}");
            for limit in [limit, limit + 1_000_000] {
                assert!(read(with(limit), 9).is_ok(), "{limit}");
            }
        }
    }
}

/// A length that the format doesn't allow is damage, however much memory there is.
#[test]
fn lengths_that_no_encoder_can_reach_are_damage() {
    let dir = tempfile::tempdir().unwrap();
    let chunk = vec![0; 2 * LEN];
    for (codecs, most) in [(json!({"id": "lz4"}), 5039), (json!({"id": "crc32"}), 5004), (Value::Null, 5000)] {
        write_v2(dir.path(), "|u1", LEN, &codecs, std::slice::from_ref(&chunk));
        let error = read(spec(dir.path()), 1).unwrap_err();
        assert!(error.message().contains(&most.to_string()) && error.message().contains("10000"), "{error}");
    }
}

#[test]
fn a_value_that_grows_while_it_is_read_is_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    write_v2(dir.path(), "|u1", LEN, &json!({"id": "zstd"}), &[vec![]]);
    let spec = spec(dir.path());
    let mut unstarted = UnstartedReader::new(&spec).unwrap();
    // The value has one byte more whenever its size is asked for.
    let size = AtomicU64::new(9000);
    let grown = move |_: &str| Some(Found { size: size.fetch_add(1, Relaxed), version: None });
    Arc::get_mut(&mut unstarted.chunk_index).unwrap().dataset.stores[0] =
        Arc::new(Hooked::open(&spec.source.paths[0], grown));
    let error = Reader::start(&spec, unstarted).unwrap().next_batch().unwrap_err();
    assert!(error.message().contains("expected 9000 bytes") && error.message().contains("found 9001"), "{error}");
}

/// A server is asked for the size of a value once, not in each epoch, if a cache has the value.
#[test]
fn caches_tell_the_size() {
    let server = Arc::new(Server::default());
    let metadata = json!({
        "zarr_format": 2, "shape": [2, LEN], "chunks": [1, LEN], "dtype": "|u1", "fill_value": 0, "order": "C",
        "filters": null, "compressor": {"id": "zstd"},
    });
    server.put("/store/.zarray", metadata.to_string().into_bytes());
    server.put("/store/0.0", long_zstd(&data(0), 20_000));
    server.put("/store/1.0", long_zstd(&data(1), 10));
    let expected: Vec<_> = (0..6).map(|i| data(i % 2)).collect();
    let dir = tempfile::tempdir().unwrap();
    let spec = Spec::default().with(|s| {
        s.source.paths = vec![publish(&server)];
        s.batch_size = 1;
        s.resources.prefetch_queue_depth = Some(1);
    });
    let requests = |spec: &Spec| {
        server.taken_log();
        assert!(read(spec.clone(), 6).unwrap() == expected);
        let log = server.taken_log();
        let count = |what: &str| log.iter().filter(|line| line.contains(what)).count();
        [count("GET /store/0.0"), count("GET /store/1.0"), count("HEAD /store/0.0")]
    };
    assert_eq!(requests(&spec.clone().with(|s| s.resources.cache_size = 1 << 20)), [2, 1, 0]);
    let on_disk = spec.with(|s| {
        s.resources.cache_dir = Some(dir.path().to_owned());
        s.resources.cache_dir_size = Some(1 << 20);
    });
    // Pieces are written meanwhile, so later epochs of the first reader may come before them. It ends when they are there.
    let first = requests(&on_disk);
    assert!(first[0] >= 2 && first[1] >= 1, "{first:?}");
    assert_eq!(requests(&on_disk), [0, 0, 1], "the next process, in three epochs");
}
