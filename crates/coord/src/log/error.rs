//! What can go wrong with a log, each as one sentence that says what is safe and what to do.

use std::io;

use thiserror::Error;

use crate::log::format::{Epoch, VERSION};

/// Why a region cannot be opened as a log.
#[derive(Clone, PartialEq, Eq, Error)]
pub enum OpenError {
    /// The file does not begin with a log's magic number.
    #[error("this is not a log; name another file, or remove this one to have a new log made in its place")]
    NotALog,
    /// The page in which a superblock belongs is all zeros, or that of a log whose making was interrupted.
    #[error("this file holds no log, only zeros; remove it to have a new log made in its place")]
    Blank,
    /// The file is shorter than a superblock.
    #[error(
        "this file has only {len} bytes, too few for a log; remove it to have a new log made in its place"
    )]
    TooShort {
        /// Bytes of the region.
        len: u64,
    },
    /// The log was written by a machine, or a program, that swaps bytes.
    #[error(
        "this log was written in the other byte order; serve it on the machine that wrote it, and copy its records over"
    )]
    OtherByteOrder,
    /// The file has another version of the format.
    #[error(
        "this log has format version {found}, and this program reads version {VERSION}; nothing was changed: serve it with \
         the release that made it, and copy its records over"
    )]
    OtherVersion {
        /// The version that the file names.
        found: u32,
    },
    /// The superblock's checksum is wrong.
    #[error(
        "the superblock of this log is damaged, so none of its records can be told from other bytes; restore the file from a \
         copy; if the log has other servers, a new one in its place is rebuilt from them"
    )]
    SuperblockDamaged,
    /// The file is shorter than its log, as it was cut.
    #[error(
        "this log was truncated: {len} of {log} bytes are left; restore the file from a copy; if the log has other servers, a \
         new one in its place is rebuilt from them"
    )]
    Truncated {
        /// Bytes of the region.
        len: u64,
        /// Bytes of the log.
        log: u64,
    },
    /// The file is longer than its log, as something was appended.
    #[error(
        "this file has {len} bytes, but the log in it only {log}; cut it back with `truncate -s {log}` if nothing else is \
         meant to be in it"
    )]
    Grown {
        /// Bytes of the region.
        len: u64,
        /// Bytes of the log.
        log: u64,
    },
    /// Both slots of the root record are bad.
    #[error(
        "both root records of this log are damaged, so that it is not known where it begins; restore the file from a copy; \
         if the log has other servers, a new one in its place is rebuilt from them"
    )]
    RootDamaged,
    /// A size that no log can have.
    #[error(
        "a region of {size} bytes cannot hold segments of {segment} bytes; a log needs 16K and at least two segments of \
         256 bytes to 1G, a multiple of 8"
    )]
    BadGeometry {
        /// Bytes of the region.
        size: u64,
        /// Bytes that each segment was to have.
        segment: u64,
    },
    /// The medium failed.
    #[error("the medium of this log failed ({0}); check the disk")]
    Medium(String),
}

/// Debug is the sentence as well: it is what a program prints whose `main` returns the error.
impl std::fmt::Debug for OpenError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl OpenError {
    pub(crate) fn medium(error: &io::Error) -> Self {
        Self::Medium(error.to_string())
    }
}

/// What is wrong at the place where a record should be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Fault {
    /// There are zeros, or the segment ends there.
    #[error("nothing is there")]
    Nothing,
    /// The length of the record leads out of the segment.
    #[error("its length is impossible")]
    Length,
    /// A record with a number above the one that is due is there.
    #[error("another record is there")]
    Sequence,
    /// A record is there that was cut off: its stamp is from before a fence, or its writer is older than that of the
    /// record before it.
    #[error("a record that was cut off is there")]
    Stale,
    /// The checksum of the record is wrong.
    #[error("its checksum is wrong")]
    Checksum,
    /// The record is whole, but does not end where the tail says.
    #[error("the tail word does not point behind a record")]
    Tail,
}

/// How it is known that the record was whole once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Proof {
    /// The tail word points behind the place, and it is written only when the records before it are durable.
    #[error("the tail word lies behind it")]
    Tail,
    /// A later record is whole, whose writer had been told that this one is durable.
    #[error("the writer of record {sequence} had been told that it is durable")]
    Later {
        /// The number of that later record.
        sequence: u64,
    },
    /// The root record says that the log went further: a promise or an acknowledgement was noted in it.
    #[error("the root record says that the log reached {sequence}")]
    Root {
        /// The number that the log had reached: all records below it were there.
        sequence: u64,
    },
}

