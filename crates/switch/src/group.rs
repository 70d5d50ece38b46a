//! A group: one requester, whose requests go to several replicas, and what it is told of their answers.

use std::collections::VecDeque;
use std::fmt;
use std::net::IpAddr;

use remanence_wire::aeth::{Aeth, Credits, NakCode};
use remanence_wire::{Msn, Mtu, Psn, Qpn, Rkey, aeth};
use thiserror::Error;

use crate::port::Port;
use crate::reads::{Read, Wait};
use crate::report::Report;

/// Replicas that a group may have.
pub const REPLICAS_MAX: usize = 32;
/// PSNs that a requester may be ahead of what it was told. With [`LAG_MAX`] it is less than half of the circle, from where on nobody could tell before
/// from after.
pub const WINDOW: u32 = 1 << 22;
/// PSNs that a replica may be behind what the leader was told, at most.
pub const LAG_MAX: u32 = WINDOW / 2;

/// The number of a group. None is used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GroupId(pub u64);

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The other end of one of the switch's connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Endpoint {
    /// Its IP address, of the same version as the switch's.
    pub addr: IpAddr,
    /// The number of its QP.
    pub qpn: Qpn,
    /// The PSN of the first request on the connection: the leader's own, or the one that the replica expects.
    pub psn: Psn,
}

/// A replica, and where its memory is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Replica {
    /// Its end of the connection.
    pub end: Endpoint,
    /// The address of the first byte that the group has there.
    pub va: u64,
    /// The key of that memory.
    pub rkey: Rkey,
    /// It is Linux Soft-RoCE, which takes a FLUSH only with its own form of the ICRC.
    pub linux_flush: bool,
}

/// A group, as somebody asks for it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Spec {
    /// What the group is for: of two groups of one service that share a replica, that with the lower epoch is over.
    pub service: u64,
    /// Of the leader; a new leader has a higher one.
    pub epoch: u64,
    /// Whose requests are scattered.
    pub leader: Endpoint,
    /// Who gets them, in the order in which answers and reports name them.
    pub replicas: Vec<Replica>,
    /// The path MTU of all connections.
    pub mtu: Mtu,
    /// Where the leader believes the memory to begin.
    pub va: u64,
    /// The key with which the leader reaches it. Another one is as wrong at the replicas as it was here.
    pub rkey: Rkey,
    /// So many replicas must have acknowledged what the leader is told to be acknowledged.
    pub writes: usize,
    /// So many replicas must have given the same answer to a READ. It counts as acknowledged too, so that `writes` have carried it out.
    pub reads: usize,
    /// So many PSNs may a replica be behind what the leader was told, until it is left out: [`LAG_MAX`] at most.
    pub lag: u32,
}

/// A group as it is just now, for who looks at it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct View {
    /// How reports name it.
    pub id: GroupId,
    /// What it is for.
    pub service: u64,
    /// Of the leader.
    pub epoch: u64,
    /// The leader's end of its connection.
    pub leader: Endpoint,
    /// The switch's QP for the leader.
    pub broadcast: Qpn,
    /// So many replicas must have acknowledged a request.
    pub writes: usize,
    /// So many replicas must agree on a READ.
    pub reads: usize,
    /// PSNs that the leader has sent and was not told about.
    pub open: u32,
    /// Why nothing is scattered any more.
    pub refused: Option<NakCode>,
    /// The replicas, in order.
    pub replicas: Vec<ReplicaView>,
}

/// A replica of a group, as it is just now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplicaView {
    /// Its end of the connection.
    pub end: Endpoint,
    /// PSNs by which it is behind what the leader was told; negative: ahead of that.
    pub lag: i32,
    /// It misses what the leader will not send again.
    pub behind: bool,
    /// It was left out, or has ended its connection.
    pub out: bool,
}

