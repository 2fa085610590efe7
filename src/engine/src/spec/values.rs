//! What values the outputs have.

use serde::de::{Deserialize, Deserializer, Error as _, Unexpected};

use crate::dtype::DType;

/// One value for all outputs, or one for each array, or one for each channel of a stack; empty: none.
pub type PerOutput<T> = Vec<T>;

/// The arguments that say what values the outputs have.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(default)]
pub struct ValueArguments {
    /// Decode `scale_factor`, `add_offset`, `_FillValue`, `missing_value`, `_Unsigned` as xarray does. Left out: decode the
    /// arrays that have `scale_factor` or `add_offset`.
    pub mask_and_scale: Option<bool>,
    /// Subtracted.
    pub mean: PerOutput<f64>,
    /// Divided by, after `mean`.
    pub stddev: PerOutput<f64>,
    /// The outputs' element type; default: what the decoding yields.
    #[serde(deserialize_with = "dtype")]
    pub dtype: Option<DType>,
}

/// The name of an element type.
fn dtype<'de, D: Deserializer<'de>>(value: D) -> Result<Option<DType>, D::Error> {
    let name = String::deserialize(value)?;
    let known = || DType::of_dali().map(DType::name).collect::<Vec<_>>().join(", ");
    match DType::from_name(&name) {
        None => Err(D::Error::invalid_type(
            Unexpected::Other(&format!("{name:?}")),
            &format!("one of {}", known()).as_str(),
        )),
        dtype => Ok(dtype),
    }
}
