//! Runs the reader's scheduler in random worlds: reads, decoders and consumers take any time, fail and end in any
//! order. Everything that the scheduler promises is checked.
//!
//! `simulate [--worlds 100000] [--seed 0] [--threads N] [--unusual]` runs the worlds of the seeds from `--seed` on. If
//! a world breaks a promise, its seed is printed, and `--seed SEED --worlds 1` gives the same world again. `--unusual`
//! adds chunks with more encoded bytes than usual, and stores that tell where chunks lie in larger objects.

use std::process::ExitCode;
use std::time::Instant;

use dali_zarr_engine::worlds::{Failure, search};

fn main() -> ExitCode {
    let mut numbers = [("--worlds", 100_000), ("--seed", 0), ("--threads", 0)];
    let mut unusual = false;
    let mut args = std::env::args().skip(1);
    while let Some(name) = args.next() {
        if name == "--unusual" {
            unusual = true;
            continue;
        }
        let value = args.next().and_then(|value| value.replace('_', "").parse().ok());
        match (numbers.iter_mut().find(|(n, _)| *n == name), value) {
            (Some(number), Some(value)) => number.1 = value,
            _ => {
                eprintln!("expected --worlds N, --seed N, --threads N or --unusual, but found {name}");
                return ExitCode::from(2);
            }
        }
    }
    let [(_, worlds), (_, seed), (_, threads)] = numbers;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = if threads == 0 { cores } else { threads as usize };
    let began = Instant::now();
    match search(seed..seed.saturating_add(worlds), threads, unusual) {
        Ok(()) => {
            println!("{worlds} worlds from {seed} on kept every promise, in {:.1} s", began.elapsed().as_secs_f64());
            ExitCode::SUCCESS
        }
        Err(Failure { seed, what }) => {
            eprintln!("world {seed}: {what}");
            ExitCode::FAILURE
        }
    }
}
