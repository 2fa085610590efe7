//! Reads the descriptions of zstd's entropy tables: FSE distributions and Huffman weights, RFC 8878 sections 4.1.1 and
//! 4.2.1. The descriptions are decoded, because in most damaged tables the sums are wrong.

use dali_zarr_codecs::bits::Bits;

/// Bits in the longest Huffman code of a literal.
const MAX_CODE_BITS: u32 = 11;

/// An FSE distribution: the number of table cells of each symbol.
pub(super) struct Distribution {
    /// Number of cells of each symbol. -1: one cell, for a symbol of probability "less than 1".
    cells: Vec<i16>,
    /// Base-2 logarithm of the table's number of cells.
    log: u32,
    /// Length of the description in bytes.
    pub(super) used: usize,
}

/// Reads an FSE table description with at most `max_symbol + 1` symbols and at most `1 << max_log` cells.
pub(super) fn distribution(data: &[u8], max_symbol: usize, max_log: u32) -> Option<Distribution> {
    let mut bits = Bits::new(data);
    let log = bits.read(4)? + 5;
    if log > max_log {
        return None;
    }
    let mut left = 1i32 << log;
    let mut cells = Vec::new();
    while left > 0 {
        if cells.len() > max_symbol {
            return None;
        }
        // The value lies between 0 and left + 1. The lowest values take one bit less.
        let width = (left as u32 + 1).ilog2() + 1;
        let short = (1 << width) - 1 - (left + 1);
        let low = bits.peek(width - 1) as i32;
        let value = if low < short {
            bits.skip(width - 1)?;
            low
        } else {
            let value = bits.read(width)? as i32;
            if value >= 1 << (width - 1) { value - short } else { value }
        };
        let count = value - 1;
        left -= count.abs();
        cells.push(count as i16);
        if count == 0 {
            loop {
                let zeros = bits.read(2)?;
                cells.resize(cells.len() + zeros as usize, 0);
                if cells.len() > max_symbol + 1 {
                    return None;
                }
                if zeros < 3 {
                    break;
                }
            }
        }
    }
    (left == 0).then(|| Distribution { cells, log, used: bits.bytes_used() })
}

/// One cell of a decoding table.
#[derive(Clone, Copy, Default)]
struct Cell {
    symbol: u8,
    bits: u8,
    base: u16,
}

impl Distribution {
    /// Makes the decoding table: spreads the symbols over the cells. `None` if the distribution is invalid.
    fn table(&self) -> Option<Vec<Cell>> {
        let size = 1usize << self.log;
        let mut table = vec![Cell::default(); size];
        let mut high = size;
        for (symbol, _) in self.cells.iter().enumerate().filter(|(_, count)| **count < 0) {
            high = high.checked_sub(1)?;
            table[high].symbol = symbol as u8;
        }
        let (step, mask) = ((size >> 1) + (size >> 3) + 3, size - 1);
        let mut at = 0;
        for (symbol, &count) in self.cells.iter().enumerate() {
            for _ in 0..count.max(0) {
                table[at].symbol = symbol as u8;
                loop {
                    at = (at + step) & mask;
                    if at < high {
                        break;
                    }
                    // Without ordinary cells this loop would not end.
                    if high == 0 {
                        return None;
                    }
                }
            }
        }
        let mut next: Vec<u32> = self.cells.iter().map(|count| u32::from(count.unsigned_abs())).collect();
        for cell in &mut table {
            let state = next.get_mut(usize::from(cell.symbol)).filter(|state| **state > 0)?;
            let bits = self.log.checked_sub(state.ilog2())?;
            cell.bits = bits as u8;
            cell.base = ((*state << bits) - (1 << self.log)) as u16;
            *state += 1;
        }
        Some(table)
    }
}

/// A Huffman table: the lengths of its shortest and its longest code in bits, and of its description in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Huffman {
    shortest: u32,
    longest: u32,
    pub(super) used: usize,
}

