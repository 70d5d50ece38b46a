//! Requests and replies as bytes. All integers are little-endian; a byte string is a u32 length and the bytes.

use remanence_codec::{Malformed, Reader};

use super::{BATCH_MAX, Expect, Extent, Refusal, Reply, Request, Reserved};
use crate::format::slot::TableAt;
use crate::format::{Geometry, Offset};
use crate::view::{Link, Mode, View};

/// A byte string.
fn bytes(from: &mut Reader<'_>) -> Result<Vec<u8>, Malformed> {
    let len = from.u32_le()? as usize;
    Ok(from.take(len)?.to_vec())
}

/// So many items of at least `least` bytes each.
fn many<'a, T>(
    from: &mut Reader<'a>,
    least: usize,
    item: impl FnMut(&mut Reader<'a>) -> Result<T, Malformed>,
) -> Result<Vec<T>, Malformed> {
    let count = from.u32_le()? as usize;
    from.many(count, least, item)
}

/// All of a message.
fn whole<T>(bytes: &[u8], parse: impl FnOnce(&mut Reader<'_>) -> Result<T, Malformed>) -> Option<T> {
    let mut from = Reader::new(bytes);
    let parsed = parse(&mut from).ok()?;
    from.end().ok()?;
    Some(parsed)
}

fn put_bytes(to: &mut Vec<u8>, bytes: &[u8]) {
    to.extend((bytes.len() as u32).to_le_bytes());
    to.extend_from_slice(bytes);
}

impl Expect {
    fn emit(self, to: &mut Vec<u8>) {
        let (tag, version) = match self {
            Self::Any => (0, 0),
            Self::Absent => (1, 0),
            Self::Present => (2, 0),
            Self::Version(version) => (3, version),
            Self::Freeing(version) => (4, version),
            Self::Moving(version) => (5, version),
        };
        to.push(tag);
        to.extend(version.to_le_bytes());
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

impl Request {
    /// The bytes of the request, as [`parse`](Self::parse) reads them.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.emit_to(&mut bytes);
        bytes
    }

    fn emit_to(&self, to: &mut Vec<u8>) {
        match self {
            Self::Put { key, len, expires, expect } => {
                to.push(1);
                put_bytes(to, key);
                to.extend(len.to_le_bytes());
                to.extend(expires.to_le_bytes());
                expect.emit(to);
            }
            Self::PutInline { key, value, expires, expect } => {
                to.push(2);
                put_bytes(to, key);
                put_bytes(to, value);
                to.extend(expires.to_le_bytes());
                expect.emit(to);
            }
            Self::Delete { key, expect } => {
                to.push(3);
                put_bytes(to, key);
                expect.emit(to);
            }
            Self::Get { key } => {
                to.push(4);
                put_bytes(to, key);
            }
            Self::Settle { key } => {
                to.push(5);
                put_bytes(to, key);
            }
            Self::Confirm { versions } => {
                to.push(6);
                to.extend((versions.len() as u32).to_le_bytes());
                versions.iter().for_each(|version| to.extend(version.to_le_bytes()));
            }
            Self::Abandon { version } => {
                to.push(7);
                to.extend(version.to_le_bytes());
            }
            Self::Scan { cursor, limit } => {
                to.push(8);
                to.extend(cursor.to_le_bytes());
                to.extend(limit.to_le_bytes());
            }
            Self::View => to.push(9),
            Self::Acknowledge { view } => {
                to.push(10);
                to.extend(view.to_le_bytes());
            }
            Self::Batch(requests) => {
                to.push(11);
                to.extend((requests.len() as u32).to_le_bytes());
                requests.iter().for_each(|request| request.emit_to(to));
            }
            Self::Count => to.push(12),
            Self::Clear { first, cursor } => {
                to.push(13);
                to.extend([u8::from(first.is_some()), first.unwrap_or(0)]);
                to.extend(cursor.to_le_bytes());
            }
            Self::Renew { version, written } => {
                to.push(14);
                to.extend(version.to_le_bytes());
                to.extend(written.to_le_bytes());
            }
        }
    }

    /// Reads any bytes. `None`: they are no request.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        whole(bytes, |from| Self::parse_from(from, true))
    }

    fn parse_from(from: &mut Reader<'_>, outermost: bool) -> Result<Self, Malformed> {
        Ok(match from.u8()? {
            1 => {
                let (key, len, expires) = (bytes(from)?, from.u64_le()?, from.u64_le()?);
                Self::Put { key, len, expires, expect: Expect::parse(from)? }
            }
            2 => {
                let (key, value, expires) = (bytes(from)?, bytes(from)?, from.u64_le()?);
                Self::PutInline { key, value, expires, expect: Expect::parse(from)? }
            }
            3 => Self::Delete { key: bytes(from)?, expect: Expect::parse(from)? },
            4 => Self::Get { key: bytes(from)? },
            5 => Self::Settle { key: bytes(from)? },
            6 => Self::Confirm { versions: many(from, 8, Reader::u64_le)? },
            7 => Self::Abandon { version: from.u64_le()? },
            8 => Self::Scan { cursor: from.u64_le()?, limit: from.u32_le()? },
            9 => Self::View,
            10 => Self::Acknowledge { view: from.u64_le()? },
            11 if outermost => {
                let mut count = 0;
                Self::Batch(many(from, 1, |from| {
                    // Each takes more memory than bytes, so that too many are refused before they are read.
                    count += 1;
                    if count > BATCH_MAX { from.fail() } else { Self::parse_from(from, false) }
                })?)
            }
            12 => Self::Count,
            13 => {
                let (some, first) = (from.u8()?, from.u8()?);
                Self::Clear { first: (some != 0).then_some(first), cursor: from.u64_le()? }
            }
            14 => Self::Renew { version: from.u64_le()?, written: from.u64_le()? },
            _ => return from.fail(),
        })
    }
}

impl Refusal {
    fn emit(&self, to: &mut Vec<u8>) {
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
        to.push(tag);
        to.extend(u64::to_le_bytes(a));
        to.extend(u64::to_le_bytes(b));
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

impl Reply {
    /// The bytes of the reply, as [`parse`](Self::parse) reads them.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.emit_to(&mut bytes);
        bytes
    }

    fn emit_to(&self, to: &mut Vec<u8>) {
        match self {
            Self::Reserved(reserved) => {
                to.push(1);
                reserved.emit(to);
            }
            Self::Done { version } => {
                to.push(2);
                to.extend(version.to_le_bytes());
            }
            Self::Absent => to.push(3),
            Self::Settled { version } => {
                to.push(4);
                to.extend(version.to_le_bytes());
            }
            Self::Value { version, expires, value } => {
                to.push(5);
                to.extend(version.to_le_bytes());
                to.extend(expires.to_le_bytes());
                put_bytes(to, value);
            }
            Self::Page { next, keys, nameless } => {
                to.push(6);
                to.push(u8::from(next.is_some()));
                to.extend(next.unwrap_or(0).to_le_bytes());
                to.extend((keys.len() as u32).to_le_bytes());
                keys.iter().for_each(|key| put_bytes(to, key));
                to.extend(nameless.to_le_bytes());
            }
            Self::View(view) => {
                to.push(7);
                view.emit(to);
            }
            Self::Batch(replies) => {
                to.push(8);
                to.extend((replies.len() as u32).to_le_bytes());
                replies.iter().for_each(|reply| reply.emit_to(to));
            }
            Self::Ok => to.push(9),
            Self::Refused(refusal) => {
                to.push(10);
                refusal.emit(to);
            }
            Self::Written(place) => {
                to.push(11);
                place.emit(to);
            }
            Self::Counts { whole, counts } => {
                to.extend([12, u8::from(*whole)]);
                to.extend((counts.len() as u32).to_le_bytes());
                for (first, count) in counts {
                    to.push(*first);
                    to.extend(count.to_le_bytes());
                }
            }
        }
    }

    /// Reads any bytes. `None`: they are no reply.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        whole(bytes, |from| Self::parse_from(from, true))
    }

    fn parse_from(from: &mut Reader<'_>, outermost: bool) -> Result<Self, Malformed> {
        Ok(match from.u8()? {
            1 => Self::Reserved(Reserved::parse(from)?),
            2 => Self::Done { version: from.u64_le()? },
            3 => Self::Absent,
            4 => Self::Settled { version: from.u64_le()? },
            5 => Self::Value { version: from.u64_le()?, expires: from.u64_le()?, value: bytes(from)? },
            6 => {
                let (more, next) = (from.u8()?, from.u64_le()?);
                let keys = many(from, 4, bytes)?;
                Self::Page { next: (more != 0).then_some(next), keys, nameless: from.u32_le()? }
            }
            7 => Self::View(View::parse(from)?),
            8 if outermost => Self::Batch(many(from, 1, |from| Self::parse_from(from, false))?),
            9 => Self::Ok,
            10 => Self::Refused(Refusal::parse(from)?),
            11 => Self::Written(Reserved::parse(from)?),
            12 => {
                let whole = from.u8()? != 0;
                Self::Counts { whole, counts: many(from, 9, |from| Ok((from.u8()?, from.u64_le()?)))? }
            }
            _ => return from.fail(),
        })
    }
}

impl Reserved {
    fn emit(&self, to: &mut Vec<u8>) {
        to.extend(self.version.to_le_bytes());
        to.push(self.head);
        to.extend(self.offset.0.to_le_bytes());
        to.extend(self.epoch.to_le_bytes());
        to.extend(self.at.to_le_bytes());
        to.extend((self.extents.len() as u32).to_le_bytes());
        for extent in &self.extents {
            to.extend(extent.offset.0.to_le_bytes());
            to.extend(extent.at.to_le_bytes());
            to.extend(extent.len.to_le_bytes());
        }
    }

    fn parse(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            version: from.u64_le()?,
            head: from.u8()?,
            offset: Offset(from.u32_le()?),
            epoch: from.u32_le()?,
            at: from.u64_le()?,
            extents: many(from, 16, |from| {
                Ok(Extent { offset: Offset(from.u32_le()?), at: from.u64_le()?, len: from.u32_le()? })
            })?,
        })
    }
}

