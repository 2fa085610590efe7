// What the kernels that copy matches have in common: a batch of output is put together in shared memory by many threads
// at once, which mark the bytes that they have written; a match with a source in the batch waits until that is marked.
#pragma once
#include "warp.cuh"

namespace dz {

// A copy of more bytes than this is done by a warp together.
constexpr uint32_t kLong = 32;

// What one thread has to do in a batch.
struct Task {
  uint32_t literals_from, literals_len;
  uint32_t at;      // of the match, in the batch
  uint32_t len;     // of the match; 0: none, or done
  uint32_t offset;
};

// Four bytes at any address, of which n (1 to 4) may be looked at.
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

// Copies n bytes between places that don't overlap, by one thread: eight at a time, read before any is written.
DZ_HD void copy_few(uint8_t* to, const uint8_t* from, uint32_t n) {
#ifdef __CUDA_ARCH__
  const uint32_t skew = uint32_t(reinterpret_cast<uintptr_t>(from) & 3), shift = skew * 8;
  const uint32_t* words = reinterpret_cast<const uint32_t*>(from - skew);
#pragma unroll 1
  for (uint32_t done = 0; done < n; done += 8, words += 2) {
    const uint32_t some = n - done;
    // Only words that hold some of the bytes.
    const uint32_t w0 = words[0], w1 = skew + some > 4 ? words[1] : 0, w2 = skew + some > 8 ? words[2] : 0;
    const uint32_t low = __funnelshift_r(w0, w1, shift), high = __funnelshift_r(w1, w2, shift);
    uint8_t* const here = to + done;
    here[0] = uint8_t(low);
    if (some > 1) here[1] = uint8_t(low >> 8);
    if (some > 2) here[2] = uint8_t(low >> 16);
    if (some > 3) here[3] = uint8_t(low >> 24);
    if (some > 4) here[4] = uint8_t(high);
    if (some > 5) here[5] = uint8_t(high >> 8);
    if (some > 6) here[6] = uint8_t(high >> 16);
    if (some > 7) here[7] = uint8_t(high >> 24);
  }
#else
  for (uint32_t i = 0; i < n; ++i) to[i] = from[i];
#endif
}

// Copies between places that don't overlap; `lanes` threads do it together.
DZ_HD void copy_apart(uint8_t* to, const uint8_t* from, uint32_t n, uint32_t lane, uint32_t lanes) {
  const uint32_t head = uint32_t(-reinterpret_cast<uintptr_t>(to) & 3);
  if (n < 16) {
    for (uint32_t i = lane; i < n; i += lanes) to[i] = from[i];
    return;
  }
  const uint32_t words = (n - head) / 4, tail = head + words * 4;
  if (lane < head) to[lane] = from[lane];
#ifndef __CUDA_ARCH__
  for (uint32_t i = 1; i < head; ++i) to[i] = from[i];
#endif
  for (uint32_t i = lane; i < words; i += lanes) {
    *reinterpret_cast<uint32_t*>(to + head + 4 * i) = load4(from + head + 4 * i, 4);
  }
  for (uint32_t i = tail + lane; i < n; i += lanes) to[i] = from[i];
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

// A match that may overlap itself, all of whose source before `to` is written.
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

// Bytes of a match's source that are not the match itself.
DZ_HD uint32_t source_len(const Task& task) { return task.offset < task.len ? task.offset : task.len; }

// Bits of a run of bytes, in two words: at most 33 bytes.
struct Bits {
  uint32_t word, low, high;
};

DZ_HD Bits bits_of(uint32_t at, uint32_t n) {
  const uint64_t bits = ((uint64_t(1) << n) - 1) << (at % 32);
  return {at / 32, uint32_t(bits), uint32_t(bits >> 32)};
}

// Whether all of them are set.
DZ_HD bool marked(const uint32_t* written, const Bits& bits) {
  const volatile uint32_t* at = written + bits.word;
  return ((bits.low & ~at[0]) | (bits.high & ~at[1])) == 0;
}

DZ_HD void mark(uint32_t* written, const Bits& bits) {
  set_bits(written + bits.word, bits.low);
  set_bits(written + bits.word + 1, bits.high);
}

// The same for any number of bytes.
DZ_HD void mark_all(uint32_t* written, uint32_t at, uint32_t n) {
  for (uint32_t i = 0; i < n; i += 32) mark(written, bits_of(at + i, n - i < 32 ? n - i : 32));
}

DZ_HD bool all_marked(const uint32_t* written, uint32_t at, uint32_t n) {
  bool all = true;
  for (uint32_t i = 0; i < n; i += 32) all = all && marked(written, bits_of(at + i, n - i < 32 ? n - i : 32));
  return all;
}

// How far a task's match reaches before the batch: bytes of its source that come from the output, not from the stage.
DZ_HD uint32_t outside(const Task& task) {
  const uint32_t n = source_len(task);
  if (task.offset <= task.at) return 0;
  return task.offset - task.at < n ? task.offset - task.at : n;
}

// Whether the source is written, as far as it lies in the batch.
DZ_HD bool ready(const Task& task, const uint32_t* written) {
  const uint32_t out = outside(task);
  return all_marked(written, task.at + out - task.offset, source_len(task) - out);
}

// Copies a match into the batch that begins at `bytes` in shared memory and at `output` in the frame's output, by one
// thread.
DZ_HD void copy_task(const Task& task, uint8_t* bytes, const uint8_t* output) {
  const uint32_t out = outside(task), n = source_len(task);
  uint8_t* to = bytes + task.at;
  if (out) copy_few(to, output + task.at - task.offset, out);
  if (out < n) copy_few(to + out, to + out - task.offset, n - out);
  // The rest repeats what was just copied, twice as much each time.
  for (uint32_t done = n; done < task.len;) {
    const uint32_t more = done < task.len - done ? done : task.len - done;
    copy_few(to + done, to, more);
    done += more;
  }
}

// The same by the threads of a warp.
DZ_HD void copy_long_task(const Task& task, uint8_t* bytes, const uint8_t* output, uint32_t lane, uint32_t lanes) {
  const uint32_t out = outside(task), n = source_len(task);
  uint8_t* to = bytes + task.at;
  const uint8_t* far = output + task.at - task.offset;
  for (uint32_t i = lane; i < out; i += lanes) to[i] = far[i];
  for (uint32_t i = out + lane; i < n; i += lanes) to[i] = *(to + i - task.offset);
#ifdef __CUDA_ARCH__
  __syncwarp();
#endif
  for (uint32_t i = n + lane; i < task.len; i += lanes) to[i] = to[i % n];
}

#ifdef __CUDACC__
// Copies the matches of a warp's tasks, those that have one, as soon as their sources are written. Nobody waits for ever
// if no warp begins a task before it has finished all those of its own that come earlier in the batch: the first of all
// that are left waits for none.
__device__ __forceinline__ void finish_matches(Task& task, uint8_t* bytes, const uint8_t* output, uint32_t* written,
                                               uint32_t lane) {
  const bool is_long = task.len > kLong;
  const uint32_t out_len = task.len ? outside(task) : 0;
  const uint32_t inside = task.len ? source_len(task) - out_len : 0;
  const Bits needs = is_long || !inside ? Bits{0, 0, 0} : bits_of(task.at + out_len - task.offset, inside);
  while (__any_sync(0xffffffff, task.len != 0)) {
    bool go = task.len != 0 && marked(written, needs);
    if (go && is_long) go = ready(task, written);
    uint32_t many = __ballot_sync(0xffffffff, go);
    if (many == 0) continue;
    __threadfence_block();
    if (go && !is_long) {
      copy_task(task, bytes, output);
      __threadfence_block();
      mark(written, bits_of(task.at, task.len));
      task.len = 0;
    }
    for (many = __ballot_sync(0xffffffff, go && is_long); many; many &= many - 1) {
      const int from = __ffs(int(many)) - 1;
      Task shared = {};
      shared.at = __shfl_sync(0xffffffff, task.at, from);
      shared.len = __shfl_sync(0xffffffff, task.len, from);
      shared.offset = __shfl_sync(0xffffffff, task.offset, from);
      copy_long_task(shared, bytes, output, lane, 32);
      __threadfence_block();
      __syncwarp();
      if (lane == uint32_t(from)) {
        mark_all(written, task.at, task.len);
        task.len = 0;
      }
    }
  }
}
#endif

}  // namespace dz
