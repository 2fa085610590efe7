//! Reads tables from files in NumPy's format (`.npy`):
//! <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>.
//!
//! A file has a magic string, a version, the header's length, the header and the values. The header is a Python
//! dictionary with the type, the shape and whether columns are contiguous. The type must be the expected one. No memory
//! is taken for the values before the file's length was found to match the header's shape.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::{Element, Table, room};
use crate::error::{Code, Error, Result};

const MAGIC: &[u8] = b"\x93NUMPY";
/// Limit on the bytes of a header. NumPy's headers have 128.
const MAX_HEADER: usize = 1 << 16;
/// Bytes read at a time.
const PIECE: usize = 1 << 20;

/// The fields of a header.
#[derive(Debug, PartialEq, Eq)]
struct Header<'a> {
    descr: &'a str,
    fortran_order: bool,
    shape: Vec<u64>,
}

/// Reads the table in a file. It has two dimensions, or one, which gives a single column. `limit` is the number of
/// bytes that the user's memory limit leaves, `None` if there is no limit.
///
/// # Errors
/// If the file can't be read, isn't valid, has another type or shape, or the table doesn't fit in memory.
pub fn read_npy<T: Element>(path: &Path, limit: Option<u64>) -> Result<Table<T>> {
    let named = |e: Error| e.within(path.display());
    let failed = |e: &std::io::Error| Error::value(format!("can't be read: {e}")).with_code(Code::of_system(e));
    let open = || -> Result<(File, u64)> {
        // Opening a FIFO would wait for its writer forever.
        let metadata = std::fs::metadata(path).map_err(|e| failed(&e))?;
        if !metadata.is_file() {
            return Err(Error::value("expected a file of NumPy's format, but found none: it is a folder or a device"));
        }
        Ok((File::open(path).map_err(|e| failed(&e))?, metadata.len()))
    };
    let (mut file, len) = open().map_err(named)?;
    table(&mut file, len, limit).map_err(named)
}

/// Reads the table in a file of `len` bytes.
fn table<T: Element>(from: &mut impl Read, len: u64, limit: Option<u64>) -> Result<Table<T>> {
    let mut start = [0; 12];
    let mut got = 0;
    // The header's length has 2 bytes in version 1, and 4 in later versions.
    read_exact(from, &mut start[..10], &mut got)?;
    if start[..6] != *MAGIC {
        return Err(Error::value(format!(
            "expected a file of NumPy's format (.npy), but it begins with {:02x?}",
            &start[..6]
        )));
    }
    let header_len = match start[6] {
        1 => usize::from(u16::from_le_bytes([start[8], start[9]])),
        2 | 3 => {
            read_exact(from, &mut start[10..], &mut got)?;
            u32::from_le_bytes([start[8], start[9], start[10], start[11]]) as usize
        }
        version => {
            return Err(Error::value(format!("expected version 1, 2 or 3 of NumPy's format, but found {version}")));
        }
    };
    if header_len > MAX_HEADER {
        return Err(Error::value(format!("expected a header of at most {MAX_HEADER} bytes, but found {header_len}")));
    }
    let mut header = vec![0; header_len];
    read_exact(from, &mut header, &mut got)?;
    let header = std::str::from_utf8(&header).ok().and_then(parse).ok_or_else(|| {
        Error::value(
            "expected a header with 'descr', 'fortran_order' and 'shape', but found another; the file is damaged",
        )
    })?;
    let swap = match header.descr.split_at_checked(1) {
        Some(("<" | "=", kind)) if kind == T::NPY => false,
        Some((">", kind)) if kind == T::NPY => true,
        _ => {
            return Err(Error::dtype(format!(
                "expected {} ('<{}'), but found '{}'; save it with .astype(\"{}\")",
                T::NAME,
                T::NPY,
                header.descr,
                T::NAME
            )));
        }
    };
    let (rows, columns) = match header.shape[..] {
        [rows] => (rows, 1),
        [rows, columns] => (rows, columns),
        _ => {
            return Err(Error::value(format!(
                "expected one or two dimensions, but found the shape {:?}",
                header.shape
            )));
        }
    };
    let values = rows.checked_mul(columns);
    let expected = values.and_then(|n| n.checked_mul(8)).and_then(|bytes| bytes.checked_add(got));
    let Some(values) = values.filter(|_| expected == Some(len)) else {
        let expected = expected.map_or("more than can be addressed".into(), |n| n.to_string());
        return Err(Error::value(format!(
            "expected {expected} bytes for the shape {:?}, but found {len}; the file is damaged or was not written completely",
            header.shape
        )));
    };
    let mut out = room(values, limit)?;
    // In Fortran order the file has one column after the other.
    let by_column = header.fortran_order && rows > 1 && columns > 1;
    if by_column {
        out.resize(values as usize, T::from_le([0; 8]));
    }
    let mut piece = vec![0; PIECE.min(usize::try_from(values).unwrap_or(PIECE).saturating_mul(8))];
    let mut left = values * 8;
    while left > 0 {
        let n = piece.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        read_exact(from, &mut piece[..n], &mut got)?;
        let order = |mut bytes: [u8; 8]| {
            if swap {
                bytes.reverse();
            }
            T::from_le(bytes)
        };
        let found = piece[..n].as_chunks::<8>().0.iter().map(|&bytes| order(bytes));
        if by_column {
            let before = values - left / 8;
            // `out` already has all values, so each is set at its place.
            found.zip(before..).for_each(|(value, i)| out[((i % rows) * columns + i / rows) as usize] = value);
        } else {
            out.extend(found);
        }
        left -= n as u64;
    }
    let columns = usize::try_from(columns).unwrap_or(usize::MAX);
    Table::new(out, if values == 0 { columns.max(1) } else { columns })
}

