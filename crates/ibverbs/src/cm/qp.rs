//! QPs of identifiers, with the CQs and SRQs that go with them, and the attributes that a connection gives a QP.
//!
//! A QP that is made here goes through its states by itself: to INIT when it is made (UD: to RTS), to RTR and RTS when
//! the connection is accepted, to the error state when it is over. For any other QP the program asks for the attributes
//! and does that itself.

use std::ffi::c_int;
use std::ptr;

use remanence_rnic::QpAttr;

use crate::abi::*;
use crate::errno;
use crate::qp_attr::av_of;

use super::id::{Id, Inner, State};
use super::{answer, check, last_error, verbs};

/// The number of its QP, and whether that takes receives from an SRQ.
pub(super) fn number(id: Id) -> Option<(u32, bool)> {
    // SAFETY: what the C API promises: the QP is a live one, or none.
    unsafe { id.qp().as_ref() }.map(|qp| (qp.qp_num, !qp.srq.is_null()))
}

/// The attributes that take a QP of this identifier to a state.
fn attributes(id: Id, inner: &mut Inner, to: ibv_qp_state) -> Result<(ibv_qp_attr, c_int), c_int> {
    let Some(verbs) = inner.verbs else { return Err(libc::EINVAL) };
    let attr = ibv_qp_attr { qp_state: to, port_num: 1, ..ibv_qp_attr::zeroed() };
    const ALWAYS: c_int = (IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT) as c_int;
    if id.is_ud() {
        let qkey = *inner.qkey.get_or_insert(RDMA_UDP_QKEY);
        return Ok((ibv_qp_attr { qkey, ..attr }, ALWAYS | IBV_QP_QKEY as c_int));
    }
    // Before the peer is asked, nothing is known of what it may do.
    let Some(conn) = inner.conn else {
        if matches!(inner.state, State::Connect | State::Disconnect) {
            return Err(libc::EINVAL);
        }
        return Ok((attr, ALWAYS | IBV_QP_ACCESS_FLAGS as c_int));
    };
    let cm = verbs.ctx().context.cm();
    match to {
        IBV_QPS_INIT => {
            let mut access = IBV_ACCESS_REMOTE_WRITE;
            if inner.responder_resources > 0 {
                access |= IBV_ACCESS_REMOTE_READ
                    | IBV_ACCESS_REMOTE_ATOMIC
                    | IBV_ACCESS_FLUSH_GLOBAL
                    | IBV_ACCESS_FLUSH_PERSISTENT;
            }
            Ok((ibv_qp_attr { qp_access_flags: access, ..attr }, ALWAYS | IBV_QP_ACCESS_FLAGS as c_int))
        }
        IBV_QPS_RTR => {
            let rtr = cm.qp_rtr(conn).map_err(errno::of_cm)?;
            Ok(to_c(attr, &rtr, inner))
        }
        IBV_QPS_RTS => {
            let rts = cm.qp_rts(conn).map_err(errno::of_cm)?;
            Ok(to_c(attr, &rts, inner))
        }
        _ => Err(libc::EINVAL),
    }
}

/// The attributes of the engine's connection manager in C's words, with the options of the identifier.
fn to_c(mut attr: ibv_qp_attr, from: &QpAttr, inner: &Inner) -> (ibv_qp_attr, c_int) {
    let mut mask = IBV_QP_STATE;
    if let Some(mut av) = from.av {
        av.traffic_class = inner.tos.unwrap_or(av.traffic_class);
        attr.ah_attr = av_of(&av);
        mask |= IBV_QP_AV;
    }
    if let Some(mtu) = from.path_mtu {
        attr.path_mtu = mtu as ibv_mtu;
        mask |= IBV_QP_PATH_MTU;
    }
    if let Some(qpn) = from.dest_qpn {
        attr.dest_qp_num = qpn.value();
        mask |= IBV_QP_DEST_QPN;
    }
    if let Some(psn) = from.rq_psn {
        attr.rq_psn = psn.value();
        mask |= IBV_QP_RQ_PSN;
    }
    if let Some(psn) = from.sq_psn {
        attr.sq_psn = psn.value();
        mask |= IBV_QP_SQ_PSN;
    }
    for (value, field, bit) in [
        (from.max_dest_rd_atomic, &mut attr.max_dest_rd_atomic, IBV_QP_MAX_DEST_RD_ATOMIC),
        (from.min_rnr_timer, &mut attr.min_rnr_timer, IBV_QP_MIN_RNR_TIMER),
        (from.max_rd_atomic, &mut attr.max_rd_atomic, IBV_QP_MAX_QP_RD_ATOMIC),
        (from.timeout.map(|t| inner.ack_timeout.unwrap_or(t)), &mut attr.timeout, IBV_QP_TIMEOUT),
        (from.retry_cnt, &mut attr.retry_cnt, IBV_QP_RETRY_CNT),
        (from.rnr_retry, &mut attr.rnr_retry, IBV_QP_RNR_RETRY),
    ] {
        if let Some(value) = value {
            *field = value;
            mask |= bit;
        }
    }
    (attr, mask as c_int)
}

