//! Splits the chunks of a wave into streams for the decoders and pieces that are only copied, and plans their copies to
//! the device.
//!
//! `unsafe` is allowed here: the page-locked bytes of chunks are read on the host.

#![allow(unsafe_code)]

use dali_zarr_kernels::Layout;
use dali_zarr_kernels::zstd_plan::FramePlan;

use crate::chunk_index::{ChunkIndex, DIRECT_COPY};
use crate::codec::stream::Checksum;
use crate::codec::streams::{ChunkStream, SplitChunk, StreamCodec, ZstdDecoder, split};
use crate::memory::arena::rounded;
use crate::messages::{Content, Wave};

/// A stream to be decoded.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    /// Which chunk of the wave.
    pub chunk: usize,
    pub codec: StreamCodec,
    /// Its first byte in the staging buffer, and its bytes.
    pub offset: usize,
    pub len: usize,
    /// The first byte of its output in the chunk's slot, and the bytes that it must decode to.
    pub to: usize,
    pub decoded: usize,
    pub checksum: Option<Checksum>,
    /// Of a zstd frame.
    pub plan: Option<FramePlan>,
}

/// Bytes to be copied from the staging buffer to a slot.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    /// Which chunk of the wave.
    pub chunk: usize,
    /// Where it begins in the staging buffer.
    pub offset: usize,
    /// Where it goes in the chunk's slot.
    pub to: usize,
    pub len: usize,
}

/// How the chunks of a wave are copied and decoded.
#[derive(Default)]
pub(super) struct Sorted {
    /// By codec, in the order of the wave.
    pub streams: Vec<Stream>,
    /// Bytes that are not encoded and go through the staging buffer.
    pub pieces: Vec<Piece>,
    /// Large chunks that are not encoded: they are copied directly to their slots.
    pub direct: Vec<usize>,
    /// Chunks that the GPU can't decode, or that look damaged.
    pub refused: Vec<usize>,
    /// Copies to the staging buffer: source, offset, bytes.
    pub copies: Vec<(u64, usize, usize)>,
    /// The order of each chunk's bytes in its slot.
    pub layouts: Vec<Layout>,
}

/// Decides for each chunk how it is copied to the device, and plans a staging buffer of `room` bytes. `takes` says
/// whether this lane has a decoder, and memory, for a stream.
pub(super) fn sort(
    wave: &Wave,
    chunk_index: &ChunkIndex,
    room: usize,
    zstd: ZstdDecoder,
    decodable: impl Fn(&ChunkStream) -> bool,
) -> Sorted {
    let mut sorted = Sorted { layouts: vec![Layout::NONE; wave.chunks.len()], ..Sorted::default() };
    let mut order: Vec<usize> = (0..wave.chunks.len()).collect();
    // Chunks of one read lie beside each other. In the order of addresses their copies merge.
    order.sort_unstable_by_key(|&i| wave.chunks[i].source);
    let mut used = 0;
    let mut split_chunk = SplitChunk::default();
    for i in order {
        let chunk = &wave.chunks[i];
        let (start, len) = match chunk.content {
            Content::Decoded if chunk.bytes.len >= DIRECT_COPY => {
                sorted.direct.push(i);
                continue;
            }
            Content::Decoded => (0, chunk.bytes.len),
            Content::Encoded => {
                // SAFETY: the scheduler keeps the bytes until it hears that they were copied.
                let bytes = unsafe { chunk.bytes.bytes() };
                let format = &chunk_index.part(chunk.id).format;
                let known =
                    format.packed().map(|packed| split(packed, zstd, bytes, chunk.decoded_bytes, &mut split_chunk));
                // The kernel that verifies checksums reads 16 bytes at a time; slots are aligned to more.
                let fits = |p: &ChunkStream| p.checksum.is_none() || p.to.is_multiple_of(16);
                let takes = |p: &ChunkStream| fits(p) && (p.codec.is_none() || decodable(p));
                if known.is_none_or(|known| known.is_err()) || !split_chunk.streams.iter().all(takes) {
                    sorted.refused.push(i);
                    continue;
                }
                let start = split_chunk.streams.iter().map(|p| p.start).min().unwrap_or(0);
                let end = split_chunk.streams.iter().map(|p| p.start + p.len).max().unwrap_or(0);
                // An oversized chunk: it is the only one of its wave.
                if end - start > room {
                    sorted.refused.push(i);
                    continue;
                }
                (start, end - start)
            }
        };
        let from = chunk.source + start as u64;
        let offset = match sorted.copies.last_mut() {
            // It follows the last one, with a gap no larger than the padding would be.
            Some((source, offset, bytes))
                if from >= *source + *bytes as u64
                    && from - *source <= rounded(*bytes) as u64
                    && *offset + (from - *source) as usize + len <= room =>
            {
                let at = (from - *source) as usize;
                *bytes = at + len;
                *offset + at
            }
            _ => {
                let at = if used == 0 { 0 } else { rounded(used) };
                sorted.copies.push((from, at, len));
                at
            }
        };
        used = offset + len;
        if chunk.content == Content::Decoded {
            sorted.pieces.push(Piece { chunk: i, offset, to: 0, len });
            continue;
        }
        sorted.layouts[i] = split_chunk.layout;
        for ChunkStream { codec, start: at, len, to, decoded, checksum, plan } in split_chunk.streams.drain(..) {
            let offset = offset + at - start;
            match codec {
                Some(codec) => {
                    sorted.streams.push(Stream { chunk: i, codec, offset, len, to, decoded, checksum, plan })
                }
                None => sorted.pieces.push(Piece { chunk: i, offset, to, len }),
            }
        }
    }
    // Stable: the streams of a chunk stay in order.
    sorted.streams.sort_by_key(|s| (s.codec, s.chunk));
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::streams::tests::{sample, zstd};
    use crate::memory::Span;
    use crate::messages::WaveChunk;
    use crate::plan::ChunkId;
    use crate::reader::opening::Opened;
    use crate::spec::Spec;

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
        let chunk_index = Opened::new(&spec).unwrap().chunk_index;
        let gzip = |i: u8, extra: usize| {
            let mut out = flate2::GzBuilder::new().extra(vec![0; extra]).write(Vec::new(), flate2::Compression::new(1));
            std::io::Write::write_all(&mut out, &sample(i, LEN)).unwrap();
            out.finish().unwrap()
        };
        // A long header is not copied. A stream of incompressible bytes is, though it is a little longer than its
        // output.
        let encoded = [gzip(0, 60_000), gzip(3, 0), [gzip(0, 0), zstd(&[1; 9], 1, false, true)].concat()];
        let mut wave = Wave::default();
        for (i, bytes) in encoded.iter().enumerate() {
            wave.chunks.push(WaveChunk {
                id: ChunkId { array: 0, part: 0, index: i as u64 },
                handle: i as u32,
                bytes: Span { address: bytes.as_ptr() as u64, len: bytes.len() },
                source: bytes.as_ptr() as u64,
                content: Content::Encoded,
                group: i as u64,
                slot: 0,
                decoded_bytes: LEN,
                jobs: 0..0,
            });
        }
        for (room, refused) in [(1 << 20, vec![2]), (5000, vec![2]), (3000, vec![0, 2])] {
            let mut sorted = sort(&wave, &chunk_index, room, ZstdDecoder::Kernels, |_| true);
            sorted.refused.sort_unstable();
            assert_eq!(sorted.refused, refused, "{room}");
            assert!(sorted.copies.iter().all(|&(_, _, len)| len <= room));
        }
    }
}
