// Cuts boxes into tiles whose neighbours in the chunk aren't neighbours in the output. In the chunk they lie along the last
// dimension but one ("near"), in the output along the last one ("far"). A tile has elements along both. It is read as it
// lies in the chunk, kept in shared memory, and written as it lies in the output, so that both accesses are coalesced.
//
// Everything here also runs on the host, for tests.
#pragma once
#include "element.cuh"
#include "shuffle.cuh"

namespace dz {

// Bytes of a tile in shared memory. Elements of up to 4 bytes have a slot of 4 bytes, so that a row of slots spreads over
// all banks.
constexpr uint32_t kTransposedBytes = 16 * 1024;
// Slots beyond: rows have an odd number of slots, so that a column of slots spreads over all banks too.
constexpr uint32_t kTransposedApart = 64;

DZ_HD uint32_t slot_of(int size) { return size == 8 ? 8 : 4; }

// The extents of a full tile along both dimensions. A row of slots has the elements along the far one.
struct TileShape {
  uint32_t near, far;
};

// `size`: bytes of an element of the output.
DZ_HD TileShape tile_shape(uint32_t near, uint32_t far, int size) {
  const uint32_t slots = kTransposedBytes / slot_of(size), far_side = 64, near_side = slots / far_side;
  if (near <= near_side) {
    const uint32_t most = slots / near & ~31u;
    return {near, far < most ? far : most};
  }
  if (far <= far_side) {
    const uint32_t fit = slots / (far | 1) & ~31u, most = fit > near_side ? fit : near_side;
    return {near < most ? near : most, far};
  }
  return {near_side, far_side};
}

DZ_HD uint64_t tiles_along(uint64_t extent, uint32_t tile) { return (extent + tile - 1) / tile; }

// One tile of a box.
struct TransposedTile {
  uint64_t src, dst;   // distance of its first element from the box's first, in elements
  uint32_t near, far;  // its extents
  int64_t near_src, far_src, near_dst, far_dst;
  Divider by_near, by_far;
  uint32_t row;  // slots of a row
  // The channel of its first element, and the distance to that of the next element along both dimensions. Only for
  // operations with a table.
  int64_t channel, near_channel, far_channel;
};

// Returns tile `nth` of the job's box.
DZ_HD TransposedTile transposed_tile(const Job& job, const Op& op, uint64_t nth) {
  const uint32_t far = job.ndim - 1, near = job.ndim - 2;
  const TileShape shape = tile_shape(job.extent[near], job.extent[far], size_of(op.dst_dtype));
  const bool by_channel = op.has_norm == kNormTable;
  const uint32_t channels = by_channel ? job.extent[kMaxDims - 1] : kMaxDims;
  const int64_t step = by_channel ? job.dst_stride[kMaxDims - 1] : 0;
  TransposedTile tile;
  tile.channel = by_channel ? job.src_stride[kMaxDims - 1] : 0;
  tile.near_channel = channels == near ? step : 0;
  tile.far_channel = channels == far ? step : 0;
  const uint64_t fars = tiles_along(job.extent[far], shape.far), nears = tiles_along(job.extent[near], shape.near);
  const uint32_t at_far = uint32_t(nth % fars) * shape.far, at_near = uint32_t(nth / fars % nears) * shape.near;
  int64_t src = job.src_stride[far] * at_far + job.src_stride[near] * at_near;
  int64_t dst = job.dst_stride[far] * at_far + job.dst_stride[near] * at_near;
  tile.channel += tile.far_channel * at_far + tile.near_channel * at_near;
  uint64_t rest = nth / fars / nears;
  for (int d = int(near) - 1; d >= 0; --d) {
    const int64_t at = int64_t(rest % job.extent[d]);
    rest /= job.extent[d];
    src += job.src_stride[d] * at;
    dst += job.dst_stride[d] * at;
    if (uint32_t(d) == channels) tile.channel += step * at;
  }
  tile.src = uint64_t(src);
  tile.dst = uint64_t(dst);
  tile.near = job.extent[near] - at_near < shape.near ? job.extent[near] - at_near : shape.near;
  tile.far = job.extent[far] - at_far < shape.far ? job.extent[far] - at_far : shape.far;
  tile.near_src = job.src_stride[near];
  tile.far_src = job.src_stride[far];
  tile.near_dst = job.dst_stride[near];
  tile.far_dst = job.dst_stride[far];
  tile.by_near = divider(tile.near);
  tile.by_far = divider(tile.far);
  tile.row = tile.far | 1;
  return tile;
}

// Where element `i` of a tile is read: its distance from the box's first element in the chunk, its slot, and its channel.
DZ_HD void read_at(const TransposedTile& tile, uint32_t i, int64_t& from, uint32_t& slot, int64_t& channel) {
  uint32_t near;
  const uint32_t far = divide(i, tile.by_near, near);
  from = int64_t(tile.src) + tile.near_src * near + tile.far_src * far;
  slot = near * tile.row + far;
  channel = tile.channel + tile.near_channel * near + tile.far_channel * far;
}

// Where element `i` of a tile is written: its slot, and its distance from the box's first element in the output. Elements
// have other numbers than where they are read.
DZ_HD void write_at(const TransposedTile& tile, uint32_t i, uint32_t& slot, int64_t& to) {
  uint32_t far;
  const uint32_t near = divide(i, tile.by_far, far);
  slot = near * tile.row + far;
  to = int64_t(tile.dst) + tile.near_dst * near + tile.far_dst * far;
}

// Makes `nans` normalise an element of this channel, for operations with a table.
DZ_HD void take_channel(const Op& op, int64_t channel, NormaliseByChannel& nans) {
  const double* table = reinterpret_cast<const double*>(bit_cast<uint64_t>(op.mean)) + 2 * channel;
  nans.of_channel[0] = table[0];
  nans.of_channel[1] = table[1];
}

// Makes `nans` normalise all elements by the operation's mean and stddev.
DZ_HD void take_one(const Op& op, NormaliseByChannel& nans) {
  nans.of_channel[0] = op.mean;
  nans.of_channel[1] = op.stddev;
}

}  // namespace dz
