// A decoder of raw LZ4 blocks (lz4's lz4_Block_format.md) that trusts nothing: whatever the bytes are, it stays within its
// input and its output (lz_window.cuh says how strictly), ends, and says how.
//
// A warp decodes a stream, its lanes in lockstep. Most sequences have a few literals and a short match, 32 bytes at most
// together: each lane finds out where its byte of them comes from, and one load and one store make the whole
// sequence. The store waits for its load only after the next sequence's first loads are on their way.
#pragma once
#include "lz_window.cuh"

namespace dz {

constexpr uint32_t kMinMatch = 4;

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

// `x / by` for x below 32, by from 1 to 31: the quotient is far enough from the next integer for any rounding.
DZ_HD uint32_t divide_small(uint32_t x, uint32_t by) {
#ifdef __CUDA_ARCH__
  return uint32_t(__fdividef(float(x) + 0.5f, float(by)));
#else
  return uint32_t((float(x) + 0.5f) / float(by));
#endif
}

// A byte that a lane has loaded and not stored yet, and where it goes.
struct Pending {
  uint8_t* to;
  uint32_t byte;
  bool there;
  DZ_HD void store() {
    if (there) *to = uint8_t(byte);
    there = false;
  }
};

// Sequences of at most 14 literals and 18 bytes of match, as long as there are such. False if one is wrong.
template <uint32_t RING>
DZ_HD bool short_sequences(LzWindow<RING>& w) {
  constexpr uint32_t kAhead = 32;  // more input than a sequence and the next token take
  const uint32_t lane = w.lane;
  Pending pending = {nullptr, 0, false};
  bool good = true;
  uint32_t token = w.input(w.pos);
  for (;;) {
    const uint32_t literals = token >> 4, length = (token & 15) + kMinMatch;
    if (literals == 15 || length == 15 + kMinMatch || w.left() < kAhead || w.room() < kWarp) break;
    if (w.loaded - w.pos <= 2 * kAhead) w.refill();
    const uint32_t low = w.input(w.pos + literals + 1), high = w.input(w.pos + literals + 2);
    token = w.input(w.pos + literals + 3);
    pending.store();
    lanes_sync();
    const uint32_t offset = high << 8 | low;
    if (offset == 0 || offset > w.produced() + literals) {
      good = false;
      break;
    }
    // This lane's byte is number `lane` of the sequence. In the match it is one of the `offset` bytes before that, which may
    // be literals of this same sequence.
    int32_t from = int32_t(lane);
    if (lane >= literals) {
      uint32_t in_match = lane - literals;
      if (offset < length) in_match -= divide_small(in_match, offset) * offset;
      from = int32_t(literals + in_match) - int32_t(offset);
    }
    pending.there = lane < literals + length;
    pending.to = w.ring(w.at + lane);
    const uint8_t* source = from >= 0 ? w.buffer + (w.pos + 1 + uint32_t(from)) % kInput : w.ring(w.at + uint32_t(from));
    if (from < 0 && offset > LzWindow<RING>::kNear) source = w.out + (w.at + uint32_t(from));
    if (pending.there) pending.byte = *source;
    w.pos += literals + 3;
    w.at += literals + length;
    if (((w.at ^ w.flushed) & ~(kRound - 1)) != 0) {
      pending.store();
      w.settle();
    }
  }
  pending.store();
  w.settle();
  w.refill();
  return good;
}

// Decodes a whole block. Its output is in w.out, all that was produced.
template <uint32_t RING>
DZ_HD LzStatus lz4_sequences(LzWindow<RING>& w) {
  for (;;) {
    if (w.left() == 0) return kLzTruncated;
    if (!short_sequences(w)) return kLzCorrupt;
    // One of any length.
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
  }
}

}  // namespace dz
