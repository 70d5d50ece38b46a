//! The interface under an open device: its addresses become GIDs and sockets while the device is open, its state is the
//! port's, its MTU the largest path MTU.
//!
//! A thread of the device sleeps on the kernel's news, and reads afresh what is true when there are any (`monitor.rs` of the
//! link says why). What it finds takes effect in one turn, under the device lock. As in Linux (`roce_gid_mgmt.c`), an address keeps its place in
//! the table for as long as it exists; when it goes the place is empty, and the next new address takes the first that is.
//! QPs and address handles that use an address which went keep it: what they send is lost, and their retries end in an
//! error. If it comes back in time, nothing was.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use remanence_link::Thread;
use remanence_link::host::Seat;
use remanence_link::monitor::{Monitor, State};
use remanence_link::route::Interface;
use remanence_link::without_signals;
use remanence_wire::{Gid, Mtu};

use crate::claims::Claims;
use crate::cm::Claim;
use crate::context::{DeviceEvent, Shared};
use crate::wake::Bell;

/// Places of a GID table that is followed. More addresses than these are not used.
pub const GID_TABLE_LEN: usize = 16;

/// What an open device's port is at the moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Port {
    /// Packets can leave (`IBV_PORT_ACTIVE`); else it is down.
    pub active: bool,
    /// The GID table; all zeros where a place is empty. An address keeps its place for as long as it exists.
    pub gids: Arc<[Gid]>,
    /// The largest path MTU.
    pub mtu: Mtu,
}

impl Port {
    /// Where an address is in the table.
    #[must_use]
    pub fn index_of(&self, gid: Gid) -> Option<u8> {
        let index = self.gids.iter().position(|&ours| ours == gid && gid != Gid::default())?;
        u8::try_from(index).ok()
    }

    /// The addresses that there are.
    pub fn addresses(&self) -> impl Iterator<Item = Gid> + '_ {
        self.gids.iter().copied().filter(|&gid| gid != Gid::default())
    }
}

/// The table with these addresses in it: those that stay keep their places, new ones take empty places.
fn exchanged(old: &[Gid], addresses: &[Gid]) -> Vec<Gid> {
    let kept = |gid: &Gid| if addresses.contains(gid) { *gid } else { Gid::default() };
    let mut table: Vec<Gid> = old.iter().map(kept).collect();
    for &gid in addresses {
        if table.contains(&gid) {
            continue;
        }
        match table.iter().position(|&place| place == Gid::default()) {
            Some(empty) => table[empty] = gid,
            None if table.len() < GID_TABLE_LEN => table.push(gid),
            None => {}
        }
    }
    table
}

/// Follows an interface until `bell` is rung with the device's `stop` set. `most`: the largest path MTU to offer.
pub(crate) fn spawn(
    shared: Arc<Shared>,
    monitor: Monitor,
    bell: Arc<Bell>,
    most: Mtu,
    books: Books,
) -> io::Result<Thread> {
    without_signals(|| Thread::spawn(c"remanence-port", move || run(&shared, &monitor, &bell, most, &books)))
}

/// Where services are taken, by those that listen at every address, at those that come; and whom to tell of the end.
pub(crate) struct Books {
    pub(crate) seat: Option<Seat>,
    pub(crate) claims: Claims,
    pub(crate) removed: Option<(fn(u32), u32)>,
}

fn run(shared: &Shared, monitor: &Monitor, bell: &Bell, most: Mtu, books: &Books) {
    let mut fds = Vec::new();
    while !shared.stop.load(Ordering::Acquire) {
        match monitor.state() {
            Ok(Some(state)) => change(shared, &state, most, books),
            Ok(None) => {
                remove(shared);
                if let Some((tell, number)) = books.removed {
                    tell(number);
                }
                return;
            }
            // Without descriptors, say: what is known stays, and the next news are another chance.
            Err(_) => {}
        }
        fds.push(monitor.wait_fd());
        bell.sleep(&mut fds, None);
        fds.clear();
        if monitor.drain().is_err() {
            return;
        }
    }
}

