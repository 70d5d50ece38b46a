//! Whether anybody is there: who takes packets for a destination first, and what the kernel knows of him.
//!
//! Read first: arp(7), rtnetlink(7), and `net/core/neighbour.c` for the states of an entry. The kernel resolves a
//! neighbour (ARP, neighbour discovery) when it has a packet for it, and tells everyone who asks what came of it: no
//! privilege is needed to read its table, nor to be told of changes. To make it ask the network, a packet is sent.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, AsRawFd as _};

use crate::link::WaitFd;
use crate::sys::net;
use crate::xdp::netlink::{NeighbourWatch, Netlink, Route};

/// Where RoCEv2 listens: a firewall that lets RDMA pass lets this pass.
const ROCE_PORT: u16 = 4791;

/// Who takes packets for a destination first, and on which interface: the destination itself, or a router.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Hop {
    address: IpAddr,
    interface: u32,
}

impl fmt::Display for Hop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on interface {}", self.address, self.interface)
    }
}

/// The kernel's routes and neighbours, as they are when it is asked.
#[derive(Debug)]
pub struct Neighbours(Netlink);

impl Neighbours {
    /// A conversation with the kernel.
    ///
    /// # Errors
    /// When it has no routing netlink, or no descriptors are left.
    pub fn open() -> io::Result<Self> {
        Netlink::open().map(Self)
    }

    /// Who takes packets from `src` to `dst` first. `None` where nobody's address has to be found out: this host itself, a
    /// group, an interface without addresses of its own kind, such as a tunnel.
    ///
    /// # Errors
    /// There is no route, or the kernel does not say.
    pub fn hop(&self, src: IpAddr, dst: SocketAddr) -> io::Result<Option<Hop>> {
        let scope = match dst {
            SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() => v6.scope_id(),
            _ => 0,
        };
        match self.0.route_by(src, dst.ip(), scope)? {
            Route::Local => Ok(None),
            Route::Via { hop, .. } if is_group(hop) => Ok(None),
            Route::Via { hop, interface } => {
                let asks = self.0.interface(interface)?.asks_neighbours;
                Ok(asks.then_some(Hop { address: hop, interface }))
            }
        }
    }

    /// Whether the kernel would send to him at once: it has an address for him, may it be an old one.
    ///
    /// # Errors
    /// The kernel does not say, as those before 5.0.
    pub fn is_known(&self, hop: Hop) -> io::Result<bool> {
        self.0.neighbour_is_valid(hop.address, hop.interface)
    }
}

/// What the network does not know as one host's.
fn is_group(address: IpAddr) -> bool {
    address.is_multicast() || matches!(address, IpAddr::V4(v4) if v4.is_broadcast())
}

/// Has the kernel ask the network for whoever takes packets from `src` to `dst` first: by a datagram without contents, which
/// every RoCEv2 port drops, and which goes no further than to him.
///
/// # Errors
/// The datagram may not leave.
pub fn call(src: SocketAddr, dst: SocketAddr) -> io::Result<()> {
    let socket = net::udp_socket(dst.ip())?;
    let fd = socket.as_fd();
    let (mut from, mut to) = (src, dst);
    from.set_port(0);
    to.set_port(ROCE_PORT);
    net::bind(fd, from)?;
    let (level, name) = if dst.is_ipv4() {
        (libc::IPPROTO_IP, libc::IP_TTL)
    } else {
        (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS)
    };
    net::set_option(fd, level, name, 1)?;
    net::send_to(fd, &[], Some(&net::RawAddr::from(to))).map(drop)
}

/// News of the kernel's neighbours, from when it was opened on.
#[derive(Debug)]
pub struct Watch(NeighbourWatch);

impl Watch {
    /// # Errors
    /// As [`Neighbours::open`].
    pub fn open() -> io::Result<Self> {
        NeighbourWatch::open().map(Self)
    }

    /// What to wait on for the next news.
    #[must_use]
    pub fn wait_fd(&self) -> WaitFd {
        WaitFd { fd: self.0.fd().as_raw_fd(), events: libc::POLLIN }
    }

    /// Takes the news that there are, for whoever asks [`Neighbours::is_known`] afterwards.
    ///
    /// # Errors
    /// When the kernel does not hand them out.
    pub fn drain(&self) -> io::Result<()> {
        self.0.drain(|_, _, _| {}).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_needs_to_be_asked_for_on_this_host() {
        let neighbours = Neighbours::open().expect("every test machine has netlink");
        for (src, dst) in [("127.0.0.1", "127.0.0.1:7"), ("127.0.0.1", "127.1.2.3:7")] {
            let hop = neighbours.hop(src.parse().unwrap(), dst.parse().unwrap());
            assert_eq!(hop.expect("there is a route"), None, "{dst}");
        }
        call("127.0.0.1:0".parse().unwrap(), "127.0.0.1:7".parse().unwrap()).expect("it may leave");
    }
}
