//! A Parquet file of references: rows with the columns `path`, `offset`, `size` and `raw`, as fsspec writes them.

use super::document::inline;
use super::parquet::File;
use super::targets::Targets;
use super::url::Resolver;
use dali_zarr_base::error::{Error, Result};

/// Most rows of a file.
const MAX_ROWS: u64 = 1 << 24;

/// Reads the references of a file. Row `i` is target number `i`.
///
/// # Errors
/// If the file is damaged, isn't one of references, or takes too much memory.
pub(super) fn parse(bytes: &[u8], resolver: &Resolver) -> Result<Targets> {
    let file = File::open(bytes, MAX_ROWS)?;
    let mut targets = Targets::default();
    targets.grow(file.rows());
    targets.check()?;
    let mut ranges = vec![(0u64, 0u64); file.rows()];
    let number =
        |n: i64| u64::try_from(n).map_err(|_| Error::runtime(format!("expected a number of bytes, but found {n}")));
    let mut offset = |i: usize, n| {
        ranges[i].0 = number(n)?;
        Ok(())
    };
    let has_offsets = file.integers("offset", &mut offset)?;
    let mut size = |i: usize, n| {
        ranges[i].1 = number(n)?;
        Ok(())
    };
    let has_sizes = file.integers("size", &mut size)?;
    let mut urls = Vec::new();
    let url = |url: &[u8]| {
        let url =
            std::str::from_utf8(url).map_err(|_| Error::runtime("expected paths in UTF-8, but found other bytes"))?;
        targets.url(&resolver.resolve(url)?)
    };
    let has_paths = file.bytes("path", url, |i, url| {
        urls.push((i, url));
        Ok(())
    })?;
    for (i, url) in urls {
        // Without a range (offset and size are 0) the reference is to the whole file.
        targets.set_file(i, url, (ranges[i] != (0, 0)).then_some(ranges[i]))?;
    }
    // An inline value takes precedence over a reference to a file.
    let mut values = Vec::new();
    let value = |value: &[u8]| Ok(targets.bytes(&inline(value)?));
    let has_values = file.bytes("raw", value, |i, place| {
        values.push((i, place));
        Ok(())
    })?;
    values.iter().for_each(|(i, place)| targets.set_inline(*i, place));
    let has_ranges = has_paths && has_offsets && has_sizes;
    if !has_values && !has_ranges {
        return Err(Error::runtime("expected the columns path, offset and size, or raw, but found others"));
    }
    targets.check()?;
    targets.finish();
    Ok(targets)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::targets::Target;
    use super::*;

    /// Returns the names and bytes of the files in `tests/corpus/references`, which its `write.py` wrote.
    fn corpus() -> Vec<(String, Vec<u8>)> {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/corpus/references");
        let entries = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path());
        let mut files: Vec<_> = entries
            .filter(|p| p.extension().is_some_and(|e| e == "parq"))
            .map(|p| (p.file_name().unwrap().to_str().unwrap().to_owned(), std::fs::read(p).unwrap()))
            .collect();
        files.sort();
        files
    }

    /// Returns the URL, offset, size and inline value in row `i` of each file; `None` if it has no reference.
    fn expected(i: usize) -> Option<(Option<String>, u64, u64, Vec<u8>)> {
        let url = format!("s3://bucket/file{}.nc", i / 6);
        match i % 6 {
            0 => None,
            1 => Some((Some(url), 0, 0, Vec::new())),
            2 => Some((None, 0, 0, vec![i as u8, 0, 255])),
            _ => Some((Some(url), 1000 * i as u64, 7 + i as u64, Vec::new())),
        }
    }

    #[test]
    fn what_each_writer_wrote() {
        let files = corpus();
        assert!(files.len() >= 6, "{}", files.len());
        for (name, bytes) in files {
            let targets = parse(&bytes, &Resolver::at("/")).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(targets.len(), 100, "{name}");
            for i in 0..100 {
                let found = targets.get(i).map(|target| match target {
                    Target::Inline(bytes) => (None, 0, 0, bytes.to_vec()),
                    Target::Whole(url) => (Some(url.to_string()), 0, 0, Vec::new()),
                    Target::Range { url, offset, len } => (Some(url.to_string()), offset, len, Vec::new()),
                });
                assert_eq!(found, expected(i), "{name}, row {i}");
            }
        }
    }

    #[test]
    fn damage_is_an_error_or_harmless() {
        for (name, bytes) in corpus() {
            for len in 0..bytes.len() {
                assert!(parse(&bytes[..len], &Resolver::at("/")).is_err(), "{name} cut to {len}");
            }
            for at in 0..bytes.len() {
                for flip in [1, 0x10, 0x80, 0xff] {
                    let mut damaged = bytes.clone();
                    damaged[at] ^= flip;
                    // Whatever the result is, it takes no more memory than rows and bytes allow.
                    let _ = parse(&damaged, &Resolver::at("/"));
                }
            }
        }
    }
}
