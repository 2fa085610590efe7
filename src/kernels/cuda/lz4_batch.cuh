// Sequences of an LZ4 block by batches: one warp reads the headers of a batch, another writes the output of the batch before.
#pragma once
#include "lz_window.cuh"

namespace dz {

constexpr uint32_t kMinMatch = 4;

// Bytes of a batch's output that come one after the other from one place: the literals of a sequence, or its match. The byte
// that goes to `at` comes from `at + distance`: of the input for literals, of the batch's output, below 0 where it is before
// the batch, for a match.
struct alignas(8) LzRun {
  int32_t distance;
  uint32_t about;  // of a match: where it starts, and these
};
constexpr uint32_t kIsMatch = 1u << 31, kIsFar = 1u << 30, kStart = 0xffff;

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

// A sequence whose match's length has at most one byte beside the token, and its literals' at most two.
struct LzHeader {
  uint32_t literals;  // how many
  uint32_t first;     // the first of them, or what is behind none
};

// The literals of the sequence whose token and two bytes more are in `head`. False if their length has more bytes.
DZ_HD bool read_header(uint32_t pos, uint32_t head, LzHeader& header) {
  const uint32_t short_length = head >> 4 & 15, more = head >> 8 & 255, last = head >> 16 & 255;
  const bool has_more = short_length == 15, has_last = has_more && more == 255;
  header.literals = short_length + (has_more ? more : 0) + (has_last ? last : 0);
  header.first = pos + 1 + uint32_t(has_more) + uint32_t(has_last);
  return !(has_last && last == 255);
}

// What such a sequence at `pos` takes of the input (the lower half) and puts out (the upper half); 0 if there is none that ends
// well before `end`.
template <uint32_t RING>
DZ_HD uint32_t measure_sequence(const LzWindow<RING>& w, uint32_t pos, uint32_t end) {
  LzHeader header;
  const uint32_t head = w.window_bytes(pos);
  if (!read_header(pos, head, header)) return 0;
  const uint32_t behind = header.first + header.literals;
  if (behind + 4 > end) return 0;
  uint32_t length = head & 15, used = 2;
  if (length == 15) {
    const uint32_t more = w.input(behind + 2);
    if (more == 255) return 0;
    length += more;
    used = 3;
  }
  return (behind + used - pos) | (header.literals + kMinMatch + length) << 16;
}
// What one puts out at most.
static_assert((15 + 255 + 254) + (kMinMatch + 15 + 254) <= kBatchBytes, "one of them always fits a batch");

// Reads the headers of such sequences, as many as there are in the window and fit. w.pos and w.at are behind them.
//
// Where a sequence begins is known when the one before has been read, and no sooner. So each lane measures what a sequence
// would be that began at its byte, and then the warp hops from one that is to the next.
template <uint32_t RING>
DZ_HD void read_batch(LzWindow<RING>& w, LzBatch& batch) {
  constexpr uint32_t kRows = 2;
  const uint32_t lane = w.lane, most = w.room() < kBatchBytes ? w.room() : kBatchBytes;
  const uint32_t end = w.loaded < w.in_end ? w.loaded : w.in_end;
  uint32_t pos = w.pos, count = 0, total = 0;
  uint32_t mine = pos, start = 0;  // this lane's sequence, and where its output starts
  for (bool on = true; on;) {
    const uint32_t base = pos;
    uint32_t sizes[kRows];
    DZ_UNROLL_BY(2)
    for (uint32_t r = 0; r < kRows; ++r) sizes[r] = measure_sequence(w, base + r * kWarp + lane, end);
    DZ_UNROLL_BY(2)
    for (uint32_t r = 0; r < kRows; ++r) {
      while (on && pos - base < (r + 1) * kWarp) {
        const uint32_t size = lanes_shuffle(sizes[r], pos - base - r * kWarp);
        on = size != 0 && total + (size >> 16) <= most && count < kWarp;
        if (!on) break;
        if (lane == count) {
          mine = pos;
          start = total;
        }
        ++count;
        total += size >> 16;
        pos += size & 0xffff;
      }
    }
  }
  batch.starts[lane] = 0;
  lanes_sync();
  LzHeader header = {0, 0};
  bool bad = false;
  if (lane < count) read_header(mine, w.window_bytes(mine), header);
  const uint32_t with_literals = lanes_ballot(header.literals > 0), below = (1u << lane) - 1;
  if (lane < count) {
    const uint32_t offset = w.window_bytes(header.first + header.literals) & 0xffff, match = start + header.literals;
    // A zero is as wrong as one that is too far.
    bad = offset - 1 >= w.produced() + match;
    LzRun* run = batch.runs + lane + count_bits(with_literals & below);
    if (header.literals > 0) {
      *run++ = {int32_t(header.first - start), 0};
      set_bits(batch.starts + start / 32, 1u << start % 32);
    }
    *run = {-int32_t(offset), match | kIsMatch | (offset > LzWindow<RING>::kNear ? kIsFar : 0)};
    set_bits(batch.starts + match / 32, 1u << match % 32);
  }
  const bool is_wrong = lanes_ballot(bad) != 0;
  if (lane == 0) {
    batch.count = count;
    batch.total = total;
    batch.at = w.at;
    batch.is_wrong = is_wrong;
  }
  w.pos = pos;
  w.at += total;
}

// `x % by` for x below 512, by from 1 on: the quotient is far enough from the next integer for any rounding.
DZ_HD uint32_t remainder_small(uint32_t x, uint32_t by) {
#ifdef __CUDA_ARCH__
  return x - uint32_t(__fdividef(float(x) + 0.5f, float(by))) * by;
#else
  return x - uint32_t((float(x) + 0.5f) / float(by)) * by;
#endif
}

// Writes a batch that isn't wrong.
//
// Four bytes a lane at a time, 32 apart from each other, so that what one waits for, three others wait for, too.
template <uint32_t RING>
DZ_HD void write_batch(const LzWindow<RING>& w, const LzBatch& batch) {
  // A lane that is behind by a whole batch reads no byte that another one writes.
  static_assert(kBatchBytes <= RING - LzWindow<RING>::kNear, "the ring has room for a batch beside what matches reach");
  constexpr uint32_t kRows = 4, kStep = kRows * kWarp;
  const uint32_t lane = w.lane, until_mine = (2u << lane) - 1, begin = batch.at, total = batch.total;
  uint32_t before = 0;  // runs that begin before these bytes
  for (uint32_t done = 0; done < total; done += kStep) {
    LzRun run[kRows];
    DZ_UNROLL_BY(4)
    for (uint32_t r = 0; r < kRows; ++r) {
      const uint32_t starts = batch.starts[done / 32 + r];
      run[r] = batch.runs[before + count_bits(starts & until_mine) - 1];
      before += count_bits(starts);
    }
    uint32_t byte[kRows];
    bool waits[kRows];  // for one of these bytes
    DZ_UNROLL_BY(4)
    for (uint32_t r = 0; r < kRows; ++r) {
      const uint32_t from = done + r * kWarp + lane + uint32_t(run[r].distance);
      const bool is_match = (run[r].about & kIsMatch) != 0;
      waits[r] = is_match && int32_t(from) >= int32_t(done);
      // An index, not a pointer: the compiler has to see that it is shared memory.
      const uint32_t place = is_match ? kInput + (begin + from) % RING : from % kInput;
      byte[r] = w.buffer[place];
      if (run[r].about & kIsFar) byte[r] = w.out[begin + from];
    }
    const bool any = lanes_ballot(waits[0] || waits[1] || waits[2] || waits[3]) != 0;
    DZ_UNROLL_BY(4)
    for (uint32_t r = 0; r < kRows; ++r) {
      const uint32_t row = done + r * kWarp, at = row + lane;
      if (any && lanes_ballot(waits[r])) {
        lanes_sync();
        uint32_t source = lane;
        if (waits[r]) {
          // One of the `offset` bytes before the match, which may be in this row.
          const uint32_t match = run[r].about & kStart, offset = uint32_t(-run[r].distance);
          const uint32_t from = match - offset + remainder_small(at - match, offset);
          if (int32_t(from) >= int32_t(row)) source = from - row;
          if (source == lane) byte[r] = *w.ring(begin + from);
        }
        // To where the byte is read from, twice as far each time.
        for (bool on = true; on;) {
          const uint32_t further = lanes_shuffle(source, source);
          on = lanes_ballot(further != source) != 0;
          source = further;
        }
        byte[r] = lanes_shuffle(byte[r], source);
      }
      if (at < total) *w.ring(begin + at) = uint8_t(byte[r]);
    }
    lanes_sync();
  }
  w.flush(w.settled(begin), w.settled(begin + total));
}

}  // namespace dz
