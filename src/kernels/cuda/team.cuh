// The threads of a block, for code that is divided into steps. Each thread does its part of a step. In the next step
// all threads see what it wrote. On the host the threads of a step run one after the other, so that tests need no GPU.
//
// A step gets the thread's number. It may pass values to the next step only in shared memory and in a PerThread. Code
// between steps computes the same in all threads. A step must not write memory that the code since the previous step
// reads.
#pragma once
#include "layout.cuh"

namespace dz {

// Returns whether `mine` is true for this lane of the warp and for none before it. All lanes must call it. On the host each
// thread is a warp.
DZ_HD bool warp_first(bool mine) {
#ifdef __CUDA_ARCH__
  const uint32_t all = __ballot_sync(0xffffffff, mine);
  return mine && (all << (31 - threadIdx.x % 32)) == 1u << 31;
#else
  return mine;
#endif
}

// One value per thread, kept from step to step.
template <class T, uint32_t THREADS>
class PerThread {
#ifdef __CUDA_ARCH__
  T value;

 public:
  DZ_HD T& operator[](uint32_t) { return value; }
#else
  T values[THREADS];

 public:
  DZ_HD T& operator[](uint32_t thread) { return values[thread]; }
#endif
};

template <uint32_t THREADS>
struct Team {
  template <class Step>
  DZ_HD void each(Step step) const {
#ifdef __CUDA_ARCH__
    step(threadIdx.x);
    __syncthreads();
#else
    for (uint32_t t = 0; t < THREADS; ++t) step(t);
#endif
  }

  // Returns the number of threads whose step returns true.
  template <class Step>
  DZ_HD uint32_t count(Step step) const {
#ifdef __CUDA_ARCH__
    return uint32_t(__syncthreads_count(step(threadIdx.x)));
#else
    uint32_t n = 0;
    for (uint32_t t = 0; t < THREADS; ++t) n += step(t);
    return n;
#endif
  }

  template <class Step>
  DZ_HD bool any(Step step) const {
#ifdef __CUDA_ARCH__
    return __syncthreads_or(step(threadIdx.x)) != 0;
#else
    return count(step) != 0;
#endif
  }

  // Inclusive prefix sum: replaces each of the THREADS values by the sum of all values up to and including it.
  // `scratch` has room for one value per warp.
  DZ_HD void sum_up(uint64_t* values, uint64_t* scratch) const {
#ifdef __CUDA_ARCH__
    const uint32_t t = threadIdx.x, lane = t % 32, warp = t / 32;
    uint64_t value = values[t];
    for (uint32_t by = 1; by < 32; by *= 2) {
      const uint64_t other = __shfl_up_sync(0xffffffff, value, by);
      if (lane >= by) value += other;
    }
    if (lane == 31) scratch[warp] = value;
    __syncthreads();
    for (uint32_t w = 0; w < warp; ++w) value += scratch[w];
    values[t] = value;
    __syncthreads();
#else
    (void)scratch;
    for (uint32_t t = 1; t < THREADS; ++t) values[t] += values[t - 1];
#endif
  }
};

// Sets *at to the smaller of *at and `value`; atomic on the device.
DZ_HD void lower_to(uint32_t* at, uint32_t value) {
#ifdef __CUDA_ARCH__
  atomicMin(at, value);
#else
  if (value < *at) *at = value;
#endif
}

}  // namespace dz
