//! A replicated map: keys and values of bytes, each with a version, by which it can be compared and swapped.
//!
//! ```text
//! command    u8 kind: 1 put, 2 delete, 3 compare and swap; u16 bytes of the key, the key; of 3 the version, u64; the value
//! answer     u8 kind: 1 done, 2 another version, 3 full, 4 no command; of 1 and 2 the version, u64
//! question   the key
//! answer     nothing if there is none; else the version, u64, and the value
//! snapshot   u32 format, u64 changes so far, then for each key u16, the key, u64 version, u32, the value
//! ```
//! All integers are little-endian. A version is the number of the change that has made it: it is never another one's, of whichever key. 0 is the version of a key that is
//! not there. The map has a limit, so that a snapshot of it fits where a replica has room for one: what would exceed it is refused by every replica alike.

use std::collections::BTreeMap;

use remanence_codec::{Malformed, Reader, Writer};
use remanence_coord::mu::service::Query;
use remanence_coord::replicated::StateMachine;

/// Bytes that the map's snapshot has at most.
pub const MAP_MAX: usize = 1 << 20;
/// Bytes of a key at most.
pub const KEY_MAX: usize = 1024;

const FORMAT: u32 = 1;
/// Bytes of a snapshot before the first key, and of a key besides itself and its value.
const HEAD: usize = 12;
const EACH: usize = 14;

/// What is done to the map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change<'a> {
    /// A key has this value from now on.
    Put {
        /// The key that it is about.
        key: &'a [u8],
        /// What it is to have.
        value: &'a [u8],
    },
    /// A key is not there any more.
    Delete {
        /// The key that it is about.
        key: &'a [u8],
    },
    /// As [`Put`](Self::Put), if the key has this version; 0: if it is not there.
    Swap {
        /// The key that it is about.
        key: &'a [u8],
        /// The version that it is to have.
        version: u64,
        /// What it is to have.
        value: &'a [u8],
    },
}

/// What became of a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It was made. The version of the key now, or before it was deleted; 0: there was none.
    Done(u64),
    /// Nothing was changed: the key has this version.
    Differs(u64),
    /// Nothing was changed: the map has no room for it.
    Full,
    /// It was no change.
    Malformed,
}

/// A value, and its version.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Value {
    /// The number of the change that has made it.
    pub version: u64,
    /// What the key has.
    pub bytes: Vec<u8>,
}

impl<'a> Change<'a> {
    /// The bytes of the command.
    ///
    /// # Panics
    /// The key is longer than 65,535 bytes.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let mut out = Writer::new(usize::MAX);
        let (kind, key, version, value) = match *self {
            Self::Put { key, value } => (1, key, None, value),
            Self::Delete { key } => (2, key, None, &[][..]),
            Self::Swap { key, version, value } => (3, key, Some(version), value),
        };
        out.u8(kind);
        out.u16_le(u16::try_from(key.len()).expect("a key has less than 64 KiB"));
        out.bytes(key);
        if let Some(version) = version {
            out.u64_le(version);
        }
        out.bytes(value);
        out.finish().expect("it has no limit")
    }

    /// What the bytes change.
    ///
    /// # Errors
    /// They are no change of the map.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let (kind, len) = (reader.u8()?, reader.u16_le()?);
        let key = reader.take(len.into())?;
        match kind {
            1 => Ok(Self::Put { key, value: reader.rest() }),
            2 => reader.end().map(|()| Self::Delete { key }),
            3 => Ok(Self::Swap { key, version: reader.u64_le()?, value: reader.rest() }),
            _ => reader.fail(),
        }
    }
}

impl Outcome {
    /// The bytes of the answer.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let (kind, version) = match *self {
            Self::Done(version) => (1, Some(version)),
            Self::Differs(version) => (2, Some(version)),
            Self::Full => (3, None),
            Self::Malformed => (4, None),
        };
        let mut bytes = vec![kind];
        bytes.extend(version.into_iter().flat_map(u64::to_le_bytes));
        bytes
    }

    /// What the bytes say.
    ///
    /// # Errors
    /// They are no answer to a change.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let outcome = match reader.u8()? {
            1 => Self::Done(reader.u64_le()?),
            2 => Self::Differs(reader.u64_le()?),
            3 => Self::Full,
            4 => Self::Malformed,
            _ => return reader.fail(),
        };
        reader.end().map(|()| outcome)
    }
}

