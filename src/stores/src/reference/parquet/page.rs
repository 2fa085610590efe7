//! The pages of a column: headers, decompression, which rows have values, and the values.

use std::borrow::Cow;
use std::cell::Cell;
use std::io::Read;

use super::thrift::{Reader, TRUE, damaged};
use dali_zarr_base::error::{Error, Result};

/// How pages are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Codec {
    None,
    Snappy,
    Gzip,
    Zstd,
}

impl Codec {
    /// Returns the codec with this number in the file.
    ///
    /// # Errors
    /// If pages of this codec aren't read.
    pub fn new(number: i64) -> Result<Self> {
        Ok(match number {
            0 => Self::None,
            1 => Self::Snappy,
            2 => Self::Gzip,
            6 => Self::Zstd,
            other => {
                return Err(Error::runtime(format!(
                    "expected columns without compression or by Snappy, gzip or zstd (0, 1, 2, 6), but found {other}; write the \
                     references again"
                )));
            }
        })
    }

    /// Decompresses `bytes` to `len` bytes.
    fn decompressed<'a>(self, bytes: &'a [u8], len: usize) -> Result<Cow<'a, [u8]>> {
        let wrong = || damaged(&format!("expected a page that decompresses to {len} bytes, but found another"));
        if self == Self::None {
            return if bytes.len() == len { Ok(Cow::Borrowed(bytes)) } else { Err(wrong()) };
        }
        let mut out = vec![0; len];
        let made = match self {
            // A page without any value may have no compressed bytes.
            _ if len == 0 => Some(0),
            Self::Zstd => zstd_safe::decompress(&mut out[..], bytes).ok(),
            Self::Snappy => snap::raw::Decoder::new().decompress(bytes, &mut out).ok(),
            Self::Gzip => {
                let mut decoder = flate2::read::MultiGzDecoder::new(bytes);
                // Behind the last byte, the decoder verifies the checksum.
                let end = decoder.read_exact(&mut out).and_then(|()| decoder.read(&mut [0]));
                end.ok().map(|more| len + more)
            }
            Self::None => None,
        };
        if made == Some(len) { Ok(Cow::Owned(out)) } else { Err(wrong()) }
    }
}

/// Where the values of a data page come from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Encoding {
    Plain,
    Dictionary,
}

impl Encoding {
    fn new(number: i64) -> Result<Self> {
        match number {
            0 => Ok(Self::Plain),
            2 | 8 => Ok(Self::Dictionary),
            other => Err(Error::runtime(format!(
                "expected plain values or a dictionary (encodings 0, 2 and 8), but found encoding {other}; write the references again"
            ))),
        }
    }
}

/// The kind of a page.
enum Page {
    Dictionary,
    /// A data page of version 1. `levels` is the number of its definition levels' encoding.
    Data {
        levels: i64,
    },
    /// A data page of version 2: the bytes of its repetition and definition levels, which come first and are never
    /// compressed, and whether the rest is compressed.
    Data2 {
        repetition: i64,
        definition: i64,
        compressed: bool,
    },
    /// A page without values.
    Other,
}

struct Header {
    page: Page,
    /// Bytes of the page in the file.
    stored: usize,
    /// Bytes of the page when decompressed.
    len: usize,
    values: u64,
    encoding: i64,
}

