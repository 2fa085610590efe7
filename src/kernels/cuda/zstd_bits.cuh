// Readers of bits for zstd: forward, for the descriptions of FSE tables, and backward, for all entropy-coded streams
// (RFC 8878, section 4.1). Each belongs to one thread. None reads outside the bytes that it was given, but that
// the device loads whole words: an allocation must begin and end at a multiple of four.
#pragma once
#include "layout.cuh"

namespace dz {
namespace zstd {

// Which bit is the highest that is set; not for 0.
DZ_HD uint32_t log2_of(uint32_t value) {
#ifdef __CUDA_ARCH__
  return 31 - __clz(int(value));
#else
  return 31 - uint32_t(__builtin_clz(value));
#endif
}

// The upper half of (high, low) << n, for n below 32.
DZ_HD uint32_t shift_in(uint32_t high, uint32_t low, uint32_t n) {
#ifdef __CUDA_ARCH__
  return __funnelshift_l(low, high, n);
#else
  return n ? high << n | low >> (32 - n) : high;
#endif
}

// Reads forward, least significant bit first.
struct ForwardBits {
  const uint8_t* data;
  uint32_t len;
  uint32_t at;  // bits taken

  // The next n bits (at most 16); zeros behind the end.
  DZ_HD uint32_t peek(uint32_t n) const {
    const uint32_t byte = at / 8;
    uint32_t word = 0;
    for (uint32_t i = 0; i < 3; ++i) {
      if (byte + i < len) word |= uint32_t(data[byte + i]) << (8 * i);
    }
    return word >> (at % 8) & ((1u << n) - 1);
  }

  // Whether as many were there.
  DZ_HD bool skip(uint32_t n) {
    at += n;
    return at <= len * 8;
  }
};

// Reads backward from the highest set bit of the last byte. Behind the beginning come zeros; `left` goes below zero
// then and never comes back, so that it is enough to look at it in the end.
struct BackwardBits {
  const uint8_t* data;
  int32_t left;         // bits not taken yet
  int32_t next;         // index of the word after `ahead`
  uint32_t skew;        // bytes in the first word before data[0]
  uint32_t high, low;   // the next bits, from the highest downward
  uint32_t held;        // how many of them are there
  uint32_t ahead;       // the word that comes next
#ifndef __CUDA_ARCH__
  uint32_t len;
#endif

  DZ_HD uint32_t load(int32_t index) const {
    if (index < 0) return 0;
#ifdef __CUDA_ARCH__
    return __ldg(reinterpret_cast<const uint32_t*>(data - skew) + index);
#else
    uint32_t word = 0;
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t at = uint32_t(index) * 4 + i;
      if (at < len) word |= uint32_t(data[at]) << (8 * i);
    }
    return word;
#endif
  }

  // Whether there is a mark that says where the bits begin. At most 2^17 bytes.
  DZ_HD bool open(const uint8_t* from, uint32_t bytes) {
    if (bytes == 0 || from[bytes - 1] == 0) return false;
    data = from;
#ifdef __CUDA_ARCH__
    skew = uint32_t(reinterpret_cast<uintptr_t>(from) & 3);
#else
    skew = 0;
    len = bytes;
#endif
    left = int32_t((bytes - 1) * 8 + log2_of(from[bytes - 1]));
    const uint32_t position = uint32_t(left) + skew * 8, top = position / 32;
    held = position % 32;
    high = held ? load(int32_t(top)) << (32 - held) : 0;
    low = 0;
    ahead = load(int32_t(top) - 1);
    next = int32_t(top) - 2;
    refill();
    return true;
  }

  // Makes more than 32 bits ready.
  DZ_HD void refill() {
    if (held > 32) return;
    const uint64_t word = uint64_t(ahead) << (32 - held);
    high |= uint32_t(word >> 32);
    low |= uint32_t(word);
    held += 32;
    ahead = load(next);
    --next;
  }

  // The next n bits, for n below 32, of which at least as many are ready.
  DZ_HD uint32_t peek(uint32_t n) const { return shift_in(0, high, n); }

  DZ_HD void drop(uint32_t n) {
    high = shift_in(high, low, n);
    low <<= n;
    held -= n;
    left -= int32_t(n);
  }

  DZ_HD uint32_t take(uint32_t n) {
    const uint32_t value = peek(n);
    drop(n);
    return value;
  }
};

}  // namespace zstd
}  // namespace dz
