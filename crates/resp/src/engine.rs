//! A gateway's connections, and what they share.
//!
//! Each connection has a [`Session`]; all have one [`Shared`]. A command is carried out by [`Session::execute`] on the
//! thread that calls it. Commands on one key are atomic by themselves: they write on the condition that nobody else has.
//! Commands on several keys are atomic if nothing runs beside them, which is the caller's part: [`isolation`] says which
//! those are, and a readers-writer lock around `execute` does it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU16, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use crate::channels::Bell;
use crate::channels::{Channels, Mail, Subscriptions};
pub use crate::command::Long;
use crate::command::{self, Call, Command, Transaction};
use crate::holds::{Holds, Keys};
use crate::joint::{Joined, Joint, Piece, Verdict};
use crate::parts::{self, Applied, Folded};
use crate::protocol::{Decoder, Limits, Request, Run, Version, Writer};
use crate::replay::{Record, Replay};
use crate::stats::Stats;
use crate::store::{Fetched, Key, Store, StoreError};
use crate::sweep::Round;
use crate::value::{Head, UnixMs};

/// The version of Redis whose commands and texts these are.
pub const REDIS_VERSION: &str = "7.0.15";

/// Bytes that a hash may have in one value, unless something else is said.
const HASH_WHOLE: usize = 16 * 1024;

/// What a gateway is told.
#[derive(Clone, Debug)]
pub struct Config {
    /// What AUTH must say; without it, everybody is let in.
    pub password: Option<String>,
    /// How many databases SELECT has, at most [`DATABASES_MAX`](crate::parts::DATABASES_MAX).
    pub databases: u16,
    /// The TCP port, for INFO.
    pub port: u16,
    /// Connections at most, for INFO and CONFIG GET; the gateway counts them.
    pub clients_max: usize,
    /// Seconds after which an idle connection is closed, 0 for never.
    pub idle_timeout_s: u64,
    /// Bytes of the longest string: `proto-max-bulk-len`.
    pub bulk_max: usize,
    /// 40 hexadecimal digits that name this process' run.
    pub run_id: String,
    /// The process' number.
    pub process: u32,
    /// The system, for INFO: name, release and machine.
    pub system: String,
    /// What an acknowledged write survives, in one sentence: CONFIG GET and INFO tell it.
    pub durability: String,
    /// What CONFIG GET says of `appendonly` and `appendfsync`: whether acknowledged writes survive the process.
    pub durable: bool,
    /// Bytes that a hash may have in one value; a larger one is in [parts].
    pub hash_whole: usize,
    /// Bytes that all connections may hold together, beyond which messages for those that do not read are not kept.
    pub memory: u64,
    /// Whether there are transactions: nobody writes to the store but this gateway's connections. Without, MULTI is refused,
    /// with all that it is followed by.
    pub transactions: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            password: None,
            databases: 16,
            port: 6379,
            clients_max: 10_000,
            idle_timeout_s: 0,
            bulk_max: 512 << 20,
            run_id: "0".repeat(40),
            process: 0,
            system: String::new(),
            durability: "nothing: values are in this process' memory".to_owned(),
            durable: false,
            hash_whole: HASH_WHOLE,
            memory: u64::MAX,
            transactions: true,
        }
    }
}

/// What the outside knows of the process, refreshed now and then.
#[derive(Clone, Copy, Default, Debug)]
pub struct Facts {
    /// Bytes of the process that are resident in memory.
    pub resident: u64,
    /// The most it has been.
    pub resident_peak: u64,
    /// Bytes of memory of the machine.
    pub machine_memory: u64,
    /// Microseconds of CPU in the kernel.
    pub cpu_system_us: u64,
    /// Microseconds of CPU in the program.
    pub cpu_user_us: u64,
    /// Commands a second, lately.
    pub rate: u64,
    /// Bytes a second received and sent, lately.
    pub bytes_in: u64,
    /// See `bytes_in`.
    pub bytes_out: u64,
}

/// When a command runs, and on what luck.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// Microseconds of Unix time. One command sees one time.
    pub unix_us: i64,
    /// A random number, by which RANDOMKEY chooses.
    pub random: u64,
}

impl Moment {
    /// Milliseconds of Unix time.
    #[must_use]
    pub const fn now(&self) -> UnixMs {
        self.unix_us.div_euclid(1000)
    }
}

/// What others see of a connection.
#[derive(Debug)]
pub struct ConnectionInfo {
    /// The number of the connection, as CLIENT ID tells it.
    pub id: u64,
    /// Where it comes from.
    pub address: String,
    /// Where it came to.
    pub local: String,
    opened_us: i64,
    name: Mutex<Vec<u8>>,
    space: AtomicU8,
    version: AtomicU8,
    last_us: AtomicI64,
    /// One more than the number of the last command.
    last_command: AtomicU16,
    killed: AtomicBool,
    /// Tells the thread that serves it.
    bell: Option<Arc<dyn Bell>>,
    /// Channels and patterns that it has subscribed to.
    subscribed: [AtomicUsize; 2],
}

impl ConnectionInfo {
    /// Microseconds of Unix time when it came.
    #[must_use]
    pub const fn opened_us(&self) -> i64 {
        self.opened_us
    }