fn header(reader: &mut Reader<'_>) -> Result<Header> {
    let (mut kind, mut sizes, mut values, mut encoding) = (-1, (-1, -1), 0, 0);
    let (mut levels, mut lens, mut compressed) = (3, (0, 0), true);
    reader.fields(|r, id, _| {
        match id {
            1 => kind = r.int()?,
            2 => sizes.1 = r.int()?,
            3 => sizes.0 = r.int()?,
            // The header of data pages of version 1, of dictionaries, or of data pages of version 2.
            5 | 7 | 8 => {
                let of = id;
                r.fields(|r, id, kind| {
                    match (of, id) {
                        (_, 1) => values = r.int()?,
                        (5 | 7, 2) | (8, 4) => encoding = r.int()?,
                        (5, 3) => levels = r.int()?,
                        (8, 5) => lens.1 = r.int()?,
                        (8, 6) => lens.0 = r.int()?,
                        (8, 7) => {
                            compressed = kind == TRUE;
                            return Ok(false);
                        }
                        _ => return Ok(false),
                    }
                    Ok(true)
                })?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    let page = match kind {
        0 => Page::Data { levels },
        2 => Page::Dictionary,
        3 => Page::Data2 { repetition: lens.0, definition: lens.1, compressed },
        _ => Page::Other,
    };
    let size = |n: i64| usize::try_from(n).map_err(|_| damaged("expected the size of a page"));
    let values = u64::try_from(values).map_err(|_| damaged("expected a number of values"))?;
    Ok(Header { page, stored: size(sizes.0)?, len: size(sizes.1)?, values, encoding })
}

/// The pages of a column in a row group.
#[derive(Debug)]
pub(super) struct Chunk<'a> {
    pub pages: &'a [u8],
    pub codec: Codec,
}

impl Chunk<'_> {
    /// Reads `rows` rows. Some may be null if the column is `optional`. `value` takes a value from the front of plain
    /// bytes. `put` gets the number and the value of each row that isn't null. The bytes that pages decompress to are
    /// taken from `left`.
    pub fn read<K: Clone>(
        &self,
        (rows, optional): (usize, bool),
        left: &Cell<u64>,
        mut value: impl FnMut(&mut &[u8]) -> Result<K>,
        mut put: impl FnMut(usize, K) -> Result<()>,
    ) -> Result<()> {
        let mut dictionary: Vec<K> = Vec::new();
        let (mut rest, mut row) = (self.pages, 0);
        while row < rows {
            let mut reader = Reader::new(rest);
            let Header { page, stored, len, values, encoding } = header(&mut reader)?;
            let body =
                rest[reader.at()..].get(..stored).ok_or_else(|| damaged("expected pages within their column"))?;
            rest = &rest[reader.at() + stored..];
            let spent = left.get().checked_sub(len as u64);
            left.set(spent.ok_or_else(|| damaged("expected pages that decompress to less than this"))?);
            let count = usize::try_from(values).unwrap_or(usize::MAX);
            // The definition levels say which rows have values. They come before the values of a data page.
            let (levels, values): (Cow<'_, [u8]>, Cow<'_, [u8]>) = match page {
                Page::Other => continue,
                Page::Dictionary => {
                    let bytes = self.codec.decompressed(body, len)?;
                    let mut bytes = &bytes[..];
                    // Each value takes at least one byte.
                    if count > bytes.len() || Encoding::new(encoding)? != Encoding::Plain && encoding != 2 {
                        return Err(damaged("expected a dictionary of plain values"));
                    }
                    dictionary = (0..count).map(|_| value(&mut bytes)).collect::<Result<_>>()?;
                    continue;
                }
                Page::Data { levels } => {
                    let bytes = self.codec.decompressed(body, len)?;
                    if !optional {
                        (Cow::Borrowed(&[]), bytes)
                    } else if levels == 3 {
                        let mut after = &bytes[..];
                        let levels = prefixed(&mut after)?;
                        (Cow::Owned(levels.to_vec()), Cow::Owned(after.to_vec()))
                    } else {
                        return Err(damaged(&format!("expected levels of encoding 3, but found {levels}")));
                    }
                }
                Page::Data2 { repetition, definition, compressed } => {
                    let at =
                        usize::try_from(definition).ok().filter(|&at| repetition == 0 && at <= body.len().min(len));
                    let at = at.ok_or_else(|| damaged("expected levels within their page"))?;
                    let codec = if compressed { self.codec } else { Codec::None };
                    (Cow::Borrowed(&body[..at]), codec.decompressed(&body[at..], len - at)?)
                }
            };
            if count > rows - row {
                return Err(damaged("expected as many values as there are rows, but found more"));
            }
            let mut present = Hybrid::new(&levels, 1);
            let mut plain = &values[..];
            let mut numbers = match Encoding::new(encoding)? {
                Encoding::Plain => None,
                // If all values are null, the page may be empty.
                Encoding::Dictionary => {
                    let width = values.first().copied().unwrap_or(0);
                    if width > 32 {
                        return Err(damaged("expected numbers of at most 32 bits"));
                    }
                    Some(Hybrid::new(values.get(1..).unwrap_or(&[]), width.into()))
                }
            };
            for i in row..row + count {
                if optional && present.next()? == 0 {
                    continue;
                }
                match &mut numbers {
                    None => put(i, value(&mut plain)?)?,
                    Some(numbers) => {
                        let found = dictionary.get(numbers.next()? as usize).cloned();
                        put(
                            i,
                            found.ok_or_else(|| {
                                damaged("expected a number of the dictionary, but found a larger one")
                            })?,
                        )?;
                    }
                }
            }
            row += count;
        }
        Ok(())
    }
}

/// Takes `N` bytes from the front of `rest`.
pub(super) fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N]> {
    let (taken, after) =
        rest.split_first_chunk().ok_or_else(|| damaged("expected more values, but found the page's end"))?;
    *rest = after;
    Ok(*taken)
}

/// Takes a value from the front of `rest`: its length in four bytes, then its bytes.
pub(super) fn prefixed<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8]> {
    let len = u32::from_le_bytes(take(rest)?) as usize;
    let taken = rest.get(..len).ok_or_else(|| damaged("expected a value within its page, but found a longer one"))?;
    *rest = &rest[len..];
    Ok(taken)
}

