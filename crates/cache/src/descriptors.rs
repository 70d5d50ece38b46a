//! Page descriptors: which page is where, and who has it locked (paper 000, 3.2.6, "Page descriptors").
//!
//! A fixed number of them, found by the [tree](crate::tree). **Locks are words, and nobody waits here**: an attempt succeeds, or the caller is told
//! that the page is busy and comes again. Readers share a page, a writer has it alone; whoever locks several does so in
//! ascending order of file and page. What page a descriptor is of changes only under the lock of one, so whoever has either lock and finds the page that it
//! looked for knows that it stays.
//!
//! **Eviction is a clock with a second chance**, the usual approximation of the paper's list of least recently used pages: the list needs a lock and three
//! words that all threads write at each hit, the clock a flag that is set already as a rule. An attempt looks at [`SCAN`] descriptors at most.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::table::FileId;
use crate::tree::Tree;

/// So many descriptors are looked at for a place, at most.
pub(crate) const SCAN: usize = 512;

/// Somebody has it alone.
const ALONE: u32 = 1 << 31;
/// It is of no page.
const NOTHING: u32 = u32::MAX;

/// A page of a file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct PageOf {
    /// Whose page it is.
    pub file: FileId,
    /// Its number: where it begins, divided by the bytes of a page.
    pub page: u64,
}

/// Why a page was not locked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refused {
    /// Somebody else has it.
    Busy,
    /// No descriptor could be found that may be taken from its page.
    Full,
}

#[derive(Debug)]
struct Descriptor {
    file: AtomicU32,
    page: AtomicU64,
    /// How many readers have it, or [`ALONE`].
    lock: AtomicU32,
    /// It was used since the clock's hand came past.
    used: AtomicBool,
}

/// A descriptor that is locked by whoever holds this; it is to be handed back.
#[derive(Debug)]
#[must_use = "a page that is never unlocked is lost"]
pub(crate) struct Held {
    pub(crate) at: usize,
    pub(crate) of: PageOf,
    /// The descriptor was taken for this page just now: whatever it had was another's.
    pub(crate) fresh: bool,
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Descriptors {
    all: Box<[Descriptor]>,
    tree: Tree,
    hand: AtomicUsize,
}

impl Descriptors {
    pub(crate) fn new(files: u32, count: usize) -> Self {
        let one = |_| Descriptor {
            file: AtomicU32::new(NOTHING),
            page: AtomicU64::new(0),
            lock: AtomicU32::new(0),
            used: AtomicBool::new(false),
        };
        Self { all: (0..count).map(one).collect(), tree: Tree::new(files), hand: AtomicUsize::new(0) }
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// The page that a descriptor is of; certain to whoever has it locked.
    pub(crate) fn of(&self, at: usize) -> Option<PageOf> {
        let file = self.all[at].file.load(Ordering::Acquire);
        let page = self.all[at].page.load(Ordering::Acquire);
        (file != NOTHING).then_some(PageOf { file: FileId(file), page })
    }

    /// The pages of a file from one on that have descriptors, so many at most.
    pub(crate) fn from(&self, of: PageOf, most: usize) -> Vec<(u64, usize)> {
        let found = self.tree.from(of.file.0, of.page, most);
        found.into_iter().map(|(page, at)| (page, at as usize)).collect()
    }

    /// Joins those who read a page. `None`: it has no descriptor.
    pub(crate) fn share(&self, of: PageOf) -> Result<Option<usize>, Refused> {
        let mut hint = self.tree.get(of.file.0, of.page);
        loop {
            if let Some(at) = hint.map(|at| at as usize).filter(|at| *at < self.all.len()) {
                if self.share_at(at) {
                    if self.of(at) == Some(of) {
                        self.use_it(at);
                        return Ok(Some(at));
                    }
                    self.unshare(at);
                } else if self.of(at) == Some(of) {
                    return Err(Refused::Busy);
                }
            }
            // A hint that was wrong: what the tree says now is so.
            let found = self.tree.find(of.file.0, of.page);
            if found.is_none() {
                return Ok(None);
            }
            if found == hint {
                return Err(Refused::Busy);
            }
            hint = found;
        }
    }

    /// Joins those who read whatever page a descriptor is of.
    pub(crate) fn share_at(&self, at: usize) -> bool {
        let lock = &self.all[at].lock;
        lock.fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| (word < ALONE - 1).then(|| word + 1))
            .is_ok()
    }

    pub(crate) fn unshare(&self, at: usize) {
        self.all[at].lock.fetch_sub(1, Ordering::AcqRel);
    }

