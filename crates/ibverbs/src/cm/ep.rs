//! Endpoints: identifiers made of what `rdma_getaddrinfo` found, whose calls wait.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::task::Poll;

use crate::abi::*;
use crate::sleep::{self, Sleep};

use super::id::{Id, Template};
use super::{addr, answer, bind, create, qp, resolve};

/// How long the network may take to find the peer: rdma-core's.
const RESOLVE_MS: c_int = 2000;

/// # Safety
/// `res` is what `rdma_getaddrinfo` found, or made alike; `pd` and the pointers in `attr` are live or null.
unsafe fn create(
    res: &rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: Option<&mut ibv_qp_init_attr>,
) -> Result<Id, c_int> {
    let ps = res.ai_port_space as rdma_port_space;
    let id = create::create(None, ptr::null_mut(), ps, res.ai_qp_type as ibv_qp_type)?;
    // SAFETY: by the contract.
    let made = unsafe {
        if res.ai_flags & RAI_PASSIVE != 0 { passive(id, res, pd, attr) } else { active(id, res, pd, attr) }
    };
    match made {
        Ok(()) => Ok(id),
        Err(e) => {
            destroy(id);
            Err(e)
        }
    }
}

/// # Safety
/// As `create`.
unsafe fn passive(
    id: Id,
    res: &rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: Option<&mut ibv_qp_init_attr>,
) -> Result<(), c_int> {
    // SAFETY: by the contract.
    let at = unsafe { addr::read(res.ai_src_addr) }.ok_or(libc::EINVAL)?;
    let mut inner = id.lock();
    bind::bind(id, &mut inner, at)?;
    if !pd.is_null() {
        id.set_pd(pd);
    }
    if let Some(attr) = attr {
        let qp_type = res.ai_qp_type as ibv_qp_type;
        inner.qp_init_attr = Some(Template(ibv_qp_init_attr { qp_type, ..*attr }));
    }
    Ok(())
}

/// # Safety
/// As `create`.
unsafe fn active(
    id: Id,
    res: &rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: Option<&mut ibv_qp_init_attr>,
) -> Result<(), c_int> {
    // SAFETY: by the contract.
    let (src, dst) = unsafe { (addr::read(res.ai_src_addr), addr::read(res.ai_dst_addr)) };
    resolve::addr_of(id, src, dst.ok_or(libc::EINVAL)?, RESOLVE_MS)?;
    resolve::route_of(id)?;
    if let Some(attr) = attr {
        attr.qp_type = res.ai_qp_type as ibv_qp_type;
        qp::create(id, pd, attr)?;
    }
    if !res.ai_connect.is_null() && res.ai_connect_len > 0 {
        // SAFETY: by the contract.
        let data = unsafe { std::slice::from_raw_parts(res.ai_connect.cast::<u8>(), res.ai_connect_len) };
        id.lock().connect_data = data.to_vec();
    }
    Ok(())
}

fn destroy(id: Id) {
    if !id.qp().is_null() {
        qp::destroy(id);
    }
    if !id.srq().is_null() {
        qp::destroy_srq(id);
    }
    id.destroy();
}

/// `rdma_get_request`, up to its next sleep.
fn get_request(listener: Id, sleep: &mut Sleep) -> Poll<Result<Id, c_int>> {
    if sleep.begins() && !create::forgets_the_last(listener) {
        return Poll::Ready(Err(libc::EINVAL));
    }
    listener.events().step(sleep).map(|next| next.and_then(|event| requested(listener, event)))
}

fn requested(listener: Id, event: *mut rdma_cm_event) -> Result<Id, c_int> {
    let template = listener.lock().qp_init_attr;
    // SAFETY: it was just handed out, and is ours until the program sees it.
    let (kind, status, id) = unsafe { ((*event).event, (*event).status, (*event).id) };
    let checked = match (kind, status) {
        (RDMA_CM_EVENT_REJECTED, _) => Err(libc::ECONNREFUSED),
        (RDMA_CM_EVENT_CONNECT_REQUEST, 0) => Ok(()),
        (_, 0) => Err(libc::EINVAL),
        (_, status) => Err(status.abs()),
    };
    let request = checked.and_then(|()| {
        // SAFETY: the identifier of a connection request is a live one.
        let id = unsafe { Id::of(id) };
        match template {
            // A copy for each: sizes that the device rounds up stay its own.
            Some(Template(mut attr)) => qp::create(id, listener.pd(), &mut attr).map(|()| id),
            None => Ok(id),
        }
    });
    match request {
        Ok(id) => id.set_event(event),
        // The program finds it there.
        Err(_) => listener.set_event(event),
    }
    request
}

/// `rdma_create_ep(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rem_rdma_create_ep(
    id: *mut *mut rdma_cm_id,
    res: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    qp_init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: what the C API promises.
    answer(unsafe { create(&*res, pd, qp_init_attr.as_mut()).map(|created| id.write(created.c())) })
}

/// `rdma_destroy_ep(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rem_rdma_destroy_ep(id: *mut rdma_cm_id) {
    // SAFETY: what the C API promises.
    destroy(unsafe { Id::of(id) });
}

/// `rdma_get_request(3)`, which `cancel.c` exports, up to its next sleep.
#[unsafe(no_mangle)]
unsafe extern "C" fn rem_request_step(
    listen: *mut rdma_cm_id,
    id: *mut *mut rdma_cm_id,
    _: *mut c_void,
    _: *mut c_void,
    sleep: *mut Sleep,
) -> c_int {
    // SAFETY: what the C API promises; and what cancel.c sleeps on, which is its own.
    let (listener, sleep) = unsafe { (Id::of(listen), &mut *sleep) };
    // SAFETY: a variable of the caller.
    sleep::answer(get_request(listener, sleep).map_ok(|request| unsafe { id.write(request.c()) }))
}
