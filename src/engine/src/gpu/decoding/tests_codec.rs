//! Streams of real encoders are inspected on the host and decoded on the GPU (zstd by nvCOMP), and must give the same
//! bytes again. Damaged streams must do no harm.

use super::nvcomp::{check_frame_for_nvcomp, decode_async, temp_bytes};
use crate::gpu::driver::test_gpu::{Gpu, Random, bytes_of, gpu, nvcomp};
use crate::gpu::driver::{DecodeArrays, DeviceBuffer, memset_async};
use dali_zarr_base::error::Result;
use dali_zarr_codecs::Compression;
use dali_zarr_codecs::stream::Checksum;
use dali_zarr_codecs::streams::{self, StreamCodec, Verdict};
use dali_zarr_codecs::testing::{gzip, lz4, sample, zlib, zstd};
use dali_zarr_codecs::zstd::plan;
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

/// Inspects a stream, as is done before its decoder gets it: zstd frames also for nvCOMP, which decodes them here.
fn inspect(codec: Compression, compressed: &[u8], decoded_len: usize) -> Verdict {
    if codec == Compression::Zstd
        && let Err(reason) = plan(compressed, decoded_len).and_then(|plan| check_frame_for_nvcomp(compressed, &plan))
    {
        return Verdict::Cpu(reason);
    }
    streams::inspect(codec, compressed, decoded_len)
}

/// Streams on the device, with everything that their decoding needs.
struct Batch {
    codec: StreamCodec,
    /// For each stream: where its output begins, and its decoded bytes.
    places: Vec<(usize, usize)>,
    sums: Vec<Option<Checksum>>,
    /// Input; addresses and sizes of the streams, room and addresses of the outputs; workspace; checksum jobs.
    buffers: [DeviceBuffer; 8],
    output: DeviceBuffer,
    statuses: DeviceBuffer,
    sizes: DeviceBuffer,
    results: DeviceBuffer,
}

impl Batch {
    /// Uploads streams that `inspect` accepts: (compressed bytes, decoded length).
    fn new(gpu: &Gpu, kind: Compression, codec: StreamCodec, streams: &[(Vec<u8>, usize)]) -> Result<Self> {
        let (mut input, mut ins, mut places, mut sums, mut room) = (Vec::new(), Vec::new(), Vec::new(), Vec::new(), 0);
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
        let temp = if codec == StreamCodec::Zstd { temp_bytes(n, longest, total)? } else { 0 };
        let temp = DeviceBuffer::alloc(&gpu.device, temp.max(8))?;
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
            output,
            statuses: DeviceBuffer::alloc(&gpu.device, 4 * n)?,
            sizes: DeviceBuffer::alloc(&gpu.device, 8 * n)?,
            results: DeviceBuffer::alloc(&gpu.device, 8 * n)?,
        })
    }

    /// Enqueues the decoding. The batch must live until the stream is synchronised.
    fn enqueue(&self, gpu: &Gpu) -> Result<()> {
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
        let longest = self.places.iter().map(|p| p.1).max().unwrap_or(0);
        let n = self.places.len();
        // SAFETY: all arrays have n entries, about live buffers, which the batch keeps.
        unsafe {
            match self.codec {
                StreamCodec::Zstd => decode_async(&gpu.stream, &arrays, n, longest, (temp.ptr(), temp.len())),
                StreamCodec::Deflate => gpu.module.launch_inflate(&gpu.stream, &arrays, n as u32),
                StreamCodec::Lz4 | StreamCodec::Snappy => gpu.module.launch_lz4(&gpu.stream, &arrays, n as u32),
            }
        }
    }
}

/// Decodes streams that `inspect` accepts, verifies their checksums, and looks for changed bytes behind their outputs.
fn decode(gpu: &Gpu, kind: Compression, codec: StreamCodec, streams: &[(Vec<u8>, usize)]) -> Result<Vec<Outcome>> {
    let batch = Batch::new(gpu, kind, codec, streams)?;
    batch.enqueue(gpu)?;
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
    if !nvcomp() {
        return;
    }
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
        let outcomes = decode(&gpu, kind, codec, &streams).unwrap();
        for (outcome, data) in outcomes.iter().zip(&expected) {
            let what = format!("{kind:?}, {} bytes", data.len());
            assert_eq!(outcome.status, 0, "{what}");
            assert_eq!(outcome.size, data.len() as u64, "{what}");
            assert!(outcome.bytes == *data, "{what}: wrong values");
            assert!(!outcome.mismatch, "{what}: the checksum of right values does not match");
            assert_eq!(outcome.beyond, 0, "{what}: written beyond the end");
        }
        println!("{kind:?}: {} streams decoded", streams.len());
    }
}

#[test]
fn gpu_changed_values_do_not_match_their_checksum() {
    let Some(gpu) = gpu() else { return };
    if !nvcomp() {
        return;
    }
    // Encoders store noise uncompressed, so a changed byte changes the values and nothing else.
    let data = sample(0, 100_000);
    for (kind, codec) in CODECS.into_iter().take(3) {
        let mut compressed =
            if kind == Compression::Zstd { zstd(&data, 2, true, true) } else { compress(kind, &data, 2) };
        let middle = compressed.len() / 2;
        compressed[middle] ^= 0x10;
        let outcomes = decode(&gpu, kind, codec, &[(compressed, data.len())]).unwrap();
        assert_eq!(outcomes[0].status, 0, "{kind:?}");
        assert!(outcomes[0].mismatch && outcomes[0].bytes != data, "{kind:?}");
    }
}

