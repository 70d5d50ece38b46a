//! Connections come and go: connect, accept, reject, establish, disconnect, notify.

use std::ffi::{c_int, c_void};

use remanence_rnic::cm::{Accept, CommId, Connect, Path, SidrReply, Transport};
use remanence_wire::cm::{RejReason, SidrRep};
use remanence_wire::{Gid, Qkey, Qpn};

use crate::abi::*;
use crate::errno;
use crate::sleep::{self, Sleep};

use super::create::Answer;
use super::event::bytes;
use super::id::{Id, Inner, State, Verbs};
use super::{answer, bind, create, devices, qp};

/// What a program says about a connection, with what it leaves unsaid filled in.
struct Param {
    responder_resources: Option<u8>,
    initiator_depth: Option<u8>,
    retry_count: u8,
    rnr_retry_count: u8,
    qpn: Qpn,
    srq: bool,
    data: Vec<u8>,
}

impl Param {
    /// # Safety
    /// `param` is null or points to what a program filled in.
    unsafe fn read(id: Id, param: *const rdma_conn_param) -> Result<Self, c_int> {
        // SAFETY: by the contract.
        let given = unsafe { param.as_ref() };
        let qp = qp::number(id);
        if given.is_none() && qp.is_none() && !id.is_ud() {
            return Err(libc::EINVAL);
        }
        let inner = id.lock();
        let mut data = inner.connect_data.clone();
        if let Some(given) = given {
            // SAFETY: by the contract.
            data.extend_from_slice(unsafe { bytes(given.private_data, given.private_data_len) });
        }
        let (qpn, srq) =
            qp.unwrap_or_else(|| given.map_or((0, false), |given| (given.qp_num, given.srq != 0)));
        let depth = |value: u8, any: u8| (value != any).then_some(value);
        let param = Self {
            responder_resources: given.and_then(|p| depth(p.responder_resources, RDMA_MAX_RESP_RES)),
            initiator_depth: given.and_then(|p| depth(p.initiator_depth, RDMA_MAX_INIT_DEPTH)),
            retry_count: given.map_or(7, |p| p.retry_count.min(7)),
            rnr_retry_count: given.map_or(7, |p| p.rnr_retry_count.min(7)),
            qpn: Qpn::new(qpn & 0xff_ffff),
            srq,
            data,
        };
        if id.ps() == RDMA_PS_TCP
            && let Some(verbs) = inner.verbs
        {
            let (resources, depth) = devices::depths(verbs)?;
            if param.responder_resources.is_some_and(|n| n > resources)
                || param.initiator_depth.is_some_and(|n| n > depth)
            {
                return Err(libc::EINVAL);
            }
        }
        Ok(param)
    }
}

fn connect(id: Id, param: &Param) -> Result<(), c_int> {
    let mut inner = id.lock();
    let (State::RouteResolved, Some(verbs), Some(src), Some(dst)) =
        (inner.state, inner.verbs, inner.src, inner.dst)
    else {
        return Err(libc::EINVAL);
    };
    let context = &verbs.ctx().context;
    let path = Path { local: Gid::from_ip(src.ip()), remote: Gid::from_ip(dst.ip()) };
    let service_id = bind::service(id.ps(), dst.port());
    let events = id.events();
    let asked = if id.is_ud() {
        context.cm().resolve(path, service_id, Some(src.port()), &param.data, &events.queue(), id.token())
    } else {
        let (resources, depth) = devices::depths(verbs)?;
        inner.responder_resources = param.responder_resources.unwrap_or(resources);
        inner.initiator_depth = param.initiator_depth.unwrap_or(depth);
        let connect = Connect {
            path,
            service_id,
            transport: if id.qp_type() == IBV_QPT_UC { Transport::Uc } else { Transport::Rc },
            qpn: param.qpn,
            responder_resources: inner.responder_resources,
            initiator_depth: inner.initiator_depth,
            retry_count: param.retry_count,
            rnr_retry_count: param.rnr_retry_count,
            srq: param.srq,
            mtu: context.port().mtu,
            cma_port: Some(src.port()),
            private_data: &param.data,
        };
        context.cm().connect(&connect, &events.queue(), id.token())
    };
    inner.conn = Some(asked.map_err(errno::of_cm)?);
    inner.state = State::Connect;
    inner.connect_data.clear();
    Ok(())
}

