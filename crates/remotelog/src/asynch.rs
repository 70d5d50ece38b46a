//! A log for programs that do not wait: futures, for any executor.
//!
//! It is the [`Group`] that a [`Log`](crate::Log) is, which a thread waits for, and decides nothing beside that: here is who has asked for what.
//!
//! Nothing here has a task of its own. What servers send, and a time that is over, wake the log in whichever thread waits for its reactor:
//! that thread goes on with the log there and then, and wakes the tasks whose futures have ended. So does whoever asks for something. The
//! one that has the log is never waited for: who finds it busy says that there is more to do, and goes away.
//!
//! A server that is lost is connected to again, also while nobody asks for anything, and is taken in while the log goes on: it gets what it
//! lacks.
//!
//! An operation begins when its method is called, and not when its future is first polled: begin many, then await them.
//!
//! **Nobody has to await a future.** An append whose future is dropped may be found in the log or not, as one under which the log failed:
//! if it is on its way it arrives, and if there was no room for it yet it never goes. All others stay as they are, and in their order.
//! [`Reactor::within`] is a time limit for any of them.
//!
//! ```no_run
//! # use remanence_remotelog::{AsyncLog, AsyncLogReader, ConnectOptions};
//! # async fn example(servers: [std::net::SocketAddr; 3]) -> Result<(), Box<dyn std::error::Error>> {
//! let log = AsyncLog::connect_to(&servers, &ConnectOptions::default().acks(2)).await?;
//! // All under way at once, each durable on two of the three when its future ends.
//! let appends: Vec<_> = (17..100).map(|amount| log.append(format!("paid {amount}").as_bytes())).collect();
//! for append in appends {
//!     println!("record {} is durable", append.await?);
//! }
//! // In its place in the log, and durable when the wait has ended.
//! let number = log.begin_append(b"paid 100").await?;
//! log.wait(number + 1).await?;
//! log.trim(number).await?;
//! log.close().await?;
//! let mut reader = AsyncLogReader::connect_to(servers[0], &ConnectOptions::default()).await?;
//! while let Some(record) = reader.next().await {
//!     println!("{}", String::from_utf8_lossy(&record?.payload));
//! }
//! # Ok(())
//! # }
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::task::{Context as Task, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use remanence_persist::plan::Request as PlanRequest;
use remanence_pmem::Survives;
use remanence_remote::{Background, Face, Reactor, Timer, elsewhere};
use remanence_verbs::Context;

use crate::client::{self, ConnectOptions, LogReader, ReadError, no_server, said};
use crate::connection::{self, CallError, SessionConnection};
use crate::format::Epoch;
use crate::group::{
    Closing, ConnectionLost, Group, GroupError, NotTaken, Opened, Opening, ReplicaConnection as _, Trimming,
};
use crate::store::Status;

/// Records that are taken at a time at most.
const BATCH: usize = 256;
/// After so many futures those are forgotten that nobody waits for any more.
const FORGET: u64 = 1024;

/// A log that is open for its one writer, on one server or on several, for any number of tasks and threads. Clones are the same log, whose
/// connections end with the last of them and of their futures.
#[derive(Clone)]
pub struct AsyncLog {
    shared: Arc<Shared>,
    /// Behind the log, whose sessions it waits for.
    _background: Option<Arc<Background>>,
}

impl fmt::Debug for AsyncLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncLog").field("said", &self.shared.front().said).finish_non_exhaustive()
    }
}

/// What tasks and whoever goes on with the log share.
struct Shared {
    front: Mutex<Front>,
    /// Somebody goes on with it.
    state: Mutex<State>,
    /// There is something to do that was not looked at yet.
    stirred: AtomicBool,
    waker: Waker,
    /// Of the servers.
    names: Vec<String>,
}

/// What nobody holds while anything else is done: who is woken may ask for something at once.
#[derive(Default)]
struct Front {
    asked: VecDeque<(Wanted, Weak<Answer>)>,
    said: Said,
}

