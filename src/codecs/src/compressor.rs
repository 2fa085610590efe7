//! Compressors as steps of a chain. If one compressor follows another, the decoded size of the second one isn't known.
//!
//! A size claimed by a header never decides how much memory is taken. The output has the size that the metadata give,
//! or it grows with the bytes that are really decoded, up to a limit.

use super::chain::{Chain, Side, Size, Step};
use super::lzma::Lzma;
use super::lzw::Lzw;
use super::on_gpu::OnGpu;
use super::single_stream::{IncrementalDecoder, Progress};
use super::{Compression, blosc, damaged, deflate, wrong_size};
use dali_zarr_base::base64;
use dali_zarr_base::error::{Error, Result};

/// A compressor as a step of a chain.
#[derive(Clone, Debug)]
pub(super) enum Compressor {
    /// A compressor with a decoder for whole chunks.
    Common(Compression),
    /// bzip2, one or several streams.
    Bz2,
    /// xz, lzma and raw LZMA.
    Lzma(Lzma),
    /// LZW of TIFF.
    Lzw,
    /// RFC 1951 without a header, one stream.
    Deflate,
    /// Base64 text. It compresses nothing, but as for compressors, its length doesn't give the decoded size.
    Base64,
}

/// What may follow a stream in the encoded bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Behind {
    /// Anything. It is ignored.
    Anything,
    /// More streams, with zero bytes between or after them.
    Padded,
    /// More streams, and nothing else.
    Streams,
    /// More streams. Bytes that aren't a stream end the data and are ignored, as Python's `bz2` and `lzma` do.
    StreamsOrRest,
}

impl Step for Compressor {
    fn encoded_side(&self, side: &Side) -> Result<Side, String> {
        let (Size::Exactly(bytes) | Size::AtMost(bytes)) = side.size;
        Ok(Side { size: Size::AtMost(self.max_inside(bytes)), ..side.clone() })
    }

    fn decode(&self, encoded: &[u8], _shape: &[u64], out: &mut [u8]) -> Result<()> {
        let expected = out.len();
        match self {
            Self::Common(compression) => return compression.decode(encoded, out),
            Self::Base64 => {
                let found = base64::decode_to(encoded, out).map_err(|e| damaged(self.name(), encoded.len(), e))?;
                return if found == expected { Ok(()) } else { Err(wrong_size(expected, found)) };
            }
            Self::Bz2 | Self::Lzma(_) | Self::Lzw | Self::Deflate => {}
        }
        let mut output = Output { fixed: Some(out), grown: Vec::new(), limit: expected, written: 0 };
        self.streams(encoded, &mut output)?;
        let written = output.written;
        if written == expected { Ok(()) } else { Err(wrong_size(expected, written)) }
    }

    fn decode_at_most(&self, encoded: &[u8], limit: usize) -> Result<Vec<u8>> {
        let (claimed, densest) = match self {
            // A byte of an LZ4 block decodes to at most 255 bytes.
            Self::Common(Compression::Lz4) => {
                (encoded.first_chunk::<4>().map_or(0, |size| u32::from_le_bytes(*size) as usize), 255)
            }
            // The densest inner compressor encodes a run of zeros with one byte for about 30,000.
            Self::Common(Compression::Blosc(..)) => (blosc::decoded_size(encoded)?, 1 << 16),
            Self::Base64 => {
                let mut decoded = vec![0; (encoded.len() / 4 * 3 + 3).min(limit)];
                let found =
                    base64::decode_to(encoded, &mut decoded).map_err(|e| damaged(self.name(), encoded.len(), e))?;
                if found > limit {
                    return Err(too_large(limit, found));
                }
                decoded.truncate(found);
                return Ok(decoded);
            }
            Self::Common(Compression::Zstd | Compression::Gzip | Compression::Zlib)
            | Self::Bz2
            | Self::Lzma(_)
            | Self::Lzw
            | Self::Deflate => {
                let mut output = Output { fixed: None, grown: Vec::new(), limit, written: 0 };
                self.streams(encoded, &mut output)?;
                output.grown.truncate(output.written);
                return Ok(output.grown);
            }
        };
        let most = limit.min(encoded.len().saturating_mul(densest));
        if claimed > most {
            return Err(too_large(most, claimed));
        }
        let mut decoded = vec![0; claimed];
        self.decode(encoded, &[], &mut decoded)?;
        Ok(decoded)
    }

    fn on_gpu(&self) -> OnGpu {
        match self {
            Self::Common(compression) => OnGpu::Streams(*compression),
            Self::Bz2 | Self::Lzma(_) | Self::Lzw | Self::Deflate | Self::Base64 => OnGpu::No,
        }
    }

