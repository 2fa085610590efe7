//! The scans of a JPEG stream: from bits to coefficients, and from these to samples.

use std::sync::Arc;

use super::frame::{Component, Frame, Scan, Tables, ZIGZAG};
use super::huffman::{Bits, Codes};
use super::idct;
use super::sample::Plane;
use super::wide;

/// More scans than any encoder writes. Each of them passes over the whole image.
const MOST_SCANS: usize = 500;

/// A component while it is decoded.
struct Part {
    /// Blocks in a row and rows of blocks, with those that only fill up MCUs.
    stored: (usize, usize),
    /// Blocks in a row and rows of blocks that have samples of the image.
    used: (usize, usize),
    horizontal: usize,
    vertical: usize,
    plane: Plane,
    /// All coefficients of a progressive image.
    coefficients: Vec<[i16; 64]>,
    /// The table of its first scan.
    quantization: Option<Arc<[u16; 64]>>,
    /// For each coefficient the lowest bit that was sent. `None`: not sent.
    sent: [Option<u32>; 64],
}

/// The components of an image while it is decoded.
pub(super) struct Parts {
    parts: Vec<Part>,
    /// MCUs in a row, and rows of them, in scans of several components.
    mcus: (usize, usize),
    progressive: bool,
    scans: usize,
    numbers: Vec<usize>,
}

/// The state of a scan, between two restarts.
#[derive(Default)]
struct Run {
    /// The last first coefficient of each component.
    last: [i32; 4],
    /// Blocks that still have no more coefficients.
    blocks: u32,
}

impl Parts {
    /// Returns the bytes that [`Self::new`] takes. Of thin images with few of some components they are many more than there
    /// are pixels.
    pub fn bytes(frame: &Frame) -> usize {
        let most = frame.most();
        let mcus = frame.width.div_ceil(8 * most.0) * frame.height.div_ceil(8 * most.1);
        let blocks: usize = frame.components.iter().map(|one| mcus * one.horizontal * one.vertical).sum();
        blocks * 64 * if frame.progressive { 3 } else { 1 }
    }

    /// Takes memory for the samples, and for the coefficients of a progressive image: for each sample 1 and 2 bytes.
    pub fn new(frame: &Frame) -> Self {
        let most = frame.most();
        let mcus = (frame.width.div_ceil(8 * most.0), frame.height.div_ceil(8 * most.1));
        let part = |component: &Component| {
            let (h, v) = (component.horizontal, component.vertical);
            let stored = (mcus.0 * h, mcus.1 * v);
            let (width, height) = ((frame.width * h).div_ceil(most.0), (frame.height * v).div_ceil(most.1));
            let blocks = stored.0 * stored.1;
            Part {
                stored,
                used: (width.div_ceil(8), height.div_ceil(8)),
                horizontal: h,
                vertical: v,
                plane: Plane { samples: vec![0; blocks * 64], stride: stored.0 * 8, width, height },
                coefficients: if frame.progressive { vec![[0; 64]; blocks] } else { Vec::new() },
                quantization: None,
                sent: [None; 64],
            }
        };
        let parts = frame.components.iter().map(part).collect();
        let numbers = frame.components.iter().map(|component| component.quantization).collect();
        Self { parts, mcus, progressive: frame.progressive, scans: 0, numbers }
    }

    /// Decodes a scan.
    pub fn scan(&mut self, scan: &Scan, tables: &Tables, bytes: &[u8]) -> Result<(), String> {
        self.scans += 1;
        if self.scans > MOST_SCANS {
            return Err(format!("it has more than {MOST_SCANS} scans"));
        }
        self.note(scan, tables)?;
        let codes = self.codes(scan, tables)?;
        let (mcus, blocks) = match scan.components.as_slice() {
            [(one, _)] => (self.parts[*one].used, None),
            several => {
                let blocks: usize =
                    several.iter().map(|(i, _)| self.parts[*i].horizontal * self.parts[*i].vertical).sum();
                if blocks > 10 {
                    return Err("an MCU has more than 10 blocks".into());
                }
                (self.mcus, Some(blocks))
            }
        };
        let all = mcus.0 * mcus.1;
        let interval = if tables.restart == 0 { all } else { tables.restart };
        let intervals = unstuffed(bytes, all.div_ceil(interval))?;
        for (number, data) in intervals.iter().enumerate() {
            let (mut bits, mut run) = (Bits::new(data), Run::default());
            for mcu in number * interval..((number + 1) * interval).min(all) {
                let (x, y) = (mcu % mcus.0, mcu / mcus.0);
                if blocks.is_none() {
                    self.block(scan, 0, (x, y), &codes, &mut bits, &mut run)?;
                    continue;
                }
                for (order, (i, _)) in scan.components.iter().enumerate() {
                    let (h, v) = (self.parts[*i].horizontal, self.parts[*i].vertical);
                    for block in 0..h * v {
                        let at = (x * h + block % h, y * v + block / h);
                        self.block(scan, order, at, &codes, &mut bits, &mut run)?;
                    }
                }
            }
            if bits.overrun() {
                return Err("a scan ends too early".into());
            }
        }
        Ok(())
    }

