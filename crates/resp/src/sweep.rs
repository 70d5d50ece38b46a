//! Deletes keys whose time has come and that nobody asks for.
//!
//! So does it with [parts] of hashes that are gone.
//!
//! A key that expired is never served; until somebody asks for it, it takes room. A sweep goes round the store, a few
//! keys at a time, as often as the caller likes.

use crate::parts::{self, DATABASES_MAX};
use crate::stats::Stats;
use crate::store::{Condition, Key, Store, StoreError};
use crate::value::{Head, UnixMs};

/// What a step came by.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Swept {
    /// Keys, or parts of hashes.
    pub looked: u64,
    /// Those of them that were to go.
    pub deleted: u64,
}

impl Swept {
    /// Whether there is likely more to delete near by: a quarter or more had to go.
    #[must_use]
    pub const fn pays(&self) -> bool {
        self.deleted > 0 && self.deleted * 4 >= self.looked
    }
}

/// Parts of hashes that are looked at where one key would be.
const PARTS: usize = 5;

/// What a whole round has come by.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Round {
    /// When the first of the keys has expired that it has left.
    pub soonest: Option<UnixMs>,
    /// There are parts of hashes.
    pub has_parts: bool,
}

/// Where the round is.
#[derive(Clone, Debug, Default)]
pub struct Sweep {
    space: u8,
    /// The parts of the database's hashes, not its keys.
    parts: bool,
    cursor: u64,
    round: Round,
    is_over: bool,
}

impl Sweep {
    /// Looks at about `count` keys and deletes those that expired, or at parts of hashes and deletes those whose hash is gone.
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
    ) -> Result<Swept, StoreError> {
        if self.parts {
            // There are many of them, and most are looked at in vain.
            let swept = parts::sweep(store, self.space, self.cursor, count * PARTS);
            self.round.has_parts |= swept.as_ref().is_ok_and(|(_, swept)| swept.looked > 0);
            self.go_on(swept.as_ref().map(|(next, _)| *next).ok(), databases);
            return swept.map(|(_, swept)| swept);
        }
        let (mut expired, mut looked, mut soonest) = (Vec::new(), 0, self.round.soonest);
        let next = store.scan(self.space, self.cursor, count, &mut |name, head| {
            looked += 1;
            // Values of others are not ours to judge.
            let Ok((head, _)) = Head::parse(head) else { return };
            if head.expired(now) {
                expired.push(name.to_vec());
            } else if let Some(at) = head.expires {
                let at = at.saturating_add(1);
                soonest = Some(soonest.map_or(at, |soonest| soonest.min(at)));
            }
        });
        self.round.soonest = soonest;
        let space = self.space;
        self.go_on(next.as_ref().ok().copied(), databases);
        next?;
        let (mut deleted, mut head) = (0, Vec::new());
        for name in &expired {
            let key = Key { space, name };
            // It may have been written again since: the version decides.
            head.clear();
            let Some(version) = store.head(key, &mut head)? else { continue };
            if !Head::parse(&head).is_ok_and(|(head, _)| head.expired(now)) {
                continue;
            }
            match store.delete(key, Condition::Is(version)) {
                Ok(gone) => deleted += u64::from(gone),
                // It is for the next round.
                Err(error) if error.waits() => self.round.soonest = Some(now),
                Err(error) => return Err(error),
            }
        }
        stats.expired.add(deleted);
        Ok(Swept { looked, deleted })
    }

    /// What the round has come by that the last step has ended, if it has.
    pub fn take_round(&mut self) -> Option<Round> {
        std::mem::take(&mut self.is_over).then(|| std::mem::take(&mut self.round))
    }

    /// Goes to where the next step begins; nothing: behind what could not be looked at.
    fn go_on(&mut self, next: Option<u64>, databases: u16) {
        match next {
            Some(0) => {
                self.cursor = 0;
                self.parts = !self.parts;
                if !self.parts {
                    let last = databases.clamp(1, DATABASES_MAX) - 1;
                    self.is_over = u16::from(self.space) >= last;
                    self.space = if self.is_over { 0 } else { self.space + 1 };
                }
            }
            Some(next) => self.cursor = next,
            None => self.cursor = self.cursor.wrapping_add(1),
        }
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
        let deleted: u64 =
            (0..60).map(|_| sweep.step(&mut store, &stats, 3, 1000, 10).unwrap().deleted).sum();
        assert_eq!((deleted, stats.expired.get()), (100, 100));
        assert_eq!((0..3).map(|space| store.count(space).unwrap().unwrap()).sum::<u64>(), 200);
    }

    #[test]
    fn a_round_tells_when_the_next_key_expires() {
        let mut store = MemoryStore::default();
        for (space, expires) in [(0, None), (0, Some(3000)), (1, Some(2000)), (2, Some(500))] {
            let mut value = Vec::new();
            Head { kind: Kind::String, expires }.emit(&mut value);
            store.put(Key { space, name: b"key" }, &value, Condition::Always).unwrap();
        }
        let (mut sweep, stats) = (Sweep::default(), Stats::default());
        let mut round = |now| {
            for step in 1.. {
                sweep.step(&mut store, &stats, 3, now, 10).unwrap();
                if let Some(round) = sweep.take_round() {
                    return (round.soonest, step);
                }
            }
            unreachable!("it comes to an end")
        };
        // Each database, and the parts of its hashes.
        assert_eq!(round(2000), (Some(2001), 6));
        assert_eq!(round(2001), (Some(3001), 6));
        assert_eq!(round(3001), (None, 6));
        assert_eq!(stats.expired.get(), 3);
    }
}
