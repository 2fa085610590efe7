//! How samples are cut.

use serde::Deserialize;

use super::read::{positive, positive_or_none};
use super::{Breaks, DimKey, OutputDims, PerDim, PerOutput, Segments};

/// The arguments for how samples are cut.
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub struct SampleArguments {
    /// The dimensions along which samples are cut. Empty: those that `window` names, or the first dimension of the
    /// array with the most dimensions (the first such array).
    pub dims: Vec<DimKey>,
    /// Elements per sample. 0 (the default): one element, and the dimension is dropped. Outputs may differ. Empty with
    /// `scale_by`, which has [`Self::window_lengths`] instead.
    pub window: PerDim,
    /// Distance between sample starts in elements. Default: the length of the longest window without stride, which is 1
    /// for a dropped dimension.
    pub step: PerDim,
    /// Another way to give `step`: the length of the longest window minus `step`.
    pub overlap: PerDim,
    /// Whether arrays may have elements of other sizes: a sample is then the same box in each of them.
    #[serde(deserialize_with = "scale_by")]
    pub scale_by: Option<ScaleBy>,
    /// With `scale_by`: at which element a box begins that begins between two.
    pub scale_method: ScaleMethod,
    /// With `scale_by`: the output whose array's elements samples start at. `None`: the first one.
    #[serde(deserialize_with = "name")]
    pub grid: Option<String>,
    /// With `scale_by`: `window` in units of the places of elements. 0, and -1 for all of the region, as without.
    #[serde(rename = "window in units")]
    pub window_lengths: PerDim<f64>,
    /// With `scale_by`: `step` in these units.
    #[serde(rename = "step in units")]
    pub step_lengths: PerDim<f64>,
    /// With `scale_by`: `overlap` in these units.
    #[serde(rename = "overlap in units")]
    pub overlap_lengths: PerDim<f64>,
    /// The dimensions, from `dims`, along which a sample's start is random in each epoch. Their `step` must be 0 or not
    /// given.
    pub random_crop: Vec<DimKey>,
    /// Number of samples for each start. Each has its own random starts along `random_crop`. At least 1.
    #[serde(deserialize_with = "positive")]
    pub samples_per_volume: i64,
    /// The table of sample starts, which replace those at every `step`: a row for each sample, a column for each of
    /// `dims`, and with [`Concat::Samples`] the number of the store as the first column. It is a `.npy` file, a Zarr
    /// array, or a table that the host keeps in the library; see [`dali_zarr_base::table`].
    pub starts: Option<String>,
    /// Distance between elements inside a sample. Default: 1. Outputs may differ.
    pub stride: PerDim,
    /// Distances from the sample's start along the first of `dims`. Each gives one group of outputs. Empty: `[0]`.
    pub offsets: Vec<i64>,
    /// First element that samples may touch. Negative: from the end. Default: 0.
    pub roi_start: PerDim,
    /// One past the last element that samples may touch. Negative: from the end. Default: the dimension's length.
    pub roi_end: PerDim,
    /// The region that a selection by label or position leaves of each of `dims`, instead of `roi_start` and `roi_end`.
    /// `None` if nothing was selected. One list for all stores, or with [`Concat::Samples`] one for each store. Users
    /// can't give this argument: hosts look labels up and set it.
    #[serde(rename = "_regions", deserialize_with = "regions")]
    pub regions: Vec<Vec<Option<Region>>>,
    /// For each store and each of `dims`, a number that is added to the sample's start in its index: the position of an
    /// element that was picked alone, which may differ by store. Only for joined stores. Users can't give this
    /// argument. Empty: nothing is added.
    #[serde(rename = "_index_origins", deserialize_with = "lists")]
    pub index_origins: Vec<Vec<i64>>,
    /// The first elements of segments along the first of `dims`. No sample may contain elements of two segments.
    pub breaks: Breaks,
    /// The segments between breaks that are read. They are numbered over the whole dimension.
    pub segments: Segments,
    /// The treatment of samples that read dates whose data are declared missing.
    pub missing_dates: MissingDates,
    /// What takes the place of data that are declared missing, or to which `align` finds no element. Samples that read
    /// them are then samples as all others. `None`: nothing does.
    #[serde(deserialize_with = "filled")]
    pub fill_missing: Option<FillMissing>,
    /// How several stores are combined.
    pub concat: Concat,
    /// Whether samples may reach from one store into the next. If not, the borders of stores are breaks.
    pub cross_stores: bool,
    /// The most elements that a window may begin before its segment. If this or `pad_after` is given, each segment has
    /// its own grid of starts, and the first start is this many elements before the segment.
    pub pad_before: PerDim,
    /// The most elements that a window may end after its segment.
    pub pad_after: PerDim,
    /// The treatment of windows that reach beyond the region of interest or across a break.
    pub out_of_bounds_policy: OutOfBounds,
    /// The value of elements outside the region of interest, as a value of the output. Default: 0.
    pub fill_value: PerOutput<f64>,
    /// The name of an array of offsets, one more than there are samples. A sample has the elements from one offset to
    /// the next of the ragged arrays, and one element of each other array.
    #[serde(deserialize_with = "name")]
    pub ragged: Option<String>,
    /// Like `ragged`, with an array of ends instead of offsets. The first sample starts at 0.
    #[serde(deserialize_with = "name")]
    pub ragged_ends: Option<String>,
    /// With `ragged` or `ragged_ends`: the most elements that are read of a sample.
    #[serde(deserialize_with = "positive_or_none")]
    pub max_length: Option<u64>,
    /// Whether to stack the arrays as channels of one output, instead of one output for each array.
    pub stack_arrays: bool,
    /// The order of a sample's dimensions, by name or by their position in the sample; `...` stands for all others.
    /// Without it they have the order of the array, with the channels of a stack in front.
    pub transpose: OutputDims,
    /// The dimensions of one element that outputs don't have. `...` are all of them.
    pub squeeze: OutputDims,
    /// Whether to add an output of bool: true for the elements of the longest windows that weren't padded.
    pub return_mask: bool,
    /// Whether to add an output of int64: the sample's start in each of `dims`. If [`SampleArguments::names_segments`]
    /// is true, the number of the sample's segment comes first.
    pub return_index: bool,
}

