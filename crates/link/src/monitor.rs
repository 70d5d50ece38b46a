//! What becomes of an interface: its state, its MTU and its addresses, and a descriptor that is readable when they may
//! have changed.
//!
//! The kernel's news say *that* something changed; what is true now is read afresh. So it does no harm when the kernel drops
//! news because nobody took them in time (`ENOBUFS`), and a thousand changes in a row cost as many readings as somebody
//! finds time for.
//!
//! Read first: netlink(7), rtnetlink(7); `../xdp/netlink.rs` has the messages.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, AsRawFd as _};

use crate::link::WaitFd;
use crate::route::Interface;
use crate::sys::net;
use crate::xdp::netlink::{InterfaceWatch, Netlink};
use crate::xdp::sys::interface_index;

/// What an interface is at a moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct State {
    /// Packets can leave: it is up, and so is what is behind it (`IFF_LOWER_UP`).
    pub carries: bool,
    /// The largest IP packet it sends in one piece.
    pub mtu: usize,
    /// Its addresses that can be used now, one entry each: IPv4 first, global before link-local. (Those are not among them
    /// that the kernel is still asking the network about.)
    pub addresses: Vec<Interface>,
}

/// Follows an interface of the network namespace in which it was opened.
#[derive(Debug)]
pub struct Monitor {
    name: String,
    /// Of the interface: another one that gets its name later is another interface.
    index: u32,
    watch: InterfaceWatch,
}

impl Monitor {
    /// Begins to follow an interface.
    ///
    /// # Errors
    /// There is no such interface, or the kernel has no routing netlink, or no descriptors are left.
    pub fn open(name: &str) -> io::Result<Self> {
        Ok(Self { name: name.to_owned(), index: interface_index(name)?, watch: InterfaceWatch::open()? })
    }

    /// Readable when something may have changed.
    #[must_use]
    pub fn wait_fd(&self) -> WaitFd {
        WaitFd { fd: self.watch.fd().as_raw_fd(), events: libc::POLLIN }
    }

    /// Takes what stands in the descriptor's queue; what [`state`](Self::state) says later is at least as new.
    ///
    /// # Errors
    /// When the kernel gives none any more.
    pub fn drain(&self) -> io::Result<()> {
        self.watch.drain().map(drop)
    }

    /// What the interface is now; `None` when it is no more.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn state(&self) -> io::Result<Option<State>> {
        let netlink = Netlink::open()?;
        let interface = match netlink.interface(self.index) {
            Ok(interface) => interface,
            Err(e) if e.raw_os_error() == Some(libc::ENODEV) => return Ok(None),
            Err(e) => return Err(e),
        };
        let mtu = interface.mtu as usize;
        let mut addresses: Vec<Interface> = netlink
            .addresses(self.index)?
            .into_iter()
            .map(|addr| Interface {
                name: self.name.clone(),
                index: self.index,
                addr,
                scope_id: if is_link_local(addr) { self.index } else { 0 },
                mtu,
                up: interface.up,
                loopback: interface.loopback,
            })
            .filter(can_be_bound)
            .collect();
        addresses.sort_by_key(|interface| (interface.addr.is_ipv6(), is_link_local(interface.addr)));
        Ok(Some(State { carries: interface.carries, mtu, addresses }))
    }
}

fn is_link_local(addr: IpAddr) -> bool {
    matches!(addr, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// Whether the kernel lets us have an address: it does not while it still looks whether somebody else on the network has the
/// same one.
fn can_be_bound(interface: &Interface) -> bool {
    net::udp_socket(interface.addr)
        .is_ok_and(|socket| net::bind(socket.as_fd(), interface.socket_addr(0)).is_ok())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{veth, wait};

    #[test]
    fn news_that_were_lost_do_no_harm() {
        // More than the kernel keeps for a socket that nobody reads.
        const MANY: u16 = 4000;
        let seen = veth::with_loopback_alone(|| {
            let monitor = Monitor::open("lo")?;
            let is_told = || wait::poll(&[monitor.wait_fd()], Some(Duration::ZERO));
            let before = monitor.state()?.expect("it is there");
            assert!(!is_told()?, "nothing happened yet");
            let netlink = Netlink::open()?;
            for n in 0..MANY {
                let [high, low] = n.to_be_bytes();
                netlink.add_address(monitor.index, [10, 99, high, low].into(), 32)?;
            }
            assert!(is_told()?);
            assert!(!monitor.watch.drain()?, "they are more than the socket holds");
            assert!(!is_told()?, "all that is left was taken");
            let after = monitor.state()?.expect("it is there");
            netlink.add_address(monitor.index, [10, 98, 0, 1].into(), 32)?;
            assert!(is_told()?, "it is told of what comes later");
            assert!(monitor.watch.drain()?);
            Ok((before, after))
        });
        let (before, after) = match seen {
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                println!("SKIPPED: network namespaces need root: {e}");
                return;
            }
            other => other.expect("the kernel does as it is told"),
        };
        assert_eq!((before.carries, before.addresses[0].addr), (true, [127, 0, 0, 1].into()));
        assert_eq!(after.addresses.len(), before.addresses.len() + usize::from(MANY));
        assert!(after.addresses.is_sorted_by_key(|interface| interface.addr.is_ipv6()), "IPv4 first");
    }
}
