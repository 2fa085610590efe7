//! Huffman codes of JPEG, and the bits of a scan.

/// Codes up to this length are found in a table.
const FAST: u32 = 10;

/// A table of codes.
#[derive(Debug)]
pub(super) struct Codes {
    /// By the next [`FAST`] bits: the symbol, and the length of its code above it. 0: the code is longer.
    fast: Vec<u16>,
    /// By the next [`FAST`] bits, for coefficients: the value, the run of zeros before it and the length of the code
    /// with the value. 0: they don't fit into the bits.
    values: Vec<(i16, u8, u8)>,
    /// For each length: one more than its largest code, with 16 bits. And what to add to a code to get its symbol's
    /// place.
    limits: [(u32, i32); 17],
    symbols: Vec<u8>,
}

impl Codes {
    /// Makes the codes of a table: the number of codes of each length from 1 to 16, and their symbols.
    pub fn new(counts: &[u8; 16], symbols: &[u8]) -> Result<Self, String> {
        let mut codes = Self {
            fast: vec![0; 1 << FAST],
            values: vec![(0, 0, 0); 1 << FAST],
            limits: [(0, 0); 17],
            symbols: symbols.to_vec(),
        };
        let (mut code, mut place) = (0u32, 0usize);
        for (length, &count) in (1u32..).zip(counts) {
            code <<= 1;
            codes.limits[length as usize].1 = place as i32 - code as i32;
            for _ in 0..count {
                if code >> length != 0 || place >= symbols.len() {
                    return Err("its Huffman codes aren't codes".into());
                }
                if length <= FAST {
                    let (first, many) = (code << (FAST - length), 1 << (FAST - length));
                    let entry = u16::from(symbols[place]) | (length as u16) << 8;
                    codes.fast[first as usize..(first + many) as usize].fill(entry);
                }
                code += 1;
                place += 1;
            }
            codes.limits[length as usize].0 = code << (16 - length);
        }
        for bits in 0..1u32 << FAST {
            let entry = codes.fast[bits as usize];
            let (length, run, size) = (u32::from(entry >> 8), (entry >> 4) as u8 & 15, u32::from(entry & 15));
            if length > 0 && size > 0 && length + size <= FAST {
                let value = bits >> (FAST - length - size) & ((1 << size) - 1);
                codes.values[bits as usize] = (extended(value, size), run, (length + size) as u8);
            }
        }
        Ok(codes)
    }
}

/// Returns the value of `size` bits: those that begin with 0 are negative.
#[inline(always)]
fn extended(bits: u32, size: u32) -> i16 {
    let (bits, half) = (bits as i32, 1i32 << size >> 1);
    (if bits < half { bits - (1 << size) + 1 } else { bits }) as i16
}

/// The bits of a scan between two restarts, without stuffed bytes. Behind the end are zeros.
pub(super) struct Bits<'a> {
    data: &'a [u8],
    /// Bytes read, with zeros behind the end.
    read: usize,
    /// The next bits, from the highest one.
    next: u64,
    /// The number of bits in `next`.
    count: u32,
}

impl<'a> Bits<'a> {
    pub fn new(data: &'a [u8]) -> Self {
        Self { data, read: 0, next: 0, count: 0 }
    }

    /// Whether more bits were taken than there are.
    pub fn overrun(&self) -> bool {
        self.read * 8 - self.count as usize > self.data.len() * 8
    }

    /// Reads until there are at least 48 bits.
    #[inline(always)]
    fn fill(&mut self) {
        if self.count >= 48 {
            return;
        }
        if let Some(eight) = self.data.get(self.read..).and_then(|rest| rest.first_chunk::<8>()) {
            // Bits behind those that count are the first of the next byte, which is read again.
            self.next |= u64::from_be_bytes(*eight) >> self.count;
            let bytes = (63 - self.count) / 8;
            self.read += bytes as usize;
            self.count += 8 * bytes;
            return;
        }
        while self.count <= 48 {
            let byte = self.data.get(self.read).copied().unwrap_or(0);
            self.next |= u64::from(byte) << (56 - self.count);
            self.read += 1;
            self.count += 8;
        }
    }

    #[inline(always)]
    fn skip(&mut self, bits: u32) {
        self.next <<= bits;
        self.count -= bits;
    }

