//! Who waits, who takes completions out of the queue, and who is woken.
//!
//! All that the threads share is behind one lock, which nobody holds while it sleeps. At most one thread *leads*: it waits for the
//! completion queue, and hands on what comes. Others who want to wait meanwhile *follow*: they sleep until the leader has something
//! for them, or does not lead any more, when one of them does. So completions are handed on in the order in which they were taken
//! out, and a thread that is alone never meets another one:
//!
//! - who polls takes its own inbox first, and else the queue, unless somebody leads, who is woken by what comes;
//! - who has taken completions of others puts them into their inboxes under the lock, and wakes followers under it, so that none is
//!   missed between the look at an inbox and the sleep;
//! - who wakes a [`Waiter`] counts that under the lock first. A leader that is about to sleep is woken by the queue's own waker, which
//!   is a permit: nothing is lost if it comes just before.
//!
//! A session that is alone has an inbox that is always empty: its completions go from the queue to its own list.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context as Task, Poll, Wake};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use remanence_rnic::{CqError, QpCaps, Wc};
use remanence_verbs::{CompChannel, Context, Cq, Error, Pd, Qp, QpOptions, Waker};
use remanence_wire::Qpn;

use crate::Deadlines;

/// Completions that are taken out of the queue at a time.
const BATCH: usize = 64;
/// The queue's capacity at first. It grows with the sessions.
const CAPACITY: u32 = 1024;

/// One device, one completion queue, and the sessions on it. Clones are the same reactor.
#[derive(Clone, Debug)]
pub struct Reactor {
    inner: Arc<Inner>,
}

/// Whether they are the same reactor.
impl PartialEq for Reactor {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Eq for Reactor {}

#[derive(Debug)]
struct Inner {
    context: Context,
    cq: Cq,
    channel: Option<CompChannel>,
    waker: Waker,
    state: Mutex<State>,
    /// Followers sleep here.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    slots: Vec<Option<Slot>>,
    by_qpn: HashMap<Qpn, usize>,
    /// Completions that the QPs may have in the queue at a time, and for how many it has room.
    needed: u32,
    capacity: u32,
    /// Somebody waits for the queue, and whoever else wants to sleeps on `changed`.
    is_led: bool,
    followers: u32,
    /// Counts what was put into inboxes, and what became due.
    news: u64,
    /// Counts the wakes of waiters.
    wakes: u64,
    /// Of the sessions and the timers, by their places.
    deadlines: Deadlines<usize, Instant>,
    /// Sessions and timers so far: a place may have been another one's.
    births: u64,
    /// Nothing comes out of the queue any more. Whoever looks is told why.
    is_broken: bool,
}

/// A session or a timer, as the reactor knows it.
#[derive(Debug)]
struct Slot {
    /// A timer has none.
    qpn: Option<Qpn>,
    born: u64,
    inbox: Vec<Wc>,
    is_due: bool,
    is_cancelled: bool,
    task: Option<std::task::Waker>,
}

/// What ended a wait for any session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Came {
    /// Some session has something, or its deadline is over.
    Something,
    /// It was woken.
    Woken,
    /// The limit was reached first.
    Nothing,
}

/// What a wait is for.
enum Wants<'a> {
    Session {
        at: usize,
        qpn: Qpn,
        out: &'a mut Vec<Wc>,
    },
    /// `goes_on`: also when nothing comes out of the queue any more.
    Any {
        seen: &'a mut Seen,
        batch: &'a mut Vec<Wc>,
        goes_on: bool,
    },
}

/// What a waiter was told of.
#[derive(Clone, Copy, Debug)]
struct Seen {
    news: u64,
    wakes: u64,
}

impl State {
    /// A place for one that begins; and who it is, as the place may have been another one's.
    fn enter(&mut self, qpn: Option<Qpn>) -> (usize, u64) {
        self.births += 1;
        let born = self.births;
        let at = self.slots.iter().position(Option::is_none).unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        if let Some(qpn) = qpn {
            self.by_qpn.insert(qpn, at);
        }
        self.slots[at] =
            Some(Slot { qpn, born, inbox: Vec::new(), is_due: false, is_cancelled: false, task: None });
        (at, born)
    }

