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
fn hashes_tell_values_and_shapes_apart() {
    let of = |values: &[f64], columns| Table::new(values.to_vec(), columns).unwrap().digest().to_owned();
    let all =
        [of(&[1.0, 2.0], 1), of(&[1.0, 2.0], 2), of(&[2.0, 1.0], 1), of(&[1.0], 1), of(&[0.0], 1), of(&[-0.0], 1)];
    assert!((0..all.len()).all(|i| !all[..i].contains(&all[i])), "{all:?}");
    assert_eq!(Table::new((0..10).collect::<Vec<i64>>(), 2).unwrap().digest(), crate::digest::digest(0..10, 2));
}

#[test]
fn tables_that_dont_fit_are_refused_before_they_are_read() {
    assert!(room::<i64>(100, Some(799)).unwrap_err().message().contains("needs 800 bytes, but 799 are left"));
    assert!(room::<i64>(100, Some(800)).unwrap().capacity() >= 100);
    assert!(room::<i64>(1 << 50, None).unwrap_err().message().contains("host memory"));
}
