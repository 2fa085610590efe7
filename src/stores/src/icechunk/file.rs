//! Files of a repository: a header of 39 bytes and a compressed FlatBuffer. Their names are in base 32.

use zstd_safe::{DCtx, InBuffer, OutBuffer};

use dali_zarr_base::error::{Error, Result};

const MAGIC: &[u8] = "ICE🧊CHUNK".as_bytes();
/// Bytes of the header: the magic bytes (12), the writer's name (24), and one byte each for the version of the
/// specification, the kind and the compression.
const HEADER: usize = 39;
/// Most bytes of a file, also when decompressed. A manifest of five million chunks is smaller.
pub(super) const MAX_FILE: u64 = 512 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileKind {
    Snapshot = 1,
    Manifest = 2,
    Repository = 6,
}

/// The ID of an object of the repository. [`name`] makes the object's name of it.
pub(super) type Id = [u8; 12];

/// Returns the version of the specification, and the decompressed FlatBuffer of a file.
///
/// # Errors
/// If the file is of another kind or an unknown version, damaged or too large.
pub(super) fn open(bytes: &[u8], kind: FileKind) -> Result<(u8, Vec<u8>)> {
    if bytes.len() < HEADER || !bytes.starts_with(MAGIC) {
        return Err(Error::damaged("expected a file of Icechunk, but found something else; it is damaged"));
    }
    let (version, found, compression) = (bytes[36], bytes[37], bytes[38]);
    if !(1..=2).contains(&version) {
        return Err(Error::runtime(format!(
            "expected version 1 or 2 of Icechunk's specification, but found {version}; this reader is older than the repository"
        )));
    }
    if found != kind as u8 {
        return Err(Error::runtime(format!(
            "expected a file of kind {}, but found {found}; it is damaged",
            kind as u8
        )));
    }
    let rest = &bytes[HEADER..];
    match compression {
        0 => Ok((version, rest.to_vec())),
        1 => Ok((version, decompressed(rest, MAX_FILE)?)),
        other => Err(Error::runtime(format!("expected compression 0 or 1, but found {other}"))),
    }
}

fn decompressed(bytes: &[u8], max: u64) -> Result<Vec<u8>> {
    let damaged =
        |e: &str| Error::damaged(format!("expected zstd data, but found other bytes: {e}; the file is damaged"));
    let mut decoder = DCtx::create();
    let mut out = Vec::new();
    let mut piece = vec![0; DCtx::out_size()];
    let mut from = InBuffer::around(bytes);
    loop {
        let mut to = OutBuffer::around(&mut piece[..]);
        let left =
            decoder.decompress_stream(&mut to, &mut from).map_err(|code| damaged(zstd_safe::get_error_name(code)))?;
        let made = to.pos();
        if (out.len() + made) as u64 > max {
            return Err(Error::runtime(format!("expected at most {max} decompressed bytes, but found more")));
        }
        out.extend_from_slice(&piece[..made]);
        if left == 0 {
            return Ok(out);
        }
        if from.pos() == bytes.len() && made == 0 {
            return Err(damaged("it ends too early"));
        }
    }
}

/// The digits of Crockford's base 32.
const DIGITS: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";

/// Returns the name of an object: one digit for each five bits of its ID, padded with zero bits.
pub(super) fn name(id: &Id) -> String {
    let mut name = String::with_capacity(20);
    let (mut bits, mut held) = (0u32, 0);
    for &byte in id {
        bits = bits << 8 | u32::from(byte);
        held += 8;
        while held >= 5 {
            held -= 5;
            name.push(char::from(DIGITS[(bits >> held & 31) as usize]));
        }
    }
    name.push(char::from(DIGITS[(bits << (5 - held) & 31) as usize]));
    name
}

/// Returns the ID with this name; `None` if `name` isn't the name of an object.
pub(super) fn id(name: &str) -> Option<Id> {
    let (mut bits, mut held, mut out) = (0u32, 0, Vec::with_capacity(13));
    for byte in name.bytes() {
        let digit = DIGITS.iter().position(|d| *d == byte.to_ascii_uppercase())?;
        bits = bits << 5 | digit as u32;
        held += 5;
        if held >= 8 {
            held -= 8;
            out.push((bits >> held) as u8);
        }
    }
    // The 20 digits have 100 bits, and the ID 96: four bits are left over.
    (name.len() == 20).then(|| out.try_into().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let first = [0x0b, 0x1c, 0xc8, 0xd6, 0x78, 0x75, 0x80, 0xf0, 0xe3, 0x3a, 0x65, 0x34];
        assert_eq!(name(&first), "1CECHNKREP0F1RSTCMT0");
        assert_eq!(id("1CECHNKREP0F1RSTCMT0"), Some(first));
        assert_eq!(id("1CECHNKREP0F1RSTCMT"), None);
        assert_eq!(id("UUUUUUUUUUUUUUUUUUUU"), None, "not a digit");
        for i in 0..200u32 {
            let id_: Id = std::array::from_fn(|j| (i.wrapping_mul(2_654_435_761) >> (j % 4 * 8)) as u8 ^ j as u8);
            assert_eq!(id(&name(&id_)), Some(id_));
        }
    }

    #[test]
    fn files_that_are_refused() {
        let header = |version, kind, compression| {
            let mut bytes = MAGIC.to_vec();
            bytes.resize(36, b' ');
            bytes.extend([version, kind, compression]);
            bytes
        };
        let open = |bytes: Vec<u8>| open(&bytes, FileKind::Snapshot).map_err(|e| e.message().to_owned());
        assert_eq!(open([header(2, 1, 0), b"abc".to_vec()].concat()), Ok((2, b"abc".to_vec())));
        for (bytes, words) in [
            (b"something".to_vec(), "something else"),
            (header(3, 1, 0), "found 3; this reader is older"),
            (header(1, 2, 0), "of kind 1, but found 2"),
            (header(1, 1, 9), "compression 0 or 1, but found 9"),
            ([header(1, 1, 1), b"abc".to_vec()].concat(), "expected zstd data"),
            (header(1, 1, 1), "ends too early"),
        ] {
            assert!(open(bytes).unwrap_err().contains(words), "{words}");
        }
        let mut bomb = vec![0; 20_000];
        let len = zstd_safe::compress(&mut bomb[..], &vec![0; 16 << 20], 1).unwrap();
        assert_eq!(decompressed(&bomb[..len], 16 << 20).unwrap().len(), 16 << 20);
        assert!(decompressed(&bomb[..len], (16 << 20) - 1).unwrap_err().message().contains("but found more"));
    }
}
