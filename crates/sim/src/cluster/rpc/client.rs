//! A client: it has a session to each server that it calls, any number of calls under way, and ends sessions now and then.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use remanence_rpc::core::event::{CallError, Event, SessionId};
use remanence_rpc::header::{HEADER_LEN, Status};
use remanence_rpc::log::{APPEND, BOUNDS, READ, TRIM};

use super::end::{End, address};
use super::oracle::{Oracle, What, content};
use super::server::ECHO;
use crate::cluster::core::Host;
use crate::cluster::{Input, Moment, NodeId};
use crate::rng::Rng;

/// How often the last client calls each server.
const LAST: u32 = 3;
/// How long a client whose clock is fast waits for the end of the faults, or for others.
const LOOK: Duration = Duration::from_millis(1);

pub(super) struct Client {
    end: End,
    rng: Rng,
    /// Its place among the clients, strangers first.
    number: usize,
    is_last: bool,
    /// How often the last client calls each server still.
    left: u32,
    sessions: BTreeMap<NodeId, SessionId>,
    /// When it does something by itself.
    next: Option<Duration>,
}

impl Client {
    pub(super) fn boot(host: &mut Host<'_, Oracle>) -> Self {
        let (node, life, now) = (host.node(), host.life(), host.now());
        let oracle = host.oracle();
        // What it had under way died with it.
        oracle.forgets(node);
        let mut rng = Rng::new(oracle.seed, (7000 + node as u64) << 32 ^ u64::from(life));
        let after = rng.exponential(oracle.plan.pause);
        Self {
            number: node - usize::from(oracle.plan.servers),
            is_last: oracle.is_last(node),
            end: End::boot(host),
            rng,
            left: LAST,
            sessions: BTreeMap::new(),
            next: Some(now + Duration::from_nanos(after)),
        }
    }

    pub(super) fn sessions(&self) -> usize {
        self.end.core.sessions()
    }

    pub(super) fn deadline(&self) -> Option<Duration> {
        self.next.into_iter().chain(self.end.deadline()).min()
    }

    pub(super) fn on(&mut self, input: Input, host: &mut Host<'_, Oracle>) {
        self.end.take(input, host);
        let mut done = self.hear(host);
        let now = host.now();
        if done.is_ok() && self.next.is_some_and(|next| next <= now) {
            done = self.turn(now, host).and_then(|()| self.hear(host));
        }
        if let Err(why) = done {
            host.core().wrong(why);
        }
        self.end.transmit(host);
    }

    /// What has come.
    fn hear(&mut self, host: &mut Host<'_, Oracle>) -> Result<(), String> {
        let node = host.node();
        while let Some(event) = self.end.core.poll_event() {
            host.tell(format_args!("{event:?}"));
            match event {
                Event::Connected(_) if host.known().is_stranger(node) => {
                    return Err("a stranger has a session".into());
                }
                Event::Connected(_) => host.oracle().work.connected += 1,
                Event::Ended { session, why } => {
                    self.sessions.retain(|_, mine| *mine != session);
                    host.oracle().ended(node, why)?;
                }
                Event::Response { tag, status, body } => {
                    let before = host.known().work.appended;
                    host.oracle().answered(tag, status, &body.to_vec())?;
                    if status == Status::Done && host.known().work.appended > before {
                        host.moment(Moment::Acknowledge, None);
                    }
                }
                Event::Failed { tag, why } => host.oracle().failed(tag, why)?,
                Event::Accepted { .. } | Event::Request { .. } => {
                    return Err("nobody may call a client".into());
                }
            }
        }
        Ok(())
    }