/// What is known of the log.
#[derive(Clone, Debug, Default)]
struct Said {
    next: u64,
    acknowledged: u64,
    epoch: Option<Epoch>,
    quorum: (usize, usize),
    lost: Vec<(String, String)>,
    /// Of each server, whether it is there and has not got all records yet.
    behind: Vec<bool>,
    opened: Opened,
    survives: Option<Survives>,
}

/// What is asked for.
enum Wanted {
    /// Records, whose future ends when they are durable, or else when the last one has its number.
    Append { payloads: Vec<Vec<u8>>, durable: bool },
    /// All records below this number are to be acknowledged.
    Acknowledged(u64),
    /// They are to be given up.
    Trim(u64),
    /// Every server that is there is to have all records.
    CaughtUp,
    /// Everything before is to be acknowledged, and remembered.
    Close,
    /// The log is to be open.
    Open,
}

/// What became of what was asked for, and who is to be told.
#[derive(Default)]
struct Answer(Mutex<AnswerState>);

#[derive(Default)]
struct AnswerState {
    outcome: Option<Outcome>,
    waker: Option<Waker>,
}

type Outcome = Result<u64, GroupError>;

impl Answer {
    fn lock(&self) -> MutexGuard<'_, AnswerState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives it to whoever waits, who may go on there and then.
    fn give(&self, outcome: Outcome) {
        let mut state = self.lock();
        state.outcome = Some(outcome);
        let waker = state.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }
}

/// Goes on with the log in the thread that wakes this.
struct Stir(Weak<Shared>);

impl Wake for Stir {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(shared) = self.0.upgrade() {
            shared.go_on();
        }
    }
}

impl Shared {
    fn front(&self) -> MutexGuard<'_, Front> {
        // No step leaves it half changed.
        self.front.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// There is something to do. Does it, if nobody is at it, who would see that there is more.
    fn go_on(&self) {
        self.stirred.store(true, Ordering::Release);
        loop {
            // Either who is at it sees what was stored, or this one that nobody is at it.
            fence(Ordering::SeqCst);
            if !self.stirred.load(Ordering::Acquire) {
                return;
            }
            let mut state = match self.state.try_lock() {
                Ok(state) => state,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            };
            self.stirred.store(false, Ordering::Release);
            fence(Ordering::SeqCst);
            let asked = std::mem::take(&mut self.front().asked);
            state.go_on(asked, &mut Task::from_waker(&self.waker));
            let ended = std::mem::take(&mut state.ended);
            state.tell(&mut self.front().said);
            drop(state);
            ended.into_iter().for_each(|(answer, outcome)| answer.give(outcome));
        }
    }
}

impl AsyncLog {
    /// Opens the log on these servers for writing, by a device of its own, with a thread of its own that waits for it: see
    /// [`connect`](Self::connect).
    ///
    /// # Errors
    /// As [`connect`](Self::connect); or there is no way from here to any of the servers, or the system refuses a thread.
    pub async fn connect_to(servers: &[SocketAddr], options: &ConnectOptions) -> Result<Self, GroupError> {
        servers.first().ok_or_else(no_server)?;
        let context = Context::towards_any(servers.iter().map(SocketAddr::ip)).map_err(|e| said(&e))?;
        let reactor = Reactor::new(&context).map_err(|e| said(&e))?;
        let background = reactor.in_background().map_err(|e| said(&e))?;
        Self::open(&reactor, servers, options, Some(Arc::new(background))).await
    }

    /// Opens the log on these servers for writing; makes it if all of them are new. Earlier writers are shut out. All servers of the log are
    /// to be named, lost ones too. It goes on while some thread waits for the reactor: [`Reactor::in_background`], or
    /// [`Reactor::block_on`].
    ///
    /// # Errors
    /// Too few of the servers are there, they do not belong together, or another writer was faster.
    pub async fn connect(
        reactor: &Reactor,
        servers: &[SocketAddr],
        options: &ConnectOptions,
    ) -> Result<Self, GroupError> {
        servers.first().ok_or_else(no_server)?;
        Self::open(reactor, servers, options, None).await
    }

