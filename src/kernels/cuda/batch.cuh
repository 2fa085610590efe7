// A batch of output, which many threads put together in shared memory at once. The kernels that copy matches use it.
//
// Each byte of the batch has a cell. The cell holds the byte's value (for literals, and for matches from before the
// batch), or the index of an earlier cell with the same value (for matches from within the batch). All cells are
// written without waiting for each other. Then each thread follows its cells to their values, and writes back what it
// finds on the way. So with each step of all threads, cells point twice as far back, and chains of any length take few
// steps.
#pragma once
#include "team.cuh"
#include "warp.cuh"

namespace dz {

// Copies of more bytes than this are made by all lanes of a warp.
constexpr uint32_t kLong = 32;

// The work of one thread in a batch: literals, and the match after them.
struct Task {
  uint32_t literals_from, literals_len;
  uint32_t at;      // where the match begins in the batch
  uint32_t len;     // bytes of the match; 0: no match
  uint32_t offset;  // distance from the match back to its source
};

// ---- copies outside of a batch ----

// Returns n bytes (1 to 4) from any address as a little-endian number. Reads only aligned words that hold some of these
// bytes. The bytes above them mean nothing.
DZ_HD uint32_t load4(const uint8_t* from, uint32_t n) {
#ifdef __CUDA_ARCH__
  const uint32_t skew = uint32_t(reinterpret_cast<uintptr_t>(from) & 3);
  const uint32_t* word = reinterpret_cast<const uint32_t*>(from - skew);
  const uint32_t low = *word;
  return __funnelshift_r(low, skew + n > 4 ? word[1] : low, skew * 8);
#else
  uint32_t value = 0;
  for (uint32_t i = 0; i < n; ++i) value |= uint32_t(from[i]) << (8 * i);
  return value;
#endif
}

// Copies n bytes between places that don't overlap, by `lanes` threads together.
DZ_HD void copy_apart(uint8_t* to, const uint8_t* from, uint32_t n, uint32_t lane, uint32_t lanes) {
  if (n < 16) {
    for (uint32_t i = lane; i < n; i += lanes) to[i] = from[i];
    return;
  }
  const uint32_t head = uint32_t(-reinterpret_cast<uintptr_t>(to) & 3), words = (n - head) / 4;
  for (uint32_t i = lane; i < head; i += lanes) to[i] = from[i];
  for (uint32_t i = lane; i < words; i += lanes) {
    *reinterpret_cast<uint32_t*>(to + head + 4 * i) = load4(from + head + 4 * i, 4);
  }
  for (uint32_t i = head + words * 4 + lane; i < n; i += lanes) to[i] = from[i];
}

DZ_HD void fill(uint8_t* to, uint8_t value, uint32_t n, uint32_t lane, uint32_t lanes) {
  const uint32_t head = uint32_t(-reinterpret_cast<uintptr_t>(to) & 15);
  if (n < 32) {
    for (uint32_t i = lane; i < n; i += lanes) to[i] = value;
    return;
  }
  const uint32_t word = value * 0x01010101u, wide = (n - head) / 16;
  for (uint32_t i = lane; i < head; i += lanes) to[i] = value;
  for (uint32_t i = lane; i < wide; i += lanes) {
#ifdef __CUDA_ARCH__
    *reinterpret_cast<uint4*>(to + head + 16 * i) = make_uint4(word, word, word, word);
#else
    for (uint32_t k = 0; k < 4; ++k) *reinterpret_cast<uint32_t*>(to + head + 16 * i + 4 * k) = word;
#endif
  }
  for (uint32_t i = head + wide * 16 + lane; i < n; i += lanes) to[i] = value;
}

// Copies a match, which may overlap itself. The source bytes before `to` must be complete.
DZ_HD void copy_match(uint8_t* to, uint32_t offset, uint32_t n, uint32_t lane, uint32_t lanes) {
  const uint8_t* from = to - offset;
  if (offset >= n) {
    copy_apart(to, from, n, lane, lanes);
  } else if (offset == 1) {
    fill(to, *from, n, lane, lanes);
  } else {
    for (uint32_t i = lane; i < n; i += lanes) to[i] = from[i % offset];
  }
}

// ---- cells ----

// Set in a cell that holds its byte's value, in the lowest eight bits. Other cells hold an index below their own.
constexpr uint32_t kValue = 0x8000;

// Cells are written one by one and read four at a time, so their types may alias.
#if defined(__GNUC__) || defined(__CUDACC__)
typedef uint16_t __attribute__((may_alias)) Cell;
typedef uint32_t __attribute__((may_alias)) TwoCells;
#else
#error "a type that may alias others is needed"
#endif

// Returns the two cells with the values of bytes 0 and 1 of a word; high_cells() those of bytes 2 and 3.
DZ_HD uint32_t low_cells(uint32_t word) {
#ifdef __CUDA_ARCH__
  return __byte_perm(word, kValue >> 8, 0x4140);
#else
  return (word & 0xff) | (word & 0xff00) << 8 | kValue | kValue << 16;
#endif
}

DZ_HD uint32_t high_cells(uint32_t word) {
#ifdef __CUDA_ARCH__
  return __byte_perm(word, kValue >> 8, 0x4342);
#else
  return low_cells(word >> 16);
#endif
}

// The cells of a batch of up to WINDOW bytes of output. The cells of the bytes begin at index `skew`, the output's
// address modulo four. So four cells from a multiple of four on belong to an aligned word of the output.
template <uint32_t WINDOW>
struct Cells {
  static_assert(WINDOW + 4 <= kValue, "an index has 15 bits");
  alignas(8) Cell cell[WINDOW + 8];

