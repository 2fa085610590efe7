//! What the memory budgets allow.

use serde_json::{Value, json};

use crate::budget::{Limits, Needs};
use crate::chunk_index::ChunkIndex;
use crate::error::Result;
use crate::memory::Machine;
use crate::memory::arena::rounded;
use crate::messages::WaveLimits;
use crate::order::Order;
use crate::reader::needs::{Division, There, divide, limits, rules, smallest};
use crate::scheduler::simulation::{Config, GpuConfig};
use crate::spec::Spec;

/// The budgets of a reader, divided.
pub(crate) struct Memory {
    pub smallest: Limits,
    pub limits: Limits,
    /// The machine's memory, if it is known.
    pub machine: Option<Machine>,
    /// Why a reader with these limits isn't built. All other numbers are then those of the smallest limits.
    pub refused: Option<String>,
    pub division: Division,
    /// Batches that may be in preparation or waiting.
    pub window: usize,
    /// Batches that are planned ahead of these.
    pub lookahead: usize,
    /// Chunks of the largest size that may be between reading and decoding at a time.
    pub chunks_in_flight: usize,
    pub io_threads: usize,
    pub decode_threads: usize,
    /// Bytes of the largest chunk, encoded and decoded.
    pub chunk: usize,
}

impl Memory {
    /// Divides the limits of `spec` where there is so much memory, or the smallest ones if they are too small or too large, for a
    /// reader of samples in this order.
    pub fn new(spec: &Spec, catalog: &ChunkIndex, needs: &Needs, order: &Order, there: &There) -> Result<Self> {
        let smallest = smallest(spec, needs, catalog)?;
        let (limits, lacking) = match limits(spec, needs, catalog, there) {
            Ok(limits) => (limits, None),
            Err(e) => (smallest, Some(e)),
        };
        let (division, refused) = match (divide(spec, needs, catalog, limits), lacking) {
            (Ok(division), lacking) => (division, lacking.map(|e| e.message().to_owned())),
            (Err(e), _) => (divide(spec, needs, catalog, smallest)?, Some(e.message().to_owned())),
        };
        let (io_threads, reads) = (spec.io_threads(), spec.reads_at_a_time());
        let chunk = rounded(needs.encoded) + rounded(needs.decoded);
        let (window, threads, chunks_in_flight) = match &division {
            Division::Cpu(h) => (h.window, h.threads, h.block / chunk.max(1)),
            Division::Gpu(d, h) => {
                let decoded = (d.slots / rounded(needs.decoded).max(1)).min(
                    // Waves of all lanes, and what is being read for the next ones.
                    d.lanes * (d.wave_encoded / rounded(needs.encoded).max(1)).clamp(1, d.wave_streams.max(1)) + reads,
                );
                let host = h.block / (rounded(needs.encoded) + rounded(needs.bounced)).max(1);
                (d.window, h.threads, decoded.min(host))
            }
        };
        Ok(Self {
            smallest,
            limits,
            machine: there.host.clone(),
            refused,
            division,
            window,
            lookahead: rules(spec, needs, order, window, 0).lookahead,
            chunks_in_flight: chunks_in_flight.max(1),
            io_threads,
            decode_threads: threads,
            chunk,
        })
    }

    /// A simulated reader with this memory, for samples in this order.
    pub fn config(&self, spec: &Spec, needs: &Needs, order: &Order) -> Config {
        let (host, gpu) = match &self.division {
            Division::Cpu(h) => (h, None),
            Division::Gpu(d, h) => (h, Some(GpuConfig { slots: d.slots, lanes: d.lanes, limits: WaveLimits::from(d) })),
        };
        let rules = rules(spec, needs, order, self.window, host.indexes);
        Config { rules, staging: host.block, threads: self.decode_threads, gpu }
    }

    /// As `memory` of the explanation.
    pub fn to_json(&self, spec: &Spec) -> Value {
        let mut value = json!({
            "host_memory_limit": self.limits.host,
            "host_memory_limit_given": spec.host_memory_limit.is_some(),
            "smallest_host_memory_limit": self.smallest.host,
            "device_memory_limit": null,
            "device_memory_limit_given": spec.device_memory_limit.is_some(),
            "smallest_device_memory_limit": null,
            "machine_memory": self.machine.as_ref().map(|m| m.total),
            "refused": self.refused,
            "batches_in_preparation": self.window,
            "batches_planned_ahead": self.lookahead,
            "chunks_in_flight": self.chunks_in_flight,
            "io_threads": self.io_threads,
            "decode_threads": self.decode_threads,
            "lanes": null,
            "decoded_bytes_kept": null,
        });
        match &self.division {
            Division::Cpu(h) => value["decoded_bytes_kept"] = json!(h.block),
            Division::Gpu(d, _) => {
                value["device_memory_limit"] = json!(self.limits.device);
                value["smallest_device_memory_limit"] = json!(self.smallest.device);
                value["lanes"] = json!(d.lanes);
                value["decoded_bytes_kept"] = json!(d.slots);
            }
        }
        value
    }
}
