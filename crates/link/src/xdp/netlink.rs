//! Routing netlink, as much as a link needs that sends frames itself: what an interface is, how a destination is
//! reached through it, and the MAC address of the next hop. Also what the laboratory network of the tests needs.
//!
//! Read first: `netlink(7)`, `rtnetlink(7)`. Message and attribute layouts are the kernel's
//! (`include/uapi/linux/rtnetlink.h`, `if_link.h`, `neighbour.h`), in the byte order of the machine.
#![expect(clippy::host_endian_bytes, reason = "netlink speaks the machine's own byte order")]

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::sys;
use crate::sys::descriptor::Descriptor;

/// A MAC address.
pub(crate) type Mac = [u8; 6];

const HEADER: usize = 16;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_DUMP: u16 = 0x300;
const NLM_F_EXCL: u16 = 0x200;
const NLM_F_CREATE: u16 = 0x400;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// Neighbour table notifications.
const RTMGRP_NEIGH: u32 = 4;
/// Notifications of interfaces, and of their addresses of either family.
const INTERFACE_GROUPS: u32 =
    (libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR).cast_unsigned();
/// An interface is up, and what is behind it (a cable, the other end of a pair) is too.
const IFF_LOWER_UP: u32 = 1 << 16;
/// Ask the kernel to resolve the neighbour as if it had a packet for it.
const NTF_USE: u8 = 1;
/// The gateway of a route, if it is not of the route's own address family.
const RTA_VIA: u16 = 18;
/// A neighbour in one of these states is sent to: `NUD_VALID` of `include/net/neighbour.h`.
const NUD_VALID: u16 = libc::NUD_PERMANENT
    | libc::NUD_NOARP
    | libc::NUD_REACHABLE
    | libc::NUD_PROBE
    | libc::NUD_STALE
    | libc::NUD_DELAY;
/// News taken at a time.
const DRAIN_AT_MOST: usize = 4096;
/// A nested attribute.
const NLA_F_NESTED: u16 = 1 << 15;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;
const IFLA_NET_NS_FD: u16 = 28;

/// One request under construction.
struct Request(Vec<u8>);

impl Request {
    fn new(kind: u16, flags: u16, body: &[u8]) -> Self {
        let mut bytes = vec![0; HEADER];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(flags | NLM_F_REQUEST).to_ne_bytes());
        let mut request = Self(bytes);
        request.append(body);
        request
    }

    /// Appends, padded to four bytes.
    fn append(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    fn attribute(&mut self, kind: u16, value: &[u8]) {
        let len = u16::try_from(value.len() + 4).expect("attributes are short");
        self.append(&len.to_ne_bytes().into_iter().chain(kind.to_ne_bytes()).collect::<Vec<_>>());
        self.append(value);
    }

    fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        let at = self.0.len();
        self.attribute(kind | NLA_F_NESTED, &[]);
        fill(self);
        let len = u16::try_from(self.0.len() - at).expect("attributes are short");
        self.0[at..at + 2].copy_from_slice(&len.to_ne_bytes());
    }

    fn finish(mut self) -> Vec<u8> {
        let len = u32::try_from(self.0.len()).expect("requests are short");
        self.0[..4].copy_from_slice(&len.to_ne_bytes());
        self.0
    }
}

/// The messages of one datagram: kind and body.
fn messages(datagram: &[u8]) -> Vec<(u16, &[u8])> {
    let mut rest = datagram;
    let mut found = Vec::new();
    while rest.len() >= HEADER {
        let len = u32_at(rest, 0) as usize;
        if len < HEADER || len > rest.len() {
            break;
        }
        found.push((u16_at(rest, 4), &rest[HEADER..len]));
        rest = &rest[len.next_multiple_of(4).min(rest.len())..];
    }
    found
}

/// The attributes after a fixed part of `skip` bytes.
fn attributes(body: &[u8], skip: usize) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = body.get(skip..).unwrap_or_default();
    std::iter::from_fn(move || {
        if rest.len() < 4 {
            return None;
        }
        let (len, kind) = (usize::from(u16_at(rest, 0)), u16_at(rest, 2) & !NLA_F_NESTED);
        let value = rest.get(4..len)?;
        rest = &rest[len.next_multiple_of(4).min(rest.len())..];
        Some((kind, value))
    })
}