    /// Notes which coefficients the scan sends, and refuses those that can't follow.
    fn note(&mut self, scan: &Scan, tables: &Tables) -> Result<(), String> {
        let ((first, last), (before, now)) = (scan.band, scan.bits);
        let good = match (self.progressive, first) {
            (false, _) => (first, last, before, now) == (0, 63, 0, 0),
            (true, 0) => last == 0,
            (true, _) => last < 64 && first <= last && scan.components.len() == 1,
        };
        if !good || now > 13 || !(before == 0 || before == now + 1) {
            return Err("a scan has other coefficients than it may have".into());
        }
        for (i, _) in &scan.components {
            let part = &mut self.parts[*i];
            if first > 0 && part.sent[0].is_none() {
                return Err("the first coefficients of a component aren't its first".into());
            }
            for sent in &mut part.sent[first..=last] {
                if *sent != Some(before).filter(|_| before > 0) {
                    return Err("a scan sends coefficients twice, or bits of coefficients that weren't sent".into());
                }
                *sent = Some(now);
            }
            if part.quantization.is_none() {
                let table = tables.quantization[self.numbers[*i]].clone();
                part.quantization = Some(table.ok_or("a table of quantization is missing")?);
            }
        }
        Ok(())
    }

    /// Returns the tables of codes that the scan needs, for each of its components.
    fn codes(&self, scan: &Scan, tables: &Tables) -> Result<Vec<[Option<Arc<Codes>>; 2]>, String> {
        let needs = [scan.band.0 == 0 && scan.bits.0 == 0, scan.band.1 > 0];
        let mut all = Vec::with_capacity(scan.components.len());
        for (_, numbers) in &scan.components {
            let [first, others] =
                [0, 1].map(|class| tables.codes[class][numbers[class]].clone().filter(|_| needs[class]));
            if (needs[0] && first.is_none()) || (needs[1] && others.is_none()) {
                return Err("a table of codes is missing".into());
            }
            all.push([first, others]);
        }
        Ok(all)
    }

    /// Decodes a block of the scan's component `order`.
    #[inline]
    fn block(
        &mut self,
        scan: &Scan,
        order: usize,
        (x, y): (usize, usize),
        codes: &[[Option<Arc<Codes>>; 2]],
        bits: &mut Bits<'_>,
        run: &mut Run,
    ) -> Result<(), String> {
        let part = &mut self.parts[scan.components[order].0];
        if self.progressive {
            let block = &mut part.coefficients[y * part.stored.0 + x];
            return match (&codes[order], scan.bits, scan.band.0) {
                ([Some(first), _], (0, low), 0) => {
                    run.last[order] = run.last[order].wrapping_add(bits.difference(first)?);
                    block[0] = (run.last[order] << low) as i16;
                    Ok(())
                }
                (_, (_, low), 0) => {
                    block[0] |= (bits.number(1) << low) as i16;
                    Ok(())
                }
                ([_, Some(others)], (0, low), _) => first_bits(block, scan.band, low, others, bits, run),
                ([_, Some(others)], (_, low), _) => more_bits(block, scan.band, low, others, bits, run),
                _ => Err("a table of codes is missing".into()),
            };
        }
        let ([Some(first), Some(others)], Some(quantization)) = (&codes[order], &part.quantization) else {
            return Err("a table is missing".into());
        };
        let mut block = [0i16; 64];
        run.last[order] = run.last[order].wrapping_add(bits.difference(first)?);
        block[0] = run.last[order] as i16;
        let mut at = 1;
        while at < 64 {
            let (value, zeros) = bits.coefficient(others)?;
            if value == 0 {
                if zeros < 15 {
                    break;
                }
                at += 16;
                continue;
            }
            at += usize::from(zeros);
            let place = *ZIGZAG.get(at).ok_or("a block has more than 64 coefficients")?;
            block[usize::from(place)] = value;
            at += 1;
        }
        let stride = part.plane.stride;
        let samples = &mut part.plane.samples[y * 8 * stride + x * 8..];
        if at == 1 {
            idct::flat(block[0], quantization[0], samples, stride);
        } else {
            wide::block(&block, quantization, samples, stride);
        }
        Ok(())
    }

    /// Returns the planes of samples.
    ///
    /// # Errors
    /// If coefficients weren't sent, or not all of their bits. libjpeg would guess them.
    pub fn planes(mut self) -> Result<Vec<Plane>, String> {
        for part in &mut self.parts {
            if part.sent.iter().any(|sent| *sent != Some(0)) {
                return Err("scans are missing: it wasn't written completely".into());
            }
            if !self.progressive {
                continue;
            }
            let Some(quantization) = &part.quantization else {
                return Err("a table of quantization is missing".into());
            };
            let stride = part.plane.stride;
            for (i, block) in part.coefficients.iter().enumerate() {
                let (x, y) = (i % part.stored.0, i / part.stored.0);
                wide::block(block, quantization, &mut part.plane.samples[y * 8 * stride + x * 8..], stride);
            }
            part.coefficients = Vec::new();
        }
        Ok(self.parts.into_iter().map(|part| part.plane).collect())
    }
}

