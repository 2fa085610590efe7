//! The host memory of a reader among that of all readers of the process.

use std::sync::Arc;

use crossbeam_channel::Sender;

use super::opening::UnstartedReader;
use crate::budget::{Budget, MachineMemory, smallest};
use crate::messages::Event;
use dali_zarr_base::error::Result;
use dali_zarr_base::memory::{Account, Given, Ledger};
use dali_zarr_samples::spec::{Device, Spec};

/// What a reader has of the memory that all readers share. It ends when this is dropped.
pub(super) struct Part {
    /// Where a reader without a limit of its own draws memory from.
    pub account: Option<Arc<Account>>,
    /// The limit and the cache that the user asked for.
    _given: Given,
}

impl Drop for Part {
    fn drop(&mut self) {
        if let Some(account) = &self.account {
            account.close();
        }
    }
}

/// Divides the memory of a reader, and reserves what it can't do without. Asks the other readers for memory if too little
/// is left. `events` are the reader's: it is asked there itself, later.
///
/// # Errors
/// If a reader with the user's limits can't be built, or not beside the others.
pub(super) fn divide(
    spec: &Spec,
    unstarted: &mut UnstartedReader,
    mut there: MachineMemory,
    events: &Sender<Event>,
) -> Result<(Budget, Part)> {
    let ledger = Ledger::of_process();
    let cache = spec.resources.cache_size;
    if spec.resources.host_memory_limit.is_some() {
        let division = unstarted.divide(spec, &there)?;
        let given = ledger.give(division.limits.host.saturating_add(cache));
        return Ok((division.accepted()?, Part { account: None, _given: given }));
    }
    let share = there.host.as_ref().map_or(u64::MAX >> 1, |machine| machine.share());
    ledger.set_share(share);
    if let Some(machine) = &there.host {
        let least = smallest(&unstarted.needs, spec.resources.prefetch_queue_depth).host;
        // A machine that is too small for this reader alone has an error of its own.
        if least <= machine.total {
            ledger.check(least, machine.total, &machine.says)?;
        }
    }
    let events = events.clone();
    // The reader may be gone. From here on, the parts of the others are smaller.
    let account = ledger.open(0, move || drop(events.send(Event::GiveBack)));
    let part = Part { account: Some(Arc::clone(&account)), _given: ledger.give(cache) };
    let is_fixed = spec.device != Device::Cpu;
    there.share = Some(share);
    if is_fixed {
        // Page-locked memory can't be given back. So half of what is left stays for others.
        let division = unstarted.divide(spec, &there)?;
        ledger.ask_for(division.limits.host.saturating_mul(2).min(share));
        there.share = Some(ledger.left() / 2);
    }
    let batches = spec.resources.prefetch_queue_depth;
    let mut division = unstarted.divide(spec, &there)?;
    if !is_fixed && division.is_accepted() {
        let reserved = division.budget.host.reserved(&unstarted.needs, batches);
        ledger.ask_for(reserved);
        if ledger.left() < reserved {
            there.share = Some(ledger.left());
            division = unstarted.divide(spec, &there)?;
        }
    }
    let host = division.limits.host;
    let budget = division.accepted()?;
    account.reserve(if is_fixed { host } else { budget.host.reserved(&unstarted.needs, batches) });
    Ok((budget, part))
}