fn attribute(body: &[u8], skip: usize, kind: u16) -> Option<&[u8]> {
    attributes(body, skip).find(|(k, _)| *k == kind).map(|(_, value)| value)
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |b| u16::from_ne_bytes(b.try_into().expect("two bytes")))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |b| u32::from_ne_bytes(b.try_into().expect("four bytes")))
}

fn family(address: IpAddr) -> u8 {
    u8::try_from(if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }).expect("small")
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(|octets| IpAddr::V4(Ipv4Addr::from(octets))),
        16 => <[u8; 16]>::try_from(bytes).ok().map(|octets| IpAddr::V6(Ipv6Addr::from(octets))),
        _ => None,
    }
}

fn index_bytes(index: u32) -> [u8; 4] {
    index.to_ne_bytes()
}

/// What an interface is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Interface {
    pub(crate) index: u32,
    pub(crate) mtu: u32,
    pub(crate) mac: Mac,
    pub(crate) up: bool,
    /// Up, with a carrier.
    pub(crate) carries: bool,
    pub(crate) loopback: bool,
    /// Its neighbours have addresses that must be found out.
    pub(crate) asks_neighbours: bool,
    /// `veth`, `bridge`, …; empty for a plain device.
    pub(crate) kind: String,
}

/// How a destination is reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Route {
    /// It is this host.
    Local,
    /// Through this neighbour (the destination itself or a gateway), on this interface.
    Via {
        /// Whose MAC address the frame carries.
        hop: IpAddr,
        /// The index of the interface that the frame leaves by.
        interface: u32,
    },
}

/// What the kernel knows of a neighbour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Neighbour {
    /// Its MAC address.
    Known(Mac),
    /// Being asked for, or never heard of.
    Unknown,
    /// It did not answer.
    Failed,
}

/// A conversation with the kernel's routing.
#[derive(Debug)]
pub(crate) struct Netlink(Descriptor);

impl Netlink {
    pub(crate) fn open() -> io::Result<Self> {
        sys::netlink(0, false).map(Self)
    }

    /// Sends a request and collects the answers until the kernel says that it is done.
    fn ask(&self, request: Request, dump: bool) -> io::Result<Vec<(u16, Vec<u8>)>> {
        let mut request = request.finish();
        let flags = u16_at(&request, 6) | if dump { NLM_F_DUMP } else { NLM_F_ACK };
        request[6..8].copy_from_slice(&flags.to_ne_bytes());
        sys::send(&self.0, &request)?;
        let mut answers = Vec::new();
        let mut buffer = vec![0; 32 << 10];
        loop {
            let len = sys::receive(&self.0, &mut buffer)?;
            for (kind, body) in messages(&buffer[..len]) {
                match kind {
                    NLMSG_DONE => return Ok(answers),
                    NLMSG_ERROR => {
                        return match u32_at(body, 0).cast_signed() {
                            0 => Ok(answers),
                            error => Err(io::Error::from_raw_os_error(-error)),
                        };
                    }
                    _ => answers.push((kind, body.to_vec())),
                }
            }
        }
    }

    /// Looks an interface up.
    pub(crate) fn interface(&self, index: u32) -> io::Result<Interface> {
        let answers = self.ask(Request::new(libc::RTM_GETLINK, 0, &ifinfomsg(index, false)), false)?;
        let body = &answers.first().ok_or(io::ErrorKind::NotFound)?.1;
        let info = attribute(body, 16, libc::IFLA_LINKINFO);
        let kind = info.and_then(|info| attribute(info, 0, IFLA_INFO_KIND)).unwrap_or_default();
        Ok(Interface {
            index,
            mtu: attribute(body, 16, libc::IFLA_MTU).map_or(0, |mtu| u32_at(mtu, 0)),
            mac: attribute(body, 16, libc::IFLA_ADDRESS)
                .and_then(|mac| mac.try_into().ok())
                .unwrap_or_default(),
            up: u32_at(body, 8) & libc::IFF_UP.cast_unsigned() != 0,
            carries: u32_at(body, 8) & IFF_LOWER_UP != 0,
            loopback: u32_at(body, 8) & libc::IFF_LOOPBACK.cast_unsigned() != 0,
            asks_neighbours: u32_at(body, 8) & (libc::IFF_NOARP | libc::IFF_LOOPBACK).cast_unsigned() == 0,
            kind: String::from_utf8_lossy(kind).trim_end_matches('\0').to_owned(),
        })
    }