  // Writes cells with the values of n bytes, by one thread, eight at a time.
  DZ_HD void put_few(uint32_t at, const uint8_t* from, uint32_t n) {
#ifdef __CUDA_ARCH__
    const uint32_t byte = uint32_t(reinterpret_cast<uintptr_t>(from) & 3), shift = byte * 8;
    const uint32_t* words = reinterpret_cast<const uint32_t*>(from - byte);
#pragma unroll 1
    for (uint32_t done = 0; done < n; done += 8, words += 2) {
      const uint32_t some = n - done;
      // Reads only words that hold some of the bytes.
      const uint32_t w0 = words[0], w1 = byte + some > 4 ? words[1] : 0, w2 = byte + some > 8 ? words[2] : 0;
      const uint32_t low = __funnelshift_r(w0, w1, shift), high = __funnelshift_r(w1, w2, shift);
      const uint32_t two[4] = {low_cells(low), high_cells(low), low_cells(high), high_cells(high)};
      Cell* const here = cell + at + done;
#pragma unroll
      for (uint32_t i = 0; i < 8; ++i) {
        if (some > i) here[i] = Cell(i % 2 ? two[i / 2] >> 16 : two[i / 2]);
      }
    }
#else
    for (uint32_t i = 0; i < n; ++i) cell[at + i] = Cell(kValue | from[i]);
#endif
  }

  // Writes n cells from `at` on that point to the cells from `from` on, by one thread.
  DZ_HD void point_few(uint32_t at, uint32_t from, uint32_t n) {
    uint32_t i = 0;
    if (n && at % 2) cell[at + i++] = Cell(from);
    uint32_t two = (from + i) | (from + i + 1) << 16;
#ifdef __CUDACC__
#pragma unroll 1
#endif
    for (; i + 2 <= n; i += 2, two += 0x00020002) *reinterpret_cast<TwoCells*>(cell + at + i) = two;
    if (i < n) cell[at + i] = Cell(two);
  }

  // Writes n cells from `at` on, by `lanes` threads, four at a time: one(i) returns cell i, and four(i, low, high)
  // gives the four cells from i on in two words.
  template <class One, class Four>
  DZ_HD void put_many(uint32_t at, uint32_t n, uint32_t lane, uint32_t lanes, One one, Four four) {
    const uint32_t to_four = -at & 3, head = to_four < n ? to_four : n, fours = (n - head) / 4;
    for (uint32_t i = lane; i < head; i += lanes) cell[at + i] = one(i);
    for (uint32_t i = lane; i < fours; i += lanes) {
      uint32_t low, high;
      four(head + 4 * i, low, high);
      TwoCells* const to = reinterpret_cast<TwoCells*>(cell + at + head + 4 * i);
      to[0] = low;
      to[1] = high;
    }
    for (uint32_t i = head + 4 * fours + lane; i < n; i += lanes) cell[at + i] = one(i);
  }

  // Writes cells with the values of n bytes, by `lanes` threads.
  DZ_HD void put_many(uint32_t at, const uint8_t* from, uint32_t n, uint32_t lane, uint32_t lanes) {
    put_many(
        at, n, lane, lanes, [from](uint32_t i) { return Cell(kValue | from[i]); },
        [from](uint32_t i, uint32_t& low, uint32_t& high) {
          const uint32_t word = load4(from + i, 4);
          low = low_cells(word);
          high = high_cells(word);
        });
  }

