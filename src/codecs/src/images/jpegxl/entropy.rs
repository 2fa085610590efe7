//! Entropy coded numbers (ISO/IEC 18181-1, annex C): prefix codes or ANS, contexts that share codes, copies of what was
//! decoded (LZ77), and numbers that are partly bits.
//!
//! The crate builds tables as large as a code says, of which there may be 256. [`MOST_SYMBOLS`] is the limit here.

use super::ans::Ans;
use super::prefix::Prefix;
use super::reader::{Reader, ceil_log2};

/// The most symbols of all prefix codes of a stream. libjxl writes fewer than 400 for a code, and few codes.
const MOST_SYMBOLS: usize = 1 << 14;
/// The most numbers that copies can go back.
const WINDOW: usize = 1 << 20;

/// How numbers are made of a symbol and bits.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Hybrid {
    split: u32,
    high: u32,
    low: u32,
}

/// How some streams of numbers are coded.
#[derive(Debug)]
pub(super) struct Code {
    copies: Option<Copies>,
    /// The code of each context.
    map: Vec<u8>,
    hybrids: Vec<Hybrid>,
    symbols: Symbols,
}

#[derive(Debug)]
enum Symbols {
    Prefix(Vec<Prefix>),
    Ans(Vec<Ans>),
}

#[derive(Clone, Copy, Debug)]
struct Copies {
    least_symbol: u32,
    least_length: u32,
    length: Hybrid,
}

impl Hybrid {
    fn read(reader: &mut Reader<'_>, log_size: u32) -> Result<Self, String> {
        let split = reader.bits(ceil_log2(log_size + 1))?;
        if split == log_size {
            return Ok(Self { split, high: 0, low: 0 });
        }
        let wrong = || "the form of coded numbers is wrong".to_owned();
        let high = reader.bits(ceil_log2(split + 1))?;
        let low = reader.bits(ceil_log2(split.checked_sub(high).ok_or_else(wrong)? + 1))?;
        if high + low > split || split > log_size { Err(wrong()) } else { Ok(Self { split, high, low }) }
    }

    fn number(self, symbol: u32, reader: &mut Reader<'_>) -> Result<u32, String> {
        let Self { split, high, low } = self;
        let Some(above) = symbol.checked_sub(1 << split) else { return Ok(symbol) };
        let bits = split - high - low + (above >> (high + low));
        if bits + high + low > 31 {
            return Err("a coded number is too large".to_owned());
        }
        let top = 1 << high | symbol >> low & ((1 << high) - 1);
        Ok((top << bits | reader.bits(bits)?) << low | symbol & ((1 << low) - 1))
    }
}

impl Code {
    /// Reads the code of numbers with so many contexts.
    ///
    /// # Errors
    /// If it is damaged, or larger than any that libjxl writes.
    pub fn read(reader: &mut Reader<'_>, contexts: usize) -> Result<Self, String> {
        Self::read_within(reader, contexts, 0)
    }

    /// As [`Code::read`], inside so many maps of contexts.
    fn read_within(reader: &mut Reader<'_>, mut contexts: usize, depth: u32) -> Result<Self, String> {
        let mut copies = None;
        if reader.flag()? {
            if depth > 1 {
                return Err("it has copies in a code that has none".to_owned());
            }
            let least_symbol = reader.number([(0, 224), (0, 512), (0, 4096), (15, 8)])?;
            let least_length = reader.number([(0, 3), (0, 4), (2, 5), (8, 9)])?;
            copies = Some(Copies { least_symbol, least_length, length: Hybrid::read(reader, 8)? });
            contexts += 1;
        }
        let map = if contexts > 1 { context_map(reader, contexts, depth)? } else { vec![0] };
        let count = map.iter().max().map_or(0, |&most| usize::from(most) + 1);
        let prefix = reader.flag()?;
        let log_size = if prefix { 15 } else { 5 + reader.bits(2)? };
        let hybrids = (0..count).map(|_| Hybrid::read(reader, log_size)).collect::<Result<_, _>>()?;
        let symbols = if prefix {
            let sizes = (0..count).map(|_| size(reader)).collect::<Result<Vec<_>, _>>()?;
            if sizes.iter().sum::<usize>() > MOST_SYMBOLS || sizes.iter().any(|&size| size >= 1 << 15) {
                return Err("its prefix codes have too many symbols".to_owned());
            }
            Symbols::Prefix(sizes.into_iter().map(|size| Prefix::read(reader, size)).collect::<Result<_, _>>()?)
        } else {
            Symbols::Ans((0..count).map(|_| Ans::read(reader, log_size)).collect::<Result<_, _>>()?)
        };
        Ok(Self { copies, map, hybrids, symbols })
    }
}

/// Reads the number of symbols of a prefix code.
fn size(reader: &mut Reader<'_>) -> Result<usize, String> {
    if !reader.flag()? {
        return Ok(1);
    }
    let bits = reader.bits(4)?;
    Ok(1 + (1 << bits) + reader.bits(bits)? as usize)
}