    /// The addresses of an interface, in the kernel's order.
    pub(crate) fn addresses(&self, index: u32) -> io::Result<Vec<IpAddr>> {
        let answers = self.ask(Request::new(libc::RTM_GETADDR, 0, &[0; 8]), true)?;
        let of_interface = answers.iter().filter(|(_, body)| u32_at(body, 4) == index);
        let found = of_interface.filter_map(|(_, body)| {
            attribute(body, 8, libc::IFA_LOCAL)
                .or_else(|| attribute(body, 8, libc::IFA_ADDRESS))
                .and_then(address)
        });
        Ok(found.collect())
    }

    /// How `to` is reached from `src`. The kernel is not told an interface: given one, it would take any
    /// destination without a route for a neighbour on that.
    pub(crate) fn route(&self, src: IpAddr, to: IpAddr) -> io::Result<Route> {
        self.route_by(src, to, 0)
    }

    /// The same, by an interface if it is not 0: a link-local address means nothing without one.
    pub(crate) fn route_by(&self, src: IpAddr, to: IpAddr, interface: u32) -> io::Result<Route> {
        let mut body = [0; 12];
        body[0] = family(to);
        let bits = if to.is_ipv4() { 32 } else { 128 };
        [body[1], body[2]] = [bits; 2];
        let mut request = Request::new(libc::RTM_GETROUTE, 0, &body);
        request.attribute(libc::RTA_DST, &octets(to));
        request.attribute(libc::RTA_SRC, &octets(src));
        if interface != 0 {
            request.attribute(libc::RTA_OIF, &index_bytes(interface));
        }
        let answers = self.ask(request, false)?;
        let body = &answers.first().ok_or(io::ErrorKind::NetworkUnreachable)?.1;
        if body.get(7) == Some(&libc::RTN_LOCAL) {
            return Ok(Route::Local);
        }
        // A gateway of another family comes with its family in front.
        let via = attribute(body, 12, RTA_VIA).and_then(|via| address(via.get(2..)?));
        let hop = attribute(body, 12, libc::RTA_GATEWAY).and_then(address).or(via).unwrap_or(to);
        let interface = attribute(body, 12, libc::RTA_OIF).map_or(0, |oif| u32_at(oif, 0));
        Ok(Route::Via { hop, interface })
    }

    /// What the kernel knows of `hop` now.
    pub(crate) fn neighbour(&self, hop: IpAddr, index: u32) -> io::Result<Neighbour> {
        let entry = self.neighbour_entry(hop, index)?;
        Ok(entry.and_then(|body| parse_neighbour(&body)).map_or(Neighbour::Unknown, |n| n.2))
    }

    /// Whether the kernel would send to `hop` without asking for it first.
    pub(crate) fn neighbour_is_valid(&self, hop: IpAddr, index: u32) -> io::Result<bool> {
        let entry = self.neighbour_entry(hop, index)?;
        Ok(entry.is_some_and(|body| u16_at(&body, 8) & NUD_VALID != 0))
    }

