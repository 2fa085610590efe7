//! Coordinate transformations of OME-Zarr, as one affine map from the indices of an array's elements to positions.
//!
//! Specifications: OME-NGFF 0.4 and 0.5 (`identity`, `scale`, `translation`), and 0.6 (RFC-5), which adds `mapAxis`,
//! `projectAxis`, `affine`, `rotation`, `sequence`, `byDimension` and `bijection`. The others (`displacements`,
//! `coordinates`), and numbers that lie in arrays (`path`), aren't understood.

use serde_json::Value;

use dali_zarr_base::json::shown;

/// Limit on the axes of a coordinate system, for hostile attributes. The specification allows 5.
const MAX_AXES: usize = 64;

/// An affine map from indices to positions.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Affine {
    /// One row for each output axis: a coefficient for each dimension of the array, then the constant.
    pub rows: Vec<Vec<f64>>,
}

impl Affine {
    /// Returns the map whose positions are the indices of an array of `ndim` dimensions.
    pub fn identity(ndim: usize) -> Self {
        let row = |i: usize| (0..=ndim).map(|j| f64::from(u8::from(i == j))).collect();
        Self { rows: (0..ndim).map(row).collect() }
    }

    /// Returns the map followed by transformations, which are applied in their order.
    ///
    /// # Errors
    /// What isn't understood, as a part of a message.
    pub fn then_all(self, transformations: &[Value]) -> Result<Self, String> {
        let all = transformations.iter().try_fold(self, Self::then)?;
        if all.rows.iter().flatten().any(|number| !number.is_finite()) {
            return Err("transformations with numbers too large to compute with".into());
        }
        Ok(all)
    }

    fn then(mut self, transformation: &Value) -> Result<Self, String> {
        let unclear = || format!("the transformation {}", shown(transformation));
        let field = |key: &str| transformation.get(key).ok_or_else(unclear);
        let list = |key: &str| field(key)?.as_array().map(Vec::as_slice).ok_or_else(unclear);
        let count = self.rows.len();
        let kind = field("type")?.as_str().ok_or_else(unclear)?;
        match kind {
            "identity" => {}
            "scale" | "translation" => {
                let numbers = numbers(field(kind)?).filter(|numbers| numbers.len() == count).ok_or_else(unclear)?;
                for (row, number) in self.rows.iter_mut().zip(numbers) {
                    match kind {
                        "scale" => row.iter_mut().for_each(|coefficient| *coefficient *= number),
                        _ => *row.last_mut().expect("a constant") += number,
                    }
                }
            }
            "mapAxis" => {
                let from = indices(field(kind)?, count).filter(|from| from.len() == count).ok_or_else(unclear)?;
                self.rows = from.into_iter().map(|i| self.rows[i].clone()).collect();
            }
            "projectAxis" => {
                let of = |key: &str, below: usize| match transformation.get(key) {
                    None | Some(Value::Null) => Some(Vec::new()),
                    Some(found) => indices(found, below),
                };
                let dropped = of("droppedInputs", count).ok_or_else(unclear)?;
                let mut created = of("createdOutputs", MAX_AXES).ok_or_else(unclear)?;
                let none = vec![0.0; self.columns()];
                let kept = self.rows.into_iter().enumerate().filter(|(i, _)| !dropped.contains(i));
                self.rows = kept.map(|(_, row)| row).collect();
                created.sort_unstable();
                for at in created {
                    if at > self.rows.len() {
                        return Err(unclear());
                    }
                    self.rows.insert(at, none.clone());
                }
            }
            "affine" | "rotation" => {
                let matrix = list(kind)?.iter().map(numbers).collect::<Option<Vec<_>>>().ok_or_else(unclear)?;
                let (is_square, length) = (kind == "rotation", count + usize::from(kind == "affine"));
                if matrix.iter().any(|row| row.len() != length) || (is_square && matrix.len() != count) {
                    return Err(unclear());
                }
                self.rows = matrix.iter().map(|row| self.combined(row)).collect();
            }
            "sequence" => self = list("transformations")?.iter().try_fold(self, Self::then)?,
            "bijection" => self = self.then(field("forward")?)?,
            "byDimension" => self = self.by_dimension(list("transformations")?).ok_or_else(unclear)??,
            _ => return Err(unclear()),
        }
        if self.rows.len() > MAX_AXES {
            return Err(unclear());
        }
        Ok(self)
    }

    /// Returns the map followed by transformations of some axes each. `None` if the axes aren't clear.
    fn by_dimension(&self, items: &[Value]) -> Option<Result<Self, String>> {
        let mut rows: Vec<Option<Vec<f64>>> = Vec::new();
        for item in items {
            // Older drafts have the names with underscores.
            let axes = |key: &str, draft: &str| item.get(key).or_else(|| item.get(draft));
            let from = indices(axes("inputAxes", "input_axes")?, self.rows.len())?;
            let to = indices(axes("outputAxes", "output_axes")?, MAX_AXES)?;
            let part = Self { rows: from.into_iter().map(|i| self.rows[i].clone()).collect() };
            let part = match part.then(item.get("transformation")?) {
                Ok(part) if part.rows.len() == to.len() => part,
                Ok(_) => return None,
                Err(e) => return Some(Err(e)),
            };
            for (at, row) in to.into_iter().zip(part.rows) {
                rows.resize(rows.len().max(at + 1), None);
                if rows[at].replace(row).is_some() {
                    return None;
                }
            }
        }
        Some(Ok(Self { rows: rows.into_iter().collect::<Option<_>>()? }))
    }

