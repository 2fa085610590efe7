//! Tests of repositories that Icechunk 1.1 and 2.3 wrote (`tests/corpus/icechunk`), on disk and on a server, and of
//! damaged files.
//!
//! In both, `a` has 8x4x8 float32 in chunks of 1x4x8, numbered from 0. A second commit set its rows 2 and 3 to -1,
//! which compress so well that they are inline, and deleted `t`. `deep/b` has the same numbers as int32 in shards. A
//! manifest has at most three chunks.

use std::path::{Path, PathBuf};

use super::*;
use crate::reader::Reader;
use crate::spec::{DimKey, Spec};
use crate::store::object::fake::{Act, Random, Server, publish};
use crate::store::{LocalStore, ReadFiles, block_on};

pub(super) fn corpus(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/corpus/icechunk").join(name)
}

fn of_version(version: usize) -> PathBuf {
    corpus(&format!("v{version}"))
}

pub(super) fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
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

fn served(version: usize) -> (Arc<Server>, String) {
    let server = Arc::new(Server::default());
    for (key, bytes) in files(&of_version(version)) {
        server.put(&format!("/store/{key}"), bytes);
    }
    let url = publish(&server);
    (server, url)
}

/// Reads a whole array, and returns its bytes in groups of four.
pub(super) fn values(path: &str, array: &str, options: &[(&str, &str)]) -> Result<Vec<[u8; 4]>> {
    let reader = Reader::open(Spec::default().with(|s| {
        s.source.paths = vec![path.to_owned()];
        s.source.storage_options = options.iter().map(|&(k, v)| (k.to_owned(), v.to_owned())).collect();
        s.source.arrays = vec![array.into()];
        s.samples.dims = vec![DimKey::parse("time")];
        s.samples.window = vec![8].into();
        s.batch_size = 1;
        s.resources.prefetch_queue_depth = Some(1);
        s.resources.io_threads = Some(2);
        s.resources.host_memory_limit = Some(4 << 20);
    }))?;
    Ok(reader.next_batch()?.host[0].as_slice().as_chunks::<4>().0.to_vec())
}

fn numbers() -> Vec<[u8; 4]> {
    (0..256).map(|i| (i as f32).to_le_bytes()).collect()
}

fn rewritten() -> Vec<[u8; 4]> {
    let mut values = numbers();
    values[64..128].fill((-1f32).to_le_bytes());
    values
}

#[test]
fn versions_are_read_as_they_were_committed() {
    for version in [1, 2] {
        let (server, url) = served(version);
        let folder = of_version(version).to_str().unwrap().to_owned();
        let main = LocalStore::open(&folder, ReadFiles::default()).unwrap();
        let tagged = block_on(&main, refs::resolve(&main, &Version::Tag("v1".into()))).unwrap().unwrap();
        let old = file::name(&tagged.0);
        for path in [&folder, &url] {
            for (options, expected) in [
                (&[][..], rewritten()),
                (&[("branch", "main")], rewritten()),
                (&[("branch", "dev")], rewritten()),
                (&[("tag", "v1")], numbers()),
                (&[("snapshot_id", old.as_str())], numbers()),
            ] {
                assert_eq!(values(path, "a", options).unwrap(), expected, "{version}, {path}, {options:?}");
            }
            let shards: Vec<[u8; 4]> = (0..256i32).map(i32::to_le_bytes).collect();
            assert_eq!(values(path, "deep/b", &[]).unwrap(), shards, "{version}, {path}");
            let inline = values(path, "t", &[("tag", "v1")]).unwrap();
            assert_eq!(inline, (0..8).flat_map(|i| [[i, 0, 0, 0], [0; 4]]).collect::<Vec<_>>());
            for (array, options, words) in [
                ("t", &[][..], "expected an array 't', but found the arrays 'a', 'deep/b'"),
                ("a", &[("branch", "nothing")], "expected the branch \"nothing\", but found only"),
                ("a", &[("tag", "v2")], "the tag \"v2\""),
                ("a", &[("snapshot_id", "x")], "expected the name of a snapshot"),
                ("a", &[("snapshot_id", "00000000000000000000")], "00000000000000000000"),
                ("a", &[("tag", "v1"), ("branch", "dev")], "expected one of branch, tag and snapshot_id"),
            ] {
                let error = values(path, array, options).unwrap_err();
                let listed = server.taken_log();
                // A server that can't list has no names for the message.
                let unlisted =
                    version == 1 && path == &url && error.message().contains("expected an Icechunk repository");
                assert!(error.message().contains(words) || unlisted, "{words}: {error}, {listed:?}");
                assert_eq!(error.kind(), crate::error::ErrorKind::Value);
            }
        }
    }
}

