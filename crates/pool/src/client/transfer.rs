//! One blob on its way to one server: what to ask for, write and flush next. Pure.
//!
//! ```text
//! Opening ──reserved──► Streaming ──end of data, all flushed──► Ready ──commit──► Committing ──► Done
//! ```
//!
//! Data goes out as soon as there is room for it; room is asked for ahead, so that a stream of unknown length does
//! not wait a round trip for each extent. Every [`FLUSH_EVERY`] bytes a FLUSH follows, so that the medium writes
//! while the network sends. The order on the QP is the order of the acts: a FLUSH covers the WRITEs before it.

use std::collections::VecDeque;

use crate::blob::{BlobName, Digest, Version};
use crate::proto::{RemoteExtent, Request};

/// Bytes between two FLUSHes: large enough that a disk is asked rarely, small enough that it starts early.
pub const FLUSH_EVERY: u64 = 8 << 20;

/// The first room asked for when the length is not known; each further one is twice as large.
pub const FIRST_ROOM: u64 = 1 << 20;

/// The most room asked for at once when the length is not known.
pub const MAX_ROOM: u64 = 64 << 20;

/// What to do next, in this order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Act {
    /// Send this request; its reply comes back to the leg.
    Ask(Request),
    /// WRITE a piece of a chunk; its completion is [`BlobTransfer::written`].
    Write {
        /// The chunk's place in the ring.
        slot: u32,
        /// Where in it the piece begins.
        offset: u32,
        /// Bytes of the piece.
        len: u32,
        /// Address at the server that the piece goes to.
        addr: u64,
        /// The rkey that opens the server's memory there.
        rkey: u32,
    },
    /// FLUSH; its completion is [`BlobTransfer::flushed`].
    Flush {
        /// Address at the server of the first byte to flush.
        addr: u64,
        /// How many bytes to flush.
        len: u64,
        /// The rkey that opens the server's memory there.
        rkey: u32,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Opening,
    Streaming,
    Committing,
    Done(Version),
}

/// The end of the data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct End {
    /// Bytes that the blob has in all.
    pub len: u64,
    /// The digest of all these bytes.
    pub digest: Digest,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Chunk {
    slot: u32,
    at: u32,
    len: u32,
}

/// A blob on its way to one server: the module says how.
#[derive(Debug)]
pub struct BlobTransfer {
    state: State,
    reservation: u64,
    /// How many bytes the blob will have, as far as that is known.
    expected: Option<u64>,
    /// Memory of the server that nothing was written to yet.
    room: VecDeque<RemoteExtent>,
    room_bytes: u64,
    granted: u64,
    /// A request for room is on its way.
    asking: bool,
    next_room: u64,
    /// Chunks of which no WRITE was posted, or not all.
    unposted: VecDeque<Chunk>,
    unposted_bytes: u64,
    /// WRITEs that have not completed: their slot, and whether it was the chunk's last piece.
    posted: VecDeque<(u32, bool)>,
    /// Memory of the server that was written to and not flushed.
    unflushed: Vec<RemoteExtent>,
    unflushed_bytes: u64,
    flushes: u32,
    end: Option<End>,
}

impl BlobTransfer {
    /// A leg for a blob of that name; `expected` is its length if it is known.
    #[must_use]
    pub fn open(name: BlobName, expected: Option<u64>) -> (Self, Act) {
        let first = expected.unwrap_or(FIRST_ROOM);
        let this = Self {
            state: State::Opening,
            reservation: 0,
            expected,
            room: VecDeque::new(),
            room_bytes: 0,
            granted: 0,
            asking: true,
            next_room: FIRST_ROOM * 2,
            unposted: VecDeque::new(),
            unposted_bytes: 0,
            posted: VecDeque::new(),
            unflushed: Vec::new(),
            unflushed_bytes: 0,
            flushes: 0,
            end: None,
        };
        (this, Act::Ask(Request::Reserve { name, bytes: first, at_least: expected.unwrap_or(1) }))
    }

