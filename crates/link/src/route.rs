//! Which local address reaches a peer, and how large a packet may be on the way.
//!
//! The kernel knows; a connected UDP socket that never sends anything is how to ask it without privileges.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::AsFd;

use crate::sys::descriptor::Descriptor;
use crate::sys::{interfaces, net};

/// An address of this host and the interface that carries it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interface {
    /// The interface's name.
    pub name: String,
    /// The number that the kernel gives the interface.
    pub index: u32,
    /// One of its addresses; an interface with several appears several times.
    pub addr: IpAddr,
    /// The scope of an IPv6 link-local address, otherwise 0.
    pub scope_id: u32,
    /// The largest IP packet it sends in one piece.
    pub mtu: usize,
    /// An administrator has switched the interface on, which says nothing of its carrier.
    pub up: bool,
    /// The loopback interface.
    pub loopback: bool,
}

impl Interface {
    /// A socket address on this address, with its scope.
    #[must_use]
    pub fn socket_addr(&self, port: u16) -> SocketAddr {
        match self.addr {
            IpAddr::V4(_) => SocketAddr::new(self.addr, port),
            IpAddr::V6(ip) => SocketAddrV6::new(ip, port, 0, self.scope_id).into(),
        }
    }
}

/// How a peer is reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Route {
    /// The local address from which packets to the peer leave.
    pub source: IpAddr,
    /// The largest IP packet that passes, as far as this host knows.
    pub mtu: usize,
}

/// All addresses of this host (of its network namespace), with their interfaces.
///
/// # Errors
/// When the kernel refuses to list them.
pub fn interfaces() -> io::Result<Vec<Interface>> {
    interfaces::list()
}

/// The hardware address of an interface of this network namespace; zeros where it has none, as loopback. (What sysfs says
/// may be of another namespace, the one in which it was mounted.)
///
/// # Errors
/// There is no such interface.
pub fn hardware_address(interface: &str) -> io::Result<[u8; 6]> {
    interfaces::hardware_address(interface)
}

/// The interface that carries `addr`.
///
/// # Errors
/// `AddrNotAvailable` if no interface of this host does.
pub fn interface_of(addr: IpAddr) -> io::Result<Interface> {
    let all = interfaces::list()?;
    if let Some(found) = all.iter().find(|i| i.addr == addr) {
        return Ok(found.clone());
    }
    // All of 127.0.0.0/8 is local, though only 127.0.0.1 is listed.
    if let Some(lo) =
        all.into_iter().find(|i| i.loopback && i.addr.is_ipv4() && addr.is_ipv4() && addr.is_loopback())
    {
        return Ok(Interface { addr, ..lo });
    }
    Err(io::Error::new(
        io::ErrorKind::AddrNotAvailable,
        format!("no interface of this host has the address {addr}"),
    ))
}

/// How `peer` is reached, from any local address.
///
/// # Errors
/// When there is no route.
pub fn to(peer: IpAddr) -> io::Result<Route> {
    let socket = net::udp_socket(peer)?;
    ask(&socket, SocketAddr::new(peer, 9))
}

/// The largest packet that passes from the local address `source` to `peer`.
///
/// # Errors
/// When there is no route, or the address is not ours.
pub fn mtu(source: SocketAddr, peer: SocketAddr) -> io::Result<usize> {
    let socket = net::udp_socket(peer.ip())?;
    let mut from = source;
    from.set_port(0);
    net::bind(socket.as_fd(), from)?;
    Ok(ask(&socket, peer)?.mtu)
}

/// The largest packet that passes to `peer`.
pub(crate) fn to_mtu(peer: SocketAddr) -> io::Result<usize> {
    ask(&net::udp_socket(peer.ip())?, peer).map(|route| route.mtu)
}

fn ask(socket: &Descriptor, peer: SocketAddr) -> io::Result<Route> {
    net::connect(socket.as_fd(), peer)?;
    let (level, name) =
        if peer.is_ipv4() { (libc::IPPROTO_IP, libc::IP_MTU) } else { (libc::IPPROTO_IPV6, libc::IPV6_MTU) };
    let mtu = net::get_option(socket.as_fd(), level, name)?;
    let mtu =
        usize::try_from(mtu).map_err(|_| io::Error::other(format!("the kernel reports an MTU of {mtu}")))?;
    Ok(Route { source: net::local_addr(socket.as_fd())?.ip(), mtu })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn loopback_reaches_itself_with_its_own_mtu() {
        let lo =
            interface_of(Ipv4Addr::LOCALHOST.into()).expect("every test machine has a loopback interface");
        let route = to(Ipv4Addr::LOCALHOST.into()).expect("a route to oneself");
        assert!(lo.loopback);
        assert_eq!(route.source, lo.addr);
        assert_eq!(route.mtu, lo.mtu.min(65_535), "an IPv4 packet has a 16-bit length");
        let whole_net = interface_of(Ipv4Addr::new(127, 3, 2, 1).into()).expect("127/8 is local");
        assert_eq!(whole_net.index, lo.index);
    }

    #[test]
    fn a_foreign_address_is_refused_by_name() {
        let err = interface_of(Ipv4Addr::new(192, 0, 2, 77).into()).expect_err("TEST-NET-1 is nobody's");
        assert!(err.to_string().contains("192.0.2.77"), "{err}");
    }
}
