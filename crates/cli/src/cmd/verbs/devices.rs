//! The devices that the drop-in libraries show, and what the kernel would say of them below /sys.
//!
//! One for each network interface that is up and has an address, loopback last. The libraries decide, by `device.rs` and
//! `query.rs` of `remanence-ibverbs`; a test of theirs compares what they say with what is here.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv6Addr, UdpSocket};

use remanence_link::route::{self, Interface};

/// Entries of a GID table, used or not.
pub(super) const GIDS: usize = 16;

/// A device as `libibverbs` would show it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Device {
    pub(crate) name: String,
    /// None of the device in shared memory.
    pub(crate) interface: Option<String>,
    /// The interface's number, which also is that of its uverbs node.
    pub(super) index: u32,
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) mtu: usize,
    pub(super) loopback: bool,
}

impl Device {
    /// The one device of a process whose packets travel in shared memory.
    pub(super) fn in_shared_memory() -> Self {
        Self {
            name: "rem_shm".into(),
            interface: None,
            index: 0,
            addresses: Vec::new(),
            mtu: usize::MAX,
            loopback: false,
        }
    }

    /// Whether a setting means this one.
    pub(super) fn is_called(&self, name: &str) -> bool {
        self.name == name || self.interface.as_deref() == Some(name)
    }

    /// Its GID table without the empty entries: the addresses, IPv4 as the mapped form.
    pub(super) fn gids(&self) -> Vec<Ipv6Addr> {
        let gid = |address: &IpAddr| match address {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => *v6,
        };
        self.addresses.iter().take(GIDS).map(gid).collect()
    }

    /// Its GUID: the interface's hardware address as an EUI-64.
    pub(super) fn guid(&self) -> [u8; 8] {
        match &self.interface {
            Some(name) => eui64(route::hardware_address(name).unwrap_or_default()),
            None => [2, 0, 0, 0xff, 0xfe, 0, 0, 1],
        }
    }

    /// Its speed as sysfs writes it. What has no speed of its own, as loopback and veth, is as fast as the processor.
    pub(super) fn rate(&self) -> &'static str {
        let speed = |name| fs::read_to_string(format!("/sys/class/net/{name}/speed")).ok();
        let mbps = self.interface.as_ref().and_then(speed).and_then(|text| text.trim().parse().ok());
        rate_of(mbps.filter(|mbps| *mbps > 0).unwrap_or(10_000))
    }

    /// The payload of one packet: the largest of the sizes of the specification that fits with its headers.
    pub(crate) fn path_mtu(&self) -> usize {
        // IPv6, UDP, BTH, the longest extension headers, and the ICRC.
        let room = self.mtu.saturating_sub(40 + 8 + 12 + 28 + 4);
        [4096, 2048, 1024, 512].into_iter().find(|size| *size <= room).unwrap_or(256)
    }
}

/// All devices of this network namespace.
pub(crate) fn list() -> io::Result<Vec<Device>> {
    // An address that the kernel still looks for on the network cannot be used yet.
    let usable = |interface: &Interface| UdpSocket::bind(interface.socket_addr(0)).is_ok();
    Ok(from(route::interfaces()?.into_iter().filter(|i| i.up), usable))
}

fn from(interfaces: impl Iterator<Item = Interface>, usable: impl Fn(&Interface) -> bool) -> Vec<Device> {
    let mut by_rank = BTreeMap::new();
    for interface in interfaces {
        let device = by_rank.entry((interface.loopback, interface.index)).or_insert_with(|| Device {
            name: format!("rem_{}", interface.name),
            interface: Some(interface.name.clone()),
            index: interface.index,
            addresses: Vec::new(),
            mtu: interface.mtu,
            loopback: interface.loopback,
        });
        if usable(&interface) && !device.addresses.contains(&interface.addr) {
            device.addresses.push(interface.addr);
        }
    }
    let mut devices: Vec<Device> = by_rank.into_values().collect();
    for device in &mut devices {
        device.addresses.sort_by_key(|addr| match addr {
            IpAddr::V4(_) => 0,
            IpAddr::V6(v6) if v6.is_unicast_link_local() => 2,
            IpAddr::V6(_) => 1,
        });
    }
    devices
}

