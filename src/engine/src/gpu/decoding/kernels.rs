//! Decoding by this project's kernels, which stay within their buffers whatever the bytes are: deflate (inside gzip and
//! zlib), LZ4 with Snappy, and zstd.

use dali_zarr_kernels::zstd;

use super::decoder::{LaneCapacity, Launch, StreamDecoder};
use crate::budget::Decoding;
use crate::gpu::driver::ZstdArrays;
use crate::gpu::streams::EncodedStream;
use dali_zarr_base::error::Result;
use dali_zarr_codecs::streams::ChunkStream;

/// `dz_inflate_*`.
pub(super) struct Inflate;

impl StreamDecoder for Inflate {
    unsafe fn enqueue(&self, launch: &mut Launch<'_>, streams: &[EncodedStream]) -> Result<()> {
        // SAFETY: the caller vouches for the entries.
        unsafe { launch.module.launch_inflate(launch.stream, &launch.arrays, streams.len() as u32) }
    }
}

/// `dz_lz4`.
pub(super) struct Lz4;

impl StreamDecoder for Lz4 {
    unsafe fn enqueue(&self, launch: &mut Launch<'_>, streams: &[EncodedStream]) -> Result<()> {
        // SAFETY: the caller vouches for the entries.
        unsafe { launch.module.launch_lz4(launch.stream, &launch.arrays, streams.len() as u32) }
    }
}

/// `dz_zstd_entropy`, `dz_zstd_sequences` and `dz_zstd_execute_*`. They decode only streams that have a plan.
pub(super) struct ZstdKernels;

impl StreamDecoder for ZstdKernels {
    fn needs(&self, largest: usize) -> Decoding {
        // The least workspace holds any one frame. Data that aren't shuffled need workspace for 1.0 to 1.3 times their
        // decoded bytes, shuffled ones for a third. With too little, a wave takes two rounds, and twice the time.
        Decoding {
            least_workspace: largest.saturating_mul(3) + (64 << 10),
            workspace_per_mib: 5 << 18,
            ..Decoding::NONE
        }
    }

    fn takes(&self, stream: &ChunkStream, room: LaneCapacity) -> bool {
        stream
            .plan
            .as_ref()
            .is_some_and(|plan| plan.workspace as usize <= room.workspace && plan.blocks.len() <= room.blocks)
    }

    fn fits(&self, streams: &[EncodedStream], room: LaneCapacity) -> usize {
        let (mut space, mut blocks) = (0, 0);
        let fits = |s: &&EncodedStream| {
            let Some(plan) = &s.plan else { return false };
            space += plan.workspace as usize;
            blocks += plan.blocks.len();
            space <= room.workspace && blocks <= room.blocks
        };
        streams.iter().take_while(fits).count()
    }

    unsafe fn enqueue(&self, launch: &mut Launch<'_>, streams: &[EncodedStream]) -> Result<()> {
        let mut together = zstd::Wave::default();
        for s in streams {
            if let Some(plan) = &s.plan {
                together.push(plan, launch.staging + s.offset as u64, launch.wave.chunks[s.chunk].to + s.to as u64);
            }
        }
        let (n_frames, n_blocks, n_work) = (together.frames.len(), together.blocks.len(), together.work.len());
        let [frames, blocks, work, results] = launch.tables.capacity().zstd(n_frames, n_blocks);
        launch.tables.values::<zstd::Frame>(frames, n_frames).copy_from_slice(&together.frames);
        launch.tables.values::<zstd::Block>(blocks, n_blocks).copy_from_slice(&together.blocks);
        launch.tables.values::<u32>(work, n_work).copy_from_slice(&together.work);
        launch.tables.send(launch.stream, frames.until(work))?;
        let arrays = ZstdArrays {
            frames: launch.tables.address(frames),
            blocks: launch.tables.address(blocks),
            work: launch.tables.address(work),
            workspace: launch.workspace.0,
            results: launch.tables.address(results),
            out_sizes: launch.arrays.out_sizes,
            statuses: launch.arrays.statuses,
        };
        // SAFETY: the arrays were just sent, and hold plans of frames that the scheduler keeps until they are copied;
        // the workspace has room (`fits`); buffers, slots and the parts of outputs begin and end at multiples of 16.
        unsafe { launch.module.launch_zstd(launch.stream, &together, &arrays) }
    }
}
