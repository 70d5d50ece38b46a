//! Who drives the device, and who watches its link while nobody does. Pure decisions; `progress.rs` acts on them.
//!
//! # The three kinds of driver
//!
//! Driving is one turn of {receive, engine, transmit} under the device lock. Three kinds of thread drive:
//!
//! - a **poller**: a consumer's thread inside `Cq::poll`. It takes its turn inline, which is the fastest path
//!   there is, but it may stop polling at any moment without telling anyone;
//! - a **waiter**: a consumer's thread inside a blocking call (`Cq::wait`, `CompChannel::get_event`, a connect).
//!   It takes turns, and when there is nothing to do it *watches*: it sleeps on the link's descriptors itself, so
//!   that the packet it waits for wakes it with no other thread in between. It does say when it leaves;
//! - the **progress thread**, which serves peers' one-sided operations when no consumer's thread does.
//!
//! At most one thread watches: two would both be woken by each packet. Of several waiters one has the *seat*, and spins and
//! watches; the others are on the *bench*, where they sleep until whoever drives has something for them. The seat is for
//! a *warm* waiter, whose thread found what it waited for the last time ([`warm_after`] has it exactly): a server that waits for
//! requests in one thread and for connections in another would else pay two switches of threads for each request. A *cold* one
//! makes room, and takes the seat only when no warm one has left it lately; meanwhile the progress thread sees to the link, and is
//! called to it if it rests. Who has the seat while others find what they wait for, and it does not, cools down. So does who is woken
//! beside a poller, and finds nothing: each packet would make the kernel switch to it, on the poller's own core if it has to. A cold
//! waiter leaves the link to a poller, and the progress thread, which looks when the poller's lease is over, sees to it afterwards.
//!
//! The progress thread is in one of these
//! states, and every change of state happens under the device lock:
//!
//! | state | it | leaves it |
//! |---|---|---|
//! | `Awake` | will take the lock again without sleeping | by its own decision, under the lock |
//! | `Leased` | sleeps on its own event for at most [`LEASE_LIMIT`], as a poller drives or a waiter watches | when the lease is over |
//! | `Watching` | sleeps on the link and on its event until the deadline it knew | packet, deadline or kick |
//! | `Parked` | sleeps on its own event without limit, as a waiter watches | kick, when the last waiter leaves |
//!
//! # Why no wake-up is lost
//!
//! What must not go unnoticed is: a packet in the link, a deadline of the engine, room in a full socket.
//!
//! 1. A thread decides to sleep while it holds the device lock, after it looked at all three; it records in this
//!    struct, still under the lock, on what and until when it sleeps. Whoever changes the engine does so under
//!    the lock too, hence either before the decision (which then saw the change) or after it; and then calls
//!    [`Handover::changed`] before it unlocks, which compares the change with the record and orders a kick where
//!    the sleeper would be late. The kick raises the sleeper's event, a level-triggered descriptor: it ends a
//!    sleep that has begun and one that is about to begin.
//! 2. A packet that arrives after the last look makes the link's descriptor readable (sockets), or raises it as
//!    the link promised in `prepare_wait` (rings). One thread watches, or:
//! 3. nobody watches because a poller drives. Then the progress thread is `Leased` and looks again when the lease
//!    is over: if no poll came lately it takes over. `Parked` is entered only while a waiter watches, and that
//!    waiter hands over in [`Handover::waiter_left`]: to another waiter, to the progress thread, or to nobody while the
//!    progress thread is not parked.
//!
//! What a waiter waits for beside the device, a `Waker` of another thread, needs none of this: it raises a flag and rings the
//! waiter's own bell, and the waiter looks at the flag after it put the bell down to be rung (`wake.rs`).
//!
//! So in every state at least one of {someone awake, a bounded lease, a watcher, a kick under way} holds. The test
//! at the end of this file checks that sentence, after each step, for thousands of random schedules of pollers
//! that stop at any time, waiters, posts, packets and deadlines.

use std::time::Duration;

use remanence_rnic::Instant;

use self::core_sharing::CoreSharing;

/// How slow this machine is: the times below are those of one on which a poll that finds nothing takes 0.4 us, and are
/// multiplied by this. On an emulated CPU a poll takes longer than [`GAP_MIN`], and nobody would ever be a poller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pace(u32);