/// Reads the code of each context.
pub(super) fn context_map(reader: &mut Reader<'_>, contexts: usize, depth: u32) -> Result<Vec<u8>, String> {
    let map: Vec<u8> = if reader.flag()? {
        let bits = reader.bits(2)?;
        (0..contexts).map(|_| reader.bits(bits).map(|code| code as u8)).collect::<Result<_, _>>()?
    } else {
        let moved = reader.flag()?;
        // A map of two contexts has no copies, so that maps are inside each other twice at most.
        let code = Code::read_within(reader, 1, if contexts > 2 { depth + 1 } else { 2 })?;
        let mut numbers = Numbers::new(&code, reader, 0)?;
        let mut map = (0..contexts)
            .map(|_| u8::try_from(numbers.next(reader, 0)?).map_err(|_| "a context has a wrong code".to_owned()))
            .collect::<Result<Vec<_>, _>>()?;
        numbers.finish()?;
        if moved {
            let mut recent: [u8; 256] = std::array::from_fn(|code| code as u8);
            for code in &mut map {
                let at = usize::from(*code);
                *code = recent[at];
                recent[..=at].rotate_right(1);
            }
        }
        map
    };
    let mut used = [false; 256];
    map.iter().for_each(|&code| used[usize::from(code)] = true);
    let count = map.iter().max().map_or(0, |&most| usize::from(most) + 1);
    if used[..count].iter().all(|&used| used) { Ok(map) } else { Err("a code has no contexts".to_owned()) }
}

/// Numbers of a stream, which may be copies of those before.
pub(super) struct Numbers<'a> {
    code: &'a Code,
    state: u32,
    window: Vec<u32>,
    decoded: usize,
    copy: usize,
    left: u32,
    /// The width of the widest channel, by which distances of copies go up.
    width: usize,
    near: Vec<(i32, i32)>,
}

impl<'a> Numbers<'a> {
    /// Begins a stream of the code. `width` is zero if there is no image.
    pub fn new(code: &'a Code, reader: &mut Reader<'_>, width: usize) -> Result<Self, String> {
        let state = if matches!(code.symbols, Symbols::Ans(_)) { reader.bits(32)? } else { 0 };
        let near = if code.copies.is_some() && width > 0 { near() } else { Vec::new() };
        Ok(Self { code, state, window: Vec::new(), decoded: 0, copy: 0, left: 0, width, near })
    }

    fn symbol(&mut self, reader: &mut Reader<'_>, code: usize) -> Result<u32, String> {
        match &self.code.symbols {
            Symbols::Prefix(codes) => codes[code].symbol(reader),
            Symbols::Ans(codes) => codes[code].symbol(reader, &mut self.state),
        }
    }

    /// Returns the next number, of a context.
    pub fn next(&mut self, reader: &mut Reader<'_>, context: usize) -> Result<u32, String> {
        let code = usize::from(self.code.map[context]);
        let Some(copies) = self.code.copies else {
            let symbol = self.symbol(reader, code)?;
            return self.code.hybrids[code].number(symbol, reader);
        };
        if self.left == 0 {
            let symbol = self.symbol(reader, code)?;
            let Some(length) = symbol.checked_sub(copies.least_symbol) else {
                let number = self.code.hybrids[code].number(symbol, reader)?;
                self.keep(number);
                return Ok(number);
            };
            let wrong = || "it copies what isn't there".to_owned();
            self.left = copies.length.number(length, reader)?.checked_add(copies.least_length).ok_or_else(wrong)?;
            let code = self.code.map.last().map_or(0, |&code| usize::from(code));
            let symbol = self.symbol(reader, code)?;
            let distance = self.distance(self.code.hybrids[code].number(symbol, reader)?);
            self.copy = self.decoded.checked_sub(distance.min(WINDOW).min(self.decoded)).ok_or_else(wrong)?;
            if self.decoded == 0 {
                return Err(wrong());
            }
        }
        self.left -= 1;
        let number = self.window[self.copy % WINDOW];
        self.copy += 1;
        self.keep(number);
        Ok(number)
    }

    fn keep(&mut self, number: u32) {
        match self.window.get_mut(self.decoded % WINDOW) {
            Some(place) => *place = number,
            None => self.window.push(number),
        }
        self.decoded += 1;
    }

    fn distance(&self, coded: u32) -> usize {
        match self.near.get(coded as usize) {
            Some(&(x, y)) => {
                let distance = self.width as i64 * i64::from(y) + i64::from(x);
                usize::try_from(distance).unwrap_or(1).max(1)
            }
            None => coded as usize - self.near.len() + 1,
        }
    }

    /// Ends the stream.
    ///
    /// # Errors
    /// If the state of ANS isn't what an encoder begins with.
    pub fn finish(self) -> Result<(), String> {
        let good = matches!(self.code.symbols, Symbols::Prefix(_)) || self.state == 0x13_0000;
        if good { Ok(()) } else { Err("a stream of coded numbers has a wrong end".to_owned()) }
    }
}

/// Returns the places that the first 120 distances stand for: those on the left and above, nearest first.
fn near() -> Vec<(i32, i32)> {
    let mut places: Vec<(i32, i32)> =
        (0..8).flat_map(|y| (-7..=8).map(move |x| (x, y))).filter(|&(x, y)| y > 0 || x > 0).collect();
    places.sort_by_key(|&(x, y)| (x * x + y * y, x.abs(), x < 0));
    places
}

/// Returns the signed number that a number stands for.
pub(super) fn signed(number: u32) -> i32 {
    (number >> 1) as i32 ^ -((number & 1) as i32)
}

#[cfg(test)]
mod tests {
    use super::near;

    #[test]
    fn distances_of_copies() {
        let near = near();
        assert_eq!(near.len(), 120);
        assert_eq!(near[..6], [(0, 1), (1, 0), (1, 1), (-1, 1), (0, 2), (2, 0)]);
        assert_eq!(near[112..116], [(-6, 7), (7, 6), (-7, 6), (8, 5)]);
        assert_eq!(near[116..], [(7, 7), (-7, 7), (8, 6), (8, 7)]);
    }
}
