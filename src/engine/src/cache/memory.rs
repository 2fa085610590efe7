//! Encoded bytes in host memory: a table of fixed size over a block of fixed size, both reserved once.
//!
//! The block is divided into units, and an entry is a chain of them, wherever they lie: so nothing is ever moved, and room for
//! an entry is a number of units, whatever was dropped to make it. All that is remembered of an entry stands in its first
//! unit's row, so that the table can't grow beyond what the limit was divided for.
//!
//! When the block is full an entry makes room for a new one in two cases only. If it is *stale*, unused for longer than any
//! entry lately had to wait for its next use, always. Otherwise one time in [`ADMITTED`], and then any entry, at random. The
//! oldest would be the worst choice: epochs use everything once, so what was used longest ago is what comes next.
//!
//! One of the places where `unsafe` is allowed: entries are copied without the lock, while their pins keep them.

#![allow(unsafe_code)]

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;

use super::{Counters, Name, add};
use crate::error::{Error, Result};
use crate::memory::{HostBlock, Span};
use crate::random::{below, mix};

/// Bytes of a unit: half of it is lost for each entry, on average.
const UNIT: usize = 2048;

/// Of the entries for which nothing stale makes room, one in so many is kept: few, because what has to go is as useful.
const ADMITTED: u64 = 16;

/// Units that are looked at for a stale entry.
const LOOKS: usize = 8;

/// An entry is stale when it was unused for so many times as long as the longest that another waited for its next use.
const STALE: f64 = 1.25;

/// How much shorter that longest wait becomes with each look-up: it is forgotten after as many as ten of it.
const FORGOTTEN: f64 = 0.1;

/// What the largest numbers of allocations are rounded up to, and the structure itself.
const SPARE: usize = 64 << 10;

const NONE: u32 = u32::MAX;

/// What stands before an entry's name: the bytes of name and version (plus one; 0: it has none), and of the whole value.
const HEAD: usize = 16;

/// Ranges of units that lie beside each other.
type Extents = SmallVec<[(u32, u32); 8]>;

/// See the module.
pub(super) struct Memory {
    block: HostBlock,
    units: u32,
    table: Mutex<Table>,
    counters: Arc<Counters>,
}

/// What is known of an entry, in the row of its first unit.
#[derive(Clone, Copy)]
struct Row {
    hash: u64,
    /// The look-up that used it last.
    used: u64,
    /// Name, version and bytes.
    bytes: u64,
    /// The next entry whose hash has the same place.
    next: u32,
    /// Those that copy it, to or from the block.
    pins: u16,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// No entry begins here.
    None,
    /// Its bytes are on their way.
    Filling,
    Ready,
    /// Nobody finds it any more; its units are free when the last pin is gone.
    Dropped,
}

struct Table {
    /// By unit: the next one of the same entry, or the next free one.
    next: Vec<u32>,
    /// By unit: the first unit of its entry.
    owner: Vec<u32>,
    /// By unit.
    rows: Vec<Row>,
    /// By hash: the first entry, plus one.
    places: Vec<u32>,
    free: u32,
    /// Units that are free, those that were never used included.
    available: u32,
    units: u32,
    lookups: u64,
    /// The longest wait for a next use, in look-ups; 0: none is known.
    longest: f64,
    random: u64,
}

/// An entry that isn't given away while this lives.
struct Pin<'a> {
    memory: &'a Memory,
    first: u32,
    extents: Extents,
    bytes: usize,
}

/// What an entry is of.
pub(super) struct Held {
    /// Bytes of the entry.
    pub len: usize,
    /// Bytes of the value that it is a part of.
    pub size: u64,
    pub version: Option<Arc<str>>,
}

