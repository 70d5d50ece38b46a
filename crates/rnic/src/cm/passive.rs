//! The passive side: REQ in, REP out, RTU in (IBA Vol 1, 12.9.5, 12.9.7.2).

use remanence_wire::Gid;
use remanence_wire::cm::{
    CMA_HEADER_LEN, CmaHeader, RejReason, RejectedMessage, Req, Rtu, ServiceId, TransportService,
};
use remanence_wire::{Mtu, Qpn};

use super::conn::{Conn, State};
use super::message::{self, Reject};
use super::refusals::Question;
use super::types::{Accept, CmError, CommId, Ended, Event, Listen, ListenId, Path, Request, Transport};
use super::{Listener, Manager, timing};
use crate::time::Instant;

impl Manager {
    /// Listens on a service.
    pub fn listen(&mut self, listen: &Listen) -> Result<ListenId, CmError> {
        let key = (listen.service_id.0, listen.local);
        if self.services.contains_key(&key) {
            return Err(CmError::InUse);
        }
        let id = ListenId(self.next_listener);
        self.next_listener += 1;
        self.services.insert(key, id);
        self.listeners.insert(id, Listener { listen: *listen, pending: 0 });
        Ok(id)
    }

    /// Stops to listen. Requests that still wait for a decision are rejected, without an event; what was accepted
    /// or [adopted](Self::adopt) goes on.
    pub fn unlisten(&mut self, id: ListenId) {
        let Some(listener) = self.listeners.remove(&id) else { return };
        self.services.remove(&(listener.listen.service_id.0, listener.listen.local));
        let undecided = |conn: &Conn| {
            conn.listener == Some(id)
                && !conn.adopted
                && matches!(conn.state, State::ReqRcvd | State::MraReqSent | State::SidrReqRcvd)
        };
        let undecided: Vec<u32> =
            self.conns.iter().filter(|(_, conn)| undecided(conn)).map(|(&id, _)| id).collect();
        self.events.retain(|event| match event {
            Event::ConnectRequest(request) => request.listener != id,
            Event::SidrRequest(request) => request.listener != id,
            Event::Response { .. }
            | Event::Established { .. }
            | Event::Rejected { .. }
            | Event::Unreachable { .. }
            | Event::Disconnected { .. }
            | Event::TimewaitExit { .. }
            | Event::SidrResponse { .. } => true,
        });
        for conn in undecided {
            self.turn_away(conn);
        }
    }

    /// The caller has taken the request out of the queue of its listener, and decides on it in its own time: it
    /// leaves the backlog, and outlives the listener.
    pub fn adopt(&mut self, id: CommId) {
        let Some(conn) = self.conns.get_mut(&id.0).filter(|conn| !conn.adopted) else { return };
        conn.adopted = true;
        if conn.state.is_half_open()
            && let Some(listener) = conn.listener.and_then(|id| self.listeners.get_mut(&id))
        {
            listener.pending -= 1;
        }
    }

    /// Accepts a request. [`Event::Established`], [`Event::Rejected`] or [`Event::Unreachable`] follows. The QP
    /// must be in RTR before, as the first packet may come before the RTU, or instead of it.
    pub fn accept(&mut self, now: Instant, id: CommId, accept: &Accept<'_>) -> Result<(), CmError> {
        let conn = self.known(id)?;
        if !matches!(conn.state, State::ReqRcvd | State::MraReqSent) {
            return Err(CmError::State);
        }
        let rep = message::rep(&self.config, conn, id.0, accept)?;
        let conn = self.conns.get_mut(&id.0).expect("known");
        conn.local_qpn = accept.qpn;
        conn.responder_resources = accept.responder_resources;
        conn.initiator_depth = accept.initiator_depth;
        conn.peer_rnr_retry = accept.rnr_retry_count.min(7);
        conn.message = Some(Box::new(rep));
        let deadline = now + conn.retry_interval;
        self.set_state(id.0, State::RepSent);
        self.resend(id.0);
        self.set_timer(id.0, deadline);
        Ok(())
    }

