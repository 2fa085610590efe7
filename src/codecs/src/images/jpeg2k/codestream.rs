//! The structure of a JPEG 2000 codestream (ITU-T T.800, annex A): what its headers say ([`Size`]), and whether its
//! tiles and blocks fit into bounded memory ([`Size::check`]).
//!
//! The decoder takes memory for tiles, precincts and code-blocks as the headers say, before it reads any of them. This
//! module counts them first. It reads exactly the marker segments that the decoder reads, with the lengths that they
//! must have, so that the two can't see different headers. What would need more than that is refused: packed packet
//! headers, changes of the progression, and coding styles of single tiles.

/// The most tiles, since a tile-part's header has 16 bits for a tile's number.
const MOST_TILES: u64 = 65_535;

/// What the segment SIZ says, of components that are alike.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    pub width: u64,
    pub height: u64,
    pub channels: u64,
    /// Bits of a sample.
    pub bits: u32,
    pub signed: bool,
    /// Whether the image and its tiles begin where the grid does, and no extension is asked for. Tiles are then at most as large as
    /// the image, and have at least 16 pixels along each axis, or all of them.
    is_plain: bool,
    tile_width: u64,
    tile_height: u64,
    tiles: u64,
    /// Where the segments after SIZ begin.
    rest: usize,
}

/// What the headers say of a codestream that has all its tiles.
#[derive(Clone, Copy, Debug)]
pub(super) struct Checked {
    /// Bytes up to the end of the codestream.
    pub len: usize,
    /// Whether it has only what usual encoders write: one coding style and quantisation for all, blocks in the default mode,
    /// one part for each tile, in order, and no segments but comments.
    pub is_usual: bool,
}

/// How a component is coded.
#[derive(Clone, Debug)]
struct Style {
    /// The number of wavelet transforms.
    levels: u32,
    /// The exponents of the width and height of code-blocks.
    block: [u32; 2],
    /// Code-block style, of table A.19.
    flags: u8,
    /// 0: irreversible, 1: reversible.
    transform: u8,
    /// The exponents of the width and height of precincts, from the lowest resolution.
    precincts: Vec<[u32; 2]>,
}

/// Reads big-endian numbers and segments.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], String> {
        let end = self.at.checked_add(count).filter(|&end| end <= self.bytes.len());
        let end = end.ok_or_else(|| "it is truncated".to_owned())?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn number(&mut self, count: usize) -> Result<u64, String> {
        Ok(self.take(count)?.iter().fold(0, |number, &byte| number << 8 | u64::from(byte)))
    }

    /// Reads a marker, and returns its last byte.
    fn marker(&mut self) -> Result<u8, String> {
        match self.take(2)? {
            &[0xff, marker] => Ok(marker),
            other => Err(format!("it has the bytes {other:02x?} in place of a marker")),
        }
    }

    /// Reads what follows a marker: a length, and as many bytes less two.
    fn segment(&mut self) -> Result<&'a [u8], String> {
        let length = self.number(2)?;
        self.take((length as usize).checked_sub(2).ok_or("a segment has no length")?)
    }
}

impl Size {
    /// Reads the beginning of a codestream.
    ///
    /// # Errors
    /// If it is none, or one whose components aren't alike.
    pub fn read(codestream: &[u8]) -> Result<Self, String> {
        let mut reader = Reader { bytes: codestream, at: 0 };
        if (reader.marker()?, reader.marker()?) != (0x4f, 0x51) {
            return Err("it has no header".to_owned());
        }
        let length = reader.number(2)?;
        let capabilities = reader.number(2)?;
        if capabilities & 0x4000 != 0 {
            return Err("its blocks are coded as in part 15 (HTJ2K), which has no decoder".to_owned());
        }
        let mut pairs = [[0u64; 2]; 4];
        for pair in &mut pairs {
            *pair = [reader.number(4)?, reader.number(4)?];
        }
        let [grid, image, tile, first] = pairs;
        let channels = reader.number(2)?;
        if !(1..=4).contains(&channels) || length != 38 + 3 * channels {
            return Err(format!("it has {channels} components, and not 1 to 4"));
        }
        let components = reader.take(3 * channels as usize)?;
        let depth = components[0];
        if components.chunks_exact(3).any(|one| one != [depth, 1, 1]) {
            return Err("its components have different types, or fewer samples than the image".to_owned());
        }
        for axis in 0..2 {
            let fits = image[axis] < grid[axis]
                && grid[axis] <= i32::MAX as u64
                && first[axis] <= image[axis]
                && first[axis].checked_add(tile[axis]).is_some_and(|end| end > image[axis]);
            if !fits {
                return Err("its tiles don't cover its pixels".to_owned());
            }
        }
        let [columns, rows] = [0, 1].map(|axis: usize| (grid[axis] - first[axis]).div_ceil(tile[axis]));
        let [width, height] = [0, 1].map(|axis: usize| grid[axis] - image[axis]);
        Ok(Self {
            width,
            height,
            channels,
            bits: u32::from(depth & 0x7f) + 1,
            signed: depth & 0x80 != 0,
            is_plain: [image, first].concat().iter().all(|&start| start == 0)
                && (0..2).all(|axis| (grid[axis].min(16)..=grid[axis]).contains(&tile[axis]))
                && capabilities <= 2,
            tile_width: tile[0].min(width),
            tile_height: tile[1].min(height),
            tiles: columns.saturating_mul(rows),
            rest: reader.at,
        })
    }

