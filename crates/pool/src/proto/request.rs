//! What a client asks for.

use super::{Malformed, Put, Take, Writer, message, open};
use crate::auth::{Nonce, Proof};
use crate::blob::{BlobName, Digest, Version};

/// What a client asks its server for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// The first message of a client.
    Hello {
        /// The client's nonce.
        nonce: Nonce,
    },
    /// The second message of a client.
    Authenticate {
        /// Proves that the client has the token.
        proof: Proof,
    },
    /// Asks whether the server is there.
    Ping,
    /// Opens a reservation for a blob.
    Reserve {
        /// The name that the blob shall have.
        name: BlobName,
        /// Room to begin with; zero is allowed.
        bytes: u64,
        /// Where so much is not free, this much will do: a stream does not know what it will need.
        at_least: u64,
    },
    /// Asks for more room in a reservation.
    Extend {
        /// The reservation, as `Reserved` named it.
        reservation: u64,
        /// Bytes of room to add.
        bytes: u64,
        /// Where so much is not free, this much will do, as for `Reserve`.
        at_least: u64,
    },
    /// The data is complete and was flushed with persistence placement; make it the blob.
    Commit {
        /// The reservation, as `Reserved` named it.
        reservation: u64,
        /// The blob's version.
        version: Version,
        /// Bytes of the blob, not more than are reserved.
        len: u64,
        /// The digest of the blob's bytes, which readers compare with what they have read.
        digest: Digest,
    },
    /// Gives a reservation or scratch memory up.
    Abandon {
        /// The reservation, as `Reserved` named it.
        reservation: u64,
    },
    /// Opens a blob for reading.
    Lookup {
        /// The name of the blob to be read.
        name: BlobName,
    },
    /// The next extents of a blob opened for reading.
    MoreExtents {
        /// The lease, as `Found` named it.
        lease: u64,
        /// How many are known already.
        from: u32,
    },
    /// Says that reading is over.
    Release {
        /// The lease, as `Found` named it.
        lease: u64,
    },
    /// A page of the catalogue, in the order of the names, deletions included.
    List {
        /// The last name of the page before.
        after: Option<BlobName>,
    },
    /// Deletes a blob.
    Delete {
        /// The name of the blob, which need not be known to the server.
        name: BlobName,
        /// The deletion's version.
        version: Version,
    },
    /// Draws a version number above all that the server knows and gave out.
    Ticket,
    /// Asks the server to leave a version number behind: what it gives out from now on is above it.
    Promise {
        /// The number to be left behind.
        number: u64,
    },
    /// Asks what the pool is, and how full.
    Stat,
    /// Memory to measure with: never becomes a blob, allows every operation.
    Scratch {
        /// Bytes of memory that are asked for.
        bytes: u64,
    },
    /// The version of a name, deletions included.
    VersionOf {
        /// The name that is asked about; it need not be known to the server.
        name: BlobName,
    },
}

mod kind {
    pub(super) const HELLO: u8 = 1;
    pub(super) const AUTHENTICATE: u8 = 2;
    pub(super) const PING: u8 = 3;
    pub(super) const RESERVE: u8 = 4;
    pub(super) const EXTEND: u8 = 5;
    pub(super) const COMMIT: u8 = 6;
    pub(super) const ABANDON: u8 = 7;
    pub(super) const LOOKUP: u8 = 8;
    pub(super) const MORE_EXTENTS: u8 = 9;
    pub(super) const RELEASE: u8 = 10;
    pub(super) const LIST: u8 = 11;
    pub(super) const DELETE: u8 = 12;
    pub(super) const STAT: u8 = 13;
    pub(super) const SCRATCH: u8 = 14;
    pub(super) const VERSION_OF: u8 = 15;
    pub(super) const TICKET: u8 = 16;
    pub(super) const PROMISE: u8 = 17;
}

impl Request {
    /// The message to send.
    #[must_use]
    pub fn emit(&self, number: u32) -> Vec<u8> {
        message(self.kind(), number, |w| self.emit_body(w))
    }

    const fn kind(&self) -> u8 {
        match self {
            Self::Hello { .. } => kind::HELLO,
            Self::Authenticate { .. } => kind::AUTHENTICATE,
            Self::Ping => kind::PING,
            Self::Reserve { .. } => kind::RESERVE,
            Self::Extend { .. } => kind::EXTEND,
            Self::Commit { .. } => kind::COMMIT,
            Self::Abandon { .. } => kind::ABANDON,
            Self::Lookup { .. } => kind::LOOKUP,
            Self::MoreExtents { .. } => kind::MORE_EXTENTS,
            Self::Release { .. } => kind::RELEASE,
            Self::List { .. } => kind::LIST,
            Self::Delete { .. } => kind::DELETE,
            Self::Stat => kind::STAT,
            Self::Scratch { .. } => kind::SCRATCH,
            Self::VersionOf { .. } => kind::VERSION_OF,
            Self::Ticket => kind::TICKET,
            Self::Promise { .. } => kind::PROMISE,
        }
    }

