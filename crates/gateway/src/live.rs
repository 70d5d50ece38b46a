//! A live Erda store under a gateway: a connection for each worker, and what happens while the server is away.
//!
//! A connection that breaks is made again by a thread of its own, so that no worker waits for a server that is gone: commands
//! wait a moment for it, [`Connector::hold`] after it was lost, as a server that restarts is soon back; after that they fail
//! at once with a sentence, until it is there. They wait as for anybody who is [in the way](StoreError::InTheWay): with their
//! connections, and what does not need the store goes on. What can be repeated is: reads, and writes whose value was not on its way. Of
//! other writes nobody knows whether they happened, and their error says so.
//!
//! Nor does a worker wait for a server that is there and silent, as one is whose process was stopped or whose link was cut. What it is asked is a
//! future that the worker carries out itself, on the reactor of its sessions, and waits for in place for as long as answers usually take, and some
//! milliseconds more. Then what was asked stays [under way](Busy), the command waits with its connection, and the worker goes on: it
//! looks at the future when the reactor's descriptor says that something has come, or the reactor's next deadline is over, of which the
//! last is that of the [patience](ConnectOptions::patience). When the answer has come those that wait are carried out again, and
//! whoever asks for the same again has [that answer](Live::recall).

use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context as Task, Poll, Waker};
use std::time::{Duration, Instant};

use remanence_kv::client::{Found, Stats};
use remanence_kv::proto::{Expect, Refusal};
use remanence_kv::view::Mode;
use remanence_kv_live::{Change, ConnectOptions, Error, Face, Reactor, Store, StoreStats};
use remanence_metrics::{Page, Source};
use remanence_resp::store::StoreError;
use remanence_verbs::Context;

use crate::erda::{Erda, Handle, NamedChange, remaining, told};

/// Between two attempts to connect again: the first pause, and the longest.
const PAUSE: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// An answer is waited for in place for so long, and for some times of what answers took lately; for so long at most.
const GRACE: Duration = Duration::from_millis(10);
const USUALLY: u32 = 4;
const GRACE_MAX: Duration = Duration::from_secs(1);
/// Whoever waits looks again after so long, however long the patience is.
const PATIENCE_MAX: Duration = Duration::from_secs(3600);
/// So many answers that came late are kept. One that nobody asks for again goes with the oldest.
const LATE_MAX: usize = 1 << 13;

/// Makes connections to one store, for the workers of a gateway. Clones make them to the same one, and count together.
#[derive(Clone, Debug)]
pub struct Connector {
    context: Context,
    to: SocketAddr,
    /// Of a store on several servers; empty for one.
    members: Vec<SocketAddr>,
    options: ConnectOptions,
    hold: Duration,
    counts: Arc<Counts>,
}

/// What the connections of a gateway did, together.
#[derive(Debug, Default)]
struct Counts {
    workers: AtomicU64,
    connected: AtomicU64,
    lost: AtomicU64,
    made_again: AtomicU64,
    unknown: AtomicU64,
    stats: Mutex<Stats>,
}

impl Counts {
    fn stats(&self) -> Stats {
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds what a client counted since it was looked at last.
    fn add(&self, now: &Stats, before: &Stats) {
        let mut sum = self.stats.lock().unwrap_or_else(PoisonError::into_inner);
        let counts: [fn(&mut Stats) -> &mut u64; 6] = [
            |s| &mut s.cached,
            |s| &mut s.stale,
            |s| &mut s.reads,
            |s| &mut s.fell_back,
            |s| &mut s.again,
            |s| &mut s.asked,
        ];
        for count in counts {
            *count(&mut sum) += *count(&mut now.clone()) - *count(&mut before.clone());
        }
    }
}

impl Connector {
    /// To this server.
    #[must_use]
    pub fn new(context: &Context, to: SocketAddr, options: ConnectOptions) -> Self {
        Self {
            context: context.clone(),
            to,
            members: Vec::new(),
            // Who connects again, and when, is decided here.
            options: options.reconnect(false).descriptor(true),
            hold: Duration::from_secs(1),
            counts: Arc::default(),
        }
    }

    /// To a store on several members, of which these are all or some: see [`Store::connect_members`].
    ///
    /// # Panics
    /// With no member.
    #[must_use]
    pub fn to_members(context: &Context, members: Vec<SocketAddr>, options: ConnectOptions) -> Self {
        let first = *members.first().expect("a member");
        Self { members, ..Self::new(context, first, options) }
    }

