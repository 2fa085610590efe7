// dz_assemble_between: writes the values between two decoded elements to the outputs (kBetween). Both lie in the memory of
// the batch, where other jobs have put them, decoded and in the order of the output. So the kernel reads two contiguous
// rows and writes one, at the speed of memory. A block of threads takes one tile of kTile elements of one job.
#pragma once
#include "assemble.cuh"
#include "between.cuh"

namespace dz {

// A vector of four float32.
struct alignas(16) Four {
  uint32_t of[4];
};

// Converts a tile of contiguous float32 by four elements at a time. All addresses are multiples of 16.
__device__ __forceinline__ void between_fours(const Job& job, const Pair& pair, const Op& shared_op, const Tile& tile,
                                              NormaliseByChannel& nans) {
  const Op op = shared_op;  // in registers
  const Four* one = reinterpret_cast<const Four*>(job.src) + tile.first / 4;
  const Four* other = one + pair.apart / 4;
  Four* dst = reinterpret_cast<Four*>(job.dst) + tile.first / 4;
  for (uint32_t i = threadIdx.x; i < tile.count / 4; i += kThreads) {
    const Four a = one[i], b = other[i];
    Four out;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const double x = between(f32_to_f64(a.of[k]), f32_to_f64(b.of[k]), pair.weight);
      out.of[k] = uint32_t(finish(x, op, kF32, nans));
    }
    dst[i] = out;
  }
}

// Whether a tile of float32 may be taken by fours: contiguous, of one norm, and at multiples of 16 bytes.
DZ_HD bool by_fours(const Job& job, const Pair& pair, const Op& op, const Box& box) {
  if (op.decoded != kF32 || op.dst_dtype != kF32 || op.has_norm == kNormTable || box.ndim != 1) return false;
  const bool is_row = box.extent[0] == 1 || (box.src[0] == 1 && box.dst[0] == 1);
  return is_row && ((job.src | job.dst) & 15) == 0 && ((uint64_t(pair.apart) | box.extent[0]) & 3) == 0;
}

}  // namespace dz

// Grid: as for dz_assemble. `counters` may be null if no operation replaces NaNs.
extern "C" __global__ void __launch_bounds__(dz::kThreads, 4)
    dz_assemble_between(const dz::Job* jobs, const uint32_t* tile_start, uint32_t n_jobs, const dz::Op* ops,
                        unsigned long long* counters) {
  using namespace dz;
  __shared__ Job job;
  __shared__ Op op;
  __shared__ ChannelBox box;
  __shared__ Tile tile;
  __shared__ Pair pair;
  __shared__ bool fours;
  NormaliseByChannel nans;
  if (threadIdx.x < 32) {
    const uint32_t j = find_job(tile_start, n_jobs, blockIdx.x);
    const uint32_t nth = blockIdx.x - tile_start[j];
    const uint32_t* from = reinterpret_cast<const uint32_t*>(jobs + j);
    for (uint32_t w = threadIdx.x; w < sizeof(Job) / 4; w += 32) reinterpret_cast<uint32_t*>(&job)[w] = from[w];
    __syncwarp();
    from = reinterpret_cast<const uint32_t*>(ops + job.op);
    if (threadIdx.x < sizeof(Op) / 4) reinterpret_cast<uint32_t*>(&op)[threadIdx.x] = from[threadIdx.x];
    __syncwarp();
    if (threadIdx.x == 0) {
      open_between(job, op, box);
      pair = pair_of(job);
      fours = by_fours(job, pair, op, box.box);
      const uint64_t n = count(job), start = uint64_t(nth) * kTile;
      tile.first = start;
      tile.count = uint32_t(start + kTile < n ? kTile : n - start);
    }
  }
  __syncthreads();
  nans.of_channel[0] = op.mean;
  nans.of_channel[1] = op.stddev;
  if (fours) {
    between_fours(job, pair, op, tile, nans);
  } else {
    for (uint32_t i = threadIdx.x; i < tile.count; i += kThreads) {
      int64_t from, to;
      locate_between(box, op, tile.first + i, from, to, nans);
      const double a = to_f64(value_of(load(job.src, from, op.decoded), op.decoded));
      const double b = to_f64(value_of(load(job.src, from + pair.apart, op.decoded), op.decoded));
      store(job.dst, to, finish(between(a, b, pair.weight), op, op.dst_dtype, nans), op.dst_dtype);
    }
  }
  if (counters) add_up(nans.replaced, counters + op.counter);
}
