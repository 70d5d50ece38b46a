//! The verbs on QPs: create, modify, query, destroy, post.
//!
//! Read first: IBA Vol 1, 11.2.5 (QP verbs) and 11.4.1 (posting).

use remanence_wire::{Gid, Mtu, Psn, Qpn};

use super::Qp;
use super::attr::{QpAttr, QpInfo, QpInit, QpType};
use super::congestion::Congestion;
use super::keepalive::Keepalive;
use super::path::Path;
use super::receive::Receiving;
use super::requester::Requester;
use super::responder::Responder;
use super::retry::Retry;
use super::state::{self, QpState};
use super::timer::TimerEntry;
use crate::access::Access;
use crate::device::{Device, MAX_MESSAGE, Shared};
use crate::error::{PostError, VerbError};
use crate::time::Instant;
use crate::wqe::{RecvQueue, SendQueue};
use crate::wr::{Data, RecvWr, SendOp, SendWr};

impl Device {
    /// Creates a QP in RESET and returns its number.
    pub fn create_qp(&mut self, init: &QpInit) -> Result<Qpn, VerbError> {
        self.check_pd(init.pd)?;
        for cq in [init.send_cq, init.recv_cq] {
            self.shared.cqs.get(cq.0).ok_or(VerbError::NoSuchObject("CQ"))?;
        }
        if let Some(srq) = init.srq {
            self.shared.srqs.get(srq.0).ok_or(VerbError::NoSuchObject("SRQ"))?;
        }
        let (caps, config) = (&init.caps, &self.shared.config);
        if caps.max_send_wr > config.max_qp_wr
            || caps.max_recv_wr > config.max_qp_wr
            || caps.max_send_sge > config.max_sge
            || caps.max_recv_sge > config.max_sge
            || caps.max_inline > config.max_inline
        {
            return Err(VerbError::InvalidArgument("QP capabilities"));
        }
        let (recv_wr, recv_sge) =
            if init.srq.is_some() { (0, 0) } else { (caps.max_recv_wr, caps.max_recv_sge) };
        let recv_pd = match init.srq {
            Some(srq) => self.shared.srqs.get(srq.0).expect("checked above").pd,
            None => init.pd,
        };
        let make = |qpn, slot| Qp {
            qpn,
            slot,
            state: QpState::Reset,
            queued: false,
            wants_tx: false,
            cq_lost: false,
            draining: false,
            comm_est: false,
            cnp_due: false,
            cnp_at: None,
            mtu: config.mtu,
            dest: Qpn::new(0),
            access: Access::empty(),
            init: *init,
            recv_pd,
            attr: QpAttr::default(),
            path: None,
            sq: SendQueue::new(caps.max_send_wr, caps.max_send_sge, caps.max_inline),
            rq: RecvQueue::new(recv_wr, recv_sge),
            requester: Requester::default(),
            congestion: Congestion::new(config.window),
            retry: Retry::default(),
            keepalive: Keepalive::default(),
            responder: Responder::default(),
            receiving: Receiving::default(),
            timer: TimerEntry::default(),
        };
        let qpn = self.qps.insert(make).ok_or(VerbError::NoRoom("QP"))?;
        self.use_pd(init.pd);
        for cq in [init.send_cq, init.recv_cq] {
            self.shared.cqs.get_mut(cq.0).expect("checked above").users += 1;
        }
        if let Some(srq) = init.srq {
            self.shared.srqs.get_mut(srq.0).expect("checked above").users += 1;
        }
        Ok(qpn)
    }

