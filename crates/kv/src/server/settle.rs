//! Pending entries: settled when the object is whole and durable, given up when it will never be.
//!
//! A client's FLUSH makes its object durable, but the server cannot know that it covered all of it: it writes the object back
//! again, and settles the word when a wait for the medium has ended that began after that. Where such a wait is a system call,
//! it need not be the server's own ([`Written`]): the next client's FLUSH is one, and a client that writes one value after the other
//! would otherwise wait twice for each. Until then the word stays pending, and a reader who meets it asks, which is answered
//! after a wait, if none has ended; so nothing stays pending for longer than [`SETTLE_WITHIN`].

use remanence_pmem::{Medium, Ticket};

use super::index::Entry;
use super::mend::{DamageLocation, Fate};
use super::room::Counted;
use super::{Event, Server, Unfinished};
use crate::format::object::{HEADER_LEN, Object, WRITTEN_FROM, crc64};
use crate::format::{Chunk, Flaw, Hint, KEY_MAX, Offset, get_u64};
use crate::proto::{Refusal, Reply, Request};
use crate::view::Mode;

/// A write that is done is settled within so many milliseconds, by a wait of the server's own if there is no other.
const SETTLE_WITHIN: u64 = 4;

/// A write goes on if so many bytes more of it are written: else one that is renewed byte by byte held its key for years.
const PROGRESS_MIN: u64 = 64 << 10;

/// A write that is done, and written back: its word says so when the ticket is covered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Written {
    ticket: Ticket,
    /// Bytes of the object.
    len: u64,
    /// It has no chunks.
    alone: bool,
    since: u64,
}

/// What became of a pending entry.
pub(super) enum Settling {
    /// It is settled now.
    Settled(Entry),
    /// There is nothing left of it.
    Gone,
    /// Its client may still be writing.
    Unfinished,
}

impl<M: Medium + Clone> Server<M> {
    /// Settles an entry if its object is whole.
    pub(super) fn settle(&mut self, entry: Entry) -> Result<Settling, Refusal> {
        if !entry.slot.word.is_pending() {
            return Ok(Settling::Settled(entry));
        }
        let head = entry.slot.meta.head();
        let new = entry.slot.word.new_offset().ok_or(Refusal::Damaged)?;
        let known = self.places.get(&(head, new)).copied();
        match known {
            // Of this run: only what was handed out for this very write counts.
            Some(version) => {
                if let Some(written) = self.written.get(&version).copied() {
                    if !self.medium.is_covered(written.ticket) {
                        self.order()?;
                    }
                    let entry = self.say_settled(entry, written.len, written.alone);
                    self.forget(version);
                    return Ok(Settling::Settled(entry));
                }
                let Some((len, chunks)) = self.what_is_done(version) else { return Ok(Settling::Unfinished) };
                let entry = self.make_settled(entry, len, &chunks)?;
                self.forget(version);
                Ok(Settling::Settled(entry))
            }
            // It is whole, and a wait is under way for it.
            None if self.begun.contains_key(&(head, new)) => Ok(Settling::Unfinished),
            // Of the run before, or of a client that has gone: nobody writes there any more.
            None => match self.whole(head, new) {
                // A client may have written another key's object to room that it had for this one.
                Ok((bytes, _)) if !self.is_named_by(&entry, &bytes, new) => {
                    self.back(entry).map(|entry| entry.map_or(Settling::Gone, Settling::Settled))
                }
                Ok((bytes, chunks)) => {
                    let len = bytes.len() as u64;
                    Ok(Settling::Settled(self.make_settled(entry, len, &chunks)?))
                }
                // It may lie where nobody can look: what was acknowledged is not given up for that.
                Err(_) if self.log.lost > 0 => Err(Refusal::Damaged),
                Err(_) => self.back(entry).map(|entry| entry.map_or(Settling::Gone, Settling::Settled)),
            },
        }
    }

    /// Whether an object's key has the fingerprint of the entry.
    pub(super) fn is_named_by(&self, entry: &Entry, bytes: &[u8], offset: Offset) -> bool {
        let key = self.parsed(bytes, entry.slot.meta.head(), offset).key;
        self.fingerprint(key).is_ok_and(|fingerprint| fingerprint == entry.slot.meta.fingerprint())
    }

