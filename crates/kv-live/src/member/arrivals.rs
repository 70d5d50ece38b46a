//! What comes from other members while a primary's serving thread waits for its clients.
//!
//! That thread waits at the store's own completion queue, and what members answer comes into the one of the [`Reactor`]. Where an answer
//! is expected that nothing else waits for, or nothing was written for a while, so that only a connection that breaks would say so, a thread
//! waits there instead and wakes the serving thread. It waits for what has come since the serving thread began to look, so nothing is
//! missed in between. While clients write nobody waits here beside the serving thread, which is the faster for it.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use remanence_remote::{Reactor, Waiter};

use super::node::Node;

#[derive(Debug)]
enum State {
    /// Nothing is expected.
    Idle,
    /// The thread is to wait for the first that comes.
    Wanted(Waiter),
    /// It waits for the first that comes.
    Waits,
    Over,
}

/// Waits for what comes from other members, in a thread of its own.
#[derive(Debug)]
pub(super) struct Arrivals {
    reactor: Reactor,
    state: Mutex<State>,
    changed: Condvar,
}

impl Arrivals {
    pub(super) fn new(reactor: &Reactor) -> Self {
        Self { reactor: reactor.clone(), state: Mutex::new(State::Idle), changed: Condvar::new() }
    }

    /// Each change is one step.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What ends with the first that comes from now on.
    pub(super) fn waiter(&self) -> Waiter {
        self.reactor.waiter()
    }

    /// Whether the primary is woken by what comes.
    pub(super) fn is_awaited(&self) -> bool {
        !matches!(*self.lock(), State::Idle)
    }

    /// Has the primary woken when something has come since the waiter was made.
    pub(super) fn wait_for(&self, waiter: Waiter) {
        let mut state = self.lock();
        // Who waits already does so since before that.
        if matches!(*state, State::Idle) {
            *state = State::Wanted(waiter);
            drop(state);
            self.changed.notify_one();
        }
    }

    /// Waits when it is asked to, until the [end](Self::end).
    pub(super) fn run(&self, node: &Node) {
        let mut state = self.lock();
        loop {
            state = match std::mem::replace(&mut *state, State::Waits) {
                State::Wanted(mut waiter) => {
                    drop(state);
                    // A queue that is broken says so to each session that looks.
                    let _ = waiter.wait(None);
                    let mut state = self.lock();
                    if matches!(*state, State::Waits) {
                        *state = State::Idle;
                    }
                    drop(state);
                    node.wake_primary();
                    self.lock()
                }
                State::Over => return *state = State::Over,
                other => {
                    *state = other;
                    self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
                }
            };
        }
    }

    /// Ends the thread.
    pub(super) fn end(&self) {
        *self.lock() = State::Over;
        self.changed.notify_one();
        self.reactor.waker().wake();
    }
}
