// Decodes raw Snappy blocks (snappy's format_description.txt). Trusts nothing, as lz4_core.cuh.
#pragma once
#include "lz_window.cuh"

namespace dz {

// Takes n bytes (1 to 4) as a little-endian number. At least n must be left.
template <uint32_t RING>
DZ_HD uint32_t take_number(LzWindow<RING>& w, uint32_t n) {
  uint32_t value = 0;
  for (uint32_t i = 0; i < n; ++i) value |= w.take() << 8 * i;
  return value;
}

// Decodes a whole Snappy block by one warp.
template <uint32_t RING>
DZ_HD DecodeStatus snappy_elements(LzWindow<RING>& w) {
  // The decoded length comes before the elements, seven bits per byte.
  uint64_t length = 0;
  for (uint32_t shift = 0;; shift += 7) {
    if (w.left() == 0) return kTooShort;
    const uint32_t byte = w.take();
    length |= uint64_t(byte & 127) << shift;
    if (byte < 128) break;
    if (shift == 28) return kCorrupt;
  }
  if (length > w.room()) return kTooLong;
  w.out_end = w.out_begin + uint32_t(length);
  while (w.left() > 0) {
    const uint32_t tag = w.take(), kind = tag & 3;
    const uint32_t extra = kind == 0 ? (tag >> 2 < 60 ? 0 : (tag >> 2) - 59) : kind == 3 ? 4 : kind;
    if (extra > w.left()) return kTooShort;
    if (kind == 0) {
      // The stored number is the length less 1. So compare it with >=: the length itself could be 2^32.
      const uint32_t less = extra == 0 ? tag >> 2 : take_number(w, extra);
      if (less >= w.room()) return kTooLong;
      if (less >= w.left()) return kTooShort;
      w.copy_literals(less + 1);
      continue;
    }
    uint32_t offset = take_number(w, extra), n = (tag >> 2) + 1;
    if (kind == 1) {
      n = (tag >> 2 & 7) + 4;
      offset |= tag >> 5 << 8;
    }
    if (offset == 0 || offset > w.produced()) return kCorrupt;
    if (n > w.room()) return kTooLong;
    w.copy_match(offset, n);
  }
  return w.room() == 0 ? kGood : kTooShort;
}

}  // namespace dz