    fn columns(&self) -> usize {
        self.rows.first().map_or(0, Vec::len)
    }

    /// Returns the row that a row of a matrix makes of this map's rows. The matrix's row has a number for each of them,
    /// and perhaps a constant.
    fn combined(&self, weights: &[f64]) -> Vec<f64> {
        let mut sum = vec![0.0; self.columns()];
        for (row, &weight) in self.rows.iter().zip(weights).filter(|&(_, &weight)| weight != 0.0) {
            sum.iter_mut().zip(row).for_each(|(sum, coefficient)| *sum += weight * coefficient);
        }
        if let (Some(constant), Some(last)) = (weights.get(self.rows.len()), sum.last_mut()) {
            *last += constant;
        }
        sum
    }
}

fn numbers(value: &Value) -> Option<Vec<f64>> {
    value.as_array()?.iter().map(Value::as_f64).collect()
}

/// Returns a list of different indices below `below`.
fn indices(value: &Value, below: usize) -> Option<Vec<usize>> {
    let mut found: Vec<usize> = Vec::new();
    for index in value.as_array()? {
        let index = usize::try_from(index.as_u64()?).ok().filter(|index| *index < below && !found.contains(index))?;
        found.push(index);
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns where the element at `index` lies after one transformation.
    fn position(transformation: &Value, index: &[f64]) -> Option<Vec<f64>> {
        let map = Affine::identity(index.len()).then_all(std::slice::from_ref(transformation)).ok()?;
        let at = |row: &Vec<f64>| row.iter().zip(index.iter().chain(&[1.0])).map(|(a, b)| a * b).sum();
        Some(map.rows.iter().map(at).collect())
    }

    #[test]
    fn every_transformation_moves_elements_as_specified() {
        let scale = json!({"type": "scale", "scale": [2, 10, 100]});
        let translation = json!({"type": "translation", "translation": [1, 2, 3]});
        for (transformation, expected) in [
            (json!({"type": "identity"}), vec![3.0, 4.0, 5.0]),
            (scale.clone(), vec![6.0, 40.0, 500.0]),
            (translation.clone(), vec![4.0, 6.0, 8.0]),
            (json!({"type": "sequence", "transformations": [scale, translation]}), vec![7.0, 42.0, 503.0]),
            (json!({"type": "sequence", "transformations": [translation, scale]}), vec![8.0, 60.0, 800.0]),
            (json!({"type": "mapAxis", "mapAxis": [2, 0, 1]}), vec![5.0, 3.0, 4.0]),
            (json!({"type": "projectAxis", "droppedInputs": [1]}), vec![3.0, 5.0]),
            (json!({"type": "projectAxis", "createdOutputs": [3, 0]}), vec![0.0, 3.0, 4.0, 0.0, 5.0]),
            (json!({"type": "projectAxis", "droppedInputs": [0], "createdOutputs": [2]}), vec![4.0, 5.0, 0.0]),
            (json!({"type": "affine", "affine": [[1, 1, 0, 0.5], [0, 0, 2, -1]]}), vec![7.5, 9.0]),
            (json!({"type": "rotation", "rotation": [[0, -1, 0], [1, 0, 0], [0, 0, 1]]}), vec![-4.0, 3.0, 5.0]),
            (json!({"type": "bijection", "forward": scale, "inverse": 1}), vec![6.0, 40.0, 500.0]),
            (
                json!({"type": "byDimension", "transformations": [
                    {"transformation": {"type": "scale", "scale": [7]}, "inputAxes": [2], "outputAxes": [0]},
                    {"transformation": {"type": "affine", "affine": [[0, 1, 1], [1, 0, 2]]}, "input_axes": [0, 1],
                     "output_axes": [1, 2]}]}),
                vec![35.0, 5.0, 5.0],
            ),
        ] {
            assert_eq!(position(&transformation, &[3.0, 4.0, 5.0]), Some(expected), "{transformation}");
        }
    }

    #[test]
    fn other_transformations_are_errors() {
        let item = |from: Value, to: Value| json!({"transformation": {"type": "identity"}, "inputAxes": from, "outputAxes": to});
        for transformation in [
            json!(5),
            json!({"scale": [1, 2]}),
            json!({"type": "scale", "scale": [1]}),
            json!({"type": "scale", "scale": ["1", 2]}),
            json!({"type": "scale", "path": "scales"}),
            json!({"type": "scale", "scale": [1e300, 1], "x": 1}),
            json!({"type": "mapAxis", "mapAxis": [0, 0]}),
            json!({"type": "mapAxis", "mapAxis": {"x": "y", "y": "x"}}),
            json!({"type": "projectAxis", "droppedInputs": [2]}),
            json!({"type": "projectAxis", "createdOutputs": [9]}),
            json!({"type": "affine", "affine": [1, 2]}),
            json!({"type": "affine", "affine": [[1, 2]]}),
            json!({"type": "affine", "affine": vec![[1, 0, 0]; 65]}),
            json!({"type": "rotation", "rotation": [[1, 0]]}),
            json!({"type": "sequence"}),
            json!({"type": "bijection"}),
            json!({"type": "byDimension", "transformations": [item(json!([0]), json!([0])), item(json!([1]), json!([0]))]}),
            json!({"type": "byDimension", "transformations": [item(json!([0]), json!([1]))]}),
            json!({"type": "byDimension", "transformations": [item(json!([0, 1]), json!([0]))]}),
            json!({"type": "displacements", "path": "field"}),
        ] {
            let twice = [transformation.clone(), transformation.clone()];
            assert!(Affine::identity(2).then_all(&twice).is_err(), "{transformation}");
        }
    }
}
