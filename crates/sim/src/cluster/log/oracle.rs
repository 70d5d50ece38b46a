//! What writers were told, and what must be true because of that.

use std::collections::{BTreeMap, BTreeSet};

use remanence_coord::log::{Epoch, Make};
use remanence_pmem::PersistenceDomain;

use super::Plan;
use super::server::{Rot, Serves, new_log};
use crate::cluster::Moment;
use crate::report::counters;

counters! {
/// What the group did, counted.
Work {
    /// Times that a writer opened the log.
    opened,
    /// Times that one tried in vain: too few servers, or another one was faster.
    not_opened,
    /// Records that were appended.
    appended,
    /// Those that were acknowledged.
    acknowledged,
    /// Times that records were given up.
    trims,
    /// Connections that came back to a group that was open.
    connected_again,
    /// Times that a server had no room.
    full,
    /// Records that a server got from another one's log, or from a later writer.
    copied,
    /// Records that a server had and nobody had chosen.
    cut,
    /// Groups that were closed in order.
    closed,
    /// Times that a reader from afar noticed that what it had read was cut off, or what it wanted trimmed.
    read_anew,
    /// Connections that a server cut, as another writer came.
    shut_out,
    /// Sessions of usual writers that were under way when all faults were over, and came to their ends.
    ended,
    /// Times that the last writer lost all connections with an append under way.
    cut_within,
}
}

/// How many records are acknowledged between two looks at where they lie, if there is no other reason for one.
const CHECK: u64 = 16;

/// What the run knows, and no process of it.
#[derive(Debug)]
pub(crate) struct Oracle {
    pub(super) plan: Plan,
    pub(super) seed: u64,
    pub(super) work: Work,
    /// What was acknowledged: the content, and by whom.
    acknowledged: BTreeMap<u64, (Vec<u8>, Epoch)>,
    /// Who has opened the log, and with which number it went on.
    opened: BTreeMap<Epoch, u64>,
    /// All records below this may be gone.
    pub(super) trimmed: u64,
    /// How many disks were made.
    pub(super) made: u64,
    /// The records below this number each server has had when it promised, cut or adopted last: it remembers that they were there.
    pub(super) remembered: Vec<u64>,
    /// Whether something has rotted on the disk of each server that nobody has put right.
    pub(super) rotten: Vec<Rot>,
    /// It is to be looked whether what was acknowledged lies where it must.
    pub(super) is_to_check: bool,
    /// How often each writer may still open the log.
    pub(super) sessions: Vec<u32>,
    /// Which of the usual writers have the log open, or are opening it.
    pub(super) working: BTreeSet<usize>,
    /// The last writer asks for the logs of these servers to be looked at.
    pub(super) verify: Option<Vec<usize>>,
    /// Nothing was missing.
    pub(super) verified: u32,
    /// The last writer has come to its end.
    pub(super) finished: bool,
    /// What it waits for.
    pub(super) waits: &'static str,
    /// From an append to its acknowledgement, in nanoseconds, with the time of the append.
    pub(super) latencies: Vec<(u64, u64)>,
}

impl Oracle {
    pub(super) fn new(seed: u64, plan: &Plan) -> Self {
        Self {
            plan: plan.clone(),
            seed,
            work: Work::default(),
            acknowledged: BTreeMap::new(),
            opened: BTreeMap::new(),
            trimmed: 0,
            made: 0,
            remembered: vec![0; plan.servers.into()],
            rotten: vec![Rot::None; plan.servers.into()],
            is_to_check: false,
            sessions: vec![plan.sessions; plan.writers.into()],
            working: BTreeSet::new(),
            verify: None,
            verified: 0,
            finished: false,
            waits: "it has not come",
            latencies: Vec::new(),
        }
    }

    /// What was acknowledged, from a number on.
    pub(super) fn from(&self, first: u64) -> impl Iterator<Item = (u64, &[u8])> {
        self.acknowledged.range(first..).map(|(sequence, (bytes, _))| (*sequence, &bytes[..]))
    }

    /// The last epoch in which the log was opened.
    pub(super) fn latest(&self) -> Option<Epoch> {
        self.opened.keys().next_back().copied()
    }