fn modify(qp: *mut ibv_qp, mut attr: ibv_qp_attr, mask: c_int) -> Result<(), c_int> {
    // SAFETY: a live QP, by what the C API promises.
    check(unsafe { verbs::ibv_modify_qp(qp, &raw mut attr, mask) })
}

/// To INIT, now with what the peer may do, and on to RTR.
pub(super) fn to_rtr(id: Id, responder_resources: u8) -> Result<(), c_int> {
    let qp = id.qp();
    if qp.is_null() {
        return Ok(());
    }
    let (init, init_mask) = attributes(id, &mut id.lock(), IBV_QPS_INIT)?;
    modify(qp, init, init_mask)?;
    let (mut rtr, mask) = attributes(id, &mut id.lock(), IBV_QPS_RTR)?;
    rtr.max_dest_rd_atomic = responder_resources;
    modify(qp, rtr, mask)
}

pub(super) fn to_rts(id: Id, initiator_depth: u8) -> Result<(), c_int> {
    let qp = id.qp();
    if qp.is_null() {
        return Ok(());
    }
    let (mut rts, mask) = attributes(id, &mut id.lock(), IBV_QPS_RTS)?;
    rts.max_rd_atomic = initiator_depth;
    modify(qp, rts, mask)
}

pub(super) fn try_to_error(id: Id) -> Result<(), c_int> {
    let qp = id.qp();
    if qp.is_null() {
        return Ok(());
    }
    modify(qp, ibv_qp_attr { qp_state: IBV_QPS_ERR, ..ibv_qp_attr::zeroed() }, IBV_QP_STATE as c_int)
}

/// A QP that cannot go to the error state is beyond help already.
pub(super) fn to_error(id: Id) {
    let _ = try_to_error(id);
}

fn to_init(id: Id, qp: *mut ibv_qp) -> Result<(), c_int> {
    let (init, mask) = attributes(id, &mut id.lock(), IBV_QPS_INIT)?;
    modify(qp, init, mask)?;
    if !id.is_ud() {
        return Ok(());
    }
    let none = ibv_qp_attr::zeroed();
    modify(qp, ibv_qp_attr { qp_state: IBV_QPS_RTR, ..none }, IBV_QP_STATE as c_int)?;
    modify(qp, ibv_qp_attr { qp_state: IBV_QPS_RTS, ..none }, (IBV_QP_STATE | IBV_QP_SQ_PSN) as c_int)
}

/// The CQs that a program left out, each with a channel, for `rdma_get_send_comp` and `rdma_get_recv_comp`.
fn create_cqs(id: Id, send_size: u32, recv_size: u32) -> Result<(), c_int> {
    let make = |size: u32| {
        // SAFETY: the device is live; the identifier is the CQ's context, as those functions expect.
        unsafe {
            let channel = verbs::ibv_create_comp_channel(id.verbs());
            if channel.is_null() {
                return Err(last_error());
            }
            let cq = verbs::ibv_create_cq(id.verbs(), size as c_int, id.c().cast(), channel, 0);
            if cq.is_null() {
                let e = last_error();
                verbs::ibv_destroy_comp_channel(channel);
                return Err(e);
            }
            Ok((channel, cq))
        }
    };
    if recv_size > 0 {
        let (channel, cq) = make(recv_size)?;
        id.set_recv_cq_channel(channel);
        id.set_recv_cq(cq);
    }
    if send_size > 0 {
        let (channel, cq) = make(send_size).inspect_err(|_| destroy_cqs(id))?;
        id.set_send_cq_channel(channel);
        id.set_send_cq(cq);
    }
    Ok(())
}

