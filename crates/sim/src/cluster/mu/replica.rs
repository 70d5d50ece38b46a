//! A replica of the group on a node: its machine, driven by connections, a disk that is its memory, and a clock.

use std::collections::BTreeMap;
use std::time::Duration;

use remanence_coord::mu::memory::{grant_at, request_at};
use remanence_coord::mu::{Action, Input as MuInput, Memory, Plane, Refusal, Replica};
use remanence_pmem::layout::Uuid;

use super::client::Reply;
use super::oracle::{Oracle, State, Which, lost, parse};
use crate::cluster::core::{ConnectionId, Core, Host, blank_disk};
use crate::cluster::disk::Disk;
use crate::cluster::link::Link;
use crate::cluster::wire::NOT_LET;
use crate::cluster::{Input, Moment};
use crate::rng::Rng;

pub(super) struct Member {
    replica: Replica<Disk>,
    rng: Rng,
    /// To each replica, on both planes; those to itself are never used.
    links: Vec<[Link; 2]>,
    /// Changes of rights that are under way, and when they are done.
    switches: Vec<(Duration, MuInput)>,
    state: State,
    /// Who is to be answered.
    asked: BTreeMap<u64, (ConnectionId, Which)>,
    tokens: u64,
    leads: Option<u64>,
}

/// A disk with the memory of a replica that has nothing.
pub(super) fn make(core: &mut Core<Oracle>, node: usize) -> Disk {
    let geometry = core.oracle.plan.geometry;
    let disk = blank_disk(geometry.size(), core.oracle.plan.domain);
    Memory::create(&disk, geometry, node as u16, Uuid([7; 16]), core.oracle.salt())
        .expect("a new disk is healthy");
    disk
}

impl Member {
    pub(super) fn boot(host: &mut Host<'_, Oracle>) -> Result<Self, String> {
        let (now, me) = (host.now(), host.node());
        let stream = (4000 + me as u64) << 32 ^ u64::from(host.life());
        let oracle = host.known();
        let (seed, options, servers) = (oracle.seed, oracle.plan.options, oracle.plan.servers);
        let replica = Replica::open(now, host.disk(0), options).map_err(|e| e.to_string())?;
        let mut member = Self {
            replica,
            rng: Rng::new(seed, stream),
            links: vec![[Link::Down(now); 2]; servers.into()],
            switches: Vec::new(),
            state: State::default(),
            asked: BTreeMap::new(),
            tokens: 0,
            leads: None,
        };
        member.goes_on(now, host);
        Ok(member)
    }

    pub(super) const fn applied(&self) -> u64 {
        self.replica.applied()
    }

    pub(super) fn deadline(&self) -> Option<Duration> {
        let links = self.links.iter().flatten().filter_map(Link::deadline);
        let switches = self.switches.iter().map(|(at, _)| *at);
        links.chain(switches).chain(self.replica.deadline()).min()
    }

    fn find(&self, connection: ConnectionId) -> Option<(usize, Plane)> {
        let all = self.links.iter().enumerate();
        let mut all =
            all.flat_map(|(peer, links)| Plane::ALL.map(|plane| (peer, plane, links[plane as usize])));
        all.find(|(.., link)| link.connection() == Some(connection)).map(|(peer, plane, _)| (peer, plane))
    }

    pub(super) fn on(&mut self, input: Input, host: &mut Host<'_, Oracle>) {
        let now = host.now();
        let of = input.connection().and_then(|connection| self.find(connection));
        match (input, of) {
            (Input::Message { connection, bytes }, None) => self.is_asked(now, connection, bytes, host),
            (Input::Connected { connection }, Some((peer, plane))) => {
                self.links[peer][plane as usize] = Link::Up(connection);
                self.replica.handle(now, MuInput::Connected { peer, plane });
            }
            (Input::Lost { why, .. }, Some((peer, plane))) => {
                host.oracle().work.rejected += u64::from(why == NOT_LET);
                let reconnect = Duration::from_nanos(host.known().plan.reconnect);
                self.links[peer][plane as usize] = Link::Down(now + reconnect);
                self.replica.handle(now, MuInput::Lost { peer, plane });
            }
            (Input::Read { bytes, .. }, Some((peer, plane))) => {
                self.replica.handle(now, MuInput::Read { peer, plane, bytes });
            }
            (Input::Durable { .. }, Some((peer, _))) => self.replica.handle(now, MuInput::Durable { peer }),
            (Input::Written { .. }, Some((peer, plane))) => {
                self.replica.handle(now, MuInput::Written { peer, plane });
            }
            (Input::Lost { connection, .. }, None) => self.asked.retain(|_, (of, _)| *of != connection),
            _ => self.replica.handle(now, MuInput::Timeout),
        }
        self.goes_on(now, host);
    }

