//! What the memory budgets allow: prints the division that a reader is built with.

use serde_json::{Value, json};

use crate::budget::{Asked, Budget, Division, MachineMemory, Needs, divide};
use crate::reader::needs::rules;
use crate::scheduler::simulation::Config;
use dali_zarr_base::error::Result;
use dali_zarr_base::memory::arena::rounded;
use dali_zarr_base::memory::{Ledger, Machine};
use dali_zarr_samples::spec::Spec;

/// With fewer streams in flight than this (of some MiB each), the GPU's decoders are idle most of the time.
pub(super) const FEW_FOR_GPU: usize = 64;

/// The memory of a reader, divided.
pub(crate) struct Memory {
    /// The machine's memory, if it is known.
    pub machine: Option<Machine>,
    /// Bytes of it that all readers of this process share, if it is known.
    share: Option<u64>,
    /// The division. If a reader with these limits can't be built, all other numbers are those of the smallest limits.
    pub division: Division,
    /// Number of batches that are planned ahead of those in preparation.
    pub lookahead: usize,
    /// Number of chunks of the largest size that may be between reading and decoding at a time.
    pub chunks_in_flight: usize,
    /// The decoded bytes that all batches in preparation need, as a number of chunks of the largest size.
    pub chunks_of_batches: usize,
    /// Whether more memory would allow more chunks at a time.
    pub is_short: bool,
    pub io_threads: usize,
    /// Bytes of the largest chunk: encoded and decoded, added up.
    pub chunk: usize,
    /// Bytes of device memory that are reserved, or lent for outputs. `None` without a GPU.
    device_total: Option<usize>,
}

impl Memory {
    /// Describes a division.
    pub fn new(spec: &Spec, needs: &Needs, there: &MachineMemory, division: Division) -> Self {
        let (io_threads, reads) = (spec.io_threads(), spec.reads_at_a_time());
        let chunk = rounded(needs.encoded) + rounded(needs.decoded);
        let in_flight = |budget: &Budget| in_flight(needs, budget, reads);
        let (chunks_in_flight, limits) = (in_flight(&division.budget), &division.limits);
        let more = |limit: u64| Some(2 * limit + (FEW_FOR_GPU * chunk) as u64);
        let asked = Asked { host: more(limits.host), device: more(limits.device), ..Asked::of(spec) };
        let with_more = divide(needs, &asked, &MachineMemory::default()).map_or(0, |more| in_flight(&more.budget));
        Self {
            machine: there.host.clone(),
            share: there.share,
            lookahead: rules(spec, needs, &division.budget).lookahead,
            chunks_in_flight,
            chunks_of_batches: needs.of_batches(division.budget.batches).div_ceil(needs.decoded.max(1)),
            is_short: with_more > chunks_in_flight,
            io_threads,
            chunk,
            device_total: division.budget.device.map(|d| d.total(needs)),
            division,
        }
    }

    /// Returns why a reader with these limits can't be built, if that is so.
    pub fn refused(&self) -> Option<&str> {
        self.division.refused.as_ref().map(|e| e.message())
    }

    /// Returns the object `memory` of the explanation.
    pub fn to_json(&self, spec: &Spec) -> Value {
        let Division { smallest, limits, budget, .. } = &self.division;
        let mut value = json!({
            "host_memory_limit": limits.host,
            "host_memory_limit_given": spec.resources.host_memory_limit.is_some(),
            "smallest_host_memory_limit": smallest.host,
            "device_memory_limit": null,
            "device_memory_limit_given": spec.resources.device_memory_limit.is_some(),
            "smallest_device_memory_limit": null,
            "device_memory_used": self.device_total,
            "machine_memory": self.machine.as_ref().map(|m| m.total),
            "host_memory_share": self.share,
            "host_memory_taken": Ledger::of_process().taken(),
            "refused": self.refused(),
            "batches_in_preparation": budget.batches,
            "batches_planned_ahead": self.lookahead,
            "chunks_in_flight": self.chunks_in_flight,
            "io_threads": self.io_threads,
            "decode_threads": budget.host.threads,
            "lanes": null,
            "wave_bytes": null,
            "decoded_bytes_kept": budget.host.block,
        });
        if let Some(d) = &budget.device {
            value["device_memory_limit"] = json!(limits.device);
            value["smallest_device_memory_limit"] = json!(smallest.device);
            value["lanes"] = json!(d.lanes);
            value["wave_bytes"] = json!(d.wave_decoded);
            value["decoded_bytes_kept"] = json!(d.slots);
        }
        value
    }
}

/// Returns how many chunks of the largest size may be between reading and decoding at a time, with `reads` reads at a
/// time.
fn in_flight(needs: &Needs, budget: &Budget, reads: usize) -> usize {
    let host = budget.host.block;
    let most = match &budget.device {
        None => host / (rounded(needs.encoded) + rounded(needs.decoded)).max(1),
        Some(d) => {
            let wave = (d.wave_decoded / rounded(needs.decoded)).clamp(1, d.wave_streams.max(1));
            // Waves of all lanes, and what is being read for the next ones.
            let decoded = (d.slots / rounded(needs.decoded)).min(d.lanes * wave + reads);
            decoded.min(host / (rounded(needs.encoded) + rounded(needs.host_decoded)).max(1))
        }
    };
    most.max(1)
}

/// Returns the configuration of a simulated reader. It has the memory that a reader with these needs would have.
pub(crate) fn simulated(spec: &Spec, needs: &Needs, there: &MachineMemory) -> Result<Config> {
    let budget = divide(needs, &Asked::of(spec), there)?.budget;
    Ok(Config::new(rules(spec, needs, &budget), &budget))
}
