//! How a group is made and ended by its leader: connection management.
//!
//! Read first: IBA Vol 1, chapter 12; paper 000, 7.4.1; [`private`](crate::private) for what the messages carry beside.
//!
//! The leader connects to the switch, which connects to each replica, for the same service. When all have said yes or no, or enough have said yes and the others have let
//! the grace pass, the leader is answered. Who said no, or nothing, is not in the group. The exchange of messages itself, with its repetitions, is
//! [`remanence_rnic::cm`]'s.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use remanence_rnic::cm::{Accept, CommId, Connect, Event, Listen, Manager, Path, Request, State, Transport};
use remanence_rnic::{AhAttr, Instant};
use remanence_wire::cm::RejReason;
use remanence_wire::opcode::Operation;
use remanence_wire::packet::{Headers, Repr};
use remanence_wire::{Gid, Opcode, Psn, Qkey, Qpn, bth, deth, mad};

use crate::Switch;
use crate::access::Denied;
use crate::frame::Frame;
use crate::group::{Endpoint, GroupId, LAG_MAX, Replica, Spec};
use crate::port::Port;
use crate::private::{Answer, Ask, Memory};
use crate::report::Report;

/// READs and FLUSHes that a group has under way at a time.
const DEPTH: u8 = 16;
/// The UDP port that messages leave from.
const SRC_PORT: u16 = 0xc001;
/// Requests that may be under way for a service at a time.
const BACKLOG: usize = 16;

/// Connections of the switch, and groups that are being made.
#[derive(Debug)]
pub(crate) struct Control {
    manager: Manager,
    grace: Duration,
    /// Whose each connection is.
    whose: BTreeMap<u32, Whose>,
    /// Groups to be, by the leader's connection.
    asked: BTreeMap<u32, Asked>,
    /// Connections of groups, the leader's first.
    made: BTreeMap<GroupId, Vec<CommId>>,
    psn: Psn,
    /// All connections end: those whose ends are to be confirmed.
    closing: Option<Vec<CommId>>,
}

#[derive(Clone, Copy, Debug)]
enum Whose {
    /// A leader's, who waits for its group.
    Asking,
    /// A replica's of a group that this leader's connection asks for.
    Asked(u32, usize),
    /// A leader's, who has a group.
    Leader(GroupId),
    /// A replica's of a group.
    Replica(GroupId, usize),
}

/// A group to be.
#[derive(Debug)]
struct Asked {
    request: Request,
    ask: Ask,
    broadcast: Qpn,
    members: Vec<Member>,
    /// When those who have not answered are not waited for any more.
    until: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
enum Member {
    Silent(CommId),
    Agreed(Agreed),
    /// It has refused, or was not there.
    Gone,
}

/// A replica that is to be in a group.
#[derive(Clone, Copy, Debug)]
struct Agreed {
    /// Its place in the leader's request.
    at: usize,
    id: CommId,
    replica: Replica,
    /// Of its memory.
    size: u64,
    /// READs and FLUSHes that it serves at a time.
    depth: u8,
}

impl Asked {
    fn agreed(&self) -> impl Iterator<Item = Agreed> {
        self.members.iter().filter_map(|member| match *member {
            Member::Agreed(agreed) => Some(agreed),
            Member::Silent(_) | Member::Gone => None,
        })
    }

    fn answer(&self, memory: Option<Memory>) -> Answer {
        Answer { memory, agreed: self.agreed().fold(0, |bits, one| bits | 1 << one.at) }
    }

    fn has_enough(&self) -> bool {
        self.agreed().count() >= usize::from(self.ask.writes.max(self.ask.reads).max(1))
    }

    fn is_waiting(&self) -> bool {
        self.members.iter().any(|member| matches!(member, Member::Silent(_)))
    }
}

impl Control {
    pub(crate) fn new(config: &crate::Config) -> Self {
        let mut manager = Manager::new(remanence_rnic::cm::Config {
            ca_guid: config.guid,
            gids: vec![Gid::from_ip(config.addr)],
            max_mtu: config.mtu,
            seed: config.seed,
            ..remanence_rnic::cm::Config::default()
        });
        for &service_id in &config.services {
            let listen = Listen { service_id, local: None, backlog: BACKLOG };
            manager.listen(&listen).expect("services are named once");
        }
        Self {
            manager,
            grace: config.grace,
            whose: BTreeMap::new(),
            asked: BTreeMap::new(),
            made: BTreeMap::new(),
            psn: Psn::new(0),
            closing: None,
        }
    }

    /// Ends everything, and begins nothing any more.
    pub(crate) fn close_all(&mut self, now: Instant) {
        self.closing = Some(self.whose.keys().map(|&id| CommId(id)).collect());
        self.manager.close_all(now);
        self.whose.clear();
        self.asked.clear();
        self.made.clear();
    }

