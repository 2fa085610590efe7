//! What stands in the sections of a frame before its pixels (ISO/IEC 18181-1, annexes G and I), as far as the crate
//! takes memory by it.
//!
//! Each group may have transforms of its own, whose palettes take up to 268 MB by some bytes. Where samples are coded
//! as they are, they stand at the beginning of each group. Where frequencies are coded, they stand between streams of
//! low frequencies, which have to be decoded to find them. These are a sixty-fourth of an image.

use super::entropy::{Code, Numbers, context_map};
use super::frame::Sections;
use super::header::Header;
use super::modular;
use super::order::permutation;
use super::reader::{Reader, ceil_log2};
use super::tree::{StreamHeader, Transforms, Tree};

/// Contexts for coefficients and their number, of each context of a block.
const CONTEXTS: usize = 37 + 458;
/// How many blocks of 8 x 8 each order of coefficients is for.
const BLOCKS: [u32; 13] = [1, 1, 4, 16, 2, 4, 8, 64, 32, 256, 128, 1024, 512];

/// Compares what the sections say with the image.
///
/// # Errors
/// If the crate would take more memory or time than the image's size explains, or if they are damaged.
pub(super) fn check(sections: &Sections<'_>, header: &Header) -> Result<(), String> {
    let Sections { frame, parts, .. } = sections;
    let mut first = Reader::new(parts[0]);
    if frame.patches {
        patches(&mut first, header)?;
    }
    let global = Global::read(&mut first, header, !frame.modular)?;
    let lf_groups = frame.lf_groups as usize;
    let channels = header.colors + header.extra;
    let palettes = |samples: u64| Transforms::Palettes(samples + 1024);
    if frame.modular {
        let stream = StreamHeader::read(&mut first, palettes(header.samples()))?;
        if !stream.shared {
            Tree::read(&mut first, header.samples())?;
        }
        for (number, part) in parts.iter().enumerate().skip(1).filter(|&(at, _)| at != 1 + lf_groups) {
            // Groups without channels have no header.
            if part.is_empty() {
                continue;
            }
            let (group, side) =
                if number <= lf_groups { (number - 1, 8 * frame.group) } else { (number - 2 - lf_groups, frame.group) };
            let (width, height) = frame.extents(group as u32, side);
            let samples = u64::from(width) * u64::from(height) * u64::from(channels);
            let mut reader = Reader::new(part);
            let stream = StreamHeader::read(&mut reader, palettes(samples))?;
            if !stream.shared {
                Tree::read(&mut reader, samples)?;
            }
        }
        return Ok(());
    }
    let tree = global.tree.as_ref();
    if header.extra > 0 {
        // Their groups stand behind coefficients.
        if parts.len() > 1 {
            return Err(
                "it is lossy and has more channels than colours and several groups, which has no decoder".to_owned()
            );
        }
        let planes = vec![(frame.width, frame.height); header.extra as usize];
        modular::skip(&mut first, &planes, 0, tree, palettes(header.samples()))?;
    }
    for group in 0..frame.lf_groups {
        let mut own;
        let reader = match parts.get(1 + group as usize) {
            Some(part) => {
                own = Reader::new(part);
                &mut own
            }
            None => &mut first,
        };
        let (width, height) = frame.extents(group, 8 * frame.group);
        let (width, height) = (width.div_ceil(8), height.div_ceil(8));
        reader.skip(2)?;
        modular::skip(reader, &[(width, height); 3], 1 + group, tree, Transforms::None)?;
        let blocks = reader.bits(ceil_log2(width * height))? + 1;
        let tiles = (width.div_ceil(8), height.div_ceil(8));
        let planes = [tiles, tiles, (blocks, 2), (width, height)];
        modular::skip(reader, &planes, 1 + 2 * frame.lf_groups + group, tree, Transforms::None)?;
    }
    match parts.get(1 + lf_groups) {
        Some(part) => coefficients(&mut Reader::new(part), frame.groups, global.contexts),
        None => coefficients(&mut first, frame.groups, global.contexts),
    }
}

