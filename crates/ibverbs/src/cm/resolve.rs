//! Which device and which of our addresses lead to a peer.
//!
//! As the kernel we ask the routing table and then, if need be, the network for the neighbour (`neighbour.rs`).

use std::ffi::{c_int, c_void};
use std::net::{IpAddr, SocketAddr};

use libc::sockaddr;

use crate::abi::*;
use crate::neighbour::missing;
use crate::sleep::{self, Sleep};

use super::create::Answer;
use super::id::{Id, Inner, Local, State};
use super::{addr, answer, bind, create, devices, neighbour};

/// `rdma_resolve_addr`, without the waiting.
fn resolve_addr(id: Id, src: Option<SocketAddr>, dst: SocketAddr, timeout_ms: c_int) -> Result<(), c_int> {
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
    let dst = devices::stand_in(dst.ip()).map_or(dst, |ip| addr::with_ip(dst, ip));
    let beside = devices::beside_the_host(dst.ip());
    let local = match beside {
        Some(local) => local,
        // The device is known, and it joins groups without asking for the way.
        None if settled && dst.ip().is_multicast() => src.ip(),
        None => addr::route(settled.then_some(src), dst)
            .map_err(|e| e.raw_os_error().unwrap_or(libc::ENETUNREACH))?,
    };
    inner.dst = Some(dst);
    let from = leaving_from(src, dst, local);
    // Who is beside the host is nobody's neighbour.
    let hop = if beside.is_some() { None } else { missing(local, dst)? };
    if let Some(hop) = hop
        && neighbour::ask(id.token(), hop, from, dst, timeout_ms).is_ok()
    {
        // The answer needs this lock.
        inner.state = State::AddrQuery;
        inner.asked_from = Some(local);
        return Ok(());
    }
    match settle(id, &mut inner, local) {
        Ok(()) => id.tell(&mut inner, Local::AddrResolved),
        Err(e) => id.tell(&mut inner, Local::AddrError(-e)),
    }
    Ok(())
}

/// The network was asked for the peer, and this came of it.
pub(super) fn answered(id: Id, status: c_int) -> Result<(), c_int> {
    let mut inner = id.lock();
    inner.state = State::Bound;
    let local = inner.asked_from.take().ok_or(libc::EINVAL)?;
    if status == 0 { settle(id, &mut inner, local) } else { Err(-status) }
}

/// Ties the identifier to the device that its packets leave from, unless it is.
fn settle(id: Id, inner: &mut Inner, local: IpAddr) -> Result<(), c_int> {
    let (Some(src), Some(dst)) = (inner.src, inner.dst) else { return Err(libc::EINVAL) };
    if inner.verbs.is_none() {
        let scope = if addr::is_link_local(local) { addr::scope(dst) } else { 0 };
        let found = devices::find(local, scope).filter(|_| id.ps() != RDMA_PS_IPOIB).ok_or(libc::ENODEV);
        found.and_then(|device| id.attach(inner, device))?;
        inner.src = Some(leaving_from(src, dst, local));
    }
    inner.state = State::AddrResolved;
    id.show_addresses(inner);
    Ok(())
}

/// A local address with the port that is bound, and with the interface by which the peer is reached if it means nothing
/// without one.
fn leaving_from(bound: SocketAddr, dst: SocketAddr, local: IpAddr) -> SocketAddr {
    let mut at = match (dst, addr::is_link_local(local)) {
        (SocketAddr::V6(_), true) => dst,
        _ => bound,
    };
    at.set_port(bound.port());
    addr::with_ip(at, local)
}

/// Resolves, and waits for the answer where the program wants that.
pub(super) fn addr_of(
    id: Id,
    src: Option<SocketAddr>,
    dst: SocketAddr,
    timeout_ms: c_int,
) -> Result<(), c_int> {
    resolve_addr(id, src, dst, timeout_ms)?;
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

/// `rdma_resolve_addr(3)`, which `cancel.c` exports, up to its next sleep.
#[unsafe(no_mangle)]
unsafe extern "C" fn rem_resolve_step(
    id: *mut rdma_cm_id,
    src_addr: *mut sockaddr,
    dst_addr: *mut sockaddr,
    timeout_ms: *mut c_void,
    sleep: *mut Sleep,
) -> c_int {
    // SAFETY: what the C API promises; and what cancel.c sleeps on, which is its own.
    let (id, sleep) = unsafe { (Id::of(id), &mut *sleep) };
    sleep::answer(create::step(id, sleep, || {
        // SAFETY: what the C API promises.
        let (src, dst) = unsafe { (addr::read(src_addr), addr::read(dst_addr)) };
        let dst = dst.filter(|_| src_addr.is_null() || src.is_some()).ok_or(libc::EINVAL)?;
        // An int of C, in a pointer's place.
        resolve_addr(id, src, dst, timeout_ms.addr() as c_int).map(|()| Answer::Comes)
    }))
}

/// `rdma_resolve_route(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rem_rdma_resolve_route(id: *mut rdma_cm_id, _timeout_ms: c_int) -> c_int {
    // SAFETY: what the C API promises.
    answer(route_of(unsafe { Id::of(id) }))
}
