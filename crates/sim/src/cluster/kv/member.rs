//! A member: its log, its image and its place among the others, and the code that it runs while it is the primary.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use remanence_coord::log::format::DATA_AT;
use remanence_coord::log::format::superblock::Uuid;
use remanence_coord::log::proto::{Request, emit_reply};
use remanence_coord::log::{Epoch, Geometry, Make, Mode, Store};
use remanence_coord::takeover::{Action, Input as Happened, Role};
use remanence_coord::watch::beat;
use remanence_kv::format::superblock::{COPIES, FORMAT as STORE_FORMAT};
use remanence_kv::format::{RegionKind, RegionWord, Superblock};
use remanence_kv::overlay::Overlay;
use remanence_kv::replica::guard::PROMISE_LEN;
use remanence_kv::replica::keeper::{LEDGER_LEN, SIGNATURE, emit_told, parse_order};
use remanence_kv::replica::{ImageReply, Keeper, Order};
use remanence_kv::{Options, Server};
use remanence_pmem::crash_image::Failure;
use remanence_pmem::{Medium as _, PersistenceDomain};

use super::body::{Body, Came, Command, FromClient, Link, Parts, Shared};
use super::connection::World;
use super::judge::{self, Disruption};
use super::lead::{self, Attempt, STORE};
use super::message::{ASK, BEAT, HELLO, LEAD, LOG, ORDER, REQUEST, Said, message};
use super::oracle::Oracle;
use crate::cluster::core::{ConnectionId, Core, Host, blank_disk};
use crate::cluster::disk::{Disk, Power};
use crate::cluster::log::server::{moment, said};
use crate::cluster::task::{Task, Turn};
use crate::cluster::{Input, Moment};
use crate::rng::Rng;

/// A member's media: its log, its image, the ledger of that; and the memory of its process that others reach.
pub(super) const LOG_DISK: usize = 0;
pub(super) const IMAGE: usize = 1;
pub(super) const LEDGER: usize = 2;
/// What a primary works on.
pub(super) const MEMORY: usize = 3;
/// Whom the log is promised to, for clients.
pub(super) const PROMISE: usize = 4;

/// Bytes of a segment of a log.
const SEGMENT: u64 = 4096;

/// How a member talks to another one.
#[derive(Clone, Copy, Debug)]
enum Talk {
    /// It connects at that time.
    Down(Duration),
    Connecting(ConnectionId),
    /// It says something at that time, or when there is news.
    Up(ConnectionId, Duration),
    /// It waits for the answer.
    Asked(ConnectionId),
}

impl Talk {
    const fn connection(&self) -> Option<ConnectionId> {
        match self {
            Self::Down(_) => None,
            Self::Connecting(connection) | Self::Up(connection, _) | Self::Asked(connection) => {
                Some(*connection)
            }
        }
    }
}

pub(super) struct Member {
    body: Shared,
    rng: Rng,
    attempts: u32,
    talks: Vec<Talk>,
    /// The connections of the code that leads, by its own numbers.
    links: BTreeMap<u64, ConnectionId>,
    numbers: BTreeMap<ConnectionId, u64>,
    /// Clients that are connected to it as a primary.
    clients: BTreeSet<ConnectionId>,
    leading: Option<Task<Result<(), String>>>,
    role: Role,
    /// Others are to be told what it is at once.
    has_news: bool,
    /// What has come while its disks do not answer, and is done when they do.
    held: VecDeque<Input>,
    /// Its log's medium has failed: it ends at that time.
    ends: Option<Duration>,
    /// It is no member any more.
    is_over: bool,
}

