//! Who may have a group made, and of whom: what a switch asks of a leader before it sends anything to a replica in its name.
//!
//! A REQ costs its sender one packet, which may come from anybody's address; so it has the switch send packets only to those that whoever runs it has named, and only for
//! those. What one address can have the switch keep and send is bounded: so many groups, those that are asked for included, and one request to a replica at a time.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use remanence_auth::Token;
use thiserror::Error;

use crate::private::Ask;
use remanence_wire::cm::ServiceId;

/// Addresses that begin with the same bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Net {
    addr: IpAddr,
    prefix: u8,
}

/// A text is neither an address nor a network.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("write an address, or a network such as 10.0.0.0/24")]
pub struct BadNet;

impl Net {
    /// Every address of both versions is in one of these.
    pub const ALL: [Self; 2] = [
        Self { addr: IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), prefix: 0 },
        Self { addr: IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED), prefix: 0 },
    ];

    /// Whether an address is one of these.
    #[must_use]
    pub fn contains(&self, addr: IpAddr) -> bool {
        let differs = match (self.addr, addr) {
            (IpAddr::V4(own), IpAddr::V4(other)) => u128::from(own.to_bits() ^ other.to_bits()) << 96,
            (IpAddr::V6(own), IpAddr::V6(other)) => own.to_bits() ^ other.to_bits(),
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => return false,
        };
        differs.leading_zeros() >= self.prefix.into()
    }
}

impl From<IpAddr> for Net {
    fn from(addr: IpAddr) -> Self {
        Self { addr, prefix: if addr.is_ipv4() { 32 } else { 128 } }
    }
}

impl FromStr for Net {
    type Err = BadNet;

    fn from_str(text: &str) -> Result<Self, BadNet> {
        let (addr, prefix) = text.split_once('/').map_or((text, None), |(addr, prefix)| (addr, Some(prefix)));
        let whole = Self::from(addr.parse::<IpAddr>().map_err(|_| BadNet)?);
        match prefix.map(str::parse::<u8>) {
            None => Ok(whole),
            Some(Ok(prefix)) if prefix <= whole.prefix => Ok(Self { prefix, ..whole }),
            Some(_) => Err(BadNet),
        }
    }
}

impl fmt::Display for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::from(self.addr) {
            self.addr.fmt(f)
        } else {
            write!(f, "{}/{}", self.addr, self.prefix)
        }
    }
}

/// Who may have a group made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Access {
    /// Addresses of leaders. None: nobody.
    pub leaders: Vec<Net>,
    /// Addresses that leaders may name as replicas. None: nobody's.
    pub replicas: Vec<Net>,
    /// What a leader proves to have, in the [proof](Ask::proof) of its request; none: its address is enough.
    pub token: Option<Token>,
    /// So many groups may one address have, those that it waits for included.
    pub groups: usize,
}

/// Nobody may have one made.
impl Default for Access {
    fn default() -> Self {
        Self { leaders: Vec::new(), replicas: Vec::new(), token: None, groups: 8 }
    }
}

impl Access {
    /// Whoever may send packets to the switch: for networks on which nobody else is.
    #[must_use]
    pub fn anybody() -> Self {
        Self { leaders: Net::ALL.into(), replicas: Net::ALL.into(), ..Self::default() }
    }

    /// Whether a leader of this address may ask for this.
    pub(crate) fn admits(&self, leader: IpAddr, service: ServiceId, ask: &Ask) -> Result<(), Denied> {
        let is_in = |nets: &[Net], addr: IpAddr| nets.iter().any(|net| net.contains(addr));
        if !is_in(&self.leaders, leader) {
            return Err(Denied::Leader);
        }
        if !ask.addrs.iter().all(|&addr| is_in(&self.replicas, addr.into())) {
            return Err(Denied::Replica);
        }
        match &self.token {
            Some(token) if !ask.is_proven(token, service, leader) => Err(Denied::Proof),
            _ => Ok(()),
        }
    }
}

/// Why a leader is refused, as it is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Denied {
    /// It is no leader.
    Leader,
    /// It names somebody who is no replica.
    Replica,
    /// It has not the token.
    Proof,
    /// It has as many groups as it may, or waits for an answer of one of these replicas already.
    Bound,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> Net {
        text.parse().unwrap()
    }

    #[test]
    fn a_net_has_what_begins_like_it_and_nothing_else() {
        let has = |text: &str, addr: &str| net(text).contains(addr.parse().unwrap());
        assert!(has("10.1.0.0/16", "10.1.255.255") && !has("10.1.0.0/16", "10.2.0.0"));
        assert!(has("10.0.0.5", "10.0.0.5") && !has("10.0.0.5", "10.0.0.4"));
        assert!(has("0.0.0.0/0", "255.1.2.3") && !has("0.0.0.0/0", "::1"), "one version is not the other");
        assert!(has("fd00::/8", "fdff::1") && !has("fd00::/8", "fe80::1") && !has("::/0", "10.0.0.1"));
        assert!(has("10.0.0.128/25", "10.0.0.200") && !has("10.0.0.128/25", "10.0.0.127"));
    }

    #[test]
    fn a_net_is_printed_as_it_is_read() {
        for text in ["10.0.0.0/24", "10.0.0.7", "fd00::/8", "::1", "0.0.0.0/0"] {
            assert_eq!(net(text).to_string(), text);
        }
        for text in
            ["", "10.0.0", "10.0.0.0/33", "10.0.0.0/", "::/129", "host", "10.0.0.0/-1", "10.0.0.0/8/8"]
        {
            assert_eq!(text.parse::<Net>(), Err(BadNet), "{text}");
        }
    }
}
