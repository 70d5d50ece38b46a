//! An asynchronous engine: a thread that copies what it is handed, in order, while the caller goes on.
//!
//! What a DMA engine is to paper 001, where there is none. The caller's time for a copy is that of a hand-over, and
//! the copy itself overlaps with whatever the caller does next; the bytes per second are a CPU's.
//!
//! The ring. A copy lives in one slot from its submission until its completion is taken, and three counters say who
//! may touch the slot:
//!
//! ```text
//!   reaped (the owner's)  <=  done (the worker's)  <=  submitted (the owner's)  <=  reaped + window
//!   [ completions, for the owner )[ copies, for the worker )[ free, for the owner )
//! ```
//! So each slot has one user at a time, and its mutex, which is what makes that safe without `unsafe`, is never
//! waited for. A side that has nothing to do spins as long as that pays, then sleeps (`patience`).
//!
//! No wake-up is lost: who goes to sleep says so first, then looks once more; who has work for it makes the work
//! visible first, then asks whether it sleeps. All four are sequentially consistent, so one of the two sees the other,
//! and the lock in `Bed` closes the gap between the last look and the sleep.
//!
//! Fork. A child inherits the ring and not the thread. There the engine has ended: what its parent had under way comes back
//! as [`CopyError::Died`] (the parent's own engine goes on with it), further copies are refused, and nobody waits for a thread
//! that is somebody else's.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

use super::patience::Patience;
use super::{
    Bytes, Completion, CopyEngine, CopyError, CrashOrder, Options, Promise, Refusal, Refused, Source, Ticket,
    check,
};
use crate::medium::Medium;
use crate::region::Region;

/// What an engine calls, from its thread, when the completion that was asked for is there: see [`Worker::arm`].
pub type Notify = Box<dyn Fn() + Send + Sync>;

/// Copies with a thread of its own.
pub struct Worker<M = Region> {
    shared: Arc<Shared<M>>,
    thread: Option<JoinHandle<()>>,
    submitted: u64,
    reaped: u64,
    patience: Patience,
    /// Whose thread it is.
    process: u32,
}

/// What the two threads share.
struct Shared<M> {
    options: Options,
    slots: Box<[Mutex<Slot<M>>]>,
    submitted: Counter,
    done: Counter,
    /// A copy failed: nothing more is carried out.
    stopped: AtomicBool,
    /// The owner has gone: carry out what is there, and end.
    closing: AtomicBool,
    /// The thread has ended; `done` stays as it is.
    ended: AtomicBool,
    worker: Bed,
    owner: Bed,
    armed: AtomicBool,
    notify: Option<Notify>,
}

/// On a line of its own, and its neighbour too, which some CPUs fetch with it.
#[repr(align(128))]
struct Counter(AtomicU64);

enum Slot<M> {
    Free,
    Copy { source: Source, to: M, offset: u64 },
    Done { source: Source, outcome: Result<Promise, CopyError> },
}

/// Where one of the two sleeps.
#[derive(Default)]
struct Bed {
    asleep: AtomicBool,
    lock: Mutex<()>,
    wake: Condvar,
}

impl Bed {
    fn sleep_unless(&self, ready: impl FnOnce() -> bool) {
        let guard = lock(&self.lock);
        self.asleep.store(true, Ordering::SeqCst);
        if !ready() {
            // A wake-up without a cause is as good as any: the caller looks again.
            drop(self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner));
        }
        self.asleep.store(false, Ordering::SeqCst);
    }

    fn rouse(&self) {
        if self.asleep.load(Ordering::SeqCst) {
            drop(lock(&self.lock));
            self.wake.notify_all();
        }
    }
}

impl<M: Medium + Clone + Send + 'static> Worker<M> {
    /// An engine with a thread of its own, called `remanence-copy`.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub fn new(options: Options) -> io::Result<Self> {
        Self::start(options, None)
    }

    /// As [`new`](Self::new), for a caller that sleeps somewhere else: see [`arm`](Self::arm).
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_notify(options: Options, notify: Notify) -> io::Result<Self> {
        Self::start(options, Some(notify))
    }

    fn start(options: Options, notify: Option<Notify>) -> io::Result<Self> {
        let options = options.within_bounds();
        let shared = Arc::new(Shared {
            options,
            slots: (0..options.window).map(|_| Mutex::new(Slot::Free)).collect(),
            submitted: Counter(AtomicU64::new(0)),
            done: Counter(AtomicU64::new(0)),
            stopped: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            worker: Bed::default(),
            owner: Bed::default(),
            armed: AtomicBool::new(false),
            notify,
        });
        let theirs = Arc::clone(&shared);
        let thread = Builder::new().name("remanence-copy".into()).spawn(move || theirs.work())?;
        let process = std::process::id();
        Ok(Self { shared, thread: Some(thread), submitted: 0, reaped: 0, patience: Patience::new(), process })
    }
}

