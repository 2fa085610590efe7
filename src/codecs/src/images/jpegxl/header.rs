//! The header of a JPEG XL codestream (ISO/IEC 18181-1, annex D): size, types of samples, channels and colours.
//!
//! Only what imagecodecs writes is let through. Whatever makes the decoder take memory or time that doesn't follow from
//! the size is refused: colour profiles, previews and animations.

use super::reader::{Forms, Reader};
use dali_zarr_base::dtype::DType;

const SIZE: Forms = [(9, 1), (13, 1), (18, 1), (30, 1)];

/// What the header says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub width: u32,
    pub height: u32,
    /// One or three.
    pub colors: u32,
    /// Channels that follow the colours.
    pub extra: u32,
    /// Whether each channel is a plane of its own, since there are others than colours and alpha.
    pub planar: bool,
    pub dtype: DType,
    /// Bits of a sample that is a whole number.
    pub bits: u32,
    /// Whether colours are stored as XYB, which loses values.
    pub xyb: bool,
    /// Whether colours are linear, and not sRGB.
    pub linear: bool,
    /// Whether 16 bits are enough for samples of modular channels.
    pub narrow: bool,
}

/// The type of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Depth {
    Whole(u32),
    Float { bits: u32, exponent: u32 },
}

impl Header {
    /// Reads the header, and leaves the reader at the first frame.
    ///
    /// # Errors
    /// If it is damaged, or has what isn't decoded.
    pub fn read(reader: &mut Reader<'_>) -> Result<Self, String> {
        if reader.bits(16)? != 0x0aff {
            return Err("it has no header of a codestream".to_owned());
        }
        let (width, height) = size(reader)?;
        let colors = Colors { count: 3, linear: false };
        let mut metadata =
            Metadata { depth: Depth::Whole(8), narrow: true, extra: 0, planar: false, xyb: true, colors };
        // All as usual: RGB of 8 bits.
        if !reader.flag()? {
            metadata = metadata_of(reader)?;
        }
        // Matrices of colours, and weights to enlarge images.
        if !reader.flag()? {
            return Err("it has its own transform of colours, which has no decoder".to_owned());
        }
        reader.align()?;
        let (dtype, bits) = match metadata.depth {
            Depth::Whole(bits @ 1..=8) => (DType::U8, bits),
            Depth::Whole(bits @ 9..=16) => (DType::U16, bits),
            Depth::Float { bits: 32, exponent: 8 } => (DType::F32, 32),
            Depth::Float { bits: 16, exponent: 5 } => (DType::F16, 16),
            depth => return Err(format!("its samples are {depth:?}, and not of uint8, uint16, float16 or float32")),
        };
        let Metadata { narrow, extra, planar, xyb, colors, .. } = metadata;
        let Colors { count: colors, linear } = colors;
        Ok(Self { width, height, colors, extra, planar, dtype, bits, xyb, linear, narrow })
    }

    /// Writes the header for the crate, which so never sees the file's own.
    ///
    /// `wide` says whether samples of modular channels have 32 bits, and not 16.
    pub fn written(&self, wide: bool) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.bits(16, 0x0aff);
        writer.bits(1, 0);
        // The height, no ratio, and the width.
        writer.bits(2, 3);
        writer.bits(30, self.height - 1);
        writer.bits(3, 0);
        writer.bits(2, 3);
        writer.bits(30, self.width - 1);
        // Not all as usual; neither turned nor shown otherwise.
        writer.bits(2, 0);
        self.write_depth(&mut writer);
        writer.bits(1, u32::from(!wide));
        writer.bits(2, [0, 1, 2, 2, 2][self.extra as usize]);
        if self.extra > 1 {
            writer.bits(4, self.extra - 2);
        }
        for _ in 0..self.extra {
            writer.bits(1, 0);
            writer.member(if self.planar { 16 } else { 0 });
            self.write_depth(&mut writer);
            // As many pixels as colours have, no name, and not multiplied.
            writer.bits(if self.planar { 4 } else { 5 }, 0);
        }
        writer.bits(1, self.xyb.into());
        // Colours: no profile, their space, white, primaries, no gamma, transfer and intent.
        writer.bits(2, 0);
        writer.member(u32::from(self.colors == 1));
        writer.member(1);
        if self.colors == 3 {
            writer.member(1);
        }
        writer.bits(1, 0);
        writer.member(if self.linear { 8 } else { 13 });
        writer.member(1);
        // No extensions, and the usual transforms.
        writer.bits(2, 0);
        writer.bits(1, 1);
        writer.bytes
    }

    fn write_depth(&self, writer: &mut Writer) {
        match self.dtype {
            // 31 + 1 bits, of which 7 + 1 are the exponent's; and 16, of which 5 are.
            DType::F32 => writer.bits(7, 7 << 3 | 1),
            DType::F16 => writer.bits(7, 4 << 3 | 1 << 1 | 1),
            _ => writer.bits(9, (self.bits - 1) << 3 | 3 << 1),
        }
    }

    /// Returns the number of samples with all channels.
    pub fn samples(&self) -> u64 {
        u64::from(self.width) * u64::from(self.height) * u64::from(self.colors + self.extra)
    }
}

/// What the bundle after the size says.
struct Metadata {
    depth: Depth,
    narrow: bool,
    extra: u32,
    planar: bool,
    xyb: bool,
    colors: Colors,
}

#[derive(Clone, Copy, Debug)]
struct Colors {
    count: u32,
    linear: bool,
}