impl SampleArguments {
    /// Returns the dimensions in `dims`, or those that `window` names if `dims` is empty, and the name of that
    /// argument. The list is empty if neither names a dimension.
    pub(crate) fn dims_or_window(&self) -> (Vec<DimKey>, &'static str) {
        let named = if self.scale_by.is_some() { self.window_lengths.dims() } else { self.window.dims() };
        match named {
            keys if self.dims.is_empty() => (keys, "window"),
            _ => (self.dims.clone(), "dims"),
        }
    }

    /// Whether the index of a sample contains the number of its segment. It does with `breaks`, and with padding if
    /// stores are segments, because windows of neighbouring stores may then start at the same element.
    pub fn names_segments(&self) -> bool {
        let pads = !self.pad_before.is_empty() || !self.pad_after.is_empty();
        !self.breaks.is_empty() || (pads && !self.cross_stores)
    }
}

/// A range of elements along a dimension, at equal distances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// The first element.
    pub first: i64,
    /// One past the last element.
    pub end: i64,
    /// Distance between the elements, at least 1.
    pub spacing: i64,
}

/// Reads lists of regions. A region has the form `[first, end, spacing]`.
fn regions<'de, D: serde::Deserializer<'de>>(value: D) -> Result<Vec<Vec<Option<Region>>>, D::Error> {
    let all: Vec<Vec<Option<[i64; 3]>>> = lists(value)?;
    let one = |[first, end, spacing]: [i64; 3]| Region { first, end, spacing };
    Ok(all.into_iter().map(|of| of.into_iter().map(|found| found.map(one)).collect()).collect())
}

/// Reads a list of lists, which only hosts write.
fn lists<'de, D: serde::Deserializer<'de>, T: serde::de::DeserializeOwned>(value: D) -> Result<Vec<Vec<T>>, D::Error> {
    serde_json::from_value(serde_json::Value::deserialize(value)?).map_err(serde::de::Error::custom)
}

