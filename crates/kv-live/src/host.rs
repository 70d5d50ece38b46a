//! The store's host: what the serving thread does about calls, and in between.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use remanence_pmem::Region;
use remanence_remote::{Call as Called, Grants, Role, SessionControl};

use super::StoreStats;
use super::local::{Line, Lines};
use super::member::Upkeep;
use super::memory::Memory;
use super::wire::{
    ANSWER_HEADER, ANSWER_MAX, ANSWERS_MAX, Answer, Call, Hello, Key, REQUEST_MAX, VERSION, What, emit_keyed,
    emit_words, parse_words,
};
use remanence_kv::proto::{Changed, Inline, Refusal, Reply, Request};
use remanence_kv::server::{ClientId, Event, Named, Server, Turns};
use remanence_kv::view::{Mode, View};

/// Small things that are done in one step: one wait for the medium covers them all.
const BUDGET: usize = 64;
/// A client that has said nothing for so long is told something, to see whether it is there.
const PROBE: Duration = Duration::from_secs(5);
/// Entries that are kept at most for new keys of calls that have come together.
const PREPARED_MAX: usize = 1024;
/// Values that one call of a scrub reads at most: no other message is served meanwhile.
const SCRUB_MAX: u64 = 256;

/// What the host keeps for a session.
#[derive(Debug)]
struct HostSession {
    client: Option<ClientId>,
    /// The parts that have come of its next request; empty if none have.
    part: Vec<u8>,
    /// Parts of answers that it has not fetched yet, by the tag of the call.
    rest: BTreeMap<u32, Vec<u8>>,
    heard: Instant,
}

/// What lets a change go on that others are in the way of, as it was counted: writes that ended, writes under way, regions that came free and
/// are free, tables that were replaced, and whether anything is cleaned or grows.
type Events = [u64; 7];

/// Whether others are in the way, and for how long is their affair.
const fn hinders(refusal: &Refusal) -> bool {
    matches!(refusal, Refusal::Unfinished | Refusal::Growing | Refusal::Cleaning)
}

/// Everything that the serving thread works on.
pub(super) struct Host {
    pub(super) core: Server<Memory>,
    /// The memory that clients read.
    region: Region,
    peers: BTreeMap<u64, HostSession>,
    cutter: SessionControl,
    /// What clients may write; `None`: everything.
    grants: Option<Grants>,
    mode: Mode,
    lease: Duration,
    /// How many bytes of an answer fit a message.
    room: usize,
    clock: Clock,
    boot: u32,
    calls: u64,
    ended: u64,
    turns: Turns,
    last_probe: Instant,
    /// When the serving thread has its next turn by itself; `None`: never.
    next_turn: Option<Instant>,
    to_clean: BTreeSet<u8>,
    /// Whether clients have the server write small values.
    inline: bool,
    /// Answers to calls that have come, by session and tag: their values were written together.
    written: BTreeMap<(u64, u32), Reply>,
    locals: Lines,
    /// Clients of this process that others are in the way of, and what had happened when the first of them was told so.
    hindered: BTreeSet<u64>,
    events: Events,
    /// Whether serving goes on.
    open: bool,
    failed: bool,
    /// What a primary does for the other members between calls; `None` if the store lies on one server.
    upkeep: Option<Upkeep>,
}

/// Milliseconds that go on over restarts, and do not jump meanwhile.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    at: u64,
    begin: Instant,
}

impl Clock {
    pub(super) fn now(&self) -> u64 {
        self.at + self.begin.elapsed().as_millis() as u64
    }

    /// A time, since the server began.
    fn since(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.begin)
    }
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host").field("core", &self.core).finish_non_exhaustive()
    }
}

impl Host {
    pub(super) fn new(
        mut core: Server<Memory>,
        region: Region,
        cutter: SessionControl,
        grants: Option<Grants>,
        lease: Duration,
        slot: usize,
        upkeep: Option<Upkeep>,
    ) -> Self {
        if let Some(grants) = grants.clone() {
            core.set_revoke(Box::new(move |rooms| rooms.iter().for_each(|at| grants.take(*at))));
        }
        if let Some(copies) = upkeep.as_ref().map(Upkeep::copies) {
            core.set_copies(copies);
        }
        let now = Instant::now();
        let at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        let view = core.view();
        Self {
            core,
            region,
            peers: BTreeMap::new(),
            cutter,
            grants,
            mode: view.mode,
            lease,
            room: slot - ANSWER_HEADER,
            clock: Clock { at, begin: now },
            boot: view.boot,
            calls: 0,
            ended: 0,
            turns: Turns::new(Duration::ZERO),
            last_probe: now,
            next_turn: None,
            to_clean: BTreeSet::new(),
            inline: view.inline_max > 0,
            written: BTreeMap::new(),
            locals: Lines::default(),
            hindered: BTreeSet::new(),
            events: Events::default(),
            open: true,
            failed: false,
            upkeep,
        }
    }