    async fn open(
        reactor: &Reactor,
        servers: &[SocketAddr],
        options: &ConnectOptions,
        background: Option<Arc<Background>>,
    ) -> Result<Self, GroupError> {
        let shared = Arc::new_cyclic(|shared| {
            let waker = Waker::from(Arc::new(Stir(Weak::clone(shared))));
            let group = connection::begin(reactor, servers, options, waker.clone());
            Shared {
                front: Mutex::default(),
                state: Mutex::new(State::new(reactor, group)),
                stirred: AtomicBool::new(false),
                waker,
                names: servers.iter().map(ToString::to_string).collect(),
            }
        });
        let log = Self { shared, _background: background };
        log.ask::<()>(Wanted::Open).await?;
        Ok(log)
    }

    /// Appends a record; its number. When the future ends the record is acknowledged: it is durable on as many servers as the log was made
    /// with. One that is dropped may be found later or not.
    ///
    /// # Errors
    /// It does not fit: nothing was appended. Or too few servers are left: it may be found later or not.
    pub fn append(&self, payload: &[u8]) -> Pending<u64> {
        self.ask(Wanted::Append { payloads: vec![payload.to_vec()], durable: true })
    }

    /// Begins to append a record; its number. When the future ends the record has its place in the log, and is not durable:
    /// [`wait`](Self::wait) waits for that.
    ///
    /// # Errors
    /// As for [`append`](Self::append).
    pub fn begin_append(&self, payload: &[u8]) -> Pending<u64> {
        self.begin_append_batch(vec![payload.to_vec()])
    }

    /// Begins to append these records, one behind the other and with no other one between them; the number of the last. They are sent
    /// together, as far as they fit into one update. When the future ends all of them have their places in the log, and are not durable.
    ///
    /// # Errors
    /// As for [`append`](Self::append), of the first that does not fit: those before it are in the log, as [`next`](Self::next) says, and
    /// none behind it is.
    ///
    /// # Panics
    /// There is no record.
    pub fn begin_append_batch(&self, payloads: Vec<Vec<u8>>) -> Pending<u64> {
        assert!(!payloads.is_empty(), "a batch has a record");
        self.ask(Wanted::Append { payloads, durable: false })
    }

    /// Waits until all records below that number are acknowledged.
    ///
    /// # Errors
    /// Too few servers are left.
    pub fn wait(&self, below: u64) -> Pending<()> {
        self.ask(Wanted::Acknowledged(below))
    }

    /// Gives up the records below that number: they were applied. The future ends when as many servers as acknowledge have done so; if it is
    /// dropped they do so all the same.
    ///
    /// # Errors
    /// They are not acknowledged, or too few servers are left.
    pub fn trim(&self, below: u64) -> Pending<()> {
        self.ask(Wanted::Trim(below))
    }

    /// Waits until every server that is there has all records, however long it takes to give them to one that lacked some. One that is lost
    /// meanwhile is not waited for.
    ///
    /// # Errors
    /// Too few servers are left.
    pub fn caught_up(&self) -> Pending<()> {
        self.ask(Wanted::CaughtUp)
    }

    /// Waits for everything that was asked for before, and has the servers remember what was acknowledged, so that they would notice the
    /// loss of the last record too. Clones of this can go on; the log is theirs.
    ///
    /// # Errors
    /// Too few servers are left.
    pub fn close(self) -> Pending<()> {
        self.ask(Wanted::Close)
    }

