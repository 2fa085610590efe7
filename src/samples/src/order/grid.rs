//! Blocks of a grid of samples. They take no memory for each block.
//!
//! The grid has one dimension for each axis; the last axis moves fastest. Each axis is cut into blocks, and a product of
//! one block of each axis is a block of samples. The blocks along an axis have few lengths: most are full, some are cut
//! short at an end. So all blocks have few shapes, and the blocks of one shape are a grid of their own. The samples of
//! the i-th block of a shape are found by arithmetic, whatever the number of samples.

/// Consecutive blocks of one size along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Samples in each block, at least 1.
    pub size: u64,
    /// Blocks, at least 1.
    pub count: u64,
}

/// Maximum number of shapes, since lookups loop over all shapes. Axes with too many lengths are cut evenly instead.
const MAX_SHAPES: usize = 1024;

/// Number of runs along an axis that take too little memory to be counted.
const FEW_RUNS: usize = 64;

/// A run of blocks, and where it lies along the axis.
#[derive(Clone, Copy, Debug)]
struct LocatedRun {
    size: u64,
    count: u64,
    /// Number of its first block along the axis.
    block: u64,
    /// Number of its first sample along the axis.
    sample: u64,
    /// Index into [`Axis::lengths`].
    length: usize,
    /// Number of its first block among the blocks of the same length.
    within: u64,
}

/// The blocks of one length along an axis.
#[derive(Clone, Debug)]
struct Length {
    size: u64,
    count: u64,
    /// Its runs, in order, as indices into [`Axis::runs`].
    runs: Vec<usize>,
}

/// The blocks along one axis, in order.
#[derive(Clone, Debug)]
struct Axis {
    samples: u64,
    blocks: u64,
    runs: Vec<LocatedRun>,
    lengths: Vec<Length>,
}

impl Axis {
    fn new(runs: &[Run]) -> Self {
        let mut axis = Self { samples: 0, blocks: 0, runs: Vec::new(), lengths: Vec::new() };
        let mut sizes: Vec<u64> = runs.iter().map(|r| r.size).collect();
        sizes.sort_unstable_by_key(|&size| std::cmp::Reverse(size));
        sizes.dedup();
        axis.lengths = sizes.iter().map(|&size| Length { size, count: 0, runs: Vec::new() }).collect();
        for &Run { size, count } in runs {
            let length = sizes.partition_point(|&s| s > size);
            let of = &mut axis.lengths[length];
            of.runs.push(axis.runs.len());
            axis.runs.push(LocatedRun {
                size,
                count,
                block: axis.blocks,
                sample: axis.samples,
                length,
                within: of.count,
            });
            of.count += count;
            axis.blocks += count;
            axis.samples += size * count;
        }
        axis
    }

    /// Returns an axis of equal blocks, except for a shorter last one. It has at most as many blocks as this one.
    fn evened(&self) -> Self {
        let size = self.samples.div_ceil(self.blocks);
        let (count, rest) = (self.samples / size, self.samples % size);
        let runs = [Run { size, count }, Run { size: rest, count: 1 }];
        Self::new(&runs[..if rest > 0 { 2 } else { 1 }])
    }

    /// Returns the first sample of the `i`-th block of a length.
    fn start(&self, length: usize, i: u64) -> u64 {
        let runs = &self.lengths[length].runs;
        let run = &self.runs[runs[runs.partition_point(|&r| self.runs[r].within <= i) - 1]];
        run.sample + (i - run.within) * run.size
    }

    /// Returns the block that holds a sample.
    fn block_of(&self, sample: u64) -> AxisBlock {
        let run = &self.runs[self.runs.partition_point(|r| r.sample <= sample) - 1];
        let i = (sample - run.sample) / run.size;
        AxisBlock { number: run.block + i, start: run.sample + i * run.size, length: run.length }
    }

    /// Counts the blocks of a length among the first `blocks` blocks.
    fn rank(&self, length: usize, blocks: u64) -> u64 {
        let runs = &self.lengths[length].runs;
        let before = runs.partition_point(|&r| self.runs[r].block < blocks);
        before.checked_sub(1).map_or(0, |i| {
            let run = &self.runs[runs[i]];
            run.within + run.count.min(blocks - run.block)
        })
    }
}

