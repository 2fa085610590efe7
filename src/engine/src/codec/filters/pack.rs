//! Compressors anywhere in a chain: also where another compressor follows, so that the decoded size isn't known.
//!
//! What a header claims never decides how much memory is taken: output goes to memory of the size that the metadata
//! say, or grows with what is really decoded, up to a limit.

use zarrs::array::codec::BloscCodec;
use zarrs::array::{ArrayBytesRaw, BytesRepresentation, BytesToBytesCodecTraits, CodecOptions};

use super::lzma::Lzma;
use crate::codec::fallback::{blosc_sizes, caught};
use crate::codec::{Compression, wrong_size};
use crate::error::{Error, Result};

/// A compressor.
#[derive(Clone, Debug)]
pub(super) enum Packer {
    /// Zstandard: any number of frames.
    Zstd,
    /// gzip: any number of members.
    Gzip,
    /// zlib: one stream.
    Zlib,
    /// numcodecs' LZ4.
    Lz4,
    /// Blosc 1, through zarrs.
    Blosc,
    /// bzip2: one stream or several.
    Bz2,
    /// xz, lzma and raw LZMA.
    Lzma(Lzma),
}

/// One decoder of one stream.
pub(super) trait Stream {
    /// Decodes some of `input` to `out`; how much was read and written, and whether the stream ended.
    fn step(&mut self, input: &[u8], out: &mut [u8]) -> Result<(usize, usize, bool), String>;
}

/// What may stand behind a stream.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Behind {
    /// Anything; it isn't looked at.
    Anything,
    /// More streams, with zero bytes between them.
    Padded,
    /// More streams.
    Streams,
    /// More streams; what isn't one ends the data, as for Python's `bz2` and `lzma`.
    StreamsOrRest,
}

impl Packer {
    /// Fills `out` from `encoded`.
    ///
    /// # Errors
    /// If `encoded` is damaged, or decodes to another size.
    pub(super) fn decode(&self, encoded: &[u8], out: &mut [u8]) -> Result<()> {
        let expected = out.len();
        let written = match self {
            Self::Zstd => return Compression::Zstd.decode(encoded, out),
            Self::Gzip => return Compression::Gzip.decode(encoded, out),
            Self::Zlib => return Compression::Zlib.decode(encoded, out),
            Self::Lz4 => return Compression::Lz4.decode(encoded, out),
            Self::Blosc => {
                let decoded = blosc(encoded, expected, true)?;
                out.copy_from_slice(&decoded);
                return Ok(());
            }
            Self::Bz2 | Self::Lzma(_) => {
                let mut output = Output { fixed: Some(out), grown: Vec::new(), limit: expected, written: 0 };
                self.streams(encoded, &mut output)?;
                output.written
            }
        };
        if written == expected { Ok(()) } else { Err(wrong_size(expected, written)) }
    }

    /// Decodes to at most `limit` bytes.
    ///
    /// # Errors
    /// If `encoded` is damaged, or decodes to more.
    pub(super) fn decode_at_most(&self, encoded: &[u8], limit: usize) -> Result<Vec<u8>> {
        let mut output = Output { fixed: None, grown: Vec::new(), limit, written: 0 };
        match self {
            Self::Blosc => return blosc(encoded, limit, false),
            Self::Lz4 => {
                let claimed = encoded.first_chunk::<4>().map_or(0, |size| u32::from_le_bytes(*size) as usize);
                // A byte of an LZ4 block stands for at most 255.
                let most = limit.min(encoded.len().saturating_mul(255));
                if claimed > most {
                    return Err(too_large(most, claimed));
                }
                output.grown = vec![0; claimed];
                Compression::Lz4.decode(encoded, &mut output.grown)?;
                return Ok(output.grown);
            }
            _ => self.streams(encoded, &mut output)?,
        }
        output.grown.truncate(output.written);
        Ok(output.grown)
    }

