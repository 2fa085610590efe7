//! Axes: the dimensions that samples are cut along. Makes them from window, step, stride, offsets and region of
//! interest.

use super::breaks::breaks;
use super::cuts::{Cut, common};
use super::dims::resolve;
use super::missing::Missing;
use super::requested::{Requested, chosen, region, selected};
use super::scaling::{Sized, Sizes};
use super::starts::above;
use super::{ArrayShape, Role, Starts, View};
use crate::spec::{OutOfBounds, Region, Segments, Spec};
use dali_zarr_base::error::{Error, Result};

/// A dimension that samples are cut along. All numbers are elements of the dimension after stores were joined and
/// `pick` was applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axis {
    /// Name of the dimension.
    pub name: String,
    /// First element of each segment between breaks, then the end of the last segment. Segments are those of the whole
    /// dimension; a segment outside of the region that samples may touch is empty. The distance of each bound from the
    /// first one is a multiple of `spacing`.
    pub bounds: Vec<i64>,
    /// Distance between the elements that samples may touch, at least 1.
    pub spacing: i64,
    /// Elements that a sample reads, over all outputs and offsets: the first one and one past the last one, relative to
    /// the sample's start.
    pub reach: (i64, i64),
    /// Where samples start.
    pub starts: Starts,
    /// Whether each sample's start is drawn at random from `starts`. The axis then doesn't multiply the number of
    /// samples.
    pub random: bool,
    /// The elements whose data are declared missing; `None` if there are none. `starts` reads none of them.
    pub missing: Option<Missing>,
    /// Number of starts that were left out because they read missing elements.
    pub left_out: i64,
    /// The arrays whose elements have other numbers than those of the axis; `reach` doesn't count them. `None` if there are
    /// none.
    pub scaled: Option<ScaledCuts>,
}

/// The arrays along an axis whose elements have other sizes or places than those of the axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScaledCuts {
    /// How they are cut.
    cuts: Vec<Cut>,
    /// The least and the most of the offsets along the axis.
    offsets: (i64, i64),
}

impl ScaledCuts {
    /// Returns the first and the last start at which all windows lie in a segment, given those of the axis's own elements.
    fn room(&self, segment: (i64, i64), own: (i64, i64)) -> (i64, i64) {
        let (least, most) = self.offsets;
        self.cuts.iter().fold(own, |(first, last), cut| {
            let (from, to) = cut.fitting(segment);
            (first.max(from - least), last.min(to - most))
        })
    }
}

impl Axis {
    /// Returns the number of samples along this axis. A random axis has one, or none if it has no start.
    pub fn count(&self) -> i64 {
        if self.random { self.starts.count().min(1) } else { self.starts.count() }
    }

    /// Returns the region that samples may touch: its first element and one past its last one.
    pub fn region(&self) -> (i64, i64) {
        (self.bounds[0], self.bounds[self.bounds.len() - 1])
    }

    /// Returns the bytes of memory that segments take, dozens for each; 0 without breaks and missing elements.
    pub fn break_bytes(&self) -> u64 {
        let bounds = size_of::<i64>() * self.bounds.capacity();
        if self.bounds.len() > 2 || self.missing.is_some() { bounds as u64 + self.starts.bytes() } else { 0 }
    }

    /// Returns the `k`-th start of [`Axis::starts`], with its segment.
    pub fn start(&self, k: i64) -> Start {
        let (at, segment) = self.starts.at(k);
        Start { at, segment: segment.unwrap_or_else(|| self.segment_of_start(at)) }
    }

    /// Returns the first element of a segment and one past its last one.
    pub fn segment(&self, number: usize) -> (i64, i64) {
        (self.bounds[number], self.bounds[number + 1])
    }

