//! Streams of real encoders are inspected on the host and decoded on the GPU, zstd also by nvCOMP, the reference. All must
//! give the same bytes again. Damaged streams must do no harm.

use super::nvcomp;
use crate::gpu::driver::test_gpu::{Gpu, Random, bytes_of, gpu};
use crate::gpu::driver::{DecodeArrays, DeviceBuffer, ZstdArrays, memset_async};
use dali_zarr_base::error::Result;
use dali_zarr_codecs::Compression;
use dali_zarr_codecs::stream::Checksum;
use dali_zarr_codecs::streams::{StreamCodec, Verdict, inspect};
use dali_zarr_codecs::testing::{gzip, lz4, sample, zlib, zstd};
use dali_zarr_codecs::zstd::plan;
use dali_zarr_kernels::zstd::{BlockResult, Wave};
use dali_zarr_kernels::{ChecksumJob, ChecksumKind, StreamKind};
use std::time::Instant;

/// Bytes after each output that the decoder must not change.
const GUARD: usize = 4096;
const CODECS: [(Compression, StreamCodec); 4] = [
    (Compression::Zstd, StreamCodec::Zstd),
    (Compression::Gzip, StreamCodec::Deflate),
    (Compression::Zlib, StreamCodec::Deflate),
    (Compression::Lz4, StreamCodec::Lz4),
];

struct Outcome {
    status: i32,
    size: u64,
    bytes: Vec<u8>,
    mismatch: bool,
    /// Bytes from the end of the output to the last changed byte behind it; 0: none is changed.
    beyond: usize,
}

fn compress(codec: Compression, data: &[u8], level: u32) -> Vec<u8> {
    match codec {
        Compression::Zstd => zstd(data, level as i32, level.is_multiple_of(2), level % 4 < 2),
        Compression::Gzip => gzip(data, level),
        Compression::Zlib => zlib(data, level),
        Compression::Lz4 => lz4(data),
        Compression::Blosc(..) => unreachable!("it is no stream"),
    }
}

/// Who decodes zstd frames.
#[derive(Clone, Copy, Debug, PartialEq)]
enum By {
    Kernels,
    Nvcomp,
}

/// Streams on the device, with everything that their decoding needs.
struct Batch {
    codec: StreamCodec,
    /// For each stream: where its output begins, and its decoded bytes.
    places: Vec<(usize, usize)>,
    sums: Vec<Option<Checksum>>,
    /// Input; addresses and sizes of the streams, room and addresses of the outputs; nvCOMP's workspace; checksum jobs.
    buffers: [DeviceBuffer; 8],
    /// Zstd frames: their wave; its frames, blocks, work, workspace and results on the device.
    zstd: Option<(Wave, [DeviceBuffer; 5])>,
    output: DeviceBuffer,
    statuses: DeviceBuffer,
    sizes: DeviceBuffer,
    results: DeviceBuffer,
}

