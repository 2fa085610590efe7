//! The headers of frames and their tables of sections (ISO/IEC 18181-1, annex F).
//!
//! There must be one frame, which is the image. One more may stand before it, with patches that the image has several
//! times, such as letters. Frames that aren't shown are decoded too, as many as a file has room for, so others are
//! refused.

use super::entropy::{Code, Numbers};
use super::header::Header;
use super::order::permutation;
use super::reader::{Forms, Reader, TRUNCATED};

/// Flags of a frame, of table F.3.
const NOISE: u64 = 1;
const PATCHES: u64 = 2;
const SPLINES: u64 = 0x10;
const LF_FRAME: u64 = 0x20;
const SKIP_SMOOTHING: u64 = 0x80;

const UPSAMPLING: Forms = [(0, 1), (0, 2), (0, 4), (0, 8)];
const SECTION: Forms = [(10, 0), (14, 1024), (22, 17408), (30, 4_211_712)];

const SIDE: Forms = [(8, 0), (11, 256), (14, 2304), (30, 18_688)];

/// What the header of a frame says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    /// Whether samples are coded as they are, and not as frequencies.
    pub modular: bool,
    /// The extents of what is coded.
    pub width: u32,
    pub height: u32,
    /// The side of a group.
    pub group: u32,
    /// The number of groups.
    pub groups: u32,
    /// The number of groups of the image at an eighth.
    pub lf_groups: u32,
    /// Whether it is shown. If not, it has patches for the next one.
    pub shown: bool,
    /// Whether it has patches of the frame before.
    pub patches: bool,
}

/// The sections of a frame.
pub(super) struct Sections<'a> {
    pub frame: Frame,
    /// One for all, or what is global of low frequencies, each of their groups, what is global of high frequencies,
    /// and each of theirs.
    pub parts: Vec<&'a [u8]>,
}

/// Reads the frames behind the header. The last is the image, and the bytes are those of all.
///
/// # Errors
/// If they are damaged, or have what isn't decoded.
pub(super) fn frames<'a>(reader: Reader<'a>, header: &Header) -> Result<(Vec<Sections<'a>>, &'a [u8]), String> {
    let all = reader.rest();
    let (first, rest) = Sections::read(reader, header, false)?;
    let (frames, rest) = if first.frame.shown {
        (vec![first], rest)
    } else {
        let (second, rest) = Sections::read(Reader::new(rest), header, true)?;
        (vec![first, second], rest)
    };
    Ok((frames, &all[..all.len() - rest.len()]))
}

impl<'a> Sections<'a> {
    /// Reads the header and the table of a frame. Returns what is behind its last section too.
    fn read(mut reader: Reader<'a>, header: &Header, second: bool) -> Result<(Self, &'a [u8]), String> {
        let frame = Frame::read(&mut reader, header, second)?;
        let count = if frame.groups == 1 { 1 } else { 2 + u64::from(frame.lf_groups) + u64::from(frame.groups) };
        // Each has a number of at least 12 bits.
        if count * 12 > reader.rest().len() as u64 * 8 {
            return Err(TRUNCATED.to_owned());
        }
        let order = if reader.flag()? { order(&mut reader, count)? } else { (0..count as usize).collect() };
        reader.align()?;
        let lengths = (0..count).map(|_| reader.number(SECTION)).collect::<Result<Vec<_>, _>>()?;
        reader.align()?;
        let mut rest = reader.rest();
        let mut parts = Vec::with_capacity(lengths.len());
        for length in lengths {
            let (part, more) = rest.split_at_checked(length as usize).ok_or(TRUNCATED)?;
            parts.push(part);
            rest = more;
        }
        let parts = order.into_iter().map(|at| parts[at]).collect();
        Ok((Self { frame, parts }, rest))
    }
}

/// Reads where sections stand that aren't in their order.
fn order(reader: &mut Reader<'_>, count: u64) -> Result<Vec<usize>, String> {
    // Each is taken out of those that are left, which takes time by the square of their number.
    if count > 1 << 14 {
        return Err("it has too many sections that aren't in their order".to_owned());
    }
    let code = Code::read(reader, 8)?;
    let mut numbers = Numbers::new(&code, reader, 0)?;
    let places = permutation(reader, &mut numbers, count as u32, 0)?;
    numbers.finish()?;
    let mut left: Vec<usize> = (0..count as usize).collect();
    let mut order: Vec<usize> = places.into_iter().map(|place| left.remove(place as usize)).collect();
    order.append(&mut left);
    Ok(order)
}

