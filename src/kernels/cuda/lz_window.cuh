// Input and output of LZ77 decoders. A warp reads a stream through a small window, and writes its output through a
// ring. Matches are copied from the ring.
//
// Window and ring are in shared memory, whose latency is a tenth of global memory's. This decides the speed, because
// decoding a stream is a chain of many short, dependent steps. Input is loaded in rounds of 1,024 bytes; the next round
// is always on its way. Output leaves the ring for global memory in rounds of 512 bytes. Matches that reach back beyond
// the ring are read from the output in global memory.
//
// Nothing is written outside the output. Outside the input, only bytes that share an aligned word of four bytes with it
// are read. Callers check every length and offset before they pass it.
#pragma once
#include "warp.cuh"

namespace dz {

constexpr uint32_t kRound = 512;          // bytes that a warp writes at once: 16 per lane
constexpr uint32_t kAhead = 2 * kRound;   // bytes that a warp loads at once
constexpr uint32_t kInput = 4 * kAhead;   // bytes of the input's window
constexpr uint64_t kLzMost = 0x7fffffff;  // most bytes of a stream, encoded or decoded, so that positions fit 32 bits

// Positions in input and output count from the last multiple of 16 at or before the first byte. All lanes have the same
// values, except `lane` and `ahead`.
template <uint32_t RING>
struct LzWindow {
  static_assert((RING & (RING - 1)) == 0 && RING >= 8 * kRound, "rounds that wait to leave, and a batch, fit the ring");
  static constexpr uint32_t kBytes = kInput + RING;     // the window, then the ring
  static constexpr uint32_t kNear = RING - 2 * kRound;  // greatest match distance in the ring, for every kind of step

  uint8_t* buffer;
  uint32_t lane;

  const uint8_t* in;
  uint32_t in_begin, in_end;
  uint32_t pos;      // position of the next input byte
  uint32_t loaded;   // the window holds the kInput bytes before this position
  Bytes16 ahead[2];  // this lane's part of the next round of input, from `loaded` on

  uint8_t* out;
  uint32_t out_begin, out_end;
  uint32_t at;       // position of the next output byte
  uint32_t flushed;  // output before this position was copied from the ring to `out`

  // `memory` has kBytes bytes, aligned to 16. Loads nothing: call seek(in_begin) before reading input.
  DZ_HD void open(uint8_t* memory, const uint8_t* from, uint32_t len, uint8_t* to, uint32_t capacity,
                  uint32_t my_lane) {
    buffer = memory;
    lane = my_lane;
    in_begin = uint32_t(reinterpret_cast<uintptr_t>(from) & 15);
    in = from - in_begin;
    in_end = in_begin + len;
    out_begin = uint32_t(reinterpret_cast<uintptr_t>(to) & 15);
    out = to - out_begin;
    out_end = out_begin + capacity;
    at = flushed = out_begin;
    pos = loaded = in_begin;
  }

  DZ_HD uint32_t left() const { return in_end - pos; }
  DZ_HD uint32_t room() const { return out_end - at; }
  DZ_HD uint32_t produced() const { return at - out_begin; }

  // Returns this lane's 16 bytes of the 512 at `from`, with zeros for bytes outside the input.
  DZ_HD Bytes16 load_part(uint32_t from) const {
    const uint32_t first = from + 16 * lane;
    if (first >= in_begin && first < in_end && in_end - first >= 16) {
      return *reinterpret_cast<const Bytes16*>(in + first);
    }
    Bytes16 value = {{0, 0, 0, 0}};
    if (first >= in_end) return value;
    DZ_UNROLL_BY(4)
    for (uint32_t k = 0; k < 4; ++k) {
      DZ_UNROLL_BY(1)
      for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t byte = first + 4 * k + i;
        if (byte >= in_begin && byte < in_end) value.word[k] |= uint32_t(in[byte]) << (8 * i);
      }
    }
    return value;
  }

