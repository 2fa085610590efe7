//! The folder of the disk cache: processes that die at any step, files that others put there, and the limit.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::symlink;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::cache::file::FileLookup;
use dali_zarr_stores::ObjectVersion;

fn name(number: u64) -> Name {
    Name { hash: number, object: number, bytes: format!("store\0{number}").into_bytes(), remote: true, confirm: true }
}

fn bytes(number: u64, version: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| mix(number << 40 | version << 30 | i) as u8).collect()
}

fn piece(number: u64, version: u64, len: usize) -> Piece {
    let version_of = ObjectVersion::Dated { size: 7, seconds: version as i64 };
    Piece {
        name: name(number),
        version: Some(version_of),
        size: 7,
        bytes: bytes(number, version, len),
        admitted: false,
    }
}

fn open(dir: &TempDir) -> Folder {
    let folder = Folder::open(dir.path()).unwrap();
    folder.tidy();
    folder
}

fn put(folder: &Folder, piece: &Piece, limit: u64) -> io::Result<WriteResult> {
    folder.put(piece, limit, &mut Evictions::default())
}

fn admitted() -> Evictions {
    Evictions { admitted: true, ..Evictions::default() }
}

/// Returns the version and the bytes of a piece.
fn get(folder: &Folder, number: u64) -> Option<(u64, Vec<u8>)> {
    let FileLookup::Piece(piece) = folder.look(&name(number)) else { return None };
    let mut to = vec![0; piece.len];
    assert_eq!(piece.size, 7);
    let Some(ObjectVersion::Dated { seconds, .. }) = piece.version else { panic!("{:?}", piece.version) };
    piece.fill(&mut to).then_some((seconds as u64, to))
}

const PLENTY: u64 = 1 << 40;

#[test]
fn gives_what_was_put_also_to_the_next_process() {
    let dir = tempfile::tempdir().unwrap();
    let folder = open(&dir);
    for (number, len) in [(1, 0), (2, 1), (3, 5000), (4, 300_000)] {
        assert_eq!(put(&folder, &piece(number, 1, len), PLENTY).unwrap(), WriteResult::Written(false));
        assert_eq!(put(&folder, &piece(number, 1, len), PLENTY).unwrap(), WriteResult::Present);
    }
    put(&folder, &piece(3, 2, 9000), PLENTY).unwrap();
    let next = open(&dir);
    assert_eq!(get(&next, 4), Some((1, bytes(4, 1, 300_000))));
    assert_eq!(get(&next, 3), Some((2, bytes(3, 2, 9000))), "replaced");
    assert_eq!((get(&next, 1), get(&next, 5)), (Some((1, Vec::new())), None));
    assert_eq!((next.bytes(), next.count()), (folder.bytes(), folder.count()));
    assert_eq!(next.bytes(), next.count());
    next.remove(&name(4));
    assert_eq!((get(&folder, 4), folder.bytes()), (None, folder.count()));
}

#[test]
fn a_process_that_dies_at_any_step_leaves_nothing_that_stays() {
    for step in 1..=4 {
        let dir = tempfile::tempdir().unwrap();
        let folder = open(&dir);
        put(&folder, &piece(1, 1, 50_000), PLENTY).unwrap();
        folder.dies_at.store(step, Relaxed);
        assert!(put(&folder, &piece(1, 2, 60_000), PLENTY).is_err());
        drop(folder);
        let next = open(&dir);
        let expected = if step < 4 { (1, bytes(1, 1, 50_000)) } else { (2, bytes(1, 2, 60_000)) };
        assert_eq!(get(&next, 1), Some(expected), "step {step}: one or the other");
        assert!(next.bytes() >= next.count(), "step {step}: never less than there is");
        // Later, the incomplete file is removed, and bytes are counted again.
        for path in next.temporaries() {
            let old = SystemTime::now() - 2 * STALE;
            File::options().write(true).open(path).unwrap().set_modified(old).unwrap();
        }
        let was_stale = !next.temporaries().is_empty();
        assert_eq!(was_stale, step == 3, "step {step}");
        next.tidy();
        assert!(next.temporaries().is_empty());
        next.usage.recount(|| next.count()).unwrap();
        let files = charge(fs::metadata(next.path(&name(1))).unwrap().len());
        assert_eq!((next.bytes(), next.count()), (files, files), "step {step}");
    }
}

#[test]
fn files_that_are_being_written_stay() {
    let dir = tempfile::tempdir().unwrap();
    let folder = open(&dir);
    file::write(&folder.temporary(), b"by another process", b"").unwrap();
    folder.tidy();
    assert_eq!(folder.temporaries().len(), 1);
}

