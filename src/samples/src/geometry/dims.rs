//! Finds the dimensions that arguments give by name or by position.

use super::ArrayShape;
use crate::spec::{DimKey, PerDim, Spec};
use dali_zarr_base::error::{Error, Result};

/// Returns the array that positions of dimensions refer to: the first one of those with most dimensions. An array that is
/// aligned to others is none.
pub(super) fn reference(arrays: &[ArrayShape]) -> &ArrayShape {
    let own = || arrays.iter().filter(|a| a.has_own_axis());
    let rank = own().map(|a| a.dims.len()).max().unwrap_or(0);
    own().find(|a| a.dims.len() == rank).unwrap_or(&arrays[0])
}

/// Returns the name of a dimension that the user gave by name or by position. `argument` is for messages.
pub fn resolve(key: &DimKey, argument: &str, arrays: &[ArrayShape]) -> Result<String> {
    let reference = reference(arrays);
    for array in arrays {
        if let (DimKey::Name(name), Some(unclear)) = (key, &array.unclear)
            && unclear.names.contains(name)
        {
            return Err(Error::value(format!(
                "{argument}: expected a name that only one dimension has, but found \"{name}\", and array '{}' has {}; give \
                 the dimension's position instead",
                array.name, unclear.stored
            )));
        }
    }
    match key {
        DimKey::Name(name) if arrays.iter().any(|a| a.dims.contains(name)) => Ok(name.clone()),
        DimKey::Name(name) => {
            let mut known: Vec<&str> = Vec::new();
            for d in arrays.iter().flat_map(|a| &a.dims) {
                if !known.contains(&d.as_str()) {
                    known.push(d);
                }
            }
            Err(Error::value(format!(
                "{argument}: no array has a dimension \"{name}\"; the dimensions are {}",
                known.join(", ")
            ))
            .unknown(Some(name), known.into_iter().map(str::to_owned).collect()))
        }
        DimKey::Index(i) => {
            let rank = reference.dims.len() as i64;
            let at = if *i < 0 { i + rank } else { *i };
            if at < 0 || at >= rank {
                return Err(Error::value(format!(
                    "{argument}: there is no dimension {i}: array '{}' has {rank} dimensions ({})",
                    reference.name,
                    reference.dims.join(", ")
                )));
            }
            Ok(reference.dims[at as usize].clone())
        }
    }
}

/// Whether samples are cut along the dimensions of an array that `dims` names. With groups an array is read whole, if
/// `window` has values by output, but none for it: groups may have arrays that don't belong together.
pub(super) fn is_cut(spec: &Spec, array: &ArrayShape) -> bool {
    match &spec.samples.window {
        PerDim::ByOutput(windows) if spec.source.is_grouped() => windows.iter().any(|(name, _)| *name == array.output),
        _ => true,
    }
}

/// Returns the names of the dimensions that samples are cut along. The list is empty if there is one sample in each
/// store: if no array has a dimension, or if groups are read whole.
pub fn sample_dims(spec: &Spec, arrays: &[ArrayShape]) -> Result<Vec<String>> {
    let reference = reference(arrays);
    let (keys, argument) = spec.samples.dims_or_window();
    if keys.is_empty() && spec.source.is_grouped() && spec.samples.window.is_empty() {
        return Ok(Vec::new());
    }
    if keys.is_empty() {
        return Ok(reference.dims.first().cloned().into_iter().collect());
    }
    let mut names = Vec::new();
    for key in &keys {
        let name = resolve(key, argument, arrays)?;
        if names.contains(&name) {
            return Err(Error::value(format!("{argument}: dimension \"{name}\" is named twice")));
        }
        names.push(name);
    }
    Ok(names)
}
