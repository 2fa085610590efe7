//! The outputs, and where the elements of each array go in them.

use std::ops::Range;

use super::cuts::check;
use super::normalised::{Channels, Normalised};
use super::placement::Placement;
use super::squeezed::Squeezed;
use super::transposed::{Orders, channels_name, row_major, strides_in};
use super::{ArrayShape, Axis, Cut, Norm, Role, View, layout, scratch};
use crate::batch::OutputInfo;
use crate::spec::{Concat, Spec};
use dali_zarr_base::dtype::DType;
use dali_zarr_base::error::{Error, Result};

/// A mask output: true for elements that weren't padded. It has a dimension for each axis that samples keep and, if
/// there are several offsets, a first dimension for these.
#[derive(Clone, Debug)]
pub struct Mask {
    /// Index of the output.
    pub output: usize,
    /// Index of the array whose elements it is about; `None`: about those of all arrays, which have the same places.
    pub array: Option<usize>,
    /// The axes that samples keep, each with the cut of the array, or of the one that has the longest window along it.
    pub axes: Vec<(usize, Cut)>,
    /// The offsets. If there are several, the mask has one part for each, one after the other.
    pub offsets: Vec<i64>,
}

/// The outputs, and what goes into them.
pub(super) struct Built {
    pub outputs: Vec<OutputInfo>,
    pub placements: Vec<Placement>,
    pub norms: Vec<Norm>,
    pub tables: Vec<Range<usize>>,
    pub is_transposed: bool,
    pub masks: Vec<Mask>,
}

/// A dimension that arrays of one output share: its name and its length in a sample.
struct GridDim<'a> {
    name: &'a str,
    len: u64,
}

pub(super) fn build(spec: &Spec, arrays: &[ArrayShape], views: &[View], axes: &[Axis]) -> Result<Built> {
    let offsets: &[i64] = if spec.samples.offsets.is_empty() { &[0] } else { &spec.samples.offsets };
    let values = &spec.values;
    check("mask_and_scale", &values.mask_and_scale, arrays)?;
    check("dtype", &values.dtype, arrays)?;
    check("fill_value", &spec.samples.fill_value, arrays)?;
    check("fillna", &values.fillna, arrays)?;
    let mut built = if spec.samples.stack_arrays {
        stacked(spec, arrays, views, axes, offsets)?
    } else {
        separate(spec, arrays, views, offsets)?
    };
    complex_fill_parts_differ(&mut built, arrays, views)?;
    if spec.samples.return_mask {
        let of_arrays = 0..arrays.len() * usize::from(spec.samples.scale_by.is_some());
        let about: Vec<Option<usize>> = if of_arrays.is_empty() { vec![None] } else { of_arrays.map(Some).collect() };
        for array in about {
            let name = array.map_or_else(|| "mask".to_owned(), |array| format!("{}_mask", arrays[array].output));
            let (info, mask) = mask(views, axes, offsets, array, built.outputs.len());
            built.outputs.push(OutputInfo { name, ..info });
            built.masks.push(mask);
        }
    }
    for output in &built.outputs {
        let elements = output.shape.iter().try_fold(output.dtype.size() as i64, |n, &s| n.checked_mul(s));
        if elements.is_none_or(|bytes| bytes > 1 << 46) {
            return Err(Error::value(format!(
                "output '{}': a sample of shape {:?} is too large; name more of its dimensions in dims, with a window",
                output.name, output.shape
            )));
        }
    }
    if spec.samples.return_index {
        let others = [spec.samples.concat == Concat::Samples, spec.samples.names_segments() && !axes.is_empty()];
        let shape = vec![axes.len() as i64 + others.map(i64::from).iter().sum::<i64>()];
        built.outputs.push(OutputInfo {
            shape,
            dims: vec!["column".into()],
            dtype: DType::I64,
            layout: String::new(),
            name: "index".into(),
            offset: None,
            ragged: None,
            scratch: 0,
        });
    }
    Ok(built)
}

/// Returns the offset of an output, if offsets were given.
fn told(spec: &Spec, offset: i64) -> Option<i64> {
    (!spec.samples.offsets.is_empty()).then_some(offset)
}

