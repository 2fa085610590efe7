// Builds the decoding tables of zstd: FSE (RFC 8878, section 4.1) and Huffman (section 4.2), from their descriptions in
// a block or from the predefined distributions. One thread builds one table.
#pragma once
#include "zstd_bits.cuh"
#include "zstd_layout.cuh"

namespace dz {
namespace zstd {

// The three alphabets of sequences, in the order of their descriptions.
enum Alphabet : uint32_t { kLiteralLength = 0, kOffset = 1, kMatchLength = 2 };

constexpr uint32_t kLengthCells = 512, kOffsetCells = 256;
constexpr uint32_t kMaxCodeBits = 11;
constexpr uint32_t kMaxWeight = 11;

DZ_HD uint32_t largest_symbol(uint32_t alphabet) {
  return alphabet == kLiteralLength ? 35 : alphabet == kOffset ? 31 : 52;
}

DZ_HD uint32_t largest_log(uint32_t alphabet) { return alphabet == kOffset ? 8 : 9; }

// Returns the number of extra bits that follow a code, section 3.1.1.3.2.1.1. For offsets it is the code itself.
DZ_HD uint32_t extra_bits(uint32_t alphabet, uint32_t code) {
  const char* literals = "\1\1\1\1\2\2\3\3\4\6\7\10\11\12\13\14\15\16\17\20";
  const char* matches = "\1\1\1\1\2\2\3\3\4\4\5\7\10\11\12\13\14\15\16\17\20";
  if (alphabet == kOffset) return code;
  if (alphabet == kLiteralLength) return code < 16 ? 0 : uint32_t(literals[code - 16]);
  return code < 32 ? 0 : uint32_t(matches[code - 32]);
}

// Returns the length that a code stands for if its extra bits are zero: the sum of the ranges of all codes before it.
DZ_HD uint32_t base_length(uint32_t alphabet, uint32_t code) {
  uint32_t base = alphabet == kMatchLength ? 3 : 0;
  for (uint32_t c = 0; c < code; ++c) base += 1u << extra_bits(alphabet, c);
  return base;
}

// Returns the number of cells of a symbol in the predefined distributions, section 3.1.1.3.2.2; -1 as in
// read_distribution.
DZ_HD int32_t predefined(uint32_t alphabet, uint32_t symbol) {
  const char* lengths = "\4\3\2\2\2\2\2\2\2\2\2\2\2\1\1\1\2\2\2\2\2\2\2\2\2\3\2\1\1\1\1\1";
  const char* offsets = "\1\1\1\1\1\1\2\2\2\1\1\1\1\1\1\1\1\1\1\1\1\1\1\1";
  const char* matches = "\1\4\3\2\2\2\2\2\2";
  if (alphabet == kLiteralLength) return symbol < 32 ? lengths[symbol] : -1;
  if (alphabet == kOffset) return symbol < 24 ? offsets[symbol] : -1;
  return symbol < 9 ? matches[symbol] : symbol < 46 ? 1 : -1;
}

// Sizes of a distribution. The numbers of cells of each symbol (counts) are stored separately.
struct Distribution {
  uint32_t log;      // binary logarithm of the number of cells
  uint32_t symbols;  // number of symbols that have a count
  uint32_t used;     // bytes of its description
};

// Reads a description, section 4.1.1. A count of -1 means one cell, with a probability of less than 1. Writes at most
// largest + 1 counts. Returns false for damage.
DZ_HD bool read_distribution(const uint8_t* data, uint32_t len, uint32_t largest, uint32_t max_log, int16_t* counts,
                             Distribution& d) {
  ForwardBits bits = {data, len, 0};
  d.log = bits.peek(4) + 5;
  if (!bits.skip(4) || d.log > max_log) return false;
  int32_t rest = 1 << d.log;
  uint32_t n = 0;
  while (rest > 0) {
    if (n > largest) return false;
    // A value from 0 to rest + 1; the lowest values take one bit less.
    const uint32_t width = log2_of(uint32_t(rest) + 1) + 1;
    const int32_t less = (1 << width) - 1 - (rest + 1);
    int32_t value = int32_t(bits.peek(width - 1));
    if (value < less) {
      if (!bits.skip(width - 1)) return false;
    } else {
      value = int32_t(bits.peek(width));
      if (!bits.skip(width)) return false;
      if (value >= 1 << (width - 1)) value -= less;
    }
    const int32_t count = value - 1;
    rest -= count < 0 ? 1 : count;
    counts[n++] = int16_t(count);
    for (bool more = count == 0; more;) {
      const uint32_t zeros = bits.peek(2);
      if (!bits.skip(2) || n + zeros > largest + 1) return false;
      for (uint32_t i = 0; i < zeros; ++i) counts[n++] = 0;
      more = zeros == 3;
    }
  }
  d.symbols = n;
  d.used = (bits.at + 7) / 8;
  return rest == 0;
}

// Builds an FSE table: gives each symbol its cells, and each cell its next states. The counts must add up to the number
// of cells; they are overwritten. cell(symbol, rank, log) makes a cell. The cells of a symbol have ranks from its count to
// twice its count minus 1. A cell's rank tells the next state: it is (rank << n | the value of the next n bits) minus the
// number of cells, where n is log - log2_of(rank).
template <typename CELL, typename T>
DZ_HD void build_fse(T* table, int16_t* counts, uint32_t symbols, uint32_t log, const CELL& cell) {
  const uint32_t size = 1u << log, mask = size - 1, step = (size >> 1) + (size >> 3) + 3;
  uint32_t high = size;
  for (uint32_t s = 0; s < symbols; ++s) {
    if (counts[s] < 0) table[--high] = T(s);
  }
  // One loop over the cells, because the lanes of a warp build different tables: with a loop for each symbol, each symbol
  // would take as long as the largest of its counts.
  uint32_t symbol = 0, at = 0;
  int32_t left = counts[0];
  for (uint32_t n = 0; n < high; ++n) {
    while (left <= 0) left = counts[++symbol];
    table[at] = T(symbol);
    --left;
    // The loop ends: the steps visit every cell, and there is one below `high`, because one was just filled.
    do at = (at + step) & mask;
    while (at >= high);
  }
  uint32_t next = uint32_t(table[0]);
  for (uint32_t i = 0; i < size; ++i) {
    const uint32_t s = next;
    // Loaded early, so that its latency and that of the count pass together.
    next = uint32_t(table[(i + 1) & mask]);
    const int32_t count = counts[s];
    const uint32_t rank = count < 0 ? 1 : uint32_t(count);
    counts[s] = int16_t(rank + 1);
    table[i] = cell(s, rank, log);
  }
}

// A cell of a sequences' table. Bits 0-5: the code. Bits 6-15: the rank (build_fse). The number of bits and the base of
// the next state aren't stored, so that the tables of many blocks have room in shared memory.
constexpr uint32_t kCellRank = 6;

struct SequenceCell {
  DZ_HD uint16_t operator()(uint32_t symbol, uint32_t rank, uint32_t) const {
    return uint16_t(symbol | rank << kCellRank);
  }
};

// Numbers of extra bits of the codes of literal lengths and match lengths. A look-up is faster than extra_bits().
struct ExtraBits {
  alignas(64) uint8_t literal_extra[64];
  alignas(64) uint8_t match_extra[64];

