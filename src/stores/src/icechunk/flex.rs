//! A reader of FlexBuffers that copies nothing, as far as the configuration of a repository needs it: maps and strings.
//! It checks every offset and length against the buffer when it is used.
//!
//! Format: the FlatBuffers project's "internals", section FlexBuffers. The root stands at the end: its value, its type
//! and the width of the value. Integers inside of a map or vector have the width of that map or vector.

use dali_zarr_base::error::{Error, Result};

const STRING: u8 = 5;
const MAP: u8 = 9;
/// Most entries of a map. A false length would make many look-ups.
const MAX_ENTRIES: usize = 4096;

fn damaged() -> Error {
    Error::damaged("expected offsets and lengths that stay within the configuration, but found others; it is damaged")
}

/// Returns the integer of `width` bytes at `at`.
fn uint(bytes: &[u8], at: usize, width: usize) -> Result<usize> {
    let end = at.checked_add(width).ok_or_else(damaged)?;
    let bytes = bytes.get(at..end).ok_or_else(damaged)?;
    let number = bytes.iter().rev().fold(0u64, |number, byte| number << 8 | u64::from(*byte));
    usize::try_from(number).map_err(|_| damaged())
}

/// Returns the position that the offset of `width` bytes at `at` points back to.
fn back(bytes: &[u8], at: usize, width: usize) -> Result<usize> {
    at.checked_sub(uint(bytes, at, width)?).ok_or_else(damaged)
}

/// A value in a buffer.
#[derive(Clone, Copy)]
pub(super) struct Value<'a> {
    bytes: &'a [u8],
    /// Where it stands: itself, or the offset to it.
    at: usize,
    /// Bytes of what stands there.
    width: usize,
    /// Its type, and the width of its parts.
    packed: u8,
}

impl<'a> Value<'a> {
    /// Returns the root of a buffer.
    pub fn root(bytes: &'a [u8]) -> Result<Self> {
        let [.., packed, width] = *bytes else { return Err(damaged()) };
        let width = usize::from(width);
        if !matches!(width, 1 | 2 | 4 | 8) {
            return Err(damaged());
        }
        let at = bytes.len().checked_sub(2 + width).ok_or_else(damaged)?;
        Ok(Self { bytes, at, width, packed })
    }

    /// Returns the width of the parts of the value that an offset leads to.
    fn inner_width(&self) -> usize {
        1 << (self.packed & 3)
    }

    /// Returns a string; `None` if the value is something else.
    pub fn text(&self) -> Result<Option<&'a str>> {
        if self.packed >> 2 != STRING {
            return Ok(None);
        }
        let at = back(self.bytes, self.at, self.width)?;
        let width = self.inner_width();
        let len = uint(self.bytes, at.checked_sub(width).ok_or_else(damaged)?, width)?;
        let end = at.checked_add(len).ok_or_else(damaged)?;
        let text = self.bytes.get(at..end).ok_or_else(damaged)?;
        std::str::from_utf8(text).map(Some).map_err(|_| damaged())
    }

    /// Returns the entries of a map; none if the value is something else.
    pub fn entries(&self) -> Result<Vec<(&'a [u8], Value<'a>)>> {
        if self.packed >> 2 != MAP {
            return Ok(Vec::new());
        }
        let (bytes, width) = (self.bytes, self.inner_width());
        let at = back(bytes, self.at, self.width)?;
        let before = |parts: usize| at.checked_sub(parts * width).ok_or_else(damaged);
        let len = uint(bytes, before(1)?, width)?;
        let keys = back(bytes, before(3)?, width)?;
        let keys_width = uint(bytes, before(2)?, width)?;
        let types = len.checked_mul(width).and_then(|values| values.checked_add(at)).ok_or_else(damaged)?;
        if len > MAX_ENTRIES || !matches!(keys_width, 1 | 2 | 4 | 8) || types + len > bytes.len() {
            return Err(damaged());
        }
        let entry = |i: usize| {
            let key = &bytes[back(bytes, keys + i * keys_width, keys_width)?..];
            let key = &key[..key.iter().position(|byte| *byte == 0).ok_or_else(damaged)?];
            Ok((key, Value { bytes, at: at + i * width, width, packed: bytes[types + i] }))
        };
        (0..len).map(entry).collect()
    }

    /// Returns the value of a key of a map; `None` if there is no such key, or the value isn't a map.
    pub fn get(&self, key: &str) -> Result<Option<Value<'a>>> {
        let found = self.entries()?.into_iter().find(|(name, _)| *name == key.as_bytes());
        Ok(found.map(|(_, value)| value))
    }
}
