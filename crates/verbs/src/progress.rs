//! The threads that drive: the progress thread, and consumers' threads while they are blocked. Who does what when is
//! decided in `handover.rs`; read its head first.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use remanence_link::{Thread, WaitFd, ask_for_short_slices, wait, without_signals};
use remanence_rnic::{FlushId, Instant};

use crate::context::Shared;
use crate::driver::{Driver, Interest, shorter};
use crate::handover::{LEASE_LIMIT, Plan, WaiterId, warm_after};
use crate::wake::{Bell, Waker};

/// How long a warm waiter on the bench looks whether it is called before it sleeps.
const LINGER: Duration = Duration::from_micros(50);

/// How long the progress thread steps aside for a thread that waits for the lock: the time that one needs to see
/// that the lock is free.
const STEP_ASIDE: u32 = 64;

pub(crate) fn spawn(shared: Arc<Shared>) -> std::io::Result<Thread> {
    without_signals(|| Thread::spawn(c"remanence-rnic", move || run(&shared)))
}

fn run(shared: &Shared) {
    let (mut fds, mut none) = (Vec::new(), Vec::new());
    ask_for_short_slices();
    while !shared.stop.load(Ordering::Acquire) {
        let mut turn = shared.turn();
        let worked = turn.drive();
        let now = turn.now;
        turn.count_polls(shared.lock.take_missed());
        let plan = turn.plan_thread(now, worked, &mut fds);
        drop(turn);
        match plan {
            Plan::Again => step_aside(shared),
            Plan::Yield => std::thread::yield_now(),
            Plan::Rest(limit) => rest(shared, &mut none, limit),
            Plan::Watch(limit) => {
                shared.signals.thread.sleep(&mut fds, limit);
            }
        }
    }
    if shared.leave.is_asked() {
        shared.with_driver(Driver::close_link);
        shared.leave.done();
    }
}

/// Sleeps until a poller has stopped, or somebody calls.
fn rest(shared: &Shared, none: &mut Vec<WaitFd>, mut limit: Option<Duration>) {
    loop {
        shared.signals.thread.sleep(none, limit);
        if shared.stop.load(Ordering::Acquire) {
            return;
        }
        // No turn, and no waiting for the lock: both would only be in the poller's way. Whoever holds the lock drives
        // now; whether it still does is seen at the end of one more lease.
        let renewed = match shared.lock.try_lock() {
            Some(mut driver) => driver.renew_lease(shared.clock.now()),
            None => limit.filter(|&limit| limit <= LEASE_LIMIT),
        };
        match renewed {
            Some(lease) => limit = Some(lease),
            None => return,
        }
    }
}

fn step_aside(shared: &Shared) {
    for _ in 0..STEP_ASIDE {
        if !shared.lock.is_wanted() {
            return;
        }
        std::hint::spin_loop();
    }
}

/// The flush worker ended a round: the answers leave from here, with no other thread in between.
pub(crate) fn flushed(shared: &Shared, outcomes: &[(FlushId, Result<(), ()>)]) {
    let mut turn = shared.turn();
    let now = turn.now;
    for &(id, outcome) in outcomes {
        turn.flush_done(now, id, outcome);
    }
}

thread_local! {
    /// What this thread sleeps on while it is blocked in a call; made once, as it costs two system calls.
    static BLOCKED: RefCell<Option<Arc<Bell>>> = const { RefCell::new(None) };

    /// What `warm_after` says of this thread's last wait.
    static WARM: Cell<bool> = const { Cell::new(true) };
}

/// The bell of this thread. A child has the one of the thread that forked, and closed it.
fn blocked() -> Arc<Bell> {
    BLOCKED.with_borrow_mut(|bell| match bell {
        Some(bell) if bell.is_open() => Arc::clone(bell),
        _ => {
            let new = Arc::new(Bell::new().expect("an event descriptor for a blocking call"));
            Arc::clone(bell.insert(new))
        }
    })
}

/// What a blocked call does next.
pub(crate) enum Next<T> {
    /// It is over.
    Over(Outcome<T>),
    /// It sleeps on [`Waiting::fds`], and then takes another step.
    Sleep,
}

/// How a wait ends.
pub(crate) enum Outcome<T> {
    Found(T),
    /// The limit was reached first, or the device is a parent process's.
    Nothing,
    /// Nothing came, and a signal handler of the program ended the wait.
    Interrupted,
}

/// A blocked call, from one sleep to the next. Between its steps it holds no lock; it may have the waiters' seat, though, and
/// others rely on it: who does not take another step says so with [`leave`](Self::leave).
pub(crate) struct Waiting {
    end: Option<Instant>,
    /// What the caller waits at most.
    patience: Option<Duration>,
    interest: Interest,
    bell: Arc<Bell>,
    warm: bool,
    me: Option<WaiterId>,
    /// What to sleep on, and for how long at most.
    pub(crate) fds: Vec<WaitFd>,
    pub(crate) limit: Option<Duration>,
    lies: bool,
}