impl<M> Worker<M> {
    /// Asks to be notified once, when the next completion can be taken. False if there is one already: take it, as
    /// nobody may be notified of that. A notification may come for nothing.
    #[must_use]
    pub fn arm(&self) -> bool {
        self.shared.armed.store(true, Ordering::SeqCst);
        let waiting = !self.has_completion();
        if !waiting {
            self.shared.armed.store(false, Ordering::SeqCst);
        }
        waiting
    }

    /// The thread has ended, or is the parent's of this process. A system call, and a cheap one beside what is worth handing
    /// over or waiting for.
    fn is_over(&self) -> bool {
        self.shared.ended.load(Ordering::SeqCst) || self.is_inherited()
    }

    fn is_inherited(&self) -> bool {
        std::process::id() != self.process
    }

    fn has_completion(&self) -> bool {
        self.submitted > self.reaped && (self.shared.done() > self.reaped || self.is_over())
    }

    /// Waits until the worker has nothing to do, or is gone.
    fn wait_idle(&mut self) {
        if self.is_over() {
            return;
        }
        let (shared, submitted) = (&self.shared, self.submitted);
        let idle = || shared.done() == submitted || shared.ended.load(Ordering::SeqCst);
        self.patience.wait(idle, || shared.owner.sleep_unless(idle));
    }
}

impl<M: Medium + Clone + Send + 'static> CopyEngine<M> for Worker<M> {
    fn options(&self) -> Options {
        self.shared.options
    }

    fn submit(&mut self, from: Source, to: &M, offset: u64) -> Result<Ticket, Refused> {
        let shared = &*self.shared;
        let window = shared.options.window;
        let why = match check(from.len(), to, offset) {
            _ if shared.has_stopped() || self.is_inherited() => Some(Refusal::Stopped),
            Err(why) => Some(why),
            Ok(()) if self.submitted - self.reaped == window as u64 => Some(Refusal::WindowFull { window }),
            Ok(()) => None,
        };
        if let Some(why) = why {
            return Err(Refused { why, source: from });
        }
        let ticket = Ticket(self.submitted);
        *shared.slot(self.submitted) = Slot::Copy { source: from, to: to.clone(), offset };
        self.submitted += 1;
        shared.submitted.0.store(self.submitted, Ordering::SeqCst);
        shared.worker.rouse();
        Ok(ticket)
    }

    fn poll(&mut self) -> Option<Completion> {
        if self.submitted == self.reaped {
            return None;
        }
        // In this order: once the thread has ended, `done` does not move any more.
        let ended = self.shared.ended.load(Ordering::SeqCst);
        let done = self.shared.done() > self.reaped;
        if !done && !ended && !self.is_inherited() {
            return None;
        }
        let ticket = Ticket(self.reaped);
        if self.is_inherited() {
            // Whoever held a lock when this process was made is not here to let go of it.
            self.reaped += 1;
            return Some(Completion { ticket, source: Source::lost(), outcome: Err(CopyError::Died) });
        }
        let slot = std::mem::replace(&mut *self.shared.slot(self.reaped), Slot::Free);
        self.reaped += 1;
        Some(match slot {
            Slot::Done { source, outcome } => Completion { ticket, source, outcome },
            Slot::Copy { source, .. } if !done => {
                Completion { ticket, source, outcome: Err(CopyError::Died) }
            }
            Slot::Free if !done => {
                Completion { ticket, source: Source::lost(), outcome: Err(CopyError::Died) }
            }
            Slot::Free | Slot::Copy { .. } => unreachable!("copy {} was done and is not there", ticket.0),
        })
    }

    fn wait(&mut self) -> Option<Completion> {
        if self.submitted == self.reaped || self.is_over() {
            return self.poll();
        }
        let (shared, reaped) = (&self.shared, self.reaped);
        let ready = || shared.done() > reaped || shared.ended.load(Ordering::SeqCst);
        self.patience.wait(ready, || shared.owner.sleep_unless(ready));
        self.poll()
    }

    fn copy(&mut self, from: &[u8], to: &M, offset: u64) -> Result<Promise, CopyError> {
        check(from.len() as u64, to, offset)?;
        self.wait_idle();
        if self.shared.has_stopped() || self.is_inherited() {
            return Err(Refusal::Stopped.into());
        }
        let placement = self.shared.options.placement;
        placement.copy(Bytes::Slice(from), to, offset);
        match placement.sync(to) {
            Ok(()) => Ok(placement.promise()),
            Err(e) => {
                self.shared.stopped.store(true, Ordering::SeqCst);
                Err(e.into())
            }
        }
    }

    fn in_flight(&self) -> usize {
        (self.submitted - self.reaped) as usize
    }

    fn oldest(&self) -> Option<Ticket> {
        (self.reaped < self.submitted).then_some(Ticket(self.reaped))
    }
}

impl<M> Drop for Worker<M> {
    fn drop(&mut self) {
        if self.is_inherited() {
            // Its handle names a thread of the parent: to join it would be to wait for ever.
            std::mem::forget(self.thread.take());
            return;
        }
        self.shared.closing.store(true, Ordering::SeqCst);
        self.shared.worker.rouse();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has said so already.
            let _ = thread.join();
        }
    }
}

