// The kernels' code, compiled for the host. Tests compare the device with it.
#include "between.cuh"
#include "box.cuh"
#include "channels.cuh"
#include "checksum_math.cuh"
#include "element.cuh"
#include "host_warp.h"
#include "inflate_core.cuh"
#include "shuffle.cuh"
#include "streams.cuh"
#include "transposed.cuh"
#include "zstd_host.cuh"

using namespace dz;

namespace {

uint64_t load(uint64_t base, int64_t at, int size) {
  uint64_t bits = 0;
  memcpy(&bits, reinterpret_cast<const char*>(base) + at * size, size_t(size));
  return bits;
}

void store(uint64_t base, int64_t at, uint64_t bits, int size) {
  memcpy(reinterpret_cast<char*>(base) + at * size, &bits, size_t(size));
}

template <class In>
void copy_shuffled_unit(const Shuffled& s, uint32_t from, char* to) {
  if (s.reach == kUnits && s.bits) {
    uint32_t words[2 * sizeof(In)];
    unit_from_bits<In>(s, s.first + from, words);
    memcpy(to, words, sizeof(words));
  } else if (s.reach == kUnits) {
    uint32_t words[sizeof(In)] = {};
    unit_from_bytes<In>(s, s.first + from, words);
    memcpy(to, words, sizeof(words));
  } else if (s.reach == kElements) {
    const In value = s.bits ? element_of<In, true>(s, s.first + from) : element_of<In, false>(s, s.first + from);
    memcpy(to, &value, sizeof(value));
  } else {
    const uint64_t value = any_of(s, from, sizeof(In));
    memcpy(to, &value, sizeof(In));
  }
}

void copy_shuffled_unit(const Shuffled& s, uint32_t from, char* to, int32_t size) {
  switch (size) {
    case 1: return copy_shuffled_unit<uint8_t>(s, from, to);
    case 2: return copy_shuffled_unit<uint16_t>(s, from, to);
    case 4: return copy_shuffled_unit<uint32_t>(s, from, to);
    default: return copy_shuffled_unit<uint64_t>(s, from, to);
  }
}

struct StreamCall {
  uint32_t kind;
  const uint8_t* in;
  uint64_t len;
  uint8_t* out;
  uint64_t capacity;
  uint64_t produced;
  int32_t status;
  void* buffers;

  template <uint32_t RING>
  static void lane(void* self, uint32_t lane) {
    StreamCall& call = *static_cast<StreamCall*>(self);
    uint64_t produced;
    const DecodeStatus status = decode_stream(*static_cast<LzBuffers<RING>*>(call.buffers), call.kind, call.in,
                                              call.len, call.out, call.capacity, produced, lane);
    if (lane == 0) {
      call.produced = produced;
      call.status = status;
    }
  }