    /// Whether CLIENT KILL has asked for its end.
    #[must_use]
    pub fn killed(&self) -> bool {
        self.killed.load(Ordering::Relaxed)
    }

    /// Asks for its end; `false`: somebody has before.
    pub(crate) fn kill(&self) -> bool {
        let is_first = !self.killed.swap(true, Ordering::SeqCst);
        if is_first && let Some(bell) = &self.bell {
            bell.ring();
        }
        is_first
    }

    /// It has subscribed to so many channels and patterns.
    pub(crate) fn subscribed(&self, channels: usize, patterns: usize) {
        self.subscribed[0].store(channels, Ordering::Relaxed);
        self.subscribed[1].store(patterns, Ordering::Relaxed);
    }

    /// Whether it waits for messages of others: then it may be silent for as long as it likes.
    #[must_use]
    pub fn listens(&self) -> bool {
        self.subscribed.iter().any(|count| count.load(Ordering::Relaxed) > 0)
    }

    /// Something was received from it, at so many microseconds of Unix time.
    pub fn touch(&self, now_us: i64) {
        self.last_us.store(now_us, Ordering::Relaxed);
    }

    /// Microseconds of Unix time when something was last received from it, or carried out for it.
    #[must_use]
    pub fn last_us(&self) -> i64 {
        self.last_us.load(Ordering::Relaxed)
    }

    pub(crate) fn name(&self) -> MutexGuard<'_, Vec<u8>> {
        self.name.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its line in CLIENT LIST.
    pub(crate) fn line(&self, now_us: i64) -> Vec<u8> {
        let seconds = |since: i64| (now_us - since).max(0) / 1_000_000;
        let last = self.last_command.load(Ordering::Relaxed);
        let last = last.checked_sub(1).map_or("NULL", |index| command::COMMANDS[usize::from(index)].name);
        let mut line =
            format!("id={} addr={} laddr={} fd=-1 name=", self.id, self.address, self.local).into_bytes();
        line.extend_from_slice(&self.name());
        line.extend_from_slice(
            format!(
                " age={} idle={} flags={} db={} sub={} psub={} ssub=0 multi=-1 qbuf=0 qbuf-free=0 argv-mem=0 multi-mem=0 \
                 rbs=0 rbp=0 obl=0 oll=0 omem=0 tot-mem=0 events=r cmd={last} user=default redir=-1 resp={}\n",
                seconds(self.opened_us),
                seconds(self.last_us()),
                if self.listens() { 'P' } else { 'N' },
                self.space.load(Ordering::Relaxed),
                self.subscribed[0].load(Ordering::Relaxed),
                self.subscribed[1].load(Ordering::Relaxed),
                self.version.load(Ordering::Relaxed),
            )
            .as_bytes(),
        );
        line
    }
}

/// Places where writes are counted, each of them those of many keys.
const WRITES: usize = 4096;

/// Where the writes of a key are counted: by FNV-1a.
fn place_of(key: Key<'_>) -> usize {
    let bytes = std::iter::once(&key.space).chain(key.name);
    let hash = bytes.fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01B3)
    });
    (hash ^ (hash >> 32)) as usize % WRITES
}

/// What all connections of a gateway share.
#[derive(Debug)]
pub struct Shared {
    /// As it was told.
    pub config: Config,
    /// What is counted for INFO and for Prometheus.
    pub stats: Stats,
    started_us: i64,
    next_id: AtomicU64,
    peers: Mutex<BTreeMap<u64, Arc<ConnectionInfo>>>,
    facts: Mutex<Facts>,
    writes: Box<[AtomicU64]>,
    client_memory: AtomicU64,
    pub(crate) channels: Channels,
    pub(crate) keys_held: Holds,
    folds: Mutex<Folds>,
    leaving: Mutex<Leavings>,
    leaving_due: AtomicBool,
    /// From when on there is something to sweep, milliseconds of Unix time.
    sweep_due: AtomicI64,
    has_parts: AtomicBool,
    /// How many hashes wait for that.
    folds_due: AtomicUsize,
}

/// Hashes that are remembered because the store had no room for their parts, at most.
const FULL_MAX: usize = 1024;
/// Of those, so many are tried again when a change finds no room.
const FULL_AGAIN: usize = 16;

/// Hashes whose changes are many, by the number of the database and behind it the name.
#[derive(Default, Debug)]
struct Folds {
    due: BTreeSet<Vec<u8>>,
    /// Those that somebody is at.
    at: BTreeSet<Vec<u8>>,
    /// Batches of those that are due which are in all buckets, and perhaps still in the key's value.
    applied: BTreeMap<Vec<u8>, Applied>,
    /// Those for whose parts the store had no room.
    full: BTreeSet<Vec<u8>>,
    /// Those that are read as a whole by somebody who has been too late before.
    held: BTreeMap<Vec<u8>, usize>,
}

/// Parts of hashes that were deleted.
#[derive(Default, Debug)]
struct Leavings {
    /// Perhaps not yet, as what deletes them may wait to be written.
    new: Vec<parts::Leaving>,
    due: Vec<parts::Leaving>,
}

/// So many are noted. What is not is found by a sweep.
const LEAVING_MAX: usize = 1 << 16;

