//! What stands at the beginning of a stream of modular channels (ISO/IEC 18181-1, H.2 to H.4): its header with
//! transforms, and the tree that chooses contexts and predictors.

use super::entropy::{Code, Numbers, signed};
use super::reader::{Forms, Reader};

/// The most steps from a tree's root to a leaf, which is the limit of level 5.
const DEEPEST: u8 = 64;
/// The most transforms, which is the limit of level 5.
const MOST_TRANSFORMS: u32 = 8;
const CHANNEL: Forms = [(3, 0), (6, 8), (10, 72), (13, 1096)];

/// Transforms that a stream may have.
#[derive(Clone, Copy, Debug)]
pub(super) enum Transforms {
    /// None.
    None,
    /// Of colours, and palettes of at most so many numbers in all.
    Palettes(u64),
}

/// The header of a stream.
#[derive(Clone, Debug)]
pub(super) struct StreamHeader {
    /// Whether the tree is the one that all streams share.
    pub shared: bool,
    pub weights: Weights,
    pub palettes: Vec<Palette>,
}

/// Channels whose values are numbers of colours.
#[derive(Clone, Copy, Debug)]
pub(super) struct Palette {
    /// The first channel, and how many there are. They become one.
    pub first: u32,
    pub channels: u32,
    pub colors: u32,
}

/// The parameters of the weighted predictor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weights {
    /// How much the predictors take of errors around.
    pub errors: [i64; 7],
    pub most: [u32; 4],
}

/// A node of a tree.
#[derive(Clone, Copy, Debug)]
pub(super) enum Node {
    /// The left child is that of larger values, and the right one follows it.
    Split {
        property: u8,
        value: i32,
        left: u32,
    },
    Leaf {
        predictor: u8,
        offset: i32,
        factor: u32,
        context: u32,
    },
}

/// A tree, and the code of the numbers that it has contexts for.
#[derive(Debug)]
pub(super) struct Tree {
    pub nodes: Vec<Node>,
    pub code: Code,
}

impl Palette {
    /// Makes channels with these extents those that are coded.
    ///
    /// # Errors
    /// If there are fewer.
    pub fn apply(&self, channels: &mut Vec<(u32, u32)>) -> Result<(), String> {
        let (first, end) = (self.first as usize, self.first as usize + self.channels as usize);
        if end > channels.len() {
            return Err("it has a palette of channels that it lacks".to_owned());
        }
        channels.drain(first + 1..end);
        channels.insert(0, (self.colors, self.channels));
        Ok(())
    }
}

impl StreamHeader {
    /// Reads a header.
    ///
    /// # Errors
    /// If it is damaged, or has other transforms than allowed.
    pub fn read(reader: &mut Reader<'_>, allowed: Transforms) -> Result<Self, String> {
        let shared = reader.flag()?;
        let mut weights = Weights { errors: [16, 10, 7, 7, 7, 0, 0], most: [13, 12, 12, 12] };
        if !reader.flag()? {
            for error in &mut weights.errors {
                *error = reader.bits(5)?.into();
            }
            for most in &mut weights.most {
                *most = reader.bits(4)?;
            }
        }
        let transforms = reader.number([(0, 0), (0, 1), (4, 2), (8, 18)])?;
        if transforms > MOST_TRANSFORMS {
            return Err(format!(
                "it has {transforms} transforms of a stream, and at most {MOST_TRANSFORMS} have a decoder"
            ));
        }
        let (mut palettes, mut numbers) = (Vec::new(), 0);
        for _ in 0..transforms {
            match (reader.bits(2)?, allowed) {
                (_, Transforms::None) => {
                    return Err("it has transforms of low frequencies, which have no decoder".to_owned());
                }
                (0, _) => {
                    reader.number(CHANNEL)?;
                    reader.number([(0, 6), (2, 0), (4, 2), (6, 10)])?;
                }
                (1, Transforms::Palettes(most)) => {
                    let first = reader.number(CHANNEL)?;
                    let channels = reader.number([(0, 1), (0, 3), (0, 4), (13, 1)])?;
                    let colors = reader.number([(8, 0), (10, 256), (12, 1280), (16, 5376)])?;
                    let deltas = reader.number([(0, 0), (8, 1), (10, 257), (16, 1281)])?;
                    reader.skip(4)?;
                    numbers += u64::from(channels) * u64::from(colors + deltas);
                    if numbers > most {
                        return Err(format!("it has palettes of {numbers} numbers or more, for {most} of pixels"));
                    }
                    palettes.push(Palette { first, channels, colors: colors + deltas });
                }
                _ => return Err("it is squeezed, which has no decoder".to_owned()),
            }
        }
        Ok(Self { shared, weights, palettes })
    }
}

impl Tree {
    /// Reads the tree of so many samples.
    ///
    /// # Errors
    /// If it is damaged, or larger or deeper than their number explains.
    pub fn read(reader: &mut Reader<'_>, samples: u64) -> Result<Self, String> {
        // The crate takes some 100 bytes for a node.
        let most = samples / 16 + 1024;
        let code = Code::read(reader, 6)?;
        let mut numbers = Numbers::new(&code, reader, 0)?;
        let mut nodes = Vec::new();
        // How deep the nodes are that are still to be read: at most two depths, as nodes stand by their depth.
        let mut depths = std::collections::VecDeque::from([0u8]);
        let mut leaves = 0;
        while let Some(depth) = depths.pop_front() {
            if nodes.len() as u64 >= most || depth > DEEPEST {
                return Err(format!("a tree has more than {most} nodes, or more than {DEEPEST} steps to a leaf"));
            }
            let property = numbers.next(reader, 1)?;
            if let Some(property) = property.checked_sub(1) {
                let property = u8::try_from(property).map_err(|_| "a tree has a wrong property")?;
                let value = signed(numbers.next(reader, 0)?);
                depths.extend([depth + 1; 2]);
                nodes.push(Node::Split { property, value, left: (nodes.len() + depths.len() - 1) as u32 });
            } else {
                let predictor = numbers.next(reader, 2)?;
                let offset = signed(numbers.next(reader, 3)?);
                let shift = numbers.next(reader, 4)?;
                let bits = u64::from(numbers.next(reader, 5)?) + 1;
                if predictor > 13 || shift > 30 || bits << shift > u64::from(u32::MAX) {
                    return Err("a tree has a wrong leaf".to_owned());
                }
                let factor = (bits << shift) as u32;
                nodes.push(Node::Leaf { predictor: predictor as u8, offset, factor, context: leaves });
                leaves += 1;
            }
        }
        numbers.finish()?;
        let code = Code::read(reader, leaves as usize)?;
        Ok(Self { nodes, code })
    }
}
