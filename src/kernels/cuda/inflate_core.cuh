// A decoder of raw deflate streams (RFC 1951) that trusts nothing: it never reads outside its input nor writes outside
// its output, whatever the bytes are, and ends with a status.
//
// A warp decodes one stream. Its lanes decode the same symbols in lockstep, each for itself, which costs no more than
// one lane doing it; they share the work where there is some to share: reading ahead, building tables, copying
// matches. On the host the same code runs with one lane, so that it can be tested without a GPU.
#pragma once
#include "layout.cuh"

namespace dz {

#ifdef __CUDA_ARCH__
constexpr uint32_t kLanes = 32;
#else
constexpr uint32_t kLanes = 1;
#endif

// Statuses, with the numbers that nvCOMP has for the same things.
enum InflateStatus : int32_t { kInflated = 0, kCorrupt = 12, kTooLong = 15, kTruncated = 20 };

constexpr uint32_t kFastBits = 10;
constexpr uint32_t kMaxBits = 15;
constexpr uint32_t kLiterals = 288, kDistances = 32;

DZ_HD void warp_sync() {
#ifdef __CUDA_ARCH__
  __syncwarp();
#endif
}

// The code of one alphabet. Codes of up to kFastBits bits are looked up at once; longer ones by their length.
template <uint32_t SYMBOLS>
struct Code {
  uint16_t fast[1 << kFastBits];  // symbol << 4 | length; 0 where there is no such code, or it is longer
  uint16_t sorted[SYMBOLS];       // symbols by length, then by value
  uint16_t count[kMaxBits + 1];   // symbols of each length
};

// Of one stream; in shared memory on the device.
struct InflateTables {
  Code<kLiterals> literal;
  Code<kDistances> distance;
  uint8_t lengths[kLiterals + kDistances];
  uint32_t valid;
};

// The compressed bytes as bits. Bits behind the end are zero; whether some were taken is asked at the end.
struct BitReader {
  const uint8_t* data;
  uint64_t len;
  uint32_t lane;
  uint64_t next_word;       // index of the word that is taken next, from the aligned word that holds data[0]
  uint64_t buffer;          // bits not taken yet
  uint32_t held;            // how many
  uint32_t skew;            // bytes in the first word before data[0]
  uint32_t current, ahead;  // each lane's word of this round of kLanes words, and of the next

  // Word `index`, with zeros for the bytes outside the data.
  DZ_HD uint32_t load(uint64_t index) const {
    const int64_t first = int64_t(index * 4) - int64_t(skew);
    if (first >= 0 && uint64_t(first) + 4 <= len) {
#ifdef __CUDA_ARCH__
      return *reinterpret_cast<const uint32_t*>(data + first);
#endif
    }
    uint32_t word = 0;
    for (int i = 0; i < 4; ++i) {
      const int64_t at = first + i;
      if (at >= 0 && uint64_t(at) < len) word |= uint32_t(data[at]) << (8 * i);
    }
    return word;
  }

  // Begins at the byte `at`.
  DZ_HD void seek(uint64_t at) {
    const uint64_t position = at + skew;
    const uint64_t round = position / 4 / kLanes * kLanes;
    current = load(round + lane);
    ahead = load(round + kLanes + lane);
    next_word = position / 4;
    buffer = 0;
    held = 0;
    refill();
    take(uint32_t(position % 4) * 8);
  }

  DZ_HD void open(const uint8_t* from, uint64_t bytes, uint32_t my_lane) {
    data = from;
    len = bytes;
    lane = my_lane;
#ifdef __CUDA_ARCH__
    skew = uint32_t(reinterpret_cast<uintptr_t>(from) & 3);
#else
    skew = 0;
#endif
    seek(0);
  }

  // Makes at least 32 bits ready.
  DZ_HD void refill() {
    if (held >= 32) return;
#ifdef __CUDA_ARCH__
    const uint32_t word = __shfl_sync(0xffffffff, current, int(next_word % kLanes));
#else
    const uint32_t word = current;
#endif
    buffer |= uint64_t(word) << held;
    held += 32;
    ++next_word;
    if (next_word % kLanes == 0) {
      current = ahead;
      ahead = load(next_word + kLanes + lane);
    }
  }

  DZ_HD uint32_t peek(uint32_t n) const { return uint32_t(buffer) & ((1u << n) - 1); }

  DZ_HD void take(uint32_t n) {
    buffer >>= n;
    held -= n;
  }

  // At most 16 bits.
  DZ_HD uint32_t read(uint32_t n) {
    refill();
    const uint32_t value = peek(n);
    take(n);
    return value;
  }

