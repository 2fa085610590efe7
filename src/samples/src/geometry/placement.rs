//! Where the elements of arrays go in outputs.

use super::normalised::Channels;
use dali_zarr_base::dtype::DType;

/// Where one array goes in one output. Strides and bases count elements within one sample of the output.
#[derive(Clone, Debug)]
pub struct Placement {
    /// Index of the array.
    pub array: usize,
    /// Index of the output.
    pub output: usize,
    /// Elements to add to the sample's start along the first axis.
    pub offset: i64,
    /// Where the array's first element goes.
    pub base: i64,
    /// For each dimension of the array, the distance in the output between its consecutive elements (0 if dropped).
    pub strides: Vec<i64>,
    /// Dimensions of the output along which the array is repeated, each with its length and its stride.
    pub broadcast: Vec<(u64, i64)>,
    /// Index into [`super::Geometry::norms`]; with `channels`, that of the first channel's norm.
    pub norm: usize,
    /// How the channels of this array are numbered; `None` if all have the same norm.
    pub channels: Option<Channels>,
    /// Where the elements go between which values lie; `None` if none do.
    pub scratch: Option<Box<Scratch>>,
    /// Whether elements are decoded only, to be interpolated later. They have the type of decoded values then.
    pub is_decoded: bool,
}

/// Where the elements go between which values of a placement lie: in memory behind the samples of the output, slot by slot.
/// A slot has the decoded elements of a sample at one index of the first of `dims`, in the order of the output.
#[derive(Clone, Debug)]
pub struct Scratch {
    /// How elements are placed: `base` counts from the sample's part of this memory, and the stride along the first of
    /// `dims` is a slot. All strides count decoded elements.
    pub placement: Placement,
    /// The type of decoded elements.
    pub dtype: DType,
    /// The array's dimension that is the first of `dims`.
    pub dim: usize,
    /// Number of slots.
    pub slots: usize,
}
