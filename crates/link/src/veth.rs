//! A laboratory network on one machine: two network namespaces joined by a pair of virtual Ethernet interfaces.
//!
//! For tests and benches of everything that needs a real interface. Nothing has a name outside this process and
//! nothing outlives it, even killed: the namespaces are held by descriptors alone. Needs root.
#![expect(unsafe_code, reason = "namespaces are entered by syscalls without pointers")]

use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::path::Path;

use crate::xdp::{netlink::Netlink, sys};

/// The two ends of the cable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// 10.88.0.1 and fd88::1.
    Left,
    /// 10.88.0.2 and fd88::2.
    Right,
}

impl End {
    /// The other end.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Left => Self::Right,
            Self::Right => Self::Left,
        }
    }

    /// This end's IPv4 address.
    #[must_use]
    pub fn ipv4(self) -> IpAddr {
        [10, 88, 0, self.host()].into()
    }

    /// This end's IPv6 address.
    #[must_use]
    pub fn ipv6(self) -> IpAddr {
        [0xFD88, 0, 0, 0, 0, 0, 0, u16::from(self.host())].into()
    }

    const fn host(self) -> u8 {
        match self {
            Self::Left => 1,
            Self::Right => 2,
        }
    }
}

/// Two namespaces and the pair of interfaces between them.
#[derive(Debug)]
pub struct Veth {
    namespaces: [File; 2],
}

impl Veth {
    /// The interface's name, at both ends.
    pub const INTERFACE: &'static str = "veth0";

    /// Makes namespaces and interfaces of this MTU, up and addressed.
    ///
    /// # Errors
    /// `PermissionDenied` without root; otherwise what the kernel says.
    pub fn new(mtu: u32) -> io::Result<Self> {
        let left = in_new_thread(new_namespace)?;
        let right = in_new_thread(new_namespace)?;
        let veth = Self { namespaces: [left, right] };
        let peer = veth.namespaces[1].as_raw_fd();
        veth.within(End::Left, move || {
            Netlink::open()?.add_veth(Self::INTERFACE, Self::INTERFACE, peer, mtu)
        })?;
        for end in [End::Left, End::Right] {
            veth.within(end, move || {
                let netlink = Netlink::open()?;
                netlink.set_up(sys::interface_index("lo")?)?;
                let index = sys::interface_index(Self::INTERFACE)?;
                netlink.add_address(index, end.ipv4(), 24)?;
                netlink.add_address(index, end.ipv6(), 64)?;
                netlink.set_up(index)
            })?;
        }
        Ok(veth)
    }

    /// Moves the calling thread into the namespace of one end, for good: sockets that it opens from now on are
    /// there, and so are the processes and threads that it starts.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn enter(&self, end: End) -> io::Result<()> {
        // SAFETY: no pointers; the descriptor is open.
        let result = unsafe { libc::setns(self.namespaces[end as usize].as_raw_fd(), libc::CLONE_NEWNET) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Takes the interface at one end down, or up again: the other end then has no carrier, or has one again.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn set_up(&self, end: End, up: bool) -> io::Result<()> {
        self.within(end, || {
            let (netlink, index) = (Netlink::open()?, sys::interface_index(Self::INTERFACE)?);
            if up { netlink.set_up(index) } else { netlink.set_down(index) }
        })
    }

    /// Runs `act` in a thread of its own at one end.
    ///
    /// # Errors
    /// What `act` returns, or the kernel when the thread cannot enter.
    pub fn within<T: Send>(&self, end: End, act: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        in_new_thread(|| {
            self.enter(end)?;
            act()
        })
    }
}

fn in_new_thread<T: Send>(act: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| scope.spawn(act).join().expect("the thread does not panic"))
}

/// Runs `act` in a thread of its own in a new namespace that has nothing but a loopback interface, which is up. The kernel
/// has no news of its own there, while those of a [`Veth`] (carrier, link-local address, detection of duplicate addresses)
/// come for seconds after it was made.
#[cfg(test)]
pub(crate) fn with_loopback_alone<T: Send>(act: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    in_new_thread(|| {
        drop(new_namespace()?);
        Netlink::open()?.set_up(sys::interface_index("lo")?)?;
        act()
    })
}

/// Moves the calling thread into a new namespace and returns a hold on that.
fn new_namespace() -> io::Result<File> {
    // SAFETY: no pointers; only this thread, which ends soon, moves.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } < 0 {
        return Err(io::Error::last_os_error());
    }
    File::open(Path::new("/proc/thread-self/ns/net"))
}
