//! Tests of readers of the repositories of Icechunk in the corpus (see [`dali_zarr_stores::testing::icechunk`]), on disk
//! and on a server.

use std::sync::Arc;

use dali_zarr_base::error::{ErrorKind, Result};
use dali_zarr_samples::spec::{DimKey, Spec};
use dali_zarr_stores::testing::icechunk::{copied, files, of_version};
use dali_zarr_stores::testing::{Act, Server, publish};
use dali_zarr_stores::{ByteRange, Phase, ReadFiles, block_on};

use super::Reader;

const NAMED: [&str; 2] = ["named-v1", "named-v2"];

fn served(version: usize) -> (Arc<Server>, String) {
    let server = Arc::new(Server::default());
    for (key, bytes) in files(&of_version(version)) {
        server.put(&format!("/store/{key}"), bytes);
    }
    let url = publish(&server);
    (server, url)
}

/// Reads a whole array, and returns its bytes in groups of four.
fn values(path: &str, array: &str, options: &[(&str, &str)]) -> Result<Vec<[u8; 4]>> {
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
        let tag = [("tag".to_owned(), "v1".to_owned())];
        let tagged =
            dali_zarr_stores::open(std::slice::from_ref(&folder), &tag, 1, ReadFiles::default()).unwrap().remove(0);
        let old = tagged.snapshot().unwrap();
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
                assert_eq!(error.kind(), ErrorKind::Value);
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
        let store = &*dali_zarr_stores::open(&[url], &options, 1, ReadFiles::default()).unwrap().remove(0);
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

#[test]
fn chunks_in_named_containers_are_read_where_that_is_allowed() {
    let expected: Vec<[u8; 4]> = (0..32i32).map(i32::to_le_bytes).collect();
    for name in NAMED {
        let folder = tempfile::tempdir().unwrap();
        let (repository, url) = copied(name, folder.path());
        let path = repository.to_str().unwrap();
        let allowed = [("virtual_chunks", &*url)];
        assert_eq!(values(path, "a", &allowed).unwrap(), expected, "{name}");
        assert_eq!(values(path, "native", &[]).unwrap(), expected, "{name}");
        for (array, options, words) in [
            ("a", &[][..], &["a virtual one, at file://", "storage_options={\"virtual_chunks\": \"file://"][..]),
            ("a", &[("virtual_chunks", "file:///usr/")], &["a virtual one, at file://"]),
            ("up", &allowed, &["\"..\" isn't read"]),
            ("lost", &allowed, &["found vcc://none/b.bin", "no container with the name \"none\""]),
            ("far", &allowed, &["a virtual one, at s3://other/x/b.bin"]),
            ("a", &[("virtual_chunks", "vcc://cont/")], &["found vcc://cont/", "url_prefix"]),
        ] {
            let error = values(path, array, options).unwrap_err();
            assert!(words.iter().all(|word| error.message().contains(word)), "{name}, {array}: {error}");
        }
    }
}

#[test]
fn the_configuration_is_read_when_it_is_needed() {
    for name in NAMED {
        let folder = tempfile::tempdir().unwrap();
        let (repository, url) = copied(name, folder.path());
        std::fs::remove_file(repository.join("config.yaml")).ok();
        let path = repository.to_str().unwrap();
        assert!(values(path, "native", &[]).is_ok(), "{name}");
        let read = values(path, "a", &[("virtual_chunks", &url)]);
        assert_eq!(read.is_ok(), name == "named-v2", "{name}");
    }
}
