//! The segments of a JPEG stream: tables, the frame and its scans.

use std::sync::Arc;

use super::huffman::Codes;
use crate::images::fit::Found;
use dali_zarr_base::dtype::DType;

/// The place of each coefficient in its block, in the order in which they are stored.
pub(super) const ZIGZAG: [u8; 64] = [
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7, 14, 21,
    28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54,
    47, 55, 62, 63,
];

/// What segments have set so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Tables {
    pub quantization: [Option<Arc<[u16; 64]>>; 4],
    /// Codes of the first coefficients, and of the others.
    pub codes: [[Option<Arc<Codes>>; 4]; 2],
    /// MCUs between two restarts. 0: none.
    pub restart: usize,
    /// Whether there was a JFIF segment.
    pub jfif: bool,
    /// The transform that Adobe's segment names.
    pub adobe: Option<u8>,
}

/// The frame: what SOF0, SOF1 or SOF2 says.
#[derive(Debug)]
pub(super) struct Frame {
    pub height: usize,
    pub width: usize,
    pub progressive: bool,
    /// Whether SOF0 says so: at most two tables of codes of each class.
    pub baseline: bool,
    pub components: Vec<Component>,
}

impl Frame {
    /// Returns what an image of this frame says of its chunk.
    pub fn found(&self, channels: u64) -> Found {
        Found { height: self.height as u64, width: self.width as u64, channels, dtype: DType::U8 }
    }
}

/// A component of the frame.
#[derive(Clone, Debug)]
pub(super) struct Component {
    pub id: u8,
    /// Samples of it in each direction, where the most detailed component has the most of them.
    pub horizontal: usize,
    pub vertical: usize,
    pub quantization: usize,
}

/// A scan: what SOS says.
#[derive(Debug)]
pub(super) struct Scan {
    /// The components' places in the frame, and the numbers of their two tables of codes.
    pub components: Vec<(usize, [usize; 2])>,
    /// The first and the last coefficient.
    pub band: (usize, usize),
    /// The lowest bit of the coefficients that were sent before, and that are sent now.
    pub bits: (u32, u32),
}

/// A part of the stream.
pub(super) enum Segment<'a> {
    Frame(Frame),
    /// A scan, and the bytes of it.
    Scan(Scan, &'a [u8]),
    End,
}

/// Reads the segments of a stream.
pub(super) struct Segments<'a> {
    data: &'a [u8],
    at: usize,
    components: Vec<Component>,
}

impl<'a> Segments<'a> {
    /// Begins at the start of `data`.
    pub fn new(data: &'a [u8]) -> Result<Self, String> {
        if !data.starts_with(&[0xff, 0xd8]) {
            return Err("it doesn't begin as a JPEG stream".into());
        }
        Ok(Self { data, at: 2, components: Vec::new() })
    }

    /// Reads up to the next frame or scan. Changes `tables` by the segments before it. At the end of the data is `End`.
    pub fn next(&mut self, tables: &mut Tables) -> Result<Segment<'a>, String> {
        loop {
            // Bytes between segments are ignored, as by libjpeg.
            let Some(skipped) =
                self.data[self.at..].windows(2).position(|two| two[0] == 0xff && !matches!(two[1], 0 | 0xff))
            else {
                self.at = self.data.len();
                return Ok(Segment::End);
            };
            let marker = self.data[self.at + skipped + 1];
            self.at += skipped + 2;
            match marker {
                0xd9 => return Ok(Segment::End),
                0x01 | 0xd0..=0xd8 => continue,
                _ => {}
            }
            let rest = &self.data[self.at..];
            let body = rest
                .first_chunk::<2>()
                .map(|length| usize::from(u16::from_be_bytes(*length)))
                .and_then(|length| rest.get(2..length))
                .ok_or("the data ends too early")?;
            self.at += body.len() + 2;
            match marker {
                0xc4 => codes(body, tables)?,
                0xdb => quantization(body, tables)?,
                0xdd => {
                    let interval = body.first_chunk::<2>().ok_or("its restart interval is too short")?;
                    tables.restart = u16::from_be_bytes(*interval).into();
                }
                0xe0 => tables.jfif |= body.len() >= 14 && body.starts_with(b"JFIF\0"),
                0xee if body.len() >= 12 && body.starts_with(b"Adobe") => tables.adobe = Some(body[11]),
                0xc0..=0xc2 => {
                    let frame = frame(body, marker)?;
                    if !self.components.is_empty() {
                        return Err("it has two frames".into());
                    }
                    self.components = frame.components.clone();
                    return Ok(Segment::Frame(frame));
                }
                0xc3 => return Err("it is lossless JPEG, which has no decoder".into()),
                0xc9..=0xcb => return Err("its codes are arithmetic, which have no decoder".into()),
                0xc5..=0xc8 | 0xcc..=0xcf | 0xdc | 0xde | 0xdf => {
                    return Err(format!("its segment {marker:#x} has no decoder"));
                }
                0xda => {
                    let scan = scan(body, &self.components)?;
                    let bytes = &self.data[self.at..];
                    let is_end = |&at: &usize| matches!(bytes.get(at + 1), Some(&next) if !matches!(next, 0 | 0xd0..=0xd7 | 0xff));
                    let end = memchr::memchr_iter(0xff, bytes).find(is_end).unwrap_or(bytes.len());
                    self.at += end;
                    return Ok(Segment::Scan(scan, &bytes[..end]));
                }
                _ => {}
            }
        }
    }
}

