//! The addresses of this host and the interfaces that carry them (getifaddrs(3), netdevice(7)).

use std::ffi::CStr;
use std::io;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd;

use super::net::{check, udp_socket};
use crate::route::Interface;

/// All IP addresses of this network namespace.
pub(crate) fn list() -> io::Result<Vec<Interface>> {
    let mut head: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the pointer leads to a live local, which receives the head of a list.
    check(unsafe { libc::getifaddrs(&raw mut head) } as isize)?;
    let mut out = Vec::new();
    let mut next = head;
    while !next.is_null() {
        // SAFETY: a non-null link of the list that getifaddrs built and that is freed only below.
        let item = unsafe { &*next };
        // SAFETY: as above, the pointers inside lead into the same list.
        if let Some(interface) = unsafe { read(item) } {
            out.push(interface);
        }
        next = item.ifa_next;
    }
    // SAFETY: the head of the list, freed once; `out` owns copies.
    unsafe { libc::freeifaddrs(head) };
    for interface in &mut out {
        interface.mtu = mtu(&interface.name).unwrap_or(1500);
    }
    Ok(out)
}

/// # Safety
/// `item` is an entry of a live `getifaddrs` list.
unsafe fn read(item: &libc::ifaddrs) -> Option<Interface> {
    if item.ifa_addr.is_null() {
        return None;
    }
    // SAFETY: non-null, and every socket address begins with its family.
    let family = unsafe { (*item.ifa_addr).sa_family };
    let (addr, scope_id) = match i32::from(family) {
        libc::AF_INET => {
            // SAFETY: the family says which structure it is; the list's addresses are aligned for any of them.
            let a = unsafe { item.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned() };
            (IpAddr::V4(Ipv4Addr::from(u32::from_be(a.sin_addr.s_addr))), 0)
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let a = unsafe { item.ifa_addr.cast::<libc::sockaddr_in6>().read_unaligned() };
            (IpAddr::V6(Ipv6Addr::from(a.sin6_addr.s6_addr)), a.sin6_scope_id)
        }
        _ => return None,
    };
    // SAFETY: the name is a NUL-terminated string of the same list.
    let name = unsafe { CStr::from_ptr(item.ifa_name) }.to_string_lossy().into_owned();
    // SAFETY: a NUL-terminated string, read during the call only.
    let index = unsafe { libc::if_nametoindex(item.ifa_name) };
    let flags = item.ifa_flags as i32;
    Some(Interface {
        name,
        index,
        addr,
        scope_id,
        mtu: 0,
        up: flags & libc::IFF_UP != 0,
        loopback: flags & libc::IFF_LOOPBACK != 0,
    })
}

/// What the kernel answers to a question about an interface.
fn ask(name: &str, question: libc::Ioctl) -> io::Result<libc::ifreq> {
    let socket = udp_socket(IpAddr::V4(Ipv4Addr::LOCALHOST))?;
    // SAFETY: all-zero is a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    // SAFETY: all questions of netdevice(7) read the name from `request` and write into the rest of it.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), question as _, &raw mut request) } as isize)?;
    Ok(request)
}

/// The MTU of an interface.
fn mtu(name: &str) -> io::Result<usize> {
    let answer = ask(name, libc::SIOCGIFMTU as libc::Ioctl)?;
    // SAFETY: the field that the successful call wrote.
    let mtu = unsafe { answer.ifr_ifru.ifru_mtu };
    usize::try_from(mtu).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// The hardware address of an interface, of the six bytes that those of Ethernet have.
pub(crate) fn hardware_address(name: &str) -> io::Result<[u8; 6]> {
    let answer = ask(name, libc::SIOCGIFHWADDR as libc::Ioctl)?;
    // SAFETY: the field that the successful call wrote.
    let bytes = unsafe { answer.ifr_ifru.ifru_hwaddr.sa_data };
    Ok(std::array::from_fn(|i| bytes[i].cast_unsigned()))
}
