//! Parquet files, as far as references need them: flat columns of integers and bytes, from memory.
//!
//! Format: Apache Parquet 2.10, with the encodings that fastparquet and Arrow choose for such columns: plain values and
//! dictionaries. Data pages have either version. Pages are uncompressed, or compressed by zstd, Snappy or gzip. Anything
//! else is an error.
//!
//! The crate parquet is not used. It allocates what damaged files claim: a page header of 30 bytes makes it fill 64 GiB,
//! and a failed allocation ends the process. With its dependencies it takes a minute of processor time to build. Here
//! every number is checked against the file. The decompressed sizes that pages claim are checked
//! against a limit for the whole file.

mod page;
mod thrift;

use std::cell::Cell;

use dali_zarr_base::error::{Error, Result};
use page::{Chunk, Codec};
use thrift::{Reader, damaged};

/// Most bytes of a file, and most bytes that all of its pages may decompress to.
pub(super) const MAX_BYTES: u64 = 512 << 20;

const MAGIC: &[u8] = b"PAR1";

/// The type of a column's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ColumnType {
    Int32,
    Int64,
    Bytes,
    Other,
}

#[derive(Debug)]
struct Column<'a> {
    name: &'a [u8],
    kind: ColumnType,
    /// Whether values may be null.
    optional: bool,
}

/// A row group: its rows, and its columns in their order.
#[derive(Debug)]
struct RowGroup<'a> {
    rows: u64,
    chunks: Vec<Chunk<'a>>,
}

/// A file, after its metadata were read.
#[derive(Debug)]
pub(super) struct File<'a> {
    columns: Vec<Column<'a>>,
    groups: Vec<RowGroup<'a>>,
    rows: usize,
    /// Bytes that pages may still decompress to.
    left: Cell<u64>,
}

