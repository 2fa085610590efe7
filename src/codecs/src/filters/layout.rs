//! Filters that only move bits and bytes: numcodecs' PackBits and Shuffle, and v3's `transpose` and `bytes` after other
//! filters.

use super::element::swap_bytes;
use crate::chain::{Side, Size, Step};
use crate::codec_entry::{CodecEntry, Format};
use crate::on_gpu::OnGpu;
use crate::wrong_size;
use dali_zarr_base::dtype::DType;
use dali_zarr_base::error::{Error, Result};

/// numcodecs' PackBits: a byte with the number of unused bits in the last byte, then eight bools in each byte, the
/// first one in the highest bit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PackBits;

impl Step for PackBits {
    fn encoded_side(&self, side: &Side) -> Result<Side, String> {
        let bytes = self.usual_encoded_bytes(side.elements(1)?);
        Ok(Side { size: Size::Exactly(bytes), shape: vec![bytes as u64], dtype: DType::U8 })
    }

    fn decode(&self, input: &[u8], _shape: &[u64], out: &mut [u8]) -> Result<()> {
        let [unused, packed @ ..] = input else {
            return Err(Error::damaged("expected packbits data, but found no bytes; the chunk is truncated"));
        };
        if packed.len() != out.len().div_ceil(8) || usize::from(*unused) != packed.len() * 8 - out.len() {
            return Err(Error::damaged(format!(
                "expected packbits data of {} bools, but found {} bytes with {unused} bits unused; the chunk is damaged",
                out.len(),
                packed.len()
            )));
        }
        for (eight, byte) in out.chunks_mut(8).zip(packed) {
            for (bit, target) in eight.iter_mut().enumerate() {
                *target = byte >> (7 - bit) & 1;
            }
        }
        Ok(())
    }

    fn usual_encoded_bytes(&self, decoded: usize) -> usize {
        1 + decoded.div_ceil(8)
    }
}

/// numcodecs' Shuffle of elements of this many bytes: the first bytes of all elements, then their second bytes, and so
/// on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shuffle(usize);

impl Shuffle {
    /// Reads the configuration. The default element size is 4 bytes in v2, and that of the array's type in v3.
    ///
    /// # Errors
    /// If the element size isn't a whole number.
    pub(crate) fn parse(codec: &CodecEntry<'_>) -> Result<Self> {
        let default = if codec.format == Format::V2 { 4 } else { codec.array.size() as u64 };
        let size = codec.field("elementsize").map_or(Some(default), |found| found.as_u64());
        let size = size.and_then(|n| usize::try_from(n).ok());
        Ok(Self(size.ok_or_else(|| codec.wrong("elementsize", "a whole number"))?))
    }
}

impl Step for Shuffle {
    fn encoded_side(&self, side: &Side) -> Result<Side, String> {
        Ok(side.clone())
    }

    fn decode(&self, input: &[u8], _shape: &[u64], out: &mut [u8]) -> Result<()> {
        let size = self.0;
        if input.len() != out.len() {
            return Err(wrong_size(out.len(), input.len()));
        }
        if size <= 1 {
            out.copy_from_slice(input);
            return Ok(());
        }
        if !input.len().is_multiple_of(size) {
            return Err(Error::damaged(format!(
                "expected shuffled elements of {size} bytes, but found {} bytes, which aren't a multiple; the chunk is \
                 damaged",
                input.len()
            )));
        }
        let count = input.len() / size;
        for (element, target) in out.chunks_exact_mut(size).enumerate() {
            for (byte, value) in target.iter_mut().enumerate() {
                *value = input[byte * count + element];
            }
        }
        Ok(())
    }

    fn on_gpu(&self) -> OnGpu {
        OnGpu::Shuffle(self.0)
    }
}

/// v3's `transpose`: axis `k` of the encoded elements is axis `order[k]` of the decoded ones.
#[derive(Clone, Debug)]
pub(crate) struct Transpose {
    pub order: Vec<usize>,
    /// Size of an element in bytes.
    pub size: usize,
}

