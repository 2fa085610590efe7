//! Splits the chunks of a wave into streams that are decoded and pieces that are only copied, and plans the copies to
//! the device.

use dali_zarr_kernels::Layout;
use dali_zarr_kernels::zstd::FramePlan;

use crate::chunk_index::{ChunkIndex, DIRECT_COPY};
use crate::messages::{Content, Wave};
use crate::route::{Facts, Route, Streams, decide};
use dali_zarr_base::memory::arena::rounded;
use dali_zarr_codecs::stream::Checksum;
use dali_zarr_codecs::streams::{ChunkStream, SplitChunk, StreamCodec, split};
use dali_zarr_codecs::{GpuImage, ImageFormat};

/// A stream to be decoded.
#[derive(Clone, Debug)]
pub(super) struct EncodedStream {
    /// The index of its chunk in the wave.
    pub chunk: usize,
    pub codec: StreamCodec,
    /// Where it begins in the staging buffer.
    pub offset: usize,
    /// Encoded bytes.
    pub len: usize,
    /// Where its output begins in the decoded chunk.
    pub to: usize,
    /// The bytes that it must decode to.
    pub decoded: usize,
    /// The checksum of the decoded bytes, if the stream has one.
    pub checksum: Option<Checksum>,
    /// The parts of a zstd frame.
    pub plan: Option<FramePlan>,
}

/// Bytes to be copied from the staging buffer to where a chunk goes.
#[derive(Clone, Debug)]
pub(super) struct SlotCopy {
    /// The index of its chunk in the wave.
    pub chunk: usize,
    /// Where it begins in the staging buffer.
    pub offset: usize,
    /// Where it goes in the decoded chunk.
    pub to: usize,
    /// Bytes.
    pub len: usize,
}

/// A copy to the staging buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct StagingCopy {
    /// Address in page-locked host memory.
    pub source: u64,
    /// Where it goes in the staging buffer.
    pub offset: usize,
    /// Bytes.
    pub len: usize,
}

/// How the chunks of a wave are copied and decoded.
#[derive(Default)]
pub(super) struct WavePlan {
    /// The streams of all chunks, sorted by codec, then roughly from long to short where that matters, then by chunk.
    pub streams: Vec<EncodedStream>,
    /// Bytes that are not encoded and go through the staging buffer.
    pub pieces: Vec<SlotCopy>,
    /// Images for decoders of images, with the indexes of their chunks. These are read from host memory.
    pub images: Vec<(usize, ImageFormat, GpuImage)>,
    /// Indexes of large chunks that are not encoded: they are copied directly to where they go.
    pub direct: Vec<usize>,
    /// Indexes of chunks that the GPU can't decode, or that look damaged. The CPU decodes them.
    pub refused: Vec<usize>,
    pub copies: Vec<StagingCopy>,
    /// For each chunk, the order of its decoded bytes.
    pub layouts: Vec<Layout>,
}

/// Decides for each chunk how it is copied to the device, and where it goes in a staging buffer of `room` bytes.
/// `decodable` says whether this lane can decode a stream.
pub(super) fn plan_wave(
    wave: &Wave,
    chunk_index: &ChunkIndex,
    room: usize,
    decodable: impl Fn(&ChunkStream) -> bool,
) -> WavePlan {
    let mut wave_plan = WavePlan { layouts: vec![Layout::NONE; wave.chunks.len()], ..WavePlan::default() };
    let mut order: Vec<usize> = (0..wave.chunks.len()).collect();
    // Chunks of one read lie next to each other. In the order of their addresses, their copies can be merged.
    order.sort_unstable_by_key(|&i| wave.chunks[i].source);
    let mut used = 0;
    let mut split_chunk = SplitChunk::default();
    for i in order {
        let chunk = &wave.chunks[i];
        let (start, len) = match chunk.content {
            Content::Decoded if chunk.bytes >= DIRECT_COPY => {
                wave_plan.direct.push(i);
                continue;
            }
            Content::Decoded => (0, chunk.bytes),
            Content::Encoded => {
                let bytes = &*wave.payloads[i].bytes;
                let format = &chunk_index.part(chunk.id).format;
                if let Some(image_format) = format.chain.image_format() {
                    let image = format.image_for_gpu(bytes, &chunk_index.planner.chunk_shape(chunk.id));
                    let found = Streams { are_taken: image.is_ok(), staged: 0, room };
                    match (image, decide(&Facts { streams: Some(found), ..Facts::OF_GPU }).route) {
                        (Ok(image), Route::Gpu) => wave_plan.images.push((i, image_format, image)),
                        _ => wave_plan.refused.push(i),
                    }
                    continue;
                }
                let known =
                    format.gpu_chain().map(|packed| split(packed, bytes, chunk.decoded_bytes, &mut split_chunk));
                // The kernel that verifies checksums reads 16 aligned bytes at a time. Slots, and the parts of outputs to which
                // chunks are decoded, begin at multiples of 16.
                let fits = |p: &ChunkStream| p.checksum.is_none() || p.to.is_multiple_of(16);
                let takes = |p: &ChunkStream| fits(p) && decodable(p);
                let is_known = known.is_some_and(|known| known.is_ok());
                let are_taken = is_known && split_chunk.streams.iter().all(takes);
                let start = split_chunk.streams.iter().map(|p| p.start).min().unwrap_or(0);
                let end = split_chunk.streams.iter().map(|p| p.start + p.len).max().unwrap_or(0);
                // A chunk may be larger than the staging buffer. The scheduler gave it a wave of its own.
                let found = Streams { are_taken, staged: end.saturating_sub(start), room };
                if decide(&Facts { streams: Some(found), ..Facts::OF_GPU }).route == Route::Cpu {
                    wave_plan.refused.push(i);
                    continue;
                }
                (start, found.staged)
            }
        };
        let from = chunk.source + start as u64;
        let offset = match wave_plan.copies.last_mut() {
            // This range follows the last copy, with a gap that is no larger than the padding between two copies.
            Some(last)
                if from >= last.source + last.len as u64
                    && from - last.source <= rounded(last.len) as u64
                    && last.offset + (from - last.source) as usize + len <= room =>
            {
                let at = (from - last.source) as usize;
                last.len = at + len;
                last.offset + at
            }
            _ => {
                let at = if used == 0 { 0 } else { rounded(used) };
                wave_plan.copies.push(StagingCopy { source: from, offset: at, len });
                at
            }
        };
        used = offset + len;
        if chunk.content == Content::Decoded {
            wave_plan.pieces.push(SlotCopy { chunk: i, offset, to: 0, len });
            continue;
        }
        wave_plan.layouts[i] = split_chunk.layout;
        for ChunkStream { codec, start: at, len, to, decoded, checksum, plan } in split_chunk.streams.drain(..) {
            let offset = offset + at - start;
            match codec {
                Some(codec) => {
                    wave_plan.streams.push(EncodedStream { chunk: i, codec, offset, len, to, decoded, checksum, plan })
                }
                None => wave_plan.pieces.push(SlotCopy { chunk: i, offset, to, len }),
            }
        }
    }
    wave_plan.streams.sort_by_key(|s| (s.codec, begins_later(s), s.chunk));
    wave_plan
}

