// The mathematics of the codecs' checksums, and how the checksums of parts are joined.
//
// crc32 (RFC 1952), crc32c (RFC 3720), adler32 (RFC 1950), and the low half of xxh64 with seed 0 (RFC 8878 section
// 3.1.1; XXH64 specification). Runs on host and device, so that it can be tested without a GPU.
#pragma once
#include "layout.cuh"

namespace dz {

enum ChecksumKind : uint32_t { kCrc32, kAdler32, kXxh64Low, kCrc32c };

constexpr uint32_t kAdlerMod = 65521;

// Returns the polynomial without its highest term. Here and below, the bits of a polynomial are reversed: bit 31 is
// x^0.
DZ_HD uint32_t crc_polynomial(uint32_t kind) { return kind == kCrc32c ? 0x82f63b78u : 0xedb88320u; }

// Returns a * b modulo the polynomial.
DZ_HD uint32_t crc_multiply(uint32_t a, uint32_t b, uint32_t poly) {
  uint32_t product = 0;
  for (int bit = 31; bit >= 0; --bit) {
    product ^= b & (0u - ((a >> bit) & 1));
    b = (b >> 1) ^ (poly & (0u - (b & 1)));
  }
  return product;
}

// Returns x^(8 * bytes) modulo the polynomial. A remainder is multiplied by it if `bytes` more bytes follow.
DZ_HD uint32_t crc_shift(uint64_t bytes, uint32_t poly) {
  uint32_t result = 0x80000000u, square = 0x00800000u;  // x^0, x^8
  for (; bytes; bytes >>= 1) {
    if (bytes & 1) result = crc_multiply(result, square, poly);
    square = crc_multiply(square, square, poly);
  }
  return result;
}

// Returns the remainder after one more byte.
DZ_HD uint32_t crc_byte(uint32_t crc, uint8_t byte, uint32_t poly) {
  crc ^= byte;
  for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (poly & (0u - (crc & 1)));
  return crc;
}

// Converts the remainder of a message, which starts from 0, to its checksum, which starts from all ones and is
// inverted.
DZ_HD uint32_t crc_finish(uint32_t remainder, uint64_t bytes, uint32_t poly) {
  return ~(remainder ^ crc_multiply(0xffffffffu, crc_shift(bytes, poly), poly));
}

// The two sums of adler32 over some of the bytes. They are reduced modulo kAdlerMod only when they are joined.
struct AdlerSums {
  uint64_t a, b;
};

// Adds n bytes (at most 16) of the message, which are followed by `after` more bytes.
DZ_HD void adler_add(AdlerSums& sums, const uint8_t* data, uint32_t n, uint64_t after) {
  uint32_t a = 0, b = 0;
  for (uint32_t i = 0; i < n; ++i) {
    a += data[i];
    b += a;
  }
  sums.a += a;
  sums.b += b + (after % kAdlerMod) * a;  // below 2^29, so that 2^35 such steps fit
}

DZ_HD uint32_t adler_finish(AdlerSums sums, uint64_t bytes) {
  const uint64_t a = (1 + sums.a) % kAdlerMod, b = (bytes + sums.b) % kAdlerMod;
  return uint32_t((b << 16) | a);
}

constexpr uint64_t kXxh1 = 0x9e3779b185ebca87ull, kXxh2 = 0xc2b2ae3d27d4eb4full, kXxh3 = 0x165667b19e3779f9ull,
                   kXxh4 = 0x85ebca77c2b2ae63ull, kXxh5 = 0x27d4eb2f165667c5ull;

DZ_HD uint64_t rotate(uint64_t v, int by) { return (v << by) | (v >> (64 - by)); }

// Returns the initial value of lane 0 to 3.
DZ_HD uint64_t xxh_begin(uint32_t lane) {
  return lane == 0 ? kXxh1 + kXxh2 : lane == 1 ? kXxh2 : lane == 2 ? 0 : 0 - kXxh1;
}

// Returns a lane's value after one step. `scaled` is its next eight bytes times kXxh2.
DZ_HD uint64_t xxh_step(uint64_t lane, uint64_t scaled) { return rotate(lane + scaled, 31) * kXxh1; }

DZ_HD uint64_t xxh_mix(uint64_t hash, uint64_t lane) { return (hash ^ xxh_step(0, lane * kXxh2)) * kXxh1 + kXxh4; }

DZ_HD uint64_t xxh_little_endian(const uint8_t* p, int n) {
  uint64_t v = 0;
  for (int i = 0; i < n; ++i) v |= uint64_t(p[i]) << (8 * i);
  return v;
}

// Returns the hash of a message of `bytes` bytes, from its lanes (unused below 32 bytes) and its last bytes % 32 bytes
// at `tail`.
DZ_HD uint64_t xxh_finish(const uint64_t lanes[4], const uint8_t* tail, uint64_t bytes) {
  uint64_t hash = kXxh5;
  if (bytes >= 32) {
    hash = rotate(lanes[0], 1) + rotate(lanes[1], 7) + rotate(lanes[2], 12) + rotate(lanes[3], 18);
    for (int lane = 0; lane < 4; ++lane) hash = xxh_mix(hash, lanes[lane]);
  }
  hash += bytes;
  uint32_t left = uint32_t(bytes % 32);
  for (; left >= 8; left -= 8, tail += 8) {
    hash = rotate(hash ^ xxh_step(0, xxh_little_endian(tail, 8) * kXxh2), 27) * kXxh1 + kXxh4;
  }
  if (left >= 4) {
    hash = rotate(hash ^ (xxh_little_endian(tail, 4) * kXxh1), 23) * kXxh2 + kXxh3;
    left -= 4, tail += 4;
  }
  for (; left; --left, ++tail) hash = rotate(hash ^ (*tail * kXxh5), 11) * kXxh1;
  hash = (hash ^ (hash >> 33)) * kXxh2;
  hash = (hash ^ (hash >> 29)) * kXxh3;
  return hash ^ (hash >> 32);
}

}  // namespace dz
