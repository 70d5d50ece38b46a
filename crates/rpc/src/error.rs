//! What goes wrong, each as one sentence that says what to do.

use std::net::SocketAddr;
use std::time::Duration;

use remanence_pmem::Guarantee;
use remanence_rnic::WcStatus;

use crate::core::event::Ended;

/// What goes wrong with an endpoint, beyond what happens to sessions and calls, or with a one-sided write.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The device, or a connection.
    #[error(transparent)]
    Device(#[from] remanence_verbs::Error),
    /// Memory for buffers.
    #[error(transparent)]
    Memory(#[from] remanence_pmem::Error),
    /// The operating system refuses a thread.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
    /// The system has no random numbers.
    #[error("the system gives no random bytes: {0}")]
    Random(getrandom::Error),
    /// There is no session with a server.
    #[error(transparent)]
    NoSession(Ended),
    /// An endpoint has as many sessions as it may.
    #[error("this endpoint has as many sessions as it may: end one, or make another endpoint")]
    Sessions,
    /// A work request of an endpoint did not succeed.
    #[error("the endpoint's QP does not work any more ({0}): make a new endpoint")]
    Qp(WcStatus),
    /// The completion queue is gone.
    #[error("the completion queue does not work any more ({0}): open it anew")]
    Cq(#[from] remanence_rnic::CqError),
    /// A work request was not accepted.
    #[error("the QP refuses a work request ({0}): open it anew")]
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
    /// A write, or what should make it stay, failed: nothing is known of what was under way.
    #[error("the write failed ({0}): what was under way may be there in part; connect again")]
    Failed(WcStatus),
    /// No completion came.
    #[error("the peer did not answer within {0:?}; what was under way may be there or not")]
    Silent(Duration),
    /// Something else listens there.
    #[error("what listens at {0} exports no memory for one-sided writes")]
    NotAnExport(SocketAddr),
    /// The exporter lets nobody in, and said why.
    #[error("{0} refused the connection: {1}")]
    Refused(SocketAddr, String),
    /// An export has as many writers as it may.
    #[error(transparent)]
    Full(#[from] remanence_service::server::Full),
    /// The write does not fit.
    #[error("{len} bytes at offset {offset} do not lie in the {region} bytes that are exported")]
    OutOfRange {
        /// Where it should go.
        offset: u64,
        /// Bytes that the write has.
        len: u64,
        /// Bytes that are exported.
        region: u64,
    },
    /// The exporter's memory has no persistence domain to flush to.
    #[error(
        "the exported memory cannot be flushed ({0}): use a file, on persistent memory if it shall survive power loss"
    )]
    NoFlush(Guarantee),
    /// The medium failed.
    #[error("the medium failed ({0}); what was not acknowledged may be lost; check the disk")]
    Medium(#[source] std::io::Error),
}

impl From<remanence_service::server::Error> for Error {
    fn from(error: remanence_service::server::Error) -> Self {
        match error {
            remanence_service::server::Error::Verbs(error) => Self::Device(error),
            remanence_service::server::Error::Memory(error) => Self::Memory(error),
            remanence_service::server::Error::Full(full) => Self::Full(full),
            remanence_service::server::Error::Medium(error) => Self::Medium(error),
        }
    }
}
