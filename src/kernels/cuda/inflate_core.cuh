// Decodes raw deflate streams (RFC 1951). Trusts nothing: whatever the bytes are, the decoder never writes outside its
// output, reads outside its input only bytes that share an aligned word with it, and ends with a status.
//
// Where a symbol begins is known only after the symbol before it was read. But a reader that starts at a wrong bit soon
// comes to the true beginning of a symbol, and is right from there on. So a span of bits is copied to shared memory and
// divided into equal segments, one per thread. All threads start at once. Then each thread whose start was wrong starts
// again where the segment before it ended, until no thread has to. Then all threads read their segments again. They find
// where the quarters of their segments end, the parts, and how much each decodes to. Finally the threads write as many
// parts as fill a batch of output in shared memory (batch.cuh), one part per thread: literals into the batch, matches into
// a list. Then all threads put the matches of the list into the batch.
//
// Only valid segments are decoded like this. A warp decodes the rest symbol by symbol: segments with an error, to find
// the precise status, and parts that have no room in a batch.
#pragma once
#include "inflate_lengths.cuh"
#include "inflate_symbols.cuh"

namespace dz {

// Parts of a segment. A batch has about as much output as a quarter of all segments, so that with four parts for each
// segment all threads write.
constexpr uint32_t kParts = 4;

// THREADS threads decode a stream together. Each reads a segment of SEGMENT bits, in kParts parts. A batch of output has
// at most WINDOW bytes and MATCHES matches.
template <uint32_t THREADS_, uint32_t SEGMENT_, uint32_t WINDOW_, uint32_t MATCHES_>
struct InflateShape {
  static constexpr uint32_t THREADS = THREADS_, SEGMENT = SEGMENT_, WINDOW = WINDOW_, MATCHES = MATCHES_;
  static_assert(SEGMENT % 64 == 32, "an odd number of words, see SpanWords");
  static_assert(SEGMENT % kParts == 0, "the last part ends with the segment");
  // Words of the input that threads read in a span, which begins within the first word: the last symbol can have 47
  // bits behind the last segment, and a BitReader holds two words after the one with its position.
  static constexpr uint32_t SPAN_WORDS = THREADS * (SEGMENT / 32) + 5;
  static constexpr uint32_t HEADER_WORDS = (31 + kMostHeaderBits) / 32 + 3;
};

// The shapes of the kernels. 512 segments of 416 bits are 26 KiB: the blocks of common writers fit such a span. Two of
// the larger states fit the shared memory of an A100's multiprocessor, four of the smaller ones an H100's.
using Inflate512 = InflateShape<512, 416, 10 * 1024 + 768, 2304>;
using Inflate256 = InflateShape<256, 288, 10 * 1024, 2304>;

// What a thread has read of its segment up to the end of a part, in 32 bits: bytes and matches, and the bits from the
// segment's begin to where the part's last symbol ends. More bytes than kMostBytes count as kMostBytes.
constexpr uint32_t kMostBytes = (1u << 14) - 1;
DZ_HD uint32_t pack_part(uint32_t bytes, uint32_t matches, uint32_t bits) {
  return bits << 23 | matches << 14 | (bytes < kMostBytes ? bytes : kMostBytes);
}
DZ_HD uint32_t part_bytes(uint32_t part) { return part & kMostBytes; }
DZ_HD uint32_t part_matches(uint32_t part) { return part >> 14 & 511; }
DZ_HD uint32_t part_bits(uint32_t part) { return part >> 23; }

// Output in 64 bits: the number of bytes in the lower half, the number of matches in the upper.
DZ_HD uint64_t sum_of(uint32_t bytes, uint32_t matches) { return uint64_t(matches) << 32 | bytes; }
DZ_HD uint32_t sum_bytes(uint64_t sum) { return uint32_t(sum); }
DZ_HD uint32_t sum_matches(uint64_t sum) { return uint32_t(sum >> 32); }

// Memory for decoding one stream; in shared memory on the device.
template <class Shape>
struct InflateState {
  static constexpr uint32_t kWords = Shape::SPAN_WORDS < Shape::HEADER_WORDS ? Shape::HEADER_WORDS : Shape::SPAN_WORDS;
  static_assert(Shape::SEGMENT + 48 <= 512 && Shape::WINDOW < kMostBytes, "see pack_part()");

