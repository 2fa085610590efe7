//! How the values of the outputs are computed.

use super::{OutputDims, PerOutput};
use dali_zarr_base::dtype::DType;

/// The arguments for the values of the outputs.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(default)]
pub struct ValueArguments {
    /// Whether to decode `scale_factor`, `add_offset`, `_FillValue`, `missing_value` and `_Unsigned` as xarray does. If
    /// not given: true for arrays that have `scale_factor` or `add_offset`.
    pub mask_and_scale: PerOutput<bool>,
    /// The value that replaces NaNs, stored or made by decoding, before `mean` and `stddev` are applied.
    pub fillna: PerOutput<f64>,
    /// The mean, which is subtracted.
    pub mean: PerOutput<f64>,
    /// The divisor, applied after `mean`.
    pub stddev: PerOutput<f64>,
    /// The dimensions along which each element has its own mean and stddev. Without them they are derived from the number
    /// of values.
    pub channels: OutputDims,
    /// The outputs' element type. Default: the type after decoding, or float32 for normalised values.
    pub dtype: PerOutput<DType>,
}