impl Pace {
    /// The machine that the times are written for.
    pub(crate) const ONE: Self = Self(1);
    const MAX: u32 = 32;
    /// Not slower than that is not slow.
    const SLOW: Duration = Duration::from_nanos(800);

    /// Of a machine on which an empty poll takes that long. What an empty poll does not have, a packet's way and a
    /// wake-up, an emulator slows down twice as much (8 times and 16 times were measured).
    pub(crate) fn of_empty_poll(time: Duration) -> Self {
        if time <= Self::SLOW {
            return Self::ONE;
        }
        let times = u32::try_from(time.as_nanos() / 200).unwrap_or(u32::MAX);
        Self(times.min(Self::MAX))
    }

    pub(crate) fn of(self, time: Duration) -> Duration {
        time * self.0
    }

    /// A peer must not wait for long, however slow we are.
    fn lease_max(self) -> Duration {
        self.of(LEASE_MAX).min(LEASE_LIMIT)
    }
}

/// A poller drives at most this long after its last poll; from then on the progress thread does. It is what a
/// peer's one-sided operation may wait when a consumer stops polling without asking for a notification or blocking.
/// Each look of the progress thread costs a poller on the same core about 28 us (measured on a virtual machine, where
/// it was the 99th percentile of a WRITE with leases of 256 us): 1.4 % with this.
///
/// The progress thread also looks this often whether a waiter still has the seat, until it parks.
const LEASE_MAX: Duration = Duration::from_millis(2);

/// No lease is longer, at any pace.
pub(crate) const LEASE_LIMIT: Duration = Duration::from_millis(8);

/// The first lease: a consumer that polls for a moment gets only a moment.
const LEASE_MIN: Duration = Duration::from_micros(32);

/// Polls with no more than this between them are one row of polls.
const POLL_GAP: Duration = Duration::from_micros(50);

/// A consumer whose row of polls lasts this long is a poller. An event-driven consumer, who also polls a few times for
/// each event, never gets that far: asking for the next notification ends the row.
const POLLER_AFTER: Duration = Duration::from_micros(100);

/// The strictest that both become, for a consumer that stopped polling too often: an empty poll takes less than 1 us.
/// A row of polls that lasts as long as this makes up for everything.
const GAP_MIN: Duration = Duration::from_micros(4);
const POLLER_AFTER_MAX: Duration = Duration::from_millis(100);

/// Answers that make up for a [`distrust`](Handover::distrust), and those that save from one.
const ANSWERS: u64 = 16;
const ANSWERS_HELD_UP: u64 = 2;

/// A packet that the progress thread is woken for, and that a consumer polled for this lately, would have been that
/// consumer's: it takes the progress thread some microseconds to run, and longer where it has to push the poller itself off their core.
const IN_TIME: Duration = Duration::from_micros(10);

/// Packets in a row polled for in time that make up for a distrust, at first and at most: it takes twice as many after a
/// trust that paid for less than [`TRUST_PAID`], and half as many after one that did.
const IN_TIME_MIN: u32 = 16;
const IN_TIME_MAX: u32 = 1 << 14;
const TRUST_PAID: u64 = 256;

/// Packets that polls took since a peer last had to wait, which save from a distrust: whoever polls for that many and misses
/// one was held up.
const TAKEN_HELD_UP: u64 = 64;

/// A waiter that watched this long without leaving is trusted to do so for long: the progress thread parks.
const PARK_AFTER: Duration = Duration::from_millis(20);

/// Who sees to the link for others this often, and finds nothing of its own, is cold.
const FOR_OTHERS: u32 = 4;

/// While there was work this recently the watcher limits its sleep to [`RECENT_SLEEP`], so that the retransmission
/// timers of fresh requests do not each need a kick.
const RECENT: Duration = Duration::from_millis(20);
const RECENT_SLEEP: Duration = Duration::from_millis(1);

/// How the progress thread of a context behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Progress {
    /// Serves whenever no consumer's thread does; spins as long as spinning has paid lately, then sleeps.
    #[default]
    Adaptive,
    /// Serves whenever no consumer's thread does; sleeps as soon as there is nothing to do.
    Sleep,
    /// Serves whenever no consumer's thread does, and never sleeps then: the lowest latency for peers, for a core.
    Spin,
    /// There is no progress thread: peers are served only while the consumer polls or waits.
    ByConsumer,
}

