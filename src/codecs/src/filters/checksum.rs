//! Checksums stored beside the data: CRC-32, CRC-32C, Adler-32, Fletcher-32 and Jenkins' lookup3, four little-endian
//! bytes each.
//!
//! Specifications: Zarr v3's `crc32c`; numcodecs' CRC32, CRC32C and Adler32 (before or after the data), and Fletcher32
//! and JenkinsLookup3 (after the data), which are those of HDF5. Decoding verifies the checksum and skips it, without a
//! copy.

use std::ops::Range;

use crate::chain::{Side, Size, Step};
use crate::codec_entry::CodecEntry;
use crate::on_gpu::OnGpu;
use crate::wrong_size;
use dali_zarr_base::error::{Error, Result};

/// The kinds of checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Checksum {
    /// CRC-32, as in gzip.
    Crc32,
    /// CRC-32 with Castagnoli's polynomial.
    Crc32c,
    /// Adler-32, as in zlib.
    Adler32,
    /// Fletcher-32: sums of big-endian 16-bit words.
    Fletcher32,
    /// lookup3's `hashlittle`, with this initial value.
    Jenkins(u32),
}

/// Length of every checksum in bytes.
const BYTES: usize = 4;

impl Checksum {
    /// Returns the codec's name in metadata.
    fn name(self) -> &'static str {
        match self {
            Self::Crc32 => "crc32",
            Self::Crc32c => "crc32c",
            Self::Adler32 => "adler32",
            Self::Fletcher32 => "fletcher32",
            Self::Jenkins(_) => "jenkins_lookup3",
        }
    }

    /// Computes the checksum of `data`.
    fn of(self, data: &[u8]) -> u32 {
        match self {
            Self::Crc32 => crc32fast::hash(data),
            Self::Crc32c => crc32c::crc32c(data),
            Self::Adler32 => simd_adler32::adler32(&data),
            Self::Fletcher32 => fletcher32(data),
            Self::Jenkins(initial) => lookup3(data, initial),
        }
    }

    /// Verifies the checksum in `encoded` and returns the data. The checksum stands before the data (`at_start`) or
    /// after them.
    ///
    /// # Errors
    /// If the checksum is wrong, or `encoded` is too short to have one.
    fn verify(self, encoded: &[u8], at_start: bool) -> Result<&[u8]> {
        let parts = if at_start {
            encoded.split_first_chunk::<BYTES>().map(|(sum, data)| (data, sum))
        } else {
            encoded.split_last_chunk::<BYTES>()
        };
        let Some((data, stored)) = parts else {
            return Err(Error::damaged(format!(
                "expected data with a {} checksum of {BYTES} bytes, but found {} bytes in all; the chunk is truncated",
                self.name(),
                encoded.len()
            )));
        };
        let (stored, computed) = (u32::from_le_bytes(*stored), self.of(data));
        if stored == computed {
            return Ok(data);
        }
        Err(Error::damaged(format!(
            "expected the {} checksum {stored:#010x}, as stored, but the data's is {computed:#010x}; the chunk is damaged",
            self.name()
        )))
    }
}

/// The codec of a checksum, which stands before the data (`at_start`) or after them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Checksummed {
    pub checksum: Checksum,
    pub at_start: bool,
}

impl Checksummed {
    /// Reads the field `location` of the configuration: "start" or "end", and `default` if it is missing.
    ///
    /// # Errors
    /// If the field has another value.
    pub(crate) fn parse(codec: &CodecEntry<'_>, checksum: Checksum, default: &str) -> Result<Self> {
        match codec.field("location").map_or(Some(default), |found| found.as_str()) {
            Some(place @ ("start" | "end")) => Ok(Self { checksum, at_start: place == "start" }),
            _ => Err(codec.wrong("location", "\"start\" or \"end\"")),
        }
    }

    /// Reads the configuration of numcodecs' JenkinsLookup3.
    ///
    /// # Errors
    /// If `initval` isn't a number of 32 bits, or there is a `prefix`.
    pub(crate) fn jenkins(codec: &CodecEntry<'_>) -> Result<Self> {
        if codec.field("prefix").is_some() {
            return Err(codec.wrong("prefix", "none, which is all that metadata can hold"));
        }
        let initial =
            codec.field("initval").map_or(Some(0), |found| found.as_u64()).and_then(|n| u32::try_from(n).ok());
        let initial = initial.ok_or_else(|| codec.wrong("initval", "a number of 32 bits"))?;
        Ok(Self { checksum: Checksum::Jenkins(initial), at_start: false })
    }
}

impl Step for Checksummed {
    fn encoded_side(&self, side: &Side) -> Result<Side, String> {
        let size = match side.size {
            Size::Exactly(bytes) => Size::Exactly(bytes.checked_add(BYTES).ok_or("it doesn't fit into memory")?),
            Size::AtMost(bytes) => Size::AtMost(bytes.saturating_add(BYTES)),
        };
        Ok(Side { size, ..side.clone() })
    }

    fn inside(&self, encoded: &[u8]) -> Result<Option<Range<usize>>> {
        let data = self.checksum.verify(encoded, self.at_start)?.len();
        let start = if self.at_start { BYTES } else { 0 };
        Ok(Some(start..start + data))
    }

