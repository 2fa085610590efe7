// What the host and the kernels that decode zstd frames (RFC 8878) share. Mirrors src/zstd.rs of this crate; both
// sides assert the sizes.
//
// A frame's compressed blocks are entropy-decoded independently of each other: dz_zstd_entropy writes their literals and records
// of their sequences to a workspace, dz_zstd_sequences puts sequences in the records' place. dz_zstd_execute_* then writes each
// frame's bytes, block after block. The host only finds
// out where the parts of each block lie. Bytes of the frame are never trusted: all lengths in them are compared with
// the ends of what they lie in. What the host writes into these structures is trusted, since the host has checked it.
#pragma once
#include "layout.cuh"

namespace dz {
namespace zstd {

// As nvCOMP numbers the same things.
enum Status : int32_t { kGood = 0, kDamaged = 12, kTooMuch = 15, kTooFew = 20 };

enum BlockKind : uint8_t { kRaw = 0, kRun = 1, kCompressed = 2 };

enum LiteralsKind : uint8_t { kRawLiterals = 0, kRunLiterals = 1, kOneStream = 2, kFourStreams = 3 };

// One frame of a wave.
struct Frame {
  uint64_t src;          // address of the frame
  uint64_t dst;          // address of its output
  uint64_t workspace;    // where its part of the workspace begins; a multiple of 16
  uint32_t len;          // bytes of the frame
  uint32_t capacity;     // bytes that it must decode to; less than 2^27
  uint32_t first_block;  // index of its first Block
  uint32_t blocks;       // how many it has
  uint32_t max_block;    // bytes that one block may decode to, at most 2^17
  uint32_t reserved;
};

// One block of a frame. Positions are relative to the frame, indexes of blocks to its first block.
struct Block {
  uint32_t frame;          // index of the Frame
  uint8_t kind;            // BlockKind
  uint8_t literals_kind;   // LiteralsKind
  uint8_t modes;           // the sequences' compression modes as the block has them, section 3.1.1.3.2.1
  uint8_t reserved;
  uint32_t at;             // its content
  uint32_t size;           // bytes of the content; of a run: how often its one byte comes
  uint32_t literals_at;    // literals without their header
  uint32_t literals_size;  // their bytes as stored, with the Huffman table's description
  uint32_t literals;       // how many literals
  uint32_t sequences_at;   // the first table description behind the modes
  uint32_t sequences;      // how many sequences
  uint32_t huffman;        // the block whose Huffman table is used
  uint32_t tables[3];      // the blocks whose tables of literal lengths, offsets, match lengths are used
  uint32_t literals_to;    // where decoded literals go in the frame's workspace
  uint32_t sequences_to;   // where sequences go, a multiple of 16, with room up to one
  uint32_t unused;
};

// What dz_zstd_entropy and dz_zstd_sequences find for one compressed block.
struct BlockResult {
  int32_t literals;   // a Status
  int32_t sequences;  // a Status
  uint32_t size;      // bytes that the block decodes to
  uint32_t repeat[3]; // the last offsets, which the next block may repeat; maybe symbolic
};

static_assert(sizeof(Frame) == 48 && offsetof(Frame, len) == 24, "Frame");
static_assert(sizeof(Block) == 64 && offsetof(Block, literals_at) == 16 && offsetof(Block, tables) == 40, "Block");
static_assert(sizeof(BlockResult) == 24, "BlockResult");

// A sequence in the workspace: 18 bits: literals up to and with this sequence; 18 bits: output up to the match's end,
// both counted from the block's beginning; 28 bits: the offset.
//
// A block's first sequences may repeat offsets of the block before, which another thread decodes at the same time.
// They stand for themselves: kSymbol - i * kSymbols is offset i of that block's last three, and what is up to
// kSymbols - 1 below is the same less that much (section 3.1.1.5 can subtract 1, at most once a sequence).
constexpr uint32_t kCountBits = 18;
constexpr uint32_t kSymbols = 1 << 16;
constexpr uint32_t kSymbol = (1u << 28) - 1;
constexpr uint32_t kLargestOffset = kSymbol - 3 * kSymbols;
constexpr uint32_t kMaxBlock = 1 << 17;
constexpr uint32_t kMaxSequences = kMaxBlock / 3;
static_assert(kMaxSequences < kSymbols, "one may be subtracted for each sequence of a block");

DZ_HD const uint8_t* source(const Frame& f) { return reinterpret_cast<const uint8_t*>(f.src); }

// Means something only if each fits in its field. The offset's field lies in the upper word alone, and is shifted there: a
// shift of 64 bits takes more instructions.
DZ_HD uint64_t pack(uint32_t literals, uint32_t output, uint32_t offset) {
  return (uint64_t(offset << (2 * kCountBits - 32)) << 32 | literals) + (uint64_t(output) << kCountBits);
}

DZ_HD uint32_t packed_literals(uint64_t s) { return uint32_t(s) & ((1u << kCountBits) - 1); }
DZ_HD uint32_t packed_output(uint64_t s) { return uint32_t(s >> kCountBits) & ((1u << kCountBits) - 1); }
DZ_HD uint32_t packed_offset(uint64_t s) { return uint32_t(s >> (2 * kCountBits)); }

DZ_HD uint32_t symbolic_offset(uint32_t i) { return kSymbol - i * kSymbols; }

// The offset that is meant; 0 for one that doesn't exist.
DZ_HD uint32_t resolve_offset(uint32_t offset, const uint32_t* before) {
  if (offset <= kLargestOffset) return offset;
  const uint32_t below = kSymbol - offset, i = below / kSymbols, less = below % kSymbols;
  const uint32_t value = i == 0 ? before[0] : i == 1 ? before[1] : before[2];
  return value > less ? value - less : 0;
}

}  // namespace zstd
}  // namespace dz
