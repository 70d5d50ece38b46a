//! One connection, and the states it goes through (IBA Vol 1, 12.9.7).

use std::fmt;
use std::time::Duration;

use remanence_wire::cm::ServiceId;
use remanence_wire::{Mtu, Psn, Qpn};

use super::message::Mad;
use super::types::{ListenId, Path, Transport};
use crate::time::Instant;

/// The state of a connection, by the names of IBA Vol 1, 12.9.7.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum State {
    /// Active: waits for REP.
    ReqSent,
    /// Active: the peer asked for patience.
    MraReqRcvd,
    /// Active: waits for our caller.
    RepRcvd,
    /// Active: waits for our caller, and has asked the peer for patience.
    MraRepSent,
    /// Passive: waits for our caller.
    ReqRcvd,
    /// Passive: waits for our caller, and has asked the peer for patience.
    MraReqSent,
    /// Passive: waits for RTU or the first packet.
    RepSent,
    /// Passive: the peer asked for patience.
    MraRepRcvd,
    /// Both sides may send, and no end has been asked for.
    Established,
    /// Waits for DREP.
    DreqSent,
    /// Over; packets may still be under way.
    Timewait,
    /// UD, active: waits for SIDR_REP.
    SidrReqSent,
    /// UD, passive: waits for our caller.
    SidrReqRcvd,
    /// UD, passive: answered; kept to answer duplicates alike.
    SidrRepSent,
}

impl State {
    /// Whether the passive side holds this for a peer that has not proved that it is there.
    pub(super) const fn is_half_open(self) -> bool {
        match self {
            Self::ReqRcvd | Self::MraReqSent | Self::RepSent | Self::MraRepRcvd | Self::SidrReqRcvd => true,
            Self::ReqSent
            | Self::MraReqRcvd
            | Self::RepRcvd
            | Self::MraRepSent
            | Self::Established
            | Self::DreqSent
            | Self::Timewait
            | Self::SidrReqSent
            | Self::SidrRepSent => false,
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ReqSent => "REQ Sent",
            Self::MraReqRcvd => "MRA(REQ) Rcvd",
            Self::RepRcvd => "REP Rcvd",
            Self::MraRepSent => "MRA(REP) Sent",
            Self::ReqRcvd => "REQ Rcvd",
            Self::MraReqSent => "MRA(REQ) Sent",
            Self::RepSent => "REP Sent",
            Self::MraRepRcvd => "MRA(REP) Rcvd",
            Self::Established => "Established",
            Self::DreqSent => "DREQ Sent",
            Self::Timewait => "TimeWait",
            Self::SidrReqSent => "SIDR_REQ Sent",
            Self::SidrReqRcvd => "SIDR_REQ Rcvd",
            Self::SidrRepSent => "SIDR_REP Sent",
        })
    }
}

/// What the manager keeps of a connection.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) state: State,
    /// Who heard the request; `None` on the active side.
    pub(super) listener: Option<ListenId>,
    /// Nobody listens for events of this one any more.
    pub(super) abandoned: bool,
    /// Its listener's caller has taken it over: it no longer counts against the backlog, nor goes with the listener.
    pub(super) adopted: bool,
    pub(super) path: Path,
    pub(super) service_id: ServiceId,
    pub(super) transport: Transport,
    /// Transaction ID of the exchange that is going on.
    pub(super) tid: u64,
    /// The peer's communication ID; 0 while unknown. For SIDR the request ID.
    pub(super) remote_id: u32,
    pub(super) remote_guid: u64,
    pub(super) local_qpn: Qpn,
    pub(super) remote_qpn: Qpn,
    /// Where the peer begins to send.
    pub(super) rq_psn: Psn,
    /// Where we begin to send.
    pub(super) sq_psn: Psn,
    pub(super) mtu: Mtu,
    /// Active: the peer took no packets of the path MTU that was asked for first.
    pub(super) has_asked_for_less: bool,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) retry_count: u8,
    pub(super) rnr_retry_count: u8,
    /// How often the peer is to try again when our receive queue is empty: as we said, or, before we have, as it said of ours.
    pub(super) peer_rnr_retry: u8,
    /// Local ACK timeout of the QP, exponent.
    pub(super) ack_timeout: u8,
    /// Our caller knows already that it is over.
    pub(super) reported: bool,
    /// What is repeated: by the timer (REQ, REP, DREQ, SIDR_REQ) or for a duplicate (RTU, SIDR_REP).
    pub(super) message: Option<Box<Mad>>,
    pub(super) retries_left: u8,
    /// Passive: over how many retry intervals the REP is not repeated, the next time.
    pub(super) pause: u8,
    /// How often the peer may still say that nobody listens there.
    pub(super) knocks_left: u8,
    pub(super) retry_interval: Duration,
    /// How long the peer will repeat its request: after that, it has given up.
    pub(super) patience: Duration,
    pub(super) deadline: Option<Instant>,
}

impl Conn {
    /// Whose backlog it counts against while it is half open.
    pub(super) fn backlog(&self) -> Option<ListenId> {
        self.listener.filter(|_| !self.adopted)
    }
}
