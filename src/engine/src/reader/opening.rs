//! From a dataset to what the planner, the kernels and the threads need to know of it.

use dali_zarr_kernels::Op;

use crate::assemble;
use crate::codec::Codec;
use crate::dataset::{ArrayInfo, Dataset};
use crate::error::{Error, Result};
use crate::flow::catalog::Route;
use crate::geometry::{ArrayShape, Geometry};
use crate::gpu;
use crate::plan::{ArrayGrids, PartGrid};
use crate::spec::{DecodeDevice, Device, Spec};

pub(super) fn shape(array: &ArrayInfo) -> ArrayShape {
    ArrayShape {
        name: array.name.clone(),
        dims: array.dims.clone(),
        parts: array.parts.iter().map(|p| p.shape.clone()).collect(),
        values: array.cf.decoded,
    }
}

pub(super) fn grids(array: &ArrayInfo, all: &[ArrayInfo]) -> ArrayGrids {
    let part = |p: &crate::dataset::Part| PartGrid {
        dims: p.grid.clone(),
        order: p.format.order.clone(),
        swap: p.format.swap,
    };
    let chunks_of = all.iter().position(|a| a.name == array.name).unwrap_or(0);
    ArrayGrids { chunks_of, element: array.dtype.size(), parts: array.parts.iter().map(part).collect() }
}

/// The table of operations that jobs index: each norm in both byte orders.
pub(super) fn operations(spec: &Spec, dataset: &Dataset, geometry: &Geometry) -> Vec<Op> {
    let pad = spec.fill_value.unwrap_or(0.0);
    geometry
        .norms
        .iter()
        .flat_map(|norm| {
            let array = &dataset.arrays[norm.array];
            let cf = &array.cf;
            let decoding = assemble::Decoding {
                missing: cf.missing.clone(),
                scale: cf.scale,
                offset: cf.offset,
                decoded: Some(cf.decoded),
            };
            [false, true].map(|swap| assemble::op(cf.src_dtype, array.fill, &decoding, norm, pad, swap))
        })
        .collect()
}

/// How each part of each array is decoded, and a note for each array that falls back.
pub(super) fn routes(spec: &Spec, dataset: &Dataset, notes: &mut Vec<String>) -> Result<Vec<Vec<Route>>> {
    if spec.decode_device == DecodeDevice::Gpu && spec.device == Device::Cpu {
        return Err(Error::value(
            "decode_device=\"gpu\" needs device=\"gpu\": batches that are delivered to the CPU are decoded there",
        ));
    }
    let on_gpu = matches!(spec.device, Device::Gpu(_)) && spec.decode_device != DecodeDevice::Cpu;
    let mut routes = Vec::new();
    for array in &dataset.arrays {
        let mut parts = Vec::new();
        for part in &array.parts {
            let store = dataset.stores[part.store].location();
            parts.push(match &part.format.codec {
                Codec::Raw => Route::Raw,
                _ if !on_gpu => Route::Cpu,
                Codec::Gpu(compression) => match gpu::available(*compression) {
                    Ok(()) => Route::Gpu(*compression),
                    Err(e) if spec.decode_device == DecodeDevice::Gpu => return Err(e),
                    Err(e) => {
                        notes.push(format!("store {store}, array '{}': decoded on the CPU: {e}", array.name));
                        Route::Cpu
                    }
                },
                Codec::Other(_) => {
                    let why = format!(
                        "store {store}, array '{}': its codecs ({}) are decoded on the CPU, since the GPU decodes only \
                         uncompressed, Blosc, zstd, gzip, zlib and LZ4 chunks",
                        array.name,
                        part.format.describe()
                    );
                    if spec.decode_device == DecodeDevice::Gpu {
                        return Err(Error::value(format!("{why}; use decode_device=\"auto\" or \"cpu\"")));
                    }
                    notes.push(why);
                    Route::Cpu
                }
            });
        }
        routes.push(parts);
    }
    Ok(routes)
}