    /// Destroys a QP. Its outstanding work requests vanish without completions. What it acknowledged last leaves once
    /// more: poll for packets to send afterwards.
    pub fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), VerbError> {
        let mut qp = self.qps.remove(qpn).ok_or(VerbError::NoSuchObject("QP"))?;
        qp.part(&mut self.shared);
        self.shared.forget(&mut qp);
        self.shared.qp_changes += 1;
        self.leave_groups(|&(_, member)| member == qpn);
        for cq in [qp.init.send_cq, qp.init.recv_cq] {
            self.shared.cqs.get_mut(cq.0).expect("a CQ outlives its QPs").users -= 1;
        }
        if let Some(srq) = qp.init.srq {
            self.shared.srqs.get_mut(srq.0).expect("an SRQ outlives its QPs").users -= 1;
        }
        self.shared.keys.unbind_all_of(qpn);
        self.release_pd(qp.init.pd);
        Ok(())
    }

    /// What a QP was created with, its attributes, its state.
    pub fn query_qp(&self, qpn: Qpn) -> Result<QpInfo, VerbError> {
        let qp = self.qps.get(qpn).ok_or(VerbError::NoSuchObject("QP"))?;
        let mut attr = qp.attr;
        // The PSNs as they are now, where there are any.
        attr.rq_psn = attr.rq_psn.map(|_| qp.responder.epsn);
        attr.sq_psn = attr.sq_psn.map(|_| qp.requester.max_psn);
        Ok(QpInfo { init: qp.init, attr, state: qp.state, draining: qp.draining })
    }

    /// Changes attributes, and with them or alone the state. Nothing changes on an error.
    pub fn modify_qp(&mut self, _now: Instant, qpn: Qpn, attr: &QpAttr) -> Result<(), VerbError> {
        let Self { shared, qps, .. } = self;
        let qp = qps.get_mut(qpn).ok_or(VerbError::NoSuchObject("QP"))?;
        let to = state::check(qp.init.ty, qp.state, attr)?;
        check_ranges(shared, attr)?;
        let dest = attr.dest_qpn.unwrap_or(qp.dest);
        let path = match &attr.av {
            Some(av) => {
                let av = shared.resolve(av)?;
                let config = &shared.config;
                Some(Box::new(Path::new(&av, qpn, dest, config.source_port, config.ecn)))
            }
            None => None,
        };
        qp.attr.merge(attr);
        qp.dest = dest;
        qp.path = path.or_else(|| qp.path.take());
        qp.mtu = attr.path_mtu.unwrap_or(qp.mtu);
        qp.access = attr.access.unwrap_or(qp.access);
        qp.change_state(shared, to, attr);
        shared.settle(qp);
        Ok(())
    }

    /// Posts a send-queue work request. Poll for packets to send afterwards.
    pub fn post_send(&mut self, qpn: Qpn, wr: &SendWr<'_>) -> Result<(), PostError> {
        let Self { shared, qps, .. } = self;
        let qp = qps.get_mut(qpn).ok_or(PostError::NoSuchQueue)?;
        let len = qp.may_post(shared, wr)?;
        qp.sq.post(wr, len)?;
        if matches!(qp.state, QpState::Sqe | QpState::Err) {
            // Accepted, and flushed at once (10.3.1).
            qp.flush_sends(shared);
        } else {
            qp.wants_tx = true;
            shared.settle(qp);
        }
        Ok(())
    }

    /// Whether what is to be sent of a QP's send queue may wait for what is posted next without a loss: they are small requests,
    /// too few to be worth a send, and behind them answers are under way that will be looked for.
    #[inline]
    #[must_use]
    pub fn may_wait(&self, qpn: Qpn) -> bool {
        self.qps.get(qpn).is_some_and(|qp| {
            qp.state == QpState::Rts && qp.requester.in_flight() > 0 && qp.may_await_company()
        })
    }

    /// Nothing more will be posted to a QP: what waits for company there leaves with the next packets. Says whether anything does.
    pub fn hurry(&mut self, qpn: Qpn) -> bool {
        let Self { shared, qps, .. } = self;
        let Some(qp) = qps.get_mut(qpn) else { return false };
        let waits = qp.let_leave();
        shared.settle(qp);
        waits
    }

    /// Whether a send-queue work request would be accepted behind `ahead` others that are not posted yet: for lists
    /// that go whole or not at all.
    pub fn check_post_send(&self, qpn: Qpn, wr: &SendWr<'_>, ahead: u32) -> Result<(), PostError> {
        let qp = self.qps.get(qpn).ok_or(PostError::NoSuchQueue)?;
        qp.may_post(&self.shared, wr)?;
        qp.sq.check(wr, ahead)
    }

    /// Posts a receive to the QP's own receive queue.
    pub fn post_recv(&mut self, qpn: Qpn, wr: &RecvWr<'_>) -> Result<(), PostError> {
        let Self { shared, qps, .. } = self;
        let qp = qps.get_mut(qpn).ok_or(PostError::NoSuchQueue)?;
        if qp.init.srq.is_some() || qp.state == QpState::Reset {
            return Err(PostError::InvalidState);
        }
        qp.rq.post(wr)?;
        if qp.state == QpState::Err {
            qp.flush_receives(shared);
        }
        Ok(())
    }

    /// Lets a UD QP receive what is sent to a multicast group. That the link joins the group is the caller's
    /// business.
    pub fn attach_mcast(&mut self, qpn: Qpn, mgid: Gid) -> Result<(), VerbError> {
        let qp = self.qps.get(qpn).ok_or(VerbError::NoSuchObject("QP"))?;
        if qp.init.ty != QpType::Ud || !mgid.to_ip().is_multicast() {
            return Err(VerbError::InvalidArgument("multicast is for UD QPs and multicast GIDs"));
        }
        if self.groups.contains(&(mgid, qpn)) {
            return Ok(());
        }
        let members = self.groups.iter().filter(|(group, _)| *group == mgid).count();
        let config = &self.shared.config;
        if members >= config.max_mcast_qps as usize {
            return Err(VerbError::NoRoom("QP in the multicast group"));
        }
        if members == 0 && self.groups().count() >= config.max_mcast_groups as usize {
            return Err(VerbError::NoRoom("multicast group"));
        }
        self.groups.push((mgid, qpn));
        self.left.retain(|group| *group != mgid);
        Ok(())
    }

    /// The multicast groups that QPs are attached to.
    pub fn groups(&self) -> impl Iterator<Item = Gid> {
        let first =
            |&(at, (mgid, _)): &(usize, &(Gid, Qpn))| self.groups[..at].iter().all(|(g, _)| g != mgid);
        self.groups.iter().enumerate().filter(first).map(|(_, (mgid, _))| *mgid)
    }

    /// The next group whose last QP was detached or destroyed: the link may leave it.
    pub fn poll_left_group(&mut self) -> Option<Gid> {
        self.left.pop()
    }

    fn leave_groups(&mut self, leaves: impl Fn(&(Gid, Qpn)) -> bool) {
        let mut gone = Vec::new();
        self.groups.retain(|member| {
            let stays = !leaves(member);
            if !stays {
                gone.push(member.0);
            }
            stays
        });
        gone.retain(|mgid| self.groups.iter().all(|(group, _)| group != mgid));
        self.left.append(&mut gone);
    }

    /// Undoes [`Device::attach_mcast`].
    pub fn detach_mcast(&mut self, qpn: Qpn, mgid: Gid) -> Result<(), VerbError> {
        if !self.groups.contains(&(mgid, qpn)) {
            return Err(VerbError::InvalidArgument("the QP is not attached to the group"));
        }
        self.leave_groups(|&member| member == (mgid, qpn));
        Ok(())
    }

    /// Bytes that a QP takes beside its send and receive queue.
    pub fn qp_footprint(&self, qpn: Qpn) -> Result<usize, VerbError> {
        self.qps.get(qpn).map(Qp::footprint).ok_or(VerbError::NoSuchObject("QP"))
    }
}

