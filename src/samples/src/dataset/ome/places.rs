//! Where the elements of levels lie along single dimensions, for arrays of other resolutions.

use super::{Level, System};

/// Where the elements of a level lie along one of its dimensions.
#[derive(Clone, Debug, PartialEq)]
pub struct LevelPlace {
    /// The position of the first element: of its centre, as the specification has it.
    pub first: f64,
    /// The distance from each element to the next one.
    pub distance: f64,
    /// The unit of both.
    pub unit: Option<String>,
}

impl Level {
    /// Returns the name of the coordinate system in which the elements of these levels have places; `None`: in the own
    /// system of each, as levels of one image have, or an image and its labels. Of several systems, it is the first that
    /// tells the places of all.
    pub fn common(levels: &[&Self]) -> Option<String> {
        let (first, others) = levels.split_first()?;
        if others.iter().all(|level| level.image == first.image) {
            return None;
        }
        let find = |level: &Self, name: &str| level.systems.iter().position(|system| system.name == name);
        let shared = first.systems.iter().enumerate().filter(|(i, system)| {
            let found: Option<Vec<usize>> = others.iter().map(|level| find(level, &system.name)).collect();
            // Names of the levels' own systems mean nothing to each other.
            !system.name.is_empty() && found.is_some_and(|at| *i > 0 || at.iter().any(|at| *at > 0))
        });
        let names: Vec<&String> = shared.map(|(_, system)| &system.name).collect();
        let is_clear = |name: &&&String| levels.iter().all(|level| level.system(Some(name)).places.is_ok());
        names.iter().find(is_clear).or(names.first()).map(|name| (*name).clone())
    }

    fn system(&self, name: Option<&str>) -> &System {
        name.and_then(|name| self.systems.iter().find(|system| system.name == name)).unwrap_or(&self.systems[0])
    }

    /// Whether both are levels of one image.
    pub fn is_of_same_image(&self, other: &Self) -> bool {
        self.image == other.image
    }

    /// Returns where elements lie along dimension number `dim` in a coordinate system ([`Self::common`]).
    ///
    /// # Errors
    /// What isn't understood, as a part of a message: also a dimension that doesn't lie along one axis alone.
    pub fn along(&self, system: Option<&str>, dim: usize) -> Result<LevelPlace, String> {
        let system = self.system(system);
        let rows = &system.places.as_ref().map_err(String::clone)?.rows;
        let mut having = rows.iter().enumerate().filter(|(_, row)| dim + 1 < row.len() && row[dim] != 0.0);
        let alone = having.next().filter(|(_, row)| row[..row.len() - 1].iter().filter(|&&n| n != 0.0).count() == 1);
        let (Some((axis, row)), None) = (alone, having.next()) else {
            return Err("a transformation that turns or drops the dimension".into());
        };
        let unit = system.units.get(axis).cloned().flatten();
        Ok(LevelPlace { first: row[row.len() - 1], distance: row[dim], unit })
    }
}
