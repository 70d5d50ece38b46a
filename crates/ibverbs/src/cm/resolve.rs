//! Which device and which of our addresses lead to a peer.
//!
//! The kernel asks its routing table and then the neighbour; we ask the routing table, and leave the neighbour to the
//! sockets under the device. So an answer is there at once, and a peer that is not is noticed when it is asked for a
//! connection.

use std::ffi::c_int;
use std::net::SocketAddr;

use libc::sockaddr;

use crate::abi::*;

use super::id::{Id, Inner, Local, State};
use super::{addr, answer, bind, create, devices};

/// `rdma_resolve_addr`, without the waiting.
fn resolve_addr(id: Id, src: Option<SocketAddr>, dst: SocketAddr) -> Result<(), c_int> {
    let mut inner = id.lock();
    if inner.state == State::Idle {
        match src {
            Some(src) if !src.ip().is_unspecified() || src.port() != 0 => bind::bind(id, &mut inner, src)?,
            _ => bind::bind_implicitly(id, &mut inner, src.unwrap_or(dst)),
        }
    }
    let (State::Bound, Some(src)) = (inner.state, inner.src) else { return Err(libc::EINVAL) };
    if src.is_ipv4() != dst.is_ipv4() {
        return Err(libc::EINVAL);
    }
    let settled = inner.verbs.is_some();
    let dst = match dst.ip().is_unspecified() {
        // Ourselves.
        true => addr::with_ip(dst, if settled { src.ip() } else { addr::loopback(dst) }),
        false => dst,
    };
    let local = match devices::beside_the_host(dst.ip()) {
        Some(local) => local,
        // The device is known, and it joins groups without asking for the way.
        None if settled && dst.ip().is_multicast() => src.ip(),
        None => addr::route(settled.then_some(src), dst)
            .map_err(|e| e.raw_os_error().unwrap_or(libc::ENETUNREACH))?,
    };
    inner.dst = Some(dst);
    if settled {
        resolved(id, &mut inner);
        return Ok(());
    }
    let scope = if addr::is_link_local(local) { addr::scope(dst) } else { 0 };
    let found = devices::find(local, scope).filter(|_| id.ps() != RDMA_PS_IPOIB).ok_or(libc::ENODEV);
    match found.and_then(|device| id.attach(&mut inner, device)) {
        Ok(()) => {
            let mut at = match (dst, addr::is_link_local(local)) {
                (SocketAddr::V6(_), true) => dst,
                _ => src,
            };
            at.set_port(src.port());
            inner.src = Some(addr::with_ip(at, local));
            resolved(id, &mut inner);
        }
        Err(e) => id.tell(&mut inner, Local::AddrError(-e)),
    }
    Ok(())
}

fn resolved(id: Id, inner: &mut Inner) {
    inner.state = State::AddrResolved;
    id.show_addresses(inner);
    id.tell(inner, Local::AddrResolved);
}

/// Resolves, and waits for the answer where the program wants that.
pub(super) fn addr_of(id: Id, src: Option<SocketAddr>, dst: SocketAddr) -> Result<(), c_int> {
    resolve_addr(id, src, dst)?;
    create::complete(id)
}

/// `rdma_resolve_route`: on Ethernet there is but one.
pub(super) fn route_of(id: Id) -> Result<(), c_int> {
    let mut inner = id.lock();
    if inner.state != State::AddrResolved {
        return Err(libc::EINVAL);
    }
    id.show_path(&inner)?;
    inner.state = State::RouteResolved;
    id.tell(&mut inner, Local::RouteResolved);
    drop(inner);
    create::complete(id)
}

/// `rdma_resolve_addr(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rem_rdma_resolve_addr(
    id: *mut rdma_cm_id,
    src_addr: *mut sockaddr,
    dst_addr: *mut sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    // SAFETY: what the C API promises.
    let (id, src, dst) = unsafe { (Id::of(id), addr::read(src_addr), addr::read(dst_addr)) };
    let Some(dst) = dst.filter(|_| src_addr.is_null() || src.is_some()) else {
        return answer(Err(libc::EINVAL));
    };
    answer(addr_of(id, src, dst))
}

/// `rdma_resolve_route(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rem_rdma_resolve_route(id: *mut rdma_cm_id, _timeout_ms: c_int) -> c_int {
    // SAFETY: what the C API promises.
    answer(route_of(unsafe { Id::of(id) }))
}
