//! What `pool`'s client stands on in a simulated cluster: its process carries out what it begins, and what has come waits for it.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::panicking;
use std::time::Duration;

use remanence_pmem::Region;
use remanence_pool::auth::Token;
use remanence_pool::client::dialogue::{Dialogue, Introduced, Introduction};
use remanence_pool::client::network::{Happened, Link, Network, Tag, Waker};
use remanence_pool::client::{Error, LossReason, Options, ServerIndex};
use remanence_pool::proto::{DEFAULT_PORT, PoolInfo, Purpose, Request};
use remanence_rnic::SendOp;

use super::oracle::{Asked, Became};
use super::server::{OPERATOR, token};
use crate::cluster::task::Baton;
use crate::rng::Rng;

/// What the code of a client has its process do. Connections have numbers of its own.
#[derive(Debug)]
pub(super) enum Command {
    Connect {
        number: u64,
        server: ServerIndex,
    },
    Send {
        number: u64,
        bytes: Vec<u8>,
    },
    Write {
        number: u64,
        offset: u64,
        bytes: Vec<u8>,
    },
    Read {
        number: u64,
        offset: u64,
        len: u32,
    },
    Flush {
        number: u64,
        offset: u64,
        len: u64,
    },
    Cut {
        number: u64,
    },
    /// For the oracle.
    Say(Said),
}

/// What the oracle is to know.
#[derive(Clone, Copy, Debug)]
pub(super) enum Said {
    Connected(bool),
    Begins(u64, Asked),
    Ends(Became),
    /// It has read bytes of a blob of that name, perhaps older ones.
    GotAny,
    CaughtUp,
    /// A server has what was on the disk that it had lost then.
    Repaired(ServerIndex, u64),
    /// What the last client does.
    Waits(&'static str),
    /// All servers are up to date.
    Verify,
}

/// What has come on a connection.
#[derive(Debug)]
pub(super) enum Came {
    Message(Vec<u8>),
    Read(Vec<u8>),
    Done,
}

/// A connection, as far as its client knows.
#[derive(Debug)]
pub(super) struct Pipe {
    /// The network whose connection it is.
    of: u64,
    pub(super) is_up: bool,
    pub(super) is_lost: bool,
    pub(super) came: VecDeque<Came>,
}

/// What the code of a client shares with its process. One at a time works on it.
#[derive(Debug)]
pub(super) struct Body {
    pub(super) now: Duration,
    pub(super) commands: VecDeque<Command>,
    pub(super) pipes: BTreeMap<u64, Pipe>,
    /// When the links of each network want to look at the clock, by their numbers.
    deadlines: BTreeMap<(u64, u64), Duration>,
    next: u64,
    rng: Rng,
    /// Something has come.
    pub(super) is_stirred: bool,
    /// When the code goes on, should nothing come.
    pub(super) wakes: Duration,
    /// It may begin one more operation.
    pub(super) may_begin: bool,
    /// All faults are over, and all others have come to their ends.
    pub(super) is_alone: bool,
    /// Servers that have lost their disks, when, and whether all is over that was under way then.
    pub(super) lost: Vec<(ServerIndex, u64, bool)>,
    /// Bytes that nobody can have put there.
    pub(super) wrong: Option<String>,
}

/// What the code of a client has of the world. Clones are the same.
#[derive(Clone, Debug)]
pub(super) struct World {
    body: Arc<Mutex<Body>>,
    baton: Arc<Baton<()>>,
}

pub(super) fn lock(body: &Mutex<Body>) -> MutexGuard<'_, Body> {
    body.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Body {
    pub(super) const fn new(rng: Rng, now: Duration) -> Self {
        Self {
            now,
            commands: VecDeque::new(),
            pipes: BTreeMap::new(),
            deadlines: BTreeMap::new(),
            next: 0,
            rng,
            is_stirred: true,
            wakes: now,
            may_begin: false,
            is_alone: false,
            lost: Vec::new(),
            wrong: None,
        }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

impl World {
    pub(super) const fn new(body: Arc<Mutex<Body>>, baton: Arc<Baton<()>>) -> Self {
        Self { body, baton }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Body> {
        lock(&self.body)
    }

    pub(super) fn now(&self) -> Duration {
        self.lock().now
    }

    pub(super) fn does(&self, command: Command) {
        self.lock().commands.push_back(command);
    }

    pub(super) fn says(&self, said: Said) {
        self.does(Command::Say(said));
    }

    /// Waits until something comes, or until then at most. Whoever unwinds, as its process is gone, waits for nothing any more.
    fn wait(&self, until: Duration) {
        if panicking() {
            return;
        }
        self.lock().wakes = until;
        self.baton.wait();
    }

    /// Does nothing for so long, whatever comes.
    pub(super) fn rest(&self, nanos: u64) {
        let until = self.now() + Duration::from_nanos(nanos);
        while self.now() < until && !panicking() {
            self.wait(until);
        }
    }

    fn connect(&self, of: u64, server: ServerIndex) -> u64 {
        let mut body = self.lock();
        let number = body.number();
        body.pipes.insert(number, Pipe { of, is_up: false, is_lost: false, came: VecDeque::new() });
        body.commands.push_back(Command::Connect { number, server });
        number
    }

    fn cut(&self, number: u64) {
        let mut body = self.lock();
        if body.pipes.remove(&number).is_some_and(|pipe| !pipe.is_lost) {
            body.commands.push_back(Command::Cut { number });
        }
    }
}

/// How clients of a run are made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) chunk: u32,
    pub(super) chunks: u32,
    pub(super) connecting: Duration,
    pub(super) answering: Duration,
}

/// Where a server is.
fn address(server: ServerIndex) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, server as u8)), DEFAULT_PORT)
}

