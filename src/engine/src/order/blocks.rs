//! Blocks of samples that share chunks. Chunk-aware shuffling keeps each block together.
//!
//! Samples form a grid with one dimension for each axis; the last axis moves fastest. Each axis is cut into blocks, and
//! a product of one block of each axis is a block of samples. The blocks along an axis have few sizes: most are full,
//! some are cut short at an end. So all blocks fall into few classes of equal size, and each class is a grid of its
//! own. The samples of the i-th block of a class are found by arithmetic, whatever the number of samples.

/// Consecutive blocks of one size along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Samples in each block, at least 1.
    pub size: u64,
    /// Blocks, at least 1.
    pub count: u64,
}

/// Limit on classes, which are walked over. Axes with more sizes are cut evenly instead.
const MAX_CLASSES: usize = 1024;

/// A run of blocks, and where it lies along the axis.
#[derive(Clone, Copy, Debug)]
struct Placed {
    size: u64,
    count: u64,
    /// Number of the first block along the axis.
    block: u64,
    /// The first sample along the axis.
    sample: u64,
    group: usize,
    /// Number of the first block among the blocks of its size.
    within: u64,
}

/// The blocks of one size along an axis.
#[derive(Clone, Debug)]
struct Group {
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
    runs: Vec<Placed>,
    groups: Vec<Group>,
}

impl Axis {
    fn new(runs: &[Run]) -> Self {
        let mut axis = Self { samples: 0, blocks: 0, runs: Vec::new(), groups: Vec::new() };
        let mut sizes: Vec<u64> = runs.iter().map(|r| r.size).collect();
        sizes.sort_unstable_by_key(|&size| std::cmp::Reverse(size));
        sizes.dedup();
        axis.groups = sizes.iter().map(|&size| Group { size, count: 0, runs: Vec::new() }).collect();
        for &Run { size, count } in runs {
            let group = sizes.partition_point(|&s| s > size);
            let of = &mut axis.groups[group];
            of.runs.push(axis.runs.len());
            axis.runs.push(Placed { size, count, block: axis.blocks, sample: axis.samples, group, within: of.count });
            of.count += count;
            axis.blocks += count;
            axis.samples += size * count;
        }
        axis
    }

    /// The same number of blocks, all of equal size but the last.
    fn evened(&self) -> Self {
        let size = self.samples.div_ceil(self.blocks);
        let (count, rest) = (self.samples / size, self.samples % size);
        let runs = [Run { size, count }, Run { size: rest, count: 1 }];
        Self::new(&runs[..if rest > 0 { 2 } else { 1 }])
    }

    /// The first sample of the `i`-th block of a group.
    fn start(&self, group: usize, i: u64) -> u64 {
        let runs = &self.groups[group].runs;
        let run = &self.runs[runs[runs.partition_point(|&r| self.runs[r].within <= i) - 1]];
        run.sample + (i - run.within) * run.size
    }

    /// The number, the first sample and the group of the block that holds a sample.
    fn block_of(&self, sample: u64) -> (u64, u64, usize) {
        let run = &self.runs[self.runs.partition_point(|r| r.sample <= sample) - 1];
        let i = (sample - run.sample) / run.size;
        (run.block + i, run.sample + i * run.size, run.group)
    }

    /// How many of the first `blocks` blocks belong to a group.
    fn rank(&self, group: usize, blocks: u64) -> u64 {
        let runs = &self.groups[group].runs;
        let before = runs.partition_point(|&r| self.runs[r].block < blocks);
        before.checked_sub(1).map_or(0, |i| {
            let run = &self.runs[runs[i]];
            run.within + run.count.min(blocks - run.block)
        })
    }
}

/// The blocks of one size along every axis.
#[derive(Clone, Debug)]
pub(super) struct Class {
    /// For each axis its group.
    groups: Vec<usize>,
    /// Samples in each block.
    pub size: u64,
    /// Blocks.
    pub count: u64,
}

/// One block: for each axis its number, its first sample and its group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Block(Vec<(u64, u64, usize)>);

/// The blocks of all samples of an epoch.
#[derive(Clone, Debug)]
pub struct Blocks {
    axes: Vec<Axis>,
    classes: Vec<Class>,
    samples: u64,
}

impl Blocks {
    /// The blocks that these runs make along each axis; the samples of all axes together must be fewer than 2^63.
    ///
    /// # Panics
    /// If there is no axis, or one without a run.
    pub fn new(axes: &[Vec<Run>]) -> Self {
        assert!(!axes.is_empty() && axes.iter().all(|runs| !runs.is_empty()), "samples lie along at least one axis");
        let mut axes: Vec<Axis> = axes.iter().map(|runs| Axis::new(runs)).collect();
        let many = |axes: &[Axis]| axes.iter().fold(1usize, |n, a| n.saturating_mul(a.groups.len())) > MAX_CLASSES;
        while many(&axes) {
            let most = axes.iter_mut().max_by_key(|a| a.groups.len()).expect("there is an axis");
            // If the blocks don't divide the samples, two sizes are left. On very many axes all samples become one
            // block.
            *most =
                if most.groups.len() > 2 { most.evened() } else { Axis::new(&[Run { size: 1, count: most.samples }]) };
        }
        let mut classes = vec![Class { groups: Vec::new(), size: 1, count: 1 }];
        for axis in &axes {
            let with = |class: &Class| {
                let class = class.clone();
                axis.groups.iter().enumerate().map(move |(g, group)| Class {
                    groups: [&class.groups[..], &[g]].concat(),
                    size: class.size * group.size,
                    count: class.count * group.count,
                })
            };
            classes = classes.iter().flat_map(with).collect();
        }
        let samples = axes.iter().map(|a| a.samples).product();
        Self { axes, classes, samples }
    }

