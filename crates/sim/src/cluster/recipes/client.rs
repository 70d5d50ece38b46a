//! A client: in each of its lanes it carries the recipe out, again and again.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::task::Poll;
use std::time::Duration;

use remanence_persist::recipe::{Requester, Rq, Run};
use remanence_persist::taxonomy::Transport;

use super::oracle::Oracle;
use super::server::{ACK, HELLO, READY};
use crate::cluster::core::{ConnectionId, Host};
use crate::cluster::link::Link;
use crate::cluster::stages::Verb;
use crate::cluster::{Input, Moment, NodeId};
use crate::rng::Rng;

/// How often the last client carries the recipe out in each lane.
const LAST: u32 = 3;
/// How long a client whose clock is fast waits for the end of the faults, or for others.
const LOOK: Duration = Duration::from_millis(1);
/// After which time a connection that was lost is made again.
const AGAIN: Duration = Duration::from_micros(200);

/// What was posted on a connection, and what has come of it.
#[derive(Default)]
struct Posted {
    /// Which carrying out it is for now.
    number: u64,
    /// Work requests that were posted, and those that are completed.
    sent: u64,
    told: u64,
    /// Work requests up to the last one that is more than posted.
    executed: u64,
    /// Messages of this carrying out.
    messages: usize,
    acks: u64,
    /// What leaves when all FLUSHes before it are completed, and what comes behind that.
    fenced: VecDeque<Rq>,
}

struct Lane {
    id: usize,
    server: NodeId,
    link: Link,
    /// The server has let it in.
    is_ready: bool,
    left: u32,
    posted: Posted,
    run: Option<Run>,
    next: Duration,
}

pub(super) struct Client {
    rng: Rng,
    is_last: bool,
    lanes: Vec<Lane>,
    /// When it looks whether its time has come.
    look: Option<Duration>,
}

/// How a run posts and waits in a lane.
struct Wire<'a, 'b, 'c> {
    host: &'a mut Host<'b, Oracle>,
    connection: ConnectionId,
    lane: usize,
    posted: &'c mut Posted,
}

impl Wire<'_, '_, '_> {
    /// Posts what may leave now.
    fn leave(&mut self) {
        while let Some(step) = self.posted.fenced.front().copied() {
            if matches!(step, Rq::FencedWrite(_)) && self.posted.told < self.posted.executed {
                return;
            }
            self.posted.fenced.pop_front();
            self.send(step);
        }
    }

    fn send(&mut self, step: Rq) {
        let (oracle, lane, number) = (self.host.known(), self.lane, self.posted.number);
        let placed =
            |update| (oracle.layout.place(lane, number, update), oracle.content(lane, number, update));
        let verb = match step {
            Rq::Write(update) | Rq::FencedWrite(update) => {
                let (at, bytes) = placed(update);
                Verb::Write { at, bytes }
            }
            Rq::AtomicWrite(update) => {
                let (at, bytes) = placed(update);
                Verb::Atomic { at, bytes }
            }
            Rq::WriteImm(update) => {
                let ((at, bytes), tells) =
                    (placed(update), oracle.message(lane, number, self.posted.messages));
                Verb::WriteImm { at, bytes, tells }
            }
            Rq::Send(_) => Verb::Send { bytes: oracle.message(lane, number, self.posted.messages) },
            Rq::Flush(flush) => Verb::Flush(flush),
            Rq::Comp | Rq::Receive => return,
        };
        self.posted.messages += usize::from(matches!(step, Rq::WriteImm(_) | Rq::Send(_)));
        self.posted.sent += 1;
        if matches!(step, Rq::AtomicWrite(_) | Rq::Flush(_)) {
            self.posted.executed = self.posted.sent;
        }
        self.host.post(self.connection, verb);
    }
}

impl Requester for Wire<'_, '_, '_> {
    type Error = Infallible;

    fn post(&mut self, step: Rq) -> Result<(), Infallible> {
        self.posted.fenced.push_back(step);
        self.leave();
        Ok(())
    }

    fn completed(&mut self) -> Result<bool, Infallible> {
        let Posted { sent, told, executed, fenced, .. } = &*self.posted;
        // iWARP completes what is posted when its own TCP has it.
        let due = match self.host.known().plan.config.transport {
            Transport::Roce => sent,
            Transport::Iwarp => executed,
        };
        Ok(fenced.is_empty() && told >= due)
    }

    fn acknowledged(&mut self) -> Result<bool, Infallible> {
        let any = self.posted.acks > 0;
        self.posted.acks -= u64::from(any);
        Ok(any)
    }
}

