// Reads the bits of zstd's sequences (RFC 8878, section 3.1.1.3.2), with one thread for each block. This is a chain of
// table look-ups: each tells where the bits of the next one are.
//
// The time for one sequence decides how fast blocks are decoded, and a thread issues one instruction every few cycles.
// So the chain does as little as possible: for each sequence it records where its extra bits are, and its three codes.
// zstd_sequences.cuh makes lengths and offsets of these records, many at a time. The bits are brought to shared memory
// before they are needed, by all lanes of a warp together, once every few steps: chains wait while a warp does it.
#pragma once
#include "shared.cuh"
#include "warp.cuh"
#include "zstd_tables.cuh"

namespace dz {
namespace zstd {

// Sequences of a step. Between steps, a chain may fetch bits.
constexpr uint32_t kStep = 8;
// Words of a chunk, which is fetched at once, and words of a stream in shared memory.
constexpr uint32_t kChunkWords = 4, kRingWords = 64;
// Most words by which a step moves, and most words that it reads: a sequence has at most 63 extra bits and 26 bits of
// states, and one word after the last is read too.
constexpr uint32_t kMoveWords = (kStep * 89 + 31) / 32, kStepWords = kMoveWords + 1;
// When fewer words than these are left in the ring, more are fetched. Most steps move by less than eight words, so the
// words are there before they are needed.
constexpr uint32_t kLowWords = kStepWords + 8;
static_assert(kLowWords + 2 * kChunkWords <= kRingWords, "a full ring has more");

// Packs the record of a sequence. Lower 32 bits: the position of its first bit, from the word that holds the block's
// first byte. Upper 32 bits: its codes (kRecordLiteral, kRecordMatch).
DZ_HD uint64_t record(int32_t at, uint32_t codes) { return uint64_t(codes) << 32 | uint32_t(at); }

// Position of the codes of literal length and match length in the upper half of a record. The offset's code has the
// lowest bits.
constexpr uint32_t kRecordLiteral = 6, kRecordMatch = 12;

// Bits of one block's sequences, in shared memory on the device. Word i of the stream is at i % kRingWords.
struct alignas(4 * kRingWords) SequenceRing {
  union {
    uint32_t words[kRingWords];
    // Used while tables are built: counts of 36 literal lengths, of as many offsets, and of 53 match lengths. The
    // descriptions of literal lengths are read for each alphabet.
    int16_t counts[36 + 36 + 53];
  };
};

// Tables for the sequences of one block; in shared memory on the device.
struct SequenceTables {
  uint16_t lengths[kLengthCells];
  uint16_t matches[kLengthCells];
  uint16_t offsets[kOffsetCells];
  BackwardBits bits;  // the bits of the block's sequences
  uint32_t log[3];    // binary logarithm of each table's size
  uint32_t good[3];   // 0: the table is damaged
  uint32_t bits_at;   // position in the frame after the table descriptions, where the sequences' bits begin

  DZ_HD uint16_t* of(uint32_t alphabet) {
    return alphabet == kLiteralLength ? lengths : alphabet == kOffset ? offsets : matches;
  }
};

// Builds the table of one alphabet. `own` is the index of the block within its frame, `blocks` are the frame's blocks.
DZ_HD void prepare_sequences(const Frame& f, const Block* blocks, uint32_t own, uint32_t alphabet, SequenceTables& t,
                             SequenceRing& ring) {
  const Block& b = blocks[own];
  const uint32_t from = b.tables[alphabet];
  int16_t* const counts = ring.counts + 36 * alphabet;
  uint32_t at = 0, log = 0;
  bool good = true;
  if (alphabet == kMatchLength && from != own) {
    // The block's bits begin after its own descriptions, so walk these too.
    good = read_table(source(f), b, kMatchLength, counts, nullptr, log, at);
    t.bits_at = at;
  }
  good = good && read_table(source(f), blocks[from], alphabet, counts, t.of(alphabet), log, at);
  if (alphabet == kMatchLength && from == own) t.bits_at = at;
  t.log[alphabet] = log;
  t.good[alphabet] = good;
}

// One of the three states of a chain.
struct State {
  uint32_t cell;
  uint32_t log;       // binary logarithm of the table's size, plus kCellRank
  SharedArray table;  // as many cells that don't exist as the table has, and the table

  DZ_HD void open(const uint16_t* cells, uint32_t log2, BackwardBits& bits) {
    log = log2 + kCellRank;
    table = SharedArray(cells).before(2u << log2);
    cell = cells[bits.take(log2)];
  }

  DZ_HD uint32_t code() const { return cell & ((1u << kCellRank) - 1); }

  // Returns the number of bits that tell the next state.
  DZ_HD uint32_t bits() const { return log - log2_of(cell); }

  // Goes to the next state, which the highest n bits of `next` tell.
  DZ_HD void follow(uint32_t next, uint32_t n) { cell = table.u16(2 * shift_in(cell >> kCellRank, next, n)); }
};

// The chain of one block's sequences.
struct Chain {
  State lengths, offsets, matches;  // of the next sequence
  SharedArray ring;                 // SequenceRing::words
  SharedArray literal_extra, match_extra;
  int32_t at;        // position of its bits, from the first word of chunk 0 (BackwardBits::fetch)
  int32_t skew;      // bits from that word to the word that holds the block's first byte
  uint32_t more;     // bits of states that the last sequence took
  uint32_t rest;     // sequences that are left
  uint64_t* to;      // where the next record goes
  uint32_t lowest;   // the lowest chunk that was fetched
  uint32_t arrived;  // the lowest chunk that is there
  int32_t limit;     // when `at` goes below it, the ring needs attention