/// Keeps a hash from being folded.
pub(crate) struct Hold<'a> {
    shared: &'a Shared,
    name: Vec<u8>,
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        let mut folds = self.shared.folds();
        if let Some(count) = folds.held.get_mut(&self.name) {
            *count -= 1;
            if *count == 0 {
                folds.held.remove(&self.name);
            }
        }
    }
}

impl Shared {
    /// A gateway that starts now, in microseconds of Unix time.
    #[must_use]
    pub fn new(config: Config, now_us: i64) -> Self {
        Self {
            config,
            stats: Stats::default(),
            started_us: now_us,
            next_id: AtomicU64::new(1),
            peers: Mutex::default(),
            facts: Mutex::default(),
            writes: (0..WRITES).map(|_| AtomicU64::new(0)).collect(),
            client_memory: AtomicU64::new(0),
            channels: Channels::default(),
            keys_held: Holds::default(),
            folds: Mutex::default(),
            leaving: Mutex::default(),
            leaving_due: AtomicBool::new(false),
            // What others have left, at once.
            sweep_due: AtomicI64::new(i64::MIN),
            has_parts: AtomicBool::new(false),
            folds_due: AtomicUsize::new(0),
        }
    }

    /// Bytes that the requests and replies of all connections take.
    #[must_use]
    pub fn client_memory(&self) -> u64 {
        self.client_memory.load(Ordering::Relaxed)
    }

    /// A connection holds `now` bytes, where it held `before`.
    pub fn holds(&self, before: usize, now: usize) {
        if now != before {
            // Modulo 2^64: the sum of all that connections hold is never below zero.
            self.client_memory.fetch_add((now as u64).wrapping_sub(before as u64), Ordering::Relaxed);
        }
    }

    /// A value was written, or may have been.
    pub(crate) fn wrote(&self, key: Key<'_>) {
        self.writes[place_of(key)].fetch_add(1, Ordering::Relaxed);
    }

    /// Whether any command holds keys.
    #[must_use]
    pub fn has_holds(&self) -> bool {
        self.keys_held.any()
    }

    /// Gives back the keys of a command that [held](Session::hold) them.
    pub fn give_back(&self, hold: u64) {
        self.keys_held.give_back(hold);
    }

    /// A number that is another one once this key has been written, by any connection of this gateway.
    pub(crate) fn writes_of(&self, key: Key<'_>) -> u64 {
        self.writes[place_of(key)].load(Ordering::Relaxed)
    }

    fn folds(&self) -> MutexGuard<'_, Folds> {
        self.folds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From this time on there is something to [sweep](crate::sweep).
    pub fn sweep_by(&self, at: UnixMs) {
        if at < self.sweep_due() {
            self.sweep_due.fetch_min(at, Ordering::SeqCst);
        }
    }

    /// When there is something to sweep; the largest number if that is not known.
    #[must_use]
    pub fn sweep_due(&self) -> UnixMs {
        self.sweep_due.load(Ordering::SeqCst)
    }

    /// A round begins: what is told from here on is for the next one.
    pub fn sweeps(&self) {
        self.sweep_due.store(i64::MAX, Ordering::SeqCst);
    }

    /// A round is over.
    pub fn swept(&self, round: Round) {
        self.has_parts.store(round.has_parts, Ordering::Relaxed);
        round.soonest.into_iter().for_each(|at| self.sweep_by(at));
    }

    /// Whether there are parts of hashes, which may be left behind.
    #[must_use]
    pub fn has_parts(&self) -> bool {
        self.has_parts.load(Ordering::Relaxed)
    }

    /// The key has this value now: it may expire, and if it is a hash with many changes, they are to be [folded](Self::fold).
    pub(crate) fn fold_if_due(&self, key: Key<'_>, value: &[u8]) {
        if let Ok((Head { expires: Some(at), .. }, _)) = Head::parse(value) {
            self.sweep_by(at.saturating_add(1));
        }
        if !parts::due(value, self.config.hash_whole) {
            return;
        }
        let mut folds = self.folds();
        folds.due.insert(spaced(key));
        self.folds_due.store(folds.due.len(), Ordering::Relaxed);
    }

    /// The store had no room for this value of the key: what folding makes room for is needed now.
    pub(crate) fn has_no_room(&self, key: Key<'_>, value: &[u8]) {
        self.fold_if_due(key, value);
        let mut folds = self.folds();
        for _ in 0..FULL_AGAIN {
            let Some(name) = folds.full.pop_first() else { break };
            folds.due.insert(name);
        }
        self.folds_due.store(folds.due.len(), Ordering::Relaxed);
    }

    /// The parts of a hash are to go, if it goes in a moment: the payload of its key's value.
    pub(crate) fn leaves(&self, key: Key<'_>, payload: &[u8]) {
        let Some(leaving) = parts::Leaving::of(key, payload) else { return };
        let mut all = self.leaving.lock().unwrap_or_else(PoisonError::into_inner);
        if all.new.len() + all.due.len() < LEAVING_MAX {
            all.new.push(leaving);
            self.sweep_by(i64::MIN);
        }
    }

    /// What was noted before this is to be deleted by [`delete_leaving`](Self::delete_leaving): whatever was put off then has been written.
    pub fn leaving_is_due(&self) {
        let mut all = self.leaving.lock().unwrap_or_else(PoisonError::into_inner);
        let mut new = std::mem::take(&mut all.new);
        all.due.append(&mut new);
        self.leaving_due.store(!all.due.is_empty(), Ordering::Release);
    }