impl Qp {
    /// Whether a send work request fits this QP in its state, room in the queue apart; the bytes of local data.
    #[inline]
    fn may_post(&self, shared: &Shared, wr: &SendWr<'_>) -> Result<u32, PostError> {
        let len = check_send(self.init.ty, self.mtu, wr)?;
        if let Some(dest) = &wr.ud
            && self.init.ty == QpType::Ud
            && shared.ahs.get(dest.ah.0).is_none_or(|ah| ah.pd != self.init.pd)
        {
            return Err(PostError::InvalidAh);
        }
        match self.state {
            QpState::Reset | QpState::Init | QpState::Rtr => Err(PostError::InvalidState),
            QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Err => Ok(len),
        }
    }

    /// Carries out a transition that the state machine allows.
    fn change_state(&mut self, shared: &mut Shared, to: QpState, attr: &QpAttr) {
        if matches!(to, QpState::Reset | QpState::Err) {
            self.part(shared);
        }
        let from = std::mem::replace(&mut self.state, to);
        shared.qp_changes += u64::from(from != to);
        match (from, to) {
            (_, QpState::Reset) => self.reset(shared),
            (QpState::Err, QpState::Err) => self.responder.silence(),
            (_, QpState::Err) => {
                self.responder.silence();
                self.enter_error(shared);
            }
            (QpState::Init, QpState::Rtr) => {
                let resources = self.attr.max_dest_rd_atomic.unwrap_or(0);
                self.responder.reset(self.attr.rq_psn.unwrap_or_default(), resources);
                self.comm_est = false;
            }
            (QpState::Rtr, QpState::Rts) => {
                self.requester.reset(self.attr.sq_psn.unwrap_or_default(), self.sq.head);
                self.congestion = Congestion::new(shared.config.window);
                self.retry = Retry::default();
            }
            (QpState::Rts, QpState::Sqd) => {
                self.draining = true;
                self.check_drained(shared);
            }
            (QpState::Sqd, QpState::Sqd) => {
                if let Some(resources) = attr.max_dest_rd_atomic {
                    self.responder.resources.resize(resources);
                }
            }
            (QpState::Sqd | QpState::Sqe, QpState::Rts) => {
                self.draining = false;
                self.wants_tx = true;
            }
            _ => {}
        }
    }

