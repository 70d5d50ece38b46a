//! Byp4ss: a switch that scatters the RoCEv2 requests of one leader to a group of replicas and gathers their answers, sans-IO.
//!
//! The leader has one reliable connection, to the switch, and the switch one to each replica; none of them sees more than an ordinary peer. A
//! request of the leader goes out once for each replica (`scatter.rs`), and the leader is told what enough of them have said (`gather.rs`). Whatever is not
//! addressed to the switch goes on untouched. Groups are made by connection management (`connect.rs`), or by who runs the switch ([`Switch::make_group`]).
//!
//! [`Switch::handle`] takes a packet, from its IP header to its ICRC, and gives what leaves in its stead: no sockets, no clocks, no threads. The same
//! packets in give the same packets out on every data plane; [`vectors`] are the file that they are held to.
//!
//! Read first: IBA Vol 1, 9.7 (reliable service); paper 000, chapter 7; `docs/switch.md`, which has what is not here yet. The data plane in userspace is `remanence-switch-live`.
//!
//! What it does not do: RoCEv2 packets are not authenticated. Who is not the leader, or not the replica, is told by its address, as on any RDMA
//! fabric; who can forge that, and knows a QP's number, can forge packets of the group.
#![forbid(unsafe_code)]
#![warn(clippy::wildcard_enum_match_arm)]

mod access;
mod connect;
mod frame;
mod gather;
mod group;
pub mod icrc;
mod port;
pub mod private;
mod reads;
mod report;
mod scatter;
pub mod vectors;

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::ops::Range;
use std::time::Duration;

use remanence_rnic::Instant;
use remanence_wire::cm::ServiceId;
use remanence_wire::{Mtu, Qpn};

use crate::connect::Control;
use crate::frame::{Frame, NotOurs};
use crate::group::Group;
use crate::icrc::Advance;
use crate::port::Port;

pub use access::{Access, BadNet, Net};
pub use group::{
    Endpoint, GroupError, GroupId, LAG_MAX, REPLICAS_MAX, Replica, ReplicaView, Spec, View, WINDOW,
};
pub use report::{Report, Stats};

/// What a switch is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// Its own IP address, to which leaders and replicas are connected.
    pub addr: IpAddr,
    /// Numbers for its QPs; a group takes one, and one for each replica. QP 0 and QP 1 are special and never part of it.
    pub qpns: Range<u32>,
    /// Services of replicas for which a leader may ask for a group; none: groups are made by [`Switch::make_group`] alone.
    pub services: Vec<ServiceId>,
    /// Who may ask for a group, and of whom.
    pub access: Access,
    /// The UDP port that all packets leave from, where the data plane has one only; `None`: a packet that is rewritten keeps its sender's.
    pub src_port: Option<u16>,
    /// The largest path MTU that the data plane carries: who asks for more is refused.
    pub mtu: Mtu,
    /// How long replicas are waited for that have said nothing yet, when enough have agreed.
    pub grace: Duration,
    /// The GUID that its connection management messages have, its own.
    pub guid: u64,
    /// Numbers of its connections come from this.
    pub seed: u64,
}

impl Config {
    /// A switch with these numbers for its QPs that serves no connection requests.
    #[must_use]
    pub fn new(addr: IpAddr, qpns: Range<u32>) -> Self {
        Self {
            addr,
            qpns,
            services: Vec::new(),
            access: Access::default(),
            src_port: None,
            mtu: Mtu::B4096,
            grace: Duration::from_millis(10),
            guid: 0,
            seed: 0,
        }
    }
}

/// A group that was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Made {
    /// How reports name it.
    pub id: GroupId,
    /// The switch's QP for the leader. Those for the replicas are the next ones, in order.
    pub broadcast: Qpn,
}

impl Made {
    /// The switch's QP for a replica.
    #[must_use]
    pub const fn aggregate(&self, replica: usize) -> Qpn {
        Qpn::new(self.broadcast.value() + 1 + replica as u32)
    }
}

/// Whose a QP of the switch is.
#[derive(Clone, Copy, Debug)]
enum Role {
    Leader(GroupId),
    Replica(GroupId, usize),
    /// Nobody's yet, or not in its group.
    Reserved,
}