    fn open(&self) -> Result<Store, Error> {
        match &self.members[..] {
            [] => Store::connect(&self.context, self.to, self.options.clone()),
            members => Store::connect_members(&self.context, members, self.options.clone()),
        }
    }

    /// How long commands wait for a connection that was lost, from then on; a second if nothing is said.
    #[must_use]
    pub const fn hold(mut self, time: Duration) -> Self {
        self.hold = time;
        self
    }

    /// Connects a worker.
    ///
    /// # Errors
    /// As [`Store::connect`]: a sentence that says what to do.
    pub fn connect(&self) -> Result<Erda<Live>, Error> {
        let since = Instant::now();
        let store = self.open()?;
        self.counts.workers.fetch_add(1, Ordering::Relaxed);
        self.counts.connected.fetch_add(1, Ordering::Relaxed);
        let (connector, before) = (self.clone(), Stats::default());
        Ok(Erda::over(Live {
            connector,
            store: Some(Box::new(store)),
            busy: None,
            outage: None,
            before,
            wrote: false,
            wake: None,
            waker: Waker::noop().clone(),
            asked: 1,
            recalled: None,
            late: VecDeque::new(),
            // To connect takes some answers.
            pace: since.elapsed().min(GRACE_MAX) / USUALLY,
        }))
    }

    /// What the connections did, for Prometheus.
    #[must_use]
    pub fn metrics(&self) -> Source {
        let counts = Arc::clone(&self.counts);
        Arc::new(move |page| counts.write(page))
    }
}

impl Counts {
    fn write(&self, page: &mut Page<'_>) -> fmt::Result {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let stats = self.stats();
        page.gauge(
            "remanence_gateway_store_workers",
            None,
            "Workers, each with a connection.",
            of(&self.workers),
        )?;
        page.gauge(
            "remanence_gateway_store_connected",
            None,
            "Workers whose connection is there.",
            of(&self.connected),
        )?;
        for (name, help, count) in [
            ("connections_lost", "Connections to the store that were lost.", of(&self.lost)),
            ("connections_restored", "Connections that were made again.", of(&self.made_again)),
            ("writes_unknown", "Writes of which nobody knows whether they happened.", of(&self.unknown)),
            ("reads", "One-sided READs.", stats.reads),
            ("cached_gets", "GETs that took one READ.", stats.cached),
            ("stale_locations", "Cached locations that were out of date.", stats.stale),
            (
                "fallbacks",
                "GETs that found a value half written, and returned the one before.",
                stats.fell_back,
            ),
            ("retries", "GETs that began again.", stats.again),
            ("server_gets", "GETs that the server had to answer.", stats.asked),
        ] {
            page.counter(&format!("remanence_gateway_store_{name}"), None, help, count)?;
        }
        Ok(())
    }
}

/// One worker's connection. Always one of three is there: a store that can be asked, one that has been asked and has not answered yet, or
/// an outage.
#[derive(Debug)]
pub struct Live {
    connector: Connector,
    store: Option<Box<Store>>,
    busy: Option<Busy>,
    outage: Option<Outage>,
    /// What the client had counted when it was looked at last.
    before: Stats,
    /// Something was written that the server has not been told of.
    wrote: bool,
    wake: Option<Wake>,
    /// The same, for a future.
    waker: Waker,
    /// How much it has been asked so far, and one more.
    asked: u64,
    /// When whoever asks now began, by that number, if it had to wait.
    recalled: Option<u64>,
    late: VecDeque<Late>,
    /// How long an answer takes, lately.
    pace: Duration,
}

/// Whom a connection that is made again wakes, or a future that can go on.
#[derive(Clone)]
struct Wake(Arc<dyn Fn() + Send + Sync>);

impl std::task::Wake for Wake {
    fn wake(self: Arc<Self>) {
        (self.0)();
    }
}

impl fmt::Debug for Wake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Wake")
    }
}

/// What the server is asked.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Asked {
    Get(Vec<u8>),
    Front(Vec<u8>, usize),
    GetMany(Vec<Vec<u8>>),
    Changes(Vec<OwnedChange>),
    Page(u64, u32),
    Counts,
    Clear(Option<u8>, u64),
    Rest,
    Stats,
}