fn accept(id: Id, param: &Param) -> Result<(), c_int> {
    let mut inner = id.lock();
    let Some((verbs, conn)) = inner.connection() else { return Err(libc::EINVAL) };
    if inner.state != State::Connect {
        return Err(libc::EINVAL);
    }
    let cm = verbs.ctx().context.cm();
    inner.undecided = false;
    if id.is_ud() {
        let qkey = *inner.qkey.get_or_insert(RDMA_UDP_QKEY);
        // The exchange is over for us with this.
        inner.conn = None;
        drop(inner);
        return sidr_reply(verbs, conn, SidrRep::STATUS_VALID, param.qpn, qkey, &param.data);
    }
    let (resources, depth) = devices::depths(verbs)?;
    // What the peer asked for bounds what we give, unless the program knows better.
    inner.responder_resources = param.responder_resources.unwrap_or(inner.responder_resources.min(resources));
    inner.initiator_depth = param.initiator_depth.unwrap_or(inner.initiator_depth.min(depth));
    let (responder_resources, initiator_depth) = (inner.responder_resources, inner.initiator_depth);
    drop(inner);
    qp::to_rtr(id, responder_resources)?;
    qp::to_rts(id, initiator_depth)?;
    let accept = Accept {
        qpn: param.qpn,
        responder_resources,
        initiator_depth,
        rnr_retry_count: param.rnr_retry_count,
        srq: param.srq,
        private_data: &param.data,
    };
    cm.accept(conn, &accept).map_err(|e| {
        qp::to_error(id);
        errno::of_cm(e)
    })
}

fn sidr_reply(verbs: Verbs, conn: CommId, status: u8, qpn: Qpn, qkey: u32, data: &[u8]) -> Result<(), c_int> {
    let reply = SidrReply { status, qpn, qkey: Qkey(qkey), private_data: data };
    verbs.ctx().context.cm().sidr_reply(conn, &reply).map_err(errno::of_cm)
}

fn reject(id: Id, reason: RejReason, data: &[u8]) -> Result<(), c_int> {
    let mut inner = id.lock();
    let Some((verbs, conn)) = inner.connection() else { return Err(libc::EINVAL) };
    let result = if id.is_ud() {
        sidr_reply(verbs, conn, SidrRep::STATUS_REJECTED, Qpn::new(0), 0, data)
    } else {
        verbs.ctx().context.cm().reject(conn, reason, data).map_err(errno::of_cm)
    };
    if result.is_ok() {
        inner.conn = None;
    }
    result
}

fn disconnect(id: Id) -> Result<Answer, c_int> {
    let (verbs, conn) = {
        let inner = id.lock();
        (inner.verbs.ok_or(libc::EINVAL)?, inner.conn)
    };
    qp::try_to_error(id)?;
    if let Some(conn) = conn {
        // The peer may have been faster, or may not have answered yet: either way there is nothing to ask for.
        let _ = verbs.ctx().context.cm().disconnect(conn);
    } else if !has_news(&id.lock()) {
        // Nothing ever comes that a caller could wait for.
        return Err(libc::EINVAL);
    }
    Ok(Answer::Comes)
}

/// Whether an event of it may still wait in the channel.
fn has_news(inner: &Inner) -> bool {
    !inner.sync || inner.state == State::Connect
}

