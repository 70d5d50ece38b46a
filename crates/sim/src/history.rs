//! Histories of concurrent clients, and whether one register per key could have had them.
//!
//! Keys are independent, so each has a history of its own ([`History`]), which is linearizable if some order of its
//! operations, each at a moment between its begin and its end, is one that a register could have had (Herlihy and Wing).
//! An operation whose client or server died may have taken effect before its `returned`, or not at all: with the moment of
//! the crash there, this is durable linearizability in its strict form (what is to take effect has done so at the crash).
//!
//! The search is that of Wing and Gong with the memory of Lowe: take any operation that began before every other one that
//! is not taken yet had ended, apply it, and go on; never the same set in the same state twice. An operation that changes
//! nothing and may come now is taken at once: if there is an order at all, there is one with it here.
//!
//! A checker is believed because another one agrees: histories go out as lines of JSON ([`History::json_lines`]), which
//! `tests/porcupine` judges with a checker that others wrote.

use std::collections::BTreeSet;
use std::fmt::Write as _;

/// What a key holds: the number of the write, 0 for nothing.
pub type State = u64;

/// The end of an operation that nothing is known of any more.
pub const NEVER: u64 = i64::MAX as u64;

/// What an operation did to its key, or saw of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// It held this.
    Read(State),
    /// It holds this from here on; 0 is a deletion.
    Write(State),
    /// From this state to that one.
    Swap(State, State),
    /// The state was not that one.
    NoSwap(State),
}

/// An operation of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// What it did.
    pub kind: Kind,
    /// Which client's, for people who read it.
    pub client: u32,
    /// When it began, on a clock that all clients of the history share.
    pub invoked: u64,
    /// When it had ended, at most [`NEVER`]. Both ends belong to it: what begins at this moment is concurrent.
    pub returned: u64,
    /// Its effect is not known.
    pub maybe: bool,
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

    const fn changes(&self) -> bool {
        matches!(self.kind, Kind::Write(_) | Kind::Swap(..))
    }
}

/// What happened to one key.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct History {
    /// What it held at the start.
    pub start: State,
    /// In any order.
    pub events: Vec<Event>,
}

/// Operations that are done: all before the first number, and these.
pub(crate) type Done = (usize, Vec<usize>);

/// What lies between two moments.
pub(crate) trait Lasts {
    /// When it began, and when it had ended.
    fn ends(&self) -> (u64, u64);
}

impl Lasts for Event {
    fn ends(&self) -> (u64, u64) {
        (self.invoked, self.returned)
    }
}

impl History {
    /// Whether a register could have had it.
    #[must_use]
    pub fn is_linearizable(&self) -> bool {
        let mut events = self.events.clone();
        events.sort_by_key(|event| (event.invoked, event.returned));
        let sure = events.iter().filter(|event| !event.maybe).count();
        let mut seen: BTreeSet<(Done, State)> = BTreeSet::new();
        let mut open: Vec<(Done, usize, State)> = vec![((0, Vec::new()), sure, self.start)];
        while let Some((done, sure, state)) = open.pop() {
            // What is left and not sure may be left out.
            if sure == 0 {
                return true;
            }
            let candidates = candidates(&events, &done);
            let at_once = candidates.iter().copied().find(|n| {
                let event = &events[*n];
                !event.changes() && (event.maybe || event.apply(state).is_some())
            });
            let taken: &[usize] = at_once.as_ref().map_or(&candidates, std::slice::from_ref);
            for n in taken {
                let event = &events[*n];
                let next = with(&done, *n);
                let dropped = (event.maybe && event.changes()).then_some(state);
                let applied = if event.changes() { event.apply(state) } else { at_once.map(|_| state) };
                for state in dropped.into_iter().chain(applied) {
                    if seen.insert((next.clone(), state)) {
                        open.push((next.clone(), sure - usize::from(!event.maybe), state));
                    }
                }
            }
        }
        false
    }

    /// One line of JSON for the start and one per operation, under names that tell this history from others. The form is
    /// described in `tests/porcupine/README.md`.
    #[must_use]
    pub fn json_lines(&self, run: &str, key: &[u8]) -> String {
        let key: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        let of = format!("{{\"run\":\"{}\",\"key\":\"{key}\"", run.escape_default());
        let mut lines = format!("{of},\"op\":\"start\",\"value\":{}}}\n", self.start);
        for event in &self.events {
            let what = match event.kind {
                Kind::Read(seen) => format!("\"op\":\"get\",\"found\":{seen}"),
                Kind::Write(new) => format!("\"op\":\"put\",\"value\":{new}"),
                Kind::Swap(old, new) => {
                    format!("\"op\":\"swap\",\"expect\":{old},\"value\":{new},\"ok\":true")
                }
                Kind::NoSwap(old) => format!("\"op\":\"swap\",\"expect\":{old},\"ok\":false"),
            };
            let Event { client, invoked, returned, maybe, .. } = event;
            let _ = writeln!(
                lines,
                "{of},\"client\":{client},{what},\"call\":{invoked},\"return\":{returned},\"maybe\":{maybe}}}"
            );
        }
        lines
    }
}

/// What may come next, of operations in the order in which they began: began before any other that is left had ended.
pub(crate) fn candidates(events: &[impl Lasts], (from, behind): &Done) -> Vec<usize> {
    let (mut first_end, mut found) = (u64::MAX, Vec::new());
    for (n, event) in events.iter().enumerate().skip(*from) {
        let (invoked, returned) = event.ends();
        if invoked > first_end {
            break;
        }
        if behind.binary_search(&n).is_err() {
            first_end = first_end.min(returned);
            found.push(n);
        }
    }
    found.retain(|n| events[*n].ends().0 <= first_end);
    found
}

