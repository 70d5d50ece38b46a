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

pub use memory::{Live, Message, Received};
pub use nexus::Nexus;
pub use rpc::{Options, Rpc};

use std::net::SocketAddr;

use remanence_rnic::WcStatus;

/// What goes wrong with an endpoint, beyond what happens to sessions and calls.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The device.
    #[error(transparent)]
    Device(#[from] remanence_verbs::Error),
    /// Memory for buffers.
    #[error(transparent)]
    Memory(#[from] remanence_pmem::Error),
    /// The operating system refuses a thread.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
    /// A work request of ours did not succeed.
    #[error("the endpoint's QP does not work any more ({0}): make a new endpoint")]
    Qp(WcStatus),
    /// The completion queue is gone.
    #[error("the endpoint's completion queue does not work any more ({0}): make a new endpoint")]
    Cq(#[from] remanence_rnic::CqError),
    /// A work request was not accepted.
    #[error("the endpoint's QP refuses a work request ({0}): make a new endpoint")]
    Post(#[from] remanence_rnic::PostError),
    /// Nobody answers there.
    #[error("nobody answers at {0}: is the server running, at that address and port?")]
    NoAnswer(SocketAddr),
    /// Somebody is there, and serves no calls.
    #[error("no calls are served at {0}: is it another program's port, or does it have fewer endpoints?")]
    NoService(SocketAddr),
    /// The address cannot be reached from this device.
    #[error("this device has no address from which {0} can be reached")]
    NoPath(SocketAddr),
}
