//! Temporary: the real one lands soon.
pub enum DimGrid { Regular { chunk: u64, count: u64 }, Irregular { starts: Vec<u64> } }
impl DimGrid {
    pub fn count(&self) -> u64 { match self { Self::Regular { count, .. } => *count, Self::Irregular { starts } => starts.len() as u64 - 1 } }
    pub fn chunk_at(&self, pos: u64) -> u64 { match self { Self::Regular { chunk, .. } => pos / chunk, Self::Irregular { starts } => starts.partition_point(|&s| s <= pos) as u64 - 1 } }
    pub fn start(&self, i: u64) -> u64 { match self { Self::Regular { chunk, .. } => i * chunk, Self::Irregular { starts } => starts[i as usize] } }
    pub fn len(&self, i: u64) -> u64 { match self { Self::Regular { chunk, .. } => *chunk, Self::Irregular { starts } => starts[i as usize + 1] - starts[i as usize] } }
}
