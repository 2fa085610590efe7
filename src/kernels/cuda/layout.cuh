// The structures that host and device share. They mirror src/lib.rs of this crate; both sides assert their sizes.
#pragma once
#include <cstddef>
#include <cstdint>

#ifdef __CUDACC__
#define DZ_HD __host__ __device__ __forceinline__
#define DZ_HD_APART __host__ __device__ __noinline__
#define DZ_PRAGMA(text) _Pragma(#text)
#define DZ_UNROLL_BY(n) DZ_PRAGMA(unroll n)
#else
#define DZ_HD inline
#define DZ_HD_APART inline
#define DZ_UNROLL_BY(n)
#endif

namespace dz {

// Returns a pointer to an address of global memory; on the host, of any memory. The compiler then knows that it doesn't
// point to shared memory. So accesses need no look at the address, and aren't kept in order with those of shared memory.
template <typename T>
DZ_HD T* global_memory(uint64_t address) {
#ifdef __CUDA_ARCH__
  T* const pointer = reinterpret_cast<T*>(address);
  __builtin_assume(__isGlobal(pointer));
  return pointer;
#else
  return reinterpret_cast<T*>(address);
#endif
}

constexpr int kMaxDims = 8;
constexpr uint32_t kTile = 8192;             // elements of a box that one block of dz_assemble moves
constexpr uint32_t kThreads = 256;           // threads of a block of dz_assemble*, dz_checksum and dz_gather
constexpr uint32_t kGatherTile = 64 * 1024;  // bytes that one block of dz_gather moves

enum DType : int32_t { kBool, kI8, kI16, kI32, kI64, kU8, kU16, kU32, kU64, kF16, kF32, kF64, kBF16 };

// The status of a stream or a frame that was decoded, with nvCOMP's numbers for the same conditions. kTooLong: it decodes
// to more bytes than its output holds. kTooShort: it ends too early, or decodes to fewer bytes than wanted.
enum DecodeStatus : int32_t { kGood = 0, kCorrupt = 12, kTooLong = 15, kTooShort = 20 };

enum Source : uint32_t { kChunk, kFill, kPad, kBetween };

constexpr int32_t kNormTable = 2;  // value of Op::has_norm

// src/lib.rs describes the fields of all structures.
struct Op {
  int32_t src_dtype;
  int32_t dst_dtype;
  int32_t swap;
  int32_t num_missing;
  int32_t has_scale;
  int32_t has_offset;
  int32_t has_norm;
  int32_t decoded;
  uint64_t missing[2];
  uint64_t fill;
  double scale;
  double offset;
  double mean;
  double stddev;
  double pad;
  double fillna;
  int32_t has_fillna;
  int32_t counter;
};

enum Shuffle : uint8_t { kNone, kByte, kBit };

struct Layout {
  uint32_t nbytes;
  uint32_t blocksize;
  uint8_t shuffle;
  uint8_t typesize;
  uint16_t reserved;
};

struct Job {
  uint64_t src;
  uint64_t dst;
  uint32_t op;
  uint32_t source;
  uint32_t ndim;
  uint32_t reserved;
  uint32_t extent[kMaxDims];
  int64_t src_stride[kMaxDims];
  int64_t dst_stride[kMaxDims];
  Layout layout;
  uint32_t src_offset;
};

struct ChecksumJob {
  uint64_t data;
  uint64_t len;
  uint32_t kind;
  uint32_t expected;
};

struct ChecksumResult {
  uint32_t mismatch;
  uint32_t found;
};

struct CopyJob {
  uint64_t src;
  uint64_t dst;
  uint64_t len;
};

static_assert(sizeof(Op) == 112 && offsetof(Op, missing) == 32 && offsetof(Op, has_fillna) == 104, "Op");
static_assert(sizeof(Job) == 208 && offsetof(Job, extent) == 32 && offsetof(Job, src_stride) == 64, "Job");
static_assert(sizeof(Layout) == 12 && offsetof(Job, layout) == 192 && offsetof(Job, src_offset) == 204, "Layout");
static_assert(sizeof(ChecksumJob) == 24 && sizeof(ChecksumResult) == 8 && sizeof(CopyJob) == 24, "small structures");

}  // namespace dz
