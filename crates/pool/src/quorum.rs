//! Of several servers with one blob, which is right: the client's side of a register on `n` servers, any minority of
//! which may be away. Pure; `client::put`, `client::get` and `client::resync` carry out what is decided here, and
//! `tests/computes/register.rs` tries every order of it.
//!
//! A put goes in three steps ([`Ballot`]):
//!
//! 1. each server draws a number above all that it knows and gave out; the put takes the highest of a majority's;
//! 2. a majority promises to give out higher ones only, which a crash does not make it forget (`crate::promise`);
//! 3. the blob is committed under that number, and acknowledged when a quorum, at least a majority, has it durably.
//!
//! Two majorities have a server in common. So a put that begins when another one has ended, well or badly, takes a
//! higher number, whichever servers were away in between: a put that failed never outranks a later one. Puts at the
//! same time may take the same number; then who put decides, on all servers in the same way.
//!
//! A get asks a majority for their versions ([`Reading`]). The highest may be of a put that failed or is under way,
//! and be on one server only; so before it is believed it is brought to as many as make a majority. Then no later get
//! can miss it: what was once read is not taken back.

use std::collections::{BTreeMap, BTreeSet};

use crate::blob::Version;

/// A server's place in the list of all that keep a blob.
pub type ServerIndex = usize;

/// How many of `servers` are more than half of them.
#[must_use]
pub const fn majority(servers: usize) -> usize {
    servers / 2 + 1
}

/// Of how many others a server that may have lost what it had is brought up to date: so many that every majority of `servers` has one of them.
#[must_use]
pub const fn others_needed(servers: usize) -> usize {
    servers - majority(servers) + 1
}

/// The way of one put, or one deletion, to its version.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ballot {
    servers: usize,
    tickets: BTreeMap<ServerIndex, u64>,
    number: Option<u64>,
    promised: BTreeSet<ServerIndex>,
}

impl Ballot {
    /// Of a blob that so many servers keep.
    #[must_use]
    pub const fn new(servers: usize) -> Self {
        Self { servers, tickets: BTreeMap::new(), number: None, promised: BTreeSet::new() }
    }

    /// A server drew this number.
    pub fn ticket(&mut self, from: ServerIndex, number: u64) {
        match self.number {
            None => drop(self.tickets.insert(from, number)),
            Some(_) => self.promised(from, number),
        }
    }

    /// Takes the number, if a majority has drawn: call it when no more draws are expected, or when waiting for them is
    /// over. Returns the servers that have yet to promise it; once only.
    pub fn choose(&mut self) -> Option<(u64, Vec<ServerIndex>)> {
        if self.number.is_some() || self.tickets.len() < majority(self.servers) {
            return None;
        }
        let number = *self.tickets.values().max()?;
        self.number = Some(number);
        // Who drew it gives out higher ones anyway.
        let tickets = std::mem::take(&mut self.tickets);
        let (promised, open) = tickets.into_iter().partition::<Vec<_>, _>(|(_, ticket)| *ticket >= number);
        self.promised = promised.into_iter().map(|(place, _)| place).collect();
        Some((number, open.into_iter().map(|(place, _)| place).collect()))
    }

    /// A server gives out only numbers above this one from now on.
    pub fn promised(&mut self, from: ServerIndex, number: u64) {
        if self.number.is_some_and(|chosen| number >= chosen) {
            self.promised.insert(from);
        }
    }

    /// The number that was taken, whoever promised it.
    #[must_use]
    pub const fn chosen(&self) -> Option<u64> {
        self.number
    }

    /// The number, once a majority has promised it: only now may anything be committed under it.
    #[must_use]
    pub fn number(&self) -> Option<u64> {
        self.number.filter(|_| self.promised.len() >= majority(self.servers))
    }
}

/// What a majority of the servers has of a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reading {
    /// The highest version.
    pub version: Version,
    /// It is a blob, not a deletion and not nothing.
    pub live: bool,
    /// Who has it.
    pub holders: Vec<ServerIndex>,
    /// Who has an older one.
    pub behind: Vec<ServerIndex>,
    /// Of how many servers.
    servers: usize,
}