  static constexpr uint32_t kCodes = 36 + 53;

  // Fills in entry i, of kCodes entries.
  DZ_HD void prepare(uint32_t i) {
    if (i < 36) {
      literal_extra[i] = uint8_t(extra_bits(kLiteralLength, i));
    } else {
      match_extra[i - 36] = uint8_t(extra_bits(kMatchLength, i - 36));
    }
  }
};

// A cell of the table of Huffman weights. Bits 0-3: weight; 4-7: number of bits for the next state; 8-15: its base.
struct WeightCell {
  DZ_HD uint16_t operator()(uint32_t symbol, uint32_t rank, uint32_t log) const {
    const uint32_t bits = log - log2_of(rank);
    return uint16_t(symbol | bits << 4 | ((rank << bits) - (1u << log)) << 8);
  }
};

// Walks the table descriptions in a block's sequences section up to alphabet `last`. Builds the table of `last` if
// `table` isn't null, and sets `log` to the logarithm of its size. Sets `at` to the position after the description.
// Returns false for damage.
DZ_HD bool read_table(const uint8_t* frame, const Block& b, uint32_t last, int16_t* counts, uint16_t* table,
                      uint32_t& log, uint32_t& at) {
  const uint32_t end = b.at + b.size;
  Distribution d = {0, 0, 0};
  uint32_t mode = 0, symbol = 0;
  at = b.sequences_at;
  for (uint32_t a = 0; a <= last; ++a) {
    mode = b.modes >> (6 - 2 * a) & 3;
    if (mode == 1) {
      if (at >= end) return false;
      symbol = frame[at++];
      if (symbol > largest_symbol(a)) return false;
    } else if (mode == 2) {
      if (at >= end || !read_distribution(frame + at, end - at, largest_symbol(a), largest_log(a), counts, d)) {
        return false;
      }
      at += d.used;
    }
  }
  if (!table) return true;
  if (mode == 1) {
    log = 0;
    table[0] = SequenceCell()(symbol, 1, 0);
    return true;
  }
  if (mode == 0) {
    d.log = last == kOffset ? 5 : 6;
    d.symbols = last == kOffset ? 29 : largest_symbol(last) + 1;
    for (uint32_t s = 0; s < d.symbols; ++s) counts[s] = int16_t(predefined(last, s));
  }
  log = d.log;
  build_fse(table, counts, d.symbols, d.log, SequenceCell());
  return mode != 3;
}

// Decodes FSE-compressed Huffman weights, section 4.2.1.2: two states take turns until the bits run out. `scratch` has
// room for 64 cells and the counts. Returns the number of weights; 0 for damage.
DZ_HD uint32_t compressed_weights(const uint8_t* data, uint32_t len, uint8_t* weights, uint16_t* scratch) {
  int16_t* counts = reinterpret_cast<int16_t*>(scratch + 64);
  Distribution d;
  if (!read_distribution(data, len, kMaxWeight, 6, counts, d)) return 0;
  build_fse(scratch, counts, d.symbols, d.log, WeightCell());
  BackwardBits bits;
  if (d.used > len || !bits.open(data + d.used, len - d.used)) return 0;
  uint32_t state[2];
  for (uint32_t i = 0; i < 2; ++i) {
    state[i] = bits.take(d.log);
  }
  if (bits.left() < 0) return 0;
  uint32_t one = state[0], other = state[1];
  for (uint32_t n = 0; n < 254;) {
    const uint32_t cell = scratch[one];
    weights[n++] = uint8_t(cell & 15);
    const uint32_t width = cell >> 4 & 15;
    if (bits.left() < int32_t(width)) {
      weights[n++] = uint8_t(scratch[other] & 15);
      return n;
    }
    one = other;
    other = (cell >> 8) + bits.take(width);
  }
  return 0;
}

// Builds the Huffman table of a description, section 4.2.1. A cell is symbol << 8 | length of its code. Returns the
// logarithm of the table's size; 0 for damage. Sets `used` to the bytes of the description. `weights` has room for 256.
DZ_HD uint32_t build_huffman(const uint8_t* data, uint32_t len, uint16_t* table, uint8_t* weights, uint32_t& used) {
  if (len == 0) return 0;
  const uint32_t header = data[0];
  uint32_t n;
  if (header >= 128) {
    n = header - 127;
    used = 1 + (n + 1) / 2;
    if (used > len) return 0;
    for (uint32_t i = 0; i < n; ++i) {
      const uint32_t pair = data[1 + i / 2];
      weights[i] = uint8_t(i % 2 ? pair & 15 : pair >> 4);
    }
  } else {
    used = 1 + header;
    if (used > len) return 0;
    n = compressed_weights(data + 1, header, weights, table);
    if (n == 0) return 0;
  }
  uint32_t sum = 0, ones = 0;
  for (uint32_t i = 0; i < n; ++i) {
    const uint32_t w = weights[i];
    if (w > kMaxWeight) return 0;
    sum += (1u << w) >> 1;
    ones += w == 1;
  }
  if (sum == 0) return 0;
  const uint32_t log = log2_of(sum) + 1, rest = (1u << log) - sum;
  // The last weight is not stored: it makes the sum a power of two.
  if (log > kMaxCodeBits || (rest & (rest - 1)) != 0) return 0;
  weights[n] = uint8_t(log2_of(rest) + 1);
  ones += weights[n] == 1;
  ++n;
  if (ones < 2 || ones % 2 != 0) return 0;
  // The longest codes come first; symbols with codes of the same length come in their order.
  uint32_t next[kMaxWeight + 1] = {};
  for (uint32_t i = 0; i < n; ++i) next[weights[i]] += (1u << weights[i]) >> 1;
  uint32_t sum_before = 0;
  for (uint32_t w = 1; w <= kMaxWeight; ++w) {
    const uint32_t cells = next[w];
    next[w] = sum_before;
    sum_before += cells;
  }
  for (uint32_t s = 0; s < n; ++s) {
    const uint32_t w = weights[s];
    if (w == 0) continue;
    const uint32_t cells = 1u << (w - 1), value = s << 8 | (log + 1 - w), to = next[w];
    next[w] = to + cells;
    if (cells == 1) {
      table[to] = uint16_t(value);
    } else {
      uint32_t* pairs = reinterpret_cast<uint32_t*>(table + to);
      for (uint32_t i = 0; i < cells / 2; ++i) pairs[i] = value | value << 16;
    }
  }
  return log;
}

}  // namespace zstd
}  // namespace dz
