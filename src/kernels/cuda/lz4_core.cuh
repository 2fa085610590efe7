// A decoder of raw LZ4 blocks (lz4's lz4_Block_format.md) that trusts nothing: whatever the bytes are, it stays within its
// input and its output (lz_window.cuh says how strictly), ends, and says how.
//
// A warp decodes a stream. Where a sequence begins is known when the one before has been read, and no sooner. So first the
// headers of up to 32 sequences are read, which takes few instructions each; then their output is made, 32 bytes at a time,
// each lane one of them.
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

// `x % by` for x below 512, by from 1 on: the quotient is far enough from the next integer for any rounding.
DZ_HD uint32_t remainder_small(uint32_t x, uint32_t by) {
#ifdef __CUDA_ARCH__
  return x - uint32_t(__fdividef(float(x) + 0.5f, float(by))) * by;
#else
  return x - uint32_t((float(x) + 0.5f) / float(by)) * by;
#endif
}

// The most input that a sequence takes whose lengths have one byte each beside the token, with the next token and what is
// loaded together with it; and the most output.
constexpr uint32_t kMostIn = 1 + 1 + (15 + 254) + 2 + 1 + 1, kMostOut = (15 + 254) + (kMinMatch + 15 + 254);
static_assert(kMostIn <= kRound, "what refill() promises is enough");
static_assert(kMostOut <= kBatchBytes, "one of them always fits a batch");

// Reads the headers of such sequences to w.batch(), until another might not fit. How many; `total` becomes the bytes that they
// decode to. w.pos is behind them.
template <uint32_t RING>
DZ_HD uint32_t read_batch(LzWindow<RING>& w, uint32_t& total) {
  const uint32_t most = w.room() < kBatchBytes ? w.room() : kBatchBytes;
  const uint32_t last = (w.loaded < w.in_end ? w.loaded : w.in_end) - kMostIn;
  uint32_t pos = w.pos, n = 0, token = w.input(pos);
  total = 0;
  while (n < kWarp && pos <= last) {
    uint32_t literals = token >> 4, first = pos + 1;
    if (literals == 15) {
      const uint32_t more = w.input(first);
      if (more == 255) break;
      literals += more;
      ++first;
    }
    // The offset, a length's byte or the next token, and that.
    const uint32_t behind = first + literals, bytes = w.window_word(behind);
    uint32_t length = token & 15, used = 2;
    if (length == 15) {
      const uint32_t more = bytes >> 16 & 255;
      if (more == 255) break;
      length += more;
      used = 3;
    }
    length += kMinMatch;
    if (total + literals + length > most) break;
    if (w.lane == 0) w.batch().sequences[n] = {total, first, literals, bytes & 0xffff};
    ++n;
    total += literals + length;
    pos = behind + used;
    token = bytes >> (8 * used) & 255;
  }
  w.pos = pos;
  return n;
}

// Writes the output of the first `n` sequences of w.batch(), `total` bytes. False, and nothing, if one is wrong.
template <uint32_t RING>
DZ_HD bool write_batch(LzWindow<RING>& w, uint32_t n, uint32_t total) {
  const uint32_t lane = w.lane;
  LzBatch& batch = w.batch();
  batch.starts[lane] = 0;
  lanes_sync();
  bool bad = false;
  if (lane < n) {
    const LzSequence mine = batch.sequences[lane];
    // A zero is as wrong as one that is too far.
    bad = mine.offset - 1 >= w.produced() + mine.start + mine.literals;
    set_bits(batch.starts + mine.start / 32, 1u << mine.start % 32);
  }
  if (lanes_ballot(bad)) return false;
  lanes_sync();
  uint32_t before = 0;  // sequences that begin before these bytes
  for (uint32_t done = 0; done < total; done += kWarp) {
    const uint32_t starts = batch.starts[done / 32], at = done + lane;
    const LzSequence& first = batch.sequences[before + (starts & 1) - 1];
    if (done + kWarp <= first.start + first.literals) {
      // Nothing but literals of one sequence.
      *w.ring(w.at + at) = uint8_t(w.input(first.first + at - first.start));
      before += starts & 1;
      continue;
    }
    lanes_sync();
    const LzSequence from = batch.sequences[before + count_bits(starts & ((2u << lane) - 1)) - 1];
    before += count_bits(starts);
    // The byte is a literal, or one of the `offset` bytes before the match, which may be one of these 32.
    const uint32_t number = at - from.start;
    uint32_t byte = 0, source = lane;
    if (at < total && number < from.literals) {
      byte = w.input(from.first + number);
    } else if (at < total) {
      uint32_t in_match = number - from.literals;
      if (in_match >= from.offset) in_match = remainder_small(in_match, from.offset);
      const int32_t place = int32_t(from.start + from.literals + in_match) - int32_t(from.offset);
      if (place >= int32_t(done)) {
        source = uint32_t(place) - done;
      } else {
        const uint32_t position = w.at + uint32_t(place);
        byte = at - uint32_t(place) <= LzWindow<RING>::kNear ? *w.ring(position) : w.out[position];
      }
    }
    if (lanes_ballot(source != lane)) {
      // To where the byte is read from, twice as far each time.
      for (bool on = true; on;) {
        const uint32_t further = lanes_shuffle(source, source);
        on = lanes_ballot(further != source) != 0;
        source = further;
      }
      byte = lanes_shuffle(byte, source);
    }
    if (at < total) *w.ring(w.at + at) = uint8_t(byte);
  }
  w.at += total;
  w.settle();
  return true;
}

// Sequences whose lengths take at most one byte beside the token, as long as there are such. False if one is wrong.
template <uint32_t RING>
DZ_HD bool quick_sequences(LzWindow<RING>& w) {
  while (w.left() >= kMostIn && w.room() >= kMostOut) {
    w.refill();
    uint32_t total;
    const uint32_t n = read_batch(w, total);
    if (n == 0) break;
    if (!write_batch(w, n, total)) return false;
  }
  w.refill();
  return true;
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
