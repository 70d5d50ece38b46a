//! What threads sleep on: a bell that others ring, beside a set of descriptors and a time limit; and the event descriptors of
//! consumers. Nothing else in the crate makes a system call of its own.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use remanence_link::{Descriptor, WaitFd, generation, wait};
use rustix::event::{EventfdFlags, PollFlags, eventfd};

/// A descriptor for a consumer that is readable while it is raised. Raising it twice is raising it once. The consumer finds
/// it in blocking mode and may change that, and could raise it himself. Lower it only while it is raised.
#[derive(Debug)]
pub(crate) struct Event(Descriptor);

impl Event {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC)?.into()))
    }

    /// It is ours, and not what a forked child has given back.
    pub(crate) fn is_open(&self) -> bool {
        self.0.is_open()
    }

    /// Makes the descriptor readable.
    pub(crate) fn raise(&self) {
        add(&self.0);
    }

    /// Makes the descriptor unreadable.
    pub(crate) fn lower(&self) {
        drain(&self.0);
    }

    #[cfg(test)]
    pub(crate) fn is_raised(&self) -> bool {
        let fd = WaitFd { fd: self.0.as_raw_fd(), events: PollFlags::IN.bits().cast_signed() };
        wait::poll(&[fd], Some(Duration::ZERO)).unwrap()
    }
}

/// How others call a thread of this crate, which sleeps or is about to: to ring before it sleeps is as good, and costs no
/// system call.
#[derive(Debug)]
pub(crate) struct Bell {
    fd: Descriptor,
    state: AtomicU8,
    /// Somebody who rings now writes to the descriptor. The thread's own, as is the next one.
    lies: AtomicBool,
    /// Writes that were not read yet, or are still to come: one for each ring that ended a sleep.
    owed: AtomicU64,
}

/// It does not sleep on the descriptor.
const AWAKE: u8 = 0;
/// It does, or is about to.
const ASLEEP: u8 = 1;
/// It was rung for.
const RUNG: u8 = 2;

impl Bell {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            fd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?.into(),
            state: AtomicU8::new(AWAKE),
            lies: AtomicBool::new(false),
            owed: AtomicU64::new(0),
        })
    }

    /// It is ours, and not what a forked child has given back.
    pub(crate) fn is_open(&self) -> bool {
        self.fd.is_open()
    }

    /// Ends the sleep, or the next one.
    pub(crate) fn ring(&self) {
        if self.state.swap(RUNG, Ordering::AcqRel) == ASLEEP {
            add(&self.fd);
        }
    }

    /// Whether somebody rang since the last sleep.
    pub(crate) fn has_rung(&self) -> bool {
        self.state.load(Ordering::Acquire) == RUNG
    }

    /// Looks whether somebody rings, and gives way to other threads between the looks, for so long at most.
    pub(crate) fn linger(&self, limit: Duration) {
        let begin = Instant::now();
        while !self.has_rung() && begin.elapsed() < limit {
            std::thread::yield_now();
        }
    }

    /// Sleeps until somebody rings or has rung, one of `fds` is ready, or `limit` is over. Wakes early for a signal, which it
    /// says, and takes an error for a wake-up: callers look again anyway. What the bell was rung for is for the caller to find.
    pub(crate) fn sleep(&self, fds: &mut Vec<WaitFd>, limit: Option<Duration>) -> bool {
        let mut signalled = false;
        if self.lie_down() {
            fds.push(self.wait_fd());
            let woken = wait::poll_or_signal(fds, limit);
            fds.pop();
            signalled = woken.is_err_and(|e| e.kind() == io::ErrorKind::Interrupted);
        }
        self.get_up();
        signalled
    }

    /// From here to [`get_up`](Self::get_up), rings make [`wait_fd`](Self::wait_fd) readable. `false`: it was rung already, and
    /// there is nothing to sleep for.
    pub(crate) fn lie_down(&self) -> bool {
        let lies = self.state.compare_exchange(AWAKE, ASLEEP, Ordering::AcqRel, Ordering::Acquire).is_ok();
        self.lies.store(lies, Ordering::Relaxed);
        lies
    }

    /// The sleep is over, or there was none.
    ///
    /// Whoever rang may be between the ring and what it writes, and stay there: where both have one core, the write itself makes the kernel switch
    /// to the thread that was woken. So what is read is counted, and nobody is asked whether there is something. (A flag behind the write was not raised
    /// yet at that moment: the descriptor stayed readable, and the thread that was woken turned round and round on the core, for as long as the scheduler
    /// let it, before the other one could raise the flag, or give back the device's lock.)
    pub(crate) fn get_up(&self) {
        // It reads what the last ring wrote, so that the look that follows sees what every ring was for.
        let was = self.state.swap(AWAKE, Ordering::AcqRel);
        let ended = self.lies.swap(false, Ordering::Relaxed) && was == RUNG;
        let owed = self.owed.load(Ordering::Relaxed) + u64::from(ended);
        // One that is still to come ends the next sleep, or one after it, and is read then.
        let left = if owed == 0 { 0 } else { owed.saturating_sub(drain(&self.fd)) };
        self.owed.store(left, Ordering::Relaxed);
    }

    /// What to sleep on.
    pub(crate) fn wait_fd(&self) -> WaitFd {
        WaitFd { fd: self.fd.as_raw_fd(), events: PollFlags::IN.bits().cast_signed() }
    }
}

