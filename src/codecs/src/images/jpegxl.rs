//! JPEG XL (ISO/IEC 18181), as `imagecodecs_jpegxl` writes it with libjxl, and `jpegxl` of zarr-extensions, as it
//! stands: 1 to 4 channels of uint8, uint16, float16 or float32, lossless or lossy. The decoder is the crate jxl-oxide.
//! Its parsers are safe code; its loops over pixels have unsafe parts. It counts the memory that it takes.
//!
//! As in imagecodecs: integers keep the values that are stored, whatever the number of their bits is. Animations,
//! orientations, CMYK and channels other than colours and transparency are refused.

use half::f16;
use jxl_oxide::image::BitDepth;
use jxl_oxide::{AllocTracker, InitializeResult, JxlImage, JxlThreadPool, PixelFormat};

use super::fit::{Expected, Found, Interleaved, Unfit};
use super::step::Decoder;
use crate::codec_entry::{CodecEntry, Fields};
use dali_zarr_base::dtype::DType;
use dali_zarr_base::error::Result;

/// Bytes that are read first, to find the header.
const FIRST: usize = 256;

/// JPEG XL images.
#[derive(Debug)]
pub(crate) struct JpegXl;

impl JpegXl {
    /// Reads the configuration of `imagecodecs_jpegxl`.
    ///
    /// # Errors
    /// If a field is unknown, or names another image than the first.
    pub(crate) fn parse(entry: &CodecEntry<'_>) -> Result<Self> {
        let encoding = &[
            "level",
            "effort",
            "distance",
            "lossless",
            "decodingspeed",
            "photometric",
            "bitspersample",
            "planar",
            "primaries",
            "transfer",
            "usecontainer",
            "squeeze",
            "numthreads",
        ];
        // Images with an orientation are refused, so it may be kept or not.
        Fields { decoding: &["index", "keeporientation"], encoding }.check(entry)?;
        if entry.field("index").is_some_and(|value| value.as_u64() != Some(0)) {
            return Err(entry.wrong("index", "0, since animations have no decoder"));
        }
        Ok(Self)
    }

    /// Reads the configuration of zarr-extensions' `jpegxl`, which concerns encoders alone.
    ///
    /// # Errors
    /// If a field is unknown.
    pub(crate) fn extension(entry: &CodecEntry<'_>) -> Result<Self> {
        let encoding = &[
            "lossless",
            "distance",
            "effort",
            "decodingspeed",
            "photometric",
            "primaries",
            "transfer",
            "bitspersample",
            "usecontainer",
        ];
        Fields { decoding: &[], encoding }.check(entry)?;
        Ok(Self)
    }
}

/// Reads the whole image. `check` is called when its header is known, before memory is taken for pixels.
fn read(encoded: &[u8], limit: usize, check: impl Fn(&JxlImage) -> Result<(), Unfit>) -> Result<JxlImage, Unfit> {
    let tracker = AllocTracker::with_limit(limit);
    let mut header = JxlImage::builder().pool(JxlThreadPool::none()).alloc_tracker(tracker).build_uninit();
    let (mut given, mut piece) = (0, FIRST);
    let mut image = loop {
        let end = (given + piece).min(encoded.len());
        let taken = header.feed_bytes(&encoded[given..end]).map_err(Unfit::damaged)?;
        given += taken;
        match header.try_init().map_err(Unfit::damaged)? {
            InitializeResult::Initialized(image) => break image,
            InitializeResult::NeedMoreData(_) if end == encoded.len() && taken == 0 => {
                return Err(Unfit::damaged("its header ends too early"));
            }
            InitializeResult::NeedMoreData(same) => header = same,
        }
        // The header is read anew each time.
        piece *= 2;
    };
    check(&image)?;
    while given < encoded.len() {
        match image.feed_bytes(&encoded[given..]).map_err(Unfit::damaged)? {
            0 => break,
            taken => given += taken,
        }
    }
    image.finalize().map_err(Unfit::damaged)?;
    Ok(image)
}