/// Returns the mask about an array or about all, which becomes output number `output`.
fn mask(views: &[View], axes: &[Axis], offsets: &[i64], array: Option<usize>, output: usize) -> (OutputInfo, Mask) {
    let views = array.map_or(views, |array| &views[array..=array]);
    let longest = |a: usize| {
        let reads = |view: &&View| view.dims.iter().any(|dim| dim.role == Role::Axis(a));
        let cuts = views.iter().filter(reads).map(|view| view.cuts[a]).filter(|cut| !cut.dropped);
        // Of several longest windows the first one.
        cuts.reduce(|best, next| if next.window > best.window { next } else { best }).map(|cut| (a, cut))
    };
    let kept: Vec<(usize, Cut)> = (0..axes.len()).filter_map(longest).collect();
    let groups = (offsets.len() > 1).then_some(offsets.len() as i64);
    let shape = groups.into_iter().chain(kept.iter().map(|(_, cut)| cut.window)).collect();
    let dims = groups.map(|_| "offset".to_owned()).into_iter().chain(kept.iter().map(|&(a, _)| axes[a].name.clone()));
    let (dtype, layout) = (DType::Bool, String::new());
    let info = OutputInfo {
        shape,
        dims: dims.collect(),
        dtype,
        layout,
        name: String::new(),
        offset: None,
        ragged: None,
        scratch: 0,
    };
    (info, Mask { output, array, axes: kept, offsets: offsets.to_vec() })
}

/// Gives the real and the imaginary parts of complex numbers a [`Norm`] each, if the parts of the fill value differ.
fn complex_fill_parts_differ(built: &mut Built, arrays: &[ArrayShape], views: &[View]) -> Result<()> {
    let Built { placements, norms, .. } = built;
    // All offsets of an array share their norms, so they are replaced once. Each entry: the old norm, the new norm, the
    // new channels.
    let mut replaced: Vec<(usize, usize, Channels)> = Vec::new();
    for placement in placements.iter_mut().filter(|p| arrays[p.array].complex_fill_parts_differ) {
        let array = &arrays[placement.array];
        let last = array.dims.len() - 1;
        let dim = &views[placement.array].dims[last];
        let is_one = dim.pick.as_ref().is_none_or(|pick| pick.lists().windows(2).all(|two| two[0] == two[1]));
        if dim.role != Role::Whole || !is_one {
            return Err(Error::value(format!(
                "array '{}': expected the same of \"{}\" in all samples and stores, since the parts of its fill value differ; leave \
                 that out of dims, or pick the same in each store",
                array.name, array.dims[last]
            )));
        }
        if let Some((_, norm, channels)) = replaced.iter().find(|(old, ..)| *old == placement.norm) {
            (placement.norm, placement.channels) = (*norm, Some(channels.clone()));
            continue;
        }
        let is_imaginary = |k: u64| dim.pick.as_ref().map_or(k, |pick| pick.of(0)[k as usize]) == 1;
        let old = placement.channels.clone().unwrap_or(Channels { dims: Vec::new(), table: None, is_own: false });
        let lens = old.dims.iter().map(|&(d, _)| views[placement.array].dims[d].len);
        let of_old = norms[placement.norm..placement.norm + lens.product::<u64>() as usize].to_vec();
        let norm = norms.len();
        let channels = match old.dims.iter().find(|&&(d, _)| d == last) {
            Some(&(_, weight)) => {
                let of = |(c, one): (u64, Norm)| Norm { imaginary: is_imaginary(c / weight % dim.len), ..one };
                norms.extend((0..).zip(of_old).map(of));
                old
            }
            None => {
                let both = |one: Norm| (0..dim.len).map(move |k| Norm { imaginary: is_imaginary(k), ..one });
                norms.extend(of_old.into_iter().flat_map(both));
                let wider = old.dims.iter().map(|&(d, weight)| (d, weight * dim.len));
                Channels { dims: wider.chain([(last, 1)]).collect(), ..old }
            }
        };
        replaced.push((placement.norm, norm, channels.clone()));
        (placement.norm, placement.channels) = (norm, Some(channels));
    }
    Ok(())
}

/// Returns the length of a dimension in a sample; `None` if samples lack the dimension.
fn kept(view: &View, d: usize) -> Option<u64> {
    match view.dims[d].role {
        Role::Axis(a) if view.cuts[a].dropped => None,
        Role::Axis(a) => Some(view.cuts[a].window as u64),
        Role::Whole | Role::Ragged => Some(view.dims[d].len),
    }
}

/// Returns the lengths of an array's dimensions in a sample, with 1 for those that samples lack.
fn lens(view: &View) -> Vec<u64> {
    (0..view.dims.len()).map(|d| kept(view, d).unwrap_or(1)).collect()
}

