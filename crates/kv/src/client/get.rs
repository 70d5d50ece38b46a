//! GET: the entry, the object, and what to do when they do not fit.
//!
//! ```text
//! cached?  READ object ── whole, same version, no mark ──────────────────────────────► value
//!   │ no or stale
//! READ neighbourhood(s) ── no fingerprint fits ── READ count, entries, count ── same ► absent
//!   │ fits
//! READ object ── another key: next entry
//!   ├─ whole, settled (or mode `erda`) ──────────────────────────────────────────────► value
//!   ├─ whole, pending, mode `durable`: ask the server to settle it ──────────────────► value
//!   ├─ torn, pending: READ the version before ───────────────────────────────────────► value
//!   └─ torn, settled: the entry has moved on; begin again
//! ```

use std::collections::VecDeque;

use super::cache::Location;
use super::peek::SHORT;
use super::{Client, Completion, Error, Operation, Progress, Verb};
use crate::format::object::{HEADER_LEN, Object, crc64};
use crate::format::slot::{NEIGHBOURHOOD, SLOT_LEN, TableAt, fingerprint};
use crate::format::{Chunk, Flaw, Header, ObjectAddress, Offset, Slot};
use crate::proto::{Refusal, Reply, Request};
use crate::view::Mode;

/// How often a GET begins again before it asks the server.
const TRIES: u32 = 8;

/// A value that a key has, as a GET found it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// The version of the value.
    pub version: u64,
    /// When the value ends, in milliseconds of the server's clock; 0: never.
    pub expires: u64,
    /// The bytes of the value.
    pub value: Vec<u8>,
}

/// The operation that reads a key's value.
#[derive(Debug)]
pub struct Get {
    key: Vec<u8>,
    hash: u64,
    fingerprint: u64,
    id: Option<u64>,
    state: State,
    tries: u32,
    /// Entries with this fingerprint that are to be looked at.
    queue: VecDeque<Slot>,
    /// Entries that turned out to be another key's, or of a value that does not exist yet.
    not_it: Vec<Slot>,
    /// So much of the value is wanted; `None`: all.
    front: Option<usize>,
}

#[derive(Debug)]
enum State {
    Begin,
    Cached(Location, ObjectAddress),
    Slots {
        tables: Vec<TableAt>,
        sure: bool,
    },
    Object(Fetch),
    Chunks {
        found: Found,
        chunks: Vec<Chunk>,
        fetch: Fetch,
    },
    /// The front of the first chunk.
    Front {
        found: Found,
        fetch: Fetch,
    },
    Settling(Found, Option<Location>),
    View,
    Asked,
    Over,
}

/// An object that is being read.
#[derive(Clone, Copy, Debug)]
struct Fetch {
    slot: Slot,
    offset: Offset,
    place: ObjectAddress,
    /// Whether it is the version before.
    old: bool,
}

type Outcome = Result<Option<Found>, Error>;

impl Get {
    /// A GET of this key, which has not begun.
    #[must_use]
    pub fn new(key: &[u8]) -> Self {
        Self {
            key: key.to_vec(),
            hash: 0,
            fingerprint: 0,
            id: None,
            state: State::Begin,
            tries: 0,
            queue: VecDeque::new(),
            not_it: Vec::new(),
            front: None,
        }
    }

    /// The same, where so many bytes of the value's front are enough: of a long value that is not being written no more than that is
    /// found, and it is not verified.
    #[must_use]
    pub fn front(key: &[u8], max: usize) -> Self {
        Self { front: Some(max), ..Self::new(key) }
    }

    /// So many bytes of an object are read at first.
    fn wanted(&self, client: &Client, len: u64) -> u64 {
        // In mode `erda` what is settled may have been lost with the power.
        let front = self.front.filter(|_| client.view.mode == Mode::Durable);
        let few = front.map_or(len, |max| (HEADER_LEN + self.key.len() + max) as u64);
        if len > SHORT.max(few) { few } else { len }
    }

    /// The front of a value whose object is whole, if the value is simply there: whoever would act on anything else verifies it first.
    fn front_of(&self, now: u64, bytes: &[u8], place: &ObjectAddress) -> Option<(Header, Found)> {
        let object = Object::front(bytes, place).ok()?;
        let header = object.header;
        let is_there =
            object.key == self.key && !header.deleted && !header.chained && !header.is_expired(now);
        let (version, expires) = (header.version, header.expires);
        is_there.then(|| (header, Found { version, expires, value: object.value.to_vec() }))
    }