/// A member's disks, with an empty log.
pub(super) fn make(core: &mut Core<Oracle>) -> Vec<Disk> {
    core.oracle.made += 1;
    let (plan, made) = (&core.oracle.plan, core.oracle.made);
    let geometry = Geometry::new(DATA_AT + plan.segments * SEGMENT, SEGMENT).expect("a fair geometry");
    let mut name = [0; 16];
    name[..8].copy_from_slice(&made.to_le_bytes());
    let make = Make { mode: Mode::Singleton, geometry, uuid: Uuid(name), salt: made ^ core.oracle.seed << 8 };
    let log = blank_disk(geometry.size, plan.domain);
    Store::create(log.clone(), &make).expect("a new disk is healthy");
    vec![
        log,
        blank_disk(STORE.size, plan.domain),
        blank_disk(LEDGER_LEN, plan.domain),
        blank_disk(STORE.size, PersistenceDomain::Process),
        blank_disk(PROMISE_LEN as u64, PersistenceDomain::Process),
    ]
}

/// The image and its ledger, new or as they were left.
fn made_or_left(image: Disk, ledger: Disk, log: &mut Store<Disk>) -> Result<Keeper<Disk>, String> {
    let is_new = SIGNATURE.is_blank(&SIGNATURE.read(&ledger))
        && STORE_FORMAT.signature.is_blank(&STORE_FORMAT.signature.read(&image));
    let keeper = if is_new { Keeper::create(image, ledger) } else { Keeper::open(image, ledger, log) };
    keeper.map_err(|error| error.to_string())
}

/// Whether an image can be read as a store, and each value in it.
fn is_sound(image: &Disk) -> bool {
    if !Superblock::read(image).is_ok_and(|found| found.whole == [true; 2]) {
        return false;
    }
    let view = Overlay::new(image.clone());
    let Ok((mut store, recovered)) = Server::open(&view, Options::DEFAULT) else { return false };
    let (mut cursor, mut damaged) = (Some(0), recovered.mended + recovered.lost);
    while let Some(from) = cursor {
        let Ok(scrubbed) = store.scrub(from, 64) else { return false };
        damaged += scrubbed.repaired + scrubbed.lost;
        cursor = scrubbed.next;
    }
    damaged == 0
}

/// Has something rot in the image of a member without power: some bytes of a value or of what lies beside it, or both copies of the
/// superblock. Where it did.
pub(super) fn rot(image: &Disk, salt: u64) -> Option<Vec<u64>> {
    let geometry = Superblock::read(image).ok()?.superblock.geometry;
    let mut rng = Rng::new(salt, 22);
    let places: Vec<u64> = if rng.one_in(3) {
        let zeros = rng.one_in(2);
        COPIES.iter().flat_map(|at| if zeros { *at..*at + 80 } else { *at + 16..*at + 24 }).collect()
    } else {
        let logs: Vec<u32> = (0..geometry.regions())
            .filter(|region| {
                let word = image.load_u64(geometry.directory(*region));
                RegionWord::check(u64::from_le(word)).is_some_and(|(word, _)| word.kind == RegionKind::Log)
            })
            .collect();
        if logs.is_empty() {
            return None;
        }
        let begins = |rng: &mut Rng| geometry.region(rng.pick(&logs)) + rng.below(geometry.region_len - 16);
        (0..24).map(|_| begins(&mut rng)).flat_map(|at| at..at + 16).collect()
    };
    for at in &places {
        let mut byte = [0];
        image.read(*at, &mut byte);
        image.write(*at, &[if places.len() == 160 { 0 } else { byte[0] ^ 0x5A }]);
        image.persist(*at..*at + 1).ok()?;
    }
    Some(places)
}

fn takes_part(body: &Body) -> bool {
    match body.takeover.role() {
        Role::Primary => body.serves && body.lost.is_empty() && body.joining == 0,
        Role::Follower => true,
        Role::Waiting | Role::TakingOver => false,
    }
}