/// Returns a number that is larger for streams that should begin later. A GPU begins them in order while it has room. A
/// long stream that began last would end long after the others: Blosc's last block is often one stream, four times as
/// long as those of other blocks. Frames of zstd are split into blocks of nearly the same size.
fn begins_later(stream: &EncodedStream) -> u32 {
    match stream.codec {
        StreamCodec::Zstd => 0,
        StreamCodec::Deflate | StreamCodec::Lz4 | StreamCodec::Snappy => stream.len.leading_zeros(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_streams_begin_first() {
        let stream = |codec, len| EncodedStream {
            chunk: 0,
            codec,
            offset: 0,
            len,
            to: 0,
            decoded: 0,
            checksum: None,
            plan: None,
        };
        let later = |codec, len| begins_later(&stream(codec, len));
        assert!(later(StreamCodec::Lz4, 400_000) < later(StreamCodec::Lz4, 100_000));
        assert!(later(StreamCodec::Deflate, 100_000) < later(StreamCodec::Deflate, 1));
        assert_eq!(later(StreamCodec::Lz4, 70_000), later(StreamCodec::Lz4, 100_000), "chunks stay together");
        assert_eq!(later(StreamCodec::Zstd, 400_000), later(StreamCodec::Zstd, 1));
    }

    use crate::messages::{Payload, WaveChunk};
    use crate::reader::opening::UnstartedReader;
    use dali_zarr_base::memory::{HostArena, HostBlock};
    use dali_zarr_codecs::testing::{sample, zstd};
    use dali_zarr_samples::plan::ChunkId;
    use dali_zarr_samples::spec::Spec;

    #[test]
    fn a_chunk_that_the_staging_buffer_has_no_room_for_stays_on_the_host() {
        const LEN: usize = 4000;
        let dir = tempfile::tempdir().unwrap();
        let metadata = format!(
            r#"{{"zarr_format": 2, "shape": [4, {LEN}], "chunks": [1, {LEN}], "dtype": "|u1", "fill_value": 0, "order": "C",
            "filters": null, "compressor": {{"id": "gzip"}}}}"#
        );
        std::fs::write(dir.path().join(".zarray"), metadata).unwrap();
        let spec = Spec::default().with(|s| s.source.paths = vec![dir.path().to_str().unwrap().to_owned()]);
        let chunk_index = UnstartedReader::new(&spec).unwrap().chunk_index;
        let gzip = |i: u8, extra: usize| {
            let mut out = flate2::GzBuilder::new().extra(vec![0; extra]).write(Vec::new(), flate2::Compression::new(1));
            std::io::Write::write_all(&mut out, &sample(i, LEN)).unwrap();
            out.finish().unwrap()
        };
        // The first chunk has a long header, which is not copied, and incompressible bytes: its stream is a little
        // longer than its output. The third chunk has more bytes behind its stream.
        let encoded = [gzip(0, 60_000), gzip(3, 0), [gzip(0, 0), zstd(&[1; 9], 1, false, true)].concat()];
        let mut wave = Wave::default();
        let mut memory = HostArena::new(HostBlock::map(1 << 20).unwrap());
        for (i, bytes) in encoded.iter().enumerate() {
            let mut lease = memory.take(bytes.len()).unwrap();
            lease.copy_from_slice(bytes);
            let payload = Payload { read: i as u64, bytes: lease.share().part(0, bytes.len()) };
            wave.chunks.push(WaveChunk {
                id: ChunkId { array: 0, part: 0, index: i as u64 },
                handle: i as u32,
                bytes: bytes.len(),
                source: payload.bytes.address(),
                content: Content::Encoded,
                version: None,
                to: 0,
                decoded_bytes: LEN,
                jobs: 0..0,
            });
            wave.payloads.push(payload);
        }
        for (room, refused) in [(1 << 20, vec![2]), (5000, vec![2]), (3000, vec![0, 2])] {
            let mut wave_plan = plan_wave(&wave, &chunk_index, room, |_| true);
            wave_plan.refused.sort_unstable();
            assert_eq!(wave_plan.refused, refused, "{room}");
            assert!(wave_plan.copies.iter().all(|copy| copy.len <= room));
        }
    }
}