    /// Back to RESET: everything is forgotten, nothing completes. Nor is anything left of what has completed: who starts
    /// over, as programs do after an error, must not take the old errors for the new QP's (providers' libraries clean
    /// their CQs likewise).
    fn reset(&mut self, shared: &mut Shared) {
        shared.keys.unbind_all_of(self.qpn);
        shared.forget_completions(self.init.send_cq, self.qpn);
        shared.forget_completions(self.init.recv_cq, self.qpn);
        self.sq.clear();
        self.rq.clear();
        self.requester.reset(Psn::default(), self.sq.head);
        self.responder.reset(Psn::default(), 0);
        self.receiving.taken = false;
        self.retry = Retry::default();
        self.keepalive.stop();
        self.attr = QpAttr::default();
        self.access = Access::empty();
        self.path = None;
        self.dest = Qpn::new(0);
        self.mtu = shared.config.mtu;
        (self.draining, self.comm_est, self.cnp_due) = (false, false, false);
    }
}

/// The ranges of attributes that their types do not bound.
fn check_ranges(shared: &Shared, attr: &QpAttr) -> Result<(), VerbError> {
    let config = &shared.config;
    if attr.path_mtu.is_some_and(|mtu| mtu > config.mtu) {
        return Err(VerbError::InvalidArgument("the path MTU is larger than the link carries"));
    }
    for depth in [attr.max_rd_atomic, attr.max_dest_rd_atomic] {
        if depth.is_some_and(|depth| depth > config.max_rd_atomic) {
            return Err(VerbError::InvalidArgument("more outstanding READs and atomics than the device has"));
        }
    }
    let within = |value: Option<u8>, max| value.is_none_or(|value| value <= max);
    if !within(attr.timeout, 31) || !within(attr.min_rnr_timer, 31) {
        return Err(VerbError::InvalidArgument("timeout and RNR timer codes are 0 to 31"));
    }
    if !within(attr.retry_cnt, 7) || !within(attr.rnr_retry, 7) {
        return Err(VerbError::InvalidArgument("retry counts are 0 to 7"));
    }
    Ok(())
}

/// The rules that a send work request obeys on its own; returns the bytes of local data.
fn check_send(ty: QpType, mtu: Mtu, wr: &SendWr<'_>) -> Result<u32, PostError> {
    let len = match wr.data {
        Data::Sges(sges) => sges.iter().map(|sge| u64::from(sge.len)).sum(),
        Data::Inline(bytes) => bytes.len() as u64,
    };
    if len > u64::from(MAX_MESSAGE) {
        return Err(PostError::InvalidLength);
    }
    let len = len as u32;
    let inline = matches!(wr.data, Data::Inline(_));
    match ty {
        QpType::Rc => {}
        QpType::Uc => {
            let known = matches!(
                wr.op,
                SendOp::Send
                    | SendOp::SendImm(_)
                    | SendOp::Write(_)
                    | SendOp::WriteImm(..)
                    | SendOp::LocalInv(_)
                    | SendOp::BindMw { .. }
            );
            if !known {
                return Err(PostError::InvalidOperation);
            }
        }
        QpType::Ud => {
            if !matches!(wr.op, SendOp::Send | SendOp::SendImm(_)) {
                return Err(PostError::InvalidOperation);
            }
            if wr.ud.is_none() {
                return Err(PostError::InvalidAh);
            }
            if len as usize > mtu.bytes() {
                return Err(PostError::InvalidLength);
            }
        }
    }
    match wr.op {
        SendOp::Send | SendOp::SendImm(_) | SendOp::SendInv(_) | SendOp::Write(_) | SendOp::WriteImm(..) => {}
        SendOp::Read(_) if inline => return Err(PostError::InlineTooLong),
        SendOp::Read(_) => {}
        SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } if inline => {
            return Err(PostError::InlineTooLong);
        }
        SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } | SendOp::AtomicWrite(_) => {
            if len != 8 {
                return Err(PostError::InvalidLength);
            }
        }
        SendOp::Flush { .. } | SendOp::LocalInv(_) | SendOp::BindMw { .. } => {
            if len != 0 {
                return Err(PostError::InvalidLength);
            }
        }
    }
    Ok(len)
}
