// dz_inflate_*: decode raw deflate streams, with one block of threads for each stream.
#pragma once
#include "inflate_core.cuh"

namespace dz {

template <class Shape>
__device__ __forceinline__ void inflate_one(InflateState<Shape>& state, const uint64_t* in, const uint64_t* in_bytes,
                                            const uint64_t* capacity, uint64_t* out_bytes, int32_t* statuses,
                                            const uint64_t* out) {
  const uint32_t i = blockIdx.x;
  uint64_t produced;
  const DecodeStatus status = inflate(state, global_memory<const uint8_t>(in[i]), in_bytes[i],
                                      global_memory<uint8_t>(out[i]), capacity[i], produced);
  if (threadIdx.x == 0) {
    out_bytes[i] = produced;
    statuses[i] = status;
  }
}

}  // namespace dz

// Grid: one block for each stream. With more threads a stream is done sooner; with fewer, more streams run at once. The
// arrays have one entry per stream, as nvCOMP's do: address and bytes of the compressed stream, bytes of room for the
// output; written: bytes decoded and DecodeStatus; address of the output. A block has SHARED bytes of dynamic shared
// memory.
#define DZ_INFLATE(NAME, SHAPE, BLOCKS, SHARED)                                                                        \
  extern "C" __global__ void __launch_bounds__(dz::SHAPE::THREADS, BLOCKS)                                             \
      NAME(const uint64_t* in, const uint64_t* in_bytes, const uint64_t* capacity, uint64_t* out_bytes,                \
           int32_t* statuses, const uint64_t* out) {                                                                   \
    extern __shared__ __align__(256) uint4 shared_memory[];                                                            \
    static_assert(sizeof(dz::InflateState<dz::SHAPE>) <= SHARED, "INFLATE in lib.rs has the same number");             \
    dz::inflate_one(*reinterpret_cast<dz::InflateState<dz::SHAPE>*>(shared_memory), in, in_bytes, capacity, out_bytes, \
                    statuses, out);                                                                                    \
  }

// Arguments: shape, blocks that a multiprocessor of an H100 holds, bytes of shared memory of a block.
DZ_INFLATE(dz_inflate_512, Inflate512, 2, 81 * 1024)
DZ_INFLATE(dz_inflate_256, Inflate256, 4, 56 * 1024)

#undef DZ_INFLATE