impl Settings {
    pub(super) fn options(&self, servers: impl IntoIterator<Item = ServerIndex>) -> Options {
        let named = servers.into_iter().map(|server| (format!("server {server}"), address(server)));
        Options::new(named.collect())
            .tokens([token()])
            .connect_limit(self.connecting)
            .answer_limit(self.answering)
            .ring(self.chunks, self.chunk)
    }
}

/// Connections of one client.
pub(super) struct Connections {
    world: World,
    settings: Settings,
    /// It brings a server up to date.
    is_operator: bool,
    number: u64,
    tokens: [Token; 1],
    ring: Region,
}

impl Connections {
    pub(super) fn new(world: &World, settings: Settings, is_operator: bool) -> Self {
        let number = world.lock().number();
        let ring = Region::anonymous(u64::from(settings.chunk) * u64::from(settings.chunks)).expect("memory");
        Self { world: world.clone(), settings, is_operator, number, tokens: [token()], ring }
    }

    /// The first message of a connection.
    fn purpose(&self, purpose: Purpose) -> Vec<u8> {
        [&purpose.emit()[..], &[if self.is_operator { OPERATOR } else { 0 }]].concat()
    }

    fn open(&self, server: ServerIndex) -> Opening {
        let now = self.world.now();
        let control = self.world.connect(self.number, server);
        let link = Sessions {
            world: self.world.clone(),
            of: self.number,
            info: PoolInfo::unknown(),
            dialogue: Dialogue::new(now, self.settings.answering),
            control,
            data: None,
            ring: self.ring.clone(),
            posted: VecDeque::new(),
        };
        let mut nonce = [0; 32];
        random(&self.world, &mut nonce);
        let (introduction, hello) = Introduction::new(nonce);
        let until = now + self.settings.connecting;
        Opening { server, link, introduction, stage: Stage::Connecting(hello), until }
    }