impl<M> fmt::Debug for Worker<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("options", &self.shared.options)
            .field("submitted", &self.submitted)
            .field("done", &self.shared.done())
            .field("reaped", &self.reaped)
            .finish_non_exhaustive()
    }
}

impl<M> Shared<M> {
    /// The slot of a copy. Never waits: the counters let one side in at a time.
    fn slot(&self, copy: u64) -> MutexGuard<'_, Slot<M>> {
        lock(&self.slots[(copy % self.slots.len() as u64) as usize])
    }

    fn done(&self) -> u64 {
        self.done.0.load(Ordering::SeqCst)
    }

    fn has_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst) || self.ended.load(Ordering::SeqCst)
    }
}

impl<M: Medium> Shared<M> {
    /// The thread's life.
    fn work(&self) {
        let _farewell = Farewell(self);
        let mut patience = Patience::new();
        let mut round = Vec::new();
        let mut done = 0;
        loop {
            let ready =
                || self.submitted.0.load(Ordering::SeqCst) > done || self.closing.load(Ordering::SeqCst);
            patience.wait(ready, || self.worker.sleep_unless(ready));
            let submitted = self.submitted.0.load(Ordering::SeqCst);
            if submitted == done {
                return;
            }
            // Each alone, or all that are there: the sync in the middle is what tells the two apart.
            let upto = match self.options.order {
                CrashOrder::Prefix => done + 1,
                CrashOrder::Any => submitted,
            };
            self.carry_out(done, upto, &mut round);
            done = upto;
        }
    }

    /// Copies these, then syncs each, then says so of each.
    fn carry_out(&self, from: u64, upto: u64, round: &mut Vec<(Source, M)>) {
        let placement = self.options.placement;
        for copy in from..upto {
            match std::mem::replace(&mut *self.slot(copy), Slot::Free) {
                Slot::Copy { source, to, offset } => {
                    if !self.stopped.load(Ordering::SeqCst) {
                        placement.copy(source.bytes(), &to, offset);
                    }
                    round.push((source, to));
                }
                Slot::Free | Slot::Done { .. } => unreachable!("copy {copy} was submitted and is not there"),
            }
        }
        for (copy, (source, to)) in (from..).zip(round.drain(..)) {
            let outcome = if self.stopped.load(Ordering::SeqCst) {
                Err(CopyError::GivenUp)
            } else {
                // After the first sync of a region the others of this round find nothing left to wait for.
                placement.sync(&to).map(|()| placement.promise()).map_err(|e| {
                    self.stopped.store(true, Ordering::SeqCst);
                    e.into()
                })
            };
            *self.slot(copy) = Slot::Done { source, outcome };
            self.done.0.store(copy + 1, Ordering::SeqCst);
            self.tell();
        }
    }
}

impl<M> Shared<M> {
    /// There is something new to see for the owner.
    fn tell(&self) {
        self.owner.rouse();
        if self.armed.load(Ordering::SeqCst)
            && self.armed.swap(false, Ordering::SeqCst)
            && let Some(notify) = &self.notify
        {
            notify();
        }
    }
}

/// Says that the thread has ended, by a panic too: nobody waits for it then.
struct Farewell<'a, M>(&'a Shared<M>);

impl<M> Drop for Farewell<'_, M> {
    fn drop(&mut self) {
        self.0.ended.store(true, Ordering::SeqCst);
        self.0.owner.rouse();
        if !std::thread::panicking() {
            return;
        }
        if let (true, Some(notify)) = (self.0.armed.swap(false, Ordering::SeqCst), &self.0.notify) {
            notify();
        }
    }
}

/// No lock here guards a state that a panic could leave half-made: slots are replaced whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    /// Longer than any machine takes to wake a thread; only a thread that sleeps for ever is waited for so long.
    const FOR_EVER: Duration = Duration::from_secs(60);

    #[test]
    fn who_has_something_to_do_does_not_go_to_sleep() {
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || {
            Bed::default().sleep_unless(|| true);
            tell.send(())
        });
        told.recv_timeout(FOR_EVER).expect("nobody wakes who has not looked");
    }

    #[test]
    fn a_wake_up_between_the_last_look_and_the_sleep_is_not_lost() {
        let bed = Arc::new(Bed::default());
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || {
            let other = Arc::clone(&bed);
            let (roused, rousing) = mpsc::channel();
            bed.sleep_unless(|| {
                // Said to sleep, has looked, and does not sleep yet: the other side has to wait for that. It gets a
                // moment to do it wrong.
                std::thread::spawn(move || {
                    other.rouse();
                    roused.send(())
                });
                rousing.recv_timeout(Duration::from_millis(100)).is_ok()
            });
            tell.send(rousing.recv().is_ok())
        });
        assert_eq!(told.recv_timeout(FOR_EVER), Ok(true), "the wake-up was lost");
    }
}