    /// Returns the number of the segment that contains all elements that a sample with this start reads in the region.
    /// If no segment does, returns the segment that contains the start, moved into the region.
    pub(super) fn segment_of_start(&self, start: i64) -> usize {
        // Segments outside of the region have no elements.
        let region = self.region();
        let around = |at: i64| self.bounds.partition_point(|&b| b <= at.clamp(region.0, region.1 - 1)) - 1;
        let (first, end) = ((start + self.reach.0).max(region.0), (start + self.reach.1).min(region.1));
        let number = around(first);
        if first < end && end <= self.segment(number).1 { number } else { around(start) }
    }

    /// Returns the first and the last start at which all windows of a sample lie in a segment of the axis. There is none if
    /// the first is after the last.
    pub fn room(&self, (from, to): (i64, i64)) -> (i64, i64) {
        let own = (from - self.reach.0, to - self.reach.1);
        self.scaled.as_ref().map_or(own, |scaled| scaled.room((from, to), own))
    }

    /// Returns the number of starts that read elements of one segment only, in all arrays. Starts are every `step` elements,
    /// from the first one on.
    fn in_room(&self) -> i64 {
        let rooms: Vec<_> = self.bounds.windows(2).map(|two| self.room((two[0], two[1]))).collect();
        let last = self.region().1 - 1;
        Starts::in_rooms(self.starts.at(0).0, self.starts.step(), &rooms, last).count()
    }

    /// Returns the number of starts that read elements of one segment only. Starts are every `step` elements, from the
    /// first one on. A start reads the elements from `reach.0` to before `reach.1`, relative to itself.
    pub fn fitting(&self, reach: (i64, i64)) -> i64 {
        Starts::within(self.starts.at(0).0, self.starts.step(), reach, &self.bounds).count()
    }

    /// Counts the starts that read elements outside of their segment.
    pub fn reaching_out(&self) -> i64 {
        let step = self.starts.step();
        let of = |((n, first), segment): ((i64, i64), Option<usize>)| {
            let Some(segment) = segment else { return n - self.in_room() };
            let (least, most) = self.room(self.segment(segment));
            // The first starts read elements before the segment, the last ones elements after it.
            let (before, room) = ((least - first).max(0), most - first);
            let before = before / step + i64::from(before % step > 0);
            let fit = if room < 0 { 0 } else { room / step + 1 };
            n - (fit.min(n) - before).max(0)
        };
        self.starts.runs().zip(self.starts.segments()).map(of).sum()
    }
}

/// Where a sample starts along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// Element of the dimension after stores were joined and `pick` was applied. May lie outside of the dimension if
    /// windows may.
    pub at: i64,
    /// Number of the segment between breaks that the sample belongs to.
    pub segment: usize,
}

/// The axes, and for each array how it is cut along each axis.
type Built = (Vec<Axis>, Vec<Vec<Cut>>);

/// Whether a geometry without samples is allowed. One of several stores may be smaller than a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Empty {
    Allowed,
    Refused,
}

