// dz_checksum: verifies the checksums of decoded buffers, with one block of threads for each.
//
// For a crc, every thread computes the remainder of its own segment, and the remainders are joined in a tree. adler32
// is a sum over coalesced pieces. xxh64 is a chain by design: four lanes follow it, while their warp loads and scales
// the data ahead.
#pragma once
#include "checksum_math.cuh"

namespace dz {

// Joins the remainders `mine` of all threads. Each is of `bytes` bytes; thread 0's bytes come first. Only thread 0's
// result counts.
__device__ __forceinline__ uint32_t join_remainders(uint32_t* shared, uint32_t mine, uint64_t bytes, uint32_t poly) {
  __syncthreads();
  shared[threadIdx.x] = mine;
  uint32_t shift = crc_shift(bytes, poly);
  for (uint32_t half = 1; half < kThreads; half *= 2) {
    __syncthreads();
    const uint32_t at = threadIdx.x * 2 * half;
    if (at < kThreads) {
      mine = crc_multiply(shared[at], shift, poly) ^ shared[at + half];
      shared[at] = mine;
    }
    shift = crc_multiply(shift, shift, poly);
  }
  return mine;  // thread 0's is the total; for other threads, shared[0] would need another barrier
}

__device__ __forceinline__ uint32_t crc_word(const uint32_t (*table)[256], uint32_t crc, uint32_t word) {
  crc ^= word;
  return table[3][crc & 255] ^ table[2][(crc >> 8) & 255] ^ table[1][(crc >> 16) & 255] ^ table[0][crc >> 24];
}

// Returns the crc of `len` bytes at `data`, which is aligned to 16. Only thread 0's result counts.
__device__ __forceinline__ uint32_t block_crc(const uint8_t* data, uint64_t len, uint32_t kind, uint32_t* shared,
                                              uint32_t (*table)[256]) {
  const uint32_t poly = crc_polynomial(kind);
  uint32_t entry = crc_byte(0, uint8_t(threadIdx.x), poly);
  for (int t = 0; t < 4; ++t) {
    table[t][threadIdx.x] = entry;
    for (int bit = 0; bit < 8; ++bit) entry = (entry >> 1) ^ (poly & (0u - (entry & 1)));
  }
  __syncthreads();
  // First an equal number of 16-byte pieces per thread; then an equal number of the bytes left; then the last few
  // bytes.
  const uint64_t pieces = len / (16 * kThreads);
  const uint4* from = reinterpret_cast<const uint4*>(data) + pieces * threadIdx.x;
  uint32_t crc = 0;
  for (uint64_t i = 0; i < pieces; ++i) {
    const uint4 v = from[i];
    crc = crc_word(table, crc, v.x);
    crc = crc_word(table, crc, v.y);
    crc = crc_word(table, crc, v.z);
    crc = crc_word(table, crc, v.w);
  }
  uint32_t total = join_remainders(shared, crc, pieces * 16, poly);
  data += pieces * 16 * kThreads;
  const uint32_t left = uint32_t(len - pieces * 16 * kThreads), each = left / kThreads;
  crc = 0;
  for (uint32_t i = 0; i < each; ++i) crc = table[0][(crc ^ data[each * threadIdx.x + i]) & 255] ^ (crc >> 8);
  const uint32_t rest = join_remainders(shared, crc, each, poly);
  if (threadIdx.x != 0) return 0;
  total = crc_multiply(total, crc_shift(uint64_t(each) * kThreads, poly), poly) ^ rest;
  for (uint32_t i = each * kThreads; i < left; ++i) total = table[0][(total ^ data[i]) & 255] ^ (total >> 8);
  return crc_finish(total, len, poly);
}

// Returns the adler32 of `len` bytes at `data`, which is aligned to 16. Only thread 0's result counts.
__device__ __forceinline__ uint32_t block_adler(const uint8_t* data, uint64_t len, AdlerSums* shared) {
  AdlerSums sums = {0, 0};
  for (uint64_t at = 16ull * threadIdx.x; at < len; at += 16ull * kThreads) {
    alignas(16) uint8_t piece[16];
    const uint32_t n = len - at < 16 ? uint32_t(len - at) : 16;
    if (n == 16) {
      *reinterpret_cast<uint4*>(piece) = *reinterpret_cast<const uint4*>(data + at);
      adler_add(sums, piece, 16, len - at - 16);
    } else {
      adler_add(sums, data + at, n, 0);
    }
  }
  sums.a %= kAdlerMod;
  sums.b %= kAdlerMod;
  shared[threadIdx.x] = sums;
  for (uint32_t half = kThreads / 2; half; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) {
      shared[threadIdx.x].a += shared[threadIdx.x + half].a;
      shared[threadIdx.x].b += shared[threadIdx.x + half].b;
    }
  }
  return threadIdx.x == 0 ? adler_finish(shared[0], len) : 0;
}

