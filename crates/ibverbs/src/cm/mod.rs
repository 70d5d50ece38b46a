//! librdmacm: connections by address and port, over the connection manager of the safe verbs.
//!
//! Read first: rdma_cm(7), and `id.rs`. The real library is a thin layer over the kernel's `rdma_ucm`, and the rules of
//! both live here: which call is allowed when is the kernel's (`cma.c`), what happens to QPs and what C sees of an
//! identifier is the library's. Like the real one, this is an application of libibverbs (`verbs.rs`).
//!
//! | file | calls |
//! |---|---|
//! | `id.rs`, `create.rs` | identifiers: create, destroy, migrate, options |
//! | `channel.rs`, `event.rs` | channels and events: get, acknowledge |
//! | `addr.rs`, `devices.rs` | addresses and routes, devices |
//! | `bind.rs`, `resolve.rs`, `neighbour.rs` | bind, listen; resolve address and route |
//! | `connect.rs` | connect, accept, reject, establish, disconnect, notify |
//! | `qp.rs` | QPs, CQs and SRQs of identifiers, and the attributes that a connection gives |
//! | `multicast.rs` | join, leave |
//! | `ep.rs`, `addrinfo.rs` | endpoints: what rdma_getaddrinfo(3) finds, made at once |
//! | `rsocket.rs` | names only |
//!
//! Every function of the real library `rdma_x` is `rem_rdma_x` here; `link.sh` makes `librdmacm.so.1` of jumps.

mod addr;
mod addrinfo;
mod bind;
mod channel;
mod connect;
mod create;
mod devices;
mod ep;
mod event;
mod id;
mod multicast;
mod neighbour;
mod qp;
mod resolve;
mod rsocket;
mod verbs;

use std::ffi::c_int;

use crate::errno;

/// The interface of that number was removed, and with it its device: who is bound to it is told, as by the kernel, and is to
/// destroy what he has there.
pub(crate) fn device_removed(interface: u32) {
    id::registry().tell_those_at(interface, id::Local::DeviceRemoved);
}

/// What these calls answer: 0, or -1 and the reason in `errno`.
fn answer(result: Result<(), c_int>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(e) => errno::minus_one_with(e),
    }
}

/// What calls of libibverbs answer: 0, or the reason.
fn check(code: c_int) -> Result<(), c_int> {
    if code == 0 { Ok(()) } else { Err(code.abs()) }
}

/// The reason of a call that answered with nothing.
fn last_error() -> c_int {
    match std::io::Error::last_os_error().raw_os_error() {
        Some(e) if e != 0 => e,
        _ => libc::EIO,
    }
}