/// `rdma_connect(3)`, which `cancel.c` exports, up to its next sleep.
#[unsafe(no_mangle)]
unsafe extern "C" fn rem_connect_step(
    id: *mut rdma_cm_id,
    conn_param: *mut rdma_conn_param,
    _: *mut c_void,
    _: *mut c_void,
    sleep: *mut Sleep,
) -> c_int {
    // SAFETY: what the C API promises; and what cancel.c sleeps on, which is its own.
    let (id, sleep) = unsafe { (Id::of(id), &mut *sleep) };
    sleep::answer(create::step(id, sleep, || {
        // SAFETY: what the C API promises.
        let param = unsafe { Param::read(id, conn_param) }?;
        connect(id, &param).map(|()| Answer::Comes)
    }))
}

/// `rdma_accept(3)`, which `cancel.c` exports, up to its next sleep.
#[unsafe(no_mangle)]
unsafe extern "C" fn rem_accept_step(
    id: *mut rdma_cm_id,
    conn_param: *mut rdma_conn_param,
    _: *mut c_void,
    _: *mut c_void,
    sleep: *mut Sleep,
) -> c_int {
    // SAFETY: what the C API promises; and what cancel.c sleeps on, which is its own.
    let (id, sleep) = unsafe { (Id::of(id), &mut *sleep) };
    sleep::answer(create::step(id, sleep, || {
        // SAFETY: what the C API promises.
        let param = unsafe { Param::read(id, conn_param) }?;
        accept(id, &param)?;
        if !id.is_ud() {
            return Ok(Answer::Comes);
        }
        // A datagram service has no more to wait for.
        create::forgets_the_last(id);
        Ok(Answer::None)
    }))
}

/// `rdma_reject(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rem_rdma_reject(
    id: *mut rdma_cm_id,
    private_data: *const c_void,
    private_data_len: u8,
) -> c_int {
    // SAFETY: what the C API promises.
    let (id, data) = unsafe { (Id::of(id), bytes(private_data, private_data_len)) };
    answer(reject(id, RejReason::CONSUMER_DEFINED, data))
}

/// `rdma_reject_ece(3)`: the options that the peer's device offers do not suit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rem_rdma_reject_ece(
    id: *mut rdma_cm_id,
    private_data: *const c_void,
    private_data_len: u8,
) -> c_int {
    const VENDOR_OPTION_NOT_SUPPORTED: RejReason = RejReason(35);
    // SAFETY: what the C API promises.
    let (id, data) = unsafe { (Id::of(id), bytes(private_data, private_data_len)) };
    answer(reject(id, VENDOR_OPTION_NOT_SUPPORTED, data))
}

/// `rdma_establish(3)`: for QPs that the program made by itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rem_rdma_establish(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: what the C API promises.
    let id = unsafe { Id::of(id) };
    let connection = id.lock().connection().filter(|_| id.qp().is_null());
    answer(
        connection
            .ok_or(libc::EINVAL)
            .and_then(|(verbs, conn)| verbs.ctx().context.cm().establish(conn, &[]).map_err(errno::of_cm)),
    )
}

/// `rdma_disconnect(3)`, which `cancel.c` exports, up to its next sleep.
#[unsafe(no_mangle)]
unsafe extern "C" fn rem_disconnect_step(
    id: *mut rdma_cm_id,
    _: *mut c_void,
    _: *mut c_void,
    _: *mut c_void,
    sleep: *mut Sleep,
) -> c_int {
    // SAFETY: what the C API promises; and what cancel.c sleeps on, which is its own.
    let (id, sleep) = unsafe { (Id::of(id), &mut *sleep) };
    sleep::answer(create::step(id, sleep, || disconnect(id)))
}

/// `rdma_notify(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rem_rdma_notify(id: *mut rdma_cm_id, event: ibv_event_type) -> c_int {
    // SAFETY: what the C API promises.
    let connection = unsafe { Id::of(id) }.lock().connection();
    answer(match (connection, event) {
        (Some((verbs, conn)), IBV_EVENT_COMM_EST) => {
            verbs.ctx().context.cm().communication_established(conn);
            Ok(())
        }
        _ => Err(libc::EINVAL),
    })
}
