//! `rdma_getaddrinfo`: getaddrinfo(3) with port spaces and QP types.

use std::ffi::{c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};

use libc::{addrinfo, sockaddr, socklen_t};

use crate::abi::*;

use super::{answer, devices};

/// What getaddrinfo(3) is asked for.
fn hints(from: &rdma_addrinfo) -> addrinfo {
    let passive = from.ai_flags & RAI_PASSIVE != 0;
    let numeric = from.ai_flags & RAI_NUMERICHOST != 0;
    let ai_socktype = match from.ai_qp_type as ibv_qp_type {
        IBV_QPT_RC | IBV_QPT_UC | IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV => libc::SOCK_STREAM,
        IBV_QPT_UD => libc::SOCK_DGRAM,
        _ => 0,
    };
    let ai_protocol = match (from.ai_port_space as rdma_port_space, ai_socktype) {
        (RDMA_PS_TCP, _) | (RDMA_PS_IB, libc::SOCK_STREAM) => libc::IPPROTO_TCP,
        (RDMA_PS_UDP | RDMA_PS_IPOIB, _) | (RDMA_PS_IB, libc::SOCK_DGRAM) => libc::IPPROTO_UDP,
        _ => 0,
    };
    addrinfo {
        ai_flags: if passive { libc::AI_PASSIVE } else { 0 } | if numeric { libc::AI_NUMERICHOST } else { 0 },
        // Addresses of InfiniBand have no names.
        ai_family: if from.ai_family == AF_IB { 0 } else { from.ai_family },
        ai_socktype,
        ai_protocol,
        ai_addrlen: 0,
        ai_addr: ptr::null_mut(),
        ai_canonname: ptr::null_mut(),
        ai_next: ptr::null_mut(),
    }
}

const AF_IB: c_int = 27;

/// Frees what was made so far when something is missing.
struct Made(NonNull<rdma_addrinfo>);

impl Made {
    fn new() -> Result<Self, c_int> {
        // SAFETY: calloc may be called with any numbers.
        let made = unsafe { libc::calloc(1, size_of::<rdma_addrinfo>()) };
        NonNull::new(made.cast()).map(Self).ok_or(libc::ENOMEM)
    }

    fn get(&mut self) -> &mut rdma_addrinfo {
        // SAFETY: ours, and zeros are a value of it.
        unsafe { self.0.as_mut() }
    }

    fn into_raw(self) -> *mut rdma_addrinfo {
        let raw = self.0.as_ptr();
        std::mem::forget(self);
        raw
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        // SAFETY: ours, made as it frees.
        unsafe { rem_rdma_freeaddrinfo(self.0.as_ptr()) };
    }
}

/// A copy that free(3) frees.
///
/// # Safety
/// `from` has `len` bytes.
unsafe fn copy(from: *const sockaddr, len: socklen_t) -> Result<(*mut sockaddr, socklen_t), c_int> {
    // SAFETY: by the contract; calloc may be called with any numbers.
    unsafe {
        let to = libc::calloc(1, len as usize);
        if to.is_null() {
            return Err(libc::ENOMEM);
        }
        ptr::copy_nonoverlapping(from.cast::<u8>(), to.cast::<u8>(), len as usize);
        Ok((to.cast(), len))
    }
}

/// # Safety
/// `name` is null or a string.
unsafe fn copy_name(name: *const c_char) -> *mut c_char {
    // SAFETY: by the contract.
    if name.is_null() { ptr::null_mut() } else { unsafe { libc::strdup(name) } }
}

