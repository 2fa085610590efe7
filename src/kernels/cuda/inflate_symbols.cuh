// Reads the symbols of a deflate block (RFC 1951, section 3.2.5), and says where they go.
#pragma once
#include "batch.cuh"
#include "inflate_codes.cuh"

namespace dz {

// Why reading symbols ended: kLimit: the limit was reached; kEnd: the block's end was read; kNoCode: the bits are no
// symbol, or lie behind the input; kRefused: the sink returned false.
enum Stop : uint8_t { kLimit, kEnd, kNoCode, kRefused };

DZ_HD Stop stop_after(Meaning last) { return last == kEndCode ? kEnd : last == kNoCodeFound ? kNoCode : kLimit; }

// Reads symbols up to bit `limit`, or until one ends the reading. The last symbol may reach beyond the limit. Each symbol
// goes to sink(length, value): the match with this length and the distance `value`; if the length is 0, the byte `value`.
// The sink returns false to refuse it.
//
// Each step reads one code: a literal, the length of a match, or its distance. It has no branches but for rare codes. So
// the lanes of a warp make the same steps together, whatever they read.
template <class Words, class Sink>
DZ_HD Stop read_symbols(const InflateCodes& codes, const Words& words, BitReader& bits, uint32_t limit, Sink& sink) {
  Meaning last = kValueCode;  // of the last code
  uint32_t length = 0;        // of a match whose distance comes next
  bool is_accepted = true;
  if (bits.position < limit) {
    bool goes_on;
    do {
      const uint32_t word = codes.find(bits.bits(), last == kMatchCode), value = value_in(word, bits.bits());
      bits.skip(words, total_bits(word));
      last = meaning(word);
      if (last == kValueCode) is_accepted = sink(length, value);
      length = last == kMatchCode ? value : 0;
      goes_on = is_accepted & ((last == kMatchCode) | ((last == kValueCode) & (bits.position < limit)));
    } while (goes_on);
  }
  return is_accepted ? stop_after(last) : kRefused;
}

// As read_symbols(), but only finds where and why the reading ends.
template <class Words>
DZ_HD Stop skip_symbols(const InflateCodes& codes, const Words& words, BitReader& bits, uint32_t limit) {
  Meaning last = kValueCode;
  if (bits.position < limit) {
    bool goes_on;
    do {
      const uint32_t word = codes.find(bits.bits(), last == kMatchCode);
      bits.skip(words, total_bits(word));
      last = meaning(word);
      goes_on = (last == kMatchCode) | ((last == kValueCode) & (bits.position < limit));
    } while (goes_on);
  }
  return stop_after(last);
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

// Counts the bytes and the matches.
struct CountingSink {
  uint32_t bytes, matches;

  DZ_HD bool operator()(uint32_t length, uint32_t) {
    bytes += length != 0 ? length : 1;
    matches += length != 0;
    return true;
  }
};

// Writes one part of a segment into a batch. Refuses distances that reach before the stream's first byte.
struct BatchSink {
  Cell* cells;        // cells of the batch's bytes
  uint16_t* matches;  // place for the next match
  uint64_t produced;  // bytes before the batch
  uint32_t at;        // position of the next byte in the batch

  DZ_HD bool operator()(uint32_t length, uint32_t value) {
    if (length != 0) {
      if (value > produced + at) return false;
      *matches++ = uint16_t(at);
      store_match(cells, at, length, value);
      at += length;
    } else {
      cells[at++] = Cell(kValue | value);
    }
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

  DZ_HD bool operator()(uint32_t length, uint32_t value) { return length != 0 ? match(length, value) : literal(value); }

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
  BitReader bits(words, from);
  const Stop stop = read_symbols(codes, words, bits, limit, sink);
  end = bits.position;
  return stop;
}

}  // namespace dz
