//! What clients were told, and what must be true because of that.

use std::collections::{BTreeMap, BTreeSet};

use remanence_pool::{BlobName, Digest, Listing, State as Stands, Version};

use super::Plan;
use crate::history::{Event, History, Kind, NEVER, State};
use crate::report::counters;
use crate::rng::fill;

counters! {
/// What the pool did, counted.
Work {
    /// Times that a client connected to enough servers.
    connected,
    /// Times that it could not.
    unreachable,
    /// Operations that clients began.
    begun,
    /// Blobs that were put, durably on as many servers as were asked for.
    put,
    /// Those that were not on all servers then.
    incomplete,
    /// Blobs that were read.
    got,
    /// Those that were read from what was there, however few servers that were.
    got_any,
    /// Names that stood for no blob.
    absent,
    /// Blobs that were deleted.
    deleted,
    /// Changes of which nothing is known.
    unknown,
    /// Reads that came to nothing.
    unread,
    /// Servers that were brought up to date.
    caught_up,
    /// Those that had lost their disks, and were let in again.
    repaired,
    /// Times that all that was acknowledged was looked for on all disks.
    verified,
}
}

/// What an empty blob is, whoever has put it.
pub(super) const EMPTY: State = 1;

/// The bytes of a put.
pub(super) fn content(put: State, longest: u64) -> Vec<u8> {
    if put == EMPTY {
        return Vec::new();
    }
    // Short ones as well, whatever the longest is.
    let of = put.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
    let len = if of.is_multiple_of(5) { of % 40 } else { of % longest };
    let mut bytes = vec![0; len as usize];
    fill(put ^ 0xB10B << 40, &mut bytes);
    [&put.to_le_bytes()[..], &bytes].concat()
}

/// The put that bytes are of.
///
/// # Errors
/// They are of none.
pub(super) fn put_of(bytes: &[u8], longest: u64) -> Result<State, String> {
    if bytes.is_empty() {
        return Ok(EMPTY);
    }
    let number = bytes.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
    number.filter(|put| *put > EMPTY && bytes == content(*put, longest)).ok_or_else(|| {
        format!("bytes were read that nobody has put there: {number:?}, {} of them", bytes.len())
    })
}

/// What a client asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Asked {
    /// That a name stands for this put; 0: for no blob.
    Change(State),
    /// What a name stands for.
    Get,
}

/// What became of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Became {
    /// It is durable, as far as it is known under this version.
    Changed { version: Option<Version>, on_all: bool },
    /// This was read.
    Got { put: State, version: Version },
    /// No blob has the name.
    Absent,
    /// Nothing is known of it.
    Unknown,
}

/// A change that somebody has asked for.
#[derive(Clone, Copy, Debug)]
struct Change {
    state: State,
    invoked: u64,
    /// Whoever has asked for it has come to an end with it, well or badly.
    ended: Option<u64>,
    /// If it is known.
    version: Option<Version>,
}

/// What is known of a name.
#[derive(Debug, Default)]
struct Known {
    history: History,
    changes: Vec<Change>,
    /// Changes of which nothing is known and that may take effect still: their place in the history, and when they had ended.
    open: Vec<(usize, u64)>,
    /// What each version stands for.
    versions: BTreeMap<Version, State>,
    /// The highest version that was acknowledged.
    acknowledged: Version,
}

/// What the run knows, and no process of it.
#[derive(Debug)]
pub(crate) struct Oracle {
    pub(super) plan: Plan,
    pub(super) seed: u64,
    pub(super) work: Work,
    names: BTreeMap<BlobName, Known>,
    digests: BTreeMap<[u8; 32], State>,
    tick: u64,
    /// Usual clients that have not come to their ends.
    pub(super) working: BTreeSet<usize>,
    /// What each client has under way.
    running: BTreeMap<usize, (BlobName, Asked, u64)>,
    /// Operations that each client may still begin.
    pub(super) operations: Vec<u32>,
    /// How many disks were made.
    pub(super) made: u64,
    /// Servers that have lost their disks and do not have yet what was on them, and when they lost them.
    pub(super) lost: BTreeMap<usize, u64>,
    /// It is time to look at what is on the disks.
    pub(super) is_to_check: bool,
    /// The last client has brought all servers up to date.
    pub(super) verify: bool,
    /// Nothing was missing then.
    pub(super) finished: bool,
    /// What the last client does.
    pub(super) waits: &'static str,
}

