//! What values the outputs have.

use super::{ChannelDims, PerOutput};
use crate::dtype::DType;

/// The arguments that say what values the outputs have.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(default)]
pub struct ValueArguments {
    /// Decode `scale_factor`, `add_offset`, `_FillValue`, `missing_value`, `_Unsigned` as xarray does. Left out: decode the
    /// arrays that have `scale_factor` or `add_offset`.
    pub mask_and_scale: PerOutput<bool>,
    /// Takes the place of NaNs, stored or made by decoding, before `mean` and `stddev`.
    pub fillna: PerOutput<f64>,
    /// Subtracted.
    pub mean: PerOutput<f64>,
    /// Divided by, after `mean`.
    pub stddev: PerOutput<f64>,
    /// The dimensions whose elements have a mean and a stddev of their own.
    pub channels: ChannelDims,
    /// The outputs' element type; default: what the decoding yields, or float32 for what is normalised.
    pub dtype: PerOutput<DType>,
}
