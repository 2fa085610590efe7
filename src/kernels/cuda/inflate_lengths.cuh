// Reads the Huffman codes of a dynamic deflate block (RFC 1951, section 3.2.7), by all threads of a block.
#pragma once
#include "inflate_codes.cuh"

namespace dz {

// Returns the symbol of the i-th length in the code for code lengths, section 3.2.7.
DZ_HD uint32_t length_order(uint32_t i) {
  const char* order = "\x10\x11\x12\x00\x08\x07\x09\x06\x0a\x05\x0b\x04\x0c\x03\x0d\x02\x0e\x01\x0f";
  return uint32_t(order[i]);
}

// Most bits of a dynamic block before its first symbol: its type, the numbers of lengths, the lengths of the code for
// code lengths, and all lengths.
constexpr uint32_t kMostHeaderBits = 3 + 14 + 3 * kCodeLengths + (kLiterals + kDistances) * (7 + 7);

// Reads the numbers of lengths, and the lengths of the code for code lengths.
template <class Words>
DZ_HD void read_counts(InflateCodes& c, const Words& words) {
  BitReader bits(words, c.position);
  c.literals = bits.read(words, 5) + 257;
  c.distances = bits.read(words, 5) + 1;
  const uint32_t given = bits.read(words, 4) + 4;
  for (uint32_t i = 0; i < kCodeLengths; ++i) c.lengths[i] = 0;
  c.good = c.literals <= 286 && c.distances <= 30;
  for (uint32_t i = 0; i < given && c.good; ++i) c.lengths[length_order(i)] = uint8_t(bits.read(words, 3));
  c.position = bits.position;
}

// Where the lengths of a dynamic block are. They are run-length encoded: a symbol gives one length, or several equal
// ones. Bits count from the first symbol.
struct LengthSymbols {
  static constexpr uint32_t kMost = kLiterals + kDistances, kBits = kMost * (7 + 7);
  static_assert(kMost % 16 == 0, "every_sixteenth has a place for each");
  // For each bit, if a symbol began there: bits to where the next one would begin, the fourth one after it, and the
  // sixteenth one after it.
  uint8_t to_next[kBits], to_fourth[kBits], to_sixteenth[kBits];
  uint16_t every_sixteenth[kMost / 16];  // where symbols 0, 16, 32... begin
  // For each symbol: the bit behind it, the length that it gives, and how often (0: the bits are no code).
  uint16_t behind[kMost];
  uint8_t value[kMost], count[kMost];
  static constexpr uint8_t kLast = 255;  // a value: the length before is repeated