    /// A writer has opened the log, which goes on with this number.
    pub(super) fn opens(&mut self, epoch: Epoch, start: u64) -> Result<(), String> {
        self.work.opened += 1;
        self.is_to_check = true;
        // Records are told apart by the counter alone.
        let is_twice = self.opened.keys().any(|other| other.counter() == epoch.counter());
        if self.opened.insert(epoch, start).is_some() || is_twice {
            return Err(format!("two writers have opened the log with epoch {epoch}"));
        }
        let earlier = |(_, (_, of)): &(&u64, &(Vec<u8>, Epoch))| *of < epoch;
        // All below its first record was acknowledged when it was opened.
        let (lower, higher) = (self.opened.range(..epoch).next_back(), self.opened.range(epoch..).nth(1));
        if let Some((of, from)) = lower.filter(|(_, from)| **from > start) {
            return Err(format!(
                "epoch {epoch} begins with record {start}, and epoch {of} with record {from}"
            ));
        }
        if let Some((of, from)) = higher.filter(|(_, from)| **from < start) {
            return Err(format!(
                "epoch {of} begins with record {from}, and epoch {epoch} with record {start}"
            ));
        }
        match self.acknowledged.iter().rev().find(earlier) {
            Some((sequence, (_, of))) if *sequence >= start => Err(format!(
                "epoch {epoch} begins with record {start}, and record {sequence} was acknowledged in epoch {of}"
            )),
            _ => Ok(()),
        }
    }

    /// A writer is told that a record is acknowledged.
    pub(super) fn acknowledges(&mut self, epoch: Epoch, sequence: u64, bytes: Vec<u8>) -> Result<(), String> {
        self.work.acknowledged += 1;
        self.is_to_check |= self.work.acknowledged.is_multiple_of(CHECK);
        if let Some((later, start)) =
            self.opened.range(epoch..).find(|(of, start)| **of > epoch && **start <= sequence)
        {
            return Err(format!(
                "record {sequence} is acknowledged in epoch {epoch}, and epoch {later} had begun with record {start}"
            ));
        }
        match self.acknowledged.insert(sequence, (bytes.clone(), epoch)) {
            Some((other, of)) if other != bytes => Err(format!(
                "record {sequence} was acknowledged with two contents, in epochs {of} and {epoch}"
            )),
            _ => Ok(()),
        }
    }
}

impl Serves for Oracle {
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

    fn rot(&self, node: usize) -> Rot {
        self.rotten[node]
    }

    fn has_done(&mut self, node: usize, what: Moment, end: Option<u64>) {
        if let Some(end) = end.filter(|_| matches!(what, Moment::Promise | Moment::Cut | Moment::Adopt)) {
            self.remembered[node] = end;
        }
        if what == Moment::Cut && self.rotten[node] != Rot::None {
            self.rotten[node] = if end.is_some() { Rot::None } else { Rot::Perhaps };
        }
        self.is_to_check |= what == Moment::Adopt;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Params;

    #[test]
    fn what_contradicts_an_acknowledgement_is_seen_when_it_happens() {
        let epoch = |counter| Epoch::new(counter, 1);
        let mut oracle = Oracle::new(1, &Plan::draw(1, &Params::default()));
        oracle.opens(epoch(1), 0).expect("the first");
        oracle.acknowledges(epoch(1), 0, b"a".to_vec()).expect("the first");
        oracle.opens(epoch(3), 1).expect("it begins behind it");
        assert!(oracle.opens(epoch(3), 1).is_err(), "twice");
        assert!(oracle.acknowledges(epoch(1), 1, b"b".to_vec()).is_err(), "too late");
        oracle.acknowledges(epoch(3), 1, b"c".to_vec()).expect("nobody else has");
        assert!(oracle.acknowledges(epoch(3), 1, b"d".to_vec()).is_err(), "another content");
        assert!(oracle.opens(epoch(4), 0).is_err(), "it begins before what is acknowledged");
        let mut oracle = Oracle::new(1, &Plan::draw(1, &Params::default()));
        oracle.opens(epoch(2), 5).expect("the first");
        assert!(oracle.opens(epoch(3), 4).is_err(), "it begins before the one before");
        assert!(oracle.opens(epoch(1), 6).is_err(), "it begins behind the one after");
    }
}