    /// The length of the object, and its chunks, if the write is done: nobody changes them from here on.
    fn what_is_done(&mut self, version: u64) -> Option<(u64, Vec<Chunk>)> {
        let seen = self.what_is_whole(version, &self.unfinished[&version])?;
        // What is settled must not change any more: the client loses its right first, and what was seen before that is not
        // believed.
        match self.revoke(version) {
            true => self.what_is_whole(version, &self.unfinished[&version]),
            false => Some(seen),
        }
    }

    /// The bytes of the object and its chunks, if they are what was handed out for this write.
    fn what_is_whole(&self, version: u64, unfinished: &Unfinished) -> Option<(u64, Vec<Chunk>)> {
        let (bytes, chunks) = self.whole(unfinished.head, unfinished.offset).ok()?;
        let object: Object<'_> = self.parsed(&bytes, unfinished.head, unfinished.offset);
        let extents: Vec<(Offset, u32)> = chunks.iter().map(|chunk| (chunk.offset, chunk.len)).collect();
        let fair = object.header.version == version
            && object.key == unfinished.key
            && object.header.len() <= unfinished.room
            && extents == unfinished.extents;
        fair.then_some((bytes.len() as u64, chunks))
    }

    /// The object is durable before the word says that it is.
    fn make_settled(&mut self, entry: Entry, len: u64, chunks: &[Chunk]) -> Result<Entry, Refusal> {
        self.write_back(&entry, len, chunks);
        self.order()?;
        Ok(self.say_settled(entry, len, chunks.is_empty()))
    }

    fn write_back(&self, entry: &Entry, len: u64, chunks: &[Chunk]) {
        let head = entry.slot.meta.head();
        let new = entry.slot.word.new_offset().expect("a pending entry has a new version");
        let (at, _) = self.place(head, new).expect("it was read from there");
        self.medium.pwb(at..at + len);
        for chunk in chunks {
            let room = self.log.locate(head, chunk.offset).expect("it was read from there");
            self.medium.pwb(room.at..room.at + u64::from(chunk.len));
        }
        self.medium.pwb(entry.at()..entry.at() + crate::format::slot::SLOT_LEN);
    }

    fn say_settled(&mut self, mut entry: Entry, len: u64, alone: bool) -> Entry {
        let meta = entry.slot.meta;
        // A client may have written less than it asked for.
        if let Some(before) = self.counts_as(meta.head(), entry.slot.word.new_offset())
            && before.object.1 != len
        {
            let after = Counted { object: (before.object.0, len), ..before.clone() };
            self.recount(meta.fingerprint(), Some(&before), Some(&after));
        }
        // This store may be lost: recovery looks at pending entries.
        let word = entry.slot.word.settled();
        self.index.set_word(&mut entry, word);
        if entry.slot.meta.hint() == Hint::CHAINED && alone {
            // Not before: until the pending word was durable, recovery might have found the version before.
            let meta = entry.slot.meta.with_hint(Hint::of(len));
            self.index.set_meta(&mut entry, meta);
        }
        self.stats.settled += 1;
        entry
    }

    /// Back to the version before, which is whole and durable by rule 1. The repair of 4.2.
    pub(super) fn back(&mut self, mut entry: Entry) -> Result<Option<Entry>, Refusal> {
        let head = entry.slot.meta.head();
        let word = entry.slot.word.flipped();
        let gone = entry.slot.word.new_offset();
        if gone.is_some_and(|gone| self.places.contains_key(&(head, gone))) {
            let (before, after) = (self.counts_as(head, gone), self.counts_as(head, word.new_offset()));
            self.recount(entry.slot.meta.fingerprint(), before.as_ref(), after.as_ref());
        }
        if let Some(offset) = word.new_offset() {
            self.refresh_hint(&mut entry, offset)?;
        }
        self.index.set_word(&mut entry, word);
        self.dirty = true;
        self.mark(head, word.new_offset(), false);
        Ok((!word.is_free()).then_some(entry))
    }

