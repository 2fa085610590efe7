// dz_zstd_sequences: makes sequences of the records that dz_zstd_entropy wrote (RFC 8878, sections 3.1.1.3.2.1 and 3.1.1.5),
// in their place. A warp takes a block, 32 sequences at a time.
//
// Sums of lengths and the three last offsets go from each sequence to the next one. What a sequence does to the last offsets
// is three values, each an offset or one of the last three of before (symbolic_offset), and two such triples make a third. So both are
// scans over the lanes.
#pragma once
#include "warp.cuh"
#include "zstd_tables.cuh"

namespace dz {
namespace zstd {

// The last three offsets, the latest first, as numbers or as symbols for those of before.
struct Offsets {
  uint32_t last[3];

  DZ_HD void resolve(const Offsets& before) {
    for (uint32_t i = 0; i < 3; ++i) last[i] = resolve_offset(last[i], before.last);
  }
};

DZ_HD Offsets same_offsets() { return {{symbolic_offset(0), symbolic_offset(1), symbolic_offset(2)}}; }

// What a sequence says whose offset has this value: 1 to 3 repeat one of the last offsets; without literals it is the one after,
// and the last is one less.
DZ_HD Offsets offsets_after(uint32_t value, bool literals, bool& bad) {
  const uint32_t last = symbolic_offset(0), second = symbolic_offset(1), third = symbolic_offset(2);
  if (value > 3) {
    bad = bad || value - 3 > kLargestOffset;
    return {{value - 3, last, second}};
  }
  const uint32_t which = value - 1 + (literals ? 0 : 1);
  if (which == 0) return {{last, second, third}};
  if (which == 1) return {{second, last, third}};
  return {{which == 2 ? third : last - 1, last, second}};
}

// One sequence before it is added up.
struct Lone {
  uint32_t literals, match, offset_value;
};

DZ_HD Lone read_sequence(uint64_t record, const BackwardBits& bits, const Lengths& lengths) {
  const uint32_t cells = uint32_t(record >> 32);
  const uint32_t l = cells >> kCellLiteral & 63, m = cells >> kCellMatch & 63;
  const uint32_t l_bits = lengths.literal_extra[l], m_bits = lengths.match_extra[m];
  const uint32_t o_bits = (cells & 63) - l_bits - m_bits;
  const Words words = bits.load(int32_t(uint32_t(record)));
  const uint32_t high = words.high(), low = words.low();
  const uint32_t high_m = shift_in(high, low, o_bits), low_m = low << o_bits;
  return {lengths.literal_base[l] + top(shift_in(high_m, low_m, m_bits), l_bits), lengths.match_base[m] + top(high_m, m_bits),
          (1u << o_bits) + top(high, o_bits)};
}

// The sequences of a block whose records are in their place and whose result says so; by a warp.
DZ_HD void make_sequences(const Frame& f, const Block& b, bool first, const Lengths& lengths, uint64_t* sequences,
                          BlockResult& result, uint32_t lane) {
  BackwardBits bits;
  bits.reach(source(f) + b.at, b.size);
  Offsets before = first ? Offsets{{1, 4, 8}} : same_offsets();
  uint32_t literals = 0, output = 0;
  bool bad = false;
  for (uint32_t done = 0; done < b.sequences && !bad; done += kWarp) {
    const bool in = done + lane < b.sequences;
    Lone lone = {0, 0, 0};
    Offsets offsets = same_offsets();
    if (in) {
      lone = read_sequence(sequences[done + lane], bits, lengths);
      offsets = offsets_after(lone.offset_value, lone.literals > 0, bad);
    }
    uint32_t my_literals = lone.literals, my_output = lone.literals + lone.match;
    for (uint32_t by = 1; by < kWarp; by *= 2) {
      Offsets earlier;
      for (uint32_t i = 0; i < 3; ++i) earlier.last[i] = lanes_shuffle_up(offsets.last[i], by, lane);
      const uint32_t more_literals = lanes_shuffle_up(my_literals, by, lane);
      const uint32_t more_output = lanes_shuffle_up(my_output, by, lane);
      if (lane >= by) {
        offsets.resolve(earlier);
        my_literals += more_literals;
        my_output += more_output;
      }
    }
    my_literals += literals;
    my_output += output;
    offsets.resolve(before);
    bad = bad || offsets.last[0] == 0 || my_literals > b.literals || my_output > f.max_block;
    if (in) sequences[done + lane] = pack(my_literals, my_output, offsets.last[0]);
    for (uint32_t i = 0; i < 3; ++i) before.last[i] = lanes_shuffle(offsets.last[i], kWarp - 1);
    literals = lanes_shuffle(my_literals, kWarp - 1);
    output = lanes_shuffle(my_output, kWarp - 1);
    bad = lanes_ballot(bad) != 0;
  }
  if (lane != 0) return;
  result.size = bad ? 0 : output + (b.literals - literals);
  result.sequences = bad || result.size > f.max_block ? kDamaged : kGood;
  for (uint32_t i = 0; i < 3; ++i) result.repeat[i] = before.last[i];
}

}  // namespace zstd
}  // namespace dz

#ifdef __CUDACC__
// Warps, and so blocks of frames, of one block of threads.
constexpr uint32_t kZstdSequencesWarps = 4;

// Grid: ceil(n_work / kZstdSequencesWarps) blocks of 32 * kZstdSequencesWarps threads, after dz_zstd_entropy with the same arguments.
extern "C" __global__ void __launch_bounds__(32 * kZstdSequencesWarps)
    dz_zstd_sequences(const dz::zstd::Frame* frames, const dz::zstd::Block* blocks, const uint32_t* work, uint32_t n_work,
                      uint8_t* workspace, dz::zstd::BlockResult* results) {
  using namespace dz;
  using namespace dz::zstd;
  __shared__ Lengths lengths;
  if (threadIdx.x < Lengths::kCodes) lengths.prepare(threadIdx.x);
  __syncthreads();
  const uint32_t at = blockIdx.x * kZstdSequencesWarps + threadIdx.x / 32;
  if (at >= n_work) return;
  const uint32_t own = work[at];
  const Block b = blocks[own];
  const Frame f = frames[b.frame];
  if (b.sequences == 0 || results[own].sequences != kGood) return;
  uint64_t* const sequences = reinterpret_cast<uint64_t*>(workspace + f.workspace + b.sequences_to);
  make_sequences(f, b, own == f.first_block, lengths, sequences, results[own], threadIdx.x % 32);
}
#endif
