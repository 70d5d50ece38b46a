//! What a client stands on: connections to servers, the memory from which it writes and into which it reads, and the wait for what comes.
//!
//! [`Client`](super::Client) decides; these traits carry out. `link` implements them over verbs, and the simulator has connections of its own.

use std::net::SocketAddr;

use remanence_pmem::Region;
use remanence_rnic::{Placement, RemoteAddr, Selectivity, SendOp};
pub use remanence_service::client::ReactorWaker as Waker;
use remanence_wire::Rkey;

use super::error::{Error, LossReason};
use crate::proto::{PoolInfo, Reply, Request};

/// A request's or a work request's owner, as the client numbers them.
pub type Tag = u64;

/// The tag of requests whose replies nobody waits for.
pub(super) const NOBODY: Tag = u64::MAX;

/// What happened on a link.
#[derive(Debug)]
pub enum Happened {
    /// A reply to the request with this tag.
    Replied(Tag, Reply),
    /// The data work request with this tag completed.
    Completed(Tag),
}

/// Connections of one client.
pub trait Network: Send {
    /// Connects to these servers, to all of them at once, and waits until it is known of each whether it can be used.
    fn connect(&mut self, servers: &[(String, SocketAddr)]) -> Vec<Result<Box<dyn Link>, LossReason>>;

    /// The same for a further client of the same program, which has a memory of its own.
    ///
    /// # Errors
    /// There is no room for one.
    fn another(&self) -> Result<Box<dyn Network>, Error>;

    /// The memory that all links write from and read into.
    fn memory(&self) -> &Region;

    /// Waits until something may have come on a link, or a link has something to do; `false` if another thread ended the wait.
    fn wait(&mut self) -> bool;

    /// Ends a wait from another thread. `None`: nothing runs beside whoever waits, who then reads the sources of a put as well.
    fn waker(&self) -> Option<Waker>;

    /// Bytes that nobody can guess.
    ///
    /// # Errors
    /// There are none.
    fn random(&mut self, into: &mut [u8]) -> Result<(), Error>;
}

/// What can be used of one server. It is disconnected when it is dropped: nothing reads or writes the client's memory for it any more.
pub trait Link: Send {
    /// What the server said of itself when it was connected to.
    fn info(&self) -> &PoolInfo;

    /// Sends a request, or keeps it until the server may be asked.
    ///
    /// # Errors
    /// The server is lost.
    fn ask(&mut self, request: Request, tag: Tag) -> Result<(), LossReason>;

    /// How many work requests may be posted now.
    fn budget(&self) -> usize;

    /// Posts a one-sided operation. `chunk` says where its data lies in the client's memory, and how many bytes that has.
    ///
    /// # Errors
    /// The server is lost.
    fn post(&mut self, op: SendOp, chunk: Option<(u64, u32)>, tag: Tag) -> Result<(), LossReason>;

    /// Takes what has come, and does what is due. What happened before the link failed is told as well.
    ///
    /// # Errors
    /// The server is lost.
    fn look(&mut self, happened: &mut Vec<Happened>) -> Result<(), LossReason>;

    /// Sends a request whose reply does not matter.
    ///
    /// # Errors
    /// The server is lost.
    fn tell(&mut self, request: Request) -> Result<(), LossReason> {
        self.ask(request, NOBODY)
    }

    /// WRITEs a chunk of the client's memory.
    ///
    /// # Errors
    /// The server is lost.
    fn write(&mut self, chunk: (u64, u32), addr: u64, rkey: u32, tag: Tag) -> Result<(), LossReason> {
        self.post(SendOp::Write(RemoteAddr { addr, rkey: Rkey(rkey) }), Some(chunk), tag)
    }

    /// READs into a chunk of the client's memory.
    ///
    /// # Errors
    /// The server is lost.
    fn read(&mut self, chunk: (u64, u32), addr: u64, rkey: u32, tag: Tag) -> Result<(), LossReason> {
        self.post(SendOp::Read(RemoteAddr { addr, rkey: Rkey(rkey) }), Some(chunk), tag)
    }

    /// FLUSHes a range, with persistence where the server's pool can have it.
    ///
    /// # Errors
    /// The server is lost, or said that it gave more than there can be.
    fn flush(&mut self, addr: u64, len: u64, rkey: u32, tag: Tag) -> Result<(), LossReason> {
        let placement = match self.info().guarantee.is_durable() {
            true => Placement::Persistence,
            false => Placement::GlobalVisibility,
        };
        let len = u32::try_from(len).map_err(|_| LossReason::Nonsense)?;
        let remote = RemoteAddr { addr, rkey: Rkey(rkey) };
        self.post(SendOp::Flush { remote, len, placement, selectivity: Selectivity::Range }, None, tag)
    }
}
