//! The writer of a log on several servers as a state machine: answers in, actions out. Nothing here waits, reads a clock or
//! touches memory that others share.
//!
//! Whoever drives it connects to the servers ([`Machine::connected`], [`Machine::unreachable`]), carries out what
//! [`Machine::poll_action`] says, in that order on each connection, hands in what comes back ([`Machine::handle`]), and calls
//! [`Machine::timeout`] when [`Machine::deadline`] has come. What a connection that was lost had still to say is dropped by the
//! driver.
//!
//! Each server goes its own way from the moment at which it is connected: it is asked how its log is, promises it, has it made
//! equal to the chosen one, adopts the epoch, and is sent what is appended. A record is acknowledged when enough of them have it,
//! whatever the others do: one that is silent, slow or full, or that copies what it has missed, costs the rest nothing but its
//! vote. One that comes back is taken in again by the same way, in the same epoch.
//!
//! What a lost disk may cost. A disk that is lost takes its server's records, and what it has promised. Of a log whose records are
//! acknowledged by `acks` servers the disks of `acks - 1` may be lost at a time; a server counts among them until it has adopted
//! again. Records are safe by the count of servers with a say (`group/mod.rs`): who comes back empty has none. Promises are safe by
//! this: nothing is cut off, copied or adopted for a writer before *max(acks, n - acks + 1)* of the *n* servers had promised its epoch
//! and *n - acks + 1* with a say have confirmed that **afterwards** (the phase `Confirming`); and a server without a say gets nothing
//! before *n - acks + 1* others with one have confirmed the epoch after it was promised by this server ([`Machine::connected`] to it again
//! included).
//!
//! ARGUMENT. Say *x* promised epoch *f*, has lost its disk, and promises *e* < *f*. Only when *f* counts on the first promise is there
//! anything to lose: *f* has chosen a log without a record of *e*, or has one acknowledged by *x*. Then *x* confirmed *f* with its old
//! disk, so by then *max(acks, n - acks + 1)* servers had promised *f*: beside *x*, *acks - 1* at least. Take the first *x* that is fed for a
//! lower epoch. The writer of *e* has heard *n - acks + 1* others, after *x* promised *e*, that is after all this. *acks - 1* and
//! *n - acks + 1* of *n - 1* servers have one in common: it has promised *f*, and has not forgotten that, as it has a say and *x* is the
//! first. It does not confirm *e*, and says *f*: the writer of *e* ends. So *x* is not fed. If *x* never confirmed *f* with its old disk,
//! *f* does not count it, or has its promise anew, which shuts *e* out there. With *acks* = 1 no disk may be lost; all others are asked
//! then, of which *f* needs all.

mod known;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

pub use super::action::{Action, Event};
use super::belong::{Made, belong_together, has_say};
use super::copy::{Copy, Next};
use super::server::{Recent, Room, Server, Step};
use super::{GroupError, Opened, Options};
use crate::log::error::{AppendError, Refused};
use crate::log::format::superblock::Uuid;
use crate::log::format::{Cursor, Epoch, Mode};
use crate::log::proto::Request;
use crate::log::store::{Run, Status};
use crate::log::writer::{Updates, Writer};

/// Time since any beginning, the same for all calls of one machine.
pub type Time = Duration;

/// Bytes of records that one update of a server has at most, if there are several.
const BATCH_BYTES: usize = 64 << 10;
/// Records that one update has at most.
const BATCH: u64 = 256;
/// Bytes of acknowledged records that are kept for servers that are behind. Who lacks more gets it from another server's log.
const KEPT_BYTES: usize = 4 << 20;
/// Bytes of records in all, most of them not acknowledged then, beyond which no more are taken.
const RECENT_BYTES: usize = 16 << 20;
/// A server that cuts the connection of an older writer is asked again after this, and for so long.
const BUSY_AGAIN: Time = Duration::from_micros(500);
const BUSY_LIMIT: Time = Duration::from_secs(2);

/// How far the group has come.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Phase {
    /// Servers are asked how their logs are. Nobody is shut out yet.
    Asking,
    /// They are asked for their promises.
    Promising,
    /// Enough have promised, and are asked whether they still do.
    Confirming,
    /// A log was chosen, and too few have adopted the epoch yet.
    Adopting,
    /// Records can be appended.
    Open,
    /// Another writer was faster, or the servers do not belong together.
    Failed(GroupError),
}

/// Why records are not taken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NotTaken {
    /// Not before something has come back.
    NotYet,
    /// Not at all.
    Refused(GroupError),
}

/// The writer of a log on several servers.
#[derive(Debug)]
pub struct Machine {
    options: Options,
    servers: Vec<Server>,
    /// The latest time that was said.
    now: Time,
    phase: Phase,
    /// Since when those that have answered are enough for the next phase.
    enough_since: Option<Time>,
    epoch: Epoch,
    /// How many promises were given so far: what a server has confirmed is compared by this.
    grants: u64,
    /// How many there were when the servers were asked whether they still stand by theirs.
    confirming: u64,
    made: Option<Made>,
    /// Whose log was chosen.
    best: usize,
    /// The number of the first record of this epoch.
    start: u64,
    next: u64,
    acknowledged: u64,
    recent: Recent,
    /// All records below this number are given up.
    trim_below: u64,
    copies: u64,
    actions: VecDeque<Action>,
}