  union {
    Cells<Shape::WINDOW> cells;
    LengthSymbols symbols;  // while a block's codes are read
  };
  uint16_t matches[Shape::MATCHES];  // where matches begin in the batch
  InflateCodes codes;
  uint32_t words[kWords];  // of the input: of a span, or of a block's header
  // For each thread's segment: the bits where it begins and ends, counted from the span's first word; its parts
  // (pack_part); the sum of the output up to its end (sum_of; read_codes() uses it too); why it ends; and whether its
  // thread has to read it again.
  uint32_t begin[Shape::THREADS], end[Shape::THREADS];
  uint32_t parts[Shape::THREADS * kParts];
  uint64_t sums[Shape::THREADS];
  Stop stop[Shape::THREADS];
  bool again[Shape::THREADS];
  uint64_t scratch[Shape::THREADS / 32 + 1];
  uint32_t first_stop[2];  // the first segment that ends before its limit; rounds use the two entries in turns
  // Results of serial().
  uint64_t serial_at, serial_produced;
  DecodeStatus serial_status;
  Stop serial_stop;
};

DZ_HD_APART void copy_bytes(uint8_t* to, const uint8_t* from, uint32_t n, uint32_t thread, uint32_t threads) {
  copy_apart(to, from, n, thread, threads);
}

// Decodes one stream. All threads have the same values.
template <class Shape>
struct Inflater {
  Team<Shape::THREADS> team;
  InflateState<Shape>& s;
  DeflateInput input;
  uint8_t* out;
  uint64_t capacity, produced;
  uint64_t at;  // position of the next bit

  // Copies n words of the input from bit `origin` on to s.words, thread t's share of them.
  DZ_HD void load_words(uint64_t origin, uint32_t n, uint32_t t) {
    const DeflateWords words(input, origin);
    for (uint32_t i = t; i < n; i += Shape::THREADS) s.words[i] = words[i];
  }

  // Decodes symbols one after the other, from bit `from` up to bit `limit`, both counted from `origin`. Returns
  // kGood, with kLimit or kEnd in `stop`, or an error.
  DZ_HD DecodeStatus serial(uint64_t origin, uint32_t from, uint32_t limit, Stop& stop) {
    team.each([&](uint32_t t) {
      if (t >= kSerialLanes) return;
      SerialSink sink = {out, capacity, produced, kCorrupt, t};
      const DeflateInput copy = input;  // its address is passed on, so that the values of `input` can stay in registers
      uint32_t end;
      const Stop why = read_serially(s.codes, copy, origin, from, limit, sink, end);
      if (t > 0) return;
      s.serial_stop = why;
      s.serial_at = origin + end;
      s.serial_produced = sink.produced;
      s.serial_status = why == kLimit || why == kEnd ? kGood : sink.status;
    });
    at = s.serial_at;
    produced = s.serial_produced;
    stop = s.serial_stop;
    const DecodeStatus status = s.serial_status;
    team.each([](uint32_t) {});
    return at > input.end ? kTooShort : status;
  }

  // Reads segment t from bit s.begin[t] on. Stores where it ends, and why.
  DZ_HD void skip_segment(uint64_t origin, uint32_t first, uint32_t t) {
    const SpanWords words = {s.words};
    BitReader bits(words, s.begin[t]);
    Stop stop = kNoCode;
    if (origin + bits.position < input.end) {
      stop = skip_symbols(s.codes, words, bits, first + (t + 1) * Shape::SEGMENT);
    }
    s.end[t] = bits.position;
    s.stop[t] = origin + bits.position > input.end ? kNoCode : stop;
  }

  // Finds how much the first `n` segments decode to: their parts, and the sums of the output.
  DZ_HD void measure_segments(uint32_t first, uint32_t n) {
    team.each([&](uint32_t t) {
      CountingSink sink = {0, 0};
      if (t < n) {
        const SpanWords words = {s.words};
        BitReader bits(words, s.begin[t]);
        const uint32_t begin = first + t * Shape::SEGMENT;
        Stop stop = kLimit;
        for (uint32_t i = 0; i < kParts; ++i) {
          const uint32_t limit = begin + (i + 1) * (Shape::SEGMENT / kParts);
          if (stop == kLimit) stop = read_symbols(s.codes, words, bits, limit, sink);
          s.parts[kParts * t + i] = pack_part(sink.bytes, sink.matches, bits.position - begin);
        }
      }
      s.sums[t] = sum_of(sink.bytes, sink.matches);
    });
    team.sum_up(s.sums, s.scratch);
  }

