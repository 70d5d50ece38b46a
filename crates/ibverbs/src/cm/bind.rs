//! Binding to an address and a port, and listening there.
//!
//! A port belongs to one process of the host, at one address or at all of them: taking it is the business of the
//! connection manager's claims. Who binds to every address takes the port at each address of each device, as it would
//! have the kernel listen on all devices.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use libc::sockaddr;
use remanence_rnic::cm::{CmError, Listen};
use remanence_verbs::{Claim, Error};
use remanence_wire::Gid;
use remanence_wire::cm::ServiceId;

use crate::abi::*;
use crate::{context, errno};

use super::id::{Bound, Id, Inner, State, Verbs, registry};
use super::{addr, answer, devices};

/// The kernel's `max_backlog`, and what it takes for nonsense.
const BACKLOG_MAX: c_int = 1024;
/// Ports below are for root.
const PRIVILEGED: u16 = 1024;
/// Ports to try before there seems to be none left.
const TRIES: usize = 256;

/// The service that a port stands for.
pub(super) fn service(ps: rdma_port_space, port: u16) -> ServiceId {
    ServiceId(u64::from(ps) << 16 | u64::from(port))
}

/// `rdma_bind_addr`, as the kernel has it.
pub(super) fn bind(id: Id, inner: &mut Inner, to: SocketAddr) -> Result<(), c_int> {
    if inner.state != State::Idle {
        return Err(libc::EINVAL);
    }
    if addr::is_link_local(to.ip()) && addr::scope(to) == 0 {
        return Err(libc::EINVAL);
    }
    let device = match is_any(to.ip()) {
        true => None,
        false => match devices::find(to.ip(), addr::scope(to)) {
            // There is no IP over InfiniBand without InfiniBand.
            Some(_) if id.ps() == RDMA_PS_IPOIB => return Err(libc::EINVAL),
            Some(device) => Some(device),
            None if addr::is_local(to) => return Err(libc::ENODEV),
            None => return Err(libc::EADDRNOTAVAIL),
        },
    };
    if (1..PRIVILEGED).contains(&to.port()) && !may_bind_privileged() {
        return Err(libc::EACCES);
    }
    // Whoever wants to share the port is found out when somebody listens.
    let claim = |port| if inner.reuseaddr { Ok(Vec::new()) } else { claim(id, inner, port) };
    let (at, bound) = match to.port() {
        0 => free_port(to, claim)?,
        _ => (to, claim(to)?),
    };
    // To the kernel, loopback is as good as any address: an identifier that is bound there has no device yet. libfabric
    // takes the one that it is shown for the only one that will do.
    let shows = !at.ip().is_loopback() || devices::all().iter().all(|device| device.is_loopback());
    if let Some(device) = device.filter(|_| shows) {
        id.attach(inner, device)?;
    }
    inner.bound = bound;
    inner.src = Some(at);
    inner.state = State::Bound;
    id.show_addresses(inner);
    Ok(())
}

/// Binds to any address and port, for an identifier that will connect: nobody will ask for it by its port.
pub(super) fn bind_implicitly(id: Id, inner: &mut Inner, like: SocketAddr) {
    inner.src = Some(addr::unspecified(like, addr::ephemeral_port()));
    inner.state = State::Bound;
    id.show_addresses(inner);
}

/// Whether an address means every one: so does loopback, as in the kernel, unless it has a device of its own.
fn is_any(ip: IpAddr) -> bool {
    ip.is_unspecified() || devices::stand_in(ip).is_some()
}

fn free_port(
    to: SocketAddr,
    claim: impl Fn(SocketAddr) -> Result<Vec<Bound>, c_int>,
) -> Result<(SocketAddr, Vec<Bound>), c_int> {
    for _ in 0..TRIES {
        let mut at = to;
        at.set_port(addr::ephemeral_port());
        match claim(at) {
            Err(libc::EADDRINUSE | libc::EADDRNOTAVAIL) => {}
            other => return other.map(|bound| (at, bound)),
        }
    }
    Err(libc::EADDRNOTAVAIL)
}

fn may_bind_privileged() -> bool {
    // SAFETY: it always works.
    unsafe { libc::geteuid() == 0 }
}

