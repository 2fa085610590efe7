//! Symbols that are coded with ANS (ISO/IEC 18181-1, C.2 and C.3).

use super::reader::Reader;

/// Frequencies of a code's symbols add up to this.
const WHOLE: u32 = 1 << 12;
/// What stands for a run in place of a logarithm.
const RUN: u32 = 13;

/// A code: the frequencies of symbols, and for each part of the whole the symbol that has what its own leaves free.
#[derive(Debug)]
pub(super) struct Ans {
    frequencies: Vec<u32>,
    aliases: Vec<Alias>,
    /// The logarithm of the size of a part.
    log_part: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Alias {
    symbol: u32,
    offset: u32,
    /// Where the alias begins within the part.
    from: u32,
}

impl Ans {
    /// Reads a code of at most `1 << log_size` symbols.
    ///
    /// # Errors
    /// If its frequencies are wrong.
    pub fn read(reader: &mut Reader<'_>, log_size: u32) -> Result<Self, String> {
        let frequencies = frequencies(reader, 1 << log_size)?;
        let log_part = 12 - log_size;
        let aliases = aliases(&frequencies, 1 << log_part)?;
        Ok(Self { frequencies, aliases, log_part })
    }

    /// Reads a symbol.
    pub fn symbol(&self, reader: &mut Reader<'_>, state: &mut u32) -> Result<u32, String> {
        let at = *state % WHOLE;
        let (part, place) = (at >> self.log_part, at & ((1 << self.log_part) - 1));
        let alias = self.aliases[part as usize];
        let (symbol, offset) = if place >= alias.from { (alias.symbol, alias.offset + place) } else { (part, place) };
        *state = (*state >> 12) * self.frequencies[symbol as usize] + offset;
        if *state < 1 << 16 {
            *state = *state << 16 | reader.bits(16)?;
        }
        Ok(symbol)
    }
}

fn wrong() -> String {
    "the frequencies of a code are wrong".to_owned()
}

/// Reads the frequencies of symbols below `size`.
fn frequencies(reader: &mut Reader<'_>, size: usize) -> Result<Vec<u32>, String> {
    let mut out = vec![0; size];
    if reader.flag()? {
        let two = reader.flag()?;
        let first = byte(reader)?;
        *out.get_mut(first).ok_or_else(wrong)? = WHOLE;
        if two {
            let second = byte(reader)?;
            let part = reader.bits(12)?;
            if second == first {
                return Err(wrong());
            }
            out[first] = part;
            *out.get_mut(second).ok_or_else(wrong)? = WHOLE - part;
        }
        return Ok(out);
    }
    if reader.flag()? {
        let count = byte(reader)? + 1;
        let even = out.get_mut(..count).ok_or_else(wrong)?;
        let (each, more) = (WHOLE / count as u32, WHOLE as usize % count);
        for (at, frequency) in even.iter_mut().enumerate() {
            *frequency = each + u32::from(at < more);
        }
        return Ok(out);
    }
    uneven(reader, &mut out)?;
    Ok(out)
}

/// Reads frequencies by their logarithms. The most frequent symbol has what the others leave.
fn uneven(reader: &mut Reader<'_>, out: &mut [u32]) -> Result<(), String> {
    let mut bits = 0;
    while bits < 3 && reader.flag()? {
        bits += 1;
    }
    let shift = reader.bits(bits)? + (1 << bits) - 1;
    if shift > 13 {
        return Err(wrong());
    }
    let count = byte(reader)? + 3;
    let out = out.get_mut(..count).ok_or_else(wrong)?;
    // `None` of symbols that have the frequency of the one before.
    let mut logarithms: Vec<Option<u32>> = Vec::with_capacity(count);
    let mut most: Option<(u32, usize)> = None;
    let mut before_run = false;
    while logarithms.len() < count {
        let at = logarithms.len();
        let logarithm = logarithm(reader)?;
        if logarithm == RUN {
            if most.is_some_and(|(_, place)| place + 1 == at) {
                before_run = true;
            }
            logarithms.resize(at + byte(reader)? + 4, None);
            continue;
        }
        if most.is_none_or(|(highest, _)| logarithm > highest) {
            most = Some((logarithm, at));
            before_run = false;
        }
        logarithms.push(Some(logarithm));
    }
    let (_, rest) = most.ok_or_else(wrong)?;
    if logarithms.len() > count || before_run {
        return Err(wrong());
    }
    let (mut sum, mut last) = (0, 0);
    for (at, logarithm) in logarithms.into_iter().enumerate() {
        let frequency = match logarithm {
            _ if at == rest => 0,
            None => last,
            Some(few @ (0 | 1)) => few,
            Some(logarithm) => {
                let whole = logarithm - 1;
                let bits = shift.saturating_sub((12 - whole) >> 1).min(whole);
                (1 << whole) + (reader.bits(bits)? << (whole - bits))
            }
        };
        out[at] = frequency;
        (sum, last) = (sum + frequency, frequency);
        if sum >= WHOLE {
            return Err(wrong());
        }
    }
    out[rest] = WHOLE - sum;
    Ok(())
}

/// Reads a number below 256.
fn byte(reader: &mut Reader<'_>) -> Result<usize, String> {
    if !reader.flag()? {
        return Ok(0);
    }
    let bits = reader.bits(3)?;
    Ok((1 << bits) + reader.bits(bits)? as usize)
}

/// Reads how many bits a frequency has, or [`RUN`].
fn logarithm(reader: &mut Reader<'_>) -> Result<u32, String> {
    let seven = reader.peek(7);
    let (bits, value) = match seven & 7 {
        0 => (3, 10),
        2 => (3, 7),
        4 => (3, 6),
        5 => (3, 8),
        6 => (3, 9),
        3 => (4, if seven & 8 == 0 { 3 } else { 1 }),
        7 => (4, if seven & 8 == 0 { 5 } else { 2 }),
        _ if seven & 8 != 0 => (4, 4),
        _ if seven & 16 != 0 => (5, 0),
        _ if seven & 32 != 0 => (6, 11),
        _ => (7, if seven & 64 == 0 { 12 } else { RUN }),
    };
    reader.skip(bits)?;
    Ok(value)
}

/// Divides the whole into parts of the same size, of which each has one symbol or two.
fn aliases(frequencies: &[u32], part: u32) -> Result<Vec<Alias>, String> {
    if let Some(symbol) = frequencies.iter().position(|&frequency| frequency == WHOLE) {
        let alias = |at: usize| Alias { symbol: symbol as u32, offset: part * at as u32, from: 0 };
        return Ok((0..frequencies.len()).map(alias).collect());
    }
    let mut own = frequencies.to_vec();
    let mut aliases = vec![Alias::default(); own.len()];
    let mut short: Vec<usize> = (0..own.len()).filter(|&at| own[at] < part).collect();
    let mut long: Vec<usize> = (0..own.len()).filter(|&at| own[at] > part).collect();
    while let (Some(giver), false) = (long.pop(), short.is_empty()) {
        let taker = short.pop().ok_or_else(wrong)?;
        own[giver] -= part - own[taker];
        aliases[taker] = Alias { symbol: giver as u32, offset: own[giver], from: 0 };
        match own[giver].cmp(&part) {
            std::cmp::Ordering::Less => short.push(giver),
            std::cmp::Ordering::Equal => {}
            std::cmp::Ordering::Greater => long.push(giver),
        }
    }
    for (at, (alias, own)) in aliases.iter_mut().zip(own).enumerate() {
        *alias = if own == part {
            Alias { symbol: at as u32, offset: 0, from: 0 }
        } else {
            // The offset counts from the alias's beginning. What a part has is less than its size.
            Alias { offset: alias.offset - own, from: own, ..*alias }
        };
    }
    Ok(aliases)
}