  template <uint32_t RING>
  void run() {
    LzBuffers<RING> shared;
    memset(shared.bytes, 0xee, sizeof(shared.bytes));
    buffers = &shared;
    run_host_warp(lane<RING>, this);
  }
};

template <class Shape>
int32_t host_inflate(const uint8_t* in, uint64_t len, uint8_t* out, uint64_t capacity, uint64_t& produced) {
  InflateState<Shape> state;
  memset(static_cast<void*>(&state), 0xee, sizeof(state));
  return inflate(state, in, len, out, capacity, produced);
}

// As on the device: joins the remainders of equal segments in a tree, then adds the bytes left over.
uint32_t crc(const uint8_t* data, uint64_t len, uint32_t kind) {
  const uint32_t poly = crc_polynomial(kind);
  const uint64_t each = len / kThreads;
  uint32_t parts[kThreads];
  for (uint32_t t = 0; t < kThreads; ++t) {
    parts[t] = 0;
    for (uint64_t i = 0; i < each; ++i) parts[t] = crc_byte(parts[t], data[each * t + i], poly);
  }
  uint32_t shift = crc_shift(each, poly);
  for (uint32_t half = 1; half < kThreads; half *= 2) {
    for (uint32_t at = 0; at < kThreads; at += 2 * half) {
      parts[at] = crc_multiply(parts[at], shift, poly) ^ parts[at + half];
    }
    shift = crc_multiply(shift, shift, poly);
  }
  uint32_t total = parts[0];
  for (uint64_t i = each * kThreads; i < len; ++i) total = crc_byte(total, data[i], poly);
  return crc_finish(total, len, poly);
}

uint32_t adler(const uint8_t* data, uint64_t len) {
  AdlerSums sums = {0, 0};
  for (uint64_t at = 0; at < len; at += 16) {
    const uint32_t n = len - at < 16 ? uint32_t(len - at) : 16;
    adler_add(sums, data + at, n, len - at - n);
  }
  return adler_finish(sums, len);
}

uint32_t xxh(const uint8_t* data, uint64_t len) {
  uint64_t lanes[4];
  for (uint32_t lane = 0; lane < 4; ++lane) {
    lanes[lane] = xxh_begin(lane);
    for (uint64_t at = 0; at + 32 <= len; at += 32) {
      lanes[lane] = xxh_step(lanes[lane], xxh_little_endian(data + at + 8 * lane, 8) * kXxh2);
    }
  }
  return uint32_t(xxh_finish(lanes, data + len / 32 * 32, len));
}

// Does the work of dz_assemble_channels for one job, with the device's walk of the box.
void assemble_channels(const Job& job, const Op& op, uint64_t* counters) {
  const int src_size = size_of(op.src_dtype);
  ChannelBox box;
  open_channels(job, op, box);
  const bool shuffled = job.source == kChunk && job.layout.shuffle != kNone;
  Shuffled s = {};
  if (shuffled) s = open_shuffled(job, box.box, uint32_t(src_size), false);
  NormaliseByChannel nans;
  for (uint64_t i = 0; i < count(job); ++i) {
    int64_t from, to;
    take(locate_channel(box, i, from, to), nans);
    uint64_t bits = op.fill;
    if (job.source == kChunk) {
      bits = shuffled ? any_of(s, from, uint32_t(src_size)) : load(job.src, from, src_size);
      if (op.swap) bits = swap_bytes(bits, src_size);
    }
    store(job.dst, to, convert_any(bits, op, nans), size_of(op.dst_dtype));
  }
  if (nans.replaced) counters[op.counter] += nans.replaced;
}

// Does the work of dz_assemble_between for one job, with the device's walk of the box.
void assemble_between(const Job& job, const Op& op, uint64_t* counters) {
  const int size = size_of(op.decoded);
  ChannelBox box;
  open_between(job, op, box);
  const Pair pair = pair_of(job);
  NormaliseByChannel nans;
  nans.of_channel[0] = op.mean;
  nans.of_channel[1] = op.stddev;
  for (uint64_t i = 0; i < count(job); ++i) {
    int64_t from, to;
    locate_between(box, op, i, from, to, nans);
    const double a = to_f64(value_of(load(job.src, from, size), op.decoded));
    const double b = to_f64(value_of(load(job.src, from + pair.apart, size), op.decoded));
    store(job.dst, to, finish(between(a, b, pair.weight), op, op.dst_dtype, nans), size_of(op.dst_dtype));
  }
  if (nans.replaced) counters[op.counter] += nans.replaced;
}

// Returns the number of tiles of a job that dz_assemble_transposed takes.
uint64_t transposed_tiles(const Job& job, const Op& op) {
  const uint32_t far = job.ndim - 1, near = job.ndim - 2;
  const TileShape shape = tile_shape(job.extent[near], job.extent[far], size_of(op.dst_dtype));
  uint64_t tiles = tiles_along(job.extent[near], shape.near) * tiles_along(job.extent[far], shape.far);
  for (uint32_t d = 0; d < near; ++d) tiles *= job.extent[d];
  return tiles;
}

// Does the work of dz_assemble_transposed for one job, with the device's tiles and slots. Returns false if a tile has more
// slots than shared memory.
bool assemble_transposed(const Job& job, const Op& op, uint64_t* counters) {
  const int src_size = size_of(op.src_dtype), dst_size = size_of(op.dst_dtype);
  const bool shuffled = job.layout.shuffle != kNone, by_channel = op.has_norm == kNormTable;
  Shuffled s = {};
  if (shuffled) {
    Box box;
    merge(job, box);
    s = open_shuffled(job, box, uint32_t(src_size), false);
  }
  NormaliseByChannel nans;
  take_one(op, nans);
  uint64_t slots[kTransposedBytes / 4 + kTransposedApart];
  const uint32_t room = kTransposedBytes / slot_of(dst_size) + kTransposedApart;
  const uint64_t tiles = transposed_tiles(job, op);
  for (uint64_t t = 0; t < tiles; ++t) {
    const TransposedTile tile = transposed_tile(job, op, t);
    if (tile.near * tile.row > room) return false;
    for (uint32_t i = 0; i < tile.near * tile.far; ++i) {
      int64_t from, channel;
      uint32_t slot;
      read_at(tile, i, from, slot, channel);
      uint64_t bits = shuffled ? any_of(s, from, uint32_t(src_size)) : load(job.src, from, src_size);
      if (op.swap) bits = swap_bytes(bits, src_size);
      if (by_channel) take_channel(op, channel, nans);
      slots[slot] = is_plain<NormaliseByChannel>(op) ? bits : convert_any(bits, op, nans);
    }
    for (uint32_t i = 0; i < tile.near * tile.far; ++i) {
      int64_t to;
      uint32_t slot;
      write_at(tile, i, slot, to);
      store(job.dst, to, slots[slot], dst_size);
    }
  }
  if (nans.replaced) counters[op.counter] += nans.replaced;
  return true;
}

}  // namespace

