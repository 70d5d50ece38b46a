//! A reader from afar, on a connection of its own: it reads the log of one server as that grows, as `remotelog::LogReader` does, and must notice
//! when what it has read was cut off.

use std::collections::BTreeMap;
use std::time::Duration;

use remanence_coord::log::proto::{Request, parse_reply};
use remanence_coord::log::walk::Window;
use remanence_coord::log::{Reader, Status};

use super::oracle::Oracle;
use crate::cluster::core::{ConnectionId, Host};
use crate::cluster::link::Link;
use crate::cluster::{Input, NodeId};
use crate::rng::Rng;

/// Bytes that it reads at a time: a part of a log.
const AHEAD: u64 = 2 << 10;

pub(super) struct Follower {
    server: NodeId,
    /// How long it leaves a log alone of which it has read everything, and a connection that was lost.
    look: Duration,
    link: Link,
    log: Option<Log>,
    /// Something is asked for: of a READ the place.
    is_asking: bool,
    reads: u64,
    /// When it looks again.
    next: Duration,
}

/// The log, as far as it was read.
struct Log {
    reader: Reader,
    window: Window,
    status: Status,
    /// A record that was read, and may have been cut off since; and whether the status is newer.
    kept: Option<(u64, Vec<u8>)>,
    is_newer: bool,
    read: BTreeMap<u64, Vec<u8>>,
}

/// What it does next.
enum Next {
    Look,
    Read(u64, u32),
    Rest,
}

impl Log {
    fn new(status: Status) -> Self {
        let window = Window::new(status.superblock.geometry.size, AHEAD);
        let reader = Reader::new(&status);
        Self { reader, window, status, kept: None, is_newer: true, read: BTreeMap::new() }
    }

    /// Reads on with what it has.
    ///
    /// # Errors
    /// It goes on with what was acknowledged, and has read something else before that.
    fn step(&mut self, oracle: &Oracle) -> Result<Next, String> {
        loop {
            if let Some((sequence, bytes)) = self.kept.take() {
                // Its writer may have cut off what was read before it.
                if self.reader.changed_writer() && !self.is_newer {
                    self.kept = Some((sequence, bytes));
                    return Ok(Next::Look);
                }
                self.read.insert(sequence, bytes);
                self.check(oracle, sequence)?;
            }
            if self.reader.next_sequence() >= self.status.tail.sequence {
                return Ok(if std::mem::take(&mut self.is_newer) { Next::Rest } else { Next::Look });
            }
            match self.reader.read(&mut &self.window) {
                Ok(Ok((found, payload))) => {
                    self.is_newer = false;
                    self.kept = Some((found.header.sequence, payload.to_vec()));
                }
                // It is no more, or was overwritten while it was read; or it was read before it was there.
                Ok(Err(_)) => {
                    self.window.forget();
                    return Ok(if std::mem::take(&mut self.is_newer) { Next::Rest } else { Next::Look });
                }
                Err(missing) => return Ok(Next::Read(missing.offset, missing.len)),
            }
        }
    }

    fn check(&self, oracle: &Oracle, sequence: u64) -> Result<(), String> {
        let is_other =
            |(number, bytes): &(u64, &[u8])| self.read.get(number).is_some_and(|read| read != bytes);
        let mut of = oracle.from(self.read.keys().next().copied().unwrap_or(0));
        if oracle
            .from(sequence)
            .next()
            .is_none_or(|(number, bytes)| number != sequence || self.read[&number] != bytes)
        {
            return Ok(());
        }
        match of.find(|one| one.0 < sequence && is_other(one)) {
            Some((other, _)) => Err(format!(
                "a reader goes on with record {sequence}, and has read another record {other} than was acknowledged"
            )),
            None => Ok(()),
        }
    }
}

impl Follower {
    /// Some writers have one.
    pub(super) fn boot(host: &mut Host<'_, Oracle>) -> Option<Self> {
        let (node, life, now) = (host.node(), host.life(), host.now());
        let oracle = host.known();
        let mut rng = Rng::new(oracle.seed, (4000 + node as u64) << 32 ^ u64::from(life));
        let server = rng.index(oracle.plan.servers.into());
        oracle.plan.follows.map(|look| Self {
            server,
            look: Duration::from_nanos(look),
            link: Link::Down(now),
            log: None,
            is_asking: false,
            reads: 0,
            next: now,
        })
    }

    pub(super) fn connection(&self) -> Option<ConnectionId> {
        self.link.connection()
    }

    pub(super) fn deadline(&self) -> Option<Duration> {
        let rests = (self.link.up().is_some() && !self.is_asking).then_some(self.next);
        self.link.deadline().or(rests)
    }

    fn is_told(&mut self, status: Status, host: &mut Host<'_, Oracle>) {
        match &mut self.log {
            Some(log) if log.reader.can_go_on(&status) => {
                log.reader.refresh(&status);
                (log.status, log.is_newer) = (status, true);
            }
            log => {
                host.oracle().work.read_anew += u64::from(log.is_some());
                *log = Some(Log::new(status));
            }
        }
    }

    /// Takes what has come on its connection, and goes on.
    pub(super) fn on(&mut self, input: Option<Input>, host: &mut Host<'_, Oracle>) {
        let now = host.now();
        match input {
            Some(Input::Connected { connection }) => {
                (self.link, self.log, self.is_asking) = (Link::Up(connection), None, false);
                self.next = now;
            }
            Some(Input::Lost { .. }) => (self.link, self.log) = (Link::Down(now + self.look), None),
            Some(Input::Message { bytes, .. }) => {
                self.is_asking = false;
                match parse_reply(&bytes) {
                    Ok(status) => self.is_told(status, host),
                    Err(_) => self.next = now + self.look,
                }
            }
            Some(Input::Read { bytes, .. }) => {
                self.is_asking = false;
                if let Some(log) = &mut self.log {
                    log.window.came(self.reads, bytes);
                }
            }
            _ => {}
        }
        self.link.go_on(now, self.server, host);
        let Some(connection) = self.link.up().filter(|_| !self.is_asking && self.next <= now) else { return };
        match self.log.as_mut().map_or(Ok(Next::Look), |log| log.step(host.known())) {
            Ok(Next::Look) => {
                host.send(connection, Request::Status.emit());
                self.is_asking = true;
            }
            Ok(Next::Read(offset, len)) => {
                host.read(connection, 0, offset, len);
                (self.is_asking, self.reads) = (true, offset);
            }
            Ok(Next::Rest) => self.next = now + self.look,
            Err(what) => host.core().wrong(what),
        }
    }
}
