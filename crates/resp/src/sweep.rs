//! Deletes keys whose time has come and that nobody asks for.
//!
//! A key that expired is never served; until somebody asks for it, it takes room. A sweep goes round the store, a few
//! keys at a time, as often as the caller likes.

use crate::stats::Stats;
use crate::store::{Condition, Key, Store, StoreError};
use crate::value::{Head, UnixMs};

/// Where the round is.
#[derive(Clone, Debug, Default)]
pub struct Sweep {
    space: u8,
    cursor: u64,
}

impl Sweep {
    /// Looks at about `count` keys and deletes those that expired; how many.
    ///
    /// # Errors
    /// The store's. The next call goes on behind what was not looked at.
    pub fn step<S: Store>(
        &mut self,
        store: &mut S,
        stats: &Stats,
        databases: u16,
        now: UnixMs,
        count: usize,
    ) -> Result<u64, StoreError> {
        let mut expired = Vec::new();
        let next = store.scan(self.space, self.cursor, count, &mut |name, head| {
            // Values of others are not ours to judge.
            if Head::parse(head).is_ok_and(|(head, _)| head.expired(now)) {
                expired.push(name.to_vec());
            }
        });
        let space = self.space;
        match next {
            Ok(0) => {
                self.cursor = 0;
                let last = databases.clamp(1, 256) - 1;
                self.space = if u16::from(space) >= last { 0 } else { space + 1 };
            }
            Ok(next) => self.cursor = next,
            Err(error) => {
                self.cursor = self.cursor.wrapping_add(1);
                return Err(error);
            }
        }
        let (mut deleted, mut head) = (0, Vec::new());
        for name in &expired {
            let key = Key { space, name };
            // It may have been written again since: the version decides.
            head.clear();
            let Some(version) = store.head(key, &mut head)? else { continue };
            if Head::parse(&head).is_ok_and(|(head, _)| head.expired(now))
                && store.delete(key, Condition::Is(version))?
            {
                deleted += 1;
            }
        }
        stats.expired.add(deleted);
        Ok(deleted)
    }
}

#[cfg(test)]
mod tests {
    use super::Sweep;
    use crate::memory::MemoryStore;
    use crate::stats::Stats;
    use crate::store::{Condition, Key, Store};
    use crate::value::{Head, Kind};

    #[test]
    fn a_round_deletes_what_expired_in_every_database_and_nothing_else() {
        let mut store = MemoryStore::default();
        let mut put = |space, name: String, expires| {
            let mut value = Vec::new();
            Head { kind: Kind::String, expires }.emit(&mut value);
            store.put(Key { space, name: name.as_bytes() }, &value, Condition::Always).unwrap();
        };
        for i in 0..100 {
            put(i % 3, format!("gone{i}"), Some(999));
            put(i % 3, format!("last{i}"), Some(1000));
            put(i % 3, format!("stay{i}"), None);
        }
        let (mut sweep, stats) = (Sweep::default(), Stats::default());
        let deleted: u64 = (0..60).map(|_| sweep.step(&mut store, &stats, 3, 1000, 10).unwrap()).sum();
        assert_eq!((deleted, stats.expired.get()), (100, 100));
        assert_eq!((0..3).map(|space| store.count(space).unwrap().unwrap()).sum::<u64>(), 200);
    }
}
