//! Channels: who has subscribed to what, and the messages that wait for connections to take them.
//!
//! A connection is served by one thread, and whoever publishes may be another: a message goes into the receiver's [`Mail`], which
//! rings its [`Bell`] if there was nothing in it before, and the receiver's thread [takes](Mail::take) all of it at once. Messages of
//! one publisher come to one receiver in their order. Nothing of it is durable, and nothing leaves the process.
//!
//! What was sent before a subscription ended comes before the reply that says so (`Call::deliver`): with RESP2 a client could not tell
//! it from the reply to its next command.
//!
//! A receiver that does not read costs [`MAIL_MAX`] bytes and no more: beyond that it is to be closed, as Redis does with its limit
//! for such clients, and so is one whose mail grows while all connections together have used up their memory
//! ([`Config::memory`](crate::engine::Config::memory)).
//!
//! A connection that goes may have millions of subscriptions. From then on it receives nothing and is not counted; what stands of it
//! in the tables is taken out [in parts](crate::engine::Shared::leave_channels), by whoever serves the others.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::engine::Shared;
use crate::glob;
use crate::protocol::{Version, Writer};

/// Bytes of messages that may wait for one connection.
pub const MAIL_MAX: usize = 32 << 20;
/// Bytes that may wait whatever the other connections hold.
const SMALL: usize = 128 << 10;
/// Patterns that one connection may have subscribed to. Whoever publishes matches those of all connections, and nobody subscribes to
/// anything meanwhile.
pub const PATTERNS_MAX: usize = 1024;
/// The same of all connections, each pattern counted once.
pub const ALL_PATTERNS_MAX: usize = 16 << 10;
/// Bytes of a pattern.
pub const PATTERN_LEN_MAX: usize = 4096;
/// Subscriptions of connections that are gone which are taken back at once: some 0.7 us each.
const LEAVE_AT_ONCE: usize = 1000;
/// What a subscription costs beside its name, about.
const EACH: usize = 512;

/// Tells the thread that serves a connection that there is mail for it.
pub trait Bell: Send + Sync {
    /// Has the connection looked at soon. It may have been closed meanwhile.
    fn ring(&self);
}

impl fmt::Debug for dyn Bell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bell")
    }
}

/// The messages that wait for one connection.
pub(crate) struct Mail {
    bell: Option<Arc<dyn Bell>>,
    waiting: Mutex<Waiting>,
    /// Whether something waits: looked at each time the connection has something to do.
    some: AtomicBool,
}

/// What became of a message.
enum Put {
    In,
    /// It has grown too much, and the connection is to be closed.
    TooMuch,
    /// It is closed, or is to be.
    Over,
}

#[derive(Default)]
struct Waiting {
    bytes: Vec<u8>,
    version: Version,
    /// It has been closed, or is to be: nothing more is kept for it.
    over: bool,
}

impl fmt::Debug for Mail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mail").field("bytes", &self.waiting().bytes.len()).finish_non_exhaustive()
    }
}

