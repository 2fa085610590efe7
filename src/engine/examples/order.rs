//! Measures what the order of an epoch costs: to open it, and for each sample, for epochs of several lengths.
//!
//! `cargo run --release -p dali-zarr-engine --example order` prints a table in nanoseconds: to open an order, for each
//! sample when samples follow one another, and for a sample at an arbitrary position (as after a restart).

use std::hint::black_box;
use std::time::Instant;

use dali_zarr_samples::order::{Blocks, Order, Run};
use dali_zarr_samples::spec::Spec;

/// Number of samples that share a chunk.
const BLOCK: u64 = 24;

fn main() {
    println!("{:>20} {:>22} {:>12} {:>14} {:>12}", "samples", "order", "open, ns", "in turn, ns", "alone, ns");
    for n in [1_000u64, 1_000_000, 1_000_000_000, 1_000_000_000_000] {
        let single = || Blocks::single(n);
        let grouped = || {
            let runs = [Run { size: BLOCK, count: n / BLOCK }, Run { size: n % BLOCK, count: 1 }];
            Blocks::new(&[runs.into_iter().filter(|r| r.size > 0).collect()])
        };
        let random = Spec::default().with(|s| {
            s.order.random_shuffle = true;
            s.order.seed = 1;
            s.order.initial_fill = Some(512);
        });
        measure(n, "as stored", &Spec::default(), single);
        measure(n, "shuffled", &random, single);
        measure(n, "shuffled by chunks", &random, grouped);
    }
}

fn measure(n: u64, what: &str, spec: &Spec, blocks: impl Fn() -> Blocks) {
    let new = || Order::by_chunks(spec, blocks()).expect("the spec makes sense");
    // Opening is done when the first sample is known.
    let open = median(500, 2, |_| new().sample(black_box(0)).index);
    let mut order = new();
    let turn = median(n.min(1_000_000) / 1000, 1000, |k| order.sample(k).index);
    let mut order = new();
    let alone = median(200, 10, |k| order.sample(k.wrapping_mul(0x9e37_79b9_7f4a_7c15) % n).index);
    println!("{n:>20} {what:>22} {open:>12.0} {turn:>14.0} {alone:>12.0}");
}

/// Returns the nanoseconds of one call: the median of `slices` averages over `calls` calls each. The median leaves out
/// disturbances by other programs.
fn median(slices: u64, calls: u64, mut f: impl FnMut(u64) -> u64) -> f64 {
    let mut times: Vec<f64> = (0..slices)
        .map(|slice| {
            let start = Instant::now();
            for k in slice * calls..(slice + 1) * calls {
                black_box(f(k));
            }
            start.elapsed().as_nanos() as f64 / calls as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