// Returns the low 32 bits of xxh64 to all lanes. Must be called by one warp. `data` is aligned to 8, and `scaled` has
// room for two rounds of 64 values.
__device__ __forceinline__ uint32_t warp_xxh64(const uint8_t* data, uint64_t len, uint64_t* scaled) {
  constexpr uint64_t kRound = 64;  // values of eight bytes in a round: 16 stripes
  const uint32_t lane = threadIdx.x;
  const uint64_t* words = reinterpret_cast<const uint64_t*>(data);
  const uint64_t total = len / 32 * 4;
  uint64_t acc = xxh_begin(lane & 3);
  uint64_t next0 = lane < total ? words[lane] : 0, next1 = lane + 32 < total ? words[lane + 32] : 0;
  for (uint64_t at = 0; at < total; at += kRound) {
    uint64_t* buffer = scaled + (at / kRound % 2) * kRound;
    buffer[lane] = next0 * kXxh2;
    buffer[lane + 32] = next1 * kXxh2;
    __syncwarp();
    const uint64_t ahead = at + kRound + lane;
    next0 = ahead < total ? words[ahead] : 0;
    next1 = ahead + 32 < total ? words[ahead + 32] : 0;
    const uint32_t n = total - at < kRound ? uint32_t(total - at) : uint32_t(kRound);
    if (n == kRound) {
#pragma unroll
      for (uint32_t i = 0; i < kRound; i += 4) acc = xxh_step(acc, buffer[i + (lane & 3)]);
    } else {
      for (uint32_t i = 0; i < n; i += 4) acc = xxh_step(acc, buffer[i + (lane & 3)]);
    }
  }
  uint64_t lanes[4];
  for (int i = 0; i < 4; ++i) lanes[i] = __shfl_sync(0xffffffff, acc, i);
  return uint32_t(xxh_finish(lanes, data + len / 32 * 32, len));
}

}  // namespace dz

// Grid: one block of kThreads for each of the n buffers, whose addresses are aligned to 16.
extern "C" __global__ void __launch_bounds__(dz::kThreads)
    dz_checksum(const dz::ChecksumJob* jobs, uint32_t n, dz::ChecksumResult* results) {
  using namespace dz;
  __shared__ union {
    struct {
      uint32_t remainders[kThreads];
      uint32_t table[4][256];
    } crc;
    AdlerSums adler[kThreads];
    uint64_t scaled[128];
  } shared;
  if (blockIdx.x >= n) return;
  const ChecksumJob job = jobs[blockIdx.x];
  const uint8_t* data = global_memory<const uint8_t>(job.data);
  uint32_t found = 0;
  if (job.kind == kAdler32) {
    found = block_adler(data, job.len, shared.adler);
  } else if (job.kind == kXxh64Low) {
    if (threadIdx.x < 32) found = warp_xxh64(data, job.len, shared.scaled);
  } else {
    found = block_crc(data, job.len, job.kind, shared.crc.remainders, shared.crc.table);
  }
  if (threadIdx.x == 0) results[blockIdx.x] = {found != job.expected, found};
}