  // Finds where the segments of the span from bit `first` on begin and end. Returns the index of the first segment that
  // ends before its limit, or THREADS. What was found is right up to and including that segment.
  DZ_HD uint32_t find_segments(uint64_t origin, uint32_t first) {
    team.each([&](uint32_t t) {
      load_words(origin, Shape::SPAN_WORDS, t);
      s.begin[t] = first + t * Shape::SEGMENT;
      s.again[t] = true;
      if (t == 0) s.first_stop[0] = Shape::THREADS;
    });
    for (uint32_t round = 0;; round ^= 1) {
      team.each([&](uint32_t t) {
        if (s.again[t]) skip_segment(origin, first, t);
        if (warp_first(s.stop[t] != kLimit)) lower_to(&s.first_stop[round], t);
      });
      const bool more = team.any([&](uint32_t t) {
        if (t == 0) s.first_stop[round ^ 1] = Shape::THREADS;
        const bool again = t > 0 && t <= s.first_stop[round] && s.begin[t] != s.end[t - 1];
        if (again) s.begin[t] = s.end[t - 1];
        s.again[t] = again;
        return again;
      });
      if (!more) return s.first_stop[round];
    }
  }

  // The parts of all segments are numbered from 0 on. Returns the bit where a part begins.
  DZ_HD uint32_t part_begin(uint32_t first, uint32_t part) const {
    return part % kParts ? part_end(first, part - 1) : s.begin[part / kParts];
  }

  // Returns the bit where a part's last symbol ends.
  DZ_HD uint32_t part_end(uint32_t first, uint32_t part) const {
    return first + part / kParts * Shape::SEGMENT + part_bits(s.parts[part]);
  }

  // Returns the sum of the output up to the end of a part of an exact segment.
  DZ_HD uint64_t sum_until(uint32_t part) const {
    const uint64_t before = part < kParts ? 0 : s.sums[part / kParts - 1];
    return before + sum_of(part_bytes(s.parts[part]), part_matches(s.parts[part]));
  }

  // Returns the sum of the output before a part of an exact segment.
  DZ_HD uint64_t sum_before(uint32_t part) const {
    if (part % kParts) return sum_until(part - 1);
    return part ? s.sums[part / kParts - 1] : 0;
  }

  // Returns whether pack_part() has all bytes of the segment of a part.
  DZ_HD bool is_exact(uint32_t part) const { return part_bytes(s.parts[part | (kParts - 1)]) < kMostBytes; }

  // Returns whether a batch that begins with part `done` may include the parts up to `part`, if it has room for this many
  // bytes. No part of a segment that isn't exact fits; and such a segment has more bytes than a batch, so that no part
  // after it fits either.
  DZ_HD bool fits(uint32_t part, uint32_t done, uint32_t room) const {
    if (!is_exact(done) || !is_exact(part)) return false;
    const uint64_t before = sum_before(done), after = sum_until(part);
    return sum_bytes(after) - sum_bytes(before) <= room && sum_matches(after) - sum_matches(before) <= Shape::MATCHES;
  }

  // Writes the output of parts `done` to `end` - 1, at most one per thread, as one batch. Returns false, with nothing
  // written, if a match reaches too far back.
  DZ_HD bool write_batch(uint32_t first, uint32_t done, uint32_t end) {
    const uint64_t before = sum_before(done), after = sum_until(end - 1);
    uint8_t* const to = out + produced;
    const uint32_t skew = skew_of(to), size = sum_bytes(after) - sum_bytes(before);
    const uint32_t n = sum_matches(after) - sum_matches(before);
    const bool refused = team.any([&](uint32_t t) {
      s.cells.close(skew, size, t);
      if (t >= end - done) return false;
      const uint32_t part = done + t;
      const uint64_t sum = sum_before(part);
      BatchSink sink = {s.cells.cell + skew, s.matches + (sum_matches(sum) - sum_matches(before)), produced,
                        sum_bytes(sum) - sum_bytes(before)};
      const SpanWords words = {s.words};
      BitReader bits(words, part_begin(first, part));
      return read_symbols(s.codes, words, bits, part_end(first, part), sink) == kRefused;
    });
    if (refused) return false;
    team.each([&](uint32_t t) {
      // All lanes of a warp run each round, because long matches need all of them.
      for (uint32_t group = t - t % kWarp; group < n; group += Shape::THREADS) {
        const uint32_t i = group + t % kWarp;
        const Task task = i < n ? load_match(s.cells.cell + skew, s.matches[i]) : Task{};
        const bool near = task.len <= kLong;
        if (task.len && near) s.cells.put_match(task, skew, to, 0, 1);
        by_warp(!near, task,
                [&](const Task& its, uint32_t lane, uint32_t lanes) { s.cells.put_match(its, skew, to, lane, lanes); });
      }
    });
    team.each([&](uint32_t t) { s.cells.write(to, skew, size, t, Shape::THREADS); });
    produced += size;
    return true;
  }

