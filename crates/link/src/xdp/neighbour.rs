//! Who gets the frame: a cache of routes and MAC addresses, filled from the kernel's tables.
//!
//! The kernel resolves (ARP, neighbour discovery) and ages; we ask it once per destination, ask it to resolve what
//! it does not know, and follow its notifications. Frames for a destination under resolution wait here, a few of
//! them, as they would in the kernel.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::frame::Template;
use super::netlink::{Mac, Neighbour, NeighbourWatch, Netlink, Route};
use super::ring::Frame;

/// Frames that wait for one destination; more are lost, as in a kernel's queue.
const HELD: usize = 64;
/// How long a destination that did not answer is left in peace.
const RETRY: Duration = Duration::from_secs(1);

/// A frame that waits for its MAC addresses.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) frame: Frame,
    pub(super) start: usize,
    pub(super) len: usize,
}

/// What is known about the way to a destination.
#[derive(Debug)]
pub(super) enum Way {
    /// Send: the MAC addresses are in the template.
    Ready,
    /// The destination is this very link.
    Own,
    /// The kernel is asking for the next hop.
    Resolving { held: Vec<Held> },
    /// No way, or no answer; asked again when the time has come.
    None { again: Instant },
}

/// One destination, seen from one source address.
#[derive(Debug)]
pub(super) struct Destination {
    src: IpAddr,
    dst: IpAddr,
    pub(super) template: Template,
    hop: Option<IpAddr>,
    pub(super) way: Way,
}

/// All destinations of a link.
#[derive(Debug)]
pub(super) struct Neighbours {
    index: u32,
    mac: Mac,
    own: Vec<IpAddr>,
    netlink: Netlink,
    pub(super) watch: NeighbourWatch,
    by_address: HashMap<(IpAddr, IpAddr), usize>,
    all: Vec<Destination>,
    /// The destination of the last send: most sends go where the last one went.
    last: usize,
    resolving: usize,
}

impl Neighbours {
    pub(super) fn new(netlink: Netlink, index: u32, mac: Mac, own: Vec<IpAddr>) -> io::Result<Self> {
        let watch = NeighbourWatch::open()?;
        Ok(Self {
            index,
            mac,
            own,
            netlink,
            watch,
            by_address: HashMap::new(),
            all: Vec::new(),
            last: 0,
            resolving: 0,
        })
    }

    /// Frames wait for an answer from the network.
    pub(super) fn is_resolving(&self) -> bool {
        self.resolving > 0
    }

    /// The destination `dst` from `src`; None if that is no pair of one address family.
    pub(super) fn find(&mut self, src: IpAddr, dst: IpAddr) -> io::Result<Option<&mut Destination>> {
        let last = self.all.get(self.last);
        if !last.is_some_and(|last| last.dst == dst && last.src == src && matches!(last.way, Way::Ready)) {
            self.last = match self.by_address.get(&(src, dst)) {
                Some(known) => *known,
                None => {
                    let Some(template) = Template::new(src, dst) else { return Ok(None) };
                    let way = Way::None { again: Instant::now() };
                    self.all.push(Destination { src, dst, template, hop: None, way });
                    self.by_address.insert((src, dst), self.all.len() - 1);
                    self.all.len() - 1
                }
            };
            if matches!(self.all[self.last].way, Way::None { again } if again <= Instant::now()) {
                self.look_up(self.last)?;
            }
        }
        Ok(self.all.get_mut(self.last))
    }

    /// Asks the kernel for the way to a destination, and to resolve its next hop if need be.
    fn look_up(&mut self, at: usize) -> io::Result<()> {
        let destination = &mut self.all[at];
        let dead = Way::None { again: Instant::now() + RETRY };
        destination.way = match self.netlink.route(destination.src, destination.dst) {
            Ok(Route::Local) if self.own.contains(&destination.dst) => Way::Own,
            Ok(Route::Via { hop, interface }) if interface == self.index => {
                destination.hop = Some(hop);
                match self.netlink.neighbour(hop, self.index)? {
                    Neighbour::Known(mac) => {
                        destination.template.set_macs(self.mac, mac);
                        Way::Ready
                    }
                    Neighbour::Unknown | Neighbour::Failed => {
                        self.netlink.resolve(hop, self.index)?;
                        self.resolving += 1;
                        Way::Resolving { held: Vec::new() }
                    }
                }
            }
            // Another address of this host, a route through another interface, or none at all.
            Ok(_) => dead,
            Err(e) if e.raw_os_error().is_some() => dead,
            Err(e) => return Err(e),
        };
        Ok(())
    }

    /// Takes the kernel's news. `release` gets the frames that can go now (with the MAC addresses, ours and the
    /// next hop's) and, with none, those that cannot.
    pub(super) fn news(
        &mut self,
        mut release: impl FnMut(Held, Option<(Mac, Mac)>, IpAddr),
    ) -> io::Result<()> {
        let Self { all, watch, index, mac, resolving, .. } = self;
        let whole = watch.drain(|on, hop, state| {
            if on != *index {
                return;
            }
            for destination in all.iter_mut().filter(|destination| destination.hop == Some(hop)) {
                match (state, &mut destination.way) {
                    (Neighbour::Known(theirs), way) => {
                        destination.template.set_macs(*mac, theirs);
                        if let Way::Resolving { held } = std::mem::replace(way, Way::Ready) {
                            *resolving -= 1;
                            held.into_iter()
                                .for_each(|held| release(held, Some((*mac, theirs)), destination.dst));
                        }
                    }
                    (Neighbour::Failed, way) => {
                        let dead = Way::None { again: Instant::now() + RETRY };
                        if let Way::Resolving { held } = std::mem::replace(way, dead) {
                            *resolving -= 1;
                            held.into_iter().for_each(|held| release(held, None, destination.dst));
                        }
                    }
                    (Neighbour::Unknown, _) => {}
                }
            }
        })?;
        if !whole {
            self.ask_again(release)?;
        }
        Ok(())
    }

    /// The kernel dropped some news: ask for what we wait for.
    fn ask_again(&mut self, mut release: impl FnMut(Held, Option<(Mac, Mac)>, IpAddr)) -> io::Result<()> {
        for destination in &mut self.all {
            let Some(hop) = destination.hop else { continue };
            if let Neighbour::Known(theirs) = self.netlink.neighbour(hop, self.index)? {
                destination.template.set_macs(self.mac, theirs);
                if let Way::Resolving { held } = std::mem::replace(&mut destination.way, Way::Ready) {
                    self.resolving -= 1;
                    held.into_iter()
                        .for_each(|held| release(held, Some((self.mac, theirs)), destination.dst));
                }
            }
        }
        Ok(())
    }
}

/// Lets a frame wait; it comes back when there are too many.
pub(super) fn hold(held: &mut Vec<Held>, frame: Held) -> Result<(), Frame> {
    if held.len() == HELD {
        return Err(frame.frame);
    }
    held.push(frame);
    Ok(())
}