fn destroy_cqs(id: Id) {
    if id.qp_type() == IBV_QPT_XRC_RECV && !id.srq().is_null() {
        return;
    }
    let (recv, send) = (id.recv_cq(), id.send_cq());
    let (recv_channel, send_channel) = (id.recv_cq_channel(), id.send_cq_channel());
    id.set_recv_cq(ptr::null_mut());
    id.set_send_cq(ptr::null_mut());
    id.set_recv_cq_channel(ptr::null_mut());
    id.set_send_cq_channel(ptr::null_mut());
    // SAFETY: they were made here, and the QP that used them is gone.
    unsafe {
        if !recv.is_null() {
            verbs::ibv_destroy_cq(recv);
        }
        if !send.is_null() && send != recv {
            verbs::ibv_destroy_cq(send);
        }
        if !recv_channel.is_null() {
            verbs::ibv_destroy_comp_channel(recv_channel);
        }
        if !send_channel.is_null() && send_channel != recv_channel {
            verbs::ibv_destroy_comp_channel(send_channel);
        }
    }
}

/// `rdma_create_qp_ex`. What is left out is filled in, for the program to see.
fn create_ex(id: Id, attr: &mut ibv_qp_init_attr_ex) -> Result<(), c_int> {
    if !id.qp().is_null() || id.verbs().is_null() {
        return Err(libc::EINVAL);
    }
    if attr.comp_mask & IBV_QP_INIT_ATTR_PD == 0 || attr.pd.is_null() {
        attr.comp_mask |= IBV_QP_INIT_ATTR_PD;
        attr.pd = id.pd();
    // SAFETY: what the C API promises: a live domain.
    } else if id.verbs() != unsafe { (*attr.pd).context } {
        return Err(libc::EINVAL);
    }
    let differs =
        |ours: *mut ibv_cq, theirs: *mut ibv_cq| !ours.is_null() && !theirs.is_null() && ours != theirs;
    if differs(id.recv_cq(), attr.recv_cq) || differs(id.send_cq(), attr.send_cq) {
        return Err(libc::EINVAL);
    }
    let size = |given: *mut ibv_cq, ours: *mut ibv_cq, size| {
        if given.is_null() && ours.is_null() { size } else { 0 }
    };
    create_cqs(
        id,
        size(attr.send_cq, id.send_cq(), attr.cap.max_send_wr),
        size(attr.recv_cq, id.recv_cq(), attr.cap.max_recv_wr),
    )?;
    if attr.send_cq.is_null() {
        attr.send_cq = id.send_cq();
    }
    if attr.recv_cq.is_null() {
        attr.recv_cq = id.recv_cq();
    }
    if attr.srq.is_null() {
        attr.srq = id.srq();
    }
    // SAFETY: a live device, and attributes that the program promises to be whole.
    let qp = unsafe { verbs::ibv_create_qp_ex(id.verbs(), attr) };
    if qp.is_null() {
        let e = last_error();
        destroy_cqs(id);
        return Err(e);
    }
    if let Err(e) = to_init(id, qp) {
        // SAFETY: just made.
        unsafe { verbs::ibv_destroy_qp(qp) };
        destroy_cqs(id);
        return Err(e);
    }
    id.set_pd(attr.pd);
    id.set_qp(qp);
    Ok(())
}

/// `rdma_create_qp`.
pub(super) fn create(id: Id, pd: *mut ibv_pd, attr: &mut ibv_qp_init_attr) -> Result<(), c_int> {
    let &mut ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all } = attr;
    let mut ex = ibv_qp_init_attr_ex {
        qp_context,
        send_cq,
        recv_cq,
        srq,
        cap,
        qp_type,
        sq_sig_all,
        comp_mask: IBV_QP_INIT_ATTR_PD,
        pd: if pd.is_null() { id.pd() } else { pd },
        ..ibv_qp_init_attr_ex::zeroed()
    };
    let result = create_ex(id, &mut ex);
    *attr = ibv_qp_init_attr {
        qp_context: ex.qp_context,
        send_cq: ex.send_cq,
        recv_cq: ex.recv_cq,
        srq: ex.srq,
        cap: ex.cap,
        qp_type: ex.qp_type,
        sq_sig_all: ex.sq_sig_all,
    };
    result
}

pub(super) fn destroy(id: Id) {
    let qp = id.qp();
    if !qp.is_null() {
        // SAFETY: what the C API promises: it was made here, and not destroyed.
        unsafe { verbs::ibv_destroy_qp(qp) };
        id.set_qp(ptr::null_mut());
    }
    destroy_cqs(id);
}