    /// The number of the next record, as far as this has gone on.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.shared.front().said.next
    }

    /// All records below this number are acknowledged.
    #[must_use]
    pub fn acknowledged(&self) -> u64 {
        self.shared.front().said.acknowledged
    }

    /// The epoch of this writer.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.shared.front().said.epoch.unwrap_or(Epoch::NONE)
    }

    /// How many servers acknowledge, of how many.
    #[must_use]
    pub fn quorum(&self) -> (usize, usize) {
        self.shared.front().said.quorum
    }

    /// The servers that do without, and why.
    #[must_use]
    pub fn lost(&self) -> Vec<(String, String)> {
        self.shared.front().said.lost.clone()
    }

    /// The servers that are there and have not got all records yet: they get them while this goes on.
    #[must_use]
    pub fn behind(&self) -> Vec<String> {
        let front = self.shared.front();
        let behind = self.shared.names.iter().zip(&front.said.behind).filter(|(_, behind)| **behind);
        behind.map(|(name, _)| name.clone()).collect()
    }

    /// What had been done when the log was open: a server that is [behind](Self::behind) is still being given what it lacked.
    #[must_use]
    pub fn opened(&self) -> Opened {
        self.shared.front().said.opened.clone()
    }

    /// By server that takes part: how a record is made durable there, and which failures it survives, as sentences. Waits for whoever goes on
    /// with the log, and for a plan that is not known yet: it is for a thread, and not for a task that is polled where it is woken.
    #[must_use]
    pub fn recipes(&self) -> Vec<(String, String, String)> {
        let mut state = self.shared.state();
        let recipe = |(name, one): (&str, &mut SessionConnection)| {
            let recipe = one.explain(&PlanRequest::record(64));
            let recipe = recipe.map_or_else(|why| why.to_string(), |(recipe, _)| recipe);
            (name.to_owned(), recipe, one.session().region().sentence)
        };
        let recipes = state.group.connections().map(recipe).collect();
        drop(state);
        // What came meanwhile found the log taken.
        self.shared.go_on();
        recipes
    }

    /// Which failures acknowledged records survive, by the tokens of the servers that take part: what all of them survive. `None`
    /// if this writer has appended nothing yet.
    #[must_use]
    pub fn survives(&self) -> Option<Survives> {
        self.shared.front().said.survives
    }

    fn ask<T: Output>(&self, wanted: Wanted) -> Pending<T> {
        let answer = Arc::default();
        self.shared.front().asked.push_back((wanted, Arc::downgrade(&answer)));
        self.shared.go_on();
        Pending { answer, read: T::of, _log: self.clone() }
    }
}

/// What a future of a log ends with.
trait Output {
    fn of(number: u64) -> Self;
}

impl Output for u64 {
    fn of(number: u64) -> Self {
        number
    }
}

impl Output for () {
    fn of(_: u64) {}
}

/// Something that was asked of a log: a future of what became of it. Dropped, nobody is told; see [`AsyncLog`]'s methods for what that
/// means.
#[must_use = "without it nobody knows what became of it"]
pub struct Pending<T> {
    answer: Arc<Answer>,
    read: fn(u64) -> T,
    /// It goes on as long as somebody waits.
    _log: AsyncLog,
}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").finish_non_exhaustive()
    }
}

impl<T> Future for Pending<T> {
    type Output = Result<T, GroupError>;

