//! What clients of the service were told; and the counter that is the service of `rem sim`, with what is true of one.

use std::collections::{BTreeMap, BTreeSet};

use remanence_codec::{Malformed, Reader};
use remanence_coord::log::Make;
use remanence_coord::replicated::StateMachine;
use remanence_pmem::PersistenceDomain;

use super::Plan;
use super::simulated::{Simulated, Told};
use crate::cluster::log::server::{Serves, new_log};
use crate::history::NEVER;
use crate::report::counters;

/// Bytes of a snapshot besides the number, so that it has several parts.
const FILLER: [u8; 400] = [0xC5; 400];

/// The service of `rem sim`: each command adds one, or nothing. It is answered with what the counter has become.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Counter(u64);

/// The command that adds one; any other one adds nothing.
const ADD: &[u8] = &[1];

impl StateMachine for Counter {
    fn apply(&mut self, command: &[u8]) -> Vec<u8> {
        self.0 += u64::from(command == ADD);
        self.0.to_le_bytes().to_vec()
    }

    fn snapshot(&self) -> Vec<u8> {
        [&self.0.to_le_bytes()[..], &FILLER].concat()
    }

    fn restore(snapshot: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(snapshot);
        let value = reader.u64_le()?;
        if reader.rest() == FILLER { Ok(Self(value)) } else { reader.fail() }
    }
}

impl Simulated for Counter {
    const COMMAND: &'static str = "rem sim --cluster replicated";

    fn command(number: u64) -> Vec<u8> {
        if number.is_multiple_of(5) { Vec::new() } else { ADD.to_vec() }
    }

    /// Without a search, so that a run may have any number of commands of which nothing is known.
    fn judge(history: &[Told]) -> Result<bool, String> {
        judge(&history.iter().map(Op::of).collect::<Vec<_>>()).map(|()| true)
    }
}

counters! {
/// What the service did, counted.
Work {
    /// Times that a host opened the log, and had read it.
    led,
    /// Times that the log which it had read began with a snapshot.
    from_snapshot,
    /// Times that one that had the log ended that.
    stood_down,
    /// Connections that came back to a group that was open.
    connected_again,
    /// Connections that a server cut, as another host came.
    shut_out,
    /// Commands that clients began.
    begun,
    /// Those that were answered with a result.
    done,
    /// Those of which nothing is known.
    unknown,
    /// Those that were refused and not sent again.
    taken_back,
    /// Requests that were sent once more.
    sent_again,
    /// Answers that something was refused, or that nothing is known.
    refused,
    /// Sessions that had ended when their clients came.
    expired,
    /// Histories for which the search for an order was given up.
    undecided,
}
}

/// A command of the counter's client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Op {
    is_add: bool,
    client: usize,
    invoked: u64,
    /// When it was answered; [`NEVER`] if nothing is known of it.
    returned: u64,
    value: u64,
}

impl Op {
    fn of(told: &Told) -> Self {
        let Told { client, invoked, returned, .. } = *told;
        let value = |answer: &Vec<u8>| answer[..].try_into().map_or(u64::MAX, u64::from_le_bytes);
        let value = told.answer.as_ref().map_or(0, value);
        Self { is_add: told.command == ADD, client, invoked, returned, value }
    }
}

/// What the run knows, and no process of it.
#[derive(Debug)]
pub(crate) struct Oracle<A: Simulated> {
    pub(super) plan: Plan<A>,
    pub(super) seed: u64,
    pub(super) work: Work,
    history: Vec<Told>,
    tick: u64,
    made: u64,
    /// The command that each client has under way, and when it began.
    running: BTreeMap<usize, (Vec<u8>, u64)>,
    /// Commands that each client may still begin.
    pub(super) operations: Vec<u32>,
    /// Numbers that hosts draw.
    pub(super) drawn: u32,
    /// The last client has come to its end.
    pub(super) finished: bool,
}

impl<A: Simulated> Oracle<A> {
    pub(super) fn new(seed: u64, plan: &Plan<A>) -> Self {
        Self {
            plan: plan.clone(),
            seed,
            work: Work::default(),
            history: Vec::new(),
            tick: 0,
            made: 0,
            running: BTreeMap::new(),
            operations: vec![plan.operations; plan.clients.into()],
            drawn: 0,
            finished: false,
        }
    }

    const fn tick(&mut self) -> u64 {
        self.tick += 1;
        self.tick
    }

    /// A client begins a command.
    pub(super) fn begins(&mut self, client: usize, command: Vec<u8>) {
        self.work.begun += 1;
        let invoked = self.tick();
        self.running.insert(client, (command, invoked));
    }

    /// It was answered.
    pub(super) fn ends(&mut self, client: usize, answer: Vec<u8>) {
        if let Some((command, invoked)) = self.running.remove(&client) {
            self.work.done += 1;
            let returned = self.tick();
            self.history.push(Told { client, command, invoked, returned, answer: Some(answer) });
        }
    }

