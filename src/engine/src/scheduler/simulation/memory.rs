//! The memory of a simulated reader: what each unit of memory holds. Units have the size of the arena's alignment.

use super::{SLOTS, STAGING};
use crate::messages::ReadId;
use dali_zarr_base::error::{Error, Result};
use dali_zarr_base::memory::arena::ALIGN;
use dali_zarr_base::memory::{Lease, Part};
use dali_zarr_samples::plan::ChunkId;

/// A range of simulated memory, or of a simulated output.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    /// Address of the first byte.
    pub address: u64,
    /// Bytes.
    pub len: usize,
}

impl From<&Lease> for Span {
    fn from(lease: &Lease) -> Self {
        Self { address: lease.address(), len: lease.len() }
    }
}

impl From<&Part> for Span {
    fn from(part: &Part) -> Self {
        Self { address: part.address(), len: part.len() }
    }
}

/// What a unit of memory holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Held {
    Nothing,
    /// A read writes to it.
    Reading(ReadId),
    /// The bytes of a read.
    Read(ReadId),
    /// A decoder writes to it, or a copy to the device.
    Decoding(ChunkId),
    /// The decoded bytes of a chunk.
    Decoded(ChunkId),
}

/// The blocks of memory. Addresses elsewhere are those of outputs, which [`super::expected`] looks after.
pub(super) struct Memory {
    /// For each block its first address and its units.
    blocks: [(u64, Vec<Held>); 2],
}

impl Memory {
    /// Makes two blocks of these sizes in bytes: `staging` is host memory for chunks, `slots` device memory for decoded
    /// chunks.
    pub fn new(staging: usize, slots: usize) -> Self {
        let units = |bytes: usize| vec![Held::Nothing; bytes.div_ceil(ALIGN)];
        Self { blocks: [(STAGING, units(staging)), (SLOTS, units(slots))] }
    }

    /// Returns the units of a span; `None` if it lies in no block.
    ///
    /// # Errors
    /// If it reaches beyond its block.
    fn units(&mut self, span: Span) -> Result<Option<&mut [Held]>> {
        let outputs = super::OUTPUTS;
        for (base, units) in &mut self.blocks {
            let end = *base + (units.len() * ALIGN) as u64;
            if (*base..end).contains(&span.address) && span.address < outputs {
                let first = (span.address - *base) as usize / ALIGN;
                let last = ((span.address - *base) as usize + span.len.max(1)).div_ceil(ALIGN);
                let found = units.get_mut(first..last);
                return found.map(Some).ok_or_else(|| Error::runtime(format!("{span:?} reaches beyond its block")));
            }
        }
        Ok(None)
    }

    /// Records that a write to a span begins.
    ///
    /// # Errors
    /// If another write to it is under way.
    pub fn begin(&mut self, span: Span, writing: Held) -> Result<()> {
        for unit in self.units(span)?.into_iter().flatten() {
            if matches!(unit, Held::Reading(_) | Held::Decoding(_)) {
                return Err(Error::runtime(format!("{span:?} is given to {writing:?}, but {unit:?} goes on")));
            }
            *unit = writing;
        }
        Ok(())
    }

    /// Changes the content of a span.
    ///
    /// # Errors
    /// If it holds something else.
    pub fn change(&mut self, span: Span, from: Held, to: Held) -> Result<()> {
        for unit in self.units(span)?.into_iter().flatten() {
            if *unit != from {
                return Err(Error::runtime(format!("{span:?}: expected {from:?}, but found {unit:?}")));
            }
            *unit = to;
        }
        Ok(())
    }

    /// Checks that all of a span holds this content.
    ///
    /// # Errors
    /// If it holds something else, which the error names.
    pub fn expect(&mut self, span: Span, content: Held) -> Result<()> {
        let units = self.units(span)?.ok_or_else(|| Error::runtime(format!("{span:?} is in no block")))?;
        match units.iter().find(|unit| **unit != content) {
            Some(unit) => Err(Error::runtime(format!("{span:?}: expected {content:?}, but found {unit:?}"))),
            None => Ok(()),
        }
    }

    /// Whether the span lies in a block.
    pub fn holds(&mut self, span: Span) -> bool {
        matches!(self.units(span), Ok(Some(_)))
    }
}