    fn slot(&mut self, at: usize) -> &mut Slot {
        self.slots[at].as_mut().expect("a session has its place as long as its endpoint")
    }

    /// Takes what lies in an inbox.
    fn take(&mut self, at: usize, out: &mut Vec<Wc>) -> usize {
        let inbox = &mut self.slot(at).inbox;
        let n = inbox.len();
        // The lists change places: neither is copied, and neither gives its memory back.
        if out.is_empty() {
            std::mem::swap(out, inbox)
        } else {
            out.append(inbox)
        }
        n
    }

    /// Leaves in `out`, from there on, what is for one session, and puts the rest into the inboxes of those that it is for. What is
    /// for none is of a session that is gone. Returns whether anybody got anything.
    fn sort(&mut self, qpn: Option<Qpn>, out: &mut Vec<Wc>, from: usize, tasks: &mut Tasks) -> bool {
        if let Some(qpn) = qpn
            && out[from..].iter().all(|wc| wc.qpn == qpn)
        {
            return false;
        }
        let (mut kept, mut any) = (from, false);
        for n in from..out.len() {
            let wc = out[n];
            if Some(wc.qpn) == qpn {
                out[kept] = wc;
                kept += 1;
            } else if let Some(&at) = self.by_qpn.get(&wc.qpn) {
                let slot = self.slot(at);
                slot.inbox.push(wc);
                tasks.extend(slot.task.take());
                any = true;
            }
        }
        out.truncate(kept);
        self.news += u64::from(any);
        any
    }

    /// Sessions whose deadline is over are told.
    fn expire(&mut self, now: Instant, tasks: &mut Tasks) {
        while let Some(at) = self.deadlines.pop_due(now) {
            let slot = self.slot(at);
            slot.is_due = true;
            tasks.extend(slot.task.take());
            self.news += 1;
        }
    }

    /// The queue is broken: no task is woken any more by what comes, so all of them are now.
    fn break_up(&mut self, tasks: &mut Tasks) {
        self.is_broken = true;
        tasks.extend(self.slots.iter_mut().flatten().filter_map(|slot| slot.task.take()));
    }

    /// Whether a wait is over.
    fn look(&mut self, wants: &mut Wants<'_>) -> Option<Came> {
        match wants {
            Wants::Session { at, out, .. } => {
                if self.take(*at, out) > 0 {
                    return Some(Came::Something);
                }
                let slot = self.slot(*at);
                std::mem::take(&mut slot.is_cancelled).then_some(Came::Woken)
            }
            Wants::Any { seen, .. } => {
                // A wake does not tell of the news that came with it: they end the next wait.
                if std::mem::replace(&mut seen.wakes, self.wakes) != self.wakes {
                    return Some(Came::Woken);
                }
                let before = std::mem::replace(&mut seen.news, self.news);
                (before != self.news).then_some(Came::Something)
            }
        }
    }
}

/// Tasks that are to be woken once the lock is open: they may poll at once, from the thread that wakes them.
type Tasks = Vec<std::task::Waker>;

