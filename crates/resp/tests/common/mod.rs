//! A store in memory to which something happens at one step.

use remanence_resp::memory::{self, Hook, MemoryStore, Step};
use remanence_resp::store::StoreError;

/// What a store says that has ended. A reply has one line, whatever its error has.
pub(crate) const GONE: &str = "the\r\nlink is down";

/// A store where something else happens before one of the steps, or that is gone from there on.
pub(crate) type Hooked<'h> = memory::Hooked<Once<'h>>;

/// What happens to the store.
type Happening<'h> = Box<dyn FnOnce(&mut MemoryStore) + 'h>;

pub(crate) struct Once<'h> {
    /// Steps before it.
    pub(crate) left: usize,
    happens: Option<Happening<'h>>,
    /// Nothing works once it has happened.
    ends: bool,
}

impl Hook for Once<'_> {
    fn before(&mut self, _: Step<'_>, store: &mut MemoryStore) -> Result<(), StoreError> {
        if self.left == 0
            && let Some(happens) = self.happens.take()
        {
            happens(store);
        }
        self.left = self.left.saturating_sub(1);
        match self.ends && self.happens.is_none() {
            true => Err(StoreError::Unavailable(GONE.to_owned())),
            false => Ok(()),
        }
    }
}

/// A store where this happens after so many steps.
pub(crate) fn hooked<'h>(
    store: &MemoryStore,
    left: usize,
    happens: impl FnOnce(&mut MemoryStore) + 'h,
) -> Hooked<'h> {
    Hooked { store: store.clone(), hook: Once { left, happens: Some(Box::new(happens)), ends: false } }
}

/// A store that is gone after so many steps.
pub(crate) fn ends(store: &MemoryStore, left: usize) -> Hooked<'static> {
    Hooked { store: store.clone(), hook: Once { left, happens: Some(Box::new(|_| ())), ends: true } }
}
