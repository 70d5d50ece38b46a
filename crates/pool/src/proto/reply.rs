//! What a server answers.

use remanence_codec::{clipped, printable, tagged};

use super::{MAX_MESSAGE, Malformed, Pool, RemoteExtent, message, open};
use crate::auth::{Fingerprint, Nonce, Proof};
use crate::blob::{Digest, Listing, Version};
use crate::format::superblock::Uuid;
use remanence_pmem::{Guarantee, PersistenceDomain};

/// The kinds of refusal that a client treats differently.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Code {
    /// The token is wrong.
    WrongToken = 1,
    /// Too many wrong tokens came from this address.
    TryLater = 2,
    /// No such blob, reservation or lease.
    NotFound = 3,
    /// The pool, or its catalogue, has no room for it.
    Full = 4,
    /// A newer version is there.
    Superseded = 5,
    /// The server cannot make anything durable any more.
    Failed = 6,
    /// The request makes no sense as things are.
    Refused = 7,
    /// The server stops.
    Stopping = 8,
}

impl Code {
    pub(super) const ALL: [Self; 8] = [
        Self::WrongToken,
        Self::TryLater,
        Self::NotFound,
        Self::Full,
        Self::Superseded,
        Self::Failed,
        Self::Refused,
        Self::Stopping,
    ];
}

/// What a server is and how full its pool is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PoolInfo {
    /// The pool's UUID, drawn when it was made, by which a server that was named twice is found out.
    pub uuid: Uuid,
    /// Bytes of the whole pool.
    pub size: u64,
    /// Bytes that blobs can have in all.
    pub capacity: u64,
    /// Bytes of these that are free.
    pub free: u64,
    /// How many names stand for a blob; deletions do not count.
    pub blobs: u64,
    /// Frames ever written to the catalogue.
    pub sequence: u64,
    /// The pool's persistence domain, and which failures its data survives.
    pub guarantee: Guarantee,
    /// One sentence: which failures its data survives.
    pub survives: String,
}

/// A server's answer to a request, or its refusal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// Answers `Hello`.
    Challenge {
        /// The server's nonce.
        nonce: Nonce,
        /// The fingerprint of the token that is asked for.
        fingerprint: Fingerprint,
    },
    /// Answers `Authenticate`: the client is admitted.
    Welcome {
        /// Proves that the server has the token too.
        proof: Proof,
        /// What the connection request of the data QP has to show.
        ticket: [u8; 16],
        /// What the server is, and how full its pool is.
        info: PoolInfo,
    },
    /// Answers requests that ask for nothing but to be carried out.
    Done,
    /// Answers `Reserve` and `Scratch`.
    Reserved {
        /// The number by which later requests name the reservation.
        reservation: u64,
        /// A version number above all that the server knows and gave out: the first half of choosing the blob's
        /// (`crate::quorum`). Zero for scratch memory.
        ticket: u64,
        /// Memory of the server to write to.
        extents: Vec<RemoteExtent>,
    },
    /// Answers `Ticket` and `Promise`: what the server gives out from now on is above the number, also after a crash.
    Promised {
        /// The highest number that it gave out or left behind.
        number: u64,
    },
    /// Answers `Extend` and `MoreExtents`.
    Extents {
        /// The extents that are new to the client.
        extents: Vec<RemoteExtent>,
    },
    /// Answers `Commit` and `Delete`: the change is durable.
    Committed {
        /// The version that is durable now.
        version: Version,
    },
    /// Answers `Lookup`.
    Found {
        /// The number by which later requests name the lease.
        lease: u64,
        /// The blob's version.
        version: Version,
        /// Bytes of the blob.
        len: u64,
        /// The digest that its writer gave with the commit.
        digest: Digest,
        /// How many extents it has.
        total: u32,
        /// The first extents of the blob, in its order; more are asked for with `MoreExtents`.
        extents: Vec<RemoteExtent>,
    },
    /// Answers `List`.
    Page {
        /// What follows the name that was asked from, in the order of the names.
        listings: Vec<Listing>,
        /// Whether more names follow.
        more: bool,
    },
    /// Answers `Stat`.
    Info(PoolInfo),
    /// Answers `VersionOf`.
    IsAt {
        /// The version of the blob or of its deletion; [`Version::NONE`] if the name is unknown.
        version: Version,
        /// Whether the name stands for a blob: it was neither deleted nor never there.
        live: bool,
    },
    /// Refuses a request of any kind.
    Refused {
        /// The kind of refusal, for the client's program.
        code: Code,
        /// The reason, for its user: one sentence.
        reason: String,
    },
}