    pub(super) fn stats(&self) -> StoreStats {
        let geometry = self.core.view().geometry;
        StoreStats {
            server: self.core.stats(),
            usage: self.core.usage(),
            calls: self.calls,
            clients: self.peers.values().filter(|peer| peer.client.is_some()).count() as u64,
            uptime: self.clock.begin.elapsed().as_millis() as u64,
            boot: self.boot,
            mode: self.mode,
            size: geometry.size,
            region_len: geometry.region_len,
            to_clean: self.to_clean.len() as u64,
        }
    }

    /// The time, as it is told to clients: milliseconds.
    #[cfg(any(test, fuzzing))]
    pub(super) fn now(&self) -> u64 {
        self.clock.now()
    }

    /// What is kept for a session: bytes of a request of which more is to come, and answers that it has not fetched.
    #[cfg(any(test, fuzzing))]
    pub(super) fn kept(&self, session: u64) -> (usize, usize) {
        self.peers.get(&session).map_or((0, 0), |peer| (peer.part.len(), peer.rest.len()))
    }

    /// The medium failed: nothing may be served any more.
    pub(super) const fn has_failed(&self) -> bool {
        self.failed
    }

    /// The medium failed a client of this process.
    pub(super) fn fail(&mut self) {
        self.failed = true;
        self.stir();
    }

    /// The serving thread, which may sleep, does what a client of this process has left for it.
    fn stir(&mut self) {
        let now = Instant::now();
        let Some(at) = now.checked_add(if self.failed { Duration::ZERO } else { self.rest(now) }) else {
            return;
        };
        // The core counts in milliseconds.
        if self.next_turn.is_none_or(|next| at + Duration::from_millis(1) < next) {
            self.next_turn = Some(at);
            self.cutter.wake();
        }
    }

    /// A client of this process: its session, the clock and the view.
    pub(super) fn admit(&mut self, line: Arc<Line>) -> (u64, Clock, View) {
        let session = self.locals.add(line);
        let client = Some(self.core.connect());
        let peer = HostSession { client, part: Vec::new(), rest: BTreeMap::new(), heard: Instant::now() };
        self.peers.insert(session, peer);
        (session, self.clock, View { inline_max: 0, ..self.core.view() })
    }

    /// Answers a client of this process, and does what can wait as the serving thread does after a message. `None`: it was cut
    /// off, or nothing is served.
    pub(super) fn ask(&mut self, session: u64, request: &Request) -> Option<Reply> {
        if self.failed {
            return Some(Reply::Refused(Refusal::Medium));
        }
        if !self.open || self.locals.of(session).is_none() {
            return None;
        }
        let client = self.peers.get(&session).and_then(|peer| peer.client)?;
        self.calls += 1;
        let mut reply = self.handle(client, request);
        let is_hindered = |reply: &Reply| matches!(reply, Reply::Refused(refusal) if hinders(refusal));
        if is_hindered(&reply) || matches!(&reply, Reply::Batch(replies) if replies.iter().any(is_hindered)) {
            self.hinder(session);
        }
        // A wait here is one with our lock held: they write themselves, and wait beside each other.
        if let Reply::View(view) = &mut reply {
            view.inline_max = 0;
        }
        self.failed |= reply == Reply::Refused(Refusal::Medium) || self.do_turn(1).is_err();
        self.stir();
        Some(reply)
    }