    /// Makes the hint that of the object at this offset, durably if recovery depends on it.
    pub(super) fn refresh_hint(&mut self, entry: &mut Entry, offset: Offset) -> Result<(), Refusal> {
        let Ok(bytes) = self.object(entry.slot.meta.head(), offset) else { return Ok(()) };
        let header = self.parsed(&bytes, entry.slot.meta.head(), offset).header;
        let hint = if header.chained { Hint::CHAINED } else { Hint::of(bytes.len() as u64) };
        if entry.slot.meta.hint() != hint {
            let meta = entry.slot.meta.with_hint(hint);
            self.index.set_meta(entry, meta);
            self.order()?;
        }
        Ok(())
    }

    fn forget(&mut self, version: u64) {
        self.written.remove(&version);
        let Some(unfinished) = self.unfinished.remove(&version) else { return };
        self.leases.remove(&(unfinished.until, version));
        self.places.remove(&(unfinished.head, unfinished.offset));
        if let Some(client) = self.clients.get_mut(&unfinished.client) {
            client.unfinished.remove(&version);
        }
    }

    /// Settles writes that are said to be done, those that are: one wait for the medium for all of them.
    pub(super) fn finish(&mut self, versions: &[u64]) -> Result<(), Refusal> {
        let mut done = Vec::with_capacity(versions.len());
        for version in versions {
            let Some(entry) = self.pending_entry(*version) else { continue };
            if let Some(written) = self.written.get(version) {
                done.push((*version, written.len, written.alone));
            } else if let Some((len, chunks)) = self.what_is_done(*version) {
                self.write_back(&entry, len, &chunks);
                done.push((*version, len, chunks.is_empty()));
            }
        }
        if done.is_empty() {
            return Ok(());
        }
        // As for one: the objects before the words that say that they are durable.
        self.order()?;
        for (version, len, alone) in done {
            self.end(version, len, alone);
        }
        Ok(())
    }

    /// The same, and somebody else's wait is as good: those are settled [later](Self::settle_written) whose wait has not ended.
    pub(super) fn finish_in_time(&mut self, now: u64, versions: &[u64]) -> Result<(), Refusal> {
        let waits = self.options.defer && self.options.mode == Mode::Durable;
        if !waits || self.medium.ticket().is_none() {
            return self.finish(versions);
        }
        let mut new = Vec::with_capacity(versions.len());
        for version in versions {
            let Some(entry) = self.pending_entry(*version).filter(|_| !self.written.contains_key(version))
            else {
                continue;
            };
            if let Some((len, chunks)) = self.what_is_done(*version) {
                self.write_back(&entry, len, &chunks);
                new.push((*version, len, chunks.is_empty()));
            }
        }
        // Taken behind the last write-back.
        let Some(ticket) = self.medium.ticket() else { return Ok(()) };
        for (version, len, alone) in new {
            self.written.insert(version, Written { ticket, len, alone, since: now });
        }
        self.settle_written(now)
    }

    /// Settles what somebody's wait has made durable, and all of it if some has waited long.
    fn settle_written(&mut self, now: u64) -> Result<(), Refusal> {
        let late = |written: &Written| {
            now.saturating_sub(written.since) >= SETTLE_WITHIN && !self.medium.is_covered(written.ticket)
        };
        if self.written.values().any(late) {
            self.order()?;
        }
        let covered: Vec<(u64, Written)> = self
            .written
            .iter()
            .filter(|(_, written)| self.medium.is_covered(written.ticket))
            .map(|(version, written)| (*version, *written))
            .collect();
        for (version, Written { len, alone, .. }) in covered {
            self.end(version, len, alone);
        }
        Ok(())
    }

    /// When writes that are done are settled at the latest.
    pub(super) fn settles_at(&self) -> Option<u64> {
        self.written.values().map(|written| written.since.saturating_add(SETTLE_WITHIN)).min()
    }

    /// Whether writes are done and not settled, so that [`step`](Self::step) is wanted soon.
    #[must_use]
    pub fn is_settling(&self) -> bool {
        !self.written.is_empty()
    }

