//! How a device is opened.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use remanence_link::fault::{FaultControl, Faulty, Plan};
use remanence_link::host::Seat;
use remanence_link::pcap::Capture;
use remanence_link::shm::ShmLink;
use remanence_link::udp::UdpLink;
use remanence_link::xdp::XdpLink;
use remanence_link::{Link, Received, route, shm, udp, xdp};
use remanence_rnic::Config;
use remanence_wire::Mtu;
use remanence_wire::icrc::{self, Flow, IpId};

use crate::error::Error;
use crate::handover::Progress;
use crate::share;

/// What carries the device's packets.
pub enum LinkKind {
    /// UDP sockets: everywhere, without privileges. The port is shared with other processes of this host and
    /// other devices of this one.
    Udp(udp::Options),
    /// AF_XDP: the fastest; needs privileges.
    Xdp(xdp::Config),
    /// Shared memory, between processes of this host.
    Shm(shm::Config),
    /// A link that the caller made.
    Given(Box<dyn Link>),
}

impl LinkKind {
    /// Opens the link, and takes a seat at the port where it is shared. `connect`: what is sent leaves as it is, and in order.
    pub(crate) fn open(self, connect: bool) -> Result<(Box<dyn Link>, Option<Seat>), Error> {
        Ok(match self {
            Self::Udp(mut options) => {
                let udp = |e| Error::os("UDP", e);
                let seat = match options.seat {
                    Some(seat) => seat,
                    None => share::claim().map_err(udp)?,
                };
                options.seat = Some(seat.clone());
                options.connect = connect;
                (Box::new(UdpLink::open(&options).map_err(udp)?), Some(seat))
            }
            Self::Xdp(config) => {
                let xdp = |e| Error::os("AF_XDP", std::io::Error::other(e));
                (Box::new(XdpLink::open(&config).map_err(xdp)?), None)
            }
            Self::Shm(config) => {
                let shm = |e| Error::os("shared memory", std::io::Error::other(e));
                (Box::new(ShmLink::open(&config).map_err(shm)?), None)
            }
            Self::Given(link) => (link, None),
        })
    }
}

/// The IPv4 identification of a datagram that came through a socket, found out from its ICRC.
fn identification(datagram: &Received<'_>) -> Option<u16> {
    let flow =
        Flow::new(datagram.src.ip(), datagram.dst_ip, datagram.src.port(), remanence_rnic::device::ROCE_PORT);
    match icrc::check_guess(&flow, datagram.ip_id.unwrap_or(datagram.train_index), datagram.payload) {
        Ok(IpId::Confirmed(id) | IpId::Recovered(id)) => Some(id),
        Ok(IpId::Absent) | Err(_) => None,
    }
}

impl fmt::Debug for LinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Udp(options) => f.debug_tuple("Udp").field(options).finish(),
            Self::Xdp(config) => f.debug_tuple("Xdp").field(config).finish(),
            Self::Shm(config) => f.debug_tuple("Shm").field(config).finish(),
            Self::Given(link) => f.debug_tuple("Given").field(link.caps()).finish(),
        }
    }
}

/// How a device is opened.
#[derive(Debug)]
pub struct Options {
    /// What carries its packets.
    pub link: LinkKind,
    /// Its limits. GIDs, path MTU and source port come from the link; a seed of 0 is replaced by a random one.
    pub config: Config,
    /// The largest path MTU to offer; the link may carry less.
    pub mtu: Mtu,
    /// The interface to follow while the device is open: its addresses, its state, its MTU. Without, the device keeps the
    /// addresses that it was opened with. Only UDP links can have other addresses than those.
    pub follow: Option<String>,
    /// Called with its number when the interface that is followed was removed, after the events of the device; by a thread of
    /// the device, which holds no lock.
    pub removed: Option<(fn(u32), u32)>,
    /// Who drives the device when no consumer does.
    pub progress: Progress,
    /// Records what is sent and received to a pcapng file, which Wireshark reads as RoCEv2. With faults, it shows what
    /// this host would see on a bad network: all that is sent, and what of the rest arrives.
    pub capture: Option<PathBuf>,
    /// Makes the network bad, from a seed; see [`Context::fault_control`](crate::Context::fault_control).
    pub faults: Option<(Plan, u64)>,
}

/// A link, and what goes with it.
pub(crate) struct Opened {
    pub(crate) link: Box<dyn Link>,
    pub(crate) seat: Option<Seat>,
    pub(crate) faults: Option<FaultControl>,
}

impl Options {
    /// Opens the link with what shall go around it.
    pub(crate) fn open_link(
        link: LinkKind,
        faults: Option<(Plan, u64)>,
        capture: Option<&Path>,
    ) -> Result<Opened, Error> {
        // What faults hold back or drop would leave with another identification than its ICRC was made for.
        let (mut link, seat) = link.open(faults.is_none())?;
        let mut control = None;
        if let Some((plan, seed)) = faults {
            let faulty = Faulty::new(link, plan, seed).map_err(|e| Error::os("cannot delay packets", e))?;
            control = Some(faulty.control());
            link = Box::new(faulty);
        }
        if let Some(path) = capture {
            let capture = Capture::create(link, path);
            let capture = capture.map_err(|e| Error::os(format!("cannot write {}", path.display()), e))?;
            link = Box::new(capture.ip_id_from(identification));
        }
        Ok(Opened { link, seat, faults: control })
    }

    /// A device on a link.
    #[must_use]
    pub fn new(link: LinkKind) -> Self {
        Self {
            link,
            config: Config::default(),
            mtu: Mtu::B4096,
            follow: None,
            removed: None,
            progress: Progress::default(),
            capture: None,
            faults: None,
        }
    }

    /// A device on UDP sockets at a local address.
    #[must_use]
    pub fn udp(address: IpAddr) -> Self {
        Self::new(LinkKind::Udp(udp::Options::new(vec![address])))
    }

    /// A device on UDP sockets at the local address from which `peer` is reached, as this host's routes say.
    ///
    /// # Errors
    /// There is no route to it.
    pub fn towards(peer: IpAddr) -> Result<Self, Error> {
        let route = route::to(peer).map_err(|e| {
            Error::os(format!("there is no way from here to {peer}; check the address and the network"), e)
        })?;
        Ok(Self::udp(route.source))
    }

    /// The same for several peers, of which some may not be reachable now: at the address from which the first is reached that is not this
    /// host itself, or else the first that is.
    ///
    /// # Errors
    /// There is no route to any of them; or there is no peer.
    pub fn towards_any(peers: impl IntoIterator<Item = IpAddr>) -> Result<Self, Error> {
        let none = || Error::os("no peer was named", std::io::ErrorKind::InvalidInput.into());
        let (mut local, mut failed) = (None, None);
        for peer in peers {
            match route::to(peer) {
                Ok(route) if !route.source.is_loopback() => return Ok(Self::udp(route.source)),
                Ok(route) => local = local.or(Some(route.source)),
                Err(_) => failed = failed.or(Some(peer)),
            }
        }
        match (local, failed) {
            (Some(source), _) => Ok(Self::udp(source)),
            (None, Some(peer)) => Self::towards(peer),
            (None, None) => Err(none()),
        }
    }

    /// A device on AF_XDP sockets of a network interface.
    #[must_use]
    pub fn xdp(interface: &str) -> Self {
        Self::new(LinkKind::Xdp(xdp::Config::new(interface)))
    }

    /// A device on shared memory, at a given address or any free one.
    #[must_use]
    pub fn shm(address: Option<IpAddr>) -> Self {
        Self::new(LinkKind::Shm(shm::Config { address, ..shm::Config::default() }))
    }
}
