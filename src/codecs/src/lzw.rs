//! LZW as TIFF has it (TIFF 6.0, section 13), written by imagecodecs, libtiff and GDAL: `imagecodecs_lzw`, and `lzw` of
//! zarr-extensions. Codes have 9 to 12 bits, the most significant bit first, and grow one code early. Old writers put
//! the least significant bit first, and let codes grow late: the first two bytes tell it.
//!
//! As in imagecodecs, data may end without the code for their end, and bytes after that code are ignored.

use weezl::decode::Decoder;
use weezl::{BitOrder, LzwStatus};

use super::single_stream::{IncrementalDecoder, Progress};

/// A decoder of LZW, which begins with the first bytes of its input.
#[derive(Default)]
pub(super) struct Lzw(Option<Decoder>);

impl IncrementalDecoder for Lzw {
    fn step(&mut self, input: &[u8], out: &mut [u8]) -> Result<Progress, String> {
        let decoder = match &mut self.0 {
            Some(decoder) => decoder,
            None => self.0.insert(begin(input)?),
        };
        let done = decoder.decode_bytes(input, out);
        let status = done.status.map_err(|e| e.to_string())?;
        let exhausted = done.consumed_in == input.len() && done.consumed_out == 0;
        let ended = match status {
            LzwStatus::Done => true,
            LzwStatus::NoProgress => exhausted,
            LzwStatus::Ok => false,
        };
        Ok(Progress { read: done.consumed_in, written: done.consumed_out, ended })
    }
}

/// Chooses the order of bits by the first code, which clears the table.
fn begin(input: &[u8]) -> Result<Decoder, String> {
    match input {
        [0x80, second, ..] if second & 0x80 == 0 => Ok(Decoder::with_tiff_size_switch(BitOrder::Msb, 8)),
        [0, second, ..] if second & 1 == 1 => Ok(Decoder::new(BitOrder::Lsb, 8)),
        _ => Err("it doesn't begin with the code that clears the table".into()),
    }
}

#[cfg(test)]
mod tests {
    use crate::chain::Step;
    use crate::compressor::Compressor;
    use crate::testing::sample;
    use weezl::BitOrder;
    use weezl::encode::Encoder;

    #[test]
    fn both_orders_of_bits_and_missing_ends() {
        let data = sample(2, 100_000);
        for mut encoder in [Encoder::with_tiff_size_switch(BitOrder::Msb, 8), Encoder::new(BitOrder::Lsb, 8)] {
            let encoded = encoder.encode(&data).unwrap();
            let mut out = vec![0; data.len()];
            Compressor::Lzw.decode(&encoded, &[], &mut out).unwrap();
            assert_eq!(out, data);
            assert_eq!(Compressor::Lzw.decode_at_most(&encoded, 1 << 20).unwrap(), data);
            assert!(Compressor::Lzw.decode_at_most(&encoded, data.len() - 1).is_err());
            assert!(Compressor::Lzw.decode(&encoded, &[], &mut out[1..]).is_err());
            // Without the code of the end, and with other bytes behind it.
            Compressor::Lzw.decode(&encoded[..encoded.len() - 1], &[], &mut out).unwrap();
            assert_eq!(out, data);
            Compressor::Lzw.decode(&[&encoded[..], b"behind"].concat(), &[], &mut out).unwrap();
            assert_eq!(out, data);
            for cut in [0, 1, 2, 3, encoded.len() / 2, encoded.len() - 4] {
                assert!(Compressor::Lzw.decode(&encoded[..cut], &[], &mut out).is_err(), "cut at {cut}");
            }
            assert!(Compressor::Lzw.decode(&encoded[1..], &[], &mut out).is_err());
        }
        for len in [0, 1, 2, 3, 255, 4095, 4096, 4097] {
            for kind in 0..5 {
                let data = sample(kind, len);
                let encoded = Encoder::with_tiff_size_switch(BitOrder::Msb, 8).encode(&data).unwrap();
                assert!(encoded.len() <= Compressor::Lzw.usual_encoded_bytes(len), "{len} {kind}");
                assert_eq!(Compressor::Lzw.decode_at_most(&encoded, len).unwrap(), data, "{len} {kind}");
            }
        }
    }
}
