// What the lanes of a warp do together. On the host, 32 coroutines that take turns stand for them (host_warp.cpp), so that
// code for a warp can be tested without a GPU. All lanes call the same of these functions in the same order.
#pragma once
#include "layout.cuh"

namespace dz {

constexpr uint32_t kWarp = 32;

#ifndef __CUDA_ARCH__
void host_warp_sync();
uint32_t host_warp_ballot(bool mine);
uint32_t host_warp_shuffle(uint32_t value, uint32_t from);
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

// The value of lane `from`.
DZ_HD uint32_t lanes_shuffle(uint32_t value, uint32_t from) {
#ifdef __CUDA_ARCH__
  return __shfl_sync(0xffffffff, value, int(from));
#else
  return host_warp_shuffle(value, from);
#endif
}

// The value of the lane that is `by` before this one; its own where there is none.
DZ_HD uint32_t lanes_shuffle_up(uint32_t value, uint32_t by, uint32_t lane) {
#ifdef __CUDA_ARCH__
  (void)lane;
  return __shfl_up_sync(0xffffffff, value, by);
#else
  return host_warp_shuffle(value, lane < by ? lane : lane - by);
#endif
}

// What all threads of a block do together. On the host they are the lanes of one warp.

// What threads wrote before it, all read after it.
DZ_HD void block_sync() {
#ifdef __CUDA_ARCH__
  __syncthreads();
#else
  host_warp_sync();
#endif
}

// Whether it is true for one of the threads.
DZ_HD bool block_any(bool mine) {
#ifdef __CUDA_ARCH__
  return __syncthreads_or(mine) != 0;
#else
  return host_warp_ballot(mine) != 0;
#endif
}

DZ_HD uint32_t lowest_bit(uint32_t mask) {
#ifdef __CUDA_ARCH__
  return uint32_t(__ffs(int(mask))) - 1;
#else
  return uint32_t(__builtin_ctz(mask));
#endif
}

DZ_HD uint32_t count_bits(uint32_t mask) {
#ifdef __CUDA_ARCH__
  return uint32_t(__popc(int(mask)));
#else
  return uint32_t(__builtin_popcount(mask));
#endif
}

// The lower half of (high, low) >> n % 32.
DZ_HD uint32_t shift_out(uint32_t high, uint32_t low, uint32_t n) {
#ifdef __CUDA_ARCH__
  return __funnelshift_r(low, high, n);
#else
  return uint32_t((uint64_t(high) << 32 | low) >> n % 32);
#endif
}

// Sets bits of a word that other lanes set bits of too.
DZ_HD void set_bits(uint32_t* at, uint32_t bits) {
#ifdef __CUDA_ARCH__
  if (bits) atomicOr(at, bits);
#else
  *at |= bits;
#endif
}

}  // namespace dz
