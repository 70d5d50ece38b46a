//! GET where the memory is at hand: the READs of [`Get`](super::Get) as loads, into the reader's own buffer, with no allocation.
//!
//! It carries out what most GETs are, by the same protocol and with the same checks: a value at its cached location, a settled
//! entry and its object, a miss. Whatever else it meets (a write under way, a checksum that fails, an entry on the move, two
//! tables, chunks) it leaves to a `Get`, which begins anew.
//!
//! Who wants only the [front](peek_front) of a value is not to pay for its length. What a settled entry names is whole and durable, so of a
//! long object the header, the key and the front are enough; that nothing has rotted is only known of what is verified as a whole.

use std::ops::Range;

use super::cache::Location;
use super::{Client, RemoteMemory};
use crate::format::object::{HEADER_LEN, Object};
use crate::format::slot::{NEIGHBOURHOOD, SLOT_LEN, TableAt, fingerprint};
use crate::format::{Header, ObjectAddress, Slot};
use crate::view::Mode;

/// What a look at a key found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Peek {
    /// The key has a value, and its bytes are in the buffer.
    Found {
        /// The version of the value.
        version: u64,
        /// The bytes of the buffer that are the value.
        value: Range<usize>,
    },
    /// The key has no value.
    Absent,
    /// Only a [`Get`](super::Get) can tell.
    Unknown,
}

/// Looks at a key, and appends what it reads to `buffer`, the value among it: only of [`Peek::Found`] does anything stay there.
/// What it found was so at one moment of the call. A client that is told of a new view takes it before.
///
/// # Errors
/// The remote memory cannot be reached any more.
pub fn peek<R: RemoteMemory>(
    client: &mut Client,
    remote: &mut R,
    key: &[u8],
    buffer: &mut Vec<u8>,
) -> Result<Peek, R::Error> {
    look(client, remote, key, None, buffer)
}

/// The same, where so many bytes of the value's front are enough: of a long value no more than that is found, and it is not verified.
///
/// # Errors
/// As for [`peek`].
pub fn peek_front<R: RemoteMemory>(
    client: &mut Client,
    remote: &mut R,
    key: &[u8],
    max: usize,
    buffer: &mut Vec<u8>,
) -> Result<Peek, R::Error> {
    look(client, remote, key, Some(max), buffer)
}

fn look<R: RemoteMemory>(
    client: &mut Client,
    remote: &mut R,
    key: &[u8],
    front: Option<usize>,
    buffer: &mut Vec<u8>,
) -> Result<Peek, R::Error> {
    let start = buffer.len();
    // In mode `erda` what is settled may have been lost with the power.
    let front = front.filter(|_| client.view.mode == Mode::Durable);
    let found = Look { client, remote, key, front, buffer, start }.look();
    if !matches!(found, Ok(Peek::Found { .. })) {
        buffer.truncate(start);
    }
    found
}

/// Objects of so many bytes are read whole in any case.
pub(super) const SHORT: u64 = 1024;

struct Look<'a, R> {
    client: &'a mut Client,
    remote: &'a mut R,
    key: &'a [u8],
    /// So much of the value is wanted; `None`: all.
    front: Option<usize>,
    buffer: &'a mut Vec<u8>,
    start: usize,
}

/// What lies at a place.
enum Seen {
    Value {
        version: u64,
        value: Range<usize>,
        len: u64,
    },
    /// The front of a value in chunks, whose place is not cached.
    Listed {
        version: u64,
        value: Range<usize>,
    },
    /// A tombstone, or a value whose time has come.
    Gone,
    /// The object of another key.
    Other,
    /// Bytes that are no whole object, or not all of one.
    Unclear,
}