    fn usual_encoded_bytes(&self, decoded: usize) -> usize {
        match self {
            Self::Common(compression) => compression.usual_encoded_bytes(decoded),
            // bzip2's manual gives 1 % and 600 bytes; an empty stream may follow.
            Self::Bz2 => decoded.saturating_add(decoded / 64).saturating_add(640),
            // LZMA1 has no stored blocks: noise grows by some percent. xz adds headers, padding and an index.
            Self::Lzma(_) => decoded.saturating_add(decoded / 8).saturating_add(1024),
            // Codes of 12 bits for single bytes, and codes that clear the table.
            Self::Lzw => decoded.saturating_add(decoded / 2).saturating_add(decoded / 256).saturating_add(16),
            Self::Deflate => Compression::Zlib.usual_encoded_bytes(decoded),
            Self::Base64 => decoded.div_ceil(3).saturating_mul(4),
        }
    }

    fn max_encoded_bytes(&self, decoded: usize) -> usize {
        match self {
            Self::Common(compression) => compression.max_encoded_bytes(decoded),
            // The number of streams, the bytes after them and the padding have no limit.
            Self::Bz2 | Self::Lzma(_) | Self::Lzw | Self::Deflate | Self::Base64 => usize::MAX,
        }
    }

    fn max_inside(&self, decoded: usize) -> usize {
        let generous = decoded.saturating_mul(2).saturating_add(64 << 10);
        self.max_encoded_bytes(decoded).min(generous)
    }

    fn working_bytes(&self, decoded: usize) -> usize {
        match self {
            Self::Common(compression) => compression.working_bytes(decoded),
            Self::Bz2 | Self::Lzma(_) | Self::Lzw | Self::Deflate | Self::Base64 => 0,
        }
    }
}

impl Compressor {
    /// Returns the codec's name in metadata.
    fn name(&self) -> &'static str {
        match self {
            Self::Common(compression) => compression.name(),
            Self::Bz2 => "bz2",
            Self::Lzma(_) => "lzma",
            Self::Lzw => "lzw",
            Self::Deflate => "deflate",
            Self::Base64 => "base64",
        }
    }

    /// Opens a decoder of one stream that decodes to at most `limit` bytes. `Err` for LZ4, Blosc and base64, which have
    /// no streams.
    fn open(&self, limit: usize) -> Result<Box<dyn IncrementalDecoder>, String> {
        Ok(match self {
            Self::Common(Compression::Zstd) => Box::new(zstd_safe::DCtx::create()),
            Self::Common(Compression::Gzip) => Box::new(flate2::Decompress::new_gzip(15)),
            Self::Common(Compression::Zlib) => Box::new(flate2::Decompress::new(true)),
            Self::Bz2 => Box::new(bzip2::Decompress::new(false)),
            Self::Lzma(lzma) => lzma.open(limit)?,
            Self::Lzw => Box::new(Lzw::default()),
            Self::Deflate => Box::new(flate2::Decompress::new(false)),
            Self::Common(Compression::Lz4 | Compression::Blosc(..)) | Self::Base64 => {
                return Err("it is one block".into());
            }
        })
    }

    /// Decodes all streams in `encoded` to `output`.
    fn streams(&self, encoded: &[u8], output: &mut Output<'_>) -> Result<()> {
        let limit = output.limit;
        let behind = match self {
            Self::Common(Compression::Gzip) => Behind::Padded,
            Self::Common(Compression::Zlib) | Self::Lzw | Self::Deflate => Behind::Anything,
            Self::Common(Compression::Zstd | Compression::Lz4 | Compression::Blosc(..)) | Self::Base64 => {
                Behind::Streams
            }
            Self::Bz2 | Self::Lzma(_) => Behind::StreamsOrRest,
        };
        let damaged = |reason: String| damaged(self.name(), encoded.len(), reason);
        let mut rest = encoded;
        let mut first = true;
        loop {
            if !first && behind == Behind::Padded {
                deflate::another_member(rest)?;
            }
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
}

fn too_large(limit: usize, found: impl std::fmt::Display) -> Error {
    Error::damaged(format!(
        "expected at most {limit} decoded bytes, but found {found}; the chunk is damaged or of another array"
    ))
}

/// The destination of decoded bytes: `fixed` if the decoded size is known, else `grown`.
struct Output<'a> {
    fixed: Option<&'a mut [u8]>,
    /// Grows with the decoded bytes, up to `limit`.
    grown: Vec<u8>,
    /// The most bytes that may be decoded.
    limit: usize,
    /// Bytes decoded so far.
    written: usize,
}

enum Failure {
    Invalid(String),
    Truncated,
    TooLarge,
}