impl Member {
    pub(super) fn boot(host: &mut Host<'_, Oracle>) -> Result<Self, String> {
        let (who, life) = (host.node(), host.life());
        host.oracle().serving[who] = None;
        let mut store = Store::open(host.disk(LOG_DISK)).map_err(|e| e.to_string())?;
        if let Some(damage) = store.damage() {
            return Err(format!("a crash is taken for damage: {damage}"));
        }
        let keeper = made_or_left(host.disk(IMAGE), host.disk(LEDGER), &mut store)?;
        if let Some(damage) = keeper.damage().filter(|_| !host.known().rotten.contains(&who)) {
            return Err(format!("a crash is taken for damage: {damage}"));
        }
        let promise = host.replace_disk(PROMISE, &blank_disk(PROMISE_LEN as u64, PersistenceDomain::Process));
        let plan = &host.known().plan;
        let (members, notice) = (usize::from(plan.servers), Duration::from_nanos(plan.notice));
        let names = plan.names().into_iter().take(members).collect();
        let (acks, portion) = (usize::from(plan.acks), plan.portion);
        let mut rng = Rng::new(host.known().seed, (2000 + who as u64) << 32 ^ u64::from(life));
        let now = host.now();
        let drawn = rng.u64() | 1;
        let body = Body::new(Parts {
            who,
            names,
            notice,
            acks,
            life: drawn,
            now,
            store,
            keeper: keeper.portion(portion),
            promise,
        });
        Ok(Self {
            body: Shared::new(body),
            rng,
            attempts: life << 16,
            talks: vec![Talk::Down(now); members],
            links: BTreeMap::new(),
            numbers: BTreeMap::new(),
            clients: BTreeSet::new(),
            leading: None,
            role: Role::Waiting,
            has_news: false,
            held: VecDeque::new(),
            ends: None,
            is_over: false,
        })
    }

    pub(super) fn deadline(&self) -> Option<Duration> {
        if self.is_over {
            return None;
        }
        let body = self.body.lock();
        let others = (0..self.talks.len()).filter(|at| *at != body.who);
        let talks = others.filter_map(|at| match self.talks[at] {
            Talk::Down(at) | Talk::Up(_, at) => Some(at),
            Talk::Connecting(_) | Talk::Asked(_) => None,
        });
        let code = self.leading.as_ref().filter(|_| body.stalled.is_zero()).map(|_| body.port.wakes);
        body.takeover.deadline().into_iter().chain(talks).chain(code).chain(self.ends).min()
    }

    pub(super) fn on(&mut self, input: Input, host: &mut Host<'_, Oracle>) {
        if self.is_over {
            return;
        }
        let hangs = host.hangs();
        {
            let mut body = self.body.lock();
            (body.now, body.stalled) = (host.now(), hangs.unwrap_or_default());
        }
        if hangs.is_some() {
            self.talk_only(input, host);
        } else {
            for held in std::mem::take(&mut self.held) {
                self.take(held, host);
            }
            self.take(input, host);
            self.go_on(host);
        }
        if host.disk(LOG_DISK).has_failed() && self.ends.is_none() {
            host.tell(format_args!("is about to end: its log's medium has failed"));
            // It says so, and a process takes its time to end.
            let (who, life) = (host.node() as u64, u64::from(host.life()));
            let mut rng = Rng::new(host.known().seed, (3000 + who) << 32 ^ life);
            let takes = rng.pick(&[0, 0, 20, 1000]);
            self.ends = Some(host.now() + Duration::from_millis(takes));
            self.has_news = true;
            self.decide(host);
            self.talk(host);
        }
        // A process that ends needs no disk for that.
        if self.ends.is_some_and(|ends| ends <= host.now()) {
            host.tell(format_args!("ends"));
            self.end(host);
        }
    }

    /// Its disks do not answer: whatever may need them waits, and others are told for how long.
    fn talk_only(&mut self, input: Input, host: &mut Host<'_, Oracle>) {
        let is_of_talk = |connection| self.talks.iter().any(|talk| talk.connection() == Some(connection));
        let goes_on = match &input {
            Input::Timer => true,
            Input::Message { connection, bytes } => is_of_talk(*connection) || matches!(bytes[0], BEAT | ASK),
            Input::Connected { connection } | Input::Lost { connection, .. } => is_of_talk(*connection),
            Input::Read { .. } | Input::Written { .. } | Input::Durable { .. } | Input::Datagram { .. } => {
                false
            }
        };
        if goes_on {
            self.take(input, host);
        } else {
            self.held.push_back(input);
        }
        self.decide(host);
        self.talk(host);
    }

