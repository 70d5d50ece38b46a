//! What programs and the cleaner's thread tell each other: what is waited for, who waits, and what has failed.
//!
//! **Nobody waits for ever, and nobody in silence.** Who waits for room, or for a file to have what the log has, is woken when entries are freed and when
//! the disk has failed; and when the disk has taken nothing for as long as the cache's patience, all who wait are told that, and whoever comes next at once, until
//! something is freed.
//!
//! **Turns.** Who finds the log full, and nobody else who waits for room, has the turn until he has appended, and nobody appends meanwhile: a long write could else wait for ever beside short ones, which take each
//! place that becomes free. With the turn all go on at once. They do not queue for it: beside a log that is full now and then each of them would wait for another one all the time.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use remanence_cache::table::FileId;

/// What has failed.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    /// The file that does not take what the log has; none if it is the log that has failed, which is for good.
    pub(crate) file: Option<FileId>,
    pub(crate) path: String,
    pub(crate) why: String,
    pub(crate) errno: i32,
}

/// Why a wait has ended.
#[derive(Debug)]
pub(crate) enum Refusal {
    Failed(Failure),
    Stuck,
}

#[derive(Debug)]
pub(crate) struct State {
    /// All below is to be in its files.
    pub(crate) wanted: u64,
    /// The cleaner's thread is to end.
    pub(crate) ends: bool,
    pub(crate) failure: Option<Failure>,
    waiting: u32,
    /// When something was freed, or somebody began to wait.
    moved: Instant,
    /// Somebody has waited as long as anybody does.
    stuck: bool,
}

#[derive(Debug)]
pub(crate) struct Room {
    state: Mutex<State>,
    changed: Condvar,
    /// Somebody has the turn.
    turn: AtomicBool,
    /// 1 more than the file of the failure, [`LOG`] if that is the log's, and 0 without one: to be looked at before each change.
    failing: AtomicU32,
}

/// It is the log that has failed.
const LOG: u32 = u32::MAX;