impl<R: RemoteMemory> Look<'_, R> {
    fn look(&mut self) -> Result<Peek, R::Error> {
        let Ok(hash) = self.client.hash(self.key) else { return Ok(Peek::Unknown) };
        // What one of several servers has counts only if others vouch for it.
        if self.client.view.replicated {
            return Ok(Peek::Unknown);
        }
        if let Some(location) = self.client.cache.get(hash)
            && let Some((at, place)) = self.client.view.locate(location.head, location.offset)
        {
            match self.at_location(&location, at, &place)? {
                Peek::Unknown => {
                    self.client.stats.stale += 1;
                    self.client.cache.remove(hash);
                }
                found => return Ok(found),
            }
        }
        // While there are two, entries move between them.
        let [table] = self.client.view.tables[..] else { return Ok(Peek::Unknown) };
        self.in_table(table, hash)
    }

    /// Looks at a cached location. [`Peek::Unknown`]: it is out of date.
    fn at_location(&mut self, location: &Location, at: u64, place: &ObjectAddress) -> Result<Peek, R::Error> {
        Ok(match self.object(at, location.len, place)? {
            // The mark decides: without it, no newer version had been handed out when it was read.
            Some((Seen::Value { version, value, .. }, false)) if version == location.version => {
                self.client.stats.cached += 1;
                Peek::Found { version, value }
            }
            _ => Peek::Unknown,
        })
    }

    fn in_table(&mut self, table: TableAt, hash: u64) -> Result<Peek, R::Error> {
        let fingerprint = fingerprint(hash);
        let mut entries = [0; (NEIGHBOURHOOD * SLOT_LEN) as usize];
        let (mut before, mut after) = ([0; 8], [0; 8]);
        if !self.remote.load(table.at, &mut before)?
            || !self.remote.load(table.neighbourhood(fingerprint), &mut entries)?
        {
            return Ok(Peek::Unknown);
        }
        self.client.stats.reads += 1;
        let fits = |slot: &Slot| !slot.word.is_free() && slot.meta.fingerprint() == fingerprint;
        let heads = self.client.view.geometry.heads;
        for slot in Slot::parse_all(&entries).filter(fits).map(|slot| slot.of(heads)) {
            // One that is pending may not be whole, or not last.
            let Some(offset) = slot.word.new_offset().filter(|_| !slot.word.is_pending()) else {
                return Ok(Peek::Unknown);
            };
            let head = slot.meta.head();
            let Some((at, place)) = self.client.view.locate(head, offset) else { return Ok(Peek::Unknown) };
            let len = slot.meta.hint().len().clamp(HEADER_LEN as u64, self.client.view.readable(offset));
            match self.object(at, len, &place)? {
                Some((Seen::Value { version, value, len }, _)) => {
                    let (link, _) = self.client.view.geometry.split(offset);
                    self.client.cache.insert(hash, Location { version, head, link, offset, len });
                    return Ok(Peek::Found { version, value });
                }
                Some((Seen::Listed { version, value }, _)) => return Ok(Peek::Found { version, value }),
                Some((Seen::Gone, _)) => return Ok(Peek::Absent),
                Some((Seen::Other, _)) => self.buffer.truncate(self.start),
                Some((Seen::Unclear, _)) | None => return Ok(Peek::Unknown),
            }
        }
        // As a `Get` makes sure of a miss: nothing moved between the two looks at the count.
        if !self.remote.load(table.at, &mut after)? {
            return Ok(Peek::Unknown);
        }
        self.client.stats.reads += 2;
        Ok(if before == after { Peek::Absent } else { Peek::Unknown })
    }

    /// The object that begins there, of which so many bytes are looked at, or its front, and whether it is superseded. `None`: the memory
    /// is not at hand.
    fn object(&mut self, at: u64, len: u64, place: &ObjectAddress) -> Result<Option<(Seen, bool)>, R::Error> {
        let Some(front) = self.front else { return self.whole(at, len, place) };
        let wanted = HEADER_LEN + self.key.len() + front;
        if len > SHORT.max(wanted as u64) {
            return self.front_of(at, wanted, place);
        }
        // A list of chunks may be longer than the hint says.
        let seen = self.whole(at, len, place)?;
        let unclear = matches!(seen, Some((Seen::Unclear, _)));
        match Header::parse(&self.buffer[self.start..]) {
            Ok(header) if unclear && header.chained => self.listed(at, &header, place),
            _ => Ok(seen),
        }
    }

    /// The front of a long object, which is not verified.
    fn front_of(
        &mut self,
        at: u64,
        wanted: usize,
        place: &ObjectAddress,
    ) -> Result<Option<(Seen, bool)>, R::Error> {
        self.buffer.resize(self.start + wanted, 0);
        if !self.remote.load(at, &mut self.buffer[self.start..])? {
            return Ok(None);
        }
        self.client.stats.reads += 1;
        let unclear = Ok(Some((Seen::Unclear, false)));
        let Ok(object) = Object::front(&self.buffer[self.start..], place) else { return unclear };
        let header = object.header;
        // Whoever would act on what is not simply there verifies it first.
        let is_over = header.deleted || header.expires != 0 && header.is_expired(self.remote.now());
        if object.key != self.key || is_over {
            return unclear;
        }
        if header.chained {
            return self.listed(at, &header, place);
        }
        let value = self.start + HEADER_LEN + object.key.len();
        let end = value + object.value.len();
        self.buffer.truncate(end);
        let seen = Seen::Value { version: header.version, value: value..end, len: header.len() };
        Ok(Some((seen, header.is_superseded())))
    }

    /// The front of a value in chunks, by a list with this header: that is verified.
    fn listed(
        &mut self,
        at: u64,
        header: &Header,
        place: &ObjectAddress,
    ) -> Result<Option<(Seen, bool)>, R::Error> {
        let unclear = Ok(Some((Seen::Unclear, false)));
        let len = header.len().min(self.client.view.readable(place.offset));
        self.buffer.resize(self.start + len as usize, 0);
        if !self.remote.load(at, &mut self.buffer[self.start..])? {
            return Ok(None);
        }
        self.client.stats.reads += 2;
        let Ok(object) = Object::parse(&self.buffer[self.start..], place) else { return unclear };
        let header = object.header;
        let is_over = header.expires != 0 && header.is_expired(self.remote.now());
        if object.key != self.key || !header.chained || is_over {
            return unclear;
        }
        let Some((_, chunks)) = object.chunks() else { return unclear };
        let Some(first) = chunks.first() else { return unclear };
        let Some((at, _)) = self.client.view.locate(place.head, first.offset) else { return unclear };
        let front = self.front.unwrap_or(0).min(first.len as usize);
        self.buffer.resize(self.start + front, 0);
        if !self.remote.load(at, &mut self.buffer[self.start..])? {
            return Ok(None);
        }
        let value = self.start..self.start + front;
        Ok(Some((Seen::Listed { version: header.version, value }, header.is_superseded())))
    }

    fn whole(&mut self, at: u64, len: u64, place: &ObjectAddress) -> Result<Option<(Seen, bool)>, R::Error> {
        self.buffer.resize(self.start + len as usize, 0);
        if !self.remote.load(at, &mut self.buffer[self.start..])? {
            return Ok(None);
        }
        self.client.stats.reads += 1;
        let Ok(object) = Object::parse(&self.buffer[self.start..], place) else {
            return Ok(Some((Seen::Unclear, false)));
        };
        let header = object.header;
        let seen = if object.key != self.key {
            Seen::Other
        } else if header.deleted || (header.expires != 0 && header.is_expired(self.remote.now())) {
            Seen::Gone
        } else if header.chained {
            Seen::Unclear
        } else {
            let end = self.start + header.len() as usize;
            let value = end - object.value.len()..end;
            self.buffer.truncate(end);
            Seen::Value { version: header.version, value, len: header.len() }
        };
        Ok(Some((seen, header.is_superseded())))
    }
}