fn create_srq_ex(id: Id, attr: &mut ibv_srq_init_attr_ex) -> Result<(), c_int> {
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_TYPE == 0 || id.verbs().is_null() {
        return Err(libc::EINVAL);
    }
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 || attr.pd.is_null() {
        attr.pd = id.pd();
        attr.comp_mask |= IBV_SRQ_INIT_ATTR_PD;
    }
    // SAFETY: a live device, and attributes that the program promises to be whole.
    let srq = unsafe { verbs::ibv_create_srq_ex(id.verbs(), attr) };
    if srq.is_null() {
        return Err(last_error());
    }
    if id.pd().is_null() {
        id.set_pd(attr.pd);
    }
    id.set_srq(srq);
    Ok(())
}

pub(super) fn destroy_srq(id: Id) {
    let srq = id.srq();
    if !srq.is_null() {
        // SAFETY: what the C API promises: it was made here, and not destroyed.
        unsafe { verbs::ibv_destroy_srq(srq) };
        id.set_srq(ptr::null_mut());
    }
    destroy_cqs(id);
}

/// `rdma_create_qp(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rem_rdma_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    qp_init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: what the C API promises.
    answer(unsafe { create(Id::of(id), pd, &mut *qp_init_attr) })
}

/// `rdma_create_qp_ex(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rem_rdma_create_qp_ex(
    id: *mut rdma_cm_id,
    qp_init_attr: *mut ibv_qp_init_attr_ex,
) -> c_int {
    // SAFETY: what the C API promises. A program of older headers has a shorter structure, but all fields that are
    // used here were there from the beginning.
    answer(unsafe { create_ex(Id::of(id), &mut *qp_init_attr) })
}

/// `rdma_destroy_qp(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rem_rdma_destroy_qp(id: *mut rdma_cm_id) {
    // SAFETY: what the C API promises.
    destroy(unsafe { Id::of(id) });
}

/// `rdma_create_srq(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rem_rdma_create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> c_int {
    // SAFETY: what the C API promises.
    let (id, attr) = unsafe { (Id::of(id), &mut *attr) };
    let xrc = id.qp_type() == IBV_QPT_XRC_RECV;
    let mut ex = ibv_srq_init_attr_ex {
        srq_context: attr.srq_context,
        attr: attr.attr,
        comp_mask: IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD,
        srq_type: if xrc { IBV_SRQT_XRC } else { IBV_SRQT_BASIC },
        pd,
        ..ibv_srq_init_attr_ex::zeroed()
    };
    let result = create_srq_ex(id, &mut ex);
    *attr = ibv_srq_init_attr { srq_context: ex.srq_context, attr: ex.attr };
    answer(result)
}

/// `rdma_create_srq_ex(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rem_rdma_create_srq_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_srq_init_attr_ex,
) -> c_int {
    // SAFETY: what the C API promises.
    answer(unsafe { create_srq_ex(Id::of(id), &mut *attr) })
}

/// `rdma_destroy_srq(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rem_rdma_destroy_srq(id: *mut rdma_cm_id) {
    // SAFETY: what the C API promises.
    destroy_srq(unsafe { Id::of(id) });
}

/// `rdma_init_qp_attr(3)`: the attributes for the state that the program put into `qp_attr`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rem_rdma_init_qp_attr(
    id: *mut rdma_cm_id,
    qp_attr: *mut ibv_qp_attr,
    qp_attr_mask: *mut c_int,
) -> c_int {
    // SAFETY: what the C API promises.
    let (id, to) = unsafe { (Id::of(id), (*qp_attr).qp_state) };
    let attributes = attributes(id, &mut id.lock(), to);
    answer(attributes.map(|(attr, mask)| {
        // SAFETY: as above. The fields are those of the first headers.
        unsafe {
            qp_attr.write(attr);
            qp_attr_mask.write(mask);
        }
    }))
}

/// `rdma_set_local_ece(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rem_rdma_set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    // SAFETY: what the C API promises.
    let Some(ece) = (unsafe { ece.as_ref() }) else { return answer(Err(libc::EINVAL)) };
    // There are no options that our QPs could agree on with anybody's.
    // SAFETY: what the C API promises.
    unsafe { Id::of(id) }.lock().local_ece = (ece.vendor_id, ece.options);
    0
}

/// `rdma_get_remote_ece(3)`: messages of RoCE peers say nothing of it that we read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rem_rdma_get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    // SAFETY: what the C API promises.
    if id.is_null() || ece.is_null() {
        return answer(Err(libc::EINVAL));
    }
    // SAFETY: what the C API promises.
    unsafe { ece.write(ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 }) };
    0
}
