// Reads bits of a deflate stream. Any number of threads can read, each from any position.
#pragma once
#include "warp.cuh"

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

// The words of a span of the input that a block of threads has copied to `words`, which is in shared memory on the
// device. Each thread reads its own segment, of an odd number of words, so that threads at the same word of their
// segments use different banks of shared memory.
struct SpanWords {
  const uint32_t* words;

  DZ_HD uint32_t operator[](uint32_t i) const { return words[i]; }
};

// A position in a stream, and the bits from there on. Bits after the input's end are zero; the caller must compare
// positions with the end. `Words` are DeflateWords or SpanWords. They are no part of a reader, so that it stays in
// registers.
//
// The steps of reading are a chain in which each waits for the one before. So they have no branches, and the word after
// the next one is loaded before it is known to be needed.
struct BitReader {
  uint32_t position;          // of the next bit, in the words
  uint32_t low, high, ahead;  // the word with this bit, and the two after it

  template <class Words>
  DZ_HD BitReader(const Words& words, uint32_t at)
      : position(at), low(words[at / 32]), high(words[at / 32 + 1]), ahead(words[at / 32 + 2]) {}

  // Returns the next 32 bits.
  DZ_HD uint32_t bits() const { return shift_out(high, low, position); }

  // Moves n bits forward, up to 32.
  template <class Words>
  DZ_HD void skip(const Words& words, uint32_t n) {
    const uint32_t next = position + n;
    const bool is_same_word = position / 32 == next / 32;
    low = is_same_word ? low : high;
    high = is_same_word ? high : ahead;
    position = next;
    ahead = words[next / 32 + 2];
  }

  // Returns the next n bits, up to 31, and moves behind them.
  template <class Words>
  DZ_HD uint32_t read(const Words& words, uint32_t n) {
    const uint32_t value = bits() & ((1u << n) - 1);
    skip(words, n);
    return value;
  }
};

}  // namespace dz