    fn emit_body(&self, w: &mut Writer) {
        match self {
            Self::Hello { nonce } => w.bytes(nonce),
            Self::Authenticate { proof } => w.bytes(proof),
            Self::Ping | Self::Stat | Self::Ticket => {}
            Self::Promise { number } => w.u64_be(*number),
            Self::Reserve { name, bytes, at_least } => {
                w.text(name.as_str());
                w.u64_be(*bytes);
                w.u64_be(*at_least);
            }
            Self::Extend { reservation, bytes, at_least } => {
                w.u64_be(*reservation);
                w.u64_be(*bytes);
                w.u64_be(*at_least);
            }
            Self::Commit { reservation, version, len, digest } => {
                w.u64_be(*reservation);
                w.version(*version);
                w.u64_be(*len);
                w.bytes(&digest.0);
            }
            Self::Abandon { reservation } => w.u64_be(*reservation),
            Self::Lookup { name } | Self::VersionOf { name } => w.text(name.as_str()),
            Self::MoreExtents { lease, from } => {
                w.u64_be(*lease);
                w.u32_be(*from);
            }
            Self::Release { lease } => w.u64_be(*lease),
            Self::List { after } => {
                w.u8(after.is_some().into());
                after.iter().for_each(|name| w.text(name.as_str()));
            }
            Self::Delete { name, version } => {
                w.text(name.as_str());
                w.version(*version);
            }
            Self::Scratch { bytes } => w.u64_be(*bytes),
        }
    }

    /// Reads a message: its number and the request.
    ///
    /// # Errors
    /// The bytes are no request of this protocol.
    pub fn parse(bytes: &[u8]) -> Result<(u32, Self), Malformed> {
        let (kind, number, mut r) = open(bytes)?;
        let request = match kind {
            kind::HELLO => Self::Hello { nonce: r.array()? },
            kind::AUTHENTICATE => Self::Authenticate { proof: r.array()? },
            kind::PING => Self::Ping,
            kind::RESERVE => Self::Reserve { name: r.name()?, bytes: r.u64_be()?, at_least: r.u64_be()? },
            kind::EXTEND => {
                Self::Extend { reservation: r.u64_be()?, bytes: r.u64_be()?, at_least: r.u64_be()? }
            }
            kind::COMMIT => Self::Commit {
                reservation: r.u64_be()?,
                version: r.version()?,
                len: r.u64_be()?,
                digest: r.digest()?,
            },
            kind::ABANDON => Self::Abandon { reservation: r.u64_be()? },
            kind::LOOKUP => Self::Lookup { name: r.name()? },
            kind::MORE_EXTENTS => Self::MoreExtents { lease: r.u64_be()?, from: r.u32_be()? },
            kind::RELEASE => Self::Release { lease: r.u64_be()? },
            kind::LIST => Self::List { after: if r.bool()? { Some(r.name()?) } else { None } },
            kind::DELETE => Self::Delete { name: r.name()?, version: r.version()? },
            kind::STAT => Self::Stat,
            kind::SCRATCH => Self::Scratch { bytes: r.u64_be()? },
            kind::VERSION_OF => Self::VersionOf { name: r.name()? },
            kind::TICKET => Self::Ticket,
            kind::PROMISE => Self::Promise { number: r.u64_be()? },
            _ => return r.fail(),
        };
        r.end()?;
        Ok((number, request))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(in crate::proto) fn name() -> impl Strategy<Value = BlobName> {
        "[a-zA-Z0-9/._ü]{1,500}".prop_map(|n| BlobName::new(&n).expect("a fair name"))
    }

    pub(in crate::proto) fn version() -> impl Strategy<Value = Version> {
        any::<(u64, u64)>().prop_map(|(counter, writer)| Version { counter, writer })
    }

    fn request() -> impl Strategy<Value = Request> {
        let n = any::<u64>;
        prop_oneof![
            any::<[u8; 32]>().prop_map(|nonce| Request::Hello { nonce }),
            any::<[u8; 32]>().prop_map(|proof| Request::Authenticate { proof }),
            Just(Request::Ping),
            (name(), n(), n()).prop_map(|(name, bytes, at_least)| Request::Reserve { name, bytes, at_least }),
            (n(), n(), n()).prop_map(|(reservation, bytes, at_least)| Request::Extend {
                reservation,
                bytes,
                at_least
            }),
            (n(), version(), n(), any::<[u8; 32]>()).prop_map(|(reservation, version, len, digest)| {
                Request::Commit { reservation, version, len, digest: Digest(digest) }
            }),
            n().prop_map(|reservation| Request::Abandon { reservation }),
            name().prop_map(|name| Request::Lookup { name }),
            (n(), any::<u32>()).prop_map(|(lease, from)| Request::MoreExtents { lease, from }),
            n().prop_map(|lease| Request::Release { lease }),
            prop::option::of(name()).prop_map(|after| Request::List { after }),
            (name(), version()).prop_map(|(name, version)| Request::Delete { name, version }),
            Just(Request::Stat),
            n().prop_map(|bytes| Request::Scratch { bytes }),
            name().prop_map(|name| Request::VersionOf { name }),
            Just(Request::Ticket),
            n().prop_map(|number| Request::Promise { number }),
        ]
    }

    proptest! {
        #[test]
        fn what_was_emitted_is_parsed_and_nothing_shorter_or_longer(request in request(), number in any::<u32>()) {
            let bytes = request.emit(number);
            for cut in 0..bytes.len() {
                prop_assert!(Request::parse(&bytes[..cut]).is_err());
            }
            prop_assert!(Request::parse(&[&bytes[..], &[0]].concat()).is_err());
            prop_assert_eq!(Request::parse(&bytes), Ok((number, request)));
        }

        #[test]
        fn any_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..300), kind in 0_u8..20) {
            let _ = Request::parse(&bytes);
            let _ = Request::parse(&message(kind, 1, |w| w.bytes(&bytes)));
        }
    }

    #[test]
    fn a_longer_message_than_agreed_is_not_looked_at() {
        let mut bytes = Request::Ping.emit(1);
        bytes.resize(super::super::MAX_MESSAGE + 1, 0);
        assert!(Request::parse(&bytes).is_err());
    }
}
