// The bits of zstd's sequences (RFC 8878, section 3.1.1.3.2), one thread for each block: a chain of table look-ups, each of
// which tells where the bits of the next one are.
//
// How long one sequence takes decides how fast blocks are decoded, and a thread issues one instruction every few cycles. So the
// chain does nothing else: it notes where each sequence's extra bits are and how many, and zstd_sequences.cuh makes lengths and
// offsets of that, many at a time. Its bits are brought to shared memory before they are needed.
#pragma once
#include "warp.cuh"
#include "zstd_tables.cuh"

namespace dz {
namespace zstd {

// Sequences between two times that a chain asks for bits.
constexpr uint32_t kStep = 8;
// Words of a stream that are brought at once, and those in shared memory.
constexpr uint32_t kChunkWords = 4, kRingWords = 64;
// Words that a step may need: a sequence has at most 63 extra bits and 26 bits of states, and three words are read beyond the last.
constexpr uint32_t kMoveWords = (kStep * 89 + 31) / 32, kStepWords = kMoveWords + 3;
static_assert(kStepWords + kMoveWords + 2 * kChunkWords <= kRingWords, "the words of a step and of the next one have room");

// What the chain notes of a sequence, 64 bits: the position of its first bit from the word that holds the block's first byte,
// 32 bits, and above it the sum of its three cells, whose last field means nothing.
DZ_HD uint64_t record(int32_t at, uint32_t cells) { return uint64_t(cells) << 32 | uint32_t(at); }

// Of one block, in shared memory.
struct SequenceTables {
  uint32_t lengths[kLengthCells];
  uint32_t matches[kLengthCells];
  uint32_t offsets[kOffsetCells];
  union {
    int16_t counts[3][kMaxSymbols];  // while tables are built
    // Word i of the stream is at i % kRingWords + kChunkWords. The last chunk comes before the first one again, so that four words in
    // a row lie beside each other.
    alignas(16) uint32_t ring[kRingWords + kChunkWords];
  };
  BackwardBits bits;   // of the block
  uint32_t log[3];
  uint32_t good[3];
  uint32_t bits_at;    // where the sequences' bits begin

  DZ_HD uint32_t* of(uint32_t alphabet) {
    return alphabet == kLiteralLength ? lengths : alphabet == kOffset ? offsets : matches;
  }
};

// Builds the table of one alphabet. `own` is the index of the block within its frame, `blocks` are the frame's.
DZ_HD void prepare_sequences(const Frame& f, const Block* blocks, uint32_t own, uint32_t alphabet,
                             const Lengths& lengths, SequenceTables& t) {
  const Block& b = blocks[own];
  const uint32_t from = b.tables[alphabet];
  uint32_t at = 0, log = 0;
  bool good = true;
  if (alphabet == kMatchLength && from != own) {
    // Where the bits begin, is behind this block's own descriptions.
    good = read_table(source(f), b, kMatchLength, lengths, t.counts[alphabet], nullptr, log, at);
    t.bits_at = at;
  }
  good = good &&
         read_table(source(f), blocks[from], alphabet, lengths, t.counts[alphabet], t.of(alphabet), log, at);
  if (alphabet == kMatchLength && from == own) t.bits_at = at;
  t.log[alphabet] = log;
  t.good[alphabet] = good;
}

// The states of one block's sequences.
struct Chain {
  uint32_t lengths, offsets, matches;  // cells of the next sequence
  int32_t at;                          // of its bits, from the first word of chunk 0 (BackwardBits::fetch)
  int32_t skew;                        // bits from there to the word that holds the block's first byte
  uint32_t more;                       // bits of states that the last sequence took
  uint32_t rest;                       // sequences that are left
  uint64_t* to;                        // the next one's record
  uint32_t lowest;                     // the last chunk that was asked for