/// A record that was durable and is not whole any more: a crash cannot do that, a failing medium or a stray writer can.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error(
    "record {sequence} (byte {offset}) is damaged: {fault}, and {proof}; {}, and what follows is not safe to use; {}, \
     or give the rest up with `rem log serve --cut {sequence}`",
    safe(*.first, *.sequence),
    mended(*.members, *.acks)
)]
pub struct Damage {
    /// The first record that is not there.
    pub sequence: u64,
    /// The first one that was not trimmed.
    pub first: u64,
    /// Where it should be, in the region.
    pub offset: u64,
    /// What is wrong at that place.
    pub fault: Fault,
    /// How it is known that it was whole.
    pub proof: Proof,
    /// How many servers the log has, this one included; 0 if it never had a writer.
    pub members: u16,
    /// How many of them must have a record before it is acknowledged.
    pub acks: u16,
}

/// Where what is lost here may be found. A log with a damaged server is opened, and the server rebuilt, only by others of which each
/// acknowledged record has one (`group`).
const fn mended(members: u16, acks: u16) -> &'static str {
    match (members, acks) {
        (0 | 1, _) => "this is the log's only server, so restore the file from a copy",
        (_, 0 | 1) => {
            "one server was enough to acknowledge a record, so the others cannot stand in for this one: restore the file from a copy"
        }
        _ => {
            "the log's other servers have what was acknowledged: open the log with them, and this one is rebuilt"
        }
    }
}

fn safe(first: u64, bad: u64) -> String {
    match bad.saturating_sub(first) {
        0 => "no record before it is left".into(),
        1 => format!("record {first} is whole and safe"),
        _ => format!("records {first} to {} are whole and safe", bad - 1),
    }
}

/// Why a server does not do what a client asks of its log.
#[derive(Clone, PartialEq, Eq, Error)]
pub enum Refused {
    /// The writer is not the one that the log is promised to.
    #[error(
        "a newer writer (epoch {promised}) has taken the log over; nothing that it has not acknowledged was lost: open the \
         log again to write to it"
    )]
    Fenced {
        /// The epoch that the server listens to.
        promised: Epoch,
    },
    /// The log has no record of that number.
    #[error("record {asked} is not in the log, which has {first} to {next} (exclusive)")]
    NotThere {
        /// The number of the record that was asked for.
        asked: u64,
        /// The number of the first record in the log.
        first: u64,
        /// One more than the number of the last record in the log.
        next: u64,
    },
    /// A record is damaged: what was asked for lies behind it, or cannot be done with a damaged log.
    #[error("{0}")]
    Damaged(Damage),
    /// The request makes no sense.
    #[error("the request is not one of this protocol ({0}); use the same release on both sides")]
    Nonsense(String),
    /// The connection of an older writer is being cut.
    #[error("the server is cutting the connection of an older writer; ask again")]
    Busy,
    /// The server refused for another reason, in this sentence.
    #[error("{0}")]
    Said(String),
    /// The medium failed; from here on nothing is changed, as nothing can be known to be durable.
    #[error(
        "the medium of the log failed ({0}) and nothing more can be made durable; what was acknowledged before is safe if \
         the disk is: check it, and restart the server"
    )]
    Medium(String),
}

/// Debug is the sentence as well: it is what a program prints whose `main` returns the error.
impl std::fmt::Debug for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl Refused {
    pub(crate) fn medium(error: &impl ToString) -> Self {
        Self::Medium(error.to_string())
    }
}

/// Why a record was not appended. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Error)]
pub enum AppendError {
    /// The record is longer than any that the log can have.
    #[error(
        "a record of {len} bytes does not fit into a segment, which takes {max}; split it, or make a log with longer segments"
    )]
    TooLong {
        /// Bytes of payload.
        len: u64,
        /// Bytes of payload that a record of this log can have at most.
        max: u64,
    },
    /// The log has no room for the record until records are trimmed.
    #[error(
        "the log is full: {needed} bytes are needed and {free} are free; trim records that were applied, or serve a larger log"
    )]
    Full {
        /// Bytes that the record takes, with what stays unused at the end of a segment.
        needed: u64,
        /// Bytes that are free in the log.
        free: u64,
    },
}

/// Debug is the sentence as well: it is what a program prints whose `main` returns the error.
impl std::fmt::Debug for AppendError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// A server's connection is gone, or never was there. A sentence that says why.
#[derive(Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct ConnectionLost(pub String);

/// Debug is the sentence as well: it is what a program prints whose `main` returns the error.
impl std::fmt::Debug for ConnectionLost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}
