//! What can go wrong with a pool, each as one sentence that says what to do.

use std::io;

use thiserror::Error;

use crate::blob::{BlobName, Version};
use crate::format::VERSION;

/// Why a file cannot be opened as a pool.
#[derive(Clone, PartialEq, Eq, Error)]
pub enum OpenError {
    /// The file does not begin with a pool's magic number.
    #[error(
        "this is not a pool file; name another file, or remove this one to have a new pool made in its place"
    )]
    NotAPool,
    /// The block in which a superblock belongs is all zeros, as where the making of a pool was interrupted.
    #[error("this file holds no pool, only zeros; remove it to have a new pool made in its place")]
    Blank,
    /// The file is shorter than a superblock.
    #[error(
        "this file has only {file} bytes, too few for a pool; remove it to have a new pool made in its place"
    )]
    TooShort {
        /// Bytes of the file.
        file: u64,
    },
    /// The file was written by a machine, or a program, that swaps bytes.
    #[error(
        "this pool was written in the other byte order; copy its blobs over the network from the machine that wrote it"
    )]
    OtherByteOrder,
    /// The file has another version of the format.
    #[error(
        "this pool has format version {found}, and this program reads version {VERSION}; serve it with the release that made it, and copy its blobs over"
    )]
    OtherVersion {
        /// The version that the file names.
        found: u32,
    },
    /// The superblock's checksum is wrong.
    #[error(
        "the superblock of this pool is damaged; restore the file from a copy, or make a new pool and bring it up to date from the other servers"
    )]
    SuperblockDamaged,
    /// The file is shorter than its pool, as it was cut.
    #[error(
        "this pool file was truncated: {file} of {pool} bytes are left; restore it from a copy, or make a new pool and bring it up to date from the other servers"
    )]
    Truncated {
        /// Bytes of the file.
        file: u64,
        /// Bytes of the pool.
        pool: u64,
    },
    /// The file is longer than its pool, as something was appended.
    #[error(
        "this pool file has {file} bytes, but the pool in it only {pool}; cut it back with `truncate -s {pool}` if nothing else is meant to be in it"
    )]
    Grown {
        /// Bytes of the file.
        file: u64,
        /// Bytes of the pool.
        pool: u64,
    },
    /// Both root copies are bad.
    #[error(
        "both root blocks of this pool are damaged; restore the file from a copy, or make a new pool and bring it up to date from the other servers"
    )]
    RootDamaged,
    /// Both copies of the ceiling of version numbers are bad.
    #[error(
        "this pool cannot tell any more which version numbers it has promised, as both records of that are damaged; restore the file from a copy, or make a new pool and bring it up to date from the other servers"
    )]
    CeilingDamaged,
    /// The records of the catalogue contradict each other.
    #[error(
        "the catalogue of this pool is damaged ({what}); restore the file from a copy, or make a new pool and bring it up to date from the other servers"
    )]
    CatalogueDamaged {
        /// How the damage shows.
        what: String,
    },
    /// A size that no pool can have.
    #[error("a pool has 64K to 16T bytes, in steps of 4K, not {0}")]
    BadSize(u64),
    /// The medium failed while the pool was made or recovered.
    #[error("the medium of this pool failed ({0}); check the disk")]
    Medium(String),
}

/// Debug is the sentence as well: it is what a program prints whose `main` returns the error.
impl std::fmt::Debug for OpenError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// Why a pool refuses a request.
#[derive(Clone, PartialEq, Eq, Error)]
pub enum PoolError {
    /// There is no room for the data.
    #[error(
        "the pool is full: {wanted} more bytes were asked for and {free} are free; delete blobs or serve a larger pool"
    )]
    Full {
        /// Bytes that were asked for, beyond what the reservation has.
        wanted: u64,
        /// Bytes that are free for data in the whole pool.
        free: u64,
    },
    /// Enough room, but in too many pieces.
    #[error("the pool is too fragmented for a blob of this size; delete blobs or serve a larger pool")]
    Fragmented,
    /// There is no room for the record in the catalogue.
    #[error("the catalogue of the pool is full; delete blobs or serve a larger pool")]
    CatalogueFull,
    /// The name stands for no blob.
    #[error("there is no blob named \"{0}\"")]
    NoSuchBlob(BlobName),
    /// The reservation is not there, or not any more.
    #[error("the reservation is unknown; it was committed, given up, or the server restarted since")]
    NoSuchReservation,
    /// The lease is not there, or not any more.
    #[error("the read lease is unknown; it was released, or the server restarted since")]
    NoSuchLease,
    /// A commit of more bytes than were reserved.
    #[error("{len} bytes were committed where {reserved} were reserved")]
    TooLong {
        /// Bytes that the blob was to have.
        len: u64,
        /// Bytes that were reserved for it.
        reserved: u64,
    },
    /// A commit before the data was made durable.
    #[error("the data was not made durable before its commit")]
    NotDurable,
    /// The last version number was given out.
    #[error("the version numbers of this pool are used up; copy its blobs to a new one")]
    NumbersUsedUp,
    /// Another writer's version is higher than that of the commit.
    #[error("a newer version ({current}) of this blob is there already")]
    Superseded {
        /// The version that the pool holds.
        current: Version,
    },
    /// The medium failed; from here on the pool refuses all changes, as nothing can be known to be durable.
    #[error(
        "the medium of the pool failed ({0}) and nothing more can be made durable; check the disk and restart the server"
    )]
    Medium(String),
}

/// Debug is the sentence as well: it is what a program prints whose `main` returns the error.
impl std::fmt::Debug for PoolError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl PoolError {
    /// The error of a pool whose medium failed so.
    #[must_use]
    pub fn medium(error: &io::Error) -> Self {
        Self::Medium(error.to_string())
    }
}

impl OpenError {
    /// The error of a pool whose medium failed so.
    #[must_use]
    pub fn medium(error: &io::Error) -> Self {
        Self::Medium(error.to_string())
    }

    /// The error of a pool whose catalogue is damaged; `what` says how it shows.
    #[must_use]
    pub fn catalogue(what: impl Into<String>) -> Self {
        Self::CatalogueDamaged { what: what.into() }
    }
}
