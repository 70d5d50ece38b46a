//! Memory that the processes of a torture share: a clock that counts, and what each client has begun and ended. It outlives
//! whoever is killed, so an operation that was under way is known to have been.
//!
//! ```text
//! clock u64, stop u64, the rest of 64 bytes free; then lanes of SLOTS records
//! record  kind, key, a, b, call, return, outcome, free    a word each
//! ```

use std::fs::File;
use std::path::Path;

use remanence_pmem::Region;
use remanence_sim::history::{Event, Kind, NEVER, State};

/// Lanes of an epoch, one for each life of a client.
pub(crate) const LANES: u64 = 64;
/// Operations of one life at most.
const SLOTS: u64 = 4096;
const RECORD: u64 = 64;
const FIRST: u64 = 64;
const LEN: u64 = FIRST + LANES * SLOTS * RECORD;

/// What a client does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Intent {
    Get,
    Put(State),
    Delete,
    Swap(State, State),
}

/// What became of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    Got(State),
    Done,
    /// It came to nothing: no trace of it may be seen.
    Nothing,
    /// The client can not know.
    Unknown,
    /// The key had changed.
    WrongVersion,
    /// What was found was never written.
    Torn,
}

#[derive(Clone, Debug)]
pub(crate) struct Board(Region);

impl Board {
    /// A new one, all zeros.
    pub(crate) fn create(path: &Path) -> Self {
        let file = File::options().read(true).write(true).create(true).truncate(true).open(path);
        file.and_then(|file| file.set_len(LEN)).expect("a file of ours");
        Self::open(path)
    }

    pub(crate) fn open(path: &Path) -> Self {
        let file = File::options().read(true).write(true).open(path).expect("it was created");
        Self(Region::from_shared_fd(file.into(), LEN).expect("it is mapped"))
    }

    /// The next moment.
    pub(crate) fn tick(&self) -> u64 {
        self.0.fetch_add(0, 1) + 1
    }

    pub(crate) fn stop(&self) {
        self.0.store_u64(8, 1);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.0.load_u64(8) != 0
    }

    fn at(lane: u64, slot: u64) -> u64 {
        FIRST + (lane * SLOTS + slot) * RECORD
    }

    /// Operations of a lane that have ended.
    pub(crate) fn ended(&self, lane: u64) -> u64 {
        (0..SLOTS).take_while(|slot| self.0.load_u64(Self::at(lane, *slot) + 48) != 0).count() as u64
    }

    /// What happened to each key in a lane. `bound` says when an operation that nobody knows the end of, and that was under
    /// way at a moment, can have had its effect at the latest.
    pub(crate) fn events(
        &self,
        lane: u64,
        killed: Option<u64>,
        bound: impl Fn(u64) -> u64,
    ) -> Vec<(u64, Event)> {
        let mut events = Vec::new();
        for slot in 0..SLOTS {
            let word = |n: u64| self.0.load_u64(Self::at(lane, slot) + 8 * n);
            let [kind, key, a, b, call, returned, outcome] = [0, 1, 2, 3, 4, 5, 6].map(word);
            assert!(outcome != 6, "lane {lane}, slot {slot}: a torn value was served of key {key}");
            let doubtful = matches!(outcome, 0 | 4);
            let kind = match (kind, outcome) {
                (0, _) => break,
                // It came to nothing, or nobody knows what was read.
                (_, 3) | (1, 0 | 4) => continue,
                (1, 1) => Kind::Read(a),
                (2, 0 | 2 | 4) => Kind::Write(a),
                (3, 0 | 2 | 4) => Kind::Write(0),
                // A deletion that found nothing.
                (3, 1) => Kind::Read(0),
                (4, 5) => Kind::NoSwap(a),
                (4, 0 | 2 | 4) => Kind::Swap(a, b),
                other => panic!("lane {lane}, slot {slot}: no such record: {other:?}"),
            };
            let end = if outcome == 0 { killed.unwrap_or(NEVER - 1) } else { returned };
            let returned = if doubtful { bound(end) } else { end };
            let client = lane as u32;
            events.push((key, Event { kind, client, invoked: call, returned, maybe: doubtful }));
        }
        events
    }
}

/// A client's own records.
#[derive(Debug)]
pub(crate) struct Lane {
    board: Board,
    lane: u64,
    next: u64,
}

impl Lane {
    pub(crate) const fn new(board: Board, lane: u64) -> Self {
        Self { board, lane, next: 0 }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.next + 16 >= SLOTS
    }

    pub(crate) const fn board(&self) -> &Board {
        &self.board
    }

    /// Says what is about to be done.
    pub(crate) fn begin(&mut self, key: u64, intent: Intent) -> u64 {
        let at = Board::at(self.lane, self.next);
        self.next += 1;
        let (kind, a, b) = match intent {
            Intent::Get => (1, 0, 0),
            Intent::Put(new) => (2, new, 0),
            Intent::Delete => (3, 0, 0),
            Intent::Swap(old, new) => (4, old, new),
        };
        for (n, word) in [(1, key), (2, a), (3, b), (4, self.board.tick()), (0, kind)] {
            self.board.0.store_u64(at + 8 * n, word);
        }
        at
    }

    /// Says what became of it.
    pub(crate) fn end(&self, at: u64, outcome: Outcome) {
        let number = match outcome {
            Outcome::Got(found) => {
                self.board.0.store_u64(at + 16, found);
                1
            }
            Outcome::Done => 2,
            Outcome::Nothing => 3,
            Outcome::Unknown => 4,
            Outcome::WrongVersion => 5,
            Outcome::Torn => 6,
        };
        self.board.0.store_u64(at + 40, self.board.tick());
        self.board.0.store_u64(at + 48, number);
    }
}