    /// The entry of the kernel's table, a `struct ndmsg` with attributes.
    fn neighbour_entry(&self, hop: IpAddr, index: u32) -> io::Result<Option<Vec<u8>>> {
        let mut request = Request::new(libc::RTM_GETNEIGH, 0, &ndmsg(hop, index, 0));
        request.attribute(libc::NDA_DST, &octets(hop));
        match self.ask(request, false) {
            Ok(answers) => Ok(answers.into_iter().next().map(|(_, body)| body)),
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Makes the kernel ask the network for `hop` (ARP or neighbour discovery).
    pub(crate) fn resolve(&self, hop: IpAddr, index: u32) -> io::Result<()> {
        let mut request = Request::new(libc::RTM_NEWNEIGH, NLM_F_CREATE, &ndmsg(hop, index, NTF_USE));
        request.attribute(libc::NDA_DST, &octets(hop));
        self.ask(request, false).map(drop)
    }

    /// Makes a pair of virtual Ethernet interfaces, `name` here and `peer` in the namespace `peer_namespace`.
    pub(crate) fn add_veth(&self, name: &str, peer: &str, peer_namespace: i32, mtu: u32) -> io::Result<()> {
        let mut request = Request::new(libc::RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, &ifinfomsg(0, false));
        request.attribute(libc::IFLA_IFNAME, &c_string(name));
        request.attribute(libc::IFLA_MTU, &index_bytes(mtu));
        request.nest(libc::IFLA_LINKINFO, |request| {
            request.attribute(IFLA_INFO_KIND, &c_string("veth"));
            request.nest(IFLA_INFO_DATA, |request| {
                request.nest(VETH_INFO_PEER, |request| {
                    request.append(&ifinfomsg(0, false));
                    request.attribute(libc::IFLA_IFNAME, &c_string(peer));
                    request.attribute(libc::IFLA_MTU, &index_bytes(mtu));
                    request.attribute(IFLA_NET_NS_FD, &peer_namespace.to_ne_bytes());
                });
            });
        });
        self.ask(request, false).map(drop)
    }

    /// Gives an interface an address.
    pub(crate) fn add_address(&self, index: u32, address: IpAddr, prefix: u8) -> io::Result<()> {
        // No duplicate address detection: the address is to be usable at once.
        let flags = u8::try_from(libc::IFA_F_NODAD).expect("2");
        let [i0, i1, i2, i3] = index_bytes(index);
        let body = [family(address), prefix, flags, 0, i0, i1, i2, i3];
        let mut request = Request::new(libc::RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, &body);
        request.attribute(libc::IFA_LOCAL, &octets(address));
        request.attribute(libc::IFA_ADDRESS, &octets(address));
        self.ask(request, false).map(drop)
    }

    /// Brings an interface up.
    pub(crate) fn set_up(&self, index: u32) -> io::Result<()> {
        self.ask(Request::new(libc::RTM_NEWLINK, 0, &ifinfomsg(index, true)), false).map(drop)
    }
}

impl Netlink {
    /// Takes an interface down.
    pub(crate) fn set_down(&self, index: u32) -> io::Result<()> {
        let mut body = ifinfomsg(index, false);
        // Of the flags, this one is to change, to what it is not among.
        body[12..16].copy_from_slice(&libc::IFF_UP.to_ne_bytes());
        self.ask(Request::new(libc::RTM_NEWLINK, 0, &body), false).map(drop)
    }
}

/// News of the neighbour table.
#[derive(Debug)]
pub(crate) struct NeighbourWatch(Descriptor);

impl NeighbourWatch {
    pub(crate) fn open() -> io::Result<Self> {
        sys::netlink(RTMGRP_NEIGH, true).map(Self)
    }

    pub(crate) fn fd(&self) -> &Descriptor {
        &self.0
    }

    /// Reports what has changed since the last call: interface, neighbour, state. False if news was lost.
    pub(crate) fn drain(&self, mut report: impl FnMut(u32, IpAddr, Neighbour)) -> io::Result<bool> {
        let mut buffer = [0; 8 << 10];
        loop {
            let len = match sys::receive(&self.0, &mut buffer) {
                Ok(len) => len,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => return Ok(false),
                Err(e) => return Err(e),
            };
            for (kind, body) in messages(&buffer[..len]) {
                if kind == libc::RTM_NEWNEIGH
                    && let Some((index, hop, state)) = parse_neighbour(body)
                {
                    report(index, hop, state);
                }
            }
        }
    }
}

/// News of interfaces and their addresses.
#[derive(Debug)]
pub(crate) struct InterfaceWatch(Descriptor);

impl InterfaceWatch {
    pub(crate) fn open() -> io::Result<Self> {
        sys::netlink(INTERFACE_GROUPS, true).map(Self)
    }

    pub(crate) fn fd(&self) -> &Descriptor {
        &self.0
    }

    /// Takes what there is; false if some was lost, which to who reads afresh what is true is no other news than the rest.
    pub(crate) fn drain(&self) -> io::Result<bool> {
        let mut buffer = [0; 8 << 10];
        let mut all = true;
        // Whoever changes addresses for ever does not keep us here: what is left makes the descriptor readable.
        for _ in 0..DRAIN_AT_MOST {
            match sys::receive(&self.0, &mut buffer) {
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => all = false,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(all)
    }
}

fn c_string(text: &str) -> Vec<u8> {
    text.bytes().chain([0]).collect()
}

/// `struct ifinfomsg`.
fn ifinfomsg(index: u32, up: bool) -> [u8; 16] {
    let mut body = [0; 16];
    body[4..8].copy_from_slice(&index.to_ne_bytes());
    if up {
        let flag = libc::IFF_UP.to_ne_bytes();
        body[8..12].copy_from_slice(&flag);
        body[12..16].copy_from_slice(&flag);
    }
    body
}

/// `struct ndmsg`.
fn ndmsg(hop: IpAddr, index: u32, flags: u8) -> [u8; 12] {
    let mut body = [0; 12];
    body[0] = family(hop);
    body[4..8].copy_from_slice(&index.to_ne_bytes());
    body[10] = flags;
    body
}

fn parse_neighbour(body: &[u8]) -> Option<(u32, IpAddr, Neighbour)> {
    let hop = address(attribute(body, 12, libc::NDA_DST)?)?;
    let state = u16_at(body, 8);
    let mac = attribute(body, 12, libc::NDA_LLADDR).and_then(|mac| Mac::try_from(mac).ok());
    // NUD_STALE and the states after it still carry the last known address, and it is used meanwhile.
    let neighbour = match mac {
        _ if state & (libc::NUD_FAILED) != 0 => Neighbour::Failed,
        Some(mac) if state & libc::NUD_INCOMPLETE == 0 => Neighbour::Known(mac),
        _ => Neighbour::Unknown,
    };
    Some((u32_at(body, 4), hop, neighbour))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nested_attribute_is_read_back_as_it_was_built() {
        let mut request = Request::new(16, 0, &[7; 16]);
        request.attribute(3, b"odd");
        request.nest(18, |request| request.attribute(1, b"veth"));
        let bytes = request.finish();
        let all = messages(&bytes);
        let [(16, body)] = all.as_slice() else { panic!("one message: {all:?}") };
        assert_eq!(attribute(body, 16, 3), Some(&b"odd"[..]));
        let nest = attribute(body, 16, 18).expect("the nest");
        assert_eq!(attribute(nest, 0, 1), Some(&b"veth"[..]));
        assert_eq!(attribute(body, 16, 4), None);
    }

    #[test]
    fn cut_and_lying_messages_end_the_parse() {
        let mut bytes = Request::new(16, 0, &[0; 16]).finish();
        for len in 0..bytes.len() {
            assert!(messages(&bytes[..len]).is_empty());
        }
        bytes[0] = 3;
        assert!(messages(&bytes).is_empty(), "shorter than its header");
        assert_eq!(attributes(&[0xFF, 0xFF, 0, 0, 1], 0).count(), 0, "longer than the rest");
        assert_eq!(attributes(&[0, 0, 0, 0, 1, 1, 1, 1], 0).count(), 0, "of no length");
    }

    #[test]
    fn the_loopback_interface_is_what_it_is() {
        let netlink = Netlink::open().unwrap();
        let index = sys::interface_index("lo").unwrap();
        let lo = netlink.interface(index).unwrap();
        assert_eq!((lo.index, lo.mac), (index, [0; 6]));
        assert!(lo.mtu >= 1500);
        assert!(sys::interface_index("no-such-if").is_err());
    }
}