    /// Checks that the decoder needs at most `memory` bytes, and that all tiles are there, as long as they say. Returns what
    /// else the headers say.
    ///
    /// # Errors
    /// If not, or if a part of the codestream has no decoder.
    pub fn check(&self, codestream: &[u8], memory: u64) -> Result<Checked, String> {
        if self.tiles > MOST_TILES {
            return Err(format!("it has {} tiles, and at most {MOST_TILES} can be told apart", self.tiles));
        }
        let mut reader = Reader { bytes: codestream, at: self.rest };
        let mut default = None;
        let mut own = vec![None; self.channels as usize];
        let mut layers = 0;
        let (mut is_usual, mut steps) = (self.is_plain, None);
        loop {
            match reader.marker()? {
                0x52 => {
                    let segment = reader.segment()?;
                    let (&[flags, _, high, low, mixed], rest) =
                        segment.split_first_chunk::<5>().ok_or("its coding style is truncated")?;
                    layers = u64::from(high) << 8 | u64::from(low);
                    is_usual &=
                        default.is_none() && flags & !1 == 0 && (mixed == 0 || mixed == 1 && self.channels >= 3);
                    default = Some(Style::read(flags, rest)?);
                }
                0x53 => {
                    is_usual = false;
                    let segment = reader.segment()?;
                    let (&[component, flags], rest) =
                        segment.split_first_chunk::<2>().ok_or("its coding style is truncated")?;
                    let place = own.get_mut(usize::from(component));
                    *place.ok_or("a coding style is of no component")? = Some(Style::read(flags, rest)?);
                }
                0x90 => break,
                marker => {
                    let segment = other(marker, &mut reader, "the image")?;
                    is_usual &= marker == 0x64 || marker == 0x5c && default.is_some() && steps.is_none();
                    if marker == 0x5c {
                        steps = Some(segment);
                    }
                }
            }
        }
        let default = default.ok_or("it has no coding style")?;
        is_usual &= default.is_usual() && steps.is_some_and(|steps| default.has_steps(steps)) && layers > 0;
        let styles: Vec<&Style> = own.iter().map(|own| own.as_ref().unwrap_or(&default)).collect();
        let needed = self.memory(&styles, layers).unwrap_or(u64::MAX);
        if needed > memory {
            return Err(format!(
                "its tiles and blocks need {needed} bytes, and at most {memory} are given to its size"
            ));
        }
        let in_order = self.parts(&mut reader)?;
        Ok(Checked { len: reader.at, is_usual: is_usual && in_order })
    }

    /// Reads the headers of all tile-parts. `reader` is after the first one's marker, and then at the end of the codestream.
    /// Returns whether each tile has one part, in order, without segments but comments.
    fn parts(&self, reader: &mut Reader<'_>) -> Result<bool, String> {
        let mut seen = vec![false; self.tiles as usize];
        let (mut count, mut in_order) = (0, true);
        loop {
            let start = reader.at - 2;
            if reader.number(2)? != 10 {
                return Err("a tile-part's header has a wrong length".to_owned());
            }
            let tile = reader.number(2)? as usize;
            *seen.get_mut(tile).ok_or_else(|| format!("it has a tile {tile}, of {}", self.tiles))? = true;
            let length = reader.number(4)? as usize;
            let end = start.checked_add(length).filter(|&end| end <= reader.bytes.len());
            let end = end.ok_or_else(|| format!("tile {tile} is truncated"))?;
            let [part, parts] = [reader.number(1)?, reader.number(1)?];
            in_order &= tile == count && part == 0 && parts <= 1;
            count += 1;
            loop {
                match reader.marker()? {
                    0x93 => break,
                    marker => {
                        other(marker, reader, "a tile")?;
                        in_order &= marker == 0x64;
                    }
                }
            }
            if reader.at > end {
                return Err(format!("tile {tile} has a wrong length"));
            }
            in_order &= reader.at < end;
            reader.at = end;
            match reader.marker()? {
                0x90 => {}
                0xd9 => break,
                marker => return Err(format!("it has the marker ff{marker:02x} between tiles")),
            }
        }
        match seen.iter().position(|&seen| !seen) {
            None => Ok(in_order),
            Some(tile) => Err(format!("its tile {tile} is missing")),
        }
    }

