//! A client of the service: it has one command at a time, and sends it to one host after the other until it is answered.

use std::time::Duration;

use remanence_coord::replicated::{Refusal, Reply, Request};

use super::oracle::Oracle;
use super::simulated::Simulated;
use crate::cluster::Input;
use crate::cluster::core::{ConnectionId, Host as Node};
use crate::rng::Rng;

/// How long a client waits before it asks another host, on average, in nanoseconds.
const AGAIN: u64 = 200_000;
/// Commands of the last client.
const LAST: u32 = 5;
/// How long a client whose clock is fast waits for the end of the faults, or for others.
const LOOK: Duration = Duration::from_millis(1);

pub(super) struct Client {
    rng: Rng,
    number: usize,
    is_last: bool,
    /// Commands of the last client that are not done yet.
    left: u32,
    session: Option<u64>,
    /// The number of its last command.
    command: u64,
    /// The command that it has under way.
    running: Option<Vec<u8>>,
    /// Which host it asks, and the connection to that.
    host: usize,
    connection: Option<ConnectionId>,
    /// It has asked there.
    has_asked: bool,
    /// A host was asked for the command and has not said that nothing was done.
    is_unknown: bool,
    /// It was told that its session has ended, and asks another host, which must say so too.
    is_ended: bool,
    /// Hosts that were asked for the command in vain: the next one is given more time each time, as it may have to open the log first.
    attempts: u32,
    /// When it goes on, whatever has come.
    next: Option<Duration>,
}

impl Client {
    pub(super) fn boot<A: Simulated>(node: &mut Node<'_, Oracle<A>>) -> Self {
        let (at, life, now) = (node.node(), node.life(), node.now());
        let oracle = node.oracle();
        let number = at - usize::from(oracle.plan.servers + oracle.plan.hosts);
        let is_last = number == usize::from(oracle.plan.clients);
        // What it had under way died with it.
        oracle.forgets(number);
        let mut rng = Rng::new(oracle.seed, (3000 + number as u64) << 32 ^ u64::from(life));
        let after = if is_last { oracle.plan.heals } else { rng.exponential(oracle.plan.pause) };
        Self {
            number,
            is_last,
            left: LAST,
            session: None,
            command: 0,
            running: None,
            host: rng.index(oracle.plan.hosts.into()),
            connection: None,
            has_asked: false,
            is_unknown: false,
            is_ended: false,
            attempts: 0,
            next: Some(now + Duration::from_nanos(after)),
            rng,
        }
    }

    pub(super) const fn deadline(&self) -> Option<Duration> {
        self.next
    }

    pub(super) fn on<A: Simulated>(&mut self, input: Input, node: &mut Node<'_, Oracle<A>>) {
        let now = node.now();
        match input {
            Input::Connected { connection } if self.connection == Some(connection) => self.ask(now, node),
            Input::Lost { connection, .. } if self.connection == Some(connection) => {
                self.connection = None;
                self.is_unknown |= self.has_asked;
                self.another_host(now, node);
            }
            Input::Message { connection, bytes } if self.connection == Some(connection) => {
                match Reply::parse(&bytes) {
                    Ok(reply) => self.is_told(now, reply, node),
                    Err(_) => node.core().wrong(format!("what a host sent is no answer: {bytes:?}")),
                }
            }
            _ if self.next.is_some_and(|next| next <= now) => self.turn(now, node),
            _ => {}
        }
    }

    /// Its time has come: for a new command, or as no answer has.
    fn turn<A: Simulated>(&mut self, now: Duration, node: &mut Node<'_, Oracle<A>>) {
        if self.running.is_none() && !self.begin(now, node) {
            return;
        }
        if self.connection.is_some() && self.has_asked {
            self.is_unknown = true;
            self.another_host(now, node);
        } else if self.connection.is_none() {
            let host = usize::from(node.known().plan.servers) + self.host;
            self.connection = Some(node.connect(host));
            self.has_asked = false;
            self.next = None;
        }
    }

    /// Begins a command, if there is one to begin.
    fn begin<A: Simulated>(&mut self, now: Duration, node: &mut Node<'_, Oracle<A>>) -> bool {
        let true_time = node.core().now();
        let (number, is_last) = (self.number, self.is_last);
        let oracle = node.oracle();
        let heals = oracle.plan.heals;
        if is_last {
            // All others are to come to their ends.
            if true_time < heals || oracle.waits().is_some() {
                self.next = Some(now + LOOK);
                return false;
            }
            if self.left == 0 {
                oracle.finished = true;
                self.next = None;
                return false;
            }
            self.left -= 1;
        } else {
            if oracle.operations[number] == 0 || true_time >= heals {
                self.next = None;
                return false;
            }
            oracle.operations[number] -= 1;
        }
        let command = A::command(if is_last { self.left.into() } else { self.rng.u64() });
        oracle.begins(number, command.clone());
        self.command += 1;
        (self.running, self.is_unknown) = (Some(command), false);
        if self.connection.is_some() {
            self.ask(now, node);
            return false;
        }
        true
    }

