//! Which images a GPU's JPEG engine decodes: baseline ones of one scan, gray or of YCbCr, with the usual sampling of
//! colours. There its values are within one level of this decoder's.
//!
//! Other images are for the CPU: progressive ones, other colours, streams without their tables. So are images that aren't
//! complete: the stream must end with its marker, and have as many restarts as its frame has room for. Codes aren't read, so
//! changed bytes between two markers can give wrong pixels, as they can on the CPU. What no code is, only the CPU reports.

use super::frame::{Frame, Scan, Segment, Segments, Tables};
use super::sample::Convert;
use super::{Jpeg, Space};
use crate::images::fit::Expected;
use crate::on_gpu::GpuImage;

/// How often the first of three components is sampled beside the others: 4:4:4, 4:2:2, 4:4:0, 4:2:0.
const SAMPLINGS: [(usize, usize); 4] = [(1, 1), (2, 1), (1, 2), (2, 2)];

impl Jpeg {
    /// Whether the metadata leave open that chunks are images for the engine: whole streams, of which nothing is stored
    /// elsewhere, gray or of YCbCr, in chunks whose last axis has `last` elements.
    pub(super) fn is_plain(&self, last: u64) -> bool {
        let tables = &self.tables;
        let none =
            tables.quantization.iter().all(Option::is_none) && tables.codes.iter().flatten().all(Option::is_none);
        let colours = match (self.stored, self.wanted) {
            (None, None | Some(Space::Rgb | Space::Gray)) | (Some(Space::YCbCr), Some(Space::Rgb)) => true,
            (stored, wanted) => stored == Some(Space::Gray) && wanted == Some(Space::Gray),
        };
        // A CMYK image has four channels. Other numbers may be columns of gray images.
        none && self.header.is_empty() && colours && last != 4
    }

    /// Returns the image, if the engine decodes it.
    ///
    /// # Errors
    /// The reason why it doesn't, as the end of a sentence.
    pub(super) fn for_engine(&self, encoded: &[u8], expected: &Expected<'_>) -> Result<GpuImage, &'static str> {
        const DAMAGED: &str = "it looks damaged";
        let mut tables = Tables::default();
        let mut segments = Segments::new(encoded).map_err(|_| DAMAGED)?;
        let Segment::Frame(frame) = segments.next(&mut tables).map_err(|_| DAMAGED)? else { return Err(DAMAGED) };
        let Segment::Scan(scan, bytes) = segments.next(&mut tables).map_err(|_| DAMAGED)? else { return Err(DAMAGED) };
        if !frame.baseline || scan.components.len() != frame.components.len() {
            return Err("it isn't a baseline image of one scan");
        }
        let channels = self.channels(&frame, &tables)?;
        expected.check(&frame.found(channels.into())).map_err(|_| "it is of another size than the chunk")?;
        if !has_tables(&frame, &scan, &tables) || !restarts_fit(&frame, tables.restart, bytes) {
            return Err(DAMAGED);
        }
        let Some(begin) = begin_of_scan(encoded) else { return Err("it has segments that are for the CPU") };
        if encoded.get(begin..begin + bytes.len()) != Some(bytes) || encoded[begin + bytes.len()..] != [0xff, 0xd9] {
            return Err("its end isn't behind its scan");
        }
        let (width, height) = (frame.width as u32, frame.height as u32);
        Ok(GpuImage { range: 0..encoded.len(), width, height, channels, bits: 8, signed: false })
    }

    /// Returns the channels of an image whose colours the engine converts as this decoder does.
    fn channels(&self, frame: &Frame, tables: &Tables) -> Result<u32, &'static str> {
        const OTHER: &str = "its colours are for the CPU";
        // What the stream says, since the engine reads nothing else. An engine may take letters or Adobe's segment for more
        // than libjpeg does.
        let ids: Vec<u8> = frame.components.iter().map(|component| component.id).collect();
        let is_plain = ids != b"RGB" && tables.adobe.is_none_or(|transform| transform == 1);
        let convert = self.convert(frame, tables).map_err(|_| OTHER)?;
        let factors: Vec<_> = frame.components.iter().map(|one| (one.horizontal, one.vertical)).collect();
        match (Space::stored(frame, tables), convert, factors.as_slice()) {
            (Space::Gray, Convert::Same, [(1, 1)]) => Ok(1),
            (Space::YCbCr, Convert::Rgb, [first, (1, 1), (1, 1)]) if is_plain && SAMPLINGS.contains(first) => Ok(3),
            _ => Err(OTHER),
        }
    }
}

/// Returns where the bytes of the scan begin, if the stream has only what each reader of JPEG takes for the same: one marker
/// after the other, of the tables of baseline images, of its frame and its scan, and of what is skipped by its length. The
/// engine's library reads the stream for itself, and must not find another frame in it.
fn begin_of_scan(encoded: &[u8]) -> Option<usize> {
    let mut rest = encoded.strip_prefix(&[0xff, 0xd8])?;
    loop {
        let (&[0xff, marker, high, low], _) = rest.split_first_chunk::<4>()? else { return None };
        let length = usize::from(u16::from_be_bytes([high, low]));
        let body = rest.get(4..length + 2)?;
        rest = &rest[length + 2..];
        match marker {
            // Tables of quantization of 8 bits, 65 bytes each.
            0xdb if body.chunks(65).all(|table| table.len() == 65 && table[0] < 4) => {}
            0xc0 | 0xc4 | 0xdd | 0xe0..=0xef | 0xfe => {}
            0xda => return Some(encoded.len() - rest.len()),
            _ => return None,
        }
    }
}

/// Whether the tables that frame and scan name are there, and no others than baseline images have.
fn has_tables(frame: &Frame, scan: &Scan, tables: &Tables) -> bool {
    let quantization = frame.components.iter().all(|one| tables.quantization[one.quantization].is_some());
    let has = |class: usize, number: usize| number < 2 && tables.codes[class][number].is_some();
    let codes = scan.components.iter().all(|&(_, [dc, ac])| has(0, dc) && has(1, ac));
    let in_order = scan.components.iter().enumerate().all(|(i, &(place, _))| i == place);
    quantization && codes && in_order && scan.band == (0, 63) && scan.bits == (0, 0)
}

/// Whether the scan has the restarts of its frame, in their order.
fn restarts_fit(frame: &Frame, every: usize, scan: &[u8]) -> bool {
    let most = frame.most();
    let mcus = frame.width.div_ceil(8 * most.0) * frame.height.div_ceil(8 * most.1);
    let expected = mcus.div_ceil(if every == 0 { mcus } else { every }) - 1;
    let mut found = 0;
    for at in memchr::memchr_iter(0xff, scan) {
        match scan.get(at + 1) {
            Some(0) => {}
            Some(&marker) if usize::from(marker) == 0xd0 + found % 8 => found += 1,
            _ => return false,
        }
    }
    found == expected && !scan.is_empty()
}
