//! How Redis' values lie in a store that has only bytes.
//!
//! ```text
//! byte 0        1 string, 2 hash, 3 hash in parts; +128 if it expires
//! bytes 1..9    if it expires: when, in milliseconds of Unix time, little-endian
//! then          string: its bytes
//!               hash: its fields in the order they came, each as name and value, each as length and bytes;
//!               lengths in LEB128
//! ```
//!
//! A hash of a few KiB is one value: so are records of benchmarks and sessions. One read answers HGETALL, the two READs of a
//! one-sided GET serve HGET, and to write it anew is cheaper than a second round trip. A larger one is in [parts](crate::parts), so that what
//! a command costs does not depend on how many fields there are.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::store::{HEAD_LEN, StoreError};

const STRING: u8 = 1;
const HASH: u8 = 2;
const PARTS: u8 = 3;
const EXPIRES: u8 = 0x80;

/// Milliseconds of Unix time.
pub type UnixMs = i64;

/// What a value is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A string, which is any bytes.
    String,
    /// Fields and values.
    Hash,
    /// The same, in [parts](crate::parts).
    Parts,
}

impl Kind {
    /// What TYPE says.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::String => "string",
            Self::Hash | Self::Parts => "hash",
        }
    }
}

/// The front of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// What it is.
    pub kind: Kind,
    /// When it expires, if it does.
    pub expires: Option<UnixMs>,
}

impl Head {
    /// A value that stays.
    #[must_use]
    pub const fn new(kind: Kind) -> Self {
        Self { kind, expires: None }
    }

    /// Reads the front of a value, and how long it is.
    ///
    /// # Errors
    /// [`StoreError::Foreign`] if it is no such thing.
    pub fn parse(bytes: &[u8]) -> Result<(Self, usize), StoreError> {
        let (&tag, rest) = bytes.split_first().ok_or(StoreError::Foreign)?;
        let kind = match tag & !EXPIRES {
            STRING => Kind::String,
            HASH => Kind::Hash,
            PARTS => Kind::Parts,
            _ => return Err(StoreError::Foreign),
        };
        if tag & EXPIRES == 0 {
            return Ok((Self { kind, expires: None }, 1));
        }
        let at = rest.first_chunk().ok_or(StoreError::Foreign)?;
        Ok((Self { kind, expires: Some(UnixMs::from_le_bytes(*at)) }, HEAD_LEN))
    }

    /// Appends the head's bytes to a value that is being built.
    pub fn emit(&self, value: &mut Vec<u8>) {
        let kind = match self.kind {
            Kind::String => STRING,
            Kind::Hash => HASH,
            Kind::Parts => PARTS,
        };
        match self.expires {
            None => value.push(kind),
            Some(at) => {
                value.push(kind | EXPIRES);
                value.extend_from_slice(&at.to_le_bytes());
            }
        }
    }

    /// Whether it is gone: strictly after its time, as in Redis.
    #[must_use]
    pub fn expired(&self, now: UnixMs) -> bool {
        self.expires.is_some_and(|at| now > at)
    }
}

/// The fields of a hash, as they lie in its value.
#[derive(Clone, Copy, Default, Debug)]
pub struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    /// Reads what stands behind the head. Every length is checked here, so that going through them cannot fail.
    ///
    /// # Errors
    /// [`StoreError::Foreign`] if it is no hash.
    pub fn parse(payload: &'a [u8]) -> Result<Self, StoreError> {
        let mut rest = payload;
        while !rest.is_empty() {
            take(&mut rest).and_then(|_| take(&mut rest)).ok_or(StoreError::Foreign)?;
        }
        Ok(Self { rest: payload })
    }

    /// The value of a field.
    #[must_use]
    pub fn get(&self, name: &[u8]) -> Option<&'a [u8]> {
        let mut fields = *self;
        fields.find(|(field, _)| *field == name).map(|(_, value)| value)
    }

    /// As they lie there.
    #[must_use]
    pub const fn bytes(&self) -> &'a [u8] {
        self.rest
    }

    /// Every field's value by its name, for who looks for many.
    #[must_use]
    pub fn index(self) -> BTreeMap<&'a [u8], &'a [u8]> {
        self.collect()
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let name = take(&mut self.rest)?;
        Some((name, take(&mut self.rest)?))
    }
}

/// Bytes behind their length.
pub(crate) fn take<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let mut len = 0_u64;
    for shift in (0..63).step_by(7) {
        let (&byte, after) = rest.split_first()?;
        *rest = after;
        len |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            let (taken, after) = rest.split_at_checked(usize::try_from(len).ok()?)?;
            *rest = after;
            return Some(taken);
        }
    }
    None
}

