//! The states of a chunk, and which may follow which.

use dali_zarr_base::error::Error;

/// The state of a chunk.
#[derive(Debug)]
pub(in crate::scheduler) enum ChunkState {
    /// In the queue of wanted chunks.
    Wanted,
    /// Its shard's index is being read.
    AwaitsIndex,
    /// Being read.
    Fetching,
    /// Read, or decoded by the CPU for a GPU. It waits for a lane.
    Fetched,
    /// In a task of the decode threads, or in a wave.
    Decoding,
    /// Decoded, in its slot or in an output.
    Ready,
    /// The store does not have it.
    Missing,
    /// Its bytes can't be decoded, and the reader goes on without it.
    Bad,
    /// It could not be read or decoded.
    Failed(Error),
    /// Removed from the table. Its handle is free.
    Gone,
}

impl ChunkState {
    /// Whether the outcome is known (decoded, missing, bad or failed), so that its users can be served.
    pub fn is_resolved(&self) -> bool {
        matches!(self, Self::Ready | Self::Missing | Self::Bad | Self::Failed(_))
    }

    /// Whether a chunk in this state may enter the state `next`.
    pub fn leads_to(&self, next: &Self) -> bool {
        use ChunkState::{AwaitsIndex, Bad, Decoding, Failed, Fetched, Fetching, Gone, Missing, Ready, Wanted};
        match self {
            Wanted => matches!(next, AwaitsIndex | Fetching | Missing | Bad | Failed(_) | Gone),
            AwaitsIndex => matches!(next, Wanted | Bad | Failed(_)),
            // A value that is oversized, or whose merged read failed, is read again.
            Fetching => matches!(next, Wanted | Fetched | Decoding | Ready | Missing | Bad | Failed(_)),
            Fetched => matches!(next, Decoding),
            // The CPU may decode for a lane. What can't be decoded may be read once more.
            Decoding => matches!(next, Wanted | Fetched | Ready | Bad | Failed(_)),
            Ready => matches!(next, Wanted | Gone),
            Missing | Bad | Failed(_) => matches!(next, Gone),
            Gone => false,
        }
    }
}
