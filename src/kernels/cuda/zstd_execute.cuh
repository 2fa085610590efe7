// dz_zstd_execute_*: write the bytes of zstd frames from their decoded literals and sequences (RFC 8878, sections
// 3.1.1.4 and 3.1.1.5), with one block of threads for each frame.
//
// It is known beforehand where each sequence writes. So a batch (batch.cuh) has up to kSequencesEach sequences per thread,
// all written at once.
#pragma once
#include "batch.cuh"
#include "shared.cuh"
#include "zstd_layout.cuh"

namespace dz {
namespace zstd {

// Most sequences of a batch for each thread. With two, the threads wait half as often for each other.
constexpr uint32_t kSequencesEach = 2;
static_assert(kSequencesEach == 2, "DZ_UNROLL_BY(2) unrolls all loops over them");

// A block's literals.
struct Literals {
  const uint8_t* from;
  uint32_t run;  // nonzero: all literals are *from
};

DZ_HD void copy_literals(const Literals& literals, uint32_t from, uint8_t* to, uint32_t n, uint32_t lane,
                         uint32_t lanes) {
  if (literals.run) fill(to, *literals.from, n, lane, lanes);
  else copy_apart(to, literals.from + from, n, lane, lanes);
}

// Makes the task of sequence `now`, which follows `before`. The batch begins after `batch_output` bytes of the block,
// and the block after `produced` bytes of the frame. Returns false if the match reaches before the frame's first byte.
DZ_HD bool plan_task(uint64_t before, uint64_t now, uint32_t batch_output, uint32_t produced, const uint32_t* repeat,
                     Task& task) {
  task.literals_from = packed_literals(before);
  task.literals_len = packed_literals(now) - task.literals_from;
  const uint32_t match = packed_output(before) + task.literals_len;
  task.at = match - batch_output;
  task.len = packed_output(now) - match;
  task.offset = resolve_offset(packed_offset(now), repeat);
  return task.offset != 0 && task.offset <= produced + match;
}

DZ_HD Literals literals_of(const Frame& f, const Block& b, const uint8_t* workspace) {
  const bool is_decoded = b.literals_kind >= kOneStream;
  const uint64_t decoded = reinterpret_cast<uint64_t>(workspace) + f.workspace + b.literals_to;
  const uint64_t from = is_decoded ? decoded : f.src + b.literals_at;
  return {global_memory<const uint8_t>(from), b.literals_kind == kRunLiterals};
}

// Sets `size` to the bytes that a block decodes to. Returns kCorrupt if its literals or sequences are, kTooLong if it
// doesn't fit. Damaged matches are found later.
DZ_HD DecodeStatus block_size(const Frame& f, const Block& b, const BlockResult& r, uint32_t produced, uint32_t& size) {
  size = b.size;
  if (b.kind == kCompressed) {
    if (r.literals != kGood || r.sequences != kGood) return kCorrupt;
    size = r.size;
  }
  return size > f.capacity - produced ? kTooLong : kGood;
}

// Writes one frame. All threads have the same values. A batch has at most WINDOW bytes.
template <uint32_t THREADS, uint32_t WINDOW>
struct Executor {
  Team<THREADS> team;
  Cells<WINDOW>& cells;
  uint32_t produced;
  uint32_t repeat[3];

  // A sequence and the one before it.
  struct Pair {
    uint64_t before, now;
  };

  static DZ_HD Pair pair(const Block& b, const uint64_t* sequences, uint32_t i) {
    return i < b.sequences ? Pair{i ? sequences[i - 1] : 0, sequences[i]} : Pair{0, 0};
  }

  // Writes the cells of a thread's task.
  DZ_HD void put(const Task& task, const Literals& literals, uint32_t skew, const uint8_t* out) {
    const bool few = task.literals_len <= kLong, near = task.len <= kLong;
    if (task.literals_len && few) {
      const uint32_t at = skew + task.at - task.literals_len;
      if (literals.run) cells.repeat_many(at, *literals.from, task.literals_len, 0, 1);
      else cells.put_few(at, literals.from + task.literals_from, task.literals_len);
    }
    if (task.len && near) cells.put_match(task, skew, out, 0, 1);
    by_warp(!few, task, [&](const Task& t, uint32_t lane, uint32_t lanes) {
      const uint32_t at = skew + t.at - t.literals_len;
      if (literals.run) cells.repeat_many(at, *literals.from, t.literals_len, lane, lanes);
      else cells.put_many(at, literals.from + t.literals_from, t.literals_len, lane, lanes);
    });
    by_warp(!near, task,
            [&](const Task& t, uint32_t lane, uint32_t lanes) { cells.put_match(t, skew, out, lane, lanes); });
  }

  // Writes a sequence that is longer than a batch directly to the output. Returns false for damage.
  DZ_HD bool straight(const Pair& own, const Literals& literals, uint32_t output_done, uint8_t* out) {
    Task task = {};
    if (!plan_task(own.before, own.now, output_done, produced, repeat, task)) return false;
    team.each([&](uint32_t t) { copy_literals(literals, task.literals_from, out, task.literals_len, t, THREADS); });
    team.each([&](uint32_t t) { copy_match(out + task.at, task.offset, task.len, t, THREADS); });
    return true;
  }

