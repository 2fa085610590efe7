// dz_assemble: moves boxes of elements from decoded chunks into the outputs, converting them on the way.
//
// Each decoded byte is read once and each output byte written once. A block takes one tile of kTile elements of one
// job. Plain copies (also with the other byte order) go in vectors of up to 16 bytes; the rest element by element,
// with neighbouring threads on neighbouring elements.
#pragma once
#include "box.cuh"
#include "element.cuh"
#include "search.cuh"

namespace dz {

struct alignas(16) Vec16 {
  uint64_t lo, hi;
};

// How the bytes of the elements in a unit are reversed: within words by a selector, and for 8-byte elements also
// the two words of each. Decided at run time, since a byte permutation costs next to nothing beside the memory access.
struct Reorder {
  uint32_t selector;
  bool exchange;
};

// `size`: the elements' size; 1 for the order as it is.
__device__ __forceinline__ Reorder reorder_for(int size) {
  return {size == 1 ? 0x3210u : size == 2 ? 0x2301u : 0x0123u, size == 8};
}

__device__ __forceinline__ uint32_t reorder(uint32_t v, Reorder r) { return __byte_perm(v, 0, r.selector); }
__device__ __forceinline__ uint8_t reorder(uint8_t v, Reorder) { return v; }
__device__ __forceinline__ uint16_t reorder(uint16_t v, Reorder r) { return uint16_t(reorder(uint32_t(v), r)); }

__device__ __forceinline__ uint64_t reorder(uint64_t v, Reorder r) {
  const uint64_t lo = reorder(uint32_t(v), r), hi = reorder(uint32_t(v >> 32), r);
  return r.exchange ? (lo << 32) | hi : (hi << 32) | lo;
}

__device__ __forceinline__ Vec16 reorder(Vec16 v, Reorder r) { return {reorder(v.lo, r), reorder(v.hi, r)}; }

// Units [first, last) of the box, UNROLL loads in flight for each thread.
template <class Unit>
__device__ __forceinline__ void copy_units(const Box& box, const Job& job, Reorder order, uint64_t first,
                                           uint64_t last) {
  constexpr int UNROLL = 4;
  const Unit* src = reinterpret_cast<const Unit*>(job.src);
  Unit* dst = reinterpret_cast<Unit*>(job.dst);
  for (uint64_t i = first + threadIdx.x; i < last; i += UNROLL * kThreads) {
    Unit value[UNROLL];
    int64_t to[UNROLL];
#pragma unroll
    for (int k = 0; k < UNROLL; ++k) {
      const uint64_t at = i + uint64_t(k) * kThreads;
      if (at < last) {
        int64_t from;
        locate(box, at, from, to[k]);
        value[k] = src[from];
      }
    }
#pragma unroll
    for (int k = 0; k < UNROLL; ++k) {
      if (i + uint64_t(k) * kThreads < last) dst[to[k]] = reorder(value[k], order);
    }
  }
}

template <class Unit>
__device__ __forceinline__ void fill_units(const Box& box, Unit* dst, Unit value, uint64_t first, uint64_t last) {
  for (uint64_t i = first + threadIdx.x; i < last; i += kThreads) {
    int64_t from, to;
    locate(box, i, from, to);
    dst[to] = value;
  }
}

// `bits` repeated over 8 bytes.
__device__ __forceinline__ uint64_t repeat(uint64_t bits, int size) {
  if (size == 1) bits *= 0x0101010101010101ull;
  if (size == 2) bits *= 0x0001000100010001ull;
  if (size == 4) bits *= 0x0000000100000001ull;
  return bits;
}

__device__ __forceinline__ uint64_t load(uint64_t base, int64_t at, int32_t dtype) {
  switch (size_of(dtype)) {
    case 1: return reinterpret_cast<const uint8_t*>(base)[at];
    case 2: return reinterpret_cast<const uint16_t*>(base)[at];
    case 4: return reinterpret_cast<const uint32_t*>(base)[at];
    default: return reinterpret_cast<const uint64_t*>(base)[at];
  }
}

__device__ __forceinline__ void store(uint64_t base, int64_t at, uint64_t bits, int32_t dtype) {
  switch (size_of(dtype)) {
    case 1: reinterpret_cast<uint8_t*>(base)[at] = uint8_t(bits); break;
    case 2: reinterpret_cast<uint16_t*>(base)[at] = uint16_t(bits); break;
    case 4: reinterpret_cast<uint32_t*>(base)[at] = uint32_t(bits); break;
    default: reinterpret_cast<uint64_t*>(base)[at] = bits; break;
  }
}

// The general path. With SRC and DST known at compile time the switches over types vanish; -1: known at run time.
template <int SRC, int DST>
__device__ __forceinline__ void convert_elements(const Box& box, const Job& job, const Op& op, uint64_t first,
                                                 uint64_t last) {
  constexpr int UNROLL = 4;
  const int32_t src_dtype = SRC < 0 ? op.src_dtype : SRC, dst_dtype = DST < 0 ? op.dst_dtype : DST;
  const int swap = op.swap ? size_of(src_dtype) : 1;
  for (uint64_t i = first + threadIdx.x; i < last; i += UNROLL * kThreads) {
    uint64_t bits[UNROLL];
    int64_t to[UNROLL];
#pragma unroll
    for (int k = 0; k < UNROLL; ++k) {
      const uint64_t at = i + uint64_t(k) * kThreads;
      if (at < last) {
        int64_t from;
        locate(box, at, from, to[k]);
        bits[k] = load(job.src, from, src_dtype);
      }
    }
#pragma unroll(SRC < 0 ? 1 : UNROLL)
    for (int k = 0; k < UNROLL; ++k) {
      if (i + uint64_t(k) * kThreads < last) {
        const uint64_t native = swap == 1 ? bits[k] : swap_bytes(bits[k], swap);
        store(job.dst, to[k], convert(native, op, src_dtype, dst_dtype), dst_dtype);
      }
    }
  }
}

__device__ __forceinline__ void copy_box(const Box& box, const Job& job, int unit, int swap, uint64_t first,
                                         uint64_t last) {
  const Reorder order = reorder_for(swap);
  switch (unit) {
    case 1: return copy_units<uint8_t>(box, job, order, first, last);
    case 2: return copy_units<uint16_t>(box, job, order, first, last);
    case 4: return copy_units<uint32_t>(box, job, order, first, last);
    case 8: return copy_units<uint64_t>(box, job, order, first, last);
    default: return copy_units<Vec16>(box, job, order, first, last);
  }
}

__device__ __forceinline__ void fill_box(const Box& box, const Job& job, int unit, uint64_t value, uint64_t first,
                                         uint64_t last) {
  switch (unit) {
    case 1: return fill_units(box, reinterpret_cast<uint8_t*>(job.dst), uint8_t(value), first, last);
    case 2: return fill_units(box, reinterpret_cast<uint16_t*>(job.dst), uint16_t(value), first, last);
    case 4: return fill_units(box, reinterpret_cast<uint32_t*>(job.dst), uint32_t(value), first, last);
    case 8: return fill_units(box, reinterpret_cast<uint64_t*>(job.dst), value, first, last);
    default: return fill_units(box, reinterpret_cast<Vec16*>(job.dst), Vec16{value, value}, first, last);
  }
}

}  // namespace dz