impl Inner {
    /// Each change is whole between any two statements that can panic.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, state: &State) {
        if state.followers > 0 {
            self.changed.notify_all();
        }
    }

    /// The one wait: until what is wanted is there, or the end.
    fn wait(&self, mut wants: Wants<'_>, end: Option<Instant>) -> Result<Came, CqError> {
        let mut tasks = Tasks::new();
        let mut state = self.lock();
        loop {
            if let Some(came) = state.look(&mut wants) {
                return Ok(came);
            }
            // Whoever waits for one session has its own limit; whoever waits for all of them waits for their deadlines, too.
            let due = match wants {
                Wants::Session { .. } => None,
                Wants::Any { .. } => state.deadlines.first(),
            };
            let mut limit = None;
            let needs_no_queue = state.is_broken && matches!(wants, Wants::Any { goes_on: true, .. });
            if let Some(until) = [due, end].into_iter().flatten().min() {
                let now = Instant::now();
                if due.is_some_and(|due| due <= now) {
                    state.expire(now, &mut tasks);
                    self.tell(&state);
                    state = self.wake(state, &mut tasks);
                    continue;
                }
                // Of a queue that is broken also who does not wait is told.
                if until <= now && (!state.is_broken || needs_no_queue) {
                    return Ok(Came::Nothing);
                }
                limit = Some(until.saturating_duration_since(now));
            }
            if state.is_led || needs_no_queue {
                state.followers += 1;
                state = match limit {
                    None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                    Some(limit) => {
                        self.changed.wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner).0
                    }
                };
                state.followers -= 1;
                continue;
            }
            state.is_led = true;
            drop(state);
            let led = Led(self);
            let (qpn, out) = match &mut wants {
                Wants::Session { qpn, out, .. } => (Some(*qpn), &mut **out),
                Wants::Any { batch, .. } => (None, &mut **batch),
            };
            let from = out.len();
            let came = self.cq.wait(out, BATCH, limit);
            state = led.end();
            state.sort(qpn, out, from, &mut tasks);
            let some = out.len() > from;
            if came.is_err() {
                state.break_up(&mut tasks);
            }
            self.tell(&state);
            state = self.wake(state, &mut tasks);
            came?;
            if some {
                return Ok(Came::Something);
            }
        }
    }

    fn wake<'a>(&'a self, state: MutexGuard<'a, State>, tasks: &mut Tasks) -> MutexGuard<'a, State> {
        if tasks.is_empty() {
            return state;
        }
        drop(state);
        tasks.drain(..).for_each(std::task::Waker::wake);
        self.lock()
    }
}

/// This thread leads. However that ends, somebody else can.
struct Led<'a>(&'a Inner);

impl<'a> Led<'a> {
    fn end(self) -> MutexGuard<'a, State> {
        let inner = self.0;
        std::mem::forget(self);
        let mut state = inner.lock();
        state.is_led = false;
        state
    }
}

impl Drop for Led<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.is_led = false;
        self.0.tell(&state);
    }
}

impl Reactor {
    /// A reactor for sessions by this device.
    ///
    /// # Errors
    /// The device has no room.
    pub fn new(context: &Context) -> Result<Self, Error> {
        Self::over(context, None)
    }

    /// The same, for a thread that waits for other things as well: it has a [descriptor](Self::arm).
    ///
    /// # Errors
    /// As [`new`](Self::new), and where the system refuses a descriptor.
    pub fn with_descriptor(context: &Context) -> Result<Self, Error> {
        Self::over(context, Some(context.create_comp_channel()?))
    }

    fn over(context: &Context, channel: Option<CompChannel>) -> Result<Self, Error> {
        let cq = context.create_cq(CAPACITY, channel.as_ref(), 0)?;
        let state = State { capacity: CAPACITY, ..State::default() };
        let inner = Inner {
            context: context.clone(),
            waker: cq.waker(),
            cq,
            channel,
            state: Mutex::new(state),
            changed: Condvar::new(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The reactor's descriptor, if it was [made with one](Self::with_descriptor): with the next completion of any session it becomes readable,
    /// until this is called again. What came before does not count: who is to sleep polls its sessions behind this call.
    #[must_use]
    pub fn arm(&self) -> Option<BorrowedFd<'_>> {
        let channel = self.inner.channel.as_ref()?;
        while channel.try_get_event().is_some() {}
        self.inner.cq.req_notify(false).ok()?;
        Some(channel.as_fd())
    }

    /// Hands to the sessions what has come, and tells those whose deadline is over, without waiting: for a thread that waits for the
    /// [descriptor](Self::arm), and until [then](Self::due) at most. What is broken is told by the sessions.
    pub fn poll(&self) {
        let inner = &*self.inner;
        let (mut tasks, mut came) = (Tasks::new(), Vec::new());
        let mut state = inner.lock();
        state.expire(Instant::now(), &mut tasks);
        // Whoever leads takes out what comes.
        let mut more = !state.is_led;
        while more {
            match inner.cq.poll(&mut came, BATCH) {
                Ok(count) => {
                    state.sort(None, &mut came, 0, &mut tasks);
                    more = count == BATCH;
                }
                Err(_) => {
                    state.break_up(&mut tasks);
                    more = false;
                }
            }
        }
        inner.tell(&state);
        drop(inner.wake(state, &mut tasks));
    }

    /// When the first deadline of a session or a timer is over.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        self.inner.lock().deadlines.first()
    }

    /// The device that the sessions use.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// Sessions that there are.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.inner.lock().by_qpn.len()
    }

