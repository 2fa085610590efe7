// dz_inflate_*: decode raw deflate streams, with one block of threads for each stream.
#pragma once
#include "inflate_core.cuh"

namespace dz {

template <class Shape>
__device__ __forceinline__ void inflate_one(const uint64_t* in, const uint64_t* in_bytes, const uint64_t* capacity,
                                            uint64_t* out_bytes, int32_t* statuses, const uint64_t* out) {
  __shared__ InflateState<Shape> state;
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
// output; written: bytes decoded and DecodeStatus; address of the output.
#define DZ_INFLATE(NAME, THREADS, BLOCKS, ...)                                                                         \
  extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)                                                        \
      NAME(const uint64_t* in, const uint64_t* in_bytes, const uint64_t* capacity, uint64_t* out_bytes,                \
           int32_t* statuses, const uint64_t* out) {                                                                   \
    dz::inflate_one<dz::InflateShape<THREADS, __VA_ARGS__>>(in, in_bytes, capacity, out_bytes, statuses, out);         \
  }

// Arguments: threads of a block, blocks that a multiprocessor holds, bits of a segment, most bytes and matches of a
// batch.
DZ_INFLATE(dz_inflate_512, 512, 2, 256, 11 * 1024, 2304)
DZ_INFLATE(dz_inflate_256, 256, 4, 256, 13 * 1024, 2688)

#undef DZ_INFLATE
