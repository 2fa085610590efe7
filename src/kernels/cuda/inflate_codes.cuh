// The Huffman codes of deflate blocks (RFC 1951, sections 3.2.2, 3.2.5 to 3.2.7).
#pragma once
#include "inflate_bits.cuh"
#include "team.cuh"

namespace dz {

constexpr uint32_t kMaxBits = 15;
constexpr uint32_t kLiterals = 288, kDistances = 32, kCodeLengths = 19;

// What a code stands for, as a word. Bits 0-4: number of bits of the code and the extra bits that follow it; 5-8: of the
// code; 9-12: of the extra bits; 13-14: Meaning; 16-31: the value if the extra bits are zero: a byte, the length of a
// match, or its distance; in the code for code lengths, a length or a number of lengths. A word that is 0 stands for
// nothing.
enum Meaning : uint32_t {
  kValueCode = 0,
  kMatchCode = 1,   // the value is the length of a match; in the code for code lengths: the last length is repeated
  kEndCode = 2,     // the block ends; in the code for code lengths: a length of zero is repeated
  kNoCodeFound = 3  // the bits are no code
};

// Returns a word without the bits of its code.
DZ_HD uint32_t code_word(uint32_t value, uint32_t extra, Meaning meaning) {
  return value << 16 | meaning << 13 | extra << 9 | extra;
}

// Adds the bits of the code, up to 15, to a word.
DZ_HD uint32_t with_code_bits(uint32_t word, uint32_t bits) { return word + (bits << 5 | bits); }

DZ_HD Meaning meaning(uint32_t word) { return Meaning(word >> 13 & 3); }

// Returns the number of bits of the code and its extra bits, up to 28.
DZ_HD uint32_t total_bits(uint32_t word) { return word & 31; }

DZ_HD uint32_t code_bits(uint32_t word) { return word >> 5 & 15; }

// Returns the value of a word whose code begins `bits`.
DZ_HD uint32_t value_in(uint32_t word, uint32_t bits) {
  const uint32_t extra = word >> 9 & 15;
  return (word >> 16) + (bits >> code_bits(word) & ((1u << extra) - 1));
}

enum class Codes { kLiterals, kDistances, kLengths };

// Returns the word of a symbol, without the bits of its code, sections 3.2.5 and 3.2.7.
DZ_HD uint32_t symbol_word(Codes alphabet, uint32_t s) {
  if (alphabet == Codes::kDistances) {
    if (s < 4) return code_word(s + 1, 0, kValueCode);
    const uint32_t extra = s / 2 - 1;
    return s > 29 ? code_word(0, 0, kNoCodeFound) : code_word(((2 + s % 2) << extra) + 1, extra, kValueCode);
  }
  if (alphabet == Codes::kLengths && s > 15) {
    return s == 16 ? code_word(3, 2, kMatchCode) : s == 17 ? code_word(3, 3, kEndCode) : code_word(11, 7, kEndCode);
  }
  if (s < 256) return code_word(s, 0, kValueCode);
  if (s == 256) return code_word(0, 0, kEndCode);
  if (s < 265) return code_word(s - 254, 0, kMatchCode);
  const uint32_t extra = (s - 261) / 4;
  if (s < 285) return code_word(((4 + (s - 265) % 4) << extra) + 3, extra, kMatchCode);
  return s == 285 ? code_word(258, 0, kMatchCode) : code_word(0, 0, kNoCodeFound);
}

// Returns how many of n lengths equal `value`.
DZ_HD uint32_t count_equal(const uint8_t* lengths, uint32_t n, uint32_t value) {
  uint32_t found = 0, i = 0;
#ifdef __CUDA_ARCH__
  for (; i < n && (reinterpret_cast<uintptr_t>(lengths + i) & 3) != 0; ++i) found += lengths[i] == value;
  for (; i + 4 <= n; i += 4) {
    const uint32_t four = *reinterpret_cast<const uint32_t*>(lengths + i);
    found += __popc(__vcmpeq4(four, value * 0x01010101u)) / 8;
  }
#endif
  for (; i < n; ++i) found += lengths[i] == value;
  return found;
}

// The Huffman code of one alphabet. Codes of up to FAST bits are looked up in one step. Longer codes are searched by
// their length: codes of one length are consecutive numbers, and less than all longer codes if zeros are appended to
// both.
template <uint32_t SYMBOLS, uint32_t FAST>
struct Code {
  uint32_t fast[1 << FAST];      // words of symbols; 0 if there is no such code, or it is longer
  uint32_t sorted[SYMBOLS];      // words of symbols without the bits of their codes, by length, then by value
  uint16_t count[kMaxBits + 1];  // number of symbols of each length
  uint16_t limit[kMaxBits + 1];  // the last code of each length plus 1, with zeros appended to kMaxBits bits
  uint16_t shift[kMaxBits + 1];  // code + shift[length], modulo 2^16, is the symbol's index in `sorted`
  uint32_t valid;                // see build_limits()

  // Finds the symbol whose code begins `bits`, among codes of FROM bits and more. Returns its word; a word of no bits
  // with kNoCodeFound if there is none.
  template <uint32_t FROM>
  DZ_HD uint32_t search(uint32_t bits) const {
#ifdef __CUDA_ARCH__
    const uint32_t value = __brev(bits) >> (32 - kMaxBits);
#else
    uint32_t value = 0;
    for (uint32_t b = 0; b < kMaxBits; ++b) value |= (bits >> b & 1) << (kMaxBits - 1 - b);
#endif
    // Compares with all limits at once: one after the other, each would take the latency of shared memory.
    uint32_t length = FROM;
    DZ_UNROLL_BY(15)
    for (uint32_t l = FROM; l <= kMaxBits; ++l) length += value >= limit[l];
    if (length > kMaxBits) return code_word(0, 0, kNoCodeFound);
    return with_code_bits(sorted[uint16_t((value >> (kMaxBits - length)) + shift[length])], length);
  }