/// Returns what the header says.
fn found(image: &JxlImage) -> Result<(Found, BitDepth), Unfit> {
    let metadata = &image.image_header().metadata;
    let channels = match image.pixel_format() {
        PixelFormat::Gray => 1,
        PixelFormat::Graya => 2,
        PixelFormat::Rgb => 3,
        PixelFormat::Rgba => 4,
        other => return Err(Unfit::damaged(format!("its pixels are {other:?}, which have no decoder"))),
    };
    if metadata.orientation != 1 || metadata.animation.is_some() {
        return Err(Unfit::damaged("it is an animation or has an orientation, which have no decoder"));
    }
    if metadata.ec_info.len() != usize::from(image.pixel_format().has_alpha()) {
        return Err(Unfit::damaged("it has channels other than colours and transparency, which have no decoder"));
    }
    let dtype = match metadata.bit_depth {
        BitDepth::IntegerSample { bits_per_sample: 1..=8 } => DType::U8,
        BitDepth::IntegerSample { bits_per_sample: 9..=16 } => DType::U16,
        BitDepth::FloatSample { bits_per_sample: 16, exp_bits: 5 } => DType::F16,
        BitDepth::FloatSample { bits_per_sample: 32, exp_bits: 8 } => DType::F32,
        other => return Err(Unfit::damaged(format!("its samples are {other:?}, which have no decoder"))),
    };
    let size = &image.image_header().size;
    let (height, width) = (size.height.into(), size.width.into());
    Ok((Found { height, width, channels, dtype, order: Interleaved::Yes }, metadata.bit_depth))
}

impl Decoder for JpegXl {
    const TYPES: &'static [DType] = &[DType::U8, DType::U16, DType::F16, DType::F32];

    fn decode(&self, encoded: &[u8], expected: &Expected<'_>, out: &mut [u8]) -> Result<(), Unfit> {
        let limit = self.working_bytes(out.len());
        let image = read(encoded, limit, |image| expected.check(&found(image)?.0))?;
        if image.num_loaded_keyframes() != 1 || !image.is_loading_done() {
            return Err(Unfit::damaged("it has no image, or several, or ends too early"));
        }
        let (_, depth) = found(&image)?;
        let render = image.render_frame(0).map_err(Unfit::damaged)?;
        let mut stream = render.stream();
        let (row, rows) = (stream.width() as usize * stream.channels() as usize, stream.height() as usize);
        if row * rows * expected.dtype.size() != out.len() || row == 0 {
            return Err(Unfit::damaged("its image has another size than its header says"));
        }
        let most = match depth {
            BitDepth::IntegerSample { bits_per_sample } => (1u32 << bits_per_sample) - 1,
            BitDepth::FloatSample { .. } => 1,
        } as f32;
        let mut values = vec![0f32; row];
        for pixels in out.chunks_exact_mut(row * expected.dtype.size()) {
            if stream.write_to_buffer(&mut values) != row {
                return Err(Unfit::damaged("it has fewer pixels than its header says"));
            }
            let whole = |v: f32| (v * most + 0.5).clamp(0.0, most);
            let values = values.iter();
            match expected.dtype {
                DType::U8 => pixels.iter_mut().zip(values).for_each(|(to, &v)| *to = whole(v) as u8),
                DType::U16 => {
                    let to = pixels.as_chunks_mut::<2>().0.iter_mut();
                    to.zip(values).for_each(|(to, &v)| *to = (whole(v) as u16).to_ne_bytes());
                }
                DType::F16 => {
                    let to = pixels.as_chunks_mut::<2>().0.iter_mut();
                    to.zip(values).for_each(|(to, &v)| *to = f16::from_f32(v).to_ne_bytes());
                }
                _ => {
                    let to = pixels.as_chunks_mut::<4>().0.iter_mut();
                    to.zip(values).for_each(|(to, &v)| *to = v.to_ne_bytes());
                }
            }
        }
        Ok(())
    }

    fn working_bytes(&self, decoded: usize) -> usize {
        // A few planes of floats for each channel of a byte, and groups that small images are filled up to.
        decoded.saturating_mul(24).saturating_add(16 << 20)
    }
}