    /// A new reliable QP whose completions are taken by its endpoint. The queue has room for all that the QP can have in it.
    ///
    /// # Errors
    /// The device has no room.
    pub fn endpoint(&self, pd: &Pd, caps: QpCaps) -> Result<Endpoint, Error> {
        let share = caps.max_send_wr.saturating_add(caps.max_recv_wr);
        let inner = &self.inner;
        let mut state = inner.lock();
        let needed = state.needed.saturating_add(share);
        if needed > state.capacity {
            let most = inner.context.config().max_cqe;
            let capacity = needed.checked_next_power_of_two().map_or(needed, |capacity| capacity.min(most));
            inner.cq.resize(capacity.max(needed))?;
            state.capacity = capacity.max(needed);
        }
        let qp = pd.create_qp(&QpOptions { caps, ..QpOptions::rc(&inner.cq) })?;
        state.needed = needed;
        let (at, born) = state.enter(Some(qp.qpn()));
        drop(state);
        let registration = Registration { reactor: self.clone(), at, born };
        Ok(Endpoint { qp: Some(qp), registration, share })
    }

    /// A deadline that is no session's, for a task.
    #[must_use]
    pub fn timer(&self) -> Timer {
        let (at, born) = self.inner.lock().enter(None);
        Timer { registration: Registration { reactor: self.clone(), at, born }, due: None }
    }

    /// A future that takes no longer than this: what it came to, or `None` when the time was over first; then it was dropped.
    pub async fn within<T>(&self, time: Duration, future: impl Future<Output = T>) -> Option<T> {
        let mut timer = self.timer();
        timer.set(Instant::now().checked_add(time));
        let mut future = pin!(future);
        std::future::poll_fn(|task| match future.as_mut().poll(task) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending => timer.poll_over(task).map(|()| None),
        })
        .await
    }

    /// Carries out in this thread what a task would: polls it when it is woken, and waits for the sessions meanwhile. Whatever it
    /// waits for on this reactor goes on, and what other threads wake it for, also when nothing comes out of the queue any more,
    /// which the sessions say then.
    pub fn block_on<T>(&self, task: impl Future<Output = T>) -> T {
        let mut waiter = self.waiter();
        let woken = Arc::new(Woken { is: AtomicBool::new(true), waker: self.waker() });
        let waker = std::task::Waker::from(Arc::clone(&woken));
        let (mut task, mut goes_on) = (pin!(task), false);
        loop {
            while woken.is.swap(false, Ordering::AcqRel) {
                if let Poll::Ready(output) = task.as_mut().poll(&mut Task::from_waker(&waker)) {
                    return output;
                }
            }
            goes_on |= waiter.wait_on(None, goes_on).is_err();
        }
    }

    /// For a thread that waits for any of the sessions.
    #[must_use]
    pub fn waiter(&self) -> Waiter {
        let state = self.inner.lock();
        let seen = Seen { news: state.news, wakes: state.wakes };
        drop(state);
        Waiter { reactor: self.clone(), seen, batch: Vec::new() }
    }

    /// What ends the present or the next wait of every [`Waiter`], from any thread. It does not keep the reactor.
    #[must_use]
    pub fn waker(&self) -> ReactorWaker {
        ReactorWaker(Arc::downgrade(&self.inner))
    }

    /// A thread that waits for all sessions, so that tasks are woken whose sessions nobody else waits for; until the guard is
    /// dropped.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn in_background(&self) -> io::Result<Background> {
        let stop = Arc::new(AtomicBool::new(false));
        let (mut waiter, asked, waker) = (self.waiter(), Arc::clone(&stop), self.waker());
        let thread = std::thread::Builder::new().name("remanence-reactor".into()).spawn(move || {
            // A queue that is broken wakes every task, and says so to every session that looks. Timers go on.
            let mut goes_on = false;
            while !asked.load(Ordering::Acquire) {
                goes_on |= waiter.wait_on(None, goes_on).is_err();
            }
        })?;
        Ok(Background { stop, waker, thread: Some(thread) })
    }
}

