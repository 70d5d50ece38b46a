//! A client of the group: it has some commands under way, and sends them to one replica after the other until they are answered. What is asked for in vain is asked for less
//! often each time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use remanence_codec::{Malformed, Reader};

use super::oracle::{Oracle, Which, value};
use crate::cluster::Input;
use crate::cluster::core::{ConnectionId, Host};
use crate::cluster::replicated::{Counter, Simulated};
use crate::rng::Rng;

/// How long a client waits before it asks again, on average and at first, in nanoseconds.
const AGAIN: u64 = 100_000;
/// How often that is doubled, at most.
const DOUBLED: u32 = 5;
/// Commands of the last client.
const LAST: u32 = 5;
/// How long the last client waits for the end of the faults, if its clock is fast.
const LOOK: Duration = Duration::from_millis(1);
/// What is never waited for.
const NEVER: Duration = Duration::MAX;

/// What a replica says to a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Reply {
    Done(Which, Vec<u8>),
    /// Another one is to be asked: that one leads, as far as is known.
    Elsewhere(Which, Option<u8>),
    /// The same one is to be asked again, a little later.
    Busy(Which),
    Unknown(Which),
}

impl Reply {
    pub(super) fn emit(&self) -> Vec<u8> {
        let (kind, (client, number), rest) = match self {
            Self::Done(which, answer) => (1, which, answer.clone()),
            Self::Elsewhere(which, leader) => (2, which, leader.iter().copied().collect()),
            Self::Busy(which) => (3, which, Vec::new()),
            Self::Unknown(which) => (4, which, Vec::new()),
        };
        [&[kind][..], &client.to_le_bytes(), &number.to_le_bytes(), &rest].concat()
    }

    fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let kind = reader.u8()?;
        let which = (reader.u16_le()?, reader.u32_le()?);
        match kind {
            1 => Ok(Self::Done(which, reader.rest().to_vec())),
            2 => Ok(Self::Elsewhere(which, reader.rest().first().copied())),
            3 => Ok(Self::Busy(which)),
            4 => Ok(Self::Unknown(which)),
            _ => reader.fail(),
        }
    }

    const fn which(&self) -> Which {
        match self {
            Self::Done(which, _) | Self::Elsewhere(which, _) | Self::Busy(which) | Self::Unknown(which) => {
                *which
            }
        }
    }
}

pub(super) struct Client {
    rng: Rng,
    number: u16,
    is_last: bool,
    /// Commands of the last client that it has not begun.
    left: u32,
    /// The number of its next command, the bytes of those under way, and those of them that a replica had no room for.
    next: u32,
    running: BTreeMap<u32, Vec<u8>>,
    refused: BTreeSet<u32>,
    /// Whom it asks, and on which connection.
    at: usize,
    connection: Option<ConnectionId>,
    is_connected: bool,
    /// Times that it has asked in vain since it was answered.
    attempts: u32,
    /// When it begins another command, when it asks another replica, and when it asks the same one again.
    begins: Duration,
    asks: Duration,
    again: Duration,
}

impl Client {
    pub(super) fn boot(host: &mut Host<'_, Oracle>) -> Self {
        let (node, life, now) = (host.node(), host.life(), host.now());
        let oracle = host.oracle();
        let number = (node - usize::from(oracle.plan.servers)) as u16;
        let is_last = number == oracle.plan.own.clients;
        // What it had under way died with it.
        oracle.forgets(number);
        let mut rng = Rng::new(oracle.seed, (5000 + u64::from(number)) << 32 ^ u64::from(life));
        let after = if is_last { oracle.plan.heals } else { rng.exponential(oracle.plan.pause) };
        Self {
            number,
            is_last,
            left: LAST,
            next: life << 16 | 1,
            running: BTreeMap::new(),
            refused: BTreeSet::new(),
            at: rng.index(oracle.plan.servers.into()),
            connection: None,
            is_connected: false,
            attempts: 0,
            begins: now + Duration::from_nanos(after),
            asks: NEVER,
            again: NEVER,
            rng,
        }
    }

    pub(super) fn deadline(&self) -> Option<Duration> {
        [self.begins, self.asks, self.again].into_iter().min().filter(|at| *at < NEVER)
    }

    pub(super) fn on(&mut self, input: Input, host: &mut Host<'_, Oracle>) {
        let now = host.now();
        match input {
            Input::Connected { connection } if self.connection == Some(connection) => {
                self.is_connected = true;
                let all = self.running.keys().copied().collect();
                self.sends(now, &all, host);
            }
            Input::Lost { connection, .. } if self.connection == Some(connection) => {
                self.another(now, None, host);
            }
            Input::Message { connection, bytes } if self.connection == Some(connection) => {
                match Reply::parse(&bytes) {
                    Ok(reply) => self.is_told(now, reply, host),
                    Err(_) => host.core().wrong(format!("what a replica sent is no answer: {bytes:?}")),
                }
            }
            _ => {}
        }
        if self.begins <= now {
            self.begins(now, host);
        }
        if self.again <= now {
            let refused = std::mem::take(&mut self.refused);
            self.sends(now, &refused, host);
        }
        if self.asks <= now {
            match self.connection {
                // It connects when it has something to ask for.
                _ if self.running.is_empty() => self.asks = NEVER,
                Some(_) => self.another(now, None, host),
                None => {
                    self.connection = Some(host.connect(self.at));
                    self.asks = now + self.endurance(host);
                }
            }
        }
    }

