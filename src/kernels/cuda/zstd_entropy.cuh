// dz_zstd_entropy: decodes the literals, and records the sequences, of the compressed blocks of many frames, all blocks
// at once (RFC 8878, sections 3.1.1.3.1 and 3.1.1.3.2).
//
// Decoding is a chain of dependent table look-ups, so a thread waits most of the time. Throughput comes from the number
// of chains in flight: five for each block (four streams of literals, one of sequences), each with one thread. The
// tables are in shared memory, which limits the number of blocks on a multiprocessor. A chain of sequences takes three
// times as long as one of literals. So sequences and literals are decoded by separate blocks of threads: the memory of a
// block of threads becomes free only when its slowest warp ends.
#pragma once
#include "zstd_literals.cuh"
#include "zstd_states.cuh"

namespace dz {
namespace zstd {

// Shared memory of a warp that records the sequences of GROUP blocks.
template <uint32_t GROUP>
struct SequenceWarp {
  SequenceRing rings[GROUP];
  ExtraBits extra;
  SequenceTables tables[GROUP];
};

// Shared memory of a warp that decodes the literals of GROUP blocks.
template <uint32_t GROUP>
struct LiteralWarp {
  LiteralTables tables[GROUP];
};

// Writes the result of a block that has literals only.
DZ_HD void no_sequences(const Block& b, bool first, BlockResult& result) {
  result.sequences = kGood;
  result.size = b.literals;
  for (uint32_t i = 0; i < 3; ++i) result.repeat[i] = first ? (i ? 4 * i : 1) : symbolic_offset(i);
}

// Records the sequences of the blocks work[begin] to work[end - 1], at most GROUP blocks.
template <uint32_t GROUP>
DZ_HD void record_sequences(const Frame* frames, const Block* blocks, const uint32_t* work, uint32_t begin,
                            uint32_t end, uint8_t* workspace, BlockResult* results, SequenceWarp<GROUP>& shared,
                            uint32_t lane) {
  SequenceTables* const tables = shared.tables;
  ExtraBits& extra = shared.extra;
  for (uint32_t i = lane; i < ExtraBits::kCodes; i += kWarp) extra.prepare(i);
  lanes_sync();
  // First, each lane builds tables: each block has three.
  for (uint32_t i = lane; i < 3 * GROUP; i += kWarp) {
    const uint32_t member = i / 3;
    if (begin + member >= end) break;
    const uint32_t own = work[begin + member];
    const Frame& f = frames[blocks[own].frame];
    if (blocks[own].sequences) {
      prepare_sequences(f, blocks + f.first_block, own - f.first_block, i % 3, tables[member], shared.rings[member]);
    }
  }
  lanes_sync();
  // Then one lane per block follows the chain.
  const bool here = lane < GROUP && begin + lane < end;
  const uint32_t own = here ? work[begin + lane] : 0;
  const uint32_t sequences = here ? blocks[own].sequences : 0;
  Chain chain = {};
  bool good = false;
  if (sequences) {
    const Block& b = blocks[own];
    const Frame& f = frames[b.frame];
    chain.to = reinterpret_cast<uint64_t*>(workspace + f.workspace + b.sequences_to);
    good = chain.open(f, b, tables[lane], shared.rings[lane], extra);
  }
  lanes_sync();
  follow<GROUP>(chain, tables, shared.rings, lane);
  if (sequences) {
    results[own].sequences = good && chain.ended(tables[lane]) ? kGood : kCorrupt;
  } else if (here) {
    no_sequences(blocks[own], own == frames[blocks[own].frame].first_block, results[own]);
  }
}

#ifdef __CUDACC__
// Decodes the literals of the blocks work[begin] to work[end - 1], at most GROUP blocks.
template <uint32_t GROUP>
__device__ __forceinline__ void decode_literals(const Frame* frames, const Block* blocks, const uint32_t* work,
                                                uint32_t begin, uint32_t end, uint8_t* workspace, BlockResult* results,
                                                LiteralWarp<GROUP>& shared, uint32_t lane) {
  LiteralTables* const tables = shared.tables;
  const uint32_t member = lane / 4, part = lane % 4;
  const bool here = member < GROUP && begin + member < end;
  const uint32_t index = here ? work[begin + member] : 0;
  const uint32_t n = here ? streams(blocks[index]) : 0;
  if (n && part == 0) {
    const Frame& f = frames[blocks[index].frame];
    prepare_literals(f, blocks + f.first_block, index - f.first_block, tables[member]);
  }
  __syncwarp();
  bool good = true;
  if (part < n) {
    const Block b = blocks[index];
    const Frame f = frames[b.frame];
    good = decode_literals(f, b, tables[member], part, workspace + f.workspace + b.literals_to);
  }
  const uint32_t bad = __ballot_sync(0xffffffff, !good) >> (member * 4) & 15;
  if (here && part == 0) results[index].literals = bad ? kCorrupt : kGood;
}
#endif

}  // namespace zstd
}  // namespace dz