    /// The name in metadata.
    fn name(&self) -> &'static str {
        match self {
            Self::Zstd => "zstd",
            Self::Gzip => "gzip",
            Self::Zlib => "zlib",
            Self::Lz4 => "lz4",
            Self::Blosc => "blosc",
            Self::Bz2 => "bz2",
            Self::Lzma(_) => "lzma",
        }
    }

    /// A decoder of one stream that decodes to at most `limit` bytes; LZ4 and Blosc have no streams.
    fn open(&self, limit: usize) -> Result<Box<dyn Stream>, String> {
        Ok(match self {
            Self::Zstd => Box::new(zstd_safe::DCtx::create()),
            Self::Gzip => Box::new(flate2::Decompress::new_gzip(15)),
            Self::Zlib => Box::new(flate2::Decompress::new(true)),
            Self::Bz2 => Box::new(bzip2::Decompress::new(false)),
            Self::Lzma(lzma) => lzma.open(limit)?,
            Self::Lz4 | Self::Blosc => return Err("it is one block".into()),
        })
    }

    /// Decodes all streams in `encoded`.
    fn streams(&self, encoded: &[u8], output: &mut Output<'_>) -> Result<()> {
        let limit = output.limit;
        let behind = match self {
            Self::Gzip => Behind::Padded,
            Self::Bz2 | Self::Lzma(_) => Behind::StreamsOrRest,
            Self::Zlib => Behind::Anything,
            _ => Behind::Streams,
        };
        let damaged = |reason: String| {
            Error::runtime(format!(
                "expected {} bytes of {} data, but they can't be decoded: {reason}; the chunk is damaged",
                encoded.len(),
                self.name()
            ))
        };
        let mut rest = encoded;
        let mut first = true;
        loop {
            let before = output.written;
            match one_stream(self.open(limit).map_err(damaged)?.as_mut(), &mut rest, output) {
                Ok(()) => {}
                Err(Failure::Invalid(_)) if !first && behind == Behind::StreamsOrRest => {
                    output.written = before;
                    return Ok(());
                }
                Err(Failure::Invalid(reason)) => return Err(damaged(reason)),
                Err(Failure::Truncated) => return Err(damaged("the data ends too early".into())),
                Err(Failure::TooLarge) => return Err(too_large(limit, "more")),
            }
            first = false;
            if behind == Behind::Padded {
                let zeros = rest.iter().take_while(|&&byte| byte == 0).count();
                rest = &rest[zeros..];
            }
            if rest.is_empty() || behind == Behind::Anything {
                return Ok(());
            }
        }
    }

    /// The most bytes to which writers in use encode `decoded` bytes.
    pub(super) fn max_encoded_bytes(&self, decoded: usize) -> usize {
        match self {
            Self::Zstd => Compression::Zstd.max_encoded_bytes(decoded),
            Self::Gzip => Compression::Gzip.max_encoded_bytes(decoded),
            Self::Zlib => Compression::Zlib.max_encoded_bytes(decoded),
            Self::Lz4 => Compression::Lz4.max_encoded_bytes(decoded),
            // BLOSC_MAX_OVERHEAD.
            Self::Blosc => decoded.saturating_add(16),
            // bzip2's manual: 1 % and 600 bytes; an empty stream may follow.
            Self::Bz2 => decoded.saturating_add(decoded / 64).saturating_add(640),
            // LZMA1 has no stored blocks: noise grows by some percent. xz adds headers, padding and an index.
            Self::Lzma(_) => decoded.saturating_add(decoded / 8).saturating_add(1024),
        }
    }
}

fn too_large(limit: usize, found: impl std::fmt::Display) -> Error {
    Error::runtime(format!(
        "expected at most {limit} decoded bytes, but found {found}; the chunk is damaged or of another array"
    ))
}

/// Where decoded bytes go.
struct Output<'a> {
    fixed: Option<&'a mut [u8]>,
    /// Else.
    grown: Vec<u8>,
    limit: usize,
    written: usize,
}

enum Failure {
    Invalid(String),
    Truncated,
    TooLarge,
}

