//! The QP attributes that a connection has agreed on: what `rdma_init_qp_attr` gives.

use super::Manager;
use super::conn::{Conn, State};
use super::types::{CmError, CommId, Transport};
use crate::access::Access;
use crate::ah::AhAttr;
use crate::qp::{QpAttr, QpState};

impl Manager {
    /// RESET to INIT. `access` is what the peer may do; cma.c of Linux allows REMOTE_WRITE, and READ and atomics
    /// where it has responder resources.
    #[must_use]
    pub fn qp_init(access: Access) -> QpAttr {
        QpAttr { state: Some(QpState::Init), access: Some(access), ..QpAttr::default() }
    }

    /// INIT to RTR: on the passive side before `accept` (change `max_dest_rd_atomic` to what will be accepted, if
    /// that is not what the peer asked for), on the active one after [`super::Event::Response`]. The destination
    /// in `av` is filled in.
    pub fn qp_rtr(&self, id: CommId, av: AhAttr) -> Result<QpAttr, CmError> {
        let conn = self.with_peer(id)?;
        let rc = conn.transport == Transport::Rc;
        Ok(QpAttr {
            state: Some(QpState::Rtr),
            av: Some(AhAttr { dgid: conn.path.remote, ..av }),
            path_mtu: Some(conn.mtu),
            dest_qpn: Some(conn.remote_qpn),
            rq_psn: Some(conn.rq_psn),
            max_dest_rd_atomic: rc.then_some(conn.responder_resources),
            min_rnr_timer: rc.then_some(self.min_rnr_timer(conn)),
            ..QpAttr::default()
        })
    }

    /// A peer that never gives up may ask again soon. One that counts must be given the time that programs expect of a count:
    /// ib_cm's code for it is 0, 655 ms.
    const fn min_rnr_timer(&self, conn: &Conn) -> u8 {
        const FOR_EVER: u8 = 7;
        if conn.peer_rnr_retry == FOR_EVER { self.config.min_rnr_timer } else { 0 }
    }

    /// RTR to RTS.
    pub fn qp_rts(&self, id: CommId) -> Result<QpAttr, CmError> {
        let conn = self.with_peer(id)?;
        let rc = conn.transport == Transport::Rc;
        Ok(QpAttr {
            state: Some(QpState::Rts),
            sq_psn: Some(conn.sq_psn),
            timeout: rc.then_some(conn.ack_timeout),
            retry_cnt: rc.then_some(conn.retry_count),
            rnr_retry: rc.then_some(conn.rnr_retry_count),
            max_rd_atomic: rc.then_some(conn.initiator_depth),
            ..QpAttr::default()
        })
    }

    fn with_peer(&self, id: CommId) -> Result<&Conn, CmError> {
        let conn = self.known(id)?;
        match conn.state {
            State::ReqRcvd
            | State::MraReqSent
            | State::RepSent
            | State::MraRepRcvd
            | State::RepRcvd
            | State::MraRepSent
            | State::Established => Ok(conn),
            State::ReqSent
            | State::MraReqRcvd
            | State::DreqSent
            | State::Timewait
            | State::SidrReqSent
            | State::SidrReqRcvd
            | State::SidrRepSent => Err(CmError::State),
        }
    }
}