/// Takes a port, at one address or at all.
fn claim(id: Id, inner: &Inner, at: SocketAddr) -> Result<Vec<Bound>, c_int> {
    let service = service(id.ps(), at.port());
    let claim_at = |verbs: Verbs, gid: Gid| -> Result<Claim, c_int> {
        verbs.ctx().context.cm().claim(service, Some(gid)).map_err(|e| errno::of(&e))
    };
    if !is_any(at.ip()) {
        let device = devices::find(at.ip(), addr::scope(at)).ok_or(libc::ENODEV)?;
        let verbs = Verbs(context::of_process(device)?);
        let gid = Gid::from_ip(at.ip());
        return Ok(vec![Bound { verbs, gid, claim: claim_at(verbs, gid)? }]);
    }
    let mut bound = Vec::new();
    for device in devices::all() {
        // The kernel listens where it can.
        let Ok(verbs) = context::of_process(device).map(Verbs) else { continue };
        for gid in verbs.ctx().context.port().addresses() {
            if is_meant(inner, at, gid.to_ip()) {
                // What cma.c says where one of the two names no address.
                let claim = claim_at(verbs, gid).map_err(|e| match e {
                    libc::EADDRINUSE => libc::EADDRNOTAVAIL,
                    other => other,
                })?;
                bound.push(Bound { verbs, gid, claim });
            }
        }
    }
    Ok(bound)
}

/// Whether all addresses of `at`'s family include this one: those of IPv6 include those of IPv4, unless the program
/// said otherwise.
fn is_meant(inner: &Inner, at: SocketAddr, ip: IpAddr) -> bool {
    at.is_ipv4() == ip.is_ipv4() || (at.is_ipv6() && !inner.afonly.unwrap_or(false))
}

/// `rdma_listen`, as the kernel has it.
fn listen(id: Id, backlog: c_int) -> Result<(), c_int> {
    let mut inner = id.lock();
    if inner.state == State::Idle {
        bind(id, &mut inner, SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0))?;
    }
    let (State::Bound, Some(at)) = (inner.state, inner.src) else { return Err(libc::EINVAL) };
    let mut bound = std::mem::take(&mut inner.bound);
    if bound.is_empty() {
        bound = claim(id, &inner, at)?;
    }
    if bound.is_empty() {
        return Err(libc::ENODEV);
    }
    inner.state = State::Listen;
    drop(inner);
    let backlog = if backlog > 0 && backlog < BACKLOG_MAX { backlog } else { BACKLOG_MAX };
    let result = bound.into_iter().try_for_each(|at_one| listen_at(id, at_one, at.port(), backlog as usize));
    let mut inner = id.lock();
    if result.is_ok() && is_any(at.ip()) {
        listen_wherever(id, &inner, at, backlog as usize);
    }
    if let Err(e) = result {
        inner.state = State::Bound;
        for (verbs, listener) in inner.listeners.drain(..) {
            verbs.ctx().context.cm().unlisten(listener);
        }
        return Err(e);
    }
    id.show_addresses(&inner);
    Ok(())
}

/// Who listens at every address listens at those that a device is given later, as in the kernel.
fn listen_wherever(id: Id, inner: &Inner, at: SocketAddr, backlog: usize) {
    let mut devices: Vec<Verbs> = Vec::new();
    let (v4, v6) = (is_meant(inner, at, Ipv4Addr::UNSPECIFIED.into()), at.is_ipv6());
    for &(verbs, listener) in &inner.listeners {
        if !devices.contains(&verbs) {
            devices.push(verbs);
            let listen = Listen { service_id: service(id.ps(), at.port()), local: None, backlog };
            verbs.ctx().context.cm().widen(listener, &listen, v4, v6);
        }
    }
}

fn listen_at(id: Id, bound: Bound, port: u16, backlog: usize) -> Result<(), c_int> {
    let Bound { verbs, gid, claim } = bound;
    // Known to the registry before the first request can come.
    let token = registry().add_listener(id, verbs);
    id.lock().tokens.push(token);
    let listen = Listen { service_id: service(id.ps(), port), local: Some(gid), backlog };
    let cm = verbs.ctx().context.cm();
    let listener = cm.listen_claimed(claim, &listen, &id.events().queue(), token).map_err(|e| match e {
        Error::Cm(CmError::InUse) => libc::EADDRINUSE,
        other => errno::of(&other),
    })?;
    id.lock().listeners.push((verbs, listener));
    Ok(())
}

/// `rdma_bind_addr(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rem_rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
    // SAFETY: what the C API promises.
    let (id, to) = unsafe { (Id::of(id), addr::read(addr)) };
    answer(to.ok_or(libc::EINVAL).and_then(|to| bind(id, &mut id.lock(), to)))
}

/// `rdma_listen(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rem_rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    // SAFETY: what the C API promises.
    answer(listen(unsafe { Id::of(id) }, backlog))
}

fn port(addr: Option<SocketAddr>) -> u16 {
    addr.map_or(0, |addr| addr.port().to_be())
}

/// `rdma_get_src_port(3)`: in network byte order.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rem_rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: what the C API promises. Programs may have written the address themselves.
    port(unsafe { addr::read((&raw const (*id).route.addr.src_storage).cast()) })
}

/// `rdma_get_dst_port(3)`: in network byte order.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rem_rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: as above.
    port(unsafe { addr::read((&raw const (*id).route.addr.dst_storage).cast()) })
}
