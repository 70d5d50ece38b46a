//! Queue pairs: posting work, and connecting out of band.

use std::fmt;
use std::sync::Arc;

use remanence_rnic::Access;
use remanence_rnic::AhAttr;
use remanence_rnic::{MwBind, RecvWr, SendFlags, SendWr};
use remanence_rnic::{PostError, VerbError};
use remanence_rnic::{QpAttr, QpCaps, QpInfo, QpInit, QpState, QpType};
use remanence_wire::{Gid, Mtu, Psn, Qkey, Qpn, Rkey};

use crate::context::random;
use crate::cq::Cq;
use crate::driver::{Object, Turn};
use crate::error::Error;
use crate::inplace::{self, LaneOf, Limits};
use crate::mr::Mw;
use crate::pd::Pd;
use crate::srq::Srq;

/// What a QP is created with.
#[derive(Clone, Copy, Debug)]
pub struct QpOptions<'a> {
    /// The transport service, which a QP keeps for life.
    pub ty: QpType,
    /// Where sends complete.
    pub send_cq: &'a Cq,
    /// Where receives complete.
    pub recv_cq: &'a Cq,
    /// Where receives come from, instead of an own receive queue.
    pub srq: Option<&'a Srq>,
    /// How many WQEs, SGEs and bytes of inline data the queues hold.
    pub caps: QpCaps,
    /// Every send work request is signalled.
    pub sq_sig_all: bool,
}

impl<'a> QpOptions<'a> {
    /// A reliable connection that completes on `cq`, with middling queues.
    #[must_use]
    pub fn rc(cq: &'a Cq) -> Self {
        let caps =
            QpCaps { max_send_wr: 128, max_recv_wr: 128, max_send_sge: 4, max_recv_sge: 4, max_inline: 256 };
        Self { ty: QpType::Rc, send_cq: cq, recv_cq: cq, srq: None, caps, sq_sig_all: false }
    }
}

/// Where a QP is: what two consumers tell each other to connect their QPs out of band.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct QpEndpoint {
    /// The GID at which the QP's device is reached.
    pub gid: Gid,
    /// The QP's number.
    pub qpn: Qpn,
    /// The first PSN that it will send.
    pub psn: Psn,
}

/// Attributes of a connection that both ends should agree on, and those that each end chooses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectAttr {
    /// What the peer may do through the QP.
    pub access: Access,
    /// Path MTU; `None` is the largest that the device offers.
    pub path_mtu: Option<Mtu>,
    /// READs, atomics and flushes outstanding to the peer at most.
    pub max_rd_atomic: u8,
    /// The same from the peer.
    pub max_dest_rd_atomic: u8,
    /// Local ACK timeout, 4.096 us * 2^n; 0 means never.
    pub timeout: u8,
    /// Timeouts in a row before the QP gives up, 0 to 7.
    pub retry_cnt: u8,
    /// RNR NAKs in a row before the QP gives up, 0 to 6; 7 means never.
    pub rnr_retry: u8,
    /// Code of the time that an RNR NAK asks the peer to wait.
    pub min_rnr_timer: u8,
}

impl Default for ConnectAttr {
    fn default() -> Self {
        Self {
            access: Access::REMOTE_WRITE
                | Access::REMOTE_READ
                | Access::REMOTE_ATOMIC
                | Access::FLUSH_GLOBAL
                | Access::FLUSH_PERSISTENT,
            path_mtu: None,
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            // 67 ms, as perftest and most programs choose; the engine's own estimate is far below it.
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            // 0.64 ms.
            min_rnr_timer: 12,
        }
    }
}

#[derive(Debug)]
pub(crate) struct QpInner {
    pub(crate) qpn: Qpn,
    ty: QpType,
    pd: Pd,
    send_cq: Cq,
    recv_cq: Cq,
    srq: Option<Srq>,
    first_psn: Psn,
    /// The way to a peer's memory without packets, on links that have one.
    lane: Option<LaneOf>,
}

impl QpInner {
    #[inline]
    fn lane(&self) -> Option<&LaneOf> {
        self.lane.as_ref().filter(|_| !self.pd.inner.handle.lock.is_abandoned())
    }
}

