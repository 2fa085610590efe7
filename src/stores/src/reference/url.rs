//! Turns the names of files in references into URLs, with one spelling for each file; paths of this machine too.

use std::path::{Component, Path, PathBuf};

use dali_zarr_base::error::{Error, Result};
use dali_zarr_base::service::Service;

/// Resolves names of files as fsspec does. A name that isn't a URL is a path of this machine. A relative path lies
/// below the directory that was current when the reader was made, wherever the references are.
#[derive(Clone, Debug)]
pub(super) struct Resolver {
    /// That directory; `None` if the system doesn't tell.
    current: Option<PathBuf>,
}

impl Resolver {
    /// `directory`: the one that was current when the reader was made; `None`: it is now.
    pub fn new(directory: Option<&Path>) -> Self {
        Self { current: directory.map(Path::to_owned).or_else(|| std::env::current_dir().ok()) }
    }

    #[cfg(test)]
    pub fn at(current: &str) -> Self {
        Self { current: Some(current.into()) }
    }

    /// Returns the URL of a file, with one spelling for each scheme. For fsspec, the names of files in file systems and
    /// buckets aren't encoded: a percent sign in them is literal, and becomes `%25`.
    ///
    /// # Errors
    /// If the path is relative and there is no current directory, or a part of the path isn't UTF-8.
    pub fn resolve(&self, url: &str) -> Result<String> {
        // For fsspec, a single letter before the colon is a drive.
        if let Some((scheme, rest)) = url.split_once("://").filter(|(scheme, _)| scheme.len() > 1) {
            let scheme = match scheme {
                "file" | "local" => return self.file(rest),
                "http" | "https" => return Ok(url.to_owned()),
                other => Service::usual(other).map_or(other, |(usual, _)| usual),
            };
            return Ok(format!("{scheme}://{}", rest.replace('%', "%25")));
        }
        self.file(url)
    }

    fn file(&self, path: &str) -> Result<String> {
        let path = Path::new(path);
        let absolute = if path.is_absolute() {
            path.to_owned()
        } else {
            let current = self.current.as_ref().ok_or_else(|| {
                Error::runtime(format!(
                    "expected a current directory for the relative path {path:?}, but there is none"
                ))
            })?;
            current.join(path)
        };
        let mut parts: Vec<&str> = Vec::new();
        for component in absolute.components() {
            match component {
                Component::ParentDir => drop(parts.pop()),
                Component::Normal(part) => parts.push(part.to_str().ok_or_else(|| {
                    Error::runtime(format!("expected a current directory whose name is UTF-8, but found {absolute:?}"))
                })?),
                _ => {}
            }
        }
        Ok(format!("file:///{}", parts.join("/").replace('%', "%25")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_name_for_each_file() {
        let resolver = Resolver::at("/data/dir");
        for (given, expected) in [
            ("a.nc", "file:///data/dir/a.nc"),
            ("./b/../a b.nc", "file:///data/dir/a b.nc"),
            ("../../../etc/passwd", "file:///etc/passwd"),
            ("/data//x/./a%20.nc", "file:///data/x/a%2520.nc"),
            ("file:///data/a.nc", "file:///data/a.nc"),
            ("file://a.nc", "file:///data/dir/a.nc"),
            ("local:///data/a.nc", "file:///data/a.nc"),
            ("s3://bucket/a b%20.nc", "s3://bucket/a b%2520.nc"),
            ("s3a://bucket/a", "s3://bucket/a"),
            ("s3n://bucket/a", "s3://bucket/a"),
            ("gcs://bucket/a", "gs://bucket/a"),
            ("https://host/a%20b", "https://host/a%20b"),
            ("c://x", "file:///data/dir/c:/x"),
            ("", "file:///data/dir"),
        ] {
            assert_eq!(resolver.resolve(given).unwrap(), expected, "{given}");
        }
        assert!(Resolver { current: None }.resolve("a.nc").unwrap_err().message().contains("current directory"));
    }
}