    fn decode(&self, input: &[u8], _shape: &[u64], out: &mut [u8]) -> Result<()> {
        let data = self.checksum.verify(input, self.at_start)?;
        if data.len() != out.len() {
            return Err(wrong_size(out.len(), data.len()));
        }
        out.copy_from_slice(data);
        Ok(())
    }

    fn on_gpu(&self) -> OnGpu {
        OnGpu::Checksum
    }

    fn usual_encoded_bytes(&self, decoded: usize) -> usize {
        decoded.saturating_add(BYTES)
    }
}

/// Computes Fletcher-32. Words are added in runs of 360, too short for either sum to overflow; then both sums are
/// folded to 16 bits with end-around carries. A last odd byte is the high half of a word.
fn fletcher32(data: &[u8]) -> u32 {
    let fold = |sum: u32| (sum & 0xffff) + (sum >> 16);
    let (mut low, mut high) = (0u32, 0u32);
    let (words, rest) = data.as_chunks::<2>();
    for run in words.chunks(360) {
        for &word in run {
            low += u32::from(u16::from_be_bytes(word));
            high += low;
        }
        (low, high) = (fold(low), fold(high));
    }
    if let [last] = *rest {
        low += u32::from(last) << 8;
        high += low;
        (low, high) = (fold(low), fold(high));
    }
    fold(high) << 16 | fold(low)
}

/// Computes Bob Jenkins' `hashlittle` of May 2006: twelve bytes at a time are mixed into three words.
fn lookup3(data: &[u8], initial: u32) -> u32 {
    let word = |bytes: &[u8]| {
        let mut own = [0; 4];
        own[..bytes.len()].copy_from_slice(bytes);
        u32::from_le_bytes(own)
    };
    let start = 0xdead_beef_u32.wrapping_add(data.len() as u32).wrapping_add(initial);
    let (mut a, mut b, mut c) = (start, start, start);
    if data.is_empty() {
        return c;
    }
    // The last block, whole or not, is mixed differently.
    let (blocks, last) = data.split_at((data.len() - 1) / 12 * 12);
    for block in blocks.chunks_exact(12) {
        a = a.wrapping_add(word(&block[..4]));
        b = b.wrapping_add(word(&block[4..8]));
        c = c.wrapping_add(word(&block[8..]));
        for (shift, turn) in [(4, 0), (6, 1), (8, 2), (16, 0), (19, 1), (4, 2)] {
            let (x, y, z) = match turn {
                0 => (&mut a, &mut c, &mut b),
                1 => (&mut b, &mut a, &mut c),
                _ => (&mut c, &mut b, &mut a),
            };
            // x -= y; x ^= rotate(y); y += z
            *x = x.wrapping_sub(*y) ^ y.rotate_left(shift);
            *y = y.wrapping_add(*z);
        }
    }
    let part = |from: usize| word(last.get(from..last.len().min(from + 4)).unwrap_or(&[]));
    a = a.wrapping_add(part(0));
    b = b.wrapping_add(part(4));
    c = c.wrapping_add(part(8));
    for (turn, shift) in [(0, 14), (1, 11), (2, 25), (0, 16), (1, 4), (2, 14), (0, 24)] {
        match turn {
            0 => c = (c ^ b).wrapping_sub(b.rotate_left(shift)),
            1 => a = (a ^ c).wrapping_sub(c.rotate_left(shift)),
            _ => b = (b ^ a).wrapping_sub(a.rotate_left(shift)),
        }
    }
    c
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checksums of the bytes `(37 i + 255) mod 256`, as numcodecs 0.16 computes them.
    #[test]
    fn numcodecs_values() {
        let data: Vec<u8> = (0..1441u32).map(|i| (i * 37 + 255) as u8).collect();
        for (length, expected) in [
            (1, 0xff00_ff00),
            (2, 0xff24_ff24),
            (3, 0x474a_4825),
            (7, 0xdd50_b94c),
            (720, 0x4cb2_828c),
            (721, 0xde3e_918c),
            (1441, 0x1f15_a599),
        ] {
            assert_eq!(fletcher32(&data[..length]), expected, "{length}");
        }
        for (length, expected) in [
            (0, 0xdead_beef),
            (1, 0x2c43_362b),
            (11, 0xf899_e583),
            (12, 0x9a43_9a2d),
            (13, 0x5722_2301),
            (24, 0xfe13_918b),
            (25, 0x9b95_bcf4),
            (100, 0xc9bf_4e0c),
        ] {
            assert_eq!(lookup3(&data[..length], 0), expected, "{length}");
        }
    }

    #[test]
    fn damage_is_named() {
        let kinds = [Checksum::Crc32, Checksum::Crc32c, Checksum::Adler32, Checksum::Fletcher32, Checksum::Jenkins(7)];
        for kind in kinds {
            for at_start in [false, true] {
                let data = b"the data".as_slice();
                let sum = kind.of(data).to_le_bytes();
                let encoded = if at_start { [sum.as_slice(), data].concat() } else { [data, sum.as_slice()].concat() };
                assert_eq!(kind.verify(&encoded, at_start).unwrap(), data);
                for at in 0..encoded.len() {
                    let mut wrong = encoded.clone();
                    wrong[at] ^= 4;
                    let error = kind.verify(&wrong, at_start).unwrap_err();
                    assert!(error.message().contains(kind.name()), "{error}");
                }
                let error = kind.verify(&encoded[..3], at_start).unwrap_err();
                assert!(error.message().contains("truncated"), "{error}");
            }
        }
    }
}