    /// It is no member any more: nothing of it goes on.
    fn end(&mut self, host: &mut Host<'_, Oracle>) {
        self.is_over = true;
        self.leading = None;
        let body = self.body.lock();
        let talks = self.talks.iter().filter_map(Talk::connection);
        let sessions = body.sessions.iter().map(|session| *session as ConnectionId);
        let all: BTreeSet<ConnectionId> = talks
            .chain(sessions)
            .chain(self.clients.iter().copied())
            .chain(self.links.values().copied())
            .collect();
        drop(body);
        all.into_iter().for_each(|connection| host.cut(connection));
    }

    fn take(&mut self, input: Input, host: &mut Host<'_, Oracle>) {
        let Some(connection) = input.connection() else { return };
        if let Some(at) = self.talks.iter().position(|talk| talk.connection() == Some(connection)) {
            return self.hears(at, connection, input);
        }
        if let Some(number) = self.numbers.get(&connection).copied() {
            return self.brings(number, connection, input);
        }
        match input {
            Input::Message { bytes, .. } => self.is_asked(connection, &bytes, host),
            Input::Lost { .. } => {
                self.body.lock().sessions.remove(&(connection as u64));
                self.lose_client(connection);
            }
            _ => {}
        }
    }

    /// Something comes of the talk with another member.
    fn hears(&mut self, at: usize, connection: ConnectionId, input: Input) {
        let mut body = self.body.lock();
        let now = body.now;
        match input {
            Input::Connected { .. } => self.talks[at] = Talk::Up(connection, now),
            Input::Message { bytes, .. } => {
                body.heard(at, Said::parse(&bytes[1..]));
                self.talks[at] = Talk::Up(connection, now + beat(body.notice));
            }
            Input::Lost { .. } => {
                body.missed(at);
                self.talks[at] = Talk::Down(now + beat(body.notice));
            }
            _ => {}
        }
    }

    /// Something comes for the code that leads.
    fn brings(&mut self, number: u64, connection: ConnectionId, input: Input) {
        let mut body = self.body.lock();
        let port = &mut body.port;
        let Some((link, came)) = port.links.get_mut(&number) else { return };
        (port.is_stirred, port.has_come) = (true, true);
        match input {
            Input::Connected { .. } => *link = Link::Up,
            Input::Lost { why, .. } => {
                *link = Link::Lost(why.into());
                self.numbers.remove(&connection);
                self.links.remove(&number);
            }
            Input::Message { bytes, .. } => came.push_back(Came::Message(bytes)),
            Input::Read { bytes, .. } => came.push_back(Came::Read(bytes)),
            Input::Durable { .. } => came.push_back(Came::Durable),
            Input::Written { .. } | Input::Datagram { .. } | Input::Timer => {}
        }
    }

    fn lose_client(&mut self, connection: ConnectionId) {
        if self.clients.remove(&connection) && self.leading.is_some() {
            let mut body = self.body.lock();
            body.port.clients.push_back((connection, FromClient::IsGone));
            body.port.is_stirred = true;
        }
    }