impl Reading {
    /// Of `servers` servers, from what some of them say: version, and whether it is a blob. `None` if it is no majority
    /// that speaks.
    #[must_use]
    pub fn of(servers: usize, said: &[(ServerIndex, Version, bool)]) -> Option<Self> {
        if said.len() < majority(servers) { None } else { Self::of_any(servers, said) }
    }

    /// The same of however few; what it says may be older than what was acknowledged last. `None` if nobody speaks.
    #[must_use]
    pub fn of_any(servers: usize, said: &[(ServerIndex, Version, bool)]) -> Option<Self> {
        let version = said.iter().map(|(_, version, _)| *version).max()?;
        let (holders, behind) = said.iter().partition::<Vec<_>, _>(|(_, theirs, _)| *theirs == version);
        let live = holders.iter().any(|(_, _, live)| *live);
        let places =
            |list: Vec<(ServerIndex, Version, bool)>| list.into_iter().map(|(place, ..)| place).collect();
        Some(Self { version, live, holders: places(holders), behind: places(behind), servers })
    }

    /// Whether a majority has it.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.holders.len() >= majority(self.servers)
    }

    /// To how many of those behind it has to be brought before it may be believed.
    #[must_use]
    pub fn missing(&self) -> usize {
        // Nothing is where nothing was put: there is nothing to bring.
        if self.version == Version::NONE {
            0
        } else {
            majority(self.servers).saturating_sub(self.holders.len())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn version(counter: u64, writer: u64) -> Version {
        Version { counter, writer }
    }

    #[test]
    fn a_number_is_the_highest_drawn_and_good_when_a_majority_promised_it() {
        let mut ballot = Ballot::new(3);
        ballot.ticket(0, 5);
        assert_eq!((ballot.choose(), ballot.number()), (None, None), "one of three");
        ballot.ticket(2, 7);
        assert_eq!(ballot.choose(), Some((7, vec![0])));
        assert_eq!((ballot.choose(), ballot.number()), (None, None), "one has promised it");
        ballot.promised(0, 6);
        assert_eq!(ballot.number(), None, "that is another number");
        ballot.promised(0, 7);
        assert_eq!(ballot.number(), Some(7));

        let mut ballot = Ballot::new(3);
        (0..3).for_each(|server| ballot.ticket(server, 4));
        assert_eq!((ballot.choose(), ballot.number()), (Some((4, vec![])), Some(4)), "drawn is promised");

        // Who draws late, and above it, has left it behind as well.
        let mut ballot = Ballot::new(3);
        ballot.ticket(0, 2);
        ballot.ticket(1, 3);
        assert_eq!(ballot.choose(), Some((3, vec![0])));
        ballot.ticket(2, 9);
        assert_eq!(ballot.number(), Some(3));
    }

    #[test]
    fn a_version_on_a_minority_is_brought_to_a_majority_before_it_is_believed() {
        let said = [(0, version(4, 9), true), (2, version(4, 8), true)];
        let reading = Reading::of(3, &said).expect("two of three");
        assert_eq!((reading.version, reading.live), (version(4, 9), true));
        assert_eq!((&reading.holders[..], &reading.behind[..], reading.missing()), (&[0][..], &[2][..], 1));
        assert_eq!(Reading::of(3, &said[..1]), None);
        assert_eq!(
            Reading::of_any(3, &said[..1]).map(|r| (r.version, r.missing())),
            Some((version(4, 9), 1))
        );
        assert_eq!(Reading::of_any(3, &[]), None);
        let two = [(0, version(4, 9), false), (1, version(4, 9), false), (2, version(1, 1), true)];
        let reading = Reading::of(3, &two).expect("all");
        assert_eq!((reading.live, reading.missing()), (false, 0), "a deletion on two of three");
        let none = [(0, Version::NONE, false), (1, Version::NONE, false)];
        assert_eq!(Reading::of(3, &none).map(|r| r.missing()), Some(0));
        assert_eq!([1, 2, 3, 4, 5].map(majority), [1, 2, 2, 3, 3]);
        assert_eq!([1, 2, 3, 4, 5].map(others_needed), [1, 1, 2, 2, 3]);
    }
}