  // Reads the first states. False for damage.
  DZ_HD bool open(const Frame& f, const Block& b, SequenceTables& t) {
    const uint32_t end = b.at + b.size;
    if (!t.good[0] || !t.good[1] || !t.good[2] || t.bits_at >= end ||
        !t.bits.open(source(f) + t.bits_at, end - t.bits_at, t.bits_at - b.at)) {
      return false;
    }
    skew = int32_t(32 * t.bits.skew());
    lowest = uint32_t(t.bits.at + skew) / (32 * kChunkWords) + 1;
    BackwardBits bits = t.bits;
    lengths = t.lengths[bits.take(t.log[kLiteralLength])];
    offsets = t.offsets[bits.take(t.log[kOffset])];
    matches = t.matches[bits.take(t.log[kMatchLength])];
    at = bits.at + skew;
    rest = b.sequences;
    return true;
  }

  // Up to kStep sequences.
  DZ_HD void step(SequenceTables& t) {
    const uint32_t n = rest < kStep ? rest : kStep;
    rest -= n;
    Window window = look(t.ring, at);
    DZ_UNROLL_BY(4)
    for (uint32_t i = 0; i < n; ++i) {
      const uint32_t sum = lengths + offsets + matches;
      const uint32_t extra = sum & 63;
      more = sum >> kCellBits & 31;
      to[i] = record(at - skew, sum);
      uint32_t next = window.behind(extra);
      at -= int32_t(extra + more);
      // These are on their way while cells are.
      window = look(t.ring, at);
      const uint32_t length_bits = lengths >> kCellBits, match_bits = matches >> kCellBits, offset_bits = offsets >> kCellBits;
      lengths = t.lengths[(lengths >> kCellBase) + top(next, length_bits)];
      next = shift_in(next, 0, length_bits);
      matches = t.matches[(matches >> kCellBase) + top(next, match_bits)];
      next = shift_in(next, 0, match_bits);
      offsets = t.offsets[(offsets >> kCellBase) + top(next, offset_bits)];
    }
    to += n;
  }

  // The chunk that holds the word so many words below the present one.
  DZ_HD uint32_t chunk_below(uint32_t words) const {
    // Damaged streams go below zero.
    const int32_t word = (at >> 5) - int32_t(words);
    return word < 0 ? 0 : uint32_t(word) / kChunkWords;
  }

  // Asks for the chunks down to this one.
  DZ_HD void fetch_down(SequenceTables& t, uint32_t wanted) {
    while (lowest > wanted) {
      --lowest;
      const uint32_t slot = lowest * kChunkWords % kRingWords;
      t.bits.fetch(lowest, t.ring + kChunkWords + slot);
      if (slot == kRingWords - kChunkWords) t.bits.fetch(lowest, t.ring);
    }
    fetch_group();
  }

  // All sequences.
  DZ_HD void follow(SequenceTables& t) {
    fetch_down(t, chunk_below(kStepWords));
    // The last chunks that were asked for two and three steps ago. These are what a step needs, unless the stream moves very fast.
    uint32_t two_ago = ~0u, three_ago = ~0u;
    while (rest) {
      if (chunk_below(kStepWords) >= three_ago) fetched<2>();
      else fetched<0>();
      three_ago = two_ago;
      two_ago = lowest;
      // Of the next step.
      fetch_down(t, chunk_below(kStepWords + kMoveWords));
      step(t);
    }
    fetched<0>();
  }

  // Whether all bits were taken. The last sequence has no next states.
  DZ_HD bool ended(const SequenceTables& t) const { return rest == 0 && at - skew + int32_t(more) == t.bits.begin; }

  // Four words, in which at least 97 bits begin at bit `shift` % 32 of the first one.
  struct Window {
    uint32_t word[4], shift;

    // 32 bits behind the first `n`, at most 63.
    DZ_HD uint32_t behind(uint32_t n) const {
      const uint32_t high = shift_out(word[0], word[1], shift), middle = shift_out(word[1], word[2], shift),
                     low = shift_out(word[2], word[3], shift);
      const uint32_t near = shift_in(high, middle, n), far = shift_in(middle, low, n);
      return n < 32 ? near : far;
    }
  };

  // Volatile, so that the words are asked for here and not where they are used.
  DZ_HD static Window look(const volatile uint32_t* ring, int32_t at) {
    const volatile uint32_t* word = ring + (uint32_t(at >> 5) % kRingWords + kChunkWords - 3);
    return {{word[3], word[2], word[1], word[0]}, uint32_t(at)};
  }
};

}  // namespace zstd
}  // namespace dz