/// A [`NamedChange`] with what it is made of.
#[derive(Clone, PartialEq, Eq, Debug)]
struct OwnedChange {
    name: Vec<u8>,
    value: Option<Vec<u8>>,
    expect: Expect,
}

/// What the server answers.
#[derive(Debug)]
enum Answer {
    Found(Option<Found>),
    Many(Vec<Option<Found>>),
    Changed(Vec<Option<Result<u64, Error>>>),
    /// Of one change, whether it was made.
    Made(bool),
    Page(Vec<Vec<u8>>, Option<u64>),
    Counts(bool, Vec<(u8, u64)>),
    Next(Option<u64>),
    Rested,
    /// And whether this client may write.
    Stats(Box<StoreStats>, bool),
}

impl Asked {
    /// Asks the server, as a task.
    async fn ask(&self, store: &mut Store) -> Result<Answer, Error> {
        const TASK: Face = Face::Task;
        Ok(match self {
            Self::Get(name) => Answer::Found(store.get_as(TASK, name).await?),
            Self::Front(name, max) => Answer::Found(store.get_front_as(TASK, name, *max).await?),
            Self::GetMany(names) => Answer::Many(store.get_many_as(TASK, names).await?),
            Self::Changes(changes) => {
                let mut all = Vec::with_capacity(changes.len());
                for OwnedChange { name: key, value, expect } in changes {
                    let value = value.as_deref();
                    all.push(Change { key, value, expect: *expect, ttl: value.and_then(ttl) });
                }
                Answer::Changed(store.change_at_once_as(TASK, &all).await?)
            }
            Self::Page(cursor, limit) => {
                let page = store.scan_as(TASK, *cursor, *limit).await?;
                Answer::Page(page.keys, page.next)
            }
            Self::Counts => {
                let (whole, counts) = store.counts_as(TASK).await?;
                Answer::Counts(whole, counts)
            }
            Self::Clear(first, cursor) => Answer::Next(store.clear_as(TASK, *first, *cursor).await?),
            Self::Rest => {
                store.rest_as(TASK).await?;
                Answer::Rested
            }
            Self::Stats => {
                let stats = store.stats_as(TASK).await?;
                Answer::Stats(Box::new(stats), store.session().role().may_write())
            }
        })
    }
}

/// The store, and what it has answered.
type Work = Pin<Box<dyn Future<Output = (Box<Store>, Result<Answer, Error>)> + Send>>;

/// Something that the server has been asked, and has not answered yet.
struct Busy {
    asked: Arc<Asked>,
    /// How much had been asked before.
    at: u64,
    since: Instant,
    reactor: Reactor,
    work: Work,
}

impl fmt::Debug for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Busy").field("asked", &self.asked).field("since", &self.since).finish_non_exhaustive()
    }
}

/// An answer that whoever asked has not waited for in place.
#[derive(Debug)]
struct Late {
    asked: Asked,
    /// How much had been asked before.
    at: u64,
    answer: Result<Answer, StoreError>,
}

#[derive(Debug)]
struct Outage {
    since: Instant,
    why: Arc<Mutex<String>>,
    /// The next connection comes here.
    next: Receiver<Store>,
    /// Whether anybody still wants it.
    _wanted: Arc<()>,
}

impl Outage {
    fn begin(connector: &Connector, why: String, wake: Option<Wake>) -> Self {
        let (sender, next) = channel();
        let (why, wanted) = (Arc::new(Mutex::new(why)), Arc::new(()));
        let (connector, said, still) = (connector.clone(), Arc::clone(&why), Arc::downgrade(&wanted));
        let reconnect = move || {
            let mut pause = PAUSE;
            while still.strong_count() > 0 {
                match connector.open() {
                    // A worker that has gone meanwhile drops it.
                    Ok(store) => {
                        drop(sender.send(store));
                        return wake.into_iter().for_each(|wake| (wake.0)());
                    }
                    Err(error) => *said.lock().unwrap_or_else(PoisonError::into_inner) = error.to_string(),
                }
                std::thread::sleep(pause);
                pause = (pause * 2).min(PAUSE_MAX);
            }
        };
        let spawned = std::thread::Builder::new().name("reconnect".into()).spawn(reconnect);
        if let Err(error) = spawned {
            *why.lock().unwrap_or_else(PoisonError::into_inner) = error.to_string();
        }
        Self { since: Instant::now(), why, next, _wanted: wanted }
    }

