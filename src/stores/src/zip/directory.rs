//! The directory of a zip archive, in memory: sorted by name, with 48 bytes for each entry, and its name.
//!
//! Every entry is checked against the size of the archive when the directory is parsed, so no damaged entry leads to a
//! wrong read or a large allocation: entries lie before the directory, and don't overlap.

use std::cmp::Ordering;

use super::end::End;
use super::numbers::{u16_at, u32_at, u64_at};
use dali_zarr_base::error::{Code, Error, Result};

const RECORD: &[u8] = b"PK\x01\x02";
const RECORD_LEN: usize = 46;
/// Bytes of a local header before its name.
pub(super) const HEADER_LEN: u64 = 30;
/// Deflated data have at most this many times their compressed size when inflated, plus this many bytes.
const MAX_INFLATED: (u64, u64) = (1032, 1 << 10);

/// How an entry is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    Stored,
    Deflated,
    Other(u16),
}

/// A file in the archive.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// Offset of its local header.
    pub header: u64,
    /// Bytes in the archive.
    pub compressed: u64,
    /// Bytes when inflated.
    pub size: u64,
    pub crc: u32,
    /// Bytes between this entry and the next one, including the extra field of this entry's local header. Only that
    /// header tells how long the field is. At most `u32::MAX`.
    pub gap: u32,
    name: u32,
    name_len: u32,
    /// Bytes of the name, as it is encoded in the archive.
    pub stored_name_len: u16,
    method: u16,
    flags: u16,
}

impl Entry {
    pub const fn method(&self) -> Method {
        match self.method {
            0 => Method::Stored,
            8 => Method::Deflated,
            other => Method::Other(other),
        }
    }

    pub const fn is_encrypted(&self) -> bool {
        self.flags & 0x2041 != 0
    }

    /// Whether sizes and checksum follow the data, in a descriptor. The local header may lack them then.
    pub const fn has_descriptor(&self) -> bool {
        self.flags & 8 != 0
    }
}

#[derive(Debug)]
pub(super) struct Directory {
    /// Sorted by name, without duplicates.
    entries: Vec<Entry>,
    names: Vec<u8>,
    /// Whether entries lie back to back from the beginning of the file to the directory, so that the data of each can
    /// be at one place only. Damage to one offset or size would leave a gap.
    pub tight: bool,
}

impl Directory {
    /// Parses the directory from its bytes.
    ///
    /// # Errors
    /// If it contradicts itself or `end`.
    pub fn parse(bytes: &[u8], end: &End) -> Result<Self> {
        let (mut entries, mut names) = (Vec::new(), Vec::new());
        let mut rest = bytes;
        while !rest.is_empty() {
            let number = entries.len();
            let (entry, len) = record(rest, end, &mut names).map_err(|e| e.within(format!("entry {number}")))?;
            entries.push(entry);
            rest = &rest[len..];
        }
        let (count, known) = end.entries;
        if (entries.len() as u64 ^ count) & known != 0 {
            return Err(Error::value(format!(
                "expected {count} entries, but found {}; the archive is truncated or damaged",
                entries.len()
            )));
        }
        let mut directory = Self { entries, names, tight: false };
        directory.measure(end.directory.start)?;
        directory.sort();
        Ok(directory)
    }

    /// Computes the gaps between the entries. The directory begins at `until`.
    ///
    /// # Errors
    /// If an entry reaches into the next one or into the directory.
    fn measure(&mut self, until: u64) -> Result<()> {
        let mut order: Vec<u32> = (0..self.entries.len() as u32).collect();
        order.sort_unstable_by_key(|&i| self.entries[i as usize].header);
        let (mut next, mut gaps) = (until, 0);
        for &i in order.iter().rev() {
            let entry = &self.entries[i as usize];
            let least = entry.header + HEADER_LEN + u64::from(entry.stored_name_len);
            let Some(gap) = least.checked_add(entry.compressed).and_then(|end| next.checked_sub(end)) else {
                return Err(Error::value(format!(
                    "entry {:?} of {} bytes at offset {} reaches into what begins at {next}; the archive is damaged",
                    self.name(entry),
                    entry.compressed,
                    entry.header
                )));
            };
            next = entry.header;
            gaps |= gap;
            self.entries[i as usize].gap = u32::try_from(gap).unwrap_or(u32::MAX);
        }
        self.tight = gaps == 0 && next == 0;
        Ok(())
    }

    /// Sorts by name. The last entry of a name wins, as in Python: zarr-python replaces a value by adding an entry.
    fn sort(&mut self) {
        let names = &self.names;
        // The sort is stable: equal names stay in the directory's order.
        self.entries.sort_by(|a, b| slice(names, a).cmp(slice(names, b)));
        self.entries.dedup_by(|later, kept| {
            let same = slice(names, later) == slice(names, kept);
            if same {
                std::mem::swap(later, kept);
            }
            same
        });
        self.entries.shrink_to_fit();
        self.names.shrink_to_fit();
    }

    fn name(&self, entry: &Entry) -> String {
        String::from_utf8_lossy(slice(&self.names, entry)).into_owned()
    }

    /// Returns the entry of this name and its number; `None` if there is none.
    pub fn find(&self, name: &str) -> Option<(u32, &Entry)> {
        let at = self.entries.binary_search_by(|e| slice(&self.names, e).cmp(name.as_bytes())).ok()?;
        Some((at as u32, &self.entries[at]))
    }

