// Decodes raw deflate streams (RFC 1951). Trusts nothing: whatever the bytes are, the decoder never writes outside its
// output, reads outside its input only bytes that share an aligned word with it, and ends with a status.
//
// Where a symbol begins is known only after the symbol before it was read. But a reader that starts at a wrong bit soon
// comes to the true beginning of a symbol, and is right from there on. So a span of bits is divided into equal
// segments, one per thread. All threads start at once. Then each thread whose start was wrong starts again where the
// segment before it ended, until no thread has to. Now it is known how much each segment decodes to. All threads read
// their segments once more and write: literals into a batch of output in shared memory (batch.cuh), matches into a
// list. Then all threads put the matches of the list into the batch.
//
// Only valid segments are decoded like this. A warp decodes the rest symbol by symbol: segments with an error, to find
// the precise status, and segments that decode to more than a batch.
#pragma once
#include "batch.cuh"
#include "inflate_codes.cuh"

namespace dz {

// Why reading symbols ended: kLimit: the limit was reached; kEnd: the block's end was read; kNoCode: the bits are no
// symbol; kRefused: the sink returned false.
enum Stop : uint8_t { kLimit, kEnd, kNoCode, kRefused };

// Reads one symbol, section 3.2.5, and hands it to the sink. Returns kLimit if another one may follow.
template <class Sink>
DZ_HD Stop read_symbol(const InflateCodes& codes, const DeflateWords& words, BitReader& bits, Sink& sink) {
  bits.refill(words);
  const uint32_t word = codes.literal.find(bits), value = bits.take(word);
  if (meaning(word) == kValueCode) return sink.literal(value) ? kLimit : kRefused;
  if (meaning(word) != kMatchCode) return meaning(word) == kEndCode ? kEnd : kNoCode;
  bits.refill(words);
  const uint32_t where = codes.distance.find(bits), distance = bits.take(where);
  if (meaning(where) == kNoCodeFound) return kNoCode;
  return sink.match(value, distance) ? kLimit : kRefused;
}

// Reads symbols up to bit `limit`, or until one ends the reading. The last symbol may reach beyond the limit. All lanes
// of a warp call this; those with `reads` false only come along.
//
// The lanes meet before each symbol. If they didn't, those that read a literal and those that read a match would part,
// and run one after another from there on.
template <class Sink>
DZ_HD Stop read_symbols(const InflateCodes& codes, const DeflateWords& words, BitReader& bits, uint32_t limit, Sink& sink,
                        bool reads) {
  Stop stop = kLimit;
  reads = reads && bits.position() < limit;
  while (warp_any(reads)) {
    if (reads) {
      stop = read_symbol(codes, words, bits, sink);
      reads = stop == kLimit && bits.position() < limit;
    }
  }
  return stop;
}

// A match of a batch is kept in its own first two cells, until cells with its bytes take their place.
DZ_HD void store_match(Cell* cells, uint32_t at, uint32_t length, uint32_t distance) {
  cells[at] = Cell(length);
  cells[at + 1] = Cell(distance - 1);
}

DZ_HD Task load_match(const Cell* cells, uint32_t at) {
  Task task = {};
  task.at = at;
  task.len = cells[at];
  task.offset = cells[at + 1] + 1u;
  return task;
}

// THREADS threads decode a stream together, each in segments of SEGMENT bits. A batch of output has at most WINDOW
// bytes and MATCHES matches.
template <uint32_t THREADS_, uint32_t SEGMENT_, uint32_t WINDOW_, uint32_t MATCHES_>
struct InflateShape {
  static constexpr uint32_t THREADS = THREADS_, SEGMENT = SEGMENT_, WINDOW = WINDOW_, MATCHES = MATCHES_;
};

// Memory for decoding one stream; in shared memory on the device.
template <class Shape>
struct InflateState {
  Cells<Shape::WINDOW> cells;
  uint16_t matches[Shape::MATCHES];  // where matches begin in the batch
  InflateCodes codes;
  // For each thread's segment: the bits where it begins and ends, why it ends (`stop`), and its bytes and matches
  // (sum_bytes, sum_matches), at last those of all segments up to its end.
  uint32_t begin[Shape::THREADS], end[Shape::THREADS];
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

// A segment's output in 64 bits: the number of bytes in the lower half, the number of matches in the upper.
DZ_HD uint32_t sum_bytes(uint64_t sum) { return uint32_t(sum); }
DZ_HD uint32_t sum_matches(uint64_t sum) { return uint32_t(sum >> 32); }

struct CountingSink {
  uint64_t sum;

