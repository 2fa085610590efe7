// dz_zstd_sequences: replaces the records that dz_zstd_entropy wrote by sequences (RFC 8878, sections 3.1.1.3.2.1 and
// 3.1.1.5). A block of threads takes one block of a frame, one tile after the other. Each thread has some consecutive
// sequences of a tile.
//
// Each sequence depends on the one before it by the sums of lengths, and by the last three offsets. The effect of
// sequences on the last offsets is three values: each is an offset, or a symbol for one of the last three offsets
// before them (symbolic_offset). Two such triples combine to a third. So both the sums and the offsets are prefix
// scans. A thread adds up its own sequences one by one, which is cheap. Only the threads' sums go through a scan over
// the lanes of a warp, and one over warps. A triple without symbols doesn't depend on what came before. The scan of
// offsets ends when no triple has symbols, which is mostly at once.
#pragma once
#include "warp.cuh"
#include "zstd_states.cuh"

namespace dz {
namespace zstd {

// The last three offsets, the latest first. Each is a number, or a symbol for one of the three offsets before.
struct Offsets {
  uint32_t last[3];

  DZ_HD bool symbolic() const {
    return last[0] > kLargestOffset || last[1] > kLargestOffset || last[2] > kLargestOffset;
  }

  DZ_HD void resolve(const Offsets& before) {
    if (!symbolic()) return;
    for (uint32_t i = 0; i < 3; ++i) last[i] = resolve_offset(last[i], before.last);
  }

  // Applies the next sequence's offset value. 1 to 3 repeat the first to third of the last offsets. Without literals
  // they mean the second, the third, and the first minus 1.
  DZ_HD void take(uint32_t value, bool literals) {
    const uint32_t which = value - (literals ? 1 : 0);
    // Written one after the other, so that these are selections and no branches.
    uint32_t next = last[0] - (which == 3 ? 1 : 0);
    next = which == 1 ? last[1] : next;
    next = which == 2 ? last[2] : next;
    next = value > 3 ? value - 3 : next;
    last[2] = which >= 2 ? last[1] : last[2];
    last[1] = which >= 1 ? last[0] : last[1];
    last[0] = next;
  }
};

DZ_HD Offsets same_offsets() { return {{symbolic_offset(0), symbolic_offset(1), symbolic_offset(2)}}; }

// The sum of consecutive sequences: their literals, their bytes of output, and the last three offsets after them.
struct alignas(16) Sum {
  uint32_t literals, output;
  Offsets offsets;

  // Adds the sum of the sequences before these.
  DZ_HD void follow(const Sum& earlier) {
    literals += earlier.literals;
    output += earlier.output;
    offsets.resolve(earlier.offsets);
  }
};

DZ_HD Sum no_sum() { return {0, 0, same_offsets()}; }

// The meaning of each length code, as a word. Bits 0-4: the number of extra bits. From bit 6 on: the length if the
// extra bits are zero. A shift uses only the lowest five bits of its count, so a word can be the count without a mask.
// Only code 0 of literal lengths means no literals, and only its word is 0.
struct LengthCodeTable {
  static constexpr uint32_t kLiterals = 36, kMatches = 53, kCodes = kLiterals + 1 + kMatches + 1;

  // Words of literal lengths, then of match lengths. After each kind comes a word for a length of 0, used by kNoRecord.
  uint32_t words[kCodes];

  DZ_HD void prepare(uint32_t i) {
    const bool literals = i <= kLiterals;
    const uint32_t alphabet = literals ? kLiteralLength : kMatchLength, code = literals ? i : i - kLiterals - 1;
    const uint32_t word = base_length(alphabet, code) << 6 | extra_bits(alphabet, code);
    words[i] = code == (literals ? kLiterals : kMatches) ? kNothing : word;
  }

  DZ_HD uint32_t literal(uint32_t codes) const { return words[codes >> kRecordLiteral & 63]; }
  DZ_HD uint32_t match(uint32_t codes) const { return words[kLiterals + 1 + (codes >> kRecordMatch)]; }