impl Drop for QpInner {
    fn drop(&mut self) {
        let handle = &self.pd.inner.handle;
        if let Some(driver) = handle.lock.lock_to_drop() {
            // As a turn, so that what the QP has to say before it goes is said.
            let mut driver = Turn::new(driver, &handle.clock);
            if let Some(lane) = &self.lane {
                driver.in_place.remove_lane(lane);
            }
            driver.let_leave(self.qpn);
            if driver.device.destroy_qp(self.qpn).is_ok() {
                driver.forget_async_events(Object::Qp(self.qpn));
                driver.leave_groups();
            }
        }
    }
}

/// Posts to a QP behind one doorbell: see [`Qp::doorbell`].
#[must_use = "the doorbell rings when this is dropped"]
pub struct Doorbell<'a> {
    qp: &'a QpInner,
    /// The device lock, from the first request that needs the engine.
    turn: Option<Turn<'a>>,
}

impl<'a> Doorbell<'a> {
    #[inline]
    fn turn(&mut self) -> &mut Turn<'a> {
        let qp = self.qp;
        self.turn.get_or_insert_with(|| qp.pd.inner.handle.turn_to_post())
    }

    /// Posts a send work request.
    ///
    /// # Errors
    /// It was not posted; those before it are.
    #[inline]
    pub fn post_send(&mut self, wr: &SendWr<'_>) -> Result<(), PostError> {
        let qp = self.qp;
        if let Some(of) = qp.lane() {
            if self.turn.is_none() && of.beside.post(of.lane, wr) {
                return Ok(());
            }
            let turn = self.turn();
            turn.posts();
            let now = turn.now;
            return inplace::post(turn, now, of, wr);
        }
        self.turn().post_send(qp.qpn, wr)
    }

    /// Whether a send work request would be accepted behind `ahead` others that are not posted yet: for lists that go
    /// whole or not at all.
    ///
    /// # Errors
    /// Why it would not.
    pub fn check_send(&mut self, wr: &SendWr<'_>, ahead: u32) -> Result<(), PostError> {
        let qpn = self.qp.qpn;
        self.turn().device.check_post_send(qpn, wr, ahead)
    }
}

impl fmt::Debug for Doorbell<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Doorbell").field("qpn", &self.qp.qpn).finish_non_exhaustive()
    }
}

/// A queue pair. Clones are the same QP; with the last of them it is destroyed, and what was posted is gone without
/// a completion.
#[derive(Clone, Debug)]
pub struct Qp {
    pub(crate) inner: Arc<QpInner>,
}

