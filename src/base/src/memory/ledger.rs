//! The host memory that all readers of a process share, and how much of it each has.
//!
//! Processes that run on one machine divide half of its memory (or of the limit of their control group) evenly. The other
//! half is for the page cache, Python and everything else. A reader whose user gives no limit opens an [`Account`]. What
//! it can't do without is reserved at once. More is drawn when it is needed, as long as something is left. A reader never
//! waits for memory of another one: what it has reserved is enough to go on.
//!
//! A reader that finds nothing left asks the others. Each is woken, and gives back what it can do without
//! ([`Account::excess`]). The limits that users give, and caches, count as taken, but are never refused. They
//! leave a quarter to other readers.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{PerProcess, shown};
use crate::error::{Error, Result};

/// The account book of a process.
#[derive(Debug, Default)]
pub struct Ledger {
    book: Mutex<Book>,
    /// Bytes that can be drawn, to be read without a lock.
    left: AtomicU64,
}

#[derive(Debug, Default)]
struct Book {
    /// Bytes that all readers share. 0 before the first reader is opened.
    share: u64,
    /// Bytes of limits that users gave.
    given: u64,
    accounts: Vec<Entry>,
    /// Counts the accounts that were opened.
    opened: u64,
    /// The number of the account that last found too little left while it had less than its part. Until it has drawn
    /// more, others don't draw beyond theirs.
    hungry: Option<u64>,
}

/// What a reader says of itself, and what it was asked.
#[derive(Debug, Default)]
struct Flags {
    /// Whether nobody has taken a batch for a while.
    unused: AtomicBool,
    /// Whether it was asked to give back memory, and has not done so yet.
    asked: AtomicBool,
}

/// What an account has.
struct Entry {
    number: u64,
    /// Bytes that were reserved when it was opened.
    reserved: u64,
    /// Bytes that were drawn, and not given back.
    drawn: u64,
    /// How many of `drawn` are for batches that are prepared.
    batches: u64,
    flags: Arc<Flags>,
    /// Asks the reader to give back what it can do without.
    ask: Box<dyn Fn() + Send>,
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { number, reserved, drawn, .. } = self;
        write!(f, "account {number}: {reserved} reserved, {drawn} drawn")
    }
}

impl Book {
    /// Returns the bytes of all accounts.
    fn of_accounts(&self) -> u64 {
        self.accounts.iter().fold(0, |sum: u64, of| sum.saturating_add(of.reserved).saturating_add(of.drawn))
    }

    /// Returns the bytes that all accounts share. Limits that users give leave them a quarter at least.
    fn for_accounts(&self) -> u64 {
        self.share - self.given.min(self.share / 4 * 3)
    }

    fn left(&self) -> u64 {
        self.for_accounts().saturating_sub(self.of_accounts())
    }

    fn entry(&mut self, number: u64) -> Option<&mut Entry> {
        self.accounts.iter_mut().find(|of| of.number == number)
    }

    /// Returns the bytes that accounts have beyond what they share: reserved or overdrawn while nothing was left.
    fn over(&self) -> u64 {
        self.of_accounts().saturating_sub(self.for_accounts())
    }

    /// Returns the bytes that each account has if all have the same.
    fn part(&self) -> u64 {
        self.for_accounts() / self.accounts.len().max(1) as u64
    }

    /// Draws bytes. Returns whether they were left.
    fn draw(&mut self, number: u64, bytes: u64) -> bool {
        let (enough, part, hungry) = (self.left() >= bytes, self.part(), self.hungry);
        let Some(of) = self.entry(number) else { return false };
        let within = of.reserved + of.drawn + bytes <= part;
        if enough && (within || hungry.is_none_or(|other| other == number)) {
            of.drawn += bytes;
            self.hungry = hungry.filter(|other| *other != number);
            return true;
        }
        if within {
            self.hungry = Some(number);
        }
        false
    }