/// Asks for a name; the answer is 0, or what getaddrinfo(3) says is wrong.
///
/// # Safety
/// As getaddrinfo(3).
unsafe fn look_up(
    node: *const c_char,
    service: *const c_char,
    wanted: Option<&rdma_addrinfo>,
    into: &mut rdma_addrinfo,
) -> Result<c_int, c_int> {
    let ai_hints = wanted.map(hints);
    let mut found = MaybeUninit::<*mut addrinfo>::uninit();
    // SAFETY: by the contract.
    let code = unsafe {
        let ai_hints = ai_hints.as_ref().map_or(ptr::null(), ptr::from_ref);
        libc::getaddrinfo(node, service, ai_hints, found.as_mut_ptr())
    };
    if code != 0 {
        return Ok(code);
    }
    // SAFETY: it worked, so there is at least one.
    let (list, first) = unsafe { (found.assume_init(), &*found.assume_init()) };
    let nothing = rdma_addrinfo::zeroed();
    let wanted = wanted.unwrap_or(&nothing);
    into.ai_qp_type = match (wanted.ai_qp_type, first.ai_socktype) {
        (0, libc::SOCK_STREAM) => IBV_QPT_RC as c_int,
        (0, libc::SOCK_DGRAM) => IBV_QPT_UD as c_int,
        (given, _) => given,
    };
    into.ai_port_space = match (wanted.ai_port_space, first.ai_protocol) {
        (0, libc::IPPROTO_TCP) => RDMA_PS_TCP as c_int,
        (0, libc::IPPROTO_UDP) => RDMA_PS_UDP as c_int,
        (given, _) => given,
    };
    into.ai_family = first.ai_family;
    // SAFETY: what getaddrinfo(3) promises of its answer.
    let copied = unsafe {
        let copied = copy(first.ai_addr, first.ai_addrlen);
        let name = copy_name(first.ai_canonname);
        libc::freeaddrinfo(list);
        if wanted.ai_flags & RAI_PASSIVE != 0 {
            into.ai_flags = RAI_PASSIVE;
            into.ai_src_canonname = name;
        } else {
            into.ai_dst_canonname = name;
        }
        copied?
    };
    if wanted.ai_flags & RAI_PASSIVE != 0 {
        (into.ai_src_addr, into.ai_src_len) = copied;
    } else {
        (into.ai_dst_addr, into.ai_dst_len) = copied;
    }
    Ok(0)
}

/// # Safety
/// As `rdma_getaddrinfo`.
unsafe fn get(
    node: *const c_char,
    service: *const c_char,
    wanted: Option<&rdma_addrinfo>,
) -> Result<Result<*mut rdma_addrinfo, c_int>, c_int> {
    if node.is_null() && service.is_null() && wanted.is_none() {
        return Err(libc::EINVAL);
    }
    devices::some()?;
    // Names that a subnet manager knows.
    if wanted.is_some_and(|wanted| wanted.ai_flags & RAI_SA != 0) {
        return Err(libc::EOPNOTSUPP);
    }
    let mut made = Made::new()?;
    let into = made.get();
    if !node.is_null() || !service.is_null() {
        // SAFETY: by the contract.
        match unsafe { look_up(node, service, wanted, into) }? {
            0 => {}
            code => return Ok(Err(code)),
        }
    } else if let Some(wanted) = wanted {
        into.ai_flags = wanted.ai_flags;
        into.ai_family = wanted.ai_family;
        into.ai_qp_type = wanted.ai_qp_type;
        into.ai_port_space = wanted.ai_port_space;
        if wanted.ai_dst_len > 0 {
            // SAFETY: by the contract.
            (into.ai_dst_addr, into.ai_dst_len) = unsafe { copy(wanted.ai_dst_addr, wanted.ai_dst_len) }?;
        }
    }
    if let Some(wanted) = wanted.filter(|wanted| wanted.ai_src_len > 0 && into.ai_src_len == 0) {
        // SAFETY: by the contract.
        (into.ai_src_addr, into.ai_src_len) = unsafe { copy(wanted.ai_src_addr, wanted.ai_src_len) }?;
    }
    Ok(Ok(made.into_raw()))
}

/// `rdma_getaddrinfo(3)`: 0, or -1 and the reason in `errno`, or what getaddrinfo(3) answers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rem_rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    res: *mut *mut rdma_addrinfo,
) -> c_int {
    // SAFETY: what the C API promises.
    match unsafe { get(node, service, hints.as_ref()) } {
        Ok(Ok(found)) => {
            // SAFETY: what the C API promises.
            unsafe { res.write(found) };
            0
        }
        Ok(Err(code)) => code,
        Err(e) => answer(Err(e)),
    }
}

/// `rdma_freeaddrinfo(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rem_rdma_freeaddrinfo(res: *mut rdma_addrinfo) {
    let mut next = res;
    while !next.is_null() {
        // SAFETY: what the C API promises: all of it came from calloc and strdup.
        unsafe {
            let this = *next;
            for part in [
                this.ai_connect,
                this.ai_route,
                this.ai_src_canonname.cast::<c_void>(),
                this.ai_dst_canonname.cast(),
                this.ai_src_addr.cast(),
                this.ai_dst_addr.cast(),
                next.cast(),
            ] {
                libc::free(part);
            }
            next = this.ai_next;
        }
    }
}
