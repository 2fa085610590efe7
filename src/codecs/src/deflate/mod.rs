//! gzip and zlib: Zarr's gzip codec, numcodecs' GZip and Zlib.
//!
//! Specifications: RFC 1952 and RFC 1950. Decoded on the CPU by libdeflate, or by zlib-rs what that refuses; both verify
//! checksums. Decoded on the GPU by this project's `dz_inflate_*`. As in Python's modules, gzip data may have several
//! members with zero bytes after each, and bytes after a zlib stream are ignored.

pub(super) mod streams;
mod whole;

use flate2::{Decompress, FlushDecompress, Status};

use super::{Compression, damaged, wrong_size};
use dali_zarr_base::error::{Error, Result};

/// Fills `out` from the gzip members in `encoded`.
pub(super) fn decode_gzip(encoded: &[u8], out: &mut [u8]) -> Result<()> {
    members(encoded, out, one)
}

/// Fills `out` from the gzip members in `encoded`, each of which `decode` decodes, as [`one`] does.
fn members(encoded: &[u8], out: &mut [u8], decode: DecodeOne) -> Result<()> {
    let (mut read, mut written) = (0, 0);
    loop {
        (read, written) = decode(Compression::Gzip, (encoded, read), (out, written))?;
        read += encoded[read..].iter().take_while(|&&byte| byte == 0).count();
        if read == encoded.len() {
            break;
        }
        another_member(&encoded[read..])?;
    }
    if written == out.len() { Ok(()) } else { Err(wrong_size(out.len(), written)) }
}

/// Checks that `rest`, the bytes after a gzip member, begins with another member.
///
/// # Errors
/// If it doesn't.
pub(super) fn another_member(rest: &[u8]) -> Result<()> {
    if rest.starts_with(b"\x1f\x8b") {
        return Ok(());
    }
    Err(Error::damaged(format!(
        "expected nothing but gzip members, but found {} bytes behind them that are none; the chunk is damaged",
        rest.len()
    )))
}

/// Fills `out` from the zlib stream in `encoded`.
pub(super) fn decode_zlib(encoded: &[u8], out: &mut [u8]) -> Result<()> {
    zlib_stream(encoded, out, one)
}

/// Fills `out` from the zlib stream in `encoded`, which `decode` decodes, as [`one`] does.
fn zlib_stream(encoded: &[u8], out: &mut [u8], decode: DecodeOne) -> Result<()> {
    let (_, written) = decode(Compression::Zlib, (encoded, 0), (out, 0))?;
    if written == out.len() { Ok(()) } else { Err(wrong_size(out.len(), written)) }
}

/// Decodes the gzip member or zlib stream that begins at `encoded[begin]` to `out[from..]`. Returns its end in `encoded` and in
/// `out`.
type DecodeOne = fn(Compression, (&[u8], usize), (&mut [u8], usize)) -> Result<(usize, usize)>;

/// By libdeflate, and by zlib-rs what that refuses. It is a [`DecodeOne`].
fn one(kind: Compression, (encoded, begin): (&[u8], usize), (out, from): (&mut [u8], usize)) -> Result<(usize, usize)> {
    match whole::decode(kind, &encoded[begin..], &mut out[from..]) {
        Some((read, written)) => Ok((begin + read, from + written)),
        None => stream(kind, (encoded, begin), (out, from)),
    }
}

