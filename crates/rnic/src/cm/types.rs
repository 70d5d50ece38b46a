//! What goes into and comes out of the connection manager.

use remanence_wire::cm::{CmaHeader, RejReason, ServiceId};
use remanence_wire::{Gid, Mtu, Qkey, Qpn};

/// A communication ID of this manager: names one connection, and nothing after it has left timewait.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CommId(pub u32);

/// Names one listener of this manager.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ListenId(pub u32);

/// The two ends of a path, as this side sees them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Path {
    /// A GID of this node.
    pub local: Gid,
    /// The peer's GID.
    pub remote: Gid,
}

/// The communication IDs that a manager may use: those whose top `prefix_bits` bits are `prefix`.
///
/// All processes of a host share QP 1; the prefix says whose a message is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CommIdSpace {
    /// The value of the top bits.
    pub prefix: u32,
    /// How many bits the prefix has, 0 to 24.
    pub prefix_bits: u8,
}

impl CommIdSpace {
    /// Every ID: for a process that has QP 1 to itself.
    pub const ALL: Self = Self { prefix: 0, prefix_bits: 0 };

    /// Whether `id` is one of this space.
    #[must_use]
    pub const fn contains(self, id: u32) -> bool {
        self.prefix_bits == 0 || id >> (32 - self.prefix_bits as u32) == self.prefix
    }
}

/// The limits and constants of a manager.
#[derive(Clone, Debug)]
pub struct Config {
    /// Node GUID, which REQ and REP carry; with a communication ID it names a connection for ever.
    pub ca_guid: u64,
    /// Local GIDs; a place may be empty, all zeros. A REQ for another one is rejected (invalid GID). No places: anything goes.
    pub gids: Vec<Gid>,
    /// Our communication IDs.
    pub comm_ids: CommIdSpace,
    /// Seed of IDs and jitter.
    pub seed: u64,
    /// The largest path MTU that fits our link; a REQ that asks for more is rejected (invalid MTU).
    pub max_mtu: Mtu,
    /// Connections in any state, timewait included.
    pub max_connections: usize,
    /// Connections of the passive side that are not established yet, over all listeners.
    pub max_half_open: usize,
    /// How long a peer may take to answer, as the exponent of 4.096 us x 2^n; also the retry interval.
    pub response_timeout: u8,
    /// How often a message is repeated, 0 to 15.
    pub max_cm_retries: u8,
    /// How long we may take to make up our mind once a peer has asked twice (MRA), exponent.
    pub service_timeout: u8,
    /// Packet lifetime of the path, exponent.
    pub packet_lifetime: u8,
    /// Our ACK delay, exponent.
    pub ack_delay: u8,
    /// RNR NAK timer code that our QPs ask for (IBA Vol 1, table 45) where the peer tries again for ever; where it counts, they
    /// ask for 655 ms, as Linux does.
    pub min_rnr_timer: u8,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            ca_guid: 0,
            gids: Vec::new(),
            comm_ids: CommIdSpace::ALL,
            seed: 0,
            max_mtu: Mtu::B4096,
            max_connections: 1 << 16,
            max_half_open: 4096,
            // 268 ms and 15 repeats: an absent peer is reported after 4.3 s, 10 % loss is not noticed. (cma.c
            // uses 20, which is 4.3 s for each of 15 repeats.)
            response_timeout: 16,
            max_cm_retries: 15,
            service_timeout: 22,
            // A local ACK timeout of 17, 0.5 s, as Linux has on RoCE: the engine finds losses by itself much sooner,
            // and a peer whose process is not scheduled for a second is not dead.
            packet_lifetime: 15,
            ack_delay: 15,
            min_rnr_timer: 12,
        }
    }
}

impl Config {
    /// The first local GID; a place of the table may be empty.
    pub(super) fn first_gid(&self) -> Option<Gid> {
        self.gids.iter().copied().find(|&gid| gid != Gid::default())
    }
}

/// The transport of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Transport {
    /// Two RC QPs: messages arrive once and in order, and are acknowledged.
    Rc,
    /// Two UC QPs: nothing is acknowledged or sent again.
    Uc,
}

/// A service to listen on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Listen {
    /// The service that peers ask for in their requests.
    pub service_id: ServiceId,
    /// Only requests to this GID; `None` is the wildcard, which loses against a listener that names the GID.
    pub local: Option<Gid>,
    /// Requests that may wait for a decision or for their RTU at a time. More are dropped, and come again when
    /// the peer repeats them.
    pub backlog: usize,
}