  // Returns where the symbol after one at bit `at` begins, or the fourth or sixteenth one, as the table says.
  static DZ_HD uint32_t hop(const uint8_t* table, uint32_t at) { return at < kBits ? at + table[at] : at; }
};

// Reads the lengths of both codes. c.distance holds the code for code lengths. Moves c.position behind them, or behind the
// first wrong symbol. `sums` and `scratch` are for Team::sum_up().
//
// Where a symbol begins is known only after the one before it. So the threads find for each bit where the next symbol
// would begin, then where the sixteenth one would, and one thread hops over sixteen symbols at a time.
template <uint32_t THREADS, class Words>
DZ_HD bool read_lengths(const Team<THREADS>& team, InflateCodes& c, LengthSymbols& symbols, uint64_t* sums,
                        uint64_t* scratch, const Words& words) {
  constexpr uint32_t kBits = LengthSymbols::kBits, kEach = (LengthSymbols::kMost + THREADS - 1) / THREADS;
  const uint32_t from = c.position, total = c.literals + c.distances;
  const auto bits_at = [&](uint32_t at) {
    return shift_out(words[(from + at) / 32 + 1], words[(from + at) / 32], from + at);
  };
  team.each([&](uint32_t t) {
    if (t == 0) {
      c.good = false;
      c.first_wrong = LengthSymbols::kMost;
    }
    for (uint32_t i = t; i < LengthSymbols::kMost; i += THREADS) c.lengths[i] = 0;
    for (uint32_t i = t; i < kBits; i += THREADS) symbols.to_next[i] = uint8_t(total_bits(c.find(bits_at(i), true)));
  });
  const auto hop_four_times = [&](const uint8_t* by, uint8_t* to) {
    team.each([&](uint32_t t) {
      for (uint32_t i = t; i < kBits; i += THREADS) {
        uint32_t at = i;
        for (uint32_t k = 0; k < 4; ++k) at = LengthSymbols::hop(by, at);
        to[i] = uint8_t(at - i);
      }
    });
  };
  hop_four_times(symbols.to_next, symbols.to_fourth);
  hop_four_times(symbols.to_fourth, symbols.to_sixteenth);
  team.each([&](uint32_t t) {
    if (t > 0) return;
    uint32_t at = 0;
    for (uint32_t i = 0; i < LengthSymbols::kMost / 16; ++i) {
      symbols.every_sixteenth[i] = uint16_t(at);
      at = LengthSymbols::hop(symbols.to_sixteenth, at);
    }
  });
  team.each([&](uint32_t t) {
    uint32_t lengths = 0;
    for (uint32_t i = kEach * t; i < kEach * (t + 1) && i < LengthSymbols::kMost; ++i) {
      uint32_t at = symbols.every_sixteenth[i / 16];
      for (uint32_t k = 0; k < i % 16 / 4; ++k) at = LengthSymbols::hop(symbols.to_fourth, at);
      for (uint32_t k = 0; k < i % 4; ++k) at = LengthSymbols::hop(symbols.to_next, at);
      const uint32_t word = at < kBits ? c.find(bits_at(at), true) : code_word(0, 0, kNoCodeFound);
      const uint32_t value = value_in(word, bits_at(at < kBits ? at : 0));
      const Meaning what = meaning(word);
      symbols.behind[i] = uint16_t(at + total_bits(word));
      symbols.value[i] = what == kValueCode ? uint8_t(value) : what == kMatchCode ? LengthSymbols::kLast : uint8_t(0);
      symbols.count[i] = what == kValueCode ? uint8_t(1) : what == kNoCodeFound ? uint8_t(0) : uint8_t(value);
      lengths += symbols.count[i];
    }
    sums[t] = lengths;
  });
  team.sum_up(sums, scratch);
  team.each([&](uint32_t t) {
    uint32_t n = t ? uint32_t(sums[t - 1]) : 0;
    for (uint32_t i = kEach * t; i < kEach * (t + 1) && i < LengthSymbols::kMost && n < total; ++i) {
      const uint32_t count = symbols.count[i];
      uint32_t from_symbol = i;
      while (from_symbol > 0 && symbols.value[from_symbol] == LengthSymbols::kLast) --from_symbol;
      const uint8_t value = symbols.value[from_symbol];
      if (count == 0 || count > total - n || value == LengthSymbols::kLast) {
        lower_to(&c.first_wrong, i);
        return;
      }
      for (uint32_t k = 0; k < count && value != 0; ++k) c.lengths[n + k] = value;
      n += count;
      if (n == total) {
        c.position = from + symbols.behind[i];
        c.good = true;
      }
    }
  });
  // Threads behind the first wrong symbol have counted anything. Those before it have counted right.
  const uint32_t wrong = c.first_wrong;
  if (wrong == LengthSymbols::kMost) return c.good && c.lengths[256] != 0;
  team.each([&](uint32_t t) {
    if (t == 0) c.position = from + symbols.behind[wrong];
  });
  return false;
}

// Reads a dynamic block's codes, which begin at c.position, and builds them. Moves c.position behind what was read.
// Returns false if the codes are invalid.
template <uint32_t THREADS, class Words>
DZ_HD bool read_codes(const Team<THREADS>& team, InflateCodes& c, LengthSymbols& symbols, uint64_t* sums,
                      uint64_t* scratch, const Words& words) {
  team.each([&](uint32_t t) {
    if (t == 0) read_counts(c, words);
  });
  const uint32_t distances = c.distances;
  if (!c.good) return false;
  team.each([&](uint32_t) {});  // all threads have read c.distances and c.good
  team.each([&](uint32_t t) {
    if (t == 0) c.distances = kCodeLengths;
  });
  if (!build(team, c, false, false)) return false;
  team.each([&](uint32_t t) {
    if (t == 0) c.distances = distances;
  });
  return read_lengths(team, c, symbols, sums, scratch, words) && build(team, c, true, true);
}

}  // namespace dz