    /// The entry of an unfinished write, if it is still there.
    fn pending_entry(&self, version: u64) -> Option<Entry> {
        let unfinished = self.unfinished.get(&version)?;
        let (fingerprint, head, offset) = (unfinished.fingerprint, unfinished.head, unfinished.offset);
        let entry = self.index.at_place(fingerprint, head, offset)?;
        (entry.slot.word.is_pending() && entry.slot.word.new_offset() == Some(offset)).then_some(entry)
    }

    /// What is durable is settled, wherever its entry is by now.
    fn end(&mut self, version: u64, len: u64, alone: bool) {
        if let Some(entry) = self.pending_entry(version) {
            self.say_settled(entry, len, alone);
        }
        self.forget(version);
    }

    /// Settles what requests that come together find unfinished of their keys, so that none of them waits for the medium alone.
    pub(super) fn finish_before(&mut self, requests: &[Request]) -> Result<(), Refusal> {
        if self.unfinished.is_empty() {
            return Ok(());
        }
        let version = |request: &Request| {
            let (Request::Put { key, .. } | Request::PutInline { key, .. } | Request::Delete { key, .. }) =
                request
            else {
                return None;
            };
            let entry = self.lookup(key, self.fingerprint(key).ok()?)?;
            let new = entry.slot.word.new_offset().filter(|_| entry.slot.word.is_pending())?;
            self.places.get(&(entry.slot.meta.head(), new)).copied()
        };
        let mut versions: Vec<u64> = requests.iter().filter_map(version).collect();
        versions.sort_unstable();
        versions.dedup();
        self.finish(&versions)
    }

    /// A write whose client can write no more: settled if it is whole after all, given up otherwise.
    pub(super) fn give_up(&mut self, version: u64) -> Result<(), Refusal> {
        let Some(unfinished) = self.unfinished.get(&version).cloned() else { return Ok(()) };
        self.revoke(version);
        let entry = self.index.at_place(unfinished.fingerprint, unfinished.head, unfinished.offset);
        let Some(entry) = entry else {
            // Somebody who may write to the table took it away.
            self.forget(version);
            return Ok(());
        };
        if let Settling::Unfinished = self.settle(entry)? {
            self.back(entry)?;
            self.forget(version);
            self.stats.given_up += 1;
        }
        Ok(())
    }

    /// The client of an unfinished write says how far it is: the lease begins anew if that is [enough](PROGRESS_MIN) more than
    /// it said before. As it can say no more than there is to write, it comes to an end.
    pub(super) fn renew(
        &mut self,
        now: u64,
        client: super::ClientId,
        version: u64,
        written: u64,
    ) -> Result<(), Refusal> {
        let own = self.unfinished.get_mut(&version).filter(|unfinished| unfinished.client == client);
        let unfinished = own.ok_or(Refusal::NotYours)?;
        let extents: u64 = unfinished.extents.iter().map(|(_, len)| u64::from(*len)).sum();
        if written > unfinished.room + extents {
            return Err(Refusal::Malformed);
        }
        if written >= unfinished.progress.saturating_add(PROGRESS_MIN) {
            unfinished.progress = written;
            self.leases.remove(&(unfinished.until, version));
            unfinished.until = now.saturating_add(self.options.lease);
            self.leases.insert((unfinished.until, version));
            self.clients.get_mut(&client).expect("it is connected").renewed = now;
        }
        Ok(())
    }

    /// Looks for clients that take too long.
    pub(super) fn expire(&mut self, now: u64) -> Result<(), Refusal> {
        let late: Vec<u64> = self.leases.range(..=(now, u64::MAX)).map(|(_, version)| *version).collect();
        self.finish(&late)?;
        for version in late {
            if let Some(unfinished) = self.unfinished.get(&version) {
                self.fence(unfinished.client);
            }
        }
        if now.saturating_sub(self.view_since) >= self.options.lease {
            // What holds the acknowledgement up may be a long write that makes progress.
            let is_late =
                |c: &super::Client| c.view < self.view && now.saturating_sub(c.renewed) >= self.options.lease;
            let behind: Vec<_> = self.clients.iter().filter(|(_, c)| is_late(c)).map(|(id, _)| *id).collect();
            behind.into_iter().for_each(|client| self.fence(client));
        }
        Ok(())
    }