/// Why there is no such group.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum GroupError {
    /// There are no replicas, or more than [`REPLICAS_MAX`].
    #[error("a group has 1 to {REPLICAS_MAX} replicas")]
    Replicas,
    /// A threshold is zero, or more than there are replicas.
    #[error("a threshold is at least 1 and at most the number of replicas")]
    Threshold,
    /// Replicas may lag by nothing, or by more than can be counted.
    #[error("a replica may lag by 1 to {LAG_MAX} PSNs")]
    Lag,
    /// An address is the switch's own, or of the other IP version.
    #[error("{0} is not another host's address of the switch's IP version")]
    Address(IpAddr),
    /// The same replica's QP is named twice.
    #[error("two replicas have the same QP of {0}")]
    Twice(IpAddr),
    /// A replica is in a group of the same service that has a later leader, or another one of this epoch.
    #[error("a replica follows a leader of epoch {0}")]
    Stale(u64),
    /// All QP numbers of the switch are taken.
    #[error("the switch has no QP numbers left")]
    Numbers,
}

impl Spec {
    /// Whether a switch at `addr` can have such a group.
    pub(crate) fn check(&self, addr: IpAddr) -> Result<(), GroupError> {
        if !(1..=REPLICAS_MAX).contains(&self.replicas.len()) {
            return Err(GroupError::Replicas);
        }
        if [self.writes, self.reads].iter().any(|threshold| !(1..=self.replicas.len()).contains(threshold)) {
            return Err(GroupError::Threshold);
        }
        if !(1..=LAG_MAX).contains(&self.lag) {
            return Err(GroupError::Lag);
        }
        let ends = || self.replicas.iter().map(|replica| replica.end);
        if let Some(odd) =
            ends().chain([self.leader]).find(|end| end.addr == addr || end.addr.is_ipv4() != addr.is_ipv4())
        {
            return Err(GroupError::Address(odd.addr));
        }
        for (at, end) in ends().enumerate() {
            if ends().take(at).any(|other| (other.addr, other.qpn) == (end.addr, end.qpn)) {
                return Err(GroupError::Twice(end.addr));
            }
        }
        Ok(())
    }

    /// Whether both are of one service and have a replica in common.
    pub(crate) fn meets(&self, other: &Self) -> bool {
        let is_there = |addr| other.replicas.iter().any(|replica| replica.end.addr == addr);
        self.service == other.service && self.replicas.iter().any(|replica| is_there(replica.end.addr))
    }
}

/// How far a replica has come, in the leader's PSNs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    /// Everything up to it was acknowledged.
    pub(crate) acked: Psn,
    /// The replica's count of messages at that.
    pub(crate) msn: Msn,
    /// What it can receive beyond; `None` before it has said so.
    pub(crate) credits: Option<Credits>,
    /// It asked for what the leader will not send again, and was reported.
    pub(crate) behind: bool,
    /// It lags by more than it may, and counts no more.
    pub(crate) out: bool,
}

/// A group, and what has happened in it.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) id: GroupId,
    pub(crate) spec: Spec,
    /// The QP of the switch that the leader is connected to.
    pub(crate) broadcast: Qpn,
    /// So many numbers of QPs belong to the group, this one and the next.
    pub(crate) qpns: u32,
    /// The leader has sent something.
    pub(crate) is_up: bool,
    /// The leader was told all up to it.
    pub(crate) told: Psn,
    /// The leader has sent requests up to it, answers to READs included.
    pub(crate) sent: Psn,
    /// The count of messages that the leader was told last.
    msn: Msn,
    pub(crate) progress: Vec<Progress>,
    /// Requests beyond `told` with answers of their own, in order of PSNs.
    pub(crate) waits: VecDeque<Wait>,
    /// READs up to `told` whose answers the leader asked for again.
    pub(crate) replays: VecDeque<Read>,
    /// Why nothing is scattered any more.
    pub(crate) refused: Option<NakCode>,
    /// Where the leader was last asked to go back to, and has not yet.
    pub(crate) asked: Option<Psn>,
}

impl Group {
    pub(crate) fn new(id: GroupId, spec: Spec, broadcast: Qpn, qpns: u32) -> Self {
        let told = spec.leader.psn.sub(1);
        let begin = Progress { acked: told, msn: Msn::new(0), credits: None, behind: false, out: false };
        let progress = vec![begin; spec.replicas.len()];
        Self {
            id,
            spec,
            broadcast,
            qpns,
            is_up: false,
            told,
            sent: told,
            msn: Msn::new(0),
            progress,
            waits: VecDeque::new(),
            replays: VecDeque::new(),
            refused: None,
            asked: None,
        }
    }