    /// Takes up to 16 bits. There must be enough.
    #[inline(always)]
    fn take(&mut self, bits: u32) -> u32 {
        let value = (self.next >> 32 >> (32 - bits)) as u32;
        self.skip(bits);
        value
    }

    /// Takes a number of up to 16 bits.
    pub fn number(&mut self, bits: u32) -> u32 {
        self.fill();
        self.take(bits)
    }

    /// Takes a code. There must be 16 bits.
    #[inline(always)]
    fn code(&mut self, codes: &Codes) -> Result<u8, String> {
        let entry = codes.fast[(self.next >> (64 - FAST)) as usize];
        if entry != 0 {
            self.skip(u32::from(entry >> 8));
            return Ok(entry as u8);
        }
        let sixteen = (self.next >> 48) as u32;
        for length in FAST as usize + 1..=16 {
            let (limit, add) = codes.limits[length];
            if sixteen < limit {
                let place = (sixteen >> (16 - length)) as i32 + add;
                let symbol = usize::try_from(place).ok().and_then(|place| codes.symbols.get(place));
                self.skip(length as u32);
                return symbol.copied().ok_or_else(|| "a code has no symbol".into());
            }
        }
        Err("a code has no symbol".into())
    }

    /// Takes a symbol.
    pub fn symbol(&mut self, codes: &Codes) -> Result<u8, String> {
        self.fill();
        self.code(codes)
    }

    /// Takes a code for a number of bits, and a signed value of these bits.
    #[inline(always)]
    pub fn difference(&mut self, codes: &Codes) -> Result<i32, String> {
        self.fill();
        let size = u32::from(self.code(codes)?);
        if size > 15 {
            return Err("a difference has too many bits".into());
        }
        let bits = self.take(size);
        Ok(i32::from(extended(bits, size)))
    }

    /// Takes a coefficient, and the run of zeros before it. The value is 0 after a run of 15 zeros (one more zero), and
    /// at the end of a block or a run of blocks, whose length `run` gives.
    #[inline(always)]
    pub fn coefficient(&mut self, codes: &Codes) -> Result<(i16, u8), String> {
        self.fill();
        let (value, run, length) = codes.values[(self.next >> (64 - FAST)) as usize];
        if length > 0 {
            self.skip(u32::from(length));
            return Ok((value, run));
        }
        let symbol = self.code(codes)?;
        let size = u32::from(symbol & 15);
        let bits = self.take(size);
        Ok((if size == 0 { 0 } else { extended(bits, size) }, symbol >> 4))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_in_order() {
        let data: Vec<u8> = (0..100u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let mut bits = Bits::new(&data);
        let mut at = 0;
        for i in 0..200u32 {
            let size = i % 17;
            if at + size > 800 {
                break;
            }
            let expected =
                (at..at + size).fold(0, |v, bit| v << 1 | u32::from(data[bit as usize / 8] >> (7 - bit % 8) & 1));
            assert_eq!(bits.number(size), expected, "bit {at}");
            at += size;
            assert!(!bits.overrun());
        }
        while !bits.overrun() {
            bits.number(8);
            at += 8;
        }
        assert!((801..=808).contains(&at), "{at}");
    }

    #[test]
    fn codes_of_each_length() {
        // One code of each length, and one more of 16 bits.
        let mut counts = [1u8; 16];
        counts[15] = 2;
        let symbols: Vec<u8> = (1..=17).collect();
        let codes = Codes::new(&counts, &symbols).unwrap();
        // The code of the symbol n has n - 1 ones and a zero; that of 17 has 16 ones.
        let ones = |n: u8| std::iter::repeat_n(true, usize::from(n.min(17)) - 1).chain((n < 17).then_some(false));
        let order = [17, 1, 16, 2, 9, 10, 11, 12, 3, 17, 15];
        let all: Vec<bool> = order.iter().flat_map(|&symbol| ones(symbol)).collect();
        let data: Vec<u8> = all
            .chunks(8)
            .map(|eight| eight.iter().enumerate().fold(0, |byte, (i, &one)| byte | u8::from(one) << (7 - i)))
            .collect();
        let mut bits = Bits::new(&data);
        for expected in order {
            assert_eq!(bits.symbol(&codes).unwrap(), expected);
        }
        assert!(!bits.overrun());
        assert!(Codes::new(&[3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[1, 2, 3]).is_err());
        assert!(Codes::new(&[1; 16], &[1, 2, 3]).is_err());
    }
}