    /// `samples` blocks of one sample each, for samples that share no chunk.
    pub fn single(samples: u64) -> Self {
        Self::new(&[vec![Run { size: 1, count: samples.max(1) }]])
    }

    /// Samples in all blocks.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Blocks.
    pub fn count(&self) -> u64 {
        self.classes.iter().map(|c| c.count).sum()
    }

    /// Samples of the largest block.
    pub fn largest(&self) -> u64 {
        self.classes.iter().map(|c| c.size).max().unwrap_or(1)
    }

    /// Whether an order that is shuffled with `initial_fill` depends on the blocks. It does not if each block is one
    /// sample, or if the shuffle window is the whole epoch.
    pub(crate) fn matter(&self, initial_fill: u64) -> bool {
        self.largest() > 1 && initial_fill < self.samples
    }

    /// Along each axis the sizes of the blocks, in their order.
    pub(crate) fn runs(&self) -> impl Iterator<Item = Vec<Run>> {
        self.axes.iter().map(|axis| axis.runs.iter().map(|&Placed { size, count, .. }| Run { size, count }).collect())
    }

    pub(super) fn classes(&self) -> &[Class] {
        &self.classes
    }

    /// The number of the `offset`-th sample of the `i`-th block of a class.
    pub(super) fn sample(&self, class: usize, i: u64, offset: u64) -> u64 {
        let groups = &self.classes[class].groups;
        let (mut rest, mut offset) = (i, offset);
        let (mut sample, mut weight) = (0, 1);
        for (axis, &g) in self.axes.iter().zip(groups).rev() {
            let Group { size, count, .. } = axis.groups[g];
            sample += weight * (axis.start(g, rest % count) + offset % size);
            weight *= axis.samples;
            rest /= count;
            offset /= size;
        }
        sample
    }

    /// The number of the `offset`-th sample of a block.
    pub(super) fn sample_of(&self, block: &Block, mut offset: u64) -> u64 {
        let (mut sample, mut weight) = (0, 1);
        for (axis, &(_, start, g)) in self.axes.iter().zip(&block.0).rev() {
            let size = axis.groups[g].size;
            sample += weight * (start + offset % size);
            weight *= axis.samples;
            offset /= size;
        }
        sample
    }

    /// The block of a position, and the place in the block. Positions go block by block, the last axis moving fastest,
    /// and within a block sample by sample likewise.
    pub(super) fn on_line(&self, mut position: u64) -> (Block, u64) {
        let mut block = Vec::with_capacity(self.axes.len());
        // Samples in the blocks of the axes found so far; samples of the axes to come.
        let (mut chosen, mut rest) = (1, self.samples);
        for axis in &self.axes {
            rest /= axis.samples;
            let (number, start, group) = axis.block_of(position / (chosen * rest));
            position -= start * chosen * rest;
            chosen *= axis.groups[group].size;
            block.push((number, start, group));
        }
        (Block(block), position)
    }

    /// Samples in a block.
    pub(super) fn size(&self, block: &Block) -> u64 {
        self.axes.iter().zip(&block.0).map(|(a, &(.., g))| a.groups[g].size).product()
    }

    /// Whether a block is one of a class.
    pub(super) fn is_of(&self, block: &Block, class: usize) -> bool {
        block.0.iter().zip(&self.classes[class].groups).all(|(&(.., g), &of)| g == of)
    }

    /// How many blocks of a class come before `block`. They are the first ones of the class.
    pub(super) fn before(&self, class: usize, block: &Block) -> u64 {
        let class = &self.classes[class];
        let (mut before, mut rest) = (0, class.count);
        for ((axis, &g), &(number, _, group)) in self.axes.iter().zip(&class.groups).zip(&block.0) {
            rest /= axis.groups[g].count;
            before += axis.rank(g, number) * rest;
            if group != g {
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
        fn blocks_and_lines_hold_each_sample_once(axes in runs()) {
            let b = Blocks::new(&axes);
            let mut seen = vec![0; b.samples() as usize];
            for (c, class) in b.classes().iter().enumerate() {
                for i in 0..class.count {
                    (0..class.size).for_each(|o| seen[b.sample(c, i, o) as usize] += 1);
                }
            }
            prop_assert!(seen.iter().all(|&n| n == 1));
            prop_assert_eq!(b.classes().iter().map(|c| c.count).sum::<u64>(), b.count());

            // The line: whole blocks one after the other, and of each class in the order of their numbers.
            let mut next: Vec<u64> = vec![0; b.classes().len()];
            let mut position = 0;
            while position < b.samples() {
                let (block, offset) = b.on_line(position);
                prop_assert_eq!(offset, 0);
                let size = b.size(&block);
                for (c, &n) in next.iter().enumerate() {
                    prop_assert_eq!(b.before(c, &block), n);
                }
                let c = (0..b.classes().len()).find(|&c| b.is_of(&block, c)).unwrap();
                for o in 0..size {
                    prop_assert_eq!(b.on_line(position + o), (block.clone(), o));
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
        let b = Blocks::new(&[ragged, vec![Run { size: 7, count: 3 }]]);
        assert_eq!(b.samples(), 3000 * 3001 / 2 * 21);
        assert!(b.classes().len() <= 2);
        assert_eq!(b.classes().iter().map(|c| c.size * c.count).sum::<u64>(), b.samples());
        // More axes than classes would do for.
        let two = vec![Run { size: 2, count: 1 }, Run { size: 1, count: 1 }];
        let b = Blocks::new(&vec![two; 14]);
        assert!(b.classes().len() <= MAX_CLASSES);
        assert_eq!(b.classes().iter().map(|c| c.size * c.count).sum::<u64>(), 3u64.pow(14));
    }
}
