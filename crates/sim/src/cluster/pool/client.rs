//! A client: `pool`'s own, used by code that waits (`task.rs`), and the process that carries out what that begins.

use std::collections::BTreeMap;
use std::io::{self, Cursor, Read as _};
use std::iter::once;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use remanence_pool::client::{BlobReader, Client as Blobs, Error, Event, Got, ServerIndex, Source, Upload};
use remanence_pool::quorum::majority;

use super::network::{Body, Came, Command, Connections, Said, Settings, World, lock};
use super::oracle::{Asked, Became, EMPTY, Oracle, content, name, put_of};
use crate::cluster::core::{ConnectionId, Host};
use crate::cluster::task::{Task, Turn};
use crate::cluster::{Input, Moment};
use crate::rng::Rng;

/// How long somebody waits before it tries again, on average, in nanoseconds.
const AGAIN: u64 = 1_000_000;

pub(super) struct Client {
    number: usize,
    body: Arc<Mutex<Body>>,
    /// The code, until it has come to its end.
    task: Option<Task<()>>,
    /// Connections by the numbers that the code has for them, and the other way round.
    connections: BTreeMap<u64, ConnectionId>,
    numbers: BTreeMap<ConnectionId, u64>,
}

impl Client {
    pub(super) fn boot(host: &mut Host<'_, Oracle>) -> Self {
        let (node, life, now) = (host.node(), host.life(), host.now());
        let oracle = host.oracle();
        let plan = &oracle.plan;
        let number = node - usize::from(plan.servers);
        let of = |stream: u64| Rng::new(oracle.seed, (stream + number as u64) << 32 ^ u64::from(life));
        let body = Arc::new(Mutex::new(Body::new(of(5000), now)));
        let user = User {
            settings: Settings {
                chunk: plan.chunk,
                chunks: plan.chunks,
                connecting: Duration::from_nanos(plan.connecting),
                answering: Duration::from_nanos(plan.answering),
            },
            rng: of(6000),
            servers: plan.servers.into(),
            quorum: plan.acks.into(),
            names: plan.names,
            longest: plan.longest,
            pause: plan.pause,
            // Numbers of puts are used once.
            puts: (number as u64 + 1) << 40 | u64::from(life) << 20,
            client: None,
        };
        let (is_last, shared) = (number == usize::from(plan.clients), Arc::clone(&body));
        if !is_last {
            oracle.working.insert(number);
        }
        // What it had under way died with it.
        if let Err(why) = oracle.ends(number, Became::Unknown) {
            host.core().wrong(why);
        }
        let task = Task::new(move |baton| {
            let world = World::new(shared, baton);
            if is_last { user.ends(&world) } else { user.works(&world) }
        });
        Self { number, body, task: Some(task), connections: BTreeMap::new(), numbers: BTreeMap::new() }
    }

    pub(super) fn deadline(&self) -> Option<Duration> {
        self.task.as_ref().map(|_| lock(&self.body).wakes)
    }

    pub(super) fn on(&mut self, input: Input, host: &mut Host<'_, Oracle>) {
        self.take(input);
        let Some(task) = &self.task else { return };
        {
            let (number, now, true_time) = (self.number, host.now(), host.core().now());
            let oracle = host.oracle();
            let mut body = lock(&self.body);
            body.now = now;
            let is_over = true_time >= oracle.plan.heals;
            body.may_begin = !is_over && oracle.operations.get(number).is_some_and(|left| *left > 0);
            body.is_alone = is_over && oracle.working.is_empty();
            let lost = oracle.lost.iter();
            body.lost = lost.map(|(server, when)| (*server, *when, oracle.is_settled(*server))).collect();
            if !body.is_stirred && now < body.wakes {
                return;
            }
            body.is_stirred = false;
        }
        let ended = match task.resume() {
            Turn::Waits => false,
            Turn::Ends(()) => true,
            Turn::Panics(why) => {
                host.core().wrong(format!("panic in a client: {why}"));
                true
            }
        };
        if ended {
            self.task = None;
        }
        self.carry_out(host);
        if ended {
            host.oracle().working.remove(&self.number);
        }
    }

    /// Keeps what has come for the code.
    fn take(&mut self, input: Input) {
        let Some(connection) = input.connection() else { return };
        let Some(number) = self.numbers.get(&connection) else { return };
        let mut body = lock(&self.body);
        let Some(pipe) = body.pipes.get_mut(number) else { return };
        match input {
            Input::Connected { .. } => pipe.is_up = true,
            Input::Lost { .. } => pipe.is_lost = true,
            Input::Message { bytes, .. } => pipe.came.push_back(Came::Message(bytes)),
            Input::Read { bytes, .. } => pipe.came.push_back(Came::Read(bytes)),
            Input::Durable { .. } | Input::Written { .. } => pipe.came.push_back(Came::Done),
            Input::Datagram { .. } | Input::Timer => {}
        }
        body.is_stirred = true;
    }