impl Qp {
    pub(crate) fn new(pd: &Pd, options: &QpOptions<'_>) -> Result<Self, Error> {
        let mut driver = pd.inner.handle.lock.lock();
        let qpn = driver.device.create_qp(&QpInit {
            pd: pd.inner.raw,
            ty: options.ty,
            send_cq: options.send_cq.inner.raw,
            recv_cq: options.recv_cq.inner.raw,
            srq: options.srq.map(|srq| srq.inner.raw),
            caps: options.caps,
            sq_sig_all: options.sq_sig_all,
        })?;
        let lane = (options.ty == QpType::Rc && driver.in_place.is_possible()).then(|| {
            let limits = Limits {
                sq_sig_all: options.sq_sig_all,
                max_sge: options.caps.max_send_sge,
                max_inline: options.caps.max_inline,
            };
            let cq = &options.send_cq.inner;
            driver.in_place.add_lane(&cq.beside, qpn, pd.inner.raw, cq.raw, limits)
        });
        drop(driver);
        let first_psn = Psn::new(random() as u32 & 0xff_ffff);
        let inner = QpInner {
            qpn,
            ty: options.ty,
            pd: pd.clone(),
            send_cq: options.send_cq.clone(),
            recv_cq: options.recv_cq.clone(),
            srq: options.srq.cloned(),
            first_psn,
            lane,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The QP's number, which peers send to.
    #[must_use]
    pub fn qpn(&self) -> Qpn {
        self.inner.qpn
    }

    pub(crate) fn is_rc(&self) -> bool {
        self.inner.ty == QpType::Rc
    }

    /// Its transport service.
    #[must_use]
    pub fn ty(&self) -> QpType {
        self.inner.ty
    }

    /// The domain it belongs to.
    #[must_use]
    pub fn pd(&self) -> &Pd {
        &self.inner.pd
    }

    /// Where its sends complete.
    #[must_use]
    pub fn send_cq(&self) -> &Cq {
        &self.inner.send_cq
    }

    /// Where its receives complete.
    #[must_use]
    pub fn recv_cq(&self) -> &Cq {
        &self.inner.recv_cq
    }

    /// Where its receives come from, if not from its own queue.
    #[must_use]
    pub fn srq(&self) -> Option<&Srq> {
        self.inner.srq.as_ref()
    }

    /// Posts a send work request; what can leave now leaves from this thread.
    ///
    /// # Errors
    /// Nothing was posted.
    #[inline]
    pub fn post_send(&self, wr: &SendWr<'_>) -> Result<(), PostError> {
        if let Some(of) = self.inner.lane() {
            if of.beside.post(of.lane, wr) {
                return Ok(());
            }
            let mut turn = self.inner.pd.inner.handle.turn_to_post();
            turn.posts();
            let now = turn.now;
            return inplace::post(&mut turn, now, of, wr);
        }
        self.inner.pd.inner.handle.turn_to_post().post_send(self.inner.qpn, wr)
    }

    /// Posts several send work requests behind one doorbell: packets of small ones leave together.
    ///
    /// # Errors
    /// The first request that was refused, and why; those before it are posted.
    pub fn post_sends(&self, wrs: &[SendWr<'_>]) -> Result<(), (usize, PostError)> {
        let mut doorbell = self.doorbell();
        wrs.iter().enumerate().try_for_each(|(i, wr)| doorbell.post_send(wr).map_err(|e| (i, e)))
    }

    /// Posts behind one doorbell, which rings when the guard is dropped: for requests that do not exist all at once.
    /// This thread must not use the device otherwise in the meantime.
    #[inline]
    pub fn doorbell(&self) -> Doorbell<'_> {
        Doorbell { qp: &self.inner, turn: None }
    }

    /// Operations that were carried out in the peer's memory, with no packet: see
    /// [`Mr::share_in_place`](crate::Mr::share_in_place).
    #[must_use]
    pub fn in_place_operations(&self) -> u64 {
        self.inner.lane().map_or(0, |of| of.beside.lock().operations(of.lane))
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// Nothing was posted.
    #[inline]
    pub fn post_recv(&self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.inner.pd.inner.handle.turn_to_post().device.post_recv(self.inner.qpn, wr)
    }

    /// Posts several receives in one turn.
    ///
    /// # Errors
    /// The first that was refused, and why; those before it are posted.
    #[inline]
    pub fn post_recvs<'w>(
        &self,
        wrs: impl IntoIterator<Item = RecvWr<'w>>,
    ) -> Result<(), (usize, PostError)> {
        let mut turn = self.inner.pd.inner.handle.turn();
        wrs.into_iter()
            .enumerate()
            .try_for_each(|(i, wr)| turn.device.post_recv(self.inner.qpn, &wr).map_err(|e| (i, e)))
    }

    /// Posts the binding of a type 1 memory window; returns the rkey that it will have.
    ///
    /// # Errors
    /// Nothing was posted.
    pub fn bind_mw(&self, wr_id: u64, flags: SendFlags, mw: &Mw, bind: MwBind) -> Result<Rkey, PostError> {
        let mut turn = self.inner.pd.inner.handle.turn();
        if let Some(of) = self.inner.lane() {
            inplace::before_engine(&mut turn, of);
        }
        turn.device.bind_mw(self.inner.qpn, wr_id, flags, mw.raw(), bind)
    }

    /// Changes attributes, the state among them.
    ///
    /// # Errors
    /// The state machine has no such transition, or it needs other attributes. The QP is as it was.
    pub fn modify(&self, attr: &QpAttr) -> Result<(), VerbError> {
        let mut turn = self.inner.pd.inner.handle.turn();
        let now = turn.now;
        if attr.state.is_some_and(|to| to != QpState::Rts) {
            turn.let_leave(self.inner.qpn);
        }
        turn.device.modify_qp(now, self.inner.qpn, attr)
    }

    /// What it was created with, its attributes and its state.
    ///
    /// # Errors
    /// It was destroyed by name.
    pub fn query(&self) -> Result<QpInfo, VerbError> {
        self.inner.pd.inner.handle.lock.lock().device.query_qp(self.inner.qpn)
    }

    /// Lets a UD QP receive what is sent to a multicast group, from this host as from others: an IPv4 group as an
    /// IPv4-mapped GID, or an IPv6 group. Attaching twice is attaching once. Datagrams to the group go to the QP number
    /// [`Qpn::MULTICAST`].
    ///
    /// # Errors
    /// The QP is not UD, the GID no multicast group, a limit of the device is reached; or the link has no multicast
    /// (only UDP has), or cannot join.
    pub fn attach_mcast(&self, group: Gid) -> Result<(), Error> {
        self.inner.pd.inner.handle.turn().attach_mcast(self.inner.qpn, group)
    }

    /// Undoes [`attach_mcast`](Self::attach_mcast).
    ///
    /// # Errors
    /// The QP is not attached to the group.
    pub fn detach_mcast(&self, group: Gid) -> Result<(), VerbError> {
        let mut turn = self.inner.pd.inner.handle.turn();
        turn.device.detach_mcast(self.inner.qpn, group)?;
        turn.leave_groups();
        Ok(())
    }

    /// Destroys it now; what was posted is gone without a completion.
    ///
    /// # Errors
    /// It was destroyed before.
    pub fn destroy(&self) -> Result<(), VerbError> {
        let mut turn = self.inner.pd.inner.handle.turn();
        turn.let_leave(self.inner.qpn);
        turn.device.destroy_qp(self.inner.qpn)?;
        turn.leave_groups();
        turn.forget_async_events(Object::Qp(self.inner.qpn));
        Ok(())
    }

    /// What a peer needs to know to connect to this QP, at the first GID of the device.
    #[must_use]
    pub fn endpoint(&self) -> QpEndpoint {
        let gid = self.inner.pd.inner.handle.port().addresses().next().unwrap_or_default();
        QpEndpoint { gid, qpn: self.inner.qpn, psn: self.inner.first_psn }
    }

    /// Takes an RC or UC QP from RESET to RTS, connected to a peer that was learnt of out of band.
    ///
    /// # Errors
    /// The QP is not in RESET, or an attribute does not fit the device.
    pub fn connect_to(&self, peer: &QpEndpoint, attr: &ConnectAttr) -> Result<(), VerbError> {
        let rc = self.is_rc();
        let sgid_index = self.inner.pd.inner.handle.sgid_index(peer.gid);
        let path_mtu = attr.path_mtu.unwrap_or(self.inner.pd.inner.handle.port().mtu);
        self.modify(&QpAttr { state: Some(QpState::Init), access: Some(attr.access), ..QpAttr::default() })?;
        self.modify(&QpAttr {
            state: Some(QpState::Rtr),
            av: Some(AhAttr { sgid_index, ..AhAttr::new(peer.gid) }),
            path_mtu: Some(path_mtu),
            dest_qpn: Some(peer.qpn),
            rq_psn: Some(peer.psn),
            max_dest_rd_atomic: rc.then_some(attr.max_dest_rd_atomic),
            min_rnr_timer: rc.then_some(attr.min_rnr_timer),
            ..QpAttr::default()
        })?;
        self.modify(&QpAttr {
            state: Some(QpState::Rts),
            sq_psn: Some(self.inner.first_psn),
            max_rd_atomic: rc.then_some(attr.max_rd_atomic),
            timeout: rc.then_some(attr.timeout),
            retry_cnt: rc.then_some(attr.retry_cnt),
            rnr_retry: rc.then_some(attr.rnr_retry),
            ..QpAttr::default()
        })
    }

    /// Takes a UD QP from RESET to RTS.
    ///
    /// # Errors
    /// The QP is not in RESET, or not UD.
    pub fn activate_ud(&self, qkey: Qkey) -> Result<(), VerbError> {
        self.modify(&QpAttr { state: Some(QpState::Init), qkey: Some(qkey), ..QpAttr::default() })?;
        self.modify(&QpAttr { state: Some(QpState::Rtr), ..QpAttr::default() })?;
        self.modify(&QpAttr {
            state: Some(QpState::Rts),
            sq_psn: Some(self.inner.first_psn),
            ..QpAttr::default()
        })
    }
}
