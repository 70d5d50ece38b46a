//! Addresses: C's `sockaddr` and ours, which of our addresses leads to a peer, and port numbers.

use std::io;
use std::mem::size_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};

use libc::{c_int, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};

use crate::abi::Plain;

// SAFETY: a number and bytes.
unsafe impl Plain for sockaddr_storage {}
// SAFETY: numbers and bytes.
unsafe impl Plain for sockaddr_in {}
// SAFETY: numbers and bytes.
unsafe impl Plain for sockaddr_in6 {}

/// The family of an address.
///
/// # Safety
/// `addr` points to a socket address, of which at least the family can be read.
pub(super) unsafe fn family(addr: *const sockaddr) -> c_int {
    // SAFETY: by the contract; programs may have it at any alignment.
    c_int::from(unsafe { (&raw const (*addr).sa_family).read_unaligned() })
}

/// How many bytes an address of this family has; 0 for families that we do not know.
pub(super) fn length(family: c_int) -> socklen_t {
    let length = match family {
        libc::AF_INET => size_of::<sockaddr_in>(),
        libc::AF_INET6 => size_of::<sockaddr_in6>(),
        _ => 0,
    };
    length as socklen_t
}

/// Reads a program's address; `None` for families that we do not know.
///
/// # Safety
/// `addr` is null or points to a socket address as long as its family says.
pub(super) unsafe fn read(addr: *const sockaddr) -> Option<SocketAddr> {
    if addr.is_null() {
        return None;
    }
    // SAFETY: by the contract.
    match unsafe { family(addr) } {
        libc::AF_INET => {
            // SAFETY: by the contract, of this family.
            let sin = unsafe { addr.cast::<sockaddr_in>().read_unaligned() };
            // The field is in network byte order, as it lies in memory.
            let ip = Ipv4Addr::from_bits(u32::from_be(sin.sin_addr.s_addr));
            Some(SocketAddrV4::new(ip, u16::from_be(sin.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: by the contract, of this family.
            let sin6 = unsafe { addr.cast::<sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(sin6.sin6_addr.s6_addr);
            let port = u16::from_be(sin6.sin6_port);
            Some(SocketAddrV6::new(ip, port, u32::from_be(sin6.sin6_flowinfo), sin6.sin6_scope_id).into())
        }
        _ => None,
    }
}

/// The same in C's words.
pub(super) fn storage(addr: SocketAddr) -> sockaddr_storage {
    let mut storage = sockaddr_storage::zeroed();
    match addr {
        SocketAddr::V4(v4) => {
            let sin = sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: v4.ip().to_bits().to_be() },
                ..sockaddr_in::zeroed()
            };
            // SAFETY: sockaddr_storage is large and aligned enough for every address.
            unsafe { (&raw mut storage).cast::<sockaddr_in>().write(sin) };
        }
        SocketAddr::V6(v6) => {
            let sin6 = sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo().to_be(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: sockaddr_storage is large and aligned enough for every address.
            unsafe { (&raw mut storage).cast::<sockaddr_in6>().write(sin6) };
        }
    }
    storage
}

/// The address with another IP address in it. The scope stays.
pub(super) fn with_ip(mut addr: SocketAddr, ip: IpAddr) -> SocketAddr {
    addr.set_ip(ip);
    addr
}

/// No address, of the same family.
pub(super) fn unspecified(like: SocketAddr, port: u16) -> SocketAddr {
    match like {
        SocketAddr::V4(_) => SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port),
        SocketAddr::V6(_) => SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port),
    }
}

/// The loopback address of the same family.
pub(super) fn loopback(like: SocketAddr) -> IpAddr {
    match like {
        SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    }
}

/// The interface that an address is bound to by its scope; 0 for none.
pub(super) fn scope(addr: SocketAddr) -> u32 {
    match addr {
        SocketAddr::V6(v6) => v6.scope_id(),
        SocketAddr::V4(_) => 0,
    }
}

/// Whether it means nothing without an interface.
pub(super) fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// Whether the address is one of this host's.
pub(super) fn is_local(addr: SocketAddr) -> bool {
    let mut any_port = addr;
    any_port.set_port(0);
    UdpSocket::bind(any_port).is_ok()
}

/// Which address of this host packets to `remote` leave from: what the kernel's routing table says, found out by
/// connecting a socket that sends nothing. `local` is where they shall leave from, if that is settled.
pub(super) fn route(local: Option<SocketAddr>, remote: SocketAddr) -> io::Result<IpAddr> {
    let mut from = local.unwrap_or_else(|| unspecified(remote, 0));
    from.set_port(0);
    let socket = UdpSocket::bind(from)?;
    let mut to = remote;
    if to.port() == 0 {
        // connect(2) is particular about ports, routing is not.
        to.set_port(remanence_rnic::device::ROCE_PORT);
    }
    socket.connect(to)?;
    Ok(socket.local_addr()?.ip())
}

/// The ports that the system gives out, as the kernel's RDMA-CM takes them.
const EPHEMERAL: std::ops::Range<u32> = 32768..61000;

/// A port that this process did not use lately.
pub(super) fn ephemeral_port() -> u16 {
    static ROVER: AtomicU32 = AtomicU32::new(0);
    let mut last = ROVER.load(Ordering::Relaxed);
    loop {
        let next = match last {
            0 => EPHEMERAL.start + random() % (EPHEMERAL.end - EPHEMERAL.start),
            last if last + 1 < EPHEMERAL.end => last + 1,
            _ => EPHEMERAL.start,
        };
        match ROVER.compare_exchange(last, next, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return next as u16,
            Err(current) => last = current,
        }
    }
}

/// The standard library's own source of random keys, another one each time. A forked child goes on where its parent
/// was, which only costs it a few tries.
fn random() -> u32 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_way_through_c() {
        for text in ["10.1.2.3:7471", "[fe80::1%7]:80", "[2001:db8::5]:0"] {
            let addr: SocketAddr = text.parse().unwrap();
            let storage = storage(addr);
            // SAFETY: a whole address.
            assert_eq!(unsafe { read((&raw const storage).cast()) }, Some(addr));
        }
        let none = sockaddr_storage::zeroed();
        // SAFETY: null is allowed, and a family of zero is none that we know.
        unsafe {
            assert_eq!(read(std::ptr::null()), None);
            assert_eq!(read((&raw const none).cast()), None);
        }
    }

    #[test]
    fn the_routing_table_leads_home_to_the_loopback_address() {
        let home = "127.0.0.1:0".parse().unwrap();
        assert_eq!(route(None, home).unwrap(), loopback(home));
        assert!(is_local(home));
        assert!(!is_local("192.0.2.1:0".parse().unwrap()));
    }

    #[test]
    fn ports_are_in_range_and_do_not_come_back_at_once() {
        let ports: std::collections::HashSet<u16> = (0..1000).map(|_| ephemeral_port()).collect();
        assert_eq!(ports.len(), 1000);
        assert!(ports.iter().all(|&port| EPHEMERAL.contains(&u32::from(port))));
    }
}