impl Step for Transpose {
    fn encoded_side(&self, side: &Side) -> Result<Side, String> {
        let count = side.elements(self.size)? as u64;
        if self.order.len() != side.shape.len() || side.shape.iter().product::<u64>() != count {
            return Err("a transposition of other axes than there are".into());
        }
        let shape = self.order.iter().map(|&axis| side.shape[axis]).collect();
        Ok(Side { shape, ..side.clone() })
    }

    fn decode(&self, input: &[u8], shape: &[u64], out: &mut [u8]) -> Result<()> {
        // Distance in bytes from one element of `input` to the next, along each axis of `shape`.
        let mut steps = vec![0usize; shape.len()];
        let mut step = self.size;
        for &axis in self.order.iter().rev() {
            steps[axis] = step;
            step *= shape[axis] as usize;
        }
        let mut at = vec![0u64; shape.len()];
        let mut from = 0usize;
        for target in out.chunks_exact_mut(self.size) {
            target.copy_from_slice(&input[from..from + self.size]);
            for axis in (0..shape.len()).rev() {
                at[axis] += 1;
                from += steps[axis];
                if at[axis] < shape[axis] {
                    break;
                }
                from -= steps[axis] * shape[axis] as usize;
                at[axis] = 0;
            }
        }
        Ok(())
    }
}

/// v3's `bytes` after filters of elements, if the byte order isn't this machine's. The value is the element size in
/// bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SwapBytes(pub usize);

impl Step for SwapBytes {
    fn encoded_side(&self, side: &Side) -> Result<Side, String> {
        side.elements(self.0).map(|_| side.clone())
    }

    fn decode(&self, input: &[u8], _shape: &[u64], out: &mut [u8]) -> Result<()> {
        out.copy_from_slice(input);
        swap_bytes(out, self.0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits() {
        let mut out = [9; 4];
        PackBits.decode(&[4, 0b1001_0000], &[], &mut out).unwrap();
        assert_eq!(out, [1, 0, 0, 1]);
        let mut out = [9; 8];
        PackBits.decode(&[0, 0b0100_0001], &[], &mut out).unwrap();
        assert_eq!(out, [0, 1, 0, 0, 0, 0, 0, 1]);
        for wrong in [&[][..], &[0], &[1, 0], &[0, 0, 0], &[255, 0]] {
            assert!(PackBits.decode(wrong, &[], &mut [0; 8]).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn bytes() {
        let mut out = [0; 6];
        Shuffle(2).decode(&[1, 3, 5, 2, 4, 6], &[], &mut out).unwrap();
        assert_eq!(out, [1, 2, 3, 4, 5, 6]);
        Shuffle(0).decode(&[1, 3, 5, 2, 4, 6], &[], &mut out).unwrap();
        assert_eq!(out, [1, 3, 5, 2, 4, 6]);
        assert!(Shuffle(4).decode(&[0; 6], &[], &mut out).is_err());
    }

    #[test]
    fn axes() {
        // The shape (2, 3, 2) is stored as (3, 2, 2): axes 1, 2, 0.
        let input: Vec<u8> = (0..12).flat_map(|i: u16| i.to_ne_bytes()).collect();
        let mut out = vec![0; 24];
        Transpose { order: vec![1, 2, 0], size: 2 }.decode(&input, &[2, 3, 2], &mut out).unwrap();
        let found: Vec<u16> = out.as_chunks::<2>().0.iter().map(|b| u16::from_ne_bytes(*b)).collect();
        // Element (i, j, k) lies at (j, k, i).
        let expected: Vec<u16> =
            (0..12).map(|n| (n / 6, n / 2 % 3, n % 2)).map(|(i, j, k)| j * 4 + k * 2 + i).collect();
        assert_eq!(found, expected);
    }
}