/// A thread that waits for all sessions of a reactor. Dropped, it ends.
#[derive(Debug)]
pub struct Background {
    stop: Arc<AtomicBool>,
    waker: ReactorWaker,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Background {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
        // It may be dropped by a task that its own thread has polled.
        let thread = self.thread.take().filter(|thread| thread.thread().id() != std::thread::current().id());
        if let Some(thread) = thread {
            // A panic of its has been printed.
            let _ = thread.join();
        }
    }
}

/// Ends waits for any session, from any thread: see [`Reactor::waker`].
#[derive(Clone, Debug)]
pub struct ReactorWaker(Weak<Inner>);

impl ReactorWaker {
    /// Ends the present wait of each waiter, or else its next one.
    pub fn wake(&self) {
        let Some(inner) = self.0.upgrade() else { return };
        let mut state = inner.lock();
        state.wakes += 1;
        inner.stir(state);
    }
}

impl Inner {
    /// Something was changed that a thread may wait for which is not a completion.
    fn stir(&self, state: MutexGuard<'_, State>) {
        self.tell(&state);
        let is_led = state.is_led;
        drop(state);
        if is_led {
            self.waker.wake();
        }
    }
}

/// For a task that a thread carries out which waits for any session.
impl Wake for ReactorWaker {
    fn wake(self: Arc<Self>) {
        Self::wake(&self);
    }
}

/// Wakes the task of [`Reactor::block_on`].
struct Woken {
    is: AtomicBool,
    waker: ReactorWaker,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Who was woken and did not look yet is not told twice.
        if !self.is.swap(true, Ordering::AcqRel) {
            self.waker.wake();
        }
    }
}

/// Waits for any session of a reactor. It remembers what it has told its thread of, so each thread has its own.
#[derive(Debug)]
pub struct Waiter {
    reactor: Reactor,
    seen: Seen,
    batch: Vec<Wc>,
}

impl Waiter {
    /// The reactor whose sessions it waits for.
    #[must_use]
    pub fn reactor(&self) -> &Reactor {
        &self.reactor
    }

    /// Waits until something has come for a session since the last wait, a session's deadline is over, or somebody wakes; `end`
    /// at most. What has come lies in the sessions' inboxes, for [`Endpoint::poll`]: look at those that may have something, and wait
    /// again. Something that was taken meanwhile may end the wait once for nothing.
    ///
    /// # Errors
    /// The queue overflowed, or its device is gone.
    pub fn wait(&mut self, end: Option<Instant>) -> Result<Came, CqError> {
        self.wait_on(end, false)
    }

    fn wait_on(&mut self, end: Option<Instant>, goes_on: bool) -> Result<Came, CqError> {
        let Self { reactor, seen, batch } = self;
        reactor.inner.wait(Wants::Any { seen, batch, goes_on }, end)
    }
}

/// Where the reactor knows a session or a timer. Dropped, it gives that up.
#[derive(Debug)]
struct Registration {
    reactor: Reactor,
    at: usize,
    born: u64,
}

impl Registration {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.reactor.inner.lock()
    }

    fn set_deadline(&self, at: Option<Instant>) {
        let mut state = self.lock();
        state.slot(self.at).is_due = false;
        if state.deadlines.set(self.at, at) {
            // Who sleeps until a later one looks again.
            state.news += 1;
            self.reactor.inner.stir(state);
        }
    }

    fn take_due(&self) -> bool {
        std::mem::take(&mut self.lock().slot(self.at).is_due)
    }
}