    /// Another node asks something of this one.
    fn is_asked(&mut self, connection: ConnectionId, bytes: &[u8], host: &mut Host<'_, Oracle>) {
        let mut body = self.body.lock();
        let rest = &bytes[1..];
        match bytes[0] {
            BEAT => {
                let (who, said) = super::message::number(rest);
                body.heard(who as usize, Said::parse(said));
                host.send(connection, message(BEAT, &[&body.says().emit()]));
            }
            ASK => host.send(connection, message(ASK, &[&body.says().emit()])),
            LOG => {
                body.sessions.insert(connection as u64);
                let request = Request::parse(rest);
                if let Ok(request) = &request {
                    host.moment(moment(request), Some(connection));
                }
                let reply = request.and_then(|request| body.answer(connection as u64, &request));
                if let Some(damage) = body.store.damage() {
                    host.core().wrong(format!("a crash is taken for damage: {damage}"));
                }
                body.sees();
                host.tell(format_args!("is asked {:?}: {}", Request::parse(rest).ok(), said(&reply)));
                host.send(connection, message(LOG, &[&emit_reply(&reply)]));
            }
            ORDER => {
                let (epoch, order) = parse_order(rest).expect("what was written is read");
                if order == Order::Begin && !host.oracle().looked_at.remove(&epoch.writer()) {
                    host.core().wrong("an image is sent that nobody has looked at".into());
                }
                let told = body.obey_other(epoch, &order);
                body.sees();
                match &told {
                    ImageReply::Bytes(_) | ImageReply::Ok => {}
                    told => host.tell(format_args!("is ordered {order:?} in epoch {epoch}: {told:?}")),
                }
                host.send(connection, message(ORDER, &[&emit_told(&told)]));
            }
            HELLO if body.serves => {
                self.clients.insert(connection);
                if host.known().plan.rooms {
                    host.rooms(connection);
                }
                body.port.clients.push_back((connection, FromClient::Says(bytes.to_vec())));
                body.port.is_stirred = true;
            }
            REQUEST | LEAD if self.clients.contains(&connection) => {
                body.port.clients.push_back((connection, FromClient::Says(bytes.to_vec())));
                body.port.is_stirred = true;
            }
            _ => host.cut(connection),
        }
    }

    /// Does what is due, until there is nothing more to do now.
    fn go_on(&mut self, host: &mut Host<'_, Oracle>) {
        loop {
            let mut any = self.decide(host);
            any |= self.run_code(host);
            any |= self.carry_out(host);
            if !any {
                break;
            }
        }
        let cuts = std::mem::take(&mut self.body.lock().cuts);
        for session in cuts {
            host.tell(format_args!("cuts connection {session}"));
            host.cut(session as ConnectionId);
            self.body.lock().sessions.remove(&session);
        }
        self.talk(host);
    }

    /// Does what the takeover's machine says.
    fn decide(&mut self, host: &mut Host<'_, Oracle>) -> bool {
        let mut body = self.body.lock();
        body.sees();
        let now = body.now;
        if body.takeover.deadline().is_some_and(|deadline| deadline <= now) {
            body.takeover.timeout(now);
        }
        let (mut any, mut is_to_lead) = (false, false);
        while let Some(action) = body.takeover.poll() {
            any = true;
            match action {
                Action::Become(role) => {
                    let before = std::mem::replace(&mut self.role, role);
                    if (before, role) == (Role::Follower, Role::Waiting) {
                        host.oracle().work.doubted += 1;
                        host.moment(Moment::Doubt, None);
                    }
                    host.tell(format_args!("is {}", role.name()));
                    self.has_news = true;
                }
                Action::Lead => is_to_lead = true,
                Action::Explain(_) => {}
            }
        }
        if let Err(why) = judge::knows(&mut body) {
            host.core().wrong(why);
        }
        drop(body);
        if is_to_lead {
            self.lead(host);
        }
        any
    }

    fn lead(&mut self, host: &mut Host<'_, Oracle>) {
        host.oracle().work.tried += 1;
        if host.disk(LOG_DISK).has_failed() {
            host.core().wrong("tries to lead, and its log's medium has failed".into());
        }
        if self.body.lock().keeper.failure().is_some() {
            host.core().wrong("tries to lead, and its ledger could not be written".into());
        }
        let who = host.node();
        host.oracle().disruptions.push((who, Disruption::Tries));
        host.moment(Moment::Try, None);
        self.attempts += 1;
        let plan = &host.known().plan;
        let mut group = [0; 16];
        group[..8].copy_from_slice(&self.rng.u64().to_le_bytes());
        group[8] = 1;
        let attempt = Attempt {
            writer: (host.node() as u32 + 1) << 24 ^ self.attempts,
            group: Uuid(group),
            salt: self.rng.u64(),
            depth: plan.depth,
            lease: plan.lease,
            check: Duration::from_millis(plan.check),
            scrub: Duration::from_millis(plan.scrub),
            rooms: plan.rooms,
            rots: !host.known().rotted.is_empty(),
        };
        let shared = self.body.clone();
        {
            let port = &mut self.body.lock().port;
            // Numbers of connections are not used again.
            let next = port.next;
            *port = super::body::Port { next, is_stirred: true, ..Default::default() };
        }
        assert!(self.leading.is_none(), "it leads already");
        self.leading = Some(Task::new(move |baton| {
            let world = World::new(shared, baton);
            lead::lead(&world, attempt)
        }));
    }

