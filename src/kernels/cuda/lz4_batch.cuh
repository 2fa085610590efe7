// Decodes the sequences of an LZ4 block in batches: one warp reads the headers of a batch, while others write the
// output of the batch before.
#pragma once
#include "lz_window.cuh"

namespace dz {

constexpr uint32_t kMinMatch = 4;

// A run of a batch's output that is copied from one place: the literals of a sequence, or its match. Byte `at` of the
// batch's output is a copy of the byte at `at + distance`. For literals this is a position in the input. For a match it
// is a position in the batch's output; below 0 it is before the batch.
struct alignas(8) LzRun {
  int32_t distance;
  uint32_t match;  // where the match starts in the batch, combined with kIsMatch; 0 for literals
};
constexpr uint32_t kIsMatch = 1u << 31;

// Most bytes of output of a batch.
constexpr uint32_t kBatchBytes = 2 * kRound;
static_assert(kBatchBytes / 32 == kWarp, "a word of `starts` for each lane");

// Sequences whose output is written together.
struct LzBatch {
  alignas(16) uint32_t starts[kBatchBytes / 32];  // one bit per byte of output: a run begins there
  LzRun runs[2 * kWarp];
  uint32_t count;     // number of sequences; 0: the next sequence doesn't fit into a batch
  uint32_t total;     // bytes of output
  uint32_t at;        // position of the output
  uint32_t is_wrong;  // nonzero: an offset is invalid
};

// The header of a short sequence. The length of its match has at most one byte after the token's nibble, and the length
// of its literals at most two. Values are positions in the input.
struct LzHeader {
  uint32_t first;   // where its literals begin
  uint32_t behind;  // where its literals end, and its offset begins
  uint32_t next;    // where the next sequence begins
  bool is_short;    // false: the literals' length has more bytes, so the positions are wrong
};

// Reads the header of the sequence at `pos`, whose first four bytes are `head`. Its steps are sums and products and not
// choices, so that few of them wait for each other.
DZ_HD LzHeader read_header(uint32_t pos, uint32_t head) {
  const uint32_t literals = head >> 4 & 15, more = (head >> 8 & 255) + 1, last = (head >> 16 & 255) + 1;
  const uint32_t has_more = (literals + 1) >> 4, has_last = has_more * more >> 8;  // 1 or 0
  const uint32_t behind = pos + 1 + literals + has_more * more + has_last * last;
  return {pos + 1 + has_more + has_last, behind, behind + 2 + (((head & 15) + 1) >> 4), has_last * last < 256};
}
// The most output of a short sequence.
static_assert((15 + 255 + 254) + (kMinMatch + 15 + 254) <= kBatchBytes, "one of them always fits a batch");

// Where consecutive sequences begin: `mine` in lane i is the position of sequence i. There are `count` of them, enough
// for a batch. Positions after the first sequence that isn't short are meaningless.
struct LzFound {
  uint32_t mine, count;
};

// Finds long sequences, one after the other. Each step waits for one load: the eight bytes after the literals hold the
// offset, the rest of the match's length, and the next header.
template <uint32_t RING>
DZ_HD LzFound walk(const LzWindow<RING>& w) {
  constexpr uint32_t kSteps = 4;
  uint32_t pos = w.pos, head = w.window_bytes(pos);
  LzFound found = {pos, 0};
  for (; found.count < kWarp && pos - w.pos < kBatchBytes; found.count += kSteps) {
    DZ_UNROLL_BY(4)
    for (uint32_t i = 0; i < kSteps; ++i) {
      found.mine = w.lane == found.count + i ? pos : found.mine;
      const LzHeader header = read_header(pos, head);
      const uint32_t low = w.window_bytes(header.behind), high = w.window_bytes(header.behind + 4);
      head = shift_out(high, low, 8 * (header.next - header.behind));
      pos = header.next;
    }
  }
  return found;
}

// For each of the next bytes of input, if a sequence began there: where the next one would begin, and where the second
// and the fourth one after it. Positions count from the first of these bytes; kBytes stands for all behind them.
struct LzHops {
  static constexpr uint32_t kBytes = 4 * kWarp;
  alignas(4) uint8_t next[kBytes + 4], second[kBytes + 4], fourth[kBytes + 4];
};

// Returns the entries of a table of LzHops at four positions, which are the bytes of `four`.
DZ_HD uint32_t hop_four(const uint8_t* table, uint32_t four) {
  return table[four & 255] | uint32_t(table[four >> 8 & 255]) << 8 | uint32_t(table[four >> 16 & 255]) << 16 |
         uint32_t(table[four >> 24]) << 24;
}

// Returns for each of four bytes of input, `tokens`, where the next sequence would begin if the byte was a token. Each
// position is a byte of the result. `after` has the byte after each of the four, and the first one is at `first`.
// Positions from kBytes on become kBytes. So do some nearer ones, if the second byte of the literals' length is 64 or
// more. hop() then begins new tables at that sequence.
DZ_HD uint32_t next_of_four(uint32_t tokens, uint32_t after, uint32_t first) {
  constexpr uint32_t kOnes = 0x01010101, kLow = 15 * kOnes, kTop = 128 * kOnes;
  const uint32_t literals = tokens >> 4 & kLow, lengths = tokens & kLow;
  const uint32_t has_more = (literals + kOnes) >> 4 & kOnes, is_long = (lengths + kOnes) >> 4 & kOnes;
  // At most 124 + 3 + 3 + 15 + 1 in each byte.
  uint32_t next = first * kOnes + 0x06050403 + literals + is_long;
  next &= ~((next >> 7 & kOnes) * 127);
  const uint32_t more = has_more * 255 & after;
  next += (more & 63 * kOnes) + has_more;
  next |= (more << 1 | more) & kTop;
  return next & ~((next >> 7 & kOnes) * 127);
}

// Finds short sequences. Each lane reads its bytes and those after them as if headers began there. From these steps the
// warp makes steps over four sequences. Then lane i finds sequence i.
template <uint32_t RING>
DZ_HD LzFound hop(const LzWindow<RING>& w, LzHops& hops) {
  constexpr uint32_t kBytes = LzHops::kBytes;
  LzFound found = {w.pos, 0};
  uint32_t base = w.pos;
  const uint32_t mine = 4 * w.lane;
  if (w.lane == 0) hops.next[kBytes] = hops.second[kBytes] = hops.fourth[kBytes] = kBytes;
  for (;;) {
    const uint32_t low = w.window_bytes(base + mine), high = w.window_bytes(base + mine + 4);
    const uint32_t next = next_of_four(low, shift_out(high, low, 8), mine);
    *reinterpret_cast<uint32_t*>(hops.next + mine) = next;
    lanes_sync();
    const uint32_t second = hop_four(hops.next, next);
    *reinterpret_cast<uint32_t*>(hops.second + mine) = second;
    lanes_sync();
    *reinterpret_cast<uint32_t*>(hops.fourth + mine) = hop_four(hops.second, second);
    lanes_sync();
    const uint32_t number = w.lane - found.count;  // of this lane's sequence, if it is below kWarp
    uint32_t at = 0;
    DZ_UNROLL_BY(8)
    for (uint32_t i = 1; i < kWarp / 4; ++i) at = i <= number / 4 ? hops.fourth[at] : at;
    at = number & 2 ? hops.second[at] : at;
    at = number & 1 ? hops.next[at] : at;
    const bool is_here = number < kWarp && at < kBytes;
    found.mine = is_here ? base + at : found.mine;
    found.count += count_bits(lanes_ballot(is_here));
    const uint32_t last = lanes_shuffle(found.mine, found.count - 1);
    if (found.count == kWarp || last - w.pos >= kBatchBytes) return found;
    base = read_header(last, w.window_bytes(last)).next;
    lanes_sync();
  }
}

// Sequences are found by walk() if those of the last batch took more than this many input bytes on average, else by
// hop().
constexpr uint32_t kWalked = 10;

// Returns the sum of `value` over this lane and all lanes before it.
DZ_HD uint32_t lanes_sum(uint32_t value, uint32_t lane) {
  DZ_UNROLL_BY(5)
  for (uint32_t by = 1; by < kWarp; by *= 2) {
    const uint32_t before = lanes_shuffle_up(value, by, lane);
    value += lane >= by ? before : 0;
  }
  return value;
}

// Reads the headers of short sequences, as many as lie in the window and fit into a batch. Moves w.pos and w.at behind
// them. `are_long` tells how to find them (see kWalked); it is set to what was true of this batch.
//
// Where a sequence begins is known only after the header before it was read. So a first pass does only this. Then each
// lane reads one header.
template <uint32_t RING>
DZ_HD void read_batch(LzWindow<RING>& w, LzBatch& batch, LzHops& hops, bool& are_long) {
  const uint32_t lane = w.lane, most = w.room() < kBatchBytes ? w.room() : kBatchBytes;
  const uint32_t end = w.loaded < w.in_end ? w.loaded : w.in_end;
  batch.starts[lane] = 0;
  const LzFound found = are_long ? walk(w) : hop(w, hops);
  const uint32_t head = w.window_bytes(found.mine);
  const LzHeader header = read_header(found.mine, head);
  const uint32_t literals = header.behind - header.first, tail = w.window_bytes(header.behind);
  const uint32_t length = head & 15, more = length == 15 ? tail >> 16 & 255 : 0;
  const bool is_whole = lane < found.count && header.is_short && header.behind + 4 <= end && more != 255;
  // A sequence that isn't whole doesn't fit, and so does none after it.
  const uint32_t bytes = is_whole ? literals + kMinMatch + length + more : kBatchBytes + 1;
  const uint32_t until = lanes_sum(bytes, lane);
  const uint32_t count = count_bits(lanes_ballot(until <= most));
  const bool is_taken = lane < count;
  const uint32_t with_literals = lanes_ballot(is_taken && literals > 0), below = (1u << lane) - 1;
  bool bad = false;
  lanes_sync();
  if (is_taken) {
    const uint32_t start = until - bytes, match = start + literals, offset = tail & 0xffff;
    // An offset of 0 is as wrong as one that reaches too far back.
    bad = offset - 1 >= w.produced() + match;
    LzRun* run = batch.runs + lane + count_bits(with_literals & below);
    if (literals > 0) {
      *run++ = {int32_t(header.first - start), 0};
      set_bits(batch.starts + start / 32, 1u << start % 32);
    }
    *run = {-int32_t(offset), match | kIsMatch};
    set_bits(batch.starts + match / 32, 1u << match % 32);
  }
  const bool is_wrong = lanes_ballot(bad) != 0;
  const uint32_t last = count - 1, total = lanes_shuffle(until, last), pos = lanes_shuffle(header.next, last);
  if (lane == 0) {
    batch.count = count;
    batch.total = count > 0 ? total : 0;
    batch.at = w.at;
    batch.is_wrong = is_wrong;
  }
  if (count > 0) {
    are_long = pos - w.pos > kWalked * count;
    w.pos = pos;
    w.at += total;
  }
}

// Returns `x % by`, for x below 512 and `by` of at least 1. The added 0.5 keeps the quotient far enough from integers
// for any rounding.
DZ_HD uint32_t remainder_small(uint32_t x, uint32_t by) {
#ifdef __CUDA_ARCH__
  return x - uint32_t(__fdividef(float(x) + 0.5f, float(by))) * by;
#else
  return x - uint32_t((float(x) + 0.5f) / float(by)) * by;
#endif
}

// Writes this warp's part of a batch that isn't wrong. `writers` warps share the work; this one is `writer`.
//
// No byte waits for another byte of the batch: a byte that is copied from within the batch is traced back to its first
// source. A lane writes two bytes at a time, so that their waiting times overlap.
template <uint32_t RING>
DZ_HD void write_batch(const LzWindow<RING>& w, const LzBatch& batch, uint32_t writer, uint32_t writers) {
  // Bytes further than this before the batch may be overwritten in the ring. They are in memory already.
  constexpr int32_t kHeld = RING - kBatchBytes;
  constexpr uint32_t kRows = 2, kStep = kRows * kWarp;
  const uint32_t lane = w.lane, until_mine = (2u << lane) - 1, begin = batch.at, total = batch.total;
  // For the 32 bytes of output from 32 * lane on: where runs begin in them, and how many runs begin before them.
  const uint32_t starts = batch.starts[lane], own = count_bits(starts), before = lanes_sum(own, lane) - own;
  for (uint32_t done = writer * kStep; done < total; done += writers * kStep) {
    uint32_t at[kRows], from[kRows], match[kRows];
    bool is_here[kRows], any = false;  // the byte is a copy of a byte of the batch
    DZ_UNROLL_BY(2)
    for (uint32_t r = 0; r < kRows; ++r) {
      const uint32_t word = done / 32 + r, bits = lanes_shuffle(starts, word) & until_mine;
      const LzRun run = batch.runs[lanes_shuffle(before, word) + count_bits(bits) - 1];
      at[r] = done + r * kWarp + lane;
      // Lanes behind the batch's end load a byte too, and drop it: the one before the batch, which nobody writes now.
      from[r] = at[r] < total ? at[r] + uint32_t(run.distance) : uint32_t(-1);
      match[r] = run.match;
      is_here[r] = match[r] != 0 && int32_t(from[r]) >= 0;
      any |= is_here[r];
    }
    while (lanes_ballot(any)) {
      any = false;
      DZ_UNROLL_BY(2)
      for (uint32_t r = 0; r < kRows; ++r) {
        // If the match overlaps itself, take one of the `offset` bytes before the match.
        const uint32_t start = match[r] & ~kIsMatch, offset = at[r] - from[r];
        uint32_t source = from[r];
        if (is_here[r] && source >= start) source = start - offset + remainder_small(at[r] - start, offset);
        const uint32_t word = source / 32 % kWarp, bits = lanes_shuffle(starts, word) & ((2u << source % 32) - 1);
        const LzRun run = batch.runs[lanes_shuffle(before, word) + count_bits(bits) - 1];
        from[r] = is_here[r] ? source : from[r];
        is_here[r] = is_here[r] && int32_t(source) >= 0;
        at[r] = is_here[r] ? source : at[r];
        from[r] = is_here[r] ? source + uint32_t(run.distance) : from[r];
        match[r] = is_here[r] ? run.match : match[r];
        is_here[r] = is_here[r] && match[r] != 0 && int32_t(from[r]) >= 0;
        any |= is_here[r];
      }
    }
    uint32_t byte[kRows];
    DZ_UNROLL_BY(2)
    for (uint32_t r = 0; r < kRows; ++r) {
      // One load for either memory, without a branch, so that all rows' loads are under way together.
      const uint8_t* source = w.buffer + (match[r] != 0 ? kInput + (begin + from[r]) % RING : from[r] % kInput);
      if (match[r] != 0 && int32_t(from[r]) < -kHeld) source = w.out + (begin + from[r]);
      byte[r] = *source;
    }
    DZ_UNROLL_BY(2)
    for (uint32_t r = 0; r < kRows; ++r) {
      const uint32_t to = done + r * kWarp + lane;
      if (to < total) *w.ring(begin + to) = uint8_t(byte[r]);
    }
  }
}

}  // namespace dz
