use super::{EncodedImage, ImageDecoder, PROBE, available, lend};
use crate::gpu::driver::test_gpu::{Gpu, gpu};
use dali_zarr_base::dtype::DType;
use dali_zarr_codecs::{ChunkFormat, GpuImage};

const SHAPE: [u64; 3] = [48, 64, 3];

fn format() -> ChunkFormat {
    let codecs = serde_json::json!([{"name": "imagecodecs_jpeg", "configuration": {}}]);
    ChunkFormat::from_v3(&codecs, DType::U8, 0, &SHAPE).unwrap()
}

/// A GPU with a JPEG engine. If there is none, prints why the test is skipped.
fn with_engine() -> Option<Gpu> {
    let gpu = gpu()?;
    available(&gpu.device).map_err(|error| println!("skipped: {error}")).ok().map(|()| gpu)
}

/// Decodes chunks, all of [`SHAPE`]. Those that aren't decoded are `None`.
fn decode(gpu: &Gpu, decoder: &mut ImageDecoder, chunks: &[&[u8]]) -> Vec<Option<Vec<u8>>> {
    let format = format();
    let images: Vec<Option<GpuImage>> = chunks.iter().map(|chunk| format.image_for_gpu(chunk, &SHAPE).ok()).collect();
    let buffers: Vec<_> = chunks.iter().map(|_| gpu.upload(&vec![0; 48 * 64 * 3])).collect();
    let taken: Vec<usize> = (0..chunks.len()).filter(|&i| images[i].is_some()).collect();
    let encoded: Vec<EncodedImage<'_>> = taken
        .iter()
        .map(|&i| EncodedImage { bytes: chunks[i], image: images[i].as_ref().unwrap(), to: buffers[i].ptr() })
        .collect();
    // SAFETY: each buffer has room for the pixels, and the stream is waited for.
    let refused: Vec<usize> =
        unsafe { decoder.decode(&gpu.stream, &encoded) }.into_iter().map(|(k, _)| taken[k]).collect();
    gpu.stream.synchronize().unwrap();
    let is_decoded = |i: usize| taken.contains(&i) && !refused.contains(&i);
    (0..chunks.len()).map(|i| is_decoded(i).then(|| gpu.download(&buffers[i]))).collect()
}

#[test]
fn pixels_are_within_a_level_of_the_cpus() {
    let Some(gpu) = with_engine() else { return };
    let mut expected = vec![0; 48 * 64 * 3];
    format().decode(PROBE, &SHAPE, &mut expected).unwrap();
    let mut decoder = lend(&gpu.device).unwrap();
    for round in 1..4 {
        for found in decode(&gpu, &mut decoder, &vec![PROBE; 7 * round]) {
            let furthest = found.unwrap().iter().zip(&expected).map(|(a, b)| a.abs_diff(*b)).max();
            assert!(furthest <= Some(1), "{furthest:?}");
        }
    }
}

/// Whatever the bytes are, the context stays, and images beside damaged ones are decoded.
#[test]
fn damaged_images_leave_the_others_alone() {
    let Some(gpu) = with_engine() else { return };
    let count: u64 = std::env::var("DALI_ZARR_GPU_IMAGES").ok().and_then(|n| n.parse().ok()).unwrap_or(2000);
    let mut random = crate::gpu::driver::test_gpu::Random(7);
    let mut decoder = lend(&gpu.device).unwrap();
    let (mut taken, mut decoded, mut only_gpu) = (0, 0, 0);
    for _ in 0..count / 20 {
        let damaged: Vec<Vec<u8>> = (0..20)
            .map(|_| {
                let mut one = PROBE.to_vec();
                for _ in 0..1 + random.below(8) {
                    if one.len() < 16 {
                        break;
                    }
                    let at = random.below(one.len() as u64) as usize;
                    match random.below(4) {
                        0 => one.truncate(at.max(2)),
                        1 => drop(one.drain(at..(at + 9).min(one.len()))),
                        _ => one[at] = random.next() as u8,
                    }
                }
                one
            })
            .collect();
        let mut chunks: Vec<&[u8]> = damaged.iter().map(Vec::as_slice).collect();
        chunks.push(PROBE);
        let found = decode(&gpu, &mut decoder, &chunks);
        assert!(found[20].is_some());
        let format = format();
        for (chunk, found) in damaged.iter().zip(found) {
            taken += u32::from(format.image_for_gpu(chunk, &SHAPE).is_ok());
            if found.is_some() {
                decoded += 1;
                only_gpu += u32::from(format.decode(chunk, &SHAPE, &mut vec![0; 48 * 64 * 3]).is_err());
            }
        }
    }
    println!("{count} damaged images: {taken} taken, {decoded} decoded, {only_gpu} of these the CPU refuses");
    assert!(decoded > 0);
}