    fn alone_at(&self, at: usize) -> bool {
        self.all[at].lock.compare_exchange(0, ALONE, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Locks whatever page a descriptor is of.
    pub(crate) fn lock_at(&self, at: usize) -> Option<Held> {
        if !self.alone_at(at) {
            return None;
        }
        match self.of(at) {
            Some(of) => Some(Held { at, of, fresh: false }),
            None => {
                self.open(at);
                None
            }
        }
    }

    /// Locks a page, if it has a descriptor.
    pub(crate) fn lock_known(&self, of: PageOf) -> Result<Option<Held>, Refused> {
        let hint = self.tree.get(of.file.0, of.page).map(|at| at as usize);
        if let Some(held) = hint.filter(|at| *at < self.len()).and_then(|at| self.lock_at(at)) {
            if held.of == of {
                return Ok(Some(held));
            }
            self.unlock(held);
        }
        let Some(at) = self.tree.find(of.file.0, of.page) else { return Ok(None) };
        let held = self.lock_at(at as usize).ok_or(Refused::Busy)?;
        if held.of == of {
            return Ok(Some(held));
        }
        // It was evicted meanwhile, and somebody may be about to bring it back.
        self.unlock(held);
        Err(Refused::Busy)
    }

    /// Locks a page; one without a descriptor gets that of another page which `may` go.
    pub(crate) fn lock(&self, of: PageOf, mut may: impl FnMut(usize) -> bool) -> Result<Held, Refused> {
        if let Some(held) = self.lock_known(of)? {
            self.use_it(held.at);
            return Ok(held);
        }
        let at = self.victim(&mut may).ok_or(Refused::Full)?;
        self.all[at].page.store(of.page, Ordering::Release);
        self.all[at].file.store(of.file.0, Ordering::Release);
        if self.tree.insert(of.file.0, of.page, at as u32).is_err() {
            self.all[at].file.store(NOTHING, Ordering::Release);
            self.open(at);
            return Err(Refused::Busy);
        }
        self.use_it(at);
        Ok(Held { at, of, fresh: true })
    }

    /// A descriptor that is of no page, and locked.
    fn victim(&self, may: &mut impl FnMut(usize) -> bool) -> Option<usize> {
        for _ in 0..SCAN.min(self.all.len() * 2) {
            let at = self.hand.fetch_add(1, Ordering::Relaxed) % self.all.len();
            if self.of(at).is_some() && self.all[at].used.swap(false, Ordering::Relaxed) || !self.alone_at(at)
            {
                continue;
            }
            match self.of(at) {
                None => return Some(at),
                Some(_) if !may(at) => self.open(at),
                Some(of) => {
                    self.forget(at, of);
                    return Some(at);
                }
            }
        }
        None
    }

    /// Locks a page that was not used for a while, and that `may` lose what it has.
    pub(crate) fn idle(&self, mut may: impl FnMut(usize) -> bool) -> Option<Held> {
        for _ in 0..SCAN.min(self.all.len() * 2) {
            let at = self.hand.fetch_add(1, Ordering::Relaxed) % self.all.len();
            if self.of(at).is_none() || !may(at) || self.all[at].used.swap(false, Ordering::Relaxed) {
                continue;
            }
            if let Some(held) = self.lock_at(at) {
                if may(at) {
                    return Some(held);
                }
                self.unlock(held);
            }
        }
        None
    }

    /// The descriptor of a page, for a look at it: what it is of may change at once.
    pub(crate) fn hint(&self, of: PageOf) -> Option<usize> {
        let at = self.tree.get(of.file.0, of.page)? as usize;
        (at < self.len()).then_some(at)
    }

    /// The descriptor of a page, which is so for who knows that it stays.
    pub(crate) fn known(&self, of: PageOf) -> Option<usize> {
        self.tree.find(of.file.0, of.page).map(|at| at as usize)
    }

    fn forget(&self, at: usize, of: PageOf) {
        self.tree.remove(of.file.0, of.page, at as u32);
        self.all[at].file.store(NOTHING, Ordering::Release);
    }

    /// Says that a page was used.
    pub(crate) fn use_it(&self, at: usize) {
        let used = &self.all[at].used;
        if !used.load(Ordering::Relaxed) {
            used.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn unlock(&self, held: Held) {
        self.open(held.at);
    }

    /// Unlocks a descriptor and takes it from its page.
    pub(crate) fn release(&self, held: Held) {
        self.forget(held.at, held.of);
        self.open(held.at);
    }

    fn open(&self, at: usize) {
        self.all[at].lock.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(page: u64) -> PageOf {
        PageOf { file: FileId(0), page }
    }

    #[test]
    fn readers_share_a_page_and_a_writer_has_it_alone() {
        let all = Descriptors::new(1, 2);
        assert_eq!(all.share(page(5)), Ok(None));
        let held = all.lock(page(5), |_| true).unwrap();
        assert!(held.fresh);
        assert_eq!(all.share(page(5)), Err(Refused::Busy));
        assert_eq!(all.lock(page(5), |_| true).err(), Some(Refused::Busy));
        all.unlock(held);
        let (one, two) = (all.share(page(5)).unwrap().unwrap(), all.share(page(5)).unwrap().unwrap());
        assert_eq!(one, two);
        all.unshare(one);
        assert_eq!(all.lock_known(page(5)).err(), Some(Refused::Busy), "one reader is left");
        all.unshare(two);
        let held = all.lock(page(5), |_| true).unwrap();
        assert!(!held.fresh);
        all.release(held);
        assert_eq!((all.share(page(5)), all.lock_known(page(5)).unwrap().is_none()), (Ok(None), true));
    }

    #[test]
    fn the_page_that_was_not_used_goes_and_one_that_may_not_stays() {
        let all = Descriptors::new(1, 3);
        for n in 0..3 {
            let held = all.lock(page(n), |_| true).unwrap();
            all.unlock(held);
        }
        // All were used: the hand takes that from each, and comes back to the first that may go.
        let held = all.lock(page(7), |at| at != 0).unwrap();
        assert_eq!(held.at, 1);
        all.unlock(held);
        assert_eq!(all.share(page(1)), Ok(None));
        let kept = all.share(page(0)).unwrap().unwrap();
        all.unshare(kept);
        let held = all.lock(page(8), |_| true).unwrap();
        assert_eq!(held.at, 2, "the others were used since");
        assert_eq!(all.lock(page(9), |_| false).err(), Some(Refused::Full));
        all.unlock(held);
    }
}