impl Mail {
    pub(crate) fn new(bell: Option<Arc<dyn Bell>>) -> Self {
        Self { bell, waiting: Mutex::default(), some: AtomicBool::new(false) }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What comes from here on is written in this version.
    pub(crate) fn set_version(&self, version: Version) {
        self.waiting().version = version;
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.some.load(Ordering::Acquire)
    }

    /// All of it, in the version that it was written in.
    pub(crate) fn take(&self, shared: &Shared) -> Vec<u8> {
        let mut waiting = self.waiting();
        self.some.store(false, Ordering::Release);
        let bytes = std::mem::take(&mut waiting.bytes);
        shared.holds(bytes.len(), 0);
        bytes
    }

    /// The connection is gone.
    pub(crate) fn close(&self, shared: &Shared) {
        let mut waiting = self.waiting();
        waiting.over = true;
        let bytes = std::mem::take(&mut waiting.bytes);
        shared.holds(bytes.len(), 0);
    }

    fn is_over(&self) -> bool {
        self.waiting().over
    }

    fn put(&self, shared: &Shared, words: &[&[u8]]) -> Put {
        let mut waiting = self.waiting();
        if waiting.over {
            return Put::Over;
        }
        let (before, version) = (waiting.bytes.len(), waiting.version);
        let len = words.iter().map(|word| word.len() + 32).sum::<usize>();
        let after = before.saturating_add(len);
        let used_up = shared.client_memory().saturating_add(len as u64) > shared.config.memory;
        if after > MAIL_MAX || after > SMALL && used_up {
            waiting.over = true;
            waiting.bytes = Vec::new();
            shared.holds(before, 0);
            return Put::TooMuch;
        }
        let mut message = Writer::new(&mut waiting.bytes, version);
        message.push(words.len());
        words.iter().for_each(|word| message.bulk(word));
        shared.holds(before, waiting.bytes.len());
        self.some.store(true, Ordering::Release);
        drop(waiting);
        if before == 0 {
            self.ring();
        }
        Put::In
    }

    fn ring(&self) {
        if let Some(bell) = &self.bell {
            bell.ring();
        }
    }
}

/// What a connection has subscribed to.
#[derive(Default, Debug)]
pub(crate) struct Subscriptions {
    pub(crate) channels: BTreeSet<Vec<u8>>,
    pub(crate) patterns: BTreeSet<Vec<u8>>,
    bytes: usize,
}

impl Subscriptions {
    pub(crate) fn count(&self) -> usize {
        self.channels.len() + self.patterns.len()
    }

    /// Bytes that it keeps, here and where publishers look.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn of(&mut self, kind: Kind) -> &mut BTreeSet<Vec<u8>> {
        match kind {
            Kind::Channel => &mut self.channels,
            Kind::Pattern => &mut self.patterns,
        }
    }
}

/// By what messages are chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// A channel's name.
    Channel,
    /// A pattern of names.
    Pattern,
}

/// Receivers, by their connections' numbers.
type Receivers = BTreeMap<u64, Receiver>;
/// Receivers, by what they have subscribed to.
type By = BTreeMap<Vec<u8>, Receivers>;

#[derive(Clone, Debug)]
struct Receiver {
    mail: Arc<Mail>,
    peer: Arc<crate::engine::ConnectionInfo>,
}

/// Who has subscribed to what, of all connections.
#[derive(Default, Debug)]
pub(crate) struct Channels {
    table: RwLock<Table>,
    /// What those have left who are gone, by their numbers.
    left: Mutex<VecDeque<(u64, Subscriptions)>>,
    left_by: AtomicUsize,
}

#[derive(Default, Debug)]
struct Table {
    channels: By,
    patterns: By,
    /// Bytes of all patterns.
    pattern_bytes: usize,
}

/// Bytes of patterns that are compared at a time, where a message is for all whose patterns fit: a millisecond.
const COMPARED: usize = 256 * 1024;

/// The patterns that a channel's name fits, as far as they have been looked at.
#[derive(Default, Debug)]
pub(crate) struct Search {
    /// The one that is being compared, and how far it has been.
    at: Option<(Vec<u8>, glob::Matching)>,
    /// The last one that was.
    behind: Option<Vec<u8>>,
    fitting: Vec<Vec<u8>>,
}

impl Search {
    /// Bytes that it keeps.
    pub(crate) fn bytes(&self) -> usize {
        self.fitting.iter().map(|name| name.len() + size_of::<Vec<u8>>()).sum()
    }
}

impl Table {
    fn of(&mut self, kind: Kind) -> &mut By {
        match kind {
            Kind::Channel => &mut self.channels,
            Kind::Pattern => &mut self.patterns,
        }
    }
}

impl Channels {
    fn read(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Table> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a connection may subscribe to these patterns besides its own; why not. Of commands that come at one moment each may go
    /// beyond what all may have by its own patterns.
    pub(crate) fn admits<'n>(
        &self,
        own: &Subscriptions,
        names: impl Iterator<Item = &'n [u8]>,
    ) -> Result<(), String> {
        let mut new = BTreeSet::new();
        for name in names.filter(|name| !own.patterns.contains(*name)) {
            if name.len() > PATTERN_LEN_MAX {
                return Err(format!("ERR a pattern has {PATTERN_LEN_MAX} bytes at most"));
            }
            new.insert(name);
            if own.patterns.len() + new.len() > PATTERNS_MAX {
                return Err(format!("ERR a connection may subscribe to {PATTERNS_MAX} patterns at most"));
            }
        }
        let table = self.read();
        let unknown = new.iter().filter(|name| !table.patterns.contains_key(**name)).count();
        if unknown > 0 && table.patterns.len() + unknown > ALL_PATTERNS_MAX {
            return Err(format!("ERR all connections may subscribe to {ALL_PATTERNS_MAX} patterns at most"));
        }
        Ok(())
    }

