//! The table of the memory cache: which units of the block belong to which entry, the hashes of the entries' names, and
//! which entry is evicted for a new one.
//!
//! An entry is a chain of units, which may lie anywhere. So nothing is ever moved, and any free units can hold a new
//! entry. The data about an entry are in the row of its first unit, so the table never grows.
//!
//! When no unit is free, an entry is evicted for a new one in two cases only. An entry that is *stale* (unused for
//! longer than any entry lately waited for its next use) is always evicted. Otherwise one new entry in [`ADMITTED`] is
//! accepted, and a random entry is evicted for it. To evict the entry that was used longest ago would be the worst
//! rule: an epoch uses everything once, so this entry is needed next.

use std::sync::atomic::AtomicU64;

use hashbrown::HashTable;
use smallvec::SmallVec;

use super::add;
use dali_zarr_base::random::{below, mix};

/// The number that stands for no unit.
const NONE: u32 = u32::MAX;

/// If no stale entry is found, one new entry in this many is accepted. It is a small share, because the evicted entry
/// is as useful as the new one.
const ADMITTED: u64 = 16;

/// How many random units are searched for a stale entry.
const LOOKS: usize = 8;

/// An entry is stale when it has been unused for more than this factor times the longest wait for a next use.
const STALE: f64 = 1.25;

/// The longest wait shrinks by this many look-ups at each look-up. So a wait of `n` look-ups is forgotten after `10 n`.
const FORGOTTEN: f64 = 0.1;

/// Ranges of adjacent units: the first unit, and the number of units.
pub(super) type Extents = SmallVec<[(u32, u32); 8]>;

/// The data about an entry, in the row of its first unit.
#[derive(Clone, Copy)]
struct Row {
    hash: u64,
    /// The number of the look-up that used it last.
    used: u64,
    /// Bytes of the entry, with numbers, name and version.
    bytes: u64,
    /// How many copies to or from the entry are under way.
    pins: u16,
    state: RowState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum RowState {
    /// No entry begins here.
    None,
    /// It is being filled.
    Filling,
    Ready,
    /// It was removed. Its units are free when the last pin is gone.
    Dropped,
}

/// The table of a memory cache.
pub(super) struct Table {
    /// By unit: the next unit of the same entry, or the next free unit; [`NONE`] after the last one.
    next: Vec<u32>,
    /// By unit: the first unit of its entry; [`NONE`] if the unit is free.
    owner: Vec<u32>,
    /// By unit: the entry that begins there.
    rows: Vec<Row>,
    /// By hash: the first units of entries.
    index: HashTable<u32>,
    /// The first of the free units that were used before; [`NONE`] if there is none.
    free: u32,
    /// The number of free units, including those that were never used.
    available: u32,
    units: u32,
    lookups: u64,
    /// The longest wait for a next use, in look-ups; 0: none is known.
    longest: f64,
    random: u64,
}

/// An entry that is not evicted before [`Table::unpin`].
pub(super) struct Pinned {
    /// The first unit.
    pub first: u32,
    pub extents: Extents,
    /// Bytes of the entry, with numbers, name and version.
    pub bytes: u64,
}

impl Table {
    /// The most bytes of the table for each unit. The index has a number and a control byte in each of its buckets. At
    /// most seven eighths of the buckets may be used, and their number is rounded up to a power of two.
    pub const EACH: usize = size_of::<Row>() + 2 * size_of::<u32>() + (size_of::<u32>() + 1) * 3;
    /// The most units that a table can have.
    pub const MAX_UNITS: u32 = NONE - 1;

    /// Creates a table of `units` units. `None` if the system refuses the memory.
    pub fn new(units: u32) -> Option<Self> {
        let mut table = Self {
            next: Vec::new(),
            owner: Vec::new(),
            rows: Vec::new(),
            index: HashTable::new(),
            free: NONE,
            available: units,
            units,
            lookups: 0,
            longest: 0.0,
            random: 0,
        };
        table.next.try_reserve_exact(units as usize).ok()?;
        table.owner.try_reserve_exact(units as usize).ok()?;
        table.rows.try_reserve_exact(units as usize).ok()?;
        // Room for a quarter more entries than there can be: see `insert`.
        table.index.try_reserve(units as usize + units as usize / 4 + 1, |_| 0).ok()?;
        Some(table)
    }

    /// Pins the entry of this hash, if there is one and it is complete. Counts as a look-up.
    pub fn pin(&mut self, hash: u64) -> Option<Pinned> {
        self.lookups += 1;
        self.longest = (self.longest - FORGOTTEN).max(0.0);
        let first = self.find(hash).filter(|&f| self.rows[f as usize].state == RowState::Ready)?;
        let now = self.lookups;
        let row = &mut self.rows[first as usize];
        row.pins = row.pins.checked_add(1)?;
        let waited = now - std::mem::replace(&mut row.used, now);
        let bytes = row.bytes;
        self.longest = self.longest.max(waited as f64);
        Some(Pinned { first, extents: self.extents(first), bytes })
    }

    /// Reserves an entry of `units` units, to be filled, and pins it. Evicts others if there is no room. Removes an
    /// entry of the same hash. `None` if that entry is being filled, or no room can be made.
    pub fn reserve(&mut self, hash: u64, units: u32, bytes: u64, evictions: &AtomicU64) -> Option<Pinned> {
        if let Some(first) = self.find(hash) {
            if self.rows[first as usize].state == RowState::Filling {
                return None;
            }
            self.drop_entry(first);
        }
        if !self.make_room(units, evictions) {
            return None;
        }
        let first = self.take(units, hash, bytes);
        Some(Pinned { first, extents: self.extents(first), bytes })
    }

