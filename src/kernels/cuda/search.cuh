// Finds the job that a block works on.
#pragma once
#include "layout.cuh"

namespace dz {

// Returns the largest j with start[j] <= tile, for a prefix sum `start` of n+1 entries with start[0] == 0 and start[n]
// > tile. All lanes of a warp must call it: they probe 32 entries at once, so that even 10^6 jobs take only four rounds
// of latency.
__device__ __forceinline__ uint32_t find_job(const uint32_t* start, uint32_t n, uint32_t tile) {
  const uint32_t lane = threadIdx.x & 31;
  uint32_t lo = 0, len = n;  // the answer is in [lo, lo + len)
  while (len > 1) {
    const uint32_t step = (len + 31) / 32;
    const uint32_t at = lane * step;
    const bool below = at < len && start[lo + at] <= tile;
    // `below` is always true for lane 0, and the lanes for which it is true are lanes 0 to `last`.
    const uint32_t last = 31 - __clz(__ballot_sync(0xffffffff, below));
    lo += last * step;
    len = min(step, len - last * step);
  }
  return lo;
}

}  // namespace dz