/// Ends the present wait of a thread for something, or else the next one, from any thread: see
/// [`Cq::waker`](crate::Cq::waker) and [`Listener::waker`](crate::Listener::waker). Clones wake the same waits. It has no
/// descriptor, and does not keep the device open.
///
/// It is a permit: however often it is woken before a wait sees it, that wait ends, and the one after it does not. Whoever
/// wakes changes first what the waiter is to see.
#[derive(Clone, Debug)]
pub struct Waker(Arc<Alarm>);

/// What a waker and the waits that it ends have in common.
///
/// A waiter puts its bell here before its first look at `raised`, and looks again after each sleep. A waker raises first,
/// and rings then: a waiter whose bell was not here yet has still to look; of one whose bell was, the sleep ends that has
/// begun or is about to. So nothing is lost, and nobody takes the device's lock for it.
#[derive(Debug)]
struct Alarm {
    born: u32,
    raised: AtomicBool,
    /// The threads that wait, or are about to.
    bells: Mutex<Vec<Arc<Bell>>>,
}

impl Waker {
    pub(crate) fn new() -> Self {
        let (raised, bells) = (AtomicBool::new(false), Mutex::new(Vec::with_capacity(1)));
        Self(Arc::new(Alarm { born: generation(), raised, bells }))
    }

    /// Ends the present wait, or the next one.
    pub fn wake(&self) {
        // In a forked child nobody waits, and a thread of the parent may have held the lock.
        if self.0.born != generation() || self.0.raised.swap(true, Ordering::AcqRel) {
            // Whoever raised it rings, or has rung; and it stays raised until a waiter has looked.
            return;
        }
        for bell in &*self.bells() {
            bell.ring();
        }
    }

    /// Whether it was woken since it was last asked. Waits ask this too.
    pub(crate) fn take(&self) -> bool {
        self.0.raised.load(Ordering::Acquire) && self.0.raised.swap(false, Ordering::AcqRel)
    }

    /// From here until the guard goes, a wake rings this bell.
    pub(crate) fn rings(&self, bell: Arc<Bell>) -> Rings<'_> {
        self.bells().push(Arc::clone(&bell));
        Rings { waker: self, bell }
    }

    /// Each change of the list is one step.
    fn bells(&self) -> MutexGuard<'_, Vec<Arc<Bell>>> {
        self.0.bells.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A bell that a waker rings.
pub(crate) struct Rings<'a> {
    waker: &'a Waker,
    bell: Arc<Bell>,
}

impl Drop for Rings<'_> {
    fn drop(&mut self) {
        let mut bells = self.waker.bells();
        if let Some(at) = bells.iter().position(|bell| Arc::ptr_eq(bell, &self.bell)) {
            bells.swap_remove(at);
        }
    }
}

fn add(fd: &Descriptor) {
    if !fd.is_open() {
        return;
    }
    #[expect(clippy::host_endian_bytes, reason = "eventfd(2) takes a native word")]
    let one = 1u64.to_ne_bytes();
    loop {
        match rustix::io::write(fd, &one) {
            Err(rustix::io::Errno::INTR) => {}
            // Full (2^64 - 2 times unread) is readable, which is all that was asked for.
            Ok(_) | Err(rustix::io::Errno::AGAIN) => return,
            Err(e) => panic!("an event descriptor of this process could not be written: {e}"),
        }
    }
}

