// Functions that the lanes of a warp call together. On the host, 32 coroutines take the place of the lanes
// (host_warp.cpp), so that code for a warp can be tested without a GPU. All lanes must call the same functions in the
// same order.
#pragma once
#include "layout.cuh"

namespace dz {

constexpr uint32_t kWarp = 32;

// Loaded and stored at once.
struct alignas(16) Bytes16 {
  uint32_t word[4];
};

#ifndef __CUDA_ARCH__
void host_warp_sync();
uint32_t host_warp_ballot(bool mine);
uint32_t host_warp_shuffle(uint32_t value, uint32_t from);
#endif

// Barrier for the lanes: after it, all lanes see what any lane wrote before it.
DZ_HD void lanes_sync() {
#ifdef __CUDA_ARCH__
  __syncwarp();
#else
  host_warp_sync();
#endif
}

// Returns a mask: bit i is lane i's value of `mine`.
DZ_HD uint32_t lanes_ballot(bool mine) {
#ifdef __CUDA_ARCH__
  return __ballot_sync(0xffffffff, mine);
#else
  return host_warp_ballot(mine);
#endif
}

// Returns `value` of lane `from`.
DZ_HD uint32_t lanes_shuffle(uint32_t value, uint32_t from) {
#ifdef __CUDA_ARCH__
  return __shfl_sync(0xffffffff, value, int(from));
#else
  return host_warp_shuffle(value, from);
#endif
}

// Returns `value` of lane `lane - by`; this lane's own value if there is no such lane.
DZ_HD uint32_t lanes_shuffle_up(uint32_t value, uint32_t by, uint32_t lane) {
#ifdef __CUDA_ARCH__
  (void)lane;
  return __shfl_up_sync(0xffffffff, value, by);
#else
  return host_warp_shuffle(value, lane < by ? lane : lane - by);
#endif
}

// Functions that all threads of a block call together. On the host, a block is the lanes of one warp.

// Barrier for the threads: after it, all threads see what any thread wrote before it.
DZ_HD void block_sync() {
#ifdef __CUDA_ARCH__
  __syncthreads();
#else
  host_warp_sync();
#endif
}

// Returns whether `mine` is true for at least one thread.
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

// Returns the lower 32 bits of the 64-bit number (high, low) shifted right by n % 32.
DZ_HD uint32_t shift_out(uint32_t high, uint32_t low, uint32_t n) {
#ifdef __CUDA_ARCH__
  return __funnelshift_r(low, high, n);
#else
  return uint32_t((uint64_t(high) << 32 | low) >> n % 32);
#endif
}

// Sets bits of a word in which other lanes may set bits at the same time.
DZ_HD void set_bits(uint32_t* at, uint32_t bits) {
#ifdef __CUDA_ARCH__
  if (bits) atomicOr(at, bits);
#else
  *at |= bits;
#endif
}

}  // namespace dz
