//! What a client asks for.

use remanence_codec::tagged;

use super::{Malformed, Pool, message, open};
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

tagged! { Pool: Request {
    1 = Hello { nonce },
    2 = Authenticate { proof },
    3 = Ping,
    4 = Reserve { name, bytes, at_least },
    5 = Extend { reservation, bytes, at_least },
    6 = Commit { reservation, version, len, digest },
    7 = Abandon { reservation },
    8 = Lookup { name },
    9 = MoreExtents { lease, from },
    10 = Release { lease },
    11 = List { after },
    12 = Delete { name, version },
    13 = Stat,
    14 = Scratch { bytes },
    15 = VersionOf { name },
    16 = Ticket,
    17 = Promise { number },
} }

impl Request {
    /// The message to send.
    #[must_use]
    pub fn emit(&self, number: u32) -> Vec<u8> {
        message(self.tag(), number, |w| self.emit_fields(w))
    }

    /// Reads a message: its number and the request.
    ///
    /// # Errors
    /// The bytes are no request of this protocol.
    pub fn parse(bytes: &[u8]) -> Result<(u32, Self), Malformed> {
        let (kind, number, mut r) = open(bytes)?;
        let request = Self::parse_fields(kind, &mut r)?;
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
