//! Keys that commands hold.
//!
//! A command on several keys is carried out alone, with nothing beside it. One that has to wait for others in the middle of that, or is
//! carried out in parts, lets everybody go on: until its end it *holds* its keys, and who wants one of them waits for it. What a command
//! does not name, as KEYS does not, is all of them.
//!
//! A command takes all of its keys at once or none, so that no two wait for each other. It does so while nothing runs beside it, and
//! whoever looks here does so while it is one of those that a command waits for which wants to be alone: so nobody begins on a key that is taken
//! meanwhile. Whoever finds that it has to wait leaves its [`Bell`] with the hold, and is told when the keys are given back.

use std::collections::BTreeMap;
use std::hash::Hasher as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use siphasher::sip::SipHasher13;

use crate::channels::Bell;
use crate::command::{Command, Id};
use crate::protocol::Request;
use crate::store::Key;

/// Keys of a command, and whether it changes them.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Keys {
    /// All keys that there are or may be.
    pub(crate) all: bool,
    /// Their hashes, [sorted](Self::sorted): two keys that share one wait for each other without need.
    hashes: Vec<u64>,
    writes: bool,
}

impl Keys {
    /// Those of a request, in a database.
    pub(crate) fn of(command: &Command, request: &Request<'_>, space: u8) -> Self {
        let mut keys = Self::default();
        keys.add_all(command, request, space);
        keys.sorted()
    }

    /// Adds those of a request.
    pub(crate) fn add_all(&mut self, command: &Command, request: &Request<'_>, space: u8) {
        self.writes |= command.writes();
        self.all |= matches!(
            command.id,
            Id::Keys | Id::Scan | Id::RandomKey | Id::DbSize | Id::FlushDb | Id::FlushAll
        );
        let [first, last, step] = command.keys;
        let last = if last < 0 { request.len() as i64 + last } else { last };
        if first > 0 && last >= first {
            let names = (first..=last).step_by(step.max(1) as usize);
            self.hashes.extend(names.map(|n| hash(Key { space, name: request.word(n as usize) })));
        }
    }

    /// Keys that are changed.
    pub(crate) fn changed<'k>(keys: impl Iterator<Item = Key<'k>>) -> Self {
        Self { all: false, hashes: keys.map(hash).collect(), writes: true }.sorted()
    }

    /// Whether there are none.
    pub(crate) const fn is_empty(&self) -> bool {
        !self.all && self.hashes.is_empty()
    }

    /// Adds a key to them.
    pub(crate) fn add(&mut self, key: Key<'_>) {
        self.hashes.push(hash(key));
    }

    /// The same, as they are to be [held](Holds::take).
    pub(crate) fn sorted(mut self) -> Self {
        self.hashes.sort_unstable();
        self.hashes.dedup();
        self
    }

    /// Whether one of two commands has to wait for the other.
    fn meets(&self, other: &Self) -> bool {
        if !self.writes && !other.writes {
            return false;
        }
        match (self.all, other.all) {
            (true, true) => true,
            (true, false) => !other.hashes.is_empty(),
            (false, true) => !self.hashes.is_empty(),
            (false, false) => {
                let (these, those) = (&self.hashes, &other.hashes);
                let (few, many) = if these.len() < those.len() { (these, those) } else { (those, these) };
                few.iter().any(|hash| many.binary_search(hash).is_ok())
            }
        }
    }
}

fn hash(key: Key<'_>) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write_u8(key.space);
    hasher.write(key.name);
    hasher.finish()
}

/// What commands hold.
#[derive(Default, Debug)]
pub(crate) struct Holds {
    held: Mutex<AllHeld>,
    /// How many there are: mostly none.
    count: AtomicUsize,
}

#[derive(Default, Debug)]
struct AllHeld {
    last: u64,
    /// Each by its number.
    holds: BTreeMap<u64, Held>,
}

/// What one command holds.
#[derive(Debug)]
struct Held {
    keys: Keys,
    /// Who is told when the keys are given back, each once: by where its bell is in memory.
    waiting: BTreeMap<usize, Arc<dyn Bell>>,
}

impl AllHeld {
    /// Whether one of these holds bars a command, which is told when that one is over.
    fn bar(&mut self, keys: &Keys, own: Option<u64>, bell: Option<&Arc<dyn Bell>>) -> bool {
        let mut others = self.holds.iter_mut().filter(|(number, _)| Some(**number) != own);
        let Some((_, held)) = others.find(|(_, held)| held.keys.meets(keys)) else { return false };
        if let Some(bell) = bell {
            held.waiting.insert(Arc::as_ptr(bell).cast::<()>().addr(), Arc::clone(bell));
        }
        true
    }
}