impl Machine {
    /// Of the log on these servers, to all of which somebody tries to connect.
    ///
    /// # Panics
    /// With no server, or with 65,536.
    #[must_use]
    pub fn new(names: impl IntoIterator<Item = String>, options: Options) -> Self {
        let servers: Vec<Server> = names.into_iter().map(Server::new).collect();
        assert!(!servers.is_empty() && servers.len() < 1 << 16, "a log lies on one server at least");
        Self {
            options,
            servers,
            now: Time::ZERO,
            phase: Phase::Asking,
            enough_since: None,
            epoch: Epoch::NONE,
            grants: 0,
            confirming: u64::MAX,
            made: None,
            best: 0,
            start: 0,
            next: 0,
            acknowledged: 0,
            recent: Recent::default(),
            trim_below: 0,
            copies: 0,
            actions: VecDeque::new(),
        }
    }

    /// There is a connection to a server, a first one or a new one.
    pub fn connected(&mut self, now: Time, server: usize) {
        self.now = now;
        if self.servers[server].is_up() {
            self.lose(server, "it was connected to again");
        }
        if matches!(self.phase, Phase::Failed(_)) {
            return;
        }
        // Whoever drives this has the new connection already.
        self.actions.retain(|action| action.server() != server);
        let state = &mut self.servers[server];
        state.step = Step::Asking;
        state.why.clear();
        self.call(server, Request::Status);
        self.advance(now);
    }

    /// There is none, and whoever tried has given up for now. A sentence.
    pub fn unreachable(&mut self, now: Time, server: usize, why: &str) {
        self.now = now;
        self.lose(server, why);
        self.advance(now);
    }

    /// Something has come back.
    pub fn handle(&mut self, now: Time, server: usize, event: Event) {
        if !self.servers[server].is_up() {
            return;
        }
        self.now = now;
        self.servers[server].sign = now;
        match event {
            Event::Lost(why) => self.lose(server, &why),
            Event::Durable => self.durable(server),
            Event::Data(bytes) => self.data(server, bytes),
            Event::Reply(reply) => self.reply(now, server, reply),
        }
        self.advance(now);
    }