/// What the active side asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Connect<'a> {
    /// From where to where.
    pub path: Path,
    /// The service that the peer listens on.
    pub service_id: ServiceId,
    /// RC or UC.
    pub transport: Transport,
    /// The number of the QP that we connect.
    pub qpn: Qpn,
    /// READs and atomics that we serve at a time.
    pub responder_resources: u8,
    /// READs and atomics that we shall have outstanding.
    pub initiator_depth: u8,
    /// Timeout retries of the QPs, 0 to 7.
    pub retry_count: u8,
    /// RNR retries that the peer shall make, 0 to 7 (7: for ever).
    pub rnr_retry_count: u8,
    /// Our QP takes receives from an SRQ.
    pub srq: bool,
    /// The path MTU that we propose.
    pub mtu: Mtu,
    /// RDMA-CM: our port. The private data is then led by the 36-byte header and holds 56 bytes for the
    /// consumer, else 92.
    pub cma_port: Option<u16>,
    /// For the peer's consumer.
    pub private_data: &'a [u8],
}

/// What the passive side answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Accept<'a> {
    /// The number of the QP that we connect.
    pub qpn: Qpn,
    /// READs and atomics that we serve at a time.
    pub responder_resources: u8,
    /// READs and atomics that we shall have outstanding.
    pub initiator_depth: u8,
    /// RNR retries that the peer shall make, 0 to 7.
    pub rnr_retry_count: u8,
    /// Our QP takes receives from an SRQ.
    pub srq: bool,
    /// For the peer's consumer, at most 196 bytes.
    pub private_data: &'a [u8],
}

/// A connection request that waits for [`super::Manager::accept`] or [`super::Manager::reject`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// The connection to be.
    pub id: CommId,
    /// Who heard it.
    pub listener: ListenId,
    /// From where to where, as we see it.
    pub path: Path,
    /// The service that the peer asks for.
    pub service_id: ServiceId,
    /// RC or UC.
    pub transport: Transport,
    /// The peer's QP.
    pub remote_qpn: Qpn,
    /// What the peer can have outstanding, and so what we may be asked to serve.
    pub responder_resources: u8,
    /// What the peer can serve, and so what we may have outstanding.
    pub initiator_depth: u8,
    /// Timeout retries that the peer asks of the QPs, 0 to 7.
    pub retry_count: u8,
    /// RNR retries that the peer asks of us.
    pub rnr_retry_count: u8,
    /// The peer's QP uses an SRQ.
    pub srq: bool,
    /// The path MTU that the peer proposes.
    pub mtu: Mtu,
    /// The RDMA-CM header, when the service ID belongs to RDMA-CM.
    pub cma: Option<CmaHeader>,
    /// The peer's consumer's data: the whole field, 56 bytes behind a CMA header, else 92.
    pub private_data: Box<[u8]>,
}

/// A service ID resolution request that waits for [`super::Manager::sidr_reply`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SidrRequest {
    /// The exchange, as the reply names it.
    pub id: CommId,
    /// Who heard it.
    pub listener: ListenId,
    /// From where to where, as we see it.
    pub path: Path,
    /// The service whose QP the peer asks for.
    pub service_id: ServiceId,
    /// The RDMA-CM header, when the service ID belongs to RDMA-CM.
    pub cma: Option<CmaHeader>,
    /// The peer's consumer's data: the whole field, 180 bytes behind a CMA header, else 216.
    pub private_data: Box<[u8]>,
}

/// The answer to a [`SidrRequest`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SidrReply<'a> {
    /// One of the `STATUS_` constants of [`remanence_wire::cm::SidrRep`].
    pub status: u8,
    /// Our UD QP.
    pub qpn: Qpn,
    /// The Q_Key of that QP.
    pub qkey: Qkey,
    /// For the peer's consumer, at most 136 bytes.
    pub private_data: &'a [u8],
}

/// Why a connection is over.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Ended {
    /// We asked, and the peer confirmed.
    Local,
    /// The peer asked.
    Remote,
    /// We asked, for the end of the connection or whether anybody is there, and the peer never answered.
    Unanswered,
    /// The peer began a new connection with the same QP, or says that it does not know this one: it lost its
    /// state without telling (IBA Vol 1, 12.9.8.3).
    Stale,
}

