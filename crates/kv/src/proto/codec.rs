//! Requests and replies as bytes. All integers are little-endian; a byte string is a u32 length and the bytes.

use remanence_codec::{Field, Lists, Malformed, Protocol, Reader, Writer, fields, tagged};

use super::{BATCH_MAX, Expect, Extent, Refusal, Reply, Request, Reserved};
use crate::format::slot::TableAt;
use crate::format::{Geometry, Offset};
use crate::view::{Link, Mode, View};

/// The protocol of a store, for the tables of its messages.
enum Kv {}

impl Protocol for Kv {
    const BIG_ENDIAN: bool = false;
}

impl Lists for Kv {
    const WIDE: bool = true;
}

tagged! { Kv: Request {
    1 = Put { key, len, expires, expect },
    2 = PutInline { key, value, expires, expect },
    3 = Delete { key, expect },
    4 = Get { key },
    5 = Settle { key },
    6 = Confirm { versions },
    7 = Abandon { version },
    8 = Scan { cursor, limit },
    9 = View,
    10 = Acknowledge { view },
    11 = Batch(requests),
    12 = Count,
    13 = Clear { first, cursor },
    14 = Renew { version, written },
} }

tagged! { Kv: Reply {
    1 = Reserved(place),
    2 = Done { version },
    3 = Absent,
    4 = Settled { version },
    5 = Value { version, expires, value },
    6 = Page { next, keys, nameless },
    7 = View(view),
    8 = Batch(replies),
    9 = Ok,
    10 = Refused(refusal),
    11 = Written(place),
    12 = Counts { whole, counts },
} }

fields!(Kv: Reserved { version, head, offset, epoch, at, extents });
fields!(Kv: Extent { offset, at, len });
fields!(Kv: Offset { 0 });
fields!(Kv: TableAt { at, buckets });

/// What is there or not has its place either way.
impl<T: Field<Kv> + Copy + Default> Field<Kv> for Option<T> {
    fn emit(&self, to: &mut Writer) {
        to.u8(self.is_some().into());
        self.unwrap_or_default().emit(to);
    }

    fn parse(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (is_some, value) = (from.u8()? != 0, T::parse(from)?);
        Ok(is_some.then_some(value))
    }
}

/// A first byte, and how many keys begin with it.
impl Field<Kv> for (u8, u64) {
    fn emit(&self, to: &mut Writer) {
        to.u8(self.0);
        to.u64_le(self.1);
    }

    fn parse(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok((from.u8()?, from.u64_le()?))
    }
}

/// All of a message.
macro_rules! message {
    ($name:ident, $batch:literal $(, $most:expr)?) => {
        impl $name {
            /// Its bytes, as [`parse`](Self::parse) reads them.
            #[must_use]
            pub fn emit(&self) -> Vec<u8> {
                let mut to = Writer::new(usize::MAX);
                Field::<Kv>::emit(self, &mut to);
                to.finish().expect("it has no limit")
            }

            /// Reads any bytes. `None`: they are no such message.
            #[must_use]
            pub fn parse(bytes: &[u8]) -> Option<Self> {
                let mut from = Reader::new(bytes);
                let tag = from.u8().ok()?;
                let parsed = Self::parse_fields(tag, &mut from).ok()?;
                from.end().ok()?;
                Some(parsed)
            }
        }

        /// One in a batch, which is no batch itself.
        impl Field<Kv> for $name {
            fn emit(&self, to: &mut Writer) {
                to.u8(self.tag());
                self.emit_fields(to);
            }

            fn parse(from: &mut Reader<'_>) -> Result<Self, Malformed> {
                match from.u8()? {
                    $batch => from.fail(),
                    tag => Self::parse_fields(tag, from),
                }
            }

            $(fn parse_items(count: usize, from: &mut Reader<'_>) -> Result<Vec<Self>, Malformed> {
                // Each takes more memory than bytes, so that too many are refused before they are read.
                if count > $most { from.fail() } else { from.many(count, 1, <Self as Field<Kv>>::parse) }
            })?
        }
    };
}

message!(Request, 11, BATCH_MAX);
message!(Reply, 8);

