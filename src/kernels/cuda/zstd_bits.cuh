// Bit readers for zstd: forward, for the descriptions of FSE tables, and backward, for all entropy-coded streams (RFC
// 8878, section 4.1). Each reader belongs to one thread, and reads only the bytes that it was given. But the device
// loads aligned words of four and of 16 bytes, so an allocation must begin and end at a multiple of 16.
#pragma once
#include "warp.cuh"

namespace dz {
namespace zstd {

// Returns the index of the highest set bit; `value` must not be 0.
DZ_HD uint32_t log2_of(uint32_t value) {
#ifdef __CUDA_ARCH__
  return 31 - __clz(int(value));
#else
  return 31 - uint32_t(__builtin_clz(value));
#endif
}

// Returns the upper 32 bits of the 64-bit number (high, low) shifted left by n % 32.
DZ_HD uint32_t shift_in(uint32_t high, uint32_t low, uint32_t n) {
#ifdef __CUDA_ARCH__
  return __funnelshift_l(low, high, n);
#else
  return uint32_t((uint64_t(high) << 32 | low) << n % 32 >> 32);
#endif
}

// Returns the n % 32 highest bits.
DZ_HD uint32_t top(uint32_t value, uint32_t n) { return shift_in(0, value, n); }

// Reads forward, least significant bit first.
struct ForwardBits {
  const uint8_t* data;
  uint32_t len;  // bytes
  uint32_t at;   // bits taken

  // Returns the next n bits (at most 16) without taking them; zeros after the end.
  DZ_HD uint32_t peek(uint32_t n) const {
    const uint32_t byte = at / 8;
    uint32_t word = 0;
    for (uint32_t i = 0; i < 3; ++i) {
      if (byte + i < len) word |= uint32_t(data[byte + i]) << (8 * i);
    }
    return word >> (at % 8) & ((1u << n) - 1);
  }

  // Takes n bits. Returns false if fewer were left.
  DZ_HD bool skip(uint32_t n) {
    at += n;
    return at <= len * 8;
  }
};

// Three words, the highest first. They hold the next 64 bits: those below bit `shift` % 32 of word[0].
struct Words {
  uint32_t word[3], shift;

  // The next 32 bits, and the 32 bits after them. The bit that is read first is the highest.
  DZ_HD uint32_t high() const { return shift_out(word[0], word[1], shift); }
  DZ_HD uint32_t low() const { return shift_out(word[1], word[2], shift); }
};

// Distance in words from the word that is used to the word that is prefetched: three times what the L1 cache loads at
// once.
constexpr int32_t kPrefetch = 24;

// Reads backward from the highest set bit of the last byte. The position is its only state. Words are loaded again for
// each read, which costs little if the next position is known early.
//
// Bits before the first byte are meaningless. When they are read, the position goes below `begin` and never comes back,
// so it is enough to check it at the end. The device reads up to twelve bytes before the data, or eight before the word
// that holds a block's first byte; the header of a frame has as many. fetch() reads whole aligned 16 bytes.
struct BackwardBits {
  const uint8_t* base;  // address of the word that holds the first byte
  int32_t at;           // bits from `base` to the end of the bits that are left
  int32_t begin;        // bits from `base` to the first byte
#ifndef __CUDA_ARCH__
  uint32_t len;
#endif

  DZ_HD uint32_t word(int32_t index) const {
#ifdef __CUDA_ARCH__
    return __ldg(reinterpret_cast<const uint32_t*>(base) + index);
#else
    uint32_t value = 0;
    for (int32_t i = 0; i < 4; ++i) {
      const int32_t byte = index * 4 + i;
      if (byte >= 0 && uint32_t(byte) < len) value |= uint32_t(base[byte]) << (8 * i);
    }
    return value;
#endif
  }

  // Prepares to read `bytes` bytes from `first` on. Positions count from the word that holds the first one.
  DZ_HD void reach(const uint8_t* first, uint32_t bytes) {
#ifdef __CUDA_ARCH__
    (void)bytes;
    const uint32_t skew = uint32_t(reinterpret_cast<uintptr_t>(first) & 3);
#else
    const uint32_t skew = 0;
    len = bytes;
#endif
    base = first - skew;
    begin = int32_t(skew * 8);
  }

  // Starts at the end of `bytes` bytes from `from` on. The `before` bytes before them can be read too; all together are
  // at most 2^17. Returns false if the last byte holds no mark where the bits begin.
  DZ_HD bool open(const uint8_t* from, uint32_t bytes, uint32_t before = 0) {
    if (bytes == 0 || from[bytes - 1] == 0) return false;
    reach(from - before, before + bytes);
    begin += int32_t(before * 8);
    at = begin + int32_t((bytes - 1) * 8 + log2_of(from[bytes - 1]));
    return true;
  }

  DZ_HD int32_t left() const { return at - begin; }

  // Returns the number of words from the multiple of 16 at or below `base` to `base`.
  DZ_HD uint32_t skew() const {
#ifdef __CUDA_ARCH__
    return uint32_t(reinterpret_cast<uintptr_t>(base) & 15) / 4;
#else
    return 0;
#endif
  }

  // Starts to copy the four words from index 4 * chunk - skew() on to `to`, an address in shared memory and a multiple
  // of 16. They are there after fetched().
  DZ_HD void fetch(uint32_t chunk, uint32_t* to) const {
#ifdef __CUDA_ARCH__
    const uint4* const from = reinterpret_cast<const uint4*>(base - 4 * skew()) + chunk;
#if __CUDA_ARCH__ >= 800
    const uint32_t shared = uint32_t(__cvta_generic_to_shared(to));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(from) : "memory");
#else
    *reinterpret_cast<uint4*>(to) = __ldg(from);
#endif
#else
    for (uint32_t i = 0; i < 4; ++i) to[i] = word(int32_t(4 * chunk + i));
#endif
  }

  // Prefetches the words that are needed some time after word `index`, which lie below it.
  DZ_HD void prefetch(int32_t index) const {
    const uint32_t later = uint32_t(index > kPrefetch ? index - kPrefetch : 0);
#ifdef __CUDA_ARCH__
    asm volatile("prefetch.global.L1 [%0];" ::"l"(base + 4 * uint64_t(later)));
#else
    (void)later;
#endif
  }

  // Loads the words that hold the 64 bits to be read next at position `from`.
  DZ_HD Words load(int32_t from) const {
    const int32_t position = from < 0 ? 0 : from, index = position >> 5;
    prefetch(index);
    return {word(index), word(index - 1), word(index - 2), uint32_t(position) & 31};
  }

  // Takes the next n bits, for n below 32.
  DZ_HD uint32_t take(uint32_t n) {
    const uint32_t value = top(load(at).high(), n);
    at -= int32_t(n);
    return value;
  }
};

// Ends a group of fetches of the thread. fetched<N>() waits for all groups but the last N. fetched() waits for all
// fetches.
DZ_HD void fetch_group() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

template <int N>
DZ_HD void fetched() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}

DZ_HD void fetched() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

}  // namespace zstd
}  // namespace dz