/// Reads where an image has patches.
///
/// # Errors
/// If there are more than there is room for: each takes memory, and its pixels time.
fn patches(reader: &mut Reader<'_>, header: &Header) -> Result<(), String> {
    let pixels = u64::from(header.width) * u64::from(header.height);
    let most = 256 + pixels / 16;
    let code = Code::read(reader, 10)?;
    let mut numbers = Numbers::new(&code, reader, 0)?;
    let (mut places, mut area) = (0, 0u64);
    for patch in 0..numbers.next(reader, 0)? {
        // Of which frame it is, and where it is there.
        for context in [1, 3, 3] {
            numbers.next(reader, context)?;
        }
        let width = u64::from(numbers.next(reader, 2)?) + 1;
        let height = u64::from(numbers.next(reader, 2)?) + 1;
        let count = u64::from(numbers.next(reader, 7)?) + 1;
        places += count;
        area = area.saturating_add(count.saturating_mul(width.saturating_mul(height)));
        if places > most || u64::from(patch) > most || area > 2 * pixels {
            return Err("it has more patches than there is room for".to_owned());
        }
        for place in 0..count {
            let context = if place == 0 { 4 } else { 6 };
            (0..2).try_for_each(|_| numbers.next(reader, context).map(drop))?;
            for _ in 0..=header.extra {
                let mode = numbers.next(reader, 5)?;
                if mode > 7 {
                    return Err("it has a patch that is blended in an unknown way".to_owned());
                }
                if mode > 3 && header.extra > 1 {
                    numbers.next(reader, 8)?;
                }
                if mode > 2 {
                    numbers.next(reader, 9)?;
                }
            }
        }
    }
    numbers.finish()
}

/// What is at the beginning of the first section.
struct Global {
    tree: Option<Tree>,
    /// The number of contexts of blocks.
    contexts: usize,
}

impl Global {
    fn read(reader: &mut Reader<'_>, header: &Header, frequencies: bool) -> Result<Self, String> {
        if !reader.flag()? {
            (0..3).try_for_each(|_| reader.float().map(drop))?;
        }
        let mut contexts = 0;
        if frequencies {
            reader.number([(11, 1), (11, 2049), (12, 4097), (16, 8193)])?;
            reader.number([(0, 16), (5, 1), (8, 1), (16, 1)])?;
            contexts = if reader.flag()? { 15 } else { block_contexts(reader)? };
            // How colours follow from each other.
            if !reader.flag()? {
                reader.number([(0, 84), (0, 256), (8, 2), (16, 258)])?;
                (0..2).try_for_each(|_| reader.float().map(drop))?;
                reader.skip(16)?;
            }
        }
        let tree = if reader.flag()? { Some(Tree::read(reader, header.samples())?) } else { None };
        Ok(Self { tree, contexts })
    }
}

/// Reads the contexts of blocks, and returns their number.
fn block_contexts(reader: &mut Reader<'_>) -> Result<usize, String> {
    let mut count = 1;
    for _ in 0..3 {
        let steps = reader.bits(4)?;
        for _ in 0..steps {
            reader.number([(4, 0), (8, 16), (16, 272), (32, 65_808)])?;
        }
        count *= steps as usize + 1;
    }
    let steps = reader.bits(4)?;
    for _ in 0..steps {
        reader.number([(2, 0), (3, 4), (5, 12), (8, 44)])?;
    }
    count *= steps as usize + 1;
    let wrong = || "it has too many contexts of blocks".to_owned();
    if count > 64 {
        return Err(wrong());
    }
    let map = context_map(reader, 3 * BLOCKS.len() * count, 0)?;
    let most = map.into_iter().max().map_or(0, usize::from);
    if most < 16 { Ok(most + 1) } else { Err(wrong()) }
}

/// Reads what all groups of coefficients share.
fn coefficients(reader: &mut Reader<'_>, groups: u32, contexts: usize) -> Result<(), String> {
    if !reader.flag()? {
        return Err("it has its own tables of quantisation, which have no decoder".to_owned());
    }
    let codes = reader.bits(ceil_log2(groups))? + 1;
    let orders = match reader.bits(2)? {
        0 => 0x5f,
        1 => 0x13,
        2 => 0,
        _ => reader.bits(13)?,
    };
    if orders != 0 {
        let code = Code::read(reader, 8)?;
        let mut numbers = Numbers::new(&code, reader, 0)?;
        for (_, blocks) in BLOCKS.iter().enumerate().filter(|(order, _)| orders >> order & 1 == 1) {
            for _ in 0..3 {
                permutation(reader, &mut numbers, 64 * blocks, *blocks)?;
            }
        }
        numbers.finish()?;
    }
    Code::read(reader, contexts * CONTEXTS * codes as usize).map(drop)
}