    /// Nothing will be known of it: its client has died, or its session has ended.
    pub(super) fn forgets(&mut self, client: usize) {
        if let Some((command, invoked)) = self.running.remove(&client) {
            self.work.unknown += 1;
            self.history.push(Told { client, command, invoked, returned: NEVER, answer: None });
        }
    }

    /// It was refused, and nothing was done: its client does not ask for it again.
    pub(super) fn takes_back(&mut self, client: usize) {
        self.work.taken_back += u64::from(self.running.remove(&client).is_some());
    }

    /// Whether somebody waits for an answer.
    pub(super) fn waits(&self) -> Option<usize> {
        self.running.keys().next().copied()
    }

    pub(super) fn judge(&mut self) -> Result<(), String> {
        let is_decided = A::judge(&self.history)?;
        self.work.undecided += u64::from(!is_decided);
        Ok(())
    }
}

impl<A: Simulated> Serves for Oracle<A> {
    fn make(&mut self, node: usize) -> (Make, PersistenceDomain) {
        self.made += 1;
        let plan = &self.plan;
        (new_log(self.made, self.seed, plan.mode, plan.segment, plan.segments[node]), plan.domain)
    }

    fn is_fencing(&self) -> bool {
        self.plan.guarded
    }

    fn has_shut_out(&mut self) {
        self.work.shut_out += 1;
    }
}

/// Whether one counter could have had this history: linearizability (Herlihy and Wing), which is simple here as each answer says which place its
/// command has.
///
/// Answered additions have different values. Of two answered commands of which one had ended when the other began, the other has the
/// higher value, or the same one if it adds nothing. And each value that no answered addition has is that of another addition,
/// which had begun when somebody was answered with that value or a higher one: the earliest value goes to the one that began first.
fn judge(history: &[Op]) -> Result<(), String> {
    let known: Vec<&Op> = history.iter().filter(|op| op.returned != NEVER).collect();
    let mut values = BTreeSet::new();
    for op in known.iter().filter(|op| op.is_add) {
        if op.value == 0 || !values.insert(op.value) {
            return Err(format!("two additions are answered with one value, or one with none: {op:?}"));
        }
    }
    for later in &known {
        let before = known.iter().filter(|op| op.returned < later.invoked).max_by_key(|op| op.value);
        if let Some(before) = before.filter(|op| op.value + u64::from(later.is_add) > later.value) {
            return Err(format!("what was answered is taken back: {before:?}, and later {later:?}"));
        }
    }
    let highest = known.iter().map(|op| op.value).max().unwrap_or(0);
    let mut others: Vec<u64> =
        history.iter().filter(|op| op.is_add && op.returned == NEVER).map(|op| op.invoked).collect();
    others.sort_unstable();
    let mut others = others.into_iter();
    for value in (1..=highest).filter(|value| !values.contains(value)) {
        let seen = known.iter().filter(|op| op.value >= value).map(|op| op.returned).min();
        if others.next().is_none_or(|invoked| Some(invoked) > seen) {
            return Err(format!(
                "value {value} was seen by {seen:?}, and nobody had added that: {history:?}"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(invoked: u64, returned: u64, value: u64) -> Op {
        Op { is_add: true, client: 0, invoked, returned, value }
    }

    fn read(invoked: u64, returned: u64, value: u64) -> Op {
        Op { is_add: false, ..add(invoked, returned, value) }
    }

    #[test]
    fn a_history_that_no_counter_could_have_had_is_seen() {
        let fair = [add(1, 5, 2), add(2, 4, 1), read(3, 6, 0), read(7, 8, 2)];
        assert_eq!(judge(&fair), Ok(()));
        for (what, history) in [
            ("one value for two", vec![add(1, 2, 1), add(3, 4, 1)]),
            ("an addition that is answered with nothing", vec![add(1, 2, 0)]),
            ("one that is lost", vec![add(1, 2, 1), add(3, 4, 2), read(5, 6, 1)]),
            ("one that is counted twice", vec![add(1, 2, 1), add(3, 4, 3)]),
            ("one that comes before what was answered", vec![add(1, 2, 2), add(3, 4, 1)]),
            ("one that nobody made", vec![read(1, 2, 1)]),
        ] {
            assert!(judge(&history).is_err(), "{what}");
        }
    }

    #[test]
    fn what_is_not_known_may_count_once_from_its_beginning_on() {
        let unknown = add(3, NEVER, 0);
        assert_eq!(judge(&[add(1, 2, 1), unknown, add(4, 5, 3)]), Ok(()));
        assert_eq!(judge(&[add(1, 2, 1), unknown, add(4, 5, 2)]), Ok(()));
        assert_eq!(judge(&[add(1, 2, 1), unknown, read(4, 5, 1), read(6, 7, 2)]), Ok(()));
        assert!(judge(&[add(1, 2, 2), unknown]).is_err(), "it had not begun");
        assert!(judge(&[add(1, 2, 1), unknown, add(4, 5, 4)]).is_err(), "it counts twice");
        assert!(judge(&[unknown, add(4, 5, 2), read(6, 7, 1)]).is_err(), "it is taken back");
    }
}