    fn is_asked(
        &mut self,
        now: Duration,
        connection: ConnectionId,
        value: Vec<u8>,
        host: &mut Host<'_, Oracle>,
    ) {
        let Ok((which, command)) = parse(&value) else {
            return host.core().wrong(format!("what a client sent is no command: {value:?}"));
        };
        self.tokens += 1;
        self.asked.insert(self.tokens, (connection, which));
        let token = self.tokens;
        let is_read = host.known().plan.own.reads && self.state.read(command).is_some();
        let input = if is_read { MuInput::Confirm { token } } else { MuInput::Propose { token, value } };
        self.replica.handle(now, input);
    }

    /// Does what is due and what the machine says, until it says nothing more.
    fn goes_on(&mut self, now: Duration, host: &mut Host<'_, Oracle>) {
        for (_, done) in self.switches.extract_if(.., |(at, _)| *at <= now).collect::<Vec<_>>() {
            self.switches(now, done, host);
        }
        for (peer, plane) in (0..self.links.len()).flat_map(|peer| Plane::ALL.map(|plane| (peer, plane))) {
            let is_due = self.links[peer][plane as usize].deadline().is_some_and(|until| until <= now);
            if peer != host.node() && is_due {
                self.connects(peer, plane, host);
            } else if is_due {
                self.links[peer][plane as usize] = Link::Down(Duration::MAX);
            }
        }
        while let Some(action) = self.replica.poll_action() {
            self.acts(now, action, host);
        }
        let leads = self.replica.leads();
        if leads.is_some() && leads != self.leads {
            host.oracle().work.led += 1;
            host.tell(format_args!("leads with number {:x}", leads.unwrap_or(0)));
            host.moment(Moment::Serve, None);
        }
        self.leads = leads;
    }

    /// A new connection, on which the peer lets nothing be written but two words, or nothing at all.
    fn connects(&mut self, peer: usize, plane: Plane, host: &mut Host<'_, Oracle>) {
        let (me, connection) = (host.node(), host.connect(peer));
        let rooms = match plane {
            Plane::Background => BTreeMap::from([(request_at(me), 8), (grant_at(me), 8)]),
            Plane::Replication => BTreeMap::new(),
        };
        host.begins_with_rooms(connection, rooms);
        if plane == Plane::Replication {
            host.oracle().replication[peer].push((connection, me));
        }
        self.links[peer][plane as usize] = Link::Connecting(connection);
    }

    /// A change of rights is done.
    fn switches(&mut self, now: Duration, done: MuInput, host: &mut Host<'_, Oracle>) {
        let (me, plan) = (host.node(), &host.known().plan);
        let (is_guarded, cycles, zone) = (plan.guarded, plan.cycles, plan.geometry.zone());
        let mut all = std::mem::take(&mut host.oracle().replication[me]);
        // What is lost, and was followed by another one, is of no use any more.
        let last: BTreeMap<usize, ConnectionId> =
            all.iter().map(|(connection, from)| (*from, *connection)).collect();
        all.retain(|(connection, from)| host.is_live(*connection) || last[from] == *connection);
        for (connection, from) in &all {
            let has_right = !host.rooms(*connection).is_empty();
            match done {
                MuInput::Revoked if is_guarded && has_right => {
                    host.rooms(*connection).clear();
                    if self.rng.one_in(cycles) {
                        host.cut(*connection);
                    }
                }
                // The one that it has now, and no earlier one.
                MuInput::Allowed { peer } if peer == *from => host.rooms(*connection).clear(),
                _ => {}
            }
        }
        if let MuInput::Allowed { peer } = done {
            host.oracle().work.granted += 1;
            let of_peer = all.iter().rfind(|(connection, from)| *from == peer && host.is_live(*connection));
            if let Some((connection, _)) = of_peer {
                host.rooms(*connection).insert(zone.start, zone.end - zone.start);
            }
        }
        host.oracle().replication[me] = all;
        host.tell(format_args!("{done:?}"));
        if done == MuInput::Revoked {
            host.moment(Moment::Promise, None);
        }
        self.replica.handle(now, done);
    }

