//! Service ID resolution: how UD peers find each other's QP (IBA Vol 1, 12.11).

use remanence_wire::cm::{CMA_HEADER_LEN, ServiceId, SidrRep, SidrReq};
use remanence_wire::{Gid, Mtu, Qpn};

use super::conn::{Conn, State};
use super::types::{CmError, CommId, Event, ListenId, Path, SidrReply, SidrRequest, Transport};
use super::{Manager, message, timing};
use crate::time::Instant;

impl Manager {
    /// Asks for the UD QP of a service. One of [`Event::SidrResponse`] or [`Event::Unreachable`] follows. With
    /// `cma_port`, the private data holds 180 bytes for the consumer, else 216.
    pub fn resolve(
        &mut self,
        now: Instant,
        path: Path,
        service_id: ServiceId,
        cma_port: Option<u16>,
        private_data: &[u8],
    ) -> Result<CommId, CmError> {
        let id = self.allocate_id()?;
        let req = message::sidr_req(id, path, service_id, cma_port, private_data)?;
        let interval = timing::duration(self.config.response_timeout)
            + 2 * timing::duration(self.config.packet_lifetime);
        let mut conn = blank(State::SidrReqSent, path, None, u64::from(id), 0);
        conn.message = Some(Box::new(req));
        conn.retries_left = self.config.max_cm_retries;
        conn.knocks_left = self.knocks;
        conn.retry_interval = interval;
        self.insert(id, conn);
        self.resend(id);
        self.set_timer(id, now + interval);
        Ok(CommId(id))
    }

    /// Answers an [`Event::SidrRequest`]. The ID is gone for the caller.
    pub fn sidr_reply(&mut self, now: Instant, id: CommId, reply: &SidrReply<'_>) -> Result<(), CmError> {
        let conn = self.known(id)?;
        if conn.state != State::SidrReqRcvd {
            return Err(CmError::State);
        }
        let rep = message::sidr_rep(conn.tid, conn.remote_id, conn.service_id, reply)?;
        let conn = self.conns.get_mut(&id.0).expect("known");
        conn.abandoned = true;
        conn.message = Some(Box::new(rep));
        let until = now + conn.retry_interval;
        self.set_state(id.0, State::SidrRepSent);
        self.resend(id.0);
        // For as long as duplicates may come; later ones would be asked again, which costs nothing but time.
        self.set_timer(id.0, until);
        Ok(())
    }

    pub(super) fn on_sidr_req(&mut self, now: Instant, from: Gid, tid: u64, req: &SidrReq) {
        if let Some(&id) = self.by_sidr.get(&(from, req.request_id)) {
            self.stats.duplicates += 1;
            // Nothing is kept to say again before our caller has answered.
            self.resend(id);
            return;
        }
        let cma = message::has_cma_header(req.service_id).then(|| req.cma()).transpose();
        // SIDR_REQ names no GID; where RDMA-CM is used, its header does.
        let local = match &cma {
            Ok(Some((cma, _))) => Gid::from_ip(cma.dst),
            Ok(None) | Err(_) => self.config.first_gid().unwrap_or_default(),
        };
        let path = Path { local, remote: from };
        let (listener, cma) = match (self.listener(req.service_id, local), cma) {
            (Some(listener), Ok(cma)) => (listener, cma.map(|(cma, _)| cma)),
            (_, _) => {
                let no = SidrReply::refusal(SidrRep::STATUS_UNSUPPORTED);
                return self
                    .send_stateless(path, message::sidr_rep(tid, req.request_id, req.service_id, &no));
            }
        };
        if !self.has_room(listener) {
            self.stats.overflowed += 1;
            return;
        }
        let Ok(id) = self.allocate_id() else {
            self.stats.overflowed += 1;
            return;
        };
        let mut conn = blank(State::SidrReqRcvd, path, Some(listener), tid, req.request_id);
        // The field that would say how long the peer repeats does not exist: as long as we would.
        conn.retry_interval =
            timing::duration(self.config.response_timeout) * (u32::from(self.config.max_cm_retries) + 2);
        conn.service_id = req.service_id;
        let until = now + conn.retry_interval;
        self.insert(id, conn);
        self.by_sidr.insert((from, req.request_id), id);
        self.set_timer(id, until);
        let data_start = if cma.is_some() { CMA_HEADER_LEN } else { 0 };
        self.events.push_back(Event::SidrRequest(Box::new(SidrRequest {
            id: CommId(id),
            listener,
            path,
            service_id: req.service_id,
            cma,
            private_data: req.private_data[data_start..].into(),
        })));
    }

    pub(super) fn on_sidr_rep(&mut self, now: Instant, from: Gid, rep: &SidrRep) {
        let id = rep.request_id;
        let waits = self
            .conns
            .get(&id)
            .is_some_and(|conn| conn.state == State::SidrReqSent && conn.path.remote == from);
        if !waits {
            self.stats.unexpected += 1;
            return;
        }
        if rep.status == SidrRep::STATUS_UNSUPPORTED && self.knocks_again(now, id) {
            return;
        }
        self.emit(
            id,
            Event::SidrResponse {
                id: CommId(id),
                status: rep.status,
                qpn: rep.qpn,
                qkey: rep.qkey,
                private_data: rep.private_data.as_slice().into(),
            },
        );
        self.remove(id);
    }

    pub(super) fn give_up_sidr(&mut self, _now: Instant, id: u32) {
        self.emit(id, Event::Unreachable { id: CommId(id) });
        self.remove(id);
    }
}

impl Manager {
    /// Says no for a caller that does not listen any more.
    pub(super) fn refuse_sidr(&mut self, id: u32) {
        let conn = &self.conns[&id];
        let no = SidrReply::refusal(SidrRep::STATUS_REJECTED);
        let mad = message::sidr_rep(conn.tid, conn.remote_id, conn.service_id, &no).expect("no private data");
        self.send(conn.path, mad);
        self.remove(id);
    }
}

/// A connection that is none: SIDR needs few of the fields.
fn blank(state: State, path: Path, listener: Option<ListenId>, tid: u64, remote_id: u32) -> Conn {
    Conn {
        state,
        listener,
        abandoned: false,
        adopted: false,
        path,
        service_id: ServiceId(0),
        transport: Transport::Rc,
        tid,
        remote_id,
        remote_guid: 0,
        local_qpn: Qpn::default(),
        remote_qpn: Qpn::default(),
        rq_psn: message::NO_PSN,
        sq_psn: message::NO_PSN,
        mtu: Mtu::B256,
        has_asked_for_less: false,
        responder_resources: 0,
        initiator_depth: 0,
        retry_count: 0,
        rnr_retry_count: 0,
        peer_rnr_retry: 0,
        ack_timeout: 0,
        reported: false,
        message: None,
        retries_left: 0,
        pause: 1,
        knocks_left: 0,
        retry_interval: std::time::Duration::ZERO,
        patience: std::time::Duration::ZERO,
        deadline: None,
    }
}