/// Decodes a stream at the start of `rest`, and moves `rest` behind it.
fn one_stream(stream: &mut dyn Stream, rest: &mut &[u8], output: &mut Output<'_>) -> Result<(), Failure> {
    // A decoder sees the end of a stream only when it is given room, also if no byte comes any more.
    let mut spare = [0; 1];
    loop {
        let room = match &mut output.fixed {
            _ if output.written >= output.limit => &mut spare[..],
            Some(fixed) => &mut fixed[output.written..],
            None => {
                if output.grown.len() <= output.written {
                    let more = output.grown.len().max(rest.len()).max(4096);
                    output.grown.resize(output.written.saturating_add(more).min(output.limit), 0);
                }
                &mut output.grown[output.written..]
            }
        };
        let (read, written, end) = stream.step(rest, room).map_err(Failure::Invalid)?;
        *rest = &rest[read.min(rest.len())..];
        output.written += written;
        if output.written > output.limit {
            output.written = output.limit;
            return Err(Failure::TooLarge);
        }
        if end {
            return Ok(());
        }
        if (read, written) == (0, 0) {
            return Err(Failure::Truncated);
        }
    }
}

impl Stream for flate2::Decompress {
    fn step(&mut self, input: &[u8], out: &mut [u8]) -> Result<(usize, usize, bool), String> {
        let (read, written) = (self.total_in(), self.total_out());
        let status = self.decompress(input, out, flate2::FlushDecompress::Finish).map_err(|e| e.to_string())?;
        let counts = ((self.total_in() - read) as usize, (self.total_out() - written) as usize);
        Ok((counts.0, counts.1, status == flate2::Status::StreamEnd))
    }
}

impl Stream for bzip2::Decompress {
    fn step(&mut self, input: &[u8], out: &mut [u8]) -> Result<(usize, usize, bool), String> {
        let (read, written) = (self.total_in(), self.total_out());
        let status = self.decompress(input, out).map_err(|e| e.to_string())?;
        let counts = ((self.total_in() - read) as usize, (self.total_out() - written) as usize);
        Ok((counts.0, counts.1, status == bzip2::Status::StreamEnd))
    }
}

impl Stream for zstd_safe::DCtx<'_> {
    fn step(&mut self, input: &[u8], out: &mut [u8]) -> Result<(usize, usize, bool), String> {
        let mut input = zstd_safe::InBuffer::around(input);
        let mut output = zstd_safe::OutBuffer::around(out);
        let hint = self
            .decompress_stream(&mut output, &mut input)
            .map_err(|code| zstd_safe::get_error_name(code).to_owned())?;
        Ok((input.pos, output.pos(), hint == 0))
    }
}