impl Memory {
    /// Reserves what `limit` bytes have room for; pages are used as they are needed.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn new(limit: u64, counters: &Arc<Counters>) -> Result<Self> {
        let refused = || Error::value(format!("cache_size: the system refuses {limit} bytes; lower it"));
        let each = (UNIT + size_of::<Row>() + 3 * size_of::<u32>()) as u64;
        let units = u32::try_from(limit.saturating_sub(SPARE as u64) / each).unwrap_or(NONE - 1).min(NONE - 1);
        let block = HostBlock::map(units as usize * UNIT).map_err(|_| refused())?;
        let mut table = Table {
            next: Vec::new(),
            owner: Vec::new(),
            rows: Vec::new(),
            places: vec![0; units as usize],
            free: NONE,
            available: units,
            units,
            lookups: 0,
            longest: 0.0,
            random: 0,
        };
        let reserved = table.next.try_reserve_exact(units as usize).is_ok()
            && table.owner.try_reserve_exact(units as usize).is_ok()
            && table.rows.try_reserve_exact(units as usize).is_ok();
        if !reserved {
            return Err(refused());
        }
        Ok(Self { block, units, table: Mutex::new(table), counters: Arc::clone(counters) })
    }

    /// Copies the entry of this name to the front of `to`, if there is one that fits and whose version is accepted.
    pub fn get(&self, name: &Name, accept: impl FnOnce(Option<&str>) -> bool, to: &mut [u8]) -> Option<Held> {
        let pin = self.pin(name.hash)?;
        let (held, version_at) = pin.head(name)?;
        let version = match held.version_len {
            None => None,
            Some(len) => {
                let mut bytes = vec![0; len];
                pin.copy_out(version_at, &mut bytes);
                Some(Arc::<str>::from(String::from_utf8(bytes).ok()?))
            }
        };
        if held.len > to.len() || !accept(version.as_deref()) {
            return None;
        }
        pin.copy_out(version_at + held.version_len.unwrap_or(0), &mut to[..held.len]);
        Some(Held { len: held.len, size: held.size, version })
    }

    /// Keeps an entry, if there is room or chance makes some. One of the same name goes.
    pub fn put(&self, name: &Name, version: Option<&str>, size: u64, bytes: &[u8]) {
        let mut head = Vec::with_capacity(HEAD + name.bytes.len() + version.map_or(0, str::len));
        let (Ok(name_len), Ok(version_len)) =
            (u32::try_from(name.bytes.len()), u32::try_from(version.map_or(0, |v| v.len() + 1)))
        else {
            return;
        };
        head.extend(name_len.to_le_bytes());
        head.extend(version_len.to_le_bytes());
        head.extend(size.to_le_bytes());
        head.extend(&name.bytes);
        head.extend(version.unwrap_or_default().as_bytes());
        let Some(pin) = self.reserve(name.hash, head.len().saturating_add(bytes.len())) else { return };
        pin.copy_in(0, &head);
        pin.copy_in(head.len(), bytes);
        let mut table = self.table();
        let row = &mut table.rows[pin.first as usize];
        if row.state == State::Filling {
            row.state = State::Ready;
        }
    }

    /// Drops the entry of this name.
    pub fn forget(&self, name: &Name) {
        let mut table = self.table();
        if let Some(first) = table.find(name.hash) {
            table.drop_entry(first);
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pin(&self, hash: u64) -> Option<Pin<'_>> {
        let mut table = self.table();
        table.look_up();
        let first = table.find(hash).filter(|&f| table.rows[f as usize].state == State::Ready)?;
        let now = table.lookups;
        let row = &mut table.rows[first as usize];
        row.pins = row.pins.checked_add(1)?;
        let waited = now - std::mem::replace(&mut row.used, now);
        let bytes = row.bytes as usize;
        table.longest = table.longest.max(waited as f64);
        let extents = table.extents(first);
        Some(Pin { memory: self, first, extents, bytes })
    }

    /// Units for an entry of so many bytes, which is being filled as long as the pin lives.
    fn reserve(&self, hash: u64, bytes: usize) -> Option<Pin<'_>> {
        let units = u32::try_from(bytes.div_ceil(UNIT)).ok().filter(|&n| n <= self.units)?;
        let mut table = self.table();
        if let Some(first) = table.find(hash) {
            if table.rows[first as usize].state == State::Filling {
                return None;
            }
            table.drop_entry(first);
        }
        if !table.make_room(units, &self.counters.evictions) {
            return None;
        }
        let first = table.take(units, hash, bytes as u64);
        let extents = table.extents(first);
        Some(Pin { memory: self, first, extents, bytes })
    }

    /// Bytes that it may come to hold in all, bookkeeping included.
    #[cfg(test)]
    fn most(&self) -> usize {
        let table = self.table();
        self.block.len()
            + (table.next.capacity() + table.owner.capacity() + table.places.capacity()) * 4
            + table.rows.capacity() * size_of::<Row>()
            + size_of::<Self>()
    }
}

