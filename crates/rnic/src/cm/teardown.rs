//! How connections end: REJ, DREQ, DREP, timewait (IBA Vol 1, 12.9.6, 12.9.8).

use std::time::Duration;

use remanence_wire::cm::{Drep, Dreq, Message, Rej, RejReason, RejectedMessage, Repr};
use remanence_wire::{Gid, Mtu, Qpn, mad};

use super::conn::{Conn, State};
use super::message::{self, Mad, Reject};
use super::refusals::Question;
use super::types::{CmError, CommId, Ended, Event, Path};
use super::{Manager, timing};
use crate::time::Instant;

/// What a REJ says beside its reason, the Additional Reject Information.
fn ari(rej: &Rej) -> &[u8] {
    &rej.info[..usize::from(rej.info_len).min(rej.info.len())]
}

/// Between the first attempts to find somebody who listens.
const KNOCK_INTERVAL: Duration = Duration::from_millis(10);
/// So many knocks come at that interval, and each of the others after twice the time of the one before.
const QUICK_KNOCKS: u8 = 5;

/// The longest timewait, as an exponent: 4.3 s. The times of IP networks are far below, and so is what Linux asks for.
const TIMEWAIT_MAX: u8 = 20;

/// The message of the peer that our caller is to decide on, if there is one.
const fn undecided(state: State) -> Option<RejectedMessage> {
    match state {
        State::ReqRcvd | State::MraReqSent => Some(RejectedMessage::Req),
        State::RepRcvd | State::MraRepSent => Some(RejectedMessage::Rep),
        State::ReqSent
        | State::MraReqRcvd
        | State::RepSent
        | State::MraRepRcvd
        | State::Established
        | State::DreqSent
        | State::Timewait
        | State::SidrReqSent
        | State::SidrReqRcvd
        | State::SidrRepSent => None,
    }
}

impl Manager {
    /// Rejects a request ([`Event::ConnectRequest`]) or an answer ([`Event::Response`]). The ID is gone.
    pub fn reject(
        &mut self,
        id: CommId,
        reason: RejReason,
        ari: &[u8],
        private_data: &[u8],
    ) -> Result<(), CmError> {
        let conn = self.known(id)?;
        let rejected = undecided(conn.state).ok_or(CmError::State)?;
        let reject = Reject { message: rejected, reason, info: ari, private_data };
        let mad = message::rej(conn.tid, id.0, conn.remote_id, &reject)?;
        self.refuse(id.0, rejected, mad);
        Ok(())
    }

    /// Ends an established connection, or one whose REP was sent. [`Event::Disconnected`] follows; the QP should
    /// be in the error state.
    pub fn disconnect(&mut self, now: Instant, id: CommId) -> Result<(), CmError> {
        match self.known(id)?.state {
            State::Established => self.send_dreq(now, id.0),
            // A DREQ is not for this state (12.9.6); the peer that has our REP takes a REJ in any of its states.
            State::RepSent | State::MraRepRcvd => {
                self.send_rej(id.0, &Reject::new(RejectedMessage::Other, RejReason::CONSUMER_DEFINED));
                self.end(now, id.0, Ended::Local);
            }
            State::ReqSent
            | State::MraReqRcvd
            | State::RepRcvd
            | State::MraRepSent
            | State::ReqRcvd
            | State::MraReqSent
            | State::DreqSent
            | State::Timewait
            | State::SidrReqSent
            | State::SidrReqRcvd
            | State::SidrRepSent => return Err(CmError::State),
        }
        Ok(())
    }

    /// The peer of an established connection does not answer any more: the connection is over. A peer that was only away
    /// for long is told.
    pub fn lost(&mut self, now: Instant, id: CommId) {
        let Some(conn) = self.conns.get_mut(&id.0).filter(|conn| conn.state == State::Established) else {
            return;
        };
        conn.tid = u64::from(id.0);
        let (path, dreq) = (conn.path, message::dreq(conn, id.0));
        self.send(path, dreq);
        self.end(now, id.0, Ended::Unanswered);
    }