impl Batch {
    /// Uploads streams that `inspect` accepts: (compressed bytes, decoded length).
    fn new(gpu: &Gpu, kind: Compression, codec: StreamCodec, streams: &[(Vec<u8>, usize)]) -> Result<Self> {
        let (mut input, mut ins, mut places, mut sums, mut room) = (Vec::new(), Vec::new(), Vec::new(), Vec::new(), 0);
        let mut plans = Vec::new();
        for (compressed, decoded_len) in streams {
            let Verdict::Gpu { start, len, checksum } = inspect(kind, compressed, *decoded_len) else {
                panic!("the walk let it pass before");
            };
            // Streams lie at any alignment in shards.
            let at = input.len() + 1;
            input.resize(at, 0);
            input.extend_from_slice(&compressed[start..start + len]);
            room = usize::next_multiple_of(room, 256);
            ins.push((at as u64, len as u64));
            places.push((room, *decoded_len));
            sums.push(checksum);
            if codec == StreamCodec::Zstd {
                plans.push(plan(&compressed[start..start + len], *decoded_len).unwrap());
            }
            room += decoded_len + GUARD;
        }
        let n = places.len();
        let input = gpu.upload(&input);
        let output = DeviceBuffer::alloc(&gpu.device, room)?;
        // SAFETY: the whole buffer.
        unsafe { memset_async(&gpu.stream, output.ptr(), 0x5a, room)? };
        let upload = |values: Vec<u64>| gpu.upload(&bytes_of(&values));
        let in_ptrs = upload(ins.iter().map(|i| input.ptr() + i.0).collect());
        let in_sizes = upload(ins.iter().map(|i| i.1).collect());
        let out_caps = upload(places.iter().map(|p| p.1 as u64).collect());
        let out_ptrs = upload(places.iter().map(|p| output.ptr() + p.0 as u64).collect());
        let longest = places.iter().map(|p| p.1).max().unwrap_or(0);
        let total = places.iter().map(|p| p.1).sum();
        let compared = codec == StreamCodec::Zstd && nvcomp::is_there();
        let temp = if compared { nvcomp::workspace(n, longest, total)? } else { 0 };
        let temp = DeviceBuffer::alloc(&gpu.device, temp.max(8))?;
        let zstd = (codec == StreamCodec::Zstd).then(|| {
            let mut wave = Wave::default();
            for ((plan, at), place) in plans.iter().zip(&ins).zip(&places) {
                wave.push(plan, input.ptr() + at.0, output.ptr() + place.0 as u64);
            }
            let space = |bytes: usize| DeviceBuffer::alloc(&gpu.device, bytes.max(8)).unwrap();
            let uploaded = [bytes_of(&wave.frames), bytes_of(&wave.blocks), bytes_of(&wave.work)]
                .map(|bytes| if bytes.is_empty() { space(8) } else { gpu.upload(&bytes) });
            let [frames, blocks, work] = uploaded;
            let results = space(wave.blocks.len() * size_of::<BlockResult>());
            let workspace = space(plans.iter().map(|plan| plan.workspace as usize).sum());
            (wave, [frames, blocks, work, workspace, results])
        });
        let job = |(place, sum): (&(usize, usize), &Option<Checksum>)| {
            let (kind, expected) = match *sum {
                Some(Checksum::Crc32(v)) => (ChecksumKind::Crc32, v),
                Some(Checksum::Adler32(v)) => (ChecksumKind::Adler32, v),
                Some(Checksum::Xxh64Low(v)) => (ChecksumKind::Xxh64Low, v),
                None => (ChecksumKind::Crc32, 0),
            };
            ChecksumJob { data: output.ptr() + place.0 as u64, len: place.1 as u64, kind: kind as u32, expected }
        };
        let jobs = gpu.upload(&bytes_of(&places.iter().zip(&sums).map(job).collect::<Vec<_>>()));
        // Only `dz_lz4` reads the kinds, and here it gets LZ4 streams only.
        let kinds = gpu.upload(&bytes_of(&vec![StreamKind::Lz4 as u32; n]));
        Ok(Self {
            codec,
            places,
            sums,
            buffers: [input, in_ptrs, in_sizes, out_caps, out_ptrs, temp, jobs, kinds],
            zstd,
            output,
            statuses: DeviceBuffer::alloc(&gpu.device, 4 * n)?,
            sizes: DeviceBuffer::alloc(&gpu.device, 8 * n)?,
            results: DeviceBuffer::alloc(&gpu.device, 8 * n)?,
        })
    }