    /// How long it waits for an answer: longer each time, as it may take a replica longer than that.
    fn endurance(&self, host: &Host<'_, Oracle>) -> Duration {
        Duration::from_nanos(host.known().plan.endurance << self.attempts.min(DOUBLED))
    }

    fn pause(&mut self) -> Duration {
        let mean = AGAIN << self.attempts.min(DOUBLED);
        self.attempts += 1;
        Duration::from_nanos(1 + self.rng.exponential(mean))
    }

    fn begins(&mut self, now: Duration, host: &mut Host<'_, Oracle>) {
        let number = self.number;
        let (depth, pause, payload) = {
            let own = &host.known().plan.own;
            (own.depth as usize, own.pause, own.payload)
        };
        self.begins = NEVER;
        let first = self.running.keys().next().copied().unwrap_or(self.next);
        if self.running.len() >= depth || self.next - first >= 8 {
            // When one of them is answered.
            return;
        }
        // The last one is to begin when all faults are over.
        if self.is_last && host.core().now() < host.known().plan.heals {
            self.begins = now + LOOK;
            return;
        }
        let left =
            if self.is_last { &mut self.left } else { &mut host.oracle().operations[usize::from(number)] };
        if *left == 0 {
            return;
        }
        *left -= 1;
        let command = Counter::command(if self.is_last { u64::from(*left) } else { self.rng.u64() });
        let which = (number, self.next);
        let bytes = value(which, &command, self.rng.below(payload));
        host.oracle().begins(which, command);
        self.running.insert(self.next, bytes.clone());
        self.next += 1;
        match self.connection {
            Some(connection) if self.is_connected => {
                host.send(connection, bytes);
                if self.asks == NEVER {
                    self.asks = now + self.endurance(host);
                }
            }
            Some(_) => {}
            // It may have asked in vain, and waits for that.
            None if self.asks == NEVER => self.asks = now,
            None => {}
        }
        self.begins = now + Duration::from_nanos(1 + self.rng.exponential(pause));
    }

    /// Sends these of its commands, those that are not answered.
    fn sends(&mut self, now: Duration, which: &BTreeSet<u32>, host: &mut Host<'_, Oracle>) {
        self.again = NEVER;
        let Some(connection) = self.connection.filter(|_| self.is_connected) else { return };
        for (_, bytes) in self.running.iter().filter(|(number, _)| which.contains(number)) {
            host.oracle().work.sent_again += 1;
            host.send(connection, bytes.clone());
        }
        self.asks = now + self.endurance(host);
    }

    fn is_told(&mut self, now: Duration, reply: Reply, host: &mut Host<'_, Oracle>) {
        host.tell(format_args!("is told {reply:?}"));
        let (_, number) = reply.which();
        if !self.running.contains_key(&number) {
            return;
        }
        match reply {
            Reply::Done(which, answer) => {
                self.running.remove(&number);
                self.attempts = 0;
                host.oracle().ends(which, answer);
                self.asks = if self.running.is_empty() { NEVER } else { now + self.endurance(host) };
                if self.begins == NEVER {
                    self.begins =
                        now + Duration::from_nanos(1 + self.rng.exponential(host.known().plan.own.pause));
                }
                let is_done = self.is_last && self.left == 0 && self.running.is_empty();
                host.oracle().last_is_done |= is_done;
            }
            Reply::Elsewhere(_, leader) => self.another(now, leader, host),
            Reply::Busy(_) => {
                self.refused.insert(number);
                if self.again == NEVER {
                    self.again = now + self.pause();
                }
            }
            Reply::Unknown(_) => self.another(now, None, host),
        }
    }

    /// Leaves this replica, and asks another one a little later.
    fn another(&mut self, now: Duration, leader: Option<u8>, host: &mut Host<'_, Oracle>) {
        if let Some(connection) = self.connection.take() {
            host.cut(connection);
        }
        self.is_connected = false;
        (self.refused, self.again) = (BTreeSet::new(), NEVER);
        let servers = usize::from(host.known().plan.servers);
        self.at = match leader {
            Some(leader) if !self.rng.one_in(4) => usize::from(leader),
            _ => (self.at + 1) % servers,
        };
        self.asks = now + self.pause();
    }
}