impl Value {
    /// What a question was answered; nothing if there is no such key.
    ///
    /// # Errors
    /// The bytes are no answer to a question.
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>, Malformed> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let mut reader = Reader::new(bytes);
        let version = reader.u64_le()?;
        Ok(Some(Self { version, bytes: reader.rest().to_vec() }))
    }
}

/// The map, as a state machine.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Map {
    changes: u64,
    values: BTreeMap<Vec<u8>, Value>,
    /// Bytes of the keys and the values, in a snapshot.
    bytes: usize,
}

impl Map {
    fn version(&self, key: &[u8]) -> u64 {
        self.values.get(key).map_or(0, |value| value.version)
    }

    fn remove(&mut self, key: &[u8]) {
        if let Some(value) = self.values.remove(key) {
            self.bytes -= EACH + key.len() + value.bytes.len();
        }
    }

    fn insert(&mut self, key: &[u8], value: Value) {
        self.remove(key);
        self.bytes += EACH + key.len() + value.bytes.len();
        self.values.insert(key.to_vec(), value);
    }

    fn puts(&mut self, key: &[u8], bytes: &[u8]) -> Outcome {
        let before = self.values.get(key).map_or(0, |value| EACH + key.len() + value.bytes.len());
        if HEAD + self.bytes - before + EACH + key.len() + bytes.len() > MAP_MAX || key.len() > KEY_MAX {
            return Outcome::Full;
        }
        self.changes += 1;
        self.insert(key, Value { version: self.changes, bytes: bytes.to_vec() });
        Outcome::Done(self.changes)
    }

    fn changes(&mut self, change: Change<'_>) -> Outcome {
        match change {
            Change::Put { key, value } => self.puts(key, value),
            Change::Swap { key, version, value } => match self.version(key) {
                found if found == version => self.puts(key, value),
                found => Outcome::Differs(found),
            },
            Change::Delete { key } => {
                let version = self.version(key);
                self.remove(key);
                self.changes += u64::from(version > 0);
                Outcome::Done(version)
            }
        }
    }
}

impl StateMachine for Map {
    fn apply(&mut self, command: &[u8]) -> Vec<u8> {
        let outcome = match Change::parse(command) {
            Ok(change) => self.changes(change),
            Err(_) => Outcome::Malformed,
        };
        outcome.emit()
    }

    fn snapshot(&self) -> Vec<u8> {
        let mut out = Writer::new(usize::MAX);
        out.u32_le(FORMAT);
        out.u64_le(self.changes);
        for (key, value) in &self.values {
            out.u16_le(key.len() as u16);
            out.bytes(key);
            out.u64_le(value.version);
            out.u32_le(value.bytes.len() as u32);
            out.bytes(&value.bytes);
        }
        out.finish().expect("it has no limit")
    }

    fn restore(snapshot: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(snapshot);
        if reader.u32_le()? != FORMAT {
            return reader.fail();
        }
        let mut map = Self { changes: reader.u64_le()?, ..Self::default() };
        while !reader.rest().is_empty() {
            let len = reader.u16_le()?;
            let key = reader.take(len.into())?;
            let (version, len) = (reader.u64_le()?, reader.u32_le()? as usize);
            map.insert(key, Value { version, bytes: reader.take(len)?.to_vec() });
        }
        Ok(map)
    }
}