  // Writes a block that decodes to `size` bytes to `output`: all its sequences, and the literals after them. Returns
  // false for damage.
  DZ_HD bool sequences(const Block& b, const Literals& literals, const uint64_t* sequences, uint32_t size,
                       uint8_t* output) {
    // The sequences of the next batch, which are loaded while a batch is put together: sequence k * THREADS + t of it
    // belongs to thread t.
    PerThread<Pair, THREADS> next[kSequencesEach];
    const auto load = [&](uint32_t t, uint32_t begin) {
      DZ_UNROLL_BY(2)
      for (uint32_t k = 0; k < kSequencesEach; ++k) next[k][t] = pair(b, sequences, begin + k * THREADS + t);
    };
    team.each([&](uint32_t t) { load(t, 0); });
    uint32_t done = 0, literals_done = 0, output_done = 0;
    while (done < b.sequences) {
      uint32_t n = 0;
      DZ_UNROLL_BY(2)
      for (uint32_t k = 0; k < kSequencesEach; ++k) {
        n += team.count([&](uint32_t t) {
          return done + k * THREADS + t < b.sequences && packed_output(next[k][t].now) - output_done <= WINDOW;
        });
      }
      uint8_t* const out = output + output_done;
      const uint64_t last = sequences[done + (n ? n - 1 : 0)];
      const uint32_t behind = done + (n ? n : 1);
      if (n == 0) {
        if (!straight(pair(b, sequences, done), literals, output_done, out)) return false;
        team.each([&](uint32_t t) { load(t, behind); });
      } else {
        const uint32_t skew = skew_of(out), bytes = packed_output(last) - output_done;
        const bool bad = team.any([&](uint32_t t) {
          bool good = true;
          DZ_UNROLL_BY(2)
          for (uint32_t k = 0; k < kSequencesEach; ++k) {
            Task task = {};
            const Pair own = next[k][t];
            const bool is_valid =
                k * THREADS + t >= n || plan_task(own.before, own.now, output_done, produced, repeat, task);
            next[k][t] = pair(b, sequences, behind + k * THREADS + t);
            put(is_valid ? task : Task{}, literals, skew, out);
            good = good && is_valid;
          }
          cells.close(skew, bytes, t);
          return !good;
        });
        if (bad) return false;
        team.each([&](uint32_t t) { cells.write(out, skew, bytes, t, THREADS); });
      }
      done = behind;
      literals_done = packed_literals(last);
      output_done = packed_output(last);
    }
    team.each([&](uint32_t t) {
      copy_literals(literals, literals_done, output + output_done, size - output_done, t, THREADS);
    });
    return true;
  }

  // Writes the whole frame. `produced` is the number of bytes written, also after an error.
  DZ_HD DecodeStatus run(const Frame& f, const Block* blocks, const uint8_t* workspace, const BlockResult* results) {
    uint8_t* const dst = global_memory<uint8_t>(f.dst);
    const uint8_t* const src = global_memory<const uint8_t>(f.src);
    for (uint32_t i = 0; i < f.blocks; ++i) {
      const Block b = blocks[i];
      const BlockResult r = results[i];
      uint32_t size;
      const DecodeStatus status = block_size(f, b, r, produced, size);
      if (status != kGood) return status;
      uint8_t* const to = dst + produced;
      if (b.kind == kRaw) {
        team.each([&](uint32_t t) { copy_apart(to, src + b.at, size, t, THREADS); });
      } else if (b.kind == kRun) {
        team.each([&](uint32_t t) { fill(to, src[b.at], size, t, THREADS); });
      } else {
        const uint64_t* const records = reinterpret_cast<const uint64_t*>(workspace + f.workspace + b.sequences_to);
        if (!sequences(b, literals_of(f, b, workspace), records, size, to)) return kCorrupt;
        uint32_t after[3];
        for (uint32_t k = 0; k < 3; ++k) after[k] = resolve_offset(r.repeat[k], repeat);
        for (uint32_t k = 0; k < 3; ++k) repeat[k] = after[k];
      }
      produced += size;
    }
    return produced == f.capacity ? kGood : kTooShort;
  }
};

template <uint32_t THREADS, uint32_t WINDOW>
DZ_HD DecodeStatus execute(const Frame& f, const Block* blocks, const uint8_t* workspace, const BlockResult* results,
                           Cells<WINDOW>& cells, uint32_t& produced) {
  Executor<THREADS, WINDOW> executor = {{}, cells, 0, {1, 4, 8}};
  const DecodeStatus status = executor.run(f, blocks, workspace, results);
  produced = executor.produced;
  return status;
}

}  // namespace zstd
}  // namespace dz

#ifdef __CUDACC__
// Grid: one block of threads for each frame. With more threads a frame is done sooner; with fewer, more frames run at
// once. out_bytes: bytes written for each frame, at most its capacity. statuses: dz::DecodeStatus; 0 only if the frame
// decoded to exactly its capacity.
#define DZ_ZSTD_EXECUTE(NAME, THREADS, BLOCKS)                                                                      \
  extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)                                                     \
      NAME(const dz::zstd::Frame* frames, const dz::zstd::Block* blocks, const uint8_t* workspace,                  \
           const dz::zstd::BlockResult* results, uint64_t* out_bytes, int32_t* statuses) {                          \
    using namespace dz::zstd;                                                                                       \
    __shared__ dz::Cells<20 * THREADS> cells;                                                                       \
    const Frame f = frames[blockIdx.x];                                                                             \
    uint32_t produced;                                                                                              \
    const dz::DecodeStatus status = execute<THREADS>(f, blocks + f.first_block, workspace, results + f.first_block, \
                                                     *dz::shared_pointer(&cells), produced);                        \
    if (threadIdx.x == 0) {                                                                                         \
      out_bytes[blockIdx.x] = produced;                                                                             \
      statuses[blockIdx.x] = status;                                                                                \
    }                                                                                                               \
  }

DZ_ZSTD_EXECUTE(dz_zstd_execute_1024, 1024, 1)
DZ_ZSTD_EXECUTE(dz_zstd_execute_256, 256, 4)
DZ_ZSTD_EXECUTE(dz_zstd_execute_128, 128, 8)

#undef DZ_ZSTD_EXECUTE
#endif