  DZ_HD bool literal(uint32_t) {
    ++sum;
    return true;
  }

  DZ_HD bool match(uint32_t length, uint32_t) {
    sum += uint64_t(1) << 32 | length;
    return true;
  }
};

// Writes one segment's part of a batch. Refuses distances that reach before the stream's first byte.
struct BatchSink {
  Cell* cells;        // cells of the batch's bytes
  uint16_t* matches;  // place for the next match
  uint64_t produced;  // bytes before the batch
  uint32_t at;        // position of the next byte in the batch

  DZ_HD bool literal(uint32_t value) {
    cells[at++] = Cell(kValue | value);
    return true;
  }

  DZ_HD bool match(uint32_t length, uint32_t distance) {
    if (distance > produced + at) return false;
    *matches++ = uint16_t(at);
    store_match(cells, at, length, distance);
    at += length;
    return true;
  }
};

#ifdef __CUDA_ARCH__
constexpr uint32_t kSerialLanes = 32;
#else
constexpr uint32_t kSerialLanes = 1;
#endif

// Writes directly to the output. All lanes of a warp read the same symbols, and share the copying of matches.
struct SerialSink {
  uint8_t* out;
  uint64_t capacity, produced;
  DecodeStatus status;
  uint32_t lane;

  DZ_HD bool refuse(DecodeStatus why) {
    status = why;
    return false;
  }

  DZ_HD bool literal(uint32_t value) {
    if (produced >= capacity) return refuse(kTooLong);
    if (lane == 0) out[produced] = uint8_t(value);
    ++produced;
    return true;
  }

  DZ_HD bool match(uint32_t length, uint32_t distance) {
    if (distance > produced) return refuse(kCorrupt);
    if (length > capacity - produced) return refuse(kTooLong);
#ifdef __CUDA_ARCH__
    __syncwarp();  // the bytes that other lanes wrote are read next
#endif
    uint8_t* const to = out + produced;
    const uint8_t* const from = to - distance;
    if (distance >= length) {
      for (uint32_t i = lane; i < length; i += kSerialLanes) to[i] = from[i];
    } else {
      for (uint32_t i = lane; i < length; i += kSerialLanes) to[i] = from[i % distance];
    }
    produced += length;
    return true;
  }
};

// Reads symbols in a function of its own, which keeps the kernels' main path small.
DZ_HD_APART Stop read_serially(const InflateCodes& codes, const DeflateInput& input, uint64_t origin, uint32_t from,
                               uint32_t limit, SerialSink& sink, uint32_t& end) {
  const DeflateWords words(input, origin);
  BitReader bits;
  bits.open(words, from);
  const Stop stop = read_symbols(codes, words, bits, limit, sink, true);
  end = bits.position();
  return stop;
}

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

  // Reads segment t from bit s.begin[t] on, if `reads`. Stores where it ends, why, and how much it decodes to. All lanes
  // of a warp call this.
  DZ_HD void read_segment(uint64_t origin, uint32_t first, uint32_t t, bool reads) {
    const uint32_t limit = first + (t + 1) * Shape::SEGMENT, begin = s.begin[t];
    const bool inside = reads && origin + begin < input.end;
    const DeflateWords words(input, origin);
    CountingSink sink = {0};
    BitReader bits;
    bits.open(words, begin);
    const Stop stop = read_symbols(s.codes, words, bits, limit, sink, inside);
    if (!reads) return;
    if (!inside) {
      s.end[t] = begin;
      s.stop[t] = kNoCode;
      s.sums[t] = 0;
      return;
    }
    s.end[t] = bits.position();
    s.stop[t] = origin + bits.position() > input.end ? kNoCode : stop;
    s.sums[t] = sink.sum;
  }

