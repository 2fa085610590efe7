// Walks boxes whose elements are normalised by the mean and stddev of their channel (kNormTable). The dimension of
// channels is not merged with others, so that the index along it gives an element's channel.
//
// Everything here also runs on the host, for tests.
#pragma once
#include "box.cuh"
#include "element.cuh"
#include "shuffle.cuh"

namespace dz {

struct ChannelBox {
  Box box;
  uint32_t dim;          // the box's dimension of channels
  Divider by[kMaxDims];  // dividers for the extents of the box
  int64_t first, step;   // the channel at index 0 of `dim`, and the step to the next one
  const double* table;   // mean and stddev of each channel
};

// Merges dimensions as merge() does, but none with the dimension of channels.
DZ_HD void open_channels(const Job& job, const Op& op, ChannelBox& to) {
  const bool has_src = has_source(job);
  const uint32_t channels = job.extent[kMaxDims - 1];
  Box& box = to.box;
  uint32_t n = 0;
  bool grows = false;  // whether the last dimension may be merged with the next
  for (int d = int(job.ndim) - 1; d >= 0; --d) {
    const bool is_channels = uint32_t(d) == channels;
    const uint32_t extent = job.extent[d];
    if (extent == 1 && !is_channels) continue;
    const int64_t src = has_src ? job.src_stride[d] : 0, dst = job.dst_stride[d];
    if (grows && !is_channels) {
      const uint32_t inner = box.extent[n - 1];
      const uint64_t joined = uint64_t(inner) * extent;
      if (dst == box.dst[n - 1] * inner && src == box.src[n - 1] * inner && joined <= UINT32_MAX) {
        box.extent[n - 1] = uint32_t(joined);
        continue;
      }
    }
    box.extent[n] = extent;
    box.src[n] = src;
    box.dst[n] = dst;
    if (is_channels) to.dim = n;
    grows = !is_channels;
    ++n;
  }
  box.ndim = n;
  for (uint32_t d = 0; d < n; ++d) to.by[d] = divider(box.extent[d]);
  to.first = job.src_stride[kMaxDims - 1];
  to.step = job.dst_stride[kMaxDims - 1];
  to.table = reinterpret_cast<const double*>(bit_cast<uint64_t>(op.mean));
}

// Finds where element `index` (row-major) of the box lies, in elements from its first. Returns its channel's mean and
// stddev.
DZ_HD const double* locate_channel(const ChannelBox& c, uint64_t index, int64_t& src, int64_t& dst) {
  const Box& box = c.box;
  src = dst = 0;
  int64_t channel = c.first;
  for (uint32_t d = 0; d < box.ndim; ++d) {
    uint64_t rest = 0;
    uint32_t at;
    if (d + 1 == box.ndim) {
      at = uint32_t(index);
    } else if ((index >> 32) == 0) {
      rest = divide(uint32_t(index), c.by[d], at);
    } else {
      rest = divide_long(index, box.extent[d]);
      at = uint32_t(index - rest * box.extent[d]);
    }
    src += box.src[d] * at;
    dst += box.dst[d] * at;
    if (d == c.dim) channel += c.step * at;
    index = rest;
  }
  return c.table + 2 * channel;
}

DZ_HD void take(const double* of_channel, NormaliseByChannel& nans) {
  nans.of_channel[0] = of_channel[0];
  nans.of_channel[1] = of_channel[1];
}

}  // namespace dz
