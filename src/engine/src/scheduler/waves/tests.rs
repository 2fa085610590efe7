//! Tests of [`Waves`]: which chunks go into a wave, and when it is launched.

use std::time::Duration;

use super::*;
use crate::messages::Take;

const LIMITS: WaveLimits = WaveLimits { encoded: 4096, decoded: 8192, chunks: 3 };
const QUIET: WaveContext = WaveContext {
    reads: 0,
    tasks: 0,
    ready_uses: 0,
    batch_uses: 16,
    reads_lack_memory: false,
    cpu_lacks_memory: false,
    untaken: 1,
};

fn waves(lanes: usize) -> Waves {
    Waves::new(lanes, LIMITS, Sharing::new(0, 8, false))
}

fn chunk(handle: Handle, content: Content, decoded: usize) -> WaitingChunk {
    WaitingChunk { handle, content, bytes: decoded / 2, decoded, uses: 1, batch: u64::from(handle) / 16 }
}

fn handles(wave: Option<(usize, Vec<WaitingChunk>)>) -> Option<Vec<Handle>> {
    wave.map(|(_, wave)| wave.iter().map(|chunk| chunk.handle).collect())
}

#[test]
fn copies_come_first_and_a_wave_keeps_its_limits() {
    let mut waves = waves(4);
    for (handle, content) in [(0, Content::Encoded), (1, Content::Decoded), (2, Content::Encoded)] {
        waves.push(chunk(handle, content, 2048));
    }
    waves.push(chunk(3, Content::Encoded, 2048));
    assert_eq!(handles(waves.next(QUIET)), Some(vec![1, 0, 2]), "three chunks at most");
    assert_eq!(handles(waves.next(QUIET)), Some(vec![3]));
    waves.push(chunk(4, Content::Encoded, 8192));
    waves.push(chunk(5, Content::Encoded, 256));
    assert_eq!(handles(waves.next(QUIET)), Some(vec![4]), "8192 decoded bytes at most");
    waves.push(chunk(6, Content::Encoded, 1 << 20));
    waves.push(chunk(7, Content::Encoded, 256));
    assert_eq!(handles(waves.next(QUIET)), Some(vec![5]));
    assert_eq!(handles(waves.next(QUIET)), None, "no lane is idle");
    waves.ended(0);
    assert_eq!(handles(waves.next(QUIET)), Some(vec![6]), "a chunk beyond the limits goes alone");
    assert!(!waves.is_idle());
}

#[test]
fn a_wave_waits_for_reads_until_it_is_full() {
    let mut waves = waves(2);
    let reading = WaveContext { reads: 1, ..QUIET };
    waves.push(chunk(0, Content::Encoded, 4096));
    assert_eq!(handles(waves.next(reading)), None);
    waves.push(chunk(1, Content::Encoded, 4096));
    assert_eq!(handles(waves.next(reading)), Some(vec![0, 1]), "all bytes that a wave may have");
    waves.push(chunk(2, Content::Encoded, 4096));
    assert_eq!(handles(waves.next(WaveContext { untaken: 0, ..reading })), None, "a lane works for the next batch");
    waves.ended(0);
    assert_eq!(handles(waves.next(WaveContext { untaken: 0, ..reading })), Some(vec![2]), "no batch, idle lanes");
}

#[test]
fn jobs_of_decoded_chunks_wait_for_company() {
    let mut waves = waves(2);
    assert_eq!(handles(waves.next(QUIET)), None);
    let few = WaveContext { reads: 1, ready_uses: 1, ..QUIET };
    assert_eq!(handles(waves.next(few)), Some(vec![]), "all lanes are idle");
    assert_eq!(handles(waves.next(few)), None);
    assert_eq!(handles(waves.next(WaveContext { ready_uses: EAGER_USES, ..few })), Some(vec![]));
}

/// Two lanes. 8 batches may wait, and the reserve is 2 of them.
fn waves_with_time() -> Waves {
    let mut waves =
        Waves::new(2, WaveLimits { encoded: 1 << 30, decoded: 1 << 30, chunks: 64 }, Sharing::new(8, 8, false));
    waves.sharing.queue_is_full();
    waves
}

#[test]
fn while_enough_batches_wait_there_is_one_wave_for_a_batch() {
    let mut waves = waves_with_time();
    let reading = WaveContext { reads: 1, untaken: 5, ..QUIET };
    let ready = |ready_uses| WaveContext { ready_uses, ..reading };
    assert_eq!(handles(waves.next(ready(15))), None, "more is being read");
    assert_eq!(handles(waves.next(ready(16))), Some(vec![]), "a whole batch");
    // What the CPU has decoded counts by its uses, and not by its bytes.
    for handle in 0..15 {
        waves.push(chunk(handle, Content::Decoded, 4 << 20));
    }
    assert_eq!(handles(waves.next(WaveContext { reads: 0, tasks: 1, ..reading })), None);
    assert_eq!(waves.next(ready(1)).unwrap().1.len(), 15);
    waves.ended(0);
    waves.ended(1);
    assert_eq!(handles(waves.next(ready(3))), None);
    assert_eq!(handles(waves.next(WaveContext { reads: 0, ..ready(3) })), Some(vec![]), "nothing else comes");
}