/// What the manager tells its caller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// Passive side: a peer wants to connect. Accept or reject it.
    ConnectRequest(Box<Request>),
    /// Active side: the peer accepted. Bring the QP to RTR and RTS (`qp_rtr`, `qp_rts`), then call `establish`,
    /// or `reject`.
    Response {
        /// The connection, of which we are the active side.
        id: CommId,
        /// The peer's QP.
        remote_qpn: Qpn,
        /// What the peer will have outstanding, as it says.
        responder_resources: u8,
        /// What the peer serves, as it says.
        initiator_depth: u8,
        /// RNR retries that the peer asks of us.
        rnr_retry_count: u8,
        /// The peer's QP uses an SRQ.
        srq: bool,
        /// The peer's consumer's data, the whole field of 196 bytes.
        private_data: Box<[u8]>,
    },
    /// Passive side: the connection is up.
    Established {
        /// The connection that may now be used.
        id: CommId,
    },
    /// The peer rejected us, or took its request back (reason timeout). The ID is gone.
    Rejected {
        /// The connection that will not be.
        id: CommId,
        /// The reason that the peer gives.
        reason: RejReason,
        /// Additional reject information, such as the MTU that would do.
        ari: Box<[u8]>,
        /// The peer's consumer's data, the whole field of 148 bytes.
        private_data: Box<[u8]>,
    },
    /// The peer did not answer. The ID is gone.
    Unreachable {
        /// The connection that will not be.
        id: CommId,
    },
    /// The connection is over: move the QP to the error state. Its number must not be used again before
    /// [`Event::TimewaitExit`].
    Disconnected {
        /// The connection that is over.
        id: CommId,
        /// How it ended.
        ended: Ended,
    },
    /// No packet of the connection can be under way any more. The ID is gone.
    TimewaitExit {
        /// The connection that was.
        id: CommId,
    },
    /// Passive side: a peer wants to know the UD QP of a service.
    SidrRequest(Box<SidrRequest>),
    /// Active side: the UD QP of a service, or why there is none. The ID is gone.
    SidrResponse {
        /// The exchange that this answers.
        id: CommId,
        /// One of the `STATUS_` constants of [`remanence_wire::cm::SidrRep`].
        status: u8,
        /// The peer's UD QP.
        qpn: Qpn,
        /// The Q_Key of that QP.
        qkey: Qkey,
        /// The peer's consumer's data, the whole field of 136 bytes.
        private_data: Box<[u8]>,
    },
}

impl Event {
    /// The connection that it is about; `None` for a request, which its listener hears.
    #[must_use]
    pub const fn connection(&self) -> Option<CommId> {
        match self {
            Self::ConnectRequest(_) | Self::SidrRequest(_) => None,
            Self::Response { id, .. }
            | Self::Established { id }
            | Self::Rejected { id, .. }
            | Self::Unreachable { id }
            | Self::Disconnected { id, .. }
            | Self::TimewaitExit { id }
            | Self::SidrResponse { id, .. } => Some(*id),
        }
    }
}

/// A caller's bad argument, or a limit.
#[derive(Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum CmError {
    /// No such connection: it ended, or never was.
    #[error("no connection has this communication ID")]
    UnknownId,
    /// Not possible in the connection's state.
    #[error("the connection is not in a state that allows this")]
    State,
    /// The GIDs of the path are of two IP versions.
    #[error("the two ends of the path are of different IP versions")]
    Path,
    /// The private data does not fit the message.
    #[error("the private data is longer than the message can carry")]
    PrivateData,
    /// Another listener has the service ID and GID.
    #[error("another listener has this service")]
    InUse,
    /// `max_connections` is reached.
    #[error("too many connections")]
    NoResources,
}

/// Debug is the sentence as well: it is what a program prints whose `main` returns the error.
impl std::fmt::Debug for CmError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// Counters of a manager.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Stats {
    /// MADs that the manager was given.
    pub received: u64,
    /// MADs handed out for sending.
    pub sent: u64,
    /// Messages sent again after a timeout.
    pub retries: u64,
    /// Messages received again.
    pub duplicates: u64,
    /// Bytes that are no CM MAD.
    pub malformed: u64,
    /// Messages for no connection of ours, from the wrong place or in the wrong state.
    pub unexpected: u64,
    /// Requests dropped because the backlog or a limit was reached.
    pub overflowed: u64,
}
