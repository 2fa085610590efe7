//! numcodecs' LZMA, as Python's module `lzma` writes it: xz (format 1), lzma (2) or raw data (3). Format 0 is xz or
//! lzma, detected by the decoder.
//!
//! Decoded by liblzma. The size of the dictionary in memory comes from a header or the metadata. For raw data it is
//! limited to the decoded size, because no match can reach further. For xz and lzma, a dictionary far larger than the
//! chunk is an error.

use liblzma::stream::{Action, Filters, Status};
use serde_json::{Map, Value};

use super::single_stream::{IncrementalDecoder, Progress};
use dali_zarr_base::error::{Error, Result};
use dali_zarr_base::json::shown;

/// Memory in bytes that a decoder may always take, whatever the decoded size: about twice that of `xz -9`.
const MEMORY: u64 = 128 << 20;

/// How the data are framed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Lzma {
    /// xz or lzma, detected from the data.
    Auto,
    /// xz, one or several streams.
    Xz,
    /// The older lzma format: LZMA 1 with a header.
    Alone,
    /// Raw data without a header. The metadata give the filters.
    Raw(Vec<Filter>),
}

/// A filter of raw data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Filter {
    /// LZMA 1: the byte with `lc`, `lp` and `pb`, and the dictionary size in bytes.
    Lzma1(u8, u32),
    /// LZMA 2: the dictionary size in bytes.
    Lzma2(u32),
    /// Differences between bytes at a distance. The value is the distance minus 1.
    Delta(u8),
    /// A filter for machine code: its number, and its start offset.
    Branch(u64, u32),
}

impl Lzma {
    /// Reads the codec's configuration.
    ///
    /// # Errors
    /// If it has an unknown format, or a filter that isn't supported.
    pub(super) fn parse(configuration: &Map<String, Value>) -> Result<Self> {
        let field = |key: &str| configuration.get(key).filter(|value| !value.is_null());
        let wrong = |what: &str, found: &Value| {
            Error::value(format!("codec \"lzma\": expected {what}, but found {}", shown(found)))
        };
        Ok(match field("format").map(|format| (format, format.as_u64())) {
            Some((_, Some(0))) => Self::Auto,
            None | Some((_, Some(1))) => Self::Xz,
            Some((_, Some(2))) => Self::Alone,
            Some((_, Some(3))) => {
                let found = field("filters").unwrap_or(&Value::Null);
                let filters = found.as_array().and_then(|list| list.iter().map(filter).collect::<Option<Vec<_>>>());
                let filters = filters.filter(|filters| (1..=4).contains(&filters.len()));
                Self::Raw(filters.ok_or_else(|| wrong("the one to four filters of the raw format", found))?)
            }
            Some((found, _)) => return Err(wrong("the format 0 (auto), 1 (xz), 2 (lzma) or 3 (raw)", found)),
        })
    }

    /// Opens a decoder of one stream that decodes to at most `limit` bytes.
    pub(super) fn open(&self, limit: usize) -> Result<Box<dyn IncrementalDecoder>, String> {
        let memory = MEMORY.max((limit as u64).saturating_mul(4));
        let stream = match self {
            Self::Auto => liblzma::stream::Stream::new_auto_decoder(memory, 0),
            Self::Xz => liblzma::stream::Stream::new_stream_decoder(memory, 0),
            Self::Alone => liblzma::stream::Stream::new_lzma_decoder(memory),
            Self::Raw(filters) => {
                let most = u32::try_from(limit).unwrap_or(u32::MAX).max(4096);
                let mut chain = Filters::new();
                for filter in filters {
                    filter.push(&mut chain, most).map_err(|e| e.to_string())?;
                }
                liblzma::stream::Stream::new_raw_decoder(&chain)
            }
        };
        Ok(Box::new(stream.map_err(|e| e.to_string())?))
    }
}

