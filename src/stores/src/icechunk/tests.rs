//! Tests of repositories that Icechunk 1.1 and 2.3 wrote (`tests/corpus/icechunk`, see [`super::testing`]), and of damaged
//! files. Tests of the engine read them by a reader.

use super::testing::{files, of_version};
use super::*;
use crate::object::fake::Random;
use crate::{LocalStore, ReadFiles, block_on};

#[test]
fn what_is_in_memory_is_small() {
    let base: Arc<dyn Store> =
        Arc::new(LocalStore::open(of_version(2).to_str().unwrap(), ReadFiles::default()).unwrap());
    let store = crate::repository(&base).unwrap().unwrap();
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

/// Returns a file with the same content that isn't compressed, so that damage hits its structure.
fn uncompressed(bytes: &[u8], kind: file::FileKind) -> Vec<u8> {
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
        let all: Vec<(String, Vec<u8>, file::FileKind)> = files(&of_version(version))
            .into_iter()
            .filter_map(|(key, bytes)| {
                let kind = match key.split('/').next()? {
                    "repo" => file::FileKind::Repository,
                    "snapshots" => file::FileKind::Snapshot,
                    "manifests" => file::FileKind::Manifest,
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
                file::FileKind::Manifest => Manifest::parse(&bytes, &id.unwrap()).map(|manifest| {
                    assert!(manifest.bytes() < 40 * bytes.len() as u64 + 1000, "seed {seed}");
                    for array in [[0; 8], [255; 8]] {
                        assert!(manifest.find(&array, &[0, 0, 0]).is_none());
                    }
                }),
                file::FileKind::Snapshot => Snapshot::parse(&bytes, &id.unwrap()).map(|snapshot| {
                    for key in ["a/c/0/0/0", "deep/b/c/1/0/0", "t/c/0", "c"] {
                        if let Some((node, coords)) = snapshot.chunk(key) {
                            let file = snapshot.manifest(node, &coords);
                            assert!(file.is_none_or(|f| f < snapshot.files.len()));
                        }
                    }
                    assert!(snapshot.document("a/zarr.json").is_none_or(|d| d.len() < bytes.len()));
                    snapshot.children("");
                }),
                file::FileKind::Repository => refs::of_repo(&bytes, &Version::Tag("v1".into()), None).map(|_| ()),
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