/// Makes it unreadable, and says how often it was written to.
fn drain(fd: &Descriptor) -> u64 {
    if !fd.is_open() {
        return 0;
    }
    let mut count = [0u8; 8];
    while let Err(rustix::io::Errno::INTR) = rustix::io::read(fd, &mut count) {}
    #[expect(clippy::host_endian_bytes, reason = "eventfd(2) hands out a native word")]
    u64::from_ne_bytes(count)
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Sleeps until `fd` is readable, or `limit` is over.
pub(crate) fn until_readable(fd: BorrowedFd<'_>, limit: Option<Duration>) {
    let _ = wait::poll(&[WaitFd { fd: fd.as_raw_fd(), events: PollFlags::IN.bits().cast_signed() }], limit);
}

/// Whether the file description behind `fd` is in non-blocking mode now: a consumer may switch it at any time
/// with fcntl, behind our back.
pub(crate) fn is_nonblocking(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::fcntl_getfl(fd).is_ok_and(|flags| flags.contains(rustix::fs::OFlags::NONBLOCK))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_readable_from_the_first_raise_to_the_lowering() {
        let event = Event::new().unwrap();
        assert!(!event.is_raised());
        event.raise();
        event.raise();
        assert!(event.is_raised());
        event.lower();
        assert!(!event.is_raised());
    }

    #[test]
    fn sleep_ends_for_the_bell_for_a_descriptor_and_for_the_limit() {
        let bell = Bell::new().unwrap();
        let other = Event::new().unwrap();
        let mut fds = Vec::new();
        bell.sleep(&mut fds, Some(Duration::from_millis(1)));
        bell.ring();
        bell.ring();
        assert!(bell.has_rung());
        assert!(
            !wait::poll(&[bell.wait_fd()], Some(Duration::ZERO)).unwrap(),
            "nobody sleeps, so nothing is written"
        );
        bell.sleep(&mut fds, None);
        assert!(!bell.has_rung());
        other.raise();
        fds.push(WaitFd { fd: other.as_fd().as_raw_fd(), events: PollFlags::IN.bits().cast_signed() });
        bell.sleep(&mut fds, None);
        assert_eq!(fds.len(), 1, "the caller's list is as it was");
    }

    /// What a ring does, in its two steps, between which whoever rings may stay for long.
    #[test]
    fn a_ring_that_stops_half_way_ends_one_sleep_and_not_all() {
        let bell = Bell::new().unwrap();
        let is_readable = || wait::poll(&[bell.wait_fd()], Some(Duration::ZERO)).unwrap();
        let begin_to_ring = || assert_eq!(bell.state.swap(RUNG, Ordering::AcqRel), ASLEEP);
        // It wrote, and does nothing more.
        assert!(bell.lie_down());
        begin_to_ring();
        add(&bell.fd);
        assert!(is_readable());
        bell.get_up();
        assert!(!is_readable(), "the next sleep is one");
        // It is to write yet, and the sleep was ended by something else.
        assert!(bell.lie_down());
        begin_to_ring();
        bell.get_up();
        assert!(bell.lie_down());
        add(&bell.fd);
        assert!(is_readable());
        bell.get_up();
        assert!(!is_readable());
        // Two of them, and one that nobody slept for.
        for _ in 0..2 {
            assert!(bell.lie_down());
            begin_to_ring();
            bell.get_up();
        }
        bell.ring();
        assert!(!bell.lie_down());
        bell.get_up();
        add(&bell.fd);
        add(&bell.fd);
        assert!(bell.lie_down() && is_readable());
        bell.get_up();
        assert!(!is_readable());
    }

    /// Each ring ends one sleep at least, whenever it comes; a thread that is never woken hangs here.
    #[test]
    fn no_ring_is_lost() {
        const ROUNDS: u32 = 4_000;
        let (bell, back) = (Bell::new().unwrap(), Bell::new().unwrap());
        let asked = std::sync::atomic::AtomicU32::new(0);
        let answered = std::sync::atomic::AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    while asked.load(Ordering::Acquire) < round {
                        if round % 3 == 0 {
                            bell.linger(Duration::from_micros(u64::from(round % 7)));
                        }
                        bell.sleep(&mut Vec::new(), None);
                    }
                    answered.store(round, Ordering::Release);
                    back.ring();
                }
            });
            for round in 1..=ROUNDS {
                asked.store(round, Ordering::Release);
                bell.ring();
                while answered.load(Ordering::Acquire) < round {
                    back.sleep(&mut Vec::new(), None);
                }
            }
        });
    }

    /// A wait as `progress.rs` has it, with nothing that ends a sleep but the bell: a wake that is lost hangs here.
    fn wait(waker: &Waker, bell: &Arc<Bell>) {
        let _rings = waker.rings(Arc::clone(bell));
        while !waker.take() {
            bell.sleep(&mut Vec::new(), None);
        }
    }

    #[test]
    fn no_wake_is_lost() {
        const ROUNDS: u32 = 40_000;
        let (there, back) = (Waker::new(), Waker::new());
        let asked = std::sync::atomic::AtomicU32::new(0);
        let answered = std::sync::atomic::AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let bell = Arc::new(Bell::new().unwrap());
                for round in 1..=ROUNDS {
                    wait(&there, &bell);
                    assert_eq!(asked.load(Ordering::Relaxed), round, "one wait for each wake");
                    answered.store(round, Ordering::Relaxed);
                    back.wake();
                }
            });
            let bell = Arc::new(Bell::new().unwrap());
            for round in 1..=ROUNDS {
                for _ in 0..round % 61 * (round % 7) {
                    std::hint::spin_loop();
                }
                asked.store(round, Ordering::Relaxed);
                there.wake();
                wait(&back, &bell);
                assert_eq!(answered.load(Ordering::Relaxed), round);
            }
        });
        assert!(there.bells().is_empty() && back.bells().is_empty());
    }

    /// Wakers that come at once from several threads: who finds it raised leaves the ringing to the one who raised it.
    #[test]
    fn no_wake_of_several_is_lost() {
        const ROUNDS: u32 = 10_000;
        let (waker, count) = (Waker::new(), std::sync::atomic::AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        count.fetch_add(1, Ordering::Relaxed);
                        waker.wake();
                    }
                });
            }
            let bell = Arc::new(Bell::new().unwrap());
            while count.load(Ordering::Relaxed) < 3 * ROUNDS {
                wait(&waker, &bell);
            }
        });
    }
}
