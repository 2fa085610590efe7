// Reads bits of a deflate stream. Any number of threads can read, each from any position.
#pragma once
#include "layout.cuh"

namespace dz {

// Returns a word of an input whose bits begin at `begin` and end at `end`, with zeros for bytes outside of it. Takes no
// DeflateInput, so that those of the kernels stay in registers.
DZ_HD_APART uint32_t edge_word(const uint8_t* base, uint64_t begin, uint64_t end, uint64_t index) {
  uint32_t value = 0;
  for (uint32_t i = 0; i < 4; ++i) {
    const uint64_t at = 4 * index + i;
    if (8 * at >= begin && 8 * at < end) value |= uint32_t(base[at]) << (8 * i);
  }
  return value;
}

// Positions of bits count from the aligned word of four bytes that holds the first byte.
struct DeflateInput {
  const uint8_t* base;           // address of that word
  uint64_t begin, end;           // positions of the first bit, and of the one after the last
  uint64_t whole, behind_whole;  // words `whole` to `behind_whole` - 1 lie in the input with all their bytes

  DZ_HD void open(const uint8_t* data, uint64_t bytes) {
#ifdef __CUDA_ARCH__
    const uint32_t skew = uint32_t(reinterpret_cast<uintptr_t>(data) & 3);
#else
    const uint32_t skew = 0;
#endif
    base = data - skew;
    begin = 8 * skew;
    end = begin + 8 * bytes;
    whole = (begin + 31) / 32;
    behind_whole = end / 32;
  }
};

// The words of an input from bit `origin` on, a multiple of 32. Positions count from there, and are below 2^32.
struct DeflateWords {
  const DeflateInput& input;
  uint64_t first;       // index of the word at the origin
  const uint8_t* from;  // its address
  uint32_t whole;       // the first of these words that lies in the input with all its bytes
  uint32_t count;       // number of such words

  DZ_HD DeflateWords(const DeflateInput& input, uint64_t origin) : input(input), first(origin / 32) {
    from = input.base + 4 * first;
    whole = first < input.whole ? uint32_t(input.whole - first) : 0;
    const uint64_t next = first + whole;
    count = next < input.behind_whole ? uint32_t(min64(input.behind_whole - next, 1u << 27)) : 0;
  }

  // Returns word i, with zeros for bytes outside the input.
  DZ_HD uint32_t operator[](uint32_t i) const {
#ifdef __CUDA_ARCH__
    if (i - whole < count) return reinterpret_cast<const uint32_t*>(from)[i];
#endif
    return edge_word(input.base, input.begin, input.end, first + i);
  }

 private:
  static DZ_HD uint64_t min64(uint64_t a, uint64_t b) { return a < b ? a : b; }
};

// Reads forward from one bit. Bits after the input's end are zero; the caller must compare positions with the end. The
// words are no part of it, so that readers can be exchanged without going through memory.
struct BitReader {
  uint32_t loaded;  // position after the last bit in the buffer
  uint32_t held;    // bits in the buffer
  uint64_t buffer;
  uint32_t ahead;  // the word after the buffer

  // Starts at bit `position`.
  DZ_HD void open(const DeflateWords& words, uint32_t position) {
    const uint32_t at = position / 32;
    buffer = (words[at] | uint64_t(words[at + 1]) << 32) >> (position % 32);
    held = 64 - position % 32;
    loaded = 32 * at + 64;
    ahead = words[at + 2];
  }

  DZ_HD uint32_t position() const { return loaded - held; }

  // Makes at least 33 bits ready.
  DZ_HD void refill(const DeflateWords& words) {
    if (held > 32) return;
    buffer |= uint64_t(ahead) << held;
    held += 32;
    loaded += 32;
    ahead = words[loaded / 32];
  }

  DZ_HD uint32_t peek(uint32_t n) const { return uint32_t(buffer) & ((1u << n) - 1); }

  DZ_HD void skip(uint32_t n) {
    buffer >>= n;
    held -= n;
  }

  DZ_HD uint32_t read(uint32_t n) {
    const uint32_t value = peek(n);
    skip(n);
    return value;
  }

  // Takes a symbol by its word (code_word() in inflate_codes.cuh), with its extra bits; both together have at most 28
  // bits. Returns its value.
  DZ_HD uint32_t take(uint32_t word) {
    const uint32_t code = word & 15, extra = word >> 4 & 15;
    const uint32_t value = (word >> 16) + (uint32_t(buffer) >> code & ((1u << extra) - 1));
    skip(code + extra);
    return value;
  }
};

}  // namespace dz