#ifdef __CUDACC__
// Compressed blocks whose sequences one warp records, those whose literals one warp decodes, and the most warps of a
// block of threads.
constexpr uint32_t kZstdSequencesGroup = 16, kZstdLiteralsGroup = 8, kZstdWarps = 8;

// Returns the bytes of dynamic shared memory of this block of threads.
__device__ __forceinline__ uint32_t dynamic_shared_memory() {
  uint32_t bytes;
  asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
  return bytes;
}

// Grid: blocks of threads that record sequences, and behind them those that decode literals, with one warp for each group
// of compressed blocks. Of either kind a block of threads has as many warps as its dynamic shared memory has room for, at
// most kZstdWarps. More threads do nothing.
//
// work: indexes of the compressed blocks. results: one entry for each of `blocks`; those of compressed blocks are
// written. The workspace begins at a multiple of 16.
//
// Warps wait most of the time, so a block of threads should have as many as fit into a multiprocessor's shared memory.
// Then other multiprocessors stay free for kernels that need much shared memory.
extern "C" __global__ void __launch_bounds__(32 * kZstdWarps, 1)
    dz_zstd_entropy(const dz::zstd::Frame* frames, const dz::zstd::Block* blocks, const uint32_t* work, uint32_t n_work,
                    uint8_t* workspace, dz::zstd::BlockResult* results) {
  using namespace dz::zstd;
  using Sequences = SequenceWarp<kZstdSequencesGroup>;
  using Literals = LiteralWarp<kZstdLiteralsGroup>;
  extern __shared__ __align__(256) uint4 shared_memory[];
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, room = dynamic_shared_memory();
  const uint32_t sequence_warps = min(room / uint32_t(sizeof(Sequences)), kZstdWarps);
  const uint32_t literal_warps = min(room / uint32_t(sizeof(Literals)), kZstdWarps);
  const uint32_t first = (n_work + sequence_warps * kZstdSequencesGroup - 1) / (sequence_warps * kZstdSequencesGroup);
  const bool sequences = blockIdx.x < first;
  const uint32_t warps = sequences ? sequence_warps : literal_warps;
  const uint32_t each = sequences ? kZstdSequencesGroup : kZstdLiteralsGroup;
  const uint32_t begin = ((sequences ? blockIdx.x : blockIdx.x - first) * warps + warp) * each,
                 end = min(begin + each, n_work);
  if (warp >= warps || begin >= n_work) return;
  if (sequences) {
    Sequences& shared = reinterpret_cast<Sequences*>(shared_memory)[warp];
    record_sequences<kZstdSequencesGroup>(frames, blocks, work, begin, end, workspace, results, shared, lane);
  } else {
    Literals& shared = reinterpret_cast<Literals*>(shared_memory)[warp];
    decode_literals<kZstdLiteralsGroup>(frames, blocks, work, begin, end, workspace, results, shared, lane);
  }
}

#ifdef __CUDA_ARCH__
static_assert(kZstdSequencesGroup == 16 && kZstdLiteralsGroup == 8 && kZstdWarps == 8 &&
                  sizeof(dz::zstd::SequenceWarp<kZstdSequencesGroup>) == 46080 &&
                  sizeof(dz::zstd::LiteralWarp<kZstdLiteralsGroup>) == 36992,
              "SEQUENCES, LITERALS and ENTROPY_WARPS in src/zstd.rs of this crate");
#endif
#endif