/// The numbers at the front of an entry.
struct Lengths {
    version_len: Option<usize>,
    size: u64,
    len: usize,
}

impl Pin<'_> {
    /// What the entry holds, if it is of this name, and where its version begins.
    fn head(&self, name: &Name) -> Option<(Lengths, usize)> {
        let mut head = [0; HEAD];
        self.copy_out(0, &mut head);
        let number = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let size = u64::from(number(8)) | u64::from(number(12)) << 32;
        if number(0) as usize != name.bytes.len() {
            return None;
        }
        let mut found = vec![0; name.bytes.len()];
        self.copy_out(HEAD, &mut found);
        let version_len = (number(4) as usize).checked_sub(1);
        let at = HEAD + found.len();
        let len = self.bytes - at - version_len.unwrap_or(0);
        (found == name.bytes).then_some((Lengths { version_len, size, len }, at))
    }

    /// The spans of the entry's bytes from `at` on, `len` of them, in order. Panics if they reach beyond its end.
    fn spans(&self, at: usize, len: usize) -> impl Iterator<Item = Span> {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.bytes), "a part of an entry beyond its end");
        let (mut skip, mut left) = (at, len);
        self.extents.iter().filter_map(move |&(unit, count)| {
            let bytes = count as usize * UNIT;
            let from = skip.min(bytes);
            skip -= from;
            let len = (bytes - from).min(left);
            left -= len;
            (len > 0).then(|| Span { address: self.memory.block.address() + (unit as usize * UNIT + from) as u64, len })
        })
    }

    fn copy_out(&self, at: usize, mut to: &mut [u8]) {
        for span in self.spans(at, to.len()) {
            let (here, rest) = to.split_at_mut(span.len);
            // SAFETY: the units are within the block, which lives as long as `memory`; while an entry is pinned they belong to
            // it alone, and it is written only before it is ready, by the one who reserved it.
            here.copy_from_slice(unsafe { span.bytes() });
            to = rest;
        }
    }

    /// Only by the one who reserved the entry.
    fn copy_in(&self, at: usize, mut from: &[u8]) {
        for span in self.spans(at, from.len()) {
            let (here, rest) = from.split_at(span.len);
            // SAFETY: as above; an entry that is being filled is found by nobody.
            unsafe { span.bytes_mut() }.copy_from_slice(here);
            from = rest;
        }
    }
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        let mut table = self.memory.table();
        let row = &mut table.rows[self.first as usize];
        row.pins -= 1;
        match row.state {
            State::Dropped if row.pins == 0 => table.release(self.first),
            // Whoever filled it gave up.
            State::Filling => table.drop_entry(self.first),
            _ => {}
        }
    }
}

impl Table {
    fn look_up(&mut self) {
        self.lookups += 1;
        self.longest = (self.longest - FORGOTTEN).max(0.0);
    }

    fn random(&mut self, n: u64) -> u64 {
        self.random += 1;
        below(mix(self.random.wrapping_mul(crate::random::GOLDEN)), n)
    }

    fn place(&self, hash: u64) -> usize {
        below(hash, self.places.len() as u64) as usize
    }

    fn find(&self, hash: u64) -> Option<u32> {
        if self.places.is_empty() {
            return None;
        }
        let mut at = self.places[self.place(hash)].checked_sub(1)?;
        while at != NONE {
            let row = &self.rows[at as usize];
            if row.hash == hash {
                return Some(at);
            }
            at = row.next;
        }
        None
    }