/// The name with this number.
pub(super) fn name(number: u64) -> BlobName {
    BlobName::new(&format!("blob {number}")).expect("a fair name")
}

impl Oracle {
    pub(super) fn new(seed: u64, plan: &Plan) -> Self {
        Self {
            plan: plan.clone(),
            seed,
            work: Work::default(),
            names: (0..plan.names).map(|number| (name(number), Known::default())).collect(),
            digests: BTreeMap::from([(Digest::of(&[]).0, EMPTY)]),
            tick: 0,
            working: BTreeSet::new(),
            running: BTreeMap::new(),
            operations: vec![plan.operations; plan.clients.into()],
            made: 0,
            lost: BTreeMap::new(),
            is_to_check: false,
            verify: false,
            finished: false,
            waits: "it has not come",
        }
    }

    /// A moment that no other one is the same as.
    const fn tick(&mut self) -> u64 {
        self.tick += 1;
        self.tick
    }

    /// A server has lost its disk.
    pub(super) fn loses(&mut self, server: usize) {
        let tick = self.tick();
        self.lost.insert(server, tick);
    }

    /// Whether whatever was under way when a server lost its disk has come to an end: it may have counted that server, gets too, which
    /// bring to a majority what they find.
    pub(super) fn is_settled(&self, server: usize) -> bool {
        let lost = self.lost.get(&server).copied().unwrap_or(0);
        self.running.values().all(|(_, _, invoked)| *invoked > lost)
    }

    /// A server has what was on the disk that it had lost then.
    pub(super) fn repairs(&mut self, server: usize, lost: u64) {
        if self.lost.get(&server) == Some(&lost) {
            self.lost.remove(&server);
            self.work.repaired += 1;
            self.is_to_check = true;
        }
    }

    fn known(&mut self, name: &BlobName) -> &mut Known {
        self.names.get_mut(name).expect("one of those that are used")
    }

    /// A client begins an operation.
    pub(super) fn begins(&mut self, client: usize, name: &BlobName, asked: Asked) {
        self.work.begun += 1;
        if let Some(left) = self.operations.get_mut(client) {
            *left = left.saturating_sub(1);
        }
        let invoked = self.tick();
        if let Asked::Change(state) = asked {
            if state != 0 {
                self.digests.insert(Digest::of(&content(state, self.plan.longest)).0, state);
            }
            let change = Change { state, invoked, ended: None, version: None };
            self.known(name).changes.push(change);
        }
        self.running.insert(client, (name.clone(), asked, invoked));
    }

    /// What a client has under way has come to its end.
    ///
    /// # Errors
    /// That cannot be. A sentence.
    pub(super) fn ends(&mut self, client: usize, became: Became) -> Result<(), String> {
        let Some((name, asked, invoked)) = self.running.remove(&client) else { return Ok(()) };
        let returned = self.tick();
        let known = self.names.get_mut(&name).expect("one of those that are used");
        let client = client as u32;
        let event = |kind| Event { kind, client, invoked, returned, maybe: false };
        let work = &mut self.work;
        match (asked, became) {
            (Asked::Change(state), Became::Changed { version, on_all }) => {
                let count = if state == 0 { &mut work.deleted } else { &mut work.put };
                *count += 1;
                work.incomplete += u64::from(!on_all);
                self.is_to_check |= returned.is_multiple_of(4);
                known.acknowledged = known.acknowledged.max(version.unwrap_or_default());
                // This one outranks all that had ended when it began: they have taken effect by now, or never will.
                let events = &mut known.history.events;
                for (at, _) in known.open.extract_if(.., |(_, ended)| *ended < invoked) {
                    events[at].returned = returned;
                }
                events.push(event(Kind::Write(state)));
                known.ended(invoked, returned);
                match version {
                    Some(version) => known.learns(&name, invoked, version),
                    None => Ok(()),
                }
            }
            (Asked::Change(0), Became::Absent) => {
                work.absent += 1;
                known.changes.retain(|change| change.invoked != invoked);
                known.history.events.push(event(Kind::Read(0)));
                Ok(())
            }
            (Asked::Change(state), _) => {
                work.unknown += 1;
                known.ended(invoked, returned);
                known.open.push((known.history.events.len(), returned));
                let event = Event { returned: NEVER, maybe: true, ..event(Kind::Write(state)) };
                known.history.events.push(event);
                Ok(())
            }
            (Asked::Get, Became::Got { put, version }) => {
                work.got += 1;
                known.history.events.push(event(Kind::Read(put)));
                known.sees(&name, version, put)
            }
            (Asked::Get, Became::Absent) => {
                work.absent += 1;
                known.history.events.push(event(Kind::Read(0)));
                Ok(())
            }
            (Asked::Get, _) => {
                work.unread += 1;
                Ok(())
            }
        }
    }

