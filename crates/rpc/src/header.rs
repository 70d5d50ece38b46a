//! The header of every packet, and where packets come from and go to.
//!
//! ```text
//!  0 magic    u16   "Rp"
//!  2 version  u8
//!  3 kind     u8
//!  4 session  u32   the receiver's number of the session
//!  8 key      u32   in Connect, Accept and Refuse the client's; else the one that the server drew for this session:
//!                   what is left of an earlier one does not have it, not even if it set a session up here
//! 12 delay    u32   ns between the packet that is answered here and the answer, so that round trips leave it out;
//!                   in Accept the server's key
//! 16 request  u64   number of the call; its slot is the number modulo SLOTS
//! 24 packet   u16   number of the packet in its message
//! 26 word     u16   service (Request), status (Response), packet capacity (Connect, Prove, Accept), why (Refuse)
//! 28 length   u32   bytes of the whole message (Request, Response); see `Repr` for the rest
//! 32 payload, or what is shown: 32 bytes of nonce (Ask, Challenge), 8 of the challenge's name and 32 of proof (Prove), 32 of
//!    proof (a sealed Accept)
//! ```
//! Big-endian, as everything on the wire. [`Repr`] is the single gate for bytes from outside: what it holds can be
//! acted on, and what can be constructed can be emitted. Whether numbers fit a session is the session's business.

use remanence_wire::{Gid, Qpn};

/// Bytes of the header.
pub const HEADER_LEN: usize = 32;
/// Calls of one session that may be under way at a time.
pub const SLOTS: usize = 8;
/// The largest number of packets that one message may take.
pub const PACKETS_MAX: u64 = 1 << 16;

const MAGIC: u16 = 0x5270;
/// 2 has tokens, and says why it refuses.
const VERSION: u8 = 2;

const _: () = assert!(HEADER_LEN == 28 + 4, "the fields above, without gaps");

/// Where an endpoint is: a UD QP.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Address {
    /// The GID at which the endpoint's host is reached.
    pub gid: Gid,
    /// The number of the endpoint's UD QP.
    pub qpn: Qpn,
}

/// How a call ended at the server.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Status {
    /// It was carried out; the payload is the handler's.
    Done,
    /// Nobody serves this service there; nothing was carried out.
    NoService,
    /// The server had no room for the request; nothing was carried out.
    Overloaded,
    /// The handler says no; the payload is its reason.
    Refused,
}

impl Status {
    const fn word(self) -> u16 {
        match self {
            Self::Done => 0,
            Self::NoService => 1,
            Self::Overloaded => 2,
            Self::Refused => 3,
        }
    }

    const fn from_word(word: u16) -> Option<Self> {
        Some(match word {
            0 => Self::Done,
            1 => Self::NoService,
            2 => Self::Overloaded,
            3 => Self::Refused,
            _ => return None,
        })
    }
}

/// Why a server has no session for a client.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Refusal {
    /// It has as many as it may.
    Full,
    /// The client showed no token, and the server asks for one.
    TokenNeeded,
    /// The client's token is another one.
    WrongToken,
    /// The client has a token, and the server has none that it could prove to have.
    NoToken,
    /// The proof comes too late, for the second time, or from elsewhere: ask anew.
    Late,
    /// Too many wrong proofs came from the client's address: so many seconds it has to wait.
    Wait(u32),
}

impl Refusal {
    const fn words(self) -> (u16, u32) {
        match self {
            Self::Full => (0, 0),
            Self::TokenNeeded => (1, 0),
            Self::WrongToken => (2, 0),
            Self::NoToken => (3, 0),
            Self::Late => (4, 0),
            Self::Wait(seconds) => (5, seconds),
        }
    }

    const fn from_words(word: u16, length: u32) -> Option<Self> {
        Some(match word {
            0 => Self::Full,
            1 => Self::TokenNeeded,
            2 => Self::WrongToken,
            3 => Self::NoToken,
            4 => Self::Late,
            5 => Self::Wait(length),
            _ => return None,
        })
    }
}

