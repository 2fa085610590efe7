// dz_assemble_transposed: does what dz_assemble_fill and dz_assemble_channels do, for boxes of chunks whose neighbours aren't
// neighbours in the output. A block of threads takes one tile through shared memory.
#pragma once
#include "assemble.cuh"
#include "transposed.cuh"

namespace dz {

// Reads a tile from `src` (a pointer, or an object that is indexed like one), and puts what `convert` makes of each element
// into its slot. Each thread has four elements in flight.
template <class In, class Slot, class Src, class Convert>
__device__ __forceinline__ void read_tile(const TransposedTile& tile, const Src& src, Slot* slots,
                                          const Convert& convert) {
  const uint32_t count = tile.near * tile.far;
  for (uint32_t i = threadIdx.x; i < count; i += 4 * kThreads) {
    In value[4];
    uint32_t slot[4];
    int64_t channel[4];
#pragma unroll
    for (uint32_t k = 0; k < 4; ++k) {
      if (i + k * kThreads < count) {
        int64_t from;
        read_at(tile, i + k * kThreads, from, slot[k], channel[k]);
        value[k] = src[from];
      }
    }
#pragma unroll
    for (uint32_t k = 0; k < 4; ++k) {
      if (i + k * kThreads < count) slots[slot[k]] = convert(value[k], channel[k]);
    }
  }
}

template <class Out, class Slot>
__device__ __forceinline__ void write_tile(const TransposedTile& tile, const Slot* slots, Out* dst) {
  const uint32_t count = tile.near * tile.far;
  for (uint32_t i = threadIdx.x; i < count; i += kThreads) {
    uint32_t slot;
    int64_t to;
    write_at(tile, i, slot, to);
    dst[to] = Out(slots[slot]);
  }
}

// The elements of a chunk of any type, shuffled or not, indexed like a pointer to the box's first element.
struct AnyElements {
  const Job& job;
  const Shuffled& shuffled;
  int32_t dtype;
  __device__ __forceinline__ uint64_t operator[](int64_t at) const {
    return is_shuffled(job) ? any_of(shuffled, at, uint32_t(size_of(dtype))) : load(job.src, at, dtype);
  }
};

// Reads a tile of a chunk that isn't shuffled, by an operation that isn't rare, for types known at compile time.
template <int32_t SRC, class In, int32_t DST>
__device__ __forceinline__ void read_converted(const TransposedTile& tile, const Job& job, const Op& shared_op,
                                               bool by_channel, uint32_t* slots, NormaliseByChannel& nans) {
  const Op op = shared_op;  // in registers
  read_tile<In>(tile, reinterpret_cast<const In*>(job.src), slots, [&](In v, int64_t channel) {
    if (by_channel) take_channel(op, channel, nans);
    return uint32_t(convert<false>(op.swap ? swap_bytes(v, sizeof(In)) : v, op, SRC, DST, nans));
  });
}

template <class In, class Slot>
__device__ __forceinline__ void read_plain(const TransposedTile& tile, const Job& job, bool swap, Slot* slots) {
  const Reorder order = reorder_for(swap ? int(sizeof(In)) : 1);
  read_tile<In>(tile, reinterpret_cast<const In*>(job.src), slots,
                [order](In v, int64_t) { return Slot(reorder(v, order)); });
}

}  // namespace dz

// Grid: one block of kThreads for each tile (transposed_tile), tile_start[n_jobs] in all. `tile_start` has n_jobs + 1
// entries: the prefix sum of the jobs' numbers of tiles. `counters` may be null if no operation replaces NaNs.
extern "C" __global__ void __launch_bounds__(dz::kThreads, 3)
    dz_assemble_transposed(const dz::Job* jobs, const uint32_t* tile_start, uint32_t n_jobs, const dz::Op* ops,
                           unsigned long long* counters) {
  using namespace dz;
  __shared__ Job job;
  __shared__ Op op;
  __shared__ TransposedTile tile;
  __shared__ Shuffled shuffled;
  __shared__ uint64_t slots[kTransposedBytes / 8 + kTransposedApart];
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
      tile = transposed_tile(job, op, nth);
      if (is_shuffled(job)) {
        Box box;
        merge(job, box);
        shuffled = open_shuffled(job, box, uint32_t(size_of(op.src_dtype)), false);
      }
    }
  }
  __syncthreads();
  const bool by_channel = op.has_norm == kNormTable, is_copied = is_plain<NormaliseByChannel>(op);
  uint32_t* const words = reinterpret_cast<uint32_t*>(slots);
  const int size = size_of(op.dst_dtype);
  if (!by_channel) take_one(op, nans);
  if (is_copied && !is_shuffled(job)) {
    switch (size) {
      case 1: read_plain<uint8_t>(tile, job, op.swap, words); break;
      case 2: read_plain<uint16_t>(tile, job, op.swap, words); break;
      case 4: read_plain<uint32_t>(tile, job, op.swap, words); break;
      default: read_plain<uint64_t>(tile, job, op.swap, slots); break;
    }
  } else if (!is_shuffled(job) && !is_rare(op) && op.dst_dtype == kF32 && op.src_dtype == kU8) {
    read_converted<kU8, uint8_t, kF32>(tile, job, op, by_channel, words, nans);
  } else if (!is_shuffled(job) && !is_rare(op) && op.dst_dtype == kF32 && op.src_dtype == kF32) {
    read_converted<kF32, uint32_t, kF32>(tile, job, op, by_channel, words, nans);
  } else {
    const AnyElements any = {job, shuffled, op.src_dtype};
    const auto converted = [&](uint64_t v, int64_t channel) {
      if (op.swap) v = swap_bytes(v, size_of(op.src_dtype));
      if (is_copied) return v;
      if (by_channel) take_channel(op, channel, nans);
      return convert_any(v, op, nans);
    };
    if (size == 8) {
      read_tile<uint64_t>(tile, any, slots, converted);
    } else {
      read_tile<uint64_t>(tile, any, words, converted);
    }
  }
  __syncthreads();
  switch (size) {
    case 1: write_tile(tile, words, reinterpret_cast<uint8_t*>(job.dst)); break;
    case 2: write_tile(tile, words, reinterpret_cast<uint16_t*>(job.dst)); break;
    case 4: write_tile(tile, words, reinterpret_cast<uint32_t*>(job.dst)); break;
    default: write_tile(tile, slots, reinterpret_cast<uint64_t*>(job.dst)); break;
  }
  if (counters) add_up(nans.replaced, counters + op.counter);
}
