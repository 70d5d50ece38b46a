//! The active side: REQ out, REP in, RTU out (IBA Vol 1, 12.9.5, 12.9.7.1).

use remanence_wire::Gid;
use remanence_wire::Qpn;
use remanence_wire::cm::{Mra, RejReason, RejectedMessage, Rep};

use super::conn::{Conn, State};
use super::message::{self, Reject};
use super::types::{CmError, CommId, Connect, Event, Path};
use super::{Manager, timing};
use crate::time::Instant;

impl Manager {
    /// Asks a peer for a connection. One of [`Event::Response`], [`Event::Rejected`] or [`Event::Unreachable`]
    /// follows.
    pub fn connect(&mut self, now: Instant, connect: &Connect<'_>) -> Result<CommId, CmError> {
        let id = self.allocate_id()?;
        let rq_psn = self.random_psn();
        let config = &self.config;
        let ack_timeout = timing::ack_timeout(config.packet_lifetime, config.ack_delay);
        let retry_interval =
            timing::duration(config.response_timeout) + 2 * timing::duration(config.packet_lifetime);
        let req = message::req(config, id, connect, rq_psn, ack_timeout)?;
        let conn = Conn {
            state: State::ReqSent,
            listener: None,
            abandoned: false,
            adopted: false,
            path: connect.path,
            service_id: connect.service_id,
            transport: connect.transport,
            tid: u64::from(id),
            remote_id: 0,
            remote_guid: 0,
            local_qpn: connect.qpn,
            remote_qpn: Qpn::default(),
            rq_psn,
            sq_psn: message::NO_PSN,
            mtu: connect.mtu,
            has_asked_for_less: false,
            responder_resources: connect.responder_resources,
            initiator_depth: connect.initiator_depth,
            retry_count: connect.retry_count.min(7),
            rnr_retry_count: 0,
            peer_rnr_retry: connect.rnr_retry_count.min(7),
            ack_timeout,
            reported: false,
            message: Some(Box::new(req)),
            retries_left: self.config.max_cm_retries,
            pause: 1,
            knocks_left: self.knocks,
            retry_interval,
            patience: retry_interval,
            deadline: None,
        };
        self.insert(id, conn);
        self.resend(id);
        self.set_timer(id, now + retry_interval);
        Ok(CommId(id))
    }

    /// Active side, after [`Event::Response`] and with the QP in RTS: tells the peer that the connection is up.
    pub fn establish(&mut self, id: CommId, private_data: &[u8]) -> Result<(), CmError> {
        let conn = self.known(id)?;
        if !matches!(conn.state, State::RepRcvd | State::MraRepSent) {
            return Err(CmError::State);
        }
        let rtu = message::rtu(conn, id.0, private_data)?;
        let conn = self.conns.get_mut(&id.0).expect("known");
        // Kept: the peer repeats its REP until it has seen an RTU.
        conn.message = Some(Box::new(rtu));
        self.set_state(id.0, State::Established);
        self.resend(id.0);
        Ok(())
    }

    /// Asks the peer of an established connection whether it still knows of it, if we were the active side: it is sent the RTU again. Who knows
    /// takes that for a duplicate; who has forgotten answers with a REJ (*invalid communication ID*), which [ends](super::types::Ended::Stale)
    /// the connection here. Only who knows both communication IDs can say so, as with any REJ.
    pub fn ask(&mut self, id: CommId) {
        let is_active = |conn: &&Conn| conn.state == State::Established && conn.listener.is_none();
        if self.conns.get(&id.0).filter(is_active).is_some() {
            self.resend(id.0);
        }
    }

    pub(super) fn on_rep(&mut self, now: Instant, from: Gid, tid: u64, rep: &Rep) {
        let id = rep.remote_comm_id;
        let state = self.conns.get(&id).filter(|conn| conn.path.remote == from).map(|conn| conn.state);
        match state {
            Some(State::ReqSent | State::MraReqRcvd) => self.on_first_rep(now, from, id, rep),
            Some(State::Established) if self.is_duplicate(id, rep) => {
                // Our RTU was lost.
                self.stats.duplicates += 1;
                self.resend(id);
            }
            Some(State::RepRcvd | State::MraRepSent) if self.is_duplicate(id, rep) => {
                self.stats.duplicates += 1;
                let conn = self.conns.get_mut(&id).expect("found above");
                conn.state = State::MraRepSent;
                let (path, mad) =
                    (conn.path, message::mra(conn, id, RejectedMessage::Rep, self.config.service_timeout));
                self.send(path, mad);
            }
            Some(State::DreqSent | State::Timewait) if self.is_duplicate(id, rep) => {
                self.stats.duplicates += 1
            }
            // A REP to a REQ that is over, was answered by another REP, or was never ours: the peer has a
            // connection that will never be, and should know (12.9.8.2).
            Some(_) | None => {
                self.stats.unexpected += 1;
                let path = self.reply_path(id, from);
                self.send_stateless(
                    path,
                    message::rej(
                        tid,
                        rep.remote_comm_id,
                        rep.local_comm_id,
                        &Reject::new(RejectedMessage::Rep, RejReason::INVALID_COMM_ID),
                    ),
                );
            }
        }
    }

