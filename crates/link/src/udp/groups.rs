//! Multicast groups: a receiving socket of its own for each group and interface.
//!
//! The sockets of the local addresses never see multicast, as they are bound to their addresses. One bound to the
//! group does, and only that group's: so the destination of what arrives needs no control data. Of multicast the
//! kernel gives every socket a copy, whichever process it belongs to, as long as all of them set `SO_REUSEADDR`; the
//! steering of the shared port, which picks one socket for each datagram, has no part in it, nor has the user that a
//! process runs as. Who may join what is the kernel's business, and so is telling the routers (IGMP, MLD).
//!
//! Read first: ip(7), ipv6(7).

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use super::Options;
use super::rx::Receiver;
use crate::route::Interface;

/// The sockets of one group.
#[derive(Debug)]
struct Group {
    addr: IpAddr,
    receivers: Vec<Receiver>,
}

/// The groups that a link has joined.
#[derive(Debug, Default)]
pub(super) struct Groups(Vec<Group>);

impl Groups {
    /// Joins, on each of the interfaces that carries addresses of the group's IP version.
    pub(super) fn join<'a>(
        &mut self,
        addr: IpAddr,
        port: u16,
        interfaces: impl Iterator<Item = &'a Interface>,
        options: &Options,
    ) -> io::Result<()> {
        if !addr.is_multicast() {
            let what = format!("{addr} is no multicast group");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        if self.0.iter().any(|group| group.addr == addr) {
            return Ok(());
        }
        let mut indices: Vec<u32> =
            interfaces.filter(|i| i.addr.is_ipv4() == addr.is_ipv4()).map(|i| i.index).collect();
        indices.sort_unstable();
        indices.dedup();
        if indices.is_empty() {
            return Err(io::Error::new(
                io::ErrorKind::AddrNotAvailable,
                format!("no address of the link is of the IP version of {addr}"),
            ));
        }
        let receivers = indices.into_iter().map(|index| {
            Receiver::open_group(socket_addr(addr, port, index), index, options)
                .map_err(|e| io::Error::new(e.kind(), format!("cannot join the multicast group {addr}: {e}")))
        });
        self.0.push(Group { addr, receivers: receivers.collect::<io::Result<_>>()? });
        Ok(())
    }

    /// Leaves: the memberships go with the sockets.
    pub(super) fn leave(&mut self, addr: IpAddr) {
        self.0.retain(|group| group.addr != addr);
    }

    pub(super) fn receivers(&self) -> impl Iterator<Item = &Receiver> {
        self.0.iter().flat_map(|group| &group.receivers)
    }

    /// How many sockets there are.
    pub(super) fn count(&self) -> usize {
        self.0.iter().map(|group| group.receivers.len()).sum()
    }

    /// One of them.
    pub(super) fn receiver(&mut self, index: usize) -> Option<&mut Receiver> {
        self.0.iter_mut().flat_map(|group| &mut group.receivers).nth(index)
    }
}

fn socket_addr(addr: IpAddr, port: u16, interface: u32) -> SocketAddr {
    match addr {
        IpAddr::V4(_) => SocketAddr::new(addr, port),
        IpAddr::V6(ip) => SocketAddrV6::new(ip, port, 0, interface).into(),
    }
}
