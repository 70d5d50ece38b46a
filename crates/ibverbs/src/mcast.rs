//! Multicast groups of UD queue pairs.

use std::ffi::c_int;

use remanence_rnic::QpType;
use remanence_wire::Gid;

use crate::abi::{ibv_gid, ibv_qp};
use crate::errno;
use crate::qp::qp;

/// Lets a UD queue pair receive what is sent to a group. Once more changes nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_attach_mcast(p: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> c_int {
    // SAFETY: C hands in a live QP and a GID, both readings of which are 16 bytes of which any will do.
    let (object, group) = unsafe { (qp(p), Gid((*gid).raw)) };
    if object.ty != QpType::Ud {
        return libc::EINVAL;
    }
    let mut groups = object.groups();
    if groups.contains(&group) {
        return 0;
    }
    if let Err(e) = object.qp.attach_mcast(group) {
        return errno::of(&e);
    }
    groups.push(group);
    0
}

/// Undoes [`ibv_attach_mcast`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_detach_mcast(p: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> c_int {
    // SAFETY: as above.
    let (object, group) = unsafe { (qp(p), Gid((*gid).raw)) };
    let mut groups = object.groups();
    let Some(at) = groups.iter().position(|&known| known == group) else { return libc::EINVAL };
    if let Err(e) = object.qp.detach_mcast(group) {
        return errno::of_verb(e);
    }
    groups.swap_remove(at);
    0
}
