//! Tests of [`Sharing`], in which only the counts of batches and chunks and the consumer's times matter.

use std::time::Duration;

use super::*;

/// A batch for which the consumer waited, after it had worked. Both times are in units of 8 ms.
fn take(waited: u32, worked: u32) -> Take {
    let [waited, worked] = [waited, worked].map(|n| n * Duration::from_millis(8));
    Take { waited, interval: waited + worked }
}

/// Simulates a reader and a consumer, in batches. The CPU finishes `cpu` batches for each one that is taken. A
/// burst of the GPU, when it is allowed, fills the queue after `latency` more batches were taken. Returns the
/// batches that the GPU decoded, the number of its bursts, and how often no batch was left, counted over `rounds`
/// batches after as many others for settling.
fn consume(cpu: f64, latency: usize, max_waiting: usize, rounds: usize) -> (f64, usize, usize) {
    let mut sharing = Sharing::new(8, max_waiting, false);
    let (mut waiting, mut wave) = (max_waiting as f64, None);
    let (mut by_gpu, mut bursts, mut empty, mut waits) = (0.0, 0, 0, 0);
    sharing.queue_is_full();
    for round in 0..2 * rounds {
        if round == rounds {
            (by_gpu, bursts, empty) = (0.0, 0, 0);
        }
        if waiting < 1.0 {
            // The consumer waits for the burst.
            wave = Some(0);
            waits += 1;
        } else {
            waiting -= 1.0;
            sharing.taken(take(waits, 1), waiting as usize);
            empty += std::mem::take(&mut waits) as usize;
        }
        if sharing.is_on {
            waiting = (waiting + cpu).min(max_waiting as f64);
        }
        wave = match wave {
            None if sharing.for_gpu(1, waiting as usize, true) > 0 => {
                sharing.launched(0, 0);
                bursts += 1;
                Some(latency)
            }
            Some(0) => {
                sharing.ended(0);
                by_gpu += max_waiting as f64 - waiting;
                waiting = max_waiting as f64;
                None
            }
            other => other.map(|left| left - 1),
        };
        if waiting >= max_waiting as f64 {
            sharing.queue_is_full();
        }
    }
    (by_gpu, bursts, empty)
}

#[test]
fn a_cpu_that_is_fast_enough_decodes_everything() {
    assert_eq!(consume(1.2, 3, 10, 2000), (0.0, 0, 0));
}

#[test]
fn the_gpu_decodes_what_the_cpu_cannot_in_large_bursts() {
    for (cpu, latency) in [(0.5, 2), (0.5, 4), (0.8, 3), (0.2, 2)] {
        let rounds = 4000;
        let (by_gpu, bursts, empty) = consume(cpu, latency, 16, rounds);
        let least = (1.0 - cpu) * rounds as f64;
        assert!(by_gpu < 1.1 * least, "{cpu} {latency}: {by_gpu} for {least}");
        assert!(by_gpu / bursts as f64 >= 6.0, "{cpu} {latency}: {by_gpu} in {bursts}");
        assert!(empty * 25 < rounds, "{cpu} {latency}: {empty}");
    }
}

/// Whether the GPU decodes while `waiting` batches wait.
fn decodes(sharing: &mut Sharing, waiting: usize) -> bool {
    sharing.for_gpu(1, waiting, true) > 0
}

#[test]
fn a_consumer_that_leaves_no_batch_gets_the_gpu() {
    let mut sharing = Sharing::new(8, 8, false);
    assert!(!sharing.is_on && decodes(&mut sharing, 8));
    (0..100).for_each(|_| sharing.taken(take(1, 0), 0));
    assert!(!sharing.is_on);
    sharing.launched(0, 0);
    sharing.ended(0);
    sharing.queue_is_full();
    assert!(sharing.is_on && !decodes(&mut sharing, 8) && sharing.cpu_decodes());
    assert!(sharing.has_time(3) && !sharing.has_time(2), "the reserve is a quarter of them");
    (0..12).for_each(|_| sharing.taken(take(1, 0), 0));
    assert!(!sharing.is_on && decodes(&mut sharing, 8) && !sharing.cpu_decodes() && !sharing.has_time(8));
}

#[test]
fn batches_that_are_finished_together_dont_look_like_a_slow_consumer() {
    for (together, max_waiting) in [(5, 8), (5, 4), (10, 3), (24, 8)] {
        let mut sharing = Sharing::new(8, max_waiting, false);
        let (mut on, mut offs) = (0, 0);
        for batch in 0..6000 {
            sharing.queue_is_full();
            let before = sharing.is_on;
            // The consumer waits for the first batch of each group three times as long as it works on one.
            sharing.taken(take(if batch % together == 0 { 3 } else { 0 }, 1), max_waiting / 2);
            on += usize::from(sharing.is_on);
            offs += usize::from(before && !sharing.is_on);
        }
        assert!(on < 2400 && offs <= 12, "{together} {max_waiting}: on for {on}, off {offs} times");
    }
}