/// What stands behind the header of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Behind {
    /// The header is the whole packet.
    Nothing,
    /// Part of a message, maybe none.
    Payload,
    /// What the sender shows, of so many bytes.
    Credential(usize),
}

/// Bytes that Ask and Challenge show: a nonce.
pub const NONCE_LEN: usize = 32;
/// Bytes that Prove shows: the challenge's name, and the proof.
pub const ANSWER_LEN: usize = 8 + 32;
/// Bytes that a sealed Accept shows: a proof.
pub const SEAL_LEN: usize = 32;

/// A packet's header, as a peer means it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Repr {
    /// A client wants a session. `session` is its own number, `incarnation` grows with each start of the program.
    Connect {
        /// The client's number.
        session: u32,
        /// The client's key: what answers this has it.
        key: u32,
        /// When the client's endpoint came into being.
        incarnation: u64,
        /// Payload bytes that the client takes in one packet.
        capacity: u16,
        /// Packets that the client would have under way.
        credits: u16,
    },
    /// A client that has a token asks for a challenge, and shows a nonce.
    Ask {
        /// The client's number.
        session: u32,
        /// The client's key.
        key: u32,
    },
    /// The server shows a nonce of its own, and wants a proof.
    Challenge {
        /// The client's number.
        session: u32,
        /// The client's key.
        key: u32,
    },
    /// As Connect, of a client that shows a proof.
    Prove {
        /// The client's number.
        session: u32,
        /// The client's key: what answers this has it.
        key: u32,
        /// When the client's endpoint came into being.
        incarnation: u64,
        /// Payload bytes that the client takes in one packet.
        capacity: u16,
        /// Packets that the client would have under way.
        credits: u16,
    },
    /// The server has a session for it.
    Accept {
        /// The client's number.
        session: u32,
        /// The client's key.
        key: u32,
        /// The key of everything else in the session.
        drawn: u32,
        /// When the server's endpoint came into being.
        incarnation: u64,
        /// The server's number.
        server: u32,
        /// Payload bytes of a packet, in both directions.
        capacity: u16,
        /// Packets that the client may have under way.
        credits: u16,
        /// The server shows a proof that it has the token.
        sealed: bool,
    },
    /// The server has no session for it.
    Refuse {
        /// The client's number.
        session: u32,
        /// The session's key.
        key: u32,
        /// The reason for which there is no session.
        why: Refusal,
    },
    /// The client ends the session.
    Disconnect {
        /// The server's number.
        session: u32,
        /// The session's key.
        key: u32,
    },
    /// The session is over, if there was one.
    Disconnected {
        /// The server's number, as asked.
        session: u32,
        /// The session's key.
        key: u32,
    },
    /// The server does not know this session: it started anew, or gave the client up.
    Reset {
        /// The server's number, as asked.
        session: u32,
        /// The session's key.
        key: u32,
    },
    /// Is anybody there?
    Ping {
        /// The server's number.
        session: u32,
        /// The session's key.
        key: u32,
    },
    /// The answer to a ping: the session is alive.
    Pong {
        /// The client's number.
        session: u32,
        /// The session's key.
        key: u32,
    },
    /// A packet of a request. Carries payload.
    Request {
        /// The server's number.
        session: u32,
        /// The session's key.
        key: u32,
        /// The number of the call.
        request: u64,
        /// Of the message.
        packet: u16,
        /// What is called.
        service: u16,
        /// Bytes of the whole request.
        length: u32,
    },
    /// The server has this packet of a request, and all before it; not sent for the last.
    Credit {
        /// The client's number.
        session: u32,
        /// The session's key.
        key: u32,
        /// The number of the call.
        request: u64,
        /// The packet that has come, by its number in the request.
        packet: u16,
        /// Nanoseconds since it came.
        delay: u32,
    },
    /// The server has the whole request, and still works on it: the answer to a last packet that came again.
    Working {
        /// The client's number.
        session: u32,
        /// The session's key.
        key: u32,
        /// The number of the call.
        request: u64,
        /// Nanoseconds since that packet came.
        delay: u32,
    },
    /// A packet of a response. Carries payload. The first comes by itself.
    Response {
        /// The client's number.
        session: u32,
        /// The session's key.
        key: u32,
        /// The number of the call.
        request: u64,
        /// Of the message.
        packet: u16,
        /// How the call ended.
        status: Status,
        /// Bytes of the whole response.
        length: u32,
        /// Nanoseconds since the packet that asked for it came.
        delay: u32,
    },
    /// The client asks for a packet of the response; for the first it never needs to.
    More {
        /// The server's number.
        session: u32,
        /// The session's key.
        key: u32,
        /// The number of the call.
        request: u64,
        /// The packet that is asked for, by its number in the response.
        packet: u16,
    },
}

