//! A live Erda store under a gateway: a connection for each worker, and what happens while the server is away.
//!
//! A connection that breaks is made again by a thread of its own, so that no worker waits for a server that is gone: commands
//! wait a moment for it, [`Connector::hold`] after it was lost, as a server that restarts is soon back; after that they fail
//! at once with a sentence, until it is there. They wait as for anybody who is [in the way](StoreError::InTheWay): with their
//! connections, and what does not need the store goes on. What can be repeated is: reads, and writes whose value was not on its way. Of
//! other writes nobody knows whether they happened, and their error says so.

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use remanence_kv::client::{Found, Stats};
use remanence_kv::proto::Refusal;
use remanence_kv::view::Mode;
use remanence_kv_live::{Change, ConnectOptions, Error, Store};
use remanence_metrics::{Page, Source};
use remanence_resp::store::StoreError;
use remanence_verbs::Context;

use crate::erda::{Erda, Handle, NamedChange, remaining, told};

/// Between two attempts to connect again: the first pause, and the longest.
const PAUSE: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);

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
        let store = self.open()?;
        self.counts.workers.fetch_add(1, Ordering::Relaxed);
        self.counts.connected.fetch_add(1, Ordering::Relaxed);
        let (connector, before) = (self.clone(), Stats::default());
        Ok(Erda::over(Live {
            connector,
            state: State::Up(Box::new(store)),
            before,
            wrote: false,
            wake: None,
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

/// One worker's connection.
#[derive(Debug)]
pub struct Live {
    connector: Connector,
    state: State,
    /// What the client had counted when it was looked at last.
    before: Stats,
    /// Something was written that the server has not been told of.
    wrote: bool,
    wake: Option<Wake>,
}

/// Whom a connection that is made again wakes.
#[derive(Clone)]
struct Wake(Arc<dyn Fn() + Send + Sync>);

impl fmt::Debug for Wake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Wake")
    }
}

#[derive(Debug)]
enum State {
    Up(Box<Store>),
    Down(Outage),
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
    /// The connection, or why there is none.
    fn up(&mut self) -> Result<&mut Store, StoreError> {
        if let State::Up(store) = &self.state
            && !store.is_connected()
        {
            self.lose("the connection is gone".to_owned());
        }
        if !self.take_next() {
            return Err(self.is_away());
        }
        match &mut self.state {
            State::Up(store) => Ok(store),
            State::Down(_) => unreachable!("it is up, or was answered"),
        }
    }

    /// Takes the next connection if it has come; whether there is one.
    fn take_next(&mut self) -> bool {
        let State::Down(outage) = &mut self.state else { return true };
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
        let State::Down(outage) = &self.state else { return None };
        self.connector.hold.checked_sub(outage.since.elapsed()).filter(|left| !left.is_zero())
    }

    /// There is no connection: what comes of whoever wanted one, for whom nothing was done.
    fn is_away(&self) -> StoreError {
        let State::Down(outage) = &self.state else { unreachable!("it was lost") };
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
        self.state = State::Up(Box::new(store));
    }

    /// The connection is gone.
    fn lose(&mut self, why: String) {
        self.publish();
        self.before = Stats::default();
        self.wrote = false;
        let counts = &self.connector.counts;
        counts.lost.fetch_add(1, Ordering::Relaxed);
        counts.connected.fetch_sub(1, Ordering::Relaxed);
        self.state = State::Down(Outage::begin(&self.connector, why, self.wake.clone()));
    }

    fn publish(&mut self) {
        if let State::Up(store) = &self.state {
            let now = store.client().stats();
            self.connector.counts.add(&now, &self.before);
            self.before = now;
        }
    }

    /// Does something. If the connection breaks it is to be done again on the next one, unless it may have happened.
    fn attempt<T>(&mut self, once: impl FnOnce(&mut Store) -> Result<T, Error>) -> Result<T, Failed> {
        let store = self.up()?;
        let error = match once(store) {
            Ok(output) => return Ok(output),
            Err(error) => error,
        };
        if store.is_connected() {
            return Err(self.failed(error));
        }
        self.lose(error.to_string());
        Err(match error {
            Error::Unknown(_) => self.failed(error),
            _ => self.is_away().into(),
        })
    }

    fn failed(&self, error: Error) -> Failed {
        match error {
            Error::Refused(Refusal::WrongVersion { .. }) => Failed::Condition,
            Error::Refused(refusal) => told(&refusal).into(),
            error => {
                if matches!(error, Error::Unknown(_)) {
                    self.connector.counts.unknown.fetch_add(1, Ordering::Relaxed);
                }
                StoreError::Unavailable(error.to_string()).into()
            }
        }
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

impl Handle for Live {
    fn get(&mut self, name: &[u8]) -> Result<Option<Found>, StoreError> {
        Ok(self.attempt(|store| store.get(name))?)
    }

    fn front(&mut self, name: &[u8], max: usize) -> Result<Option<Found>, StoreError> {
        Ok(self.attempt(|store| store.get_front(name, max))?)
    }

    fn get_many(&mut self, names: &[Vec<u8>]) -> Vec<Result<Option<Found>, StoreError>> {
        match self.attempt(|store| store.get_many(names)) {
            Ok(found) => found.into_iter().map(Ok).collect(),
            // One that is damaged, say, is no reason not to return the others.
            Err(_) if matches!(self.state, State::Up(_)) => names.iter().map(|name| self.get(name)).collect(),
            Err(failed) => {
                let error = StoreError::from(failed);
                names.iter().map(|_| Err(error.clone())).collect()
            }
        }
    }

    fn change_many(&mut self, changes: &[NamedChange<'_>]) -> Vec<Result<bool, StoreError>> {
        self.wrote = true;
        let mut all = Vec::with_capacity(changes.len());
        for &NamedChange { name: key, value, expect } in changes {
            all.push(Change { key, value, expect, ttl: value.and_then(ttl) });
        }
        match self.attempt(|store| store.change_at_once(&all)) {
            Ok(outcomes) => outcomes
                .into_iter()
                .zip(changes)
                .map(|(outcome, change)| {
                    match outcome.ok_or(StoreError::InTheWay)?.map_err(|error| self.failed(error)) {
                        // A deletion without a version found nothing.
                        Ok(version) => Ok(change.value.is_some() || version > 0),
                        Err(Failed::Condition) => Ok(false),
                        Err(Failed::Store(error)) => Err(error),
                    }
                })
                .collect(),
            Err(failed) => {
                let error = StoreError::from(failed);
                changes.iter().map(|_| Err(error.clone())).collect()
            }
        }
    }

    fn page(&mut self, cursor: u64, limit: u32) -> Result<(Vec<Vec<u8>>, Option<u64>), StoreError> {
        Ok(self.attempt(|store| store.scan(cursor, limit).map(|page| (page.keys, page.next)))?)
    }

    fn counts(&mut self) -> Result<(bool, Vec<(u8, u64)>), StoreError> {
        Ok(self.attempt(Store::counts)?)
    }

    fn clear(&mut self, first: Option<u8>, cursor: u64) -> Result<Option<u64>, StoreError> {
        self.wrote = true;
        Ok(self.attempt(|store| store.clear(first, cursor))?)
    }

    fn rest(&mut self) -> Option<Duration> {
        self.publish();
        if matches!(self.state, State::Down(_)) {
            // The descriptor of the next connection is another one.
            return self.take_next().then_some(Duration::ZERO);
        }
        let State::Up(store) = &mut self.state else { return None };
        let known = store.client().view().number;
        let rested = match store.session().noticed() {
            Ok(view) if self.wrote || view.is_some_and(|view| view > known) => store.rest(),
            other => other.map(drop),
        };
        self.wrote = false;
        if let Err(error) = rested {
            self.lose(error.to_string());
        }
        None
    }

    fn away(&mut self) -> Option<Duration> {
        if self.take_next() { None } else { self.left() }
    }

    fn descriptor(&mut self) -> Option<BorrowedFd<'_>> {
        match &self.state {
            State::Up(store) => store.arm(),
            State::Down(_) => None,
        }
    }

    fn wake_by(&mut self, wake: Arc<dyn Fn() + Send + Sync>) {
        self.wake = Some(Wake(wake));
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
        let both = |store: &mut Store| Ok((store.session().role().may_write(), store.stats()?));
        if let Ok((writes, store)) = self.attempt(both) {
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
        if matches!(self.state, State::Up(_)) {
            self.connector.counts.connected.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