impl<'a> File<'a> {
    /// Reads the metadata of a file from its bytes.
    ///
    /// # Errors
    /// If the file is damaged or of a kind that isn't read, or has more than `max_rows` rows.
    pub fn open(bytes: &'a [u8], max_rows: u64) -> Result<Self> {
        let wrong = |found: &str| Error::runtime(format!("expected a Parquet file, but found {found}"));
        if bytes.len() < 12 || !bytes.starts_with(MAGIC) {
            return Err(wrong("something else"));
        }
        let (rest, end) = bytes.split_at(bytes.len() - 8);
        let (len, magic) = end.split_at(4);
        if magic != MAGIC {
            return Err(wrong(if magic == b"PARE" {
                "an encrypted one"
            } else {
                "one without an end; it is truncated"
            }));
        }
        let len = u32::from_le_bytes([len[0], len[1], len[2], len[3]]) as usize;
        let at = rest.len().checked_sub(len).ok_or_else(|| damaged("expected metadata within the file"))?;
        let mut file = Self { columns: Vec::new(), groups: Vec::new(), rows: 0, left: Cell::new(MAX_BYTES) };
        Reader::new(&rest[at..]).fields(|reader, id, _| {
            match id {
                2 => file.columns = schema(reader)?,
                4 => reader.list(|r| {
                    file.groups.push(group(r, bytes)?);
                    Ok(())
                })?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        let rows = file.groups.iter().map(|g| g.rows).try_fold(0, u64::checked_add).filter(|&rows| rows <= max_rows);
        file.rows = rows.ok_or_else(|| damaged(&format!("expected at most {max_rows} rows, but found more")))? as usize;
        let columns = file.columns.len();
        if file.groups.iter().any(|g| g.chunks.len() != columns) {
            return Err(damaged(&format!("expected {columns} columns in each row group, but found others")));
        }
        Ok(file)
    }

    /// Returns the number of rows, which all columns have.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Calls `put` with the row and the value of every integer in the column `name` that isn't null. Returns false if
    /// there is no such column.
    ///
    /// # Errors
    /// If the column isn't one of integers or is damaged; and the errors of `put`.
    pub fn integers(&self, name: &str, put: impl FnMut(usize, i64) -> Result<()>) -> Result<bool> {
        self.read(
            name,
            |kind, rest| match kind {
                ColumnType::Int32 => page::take(rest).map(|b| i32::from_le_bytes(b).into()),
                ColumnType::Int64 => page::take(rest).map(i64::from_le_bytes),
                ColumnType::Bytes | ColumnType::Other => {
                    Err(damaged("expected a column of integers, but found another"))
                }
            },
            put,
        )
    }

    /// Calls `keep` with each value of a column of bytes (once, if the file has it once). Calls `put` with each row
    /// that isn't null, and with what `keep` returned for its value. Returns false if there is no such column.
    ///
    /// # Errors
    /// As [`Self::integers`], and the errors of `keep`.
    pub fn bytes<K: Clone>(
        &self,
        name: &str,
        mut keep: impl FnMut(&[u8]) -> Result<K>,
        put: impl FnMut(usize, K) -> Result<()>,
    ) -> Result<bool> {
        self.read(
            name,
            |kind, rest| match kind {
                ColumnType::Bytes => keep(page::prefixed(rest)?),
                _ => Err(damaged("expected a column of bytes, but found another")),
            },
            put,
        )
    }

    fn read<K: Clone>(
        &self,
        name: &str,
        mut value: impl FnMut(ColumnType, &mut &[u8]) -> Result<K>,
        mut put: impl FnMut(usize, K) -> Result<()>,
    ) -> Result<bool> {
        let Some(at) = self.columns.iter().position(|c| c.name == name.as_bytes()) else { return Ok(false) };
        let Column { kind, optional, .. } = self.columns[at];
        let mut from = 0;
        for group in &self.groups {
            let rows = group.rows as usize;
            let read =
                group.chunks[at].read((rows, optional), &self.left, |rest| value(kind, rest), |i, v| put(from + i, v));
            read.map_err(|e| e.within(format!("column {name}")))?;
            from += rows;
        }
        Ok(true)
    }
}

/// Reads the columns of a schema without groups.
fn schema<'a>(reader: &mut Reader<'a>) -> Result<Vec<Column<'a>>> {
    let mut columns = Vec::new();
    let mut nested = false;
    reader.list(|r| {
        let (mut name, mut kind, mut repetition, mut children) = (&b""[..], None, 0, 0);
        r.fields(|r, id, _| {
            match id {
                1 => kind = Some(r.int()?),
                3 => repetition = r.int()?,
                4 => name = r.binary()?,
                5 => children = r.int()?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        // The first element is the root.
        nested |= !columns.is_empty() && (children != 0 || repetition > 1);
        let kind = match kind {
            Some(1) => ColumnType::Int32,
            Some(2) => ColumnType::Int64,
            Some(6) => ColumnType::Bytes,
            _ => ColumnType::Other,
        };
        columns.push(Column { name, kind, optional: repetition == 1 });
        Ok(())
    })?;
    if nested || columns.is_empty() {
        return Err(Error::runtime("expected a Parquet file of flat columns, but found nested ones"));
    }
    columns.remove(0);
    Ok(columns)
}

fn group<'a>(reader: &mut Reader<'_>, file: &'a [u8]) -> Result<RowGroup<'a>> {
    let (mut rows, mut chunks) = (0, Vec::new());
    reader.fields(|reader, id, _| {
        match id {
            1 => reader.list(|r| {
                chunks.push(chunk(r, file)?);
                Ok(())
            })?,
            3 => rows = reader.int()?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    let rows = u64::try_from(rows).map_err(|_| damaged("expected a number of rows"))?;
    Ok(RowGroup { rows, chunks })
}

/// Reads where a column lies in one row group.
fn chunk<'a>(reader: &mut Reader<'_>, file: &'a [u8]) -> Result<Chunk<'a>> {
    let (mut codec, mut len, mut data, mut dictionary, mut elsewhere) = (0, 0, 0, 0, false);
    reader.fields(|reader, id, _| {
        match id {
            1 => elsewhere = !reader.binary()?.is_empty(),
            3 => reader.fields(|r, id, _| {
                match id {
                    4 => codec = r.int()?,
                    7 => len = r.int()?,
                    9 => data = r.int()?,
                    11 => dictionary = r.int()?,
                    _ => return Ok(false),
                }
                Ok(true)
            })?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    if elsewhere {
        return Err(Error::runtime(
            "expected a Parquet file that holds its columns, but found a reference to another file",
        ));
    }
    // If there is no dictionary, some writers say that it is at 0, where none can be.
    let from = if dictionary > 0 { dictionary.min(data) } else { data };
    let range = usize::try_from(from)
        .ok()
        .zip(usize::try_from(len).ok())
        .and_then(|(from, len)| Some(from..from.checked_add(len)?));
    let pages = range.and_then(|range| file.get(range)).ok_or_else(|| damaged("expected columns within the file"))?;
    Ok(Chunk { pages, codec: Codec::new(codec)? })
}
