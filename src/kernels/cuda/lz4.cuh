// dz_lz4: decodes raw LZ4 blocks with several warps each and raw Snappy blocks with one, and copies stored streams.
#pragma once
#include "shared.cuh"
#include "streams.cuh"

namespace dz {

// Bytes of recent output in shared memory. With this size, nine blocks of threads fit on a multiprocessor of an H100,
// because of their registers, and four on one of the smallest GPU. Matches that reach further back are read from global
// memory, at several times the latency.
constexpr uint32_t kLzRing = 8 * 1024;

}  // namespace dz

// Grid: one block of two to four warps for each of the n streams. The arrays have one entry per stream, as nvCOMP's do:
// address and bytes of the compressed stream, bytes of room for the output; written: bytes decoded and DecodeStatus;
// address of the output, and the StreamKind.
extern "C" __global__ void __launch_bounds__(128)
    dz_lz4(const uint64_t* in, const uint64_t* in_bytes, const uint64_t* capacity, uint64_t* out_bytes,
           int32_t* statuses, const uint64_t* out, const uint32_t* kinds, uint32_t n) {
  using namespace dz;
  __shared__ LzBuffers<kLzRing> buffers;
  const uint32_t i = blockIdx.x;
  if (i >= n) return;
  uint64_t produced;
  const DecodeStatus status =
      decode_stream(*shared_pointer(&buffers), kinds[i], global_memory<const uint8_t>(in[i]), in_bytes[i],
                    global_memory<uint8_t>(out[i]), capacity[i], produced, threadIdx.x % kWarp);
  if (threadIdx.x == 0) {
    out_bytes[i] = produced;
    statuses[i] = status;
  }
}
