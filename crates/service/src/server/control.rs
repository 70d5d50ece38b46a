//! How other threads reach a server that runs: to end a session, to tell a client something, to stop it all, to count.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use remanence_verbs::Waker;

use super::session::SessionId;

/// What somebody asks of the serving thread.
pub(crate) enum Ask {
    /// The end of a session.
    End(SessionId),
    /// A notice for its client.
    Notice(SessionId, Vec<u8>),
}

/// Reaches the sessions of a server, to end one or to tell its client something: from the service, which cannot do it at
/// once as it is called for one of them, or from another thread. Clones reach the same server.
#[derive(Clone, Default)]
pub struct Control(Arc<Shared>);

#[derive(Default)]
struct Shared {
    sessions: Mutex<Sessions>,
    /// There are asks. The serving thread takes the lock only then.
    asked: AtomicBool,
    /// Somebody wants a turn, which begins with taking this.
    woken: AtomicBool,
    /// The serving thread sleeps, or is about to: it has to be woken for what is asked.
    asleep: AtomicBool,
    waker: Mutex<Option<Waker>>,
    counters: Counters,
}

#[derive(Default)]
struct Sessions {
    live: HashSet<SessionId>,
    asks: Vec<Ask>,
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control").field("counters", self.counters()).finish_non_exhaustive()
    }
}

impl Control {
    pub(crate) fn wake_with(&self, waker: Waker) {
        *self.0.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(waker);
    }

    /// Asks for the end of a session. It has come when [`is_live`](Self::is_live) says so.
    pub fn end(&self, session: SessionId) {
        self.ask(session, Ask::End(session));
    }

    /// Hands a notice to the service, which sends it to the session's client: at once, if the serving thread has nothing
    /// else to do. Nothing becomes of it if the session is over.
    pub fn notify(&self, session: SessionId, body: Vec<u8>) {
        self.ask(session, Ask::Notice(session, body));
    }

    /// Whether a session goes on. If it does not, the service has been told of its end, and nothing of it can come any
    /// more: its QPs are in the error state.
    #[must_use]
    pub fn is_live(&self, session: SessionId) -> bool {
        self.lock().live.contains(&session)
    }

    /// What the server did so far.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.0.counters
    }

    /// Wakes the serving thread, for a turn of the service that begins after this.
    pub fn wake(&self) {
        self.0.woken.store(true, Ordering::SeqCst);
        self.wake_sleeper();
    }

    fn ask(&self, session: SessionId, ask: Ask) {
        let mut sessions = self.lock();
        if sessions.live.contains(&session) {
            sessions.asks.push(ask);
            drop(sessions);
            self.0.asked.store(true, Ordering::SeqCst);
            self.wake_sleeper();
        }
    }

    fn wake_sleeper(&self) {
        // The serving thread says that it will sleep, and then looks whether it was asked; here it is the other way round.
        if self.0.asleep.load(Ordering::SeqCst)
            && let Some(waker) = &*self.0.waker.lock().unwrap_or_else(PoisonError::into_inner)
        {
            waker.wake();
        }
    }

    pub(crate) fn begun(&self, session: SessionId) {
        self.lock().live.insert(session);
        self.0.counters.sessions.fetch_add(1, Ordering::Relaxed);
    }

    /// It began, and could not be connected.
    pub(crate) fn never_was(&self, session: SessionId) {
        self.lock().live.remove(&session);
        self.0.counters.sessions.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn ended(&self, session: SessionId) {
        self.lock().live.remove(&session);
        self.0.counters.ended.fetch_add(1, Ordering::Release);
    }

    /// From here to [`awake`](Self::awake), whoever asks for something wakes the thread. `false`: something is asked already.
    pub(crate) fn asleep(&self) -> bool {
        self.0.asleep.store(true, Ordering::SeqCst);
        !self.0.asked.load(Ordering::SeqCst) && !self.0.woken.load(Ordering::SeqCst)
    }

    /// A turn begins: it sees all that was changed before it was wanted. Who wants one from now on gets the next.
    pub(crate) fn turns(&self) {
        if self.0.woken.load(Ordering::Relaxed) {
            self.0.woken.swap(false, Ordering::AcqRel);
        }
    }

    pub(crate) fn awake(&self) {
        self.0.asleep.store(false, Ordering::Relaxed);
    }

    /// What was asked for since the last time.
    pub(crate) fn take(&self) -> Vec<Ask> {
        if !self.0.asked.load(Ordering::Relaxed) || !self.0.asked.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        std::mem::take(&mut self.lock().asks)
    }

    /// Each change is one step.
    fn lock(&self) -> MutexGuard<'_, Sessions> {
        self.0.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a server did so far; any thread may read them.
#[derive(Debug, Default)]
pub struct Counters {
    pub(crate) sessions: AtomicU64,
    pub(crate) ended: AtomicU64,
    pub(crate) expelled: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) messages: AtomicU64,
    pub(crate) probed: AtomicU64,
    pub(crate) rounds: AtomicU64,
}