/// Those that a program has which names none: loopback is one of them only where no other leads anywhere.
pub(super) fn unnamed(mut all: Vec<Device>) -> Vec<Device> {
    let of_its_link = |addr: &IpAddr| match addr {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    if all.iter().any(|device| !device.loopback && !device.addresses.iter().all(of_its_link)) {
        all.retain(|device| !device.loopback);
    }
    all
}

fn eui64([a, b, c, d, e, f]: [u8; 6]) -> [u8; 8] {
    [a ^ 2, b, c, 0xff, 0xfe, d, e, f]
}

/// How the kernel writes the rate of a port that carries so many Mbit/s.
fn rate_of(mbps: u32) -> &'static str {
    let table = [
        (2_500, "2.5 Gb/sec (1X SDR)"),
        (5_000, "5 Gb/sec (1X DDR)"),
        (10_000, "10 Gb/sec (1X QDR)"),
        (25_000, "25 Gb/sec (1X EDR)"),
        (40_000, "40 Gb/sec (4X QDR)"),
        (50_000, "50 Gb/sec (1X HDR)"),
        (100_000, "100 Gb/sec (4X EDR)"),
        (200_000, "200 Gb/sec (4X HDR)"),
        (400_000, "400 Gb/sec (4X NDR)"),
    ];
    table.iter().find(|row| row.0 >= mbps).or(table.last()).expect("the table is not empty").1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, index: u32, addr: &str) -> Interface {
        let addr = addr.parse().expect("an address");
        Interface { name: name.into(), index, addr, scope_id: 0, mtu: 1500, up: true, loopback: name == "lo" }
    }

    #[test]
    fn one_device_for_each_interface_with_ipv4_first_and_loopback_last() {
        let all = [
            interface("lo", 1, "127.0.0.1"),
            interface("eth1", 3, "192.0.2.9"),
            interface("eth0", 2, "fe80::1"),
            interface("lo", 1, "::1"),
            interface("eth0", 2, "2001:db8::1"),
            interface("eth0", 2, "192.0.2.2"),
            interface("eth1", 3, "2001:db8::2"),
        ];
        let tentative = IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 2]);
        let devices = from(all.into_iter(), |interface| interface.addr != tentative);
        let names: Vec<_> = devices.iter().map(|d| (d.name.as_str(), d.addresses.len())).collect();
        assert_eq!(names, [("rem_eth0", 3), ("rem_eth1", 1), ("rem_lo", 2)]);
        let gids: Vec<String> = devices[0].gids().iter().map(ToString::to_string).collect();
        assert_eq!(gids, ["::ffff:192.0.2.2", "2001:db8::1", "fe80::1"]);
        assert_eq!(devices[0].path_mtu(), 1024);
        assert!(
            devices[0].is_called("eth0") && devices[0].is_called("rem_eth0") && !devices[0].is_called("rem")
        );
    }

    #[test]
    fn loopback_is_left_out_where_something_leads_elsewhere() {
        let names = |all: &[Interface]| {
            let all = unnamed(from(all.iter().cloned(), |_| true));
            all.into_iter().map(|device| device.name).collect::<Vec<_>>()
        };
        let (lo, tun0) = (interface("lo", 1, "127.0.0.1"), interface("tun0", 2, "fe80::1"));
        assert_eq!(names(std::slice::from_ref(&lo)), ["rem_lo"]);
        assert_eq!(names(&[lo.clone(), tun0.clone()]), ["rem_tun0", "rem_lo"]);
        assert_eq!(names(&[lo, tun0, interface("eth0", 3, "192.0.2.2")]), ["rem_tun0", "rem_eth0"]);
    }

    #[test]
    fn a_guid_is_the_hardware_address_as_an_eui_64() {
        assert_eq!(eui64([2, 0xfc, 0, 0, 0, 1]), [0, 0xfc, 0, 0xff, 0xfe, 0, 0, 1]);
        assert_eq!(eui64([0; 6]), [2, 0, 0, 0xff, 0xfe, 0, 0, 0]);
    }
}
