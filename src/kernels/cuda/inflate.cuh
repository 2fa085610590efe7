// dz_inflate: decodes raw deflate streams, one warp for each.
#pragma once
#include "inflate_core.cuh"

// Grid: one block of 32 threads for each of the n streams. Arrays as nvCOMP has them: addresses and sizes of the
// compressed streams, room for the decoded ones, out: bytes decoded and InflateStatus, addresses of the outputs.
extern "C" __global__ void __launch_bounds__(32)
    dz_inflate(const uint64_t* in, const uint64_t* in_bytes, const uint64_t* capacity, uint64_t* out_bytes,
               int32_t* statuses, const uint64_t* out, uint32_t n) {
  using namespace dz;
  __shared__ InflateTables tables;
  const uint32_t i = blockIdx.x;
  if (i >= n) return;
  uint64_t produced;
  const InflateStatus status =
      inflate(tables, reinterpret_cast<const uint8_t*>(in[i]), in_bytes[i], reinterpret_cast<uint8_t*>(out[i]),
              capacity[i], produced, threadIdx.x);
  if (threadIdx.x == 0) {
    out_bytes[i] = produced;
    statuses[i] = status;
  }
}