tagged! { Pool: Reply {
    65 = Challenge { nonce, fingerprint },
    66 = Welcome { proof, ticket, info },
    67 = Done,
    68 = Reserved { reservation, ticket, extents },
    69 = Extents { extents },
    70 = Committed { version },
    71 = Found { lease, version, len, digest, total, extents },
    72 = Page { more, listings },
    73 = Info(info),
    74 = IsAt { version, live },
    75 = Refused { code, reason },
    76 = Promised { number },
} }

impl PoolInfo {
    /// What is known before the server said anything.
    #[must_use]
    pub fn unknown() -> Self {
        Self {
            uuid: Uuid([0; 16]),
            size: 0,
            capacity: 0,
            free: 0,
            blobs: 0,
            sequence: 0,
            guarantee: Guarantee::of(PersistenceDomain::Volatile),
            survives: String::new(),
        }
    }
}

/// The most bytes of a sentence in a message.
const MAX_TEXT: usize = 2000;

/// A text that may travel and be printed: without control characters, and not too long.
#[must_use]
pub fn sentence(text: &str) -> String {
    clipped(&printable(text.as_bytes()), MAX_TEXT).to_owned()
}

impl Reply {
    /// A refusal; the reason is made fit to travel.
    #[must_use]
    pub fn refused(code: Code, reason: &str) -> Self {
        Self::Refused { code, reason: sentence(reason) }
    }

    /// Fills a page with listings, as many as a message holds.
    #[must_use]
    pub fn page(listings: impl Iterator<Item = Listing>) -> Self {
        let (mut page, mut room) = (Vec::new(), MAX_MESSAGE - 64);
        let mut more = false;
        for listing in listings {
            let len = listing.name.as_str().len() + 64;
            if len > room {
                more = true;
                break;
            }
            room -= len;
            page.push(listing);
        }
        Self::Page { listings: page, more }
    }

    /// The message to send.
    #[must_use]
    pub fn emit(&self, number: u32) -> Vec<u8> {
        message(self.tag(), number, |w| self.emit_fields(w))
    }

    /// Reads a message: the number of the request and the reply.
    ///
    /// # Errors
    /// The bytes are no reply of this protocol.
    pub fn parse(bytes: &[u8]) -> Result<(u32, Self), Malformed> {
        let (kind, number, mut r) = open(bytes)?;
        let reply = Self::parse_fields(kind, &mut r)?;
        r.end()?;
        Ok((number, reply))
    }
}

#[cfg(test)]
mod tests {
    use super::super::EXTENTS_PER_MESSAGE;
    use super::super::request::tests::{name, version};
    use super::*;
    use crate::blob::State;
    use proptest::prelude::*;

    fn info() -> impl Strategy<Value = PoolInfo> {
        let domain = proptest::sample::select(PersistenceDomain::ALL.to_vec());
        (any::<[u8; 16]>(), any::<[u64; 5]>(), domain, "[a-zA-Z ,.]{0,200}").prop_map(
            |(uuid, n, domain, survives)| PoolInfo {
                uuid: Uuid(uuid),
                size: n[0],
                capacity: n[1],
                free: n[2],
                blobs: n[3],
                sequence: n[4],
                guarantee: Guarantee { declared: n[0] % 2 == 0, ..Guarantee::of(domain) },
                survives,
            },
        )
    }