    /// Writes values for a client of this process, which share a wait for the medium. `None`: as for [`ask`](Self::ask).
    pub(super) fn put_all(
        &mut self,
        session: u64,
        puts: &[Inline<'_>],
        done: &mut Vec<Result<Changed, Refusal>>,
    ) -> Option<()> {
        if self.failed {
            done.extend(puts.iter().map(|_| Err(Refusal::Medium)));
            return Some(());
        }
        if !self.open || self.locals.of(session).is_none() {
            return None;
        }
        let client = self.peers.get(&session).and_then(|peer| peer.client)?;
        self.calls += 1;
        self.core.put_all(self.clock.now(), client, puts, done);
        self.hinder_if(session, done);
        let medium = Err(Refusal::Medium);
        if self.region.failure().is_err() || done.contains(&medium) || self.do_turn(1).is_err() {
            self.failed = true;
            done.fill(medium);
        }
        self.stir();
        Some(())
    }

    fn hinder_if(&mut self, session: u64, done: &[Result<Changed, Refusal>]) {
        if done.iter().any(|done| done.as_ref().is_err_and(hinders)) {
            self.hinder(session);
        }
    }

    /// Others are in the way of a change of a client of this process, which is [told](Self::tell_hindered) when they may not be any more.
    fn hinder(&mut self, session: u64) {
        if self.hindered.is_empty() {
            self.events = self.events();
        }
        self.hindered.insert(session);
    }

    /// Wakes the clients of this process that others may be out of the way of.
    fn tell_hindered(&mut self) {
        if self.hindered.is_empty() || self.events() == self.events {
            return;
        }
        let hindered = std::mem::take(&mut self.hindered);
        hindered.into_iter().filter_map(|session| self.locals.of(session)).for_each(Line::wake);
    }

    fn events(&self) -> Events {
        let (stats, usage) = (self.core.stats(), self.core.usage());
        [
            stats.settled + stats.given_up,
            usage.unfinished as u64,
            stats.regions_freed,
            usage.regions_free.into(),
            stats.grown,
            usage.cleaning.into(),
            usage.growing.into(),
        ]
    }

    /// Keeps entries for new keys of a client of this process, which waits for the medium itself before it [begins](Self::begin_all);
    /// whether there is anything to wait for. `None`: as for [`ask`](Self::ask).
    pub(super) fn prepare_ahead(
        &mut self,
        session: u64,
        puts: &[Inline<'_>],
    ) -> Option<Result<bool, Refusal>> {
        if self.failed {
            return Some(Err(Refusal::Medium));
        }
        if !self.open || self.locals.of(session).is_none() {
            return None;
        }
        let client = self.peers.get(&session).and_then(|peer| peer.client)?;
        let some = self.core.prepare_ahead(self.clock.now(), client, puts);
        self.failed |= some.is_err() || self.region.failure().is_err();
        self.stir();
        Some(if self.failed { Err(Refusal::Medium) } else { some })
    }

    /// Writes values for a client of this process that waits for the medium itself, and says so [then](Self::end_all). `None`: as for
    /// [`ask`](Self::ask).
    pub(super) fn begin_all(
        &mut self,
        session: u64,
        puts: &[Inline<'_>],
        done: &mut Vec<Result<Changed, Refusal>>,
    ) -> Option<Vec<Named>> {
        if self.failed {
            done.extend(puts.iter().map(|_| Err(Refusal::Medium)));
            return Some(Vec::new());
        }
        if !self.open || self.locals.of(session).is_none() {
            return None;
        }
        let client = self.peers.get(&session).and_then(|peer| peer.client)?;
        self.calls += 1;
        let named = self.core.begin_all(self.clock.now(), client, puts, done);
        self.hinder_if(session, done);
        let medium = Err(Refusal::Medium);
        if self.region.failure().is_err() || done.contains(&medium) {
            self.failed = true;
            done.fill(medium);
        }
        self.stir();
        Some(named)
    }

    /// What was begun is durable, as the client's wait for the medium has ended well; whether the medium stands.
    pub(super) fn end_all(&mut self, named: &[Named]) -> bool {
        // Who was cut off meanwhile is told so by whatever he asks next. What he waited for is durable all the same.
        self.core.end_all(named);
        self.failed |= self.region.failure().is_err() || self.do_turn(1).is_err();
        self.stir();
        !self.failed
    }

    /// Carries a request out. What is read of a page that the medium has lost is zeros, and as good a sign of nothing as any:
    /// no answer counts then.
    fn handle(&mut self, client: ClientId, request: &Request) -> Reply {
        let is_short = |upkeep: &Upkeep| request.begins_a_change() && upkeep.is_short_of_room();
        if self.upkeep.as_ref().is_some_and(is_short) {
            return Reply::Refused(Refusal::Full);
        }
        let reply = self.core.handle(self.clock.now(), client, request);
        if self.region.failure().is_err() { Reply::Refused(Refusal::Medium) } else { reply }
    }

    /// A client of this process leaves, and writes no more.
    pub(super) fn leave(&mut self, session: u64) {
        if self.locals.remove(session)
            && let Some(client) = self.peers.remove(&session).and_then(|peer| peer.client)
        {
            self.failed |= self.core.disconnected(client).is_err();
            self.turns.asked();
            self.stir();
        }
    }

    /// Sees calls that have come together, and are about to be answered: their new keys share a wait for the medium, and so do
    /// the values that the server is to write, which are written here.
    pub(super) fn prepare(&mut self, calls: &[Called<'_>]) {
        let (mut requests, mut in_parts) = (Vec::new(), BTreeSet::new());
        let (mut inline, mut values) = (Vec::new(), 0);
        for called in calls.iter().filter(|called| called.role.may_write()) {
            let Some(Call { what, tag, body }) = Call::parse(called.request) else { continue };
            let peer = self.peers.get(&called.session).filter(|peer| peer.part.is_empty());
            let Some(client) = peer.and_then(|peer| peer.client) else { continue };
            match what {
                // What is in parts is looked at when it is whole.
                What::Part => drop(in_parts.insert(called.session)),
                What::Request if !in_parts.contains(&called.session) => match Request::parse(body) {
                    // A request's values stay together: the last one's may go beyond.
                    Some(request) if values < PREPARED_MAX && !request.inlines().is_empty() => {
                        values += request.inlines().len();
                        inline.push(((called.session, tag), client, request));
                    }
                    Some(Request::Batch(batch)) => requests.extend(batch),
                    Some(request) => requests.push(request),
                    None => {}
                },
                _ => {}
            }
        }
        requests.retain(|request| matches!(request, Request::Put { .. }));
        requests.truncate(PREPARED_MAX);
        if !self.failed {
            self.failed = self.core.prepare(self.clock.now(), &requests).is_err();
        }
        // One alone is written when its turn comes.
        if self.failed || !self.inline || inline.len() < 2 {
            return;
        }
        let mut puts = Vec::with_capacity(values);
        for (_, client, request) in &inline {
            puts.extend(request.inlines().into_iter().map(|put| (*client, put)));
        }
        let mut replies = self.core.put_together(self.clock.now(), &puts).into_iter();
        self.failed |= self.region.failure().is_err();
        for (call, _, request) in &inline {
            let mut reply = || replies.next().expect("one for each");
            let reply = match request {
                Request::Batch(requests) => Reply::Batch(requests.iter().map(|_| reply()).collect()),
                _ => reply(),
            };
            self.written.insert(*call, reply);
        }
    }

    /// Answers a call of a session, whose client may do so much.
    pub(super) fn serve(&mut self, session: u64, role: Role, call: &[u8]) -> Result<Vec<u8>, String> {
        let call = Call::parse(call).ok_or("the call means nothing; use the same release on both sides")?;
        let fresh =
            || HostSession { client: None, part: Vec::new(), rest: BTreeMap::new(), heard: Instant::now() };
        let peer = self.peers.entry(session).or_insert_with(fresh);
        peer.heard = Instant::now();
        let body = match call.what {
            What::Part => {
                if peer.part.len() + call.body.len() > REQUEST_MAX {
                    return Err(format!("a request has {REQUEST_MAX} bytes at most"));
                }
                peer.part.extend_from_slice(call.body);
                return Ok(self.answer(session, call.tag, Vec::new()));
            }
            What::Rest => {
                let rest = peer.rest.remove(&call.tag).ok_or("there is no more of that answer")?;
                return Ok(self.answer(session, call.tag, rest));
            }
            _ if peer.part.is_empty() => call.body.to_vec(),
            _ => [&std::mem::take(&mut peer.part)[..], call.body].concat(),
        };
        self.calls += 1;
        let client = peer.client;
        let answer = match (call.what, client) {
            (What::Hello, None) => self.hello(session, role, &body)?,
            (What::Hello, Some(_)) => return Err("this session has begun already".to_owned()),
            (_, None) => {
                return Err("this session has not begun; use the same release on both sides".to_owned());
            }
            (What::Request, Some(client)) => {
                let written = self.written.remove(&(session, call.tag));
                let mut reply = match (written, Request::parse(&body)) {
                    (Some(_), _) if self.failed => Reply::Refused(Refusal::Medium),
                    (Some(reply), _) => reply,
                    (None, Some(request)) => self.handle(client, &request),
                    (None, None) => Reply::Refused(Refusal::Malformed),
                };
                self.failed |= reply == Reply::Refused(Refusal::Medium);
                let keys = self.keys(session, client, &mut reply);
                let bytes = reply.emit();
                // So long an answer is for a GET that its client could not carry out itself: it is told to try again.
                let long = bytes.len() > ANSWER_MAX;
                emit_keyed(&keys, &if long { Reply::Refused(Refusal::Unfinished).emit() } else { bytes })
            }
            (What::Stats, Some(_)) => self.stats().emit(),
            (What::Scrub | What::Compact, Some(_)) if !role.may_write() => {
                return Err(Refusal::ReadOnly.to_string());
            }
            (What::Scrub, Some(_)) => self.scrub(&body)?,
            (What::Compact, Some(_)) => {
                let heads = self.core.view().geometry.heads;
                self.to_clean = (0..=(heads - 1) as u8).collect();
                self.turns.asked();
                Vec::new()
            }
            (What::Lead, Some(_)) => match &self.upkeep {
                Some(upkeep) => upkeep.said().emit(),
                None => return Err("this store lies on one server".to_owned()),
            },
            (What::Part | What::Rest, _) => unreachable!("answered above"),
        };
        Ok(self.answer(session, call.tag, answer))
    }

    /// Lets a session write what a reply has handed out. What the device has no window for is not handed out after all.
    fn keys(&mut self, session: u64, client: ClientId, reply: &mut Reply) -> Vec<Key> {
        let Some(grants) = self.grants.clone() else { return Vec::new() };
        match reply {
            Reply::Reserved(reserved) => {
                let version = reserved.version;
                let rooms = self.core.rooms(version);
                let key = |(at, len): &(u64, u64)| {
                    let rkey = grants.give(session, *at, *len)?;
                    Some(Key { at: *at, len: *len as u32, rkey })
                };
                let keys: Vec<Key> = rooms.iter().map_while(key).collect();
                if keys.len() == rooms.len() {
                    return keys;
                }
                // Takes back what was given, too.
                self.core.handle(self.clock.now(), client, &Request::Abandon { version });
                *reply = Reply::Refused(Refusal::TooMany);
                Vec::new()
            }
            Reply::Batch(replies) => {
                replies.iter_mut().flat_map(|reply| self.keys(session, client, reply)).collect()
            }
            _ => Vec::new(),
        }
    }

    fn hello(&mut self, session: u64, role: Role, body: &[u8]) -> Result<Vec<u8>, String> {
        let theirs = body.first_chunk().map(|version| u16::from_le_bytes(*version));
        let theirs = theirs.ok_or("the call means nothing; use the same release on both sides")?;
        let hello = Hello { version: VERSION, lease: self.lease.as_millis() as u64 }.emit();
        if theirs != VERSION {
            // It learns the version, and no more.
            return Ok(hello);
        }
        let client = if role.may_write() { self.core.connect() } else { self.core.connect_reader() };
        self.peers.get_mut(&session).expect("it has just called").client = Some(client);
        Ok([hello, Reply::View(self.core.view()).emit()].concat())
    }

    fn scrub(&mut self, body: &[u8]) -> Result<Vec<u8>, String> {
        let [cursor, limit] =
            parse_words(body).ok_or("the call means nothing; use the same release on both sides")?;
        // Clients of an earlier release do not ask again.
        let asks_again = body.len() > 16;
        let limit = limit.clamp(1, SCRUB_MAX) as usize;
        let scrubbed = match &mut self.upkeep {
            Some(upkeep) => upkeep.scrub(&mut self.core, cursor, limit),
            None => self.core.scrub(cursor, limit).map(|done| Some((done, Vec::new()))),
        };
        match scrubbed {
            Ok(Some((done, held))) => {
                let next = done.next.unwrap_or(u64::MAX);
                let mut words = vec![done.verified, done.repaired, done.lost, next, held.len() as u64];
                words.extend(held.iter().flat_map(|held| [held.damaged, held.repaired]));
                Ok(emit_words(&words))
            }
            Ok(None) if asks_again => {
                self.turns.asked();
                Ok(emit_words(&[0, 0, 0, cursor, 0]))
            }
            Ok(None) => Err("members are being asked; scrub with a client of this release".to_owned()),
            Err(refusal) => {
                self.failed |= refusal == Refusal::Medium;
                Err(refusal.to_string())
            }
        }
    }

    /// As much of an answer as fits; the rest waits to be fetched.
    fn answer(&mut self, session: u64, tag: u32, mut bytes: Vec<u8>) -> Vec<u8> {
        let rest = bytes.split_off(bytes.len().min(self.room));
        let left = rest.len() as u32;
        if left > 0
            && let Some(peer) = self.peers.get_mut(&session)
        {
            peer.rest.insert(tag, rest);
            let kept = |peer: &HostSession| peer.rest.values().map(Vec::len).sum::<usize>();
            // A client that does not fetch the rest of its answers loses the earlier ones.
            while peer.rest.len() > ANSWERS_MAX || kept(peer) > 2 * ANSWER_MAX {
                let other = peer.rest.keys().copied().find(|other| *other != tag);
                other.and_then(|other| peer.rest.remove(&other));
            }
        }
        Answer { left, clock: self.clock.now(), body: &bytes }.emit()
    }

    /// Does what can wait. Returns how long it may wait again, if nobody wakes the serving thread; `None`: the medium failed.
    pub(super) fn turn(&mut self, messages: usize) -> Option<Duration> {
        self.core.release_prepared();
        self.written.clear();
        self.failed |= self.do_turn(messages).is_err();
        if self.failed {
            return None;
        }
        let now = Instant::now();
        let rest = self.rest(now);
        self.next_turn = now.checked_add(rest);
        Some(rest)
    }

    /// How long there is nothing to do, if nobody asks for anything.
    fn rest(&self, now: Instant) -> Duration {
        let soon = self.turns.rest(self.clock.since(now), Duration::MAX);
        if soon < Duration::MAX {
            return soon;
        }
        let core = self.core.deadline().map(|at| Duration::from_millis(at.saturating_sub(self.clock.now())));
        let is_probed = self.peers.len() > self.locals.len();
        let probe = is_probed.then(|| (self.last_probe + PROBE).saturating_duration_since(now));
        let upkeep = self.upkeep.as_ref().map(|upkeep| upkeep.next());
        let next = [core, probe, upkeep].into_iter().flatten().min();
        self.turns.rest(self.clock.since(now), next.unwrap_or(Duration::MAX))
    }

    fn do_turn(&mut self, messages: usize) -> Result<(), Refusal> {
        self.region.failure().map_err(|_| Refusal::Medium)?;
        if self.cutter.ended() != self.ended {
            self.ended = self.cutter.ended();
            self.forget_ended()?;
        }
        let now = Instant::now();
        let begin = self.clock.since(now);
        if self.turns.is_due(begin, messages) {
            if !self.to_clean.is_empty() && !self.core.usage().cleaning {
                self.clean_next()?;
            }
            let more = self.core.step(self.clock.now(), BUDGET)?;
            let work = !self.to_clean.is_empty() || self.core.is_settling();
            self.turns.stepped(begin, self.clock.since(Instant::now()), more, work);
        }
        if let Some(upkeep) = &mut self.upkeep {
            // The primary no more: as if the medium had failed.
            if upkeep.turn(&mut self.core).map_err(|_| Refusal::Medium)? {
                self.turns.asked();
            }
        }
        while let Some(event) = self.core.poll_event() {
            let of =
                |client| self.peers.iter().find(|(_, peer)| peer.client == Some(client)).map(|(id, _)| *id);
            match event {
                Event::Notice { client, view } => {
                    let Some(session) = of(client) else { continue };
                    if let Some(line) = self.locals.of(session) {
                        line.notify(view);
                    } else {
                        self.cutter.notify(session, view.to_le_bytes().to_vec());
                    }
                }
                // When it has come, `forget_ended` hears of it.
                Event::Fence { client } => {
                    let Some(session) = of(client) else { continue };
                    if let Some(line) = self.locals.of(session) {
                        line.cut();
                        self.leave(session);
                    } else {
                        if let Some(grants) = &self.grants {
                            grants.take_all(session);
                        }
                        self.cutter.cut(session);
                    }
                }
            }
        }
        if now.duration_since(self.last_probe) >= PROBE {
            self.last_probe = now;
            let view = self.core.view().number.to_le_bytes();
            let is_silent = |session: u64, peer: &HostSession| {
                self.locals.of(session).is_none() && now.duration_since(peer.heard) >= PROBE
            };
            let silent = self.peers.iter().filter(|(session, peer)| is_silent(**session, peer));
            silent.for_each(|(session, _)| self.cutter.notify(*session, view.to_vec()));
        }
        self.tell_hindered();
        Ok(())
    }

    fn clean_next(&mut self) -> Result<(), Refusal> {
        let Some(head) = self.to_clean.pop_first() else { return Ok(()) };
        match self.core.clean(head) {
            Err(Refusal::Medium) => Err(Refusal::Medium),
            Err(Refusal::Unfinished) => {
                self.to_clean.insert(head);
                Ok(())
            }
            // Nothing to clean, or no room to clean into.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Nothing that sessions which are over have sent can arrive any more.
    pub(super) fn forget_ended(&mut self) -> Result<(), Refusal> {
        let cutter = &self.cutter;
        let is_gone = |session: &u64| self.locals.of(*session).is_none() && !cutter.is_live(*session);
        let gone: Vec<u64> = self.peers.keys().copied().filter(is_gone).collect();
        for session in gone {
            if let Some(client) = self.peers.remove(&session).and_then(|peer| peer.client) {
                self.core.disconnected(client)?;
            }
            self.turns.asked();
        }
        Ok(())
    }

    /// After the last session: everything that was written is settled, so that the next start finds nothing to do.
    pub(super) fn end(&mut self) -> Result<(), Refusal> {
        self.open = false;
        self.forget_ended()?;
        // Cleaning and growing go on when the store is served again.
        self.core.step(self.clock.now(), BUDGET).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use remanence_verbs::{Context, Options};

    use super::*;
    use crate::server::lock;
    use crate::{Server, ServerOptions};
    use remanence_kv::proto::Expect;

    fn put(key: u8) -> Request {
        Request::Put { key: vec![key], len: 5, expires: 0, expect: Expect::Any }
    }

    fn call(what: What, body: &[u8]) -> Vec<u8> {
        Call { what, tag: 7, body }.emit()
    }

    /// A store on a disk, its server not running.
    fn on_a_disk(address: &str) -> Option<(tempfile::TempDir, Server)> {
        // Where this program lies is one, mostly.
        let program = std::env::current_exe().expect("a program");
        let dir = tempfile::tempdir_in(program.parent().expect("a directory")).expect("a directory");
        let context = Context::open(Options::udp(address.parse().expect("an address"))).expect("a device");
        let options = ServerOptions::file(dir.path().join("store")).size(8 << 20).guarded(false);
        let server = Server::bind(&context, options).expect("a server");
        if !server.locals().expect("alone").wait_for_a_disk() {
            eprintln!("skipped: {} is not on a disk", program.display());
            return None;
        }
        Some((dir, server))
    }

    /// Shows the host calls that come together.
    fn show(host: &mut Host, calls: &[(u64, Role, Vec<u8>)]) {
        let shown =
            calls.iter().map(|(session, role, request)| Called { session: *session, role: *role, request });
        host.prepare(&shown.collect::<Vec<_>>());
    }

    fn reply(answer: &[u8]) -> Reply {
        let answer = Answer::parse(answer).expect("ours").body.to_vec();
        let (_, reply) = crate::wire::parse_keyed(&answer).expect("ours");
        Reply::parse(reply).expect("ours")
    }

    /// Has turns as the serving thread has them, until there is none by itself.
    fn until_it_sleeps(host: &mut Host) {
        let begin = Instant::now();
        loop {
            match host.turn(0).expect("the medium works") {
                Duration::MAX => return,
                rest => std::thread::sleep(rest),
            }
            assert!(begin.elapsed() < Duration::from_secs(120), "it is woken for ever: {host:?}");
        }
    }

    #[test]
    fn nobody_wakes_a_server_but_who_wants_something() {
        let context =
            Context::open(Options::udp("127.9.42.3".parse().expect("an address"))).expect("a device");
        let region = Region::anonymous(8 << 20).expect("memory");
        let process = remanence_persist::Config::software(remanence_persist::taxonomy::Domain::Process);
        let options = ServerOptions::region(region).configuration(process);
        let server = Server::bind(&context, options).expect("a server");
        let locals = server.locals().expect("alone");
        until_it_sleeps(&mut lock(&locals.host));
        assert!(lock(&locals.host).next_turn.is_none());
        // A client in this process sends no message: what it leaves to be done ends the sleep.
        let (_, mut local) = locals.connect(16);
        let request = put(1);
        remanence_kv::client::RemoteMemory::post(&mut local, vec![remanence_kv::client::Verb::Call(request)])
            .expect("an answer");
        assert!(lock(&locals.host).next_turn.is_some(), "nobody looks at what it began");
        drop(local);
        until_it_sleeps(&mut lock(&locals.host));
        // One that is elsewhere is asked whether it is there.
        let hello = call(What::Hello, &VERSION.to_le_bytes());
        let mut host = lock(&locals.host);
        host.serve(1, Role::Writer, &hello).expect("it begins");
        let begin = Instant::now();
        let rest = loop {
            match host.turn(0).expect("the medium works") {
                rest if rest > Duration::from_secs(1) => break rest,
                rest => std::thread::sleep(rest),
            }
            assert!(begin.elapsed() < Duration::from_secs(120), "it is woken for ever: {host:?}");
        };
        assert!(rest <= PROBE);
    }

    #[test]
    fn a_client_of_this_process_that_others_are_in_the_way_of_is_told_when_they_are_not() {
        use remanence_kv::client::{RemoteMemory as _, Verb};
        let context =
            Context::open(Options::udp("127.9.42.5".parse().expect("an address"))).expect("a device");
        let region = Region::anonymous(8 << 20).expect("memory");
        let process = remanence_persist::Config::software(remanence_persist::taxonomy::Domain::Process);
        let options = ServerOptions::region(region).configuration(process);
        let server = Server::bind(&context, options).expect("a server");
        let locals = server.locals().expect("alone");
        until_it_sleeps(&mut lock(&locals.host));
        let [(_, mut holder), (_, mut hindered), (_, mut other)] = [(); 3].map(|()| locals.connect(16));
        let told = Arc::new(std::sync::atomic::AtomicU32::new(0));
        let count = Arc::clone(&told);
        hindered.wake_by(Arc::new(move || _ = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed)));
        let times = || told.load(std::sync::atomic::Ordering::Relaxed);
        let inline =
            |key: &'static [u8]| Inline { key, value: Some(b"value"), expires: 0, expect: Expect::Any };
        for _ in 0..3 {
            let reserved = match holder.post(vec![Verb::Call(put(1))]).expect("an answer").pop() {
                Some(remanence_kv::client::Completion::Reply(Reply::Reserved(reserved))) => reserved,
                reply => panic!("{reply:?}"),
            };
            let mut done = Vec::new();
            hindered.put_all(&[inline(&[1])], &mut done).expect("an answer");
            assert_eq!(done, [Err(Refusal::Unfinished)]);
            let before = times();
            holder.post(vec![Verb::Call(Request::Abandon { version: reserved.version })]).expect("an answer");
            assert_eq!(times(), before + 1);
            done.clear();
            hindered.put_all(&[inline(&[1])], &mut done).expect("an answer");
            assert!(matches!(done[..], [Ok(Changed::Value(_))]), "{done:?}");
        }
        let before = times();
        other.put_all(&[inline(&[2])], &mut Vec::new()).expect("an answer");
        assert_eq!(times(), before, "who is not hindered any more is told nothing");
    }

    #[test]
    fn a_page_that_a_client_of_this_process_finds_lost_ends_the_server() {
        const SIZE: u64 = 8 << 20;
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("store");
        let context =
            Context::open(Options::udp("127.9.42.4".parse().expect("an address"))).expect("a device");
        let region = remanence_pmem::FileOptions::new().create(SIZE).open(&path).expect("a file");
        let server = Server::bind(&context, ServerOptions::region(region)).expect("a server");
        let locals = server.locals().expect("alone");
        until_it_sleeps(&mut lock(&locals.host));
        let (_, mut local) = locals.connect(16);
        let file = std::fs::File::options().write(true).open(&path).expect("it is there");
        file.set_len(SIZE - 4096).expect("cut");
        // It sends no message, and who only reads asks the server for nothing.
        let lost = remanence_kv::client::RemoteMemory::load(&mut local, SIZE - 8, &mut [0; 8]);
        lost.expect_err("there is nothing any more");
        let mut host = lock(&locals.host);
        assert!(host.next_turn.is_some_and(|at| at <= Instant::now()), "nobody wakes the server");
        assert_eq!(host.turn(0), None, "it serves on");
    }

    #[test]
    fn values_of_calls_that_come_together_are_written_before_the_first_is_answered() {
        let Some((_dir, server)) = on_a_disk("127.9.42.2") else { return };
        let locals = server.locals().expect("alone");
        let host = &mut *lock(&locals.host);
        let hello = call(What::Hello, &VERSION.to_le_bytes());
        for (session, role) in [(1, Role::Writer), (2, Role::Writer), (3, Role::Reader), (4, Role::Writer)] {
            host.serve(session, role, &hello).expect("it begins");
        }
        let inline = |key: u8, value: &[u8]| {
            let (key, value) = (vec![key], value.to_vec());
            Request::PutInline { key, value, expires: 0, expect: Expect::Any }.emit()
        };
        let one = |key: u8, value: &[u8]| Request::parse(&inline(key, value)).expect("ours");
        let batch = Request::Batch(vec![one(2, b"two"), one(3, b"three")]).emit();
        // The end of a long request may look like one of its own.
        let mut whole = inline(9, &[0; 64]);
        let tail = inline(20, b"not a request");
        whole.truncate(whole.len() - tail.len());
        whole.extend(&tail);
        let (part, rest) = whole.split_at(whole.len() - tail.len());
        assert!(Request::parse(rest).is_some() && Request::parse(&whole).is_some());
        let asked: Vec<(u64, Role, Vec<u8>)> = vec![
            (1, Role::Writer, call(What::Request, &inline(1, b"one"))),
            (2, Role::Writer, call(What::Part, part)),
            (2, Role::Writer, call(What::Request, rest)),
            (3, Role::Reader, call(What::Request, &inline(21, b"no"))),
            (4, Role::Writer, call(What::Request, &batch)),
            (5, Role::Writer, call(What::Request, &inline(22, b"no"))),
        ];
        show(host, &asked);
        assert_eq!((host.core.usage().entries, host.core.stats().written), (3, 3));
        let mut answer = |n: usize| {
            let (session, role, request) = &asked[n];
            host.serve(*session, *role, request)
        };
        assert!(matches!(reply(&answer(0).expect("an answer")), Reply::Written(_)));
        answer(1).expect("more is to come");
        assert!(matches!(reply(&answer(2).expect("an answer")), Reply::Written(_)));
        assert_eq!(reply(&answer(3).expect("an answer")), Reply::Refused(Refusal::ReadOnly));
        let Reply::Batch(replies) = reply(&answer(4).expect("an answer")) else { panic!("it asked for two") };
        assert!(matches!(replies[..], [Reply::Written(_), Reply::Written(_)]), "{replies:?}");
        answer(5).expect_err("it has not begun");
        assert_eq!((host.core.usage().entries, host.core.stats().written), (4, 4), "each once");
        let value = |host: &mut Host, key: u8| {
            let got =
                host.serve(1, Role::Writer, &call(What::Request, &Request::Get { key: vec![key] }.emit()));
            match reply(&got.expect("an answer")) {
                Reply::Value { value, .. } => Some(value),
                _ => None,
            }
        };
        assert_eq!(value(host, 1).as_deref(), Some(&b"one"[..]));
        assert_eq!(value(host, 2).as_deref(), Some(&b"two"[..]));
        assert_eq!(value(host, 3).as_deref(), Some(&b"three"[..]));
        assert_eq!(value(host, 9).map(|value| value.len()), Some(64));
        assert_eq!(value(host, 20), None, "it was no request");
        // What nobody was told of belongs to nobody: the same tag comes again, for something else.
        host.prepare(&[
            Called { session: 1, role: Role::Writer, request: &asked[0].2 },
            Called { session: 4, role: Role::Writer, request: &asked[4].2 },
        ]);
        host.turn(2).expect("the medium works");
        host.serve(1, Role::Writer, &call(What::Request, &inline(1, b"another"))).expect("an answer");
        assert_eq!(value(host, 1).as_deref(), Some(&b"another"[..]));
    }

    #[test]
    fn new_keys_of_calls_that_come_together_have_entries_before_the_first_is_answered() {
        let Some((_dir, server)) = on_a_disk("127.9.42.1") else { return };
        let locals = server.locals().expect("alone");
        let host = &mut *lock(&locals.host);
        let hello = call(What::Hello, &VERSION.to_le_bytes());
        for (session, role) in [(1, Role::Writer), (2, Role::Writer), (3, Role::Reader)] {
            host.serve(session, role, &hello).expect("it begins");
        }
        host.serve(2, Role::Writer, &call(What::Part, &[1])).expect("more is to come");
        let batch = Request::Batch(vec![put(10), put(11), Request::Get { key: vec![12] }]);
        let asked: Vec<(u64, Role, Vec<u8>)> = [
            (1, Role::Writer, put(1).emit()),
            (1, Role::Writer, put(2).emit()),
            (1, Role::Writer, batch.emit()),
            // None of these is one that may be carried out as it is.
            (2, Role::Writer, put(20).emit()),
            (3, Role::Reader, put(21).emit()),
            (4, Role::Writer, put(22).emit()),
            (1, Role::Writer, vec![0xFF; 9]),
        ]
        .map(|(session, role, body)| (session, role, call(What::Request, &body)))
        .into();
        show(host, &asked);
        assert_eq!(host.core.usage().entries, 4);
        for (session, role, request) in &asked[..2] {
            let answer = host.serve(*session, *role, request).expect("an answer");
            assert!(matches!(reply(&answer), Reply::Reserved(_)));
        }
        assert_eq!((host.core.usage().entries, host.core.stats().reserved), (4, 2));
        host.turn(2).expect("the medium works");
        assert_eq!(host.core.usage().entries, 2, "what nobody came for is given back after the turn");
    }
}
