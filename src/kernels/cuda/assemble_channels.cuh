// dz_assemble_channels: does what dz_assemble_fill does, but only for operations that normalise each element by the
// mean and stddev of its channel, from a table (kNormTable). If the elements of a channel lie far apart, as the colours
// of an image do, one box per channel would read every byte once for each channel.
#pragma once
#include "assemble.cuh"
#include "channels.cuh"

namespace dz {

// Returns the stored bits of the element that is `from` elements from the box's first.
__device__ __forceinline__ uint64_t stored(const Job& job, const Op& op, const Shuffled& shuffled, int64_t from) {
  if (job.source != kChunk) return op.fill;
  const int size = size_of(op.src_dtype);
  uint64_t bits = is_shuffled(job) ? any_of(shuffled, from, uint32_t(size)) : load(job.src, from, op.src_dtype);
  return op.swap ? swap_bytes(bits, size) : bits;
}

// Converts a tile, for types known at compile time, chunks that aren't shuffled, and operations that aren't rare.
template <int32_t SRC, class In, int32_t DST, class Out>
__device__ __forceinline__ void convert_channels(const ChannelBox& box, const Job& job, const Op& shared_op,
                                                 const Tile& tile, NormaliseByChannel& nans) {
  const Op op = shared_op;  // in registers
  const In* src = reinterpret_cast<const In*>(job.src);
  Out* dst = reinterpret_cast<Out*>(job.dst);
  for (uint32_t i = threadIdx.x; i < tile.count; i += kThreads) {
    int64_t from, to;
    take(locate_channel(box, tile.first + i, from, to), nans);
    const In v = src[from];
    dst[to] = Out(convert<false>(op.swap ? swap_bytes(v, sizeof(In)) : v, op, SRC, DST, nans));
  }
}

}  // namespace dz

// Grid: as for dz_assemble. `counters` may be null if no operation replaces NaNs.
extern "C" __global__ void __launch_bounds__(dz::kThreads, 4)
    dz_assemble_channels(const dz::Job* jobs, const uint32_t* tile_start, uint32_t n_jobs, const dz::Op* ops,
                         unsigned long long* counters) {
  using namespace dz;
  __shared__ Job job;
  __shared__ Op op;
  __shared__ ChannelBox box;
  __shared__ Tile tile;
  __shared__ Shuffled shuffled;
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
      open_channels(job, op, box);
      if (is_shuffled(job)) shuffled = open_shuffled(job, box.box, uint32_t(size_of(op.src_dtype)), false);
      const uint64_t n = count(job), start = uint64_t(nth) * kTile;
      tile.first = start;
      tile.count = uint32_t(start + kTile < n ? kTile : n - start);
    }
  }
  __syncthreads();
  const bool is_common = job.source == kChunk && !is_shuffled(job) && !is_rare(op) && op.dst_dtype == kF32;
  if (is_common && op.src_dtype == kF32) {
    convert_channels<kF32, uint32_t, kF32, uint32_t>(box, job, op, tile, nans);
  } else if (is_common && op.src_dtype == kU8) {
    convert_channels<kU8, uint8_t, kF32, uint32_t>(box, job, op, tile, nans);
  } else if (is_common && op.src_dtype == kU16) {
    convert_channels<kU16, uint16_t, kF32, uint32_t>(box, job, op, tile, nans);
  } else {
    for (uint32_t i = threadIdx.x; i < tile.count; i += kThreads) {
      int64_t from, to;
      take(locate_channel(box, tile.first + i, from, to), nans);
      store(job.dst, to, convert_any(stored(job, op, shuffled, from), op, nans), op.dst_dtype);
    }
  }
  if (counters) add_up(nans.replaced, counters + op.counter);
}
