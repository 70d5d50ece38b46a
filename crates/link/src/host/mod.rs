//! Several processes on one host share one UDP port, as they would share one NIC.
//!
//! A real RNIC has one QP number space and looks every packet up in it. Here each process has an engine of its own, so
//! the space is divided: a process takes a [`Seat`], and with it one of 256 *slots* of 65,536 QP numbers. The slot is
//! the top byte of every QP number and of every communication id it gives out, so that a datagram says by itself
//! where it belongs; a connection request says which *service* it wants, and a process can listen for a service. Where
//! in a datagram these bytes stand, the caller says with a [`SteerRule`]: this crate knows nothing of RDMA.
//!
//! Three mechanisms, each independent of the health of the others:
//!
//! 1. **Who is who** is kept by the kernel, not by us. Slot 0x3f belongs to whoever holds the abstract unix name
//!    `remanence/slot/3f`, a service to whoever holds `remanence/service/…`. Such a name belongs to one network
//!    namespace, exactly as port 4791 does; taking one is atomic; it is gone when its owner is, SIGKILL included;
//!    nobody can hold a lock and die, or hold it and be stopped. Any user may take any name, though: [`roster`] says whose
//!    name counts in which slot, and what becomes of a slot whose name somebody has who may not.
//! 2. **Delivery**: whoever receives a datagram that is not its own sends it, with its addresses, to the name of its
//!    owner. This alone makes sharing correct. Strangers can keep the queue of a name full, so two who send on to each
//!    other make a socket pair by it first ([`pairs`]).
//! 3. **Steering** makes it fast: all processes bind the same port with `SO_REUSEPORT`, and a BPF program picks the
//!    socket by the same rule. It needs to know which socket of the kernel's array is whose, which [`board`] and the
//!    steering of the UDP link work out. All they know is a hint: a wrong hint costs a detour, and the detour is what
//!    corrects it.
//!
//! Users: the kernel lets only processes of the same user share a port. While root's have it, those of other users are
//! *guests*: they send for themselves and receive what root's send on, at the price of a second hop. Root does not
//! accept datagrams from other users, who could forge their senders; it needs the port first. A guest has a seat in one of
//! the slots where its user is at home, a quarter of all: a user's 65th process or so finds none there, and shares only ports
//! of its own user. In a user namespace, as the view of an unprivileged user is one, root cannot be told from others: who is a
//! guest by that cannot receive.
//!
//! Limits: A stopped
//! process keeps its own datagrams waiting, and nobody else's. The detour has room for a few
//! megabytes and a tenth of a second; beyond that it loses, as a network may. Services are as TCP's ports above 1023: the
//! first user who listens has them. Where the kernel does not tell whose a name is (before Linux 5.3, without
//! `CONFIG_UNIX_DIAG`, in a sandbox without netlink), whoever has a name is believed, and all slots can be squatted.
//!
//! Read first: unix(7) on abstract names; socket(7), `SO_REUSEPORT` and `SO_ATTACH_REUSEPORT_CBPF`.

mod allowance;
mod backlog;
pub(crate) mod board;
mod message;
pub(crate) mod names;
mod pairs;
mod roster;
mod rule;
mod seat;
mod sharing;
#[cfg(test)]
mod tests;

pub use rule::{Match, SteerCase, SteerRule, SteerTo};
pub(crate) use rule::{Owner, PROBE_MAGIC, Table, attach};
pub use seat::{Listening, Seat};
pub(crate) use sharing::Sharing;

/// The number of slots.
pub const SLOTS: usize = 256;
