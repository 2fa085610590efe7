//! Tests a store of references as a whole: what it finds without reading, what it reads, and when.

use std::path::PathBuf;
use std::sync::Arc;

use super::*;
use crate::{LocalStore, ReadFiles, block_on};

fn local(folder: &Path) -> Arc<dyn Store> {
    Arc::new(LocalStore::open(folder.to_str().unwrap(), ReadFiles::default()).unwrap())
}

/// Fills a directory with one of the files of `tests/corpus/references`. The files on S3 that it refers to can't be
/// read here.
fn directory(folder: &Path) {
    let corpus = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/corpus/references");
    let metadata = r#"{"record_size": 100, "metadata": {".zgroup": {"zarr_format": 2}, "g/a/.zarray": {"shape": [300], "chunks": [1],
        "fill_value": NaN}}}"#;
    std::fs::write(folder.join(METADATA), metadata).unwrap();
    std::fs::create_dir_all(folder.join("g/a")).unwrap();
    std::fs::copy(corpus.join("arrow-zstd.parq"), folder.join("g/a/refs.1.parq")).unwrap();
}

#[test]
fn parquet_files_are_read_when_they_are_needed() {
    let folder = tempfile::tempdir().unwrap();
    directory(folder.path());
    let base = local(folder.path());
    let open = || block_on(&*base, References::open_directory(&base, "refs", Arc::default()));
    let store = open().unwrap().unwrap();
    let get = |key: &str| block_on(&store, store.get(key, 1 << 20, Phase::Building));
    let children = |prefix| block_on(&store, store.children(prefix)).unwrap().unwrap();
    assert_eq!((children(""), children("g/"), children("g/a/")), (vec!["g".into()], vec!["a".into()], vec![]));
    assert!(get("g/a/.zarray").unwrap().is_some());
    let metadata = String::from_utf8(get(METADATA).unwrap().unwrap()).unwrap();
    assert!(
        metadata.contains("\"g/a/.zarray\"") && metadata.contains("NaN") && !metadata.contains("record_size"),
        "{metadata}"
    );

    let extent = |i: u64, url: &str| Some(Extent { object: url.into(), version: None, offset: 1000 * i, len: 7 + i });
    assert_eq!((store.unread_index("g/a/104"), store.locate("g/a/104")), (Some(0), None), "its file wasn't read");
    block_on(&store, store.read_index("g/a/104")).unwrap();
    assert_eq!((store.unread_index("g/a/105"), store.locate("g/a/104")), (None, extent(4, "s3://bucket/file0.nc")));
    assert_eq!((store.locate("g/a/101"), store.locate("g/a/102")), (None, None), "a whole file, and an inline value");
    assert_eq!(get("g/a/102").unwrap().unwrap(), [2, 0, 255]);
    assert_eq!(get("g/a/100").unwrap(), None, "a row without a reference");
    assert_eq!(store.unread_index("g/a/5"), Some(1));
    assert_eq!(get("g/a/5").unwrap(), None, "there is no such file");
    assert_eq!(
        (store.unread_index("g/a/5"), store.unread_index("g/a/300"), get("g/a/300").unwrap()),
        (None, None, None)
    );
    for key in ["g/a/104", "g/a/101"] {
        let error = get(key).unwrap_err();
        assert!(error.message().contains("\"virtual_chunks\": \"s3://bucket/\""), "{error}");
    }
    std::fs::remove_file(folder.path().join(METADATA)).unwrap();
    let error = get("g/a/299").unwrap_err();
    assert!(error.message().contains("both are gone"), "{error}");
    assert!(open().unwrap().is_none());
    std::fs::write(folder.path().join(METADATA), r#"{"metadata": {}, "zarr_consolidated_format": 1}"#).unwrap();
    assert!(open().unwrap().is_none(), "that of a Zarr group");
}

#[test]
fn values_of_files() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("data 100%"), b"0123456789").unwrap();
    let path = folder.path().to_str().unwrap();
    let document = format!(
        r#"{{"whole": ["{path}/data 100%"], "part": ["file://{path}/data 100%", 3, 4], "none": ["{path}/no"]}}"#
    );
    std::fs::write(folder.path().join("refs.json"), document).unwrap();
    let base = local(folder.path());
    let places = || VirtualChunks::new([(format!("file://{path}/"), Arc::clone(&base))], None);
    let open = References::open_document((Arc::clone(&base), "refs.json"), "refs", Arc::new(places()));
    let store = block_on(&*base, open).unwrap();
    let read = |key: &str, range, version: Option<&ObjectVersion>, to: &mut [u8]| {
        block_on(&store, store.read(key, range, version, Phase::Running, to))
    };
    let mut to = [0; 4];
    let part = read("part", ByteRange::Whole, None, &mut to).unwrap().unwrap();
    assert_eq!((part.size, &to), (4, b"3456"));
    let whole = read("whole", ByteRange::Last, None, &mut to).unwrap().unwrap();
    assert_eq!((whole.size, &to), (10, b"6789"));
    assert_eq!(read("part", ByteRange::From(1), part.version.as_ref(), &mut to[..2]).unwrap().unwrap().size, 4);
    assert_eq!(&to[..2], b"45");
    assert!(read("part", ByteRange::From(3), None, &mut to).unwrap_err().message().contains("ends before"));
    let head = |key| block_on(&store, store.head(key));
    assert_eq!((head("part").unwrap().unwrap().size, head("whole").unwrap().unwrap().size), (4, 10));
    assert_eq!(block_on(&store, store.get("whole", 10, Phase::Running)).unwrap().unwrap(), b"0123456789");
    for key in ["whole", "part"] {
        assert!(block_on(&store, store.get(key, 3, Phase::Running)).unwrap_err().message().contains("at most 3 bytes"));
    }
    assert!(
        read("none", ByteRange::Whole, None, &mut to).unwrap_err().message().contains("but found nothing"),
        "no fill value"
    );
    assert!(read("other", ByteRange::Whole, None, &mut to).unwrap().is_none());
    // The file is replaced: the versions that were found before don't match any more.
    std::fs::write(folder.path().join("data 100%"), b"01234567890").unwrap();
    for (key, version) in [("part", part.version), ("whole", whole.version)] {
        let error = read(key, ByteRange::From(0), version.as_ref(), &mut to).unwrap_err();
        assert!(error.message().contains("replaced since"), "{error}");
    }
}
