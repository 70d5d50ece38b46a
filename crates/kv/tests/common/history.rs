//! Histories of concurrent clients, and whether one register per key could have had them.
//!
//! The search of Wing and Gong with the memory of Lowe: take any operation that began before every other one that is not
//! taken yet had ended, apply it, and go on; never the same set in the same state twice. Keys are independent, so each has
//! a history of its own. An operation whose client or server died may have taken effect before the death was known, or not
//! at all.

use std::collections::BTreeSet;

/// What a key holds: the number of the write, 0 for nothing.
pub(crate) type State = u64;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Read(State),
    Write(State),
    /// From this state to that one.
    Swap(State, State),
    /// The state was not that one.
    NoSwap(State),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    pub(crate) kind: Kind,
    pub(crate) invoked: u64,
    pub(crate) returned: u64,
    /// Its effect is not known.
    pub(crate) maybe: bool,
}

impl Event {
    fn apply(&self, state: State) -> Option<State> {
        match self.kind {
            Kind::Read(seen) => (seen == state).then_some(state),
            Kind::Write(new) => Some(new),
            Kind::Swap(old, new) => (old == state).then_some(new),
            Kind::NoSwap(other) => (other != state).then_some(state),
        }
    }
}

type Done = Vec<u64>;

/// Whether there is an order of these events, each at a moment between its begin and its end, that a register could have
/// had which began with one of `starts`.
pub(crate) fn linearizable(events: &[Event], start: State) -> bool {
    let mut seen: BTreeSet<(Done, State)> = BTreeSet::new();
    let mut open: Vec<(Done, State)> = vec![(vec![0; events.len().div_ceil(64)], start)];
    while let Some((done, state)) = open.pop() {
        let is_done = |n: usize| done[n / 64] >> (n % 64) & 1 == 1;
        let left = || (0..events.len()).filter(|n| !is_done(*n));
        let Some(first_end) = left().map(|n| events[n].returned).min() else { return true };
        if left().all(|n| events[n].maybe) {
            return true;
        }
        for n in left().filter(|n| events[*n].invoked <= first_end) {
            let mut next = done.clone();
            next[n / 64] |= 1 << (n % 64);
            let dropped = events[n].maybe.then_some(state);
            for state in events[n].apply(state).into_iter().chain(dropped) {
                if seen.insert((next.clone(), state)) {
                    open.push((next.clone(), state));
                }
            }
        }
    }
    false
}

#[test]
fn the_checker_knows_good_from_bad() {
    let event = |kind, invoked, returned| Event { kind, invoked, returned, maybe: false };
    let write = event(Kind::Write(1), 0, 10);
    assert!(linearizable(&[write, event(Kind::Read(0), 1, 2), event(Kind::Read(1), 3, 4)], 0));
    assert!(
        !linearizable(&[write, event(Kind::Read(1), 1, 2), event(Kind::Read(0), 3, 4)], 0),
        "back in time"
    );
    assert!(!linearizable(&[write, event(Kind::Read(0), 11, 12)], 0), "lost");
    let maybe = Event { maybe: true, ..write };
    assert!(linearizable(&[maybe, event(Kind::Read(0), 11, 12)], 0));
    assert!(
        !linearizable(&[maybe, event(Kind::Read(0), 11, 12), event(Kind::Read(1), 13, 14)], 0),
        "too late"
    );
    let swaps = [event(Kind::Swap(0, 1), 0, 9), event(Kind::Swap(0, 2), 0, 9)];
    assert!(!linearizable(&swaps, 0), "only one can have swapped");
    assert!(linearizable(&[swaps[0], event(Kind::NoSwap(0), 0, 9)], 0));
}
