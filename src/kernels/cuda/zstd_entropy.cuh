// dz_zstd_entropy: literals and sequences of the compressed blocks of many frames, all blocks at once (RFC 8878,
// sections 3.1.1.3.1 and 3.1.1.3.2).
//
// Decoding is a chain of dependent table look-ups, so that a thread waits most of the time. Throughput comes from the
// number of chains in flight: five for each block (four streams of literals, one of sequences), each of one thread.
// The tables of a block take 10 KB of shared memory, which bounds the number of blocks on a multiprocessor; several of
// them share a warp, since 32 threads take no more instructions than one.
#pragma once
#include "zstd_tables.cuh"

namespace dz {
namespace zstd {

// Of one block.
struct EntropyTables {
  uint32_t lengths[kLengthCells];
  uint32_t matches[kLengthCells];
  uint32_t offsets[kOffsetCells];
  uint16_t huffman[1 << kMaxCodeBits];
  uint8_t weights[256];
  int16_t counts[3][kMaxSymbols];
  uint32_t log[3];
  uint32_t good[3];
  uint32_t bits_at;       // where the sequences' bits begin
  uint32_t huffman_log;   // 0 for damage
  uint32_t huffman_used;  // bytes of the description, where it is the block's own

  DZ_HD uint32_t* of(uint32_t alphabet) {
    return alphabet == kLiteralLength ? lengths : alphabet == kOffset ? offsets : matches;
  }
};

DZ_HD const uint8_t* source(const Frame& f) { return reinterpret_cast<const uint8_t*>(f.src); }

// Builds the table of one alphabet. `own` is the index of the block within its frame, `blocks` are the frame's.
DZ_HD void prepare_sequences(const Frame& f, const Block* blocks, uint32_t own, uint32_t alphabet,
                             const Lengths& lengths, EntropyTables& t) {
  const Block& b = blocks[own];
  const uint32_t from = b.tables[alphabet];
  uint32_t at = 0, log = 0;
  bool good = true;
  if (alphabet == kMatchLength && from != own) {
    // Where the bits begin, is behind this block's own descriptions.
    good = read_table(source(f), b, kMatchLength, lengths, t.counts[alphabet], nullptr, log, at);
    t.bits_at = at;
  }
  good = good &&
         read_table(source(f), blocks[from], alphabet, lengths, t.counts[alphabet], t.of(alphabet), log, at);
  if (alphabet == kMatchLength && from == own) t.bits_at = at;
  t.log[alphabet] = log;
  t.good[alphabet] = good;
}

// Decodes the sequences of a block whose tables are prepared. Section 3.1.1.3.2 and, for offsets, 3.1.1.5.
DZ_HD void decode_sequences(const Frame& f, const Block& b, bool first, const EntropyTables& t, const Lengths& lengths,
                            uint64_t* to, BlockResult& result) {
  uint32_t repeat0 = first ? 1 : symbolic_offset(0), repeat1 = first ? 4 : symbolic_offset(1),
           repeat2 = first ? 8 : symbolic_offset(2);
  result.sequences = kDamaged;
  result.size = 0;
  const uint32_t end = b.at + b.size;
  BackwardBits bits;
  if (!t.good[0] || !t.good[1] || !t.good[2] || t.bits_at >= end ||
      !bits.open(source(f) + t.bits_at, end - t.bits_at)) {
    return;
  }
  uint32_t length_state = bits.take(t.log[kLiteralLength]);
  uint32_t offset_state = bits.take(t.log[kOffset]);
  uint32_t match_state = bits.take(t.log[kMatchLength]);
  uint32_t literals = 0, output = 0;
  const uint32_t all_literals = b.literals, max_block = f.max_block;
  bool bad = false;
  // Cells and bits of the next sequence are loaded as soon as can be, which decides how long one takes: there is no
  // branch in here that they would wait for.
  uint32_t l = t.lengths[length_state], o = t.offsets[offset_state], m = t.matches[match_state];
  Words words = bits.load(bits.at);
  for (uint32_t rest = b.sequences; rest > 0; --rest) {
    const uint32_t high = words.high(), low = words.low();
    // At most 63 extra bits, and 26 for the next states, which the last sequence doesn't have.
    const uint32_t widths = l + o + m, extra = widths & 255, more = widths >> 8 & 31;
    uint32_t next = uint32_t(((uint64_t(high) << 32 | low) << extra) >> 32);
    if (extra + more > 64) next = bits.load(bits.at - int32_t(extra)).high();
    bits.at -= int32_t(extra) + (rest == 1 ? 0 : int32_t(more));
    words = bits.load(bits.at);
    const uint32_t length_bits = l >> 8 & 15, match_bits = m >> 8 & 15;
    const uint32_t l_code = l >> 16 & 63, m_code = m >> 16 & 63, l_bits = l & 31, m_bits = m & 31, o_bits = o & 31;
    l = t.lengths[(l >> 22) + top(next, length_bits)];
    next <<= length_bits;
    m = t.matches[(m >> 22) + top(next, match_bits)];
    next <<= match_bits;
    o = t.offsets[(o >> 22) + top(next, o >> 8 & 15)];

    // What is not needed for the next sequence has time.
    const uint32_t value = (1u << o_bits) + top(high, o_bits);
    const uint32_t high_m = shift_in(high, low, o_bits), low_m = low << o_bits;
    const uint32_t match = lengths.match_base[m_code] + top(high_m, m_bits);
    const uint32_t literal = lengths.literal_base[l_code] + top(shift_in(high_m, low_m, m_bits), l_bits);
    // 1 to 3 repeat one of the last offsets; without literals it is the one after, and the last is one less.
    const bool repeats = value <= 3;
    const uint32_t which = repeats ? value - 1 + (literal == 0) : 3;
    const uint32_t old = which == 0 ? repeat0 : which == 1 ? repeat1 : which == 2 ? repeat2 : repeat0 - 1;
    const uint32_t offset = repeats ? old : value - 3;
    repeat2 = which >= 2 ? repeat1 : repeat2;
    repeat1 = which >= 1 ? repeat0 : repeat1;
    repeat0 = offset;
    literals += literal;
    output += literal + match;
    // Only symbols for offsets are larger than the largest one, and these repeat.
    bad = bad || offset == 0 || (!repeats && offset > kLargestOffset) || literals > all_literals || output > max_block;
    *to++ = pack(literals, output, offset);
  }
  if (bad) return;
  if (bits.left() != 0) return;
  result.size = output + (b.literals - literals);
  if (result.size > f.max_block) return;
  result.repeat[0] = repeat0;
  result.repeat[1] = repeat1;
  result.repeat[2] = repeat2;
  result.sequences = kGood;
}

// A block of literals alone.
DZ_HD void no_sequences(const Block& b, bool first, BlockResult& result) {
  result.sequences = kGood;
  result.size = b.literals;
  for (uint32_t i = 0; i < 3; ++i) result.repeat[i] = first ? (i ? 4 * i : 1) : symbolic_offset(i);
}

// Builds the Huffman table that the block uses.
DZ_HD void prepare_literals(const Frame& f, const Block* blocks, uint32_t own, EntropyTables& t) {
  const uint32_t from = blocks[own].huffman;
  const Block& b = blocks[from];
  uint32_t used = 0;
  t.huffman_log = build_huffman(source(f) + b.literals_at, b.literals_size, t.huffman, t.weights, used);
  t.huffman_used = from == own ? used : 0;
}

DZ_HD uint8_t literal(const uint16_t* table, uint32_t log, BackwardBits& bits) {
  const uint32_t cell = table[top(bits.load(bits.at).high(), log)];
  bits.at -= int32_t(cell & 255);
  return uint8_t(cell >> 8);
}

// Decodes one of the four streams of a block's literals, or the one that there is. Section 4.2.2.
DZ_HD bool decode_literals(const Frame& f, const Block& b, const EntropyTables& t, uint32_t stream, uint8_t* to) {
  const uint32_t log = t.huffman_log;
  if (log == 0 || t.huffman_used >= b.literals_size) return false;
  const uint8_t* data = source(f) + b.literals_at + t.huffman_used;
  uint32_t len = b.literals_size - t.huffman_used, count = b.literals;
  if (b.literals_kind == kFourStreams) {
    // The lengths of the first three, section 3.1.1.3.1.6.
    if (len < 6) return false;
    const uint32_t each = (b.literals + 3) / 4;
    uint32_t begin = 6, size = 0;
    for (uint32_t s = 0; s <= stream; ++s) {
      begin += size;
      size = s < 3 ? data[2 * s] | uint32_t(data[2 * s + 1]) << 8 : len - begin;
      if (begin > len || size > len - begin) return false;
    }
    data += begin;
    len = size;
    count = stream < 3 ? each : b.literals - 3 * each;
    to += stream * each;
  }
  BackwardBits bits;
  if (!bits.open(data, len)) return false;
  // At least one and at most `log` bits a literal.
  if (bits.left() < int32_t(count) || bits.left() > int32_t(count * log)) return false;
  const uint16_t* const table = t.huffman;
  uint32_t i = 0;
  for (; i < count && (reinterpret_cast<uintptr_t>(to + i) & 3); ++i) to[i] = literal(table, log, bits);
  // Of five words the next 64 bits are in three, wherever among them these begin after four literals of at most 11
  // bits; so words are loaded long before their bits are needed.
  int32_t index = bits.at >> 5;
  uint32_t w0 = bits.word(index), w1 = bits.word(index - 1), w2 = bits.word(index - 2);
  for (; i + 4 <= count; i += 4) {
    const uint32_t w3 = bits.word(index < 3 ? 0 : index - 3), w4 = bits.word(index < 4 ? 0 : index - 4);
    const uint32_t shift = uint32_t(bits.at) & 31;
    uint32_t high = shift_out(w0, w1, shift), low = shift_out(w1, w2, shift), word = 0, taken = 0;
    for (uint32_t k = 0; k < 4; ++k) {
      const uint32_t cell = table[top(high, log)], length = cell & 255;
      high = shift_in(high, low, length);
      low <<= length;
      taken += length;
      word |= cell >> 8 << (8 * k);
    }
    *reinterpret_cast<uint32_t*>(to + i) = word;
    bits.at -= int32_t(taken);
    const int32_t next = bits.at >> 5, moved = index - next;
    w0 = moved == 0 ? w0 : moved == 1 ? w1 : w2;
    w1 = moved == 0 ? w1 : moved == 1 ? w2 : w3;
    w2 = moved == 0 ? w2 : moved == 1 ? w3 : w4;
    index = next;
    bits.prefetch(index);
  }
  for (; i < count; ++i) to[i] = literal(table, log, bits);
  return bits.left() == 0;
}

DZ_HD uint32_t streams(const Block& b) {
  return b.literals_kind == kFourStreams ? 4 : b.literals_kind == kOneStream ? 1 : 0;
}

// What a block of threads shares that decodes GROUP blocks.
template <uint32_t GROUP>
struct EntropyShared {
  EntropyTables tables[GROUP];
  Lengths lengths;
};

#ifdef __CUDACC__
// A block of 64 threads decodes GROUP blocks: one warp their sequences, the other one their literals.
template <uint32_t GROUP>
__device__ __forceinline__ void entropy(const Frame* frames, const Block* blocks, const uint32_t* work, uint32_t n_work,
                                        uint8_t* workspace, BlockResult* results, EntropyShared<GROUP>& shared) {
  static_assert(GROUP >= 1 && GROUP <= 8, "32 threads for four streams of each");
  EntropyTables* const tables = shared.tables;
  Lengths& lengths = shared.lengths;
  const uint32_t lane = threadIdx.x % 32;
  const bool sequences = threadIdx.x < 32;
  const uint32_t share = sequences ? 3 : 4;
  // First the threads are three or four for each block.
  const uint32_t member = lane / share, part = lane % share;
  const uint32_t at = blockIdx.x * GROUP + member;
  const bool here = member < GROUP && at < n_work;
  const uint32_t index = here ? work[at] : 0;
  if (sequences) {
    for (uint32_t i = lane; i < Lengths::kCodes; i += 32) lengths.prepare(i);
    __syncwarp();
    if (here && blocks[index].sequences) {
      const Frame& f = frames[blocks[index].frame];
      prepare_sequences(f, blocks + f.first_block, index - f.first_block, part, lengths, tables[member]);
    }
    __syncwarp();
    // Then there is one for each block.
    const uint32_t mine = blockIdx.x * GROUP + lane;
    if (lane < GROUP && mine < n_work) {
      const uint32_t own = work[mine];
      const Block b = blocks[own];
      const Frame f = frames[b.frame];
      BlockResult result = {};
      if (b.sequences) {
        decode_sequences(f, b, own == f.first_block, tables[lane], lengths,
                         reinterpret_cast<uint64_t*>(workspace + f.workspace + b.sequences_to), result);
      } else {
        no_sequences(b, own == f.first_block, result);
      }
      results[own].sequences = result.sequences;
      results[own].size = result.size;
      for (uint32_t i = 0; i < 3; ++i) results[own].repeat[i] = result.repeat[i];
    }
  } else {
    const uint32_t n = here ? streams(blocks[index]) : 0;
    if (n && part == 0) {
      const Frame& f = frames[blocks[index].frame];
      prepare_literals(f, blocks + f.first_block, index - f.first_block, tables[member]);
    }
    __syncwarp();
    bool good = true;
    if (part < n) {
      const Block b = blocks[index];
      const Frame f = frames[b.frame];
      good = decode_literals(f, b, tables[member], part, workspace + f.workspace + b.literals_to);
    }
    const uint32_t bad = __ballot_sync(0xffffffff, !good) >> (member * 4) & 15;
    if (here && part == 0) results[index].literals = bad ? kDamaged : kGood;
  }
}
#endif

}  // namespace zstd
}  // namespace dz

#ifdef __CUDACC__
// Blocks that one block of dz_zstd_entropy decodes.
constexpr uint32_t kZstdGroup = 4;

// Grid: ceil(n_work / kZstdGroup) blocks of 64 threads. work: indexes of the compressed blocks. results: one for each of
// `blocks`, of which those of compressed ones are written. The workspace begins at a multiple of 16.
extern "C" __global__ void __launch_bounds__(64)
    dz_zstd_entropy(const dz::zstd::Frame* frames, const dz::zstd::Block* blocks, const uint32_t* work, uint32_t n_work,
                    uint8_t* workspace, dz::zstd::BlockResult* results) {
  __shared__ dz::zstd::EntropyShared<kZstdGroup> shared;
  dz::zstd::entropy<kZstdGroup>(frames, blocks, work, n_work, workspace, results, shared);
}
#endif