    /// When [`timeout`](Self::timeout) is to be called at the latest.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        let grace = self.enough_since.and_then(|since| since.checked_add(self.options.grace));
        let busy = self.servers.iter().filter_map(|server| server.busy);
        let again = busy.map(|(_, again)| again).filter(|again| *again != Time::MAX).min();
        let asked = self.servers.iter().filter(|server| server.is_asked());
        let silent = asked.filter_map(|server| server.sign.checked_add(self.options.patience)).min();
        grace.into_iter().chain(again).chain(silent).min()
    }

    /// Does what is due.
    pub fn timeout(&mut self, now: Time) {
        self.now = now;
        for n in 0..self.servers.len() {
            let server = &mut self.servers[n];
            if server.is_asked() && now.saturating_sub(server.sign) >= self.options.patience {
                let seconds = self.options.patience.as_secs_f32();
                self.lose(n, &format!("it has not answered for {seconds} s"));
                continue;
            }
            let Some((since, again)) = server.busy else { continue };
            if now >= again {
                server.busy = Some((since, Time::MAX));
                server.sign = now;
                if let Some(request) = server.call {
                    self.actions.push_back(Action::Call { server: n, request });
                }
            }
        }
        self.advance(now);
    }

    /// What is to be done next.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Whether something is to be done.
    #[must_use]
    pub fn has_actions(&self) -> bool {
        !self.actions.is_empty()
    }

    /// Whether records can be appended.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    /// Why this will never be open, or is not any more: another writer was faster, or the servers do not belong together.
    #[must_use]
    pub const fn failed(&self) -> Option<&GroupError> {
        match &self.phase {
            Phase::Failed(error) => Some(error),
            _ => None,
        }
    }

    /// What it waits for that nothing under way will bring: servers that are not there, or have no say.
    #[must_use]
    pub fn shortage(&self) -> Option<GroupError> {
        if self.phase == Phase::Open || self.failed().is_some() || self.is_settling() {
            return None;
        }
        let heard = self.heard().unwrap_or(0);
        let up = self.servers.iter().filter(|server| server.is_up()).count();
        let acks = self.made.as_ref().map_or(1, |made| usize::from(made.acks));
        let needed = self.needed();
        Some(if heard < needed { self.too_few(heard, needed) } else { self.too_few(up, acks.max(up + 1)) })
    }

    /// Servers are there that have not come as far as they can.
    #[must_use]
    pub fn is_settling(&self) -> bool {
        self.servers.iter().any(|server| match server.step {
            Step::Expected | Step::Asking | Step::Granting | Step::Cutting => true,
            Step::Feeding => !server.adopted,
            // What others confirm is what it waits for.
            Step::Granted => self.servers.iter().any(|other| other.call.is_some()),
            Step::Away | Step::Known => false,
        })
    }

    /// The name of the group.
    #[must_use]
    pub fn uuid(&self) -> Uuid {
        self.made.as_ref().map_or(self.options.group, |made| made.group)
    }

    /// The epoch of this writer; none before promises are asked for.
    #[must_use]
    pub const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The number of the next record.
    #[must_use]
    pub const fn next(&self) -> u64 {
        self.next
    }

    /// All records below this number are acknowledged.
    #[must_use]
    pub const fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// How many servers acknowledge, of how many.
    #[must_use]
    pub fn quorum(&self) -> (usize, usize) {
        (self.acks(), self.servers.len())
    }

    /// Whether the log of some server that takes part is more than half full. A log that is copied to another server lies at
    /// other places there, and what stays free at the ends of segments differs: whoever keeps half of it free can always have
    /// it copied.
    #[must_use]
    pub fn is_half_full(&self) -> bool {
        let there = self.servers.iter().filter(|server| server.takes_part());
        there.filter_map(|server| server.writer.as_ref()).any(Writer::is_half_full)
    }

    /// How many servers have given up the records below that number, as far as they do not [keep](Self::keep) them.
    #[must_use]
    pub fn trimmed(&self, below: u64) -> usize {
        let there = self.servers.iter().filter(|server| server.takes_part());
        there.filter(|server| server.first() >= below.min(server.keep)).count()
    }

    /// Has a server keep the records from this number on, whatever is [trimmed](Self::trim) elsewhere: something there still needs
    /// them. [`u64::MAX`]: none.
    pub fn keep(&mut self, now: Time, server: usize, from: u64) {
        self.now = now;
        self.servers[server].keep = from;
        if matches!(self.phase, Phase::Adopting | Phase::Open) {
            self.ask(server);
        }
    }

    /// Whether a call is under way.
    #[must_use]
    pub fn is_calling(&self) -> bool {
        self.servers.iter().any(|server| server.call.is_some())
    }

    /// Takes the first of these records, as many as fit for enough servers: the number of the first, and how many.
    ///
    /// # Errors
    /// Nothing was appended.
    pub fn append_batch(&mut self, now: Time, payloads: &[&[u8]]) -> Result<(u64, usize), NotTaken> {
        self.now = now;
        let refused = |error: GroupError| Err(NotTaken::Refused(error));
        match &self.phase {
            Phase::Failed(error) => return refused(error.clone()),
            Phase::Open => {}
            _ => return Err(NotTaken::NotYet),
        }
        self.enough().map_err(NotTaken::Refused)?;
        let longest = payloads.iter().map(|payload| payload.len()).max().unwrap_or(0);
        for writer in self.servers.iter().filter(|server| server.is_up()).filter_map(|s| s.writer.as_ref()) {
            if let Err(error @ AppendError::TooLong { .. }) = writer.fits(longest) {
                return refused(error.into());
            }
        }
        // Only those that have been sent everything tell whether it fits.
        let mut ready: Vec<Writer> = Vec::new();
        let (mut full, mut behind) = (None, false);
        let first = payloads.first().map_or(0, |payload| payload.len());
        for server in self.servers.iter_mut().filter(|server| server.takes_part()) {
            let Some(writer) = &server.writer else { continue };
            if writer.next() != self.next {
                behind = true;
                continue;
            }
            match writer.fits(first) {
                Ok(()) => ready.push(writer.clone()),
                Err(error) => {
                    let is_told = server.is_short();
                    full = full.or(Some((is_told, error)));
                    if is_told {
                        server.room = Room::Unknown;
                    }
                }
            }
        }
        let acks = self.acks();
        if ready.len() < acks {
            self.feed_all();
            return match full {
                Some((true, error)) => refused(error.into()),
                Some((false, _)) => Err(NotTaken::NotYet),
                None if behind => Err(NotTaken::NotYet),
                None => refused(self.too_few(ready.len(), acks)),
            };
        }
        if self.recent.bytes > RECENT_BYTES {
            return Err(NotTaken::NotYet);
        }
        let mut count = 0;
        for payload in payloads {
            let fitting = ready.iter_mut().filter_map(|writer| writer.reserve(payload.len()).ok()).count();
            if count > 0 && fitting < acks {
                break;
            }
            self.recent.push(payload);
            count += 1;
        }
        let sequence = self.next;
        self.next += count as u64;
        self.feed_all();
        Ok((sequence, count))
    }

    /// Gives up the records below that number, on every server that has them: they were applied.
    ///
    /// # Errors
    /// They are not acknowledged.
    pub fn trim(&mut self, now: Time, below: u64) -> Result<(), GroupError> {
        self.now = now;
        if below > self.acknowledged {
            let next = self.acknowledged;
            return Err(Refused::NotThere { asked: below, first: 0, next }.into());
        }
        self.trim_below = self.trim_below.max(below);
        self.feed_all();
        Ok(())
    }

    /// Has the servers remember what is acknowledged, so that they would notice the loss of the last record too.
    pub fn note_known(&mut self, now: Time) {
        self.now = now;
        let below = self.acknowledged;
        for server in self.servers.iter_mut().filter(|server| server.takes_part()) {
            server.known = Some(below.min(server.has()));
        }
        self.feed_all();
    }

    /// Whether enough servers are there for what is appended to be acknowledged.
    ///
    /// # Errors
    /// They are not.
    pub fn enough(&self) -> Result<(), GroupError> {
        let up =
            (0..self.servers.len()).filter(|n| self.servers[*n].is_up() && !self.waits_in_vain(*n)).count();
        if up < self.acks() { Err(self.too_few(up, self.acks())) } else { Ok(()) }
    }

    /// Whether nothing that is there will have a server acknowledge: nobody has what it lacks, or too few can confirm its promise.
    fn waits_in_vain(&self, n: usize) -> bool {
        self.lacks_in_vain(n) || self.is_confirmed_by_too_few(n)
    }

    /// Whether a server lacks a record that it cannot be sent, and nobody who is there has it, or may have it yet.
    fn lacks_in_vain(&self, n: usize) -> bool {
        let server = &self.servers[n];
        let Some(writer) = server.writer.as_ref().filter(|_| server.step == Step::Feeding) else {
            return false;
        };
        let lacks = writer.next();
        let is_moving =
            |server: &Server| !server.in_flight.is_empty() || server.copy.is_some() || server.call.is_some();
        let may_have = |m: usize| {
            let other = &self.servers[m];
            // One that has given it up shows that it need not be had any more.
            other.is_up()
                && (other.step != Step::Feeding
                    || other.has() > lacks
                    || other.first() > lacks
                    || is_moving(other))
        };
        let is_short = !server.adopted && lacks < server.goal && lacks < self.recent.first;
        is_short && !is_moving(server) && !(0..self.servers.len()).any(|m| m != n && may_have(m))
    }

    /// Whether a server waits for confirmations of so many others that those which are there are too few.
    fn is_confirmed_by_too_few(&self, n: usize) -> bool {
        let could = |m: &usize| {
            let other = &self.servers[*m];
            *m != n && other.is_up() && other.status.as_ref().is_none_or(has_say)
        };
        let members = self.servers.len();
        self.awaits_confirmation(n) && (0..members).filter(could).count() < self.confirmations()
    }

    fn acks(&self) -> usize {
        self.made.as_ref().map_or(self.servers.len(), |made| usize::from(made.acks))
    }

    fn needed(&self) -> usize {
        match &self.made {
            Some(made) if !made.new => self.servers.len() - usize::from(made.acks) + 1,
            // With no server of the group there, all of them must be there and new: it is made now.
            _ => self.servers.len(),
        }
    }

    /// Servers that have a say, of those that the phase has heard.
    fn heard(&self) -> Option<usize> {
        let made = self.made.as_ref()?;
        let heard = self.servers.iter().filter(|server| match self.phase {
            Phase::Asking => server.step == Step::Known,
            _ => !matches!(
                server.step,
                Step::Expected | Step::Away | Step::Asking | Step::Known | Step::Granting
            ),
        });
        let counts =
            |server: &&Server| server.status.as_ref().is_some_and(|status| made.new || has_say(status));
        Some(heard.filter(counts).count())
    }

    fn too_few(&self, reached: usize, needed: usize) -> GroupError {
        let mut why: Vec<String> = Vec::new();
        for server in &self.servers {
            match &server.status {
                _ if !server.is_up() => why.push(format!("{}: {}", server.name, server.why)),
                Some(Status { damage: Some(damage), .. }) => why.push(format!("{}: {damage}", server.name)),
                Some(status) if !has_say(status) && !server.adopted => {
                    why.push(format!("{} is new or incomplete", server.name));
                }
                _ => {}
            }
        }
        let why = if why.is_empty() { "no more were named".into() } else { why.join("; ") };
        GroupError::TooFew { reached, needed, named: self.servers.len(), why }
    }

    /// Something is asked of a server: if nothing else was, its time begins now.
    fn asks(&mut self, n: usize) {
        let server = &mut self.servers[n];
        if !server.is_asked() {
            server.sign = self.now;
        }
    }

    fn call(&mut self, n: usize, request: Request) {
        self.asks(n);
        let server = &mut self.servers[n];
        debug_assert!(server.call.is_none(), "one call at a time");
        (server.call, server.busy) = (Some(request), None);
        server.called = self.grants;
        self.actions.push_back(Action::Call { server: n, request });
    }

    fn fail(&mut self, error: GroupError) {
        self.phase = Phase::Failed(error);
        // Nothing is waited for any more: a deadline of before would be due for ever.
        self.enough_since = None;
        for n in 0..self.servers.len() {
            if self.servers[n].is_up() {
                self.lose(n, "the log cannot be written to by this writer");
            }
        }
    }

    fn lose(&mut self, n: usize, why: &str) {
        let server = &mut self.servers[n];
        let was_up = server.is_up();
        server.step = Step::Away;
        server.why = why.to_owned();
        (server.writer, server.asked, server.call, server.busy) = (None, None, None, None);
        (server.copy, server.known) = (None, None);
        (server.look, server.room, server.full, server.adopted) = (false, Room::Unknown, false, false);
        server.in_flight.clear();
        server.reads.clear();
        self.actions.retain(|action| action.server() != n);
        if was_up {
            self.actions.push_back(Action::Disconnect { server: n });
        }
        for server in &mut self.servers {
            if server.copy.as_ref().is_some_and(|copy| copy.source == n) {
                server.copy = None;
            }
        }
    }

    fn durable(&mut self, n: usize) {
        let server = &mut self.servers[n];
        let (Some(end), Some(writer)) = (server.in_flight.pop_front(), &mut server.writer) else { return };
        writer.acknowledged(end);
        if server.adopted {
            server.durable = server.durable.max(writer.durable());
            self.count();
        }
    }

    /// Counts what is acknowledged, and forgets records that nobody needs from here any more.
    fn count(&mut self) {
        if !matches!(self.phase, Phase::Adopting | Phase::Open) {
            return;
        }
        let acks = self.acks();
        // As many as have at least this: there are few servers.
        let acknowledged = self.servers.iter().map(|server| server.durable);
        let enough =
            |below: &u64| self.servers.iter().filter(|server| server.durable >= *below).count() >= acks;
        let most = acknowledged.filter(enough).max().unwrap_or(0).min(self.next);
        self.acknowledged = self.acknowledged.max(most);
        let feeding = self.servers.iter().filter(|server| server.step == Step::Feeding);
        let wanted = feeding.map(Server::next).min().unwrap_or(self.next).min(self.acknowledged);
        while self.recent.first < wanted
            || self.recent.first < self.acknowledged && self.recent.bytes > KEPT_BYTES
        {
            self.recent.pop();
        }
    }

    fn data(&mut self, n: usize, bytes: Vec<u8>) {
        let Some((to, number)) = self.servers[n].reads.pop_front() else { return };
        if let Some(copy) = self.servers[to].copy.as_mut().filter(|copy| copy.number == number) {
            copy.came(bytes);
        }
    }

    fn reply(&mut self, now: Time, n: usize, reply: Result<Box<Status>, Refused>) {
        let server = &mut self.servers[n];
        let Some(request) = server.call else { return };
        if reply == Err(Refused::Busy) {
            let since = server.busy.map_or(now, |(since, _)| since);
            if now.saturating_sub(since) < BUSY_LIMIT {
                server.busy = Some((since, now + BUSY_AGAIN));
            } else {
                self.lose(n, &Refused::Busy.to_string());
            }
            return;
        }
        (server.call, server.busy) = (None, None);
        let status = match reply {
            Ok(status) => status,
            Err(Refused::Fenced { promised }) if self.awaits_promises() => {
                return self.fail(GroupError::Fenced { promised });
            }
            Err(refused) => return self.lose(n, &refused.to_string()),
        };
        let promised = status.state.promised;
        if promised > self.epoch && self.epoch != Epoch::NONE && self.awaits_promises() {
            return self.fail(GroupError::Fenced { promised });
        }
        let server = &mut self.servers[n];
        server.is_on(status.superblock.uuid);
        if promised == self.epoch {
            server.confirmed = server.confirmed.max(server.called);
        }
        if let Some(writer) = &mut server.writer {
            writer.trimmed(status.state.head.position);
        }
        let asked = server.step;
        server.status = Some(*status);
        server.replies += 1;
        match (asked, request) {
            (Step::Asking, _) => {
                server.step = Step::Known;
                if !matches!(self.phase, Phase::Asking) {
                    self.admit(n);
                }
            }
            (Step::Granting, _) => {
                server.step = Step::Granted;
                // Who had promised already has not forgotten it, unless with its disk.
                if server.granted == 0 {
                    self.grants += 1;
                    server.granted = self.grants;
                }
            }
            (Step::Cutting, _) => self.begin_to_feed(n),
            (Step::Feeding, Request::Adopt { .. }) => {
                server.adopted = true;
                server.durable = server.has();
                self.count();
            }
            (Step::Feeding, Request::Status) if server.room == Room::Asked => server.room = Room::Answered,
            (Step::Feeding, Request::Trim { .. }) => server.full = false,
            _ => {}
        }
    }

    /// A server that comes when the epoch is drawn already.
    fn admit(&mut self, n: usize) {
        let ours = self.uuid();
        let status = self.servers[n].status.clone().expect("it was asked");
        let theirs = status.state.group;
        let twin = |server: &Server| {
            server.is_up()
                && server.status.as_ref().is_some_and(|other| other.superblock.uuid == status.superblock.uuid)
        };
        if theirs != ours && theirs != Uuid::default() {
            let server = self.servers[n].name.clone();
            return self.lose(n, &GroupError::Stranger { server, theirs, ours }.to_string());
        }
        if let Some(other) = (0..self.servers.len()).find(|m| *m != n && twin(&self.servers[*m])) {
            let (a, b) = (self.servers[other].name.clone(), self.servers[n].name.clone());
            return self.lose(n, &GroupError::Twice { a, b }.to_string());
        }
        self.servers[n].step = Step::Granting;
        self.call(n, Request::Grant { epoch: self.epoch });
    }

    /// Goes on as far as what has come allows.
    fn advance(&mut self, now: Time) {
        if self.phase == Phase::Asking {
            self.ask_for_promises(now);
        }
        if self.phase == Phase::Promising {
            self.ask_for_confirmations(now);
        }
        if self.phase == Phase::Confirming {
            self.choose();
        }
        if matches!(self.phase, Phase::Adopting | Phase::Open) {
            self.take_in();
            self.feed_all();
        }
        if self.phase == Phase::Adopting {
            let adopted = self.servers.iter().filter(|server| server.takes_part()).count();
            let holds = |server: &Server| server.step == Step::Feeding && server.has() >= self.start;
            // So many must have a say that whoever opens it next can be promised by enough of them.
            let next = if self.is_new() { self.servers.len() - self.acks() + 1 } else { 0 };
            if adopted >= self.acks().max(next) {
                self.phase = Phase::Open;
                self.count();
            } else if !self.servers.iter().any(holds) {
                // Without the log that was chosen nothing can be said of the others; whoever opens next chooses anew.
                let up = self.servers.iter().filter(|server| server.is_up()).count();
                let error = self.too_few(up, self.needed().max(up + 1));
                self.fail(error);
            }
        }
    }

    /// Whether the phase may end: there are enough, since some time perhaps, and whoever has not answered yet was given its time.
    fn is_due(&mut self, now: Time, waiting: bool, since: Option<Time>) -> bool {
        let since = since.unwrap_or(now);
        let due = !waiting || now.saturating_sub(since) >= self.options.grace;
        self.enough_since = (!due).then_some(since);
        due
    }

    fn statuses(&self, step: Step) -> Vec<Option<&Status>> {
        let status = |server: &Server| server.status.as_ref().filter(|_| server.step == step).is_some();
        self.servers.iter().map(|server| if status(server) { server.status.as_ref() } else { None }).collect()
    }

    fn names(&self) -> Vec<&str> {
        self.servers.iter().map(|server| &server.name[..]).collect()
    }

    /// Who names the wrong servers shuts nobody out: promises are asked for when enough have said how their logs are.
    fn ask_for_promises(&mut self, now: Time) {
        let since = self.enough_since.take();
        let waiting = self.servers.iter().any(|server| matches!(server.step, Step::Expected | Step::Asking));
        let told = self.statuses(Step::Known);
        if told.iter().all(Option::is_none) {
            return;
        }
        let made = match belong_together(&self.names(), &told, &self.options) {
            Ok(made) => made,
            Err(_) if waiting => return,
            Err(error) => return self.fail(error),
        };
        let promised = told.iter().flatten().map(|status| status.state.promised.counter()).max();
        let there = told.iter().flatten().count();
        self.made = Some(made);
        let enough = self.heard().unwrap_or(0) >= self.needed() && there >= self.acks();
        if !enough || !self.is_due(now, waiting, since) {
            return;
        }
        self.epoch = Epoch::new(promised.unwrap_or(0) + 1, self.options.writer);
        self.phase = Phase::Promising;
        for n in 0..self.servers.len() {
            if self.servers[n].step == Step::Known {
                self.servers[n].step = Step::Granting;
                self.call(n, Request::Grant { epoch: self.epoch });
            }
        }
    }

    /// A promise may be forgotten with the disk that it is on: nothing is cut off before those that were given were confirmed.
    fn ask_for_confirmations(&mut self, now: Time) {
        let since = self.enough_since.take();
        // Who has not even said how its log is was waited for already.
        let waiting = self.servers.iter().any(|server| server.step == Step::Granting);
        let granted = self.statuses(Step::Granted);
        let there = granted.iter().flatten().count();
        if there == 0 {
            return;
        }
        // Only now does nothing change any more: another writer may have made the group in the meantime.
        let made = match belong_together(&self.names(), &granted, &self.options) {
            Ok(made) => made,
            Err(_) if waiting => return,
            Err(error) => return self.fail(error),
        };
        self.made = Some(made);
        let enough = self.heard().unwrap_or(0) >= self.needed() && there >= self.acks();
        if !enough || !self.is_due(now, waiting, since) {
            return;
        }
        self.phase = Phase::Confirming;
        self.confirming = self.grants;
        for n in 0..self.servers.len() {
            if self.servers[n].step == Step::Granted {
                self.call(n, Request::Status);
            }
        }
    }

    fn is_new(&self) -> bool {
        self.made.as_ref().is_some_and(|made| made.new)
    }

    fn choose(&mut self) {
        let new = self.is_new();
        let stands_by = |server: &&Server| {
            server.step == Step::Granted
                && server.confirmed >= self.confirming
                && server.status.as_ref().is_some_and(|status| new || has_say(status))
        };
        if self.servers.iter().filter(stands_by).count() < self.needed() {
            return;
        }
        let rank = |n: &usize| {
            let server = &self.servers[*n];
            let status = server.status.as_ref().filter(|_| server.step == Step::Granted)?;
            (new || has_say(status)).then_some((status.state.adopted, status.tail.sequence))
        };
        let ranked = (0..self.servers.len()).filter_map(|n| Some((rank(&n)?, n)));
        let Some((_, best)) = ranked.max() else { return };
        let chosen = self.servers[best].status.as_ref().expect("it is ranked");
        let (start, first) = (chosen.tail.sequence, chosen.state.head.sequence);
        (self.best, self.start, self.next, self.acknowledged) = (best, start, start, start);
        self.trim_below = first;
        self.recent.first = start;
        self.phase = Phase::Adopting;
        self.begin_to_feed(best);
    }

    /// Whether somebody's promise is waited for, so that a later writer's is the end of this one.
    fn awaits_promises(&self) -> bool {
        match self.phase {
            Phase::Promising | Phase::Confirming => true,
            Phase::Adopting | Phase::Open => (0..self.servers.len()).any(|n| self.awaits_confirmation(n)),
            Phase::Asking | Phase::Failed(_) => false,
        }
    }

    /// Whether a server has promised this epoch and may have forgotten a later one with its disk, so that others are to say first
    /// that there is none.
    fn awaits_confirmation(&self, n: usize) -> bool {
        let server = &self.servers[n];
        let Some(status) = server.status.as_ref().filter(|_| server.step == Step::Granted) else {
            return false;
        };
        if has_say(status) || server.granted <= self.confirming {
            return false;
        }
        let confirm = |m: &usize| *m != n && self.servers[*m].confirms(server.granted);
        (0..self.servers.len()).filter(confirm).count() < self.confirmations()
    }

    /// How many others must confirm the epoch before a server without a say is fed: of a log that has each record on one server only,
    /// all of them.
    fn confirmations(&self) -> usize {
        let members = self.servers.len();
        (members - self.acks() + 1).min(members - 1)
    }

    /// Goes on with those that have promised.
    fn take_in(&mut self) {
        let has_promised = |server: &Server| server.step == Step::Granted && server.call.is_none();
        for n in 0..self.servers.len() {
            if has_promised(&self.servers[n]) && !self.awaits_confirmation(n) {
                self.equalise(n);
            }
        }
        // By now all are fed who can confirm anything: there may be no other turn, as nothing else is under way.
        for n in 0..self.servers.len() {
            if !has_promised(&self.servers[n]) || !self.awaits_confirmation(n) {
                continue;
            }
            let since = self.servers[n].granted;
            for m in (0..self.servers.len()).filter(|m| *m != n) {
                let other = &mut self.servers[m];
                let asked = other.call.is_some() && other.called >= since;
                let has_say = other.status.as_ref().is_some_and(has_say);
                other.look |= other.step == Step::Feeding && has_say && !other.confirms(since) && !asked;
            }
        }
    }

    /// A server whose log has all records of the group from some number on, and below which this one begins.
    fn source_for(&self, n: usize, sequence: u64) -> Option<usize> {
        let has = |m: &usize| {
            let server = &self.servers[*m];
            *m != n && server.step == Step::Feeding && server.first() <= sequence && server.has() > sequence
        };
        (0..self.servers.len()).filter(has).max_by_key(|m| self.servers[*m].has())
    }

    /// What the log of the group is by now: whose, where it begins, and who appended what.
    fn reference(&self, but: usize) -> Option<Status> {
        let holds = |server: &Server| server.step == Step::Feeding && server.has() >= self.start;
        let others = (0..self.servers.len()).filter(|m| *m != but && holds(&self.servers[*m]));
        let from =
            others.max_by_key(|m| (self.servers[*m].adopted, *m == self.best, self.servers[*m].has()))?;
        let mut status = self.servers[from].status.clone()?;
        status.runs.retain(|run| run.from < self.start);
        if self.next > self.start {
            status.runs.push(Run { epoch: self.epoch, from: self.start });
        }
        status.tail = Cursor { sequence: self.next, ..status.tail };
        Some(status)
    }

    /// Makes a server's log a beginning of the group's.
    fn equalise(&mut self, n: usize) {
        let theirs = self.servers[n].status.clone().expect("it has promised");
        // What it has adopted in this epoch is a beginning of what this writer has appended.
        if theirs.state.adopted == self.epoch && theirs.damage.is_none() {
            return self.begin_to_feed(n);
        }
        let Some(reference) = self.reference(n) else {
            return self.lose(n, "no other server has the log that was chosen");
        };
        let head = &reference.state.head;
        let agreed = reference.agrees_until(&theirs);
        let from_scratch = agreed < head.sequence
            || agreed == head.sequence
                && head.sequence > 0
                && theirs.epoch_of(head.sequence - 1) != Some(head.epoch);
        let tail = theirs.tail.sequence;
        let kept = if from_scratch { theirs.state.head.sequence } else { agreed };
        self.servers[n].cut += tail.saturating_sub(kept);
        self.servers[n].step = Step::Cutting;
        if from_scratch {
            self.call(n, Request::Reset { epoch: self.epoch, sequence: head.sequence, after: head.epoch });
        } else if agreed < tail || theirs.damage.is_some() {
            self.call(n, Request::Truncate { epoch: self.epoch, sequence: agreed });
        } else {
            self.begin_to_feed(n);
        }
    }

    fn begin_to_feed(&mut self, n: usize) {
        let (epoch, group) = (self.epoch, self.uuid());
        let goal = self.start.max(self.acknowledged);
        let server = &mut self.servers[n];
        let status = server.status.as_ref().expect("it has said how its log is");
        server.goal = goal;
        server.writer = Some(Writer::new(status.writer_grant(), epoch));
        server.adopted = status.state.adopted == epoch && status.state.group == group;
        // It may have lost its disk since it was here.
        server.durable = if server.adopted { status.tail.sequence } else { 0 };
        server.step = Step::Feeding;
        self.count();
    }

    fn feed_all(&mut self) {
        for n in 0..self.servers.len() {
            if self.servers[n].step == Step::Feeding {
                self.feed(n);
            }
        }
    }

    /// Sends a server what it lacks, as far as it takes it, and asks it for what is due.
    fn feed(&mut self, n: usize) {
        if let Some(Request::Adopt { .. } | Request::Reset { .. } | Request::Truncate { .. }) =
            self.servers[n].call
        {
            return;
        }
        loop {
            let server = &self.servers[n];
            let Some(writer) = &server.writer else { return };
            let depth = if writer.mode() == Mode::Compound { 1 } else { self.options.depth };
            let limit = if server.adopted { self.next } else { server.goal };
            let from = writer.next();
            if server.in_flight.len() >= depth || from >= limit {
                break;
            }
            let sent = if from >= self.recent.first { self.send(n, from, limit) } else { self.copy(n, from) };
            if !sent {
                break;
            }
        }
        self.ask(n);
    }

    /// Sends records that are at hand. Whether it went.
    fn send(&mut self, n: usize, from: u64, limit: u64) -> bool {
        let server = &mut self.servers[n];
        let writer = server.writer.as_mut().expect("it is fed");
        let mut bytes = 0;
        let mut batch: Vec<&[u8]> = Vec::with_capacity((limit - from).min(BATCH) as usize);
        for sequence in from..limit.min(from + BATCH) {
            let Some(record) = self.recent.get(sequence) else { break };
            bytes += record.len();
            if !batch.is_empty() && bytes > BATCH_BYTES {
                break;
            }
            batch.push(record);
        }
        match writer.append_batch(&batch) {
            Ok(updates) => {
                self.submit(n, updates);
                true
            }
            Err(_) => self.is_full(n),
        }
    }

    /// A record does not fit: somebody may have trimmed the log, or it is trimmed as far as it may be. False.
    fn is_full(&mut self, n: usize) -> bool {
        self.servers[n].full = true;
        let can_be_trimmed = self.trims_to(n) > self.servers[n].first();
        let server = &mut self.servers[n];
        let is_told = server.is_short();
        if is_told
            && !server.adopted
            && server.in_flight.is_empty()
            && server.call.is_none()
            && !can_be_trimmed
        {
            self.lose(n, "its log has no room for the records that it lacks; give it a larger one");
        }
        false
    }

    /// The records below this number a server may give up, of those that it has. One that does not take all that it lacks is not
    /// given what others have given up already: they had been told to by a writer that had it acknowledged.
    fn trims_to(&self, n: usize) -> u64 {
        let server = &self.servers[n];
        let given_up =
            |other: &Server| other.step == Step::Feeding && other.status.as_ref().is_some_and(has_say);
        let others = self.servers.iter().filter(|other| given_up(other)).map(Server::first).max();
        let below = match others {
            Some(first) if server.full && !server.adopted => self.trim_below.max(first),
            _ => self.trim_below,
        };
        below.min(server.has()).min(server.keep)
    }

    fn submit(&mut self, n: usize, updates: Updates) {
        let server = &mut self.servers[n];
        let writer = server.writer.as_ref().expect("it is fed");
        let len = updates.records.len();
        if server.asked.as_ref().is_none_or(|(of, _)| *of != len) {
            // The planner bounds messages by what the session can receive; here nothing bounds them.
            server.asked = Some((len, Arc::new(writer.request(&updates, u32::MAX))));
        }
        let plan = Arc::clone(&server.asked.as_ref().expect("asked just now").1);
        self.asks(n);
        self.servers[n].in_flight.push_back(updates.sequences.1);
        self.actions.push_back(Action::Append { server: n, updates: Box::new(updates), plan });
    }

    /// Sends a record from another server's log. Whether it went.
    fn copy(&mut self, n: usize, sequence: u64) -> bool {
        if self.servers[n].copy.is_none() {
            let Some(source) = self.source_for(n, sequence) else {
                self.cannot_copy(n, sequence);
                return false;
            };
            self.copies += 1;
            let status = self.servers[source].status.as_ref().expect("it is fed");
            self.servers[n].copy = Some(Copy::new(self.copies, source, status));
        }
        let mut copy = self.servers[n].copy.take().expect("there is one");
        let source = copy.source;
        let (has, status) = (self.servers[source].has(), self.servers[source].status.as_ref());
        let replies = self.servers[source].replies;
        let next = copy.next(sequence, has, status.expect("it is fed"), replies);
        match next {
            Next::Record(epoch, payload) => {
                let writer = self.servers[n].writer.as_mut().expect("it is fed");
                match writer.append_copy(epoch, payload) {
                    Ok(updates) => {
                        copy.taken();
                        self.servers[n].copy = Some(copy);
                        self.servers[n].copied += 1;
                        self.submit(n, updates);
                        true
                    }
                    Err(_) => {
                        self.servers[n].copy = Some(copy);
                        self.is_full(n)
                    }
                }
            }
            Next::Read { offset, len } => {
                self.asks(source);
                self.servers[source].reads.push_back((n, copy.number));
                self.servers[n].copy = Some(copy);
                self.actions.push_back(Action::Read { server: source, offset, len });
                false
            }
            Next::Wait => {
                self.servers[n].copy = Some(copy);
                false
            }
            // It has been trimmed, or that is as far as this one has come.
            Next::Gone => {
                if self.source_for(n, sequence).is_some() {
                    self.copy(n, sequence)
                } else {
                    self.cannot_copy(n, sequence)
                }
            }
            Next::Look => {
                self.servers[n].copy = Some(copy);
                self.servers[source].look = true;
                self.ask(source);
                false
            }
            Next::Fault(fault) => {
                let why = format!("its record {sequence} cannot be copied: {fault}");
                self.lose(source, &why);
                false
            }
        }
    }

    /// Nobody has the record any more, or nobody who has it is there. False.
    fn cannot_copy(&mut self, n: usize, sequence: u64) -> bool {
        let begins = |m: &usize| {
            let other = &self.servers[*m];
            *m != n && other.takes_part() && other.has() >= self.start && other.first() > sequence
        };
        let others = (0..self.servers.len()).filter(begins);
        let from = others.max_by_key(|m| self.servers[*m].has());
        let head = from.and_then(|m| Some(self.servers[m].status.as_ref()?.state.head));
        let server = &mut self.servers[n];
        // What the others have given up it need not have either. One that has not given it up, and not got so far, tells nothing of where to
        // begin: what this one has already would lie behind that.
        if let Some(head) = head
            && server.in_flight.is_empty()
            && server.call.is_none()
        {
            (server.copy, server.step) = (None, Step::Cutting);
            self.call(n, Request::Reset { epoch: self.epoch, sequence: head.sequence, after: head.epoch });
        }
        false
    }

    /// Asks a server for what is due, if nothing is asked of it already.
    fn ask(&mut self, n: usize) {
        let made = self.made.as_ref().expect("the log was chosen");
        let (group, acks, members) = (made.group, made.acks, self.servers.len() as u16);
        let below = self.trims_to(n);
        let server = &mut self.servers[n];
        let (Some(writer), None) = (&server.writer, &server.call) else { return };
        if server.step != Step::Feeding {
            return;
        }
        let has = writer.durable();
        let lacks = writer.next() < server.goal || !server.in_flight.is_empty();
        let request = if !server.adopted && !lacks {
            Request::Adopt { epoch: self.epoch, sequence: writer.next(), group, members, acks }
        } else if server.first() < below && (has >= self.trim_below || server.full) {
            server.look = false;
            Request::Trim { below }
        } else if std::mem::take(&mut server.look) {
            if server.room == Room::Wanted {
                server.room = Room::Asked;
            }
            Request::Status
        } else if !server.adopted {
            return;
        } else if let Some(below) = server.known.take() {
            Request::Known { epoch: self.epoch, below }
        } else {
            return;
        };
        self.call(n, request);
    }
}