    /// Whether there is something for [`delete_leaving`](Self::delete_leaving).
    #[must_use]
    pub fn has_leaving(&self) -> bool {
        self.leaving_due.load(Ordering::Acquire)
    }

    /// Deletes some parts of hashes that were deleted, if there are any: in one wait for the store. To be called as long as there
    /// [are](Self::has_leaving), and others are served in between: who deletes a large hash wants its room.
    ///
    /// # Errors
    /// The store's. They are left to a sweep.
    pub fn delete_leaving<S: Store>(&self, store: &mut S) -> Result<(), StoreError> {
        let lock = || self.leaving.lock().unwrap_or_else(PoisonError::into_inner);
        let next = lock().due.pop();
        let done = next.map_or(Ok(None), |mut leaving| {
            let is_over = leaving.step(store)?;
            Ok((!is_over).then_some(leaving))
        });
        let mut all = lock();
        let done = done.map(|rest| all.due.extend(rest));
        self.leaving_due.store(!all.due.is_empty(), Ordering::Release);
        done
    }

    /// Whether connections that are gone have left subscriptions, to be taken back by [`leave_channels`](Self::leave_channels).
    #[must_use]
    pub fn has_left_channels(&self) -> bool {
        self.channels.is_left()
    }

    /// Takes back some of what connections that are gone had subscribed to: less than a millisecond of work.
    pub fn leave_channels(&self) {
        if self.channels.is_left() {
            self.channels.take_back_some(self);
        }
    }

    /// Keeps a hash from being folded as long as the hold lasts. Somebody may be at it already, and others may write to the store.
    pub(crate) fn hold(&self, key: Key<'_>) -> Hold<'_> {
        let name = spaced(key);
        *self.folds().held.entry(name.clone()).or_default() += 1;
        Hold { shared: self, name }
    }

    /// Whether there is a hash to be [folded](Self::fold).
    #[must_use]
    pub fn has_folds(&self) -> bool {
        self.folds_due.load(Ordering::Relaxed) > 0
    }

    /// The batch of this hash that is in all buckets, if there is one.
    pub(crate) fn applied(&self, key: Key<'_>) -> Option<Applied> {
        self.folds().applied.get(&spaced(key)).copied()
    }

    /// Takes a step of [folding](crate::parts) one of the hashes that were changed often; whether there was one that nobody else is at, is in
    /// the way of, or was faster to change. It changes nothing that anybody sees. What fails is done when the hash is changed the next time.
    ///
    /// # Errors
    /// The error that the store gives.
    pub fn fold<S: Store + ?Sized>(&self, store: &mut S, moment: Moment) -> Result<bool, StoreError> {
        let (name, applied) = {
            let mut folds = self.folds();
            let free = |name: &&Vec<u8>| !folds.at.contains(*name) && !folds.held.contains_key(*name);
            let Some(name) = folds.due.iter().find(free).cloned() else { return Ok(false) };
            folds.due.remove(&name);
            folds.at.insert(name.clone());
            self.folds_due.store(folds.due.len(), Ordering::Relaxed);
            let applied = folds.applied.get(&name).copied();
            (name, applied)
        };
        let key = Key { space: name[0], name: &name[1..] };
        self.has_parts.store(true, Ordering::Relaxed);
        let folded = parts::fold(store, key, self.config.hash_whole, moment, applied);
        let mut folds = self.folds();
        folds.at.remove(&name);
        match folded {
            // Whoever changes the hash next has a chance to take the batch out before the next step.
            Ok(Folded::Applied(applied)) => drop(folds.applied.insert(name.clone(), applied)),
            Ok(Folded::Late) | Err(StoreError::InTheWay | StoreError::UnderWay) => {}
            Ok(Folded::Done | Folded::More) | Err(_) => drop(folds.applied.remove(&name)),
        }
        if folded == Err(StoreError::Full) && folds.full.len() < FULL_MAX {
            folds.full.insert(name.clone());
        }
        // Where somebody has changed it meanwhile it is still to be done, and not at once.
        let folded = if folded.as_ref().is_err_and(StoreError::waits) { Ok(Folded::Late) } else { folded };
        if matches!(folded, Ok(Folded::Applied(_) | Folded::More | Folded::Late)) {
            folds.due.insert(name);
            self.folds_due.store(folds.due.len(), Ordering::Relaxed);
        }
        folded.map(|folded| folded != Folded::Late)
    }

    /// When it started, in microseconds of Unix time.
    #[must_use]
    pub const fn started_us(&self) -> i64 {
        self.started_us
    }

    /// Every connection, by number.
    pub fn peers(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<ConnectionInfo>>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of the process.
    #[must_use]
    pub fn facts(&self) -> Facts {
        *self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells it anew.
    pub fn set_facts(&self, facts: Facts) {
        *self.facts.lock().unwrap_or_else(PoisonError::into_inner) = facts;
    }
}

/// What a command needs around it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Isolation {
    /// Others may run beside it.
    Together,
    /// Nothing else may.
    Alone,
}

/// Whether a request must run alone to be atomic: it reads or writes several keys, or all.
#[must_use]
pub fn isolation(request: &Request<'_>) -> Isolation {
    use command::Id;
    let Some(command) = Command::find(request.word(0)) else { return Isolation::Together };
    let alone = match command.id {
        Id::Exec | Id::Rename | Id::RenameNx | Id::FlushDb | Id::FlushAll => true,
        _ => command.keys[1] < 0 && request.len() as i64 > command.keys[0] + command.keys[2],
    };
    if alone { Isolation::Alone } else { Isolation::Together }
}

/// Whether two requests are plain GETs, which [`Session::execute_run`] carries out together. Each must have the words of one.
#[must_use]
pub fn alike(first: &Request<'_>, next: &Request<'_>) -> bool {
    first.len() == 2 && [first, next].iter().all(|request| request.word(0).eq_ignore_ascii_case(b"GET"))
}

/// What a request is to a [`Joint`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Joins {
    /// It changes a key, and waits for the store with others.
    Writes,
    /// It looks at a key, or at none: carried out so if something before it on its connection was.
    Looks,
    /// What is before it is to be answered first.
    Not,
}

/// What a request is to a [`Joint`]: commands on one key can be put off, as their keys are all that they depend on.
#[must_use]
pub fn joins(request: &Request<'_>) -> Joins {
    use command::Id;
    let Some(command) = Command::find(request.word(0)) else { return Joins::Not };
    let one_key =
        command.keys[0] == 1 && isolation(request) == Isolation::Together && command.id != Id::Watch;
    if !command.takes(request.len()) {
        Joins::Not
    } else if matches!(command.id, Id::Ping | Id::Echo) || one_key && !command.writes() {
        Joins::Looks
    } else if one_key {
        Joins::Writes
    } else {
        Joins::Not
    }
}

/// The number of the database, and behind it the name.
fn spaced(key: Key<'_>) -> Vec<u8> {
    let mut name = Vec::with_capacity(1 + key.name.len());
    name.push(key.space);
    name.extend_from_slice(key.name);
    name
}

/// Which replies a connection wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Replies {
    On,
    Off,
    /// This one not.
    SkipThis,
    /// The next one not.
    SkipNext,
}