 private:
  // Length 0 and no extra bits. Bit 5 means nothing; it makes the word differ from 0.
  static constexpr uint32_t kNothing = 1 << 5;
};

// Takes the place of records after a block's last one. It has no bytes, but counts as one with literals, and repeats
// the last offset. So it changes nothing.
constexpr uint64_t kNoRecord =
    uint64_t(LengthCodeTable::kLiterals << kRecordLiteral | LengthCodeTable::kMatches << kRecordMatch) << 32;

// One sequence alone: lengths and offset value, decoded from its record and its bits.
struct DecodedSequence {
  uint32_t literals, match, offset_value;
  bool any_literals;
};

DZ_HD DecodedSequence read_sequence(uint32_t codes, const Words& words, const LengthCodeTable& table) {
  const uint32_t literal = table.literal(codes), match = table.match(codes);
  // Only the lowest five bits of a shift's count matter.
  const uint32_t offset_bits = codes;
  const uint32_t high = words.high(), low = words.low();
  const uint32_t high_match = shift_in(high, low, offset_bits), low_match = shift_in(low, 0, offset_bits);
  const uint32_t high_literal = shift_in(high_match, low_match, match);
  return {(literal >> 6) + top(high_literal, literal), (match >> 6) + top(high_match, match),
          shift_in(1, high, offset_bits), literal != 0};
}

// EACH consecutive records or sequences of one thread. load() and store() access those from index `at` on, of `all`.
template <uint32_t EACH>
struct Row {
  static_assert(EACH % 2 == 0, "16 bytes are loaded and stored at once");
  struct alignas(16) Pair {
    uint64_t of[2];
  };
  Pair pairs[EACH / 2];

  DZ_HD uint64_t& operator[](uint32_t k) { return pairs[k / 2].of[k % 2]; }

  DZ_HD void load(const uint64_t* records, uint32_t at, uint32_t all) {
    if (at + EACH <= all) {
      DZ_UNROLL_BY(EACH)
      for (uint32_t k = 0; k < EACH; k += 2) pairs[k / 2] = *reinterpret_cast<const Pair*>(records + at + k);
    } else {
      DZ_UNROLL_BY(EACH)
      for (uint32_t k = 0; k < EACH; ++k) (*this)[k] = at + k < all ? records[at + k] : kNoRecord;
    }
  }