  // Bytes of which at least one bit was taken.
  DZ_HD uint64_t used() const { return (next_word * 32 - held + 7) / 8 - skew; }
};

// Builds the code for these lengths, section 3.2.2. Whether it is a complete one, or, where `lone` is set, has at most
// one symbol, of one bit (section 3.2.7 allows that for distances).
template <uint32_t SYMBOLS>
DZ_HD bool build(Code<SYMBOLS>& code, const uint8_t* lengths, uint32_t n, bool lone, uint32_t lane, uint32_t& valid) {
  for (uint32_t i = lane; i < (1u << kFastBits); i += kLanes) code.fast[i] = 0;
  warp_sync();
  if (lane == 0) {
    for (uint32_t l = 0; l <= kMaxBits; ++l) code.count[l] = 0;
    for (uint32_t s = 0; s < n; ++s) ++code.count[lengths[s]];
    code.count[0] = 0;
    int32_t unused = 1;
    uint32_t longest = 0, total = 0;
    bool good = true;
    uint32_t first[kMaxBits + 1];
    for (uint32_t l = 1; l <= kMaxBits; ++l) {
      first[l] = total;
      total += code.count[l];
      unused = 2 * unused - int32_t(code.count[l]);
      good = good && unused >= 0;
      if (code.count[l]) longest = l;
    }
    for (uint32_t s = 0; s < n; ++s) {
      if (lengths[s]) code.sorted[first[lengths[s]]++] = uint16_t(s);
    }
    valid = good && (unused == 0 || (lone && longest <= 1));
  }
  warp_sync();
  if (!valid) return false;
  // Codes of the same length follow each other; each is written for all the bits that may come after it.
  uint32_t next = 0, at = 0;
  for (uint32_t l = 1; l <= kFastBits; ++l) {
    next <<= 1;
    const uint32_t count = code.count[l];
    for (uint32_t i = lane; i < count; i += kLanes) {
      uint32_t reversed = 0;
      for (uint32_t b = 0; b < l; ++b) reversed |= ((next + i) >> b & 1) << (l - 1 - b);
      for (uint32_t f = reversed; f < (1u << kFastBits); f += 1u << l) {
        code.fast[f] = uint16_t(code.sorted[at + i] << 4 | l);
      }
    }
    next += count;
    at += count;
  }
  warp_sync();
  return true;
}

// Takes one symbol; kNoSymbol if there is no such code. At least kMaxBits bits are ready.
constexpr uint32_t kNoSymbol = 0xffff;

template <uint32_t SYMBOLS>
DZ_HD uint32_t symbol(const Code<SYMBOLS>& code, BitReader& bits) {
  const uint32_t entry = code.fast[bits.peek(kFastBits)];
  if (entry) {
    bits.take(entry & 15);
    return entry >> 4;
  }
  uint32_t value = 0, first = 0, at = 0;
  for (uint32_t l = 1; l <= kMaxBits; ++l) {
    value = value << 1 | (uint32_t(bits.buffer >> (l - 1)) & 1);
    first <<= 1;
    const uint32_t count = code.count[l];
    if (value < first + count) {
      bits.take(l);
      return code.sorted[at + value - first];
    }
    first += count;
    at += count;
  }
  return kNoSymbol;
}

// Order in which the lengths of the code for code lengths come, section 3.2.7.
DZ_HD uint32_t length_order(uint32_t i) {
  const char* order = "\x10\x11\x12\x00\x08\x07\x09\x06\x0a\x05\x0b\x04\x0c\x03\x0d\x02\x0e\x01\x0f";
  return uint32_t(order[i]);
}

// Reads a dynamic block's codes.
DZ_HD bool read_codes(InflateTables& t, BitReader& bits) {
  const uint32_t lane = bits.lane;
  const uint32_t literals = bits.read(5) + 257, distances = bits.read(5) + 1, given = bits.read(4) + 4;
  if (literals > 286 || distances > 30) return false;
  warp_sync();
  for (uint32_t i = lane; i < 19; i += kLanes) t.lengths[i] = 0;
  warp_sync();
  for (uint32_t i = 0; i < given; ++i) {
    const uint32_t length = bits.read(3);
    if (lane == 0) t.lengths[length_order(i)] = uint8_t(length);
  }
  warp_sync();
  // The code for code lengths takes the place of the distances' code, which comes later.
  if (!build(t.distance, t.lengths, 19, false, lane, t.valid)) return false;
  uint32_t n = 0, last = 0;
  while (n < literals + distances) {
    bits.refill();
    const uint32_t s = symbol(t.distance, bits);
    if (s == kNoSymbol) return false;
    uint32_t repeat = 1;
    if (s < 16) {
      last = s;
    } else if (s == 16) {
      if (n == 0) return false;
      repeat = 3 + bits.read(2);
    } else {
      last = 0;
      repeat = s == 17 ? 3 + bits.read(3) : 11 + bits.read(7);
    }
    if (n + repeat > literals + distances) return false;
    for (uint32_t i = lane; i < repeat; i += kLanes) t.lengths[n + i] = uint8_t(last);
    n += repeat;
  }
  warp_sync();
  if (t.lengths[256] == 0) return false;
  return build(t.literal, t.lengths, literals, true, lane, t.valid) &&
         build(t.distance, t.lengths + literals, distances, true, lane, t.valid);
}

// The codes of a fixed block, section 3.2.6.
DZ_HD bool fixed_codes(InflateTables& t, uint32_t lane) {
  warp_sync();
  for (uint32_t i = lane; i < kLiterals; i += kLanes) {
    t.lengths[i] = i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : 8;
  }
  for (uint32_t i = lane; i < kDistances; i += kLanes) t.lengths[kLiterals + i] = 5;
  warp_sync();
  return build(t.literal, t.lengths, kLiterals, false, lane, t.valid) &&
         build(t.distance, t.lengths + kLiterals, kDistances, false, lane, t.valid);
}

// The symbols of one block, section 3.2.5.
DZ_HD InflateStatus inflate_symbols(InflateTables& t, BitReader& bits, uint8_t* out, uint64_t capacity,
                                    uint64_t& produced) {
  const uint32_t lane = bits.lane;
  for (;;) {
    bits.refill();
    const uint32_t s = symbol(t.literal, bits);
    if (s < 256) {
      if (produced >= capacity) return kTooLong;
      if (lane == 0) out[produced] = uint8_t(s);
      ++produced;
      continue;
    }
    if (s == 256) return kInflated;
    if (s > 285) return kCorrupt;  // also kNoSymbol
    uint32_t length = s - 254;
    if (s >= 265) {
      const uint32_t extra = s == 285 ? 0 : (s - 261) / 4;
      length = s == 285 ? 258 : ((4 + (s - 265) % 4) << extra) + 3 + bits.read(extra);
    }
    bits.refill();
    const uint32_t d = symbol(t.distance, bits);
    if (d > 29) return kCorrupt;
    uint32_t distance = d + 1;
    if (d >= 4) {
      const uint32_t extra = d / 2 - 1;
      distance = ((2 + d % 2) << extra) + 1 + bits.read(extra);
    }
    if (distance > produced) return kCorrupt;
    if (length > capacity - produced) return kTooLong;
    warp_sync();  // what other lanes wrote is read now
    uint8_t* to = out + produced;
    const uint8_t* from = to - distance;
    if (distance >= length) {
      for (uint32_t i = lane; i < length; i += kLanes) to[i] = from[i];
    } else {
      for (uint32_t i = lane; i < length; i += kLanes) to[i] = from[i % distance];
    }
    produced += length;
  }
}

// Decodes a whole stream, which has to end with its last byte. `produced` is right in any case.
DZ_HD InflateStatus inflate(InflateTables& t, const uint8_t* in, uint64_t len, uint8_t* out, uint64_t capacity,
                            uint64_t& produced, uint32_t lane) {
  BitReader bits;
  bits.open(in, len, lane);
  produced = 0;
  for (bool last = false; !last;) {
    if (bits.used() > len) return kTruncated;
    last = bits.read(1);
    const uint32_t type = bits.read(2);
    if (type == 3) return kCorrupt;
    if (type == 0) {
      const uint64_t at = bits.used();
      if (at + 4 > len) return kTruncated;
      const uint32_t n = in[at] | uint32_t(in[at + 1]) << 8, check = in[at + 2] | uint32_t(in[at + 3]) << 8;
      if ((n ^ check) != 0xffff) return kCorrupt;
      if (n > len - at - 4) return kTruncated;
      if (n > capacity - produced) return kTooLong;
      for (uint32_t i = lane; i < n; i += kLanes) out[produced + i] = in[at + 4 + i];
      produced += n;
      bits.seek(at + 4 + n);
      continue;
    }
    if (!(type == 1 ? fixed_codes(t, lane) : read_codes(t, bits))) return bits.used() > len ? kTruncated : kCorrupt;
    const InflateStatus status = inflate_symbols(t, bits, out, capacity, produced);
    if (status != kInflated) return bits.used() > len ? kTruncated : status;
  }
  return bits.used() == len ? kInflated : kTruncated;
}

}  // namespace dz
