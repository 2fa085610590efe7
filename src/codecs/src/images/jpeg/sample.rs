//! From samples of components to pixels: chroma is interpolated as by libjpeg-turbo's "fancy upsampling", and colours
//! are converted with its integers, so that pixels equal its own.

use super::frame::Component;

/// The samples of a component.
pub(super) struct Plane {
    pub samples: Vec<u8>,
    /// Samples from one row to the next.
    pub stride: usize,
    /// Samples in a row, and rows, that are part of the image.
    pub width: usize,
    pub height: usize,
}

/// How often each sample is repeated, and how.
#[derive(Clone, Copy)]
pub(super) struct Scaling {
    /// Pixels in each direction for one sample.
    horizontal: usize,
    vertical: usize,
    /// Whether samples are interpolated to the left and right, and above and below.
    smooth: (bool, bool),
}

impl Scaling {
    /// The scaling of a component, whose `plane` has these samples. `None` if a pixel isn't part of one sample.
    pub fn new(component: &Component, most: (usize, usize), plane: &Plane) -> Option<Self> {
        let (h, v) = (component.horizontal, component.vertical);
        if !most.0.is_multiple_of(h) || !most.1.is_multiple_of(v) {
            return None;
        }
        let (horizontal, vertical) = (most.0 / h, most.1 / v);
        // libjpeg-turbo interpolates these three cases.
        let smooth = match (horizontal, vertical) {
            (2, 1) if plane.width > 2 => (true, false),
            (2, 2) if plane.width > 2 => (true, true),
            (1, 2) => (false, true),
            _ => (false, false),
        };
        Some(Self { horizontal, vertical, smooth })
    }
}

impl Plane {
    fn row(&self, y: usize) -> &[u8] {
        &self.samples[y * self.stride..][..self.width]
    }

    /// Fills `out` with the pixels of row `y` of the image. `sums` is a buffer.
    #[inline(always)]
    pub fn pixels(&self, y: usize, scaling: Scaling, sums: &mut Vec<u16>, out: &mut [u8]) {
        let own = y / scaling.vertical;
        let near = self.row(own);
        let below = y % scaling.vertical == 1;
        // The row beside this one, on the pixel's side. Outside the image it is the row itself.
        let beside = if below { (own + 1).min(self.height - 1) } else { own.saturating_sub(1) };
        match (scaling.smooth, scaling.horizontal) {
            ((false, false), 1) => out.copy_from_slice(&near[..out.len()]),
            ((false, false), n) => {
                for (pixels, sample) in out.chunks_mut(n).zip(near) {
                    pixels.fill(*sample);
                }
            }
            ((false, true), _) => {
                let bias = if below { 2 } else { 1 };
                for ((pixel, &a), &b) in out.iter_mut().zip(near).zip(self.row(beside)) {
                    *pixel = ((u16::from(a) * 3 + u16::from(b) + bias) >> 2) as u8;
                }
            }
            ((true, false), _) => {
                sums.clear();
                sums.extend(near.iter().map(|&a| u16::from(a)));
                widened::<2, 1, 2>(sums, out);
            }
            ((true, true), _) => {
                sums.clear();
                sums.extend(near.iter().zip(self.row(beside)).map(|(&a, &b)| u16::from(a) * 3 + u16::from(b)));
                widened::<4, 8, 7>(sums, out);
            }
        }
    }
}

/// Makes two pixels of each of the at least three `values`: three quarters of it and a quarter of its neighbour. The
/// sum has `BITS` more bits than a sample. `LEFT` and `RIGHT` are added before they are dropped.
#[inline(always)]
fn widened<const BITS: u32, const LEFT: u16, const RIGHT: u16>(values: &[u16], out: &mut [u8]) {
    let last = values.len() - 1;
    let mut put = |at: usize, value: u16| {
        if let Some(pixel) = out.get_mut(at) {
            *pixel = (value >> BITS) as u8;
        }
    };
    put(0, values[0] * 4 + if BITS == 2 { 0 } else { LEFT });
    put(2 * last, values[last] * 3 + values[last - 1] + LEFT);
    put(2 * last + 1, values[last] * 4 + if BITS == 2 { 0 } else { RIGHT });
    put(1, values[0] * 3 + values[1] + RIGHT);
    let (pairs, _) = out.as_chunks_mut::<2>();
    for (pair, three) in pairs.iter_mut().skip(1).zip(values.windows(3)) {
        let own = three[1] * 3;
        *pair = [((own + three[0] + LEFT) >> BITS) as u8, ((own + three[2] + RIGHT) >> BITS) as u8];
    }
}