/// Whether a thread is warm after a wait, of what it was before. One that ended at a limit of less than a lease was not in vain: a
/// server that has something to do soon looks again until then, and would else lose the seat each time.
pub(crate) fn warm_after(before: bool, found: bool, limit: Option<Duration>) -> bool {
    found || (before && limit.is_some_and(|limit| limit < LEASE_MAX))
}

/// Which waiter; an index that `progress.rs` hands out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WaiterId(pub(crate) u32);

/// Which thread to wake after the lock is released.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kick {
    /// No thread needs to be woken.
    None,
    /// The progress thread.
    Thread,
    /// The waiter of this number.
    Waiter(WaiterId),
}

/// What a thread does next, having released the lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Plan {
    /// Takes another turn.
    Again,
    /// Takes another turn, and before it offers its core to whoever wants it.
    Yield,
    /// Sleeps on its own event, at most this long.
    Rest(Option<Duration>),
    /// Sleeps on its own event and the link, at most this long.
    Watch(Option<Duration>),
}

/// What a thread knows of the engine and the link when it decides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outlook {
    /// When the engine wants to be called, if nothing arrives.
    pub(crate) deadline: Option<Instant>,
    /// A packet waits for room in the link.
    pub(crate) blocked: bool,
    /// The last turn left something undone, or took so much at once that more is likely to be there already.
    pub(crate) busy: bool,
    /// The last turn received something, and did not only what was due.
    pub(crate) came: bool,
    /// The last turn brought something that a consumer is expected to answer at once.
    pub(crate) awaited: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Thread {
    Absent,
    Awake,
    /// A poller drives, or a waiter watches; in the latter case `to_poller` is false.
    Leased {
        to_poller: bool,
    },
    Watching,
    Parked,
}

/// On what the watcher was told to sleep.
#[derive(Clone, Copy, Debug)]
struct Watch {
    until: Option<Instant>,
    writable: bool,
}

/// How long to spin before sleeping. Spinning pays while silences are shorter than what a wake-up costs, *and* end
/// while somebody spins: where there are more threads than cores, the consumer that would answer may be waiting for this
/// very core (it may spin itself, on memory), and the silence lasts as long as the spinning does. So what counts is
/// whether spinning was rewarded. Once it has been given up, it is tried again now and then, when silences are short.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpinBudget {
    pace: Pace,
    now: Duration,
    /// Short silences until the next try, of so many.
    left: u32,
    every: u32,
}

impl SpinBudget {
    /// Twice a wake-up through the kernel on a virtual machine, which is the most that spinning can be worth.
    const MAX: Duration = Duration::from_micros(50);
    const MIN: Duration = Duration::from_micros(5);
    /// Of this many short silences, one is spent on trying: 2 % of the time when it is in vain.
    const EVERY_MAX: u32 = 64;
    /// A silence that was slept through lasted longer by our own wake-up, and maybe by the peer's, than it would have lasted under
    /// somebody who spins: up to so many times [`MAX`](Self::MAX) it may have been a short one. (54 us was measured, on a virtual
    /// machine, for what takes 6 us where both spin.)
    const SLEPT: u32 = 4;

    pub(crate) fn new(pace: Pace) -> Self {
        Self { pace, now: pace.of(Self::MAX), left: 1, every: 1 }
    }

    /// Whether it has not been given up.
    fn pays(&self) -> bool {
        self.now > Duration::ZERO
    }

    /// Whether to go on spinning after a silence of `silence`.
    pub(crate) fn covers(&self, silence: Duration) -> bool {
        silence < self.now
    }

    /// Learns from a silence that just ended; `slept`: nobody spun any more when it did.
    pub(crate) fn learn(&mut self, silence: Duration, slept: bool) {
        let (min, max) = (self.pace.of(Self::MIN), self.pace.of(Self::MAX));
        if !slept {
            // Less than that is found by the look that comes before any sleep.
            if silence >= min {
                self.now = (self.now * 2).clamp(min, max);
                (self.left, self.every) = (1, 1);
            }
        } else if self.now > Duration::ZERO {
            self.now /= 2;
            if self.now < min || self.every > 1 {
                self.now = Duration::ZERO;
                self.every = (self.every * 2).min(Self::EVERY_MAX);
                self.left = self.every;
            }
        } else if silence <= max * Self::SLEPT {
            self.left -= 1;
            if self.left == 0 {
                self.now = max;
            }
        }
    }
}