    /// Subscribes a connection, if it has not.
    pub(crate) fn subscribe(
        &self,
        (mail, peer): (&Arc<Mail>, &Arc<crate::engine::ConnectionInfo>),
        own: &mut Subscriptions,
        kind: Kind,
        name: &[u8],
    ) {
        if own.of(kind).insert(name.to_vec()) {
            own.bytes += 2 * name.len() + EACH;
            let receiver = Receiver { mail: Arc::clone(mail), peer: Arc::clone(peer) };
            let mut table = self.write();
            if kind == Kind::Pattern && !table.patterns.contains_key(name) {
                table.pattern_bytes += name.len();
            }
            table.of(kind).entry(name.to_vec()).or_default().insert(peer.id, receiver);
            drop(table);
            peer.subscribed(own.channels.len(), own.patterns.len());
        }
    }

    /// Takes a subscription back, if there is one.
    pub(crate) fn unsubscribe(
        &self,
        peer: &crate::engine::ConnectionInfo,
        own: &mut Subscriptions,
        kind: Kind,
        name: &[u8],
    ) {
        if self.forget(peer.id, own, kind, name) {
            peer.subscribed(own.channels.len(), own.patterns.len());
        }
    }

    /// Takes a subscription of the connection `id` back, if there is one; whether there was.
    fn forget(&self, id: u64, own: &mut Subscriptions, kind: Kind, name: &[u8]) -> bool {
        if !own.of(kind).remove(name) {
            return false;
        }
        own.bytes -= 2 * name.len() + EACH;
        let mut table = self.write();
        let by = table.of(kind);
        if let Some(receivers) = by.get_mut(name) {
            receivers.remove(&id);
            if receivers.is_empty() {
                by.remove(name);
                if kind == Kind::Pattern {
                    table.pattern_bytes -= name.len();
                }
            }
        }
        true
    }

    /// Takes all subscriptions back, one after the other.
    pub(crate) fn leave(&self, peer: &crate::engine::ConnectionInfo, own: &mut Subscriptions) {
        for kind in [Kind::Channel, Kind::Pattern] {
            while let Some(name) = own.of(kind).first().cloned() {
                self.unsubscribe(peer, own, kind, &name);
            }
        }
    }

    /// Takes back the subscriptions of a connection that is gone, whose mail has been [closed](Mail::close): those that can be many
    /// in parts.
    pub(crate) fn leave_in_parts(
        &self,
        shared: &Shared,
        peer: &crate::engine::ConnectionInfo,
        mut own: Subscriptions,
    ) {
        while let Some(pattern) = own.patterns.first().cloned() {
            self.forget(peer.id, &mut own, Kind::Pattern, &pattern);
        }
        if own.channels.len() <= LEAVE_AT_ONCE {
            return self.leave(peer, &mut own);
        }
        shared.holds(0, own.bytes);
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        left.push_back((peer.id, own));
        self.left_by.store(left.len(), Ordering::Release);
    }

    /// Whether there are any who are gone and have left subscriptions.
    pub(crate) fn is_left(&self) -> bool {
        self.left_by.load(Ordering::Acquire) > 0
    }

    /// Takes some of those back.
    pub(crate) fn take_back_some(&self, shared: &Shared) {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((id, own)) = left.front_mut() {
            let before = own.bytes;
            for _ in 0..LEAVE_AT_ONCE {
                let Some(name) = own.channels.first().cloned() else { break };
                self.forget(*id, own, Kind::Channel, &name);
            }
            shared.holds(before, own.bytes);
            if own.channels.is_empty() {
                left.pop_front();
                self.left_by.store(left.len(), Ordering::Release);
            }
        }
    }