/// Makes the axes. `missing` has for each array its missing elements along the first of `names`; empty: none has any.
pub(super) fn build(
    spec: &Spec,
    arrays: &[ArrayShape],
    views: &[View],
    names: &[String],
    missing: &[Vec<i64>],
    empty: Empty,
) -> Result<Built> {
    let samples = &spec.samples;
    if names.is_empty() {
        let unused = [
            ("window", samples.window.is_empty()),
            ("step", samples.step.is_empty()),
            ("overlap", samples.overlap.is_empty()),
            ("stride", samples.stride.is_empty()),
            ("roi_start", samples.roi_start.is_empty()),
            ("roi_end", samples.roi_end.is_empty()),
            ("offsets", samples.offsets.iter().all(|&o| o == 0)),
            ("breaks", samples.breaks.is_empty()),
            ("segments", samples.segments == Segments::All),
            ("pad_before", samples.pad_before.is_empty()),
            ("pad_after", samples.pad_after.is_empty()),
            ("random_crop", samples.random_crop.is_empty()),
            ("samples_per_volume", samples.samples_per_volume == 1),
            ("scale_by", samples.scale_by.is_none()),
        ];
        return match unused.into_iter().find(|(_, unused)| !unused) {
            Some((what, _)) if spec.source.is_grouped() => Err(Error::value(format!(
                "{what}: expected dims or window with it, since each group is one sample without them; name the dimension in dims, or \
                 leave {what} out"
            ))),
            None => Ok((Vec::new(), vec![Vec::new(); arrays.len()])),
            Some((what, _)) => Err(Error::value(format!(
                "{what}: expected an array with dimensions, but array '{}' has none, which makes it one sample; leave {what} out",
                arrays[0].name
            ))),
        };
    }
    let sizes = Sizes::of(spec, names, arrays)?;
    let roi =
        [common("roi_start", &samples.roi_start, names, arrays)?, common("roi_end", &samples.roi_end, names, arrays)?];
    let pads = [
        common("pad_before", &samples.pad_before, names, arrays)?,
        common("pad_after", &samples.pad_after, names, arrays)?,
    ];
    let has_step = !samples.step.is_empty() || !samples.step_lengths.is_empty();
    if has_step && (!samples.overlap.is_empty() || !samples.overlap_lengths.is_empty()) {
        return Err(Error::value(
            "step, overlap: expected one of both, since overlap is the window without step, but found two",
        ));
    }
    if samples.stack_arrays && sizes.differ() {
        return Err(Error::value(
            "window, stride, stack_arrays: expected the same for all arrays of a stack, but found values that differ by output",
        ));
    }
    let mut random: Vec<String> = Vec::new();
    for key in &samples.random_crop {
        let name = resolve(key, "random_crop", arrays)?;
        if !names.contains(&name) {
            return Err(Error::value(format!(
                "random_crop: samples aren't cut along dimension \"{name}\"; name it in dims too, with a window"
            )));
        }
        if random.contains(&name) {
            return Err(Error::value(format!("random_crop: dimension \"{name}\" is named twice")));
        }
        random.push(name);
    }
    if samples.samples_per_volume > 1 && random.is_empty() {
        return Err(Error::value(
            "samples_per_volume: expected random_crop too, since the samples of one start would all be the same",
        ));
    }
    let regions = spec.samples.regions.first().map_or(&[][..], |regions| regions);
    let (mut axes, mut cuts) = (Vec::new(), vec![Vec::new(); arrays.len()]);
    for (i, name) in names.iter().enumerate() {
        let len = length(i, name, views, sizes.grid())?;
        let breaks = if i == 0 { breaks(spec, name, len, views)? } else { Vec::new() };
        let region = match regions.get(i) {
            Some(Some(region)) => selected(name, len, *region)?,
            _ => region(name, len, roi[0][i], roi[1][i])?,
        };
        let Sized { cuts: own, is_scaled, step, overlap } = sizes.along(i, name, region, arrays, views)?;
        let has = |view: &View| view.dims.iter().any(|dim| dim.role == Role::Axis(i));
        let with_dim = || views.iter().zip(&own).filter(|(view, _)| has(view)).map(|(_, cut)| *cut);
        if samples.stack_arrays && with_dim().any(|cut| (cut.window, cut.dropped) != (own[0].window, own[0].dropped)) {
            return Err(Error::value(format!(
                "window, scale_by, stack_arrays: expected as many elements of all arrays of a stack, but found different numbers along \
                 \"{name}\"; give a window by output, or leave stack_arrays out"
            )));
        }
        // Only the grid array's elements have the axis's numbers.
        let reading: Vec<Cut> = match sizes.grid().filter(|_| is_scaled) {
            Some(grid) => vec![own[grid]],
            None => with_dim().collect(),
        };
        let scaled: Vec<Cut> = with_dim().filter(|cut| cut.scaled.is_some()).collect();
        let requested = Requested {
            first: i == 0,
            name,
            region,
            breaks,
            random: random.contains(name),
            step,
            overlap,
            pads: [pads[0][i], pads[1][i]],
        };
        let of_first = own.iter().copied().zip(missing.iter().cloned()).filter(|_| i == 0);
        let missing = Missing::new(spec, region.spacing, of_first);
        axes.push(axis(spec, requested, &reading, scaled, missing, empty)?);
        cuts.iter_mut().zip(own).for_each(|(of, cut)| of.push(cut));
    }
    Ok((axes, cuts))
}

