//! Reads bits forward from the beginning, least significant bit first: in deflate, and in FSE tables of zstd.

/// The bits of a slice.
pub struct Bits<'a> {
    data: &'a [u8],
    /// Bits taken so far.
    at: usize,
}

impl<'a> Bits<'a> {
    /// Begins at the first bit of `data`.
    pub fn new(data: &'a [u8]) -> Self {
        Self { data, at: 0 }
    }

    /// Returns the next `n` bits (at most 24) without taking them. Bits beyond the end are zero.
    pub fn peek(&self, n: u32) -> u32 {
        let byte = self.at / 8;
        let word =
            (0..4).fold(0u32, |word, i| word | u32::from(self.data.get(byte + i).copied().unwrap_or(0)) << (8 * i));
        (word >> (self.at % 8)) & ((1 << n) - 1)
    }

    /// Skips `n` bits. `None` if fewer are left.
    pub fn skip(&mut self, n: u32) -> Option<()> {
        let next = self.at.checked_add(n as usize)?;
        (next <= self.data.len().checked_mul(8)?).then(|| self.at = next)
    }

    /// Takes the next `n` bits (at most 24). `None` if fewer are left.
    pub fn read(&mut self, n: u32) -> Option<u32> {
        let value = self.peek(n);
        self.skip(n).map(|()| value)
    }

    /// Returns the number of bytes from which at least one bit was taken.
    pub fn bytes_used(&self) -> usize {
        self.at.div_ceil(8)
    }
}
