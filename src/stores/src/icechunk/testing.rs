//! Repositories that Icechunk 1.1 and 2.3 wrote (`tests/corpus/icechunk`).
//!
//! In `v1` and `v2`, `a` has 8x4x8 float32 in chunks of 1x4x8, numbered from 0. A second commit set its rows 2 and 3 to
//! -1, which compress so well that they are inline, and deleted `t`. `deep/b` has the same numbers as int32 in shards. A
//! manifest has at most three chunks.
//!
//! `named-v1` and `named-v2` have virtual chunks in containers with names: with the configuration as YAML and in the
//! file `repo`. The container `cont` is a folder whose name has 99 x, which [`copied`] replaces by a folder of the
//! test. `a` has 8x4 int32 in two chunks in it. The second chunk of `up` is the same, the first has `..` in its path.
//! The chunks of `lost` are in a container that there isn't, those of `far` in one on S3.

use std::path::{Path, PathBuf};

use super::file;

/// The URL of the container `cont`.
pub const URL: &str =
    "file:///xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx/";

/// Returns the folder of a repository of the corpus.
pub fn corpus(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/corpus/icechunk").join(name)
}

/// Returns the folder of the repository of this version of the format.
pub fn of_version(version: usize) -> PathBuf {
    corpus(&format!("v{version}"))
}

/// Returns the files below a folder: their keys and bytes.
pub fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let key = path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned();
                found.push((key, std::fs::read(path).unwrap()));
            }
        }
    }
    found.sort();
    found
}

/// Returns the file `repo` with its content in the plain.
fn plain(repo: &[u8]) -> Vec<u8> {
    let (_, content) = file::open(repo, file::FileKind::Repository).unwrap();
    let mut header = repo[..39].to_vec();
    header[38] = 0;
    [header, content].concat()
}

fn replaced(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at..].starts_with(from) {
            out.extend_from_slice(to);
            at += from.len();
        } else {
            out.push(bytes[at]);
            at += 1;
        }
    }
    out
}

/// Copies a repository of the corpus to `folder`, and makes the container, whose URL is returned.
pub fn copied(name: &str, folder: &Path) -> (PathBuf, String) {
    let begin = format!("file://{}/", folder.to_str().unwrap());
    let inner = "y".repeat(URL.len() - begin.len() - 1);
    let (url, places) = (format!("{begin}{inner}/"), folder.join(&inner));
    std::fs::create_dir_all(places.join("sub dir")).unwrap();
    let numbers = |from: i32| (from..from + 16).flat_map(i32::to_le_bytes).collect::<Vec<u8>>();
    std::fs::write(places.join("sub dir/ü .bin"), [b"HEAD".to_vec(), numbers(0)].concat()).unwrap();
    std::fs::write(places.join("b.bin"), [b"HEAD".to_vec(), numbers(16)].concat()).unwrap();
    let repository = folder.join(name);
    for (key, bytes) in files(&corpus(name)) {
        let bytes = if key == "repo" { plain(&bytes) } else { bytes };
        let path = repository.join(key);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, replaced(&bytes, URL.as_bytes(), url.as_bytes())).unwrap();
    }
    (repository, url)
}