    /// The caller has lost interest in `id`: it is ended as politely as its state allows, with no further events.
    pub fn close(&mut self, now: Instant, id: CommId) {
        let Some(conn) = self.conns.get_mut(&id.0) else { return };
        conn.abandoned = true;
        let state = conn.state;
        self.forget_events(id);
        match state {
            State::ReqSent | State::MraReqRcvd => self.give_up_active(now, id.0),
            State::ReqRcvd | State::MraReqSent | State::SidrReqRcvd | State::RepRcvd | State::MraRepSent => {
                self.turn_away(id.0)
            }
            State::RepSent | State::MraRepRcvd => {
                self.send_rej(id.0, &Reject::new(RejectedMessage::Other, RejReason::CONSUMER_DEFINED));
                self.enter_timewait(now, id.0);
            }
            State::Established => self.send_dreq(now, id.0),
            State::SidrReqSent => self.remove(id.0),
            // These end by themselves.
            State::DreqSent | State::Timewait | State::SidrRepSent => {}
        }
    }

    /// The process that it all belongs to ends: as [`close`](Self::close), for everything.
    pub fn close_all(&mut self, now: Instant) {
        let all: Vec<u32> = self.conns.keys().copied().collect();
        for id in all {
            self.close(now, CommId(id));
        }
    }

    /// The network says that nobody is there any more to confirm a disconnect: it is as good as confirmed.
    pub fn nobody_answers(&mut self, now: Instant, id: CommId) {
        if self.state(id) == Some(State::DreqSent) {
            self.end(now, id.0, Ended::Local);
        }
    }

    /// Rejects what its caller will never decide on.
    pub(super) fn turn_away(&mut self, id: u32) {
        let state = self.conns[&id].state;
        if state == State::SidrReqRcvd {
            return self.refuse_sidr(id);
        }
        let rejected = undecided(state).expect("only what waits for our caller can be turned away");
        let conn = &self.conns[&id];
        let reject = Reject::new(rejected, RejReason::CONSUMER_DEFINED);
        let mad = message::rej(conn.tid, id, conn.remote_id, &reject).expect("our own information fits");
        self.refuse(id, rejected, mad);
    }

    /// Sends the REJ that our caller decided on, and forgets the connection. A repeated REQ gets the same REJ.
    fn refuse(&mut self, id: u32, rejected: RejectedMessage, mad: Mad) {
        let conn = &self.conns[&id];
        let path = conn.path;
        if rejected == RejectedMessage::Req {
            let question = Question {
                from: path.remote,
                guid: conn.remote_guid,
                id: conn.remote_id,
                qpn: conn.remote_qpn,
                psn: conn.sq_psn,
            };
            self.refusals.remember(question, path, Box::new(mad));
        }
        self.send(path, mad);
        self.remove(id);
    }

    /// Sends a REJ on a connection's behalf.
    pub(super) fn send_rej(&mut self, id: u32, reject: &Reject<'_>) {
        let conn = &self.conns[&id];
        let mad = message::rej(conn.tid, id, conn.remote_id, reject).expect("our own information fits");
        self.send(conn.path, mad);
    }

    fn forget_events(&mut self, gone: CommId) {
        self.events.retain(|event| match event {
            Event::ConnectRequest(request) => request.id != gone,
            Event::SidrRequest(request) => request.id != gone,
            Event::Response { id, .. }
            | Event::Established { id }
            | Event::Rejected { id, .. }
            | Event::Unreachable { id }
            | Event::Disconnected { id, .. }
            | Event::TimewaitExit { id }
            | Event::SidrResponse { id, .. } => *id != gone,
        });
    }

    pub(super) fn send_dreq(&mut self, now: Instant, id: u32) {
        let retries = self.config.max_cm_retries;
        let conn = self.conns.get_mut(&id).expect("the caller looked it up");
        // A new exchange: the ID is unique here, and REQ and DREQ are told apart by their attribute.
        conn.tid = u64::from(id);
        let dreq = message::dreq(conn, id);
        conn.message = Some(Box::new(dreq));
        conn.retries_left = retries;
        let deadline = now + conn.retry_interval;
        self.set_state(id, State::DreqSent);
        self.resend(id);
        self.set_timer(id, deadline);
    }

