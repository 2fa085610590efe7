//! Decodes whole arrays on the CPU, chunk by chunk, and writes them as raw bytes in C order and native byte order, to be
//! compared with another reader of Zarr (`compare_with_zarr_python.py` beside this file).
//!
//! Each line of the standard input is `STORE<tab>ARRAY<tab>OUTPUT`; for each a line of JSON says what was found.

use std::io::{BufRead, stdin};

use dali_zarr_engine::dataset::{ArrayInfo, Dataset, Part};
use dali_zarr_engine::error::{Error, Result};
use dali_zarr_engine::spec::Spec;
use dali_zarr_engine::store::{ByteRange, Phase, Store, block_on};
use serde_json::json;

fn main() {
    for line in stdin().lock().lines().map_while(std::result::Result::ok) {
        let mut words = line.split('\t').map(str::to_owned);
        let (Some(store), Some(array), Some(output)) = (words.next(), words.next(), words.next()) else {
            eprintln!("expected STORE<tab>ARRAY<tab>OUTPUT, but found {line:?}");
            std::process::exit(2);
        };
        let report = match read(&store, &array, &output) {
            Ok(report) => report,
            Err(e) => json!({"error": e.message(), "kind": format!("{:?}", e.kind())}),
        };
        println!("{report}");
    }
}

fn read(store: &str, array: &str, output: &str) -> Result<serde_json::Value> {
    let arrays = if array.is_empty() { vec![] } else { vec![array.to_owned()] };
    let mut spec = Spec { paths: vec![store.to_owned()], arrays, ..Spec::default() };
    let dataset = Dataset::open(&spec)?;
    spec.mask_and_scale = true;
    let cf = Dataset::open(&spec).map(|d| d.arrays[0].cf.clone());
    let info = &dataset.arrays[0];
    let part = &info.parts[0];
    let bytes = whole_array(info, part, dataset.stores[0].as_ref())?;
    std::fs::write(output, bytes).map_err(|e| Error::runtime(format!("{output}: {e}")))?;
    Ok(json!({
        "dtype": info.dtype.name(), "shape": part.shape, "dims": info.dims, "codec": part.format.describe(),
        "opened": part.sharding.is_some(),
        "cf": match cf {
            Ok(cf) => json!({
                "missing": cf.missing, "scale": cf.scale, "int_scale": cf.int_scale, "offset": cf.offset, "src": cf.src_dtype.name(),
                "decoded": cf.decoded.name(),
            }),
            Err(e) => json!({"error": e.message()}),
        },
    }))
}

fn whole_array(info: &ArrayInfo, part: &Part, store: &dyn Store) -> Result<Vec<u8>> {
    let size = info.dtype.size();
    let elements = part.shape.iter().product::<u64>() as usize;
    let mut out = info.fill.to_le_bytes()[..size].repeat(elements);
    let counts: Vec<u64> = part.grid.iter().map(|dim| dim.count()).collect();
    for number in 0..counts.iter().product() {
        let coords = unravel(number, &counts);
        let extents: Vec<u64> = part.grid.iter().zip(&coords).map(|(dim, &c)| dim.len(c)).collect();
        let encoded = encoded_chunk(part, store, &coords).map_err(|e| e.within(format!("chunk {coords:?}")))?;
        let Some(encoded) = encoded else { continue };
        let mut decoded = vec![0; part.format.decoded_bytes(&extents)?];
        let most = part.format.usual_encoded_bytes(decoded.len());
        assert!(encoded.len() <= most, "{} bytes for {}, but at most {most}", encoded.len(), decoded.len());
        part.format.decode(&encoded, &extents, &mut decoded).map_err(|e| e.within(format!("chunk {coords:?}")))?;
        let stored: Vec<u64> = part.format.order.iter().map(|&axis| extents[axis]).collect();
        for (i, element) in decoded.chunks_exact(size).enumerate() {
            let at = unravel(i as u64, &stored);
            let mut position = vec![0; extents.len()];
            for (k, &axis) in part.format.order.iter().enumerate() {
                position[axis] = part.grid[axis].start(coords[axis]) + at[k];
            }
            if position.iter().zip(&part.shape).any(|(p, n)| p >= n) {
                continue;
            }
            let flat = position.iter().zip(&part.shape).fold(0, |flat, (p, n)| flat * n + p) as usize;
            let target = &mut out[flat * size..(flat + 1) * size];
            target.copy_from_slice(element);
            if part.format.swap {
                target.reverse();
            }
        }
    }
    Ok(out)
}

fn encoded_chunk(part: &Part, store: &dyn Store, coords: &[u64]) -> Result<Option<Vec<u8>>> {
    let missing = || {
        if block_on(store, store.exists(part.metadata_key()))? {
            Ok(None)
        } else {
            Err(Error::runtime("the store was deleted"))
        }
    };
    let Some(sharding) = &part.sharding else {
        return match block_on(store, store.get(&part.key(coords), u64::MAX, Phase::Running))? {
            None => missing(),
            found => Ok(found),
        };
    };
    let (shard, slot) = sharding.shard_of(coords);
    let key = part.key(&shard);
    let mut index = vec![0; sharding.index_bytes];
    let read = |range, version, to: &mut [u8]| block_on(store, store.read(&key, range, version, Phase::Running, to));
    let Some(found) = read(sharding.index_range(), None, &mut index)? else { return missing() };
    let Some((offset, len)) = sharding.decode_index(&index, found.size)?[slot] else { return Ok(None) };
    let mut encoded = vec![0; len as usize];
    read(ByteRange::From(offset), found.version.as_ref(), &mut encoded)?;
    Ok(Some(encoded))
}

fn unravel(mut number: u64, shape: &[u64]) -> Vec<u64> {
    let mut out = vec![0; shape.len()];
    for (position, &n) in out.iter_mut().zip(shape).rev() {
        *position = number % n;
        number /= n;
    }
    out
}
