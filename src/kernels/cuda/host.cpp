// The kernels' element function and arithmetic, compiled for the host: what tests compare the device with.
#include "box.cuh"
#include "checksum_math.cuh"
#include "element.cuh"
#include "inflate_core.cuh"
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

// As the device does it: equal segments whose remainders are joined in a tree, and the bytes left over.
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

}  // namespace

extern "C" {

// Element by element, without the merging and vectors of the device's walk: what that walk is tested against.
void dz_host_assemble(const Job* jobs, uint32_t n_jobs, const Op* ops) {
  for (uint32_t j = 0; j < n_jobs; ++j) {
    const Job& job = jobs[j];
    const Op& op = ops[job.op];
    const int src_size = size_of(op.src_dtype), dst_size = size_of(op.dst_dtype);
    const uint64_t n = count(job);
    for (uint64_t i = 0; i < n; ++i) {
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
        bits = load(job.src, src, src_size);
        if (op.swap) bits = swap_bytes(bits, src_size);
        bits = is_plain(op) ? bits : convert(bits, op, op.src_dtype, op.dst_dtype);
      } else {
        bits = constant(op, job.source);
      }
      store(job.dst, dst, bits, dst_size);
    }
  }
}

// The device's walk of one box on the host: where each unit lies, and how wide a unit is.
void dz_host_walk(const Job* job, int32_t size, uint64_t index, uint32_t* width, int64_t* src, int64_t* dst) {
  Box box;
  merge(*job, box);
  *width = vector_width(box, *job, size);
  vectorise(box, *width);
  locate(box, index, *src, *dst);
}

uint64_t dz_host_convert(uint64_t bits, const Op* op) { return convert(bits, *op, op->src_dtype, op->dst_dtype); }

uint32_t dz_host_checksum(uint32_t kind, const uint8_t* data, uint64_t len) {
  return kind == kAdler32 ? adler(data, len) : kind == kXxh64Low ? xxh(data, len) : crc(data, len, kind);
}

int32_t dz_host_inflate(const uint8_t* in, uint64_t len, uint8_t* out, uint64_t capacity, uint64_t* produced) {
  InflateTables tables;
  return inflate(tables, in, len, out, capacity, *produced, 0);
}

}