  DZ_HD void load_ahead() {
    ahead[0] = load_part(loaded);
    ahead[1] = load_part(loaded + kRound);
  }

  DZ_HD void seek(uint32_t to) {
    pos = to;
    loaded = to & ~(kAhead - 1);
    load_ahead();
    refill();
  }

  // Fills the window, so that it holds more than kAhead bytes from `pos` on. Up to 2 * kAhead bytes before `pos` stay
  // in it.
  DZ_HD void refill() {
    while (loaded - pos <= kAhead || loaded <= pos) {
      lanes_sync();
      *reinterpret_cast<Bytes16*>(buffer + (loaded + 16 * lane) % kInput) = ahead[0];
      *reinterpret_cast<Bytes16*>(buffer + (loaded + kRound + 16 * lane) % kInput) = ahead[1];
      loaded += kAhead;
      load_ahead();
      lanes_sync();
    }
  }

  // Returns the input byte at `from`, which must be in the window.
  DZ_HD uint32_t input(uint32_t from) const { return buffer[from % kInput]; }

  // Returns four bytes of the window from `from` on.
  DZ_HD uint32_t window_bytes(uint32_t from) const {
    constexpr uint32_t kWord = kInput - 4;
    return joined(buffer + (from & kWord), buffer + ((from + 4) & kWord), from & 3);
  }

  // Takes the byte at `pos`, and keeps the window filled.
  DZ_HD uint32_t take() {
    const uint32_t value = input(pos++);
    if (loaded - pos <= kAhead) refill();
    return value;
  }

  DZ_HD uint8_t* ring(uint32_t position) const { return buffer + kInput + position % RING; }

  // Copies the bytes from `from` to `limit` from the ring to the output. `warps` warps share the work; this one is
  // `warp`.
  DZ_HD void flush(uint32_t from, uint32_t limit, uint32_t warp = 0, uint32_t warps = 1) const {
    for (uint32_t cell = (from & ~15u) + 16 * (kWarp * warp + lane); cell < limit; cell += 16 * kWarp * warps) {
      const uint32_t first = cell < from ? from : cell;
      if (first == cell && limit - cell >= 16) {
        *reinterpret_cast<Bytes16*>(out + cell) = *reinterpret_cast<const Bytes16*>(ring(cell));
      } else {
        for (uint32_t i = first; i < cell + 16 && i < limit; ++i) out[i] = *ring(i);
      }
    }
  }

  // Returns the position up to which whole rounds of output can leave the ring, if the output before `to` is complete.
  DZ_HD uint32_t settled(uint32_t to) const {
    const uint32_t whole = to & ~(kRound - 1);
    return whole < out_begin ? out_begin : whole;
  }

  // Copies whole rounds of finished output from the ring to memory. After it, all lanes see what was written before, in
  // the ring and in the output.
  DZ_HD void settle() {
    lanes_sync();
    const uint32_t whole = settled(at);
    if (whole != flushed) {
      flush(flushed, whole);
      flushed = whole;
      lanes_sync();
    }
  }

  // Copies the rest of the ring to the output.
  DZ_HD void finish() {
    lanes_sync();
    flush(flushed, at);
    flushed = at;
  }

  // Returns four bytes of output from `from` on: from the ring if `near`, else from memory.
  DZ_HD uint32_t output_word(uint32_t from, bool near) const {
    if (!near) {
      const uint8_t* bytes = out + from;
      return bytes[0] | uint32_t(bytes[1]) << 8 | uint32_t(bytes[2]) << 16 | uint32_t(bytes[3]) << 24;
    }
    return joined(ring(from & ~3u), ring((from & ~3u) + 4), from & 3);
  }

  // Returns four bytes of the input from `from` on, from memory.
  DZ_HD uint32_t input_word(uint32_t from) const {
    const uint8_t* low = in + (from & ~3u);
    return joined(low, from & 3 ? low + 4 : low, from & 3);
  }

