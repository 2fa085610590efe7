// dz_assemble: moves boxes of elements from decoded chunks into the outputs, and converts them on the way.
// dz_assemble_fill does the same, and also replaces and counts NaNs where an operation asks for it.
//
// Each decoded byte is read once and each output byte written once. A block of threads takes one tile of kTile elements
// of one job. Plain copies, also those that swap the byte order, move vectors of up to 16 bytes. Other jobs go element
// by element, with neighbouring threads on neighbouring elements. The shuffle of a chunk is undone while the chunk is
// read.
#pragma once
#include "move.cuh"
#include "search.cuh"
#include "unshuffle.cuh"

namespace dz {

// Adds the values `mine` of all threads of a block to one number in global memory, with one atomic operation.
__device__ __forceinline__ void add_up(uint32_t mine, unsigned long long* to) {
  __shared__ uint32_t parts[kThreads / 32];
  for (int distance = 16; distance > 0; distance /= 2) mine += __shfl_xor_sync(0xffffffff, mine, distance);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = mine;
  __syncthreads();
  if (threadIdx.x == 0) {
    uint32_t sum = 0;
    for (uint32_t part : parts) sum += part;
    if (sum) atomicAdd(to, static_cast<unsigned long long>(sum));
  }
}

template <class Nans>
__device__ __forceinline__ void assemble(const Job* jobs, const uint32_t* tile_start, uint32_t n_jobs, const Op* ops,
                                         unsigned long long* counters) {
  __shared__ Job job;
  __shared__ Op op;
  __shared__ Box box;
  __shared__ Tile tile;
  __shared__ Shuffled shuffled;
  __shared__ uint64_t value;
  __shared__ uint32_t width;
  Nans nans;
  if (threadIdx.x < 32) {
    const uint32_t j = find_job(tile_start, n_jobs, blockIdx.x);
    const uint32_t nth = blockIdx.x - tile_start[j];
    // The warp copies both structures together: 52 and 28 words.
    const uint32_t* from = reinterpret_cast<const uint32_t*>(jobs + j);
    for (uint32_t w = threadIdx.x; w < sizeof(Job) / 4; w += 32) reinterpret_cast<uint32_t*>(&job)[w] = from[w];
    __syncwarp();
    from = reinterpret_cast<const uint32_t*>(ops + job.op);
    if (threadIdx.x < sizeof(Op) / 4) reinterpret_cast<uint32_t*>(&op)[threadIdx.x] = from[threadIdx.x];
    if (threadIdx.x == 0) merge(job, box);  // while the operation is on its way
    __syncwarp();
    if (threadIdx.x == 0) {
      const uint64_t n = count(job), start = uint64_t(nth) * kTile;
      width = 1;
      if (is_shuffled(job)) {
        shuffled = open_shuffled(job, box, uint32_t(size_of(op.src_dtype)), is_plain<Nans>(op));
        if (shuffled.reach == kUnits) {
          width = unit_of(shuffled.bits);
          vectorise(box, width);
        }
      } else if (job.source != kChunk || is_plain<Nans>(op)) {
        width = vector_width(box, job, size_of(op.dst_dtype));
        if (width > 1) vectorise(box, width);
      }
      if (job.source != kChunk) value = repeat(constant(op, job.source, nans), size_of(op.dst_dtype));
      tile.first = start / width;
      tile.count = uint32_t((start + kTile < n ? kTile : n - start) / width);
      if constexpr (Nans::kFills) nans.replaced *= tile.count * width;
    }
  }
  __syncthreads();
  const int size = size_of(op.dst_dtype), unit = size * int(width);
  if (job.source != kChunk) {
    fill_box(box, job, unit, value, tile);
  } else if (is_shuffled(job)) {
    move_shuffled(box, shuffled, job, op, tile, nans);
  } else if (is_plain<Nans>(op)) {
    copy_box(box, job, unit, op.swap ? size : 1, tile);
  } else if (is_rare(op)) {
    convert_elements(box, job, op, tile, nans);
  } else if (op.src_dtype == kF32 && op.dst_dtype == kF32) {
    convert_units<2, kF32, uint32_t, kF32, uint32_t>(box, reinterpret_cast<const uint32_t*>(job.src), job, op, tile,
                                                     nans);
  } else if (op.src_dtype == kI16 && op.dst_dtype == kF32) {
    convert_units<2, kI16, uint16_t, kF32, uint32_t>(box, reinterpret_cast<const uint16_t*>(job.src), job, op, tile,
                                                     nans);
  } else if (op.src_dtype == kU16 && op.dst_dtype == kF32) {
    convert_units<2, kU16, uint16_t, kF32, uint32_t>(box, reinterpret_cast<const uint16_t*>(job.src), job, op, tile,
                                                     nans);
  } else {
    convert_elements(box, job, op, tile, nans);
  }
  if constexpr (Nans::kFills) add_up(nans.replaced, counters + op.counter);
}

}  // namespace dz

// Grid: one block of kThreads for each tile, tile_start[n_jobs] in all. `tile_start` has n_jobs + 1 entries: the prefix
// sum of the jobs' numbers of tiles.
extern "C" __global__ void __launch_bounds__(dz::kThreads, 4)
    dz_assemble(const dz::Job* jobs, const uint32_t* tile_start, uint32_t n_jobs, const dz::Op* ops) {
  dz::assemble<dz::KeepNans>(jobs, tile_start, n_jobs, ops, nullptr);
}

// As dz_assemble. Adds the number of replaced NaNs to counters[Op::counter].
extern "C" __global__ void __launch_bounds__(dz::kThreads, 4)
    dz_assemble_fill(const dz::Job* jobs, const uint32_t* tile_start, uint32_t n_jobs, const dz::Op* ops,
                     unsigned long long* counters) {
  dz::assemble<dz::ReplaceNans>(jobs, tile_start, n_jobs, ops, counters);
}
