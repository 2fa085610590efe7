//! The order of a sample's dimensions in an output, as `transpose` asks for.
//!
//! A list for all outputs may name dimensions that some outputs lack. Each output takes the names that it has. Names of
//! dimensions that samples lack, because they have one element of them, are ignored too.

use super::ArrayShape;
use super::cuts::check_outputs;
use super::dims::resolve;
use crate::spec::{DimKey, OutputDims, Spec};
use dali_zarr_base::error::{Error, Result};

/// Stands for all dimensions that aren't named, in their own order.
pub(super) const OTHERS: &str = "...";

/// Names of the channels of a stack.
pub(super) const CHANNELS: [&str; 2] = ["channel", "variable"];

/// The orders that were asked for.
pub(super) struct Orders<'a> {
    given: &'a OutputDims,
    arrays: &'a [ArrayShape],
}

impl<'a> Orders<'a> {
    /// Checks the names that don't depend on a sample's dimensions.
    ///
    /// # Errors
    /// If there is no such output, or if no array has a dimension of this name.
    pub fn new(spec: &'a Spec, arrays: &'a [ArrayShape]) -> Result<Self> {
        let given = &spec.samples.transpose;
        let is_stack = spec.samples.stack_arrays;
        match given {
            OutputDims::All(keys) => {
                for key in split(keys, arrays) {
                    let DimKey::Name(name) = &key else { continue };
                    let is_channel = is_stack && CHANNELS.contains(&name.as_str());
                    let is_ragged = arrays.iter().any(|array| array.ragged.as_ref() == Some(name));
                    if name != OTHERS && !is_channel && !is_ragged {
                        resolve(&key, "transpose", arrays)?;
                    }
                }
            }
            OutputDims::ByOutput(_) if is_stack => {
                return Err(Error::value(
                    "transpose: expected one order for the output of stack_arrays, but found orders by output; give the order \
                     alone, such as transpose=\"... channel\"",
                ));
            }
            OutputDims::ByOutput(by_output) => {
                check_outputs("transpose", by_output.iter().map(|(name, _)| name.as_str()), arrays)?;
            }
        }
        Ok(Self { given, arrays })
    }

    /// Returns for each place in the output of an array which of `dims` stands there. `dims` are the names of a sample's
    /// dimensions, without that of a row's elements.
    ///
    /// # Errors
    /// If a name is unknown or comes twice, or if a dimension isn't named. If a row's elements wouldn't come first.
    pub fn of_array(&self, array: &ArrayShape, dims: &[&str]) -> Result<Vec<usize>> {
        let (keys, is_own) = match self.given {
            OutputDims::All(keys) => (keys, false),
            OutputDims::ByOutput(by_output) => match by_output.iter().find(|(name, _)| *name == array.output) {
                Some((_, keys)) => (keys, true),
                None => return Ok((0..dims.len()).collect()),
            },
        };
        let all: Vec<&str> = array.ragged.as_deref().into_iter().chain(dims.iter().copied()).collect();
        let find = |name: &str| match all.iter().position(|dim| *dim == name) {
            Some(at) => Ok(Some(at)),
            None if !is_own || array.dims.iter().any(|dim| dim == name) => Ok(None),
            None => {
                let known = array.dims.iter().map(|dim| format!("\"{dim}\"")).collect::<Vec<_>>().join(", ");
                Err(Error::value(format!(
                    "transpose: expected dimensions of '{}' ({known}), but found \"{name}\"",
                    array.output
                ))
                .unknown(Some(name), array.dims.clone()))
            }
        };
        let mut order = self.order(keys, &array.output, &all, find)?;
        if let Some(rows) = &array.ragged {
            if order[0] != 0 {
                return Err(Error::value(format!(
                    "transpose: expected \"{rows}\" first for '{}', since samples differ in length along it, but found \"{}\"; \
                     name it first",
                    array.output, all[order[0]]
                )));
            }
            order.remove(0);
            order.iter_mut().for_each(|d| *d -= 1);
        }
        Ok(order)
    }

    /// Returns for each place in the output of a stack which dimension stands there: 0 are the channels, whose name is `own`, and
    /// 1 is the first of `grid`, the names of the other dimensions.
    ///
    /// # Errors
    /// As [`Self::of_array`].
    pub fn of_stack(&self, own: &str, grid: &[&str]) -> Result<Vec<usize>> {
        let all: Vec<&str> = std::iter::once(own).chain(grid.iter().copied()).collect();
        let OutputDims::All(keys) = self.given else { return Ok((0..all.len()).collect()) };
        let find = |name: &str| {
            let of_grid = grid.iter().position(|dim| *dim == name).map(|at| at + 1);
            Ok(of_grid.or_else(|| CHANNELS.contains(&name).then_some(0)))
        };
        self.order(keys, "stacked", &all, find)
    }