impl Query for Map {
    fn query(&self, question: &[u8]) -> Vec<u8> {
        let found = self.values.get(question);
        found.map_or_else(Vec::new, |value| [&value.version.to_le_bytes()[..], &value.bytes].concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put<'a>(key: &'a [u8], value: &'a [u8]) -> Change<'a> {
        Change::Put { key, value }
    }

    fn apply(map: &mut Map, change: Change<'_>) -> Outcome {
        Outcome::parse(&map.apply(&change.emit())).expect("an answer")
    }

    fn get(map: &Map, key: &[u8]) -> Option<(u64, Vec<u8>)> {
        Value::parse(&map.query(key)).expect("an answer").map(|value| (value.version, value.bytes))
    }

    #[test]
    fn a_key_has_what_was_put_last_with_a_version_of_its_own() {
        let mut map = Map::default();
        assert_eq!(get(&map, b"a"), None);
        assert_eq!(apply(&mut map, put(b"a", b"one")), Outcome::Done(1));
        assert_eq!(apply(&mut map, put(b"b", b"")), Outcome::Done(2));
        assert_eq!(apply(&mut map, put(b"a", b"two")), Outcome::Done(3));
        assert_eq!((get(&map, b"a"), get(&map, b"b")), (Some((3, b"two".to_vec())), Some((2, Vec::new()))));
        assert_eq!(apply(&mut map, Change::Delete { key: b"a" }), Outcome::Done(3));
        assert_eq!(apply(&mut map, Change::Delete { key: b"a" }), Outcome::Done(0));
        assert_eq!(get(&map, b"a"), None);
        assert_eq!(apply(&mut map, put(b"a", b"x")), Outcome::Done(5), "no version comes twice");
    }

    #[test]
    fn a_swap_changes_what_has_the_version_and_nothing_else() {
        let mut map = Map::default();
        let swap = |version, value| Change::Swap { key: b"a", version, value };
        assert_eq!(apply(&mut map, swap(1, b"x")), Outcome::Differs(0));
        assert_eq!(apply(&mut map, swap(0, b"x")), Outcome::Done(1));
        assert_eq!(apply(&mut map, swap(0, b"y")), Outcome::Differs(1));
        assert_eq!(apply(&mut map, swap(1, b"z")), Outcome::Done(2));
        assert_eq!(get(&map, b"a"), Some((2, b"z".to_vec())));
    }

    #[test]
    fn what_does_not_fit_changes_nothing() {
        let mut map = Map::default();
        let value = vec![7; 4000];
        let mut n = 0_u32;
        while apply(&mut map, put(&n.to_le_bytes(), &value)) != Outcome::Full {
            n += 1;
        }
        assert_eq!(n as usize, (MAP_MAX - HEAD) / (EACH + 4 + 4000));
        assert!(map.snapshot().len() <= MAP_MAX && get(&map, &n.to_le_bytes()).is_none());
        assert_eq!(apply(&mut map, put(&0_u32.to_le_bytes(), &value)), Outcome::Done(u64::from(n) + 1));
        assert_eq!(apply(&mut map, put(&vec![1; KEY_MAX + 1], b"")), Outcome::Full);
        apply(&mut map, Change::Delete { key: &0_u32.to_le_bytes() });
        assert!(matches!(apply(&mut map, put(b"new", &value)), Outcome::Done(_)), "there is room again");
    }

    #[test]
    fn a_snapshot_is_the_whole_map() {
        let mut map = Map::default();
        for n in 0..50_u8 {
            apply(&mut map, put(&[n % 20], &vec![n; n.into()]));
        }
        apply(&mut map, Change::Delete { key: &[3] });
        assert_eq!(Map::restore(&map.snapshot()), Ok(map.clone()));
        assert_eq!(map.snapshot().len(), HEAD + map.bytes);
        for cut in 1..map.snapshot().len() {
            let part = Map::restore(&map.snapshot()[..cut]);
            assert!(part.is_err() || part != Ok(map.clone()), "{cut}");
        }
    }

    #[test]
    fn what_is_no_command_is_answered() {
        let mut map = Map::default();
        for bytes in [&[][..], &[1], &[1, 5, 0, 1], &[2, 1, 0, 1, 1], &[3, 1, 0, 1, 1], &[9, 0, 0]] {
            assert_eq!(Outcome::parse(&map.apply(bytes)), Ok(Outcome::Malformed), "{bytes:?}");
        }
        assert_eq!(map, Map::default());
        for change in [put(b"k", b"v"), Change::Delete { key: b"k" }] {
            assert_eq!(Change::parse(&change.emit()), Ok(change));
        }
        for outcome in [Outcome::Done(7), Outcome::Differs(8), Outcome::Full] {
            assert_eq!(Outcome::parse(&outcome.emit()), Ok(outcome));
        }
        assert!(Outcome::parse(&[1, 0]).is_err() && Outcome::parse(&[]).is_err());
    }
}
