// What the lanes of a warp do together. On the host, 32 coroutines that take turns stand for them (host_warp.cpp), so that
// code for a warp can be tested without a GPU. All lanes call the same of these functions in the same order.
#pragma once
#include "layout.cuh"

namespace dz {

constexpr uint32_t kWarp = 32;

#ifndef __CUDA_ARCH__
void host_warp_sync();
uint32_t host_warp_ballot(bool mine);
#endif

// What lanes wrote before it, all read after it.
DZ_HD void lanes_sync() {
#ifdef __CUDA_ARCH__
  __syncwarp();
#else
  host_warp_sync();
#endif
}

// A bit for each lane.
DZ_HD uint32_t lanes_ballot(bool mine) {
#ifdef __CUDA_ARCH__
  return __ballot_sync(0xffffffff, mine);
#else
  return host_warp_ballot(mine);
#endif
}

DZ_HD uint32_t lowest_bit(uint32_t mask) {
#ifdef __CUDA_ARCH__
  return uint32_t(__ffs(int(mask))) - 1;
#else
  return uint32_t(__builtin_ctz(mask));
#endif
}

}  // namespace dz