    /// Why there is no connection.
    fn why(&self) -> String {
        self.why.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Live {
    /// Has a connection, if there is one: else says why nobody can be asked.
    fn ready(&mut self, asked: &Asked) -> Result<Box<Store>, StoreError> {
        if self.store.as_ref().is_some_and(|store| !store.is_connected()) {
            self.lose("the connection is gone".to_owned());
        }
        self.drive();
        if self.take_next()
            && let Some(store) = self.store.take()
        {
            return Ok(store);
        }
        let Some(busy) = &self.busy else { return Err(self.is_away()) };
        let is_own = match (&*busy.asked, asked) {
            (Asked::Changes(all), Asked::Changes(some)) => {
                self.recalled.is_some_and(|mark| busy.at >= mark) && some.iter().all(|one| all.contains(one))
            }
            _ => false,
        };
        Err(if is_own { StoreError::UnderWay } else { StoreError::InTheWay })
    }

    /// Takes the next connection if it has come; whether there is one.
    fn take_next(&mut self) -> bool {
        let Some(outage) = &mut self.outage else { return true };
        match outage.next.try_recv() {
            Ok(store) => {
                self.restored(store);
                return true;
            }
            Err(TryRecvError::Empty) => {}
            // There was no thread to be had.
            Err(TryRecvError::Disconnected) => {
                let again = Outage::begin(&self.connector, outage.why(), self.wake.clone());
                *outage = Outage { since: outage.since, ..again };
            }
        }
        false
    }

    /// For how long the next connection is still waited for.
    fn left(&self) -> Option<Duration> {
        let outage = self.outage.as_ref()?;
        self.connector.hold.checked_sub(outage.since.elapsed()).filter(|left| !left.is_zero())
    }

    /// There is no connection: what comes of whoever wanted one, for whom nothing was done.
    fn is_away(&self) -> StoreError {
        let outage = self.outage.as_ref().expect("it was lost");
        if self.left().is_some() {
            return StoreError::InTheWay;
        }
        let (to, since, why) = (self.connector.to, outage.since.elapsed().as_secs(), outage.why());
        StoreError::Unavailable(format!(
            "nothing was done, as {to} has been away for {since} s and is tried again and again ({why})"
        ))
    }

    /// There is a connection again.
    fn restored(&mut self, store: Store) {
        let counts = &self.connector.counts;
        counts.made_again.fetch_add(1, Ordering::Relaxed);
        counts.connected.fetch_add(1, Ordering::Relaxed);
        (self.store, self.outage) = (Some(Box::new(store)), None);
    }

    /// The connection is gone.
    fn lose(&mut self, why: String) {
        self.publish();
        self.before = Stats::default();
        self.wrote = false;
        let counts = &self.connector.counts;
        counts.lost.fetch_add(1, Ordering::Relaxed);
        counts.connected.fetch_sub(1, Ordering::Relaxed);
        self.store = None;
        self.outage = Some(Outage::begin(&self.connector, why, self.wake.clone()));
    }

    fn publish(&mut self) {
        if let Some(store) = &self.store {
            let now = store.client().stats();
            self.connector.counts.add(&now, &self.before);
            self.before = now;
        }
    }

    /// Asks the server, and waits for its answer as long as that may take in place. If the connection breaks it is to be asked again on the next
    /// one, unless what was asked may have happened.
    fn ask(&mut self, asked: Asked) -> Result<Answer, StoreError> {
        if let Some(mut late) = self.take_late(std::slice::from_ref(&asked)) {
            return late.pop().expect("one for one");
        }
        let mut store = self.ready(&asked)?;
        let (at, since, asked) = (self.asked, Instant::now(), Arc::new(asked));
        self.asked += 1;
        let (reactor, again) = (store.reactor().clone(), Arc::clone(&asked));
        let mut work: Work = Box::pin(async move {
            let answer = again.ask(&mut store).await;
            (store, answer)
        });
        let grace = (GRACE + self.pace * USUALLY).min(GRACE_MAX);
        match reactor.block_on(reactor.within(grace, work.as_mut())) {
            Some((store, answer)) => self.judged(store, answer, since),
            None => {
                let is_change = matches!(*asked, Asked::Changes(_));
                self.busy = Some(Busy { asked, at, since, reactor, work });
                Err(if is_change { StoreError::UnderWay } else { StoreError::InTheWay })
            }
        }
    }

    /// The server has answered, or the connection has broken.
    fn judged(
        &mut self,
        store: Box<Store>,
        answer: Result<Answer, Error>,
        since: Instant,
    ) -> Result<Answer, StoreError> {
        self.pace = (self.pace * 7 + since.elapsed().min(GRACE_MAX)) / 8;
        let is_connected = store.is_connected();
        self.store = Some(store);
        let error = match answer {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        if is_connected {
            return Err(self.failed(error).into());
        }
        self.lose(error.to_string());
        Err(match error {
            Error::Unknown(_) => self.failed(error).into(),
            _ => self.is_away(),
        })
    }

    /// Goes on with what is under way, as far as the server has answered, and keeps the answer for who asks again.
    fn drive(&mut self) {
        let Some(busy) = &mut self.busy else { return };
        busy.reactor.poll();
        let Poll::Ready((store, answer)) = busy.work.as_mut().poll(&mut Task::from_waker(&self.waker)) else {
            return;
        };
        let Some(Busy { asked, at, since, .. }) = self.busy.take() else { return };
        let answer = self.judged(store, answer, since);
        let mut keep = |asked, answer| self.late.push_back(Late { asked, at, answer });
        match (&*asked, answer) {
            // Nothing has been done.
            (_, Err(StoreError::InTheWay)) | (Asked::Rest | Asked::Stats | Asked::GetMany(_), Err(_)) => {}
            (Asked::Rest | Asked::Stats, Ok(_)) => {}
            (Asked::GetMany(names), Ok(Answer::Many(found))) => {
                for (name, found) in names.iter().zip(found) {
                    keep(Asked::Get(name.clone()), Ok(Answer::Found(found)));
                }
            }
            (Asked::Changes(changes), Ok(Answer::Changed(outcomes))) => {
                let counts = Arc::clone(&self.connector.counts);
                for (change, outcome) in changes.iter().zip(outcomes) {
                    let made = made(&counts, change.value.is_some(), outcome).map(Answer::Made);
                    keep(Asked::Changes(vec![change.clone()]), made);
                }
            }
            (Asked::Changes(changes), Err(error)) => {
                for change in changes {
                    keep(Asked::Changes(vec![change.clone()]), Err(error.clone()));
                }
            }
            (asked, answer) => keep(asked.clone(), answer),
        }
        let most = LATE_MAX.min(self.late.len());
        self.late.drain(..self.late.len() - most);
    }

    /// The answers to all of these, if they have come since whoever asks now began. Each is had once.
    fn take_late(&mut self, asked: &[Asked]) -> Option<Vec<Result<Answer, StoreError>>> {
        let mark = self.recalled.filter(|_| !self.late.is_empty())?;
        let mut places: Vec<usize> = Vec::with_capacity(asked.len());
        for asked in asked {
            let is_it =
                |(n, late): (usize, &Late)| late.at >= mark && late.asked == *asked && !places.contains(&n);
            let place = self.late.iter().enumerate().position(is_it)?;
            places.push(place);
        }
        let mut all: Vec<Option<Late>> = self.late.drain(..).map(Some).collect();
        let taken =
            places.into_iter().filter_map(|place| all[place].take()).map(|late| late.answer).collect();
        self.late.extend(all.into_iter().flatten());
        Some(taken)
    }

    fn failed(&self, error: Error) -> Failed {
        failed(&self.connector.counts, error)
    }
}

fn failed(counts: &Counts, error: Error) -> Failed {
    match error {
        Error::Refused(Refusal::WrongVersion { .. }) => Failed::Condition,
        Error::Refused(refusal) => told(&refusal).into(),
        error => {
            if matches!(error, Error::Unknown(_)) {
                counts.unknown.fetch_add(1, Ordering::Relaxed);
            }
            StoreError::Unavailable(error.to_string()).into()
        }
    }
}

/// What came of a change: whether it was made.
fn made(counts: &Counts, writes: bool, outcome: Option<Result<u64, Error>>) -> Result<bool, StoreError> {
    match outcome.ok_or(StoreError::InTheWay)?.map_err(|error| failed(counts, error)) {
        // A deletion without a version found nothing.
        Ok(version) => Ok(writes || version > 0),
        Err(Failed::Condition) => Ok(false),
        Err(Failed::Store(error)) => Err(error),
    }
}

/// Why something did not happen.
enum Failed {
    /// The condition does not hold.
    Condition,
    Store(StoreError),
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<Failed> for StoreError {
    fn from(failed: Failed) -> Self {
        match failed {
            // Only a write with a condition can fail so, and those are asked about.
            Failed::Condition => Self::Unavailable("a condition failed that nobody made".to_owned()),
            Failed::Store(error) => error,
        }
    }
}

/// How long the store is to keep a value of ours.
fn ttl(value: &[u8]) -> Option<Duration> {
    remaining(value, crate::process::unix_ms()).map(Duration::from_millis)
}

impl Live {
    fn value(&mut self, asked: Asked) -> Result<Option<Found>, StoreError> {
        match self.ask(asked)? {
            Answer::Found(found) => Ok(found),
            other => unreachable!("{other:?} for a value"),
        }
    }
}

impl Handle for Live {
    fn get(&mut self, name: &[u8]) -> Result<Option<Found>, StoreError> {
        self.value(Asked::Get(name.to_vec()))
    }

    fn front(&mut self, name: &[u8], max: usize) -> Result<Option<Found>, StoreError> {
        self.value(Asked::Front(name.to_vec(), max))
    }

    fn get_many(&mut self, names: &[Vec<u8>]) -> Vec<Result<Option<Found>, StoreError>> {
        if self.recalled.is_some() {
            let gets: Vec<Asked> = names.iter().map(|name| Asked::Get(name.clone())).collect();
            if let Some(late) = self.take_late(&gets) {
                let found = |answer| match answer {
                    Answer::Found(found) => found,
                    other => unreachable!("{other:?} for a value"),
                };
                return late.into_iter().map(|answer| answer.map(found)).collect();
            }
        }
        match self.ask(Asked::GetMany(names.to_vec())) {
            Ok(Answer::Many(found)) => found.into_iter().map(Ok).collect(),
            Ok(other) => unreachable!("{other:?} for values"),
            // One that is damaged, say, is no reason not to return the others.
            Err(_) if self.store.is_some() => names.iter().map(|name| self.get(name)).collect(),
            Err(error) => names.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    fn change_many(&mut self, changes: &[NamedChange<'_>]) -> Vec<Result<bool, StoreError>> {
        self.wrote = true;
        let owned = |change: &NamedChange<'_>| OwnedChange {
            name: change.name.to_vec(),
            value: change.value.map(<[u8]>::to_vec),
            expect: change.expect,
        };
        if self.recalled.is_some() {
            let one = |change| Asked::Changes(vec![owned(change)]);
            if let Some(late) = self.take_late(&changes.iter().map(one).collect::<Vec<_>>()) {
                let made = |answer| match answer {
                    Answer::Made(made) => made,
                    other => unreachable!("{other:?} for a change"),
                };
                return late.into_iter().map(|answer| answer.map(made)).collect();
            }
        }
        match self.ask(Asked::Changes(changes.iter().map(owned).collect())) {
            Ok(Answer::Changed(outcomes)) => outcomes
                .into_iter()
                .zip(changes)
                .map(|(outcome, change)| made(&self.connector.counts, change.value.is_some(), outcome))
                .collect(),
            Ok(other) => unreachable!("{other:?} for changes"),
            Err(error) => changes.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    fn page(&mut self, cursor: u64, limit: u32) -> Result<(Vec<Vec<u8>>, Option<u64>), StoreError> {
        match self.ask(Asked::Page(cursor, limit))? {
            Answer::Page(keys, next) => Ok((keys, next)),
            other => unreachable!("{other:?} for a page"),
        }
    }

    fn counts(&mut self) -> Result<(bool, Vec<(u8, u64)>), StoreError> {
        match self.ask(Asked::Counts)? {
            Answer::Counts(whole, counts) => Ok((whole, counts)),
            other => unreachable!("{other:?} for counts"),
        }
    }

    fn clear(&mut self, first: Option<u8>, cursor: u64) -> Result<Option<u64>, StoreError> {
        self.wrote = true;
        match self.ask(Asked::Clear(first, cursor))? {
            Answer::Next(next) => Ok(next),
            other => unreachable!("{other:?} for what was cleared"),
        }
    }

    fn rest(&mut self) -> Option<Duration> {
        self.publish();
        self.drive();
        if self.outage.is_some() {
            // The descriptor of the next connection is another one.
            return self.take_next().then_some(Duration::ZERO);
        }
        if let Some(store) = &mut self.store {
            let known = store.client().view().number;
            let noticed = store.session().noticed();
            let wrote = std::mem::take(&mut self.wrote);
            match noticed {
                // What fails here fails the next operation.
                Ok(view) if wrote || view.is_some_and(|view| view > known) => _ = self.ask(Asked::Rest),
                Ok(_) => {}
                Err(error) => self.lose(error.to_string()),
            }
        }
        // When what is under way is to be looked at though nothing has come.
        let due = self.busy.as_ref()?.reactor.due()?;
        Some(due.saturating_duration_since(Instant::now()))
    }

    fn away(&mut self) -> Option<Duration> {
        self.drive();
        let Some(busy) = &self.busy else { return if self.take_next() { None } else { self.left() } };
        // Until then it has answered or is given up.
        let patience = self.connector.options.waits().min(PATIENCE_MAX) + GRACE;
        Some(patience.saturating_sub(busy.since.elapsed()).max(GRACE))
    }

    fn mark(&self) -> u64 {
        self.asked
    }

    fn recall(&mut self, mark: Option<u64>) -> Option<u64> {
        std::mem::replace(&mut self.recalled, mark)
    }

    fn descriptor(&mut self) -> Option<BorrowedFd<'_>> {
        match (&self.busy, &self.store) {
            (Some(busy), _) => busy.reactor.arm(),
            (None, Some(store)) => store.arm(),
            (None, None) => None,
        }
    }

    fn wake_by(&mut self, wake: Arc<dyn Fn() + Send + Sync>) {
        let wake = Wake(wake);
        self.waker = Arc::new(wake.clone()).into();
        self.wake = Some(wake);
    }

    fn facts(&mut self) -> Vec<(&'static str, String)> {
        self.publish();
        let counts = Arc::clone(&self.connector.counts);
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed).to_string();
        let stats = counts.stats();
        let mut facts = vec![
            ("store_server", self.connector.to.to_string()),
            ("store_workers", of(&counts.workers)),
            ("store_connected", of(&counts.connected)),
            ("store_connections_lost", of(&counts.lost)),
            ("store_writes_unknown", of(&counts.unknown)),
            ("store_reads", stats.reads.to_string()),
            ("store_cached_gets", stats.cached.to_string()),
            ("store_server_gets", stats.asked.to_string()),
        ];
        // A server that is away says nothing, and INFO is still answered.
        if let Ok(Answer::Stats(store, writes)) = self.ask(Asked::Stats) {
            let (server, usage) = (store.server, store.usage);
            let yes = |yes: bool| u8::from(yes).to_string();
            facts.extend([
                ("store_mode", if store.mode == Mode::Durable { "durable" } else { "erda" }.to_owned()),
                ("store_access", if writes { "read-write" } else { "read-only" }.to_owned()),
                ("store_uptime_in_seconds", (store.uptime / 1000).to_string()),
                ("store_boot", store.boot.to_string()),
                ("store_size", store.size.to_string()),
                ("store_region_size", store.region_len.to_string()),
                ("store_regions", usage.regions.to_string()),
                ("store_regions_free", usage.regions_free.to_string()),
                ("store_keys", usage.room.keys.to_string()),
                ("store_counted", yes(usage.room.counted)),
                ("store_live_bytes", usage.room.live.to_string()),
                ("store_garbage_bytes", usage.room.garbage.to_string()),
                ("store_free_bytes", usage.room.free.to_string()),
                ("store_left_bytes", usage.room.left.to_string()),
                ("store_entries", usage.entries.to_string()),
                ("store_entries_max", usage.entries_max.to_string()),
                ("store_unfinished_writes", usage.unfinished.to_string()),
                ("store_cleaning", yes(usage.cleaning)),
                ("store_growing", yes(usage.growing)),
                ("store_clients", store.clients.to_string()),
                ("store_calls", store.calls.to_string()),
                ("store_settled_writes", server.settled.to_string()),
                ("store_given_up_writes", server.given_up.to_string()),
                ("store_expired_keys", server.expired.to_string()),
                ("store_damaged_objects", server.damaged.to_string()),
            ]);
        }
        facts
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.publish();
        self.connector.counts.workers.fetch_sub(1, Ordering::Relaxed);
        if self.outage.is_none() {
            self.connector.counts.connected.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
