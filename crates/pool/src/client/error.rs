//! What a client tells its user, one sentence each.

use std::fmt;
use std::io;
use std::time::Duration;

use thiserror::Error;

use crate::blob::BlobName;
use crate::proto::Code;

/// Why one server is of no use now.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum LossReason {
    /// No connection could be made.
    #[error("cannot be reached ({0})")]
    Unreachable(String),
    /// The server stopped answering.
    #[error("stopped answering; it was killed, its machine is down, or the network is")]
    Silent,
    /// The server's device goes on, and its program has not answered for so long.
    #[error(
        "has not answered for {} s, though its device does; it was stopped, or its disk does not answer: look at it there, or start it again",
        .0.as_secs_f32()
    )]
    Stuck(Duration),
    /// The server ended the connection.
    #[error("ended the connection; it was stopped")]
    Left,
    /// None of our tokens is its own.
    #[error("has another token; use the one that it printed or keeps in its token file")]
    WrongToken,
    /// The server did not prove that it has the token.
    #[error("could not prove that it has the token, so nothing was sent to it; check the address")]
    Impostor,
    /// The server refused a request.
    #[error("{reason}")]
    Refused {
        /// The kind of refusal, for programs.
        code: Code,
        /// The sentence that the server gave.
        reason: String,
    },
    /// The server refused an access to its memory, or the operation failed there.
    #[error("failed while data was moved ({0})")]
    Access(String),
    /// The server said something that makes no sense.
    #[error("answered nonsense; check that it runs the same release")]
    Nonsense,
    /// What the server has is not what was put there.
    #[error("has other bytes than were put there")]
    Damaged,
    /// Our own side could not go on.
    #[error("could not be served by this side ({0})")]
    Local(String),
}

/// A server that is of no use, and why.
#[derive(Clone, PartialEq, Eq)]
pub struct Lost {
    /// The server, as its user named it.
    pub server: String,
    /// The reason for which the server is of no use.
    pub why: LossReason,
}

/// Debug is the sentence as well: it is what a program prints whose `main` returns the error.
impl fmt::Debug for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.server, self.why)
    }
}

impl std::error::Error for Lost {}

/// Several of them, in one sentence.
pub(crate) fn list(lost: &[Lost]) -> String {
    let words: Vec<String> = lost.iter().map(Lost::to_string).collect();
    if words.is_empty() { "no server was named".into() } else { words.join("; ") }
}