fn size(reader: &mut Reader<'_>) -> Result<(u32, u32), String> {
    let small = reader.flag()?;
    let side = |reader: &mut Reader<'_>| if small { Ok((reader.bits(5)? + 1) * 8) } else { reader.number(SIZE) };
    let height = side(reader)?;
    let ratio = match reader.bits(3)? {
        0 => return Ok((side(reader)?, height)),
        1 => (1, 1),
        2 => (12, 10),
        3 => (4, 3),
        4 => (3, 2),
        5 => (16, 9),
        6 => (5, 4),
        _ => (2, 1),
    };
    let width = u64::from(height) * ratio.0 / ratio.1;
    Ok((u32::try_from(width).map_err(|_| "its size is too large")?, height))
}

fn metadata_of(reader: &mut Reader<'_>) -> Result<Metadata, String> {
    let more = reader.flag()?;
    if more {
        // Its values would be turned.
        if reader.bits(3)? != 0 {
            return Err("its orientation isn't that of its pixels, which has no decoder".to_owned());
        }
        for what in ["an intrinsic size", "a preview", "several frames"] {
            if reader.flag()? {
                return Err(format!("it has {what}, which has no decoder"));
            }
        }
    }
    let depth = depth(reader)?;
    let narrow = reader.flag()?;
    let extra = reader.number([(0, 0), (0, 1), (4, 2), (12, 1)])?;
    // Four is also the limit of level 5.
    if extra > 4 {
        return Err(format!("it has {extra} channels beside colours, and at most 4 have a decoder"));
    }
    let kinds = (0..extra).map(|_| extra_channel(reader, depth)).collect::<Result<Vec<_>, _>>()?;
    let xyb = reader.flag()?;
    let colors = colors(reader, xyb)?;
    let planar = match *kinds {
        [] | [0] => false,
        // As imagecodecs writes planes: the first is gray.
        _ if colors.count == 1 && !kinds.contains(&0) => true,
        _ => return Err("it has several channels beside colours and alpha, which have no decoder".to_owned()),
    };
    // How bright values are.
    if more && !reader.flag()? {
        let (target, least) = (reader.float()?, reader.float()?);
        let relative = reader.flag()?;
        let below = reader.float()?;
        if target != 255.0 || least != 0.0 || relative || below != 0.0 {
            return Err("it has its own mapping of tones, which has no decoder".to_owned());
        }
    }
    reader.no_extensions("its header")?;
    Ok(Metadata { depth, narrow, extra, planar, xyb, colors })
}

fn depth(reader: &mut Reader<'_>) -> Result<Depth, String> {
    Ok(if reader.flag()? {
        Depth::Float { bits: reader.number([(0, 32), (0, 16), (0, 24), (6, 1)])?, exponent: reader.bits(4)? + 1 }
    } else {
        Depth::Whole(reader.number([(0, 8), (0, 10), (0, 12), (6, 1)])?)
    })
}

/// Reads what a channel beside colours is. Returns its kind.
fn extra_channel(reader: &mut Reader<'_>, colors: Depth) -> Result<u32, String> {
    let (kind, own, shift) = if reader.flag()? {
        (0, Depth::Whole(8), 0)
    } else {
        let found = (reader.member()?, depth(reader)?, reader.number([(0, 0), (0, 3), (0, 4), (3, 1)])?);
        let name = reader.number([(0, 0), (4, 0), (5, 16), (10, 48)])?;
        (0..name).try_for_each(|_| reader.skip(8))?;
        // Whether colours are multiplied by alpha: they are given as they are.
        if found.0 == 0 {
            reader.flag()?;
        }
        found
    };
    match kind {
        // Alpha; depth, selections and heat; what is unknown; what may be left out.
        0 | 1 | 3 | 6 | 15 | 16 => {}
        _ => return Err(format!("it has a channel of the type {kind}, which has no decoder")),
    }
    if own != colors {
        return Err("its channels have different types".to_owned());
    }
    if shift == 0 { Ok(kind) } else { Err("it has channels with fewer pixels, which have no decoder".to_owned()) }
}

/// Reads the encoding of colours.
fn colors(reader: &mut Reader<'_>, xyb: bool) -> Result<Colors, String> {
    if reader.flag()? {
        return Ok(Colors { count: 3, linear: false });
    }
    if reader.flag()? {
        return Err("it has a colour profile, which has no decoder".to_owned());
    }
    let count = match reader.member()? {
        0 => 3,
        1 => 1,
        space => return Err(format!("its colours are of the space {space}, and not RGB or gray")),
    };
    let white = reader.member()?;
    let primaries = if count == 3 { reader.member()? } else { 1 };
    let gamma = reader.flag()?;
    let transfer = if gamma { reader.bits(24)? } else { reader.member()? };
    if reader.member()? > 3 {
        return Err("the rendering intent of its colours is unknown".to_owned());
    }
    // What is computed from XYB is given as sRGB, or linear.
    let usual = white == 1 && primaries == 1 && !gamma && matches!(transfer, 8 | 13);
    // Without XYB they change no values. Those with numbers of their own are longer.
    let named = white != 2 && primaries != 2;
    if usual || (!xyb && named) {
        Ok(Colors { count, linear: !gamma && transfer == 8 })
    } else {
        Err("its colours are neither sRGB nor linear, which has no decoder".to_owned())
    }
}

/// Writes bits, least significant first.
#[derive(Default)]
pub(super) struct Writer {
    pub bytes: Vec<u8>,
    at: usize,
}

impl Writer {
    pub fn bits(&mut self, count: u32, value: u32) {
        for bit in 0..count {
            if self.at / 8 == self.bytes.len() {
                self.bytes.push(0);
            }
            self.bytes[self.at / 8] |= ((value >> bit & 1) as u8) << (self.at % 8);
            self.at += 1;
        }
    }

    /// Writes a member of an enumeration, below 18.
    fn member(&mut self, value: u32) {
        match value {
            0 | 1 => self.bits(2, value),
            _ => self.bits(6, (value - 2) << 2 | 2),
        }
    }
}
