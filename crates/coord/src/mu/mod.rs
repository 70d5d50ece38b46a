//! Mu (OSDI'20): consensus in which a leader writes its values one-sidedly into the logs of its followers, and who may write there is who leads.
//!
//! Each of n replicas has [memory] that the others reach: a log of slots, and some words. A replica reads the others' beats and takes the
//! lowest number that it trusts for the leader ([score]). Who is that asks all for their permission with a number of its own; each
//! takes the permission away from whoever had it, and only then gives it. With a majority the leader has what was decided, reads what may have been,
//! and writes from then on: a value is decided when it is *durable* on a majority, its own log included. Any write that fails ends
//! all of this, and it begins again with another number. Replicas are fixed: none can be replaced yet, and a snapshot is read and sent in one piece.
//!
//! [`Replica::handle`] takes what has happened, [`Replica::poll_action`] gives what is to be done about it, in this order, and
//! [`Replica::deadline`] says when it wants to be called though nothing has happened. Nothing here waits, reads a clock or has a connection. What peers write into the
//! memory is found at each call.
//!
//! **What differs from the paper**, and why:
//!
//! 1. *The number that is asked with is the number of the proposals*, and a replica grants only numbers above all that it has granted, and makes
//!    that durable first. So `minProposal` is written by its owner in the step that grants, a replica that was started again cannot grant to an older
//!    request, and a leader saves the round that reads and writes the others' `minProposal`.
//! 2. *A replica grants only to whom it takes for the leader itself.* Two that do not hear each other would otherwise take the permission of a third from
//!    each other for as long as that lasts. Requests of others stay where they are until the replica's mind changes.
//! 3. *Followers know what is decided from the decided prefix* that each entry carries and that an idle leader writes, never from the next entry being
//!    there: several entries are in flight. An entry's word is believed for entries of the same leader ([`Replica`]), and the written word
//!    is at no time above what is durable at that follower.
//! 4. *Entries have an index and a checksum*, in slots of one size ([entry]): nothing has to be zeroed, and a value that is written again under
//!    another number is there at each moment, whoever dies within that.
//! 5. *Logs are recycled when a majority has snapshots of what lies there.* Who lacks entries that are gone is sent the leader's snapshot; a leader that does
//!    reads another one's. A silent replica is waited for in no step.
//! 6. *A leader without progress rests* (fate sharing): it stops its beat for a while, longer each time, so that another one has a chance.
//! 7. *Reads are not written to the log.* Who wants to know what the state is asks the leader ([`Input::Confirm`]), which reads from the others whose number they
//!    have promised last. If that is its own at a majority, nobody else can have decided anything before these READs.
//!
//! ARGUMENT that two values are never decided for one index. It is Paxos, with a grant as the promise. A replica that has granted a number has made its memory
//! unwritable to all who were granted lower ones, and what they had written until then is what the new leader reads. A leader that has a majority's grants
//! therefore sees each value that was decided, or whose write was accepted anywhere in that majority before; of several it takes that of the highest number, and
//! writes it again with its own. A value is decided when a majority has it durable under one number: every later majority has a replica in common with that one,
//! and a crash does not take it back there.

pub mod entry;
mod lead;
pub mod memory;
mod replica;
pub mod score;
pub mod service;

use std::time::Duration;

pub use memory::{Geometry, Memory, OpenError};
pub use replica::Replica;

/// Which of the two connections to a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Plane {
    /// Beats, requests and grants: always there, and never in the way of the other one.
    Background = 0,
    /// What a leader reads and writes. Nothing may be written on a new one until its owner [allows](Action::Allow) it.
    Replication = 1,
}

impl Plane {
    /// Both of them, in order.
    pub const ALL: [Self; 2] = [Self::Background, Self::Replication];
}

/// What has happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Input {
    /// A connection to a peer is there: a new one, after which nothing comes of an earlier one.
    Connected {
        /// The peer that it leads to.
        peer: usize,
        /// Which one of the two.
        plane: Plane,
    },
    /// A connection is lost, or a request on it has failed: nothing is known of all that was under way.
    Lost {
        /// The peer that it leads to.
        peer: usize,
        /// Which one of the two.
        plane: Plane,
    },
    /// What the oldest READ on a connection has brought.
    Read {
        /// The peer that is read from.
        peer: usize,
        /// On which connection.
        plane: Plane,
        /// As many bytes as were asked for.
        bytes: Vec<u8>,
    },
    /// The oldest [update](Action::Update) of a peer is durable there.
    Durable {
        /// The peer that it is about.
        peer: usize,
    },
    /// What the oldest WRITE on a connection has brought is visible.
    Written {
        /// The peer that it is about.
        peer: usize,
        /// On which connection.
        plane: Plane,
    },
    /// Nobody else can write to the zone any more, and nothing is under way to it.
    Revoked,
    /// This peer can write to the zone, on the connection that it has now, and nothing is under way to it on an earlier one.
    Allowed {
        /// The peer that has it.
        peer: usize,
    },
    /// Somebody wants a value in the log.
    Propose {
        /// By which what comes of it is told.
        token: u64,
        /// The value that was proposed.
        value: Vec<u8>,
    },
    /// Somebody wants to read the state as it is now.
    Confirm {
        /// By which it is told that the state can be read, or that it cannot.
        token: u64,
    },
    /// What the entries below an index have led to, as it was [asked for](Action::Snapshot).
    Snapshot {
        /// The index that it is for.
        index: u64,
        /// The state: at most [`Geometry::state_max`] bytes.
        state: Vec<u8>,
    },
    /// It may be time for something, or a peer may have written something.
    Timeout,
}