    /// Marks a reserved entry as complete.
    pub fn filled(&mut self, first: u32) {
        let row = &mut self.rows[first as usize];
        if row.state == RowState::Filling {
            row.state = RowState::Ready;
        }
    }

    /// Releases a pin of an entry.
    pub fn unpin(&mut self, first: u32) {
        let row = &mut self.rows[first as usize];
        row.pins -= 1;
        match row.state {
            RowState::Dropped if row.pins == 0 => self.release(first),
            // The entry was given up before it was complete.
            RowState::Filling => self.drop_entry(first),
            _ => {}
        }
    }

    /// Removes the entry of this hash.
    pub fn forget(&mut self, hash: u64) {
        if let Some(first) = self.find(hash) {
            self.drop_entry(first);
        }
    }

    /// Returns the bytes of the table when it is full.
    #[cfg(test)]
    pub fn max_bytes(&self) -> usize {
        (self.next.capacity() + self.owner.capacity()) * 4
            + self.rows.capacity() * size_of::<Row>()
            + self.index.allocation_size()
    }

    /// Returns the units of complete entries, the free units, and all units. Only when no entry is being filled.
    #[cfg(test)]
    pub fn balance(&self, unit: usize) -> (u32, u32, u32) {
        let ready = self.rows.iter().filter(|r| r.state == RowState::Ready);
        (ready.map(|r| r.bytes.div_ceil(unit as u64) as u32).sum(), self.available, self.units)
    }

    /// Whether no entry is pinned, and none waits to be freed.
    #[cfg(test)]
    pub fn is_at_rest(&self) -> bool {
        self.rows.iter().all(|r| r.pins == 0 && matches!(r.state, RowState::None | RowState::Ready))
    }

    fn random(&mut self, n: u64) -> u64 {
        self.random += 1;
        below(mix(self.random.wrapping_mul(dali_zarr_base::random::GOLDEN)), n)
    }

    fn find(&self, hash: u64) -> Option<u32> {
        self.index.find(hash, |&first| self.rows[first as usize].hash == hash).copied()
    }

    /// Adds an entry to the index, which never grows. Removed entries take room in the index until it is built anew. A
    /// spare quarter of its capacity makes this rare.
    fn insert(&mut self, first: u32) {
        let hash = |&first: &u32| self.rows[first as usize].hash;
        if self.index.len() == self.index.capacity() {
            let live = |row: &Row| matches!(row.state, RowState::Filling | RowState::Ready);
            self.index.clear();
            for (other, row) in (0..).zip(&self.rows).filter(|&(other, row)| other != first && live(row)) {
                self.index.insert_unique(row.hash, other, hash);
            }
        }
        self.index.insert_unique(hash(&first), first, hash);
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

    /// Evicts entries until `units` units are free. False if that is not allowed, or takes too many tries.
    fn make_room(&mut self, units: u32, evictions: &AtomicU64) -> bool {
        let mut admitted = false;
        // Pinned entries can't be evicted. If only pinned entries are found, the new one is not kept.
        let mut tries = 64 + 4 * u64::from(units);
        while self.available < units {
            let mut any = None;
            let mut stale = None;
            for _ in 0..LOOKS {
                // Units that were never used are free. If there are few of them, nearly every unit that is looked at
                // belongs to an entry.
                let unit = self.random(u64::from(self.units)) as usize;
                let Some(&owner) = self.owner.get(unit).filter(|&&o| o != NONE) else { continue };
                let row = &self.rows[owner as usize];
                if row.state != RowState::Ready || row.pins > 0 {
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

    /// Takes `units` free units for a new entry, which has one pin, and returns the first one. Enough units must be
    /// free.
    fn take(&mut self, units: u32, hash: u64, bytes: u64) -> u32 {
        let (mut first, mut last) = (NONE, NONE);
        for _ in 0..units {
            let unit = if self.free == NONE {
                // Units that were never used come last, so that their pages are touched only when they are needed.
                let row = Row { hash: 0, used: 0, bytes: 0, pins: 0, state: RowState::None };
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
        self.rows[first as usize] = Row { hash, used: self.lookups, bytes, pins: 1, state: RowState::Filling };
        self.insert(first);
        first
    }

    /// Removes an entry. Its units are free at once, or when the last pin is gone.
    fn drop_entry(&mut self, first: u32) {
        if let Ok(entry) = self.index.find_entry(self.rows[first as usize].hash, |&other| other == first) {
            entry.remove();
        }
        self.rows[first as usize].state = RowState::Dropped;
        if self.rows[first as usize].pins == 0 {
            self.release(first);
        }
    }

    /// Frees the units of an entry.
    fn release(&mut self, first: u32) {
        self.rows[first as usize].state = RowState::None;
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
mod tests {
    use super::*;

    #[test]
    fn an_index_that_is_full_of_removed_entries_is_made_anew_and_does_not_grow() {
        let units = 716;
        let mut table = Table::new(units).unwrap();
        let put = |table: &mut Table, number: u64| {
            let pinned = table.reserve(mix(number), 1, 1, &AtomicU64::new(0)).unwrap();
            table.filled(pinned.first);
            table.unpin(pinned.first);
        };
        (0..u64::from(units)).for_each(|number| put(&mut table, number));
        let (bytes, mut anew, mut room) = (table.max_bytes(), 0, table.index.capacity());
        for number in u64::from(units)..400_000 {
            table.forget(mix(number - u64::from(units)));
            put(&mut table, number);
            anew += usize::from(table.index.capacity() > room);
            room = table.index.capacity();
        }
        assert!(anew > 2, "{anew}");
        assert_eq!(table.max_bytes(), bytes);
        assert!(bytes <= units as usize * Table::EACH + 64);
        for number in 400_000 - u64::from(units)..400_000 {
            let pinned = table.pin(mix(number)).unwrap();
            table.unpin(pinned.first);
        }
    }
}