extern "C" {

// As dz_assemble_transposed, for a job that it takes. Returns the number of its tiles; 0 if a tile needs more shared memory
// than there is.
uint64_t dz_host_assemble_transposed(const Job* job, const Op* op, uint64_t* counters) {
  return assemble_transposed(*job, *op, counters) ? transposed_tiles(*job, *op) : 0;
}

// Moves the boxes element by element, without merged dimensions or vectors. Tests compare the device's walk with it.
// Only jobs with a table of channels and those of kBetween use the device's walk. `counters` may be null if no operation replaces NaNs.
void dz_host_assemble(const Job* jobs, uint32_t n_jobs, const Op* ops, uint64_t* counters) {
  for (uint32_t j = 0; j < n_jobs; ++j) {
    const Job& job = jobs[j];
    const Op& op = ops[job.op];
    if (job.source == kBetween) {
      assemble_between(job, op, counters);
      continue;
    }
    if (op.has_norm == kNormTable) {
      assemble_channels(job, op, counters);
      continue;
    }
    const int src_size = size_of(op.src_dtype), dst_size = size_of(op.dst_dtype);
    const uint64_t n = count(job);
    const bool shuffled = job.source == kChunk && job.layout.shuffle != kNone;
    Box box;
    merge(job, box);
    Shuffled s = {};
    if (shuffled) s = open_shuffled(job, box, uint32_t(src_size), false);
    for (uint64_t i = 0; i < n; ++i) {
      ReplaceNans nans;
      int64_t src = 0, dst = 0;
      uint64_t rest = i;
      for (int d = int(job.ndim) - 1; d >= 0; --d) {
        const int64_t at = int64_t(rest % job.extent[d]);
        rest /= job.extent[d];
        src += at * job.src_stride[d];
        dst += at * job.dst_stride[d];
      }
      uint64_t bits;
      if (job.source == kChunk) {
        bits = shuffled ? any_of(s, src, uint32_t(src_size)) : load(job.src, src, src_size);
        if (op.swap) bits = swap_bytes(bits, src_size);
        bits = is_plain<ReplaceNans>(op) ? bits : convert_any(bits, op, nans);
      } else {
        bits = constant(op, job.source, nans);
      }
      store(job.dst, dst, bits, dst_size);
      if (nans.replaced) counters[op.counter] += nans.replaced;
    }
  }
}

// Walks a box as the device does: tells how many elements a unit has, and where unit `index` lies.
void dz_host_walk(const Job* job, int32_t size, uint64_t index, uint32_t* width, int64_t* src, int64_t* dst) {
  Box box;
  merge(*job, box);
  *width = vector_width(box, *job, size);
  vectorise(box, *width);
  locate(box, index, *src, *dst);
}

// Copies a box from a shuffled chunk with the device's loads: by units if possible, else by elements, else by bytes.
// Returns the Reach that was used.
uint32_t dz_host_copy_shuffled(const Job* job, int32_t size) {
  Box box;
  merge(*job, box);
  const Shuffled s = open_shuffled(*job, box, uint32_t(size), true);
  const uint32_t unit = s.reach == kUnits ? unit_of(s.bits) : 1;
  vectorise(box, unit);
  for (uint64_t i = 0; i < count(*job) / unit; ++i) {
    int64_t src, dst;
    locate(box, i, src, dst);
    copy_shuffled_unit(s, uint32_t(src) * unit, reinterpret_cast<char*>(job->dst) + dst * unit * size, size);
  }
  return s.reach;
}

// Converts one element. `fills`: by the code of the kernels that replace NaNs; 0: by that of dz_assemble, for
// operations without `fillna`.
uint64_t dz_host_convert(uint64_t bits, const Op* op, uint32_t fills, uint32_t* replaced) {
  ReplaceNans fill;
  KeepNans keep;
  bits = fills ? convert_any(bits, *op, fill) : convert_any(bits, *op, keep);
  *replaced = fill.replaced;
  return bits;
}

uint32_t dz_host_checksum(uint32_t kind, const uint8_t* data, uint64_t len) {
  return kind == kAdler32 ? adler(data, len) : kind == kXxh64Low ? xxh(data, len) : crc(data, len, kind);
}

// Decodes one stream as dz_inflate_* do. `small`: with few threads and small buffers, so that tests reach all edge
// cases.
int32_t dz_host_inflate(const uint8_t* in, uint64_t len, uint8_t* out, uint64_t capacity, uint64_t* produced,
                        uint32_t small) {
  if (small) return host_inflate<InflateShape<7, 96, 700, 40>>(in, len, out, capacity, *produced);
  return host_inflate<Inflate512>(in, len, out, capacity, *produced);
}

// Decodes one stream as dz_lz4 does. 32 lanes do the work of all its warps.
int32_t dz_host_stream(uint32_t kind, const uint8_t* in, uint64_t len, uint8_t* out, uint64_t capacity,
                       uint64_t* produced, uint32_t ring) {
  StreamCall call = {kind, in, len, out, capacity, 0, 0, nullptr};
  if (ring == 4096) {
    call.run<4096>();
  } else {
    call.run<8 * 1024>();
  }
  *produced = call.produced;
  return call.status;
}
}