impl Holds {
    fn held(&self) -> MutexGuard<'_, AllHeld> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether anything is held.
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::SeqCst) > 0
    }

    /// Whether a command on these keys has to wait for another. Then the bell is rung when that one is over: it may have to wait for
    /// the next one.
    pub(crate) fn bar_all(&self, keys: &Keys, bell: Option<&Arc<dyn Bell>>) -> bool {
        self.any() && self.held().bar(keys, None, bell)
    }

    /// The same of one key, for who has this hold itself.
    pub(crate) fn bar(
        &self,
        key: Key<'_>,
        writes: bool,
        own: Option<u64>,
        bell: Option<&Arc<dyn Bell>>,
    ) -> bool {
        if !self.any() {
            return false;
        }
        let keys = Keys { all: false, hashes: vec![hash(key)], writes };
        self.held().bar(&keys, own, bell)
    }

    /// Takes them; the number of the hold.
    pub(crate) fn take(&self, keys: Keys) -> u64 {
        let mut held = self.held();
        held.last += 1;
        let number = held.last;
        held.holds.insert(number, Held { keys, waiting: BTreeMap::new() });
        self.count.store(held.holds.len(), Ordering::SeqCst);
        number
    }

    /// Gives them back, and tells those that wait for that.
    pub(crate) fn give_back(&self, number: u64) {
        let mut held = self.held();
        let over = held.holds.remove(&number);
        self.count.store(held.holds.len(), Ordering::SeqCst);
        drop(held);
        // Whoever is told looks at once: the lock is open.
        over.into_iter().flat_map(|over| over.waiting.into_values()).for_each(|bell| bell.ring());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::{Holds, Keys};
    use crate::channels::Bell;
    use crate::store::Key;

    /// How often it was rung.
    #[derive(Default)]
    struct Rung(AtomicUsize);

    impl Bell for Rung {
        fn ring(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn who_waits_is_told_once_by_whoever_it_waits_for_and_by_nobody_else() {
        let holds = Holds::default();
        let of = |name: &'static [u8]| {
            let mut keys = Keys { writes: true, ..Keys::default() };
            keys.add(Key { space: 0, name });
            keys.sorted()
        };
        let (rung, other) = (Arc::new(Rung::default()), Arc::new(Rung::default()));
        let times = || [&rung, &other].map(|bell| bell.0.load(Ordering::Relaxed));
        let (bell, second): (Arc<dyn Bell>, Arc<dyn Bell>) = (rung.clone(), other.clone());
        let (a, again, b) = (holds.take(of(b"a")), holds.take(of(b"a")), holds.take(of(b"b")));
        for _ in 0..3 {
            assert!(holds.bar_all(&of(b"a"), Some(&bell)));
        }
        assert!(holds.bar(Key { space: 0, name: b"b" }, false, None, Some(&second)));
        assert!(!holds.bar_all(&of(b"c"), Some(&second)), "who does not wait is not told");
        holds.give_back(a);
        assert_eq!(times(), [1, 0]);
        // There is another one that it waits for: it looks, and waits for that.
        assert!(holds.bar_all(&of(b"a"), Some(&bell)));
        holds.give_back(b);
        assert_eq!(times(), [1, 1]);
        holds.give_back(again);
        assert_eq!(times(), [2, 1]);
        assert!(!holds.bar_all(&of(b"a"), Some(&bell)));
    }

    #[test]
    fn who_changes_a_key_waits_for_whoever_holds_it_and_who_reads_for_whoever_changes_it() {
        let holds = Holds::default();
        const fn key(name: &[u8]) -> Key<'_> {
            Key { space: 0, name }
        }
        let of = |names: &[&[u8]], writes| {
            let mut keys = Keys { writes, ..Keys::default() };
            names.iter().for_each(|name| keys.add(key(name)));
            keys.sorted()
        };
        let all = |writes| Keys { all: true, writes, ..Keys::default() };
        assert!(!holds.bar_all(&all(true), None));
        let writer = holds.take(of(&[b"a", b"b"], true));
        let reader = holds.take(of(&[b"r"], false));
        let cases: [(&[&[u8]], bool, bool); 4] = [
            (&[b"a"], true, true),
            (&[b"r"], false, true),
            (&[b"c"], false, false),
            (&[b"c", b"b"], true, true),
        ];
        for (names, read, written) in cases {
            assert_eq!(holds.bar_all(&of(names, false), None), read, "{names:?}");
            assert_eq!(holds.bar_all(&of(names, true), None), written, "{names:?}");
        }
        assert!(holds.bar_all(&all(false), None) && holds.bar_all(&all(true), None));
        assert!(!holds.bar_all(&of(&[], true), None), "what has no key waits for nobody");
        // Not for oneself; a key of another database is another one.
        assert!(holds.bar(key(b"a"), true, None, None) && !holds.bar(key(b"a"), true, Some(writer), None));
        assert!(!holds.bar(Key { space: 1, name: b"a" }, true, None, None));
        holds.give_back(writer);
        assert!(!holds.bar_all(&all(false), None) && holds.bar_all(&all(true), None));
        holds.give_back(reader);
        assert!(!holds.any());
        holds.take(all(true));
        assert!(holds.bar_all(&of(&[b"x"], false), None));
    }
}