/// Decodes Blosc data to exactly (`exact`) or at most `size` bytes.
fn blosc(encoded: &[u8], size: usize, exact: bool) -> Result<Vec<u8>> {
    let claimed = blosc_sizes(encoded)?;
    if exact && claimed != size {
        return Err(wrong_size(size, claimed));
    }
    // The densest inner compressor writes a run of zeros in about one byte of 30000.
    if claimed > size || claimed > encoded.len().saturating_mul(1 << 16) {
        return Err(too_large(size, claimed));
    }
    let configuration = serde_json::json!({"cname": "lz4", "clevel": 5, "shuffle": "noshuffle", "blocksize": 0});
    let decoded = caught(|| {
        // What readers need stands in the header.
        let codec = serde_json::from_value(configuration)
            .map_err(|e| e.to_string())
            .and_then(|c| BloscCodec::new_with_configuration(&c).map_err(|e| e.to_string()))?;
        let representation = BytesRepresentation::FixedSize(claimed as u64);
        codec
            .decode(ArrayBytesRaw::Borrowed(encoded), &representation, &CodecOptions::default())
            .map(ArrayBytesRaw::into_owned)
            .map_err(|e| e.to_string())
    })
    .map_err(|reason| {
        Error::runtime(format!(
            "expected {} bytes of blosc data, but they can't be decoded: {reason}; the chunk is damaged",
            encoded.len()
        ))
    })?;
    if decoded.len() == claimed { Ok(decoded) } else { Err(wrong_size(claimed, decoded.len())) }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn data() -> Vec<u8> {
        (0..50_000u32).map(|i| (i.wrapping_mul(i) >> 11) as u8).collect()
    }

    fn bz2(data: &[u8]) -> Vec<u8> {
        let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::new(1));
        encoder.write_all(data).unwrap();
        encoder.finish().unwrap()
    }

    fn all() -> Vec<(Packer, Vec<u8>)> {
        let data = data();
        let mut zstd = Vec::with_capacity(zstd_safe::compress_bound(data.len()));
        zstd_safe::compress(&mut zstd, &data, 3).unwrap();
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(3));
        gzip.write_all(&data).unwrap();
        let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::new(3));
        zlib.write_all(&data).unwrap();
        let mut lz4 = (data.len() as u32).to_le_bytes().to_vec();
        lz4.extend(lz4_flex::block::compress(&data));
        vec![
            (Packer::Zstd, zstd),
            (Packer::Gzip, gzip.finish().unwrap()),
            (Packer::Zlib, zlib.finish().unwrap()),
            (Packer::Lz4, lz4),
            (Packer::Bz2, bz2(&data)),
        ]
    }

    #[test]
    fn sizes_known_and_unknown() {
        let data = data();
        for (packer, encoded) in all() {
            assert!(encoded.len() <= packer.max_encoded_bytes(data.len()), "{packer:?}");
            let mut out = vec![0; data.len()];
            packer.decode(&encoded, &mut out).unwrap();
            assert_eq!(out, data, "{packer:?}");
            for limit in [data.len(), data.len() + 1, 1 << 30] {
                let decoded = packer.decode_at_most(&encoded, limit).unwrap();
                assert_eq!(decoded, data, "{packer:?}");
            }
            let error = packer.decode_at_most(&encoded, data.len() - 1).unwrap_err();
            assert!(error.message().contains("expected at most 49999 decoded bytes"), "{packer:?}: {error}");
            assert!(packer.decode(&encoded, &mut out[1..]).is_err(), "{packer:?}");
            out.push(0);
            assert!(packer.decode(&encoded, &mut out).is_err(), "{packer:?}");
            for cut in [0, 1, 3, 20, encoded.len() / 2, encoded.len() - 1] {
                assert!(packer.decode_at_most(&encoded[..cut], 1 << 20).is_err(), "{packer:?} cut at {cut}");
                assert!(packer.decode(&encoded[..cut], &mut out[1..]).is_err(), "{packer:?} cut at {cut}");
            }
            for at in (0..encoded.len()).step_by(97) {
                let mut wrong = encoded.clone();
                wrong[at] ^= 0x10;
                let _ = packer.decode(&wrong, &mut out);
                assert!(packer.decode_at_most(&wrong, 60_000).map_or(0, |d| d.len()) <= 60_000, "{packer:?}");
            }
        }
    }

    #[test]
    fn several_bzip2_streams_and_what_is_none() {
        let data = data();
        let mut encoded = bz2(&data[..1000]);
        encoded.extend(bz2(&data[1000..]));
        encoded.extend(b"not a stream");
        let mut out = vec![0; data.len()];
        Packer::Bz2.decode(&encoded, &mut out).unwrap();
        assert_eq!(out, data);
        // A stream that begins well and ends too early isn't "anything".
        let end = encoded.len() - 12 - 10;
        assert!(Packer::Bz2.decode(&encoded[..end], &mut out).is_err());
    }

    #[test]
    fn a_blosc_header_that_claims_too_much() {
        let mut header = [2, 1, 0x21, 4, 0, 0, 0, 0x40, 0, 0, 2, 0, 16, 0, 0, 0];
        let error = Packer::Blosc.decode_at_most(&header, usize::MAX).unwrap_err();
        assert!(error.message().contains("1073741824"), "{error}");
        header[4..8].copy_from_slice(&64u32.to_le_bytes());
        assert!(Packer::Blosc.decode(&header, &mut [0; 65]).is_err());
        assert!(Packer::Blosc.decode(&header, &mut [0; 64]).is_err());
        assert!(Packer::Blosc.decode(&header[..9], &mut [0; 64]).is_err());
    }
}