impl Slot {
    /// The task is woken by what comes next.
    fn waits(&mut self, task: &Task<'_>) -> Poll<()> {
        if self.task.as_ref().is_none_or(|known| !known.will_wake(task.waker())) {
            self.task = Some(task.waker().clone());
        }
        Poll::Pending
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut state = self.lock();
        state.deadlines.set(self.at, None);
        if let Some(slot) = state.slots[self.at].take()
            && let Some(qpn) = slot.qpn
            // A number that another session has by now is that one's.
            && state.by_qpn.get(&qpn) == Some(&self.at)
        {
            state.by_qpn.remove(&qpn);
        }
    }
}

/// A deadline for a task, on a reactor: see [`Reactor::timer`].
#[derive(Debug)]
pub struct Timer {
    registration: Registration,
    due: Option<Instant>,
}

impl Timer {
    /// When it is over; `None`: never. To say the same again costs nothing.
    pub fn set(&mut self, at: Option<Instant>) {
        if self.due != at {
            self.due = at;
            self.registration.set_deadline(at);
        }
    }

    /// Waits until then.
    pub async fn over(&mut self, at: Instant) {
        self.set(Some(at));
        std::future::poll_fn(|task| self.poll_over(task)).await;
    }

    /// Ready once when its time is over, as far as a thread that waits has seen; it has to be set again then. Until then the task
    /// is woken by that thread.
    pub fn poll_over(&mut self, task: &Task<'_>) -> Poll<()> {
        let mut state = self.registration.lock();
        let slot = state.slot(self.registration.at);
        if std::mem::take(&mut slot.is_due) {
            self.due = None;
            return Poll::Ready(());
        }
        slot.waits(task)
    }
}

/// A session's QP, and what completes there. The session owns it; dropped, it gives up its place, when nobody else may have a
/// clone of the QP any more.
#[derive(Debug)]
pub struct Endpoint {
    /// `None` when it goes.
    qp: Option<Qp>,
    registration: Registration,
    share: u32,
}

impl Endpoint {
    /// The reactor that the session is on.
    #[must_use]
    pub fn reactor(&self) -> &Reactor {
        &self.registration.reactor
    }

    /// The QP, which the session connects and posts to.
    #[must_use]
    pub fn qp(&self) -> &Qp {
        self.qp.as_ref().expect("it is there until the endpoint goes")
    }

    /// Moves the completions that lie in the session's inbox to `out`, and says how many: for whoever was told of them by a
    /// [`Waiter`], or as a task.
    pub fn take(&self, out: &mut Vec<Wc>) -> usize {
        self.registration.lock().take(self.registration.at, out)
    }

    /// Moves the completions that have come to `out`, and says how many. If there are none, and nobody waits for them, this thread
    /// serves the device once and looks again.
    ///
    /// # Errors
    /// The queue overflowed, or its device is gone.
    pub fn poll(&self, out: &mut Vec<Wc>) -> Result<usize, CqError> {
        let inner = &*self.reactor().inner;
        let mut state = inner.lock();
        let n = state.take(self.registration.at, out);
        if n > 0 || state.is_led {
            return Ok(n);
        }
        let from = out.len();
        let mut tasks = Tasks::new();
        match inner.cq.poll(out, BATCH) {
            Ok(0) => return Ok(0),
            Ok(_) => {}
            Err(error) => {
                state.break_up(&mut tasks);
                drop(inner.wake(state, &mut tasks));
                return Err(error);
            }
        }
        if state.sort(Some(self.qp().qpn()), out, from, &mut tasks) {
            inner.tell(&state);
            drop(inner.wake(state, &mut tasks));
        }
        Ok(out.len() - from)
    }

    /// As [`poll`](Self::poll), but waits for the first one. 0 if the limit was reached first, or if it was
    /// [cancelled](Self::canceller).
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    pub fn wait(&self, out: &mut Vec<Wc>, limit: Option<Duration>) -> Result<usize, CqError> {
        let from = out.len();
        let end = limit.and_then(|limit| Instant::now().checked_add(limit));
        let wants = Wants::Session { at: self.registration.at, qpn: self.qp().qpn(), out };
        self.reactor().inner.wait(wants, end)?;
        Ok(out.len() - from)
    }