  // Writes n cells with the same value, by `lanes` threads.
  DZ_HD void repeat_many(uint32_t at, uint8_t value, uint32_t n, uint32_t lane, uint32_t lanes) {
    const uint32_t two = low_cells(value * 0x0101u);
    put_many(
        at, n, lane, lanes, [two](uint32_t) { return Cell(two); },
        [two](uint32_t, uint32_t& low, uint32_t& high) { low = high = two; });
  }

  // Writes n cells from `at` on that point to the cells from `from` on, by `lanes` threads.
  DZ_HD void point_many(uint32_t at, uint32_t from, uint32_t n, uint32_t lane, uint32_t lanes) {
    put_many(
        at, n, lane, lanes, [from](uint32_t i) { return Cell(from + i); },
        [from](uint32_t i, uint32_t& low, uint32_t& high) {
          low = (from + i) | (from + i + 1) << 16;
          high = low + 0x00020002;
        });
  }

  // Writes the cells of a task's match. The batch begins at `output`; source bytes before it are read from there.
  DZ_HD void put_match(const Task& task, uint32_t skew, const uint8_t* output, uint32_t lane, uint32_t lanes) {
    const uint32_t reach = task.offset > task.at ? task.offset - task.at : 0,
                   before = reach < task.len ? reach : task.len;
    const uint32_t at = skew + task.at;
    const uint8_t* const from = output + task.at - task.offset;
    if (lanes == 1) {
      if (before) put_few(at, from, before);
      point_few(at + before, at + before - task.offset, task.len - before);
    } else {
      put_many(at, from, before, lane, lanes);
      point_many(at + before, at + before - task.offset, task.len - before, lane, lanes);
    }
  }

  // Returns the four bytes whose cells begin at `first`, a multiple of four. All cells must be written before.
  DZ_HD uint32_t follow(uint32_t first) {
    volatile TwoCells* const here = reinterpret_cast<TwoCells*>(cell + first);
    volatile Cell* const cells = cell;
    uint32_t low = here[0], high = here[1];
    while ((low & high & (kValue | kValue << 16)) != (kValue | kValue << 16)) {
      const uint32_t said[4] = {low & 0xffff, low >> 16, high & 0xffff, high >> 16};
      uint32_t more[4];
      for (uint32_t i = 0; i < 4; ++i) more[i] = said[i] & kValue ? said[i] : cells[said[i]];
      // Written back, so that other threads needn't follow the same cells.
      here[0] = low = more[0] | more[1] << 16;
      here[1] = high = more[2] | more[3] << 16;
    }
#ifdef __CUDA_ARCH__
    return __byte_perm(low, high, 0x6420);
#else
    return (low & 0xff) | (low >> 8 & 0xff00) | (high & 0xff) << 16 | (high & 0xff0000) << 8;
#endif
  }

  // Gives values to the cells before and after those of a batch of `size` bytes, because follow() reads them too.
  DZ_HD void close(uint32_t skew, uint32_t size, uint32_t thread) {
    if (thread < skew) cell[thread] = Cell(kValue);
    if (thread < 4) cell[skew + size + thread] = Cell(kValue);
  }

  // Writes the batch to the output, by `threads` threads. All cells must be written before.
  DZ_HD void write(uint8_t* output, uint32_t skew, uint32_t size, uint32_t thread, uint32_t threads) {
    uint8_t* const words = output - skew;
    for (uint32_t first = 4 * thread; first < skew + size; first += 4 * threads) {
      const uint32_t word = follow(first);
      if (first >= skew && first + 4 <= skew + size) {
        *reinterpret_cast<TwoCells*>(words + first) = word;
        continue;
      }
      for (uint32_t i = 0; i < 4; ++i) {
        if (first + i >= skew && first + i < skew + size) words[first + i] = uint8_t(word >> (8 * i));
      }
    }
  }
};

DZ_HD uint32_t skew_of(const uint8_t* output) { return uint32_t(reinterpret_cast<uintptr_t>(output) & 3); }

// Calls `work(task, lane, lanes)` with all lanes of the warp, for the task of each lane whose `mine` is true, one task
// after the other. On the host a thread does its own task alone.
template <class Work>
DZ_HD void by_warp(bool mine, const Task& task, Work work) {
#ifdef __CUDA_ARCH__
  for (uint32_t many = lanes_ballot(mine); many; many &= many - 1) {
    const uint32_t from = lowest_bit(many);
    const Task shared = {lanes_shuffle(task.literals_from, from), lanes_shuffle(task.literals_len, from),
                         lanes_shuffle(task.at, from), lanes_shuffle(task.len, from), lanes_shuffle(task.offset, from)};
    work(shared, threadIdx.x % kWarp, kWarp);
  }
#else
  if (mine) work(task, 0u, 1u);
#endif
}

}  // namespace dz
