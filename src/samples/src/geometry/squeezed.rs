//! The dimensions of one element that `squeeze` drops from outputs, as xarray's `squeeze` does. `transpose` orders what is
//! left.

use super::ArrayShape;
use super::cuts::check_outputs;
use super::dims::resolve;
use super::transposed::{CHANNELS, OTHERS, split};
use crate::spec::{DimKey, OutputDims, Spec};
use dali_zarr_base::error::{Error, Result};

/// What was asked for.
pub(super) struct Squeezed<'a> {
    given: &'a OutputDims,
    arrays: &'a [ArrayShape],
}

impl<'a> Squeezed<'a> {
    /// Checks the names that don't depend on a sample's dimensions.
    ///
    /// # Errors
    /// If there is no such output, or if no array has a dimension of this name.
    pub fn new(spec: &'a Spec, arrays: &'a [ArrayShape]) -> Result<Self> {
        let given = &spec.samples.squeeze;
        match given {
            OutputDims::All(keys) => {
                for key in split(keys, arrays) {
                    let DimKey::Name(name) = &key else { continue };
                    let is_channel = spec.samples.stack_arrays && CHANNELS.contains(&name.as_str());
                    if name != OTHERS && !is_channel {
                        resolve(&key, "squeeze", arrays)?;
                    }
                }
            }
            OutputDims::ByOutput(_) if spec.samples.stack_arrays => {
                return Err(Error::value(
                    "squeeze: expected dimensions of the output of stack_arrays, but found them by output; give them alone, such as \
                     squeeze=\"time\"",
                ));
            }
            OutputDims::ByOutput(by_output) => {
                check_outputs("squeeze", by_output.iter().map(|(name, _)| name.as_str()), arrays)?;
            }
        }
        Ok(Self { given, arrays })
    }

    /// Returns which of a sample's dimensions, with their lengths, are dropped from the output of an array.
    ///
    /// # Errors
    /// If a dimension is unknown, or has more than one element.
    pub fn of_array(&self, array: &ArrayShape, dims: &[(&str, u64)]) -> Result<Vec<bool>> {
        let (keys, is_own) = match self.given {
            OutputDims::All(keys) => (keys, false),
            OutputDims::ByOutput(by_output) => match by_output.iter().find(|(name, _)| *name == array.output) {
                Some((_, keys)) => (keys, true),
                None => return Ok(vec![false; dims.len()]),
            },
        };
        let find = |name: &str| match dims.iter().position(|(dim, _)| *dim == name) {
            None if is_own && !array.dims.iter().any(|dim| dim == name) => Err(Error::value(format!(
                "squeeze: expected dimensions of '{}' ({}), but found \"{name}\"",
                array.output,
                array.dims.iter().map(|dim| format!("\"{dim}\"")).collect::<Vec<_>>().join(", ")
            ))
            .unknown(Some(name), array.dims.clone())),
            found => Ok(found),
        };
        self.dropped(keys, &array.output, dims, find)
    }

    /// Returns which of the dimensions of a stack are dropped. The first of `dims` are its channels.
    ///
    /// # Errors
    /// As [`Self::of_array`].
    pub fn of_stack(&self, dims: &[(&str, u64)]) -> Result<Vec<bool>> {
        let OutputDims::All(keys) = self.given else { return Ok(vec![false; dims.len()]) };
        let find = |name: &str| {
            let of_grid = dims[1..].iter().position(|(dim, _)| *dim == name).map(|at| at + 1);
            Ok(of_grid.or_else(|| CHANNELS.contains(&name).then_some(0)))
        };
        self.dropped(keys, "stacked", dims, find)
    }