/// Numbers of `width` bits in Parquet's hybrid encoding: runs of one repeated number, and runs of packed numbers.
struct Hybrid<'a> {
    bytes: &'a [u8],
    width: usize,
    run: Run<'a>,
}

enum Run<'a> {
    /// A number, and how often it is still repeated.
    Equal(u32, u64),
    /// Packed bits, and the position of the next one to read.
    Packed(&'a [u8], usize),
}

impl<'a> Hybrid<'a> {
    fn new(bytes: &'a [u8], width: usize) -> Self {
        Self { bytes, width, run: Run::Equal(0, 0) }
    }

    fn next(&mut self) -> Result<u32> {
        loop {
            match &mut self.run {
                Run::Equal(number, left) if *left > 0 => {
                    *left -= 1;
                    return Ok(*number);
                }
                Run::Packed(bits, at) if *at + self.width <= bits.len() * 8 && self.width > 0 => {
                    let mut number = 0u64;
                    // 32 bits lie in five bytes, wherever they begin.
                    for (i, &byte) in bits[*at / 8..].iter().take(5).enumerate() {
                        number |= u64::from(byte) << (8 * i);
                    }
                    number = number >> (*at % 8) & ((1 << self.width) - 1);
                    *at += self.width;
                    return Ok(number as u32);
                }
                _ => self.run = self.next_run()?,
            }
        }
    }

    fn next_run(&mut self) -> Result<Run<'a>> {
        let short = || damaged("expected more values, but found the page's end");
        let mut head = 0u64;
        for shift in (0..35).step_by(7) {
            let [byte] = take(&mut self.bytes)?;
            head |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                let len = head >> 1;
                if head & 1 == 0 {
                    let (number, after) = self.bytes.split_at_checked(self.width.div_ceil(8)).ok_or_else(short)?;
                    self.bytes = after;
                    let number = number.iter().rev().fold(0, |n, &b| n << 8 | u32::from(b));
                    return Ok(Run::Equal(number, len));
                }
                if self.width == 0 {
                    return Ok(Run::Equal(0, len * 8));
                }
                // Eight numbers take `width` bytes. The last bytes of the data may be left out.
                let bytes = usize::try_from(len).ok().and_then(|len| len.checked_mul(self.width)).ok_or_else(short)?;
                let (bits, after) = self.bytes.split_at(bytes.min(self.bytes.len()));
                self.bytes = after;
                return Ok(Run::Packed(bits, 0));
            }
        }
        Err(damaged("expected a run of at most 2^35 values"))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn all(bytes: &[u8], width: usize, count: usize) -> Result<Vec<u32>> {
        let mut numbers = Hybrid::new(bytes, width);
        (0..count).map(|_| numbers.next()).collect()
    }

    #[test]
    fn runs_and_packed_numbers() {
        // The example of the format's description: 0 to 7 in three bits each.
        assert_eq!(all(&[0x03, 0x88, 0xc6, 0xfa], 3, 8).unwrap(), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(all(&[0x0a, 0x07, 0x03, 0x88, 0xc6, 0xfa], 3, 8).unwrap(), [7, 7, 7, 7, 7, 0, 1, 2]);
        assert_eq!(all(&[0x04, 0x34, 0x12], 16, 2).unwrap(), [0x1234; 2]);
        assert_eq!(all(&[0x03, 1, 2, 3, 4, 5, 6, 7, 8], 32, 2).unwrap(), [0x0403_0201, 0x0807_0605]);
        assert_eq!(all(&[0x03], 0, 8).unwrap(), [0; 8]);
        assert!(all(&[], 7, 0).unwrap().is_empty());
        for (bytes, width) in [(&[][..], 1), (&[0x03], 3), (&[0x02], 8), (&[0x80; 10], 1), (&[0x00, 0x00], 1)] {
            assert!(all(bytes, width, 9).is_err(), "{bytes:?}");
        }
        // A run of 2^34 numbers takes no memory.
        assert_eq!(all(&[0xfe, 0xff, 0xff, 0xff, 0x7f, 1], 1, 3).unwrap(), [1, 1, 1]);
    }

    #[test]
    fn gzip_pages_have_the_length_and_the_checksum_that_they_say() {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(b"0123456789").unwrap();
        let page = encoder.finish().unwrap();
        assert_eq!(Codec::Gzip.decompressed(&page, 10).unwrap(), &b"0123456789"[..]);
        for len in [9, 11] {
            assert!(Codec::Gzip.decompressed(&page, len).is_err(), "{len}");
        }
        let mut damaged = page.clone();
        *damaged.iter_mut().nth_back(7).unwrap() ^= 1;
        assert!(Codec::Gzip.decompressed(&damaged, 10).is_err(), "another CRC-32");
    }
}