    /// Sends what it wants to know: the command, or that it needs a session first.
    fn ask<A: Simulated>(&mut self, now: Duration, node: &mut Node<'_, Oracle<A>>) {
        let (Some(connection), Some(command)) = (self.connection, self.running.clone()) else { return };
        let request = self.session.map_or(Request::Open, |session| Request::Command {
            session,
            number: self.command,
            command,
        });
        node.tell(format_args!("asks host {}: {request:?}", self.host));
        node.send(connection, request.emit());
        self.has_asked = true;
        let endurance = node.known().plan.endurance << self.attempts.min(8);
        self.next = Some(now + Duration::from_nanos(endurance));
    }

    fn is_told<A: Simulated>(&mut self, now: Duration, reply: Reply, node: &mut Node<'_, Oracle<A>>) {
        node.tell(format_args!("is told {reply:?}"));
        if self.running.is_none() || !self.has_asked {
            return node.core().wrong(format!("a client is answered twice: {reply:?}"));
        }
        match reply {
            Reply::Opened(session) if self.session.is_none() => {
                (self.session, self.command) = (Some(session), 1);
                self.ask(now, node);
            }
            Reply::Done(_) if self.is_ended => {
                node.core().wrong("a session goes on of which was said that it has ended".into());
            }
            Reply::Done(bytes) if self.session.is_some() => {
                node.oracle().ends(self.number, bytes);
                self.is_idle(now, node);
                if self.is_last {
                    // Each host can be had now, whatever it has met before.
                    self.leave(node);
                    self.host = (self.host + 1) % usize::from(node.known().plan.hosts);
                }
            }
            Reply::Refused(Refusal::Expired) if self.session.is_some() && self.is_last => {
                node.core().wrong("the session of the only client that is left has ended".into());
            }
            Reply::Refused(Refusal::Expired)
                if self.session.is_some() && !self.is_ended && self.rng.one_in(3) =>
            {
                (self.is_ended, self.is_unknown) = (true, true);
                self.another_host(now, node);
            }
            Reply::Refused(Refusal::Expired) if self.session.is_some() => {
                self.is_ended = false;
                node.oracle().work.expired += 1;
                node.oracle().forgets(self.number);
                self.session = None;
                self.is_idle(now, node);
            }
            Reply::Refused(
                Refusal::Busy | Refusal::Full | Refusal::Late | Refusal::TooFew(_) | Refusal::Replaced(_),
            ) => {
                node.oracle().work.refused += 1;
                self.another_host(now, node);
                // Nothing was done, if no other host was asked.
                if !self.is_last && !self.is_unknown && self.rng.one_in(3) {
                    node.oracle().takes_back(self.number);
                    (self.running, self.attempts) = (None, 0);
                }
            }
            Reply::Unknown(_) => {
                node.oracle().work.refused += 1;
                self.is_unknown = true;
                self.another_host(now, node);
            }
            other => node.core().wrong(format!("a client is told {other:?}, which cannot be")),
        }
    }

    fn is_idle<A: Simulated>(&mut self, now: Duration, node: &mut Node<'_, Oracle<A>>) {
        (self.running, self.attempts) = (None, 0);
        let pause = if self.is_last { 1000 } else { node.known().plan.pause };
        self.next = Some(now + Duration::from_nanos(1 + self.rng.exponential(pause)));
    }

    fn leave<A: Simulated>(&mut self, node: &mut Node<'_, Oracle<A>>) {
        if let Some(connection) = self.connection.take() {
            node.cut(connection);
        }
    }

    /// Leaves this host, and asks the next one a little later; the last client the same one again, as each must come to serve. What it has
    /// asked here may still be carried out.
    fn another_host<A: Simulated>(&mut self, now: Duration, node: &mut Node<'_, Oracle<A>>) {
        self.leave(node);
        node.oracle().work.sent_again += u64::from(std::mem::take(&mut self.has_asked));
        self.attempts += 1;
        if !self.is_last {
            self.host = (self.host + 1) % usize::from(node.known().plan.hosts);
        }
        self.next = Some(now + Duration::from_nanos(1 + self.rng.exponential(AGAIN)));
    }
}
