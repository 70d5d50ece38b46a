//! What a member does to become the primary, and as the primary: the code of `kv`'s live members, on the simulated ones.

use std::collections::BTreeMap;
use std::time::Duration;

use remanence_coord::log::format::superblock::Uuid;
use remanence_coord::log::group::ConnectionLost;
use remanence_coord::takeover::Input;
use remanence_kv::format::superblock::FORMAT as STORE_FORMAT;
use remanence_kv::format::{Superblock, SuperblockError};
use remanence_kv::proto::Refusal;
use remanence_kv::replica::check::{Check, Images, Scrub, put_right};
use remanence_kv::replica::driver::Connections;
use remanence_kv::replica::primary::Options as GroupOptions;
use remanence_kv::replica::{Bring, Bringing, Driver, LeadError, Mirror, Round, Sizes, upkeep};
use remanence_kv::server::{ClientId, DamageLocation, Event, Finding, Server, Turns, format};
use remanence_kv::{Geometry, Options, Reply, Request};
use remanence_pmem::{Medium as _, PersistenceDomain};

use super::body::{Command, FromClient};
use super::connection::{Connecting, Connection, World};
use super::message::{HELLO, LEAD, NOTICE, REQUEST, message};
use crate::cluster::core::{ConnectionId, blank_disk};
use crate::cluster::disk::Disk;

/// What all stores are made like.
pub(super) const STORE: Geometry =
    Geometry { size: 96 << 10, region_len: 4096, segment_len: 1024, heads: 2, grown_from: 0 };
/// Entries of its table.
const BUCKETS: u64 = 24;
/// Bytes that are shipped before the images are asked to follow and the log is trimmed.
const TRIM_AFTER: u64 = 9000;
/// Small things that are done in one step.
const BUDGET: usize = 64;
/// The shortest time that it rests.
const AT_ONCE: Duration = Duration::from_micros(100);
/// How often whoever connects to a member looks whether that is there still.
const CONNECTING: Duration = Duration::from_millis(20);

type Ships = Mirror<Disk, Driver<Connection>>;

/// What is drawn for one attempt to lead.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempt {
    pub(super) writer: u32,
    pub(super) group: Uuid,
    pub(super) salt: u64,
    pub(super) depth: usize,
    pub(super) lease: u64,
    pub(super) check: Duration,
    /// How long it rests between two scrubs of all that it serves and that the images have; zero: it does not scrub.
    pub(super) scrub: Duration,
    /// Clients may write only what was handed out to them.
    pub(super) rooms: bool,
    /// Images rot in this run.
    pub(super) rots: bool,
}