    /// Returns the names directly below `prefix` that have names below them, sorted. `prefix` is empty or ends with a
    /// slash.
    pub fn children(&self, prefix: &str) -> Vec<String> {
        let mut children: Vec<String> = Vec::new();
        let mut from = prefix.as_bytes().to_vec();
        loop {
            let at = self.entries.partition_point(|e| slice(&self.names, e).cmp(&from) == Ordering::Less);
            let Some(below) = self.entries.get(at).and_then(|e| slice(&self.names, e).strip_prefix(prefix.as_bytes()))
            else {
                break;
            };
            match below.iter().position(|&b| b == b'/') {
                Some(slash) => {
                    children.extend(String::from_utf8(below[..slash].to_vec()).ok().filter(|name| !name.is_empty()));
                    // The next search begins after all names below this one: '0' is the character after the slash.
                    from = [prefix.as_bytes(), &below[..slash], b"0"].concat();
                }
                None => from = [prefix.as_bytes(), below, b"\0"].concat(),
            }
        }
        children.sort();
        children
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.entries.len()
    }
}

fn slice<'a>(names: &'a [u8], entry: &Entry) -> &'a [u8] {
    &names[entry.name as usize..][..entry.name_len as usize]
}

/// Parses the first record of `bytes`, and appends its name to `names`. Returns the entry and the length of the record
/// in bytes.
fn record(bytes: &[u8], end: &End, names: &mut Vec<u8>) -> Result<(Entry, usize)> {
    let wrong = |what: &str| Error::value(format!("{what}; the archive is damaged")).with_code(Code::Damaged);
    if bytes.len() < RECORD_LEN || !bytes.starts_with(RECORD) {
        return Err(wrong("expected a record of the directory, but found something else"));
    }
    let lens = [28, 30, 32].map(|at| usize::from(u16_at(bytes, at)));
    let len = RECORD_LEN + lens.iter().sum::<usize>();
    if bytes.len() < len {
        return Err(wrong("its record reaches beyond the directory"));
    }
    let (name, extra) = bytes[RECORD_LEN..].split_at(lens[0]);
    let (flags, method) = (u16_at(bytes, 8), u16_at(bytes, 10));
    let small = [24, 20, 42].map(|at| u32_at(bytes, at));
    let [size, compressed, offset] =
        wide(small, &extra[..lens[1]]).ok_or_else(|| wrong("it lacks sizes or an offset of ZIP64"))?;
    let header = offset.checked_add(end.before).filter(|h| *h < end.directory.start);
    let header = header.ok_or_else(|| wrong("it lies beyond the directory"))?;
    let entry = Entry {
        header,
        compressed,
        size,
        crc: u32_at(bytes, 16),
        gap: 0,
        name: names.len() as u32,
        name_len: 0,
        stored_name_len: lens[0] as u16,
        method,
        flags,
    };
    // Bounds the size that the entry claims, so that no false size leads to a large buffer.
    let most = match entry.method() {
        Method::Stored if !entry.is_encrypted() => compressed,
        Method::Deflated => compressed.saturating_mul(MAX_INFLATED.0).saturating_add(MAX_INFLATED.1),
        _ => u64::MAX,
    };
    if size > most || entry.method() == Method::Stored && !entry.is_encrypted() && size != compressed {
        return Err(wrong(&format!("{compressed} bytes can't be those of a file of {size}")));
    }
    push_name(name, flags & 0x800 != 0, names).ok_or_else(|| wrong("its name isn't UTF-8 as it claims"))?;
    Ok((Entry { name_len: names.len() as u32 - entry.name, ..entry }, len))
}

/// Returns size, compressed size and offset. Those that don't fit into 32 bits come from the extra field; `None` if it
/// lacks them.
fn wide(small: [u32; 3], mut extra: &[u8]) -> Option<[u64; 3]> {
    let mut wide = small.map(u64::from);
    if !small.contains(&u32::MAX) {
        return Some(wide);
    }
    while extra.len() >= 4 {
        let (id, len) = (u16_at(extra, 0), usize::from(u16_at(extra, 2)));
        let mut data = extra.get(4..4 + len)?;
        if id == 1 {
            for value in wide.iter_mut().filter(|v| **v == u64::from(u32::MAX)) {
                *value = u64_at(data.get(..8)?, 0);
                data = &data[8..];
            }
            return Some(wide);
        }
        extra = &extra[4 + len..];
    }
    None
}

/// Appends a name as UTF-8. As in Python, a zero byte ends it. `None` if `utf8` is true but the name isn't UTF-8.
fn push_name(name: &[u8], utf8: bool, names: &mut Vec<u8>) -> Option<()> {
    let name = name.split(|&b| b == 0).next().unwrap_or_default();
    if utf8 {
        names.extend_from_slice(std::str::from_utf8(name).ok()?.as_bytes());
    } else {
        for &byte in name {
            let c = if byte < 128 { char::from(byte) } else { CP437.chars().nth(usize::from(byte - 128))? };
            names.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
        }
    }
    Some(())
}

/// The upper half of code page 437, the encoding of names without the UTF-8 flag.
pub(super) const CP437: &str = "ÇüéâäàåçêëèïîìÄÅÉæÆôöòûùÿÖÜ¢£¥₧ƒáíóúñÑªº¿⌐¬½¼¡«»░▒▓│┤╡╢╖╕╣║╗╝╜╛┐\
    └┴┬├─┼╞╟╚╔╩╦╠═╬╧╨╤╥╙╘╒╓╫╪┘┌█▄▌▐▀αßΓπΣσµτΦΘΩδ∞φε∩≡±≥≤⌠⌡÷≈°∙·√ⁿ²■\u{a0}";
