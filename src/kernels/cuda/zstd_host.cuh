// The zstd kernels on the host, with the threads one after the other: for tests, which then need no GPU.
#pragma once
#include "host_warp.h"
#include "zstd_entropy.cuh"
#include "zstd_execute.cuh"
#include "zstd_sequences.cuh"

namespace dz {
namespace zstd {

// As many sequences as a batch has, and its bytes: small, so that tests come to all their edges.
constexpr uint32_t kHostThreads = 37, kHostWindow = 1000;

// Blocks that a warp decodes.
constexpr uint32_t kHostGroup = 8;

// What the lanes of a warp are given.
struct HostWave {
  const Frame* frames;
  const Block* blocks;
  const uint32_t* work;
  uint32_t begin, end;  // of `work`
  uint8_t* workspace;
  BlockResult* results;
  EntropyShared<kHostGroup>* shared;
};

inline void host_sequences(HostWave& wave) {
  run_host_warp([](void* argument, uint32_t lane) {
    const HostWave& w = *static_cast<HostWave*>(argument);
    record_sequences<kHostGroup>(w.frames, w.blocks, w.work, w.begin, w.end, w.workspace, w.results, *w.shared, lane);
    for (uint32_t i = w.begin; i < w.end; ++i) {
      const uint32_t own = w.work[i];
      const Block& b = w.blocks[own];
      const Frame& f = w.frames[b.frame];
      lanes_sync();
      if (b.sequences == 0 || w.results[own].sequences != kGood) continue;
      uint64_t* const to = reinterpret_cast<uint64_t*>(w.workspace + f.workspace + b.sequences_to);
      make_sequences(f, b, own == f.first_block, w.shared->sequences.lengths, to, w.results[own], lane);
    }
  }, &wave);
}

inline void host_literals(const Frame* frames, const Block* blocks, uint32_t index, uint8_t* workspace, BlockResult& result) {
  const Block& b = blocks[index];
  const Frame& f = frames[b.frame];
  LiteralTables t;
  result.literals = kGood;
  if (streams(b)) prepare_literals(f, blocks + f.first_block, index - f.first_block, t);
  for (uint32_t s = 0; s < streams(b); ++s) {
    if (!decode_literals(f, b, t, s, workspace + f.workspace + b.literals_to)) result.literals = kDamaged;
  }
}

inline bool host_execute_block(const Block& b, const Literals& literals, const uint64_t* sequences, uint32_t block_len,
                               uint32_t produced, const uint32_t* repeat, uint8_t* output) {
  Stage<kHostWindow> stage;
  uint32_t done = 0, literals_done = 0, output_done = 0;
  while (done < b.sequences) {
    Task tasks[kHostThreads];
    uint32_t n = 0;
    bool good = true;
    for (uint32_t i = done; i < b.sequences && n < kHostThreads; ++i, ++n) {
      if (packed_output(sequences[i]) - output_done > kHostWindow) break;
      good = plan_task(i ? sequences[i - 1] : 0, sequences[i], output_done, produced, repeat, tasks[n]) && good;
    }
    if (!good) return false;
    uint8_t* const out = output + output_done;
    if (n == 0) {
      Task& task = tasks[0];
      if (!plan_task(done ? sequences[done - 1] : 0, sequences[done], output_done, produced, repeat, task)) return false;
      copy_literals(literals, task.literals_from, out, task.literals_len, 0, 1);
      copy_match(out + task.at, task.offset, task.len, 0, 1);
      n = 1;
    } else {
      memset(stage.written, 0, sizeof stage.written);
      for (uint32_t t = 0; t < n; ++t) {
        const Task& task = tasks[t];
        uint8_t* const to = stage.bytes + task.at - task.literals_len;
        if (task.literals_len > kLong) copy_literals(literals, task.literals_from, to, task.literals_len, 0, 1);
        else copy_few_literals(literals, task, to);
        mark_all(stage.written, task.at - task.literals_len, task.literals_len);
      }
      // Backward, so that those that wait do.
      for (bool waiting = true; waiting;) {
        waiting = false;
        for (uint32_t t = n; t-- > 0;) {
          if (tasks[t].len && ready(tasks[t], stage.written)) {
            if (tasks[t].len > kLong) copy_long_task(tasks[t], stage.bytes, out, 0, 1);
            else copy_task(tasks[t], stage.bytes, out);
            mark_all(stage.written, tasks[t].at, tasks[t].len);
            tasks[t].len = 0;
          }
          waiting = waiting || tasks[t].len;
        }
      }
      memcpy(out, stage.bytes, packed_output(sequences[done + n - 1]) - output_done);
    }
    done += n;
    literals_done = packed_literals(sequences[done - 1]);
    output_done = packed_output(sequences[done - 1]);
  }
  copy_literals(literals, literals_done, output + output_done, block_len - output_done, 0, 1);
  return true;
}

inline Status host_execute(const Frame& f, const Block* blocks, const uint8_t* workspace, const BlockResult* results,
                           uint32_t& produced) {
  uint8_t* const dst = reinterpret_cast<uint8_t*>(f.dst);
  const uint8_t* const src = reinterpret_cast<const uint8_t*>(f.src);
  produced = 0;
  uint32_t repeat[3] = {1, 4, 8};
  for (uint32_t i = 0; i < f.blocks; ++i) {
    const Block& b = blocks[i];
    uint32_t size;
    const Status status = block_size(f, b, results[i], produced, size);
    if (status != kGood) return status;
    uint8_t* const to = dst + produced;
    if (b.kind == kRaw) {
      copy_apart(to, src + b.at, size, 0, 1);
    } else if (b.kind == kRun) {
      fill(to, src[b.at], size, 0, 1);
    } else {
      const uint64_t* const sequences = reinterpret_cast<const uint64_t*>(workspace + f.workspace + b.sequences_to);
      if (!host_execute_block(b, literals_of(f, b, workspace), sequences, size, produced, repeat, to)) return kDamaged;
      uint32_t next[3];
      for (uint32_t k = 0; k < 3; ++k) next[k] = resolve_offset(results[i].repeat[k], repeat);
      for (uint32_t k = 0; k < 3; ++k) repeat[k] = next[k];
    }
    produced += size;
  }
  return produced == f.capacity ? kGood : kTooFew;
}

}  // namespace zstd
}  // namespace dz

extern "C" {

// All kernels for a whole wave; arguments as theirs.
void dz_host_zstd(const dz::zstd::Frame* frames, uint32_t n_frames, const dz::zstd::Block* blocks, const uint32_t* work,
                  uint32_t n_work, uint8_t* workspace, dz::zstd::BlockResult* results, uint64_t* out_bytes,
                  int32_t* statuses) {
  using dz::zstd::kHostGroup;
  for (uint32_t begin = 0; begin < n_work; begin += kHostGroup) {
    const uint32_t end = n_work - begin < kHostGroup ? n_work : begin + kHostGroup;
    dz::zstd::EntropyShared<kHostGroup> shared;
    dz::zstd::HostWave wave = {frames, blocks, work, begin, end, workspace, results, &shared};
    dz::zstd::host_sequences(wave);
  }
  for (uint32_t i = 0; i < n_work; ++i) dz::zstd::host_literals(frames, blocks, work[i], workspace, results[work[i]]);
  for (uint32_t i = 0; i < n_frames; ++i) {
    uint32_t produced;
    const uint32_t first = frames[i].first_block;
    statuses[i] = dz::zstd::host_execute(frames[i], blocks + first, workspace, results + first, produced);
    out_bytes[i] = produced;
  }
}

}