  // Reads the first states. Returns false for damage.
  DZ_HD bool open(const Frame& f, const Block& b, SequenceTables& t, const SequenceRing& words,
                  const ExtraBits& extra) {
    const uint32_t end = b.at + b.size;
    if (!t.good[0] || !t.good[1] || !t.good[2] || t.bits_at >= end ||
        !t.bits.open(source(f) + t.bits_at, end - t.bits_at, t.bits_at - b.at)) {
      return false;
    }
    skew = int32_t(32 * t.bits.skew());
    ring = SharedArray(words.words);
    literal_extra = SharedArray(extra.literal_extra);
    match_extra = SharedArray(extra.match_extra);
    BackwardBits bits = t.bits;
    lengths.open(t.lengths, t.log[kLiteralLength], bits);
    offsets.open(t.offsets, t.log[kOffset], bits);
    matches.open(t.matches, t.log[kMatchLength], bits);
    at = bits.at + skew;
    // Nothing was fetched. The current chunk is the first one: one more would not have room.
    lowest = arrived = at < 0 ? 0 : uint32_t(at) / (32 * kChunkWords) + 1;
    limit = INT32_MAX;
    rest = b.sequences;
    return true;
  }

  // Records up to kStep sequences.
  DZ_HD void step() {
    const uint32_t n = rest < kStep ? rest : kStep;
    rest -= n;
    DZ_UNROLL_BY(4)
    for (uint32_t i = 0; i < n; ++i) {
      const uint32_t length = lengths.code(), match = matches.code(), offset = offsets.code();
      const uint32_t extra_length = literal_extra.aligned_u8(length), extra_match = match_extra.aligned_u8(match);
      const uint32_t length_bits = lengths.bits(), match_bits = matches.bits(), offset_bits = offsets.bits();
      to[i] = record(at - skew, offset | length << kRecordLiteral | match << kRecordMatch);
      at -= int32_t(extra_length + extra_match + offset);
      // The 32 bits below position `at`.
      const uint32_t byte = uint32_t(at) >> 3, mask = 4 * kRingWords - 4;
      const uint32_t high = ring.aligned_u32(byte & mask), low = ring.aligned_u32((byte - 4) & mask);
      uint32_t next = shift_out(high, low, uint32_t(at));
      lengths.follow(next, length_bits);
      next <<= length_bits;
      matches.follow(next, match_bits);
      next <<= match_bits;
      offsets.follow(next, offset_bits);
      more = length_bits + match_bits + offset_bits;
      at -= int32_t(more);
    }
    to += n;
  }

  // Returns the lowest chunk that the ring has room for beside the current one. Damaged streams go below zero.
  DZ_HD uint32_t room() const {
    const int32_t chunk = at / int32_t(32 * kChunkWords) - int32_t(kRingWords / kChunkWords - 1);
    return chunk < 0 ? 0 : uint32_t(chunk);
  }

  // Returns the position below which fewer than `words` words are left above `chunk`. There is nothing below chunk 0.
  DZ_HD static int32_t position_above(uint32_t chunk, uint32_t words) {
    return chunk ? int32_t(32 * (kChunkWords * chunk + words)) : INT32_MIN;
  }

  DZ_HD void set_limit() {
    const int32_t low = position_above(lowest, kLowWords), empty = position_above(arrived, kStepWords);
    limit = low > empty ? low : empty;
  }

  // Returns whether exactly all bits were taken. `more` bits are given back, because there are no states after the last
  // sequence.
  DZ_HD bool ended(const SequenceTables& t) const { return rest == 0 && at - skew + int32_t(more) == t.bits.begin; }
};

// Fetches the bits that each lane's chain needs soon, and waits for those that it needs now. All lanes help: lane i those
// of lane i % GROUP.
template <uint32_t GROUP>
DZ_HD void bring_bits(Chain& chain, const SequenceTables* tables, SequenceRing* rings, uint32_t lane) {
  const uint32_t member = lane % GROUP;
  // The chains have read the words that others take the place of.
  lanes_sync();
  // Nothing, if the chain has ended, or if this lane has none.
  const uint32_t wanted = chain.rest && chain.room() < chain.lowest ? chain.room() : chain.lowest;
  const uint32_t first = lanes_shuffle(chain.lowest, member), last = lanes_shuffle(wanted, member);
  const BackwardBits bits = tables[member].bits;
  uint32_t* const words = rings[member].words;
  for (uint32_t chunk = first; chunk-- > last;) {
    if (chunk % (kWarp / GROUP) == lane / GROUP) bits.fetch(chunk, words + chunk * kChunkWords % kRingWords);
  }
  chain.lowest = wanted;
  if (lanes_ballot(chain.rest && chain.at < Chain::position_above(chain.arrived, kStepWords))) {
    fetched();
    lanes_sync();
    chain.arrived = wanted;
  }
  chain.set_limit();
}

// Follows the chains of a warp: those of the first GROUP lanes that have `rest`.
template <uint32_t GROUP>
DZ_HD void follow(Chain& chain, const SequenceTables* tables, SequenceRing* rings, uint32_t lane) {
  while (lanes_ballot(chain.rest)) {
    if (lanes_ballot(chain.rest && chain.at < chain.limit)) bring_bits<GROUP>(chain, tables, rings, lane);
    chain.step();
  }
  fetched();
}

}  // namespace zstd
}  // namespace dz
