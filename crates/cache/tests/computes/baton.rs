//! Threads of which one runs at a time: at each access to what they share a seed says who goes on, and who dies there.

use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use remanence_cache::log::Log;
use remanence_cache::words::{LocalWords, Word, Words};
use remanence_pmem::crash_image::{Choices, CrashImage, Seeded};
use remanence_pmem::watched::{Watch, Watched};

/// What a thread unwinds with that was killed.
struct Killed;

struct State {
    current: usize,
    runs: Vec<bool>,
    dead: Vec<bool>,
    locks: Vec<Option<usize>>,
    /// So many more accesses, and the thread dies.
    left: Vec<u64>,
    choices: Seeded,
}

/// Who runs, and who is dead.
pub(crate) struct Baton {
    state: Mutex<State>,
    turn: Condvar,
}

impl Baton {
    /// So many threads, each with how many accesses it lives for.
    pub(crate) fn new(lives: &[u64], locks: usize, seed: u64) -> Self {
        let state = State {
            current: 0,
            runs: vec![true; lives.len()],
            dead: vec![false; lives.len()],
            locks: vec![None; locks],
            left: lives.to_vec(),
            choices: Seeded::new(seed),
        };
        Self { state: Mutex::new(state), turn: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands the baton to somebody, and waits to have it again.
    pub(crate) fn step(&self, me: usize) {
        let mut state = self.state();
        state.left[me] -= 1;
        if state.left[me] == 0 {
            state.dead[me] = true;
            // Locks are robust: the next one has them.
            state.locks.iter_mut().filter(|lock| **lock == Some(me)).for_each(|lock| *lock = None);
            drop(state);
            resume_unwind(Box::new(Killed));
        }
        self.pass(&mut state);
        while state.current != me {
            state = self.turn.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn pass(&self, state: &mut State) {
        let running: Vec<usize> = (0..state.runs.len()).filter(|n| state.runs[*n]).collect();
        if !running.is_empty() {
            // Now and then one goes on for a while, as real ones do.
            if !state.runs[state.current] || state.choices.pick(2) == 0 {
                state.current = running[state.choices.pick(running.len())];
            }
            self.turn.notify_all();
        }
    }

    /// Runs a thread until its end, or its death.
    pub(crate) fn run(&self, me: usize, body: impl FnOnce()) {
        let mut state = self.state();
        while state.current != me {
            state = self.turn.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        let ended = catch_unwind(AssertUnwindSafe(body));
        let mut state = self.state();
        state.runs[me] = false;
        self.pass(&mut state);
        drop(state);
        if let Err(panic) = ended
            && !panic.is::<Killed>()
        {
            resume_unwind(panic);
        }
    }

    /// Whether a thread was killed.
    pub(crate) fn is_dead(&self, thread: usize) -> bool {
        self.state().dead[thread]
    }

    /// Whether anybody but this one still runs.
    pub(crate) fn others_run(&self, me: usize) -> bool {
        self.state().runs.iter().enumerate().any(|(n, runs)| *runs && n != me)
    }

    /// Whether anybody but these two still runs.
    pub(crate) fn others_run_but(&self, me: usize, other: usize) -> bool {
        self.state().runs.iter().enumerate().any(|(n, runs)| *runs && n != me && n != other)
    }

    /// Takes a lock, which its holder's death releases.
    pub(crate) fn lock(&self, me: usize, lock: usize) {
        loop {
            {
                let mut state = self.state();
                if state.locks[lock].is_none() {
                    state.locks[lock] = Some(me);
                    return;
                }
            }
            self.step(me);
        }
    }

    pub(crate) fn unlock(&self, lock: usize) {
        self.state().locks[lock] = None;
    }
}

/// What a thread has of the words: each access is a step.
pub(crate) struct Scheduled<'a> {
    pub(crate) baton: &'a Baton,
    pub(crate) me: usize,
    pub(crate) words: &'a LocalWords,
}

impl<'a> Scheduled<'a> {
    /// The log, as a thread reaches it.
    pub(crate) fn log(
        baton: &'a Baton,
        me: usize,
        image: &'a CrashImage,
        words: &'a LocalWords,
    ) -> Shared<'a> {
        let own = || Self { baton, me, words };
        Log::attach(Watched { medium: image, watch: own() }, own()).expect("it is open")
    }
}

/// A log of which each access is a step.
pub(crate) type Shared<'a> = Log<Watched<&'a CrashImage, Scheduled<'a>>, Scheduled<'a>>;

impl Words for Scheduled<'_> {
    fn load(&self, word: Word) -> u64 {
        self.baton.step(self.me);
        self.words.load(word)
    }

    fn store(&self, word: Word, value: u64) {
        self.baton.step(self.me);
        self.words.store(word, value);
    }

    fn compare_and_swap(&self, word: Word, compare: u64, swap: u64) -> u64 {
        self.baton.step(self.me);
        self.words.compare_and_swap(word, compare, swap)
    }
}

impl Watch for Scheduled<'_> {
    /// A writer may die within a copy.
    const STEP: usize = 32;

    fn load(&self) {
        self.baton.step(self.me);
    }

    fn store(&self, _: Range<u64>) {
        self.baton.step(self.me);
    }

    fn pfence(&self) {
        self.baton.step(self.me);
    }

    fn psync(&self) -> io::Result<()> {
        self.baton.step(self.me);
        Ok(())
    }
}