#[test]
fn a_chunk_is_one_request_and_a_manifest_too() {
    for version in [1, 2] {
        let (server, url) = served(version);
        values(&url, "a", &[("branch", "main")]).unwrap();
        let log = server.taken_log();
        let count = |what: &str| log.iter().filter(|l| l.contains(what)).count();
        assert_eq!(
            (count("snapshots/"), count("/repo") + count("refs/branch.main/")),
            (1, if version == 1 { 2 } else { 1 })
        );
        // Eight chunks in three manifests, two of them inline. The reader may have begun to read chunks for the next
        // epoch.
        assert_eq!(count("manifests/"), 3);
        assert!((6..=12).contains(&count("chunks/")), "{log:?}");
        assert!(log.iter().all(|l| l.starts_with("GET")) && count("zarr.json") == 0);
    }
}

/// Makes the next six requests for each manifest fail.
fn fail_manifests(server: &Server, version: usize) {
    for (key, _) in files(&of_version(version)).into_iter().filter(|(key, _)| key.starts_with("manifests/")) {
        server.acts_at.lock().unwrap().insert(format!("/store/{key}"), [Act::Status(503); 6].into());
    }
}

#[test]
fn manifests_are_read_as_patiently_as_what_needs_them() {
    for version in [1, 2] {
        let (server, url) = served(version);
        fail_manifests(&server, version);
        assert_eq!(values(&url, "a", &[]).unwrap(), rewritten(), "while the pipeline runs");
        assert_eq!(server.taken_log().iter().filter(|l| l.contains("manifests/")).count(), 3 * 7);

        let options = [("branch".to_owned(), "main".to_owned())];
        let store = &*crate::store::open(&[url], &options, 1, ReadFiles::default()).unwrap().remove(0);
        fail_manifests(&server, version);
        for what in [Phase::Building, Phase::Running] {
            let chunk = block_on(store, store.read("a/c/0/0/0", ByteRange::Whole, None, what, &mut [0; 1000]));
            match what {
                Phase::Running => assert!(chunk.unwrap().is_some()),
                Phase::Building => {
                    let error = chunk.unwrap_err();
                    assert!(
                        error.message().contains("5 tries failed") && error.message().contains("manifests/"),
                        "{error}"
                    );
                }
            }
        }
    }
}

#[test]
fn what_is_in_memory_is_small() {
    let base: Arc<dyn Store> =
        Arc::new(LocalStore::open(of_version(2).to_str().unwrap(), ReadFiles::default()).unwrap());
    let store = crate::store::repository(&base).unwrap().unwrap();
    let children = |prefix| block_on(&*store, store.children(prefix)).unwrap().unwrap();
    assert_eq!((children(""), children("deep")), (vec!["a".to_owned(), "deep".to_owned()], vec!["b".to_owned()]));
    let exists = |key| block_on(&*store, store.exists(key)).unwrap();
    assert!(exists("a/zarr.json") && !exists("t/zarr.json"));
    let get = |key, max| block_on(&*store, store.get(key, max, Phase::Building));
    assert!(get("a/c/0/0/9", 100).unwrap().is_none() && get("a/c/0/0", 100).unwrap().is_none());
    assert!(get("a/c/7/0/0", 10).unwrap_err().message().contains("expected at most 10 bytes"));
    assert_eq!(store.snapshot().unwrap().len(), 20);
    for (key, bytes) in files(&of_version(2)).iter().filter(|(k, _)| k.starts_with("manifests/")) {
        let manifest = Manifest::parse(bytes, &file::id(&key[10..]).unwrap()).unwrap();
        assert!(manifest.bytes() < 1000);
    }
}