fn quantization(mut body: &[u8], tables: &mut Tables) -> Result<(), String> {
    while let Some((&first, rest)) = body.split_first() {
        let (wide, number) = (first >> 4, usize::from(first & 15));
        let size = if wide == 0 { 64 } else { 128 };
        if wide > 1 || number > 3 || rest.len() < size {
            return Err("a table of quantization is damaged".into());
        }
        let (values, behind) = rest.split_at(size);
        let mut table = [0; 64];
        for (i, &place) in ZIGZAG.iter().enumerate() {
            table[usize::from(place)] =
                if wide == 0 { values[i].into() } else { u16::from_be_bytes([values[2 * i], values[2 * i + 1]]) };
        }
        tables.quantization[number] = Some(Arc::new(table));
        body = behind;
    }
    Ok(())
}

fn codes(mut body: &[u8], tables: &mut Tables) -> Result<(), String> {
    while let Some((&first, rest)) = body.split_first() {
        let (class, number) = (usize::from(first >> 4), usize::from(first & 15));
        let counts = rest.first_chunk::<16>().filter(|_| class < 2 && number < 4);
        let counts = counts.ok_or("a table of codes is damaged")?;
        let many: usize = counts.iter().map(|&count| usize::from(count)).sum();
        let symbols = rest[16..].get(..many).filter(|_| many <= 256).ok_or("a table of codes is damaged")?;
        tables.codes[class][number] = Some(Arc::new(Codes::new(counts, symbols)?));
        body = &rest[16 + many..];
    }
    Ok(())
}

fn frame(body: &[u8], marker: u8) -> Result<Frame, String> {
    let &[precision, h1, h2, w1, w2, count, ref components @ ..] = body else {
        return Err("its frame is too short".into());
    };
    if precision != 8 {
        return Err(format!("its samples have {precision} bits, and only 8 bits have a decoder"));
    }
    let (height, width) = (u16::from_be_bytes([h1, h2]).into(), u16::from_be_bytes([w1, w2]).into());
    let count = usize::from(count);
    if height == 0 || width == 0 || !(1..=4).contains(&count) || components.len() != 3 * count {
        return Err("its frame is damaged".into());
    }
    let (triples, _) = components.as_chunks::<3>();
    let components = triples.iter().map(|&[id, factors, quantization]| {
        let (horizontal, vertical) = (usize::from(factors >> 4), usize::from(factors & 15));
        let good = (1..=4).contains(&horizontal) && (1..=4).contains(&vertical) && quantization < 4;
        let quantization = quantization.into();
        good.then_some(Component { id, horizontal, vertical, quantization }).ok_or("a component is damaged")
    });
    let components: Vec<Component> = components.collect::<Result<_, _>>()?;
    if (1..count).any(|i| components[..i].iter().any(|other| other.id == components[i].id)) {
        return Err("two components have the same number".into());
    }
    Ok(Frame { height, width, progressive: marker == 0xc2, baseline: marker == 0xc0, components })
}

fn scan(body: &[u8], components: &[Component]) -> Result<Scan, String> {
    let (&count, rest) = body.split_first().ok_or("a scan is too short")?;
    let count = usize::from(count);
    if components.is_empty() || !(1..=4).contains(&count) || rest.len() != 2 * count + 3 {
        return Err("a scan is damaged".into());
    }
    let (pairs, tail) = rest.split_at(2 * count);
    let mut chosen: Vec<(usize, [usize; 2])> = Vec::with_capacity(count);
    for pair in pairs.chunks_exact(2) {
        let place = components.iter().position(|component| component.id == pair[0]);
        let place = place.filter(|place| chosen.iter().all(|(other, _)| other != place));
        let tables = [usize::from(pair[1] >> 4), usize::from(pair[1] & 15)];
        let place = place.filter(|_| tables[0] < 4 && tables[1] < 4).ok_or("a scan has no such component")?;
        chosen.push((place, tables));
    }
    let (band, bits) = ((tail[0].into(), tail[1].into()), ((tail[2] >> 4).into(), (tail[2] & 15).into()));
    Ok(Scan { components: chosen, band, bits })
}
