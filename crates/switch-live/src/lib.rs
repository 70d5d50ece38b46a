//! Byp4ss in userspace: the machine of `remanence-switch` over a link, UDP sockets or AF_XDP.
//!
//! A [`Plane`] has a link, a switch and one thread, which sleeps until a datagram comes, a deadline of the switch is due, or somebody rings. A turn takes one batch of the link and hands
//! each datagram to the switch, which says at once what leaves for it; what leaves for one host goes out in trains that the kernel cuts (`outbox.rs`). Where the kernel has no room
//! the plane receives nothing until it has: what comes meanwhile waits in the socket, and is lost there if it is too much, as on any network.
//!
//! | file | what |
//! |---|---|
//! | `plane.rs` | the turn, the sleep, the end; what others ask of the thread |
//! | `outbox.rs` | from packets that leave one by one to trains of equal ones |
//! | `tape.rs` | a recording of what comes and leaves |
//!
//! What a socket does not say of a packet is its IPv4 identification, which the ICRC covers: it is found out from the ICRC, of which 16 bits remain to check a packet by
//! (`remanence_wire::icrc`). AF_XDP sees it.
//!
//! Read first: `docs/switch.md`.
#![forbid(unsafe_code)]

mod outbox;
mod plane;
mod tape;

pub use plane::{Busy, Carrier, Counters, Handle, Look, Options, Plane};
pub use tape::Recording;