#[test]
fn objects_that_are_gone_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let copy = || {
        for (key, bytes) in files(&of_version(2)) {
            std::fs::create_dir_all(folder.path().join(&key).parent().unwrap()).unwrap();
            std::fs::write(folder.path().join(key), bytes).unwrap();
        }
    };
    for (what, words) in
        [("chunks", "expected the object chunks/"), ("manifests", "expected a manifest, but found nothing")]
    {
        copy();
        std::fs::remove_dir_all(folder.path().join(what)).unwrap();
        let error = values(folder.path().to_str().unwrap(), "a", &[]).unwrap_err();
        assert!(error.message().contains(words) && error.message().contains("a/c/"), "{error}");
    }
    copy();
    std::fs::remove_dir_all(folder.path().join("snapshots")).unwrap();
    let error = values(folder.path().to_str().unwrap(), "a", &[]).unwrap_err();
    assert!(error.message().contains("expected a snapshot, but found nothing"), "{error}");
}

/// Returns a file with the same content that isn't compressed, so that damage hits its structure.
fn uncompressed(bytes: &[u8], kind: file::Kind) -> Vec<u8> {
    let (_, inner) = file::open(bytes, kind).unwrap();
    let mut out = bytes[..39].to_vec();
    out[38] = 0;
    out.extend(inner);
    out
}

/// Builds the smallest possible snapshot by hand. It names its root group `times` times.
fn smallest(id: &Id, times: usize) -> Vec<u8> {
    let mut out = Vec::new();
    let u16s = |out: &mut Vec<u8>, values: &[u16]| out.extend(values.iter().flat_map(|v| v.to_le_bytes()));
    let u32s = |out: &mut Vec<u8>, values: &[u32]| out.extend(values.iter().flat_map(|v| v.to_le_bytes()));
    // The offset of the root; its vtable; the root itself, with its ID and the offset of the nodes.
    u32s(&mut out, &[16]);
    u16s(&mut out, &[10, 20, 4, 0, 16, 0]);
    u32s(&mut out, &[12]);
    out.extend(id);
    u32s(&mut out, &[4, times as u32]);
    let node = 40 + 4 * times as u32 + 12;
    (0..times as u32).for_each(|i| u32s(&mut out, &[node - (40 + 4 * i)]));
    // The node in the same way: its vtable, its ID, the offsets of its path and metadata; then path and metadata.
    u16s(&mut out, &[12, 20, 4, 12, 16, 0]);
    u32s(&mut out, &[12, 7, 7, 8, 12, 1]);
    out.extend(b"/   ");
    u32s(&mut out, &[2]);
    out.extend(b"{}  ");
    out
}

