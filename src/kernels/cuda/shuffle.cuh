// Finds the bytes of a shuffled chunk, and puts elements together from them: one at a time, or in units of neighbours
// from wide loads. src/lib.rs defines the permutations (Shuffle).
//
// Blosc limits a chunk to 2^31 bytes, so positions in it fit 32 bits. Everything here also runs on the host, for tests.
#pragma once
#include <cstring>

#include "box.cuh"

namespace dz {

// Divides by a number that many threads share, by multiplication with its rounded-down inverse. The quotient is at most
// one too small, which divide() corrects.
struct Divider {
  uint32_t by;
  uint32_t inverse;
};

DZ_HD Divider divider(uint32_t by) { return {by, 0xffffffffu / by}; }

DZ_HD uint32_t divide(uint32_t a, Divider d, uint32_t& rest) {
#ifdef __CUDA_ARCH__
  uint32_t q = __umulhi(a, d.inverse);
#else
  uint32_t q = uint32_t(uint64_t(a) * d.inverse >> 32);
#endif
  rest = a - q * d.by;
  if (rest >= d.by) {
    rest -= d.by;
    ++q;
  }
  return q;
}

// Picks four of the bytes of `a` (numbers 0 to 3) and `b` (4 to 7), by the hexadecimal digits of `selector`, lowest
// first.
DZ_HD uint32_t pick_bytes(uint32_t a, uint32_t b, uint32_t selector) {
#ifdef __CUDA_ARCH__
  return __byte_perm(a, b, selector);
#else
  const uint64_t both = uint64_t(b) << 32 | a;
  uint32_t picked = 0;
  for (int i = 0; i < 4; ++i) picked |= uint32_t(both >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  return picked;
#endif
}

// How the kernel may read a box from a shuffled chunk.
enum Reach : uint32_t {
  kBytes,     // byte by byte: the elements of the shuffle aren't those of the array, or begin elsewhere
  kElements,  // element by element: the elements of the shuffle are those of the array
  kUnits,     // unit_of() neighbouring elements at once, which are neighbours in source and output
};

// A shuffled chunk, ready to be read.
struct Shuffled {
  const uint8_t* data;
  uint32_t nbytes;
  uint32_t last_block;  // index of the last block
  uint32_t full;        // elements of the shuffle in each other block
  uint32_t last;        // elements of the shuffle in the last block
  uint32_t bits;        // nonzero: bits are shuffled
  uint32_t first;       // position of the box's first element: in bytes for kBytes, otherwise in elements
  Reach reach;
  Divider block;     // divides by the bytes of a block
  Divider elements;  // divides by `full`
  Divider type;      // divides by typesize
};

// Returns the number of elements in a unit; `bits` nonzero: bits are shuffled.
DZ_HD uint32_t unit_of(uint32_t bits) { return bits ? 8 : 4; }

// Prepares the chunk of `job` for reading. The array has elements of `size` bytes. `copied`: the job changes at most
// the order of an element's bytes, so that whole units can be stored.
DZ_HD Shuffled open_shuffled(const Job& job, const Box& box, uint32_t size, bool copied) {
  const Layout& l = job.layout;
  Shuffled s;
  s.data = reinterpret_cast<const uint8_t*>(job.src);
  s.nbytes = l.nbytes;
  s.bits = l.shuffle == kBit;
  s.block = divider(l.blocksize);
  s.type = divider(l.typesize);
  s.last_block = (l.nbytes - 1) / l.blocksize;
  s.full = l.blocksize / l.typesize;
  s.last = (l.nbytes - s.last_block * l.blocksize) / l.typesize;
  s.elements = divider(s.full ? s.full : 1);
  s.first = job.src_offset;
  s.reach = kBytes;
  if (l.typesize != size || l.blocksize % size || l.nbytes % size || job.src_offset % size) return s;
  s.first /= size;
  s.reach = kElements;
  const uint32_t unit = unit_of(s.bits), store = unit * size < 16 ? unit * size : 16;
  // Units must not cross blocks. In a shuffled block their elements must be contiguous in each plane, and aligned for
  // wide loads.
  uint64_t odd = box.extent[0] | s.first | (s.last_block ? s.full : 0);
  for (uint32_t d = 1; d < box.ndim; ++d) odd |= uint64_t(box.src[d] | box.dst[d]);
  if (!s.bits) odd |= s.last | job.src;
  const bool together = box.src[0] == 1 && box.dst[0] == 1 && odd % unit == 0 && job.dst % store == 0;
  if (copied && together && (s.bits || size > 1)) s.reach = kUnits;
  return s;
}

// Returns the byte at position `at` of the true order.
DZ_HD uint32_t byte_of(const Shuffled& s, uint32_t at) {
  uint32_t in_block, j;
  const uint32_t block = divide(at, s.block, in_block);
  const uint32_t n = block == s.last_block ? s.last : s.full;
  const uint32_t i = divide(in_block, s.type, j);
  if (i >= n) return s.data[at];  // after the block's last whole element
  const uint8_t* data = s.data + (at - in_block);
  if (!s.bits) return data[j * n + i];
  if (n % 8) return s.data[at];
  uint32_t byte = 0;
  for (uint32_t b = 0; b < 8; ++b) byte |= uint32_t(data[(8 * j + b) * (n / 8) + i / 8] >> (i % 8) & 1) << b;
  return byte;
}

// Returns `size` bytes from position `at` of the true order on, as a little-endian number.
DZ_HD uint64_t bytes_of(const Shuffled& s, uint32_t at, uint32_t size) {
  uint64_t value = 0;
  for (uint32_t k = 0; k < size; ++k) value |= uint64_t(byte_of(s, at + k)) << 8 * k;
  return value;
}

// Where array element `at` lies. Not for kBytes.
struct Spot {
  const uint8_t* block;  // address of its block
  uint32_t n;            // elements in the block
  uint32_t i;            // index of the element in the block
};

DZ_HD Spot spot_of(const Shuffled& s, uint32_t at) {
  Spot spot;
  const uint32_t block = divide(at, s.elements, spot.i);
  spot.block = s.data + block * s.block.by;
  spot.n = block == s.last_block ? s.last : s.full;
  return spot;
}

// Returns array element `at`, of type In. Not for kBytes.
template <class In, bool BITS>
DZ_HD In element_of(const Shuffled& s, uint32_t at) {
  const Spot spot = spot_of(s, at);
  In value = 0;
  if (!BITS) {
    DZ_UNROLL_BY(64)
    for (uint32_t j = 0; j < sizeof(In); ++j) value |= In(In(spot.block[j * spot.n + spot.i]) << 8 * j);
    return value;
  }
  if (spot.n % 8) {
    return reinterpret_cast<const In*>(spot.block)[spot.i];
  }
  const uint8_t* from = spot.block + spot.i / 8;
  const uint32_t row = spot.n / 8, bit = spot.i % 8;
  DZ_UNROLL_BY(16)
  for (uint32_t b = 0; b < 8 * sizeof(In); ++b) value |= In(In(from[b * row] >> bit & 1) << b);
  return value;
}

// Returns the array's element of `size` bytes that is `from` elements from the box's first. For any reach.
DZ_HD uint64_t any_of(const Shuffled& s, int64_t from, uint32_t size) {
  if (s.reach == kBytes) return bytes_of(s, s.first + uint32_t(from) * size, size);
  const Spot spot = spot_of(s, s.first + uint32_t(from));
  uint64_t value = 0;
  if (!s.bits) {
    for (uint32_t j = 0; j < size; ++j) value |= uint64_t(spot.block[j * spot.n + spot.i]) << 8 * j;
  } else if (spot.n % 8) {
    for (uint32_t j = 0; j < size; ++j) value |= uint64_t(spot.block[spot.i * size + j]) << 8 * j;
  } else {
    const uint8_t* data = spot.block + spot.i / 8;
    const uint32_t row = spot.n / 8, bit = spot.i % 8;
    for (uint32_t b = 0; b < 8 * size; ++b) value |= uint64_t(data[b * row] >> bit & 1) << b;
  }
  return value;
}

// Loads the four elements from `at` on, in true order. plane[j] holds byte j of each element.
template <class In>
DZ_HD void unit_from_bytes(const Shuffled& s, uint32_t at, uint32_t (&out)[sizeof(In)]) {
  const Spot spot = spot_of(s, at);
  uint32_t plane[sizeof(In)];
  DZ_UNROLL_BY(64)
  for (uint32_t j = 0; j < sizeof(In); ++j) {
    plane[j] = *reinterpret_cast<const uint32_t*>(spot.block + j * spot.n + spot.i);
  }
  DZ_UNROLL_BY(64)
  for (uint32_t j = 0; j + 1 < sizeof(In); j += 4) {
    // Bytes j and j + 1 of elements 0 and 1, and of elements 2 and 3.
    const uint32_t low = pick_bytes(plane[j], plane[j + 1], 0x5140);
    const uint32_t high = pick_bytes(plane[j], plane[j + 1], 0x7362);
    if (sizeof(In) == 2) {
      out[0] = low;
      out[1] = high;
    } else {
      constexpr uint32_t kWords = sizeof(In) / 4;  // words of an element
      const uint32_t low2 = pick_bytes(plane[(j + 2) % sizeof(In)], plane[(j + 3) % sizeof(In)], 0x5140);
      const uint32_t high2 = pick_bytes(plane[(j + 2) % sizeof(In)], plane[(j + 3) % sizeof(In)], 0x7362);
      out[0 * kWords + j / 4] = pick_bytes(low, low2, 0x5410);
      out[1 * kWords + j / 4] = pick_bytes(low, low2, 0x7632);
      out[2 * kWords + j / 4] = pick_bytes(high, high2, 0x5410);
      out[3 * kWords + j / 4] = pick_bytes(high, high2, 0x7632);
    }
  }
}

// Transposes a matrix of 8 by 8 bits: bit i of byte b becomes bit b of byte i. Squares of 1, then 2, then 4 bits are
// exchanged across the diagonal.
DZ_HD uint64_t transpose_bits(uint64_t x) {
  uint64_t t = (x ^ x >> 7) & 0x00aa00aa00aa00aaull;
  x ^= t ^ t << 7;
  t = (x ^ x >> 14) & 0x0000cccc0000ccccull;
  x ^= t ^ t << 14;
  t = (x ^ x >> 28) & 0x00000000f0f0f0f0ull;
  return x ^ t ^ t << 28;
}

// Loads the eight elements from `at` on, in true order.
template <class In>
DZ_HD void unit_from_bits(const Shuffled& s, uint32_t at, uint32_t (&out)[2 * sizeof(In)]) {
  const Spot spot = spot_of(s, at);
  In value[8];
  if (spot.n % 8) {
    const In* from = reinterpret_cast<const In*>(spot.block) + spot.i;
    DZ_UNROLL_BY(64)
    for (int i = 0; i < 8; ++i) value[i] = from[i];
  } else {
    const uint8_t* from = spot.block + spot.i / 8;
    const uint32_t row = spot.n / 8;
    DZ_UNROLL_BY(64)
    for (int i = 0; i < 8; ++i) value[i] = 0;
    DZ_UNROLL_BY(1)
    for (uint32_t j = 0; j < sizeof(In); ++j) {
      uint64_t rows = 0;
      DZ_UNROLL_BY(64)
      for (uint32_t b = 0; b < 8; ++b) rows |= uint64_t(from[(8 * j + b) * row]) << 8 * b;
      rows = transpose_bits(rows);
      DZ_UNROLL_BY(64)
      for (int i = 0; i < 8; ++i) value[i] |= In(In(uint8_t(rows >> 8 * i)) << 8 * j);
    }
  }
  memcpy(out, value, sizeof(value));
}

}  // namespace dz
