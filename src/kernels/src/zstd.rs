//! Zstd frames (RFC 8878) for `dz_zstd_entropy`, `dz_zstd_sequences` and `dz_zstd_execute_*`: the structures that they share with the
//! host, which mirror `cuda/zstd_layout.cuh`, and how a wave of frames is put together.
//!
//! A wave: each frame's [`plan`](crate::zstd_plan::plan), all of them [pushed](Wave::push) with the addresses of their
//! bytes and their output; the arrays of the [`Wave`] copied to the device, with [`Wave::workspace`] bytes of workspace,
//! a [`BlockResult`] for each block, and a u64 and an i32 for each frame; then on one stream
//! - `dz_zstd_entropy(frames, blocks, work, n_work: u32, workspace, results)`: [`entropy`] gives the grid,
//!   unless `n_work` is 0;
//! - `dz_zstd_sequences` with the same arguments, by [`sequences`];
//! - one of [`EXECUTE`], which [`Wave::execute_kernel`] chooses, `(frames, blocks, workspace, results, out_bytes,
//!   statuses)`: a block of threads for each frame.
//!
//! Nothing but the outputs' capacities and the workspace is written, and nothing but these and the frames is read,
//! whatever the frames hold. Addresses may have any alignment. But whole aligned words are read: frames must lie in an allocation
//! that begins and ends at a multiple of 16, outputs and the workspace in one that begins and ends at a multiple of four. A frame was
//! decoded if its status is 0, which says that it gave just its capacity of bytes. A content checksum is not verified.

use crate::zstd_plan::FramePlan;

/// How a kernel that works on the compressed blocks of frames is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Blocks of threads.
    pub blocks: u32,
    /// Threads in each.
    pub threads: u32,
    /// Bytes of dynamic shared memory of each.
    pub shared: u32,
}

impl From<(u32, u32)> for Grid {
    /// Of blocks and threads, without shared memory.
    fn from((blocks, threads): (u32, u32)) -> Self {
        Self { blocks, threads, shared: 0 }
    }
}

/// Compressed blocks that a warp of `dz_zstd_entropy` decodes, the shared memory that it takes for them, and the most warps of a
/// block of threads.
const ENTROPY_GROUP: u32 = 8;
const ENTROPY_SHARED: u32 = 44_128;
const ENTROPY_WARPS: u32 = 8;

/// The grid of `dz_zstd_entropy` for so many compressed blocks, on a device where a block of threads may have so much shared memory.
///
/// As many warps as fit stand in one block of threads, so that they are together on few multiprocessors: a kernel of somebody else
/// that needs much shared memory finds room on the others.
pub fn entropy(compressed_blocks: u32, shared: u32) -> Grid {
    let groups = compressed_blocks.div_ceil(ENTROPY_GROUP);
    let warps = (entropy_shared(shared) / ENTROPY_SHARED).min(groups).max(1);
    Grid { blocks: 2 * groups.div_ceil(warps), threads: 32 * warps, shared: warps * ENTROPY_SHARED }
}

/// The most dynamic shared memory that a block of `dz_zstd_entropy` takes on such a device.
pub fn entropy_shared(shared: u32) -> u32 {
    (shared / ENTROPY_SHARED).clamp(1, ENTROPY_WARPS) * ENTROPY_SHARED
}

/// The grid of `dz_zstd_sequences` for so many compressed blocks.
pub const fn sequences(compressed_blocks: u32) -> Grid {
    Grid { blocks: compressed_blocks, threads: 128, shared: 0 }
}

/// The kernels that write the bytes of frames, with the threads in their blocks.
pub const EXECUTE: [(&str, u32); 3] =
    [("dz_zstd_execute_1024", 1024), ("dz_zstd_execute_256", 256), ("dz_zstd_execute_128", 128)];

/// Status of a frame that was decoded.
pub const GOOD: i32 = 0;
/// Status of a frame whose bytes mean nothing.
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
    /// Where its part of the workspace begins; a multiple of 16.
    pub workspace: u64,
    /// Bytes of the frame.
    pub len: u32,
    /// Bytes that it must decode to.
    pub capacity: u32,
    /// Index of its first [`Block`].
    pub first_block: u32,
    /// How many it has.
    pub blocks: u32,
    /// Bytes that one block may decode to.
    pub max_block: u32,
    /// Zero.
    pub reserved: u32,
}

/// What a [`Block`] is.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockKind {
    /// Its bytes as they are.
    Raw = 0,
    /// One byte, many times.
    Run = 1,
    /// Literals and sequences.
    Compressed = 2,
}

/// How a block's literals are stored.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LiteralsKind {
    /// As they are.
    Raw = 0,
    /// One byte, many times.
    Run = 1,
    /// One stream of Huffman codes.
    OneStream = 2,
    /// Four streams behind a table of their lengths.
    FourStreams = 3,
}

/// One block of a frame. Positions are relative to the frame, indexes of blocks to its first block.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Block {
    /// Index of the [`Frame`].
    pub frame: u32,
    /// What it is.
    pub kind: BlockKind,
    /// How its literals are stored.
    pub literals_kind: LiteralsKind,
    /// The compression modes of its sequences as it has them.
    pub modes: u8,
    /// Zero.
    pub reserved: u8,
    /// Its content.
    pub at: u32,
    /// Bytes of the content; of a run: how often its byte comes.
    pub size: u32,
    /// Literals without their header.
    pub literals_at: u32,
    /// Their bytes as stored, with the Huffman table's description.
    pub literals_size: u32,
    /// How many literals.
    pub literals: u32,
    /// The first description of a table behind the modes.
    pub sequences_at: u32,
    /// How many sequences.
    pub sequences: u32,
    /// The block whose Huffman table is used.
    pub huffman: u32,
    /// The blocks whose tables of literal lengths, offsets and match lengths are used.
    pub tables: [u32; 3],
    /// Where decoded literals go in the frame's workspace.
    pub literals_to: u32,
    /// Where sequences go, a multiple of 16. Their bytes are rounded up to one: two are written at a time.
    pub sequences_to: u32,
    /// Zero.
    pub unused: u32,
}

/// What `dz_zstd_entropy` and `dz_zstd_sequences` find for one compressed block.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct BlockResult {
    /// Status of the literals.
    pub literals: i32,
    /// Status of the sequences.
    pub sequences: i32,
    /// Bytes that the block decodes to.
    pub size: u32,
    /// The last offsets, maybe symbolic.
    pub repeat: [u32; 3],
}

const _: () = assert!(size_of::<Frame>() == 48 && size_of::<Block>() == 64 && size_of::<BlockResult>() == 24);

/// The frames that are decoded together.
#[derive(Clone, Debug, Default)]
pub struct Wave {
    /// In the order in which they were pushed.
    pub frames: Vec<Frame>,
    /// The blocks of all frames.
    pub blocks: Vec<Block>,
    /// Indexes into `blocks` of those that `dz_zstd_entropy` decodes.
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

    /// Which of [`EXECUTE`] suits the number of frames, on a device with so many multiprocessors: the most threads a frame with which
    /// all frames are done in two rounds. Each multiprocessor has the registers for 1024 threads of these kernels.
    pub fn execute_kernel(&self, multiprocessors: u32) -> usize {
        let room = u64::from(multiprocessors) * 2 * 1024;
        let fits = |&(_, threads): &(&str, u32)| self.frames.len() as u64 * u64::from(threads) <= room;
        EXECUTE.iter().position(fits).unwrap_or(EXECUTE.len() - 1)
    }
}
