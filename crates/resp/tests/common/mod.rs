//! A store in memory that something happens to.

use remanence_resp::memory::MemoryStore;
use remanence_resp::store::{Condition, Key, Store, StoreError, StoreLimits, Version};

/// What a store says that has ended. A reply has one line, whatever its error has.
pub(crate) const GONE: &str = "the\r\nlink is down";

/// What happens at a step.
pub(crate) type Hook<'h> = Box<dyn FnOnce(&mut MemoryStore) + 'h>;

/// A store where something else happens before one of the steps, or that is gone from there on.
pub(crate) struct Hooked<'h> {
    pub(crate) store: MemoryStore,
    /// Steps before it.
    pub(crate) left: usize,
    pub(crate) hook: Option<Hook<'h>>,
    /// Nothing works once the hook was called.
    pub(crate) ends: bool,
}

impl Hooked<'_> {
    fn step(&mut self) -> Result<(), StoreError> {
        if self.left == 0
            && let Some(hook) = self.hook.take()
        {
            hook(&mut self.store);
        }
        self.left = self.left.saturating_sub(1);
        match self.ends && self.hook.is_none() {
            true => Err(StoreError::Unavailable(GONE.to_owned())),
            false => Ok(()),
        }
    }
}

impl Store for Hooked<'_> {
    fn limits(&self) -> StoreLimits {
        self.store.limits()
    }
    fn get(&mut self, key: Key<'_>, value: &mut Vec<u8>) -> Result<Option<Version>, StoreError> {
        self.step()?;
        self.store.get(key, value)
    }
    fn put(&mut self, key: Key<'_>, value: &[u8], condition: Condition) -> Result<bool, StoreError> {
        self.step()?;
        self.store.put(key, value, condition)
    }
    fn delete(&mut self, key: Key<'_>, condition: Condition) -> Result<bool, StoreError> {
        self.step()?;
        self.store.delete(key, condition)
    }
    fn scan(
        &mut self,
        space: u8,
        cursor: u64,
        count: usize,
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<u64, StoreError> {
        self.step()?;
        self.store.scan(space, cursor, count, each)
    }
    fn count(&mut self, space: u8) -> Result<Option<u64>, StoreError> {
        self.step()?;
        self.store.count(space)
    }
    fn clear(&mut self, space: Option<u8>, cursor: u64) -> Result<u64, StoreError> {
        self.step()?;
        self.store.clear(space, cursor)
    }
}