impl Huffman {
    /// Whether the codes of `symbols` symbols can fill exactly the bits of `stream`. False if the stream has no end
    /// mark.
    pub(super) fn fits(&self, stream: &[u8], symbols: usize) -> bool {
        let Some(bits) = BackwardBits::new(stream) else { return false };
        (symbols * self.shortest as usize..=symbols * self.longest as usize).contains(&bits.left())
    }
}

/// Reads a Huffman table description.
pub(super) fn huffman(data: &[u8]) -> Option<Huffman> {
    let header = usize::from(*data.first()?);
    let (mut weights, used) = if header >= 128 {
        let n = header - 127;
        let packed = data.get(1..1 + n.div_ceil(2))?;
        let weights: Vec<u8> =
            (0..n).map(|i| if i % 2 == 0 { packed[i / 2] >> 4 } else { packed[i / 2] & 15 }).collect();
        (weights, 1 + packed.len())
    } else {
        (compressed_weights(data.get(1..1 + header)?)?, 1 + header)
    };
    if weights.len() > 255 || weights.iter().any(|&w| u32::from(w) > MAX_CODE_BITS) {
        return None;
    }
    let sum: u32 = weights.iter().filter(|w| **w > 0).map(|&w| 1 << (w - 1)).sum();
    // The last weight isn't stored. It makes the sum a power of two.
    let longest = sum.checked_ilog2()? + 1;
    let rest = (1u32 << longest) - sum;
    if longest > MAX_CODE_BITS || !rest.is_power_of_two() {
        return None;
    }
    weights.push(rest.ilog2() as u8 + 1);
    let ones = weights.iter().filter(|w| **w == 1).count();
    if ones < 2 || ones % 2 != 0 {
        return None;
    }
    let largest = u32::from(*weights.iter().max()?);
    Some(Huffman { shortest: longest + 1 - largest, longest, used })
}

/// Decodes FSE-compressed weights: two states take turns until the bits run out.
fn compressed_weights(data: &[u8]) -> Option<Vec<u8>> {
    let distribution = distribution(data, 255, 6)?;
    let table = distribution.table()?;
    let mut bits = BackwardBits::new(data.get(distribution.used..)?)?;
    let mut states = [bits.read(distribution.log)? as usize, bits.read(distribution.log)? as usize];
    let mut weights = Vec::new();
    loop {
        for turn in 0..2 {
            let cell = table.get(states[turn])?;
            weights.push(cell.symbol);
            if weights.len() > 255 {
                return None;
            }
            match bits.read(u32::from(cell.bits)) {
                Some(more) => states[turn] = usize::from(cell.base) + more as usize,
                None => {
                    // The symbol of the other state is the last one.
                    weights.push(table.get(states[1 - turn])?.symbol);
                    return (weights.len() <= 255).then_some(weights);
                }
            }
        }
    }
}

/// Reads bits backward from the end, as zstd's entropy-coded streams are read (RFC 8878 section 4.1). The highest set bit of the last byte marks the end; reading begins below it.
struct BackwardBits<'a> {
    data: &'a [u8],
    left: usize,
}

impl<'a> BackwardBits<'a> {
    /// `None` if `data` is empty, or its last byte is zero and so has no end mark.
    fn new(data: &'a [u8]) -> Option<Self> {
        let last = *data.last()?;
        let mark = last.checked_ilog2()? as usize;
        Some(Self { data, left: (data.len() - 1) * 8 + mark })
    }

    /// Returns the number of bits left.
    fn left(&self) -> usize {
        self.left
    }

    /// Takes `n` bits (at most 16). If fewer are left, takes them all and returns `None`.
    fn read(&mut self, n: u32) -> Option<u32> {
        let Some(left) = self.left.checked_sub(n as usize) else {
            self.left = 0;
            return None;
        };
        self.left = left;
        let byte = left / 8;
        let word =
            (0..3).fold(0u32, |word, i| word | u32::from(self.data.get(byte + i).copied().unwrap_or(0)) << (8 * i));
        Some((word >> (left % 8)) & ((1 << n) - 1))
    }
}