    /// A version is somewhere.
    ///
    /// # Errors
    /// It cannot be, or not stand for that. A sentence.
    pub(super) fn sees(&mut self, listing: &Listing) -> Result<(), String> {
        let Listing { name, version, state } = listing;
        let state = match state {
            Stands::Deleted => 0,
            Stands::Live { digest, .. } => {
                let nobody = || format!("version {version:?} of {name:?} is a blob that nobody has put");
                *self.digests.get(&digest.0).ok_or_else(nobody)?
            }
        };
        let known = self.names.get_mut(name).ok_or_else(|| format!("nobody knows {name:?}"))?;
        known.sees(name, *version, state)
    }

    /// The highest version of each name that was acknowledged, as far as it is known.
    pub(super) fn acknowledged(&self) -> impl Iterator<Item = (&BlobName, Version)> {
        let all = self.names.iter().map(|(name, known)| (name, known.acknowledged));
        all.filter(|(_, version)| *version > Version::NONE)
    }

    /// Whether one register a name could have had these histories. Of what is still under way nothing is known.
    pub(super) fn judge(&mut self) -> Result<(), String> {
        for client in self.running.keys().copied().collect::<Vec<_>>() {
            self.ends(client, Became::Unknown)?;
        }
        for (name, known) in &self.names {
            if !known.observed().is_linearizable() {
                let mut events = known.history.events.clone();
                events.sort_by_key(|event| event.invoked);
                let events: Vec<String> = events.iter().map(|event| format!("{event:?}")).collect();
                return Err(format!(
                    "no register could have had this history of {name:?}: {}",
                    events.join(" ")
                ));
            }
        }
        Ok(())
    }
}

impl Known {
    /// The history without changes of which nothing is known and that nobody has seen: they may as well not have been made. What is one put's alone
    /// was made when it was seen for the first time. So the search for an order has less to try.
    fn observed(&self) -> History {
        let mut history = self.history.clone();
        let events = &self.history.events;
        history.events.retain_mut(|event| {
            let Kind::Write(state) = event.kind else { return true };
            let seen =
                events.iter().filter(|read| read.kind == Kind::Read(state)).map(|read| read.returned).min();
            match seen {
                Some(at) if event.maybe && state > EMPTY => {
                    (event.maybe, event.returned) = (false, event.returned.min(at));
                }
                _ => {}
            }
            seen.is_some() || !event.maybe
        });
        history
    }

    fn ended(&mut self, invoked: u64, at: u64) {
        let change = self.changes.iter_mut().find(|change| change.invoked == invoked);
        change.expect("it was begun").ended = Some(at);
    }

    /// A version stands for this.
    fn sees(&mut self, name: &BlobName, version: Version, state: State) -> Result<(), String> {
        if version == Version::NONE {
            return Err(format!("{name:?} is there without a version"));
        }
        let before = *self.versions.entry(version).or_insert(state);
        if before != state {
            return Err(format!("version {version:?} of {name:?} stands for {before} and for {state}"));
        }
        // Deletions and empty blobs are all alike.
        let of = self.changes.iter().find(|change| change.state == state && state > EMPTY);
        match of.map(|change| change.invoked) {
            Some(invoked) => self.learns(name, invoked, version),
            None => Ok(()),
        }
    }

