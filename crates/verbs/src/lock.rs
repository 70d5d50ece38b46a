//! The device lock: held for a few microseconds at a time by whoever drives, asked for by everyone.
//!
//! A plain mutex is almost right. Three things are added. A thread that finds the lock taken tries again for about as
//! long as a driver holds it before it goes to sleep: being woken costs 20 us on a virtual machine, more than
//! the driver's whole turn. It yields between its tries, as others may wait for this very core; to spin
//! against them for 50 us was the 99th percentile of a pinned poller.
//!
//! It does not try again where the holder is who waits for this core: the packet that a sender is answered with wakes
//! the progress thread while the sender is still inside its system call, and takes the core from it, lock and all.
//! Yielding is not enough then, as the kernel gives the core back to the thread with the larger share, which is the one that yields: 32
//! tries, 400 us of an emulated guest, and two thirds of a WRITE's latency there. So the holder notes its core.
//!
//! And who waits is counted, so that a thread that takes the lock in a loop
//! (the progress thread, spinning) can see that it should step aside: mutexes are not fair.

use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, TryLockError};
use std::time::{Duration, Instant};

use remanence_link::{current_cpu, generation};

/// Tries before a thread sleeps: some 20 us, longer than a burst of 64 KiB takes to send.
const TRIES: u32 = 32;

/// Turns of the spin loop before each.
const SPINS: u32 = 8;

pub(crate) struct DeviceLock<T> {
    /// What a forked child gets instead; see `abandon.rs`.
    heir: OnceLock<Mutex<T>>,
    make_heir: Box<dyn Fn() -> T + Send + Sync>,
    born: u32,
    waiting: AtomicU32,
    /// How often somebody found the lock taken and left.
    missed: AtomicU32,
    /// The core on which the last one took it. A hint: threads are moved.
    core: AtomicI32,
    mutex: Mutex<T>,
}

impl<T> DeviceLock<T> {
    pub(crate) fn new(value: T, make_heir: impl Fn() -> T + Send + Sync + 'static) -> Self {
        Self {
            heir: OnceLock::new(),
            make_heir: Box::new(make_heir),
            born: generation(),
            waiting: AtomicU32::new(0),
            missed: AtomicU32::new(0),
            core: AtomicI32::new(-1),
            mutex: Mutex::new(value),
        }
    }

    /// We are a child of the process that made it, and have abandoned it.
    #[inline]
    pub(crate) fn is_abandoned(&self) -> bool {
        self.born != generation()
    }

    #[inline]
    fn mutex(&self) -> &Mutex<T> {
        if self.is_abandoned() { self.heir() } else { &self.mutex }
    }

    #[cold]
    fn heir(&self) -> &Mutex<T> {
        self.heir.get_or_init(|| Mutex::new((self.make_heir)()))
    }