impl Field<Kv> for Expect {
    fn emit(&self, to: &mut Writer) {
        let (tag, version) = match *self {
            Self::Any => (0, 0),
            Self::Absent => (1, 0),
            Self::Present => (2, 0),
            Self::Version(version) => (3, version),
            Self::Freeing(version) => (4, version),
            Self::Moving(version) => (5, version),
        };
        to.u8(tag);
        to.u64_le(version);
    }

    fn parse(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let tag = from.u8()?;
        let version = from.u64_le()?;
        match tag {
            0 => Ok(Self::Any),
            1 => Ok(Self::Absent),
            2 => Ok(Self::Present),
            3 => Ok(Self::Version(version)),
            4 => Ok(Self::Freeing(version)),
            5 => Ok(Self::Moving(version)),
            _ => from.fail(),
        }
    }
}

impl Field<Kv> for Refusal {
    fn emit(&self, to: &mut Writer) {
        let (tag, a, b) = match self {
            Self::WrongVersion { found } => (0, *found, 0),
            Self::Unfinished => (1, 0, 0),
            Self::Growing => (2, 0, 0),
            Self::Full => (3, 0, 0),
            Self::TooLarge { len, pool } => (4, *len, *pool),
            Self::BadKey => (5, 0, 0),
            Self::TooMany => (6, 0, 0),
            Self::Malformed => (7, 0, 0),
            Self::NotYours => (8, 0, 0),
            Self::Fenced => (9, 0, 0),
            Self::Damaged => (10, 0, 0),
            Self::Medium => (11, 0, 0),
            Self::ReadOnly => (12, 0, 0),
            Self::Cleaning => (13, 0, 0),
        };
        to.u8(tag);
        to.u64_le(a);
        to.u64_le(b);
    }

    fn parse(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (tag, a, b) = (from.u8()?, from.u64_le()?, from.u64_le()?);
        Ok(match tag {
            0 => Self::WrongVersion { found: a },
            1 => Self::Unfinished,
            2 => Self::Growing,
            3 => Self::Full,
            4 => Self::TooLarge { len: a, pool: b },
            5 => Self::BadKey,
            6 => Self::TooMany,
            7 => Self::Malformed,
            8 => Self::NotYours,
            9 => Self::Fenced,
            10 => Self::Damaged,
            11 => Self::Medium,
            12 => Self::ReadOnly,
            13 => Self::Cleaning,
            _ => return from.fail(),
        })
    }
}

impl Field<Kv> for View {
    fn emit(&self, to: &mut Writer) {
        to.u64_le(self.number);
        to.u32_le(self.boot);
        to.u8(match (self.mode, self.replicated) {
            (Mode::Erda, false) => 0,
            (Mode::Durable, false) => 1,
            (Mode::Durable, true) => 2,
            (Mode::Erda, true) => 3,
        });
        to.u32_le(self.inline_max);
        for len in [self.geometry.size, self.geometry.region_len, self.geometry.segment_len] {
            to.u64_le(len);
        }
        to.u16_le(self.geometry.heads);
        to.u64_le(self.salt);
        Field::<Kv>::emit(&self.tables, to);
        to.u32_le(self.links.len() as u32);
        for ((head, link), region) in &self.links {
            to.u8(*head);
            to.u16_le(*link);
            to.u64_le(region.at);
            to.u32_le(region.epoch);
        }
    }

