//! Waves of zstd frames (RFC 8878) for `dz_zstd_entropy`, `dz_zstd_sequences` and `dz_zstd_execute_*`. The structures
//! mirror `cuda/zstd_layout.cuh`.
//!
//! To decode frames:
//! 1. Make a [`FramePlan`] of each frame (`zstd::plan` of the codecs), and [push](Wave::push) it to a [`Wave`] with the addresses
//!    of the frame's bytes and of its output.
//! 2. Copy the arrays of the wave to the device. Allocate [`Wave::workspace`] bytes of workspace, a [`BlockResult`] for
//!    each block, and a u64 and an i32 for each frame.
//! 3. Launch three kernels on one stream:
//!    - `dz_zstd_entropy(frames, blocks, work, n_work: u32, workspace, results)`, with the grid of [`entropy`];
//!    - `dz_zstd_sequences` with the same arguments, and the grid of [`sequences`];
//!    - the kernel of [`EXECUTE`] that [`Wave::execute_kernel`] chooses, `(frames, blocks, workspace, results,
//!      out_bytes, statuses)`, with one block of threads for each frame.
//!
//!    If `n_work` is 0, leave out the first two.
//!
//! Whatever the frames hold, the kernels write only to the arrays above, the workspace and the outputs (within their
//! capacities), and read only these and the frames. Addresses of frames and outputs may have any alignment. But the
//! kernels read whole aligned words: frames must lie in an allocation that begins and ends at a multiple of 16, outputs
//! in one that begins and ends at a multiple of four. The workspace begins at a multiple of 16. Status 0 means that the
//! frame decoded to exactly its capacity of bytes. Content checksums are not verified.

/// Launch parameters of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Blocks of threads.
    pub blocks: u32,
    /// Threads in a block.
    pub threads: u32,
    /// Bytes of dynamic shared memory of a block.
    pub shared: u32,
}

impl From<(u32, u32)> for Grid {
    /// Makes a grid from blocks and threads, without dynamic shared memory.
    fn from((blocks, threads): (u32, u32)) -> Self {
        Self { blocks, threads, shared: 0 }
    }
}

/// One frame, ready for a [`Wave`].
#[derive(Clone, Debug)]
pub struct FramePlan {
    /// Its blocks; [`Block::frame`] is not set.
    pub blocks: Vec<Block>,
    /// Bytes of the frame.
    pub len: u32,
    /// Bytes that it must decode to.
    pub capacity: u32,
    /// Bytes that one block may decode to.
    pub max_block: u32,
    /// Bytes of workspace, a multiple of 16: eight for each sequence and one for each entropy-coded literal. A sequence
    /// stands for at least three bytes, so this is at most 8/3 of the capacity plus 32 bytes for each block.
    pub workspace: u32,
    /// The low 32 bits of XXH64 of the decoded bytes; `None` if the frame has no checksum.
    pub checksum: Option<u32>,
}

/// What a warp of `dz_zstd_entropy` takes: compressed blocks, and bytes of shared memory.
struct EntropyWarp {
    blocks: u32,
    shared: u32,
}

impl EntropyWarp {
    /// Warps of this kind in a block of threads with `shared` bytes of shared memory. The kernel finds the same number.
    fn warps(&self, shared: u32) -> u32 {
        (shared / self.shared).min(ENTROPY_WARPS)
    }

    /// Blocks of threads for this number of compressed blocks.
    fn grid(&self, compressed_blocks: u32, shared: u32) -> u32 {
        compressed_blocks.div_ceil(self.blocks * self.warps(shared))
    }
}

/// A warp that records sequences.
const SEQUENCES: EntropyWarp = EntropyWarp { blocks: 16, shared: 46_080 };
/// A warp that decodes literals.
const LITERALS: EntropyWarp = EntropyWarp { blocks: 8, shared: 36_992 };
/// Most warps in a block of threads of `dz_zstd_entropy`.
const ENTROPY_WARPS: u32 = 8;

/// Returns the grid of `dz_zstd_entropy` for `compressed_blocks`, on a device where a block of threads may have
/// `shared` bytes of shared memory.
///
/// A block of threads has as many warps as fit, so that the warps run on few multiprocessors. Other kernels that need
/// much shared memory, for example those of a model, then find room on the other multiprocessors.
pub fn entropy(compressed_blocks: u32, shared: u32) -> Grid {
    // For few compressed blocks, fewer warps are enough.
    let groups = compressed_blocks.div_ceil(LITERALS.blocks).max(1);
    let shared = entropy_shared(shared).min(groups.saturating_mul(SEQUENCES.shared));
    Grid {
        blocks: SEQUENCES.grid(compressed_blocks, shared) + LITERALS.grid(compressed_blocks, shared),
        threads: 32 * SEQUENCES.warps(shared).max(LITERALS.warps(shared)),
        shared,
    }
}

/// Returns the most bytes of dynamic shared memory that a block of `dz_zstd_entropy` takes, on a device where a block
/// may have `shared` bytes.
pub fn entropy_shared(shared: u32) -> u32 {
    shared.clamp(SEQUENCES.shared, ENTROPY_WARPS * SEQUENCES.shared)
}

/// Returns the grid of `dz_zstd_sequences` for this number of compressed blocks.
pub const fn sequences(compressed_blocks: u32) -> Grid {
    Grid { blocks: compressed_blocks, threads: 128, shared: 0 }
}

/// Names of the kernels that write the bytes of frames, and their threads per block.
pub const EXECUTE: [(&str, u32); 3] =
    [("dz_zstd_execute_1024", 1024), ("dz_zstd_execute_256", 256), ("dz_zstd_execute_128", 128)];