impl IncrementalDecoder for liblzma::stream::Stream {
    fn step(&mut self, input: &[u8], out: &mut [u8]) -> Result<Progress, String> {
        let (read, written) = (self.total_in(), self.total_out());
        let status = match self.process(input, out, Action::Run) {
            Ok(status) => status,
            Err(liblzma::stream::Error::MemLimit) => {
                return Err("it asks for a dictionary that is far larger than the chunk".into());
            }
            Err(e) => return Err(e.to_string()),
        };
        let (read, written) = ((self.total_in() - read) as usize, (self.total_out() - written) as usize);
        Ok(Progress { read, written, ended: status == Status::StreamEnd })
    }
}

impl Filter {
    /// Adds the filter to `chain`, with a dictionary of at most `most` bytes.
    fn push(&self, chain: &mut Filters, most: u32) -> Result<(), liblzma::stream::Error> {
        match *self {
            Self::Lzma1(properties, dictionary) => {
                let [a, b, c, d] = dictionary.min(most).to_le_bytes();
                chain.lzma1_properties(&[properties, a, b, c, d])?;
            }
            Self::Lzma2(dictionary) => {
                // LZMA 2 encodes dictionary sizes of 2 or 3 times a power of two.
                let size = |code: u8| (2 | u64::from(code) & 1) << (code / 2 + 11);
                let wanted = u64::from(dictionary.min(most));
                let code = (0..40).find(|&code| size(code) >= wanted).unwrap_or(40);
                chain.lzma2_properties(&[code])?;
            }
            Self::Delta(distance) => {
                chain.delta_properties(&[distance])?;
            }
            Self::Branch(id, offset) => {
                let offset = offset.to_le_bytes();
                let properties = if offset == [0; 4] { &[][..] } else { &offset };
                match id {
                    4 => chain.x86_properties(properties)?,
                    5 => chain.powerpc_properties(properties)?,
                    6 => chain.ia64_properties(properties)?,
                    7 => chain.arm_properties(properties)?,
                    8 => chain.arm_thumb_properties(properties)?,
                    _ => chain.sparc_properties(properties)?,
                };
            }
        }
        Ok(())
    }
}