impl Room {
    pub(crate) fn new() -> Self {
        let state =
            State { wanted: 0, ends: false, failure: None, waiting: 0, moved: Instant::now(), stuck: false };
        Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
            turn: AtomicBool::new(false),
            failing: AtomicU32::new(0),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until that is so.
    fn wait(
        &self,
        patience: Duration,
        mut is_so: impl FnMut(&State) -> bool,
    ) -> Result<MutexGuard<'_, State>, Refusal> {
        let mut state = self.state();
        if state.waiting == 0 {
            state.moved = Instant::now();
        }
        state.waiting += 1;
        let refusal = loop {
            if is_so(&state) {
                state.waiting -= 1;
                return Ok(state);
            }
            if let Some(failure) = &state.failure {
                break Refusal::Failed(failure.clone());
            }
            let left = patience.saturating_sub(state.moved.elapsed());
            if state.stuck || left.is_zero() {
                state.stuck = true;
                self.changed.notify_all();
                break Refusal::Stuck;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        };
        state.waiting -= 1;
        Err(refusal)
    }

    /// Waits until `tail` says that all below an index is in its files; the caller has told the cleaner that it is wanted.
    pub(crate) fn wait_tail(
        &self,
        patience: Duration,
        upto: u64,
        tail: impl Fn() -> u64,
    ) -> Result<(), Refusal> {
        self.wait(patience, |_| tail() >= upto).map(drop)
    }

    /// Says that all below an index is to be in its files.
    pub(crate) fn want(&self, upto: u64) {
        let mut state = self.state();
        state.wanted = state.wanted.max(upto);
    }

    /// Entries were freed: the disk takes something.
    pub(crate) fn freed(&self) {
        let mut state = self.state();
        (state.moved, state.stuck) = (Instant::now(), false);
        if state.failure.as_ref().is_some_and(|failure| failure.file.is_some()) {
            state.failure = None;
            self.failing.store(0, Ordering::SeqCst);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Something went on, whatever the disk does.
    pub(crate) fn moved(&self) {
        let mut state = self.state();
        (state.moved, state.stuck) = (Instant::now(), false);
        drop(state);
        self.changed.notify_all();
    }

    /// Something has failed. What the log has failed by stays.
    pub(crate) fn failed(&self, failure: Failure) {
        let mut state = self.state();
        if state.failure.as_ref().is_none_or(|failure| failure.file.is_some()) {
            self.failing.store(failure.file.map_or(LOG, |file| file.0 + 1), Ordering::SeqCst);
            state.failure = Some(failure);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// What has failed, if anything has.
    pub(crate) fn failure(&self) -> Option<Failure> {
        match self.failing.load(Ordering::SeqCst) {
            0 => None,
            _ => self.state().failure.clone(),
        }
    }

    /// What keeps a file from being changed, if anything does.
    pub(crate) fn failure_of(&self, file: FileId) -> Option<Failure> {
        let failing = self.failing.load(Ordering::SeqCst);
        if failing == 0 || failing != LOG && failing != file.0 + 1 {
            return None;
        }
        let failure = self.state().failure.clone();
        failure.filter(|failure| failure.file.is_none_or(|failed| failed == file))
    }

    /// Whether somebody has the turn, so that nobody else appends.
    pub(crate) fn is_taken(&self) -> bool {
        self.turn.load(Ordering::SeqCst)
    }

    /// The turn, if nobody has it.
    pub(crate) fn turn(&self) -> Option<Turn<'_>> {
        (!self.turn.swap(true, Ordering::SeqCst)).then(|| Turn(self))
    }

    /// Waits until nobody has the turn.
    pub(crate) fn wait_turn(&self, patience: Duration) -> Result<(), Refusal> {
        self.wait(patience, |_| !self.is_taken()).map(drop)
    }
}

/// One's turn to append, until it is dropped.
#[derive(Debug)]
pub(crate) struct Turn<'a>(&'a Room);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        {
            // Who looks at it has the state: he sees this, or is woken.
            let _state = self.0.state();
            self.0.turn.store(false, Ordering::SeqCst);
        }
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(5);

    fn failure(file: Option<FileId>) -> Failure {
        Failure { file, path: "f".into(), why: "full".into(), errno: libc::ENOSPC }
    }

    #[test]
    fn who_waits_is_told_of_what_is_freed_and_of_what_has_failed() {
        let (room, tail) = (Room::new(), AtomicU64::new(3));
        let tail = || tail.load(Ordering::SeqCst);
        assert!(room.wait_tail(LONG, 3, tail).is_ok());
        assert!(matches!(room.wait_tail(SHORT, 4, tail), Err(Refusal::Stuck)));
        assert!(
            matches!(room.wait_tail(LONG, 4, tail), Err(Refusal::Stuck)),
            "whoever comes next does not wait"
        );
        room.freed();
        room.failed(failure(Some(FileId(2))));
        assert!(matches!(room.wait_tail(LONG, 4, tail), Err(Refusal::Failed(_))));
        assert!(room.failure_of(FileId(2)).is_some() && room.failure_of(FileId(1)).is_none());
        room.freed();
        assert!(room.failure_of(FileId(2)).is_none(), "the disk has taken it");
        room.failed(failure(None));
        room.failed(failure(Some(FileId(2))));
        room.freed();
        assert!(room.failure_of(FileId(1)).is_some_and(|failure| failure.file.is_none()), "that is for good");
    }

    #[test]
    fn one_has_the_turn_and_then_all_others_go_on_at_once() {
        let room = Room::new();
        assert!(room.wait_turn(SHORT).is_ok());
        let turn = room.turn().expect("nobody has it");
        assert!(room.is_taken() && room.turn().is_none());
        assert!(matches!(room.wait_turn(SHORT), Err(Refusal::Stuck)));
        room.freed();
        // None of them goes on only when another one has done so.
        let all = std::sync::Barrier::new(3);
        std::thread::scope(|scope| {
            let wait = || {
                let waited = room.wait_turn(LONG).is_ok();
                all.wait();
                waited
            };
            let others = [0; 3].map(|_| scope.spawn(wait));
            drop(turn);
            assert!(others.into_iter().all(|other| other.join().expect("it does not panic")));
        });
        assert!(!room.is_taken() && room.turn().is_some());
    }
}