/// These bytes are no packet of ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not a packet of this protocol")]
pub struct Malformed;

/// The fields as they lie there.
#[derive(Clone, Copy, Default)]
struct Fields {
    kind: u8,
    session: u32,
    key: u32,
    delay: u32,
    request: u64,
    packet: u16,
    word: u16,
    length: u32,
}

impl Fields {
    fn get(bytes: &[u8; HEADER_LEN]) -> Result<Self, Malformed> {
        let u16_at = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        if u16_at(0) != MAGIC || bytes[2] != VERSION {
            return Err(Malformed);
        }
        Ok(Self {
            kind: bytes[3],
            session: u32_at(4),
            key: u32_at(8),
            delay: u32_at(12),
            request: u64::from_be_bytes(bytes[16..24].try_into().expect("eight bytes")),
            packet: u16_at(24),
            word: u16_at(26),
            length: u32_at(28),
        })
    }

    fn put(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[..2].copy_from_slice(&MAGIC.to_be_bytes());
        (bytes[2], bytes[3]) = (VERSION, self.kind);
        bytes[4..8].copy_from_slice(&self.session.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.key.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.delay.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.request.to_be_bytes());
        bytes[24..26].copy_from_slice(&self.packet.to_be_bytes());
        bytes[26..28].copy_from_slice(&self.word.to_be_bytes());
        bytes[28..].copy_from_slice(&self.length.to_be_bytes());
        bytes
    }
}

impl Repr {
    /// What the header of a datagram says.
    ///
    /// # Errors
    /// It is not of this protocol or version, its kind or status is unknown, or a field that its kind does not use is
    /// not zero: a later version may mean something by it.
    pub fn parse(bytes: &[u8; HEADER_LEN]) -> Result<Self, Malformed> {
        let fields = Fields::get(bytes)?;
        let Fields { session, key, delay, request, packet, word, length, .. } = fields;
        let repr = match fields.kind {
            1 => {
                Self::Connect { session: length, key, incarnation: request, capacity: word, credits: packet }
            }
            2 | 17 => Self::Accept {
                session,
                key,
                drawn: delay,
                incarnation: request,
                server: length,
                capacity: word,
                credits: packet,
                sealed: fields.kind == 17,
            },
            3 => {
                let why = Refusal::from_words(word, length).ok_or(Malformed)?;
                Self::Refuse { session, key, why }
            }
            4 => Self::Disconnect { session, key },
            5 => Self::Disconnected { session, key },
            6 => Self::Reset { session, key },
            7 => Self::Ping { session, key },
            8 => Self::Pong { session, key },
            9 => Self::Request { session, key, request, packet, service: word, length },
            10 => Self::Credit { session, key, request, packet, delay },
            11 => Self::Working { session, key, request, delay },
            12 => {
                let status = Status::from_word(word).ok_or(Malformed)?;
                Self::Response { session, key, request, packet, status, length, delay }
            }
            13 => Self::More { session, key, request, packet },
            14 => Self::Ask { session: length, key },
            15 => Self::Challenge { session, key },
            16 => Self::Prove { session: length, key, incarnation: request, capacity: word, credits: packet },
            _ => return Err(Malformed),
        };
        if repr.emit() == *bytes { Ok(repr) } else { Err(Malformed) }
    }