    fn over(&mut self, client: &mut Client, outcome: Outcome) -> Progress<Outcome> {
        client.end(self.id.take());
        self.state = State::Over;
        Progress::Done(outcome)
    }

    fn post(&mut self, client: &mut Client, state: State, verbs: Vec<Verb>) -> Progress<Outcome> {
        client.stats.reads += verbs.iter().filter(|verb| matches!(verb, Verb::Read { .. })).count() as u64;
        self.state = state;
        Progress::Post(verbs)
    }

    fn begin(&mut self, client: &mut Client) -> Progress<Outcome> {
        self.hash = match client.hash(&self.key) {
            Ok(hash) => hash,
            Err(refusal) => return self.over(client, Err(refusal.into())),
        };
        self.fingerprint = fingerprint(self.hash);
        self.id = Some(client.begin());
        if let Some(location) = client.cache.get(self.hash)
            && let Some((at, place)) = client.view.locate(location.head, location.offset)
        {
            let read = Verb::Read { at, len: self.wanted(client, location.len) };
            return self.post(client, State::Cached(location, place), vec![read]);
        }
        self.look(client, false)
    }

    /// Reads the neighbourhood of the key in every table, in the order in which entries move. To be sure of a miss, the
    /// counts of moves before and after.
    fn look(&mut self, client: &mut Client, sure: bool) -> Progress<Outcome> {
        let tables = client.view.tables.clone();
        let counts = || tables.iter().map(|table| Verb::Read { at: table.at, len: 8 });
        let entries = tables.iter().map(|table| Verb::Read {
            at: table.neighbourhood(self.fingerprint),
            len: NEIGHBOURHOOD * SLOT_LEN,
        });
        let verbs = if sure { counts().chain(entries).chain(counts()).collect() } else { entries.collect() };
        self.post(client, State::Slots { tables, sure }, verbs)
    }

    /// What was read does not fit together: somebody changed it meanwhile.
    fn again(&mut self, client: &mut Client) -> Progress<Outcome> {
        client.stats.again += 1;
        self.tries += 1;
        self.queue.clear();
        self.not_it.clear();
        if self.tries < TRIES {
            return self.look(client, false);
        }
        client.stats.asked += 1;
        let ask = Verb::Call(Request::Get { key: self.key.clone() });
        self.post(client, State::Asked, vec![ask])
    }

    fn cached(
        &mut self,
        client: &mut Client,
        now: u64,
        location: Location,
        place: ObjectAddress,
        bytes: &[u8],
    ) -> Progress<Outcome> {
        if (bytes.len() as u64) < location.len
            && let Some((header, found)) = self.front_of(now, bytes, &place)
            && header.version == location.version
            && !header.is_superseded()
        {
            client.stats.cached += 1;
            return self.over(client, Ok(Some(found)));
        }
        if let Ok(object) = Object::parse(bytes, &place) {
            let header = object.header;
            let current = object.key == self.key && header.version == location.version;
            // The mark first decides: without it, no newer version had been handed out when it was read.
            if current && !header.is_superseded() && !header.chained {
                client.stats.cached += 1;
                let found = (!header.is_expired(now)).then(|| Found {
                    version: header.version,
                    expires: header.expires,
                    value: object.value.to_vec(),
                });
                return self.over(client, Ok(found));
            }
        }
        client.stats.stale += 1;
        client.cache.remove(self.hash);
        self.look(client, false)
    }

    fn slots(
        &mut self,
        client: &mut Client,
        tables: &[TableAt],
        sure: bool,
        read: &[Vec<u8>],
    ) -> Progress<Outcome> {
        let count = tables.len();
        let (entries, counted) = if sure { (&read[count..2 * count], true) } else { (read, false) };
        for bytes in entries {
            let heads = client.view.geometry.heads;
            let fitting = Slot::parse_all(bytes).map(|slot| slot.of(heads)).filter(|slot| {
                !slot.word.is_free()
                    && slot.meta.fingerprint() == self.fingerprint
                    && !self.not_it.contains(slot)
                    && !self.queue.contains(slot)
            });
            let fitting: Vec<Slot> = fitting.collect();
            self.queue.extend(fitting);
        }
        if self.queue.is_empty() && counted {
            let moved = read[..count] != read[2 * count..];
            return if moved { self.again(client) } else { self.over(client, Ok(None)) };
        }
        self.next_entry(client)
    }

