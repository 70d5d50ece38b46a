//! The devices that the drop-in libraries show, and what the kernel would say of them below /sys.
//!
//! One for each network interface that is up and has an address, those that reach other hosts first. The libraries decide
//! (`remanence-ibverbs`, `device.rs`); a test of theirs compares this view with what they answer.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv6Addr};

use remanence_link::route::{self, Interface};

/// Entries of a GID table, used or not.
pub(super) const GIDS: usize = 16;

/// One device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Device {
    pub(crate) name: String,
    pub(crate) interface: String,
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) mtu: usize,
}

impl Device {
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
        let text =
            fs::read_to_string(format!("/sys/class/net/{}/address", self.interface)).unwrap_or_default();
        eui64(&text)
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
    Ok(from(route::interfaces()?))
}

fn from(interfaces: Vec<Interface>) -> Vec<Device> {
    let (loopback, others): (Vec<_>, Vec<_>) =
        interfaces.into_iter().filter(|i| i.up).partition(|i| i.loopback);
    let mut devices: Vec<Device> = Vec::new();
    for interface in others.into_iter().chain(loopback) {
        match devices.iter_mut().find(|device| device.interface == interface.name) {
            Some(device) => device.addresses.push(interface.addr),
            None => devices.push(Device {
                name: format!("rem_{}", interface.name),
                interface: interface.name,
                addresses: vec![interface.addr],
                mtu: interface.mtu,
            }),
        }
    }
    devices
}

fn eui64(mac: &str) -> [u8; 8] {
    let mut bytes = [0; 6];
    for (byte, text) in bytes.iter_mut().zip(mac.trim().split(':')) {
        *byte = u8::from_str_radix(text, 16).unwrap_or(0);
    }
    let [a, b, c, d, e, f] = bytes;
    [a ^ 2, b, c, 0xff, 0xfe, d, e, f]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, addr: &str, up: bool) -> Interface {
        Interface {
            name: name.into(),
            index: 1,
            addr: addr.parse().expect("an address"),
            scope_id: 0,
            mtu: 1500,
            up,
            loopback: name == "lo",
        }
    }

    #[test]
    fn one_device_for_each_interface_with_an_address_and_loopback_last() {
        let devices = from(vec![
            interface("lo", "127.0.0.1", true),
            interface("eth0", "192.0.2.2", true),
            interface("eth1", "192.0.2.9", false),
            interface("lo", "::1", true),
            interface("eth0", "fe80::1", true),
        ]);
        let names: Vec<_> = devices.iter().map(|d| (d.name.as_str(), d.addresses.len())).collect();
        assert_eq!(names, [("rem_eth0", 2), ("rem_lo", 2)]);
        assert_eq!(devices[0].gids()[0].to_string(), "::ffff:192.0.2.2");
        assert_eq!(devices[0].path_mtu(), 1024);
    }

    #[test]
    fn a_guid_is_the_hardware_address_as_an_eui_64() {
        assert_eq!(eui64("02:fc:00:00:00:01\n"), [0, 0xfc, 0, 0xff, 0xfe, 0, 0, 1]);
        assert_eq!(eui64(""), [2, 0, 0, 0xff, 0xfe, 0, 0, 0]);
    }
}