  // Returns four bytes of two aligned words, from byte `skip` (0 to 3) on.
  DZ_HD static uint32_t joined(const uint8_t* low, const uint8_t* high, uint32_t skip) {
    const uint32_t a = *reinterpret_cast<const uint32_t*>(low), b = *reinterpret_cast<const uint32_t*>(high);
    return shift_out(b, a, skip * 8);
  }

  // Copies n literals from the input to the output. n is at most left() and room(). Output is settled before and after
  // it.
  DZ_HD void copy_literals(uint32_t n) {
    while (n >= 2 * kRound) {
      // A long copy doesn't go through the window. First copy up to an aligned word of the output. Then copy eight
      // words per lane at a time, all of them in flight at once.
      const uint32_t skew = (0 - at) & 3;
      if (lane < skew) *ring(at + lane) = in[pos + lane];
      advance(skew);
      n -= skew;
      while (n >= 2 * kRound) {
        uint32_t words[8];
        DZ_UNROLL_BY(8)
        for (uint32_t k = 0; k < 8; ++k) words[k] = input_word(pos + 4 * (lane + kWarp * k));
        DZ_UNROLL_BY(8)
        for (uint32_t k = 0; k < 8; ++k) *reinterpret_cast<uint32_t*>(ring(at + 4 * (lane + kWarp * k))) = words[k];
        advance(2 * kRound);
        settle();
        n -= 2 * kRound;
      }
      seek(pos);
    }
    while (n > 0) {
      refill();
      const uint32_t step = n < kWarp ? n : kWarp;
      if (lane < step) *ring(at + lane) = uint8_t(input(pos + lane));
      advance(step);
      n -= step;
      settle();
    }
    refill();
  }

  DZ_HD void advance(uint32_t n) {
    pos += n;
    at += n;
  }

  // Copies a match of n bytes. `offset` is from 1 to produced(), n at most room(). Output is settled before and after
  // it.
  DZ_HD void copy_match(uint32_t offset, uint32_t n) {
    if (offset >= n && n <= kRound) {
      // The match doesn't overlap its source, which is complete.
      const bool near = offset <= kNear;
      for (uint32_t i = lane; i < n; i += kWarp) *ring(at + i) = near ? *ring(at - offset + i) : out[at - offset + i];
      at += n;
      settle();
      return;
    }
    uint32_t written = 0;
    // Distance to copy from, a multiple of `offset`: the output repeats itself, and a longer period allows longer
    // steps.
    uint32_t period = offset;
    while (n > 0) {
      if (period < kRound && written >= period) {
        const uint32_t whole = (offset + written) / offset * offset;
        period = whole <= kNear ? whole : period;
      }
      const bool near = period <= kNear;
      uint32_t step;
      if (n >= kRound && period >= kRound && at % 4 == 0) {
        uint32_t words[4];
        DZ_UNROLL_BY(4)
        for (uint32_t k = 0; k < 4; ++k) words[k] = output_word(at - period + 4 * (lane + kWarp * k), near);
        lanes_sync();
        DZ_UNROLL_BY(4)
        for (uint32_t k = 0; k < 4; ++k) *reinterpret_cast<uint32_t*>(ring(at + 4 * (lane + kWarp * k))) = words[k];
        step = kRound;
      } else if (n >= 4 * kWarp && period >= 4 * kWarp && at % 4 == 0) {
        const uint32_t word = output_word(at - period + 4 * lane, near);
        lanes_sync();
        *reinterpret_cast<uint32_t*>(ring(at + 4 * lane)) = word;
        step = 4 * kWarp;
      } else {
        // Ends at an aligned word, or where the match ends.
        step = kWarp - at % 4;
        step = n < step ? n : step;
        const uint32_t from = at - period + (lane < period ? lane : lane % period);
        const uint32_t byte = lane >= step ? 0 : near ? *ring(from) : out[from];
        lanes_sync();
        if (lane < step) *ring(at + lane) = uint8_t(byte);
      }
      at += step;
      written += step;
      n -= step;
      settle();
    }
  }
};

}  // namespace dz