/// Fills `to`, and adds the bytes read to `got`.
fn read_exact(from: &mut impl Read, to: &mut [u8], got: &mut u64) -> Result<()> {
    match from.read_exact(to) {
        Ok(()) => {
            *got += to.len() as u64;
            Ok(())
        }
        Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => Err(Error::value(format!(
            "expected a file of NumPy's format (.npy), but it ends after {got} bytes or a few more"
        ))),
        Err(e) => Err(Error::runtime(format!("can't be read: {e}"))),
    }
}

/// Parses a header, e.g. `{'descr': '<i8', 'fortran_order': False, 'shape': (3, 4), }`. `None` if it isn't valid.
fn parse(text: &str) -> Option<Header<'_>> {
    let mut rest = text.trim().strip_prefix('{')?.strip_suffix('}')?.trim();
    let (mut descr, mut fortran_order, mut shape) = (None, None, None);
    while !rest.is_empty() {
        let (name, after) = quoted(rest)?;
        rest = after.trim_start().strip_prefix(':')?.trim_start();
        match name {
            "descr" => {
                let (value, after) = quoted(rest)?;
                (descr, rest) = (Some(value), after);
            }
            "fortran_order" => {
                let is_true = rest.starts_with("True");
                rest = rest.strip_prefix(if is_true { "True" } else { "False" })?;
                fortran_order = Some(is_true);
            }
            "shape" => {
                let (list, after) = rest.strip_prefix('(')?.split_once(')')?;
                let numbers = list.trim().trim_end_matches(',').split(',').map(str::trim);
                shape = Some(numbers.filter(|n| !n.is_empty()).map(str::parse).collect::<Result<_, _>>().ok()?);
                rest = after;
            }
            _ => return None,
        }
        rest = rest.trim_start();
        rest = match rest.strip_prefix(',') {
            Some(after) => after.trim_start(),
            None if rest.is_empty() => rest,
            None => return None,
        };
    }
    Some(Header { descr: descr?, fortran_order: fortran_order?, shape: shape? })
}