    /// The lock if it is free.
    ///
    /// # Panics
    /// If a thread panicked while it held the lock: the device's state is then unknown, and a device that
    /// answers peers out of an unknown state is worse than none.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.mutex().try_lock() {
            Ok(guard) => {
                self.note_core();
                Some(guard)
            }
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Poisoned(_)) => poisoned(),
        }
    }

    #[inline]
    fn note_core(&self) {
        self.core.store(current_cpu(), Ordering::Relaxed);
    }

    /// Whether the holder can go on only once the caller sleeps.
    #[inline]
    fn is_held_by_this_core(&self) -> bool {
        let core = current_cpu();
        core >= 0 && self.core.load(Ordering::Relaxed) == core
    }

    /// The lock, waiting for it as the head of this file says. Panics as [`try_lock`](Self::try_lock) does.
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        if let Some(guard) = self.try_lock() {
            return guard;
        }
        self.lock_contended()
    }

    #[cold]
    fn lock_contended(&self) -> MutexGuard<'_, T> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let mut guard = None;
        for _ in 0..TRIES {
            for _ in 0..SPINS {
                std::hint::spin_loop();
            }
            guard = self.try_lock();
            if guard.is_some() || self.is_held_by_this_core() {
                break;
            }
            std::thread::yield_now();
        }
        let guard = guard.unwrap_or_else(|| {
            let guard = self.mutex().lock().unwrap_or_else(|_| poisoned());
            self.note_core();
            guard
        });
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        guard
    }

    /// The lock for a destructor, which must not panic: `None` if a thread panicked while holding it, or if there is
    /// nothing left to destroy.
    pub(crate) fn lock_to_drop(&self) -> Option<MutexGuard<'_, T>> {
        if self.is_abandoned() {
            return None;
        }
        let guard = self.mutex.lock().ok();
        self.note_core();
        guard
    }

    /// The lock, if it can be had within `limit`; `None` too if there is nothing left to lock.
    pub(crate) fn lock_within(&self, limit: Duration) -> Option<MutexGuard<'_, T>> {
        let end = Instant::now() + limit;
        while !self.is_abandoned() {
            match self.mutex.try_lock() {
                Ok(guard) => {
                    self.note_core();
                    return Some(guard);
                }
                Err(TryLockError::WouldBlock) if Instant::now() < end => std::thread::yield_now(),
                Err(_) => return None,
            }
        }
        None
    }

    /// Notes that the caller found the lock taken and leaves. Who does so in a row, as a poller, gives way now and
    /// then: the holder may wait for this very core.
    pub(crate) fn miss(&self) {
        const ROW: u32 = 32;
        if self.missed.fetch_add(1, Ordering::Relaxed) % ROW == ROW - 1 {
            std::thread::yield_now();
        }
    }

    /// How often that happened since the last call.
    pub(crate) fn take_missed(&self) -> u32 {
        if self.missed.load(Ordering::Relaxed) == 0 { 0 } else { self.missed.swap(0, Ordering::Relaxed) }
    }

    /// Whether another thread waits for the lock at this moment.
    pub(crate) fn is_wanted(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) != 0
    }
}

fn poisoned() -> ! {
    panic!("a thread panicked inside the engine; this device can no longer be used")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everyone_gets_the_lock_and_nobody_shares_it() {
        let lock = DeviceLock::new(0u64, || 0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        let mut count = lock.lock();
                        let was = *count;
                        std::hint::black_box(&mut count);
                        *count = was + 1;
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), 40_000);
        assert!(!lock.is_wanted());
    }

    #[test]
    fn a_holder_sees_that_it_is_waited_for() {
        let lock = DeviceLock::new((), || ());
        let held = lock.lock();
        assert!(lock.try_lock().is_none());
        std::thread::scope(|scope| {
            scope.spawn(|| drop(lock.lock()));
            while !lock.is_wanted() {
                std::thread::yield_now();
            }
            drop(held);
        });
        assert!(!lock.is_wanted());
    }

    /// Two threads on one core: the one that waits can only sleep. On two cores it need not.
    #[test]
    fn a_waiter_knows_whether_the_holder_waits_for_its_core() {
        let lock = DeviceLock::new((), || ());
        loop {
            let before = current_cpu();
            let held = lock.lock();
            let known = lock.is_held_by_this_core();
            drop(held);
            // Unless this thread was moved meanwhile.
            if before == current_cpu() {
                assert_eq!(known, before >= 0);
                break;
            }
        }
        lock.core.store(current_cpu() + 1000, Ordering::Relaxed);
        assert!(!lock.is_held_by_this_core());
    }

    #[test]
    fn misses_are_counted_once() {
        let lock = DeviceLock::new((), || ());
        lock.miss();
        lock.miss();
        assert_eq!((lock.take_missed(), lock.take_missed()), (2, 0));
    }

    #[test]
    #[should_panic(expected = "can no longer be used")]
    fn a_device_whose_driver_panicked_is_used_by_nobody() {
        let lock = DeviceLock::new((), || ());
        let _ = std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    let _held = lock.lock();
                    panic!("inside the engine");
                })
                .join()
        });
        assert!(lock.lock_to_drop().is_none());
        drop(lock.lock());
    }
}
