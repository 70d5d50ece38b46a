//! Datagram back ends: what carries UDP payloads between RoCEv2 engines, and knows nothing of RDMA.
//!
//! [`Link`] is the trait that a live device drives. Three back ends implement it:
//!
//! * [`udp`]: sockets; everywhere, without privileges. [`host`] lets processes share the one RoCEv2 port.
//! * [`xdp`]: AF_XDP; about half the round trip, for those who may.
//! * [`shm`]: rings in memory that two processes of one host share.
//!
//! Two wrappers go around any of them: [`pcap`] records, [`fault`] makes the network bad. [`route`] says which local
//! address reaches a peer, [`neighbour`] whether anybody is there, [`monitor`] what becomes of an interface, [`wait`] waits, and [`veth`] is a cable between two namespaces to try things on.
//!
//! Read first: RFC 768, udp(7), ip(7), and IBA Vol 1 Annex A17 for what RoCEv2 asks of the IP and UDP headers
//! (the ICRC covers them, see [`SourcePort`] and [`Received::train_index`]).

#[cfg(test)]
mod conformance;
pub mod fault;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod host;
mod link;
pub mod monitor;
pub mod neighbour;
pub mod pcap;
pub mod route;
pub mod shm;
mod sys;
mod train;
pub mod udp;
pub mod veth;
pub mod wait;
pub mod xdp;

pub use link::{
    Event, Evidence, Link, LinkCaps, LinkStats, Outgoing, Quote, Received, SideChannel, SideEvent,
    SourcePort, WaitFd,
};
pub use sys::descriptor::{Descriptor, abandon_inherited, generation};
pub use sys::net::{network_namespace, random_u64 as random};
pub use sys::sched::{FAULTS, ask_for_short_slices, cores, current_cpu, without_signals};
pub use sys::thread::Thread;
