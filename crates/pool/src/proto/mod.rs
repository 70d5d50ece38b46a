//! What client and server say to each other by SEND and RECV. The data itself never passes here: it goes by WRITE,
//! READ and FLUSH into the extents that a [`Reply`] discloses.
//!
//! A message has a header of 8 bytes (protocol version, kind, request number) and at most [`MAX_MESSAGE`] bytes in
//! all. The client numbers its requests; each gets one reply, with its number. At most [`WINDOW`] requests may be
//! unanswered, which is the number of receive buffers that each side keeps posted.
//!
//! The conversation: `Hello`, `Authenticate`, then anything in any order. A message that is malformed, out of
//! order or not allowed ends the connection: only a broken or hostile peer sends one.

mod codec;
mod reply;
mod request;

use codec::Pool;
pub use remanence_codec::Malformed;
use remanence_codec::{Reader, Writer};
pub use reply::{Code, PoolInfo, Reply, sentence};
pub use request::Request;

/// The version of this protocol; both sides must have the same.
///
/// 2: version numbers are promised by a majority before they are used (`crate::quorum`). A client of version 1 would
/// choose one without asking, so it is told to use this release.
pub const VERSION: u16 = 2;

/// The most bytes that a message has.
pub const MAX_MESSAGE: usize = 4096;

/// How many requests of one client may be unanswered.
pub const WINDOW: usize = 8;

/// The extents in one reply; those of a longer list are asked for page by page.
pub const EXTENTS_PER_MESSAGE: usize = 128;

/// The port of the connection manager that a server listens on.
pub const DEFAULT_PORT: u16 = 7471;

const HEADER: usize = 8;

/// A run of remote memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RemoteExtent {
    /// Address of the first byte, as the server registered it; it is the byte's offset in the pool.
    pub addr: u64,
    /// How many bytes the run has: not none, and it does not go beyond the last address.
    pub len: u64,
    /// The rkey that opens the run, for this client's QPs alone.
    pub rkey: u32,
}

/// What a connection request says, as private data of the CM REQ: which of a client's two QPs this is.
///
/// Control messages and data have a QP each. A FLUSH may wait for a disk, and holds everything behind it on its QP
/// back, acknowledgements too; a control QP always answers at once, so that a dead server is told from a slow one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// The QP of a new client.
    Control,
    /// The second QP of the client who was given this ticket, over its authenticated control QP.
    Data {
        /// What the server gave its client when it admitted it, over the control QP.
        ticket: [u8; 16],
    },
}

impl Purpose {
    /// Bytes of private data.
    pub const LEN: usize = 24;
    const MAGIC: [u8; 4] = *b"RPOL";

    /// The private data to send.
    #[must_use]
    pub fn emit(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..4].copy_from_slice(&Self::MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_be_bytes());
        if let Self::Data { ticket } = self {
            bytes[7] = 1;
            bytes[8..].copy_from_slice(ticket);
        }
        bytes
    }

    /// Reads private data; what the CM padded it with is not looked at.
    ///
    /// # Errors
    /// It is not a pool client's; or it is, of another version.
    pub fn parse(bytes: &[u8]) -> Result<Self, BadPurpose> {
        let mut r = Reader::new(bytes);
        if r.array()? != Self::MAGIC {
            return Err(BadPurpose::Stranger);
        }
        let (version, kind, ticket) = (r.u16_be()?, r.u16_be()?, r.array()?);
        match (version, kind) {
            (VERSION, 0) => Ok(Self::Control),
            (VERSION, 1) => Ok(Self::Data { ticket }),
            (VERSION, _) => Err(BadPurpose::Stranger),
            (other, _) => Err(BadPurpose::OtherVersion(other)),
        }
    }
}

/// Why a connection request is not for a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadPurpose {
    /// The request is some other program's.
    Stranger,
    /// The request is that of a pool's client of another protocol version.
    OtherVersion(u16),
}

impl From<Malformed> for BadPurpose {
    fn from(_: Malformed) -> Self {
        Self::Stranger
    }
}

/// Puts the header before a body.
fn message(kind: u8, number: u32, body: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut w = Writer::new(MAX_MESSAGE);
    w.u16_be(VERSION);
    w.u8(kind);
    w.u8(0);
    w.u32_be(number);
    body(&mut w);
    w.finish().unwrap_or_else(|long| panic!("kind {kind}: {long}"))
}

/// Takes the header off: kind, number, body.
fn open(bytes: &[u8]) -> Result<(u8, u32, Reader<'_>), Malformed> {
    if bytes.len() > MAX_MESSAGE {
        return Err(Malformed { at: MAX_MESSAGE });
    }
    let mut r = Reader::new(bytes);
    let (version, kind, zero, number) = (r.u16_be()?, r.u8()?, r.u8()?, r.u32_be()?);
    if version != VERSION || zero != 0 { r.fail() } else { Ok((kind, number, r)) }
}

const _: () = assert!(HEADER + 2 + 64 + EXTENTS_PER_MESSAGE * 20 <= MAX_MESSAGE);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_request_says_what_it_is_for() {
        for purpose in [
            Purpose::Control,
            Purpose::Data { ticket: *b"sixteen bytes ..."[..16].first_chunk().expect("16") },
        ] {
            let mut padded = purpose.emit().to_vec();
            padded.resize(56, 0);
            assert_eq!(Purpose::parse(&padded), Ok(purpose));
        }
        let data = Purpose::Data { ticket: [9; 16] }.emit();
        assert_eq!(data[..], [b"RPOL", &VERSION.to_be_bytes()[..], &[0, 1], &[9; 16]].concat());
        for len in 0..Purpose::LEN {
            assert_eq!(Purpose::parse(&data[..len]), Err(BadPurpose::Stranger), "{len}");
        }
        assert_eq!(Purpose::parse(&[0; 56]), Err(BadPurpose::Stranger));
        assert_eq!(Purpose::parse(b"RPOL"), Err(BadPurpose::Stranger));
        let mut other = Purpose::Control.emit();
        other[5] = 9;
        assert_eq!(Purpose::parse(&other), Err(BadPurpose::OtherVersion(9)));
        let mut strange = Purpose::Control.emit();
        strange[7] = 2;
        assert_eq!(Purpose::parse(&strange), Err(BadPurpose::Stranger));
    }
}
