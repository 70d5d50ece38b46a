//! Who waits for what others do is woken by it, and who does it pays a load of a word while nobody waits.
//!
//! **Why no wake-up is lost.** Who waits registers first, and looks at the state afterwards; who changes the state changes it first, and looks for
//! those who wait afterwards. Between either's two steps is a full fence, so at least one of them sees the other. What was counted since somebody registered ends
//! the wait at once.

use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// A kind of event.
#[derive(Debug, Default)]
pub(crate) struct Events {
    waiting: AtomicU32,
    count: Mutex<u64>,
    changed: Condvar,
}

impl Events {
    fn count(&self) -> MutexGuard<'_, u64> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something happened that somebody may wait for.
    pub(crate) fn happened(&self) {
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            *self.count() += 1;
            self.changed.notify_all();
        }
    }

    /// Registers: whatever happens from now on is seen by [`wait`](Waiter::wait). The caller looks at the state again before it waits.
    pub(crate) fn waiter(&self) -> Waiter<'_> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let seen = *self.count();
        fence(Ordering::SeqCst);
        Waiter { events: self, seen }
    }
}

/// Who is registered, until it is dropped.
#[derive(Debug)]
pub(crate) struct Waiter<'a> {
    events: &'a Events,
    seen: u64,
}

impl Waiter<'_> {
    /// Waits until something has happened since the last time, or until then, if there is such a time. Whether something has.
    pub(crate) fn wait(&mut self, until: Option<Instant>) -> bool {
        let mut count = self.events.count();
        while *count == self.seen {
            count = match until.map(|until| until.saturating_duration_since(Instant::now())) {
                None => self.events.changed.wait(count).unwrap_or_else(PoisonError::into_inner),
                Some(left) if left.is_zero() => return false,
                Some(left) => {
                    let woken = self.events.changed.wait_timeout(count, left);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        self.seen = *count;
        true
    }

    /// The same as [`Events::happened`], by whoever waits: he is not told of it.
    pub(crate) fn happened(&mut self) {
        fence(Ordering::SeqCst);
        let mut count = self.events.count();
        let is_up_to_date = *count == self.seen;
        *count += 1;
        if is_up_to_date {
            self.seen = *count;
        }
        drop(count);
        self.events.changed.notify_all();
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.events.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_happened_since_somebody_registered_ends_its_wait() {
        let events = Events::default();
        events.happened();
        let mut waiter = events.waiter();
        assert!(!waiter.wait(Some(Instant::now())), "that was before");
        events.happened();
        events.happened();
        assert!(waiter.wait(None) && !waiter.wait(Some(Instant::now())));
        let mut other = events.waiter();
        waiter.happened();
        assert!(other.wait(None) && !waiter.wait(Some(Instant::now())), "of what it says itself it knows");
        events.happened();
        waiter.happened();
        assert!(waiter.wait(None), "and of what was said before it has to hear");
    }

    #[test]
    fn nobody_sleeps_through_a_change() {
        const TURNS: u64 = 4000;
        let (events, turn) = (Events::default(), AtomicU64::new(0));
        let until = Instant::now() + Duration::from_secs(60);
        std::thread::scope(|scope| {
            for me in 0..2 {
                let (events, turn) = (&events, &turn);
                scope.spawn(move || {
                    for n in 0..TURNS {
                        let mut waiter = None;
                        while turn.load(Ordering::Relaxed) != n * 2 + me {
                            match &mut waiter {
                                None => waiter = Some(events.waiter()),
                                Some(waiter) => assert!(waiter.wait(Some(until)), "it sleeps for ever"),
                            }
                        }
                        turn.store(n * 2 + me + 1, Ordering::Relaxed);
                        events.happened();
                    }
                });
            }
        });
        assert_eq!(turn.load(Ordering::Relaxed), TURNS * 2);
    }
}