    /// Goes on with a server that is connected to; whether that is over.
    fn go_on(&self, opening: &mut Opening) -> Result<bool, LossReason> {
        let Opening { server, link, introduction, stage, until } = opening;
        let now = self.world.now();
        match stage {
            Stage::Connecting(hello) => {
                if !link.is_up(link.control)? {
                    return is_late(now, *until);
                }
                let (number, bytes) = (link.control, self.purpose(Purpose::Control));
                self.world.does(Command::Send { number, bytes });
                let hello = hello.clone();
                link.ask(hello, 0)?;
                *stage = Stage::Talking;
            }
            Stage::Talking => {
                let mut happened = Vec::new();
                link.look(&mut happened)?;
                let Some(Happened::Replied(0, reply)) = happened.pop() else { return is_late(now, *until) };
                match introduction.replied(reply, &self.tokens)? {
                    Introduced::Ask(request) => link.ask(request, 0)?,
                    Introduced::Welcome { ticket, info } => {
                        link.info = info;
                        link.data = Some(self.world.connect(self.number, *server));
                        *stage = Stage::ConnectingData(ticket);
                    }
                }
            }
            Stage::ConnectingData(ticket) => {
                let number = link.data.expect("it was asked for");
                if !link.is_up(number)? {
                    return is_late(now, *until);
                }
                let bytes = self.purpose(Purpose::Data { ticket: *ticket });
                self.world.does(Command::Send { number, bytes });
                *stage = Stage::Accepting;
            }
            Stage::Accepting => {
                let number = link.data.expect("it was asked for");
                link.is_up(number)?;
                let came = self.world.lock().pipes.get_mut(&number).and_then(|pipe| pipe.came.pop_front());
                if came.is_none() {
                    return is_late(now, *until);
                }
                link.dialogue.hears(now);
                return Ok(true);
            }
        }
        *until = now + self.settings.connecting;
        Ok(false)
    }
}

fn is_late(now: Duration, until: Duration) -> Result<bool, LossReason> {
    if now < until { Ok(false) } else { Err(LossReason::Silent) }
}

fn random(world: &World, into: &mut [u8]) {
    let mut body = world.lock();
    into.chunks_mut(8).for_each(|chunk| chunk.copy_from_slice(&body.rng.u64().to_le_bytes()[..chunk.len()]));
}

/// A server that is connected to.
struct Opening {
    server: ServerIndex,
    link: Sessions,
    introduction: Introduction,
    stage: Stage,
    until: Duration,
}

enum Stage {
    Connecting(Request),
    Talking,
    ConnectingData([u8; 16]),
    Accepting,
}

impl Network for Connections {
    fn connect(&mut self, servers: &[(String, SocketAddr)]) -> Vec<Result<Box<dyn Link>, LossReason>> {
        let of = |(_, at): &(String, SocketAddr)| match at.ip() {
            IpAddr::V4(at) => usize::from(at.octets()[3]),
            IpAddr::V6(_) => unreachable!("servers have no such addresses"),
        };
        let mut openings: Vec<Result<Opening, LossReason>> =
            servers.iter().map(|server| Ok(self.open(of(server)))).collect();
        let mut over = vec![false; openings.len()];
        loop {
            for (opening, over) in openings.iter_mut().zip(&mut over) {
                while !*over && let Ok(open) = opening {
                    let until = open.until;
                    match self.go_on(open) {
                        Ok(false) if open.until == until => break,
                        Ok(false) => {}
                        Ok(true) => *over = true,
                        Err(why) => (*opening, *over) = (Err(why), true),
                    }
                }
            }
            if over.iter().all(|over| *over) || panicking() {
                break;
            }
            let open = openings.iter().zip(&over).filter(|(_, over)| !**over);
            let until =
                open.filter_map(|(opening, _)| opening.as_ref().ok()).map(|opening| opening.until).min();
            self.world.wait(until.expect("one of them is not over"));
        }
        let boxed = |opening: Opening| -> Box<dyn Link> { Box::new(opening.link) };
        openings.into_iter().map(|opening| opening.map(boxed)).collect()
    }

    fn another(&self) -> Result<Box<dyn Network>, Error> {
        Ok(Box::new(Self::new(&self.world, self.settings, self.is_operator)))
    }

    fn memory(&self) -> &Region {
        &self.ring
    }

    fn wait(&mut self) -> bool {
        loop {
            let until = {
                let body = self.world.lock();
                let mut own = body.pipes.values().filter(|pipe| pipe.of == self.number);
                if panicking() || own.any(|pipe| pipe.is_lost || !pipe.came.is_empty()) {
                    return true;
                }
                let deadlines = body.deadlines.range((self.number, 0)..=(self.number, u64::MAX));
                let until = deadlines.map(|(_, at)| *at).min().unwrap_or(Duration::MAX);
                if until <= body.now {
                    return true;
                }
                until
            };
            self.world.wait(until);
        }
    }

