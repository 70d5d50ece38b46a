//! Messages by SEND. Read first: `docs/persistence.md`, section *Live*.
//!
//! A message to the server has a header of [`HEADER`] bytes; it lies in a receive buffer exactly as it travelled, and
//! recovery may find it there in persistent memory, whole or torn:
//!
//! ```text
//!  0  u32  CRC-32 of all that follows, up to the length
//!  4  u32  length of the whole message
//!  8  u64  stamp of the session
//! 16  u64  number of the message in its session, from 1
//! 24  u64  number of the last message before it that recovery must apply, or 0
//! 32  u8   kind
//! 33  u8   flags: 1, recovery applies it
//! 34  u8   which message of its recipe
//! 35  u8   0
//! 36  u16  plan; service of a call
//! 38  u16  entries
//! 40  ...  entries: u64 offset, u32 length, u32 1 if its bytes follow
//!     ...  the bytes, one update after the other; the body of a call
//! ```
//!
//! What the server sends back ([`Answer`]) is never durable and needs no checksum: the network has its own.
//!
//! *Calls by immediate.* A client that asked for it ([`BY_IMMEDIATE`]) brings its calls by WRITE with immediate: the same message is
//! written into the receive buffer that it would be received into, the next one of the session's own, and the immediate is the
//! client's number ([`Immediates`]). What arrives is believed as little as a SEND: length, checksum, stamp and number must fit, or the
//! session is over.

use remanence_codec::{Malformed, Reader};
use remanence_persist::recipe::{Message as Carries, Set, Update};

/// Bytes before the entries.
pub const HEADER: usize = 40;
/// Bytes of an entry.
pub const ENTRY: usize = 16;
/// Bytes before an answer's body.
pub const ANSWER_HEADER: usize = 24;
/// The service of the call that asks whether calls may come by WRITE with immediate from then on. The answer has an [`Immediates`]; a
/// server that takes none, an older one too, refuses, and calls go on by SEND.
pub const BY_IMMEDIATE: u16 = u16::MAX - 2;

/// With what a session brings its calls by WRITE with immediate: u32 number, u32 key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Immediates {
    /// The client's number, which is the immediate of each of its calls.
    pub number: u32,
    /// A key to the session's receive buffers, which is good through its QP alone.
    pub rkey: u32,
}

impl Immediates {
    /// The body of the answer.
    #[must_use]
    pub fn emit(&self) -> [u8; 8] {
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&self.number.to_be_bytes());
        bytes[4..].copy_from_slice(&self.rkey.to_be_bytes());
        bytes
    }

    /// Reads the body of an answer.
    ///
    /// # Errors
    /// It is none.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut r = Reader::new(bytes);
        let this = Self { number: r.u32_be()?, rkey: r.u32_be()? };
        r.end()?;
        Ok(this)
    }
}

/// What a message to the server is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// Updates, or where they are.
    Update = 1,
    /// For the server's application.
    Call = 2,
    /// The responder's steps of a recipe, to be known by a number from now on.
    Plan = 3,
}

/// The header of a message to the server, but for its checksum and length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Of the session.
    pub stamp: u64,
    /// The number of the message in its session, from 1.
    pub number: u64,
    /// The last message before it that recovery must apply, or 0.
    pub after: u64,
    /// What it is for.
    pub kind: Kind,
    /// Recovery must apply it.
    pub replay: bool,
    /// Which message of its recipe, from 0.
    pub part: u8,
    /// Number of the plan, or of the service.
    pub plan: u16,
    /// Entries behind the header.
    pub entries: u16,
}

impl Header {
    /// The first [`HEADER`] bytes of a message whose rest is `body_len` bytes with this hash.
    #[must_use]
    pub fn emit(&self, body_len: u32, body: &crc32fast::Hasher) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[4..8].copy_from_slice(&(HEADER as u32 + body_len).to_be_bytes());
        bytes[8..16].copy_from_slice(&self.stamp.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.number.to_be_bytes());
        bytes[24..32].copy_from_slice(&self.after.to_be_bytes());
        bytes[32] = self.kind as u8;
        bytes[33] = u8::from(self.replay);
        bytes[34] = self.part;
        bytes[36..38].copy_from_slice(&self.plan.to_be_bytes());
        bytes[38..40].copy_from_slice(&self.entries.to_be_bytes());
        let mut crc = crc32fast::Hasher::new();
        crc.update(&bytes[4..]);
        crc.combine(body);
        bytes[..4].copy_from_slice(&crc.finalize().to_be_bytes());
        bytes
    }
}

