//! What can go wrong, each as one sentence that says what to do.

use std::net::SocketAddr;

use remanence_kv::client;
use remanence_kv::proto::Refusal;
use remanence_kv::server::OpenError;

/// Why a call failed.
#[derive(thiserror::Error)]
pub enum Error {
    /// The connection failed, or the memory could not be exported.
    #[error(transparent)]
    Remote(#[from] remanence_remote::Error),
    /// The memory could not be opened or made.
    #[error(transparent)]
    Memory(#[from] remanence_pmem::Error),
    /// The memory has no store that can be opened, and none can be made in it.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The memory has something else than a store.
    #[error("there is something else than a store in it; name another file, or remove this one")]
    SomethingElse,
    /// The argument does not fit the store that is there; the sentence says why.
    #[error("{0}")]
    Argument(String),
    /// The server refused.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Who listens there serves something else.
    #[error("{0} is no key-value server; check the port")]
    Stranger(SocketAddr),
    /// The server, or the client, speaks another version.
    #[error(
        "{peer} speaks version {theirs} of the store's protocol, and this is version {}; use the same release on both sides",
        super::wire::VERSION
    )]
    OtherVersion {
        /// The address of the server.
        peer: SocketAddr,
        /// The version of the protocol that the server speaks.
        theirs: u16,
    },
    /// The server said something that makes no sense.
    #[error("the server's answer means nothing ({0}); use the same release on both sides")]
    Protocol(&'static str),
    /// The connection broke when the change may have been made already.
    #[error(
        "the connection broke while the change was under way ({}): it was made or it was not; read the key to find out",
        .0.reason()
    )]
    Unknown(Box<Self>),
    /// The connection broke, and the server has had no sign of a write's progress for longer than its lease.
    #[error(
        "no part of a write arrived within the server's lease of {} ms, so the server will have ended the connection ({why}); \
         have it serve with a longer lease, or write less at a time",
        lease.as_millis()
    )]
    Outlasted {
        /// How long the server lets a write be without a sign of progress.
        lease: std::time::Duration,
        /// The reason for which the connection ended.
        why: String,
    },
    /// The connection broke before the change was begun.
    #[error("nothing was changed, as {0}")]
    Lost(String),
    /// An operation did not end within the time that it was given.
    #[error("the time that it was given is over, and nothing was changed; give it more, or try again")]
    Late,
    /// A change did not end within the time that it was given.
    #[error(
        "the time that it was given is over, and the change was under way: it was made or it was not; read the key to find out"
    )]
    LateUnknown,
    /// Nobody can tell any more which keys these values had.
    #[error(
        "{} damaged so much that nobody can tell whose; have the store scrubbed, and restore it from a copy",
        if *.0 == 1 { "1 value is".to_owned() } else { format!("{} values are", .0) }
    )]
    Nameless(u32),
    /// Who answered is not known to be the primary any more.
    #[error(
        "the member that answered may have been replaced as the primary, so its answer does not count; connect again"
    )]
    Deposed,
    /// No member serves.
    #[error("no member serves the store at the moment: {0}")]
    NoPrimary(String),
    /// Others were in the way for so many seconds; the text says who.
    #[error("others have been in the way for {0} s: {1}")]
    Waited(u64, &'static str),
}

/// Debug is the sentence as well: it is what a program prints whose `main` returns the error.
impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl From<client::Error> for Error {
    fn from(error: client::Error) -> Self {
        match error {
            client::Error::Refused(refusal) => Self::Refused(refusal),
            client::Error::Protocol(what) => Self::Protocol(what),
        }
    }
}

impl Error {
    /// Why, without what became of the change: that is somebody else's to say.
    pub(super) fn reason(&self) -> String {
        match self {
            Self::Lost(why) => why.clone(),
            Self::Unknown(why) => why.reason(),
            Self::Late => "the time that it was given is over".to_owned(),
            other => other.to_string(),
        }
    }

    /// Whether the session is over: another one may go better.
    pub(super) const fn is_end(&self) -> bool {
        use remanence_remote::Error as Remote;
        match self {
            Self::Remote(error) => {
                !matches!(error, Remote::Argument(_) | Remote::NoRecipe(_) | Remote::Application(_))
            }
            Self::Refused(Refusal::Fenced) | Self::Deposed | Self::Outlasted { .. } => true,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_know_does_not_say_that_nothing_was_changed() {
        let broke = || Error::Lost("the server ended the connection".to_owned());
        for inner in [broke(), Error::Unknown(Box::new(broke())), Error::Late, Error::Deposed] {
            let said = Error::Unknown(Box::new(inner)).to_string();
            assert!(!said.contains("nothing was changed"), "{said}");
            assert_eq!(said.matches("it was made or it was not").count(), 1, "{said}");
        }
        assert!(broke().to_string().starts_with("nothing was changed, as the server ended"), "{}", broke());
    }
}
