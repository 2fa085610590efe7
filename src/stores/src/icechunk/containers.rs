//! The places of virtual chunks that a repository's configuration gives names. A chunk at `vcc://NAME/PATH` lies in the
//! container of that name, so the URL is the container's with the path behind it.
//!
//! This only makes URLs. Whether they may be read is decided as for all virtual chunks.

use std::sync::Arc;

use super::flex::Value;
use dali_zarr_base::error::Result;

/// Beginning of a location in a container.
pub(super) const SCHEME: &str = "vcc://";
/// The key of the configuration, if the file `repo` doesn't have it.
pub(super) const DOCUMENT: &str = "config.yaml";
/// The field of the configuration.
const FIELD: &str = "virtual_chunk_containers";

/// Most bytes of a container's URL. Longer ones are left out.
const MAX_URL: usize = 4 << 10;

/// Names and URLs of containers.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Containers(Vec<(String, String)>);

impl Containers {
    /// Reads a configuration of the file `repo`.
    ///
    /// # Errors
    /// If it is damaged.
    pub fn of_repo(config: &[u8]) -> Result<Self> {
        let mut found = Self::default();
        let Some(containers) = Value::root(config)?.get(FIELD)? else { return Ok(found) };
        for (_, container) in containers.entries()? {
            let text = |key| container.get(key)?.map_or(Ok(None), |value| value.text());
            if let (Some(name), Some(url)) = (text("name")?, text("url_prefix")?) {
                found.push(name, url);
            }
        }
        Ok(found)
    }

    /// Reads a configuration in YAML, as Icechunk writes it: a line for each entry, indented by two spaces for each
    /// level. What has another form is left out.
    pub fn of_yaml(config: &str) -> Self {
        let mut found = Self::default();
        let lines = config.lines().skip_while(|line| line.trim_end() != format!("{FIELD}:"));
        let (mut name, mut url) = (None, None);
        for line in lines.skip(1).take_while(|line| line.starts_with(' ')).chain(["  "]) {
            let text = line.trim_start_matches(' ');
            match (line.len() - text.len(), text.split_once(": ")) {
                (4, Some(("name", value))) => name = scalar(value),
                (4, Some(("url_prefix", value))) => url = scalar(value),
                (0..=2, _) => {
                    if let (Some(name), Some(url)) = (name.take(), url.take()) {
                        found.push(&name, &url);
                    }
                }
                _ => {}
            }
        }
        found
    }

    fn push(&mut self, name: &str, url: &str) {
        if url.len() > MAX_URL {
            return;
        }
        let slash = if url.ends_with('/') { "" } else { "/" };
        self.0.push((name.to_owned(), format!("{url}{slash}")));
    }

    /// Returns the URL of a location in a container. `None` if no container has the name.
    pub fn url(&self, location: &str) -> Option<Arc<str>> {
        let (name, path) = location.strip_prefix(SCHEME)?.split_once('/')?;
        let (_, url) = self.0.iter().find(|(known, _)| known == name)?;
        Some(format!("{url}{path}").into())
    }
}

/// Reads a string of YAML in one line; `None` if it is null or has another form.
fn scalar(text: &str) -> Option<String> {
    let text = text.trim();
    match text.as_bytes().first()? {
        b'"' => serde_json::from_str(text).ok(),
        b'\'' => text.strip_prefix('\'')?.strip_suffix('\'').map(|inner| inner.replace("''", "'")),
        b'|' | b'>' | b'&' | b'*' | b'!' | b'[' | b'{' => None,
        _ => Some(text).filter(|text| !matches!(*text, "null" | "~")).map(str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yaml_as_icechunk_writes_it() {
        let config = "caching: null\nvirtual_chunk_containers:\n  file:///data/:\n    name: cont\n    url_prefix: file:///data/\n    \
                      store: !local_file_system /data\n  ? a\n  : name: lost\n  s3://b/:\n    name: null\n    url_prefix: s3://b/\n  q:\n    \
                      url_prefix: 's3://it''s'\n    store: !s3\n      name: deeper\n    name: \"a\\tb\"\nname: x\n    url_prefix: y\n";
        let expected = [("cont", "file:///data/"), ("a\tb", "s3://it's/")].map(|(n, u)| (n.to_owned(), u.to_owned()));
        assert_eq!(Containers::of_yaml(config).0, expected);
        for nothing in [
            "",
            "virtual_chunk_containers: null\n",
            "virtual_chunk_containers:\n",
            "a:\n  b:\n    name: c\n    url_prefix: d\n",
        ] {
            assert_eq!(Containers::of_yaml(nothing), Containers::default(), "{nothing}");
        }
    }

    #[test]
    fn locations_in_containers() {
        let containers = Containers(vec![("a".into(), "s3://b/c/".into()), ("a".into(), "no".into())]);
        for (location, url) in [
            ("vcc://a/x/y z.nc", Some("s3://b/c/x/y z.nc")),
            ("vcc://a/", Some("s3://b/c/")),
            ("vcc://b/x", None),
            ("vcc://a", None),
            ("s3://a/x", None),
        ] {
            assert_eq!(containers.url(location).as_deref(), url, "{location}");
        }
    }
}
