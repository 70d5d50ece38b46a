//! What an RNIC has received, on its way to where it is durable: for those who post work requests one by one and wait for the completions
//! that RC gives them, as recipes of persistence do (`persist::recipe`).
//!
//! A word goes from the RNIC's buffer to the IIO, where it is visible, and from there past the cache to the memory controller, or with DDIO into the
//! cache, each when it likes. What the RNIC has is gone with the power or the connection; what the IIO and the cache have survives as
//! the medium's domain says. The rules are those of `persist/src/check/machine.rs`, where they are explored; here they are kept for as long as a
//! run goes on, in memory that is used again and again.

use std::collections::VecDeque;
use std::ops::Range;

use remanence_persist::recipe::Flush;
use remanence_pmem::{Medium as _, PersistenceDomain};

use super::disk::Disk;
use super::wire::Answer;
use crate::rng::Rng;

/// Bytes that are never torn.
pub(super) const WORD: usize = 8;

/// A work request that is posted.
#[derive(Clone, Debug)]
pub(crate) enum Verb {
    /// A WRITE of some bytes to a place.
    Write { at: u64, bytes: Vec<u8> },
    /// An ATOMIC WRITE, of one word.
    Atomic { at: u64, bytes: Vec<u8> },
    /// A WRITE with immediate, of which the process is told these bytes.
    WriteImm { at: u64, bytes: Vec<u8>, tells: Vec<u8> },
    /// A SEND into the next receive buffer.
    Send { bytes: Vec<u8> },
    /// A FLUSH, or the READ that stands in for it.
    Flush(Flush),
}

/// What an end lets the other one do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Receives {
    /// What arrives goes to the cache.
    pub(crate) ddio: bool,
    /// Where what is flushed is safe.
    pub(crate) domain: PersistenceDomain,
    /// How many receive buffers there are.
    pub(crate) count: u64,
    /// Where they lie on the disk, and how long each is; `None`: in memory that is lost with its process.
    pub(crate) on_disk: Option<(u64, u64)>,
    /// What decides which word moves next.
    pub(crate) salt: u64,
}

/// A work request that has arrived.
#[derive(Debug)]
struct Arrived {
    verb: Verb,
    /// Words that are not visible yet, and where they go.
    words: Vec<(u64, [u8; WORD])>,
    /// It has no receive buffer yet, and needs one.
    waits: bool,
    /// It is visible, or was executed.
    is_done: bool,
    /// It is completed for whoever posted it.
    is_told: bool,
}

impl Arrived {
    const fn is_posted(&self) -> bool {
        matches!(self.verb, Verb::Write { .. } | Verb::WriteImm { .. } | Verb::Send { .. })
    }

    /// What it puts into a receive buffer.
    fn message(&self) -> Option<&[u8]> {
        match &self.verb {
            Verb::Send { bytes } => Some(bytes),
            Verb::WriteImm { tells, .. } => Some(tells),
            _ => None,
        }
    }
}

/// What may happen next.
#[derive(Clone, Copy)]
enum Move {
    /// A word of this one becomes visible.
    Visible(usize),
    /// This one is executed.
    Execute(usize),
    /// A word leaves the IIO.
    Leave,
}

#[derive(Debug, Default)]
pub(super) struct Stages {
    receives: Option<Receives>,
    rng: Option<Rng>,
    arrived: VecDeque<Arrived>,
    /// Words in the IIO's write buffer.
    iio: Vec<u64>,
    /// What has become visible since the last FLUSH to persistence.
    unflushed: Vec<Range<u64>>,
    /// Receive buffers that were used, and those that were given.
    used: u64,
    given: u64,
    /// Messages that the process is to be told of.
    messages: VecDeque<Vec<u8>>,
    /// The medium has failed: whoever waits for a completion is told so in its place.
    failed: bool,
}

fn words(at: u64, bytes: &[u8]) -> Vec<(u64, [u8; WORD])> {
    let word = |(n, word): (usize, &[u8])| (at + (n * WORD) as u64, word.try_into().expect("whole words"));
    bytes.chunks(WORD).enumerate().map(word).collect()
}

/// Copies bytes as a processor does, a word at a time.
pub(super) fn copy(disk: &Disk, at: u64, bytes: &[u8]) {
    words(at, bytes).into_iter().for_each(|(at, word)| disk.write(at, &word));
}

impl Stages {
    /// The other end may post work requests from now on.
    pub(super) fn let_in(&mut self, receives: Receives) {
        self.rng = Some(Rng::new(receives.salt, 22));
        self.given = receives.count;
        self.receives = Some(receives);
    }

    /// A receive buffer is given back.
    pub(super) const fn repost(&mut self) {
        self.given += 1;
    }