/// Takes over, if it can, and serves until somebody else takes over.
///
/// # Errors
/// It could not, or does not any more. A sentence.
pub(super) fn lead(world: &World, attempt: Attempt) -> Result<(), String> {
    let (own, notice, acks, is_new) = {
        let body = world.body.lock();
        (body.names[body.who].clone(), body.notice, body.acks, body.is_new())
    };
    let options = GroupOptions::new(attempt.writer, attempt.group)
        .acks(is_new.then_some(acks as u16))
        .depth(attempt.depth)
        .grace(notice);
    let (mut round, members) = {
        let body = world.body.lock();
        (Round::new(&body.takeover, notice), (0..body.names.len()).collect::<Vec<_>>())
    };
    let mut under_way = UnderWay::default();
    under_way.begin(world, &members);
    loop {
        let now = World::now();
        under_way.over().into_iter().for_each(|(at, _, made)| round.take(now, at, made));
        let left = round.end().map_or(Duration::MAX, |end| end.saturating_sub(now));
        if left.is_zero() {
            break;
        }
        world.wait(left.min(under_way.rests()));
    }
    let connections = round.connections(&world.body.lock().names);
    World::is_awake();
    let record_max = world.body.lock().store.superblock().geometry.payload_max() as usize;
    let sizes = Sizes { image_len: STORE.size, record_max, trim_after: TRIM_AFTER };
    let primary = Driver::lead(connections, &own, &options, sizes).map_err(|error| error.to_string())?;
    let epoch = primary.epoch();
    world.does(Command::Opened { epoch, start: primary.acknowledged(), again: false });
    let working = {
        let mut body = world.body.lock();
        if body.store.state().promised != epoch {
            return Err(LeadError::Deposed.to_string());
        }
        body.keeper.check()?;
        body.is_shown = true;
        let mut bytes = vec![0; STORE.size as usize];
        body.keeper.image().read(0, &mut bytes);
        let memory = blank_disk(STORE.size, PersistenceDomain::Process);
        memory.write(0, &bytes);
        memory
    };
    world.does(Command::Show(working));
    let working = loop {
        world.wait(Duration::ZERO);
        let memory = world.body.lock().port.memory.clone();
        if let Some(memory) = memory {
            break memory;
        }
    };
    let mut primary = primary;
    let store = Superblock::read(&working).ok().map(|found| found.superblock);
    let (looks, image) = (world.clone(), world.body.lock().keeper.image().clone());
    primary.set_put_right(Box::new(move |fetch| {
        // A medium that fails is found by the next order that changes the image.
        let _ = put_right(&image, store.as_ref(), fetch);
        looks.does(Command::Count(|work, by| work.put_right += by, 1));
        looks.does(Command::LookedAt(epoch));
    }));
    let ships: Ships = Mirror::new(working.clone(), primary);
    if matches!(Superblock::read(&working), Err(SuperblockError::Missing | SuperblockError::Unfinished)) {
        STORE_FORMAT.signature.begin(&ships).map_err(|error| error.to_string())?;
        format(&ships, &STORE, BUCKETS, attempt.salt, attempt.group.0).map_err(|error| error.to_string())?;
    }
    let options = Options { lease: attempt.lease, ..Options::DEFAULT };
    let (mut core, recovered) = Server::open(ships.clone(), options).map_err(|error| error.to_string())?;
    // No crash may look as if something had rotted, but for a copy of the superblock that was not made yet. Values are verified when they
    // are read.
    let of_making = |finding: &Finding| matches!(finding.at, DamageLocation::Superblock(_));
    assert!(
        attempt.rots || core.findings().iter().all(of_making),
        "a crash is taken for damage: {recovered:?}, {:?}",
        core.findings()
    );
    core.set_replicated();
    let asks = ships.clone();
    core.set_copies(Box::new(move |at, len| {
        asks.with_ship(|primary| {
            // A failure ends the primary elsewhere.
            let _ = primary.poll();
            Some(primary.copies(at, len)?.into_iter().map(|copy| copy.bytes).collect())
        })
    }));
    if attempt.rooms {
        let takes = world.clone();
        core.set_revoke(Box::new(move |rooms| {
            rooms.iter().for_each(|at| takes.does(Command::TakeRoom(*at)));
        }));
    }
    {
        let mut body = world.body.lock();
        body.know_lives();
        body.happens(Input::Leads { epoch });
        (body.epoch, body.serves) = (epoch, true);
        body.lost = lost(&ships, &body.names);
    }
    world.does(Command::Count(|work, by| work.led += by, 1));
    let now = World::now();
    let bringing = Bringing::new(now, notice, &world.body.lock().takeover);
    let mut serving = Serving {
        world,
        core,
        clients: BTreeMap::new(),
        upkeep: Upkeep {
            busy: true,
            present: (0, 0),
            images: upkeep::Upkeep::new(now),
            trimmed: 0,
            under_way,
            bringing,
            returns_at: None,
            look: attempt.check,
            looks_until: None,
            check: Check::default(),
            scrub: (attempt.scrub, now, 0, Scrub::new()),
            behind: 0,
        },
        rooms: attempt.rooms,
        ships,
        turns: Turns::new(now),
    };
    serving.serve()
}

