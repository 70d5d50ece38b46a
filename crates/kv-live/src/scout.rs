//! Asks the members of a store who is the primary, beside whatever a client waits for.
//!
//! A thread for each member, so that one that is silent holds nobody up: it keeps a connection to the member, asks when
//! somebody wants to know, and makes the connections over which a client reads promises. What it hears decides whom a client
//! tries, and nothing else: whether that one may be believed the promises say.

use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use remanence_remote::{Delays, Reactor, Session};

use super::member::{MemberStats, Role, describe, plain};
use super::{ConnectOptions, Error};

/// A member that is silent for so long is connected to anew.
const SILENT: Duration = Duration::from_secs(1);
/// Between two attempts to reach a member.
const RETRY: Duration = Duration::from_millis(200);
/// Between two questions to a member, while somebody wants to know, at first and at most. It says what it is when it is asked, and whom it
/// leads or follows changes by what happens to others: nobody could tell the clients, of which a member has many.
const AGAIN: Duration = Duration::from_millis(10);
const AGAIN_MAX: Duration = Duration::from_millis(100);
/// After how long a client looks whether it still wants the connection that is being made.
const LOOK: Duration = Duration::from_millis(100);
/// How long somebody wants to know who has asked once.
const WANTED: Duration = Duration::from_millis(500);

/// What was heard of a member.
#[derive(Debug, Default)]
struct Heard {
    /// What it said last, and when it was asked for that; taken away when it cannot be reached.
    said: Option<(MemberStats, Instant)>,
    /// Why it did not, when it was tried last.
    failed: Option<(String, Instant)>,
    /// Something listens there that is no member, or one of another protocol.
    strange: Option<Error>,
    /// A connection for the client itself, and whether it wants one.
    spare: Option<Session>,
    wanted: bool,
}

