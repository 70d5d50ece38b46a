//! Keys that commands hold.
//!
//! A command on several keys is carried out alone, with nothing beside it. One that has to wait for others in the middle of that, or is
//! carried out in parts, lets everybody go on: until its end it *holds* its keys, and who wants one of them waits for it. What a command
//! does not name, as KEYS does not, is all of them.
//!
//! A command takes all of its keys at once or none, so that no two wait for each other. It does so while nothing runs beside it, and
//! whoever looks here does so while it is one of those that a command waits for which wants to be alone: so nobody begins on a key that is taken
//! meanwhile.

use std::hash::Hasher as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use siphasher::sip::SipHasher13;

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

/// What commands hold: each by a number.
#[derive(Default, Debug)]
pub(crate) struct Holds {
    held: Mutex<(u64, Vec<(u64, Keys)>)>,
    /// How many there are: mostly none.
    count: AtomicUsize,
}

impl Holds {
    fn held(&self) -> MutexGuard<'_, (u64, Vec<(u64, Keys)>)> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether anything is held.
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::SeqCst) > 0
    }

    /// Whether a command on these keys has to wait for another.
    pub(crate) fn bar_all(&self, keys: &Keys) -> bool {
        self.any() && self.held().1.iter().any(|(_, held)| held.meets(keys))
    }

    /// The same of one key, for who has this hold itself.
    pub(crate) fn bar(&self, key: Key<'_>, writes: bool, own: Option<u64>) -> bool {
        if !self.any() {
            return false;
        }
        let keys = Keys { all: false, hashes: vec![hash(key)], writes };
        self.held().1.iter().any(|(number, held)| Some(*number) != own && held.meets(&keys))
    }

    /// Takes them; the number of the hold.
    pub(crate) fn take(&self, keys: Keys) -> u64 {
        let mut held = self.held();
        held.0 += 1;
        let number = held.0;
        held.1.push((number, keys));
        self.count.store(held.1.len(), Ordering::SeqCst);
        number
    }

    /// Gives them back.
    pub(crate) fn give_back(&self, number: u64) {
        let mut held = self.held();
        held.1.retain(|(other, _)| *other != number);
        self.count.store(held.1.len(), Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::{Holds, Keys};
    use crate::store::Key;

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
        assert!(!holds.bar_all(&all(true)));
        let writer = holds.take(of(&[b"a", b"b"], true));
        let reader = holds.take(of(&[b"r"], false));
        let cases: [(&[&[u8]], bool, bool); 4] = [
            (&[b"a"], true, true),
            (&[b"r"], false, true),
            (&[b"c"], false, false),
            (&[b"c", b"b"], true, true),
        ];
        for (names, read, written) in cases {
            assert_eq!(holds.bar_all(&of(names, false)), read, "{names:?}");
            assert_eq!(holds.bar_all(&of(names, true)), written, "{names:?}");
        }
        assert!(holds.bar_all(&all(false)) && holds.bar_all(&all(true)));
        assert!(!holds.bar_all(&of(&[], true)), "what has no key waits for nobody");
        // Not for oneself; a key of another database is another one.
        assert!(holds.bar(key(b"a"), true, None) && !holds.bar(key(b"a"), true, Some(writer)));
        assert!(!holds.bar(Key { space: 1, name: b"a" }, true, None));
        holds.give_back(writer);
        assert!(!holds.bar_all(&all(false)) && holds.bar_all(&all(true)));
        holds.give_back(reader);
        assert!(!holds.any());
        holds.take(all(true));
        assert!(holds.bar_all(&of(&[b"x"], false)));
    }
}