    fn acts(&mut self, now: Duration, action: Action, host: &mut Host<'_, Oracle>) {
        let link = |peer: usize, plane: Plane| self.links[peer][plane as usize].up();
        match action {
            Action::Read { peer, plane, offset, len } => {
                if let Some(connection) = link(peer, plane) {
                    host.read(connection, 0, offset, len);
                }
            }
            Action::Write { peer, plane, offset, bytes } => {
                if let Some(connection) = link(peer, plane) {
                    if offset == request_at(host.node()) {
                        host.oracle().work.tried += 1;
                        host.tell(format_args!("asks replica {peer}"));
                        host.moment(Moment::Try, None);
                    }
                    host.write(connection, 0, offset, bytes);
                }
            }
            Action::Update { peer, updates } => {
                if let Some(connection) = link(peer, Plane::Replication) {
                    host.update(connection, 0, updates);
                }
            }
            Action::Reconnect { peer, plane } => {
                if let Some(connection) = self.links[peer][plane as usize].connection() {
                    host.cut(connection);
                }
                self.connects(peer, plane, host);
            }
            Action::Revoke => self.will_switch(now, MuInput::Revoked, host),
            Action::Allow { peer } => self.will_switch(now, MuInput::Allowed { peer }, host),
            Action::Apply { index, value, token } => self.applies(index, value, token, host),
            Action::Restore { index, state } => {
                host.tell(format_args!("has the state at {index}"));
                host.oracle().work.restored += u64::from(index > 0 && self.state != State::default());
                match State::parse(&state) {
                    Ok(state) => self.state = state,
                    Err(_) => host.core().wrong(format!("a snapshot at {index} is none: {state:?}")),
                }
                self.says(host, |oracle| oracle.has_state(index, &state));
            }
            Action::Snapshot { index } => {
                host.oracle().work.snapshots += 1;
                self.replica.handle(now, MuInput::Snapshot { index, state: self.state.emit() });
            }
            Action::Confirmed { token } => {
                host.oracle().work.read += 1;
                if let Some(answer) = self.state.read(&[]) {
                    self.answers(token, host, |which| Reply::Done(which, answer));
                }
            }
            Action::Refuse { token, why } => {
                host.oracle().work.refused += 1;
                host.oracle().work.busy += u64::from(why == Refusal::Busy);
                match why {
                    Refusal::Elsewhere { leader } => {
                        let leader = leader.map(|leader| leader as u8);
                        self.answers(token, host, |which| Reply::Elsewhere(which, leader));
                    }
                    Refusal::Busy => self.answers(token, host, Reply::Busy),
                    Refusal::TooLong => host.core().wrong("a command is too long".into()),
                }
            }
            Action::Forget { token } => {
                host.oracle().work.forgotten += 1;
                self.answers(token, host, Reply::Unknown);
            }
            Action::Stop => {
                host.tell(format_args!("stops, as its disk has failed"));
                let failed = host.has_no_power() || host.disk(0).has_failed();
                if !failed {
                    host.core().wrong("a replica stops though its disk is healthy".into());
                }
            }
        }
    }

    fn says(&mut self, host: &mut Host<'_, Oracle>, what: impl FnOnce(&mut Oracle) -> Result<(), String>) {
        // What a process does whose power is gone nobody sees.
        if host.has_no_power() {
            return;
        }
        if let Err(wrong) = what(host.oracle()) {
            let node = host.node();
            host.core().wrong(format!("replica {node}: {wrong}"));
        }
    }

    fn will_switch(&mut self, now: Duration, done: MuInput, host: &mut Host<'_, Oracle>) {
        let takes = Duration::from_nanos(1 + self.rng.exponential(host.known().plan.switches));
        self.switches.push((now + takes, done));
    }

    fn applies(
        &mut self,
        index: u64,
        value: Option<Vec<u8>>,
        token: Option<u64>,
        host: &mut Host<'_, Oracle>,
    ) {
        host.tell(format_args!("applies {index}: {:?}", value.as_deref().map(parse)));
        self.says(host, |oracle| oracle.applies(index, value.as_deref()));
        let answer = value.as_deref().and_then(|value| self.state.apply(value));
        let Some(token) = token else { return };
        if !host.has_no_power() {
            host.oracle().acknowledged.insert(index);
            if lost(host.core(), [index].iter()).is_some() {
                host.core().wrong(format!("index {index} is acknowledged, and not durable on a majority"));
            }
        }
        host.moment(Moment::Acknowledge, None);
        match answer {
            Some((which, answer)) => self.answers(token, host, |_| Reply::Done(which, answer)),
            None => drop(self.asked.remove(&token)),
        }
    }

    fn answers(&mut self, token: u64, host: &mut Host<'_, Oracle>, reply: impl FnOnce(Which) -> Reply) {
        if let Some((connection, which)) = self.asked.remove(&token) {
            host.send(connection, reply(which).emit());
        }
    }
}
