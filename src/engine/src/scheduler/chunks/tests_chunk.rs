//! Tests of [`Chunk`].

use dali_zarr_kernels::Layout;

use super::{Chunk, ChunkState, DecodedMemory};
use crate::chunk_index::{ChunkInfo, Location};
use crate::route::Route;
use dali_zarr_base::memory::{HostArena, HostBlock, Lease};
use dali_zarr_samples::plan::ChunkId;

fn chunk() -> Chunk {
    let info = ChunkInfo { location: Location::Key, decoded: 1, route: Route::Raw, remote: false };
    Chunk::new(ChunkId { array: 0, part: 0, index: 0 }, info, 1)
}

fn lease() -> Lease {
    HostArena::new(HostBlock::invented(1 << 20, 4096)).take(1).unwrap()
}

#[test]
fn a_chunk_goes_from_wanted_to_ready_and_again() {
    let mut chunk = chunk();
    chunk.need(3, 0);
    chunk.await_index();
    chunk.want();
    chunk.reserve(DecodedMemory { host: Some(lease()), ..DecodedMemory::default() });
    chunk.fetch();
    assert!(!chunk.mark_read());
    chunk.decode();
    let lent = chunk.lend_decoded().unwrap();
    assert!(chunk.is_pinned() && !chunk.has_decoded() && !chunk.state().is_resolved());
    chunk.return_decoded(lent);
    chunk.unpin();
    assert!(chunk.decoded_as(Layout::NONE).is_none() && chunk.state().is_resolved());
    assert!(chunk.release().host.is_some() && !chunk.has_decoded());
    chunk.want();
    assert!(chunk.mark_read(), "it is read again");
}

#[test]
fn users_are_served_in_order() {
    let mut chunk = chunk();
    [(1, 5), (2, 0), (4, 9)].into_iter().for_each(|(batch, chunk_use)| chunk.need(batch, chunk_use));
    assert_eq!([1, 2, 3, 5].map(|end| chunk.uses_before(end)), [0, 1, 2, 3]);
    chunk.remove_uses(2);
    assert_eq!((chunk.first_batch(), chunk.users()), (Some(4), &[(4, 9)][..]));
}

#[cfg(debug_assertions)]
#[test]
fn impossible_changes_are_found() {
    type Change = fn(&mut Chunk);
    let changes: [(&str, Change); 8] = [
        ("can't follow", |c| c.decode()),
        ("can't follow", |c| c.want()),
        ("decoded to nowhere", |c| drop(c.decoded_as(Layout::NONE))),
        ("nothing to read yet", Chunk::pin),
        ("not pinned", Chunk::unpin),
        ("has memory", |c| {
            c.reserve(DecodedMemory { host: Some(lease()), ..DecodedMemory::default() });
            c.resolve(ChunkState::Missing);
        }),
        ("removed, but in use", |c| {
            c.need(0, 0);
            c.leave();
        }),
        ("in order", |c| {
            c.need(1, 0);
            c.need(0, 0);
        }),
    ];
    for (expected, change) in changes {
        let panic = std::panic::catch_unwind(|| change(&mut chunk())).unwrap_err();
        let text = dali_zarr_base::error::panic_text(&*panic);
        assert!(text.contains(expected), "expected {expected:?}, but found {text:?}");
    }
}
