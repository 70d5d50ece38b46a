//! Reading the log of a group that has been opened, from its first record up to where it was opened: what whoever applies records does first.
//!
//! Any server that takes part has all of it. One that is lost, silent or damaged in the middle of it is replaced by another, and the reading
//! goes on where it was, if that one still has the record; else it [begins anew](Replayed::Anew). Nothing may be appended or trimmed meanwhile by
//! whoever reads.

use super::copy::{Copy, Next};
use super::machine::Machine;
use crate::log::error::Fault;

/// What comes next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Replayed {
    /// All records that were read so far are void: the log that is read begins with this number.
    Anew(u64),
    /// The record with this number.
    Record(u64, Vec<u8>),
    /// These bytes of a server's region are to be read, and [handed in](Replay::came).
    Read {
        /// The server's place among the names that the machine was made with.
        server: usize,
        /// The byte of the region at which it begins.
        offset: u64,
        /// How many bytes.
        len: u32,
    },
    /// Something is to happen first: bytes to come, or a server to take part.
    Wait,
    /// A record cannot be read on any server that takes part. What it finds on the last of them.
    Damaged(u64, Fault),
    /// That was the last one.
    Done,
}

/// How far the reading of a log has come.
#[derive(Debug)]
pub struct Replay {
    copy: Option<Copy>,
    /// The record that comes next; none before the first server was chosen.
    next: Option<u64>,
    end: u64,
    /// Servers that were read from in vain since the last record was, and those where that one is damaged.
    avoided: Vec<usize>,
    damaged: Vec<usize>,
}

impl Replay {
    /// Of the log that the machine has opened, and to which it has appended nothing yet.
    #[must_use]
    pub const fn new(machine: &Machine) -> Self {
        Self { copy: None, next: None, end: machine.next(), avoided: Vec::new(), damaged: Vec::new() }
    }

    /// The server from which it is read at present.
    #[must_use]
    pub fn source(&self) -> Option<usize> {
        self.copy.as_ref().map(|copy| copy.source)
    }

    /// What was to be read has come.
    pub fn came(&mut self, bytes: Vec<u8>) {
        if let Some(copy) = &mut self.copy {
            copy.came(bytes);
        }
    }

    /// The server that is read from is lost, or does not answer: another one is tried first.
    pub fn avoid(&mut self) {
        self.avoided.extend(self.copy.take().map(|copy| copy.source));
    }

    /// What comes next.
    pub fn next(&mut self, machine: &Machine) -> Replayed {
        loop {
            let Some(copy) = &mut self.copy else {
                match self.choose(machine) {
                    Some(first) if self.next.is_none_or(|next| next < first) => {
                        self.next = Some(first);
                        return Replayed::Anew(first);
                    }
                    Some(_) => continue,
                    None => return Replayed::Wait,
                }
            };
            let next = self.next.expect("a server was chosen");
            if next >= self.end {
                return Replayed::Done;
            }
            let status = machine.status(copy.source).filter(|_| machine.takes_part(copy.source));
            let Some(status) = status else {
                self.avoid();
                continue;
            };
            match copy.next(next, self.end, status, 0) {
                Next::Record(_, payload) => {
                    let payload = payload.to_vec();
                    copy.taken();
                    self.next = Some(next + 1);
                    self.avoided.clear();
                    self.damaged.clear();
                    return Replayed::Record(next, payload);
                }
                Next::Read { offset, len } => {
                    return Replayed::Read { server: copy.source, offset, len };
                }
                Next::Wait => return Replayed::Wait,
                // It was trimmed while it was read: its log begins elsewhere now.
                Next::Gone => self.copy = None,
                // Nothing is appended or trimmed there: another look finds the same.
                Next::Look => {
                    let Next::Fault(fault) = copy.next(next, self.end, status, 1) else {
                        return Replayed::Wait;
                    };
                    self.damaged.push(copy.source);
                    self.avoid();
                    let mut there = (0..machine.quorum().1).filter(|n| machine.takes_part(*n));
                    if there.all(|n| self.damaged.contains(&n)) {
                        return Replayed::Damaged(next, fault);
                    }
                }
                Next::Fault(fault) => return Replayed::Damaged(next, fault),
            }
        }
    }

    /// Chooses a server to read from, one that was not tried in vain if there is any: where its log begins.
    fn choose(&mut self, machine: &Machine) -> Option<u64> {
        let there =
            (0..machine.quorum().1).filter(|n| machine.takes_part(*n) && machine.status(*n).is_some());
        let source = there.min_by_key(|n| self.avoided.iter().filter(|other| *other == n).count())?;
        let status = machine.status(source)?;
        self.copy = Some(Copy::new(0, source, status));
        Some(status.state.head.sequence)
    }
}
