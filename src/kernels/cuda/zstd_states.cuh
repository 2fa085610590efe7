// Reads the bits of zstd's sequences (RFC 8878, section 3.1.1.3.2), with one thread for each block. This is a chain of
// table look-ups: each tells where the bits of the next one are.
//
// The time for one sequence decides how fast blocks are decoded, and a thread issues one instruction every few cycles.
// So the chain does as little as possible: for each sequence it records where its extra bits are and how many there
// are. zstd_sequences.cuh makes lengths and offsets of these records, many at a time. The bits are brought to shared
// memory before they are needed.
#pragma once
#include "warp.cuh"
#include "zstd_tables.cuh"

namespace dz {
namespace zstd {

// Sequences of a step. A chain fetches bits once per step.
constexpr uint32_t kStep = 8;
// Words of a chunk, which is fetched at once, and words of a stream in shared memory.
constexpr uint32_t kChunkWords = 4, kRingWords = 64;
// Most words by which a step moves, and most words that it reads: a sequence has at most 63 extra bits and 26 bits of
// states, and three words after the last are read too.
constexpr uint32_t kMoveWords = (kStep * 89 + 31) / 32, kStepWords = kMoveWords + 3;
static_assert(kStepWords + kMoveWords + 2 * kChunkWords <= kRingWords, "the words of a step and of the next one have room");

// Packs the record of a sequence. Lower 32 bits: the position of its first bit, from the word that holds the block's
// first byte. Upper 32 bits: the sum of its three cells, in which the last field means nothing.
DZ_HD uint64_t record(int32_t at, uint32_t cells) { return uint64_t(cells) << 32 | uint32_t(at); }

// Tables for the sequences of one block; in shared memory on the device.
struct SequenceTables {
  uint32_t lengths[kLengthCells];
  uint32_t matches[kLengthCells];
  uint32_t offsets[kOffsetCells];
  union {
    int16_t counts[3][kMaxSymbols];  // used while tables are built
    // Word i of the stream is at i % kRingWords + kChunkWords. The last chunk is also stored before the first one, so
    // that four consecutive words always lie next to each other.
    alignas(16) uint32_t ring[kRingWords + kChunkWords];
  };
  BackwardBits bits;   // the bits of the block's sequences
  uint32_t log[3];     // binary logarithm of each table's size
  uint32_t good[3];    // 0: the table is damaged
  uint32_t bits_at;    // position in the frame after the table descriptions, where the sequences' bits begin

  DZ_HD uint32_t* of(uint32_t alphabet) {
    return alphabet == kLiteralLength ? lengths : alphabet == kOffset ? offsets : matches;
  }
};

// Builds the table of one alphabet. `own` is the index of the block within its frame, `blocks` are the frame's blocks.
DZ_HD void prepare_sequences(const Frame& f, const Block* blocks, uint32_t own, uint32_t alphabet,
                             const ExtraBits& lengths, SequenceTables& t) {
  const Block& b = blocks[own];
  const uint32_t from = b.tables[alphabet];
  uint32_t at = 0, log = 0;
  bool good = true;
  if (alphabet == kMatchLength && from != own) {
    // The block's bits begin after its own descriptions, so walk these too.
    good = read_table(source(f), b, kMatchLength, lengths, t.counts[alphabet], nullptr, log, at);
    t.bits_at = at;
  }
  good = good &&
         read_table(source(f), blocks[from], alphabet, lengths, t.counts[alphabet], t.of(alphabet), log, at);
  if (alphabet == kMatchLength && from == own) t.bits_at = at;
  t.log[alphabet] = log;
  t.good[alphabet] = good;
}

// The chain of one block's sequences.
struct Chain {
  uint32_t lengths, offsets, matches;  // cells of the next sequence
  int32_t at;                          // position of its bits, from the first word of chunk 0 (BackwardBits::fetch)
  int32_t skew;                        // bits from that word to the word that holds the block's first byte
  uint32_t more;                       // bits of states that the last sequence took
  uint32_t rest;                       // sequences that are left
  uint64_t* to;                        // where the next record goes
  uint32_t lowest;                     // the lowest chunk that was fetched

  // Reads the first states. Returns false for damage.
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

  // Records up to kStep sequences.
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
      // The next words are loaded while the cells are.
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

  // Returns the chunk that holds the word `words` words below the current one.
  DZ_HD uint32_t chunk_below(uint32_t words) const {
    // Damaged streams go below zero.
    const int32_t word = (at >> 5) - int32_t(words);
    return word < 0 ? 0 : uint32_t(word) / kChunkWords;
  }

  // Fetches all chunks down to `wanted`.
  DZ_HD void fetch_down(SequenceTables& t, uint32_t wanted) {
    while (lowest > wanted) {
      --lowest;
      const uint32_t slot = lowest * kChunkWords % kRingWords;
      t.bits.fetch(lowest, t.ring + kChunkWords + slot);
      if (slot == kRingWords - kChunkWords) t.bits.fetch(lowest, t.ring);
    }
    fetch_group();
  }

  // Records all sequences.
  DZ_HD void follow(SequenceTables& t) {
    fetch_down(t, chunk_below(kStepWords));
    // The lowest chunks fetched two and three steps ago. Those fetched three steps ago are enough for a step, unless
    // the stream moves very fast.
    uint32_t two_ago = ~0u, three_ago = ~0u;
    while (rest) {
      if (chunk_below(kStepWords) >= three_ago) fetched<2>();
      else fetched<0>();
      three_ago = two_ago;
      two_ago = lowest;
      // Chunks for the next step.
      fetch_down(t, chunk_below(kStepWords + kMoveWords));
      step(t);
    }
    fetched<0>();
  }

  // Returns whether exactly all bits were taken. `more` bits are given back, because there are no states after the last
  // sequence.
  DZ_HD bool ended(const SequenceTables& t) const { return rest == 0 && at - skew + int32_t(more) == t.bits.begin; }

  // Four words, the highest first. They hold at least the next 96 bits: those below bit `shift` % 32 of word[0].
  struct Window {
    uint32_t word[4], shift;

    // Returns the 32 bits after the next n, at most 63.
    DZ_HD uint32_t behind(uint32_t n) const {
      const uint32_t high = shift_out(word[0], word[1], shift), middle = shift_out(word[1], word[2], shift),
                     low = shift_out(word[2], word[3], shift);
      const uint32_t near = shift_in(high, middle, n), far = shift_in(middle, low, n);
      return n < 32 ? near : far;
    }
  };

  // Loads the window at position `at`. Volatile, so that the words are loaded here and not where they are used.
  DZ_HD static Window look(const volatile uint32_t* ring, int32_t at) {
    const volatile uint32_t* word = ring + (uint32_t(at >> 5) % kRingWords + kChunkWords - 3);
    return {{word[3], word[2], word[1], word[0]}, uint32_t(at)};
  }
};

}  // namespace zstd
}  // namespace dz