    fn carry_out(&mut self, host: &mut Host<'_, Oracle>) {
        let (commands, wrong) = {
            let mut body = lock(&self.body);
            (std::mem::take(&mut body.commands), body.wrong.take())
        };
        if let Some(why) = wrong {
            host.core().wrong(why);
        }
        for command in commands {
            match command {
                Command::Connect { number, server } => {
                    let connection = host.connect(server);
                    self.connections.insert(number, connection);
                    self.numbers.insert(connection, number);
                }
                Command::Send { number, bytes } => host.send(self.connections[&number], bytes),
                Command::Write { number, offset, bytes } => {
                    host.write(self.connections[&number], 0, offset, bytes);
                }
                Command::Read { number, offset, len } => {
                    host.read(self.connections[&number], 0, offset, len);
                }
                Command::Flush { number, offset, len } => {
                    host.flush(self.connections[&number], 0, offset, len);
                }
                Command::Cut { number } => {
                    if let Some(connection) = self.connections.remove(&number) {
                        self.numbers.remove(&connection);
                        host.cut(connection);
                    }
                }
                Command::Say(said) => self.say(said, host),
            }
        }
    }

    fn say(&self, said: Said, host: &mut Host<'_, Oracle>) {
        host.tell(format_args!("{said:?}"));
        let (number, oracle) = (self.number, host.oracle());
        let work = &mut oracle.work;
        match said {
            Said::Connected(true) => work.connected += 1,
            Said::Connected(false) => work.unreachable += 1,
            Said::Begins(of, asked) => oracle.begins(number, &name(of), asked),
            Said::Ends(became) => {
                if let Err(why) = oracle.ends(number, became) {
                    host.core().wrong(why);
                }
                if matches!(became, Became::Changed { .. }) {
                    host.moment(Moment::Stored, None);
                }
            }
            Said::GotAny => work.got_any += 1,
            Said::CaughtUp => work.caught_up += 1,
            Said::Repaired(server, lost) => oracle.repairs(server, lost),
            Said::Waits(what) => oracle.waits = what,
            Said::Verify => oracle.verify = true,
        }
    }
}

fn read(reader: &mut BlobReader<'_>, bytes: &mut Vec<u8>) -> io::Result<()> {
    bytes.clear();
    reader.read_to_end(bytes).map(drop)
}

/// The code of a client.
struct User {
    settings: Settings,
    rng: Rng,
    servers: usize,
    quorum: usize,
    names: u64,
    longest: u64,
    pause: u64,
    /// The number of its last put.
    puts: u64,
    client: Option<Blobs>,
}

impl User {
    /// What a usual client does.
    fn works(mut self, world: &World) {
        loop {
            world.rest(1 + self.rng.exponential(self.pause));
            if !world.lock().may_begin {
                return;
            }
            self.turn(world);
        }
    }

    /// What the last one does.
    fn ends(mut self, world: &World) {
        while !world.lock().is_alone {
            world.rest(AGAIN);
        }
        world.says(Said::Waits("a server that has lost its disk is not brought up to date"));
        while !world.lock().lost.is_empty() {
            self.repairs(world);
            world.rest(AGAIN);
        }
        world.says(Said::Waits("a blob can be neither read, put nor deleted"));
        for of in 0..self.names {
            for step in 0..4 {
                let is_done = |user: &mut Self| match step {
                    0 | 3 => user.gets(world, of),
                    1 => user.puts(world, of),
                    // Some of them are there in the end, and some are not.
                    _ => of.is_multiple_of(2) || user.deletes(world, of),
                };
                while !is_done(&mut self) {
                    world.rest(AGAIN);
                }
            }
        }
        world.says(Said::Waits("a server is not brought up to date"));
        // One server alone has nobody from whom it could be brought up to date.
        let servers = if self.servers > 1 { self.servers } else { 0 };
        for server in 0..servers {
            while !self.catches_up(world, server) {
                world.rest(AGAIN);
            }
        }
        self.client = None;
        world.says(Said::Waits("it is gone, and a server still has a client"));
        world.says(Said::Verify);
    }

    /// One thing, of those that it likes.
    fn turn(&mut self, world: &World) {
        if !world.lock().lost.is_empty() && self.rng.one_in(3) {
            return self.repairs(world);
        }
        let of = self.rng.below(self.names);
        match self.rng.below(20) {
            0..=7 => _ = self.puts(world, of),
            8..=15 => _ = self.gets(world, of),
            16..=17 => _ = self.deletes(world, of),
            18 => self.gets_any(world, of),
            _ => {
                let server = self.rng.index(self.servers);
                _ = self.catches_up(world, server);
            }
        }
        // It has fewer servers than there are until it connects again.
        let is_short = self.client.as_ref().is_some_and(|client| client.live().count() < self.servers);
        if is_short && self.rng.one_in(2) || self.rng.one_in(10) {
            self.client = None;
        }
    }

    fn connects(
        &self,
        world: &World,
        to: impl IntoIterator<Item = ServerIndex>,
        need: usize,
    ) -> Option<Blobs> {
        self.connects_as(world, to, need, false)
    }

