//! Compares the memory cache with a model, and checks its hit rates and its limit.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;

use proptest::prelude::*;

use super::*;
use dali_zarr_base::random::mix;
use dali_zarr_samples::order::Permutation;

fn name(number: u64) -> Name {
    let bytes = format!("store\0key/{number}").into_bytes();
    Name { hash: mix(number + 1), object: 0, bytes, remote: false, confirm: true }
}

fn memory(limit: u64) -> Memory {
    Memory::new(limit, &Arc::default()).unwrap()
}

fn bytes(number: u64, version: u64, len: usize) -> Vec<u8> {
    (0..len).map(|i| mix(number << 32 | version << 20 | i as u64) as u8).collect()
}

fn tag(text: impl ToString) -> ObjectVersion {
    ObjectVersion::Tag(text.to_string().into())
}

fn get(
    memory: &Memory,
    number: u64,
    version: Option<&str>,
    most: usize,
) -> Option<(Vec<u8>, u64, Option<ObjectVersion>)> {
    let mut to = vec![0; most];
    let held = memory.get(&name(number), |v| version.is_none_or(|wanted| v == Some(&tag(wanted))), &mut to)?;
    to.truncate(held.len);
    Some((to, held.size, held.version))
}

#[test]
fn gives_what_was_put_of_the_version_that_is_asked_for() {
    let memory = memory(1 << 20);
    for (number, len) in [(1, 0), (2, 1), (3, UNIT), (4, 5 * UNIT + 7), (5, 300_000)] {
        memory.put(&name(number), Some(&tag("\"v1\"")), 9, &bytes(number, 1, len));
        assert_eq!(get(&memory, number, Some("\"v1\""), len), Some((bytes(number, 1, len), 9, Some(tag("\"v1\"")))));
        assert_eq!(get(&memory, number, Some("\"v2\""), len), None, "of another version");
        if len > 0 {
            let held = memory.get(&name(number), |_| true, &mut vec![0; len - 1]).unwrap();
            assert_eq!((held.len, held.size), (len, 9), "longer than there is room for: its length is told");
        }
    }
    memory.put(&name(3), None, 8, &bytes(3, 2, 10));
    assert_eq!(get(&memory, 3, None, 99), Some((bytes(3, 2, 10), 8, None)), "replaced");
    memory.forget(&name(3));
    assert_eq!(get(&memory, 3, None, 99), None);
    let other = Name { bytes: b"another name of the same hash".to_vec(), ..name(4) };
    assert!(memory.get(&other, |_| true, &mut [0; 99]).is_none());
    memory.put(&name(6), None, 1, &vec![0; 2 << 20]);
    assert_eq!(get(&memory, 6, None, 3 << 20), None, "more than there is room for at all");
    assert!(get(&memory, 5, None, 300_000).is_some(), "and nothing went for it");
}

#[test]
fn never_more_than_the_limit() {
    for limit in [1 << 20, (5 << 20) + 12_345, 64 << 20] {
        let memory = memory(limit);
        for number in 0..limit / 1000 {
            memory.put(&name(number), Some(&tag("v")), 0, &[1; 700]);
        }
        for number in 0..40 {
            memory.put(&name(number), Some(&tag("v")), 0, &vec![1; limit as usize / 7]);
        }
        let page = 4096;
        assert!(memory.max_bytes() + 6 * page <= limit as usize, "{} of {limit}", memory.max_bytes());
        assert!(memory.max_bytes() > limit as usize * 9 / 10, "{} of {limit}", memory.max_bytes());
    }
}

/// Returns the hits per look-up of each epoch. `order(epoch, i)` is the entry that look-up `i` of an epoch asks for.
/// Each entry has `len` bytes.
fn hit_rates(memory: &Memory, entries: u64, len: usize, epochs: u64, order: impl Fn(u64, u64) -> u64) -> Vec<f64> {
    let mut to = vec![0; len];
    let payload = vec![7; len];
    let mut rates = Vec::new();
    for epoch in 0..epochs {
        let mut hits = 0;
        for i in 0..entries {
            let name = name(order(epoch, i));
            if memory.get(&name, |_| true, &mut to).is_some() {
                hits += 1;
            } else {
                memory.put(&name, Some(&tag("v")), len as u64, &payload);
            }
        }
        rates.push(hits as f64 / entries as f64);
    }
    rates
}

fn shuffled(entries: u64) -> impl Fn(u64, u64) -> u64 {
    move |epoch, i| Permutation::new(entries, mix(epoch)).at(i)
}

const ENTRIES: u64 = 1000;
/// Bytes of an entry that takes three units, with its head.
const LEN: usize = 2 * UNIT + 100;