    fn parse(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (number, boot) = (from.u64_le()?, from.u32_le()?);
        let (mode, replicated) = match from.u8()? {
            0 => (Mode::Erda, false),
            1 => (Mode::Durable, false),
            2 => (Mode::Durable, true),
            3 => (Mode::Erda, true),
            _ => return from.fail(),
        };
        let inline_max = from.u32_le()?;
        let geometry = Geometry {
            size: from.u64_le()?,
            region_len: from.u64_le()?,
            segment_len: from.u64_le()?,
            heads: from.u16_le()?,
            // Where regions are is said by the links.
            grown_from: 0,
        };
        geometry.check().map_err(|_| from.malformed())?;
        let salt = from.u64_le()?;
        let inside = |at: u64, len: u64| at.checked_add(len).is_some_and(|end| end <= geometry.size);
        let tables: Vec<TableAt> = Field::<Kv>::parse(from)?;
        let is_fair = |table: &TableAt| {
            (1..1 << 48).contains(&table.buckets) && inside(table.at, TableAt::bytes(table.buckets))
        };
        if tables.is_empty() || tables.len() > 2 || !tables.iter().all(is_fair) {
            return from.fail();
        }
        let count = from.u32_le()? as usize;
        let links = from.many(count, 15, |from| {
            let (head, link) = (from.u8()?, from.u16_le()?);
            let region = Link { at: from.u64_le()?, epoch: from.u32_le()? };
            if inside(region.at, geometry.region_len) { Ok(((head, link), region)) } else { from.fail() }
        })?;
        Ok(Self {
            number,
            boot,
            mode,
            replicated,
            inline_max,
            geometry,
            salt,
            tables,
            links: links.into_iter().collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn requests() -> Vec<Request> {
        let (key, expect) = (b"key".to_vec(), Expect::Version(4));
        vec![
            Request::Put { key: key.clone(), len: 9, expires: 3, expect },
            Request::PutInline { key: key.clone(), value: b"v".to_vec(), expires: 0, expect: Expect::Absent },
            Request::Delete { key: key.clone(), expect: Expect::Present },
            Request::Get { key: key.clone() },
            Request::Settle { key },
            Request::Confirm { versions: vec![1, 2] },
            Request::Abandon { version: 7 },
            Request::Renew { version: 7, written: 1 << 33 },
            Request::Scan { cursor: 1, limit: 2 },
            Request::Count,
            Request::Clear { first: None, cursor: 1 },
            Request::Clear { first: Some(7), cursor: u64::MAX },
            Request::View,
            Request::Acknowledge { view: 5 },
        ]
    }

    fn replies() -> Vec<Reply> {
        let geometry = Geometry::for_size(1 << 20);
        let table = TableAt { at: geometry.region(0), buckets: 64 };
        let view = View {
            number: 3,
            boot: 1,
            mode: Mode::Durable,
            replicated: true,
            inline_max: 77,
            geometry,
            salt: 4,
            tables: vec![table],
            links: BTreeMap::from([((0, 5), Link { at: geometry.region(1), epoch: 9 })]),
        };
        let extents = vec![Extent { offset: Offset(4), at: 256, len: 3 }];
        let place = Reserved { version: 1, head: 2, offset: Offset(3), epoch: 4, at: 5, extents };
        vec![
            Reply::Written(Reserved { extents: Vec::new(), ..place.clone() }),
            Reply::Reserved(place),
            Reply::Done { version: 8 },
            Reply::Absent,
            Reply::Settled { version: 2 },
            Reply::Value { version: 1, expires: 2, value: b"v".to_vec() },
            Reply::Page { next: None, keys: vec![b"a".to_vec(), b"b".to_vec()], nameless: 0 },
            Reply::Page { next: Some(0), keys: vec![], nameless: 7 },
            Reply::Counts { whole: false, counts: vec![] },
            Reply::Counts { whole: true, counts: vec![(0, 1), (255, u64::MAX)] },
            Reply::View(view),
            Reply::Ok,
            Reply::Refused(Refusal::TooLarge { len: 1, pool: 2 }),
        ]
    }

    #[test]
    fn what_was_emitted_is_parsed_and_no_prefix_of_it_is() {
        let mut all = requests();
        all.push(Request::Batch(requests()));
        for request in all {
            let bytes = request.emit();
            assert_eq!(Request::parse(&bytes), Some(request.clone()));
            assert!((0..bytes.len()).all(|len| Request::parse(&bytes[..len]).is_none()), "{request:?}");
        }
        let mut all = replies();
        all.push(Reply::Batch(replies()));
        for reply in all {
            let bytes = reply.emit();
            assert_eq!(Reply::parse(&bytes), Some(reply.clone()));
            assert!((0..bytes.len()).all(|len| Reply::parse(&bytes[..len]).is_none()), "{reply:?}");
        }
    }

    #[test]
    fn a_batch_in_a_batch_is_refused() {
        let nested = Request::Batch(vec![Request::Batch(vec![Request::View])]);
        assert_eq!(Request::parse(&nested.emit()), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
            if let Some(request) = Request::parse(&bytes) {
                prop_assert_eq!(Request::parse(&request.emit()), Some(request));
            }
            let _ = Reply::parse(&bytes);
        }
    }
}