impl Client {
    pub(super) fn boot(host: &mut Host<'_, Oracle>) -> Self {
        let (node, life, now) = (host.node(), host.life(), host.now());
        let oracle = host.known();
        let number = node - usize::from(oracle.plan.servers);
        let is_last = number == usize::from(oracle.plan.clients);
        let lanes = oracle.lanes(number);
        let rng = Rng::new(oracle.seed, (8000 + node as u64) << 32 ^ u64::from(life));
        // What it had under way died with it.
        for (lane, _) in &lanes {
            host.oracle().ends(*lane, false);
        }
        let lane = |(id, server)| {
            let link = Link::Down(now);
            let posted = Posted::default();
            Lane { id, server, link, is_ready: false, left: LAST, posted, run: None, next: now }
        };
        Self { rng, is_last, lanes: lanes.into_iter().map(lane).collect(), look: Some(now) }
    }

    pub(super) fn deadline(&self) -> Option<Duration> {
        let lanes = self.lanes.iter().filter_map(|lane| {
            lane.link.deadline().or_else(|| (lane.is_ready && lane.run.is_none()).then_some(lane.next))
        });
        self.look.or_else(|| lanes.min())
    }

    pub(super) fn on(&mut self, input: Input, host: &mut Host<'_, Oracle>) {
        let (now, time, heals) = (host.now(), host.core().now(), host.known().plan.heals);
        if self.is_last && (time < heals || host.known().running > 0 && self.look.is_some()) {
            // All others are to come to their ends.
            self.look = Some(now + LOOK);
            return;
        }
        self.look = None;
        if let Some(connection) = input.connection() {
            self.take(now, connection, input, host);
        }
        for n in 0..self.lanes.len() {
            let lane = &mut self.lanes[n];
            lane.link.go_on(now, lane.server, host);
            let (Some(connection), true) = (lane.link.up(), lane.is_ready) else { continue };
            if lane.run.is_none() && lane.next <= now {
                let is_over = !self.is_last && time >= heals;
                let left = if self.is_last { &mut lane.left } else { &mut host.oracle().operations[lane.id] };
                if *left == 0 || is_over {
                    // It has done all that it had to do.
                    lane.is_ready = false;
                    continue;
                }
                *left -= 1;
                let oracle = host.oracle();
                let number = oracle.begins(lane.id);
                (lane.posted.number, lane.posted.messages) = (number, 0);
                lane.run = Some(Run::new(&oracle.plan.recipe, &oracle.plan.config));
            }
            let Some(run) = &mut lane.run else { continue };
            let (id, server, number) = (lane.id, lane.server, lane.posted.number);
            let mut wire = Wire { host: &mut *host, connection, lane: id, posted: &mut lane.posted };
            wire.leave();
            let Poll::Ready(Ok(_)) = run.poll(&mut wire) else { continue };
            lane.run = None;
            host.oracle().ends(id, true);
            host.tell(format_args!("update {number} of lane {id} is durable"));
            host.moment(Moment::Acknowledge, Some(connection));
            let core = host.core();
            let disk = core.nodes[server].disks[0].durable();
            if let Err(why) = core.oracle.would_be(&disk, server, Some(id)) {
                core.wrong(format!("server {server}, if its power went now: {why}"));
            }
            lane.next = now + Duration::from_nanos(1 + self.rng.exponential(host.known().plan.pause));
        }
        if self.is_last && self.lanes.iter().all(|lane| lane.left == 0 && lane.run.is_none()) {
            host.oracle().finished = true;
        }
    }

    fn take(&mut self, now: Duration, connection: ConnectionId, input: Input, host: &mut Host<'_, Oracle>) {
        let Some(lane) = self.lanes.iter_mut().find(|lane| lane.link.connection() == Some(connection)) else {
            return;
        };
        match input {
            Input::Connected { .. } => {
                lane.link = Link::Up(connection);
                let [low, high] = (lane.id as u16).to_le_bytes();
                host.send(connection, vec![HELLO, low, high]);
            }
            Input::Lost { .. } => {
                (lane.link, lane.is_ready) = (Link::Down(now + AGAIN), false);
                (lane.run, lane.posted) = (None, Posted::default());
                host.oracle().ends(lane.id, false);
            }
            Input::Message { bytes, .. } => match bytes[..] {
                [READY] => lane.is_ready = true,
                [ACK] => lane.posted.acks += 1,
                _ => host.core().wrong(format!("a server has said {bytes:?}")),
            },
            Input::Written { .. } => lane.posted.told += 1,
            _ => {}
        }
    }
}
