// The zstd kernels on the host, where the threads run one after the other, so that tests need no GPU.
#pragma once
#include "host_warp.h"
#include "zstd_entropy.cuh"
#include "zstd_execute.cuh"
#include "zstd_sequences.cuh"

namespace dz {
namespace zstd {

// Sequences and bytes of a batch: small, so that tests reach all edge cases.
constexpr uint32_t kHostThreads = 37, kHostWindow = 1000;

// Blocks that a warp decodes.
constexpr uint32_t kHostGroup = 16;

// The 32 lanes of a warp on the host stand for four warps of eight lanes. They make sequences in small tiles.
constexpr uint32_t kHostWarps = 4, kHostEach = 2;

// Arguments of the lanes of a warp.
struct HostWave {
  const Frame* frames;
  const Block* blocks;
  const uint32_t* work;
  uint32_t begin, end;  // the entries of `work` to do
  uint8_t* workspace;
  BlockResult* results;
  SequenceWarp<kHostGroup>* shared;
  SequencesShared<kHostWarps>* sequences;
};

inline void host_sequences(HostWave& wave) {
  run_host_warp(
      [](void* argument, uint32_t lane) {
        const HostWave& w = *static_cast<HostWave*>(argument);
        record_sequences<kHostGroup>(w.frames, w.blocks, w.work, w.begin, w.end, w.workspace, w.results, *w.shared,
                                     lane);
        for (uint32_t i = w.begin; i < w.end; ++i) {
          const uint32_t own = w.work[i];
          const Block& b = w.blocks[own];
          const Frame& f = w.frames[b.frame];
          lanes_sync();
          if (b.sequences == 0 || w.results[own].sequences != kGood) continue;
          uint64_t* const to = reinterpret_cast<uint64_t*>(w.workspace + f.workspace + b.sequences_to);
          make_sequences<kWarp / kHostWarps, kHostWarps, kHostEach>(f, b, own == f.first_block, *w.sequences, to,
                                                                    w.results[own], lane);
        }
      },
      &wave);
}

inline void host_literals(const Frame* frames, const Block* blocks, uint32_t index, uint8_t* workspace,
                          BlockResult& result) {
  const Block& b = blocks[index];
  const Frame& f = frames[b.frame];
  LiteralTables t;
  result.literals = kGood;
  if (streams(b)) prepare_literals(f, blocks + f.first_block, index - f.first_block, t);
  for (uint32_t s = 0; s < streams(b); ++s) {
    if (!decode_literals(f, b, t, s, workspace + f.workspace + b.literals_to)) result.literals = kCorrupt;
  }
}

}  // namespace zstd
}  // namespace dz

extern "C" {

// Does the work of all three kernels for a whole wave. The arguments are those of the kernels.
void dz_host_zstd(const dz::zstd::Frame* frames, uint32_t n_frames, const dz::zstd::Block* blocks, const uint32_t* work,
                  uint32_t n_work, uint8_t* workspace, dz::zstd::BlockResult* results, uint64_t* out_bytes,
                  int32_t* statuses) {
  using dz::zstd::kHostGroup;
  for (uint32_t begin = 0; begin < n_work; begin += kHostGroup) {
    const uint32_t end = n_work - begin < kHostGroup ? n_work : begin + kHostGroup;
    dz::zstd::SequenceWarp<kHostGroup> shared;
    dz::zstd::SequencesShared<dz::zstd::kHostWarps> sequences;
    dz::zstd::HostWave wave = {frames, blocks, work, begin, end, workspace, results, &shared, &sequences};
    dz::zstd::host_sequences(wave);
  }
  for (uint32_t i = 0; i < n_work; ++i) dz::zstd::host_literals(frames, blocks, work[i], workspace, results[work[i]]);
  for (uint32_t i = 0; i < n_frames; ++i) {
    uint32_t produced;
    const uint32_t first = frames[i].first_block;
    dz::Cells<dz::zstd::kHostWindow> cells;
    statuses[i] = dz::zstd::execute<dz::zstd::kHostThreads>(frames[i], blocks + first, workspace, results + first,
                                                            cells, produced);
    out_bytes[i] = produced;
  }
}
}
