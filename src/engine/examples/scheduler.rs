//! Measures what the scheduler costs: nanoseconds of its thread for each inner chunk of shards that a GPU decodes.
//!
//! `cargo run --release -p dali-zarr-engine --example scheduler` prints the median of several runs, and the range.

use dali_zarr_base::error::Error;
use dali_zarr_engine::worlds::scheduler_speed;

fn main() -> Result<(), Error> {
    let mut runs = Vec::new();
    let count = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(9);
    for _ in 0..count {
        runs.push(scheduler_speed(512)?);
    }
    runs.sort_by(|a, b| a.nanoseconds.total_cmp(&b.nanoseconds));
    let (first, middle, last) = (runs[0], runs[runs.len() / 2], runs[runs.len() - 1]);
    println!(
        "{:.0} ns for each inner chunk ({:.0} to {:.0}), in waves of {:.0}",
        middle.nanoseconds, first.nanoseconds, last.nanoseconds, middle.in_wave
    );
    Ok(())
}