    /// A change has this version: it must be above those of all changes that had ended when it began, well or badly.
    fn learns(&mut self, name: &BlobName, invoked: u64, version: Version) -> Result<(), String> {
        let at = self.changes.iter().position(|change| change.invoked == invoked).expect("it was begun");
        let this = self.changes[at];
        if this.version.is_some_and(|before| before != version) {
            return Err(format!("{this:?} of {name:?} has another version, {version:?}"));
        }
        self.changes[at].version = Some(version);
        let is_before = |one: &Change, other: &Change| one.ended.is_some_and(|end| end < other.invoked);
        for other in &self.changes {
            let Some(theirs) = other.version else { continue };
            let is_wrong =
                is_before(other, &this) && theirs >= version || is_before(&this, other) && version >= theirs;
            if is_wrong {
                return Err(format!(
                    "of {name:?} {other:?} and {this:?}, which has version {version:?}, are in another order than they were made"
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Params;

    fn oracle() -> Oracle {
        Oracle::new(1, &Plan::draw(1, &Params::default()))
    }

    const fn version(counter: u64) -> Version {
        Version { counter, writer: 7 }
    }

    const fn changed(counter: u64) -> Became {
        Became::Changed { version: Some(version(counter)), on_all: true }
    }

    #[test]
    fn bytes_say_of_which_put_they_are() {
        for put in [2, 9, 1 << 40, 5 << 40 | 3] {
            for longest in [64, 9000] {
                let mut bytes = content(put, longest);
                assert_eq!(put_of(&bytes, longest), Ok(put));
                bytes.push(0);
                assert!(put_of(&bytes, longest).is_err());
            }
        }
        assert_eq!((put_of(&[], 64), content(EMPTY, 64)), (Ok(EMPTY), vec![]));
        assert!(put_of(&[1], 64).is_err());
    }

    #[test]
    fn a_later_change_has_a_higher_version_than_one_that_had_ended_however_it_ended() {
        let (mut oracle, of) = (oracle(), name(0));
        oracle.begins(0, &of, Asked::Change(2));
        oracle.ends(0, Became::Unknown).expect("it may have failed");
        oracle.begins(0, &of, Asked::Change(3));
        oracle.ends(0, changed(5)).expect("the first that is known");
        oracle.begins(1, &of, Asked::Get);
        let got = Became::Got { put: 2, version: version(6) };
        assert!(oracle.ends(1, got).is_err_and(|why| why.contains("another order")), "it had failed before");
        oracle.begins(1, &of, Asked::Change(4));
        assert!(oracle.ends(1, changed(5)).is_err(), "twice");
    }

    #[test]
    fn a_change_of_which_nothing_is_known_takes_effect_before_a_later_one_is_done_or_never() {
        let read = |oracle: &mut Oracle, put| {
            oracle.begins(1, &name(0), Asked::Get);
            oracle.ends(1, Became::Got { put, version: version(put) }).expect("no version is known twice");
        };
        for late in [false, true] {
            let mut oracle = oracle();
            oracle.begins(0, &name(0), Asked::Change(2));
            oracle.ends(0, Became::Unknown).expect("it may have failed");
            if !late {
                read(&mut oracle, 2);
            }
            oracle.begins(0, &name(0), Asked::Change(EMPTY));
            oracle.ends(0, Became::Changed { version: None, on_all: false }).expect("nothing is known of it");
            read(&mut oracle, EMPTY);
            if late {
                read(&mut oracle, 2);
            }
            assert_eq!(oracle.judge().is_err(), late);
        }
    }

    #[test]
    fn a_lost_disk_is_settled_when_what_may_have_counted_it_is_over() {
        let mut oracle = oracle();
        oracle.begins(0, &name(0), Asked::Change(2));
        oracle.loses(1);
        let lost = oracle.lost[&1];
        oracle.begins(1, &name(0), Asked::Change(3));
        assert!(!oracle.is_settled(1));
        oracle.ends(0, Became::Unknown).expect("it may have failed");
        assert!(oracle.is_settled(1));
        oracle.loses(1);
        oracle.repairs(1, lost);
        assert!(oracle.lost.contains_key(&1), "that was another disk");
    }
}