/// The silences after something was posted, and the others, are learned from apart. Whoever has asked several peers at once waits for
/// long for the first answer, say while it is written to a disk, and not for the others: what is found by spinning for those says
/// nothing about the first one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spin {
    after_post: SpinBudget,
    otherwise: SpinBudget,
    /// Something was posted since the last work.
    asked: bool,
}

impl Spin {
    fn new(pace: Pace) -> Self {
        Self { after_post: SpinBudget::new(pace), otherwise: SpinBudget::new(pace), asked: false }
    }

    fn budget(&self) -> &SpinBudget {
        if self.asked { &self.after_post } else { &self.otherwise }
    }

    fn pays(&self) -> bool {
        self.budget().pays()
    }

    fn covers(&self, silence: Duration) -> bool {
        self.budget().covers(silence)
    }

    fn learn(&mut self, silence: Duration, slept: bool) {
        let budget = if self.asked { &mut self.after_post } else { &mut self.otherwise };
        budget.learn(silence, slept);
    }
}

/// See the head of the file. Lives under the device lock.
#[derive(Debug)]
pub(crate) struct Handover {
    policy: Progress,
    pace: Pace,
    thread: Thread,
    /// The waiter that spins or watches.
    seat: Option<WaiterId>,
    seat_is_warm: bool,
    /// Times since it was taken that it saw to the link for others only: a waiter on the bench found something, or a poller drove.
    for_others: u32,
    /// Waiters that were warm when they came, and have cooled down since.
    cooled: Vec<WaiterId>,
    /// The waiter in the seat sleeps while it watches, and does not spin.
    seat_sleeps: bool,
    seated_at: Instant,
    /// What the thread that watches (progress thread or waiter) sleeps on.
    watch: Watch,
    /// When a warm waiter last left it.
    warm_left: Option<Instant>,
    /// Waiters that sleep on their own event only, in the order of their coming, and whether they are warm.
    bench: Vec<(WaiterId, bool)>,
    /// Polls so far, and how many the progress thread has seen.
    polls: u64,
    polls_seen: u64,
    /// When the progress thread last took a turn.
    planned_at: Instant,
    /// When the last poll was, and when the row of polls began that it belongs to.
    polled_at: Option<Instant>,
    row_since: Instant,
    /// What makes a poller, of this consumer: at first [`POLL_GAP`] and [`POLLER_AFTER`].
    gap: Duration,
    poller_after: Duration,
    /// It posted since its last poll, and soon after it.
    posting: bool,
    /// Answers since one was missed, or since it was last held up.
    answers: u64,
    /// Packets that polls took: since a peer had to wait, and since this consumer was last distrusted or trusted again.
    taken: u64,
    taken_in_trust: u64,
    /// While it is distrusted: packets in a row that it polled for in time, and how many it takes to be trusted again.
    in_time: u32,
    in_time_needed: u32,
    lease: Duration,
    worked_at: Instant,
    /// Since when there is silence: the last work, or the beginning of the wait that goes on. Who begins to wait has asked
    /// for something, and the answer is as near as if it had asked for it at once after the one before.
    quiet_since: Instant,
    spin: Spin,
    sharing: CoreSharing,
    /// The thread that watched went to sleep since there was work.
    slept: bool,
    /// A turn has found nothing since there was work.
    looked: bool,
}

impl Handover {
    pub(crate) fn new(policy: Progress, pace: Pace) -> Self {
        Self {
            policy,
            pace,
            thread: if policy == Progress::ByConsumer { Thread::Absent } else { Thread::Awake },
            seat: None,
            seat_is_warm: false,
            for_others: 0,
            cooled: Vec::new(),
            seat_sleeps: false,
            seated_at: Instant::ZERO,
            warm_left: None,
            watch: Watch { until: None, writable: false },
            bench: Vec::new(),
            polls: 0,
            polls_seen: 0,
            planned_at: Instant::ZERO,
            polled_at: None,
            row_since: Instant::ZERO,
            gap: pace.of(POLL_GAP),
            poller_after: pace.of(POLLER_AFTER),
            posting: false,
            answers: 0,
            taken: 0,
            taken_in_trust: 0,
            in_time: 0,
            in_time_needed: IN_TIME_MIN,
            lease: pace.of(LEASE_MIN),
            worked_at: Instant::ZERO,
            quiet_since: Instant::ZERO,
            spin: Spin::new(pace),
            sharing: CoreSharing::new(pace),
            slept: false,
            looked: false,
        }
    }

