//! Runs the functions that are fuzzed with the inputs that fuzzing has kept. `tests/corpus` holds a minimised corpus
//! for each target, with the inputs of all failures that were found.

use std::path::Path;

#[allow(unsafe_code, reason = "the kernels' host twin takes addresses")]
#[path = "../../../../tests/fuzz/src/lib.rs"]
mod fuzz;

fn replay(target: &str, run: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/corpus").join(target);
    let mut inputs = 0;
    for entry in std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
        let path = entry.unwrap().path();
        let input = std::fs::read(&path).unwrap();
        std::panic::catch_unwind(|| run(&input)).unwrap_or_else(|_| panic!("{}", path.display()));
        inputs += 1;
    }
    assert!(inputs >= 20, "{}: expected a corpus, found {inputs} files", folder.display());
    // Inputs that are too short for any target.
    run(&[]);
    run(&[3, 0]);
}

#[test]
fn open_chunk() {
    replay("open_chunk", fuzz::open_chunk);
}

#[test]
fn decode_chunk() {
    replay("decode_chunk", fuzz::decode_chunk);
}

#[test]
fn decode_image() {
    replay("decode_image", fuzz::decode_image);
}

#[test]
fn decode_streams() {
    replay("decode_streams", fuzz::decode_streams);
}
