//! Bits of a JPEG XL codestream (ISO/IEC 18181-1, clauses 4 and 9.2), least significant first, and the numbers that
//! headers are made of.

/// What is said of a codestream that ends too soon.
pub(super) const TRUNCATED: &str = "it is truncated";

/// A number that two bits choose the form of: each form has some bits and what is added to them.
pub(super) type Forms = [(u32, u32); 4];

/// Reads bits of a slice.
#[derive(Clone)]
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    /// The number of bits taken.
    at: usize,
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Returns the next `n` bits, at most 32, without taking them. Bits beyond the end are zero.
    pub fn peek(&self, n: u32) -> u32 {
        let byte = self.at / 8;
        let word = match self.bytes.get(byte..).and_then(|rest| rest.first_chunk::<8>()) {
            Some(eight) => u64::from_le_bytes(*eight),
            None => {
                (0..8).fold(0, |word, i| word | u64::from(self.bytes.get(byte + i).copied().unwrap_or(0)) << (8 * i))
            }
        };
        (word >> (self.at % 8) & ((1 << n) - 1)) as u32
    }

    /// Skips `n` bits.
    ///
    /// # Errors
    /// If fewer are left.
    pub fn skip(&mut self, n: u32) -> Result<(), String> {
        let end = self.at + n as usize;
        if end > self.bytes.len() * 8 {
            return Err(TRUNCATED.to_owned());
        }
        self.at = end;
        Ok(())
    }

    /// Takes `n` bits, at most 32.
    pub fn bits(&mut self, n: u32) -> Result<u32, String> {
        let value = self.peek(n);
        self.skip(n).map(|()| value)
    }

    pub fn flag(&mut self) -> Result<bool, String> {
        self.bits(1).map(|bit| bit == 1)
    }

    /// Takes a number of one of four forms.
    pub fn number(&mut self, forms: Forms) -> Result<u32, String> {
        let (bits, more) = forms[self.bits(2)? as usize];
        self.bits(bits)?.checked_add(more).ok_or_else(|| "a number is too large".to_owned())
    }

    /// Takes a member of an enumeration.
    pub fn member(&mut self) -> Result<u32, String> {
        self.number([(0, 0), (0, 1), (4, 2), (6, 18)])
    }

    /// Takes a number of up to 64 bits.
    pub fn long(&mut self) -> Result<u64, String> {
        match self.bits(2)? {
            0 => Ok(0),
            1 => Ok(1 + u64::from(self.bits(4)?)),
            2 => Ok(17 + u64::from(self.bits(8)?)),
            _ => {
                let mut value = u64::from(self.bits(12)?);
                let mut shift = 12;
                while self.flag()? {
                    let bits = if shift == 60 { 4 } else { 8 };
                    value |= u64::from(self.bits(bits)?) << shift;
                    if bits == 4 {
                        break;
                    }
                    shift += 8;
                }
                Ok(value)
            }
        }
    }

    /// Takes a float of 16 bits.
    ///
    /// # Errors
    /// If it isn't finite.
    pub fn float(&mut self) -> Result<f32, String> {
        let value = half::f16::from_bits(self.bits(16)? as u16);
        if value.is_finite() { Ok(value.to_f32()) } else { Err("a float isn't finite".to_owned()) }
    }

    /// Skips the zeros before the next byte.
    ///
    /// # Errors
    /// If they aren't zeros.
    pub fn align(&mut self) -> Result<(), String> {
        let padding = (8 - self.at % 8) % 8;
        if self.bits(padding as u32)? == 0 { Ok(()) } else { Err("the padding of a header isn't zero".to_owned()) }
    }

    /// Refuses extensions of a header, none of which are defined.
    pub fn no_extensions(&mut self, of: &str) -> Result<(), String> {
        if self.long()? == 0 { Ok(()) } else { Err(format!("{of} has extensions, which have no decoder")) }
    }

    /// Takes what is left, from the next byte on.
    pub fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at.div_ceil(8)..).unwrap_or_default()
    }
}

/// Returns the smallest `n` for which 2^n isn't less than `value`.
pub(super) fn ceil_log2(value: u32) -> u32 {
    value.next_power_of_two().trailing_zeros()
}