    /// A consumer polled. Without the time, which is only worth asking for when there was nothing to take.
    #[inline]
    pub(crate) fn count_polls(&mut self, polls: u64) {
        self.polls += polls;
    }

    /// A consumer polled, and drives. Takes the progress thread off the link once this consumer is a poller.
    #[inline]
    pub(crate) fn polled(&mut self, now: Instant) -> Kick {
        self.polls += 1;
        self.extend_row(now);
        let cold = self.seat_sleeps && !self.seat_is_warm && self.thread != Thread::Absent;
        if !(cold || self.thread == Thread::Watching) || !self.is_polled(now) {
            return Kick::None;
        }
        match self.seat {
            // It sits down when it is up; that it will be is as good as watching.
            Some(seated) => {
                self.seat_sleeps = false;
                Kick::Waiter(seated)
            }
            None => {
                self.thread = Thread::Awake;
                Kick::Thread
            }
        }
    }

    /// A consumer asked to be notified, and will sleep: it is no poller any more, whatever it was.
    pub(crate) fn armed(&mut self) -> Kick {
        self.polled_at = None;
        if self.thread == (Thread::Leased { to_poller: true }) {
            self.thread = Thread::Awake;
            return Kick::Thread;
        }
        Kick::None
    }

    /// A consumer posts. What that takes is no gap in its row of polls, nor is what it takes to post many in a row. Says whether
    /// it is in one.
    #[inline]
    pub(crate) fn posted(&mut self, now: Instant) -> bool {
        self.spin.asked = true;
        self.posting = self.polled_at.is_some_and(|last| now.since(last) <= self.gap);
        if self.posting {
            self.polled_at = Some(now);
        }
        self.posting
    }

    /// The turn of a consumer who polled, or posted in a row of polls, at `start` took until `end`: it could not poll meanwhile.
    /// As for the row, it stands for no more than a gap does: one long turn makes no poller.
    pub(crate) fn drove_until(&mut self, start: Instant, end: Instant) {
        let took = end.since(start);
        self.row_since = self.row_since + took.saturating_sub(self.gap);
        self.polled_at = Some(end);
    }

    /// So many ACKs left with an answer of the consumer's, and so many waited for one in vain. A consumer that answers
    /// at once, again and again, polls when the next message comes, whatever it was taken for before.
    pub(crate) fn answered(&mut self, ridden: u64, vain: u64) {
        if vain != 0 {
            self.answers = 0;
        }
        self.answers += ridden;
        if self.answers >= ANSWERS {
            self.trust();
        }
    }

    /// A poll brought something.
    #[inline]
    pub(crate) fn took(&mut self) {
        self.taken += 1;
        self.taken_in_trust += 1;
        self.came_in_time(true);
    }

    /// There was something to take; `in_time`: by a consumer who polls, or one was about to.
    fn came_in_time(&mut self, in_time: bool) {
        if !self.is_distrusted() {
            return;
        }
        self.in_time = if in_time { self.in_time + 1 } else { 0 };
        if self.in_time >= self.in_time_needed {
            self.trust();
        }
    }

    fn is_distrusted(&self) -> bool {
        self.gap < self.pace.of(POLL_GAP)
    }

    /// Makes up for every [`distrust`](Self::distrust).
    fn trust(&mut self) {
        if self.is_distrusted() {
            (self.gap, self.poller_after) = (self.pace.of(POLL_GAP), self.pace.of(POLLER_AFTER));
            (self.in_time, self.taken_in_trust) = (0, 0);
        }
    }

    fn extend_row(&mut self, now: Instant) {
        let posting = std::mem::take(&mut self.posting);
        if self.polled_at.is_none_or(|last| now.since(last) > self.gap && !posting) {
            self.row_since = now;
        } else if now.since(self.row_since) >= self.pace.of(POLLER_AFTER_MAX) {
            self.trust();
        }
        self.polled_at = Some(now);
    }

    /// Whether a consumer polled in the time that ends now, as far as is known: those who found the lock taken left no time.
    fn polled_since(&self, now: Instant, time: Duration) -> bool {
        let uncounted = self.polls != self.polls_seen && now.since(self.planned_at) <= time;
        self.polled_at.is_some_and(|last| uncounted || now.since(last) <= time)
    }

    /// Whether a poller drives.
    fn is_polled(&self, now: Instant) -> bool {
        self.polled_at.is_some_and(|last| {
            now.since(last) <= self.gap && last.since(self.row_since) >= self.poller_after
        })
    }