    /// Whether `rep` is the one that we have already.
    fn is_duplicate(&self, id: u32, rep: &Rep) -> bool {
        let conn = &self.conns[&id];
        conn.remote_id == rep.local_comm_id && conn.listener.is_none()
    }

    fn on_first_rep(&mut self, now: Instant, from: Gid, id: u32, rep: &Rep) {
        let twin = (from, rep.local_ca_guid, rep.local_qpn.value());
        if let Some(&old) = self.by_remote_qpn.get(&twin) {
            // The peer's QP is connected to us already, as far as we know (12.9.8.3.1).
            let conn = self.conns.get_mut(&id).expect("found above");
            conn.remote_id = rep.local_comm_id;
            self.send_rej(id, &Reject::new(RejectedMessage::Rep, RejReason::STALE_CONN));
            self.emit(
                id,
                Event::Rejected {
                    id: CommId(id),
                    reason: RejReason::STALE_CONN,
                    ari: Box::default(),
                    private_data: Box::default(),
                },
            );
            self.remove(id);
            self.on_stale(now, old);
            return;
        }
        let config = (self.config.packet_lifetime, rep.target_ack_delay);
        let conn = self.conns.get_mut(&id).expect("found above");
        conn.remote_id = rep.local_comm_id;
        conn.remote_guid = rep.local_ca_guid;
        conn.remote_qpn = rep.local_qpn;
        conn.sq_psn = rep.starting_psn;
        // What the peer serves bounds what we ask, and the other way round (12.7.29, 12.7.30).
        conn.initiator_depth = conn.initiator_depth.min(rep.responder_resources);
        conn.responder_resources = conn.responder_resources.max(rep.initiator_depth);
        conn.rnr_retry_count = rep.rnr_retry_count;
        conn.ack_timeout = timing::ack_timeout(config.0, config.1);
        conn.message = None;
        self.by_remote_id.insert((from, rep.local_ca_guid, rep.local_comm_id), id);
        self.by_remote_qpn.insert(twin, id);
        self.cancel_timer(id);
        self.set_state(id, State::RepRcvd);
        self.emit(
            id,
            Event::Response {
                id: CommId(id),
                remote_qpn: rep.local_qpn,
                responder_resources: rep.initiator_depth,
                initiator_depth: rep.responder_resources,
                rnr_retry_count: rep.rnr_retry_count,
                srq: rep.srq,
                private_data: rep.private_data.as_slice().into(),
            },
        );
    }

    pub(super) fn on_mra(&mut self, now: Instant, from: Gid, mra: &Mra) {
        let id = mra.remote_comm_id;
        let Some(conn) = self.conns.get_mut(&id).filter(|conn| conn.path.remote == from) else {
            self.stats.unexpected += 1;
            return;
        };
        let state = match (conn.state, mra.message) {
            (State::ReqSent, RejectedMessage::Req) => State::MraReqRcvd,
            (State::RepSent, RejectedMessage::Rep) if conn.remote_id == mra.local_comm_id => {
                State::MraRepRcvd
            }
            // Patience is given once for each time that we ask, or a peer could hold us for ever.
            (_, _) => {
                self.stats.duplicates += 1;
                return;
            }
        };
        conn.state = state;
        let until = now + timing::duration(mra.service_timeout) + conn.retry_interval;
        self.set_timer(id, until);
    }

    /// The REQ was repeated in vain: takes it back, should the peer have it after all (12.9.8.5).
    pub(super) fn give_up_active(&mut self, _now: Instant, id: u32) {
        let guid = self.config.ca_guid.to_be_bytes();
        self.send_rej(id, &Reject { info: &guid, ..Reject::new(RejectedMessage::Req, RejReason::TIMEOUT) });
        self.emit(id, Event::Unreachable { id: CommId(id) });
        self.remove(id);
    }

    /// Where an answer to a message for `id` from `from` leaves from.
    pub(super) fn reply_path(&self, id: u32, from: Gid) -> Path {
        let local = self.conns.get(&id).map(|conn| conn.path.local);
        Path { local: local.or(self.config.first_gid()).unwrap_or_default(), remote: from }
    }
}
