use super::{EncodedImage, ImageDecoder, available, jpeg, jpeg2k, lend};
use crate::gpu::driver::test_gpu::{Gpu, Random, gpu};
use dali_zarr_base::dtype::DType;
use dali_zarr_codecs::{ChunkFormat, GpuImage, ImageFormat};

/// An image, and the chunk that it is of.
struct Seed {
    name: &'static str,
    format: ImageFormat,
    chunk: ChunkFormat,
    shape: Vec<u64>,
    dtype: DType,
    bytes: &'static [u8],
    /// How far the GPU's values may be from the CPU's.
    most: i32,
}

macro_rules! image {
    ($name:literal) => {
        ($name, include_bytes!(concat!("../../../../codecs/tests/images/", $name)).as_slice())
    };
}

/// Images of each format: channels, bits, signs and tiles of several kinds, in odd sizes.
fn seeds() -> Vec<Seed> {
    use ImageFormat::{Jpeg, Jpeg2k};
    let all: [(_, _, _, &[u64], _); 12] = [
        (Jpeg, ("the probe", jpeg::PROBE.bytes), DType::U8, &[48, 64, 3], 1),
        (Jpeg, image!("420.jpg"), DType::U8, &[17, 33, 3], 1),
        (Jpeg, image!("restarts.jpg"), DType::U8, &[50, 40, 3], 1),
        (Jpeg, image!("gray.jpg"), DType::U8, &[13, 19], 1),
        (Jpeg2k, ("the probe", jpeg2k::PROBE.bytes), DType::U8, &[48, 64], 0),
        (Jpeg2k, image!("color.jp2"), DType::U8, &[17, 33, 3], 0),
        (Jpeg2k, image!("alpha.jp2"), DType::U8, &[11, 21, 4], 0),
        (Jpeg2k, image!("deep.j2k"), DType::U16, &[30, 40], 0),
        (Jpeg2k, image!("twelve.jp2"), DType::U16, &[30, 40], 0),
        (Jpeg2k, image!("signed.jp2"), DType::I16, &[30, 40], 0),
        (Jpeg2k, image!("lossy-deep.j2k"), DType::U16, &[30, 40], 1),
        (Jpeg2k, image!("tiles.j2k"), DType::U8, &[50, 40, 3], 0),
    ];
    let made = all.map(|(format, (name, bytes), dtype, shape, most)| {
        let codec = if format == Jpeg { "imagecodecs_jpeg" } else { "imagecodecs_jpeg2k" };
        let codecs = serde_json::json!([{"name": codec, "configuration": {}}]);
        let chunk = ChunkFormat::from_v3(&codecs, dtype, 0, shape).unwrap();
        Seed { name, format, chunk, shape: shape.to_vec(), dtype, bytes, most }
    });
    made.into()
}

impl Seed {
    fn decoded_bytes(&self) -> usize {
        self.shape.iter().product::<u64>() as usize * self.dtype.size()
    }

    /// Decodes on the CPU.
    fn on_cpu(&self, chunk: &[u8]) -> Option<Vec<u8>> {
        let mut out = vec![0; self.decoded_bytes()];
        self.chunk.decode(chunk, &self.shape, &mut out).ok().map(|()| out)
    }

    /// Decodes chunks on the GPU. Those that aren't decoded are `None`.
    fn decode(&self, gpu: &Gpu, decoder: &mut ImageDecoder, chunks: &[Guarded]) -> Vec<Option<Vec<u8>>> {
        let images: Vec<Option<GpuImage>> =
            chunks.iter().map(|chunk| self.chunk.image_for_gpu(chunk.bytes(), &self.shape).ok()).collect();
        // What lies behind the pixels must stay.
        let size = self.decoded_bytes();
        let buffers: Vec<_> = chunks.iter().map(|_| gpu.upload(&vec![0xa5; size + 64])).collect();
        let taken: Vec<usize> = (0..chunks.len()).filter(|&i| images[i].is_some()).collect();
        let encoded: Vec<EncodedImage<'_>> = taken
            .iter()
            .map(|&i| {
                let (bytes, image) = (chunks[i].bytes(), images[i].as_ref().unwrap());
                EncodedImage { bytes, image, to: buffers[i].ptr() }
            })
            .collect();
        // SAFETY: each buffer has room for the pixels, and the stream is waited for.
        let refused: Vec<usize> =
            unsafe { decoder.decode(&gpu.stream, &encoded) }.into_iter().map(|(k, _)| taken[k]).collect();
        gpu.stream.synchronize().unwrap();
        let decoded = |i: usize| {
            let mut found = gpu.download(&buffers[i]);
            assert!(found.split_off(size).iter().all(|&byte| byte == 0xa5), "{}", self.name);
            (taken.contains(&i) && !refused.contains(&i)).then_some(found)
        };
        (0..chunks.len()).map(decoded).collect()
    }
}

/// Bytes before a page that can't be read.
struct Guarded {
    pages: *mut libc::c_void,
    mapped: usize,
    len: usize,
}

