//! Chunks that are images: codecs of imagecodecs and zarr-extensions that turn elements into the bytes of an image
//! file.
//!
//! An image fits a chunk if it has the chunk's type, and if its channels, its columns and its rows are the chunk's last
//! axes, in this order. Several axes may be flattened to one, as imagecodecs does with axes of one element: see
//! [`fit::Expected`]. Each decoder compares an image's header with the chunk before it takes memory for pixels, so the
//! memory that a decoder takes is bounded by the chunk's size, whatever the header claims.
//!
//! In v2 and v3 the codecs of imagecodecs have the same names and the same bytes. In v3 they stand in place of `bytes`
//! ([imagecodecs.zarr]), or after it, as virtual-tiff writes them. Each decoder names the fields of its configuration
//! that it reads, and those that concern encoders alone; others are refused.
//!
//! [imagecodecs.zarr]: https://github.com/cgohlke/imagecodecs/blob/master/imagecodecs/zarr.py

mod boxes;
mod fit;
mod jpeg;
mod jpeg2k;
mod jpegxl;
mod png;
mod step;
#[cfg(test)]
mod tests;
mod webp;

pub(super) use jpeg::Jpeg;
pub(super) use jpeg2k::Jpeg2k;
pub(super) use jpegxl::JpegXl;
pub(super) use png::Png;
pub(super) use step::Image;
pub(super) use webp::WebP;