    pub(crate) fn is_at_rest(&self) -> bool {
        let is_open = |&id: &CommId| self.manager.state(id) == Some(State::DreqSent);
        !self.closing.iter().flatten().any(is_open)
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        let graces = self.asked.values().filter_map(|asked| asked.until);
        graces.chain(self.manager.poll_timeout()).min()
    }

    /// A message for the switch has come.
    pub(crate) fn receive(&mut self, now: Instant, frame: &Frame<'_>, port: &mut Port<'_>) {
        let deth = frame.packet.deth();
        let is_gsi = deth.is_some_and(|deth| (deth.qkey, deth.src_qp) == (Qkey::GSI, Qpn::GSI));
        let payload: Option<&[u8; mad::LEN]> = frame.packet.payload().try_into().ok();
        match payload.filter(|_| is_gsi && frame.packet.info().operation == Operation::Send) {
            Some(_) if !frame.is_intact() => port.stats.damaged += 1,
            Some(mad) => self.manager.handle_mad(now, Gid::from_ip(frame.ip.src), mad),
            None => port.stats.malformed += 1,
        }
    }

    /// Sends the messages that are to leave.
    pub(crate) fn transmit(&mut self, port: &mut Port<'_>) {
        while let Some((path, mad)) = self.manager.poll_transmit() {
            let bth = bth::Repr::new(Opcode::UdSendOnly, Qpn::GSI, self.psn);
            self.psn = self.psn.next();
            let headers = Headers::Deth(deth::Repr { qkey: Qkey::GSI, src_qp: Qpn::GSI });
            let mad: &[u8; mad::LEN] = &mad;
            port.emit(path.remote.to_ip(), SRC_PORT, &Repr { bth, headers }, mad);
        }
    }

    /// The leader of a group has sent something, which is as good as the last message of its connection's making.
    pub(crate) fn is_up(&mut self, group: GroupId) {
        if let Some(&leader) = self.made.get(&group).and_then(|connections| connections.first()) {
            self.manager.communication_established(leader);
        }
    }

    /// A group is over: its connections end.
    pub(crate) fn end(&mut self, now: Instant, group: GroupId) {
        for id in self.made.remove(&group).unwrap_or_default() {
            self.close(now, id);
        }
    }

    /// A connection is of no use any more.
    fn close(&mut self, now: Instant, id: CommId) {
        self.whose.remove(&id.0);
        self.manager.close(now, id);
    }
}

impl Switch {
    /// Does what is due and what follows from what has come.
    pub(crate) fn settle_control(&mut self, now: Instant) {
        loop {
            if let Some(event) = self.control.manager.poll_event() {
                self.on_event(now, event);
                continue;
            }
            let is_due = |asked: &Asked| asked.until.is_some_and(|until| until <= now);
            let due = self.control.asked.iter().find(|(_, asked)| is_due(asked)).map(|(&leader, _)| leader);
            let Some(leader) = due else { return };
            self.decide(now, leader);
        }
    }

    pub(crate) fn control_timeout(&mut self, now: Instant) {
        self.control.manager.handle_timeout(now);
        self.settle_control(now);
    }

    fn on_event(&mut self, now: Instant, event: Event) {
        let whose = event.connection().and_then(|id| self.control.whose.get(&id.0).copied());
        match (event, whose) {
            (Event::ConnectRequest(request), _) => self.on_request(now, *request),
            (response @ Event::Response { .. }, Some(Whose::Asked(leader, at))) => {
                self.on_response(now, leader, at, &response);
            }
            (
                Event::Rejected { id, .. } | Event::Unreachable { id } | Event::Disconnected { id, .. },
                Some(whose),
            ) => self.on_end(now, id, whose),
            // That a connection is up is known by its packets; that its number may be used again is not asked. Others' are none of ours any more.
            (
                Event::Established { .. }
                | Event::TimewaitExit { .. }
                | Event::Response { .. }
                | Event::Rejected { .. }
                | Event::Unreachable { .. }
                | Event::Disconnected { .. }
                | Event::SidrRequest(_)
                | Event::SidrResponse { .. },
                _,
            ) => {}
        }
    }