impl Guarded {
    fn new(bytes: &[u8]) -> Self {
        // SAFETY: asks for a number.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let mapped = (bytes.len().div_ceil(page) + 1) * page;
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: maps new pages, writes within them, and takes the rights from the last one.
        unsafe {
            let pages = libc::mmap(std::ptr::null_mut(), mapped, access, flags, -1, 0);
            assert_ne!(pages, libc::MAP_FAILED);
            let end = pages.cast::<u8>().add(mapped - page);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), end.sub(bytes.len()), bytes.len());
            assert_eq!(libc::mprotect(end.cast(), page, libc::PROT_NONE), 0);
            Self { pages, mapped: mapped - page, len: bytes.len() }
        }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: they lie at the end of what can be read.
        unsafe { std::slice::from_raw_parts(self.pages.cast::<u8>().add(self.mapped - self.len), self.len) }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, with one page more.
        unsafe { libc::munmap(self.pages, self.mapped + libc::sysconf(libc::_SC_PAGESIZE) as usize) };
    }
}

/// A GPU, and the images that it has a decoder for. Prints why others are skipped.
fn with_decoders() -> Option<(Gpu, Vec<Seed>)> {
    let gpu = gpu()?;
    let is_there = |seed: &Seed| {
        available(&gpu.device, seed.format).map_err(|e| println!("{:?} is skipped: {e}", seed.format)).is_ok()
    };
    let seeds = seeds().into_iter().filter(is_there).collect();
    Some((gpu, seeds))
}

/// Returns the values of little-endian elements.
fn values(bytes: &[u8], dtype: DType) -> Vec<i32> {
    match dtype {
        DType::U8 => bytes.iter().map(|&b| b.into()).collect(),
        DType::U16 => bytes.as_chunks().0.iter().map(|&two| u16::from_le_bytes(two).into()).collect(),
        _ => bytes.as_chunks().0.iter().map(|&two| i16::from_le_bytes(two).into()).collect(),
    }
}

#[test]
fn all_are_for_the_gpu() {
    for seed in seeds() {
        let image = seed.chunk.image_for_gpu(seed.bytes, &seed.shape);
        assert!(image.is_ok() && seed.on_cpu(seed.bytes).is_some(), "{}: {image:?}", seed.name);
    }
}

#[test]
fn pixels_are_those_of_the_cpu() {
    let Some((gpu, seeds)) = with_decoders() else { return };
    for seed in seeds {
        let expected = values(&seed.on_cpu(seed.bytes).unwrap(), seed.dtype);
        let mut decoder = lend(&gpu.device, seed.format).unwrap();
        for round in 1..4 {
            let chunks: Vec<Guarded> = (0..7 * round).map(|_| Guarded::new(seed.bytes)).collect();
            for found in seed.decode(&gpu, &mut decoder, &chunks) {
                let found = values(&found.expect(seed.name), seed.dtype);
                let furthest = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).max();
                assert!(furthest <= Some(seed.most), "{}: {furthest:?}", seed.name);
            }
        }
    }
}

/// Whatever the bytes are, the context stays, nothing is written behind the pixels, and images beside damaged ones are decoded.
#[test]
fn damaged_images_leave_the_others_alone() {
    let Some((gpu, seeds)) = with_decoders() else { return };
    let count: u64 = std::env::var("DALI_ZARR_GPU_IMAGES").ok().and_then(|n| n.parse().ok()).unwrap_or(2000);
    for format in super::FORMATS {
        let seeds: Vec<&Seed> = seeds.iter().filter(|seed| seed.format == format).collect();
        if seeds.is_empty() {
            continue;
        }
        let mut random = Random(7);
        let mut decoder = lend(&gpu.device, format).unwrap();
        let (mut taken, mut decoded, mut only_gpu) = (0, 0, 0);
        for call in 0..count / 20 {
            let seed = seeds[call as usize % seeds.len()];
            let mut chunks: Vec<Guarded> = (0..20).map(|_| Guarded::new(&damage(seed.bytes, &mut random))).collect();
            chunks.push(Guarded::new(seed.bytes));
            let found = seed.decode(&gpu, &mut decoder, &chunks);
            assert!(found[20].is_some(), "{}", seed.name);
            for (chunk, found) in chunks[..20].iter().zip(found) {
                taken += u32::from(seed.chunk.image_for_gpu(chunk.bytes(), &seed.shape).is_ok());
                if found.is_some() {
                    decoded += 1;
                    only_gpu += u32::from(seed.on_cpu(chunk.bytes()).is_none());
                }
            }
        }
        println!(
            "{count} damaged images of {format:?}: {taken} taken, {decoded} decoded, {only_gpu} of these the CPU refuses"
        );
        assert!(decoded > 0);
    }
}

/// Changes bytes, of which most lie behind the headers.
fn damage(image: &[u8], random: &mut Random) -> Vec<u8> {
    let mut one = image.to_vec();
    let first = if random.below(3) > 0 { one.len() / 3 } else { 0 };
    for _ in 0..1 + random.below(8) {
        if one.len() < first + 16 {
            break;
        }
        let at = first + random.below((one.len() - first) as u64) as usize;
        match random.below(16) {
            0 => one.truncate(at.max(2)),
            1 => drop(one.drain(at..(at + 9).min(one.len()))),
            _ => one[at] = random.next() as u8,
        }
    }
    one
}