/// Decodes the stream at the start of `rest`, and advances `rest` to its end.
fn one_stream(stream: &mut dyn IncrementalDecoder, rest: &mut &[u8], output: &mut Output<'_>) -> Result<(), Failure> {
    // A decoder reports the end of a stream only if its output buffer isn't empty, even if no more bytes follow.
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
        let Progress { read, written, ended } = stream.step(rest, room).map_err(Failure::Invalid)?;
        *rest = &rest[read.min(rest.len())..];
        output.written += written;
        if output.written > output.limit {
            output.written = output.limit;
            return Err(Failure::TooLarge);
        }
        if ended {
            return Ok(());
        }
        if (read, written) == (0, 0) {
            return Err(Failure::Truncated);
        }
    }
}

impl From<Compression> for Chain {
    fn from(compression: Compression) -> Self {
        Self::new(compression.name().into(), vec![Box::new(Compressor::Common(compression))])
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::BloscCodec;

    fn data() -> Vec<u8> {
        (0..50_000u32).map(|i| (i.wrapping_mul(i) >> 11) as u8).collect()
    }

    fn bz2(data: &[u8]) -> Vec<u8> {
        let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::new(1));
        encoder.write_all(data).unwrap();
        encoder.finish().unwrap()
    }

    fn all() -> Vec<(Compressor, Vec<u8>)> {
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
            (Compressor::Common(Compression::Zstd), zstd),
            (Compressor::Common(Compression::Gzip), gzip.finish().unwrap()),
            (Compressor::Common(Compression::Zlib), zlib.finish().unwrap()),
            (Compressor::Common(Compression::Lz4), lz4),
            (Compressor::Bz2, bz2(&data)),
        ]
    }

    #[test]
    fn sizes_known_and_unknown() {
        let data = data();
        for (compressor, encoded) in all() {
            assert!(encoded.len() <= compressor.usual_encoded_bytes(data.len()), "{compressor:?}");
            let mut out = vec![0; data.len()];
            compressor.decode(&encoded, &[], &mut out).unwrap();
            assert_eq!(out, data, "{compressor:?}");
            for limit in [data.len(), data.len() + 1, 1 << 30] {
                let decoded = compressor.decode_at_most(&encoded, limit).unwrap();
                assert_eq!(decoded, data, "{compressor:?}");
            }
            let error = compressor.decode_at_most(&encoded, data.len() - 1).unwrap_err();
            assert!(error.message().contains("expected at most 49999 decoded bytes"), "{compressor:?}: {error}");
            assert!(compressor.decode(&encoded, &[], &mut out[1..]).is_err(), "{compressor:?}");
            out.push(0);
            assert!(compressor.decode(&encoded, &[], &mut out).is_err(), "{compressor:?}");
            for cut in [0, 1, 3, 20, encoded.len() / 2, encoded.len() - 1] {
                assert!(compressor.decode_at_most(&encoded[..cut], 1 << 20).is_err(), "{compressor:?} cut at {cut}");
                assert!(compressor.decode(&encoded[..cut], &[], &mut out[1..]).is_err(), "{compressor:?} cut at {cut}");
            }
            for at in (0..encoded.len()).step_by(97) {
                let mut wrong = encoded.clone();
                wrong[at] ^= 0x10;
                let _ = compressor.decode(&wrong, &[], &mut out);
                assert!(compressor.decode_at_most(&wrong, 60_000).map_or(0, |d| d.len()) <= 60_000, "{compressor:?}");
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
        Compressor::Bz2.decode(&encoded, &[], &mut out).unwrap();
        assert_eq!(out, data);
        // A valid but truncated second stream is an error, unlike bytes that aren't a stream.
        let end = encoded.len() - 12 - 10;
        assert!(Compressor::Bz2.decode(&encoded[..end], &[], &mut out).is_err());
    }

    #[test]
    fn a_blosc_header_that_claims_too_much() {
        let compressor = Compressor::Common(Compression::Blosc(BloscCodec::Lz4, 0));
        let mut header = [2, 1, 0x21, 4, 0, 0, 0, 0x40, 0, 0, 2, 0, 16, 0, 0, 0];
        let error = compressor.decode_at_most(&header, usize::MAX).unwrap_err();
        assert!(error.message().contains("1073741824"), "{error}");
        header[4..8].copy_from_slice(&64u32.to_le_bytes());
        assert!(compressor.decode(&header, &[], &mut [0; 65]).is_err());
        assert!(compressor.decode(&header, &[], &mut [0; 64]).is_err());
        assert!(compressor.decode(&header[..9], &[], &mut [0; 64]).is_err());
    }
}