/// Damaged deflate streams and LZ4 blocks that `inspect` accepts never change bytes outside their outputs. Checksums,
/// where there are any, show the damage.
#[test]
fn gpu_damaged_streams_stay_within_their_buffers() {
    let Some(gpu) = gpu() else { return };
    let has_nvcomp = nvcomp();
    let mut random = Random(4);
    for (kind, codec) in CODECS.into_iter().skip(1).filter(|(_, codec)| has_nvcomp || *codec != StreamCodec::Zstd) {
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
        for (outcome, data) in decode(&gpu, kind, codec, &streams).unwrap().iter().zip(&originals) {
            assert_eq!(outcome.beyond, 0, "{kind:?}: written beyond the end");
            let accepted = outcome.status == 0 && outcome.size == data.len() as u64 && !outcome.mismatch;
            assert!(!accepted || outcome.bytes == *data || kind == Compression::Lz4, "{kind:?}: wrong values accepted");
        }
    }
}

/// Prints decoded bytes per second for many streams in flight.
#[test]
fn gpu_decode_rates() {
    let Some(gpu) = gpu() else { return };
    let has_nvcomp = nvcomp();
    let kinds = [(Compression::Zstd, 3), (Compression::Gzip, 5), (Compression::Lz4, 1)];
    for (kind, level) in kinds {
        let codec = CODECS.iter().find(|(k, _)| *k == kind).unwrap().1;
        if !has_nvcomp && codec == StreamCodec::Zstd {
            continue;
        }
        for (len, n) in [(4 << 20, 64), (64 << 10, 2048)] {
            let few: Vec<Vec<u8>> =
                (0..4u8).map(|i| compress(kind, &sample(4, len + 2 * usize::from(i)), level)).collect();
            let streams: Vec<_> = (0..n).map(|i| (few[i % 4].clone(), len + 2 * (i % 4))).collect();
            let batch = Batch::new(&gpu, kind, codec, &streams).unwrap();
            batch.enqueue(&gpu).unwrap();
            gpu.stream.synchronize().unwrap();
            let start = Instant::now();
            for _ in 0..3 {
                batch.enqueue(&gpu).unwrap();
            }
            gpu.stream.synchronize().unwrap();
            let rate = 3.0 * (len * n) as f64 / start.elapsed().as_secs_f64() / 1e9;
            println!("{kind:?}, {n} streams of {} KiB: {rate:.1} GB/s", len >> 10);
        }
    }
}

/// Decodes damaged streams that `inspect` accepts, and prints how many were noticed. DALI_ZARR_DAMAGE names the codec;
/// with the suffix `-cut` streams are cut short instead of changed.
#[test]
#[ignore = "loses the process's CUDA context where the decoder does not hold: run alone, one codec a process"]
fn gpu_damage() {
    let Some(gpu) = gpu() else { return };
    if !nvcomp() {
        return;
    }
    let named = std::env::var("DALI_ZARR_DAMAGE").unwrap_or_else(|_| "lz4".into());
    let (name, cut) = named.strip_suffix("-cut").map_or((&named[..], false), |name| (name, true));
    let &(kind, codec) = CODECS.iter().find(|(kind, _)| format!("{kind:?}").to_lowercase() == name).unwrap();
    let mut random = Random(99);
    let (mut sent, mut refused, mut right, mut caught, mut wrong, mut tried) = (0, 0, 0, 0, 0, 0);
    let (mut beyond, mut farthest) = (0, 0);
    for round in 0..20 {
        let (mut streams, mut originals) = (Vec::new(), Vec::new());
        for _ in 0..40 {
            let data = sample((random.below(4) + 1) as u8, 1000 + random.below(150_000) as usize);
            let good = compress(kind, &data, 3);
            for _ in 0..20 {
                let mut bytes = good.clone();
                if cut {
                    bytes.truncate(bytes.len() / 8 + random.below(bytes.len() as u64 * 7 / 8) as usize);
                } else {
                    for _ in 0..1 + random.below(8) {
                        let at = random.below(bytes.len() as u64) as usize;
                        bytes[at] = random.next() as u8;
                    }
                }
                tried += 1;
                if matches!(inspect(kind, &bytes, data.len()), Verdict::Gpu { .. }) {
                    streams.push((bytes, data.len()));
                    originals.push(data.clone());
                }
            }
        }
        if streams.is_empty() {
            continue;
        }
        match decode(&gpu, kind, codec, &streams) {
            Ok(outcomes) => {
                for (outcome, data) in outcomes.iter().zip(&originals) {
                    sent += 1;
                    beyond += usize::from(outcome.beyond > 0);
                    farthest = farthest.max(outcome.beyond);
                    if outcome.status != 0 || outcome.size != data.len() as u64 {
                        refused += 1;
                    } else if outcome.mismatch {
                        caught += 1;
                    } else if outcome.bytes == *data {
                        right += 1;
                    } else {
                        wrong += 1;
                    }
                }
            }
            Err(error) => {
                println!("{named}: LOST in round {round} after {sent} streams: {error}");
                return;
            }
        }
    }
    println!(
        "{named}: of {tried} damaged streams {sent} passed the walk; the decoder refused {refused}, the checksum caught \
         {caught}, {right} were right all the same, {wrong} gave wrong values unnoticed; {beyond} wrote beyond their \
         end, by up to {farthest} bytes"
    );
}