    fn next_entry(&mut self, client: &mut Client) -> Progress<Outcome> {
        let Some(slot) = self.queue.pop_front() else { return self.look(client, true) };
        let Some(offset) = slot.word.new_offset() else {
            if client.view.mode == Mode::Durable || !slot.word.is_sound() {
                // It is going, and not yet durably so; or it is damaged, which the server says in the end.
                return self.again(client);
            }
            self.not_it.push(slot);
            return self.next_entry(client);
        };
        let hint = slot.meta.hint().len();
        let len = if slot.word.is_pending() { hint } else { self.wanted(client, hint) };
        self.fetch(client, slot, offset, false, len)
    }

    fn fetch(
        &mut self,
        client: &mut Client,
        slot: Slot,
        offset: Offset,
        old: bool,
        len: u64,
    ) -> Progress<Outcome> {
        let Some((at, place)) = client.view.locate(slot.meta.head(), offset) else {
            // The log has a link that this client does not know yet.
            return self.post(client, State::View, vec![Verb::Call(Request::View)]);
        };
        let len = len.clamp(HEADER_LEN as u64, client.view.readable(offset));
        let fetch = Fetch { slot, offset, place, old };
        self.post(client, State::Object(fetch), vec![Verb::Read { at, len }])
    }

    fn object(&mut self, client: &mut Client, now: u64, fetch: Fetch, bytes: &[u8]) -> Progress<Outcome> {
        let Fetch { slot, offset, place, old } = fetch;
        let object = match Object::parse(bytes, &place) {
            Ok(object) => object,
            Err(Flaw::Short(len)) if len > bytes.len() as u64 && len <= client.view.readable(offset) => {
                let is_whole = self.wanted(client, len) < len && !old && !slot.word.is_pending();
                if is_whole && let Some((header, found)) = self.front_of(now, bytes, &place) {
                    return self.whole(client, fetch, Some(found), header.version, None);
                }
                return self.fetch(client, slot, offset, old, len);
            }
            Err(_) => return self.torn(client, slot, old),
        };
        if object.key != self.key {
            // Another key of this fingerprint, or what a client wrote to room that it had for this key: the version before tells.
            if !old && slot.word.is_pending() {
                return self.torn(client, slot, false);
            }
            if client.hash(object.key).map(fingerprint) != Ok(self.fingerprint) {
                // No key of this entry at all: it is damaged, or what was read is of another time.
                return self.again(client);
            }
            self.not_it.push(slot);
            return self.next_entry(client);
        }
        let header = object.header;
        if old {
            client.stats.fell_back += 1;
            client.suspects.insert(self.key.clone());
        }
        let mut found =
            Found { version: header.version, expires: header.expires, value: object.value.to_vec() };
        if header.chained {
            let Some((_, chunks)) = object.chunks() else { return self.again(client) };
            let is_settled = !old && !slot.word.is_pending() && client.view.mode == Mode::Durable;
            if let Some(max) = self.front.filter(|_| is_settled)
                && let Some(first) = chunks.first()
                && let Some((at, _)) = client.view.locate(slot.meta.head(), first.offset)
            {
                let read = Verb::Read { at, len: u64::from(first.len).min(max as u64) };
                return self.post(client, State::Front { found, fetch }, vec![read]);
            }
            let places = chunks.iter().map(|chunk| {
                let (at, _) = client.view.locate(slot.meta.head(), chunk.offset)?;
                let fits = u64::from(chunk.len) <= client.view.readable(chunk.offset);
                fits.then_some(Verb::Read { at, len: chunk.len.into() })
            });
            let Some(reads) = places.collect::<Option<Vec<Verb>>>() else { return self.again(client) };
            found.value.clear();
            return self.post(client, State::Chunks { found, chunks, fetch }, reads);
        }
        let (link, _) = client.view.geometry.split(offset);
        let head = slot.meta.head();
        let location = Location { version: header.version, head, link, offset, len: header.len() };
        let gone = header.deleted || header.is_expired(now);
        let cacheable = (!old && !gone).then_some(location);
        self.whole(client, fetch, (!gone).then_some(found), header.version, cacheable)
    }

    /// The object is whole. May it be believed to last?
    fn whole(
        &mut self,
        client: &mut Client,
        fetch: Fetch,
        found: Option<Found>,
        version: u64,
        location: Option<Location>,
    ) -> Progress<Outcome> {
        let may_vanish = fetch.slot.word.is_pending() && !fetch.old && client.view.mode == Mode::Durable;
        if may_vanish {
            let found = found.unwrap_or(Found { version, expires: 0, value: Vec::new() });
            let ask = Verb::Call(Request::Settle { key: self.key.clone() });
            return self.post(client, State::Settling(found, location), vec![ask]);
        }
        if let Some(location) = location {
            client.cache.insert(self.hash, location);
        }
        self.over(client, Ok(found))
    }

