//! Makes the boxes of an array whose channels are normalised differently: one box for each channel, or one box for all
//! channels, with a table.

use super::advance;
use super::jobs::{Along, Boxes, Dim, From, Target};
use super::operations::{Operation, Operations};
use crate::geometry::Channels;

/// A channel has a box of its own if at least this many of its elements lie together within one chunk, both in the chunk
/// and in the output: a few rows of an image or a field. Otherwise all channels are in one box, whose operation has a
/// table.
const OWN_BOX: u64 = 1024;

/// What the boxes of the channels of one array in one chunk, or between two elements, have in common.
pub(super) struct Common {
    pub from: From,
    pub target: Target,
    pub operations: Operations,
    /// Index of the norm of the array's first channel.
    pub norm: usize,
    pub swap: bool,
}

/// Adds the boxes of channels that are normalised differently: one box for each channel, or one box for all channels
/// along the fastest of the dimensions of channels. `src` and `dst` are the places of the first element in the chunk
/// and in the output. `dims` begin with the dimensions of the array. `index` returns for a dimension the index of the
/// first element, and the distance to the next one. Channels are numbered by these indices.
pub(super) fn by_channel(
    out: &mut Boxes,
    common: &Common,
    channels: &Channels,
    (src, dst): (i64, i64),
    dims: &[Dim],
    index: impl Fn(usize) -> (i64, i64),
) {
    let mut one = dims.to_vec();
    channels.dims.iter().for_each(|&(d, _)| one[d].n = 1);
    let mut counted = channels.dims.clone();
    // Number of elements of one channel in this box that lie between its first element and the next channel along `d`: in
    // the output or in the chunk, whatever is fewer.
    let nearer = |d: usize, of: fn(&Dim) -> u64| {
        one.iter().filter(|dim| of(dim) < of(&dims[d])).map(|dim| dim.n).product::<u64>()
    };
    let together = |d: usize| nearer(d, |dim| dim.dst.unsigned_abs()).min(nearer(d, |dim| dim.src.unsigned_abs()));
    let table = channels.table.zip(channels.dims.last().copied());
    let table = table.filter(|&(_, (d, _))| dims[d].n > 1 && together(d) < OWN_BOX);
    if let Some((_, (d, _))) = table {
        one[d].n = dims[d].n;
        counted.pop();
    }
    let mut c = vec![0u64; counted.len()];
    loop {
        let number = |(d, weight): (usize, u64), i: u64| (index(d).0 + index(d).1 * i as i64) * weight as i64;
        let offset =
            |of: fn(&Dim) -> i64| counted.iter().zip(&c).map(|(&(d, _), &i)| of(&dims[d]) * i as i64).sum::<i64>();
        let (src, dst) = (src + offset(|d| d.src), dst + offset(|d| d.dst));
        let first: i64 = counted.iter().zip(&c).map(|(&dim, &i)| number(dim, i)).sum();
        let own = |channel: i64| {
            let norm = common.norm + channel as usize;
            common.operations.number(Operation::Norm { norm, swap: common.swap })
        };
        match table {
            None => out.push(common.from, common.target, own(first), src, dst, &one),
            Some((table, last @ (dim, weight))) => {
                let along = Along { dim, first: first + number(last, 0), step: index(dim).1 * weight as i64 };
                let op = common.operations.number(Operation::Table { table, swap: common.swap });
                if !out.push_channels(common.from, common.target, op, (src, dst), &one, along) {
                    let mut alone = one.clone();
                    alone[dim].n = 1;
                    for i in 0..dims[dim].n {
                        let (src, dst) = (src + dims[dim].src * i as i64, dst + dims[dim].dst * i as i64);
                        let op = own(along.first + along.step * i as i64);
                        out.push(common.from, common.target, op, src, dst, &alone);
                    }
                }
            }
        }
        if !advance(&mut c, counted.iter().map(|&(d, _)| dims[d].n)) {
            return;
        }
    }
}