    /// Enqueues the decoding. The batch must live until the stream is synchronised.
    fn enqueue(&self, gpu: &Gpu, by: By) -> Result<()> {
        let [_, in_ptrs, in_sizes, out_caps, out_ptrs, temp, _, kinds] = &self.buffers;
        let arrays = DecodeArrays {
            in_ptrs: in_ptrs.ptr(),
            in_sizes: in_sizes.ptr(),
            out_caps: out_caps.ptr(),
            out_sizes: self.sizes.ptr(),
            statuses: self.statuses.ptr(),
            out_ptrs: out_ptrs.ptr(),
            kinds: kinds.ptr(),
        };
        let n = self.places.len();
        // SAFETY: all arrays have n entries, about live buffers, which the batch keeps.
        unsafe {
            match (self.codec, &self.zstd) {
                (StreamCodec::Zstd, Some((wave, [frames, blocks, work, workspace, results]))) if by == By::Kernels => {
                    let arrays = ZstdArrays {
                        frames: frames.ptr(),
                        blocks: blocks.ptr(),
                        work: work.ptr(),
                        workspace: workspace.ptr(),
                        results: results.ptr(),
                        out_sizes: self.sizes.ptr(),
                        statuses: self.statuses.ptr(),
                    };
                    gpu.module.launch_zstd(&gpu.stream, wave, &arrays)
                }
                (StreamCodec::Zstd, _) => nvcomp::enqueue(&gpu.stream, &arrays, n, (temp.ptr(), temp.len())),
                (StreamCodec::Deflate, _) => gpu.module.launch_inflate(&gpu.stream, &arrays, n as u32),
                (StreamCodec::Lz4 | StreamCodec::Snappy, _) => gpu.module.launch_lz4(&gpu.stream, &arrays, n as u32),
            }
        }
    }
}

/// Decodes streams that `inspect` accepts, verifies their checksums, and looks for changed bytes behind their outputs.
fn decode(
    gpu: &Gpu,
    (kind, codec): (Compression, StreamCodec),
    streams: &[(Vec<u8>, usize)],
    by: By,
) -> Result<Vec<Outcome>> {
    let batch = Batch::new(gpu, kind, codec, streams)?;
    batch.enqueue(gpu, by)?;
    let n = streams.len();
    // SAFETY: jobs and results have n entries, about the batch's live buffers; the stream is awaited next.
    unsafe {
        gpu.module.launch_checksum(&gpu.stream, batch.buffers[6].ptr(), n as u32, batch.results.ptr())?;
    }
    gpu.stream.synchronize()?;
    let (bytes, statuses) = (gpu.download(&batch.output), gpu.download(&batch.statuses));
    let (sizes, results) = (gpu.download(&batch.sizes), gpu.download(&batch.results));
    let word = |from: &[u8], at: usize| u32::from_le_bytes(from[at..at + 4].try_into().unwrap());
    let outcome = |i: usize| {
        let (start, len) = batch.places[i];
        let behind = &bytes[start + len..start + len + GUARD];
        Outcome {
            status: word(&statuses, 4 * i) as i32,
            size: u64::from_le_bytes(sizes[8 * i..8 * i + 8].try_into().unwrap()),
            bytes: bytes[start..start + len].to_vec(),
            mismatch: batch.sums[i].is_some() && word(&results, 8 * i) != 0,
            beyond: behind.iter().rposition(|b| *b != 0x5a).map_or(0, |at| at + 1),
        }
    };
    Ok((0..n).map(outcome).collect())
}

#[test]
fn gpu_decodes_what_encoders_write() {
    let Some(gpu) = gpu() else { return };
    for (kind, codec) in CODECS {
        let (mut streams, mut expected) = (Vec::new(), Vec::new());
        for len in [1usize, 7, 255, 256, 4096, 65_536, 131_073, 1_000_000] {
            for content in 0..5u8 {
                for level in [1u32, 2, 3, 6, 9] {
                    let data = sample(content, len);
                    let compressed = compress(kind, &data, level);
                    let verdict = inspect(kind, &compressed, len);
                    assert!(matches!(verdict, Verdict::Gpu { .. }), "{kind:?} {len} {content} {level}: {verdict:?}");
                    streams.push((compressed, len));
                    expected.push(data);
                }
            }
        }
        for by in decoders(codec) {
            let outcomes = decode(&gpu, (kind, codec), &streams, by).unwrap();
            for (outcome, data) in outcomes.iter().zip(&expected) {
                let what = format!("{kind:?}, {} bytes, {by:?}", data.len());
                assert_eq!(outcome.status, 0, "{what}");
                assert_eq!(outcome.size, data.len() as u64, "{what}");
                assert!(outcome.bytes == *data, "{what}: wrong values");
                assert!(!outcome.mismatch, "{what}: the checksum of right values does not match");
                assert_eq!(outcome.beyond, 0, "{what}: written beyond the end");
            }
            println!("{kind:?}: {} streams decoded, {by:?}", streams.len());
        }
    }
}

