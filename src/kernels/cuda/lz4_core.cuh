// A decoder of raw LZ4 blocks (lz4's lz4_Block_format.md) that trusts nothing: whatever the bytes are, it stays within its
// input and its output (lz_window.cuh says how strictly), ends, and says how.
//
// Some warps decode a stream: while the first reads the headers of up to 32 sequences, the others write the output of those
// before. Sequences with long lengths, and those at the end, the first warp decodes alone, one by one. On the host one warp does
// all.
#pragma once
#include "lz4_batch.cuh"

namespace dz {

// What the warps share beside the window.
struct Lz4Shared {
  LzBatch batches[2];
  int32_t status;  // of the sequence that was decoded last
};

// The status of a sequence that others follow.
constexpr int32_t kLzGoesOn = -1;

// What a warp does: it reads headers, or it writes its part of each batch, one of `writers`. On the host one warp does both.
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

// Takes the bytes after a full nibble, and adds them to `length`. False if the input ends, or no length can be as long.
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
    // A long run of them: 32 at once.
    const bool ends = w.lane >= w.left() || w.input(w.pos + w.lane) != 255;
    const uint32_t stop = lanes_ballot(ends);
    const uint32_t full = stop ? lowest_bit(stop) : kWarp;
    length += 255 * full;
    w.pos += full;
    w.refill();
  }
}

// Decodes a sequence of any length, by one warp.
template <uint32_t RING>
DZ_HD int32_t lz4_sequence(LzWindow<RING>& w) {
  if (w.left() == 0) return kLzTruncated;
  const uint32_t token = w.take();
  uint32_t literals = token >> 4;
  if (literals == 15 && !read_length(w, literals)) return kLzTruncated;
  if (literals > w.left()) return kLzTruncated;
  if (literals > w.room()) return kLzTooLong;
  w.copy_literals(literals);
  if (w.left() == 0) return kLzDone;
  if (w.left() < 2) return kLzTruncated;
  const uint32_t low = w.take(), offset = w.take() << 8 | low;
  uint32_t length = token & 15;
  if (length == 15 && !read_length(w, length)) return kLzTruncated;
  length += kMinMatch;
  if (offset == 0 || offset > w.produced()) return kLzCorrupt;
  if (length > w.room()) return kLzTooLong;
  w.copy_match(offset, length);
  return kLzGoesOn;
}

// Decodes batches until there is none; then w.at is behind them in all warps. False if a sequence is wrong: w.at is where its
// batch begins.
//
// What a batch is before leaves the ring while the batch is written.
template <uint32_t RING>
DZ_HD bool lz4_batches(LzWindow<RING>& w, Lz4Shared& shared, bool& are_long) {
  const LzWarp warp = this_warp();
  for (uint32_t number = 0;; ++number) {
    LzBatch &next = shared.batches[number % 2], &last = shared.batches[(number + 1) % 2];
    if (warp.reads) {
      w.refill();
      read_batch(w, next, are_long);
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

// Decodes a whole block. Its output is in w.out, and the last of it in the ring.
template <uint32_t RING>
DZ_HD LzStatus lz4_sequences(LzWindow<RING>& w, Lz4Shared& shared) {
  bool are_long = true;  // the sequences, most lately
  for (;;) {
    if (!lz4_batches(w, shared, are_long)) return kLzCorrupt;
    if (this_warp().reads) {
      const int32_t status = lz4_sequence(w);
      if (w.lane == 0) shared.status = status;
    }
    all_warps_sync();
    if (shared.status != kLzGoesOn) return LzStatus(shared.status);
  }
}

}  // namespace dz