    /// A packet of the connection arrived (the QP's `communication established` event): as good as an RTU
    /// (12.9.7.2).
    pub fn communication_established(&mut self, id: CommId) {
        if self.conns.get(&id.0).is_some_and(|conn| matches!(conn.state, State::RepSent | State::MraRepRcvd))
        {
            self.on_up(id.0);
        }
    }

    pub(super) fn on_rtu(&mut self, from: Gid, tid: u64, rtu: &Rtu) {
        match self.matching(from, rtu.remote_comm_id, rtu.local_comm_id).map(|conn| conn.state) {
            Some(State::RepSent | State::MraRepRcvd) => self.on_up(rtu.remote_comm_id),
            Some(_) => self.stats.duplicates += 1,
            // We gave up or were restarted, and the peer thinks that it is connected.
            None => {
                self.stats.unexpected += 1;
                let path = self.reply_path(rtu.remote_comm_id, from);
                self.send_stateless(
                    path,
                    message::rej(
                        tid,
                        rtu.remote_comm_id,
                        rtu.local_comm_id,
                        &Reject::new(RejectedMessage::Other, RejReason::INVALID_COMM_ID),
                    ),
                );
            }
        }
    }

    pub(super) fn on_up(&mut self, id: u32) {
        self.cancel_timer(id);
        self.set_state(id, State::Established);
        self.conns.get_mut(&id).expect("the caller looked it up").message = None;
        self.emit(id, Event::Established { id: CommId(id) });
    }

    pub(super) fn on_req(&mut self, now: Instant, from: Gid, tid: u64, req: &Req) {
        if let Some(&id) = self.by_remote_id.get(&(from, req.local_ca_guid, req.local_comm_id)) {
            let conn = &self.conns[&id];
            if conn.remote_qpn == req.local_qpn && conn.sq_psn == req.starting_psn {
                return self.on_duplicate_req(now, id);
            }
            // The ID was used for another connection: the peer has lost its memory (12.9.8.3.1).
            return self.reject_stale(now, from, tid, req, id);
        }
        if let Some(&id) = self.by_remote_qpn.get(&(from, req.local_ca_guid, req.local_qpn.value())) {
            return self.reject_stale(now, from, tid, req, id);
        }
        if let Some((path, answer)) = self.refusals.find(&Question::of(from, req)) {
            self.stats.duplicates += 1;
            return self.send_stateless(path, Ok(*answer));
        }
        match self.verdict(from, req) {
            Verdict::Ask(asked) => self.on_first_req(now, from, tid, req, &asked),
            Verdict::Reject(reason, ari) => self.reject_stateless(from, tid, req, reason, ari),
            Verdict::Drop => self.stats.overflowed += 1,
        }
    }

    /// What a REQ that is not a duplicate deserves.
    fn verdict(&self, from: Gid, req: &Req) -> Verdict {
        let Some(listener) = self.listener(req.service_id, req.primary.remote_gid) else {
            return Verdict::Reject(RejReason::INVALID_SERVICE_ID, None);
        };
        let transport = match req.transport_service {
            TransportService::Rc => Transport::Rc,
            TransportService::Uc => Transport::Uc,
            TransportService::Rd | TransportService::Extended => {
                return Verdict::Reject(RejReason::INVALID_TRANSPORT_TYPE, None);
            }
        };
        // On RoCE the GID is the IP address that the REQ came from; if it were another, our QP's packets would go
        // to somebody who never asked.
        let (gids, asked) = (&self.config.gids, req.primary.remote_gid);
        let is_ours = asked != Gid::default() && gids.contains(&asked);
        if req.primary.local_gid != from || !(gids.is_empty() || is_ours) {
            return Verdict::Reject(RejReason::INVALID_GID, None);
        }
        let max_mtu = self.config.max_mtu;
        let Some(mtu) = Mtu::from_code(req.path_mtu).filter(|&mtu| mtu <= max_mtu) else {
            return Verdict::Reject(RejReason::INVALID_MTU, Some(max_mtu as u8));
        };
        let cma = match message::has_cma_header(req.service_id).then(|| req.cma()) {
            None => None,
            Some(Ok((cma, _))) => Some(cma),
            Some(Err(_)) => return Verdict::Reject(RejReason::UNSUPPORTED, None),
        };
        if !self.has_room(listener) {
            return Verdict::Drop;
        }
        Verdict::Ask(Asked { listener, transport, mtu, cma })
    }