#[test]
fn epochs_of_twice_the_size_hit_nearly_every_other_time() {
    let room = 500 * 3 * (UNIT + Table::EACH) as u64 + SPARE as u64;
    let sequential = hit_rates(&memory(room), ENTRIES, LEN, 12, |_, i| i);
    let random = hit_rates(&memory(room), ENTRIES, LEN, 12, shuffled(ENTRIES));
    println!("sequential {sequential:?}\nshuffled {random:?}");
    for rates in [sequential, random] {
        assert!(rates[1..].iter().all(|&r| r >= 0.4), "{rates:?}");
        assert!(rates.iter().all(|&r| r <= 0.5 + 0.02), "{rates:?}");
    }
}

#[test]
fn a_set_that_fits_always_hits() {
    let room = 1010 * 3 * (UNIT + Table::EACH) as u64 + SPARE as u64;
    for rates in [
        hit_rates(&memory(room), ENTRIES, LEN, 3, |_, i| i),
        hit_rates(&memory(room), ENTRIES, LEN, 3, shuffled(ENTRIES)),
    ] {
        assert_eq!(rates, [0.0, 1.0, 1.0]);
    }
}

#[test]
fn another_set_takes_the_place_of_the_old_one_within_a_few_epochs() {
    let room = 500 * 3 * (UNIT + Table::EACH) as u64 + SPARE as u64;
    for shuffle in [false, true] {
        let memory = memory(room);
        let order = shuffled(ENTRIES);
        let pick = |epoch, i| if shuffle { order(epoch, i) } else { i };
        hit_rates(&memory, ENTRIES, LEN, 5, pick);
        let after = hit_rates(&memory, ENTRIES, LEN, 8, |epoch, i| 1_000_000 + pick(epoch, i));
        println!("shuffled {shuffle}: {after:?}");
        assert!(after[5] >= 0.4, "{after:?}");
        // Of a smaller set that fits, nearly all entries are cached in the end.
        let few = shuffled(400);
        let small = hit_rates(&memory, 400, LEN, 12, |e, i| 2_000_000 + if shuffle { few(e, i) } else { i });
        println!("shuffled {shuffle}, small: {small:?}");
        assert!(small[11] >= 0.9, "{small:?}");
    }
}

#[test]
fn counts_what_goes() {
    let counters = Arc::<Counters>::default();
    let memory = Memory::new(1 << 20, &counters).unwrap();
    for number in 0..20_000 {
        memory.put(&name(number), None, 0, &[0; 1000]);
    }
    assert!(counters.evictions.load(Relaxed) > 500);
}

#[derive(Clone, Debug)]
enum Act {
    WriteResult(u64, u64, usize),
    Get(u64, Option<u64>),
    Forget(u64),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        (0..40u64, 0..3u64, 0..60_000usize).prop_map(|(n, v, len)| Act::WriteResult(n, v, len)),
        (0..40u64, prop::option::of(0..3u64)).prop_map(|(n, v)| Act::Get(n, v)),
        (0..40u64).prop_map(Act::Forget),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]
    #[test]
    fn what_is_found_is_what_was_put_last(acts in prop::collection::vec(act(), 1..300)) {
        let memory = memory(1 << 20);
        let mut model: HashMap<u64, (u64, usize)> = HashMap::new();
        for act in acts {
            match act {
                Act::WriteResult(number, version, len) => {
                    memory.put(&name(number), Some(&tag(version)), 5, &bytes(number, version, len));
                    model.insert(number, (version, len));
                }
                Act::Get(number, wanted) => {
                    let text = wanted.map(|v| v.to_string());
                    if let Some((found, size, version)) = get(&memory, number, text.as_deref(), 60_000) {
                        let (last, len) = model[&number];
                        prop_assert!(wanted.is_none_or(|w| w == last));
                        prop_assert_eq!((size, version), (5, Some(tag(last))));
                        prop_assert_eq!(found, bytes(number, last, len));
                    }
                }
                Act::Forget(number) => {
                    memory.forget(&name(number));
                    prop_assert!(get(&memory, number, None, 60_000).is_none());
                }
            }
            let (held, free, all) = memory.table().balance(UNIT);
            prop_assert_eq!(held + free, all);
        }
    }
}

#[test]
fn threads_that_put_and_get_the_same_names_find_whole_entries() {
    let memory = memory(1 << 20);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let memory = &memory;
            scope.spawn(move || {
                for i in 0..6000u64 {
                    let dice = mix(thread << 40 | i);
                    let number = dice % 50;
                    if dice.is_multiple_of(3) {
                        let version = dice >> 8 & 1;
                        memory.put(&name(number), Some(&tag(version)), 0, &bytes(number, version, 8000));
                    } else if let Some((found, _, version)) = get(memory, number, None, 9000) {
                        let of = (0..2).find(|&of| version == Some(tag(of))).expect("one that was put");
                        assert_eq!(found, bytes(number, of, 8000));
                    }
                    if dice.is_multiple_of(17) {
                        memory.forget(&name(number));
                    }
                }
            });
        }
    });
    assert!(memory.table().is_at_rest());
}
