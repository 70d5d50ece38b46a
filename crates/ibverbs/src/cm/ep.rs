//! Endpoints: identifiers made of what `rdma_getaddrinfo` found, whose calls wait.

use std::ffi::c_int;
use std::ptr;

use crate::abi::*;

use super::event::EventRef;
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

fn get_request(listener: Id) -> Result<Id, c_int> {
    let (sync, template) = {
        let inner = listener.lock();
        (inner.sync, inner.qp_init_attr)
    };
    if !sync {
        return Err(libc::EINVAL);
    }
    if let Some(event) = EventRef::of(listener.event()) {
        listener.set_event(ptr::null_mut());
        event.acknowledge();
    }
    let event = listener.events().next()?;
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

/// `rdma_get_request(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rem_rdma_get_request(listen: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> c_int {
    // SAFETY: what the C API promises.
    answer(get_request(unsafe { Id::of(listen) }).map(|request| unsafe { id.write(request.c()) }))
}