/// Reads a name. `None` if it is empty.
fn name<'de, D: serde::Deserializer<'de>>(value: D) -> Result<Option<String>, D::Error> {
    Ok(Some(String::deserialize(value)?).filter(|name| !name.is_empty()))
}

impl Default for SampleArguments {
    fn default() -> Self {
        Self {
            dims: Vec::new(),
            window: PerDim::new(),
            step: PerDim::new(),
            overlap: PerDim::new(),
            scale_by: None,
            scale_method: ScaleMethod::Nearest,
            grid: None,
            window_lengths: PerDim::new(),
            step_lengths: PerDim::new(),
            overlap_lengths: PerDim::new(),
            random_crop: Vec::new(),
            samples_per_volume: 1,
            starts: None,
            stride: PerDim::new(),
            offsets: Vec::new(),
            roi_start: PerDim::new(),
            roi_end: PerDim::new(),
            regions: Vec::new(),
            index_origins: Vec::new(),
            breaks: Breaks::default(),
            segments: Segments::All,
            pad_before: PerDim::new(),
            pad_after: PerDim::new(),
            missing_dates: MissingDates::Skip,
            fill_missing: None,
            concat: Concat::Dims,
            cross_stores: true,
            out_of_bounds_policy: OutOfBounds::Drop,
            fill_value: PerOutput::new(),
            ragged: None,
            ragged_ends: None,
            max_length: None,
            stack_arrays: false,
            transpose: OutputDims::default(),
            squeeze: OutputDims::default(),
            return_mask: false,
            return_index: false,
        }
    }
}

/// What says where the elements of arrays of other resolutions lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScaleBy {
    /// Coordinates, or OME-Zarr's transformations, which are places of elements' centres.
    Coordinates,
    /// The same, but taken as places of elements' first edges.
    Corners,
}

/// At which element of an array a box begins that begins between two of its elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScaleMethod {
    /// The nearest one; of two, the later one.
    Nearest,
    /// The one before, in which the box begins.
    Previous,
}

/// Reads `scale_by`, which is empty if all arrays have elements of one size.
fn scale_by<'de, D: serde::Deserializer<'de>>(value: D) -> Result<Option<ScaleBy>, D::Error> {
    let value = serde_json::Value::deserialize(value)?;
    if value == "" { Ok(None) } else { ScaleBy::deserialize(value).map(Some).map_err(serde::de::Error::custom) }
}

/// How several stores are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Concat {
    /// The stores are joined along the first of `dims`.
    Dims,
    /// Each store has its own samples, which come store after store. The stores may have any shapes.
    Samples,
}

/// The treatment of samples that read dates whose data are declared missing by their store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MissingDates {
    /// They are left out.
    Skip,
    /// They are samples as all others.
    Keep,
}

/// What takes the place of missing data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FillMissing {
    /// The last element before that isn't missing.
    Previous,
    /// NaN in the output.
    Nan,
    /// The array's mean, which normalisation turns into 0.
    Mean,
    /// The value between the nearest elements that aren't missing, by the distances of labels.
    Linear,
}

impl FillMissing {
    /// Returns its name as a value of the argument.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Previous => "previous",
            Self::Nan => "nan",
            Self::Mean => "mean",
            Self::Linear => "linear",
        }
    }
}

/// Reads `fill_missing`, which is empty if nothing is filled.
fn filled<'de, D: serde::Deserializer<'de>>(value: D) -> Result<Option<FillMissing>, D::Error> {
    let value = serde_json::Value::deserialize(value)?;
    if value == "" { Ok(None) } else { FillMissing::deserialize(value).map(Some).map_err(serde::de::Error::custom) }
}

/// The treatment of a window that reaches beyond the region of interest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OutOfBounds {
    /// Building the reader fails.
    Error,
    /// The window isn't a sample.
    Drop,
    /// The elements outside get the fill value.
    Pad,
    /// The elements outside repeat the first or the last element inside.
    Edge,
}

impl OutOfBounds {
    /// Whether windows that reach beyond the region are samples.
    pub fn fills(self) -> bool {
        matches!(self, Self::Pad | Self::Edge)
    }
}