    /// Returns the order of the dimensions `all` that `keys` give. `find` returns the place of a name among them; `None` if
    /// the name doesn't matter.
    fn order(
        &self,
        keys: &[DimKey],
        output: &str,
        all: &[&str],
        find: impl Fn(&str) -> Result<Option<usize>>,
    ) -> Result<Vec<usize>> {
        if keys.is_empty() {
            return Ok((0..all.len()).collect());
        }
        let shown = || all.iter().map(|dim| format!("\"{dim}\"")).collect::<Vec<_>>().join(", ");
        let (mut order, mut others) = (Vec::new(), None);
        for key in split(keys, self.arrays) {
            let at = match &key {
                DimKey::Name(name) if name == OTHERS => {
                    if others.replace(order.len()).is_some() {
                        return Err(Error::value("transpose: expected ... once, but found it twice"));
                    }
                    continue;
                }
                DimKey::Name(name) => match find(name)? {
                    Some(at) => at,
                    None => continue,
                },
                DimKey::Index(i) => {
                    let at = if *i < 0 { i.saturating_add(all.len() as i64) } else { *i };
                    let at = usize::try_from(at).ok().filter(|&at| at < all.len());
                    at.ok_or_else(|| {
                        Error::value(format!(
                            "transpose: expected positions among the {} dimensions of a sample of '{output}' ({}), but found {i}; \
                             give orders by output if outputs differ",
                            all.len(),
                            shown()
                        ))
                    })?
                }
            };
            if order.contains(&at) {
                return Err(Error::value(format!("transpose: dimension \"{}\" is named twice", all[at])));
            }
            order.push(at);
        }
        let missing: Vec<usize> = (0..all.len()).filter(|at| !order.contains(at)).collect();
        match (others, missing.first()) {
            (Some(from), _) => {
                order.splice(from..from, missing);
            }
            (None, Some(&first)) => {
                return Err(Error::value(format!(
                    "transpose: expected all dimensions of a sample of '{output}' ({}), but \"{}\" is missing; name it, or write \
                     ... for all others",
                    shown(),
                    all[first]
                )));
            }
            (None, None) => {}
        }
        Ok(order)
    }
}

/// Returns the name of a stack's channels beside the dimensions `grid`.
pub(super) fn channels_name(grid: &[&str]) -> &'static str {
    CHANNELS.into_iter().find(|name| !grid.contains(name)).unwrap_or(CHANNELS[0])
}

/// Returns the dimensions of a list. A single text with spaces has several, unless a dimension has that name.
pub(super) fn split(keys: &[DimKey], arrays: &[ArrayShape]) -> Vec<DimKey> {
    match keys {
        [DimKey::Name(text)] if !arrays.iter().any(|array| array.dims.contains(text)) => {
            text.split_whitespace().map(DimKey::parse).collect()
        }
        keys => keys.to_vec(),
    }
}

/// Returns the row-major strides of a shape, in elements.
pub(super) fn row_major(shape: &[u64]) -> Vec<i64> {
    let mut strides = vec![1i64; shape.len()];
    for d in (0..shape.len().saturating_sub(1)).rev() {
        strides[d] = strides[d + 1].saturating_mul(shape[d + 1].min(1 << 62) as i64);
    }
    strides
}

/// Returns the strides of dimensions with the lengths `shape` that lie in memory in the given order, outermost first.
pub(super) fn strides_in(shape: &[u64], order: &[usize]) -> Vec<i64> {
    let ordered: Vec<u64> = order.iter().map(|&d| shape[d]).collect();
    let mut strides = vec![0; shape.len()];
    for (&d, stride) in order.iter().zip(row_major(&ordered)) {
        strides[d] = stride;
    }
    strides
}

#[cfg(test)]
mod tests {
    use super::super::tests::{array, era5, shapes};
    use super::super::{Geometry, Inputs, Rows};
    use super::*;
    use serde_json::{Value, json};

    fn of(
        change: impl FnOnce(&mut Spec),
        arrays: &[ArrayShape],
        transpose: &Value,
    ) -> std::result::Result<Geometry, String> {
        let spec = Spec::default().with(change).with(|s| {
            s.samples.transpose = serde_json::from_value(transpose.clone()).unwrap();
        });
        Geometry::new(&spec, arrays).map_err(|e| e.message().to_owned())
    }

    fn windowed(s: &mut Spec) {
        s.samples.window = serde_json::from_value(json!({"time": 2})).unwrap();
    }

    #[test]
    fn dimensions_are_named_or_numbered() {
        let z = &era5()[1..2];
        for transpose in [
            json!("lon time level lat"),
            json!(["lon", "time", "level", "lat"]),
            json!([3, 0, 1, 2]),
            json!([-1, "..."]),
            json!("lon ..."),
            json!({"z": "lon ... lat"}),
        ] {
            let g = of(windowed, z, &transpose).unwrap();
            assert_eq!(
                (shapes(&g), g.outputs[0].dims.join(" ")),
                (vec![vec![9, 2, 5, 7]], "lon time level lat".into())
            );
            assert_eq!(
                (&g.placements[0].strides[..], &*g.outputs[0].layout),
                (&[35, 7, 1, 70][..], "WFDH"),
                "{transpose}"
            );
            assert!(g.is_transposed);
        }
        assert!(!of(windowed, z, &json!("time level ...")).unwrap().is_transposed);
        assert!(!of(windowed, z, &json!([])).unwrap().is_transposed);
    }