/// An update as a message names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Where in the region.
    pub offset: u64,
    /// How many bytes the update has.
    pub len: u32,
    /// Where its bytes are in the message, if the message brings them.
    pub data: Option<u32>,
}

impl Entry {
    /// Appends it to a body; `brings`: its bytes follow behind the entries.
    pub fn emit(body: &mut Vec<u8>, offset: u64, len: u32, brings: bool) {
        body.extend_from_slice(&offset.to_be_bytes());
        body.extend_from_slice(&len.to_be_bytes());
        body.extend_from_slice(&u32::from(brings).to_be_bytes());
    }
}

/// A whole message, as it was found in a receive buffer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Parsed<'a> {
    /// The header that the message begins with.
    pub header: Header,
    /// Its entries, in the order of the updates.
    pub entries: Vec<Entry>,
    /// What is behind the entries.
    pub body: &'a [u8],
    /// Bytes of the whole message.
    pub len: u32,
}

impl<'a> Parsed<'a> {
    /// Reads a message at the start of a receive buffer; what is behind it is older and is not looked at.
    ///
    /// # Errors
    /// It is not one, or not whole.
    pub fn read(buffer: &'a [u8]) -> Result<Self, Malformed> {
        let mut r = Reader::new(buffer);
        let (crc, len) = (r.u32_be()?, r.u32_be()?);
        let whole = buffer.get(..len as usize).filter(|b| b.len() >= HEADER).ok_or(r.malformed())?;
        if crc32fast::hash(&whole[4..]) != crc {
            return r.fail();
        }
        let mut r = Reader::new(&whole[8..]);
        let (stamp, number, after) = (r.u64_be()?, r.u64_be()?, r.u64_be()?);
        let kind = match r.u8()? {
            1 => Kind::Update,
            2 => Kind::Call,
            3 => Kind::Plan,
            _ => return r.fail(),
        };
        let (flags, part, zero, plan, count) = (r.u8()?, r.u8()?, r.u8()?, r.u16_be()?, r.u16_be()?);
        if flags > 1 || zero != 0 || count > 64 {
            return r.fail();
        }
        let mut entries = Vec::with_capacity(count.into());
        let mut at = HEADER as u32 + u32::from(count) * ENTRY as u32;
        for _ in 0..count {
            let (offset, bytes, brings) = (r.u64_be()?, r.u32_be()?, r.u32_be()?);
            let data = match brings {
                0 => None,
                1 => {
                    let here = at;
                    at = at.checked_add(bytes).filter(|end| *end <= len).ok_or(r.malformed())?;
                    Some(here)
                }
                _ => return r.fail(),
            };
            entries.push(Entry { offset, len: bytes, data });
        }
        let header = Header { stamp, number, after, kind, replay: flags == 1, part, plan, entries: count };
        if kind == Kind::Update && at != len {
            return r.fail();
        }
        Ok(Self { header, entries, body: r.rest(), len })
    }

    /// Whether the entries are those of a message that a recipe sends: those updates, each brought or not.
    #[must_use]
    pub fn carries(&self, message: Carries) -> bool {
        let all = Set(message.notice.0 | message.data.0);
        self.entries.len() == all.iter().count()
            && all.iter().zip(&self.entries).all(|(u, entry)| message.data.has(u) == entry.data.is_some())
    }

    /// The entry of an update, in a message that [carries](Self::carries) this.
    #[must_use]
    pub fn entry(&self, message: Carries, update: Update) -> Option<&Entry> {
        let all = Set(message.notice.0 | message.data.0);
        all.iter().position(|u| u == update).and_then(|n| self.entries.get(n))
    }
}

/// What the server sends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// What the answer says of the message.
    pub kind: AnswerKind,
    /// The message that it answers.
    pub number: u64,
    /// How many receive buffers the server has given back so far.
    pub reposted: u64,
    /// What the application says; why it failed.
    pub body: Vec<u8>,
}

/// Why the server sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum AnswerKind {
    /// The acknowledgement of a recipe.
    Ack = 1,
    /// Receive buffers were given back.
    Credit = 2,
    /// The answer to a call, or to a plan.
    Reply = 3,
    /// The application, or the server itself, refuses a call or a plan: the body says why.
    Refused = 4,
    /// The medium failed: nothing that was not acknowledged may be believed durable. The session is over.
    Failed = 5,
    /// The application has something to say that nobody asked for.
    Notice = 6,
}

