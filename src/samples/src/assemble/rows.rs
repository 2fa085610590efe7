//! Converts rows of elements of a chunk. Rows are taken in tiles, which stay in the L1 cache while the steps of [`Steps`] go
//! over them. Elements of one byte are looked up: an operation has at most 256 results.
//!
//! `unsafe` is allowed here: rows are addresses, which callers promise to lie in their buffers.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;

use dali_zarr_kernels::Op;

use super::is_copy;
use super::steps::{Steps, TILE};
use super::walk::dtype;

/// The fewest elements for which all results are computed first.
const LOOKED_UP: u64 = 1024;

/// Processes one row. Takes the source address and the distance of its elements in bytes, the same for the destination,
/// and the number of elements.
type Row = fn(*const u8, isize, *mut u8, isize, usize);

/// The results for all values of a byte, the first ones in as many bytes as an element has.
type Results = MaybeUninit<[u64; 256]>;

/// Converts rows by one operation.
pub(super) struct Rows<'a> {
    op: &'a Op,
    /// Bytes of an element in the source and in the destination.
    from: usize,
    to: usize,
    how: How<'a>,
    native: MaybeUninit<[u64; TILE]>,
    results: MaybeUninit<[u64; TILE]>,
}

#[expect(clippy::large_enum_variant, reason = "one is made for each job, and it isn't moved")]
enum How<'a> {
    /// Elements are only moved.
    Move(Row),
    /// All results, and the function that looks them up.
    LookUp(Box<Results>, fn(*const u8, *const u8, isize, *mut u8, isize, usize)),
    /// A function that moves elements in native byte order, the steps, and a function that moves results.
    Steps(Row, Steps<'a>, Row),
}

impl<'a> Rows<'a> {
    /// Prepares an operation without a table of channels, for about this many elements.
    pub fn new(op: &'a Op, elements: u64) -> Self {
        let (from, to) = (dtype(op.src_dtype).size(), dtype(op.dst_dtype).size());
        let moved = row_mover(from, op.swap != 0);
        let how = if is_copy(op) {
            How::Move(moved)
        } else if from == 1 && elements >= LOOKED_UP && op.has_fillna == 0 {
            let mut results = Box::new(Results::uninit());
            let bytes: [u8; TILE] = std::array::from_fn(|i| i as u8);
            Steps::new(op).run(bytes.as_ptr(), results.as_mut_ptr().cast(), TILE);
            let looked_up = match to {
                1 => look_up::<1>,
                2 => look_up::<2>,
                4 => look_up::<4>,
                _ => look_up::<8>,
            };
            How::LookUp(results, looked_up)
        } else {
            How::Steps(moved, Steps::new(op), row_mover(to, false))
        };
        Self { op, from, to, how, native: MaybeUninit::uninit(), results: MaybeUninit::uninit() }
    }

    /// Converts one row. Takes the addresses of its first elements, and the distances of its elements in bytes. Both rows lie
    /// in memory that is alive; nobody else uses the destination or writes the source. Returns how many NaNs were replaced.
    pub fn row(&mut self, src: *const u8, src_step: isize, dst: *mut u8, dst_step: isize, n: usize) -> u64 {
        let (moved, steps, stored) = match &mut self.how {
            How::Move(moved) => {
                moved(src, src_step, dst, dst_step, n);
                return 0;
            }
            How::LookUp(results, looked_up) => {
                looked_up(results.as_ptr().cast(), src, src_step, dst, dst_step, n);
                return 0;
            }
            How::Steps(moved, steps, stored) => (moved, steps, stored),
        };
        let (from, to) = (self.from, self.to);
        let (native, results) = (self.native.as_mut_ptr().cast::<u8>(), self.results.as_mut_ptr().cast::<u8>());
        let is_native = src_step == from as isize && (self.op.swap == 0 || from == 1);
        let is_direct = dst_step == to as isize;
        let (mut src, mut dst, mut left, mut replaced) = (src, dst, n, 0);
        while left > 0 {
            let count = left.min(TILE);
            let from_tile = if is_native {
                src
            } else {
                moved(src, src_step, native, from as isize, count);
                native
            };
            replaced += steps.run(from_tile, if is_direct { dst } else { results }, count);
            if !is_direct {
                stored(results, to as isize, dst, dst_step, count);
            }
            src = src.wrapping_offset(count as isize * src_step);
            dst = dst.wrapping_offset(count as isize * dst_step);
            left -= count;
        }
        replaced
    }
}

/// Looks up the results of a row of bytes.
fn look_up<const SIZE: usize>(
    results: *const u8,
    src: *const u8,
    src_step: isize,
    dst: *mut u8,
    dst_step: isize,
    n: usize,
) {
    let results = results.cast::<[u8; SIZE]>();
    // SAFETY: there are 256 results of `SIZE` bytes; callers of `Rows::row` promise that both rows lie in their buffers.
    let of = |i: isize| unsafe { results.add(usize::from(src.offset(i * src_step).read())).read() };
    if dst_step == SIZE as isize {
        for i in 0..n as isize {
            // SAFETY: as above.
            unsafe { dst.cast::<[u8; SIZE]>().offset(i).write(of(i)) };
        }
        return;
    }
    for i in 0..n as isize {
        // SAFETY: as above.
        unsafe { dst.offset(i * dst_step).cast::<[u8; SIZE]>().write(of(i)) };
    }
}

fn copy_row<const SIZE: usize>(src: *const u8, src_step: isize, dst: *mut u8, dst_step: isize, n: usize) {
    // SAFETY: callers of `Rows::row` promise that both rows lie in their buffers, which don't overlap.
    unsafe {
        if src_step == SIZE as isize && dst_step == SIZE as isize {
            std::ptr::copy_nonoverlapping(src, dst, n * SIZE);
            return;
        }
        for i in 0..n as isize {
            let v = src.offset(i * src_step).cast::<[u8; SIZE]>().read();
            dst.offset(i * dst_step).cast::<[u8; SIZE]>().write(v);
        }
    }
}

fn swap_row<T: Swap>(src: *const u8, src_step: isize, dst: *mut u8, dst_step: isize, n: usize) {
    for i in 0..n as isize {
        // SAFETY: as for `copy_row`.
        unsafe {
            let v = src.offset(i * src_step).cast::<T>().read_unaligned();
            dst.offset(i * dst_step).cast::<T>().write_unaligned(v.swapped());
        }
    }
}

trait Swap: Copy {
    fn swapped(self) -> Self;
}
impl Swap for u16 {
    fn swapped(self) -> Self {
        self.swap_bytes()
    }
}
impl Swap for u32 {
    fn swapped(self) -> Self {
        self.swap_bytes()
    }
}
impl Swap for u64 {
    fn swapped(self) -> Self {
        self.swap_bytes()
    }
}

/// Returns the function that moves elements of this size, with their bytes reversed if `swap`.
pub(super) fn row_mover(size: usize, swap: bool) -> Row {
    match (size, swap) {
        (1, _) => copy_row::<1>,
        (2, false) => copy_row::<2>,
        (4, false) => copy_row::<4>,
        (_, false) => copy_row::<8>,
        (2, true) => swap_row::<u16>,
        (4, true) => swap_row::<u32>,
        (_, true) => swap_row::<u64>,
    }
}