    /// Lets the code that leads go on, if something has come or it is time. Whether it did.
    fn run_code(&mut self, host: &mut Host<'_, Oracle>) -> bool {
        let Some(task) = &self.leading else { return false };
        let is_due = {
            let body = self.body.lock();
            body.port.is_stirred || body.port.wakes <= body.now
        };
        if !is_due {
            return false;
        }
        match task.resume() {
            Turn::Waits => {}
            Turn::Ends(led) => {
                self.carry_out(host);
                self.leads_no_more(&led.err().unwrap_or_default(), host);
            }
            Turn::Panics(why) => {
                host.core().wrong(format!("panic in a primary: {why}"));
                self.carry_out(host);
                self.leads_no_more(&why, host);
            }
        }
        // What it began is on its way before it goes on, also if it would not wait.
        self.carry_out(host);
        let (who, now) = (host.node(), host.core().now());
        let (serves, epoch) = {
            let body = self.body.lock();
            (body.serves, body.epoch)
        };
        if serves && host.known().serving[who].is_none_or(|(of, _)| of != epoch) {
            host.oracle().serving[who] = Some((epoch, now));
            host.moment(Moment::Serve, None);
        }
        self.leading.is_none()
    }

    fn leads_no_more(&mut self, why: &str, host: &mut Host<'_, Oracle>) {
        host.tell(format_args!("leads no more: {why}"));
        self.leading = None;
        let mut body = self.body.lock();
        // Whom its log is promised to by now is no news.
        body.sees();
        host.oracle().work.stood_down += u64::from(body.serves);
        host.oracle().serving[body.who] = None;
        (body.serves, body.is_shown, body.epoch, body.joining) = (false, false, Epoch::NONE, 0);
        (body.lost, body.lives) = (Vec::new(), Vec::new());
        body.happens(Happened::Ended);
        drop(body);
        let links = std::mem::take(&mut self.links);
        self.numbers.clear();
        links
            .into_values()
            .chain(std::mem::take(&mut self.clients))
            .for_each(|connection| host.cut(connection));
    }

    /// Carries out what the code that leads has begun.
    fn carry_out(&mut self, host: &mut Host<'_, Oracle>) -> bool {
        let mut any = false;
        loop {
            let Some(command) = self.body.lock().port.commands.pop_front() else { return any };
            any = true;
            let connection = |number: &u64| self.links.get(number).copied();
            match command {
                Command::Connect { number, member } => {
                    let connection = host.connect(member);
                    self.links.insert(number, connection);
                    self.numbers.insert(connection, number);
                }
                Command::Send { number, bytes } => {
                    connection(&number).into_iter().for_each(|to| host.send(to, bytes.clone()));
                }
                Command::Read { number, offset, len } => {
                    connection(&number).into_iter().for_each(|to| host.read(to, LOG_DISK, offset, len));
                }
                Command::Update { number, updates } => {
                    connection(&number).into_iter().for_each(|to| host.update(to, LOG_DISK, updates.clone()));
                }
                Command::Cut { number } => {
                    if let Some(connection) = self.links.remove(&number) {
                        self.numbers.remove(&connection);
                        host.cut(connection);
                    }
                }
                Command::Answer { client, bytes } => host.send(client, bytes),
                Command::CutClient(client) => {
                    host.cut(client);
                    self.lose_client(client);
                }
                Command::GiveRoom { client, at, len } => {
                    host.rooms(client).insert(at, len);
                }
                Command::TakeRoom(at) => self.clients.iter().for_each(|client| {
                    host.rooms(*client).remove(&at);
                }),
                Command::Show(memory) => {
                    let memory = host.replace_disk(MEMORY, &memory);
                    self.body.lock().port.memory = Some(memory);
                }
                Command::Opened { epoch, start, again } => {
                    host.tell(format_args!("has taken the log over: epoch {epoch}, from record {start}"));
                    let who = host.node();
                    let before = host.oracle().serving[who];
                    if let Some((before, _)) = before.filter(|_| again) {
                        host.oracle().disruptions.push((who, Disruption::Reopens(before)));
                    }
                    let checked = host.oracle().opens(epoch, start, again);
                    checked.unwrap_or_else(|what| host.core().wrong(what));
                }
                Command::Acknowledged { epoch, below } => {
                    let checked = host.oracle().acknowledges(epoch, below);
                    checked.unwrap_or_else(|what| host.core().wrong(what));
                }
                Command::LookedAt(epoch) => {
                    host.oracle().looked_at.insert(epoch.writer());
                }
                Command::Count(count, by) => count(&mut host.oracle().work, by),
            }
        }
    }