    fn fence(&mut self, client: super::ClientId) {
        let Some(state) = self.clients.get_mut(&client) else { return };
        if !std::mem::replace(&mut state.fencing, true) {
            self.stats.fenced += 1;
            self.events.push_back(Event::Fence { client });
        }
    }

    /// The request of a reader: the newest whole version is to be durable.
    pub(super) fn settle_key(&mut self, now: u64, key: &[u8]) -> Result<Reply, Refusal> {
        let fingerprint = self.fingerprint(key)?;
        let Some(entry) = self.lookup(key, fingerprint) else { return Ok(Reply::Absent) };
        let entry = match self.settle(entry)? {
            Settling::Settled(entry) => entry,
            Settling::Gone => return Ok(Reply::Absent),
            Settling::Unfinished => return Err(Refusal::Unfinished),
        };
        let entry = self.verified(entry)?;
        let current = self.current(now, Some(entry))?;
        Ok(match current.version() {
            0 => Reply::Absent,
            version => Reply::Settled { version },
        })
    }

    /// A settled entry whose object is whole. One that is not was whole and durable when it was settled, and has rotted: the
    /// version before is not what the key has, and a tombstone's key has not come back. What may stand in for it is the same
    /// version, which cleaning has copied, or which another member has. Only in mode `erda`, where the loss of power may take
    /// what was settled, the version before counts, as in the paper.
    ///
    /// # Errors
    /// [`Refusal::Damaged`], or [`Refusal::Unfinished`] while other members are being asked; or the medium failed.
    pub(super) fn verified(&mut self, entry: Entry) -> Result<Entry, Refusal> {
        let head = entry.slot.meta.head();
        let word = entry.slot.word;
        let new = word.new_offset().ok_or(Refusal::Damaged)?;
        if self.is_whole(&entry, new) {
            return Ok(entry);
        }
        let at = DamageLocation::Value { fingerprint: entry.slot.meta.fingerprint() };
        let old = word.old_offset().filter(|old| self.is_whole(&entry, *old));
        let copy = old.is_some_and(|old| self.version_at(head, old) == self.version_at(head, new));
        let (outcome, fate) = if old.is_some() && (copy || self.options.mode == Mode::Erda) {
            let entry = self.back(entry)?.ok_or(Refusal::Damaged);
            (entry, if copy { Fate::Mended } else { Fate::Older })
        } else if self.restore(&entry, new)? {
            (Ok(entry), Fate::Mended)
        } else {
            (Err(Refusal::Damaged), Fate::Lost)
        };
        self.stats.damaged += 1;
        self.stats.repaired += u64::from(outcome.is_ok());
        let key = self.key_of(outcome.as_ref().unwrap_or(&entry));
        self.found(at, key, fate);
        outcome
    }

    fn is_whole(&self, entry: &Entry, offset: Offset) -> bool {
        let head = entry.slot.meta.head();
        self.whole(head, offset).is_ok_and(|(bytes, _)| self.is_named_by(entry, &bytes, offset))
    }

    /// The version that the bytes of an object say, damaged or not.
    fn version_at(&self, head: u8, offset: Offset) -> Option<u64> {
        let room = self.log.locate(head, offset)?;
        let mut bytes = [0; HEADER_LEN];
        self.medium.read(room.at, &mut bytes);
        Some(get_u64(&bytes, 16))
    }

    /// Puts a damaged object right from a member that has it whole, durably. Whether there is one.
    ///
    /// # Errors
    /// [`Refusal::Unfinished`]: members are being asked, so look again later. Or the medium failed.
    fn restore(&mut self, entry: &Entry, offset: Offset) -> Result<bool, Refusal> {
        let Some(mut copies) = self.copies.take() else { return Ok(false) };
        let restored = self.restore_from(entry, offset, &mut copies);
        self.copies = Some(copies);
        if !restored? {
            return Ok(false);
        }
        self.sync_now()?;
        Ok(self.is_whole(entry, offset))
    }

