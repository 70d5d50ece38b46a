//! RDMA-CM over CM: IP addresses in private data, ports in service ids.
//!
//! Read first: IBA Vol 1, Annex A11 (RDMA IP CM service). The header starts the private data of REQ and SIDR_REQ:
//!
//! ```text
//!   0      CMA version (0)
//!   1      IP version(4) reserved(4)
//!   2..4   source port
//!   4..20  source address        IPv4 addresses take the last four bytes
//!  20..36  destination address
//! ```

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::Error;

/// Bytes of the header.
pub const CMA_HEADER_LEN: usize = 36;

/// Who connects to whom, at the start of the private data of a REQ or SIDR_REQ.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CmaHeader {
    /// The connecting side; of the same family as the destination.
    pub src: IpAddr,
    /// The port that the connecting side names as its own.
    pub src_port: u16,
    /// The listening side. Its port is in the service id.
    pub dst: IpAddr,
}

impl CmaHeader {
    /// Reads the header.
    ///
    /// # Errors
    /// When the version of the header or of IP is unknown.
    pub fn parse(bytes: &[u8; CMA_HEADER_LEN]) -> Result<Self, Error> {
        if bytes[0] != 0 {
            return Err(Error::CmField("CMA version"));
        }
        let address: fn(&[u8]) -> IpAddr = match bytes[1] >> 4 {
            4 => |b| Ipv4Addr::new(b[12], b[13], b[14], b[15]).into(),
            6 => |b| {
                let mut octets = [0; 16];
                octets.copy_from_slice(b);
                Ipv6Addr::from(octets).into()
            },
            _ => return Err(Error::CmField("CMA IP version")),
        };
        Ok(Self {
            src: address(&bytes[4..20]),
            src_port: u16::from_be_bytes([bytes[2], bytes[3]]),
            dst: address(&bytes[20..36]),
        })
    }

    /// Writes the header.
    ///
    /// # Panics
    /// When the addresses are of two families.
    pub fn emit(&self, bytes: &mut [u8; CMA_HEADER_LEN]) {
        bytes.fill(0);
        bytes[2..4].copy_from_slice(&self.src_port.to_be_bytes());
        match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                bytes[1] = 4 << 4;
                bytes[16..20].copy_from_slice(&src.octets());
                bytes[32..36].copy_from_slice(&dst.octets());
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                bytes[1] = 6 << 4;
                bytes[4..20].copy_from_slice(&src.octets());
                bytes[20..36].copy_from_slice(&dst.octets());
            }
            (src, dst) => panic!("{src} and {dst} are of different IP versions"),
        }
    }
}

/// The port spaces of RDMA-CM, with the values of `enum rdma_port_space`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u16)]
pub enum PortSpace {
    /// IP over InfiniBand.
    Ipoib = 0x0002,
    /// For reliable connections, like `RDMA_PS_TCP`.
    Tcp = 0x0106,
    /// For datagrams, like `RDMA_PS_UDP`: a UD QP is found with SIDR.
    Udp = 0x0111,
    /// Native service ids.
    Ib = 0x013f,
}

/// The service that a REQ or SIDR_REQ asks for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ServiceId(pub u64);

impl ServiceId {
    /// The id of a port: space in bits 16 and up, port below.
    #[must_use]
    pub const fn new(space: PortSpace, port: u16) -> Self {
        Self((space as u64) << 16 | port as u64)
    }

    /// The port space, if this is the id of a port.
    #[must_use]
    pub const fn port_space(self) -> Option<PortSpace> {
        Some(match self.0 >> 16 {
            0x0002 => PortSpace::Ipoib,
            0x0106 => PortSpace::Tcp,
            0x0111 => PortSpace::Udp,
            0x013f => PortSpace::Ib,
            _ => return None,
        })
    }

    /// The port, if there is a port space.
    #[must_use]
    pub const fn port(self) -> Option<u16> {
        if self.port_space().is_some() { Some(self.0 as u16) } else { None }
    }
}

impl fmt::Display for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.port_space(), self.0 as u16) {
            (Some(PortSpace::Tcp), port) => write!(f, "tcp:{port}"),
            (Some(PortSpace::Udp), port) => write!(f, "udp:{port}"),
            (Some(PortSpace::Ipoib), port) => write!(f, "ipoib:{port}"),
            (Some(PortSpace::Ib), port) => write!(f, "ib:{port}"),
            (None, _) => write!(f, "{:#018x}", self.0),
        }
    }
}