    /// Tells the others what it is, when it is time or has changed.
    fn talk(&mut self, host: &mut Host<'_, Oracle>) {
        let body = self.body.lock();
        let (who, now) = (body.who, body.now);
        let said = message(BEAT, &[&(who as u64).to_le_bytes(), &body.says().emit()]);
        drop(body);
        let has_news = std::mem::take(&mut self.has_news);
        for (at, talk) in self.talks.iter_mut().enumerate() {
            match *talk {
                _ if at == who => {}
                Talk::Down(time) if time <= now => *talk = Talk::Connecting(host.connect(at)),
                Talk::Up(connection, time) if time <= now || has_news => {
                    host.send(connection, said.clone());
                    *talk = Talk::Asked(connection);
                }
                Talk::Down(_) | Talk::Connecting(_) | Talk::Up(..) | Talk::Asked(_) => {}
            }
        }
    }

    /// Whether it has all records below a number, and an image with all that the logs have no more. What its store has not looked at yet is
    /// looked at in a copy of its log.
    pub(super) fn has_all(&self, below: u64, head: u64) -> bool {
        let body = self.body.lock();
        let (adopted, ledger) = (body.store.state().adopted, body.keeper.ledger());
        if adopted == Epoch::NONE || !ledger.complete || ledger.applied < head {
            return false;
        }
        let copy = body.store.medium().crash(Failure::ProcessCrash, 0, &Power::default());
        Store::open(copy).is_ok_and(|log| log.damage().is_none() && log.tail().sequence >= below)
    }

    /// The first record that its log has.
    pub(super) fn head(&self) -> u64 {
        self.body.lock().store.state().head.sequence
    }

    /// What it is, in words; none if it serves without anybody missing, or follows who does, and its image has all below that number.
    pub(super) fn unsettled(&self, below: u64) -> Option<String> {
        let body = self.body.lock();
        let (role, applied) = (body.takeover.role(), body.keeper.ledger().applied);
        let settled = takes_part(&body) && !self.is_over && body.keeper.ledger().complete && applied == below;
        let what = || {
            format!(
                "{} is {}{}, its image has the records below {applied} of {below}, it does without {:?}, {} join",
                body.names[body.who],
                role.name(),
                if self.is_over { " and has ended" } else { "" },
                body.lost,
                body.joining
            )
        };
        (!settled).then(what)
    }

    /// Whether it serves without anybody missing, or follows who does.
    pub(super) fn takes_part(&self) -> bool {
        !self.is_over && takes_part(&self.body.lock())
    }

    /// It was never a member of a store.
    pub(super) fn is_new(&self) -> bool {
        self.body.lock().is_new()
    }

    pub(super) fn leads(&self) -> bool {
        self.body.lock().serves
    }

    /// Whether its image can be read as a store, and each value in it.
    pub(super) fn is_sound(&self) -> bool {
        is_sound(self.body.lock().keeper.image())
    }

    /// The bytes of its image.
    pub(super) fn image(&self) -> Vec<u8> {
        let mut bytes = vec![0; STORE.size as usize];
        self.body.lock().keeper.image().read(0, &mut bytes);
        bytes
    }
}
