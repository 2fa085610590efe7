// dz_gather: copies many pieces of device memory, of any alignment.
#pragma once
#include "search.cuh"

namespace dz {

// Copies n bytes by one block of threads. Source and destination may be aligned differently. Reads no other bytes.
__device__ __forceinline__ void copy_bytes(const uint8_t* src, uint8_t* dst, uint32_t n) {
  // Bytes until dst is aligned to 16, then vectors, then the rest.
  uint32_t head = uint32_t(-reinterpret_cast<uintptr_t>(dst)) & 15;
  head = head < n ? head : n;
  if (threadIdx.x < head) dst[threadIdx.x] = src[threadIdx.x];
  src += head;
  dst += head;
  n -= head;
  uint32_t done = 0;
  const uint32_t skew = uint32_t(reinterpret_cast<uintptr_t>(src)) & 3;
  if ((reinterpret_cast<uintptr_t>(src) & 15) == 0) {
    constexpr int UNROLL = 4;
    const uint32_t vectors = n / 16;
    const uint4* from = reinterpret_cast<const uint4*>(src);
    uint4* to = reinterpret_cast<uint4*>(dst);
    for (uint32_t i = threadIdx.x; i < vectors; i += UNROLL * kThreads) {
      uint4 v[UNROLL];
#pragma unroll
      for (int k = 0; k < UNROLL; ++k) {
        if (i + k * kThreads < vectors) v[k] = from[i + k * kThreads];
      }
#pragma unroll
      for (int k = 0; k < UNROLL; ++k) {
        if (i + k * kThreads < vectors) to[i + k * kThreads] = v[k];
      }
    }
    done = vectors * 16;
  } else if (skew == 0) {
    const uint32_t words = n / 4;
    for (uint32_t i = threadIdx.x; i < words; i += kThreads) {
      reinterpret_cast<uint32_t*>(dst)[i] = reinterpret_cast<const uint32_t*>(src)[i];
    }
    done = words * 4;
  } else if (n >= 12) {
    // Each word of output is made of two aligned words of the source. For the first and the last word of the piece
    // these would reach outside it, so both are copied byte by byte.
    const uint32_t words = n / 4 - 1;
    const uint32_t* from = reinterpret_cast<const uint32_t*>(src - skew);
    for (uint32_t i = 1 + threadIdx.x; i < words; i += kThreads) {
      reinterpret_cast<uint32_t*>(dst)[i] = __funnelshift_r(from[i], from[i + 1], skew * 8);
    }
    if (threadIdx.x < 4) dst[threadIdx.x] = src[threadIdx.x];
    done = words * 4;
  }
  for (uint32_t i = done + threadIdx.x; i < n; i += kThreads) dst[i] = src[i];
}

}  // namespace dz

// Grid: one block of kThreads for each tile of kGatherTile bytes, tile_start[n] in all. `tile_start` has n + 1 entries:
// the prefix sum of the copies' numbers of tiles.
extern "C" __global__ void __launch_bounds__(dz::kThreads)
    dz_gather(const dz::CopyJob* copies, const uint32_t* tile_start, uint32_t n) {
  using namespace dz;
  const uint32_t j = find_job(tile_start, n, blockIdx.x);
  const CopyJob copy = copies[j];
  const uint64_t first = uint64_t(blockIdx.x - tile_start[j]) * kGatherTile;
  if (first >= copy.len) return;
  const uint64_t left = copy.len - first;
  copy_bytes(global_memory<const uint8_t>(copy.src) + first, global_memory<uint8_t>(copy.dst) + first,
             uint32_t(left < kGatherTile ? left : kGatherTile));
}
