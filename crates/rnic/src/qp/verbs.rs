//! The verbs on QPs: create, modify, query, destroy, post.
//!
//! Read first: IBA Vol 1, 11.2.5 (QP verbs) and 11.4.1 (posting).

use remanence_wire::{Gid, Mtu, Qpn};

use super::attr::{QpAttr, QpInfo, QpInit, QpType};
use super::state::{self, QpState};
use super::{Qp, path::Path};
use crate::access::Access;
use crate::device::{Device, MAX_MESSAGE};
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
        let make = |qpn, slot| Qp {
            qpn,
            slot,
            state: QpState::Reset,
            init: *init,
            attr: QpAttr::default(),
            dest: Qpn::new(0),
            mtu: config.mtu,
            access: Access::empty(),
            path: None,
            sq: SendQueue::new(caps.max_send_wr, caps.max_send_sge, caps.max_inline),
            rq: RecvQueue::new(recv_wr, recv_sge),
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

    /// Destroys a QP. Its outstanding work requests vanish without completions.
    pub fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), VerbError> {
        let qp = self.qps.remove(qpn).ok_or(VerbError::NoSuchObject("QP"))?;
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
        Ok(QpInfo { init: qp.init, attr: qp.attr, state: qp.state, draining: false })
    }

    /// Changes attributes, and with them or alone the state.
    pub fn modify_qp(&mut self, _now: Instant, qpn: Qpn, attr: &QpAttr) -> Result<(), VerbError> {
        let Self { shared, qps } = self;
        let qp = qps.get_mut(qpn).ok_or(VerbError::NoSuchObject("QP"))?;
        let to = state::check(qp.init.ty, qp.state, attr)?;
        if attr.path_mtu.is_some_and(|mtu| mtu > shared.config.mtu) {
            return Err(VerbError::InvalidArgument("the path MTU is larger than the link carries"));
        }
        let av = attr.av.as_ref().map(|av| shared.resolve(av)).transpose()?;
        if let Some(dest) = attr.dest_qpn {
            qp.dest = dest;
        }
        if let Some(av) = av {
            let path = Path::new(&av, qpn, qp.dest, shared.config.source_port, shared.config.ecn);
            qp.path = Some(Box::new(path));
        }
        qp.state = to;
        Ok(())
    }

    /// Posts a send-queue work request. Poll for packets to send afterwards.
    pub fn post_send(&mut self, qpn: Qpn, wr: &SendWr<'_>) -> Result<(), PostError> {
        let qp = self.qps.get_mut(qpn).ok_or(PostError::NoSuchQueue)?;
        let len = check_send(qp.init.ty, self.shared.config.mtu, wr)?;
        qp.sq.post(wr, len)
    }

    /// Posts a receive to the QP's own receive queue.
    pub fn post_recv(&mut self, qpn: Qpn, wr: &RecvWr<'_>) -> Result<(), PostError> {
        let qp = self.qps.get_mut(qpn).ok_or(PostError::NoSuchQueue)?;
        if qp.init.srq.is_some() || qp.state == QpState::Reset {
            return Err(PostError::InvalidState);
        }
        qp.rq.post(wr)
    }

    /// Lets a UD QP receive what is sent to a multicast group. The link joins the group; that is the caller's.
    pub fn attach_mcast(&mut self, qpn: Qpn, mgid: Gid) -> Result<(), VerbError> {
        let qp = self.qps.get(qpn).ok_or(VerbError::NoSuchObject("QP"))?;
        if qp.init.ty != QpType::Ud || !mgid.to_ip().is_multicast() {
            return Err(VerbError::InvalidArgument("multicast is for UD QPs and multicast GIDs"));
        }
        Ok(())
    }
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