    /// The header's bytes.
    #[must_use]
    pub fn emit(&self) -> [u8; HEADER_LEN] {
        let zero = Fields::default();
        let fields = match *self {
            Self::Connect { session, key, incarnation, capacity, credits } => Fields {
                kind: 1,
                key,
                request: incarnation,
                packet: credits,
                word: capacity,
                length: session,
                ..zero
            },
            Self::Prove { session, key, incarnation, capacity, credits } => Fields {
                kind: 16,
                key,
                request: incarnation,
                packet: credits,
                word: capacity,
                length: session,
                ..zero
            },
            Self::Ask { session, key } => Fields { kind: 14, key, length: session, ..zero },
            Self::Challenge { session, key } => Fields { kind: 15, session, key, ..zero },
            Self::Accept { session, key, drawn, incarnation, server, capacity, credits, sealed } => Fields {
                kind: if sealed { 17 } else { 2 },
                session,
                key,
                delay: drawn,
                request: incarnation,
                packet: credits,
                word: capacity,
                length: server,
            },
            Self::Refuse { session, key, why } => {
                let (word, length) = why.words();
                Fields { kind: 3, session, key, word, length, ..zero }
            }
            Self::Disconnect { session, key } => Fields { kind: 4, session, key, ..zero },
            Self::Disconnected { session, key } => Fields { kind: 5, session, key, ..zero },
            Self::Reset { session, key } => Fields { kind: 6, session, key, ..zero },
            Self::Ping { session, key } => Fields { kind: 7, session, key, ..zero },
            Self::Pong { session, key } => Fields { kind: 8, session, key, ..zero },
            Self::Request { session, key, request, packet, service, length } => {
                Fields { kind: 9, session, key, request, packet, word: service, length, ..zero }
            }
            Self::Credit { session, key, request, packet, delay } => {
                Fields { kind: 10, session, key, request, packet, delay, ..zero }
            }
            Self::Working { session, key, request, delay } => {
                Fields { kind: 11, session, key, request, delay, ..zero }
            }
            Self::Response { session, key, request, packet, status, length, delay } => {
                Fields { kind: 12, session, key, request, packet, word: status.word(), length, delay }
            }
            Self::More { session, key, request, packet } => {
                Fields { kind: 13, session, key, request, packet, ..zero }
            }
        };
        fields.put()
    }

    /// What stands behind the header.
    #[must_use]
    pub const fn behind(&self) -> Behind {
        match self {
            Self::Request { .. } | Self::Response { .. } => Behind::Payload,
            Self::Ask { .. } | Self::Challenge { .. } => Behind::Credential(NONCE_LEN),
            Self::Prove { .. } => Behind::Credential(ANSWER_LEN),
            Self::Accept { sealed: true, .. } => Behind::Credential(SEAL_LEN),
            Self::Connect { .. }
            | Self::Accept { sealed: false, .. }
            | Self::Refuse { .. }
            | Self::Disconnect { .. }
            | Self::Disconnected { .. }
            | Self::Reset { .. }
            | Self::Ping { .. }
            | Self::Pong { .. }
            | Self::Credit { .. }
            | Self::Working { .. }
            | Self::More { .. } => Behind::Nothing,
        }
    }
}

/// Packets that a message of `length` bytes takes, `capacity` to each: one at least.
#[must_use]
pub const fn packets(length: u32, capacity: u32) -> u32 {
    if length == 0 { 1 } else { length.div_ceil(capacity) }
}