fn lost(ships: &Ships, names: &[String]) -> Vec<usize> {
    let lost = ships.with_ship(|primary| primary.lost());
    (0..names.len()).filter(|at| lost.iter().any(|(name, _)| *name == names[*at])).collect()
}

/// A store that is served.
struct Serving<'a> {
    world: &'a World,
    core: Server<Ships>,
    ships: Ships,
    clients: BTreeMap<ConnectionId, ClientId>,
    rooms: bool,
    upkeep: Upkeep,
    turns: Turns,
}

/// Connections to members that are being made.
#[derive(Default)]
struct UnderWay(Vec<Connecting>);

impl UnderWay {
    fn begin(&mut self, world: &World, members: &[usize]) {
        self.0.extend(world.begin_connections(members));
    }

    fn is_to(&self, at: usize) -> bool {
        self.0.iter().any(|one| one.at() == at)
    }

    /// Of which it is known by now what came of them.
    fn over(&mut self) -> Vec<(usize, String, Result<Connection, ConnectionLost>)> {
        self.0.extract_if(.., Connecting::is_over).map(Connecting::made).collect()
    }

    /// How long nothing is due. That a member is silent to which it connects is no event.
    fn rests(&self) -> Duration {
        if self.0.is_empty() { Duration::MAX } else { CONNECTING }
    }
}

struct Upkeep {
    /// There is more to do at once.
    busy: bool,
    /// As it was when the members were looked at: how many there is a connection to, and how many take part.
    present: (usize, usize),
    images: upkeep::Upkeep,
    trimmed: u64,
    under_way: UnderWay,
    bringing: Bringing<Connection>,
    /// When it connects again, if nothing is heard before.
    returns_at: Option<Duration>,
    /// How long it looks at its image before it sends it at least, until when it does, and how far it has come.
    look: Duration,
    looks_until: Option<Duration>,
    check: Check,
    /// How long it rests between two scrubs, and until when; where the scrub that is under way has begun, and what it has found.
    scrub: (Duration, Duration, u64, Scrub),
    /// How many images did not follow.
    behind: usize,
}