/// What is behind a [part](Session::go_on) of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// It was the last one.
    Last,
    /// Another one follows it at once.
    More,
    /// The same is to be tried again, when others are not in the way any more.
    Waits,
}

/// How long a command waits for others that are in the way of it.
const PATIENCE_US: i64 = 30_000_000;

/// One connection's state.
#[derive(Debug)]
pub struct Session {
    pub(crate) peer: Arc<ConnectionInfo>,
    pub(crate) version: Version,
    pub(crate) space: u8,
    pub(crate) authenticated: bool,
    pub(crate) replies: Replies,
    pub(crate) transaction: Transaction,
    closing: bool,
    /// Buffers that commands use and give back.
    pub(crate) spare: Vec<Vec<u8>>,
    /// Answers of the store to a run of requests.
    pub(crate) fetched: Vec<Fetched>,
    /// What is carried out has been before, and was counted then.
    pub(crate) repeating: bool,
    pub(crate) subscriptions: Subscriptions,
    pub(crate) mail: Arc<Mail>,
    /// EXEC carries its commands out: their replies stand in one array.
    pub(crate) in_exec: bool,
    /// What the command has said comes unasked, whatever replies the connection wants.
    pub(crate) pushed: bool,
    work: usize,
    /// Since when the command that was carried out last waits for others that are in the way of it, microseconds of Unix time.
    waits_since: Option<i64>,
    /// What that command has done so far, and does not do again: how many keys it has deleted, or that what it depends on holds.
    pub(crate) so_far: Option<i64>,
    /// The store's [mark](Store::mark) when that command began.
    mark: Option<u64>,
    /// What that command has been told, if a change of its is under way.
    record: Record,
}

impl Session {
    /// A new connection, at so many microseconds of Unix time; the addresses are for CLIENT LIST. It is in the list
    /// until [`Self::close`].
    #[must_use]
    pub fn open(shared: &Shared, address: &str, local: &str, now_us: i64) -> Self {
        Self::open_with_bell(shared, address, local, now_us, None)
    }

    /// The same for one that is told when there are messages for it, by whoever publishes them.
    #[must_use]
    pub fn open_with_bell(
        shared: &Shared,
        address: &str,
        local: &str,
        now_us: i64,
        bell: Option<Box<dyn Bell>>,
    ) -> Self {
        let bell: Option<Arc<dyn Bell>> = bell.map(Arc::from);
        let peer = Arc::new(ConnectionInfo {
            id: shared.next_id.fetch_add(1, Ordering::Relaxed),
            address: address.to_owned(),
            local: local.to_owned(),
            opened_us: now_us,
            name: Mutex::default(),
            space: AtomicU8::new(0),
            version: AtomicU8::new(2),
            last_us: AtomicI64::new(now_us),
            last_command: AtomicU16::new(0),
            killed: AtomicBool::new(false),
            bell: bell.clone(),
            subscribed: Default::default(),
        });
        shared.peers().insert(peer.id, peer.clone());
        shared.stats.connections.add(1);
        Self {
            peer,
            version: Version::Resp2,
            space: 0,
            authenticated: shared.config.password.is_none(),
            replies: Replies::On,
            transaction: Transaction::default(),
            closing: false,
            spare: Vec::new(),
            fetched: Vec::new(),
            repeating: false,
            subscriptions: Subscriptions::default(),
            mail: Arc::new(Mail::new(bell)),
            in_exec: false,
            pushed: false,
            work: 0,
            waits_since: None,
            so_far: None,
            mark: None,
            record: Record::default(),
        }
    }