/// Reads a filter in the form of Python's module `lzma`. `None` if it isn't valid.
fn filter(value: &Value) -> Option<Filter> {
    const LZMA1: u64 = 0x4000_0000_0000_0001;
    let number = |key: &str, default: u64| match value.get(key) {
        None | Some(Value::Null) => Some(default),
        Some(found) => found.as_u64(),
    };
    Some(match value.get("id")?.as_u64()? {
        id @ (LZMA1 | 0x21) => {
            // Bit 31 of a preset means "extreme", which only concerns encoders.
            let preset = usize::try_from(number("preset", 6)? & 0x7fff_ffff).ok()?;
            let default = *[18u32, 20, 21, 22, 22, 23, 23, 24, 25, 26].get(preset)?;
            let dictionary = u32::try_from(number("dict_size", 1 << default)?).ok()?;
            let (lc, lp, pb) = (number("lc", 3)?, number("lp", 0)?, number("pb", 2)?);
            if lc > 4 || lp > 4 || lc + lp > 4 || pb > 4 {
                return None;
            }
            if id == LZMA1 {
                Filter::Lzma1(((pb * 5 + lp) * 9 + lc) as u8, dictionary)
            } else {
                Filter::Lzma2(dictionary)
            }
        }
        3 => Filter::Delta(u8::try_from(number("dist", 1)?.checked_sub(1)?).ok()?),
        id @ 4..=9 => Filter::Branch(id, u32::try_from(number("start_offset", 0)?).ok()?),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use liblzma::stream::{Check, LzmaOptions};
    use serde_json::json;

    use super::*;
    use crate::chain::Step;
    use crate::compressor::Compressor;

    fn parse(configuration: Value) -> Result<Lzma> {
        Lzma::parse(configuration.as_object().unwrap())
    }

    fn encode(mut stream: liblzma::stream::Stream, data: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(2 * data.len() + 1024);
        assert_eq!(stream.process_vec(data, &mut out, Action::Finish), Ok(Status::StreamEnd));
        out
    }

    #[test]
    fn formats() {
        let data: Vec<u8> = (0..30_000u32).map(|i| (i.wrapping_mul(i) >> 10) as u8).collect();
        let mut options = LzmaOptions::new_preset(1).unwrap();
        options.literal_context_bits(1).literal_position_bits(2).position_bits(0);
        let easy = |check| liblzma::stream::Stream::new_easy_encoder(3, check).unwrap();
        let mut twice = encode(easy(Check::Crc64), &data[..100]);
        twice.extend(encode(easy(Check::Crc32), &data[100..]));
        // Bytes that are long enough for a header but aren't one end the data.
        twice.extend([1; 12]);
        let raw1 = {
            let mut chain = Filters::new();
            chain.lzma1(&options);
            liblzma::stream::Stream::new_raw_encoder(&chain).unwrap()
        };
        let raw2 = {
            let mut chain = Filters::new();
            chain.delta_properties(&[3]).unwrap();
            chain.lzma2(&LzmaOptions::new_preset(9).unwrap());
            liblzma::stream::Stream::new_raw_encoder(&chain).unwrap()
        };
        let cases = [
            (json!({}), encode(easy(Check::None), &data)),
            (json!({"format": 1, "check": -1, "preset": null, "filters": null}), twice.clone()),
            (json!({"format": 0}), twice),
            (json!({"format": 2}), encode(liblzma::stream::Stream::new_lzma_encoder(&options).unwrap(), &data)),
            (
                json!({"format": 3, "filters": [{"id": 0x4000_0000_0000_0001u64, "preset": 1, "lc": 1, "lp": 2, "pb": 0}]}),
                encode(raw1, &data),
            ),
            (json!({"format": 3, "filters": [{"id": 3, "dist": 4}, {"id": 33, "preset": 9}]}), encode(raw2, &data)),
        ];
        for (configuration, encoded) in cases {
            let compressor = Compressor::Lzma(parse(configuration.clone()).unwrap());
            let mut out = vec![0; data.len()];
            compressor.decode(&encoded, &[], &mut out).unwrap_or_else(|e| panic!("{configuration}: {e}"));
            assert_eq!(out, data, "{configuration}");
            assert_eq!(compressor.decode_at_most(&encoded, 1 << 20).unwrap(), data, "{configuration}");
            assert!(compressor.decode_at_most(&encoded, data.len() - 1).is_err(), "{configuration}");
            for cut in [0, 5, 13, encoded.len() / 2] {
                assert!(compressor.decode(&encoded[..cut], &[], &mut out).is_err(), "{configuration} cut at {cut}");
            }
            for at in (0..encoded.len()).step_by(41) {
                let mut wrong = encoded.clone();
                wrong[at] ^= 0x20;
                let _ = compressor.decode(&wrong, &[], &mut out);
            }
        }
    }

    #[test]
    fn a_dictionary_out_of_proportion() {
        // An lzma header with a dictionary of 2 GiB.
        let mut encoded = vec![0x5d];
        encoded.extend((2u32 << 30).to_le_bytes());
        encoded.extend([0xff; 8]);
        encoded.extend([0; 32]);
        let error = Compressor::Lzma(Lzma::Alone).decode(&encoded, &[], &mut [0; 64]).unwrap_err();
        assert!(error.message().contains("dictionary"), "{error}");
    }

    #[test]
    fn wrong_configurations() {
        for configuration in [
            json!({"format": 4}),
            json!({"format": "xz"}),
            json!({"format": 3}),
            json!({"format": 3, "filters": []}),
            json!({"format": 3, "filters": [{"id": 77}]}),
            json!({"format": 3, "filters": [{"id": 33, "preset": 10}]}),
            json!({"format": 3, "filters": [{"id": 33, "lc": 4, "lp": 1}]}),
            json!({"format": 3, "filters": [{"id": 3, "dist": 257}]}),
            json!({"format": 3, "filters": [{"id": 3, "dist": 0}]}),
        ] {
            let error = parse(configuration.clone()).unwrap_err();
            assert!(error.message().contains("lzma"), "{configuration}: {error}");
        }
    }
}