/// Status of a frame that was decoded.
pub const GOOD: i32 = 0;
/// Status of a damaged frame.
pub const DAMAGED: i32 = 12;
/// Status of a frame that decodes to more than its capacity.
pub const TOO_MUCH: i32 = 15;
/// Status of a frame that decodes to less than its capacity.
pub const TOO_FEW: i32 = 20;

/// One frame of a wave.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    /// Address of the frame.
    pub src: u64,
    /// Address of its output.
    pub dst: u64,
    /// Byte offset of its part of the workspace; a multiple of 16.
    pub workspace: u64,
    /// Bytes of the frame.
    pub len: u32,
    /// Bytes that it must decode to.
    pub capacity: u32,
    /// Index of its first [`Block`].
    pub first_block: u32,
    /// Number of its blocks.
    pub blocks: u32,
    /// Bytes that one block may decode to.
    pub max_block: u32,
    /// Zero.
    pub reserved: u32,
}

/// The type of a [`Block`].
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockKind {
    /// Uncompressed bytes.
    Raw = 0,
    /// One byte, repeated.
    Run = 1,
    /// Literals and sequences.
    Compressed = 2,
}

/// How a block's literals are stored.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LiteralsKind {
    /// Uncompressed bytes.
    Raw = 0,
    /// One byte, repeated.
    Run = 1,
    /// One stream of Huffman codes.
    OneStream = 2,
    /// Four streams of Huffman codes, after a table of their lengths.
    FourStreams = 3,
}

/// One block of a frame. Positions are byte offsets in the frame. Indexes of blocks count from the frame's first block.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Block {
    /// Index of the [`Frame`].
    pub frame: u32,
    /// Type of the block.
    pub kind: BlockKind,
    /// How its literals are stored.
    pub literals_kind: LiteralsKind,
    /// The compression modes of its sequences: the byte of the block, section 3.1.1.3.2.1.
    pub modes: u8,
    /// Zero.
    pub reserved: u8,
    /// Position of the content.
    pub at: u32,
    /// Bytes of the content. For a run: how often its byte is repeated.
    pub size: u32,
    /// Position of the literals, after their header.
    pub literals_at: u32,
    /// Bytes of the stored literals, including the description of the Huffman table.
    pub literals_size: u32,
    /// Number of literals.
    pub literals: u32,
    /// Position after the modes: the first description of a table, or else the bits of the sequences.
    pub sequences_at: u32,
    /// Number of sequences.
    pub sequences: u32,
    /// Index of the block that holds the Huffman table.
    pub huffman: u32,
    /// Indexes of the blocks that hold the tables of literal lengths, offsets and match lengths.
    pub tables: [u32; 3],
    /// Byte offset in the frame's workspace for the decoded literals.
    pub literals_to: u32,
    /// Byte offset in the frame's workspace for the sequences, a multiple of 16. The room for them is rounded up to a
    /// multiple of 16 bytes, because two sequences are written at a time.
    pub sequences_to: u32,
    /// Zero.
    pub unused: u32,
}

/// What `dz_zstd_entropy` and `dz_zstd_sequences` return for one compressed block.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct BlockResult {
    /// Status of the literals.
    pub literals: i32,
    /// Status of the sequences.
    pub sequences: i32,
    /// Bytes that the block decodes to.
    pub size: u32,
    /// The last three offsets, the latest first. May be symbols that stand for those of the block before (see
    /// `cuda/zstd_layout.cuh`).
    pub repeat: [u32; 3],
}

const _: () = assert!(size_of::<Frame>() == 48 && size_of::<Block>() == 64 && size_of::<BlockResult>() == 24);

/// Frames that are decoded together.
#[derive(Clone, Debug, Default)]
pub struct Wave {
    /// In the order in which they were pushed.
    pub frames: Vec<Frame>,
    /// The blocks of all frames.
    pub blocks: Vec<Block>,
    /// Indexes into `blocks` of the compressed blocks.
    pub work: Vec<u32>,
    /// Bytes of workspace that the frames need.
    pub workspace: u64,
}

impl Wave {
    /// Adds a frame whose bytes lie at `src` and whose output of [`FramePlan::capacity`] bytes lies at `dst`.
    ///
    /// # Panics
    /// If the wave has 2^32 blocks or more.
    pub fn push(&mut self, plan: &FramePlan, src: u64, dst: u64) {
        let index = |n: usize| u32::try_from(n).expect("fewer than 2^32 blocks in a wave");
        let (frame, first_block) = (index(self.frames.len()), index(self.blocks.len()));
        index(self.blocks.len() + plan.blocks.len());
        for (i, block) in (first_block..).zip(&plan.blocks) {
            self.blocks.push(Block { frame, ..*block });
            if block.kind == BlockKind::Compressed {
                self.work.push(i);
            }
        }
        self.frames.push(Frame {
            src,
            dst,
            workspace: self.workspace,
            len: plan.len,
            capacity: plan.capacity,
            first_block,
            blocks: plan.blocks.len() as u32,
            max_block: plan.max_block,
            reserved: 0,
        });
        self.workspace += u64::from(plan.workspace);
    }

    /// Returns the index in [`EXECUTE`] of the kernel to use on a device with this number of multiprocessors: the one
    /// with the most threads per frame that decodes all frames in at most two rounds, or else the last. Each
    /// multiprocessor has registers for 1024 threads of these kernels.
    pub fn execute_kernel(&self, multiprocessors: u32) -> usize {
        let room = u64::from(multiprocessors) * 2 * 1024;
        let fits = |&(_, threads): &(&str, u32)| self.frames.len() as u64 * u64::from(threads) <= room;
        EXECUTE.iter().position(fits).unwrap_or(EXECUTE.len() - 1)
    }
}