  // Finds the symbol whose code begins `bits`, among codes too long for `fast`.
  DZ_HD uint32_t search_long(uint32_t bits) const { return search<FAST + 1>(bits); }

  // The code for n lengths is built in four steps: build_counts, build_limits, build_sorted and build_fast.
  // build_limits sets `valid`: nonzero if the code is complete, or if `lone` is true and it has at most one symbol, of
  // one bit.
  DZ_HD void build_counts(const uint8_t* lengths, uint32_t n, uint32_t t, uint32_t threads) {
    for (uint32_t l = t; l <= kMaxBits; l += threads) count[l] = uint16_t(l ? count_equal(lengths, n, l) : 0);
  }

  DZ_HD void build_limits(bool lone) {
    uint32_t code = 0, place = 0, longest = 0;
    bool good = true;
    limit[0] = shift[0] = 0;
    for (uint32_t l = 1; l <= kMaxBits; ++l) {
      code <<= 1;
      shift[l] = uint16_t(place - code);
      code += count[l];
      place += count[l];
      good = good && code <= 1u << l;
      limit[l] = uint16_t(code << (kMaxBits - l));
      if (count[l]) longest = l;
    }
    valid = good && (code == 1u << kMaxBits || (lone && longest <= 1));
  }

  DZ_HD void build_sorted(Codes alphabet, const uint8_t* lengths, uint32_t n, uint32_t t, uint32_t threads) {
    for (uint32_t s = t; s < n; s += threads) {
      const uint32_t length = lengths[s];
      if (length == 0) continue;
      // Its place is after the symbols of smaller length, and after earlier symbols of the same length.
      uint32_t place = count_equal(lengths, s, length);
      for (uint32_t l = 1; l < length; ++l) place += count[l];
      sorted[place] = symbol_word(alphabet, s);
    }
  }

  DZ_HD void build_fast(uint32_t t, uint32_t threads) {
    for (uint32_t i = t; i < (1u << FAST); i += threads) {
      const uint32_t word = search<1>(i), length = code_bits(word);
      fast[i] = length && length <= FAST ? word : 0;
    }
  }
};

// Codes of one stream's current block; in shared memory on the device.
struct InflateCodes {
  static constexpr uint32_t kLiteralFast = 11, kDistanceFast = 9;
  static constexpr uint32_t kLiteralMask = (1u << kLiteralFast) - 1, kDistanceMask = (1u << kDistanceFast) - 1;

  Code<kLiterals, kLiteralFast> literal;
  Code<kDistances, kDistanceFast> distance;  // also the code for code lengths, which is not needed at the same time
  uint8_t lengths[kLiterals + kDistances];
  uint32_t literals, distances;  // lengths given for each alphabet
  uint32_t position;             // position after what was read
  uint32_t first_wrong;          // the first wrong symbol of the description of lengths
  bool good;                     // false: the description is damaged

  // Returns the word of the symbol whose code begins `bits`: a distance, or a literal or a length.
  DZ_HD uint32_t find(uint32_t bits, bool is_distance) const {
    const uint32_t* const fast = is_distance ? distance.fast : literal.fast;
    const uint32_t word = fast[bits & (is_distance ? kDistanceMask : kLiteralMask)];
    if (word != 0) return word;
    return is_distance ? distance.search_long(bits) : literal.search_long(bits);
  }
};

// Builds both codes, or only the code for code lengths, in the place of the distance code. Returns whether they are
// valid.
template <uint32_t THREADS>
DZ_HD_APART bool build(const Team<THREADS>& team, InflateCodes& c, bool both, bool lone) {
  const uint32_t literals = both ? c.literals : 0, distances = c.distances;
  const uint8_t* const behind = c.lengths + literals;
  // These steps need few threads, so the two codes use different ones.
  team.each([&](uint32_t t) {
    if (both) c.literal.build_counts(c.lengths, literals, t, THREADS);
    c.distance.build_counts(behind, distances, (t + THREADS / 2) % THREADS, THREADS);
  });
  team.each([&](uint32_t t) {
    if (t == 0 && both) c.literal.build_limits(lone);
    if (t == THREADS / 2) c.distance.build_limits(lone);
  });
  if ((both && !c.literal.valid) || !c.distance.valid) return false;
  team.each([&](uint32_t t) {
    if (both) c.literal.build_sorted(Codes::kLiterals, c.lengths, literals, t, THREADS);
    c.distance.build_sorted(both ? Codes::kDistances : Codes::kLengths, behind, distances, t, THREADS);
  });
  team.each([&](uint32_t t) {
    if (both) c.literal.build_fast(t, THREADS);
    c.distance.build_fast(t, THREADS);
  });
  return true;
}

// Builds the codes of a fixed block, section 3.2.6.
template <uint32_t THREADS>
DZ_HD void fixed_codes(const Team<THREADS>& team, InflateCodes& c) {
  team.each([&](uint32_t t) {
    for (uint32_t i = t; i < kLiterals; i += THREADS) c.lengths[i] = i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : 8;
    for (uint32_t i = t; i < kDistances; i += THREADS) c.lengths[kLiterals + i] = 5;
    if (t > 0) return;
    c.literals = kLiterals;
    c.distances = kDistances;
  });
  build(team, c, true, false);
}

}  // namespace dz