    fn extents(&self, first: u32) -> Extents {
        let mut extents = Extents::new();
        let mut at = first;
        while at != NONE {
            match extents.last_mut() {
                Some((unit, count)) if *unit + *count == at => *count += 1,
                _ => extents.push((at, 1)),
            }
            at = self.next[at as usize];
        }
        extents
    }

    /// Drops entries until so many units are free. False if none may be dropped for that.
    fn make_room(&mut self, units: u32, evictions: &AtomicU64) -> bool {
        let mut admitted = false;
        // Entries that are being copied can't go; whoever finds only such ones does without.
        let mut tries = 64 + 4 * u64::from(units);
        while self.available < units {
            let mut any = None;
            let mut stale = None;
            for _ in 0..LOOKS {
                // Units that were never used are free, so that with few of those nearly all looks find an entry.
                let unit = self.random(u64::from(self.units)) as usize;
                let Some(&owner) = self.owner.get(unit).filter(|&&o| o != NONE) else { continue };
                let row = &self.rows[owner as usize];
                if row.state != State::Ready || row.pins > 0 {
                    continue;
                }
                any = Some(owner);
                if self.longest > 0.0 && (self.lookups - row.used) as f64 > STALE * self.longest {
                    stale = any;
                    break;
                }
            }
            if stale.is_none() && !admitted {
                if self.random(ADMITTED) != 0 {
                    return false;
                }
                admitted = true;
            }
            if let Some(victim) = stale.or(any) {
                add(evictions, 1);
                self.drop_entry(victim);
            }
            tries -= 1;
            if tries == 0 {
                return false;
            }
        }
        true
    }

    /// Gives units to an entry, which is pinned once. There must be enough.
    fn take(&mut self, units: u32, hash: u64, bytes: u64) -> u32 {
        let (mut first, mut last) = (NONE, NONE);
        for _ in 0..units {
            let unit = if self.free == NONE {
                // One that was never used: so pages are touched only when they are needed.
                let row = Row { hash: 0, used: 0, bytes: 0, next: NONE, pins: 0, state: State::None };
                self.next.push(NONE);
                self.owner.push(NONE);
                self.rows.push(row);
                (self.rows.len() - 1) as u32
            } else {
                let next = self.next[self.free as usize];
                std::mem::replace(&mut self.free, next)
            };
            if first == NONE {
                first = unit;
            } else {
                self.next[last as usize] = unit;
            }
            self.owner[unit as usize] = first;
            self.next[unit as usize] = NONE;
            last = unit;
        }
        self.available -= units;
        let place = self.place(hash);
        let next = self.places[place].checked_sub(1).unwrap_or(NONE);
        self.places[place] = first + 1;
        self.rows[first as usize] = Row { hash, used: self.lookups, bytes, next, pins: 1, state: State::Filling };
        first
    }

    /// Makes an entry impossible to find; its units are free at once, or with the last pin.
    fn drop_entry(&mut self, first: u32) {
        let place = self.place(self.rows[first as usize].hash);
        let next = self.rows[first as usize].next;
        if self.places[place] == first + 1 {
            self.places[place] = if next == NONE { 0 } else { next + 1 };
        } else {
            let mut at = self.places[place].wrapping_sub(1);
            while at != NONE {
                if self.rows[at as usize].next == first {
                    self.rows[at as usize].next = next;
                    break;
                }
                at = self.rows[at as usize].next;
            }
        }
        self.rows[first as usize].state = State::Dropped;
        if self.rows[first as usize].pins == 0 {
            self.release(first);
        }
    }

    fn release(&mut self, first: u32) {
        self.rows[first as usize].state = State::None;
        let (mut at, mut units) = (first, 1);
        loop {
            self.owner[at as usize] = NONE;
            match self.next[at as usize] {
                NONE => break,
                next => at = next,
            }
            units += 1;
        }
        self.next[at as usize] = self.free;
        self.free = first;
        self.available += units;
    }
}

#[cfg(test)]
#[path = "tests_memory.rs"]
mod tests;