#[test]
fn hostile_snapshots_are_errors() {
    let id = [7; 12];
    let mut header = "ICE🧊CHUNK".as_bytes().to_vec();
    header.resize(36, b' ');
    header.extend([2, 1, 0]);
    let parse = |bytes: &[u8]| Snapshot::parse(&[&header[..], bytes].concat(), &id);
    let good = smallest(&id, 1);
    assert_eq!(parse(&good).unwrap().document("zarr.json"), Some(&b"{}"[..]));
    // Overwrites offsets and lengths. A table's offset to its vtable is signed.
    let node = good.len() - 36;
    let offsets = [(0, "root"), (16, "fields"), (32, "nodes"), (36, "number of nodes"), (40, "node")];
    let of_node = [(node, "fields"), (node + 12, "path"), (node + 16, "metadata"), (node + 20, "length of a path")];
    for (at, what) in offsets.into_iter().chain(of_node).chain([(node + 28, "length of metadata")]) {
        for wrong in [u32::MAX, i32::MAX as u32, 1 << 31, u32::MAX - at as u32, good.len() as u32, 1 << 16] {
            let mut bytes = good.clone();
            bytes[at..at + 4].copy_from_slice(&wrong.to_le_bytes());
            let error = parse(&bytes).map(|_| ()).unwrap_err();
            assert!(error.message().contains("the file is damaged"), "{what}, {wrong:x}: {error}");
        }
    }
    // Overwrites any four bytes.
    for at in 0..good.len() - 3 {
        for wrong in [u32::MAX, i32::MAX as u32, 1 << 31, u32::MAX - 3, good.len() as u32 - 4, 0] {
            let mut bytes = good.clone();
            bytes[at..at + 4].copy_from_slice(&wrong.to_le_bytes());
            let _ = parse(&bytes).map(|s| (s.document("zarr.json").map(<[u8]>::len), s.children("")));
        }
    }
    (0..good.len()).for_each(|len| drop(parse(&good[..len])));
    // Many nodes in a file that is small when compressed.
    let error = parse(&smallest(&id, 100_000)).unwrap_err();
    assert!(error.message().contains("expected each node once"), "{error}");
}

#[test]
fn thousands_of_damaged_files_are_errors_or_something_of_their_size() {
    let (mut good, mut bad) = (0, 0);
    for version in [1, 2] {
        let all: Vec<(String, Vec<u8>, file::Kind)> = files(&of_version(version))
            .into_iter()
            .filter_map(|(key, bytes)| {
                let kind = match key.split('/').next()? {
                    "repo" => file::Kind::Repository,
                    "snapshots" => file::Kind::Snapshot,
                    "manifests" => file::Kind::Manifest,
                    _ => return None,
                };
                Some((key, uncompressed(&bytes, kind), kind))
            })
            .collect();
        for seed in 0..3000 {
            let mut random = Random(seed);
            let (key, bytes, kind) = &all[random.below(all.len() as u64) as usize];
            let mut bytes = bytes.clone();
            for _ in 0..=random.below(4) {
                let at = 39 + random.below(bytes.len() as u64 - 39) as usize;
                match random.below(3) {
                    0 => bytes[at] = 255,
                    1 => bytes[at] = 0,
                    _ => bytes[at] ^= 1 << random.below(8),
                }
            }
            if random.below(8) == 0 {
                bytes.truncate(random.below(bytes.len() as u64) as usize);
            }
            let id = key.split_once('/').and_then(|(_, name)| file::id(name));
            let result = match kind {
                file::Kind::Manifest => Manifest::parse(&bytes, &id.unwrap()).map(|manifest| {
                    assert!(manifest.bytes() < 40 * bytes.len() as u64 + 1000, "seed {seed}");
                    for array in [[0; 8], [255; 8]] {
                        assert!(manifest.find(&array, &[0, 0, 0]).is_none());
                    }
                }),
                file::Kind::Snapshot => Snapshot::parse(&bytes, &id.unwrap()).map(|snapshot| {
                    for key in ["a/c/0/0/0", "deep/b/c/1/0/0", "t/c/0", "c"] {
                        if let Some((node, coords)) = snapshot.chunk(key) {
                            let file = snapshot.manifest(node, &coords);
                            assert!(file.is_none_or(|f| f < snapshot.files.len()));
                        }
                    }
                    assert!(snapshot.document("a/zarr.json").is_none_or(|d| d.len() < bytes.len()));
                    snapshot.children("");
                }),
                file::Kind::Repository => refs::of_repo(&bytes, &Version::Tag("v1".into()), None).map(|_| ()),
            };
            match result {
                Ok(()) => good += 1,
                Err(_) => bad += 1,
            }
        }
    }
    println!("{good} could be read, {bad} were errors");
    assert!(good > 500 && bad > 500);
}