    pub(super) fn on_dreq(&mut self, now: Instant, from: Gid, tid: u64, dreq: &Dreq) {
        let id = dreq.remote_comm_id;
        let Some(conn) = self.matching(from, id, dreq.local_comm_id) else {
            // It is over here already; the peer shall not ask for long (12.9.8.4).
            self.stats.unexpected += 1;
            let path = self.reply_path(id, from);
            self.send_stateless(path, Ok(message::drep(tid, id, dreq.local_comm_id)));
            return;
        };
        if conn.local_qpn != dreq.remote_qpn {
            self.stats.unexpected += 1;
            return;
        }
        let (path, drep) = (conn.path, message::drep(tid, id, conn.remote_id));
        match conn.state {
            State::RepSent | State::MraRepRcvd => {
                // The peer was connected, so our REP got there and its RTU got lost.
                self.on_up(id);
                self.send(path, drep);
                self.end(now, id, Ended::Remote);
            }
            State::Established | State::RepRcvd | State::MraRepSent => {
                self.send(path, drep);
                self.end(now, id, Ended::Remote);
            }
            State::DreqSent => {
                self.send(path, drep);
                self.end(now, id, Ended::Local);
            }
            State::Timewait => {
                self.stats.duplicates += 1;
                self.send(path, drep);
            }
            State::ReqSent
            | State::MraReqRcvd
            | State::ReqRcvd
            | State::MraReqSent
            | State::SidrReqSent
            | State::SidrReqRcvd
            | State::SidrRepSent => self.stats.unexpected += 1,
        }
    }

    pub(super) fn on_drep(&mut self, now: Instant, from: Gid, drep: &Drep) {
        match self.matching(from, drep.remote_comm_id, drep.local_comm_id).map(|conn| conn.state) {
            Some(State::DreqSent) => self.end(now, drep.remote_comm_id, Ended::Local),
            Some(_) => self.stats.duplicates += 1,
            None => self.stats.unexpected += 1,
        }
    }

    pub(super) fn give_up_disconnect(&mut self, now: Instant, id: u32) {
        self.end(now, id, Ended::Unanswered);
    }

    pub(super) fn on_rej(&mut self, now: Instant, from: Gid, rej: &Rej) {
        let Some((id, state)) = self.rejected(from, rej) else {
            self.stats.unexpected += 1;
            return;
        };
        if rej.reason == RejReason::INVALID_SERVICE_ID && self.knocks_again(now, id) {
            return;
        }
        if rej.reason == RejReason::INVALID_MTU && self.asks_for_less(now, id, rej) {
            return;
        }
        match state {
            State::ReqSent
            | State::MraReqRcvd
            | State::ReqRcvd
            | State::MraReqSent
            | State::RepRcvd
            | State::MraRepSent => {
                self.emit_rejected(id, rej);
                self.remove(id);
            }
            State::RepSent | State::MraRepRcvd => {
                self.emit_rejected(id, rej);
                self.enter_timewait(now, id);
            }
            State::Established => self.end(now, id, Ended::Stale),
            State::DreqSent => self.end(now, id, Ended::Local),
            State::Timewait => self.stats.duplicates += 1,
            State::SidrReqSent | State::SidrReqRcvd | State::SidrRepSent => self.stats.unexpected += 1,
        }
    }

    /// Which connection a REJ means.
    fn rejected(&self, from: Gid, rej: &Rej) -> Option<(u32, State)> {
        let found = |id: u32, conn: &Conn| (conn.path.remote == from).then_some((id, conn.state));
        if rej.reason == RejReason::TIMEOUT {
            // The sender gave up waiting for us and may not know our ID; it names itself by its GUID (12.7.11).
            let guid = u64::from_be_bytes(*rej.info.first_chunk()?);
            let &id = self.by_remote_id.get(&(from, guid, rej.local_comm_id))?;
            return found(id, &self.conns[&id]);
        }
        let conn = self.conns.get(&rej.remote_comm_id)?;
        let fits = match rej.message {
            // The sender may not have had an ID to give.
            RejectedMessage::Req => matches!(conn.state, State::ReqSent | State::MraReqRcvd),
            RejectedMessage::Rep | RejectedMessage::Other | RejectedMessage::Reserved => {
                conn.remote_id == rej.local_comm_id && conn.remote_id != 0
            }
        };
        found(rej.remote_comm_id, conn).filter(|_| fits)
    }