#[test]
fn the_limit_is_kept_and_makes_way() {
    let dir = tempfile::tempdir().unwrap();
    let folder = open(&dir);
    let limit = 50 * BLOCK + 100;
    let mut kept = 0;
    for number in 0..2000 {
        let mut room = Evictions::default();
        let result = folder.put(&piece(number, 1, 3000), limit, &mut room).unwrap();
        let evicted = room.evicted;
        assert!(folder.count() <= limit && folder.bytes() == folder.count());
        if number < 50 {
            assert_eq!((result, evicted), (WriteResult::Written(false), 0));
        } else if let WriteResult::Written(full) = result {
            assert!(full && evicted == 1);
            kept += 1;
        }
    }
    assert!((80..170).contains(&kept), "about one in sixteen: {kept}");
    let old = (0..50).filter(|&n| get(&folder, n).is_some()).count();
    assert!(old < 20, "{old} of the first are left");
    assert_eq!(put(&folder, &piece(1, 1, limit as usize), limit).unwrap(), WriteResult::Full, "more than the limit");
    assert!(
        folder.put(&piece(9999, 1, 3000), limit, &mut admitted()).unwrap() == WriteResult::Written(true),
        "admitted already"
    );
    // A process with a smaller limit keeps to its own limit.
    assert!(folder.put(&piece(9998, 1, 3000), 10 * BLOCK, &mut admitted()).unwrap() == WriteResult::Written(true));
    assert!(folder.count() <= 10 * BLOCK && folder.bytes() == folder.count());
}

/// Runs a reader over `entries` pieces from number `first` on. The folder has room for `room` pieces. Returns the hits
/// per look-up of each epoch.
fn hit_rates(dir: &TempDir, first: u64, entries: u64, room: u64, epochs: u64) -> Vec<f64> {
    let folder = open(dir);
    std::thread::sleep(Duration::from_millis(20));
    let (began, mut lookups, mut rates) = (SystemTime::now(), 0, Vec::new());
    for _ in 0..epochs {
        let mut hits = 0;
        for number in first..first + entries {
            lookups += 1;
            if let FileLookup::Piece(piece) = folder.look(&name(number)) {
                hits += 1;
                if piece.used < began {
                    piece.touch();
                }
            } else {
                let unused_since = (lookups > 3 * room).then_some(began);
                folder
                    .put(&piece(number, 1, 100), room * BLOCK, &mut Evictions { unused_since, ..Evictions::default() })
                    .unwrap();
            }
        }
        rates.push(f64::from(hits) / entries as f64);
    }
    rates
}

#[test]
fn epochs_of_twice_the_size_hit_and_another_set_takes_over() {
    let dir = tempfile::tempdir().unwrap();
    let rates = hit_rates(&dir, 0, 400, 200, 6);
    println!("in order: {rates:?}");
    assert!(rates[1..].iter().all(|&r| r >= 0.4), "{rates:?}");
    let rates = hit_rates(&dir, 1000, 400, 200, 6);
    println!("another set: {rates:?}");
    assert!(rates[3..].iter().all(|&r| r >= 0.4), "{rates:?}");
    let rates = hit_rates(&dir, 1000, 400, 200, 6);
    println!("the next reader: {rates:?}");
    assert!(rates.iter().all(|&r| r >= 0.4), "{rates:?}");
}

#[test]
fn whatever_lies_there_gives_no_wrong_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let folder = open(&dir);
    let one = piece(1, 1, 3000);
    let path = folder.path(&name(1));
    put(&folder, &one, PLENTY).unwrap();
    let good = fs::read(&path).unwrap();
    let check = |what: &str| {
        if let Some(found) = get(&folder, 1) {
            assert_eq!(found, (1, bytes(1, 1, 3000)), "{what}");
            assert_eq!(fs::read(&path).unwrap(), good, "{what}");
        }
        assert!(get(&folder, 2).is_none());
    };
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1 << (at % 8);
        fs::write(&path, bad).unwrap();
        assert!(get(&folder, 1).is_none(), "a bit of byte {at}");
    }
    for len in (0..good.len()).step_by(37) {
        fs::write(&path, &good[..len]).unwrap();
        assert!(get(&folder, 1).is_none(), "{len} bytes of it");
    }
    fs::write(&path, [&good[..], b"x"].concat()).unwrap();
    check("one byte more");
    // The file of another piece, as if two names had one hash.
    put(&folder, &piece(2, 1, 3000), PLENTY).unwrap();
    fs::rename(folder.path(&name(2)), &path).unwrap();
    check("another piece");
    File::create(&path).unwrap().set_len(1 << 40).unwrap();
    check("a huge file");
    fs::remove_file(&path).unwrap();
    let outside = dir.path().join("outside");
    fs::write(&outside, &good).unwrap();
    symlink(&outside, &path).unwrap();
    assert!(get(&folder, 1).is_none(), "links aren't followed");
    put(&folder, &one, PLENTY).unwrap();
    assert!(get(&folder, 1).is_some() && fs::symlink_metadata(&path).unwrap().is_file(), "but replaced");
    assert_eq!(fs::read(&outside).unwrap(), good);
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    check("a folder");
    assert!(put(&folder, &one, PLENTY).is_err());
    assert!(folder.temporaries().is_empty(), "and nothing of it is left");
    fs::remove_dir(&path).unwrap();
    let pipe = std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: makes a pipe at a path that ends with a zero.
    assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);
    check("a pipe");
}