/// How the samples of a pixel become its channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Convert {
    /// They are its channels.
    Same,
    /// The first one is the only channel.
    First,
    /// Luma and chroma become red, green and blue.
    Rgb,
    /// As `Rgb`, with an opaque fourth channel.
    Rgba,
    /// Red, green and blue get an opaque fourth channel.
    Opaque,
    /// One sample is red, green and blue. With 4 channels, the fourth is opaque.
    Repeated(usize),
    /// Red, green and blue become gray.
    Gray,
    /// Luma and chroma become the complement of red, green and blue; the fourth sample stays.
    Cmyk,
}

impl Convert {
    /// Returns the number of channels, of pixels with this number of samples.
    pub fn channels(self, samples: usize) -> usize {
        match self {
            Self::Same => samples,
            Self::First | Self::Gray => 1,
            Self::Rgb => 3,
            Self::Rgba | Self::Opaque | Self::Cmyk => 4,
            Self::Repeated(channels) => channels,
        }
    }

    /// Fills `out` with pixels from the `rows` of samples.
    #[inline(always)]
    pub fn row(self, rows: &[Vec<u8>], out: &mut [u8]) {
        match (self, rows) {
            (Self::Same | Self::First, [one, ..]) if self.channels(rows.len()) == 1 => out.copy_from_slice(one),
            (Self::Rgb, [y, cb, cr]) => {
                for (((pixel, &y), &cb), &cr) in out.as_chunks_mut::<3>().0.iter_mut().zip(y).zip(cb).zip(cr) {
                    *pixel = rgb(y, cb, cr);
                }
            }
            (Self::Rgba, [y, cb, cr]) => {
                for (((pixel, &y), &cb), &cr) in out.as_chunks_mut::<4>().0.iter_mut().zip(y).zip(cb).zip(cr) {
                    let [r, g, b] = rgb(y, cb, cr);
                    *pixel = [r, g, b, 255];
                }
            }
            (Self::Cmyk, [y, cb, cr, k]) => {
                let pixels = out.as_chunks_mut::<4>().0.iter_mut();
                for ((((pixel, &y), &cb), &cr), &k) in pixels.zip(y).zip(cb).zip(cr).zip(k) {
                    let [r, g, b] = rgb(y, cb, cr);
                    *pixel = [255 - r, 255 - g, 255 - b, k];
                }
            }
            (Self::Gray, [r, g, b]) => {
                for (((pixel, &r), &g), &b) in out.iter_mut().zip(r).zip(g).zip(b) {
                    let sum = 19_595 * u32::from(r) + 38_470 * u32::from(g) + 7_471 * u32::from(b) + 32_768;
                    *pixel = (sum >> 16) as u8;
                }
            }
            (Self::Repeated(channels), [one, ..]) => {
                for (pixel, &v) in out.chunks_exact_mut(channels).zip(one) {
                    pixel[..3].fill(v);
                    pixel[3..].fill(255);
                }
            }
            _ => {
                let channels = self.channels(rows.len());
                for (x, pixel) in out.chunks_exact_mut(channels).enumerate() {
                    for (channel, sample) in pixel.iter_mut().enumerate() {
                        *sample = rows.get(channel).map_or(255, |row| row[x]);
                    }
                }
            }
        }
    }
}

/// Returns red, green and blue of luma and chroma, with factors of 16 bits.
#[inline(always)]
fn rgb(y: u8, cb: u8, cr: u8) -> [u8; 3] {
    let (y, cb, cr) = (i32::from(y), i32::from(cb) - 128, i32::from(cr) - 128);
    let red = y + ((91_881 * cr + 32_768) >> 16);
    let green = y + ((-22_554 * cb - 46_802 * cr + 32_768) >> 16);
    let blue = y + ((116_130 * cb + 32_768) >> 16);
    [red, green, blue].map(|v| v.clamp(0, 255) as u8)
}
