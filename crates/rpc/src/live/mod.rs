//! The protocol on a live device: one UD QP, receive and message buffers in registered memory, and an event loop.
//!
//! A [`Nexus`] is a process' place at a device: it answers clients that ask which QPs serve. An [`Rpc`] is one thread's
//! endpoint: [`Rpc::poll`] is its event loop, which spins as long as that has paid lately, and then sleeps.
//!
//! Payload is touched once on each way: the engine copies it from the message into the packet that leaves, and from the
//! packet that came into a receive buffer. There a message of one packet stays, for as long as its [`Body`] is held;
//! longer ones are put together in a message buffer. Both are [`Region`]s, so that a copy engine can take them from
//! where they lie.
//!
//! [`Body`]: crate::core::buffers::Body
//! [`Region`]: remanence_pmem::Region

mod buddy;
mod memory;
mod nexus;
mod rpc;

#[cfg(test)]
pub(crate) use memory::body_of;
pub use memory::{Live, Message, Received};
pub use nexus::Nexus;
pub use rpc::{Options, Rpc};

pub use crate::error::Error;
