// dz_zstd_execute: writes the bytes of zstd frames from their decoded literals and sequences (RFC 8878, sections 3.1.1.4
// and 3.1.1.5), one block of threads for each frame.
//
// Where each sequence writes is known beforehand, so that THREADS of them go at once: a batch is put together in shared
// memory and then copied to the output. Literals, and matches that lie before the batch, are copied without waiting.
// A match with a source in the batch waits until these bytes are marked as written; the first such sequence of
// a batch never waits, so that all get done.
#pragma once
#include "zstd_layout.cuh"

namespace dz {
namespace zstd {

// A copy of more bytes than this is done by a warp together.
constexpr uint32_t kLong = 32;

// One batch, of at most WINDOW bytes of output.
template <uint32_t WINDOW>
struct Stage {
  alignas(16) uint8_t bytes[WINDOW + 16];
  uint32_t written[WINDOW / 32 + 1];  // a bit for each byte of the batch
  uint32_t literals, output;          // of the block, up to the batch's end
};

// Where a block's literals are.
struct Literals {
  const uint8_t* from;
  uint32_t run;  // nonzero: all are *from
};

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

DZ_HD void copy_literals(const Literals& literals, uint32_t from, uint8_t* to, uint32_t n, uint32_t lane,
                         uint32_t lanes) {
  if (literals.run) fill(to, *literals.from, n, lane, lanes);
  else copy_apart(to, literals.from + from, n, lane, lanes);
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

// Sets the bits of bytes [at, at + n).
DZ_HD void mark(uint32_t* written, uint32_t at, uint32_t n) {
  while (n) {
    const uint32_t bit = at % 32, here = n < 32 - bit ? n : 32 - bit;
    const uint32_t bits = (here == 32 ? ~0u : (1u << here) - 1) << bit;
#ifdef __CUDA_ARCH__
    atomicOr(written + at / 32, bits);
#else
    written[at / 32] |= bits;
#endif
    at += here;
    n -= here;
  }
}

// Whether the bits of bytes [at, at + n) are set.
DZ_HD bool marked(const uint32_t* written, uint32_t at, uint32_t n) {
  while (n) {
    const uint32_t bit = at % 32, here = n < 32 - bit ? n : 32 - bit;
    const uint32_t bits = (here == 32 ? ~0u : (1u << here) - 1) << bit;
    if ((*const_cast<const volatile uint32_t*>(written + at / 32) & bits) != bits) return false;
    at += here;
    n -= here;
  }
  return true;
}

// How far a task's match reaches before the batch: bytes of its source that come from the output, not from the stage.
DZ_HD uint32_t outside(const Task& task) {
  const uint32_t n = source_len(task);
  if (task.offset <= task.at) return 0;
  return task.offset - task.at < n ? task.offset - task.at : n;
}

// Whether the source is written, as far as it lies in the batch. `stage` is where the batch begins.
DZ_HD bool ready(const Task& task, const uint32_t* written) {
  const uint32_t out = outside(task), n = source_len(task);
  return n == out || marked(written, task.at + out - task.offset, n - out);
}

// Copies a match into the batch that begins at `bytes` in shared memory and at `output` in the frame's output.
DZ_HD void copy_task(const Task& task, uint8_t* bytes, const uint8_t* output, uint32_t lane, uint32_t lanes) {
  const uint32_t out = outside(task), n = source_len(task);
  uint8_t* to = bytes + task.at;
  const uint8_t* far = output + task.at - task.offset;
  if (lanes == 1) {
    for (uint32_t i = 0; i < out; i += 4) {
      const uint32_t some = out - i < 4 ? out - i : 4;
      const uint32_t word = load4(far + i, some);
      for (uint32_t k = 0; k < some; ++k) to[i + k] = uint8_t(word >> (8 * k));
    }
  } else {
    for (uint32_t i = lane; i < out; i += lanes) to[i] = far[i];
  }
  for (uint32_t i = out + lane; i < n; i += lanes) to[i] = *(to + i - task.offset);
  if (n == task.len) return;
  // The rest repeats what was just copied, or by now is.
#ifdef __CUDA_ARCH__
  if (lanes > 1) __syncwarp();
#endif
  for (uint32_t i = n + lane; i < task.len; i += lanes) to[i] = to[i % n];
}

// Copies short literals into the batch.
DZ_HD void copy_few_literals(const Literals& literals, const Task& task, uint8_t* to) {
  if (literals.run) {
    for (uint32_t i = 0; i < task.literals_len; ++i) to[i] = *literals.from;
    return;
  }
  for (uint32_t i = 0; i < task.literals_len; i += 4) {
    const uint32_t some = task.literals_len - i < 4 ? task.literals_len - i : 4;
    const uint32_t word = load4(literals.from + task.literals_from + i, some);
    for (uint32_t k = 0; k < some; ++k) to[i + k] = uint8_t(word >> (8 * k));
  }
}

// The task of sequence `now` after `before` in a batch that begins after `batch_output` bytes of the block. The match
// may not reach further back than to the frame's first byte: `produced` bytes came before the block.
DZ_HD bool plan_task(uint64_t before, uint64_t now, uint32_t batch_output, uint32_t produced, const uint32_t* repeat,
                     Task& task) {
  task.literals_from = packed_literals(before);
  task.literals_len = packed_literals(now) - task.literals_from;
  const uint32_t match = packed_output(before) + task.literals_len;
  task.at = match - batch_output;
  task.len = packed_output(now) - match;
  task.offset = resolve_offset(packed_offset(now), repeat);
  return task.offset != 0 && task.offset <= produced + match;
}

DZ_HD Literals literals_of(const Frame& f, const Block& b, const uint8_t* workspace) {
  if (b.literals_kind >= kOneStream) return {workspace + f.workspace + b.literals_to, 0};
  return {reinterpret_cast<const uint8_t*>(f.src) + b.literals_at, b.literals_kind == kRunLiterals};
}

// What a block decodes to, as far as can be said before its matches are copied.
DZ_HD Status block_size(const Frame& f, const Block& b, const BlockResult& r, uint32_t produced, uint32_t& size) {
  size = b.size;
  if (b.kind == kCompressed) {
    if (r.literals != kGood || r.sequences != kGood) return kDamaged;
    size = r.size;
  }
  return size > f.capacity - produced ? kTooMuch : kGood;
}

}  // namespace zstd
}  // namespace dz