    /// Nobody sleeps on the link, or is about to, as a poller drives.
    #[inline]
    pub(crate) fn is_left_to_poller(&self) -> bool {
        self.seat.is_none() && matches!(self.thread, Thread::Absent | Thread::Leased { to_poller: true })
    }

    /// Somebody sleeps on the link, or is about to.
    #[inline]
    pub(crate) fn is_watched(&self) -> bool {
        self.seat_sleeps || self.thread == Thread::Watching
    }

    /// The engine changed under the lock: does the thread that watches sleep too long, or on too little?
    #[inline]
    pub(crate) fn changed(&mut self, outlook: Outlook) -> Kick {
        if self.watch.misses(outlook) { self.look_again() } else { Kick::None }
    }

    /// What the thread that watches sleeps on is not what should be slept on any more.
    pub(crate) fn look_again(&mut self) -> Kick {
        if !self.is_watched() {
            return Kick::None;
        }
        // The record is adjusted at once, so that one kick is enough for a row of changes.
        self.watch = Watch { until: Some(Instant::ZERO), writable: true };
        match self.seat {
            Some(waiter) => Kick::Waiter(waiter),
            None => {
                self.thread = Thread::Awake;
                Kick::Thread
            }
        }
    }

    /// The lease of the progress thread is over: how long it rests on without taking a turn, if a poller drives.
    pub(crate) fn renew(&mut self, now: Instant) -> Option<Duration> {
        let leased = self.thread == (Thread::Leased { to_poller: true }) && self.seat.is_none();
        if !leased || !self.is_polled(now) {
            return None;
        }
        self.polls_seen = self.polls;
        let lease = self.lease;
        self.lease = (lease * 2).min(self.pace.lease_max());
        Some(lease)
    }

    /// The progress thread took a turn; `worked` says whether there was anything to do.
    pub(crate) fn plan(&mut self, now: Instant, worked: bool, outlook: Outlook) -> Plan {
        let was_leased = self.thread == (Thread::Leased { to_poller: true });
        if worked && !was_leased {
            let in_time = self.polled_since(now, self.pace.of(IN_TIME));
            self.came_in_time(in_time);
        }
        self.planned_at = now;
        self.thread = Thread::Awake;
        self.note(now, worked, outlook.came);
        if self.seat.is_some() {
            return self.leave_it_to_the_waiter(now);
        }
        if self.polls != self.polls_seen {
            self.polls_seen = self.polls;
            // Polls that found something to take did not ask for the time: they were since the last look.
            self.extend_row(now);
        }
        if self.is_polled(now) {
            self.thread = Thread::Leased { to_poller: true };
            let lease = self.lease;
            self.lease = (lease * 2).min(self.pace.lease_max());
            return Plan::Rest(Some(lease));
        }
        if was_leased && worked {
            let answers = std::mem::take(&mut self.answers);
            let taken = std::mem::take(&mut self.taken);
            if answers >= ANSWERS_HELD_UP || taken >= TAKEN_HELD_UP {
                // It polled a moment ago, and will again: whoever shares its core held it up.
                self.thread = Thread::Leased { to_poller: true };
                self.lease = (self.lease / 2).max(self.pace.of(LEASE_MIN));
                return Plan::Rest(Some(self.lease));
            }
            self.distrust();
        }
        self.lease = self.pace.of(LEASE_MIN);
        // The consumer who will answer may wait for this very core.
        let gives_way = outlook.awaited && self.policy != Progress::Spin;
        if !gives_way && self.looks_again(now, worked, outlook) {
            return self.again(now, worked);
        }
        self.sharing.sleeps();
        self.thread = Thread::Watching;
        Plan::Watch(self.watch(now, outlook))
    }

    /// A consumer stopped polling while a peer waited. One that does so again and again, such as one that spins on its
    /// memory between polls, is no poller: it must poll for longer, and with less between the polls, to be taken for
    /// one; or be seen to poll whenever there is something to take.
    fn distrust(&mut self) {
        if !self.is_distrusted() {
            let paid = std::mem::take(&mut self.taken_in_trust) >= TRUST_PAID;
            let needed = if paid { self.in_time_needed / 2 } else { self.in_time_needed * 2 };
            self.in_time_needed = needed.clamp(IN_TIME_MIN, IN_TIME_MAX);
        }
        self.in_time = 0;
        self.gap = (self.gap / 4).max(self.pace.of(GAP_MIN));
        self.poller_after = (self.poller_after * 4).min(self.pace.of(POLLER_AFTER_MAX));
    }