/// Returns the length of the dimension of axis number `i`: that of the `grid` array, if it has the dimension.
fn length(i: usize, name: &str, views: &[View], grid: Option<usize>) -> Result<i64> {
    let along = |view: &View| view.dims.iter().find(|dim| dim.role == Role::Axis(i)).map(|dim| dim.len as i64);
    let found = grid.and_then(|grid| along(&views[grid])).or_else(|| views.iter().find_map(along));
    found.ok_or_else(|| {
        Error::value(format!(
            "window: expected a window for an output that has the dimension \"{name}\" of dims, but found none; outputs without a window \
             are read whole with groups"
        ))
    })
}

pub(super) fn too_many() -> Error {
    Error::value("there are more than 2^62 samples; use larger steps")
}

/// Makes one axis. `cuts` says how the arrays that have its dimension are cut along it. `scaled` are the cuts of arrays whose
/// elements have other numbers than the axis's.
fn axis(
    spec: &Spec,
    requested: Requested<'_>,
    cuts: &[Cut],
    scaled: Vec<Cut>,
    missing: Option<Missing>,
    empty: Empty,
) -> Result<Axis> {
    let Requested { name, region: Region { first: roi_start, end: roi_end, spacing }, random, .. } = requested;
    let step = requested.step(cuts.iter().map(|cut| cut.window).max().unwrap_or(1))?;
    let offsets: &[i64] = if requested.first { &spec.samples.offsets } else { &[] };
    let least = offsets.iter().copied().min().unwrap_or(0);
    let most = offsets.iter().copied().max().unwrap_or(0);
    if least < -(1 << 40) || most > 1 << 40 {
        return Err(Error::value("offsets: expected numbers within 2^40 of zero"));
    }
    let longest = cuts.iter().max_by_key(|cut| cut.span()).copied().unwrap_or(Cut::ONE);
    let Cut { window, stride, .. } = longest;
    let need = longest.span().unwrap_or(1);
    let inner = requested.breaks.iter().map(|b| above((*b).clamp(roi_start, roi_end), roi_start, spacing));
    let mut bounds: Vec<i64> = std::iter::once(roi_start).chain(inner).chain(std::iter::once(roi_end)).collect();
    bounds.shrink_to_fit();
    let reach = (least, most + need);
    let policy = spec.samples.out_of_bounds_policy;
    let pads = requested.pads(reach.1 - reach.0, policy)?;
    let chosen = if requested.first { chosen(&spec.samples.segments, bounds.len() - 1)? } else { None };
    let of_chosen = |starts: Starts| match &chosen {
        None => starts,
        Some(chosen) => starts.only(|segment| chosen[segment]),
    };
    // Without pads, every policy has the same grid of starts: `roi_start`, then every `step` elements in the region.
    // Random starts are drawn from the grid's starts at which all windows fit.
    let grid = || match chosen {
        None if missing.is_none() => Starts::grid(roi_start, step, (roi_end - roi_start - 1) / step + 1),
        _ => of_chosen(Starts::told(step, reach, &bounds)),
    };
    let scaled = (!scaled.is_empty()).then_some(ScaledCuts { cuts: scaled, offsets: (least, most) });
    let room = |two: &[i64]| {
        let own = (two[0] - reach.0, two[1] - reach.1);
        scaled.as_ref().map_or(own, |scaled| scaled.room((two[0], two[1]), own))
    };
    let rooms: Vec<(i64, i64)> = bounds.windows(2).map(room).collect();
    let fitting = || of_chosen(Starts::in_rooms(roi_start, step, &rooms, roi_end - 1));
    let around = match (least, most) {
        (0, 0) => String::new(),
        _ if least == most => format!(", offset {least}"),
        _ => format!(", offsets from {least} to {most}"),
    };
    let mut starts = match (policy, pads) {
        (_, Some(pads)) => of_chosen(Starts::each(step, reach, pads, &bounds)),
        (OutOfBounds::Pad | OutOfBounds::Edge, None) if !random => grid(),
        (OutOfBounds::Pad | OutOfBounds::Edge, None) => match fitting() {
            fitting if fitting.count() > 0 => fitting,
            // One start in the whole region.
            _ if chosen.is_none() => Starts::told(roi_end - roi_start, reach, &bounds),
            _ => of_chosen(Starts::of_segments(&bounds)),
        },
        (OutOfBounds::Error, None) if !random => {
            let grid = grid();
            if fitting().count() < grid.count() {
                let across = if bounds.len() > 2 { " or cross a break" } else { "" };
                return Err(Error::value(format!(
                    "out_of_bounds_policy=\"error\": along \"{name}\" windows of {need} elements (window {window}, stride \
                     {stride}{around}) at every {step} elements don't tile the region of interest [{roi_start}, \
                     {roi_end}){across}; use \"drop\" or \"pad\", or another window, step or region"
                )));
            }
            grid
        }
        _ => fitting(),
    };
    if policy == OutOfBounds::Error && random && starts.count() == 0 {
        return Err(Error::value(format!(
            "out_of_bounds_policy=\"error\": along \"{name}\" windows of {need} elements (window {window}, stride {stride}{around}) fit at \
             no start in the region of interest [{roi_start}, {roi_end}); use \"drop\" or \"pad\", or a smaller window"
        )));
    }
    if starts.count() >= 1 << 62 {
        return Err(too_many());
    }
    let mut left_out = 0;
    if let Some(missing) = &missing {
        let all = starts.count();
        starts = missing.without(&starts, &bounds)?;
        left_out = all - starts.count();
        if starts.count() == 0 && all > 0 && empty == Empty::Refused {
            let (says, instead) = match spec.source.align.is_empty() {
                true => ("the store's attribute missing_dates says", "missing_dates=\"keep\""),
                false => {
                    ("align or the store's attribute missing_dates says", "a larger tolerance, missing_dates=\"keep\"")
                }
            };
            return Err(Error::value(format!(
                "missing_dates: along \"{name}\" each of the {all} samples reads a date whose data are missing, as {says}, so the \
                 store holds no sample; use {instead}, or make window, stride or offsets smaller"
            )));
        }
    }
    if starts.count() == 0
        && empty == Empty::Refused
        && scaled.is_some()
        && Starts::within(roi_start, step, reach, &bounds).count() > 0
    {
        return Err(Error::value(format!(
            "scale_by: along \"{name}\" no box lies in all arrays, so there is no sample; make the windows smaller, check the \
             places of the arrays, or use out_of_bounds_policy=\"pad\""
        )));
    }
    if starts.count() == 0 && empty == Empty::Refused {
        let between = match (bounds.len() > 2, &chosen) {
            (_, Some(_)) => " in one of the segments that were chosen",
            (true, None) => " without a break",
            (false, None) => "",
        };
        return Err(Error::value(format!(
            "window: along \"{name}\" a sample spans {} elements (window {window}, stride {stride}{around}), which fit at no \
             start in the region of interest [{roi_start}, {roi_end}){between}, so the store holds no sample; make them \
             smaller or use out_of_bounds_policy=\"pad\"",
            reach.1 - reach.0,
        )));
    }
    starts.shrink_to_fit();
    Ok(Axis { name: name.to_owned(), bounds, spacing, reach, starts, random, missing, left_out, scaled })
}