    /// The listener for a service: one that names the GID before the wildcard.
    pub(super) fn listener(&self, service: ServiceId, local: Gid) -> Option<ListenId> {
        let exact = self.services.get(&(service.0, Some(local)));
        exact.or_else(|| self.services.get(&(service.0, None))).copied()
    }

    pub(super) fn has_room(&self, listener: ListenId) -> bool {
        let listener = &self.listeners[&listener];
        listener.pending < listener.listen.backlog && self.half_open < self.config.max_half_open
    }

    fn on_first_req(&mut self, now: Instant, from: Gid, tid: u64, req: &Req, asked: &Asked) {
        let &Asked { listener, transport, mtu, cma } = asked;
        let Ok(id) = self.allocate_id() else {
            self.stats.overflowed += 1;
            return;
        };
        let path = Path { local: req.primary.remote_gid, remote: from };
        let rq_psn = self.random_psn();
        let lifetime = timing::packet_lifetime(req.primary.local_ack_timeout);
        let peer_interval = timing::duration(req.remote_cm_response_timeout) + 2 * timing::duration(lifetime);
        let patience = peer_interval * (u32::from(req.max_cm_retries) + 2);
        let conn = Conn {
            state: State::ReqRcvd,
            listener: Some(listener),
            abandoned: false,
            adopted: false,
            path,
            service_id: req.service_id,
            transport,
            tid,
            remote_id: req.local_comm_id,
            remote_guid: req.local_ca_guid,
            local_qpn: Qpn::default(),
            remote_qpn: req.local_qpn,
            rq_psn,
            sq_psn: req.starting_psn,
            mtu,
            has_asked_for_less: false,
            responder_resources: req.initiator_depth,
            initiator_depth: req.responder_resources,
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
            peer_rnr_retry: req.rnr_retry_count,
            ack_timeout: timing::ack_timeout(lifetime, self.config.ack_delay),
            reported: false,
            message: None,
            retries_left: req.max_cm_retries,
            pause: 1,
            knocks_left: 0,
            retry_interval: timing::duration(req.local_cm_response_timeout) + 2 * timing::duration(lifetime),
            patience,
            deadline: None,
        };
        self.insert(id, conn);
        self.by_remote_id.insert((from, req.local_ca_guid, req.local_comm_id), id);
        self.by_remote_qpn.insert((from, req.local_ca_guid, req.local_qpn.value()), id);
        self.set_timer(id, now + patience);
        let data_start = if cma.is_some() { CMA_HEADER_LEN } else { 0 };
        self.events.push_back(Event::ConnectRequest(Box::new(Request {
            id: CommId(id),
            listener,
            path,
            service_id: req.service_id,
            transport,
            remote_qpn: req.local_qpn,
            responder_resources: req.initiator_depth,
            initiator_depth: req.responder_resources,
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
            srq: req.srq,
            mtu,
            cma,
            private_data: req.private_data[data_start..].into(),
        })));
    }

    fn on_duplicate_req(&mut self, now: Instant, id: u32) {
        self.stats.duplicates += 1;
        let conn = self.conns.get_mut(&id).expect("found by its remote ID");
        match conn.state {
            // Our caller has not decided: ask for patience, once for each time that the peer asks.
            State::ReqRcvd | State::MraReqSent => {
                conn.state = State::MraReqSent;
                let until = now + timing::duration(self.config.service_timeout) + conn.patience;
                let (path, mad) =
                    (conn.path, message::mra(conn, id, RejectedMessage::Req, self.config.service_timeout));
                self.send(path, mad);
                self.set_timer(id, until);
            }
            // Our REP was lost, or crosses this one.
            State::RepSent | State::MraRepRcvd => self.resend(id),
            State::Timewait => {
                self.send_rej(id, &Reject::new(RejectedMessage::Req, RejReason::STALE_CONN));
            }
            State::ReqSent
            | State::MraReqRcvd
            | State::RepRcvd
            | State::MraRepSent
            | State::Established
            | State::DreqSent
            | State::SidrReqSent
            | State::SidrReqRcvd
            | State::SidrRepSent => {}
        }
    }

