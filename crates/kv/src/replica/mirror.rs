//! The primary's working medium, which remembers what is stored there until others have it.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use remanence_pmem::{Medium, Region};

use super::change::Changes;

/// What takes changes to the other members.
pub trait Ship {
    /// Returns when as many members as were promised have these changes durably.
    ///
    /// # Errors
    /// They may have them or not, and nothing more can be shipped: this is the primary no more. A sentence.
    fn ship(&mut self, changes: &Changes) -> Result<(), String>;
}

/// A medium whose [`psync`](Medium::psync) waits for other members. It may itself be volatile.
///
/// Clients may write to `M` one-sidedly; that is seen when somebody calls [`pwb`](Medium::pwb) for it.
pub struct Mirror<M, S> {
    medium: M,
    state: Arc<Mutex<State<S>>>,
}

struct State<S> {
    changes: Changes,
    ship: S,
    failed: Option<String>,
}

impl<M: Clone, S> Clone for Mirror<M, S> {
    fn clone(&self) -> Self {
        Self { medium: self.medium.clone(), state: Arc::clone(&self.state) }
    }
}

impl<M: fmt::Debug, S> fmt::Debug for Mirror<M, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mirror").field("medium", &self.medium).finish_non_exhaustive()
    }
}

impl<M, S> Mirror<M, S> {
    /// Of a medium that is now what the other members' images and logs make.
    pub fn new(medium: M, ship: S) -> Self {
        let state = State { changes: Changes::default(), ship, failed: None };
        Self { medium, state: Arc::new(Mutex::new(state)) }
    }

    /// What is beneath.
    pub const fn medium(&self) -> &M {
        &self.medium
    }

    /// Does something with what takes changes away.
    pub fn with_ship<T>(&self, act: impl FnOnce(&mut S) -> T) -> T {
        act(&mut self.lock().ship)
    }

    /// Why nothing is shipped any more.
    #[must_use]
    pub fn failed(&self) -> Option<String> {
        self.lock().failed.clone()
    }

    /// Changes are whole between any two statements that can panic.
    fn lock(&self) -> MutexGuard<'_, State<S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<M: Medium, S: Ship> Mirror<M, S> {
    fn note(&self, range: Range<u64>) {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        self.medium.read(range.start, &mut bytes);
        self.lock().changes.push(range.start, &bytes);
    }
}

impl<M: Medium, S: Ship> Medium for Mirror<M, S> {
    fn len(&self) -> u64 {
        self.medium.len()
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        self.medium.read(offset, into);
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        self.lock().changes.push(offset, bytes);
        self.medium.write(offset, bytes);
    }

    fn write_nt(&self, offset: u64, bytes: &[u8]) {
        self.write(offset, bytes);
    }

    fn write_from(&self, offset: u64, from: &Region, at: u64, len: u64) {
        self.medium.write_from(offset, from, at, len);
        self.note(offset..offset + len);
    }

    fn write_nt_from(&self, offset: u64, from: &Region, at: u64, len: u64) {
        self.write_from(offset, from, at, len);
    }

    fn load_u64(&self, offset: u64) -> u64 {
        self.medium.load_u64(offset)
    }

    fn store_u64(&self, offset: u64, value: u64) {
        self.medium.store_u64(offset, value);
        self.note(offset..offset + 8);
    }

    fn compare_and_swap(&self, offset: u64, compare: u64, swap: u64) -> u64 {
        let found = self.medium.compare_and_swap(offset, compare, swap);
        self.note(offset..offset + 8);
        found
    }

    fn fetch_add(&self, offset: u64, add: u64) -> u64 {
        let found = self.medium.fetch_add(offset, add);
        self.note(offset..offset + 8);
        found
    }

    fn pwb(&self, range: Range<u64>) {
        self.note(range);
    }

    /// Records are applied in order, so there is nothing to wait for.
    fn pfence(&self) -> io::Result<()> {
        match &self.lock().failed {
            Some(why) => Err(io::Error::other(why.clone())),
            None => Ok(()),
        }
    }

    fn psync(&self) -> io::Result<()> {
        let state = &mut *self.lock();
        if state.failed.is_none() && !state.changes.is_empty() {
            state.failed = state.ship.ship(&state.changes).err();
            state.changes.clear();
        }
        match &state.failed {
            Some(why) => Err(io::Error::other(why.clone())),
            None => Ok(()),
        }
    }
}