    /// The connection is gone.
    pub fn close(self, shared: &Shared) {
        self.mail.close(shared);
        shared.channels.leave_in_parts(shared, &self.peer, self.subscriptions);
        shared.peers().remove(&self.peer.id);
    }

    /// Gives back the memory that it keeps for its next command.
    pub fn relax(&mut self) {
        self.spare = Vec::new();
        self.fetched = Vec::new();
    }

    /// What others see of it.
    #[must_use]
    pub const fn peer(&self) -> &Arc<ConnectionInfo> {
        &self.peer
    }

    /// Whether it must authenticate and has not.
    #[must_use]
    pub const fn stranger(&self, shared: &Shared) -> bool {
        shared.config.password.is_some() && !self.authenticated
    }

    /// Whether it is to be closed once its replies have been sent.
    #[must_use]
    pub const fn closing(&self) -> bool {
        self.closing
    }

    pub(crate) const fn close_after_reply(&mut self) {
        self.closing = true;
    }

    pub(crate) fn set_space(&mut self, space: u8) {
        self.space = space;
        self.peer.space.store(space, Ordering::Relaxed);
    }

    pub(crate) fn set_version(&mut self, version: Version) {
        self.version = version;
        self.peer.version.store(version.number() as u8, Ordering::Relaxed);
        self.mail.set_version(version);
    }

    /// Whether each request is to be looked at by itself: its reply is not simply the command's.
    fn goes_alone(&self, shared: &Shared) -> bool {
        self.replies != Replies::On
            || self.stranger(shared)
            || self.transaction.is_open()
            || self.only_listens()
    }

    /// Whether it has subscribed to something and speaks RESP2, in which replies cannot be told from messages.
    pub(crate) fn only_listens(&self) -> bool {
        self.version == Version::Resp2 && self.subscriptions.count() > 0
    }

    pub(crate) const fn worked(&mut self, work: usize) {
        self.work = self.work.saturating_add(work);
    }

    pub(crate) const fn work(&self) -> usize {
        self.work
    }

    /// The [work](crate::store::Metered::work) of its commands in the store since this was asked last.
    pub const fn take_work(&mut self) -> usize {
        std::mem::replace(&mut self.work, 0)
    }

    /// Whether messages wait for it.
    #[must_use]
    pub fn has_mail(&self) -> bool {
        !self.mail.is_empty()
    }

