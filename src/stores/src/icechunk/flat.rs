//! A reader of FlatBuffers that copies nothing. It checks every offset and length against the buffer when it is used,
//! so no damaged file leads to a wrong access or an allocation.
//!
//! Format: the FlatBuffers project's "internals". A table points back to its vtable, which has the offsets of its
//! fields. Vectors and strings begin with a length.

use dali_zarr_base::error::{Error, Result};

fn damaged() -> Error {
    Error::damaged("expected offsets and lengths that stay within the file, but found others; the file is damaged")
}

/// Returns the `N` bytes at `at`.
fn array<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N]> {
    let end = at.checked_add(N).ok_or_else(damaged)?;
    bytes.get(at..end).and_then(|b| b.try_into().ok()).ok_or_else(damaged)
}

fn u32_at(bytes: &[u8], at: usize) -> Result<u32> {
    array(bytes, at).map(u32::from_le_bytes)
}

/// Returns the position that the offset at `at` points to.
fn follow(bytes: &[u8], at: usize) -> Result<usize> {
    at.checked_add(u32_at(bytes, at)? as usize).filter(|&to| to < bytes.len()).ok_or_else(damaged)
}

/// A table in a buffer.
#[derive(Clone, Copy)]
pub(super) struct Table<'a> {
    bytes: &'a [u8],
    at: usize,
    fields: usize,
    fields_len: usize,
}

impl<'a> Table<'a> {
    /// Returns the root table of a buffer.
    pub fn root(bytes: &'a [u8]) -> Result<Self> {
        Self::at(bytes, follow(bytes, 0)?)
    }

    fn at(bytes: &'a [u8], at: usize) -> Result<Self> {
        let back = i32::from_le_bytes(array(bytes, at)?);
        let fields = usize::try_from(at as i64 - i64::from(back)).map_err(|_| damaged())?;
        let fields_len = usize::from(u16::from_le_bytes(array(bytes, fields)?));
        Ok(Self { bytes, at, fields, fields_len })
    }

    /// Returns the position of field number `i`; `None` if the table doesn't have it.
    fn field(&self, i: usize) -> Result<Option<usize>> {
        let slot = 4 + 2 * i;
        if slot + 2 > self.fields_len {
            return Ok(None);
        }
        let offset = u16::from_le_bytes(array(self.bytes, self.fields + slot)?);
        Ok((offset != 0).then(|| self.at + usize::from(offset)))
    }

    /// Returns field `i`, a number or a structure of `N` bytes.
    pub fn fixed<const N: usize>(&self, i: usize) -> Result<Option<[u8; N]>> {
        self.field(i)?.map(|at| array(self.bytes, at)).transpose()
    }

    pub fn u8(&self, i: usize) -> Result<u8> {
        Ok(self.fixed(i)?.map_or(0, u8::from_le_bytes))
    }

    pub fn u32(&self, i: usize) -> Result<u32> {
        Ok(self.fixed(i)?.map_or(0, u32::from_le_bytes))
    }

    pub fn u64(&self, i: usize) -> Result<u64> {
        Ok(self.fixed(i)?.map_or(0, u64::from_le_bytes))
    }

    pub fn table(&self, i: usize) -> Result<Option<Table<'a>>> {
        self.field(i)?.map(|at| Table::at(self.bytes, follow(self.bytes, at)?)).transpose()
    }

    /// Returns field `i`, a vector of elements of `size` bytes.
    fn vector(&self, i: usize, size: usize) -> Result<Option<Vector<'a>>> {
        let Some(at) = self.field(i)? else { return Ok(None) };
        let at = follow(self.bytes, at)?;
        let len = u32_at(self.bytes, at)? as usize;
        let fits = len.checked_mul(size).and_then(|n| n.checked_add(at + 4)).is_some_and(|end| end <= self.bytes.len());
        if fits { Ok(Some(Vector { bytes: self.bytes, at: at + 4, len })) } else { Err(damaged()) }
    }

    /// Returns field `i`, a vector of bytes or a string.
    pub fn bytes(&self, i: usize) -> Result<Option<&'a [u8]>> {
        Ok(self.vector(i, 1)?.map(|v| &v.bytes[v.at..v.at + v.len]))
    }

    /// As [`Self::bytes`], but returns where the bytes are in the buffer.
    pub fn range(&self, i: usize) -> Result<Option<std::ops::Range<usize>>> {
        Ok(self.vector(i, 1)?.map(|v| v.at..v.at + v.len))
    }

    pub fn text(&self, i: usize) -> Result<Option<&'a str>> {
        let bytes = self.bytes(i)?;
        bytes.map(|b| std::str::from_utf8(b).map_err(|_| damaged())).transpose()
    }

    /// Returns field `i`, a vector of u32.
    pub fn numbers(&self, i: usize) -> Result<Option<impl ExactSizeIterator<Item = u32> + use<'a>>> {
        Ok(self
            .vector(i, 4)?
            .map(|v| v.bytes[v.at..v.at + 4 * v.len].as_chunks::<4>().0.iter().map(|n| u32::from_le_bytes(*n))))
    }

    /// Returns field `i`, a vector of structures of `N` bytes.
    pub fn structs<const N: usize>(
        &self,
        i: usize,
    ) -> Result<Option<impl ExactSizeIterator<Item = [u8; N]> + use<'a, N>>> {
        Ok(self.vector(i, N)?.map(|v| v.bytes[v.at..v.at + N * v.len].as_chunks::<N>().0.iter().copied()))
    }

    /// Returns field `i`, a vector of tables; empty if the table doesn't have the field.
    pub fn tables(&self, i: usize) -> Result<Tables<'a>> {
        let empty = Vector { bytes: self.bytes, at: 0, len: 0 };
        Ok(Tables { vector: self.vector(i, 4)?.unwrap_or(empty), next: 0 })
    }
}

#[derive(Clone, Copy)]
struct Vector<'a> {
    bytes: &'a [u8],
    at: usize,
    len: usize,
}

/// The tables of a vector.
pub(super) struct Tables<'a> {
    vector: Vector<'a>,
    next: usize,
}

impl<'a> Tables<'a> {
    pub fn get(&self, i: usize) -> Result<Table<'a>> {
        if i >= self.vector.len {
            return Err(damaged());
        }
        let at = self.vector.at + 4 * i;
        Table::at(self.vector.bytes, follow(self.vector.bytes, at)?)
    }
}

impl<'a> Iterator for Tables<'a> {
    type Item = Result<Table<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        let i = self.next;
        (i < self.vector.len).then(|| {
            self.next += 1;
            self.get(i)
        })
    }
}
