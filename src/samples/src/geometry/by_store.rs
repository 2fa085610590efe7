//! Samples that are cut from each store on its own: the arguments of one store.

use super::ArrayShape;
use crate::spec::{Concat, Spec};

/// Whether samples are cut from each store on its own.
pub fn is_by_store(spec: &Spec, arrays: &[ArrayShape]) -> bool {
    spec.samples.concat == Concat::Samples && arrays.iter().any(|array| array.parts.len() > 1)
}

/// Returns the spec and the arrays as they are for one of several stores.
pub fn of_store(spec: &Spec, arrays: &[ArrayShape], store: usize) -> (Spec, Vec<ArrayShape>) {
    let own = spec.clone().with(|s| {
        s.source.paths = vec![s.source.paths[store].clone()];
        for pick in &mut s.source.pick {
            if pick.indices.len() > 1 {
                pick.indices = pick.indices.get(store).into_iter().cloned().collect();
            }
        }
        if s.samples.regions.len() > 1 {
            s.samples.regions = s.samples.regions.get(store).into_iter().cloned().collect();
        }
        let found = &mut s.samples.breaks.found;
        *found = found.get_mut(store).map(std::mem::take).into_iter().collect();
    });
    (own, arrays.iter().map(|array| array.of_store(store)).collect())
}
