//! Readings of single arguments that both doors of the library share.

use std::path::PathBuf;

use dali_zarr_engine::error::{Error, Result};
use dali_zarr_engine::spec::{DecodeDevice, Io, OutOfBounds, Pick, Spec};

/// The error under the operator's name, where it doesn't say it already.
pub fn named(error: &Error) -> Error {
    if error.message().starts_with("zarr_reader") { error.clone() } else { error.within("zarr_reader") }
}

/// `pick`, a text for each dimension.
pub fn parse_picks(texts: &[String]) -> Result<Vec<Pick>> {
    texts.iter().map(|text| Pick::parse(text)).collect()
}

/// `storage_options`, a text for each.
pub fn parse_options(texts: &[String]) -> Result<Vec<(String, String)>> {
    texts.iter().map(|text| Spec::parse_option(text)).collect()
}

/// `path`, which must name at least one store.
pub fn parse_paths(paths: Vec<String>) -> Result<Vec<String>> {
    if paths.is_empty() {
        return Err(Error::value("path: expected at least one store, but found none"));
    }
    Ok(paths)
}

/// A count that must be at least one.
pub fn positive(name: &str, value: i64) -> Result<usize> {
    usize::try_from(value)
        .ok()
        .filter(|&v| v > 0)
        .ok_or_else(|| Error::value(format!("{name}: expected a whole number of at least 1, but found {value}")))
}

/// Bytes, perhaps none.
pub fn size(name: &str, value: i64) -> Result<u64> {
    u64::try_from(value)
        .map_err(|_| Error::value(format!("{name}: expected a number of bytes, or 0, but found {value}")))
}

/// `cache_dir`; empty: none.
pub fn parse_folder(text: &str) -> Option<PathBuf> {
    (!text.is_empty()).then(|| text.into())
}

/// `out_of_bounds_policy` as it is spelled by the user.
pub fn parse_policy(text: &str) -> Result<OutOfBounds> {
    match text {
        "error" => Ok(OutOfBounds::Error),
        "drop" => Ok(OutOfBounds::Drop),
        "pad" => Ok(OutOfBounds::Pad),
        _ => Err(Error::value(format!(
            "out_of_bounds_policy: expected \"error\", \"drop\" or \"pad\", but found {text:?}"
        ))),
    }
}

/// `io` as it is spelled by the user.
pub fn parse_io(text: &str) -> Result<Io> {
    match text {
        "auto" => Ok(Io::Auto),
        "posix" => Ok(Io::Posix),
        "gds" => Ok(Io::Gds),
        _ => Err(Error::value(format!("io: expected \"auto\", \"posix\" or \"gds\", but found {text:?}"))),
    }
}

/// `decode_device` as it is spelled by the user.
pub fn parse_decode_device(text: &str) -> Result<DecodeDevice> {
    match text {
        "auto" => Ok(DecodeDevice::Auto),
        "gpu" => Ok(DecodeDevice::Gpu),
        "cpu" => Ok(DecodeDevice::Cpu),
        _ => Err(Error::value(format!("decode_device: expected \"auto\", \"gpu\" or \"cpu\", but found {text:?}"))),
    }
}