    /// Whether to find the patterns that a channel's name fits may be so much that others are to be served meanwhile.
    pub(crate) fn takes_long(&self, channel: &[u8]) -> bool {
        // Each byte of a pattern may be compared with each of the name.
        self.read().pattern_bytes.saturating_mul(channel.len() + 1) > COMPARED
    }

    /// Goes on looking for patterns that a channel's name fits; whether all have been looked at.
    pub(crate) fn search(&self, channel: &[u8], search: &mut Search) -> bool {
        let table = self.read();
        let mut left = COMPARED;
        while left > 0 {
            let behind = search.behind.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
            let next = table.patterns.range::<[u8], _>((behind, Bound::Unbounded)).next();
            let Some((pattern, _)) = next else { return true };
            // If it is another one, that one has gone.
            let was_at = search.at.take().filter(|(name, _)| name == pattern);
            let mut matching = was_at.map_or_else(glob::Matching::default, |(_, matching)| matching);
            // Each costs something, also where its first byte does not fit.
            left = left.saturating_sub(64);
            match matching.go_on(pattern, channel, false, &mut left) {
                Some(fits) => {
                    search.fitting.extend(fits.then(|| pattern.clone()));
                    search.behind = Some(pattern.clone());
                }
                None => search.at = Some((pattern.clone(), matching)),
            }
        }
        false
    }

    /// Sends a message to whoever has subscribed to the channel, or to patterns that its name matches; how many.
    pub(crate) fn publish(&self, shared: &Shared, channel: &[u8], message: &[u8]) -> usize {
        let table = self.read();
        let fitting = table.patterns.iter().filter(|(pattern, _)| glob::matches(pattern, channel, false));
        Self::send(shared, &table, fitting, channel, message)
    }

    /// The same, where the patterns have been looked for: some may have been left since.
    pub(crate) fn publish_to(
        &self,
        shared: &Shared,
        found: &Search,
        channel: &[u8],
        message: &[u8],
    ) -> usize {
        let table = self.read();
        let fitting = found.fitting.iter().filter_map(|name| table.patterns.get_key_value(name));
        Self::send(shared, &table, fitting, channel, message)
    }

    fn send<'t>(
        shared: &Shared,
        table: &'t Table,
        fitting: impl Iterator<Item = (&'t Vec<u8>, &'t Receivers)>,
        channel: &[u8],
        message: &[u8],
    ) -> usize {
        let mut count = 0;
        let mut send = |receivers: &Receivers, words: &[&[u8]]| {
            for receiver in receivers.values() {
                match receiver.mail.put(shared, words) {
                    Put::Over => continue,
                    Put::TooMuch if receiver.peer.kill() => shared.stats.mail_closed.add(1),
                    Put::TooMuch | Put::In => {}
                }
                count += 1;
            }
        };
        if let Some(receivers) = table.channels.get(channel) {
            send(receivers, &[b"message", channel, message]);
        }
        for (pattern, receivers) in fitting {
            send(receivers, &[b"pmessage", pattern, channel, message]);
        }
        count
    }

    /// Channels that somebody has subscribed to, whose names match.
    pub(crate) fn names(&self, pattern: Option<&[u8]>) -> Vec<Vec<u8>> {
        let table = self.read();
        let fits = |name: &[u8]| pattern.is_none_or(|pattern| glob::matches(pattern, name, false));
        let is_there = |receivers: &Receivers| receivers.values().any(|receiver| !receiver.mail.is_over());
        let channels = table.channels.iter().filter(|(name, receivers)| fits(name) && is_there(receivers));
        channels.map(|(name, _)| name.clone()).collect()
    }

    /// How many connections have subscribed to a channel.
    pub(crate) fn receivers(&self, channel: &[u8]) -> usize {
        let table = self.read();
        let receivers = table.channels.get(channel).into_iter().flat_map(BTreeMap::values);
        receivers.filter(|receiver| !receiver.mail.is_over()).count()
    }

    /// How many channels, and how many patterns, somebody has subscribed to; channels of those who are gone are counted until they are
    /// taken back.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let table = self.read();
        (table.channels.len(), table.patterns.len())
    }
}