/// Why a client's request failed.
#[derive(Error)]
pub enum Error {
    /// Too few of the servers can be used.
    #[error("only {have} of the {need} servers that were asked for can be used: {}", list(lost))]
    TooFew {
        /// How many servers can be used.
        have: usize,
        /// How many servers are needed.
        need: usize,
        /// The servers that cannot be used, and why.
        lost: Vec<Lost>,
    },
    /// Fewer than a majority of the servers.
    #[error(
        "only {have} of {servers} servers can be used, and it takes {need} to know what was put last: {}",
        list(lost)
    )]
    NoMajority {
        /// How many servers can be used.
        have: usize,
        /// How many servers there are.
        servers: usize,
        /// How many servers are needed.
        need: usize,
        /// Those that cannot be used, and why.
        lost: Vec<Lost>,
    },
    /// Too few servers beside one that is to be brought up to date.
    #[error(
        "only {have} of the {need} other servers can be used that it takes to know what was put last: {}",
        list(lost)
    )]
    TooFewSources {
        /// How many of the others can be used.
        have: usize,
        /// How many of them are needed: what the one has said itself does not count, as its disk may be a new one.
        need: usize,
        /// Those that cannot be used, and why.
        lost: Vec<Lost>,
    },
    /// The newest version is on too few servers, and could not be brought to more.
    #[error(
        "the newest version of \"{name}\" is on {have} of {servers} servers, of a put that did not end well, and cannot be brought to more ({why}); put the blob again, or delete it"
    )]
    Unsettled {
        /// The blob whose newest version it is.
        name: BlobName,
        /// How many servers have that version.
        have: usize,
        /// How many servers there are.
        servers: usize,
        /// The reason for which it cannot be brought to more.
        why: String,
    },
    /// Others put the blob each time that it was about to be read.
    #[error("\"{0}\" was put anew each time that it was about to be read; try again")]
    Busy(BlobName),
    /// The blob is gone from fewer servers than the quorum.
    #[error(
        "\"{name}\" is durably gone from {have} servers, and {need} were asked for: {}; delete it again when that is mended, until then it may be there or not",
        list(lost)
    )]
    NotGone {
        /// The blob that was to be deleted.
        name: BlobName,
        /// From how many servers the blob is gone.
        have: usize,
        /// From how many servers it should be gone.
        need: usize,
        /// Those that still may have it, and why.
        lost: Vec<Lost>,
    },
    /// The blob is on fewer servers than the quorum.
    #[error(
        "\"{name}\" is durable on {have} servers, and {need} were asked for: {}; {}",
        list(lost),
        what_is_there(*have, lost)
    )]
    NoQuorum {
        /// The blob that was put.
        name: BlobName,
        /// On how many servers the blob is durable.
        have: usize,
        /// On how many servers it should be durable.
        need: usize,
        /// The servers on which it may not be durable, and why.
        lost: Vec<Lost>,
    },
    /// None of the servers has a blob of that name.
    #[error("there is no blob named \"{0}\" on these servers")]
    NotFound(BlobName),
    /// Nobody can give the blob.
    #[error("\"{name}\" cannot be read: {}", list(lost))]
    Unreadable {
        /// The blob that was to be read.
        name: BlobName,
        /// Who has it, and why that is of no use.
        lost: Vec<Lost>,
    },
    /// The quorum makes no sense.
    #[error("a quorum of {quorum} is not possible with {servers} servers")]
    BadQuorum {
        /// The quorum that was asked for.
        quorum: usize,
        /// How many servers there are.
        servers: usize,
    },
    /// One server was named twice, and would count as two.
    #[error("{one} and {other} are one server, which cannot count as two; name each once")]
    Twice {
        /// One of the names that the user gave.
        one: String,
        /// Another name of the same server, as the user gave it.
        other: String,
    },
    /// The quorum is less than a majority.
    #[error(
        "a quorum of {quorum} is no majority of {servers} servers: who reads later could miss what it acknowledged; ask for {need} at least"
    )]
    SmallQuorum {
        /// The quorum that was asked for.
        quorum: usize,
        /// How many servers there are.
        servers: usize,
        /// How many make a majority.
        need: usize,
    },
    /// The source or the destination of the data failed.
    #[error("{what} ({error})")]
    Io {
        /// What was tried with it, as the beginning of a sentence.
        what: String,
        /// The error of the system call.
        error: io::Error,
    },
    /// The device refused.
    #[error("the network device cannot be used ({0})")]
    Device(#[from] remanence_verbs::Error),
}

/// What whoever reads a blob finds that was put on too few servers.
fn what_is_there(have: usize, lost: &[Lost]) -> &'static str {
    let has_refused = |lost: &Lost| matches!(lost.why, LossReason::Refused { code: Code::Full, .. });
    if have == 0 && !lost.is_empty() && lost.iter().all(has_refused) {
        "nothing of it was written, and what was there before is there still"
    } else {
        "put it again when that is mended, until then who reads it may find this one or the one before"
    }
}

/// Debug is the sentence as well: it is what a program prints whose `main` returns the error.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_refused_for_want_of_room_is_not_told_of_what_was_not_written() {
        let why = |code| LossReason::Refused { code, reason: "has no room".into() };
        let said = |have, all: &[LossReason]| {
            let lost = all.iter().map(|why| Lost { server: "a".into(), why: why.clone() }).collect();
            let name = BlobName::new("blob").expect("a fair name");
            Error::NoQuorum { name, have, need: 2, lost }.to_string()
        };
        assert!(
            said(0, &[why(Code::Full), why(Code::Full)]).ends_with("what was there before is there still")
        );
        for (have, all) in
            [(1, vec![why(Code::Full)]), (0, vec![why(Code::Full), LossReason::Silent]), (0, vec![])]
        {
            assert!(said(have, &all).ends_with("this one or the one before"), "{have}, {all:?}");
        }
    }
}