/// A switch with its groups.
#[derive(Debug)]
pub struct Switch {
    config: Config,
    advance: Advance,
    control: Control,
    groups: BTreeMap<GroupId, Group>,
    roles: BTreeMap<u32, Role>,
    /// Of the next group.
    next_id: u64,
    /// Where the search for free QP numbers begins: those of a group that is over come again as late as can be.
    next_qpn: u32,
    stats: Stats,
    reports: VecDeque<Report>,
    scratch: Vec<u8>,
}

impl Switch {
    /// A switch without groups.
    ///
    /// # Panics
    /// The numbers for QPs are none that QPs may have.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let qpns = &config.qpns;
        assert!(qpns.start > 1 && qpns.end < Qpn::MULTICAST.value(), "{qpns:?} are not numbers for QPs");
        Self {
            next_qpn: config.qpns.start,
            control: Control::new(&config),
            config,
            advance: Advance::new(),
            groups: BTreeMap::new(),
            roles: BTreeMap::new(),
            next_id: 1,
            stats: Stats::default(),
            reports: VecDeque::new(),
            scratch: Vec::new(),
        }
    }

    /// Makes a group. Groups of the same service that share a replica and have an earlier leader are over: their QPs are no more, and what still comes to them
    /// counts nowhere. The QPs' numbers are new, so that no late answer is taken for one to this group.
    ///
    /// # Errors
    /// There cannot be such a group, and nothing has changed.
    pub fn make_group(&mut self, now: Instant, spec: Spec) -> Result<Made, GroupError> {
        let count = 1 + spec.replicas.len() as u32;
        let broadcast = self.reserve(count).ok_or(GroupError::Numbers)?;
        let made = |id| Made { id, broadcast };
        let aggregates: Vec<Qpn> =
            (0..spec.replicas.len()).map(|at| made(GroupId(0)).aggregate(at)).collect();
        let id = self.make_at(now, spec, broadcast, count, &aggregates);
        if id.is_err() {
            self.release(broadcast, count);
        }
        id.map(made)
    }

    /// Makes a group of `count` numbers that are reserved for it, from `broadcast` on, of which these are the replicas'.
    fn make_at(
        &mut self,
        now: Instant,
        spec: Spec,
        broadcast: Qpn,
        count: u32,
        aggregates: &[Qpn],
    ) -> Result<GroupId, GroupError> {
        spec.check(self.config.addr)?;
        let rivals = || self.groups.values().filter(|group| group.spec.meets(&spec));
        let is_newer = |other: &Spec| {
            other.epoch > spec.epoch || other.epoch == spec.epoch && other.leader.addr != spec.leader.addr
        };
        if let Some(rival) = rivals().find(|group| is_newer(&group.spec)) {
            return Err(GroupError::Stale(rival.spec.epoch));
        }
        let older: Vec<GroupId> =
            rivals().filter(|group| group.spec.epoch < spec.epoch).map(|group| group.id).collect();

        let id = GroupId(self.next_id);
        self.next_id += 1;
        for group in older {
            self.end_group(now, group);
            report::note(&mut self.reports, &mut self.stats, Report::Replaced { group, by: id });
        }
        self.roles.insert(broadcast.value(), Role::Leader(id));
        for (replica, qpn) in aggregates.iter().enumerate() {
            self.roles.insert(qpn.value(), Role::Replica(id, replica));
        }
        self.groups.insert(id, Group::new(id, spec, broadcast, count));
        Ok(id)
    }

    /// Takes numbers for the QPs of a group, and gives the first one.
    fn reserve(&mut self, count: u32) -> Option<Qpn> {
        let first = self.free_qpns(count)?;
        self.next_qpn = first + count;
        self.roles.extend((first..first + count).map(|qpn| (qpn, Role::Reserved)));
        Some(Qpn::new(first))
    }

    fn release(&mut self, first: Qpn, count: u32) {
        for qpn in first.value()..first.value() + count {
            self.roles.remove(&qpn);
        }
    }

    /// The first of `count` numbers in a row that no group has.
    fn free_qpns(&self, count: u32) -> Option<u32> {
        let Range { start, end } = self.config.qpns;
        let fits = |from: u32, until: u32| {
            let mut at = from;
            while at.checked_add(count).is_some_and(|behind| behind <= until) {
                match self.roles.range(at..at + count).next_back() {
                    None => return Some(at),
                    Some((taken, _)) => at = taken + 1,
                }
            }
            None
        };
        fits(self.next_qpn, end).or_else(|| fits(start, end))
    }

    /// Ends a group, and the connections that it was made by; whether it was there.
    pub fn end_group(&mut self, now: Instant, id: GroupId) -> bool {
        let Some(group) = self.groups.remove(&id) else { return false };
        self.release(group.broadcast, group.qpns);
        self.control.end(now, id);
        true
    }

    /// Ends all groups and all that is to be one, and from now on refuses who asks: as much as can be said of it leaves with the next
    /// [`handle_timeout`](Self::handle_timeout). Peers have heard of it when it [is at rest](Self::is_at_rest).
    pub fn close(&mut self, now: Instant) {
        self.groups.clear();
        self.roles.clear();
        self.control.close_all(now);
    }

    /// Nobody is waited for who has not confirmed yet that a connection is over.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        self.control.is_at_rest()
    }

    /// The groups that there are, in the order in which they were made.
    pub fn groups(&self) -> impl Iterator<Item = View> {
        self.groups.values().map(Group::view)
    }

    /// The tables that ICRCs are kept right by.
    #[must_use]
    pub const fn advance(&self) -> &Advance {
        &self.advance
    }

    /// Takes a packet, from its IP header on, and hands what leaves in its stead to `send`, each one to where its own IP header says.
    ///
    /// What is not RoCEv2, or not for the switch, leaves as it came; what is for the switch's own host among it is for the data plane to see.
    pub fn handle(&mut self, now: Instant, packet: &[u8], send: &mut dyn FnMut(&[u8])) {
        let frame = match Frame::parse(packet, self.config.addr) {
            Ok(frame) => frame,
            Err(NotOurs::Foreign) => {
                self.stats.forwarded += 1;
                return send(packet);
            }
            Err(NotOurs::Malformed) => {
                self.stats.malformed += 1;
                return;
            }
        };
        let qpn = frame.packet.dest_qp();
        if qpn == Qpn::GSI {
            let (mut port, control, _) = self.parts(send);
            control.receive(now, &frame, &mut port);
            self.settle_control(now);
            let (mut port, control, _) = self.parts(send);
            return control.transmit(&mut port);
        }
        let role = self.roles.get(&qpn.value()).copied();
        let (mut port, control, groups) = self.parts(send);
        let Some(role @ (Role::Leader(id) | Role::Replica(id, _))) = role else {
            port.stats.no_qp += 1;
            return;
        };
        let group = groups.get_mut(&id).expect("a QP belongs to a group that is there");
        match role {
            Role::Leader(_) if frame.ip.src == group.spec.leader.addr => {
                if !std::mem::replace(&mut group.is_up, true) {
                    control.is_up(id);
                }
                group.request(&frame, &mut port);
            }
            Role::Replica(_, at) if frame.ip.src == group.spec.replicas[at].end.addr => {
                group.response(at, &frame, &mut port);
            }
            Role::Leader(_) | Role::Replica(..) | Role::Reserved => port.stats.strangers += 1,
        }
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) at the latest; earlier does no harm.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.control.deadline()
    }

    /// Does what is due. Packets that wait to leave, for connections that were ended by calls, leave as well.
    pub fn handle_timeout(&mut self, now: Instant, send: &mut dyn FnMut(&[u8])) {
        self.control_timeout(now);
        let (mut port, control, _) = self.parts(send);
        control.transmit(&mut port);
    }

    /// The way out, connections, and groups.
    fn parts<'a>(
        &'a mut self,
        send: &'a mut dyn FnMut(&[u8]),
    ) -> (Port<'a>, &'a mut Control, &'a mut BTreeMap<GroupId, Group>) {
        let Self { config, advance, control, groups, stats, reports, scratch, .. } = self;
        let (addr, src_port) = (config.addr, config.src_port);
        (Port { addr, src_port, advance, scratch, stats, reports, send }, control, groups)
    }

    /// What the control plane should know, the oldest first.
    pub fn poll_report(&mut self) -> Option<Report> {
        self.reports.pop_front()
    }

    /// What was counted.
    #[must_use]
    pub const fn stats(&self) -> &Stats {
        &self.stats
    }
}