    fn leave_it_to_the_waiter(&mut self, now: Instant) -> Plan {
        if now.since(self.seated_at) >= PARK_AFTER {
            self.thread = Thread::Parked;
            return Plan::Rest(None);
        }
        self.thread = Thread::Leased { to_poller: false };
        Plan::Rest(Some(self.pace.lease_max()))
    }

    /// The progress thread found, in `prepare_wait`, that it may not sleep after all.
    pub(crate) fn stay_awake(&mut self) {
        if self.thread == Thread::Watching {
            self.thread = Thread::Awake;
        }
    }

    /// A waiter comes: it has waited for nothing yet.
    pub(crate) fn waiter_came(&mut self, now: Instant) {
        if self.seat.is_none() {
            self.quiet_since = now;
            (self.slept, self.looked) = (false, false);
        }
        self.sharing.sleeps();
    }

    /// A waiter's turn brought what it waits for.
    pub(crate) fn found(&mut self, now: Instant) {
        self.note(now, true, true);
    }

    /// A waiter took a turn that did not bring what it waits for. `warm`: the last wait of its thread did not end in vain.
    pub(crate) fn plan_waiter(
        &mut self,
        now: Instant,
        id: WaiterId,
        warm: bool,
        worked: bool,
        outlook: Outlook,
    ) -> (Plan, Kick) {
        self.note(now, worked, outlook.came);
        let mut kick = Kick::None;
        let has_seat = self.seat == Some(id);
        let beside_poller = self.thread != Thread::Absent && self.is_polled(now);
        if beside_poller && has_seat && self.seat_sleeps {
            self.cool(id);
        }
        let warm = warm && !self.cooled.contains(&id);
        if beside_poller && !warm && (has_seat || self.seat.is_none()) {
            (self.seat, self.seat_sleeps) = (None, false);
            return (self.sit_down(id, warm), self.leave_it_to_the_poller());
        }
        match self.seat {
            Some(seated) if seated == id => {}
            // The other will see that it has lost the seat; were there no progress thread, it would have to be told again
            // and again.
            Some(seated) if warm && !self.seat_is_warm && self.thread != Thread::Absent => {
                if self.seat_sleeps {
                    kick = Kick::Waiter(seated);
                }
                self.take_seat(now, id, warm);
            }
            Some(_) => return (self.sit_down(id, warm), Kick::None),
            None if !warm && self.is_kept(now) => return (self.sit_down(id, warm), self.see_to_it()),
            None => self.take_seat(now, id, warm),
        }
        // Two on the link are one too many, also while the one in the seat spins.
        if self.thread == Thread::Watching {
            self.thread = Thread::Awake;
            kick = Kick::Thread;
        }
        if self.looks_again(now, worked, outlook) {
            self.seat_sleeps = false;
            return (self.again(now, worked), kick);
        }
        self.sharing.sleeps();
        self.seat_sleeps = true;
        (Plan::Watch(self.watch(now, outlook)), kick)
    }

    fn take_seat(&mut self, now: Instant, id: WaiterId, warm: bool) {
        self.bench.retain(|&(other, _)| other != id);
        (self.seat, self.seat_is_warm, self.seated_at) = (Some(id), warm, now);
        self.for_others = 0;
    }

    fn sit_down(&mut self, id: WaiterId, warm: bool) -> Plan {
        if self.bench.iter().all(|&(other, _)| other != id) {
            self.bench.push((id, warm));
        }
        Plan::Rest(None)
    }

    /// The seat stays empty while somebody waits: the progress thread would not look before its lease is over, and is called.
    fn see_to_it(&mut self) -> Kick {
        if !matches!(self.thread, Thread::Leased { .. }) {
            return Kick::None;
        }
        self.thread = Thread::Awake;
        Kick::Thread
    }

    /// A poller drives, and nobody watches: who sleeps for longer than a lease must not.
    fn leave_it_to_the_poller(&mut self) -> Kick {
        if !matches!(self.thread, Thread::Parked | Thread::Leased { to_poller: false }) {
            return Kick::None;
        }
        self.thread = Thread::Awake;
        Kick::Thread
    }

