// Decodes the literals of zstd blocks (RFC 8878, section 3.1.1.3.1): up to four streams of Huffman codes, with one
// thread each.
#pragma once
#include "zstd_tables.cuh"

namespace dz {
namespace zstd {

// Words of a stream in shared memory. Word i is at i % kLiteralRing. Four words, a chunk, are fetched at a time.
constexpr uint32_t kLiteralRing = 32;
struct LiteralRing {
  alignas(16) uint32_t word[kLiteralRing];
};

// A round decodes 16 literals of at most 11 bits each. It moves by at most so many words.
constexpr uint32_t kRoundLiterals = 16;
constexpr int32_t kRoundWords = (kRoundLiterals * kMaxCodeBits + 31) / 32;
// Words are fetched so many rounds before they are needed.
constexpr int kAhead = 2;
// Distance in words from the current word down to the fetched ones: as many as kAhead + 1 rounds move, and those that the
// last literals of a round read.
constexpr int32_t kAheadWords = kRoundWords * (kAhead + 1) + 4;
static_assert(kAheadWords + 4 <= int32_t(kLiteralRing), "they have room in the ring");

// Tables for the literals of one block; in shared memory on the device.
struct LiteralTables {
  uint16_t huffman[1 << kMaxCodeBits];
  union {
    uint8_t weights[256];  // used only while the table is built
    LiteralRing rings[4];
  };
  uint32_t log;   // binary logarithm of the Huffman table's size; 0 for damage
  uint32_t used;  // bytes of the table's description; 0 if another block holds it
};

DZ_HD uint32_t streams(const Block& b) {
  return b.literals_kind == kFourStreams ? 4 : b.literals_kind == kOneStream ? 1 : 0;
}

// Builds the Huffman table that block `own` of a frame uses. `blocks` are the frame's blocks.
DZ_HD void prepare_literals(const Frame& f, const Block* blocks, uint32_t own, LiteralTables& t) {
  const uint32_t from = blocks[own].huffman;
  const Block& b = blocks[from];
  uint32_t used = 0;
  t.log = build_huffman(source(f) + b.literals_at, b.literals_size, t.huffman, t.weights, used);
  t.used = from == own ? used : 0;
}

DZ_HD uint8_t literal(const uint16_t* table, uint32_t log, BackwardBits& bits) {
  const uint32_t cell = table[top(bits.load(bits.at).high(), log)];
  bits.at -= int32_t(cell & 255);
  return uint8_t(cell >> 8);
}

// Decodes one of the four streams of a block's literals, or the only one, section 4.2.2. Returns false for damage.
DZ_HD bool decode_literals(const Frame& f, const Block& b, LiteralTables& t, uint32_t stream, uint8_t* to) {
  const uint32_t log = t.log;
  if (log == 0 || t.used >= b.literals_size) return false;
  const uint8_t* data = source(f) + b.literals_at + t.used;
  uint32_t len = b.literals_size - t.used, count = b.literals;
  if (b.literals_kind == kFourStreams) {
    // The lengths of the first three streams, section 3.1.1.3.1.6.
    if (len < 6) return false;
    const uint32_t each = (b.literals + 3) / 4;
    uint32_t begin = 6, size = 0;
    for (uint32_t s = 0; s <= stream; ++s) {
      begin += size;
      size = s < 3 ? data[2 * s] | uint32_t(data[2 * s + 1]) << 8 : len - begin;
      if (begin > len || size > len - begin) return false;
    }
    data += begin;
    len = size;
    count = stream < 3 ? each : b.literals - 3 * each;
    to += stream * each;
  }
  BackwardBits bits;
  if (!bits.open(data, len)) return false;
  // A literal has at least one and at most `log` bits.
  if (bits.left() < int32_t(count) || bits.left() > int32_t(count * log)) return false;
  const uint16_t* const table = t.huffman;
  uint32_t i = 0;
  for (; i < count && (reinterpret_cast<uintptr_t>(to + i) & 15); ++i) to[i] = literal(table, log, bits);
  // A damaged stream may have ended within these literals.
  if (bits.left() < 0) return false;
  // The next 64 bits are in the words w0, w1 and w2. Four literals move by at most two words, so the bits of the next four
  // are among five words, w0 to w4. So words are loaded long before their bits are needed.
  int32_t index = bits.at >> 5;
  uint32_t w0 = bits.word(index), w1 = bits.word(index - 1), w2 = bits.word(index - 2);
  const int32_t skew = int32_t(bits.skew());
  uint32_t* const ring = t.rings[stream].word;
  uint32_t lowest = uint32_t(index + skew) / 4 + 1;
  const auto fetch_down = [&] {
    const int32_t down = index + skew - kAheadWords;
    const uint32_t wanted = down < 0 ? 0 : uint32_t(down) / 4;
    while (lowest > wanted) {
      --lowest;
      bits.fetch(lowest, ring + lowest * 4 % kLiteralRing);
    }
    fetch_group();
  };
  // 16 literals are stored at once: the lanes of a warp write to different places, and each store takes its time.
  fetch_down();
  fetched<0>();
  for (; i + kRoundLiterals <= count; i += kRoundLiterals) {
    fetch_down();
    fetched<kAhead>();
    Bytes16 made;
    DZ_UNROLL_BY(4)
    for (uint32_t quarter = 0; quarter < 4; ++quarter) {
      // Words before the beginning of the stream are meaningless.
      const volatile uint32_t* const words = ring;
      const uint32_t at3 = uint32_t(index + skew - 3), w3 = words[at3 % kLiteralRing],
                     w4 = words[(at3 - 1) % kLiteralRing];
      const uint32_t shift = uint32_t(bits.at) & 31;
      uint32_t high = shift_out(w0, w1, shift), low = shift_out(w1, w2, shift), word = 0, taken = 0;
      DZ_UNROLL_BY(4)
      for (uint32_t k = 0; k < 4; ++k) {
        const uint32_t cell = table[top(high, log)], length = cell & 255;
        high = shift_in(high, low, length);
        low <<= length;
        taken += length;
        word |= cell >> 8 << (8 * k);
      }
      made.word[quarter] = word;
      bits.at -= int32_t(taken);
      const int32_t next = bits.at >> 5, moved = index - next;
      w0 = moved == 0 ? w0 : moved == 1 ? w1 : w2;
      w1 = moved == 0 ? w1 : moved == 1 ? w2 : w3;
      w2 = moved == 0 ? w2 : moved == 1 ? w3 : w4;
      index = next;
    }
    *reinterpret_cast<Bytes16*>(to + i) = made;
  }
  fetched<0>();
  for (; i < count; ++i) to[i] = literal(table, log, bits);
  return bits.left() == 0;
}

}  // namespace zstd
}  // namespace dz