    pub(super) fn take(&mut self, verb: Verb) {
        let words = match &verb {
            Verb::Write { at, bytes } | Verb::Atomic { at, bytes } | Verb::WriteImm { at, bytes, .. } => {
                words(*at, bytes)
            }
            Verb::Send { .. } | Verb::Flush(_) => Vec::new(),
        };
        let waits = matches!(verb, Verb::WriteImm { .. } | Verb::Send { .. });
        self.arrived.push_back(Arrived { verb, words, waits, is_done: false, is_told: false });
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// What may happen next to the work requests: posted ones in their order, past the others; those when everything before them is done.
    fn moves(&self) -> Vec<Move> {
        let mut moves = Vec::new();
        if self.failed {
            // What comes behind an operation that failed is not carried out.
            return moves;
        }
        if !self.iio.is_empty() {
            moves.push(Move::Leave);
        }
        let (mut posted, mut all) = (true, true);
        for (n, one) in self.arrived.iter().enumerate().filter(|(_, one)| !one.is_done) {
            if one.is_posted() {
                if posted && !(one.waits && self.used == self.given) {
                    moves.push(Move::Visible(n));
                }
                posted = false;
            } else if all {
                moves.push(Move::Execute(n));
            }
            all = false;
            if !posted {
                break;
            }
        }
        moves
    }

    pub(super) fn has_steps(&self) -> bool {
        self.receives.is_some() && !self.moves().is_empty()
    }

    /// One of the things that may happen next.
    pub(super) fn step(&mut self, disk: &Disk) {
        let (Some(receives), Some(mut rng)) = (self.receives, self.rng.take()) else { return };
        match rng.pick(&self.moves()) {
            Move::Leave => {
                let at = self.iio.swap_remove(rng.index(self.iio.len()));
                let past = !receives.ddio || rng.one_in(4);
                self.failed |= !Self::leaves(at, past, receives.domain, disk);
            }
            Move::Visible(n) => self.becomes_visible(n, receives, &mut rng, disk),
            Move::Execute(n) => self.execute(n, receives, disk),
        }
        self.rng = Some(rng);
    }

    /// A word leaves the IIO. The memory controller is in the domain of ADR, and the cache is not. Whether it came to where it goes.
    fn leaves(at: u64, past: bool, domain: PersistenceDomain, disk: &Disk) -> bool {
        !past || domain != PersistenceDomain::Adr || disk.persist_alone(at..at + WORD as u64).is_ok()
    }

    fn becomes_visible(&mut self, n: usize, receives: Receives, rng: &mut Rng, disk: &Disk) {
        let one = &mut self.arrived[n];
        if std::mem::take(&mut one.waits) {
            let buffer = self.used % receives.count;
            self.used += 1;
            if let (Verb::Send { bytes }, Some((base, len))) = (&one.verb, receives.on_disk) {
                one.words = words(base + buffer * len, bytes);
            }
        }
        if !one.words.is_empty() {
            let (at, word) = one.words.swap_remove(rng.index(one.words.len()));
            disk.write(at, &word);
            self.iio.push(at);
            self.unflushed.push(at..at + WORD as u64);
        }
        if one.words.is_empty() {
            one.is_done = true;
            self.messages.extend(one.message().map(<[u8]>::to_vec));
            self.forget();
        }
    }

    fn execute(&mut self, n: usize, receives: Receives, disk: &Disk) {
        let one = &mut self.arrived[n];
        let Verb::Flush(flush) = one.verb else {
            // An ATOMIC WRITE; its word is then on its way as any other.
            let (at, word) = one.words.pop().expect("it has one");
            one.is_done = true;
            disk.write(at, &word);
            self.iio.push(at);
            self.unflushed.push(at..at + WORD as u64);
            return self.forget();
        };
        for at in self.iio.drain(..) {
            self.failed |= !Self::leaves(at, !receives.ddio, receives.domain, disk);
        }
        if flush == Flush::Persistent {
            self.failed |= self.unflushed.drain(..).any(|range| disk.persist_alone(range).is_err());
        }
        self.arrived[n].is_done = true;
        self.forget();
    }

    /// What is done and completed is over.
    fn forget(&mut self) {
        while self.arrived.front().is_some_and(|one| one.is_done && one.is_told) {
            self.arrived.pop_front();
        }
    }

    /// The next completion: of what was posted when it has arrived, of the others when they were executed; in order.
    pub(super) fn answer(&mut self) -> Option<Answer> {
        let next = self.arrived.iter_mut().find(|one| !one.is_told)?;
        if !next.is_posted() && !next.is_done {
            return None;
        }
        next.is_told = true;
        self.forget();
        Some(if self.failed { Answer::Failed } else { Answer::Written })
    }

    pub(super) fn has_message(&self) -> bool {
        !self.messages.is_empty()
    }

    pub(super) fn message(&mut self) -> Option<Vec<u8>> {
        self.messages.pop_front()
    }
}
