//! A lock that C holds between two calls: from `ibv_start_poll` to `ibv_end_poll`, from `ibv_wr_start` to
//! `ibv_wr_complete` or `ibv_wr_abort`.

use std::sync::atomic::{AtomicBool, Ordering};

/// Tries before a thread lets others run: the holder may wait for this very core.
const TRIES: u32 = 100;

pub(crate) struct Turnstile {
    /// C promised that one thread at a time comes here.
    unguarded: bool,
    taken: AtomicBool,
}

impl Turnstile {
    pub(crate) const fn new(unguarded: bool) -> Self {
        Self { unguarded, taken: AtomicBool::new(false) }
    }

    /// Waits until nobody is inside, and goes in.
    #[inline]
    pub(crate) fn enter(&self) {
        if !self.unguarded && self.taken.swap(true, Ordering::Acquire) {
            self.wait();
        }
    }

    #[cold]
    fn wait(&self) {
        let mut tries = 0;
        while self.taken.load(Ordering::Relaxed) || self.taken.swap(true, Ordering::Acquire) {
            tries += 1;
            if tries % TRIES == 0 {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }

    /// Lets the next thread go in; called by the one that is inside.
    #[inline]
    pub(crate) fn leave(&self) {
        self.taken.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[test]
    fn one_thread_is_inside() {
        let (turnstile, inside, rounds) = (Turnstile::new(false), AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..2_000 {
                        turnstile.enter();
                        assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0);
                        rounds.fetch_add(1, Ordering::Relaxed);
                        inside.fetch_sub(1, Ordering::Relaxed);
                        turnstile.leave();
                    }
                });
            }
        });
        assert_eq!(rounds.into_inner(), 6_000);
    }
}
