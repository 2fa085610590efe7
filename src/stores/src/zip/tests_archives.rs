//! Writes archives for tests, in the ways of all other writers.

use std::io::Write;

use flate2::Compression;
use flate2::write::DeflateEncoder;

/// How an archive is written.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Style {
    pub deflate: bool,
    /// Bytes of the extra field of local headers.
    pub extra: u16,
    pub descriptor: bool,
    pub zip64: bool,
    /// Bytes before the archive.
    pub before: usize,
    pub comment: usize,
}

/// The bytes of file number `i`.
pub(super) fn value(i: usize, len: usize) -> Vec<u8> {
    (0..len).map(|j| ((i * 7 + j * j / 5) % 251) as u8).collect()
}

/// Appends little-endian numbers.
fn u16s(to: &mut Vec<u8>, values: &[u16]) {
    to.extend(values.iter().flat_map(|v| v.to_le_bytes()));
}

fn u32s(to: &mut Vec<u8>, values: &[u32]) {
    to.extend(values.iter().flat_map(|v| v.to_le_bytes()));
}

fn u64s(to: &mut Vec<u8>, values: &[u64]) {
    to.extend(values.iter().flat_map(|v| v.to_le_bytes()));
}

/// Returns an archive, and where each entry's data are.
pub(super) fn written(files: &[(&str, Vec<u8>)], style: Style) -> (Vec<u8>, Vec<std::ops::Range<usize>>) {
    let mut out = vec![b'#'; style.before];
    let (mut directory, mut places) = (Vec::new(), Vec::new());
    for (name, data) in files {
        let stored = if style.deflate {
            let mut encoder = DeflateEncoder::new(Vec::new(), Compression::new(6));
            encoder.write_all(data).unwrap();
            encoder.finish().unwrap()
        } else {
            data.clone()
        };
        let header = out.len() - style.before;
        let (flags, method) = (0x800 | if style.descriptor { 8 } else { 0 }, if style.deflate { 8 } else { 0 });
        let (crc, len, size) = (crc32fast::hash(data), stored.len() as u32, data.len() as u32);
        let wide = |v: u32| if style.zip64 { u32::MAX } else { v };
        u32s(&mut out, &[0x0403_4b50]);
        u16s(&mut out, &[20, flags, method, 0, 0]);
        match style.descriptor {
            true => u32s(&mut out, &[0, 0, 0]),
            false => u32s(&mut out, &[crc, wide(len), wide(size)]),
        }
        u16s(&mut out, &[name.len() as u16, style.extra]);
        out.extend(name.as_bytes());
        out.extend(vec![7; style.extra.into()]);
        places.push(out.len()..out.len() + stored.len());
        out.extend(&stored);
        if style.descriptor {
            u32s(&mut out, &[0x0807_4b50, crc, len, size]);
        }
        u32s(&mut directory, &[0x0201_4b50]);
        u16s(&mut directory, &[20, 20, flags, method, 0, 0]);
        u32s(&mut directory, &[crc, wide(len), wide(size)]);
        u16s(&mut directory, &[name.len() as u16, if style.zip64 { 28 } else { 0 }, 0, 0, 0]);
        u32s(&mut directory, &[0, wide(header as u32)]);
        directory.extend(name.as_bytes());
        if style.zip64 {
            u16s(&mut directory, &[1, 24]);
            u64s(&mut directory, &[size.into(), len.into(), header as u64]);
        }
    }
    let (at, len, count) = (out.len() - style.before, directory.len(), files.len());
    out.extend(&directory);
    if style.zip64 {
        u32s(&mut out, &[0x0606_4b50]);
        u64s(&mut out, &[44]);
        u16s(&mut out, &[45, 45]);
        u32s(&mut out, &[0, 0]);
        u64s(&mut out, &[count as u64, count as u64, len as u64, at as u64]);
        u32s(&mut out, &[0x0706_4b50, 0]);
        u64s(&mut out, &[(at + len) as u64]);
        u32s(&mut out, &[1]);
    }
    u32s(&mut out, &[0x0605_4b50]);
    u16s(&mut out, &[0, 0, count as u16, count as u16]);
    u32s(&mut out, &[len as u32, at as u32]);
    u16s(&mut out, &[style.comment as u16]);
    out.extend(vec![b'!'; style.comment]);
    (out, places)
}

/// Returns styles with every option.
pub(super) fn styles() -> Vec<Style> {
    let mut styles = Vec::new();
    for (deflate, descriptor, zip64) in
        [(false, false, false), (true, false, false), (false, true, false), (true, true, true), (false, false, true)]
    {
        for (extra, before, comment) in [(0, 0, 0), (28, 0, 300), (20, 1000, 5)] {
            styles.push(Style { deflate, descriptor, zip64, extra, before, comment });
        }
    }
    styles
}

/// Returns the names and the bytes of some files, empty ones and folders too.
pub(super) fn files() -> Vec<(&'static str, Vec<u8>)> {
    let names =
        ["zarr.json", "a/", "a/zarr.json", "a/c/0/0", "a/c/0/1", "a/c/1/0", "b/c/0", "b.x/zarr.json", "ü/0", "e"];
    names
        .iter()
        .enumerate()
        .map(|(i, &n)| (n, value(i, if n.ends_with('/') || n == "e" { 0 } else { 700 * i + 1 })))
        .collect()
}