    /// Its time has come.
    fn turn(&mut self, now: Duration, host: &mut Host<'_, Oracle>) -> Result<(), String> {
        let time = host.core().now();
        let is_busy = host.core().nodes.iter().any(|node| node.busy > time);
        let oracle = host.oracle();
        let (is_over, servers) = (time >= oracle.plan.heals, usize::from(oracle.plan.servers));
        if oracle.leaves.is_some() {
            for session in std::mem::take(&mut self.sessions).into_values() {
                self.end.core.disconnect(End::now(host), session);
            }
            // The last one sees the run end.
            self.next = self.is_last.then_some(now + 20 * LOOK);
            return Ok(());
        }
        self.next = Some(now + LOOK);
        if self.is_last {
            // All others are to come to their ends, and servers with what they began while their disks were slow.
            if !is_over || is_busy || oracle.is_waiting() {
                return Ok(());
            }
            if self.left == 0 {
                oracle.leaves = Some(time);
                return Ok(());
            }
            self.left -= 1;
            for server in 0..servers {
                self.call(server, What::Echo, host)?;
                self.call(server, What::Append, host)?;
            }
            return Ok(());
        }
        if is_over || oracle.operations[self.number] == 0 {
            return Ok(());
        }
        oracle.operations[self.number] -= 1;
        let (acks, pause) = (usize::from(oracle.plan.acks), oracle.plan.pause);
        let first = self.rng.index(servers);
        for server in (0..acks).map(|n| (first + n) % servers) {
            if self.rng.one_in(40)
                && let Some(session) = self.sessions.remove(&server)
            {
                self.end.core.disconnect(End::now(host), session);
            }
            let what = self.draw(server, host);
            self.call(server, what, host)?;
        }
        self.next = Some(now + Duration::from_nanos(1 + self.rng.exponential(pause)));
        Ok(())
    }

    /// What it calls next.
    fn draw(&mut self, server: NodeId, host: &mut Host<'_, Oracle>) -> What {
        let rng = &mut self.rng;
        if rng.below(100) >= host.known().plan.logged {
            return What::Echo;
        }
        let is_full = std::mem::take(&mut host.oracle().logs[server].is_full);
        let entry = host.known().entry(server, rng);
        match (rng.below(10), entry) {
            (_, Some((_, end))) if is_full => What::Trim(end),
            (0, Some((_, end))) => What::Trim(end),
            (1 | 2, Some((position, _))) => What::Read(position),
            (3, _) => What::Bounds(host.known().tail(server)),
            _ => What::Append,
        }
    }

    fn call(&mut self, server: NodeId, what: What, host: &mut Host<'_, Oracle>) -> Result<(), String> {
        let (now, node) = (End::now(host), host.node());
        let session = match self.sessions.get(&server) {
            Some(session) => *session,
            None => {
                let session =
                    self.end.core.connect(now, address(server)).ok_or("a client has too many sessions")?;
                self.sessions.insert(server, session);
                session
            }
        };
        let (tag, packet) = (host.oracle().next_tag(), host.known().plan.datagram - HEADER_LEN);
        let rng = &mut self.rng;
        let (service, request) = match what {
            What::Echo => {
                let len = [8, packet, packet + 1, 8 + rng.index(30_000)];
                (ECHO, content(tag, rng.pick(&len)))
            }
            What::Append => {
                let len = [8, 100, 700, 8 + rng.index(2_000)];
                (APPEND, content(tag, rng.pick(&len)))
            }
            What::Read(position) => (READ, position.to_be_bytes().to_vec()),
            What::Bounds(_) => (BOUNDS, Vec::new()),
            What::Trim(to) => (TRIM, to.to_be_bytes().to_vec()),
        };
        let len = request.len();
        match self.end.core.call(now, session, service, Arc::new(request), len as u32, tag) {
            Ok(()) => {
                host.tell(format_args!("calls server {server} with {tag}, {len} bytes: {what:?}"));
                host.oracle().begins(tag, node, server, what, len);
                Ok(())
            }
            Err((CallError::Full, _)) => Ok(()),
            Err((why, _)) => Err(format!("a call is not taken: {why}")),
        }
    }
}
