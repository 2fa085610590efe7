// The kernels around zstd_execute.cuh.
#pragma once
#include "zstd_execute.cuh"

#ifdef __CUDACC__
namespace dz {
namespace zstd {

// All sequences of one block. False for damage; the same in all threads.
template <uint32_t THREADS, uint32_t WINDOW>
__device__ __forceinline__ bool execute_block(const Block& b, const Literals& literals, const uint64_t* sequences,
                                              uint32_t block_len, uint32_t produced, const uint32_t* repeat,
                                              uint8_t* output, Stage<WINDOW>& stage) {
  const uint32_t t = threadIdx.x, lane = t % 32;
  uint32_t done = 0, literals_done = 0, output_done = 0;
  uint64_t now = t < b.sequences ? sequences[t] : 0, before = t && t < b.sequences ? sequences[t - 1] : 0;
  while (done < b.sequences) {
    const bool in = done + t < b.sequences;
    const bool fits = in && packed_output(now) - output_done <= WINDOW;
    Task task = {};
    bool good = true;
    if (fits) good = plan_task(before, now, output_done, produced, repeat, task);
    for (uint32_t w = t; w < WINDOW / 32 + 2; w += THREADS) stage.written[w] = 0;
    const uint32_t n = __syncthreads_count(fits);
    uint8_t* const out = output + output_done;
    if (n == 0) {
      // A sequence that is longer than the stage goes straight to the output.
      now = sequences[done];
      before = done ? sequences[done - 1] : 0;
      if (!plan_task(before, now, output_done, produced, repeat, task)) return false;
      copy_literals(literals, task.literals_from, out, task.literals_len, t, THREADS);
      __syncthreads();
      copy_match(out + task.at, task.offset, task.len, t, THREADS);
      __syncthreads();
      literals_done = packed_literals(now);
      output_done = packed_output(now);
      ++done;
      if (done + t < b.sequences) {
        now = sequences[done + t];
        before = sequences[done + t - 1];
      }
      continue;
    }
    if (__syncthreads_or(!good)) return false;
    if (n == t + 1) {
      stage.literals = packed_literals(now);
      stage.output = packed_output(now);
    }
    done += n;
    // They come while this batch is put together.
    if (done + t < b.sequences) {
      now = sequences[done + t];
      before = sequences[done + t - 1];
    }
    // The stage is as far from a multiple of 16 as the output, so that both are copied in wide words.
    const uint32_t skew = uint32_t(reinterpret_cast<uintptr_t>(out) & 15);
    uint8_t* const bytes = stage.bytes + skew;
    const uint32_t few = task.literals_len <= kLong ? task.literals_len : 0;
    const bool at_once = task.len && task.len <= kLong && task.offset >= task.at + source_len(task);
    if (few) copy_few_literals(literals, task, bytes + task.at - few);
    if (at_once) copy_task(task, bytes, out);
    __threadfence_block();
    if (few) mark(stage.written, bits_of(task.at - few, few));
    if (at_once) {
      mark(stage.written, bits_of(task.at, task.len));
      task.len = 0;
    }
    for (uint32_t many = __ballot_sync(0xffffffff, task.literals_len > kLong); many; many &= many - 1) {
      const int from = __ffs(int(many)) - 1;
      const uint32_t len = __shfl_sync(0xffffffff, task.literals_len, from);
      const uint32_t at = __shfl_sync(0xffffffff, task.at, from) - len;
      copy_literals(literals, __shfl_sync(0xffffffff, task.literals_from, from), bytes + at, len, lane, 32);
      __threadfence_block();
      __syncwarp();
      if (lane == 0) mark_all(stage.written, at, len);
    }
    finish_matches(task, bytes, out, stage.written, lane);
    __syncthreads();
    const uint32_t size = stage.output - output_done;
    const uint32_t head = min((16 - skew) & 15, size), wide = (size - head) / 16;
    if (t < head) out[t] = bytes[t];
    for (uint32_t w = t; w < wide; w += THREADS) {
      reinterpret_cast<uint4*>(out + head)[w] = reinterpret_cast<const uint4*>(bytes + head)[w];
    }
    const uint32_t tail = head + wide * 16 + t;
    if (tail < size) out[tail] = bytes[tail];
    literals_done = stage.literals;
    output_done = stage.output;
    __syncthreads();
  }
  copy_literals(literals, literals_done, output + output_done, block_len - output_done, t, THREADS);
  return true;
}

template <uint32_t THREADS, uint32_t WINDOW>
__device__ __forceinline__ void execute(const Frame* frames, const Block* all_blocks, const uint8_t* workspace,
                                        const BlockResult* all_results, uint64_t* out_bytes, int32_t* statuses) {
  __shared__ Stage<WINDOW> stage;
  const Frame f = frames[blockIdx.x];
  const Block* const blocks = all_blocks + f.first_block;
  const BlockResult* const results = all_results + f.first_block;
  uint8_t* const dst = reinterpret_cast<uint8_t*>(f.dst);
  const uint8_t* const src = reinterpret_cast<const uint8_t*>(f.src);
  uint32_t produced = 0;
  uint32_t repeat[3] = {1, 4, 8};
  Status status = kGood;
  for (uint32_t i = 0; i < f.blocks; ++i) {
    const Block b = blocks[i];
    const BlockResult r = results[i];
    uint32_t size;
    status = block_size(f, b, r, produced, size);
    if (status != kGood) break;
    uint8_t* const to = dst + produced;
    if (b.kind == kRaw) {
      copy_apart(to, src + b.at, size, threadIdx.x, THREADS);
    } else if (b.kind == kRun) {
      fill(to, src[b.at], size, threadIdx.x, THREADS);
    } else {
      const uint64_t* const sequences = reinterpret_cast<const uint64_t*>(workspace + f.workspace + b.sequences_to);
      if (!execute_block<THREADS, WINDOW>(b, literals_of(f, b, workspace), sequences, size, produced, repeat, to, stage)) {
        status = kDamaged;
        break;
      }
      uint32_t next[3];
      for (uint32_t k = 0; k < 3; ++k) next[k] = resolve_offset(r.repeat[k], repeat);
      for (uint32_t k = 0; k < 3; ++k) repeat[k] = next[k];
    }
    produced += size;
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    out_bytes[blockIdx.x] = produced;
    statuses[blockIdx.x] = status == kGood && produced != f.capacity ? kTooFew : status;
  }
}

}  // namespace zstd
}  // namespace dz

// Grid: one block for each frame. The more threads it has, the sooner a frame is done; the fewer, the more frames are
// done at once: as many as fill the device. out_bytes: bytes written, all of them within the frame's capacity; statuses:
// dz::zstd::Status, 0 only where the frame decoded to just its capacity.
#define DZ_ZSTD_EXECUTE(NAME, THREADS)                                                                           \
  extern "C" __global__ void __launch_bounds__(THREADS, 1024 / THREADS)                                          \
      NAME(const dz::zstd::Frame* frames, const dz::zstd::Block* blocks, const uint8_t* workspace,               \
           const dz::zstd::BlockResult* results, uint64_t* out_bytes, int32_t* statuses) {                       \
    dz::zstd::execute<THREADS, 16 * THREADS>(frames, blocks, workspace, results, out_bytes, statuses);           \
  }

DZ_ZSTD_EXECUTE(dz_zstd_execute_1024, 1024)
DZ_ZSTD_EXECUTE(dz_zstd_execute_256, 256)
DZ_ZSTD_EXECUTE(dz_zstd_execute_128, 128)

#undef DZ_ZSTD_EXECUTE
#endif