// Grid: one block of kThreads for each tile, tile_start[n_jobs] in all. `tile_start` has n_jobs + 1 entries.
extern "C" __global__ void __launch_bounds__(dz::kThreads, 4)
    dz_assemble(const dz::Job* jobs, const uint32_t* tile_start, uint32_t n_jobs, const dz::Op* ops) {
  using namespace dz;
  __shared__ Job job;
  __shared__ Op op;
  __shared__ Box box;
  __shared__ uint64_t first, last, value;
  __shared__ uint32_t width;
  if (threadIdx.x < 32) {
    const uint32_t j = find_job(tile_start, n_jobs, blockIdx.x);
    // The warp copies both structures together: 48 and 24 words.
    const uint32_t* from = reinterpret_cast<const uint32_t*>(jobs + j);
    for (uint32_t w = threadIdx.x; w < sizeof(Job) / 4; w += 32) reinterpret_cast<uint32_t*>(&job)[w] = from[w];
    __syncwarp();
    from = reinterpret_cast<const uint32_t*>(ops + job.op);
    if (threadIdx.x < sizeof(Op) / 4) reinterpret_cast<uint32_t*>(&op)[threadIdx.x] = from[threadIdx.x];
    __syncwarp();
    if (threadIdx.x == 0) {
      const uint64_t n = count(job);
      const uint64_t start = uint64_t(blockIdx.x - tile_start[j]) * kTile;
      const uint64_t end = start + kTile < n ? start + kTile : n;
      Box merged = merge(job);
      width = 1;
      if (job.source != kChunk || is_plain(op)) {
        width = vector_width(merged, job, size_of(op.dst_dtype));
        vectorise(merged, width);
      }
      if (job.source != kChunk) value = repeat(constant(op, job.source), size_of(op.dst_dtype));
      first = start / width;
      last = end / width;
      box = merged;
    }
  }
  __syncthreads();
  const int size = size_of(op.dst_dtype), unit = size * int(width);
  if (job.source != kChunk) {
    fill_box(box, job, unit, value, first, last);
  } else if (is_plain(op)) {
    copy_box(box, job, unit, op.swap ? size : 1, first, last);
  } else if (op.src_dtype == kF32 && op.dst_dtype == kF32) {
    convert_elements<kF32, kF32>(box, job, op, first, last);
  } else if (op.src_dtype == kI16 && op.dst_dtype == kF32) {
    convert_elements<kI16, kF32>(box, job, op, first, last);
  } else if (op.src_dtype == kU16 && op.dst_dtype == kF32) {
    convert_elements<kU16, kF32>(box, job, op, first, last);
  } else {
    convert_elements<-1, -1>(box, job, op, first, last);
  }
}