  DZ_HD void store(uint64_t* sequences, uint32_t at, uint32_t all) {
    if (at + EACH <= all) {
      DZ_UNROLL_BY(EACH)
      for (uint32_t k = 0; k < EACH; k += 2) *reinterpret_cast<Pair*>(sequences + at + k) = pairs[k / 2];
    } else {
      DZ_UNROLL_BY(EACH)
      for (uint32_t k = 0; k < EACH; ++k) {
        if (at + k < all) sequences[at + k] = (*this)[k];
      }
    }
  }
};

// Replaces each lane's sum by the sum over all lanes up to it. The lane is `thread` % LANES.
template <uint32_t LANES>
DZ_HD void scan_lanes(Sum& sum, uint32_t thread) {
  const uint32_t lane = thread % LANES;
  for (uint32_t by = 1; by < LANES; by *= 2) {
    const uint32_t literals = lanes_shuffle_up(sum.literals, by, thread);
    const uint32_t output = lanes_shuffle_up(sum.output, by, thread);
    if (lane >= by) {
      sum.literals += literals;
      sum.output += output;
    }
  }
  DZ_UNROLL_BY(1)
  for (uint32_t by = 1; by < LANES; by *= 2) {
    // Lanes below `by` are finished: their sums reach back to the first lane.
    if (!lanes_ballot(lane >= by && sum.offsets.symbolic())) break;
    Offsets earlier;
    for (uint32_t i = 0; i < 3; ++i) earlier.last[i] = lanes_shuffle_up(sum.offsets.last[i], by, thread);
    if (lane >= by) sum.offsets.resolve(earlier);
  }
}

// Returns the sum of `before` and the sums of the first n warps.
DZ_HD Sum sum_up(const Sum* sums, uint32_t n, const Sum& before) {
  if (n == 0) return before;
  Sum sum = sums[n - 1];
  DZ_UNROLL_BY(1)
  for (uint32_t w = n - 1; w-- > 0;) sum.follow(sums[w]);
  sum.follow(before);
  return sum;
}

// Shared by the threads that make a block's sequences.
template <uint32_t WARPS>
struct SequencesShared {
  LengthCodeTable codes;
  Sum sums[2][WARPS];  // each warp's sum in this tile, and in the tile before, which some threads may still read
};

// Replaces the records of a block by its sequences, and completes its result. Called by WARPS warps of LANES threads;
// each thread makes EACH sequences of a tile. `first`: this is the frame's first block. The block's result must be
// kGood before.
template <uint32_t LANES, uint32_t WARPS, uint32_t EACH>
DZ_HD void make_sequences(const Frame& f, const Block& b, bool first, SequencesShared<WARPS>& shared,
                          uint64_t* sequences, BlockResult& result, uint32_t thread) {
  constexpr uint32_t kThreads = LANES * WARPS, kAll = kThreads * EACH;
  // A sequence has less than 2^18 + 8 bytes. So the sums of a tile don't overflow, even after a full block's bytes.
  static_assert(kAll <= 1 << 13, "32 bits for sums");
  const uint32_t lane = thread % LANES, warp = thread / LANES;
  BackwardBits bits;
  bits.reach(source(f) + b.at, b.size);
  Row<EACH> records;
  records.load(sequences, thread * EACH, b.sequences);
  for (uint32_t i = thread; i < LengthCodeTable::kCodes; i += kThreads) shared.codes.prepare(i);
  block_sync();
  Sum before = no_sum();
  if (first) before.offsets = {{1, 4, 8}};
  bool bad = false;
  for (uint32_t done = 0, tile = 0; done < b.sequences; done += kAll, ++tile) {
    const uint32_t own = done + thread * EACH;
    Words words[EACH];
    DZ_UNROLL_BY(EACH)
    for (uint32_t k = 0; k < EACH; ++k) {
      // The chain ended well, so no position is below zero.
      const int32_t at = int32_t(uint32_t(records[k])), index = at >> 5;
      words[k] = {{bits.word(index), bits.word(index - 1), bits.word(index - 2)}, uint32_t(at)};
    }
    Sum sum = no_sum();
    Row<EACH> made;
    DZ_UNROLL_BY(EACH)
    for (uint32_t k = 0; k < EACH; ++k) {
      const DecodedSequence lone = read_sequence(uint32_t(records[k] >> 32), words[k], shared.codes);
      sum.offsets.take(lone.offset_value, lone.any_literals);
      bad = bad || lone.offset_value > kLargestOffset + 3;
      sum.literals += lone.literals;
      sum.output += lone.literals + lone.match;
      made[k] = pack(sum.literals, sum.output, sum.offsets.last[0]);
    }
    scan_lanes<LANES>(sum, thread);
    // The next records arrive while the threads meet and this tile is written. Loaded earlier, they would take
    // registers at the same time as the words.
    records.load(sequences, own + kAll, b.sequences);
    if (lane + 1 == LANES) shared.sums[tile % 2][warp] = sum;
    // The sum of what comes before the thread's sequences: at first only within the warp.
    Sum start;
    start.literals = lanes_shuffle_up(sum.literals, 1, thread);
    start.output = lanes_shuffle_up(sum.output, 1, thread);
    for (uint32_t i = 0; i < 3; ++i) start.offsets.last[i] = lanes_shuffle_up(sum.offsets.last[i], 1, thread);
    block_sync();
    const Sum earlier = sum_up(shared.sums[tile % 2], warp, before);
    before = sum_up(shared.sums[tile % 2], WARPS, before);
    // Sums only grow, so the last one tells whether any is too large. All threads see the same value.
    if (before.literals > b.literals || before.output > f.max_block) {
      bad = true;
      break;
    }
    if (lane == 0) start = earlier;
    else start.follow(earlier);
    const uint64_t base = pack(start.literals, start.output, 0);
    DZ_UNROLL_BY(EACH)
    for (uint32_t k = 0; k < EACH; ++k) {
      // The sums fit into their fields.
      uint64_t sequence = base + made[k];
      const uint32_t offset = packed_offset(sequence);
      if (offset > kLargestOffset) sequence -= pack(0, 0, offset - resolve_offset(offset, start.offsets.last));
      bad = bad || packed_offset(sequence) == 0;
      made[k] = sequence;
    }
    made.store(sequences, own, b.sequences);
  }
  bad = block_any(bad);
  if (thread != 0) return;
  result.size = bad ? 0 : before.output + (b.literals - before.literals);
  result.sequences = bad || result.size > f.max_block ? kCorrupt : kGood;
  for (uint32_t i = 0; i < 3; ++i) result.repeat[i] = before.offsets.last[i];
}

}  // namespace zstd
}  // namespace dz

#ifdef __CUDACC__
// Warps that work on a block of a frame, and sequences of a tile that one thread makes.
constexpr uint32_t kZstdSequencesWarps = 4, kZstdSequencesEach = 8;
static_assert(kZstdSequencesWarps == 4, "sequences() in src/zstd.rs of this crate");

// Grid: n_work blocks of 32 * kZstdSequencesWarps threads, after dz_zstd_entropy with the same arguments.
extern "C" __global__ void __launch_bounds__(32 * kZstdSequencesWarps)
    dz_zstd_sequences(const dz::zstd::Frame* frames, const dz::zstd::Block* blocks, const uint32_t* work,
                      uint32_t n_work, uint8_t* workspace, dz::zstd::BlockResult* results) {
  using namespace dz;
  using namespace dz::zstd;
  __shared__ SequencesShared<kZstdSequencesWarps> shared;
  if (blockIdx.x >= n_work) return;
  const uint32_t own = work[blockIdx.x];
  const Block b = blocks[own];
  const Frame f = frames[b.frame];
  if (b.sequences == 0 || results[own].sequences != kGood) return;
  uint64_t* const sequences = reinterpret_cast<uint64_t*>(workspace + f.workspace + b.sequences_to);
  make_sequences<kWarp, kZstdSequencesWarps, kZstdSequencesEach>(f, b, own == f.first_block, shared, sequences,
                                                                 results[own], threadIdx.x);
}
#endif