    pub(crate) fn view(&self) -> View {
        let Spec { service, epoch, leader, writes, reads, .. } = self.spec;
        let of = |(replica, one): (&Replica, &Progress)| ReplicaView {
            end: replica.end,
            lag: self.told.diff(one.acked),
            behind: one.behind,
            out: one.out,
        };
        View {
            id: self.id,
            service,
            epoch,
            leader,
            broadcast: self.broadcast,
            writes,
            reads,
            open: self.sent.diff(self.told).max(0) as u32,
            refused: self.refused,
            replicas: self.spec.replicas.iter().zip(&self.progress).map(of).collect(),
        }
    }

    /// The PSN that a replica has for one of the leader's.
    pub(crate) fn psn_at(&self, replica: usize, psn: Psn) -> Psn {
        let count = psn.value().wrapping_sub(self.spec.leader.psn.value());
        self.spec.replicas[replica].end.psn.add(count)
    }

    /// The leader's PSN for one of a replica.
    pub(crate) fn psn_from(&self, replica: usize, psn: Psn) -> Psn {
        let count = psn.value().wrapping_sub(self.spec.replicas[replica].end.psn.value());
        self.spec.leader.psn.add(count)
    }

    /// Up to where enough replicas have acknowledged, and the count of messages of the one that is just there.
    pub(crate) fn limit(&self) -> (Psn, Msn) {
        let mut order = [(0, 0); REPLICAS_MAX];
        let counting = self.progress.iter().enumerate().filter(|(_, one)| !one.out);
        let mut count = 0;
        for ((at, one), into) in counting.zip(&mut order) {
            // Each replica is one word, however often it says the same.
            *into = (one.acked.diff(self.told), at);
            count += 1;
        }
        let order = &mut order[..count];
        order.sort_unstable_by(|a, b| b.cmp(a));
        match order.get(self.spec.writes - 1) {
            Some(&(_, at)) => (self.progress[at].acked, self.progress[at].msn),
            None => (self.told, self.msn),
        }
    }

    /// What an acknowledgement for the leader says: its connection's own count of messages, and as much as the one with the least room can take.
    pub(crate) fn aeth(&mut self) -> aeth::Repr {
        let ahead = |a: u32, b: Msn| Psn::new(a).diff(Psn::new(b.value()));
        let msn = self.limit().1;
        if ahead(msn.value(), self.msn) > 0 {
            self.msn = msn;
        }
        let room = |one: &Progress| {
            let count = one.credits.filter(|_| !one.out && !one.behind)?.count()?;
            Some(ahead(one.msn.value().wrapping_add(count), self.msn).max(0) as u32)
        };
        let least = self.progress.iter().filter_map(room).min();
        aeth::Repr { aeth: Aeth::Ack(least.map_or(Credits::UNLIMITED, Credits::at_most)), msn: self.msn }
    }

    /// The leader is told more. Who is too far behind that is left out from now on, as soon nobody could tell whether it is behind or ahead.
    pub(crate) fn tell(&mut self, told: Psn, port: &mut Port<'_>) {
        self.told = told;
        for (replica, one) in self.progress.iter_mut().enumerate().filter(|(_, one)| !one.out) {
            let lag = told.diff(one.acked);
            if lag > self.spec.lag as i32 {
                one.out = true;
                port.report(Report::LeftOut { group: self.id, replica });
            } else if lag <= 0 {
                one.behind = false;
            }
        }
    }

    /// The leader's connection is over. It is told so at the first request that it has not been told about: any other PSN would acknowledge what is
    /// before it.
    pub(crate) fn refuse(&mut self, code: NakCode, port: &mut Port<'_>) {
        self.refused = Some(code);
        self.say_refused(code, port);
    }

    pub(crate) fn say_refused(&mut self, code: NakCode, port: &mut Port<'_>) {
        let repr = aeth::Repr { aeth: Aeth::Nak(code), msn: self.msn };
        port.acknowledge(self, self.told.next(), repr);
    }
}