/// Appends bytes behind their length.
pub(crate) fn put(bytes: &[u8], value: &mut Vec<u8>) {
    let mut len = bytes.len();
    while len >= 0x80 {
        value.push(len as u8 | 0x80);
        len >>= 7;
    }
    value.push(len as u8);
    value.extend_from_slice(bytes);
}

/// A field's name and value.
type Field<'a> = (&'a [u8], Cow<'a, [u8]>);

/// A hash that is being changed. Fields keep the order in which they first came.
#[derive(Debug, Default)]
pub struct Hash<'a> {
    fields: Vec<Option<Field<'a>>>,
    index: BTreeMap<&'a [u8], usize>,
}

impl<'a> Hash<'a> {
    /// What was stored.
    #[must_use]
    pub fn new(stored: Fields<'a>) -> Self {
        let mut hash = Self::default();
        for (name, value) in stored {
            hash.set(name, Cow::Borrowed(value));
        }
        hash
    }

    /// How many fields.
    #[must_use]
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether there are none: such a hash does not exist.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// The value of a field.
    #[must_use]
    pub fn get(&self, name: &[u8]) -> Option<&Cow<'a, [u8]>> {
        let place = *self.index.get(name)?;
        self.fields[place].as_ref().map(|(_, value)| value)
    }

    /// Sets a field; whether it is new.
    pub fn set(&mut self, name: &'a [u8], value: Cow<'a, [u8]>) -> bool {
        let place = *self.index.entry(name).or_insert(self.fields.len());
        match self.fields.get_mut(place) {
            Some(field) => {
                *field = Some((name, value));
                false
            }
            None => {
                self.fields.push(Some((name, value)));
                true
            }
        }
    }

    /// Removes a field; whether it was there.
    pub fn remove(&mut self, name: &[u8]) -> bool {
        let Some(place) = self.index.remove(name) else { return false };
        self.fields[place] = None;
        true
    }

    /// Appends the fields behind a head.
    pub fn emit(&self, value: &mut Vec<u8>) {
        for (name, bytes) in self.fields.iter().flatten() {
            put(name, value);
            put(bytes, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Fields, Hash, Head, Kind};

    #[test]
    fn heads_survive_and_end_where_the_value_starts() {
        for kind in [Kind::String, Kind::Hash, Kind::Parts] {
            for expires in [None, Some(0), Some(i64::MAX), Some(-1)] {
                let (head, mut bytes) = (Head { kind, expires }, Vec::new());
                head.emit(&mut bytes);
                let len = bytes.len();
                bytes.extend_from_slice(b"rest");
                assert_eq!(Head::parse(&bytes), Ok((head, len)));
            }
        }
        for bytes in [&b""[..], &[0], &[4], &[0x81, 1, 2]] {
            assert!(Head::parse(bytes).is_err());
        }
    }

    #[test]
    fn a_value_is_there_in_its_last_millisecond_and_gone_after() {
        let head = Head { kind: Kind::String, expires: Some(1000) };
        assert!(!head.expired(1000));
        assert!(head.expired(1001));
    }

    #[test]
    fn fields_keep_their_order_when_changed_and_lose_it_when_they_come_again() {
        let mut hash = Hash::default();
        for (name, value) in [("a", "1"), ("b", "2"), ("c", "3")] {
            assert!(hash.set(name.as_bytes(), value.as_bytes().into()));
        }
        assert!(!hash.set(b"a", b"4"[..].into()));
        assert!(hash.remove(b"b") && !hash.remove(b"b"));
        assert!(hash.set(b"b", b"5"[..].into()));
        let mut bytes = Vec::new();
        hash.emit(&mut bytes);
        let fields = Fields::parse(&bytes).unwrap();
        assert_eq!(fields.get(b"a"), Some(&b"4"[..]));
        assert_eq!(fields.get(b"x"), None);
        let all: Vec<_> = fields.collect();
        assert_eq!(all, [(&b"a"[..], &b"4"[..]), (b"c", b"3"), (b"b", b"5")]);
    }

    proptest! {
        #[test]
        fn any_fields_come_back(pairs in proptest::collection::btree_map(
            proptest::collection::vec(any::<u8>(), 0..300), proptest::collection::vec(any::<u8>(), 0..300), 0..20)) {
            let mut hash = Hash::default();
            for (name, value) in &pairs {
                hash.set(name, value.into());
            }
            let mut bytes = Vec::new();
            hash.emit(&mut bytes);
            let fields: Vec<_> = Fields::parse(&bytes).unwrap().map(|(n, v)| (n.to_vec(), v.to_vec())).collect();
            prop_assert_eq!(fields, pairs.into_iter().collect::<Vec<_>>());
        }

        #[test]
        fn any_bytes_are_a_hash_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(fields) = Fields::parse(&bytes) {
                fields.count();
            }
        }
    }
}
