// A block of threads moves one tile of a box. The source, if there is one, isn't shuffled.
#pragma once
#include "box.cuh"
#include "element.cuh"

namespace dz {

struct alignas(16) Vec16 {
  uint64_t lo, hi;
};

// How to reverse the bytes of the elements in a unit: within words by `selector`; for 8-byte elements also `exchange`
// the two words of each. Decided at run time, because a byte permutation costs almost nothing compared with the memory
// access.
struct Reorder {
  uint32_t selector;
  bool exchange;
};

// `size`: bytes of an element; 1 leaves the order unchanged.
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

// The units of one tile: unit i of the tile is unit `first` + i of the box.
struct Tile {
  uint64_t first;
  uint32_t count;
};

// Walks a box of one dimension with any strides. This is the common case after dimensions were merged, and cheap to
// walk.
struct Line {
  int64_t src, dst, src_stride, dst_stride;
  __device__ Line(const Box& box, const Tile& tile)
      : src(int64_t(tile.first) * box.src[0]),
        dst(int64_t(tile.first) * box.dst[0]),
        src_stride(box.src[0]),
        dst_stride(box.dst[0]) {}
  __device__ void operator()(uint32_t i, int64_t& from, int64_t& to) const {
    from = src + i * src_stride;
    to = dst + i * dst_stride;
  }
};

// Walks a box of one dimension that is contiguous in source and output.
struct Run {
  int64_t first;
  __device__ Run(const Box&, const Tile& tile) : first(int64_t(tile.first)) {}
  __device__ void operator()(uint32_t i, int64_t& from, int64_t& to) const { from = to = first + i; }
};

// Walks any box.
struct Grid {
  const Box& box;
  uint64_t first;
  __device__ Grid(const Box& b, const Tile& tile) : box(b), first(tile.first) {}
  __device__ void operator()(uint32_t i, int64_t& from, int64_t& to) const { locate(box, first + i, from, to); }
};

// Reads every unit of the tile from `src` (a pointer, or an object that is indexed like one), converts it by `convert`,
// and writes it. Each thread has UNROLL units in flight.
template <uint32_t UNROLL, class In, class Walk, class Src, class Out, class Convert>
__device__ __forceinline__ void move_units(Walk walk, uint32_t count, const Src& src, Out* dst, Convert convert) {
  for (uint32_t i = threadIdx.x; i < count; i += UNROLL * kThreads) {
    In value[UNROLL];
    int64_t to[UNROLL];
#pragma unroll
    for (uint32_t k = 0; k < UNROLL; ++k) {
      if (i + k * kThreads < count) {
        int64_t from;
        walk(i + k * kThreads, from, to[k]);
        value[k] = src[from];
      }
    }
#pragma unroll
    for (uint32_t k = 0; k < UNROLL; ++k) {
      if (i + k * kThreads < count) dst[to[k]] = convert(value[k]);
    }
  }
}

template <class Unit>
__device__ __forceinline__ void copy_units(const Box& box, const Job& job, Reorder order, const Tile& tile) {
  const Unit* src = reinterpret_cast<const Unit*>(job.src);
  Unit* dst = reinterpret_cast<Unit*>(job.dst);
  const auto convert = [order](Unit v) { return reorder(v, order); };
  if (box.ndim == 1 && box.src[0] == 1 && box.dst[0] == 1) {
    move_units<4, Unit>(Run(box, tile), tile.count, src, dst, convert);
  } else {
    move_units<4, Unit>(Grid(box, tile), tile.count, src, dst, convert);
  }
}

template <class Unit>
__device__ __forceinline__ void fill_units(const Box& box, Unit* dst, Unit value, const Tile& tile) {
  for (uint32_t i = threadIdx.x; i < tile.count; i += kThreads) {
    int64_t from, to;
    locate(box, tile.first + i, from, to);
    dst[to] = value;
  }
}

// Returns `bits`, of `size` bytes, repeated to 8 bytes.
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

// Converts a tile, for types known at compile time, so that no switches over types remain, and for operations that
// aren't rare.
template <uint32_t UNROLL, int32_t SRC, class In, int32_t DST, class Out, class Src, class Nans>
__device__ __forceinline__ void convert_units(const Box& box, const Src& src, const Job& job, const Op& shared_op,
                                              const Tile& tile, Nans& nans) {
  const Op op = shared_op;  // in registers: in shared memory it would be read again after every store
  Out* dst = reinterpret_cast<Out*>(job.dst);
  const auto convert_one = [&op, &nans](In v) {
    const uint64_t bits = op.swap ? swap_bytes(v, sizeof(In)) : v;
    return Out(convert<false>(bits, op, SRC, DST, nans));
  };
  if (box.ndim == 1) {
    move_units<UNROLL, In>(Line(box, tile), tile.count, src, dst, convert_one);
  } else {
    move_units<UNROLL, In>(Grid(box, tile), tile.count, src, dst, convert_one);
  }
}

// Converts a tile of any types.
template <class Nans>
__device__ __forceinline__ void convert_elements(const Box& box, const Job& job, const Op& op, const Tile& tile,
                                                 Nans& nans) {
  for (uint32_t i = threadIdx.x; i < tile.count; i += kThreads) {
    int64_t from, to;
    locate(box, tile.first + i, from, to);
    uint64_t bits = load(job.src, from, op.src_dtype);
    if (op.swap) bits = swap_bytes(bits, size_of(op.src_dtype));
    store(job.dst, to, convert_any(bits, op, nans), op.dst_dtype);
  }
}

__device__ __forceinline__ void copy_box(const Box& box, const Job& job, int unit, int swap, const Tile& tile) {
  const Reorder order = reorder_for(swap);
  switch (unit) {
    case 1: return copy_units<uint8_t>(box, job, order, tile);
    case 2: return copy_units<uint16_t>(box, job, order, tile);
    case 4: return copy_units<uint32_t>(box, job, order, tile);
    case 8: return copy_units<uint64_t>(box, job, order, tile);
    default: return copy_units<Vec16>(box, job, order, tile);
  }
}

__device__ __forceinline__ void fill_box(const Box& box, const Job& job, int unit, uint64_t value, const Tile& tile) {
  switch (unit) {
    case 1: return fill_units(box, reinterpret_cast<uint8_t*>(job.dst), uint8_t(value), tile);
    case 2: return fill_units(box, reinterpret_cast<uint16_t*>(job.dst), uint16_t(value), tile);
    case 4: return fill_units(box, reinterpret_cast<uint32_t*>(job.dst), uint32_t(value), tile);
    case 8: return fill_units(box, reinterpret_cast<uint64_t*>(job.dst), value, tile);
    default: return fill_units(box, reinterpret_cast<Vec16*>(job.dst), Vec16{value, value}, tile);
  }
}

}  // namespace dz