fn separate(spec: &Spec, arrays: &[ArrayShape], views: &[View], offsets: &[i64]) -> Result<Built> {
    let normalised = Normalised::separate(spec, arrays, views)?;
    let (mut norms, mut tables, mut of_arrays) = (Vec::new(), Vec::new(), Vec::new());
    for ((array, view), of) in arrays.iter().zip(views).zip(&normalised) {
        let first = norms.len();
        norms.extend(&of.norms);
        let channels = (norms.len() > first + 1).then(|| {
            // Real and imaginary parts need different operations, so no table holds for both.
            let table = (!array.complex_fill_parts_differ).then(|| {
                tables.push(first..norms.len());
                tables.len() - 1
            });
            Channels::along(&of.dims, view, table, true)
        });
        of_arrays.push((first, channels));
    }
    let (orders, squeezed) = (Orders::new(spec, arrays)?, Squeezed::new(spec, arrays)?);
    let mut is_transposed = false;
    let (mut outputs, mut placements) = (Vec::new(), Vec::new());
    for &offset in offsets {
        for (a, (array, view)) in arrays.iter().zip(views).enumerate() {
            let all: Vec<usize> = (0..view.dims.len()).filter(|&d| kept(view, d).is_some()).collect();
            let named: Vec<(&str, u64)> =
                all.iter().filter_map(|&d| Some((array.dims[d].as_str(), kept(view, d)?))).collect();
            let dropped = squeezed.of_array(array, &named)?;
            is_transposed |= dropped.contains(&true);
            let dims: Vec<usize> =
                all.into_iter().zip(dropped).filter(|(_, dropped)| !dropped).map(|(d, _)| d).collect();
            let shape: Vec<u64> = dims.iter().filter_map(|&d| kept(view, d)).collect();
            let names: Vec<&str> = dims.iter().map(|&d| array.dims[d].as_str()).collect();
            let order = orders.of_array(array, &names)?;
            is_transposed |= !order.is_sorted();
            let mut strides = vec![0; view.dims.len()];
            for (&d, stride) in dims.iter().zip(strides_in(&shape, &order)) {
                strides[d] = stride;
            }
            let names: Vec<String> = order.iter().map(|&d| names[d].to_owned()).collect();
            let mut output = OutputInfo {
                shape: order.iter().map(|&d| shape[d] as i64).collect(),
                layout: layout::of(&names),
                dims: names,
                dtype: normalised[a].dtype(),
                name: array.output.clone(),
                offset: told(spec, offset),
                ragged: None,
                scratch: 0,
            };
            let mut placement = Placement {
                array: a,
                output: outputs.len(),
                offset,
                base: 0,
                strides,
                broadcast: Vec::new(),
                norm: of_arrays[a].0,
                channels: of_arrays[a].1.clone(),
                scratch: None,
                is_decoded: false,
            };
            scratch::add(&mut placement, array, view, &lens(view), &mut output, spec)?;
            placements.push(placement);
            outputs.push(output);
        }
    }
    Ok(Built { outputs, placements, norms, tables, is_transposed, masks: Vec::new() })
}

/// Returns the dimensions of a stack that follow its channels: those of `dims` that samples keep, and others that every
/// array of two dimensions or more has. They have the order of the first array with most dimensions.
fn grid<'a>(arrays: &'a [ArrayShape], views: &[View], axes: &'a [Axis]) -> Vec<GridDim<'a>> {
    let reference = super::dims::reference(arrays);
    let common = |name: &str| arrays.iter().filter(|a| a.dims.len() >= 2).all(|a| a.dims.iter().any(|d| d == name));
    let at = arrays.iter().position(|a| std::ptr::eq(a, reference)).unwrap_or(0);
    let mut dims: Vec<GridDim<'a>> = Vec::new();
    for (d, name) in reference.dims.iter().enumerate() {
        let is_axis = matches!(views[at].dims[d].role, Role::Axis(_));
        if let Some(len) = kept(&views[at], d)
            && (is_axis || (common(name) && reference.dims.len() >= 2))
        {
            dims.push(GridDim { name, len });
        }
    }
    // Then the axes that the reference array lacks.
    for (axis, cut) in axes.iter().zip(&views[at].cuts).filter(|(_, cut)| !cut.dropped) {
        if dims.iter().all(|g| g.name != axis.name) {
            dims.push(GridDim { name: &axis.name, len: cut.window as u64 });
        }
    }
    dims
}