#[test]
fn a_burst_leaves_the_last_chunks_to_the_cpu_if_it_has_memory_for_them() {
    for cpu_decodes in [true, false] {
        let mut waves = waves_with_time();
        (0..72).for_each(|handle| waves.push(chunk(handle, Content::Encoded, 1 << 20)));
        if cpu_decodes {
            (0..8).for_each(|handle| waves.begin_shared(handle));
        }
        let now = WaveContext { untaken: 2, cpu_lacks_memory: !cpu_decodes, ..QUIET };
        let wave = handles(waves.next(now)).unwrap();
        assert_eq!(
            wave,
            if cpu_decodes { 8..56 } else { 0..64 }.collect::<Vec<_>>(),
            "two for each of eight tasks are left"
        );
        assert_eq!(handles(waves.next(now)), None, "the burst has ended");
    }
}

#[test]
fn the_cpu_takes_no_chunk_that_is_needed_before_it_can_decode_it() {
    let mut waves = waves_with_time();
    (0..64).for_each(|handle| waves.push(chunk(handle, Content::Encoded, 1 << 20)));
    let next = |waves: &Waves, untaken| waves.next_shared(|batch| untaken + batch as usize).map(|chunk| chunk.handle);
    assert_eq!(next(&waves, 0), Some(63), "it isn't known how long a task takes");
    // Eight tasks are under way whenever a batch is taken, and four end: each takes two batches.
    (0..8).for_each(|_| waves.sharing.begin(64));
    for _ in 0..100 {
        waves.sharing.taken(Take { waited: Duration::ZERO, interval: Duration::from_millis(8) }, 4);
        (0..4).for_each(|_| waves.sharing.end());
        (0..4).for_each(|_| waves.sharing.begin(64));
    }
    waves.sharing.end();
    assert_eq!([4, 3, 1, 0].map(|untaken| next(&waves, untaken)), [Some(0), Some(63), Some(63), None]);
    for (taken, then, untaken) in [(63, 62, 1), (0, 1, 4)] {
        waves.begin_shared(taken);
        assert_eq!(next(&waves, 4), None, "all threads are busy");
        waves.sharing.end();
        assert_eq!(next(&waves, untaken), Some(then));
    }
}

#[test]
fn the_cpu_decodes_for_the_last_batch_even_if_its_tasks_are_long() {
    let mut waves = waves_with_time();
    (0..128).for_each(|handle| waves.push(chunk(handle, Content::Encoded, 1 << 20)));
    // Six tasks are under way, and one ends whenever a batch is taken: each takes six batches. Eight may be in preparation.
    (0..6).for_each(|_| waves.sharing.begin(128));
    for _ in 0..200 {
        waves.sharing.taken(Take { waited: Duration::ZERO, interval: Duration::from_millis(8) }, 4);
        waves.sharing.end();
        waves.sharing.begin(128);
    }
    let next = |waves: &Waves, untaken| waves.next_shared(|batch| untaken + batch as usize).map(|chunk| chunk.handle);
    assert_eq!([0, 6, 7].map(|untaken| next(&waves, untaken)), [Some(127), Some(127), Some(0)]);
}

#[test]
fn a_wave_waits_for_no_whole_batch_where_that_costs_time() {
    let reading = WaveContext { reads: 1, untaken: 5, ready_uses: 1, ..QUIET };
    let urgent = [
        ("the reserve is reached", WaveContext { untaken: 2, ..reading }),
        ("no batch waits", WaveContext { untaken: 0, ..reading }),
        ("a read waits for memory", WaveContext { reads_lack_memory: true, ..reading }),
        ("a decode thread waits for memory", WaveContext { cpu_lacks_memory: true, ..reading }),
    ];
    for (why, now) in urgent {
        let mut waves = waves_with_time();
        assert_eq!(handles(waves.next(reading)), None);
        assert_eq!(handles(waves.next(now)), Some(vec![]), "{why}");
    }
    // The consumer is the faster one.
    let mut waves = Waves::new(2, LIMITS, Sharing::new(8, 8, false));
    assert_eq!(handles(waves.next(reading)), Some(vec![]));
}

#[test]
fn small_chunks_of_several_batches_share_a_wave() {
    let mut waves = waves_with_time();
    let reading = WaveContext { reads: 1, untaken: 5, batch_uses: 1, ..QUIET };
    for handle in 0..3 {
        waves.push(chunk(handle, Content::Decoded, 1 << 10));
        assert_eq!(
            handles(waves.next(reading)),
            None,
            "16 MB would be launched, or what waits when no read is under way"
        );
    }
    assert_eq!(handles(waves.next(WaveContext { reads: 0, ..reading })), Some(vec![0, 1, 2]));
}
