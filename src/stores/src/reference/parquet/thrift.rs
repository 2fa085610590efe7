//! Reads Thrift's compact protocol in place. It allocates nothing because of a length in the data, and trusts none of
//! the data.
//!
//! Format: Apache Thrift, "Thrift compact protocol encoding".

use dali_zarr_base::error::{Error, Result};

/// Most levels of nested structures.
const MAX_DEPTH: usize = 16;

/// The numbers of the kinds of values, from here to [`STRUCT`].
pub(super) const TRUE: u8 = 1;
const FALSE: u8 = 2;
const BYTE: u8 = 3;
const I16: u8 = 4;
const I32: u8 = 5;
const I64: u8 = 6;
const DOUBLE: u8 = 7;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const SET: u8 = 10;
const MAP: u8 = 11;
const STRUCT: u8 = 12;

pub(super) fn damaged(what: &str) -> Error {
    Error::damaged(format!("{what}; the Parquet file is damaged"))
}

/// Bytes, and how far they have been read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    depth: usize,
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0, depth: 0 }
    }

    /// Returns the number of bytes that have been read.
    pub fn at(&self) -> usize {
        self.at
    }

    fn byte(&mut self) -> Result<u8> {
        let byte = *self.bytes.get(self.at).ok_or_else(|| damaged("expected more metadata, but found their end"))?;
        self.at += 1;
        Ok(byte)
    }

    fn take(&mut self, len: u64) -> Result<&'a [u8]> {
        let rest = &self.bytes[self.at..];
        let taken = usize::try_from(len).ok().and_then(|len| rest.get(..len));
        let taken =
            taken.ok_or_else(|| damaged("expected metadata that end within the file, but found longer ones"))?;
        self.at += taken.len();
        Ok(taken)
    }

    fn varint(&mut self) -> Result<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(damaged("expected a number of at most ten bytes, but found a longer one"))
    }

    /// Reads an integer of any width.
    pub fn int(&mut self) -> Result<i64> {
        let n = self.varint()?;
        Ok((n >> 1) as i64 ^ -((n & 1) as i64))
    }

    /// Reads bytes or text.
    pub fn binary(&mut self) -> Result<&'a [u8]> {
        let len = self.varint()?;
        self.take(len)
    }

    /// Reads a structure, and calls `field` with the number and the kind of each field. `field` reads the value and
    /// returns true, or returns false so that it is skipped.
    ///
    /// # Errors
    /// If the bytes end too early; and the errors of `field`.
    pub fn fields(&mut self, mut field: impl FnMut(&mut Self, i16, u8) -> Result<bool>) -> Result<()> {
        self.deeper()?;
        let mut id = 0i16;
        loop {
            let head = self.byte()?;
            if head == 0 {
                self.depth -= 1;
                return Ok(());
            }
            let (delta, kind) = (head >> 4, head & 15);
            id = match delta {
                0 => self.int()? as i16,
                _ => id.wrapping_add(i16::from(delta)),
            };
            if !field(self, id, kind)? {
                self.skip(kind)?;
            }
        }
    }

    /// Reads a list, and calls `element`, which reads one element, for each.
    ///
    /// # Errors
    /// As [`Self::fields`].
    pub fn list(&mut self, mut element: impl FnMut(&mut Self) -> Result<()>) -> Result<()> {
        let (len, _) = self.list_head()?;
        (0..len).try_for_each(|_| element(self))
    }

    /// Reads the number of a list's elements, and their kind. Each element takes at least one byte, which bounds the
    /// number.
    fn list_head(&mut self) -> Result<(u64, u8)> {
        let head = self.byte()?;
        let len = match head >> 4 {
            15 => self.varint()?,
            len => u64::from(len),
        };
        if len > (self.bytes.len() - self.at) as u64 {
            return Err(damaged("expected a list that ends within the file, but found a longer one"));
        }
        Ok((len, head & 15))
    }

    fn deeper(&mut self) -> Result<()> {
        self.depth += 1;
        if self.depth > MAX_DEPTH { Err(damaged("expected metadata that are less deep")) } else { Ok(()) }
    }

    fn skip(&mut self, kind: u8) -> Result<()> {
        match kind {
            // In a structure the kind of a boolean is its value: no bytes follow.
            TRUE | FALSE => Ok(()),
            BYTE => self.byte().map(drop),
            I16 | I32 | I64 => self.varint().map(drop),
            DOUBLE => self.take(8).map(drop),
            BINARY => self.binary().map(drop),
            LIST | SET => {
                let (len, kind) = self.list_head()?;
                self.deeper()?;
                (0..len).try_for_each(|_| self.skip_element(kind))?;
                self.depth -= 1;
                Ok(())
            }
            MAP => {
                let len = self.varint()?;
                if len > (self.bytes.len() - self.at) as u64 {
                    return Err(damaged("expected a map that ends within the file, but found a longer one"));
                }
                let kinds = if len == 0 { 0 } else { self.byte()? };
                self.deeper()?;
                (0..len).try_for_each(|_| {
                    self.skip_element(kinds >> 4)?;
                    self.skip_element(kinds & 15)
                })?;
                self.depth -= 1;
                Ok(())
            }
            STRUCT => self.fields(|_, _, _| Ok(false)),
            other => Err(damaged(&format!("expected a kind of values from 1 to 12, but found {other}"))),
        }
    }

    fn skip_element(&mut self, kind: u8) -> Result<()> {
        if matches!(kind, TRUE | FALSE) { self.byte().map(drop) } else { self.skip(kind) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_nobody_wants_are_skipped() {
        // 1: true, 2: i32 -3, 3: list of two texts, 4: map of text to i64, 5: a structure with a double, 300: i64 1.
        let bytes = [
            &[0x11, 0x15, 0x05, 0x19, 0x28, 2, b'a', b'b', 0, 0x1b, 1, 0x86, 1, b'k', 4, 0x1c, 0x17][..],
            &[0; 8],
            &[0, 0x06, 0xd8, 0x04, 2, 0],
        ]
        .concat();
        let mut seen = Vec::new();
        let mut reader = Reader::new(&bytes);
        reader
            .fields(|r, id, kind| {
                seen.push((id, kind));
                if matches!(id, 2 | 300) {
                    seen.push((r.int()? as i16, 0));
                    return Ok(true);
                }
                Ok(false)
            })
            .unwrap();
        assert_eq!(reader.at(), bytes.len());
        assert_eq!(seen, [(1, 1), (2, 5), (-3, 0), (3, 9), (4, 11), (5, 12), (300, 6), (1, 0)]);
        for len in 0..bytes.len() {
            assert!(Reader::new(&bytes[..len]).fields(|_, _, _| Ok(false)).is_err(), "{len}");
        }
    }

    #[test]
    fn hostile_bytes_are_errors() {
        for bytes in [
            &[0x1c; 100][..],
            &[0x19, 0x9c].repeat(50),
            &[0x19, 0xf9, 0xff, 0xff, 0xff, 0xff, 0x0f],
            &[0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
            &[0x16, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
            &[0x1b, 0xff, 0xff, 0x03, 0x88],
            &[0x1d, 0],
        ] {
            assert!(Reader::new(bytes).fields(|_, _, _| Ok(false)).is_err(), "{bytes:?}");
        }
    }
}