impl View {
    fn emit(&self, to: &mut Vec<u8>) {
        to.extend(self.number.to_le_bytes());
        to.extend(self.boot.to_le_bytes());
        to.push(match (self.mode, self.replicated) {
            (Mode::Erda, false) => 0,
            (Mode::Durable, false) => 1,
            (Mode::Durable, true) => 2,
            (Mode::Erda, true) => 3,
        });
        to.extend(self.inline_max.to_le_bytes());
        to.extend(self.geometry.size.to_le_bytes());
        to.extend(self.geometry.region_len.to_le_bytes());
        to.extend(self.geometry.segment_len.to_le_bytes());
        to.extend(self.geometry.heads.to_le_bytes());
        to.extend(self.salt.to_le_bytes());
        to.extend((self.tables.len() as u32).to_le_bytes());
        for table in &self.tables {
            to.extend(table.at.to_le_bytes());
            to.extend(table.buckets.to_le_bytes());
        }
        to.extend((self.links.len() as u32).to_le_bytes());
        for ((head, link), region) in &self.links {
            to.push(*head);
            to.extend(link.to_le_bytes());
            to.extend(region.at.to_le_bytes());
            to.extend(region.epoch.to_le_bytes());
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
        let tables = many(from, 16, |from| {
            let table = TableAt { at: from.u64_le()?, buckets: from.u64_le()? };
            let fair =
                (1..1 << 48).contains(&table.buckets) && inside(table.at, TableAt::bytes(table.buckets));
            if fair { Ok(table) } else { from.fail() }
        })?;
        if tables.is_empty() || tables.len() > 2 {
            return from.fail();
        }
        let links = many(from, 15, |from| {
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