    fn listing() -> impl Strategy<Value = Listing> {
        let state = prop_oneof![
            Just(State::Deleted),
            (any::<u64>(), any::<[u8; 32]>()).prop_map(|(len, d)| State::Live { len, digest: Digest(d) }),
        ];
        (name(), version(), state).prop_map(|(name, version, state)| Listing { name, version, state })
    }

    fn reply() -> impl Strategy<Value = Reply> {
        let n = any::<u64>;
        let extents = || {
            let half = u64::MAX / 2;
            let extent = (0..=half, 1..=half, any::<u32>());
            let extent = extent.prop_map(|(addr, len, rkey)| RemoteExtent { addr, len, rkey });
            prop::collection::vec(extent, 0..EXTENTS_PER_MESSAGE + 1)
        };
        prop_oneof![
            any::<([u8; 32], [u8; 8])>()
                .prop_map(|(nonce, f)| Reply::Challenge { nonce, fingerprint: Fingerprint(f) }),
            (any::<([u8; 32], [u8; 16])>(), info()).prop_map(|((proof, ticket), info)| Reply::Welcome {
                proof,
                ticket,
                info
            }),
            Just(Reply::Done),
            n().prop_map(|number| Reply::Promised { number }),
            (n(), n(), extents()).prop_map(|(reservation, ticket, extents)| Reply::Reserved {
                reservation,
                ticket,
                extents
            }),
            extents().prop_map(|extents| Reply::Extents { extents }),
            version().prop_map(|version| Reply::Committed { version }),
            (n(), version(), n(), any::<([u8; 32], u32)>(), extents()).prop_map(
                |(lease, version, len, (digest, total), extents)| Reply::Found {
                    lease,
                    version,
                    len,
                    digest: Digest(digest),
                    total,
                    extents
                }
            ),
            prop::collection::vec(listing(), 0..30).prop_map(|l| Reply::page(l.into_iter())),
            info().prop_map(Reply::Info),
            (version(), any::<bool>()).prop_map(|(version, live)| Reply::IsAt { version, live }),
            (prop::sample::select(&Code::ALL[..]), "[a-zA-Z ,.]{0,200}")
                .prop_map(|(code, reason)| Reply::Refused { code, reason }),
        ]
    }

    proptest! {
        #[test]
        fn what_was_emitted_is_parsed_and_nothing_shorter_or_longer(reply in reply(), number in any::<u32>()) {
            let bytes = reply.emit(number);
            for cut in 0..bytes.len() {
                prop_assert!(Reply::parse(&bytes[..cut]).is_err());
            }
            prop_assert!(Reply::parse(&[&bytes[..], &[0]].concat()).is_err());
            prop_assert_eq!(Reply::parse(&bytes), Ok((number, reply)));
        }

        #[test]
        fn any_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..300), kind in 60_u8..80) {
            let _ = Reply::parse(&bytes);
            let _ = Reply::parse(&message(kind, 1, |w| w.bytes(&bytes)));
        }
    }

    #[test]
    fn a_run_of_no_bytes_or_beyond_the_last_address_is_none() {
        for (addr, len, fair) in
            [(0, 1, true), (8, 0, false), (8, u64::MAX - 8, true), (8, u64::MAX - 7, false)]
        {
            let reply = Reply::Extents { extents: vec![RemoteExtent { addr, len, rkey: 1 }] };
            assert_eq!(Reply::parse(&reply.emit(7)).is_ok(), fair, "{len} bytes at {addr}");
        }
    }

    #[test]
    fn a_page_takes_what_fits_and_says_that_there_is_more() {
        let listings = (0..100).map(|n| Listing {
            name: crate::blob::BlobName::new(&format!("{n:03}{}", "x".repeat(900))).expect("fair"),
            version: Version::NONE,
            state: State::Deleted,
        });
        let Reply::Page { listings, more } = Reply::page(listings) else { panic!("a page") };
        assert_eq!((listings.len(), more), (4, true));
        assert!(Reply::Page { listings, more }.emit(1).len() <= MAX_MESSAGE);
    }
}