impl Frame {
    fn read(reader: &mut Reader<'_>, header: &Header, second: bool) -> Result<Self, String> {
        let (mut width, mut height) = (header.width, header.height);
        // All as usual: frequencies, with filters.
        if reader.flag()? {
            return Self::of(false, 1, width, height);
        }
        let shown = match reader.bits(2)? {
            0 => true,
            2 if !second => false,
            2 => return Err("it has several frames that aren't shown, which have no decoder".to_owned()),
            kind => return Err(format!("it has a frame of the type {kind}, which has no decoder")),
        };
        let modular = reader.flag()?;
        let flags = reader.long()?;
        for (flag, what) in [
            (NOISE, "noise"),
            (SPLINES, "splines"),
            (LF_FRAME, "a frame of low frequencies"),
            (!(NOISE | PATCHES | SPLINES | LF_FRAME | SKIP_SMOOTHING), "unknown flags"),
        ] {
            if flags & flag != 0 {
                return Err(format!("it has {what}, which has no decoder"));
            }
        }
        if !header.xyb && reader.flag()? {
            return Err("its colours are YCbCr, as of a JPEG file, which has no decoder".to_owned());
        }
        let patches = flags & PATCHES != 0;
        if patches != second {
            return Err("it has patches without a frame for them, or the other way".to_owned());
        }
        let upsampling = reader.number(UPSAMPLING)?;
        for _ in 0..header.extra {
            if reader.number(UPSAMPLING)? != upsampling {
                return Err("it has channels with fewer pixels, which have no decoder".to_owned());
            }
        }
        let shift = if modular { reader.bits(2)? } else { 1 };
        if !modular && header.xyb {
            reader.skip(6)?;
        }
        if shown {
            if reader.number([(0, 1), (0, 2), (0, 3), (3, 4)])? != 1 {
                return Err("it is progressive, which has no decoder".to_owned());
            }
            if reader.flag()? {
                return Err("its frame has a place of its own, which has no decoder".to_owned());
            }
            for _ in 0..=header.extra {
                // Nothing is behind the image, so it replaces all.
                if reader.number([(0, 0), (0, 1), (0, 2), (2, 3)])? != 0 {
                    return Err("it has frames that are blended, which have no decoder".to_owned());
                }
            }
            if !reader.flag()? {
                return Err("it has several frames, which have no decoder".to_owned());
            }
        } else {
            if reader.flag()? {
                (width, height) = (reader.number(SIDE)?, reader.number(SIDE)?);
            }
            let own = u64::from(width) * u64::from(height);
            if own == 0 || own > u64::from(header.width) * u64::from(header.height) || upsampling != 1 {
                return Err("it has a frame for patches that is larger than the image".to_owned());
            }
            // Where it is kept, and that it is before its colours are computed.
            reader.skip(2)?;
            if !reader.flag()? {
                return Err("it has a frame that isn't for patches, which has no decoder".to_owned());
            }
        }
        let name = reader.number([(0, 0), (4, 0), (5, 16), (10, 48)])?;
        (0..name).try_for_each(|_| reader.skip(8))?;
        filters(reader, modular)?;
        reader.no_extensions("its frame")?;
        let frame = Self::of(modular, shift, width.div_ceil(upsampling), height.div_ceil(upsampling))?;
        Ok(Self { shown, patches, ..frame })
    }

    /// A frame that is shown, of this size.
    fn of(modular: bool, shift: u32, width: u32, height: u32) -> Result<Self, String> {
        let group = 128 << shift;
        let groups = width.div_ceil(group).checked_mul(height.div_ceil(group)).ok_or("it has too many groups")?;
        let lf_groups = width.div_ceil(8 * group) * height.div_ceil(8 * group);
        Ok(Self { modular, width, height, group, groups, lf_groups, shown: true, patches: false })
    }

    /// Returns the extents of a group of a grid with groups of this side.
    pub fn extents(&self, number: u32, side: u32) -> (u32, u32) {
        let across = self.width.div_ceil(side);
        let (x, y) = (number % across * side, number / across * side);
        ((self.width - x).min(side), (self.height - y).min(side))
    }
}

/// Reads the filters behind the decoder.
fn filters(reader: &mut Reader<'_>, modular: bool) -> Result<(), String> {
    if reader.flag()? {
        return Ok(());
    }
    let floats = |reader: &mut Reader<'_>, count: u32| (0..count).try_for_each(|_| reader.float().map(drop));
    // Each of these has weights of its own if a second flag says so.
    if reader.flag()? && reader.flag()? {
        floats(reader, 6)?;
    }
    if reader.bits(2)? > 0 {
        if !modular && reader.flag()? {
            floats(reader, 8)?;
        }
        if reader.flag()? {
            floats(reader, 5)?;
        }
        if reader.flag()? {
            floats(reader, if modular { 3 } else { 4 })?;
        }
        if modular {
            floats(reader, 1)?;
        }
    }
    reader.no_extensions("its filters")
}