    fn connects_as(
        &self,
        world: &World,
        to: impl IntoIterator<Item = ServerIndex>,
        need: usize,
        is_operator: bool,
    ) -> Option<Blobs> {
        let network = Box::new(Connections::new(world, self.settings, is_operator));
        let connected = Blobs::over(network, self.settings.options(to), need);
        world.says(Said::Connected(connected.is_ok()));
        connected.ok()
    }

    /// The client, if enough servers are there.
    fn client(&mut self, world: &World) -> Option<Blobs> {
        let kept = self.client.take();
        kept.or_else(|| self.connects(world, 0..self.servers, majority(self.servers)))
    }

    /// Whether a put was acknowledged.
    fn puts(&mut self, world: &World, of: u64) -> bool {
        let Some(mut client) = self.client(world) else { return false };
        self.puts += 1;
        let put = if self.rng.one_in(12) { EMPTY } else { self.puts };
        let bytes = content(put, self.longest);
        world.says(Said::Begins(of, Asked::Change(put)));
        // Of a stream nobody says how long it is.
        let len = (!self.rng.one_in(4)).then_some(bytes.len() as u64);
        let source = Source { name: name(of), len, reader: Box::new(Cursor::new(bytes)), version: None };
        let (mut version, upload) = (None, Upload { quorum: self.quorum, servers: None });
        let report = client.put(once(Ok(source)), &upload, &mut |event| {
            if let Event::Durable { version: durable, .. } = event {
                version = Some(durable);
            }
        });
        let became = match &report {
            Ok(report) => Became::Changed { version, on_all: report.incomplete == 0 },
            Err(_) => Became::Unknown,
        };
        world.says(Said::Ends(became));
        // One that has failed is not used any more.
        self.client = report.is_ok().then_some(client);
        report.is_ok()
    }

    /// Whether it is gone, or was not there.
    fn deletes(&mut self, world: &World, of: u64) -> bool {
        let Some(mut client) = self.client(world) else { return false };
        world.says(Said::Begins(of, Asked::Change(0)));
        let deleted = client.delete(&name(of), self.quorum);
        let became = match &deleted {
            Ok(copies) => Became::Changed { version: None, on_all: *copies == self.servers },
            Err(Error::NotFound(_)) => Became::Absent,
            Err(_) => Became::Unknown,
        };
        world.says(Said::Ends(became));
        self.keeps(client, became)
    }

    /// Whether it is known what the name stands for.
    fn gets(&mut self, world: &World, of: u64) -> bool {
        let Some(mut client) = self.client(world) else { return false };
        world.says(Said::Begins(of, Asked::Get));
        let mut bytes = Vec::new();
        let got = client.get(&name(of), |reader| read(reader, &mut bytes));
        let became = self.judges(world, got, &bytes);
        world.says(Said::Ends(became));
        self.keeps(client, became)
    }

    /// The same from whatever is there.
    fn gets_any(&mut self, world: &World, of: u64) {
        let Some(mut client) = self.client(world) else { return };
        let mut bytes = Vec::new();
        let got = client.get_any(&name(of), |reader| read(reader, &mut bytes));
        if matches!(self.judges(world, got, &bytes), Became::Got { .. }) {
            world.says(Said::GotAny);
        }
        self.client = Some(client);
    }

    fn judges(&self, world: &World, got: Result<Got, Error>, bytes: &[u8]) -> Became {
        match got {
            Ok(got) => match put_of(bytes, self.longest) {
                Ok(put) => Became::Got { put, version: got.version },
                Err(why) => {
                    world.lock().wrong.get_or_insert(why);
                    Became::Unknown
                }
            },
            Err(Error::NotFound(_)) => Became::Absent,
            Err(_) => Became::Unknown,
        }
    }

    /// Keeps the client if it was of use.
    fn keeps(&mut self, client: Blobs, became: Became) -> bool {
        let is_done = became != Became::Unknown;
        self.client = Some(client).filter(|_| is_done);
        is_done
    }

    /// Brings a server up to date from the others; whether it is, and all of them were there.
    fn catches_up(&mut self, world: &World, server: ServerIndex) -> bool {
        let Some(mut sources) = self.client(world) else { return false };
        let Some(mut target) = self.connects(world, [server], 1) else { return false };
        if target.catch_up(&mut sources, &mut |_| ()).is_err() {
            return false;
        }
        world.says(Said::CaughtUp);
        let are_all = sources.live().count() == self.servers;
        self.client = Some(sources).filter(|_| are_all);
        are_all
    }

    /// Brings a server up to date that has lost its disk, when whatever was under way then is over. Nobody else can use it before that, and whether
    /// enough others are there is for the catch-up to say.
    fn repairs(&mut self, world: &World) {
        let lost = world.lock().lost.clone();
        let Some((target, when, true)) = lost.first().copied() else { return };
        let Some(mut sources) = self.connects(world, 0..self.servers, 1) else { return };
        let Some(mut client) = self.connects_as(world, [target], 1, true) else { return };
        if client.catch_up(&mut sources, &mut |_| ()).is_ok() {
            world.says(Said::Repaired(target, when));
        }
    }
}