    /// Returns the most bytes that the decoder takes, or `None` if they can't be counted.
    fn memory(&self, styles: &[&Style], layers: u64) -> Option<u64> {
        let samples = self.width.checked_mul(self.height)?;
        let (wide, high) = (self.tile_width + 1, self.tile_height + 1);
        // Samples of all components, then coefficients and two buffers of the transform for one component of a tile.
        let mut all = samples.checked_mul(4 * self.channels)?;
        all = all.checked_add(wide.checked_mul(high)?.checked_mul(9)? + 16 * (wide + high))?;
        let mut parts = 0u64;
        let mut each_tile = 256u64;
        for style in styles {
            each_tile += 256 + 32 * u64::from(style.levels);
            for (resolution, precincts) in style.precincts.iter().enumerate() {
                let (blocks, counted) = style.blocks(resolution as u32, *precincts, [wide, high])?;
                // Every pass may have a segment of its own.
                let segments = if style.flags & 5 == 0 { layers } else { 96 };
                let a_block = 384 + 48 * layers + 64 * segments;
                parts = parts.checked_add(blocks.checked_mul(a_block)?)?.checked_add(counted.checked_mul(448)?)?;
            }
        }
        all.checked_add(parts)?.checked_add(self.tiles.checked_mul(each_tile)?)
    }
}

impl Style {
    /// Reads the parameters of table A.15.
    fn read(flags: u8, parameters: &[u8]) -> Result<Self, String> {
        let (&[levels, width, height, style, transform], precincts) =
            parameters.split_first_chunk::<5>().ok_or("its coding style is truncated")?;
        if levels > 32 || width > 8 || height > 8 || width + height > 8 {
            return Err("its coding style has more levels or larger blocks than the format allows".to_owned());
        }
        if style & 0xc0 != 0 {
            return Err("its blocks are coded as in part 15 (HTJ2K), which has no decoder".to_owned());
        }
        let resolutions = usize::from(levels) + 1;
        let precincts: Vec<[u32; 2]> = if flags & 1 == 0 {
            vec![[15, 15]; resolutions]
        } else {
            precincts.iter().map(|&sizes| [u32::from(sizes & 15), u32::from(sizes >> 4)]).collect()
        };
        let expected = 5 + if flags & 1 == 0 { 0 } else { resolutions };
        if parameters.len() != expected || precincts.iter().skip(1).flatten().any(|&exponent| exponent == 0) {
            return Err("its coding style has wrong precincts".to_owned());
        }
        let block = [u32::from(width) + 2, u32::from(height) + 2];
        Ok(Self { levels: levels.into(), block, flags: style, transform, precincts })
    }

    /// Whether blocks are in the default mode, of usual sizes, and there are as many levels as images have a use for.
    fn is_usual(&self) -> bool {
        self.flags == 0 && self.levels <= 10 && self.block.iter().all(|exponent| (4..=6).contains(exponent))
    }

    /// Whether a segment of quantisation has a step for each sub-band, of the kind that the transform takes.
    fn has_steps(&self, segment: &[u8]) -> bool {
        let bands = 1 + 3 * self.levels as usize;
        let expected = match (segment[0] & 0x1f, self.transform) {
            (0, 1) => bands,
            (1, 0) => 2,
            (2, 0) => 2 * bands,
            _ => return false,
        };
        segment.len() == 1 + expected
    }

    /// Returns the most code-blocks and precincts of a resolution, in all its sub-bands, of a component of a tile.
    fn blocks(&self, resolution: u32, precinct: [u32; 2], extents: [u64; 2]) -> Option<(u64, u64)> {
        let (mut blocks, mut precincts) = (1u64, 1u64);
        for axis in 0..2 {
            // One more than its share: tiles begin anywhere.
            let extent = (extents[axis] >> (self.levels - resolution).min(63)) + 1;
            let inner = precinct[axis].saturating_sub(u32::from(resolution > 0));
            // A sub-band has half of the extent, but the lowest one.
            let band = if resolution > 0 { extent / 2 + 1 } else { extent };
            precincts = precincts.checked_mul((extent >> precinct[axis]) + 2)?;
            blocks = blocks.checked_mul((band >> inner.min(self.block[axis])) + 2)?;
        }
        let bands = if resolution > 0 { 3 } else { 1 };
        Some((blocks.checked_mul(bands)?, precincts.checked_mul(bands)?))
    }
}

/// Reads a segment that takes no part in counting.
fn other<'a>(marker: u8, reader: &mut Reader<'a>, place: &str) -> Result<&'a [u8], String> {
    let segment = reader.segment()?;
    let style = |at: usize| segment.get(at).map(|style| style & 0x1f);
    let fits = match marker {
        // Quantisation, whose length says how many steps there are.
        0x5c => style(0).is_some_and(|style| steps(style, segment.len() - 1)),
        0x5d => style(1).is_some_and(|style| steps(style, segment.len() - 2)),
        // A region of interest.
        0x5e => segment.len() == 3,
        // Lengths of tiles and packets, comments, and where components lie in an instrument.
        0x55 | 0x63 if place == "the image" => true,
        0x58 if place == "a tile" => true,
        0x64 => true,
        _ => return Err(format!("it has the marker ff{marker:02x} for {place}, which has no decoder")),
    };
    if fits { Ok(segment) } else { Err(format!("the segment of the marker ff{marker:02x} has a wrong length")) }
}

/// Whether this many bytes are steps of a style of quantisation.
fn steps(style: u8, bytes: usize) -> bool {
    match style {
        0 => bytes > 0,
        1 => bytes == 2,
        _ => bytes > 0 && bytes.is_multiple_of(2),
    }
}