#[test]
fn the_usage_is_counted_when_it_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let folder = open(&dir);
    for number in 0..5 {
        put(&folder, &piece(number, 1, 10_000), PLENTY).unwrap();
    }
    let held = folder.count();
    let usage = dir.path().join("dali-zarr-1/usage");
    for bad in [&b""[..], b"dzusage1", &[0xff; 28], &[7; 100]] {
        fs::write(&usage, bad).unwrap();
        assert!(put(&folder, &piece(9, 1, 10), PLENTY).is_err(), "it isn't known whether there is room");
        folder.tidy();
        assert_eq!(folder.bytes(), held);
    }
    fs::remove_file(&usage).unwrap();
    assert_eq!(open(&dir).bytes(), held);
    put(&folder, &piece(9, 1, 10), PLENTY).unwrap();
    assert_eq!(folder.bytes(), folder.count());
    // Somebody empties the folder while it is used.
    fs::remove_dir_all(dir.path().join("dali-zarr-1")).unwrap();
    assert!(get(&folder, 1).is_none() && put(&folder, &piece(1, 1, 10), PLENTY).is_err());
    let folder = open(&dir);
    put(&folder, &piece(1, 1, 10), PLENTY).unwrap();
    assert_eq!(folder.bytes(), folder.count());
}

#[test]
fn a_folder_that_cannot_be_written_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), b"").unwrap();
    let error = Folder::open(&dir.path().join("file")).err().unwrap();
    assert!(error.message().starts_with("cache_dir: expected a folder"), "{error}");
    assert!(Folder::open(Path::new("/proc/nothing")).is_err());
}

#[test]
fn many_at_once_keep_the_limit() {
    let dir = tempfile::tempdir().unwrap();
    open(&dir);
    let limit = 60 * BLOCK;
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let dir = &dir;
            // Each thread opens the folder itself, as separate processes do.
            scope.spawn(move || {
                let folder = open(dir);
                for i in 0..300u64 {
                    let number = mix(thread << 32 | i) % 100;
                    let _ = folder.put(
                        &piece(number, i % 2, 5000),
                        limit,
                        &mut Evictions { admitted: i.is_multiple_of(3), ..Evictions::default() },
                    );
                    if let Some((version, found)) = get(&folder, number) {
                        assert_eq!(found, bytes(number, version, 5000));
                    }
                    if i.is_multiple_of(20) {
                        // Files can't be counted while they come and go. They are counted at the end.
                        assert!(folder.bytes() <= limit + 4 * 2 * BLOCK, "a piece for each that is writing");
                    }
                }
            });
        }
    });
    let folder = open(&dir);
    assert!(folder.temporaries().is_empty());
    let (known, there) = (folder.bytes(), folder.count());
    assert!(there <= limit, "{there} of {limit}, known {known}");
    assert!(known >= there && known <= there + 40 * BLOCK, "{known} {there}");
    folder.usage.recount(|| folder.count()).unwrap();
    assert_eq!(folder.bytes(), there);
}

#[derive(Clone, Debug)]
enum Act {
    WriteResult(u64, u64, usize, bool),
    Get(u64),
    Remove(u64),
    Die(u64),
    Tidy,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => (0..20u64, 0..3u64, 0..30_000usize, any::<bool>()).prop_map(|(n, v, len, a)| Act::WriteResult(n, v, len, a)),
        6 => (0..20u64).prop_map(Act::Get),
        1 => (0..20u64).prop_map(Act::Remove),
        1 => (1..5u64).prop_map(Act::Die),
        1 => Just(Act::Tidy),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(24) })]
    #[test]
    fn what_is_found_is_what_was_put_last(acts in prop::collection::vec(act(), 1..80)) {
        let dir = tempfile::tempdir().unwrap();
        let mut folder = open(&dir);
        let limit = 20 * BLOCK;
        let mut model: HashMap<u64, Vec<(u64, usize)>> = HashMap::new();
        for act in acts {
            match act {
                Act::WriteResult(number, version, len, admitted) => {
                    let result = folder.put(&piece(number, version, len), limit, &mut Evictions { admitted, ..Evictions::default() });
                    let known = model.entry(number).or_default();
                    match result {
                        Ok(WriteResult::Full) => {}
                        // The process died. The piece may be there or not.
                        Err(_) => {
                            known.push((version, len));
                            folder = open(&dir);
                        }
                        Ok(_) => *known = vec![(version, len)],
                    }
                }
                Act::Get(number) => {
                    if let Some((version, found)) = get(&folder, number) {
                        let known = &model[&number];
                        prop_assert!(known.contains(&(version, found.len())), "{version} {} of {known:?}", found.len());
                        prop_assert_eq!(&found, &bytes(number, version, found.len()));
                    }
                }
                Act::Remove(number) => {
                    folder.remove(&name(number));
                    prop_assert!(get(&folder, number).is_none());
                }
                Act::Die(step) => folder.dies_at.store(step, Relaxed),
                Act::Tidy => folder.tidy(),
            }
            prop_assert!(folder.count() <= folder.bytes() && folder.count() <= limit);
        }
    }
}
