//! What a QP is created with and what `modify_qp` changes.

use remanence_wire::{Mtu, Psn, Qkey, Qpn};

use super::state::QpState;
use crate::access::Access;
use crate::ah::AhAttr;
use crate::cq::CqHandle;
use crate::pd::PdHandle;
use crate::srq::SrqHandle;

/// The transport service of a QP, with the verbs' values (`enum ibv_qp_type`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum QpType {
    /// Reliable connection: one peer, acknowledged, every operation.
    Rc = 2,
    /// Unreliable connection: one peer, no acknowledgements, SEND and RDMA WRITE only.
    Uc = 3,
    /// Unreliable datagram: any peer, one packet for each message, SEND only.
    Ud = 4,
}

/// Sizes of a QP's queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QpCaps {
    /// Send WQEs outstanding at most.
    pub max_send_wr: u32,
    /// Receive WQEs outstanding at most; ignored with an SRQ.
    pub max_recv_wr: u32,
    /// Scatter/gather entries of a send WQE.
    pub max_send_sge: u32,
    /// Scatter/gather entries of a receive WQE; ignored with an SRQ.
    pub max_recv_sge: u32,
    /// Bytes of inline data of a send WQE.
    pub max_inline: u32,
}

/// What a QP is created with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpInit {
    /// Its protection domain.
    pub pd: PdHandle,
    /// The transport service, which a QP keeps for life.
    pub ty: QpType,
    /// Where sends complete.
    pub send_cq: CqHandle,
    /// Where receives complete.
    pub recv_cq: CqHandle,
    /// Where receives come from, instead of an own receive queue.
    pub srq: Option<SrqHandle>,
    /// How many WQEs, SGEs and bytes of inline data the queues hold.
    pub caps: QpCaps,
    /// Every send work request is signalled.
    pub sq_sig_all: bool,
}

/// Changes for `modify_qp`, and the answer of `query_qp`. `None` leaves an attribute alone.
///
/// The P_Key index and port of the C ABI are not here: there is one of each.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QpAttr {
    /// The new state.
    pub state: Option<QpState>,
    /// The state that the caller believes the QP to be in (resolves the race with SQD and SQE).
    pub cur_state: Option<QpState>,
    /// UD: the Q_Key that incoming packets must have.
    pub qkey: Option<Qkey>,
    /// What peers may do through this QP: remote write, read, atomic and the flushes.
    pub access: Option<Access>,
    /// Where the peer is.
    pub av: Option<AhAttr>,
    /// The largest payload of one packet to the peer.
    pub path_mtu: Option<Mtu>,
    /// The peer's QP.
    pub dest_qpn: Option<Qpn>,
    /// First PSN to receive.
    pub rq_psn: Option<Psn>,
    /// First PSN to send.
    pub sq_psn: Option<Psn>,
    /// READs, atomics and flushes outstanding to the peer at most.
    pub max_rd_atomic: Option<u8>,
    /// The same from the peer.
    pub max_dest_rd_atomic: Option<u8>,
    /// Local ACK timeout, 4.096 us * 2^n; 0 means never (IBA Vol 1, 9.7.6).
    pub timeout: Option<u8>,
    /// Timeouts in a row before the QP gives up, 0 to 7.
    pub retry_cnt: Option<u8>,
    /// RNR NAKs in a row before the QP gives up, 0 to 6; 7 means never.
    pub rnr_retry: Option<u8>,
    /// Code of the time that an RNR NAK asks the peer to wait, 0 to 31.
    pub min_rnr_timer: Option<u8>,
    /// Going to SQD: raise an event when drained.
    pub sqd_event: Option<bool>,
}

impl QpAttr {
    /// Takes over what a change gives, the state aside: that is the QP's own.
    pub(crate) fn merge(&mut self, change: &Self) {
        let Self {
            state: _,
            cur_state: _,
            qkey,
            access,
            av,
            path_mtu,
            dest_qpn,
            rq_psn,
            sq_psn,
            max_rd_atomic,
            max_dest_rd_atomic,
            timeout,
            retry_cnt,
            rnr_retry,
            min_rnr_timer,
            sqd_event,
        } = *change;
        self.qkey = qkey.or(self.qkey);
        self.access = access.or(self.access);
        self.av = av.or(self.av);
        self.path_mtu = path_mtu.or(self.path_mtu);
        self.dest_qpn = dest_qpn.or(self.dest_qpn);
        self.rq_psn = rq_psn.or(self.rq_psn);
        self.sq_psn = sq_psn.or(self.sq_psn);
        self.max_rd_atomic = max_rd_atomic.or(self.max_rd_atomic);
        self.max_dest_rd_atomic = max_dest_rd_atomic.or(self.max_dest_rd_atomic);
        self.timeout = timeout.or(self.timeout);
        self.retry_cnt = retry_cnt.or(self.retry_cnt);
        self.rnr_retry = rnr_retry.or(self.rnr_retry);
        self.min_rnr_timer = min_rnr_timer.or(self.min_rnr_timer);
        self.sqd_event = sqd_event.or(self.sqd_event);
    }
}

/// What `query_qp` answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpInfo {
    /// What it was created with.
    pub init: QpInit,
    /// Its attributes; those never set are `None`.
    pub attr: QpAttr,
    /// The state that the QP is in.
    pub state: QpState,
    /// In SQD: outstanding work is still being finished.
    pub draining: bool,
}
