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

// The most input that a sequence takes whose lengths have one byte each beside the token, up to the end of what is loaded with
// its offset; and the most output.
constexpr uint32_t kMostIn = 1 + 1 + (15 + 254) + 8, kMostOut = (15 + 254) + (kMinMatch + 15 + 254);
static_assert(kMostIn <= kRound, "what refill() promises is enough");
static_assert(kMostOut <= kBatchBytes, "one of them always fits a batch");

// Reads the headers of such sequences to w.batch(), until another might not fit. How many; `total` becomes the bytes that they
// decode to. w.pos is behind them.
//
// Each step waits for one load: the eight bytes behind the literals hold the offset, what the match's length goes on with, the
// next token, and what its literals' length goes on with.
template <uint32_t RING>
DZ_HD uint32_t read_batch(LzWindow<RING>& w, uint32_t& total) {
  const uint32_t most = w.room() < kBatchBytes ? w.room() : kBatchBytes;
  const uint32_t last = (w.loaded < w.in_end ? w.loaded : w.in_end) - kMostIn;
  uint32_t pos = w.pos, n = 0, head = w.window_word(pos);
  total = 0;
  while (n < kWarp && pos <= last) {
    uint32_t literals = head >> 4 & 15, first = pos + 1;
    if (literals == 15) {
      const uint32_t more = head >> 8 & 255;
      if (more == 255) break;
      literals += more;
      ++first;
    }
    const uint32_t behind = first + literals, low = w.window_word(behind), high = w.window_word(behind + 4);
    uint32_t length = head & 15, used = 2;
    if (length == 15) {
      const uint32_t more = low >> 16 & 255;
      if (more == 255) break;
      length += more;
      used = 3;
    }
    length += kMinMatch;
    if (total + literals + length > most) break;
    if (w.lane == 0) w.batch().sequences[n] = {total, first, literals, low & 0xffff};
    ++n;
    total += literals + length;
    pos = behind + used;
    head = shift_out(high, low, 8 * used);
  }
  w.pos = pos;
  return n;
}

// Writes the output of the first `n` sequences of w.batch(), `total` bytes. False, and nothing, if one is wrong.
//
// Which sequence a lane's byte belongs to is looked up while the 32 bytes before are written.
template <uint32_t RING>
DZ_HD bool write_batch(LzWindow<RING>& w, uint32_t n, uint32_t total) {
  const uint32_t lane = w.lane, until_mine = (2u << lane) - 1;
  LzBatch& batch = w.batch();
  static_assert(kBatchBytes / 32 == kWarp, "a word for each lane");
  batch.starts[lane] = 0;
  if (lane < kNoBytes) batch.starts[kWarp + lane] = 0;
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
  uint32_t starts = batch.starts[0], before = count_bits(starts);  // sequences that begin before the next bytes
  LzSequence next = batch.sequences[count_bits(starts & until_mine) - 1];
  starts = batch.starts[1];
  for (uint32_t done = 0; done < total; done += kWarp) {
    const LzSequence from = next;
    next = batch.sequences[before + count_bits(starts & until_mine) - 1];
    before += count_bits(starts);
    starts = batch.starts[done / 32 + 2];
    lanes_sync();
    // The byte is a literal, or one of the `offset` bytes before the match, which may be one of these 32.
    const uint32_t at = done + lane, number = at - from.start;
    const bool is_literal = number < from.literals;
    uint32_t in_match = number - from.literals;
    if (!is_literal && in_match >= from.offset) in_match = remainder_small(in_match, from.offset);
    const uint32_t place = from.start + from.literals + in_match - from.offset;  // below 0 where it is before the batch
    const bool is_matched = at < total && !is_literal;
    const bool is_here = is_matched && int32_t(place) >= int32_t(done);
    uint32_t byte;
    if (is_matched && at - place > LzWindow<RING>::kNear) {
      byte = w.out[w.at + place];
    } else {
      // An index, not a pointer: the compiler has to see that it is shared memory in either case.
      const uint32_t literal = (from.first + number) % kInput, matched = kInput + (w.at + place) % RING;
      byte = w.buffer[is_literal ? literal : matched];
    }
    if (lanes_ballot(is_here)) {
      // To where the byte is read from, twice as far each time.
      uint32_t source = is_here ? place - done : lane;
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
