//! Prefix codes, which are those of Brotli (RFC 7932, section 3).

use super::reader::{Reader, ceil_log2};

/// Bits of the longest code.
const LONGEST: usize = 15;
/// The order in which the lengths of the codes of lengths stand.
const ORDER: [usize; 18] = [1, 2, 3, 4, 0, 5, 17, 6, 16, 7, 8, 9, 10, 11, 12, 13, 14, 15];

/// A prefix code.
#[derive(Debug)]
pub(super) struct Prefix {
    /// How many symbols have codes of each length.
    counts: [u16; LONGEST + 1],
    /// The symbols, those with short codes first.
    symbols: Vec<u16>,
}

impl Prefix {
    /// Reads a code of symbols below `size`, which is at most 2^15.
    ///
    /// # Errors
    /// If it isn't complete.
    pub fn read(reader: &mut Reader<'_>, size: usize) -> Result<Self, String> {
        if size == 1 {
            return Ok(Self::single(0));
        }
        match reader.bits(2)? {
            1 => Self::simple(reader, size),
            skipped => Self::of_lengths(&lengths(reader, skipped as usize, size)?),
        }
    }

    /// A code of one symbol, which takes no bits.
    fn single(symbol: u16) -> Self {
        Self { counts: [0; LONGEST + 1], symbols: vec![symbol] }
    }

    fn simple(reader: &mut Reader<'_>, size: usize) -> Result<Self, String> {
        let count = reader.bits(2)? as usize + 1;
        let bits = ceil_log2(size as u32);
        let mut symbols = (0..count).map(|_| reader.bits(bits).map(|s| s as u16)).collect::<Result<Vec<_>, _>>()?;
        let lengths: &[usize] = match count {
            1 => return if usize::from(symbols[0]) < size { Ok(Self::single(symbols[0])) } else { Err(wrong()) },
            2 => &[1, 1],
            3 => &[1, 2, 2],
            _ if reader.flag()? => &[1, 2, 3, 3],
            _ => &[2, 2, 2, 2],
        };
        for at in 1..count {
            if symbols[..at].contains(&symbols[at]) {
                return Err(wrong());
            }
        }
        if symbols.iter().any(|&symbol| usize::from(symbol) >= size) {
            return Err(wrong());
        }
        let mut counts = [0; LONGEST + 1];
        lengths.iter().for_each(|&length| counts[length] += 1);
        // Those with codes of the same length are in their order.
        let mut from = 0;
        for &count in &counts {
            symbols[from..from + usize::from(count)].sort_unstable();
            from += usize::from(count);
        }
        Ok(Self { counts, symbols })
    }

    fn of_lengths(lengths: &[u8]) -> Result<Self, String> {
        let mut counts = [0; LONGEST + 1];
        let mut used: Vec<u16> = (0..lengths.len() as u16).filter(|&symbol| lengths[usize::from(symbol)] > 0).collect();
        used.sort_by_key(|&symbol| lengths[usize::from(symbol)]);
        used.iter().for_each(|&symbol| counts[usize::from(lengths[usize::from(symbol)])] += 1);
        match *used {
            [] => Err(wrong()),
            [symbol] => Ok(Self::single(symbol)),
            _ => Ok(Self { counts, symbols: used }),
        }
    }

    /// Reads a symbol.
    pub fn symbol(&self, reader: &mut Reader<'_>) -> Result<u32, String> {
        if let [symbol] = *self.symbols {
            return Ok(symbol.into());
        }
        let bits = reader.peek(LONGEST as u32);
        // The code so far, and the first code of its length, less those of shorter ones.
        let (mut code, mut first, mut before) = (0, 0, 0);
        for length in 1..=LONGEST {
            code = code << 1 | bits >> (length - 1) & 1;
            let count = u32::from(self.counts[length]);
            if code < first + count {
                reader.skip(length as u32)?;
                return Ok(self.symbols[(before + code - first) as usize].into());
            }
            before += count;
            first = (first + count) << 1;
        }
        Err(wrong())
    }
}

/// Reads the lengths of the codes of symbols below `size`.
fn lengths(reader: &mut Reader<'_>, skipped: usize, size: usize) -> Result<Vec<u8>, String> {
    let mut own = [0; 18];
    let (mut space, mut codes) = (32, 0);
    for &place in &ORDER[skipped..] {
        if space <= 0 {
            break;
        }
        let four = reader.peek(4);
        let (bits, length) = match (four & 3, four >> 2) {
            (0, _) => (2, 0),
            (1, _) => (2, 4),
            (2, _) => (2, 3),
            (_, 0 | 2) => (3, 2),
            (_, 1) => (4, 1),
            _ => (4, 5),
        };
        reader.skip(bits)?;
        own[place] = length;
        if length > 0 {
            space -= 32 >> length;
            codes += 1;
        }
    }
    if space < 0 || (codes != 1 && space != 0) {
        return Err(wrong());
    }
    let code = Prefix::of_lengths(&own)?;
    let mut lengths = vec![0; size];
    let (mut at, mut space) = (0, 1i64 << LONGEST);
    // The last length that isn't zero, and of a run its length and how long it is.
    let (mut last, mut run) = (8, (0, 0));
    while at < size && space > 0 {
        let symbol = code.symbol(reader)?;
        let (length, count) = if symbol < 16 {
            run = (0, 0);
            if symbol > 0 {
                last = symbol as u8;
            }
            (symbol as u8, 1)
        } else {
            let (length, bits) = if symbol == 16 { (last, 2) } else { (0, 3) };
            let before = if run.0 == length { run.1 } else { 0 };
            let kept = if before > 0 { (before - 2) << bits } else { 0 };
            let all = kept + reader.bits(bits)? as usize + 3;
            run = (length, all);
            (length, all - before)
        };
        lengths.get_mut(at..at + count).ok_or_else(wrong)?.fill(length);
        at += count;
        if length > 0 {
            space -= (count as i64) << (LONGEST - usize::from(length));
        }
    }
    if space == 0 { Ok(lengths) } else { Err(wrong()) }
}

fn wrong() -> String {
    "a prefix code is wrong".to_owned()
}
