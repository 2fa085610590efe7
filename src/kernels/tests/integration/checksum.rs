//! Compares the checksums, computed in parts and joined, with published values and other implementations.

use dali_zarr_kernels::{ChecksumKind, host};
use proptest::prelude::*;
use std::hash::Hasher;

fn xxh64(data: &[u8]) -> u32 {
    let mut hasher = twox_hash::XxHash64::with_seed(0);
    hasher.write(data);
    hasher.finish() as u32
}

#[test]
fn published_values() {
    let check = b"123456789";
    assert_eq!(host::checksum(ChecksumKind::Crc32, check), 0xcbf4_3926);
    assert_eq!(host::checksum(ChecksumKind::Crc32c, check), 0xe306_9283);
    assert_eq!(host::checksum(ChecksumKind::Adler32, b"Wikipedia"), 0x11e6_0398);
    assert_eq!(host::checksum(ChecksumKind::Xxh64Low, b""), 0x51d8_e999);
    assert_eq!(host::checksum(ChecksumKind::Xxh64Low, b"abc"), 0xad77_0999);
    assert_eq!(host::checksum(ChecksumKind::Adler32, b""), 1);
    assert_eq!(host::checksum(ChecksumKind::Crc32, b""), 0);
}

#[test]
fn long_runs_of_the_largest_byte_do_not_overflow() {
    let data = vec![0xff; 5_000_003];
    assert_eq!(host::checksum(ChecksumKind::Adler32, &data), adler2::adler32_slice(&data));
    assert_eq!(host::checksum(ChecksumKind::Crc32, &data), crc32fast::hash(&data));
}

proptest! {
    #[test]
    fn agree_with_other_implementations(data in prop::collection::vec(any::<u8>(), 0..9000)) {
        prop_assert_eq!(host::checksum(ChecksumKind::Crc32, &data), crc32fast::hash(&data));
        prop_assert_eq!(host::checksum(ChecksumKind::Crc32c, &data), crc32c::crc32c(&data));
        prop_assert_eq!(host::checksum(ChecksumKind::Adler32, &data), adler2::adler32_slice(&data));
        prop_assert_eq!(host::checksum(ChecksumKind::Xxh64Low, &data), xxh64(&data));
    }
}
