use super::{EncodedImage, FORMATS, ImageDecoder, available, jpeg, jpeg2k, lend};
use crate::gpu::driver::test_gpu::{Gpu, Random, gpu};
use dali_zarr_base::dtype::DType;
use dali_zarr_codecs::{ChunkFormat, GpuImage, ImageFormat};

/// Images of one format, of the size of its probe.
struct Kind {
    format: ImageFormat,
    chunk: ChunkFormat,
    shape: Vec<u64>,
    probe: &'static [u8],
}

impl Kind {
    fn new(format: ImageFormat) -> Self {
        let (codec, probe) = match format {
            ImageFormat::Jpeg => ("imagecodecs_jpeg", jpeg::PROBE),
            ImageFormat::Jpeg2k => ("imagecodecs_jpeg2k", jpeg2k::PROBE),
        };
        let shape = vec![u64::from(probe.height), u64::from(probe.width), u64::from(probe.channels)];
        let codecs = serde_json::json!([{"name": codec, "configuration": {}}]);
        let chunk = ChunkFormat::from_v3(&codecs, DType::U8, 0, &shape).unwrap();
        Self { format, chunk, shape, probe: probe.bytes }
    }

    fn bytes(&self) -> usize {
        self.shape.iter().product::<u64>() as usize
    }

    /// Decodes on the CPU.
    fn on_cpu(&self, chunk: &[u8]) -> Option<Vec<u8>> {
        let mut out = vec![0; self.bytes()];
        self.chunk.decode(chunk, &self.shape, &mut out).ok().map(|()| out)
    }

    /// Decodes chunks on the GPU. Those that aren't decoded are `None`.
    fn decode(&self, gpu: &Gpu, decoder: &mut ImageDecoder, chunks: &[&[u8]]) -> Vec<Option<Vec<u8>>> {
        let images: Vec<Option<GpuImage>> =
            chunks.iter().map(|chunk| self.chunk.image_for_gpu(chunk, &self.shape).ok()).collect();
        let buffers: Vec<_> = chunks.iter().map(|_| gpu.upload(&vec![0; self.bytes()])).collect();
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
}

/// A GPU, and the kinds of images that it decodes. Prints why the others are skipped.
fn with_decoders() -> Option<(Gpu, Vec<Kind>)> {
    let gpu = gpu()?;
    let is_there = |format: &ImageFormat| {
        available(&gpu.device, *format).map_err(|error| println!("{format:?} is skipped: {error}")).is_ok()
    };
    let kinds = FORMATS.into_iter().filter(is_there).map(Kind::new).collect();
    Some((gpu, kinds))
}

#[test]
fn pixels_are_those_of_the_cpu() {
    let Some((gpu, kinds)) = with_decoders() else { return };
    for kind in kinds {
        let expected = kind.on_cpu(kind.probe).unwrap();
        let mut decoder = lend(&gpu.device, kind.format).unwrap();
        for round in 1..4 {
            for found in kind.decode(&gpu, &mut decoder, &vec![kind.probe; 7 * round]) {
                let furthest = found.unwrap().iter().zip(&expected).map(|(a, b)| a.abs_diff(*b)).max();
                // The JPEG 2000 image is lossless.
                assert!(furthest <= Some(u8::from(kind.format == ImageFormat::Jpeg)), "{furthest:?}");
            }
        }
    }
}

/// Whatever the bytes are, the context stays, and images beside damaged ones are decoded.
#[test]
fn damaged_images_leave_the_others_alone() {
    let Some((gpu, kinds)) = with_decoders() else { return };
    let count: u64 = std::env::var("DALI_ZARR_GPU_IMAGES").ok().and_then(|n| n.parse().ok()).unwrap_or(2000);
    for kind in kinds {
        let mut random = Random(7);
        let mut decoder = lend(&gpu.device, kind.format).unwrap();
        let (mut taken, mut decoded, mut only_gpu) = (0, 0, 0);
        for _ in 0..count / 20 {
            let damaged: Vec<Vec<u8>> = (0..20).map(|_| damage(kind.probe, &mut random)).collect();
            let mut chunks: Vec<&[u8]> = damaged.iter().map(Vec::as_slice).collect();
            chunks.push(kind.probe);
            let found = kind.decode(&gpu, &mut decoder, &chunks);
            assert!(found[20].is_some());
            for (chunk, found) in damaged.iter().zip(found) {
                taken += u32::from(kind.chunk.image_for_gpu(chunk, &kind.shape).is_ok());
                if found.is_some() {
                    decoded += 1;
                    only_gpu += u32::from(kind.on_cpu(chunk).is_none());
                }
            }
        }
        println!(
            "{count} damaged images of {:?}: {taken} taken, {decoded} decoded, {only_gpu} of these the CPU refuses",
            kind.format
        );
        assert!(decoded > 0);
    }
}

fn damage(image: &[u8], random: &mut Random) -> Vec<u8> {
    let mut one = image.to_vec();
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
}