/// By zlib-rs. It is a [`DecodeOne`].
fn stream(
    kind: Compression,
    (encoded, begin): (&[u8], usize),
    (out, from): (&mut [u8], usize),
) -> Result<(usize, usize)> {
    let mut decoder = if kind == Compression::Gzip { Decompress::new_gzip(15) } else { Decompress::new(true) };
    let expected = out.len();
    // The decoder reports the end of a stream only if its output buffer isn't empty, even if no more bytes follow.
    let mut spare = [0; 1];
    loop {
        let read = begin + decoder.total_in() as usize;
        let written = from + decoder.total_out() as usize;
        let room = if written < expected { &mut out[written..] } else { &mut spare[..] };
        let status = decoder
            .decompress(&encoded[read..], room, FlushDecompress::Finish)
            .map_err(|e| damaged(kind, encoded.len(), e))?;
        let (now_read, now_written) = (begin + decoder.total_in() as usize, from + decoder.total_out() as usize);
        if now_written > expected {
            return Err(wrong_size(expected, "more"));
        }
        if status == Status::StreamEnd {
            return Ok((now_read, now_written));
        }
        if (now_read, now_written) == (read, written) {
            return Err(damaged(kind, encoded.len(), "the data ends too early"));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression as Level;
    use flate2::write::{GzEncoder, ZlibEncoder};

    use super::*;

    fn gzip(data: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Level::new(5));
        encoder.write_all(data).unwrap();
        encoder.finish().unwrap()
    }

    fn zlib(data: &[u8]) -> Vec<u8> {
        let mut encoder = ZlibEncoder::new(Vec::new(), Level::new(1));
        encoder.write_all(data).unwrap();
        encoder.finish().unwrap()
    }

    fn data() -> Vec<u8> {
        (0..200_000u32).map(|i| (i.wrapping_mul(i) >> 9) as u8).collect()
    }

    #[test]
    fn members_padding_and_garbage() {
        let data = data();
        let mut encoded = gzip(&data[..70_000]);
        encoded.extend(gzip(&[]));
        encoded.extend(gzip(&data[70_000..]));
        let mut out = vec![0; data.len()];
        decode_gzip(&encoded, &mut out).unwrap();
        assert_eq!(out, data);
        encoded.extend([0; 5]);
        decode_gzip(&encoded, &mut out).unwrap();
        encoded.extend(b"\nabc");
        let error = decode_gzip(&encoded, &mut out).unwrap_err();
        assert!(error.message().contains("found 4 bytes behind them that are none"), "{error}");
        let error = decode_gzip(&[], &mut out).unwrap_err();
        assert!(error.message().contains("expected gzip data, but found no bytes at all"), "{error}");
    }

    fn by_libdeflate(
        kind: Compression,
        (encoded, begin): (&[u8], usize),
        (out, from): (&mut [u8], usize),
    ) -> Result<(usize, usize)> {
        let found = whole::decode(kind, &encoded[begin..], &mut out[from..]);
        found.map(|(read, written)| (begin + read, from + written)).ok_or_else(|| Error::damaged("refused"))
    }

    #[test]
    fn what_one_decoder_takes_the_other_takes_too() {
        type Decode = fn(&[u8], &mut [u8], DecodeOne) -> Result<()>;
        let data = &data()[..3000];
        let mut members = gzip(&data[..1000]);
        members.extend([0; 3]);
        members.extend(gzip(&data[1000..]));
        // A header with a name, a comment, bytes of its own, and a checksum, which one of the two doesn't verify.
        let mut builder =
            flate2::GzBuilder::new().filename("n").comment("c").extra(vec![7; 9]).write(Vec::new(), Level::new(6));
        builder.write_all(data).unwrap();
        let named = builder.finish().unwrap();
        let mut trailing = zlib(data);
        trailing.extend(b"behind");
        let mut taken = 0;
        for (is_gzip, encoded) in
            [(true, gzip(data)), (true, members), (true, named), (false, zlib(data)), (false, trailing)]
        {
            let mut check = |encoded: &[u8], len: usize, what: &str| {
                let (mut whole, mut streamed) = (vec![1; len], vec![2; len]);
                let decode = if is_gzip { super::members as Decode } else { zlib_stream };
                let took = (
                    decode(encoded, &mut whole, by_libdeflate).is_ok(),
                    decode(encoded, &mut streamed, stream).is_ok(),
                );
                assert!(!took.0 || (took.1 && whole == streamed), "{what}");
                taken += usize::from(took.0);
                took.0
            };
            assert!(check(&encoded, data.len(), "as it is"));
            for len in [0, data.len() - 1, data.len() + 1] {
                assert!(!check(&encoded, len, "another length"));
            }
            for at in 0..encoded.len() {
                check(&encoded[..at], data.len(), "cut");
                for bit in 0..8 {
                    let mut damaged = encoded.clone();
                    damaged[at] ^= 1 << bit;
                    check(&damaged, data.len(), &format!("bit {bit} of byte {at}"));
                }
            }
        }
        assert!(taken > 50, "bits of times and names don't matter: {taken}");
    }

    #[test]
    fn truncation_damage_and_sizes() {
        let data = data();
        type Decode = fn(&[u8], &mut [u8]) -> Result<()>;
        for (encoded, decode) in [(gzip(&data), decode_gzip as Decode), (zlib(&data), decode_zlib as Decode)] {
            let mut out = vec![0; data.len()];
            decode(&encoded, &mut out).unwrap();
            assert_eq!(out, data);
            for cut in [0, 1, 5, encoded.len() / 2, encoded.len() - 5, encoded.len() - 1] {
                assert!(decode(&encoded[..cut], &mut out).is_err(), "cut at {cut}");
            }
            let mut wrong = encoded.clone();
            let at = wrong.len() - 6;
            wrong[at] ^= 1;
            assert!(decode(&wrong, &mut out).is_err(), "damage must show in the checksum");
            let error = decode(&encoded, &mut out[1..]).unwrap_err();
            assert!(error.message().contains("expected 199999 decoded bytes, but found more"), "{error}");
            out.push(0);
            let error = decode(&encoded, &mut out).unwrap_err();
            assert!(error.message().contains("expected 200001 decoded bytes, but found 200000"), "{error}");
        }
    }
}
