// The Huffman codes of deflate blocks (RFC 1951, sections 3.2.2, 3.2.5 to 3.2.7).
#pragma once
#include "inflate_bits.cuh"
#include "team.cuh"

namespace dz {

constexpr uint32_t kMaxBits = 15;
constexpr uint32_t kLiterals = 288, kDistances = 32, kCodeLengths = 19;
constexpr uint32_t kNoSymbol = 0xfff;

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
  uint16_t fast[1 << FAST];      // symbol << 4 | length; 0 if there is no such code, or it is longer
  uint16_t sorted[SYMBOLS];      // symbols by length, then by value
  uint16_t count[kMaxBits + 1];  // number of symbols of each length
  uint16_t limit[kMaxBits + 1];  // the last code of each length plus 1, with zeros appended to kMaxBits bits
  uint16_t shift[kMaxBits + 1];  // code + shift[length], modulo 2^16, is the symbol's index in `sorted`
  uint32_t valid;                // see build_limits()

  // Finds the symbol whose code begins `bits`, among codes of FROM bits and more. Returns symbol << 4 | length;
  // kNoSymbol << 4 if there is none.
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
    if (length > kMaxBits) return kNoSymbol << 4;
    return uint32_t(sorted[uint16_t((value >> (kMaxBits - length)) + shift[length])]) << 4 | length;
  }

  // Takes one symbol. Returns kNoSymbol, and takes no bits, if there is no such code. At least kMaxBits bits must be
  // ready.
  DZ_HD uint32_t take(BitReader& bits) const {
    uint32_t entry = fast[bits.peek(FAST)];
    if (entry == 0) entry = search<FAST + 1>(uint32_t(bits.buffer));
    bits.take(entry & 15);
    return entry >> 4;
  }

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

  DZ_HD void build_sorted(const uint8_t* lengths, uint32_t n, uint32_t t, uint32_t threads) {
    for (uint32_t s = t; s < n; s += threads) {
      const uint32_t length = lengths[s];
      if (length == 0) continue;
      // Its place is after the symbols of smaller length, and after earlier symbols of the same length.
      uint32_t place = count_equal(lengths, s, length);
      for (uint32_t l = 1; l < length; ++l) place += count[l];
      sorted[place] = uint16_t(s);
    }
  }

  DZ_HD void build_fast(uint32_t t, uint32_t threads) {
    for (uint32_t i = t; i < (1u << FAST); i += threads) {
      const uint32_t entry = search<1>(i), length = entry & 15;
      fast[i] = uint16_t(length && length <= FAST ? entry : 0);
    }
  }
};

// Codes of one stream's current block; in shared memory on the device.
struct InflateCodes {
  Code<kLiterals, 11> literal;
  Code<kDistances, 9> distance;  // also the code for code lengths, which is not needed at the same time
  uint8_t lengths[kLiterals + kDistances];
  uint32_t literals, distances;  // lengths given for each alphabet
  uint64_t at;                   // bit position after what was read
  bool good;                     // false: the description is damaged
};

// Builds both codes, or only the distance code. Returns whether they are valid.
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
    if (both) c.literal.build_sorted(c.lengths, literals, t, THREADS);
    c.distance.build_sorted(behind, distances, t, THREADS);
  });
  team.each([&](uint32_t t) {
    if (both) c.literal.build_fast(t, THREADS);
    c.distance.build_fast(t, THREADS);
  });
  return true;
}

// Returns the symbol of the i-th length in the code for code lengths, section 3.2.7.
DZ_HD uint32_t length_order(uint32_t i) {
  const char* order = "\x10\x11\x12\x00\x08\x07\x09\x06\x0a\x05\x0b\x04\x0c\x03\x0d\x02\x0e\x01\x0f";
  return uint32_t(order[i]);
}

// Reads the numbers of lengths, and the lengths of the code for code lengths.
DZ_HD void read_counts(InflateCodes& c, const DeflateInput& input) {
  const uint64_t origin = c.at & ~uint64_t(31);
  BitReader bits;
  bits.open(input, origin, uint32_t(c.at - origin));
  bits.refill();
  c.literals = bits.read(5) + 257;
  c.distances = bits.read(5) + 1;
  const uint32_t given = bits.read(4) + 4;
  for (uint32_t i = 0; i < kCodeLengths; ++i) c.lengths[i] = 0;
  c.good = c.literals <= 286 && c.distances <= 30;
  for (uint32_t i = 0; i < given && c.good; ++i) {
    bits.refill();
    c.lengths[length_order(i)] = uint8_t(bits.read(3));
  }
  c.at = origin + bits.position();
}

// Reads the lengths of both codes. c.distance holds the code for code lengths.
DZ_HD void read_lengths(InflateCodes& c, const DeflateInput& input) {
  const uint64_t origin = c.at & ~uint64_t(31);
  BitReader bits;
  bits.open(input, origin, uint32_t(c.at - origin));
  const uint32_t total = c.literals + c.distances;
  uint32_t n = 0, last = 0;
  c.good = false;
  while (n < total) {
    bits.refill();
    const uint32_t s = c.distance.take(bits);
    uint32_t repeat = 1;
    if (s == kNoSymbol || (s == 16 && n == 0)) break;
    if (s < 16) {
      last = s;
    } else if (s == 16) {
      repeat = 3 + bits.read(2);
    } else {
      last = 0;
      repeat = s == 17 ? 3 + bits.read(3) : 11 + bits.read(7);
    }
    if (n + repeat > total) break;
    for (uint32_t i = 0; i < repeat; ++i) c.lengths[n + i] = uint8_t(last);
    n += repeat;
  }
  c.at = origin + bits.position();
  c.good = n == total && c.lengths[256] != 0;
}

// Reads a dynamic block's codes, which begin at bit c.at, and builds them. Moves c.at behind what was read. Returns
// false if the codes are invalid.
template <uint32_t THREADS>
DZ_HD bool read_codes(const Team<THREADS>& team, InflateCodes& c, const DeflateInput& input) {
  team.each([&](uint32_t t) {
    if (t == 0) read_counts(c, input);
  });
  const uint32_t distances = c.distances;
  if (!c.good) return false;
  team.each([&](uint32_t) {});
  team.each([&](uint32_t t) {
    if (t == 0) c.distances = kCodeLengths;
  });
  if (!build(team, c, false, false)) return false;
  team.each([&](uint32_t t) {
    if (t > 0) return;
    c.distances = distances;
    read_lengths(c, input);
  });
  return c.good && build(team, c, true, true);
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