/// Those that are done when this one is too.
pub(crate) fn with((from, behind): &Done, n: usize) -> Done {
    let (mut from, mut behind) = (*from, behind.clone());
    let place = behind.binary_search(&n).expect_err("it was not done yet");
    behind.insert(place, n);
    let whole = behind.iter().enumerate().take_while(|(k, n)| from + k == **n).count();
    behind.drain(..whole);
    from += whole;
    (from, behind)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn event(kind: Kind, invoked: u64, returned: u64) -> Event {
        Event { kind, client: 0, invoked, returned, maybe: false }
    }

    fn linearizable(events: &[Event]) -> bool {
        History { start: 0, events: events.to_vec() }.is_linearizable()
    }

    #[test]
    fn the_checker_knows_good_from_bad() {
        let write = event(Kind::Write(1), 0, 10);
        assert!(linearizable(&[write, event(Kind::Read(0), 1, 2), event(Kind::Read(1), 3, 4)]));
        let back = [write, event(Kind::Read(1), 1, 2), event(Kind::Read(0), 3, 4)];
        assert!(!linearizable(&back), "back in time");
        assert!(!linearizable(&[write, event(Kind::Read(0), 11, 12)]), "lost");
        let maybe = Event { maybe: true, ..write };
        assert!(linearizable(&[maybe, event(Kind::Read(0), 11, 12)]));
        let late = [maybe, event(Kind::Read(0), 11, 12), event(Kind::Read(1), 13, 14)];
        assert!(!linearizable(&late), "too late");
        let swaps = [event(Kind::Swap(0, 1), 0, 9), event(Kind::Swap(0, 2), 0, 9)];
        assert!(!linearizable(&swaps), "only one can have swapped");
        assert!(linearizable(&[swaps[0], event(Kind::NoSwap(0), 0, 9)]));
        assert!(!linearizable(&[event(Kind::NoSwap(0), 0, 9)]), "nobody else was there");
        let maybe = Event { maybe: true, ..swaps[1] };
        assert!(linearizable(&[swaps[0], maybe]));
    }

    #[test]
    fn both_ends_belong_to_an_operation() {
        let write = event(Kind::Write(1), 0, 10);
        assert!(linearizable(&[write, event(Kind::Read(0), 10, 12)]), "they touch");
        assert!(!linearizable(&[write, event(Kind::Read(0), 11, 12)]));
    }

    #[test]
    fn a_start_is_what_is_there_at_first() {
        let history = History { start: 7, events: vec![event(Kind::Read(7), 0, 1)] };
        assert!(history.is_linearizable());
        assert!(!linearizable(&history.events));
    }

    /// Every history of so few operations, judged by trying every order of every choice of the doubtful ones.
    #[test]
    fn the_search_agrees_with_trying_every_order() {
        fn some_order(left: &[Event], state: State) -> bool {
            let first_end = left.iter().map(|event| event.returned).min();
            left.is_empty()
                || (0..left.len()).any(|n| {
                    let mut rest = left.to_vec();
                    let event = rest.remove(n);
                    first_end.is_some_and(|end| event.invoked <= end)
                        && (event.apply(state).is_some_and(|state| some_order(&rest, state))
                            || event.maybe && some_order(&rest, state))
                })
        }
        let (mut seed, mut verdicts) = (1u64, [0, 0]);
        let mut pick = |n: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % n
        };
        for _ in 0..20_000 {
            let events: Vec<Event> = (0..pick(6))
                .map(|client| {
                    let kind = match pick(4) {
                        0 => Kind::Write(pick(3)),
                        1 => Kind::Swap(pick(3), pick(3)),
                        2 => Kind::NoSwap(pick(3)),
                        _ => Kind::Read(pick(3)),
                    };
                    let invoked = pick(12);
                    let returned = invoked + pick(6);
                    Event { kind, client: client as u32, invoked, returned, maybe: pick(4) == 0 }
                })
                .collect();
            let verdict = linearizable(&events);
            assert_eq!(verdict, some_order(&events, 0), "{events:?}");
            verdicts[usize::from(verdict)] += 1;
        }
        assert!(verdicts.iter().all(|count| *count > 4000), "{verdicts:?}");
    }

    #[test]
    fn lines_of_json_say_all_of_it() {
        let events = vec![
            event(Kind::Write(3), 1, 4),
            Event { maybe: true, client: 2, ..event(Kind::Swap(3, 5), 2, 9) },
            event(Kind::NoSwap(1), 5, 6),
            event(Kind::Read(0), 7, 8),
        ];
        let lines = History { start: 9, events }.json_lines("a \"run\"", b"k\xff");
        let expected = r#"{"run":"a \"run\"","key":"6bff","op":"start","value":9}
{"run":"a \"run\"","key":"6bff","client":0,"op":"put","value":3,"call":1,"return":4,"maybe":false}
{"run":"a \"run\"","key":"6bff","client":2,"op":"swap","expect":3,"value":5,"ok":true,"call":2,"return":9,"maybe":true}
{"run":"a \"run\"","key":"6bff","client":0,"op":"swap","expect":1,"ok":false,"call":5,"return":6,"maybe":false}
{"run":"a \"run\"","key":"6bff","client":0,"op":"get","found":0,"call":7,"return":8,"maybe":false}
"#;
        assert_eq!(lines, expected);
    }
}