/// The bytes of a message that packet `number` carries.
#[must_use]
pub const fn range(number: u32, length: u32, capacity: u32) -> std::ops::Range<usize> {
    let start = number as u64 * capacity as u64;
    let end = start + capacity as u64;
    let length = length as u64;
    start as usize..(if end < length { end } else { length }) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Repr> {
        let (session, key, request, packet, delay) = (0x0102_0304, 0x0506_0708, 0x1112_1314_1516_1718, 9, 77);
        let (incarnation, capacity, credits, length) = (request, 4064, 32, 65_536);
        vec![
            Repr::Connect { session, key, incarnation, capacity, credits },
            Repr::Accept { session, key, drawn: 6, incarnation, server: 5, capacity, credits, sealed: false },
            Repr::Refuse { session, key, why: Refusal::TokenNeeded },
            Repr::Disconnect { session, key },
            Repr::Disconnected { session, key },
            Repr::Reset { session, key },
            Repr::Ping { session, key },
            Repr::Pong { session, key },
            Repr::Request { session, key, request, packet, service: 3, length },
            Repr::Credit { session, key, request, packet, delay },
            Repr::Working { session, key, request, delay },
            Repr::Response { session, key, request, packet, status: Status::Refused, length, delay },
            Repr::More { session, key, request, packet },
            Repr::Ask { session, key },
            Repr::Challenge { session, key },
            Repr::Prove { session, key, incarnation, capacity, credits },
            Repr::Accept { session, key, drawn: 6, incarnation, server: 5, capacity, credits, sealed: true },
            Repr::Refuse { session, key, why: Refusal::Full },
            Repr::Refuse { session, key, why: Refusal::WrongToken },
            Repr::Refuse { session, key, why: Refusal::NoToken },
            Repr::Refuse { session, key, why: Refusal::Late },
            Repr::Refuse { session, key, why: Refusal::Wait(60) },
        ]
    }

    #[test]
    fn what_is_emitted_is_parsed_as_the_same() {
        for repr in all() {
            assert_eq!(Repr::parse(&repr.emit()), Ok(repr));
        }
    }

    #[test]
    fn golden_request() {
        let request = 0x1112_1314_1516_1718;
        let repr =
            Repr::Request { session: 2, key: 0xaabb_ccdd, request, packet: 1, service: 7, length: 4065 };
        let bytes = [
            0x52, 0x70, 2, 9, 0, 0, 0, 2, 0xaa, 0xbb, 0xcc, 0xdd, 0, 0, 0, 0, 0x11, 0x12, 0x13, 0x14, 0x15,
            0x16, 0x17, 0x18, 0, 1, 0, 7, 0, 0, 0x0f, 0xe1,
        ];
        assert_eq!(repr.emit(), bytes);
    }

    #[test]
    fn what_is_not_ours_is_malformed() {
        let good = Repr::Ping { session: 1, key: 2 }.emit();
        for (at, value) in
            [(0, 0), (2, 1), (2, 3), (3, 0), (3, 18), (12, 1), (16, 1), (24, 1), (26, 1), (28, 1)]
        {
            let mut bad = good;
            bad[at] = value;
            assert_eq!(Repr::parse(&bad), Err(Malformed), "byte {at} is {value}");
        }
        let mut status = all()[11].emit();
        status[27] = 9;
        assert_eq!(Repr::parse(&status), Err(Malformed), "an unknown status");
        let mut refusal = all()[2].emit();
        refusal[31] = 1;
        assert_eq!(Repr::parse(&refusal), Err(Malformed), "a reason that takes no seconds");
        (refusal[31], refusal[27]) = (0, 6);
        assert_eq!(Repr::parse(&refusal), Err(Malformed), "an unknown reason");
    }

    #[test]
    fn packets_cover_a_message_exactly() {
        for length in [0, 1, 99, 100, 101, 200, 1000, 1001] {
            let n = packets(length, 100);
            let mut at = 0;
            for number in 0..n {
                let range = range(number, length, 100);
                assert_eq!(range.start, at);
                assert!(range.len() <= 100 && (range.len() == 100 || number == n - 1));
                at = range.end;
            }
            assert_eq!(at, length as usize);
        }
    }
}