    fn poll(self: Pin<&mut Self>, task: &mut Task<'_>) -> Poll<Self::Output> {
        let mut state = self.answer.lock();
        match state.outcome.take() {
            Some(outcome) => Poll::Ready(outcome.map(self.read)),
            None => {
                state.waker = Some(task.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// The log, and what is waited for.
struct State {
    group: Group<SessionConnection>,
    timer: Timer,
    /// For when the timer is set.
    alarm: Option<Instant>,
    opening: Option<(Opening, Weak<Answer>)>,
    /// When it was last looked at what has come to its end.
    looked: Duration,
    /// Records that have no number yet, in their order.
    appends: VecDeque<Record>,
    /// What opening has done, until that is told.
    opened: Option<Opened>,
    /// By the number below which records must be acknowledged, and by the order in which that was asked for.
    waits: BTreeMap<(u64, u64), (u64, Weak<Answer>)>,
    waited: u64,
    trims: Vec<(Trimming, Weak<Answer>)>,
    catching_up: Vec<Weak<Answer>>,
    closings: Vec<Ending>,
    /// What is to be given once the log is free, and what is known of it was said.
    ended: Vec<(Arc<Answer>, Outcome)>,
}

/// One that has no number yet.
struct Record {
    payload: Vec<u8>,
    durable: bool,
    /// The last one of what was asked for together, which the answer is for.
    is_last: bool,
    answer: Weak<Answer>,
}

/// Whoever closes the log waits for all records below this number, and then for that.
struct Ending {
    below: u64,
    closing: Option<Closing>,
    answer: Weak<Answer>,
}

impl State {
    fn new(reactor: &Reactor, group: Group<SessionConnection>) -> Self {
        Self {
            group,
            timer: reactor.timer(),
            alarm: None,
            opening: None,
            looked: Duration::ZERO,
            appends: VecDeque::new(),
            opened: None,
            waits: BTreeMap::new(),
            waited: 0,
            trims: Vec::new(),
            catching_up: Vec::new(),
            closings: Vec::new(),
            ended: Vec::new(),
        }
    }

    /// Says what is known, in the place of what was said before.
    fn tell(&mut self, said: &mut Said) {
        let group = &mut self.group;
        said.survives = group.survives();
        said.next = group.next();
        said.acknowledged = group.acknowledged();
        said.epoch = Some(group.epoch());
        said.quorum = group.quorum();
        said.lost = group.lost();
        said.behind.clear();
        said.behind.extend((0..said.quorum.1).map(|n| group.machine().is_behind(n)));
        if let Some(opened) = self.opened.take() {
            said.opened = opened;
        }
    }

    /// Takes up what was asked for, and does all that can be done now. Whatever lets it go on then wakes the task.
    fn go_on(&mut self, asked: VecDeque<(Wanted, Weak<Answer>)>, task: &mut Task<'_>) {
        asked.into_iter().for_each(|(wanted, answer)| self.take_up(wanted, answer));
        loop {
            // What is wrong is said to whoever waits.
            let _ = self.group.poll();
            self.settle();
            // Of what has come some may lie where no task is woken for it.
            if !self.group.goes_on() && self.rests(task) {
                return;
            }
        }
    }

    fn take_up(&mut self, wanted: Wanted, answer: Weak<Answer>) {
        match wanted {
            Wanted::Open => self.opening = Some((Opening::new(self.group.grace()), answer)),
            Wanted::Append { payloads, durable } => {
                let last = payloads.len() - 1;
                let record = |(n, payload)| Record {
                    payload,
                    durable,
                    is_last: n == last,
                    answer: Weak::clone(&answer),
                };
                self.appends.extend(payloads.into_iter().enumerate().map(record));
            }
            Wanted::Acknowledged(below) => self.waits(below, 0, answer),
            Wanted::Trim(below) => match self.group.begin_trimming(below) {
                Ok(trimming) => self.trims.push((trimming, answer)),
                Err(error) => self.end(&answer, Err(error)),
            },
            Wanted::CaughtUp => self.catching_up.push(answer),
            Wanted::Close => {
                let below = self.group.next() + self.appends.len() as u64;
                self.closings.push(Ending { below, closing: None, answer });
            }
        }
    }

    fn waits(&mut self, below: u64, number: u64, answer: Weak<Answer>) {
        self.waited += 1;
        if self.waited.is_multiple_of(FORGET) {
            self.waits.retain(|_, (_, answer)| answer.strong_count() > 0);
        }
        self.waits.insert((below, self.waited), (number, answer));
    }

    fn end(&mut self, answer: &Weak<Answer>, outcome: Outcome) {
        self.ended.extend(answer.upgrade().map(|answer| (answer, outcome)));
    }

    /// Ends what has come to its end.
    fn settle(&mut self) {
        self.looked = SessionConnection::now();
        if !self.opens() {
            return;
        }
        self.append();
        let acknowledged = self.group.acknowledged();
        while let Some(entry) = self.waits.first_entry()
            && entry.key().0 <= acknowledged
        {
            let (number, answer) = entry.remove();
            self.end(&answer, Ok(number));
        }
        self.trims();
        let machine = self.group.machine();
        if !self.catching_up.is_empty() && machine.behind().is_empty() && !machine.is_settling() {
            for answer in std::mem::take(&mut self.catching_up) {
                self.end(&answer, Ok(0));
            }
        }
        self.close();
        if self.is_waited_for()
            && let Err(error) = self.is_alive()
        {
            self.fail(&error);
        }
    }

    /// Whether it is open, or has failed.
    fn opens(&mut self) -> bool {
        let machine = self.group.machine();
        let Some((opening, _)) = &mut self.opening else {
            return machine.is_open() || machine.failed().is_some();
        };
        let result = match opening.is_over(self.looked, machine) {
            Ok(false) => return false,
            Ok(true) => Ok(0),
            Err(error) => Err(error),
        };
        self.opened = Some(machine.opened());
        let (_, answer) = self.opening.take().expect("it was looked at");
        self.end(&answer, result);
        true
    }

    /// Gives records their numbers, as far as they are taken: as many together as have been asked for.
    fn append(&mut self) {
        let mut most = BATCH;
        loop {
            // Nobody waits for these, and they are not on their way. No more are looked at than are taken.
            let mut at = 0;
            while at < most
                && let Some(record) = self.appends.get(at)
            {
                if record.answer.strong_count() > 0 {
                    at += 1;
                } else {
                    self.appends.remove(at);
                }
            }
            if at == 0 {
                return;
            }
            let some: Vec<&[u8]> = self.appends.iter().take(at).map(|record| &record.payload[..]).collect();
            let count = match self.group.try_append_batch(&some) {
                Ok((_, count)) => count,
                Err(NotTaken::NotYet) => return,
                // It may be the fault of any of them.
                Err(NotTaken::Refused(_)) if some.len() > 1 => {
                    most = 1;
                    continue;
                }
                Err(NotTaken::Refused(error)) => {
                    // With it goes what was to come behind it.
                    let mut refused = self.appends.pop_front().expect("it was refused");
                    while !refused.is_last
                        && let Some(next) = self.appends.pop_front()
                    {
                        refused = next;
                    }
                    self.end(&refused.answer, Err(error));
                    continue;
                }
            };
            let next = self.group.next();
            for number in next - count as u64..next {
                let Record { durable, is_last, answer, .. } = self.appends.pop_front().expect("it was taken");
                if !is_last {
                    continue;
                }
                if durable {
                    self.waits(number + 1, number, answer);
                } else {
                    self.end(&answer, Ok(number));
                }
            }
        }
    }

    fn trims(&mut self) {
        for (trimming, answer) in std::mem::take(&mut self.trims) {
            if self.group.is_trimmed(self.looked, trimming) {
                self.end(&answer, Ok(0));
            } else {
                self.trims.push((trimming, answer));
            }
        }
    }

    fn close(&mut self) {
        for mut ending in std::mem::take(&mut self.closings) {
            let acknowledged = self.group.acknowledged();
            // Not each record that waited was taken.
            let all = self.appends.is_empty() && acknowledged >= self.group.next();
            if ending.closing.is_none() && (all || acknowledged >= ending.below) {
                ending.closing = Some(Closing::new(self.looked));
            }
            if let Some(closing) = &mut ending.closing
                && self.group.closes(self.looked, closing)
            {
                self.end(&ending.answer, Ok(0));
            } else {
                self.closings.push(ending);
            }
        }
    }

    fn is_waited_for(&self) -> bool {
        !(self.appends.is_empty()
            && self.waits.is_empty()
            && self.trims.is_empty()
            && self.catching_up.is_empty()
            && self.closings.is_empty())
    }

    fn is_alive(&self) -> Result<(), GroupError> {
        let machine = self.group.machine();
        machine.failed().map_or_else(|| machine.enough(), |error| Err(error.clone()))
    }

    /// Nothing that is waited for will come.
    fn fail(&mut self, error: &GroupError) {
        let last = |record: Record| record.is_last.then_some(record.answer);
        let appends = std::mem::take(&mut self.appends).into_iter().filter_map(last);
        let waits = std::mem::take(&mut self.waits).into_values().map(|(_, answer)| answer);
        let trims = std::mem::take(&mut self.trims).into_iter().map(|(_, answer)| answer);
        let closings = std::mem::take(&mut self.closings).into_iter().map(|ending| ending.answer);
        let catching_up = std::mem::take(&mut self.catching_up);
        let all: Vec<_> = appends.chain(waits).chain(trims).chain(catching_up).chain(closings).collect();
        all.iter().for_each(|answer| self.end(answer, Err(error.clone())));
    }

    /// Whether nothing is to be done before the task is woken.
    fn rests(&mut self, task: &mut Task<'_>) -> bool {
        let opening = self.opening.as_ref().and_then(|(opening, _)| opening.deadline());
        let trims = self.trims.iter().map(|(trimming, _)| trimming.since);
        let closings = self.closings.iter().filter_map(|ending| Some(ending.closing?.since));
        let graces = trims.chain(closings).filter_map(|since| self.group.grace_of(self.looked, since));
        let first = self.group.deadline().into_iter().chain(opening).chain(graces).min();
        let first = first.and_then(connection::instant);
        // One that comes too early is not moved before it is over: mostly there is an answer first.
        if let Some(first) = first
            && self.alarm.is_none_or(|alarm| first < alarm)
        {
            self.alarm = Some(first);
            self.timer.set(self.alarm);
        }
        if self.timer.poll_over(task).is_ready() {
            self.alarm = None;
            return false;
        }
        // Each of them is asked, so that each wakes the task.
        let mut rests = true;
        for one in self.group.all_connections() {
            rests &= one.session().poll_ready(task).is_pending();
        }
        rests
    }
}

/// Reads the records of a server's log from afar, one after the other: see [`LogReader`], which is the same for a thread that waits.
#[derive(Debug)]
pub struct AsyncLogReader {
    reader: LogReader,
    /// Behind the session, which it waits for.
    _background: Option<Background>,
}

impl AsyncLogReader {
    /// Begins with the first record that is there, by a device of its own, with a thread of its own that waits for it.
    ///
    /// # Errors
    /// As [`connect`](Self::connect); or there is no way from here to the server, or the system refuses a thread.
    pub async fn connect_to(server: SocketAddr, options: &ConnectOptions) -> Result<Self, CallError> {
        let local = |e: &dyn fmt::Display| ConnectionLost(e.to_string());
        let context = Context::towards(server.ip()).map_err(|e| local(&e))?;
        let reactor = Reactor::new(&context).map_err(|e| local(&e))?;
        let background = reactor.in_background().map_err(|e| local(&e))?;
        Ok(Self { _background: Some(background), ..Self::connect(&reactor, server, options).await? })
    }

    /// Begins with the first record that is there. It goes on while some thread waits for the reactor.
    ///
    /// # Errors
    /// The server is not there, or refuses.
    pub async fn connect(
        reactor: &Reactor,
        server: SocketAddr,
        options: &ConnectOptions,
    ) -> Result<Self, CallError> {
        let (on, by) = (reactor.clone(), options.clone());
        let reader = elsewhere(move || LogReader::connect_on(&on, server, &by)).await?;
        Ok(Self { reader, _background: None })
    }

    /// The next record; `None` at the end of the log as it is now, and after an error. Asked again later, it goes on. A future that is dropped
    /// takes no record away: the next one gives it.
    pub async fn next(&mut self) -> Option<Result<client::Record, ReadError>> {
        self.reader.next_as(Face::Task).await
    }

    /// What the server has said of its log last.
    #[must_use]
    pub const fn status(&self) -> &Status {
        self.reader.status()
    }

    /// The number of the record that comes next.
    #[must_use]
    pub const fn next_sequence(&self) -> u64 {
        self.reader.next_sequence()
    }
}