#[test]
fn it_is_on_again_when_no_batch_was_late_for_a_time_though_the_queue_is_never_full() {
    for was_on in [false, true] {
        let mut sharing = Sharing::new(8, 8, false);
        if was_on {
            sharing.queue_is_full();
            (0..12).for_each(|_| sharing.taken(take(1, 0), 0));
        }
        (0..15).for_each(|_| sharing.taken(take(0, 1), 5));
        assert!(!sharing.is_on);
        (0..40).for_each(|_| sharing.taken(take(0, 1), 5));
        assert!(sharing.is_on);
    }
}

#[test]
fn waits_that_come_again_and_again_raise_the_reserve_however_few_batches_there_are() {
    for max_waiting in [4, 10, 32] {
        let mut sharing = Sharing::new(8, max_waiting, false);
        sharing.queue_is_full();
        let first = sharing.reserve();
        (0..50 * max_waiting).for_each(|batch| sharing.taken(take(u32::from(batch % 8 == 0), 1), 1));
        assert!(sharing.reserve().is_none_or(|reserve| Some(reserve) > first), "{max_waiting}: {sharing:?}");
    }
}

#[test]
fn one_burst_at_a_time_unless_no_batch_waits() {
    let mut sharing = Sharing::new(8, 8, false);
    sharing.queue_is_full();
    assert!(!decodes(&mut sharing, 3) && decodes(&mut sharing, 2) && decodes(&mut sharing, 3), "until all is launched");
    sharing.launched(2, 1);
    assert!(decodes(&mut sharing, 2));
    sharing.launched(3, 0);
    assert!(!decodes(&mut sharing, 2) && decodes(&mut sharing, 0));
    sharing.ended(2);
    assert!(!decodes(&mut sharing, 2));
    sharing.ended(3);
    assert!(decodes(&mut sharing, 2));
}

#[test]
fn a_burst_ends_when_the_cpu_has_taken_all_or_the_queue_is_full() {
    let mut sharing = Sharing::new(8, 8, false);
    sharing.queue_is_full();
    assert!(decodes(&mut sharing, 2) && decodes(&mut sharing, 3));
    sharing.begin(1);
    assert!(decodes(&mut sharing, 3), "another chunk waits");
    sharing.begin(0);
    assert!(!decodes(&mut sharing, 3) && decodes(&mut sharing, 2));
    sharing.queue_is_full();
    assert!(!decodes(&mut sharing, 8));
}

#[test]
fn a_burst_leaves_the_last_of_many_chunks_to_the_cpu() {
    let mut sharing = Sharing::new(8, 8, false);
    sharing.queue_is_full();
    assert_eq!(sharing.for_gpu(64, 2, true), 48, "two for each task");
    assert_eq!([sharing.for_gpu(30, 3, true), sharing.for_gpu(16, 3, true)], [14, 0]);
    assert_eq!(sharing.for_gpu(16, 3, false), 16, "the CPU has no memory for them");
    assert_eq!(sharing.for_gpu(16, 0, true), 16, "no batch waits");
    sharing.launched(0, 16);
    assert_eq!(sharing.for_gpu(16, 2, true), 0, "the burst has ended");
    sharing.ended(0);
    assert_eq!(sharing.for_gpu(31, 2, true), 31, "few chunks");
    let mut alone = Sharing::new(0, 8, false);
    alone.queue_is_full();
    assert_eq!(alone.for_gpu(64, 2, true), 64, "the CPU doesn't help");
}

#[test]
fn several_processes_begin_bursts_at_the_same_batches() {
    let mut sharing = Sharing::new(0, 8, true);
    sharing.queue_is_full();
    // The queue loses a batch for each one that is taken, and lasts for six: the period is four.
    let mut began = Vec::new();
    for (number, waiting) in (1..=7).zip([7, 6, 5, 4, 7, 6, 5]) {
        sharing.taken(take(0, 1), waiting);
        assert_eq!(sharing.for_gpu(0, waiting, true), 0, "nothing to decode");
        if decodes(&mut sharing, waiting) {
            began.push((number, waiting));
            sharing.launched(0, 0);
            sharing.ended(0);
        }
    }
    assert_eq!(began, [(4, 4)], "before the queue is as low as the reserve");
}

#[test]
fn without_tasks_the_gpu_decodes_all_in_bursts() {
    let mut sharing = Sharing::new(0, 8, false);
    sharing.queue_is_full();
    assert!(!sharing.cpu_helps() && !sharing.cpu_decodes());
    assert!(!decodes(&mut sharing, 3) && decodes(&mut sharing, 2));
}

#[test]
fn without_a_gpu_or_with_few_batches_it_is_never_on() {
    for batches in [0, 2] {
        let mut sharing = Sharing::new(8, batches, false);
        sharing.queue_is_full();
        (0..1000).for_each(|_| sharing.taken(take(0, 1), batches));
        assert!(!sharing.is_on && !sharing.cpu_decodes() && decodes(&mut sharing, batches));
    }
}