impl Waiting {
    pub(crate) fn new(shared: &Shared, limit: Option<Duration>, interest: Interest) -> Self {
        Self {
            end: limit.map(|limit| shared.clock.now() + limit),
            patience: limit,
            interest,
            bell: blocked(),
            warm: WARM.get(),
            me: None,
            fds: Vec::new(),
            limit: None,
            lies: false,
        }
    }

    /// Up to the next sleep, or to the end. `ready` is called under the device lock, right at the beginning and after what the
    /// call is interested in. `interrupted`: the sleep was ended by a signal handler that ends calls.
    pub(crate) fn step<T>(
        &mut self,
        shared: &Shared,
        mut interrupted: bool,
        mut ready: impl FnMut(&mut Driver) -> Option<T>,
    ) -> Next<T> {
        self.get_up();
        if shared.lock.is_abandoned() {
            self.me = None;
            return Next::Over(Outcome::Nothing);
        }
        loop {
            let mut turn = shared.turn();
            turn.me = self.me;
            let mut found = ready(&mut turn);
            let mut worked = false;
            if found.is_none() {
                worked = turn.drive();
                turn.pump_events();
                found = ready(&mut turn);
                if worked && found.is_some() {
                    turn.waiter_found();
                }
            }
            let now = turn.now;
            if found.is_some() || interrupted || self.end.is_some_and(|end| end <= now) {
                if let Some(me) = self.me.take() {
                    turn.waiter_left(now, me, found.is_some());
                }
                WARM.set(warm_after(self.warm, found.is_some(), self.patience));
                return Next::Over(match found {
                    Some(found) => Outcome::Found(found),
                    None if interrupted => Outcome::Interrupted,
                    None => Outcome::Nothing,
                });
            }
            interrupted = false;
            let id = match self.me {
                Some(me) => me,
                None => *self.me.insert(turn.waiter_came(now, Arc::clone(&self.bell), self.interest)),
            };
            let plan = turn.plan_waiter(now, id, self.warm, worked, &mut self.fds);
            drop(turn);
            let left = self.end.map(|end| end.since(now));
            self.limit = match plan {
                Plan::Again => {
                    step_aside(shared);
                    continue;
                }
                Plan::Yield => {
                    std::thread::yield_now();
                    continue;
                }
                Plan::Rest(limit) => {
                    self.fds.clear();
                    if self.warm {
                        self.bell.linger(LINGER);
                    }
                    shorter(limit, left)
                }
                Plan::Watch(limit) => shorter(limit, left),
            };
            self.lies = true;
            if self.bell.lie_down() {
                self.fds.push(self.bell.wait_fd());
                return Next::Sleep;
            }
            self.get_up();
        }
    }

    fn get_up(&mut self) {
        if std::mem::take(&mut self.lies) {
            self.bell.get_up();
        }
    }

    /// There will be no further step: another waiter, or the progress thread, sees to what this one watched.
    pub(crate) fn leave(&mut self, shared: &Shared) {
        if shared.lock.is_abandoned() {
            return;
        }
        self.get_up();
        if let Some(me) = self.me.take() {
            let mut turn = shared.turn();
            let now = turn.now;
            turn.waiter_left(now, me, false);
        }
    }
}

impl Shared {
    /// Blocks until `ready` returns something or the limit is over. Meanwhile this thread drives the device.
    ///
    /// `ready` is called under the device lock, right at the beginning and after what `interest` says.
    pub(crate) fn wait<T>(
        &self,
        limit: Option<Duration>,
        interest: Interest,
        mut ready: impl FnMut(&mut Driver) -> Option<T>,
    ) -> Option<T> {
        if self.lock.is_abandoned() {
            return None;
        }
        let mut waiting = Waiting::new(self, limit, interest);
        loop {
            match waiting.step(self, false, &mut ready) {
                Next::Over(Outcome::Found(found)) => return Some(found),
                Next::Over(Outcome::Nothing | Outcome::Interrupted) => return None,
                // Woken by an error as by a signal: the next step looks again anyway.
                Next::Sleep => drop(wait::poll(&waiting.fds, waiting.limit)),
            }
        }
    }

    /// As [`wait`](Self::wait), and `waker` ends it too, or has ended it already: whichever it was, the caller looks again.
    ///
    /// `woken` is what the wait then returns. A wake comes before what is there: who is woken is told of it also while more and
    /// more comes in.
    pub(crate) fn wait_or_woken<T>(
        &self,
        limit: Option<Duration>,
        interest: Interest,
        waker: &Waker,
        woken: impl Fn() -> T,
        mut ready: impl FnMut(&mut Driver) -> Option<T>,
    ) -> Option<T> {
        if self.lock.is_abandoned() {
            return None;
        }
        // Before the first look, and until after the last.
        let _rings = waker.rings(blocked());
        self.wait(limit, interest, |driver| if waker.take() { Some(woken()) } else { ready(driver) })
    }

    /// Looks at the driver, or changes it in a way that nobody needs to hear of.
    pub(crate) fn with_driver<T>(&self, look: impl FnOnce(&mut Driver) -> T) -> T {
        look(&mut self.lock.lock())
    }
}