  // Decodes the symbols of a block up to its end.
  DZ_HD DecodeStatus symbols() {
    for (;;) {
      if (at > input.end) return kTooShort;
      const uint64_t origin = at & ~uint64_t(31);
      const uint32_t first = uint32_t(at - origin), stopped = find_segments(origin, first);
      const bool ended = stopped < Shape::THREADS && s.stop[stopped] == kEnd;
      const uint32_t segments = stopped + ended, parts = segments * kParts;
      measure_segments(first, segments);
      // If the block doesn't end with these segments, and they aren't the whole span, the next segment has an error.
      const bool next_is_wrong = !ended && segments < Shape::THREADS;
      for (uint32_t done = 0; done < parts || next_is_wrong;) {
        const uint64_t left = capacity - produced;
        const uint32_t room = left < Shape::WINDOW ? uint32_t(left) : Shape::WINDOW;
        const uint32_t n = team.count([&](uint32_t t) { return done + t < parts && fits(done + t, done, room); });
        if (n > 0 && write_batch(first, done, done + n)) {
          done += n;
          at = origin + part_end(first, done - 1);
          continue;
        }
        const bool is_wrong_segment = done == parts;
        // The wrong segment is one of the THREADS: only next_is_wrong keeps the loop running for it.
        // NOLINTNEXTLINE(clang-analyzer-security.ArrayBound)
        const uint32_t from = is_wrong_segment ? s.begin[segments] : part_begin(first, done);
        const uint32_t limit =
            is_wrong_segment ? first + (segments + 1) * Shape::SEGMENT : part_end(first, done + (n ? n - 1 : 0));
        Stop stop;
        const DecodeStatus status = serial(origin, from, limit, stop);
        if (status != kGood || stop == kEnd) return status;
        if (is_wrong_segment) break;
        done += n ? n : 1;
      }
      if (ended) return kGood;
    }
  }

  // Copies a stored block, section 3.2.4, from its length field on.
  DZ_HD DecodeStatus stored() {
    const uint64_t byte = (at + 7) / 8;
    if (8 * byte + 32 > input.end) return kTooShort;
    const uint8_t* const from = input.base + byte;
    const uint32_t n = from[0] | uint32_t(from[1]) << 8, check = from[2] | uint32_t(from[3]) << 8;
    if ((n ^ check) != 0xffff) return kCorrupt;
    if (n > input.end / 8 - byte - 4) return kTooShort;
    if (n > capacity - produced) return kTooLong;
    uint8_t* const to = out + produced;
#ifdef __CUDA_ARCH__
    copy_bytes(to, from + 4, n, threadIdx.x, Shape::THREADS);
    __syncthreads();
#else
    copy_bytes(to, from + 4, n, 0, 1);
#endif
    produced += n;
    at = 8 * (byte + 4 + n);
    return kGood;
  }

  // Decodes the whole stream, which must end with its last byte. `produced` is the number of bytes written, also after an
  // error. At kTooShort these may include bytes decoded from the zeros behind the input.
  DZ_HD DecodeStatus run() {
    for (bool last = false; !last;) {
      if (at > input.end) return kTooShort;
      const uint64_t origin = at & ~uint64_t(31);
      team.each([&](uint32_t t) { load_words(origin, Shape::HEADER_WORDS, t); });
      const SpanWords words = {s.words};
      BitReader bits(words, uint32_t(at - origin));
      last = bits.read(words, 1);
      const uint32_t type = bits.read(words, 2);
      at = origin + bits.position;
      if (type == 3) return kCorrupt;
      DecodeStatus status;
      if (type == 0) {
        status = stored();
      } else {
        if (type == 1) {
          fixed_codes(team, s.codes);
        } else {
          team.each([&](uint32_t t) {
            if (t == 0) s.codes.position = bits.position;
          });
          const bool good = read_codes(team, s.codes, s.symbols, s.sums, s.scratch, words);
          at = origin + s.codes.position;
          if (!good) return at > input.end ? kTooShort : kCorrupt;
        }
        status = symbols();
      }
      if (status != kGood) return status;
    }
    return (at + 7) / 8 == input.end / 8 ? kGood : kTooShort;
  }
};

template <class Shape>
DZ_HD DecodeStatus inflate(InflateState<Shape>& state, const uint8_t* in, uint64_t len, uint8_t* out, uint64_t capacity,
                           uint64_t& produced) {
  Inflater<Shape> inflater = {{}, state, {}, out, capacity, 0, 0};
  inflater.input.open(in, len);
  inflater.at = inflater.input.begin;
  const DecodeStatus status = inflater.run();
  produced = inflater.produced;
  return status;
}

}  // namespace dz