impl Frame {
    /// The most samples that a component has in each direction.
    pub fn most(&self) -> (usize, usize) {
        let most = |factor: fn(&Component) -> usize| self.components.iter().map(factor).max().unwrap_or(1);
        (most(|component| component.horizontal), most(|component| component.vertical))
    }
}

/// The first bits of the coefficients `band`, down to the bit `low`.
fn first_bits(
    block: &mut [i16; 64],
    band: (usize, usize),
    low: u32,
    codes: &Codes,
    bits: &mut Bits<'_>,
    run: &mut Run,
) -> Result<(), String> {
    if run.blocks > 0 {
        run.blocks -= 1;
        return Ok(());
    }
    let mut at = band.0;
    while at <= band.1 {
        let (value, zeros) = bits.coefficient(codes)?;
        if value == 0 {
            if zeros < 15 {
                run.blocks = (1 << zeros) - 1 + bits.number(zeros.into());
                break;
            }
            at += 16;
            continue;
        }
        at += usize::from(zeros);
        let place = *ZIGZAG[..=band.1].get(at).ok_or("a scan has coefficients behind its band")?;
        block[usize::from(place)] = value.wrapping_shl(low);
        at += 1;
    }
    Ok(())
}

/// The bit `low` of the coefficients `band`.
fn more_bits(
    block: &mut [i16; 64],
    band: (usize, usize),
    low: u32,
    codes: &Codes,
    bits: &mut Bits<'_>,
    run: &mut Run,
) -> Result<(), String> {
    let bit = 1i16.wrapping_shl(low);
    let mut at = band.0;
    // Adds a bit to a coefficient that isn't zero.
    let refine = |value: &mut i16, bits: &mut Bits<'_>| {
        if bits.number(1) == 1 && *value & bit == 0 {
            *value = if *value >= 0 { value.wrapping_add(bit) } else { value.wrapping_sub(bit) };
        }
    };
    if run.blocks == 0 {
        while at <= band.1 {
            let symbol = bits.symbol(codes)?;
            let (mut zeros, size) = (symbol >> 4, symbol & 15);
            let value = match size {
                0 if zeros < 15 => {
                    run.blocks = (1 << zeros) + bits.number(zeros.into());
                    break;
                }
                0 => 0,
                1 => {
                    if bits.number(1) == 1 {
                        bit
                    } else {
                        bit.wrapping_neg()
                    }
                }
                _ => return Err("a new coefficient has more than one bit".into()),
            };
            // Coefficients that aren't zero get a bit, until as many zeros are passed.
            loop {
                let Some(&place) = ZIGZAG[..=band.1].get(at) else {
                    if value != 0 {
                        return Err("a scan has coefficients behind its band".into());
                    }
                    break;
                };
                let coefficient = &mut block[usize::from(place)];
                at += 1;
                if *coefficient != 0 {
                    refine(coefficient, bits);
                } else if zeros == 0 {
                    *coefficient = value;
                    break;
                } else {
                    zeros -= 1;
                }
            }
        }
    }
    if run.blocks > 0 {
        run.blocks -= 1;
        for &place in &ZIGZAG[at..=band.1] {
            let coefficient = &mut block[usize::from(place)];
            if *coefficient != 0 {
                refine(coefficient, bits);
            }
        }
    }
    Ok(())
}

/// Returns the bytes of a scan between its restarts, without stuffed bytes.
fn unstuffed(bytes: &[u8], intervals: usize) -> Result<Vec<Vec<u8>>, String> {
    let mut out: Vec<Vec<u8>> = Vec::new();
    let mut own = Vec::with_capacity(bytes.len().min(1 << 16));
    let mut rest = bytes;
    while let Some(at) = rest.iter().position(|&byte| byte == 0xff) {
        own.extend_from_slice(&rest[..at]);
        match rest.get(at + 1) {
            Some(0) => own.push(0xff),
            // A byte that fills up.
            Some(0xff) => {
                rest = &rest[at + 1..];
                continue;
            }
            Some(&marker) if usize::from(marker.wrapping_sub(0xd0)) == out.len() % 8 && out.len() + 1 < intervals => {
                out.push(std::mem::take(&mut own));
            }
            Some(_) => return Err("a restart of a scan isn't the one that follows".into()),
            None => {
                rest = &[];
                break;
            }
        }
        rest = &rest[at + 2..];
    }
    own.extend_from_slice(rest);
    out.push(own);
    if out.len() != intervals {
        return Err("a scan ends too early".into());
    }
    Ok(out)
}
