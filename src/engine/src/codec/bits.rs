//! Readers of bits, least significant bit first: [`Bits`] reads forward from the beginning (deflate, FSE tables),
//! [`BackwardBits`] backward from the end (zstd's entropy-coded streams, RFC 8878 section 4.1).

/// Reads bits forward.
pub(super) struct Bits<'a> {
    data: &'a [u8],
    /// Bits taken so far.
    at: usize,
}

impl<'a> Bits<'a> {
    pub(super) fn new(data: &'a [u8]) -> Self {
        Self { data, at: 0 }
    }

    /// Returns the next `n` bits (at most 24) without taking them. Bits beyond the end are zero.
    pub(super) fn peek(&self, n: u32) -> u32 {
        let byte = self.at / 8;
        let word =
            (0..4).fold(0u32, |word, i| word | u32::from(self.data.get(byte + i).copied().unwrap_or(0)) << (8 * i));
        (word >> (self.at % 8)) & ((1 << n) - 1)
    }

    /// Skips `n` bits. `None` if fewer are left.
    pub(super) fn skip(&mut self, n: u32) -> Option<()> {
        let next = self.at.checked_add(n as usize)?;
        (next <= self.data.len().checked_mul(8)?).then(|| self.at = next)
    }

    /// Takes the next `n` bits (at most 24). `None` if fewer are left.
    pub(super) fn read(&mut self, n: u32) -> Option<u32> {
        let value = self.peek(n);
        self.skip(n).map(|()| value)
    }

    /// Returns the number of bytes from which at least one bit was taken.
    pub(super) fn bytes_used(&self) -> usize {
        self.at.div_ceil(8)
    }
}

/// Reads bits backward. The highest set bit of the last byte marks the end; reading begins below it.
pub(super) struct BackwardBits<'a> {
    data: &'a [u8],
    left: usize,
}

impl<'a> BackwardBits<'a> {
    /// `None` if `data` is empty, or its last byte is zero and so has no end mark.
    pub(super) fn new(data: &'a [u8]) -> Option<Self> {
        let last = *data.last()?;
        let mark = last.checked_ilog2()? as usize;
        Some(Self { data, left: (data.len() - 1) * 8 + mark })
    }

    /// Returns the number of bits left.
    pub(super) fn left(&self) -> usize {
        self.left
    }

    /// Takes `n` bits (at most 16). If fewer are left, takes them all and returns `None`.
    pub(super) fn read(&mut self, n: u32) -> Option<u32> {
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
