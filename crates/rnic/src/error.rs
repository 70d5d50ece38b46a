//! Errors told to the caller of a verb. (A peer learns of its errors by a NAK, a consumer by a completion
//! status, and a malformed packet is nobody's fault: it is dropped and counted.)

use thiserror::Error;

/// Why a verb was refused. The C ABI maps each to one `errno`.
#[derive(Clone, Copy, PartialEq, Eq, Error)]
pub enum VerbError {
    /// The handle or QP number names no live object (`EINVAL`).
    #[error("no such {0}")]
    NoSuchObject(&'static str),
    /// An argument is out of range or two contradict each other (`EINVAL`).
    #[error("invalid argument: {0}")]
    InvalidArgument(&'static str),
    /// The object is in use by another (`EBUSY`).
    #[error("{0} is still in use")]
    Busy(&'static str),
    /// A limit of [`Config`](crate::device::Config) is reached (`ENOMEM`).
    #[error("no more room for a {0}")]
    NoRoom(&'static str),
    /// The memory or the device cannot do that (`EOPNOTSUPP`).
    #[error("not supported: {0}")]
    Unsupported(&'static str),
    /// The QP's state machine has no such transition, or the transition needs other attributes (`EINVAL`).
    #[error("invalid QP transition: {0}")]
    InvalidTransition(&'static str),
}

/// Debug is the sentence as well: it is what a program prints whose `main` returns the error.
impl std::fmt::Debug for VerbError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// Why a work request was not accepted. Nothing was posted.
#[derive(Clone, Copy, PartialEq, Eq, Error)]
pub enum PostError {
    /// The QP or SRQ does not exist (`EINVAL`).
    #[error("no such QP or SRQ")]
    NoSuchQueue,
    /// The QP's state does not accept such work requests (`EINVAL`).
    #[error("the QP's state does not accept this work request")]
    InvalidState,
    /// All WQEs are outstanding (`ENOMEM`).
    #[error("the work queue is full")]
    QueueFull,
    /// More scatter/gather entries than the queue was created for, or than the operation takes (`EINVAL`).
    #[error("too many scatter/gather entries")]
    TooManySges,
    /// More inline data than the queue was created for, or inline data where none is possible (`EINVAL`).
    #[error("inline data is too long or not possible here")]
    InlineTooLong,
    /// The message is longer than 2^31 bytes, or than the path MTU on UD, or is not what the operation needs
    /// (`EINVAL`).
    #[error("invalid message length")]
    InvalidLength,
    /// The transport has no such operation, or an argument of it is wrong (`EINVAL`).
    #[error("invalid operation for this QP")]
    InvalidOperation,
    /// The address handle does not exist or belongs to another PD (`EINVAL`).
    #[error("invalid address handle")]
    InvalidAh,
}

/// Debug is the sentence as well: it is what a program prints whose `main` returns the error.
impl std::fmt::Debug for PostError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// The CQ overflowed: completions were lost, and the QPs that use it are going to the error state.
#[derive(Clone, Copy, PartialEq, Eq, Error)]
pub enum CqError {
    /// No such CQ.
    #[error("no such CQ")]
    NoSuchCq,
    /// More completions than the CQ has room for (IBA Vol 1, 11.6.3).
    #[error("the CQ overflowed")]
    Overflow,
}

/// Debug is the sentence as well: it is what a program prints whose `main` returns the error.
impl std::fmt::Debug for CqError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}
