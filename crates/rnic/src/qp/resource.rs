//! Responder resources: what the responder remembers of READs, atomics, FLUSHes and ATOMIC WRITEs.
//!
//! Read first: IBA Vol 1, 9.7.4 (duplicates) and 9.7.5 (responses), Annex A19.
//!
//! Each such request takes an entry, and there are as many as the responder promised (`max_dest_rd_atomic`).
//! While it is *open* an entry is in the line of responses, which leave in the order of their PSNs. Afterwards it
//! stays as memory of what was answered, until a newer request needs its place: a duplicate atomic is answered
//! from there and not executed again.

use std::collections::VecDeque;

use remanence_wire::{Psn, Rkey};

use crate::memory::{FlushId, Placement};

/// What was asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Request {
    Read {
        va: u64,
        len: u32,
        rkey: Rkey,
    },
    CompareSwap {
        va: u64,
        rkey: Rkey,
        compare: u64,
        swap: u64,
    },
    FetchAdd {
        va: u64,
        rkey: Rkey,
        add: u64,
    },
    AtomicWrite {
        va: u64,
        rkey: Rkey,
        data: [u8; 8],
    },
    /// Which range it means is settled when the request comes, also where it names a whole memory region.
    Flush {
        va: u64,
        len: u64,
        rkey: Rkey,
        placement: Placement,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Progress {
    /// Behind a FLUSH, or behind a READ that is still being sent.
    Waiting,
    /// The memory is working on it.
    Flushing(FlushId),
    /// Executed; response packets from `next` to `end` are to be sent, the first of them was or is at `start`.
    Answering { start: Psn, next: Psn, end: Psn },
    /// Answered; kept for duplicates.
    Closed,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Resource {
    pub(crate) request: Request,
    pub(crate) progress: Progress,
    pub(crate) first: Psn,
    pub(crate) last: Psn,
    /// Where `first` is among all PSNs of the connection.
    at: u64,
    /// What an atomic found.
    pub(crate) original: u64,
    /// It was answered before, and is open for a duplicate only.
    replay: bool,
}

impl Resource {
    /// Executed: its whole response is due.
    pub(crate) const fn answer(&mut self) {
        self.progress = Progress::Answering { start: self.first, next: self.first, end: self.last };
    }

    /// Whether it was answered before, and is open for a duplicate only.
    pub(crate) const fn is_replay(&self) -> bool {
        self.replay
    }

    /// The number of its response packets.
    pub(crate) const fn psns(&self) -> u32 {
        super::distance(self.first, self.last) + 1
    }
}

#[derive(Debug, Default)]
pub(crate) struct Resources {
    ring: VecDeque<Resource>,
    /// PSNs that requests took since the connection began. PSNs come again after 2^24 packets, and an entry may be older
    /// than that, if its place was not needed: only by its position is it known from a younger request's.
    taken: u64,
    open: usize,
    max: usize,
}

impl Resources {
    pub(crate) fn reset(&mut self, max: u8) {
        self.ring.clear();
        self.open = 0;
        self.taken = 0;
        self.max = usize::from(max);
    }

    /// A request packet was taken that needs no entry.
    #[inline]
    pub(crate) const fn pass(&mut self) {
        self.taken += 1;
    }

    /// Changes the number of entries (in SQD). What is remembered stays until its place is needed.
    pub(crate) fn resize(&mut self, max: u8) {
        self.max = usize::from(max);
    }

    /// Whether nothing waits for its response.
    #[inline]
    pub(crate) const fn is_quiet(&self) -> bool {
        self.open == 0
    }

    /// Whether one more request can be taken: there is a free entry, or the oldest was answered. (If it is open
    /// again for a duplicate, the peer that sends a new request has its answer.) Where there are fewer places than there
    /// were, so must be all that are in the way: one that was not answered yet never loses its place.
    pub(crate) fn has_room(&self) -> bool {
        let in_the_way = (self.ring.len() + 1).saturating_sub(self.max);
        self.max > 0
            && self
                .ring
                .iter()
                .take(in_the_way)
                .all(|entry| entry.progress == Progress::Closed || entry.replay)
    }

    /// Takes a request, for which there must be room.
    pub(crate) fn push(&mut self, request: Request, first: Psn, last: Psn) {
        debug_assert!(self.has_room());
        while self.ring.len() >= self.max
            && let Some(oldest) = self.ring.pop_front()
        {
            self.open -= usize::from(oldest.progress != Progress::Closed);
        }
        let (progress, at) = (Progress::Waiting, self.taken);
        let entry = Resource { request, progress, first, last, at, original: 0, replay: false };
        self.taken += u64::from(entry.psns());
        self.ring.push_back(entry);
        self.open += 1;
    }

    /// The entry that a duplicate request means: one that is before `epsn`, which comes next.
    pub(crate) fn find(&self, psn: Psn, epsn: Psn) -> Option<usize> {
        let at = self.taken.checked_sub(super::distance(psn, epsn).into())?;
        self.ring.iter().position(|entry| (entry.at..entry.at + u64::from(entry.psns())).contains(&at))
    }

    pub(crate) fn get(&self, index: usize) -> &Resource {
        &self.ring[index]
    }

    pub(crate) fn get_mut(&mut self, index: usize) -> &mut Resource {
        &mut self.ring[index]
    }

    pub(crate) fn len(&self) -> usize {
        self.ring.len()
    }

    /// Opens an entry to answer `start` to `end` again. If it is being answered already, that goes on afterwards.
    pub(crate) fn reopen(&mut self, index: usize, start: Psn, end: Psn) {
        let entry = &mut self.ring[index];
        let end = match entry.progress {
            Progress::Answering { end: old, .. } if end.is_before(old) => old,
            Progress::Closed => {
                self.open += 1;
                entry.replay = true;
                end
            }
            Progress::Answering { .. } | Progress::Waiting | Progress::Flushing(_) => end,
        };
        entry.progress = Progress::Answering { start, next: start, end };
    }

    pub(crate) fn close(&mut self, index: usize) {
        debug_assert!(self.ring[index].progress != Progress::Closed);
        self.ring[index].progress = Progress::Closed;
        self.open -= 1;
    }

    /// Closes everything: the QP refused a request or went to the error state.
    pub(crate) fn close_from(&mut self, index: usize) {
        for at in index..self.ring.len() {
            if self.ring[at].progress != Progress::Closed {
                self.close(at);
            }
        }
    }

    /// The first open entry: the one whose response must leave next.
    pub(crate) fn front(&self) -> Option<usize> {
        if self.open == 0 {
            return None;
        }
        self.ring.iter().position(|entry| entry.progress != Progress::Closed)
    }

    pub(crate) fn flushing(&self, id: FlushId) -> Option<usize> {
        if self.open == 0 {
            return None;
        }
        self.ring.iter().position(|entry| entry.progress == Progress::Flushing(id))
    }

    /// Panics if the count of open entries is wrong, or PSNs are out of order.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn audit(&self) {
        let open = self.ring.iter().filter(|entry| entry.progress != Progress::Closed).count();
        assert_eq!(open, self.open);
        for (one, next) in self.ring.iter().zip(self.ring.iter().skip(1)) {
            assert!(one.at + u64::from(one.psns()) <= next.at);
        }
    }

    /// Bytes on the heap, for the memory account.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.ring.capacity() * size_of::<Resource>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(len: u32) -> Request {
        Request::Read { va: 0, len, rkey: Rkey(1) }
    }

    #[test]
    fn a_piece_asked_for_again_does_not_cut_the_answer_short() {
        let mut resources = Resources::default();
        resources.reset(1);
        let psn = Psn::new;
        resources.push(read(9000), psn(0xff_ffff), psn(7));
        resources.get_mut(0).progress =
            Progress::Answering { start: psn(0xff_ffff), next: psn(3), end: psn(7) };
        resources.reopen(0, psn(0), psn(1));
        assert_eq!(
            resources.get(0).progress,
            Progress::Answering { start: psn(0), next: psn(0), end: psn(7) }
        );
        resources.close(0);
        resources.reopen(0, psn(0), psn(1));
        assert_eq!(
            resources.get(0).progress,
            Progress::Answering { start: psn(0), next: psn(0), end: psn(1) }
        );
        resources.audit();
    }

    #[test]
    fn closed_entries_stay_until_their_place_is_needed() {
        let mut resources = Resources::default();
        resources.reset(2);
        let psn = Psn::new;
        resources.push(read(1), psn(10), psn(10));
        resources.push(read(9000), psn(11), psn(13));
        let find = |resources: &Resources, at| resources.find(psn(at), psn(10).add(resources.taken as u32));
        assert!(!resources.has_room());
        assert_eq!(resources.front(), Some(0));
        resources.close(0);
        assert!(resources.has_room());
        assert_eq!(resources.front(), Some(1));
        assert_eq!(find(&resources, 10), Some(0));
        assert_eq!(find(&resources, 13), Some(1));
        assert_eq!(find(&resources, 14), None);
        resources.push(read(1), psn(14), psn(14));
        assert_eq!(find(&resources, 10), None);
        resources.close(0);
        resources.close(1);
        resources.reopen(0, psn(11), psn(11));
        assert!(resources.has_room(), "a replay does not stand in the way");
        resources.push(read(1), psn(15), psn(15));
        assert_eq!(find(&resources, 11), None);
        resources.close_from(0);
        assert!(resources.is_quiet());
        resources.reopen(0, psn(14), psn(14));
        assert_eq!(
            resources.get(0).progress,
            Progress::Answering { start: psn(14), next: psn(14), end: psn(14) }
        );
        assert_eq!(resources.front(), Some(0));
    }

    #[test]
    fn an_entry_is_not_taken_for_one_a_lap_of_psns_later() {
        let mut resources = Resources::default();
        resources.reset(4);
        let psn = Psn::new;
        let at = psn(0xff_fffe);
        for lap in 0..2 {
            resources.push(read(1), at, at);
            assert_eq!(resources.find(at, at.next()), Some(lap));
            for _ in 1..1 << 24 {
                resources.pass();
            }
            assert_eq!(resources.find(at, at), None, "the one that comes next is not here yet");
            resources.close(lap);
        }
        resources.audit();
    }

    #[test]
    fn fewer_places_take_none_from_what_is_not_answered() {
        let mut resources = Resources::default();
        resources.reset(3);
        let psn = Psn::new;
        for n in 0..3 {
            resources.push(read(1), psn(n), psn(n));
        }
        resources.resize(1);
        resources.close(0);
        assert!(!resources.has_room(), "two are still open, and there is one place");
        resources.close(1);
        assert!(!resources.has_room());
        resources.close(2);
        assert!(resources.has_room());
        resources.push(read(1), psn(3), psn(3));
        assert_eq!((resources.len(), resources.front()), (1, Some(0)));
        resources.close(0);
        resources.resize(0);
        assert!(!resources.has_room(), "none at all");
    }
}