#[test]
fn gpu_changed_values_do_not_match_their_checksum() {
    let Some(gpu) = gpu() else { return };
    // Encoders store noise uncompressed, so a changed byte changes the values and nothing else.
    let data = sample(0, 100_000);
    for (kind, codec) in CODECS.into_iter().take(3) {
        let mut compressed =
            if kind == Compression::Zstd { zstd(&data, 2, true, true) } else { compress(kind, &data, 2) };
        let middle = compressed.len() / 2;
        compressed[middle] ^= 0x10;
        let outcomes = decode(&gpu, (kind, codec), &[(compressed, data.len())], By::Kernels).unwrap();
        assert_eq!(outcomes[0].status, 0, "{kind:?}");
        assert!(outcomes[0].mismatch && outcomes[0].bytes != data, "{kind:?}");
    }
}

/// Damaged streams that `inspect` accepts never change bytes outside their outputs. Checksums,
/// where there are any, show the damage.
#[test]
fn gpu_damaged_streams_stay_within_their_buffers() {
    let Some(gpu) = gpu() else { return };
    let mut random = Random(4);
    for (kind, codec) in CODECS {
        let (mut streams, mut originals) = (Vec::new(), Vec::new());
        while streams.len() < 600 {
            let data = sample((random.below(4) + 1) as u8, 1000 + random.below(30_000) as usize);
            let good = compress(kind, &data, 3);
            for round in 0..10 {
                let mut bytes = good.clone();
                if round == 0 {
                    bytes.truncate(bytes.len() * 3 / 4);
                }
                for _ in 0..1 + random.below(4) {
                    let at = random.below(bytes.len() as u64) as usize;
                    bytes[at] = random.next() as u8;
                }
                if matches!(inspect(kind, &bytes, data.len()), Verdict::Gpu { .. }) {
                    streams.push((bytes, data.len()));
                    originals.push(data.clone());
                }
            }
        }
        let has_checksum = !matches!(kind, Compression::Lz4 | Compression::Zstd);
        for (outcome, data) in decode(&gpu, (kind, codec), &streams, By::Kernels).unwrap().iter().zip(&originals) {
            assert_eq!(outcome.beyond, 0, "{kind:?}: written beyond the end");
            let accepted = outcome.status == 0 && outcome.size == data.len() as u64 && !outcome.mismatch;
            assert!(!accepted || outcome.bytes == *data || !has_checksum, "{kind:?}: wrong values accepted");
        }
    }
}

/// Returns the decoders to compare for streams of this kind.
fn decoders(codec: StreamCodec) -> Vec<By> {
    if codec == StreamCodec::Zstd && nvcomp::is_there() { vec![By::Kernels, By::Nvcomp] } else { vec![By::Kernels] }
}

/// Prints decoded bytes per second for many streams in flight.
#[test]
fn gpu_decode_rates() {
    let Some(gpu) = gpu() else { return };
    let kinds = [(Compression::Zstd, 3), (Compression::Gzip, 5), (Compression::Lz4, 1)];
    for (kind, level) in kinds {
        let codec = CODECS.iter().find(|(k, _)| *k == kind).unwrap().1;
        for (len, n) in [(4 << 20, 64), (64 << 10, 2048)] {
            let few: Vec<Vec<u8>> =
                (0..4u8).map(|i| compress(kind, &sample(4, len + 2 * usize::from(i)), level)).collect();
            let streams: Vec<_> = (0..n).map(|i| (few[i % 4].clone(), len + 2 * (i % 4))).collect();
            let batch = Batch::new(&gpu, kind, codec, &streams).unwrap();
            for by in decoders(codec) {
                batch.enqueue(&gpu, by).unwrap();
                gpu.stream.synchronize().unwrap();
                let start = Instant::now();
                for _ in 0..3 {
                    batch.enqueue(&gpu, by).unwrap();
                }
                gpu.stream.synchronize().unwrap();
                let rate = 3.0 * (len * n) as f64 / start.elapsed().as_secs_f64() / 1e9;
                println!("{kind:?}, {n} streams of {} KiB, {by:?}: {rate:.1} GB/s", len >> 10);
            }
        }
    }
}
