// A block of threads moves one tile of a box whose source is a shuffled chunk.
//
// Neighbouring elements are neighbours in each plane of bytes or bits. So neighbouring threads read neighbouring bytes
// of a plane, and each decoded byte is loaded from memory once. Plain copies of long rows move units of several
// elements with wider loads. Other common cases go element by element. All others go byte by byte, which is slower.
#pragma once
#include "move.cuh"
#include "shuffle.cuh"

namespace dz {

__device__ __forceinline__ bool is_shuffled(const Job& job) {
  return job.source == kChunk && job.layout.shuffle != kNone;
}

// A shuffled chunk, indexed like a pointer to the box's first element.
template <class In, bool BITS>
struct Elements {
  Shuffled s;
  __device__ __forceinline__ In operator[](int64_t at) const { return element_of<In, BITS>(s, s.first + uint32_t(at)); }
};

template <class In>
__device__ __forceinline__ void load_unit(const Shuffled& s, uint32_t at, uint32_t (&out)[sizeof(In)]) {
  unit_from_bytes<In>(s, at, out);
}

template <class In>
__device__ __forceinline__ void load_unit(const Shuffled& s, uint32_t at, uint32_t (&out)[2 * sizeof(In)]) {
  unit_from_bits<In>(s, at, out);
}

// Copies a tile in units of four elements (byte shuffle) or eight (bit shuffle). Each thread has UNROLL units in
// flight.
template <class In, bool BITS, uint32_t UNROLL>
__device__ __forceinline__ void copy_shuffled_units(const Box& box, const Shuffled& shared, const Job& job,
                                                    Reorder order, const Tile& tile) {
  constexpr uint32_t kUnit = BITS ? 8 : 4, kWords = kUnit * sizeof(In) / 4;
  const Shuffled s = shared;  // in registers
  uint64_t* dst = reinterpret_cast<uint64_t*>(job.dst);
  for (uint32_t i = threadIdx.x; i < tile.count; i += UNROLL * kThreads) {
    uint32_t words[UNROLL][kWords];
    int64_t to[UNROLL];
#pragma unroll
    for (uint32_t k = 0; k < UNROLL; ++k) {
      if (i + k * kThreads < tile.count) {
        int64_t from;
        locate(box, tile.first + i + k * kThreads, from, to[k]);
        load_unit<In>(s, s.first + uint32_t(from) * kUnit, words[k]);
      }
    }
#pragma unroll
    for (uint32_t k = 0; k < UNROLL; ++k) {
      if (i + k * kThreads >= tile.count) continue;
      uint64_t pairs[kWords / 2];
#pragma unroll
      for (uint32_t w = 0; w < kWords / 2; ++w) {
        pairs[w] = reorder(uint64_t(words[k][2 * w + 1]) << 32 | words[k][2 * w], order);
      }
      uint64_t* at = dst + to[k] * int64_t(kWords / 2);
      if constexpr (kWords == 2) {
        at[0] = pairs[0];
      } else {
#pragma unroll
        for (uint32_t w = 0; w < kWords / 4; ++w) {
          reinterpret_cast<Vec16*>(at)[w] = Vec16{pairs[2 * w], pairs[2 * w + 1]};
        }
      }
    }
  }
}

template <class In, bool BITS>
__device__ __forceinline__ void copy_shuffled(const Box& box, const Shuffled& s, const Job& job, Reorder order,
                                              const Tile& tile) {
  if (s.reach == kUnits) {
    constexpr uint32_t kUnroll = sizeof(In) >= 4 ? (BITS || sizeof(In) == 8 ? 1 : 2) : BITS ? 2 : 4;
    return copy_shuffled_units<In, BITS, kUnroll>(box, s, job, order, tile);
  }
  const auto convert = [order](In v) { return reorder(v, order); };
  constexpr uint32_t kUnroll = BITS ? 1 : 2;
  move_units<kUnroll, In>(Grid(box, tile), tile.count, Elements<In, BITS>{s}, reinterpret_cast<In*>(job.dst), convert);
}

template <bool BITS, class Nans>
__device__ __forceinline__ bool move_elements(const Box& box, const Shuffled& s, const Job& job, const Op& op,
                                              const Tile& tile, Nans& nans) {
  const int size = size_of(op.src_dtype);
  if (is_plain<Nans>(op)) {
    const Reorder order = reorder_for(op.swap ? size : 1);
    if (size == 4) {
      copy_shuffled<uint32_t, BITS>(box, s, job, order, tile);
    } else if (size == 2) {
      copy_shuffled<uint16_t, BITS>(box, s, job, order, tile);
    } else if (size == 8) {
      copy_shuffled<uint64_t, BITS>(box, s, job, order, tile);
    } else if constexpr (BITS) {
      copy_shuffled<uint8_t, BITS>(box, s, job, order, tile);
    } else {
      return false;  // no writer shuffles the bytes of one-byte elements
    }
    return true;
  }
  if (op.dst_dtype != kF32 || is_rare(op)) return false;
  if (op.src_dtype == kF32) {
    convert_units<1, kF32, uint32_t, kF32, uint32_t>(box, Elements<uint32_t, BITS>{s}, job, op, tile, nans);
  } else if (op.src_dtype == kI16) {
    convert_units<1, kI16, uint16_t, kF32, uint32_t>(box, Elements<uint16_t, BITS>{s}, job, op, tile, nans);
  } else if (op.src_dtype == kU16) {
    convert_units<1, kU16, uint16_t, kF32, uint32_t>(box, Elements<uint16_t, BITS>{s}, job, op, tile, nans);
  } else {
    return false;
  }
  return true;
}

// Moves a tile for any shuffle and any types.
template <class Nans>
__device__ __forceinline__ void move_any(const Box& box, const Shuffled& shared, const Job& job, const Op& op,
                                         const Tile& tile, Nans& nans) {
  const Shuffled s = shared;
  const int size = size_of(op.src_dtype);
  for (uint32_t i = threadIdx.x; i < tile.count; i += kThreads) {
    int64_t from, to;
    locate(box, tile.first + i, from, to);
    uint64_t bits = any_of(s, from, uint32_t(size));
    if (op.swap) bits = swap_bytes(bits, size);
    if (!is_plain<Nans>(op)) bits = convert_any(bits, op, nans);
    store(job.dst, to, bits, op.dst_dtype);
  }
}

template <class Nans>
__device__ __forceinline__ void move_shuffled(const Box& box, const Shuffled& s, const Job& job, const Op& op,
                                              const Tile& tile, Nans& nans) {
  if (s.reach != kBytes &&
      (s.bits ? move_elements<true>(box, s, job, op, tile, nans) : move_elements<false>(box, s, job, op, tile, nans))) {
    return;
  }
  move_any(box, s, job, op, tile, nans);
}

}  // namespace dz