/// Returns the Python string without escapes at the start of `text`, and the text after it.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let quote = text.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    text[1..].split_once(quote)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(descr: &str, fortran: bool, shape: &str, data: &[u8], version: u8) -> Vec<u8> {
        let order = if fortran { "True" } else { "False" };
        let header = format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}   \n");
        let mut bytes = MAGIC.to_vec();
        bytes.extend([version, 0]);
        match version {
            1 => bytes.extend((header.len() as u16).to_le_bytes()),
            _ => bytes.extend((header.len() as u32).to_le_bytes()),
        }
        bytes.extend(header.as_bytes());
        bytes.extend(data);
        bytes
    }

    fn read<T: Element>(bytes: &[u8]) -> Result<Table<T>> {
        table(&mut &bytes[..], bytes.len() as u64, None)
    }

    fn data(n: i64, swap: bool) -> Vec<u8> {
        (0..n).flat_map(|i| if swap { (i - 2).to_be_bytes() } else { (i - 2).to_le_bytes() }).collect()
    }

    #[test]
    fn tables_are_read() {
        for version in 1..=3 {
            for (descr, swap) in [("<i8", false), (">i8", true)] {
                let t = read::<i64>(&file(descr, false, "(3, 2)", &data(6, swap), version)).unwrap();
                assert_eq!((t.values(), t.rows(), t.columns()), (&[-2, -1, 0, 1, 2, 3][..], 3, 2));
            }
        }
        for (descr, swap) in [("<i8", false), (">i8", true)] {
            let t = read::<i64>(&file(descr, true, "(3, 2)", &data(6, swap), 1)).unwrap();
            assert_eq!((t.values(), t.rows(), t.columns()), (&[-2, 1, -1, 2, 0, 3][..], 3, 2), "by columns");
        }
        let t = read::<i64>(&file("<i8", true, "(5,)", &data(5, false), 1)).unwrap();
        assert_eq!((t.rows(), t.columns(), t.row(4)), (5, 1, &[2][..]));
        let t = read::<f64>(&file("<f8", false, "(1,)", &0.5f64.to_le_bytes(), 1)).unwrap();
        assert_eq!(t.values(), [0.5]);
        assert_eq!(read::<i64>(&file("<i8", false, "(0, 2)", &[], 1)).unwrap().rows(), 0);
        let many = data(3 * PIECE as i64 / 8 + 5, false);
        let t = read::<i64>(&file("<i8", false, &format!("({},)", many.len() / 8), &many, 1)).unwrap();
        assert!(t.values().iter().enumerate().all(|(i, &v)| v == i as i64 - 2));
    }

    #[test]
    fn what_is_wrong_is_said() {
        let good = file("<i8", false, "(3, 2)", &data(6, false), 1);
        let wrong = |bytes: &[u8], part: &str| {
            let e = read::<i64>(bytes).unwrap_err();
            assert!(e.message().contains(part), "{e} lacks {part:?}");
        };
        wrong(b"PK\x03\x04 an archive", "begins with");
        wrong(&file("<i4", false, "(3, 2)", &data(6, false), 1), "expected int64 ('<i8'), but found '<i4'");
        wrong(&file("|O", false, "(3, 2)", &data(6, false), 1), "'|O'");
        wrong(&file("<i8", false, "(3, 2, 1)", &data(6, false), 1), "[3, 2, 1]");
        wrong(&file("<i8", false, "()", &data(1, false), 1), "[]");
        wrong(&file("<i8", false, "(9223372036854775807, 9223372036854775807)", &[], 1), "more than can be addressed");
        wrong(&file("<i8", false, "(1000000000000, 2)", &data(6, false), 1), "was not written completely");
        wrong(&file("<i8", false, "(-3, 2)", &data(6, false), 1), "damaged");
        wrong(&file("<i8", false, "(3, 2)", &data(7, false), 1), "but found 129");
        wrong(&file("<i8", false, "(3, 2)", &data(6, false), 9), "version 1, 2 or 3");
        wrong(&file("<i8", false, "(3 2)", &data(6, false), 1), "damaged");
        for end in 0..good.len() {
            assert!(read::<i64>(&good[..end]).is_err(), "{end}");
        }
        let mut long = good.clone();
        (long[6], long[9]) = (2, 255);
        assert!(read::<i64>(&long).is_err());
    }

    /// Damaged files give a table or an error.
    #[test]
    fn damaged_headers_are_errors() {
        let good = file("<i8", false, "(3, 2)", &data(6, false), 1);
        for at in 0..good.len() - 48 {
            for byte in 0..=255 {
                let mut bytes = good.clone();
                bytes[at] = byte;
                if let Ok(t) = read::<i64>(&bytes) {
                    assert_eq!(t.values().len(), 6);
                }
            }
        }
    }
}
