//! Makes the operations of a reader, to which jobs refer by number, and the counters of those that replace NaNs.

use crate::chunk_index::ChunkIndex;
use crate::stats::OutputCounters;
use dali_zarr_base::dtype::DType;
use dali_zarr_samples::assemble::{self, Ops};
use dali_zarr_samples::dataset::Dataset;
use dali_zarr_samples::geometry::{Geometry, Norm};
use dali_zarr_samples::plan::{Operation, Operations};

/// Returns the operations that the geometry needs, in the order of their numbers.
pub(super) fn of(dataset: &Dataset, geometry: &Geometry) -> Ops {
    let of_norm = |norm: &Norm, swap| {
        let array = &dataset.arrays[norm.array];
        let cf = &array.cf;
        let fill = if norm.imaginary { array.imaginary_fill } else { array.fill };
        let decoding = assemble::Decoding {
            missing: cf.missing.clone(),
            scale: cf.scale,
            int_scale: cf.int_scale,
            offset: cf.offset,
            decoded: Some(cf.decoded),
        };
        assemble::op(cf.src_dtype, fill, &decoding, norm, swap)
    };
    let of = |operation| {
        let mut table = Vec::new();
        let (op, missing) = match operation {
            Operation::Norm { norm, swap } => of_norm(&geometry.norms[norm], swap),
            Operation::Mask(is_inside) => {
                let (fill, dtype) = (f64::from(u8::from(is_inside)), DType::Bool);
                let norm = Norm { array: 0, fillna: None, mean_stddev: None, fill, dtype, imaginary: false };
                assemble::op(dtype, 0, &assemble::Decoding::default(), &norm, false)
            }
            Operation::Table { table: number, swap } => {
                let norms = &geometry.norms[geometry.tables[number].clone()];
                table.extend(norms.iter().filter_map(|norm| norm.mean_stddev));
                of_norm(&norms[0], swap)
            }
            Operation::Decoded { array, swap } => {
                let dtype = dataset.arrays[array].cf.decoded;
                let norm = Norm { array, fillna: None, mean_stddev: None, fill: 0.0, dtype, imaginary: false };
                of_norm(&norm, swap)
            }
        };
        (op, missing, table)
    };
    Ops::with_tables(Operations::of(geometry).all().map(of))
}

/// Makes a counter of replaced NaNs for each array with `fillna`.
pub(super) fn nans_replaced(chunk_index: &ChunkIndex) -> OutputCounters {
    let norms = &chunk_index.planner.geometry().norms;
    let fills = |a: usize| norms.iter().any(|norm| norm.array == a && norm.fillna.is_some());
    let arrays = chunk_index.dataset.arrays.iter().enumerate();
    OutputCounters::new(arrays.map(|(a, array)| fills(a).then(|| array.output.clone())))
}