    /// Appends the messages that wait for it to `out`, which has whole replies.
    pub fn take_mail(&self, shared: &Shared, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.mail.take(shared));
    }

    /// Bytes that a transaction keeps until its end, and subscriptions until theirs.
    #[must_use]
    pub fn queued_bytes(&self) -> usize {
        self.transaction.bytes() + self.subscriptions.bytes()
    }

    /// Carries a request out and appends the reply to `out`. Which command it was, if it was one; the caller may add
    /// what it took to [`Stats::of`]. It may have to [wait](Self::is_waiting).
    pub fn execute<S: Store>(
        &mut self,
        request: &Request<'_>,
        store: &mut S,
        shared: &Shared,
        moment: Moment,
        out: &mut Vec<u8>,
    ) -> Option<&'static Command> {
        self.recalling(store, |session, store| {
            if store.mark() == 0 || !Command::find(request.word(0)).is_some_and(Command::writes) {
                return session.execute_now(request, store, shared, moment, out);
            }
            let (moment, so_far) = (session.record.moment(moment), session.so_far);
            let mut replay = Replay::new(store, std::mem::take(&mut session.record));
            let command = session.execute_now(request, &mut replay, shared, moment, out);
            session.keep(replay, moment, so_far);
            command
        })
    }

    /// Carries out what may have had to wait before.
    fn recalling<S: Store, T>(&mut self, store: &mut S, act: impl FnOnce(&mut Self, &mut S) -> T) -> T {
        let mark = self.mark.unwrap_or_else(|| store.mark());
        let before = store.recall(self.mark);
        let done = act(self, store);
        store.recall(before);
        self.mark = self.is_waiting().then_some(mark);
        done
    }

    /// Keeps what a command was told that waits for a change of its own, and had done [so far](Self::so_far) when it began to be told.
    fn keep<S: Store>(&mut self, replay: Replay<'_, S>, moment: Moment, so_far: Option<i64>) {
        if self.is_waiting()
            && let Some(record) = replay.into_record(moment)
        {
            (self.record, self.so_far) = (record, so_far);
        }
    }

    fn execute_now<S: Store>(
        &mut self,
        request: &Request<'_>,
        store: &mut S,
        shared: &Shared,
        moment: Moment,
        out: &mut Vec<u8>,
    ) -> Option<&'static Command> {
        let start = out.len();
        let command = command::dispatch(self, request, store, shared, moment, out);
        self.peer.last_us.store(moment.unix_us, Ordering::Relaxed);
        if let Some(command) = command {
            self.peer.last_command.store(command.id as u16 + 1, Ordering::Relaxed);
        }
        if !self.is_waiting() {
            self.replied(start, out);
        }
        command
    }

    /// A reply stands in `out` from `start` on, if the connection wants it.
    fn replied(&mut self, start: usize, out: &mut Vec<u8>) {
        let unasked = std::mem::take(&mut self.pushed);
        match self.replies {
            Replies::On => {}
            Replies::Off | Replies::SkipThis if unasked => {}
            Replies::Off => out.truncate(start),
            Replies::SkipThis => out.truncate(start),
            Replies::SkipNext => {}
        }
        match self.replies {
            Replies::On | Replies::Off => {}
            Replies::SkipThis => self.replies = Replies::On,
            Replies::SkipNext => self.replies = Replies::SkipThis,
        }
    }

    /// Whether others are in the way of the command that was carried out last: it has said nothing, and is to be carried out again. Of one
    /// that [runs alone](isolation) the keys are to be [held](Self::hold) meanwhile, as it may have changed some of them.
    #[must_use]
    pub const fn is_waiting(&self) -> bool {
        self.waits_since.is_some()
    }

    /// Whether a command that others are in the way of may wait for them, or has waited for too long.
    pub(crate) fn may_wait(&mut self, moment: Moment) -> bool {
        let since = *self.waits_since.get_or_insert(moment.unix_us);
        self.waits_since = (moment.unix_us - since < PATIENCE_US).then_some(since);
        self.is_waiting()
    }

    /// The same of what came of one. Where it does not wait its end has been reached.
    pub(crate) fn waits<T>(&mut self, done: &Result<T, command::Failure>, moment: Moment) -> bool {
        let waits = match done {
            // The store says what came of it, or gives it up itself.
            Err(command::Failure::Store(StoreError::UnderWay)) => {
                self.waits_since = Some(moment.unix_us);
                true
            }
            Err(command::Failure::Store(StoreError::InTheWay)) => self.may_wait(moment),
            _ => false,
        };
        if !waits {
            (self.waits_since, self.so_far) = (None, None);
        }
        waits
    }

    /// Whether one of these requests has to wait for a command that holds keys of its. The connection's [bell](Self::open_with_bell) is rung
    /// when that one is over.
    #[must_use]
    pub fn is_barred(&self, run: &Run<'_>, shared: &Shared) -> bool {
        let (held, bell) = (&shared.keys_held, self.bell());
        held.any()
            && !self.transaction.is_open()
            && run.requests().any(|request| held.bar_all(&self.keys_of(&request), bell))
    }

    /// What tells the thread that serves the connection to look at it.
    pub(crate) fn bell(&self) -> Option<&Arc<dyn Bell>> {
        self.peer.bell.as_ref()
    }

    /// Holds the keys of a request, until they are [given back](Shared::give_back). Nothing may run beside this.
    #[must_use]
    pub fn hold(&self, request: &Request<'_>, shared: &Shared) -> u64 {
        shared.keys_held.take(self.keys_of(request))
    }

    fn keys_of(&self, request: &Request<'_>) -> Keys {
        let command = Command::find(request.word(0)).filter(|command| command.takes(request.len()));
        command.map(|command| Keys::of(command, request, self.space)).unwrap_or_default()
    }

    /// Carries out requests that are [`alike`], or a single one, with the same replies as one after the other. The store is
    /// asked for all of them at once. Which command it was, if it was one.
    pub fn execute_run<S: Store>(
        &mut self,
        run: &Run<'_>,
        store: &mut S,
        shared: &Shared,
        moment: Moment,
        out: &mut Vec<u8>,
    ) -> Option<&'static Command> {
        if run.len() == 1 || self.goes_alone(shared) {
            let mut last = None;
            for request in run.requests() {
                last = self.execute(&request, store, shared, moment, out);
            }
            return last;
        }
        let command = self.recalling(store, |session, store| {
            command::dispatch_run(session, run, store, shared, moment, out)
        });
        self.peer.last_us.store(moment.unix_us, Ordering::Relaxed);
        self.peer.last_command.store(command.id as u16 + 1, Ordering::Relaxed);
        Some(command)
    }

    /// The command of a request that goes over all keys, or as many as it names, or EXEC, which is then [carried out in parts](Self::go_on).
    /// `None`: it is another one, or there is something wrong with it, which [`execute`](Self::execute) says.
    pub fn begin<S: Store>(
        &mut self,
        request: &Request<'_>,
        store: &mut S,
        shared: &Shared,
        moment: Moment,
    ) -> Option<Long> {
        use command::Id;
        let command = Command::find(request.word(0))?;
        let long = match command.id {
            Id::Exec => self.transaction.is_ready(),
            _ => command::is_long(command, request, shared),
        };
        let is_open = self.transaction.is_open() && command.id != Id::Exec;
        if !long || !command.takes(request.len()) || self.stranger(shared) || is_open || self.only_listens() {
            return None;
        }
        let (mut nothing, version) = (Vec::new(), self.version);
        let reply = Writer::new(&mut nothing, version);
        let mut call = Call { command, request, store, session: self, shared, moment, reply };
        let long = call.long().ok();
        self.peer.last_command.store(command.id as u16 + 1, Ordering::Relaxed);
        long
    }

    /// Carries a part of it out. With the last one its reply is appended to `out`. What may not be [beside](Long::alone) another command holds
    /// its keys from the first part to the last.
    pub fn go_on<S: Store>(
        &mut self,
        long: &mut Long,
        store: &mut S,
        shared: &Shared,
        moment: Moment,
        out: &mut Vec<u8>,
    ) -> Part {
        let start = out.len();
        let (done, waits) = self.recalling(store, |session, store| {
            if store.mark() == 0 || !long.command.writes() {
                let done = long.step(session, store, shared, moment, out);
                let waits = session.waits(&done, moment);
                return (done, waits);
            }
            let (began, so_far) = (session.record.moment(moment), session.so_far);
            let mut replay = Replay::new(store, std::mem::take(&mut session.record));
            let done = long.step(session, &mut replay, shared, began, out);
            let waits = session.waits(&done, moment);
            session.keep(replay, began, so_far);
            (done, waits)
        });
        if waits || matches!(done, Ok(None)) {
            long.hold(shared);
            return if waits { Part::Waits } else { Part::More };
        }
        long.give_back(shared);
        let done = done.map(|work| self.worked(work.unwrap_or(0)));
        command::count(shared, long.command, &done);
        if let Err(failure) = done {
            command::answer_failure(self, shared, &failure, start, out);
        }
        self.peer.last_us.store(moment.unix_us, Ordering::Relaxed);
        self.replied(start, out);
        Part::Last
    }

    /// Whether requests of this connection can be put off: their replies are simply the commands'.
    #[must_use]
    pub fn may_join(&self, shared: &Shared) -> bool {
        !self.goes_alone(shared)
    }

    /// Carries a request out that [`joins`] others, as number `owner`, and appends its reply to `out`: it is to be sent when the
    /// store has [taken](Joint::write) what was changed, and may be another one by then. Which command it was, if it was one. It may have to
    /// [wait](Self::is_waiting), and has not joined them then.
    pub fn execute_joined<S: Store>(
        &mut self,
        owner: usize,
        request: &Request<'_>,
        (store, joint): (&mut S, &mut Joint),
        shared: &Shared,
        moment: Moment,
        out: &mut Vec<u8>,
    ) -> Option<&'static Command> {
        let start = out.len();
        let command = self.recalling(store, |session, store| {
            session.execute_now(request, &mut Joined { store, joint }, shared, moment, out)
        });
        match self.is_waiting() {
            true => joint.forget(),
            false => joint.note(owner, start..out.len(), request),
        }
        command
    }

    /// The new reply to a command whose answer did not hold, appended to `out`. One that comes again is put off again. It is counted once.
    ///
    /// # Panics
    /// Never: what was carried out can be read again.
    pub fn mend<S: Store>(
        &mut self,
        (piece, verdict): (&Piece, Verdict),
        (store, joint): (&mut S, &mut Joint),
        shared: &Shared,
        moment: Moment,
        out: &mut Vec<u8>,
    ) {
        match verdict {
            Verdict::Failed(error) => command::answer_failure(self, shared, &error.into(), out.len(), out),
            _ => self.again(piece, &mut Joined { store, joint }, shared, moment, out),
        }
    }

    /// Carries out again what was put off.
    pub(crate) fn again<S: Store + ?Sized>(
        &mut self,
        piece: &Piece,
        joined: &mut Joined<'_, S>,
        shared: &Shared,
        moment: Moment,
        out: &mut Vec<u8>,
    ) {
        // It has been within the client's limits.
        let mut decoder =
            Decoder::new(Limits { bulk: usize::MAX >> 1, request: usize::MAX >> 1, words: 1 << 30 });
        decoder.push(&piece.request);
        let request = decoder.next(false).ok().flatten().expect("a request that was encoded");
        // How long it may wait is the business of whoever has put it off.
        let since = self.waits_since;
        self.repeating = true;
        command::dispatch(self, &request, joined, shared, moment, out);
        self.repeating = false;
        match self.is_waiting() {
            true => joined.joint.postpone(piece, Key { space: self.space, name: request.word(1) }),
            false => joined.joint.note_again(piece),
        }
        self.waits_since = since;
    }

    /// Tells the peer that there is no memory for what it wants; the connection is to be closed.
    pub fn no_memory(&mut self, shared: &Shared, out: &mut Vec<u8>) {
        const TEXT: &[u8] =
            b"ERR all clients together have used up the memory for requests and replies: send and ask for less \
              at a time, or raise the gateway's limit (--memory)";
        shared.stats.memory_closed.add(1);
        shared.stats.error(TEXT);
        Writer::new(out, self.version).error(TEXT);
        self.transaction = Transaction::default();
        self.closing = true;
    }

    /// Tells the peer that what it sent is no request; the connection is to be closed.
    pub fn protocol_error(
        &mut self,
        error: &crate::protocol::ProtocolError,
        shared: &Shared,
        out: &mut Vec<u8>,
    ) {
        let text = [b"ERR ".as_slice(), &error.text()].concat();
        shared.stats.protocol_errors.add(1);
        shared.stats.error(&text);
        Writer::new(out, self.version).error(&text);
        self.closing = true;
    }
}