impl Counters {
    /// Sessions that began.
    #[must_use]
    pub fn sessions(&self) -> u64 {
        self.sessions.load(Ordering::Relaxed)
    }

    /// Sessions that are over. Whoever sees one counted here sees all that the server did for its end.
    #[must_use]
    pub fn ended(&self) -> u64 {
        self.ended.load(Ordering::Acquire)
    }

    /// Sessions that were ended because their client broke the protocol, or did not take its answers.
    #[must_use]
    pub fn expelled(&self) -> u64 {
        self.expelled.load(Ordering::Relaxed)
    }

    /// Requests for connections that were refused, for whatever reason: challenges are among them.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Messages of clients that were handed to the service.
    #[must_use]
    pub fn messages(&self) -> u64 {
        self.messages.load(Ordering::Relaxed)
    }

    /// Quiet clients that were asked whether they are there, and were.
    #[must_use]
    pub fn probed(&self) -> u64 {
        self.probed.load(Ordering::Relaxed)
    }

    /// Turns of the serving thread's loop.
    #[must_use]
    pub fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::Relaxed)
    }
}

/// Stops servers at once, from any thread. Clones are the same. A signal handler may not ask, as that takes a lock: a thread that waits for
/// signals does.
#[derive(Clone, Default)]
pub struct Stop(Arc<Stopping>);

#[derive(Default)]
struct Stopping {
    asked: AtomicBool,
    wakes: Mutex<Registered>,
}

#[derive(Default)]
struct Registered {
    next: u64,
    all: BTreeMap<u64, Box<dyn Fn() + Send + Sync>>,
}

/// While this is there, a stop wakes somebody: see [`Stop::wakes`].
pub struct Wakes<'a>(&'a Stop, u64);

impl fmt::Debug for Wakes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Wakes").field(&self.1).finish()
    }
}

impl Drop for Wakes<'_> {
    fn drop(&mut self) {
        self.0.lock().all.remove(&self.1);
    }
}

impl fmt::Debug for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let servers = self.lock().all.len();
        f.debug_struct("Stop").field("asked", &self.is_asked()).field("servers", &servers).finish()
    }
}

impl Stop {
    /// Nobody is asked to stop yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks all that run until this to stop, those that begin later too.
    pub fn ask(&self) {
        self.0.asked.store(true, Ordering::SeqCst);
        self.lock().all.values().for_each(|wake| wake());
    }

    /// Whether somebody asked.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.0.asked.load(Ordering::SeqCst)
    }

    /// From now on whoever asks calls this, as long as what is returned is there. It may have been asked already: who is to sleep until it is
    /// looks behind this call. What is called may not reach for the stop itself.
    pub fn wakes(&self, wake: impl Fn() + Send + Sync + 'static) -> Wakes<'_> {
        let mut wakes = self.lock();
        let number = wakes.next;
        wakes.next += 1;
        wakes.all.insert(number, Box::new(wake));
        Wakes(self, number)
    }

    /// Each change is one step.
    fn lock(&self) -> MutexGuard<'_, Registered> {
        self.0.wakes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