#[derive(Debug)]
struct State {
    members: Vec<Heard>,
    /// Somebody wants to know who leads, until then.
    asking: Instant,
    over: bool,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    /// The state is whole between any two statements that can panic.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Who asks. Clones are the same; the threads end with the last [`Scout`].
#[derive(Clone, Debug)]
pub(super) struct Lookout(Arc<Shared>);

/// The threads, while a client has them.
#[derive(Debug)]
pub(super) struct Scout(Lookout);

impl Drop for Scout {
    fn drop(&mut self) {
        self.0.0.lock().over = true;
        self.0.0.changed.notify_all();
    }
}

impl Lookout {
    /// Whether another member than this life of one is the primary since a later epoch, as far as is known. Has it found out
    /// meanwhile.
    pub(super) fn is_replaced(&self, primary: &MemberStats) -> bool {
        let mut state = self.0.lock();
        state.want(Instant::now());
        self.0.changed.notify_all();
        let newer = |said: &MemberStats| {
            said.role == Role::Primary
                && said.epoch.counter() > primary.epoch.counter()
                && (said.who, said.life) != (primary.who, primary.life)
        };
        state.members.iter().filter_map(|heard| heard.said.as_ref()).any(|(said, _)| newer(said))
    }
}

impl State {
    fn want(&mut self, now: Instant) {
        self.asking = now + WANTED;
    }
}

impl Scout {
    /// Of these members. Nobody is asked before somebody wants to know.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub(super) fn new(
        reactor: &Reactor,
        options: &ConnectOptions,
        members: &[SocketAddr],
    ) -> Result<Self, Error> {
        let state = State {
            members: members.iter().map(|_| Heard::default()).collect(),
            asking: Instant::now(),
            over: false,
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let this = Self(Lookout(Arc::clone(&shared)));
        for (at, to) in members.iter().enumerate() {
            let errand = MemberThread {
                shared: Arc::clone(&shared),
                at,
                to: *to,
                reactor: reactor.clone(),
                options: options.clone(),
                session: None,
                tried: None,
                delays: Delays::new(AGAIN, AGAIN_MAX),
                again: Duration::ZERO,
            };
            std::thread::Builder::new()
                .name("kv-scout".into())
                .spawn(move || errand.run())
                .map_err(|e| Error::Argument(format!("the system refuses a thread: {e}")))?;
        }
        Ok(this)
    }

    /// For who waits for something else meanwhile.
    pub(super) fn lookout(&self) -> Lookout {
        self.0.clone()
    }

    /// Asks all members, and waits until `is_enough` says so of what has been answered since, at the earliest `after` a while, or all have
    /// answered or failed, or for that long. What each of them says, or why it does not.
    ///
    /// # Errors
    /// Something else listens in a member's place.
    pub(super) fn ask(
        &self,
        limit: Duration,
        after: Duration,
        is_enough: impl Fn(&[Option<&MemberStats>]) -> bool,
    ) -> Result<Vec<Result<MemberStats, String>>, Error> {
        let Lookout(shared) = &self.0;
        let begin = Instant::now();
        let mut state = shared.lock();
        loop {
            state.want(Instant::now());
            shared.changed.notify_all();
            if let Some(strange) = state.members.iter_mut().find_map(|heard| heard.strange.take()) {
                return Err(strange);
            }
            let fresh = |heard: &Heard| {
                heard.said.as_ref().filter(|(_, asked)| *asked >= begin).map(|(said, _)| said.clone())
            };
            let said: Vec<Option<MemberStats>> = state.members.iter().map(fresh).collect();
            let failed = |heard: &Heard| heard.failed.as_ref().is_some_and(|(_, when)| *when >= begin);
            let all = said.iter().zip(&state.members).all(|(said, heard)| said.is_some() || failed(heard));
            let waited = begin.elapsed();
            let counts = is_enough(&said.iter().map(Option::as_ref).collect::<Vec<_>>());
            if all || waited >= limit || counts && waited >= after {
                let why = |heard: &Heard| {
                    heard.failed.as_ref().map_or_else(|| "it is silent".to_owned(), |(why, _)| why.clone())
                };
                let each = said.into_iter().zip(&state.members);
                return Ok(each.map(|(said, heard)| said.ok_or_else(|| why(heard))).collect());
            }
            let left = if counts { after.min(limit) } else { limit } - waited;
            state = shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// A connection to a member, if one has been made: it is begun now if there is none.
    pub(super) fn connection(&self, at: usize) -> Option<Session> {
        let Lookout(shared) = &self.0;
        let mut state = shared.lock();
        let heard = &mut state.members[at];
        let spare = heard.spare.take();
        heard.wanted = spare.is_none();
        if spare.is_none() {
            shared.changed.notify_all();
        }
        spare
    }

    /// Waits for as long as that, at most, for so many connections to have been made.
    pub(super) fn wait_for_connections(&self, at: &[usize], count: usize, limit: Duration) {
        let Lookout(shared) = &self.0;
        let begin = Instant::now();
        let mut state = shared.lock();
        loop {
            let made = at.iter().filter(|at| state.members[**at].spare.is_some()).count();
            let left = limit.saturating_sub(begin.elapsed());
            if made >= count || left.is_zero() {
                return;
            }
            state = shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// What the thread of one member has: whom it asks, for whom, and over which connection.
struct MemberThread {
    shared: Arc<Shared>,
    at: usize,
    to: SocketAddr,
    /// The client's, for connections that are its own.
    reactor: Reactor,
    options: ConnectOptions,
    session: Option<Session>,
    /// When the last attempt failed.
    tried: Option<Instant>,
    /// How long it is left alone when it has answered.
    delays: Delays,
    again: Duration,
}

impl MemberThread {
    fn run(mut self) {
        while let Some((asks, connects)) = self.next() {
            if asks {
                self.ask();
            }
            if connects {
                self.connect();
            }
        }
    }

    /// Waits for something to do: whether to ask, and whether to connect.
    fn next(&self) -> Option<(bool, bool)> {
        let mut state = self.shared.lock();
        loop {
            if state.over {
                return None;
            }
            let now = Instant::now();
            let heard = &state.members[self.at];
            let (asks, connects) = (now < state.asking, heard.wanted && heard.spare.is_none());
            let since = |when: Instant| now.saturating_duration_since(when);
            let ready = self.tried.map_or(Duration::ZERO, |tried| RETRY.saturating_sub(since(tried)));
            let asked = heard
                .said
                .as_ref()
                .map_or(Duration::ZERO, |(_, asked)| self.again.saturating_sub(since(*asked)));
            let rest = if connects { ready } else { ready.max(asked) };
            if (asks || connects) && rest.is_zero() {
                return Some((asks && asked.is_zero(), connects));
            }
            state = if asks || connects {
                self.shared.changed.wait_timeout(state, rest).unwrap_or_else(PoisonError::into_inner).0
            } else {
                self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
            };
        }
    }

    fn dial(&mut self, own: bool) -> Option<Session> {
        let quick = self.options.to_member(plain(SILENT.min(self.options.waits())));
        // Nobody waits for it who is gone.
        let shared = Arc::clone(&self.shared);
        let quick = quick.give_up(LOOK, move |_| shared.lock().over);
        // Who waits here is not in the way of the client's own sessions.
        let session = match own {
            true => Session::connect(self.reactor.context(), self.to, quick),
            false => Session::connect_on(&self.reactor, self.to, quick),
        };
        match session {
            Ok(session) => {
                self.tried = None;
                Some(session)
            }
            Err(error) => {
                self.failed(&error.to_string());
                None
            }
        }
    }

    fn failed(&mut self, why: &str) {
        let now = Instant::now();
        self.tried = Some(now);
        let mut state = self.shared.lock();
        let heard = &mut state.members[self.at];
        (heard.said, heard.failed) = (None, Some((why.to_owned(), now)));
        drop(state);
        self.shared.changed.notify_all();
    }

    fn ask(&mut self) {
        let asked = Instant::now();
        if self.session.is_none() {
            self.session = self.dial(true);
        }
        let Some(session) = &mut self.session else { return };
        match describe(session, self.to) {
            Ok(said) => {
                let mut state = self.shared.lock();
                let heard = &mut state.members[self.at];
                // Whoever wants to know something new does not wait for what was asked for by somebody else.
                if heard.said.as_ref().is_none_or(|(_, before)| asked.duration_since(*before) > WANTED) {
                    self.delays.reset();
                }
                self.again = self.delays.next_delay();
                (heard.said, heard.failed) = (Some((said, asked)), None);
            }
            Err(Error::Remote(error)) => {
                self.session = None;
                self.failed(&error.to_string());
            }
            Err(strange) => {
                self.session = None;
                self.failed(&strange.to_string());
                self.shared.lock().members[self.at].strange = Some(strange);
            }
        }
        self.shared.changed.notify_all();
    }

    fn connect(&mut self) {
        if let Some(session) = self.dial(false) {
            let mut state = self.shared.lock();
            let heard = &mut state.members[self.at];
            (heard.spare, heard.wanted) = (Some(session), false);
            drop(state);
            self.shared.changed.notify_all();
        }
    }
}
