//! The threads that drive: the progress thread, and consumers' threads while they are blocked. Who does what when is
//! decided in `handover.rs`; read its head first.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use remanence_link::{Thread, WaitFd, ask_for_short_slices, without_signals};
use remanence_rnic::FlushId;

use crate::context::Shared;
use crate::driver::{Driver, Interest, shorter};
use crate::handover::{LEASE_LIMIT, Plan};
use crate::wake::Bell;

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

    /// Whether the last wait of this thread brought what it waited for.
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

/// A signal handler of the program ended a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Interrupted;

impl Shared {
    /// Blocks until `ready` returns something or the limit is over. Meanwhile this thread drives the device.
    ///
    /// `ready` is called under the device lock, right at the beginning and after what `interest` says.
    pub(crate) fn wait<T>(
        &self,
        limit: Option<Duration>,
        interest: Interest,
        ready: impl FnMut(&mut Driver) -> Option<T>,
    ) -> Option<T> {
        self.wait_unless(limit, interest, || false, ready).unwrap_or(None)
    }

    /// The same; and `Err` if, before that, a signal handler has run in this thread while it slept, and `ends` says that it
    /// ends the wait.
    pub(crate) fn wait_unless<T>(
        &self,
        limit: Option<Duration>,
        interest: Interest,
        ends: impl Fn() -> bool,
        mut ready: impl FnMut(&mut Driver) -> Option<T>,
    ) -> Result<Option<T>, Interrupted> {
        let end = limit.map(|limit| self.clock.now() + limit);
        if self.lock.is_abandoned() {
            return Ok(None);
        }
        let bell = blocked();
        let warm = WARM.get();
        let (mut fds, mut none) = (Vec::new(), Vec::new());
        let mut me = None;
        let mut interrupted = false;
        loop {
            let mut turn = self.turn();
            turn.me = me;
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
            if found.is_some() || interrupted || end.is_some_and(|end| end <= now) {
                if let Some(me) = me {
                    turn.waiter_left(now, me, found.is_some());
                }
                WARM.set(found.is_some());
                return if found.is_none() && interrupted { Err(Interrupted) } else { Ok(found) };
            }
            let id = *me.get_or_insert_with(|| turn.waiter_came(now, Arc::clone(&bell), interest));
            let plan = turn.plan_waiter(now, id, warm, worked, &mut fds);
            drop(turn);
            let left = end.map(|end| end.since(now));
            let signalled = match plan {
                Plan::Again => {
                    step_aside(self);
                    false
                }
                Plan::Rest(limit) => {
                    if warm {
                        bell.linger(LINGER);
                    }
                    bell.sleep(&mut none, shorter(limit, left))
                }
                Plan::Watch(limit) => bell.sleep(&mut fds, shorter(limit, left)),
            };
            interrupted = signalled && ends();
        }
    }

    /// Looks at the driver, or changes it in a way that nobody needs to hear of.
    pub(crate) fn with_driver<T>(&self, look: impl FnOnce(&mut Driver) -> T) -> T {
        look(&mut self.lock.lock())
    }
}
