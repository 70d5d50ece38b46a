//! Multicast groups of an identifier.
//!
//! On RoCEv2 a group is an IP group, and joining it is the business of the link under the QP: what we do here is find
//! the group's GID, attach the QP, and tell the program whom to send to.

use std::ffi::{c_int, c_void};
use std::net::SocketAddr;

use libc::sockaddr;
use remanence_rnic::AhAttr;
use remanence_wire::{Gid, Qpn};

use crate::abi::*;
use crate::qp_attr::av_of;

use super::event::sgid_index;
use super::id::{Id, Local, State};
use super::{addr, answer, create, verbs};

/// A group that an identifier is in.
pub(super) struct Group {
    pub(super) number: u64,
    addr: SocketAddr,
    gid: ibv_gid,
    send_only: bool,
    attached: bool,
    left: bool,
    /// The pointer that the program gave to be returned with the events.
    context: Context,
    /// Its events handed out, and acknowledged.
    reported: u64,
    pub(super) completed: u64,
}

/// A pointer of the program's, which is handed back to it.
#[derive(Clone, Copy)]
struct Context(*mut c_void);

// SAFETY: nothing here follows it.
unsafe impl Send for Context {}

/// How far packets to a group travel, as the kernel's RDMA-CM lets them.
const MULTICAST_HOPS: u8 = 1;
/// The QP number of everyone in a group.
const MULTICAST_QPN: Qpn = Qpn::new(0xff_ffff);

fn join(id: Id, at: Option<SocketAddr>, send_only: bool, context: *mut c_void) -> Result<(), c_int> {
    let group = at.ok_or(libc::EINVAL)?;
    let mut inner = id.lock();
    let bound = matches!(inner.state, State::Bound | State::AddrResolved | State::RouteResolved);
    let same_family = inner.src.is_some_and(|src| src.is_ipv4() == group.is_ipv4());
    if !bound || inner.verbs.is_none() || !id.is_ud() || !same_family || !group.ip().is_multicast() {
        return Err(libc::EINVAL);
    }
    let number = inner.next_group;
    inner.next_group += 1;
    inner.groups.push(Group {
        number,
        addr: group,
        gid: ibv_gid { raw: Gid::from_ip(group.ip()).0 },
        send_only,
        attached: false,
        left: false,
        context: Context(context),
        reported: 0,
        completed: 0,
    });
    id.tell(&mut inner, Local::Joined(number));
    drop(inner);
    create::complete(id)
}

/// The program is about to hear that it joined: attaches the QP. Nothing, if it has left meanwhile.
pub(super) fn joined(id: Id, number: u64) -> Option<(rdma_ud_param, c_int)> {
    let mut inner = id.lock();
    let (verbs, src) = (inner.verbs?, inner.src?);
    let tos = inner.tos.unwrap_or(0);
    let qkey = *inner.qkey.get_or_insert(RDMA_UDP_QKEY);
    let group = inner.groups.iter_mut().find(|group| group.number == number && !group.left)?;
    group.reported += 1;
    let (gid, attach) = (group.gid, !group.send_only && !id.qp().is_null());
    let av = AhAttr {
        hop_limit: MULTICAST_HOPS,
        traffic_class: tos,
        sgid_index: sgid_index(verbs, Gid::from_ip(src.ip())),
        ..AhAttr::new(Gid::from_ip(group.addr.ip()))
    };
    let ud = rdma_ud_param {
        // The program's context, in a place of its own choosing.
        private_data: group.context.0,
        ah_attr: av_of(&av),
        qp_num: MULTICAST_QPN.value(),
        qkey,
        ..rdma_ud_param::zeroed()
    };
    // SAFETY: a live QP, by what the C API promises.
    let status = if attach { unsafe { verbs::ibv_attach_mcast(id.qp(), &raw const gid, 0) } } else { 0 };
    group.attached = attach && status == 0;
    Some((ud, if status == 0 { 0 } else { -1 }))
}

fn leave(id: Id, at: Option<SocketAddr>) -> Result<(), c_int> {
    let at = at.ok_or(libc::EINVAL)?;
    let mut inner = id.lock();
    let group = inner.groups.iter_mut().find(|group| group.addr == at && !group.left);
    let group = group.ok_or(libc::EADDRNOTAVAIL)?;
    // What was not handed out yet will not be.
    group.left = true;
    let (number, gid, attached) = (group.number, group.gid, group.attached);
    drop(inner);
    if attached && !id.qp().is_null() {
        // SAFETY: a live QP, by what the C API promises.
        unsafe { verbs::ibv_detach_mcast(id.qp(), &raw const gid, 0) };
    }
    let of = |groups: &[Group]| groups.iter().position(|group| group.number == number);
    let mut inner = id.wait_while(id.lock(), |inner| {
        of(&inner.groups).is_some_and(|i| inner.groups[i].completed < inner.groups[i].reported)
    });
    if let Some(i) = of(&inner.groups) {
        inner.groups.swap_remove(i);
    }
    Ok(())
}

/// `rdma_join_multicast(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rem_rdma_join_multicast(
    id: *mut rdma_cm_id,
    addr: *mut sockaddr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: what the C API promises.
    let (id, at) = unsafe { (Id::of(id), addr::read(addr)) };
    answer(join(id, at, false, context))
}

/// `rdma_join_multicast_ex(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rem_rdma_join_multicast_ex(
    id: *mut rdma_cm_id,
    mc_join_attr: *mut rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    const NEEDED: u32 = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
    // SAFETY: what the C API promises.
    let (id, attr) = unsafe { (Id::of(id), *mc_join_attr) };
    if attr.comp_mask >= RDMA_CM_JOIN_MC_ATTR_RESERVED {
        return answer(Err(libc::ENOTSUP));
    }
    if attr.comp_mask != NEEDED || attr.join_flags >= RDMA_MC_JOIN_FLAG_RESERVED {
        return answer(Err(libc::EINVAL));
    }
    // SAFETY: what the C API promises.
    let at = unsafe { addr::read(attr.addr) };
    answer(join(id, at, attr.join_flags == RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER, context))
}

/// `rdma_leave_multicast(3)`: waits until the group's events are acknowledged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rem_rdma_leave_multicast(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
    // SAFETY: what the C API promises.
    let (id, at) = unsafe { (Id::of(id), addr::read(addr)) };
    answer(leave(id, at))
}
