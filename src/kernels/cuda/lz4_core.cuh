// A decoder of raw LZ4 blocks (lz4's lz4_Block_format.md) that trusts nothing: whatever the bytes are, it stays within its
// input and its output (lz_window.cuh says how strictly), ends, and says how.
//
// A warp decodes a stream, its lanes in lockstep. Many sequences have a few literals and a short match, 32 bytes at most
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

// A byte that a lane has loaded and not stored yet, and its position in the output.
struct Pending {
  uint32_t to;
  uint32_t byte;
  bool there;

  template <uint32_t RING>
  DZ_HD void store(LzWindow<RING>& w) {
    if (there) *w.ring(to) = uint8_t(byte);
    there = false;
  }
};

// Sequences whose lengths take at most one byte beside the token, as long as there are such. False if one is wrong.
template <uint32_t RING>
DZ_HD bool quick_sequences(LzWindow<RING>& w) {
  // The most input that such a sequence and the next token take, and the most output, where lanes step by kWarp.
  constexpr uint32_t kMostIn = 1 + 1 + (15 + 254) + 2 + 1 + 1, kMostOut = (15 + 254) + (kMinMatch + 15 + 254) + kWarp;
  static_assert(kMostIn <= kRound, "what refill() promises is enough");
  const uint32_t lane = w.lane;
  Pending pending = {0, 0, false};
  bool good = true;
  uint32_t token = w.input(w.pos);
  while (w.left() >= kMostIn && w.room() >= kMostOut) {
    if (w.loaded - w.pos < kMostIn) w.refill();
    uint32_t literals = token >> 4, first = w.pos + 1;
    if (literals == 15) {
      const uint32_t more = w.input(first);
      if (more == 255) break;
      literals += more;
      ++first;
    }
    // The offset, and a length's byte or the next token.
    const uint32_t behind = first + literals;
    const uint32_t low = w.input(behind), high = w.input(behind + 1);
    const uint32_t third = w.input(behind + 2), fourth = w.input(behind + 3);
    uint32_t length = token & 15, used = 2;
    if (length == 15) {
      if (third == 255) break;
      length += third;
      used = 3;
    }
    length += kMinMatch;
    token = used == 2 ? third : fourth;
    const uint32_t offset = high << 8 | low;
    pending.store(w);
    if (offset - 1 >= w.produced() + literals) {  // a zero is as wrong as one that is too far
      good = false;
      break;
    }
    // Many literals go by themselves, few together with the match.
    uint32_t own = literals;
    if (literals >= 15) {
      for (uint32_t i = lane; i < literals; i += kWarp) *w.ring(w.at + i) = uint8_t(w.input(first + i));
      w.at += literals;
      own = 0;
    }
    lanes_sync();
    w.pos = behind + used;
    if (own + length > kWarp) {
      if (lane < own) *w.ring(w.at + lane) = uint8_t(w.input(first + lane));
      w.at += own;
      w.settle();
      w.copy_match(offset, length);
      continue;
    }
    // This lane's byte is number `lane` of them. In the match it is one of the `offset` bytes before that, which may be
    // literals of this same sequence.
    int32_t from = int32_t(lane);
    if (lane >= own) {
      uint32_t in_match = lane - own;
      if (offset < length) in_match -= divide_small(in_match, offset) * offset;
      from = int32_t(own + in_match) - int32_t(offset);
    }
    pending.there = lane < own + length;
    pending.to = w.at + lane;
    if (pending.there) {
      if (from >= 0 || offset <= LzWindow<RING>::kNear) {
        // An index, not a pointer: the compiler has to see that it is shared memory in either case.
        const uint32_t inside = (first + uint32_t(from)) % kInput, before = (w.at + uint32_t(from)) % RING;
        pending.byte = w.buffer[from >= 0 ? inside : kInput + before];
      } else {
        pending.byte = w.out[w.at + uint32_t(from)];
      }
    }
    w.at += own + length;
    if (((w.at ^ w.flushed) & ~(kRound - 1)) != 0) {
      pending.store(w);
      w.settle();
    }
  }
  pending.store(w);
  w.settle();
  w.refill();
  return good;
}

// Decodes a whole block. Its output is in w.out, all that was produced.
template <uint32_t RING>
DZ_HD LzStatus lz4_sequences(LzWindow<RING>& w) {
  for (;;) {
    if (w.left() == 0) return kLzTruncated;
    if (!quick_sequences(w)) return kLzCorrupt;
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
