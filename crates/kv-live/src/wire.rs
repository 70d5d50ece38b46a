//! What travels in the calls of a session: requests of [`remanence_kv::proto`] and a few of the host's own, in parts where they do
//! not fit a message. All integers are little-endian.
//!
//! ```text
//! call    u8 what, u32 tag, the rest
//! answer  u32 bytes that are left for a call REST with the same tag, u64 the server's clock in milliseconds, the rest
//! notice  u64 the number of the new view
//! ```
//! The answer to a REQUEST has keys before the reply: u32 how many, and of each u64 where on the medium, u32 bytes, u32 key.
//! They let this session alone write there, until the write is settled or given up.
//! Calls come from strangers: what is parsed here has been checked, and what a session may make the server keep is bounded.

use remanence_codec::Reader;

/// The version of what travels in calls. Both sides must have the same.
pub const VERSION: u16 = 6;
/// Bytes before what a call carries.
pub(super) const CALL_HEADER: usize = 5;
/// Bytes before what an answer carries.
pub(super) const ANSWER_HEADER: usize = 12;
/// The longest request, put together from its parts.
pub(super) const REQUEST_MAX: usize = 8 << 20;
/// The longest answer that the server keeps for a session until it is fetched.
pub(super) const ANSWER_MAX: usize = 64 << 20;
/// Answers of a session that are kept at a time.
pub(super) const ANSWERS_MAX: usize = 16;

/// What a call is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum What {
    /// A part of a request, which the next call goes on with.
    Part = 1,
    /// Asks for more of an answer.
    Rest = 2,
    /// The first call of a session: a version, and the answer is [`Hello`].
    Hello = 3,
    /// A request of the store.
    Request = 4,
    /// What happened so far, and how full the store is.
    Stats = 5,
    /// Read and verify some values: a cursor and how many.
    Scrub = 6,
    /// Clean all logs, one after the other.
    Compact = 7,
    /// What the primary of a replicated store says of itself.
    Lead = 8,
}

/// A call as it travels: what it is for, the tag that its answer is known by, and what belongs to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Call<'a> {
    pub(super) what: What,
    pub(super) tag: u32,
    pub(super) body: &'a [u8],
}

impl<'a> Call<'a> {
    pub(super) fn emit(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(CALL_HEADER + self.body.len());
        bytes.push(self.what as u8);
        bytes.extend(self.tag.to_le_bytes());
        bytes.extend_from_slice(self.body);
        bytes
    }

    pub(super) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let mut from = Reader::new(bytes);
        let what = match from.u8().ok()? {
            1 => What::Part,
            2 => What::Rest,
            3 => What::Hello,
            4 => What::Request,
            5 => What::Stats,
            6 => What::Scrub,
            7 => What::Compact,
            8 => What::Lead,
            _ => return None,
        };
        Some(Self { what, tag: from.u32_le().ok()?, body: from.rest() })
    }
}

/// An answer, or a part of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Answer<'a> {
    pub(super) left: u32,
    pub(super) clock: u64,
    pub(super) body: &'a [u8],
}

impl<'a> Answer<'a> {
    pub(super) fn emit(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(ANSWER_HEADER + self.body.len());
        bytes.extend(self.left.to_le_bytes());
        bytes.extend(self.clock.to_le_bytes());
        bytes.extend_from_slice(self.body);
        bytes
    }

    pub(super) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let mut from = Reader::new(bytes);
        let (left, clock) = (from.u32_le().ok()?, from.u64_le().ok()?);
        Some(Self { left, clock, body: from.rest() })
    }
}

/// What the server answers to the first call; the view follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Hello {
    pub(super) version: u16,
    /// How long a client may take to finish a write or to acknowledge a view, in milliseconds.
    pub(super) lease: u64,
}

impl Hello {
    pub(super) fn emit(&self) -> Vec<u8> {
        [&self.version.to_le_bytes()[..], &self.lease.to_le_bytes()].concat()
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let mut from = Reader::new(bytes);
        Some((Self { version: from.u16_le().ok()?, lease: from.u64_le().ok()? }, from.rest()))
    }
}

/// A right to write some bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Key {
    pub(super) at: u64,
    pub(super) len: u32,
    pub(super) rkey: u32,
}

/// Keys, and the reply behind them.
pub(super) fn emit_keyed(keys: &[Key], reply: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(4 + 16 * keys.len() + reply.len());
    bytes.extend((keys.len() as u32).to_le_bytes());
    for key in keys {
        bytes.extend(key.at.to_le_bytes());
        bytes.extend(key.len.to_le_bytes());
        bytes.extend(key.rkey.to_le_bytes());
    }
    bytes.extend_from_slice(reply);
    bytes
}

/// Reads what [`emit_keyed`] has written: the keys, and the reply behind them. `None`: it is none of that.
pub(super) fn parse_keyed(bytes: &[u8]) -> Option<(Vec<Key>, &[u8])> {
    let mut from = Reader::new(bytes);
    let count = from.u32_le().ok()?;
    let key =
        |from: &mut Reader<'_>| Ok(Key { at: from.u64_le()?, len: from.u32_le()?, rkey: from.u32_le()? });
    let keys = from.many(count as usize, 16, key).ok()?;
    Some((keys, from.rest()))
}

/// Numbers, one after the other.
pub(super) fn emit_words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Reads what [`emit_words`] has written; a later version may have said more.
pub(super) fn parse_words<const N: usize>(bytes: &[u8]) -> Option<[u64; N]> {
    let mut from = Reader::new(bytes);
    let mut words = [0; N];
    for word in &mut words {
        *word = from.u64_le().ok()?;
    }
    Some(words)
}