    fn dropped(
        &self,
        keys: &[DimKey],
        output: &str,
        dims: &[(&str, u64)],
        find: impl Fn(&str) -> Result<Option<usize>>,
    ) -> Result<Vec<bool>> {
        let mut dropped = vec![false; dims.len()];
        for key in split(keys, self.arrays) {
            let at = match &key {
                DimKey::Name(name) if name == OTHERS => {
                    dropped.iter_mut().zip(dims).for_each(|(dropped, (_, len))| *dropped |= *len == 1);
                    continue;
                }
                DimKey::Name(name) => match find(name)? {
                    Some(at) => at,
                    None => continue,
                },
                DimKey::Index(i) => {
                    let at = if *i < 0 { i.saturating_add(dims.len() as i64) } else { *i };
                    usize::try_from(at).ok().filter(|&at| at < dims.len()).ok_or_else(|| {
                        Error::value(format!(
                            "squeeze: expected positions among the {} dimensions of a sample of '{output}', but found {i}; give \
                             dimensions by output if outputs differ",
                            dims.len()
                        ))
                    })?
                }
            };
            let (name, len) = dims[at];
            if len != 1 {
                return Err(Error::value(format!(
                    "squeeze: expected dimensions of one element, but \"{name}\" of '{output}' has {len}; leave it out, or use \
                     squeeze=True for those of one element"
                )));
            }
            dropped[at] = true;
        }
        Ok(dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Geometry;
    use super::super::tests::{array, era5, shapes};
    use super::*;
    use serde_json::{Value, json};

    fn of(
        change: impl FnOnce(&mut Spec),
        arrays: &[ArrayShape],
        squeeze: &Value,
    ) -> std::result::Result<Geometry, String> {
        let spec = Spec::default().with(change).with(|s| {
            s.samples.window = serde_json::from_value(json!({"time": 1})).unwrap();
            s.samples.squeeze = serde_json::from_value(squeeze.clone()).unwrap();
        });
        Geometry::new(&spec, arrays).map_err(|e| e.message().to_owned())
    }

    #[test]
    fn dimensions_of_one_element_are_dropped() {
        let arrays = [array("a", &[("time", 9), ("e", 1), ("x", 5)]), array("b", &[("time", 9), ("x", 5)])];
        for (squeeze, expected) in [
            (json!("..."), [vec![5], vec![5]]),
            (json!("time"), [vec![1, 5], vec![5]]),
            (json!("time e"), [vec![5], vec![5]]),
            (json!(["e"]), [vec![1, 5], vec![1, 5]]),
            (json!({"a": "e time"}), [vec![5], vec![1, 5]]),
            (json!({"a": [1]}), [vec![1, 5], vec![1, 5]]),
            (json!([]), [vec![1, 1, 5], vec![1, 5]]),
        ] {
            assert_eq!(shapes(&of(|_| {}, &arrays, &squeeze).unwrap()), expected, "{squeeze}");
        }
        let transposed = |s: &mut Spec| s.samples.transpose = serde_json::from_value(json!("x e time")).unwrap();
        let g = of(transposed, &arrays, &json!("time")).unwrap();
        assert_eq!((shapes(&g), g.outputs[0].dims.join(" ")), (vec![vec![5, 1], vec![5]], "x e".into()));
        assert!(g.is_transposed);
    }

    #[test]
    fn stacks_lose_dimensions_too() {
        let stack = |s: &mut Spec| s.samples.stack_arrays = true;
        let g = of(stack, &era5(), &json!("time")).unwrap();
        assert_eq!((shapes(&g), &*g.outputs[0].layout), (vec![vec![8, 7, 9]], "CHW"));
        let last = |s: &mut Spec| {
            s.samples.stack_arrays = true;
            s.samples.transpose = serde_json::from_value(json!("... channel")).unwrap();
        };
        assert_eq!(shapes(&of(last, &era5(), &json!("...")).unwrap()), [vec![7, 9, 8]]);
        let one = &era5()[..1];
        assert_eq!(shapes(&of(stack, one, &json!("channel time")).unwrap()), [vec![7, 9]]);
        assert_eq!(shapes(&of(last, one, &json!("...")).unwrap()), [vec![7, 9]]);
    }

    #[test]
    fn wrong_dimensions_are_refused() {
        for (squeeze, words) in [
            (json!("lat"), "\"lat\" of 't2m' has 7"),
            (json!("depth"), "no array has a dimension \"depth\""),
            (json!({"z": "depth"}), "dimensions of 'z' (\"time\", \"level\", \"lat\", \"lon\"), but found \"depth\""),
            (json!({"u": "lat"}), "there is no output 'u'"),
            (json!([7]), "but found 7"),
        ] {
            let message = of(|_| {}, &era5(), &squeeze).unwrap_err();
            assert!(message.starts_with("squeeze: ") && message.contains(words), "{squeeze}: {message}");
        }
    }
}