impl Answer {
    /// The bytes to send.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(ANSWER_HEADER + self.body.len());
        bytes.extend_from_slice(&[self.kind as u8, 0, 0, 0]);
        bytes.extend_from_slice(&(self.body.len() as u32).to_be_bytes());
        bytes.extend_from_slice(&self.number.to_be_bytes());
        bytes.extend_from_slice(&self.reposted.to_be_bytes());
        bytes.extend_from_slice(&self.body);
        bytes
    }

    /// Reads what was received.
    ///
    /// # Errors
    /// It is no answer.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut r = Reader::new(bytes);
        let kind = match r.array::<4>()? {
            [1, 0, 0, 0] => AnswerKind::Ack,
            [2, 0, 0, 0] => AnswerKind::Credit,
            [3, 0, 0, 0] => AnswerKind::Reply,
            [4, 0, 0, 0] => AnswerKind::Refused,
            [5, 0, 0, 0] => AnswerKind::Failed,
            [6, 0, 0, 0] => AnswerKind::Notice,
            _ => return r.fail(),
        };
        let len = r.u32_be()?;
        let (number, reposted) = (r.u64_be()?, r.u64_be()?);
        let body = r.take(len as usize)?.to_vec();
        r.end()?;
        Ok(Self { kind, number, reposted, body })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message(updates: &[(u64, Vec<u8>, bool)], replay: bool) -> Vec<u8> {
        let mut body = Vec::new();
        for (offset, data, brings) in updates {
            Entry::emit(&mut body, *offset, data.len() as u32, *brings);
        }
        updates.iter().filter(|u| u.2).for_each(|u| body.extend_from_slice(&u.1));
        let mut hash = crc32fast::Hasher::new();
        hash.update(&body);
        let header = Header {
            stamp: 77,
            number: 3,
            after: 1,
            kind: Kind::Update,
            replay,
            part: 2,
            plan: 9,
            entries: updates.len() as u16,
        };
        [&header.emit(body.len() as u32, &hash)[..], &body].concat()
    }

    #[test]
    fn a_message_that_is_not_whole_is_none() {
        let updates = [(64, b"eight ..".to_vec(), true), (4096, vec![7; 100], false), (0, vec![1; 9], true)];
        let bytes = message(&updates, true);
        let mut buffer = bytes.clone();
        buffer.extend([0xEE; 50]); // an older, longer one
        let parsed = Parsed::read(&buffer).expect("whole");
        assert_eq!((parsed.header.number, parsed.header.after, parsed.len as usize), (3, 1, bytes.len()));
        let data = |n: usize| {
            parsed.entries[n].data.map(|at| &buffer[at as usize..][..parsed.entries[n].len as usize])
        };
        assert_eq!((data(0), data(1), data(2)), (Some(&b"eight .."[..]), None, Some(&[1; 9][..])));
        assert!(parsed.carries(Carries { notice: Set(2), data: Set(5) }));
        assert!(!parsed.carries(Carries { notice: Set(0), data: Set(7) }));
        for torn in (0..bytes.len()).step_by(8) {
            let mut copy = buffer.clone();
            copy[torn..(torn + 8).min(bytes.len())].iter_mut().for_each(|b| *b ^= 0x40);
            assert!(Parsed::read(&copy).is_err(), "torn at {torn}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_do_no_harm(mut bytes in prop::collection::vec(any::<u8>(), 0..300), sealed in any::<bool>()) {
            let _ = Answer::parse(&bytes);
            if sealed && bytes.len() >= HEADER {
                let len = bytes.len() as u32;
                bytes[4..8].copy_from_slice(&len.to_be_bytes());
                bytes[33] &= 1;
                let count = u16::from(bytes[39]) % 9;
                bytes[38..40].copy_from_slice(&count.to_be_bytes());
                let crc = crc32fast::hash(&bytes[4..]);
                bytes[..4].copy_from_slice(&crc.to_be_bytes());
            }
            if let Ok(parsed) = Parsed::read(&bytes) {
                for entry in &parsed.entries {
                    prop_assert!(entry.data.is_none_or(|at| at as usize + entry.len as usize <= bytes.len()));
                }
            }
        }

        #[test]
        fn an_answer_comes_through(number: u64, reposted: u64, body in prop::collection::vec(any::<u8>(), 0..50)) {
            let answer = Answer { kind: AnswerKind::Reply, number, reposted, body };
            let bytes = answer.emit();
            for cut in 0..bytes.len() {
                prop_assert!(Answer::parse(&bytes[..cut]).is_err());
            }
            prop_assert_eq!(Answer::parse(&bytes), Ok(answer));
        }
    }
}