    fn restore_from(
        &self,
        entry: &Entry,
        offset: Offset,
        copies: &mut super::Copies,
    ) -> Result<bool, Refusal> {
        let head = entry.slot.meta.head();
        let Some((at, place)) = self.place(head, offset) else { return Ok(false) };
        let room = self.log.left_in_segment(offset);
        let is_it =
            |bytes: &[u8]| Object::parse(bytes, &place).is_ok() && self.is_named_by(entry, bytes, offset);
        // Where one is longer than that, it says how long.
        let mut len = (HEADER_LEN as u64 + KEY_MAX as u64).min(room);
        let mut looked = 0;
        let object = loop {
            let read = copies(at, len as u32).ok_or(Refusal::Unfinished)?;
            looked = looked.max(len);
            if let Some(mut bytes) = read.iter().find(|bytes| is_it(bytes)).cloned() {
                let len = Object::split(&bytes).map_or(0, |object| object.header.len());
                bytes.truncate(len as usize);
                break bytes;
            }
            let longer = |bytes: &Vec<u8>| match Object::parse(bytes, &place) {
                Err(Flaw::Short(len)) if len > looked && len <= room => Some(len),
                _ => None,
            };
            match read.iter().filter_map(longer).min() {
                Some(longer) => len = longer,
                None => return Ok(false),
            }
        };
        let Ok(Object { header, .. }) = Object::split(&object) else { return Ok(false) };
        let listed = Object::split(&object).ok().and_then(|object| object.chunks());
        let chunks =
            if header.chained { listed.map_or(Vec::new(), |(_, chunks)| chunks) } else { Vec::new() };
        let mut unfinished = false;
        for chunk in chunks {
            if self.chunk(head, &chunk).is_ok() {
                continue;
            }
            let Some(room) = self.log.locate(head, chunk.offset) else { return Ok(false) };
            if u64::from(chunk.len) > self.log.left_in_segment(chunk.offset) {
                return Ok(false);
            }
            // All that are damaged are asked for together; what has come is put into its place already.
            let Some(read) = copies(room.at, chunk.len) else {
                unfinished = true;
                continue;
            };
            let Some(bytes) = read.into_iter().find(|bytes| crc64(&[bytes]) == chunk.crc) else {
                return Ok(false);
            };
            self.medium.write_nt(room.at, &bytes);
        }
        if unfinished {
            return Err(Refusal::Unfinished);
        }
        // The mark is the server's, and says nothing of a version that has no successor.
        self.medium.write_nt(at + WRITTEN_FROM as u64, &object[WRITTEN_FROM..]);
        Ok(true)
    }

    /// The value, read by the server. During a write it is the version before, as a reader would find.
    pub(super) fn get(&mut self, now: u64, key: &[u8]) -> Result<Reply, Refusal> {
        let fingerprint = self.fingerprint(key)?;
        let Some(entry) = self.lookup(key, fingerprint) else { return Ok(Reply::Absent) };
        let head = entry.slot.meta.head();
        let offset = match self.settle(entry)? {
            Settling::Settled(entry) => self.verified(entry)?.slot.word.new_offset(),
            Settling::Gone => None,
            Settling::Unfinished => entry.slot.word.old_offset(),
        };
        let Some(offset) = offset else { return Ok(Reply::Absent) };
        let (bytes, chunks) = self.whole(head, offset).map_err(|_| Refusal::Damaged)?;
        let object = self.parsed(&bytes, head, offset);
        if object.key != key {
            return Err(Refusal::Damaged);
        }
        if object.header.deleted || object.header.is_expired(now) {
            return Ok(Reply::Absent);
        }
        let mut value = Vec::new();
        if chunks.is_empty() {
            value.extend_from_slice(&bytes[HEADER_LEN + object.key.len()..]);
        }
        for chunk in &chunks {
            value.extend(self.chunk(head, chunk).map_err(|_| Refusal::Damaged)?);
        }
        Ok(Reply::Value { version: object.header.version, expires: object.header.expires, value })
    }
}