    #[test]
    fn outputs_take_the_names_that_they_have() {
        let g = of(|_| {}, &era5(), &json!("lon time lat level")).unwrap();
        assert_eq!(shapes(&g), [vec![9, 7], vec![9, 7, 5], vec![9, 7], vec![]], "time is dropped");
        let g = of(|_| {}, &era5(), &json!({"z": "... level"})).unwrap();
        assert_eq!(shapes(&g), [vec![7, 9], vec![7, 9, 5], vec![7, 9], vec![]]);
        let spaced = [array("a", &[("my x", 3), ("y", 4), ("t", 5)])];
        let g = of(|s| s.samples.dims = vec![DimKey::Name("t".into())], &spaced, &json!(["y", "my x"])).unwrap();
        assert_eq!(shapes(&g), [[4, 3]]);
    }

    #[test]
    fn channels_of_a_stack_have_a_name() {
        let stack = |s: &mut Spec| s.samples.stack_arrays = true;
        for name in ["channel", "variable", "0"] {
            let g = of(stack, &era5(), &json!(["lat", "lon", name])).unwrap();
            assert_eq!((shapes(&g), &*g.outputs[0].layout), (vec![vec![7, 9, 8]], "HWC"));
            assert_eq!(g.outputs[0].dims, ["lat", "lon", "channel"]);
            assert_eq!((g.placements[1].base, &g.placements[1].strides[..]), (1, &[0, 1, 72, 8][..]));
            assert_eq!((g.placements[3].base, &g.placements[3].broadcast[..]), (7, &[(7, 72), (9, 8)][..]));
        }
        let of_variables =
            [array("u", &[("t", 3), ("variable", 4), ("x", 5)]), array("v", &[("t", 3), ("variable", 4), ("x", 5)])];
        let g = of(stack, &of_variables, &json!("variable ... channel")).unwrap();
        assert_eq!(shapes(&g), [[4, 5, 2]], "a dimension of the arrays goes before the stack's channels");
    }

    #[test]
    fn a_rows_elements_come_first() {
        let arrays =
            [array("X/xyz", &[("n", 20), ("c", 3), ("k", 4)]), array("obs/label", &[("obs", 5), ("j", 2), ("i", 3)])];
        let rows =
            || Rows::new("ragged=\"X/indptr\"".into(), "X/indptr", vec![vec![0, 3, 3, 10, 11, 20]], None).unwrap();
        let of = |transpose: Value| {
            let spec = Spec::default().with(|s| s.samples.transpose = serde_json::from_value(transpose).unwrap());
            let inputs = Inputs { rows: Some(rows()), ..Inputs::default() };
            Geometry::of(&spec, &arrays, inputs).map(|mut all| all.remove(0)).map_err(|e| e.message().to_owned())
        };
        for transpose in [
            json!("n k c i j"),
            json!({"X/xyz": "... k c", "obs/label": [1, 0]}),
            json!({"X/xyz": [0, -1, 1], "obs/label": "i j"}),
        ] {
            let g = of(transpose).unwrap();
            assert_eq!(shapes(&g), [vec![9, 4, 3], vec![3, 2]]);
            assert_eq!((&g.placements[0].strides[..], g.outputs[0].dims.join(" ")), (&[12, 1, 3][..], "n k c".into()));
        }
        let error = of(json!({"X/xyz": "c n k"})).unwrap_err();
        assert!(error.contains("expected \"n\" first for 'X/xyz'") && error.contains("found \"c\""), "{error}");
    }

    #[test]
    fn wrong_orders_are_refused() {
        for (transpose, words) in [
            (json!("lon lat"), "'z' (\"level\", \"lat\", \"lon\"), but \"level\" is missing"),
            (json!("lon lat level depth"), "no array has a dimension \"depth\""),
            (json!("lon lat level lon"), "\"lon\" is named twice"),
            (json!("... lon ..."), "... once"),
            (
                json!([0, 1, 2]),
                "2 dimensions of a sample of 't2m' (\"lat\", \"lon\"), but found 2; give orders by output",
            ),
            (
                json!({"z": "lon lat depth"}),
                "dimensions of 'z' (\"time\", \"level\", \"lat\", \"lon\"), but found \"depth\"",
            ),
            (json!({"u": "lon lat"}), "there is no output 'u'"),
        ] {
            let message = of(|_| {}, &era5(), &transpose).unwrap_err();
            assert!(message.starts_with("transpose: ") && message.contains(words), "{transpose}: {message}");
        }
        let message = of(|s| s.samples.stack_arrays = true, &era5(), &json!({"z": "..."})).unwrap_err();
        assert!(message.contains("one order for the output of stack_arrays"), "{message}");
    }
}