    /// By when something is to have come for this session, for whoever waits for any of them.
    pub fn set_deadline(&self, at: Option<Instant>) {
        self.registration.set_deadline(at);
    }

    /// Whether its deadline has passed, as far as a thread that waits has seen. It is so once.
    pub fn take_due(&self) -> bool {
        self.registration.take_due()
    }

    /// For a task: ready when there is something to [poll](Self::poll) for, be it that the queue is broken, or the deadline has
    /// passed. Until then the task is woken by whichever thread waits; if there is none, [`Reactor::in_background`] is one.
    pub fn poll_ready(&self, task: &Task<'_>) -> Poll<()> {
        let mut state = self.registration.lock();
        let is_broken = state.is_broken;
        let slot = state.slot(self.registration.at);
        if is_broken || !slot.inbox.is_empty() || slot.is_due { Poll::Ready(()) } else { slot.waits(task) }
    }

    /// What ends the present or the next [`wait`](Self::wait) of this session with nothing, from any thread.
    #[must_use]
    pub fn canceller(&self) -> Canceller {
        let Registration { reactor, at, born } = &self.registration;
        Canceller { inner: Arc::downgrade(&reactor.inner), at: *at, born: *born }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // What the QP has in the queue goes with it.
        drop(self.qp.take());
        self.registration.lock().needed -= self.share;
    }
}

/// Ends the wait of one session from any thread: see [`Endpoint::canceller`].
#[derive(Clone, Debug)]
pub struct Canceller {
    inner: Weak<Inner>,
    at: usize,
    born: u64,
}

impl Canceller {
    /// Ends the present wait of the session, or else its next one; nothing if the session is gone.
    pub fn cancel(&self) {
        let Some(inner) = self.inner.upgrade() else { return };
        let mut state = inner.lock();
        let Some(slot) = state.slots[self.at].as_mut().filter(|slot| slot.born == self.born) else { return };
        slot.is_cancelled = true;
        state.news += 1;
        inner.stir(state);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use remanence_verbs::Options;

    use super::*;

    /// Counts how often its task was woken.
    #[derive(Default)]
    struct Woken(AtomicU32);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn tasks_are_woken_when_the_queue_breaks_and_ready_from_then_on() {
        let context =
            Context::open(Options::udp(remanence_effort::address())).expect("a device on this host");
        let (reactor, pd) = (Reactor::new(&context).unwrap(), context.alloc_pd().unwrap());
        let caps = QpCaps { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
        let mut endpoints = [(); 2].map(|()| reactor.endpoint(&pd, caps).unwrap());
        let woken = [(); 2].map(|()| Arc::<Woken>::default());
        let ready = |endpoint: &Endpoint, woken: &Arc<Woken>| {
            endpoint.poll_ready(&Task::from_waker(&Arc::clone(woken).into()))
        };
        for (endpoint, woken) in endpoints.iter().zip(&woken) {
            assert_eq!(ready(endpoint, woken), Poll::Pending);
        }
        // The queue goes when no QP uses it.
        endpoints.iter_mut().for_each(|endpoint| drop(endpoint.qp.take()));
        reactor.inner.cq.destroy().unwrap();
        assert_eq!(reactor.waiter().wait(None), Err(CqError::NoSuchCq));
        assert_eq!(reactor.waiter().wait(Some(Instant::now())), Err(CqError::NoSuchCq), "nor for no time");
        for (endpoint, woken) in endpoints.iter().zip(&woken) {
            assert_eq!(woken.0.load(Ordering::Relaxed), 1);
            assert_eq!(ready(endpoint, woken), Poll::Ready(()));
            assert_eq!(endpoint.poll(&mut Vec::new()), Err(CqError::NoSuchCq));
        }
        // Who carries a task out goes on: times end, and other threads wake it.
        reactor.block_on(async {
            let mut timer = reactor.timer();
            timer.set(Some(Instant::now() + Duration::from_millis(1)));
            std::future::poll_fn(|task| timer.poll_over(task)).await;
            super::super::elsewhere(|| ()).await;
        });
    }
}
