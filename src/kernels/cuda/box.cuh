// Walks a box of elements. Dimensions are merged if the strides allow it, and elements are joined to vectors.
#pragma once
#include "layout.cuh"

namespace dz {

// A box with as few dimensions as possible, innermost FIRST. Strides count units (elements or vectors).
struct Box {
  uint32_t ndim;
  uint32_t extent[kMaxDims];
  int64_t src[kMaxDims];
  int64_t dst[kMaxDims];
};

// Whether a job reads elements, and doesn't write one value to all.
DZ_HD bool has_source(const Job& job) { return job.source == kChunk || job.source == kBetween; }

// Drops dimensions of one element, and merges a dimension with the next outer one if the strides of source and output
// allow it. Without a source (fill, padding) only the output's strides count. The extent of a merged dimension stays
// below 2^32. The dimension that may still grow is kept in registers, because a block of threads waits for this
// function.
DZ_HD void merge(const Job& job, Box& box) {
  const bool has_src = has_source(job);
  uint32_t ndim = 0, extent = 1;
  int64_t src = 1, dst = 1;
  for (int d = int(job.ndim) - 1; d >= 0; --d) {
    const uint32_t outer = job.extent[d];
    if (outer == 1) continue;
    const int64_t outer_src = has_src ? job.src_stride[d] : 0, outer_dst = job.dst_stride[d];
    const uint64_t joined = uint64_t(extent) * outer;
    if (extent == 1) {
      src = outer_src;
      dst = outer_dst;
      extent = outer;
    } else if (outer_dst == dst * extent && (!has_src || outer_src == src * extent) && joined <= UINT32_MAX) {
      extent = uint32_t(joined);
    } else {
      box.extent[ndim] = extent;
      box.src[ndim] = src;
      box.dst[ndim] = dst;
      ++ndim;
      extent = outer;
      src = outer_src;
      dst = outer_dst;
    }
  }
  box.extent[ndim] = extent;
  box.src[ndim] = src;
  box.dst[ndim] = dst;
  box.ndim = ndim + 1;
}

// Returns the number of elements of `size` bytes in a vector: as many as are always contiguous and aligned in source
// and output, at most 16 bytes. It divides kTile, so tiles begin at a vector.
DZ_HD uint32_t vector_width(const Box& box, const Job& job, int size) {
  const bool has_src = has_source(job);
  if (box.dst[0] != 1 || (has_src && box.src[0] != 1)) return 1;
  uint64_t bits = box.extent[0] * uint64_t(size) | job.dst | (has_src ? job.src : 0) | 16;
  for (uint32_t d = 1; d < box.ndim; ++d) bits |= uint64_t(box.dst[d] | box.src[d]) * uint64_t(size);
  const uint64_t bytes = bits & (~bits + 1);  // the largest power of two that divides all of them
  return bytes > uint64_t(size) ? uint32_t(bytes / size) : 1;
}

// Changes the box to count in vectors of `width` elements.
DZ_HD void vectorise(Box& box, uint32_t width) {
  box.extent[0] /= width;
  for (uint32_t d = 1; d < box.ndim; ++d) {
    box.src[d] /= int64_t(width);
    box.dst[d] /= int64_t(width);
  }
}

// A 64-bit division is long code, and only boxes of 2^32 units and more need it. So it isn't inlined into the walk.
DZ_HD_APART uint64_t divide_long(uint64_t a, uint32_t b) { return a / b; }

// Finds where unit `index` (row-major) of the box lies in source and output, in units from the first.
DZ_HD void locate(const Box& box, uint64_t index, int64_t& src, int64_t& dst) {
  src = dst = 0;
  for (uint32_t d = 0; d + 1 < box.ndim; ++d) {
    uint64_t rest;
    uint32_t at;
    if ((index >> 32) == 0) {
      const uint32_t low = uint32_t(index);
      rest = low / box.extent[d];
      at = low - uint32_t(rest) * box.extent[d];
    } else {
      rest = divide_long(index, box.extent[d]);
      at = uint32_t(index - rest * box.extent[d]);
    }
    src += box.src[d] * at;
    dst += box.dst[d] * at;
    index = rest;
  }
  src += box.src[box.ndim - 1] * int64_t(index);
  dst += box.dst[box.ndim - 1] * int64_t(index);
}

DZ_HD uint64_t count(const Job& job) {
  uint64_t n = 1;
  for (uint32_t d = 0; d < job.ndim; ++d) n *= job.extent[d];
  return n;
}

}  // namespace dz