/// What is to be done, in the order in which it is said.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// READ from a peer's memory.
    Read {
        /// The peer that is read from.
        peer: usize,
        /// On which connection.
        plane: Plane,
        /// Where it begins.
        offset: u64,
        /// How many bytes.
        len: u32,
    },
    /// WRITE to a peer's memory.
    Write {
        /// The peer that it leads to.
        peer: usize,
        /// On which connection.
        plane: Plane,
        /// Where it begins.
        offset: u64,
        /// What is written there.
        bytes: Vec<u8>,
    },
    /// WRITE these on the replication plane, and make them durable, each before the next: by what a planner says for that peer, a FLUSH or a
    /// READ behind each WRITE. An acknowledgement alone says that they have arrived.
    Update {
        /// The peer that it leads to.
        peer: usize,
        /// What is written where.
        updates: Vec<(u64, Vec<u8>)>,
    },
    /// A connection is of no use any more: end it, and connect again.
    Reconnect {
        /// The peer that it leads to.
        peer: usize,
        /// Which one of the two.
        plane: Plane,
    },
    /// Take the right to write to the zone from everybody, and finish or reject what is under way to it; then say [`Input::Revoked`]. By
    /// the access flags of the QPs, or, where that does not succeed, by taking the QPs through RESET.
    Revoke,
    /// Give a peer the right to write to the zone, on the connection that it has now and on no earlier one of its own; then say [`Input::Allowed`].
    Allow {
        /// The peer that gets it.
        peer: usize,
    },
    /// An entry is decided, and is the next one to be applied.
    Apply {
        /// Its index in the log.
        index: u64,
        /// Its value; none where a leader had to fill a hole.
        value: Option<Vec<u8>>,
        /// By which it was proposed here, if the caller still waits for it.
        token: Option<u64>,
    },
    /// The state is this one now: entries below the index have led to it, and the next one that is applied has the index.
    Restore {
        /// The index that it is for.
        index: u64,
        /// The state at that index.
        state: Vec<u8>,
    },
    /// Say what the entries have led to that were applied until now: [`Input::Snapshot`].
    Snapshot {
        /// The index to say it with.
        index: u64,
    },
    /// What was decided before it was [asked](Input::Confirm) is applied here, whoever has led: what the state says from now on, nobody has been told
    /// anything to the contrary of.
    Confirmed {
        /// By which it was asked.
        token: u64,
    },
    /// A value was not proposed, and never will be; or nothing is known of whether the state can be read.
    Refuse {
        /// By which it was to be.
        token: u64,
        /// Why it was not.
        why: Refusal,
    },
    /// Nothing is known of a value: it may be decided, now or later, or not.
    Forget {
        /// By which it was proposed.
        token: u64,
    },
    /// The replica's own medium failed. It takes part in nothing any more; what it has acknowledged as durable may be on it when it is opened again.
    Stop,
}

/// Why a value is not proposed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// Another replica leads, as far as is known here.
    #[error("this replica does not lead; ask replica {leader:?}")]
    Elsewhere {
        /// Who is taken for the leader; none while nobody is.
        leader: Option<usize>,
    },
    /// So many values wait already, or so many readers.
    #[error("as many values wait as may; propose again when some of them are decided")]
    Busy,
    /// It has more bytes than a slot.
    #[error("the value is longer than a slot of the log")]
    TooLong,
}

/// How a replica behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// The time between two beats, and between two looks at a peer's.
    pub period: Duration,
    /// After so long a READ of a beat that has no answer counts against the peer.
    pub patience: Duration,
    /// How long the grants of others are waited for where a majority has come.
    pub grace: Duration,
    /// After so long without progress, though something is to be done, a leader rests.
    pub stuck: Duration,
    /// For how long, at first; twice as long each time, up to 16 times.
    pub rest: Duration,
    /// Updates under way to a follower, at most.
    pub depth: usize,
    /// Values that wait for room in the window, at most; and readers that wait for the next round of questions.
    pub waiting: usize,
}

impl Options {
    /// For beats at such a distance: a suspicion after 14 of them, which is what the paper's limits come to.
    #[must_use]
    pub const fn new(period: Duration) -> Self {
        Self {
            period,
            patience: period.saturating_mul(4),
            grace: period.saturating_mul(2),
            stuck: period.saturating_mul(100),
            rest: period.saturating_mul(60),
            depth: 16,
            waiting: 1024,
        }
    }
}

/// Numbers: of the terms of leaders, and of requests, which are those of a term and how often a peer was asked in it.
///
/// They are ordered by a counter, then by who asks, then by how often. Who asks a peer again, as its connection was made anew, asks with a higher
/// number of the same term, and no other term lies between two numbers of one.
pub(crate) mod number {
    const ASKED: u32 = 12;

    /// Nothing else that somebody has written into a word for one.
    pub(crate) const fn is_one(number: u64) -> bool {
        number >> 48 == 0
    }

    pub(crate) const fn term(counter: u64, who: usize) -> u64 {
        counter << 16 | (who as u64) << ASKED
    }

    /// The n-th request of a term; none are left behind the last one.
    pub(crate) const fn request(term: u64, n: u64) -> Option<u64> {
        if n >> ASKED == 0 { Some(term | n) } else { None }
    }

    pub(crate) const fn counter(number: u64) -> u64 {
        number >> 16
    }

    pub(crate) const fn who(number: u64) -> usize {
        (number >> ASKED & 15) as usize
    }

    pub(crate) const fn is_of_one_term(a: u64, b: u64) -> bool {
        a >> ASKED == b >> ASKED
    }
}
