// Decodes raw LZ4 blocks (lz4's lz4_Block_format.md). Trusts nothing: whatever the bytes are, the decoder stays within
// its input and its output (lz_window.cuh says how strictly), ends, and returns a status.
//
// Several warps decode a stream. The first reads the headers of up to 32 sequences, while the others write the output
// of the sequences before. The first warp alone decodes sequences with long lengths, and the last ones, one by one. On
// the host one warp does all.
#pragma once
#include "lz4_batch.cuh"

namespace dz {

// What the warps of a block share, apart from the window.
struct Lz4Shared {
  LzBatch batches[2];
  LzHops hops;
  int32_t status;  // status of the last sequence that was decoded alone
};

// Status of a sequence that is not the last one.
constexpr int32_t kLzGoesOn = -1;

// The role of a warp: it reads headers, or it writes its part of each batch, as number `writer` of `writers` warps. On
// the host one warp does both.
struct LzWarp {
  bool reads, writes;
  uint32_t writer, writers;
};

DZ_HD LzWarp this_warp() {
#ifdef __CUDA_ARCH__
  const uint32_t warp = threadIdx.x / kWarp;
  return {warp == 0, warp > 0, warp - 1, blockDim.x / kWarp - 1};
#else
  return {true, true, 0, 1};
#endif
}

DZ_HD void all_warps_sync() {
#ifdef __CUDA_ARCH__
  __syncthreads();
#else
  lanes_sync();
#endif
}

// Reads the bytes of a length that follow a nibble of 15, and adds them to `length`. Returns false if the input ends,
// or if the length is more than kLzMost.
template <uint32_t RING>
DZ_HD bool read_length(LzWindow<RING>& w, uint32_t& length) {
  for (;;) {
    if (w.left() == 0 || length > kLzMost) return false;
    const uint32_t byte = w.input(w.pos);
    if (byte != 255) {
      length += byte;
      w.take();
      return true;
    }
    // Count up to 32 bytes of 255 at once.
    const bool ends = w.lane >= w.left() || w.input(w.pos + w.lane) != 255;
    const uint32_t stop = lanes_ballot(ends);
    const uint32_t full = stop ? lowest_bit(stop) : kWarp;
    length += 255 * full;
    w.pos += full;
    w.refill();
  }
}

// Decodes a sequence of any length, by one warp. Returns a DecodeStatus, or kLzGoesOn if another sequence follows.
template <uint32_t RING>
DZ_HD int32_t lz4_sequence(LzWindow<RING>& w) {
  if (w.left() == 0) return kTooShort;
  const uint32_t token = w.take();
  uint32_t literals = token >> 4;
  if (literals == 15 && !read_length(w, literals)) return kTooShort;
  if (literals > w.left()) return kTooShort;
  if (literals > w.room()) return kTooLong;
  w.copy_literals(literals);
  if (w.left() == 0) return kGood;
  if (w.left() < 2) return kTooShort;
  const uint32_t low = w.take(), offset = w.take() << 8 | low;
  uint32_t length = token & 15;
  if (length == 15 && !read_length(w, length)) return kTooShort;
  length += kMinMatch;
  if (offset == 0 || offset > w.produced()) return kCorrupt;
  if (length > w.room()) return kTooLong;
  w.copy_match(offset, length);
  return kLzGoesOn;
}

// Decodes batches until the next sequence fits into none. Then w.at is behind the last batch, in all warps. Returns
// false if a sequence is wrong; w.at is then where its batch begins.
//
// While a batch is written to the ring, whole rounds of the output before it are copied from the ring to memory.
template <uint32_t RING>
DZ_HD bool lz4_batches(LzWindow<RING>& w, Lz4Shared& shared, bool& are_long) {
  const LzWarp warp = this_warp();
  for (uint32_t number = 0;; ++number) {
    LzBatch &next = shared.batches[number % 2], &last = shared.batches[(number + 1) % 2];
    if (warp.reads) {
      w.refill();
      read_batch(w, next, shared.hops, are_long);
    }
    if (number > 0) {
      const uint32_t settled = w.settled(last.at);
      if (warp.writes) {
        w.flush(w.flushed, settled, warp.writer, warp.writers);
        write_batch(w, last, warp.writer, warp.writers);
      }
      w.flushed = settled;
    }
    all_warps_sync();
    if (number == 0) w.flushed = w.settled(next.at);
    w.at = next.at;
    if (next.is_wrong) return false;
    if (next.count == 0) return true;
    w.at += next.total;
  }
}

// Decodes a whole LZ4 block. Its output is then in w.out, and the last bytes of it still in the ring.
template <uint32_t RING>
DZ_HD DecodeStatus lz4_sequences(LzWindow<RING>& w, Lz4Shared& shared) {
  bool are_long = true;  // whether the sequences of the last batch were long
  for (;;) {
    if (!lz4_batches(w, shared, are_long)) return kCorrupt;
    if (this_warp().reads) {
      const int32_t status = lz4_sequence(w);
      if (w.lane == 0) shared.status = status;
    }
    all_warps_sync();
    if (shared.status != kLzGoesOn) return DecodeStatus(shared.status);
  }
}

}  // namespace dz
