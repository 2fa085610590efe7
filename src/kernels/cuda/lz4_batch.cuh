// Sequences of an LZ4 block by batches: one warp reads the headers of a batch, others write the output of the batch before.
#pragma once
#include "lz_window.cuh"

namespace dz {

constexpr uint32_t kMinMatch = 4;

// Bytes of a batch's output that come one after the other from one place: the literals of a sequence, or its match. The byte
// that goes to `at` comes from `at + distance`: of the input for literals, of the batch's output, below 0 where it is before
// the batch, for a match.
struct alignas(8) LzRun {
  int32_t distance;
  uint32_t match;  // where a match starts, and kIsMatch; 0 for literals
};
constexpr uint32_t kIsMatch = 1u << 31;

// Sequences whose output, at most kBatchBytes, is written together.
constexpr uint32_t kBatchBytes = 2 * kRound;
static_assert(kBatchBytes / 32 == kWarp, "a word of `starts` for each lane");

struct LzBatch {
  alignas(16) uint32_t starts[kBatchBytes / 32];  // a bit for each byte of the output with which a run begins
  LzRun runs[2 * kWarp];
  uint32_t count;     // sequences
  uint32_t total;     // bytes of output
  uint32_t at;        // where they go
  uint32_t is_wrong;  // whether an offset is
};

// The header of a sequence whose match's length has at most one byte beside the token, and its literals' at most two.
struct LzHeader {
  uint32_t first;   // where its literals begin
  uint32_t behind;  // where they end, and its offset begins
  uint32_t next;    // where the next sequence begins
  bool is_short;    // it is such a one, as far as the literals' length says
};

// Of the sequence at `pos`, whose first four bytes are `head`. In few steps that wait for each other.
DZ_HD LzHeader read_header(uint32_t pos, uint32_t head) {
  const uint32_t literals = head >> 4 & 15, more = head >> 8 & 255, last = head >> 16 & 255;
  const bool has_more = literals == 15, has_last = has_more && more == 255;
  const uint32_t behind = pos + 1 + literals + (has_more ? more + 1 : 0) + (has_last ? last + 1 : 0);
  const uint32_t next = behind + ((head & 15) == 15 ? 3 : 2);
  return {pos + 1 + uint32_t(has_more) + uint32_t(has_last), behind, next, !(has_last && last == 255)};
}
// What one puts out at most.
static_assert((15 + 255 + 254) + (kMinMatch + 15 + 254) <= kBatchBytes, "one of them always fits a batch");

// Where the sequences begin that follow each other from the first on: the i-th in lane i, `count` of them, which are enough for a
// batch. Those behind one that is not such a sequence are nonsense.
struct LzFound {
  uint32_t mine, count;
};

// Finds long sequences, one after the other. Each step waits for one load: the eight bytes behind the literals hold the offset,
// what the match's length goes on with, and the next header.
template <uint32_t RING>
DZ_HD LzFound walk(const LzWindow<RING>& w) {
  constexpr uint32_t kSteps = 8;
  uint32_t pos = w.pos, head = w.window_bytes(pos);
  LzFound found = {pos, 0};
  for (; found.count < kWarp && pos - w.pos < kBatchBytes; found.count += kSteps) {
    DZ_UNROLL_BY(8)
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

// Finds short sequences: each lane reads what a header would be that began at its byte, and then the warp hops from one that is
// to the next.
template <uint32_t RING>
DZ_HD LzFound hop(const LzWindow<RING>& w) {
  constexpr uint32_t kRows = 3;
  LzFound found = {w.pos, 0};
  uint32_t pos = w.pos;
  while (found.count < kWarp && pos - w.pos < kBatchBytes) {
    const uint32_t base = pos;
    uint32_t next[kRows];
    DZ_UNROLL_BY(3)
    for (uint32_t r = 0; r < kRows; ++r) {
      const uint32_t from = base + r * kWarp + w.lane;
      next[r] = read_header(from, w.window_bytes(from)).next;
    }
    DZ_UNROLL_BY(3)
    for (uint32_t r = 0; r < kRows; ++r) {
      const uint32_t row = base + r * kWarp;
      while (pos - row < kWarp && found.count < kWarp) {
        found.mine = w.lane == found.count ? pos : found.mine;
        ++found.count;
        pos = lanes_shuffle(next[r], pos - row);
      }
    }
  }
  return found;
}

// Sequences that take more of the input than this, on the average, are walked.
constexpr uint32_t kWalked = 10;

// The sum of `value` over this lane and those before.
DZ_HD uint32_t lanes_sum(uint32_t value, uint32_t lane) {
  DZ_UNROLL_BY(5)
  for (uint32_t by = 1; by < kWarp; by *= 2) {
    const uint32_t before = lanes_shuffle_up(value, by, lane);
    value += lane >= by ? before : 0;
  }
  return value;
}

// Reads the headers of such sequences, as many as there are in the window and fit. w.pos and w.at are behind them. `are_long` is
// how those of this batch are taken to be, and becomes how they were.
//
// Where a sequence begins is known when the one before has been read, and no sooner. So that comes first, and nothing else is
// done with it; then each lane reads a header.
template <uint32_t RING>
DZ_HD void read_batch(LzWindow<RING>& w, LzBatch& batch, bool& are_long) {
  const uint32_t lane = w.lane, most = w.room() < kBatchBytes ? w.room() : kBatchBytes;
  const uint32_t end = w.loaded < w.in_end ? w.loaded : w.in_end;
  batch.starts[lane] = 0;
  const LzFound found = are_long ? walk(w) : hop(w);
  const uint32_t head = w.window_bytes(found.mine);
  const LzHeader header = read_header(found.mine, head);
  const uint32_t literals = header.behind - header.first, tail = w.window_bytes(header.behind);
  const uint32_t length = head & 15, more = length == 15 ? tail >> 16 & 255 : 0;
  const bool is_whole = lane < found.count && header.is_short && header.behind + 4 <= end && more != 255;
  // One that isn't, or is behind such a one, doesn't fit.
  const uint32_t bytes = is_whole ? literals + kMinMatch + length + more : kBatchBytes + 1;
  const uint32_t until = lanes_sum(bytes, lane);
  const uint32_t count = count_bits(lanes_ballot(until <= most));
  const bool is_taken = lane < count;
  const uint32_t with_literals = lanes_ballot(is_taken && literals > 0), below = (1u << lane) - 1;
  bool bad = false;
  lanes_sync();
  if (is_taken) {
    const uint32_t start = until - bytes, match = start + literals, offset = tail & 0xffff;
    // A zero is as wrong as one that is too far.
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

// `x % by` for x below 512, by from 1 on: the quotient is far enough from the next integer for any rounding.
DZ_HD uint32_t remainder_small(uint32_t x, uint32_t by) {
#ifdef __CUDA_ARCH__
  return x - uint32_t(__fdividef(float(x) + 0.5f, float(by))) * by;
#else
  return x - uint32_t((float(x) + 0.5f) / float(by)) * by;
#endif
}

// Writes a batch that isn't wrong: this warp's part of it, one of `writers`.
//
// No byte waits for another one of the batch: what is copied from the batch itself is followed to where it came from. A lane
// makes two bytes at a time, so that what one waits for, the other waits for, too.
template <uint32_t RING>
DZ_HD void write_batch(const LzWindow<RING>& w, const LzBatch& batch, uint32_t writer, uint32_t writers) {
  // What is further before the batch may be overwritten in the ring, and has left.
  constexpr int32_t kHeld = RING - kBatchBytes;
  constexpr uint32_t kRows = 2, kStep = kRows * kWarp;
  const uint32_t lane = w.lane, until_mine = (2u << lane) - 1, begin = batch.at, total = batch.total;
  // Of the 32 bytes from 32 * lane on: where runs begin, and how many begin before.
  const uint32_t starts = batch.starts[lane], own = count_bits(starts), before = lanes_sum(own, lane) - own;
  for (uint32_t done = writer * kStep; done < total; done += writers * kStep) {
    uint32_t at[kRows], from[kRows], match[kRows];
    bool is_here[kRows];  // comes from a byte of the batch
    DZ_UNROLL_BY(2)
    for (uint32_t r = 0; r < kRows; ++r) {
      const uint32_t word = done / 32 + r, bits = lanes_shuffle(starts, word) & until_mine;
      const LzRun run = batch.runs[lanes_shuffle(before, word) + count_bits(bits) - 1];
      at[r] = done + r * kWarp + lane;
      from[r] = at[r] + uint32_t(run.distance);
      match[r] = run.match;
      is_here[r] = at[r] < total && match[r] != 0 && int32_t(from[r]) >= 0;
    }
    while (lanes_ballot(is_here[0] || is_here[1])) {
      DZ_UNROLL_BY(2)
      for (uint32_t r = 0; r < kRows; ++r) {
        if (!lanes_ballot(is_here[r])) continue;
        // One of the `offset` bytes before the match, where that overlaps itself.
        const uint32_t start = match[r] & ~kIsMatch, offset = at[r] - from[r];
        const bool overlaps = is_here[r] && from[r] >= start;
        const uint32_t source = overlaps ? start - offset + remainder_small(at[r] - start, offset) : from[r];
        const uint32_t word = source / 32 % kWarp, until_source = (2u << source % 32) - 1;
        const uint32_t bits = lanes_shuffle(starts, word) & until_source, number = lanes_shuffle(before, word) + count_bits(bits) - 1;
        if (!is_here[r]) continue;
        from[r] = source;
        is_here[r] = int32_t(source) >= 0;
        if (!is_here[r]) continue;
        const LzRun run = batch.runs[number];
        at[r] = source;
        from[r] = source + uint32_t(run.distance);
        match[r] = run.match;
        is_here[r] = match[r] != 0 && int32_t(from[r]) >= 0;
      }
    }
    uint32_t byte[kRows];
    DZ_UNROLL_BY(2)
    for (uint32_t r = 0; r < kRows; ++r) {
      // An index, not a pointer: the compiler has to see that it is shared memory.
      const uint32_t place = match[r] != 0 ? kInput + (begin + from[r]) % RING : from[r] % kInput;
      const bool is_far = match[r] != 0 && int32_t(from[r]) < -kHeld, is_one = done + r * kWarp + lane < total;
      byte[r] = !is_one ? 0 : is_far ? w.out[begin + from[r]] : w.buffer[place];
    }
    DZ_UNROLL_BY(2)
    for (uint32_t r = 0; r < kRows; ++r) {
      const uint32_t to = done + r * kWarp + lane;
      if (to < total) *w.ring(begin + to) = uint8_t(byte[r]);
    }
  }
}

}  // namespace dz