    /// The one in the seat saw to the link for others, once more.
    fn cool(&mut self, seated: WaiterId) {
        self.for_others += 1;
        if self.for_others >= FOR_OTHERS && self.seat_is_warm {
            self.seat_is_warm = false;
            self.cooled.push(seated);
        }
    }

    /// A warm waiter was in the seat lately and may be back soon; until then the progress thread sees to it.
    fn is_kept(&self, now: Instant) -> bool {
        !matches!(self.thread, Thread::Parked | Thread::Absent)
            && self.warm_left.is_some_and(|left| now.since(left) < self.pace.lease_max())
    }

    /// A waiter returns to its caller, with what it waited for if `found`.
    pub(crate) fn waiter_left(&mut self, now: Instant, id: WaiterId, found: bool) -> Kick {
        self.bench.retain(|&(other, _)| other != id);
        self.cooled.retain(|&other| other != id);
        if let Some(seated) = self.seat.filter(|&seated| seated != id) {
            if found {
                self.cool(seated);
            }
            return Kick::None;
        }
        let warm_left = self.seat.is_some() && self.seat_is_warm;
        if warm_left {
            self.warm_left = Some(now);
        }
        // For a cold one, the progress thread would rather be woken: that is once, as it parks no more while this one comes and goes.
        let kept = self.is_kept(now) || (warm_left && self.thread == Thread::Parked);
        // An empty seat counts as its own: this waiter may have been called to it and gave up meanwhile.
        self.seat = None;
        self.seat_sleeps = false;
        let next = self.bench.iter().find(|&&(_, warm)| warm);
        let next = next.or_else(|| self.bench.first().filter(|_| !kept));
        if let Some(&(next, _)) = next {
            return Kick::Waiter(next);
        }
        if self.thread == Thread::Parked {
            self.thread = Thread::Awake;
            return Kick::Thread;
        }
        Kick::None
    }

    /// Waiters that sleep, for the driver that brought something any of them may wait for.
    pub(crate) fn sleepers(&self) -> impl Iterator<Item = WaiterId> {
        self.seat.filter(|_| self.seat_sleeps).into_iter().chain(self.bench.iter().map(|&(id, _)| id))
    }

    /// `came`: what was done came from outside. For what was due nobody need have spun: that it would be was known.
    fn note(&mut self, now: Instant, worked: bool, came: bool) {
        self.sharing.looks(now);
        if worked {
            self.worked_at = now;
        }
        // What was there at the first look after the work before was not waited for, however long that work took.
        let waited = self.slept || self.looked;
        self.looked = !came;
        if came {
            if waited && self.policy != Progress::Sleep {
                self.spin.learn(now.since(self.quiet_since), self.slept);
            }
            self.spin.asked = false;
            self.quiet_since = now;
            self.slept = false;
        }
    }

    /// Whether to take another turn before sleeping. After work it is the rule, as the next packet is often there by
    /// then; but where spinning has been given up, somebody else wants this core, and the kernel may look as well: a
    /// watcher does not sleep while there is something in the link.
    fn looks_again(&self, now: Instant, worked: bool, outlook: Outlook) -> bool {
        outlook.busy || self.policy == Progress::Spin || self.spins(now) || (worked && self.spin.pays())
    }

    fn again(&mut self, now: Instant, worked: bool) -> Plan {
        // Who never sleeps has a core of its own.
        let shares = !worked && self.policy != Progress::Spin;
        if shares && self.sharing.offers(now) { Plan::Yield } else { Plan::Again }
    }

    fn spins(&self, now: Instant) -> bool {
        self.policy != Progress::Sleep && self.spin.covers(now.since(self.quiet_since))
    }

    /// Records what the watcher sleeps on; returns the limit of its sleep.
    fn watch(&mut self, now: Instant, outlook: Outlook) -> Option<Duration> {
        let recent = (now.since(self.worked_at) < RECENT).then(|| now + RECENT_SLEEP);
        let until = [outlook.deadline, recent].into_iter().flatten().min();
        self.watch = Watch { until, writable: outlook.blocked };
        self.slept = true;
        until.map(|until| until.since(now))
    }
}

impl Watch {
    fn misses(&self, outlook: Outlook) -> bool {
        let late = match (outlook.deadline, self.until) {
            (None, _) => false,
            (Some(_), None) => true,
            (Some(deadline), Some(until)) => deadline < until,
        };
        late || (outlook.blocked && !self.writable)
    }
}

mod core_sharing;
#[cfg(test)]
mod tests;