impl Serving<'_> {
    fn serve(&mut self) -> Result<(), String> {
        loop {
            World::is_awake();
            let mut messages = 0;
            loop {
                let next = self.world.body.lock().port.clients.pop_front();
                let Some((client, what)) = next else { break };
                messages += 1;
                self.handle(client, what)?;
            }
            let now = World::now();
            if self.turns.is_due(now, messages) {
                let more = self.core.step(now.as_millis() as u64, BUDGET);
                let more = more.map_err(|refusal| self.why(&refusal.to_string()))?;
                self.turns.stepped(now, World::now(), more, self.core.is_settling());
            }
            let turned = self.turn(now);
            turned.map_err(|error| self.why(&error.to_string()))?;
            self.events()?;
            self.tell_acknowledged();
            self.world.wait(self.rest(World::now()));
        }
    }

    /// How long there is nothing to do, if nothing comes.
    fn rest(&self, now: Duration) -> Duration {
        // While it did something else, what came has ended that one's waits.
        let is_asked = {
            let port = &self.world.body.lock().port;
            port.is_asked || !port.clients.is_empty()
        };
        let upkeep =
            if self.upkeep.busy || is_asked { AT_ONCE } else { self.next(now).min(self.returns(now)) };
        let core = self.core.deadline().map(|at| Duration::from_millis(at).saturating_sub(now));
        // Time goes on only while somebody waits.
        self.turns.rest(now, core.unwrap_or(Duration::MAX)).min(upkeep).max(AT_ONCE)
    }

    /// The oracle knows what is acknowledged before a client is told of it.
    fn tell_acknowledged(&self) {
        let (epoch, below) = self.ships.with_ship(|primary| (primary.epoch(), primary.acknowledged()));
        self.world.does(Command::Acknowledged { epoch, below });
    }

    fn why(&self, why: &str) -> String {
        self.ships.failed().unwrap_or_else(|| why.to_owned())
    }

    fn handle(&mut self, client: ConnectionId, what: FromClient) -> Result<(), String> {
        let FromClient::Says(bytes) = what else {
            if let Some(id) = self.clients.remove(&client) {
                self.core.disconnected(id).map_err(|refusal| self.why(&refusal.to_string()))?;
            }
            return Ok(());
        };
        let clock = (World::now().as_millis() as u64).to_le_bytes();
        let epoch = self.ships.with_ship(|primary| primary.epoch()).0.to_le_bytes();
        let answer = match (bytes[0], self.clients.get(&client)) {
            (HELLO, None) => {
                self.clients.insert(client, self.core.connect());
                message(HELLO, &[&epoch, &clock, &Reply::View(self.core.view()).emit()])
            }
            (LEAD, Some(_)) => message(LEAD, &[&epoch]),
            (REQUEST, Some(id)) => {
                let request = Request::parse(&bytes[1..]).ok_or("a request means nothing")?;
                let is_short =
                    request.begins_a_change() && self.ships.with_ship(|primary| primary.is_short_of_room());
                let reply = if is_short {
                    Reply::Refused(Refusal::Full)
                } else {
                    self.core.handle(World::now().as_millis() as u64, *id, &request)
                };
                let has_failed = reply == Reply::Refused(Refusal::Medium);
                let bytes = message(REQUEST, &[&clock, &reply.emit()]);
                self.tell_acknowledged();
                if let Reply::Reserved(reserved) = &reply
                    && self.rooms
                {
                    for (at, len) in self.core.rooms(reserved.version) {
                        self.world.does(Command::GiveRoom { client, at, len });
                    }
                }
                self.world.does(Command::Answer { client, bytes });
                return if has_failed { Err(self.why("the medium failed")) } else { Ok(()) };
            }
            // It was cut off, and what it has sent had come by then.
            _ => return Ok(()),
        };
        self.world.does(Command::Answer { client, bytes: answer });
        Ok(())
    }

    fn events(&mut self) -> Result<(), String> {
        while let Some(event) = self.core.poll_event() {
            let of = |id: ClientId| self.clients.iter().find(|(_, other)| **other == id).map(|(at, _)| *at);
            match event {
                Event::Notice { client, view } => {
                    if let Some(client) = of(client) {
                        let bytes = message(NOTICE, &[&view.to_le_bytes()]);
                        self.world.does(Command::Answer { client, bytes });
                    }
                }
                // When it has come, its client is gone.
                Event::Fence { client } => {
                    if let Some(client) = of(client) {
                        self.world.does(Command::Count(|work, by| work.fenced += by, 1));
                        self.world.does(Command::CutClient(client));
                    }
                }
            }
        }
        Ok(())
    }

    /// How long there is nothing to do for the members that take part, if nobody says that there is.
    fn next(&self, now: Duration) -> Duration {
        let (is_followed, rests, expects) =
            self.ships.with_ship(|primary| (primary.is_followed(), primary.rests(), primary.expects()));
        let Upkeep { images, looks_until, scrub: (pause, scrubs_at, ..), .. } = &self.upkeep;
        let (has_come, gone) = {
            let body = self.world.body.lock();
            (body.port.has_come, body.next_gone())
        };
        // What has come is something to look at only if something is expected, or nothing was changed for a while: a real primary is woken by
        // nothing else.
        let quiet = has_come.then(|| if expects { now } else { images.rests_from() });
        let scrubs_at = Some(*scrubs_at).filter(|_| !pause.is_zero());
        let all = [images.deadline(is_followed), quiet, gone, *looks_until, scrubs_at];
        let due = all.into_iter().flatten().min();
        due.map_or(rests, |at| rests.min(at.saturating_sub(now)))
    }

    /// How long there is nothing to do for those that do not.
    fn returns(&self, now: Duration) -> Duration {
        let again = self.upkeep.returns_at.map_or(Duration::MAX, |at| at.saturating_sub(now));
        again.min(self.upkeep.under_way.rests())
    }

    /// Whether there is anything to look at.
    fn is_to_look(&mut self, now: Duration) -> bool {
        let (acknowledged, present) =
            self.ships.with_ship(|primary| (primary.acknowledged(), primary.present()));
        self.upkeep.images.acknowledged(now, acknowledged);
        let is_due = self.upkeep.busy || self.upkeep.present != present || self.next(now).is_zero();
        let mut body = self.world.body.lock();
        let looks = is_due || body.port.is_asked || body.changed_lives();
        if looks {
            (body.port.is_asked, body.port.has_come) = (false, false);
        }
        looks
    }

    /// What a primary does for the other members.
    fn turn(&mut self, now: Duration) -> Result<(), LeadError> {
        self.bring_back(now)?;
        if !self.is_to_look(now) {
            return Ok(());
        }
        let (is_back, promised) = {
            let mut body = self.world.body.lock();
            let is_back = body.changed_lives();
            if is_back {
                body.know_lives();
            }
            (is_back, body.store.state().promised)
        };
        let images = &mut self.upkeep.images;
        let (follow, epoch) = self.ships.with_ship(|primary| {
            images.acknowledged(now, primary.acknowledged());
            (images.follows(now, is_back, primary.is_followed()), primary.epoch())
        });
        // Whoever has this member's promise may serve by now: to open the log again would end that one.
        if promised != epoch {
            return Err(LeadError::Deposed);
        }
        self.go_on(now, follow)?;
        self.scrub(now)?;
        self.upkeep.present = self.ships.with_ship(|primary| primary.present());
        Ok(())
    }

    /// Scrubs some of what it serves and of what the images have, when it is time.
    fn scrub(&mut self, now: Duration) -> Result<(), LeadError> {
        let members = self.world.body.lock().names.len();
        let (pause, due, cursor, scrub) = &mut self.upkeep.scrub;
        if pause.is_zero() || now < *due {
            return Ok(());
        }
        match scrub.step(&mut self.core, &self.ships, members, (*cursor, 4)) {
            Ok(None) => {}
            Ok(Some((scrubbed, held))) => {
                let images = held.iter().map(|held| held.repaired).sum();
                self.world.does(Command::Count(|work, by| work.repaired += by, scrubbed.repaired));
                self.world.does(Command::Count(|work, by| work.repaired_images += by, images));
                (*cursor, *scrub) = (scrubbed.next.unwrap_or(0), Scrub::new());
                if scrubbed.next.is_none() {
                    *due = now + *pause;
                }
            }
            Err(Refusal::Medium) => return Err(LeadError::Deposed),
            Err(_) => *scrub = Scrub::new(),
        }
        Ok(())
    }

    fn go_on(&mut self, now: Duration, follow: bool) -> Result<(), LeadError> {
        // First what has come, as nothing ends the next wait that says it again: a member may need an image since now.
        let wants = self.ships.with_ship(|primary| {
            if follow {
                primary.follow()?;
            }
            primary.poll()?;
            Ok::<_, LeadError>(primary.needs_image().is_some())
        })?;
        self.upkeep.looks_until = wants.then(|| self.upkeep.looks_until.unwrap_or(now + self.upkeep.look));
        if !wants {
            self.upkeep.check = Check::default();
        } else if !self.upkeep.check.is_done() {
            let image = self.world.body.lock().keeper.image().clone();
            let images = Images { ships: &self.ships, image: &image };
            self.upkeep.check.step(&mut self.core, &images).map_err(|_| LeadError::Deposed)?;
        }
        let is_done = self.upkeep.check.is_done();
        let is_checked = is_done && self.upkeep.looks_until.take_if(|until| *until <= now).is_some();
        if is_checked {
            let epoch = self.ships.with_ship(|primary| primary.epoch());
            self.world.does(Command::LookedAt(epoch));
        }
        let (rebuilding, rebuilt, trimmed, behind) = self.ships.with_ship(|primary| {
            if is_checked {
                primary.begin_rebuild()?;
            }
            let rebuilt = primary.take_rebuilt().is_some();
            let behind = primary.behind().len();
            Ok::<_, LeadError>((primary.rebuilding().is_some(), rebuilt, primary.trimmed(), behind))
        })?;
        let upkeep = &mut self.upkeep;
        upkeep.images.behind(behind > 0);
        if upkeep.behind < behind {
            self.world.does(Command::Count(|work, by| work.behind += by, 1));
        }
        upkeep.behind = behind;
        upkeep.busy = rebuilding || wants && !is_done;
        if rebuilt {
            self.world.does(Command::Count(|work, by| work.rebuilt += by, 1));
        }
        if trimmed > upkeep.trimmed {
            let by = trimmed - upkeep.trimmed;
            upkeep.trimmed = trimmed;
            self.world.does(Command::Count(|work, by| work.trimmed += by, by));
        }
        let (epoch, joining) = self.ships.with_ship(|primary| (primary.epoch(), primary.joining().len()));
        let mut body = self.world.body.lock();
        let lost = lost(&self.ships, &body.names);
        if body.epoch != epoch || body.lost != lost {
            // Whoever is lost is connected to again.
            self.upkeep.returns_at = Some(now);
        }
        (body.epoch, body.joining, body.lost) = (epoch, joining, lost);
        Ok(())
    }

    /// Connects to members that are there again, and takes them in.
    fn bring_back(&mut self, now: Duration) -> Result<(), LeadError> {
        let Upkeep { under_way, bringing, .. } = &mut self.upkeep;
        let mut some = Vec::new();
        for (at, name, made) in under_way.over() {
            some.extend(bringing.made(now, at, made).map(|connection| (name, connection)));
        }
        if !some.is_empty() {
            self.take_in(now, None, some)?;
        }
        loop {
            let Upkeep { under_way, bringing, returns_at, .. } = &mut self.upkeep;
            let turn = {
                let body = self.world.body.lock();
                bringing.turn(now, &body.takeover, body.epoch, &body.lost, |at| under_way.is_to(at))
            };
            *returns_at = None;
            match turn {
                Bring::Rest(at) => {
                    *returns_at = at;
                    return Ok(());
                }
                Bring::Connect(wanted) => {
                    under_way.begin(self.world, &wanted);
                    return Ok(());
                }
                Bring::Open(round) => {
                    let names = self.world.body.lock().names.clone();
                    self.take_in(now, Some(round.connections(&names)), Vec::new())?;
                }
                // Whoever drops connections says so in there.
                Bring::Leave(round) => drop(round),
            }
        }
    }

    fn take_in(
        &mut self,
        now: Duration,
        all: Option<Connections<Connection>>,
        some: Vec<(String, Connection)>,
    ) -> Result<(), LeadError> {
        let promised = self.world.body.lock().store.state().promised;
        let (mut reconnected, is_opened) = (0, all.is_some());
        let epoch = self.ships.with_ship(|primary| {
            if promised != primary.epoch() {
                return Err(LeadError::Deposed);
            }
            if let Some(connections) = all {
                primary.reopen(connections)?;
            }
            for (name, connection) in some {
                // Whoever has been taken in meanwhile stays.
                if primary.lost().iter().any(|(lost, _)| *lost == name) {
                    primary.reconnect(&name, Ok(connection))?;
                    reconnected += 1;
                }
            }
            primary.follow()?;
            Ok((primary.epoch(), primary.acknowledged()))
        })?;
        self.upkeep.images.follows(now, true, true);
        self.world.body.lock().know_lives();
        if is_opened {
            self.world.does(Command::Opened { epoch: epoch.0, start: epoch.1, again: true });
            self.world.does(Command::Count(|work, by| work.reopened += by, 1));
        }
        self.world.does(Command::Count(|work, by| work.reconnected += by, reconnected));
        Ok(())
    }
}
