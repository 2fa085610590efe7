//! Tables and their hashes.

use super::*;

#[test]
fn rows_are_whole() {
    assert!(Table::new(vec![1i64, 2, 3], 2).is_err());
    assert!(Table::<i64>::new(Vec::new(), 0).is_err());
    let table = Table::new(vec![1i64, 2, 3, 4, 5, 6], 3).unwrap();
    assert_eq!((table.rows(), table.columns(), table.row(1), table.bytes()), (2, 3, &[4, 5, 6][..], 48));
}

#[test]
fn hashes_tell_tables_apart() {
    let of = |values: Vec<i64>, columns| Table::new(values, columns).unwrap().digest().to_owned();
    let mut all: Vec<String> = Vec::new();
    // One bit, the order, the length and the shape count.
    let base: Vec<i64> = (0..60).collect();
    for columns in [1, 2, 4] {
        all.push(of(base.clone(), columns));
    }
    for i in 0..60 {
        for bit in [0, 31, 63] {
            let mut changed = base.clone();
            changed[i] ^= 1 << bit;
            all.push(of(changed, 1));
        }
        let mut swapped = base.clone();
        swapped.swap(i, (i + 4) % 60);
        all.push(of(swapped, 1));
        all.push(of(base[..i].to_vec(), 1));
    }
    all.extend((2..9).map(|n| of(vec![0; n], 1)));
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), count);
}

/// Hashes are part of checkpoints, so they must be the same in every later version.
#[test]
fn golden() {
    assert_eq!(Table::new((0..10).collect::<Vec<i64>>(), 2).unwrap().digest(), GOLDEN_DIGEST);
}
const GOLDEN_DIGEST: &str = "917ab4e78c1b54f845987780fbe088be";

#[test]
fn tables_that_dont_fit_are_refused_before_they_are_read() {
    assert!(room::<i64>(100, Some(799)).unwrap_err().message().contains("needs 800 bytes, but 799 are left"));
    assert!(room::<i64>(100, Some(800)).unwrap().capacity() >= 100);
    assert!(room::<i64>(1 << 50, None).unwrap_err().message().contains("host memory"));
}
