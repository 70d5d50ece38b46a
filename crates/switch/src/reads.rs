//! Requests whose answers are packets of their own, and which answers to a READ have come.
//!
//! An answer to a READ is never coalesced with others, so here, and only here, there is state for each PSN: which replicas have answered, and what
//! the first of them has. A READ that the leader sends again begins anew, as the replicas carry it out again.

use std::collections::VecDeque;

use remanence_wire::Psn;

use crate::frame::Content;

/// Requests that a group keeps track of at a time: several times what a QP of real adapters may have under way.
pub(crate) const WAITS_MAX: usize = 64;
/// Packets of the answer to one READ.
pub(crate) const READ_PACKETS_MAX: u32 = 4096;

/// A request beyond what the leader was told, in the place at which its answer leaves.
#[derive(Debug)]
pub(crate) enum Wait {
    /// A FLUSH or an ATOMIC WRITE: its answer has no data, and says no more than an acknowledgement.
    Done(Psn),
    /// A READ, whose answer has data.
    Read(Read),
}

impl Wait {
    pub(crate) const fn first(&self) -> Psn {
        match self {
            Self::Done(psn) => *psn,
            Self::Read(read) => read.first,
        }
    }

    /// Up to where acknowledgements may go before it is answered.
    pub(crate) const fn before(&self) -> Psn {
        match self {
            Self::Done(psn) => psn.sub(1),
            Self::Read(read) => read.next.sub(1),
        }
    }

    fn overlaps(&self, first: Psn, count: u32) -> bool {
        match self {
            Self::Done(psn) => psn.in_window(first, count),
            Self::Read(read) => read.overlaps(first, count),
        }
    }
}

/// Takes away what is said again from `first` on, or was never true.
pub(crate) fn forget(waits: &mut VecDeque<Wait>, first: Psn, count: u32) {
    waits.retain(|wait| !wait.overlaps(first, count));
}

/// Puts a request into its place.
pub(crate) fn insert(waits: &mut VecDeque<Wait>, wait: Wait) {
    let at = waits.partition_point(|other| other.first().is_before(wait.first()));
    waits.insert(at, wait);
}

/// A READ, and what of its answer has come.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) first: Psn,
    /// Of the packets of the answer, the first that the leader has not got.
    pub(crate) next: Psn,
    votes: Vec<Vote>,
}

/// One packet of an answer.
#[derive(Clone, Copy, Default, Debug)]
struct Vote {
    /// A bit for each replica that has given it.
    seen: u32,
    /// What the first one gave.
    content: Content,
    /// Another one gave something else.
    differs: bool,
}

/// What a replica's packet makes of the answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// Not as many as are asked for have said the same yet.
    Few,
    /// As many have.
    Enough,
    /// Not all have.
    Differs,
    /// This one is the first to say something else.
    News,
}

impl Read {
    pub(crate) fn new(first: Psn, packets: u32) -> Self {
        Self { first, next: first, votes: vec![Vote::default(); packets as usize] }
    }

    const fn packets(&self) -> u32 {
        self.votes.len() as u32
    }

    pub(crate) const fn last(&self) -> Psn {
        self.first.add(self.packets() - 1)
    }

    /// Whether all of it was answered.
    pub(crate) fn is_over(&self) -> bool {
        self.next == self.last().next()
    }

    pub(crate) const fn contains(&self, psn: Psn) -> bool {
        psn.in_window(self.first, self.packets())
    }

    pub(crate) const fn overlaps(&self, first: Psn, count: u32) -> bool {
        self.contains(first) || self.first.in_window(first, count)
    }

    const fn at(&self, psn: Psn) -> usize {
        psn.sub(self.first.value()).value() as usize
    }

    /// Whether replicas have answered the next packet differently.
    pub(crate) fn next_differs(&self) -> bool {
        self.votes.get(self.at(self.next)).is_some_and(|vote| vote.differs)
    }

    /// A replica has answered one of its packets with this content. The same replica again changes nothing.
    pub(crate) fn hear(&mut self, psn: Psn, replica: usize, content: Content, enough: usize) -> Verdict {
        let at = self.at(psn);
        let vote = &mut self.votes[at];
        if vote.seen == 0 {
            vote.content = content;
        }
        let known = vote.seen >> replica & 1 != 0;
        vote.seen |= 1 << replica;
        if !known && vote.content != content {
            let news = !vote.differs;
            vote.differs = true;
            return if news { Verdict::News } else { Verdict::Differs };
        }
        match vote.seen.count_ones() as usize {
            _ if vote.differs || vote.content != content => Verdict::Differs,
            count if count >= enough => Verdict::Enough,
            _ => Verdict::Few,
        }
    }
}