    /// Nobody listens there. Lets the timer ask again soon, if it may.
    pub(super) fn knocks_again(&mut self, now: Instant, id: u32) -> bool {
        let Some(conn) = self.conns.get_mut(&id).filter(|conn| conn.knocks_left > 0) else { return false };
        let knock = self.knocks.saturating_sub(conn.knocks_left);
        conn.knocks_left -= 1;
        // The timer takes one, but this one was answered.
        conn.retries_left = conn.retries_left.saturating_add(1);
        let slower = knock.saturating_sub(QUICK_KNOCKS - 1).min(10);
        self.set_timer(id, now + KNOCK_INTERVAL * (1 << slower));
        true
    }

    /// The peer takes no packets as long as ours, and says which path MTU it would take (12.7.12): asks for that one. A REJ that
    /// names no smaller one is the network's copy of the one that was heeded, and the answer is still to come.
    fn asks_for_less(&mut self, now: Instant, id: u32, rej: &Rej) -> bool {
        let conn = self.conns.get_mut(&id).expect("found by the caller");
        let most = ari(rej).first().and_then(|code| Mtu::from_code(*code));
        let Some(most) = most.filter(|_| conn.listener.is_none()) else { return false };
        if most >= conn.mtu {
            return conn.has_asked_for_less;
        }
        let asked = conn.message.as_deref().and_then(|mad| Repr::parse(mad).ok());
        let Some(Repr { transaction_id, message: Message::Req(mut req) }) = asked else { return false };
        req.path_mtu = most as u8;
        let mut mad = [0; mad::LEN];
        Repr { transaction_id, message: Message::Req(req) }.emit(&mut mad);
        conn.message = Some(Box::new(mad));
        (conn.mtu, conn.has_asked_for_less) = (most, true);
        let again = now + conn.retry_interval;
        self.set_state(id, State::ReqSent);
        self.resend(id);
        self.set_timer(id, again);
        true
    }

    fn emit_rejected(&mut self, id: u32, rej: &Rej) {
        self.emit(
            id,
            Event::Rejected {
                id: CommId(id),
                reason: rej.reason,
                ari: ari(rej).into(),
                private_data: rej.private_data.as_slice().into(),
            },
        );
    }

    /// Reports the end of `id` and waits for its last packets.
    fn end(&mut self, now: Instant, id: u32, ended: Ended) {
        if !self.conns[&id].reported {
            self.emit(id, Event::Disconnected { id: CommId(id), ended });
        }
        self.enter_timewait(now, id);
    }

    pub(super) fn enter_timewait(&mut self, now: Instant, id: u32) {
        self.set_state(id, State::Timewait);
        let conn = self.conns.get_mut(&id).expect("the caller looked it up");
        conn.message = None;
        // Both ways, and a late ACK (12.9.8.3.1). The peer says how long that may take, and is not believed everything.
        let until = now + timing::duration(conn.ack_timeout.min(TIMEWAIT_MAX));
        self.set_timer(id, until);
        self.waiting.push_back(id);
        // Connections that are over must not keep others from being made: whoever connects and disconnects as fast as he can
        // would soon have used up all that we may have.
        while self.waiting.len() > self.config.max_connections / 2 {
            let oldest = self.waiting.pop_front().expect("longer than half of something");
            if self.state(CommId(oldest)) == Some(State::Timewait) {
                self.leave_timewait(oldest);
            }
        }
    }

    /// No packet of `id` can be under way any more, as far as we wait for them.
    pub(super) fn leave_timewait(&mut self, id: u32) {
        self.emit(id, Event::TimewaitExit { id: CommId(id) });
        self.remove(id);
        while self.waiting.front().is_some_and(|id| !self.conns.contains_key(id)) {
            self.waiting.pop_front();
        }
    }

    /// The peer's QP, once it is known.
    #[must_use]
    pub fn remote_qpn(&self, id: CommId) -> Option<Qpn> {
        self.conns.get(&id.0).map(|conn| conn.remote_qpn)
    }

    /// The path of a connection, while it is known.
    #[must_use]
    pub fn path(&self, id: CommId) -> Option<Path> {
        self.conns.get(&id.0).map(|conn| conn.path)
    }
}