    /// A leader asks for a group.
    fn on_request(&mut self, now: Instant, request: Request) {
        let Some((ask, broadcast)) = self.accepts(&request) else {
            // The manager forgets it, whatever it says of the reject.
            _ = self.control.manager.reject(request.id, RejReason::UNSUPPORTED, &[], &[]);
            return;
        };
        let leader = request.id.0;
        let IpAddr::V4(addr) = request.path.remote.to_ip() else { unreachable!("`accepts` looks at that") };
        let onward = Ask { addrs: vec![addr], ..ask.clone() }.to_bytes();
        let control = &mut self.control;
        control.whose.insert(leader, Whose::Asking);
        let mut members = Vec::new();
        for (at, &addr) in ask.addrs.iter().enumerate() {
            let connect = Connect {
                path: Path { local: request.path.local, remote: Gid::from(addr) },
                service_id: request.service_id,
                transport: Transport::Rc,
                qpn: Qpn::new(broadcast.value() + 1 + at as u32),
                responder_resources: 0,
                initiator_depth: request.responder_resources.min(DEPTH),
                retry_count: request.retry_count,
                rnr_retry_count: request.rnr_retry_count,
                srq: false,
                mtu: request.mtu,
                cma_port: request.cma.map(|cma| cma.src_port),
                private_data: &onward,
            };
            members.push(match control.manager.connect(now, &connect) {
                Ok(id) => {
                    control.whose.insert(id.0, Whose::Asked(leader, at));
                    Member::Silent(id)
                }
                Err(_) => Member::Gone,
            });
        }
        let asked = Asked { request, ask, broadcast, members, until: None };
        control.asked.insert(leader, asked);
        self.look(now, leader);
    }

    /// What a leader asks for, and numbers for its group, if there can be one.
    fn accepts(&mut self, request: &Request) -> Option<(Ask, Qpn)> {
        let ask = Ask::parse(&request.private_data)?;
        let leader = request.path.remote.to_ip();
        let is_fine =
            |addr: IpAddr| addr != self.config.addr && !addr.is_multicast() && !addr.is_unspecified();
        let twice = ask.addrs.iter().enumerate().any(|(at, addr)| ask.addrs[..at].contains(addr));
        let fits = |threshold: u8| (1..=ask.addrs.len()).contains(&threshold.into());
        let fair = request.transport == Transport::Rc
            && leader.is_ipv4()
            && self.config.addr.is_ipv4()
            && !twice
            && fits(ask.writes)
            && fits(ask.reads)
            && ask.addrs.iter().all(|&addr| is_fine(addr.into()));
        if !fair || self.control.closing.is_some() {
            return None;
        }
        if let Err(denied) = self.admits(leader, request, &ask) {
            let stats = &mut self.stats;
            *match denied {
                Denied::Leader => &mut stats.no_leader,
                Denied::Replica => &mut stats.no_replica,
                Denied::Proof => &mut stats.unproven,
                Denied::Bound => &mut stats.bounded,
            } += 1;
            return None;
        }
        let broadcast = self.reserve(1 + ask.addrs.len() as u32)?;
        Some((ask, broadcast))
    }

    /// Whether a leader may have that asked of these replicas, just now.
    fn admits(&self, leader: IpAddr, request: &Request, ask: &Ask) -> Result<(), Denied> {
        self.config.access.admits(leader, request.service_id, ask)?;
        let asked =
            || self.control.asked.values().filter(|other| other.request.path.remote.to_ip() == leader);
        let made = self.groups.values().filter(|group| group.spec.leader.addr == leader).count();
        let is_silent = |other: &Asked, addr: &Ipv4Addr| {
            let mut members = other.members.iter().zip(&other.ask.addrs);
            members.any(|(member, at)| matches!(member, Member::Silent(_)) && at == addr)
        };
        let waits = asked().any(|other| ask.addrs.iter().any(|addr| is_silent(other, addr)));
        if waits || made + asked().count() >= self.config.access.groups {
            return Err(Denied::Bound);
        }
        Ok(())
    }

    /// A replica agrees.
    fn on_response(&mut self, now: Instant, leader: u32, at: usize, response: &Event) {
        let &Event::Response { id, remote_qpn: qpn, initiator_depth: depth, ref private_data, .. } = response
        else {
            return;
        };
        let control = &mut self.control;
        let Some(asked) = control.asked.get_mut(&leader) else { return };
        let psn = control.manager.qp_rts(id).ok().and_then(|attr| attr.sq_psn);
        let agreed = Memory::parse(private_data).zip(psn);
        if let Some((memory, psn)) = agreed.filter(|_| control.manager.establish(id, &[]).is_ok()) {
            let end = Endpoint { addr: asked.ask.addrs[at].into(), qpn, psn };
            let replica = Replica { end, va: memory.va, rkey: memory.rkey, linux_flush: memory.linux_flush };
            asked.members[at] = Member::Agreed(Agreed { at, id, replica, size: memory.size, depth });
        } else {
            asked.members[at] = Member::Gone;
            control.close(now, id);
        }
        self.look(now, leader);
    }