    fn torn(&mut self, client: &mut Client, slot: Slot, old: bool) -> Progress<Outcome> {
        if old || !slot.word.is_pending() {
            return self.again(client);
        }
        match slot.word.old_offset() {
            Some(offset) => self.fetch(client, slot, offset, true, slot.meta.hint().len()),
            None => {
                // A value that is not there yet, of this key or of another.
                self.not_it.push(slot);
                self.next_entry(client)
            }
        }
    }

    fn chunks(
        &mut self,
        client: &mut Client,
        now: u64,
        mut found: Found,
        chunks: &[Chunk],
        fetch: Fetch,
        read: Vec<Vec<u8>>,
    ) -> Progress<Outcome> {
        if chunks.iter().zip(&read).any(|(chunk, bytes)| crc64(&[bytes]) != chunk.crc) {
            return self.torn(client, fetch.slot, fetch.old);
        }
        found.value = read.concat();
        let (version, gone) = (found.version, found.expires != 0 && found.expires <= now);
        self.whole(client, fetch, (!gone).then_some(found), version, None)
    }

    fn replied(&mut self, client: &mut Client, now: u64, state: State, reply: Reply) -> Progress<Outcome> {
        match (state, reply) {
            (State::Settling(found, location), Reply::Settled { version }) if version == found.version => {
                if let Some(location) = location {
                    client.cache.insert(self.hash, location);
                }
                let gone = found.expires != 0 && found.expires <= now;
                self.over(client, Ok((!gone).then_some(found)))
            }
            (State::Settling(..), Reply::Absent) => self.over(client, Ok(None)),
            // Somebody wrote again. That one's entry says what to believe.
            (State::Settling(..), Reply::Settled { .. } | Reply::Refused(Refusal::Unfinished)) => {
                self.again(client)
            }
            (State::View, Reply::View(view)) => {
                client.adopt(view);
                self.again(client)
            }
            (State::Asked, Reply::Value { version, expires, value }) => {
                self.over(client, Ok(Some(Found { version, expires, value })))
            }
            (State::Asked, Reply::Absent) => self.over(client, Ok(None)),
            // The server looks for it elsewhere, or it has grown meanwhile: begin anew after a while.
            (State::Asked, Reply::Refused(Refusal::Unfinished)) => {
                client.end(self.id.take());
                (self.state, self.tries) = (State::Begin, 0);
                self.queue.clear();
                self.not_it.clear();
                Progress::Again
            }
            (_, Reply::Refused(refusal)) => self.over(client, Err(refusal.into())),
            _ => self.over(client, Err(Error::Protocol("a reply to another request"))),
        }
    }
}

impl Operation for Get {
    type Output = Outcome;

    fn step(&mut self, client: &mut Client, now: u64, completions: Vec<Completion>) -> Progress<Outcome> {
        let state = std::mem::replace(&mut self.state, State::Over);
        if let State::Begin = state {
            return self.begin(client);
        }
        let mut read = Vec::new();
        for completion in completions {
            match completion {
                Completion::Read(bytes) => read.push(bytes),
                Completion::Reply(reply) => return self.replied(client, now, state, reply),
                Completion::Written | Completion::Persistent => {}
            }
        }
        match state {
            State::Cached(location, place) if read.len() == 1 => {
                self.cached(client, now, location, place, &read[0])
            }
            State::Slots { tables, sure } if read.len() == tables.len() * if sure { 3 } else { 1 } => {
                self.slots(client, &tables, sure, &read)
            }
            State::Object(fetch) if read.len() == 1 => self.object(client, now, fetch, &read[0]),
            State::Front { found, fetch } if read.len() == 1 => {
                let gone = found.expires != 0 && found.expires <= now;
                let (version, value) = (found.version, read.pop().expect("one was read"));
                self.whole(client, fetch, (!gone).then_some(Found { value, ..found }), version, None)
            }
            State::Chunks { found, chunks, fetch } if read.len() == chunks.len() => {
                self.chunks(client, now, found, &chunks, fetch, read)
            }
            _ => self.over(client, Err(Error::Protocol("completions of other work requests"))),
        }
    }

    fn cancel(&mut self, client: &mut Client) -> Option<Request> {
        client.end(self.id.take());
        self.state = State::Over;
        None
    }
}
