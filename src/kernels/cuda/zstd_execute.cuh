// dz_zstd_execute_*: writes the bytes of zstd frames from their decoded literals and sequences (RFC 8878, sections
// 3.1.1.4 and 3.1.1.5), one block of threads for each frame.
//
// Where each sequence writes is known beforehand, so that THREADS of them go at once: a batch is put together in shared
// memory and then copied to the output. Literals, and matches that lie before the batch, are copied without waiting.
// A match with a source in the batch waits until these bytes are marked as written; the first such sequence of
// a batch never waits, so that all get done.
#pragma once
#include "batch.cuh"
#include "zstd_layout.cuh"

namespace dz {
namespace zstd {

// One batch, of at most WINDOW bytes of output.
template <uint32_t WINDOW>
struct Stage {
  alignas(16) uint8_t bytes[WINDOW + 16];
  uint32_t written[WINDOW / 32 + 2];  // a bit for each byte of the batch
  uint32_t literals, output;          // of the block, up to the batch's end
};

// Where a block's literals are.
struct Literals {
  const uint8_t* from;
  uint32_t run;  // nonzero: all are *from
};

DZ_HD void copy_literals(const Literals& literals, uint32_t from, uint8_t* to, uint32_t n, uint32_t lane,
                         uint32_t lanes) {
  if (literals.run) fill(to, *literals.from, n, lane, lanes);
  else copy_apart(to, literals.from + from, n, lane, lanes);
}

// Copies short literals into the batch.
DZ_HD void copy_few_literals(const Literals& literals, const Task& task, uint8_t* to) {
  if (literals.run) {
    for (uint32_t i = 0; i < task.literals_len; ++i) to[i] = *literals.from;
  } else {
    copy_few(to, literals.from + task.literals_from, task.literals_len);
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