/// A shape of blocks: one length along each axis.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    /// For each axis, the index into [`Axis::lengths`].
    lengths: Vec<usize>,
    /// Samples in each block.
    pub size: u64,
    /// Number of blocks.
    pub count: u64,
}

/// A block along one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AxisBlock {
    number: u64,
    /// Its first sample.
    start: u64,
    /// Index into [`Axis::lengths`].
    length: usize,
}

/// One block, along each axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Block(Vec<AxisBlock>);

/// The blocks of all samples of an epoch.
#[derive(Debug)]
pub(super) struct GridBlocks {
    axes: Vec<Axis>,
    shapes: Vec<Shape>,
    samples: u64,
}

impl GridBlocks {
    /// Makes the blocks of a grid, see [`super::Blocks::new`].
    pub fn new(axes: &[Vec<Run>]) -> Self {
        assert!(!axes.is_empty() && axes.iter().all(|runs| !runs.is_empty()), "samples lie along at least one axis");
        let mut axes: Vec<Axis> = axes.iter().map(|runs| Axis::new(runs)).collect();
        let many = |axes: &[Axis]| axes.iter().fold(1usize, |n, a| n.saturating_mul(a.lengths.len())) > MAX_SHAPES;
        while many(&axes) {
            let most = axes.iter_mut().max_by_key(|a| a.lengths.len()).expect("there is an axis");
            // Even blocks still have two sizes if the last one is shorter. If that makes too many shapes, as on very
            // many axes, an axis gets blocks of one sample.
            *most =
                if most.lengths.len() > 2 { most.evened() } else { Axis::new(&[Run { size: 1, count: most.samples }]) };
        }
        let mut shapes = vec![Shape { lengths: Vec::new(), size: 1, count: 1 }];
        for axis in &axes {
            let with = |shape: &Shape| {
                let shape = shape.clone();
                axis.lengths.iter().enumerate().map(move |(i, length)| Shape {
                    lengths: [&shape.lengths[..], &[i]].concat(),
                    size: shape.size * length.size,
                    count: shape.count * length.count,
                })
            };
            shapes = shapes.iter().flat_map(with).collect();
        }
        let samples = axes.iter().map(|a| a.samples).product();
        Self { axes, shapes, samples }
    }

    /// Returns the number of samples in all blocks.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Returns the number of blocks.
    pub fn count(&self) -> u64 {
        self.shapes.iter().map(|c| c.count).sum()
    }

    /// Returns the number of samples of the largest block.
    pub fn largest(&self) -> u64 {
        self.shapes.iter().map(|c| c.size).max().unwrap_or(1)
    }

    /// Returns the bytes of memory that irregular blocks take. The first [`FEW_RUNS`] runs of an axis don't count.
    pub fn bytes(&self) -> u64 {
        let many = self.axes.iter().map(|axis| axis.runs.len().saturating_sub(FEW_RUNS)).sum::<usize>();
        (many * (size_of::<LocatedRun>() + size_of::<usize>())) as u64
    }

    /// Returns for each axis the sizes of the blocks along it in order.
    pub fn runs(&self) -> impl Iterator<Item = Vec<Run>> {
        self.axes
            .iter()
            .map(|axis| axis.runs.iter().map(|&LocatedRun { size, count, .. }| Run { size, count }).collect())
    }

    pub fn shapes(&self) -> &[Shape] {
        &self.shapes
    }

    /// Returns the number of the `offset`-th sample of the `i`-th block of a shape.
    pub fn sample(&self, shape: usize, i: u64, offset: u64) -> u64 {
        let lengths = &self.shapes[shape].lengths;
        let (mut rest, mut offset) = (i, offset);
        let (mut sample, mut weight) = (0, 1);
        for (axis, &g) in self.axes.iter().zip(lengths).rev() {
            let Length { size, count, .. } = axis.lengths[g];
            sample += weight * (axis.start(g, rest % count) + offset % size);
            weight *= axis.samples;
            rest /= count;
            offset /= size;
        }
        sample
    }

    /// Returns the number of the `offset`-th sample of a block.
    pub fn sample_of(&self, block: &Block, mut offset: u64) -> u64 {
        let (mut sample, mut weight) = (0, 1);
        for (axis, along) in self.axes.iter().zip(&block.0).rev() {
            let size = axis.lengths[along.length].size;
            sample += weight * (along.start + offset % size);
            weight *= axis.samples;
            offset /= size;
        }
        sample
    }

