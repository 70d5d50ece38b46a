//! Numbers of the IBA that share a width get different types, so that one cannot be passed for another.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident, $repr:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[repr(transparent)]
        pub struct $name(pub $repr);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }
    };
}

number!(
    /// A local key: names an MR to its own consumer.
    Lkey, u32);
number!(
    /// A remote key: names an MR or MW to a peer.
    Rkey, u32);
number!(
    /// A partition key; RoCE uses the default partition, [`Pkey::DEFAULT`].
    Pkey, u16);
number!(
    /// A queue key, which guards UD QPs.
    Qkey, u32);

impl Pkey {
    /// The default partition, full member.
    pub const DEFAULT: Self = Self(0xffff);
}

impl Qkey {
    /// The well-known Q_Key of QP 1, the general services interface (IBA Vol 1, 3.5.3).
    pub const GSI: Self = Self(0x8001_0000);
    /// What RDMA-CM uses for the UDP port space.
    pub const RDMA_UDP: Self = Self(0x0123_4567);
}

macro_rules! number24 {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(u32);

        impl $name {
            /// The number of the low 24 bits of `value`.
            #[must_use]
            pub const fn new(value: u32) -> Self {
                Self(value & 0xff_ffff)
            }

            /// The value, 0 to 2^24 - 1.
            #[must_use]
            pub const fn value(self) -> u32 {
                self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }
    };
}

number24!(
    /// A queue pair number.
    Qpn);
number24!(
    /// A message sequence number, which the responder counts and the AETH carries.
    Msn);

impl Qpn {
    /// QP 1, the general services interface, where the communication manager listens.
    pub const GSI: Self = Self(1);
    /// The destination of a multicast packet.
    pub const MULTICAST: Self = Self(0xff_ffff);
}

/// A global identifier: on RoCEv2 an IPv6 address, or an IPv4 address as `::ffff:a.b.c.d` (Annex A17).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The GID of an IP address.
    #[must_use]
    pub fn from_ip(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(v4) => Self(v4.to_ipv6_mapped().octets()),
            IpAddr::V6(v6) => Self(v6.octets()),
        }
    }

    /// The IP address of this GID; an IPv4-mapped one comes out as IPv4.
    #[must_use]
    pub fn to_ip(self) -> IpAddr {
        let v6 = Ipv6Addr::from(self.0);
        v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
    }
}

impl From<Ipv4Addr> for Gid {
    fn from(v4: Ipv4Addr) -> Self {
        Self::from_ip(IpAddr::V4(v4))
    }
}

impl From<Ipv6Addr> for Gid {
    fn from(v6: Ipv6Addr) -> Self {
        Self(v6.octets())
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({})", Ipv6Addr::from(self.0))
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

/// A path MTU: the largest payload of one packet, in bytes. The discriminant is the verbs' encoding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Mtu {
    /// 256 bytes, the least that a path MTU may be.
    B256 = 1,
    /// Payloads of up to 512 bytes.
    B512 = 2,
    /// 1024 bytes, the largest that fits the usual Ethernet MTU of 1500.
    B1024 = 3,
    /// Payloads of up to 2048 bytes.
    B2048 = 4,
    /// 4096 bytes, the largest that a path MTU may be.
    B4096 = 5,
}

impl Mtu {
    /// Every path MTU, the smallest first.
    pub const ALL: [Self; 5] = [Self::B256, Self::B512, Self::B1024, Self::B2048, Self::B4096];

    /// The size in bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        128 << self as u8
    }

    /// The MTU of the verbs' encoding, 1 to 5.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::B256,
            2 => Self::B512,
            3 => Self::B1024,
            4 => Self::B2048,
            5 => Self::B4096,
            _ => return None,
        })
    }

    /// The largest path MTU of which a packet with all its headers fits a link MTU (Ethernet payload) of
    /// `link` bytes. 96 bytes are allowed for IP, UDP, the IBA headers that go with a payload, and the ICRC.
    #[must_use]
    pub fn fitting(link: usize) -> Option<Self> {
        Self::ALL.into_iter().rev().find(|mtu| mtu.bytes() + 96 <= link)
    }
}

impl fmt::Display for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gids_carry_both_ip_versions() {
        let v4: IpAddr = Ipv4Addr::new(10, 1, 2, 3).into();
        let v6: IpAddr = "fe80::1".parse().unwrap();
        assert_eq!(Gid::from_ip(v4).to_ip(), v4);
        assert_eq!(Gid::from_ip(v6).to_ip(), v6);
        assert_eq!(Gid::from_ip(v4).0[10..12], [0xff, 0xff]);
    }

    #[test]
    fn mtu_codes_are_those_of_the_verbs() {
        for mtu in Mtu::ALL {
            assert_eq!(Mtu::from_code(mtu as u8), Some(mtu));
        }
        assert_eq!(Mtu::B256.bytes(), 256);
        assert_eq!(Mtu::B4096.bytes(), 4096);
        assert_eq!(Mtu::fitting(1500), Some(Mtu::B1024));
        assert_eq!(Mtu::fitting(65536), Some(Mtu::B4096));
        assert_eq!(Mtu::fitting(300), None);
    }
}