    fn reject_stale(&mut self, now: Instant, from: Gid, tid: u64, req: &Req, old: u32) {
        self.on_stale(now, old);
        self.reject_stateless(from, tid, req, RejReason::STALE_CONN, None);
    }

    /// The peer of `id` has forgotten it.
    pub(super) fn on_stale(&mut self, now: Instant, id: u32) {
        match self.conns[&id].state {
            State::ReqRcvd | State::MraReqSent => {
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
            }
            // Ends it on our side at once; the DREQ ends what a peer might still have after all.
            State::RepSent | State::MraRepRcvd | State::RepRcvd | State::MraRepSent | State::Established => {
                self.emit(id, Event::Disconnected { id: CommId(id), ended: Ended::Stale });
                self.send_dreq(now, id);
                self.conns.get_mut(&id).expect("just there").reported = true;
            }
            State::DreqSent
            | State::Timewait
            | State::ReqSent
            | State::MraReqRcvd
            | State::SidrReqSent
            | State::SidrReqRcvd
            | State::SidrRepSent => {}
        }
    }

    fn reject_stateless(&mut self, from: Gid, tid: u64, req: &Req, reason: RejReason, ari: Option<u8>) {
        let path = Path { local: req.primary.remote_gid, remote: from };
        let info = ari.as_slice();
        let reject = Reject { info, ..Reject::new(RejectedMessage::Req, reason) };
        self.send_stateless(path, message::rej(tid, 0, req.local_comm_id, &reject));
    }

    /// The peer must have stopped asking long ago.
    pub(super) fn expire_request(&mut self, id: u32) {
        self.emit(
            id,
            Event::Rejected {
                id: CommId(id),
                reason: RejReason::TIMEOUT,
                ari: Box::default(),
                private_data: Box::default(),
            },
        );
        self.remove(id);
    }

    /// No RTU came. The REP is repeated after one interval, and then after twice as long each time: as long as the peer
    /// asked for, but with 5 messages and not with 16. Whoever sends a REQ under another's address must not make us send
    /// that one a multiple; and a peer that lost the REP repeats its REQ, which is answered at once.
    pub(super) fn repeat_rep(&mut self, now: Instant, id: u32) {
        let conn = self.conns.get_mut(&id).expect("the caller looked it up");
        if conn.retries_left == 0 {
            return self.give_up_passive(now, id);
        }
        conn.pause = (2 * conn.pause).min(conn.retries_left);
        conn.retries_left -= conn.pause;
        conn.state = State::RepSent;
        let until = now + conn.retry_interval * u32::from(conn.pause);
        self.stats.retries += 1;
        self.resend(id);
        self.set_timer(id, until);
    }

    /// The REP was repeated in vain.
    pub(super) fn give_up_passive(&mut self, now: Instant, id: u32) {
        let guid = self.config.ca_guid.to_be_bytes();
        self.send_rej(id, &Reject { info: &guid, ..Reject::new(RejectedMessage::Rep, RejReason::TIMEOUT) });
        self.emit(id, Event::Unreachable { id: CommId(id) });
        self.enter_timewait(now, id);
    }
}

/// What a REQ asks for, as far as it had to be understood.
struct Asked {
    listener: ListenId,
    transport: Transport,
    mtu: Mtu,
    cma: Option<CmaHeader>,
}

enum Verdict {
    Ask(Asked),
    Reject(RejReason, Option<u8>),
    Drop,
}