/// Brings the device to what the interface is now, and tells the consumer what changed.
fn change(shared: &Shared, state: &State, most: Mtu, books: &Books) {
    let mut turn = shared.turn();
    let before = shared.port();
    let mut wanted = state.addresses.clone();
    // More than the table has places for: those that are in it stay.
    wanted.sort_by_key(|interface| before.index_of(Gid::from_ip(interface.addr)).is_none());
    wanted.truncate(GID_TABLE_LEN);
    let over = turn.readdress(&wanted, most, state.carries, books);
    drop(turn);
    drop(over);
}

/// The interface is no more: the device is lost, as one of hardware that is pulled out.
fn remove(shared: &Shared) {
    let mut turn = shared.turn();
    let port = Port { active: false, ..shared.port() };
    turn.set_port(port);
    turn.lose(&io::ErrorKind::NotFound.into());
}

impl crate::driver::Driver {
    fn readdress(&mut self, interfaces: &[Interface], most: Mtu, active: bool, books: &Books) -> Vec<Claim> {
        let link = self.link();
        link.readdress(interfaces);
        let caps = link.caps();
        let addresses: Vec<Gid> = caps.addresses.iter().map(|&address| Gid::from_ip(address)).collect();
        let mtu = most.min(Mtu::fitting(caps.mtu).unwrap_or(Mtu::B256));
        let gids = exchanged(&self.device.config().gids, &addresses);
        let over = self.cm.readdressed(&gids, books.seat.as_ref(), &books.claims);
        self.set_port(Port { active, gids: gids.into(), mtu });
        over
    }

    /// The port is another one from now on. Who is told of it finds it so.
    fn set_port(&mut self, port: Port) {
        let before = self.signals().port();
        if before == port {
            return;
        }
        for (index, &gid) in (0..).zip(port.gids.iter()) {
            self.device.set_gid(index, (gid != Gid::default()).then_some(gid));
        }
        self.device.set_mtu(port.mtu);
        self.cm.manager.set_port(&port.gids, port.mtu);
        self.signals().set_port(port.clone());
        if before.gids != port.gids {
            self.push_async(DeviceEvent::GidChange);
        }
        match (before.active, port.active) {
            (true, false) => self.push_async(DeviceEvent::PortError),
            (false, true) => self.push_async(DeviceEvent::PortActive),
            _ => {}
        }
        // The descriptors of new addresses are new to whoever sleeps on those that there were.
        self.look_again();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(host: u8) -> Gid {
        Gid::from_ip([10, 0, 0, host].into())
    }

    #[test]
    fn an_address_keeps_its_place_and_a_new_one_takes_the_first_that_is_empty() {
        let none = Gid::default();
        let table = exchanged(&[gid(1), gid(2), gid(3)], &[gid(3), gid(1)]);
        assert_eq!(table, [gid(1), none, gid(3)]);
        let table = exchanged(&table, &[gid(4), gid(5), gid(3), gid(1)]);
        assert_eq!(table, [gid(1), gid(4), gid(3), gid(5)]);
        assert_eq!(
            exchanged(&table, &[]),
            [none; 4],
            "the table does not shrink: the others' places stay theirs"
        );
        let many: Vec<Gid> = (1..=20).map(gid).collect();
        assert_eq!(exchanged(&[], &many), many[..GID_TABLE_LEN]);
    }

    #[test]
    fn an_empty_place_is_nobodys_address() {
        let port = Port { active: true, gids: [Gid::default(), gid(1)].into(), mtu: Mtu::B1024 };
        assert_eq!((port.index_of(Gid::default()), port.index_of(gid(1))), (None, Some(1)));
        assert_eq!(port.addresses().collect::<Vec<_>>(), [gid(1)]);
    }
}