/// Returns for each array the dimensions that become channels of the stack, and the number of channels that they make.
fn channels_of(arrays: &[ArrayShape], views: &[View], grid: &[GridDim<'_>]) -> Result<Vec<(Vec<usize>, u64)>> {
    let of_array = |(array, view): (&ArrayShape, &View)| {
        let is_channel = |&d: &usize| kept(view, d).is_some() && grid.iter().all(|g| g.name != array.dims[d]);
        let dims: Vec<usize> = (0..array.dims.len()).filter(is_channel).collect();
        let count = dims.iter().try_fold(1u64, |n, &d| n.checked_mul(view.dims[d].len)).filter(|&n| n <= 1 << 24);
        let too_many = || Error::value("stack_arrays: more than 2^24 channels; name the large dimension in dims");
        Ok((dims, count.ok_or_else(too_many)?))
    };
    arrays.iter().zip(views).map(of_array).collect()
}

fn stacked(spec: &Spec, arrays: &[ArrayShape], views: &[View], axes: &[Axis], offsets: &[i64]) -> Result<Built> {
    let grid = grid(arrays, views, axes);
    let of_arrays = channels_of(arrays, views, &grid)?;
    let channels: u64 = of_arrays.iter().map(|(_, count)| count).sum();
    let shape: Vec<u64> = std::iter::once(channels).chain(grid.iter().map(|g| g.len)).collect();
    let all: Vec<&str> = grid.iter().map(|g| g.name).collect();
    let of_channels = channels_name(&all);
    let names: Vec<&str> = std::iter::once(of_channels).chain(all).collect();
    let named: Vec<(&str, u64)> = names.iter().copied().zip(shape.iter().copied()).collect();
    let dropped = Squeezed::new(spec, arrays)?.of_stack(&named)?;
    let is_squeezed = dropped.contains(&true);
    // The dimensions that are left, and those that are dropped: as they have one element, it doesn't matter where they lie.
    let left: Vec<usize> = (1..names.len()).filter(|&d| !dropped[d]).collect();
    let left_names: Vec<&str> = left.iter().map(|&d| names[d]).collect();
    let order = Orders::new(spec, arrays)?.of_stack(of_channels, &left_names)?;
    let mut order: Vec<usize> = order.into_iter().map(|at| at.checked_sub(1).map_or(0, |at| left[at])).collect();
    let is_transposed = !order.is_sorted();
    order.extend((1..names.len()).filter(|&d| dropped[d]));
    let stack_strides = strides_in(&shape, &order);
    // The distance between channels in the output.
    let plane = stack_strides[0];
    let own: Vec<Vec<usize>> = of_arrays.iter().map(|(dims, _)| dims.clone()).collect();
    let normalised = Normalised::stacked(spec, arrays, views, &own)?;
    let dtype = normalised[0].dtype();
    if let Some((other, of)) = arrays.iter().zip(&normalised).find(|(_, of)| of.dtype() != dtype) {
        return Err(Error::dtype(format!(
            "stack_arrays: array '{}' gives {dtype} but array '{}' gives {}; give the stack's type, e.g. dtype=types.FLOAT",
            arrays[0].name,
            other.name,
            of.dtype()
        )));
    }

    let (mut norms, mut tables, mut parts) = (Vec::new(), Vec::new(), Vec::new());
    let mut first_channel = 0u64;
    for (a, (array, view)) in arrays.iter().zip(views).enumerate() {
        let (dims, count) = &of_arrays[a];
        let lens: Vec<u64> = dims.iter().map(|&d| view.dims[d].len).collect();
        let weights = row_major(&lens);
        let mut strides = vec![0; array.dims.len()];
        for (&d, &w) in dims.iter().zip(&weights) {
            strides[d] = w * plane;
        }
        let mut broadcast = Vec::new();
        for (g, &stride) in grid.iter().zip(&stack_strides[1..]) {
            match array.dims.iter().position(|d| d == g.name) {
                Some(d) => strides[d] = stride,
                None => broadcast.push((g.len, stride)),
            }
        }
        let norm = norms.len();
        norms.extend(&normalised[a].norms);
        let channels = (norms.len() > norm + 1).then(|| {
            let of = &normalised[a].dims;
            // Channels that the stack makes have boxes of their own and need no table, unless their elements don't lie
            // together in the output.
            let is_own = of != dims;
            let table = ((is_own || is_transposed) && !array.complex_fill_parts_differ).then(|| {
                tables.push(norm..norms.len());
                tables.len() - 1
            });
            Channels::along(of, view, table, is_own)
        });
        parts.push(Placement {
            array: a,
            output: 0,
            offset: 0,
            base: first_channel as i64 * plane,
            strides,
            broadcast,
            norm,
            channels,
            scratch: None,
            is_decoded: false,
        });
        first_channel += count;
    }

    order.retain(|&d| !dropped[d]);
    let is_transposed = is_transposed || is_squeezed;
    let dims: Vec<String> = order.iter().map(|&d| names[d].to_owned()).collect();
    let shape: Vec<i64> = order.iter().map(|&d| shape[d] as i64).collect();
    let name = arrays.iter().map(|a| a.output.as_str()).collect::<Vec<_>>().join("+");
    let mut info =
        OutputInfo { shape, layout: layout::of(&dims), dims, dtype, name, offset: None, ragged: None, scratch: 0 };
    for part in &mut parts {
        let view = &views[part.array];
        scratch::add(part, &arrays[part.array], view, &lens(view), &mut info, spec)?;
    }
    let placements = offsets
        .iter()
        .enumerate()
        .flat_map(|(o, &offset)| parts.iter().map(move |p| Placement { output: o, offset, ..p.clone() }))
        .collect();
    let outputs = offsets.iter().map(|&offset| OutputInfo { offset: told(spec, offset), ..info.clone() }).collect();
    Ok(Built { outputs, placements, norms, tables, is_transposed, masks: Vec::new() })
}