    /// Whether the server has reserved.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.state != State::Opening
    }

    /// Whether its commit was asked for, and nothing else is.
    #[must_use]
    pub fn is_committing(&self) -> bool {
        self.state == State::Committing
    }

    /// The durable version, once it is.
    #[must_use]
    pub const fn done(&self) -> Option<Version> {
        match self.state {
            State::Done(version) => Some(version),
            _ => None,
        }
    }

    /// Slots that this leg still needs; they are free for it once it is given up.
    pub fn slots(&self) -> impl Iterator<Item = u32> {
        let posted = self.posted.iter().filter(|(_, last)| *last).map(|(slot, _)| *slot);
        posted.chain(self.unposted.iter().map(|chunk| chunk.slot))
    }

    /// The server reserved.
    pub fn reserved(&mut self, reservation: u64, extents: &[RemoteExtent]) {
        self.state = State::Streaming;
        self.reservation = reservation;
        self.extended(extents);
    }

    /// The server gave more room.
    pub fn extended(&mut self, extents: &[RemoteExtent]) {
        self.asking = false;
        for extent in extents {
            // Whatever a server says that it gave.
            self.room_bytes = self.room_bytes.saturating_add(extent.len);
            self.granted = self.granted.saturating_add(extent.len);
            self.room.push_back(*extent);
        }
    }

    /// A chunk of data is in the ring.
    pub fn chunk(&mut self, slot: u32, len: u32) {
        self.unposted.push_back(Chunk { slot, at: 0, len });
        self.unposted_bytes += u64::from(len);
    }

    /// There is no more data.
    pub fn end(&mut self, end: End) {
        self.end = Some(end);
    }

    /// A WRITE completed; returns the slot if the leg needs it no longer.
    pub fn written(&mut self) -> Option<u32> {
        let (slot, last) =
            self.posted.pop_front().expect("WRITEs complete in the order in which they were posted");
        last.then_some(slot)
    }

    /// A FLUSH completed.
    pub fn flushed(&mut self) {
        self.flushes -= 1;
    }

    /// The commit is durable.
    pub fn committed(&mut self, version: Version) {
        self.state = State::Done(version);
    }

    /// Writes no more: the leg is given up. Returns the slots that it will not need; those of WRITEs under way come
    /// back by [`BlobTransfer::written`].
    pub fn stop(&mut self) -> Vec<u32> {
        self.room.clear();
        self.unposted_bytes = 0;
        self.unflushed.clear();
        self.state = State::Committing;
        // Of a chunk that was posted in part, what was the last piece so far is the last one now.
        if let Some(begun) = self.unposted.front().filter(|chunk| chunk.at > 0).map(|chunk| chunk.slot)
            && let Some(piece) = self.posted.back_mut().filter(|(slot, _)| *slot == begun)
        {
            piece.1 = true;
            self.unposted.pop_front();
        }
        self.unposted.drain(..).map(|chunk| chunk.slot).collect()
    }

    /// Whether no WRITE and no FLUSH is under way.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.posted.is_empty() && self.flushes == 0
    }

    /// The reservation, if there is one.
    #[must_use]
    pub fn reservation(&self) -> Option<u64> {
        (self.state != State::Opening).then_some(self.reservation)
    }

    /// Whether all data is durable at the server, so that [`BlobTransfer::commit`] may follow.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.state == State::Streaming
            && self.end.is_some()
            && self.unposted.is_empty()
            && self.posted.is_empty()
            && self.unflushed.is_empty()
            && self.flushes == 0
    }

    /// Asks for the commit, once the blob [is ready](BlobTransfer::is_ready).
    pub fn commit(&mut self, version: Version) -> Act {
        assert!(self.is_ready(), "a commit before the data is durable: {self:?}");
        self.state = State::Committing;
        let End { len, digest } = self.end.expect("ready");
        Act::Ask(Request::Commit { reservation: self.reservation, version, len, digest })
    }

    /// What can be done now, at most `budget` work requests.
    pub fn step(&mut self, budget: usize, acts: &mut Vec<Act>) {
        if self.state != State::Streaming {
            return;
        }
        let limit = acts.len() + budget;
        while acts.len() < limit {
            if self.unflushed_bytes >= FLUSH_EVERY || (self.all_posted() && !self.unflushed.is_empty()) {
                self.flush_one(acts);
            } else if !self.write_one(acts) {
                break;
            }
        }
        self.ask_for_room(acts);
    }

    fn all_posted(&self) -> bool {
        self.end.is_some() && self.unposted.is_empty()
    }

    /// Posts the next piece: as much of the chunk as fits into the extent.
    fn write_one(&mut self, acts: &mut Vec<Act>) -> bool {
        let (Some(chunk), Some(extent)) = (self.unposted.front_mut(), self.room.front_mut()) else {
            return false;
        };
        let len = u64::from(chunk.len - chunk.at).min(extent.len);
        let last = u64::from(chunk.len - chunk.at) == len;
        let piece = RemoteExtent { len, ..*extent };
        acts.push(Act::Write {
            slot: chunk.slot,
            offset: chunk.at,
            len: len as u32,
            addr: piece.addr,
            rkey: piece.rkey,
        });
        self.posted.push_back((chunk.slot, last));
        chunk.at += len as u32;
        extent.addr += len;
        extent.len -= len;
        self.room_bytes -= len;
        self.unposted_bytes -= len;
        if extent.len == 0 {
            self.room.pop_front();
        }
        if last {
            self.unposted.pop_front();
        }
        self.unflushed_bytes += len;
        match self.unflushed.last_mut() {
            Some(range) if range.rkey == piece.rkey && range.addr + range.len == piece.addr => {
                range.len += len
            }
            _ => self.unflushed.push(piece),
        }
        true
    }

    fn flush_one(&mut self, acts: &mut Vec<Act>) {
        let range = self.unflushed.remove(0);
        self.unflushed_bytes -= range.len;
        self.flushes += 1;
        acts.push(Act::Flush { addr: range.addr, len: range.len, rkey: range.rkey });
    }

    /// Keeps room ahead of the data. A known length was asked for at once, and is asked for again only if the server
    /// gave it in parts; of an unknown one, half of the last room stays in reserve.
    fn ask_for_room(&mut self, acts: &mut Vec<Act>) {
        if self.asking {
            return;
        }
        let missing = self.unposted_bytes.saturating_sub(self.room_bytes);
        let bytes = match (self.expected, self.end) {
            (_, Some(_)) => missing,
            (Some(expected), None) if self.granted < expected => expected - self.granted,
            // A source that is longer than it said goes on as one that said nothing.
            (Some(_), None) if missing > 0 => self.room_to_ask(missing),
            (None, None) if self.room_bytes < self.next_room / 4 || missing > 0 => self.room_to_ask(missing),
            _ => 0,
        };
        if bytes > 0 {
            self.asking = true;
            let at_least = missing.max(1);
            acts.push(Act::Ask(Request::Extend { reservation: self.reservation, bytes, at_least }));
        }
    }

    fn room_to_ask(&mut self, missing: u64) -> u64 {
        let bytes = self.next_room.max(missing);
        self.next_room = (self.next_room * 2).min(MAX_ROOM);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn name() -> BlobName {
        BlobName::new("a").expect("fair")
    }

    fn extent(addr: u64, len: u64, rkey: u32) -> RemoteExtent {
        RemoteExtent { addr, len, rkey }
    }

    const DIGEST: Digest = Digest([7; 32]);

    #[test]
    fn a_small_blob_is_reserved_written_flushed_and_committed() {
        let (mut leg, ask) = BlobTransfer::open(name(), Some(100));
        assert_eq!(ask, Act::Ask(Request::Reserve { name: name(), bytes: 100, at_least: 100 }));
        leg.chunk(3, 100);
        leg.end(End { len: 100, digest: DIGEST });
        let mut acts = Vec::new();
        leg.step(10, &mut acts);
        assert_eq!(acts, [], "no room yet");
        leg.reserved(9, &[extent(4096, 4096, 77)]);
        leg.step(10, &mut acts);
        let write = Act::Write { slot: 3, offset: 0, len: 100, addr: 4096, rkey: 77 };
        assert_eq!(acts, [write, Act::Flush { addr: 4096, len: 100, rkey: 77 }]);
        assert!(!leg.is_ready());
        assert_eq!(leg.written(), Some(3));
        assert!(!leg.is_ready(), "written is not durable");
        leg.flushed();
        assert!(leg.is_ready() && !leg.is_committing());
        let version = Version { counter: 5, writer: 2 };
        let commit = Request::Commit { reservation: 9, version, len: 100, digest: DIGEST };
        assert_eq!(leg.commit(version), Act::Ask(commit));
        assert_eq!((leg.done(), leg.is_ready(), leg.is_committing()), (None, false, true));
        leg.committed(version);
        assert_eq!(leg.done(), Some(version));
    }

    #[test]
    fn nothing_is_written_for_an_empty_blob() {
        let (mut leg, _) = BlobTransfer::open(name(), Some(0));
        leg.end(End { len: 0, digest: DIGEST });
        leg.reserved(1, &[]);
        let mut acts = Vec::new();
        leg.step(10, &mut acts);
        assert_eq!((acts, leg.is_ready()), (vec![], true));
    }

    #[test]
    fn the_budget_is_kept_and_the_rest_comes_later() {
        let (mut leg, _) = BlobTransfer::open(name(), Some(3000));
        leg.reserved(1, &[extent(0, 4096, 1)]);
        (0..3).for_each(|slot| leg.chunk(slot, 1000));
        let mut acts = Vec::new();
        leg.step(2, &mut acts);
        assert_eq!(acts.len(), 2);
        leg.end(End { len: 3000, digest: DIGEST });
        leg.step(2, &mut acts);
        assert_eq!(acts.len(), 4);
        assert_eq!(acts[3], Act::Flush { addr: 0, len: 3000, rkey: 1 });
        assert_eq!(leg.slots().collect::<Vec<_>>(), [0, 1, 2]);
    }

    #[test]
    fn a_leg_that_is_given_up_gives_every_slot_back_once() {
        for completed_first in [false, true] {
            let (mut leg, _) = BlobTransfer::open(name(), Some(9000));
            leg.reserved(1, &[extent(0, 4096, 1)]);
            (0..3).for_each(|slot| leg.chunk(slot, 3000));
            let mut acts = Vec::new();
            leg.step(10, &mut acts);
            assert_eq!(acts.iter().filter(|a| matches!(a, Act::Write { .. })).count(), 2, "chunk 1 in part");
            let mut back = Vec::new();
            if completed_first {
                back.extend([leg.written(), leg.written()].into_iter().flatten());
            }
            assert_eq!(leg.slots().count() + back.len(), 3);
            back.extend(leg.stop());
            while !leg.is_idle() {
                back.extend(leg.written());
            }
            back.sort_unstable();
            assert_eq!(back, [0, 1, 2]);
        }
    }

    proptest! {
        /// Whatever chunks come, however the server grants room: each byte is written once, in order, into granted
        /// room, every written byte is flushed by a later FLUSH, and the leg gets ready.
        #[test]
        fn every_byte_is_written_once_and_flushed(
            chunks in prop::collection::vec(1_u32..3_000_000, 0..30),
            known in any::<bool>(),
            grants in prop::collection::vec(1_u64..800, 1..20),
            budget in 1_usize..9,
        ) {
            let total: u64 = chunks.iter().map(|c| u64::from(*c)).sum();
            let (mut leg, first) = BlobTransfer::open(name(), known.then_some(total));
            let (mut asked, mut next_addr, mut rkey, mut opened) = (VecDeque::from([first]), 0_u64, 0, false);
            let mut granted = VecDeque::new();
            let (mut written, mut unflushed) = (0_u64, Vec::new());
            let (mut pieces, mut slots) = (Vec::new(), Vec::new());
            let (mut grants, mut chunks) = (grants.into_iter().cycle(), chunks.into_iter().enumerate());
            let mut idle = 0;
            while !leg.is_ready() {
                idle += 1;
                prop_assert!(idle < 200_000, "stuck: {leg:?}");
                match chunks.next() {
                    Some((slot, len)) => leg.chunk(slot as u32, len),
                    None => leg.end(End { len: total, digest: DIGEST }),
                }
                // The server gives part of what was asked for, in one or two pieces.
                if let Some(Act::Ask(request)) = asked.pop_front() {
                    let bytes = match request {
                        Request::Reserve { bytes, .. } | Request::Extend { bytes, .. } => bytes,
                        other => panic!("{other:?}"),
                    };
                    let mut extents = Vec::new();
                    let mut left = bytes.min(grants.next().expect("cycle") * 4096);
                    while left > 0 && extents.len() < 2 {
                        let len = left.min(grants.next().expect("cycle") * 4096);
                        rkey += 1;
                        extents.push(extent(next_addr, len, rkey));
                        next_addr += len + 4096;
                        left -= len;
                    }
                    granted.extend(extents.iter().copied());
                    if opened { leg.extended(&extents) } else { leg.reserved(1, &extents) }
                    opened = true;
                }
                let mut acts = Vec::new();
                leg.step(budget, &mut acts);
                let requests = acts.iter().filter(|a| matches!(a, Act::Ask(_))).count();
                prop_assert!(requests <= 1 && acts.len() - requests <= budget);
                for act in acts {
                    match act {
                        Act::Ask(_) => {
                            prop_assert!(asked.is_empty(), "one request for room at a time");
                            asked.push_back(act);
                        }
                        Act::Write { slot, len, addr, rkey, .. } => {
                            let room: &mut RemoteExtent = granted.front_mut().expect("room");
                            prop_assert_eq!((addr, rkey), (room.addr, room.rkey));
                            prop_assert!(u64::from(len) <= room.len && len > 0);
                            room.addr += u64::from(len);
                            room.len -= u64::from(len);
                            if room.len == 0 {
                                granted.pop_front();
                            }
                            written += u64::from(len);
                            unflushed.push((addr, addr + u64::from(len)));
                            pieces.push(slot);
                            slots.extend(leg.written());
                        }
                        Act::Flush { addr, len, .. } => {
                            let before: u64 = unflushed.iter().map(|(a, b)| b - a).sum();
                            unflushed.retain(|(a, b)| *a < addr || *b > addr + len);
                            let after: u64 = unflushed.iter().map(|(a, b)| b - a).sum();
                            prop_assert_eq!(before - after, len, "a FLUSH covers what was written before it");
                            leg.flushed();
                        }
                    }
                }
            }
            prop_assert_eq!(written, total);
            pieces.dedup();
            prop_assert_eq!(slots, pieces, "each slot comes back once, after its last piece");
            prop_assert!(unflushed.is_empty());
        }
    }
}