  // Finds where the segments of the span from bit `first` on begin and end. Returns the index of the first segment that
  // ends before its limit, or THREADS. What was found is right up to and including that segment.
  DZ_HD uint32_t find_segments(uint64_t origin, uint32_t first) {
    team.each([&](uint32_t t) {
      s.begin[t] = first + t * Shape::SEGMENT;
      s.again[t] = true;
      if (t == 0) s.first_stop[0] = Shape::THREADS;
    });
    for (uint32_t round = 0;; round ^= 1) {
      team.each([&](uint32_t t) {
        read_segment(origin, first, t, s.again[t]);
        if (s.stop[t] != kLimit) lower_to(&s.first_stop[round], t);
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

  // Writes the output of segments `done` to `end` - 1 as one batch. Returns false, with nothing written, if a match
  // reaches too far back.
  DZ_HD bool write_batch(uint64_t origin, uint32_t first, uint32_t done, uint32_t end) {
    const uint64_t before = done ? s.sums[done - 1] : 0, after = s.sums[end - 1];
    uint8_t* const to = out + produced;
    const uint32_t skew = skew_of(to), size = sum_bytes(after) - sum_bytes(before);
    const uint32_t n = sum_matches(after) - sum_matches(before);
    const bool refused = team.any([&](uint32_t t) {
      s.cells.close(skew, size, t);
      const bool writes = t >= done && t < end;
      const uint64_t sum = t && writes ? s.sums[t - 1] : before;
      BatchSink sink = {s.cells.cell + skew, s.matches + (sum_matches(sum) - sum_matches(before)), produced,
                        sum_bytes(sum) - sum_bytes(before)};
      const DeflateWords words(input, origin);
      BitReader bits;
      bits.open(words, s.begin[t]);
      return read_symbols(s.codes, words, bits, first + (t + 1) * Shape::SEGMENT, sink, writes) == kRefused;
    });
    if (refused) return false;
    team.each([&](uint32_t t) {
      // All lanes of a warp run each round, because long matches need all of them.
      for (uint32_t group = t - t % kWarp; group < n; group += Shape::THREADS) {
        const uint32_t i = group + t % kWarp;
        const Task task = i < n ? load_match(s.cells.cell + skew, s.matches[i]) : Task{};
        const bool near = task.len <= kLong;
        if (task.len && near) s.cells.put_match(task, skew, to, 0, 1);
        by_warp(!near, task, [&](const Task& its, uint32_t lane, uint32_t lanes) { s.cells.put_match(its, skew, to, lane, lanes); });
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
      const uint32_t segments = stopped + ended;
      team.sum_up(s.sums, s.scratch);
      // If the block doesn't end with these segments, and they aren't the whole span, the next segment has an error.
      const bool wrong = !ended && segments < Shape::THREADS;
      for (uint32_t done = 0; done < segments || wrong;) {
        const uint64_t before = done ? s.sums[done - 1] : 0;
        const uint64_t left = capacity - produced;
        const uint32_t room = left < Shape::WINDOW ? uint32_t(left) : Shape::WINDOW;
        const uint32_t n = team.count([&](uint32_t t) {
          return t >= done && t < segments && sum_bytes(s.sums[t]) - sum_bytes(before) <= room &&
                 sum_matches(s.sums[t]) - sum_matches(before) <= Shape::MATCHES;
        });
        if (n > 0 && write_batch(origin, first, done, done + n)) {
          done += n;
          at = origin + s.end[done - 1];
          continue;
        }
        const uint32_t to = done + (n ? n : 1);
        const uint32_t limit = done < segments ? s.end[to - 1] : first + to * Shape::SEGMENT;
        Stop stop;
        const DecodeStatus status = serial(origin, s.begin[done], limit, stop);
        if (status != kGood || stop == kEnd) return status;
        if (done == segments) break;
        done = to;
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

  // Decodes the whole stream, which must end with its last byte. `produced` is the number of bytes written, also after
  // an error.
  DZ_HD DecodeStatus run() {
    for (bool last = false; !last;) {
      if (at > input.end) return kTooShort;
      const uint64_t origin = at & ~uint64_t(31);
      BitReader bits;
      bits.open(DeflateWords(input, origin), uint32_t(at - origin));
      last = bits.read(1);
      const uint32_t type = bits.read(2);
      at = origin + bits.position();
      if (type == 3) return kCorrupt;
      DecodeStatus status;
      if (type == 0) {
        status = stored();
      } else {
        if (type == 1) {
          fixed_codes(team, s.codes);
        } else {
          team.each([&](uint32_t t) {
            if (t == 0) s.codes.at = at;
          });
          const bool good = read_codes(team, s.codes, input);
          at = s.codes.at;
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
DZ_HD DecodeStatus inflate(InflateState<Shape>& state, const uint8_t* in, uint64_t len, uint8_t* out,
                           uint64_t capacity, uint64_t& produced) {
  Inflater<Shape> inflater = {{}, state, {}, out, capacity, 0, 0};
  inflater.input.open(in, len);
  inflater.at = inflater.input.begin;
  const DecodeStatus status = inflater.run();
  produced = inflater.produced;
  return status;
}

}  // namespace dz