    /// A connection is over, or will not be.
    fn on_end(&mut self, now: Instant, id: CommId, whose: Whose) {
        self.control.whose.remove(&id.0);
        match whose {
            // It has taken its request back, or the time for the answer is over.
            Whose::Asking => {
                if let Some(asked) = self.control.asked.remove(&id.0) {
                    self.give_up(now, &asked);
                }
            }
            Whose::Asked(leader, at) => {
                if let Some(asked) = self.control.asked.get_mut(&leader) {
                    asked.members[at] = Member::Gone;
                }
                self.look(now, leader);
            }
            Whose::Leader(group) => _ = self.end_group(now, group),
            Whose::Replica(group, replica) => self.leave(group, replica),
        }
    }

    /// Decides if there is nothing to wait for any more; sets the time until which there is.
    fn look(&mut self, now: Instant, leader: u32) {
        let Some(asked) = self.control.asked.get_mut(&leader) else { return };
        if !asked.is_waiting() {
            return self.decide(now, leader);
        }
        asked.until = asked.has_enough().then(|| asked.until.unwrap_or(now + self.control.grace));
    }

    /// Makes the group of those that have agreed, if they are enough.
    fn decide(&mut self, now: Instant, leader: u32) {
        let Some(mut asked) = self.control.asked.remove(&leader) else { return };
        for member in &mut asked.members {
            if let Member::Silent(id) = *member {
                self.control.close(now, id);
                *member = Member::Gone;
            }
        }
        let made = if asked.has_enough() { self.make_asked(now, &asked) } else { None };
        if made.is_none() {
            self.give_up(now, &asked);
            self.control.whose.remove(&leader);
            let answer = asked.answer(None).to_bytes();
            // One that the leader has taken back is gone.
            _ = self.control.manager.reject(asked.request.id, RejReason::CONSUMER_DEFINED, &[], &answer);
        }
    }

    /// There will be no such group.
    fn give_up(&mut self, now: Instant, asked: &Asked) {
        self.release(asked.broadcast, 1 + asked.members.len() as u32);
        for member in &asked.members {
            if let Member::Silent(id) | Member::Agreed(Agreed { id, .. }) = *member {
                self.control.close(now, id);
            }
        }
    }

    fn make_asked(&mut self, now: Instant, asked: &Asked) -> Option<()> {
        let Asked { request, ask, broadcast, .. } = asked;
        let replicas: Vec<Replica> = asked.agreed().map(|one| one.replica).collect();
        let aggregate = |one: Agreed| Qpn::new(broadcast.value() + 1 + one.at as u32);
        let qpns: Vec<Qpn> = asked.agreed().map(aggregate).collect();
        let peer = AhAttr::new(request.path.remote);
        let psn = self.control.manager.qp_rtr(request.id, peer).ok()?.rq_psn?;
        // Nobody's key is of use at another replica than its own, so that of the first is as good as any.
        let memory = Memory {
            va: 0,
            size: asked.agreed().map(|one| one.size).min()?,
            rkey: replicas.first()?.rkey,
            linux_flush: false,
        };
        let spec = Spec {
            service: request.service_id.0,
            epoch: ask.epoch,
            leader: Endpoint { addr: request.path.remote.to_ip(), qpn: request.remote_qpn, psn },
            replicas,
            mtu: request.mtu,
            va: memory.va,
            rkey: memory.rkey,
            writes: ask.writes.into(),
            reads: ask.reads.into(),
            lag: LAG_MAX,
        };
        let group = self.make_at(now, spec, *broadcast, 1 + asked.members.len() as u32, &qpns).ok()?;
        let accept = Accept {
            qpn: *broadcast,
            responder_resources: asked.agreed().map(|one| one.depth).fold(DEPTH, u8::min),
            initiator_depth: 0,
            rnr_retry_count: request.rnr_retry_count,
            srq: false,
            private_data: &asked.answer(Some(memory)).to_bytes(),
        };
        let control = &mut self.control;
        control.whose.insert(request.id.0, Whose::Leader(group));
        let mut connections = vec![request.id];
        for (at, one) in asked.agreed().enumerate() {
            control.whose.insert(one.id.0, Whose::Replica(group, at));
            connections.push(one.id);
        }
        control.made.insert(group, connections);
        if control.manager.accept(now, request.id, &accept).is_err() {
            // The leader has taken it back meanwhile.
            self.end_group(now, group);
        }
        Some(())
    }

    /// A replica has ended its connection.
    fn leave(&mut self, group: GroupId, replica: usize) {
        let Some(one) = self.groups.get_mut(&group).and_then(|group| group.progress.get_mut(replica)) else {
            return;
        };
        if !std::mem::replace(&mut one.out, true) {
            crate::report::note(&mut self.reports, &mut self.stats, Report::LeftOut { group, replica });
        }
    }
}
