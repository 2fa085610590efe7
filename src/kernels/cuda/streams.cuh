// Decodes one stream of a Blosc chunk: LZ4, Snappy or stored bytes, the kinds without entropy coding.
#pragma once
#include "lz4_core.cuh"
#include "snappy_core.cuh"

namespace dz {

// Mirrored by StreamKind of src/lib.rs.
enum StreamKind : uint32_t { kLz4Block, kSnappyBlock, kStored };

// Copies n bytes by one warp: aligned 16 bytes of output at a time, the ends byte by byte.
DZ_HD void copy_stored(const uint8_t* in, uint8_t* out, uint32_t n, uint32_t lane) {
  uint32_t head = uint32_t(0 - reinterpret_cast<uintptr_t>(out)) & 15;
  head = head < n ? head : n;
  if (lane < head) out[lane] = in[lane];
  in += head;
  out += head;
  n -= head;
  const uint32_t skew = uint32_t(reinterpret_cast<uintptr_t>(in) & 3), cells = n / 16;
  const uint32_t* from = reinterpret_cast<const uint32_t*>(in - skew);
  constexpr uint32_t kCells = 4;
  for (uint32_t cell = lane; cell < cells; cell += kCells * kWarp) {
    Bytes16 value[kCells];
    DZ_UNROLL_BY(4)
    for (uint32_t k = 0; k < kCells; ++k) {
      const uint32_t at = cell + k * kWarp;
      if (at >= cells) break;
      // With a skew of zero the fifth word isn't needed, and might lie beyond the input.
      const uint32_t last = from[4 * at + (skew ? 4 : 3)];
      const uint32_t words[5] = {from[4 * at], from[4 * at + 1], from[4 * at + 2], from[4 * at + 3], last};
      DZ_UNROLL_BY(4)
      for (uint32_t w = 0; w < 4; ++w) {
#ifdef __CUDA_ARCH__
        value[k].word[w] = __funnelshift_r(words[w], words[w + 1], skew * 8);
#else
        value[k].word[w] = uint32_t((uint64_t(words[w + 1]) << 32 | words[w]) >> (skew * 8));
#endif
      }
    }
    DZ_UNROLL_BY(4)
    for (uint32_t k = 0; k < kCells; ++k) {
      const uint32_t at = cell + k * kWarp;
      if (at >= cells) break;
      reinterpret_cast<Bytes16*>(out)[at] = value[k];
    }
  }
  for (uint32_t i = 16 * cells + lane; i < n; i += kWarp) out[i] = in[i];
}

// Memory for decoding one stream; in shared memory on the device.
template <uint32_t RING>
struct LzBuffers {
  alignas(16) uint8_t bytes[LzWindow<RING>::kBytes];
  Lz4Shared lz4;
};

// Decodes a whole stream, which must end with its last byte. Sets `produced` to the bytes written, also after an error.
// All warps of a block call it; only the first warp's return value and `produced` count.
template <uint32_t RING>
DZ_HD DecodeStatus decode_stream(LzBuffers<RING>& buffers, uint32_t kind, const uint8_t* in, uint64_t len, uint8_t* out,
                                 uint64_t capacity, uint64_t& produced, uint32_t lane) {
  produced = 0;
  if (len > kLzMost || capacity > kLzMost) return kTooLong;
  if (kind != kLz4Block && !this_warp().reads) return kGood;
  if (kind == kStored) {
    if (len > capacity) return kTooLong;
    copy_stored(in, out, uint32_t(len), lane);
    produced = len;
    return kGood;
  }
  if (kind != kLz4Block && kind != kSnappyBlock) return kCorrupt;
  LzWindow<RING> window;
  window.open(buffers.bytes, in, uint32_t(len), out, uint32_t(capacity), lane);
  if (this_warp().reads) window.seek(window.in_begin);
  const DecodeStatus status = kind == kLz4Block ? lz4_sequences(window, buffers.lz4) : snappy_elements(window);
  if (this_warp().reads) window.finish();
  produced = window.produced();
  return status;
}

}  // namespace dz