    /// Asks the readers that nobody uses, and those that have more than their part, except this one. While all have more than
    /// they share, asks every reader: some can't give back what is beyond their part, since it holds prepared batches.
    fn ask_others(&self, number: Option<u64>) {
        let (part, is_over) = (self.part(), self.over() > 0);
        for of in self.accounts.iter().filter(|of| Some(of.number) != number && of.drawn > 0) {
            let may = is_over || of.reserved + of.drawn > part || of.flags.unused.load(Ordering::Relaxed);
            if may && !of.flags.asked.swap(true, Ordering::Relaxed) {
                (of.ask)();
            }
        }
    }

    /// Asks other readers than this one if accounts have more than they share.
    fn ask_if_over(&self, number: Option<u64>) {
        if self.over() > 0 {
            self.ask_others(number);
        }
    }
}

impl Ledger {
    /// Returns the account book of this process. That of a forked child is empty.
    pub fn of_process() -> Arc<Self> {
        static LEDGER: PerProcess<Arc<Ledger>> = PerProcess::new();
        Arc::clone(LEDGER.get())
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update<T>(&self, change: impl FnOnce(&mut Book) -> T) -> T {
        let mut book = self.book();
        let result = change(&mut book);
        self.left.store(book.left(), Ordering::Relaxed);
        result
    }

    /// Sets the bytes that all readers share: the machine's memory may change while the process runs.
    pub fn set_share(&self, bytes: u64) {
        self.update(|book| book.share = bytes);
    }

    /// Returns the bytes that readers have, reserved, drawn or given by users.
    pub fn taken(&self) -> u64 {
        let book = self.book();
        book.given.saturating_add(book.of_accounts())
    }

    /// Returns the bytes that can be reserved or drawn now.
    pub fn left(&self) -> u64 {
        self.left.load(Ordering::Relaxed)
    }

    /// If fewer than `wanted` bytes are left, asks the readers for what they can do without, and waits a moment. They may be
    /// busy, so the caller must do with less.
    pub fn ask_for(&self, wanted: u64) {
        const TRIES: u32 = 20;
        if self.left() >= wanted || self.book().accounts.iter().all(|of| of.drawn == 0) {
            return;
        }
        self.book().ask_others(None);
        for _ in 0..TRIES {
            if self.left() >= wanted {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    /// Opens an account with `reserved` bytes.
    pub fn open(self: &Arc<Self>, reserved: u64, ask: impl Fn() + Send + 'static) -> Arc<Account> {
        let flags: Arc<Flags> = Arc::default();
        let number = self.update(|book| {
            book.opened += 1;
            let flags = Arc::clone(&flags);
            book.accounts.push(Entry {
                number: book.opened,
                reserved,
                drawn: 0,
                batches: 0,
                flags,
                ask: Box::new(ask),
            });
            book.opened
        });
        Arc::new(Account { ledger: Arc::clone(self), number, flags })
    }

    /// Records the limit that a user gave, until the [`Given`] is dropped.
    pub fn give(self: &Arc<Self>, bytes: u64) -> Given {
        self.update(|book| {
            book.given = book.given.saturating_add(bytes);
            book.ask_if_over(None);
        });
        Given { ledger: Arc::clone(self), bytes }
    }

    /// Checks that a reader which needs `least` bytes can be opened beside the others, on a machine with `total` bytes.
    ///
    /// # Errors
    /// If what readers can't do without is more than the machine has.
    pub fn check(&self, least: u64, total: u64, says: &str) -> Result<()> {
        let others: u64 = self.book().accounts.iter().map(|of| of.reserved).sum();
        if others.saturating_add(least) <= total {
            return Ok(());
        }
        Err(Error::memory(format!(
            "host memory: expected at least {least} bytes ({}) beside what other readers of this process can't do without, but \
             found {} of {total} bytes ({says}) taken by them; close readers that aren't needed, or use a smaller batch_size",
            shown(least),
            shown(others)
        )))
    }
}

/// A limit that a user gave.
#[derive(Debug)]
pub struct Given {
    ledger: Arc<Ledger>,
    bytes: u64,
}

impl Drop for Given {
    fn drop(&mut self) {
        self.ledger.update(|book| book.given = book.given.saturating_sub(self.bytes));
    }
}

/// The account of one reader.
#[derive(Debug)]
pub struct Account {
    ledger: Arc<Ledger>,
    number: u64,
    flags: Arc<Flags>,
}

impl Account {
    /// Reserves bytes that the reader can't do without. They may be more than is left: then the other readers get less.
    pub fn reserve(&self, bytes: u64) {
        self.ledger.update(|book| {
            if let Some(of) = book.entry(self.number) {
                of.reserved += bytes;
            }
            book.ask_if_over(Some(self.number));
        });
    }

    /// Draws this many bytes. Returns false, and asks the other readers, if fewer are left, if another reader needs them
    /// more, or if the account is closed.
    pub fn draw(&self, bytes: u64) -> bool {
        self.ledger.update(|book| {
            let drawn = book.draw(self.number, bytes);
            if !drawn {
                book.ask_others(Some(self.number));
            }
            drawn
        })
    }

    /// Draws this many bytes for a batch, as [`Self::draw`]. Batches that are prepared stay until they are taken. So those of
    /// all readers draw at most half of the share.
    pub fn draw_batch(&self, bytes: u64) -> bool {
        self.ledger.update(|book| {
            let all: u64 = book.accounts.iter().map(|of| of.batches).sum();
            let drawn = all.saturating_add(bytes) <= book.for_accounts() / 2 && book.draw(self.number, bytes);
            if let Some(of) = book.entry(self.number).filter(|_| drawn) {
                of.batches += bytes;
            }
            drawn
        })
    }

    /// Gives back what was drawn for a batch.
    pub fn give_back_batch(&self, bytes: u64) {
        self.ledger.update(|book| {
            if let Some(of) = book.entry(self.number) {
                of.batches = of.batches.saturating_sub(bytes);
                of.drawn = of.drawn.saturating_sub(bytes);
            }
        });
    }

    /// Draws bytes though fewer may be left: the reader could not go on without them.
    pub fn overdraw(&self, bytes: u64) {
        self.ledger.update(|book| {
            if let Some(of) = book.entry(self.number) {
                of.drawn += bytes;
            }
            book.ask_if_over(Some(self.number));
        });
    }

    /// Gives drawn bytes back.
    pub fn give_back(&self, bytes: u64) {
        self.ledger.update(|book| book.entry(self.number).map(|of| of.drawn = of.drawn.saturating_sub(bytes)));
    }

    /// Returns the bytes that are left now.
    pub fn left(&self) -> u64 {
        self.ledger.left()
    }

    /// Returns the bytes that were drawn.
    pub fn drawn(&self) -> u64 {
        self.ledger.book().entry(self.number).map_or(0, |of| of.drawn)
    }

    /// Records whether somebody takes batches from the reader.
    pub fn set_unused(&self, unused: bool) {
        self.flags.unused.store(unused, Ordering::Relaxed);
    }

    /// Returns how many drawn bytes the reader should give back, since it was asked: those beyond its part, or all if
    /// nobody uses it; and at least as many as all accounts have beyond what they share.
    pub fn excess(&self) -> u64 {
        self.flags.asked.store(false, Ordering::Relaxed);
        let mut book = self.ledger.book();
        let part = if self.flags.unused.load(Ordering::Relaxed) { 0 } else { book.part() };
        let over = book.over();
        book.entry(self.number).map_or(0, |of| {
            let beyond = of.drawn.saturating_sub(part.saturating_sub(of.reserved));
            beyond.max(over.min(of.drawn))
        })
    }

    /// Closes the account. Its memory was freed, or is a user's, who still has batches.
    pub fn close(&self) {
        self.ledger.update(|book| {
            book.accounts.retain(|of| of.number != self.number);
            book.hungry = book.hungry.filter(|hungry| *hungry != self.number);
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    fn ledger(share: u64) -> Arc<Ledger> {
        let ledger = Arc::new(Ledger::default());
        ledger.set_share(share);
        ledger
    }

    #[test]
    fn no_more_is_drawn_than_is_there() {
        let ledger = ledger(1000);
        let (one, other) = (ledger.open(100, || ()), ledger.open(100, || ()));
        assert!(one.draw(500) && !other.draw(301) && other.draw(300));
        assert_eq!((ledger.left(), ledger.taken(), one.drawn(), other.drawn()), (0, 1000, 500, 300));
        one.give_back(200);
        assert_eq!(ledger.left(), 200);
        // A limit that a user gives is never refused. Others get less.
        let given = ledger.give(5000);
        assert!(ledger.left() == 0 && !other.draw(1) && ledger.taken() == 5800);
        one.give_back(300);
        other.give_back(300);
        assert_eq!(ledger.left(), 50, "a quarter stays");
        assert!(one.draw(25) && other.draw(25) && !one.draw(1));
        drop(given);
        assert!(one.draw(275) && other.draw(275));
        one.close();
        assert_eq!(ledger.left(), 600);
        assert!(!one.draw(1) && one.drawn() == 0, "it is closed");
        other.overdraw(700);
        assert_eq!((ledger.left(), ledger.taken()), (0, 1100));
    }

    #[test]
    fn batches_take_half_at_most() {
        let ledger = ledger(1000);
        let (one, other) = (ledger.open(0, || ()), ledger.open(0, || ()));
        assert!(one.draw_batch(400) && !other.draw_batch(101) && other.draw_batch(100) && other.draw(400));
        one.give_back_batch(400);
        assert_eq!((one.drawn(), other.drawn(), ledger.left()), (0, 500, 500));
        assert!(one.draw_batch(400));
    }

    #[test]
    fn others_are_asked_when_nothing_is_left() {
        let ledger = ledger(1000);
        let asked: Arc<[AtomicUsize; 2]> = Arc::default();
        let open = |i: usize| {
            let asked = Arc::clone(&asked);
            ledger.open(100, move || {
                asked[i].fetch_add(1, Ordering::Relaxed);
            })
        };
        let (one, other) = (open(0), open(1));
        assert!(one.draw(800));
        assert!(!other.draw(1));
        let counts = || [0, 1].map(|i| asked[i].load(Ordering::Relaxed));
        assert_eq!(counts(), [1, 0]);
        assert!(!other.draw(1));
        assert_eq!(counts(), [1, 0], "it was asked already");
        assert_eq!(one.excess(), 400, "half of all is its part, of which it has reserved 100");
        one.give_back(400);
        assert!(!one.draw(1), "the other one needs it");
        assert!(other.draw(300) && one.draw(50));
        ledger.ask_for(50);
        assert_eq!(counts(), [1, 0], "enough is left");
        one.set_unused(true);
        assert!(!other.draw(500));
        assert_eq!((counts(), one.excess()), ([2, 0], 450), "nobody uses it");
    }

    #[test]
    fn a_reader_gives_back_more_than_it_has_beyond_its_part_if_another_one_can_not() {
        let ledger = ledger(1000);
        let asked: Arc<AtomicUsize> = Arc::default();
        let count = Arc::clone(&asked);
        let busy = ledger.open(100, || ());
        let other = ledger.open(100, move || {
            count.fetch_add(1, Ordering::Relaxed);
        });
        assert!(busy.draw_batch(450) && other.draw(350));
        let new = ledger.open(0, || ());
        assert_eq!((asked.load(Ordering::Relaxed), other.excess()), (0, 117), "a third is its part");
        new.reserve(130);
        assert_eq!((asked.load(Ordering::Relaxed), other.excess()), (1, 130));
        other.give_back(130);
        assert_eq!((ledger.left(), ledger.taken()), (0, 1000));
        busy.overdraw(20);
        assert_eq!((asked.load(Ordering::Relaxed), other.excess()), (2, 20));
    }

    #[test]
    fn readers_that_can_not_run_side_by_side_are_refused() {
        let ledger = ledger(1000);
        let _one = ledger.open(1500, || ());
        ledger.check(500, 2000, "test").unwrap();
        let refused = ledger.check(501, 2000, "/cgroup").unwrap_err();
        assert!(
            refused.message().contains("501 bytes") && refused.message().contains("2000 bytes (/cgroup)"),
            "{refused}"
        );
    }
}
