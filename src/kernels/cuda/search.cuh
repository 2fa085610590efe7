// Which job a block works on.
#pragma once
#include "layout.cuh"

namespace dz {

// The largest j with start[j] <= tile, for a prefix sum `start` of n+1 entries with start[0] == 0 and start[n] > tile.
// To be called by a whole warp: 32 entries are probed at once, so that even 10^6 jobs take four rounds of latency.
__device__ __forceinline__ uint32_t find_job(const uint32_t* start, uint32_t n, uint32_t tile) {
  const uint32_t lane = threadIdx.x & 31;
  uint32_t lo = 0, len = n;  // the answer is in [lo, lo + len)
  while (len > 1) {
    const uint32_t step = (len + 31) / 32;
    const uint32_t at = lane * step;
    const bool below = at < len && start[lo + at] <= tile;
    // Lane 0 always is below, and those below are a run of low lanes.
    const uint32_t last = 31 - __clz(__ballot_sync(0xffffffff, below));
    lo += last * step;
    len = min(step, len - last * step);
  }
  return lo;
}

}  // namespace dz
