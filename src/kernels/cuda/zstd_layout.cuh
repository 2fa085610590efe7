// Structures that the host and the kernels that decode zstd frames (RFC 8878) share. Mirrors src/zstd.rs of this crate;
// both sides assert the sizes.
//
// The compressed blocks of a frame are entropy-decoded independently of each other. dz_zstd_entropy writes their
// literals, and a record of each sequence, to a workspace. dz_zstd_sequences replaces the records by sequences. Then
// dz_zstd_execute_* writes each frame's bytes, block after block.
//
// The host only finds where the parts of each block lie. The kernels never trust the bytes of a frame: they check that
// whatever a length describes ends within its part. They trust what the host writes into these structures, because the
// host has checked it.
#pragma once
#include "layout.cuh"

namespace dz {
namespace zstd {

enum BlockKind : uint8_t { kRaw = 0, kRun = 1, kCompressed = 2 };

enum LiteralsKind : uint8_t { kRawLiterals = 0, kRunLiterals = 1, kOneStream = 2, kFourStreams = 3 };

// One frame of a wave.
struct Frame {
  uint64_t src;          // address of the frame
  uint64_t dst;          // address of its output
  uint64_t workspace;    // byte offset of its part of the workspace; a multiple of 16
  uint32_t len;          // bytes of the frame
  uint32_t capacity;     // bytes that it must decode to; at most 2^27
  uint32_t first_block;  // index of its first Block
  uint32_t blocks;       // number of its blocks
  uint32_t max_block;    // bytes that one block may decode to, at most 2^17
  uint32_t reserved;
};

// One block of a frame. Positions are byte offsets in the frame. Indexes of blocks count from the frame's first block.
struct Block {
  uint32_t frame;         // index of the Frame
  uint8_t kind;           // BlockKind
  uint8_t literals_kind;  // LiteralsKind
  uint8_t modes;          // compression modes of its sequences: the block's byte, section 3.1.1.3.2.1
  uint8_t reserved;
  uint32_t at;             // position of the content
  uint32_t size;           // bytes of the content; for a run: how often its byte is repeated
  uint32_t literals_at;    // position of the literals, after their header
  uint32_t literals_size;  // bytes of the stored literals, with the Huffman table's description
  uint32_t literals;       // number of literals
  uint32_t sequences_at;   // position after the modes: the first table description, or else the bits
  uint32_t sequences;      // number of sequences
  uint32_t huffman;        // index of the block that holds the Huffman table
  uint32_t tables[3];      // indexes of the blocks that hold the tables of literal lengths, offsets, match lengths
  uint32_t literals_to;    // byte offset of the decoded literals in the frame's workspace
  uint32_t sequences_to;   // byte offset of the sequences there, a multiple of 16; their room is rounded up to one
  uint32_t unused;
};

// What dz_zstd_entropy and dz_zstd_sequences return for one compressed block.
struct BlockResult {
  int32_t literals;    // a DecodeStatus
  int32_t sequences;   // a DecodeStatus
  uint32_t size;       // bytes that the block decodes to
  uint32_t repeat[3];  // the last three offsets, the latest first, which the next block may repeat; may be symbols
};

static_assert(sizeof(Frame) == 48 && offsetof(Frame, len) == 24, "Frame");
static_assert(sizeof(Block) == 64 && offsetof(Block, literals_at) == 16 && offsetof(Block, tables) == 40, "Block");
static_assert(sizeof(BlockResult) == 24, "BlockResult");

// A sequence in the workspace has 64 bits. Bits 0-17: the number of literals up to the end of this sequence's literals.
// Bits 18-35: the bytes of output up to the end of its match. Both count from the block's beginning. Bits 36-63: the
// offset.
//
// A block's first sequences may repeat offsets of the block before, which is decoded at the same time. Such an offset
// is a symbol until that block's offsets are known. The symbol kSymbol - i * kSymbols - n stands for the i-th of that
// block's last three offsets (i from 0) minus n. n is less than kSymbols, because section 3.1.1.5 subtracts 1 at most
// once per sequence.
constexpr uint32_t kCountBits = 18;
constexpr uint32_t kSymbols = 1 << 16;
constexpr uint32_t kSymbol = (1u << 28) - 1;
constexpr uint32_t kLargestOffset = kSymbol - 3 * kSymbols;
constexpr uint32_t kMaxBlock = 1 << 17;
constexpr uint32_t kMaxSequences = kMaxBlock / 3;
static_assert(kMaxSequences < kSymbols, "one may be subtracted for each sequence of a block");

DZ_HD const uint8_t* source(const Frame& f) { return global_memory<const uint8_t>(f.src); }

// Packs a sequence. Each value must fit into its field. The offset's field lies in the upper word, and is shifted as a
// 32-bit number: a 64-bit shift takes more instructions.
DZ_HD uint64_t pack(uint32_t literals, uint32_t output, uint32_t offset) {
  return (uint64_t(offset << (2 * kCountBits - 32)) << 32 | literals) + (uint64_t(output) << kCountBits);
}

DZ_HD uint32_t packed_literals(uint64_t s) { return uint32_t(s) & ((1u << kCountBits) - 1); }
DZ_HD uint32_t packed_output(uint64_t s) { return uint32_t(s >> kCountBits) & ((1u << kCountBits) - 1); }
DZ_HD uint32_t packed_offset(uint64_t s) { return uint32_t(s >> (2 * kCountBits)); }

DZ_HD uint32_t symbolic_offset(uint32_t i) { return kSymbol - i * kSymbols; }

// Returns the offset that `offset` stands for, given the last three offsets of before; 0 if that is no valid offset.
DZ_HD uint32_t resolve_offset(uint32_t offset, const uint32_t* before) {
  if (offset <= kLargestOffset) return offset;
  const uint32_t below = kSymbol - offset, i = below / kSymbols, less = below % kSymbols;
  const uint32_t value = i == 0 ? before[0] : i == 1 ? before[1] : before[2];
  return value > less ? value - less : 0;
}

}  // namespace zstd
}  // namespace dz
