//! How samples are cut.

use serde::Deserialize;

use super::read::{positive, some_positive};
use super::{Breaks, DimKey, PerDim, PerOutput, Segments};

/// The arguments that say how samples are cut.
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub struct SampleArguments {
    /// The dimensions along which samples are cut; empty: those that `window` names, or the first dimension of the first array
    /// that has most.
    pub dims: Vec<DimKey>,
    /// Elements per sample; 0 (the default): one element, and the dimension is dropped. Outputs may differ.
    pub window: PerDim,
    /// Distance between sample starts; default: the length of the longest window without stride, i.e. 1 for a dropped
    /// dimension.
    pub step: PerDim,
    /// Another way to say `step`: how many elements less than the longest window it is.
    pub overlap: PerDim,
    /// Those of `dims` along which a sample's start is drawn anew in each epoch. Their `step` must be 0 or not given.
    pub random_crop: Vec<DimKey>,
    /// How many samples there are for each start, each with random starts of its own along `random_crop`. At least 1.
    #[serde(deserialize_with = "positive")]
    pub samples_per_volume: i64,
    /// Where samples start instead of at every `step`: a table with a row for each and a column for each of `dims`; with
    /// [`Concat::Samples`] the number of the store stands in front. A `.npy` file, a Zarr array, or a table that the host keeps in the library; see [`crate::table`].
    pub starts: Option<String>,
    /// Distance between elements inside a sample; default 1. Outputs may differ.
    pub stride: PerDim,
    /// Along the first of `dims`, one group of outputs for each; empty: `[0]`.
    pub offsets: Vec<i64>,
    /// First element that samples may touch; negative from the end; default 0.
    pub roi_start: PerDim,
    /// One past the last element that samples may touch; negative from the end; default: the dimension's length.
    pub roi_end: PerDim,
    /// What a selection by label or position leaves of each of `dims`, in place of `roi_start` and `roi_end`; `None` where nothing
    /// was selected. One list for all stores, or with [`Concat::Samples`] one for each. No argument of users: hosts look labels up.
    #[serde(rename = "_regions", deserialize_with = "regions")]
    pub regions: Vec<Vec<Option<Region>>>,
    /// For each store and each of `dims`, what the index of a sample has more than its start: the position of an element that was
    /// picked alone, which differs by store. Of joined stores, and no argument of users. Empty: nothing.
    #[serde(rename = "_index_origins", deserialize_with = "lists")]
    pub index_origins: Vec<Vec<i64>>,
    /// Along the first of `dims`: no sample reaches from before one of these elements to it or beyond.
    pub breaks: Breaks,
    /// Which of the segments between breaks samples are of, numbered over the whole dimension.
    pub segments: Segments,
    /// How several stores are put together.
    pub concat: Concat,
    /// Whether samples may reach from one store into the next; otherwise their borders are breaks.
    pub cross_stores: bool,
    /// How many elements before its segment a window may begin at most. With it or `pad_after` each segment has a grid of
    /// starts of its own, whose first is so far before the segment.
    pub pad_before: PerDim,
    /// How many elements after its segment a window may end at most.
    pub pad_after: PerDim,
    /// See [`OutOfBounds`]. Beyond a break is out of bounds too.
    pub out_of_bounds_policy: OutOfBounds,
    /// The value of elements outside the region of interest, as a value of the output; default: 0.
    pub fill_value: PerOutput<f64>,
    /// An array of offsets, one more than there are samples: each sample is the elements from one offset to the next of the arrays
    /// that these divide, and an element of the others.
    #[serde(deserialize_with = "name")]
    pub ragged: Option<String>,
    /// The same by an array of ends: the first sample starts at 0.
    #[serde(deserialize_with = "name")]
    pub ragged_ends: Option<String>,
    /// With either, the elements of a sample that are read, at most.
    #[serde(deserialize_with = "some_positive")]
    pub max_length: Option<u64>,
    /// One output of channels instead of one per array.
    pub stack_arrays: bool,
    /// One more output: which elements of the longest windows weren't padded, bool.
    pub return_mask: bool,
    /// One more output: the sample's start in each of `dims`, int64; before it the number of its segment, where
    /// [`SampleArguments::names_segments`] says so.
    pub return_index: bool,
}

impl SampleArguments {
    /// The dimensions that `dims` names, or else `window`, and which of both it is; none if neither names one.
    pub(crate) fn dims_or_window(&self) -> (Vec<DimKey>, &'static str) {
        match self.window.dims() {
            keys if self.dims.is_empty() => (keys, "window"),
            _ => (self.dims.clone(), "dims"),
        }
    }

    /// Whether the index of a sample has the number of its segment: with `breaks`, and where the windows of neighbouring stores
    /// may start at the same element.
    pub fn names_segments(&self) -> bool {
        let pads = !self.pad_before.is_empty() || !self.pad_after.is_empty();
        !self.breaks.is_empty() || (pads && !self.cross_stores)
    }
}

/// Elements of a dimension at equal distances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// The first one.
    pub first: i64,
    /// One past the last one.
    pub end: i64,
    /// Their distance, at least 1.
    pub spacing: i64,
}

/// Lists of regions, each written `[first, end, spacing]`.
fn regions<'de, D: serde::Deserializer<'de>>(value: D) -> Result<Vec<Vec<Option<Region>>>, D::Error> {
    let all: Vec<Vec<Option<[i64; 3]>>> = lists(value)?;
    let one = |[first, end, spacing]: [i64; 3]| Region { first, end, spacing };
    Ok(all.into_iter().map(|of| of.into_iter().map(|found| found.map(one)).collect()).collect())
}

/// Lists of lists, whose form hosts know.
fn lists<'de, D: serde::Deserializer<'de>, T: serde::de::DeserializeOwned>(value: D) -> Result<Vec<Vec<T>>, D::Error> {
    serde_json::from_value(serde_json::Value::deserialize(value)?).map_err(serde::de::Error::custom)
}

/// A name; none if it is empty.
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
            concat: Concat::Dims,
            cross_stores: true,
            out_of_bounds_policy: OutOfBounds::Drop,
            fill_value: PerOutput::new(),
            ragged: None,
            ragged_ends: None,
            max_length: None,
            stack_arrays: false,
            return_mask: false,
            return_index: false,
        }
    }
}

/// How several stores are put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Concat {
    /// To one axis, along the first of `dims`.
    Dims,
    /// One after the other, each with samples of its own: the stores may have any shapes.
    Samples,
}

/// The treatment of a window that reaches beyond the region of interest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OutOfBounds {
    /// An error when the reader is built.
    Error,
    /// Such a window isn't a sample.
    Drop,
    /// The elements outside get the fill value.
    Pad,
    /// The elements outside repeat the first or the last element inside.
    Edge,
}

impl OutOfBounds {
    /// Whether windows that reach out are samples.
    pub fn fills(self) -> bool {
        matches!(self, Self::Pad | Self::Edge)
    }
}