    /// Returns the block of a position, and the offset in the block. Positions count block by block, and within a block
    /// sample by sample. The last axis moves fastest in both.
    pub fn locate(&self, mut position: u64) -> (Block, u64) {
        let mut block = Vec::with_capacity(self.axes.len());
        // The product of the block's sizes along the axes done so far, and the product of the numbers of samples along
        // the axes to come.
        let (mut chosen, mut rest) = (1, self.samples);
        for axis in &self.axes {
            rest /= axis.samples;
            let along = axis.block_of(position / (chosen * rest));
            position -= along.start * chosen * rest;
            chosen *= axis.lengths[along.length].size;
            block.push(along);
        }
        (Block(block), position)
    }

    /// Returns the number of samples in a block.
    pub fn size(&self, block: &Block) -> u64 {
        self.axes.iter().zip(&block.0).map(|(axis, along)| axis.lengths[along.length].size).product()
    }

    /// Whether a block has this shape.
    pub fn is_of(&self, block: &Block, shape: usize) -> bool {
        block.0.iter().zip(&self.shapes[shape].lengths).all(|(along, &of)| along.length == of)
    }

    /// Counts the blocks of a shape that come before `block`. If there are `n`, they are the blocks 0 to `n - 1` of the
    /// shape.
    pub fn before(&self, shape: usize, block: &Block) -> u64 {
        let shape = &self.shapes[shape];
        let (mut before, mut rest) = (0, shape.count);
        for ((axis, &g), along) in self.axes.iter().zip(&shape.lengths).zip(&block.0) {
            rest /= axis.lengths[g].count;
            before += axis.rank(g, along.number) * rest;
            if along.length != g {
                break;
            }
        }
        before
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn runs() -> impl Strategy<Value = Vec<Vec<Run>>> {
        let run = (1u64..5, 1u64..4).prop_map(|(size, count)| Run { size, count });
        prop::collection::vec(prop::collection::vec(run, 1..5), 1..4)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn each_sample_is_in_one_block(axes in runs()) {
            let b = GridBlocks::new(&axes);
            let mut seen = vec![0; b.samples() as usize];
            for (c, shape) in b.shapes().iter().enumerate() {
                for i in 0..shape.count {
                    (0..shape.size).for_each(|o| seen[b.sample(c, i, o) as usize] += 1);
                }
            }
            prop_assert!(seen.iter().all(|&n| n == 1));
            prop_assert_eq!(b.shapes().iter().map(|c| c.count).sum::<u64>(), b.count());

            // Positions go through whole blocks, and through the blocks of each shape in the order of their numbers.
            let mut next: Vec<u64> = vec![0; b.shapes().len()];
            let mut position = 0;
            while position < b.samples() {
                let (block, offset) = b.locate(position);
                prop_assert_eq!(offset, 0);
                let size = b.size(&block);
                for (c, &n) in next.iter().enumerate() {
                    prop_assert_eq!(b.before(c, &block), n);
                }
                let c = (0..b.shapes().len()).find(|&c| b.is_of(&block, c)).unwrap();
                for o in 0..size {
                    prop_assert_eq!(b.locate(position + o), (block.clone(), o));
                    prop_assert_eq!(b.sample(c, next[c], o), b.sample_of(&block, o));
                }
                next[c] += 1;
                position += size;
            }
        }
    }

    #[test]
    fn many_sizes_are_evened() {
        let ragged: Vec<Run> = (1..=3000).map(|size| Run { size, count: 1 }).collect();
        let b = GridBlocks::new(&[ragged, vec![Run { size: 7, count: 3 }]]);
        assert_eq!(b.samples(), 3000 * 3001 / 2 * 21);
        assert!(b.shapes().len() <= 2);
        assert_eq!(b.shapes().iter().map(|c| c.size * c.count).sum::<u64>(), b.samples());
        // Few sizes along each axis, but too many shapes.
        let two = vec![Run { size: 2, count: 1 }, Run { size: 1, count: 1 }];
        let b = GridBlocks::new(&vec![two; 14]);
        assert!(b.shapes().len() <= MAX_SHAPES);
        assert_eq!(b.shapes().iter().map(|c| c.size * c.count).sum::<u64>(), 3u64.pow(14));
    }
}