    fn waker(&self) -> Option<Waker> {
        None
    }

    fn random(&mut self, into: &mut [u8]) -> Result<(), Error> {
        random(&self.world, into);
        Ok(())
    }
}

/// What a client has of one server: a connection on which it asks, and one by which it moves data.
struct Sessions {
    world: World,
    /// The network that it belongs to.
    of: u64,
    info: PoolInfo,
    dialogue: Dialogue,
    control: u64,
    data: Option<u64>,
    ring: Region,
    /// Where what is read goes, of what is under way.
    posted: VecDeque<Option<u64>>,
}

impl Sessions {
    /// Whether a connection is there.
    fn is_up(&self, number: u64) -> Result<bool, LossReason> {
        match self.world.lock().pipes.get(&number) {
            Some(pipe) if !pipe.is_lost => Ok(pipe.is_up),
            _ => Err(LossReason::Silent),
        }
    }

    fn came(&self, number: u64) -> Option<Came> {
        self.world.lock().pipes.get_mut(&number)?.came.pop_front()
    }

    /// Sends what may be sent.
    fn push(&mut self) {
        let now = self.world.now();
        while let Some(bytes) = self.dialogue.next_message(now) {
            self.world.does(Command::Send { number: self.control, bytes });
        }
        let (mut body, of) = (self.world.lock(), (self.of, self.control));
        match self.dialogue.deadline() {
            Some(at) => body.deadlines.insert(of, at),
            None => body.deadlines.remove(&of),
        };
    }
}

impl Link for Sessions {
    fn info(&self) -> &PoolInfo {
        &self.info
    }

    fn ask(&mut self, request: Request, tag: Tag) -> Result<(), LossReason> {
        self.dialogue.ask(self.world.now(), request, tag);
        self.push();
        Ok(())
    }

    fn budget(&self) -> usize {
        self.dialogue.budget()
    }

    fn post(&mut self, op: SendOp, chunk: Option<(u64, u32)>, tag: Tag) -> Result<(), LossReason> {
        assert!(self.budget() > 0, "the caller keeps to the budget");
        let number = self.data.ok_or(LossReason::Nonsense)?;
        let (at, len) = chunk.unwrap_or_default();
        let (command, place) = match op {
            SendOp::Write(to) => {
                let mut bytes = vec![0; len as usize];
                self.ring.read(at, &mut bytes);
                (Command::Write { number, offset: to.addr, bytes }, None)
            }
            SendOp::Read(from) => (Command::Read { number, offset: from.addr, len }, Some(at)),
            SendOp::Flush { remote, len, .. } => {
                (Command::Flush { number, offset: remote.addr, len: len.into() }, None)
            }
            other => unreachable!("blobs are not moved by {other:?}"),
        };
        self.world.does(command);
        self.posted.push_back(place);
        self.dialogue.posted(self.world.now(), tag);
        self.push();
        Ok(())
    }

    fn look(&mut self, happened: &mut Vec<Happened>) -> Result<(), LossReason> {
        if panicking() {
            return Err(LossReason::Left);
        }
        let now = self.world.now();
        while let Some(came) = self.came(self.control) {
            let Came::Message(bytes) = came else { return Err(LossReason::Nonsense) };
            happened.extend(self.dialogue.replied(now, &bytes)?);
        }
        while let Some(number) = self.data
            && let Some(came) = self.came(number)
        {
            let place = self.posted.pop_front().flatten();
            if let (Came::Read(bytes), Some(at)) = (came, place) {
                self.ring.write(at, &bytes);
            }
            happened.push(self.dialogue.completed(now)?);
        }
        self.is_up(self.control)?;
        self.data.map_or(Ok(true), |number| self.is_up(number))?;
        if self.dialogue.deadline().is_some_and(|at| at <= now) {
            self.dialogue.due(now)?;
        }
        self.push();
        Ok(())
    }
}

impl Drop for Sessions {
    fn drop(&mut self) {
        self.world.cut(self.control);
        self.data.into_iter().for_each(|number| self.world.cut(number));
        self.world.lock().deadlines.remove(&(self.of, self.control));
    }
}
