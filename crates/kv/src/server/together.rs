//! Values that the server writes itself, and deletions, several at once: for clients in its own process, and small ones for all.
//!
//! Each object is written and named, and the word that names it stays pending, as if a client were about to write there. One
//! wait for the medium makes all of them durable, objects and words, in no order among each other: a crash before its end
//! leaves some pending words, and recovery goes by the checksums of what they name, as after a client that died. Then the words
//! are settled. A client in this process may wait itself, with no lock of the server's held ([`Server::begin_all`],
//! [`Server::end_all`]): clients wait beside each other then, and one sync serves several. Keys that are new take one more wait,
//! for all of them: their entries are prepared before anything is written (`index.rs`), as those of a batch of reservations are;
//! a client that waits itself does so for these, too ([`Server::prepare_ahead`]). Readers believe nothing meanwhile: an old
//! version is marked before its successor is named, and of a pending word they ask, which is answered after the end of this.

use std::collections::{BTreeMap, BTreeSet};

use remanence_pmem::{Medium, Ticket};

use super::grow::Growth;
use super::index::{Entry, load};
use super::log::{self, Purpose, Start};
use super::room::Counted;
use super::{ClientId, Current, Server};
use crate::format::object::{Content, object_len};
use crate::format::{Hint, Meta, Offset, Word};
use crate::proto::{Changed, Expect, Inline, Refusal, Reply, Request, Reserved};

/// A value, or a tombstone, that is written, and not settled yet.
#[derive(Debug)]
pub struct Named {
    entry: Entry,
    /// What the entry is to say of it.
    meta: Meta,
}

impl Named {
    /// Whose log the new version lies in, and where.
    fn place(&self) -> (u8, Offset) {
        (self.meta.head(), self.entry.slot.word.new_offset().expect("it names a new version"))
    }
}

/// Entries that are kept for a client that waits for the medium itself.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    /// The entries, by the fingerprint of the key that each is kept for.
    entries: BTreeMap<u64, Entry>,
    /// What has to be durable before the client may use them, where that can be told.
    written: Option<Ticket>,
}

/// The key, the value's length and the condition, of what is no deletion.
fn size_of<'v>(put: &Inline<'v>) -> Option<(&'v [u8], u64, Expect)> {
    Some((put.key, put.value?.len() as u64, put.expect))
}

impl<M: Medium + Clone> Server<M> {
    /// Writes values for a client, and appends to `done` what became of each, in their order: where it lies, or why not. They
    /// share one wait for the medium, after which what was written is as durable as the mode promises. A value that does not fit
    /// one object is [`Refusal::Malformed`]: it is for [`Request::Put`].
    pub fn put_all(
        &mut self,
        now: u64,
        client: ClientId,
        puts: &[Inline<'_>],
        done: &mut Vec<Result<Changed, Refusal>>,
    ) {
        if let Err(refusal) = self.may_write(client) {
            done.extend(puts.iter().map(|_| Err(refusal.clone())));
            return;
        }
        self.write_all(now, &mut puts.iter(), done);
    }

    /// Keeps an entry for each of these keys that has none, for a client that waits for the medium itself before it
    /// [writes](Self::begin_all). Returns whether there is anything to wait for. Who else writes one of these keys meanwhile has
    /// an entry of his own.
    ///
    /// # Errors
    /// The medium failed.
    pub fn prepare_ahead(
        &mut self,
        now: u64,
        client: ClientId,
        puts: &[Inline<'_>],
    ) -> Result<bool, Refusal> {
        // Entries are about to move, and what is kept in the table that they leave has to be gone by then.
        if self.may_write(client).is_err() || matches!(self.growth, Growth::Announced(_)) {
            return Ok(false);
        }
        let new = self.all_new(puts.iter().filter_map(size_of));
        if new.is_empty() {
            return Ok(false);
        }
        self.push_along(now, new.len())?;
        let mut some = false;
        for (fingerprint, object) in new {
            if self.growth.must_catch_up(&self.index) || matches!(self.growth, Growth::Announced(_)) {
                break;
            }
            let Some(entry) = self.keep(fingerprint, object)? else { continue };
            if let Some(before) = self.ahead.entry(client).or_default().entries.insert(fingerprint, entry) {
                self.free_kept(before);
            }
            some = true;
        }
        if let Some(ahead) = self.ahead.get_mut(&client) {
            ahead.written = self.medium.ticket();
        }
        Ok(some)
    }

    /// A client that is gone comes for none of the entries that were prepared for it.
    pub(super) fn release_ahead(&mut self, client: ClientId) {
        let ahead = self.ahead.remove(&client).unwrap_or_default();
        ahead.entries.into_values().for_each(|entry| self.free_kept(entry));
    }

    /// The first half of the same, for who waits for the medium himself: all of it is written, and nothing is settled. Until the
    /// [other half](Self::end_all) those keys are as unfinished as ones that clients write. What was
    /// [prepared](Self::prepare_ahead) for this client is used if a wait for the medium has ended that began after that, and is
    /// given back in any case.
    pub fn begin_all(
        &mut self,
        now: u64,
        client: ClientId,
        puts: &[Inline<'_>],
        done: &mut Vec<Result<Changed, Refusal>>,
    ) -> Vec<Named> {
        if let Err(refusal) = self.may_write(client) {
            done.extend(puts.iter().map(|_| Err(refusal.clone())));
            self.release_ahead(client);
            return Vec::new();
        }
        let was_dirty = self.dirty;
        let mut kept = Vec::new();
        // A wait that was left out, or that began too early, does not count.
        let written = self.ahead.get(&client).and_then(|ahead| ahead.written);
        if written.is_some_and(|written| !self.medium.is_covered(written)) {
            self.release_ahead(client);
        }
        for (fingerprint, entry) in self.ahead.remove(&client).unwrap_or_default().entries {
            if let Some(before) = self.prepared.insert(fingerprint, entry) {
                self.free_kept(before);
            }
            kept.push(fingerprint);
        }
        let named = self.name_all(now, &mut puts.iter(), done);
        self.release(&kept);
        for one in &named {
            self.begun.insert(one.place(), client);
        }
        // Nobody else waits for what that client is about to wait for.
        self.dirty = if named.is_empty() { self.dirty } else { was_dirty };
        named
    }

    /// What was [begun](Self::begin_all) is durable: a wait for the medium has ended that began after that.
    pub fn end_all(&mut self, named: &[Named]) {
        for one in named {
            self.begun.remove(&one.place());
            self.settle_named(one);
        }
        self.stats.written += named.len() as u64;
    }

    /// The same for several clients, as replies to their requests. Values that take more than one object are written as well,
    /// one by one. Of a key that comes several times without a condition the last value is written: the others were there for no
    /// time at all.
    pub fn put_together(&mut self, now: u64, puts: &[(ClientId, Inline<'_>)]) -> Vec<Reply> {
        let may: Vec<Result<(), Refusal>> = puts.iter().map(|(client, _)| self.may_write(*client)).collect();
        let mut last: BTreeMap<&[u8], Option<usize>> = BTreeMap::new();
        for (n, (_, put)) in puts.iter().enumerate().filter(|(n, _)| may[*n].is_ok()) {
            let plain = put.expect == Expect::Any && put.value.is_some();
            last.entry(put.key)
                .and_modify(|last| *last = last.filter(|_| plain).map(|_| n))
                .or_insert(plain.then_some(n));
        }
        let mut overtaken: BTreeMap<usize, (usize, u64)> = BTreeMap::new();
        for (n, (_, put)) in puts.iter().enumerate().filter(|(n, _)| may[*n].is_ok()) {
            if let Some(by) = last[put.key].filter(|by| *by > n) {
                overtaken.insert(n, (by, self.next_version()));
            }
        }
        let written: Vec<usize> =
            (0..puts.len()).filter(|n| may[*n].is_ok() && !overtaken.contains_key(n)).collect();
        let mut done = Vec::with_capacity(written.len());
        self.write_all(now, &mut written.iter().map(|n| &puts[*n].1), &mut done);
        let mut replies: Vec<Reply> =
            may.into_iter().map(|may| may.map_or_else(Reply::Refused, |()| Reply::Ok)).collect();
        for (n, outcome) in written.into_iter().zip(done) {
            replies[n] = match outcome {
                Ok(changed) => changed.into(),
                Err(Refusal::Malformed) => self
                    .write_one(now, &puts[n].1)
                    .unwrap_or_else(|refusal| Reply::Refused(self.wait_for_room(now, refusal))),
                Err(refusal) => Reply::Refused(refusal),
            };
        }
        for (n, (by, version)) in overtaken {
            replies[n] = match &replies[by] {
                Reply::Refused(refusal) => Reply::Refused(refusal.clone()),
                _ => Reply::Done { version },
            };
        }
        if self.sync().is_err() {
            return puts.iter().map(|_| Reply::Refused(Refusal::Medium)).collect();
        }
        replies
    }

    /// What comes of the values in a client's batch, one after the other; nothing where they are written one by one.
    pub(super) fn put_batch(&mut self, now: u64, client: ClientId, requests: &[Request]) -> Vec<Reply> {
        let puts: Vec<_> = requests.iter().filter_map(|request| Some((client, request.inline()?))).collect();
        if self.options.inline_max == 0 || puts.is_empty() {
            Vec::new()
        } else {
            self.put_together(now, &puts)
        }
    }

    fn may_write(&self, client: ClientId) -> Result<(), Refusal> {
        match self.clients.get(&client) {
            Some(state) if state.fencing => Err(Refusal::Fenced),
            Some(state) if state.reads_only => Err(Refusal::ReadOnly),
            Some(_) => Ok(()),
            None => Err(Refusal::Fenced),
        }
    }

    fn write_all<'p, 'v: 'p>(
        &mut self,
        now: u64,
        puts: &mut (impl Iterator<Item = &'p Inline<'v>> + Clone),
        done: &mut Vec<Result<Changed, Refusal>>,
    ) {
        let first = done.len();
        let named = self.name_all(now, puts, done);
        if self.dirty && self.order().is_err() {
            done[first..].fill(Err(Refusal::Medium));
            return;
        }
        self.stats.written += named.len() as u64;
        named.iter().for_each(|one| self.settle_named(one));
    }

    /// Writes and names all of them, and waits for nothing but the entries of keys that are new.
    fn name_all<'p, 'v: 'p>(
        &mut self,
        now: u64,
        puts: &mut (impl Iterator<Item = &'p Inline<'v>> + Clone),
        done: &mut Vec<Result<Changed, Refusal>>,
    ) -> Vec<Named> {
        let mut named = Vec::new();
        let Ok(kept) = self.prepare_new(now, puts.clone().filter_map(size_of)) else {
            done.extend(puts.map(|_| Err(Refusal::Medium)));
            return named;
        };
        for put in puts {
            done.push(self.name(now, put).map(|(one, changed)| {
                named.extend(one);
                changed
            }));
            match done.last_mut() {
                Some(Err(Refusal::Unfinished)) => self.stats.unfinished += 1,
                Some(Err(refusal @ Refusal::Cleaning)) => {
                    *refusal = self.wait_for_room(now, Refusal::Cleaning);
                }
                _ => {}
            }
        }
        self.release(&kept);
        named
    }

    /// Keeps an entry for each of these keys that has none, if they are several, and waits once for all of them. Returns the
    /// fingerprints: what nobody has taken in the end is to be [released](Self::release). What cannot be had is left to who asks
    /// for it, one by one.
    pub(super) fn prepare_new<'k>(
        &mut self,
        now: u64,
        keys: impl Iterator<Item = (&'k [u8], u64, Expect)>,
    ) -> Result<Vec<u64>, Refusal> {
        let mut kept = Vec::new();
        // Where a wait is no system call, looking for all keys twice costs more than it spares.
        if !self.options.defer {
            return Ok(kept);
        }
        let new = self.all_new(keys);
        // One is created as well by itself.
        if new.len() < 2 {
            return Ok(kept);
        }
        self.push_along(now, new.len())?;
        for (fingerprint, object) in new {
            if self.growth.must_catch_up(&self.index) {
                break;
            }
            let Some(entry) = self.keep(fingerprint, object)? else { continue };
            self.prepared.insert(fingerprint, entry);
            kept.push(fingerprint);
        }
        if !kept.is_empty() {
            self.index.medium.pfence().map_err(|e| log::io(&e))?;
        }
        Ok(kept)
    }

    /// The same, for requests that come together.
    pub(super) fn prepare_before(&mut self, now: u64, requests: &[Request]) -> Result<Vec<u64>, Refusal> {
        self.prepare_new(
            now,
            requests.iter().filter_map(|request| match request {
                Request::Put { key, len, expect, .. } => Some((&key[..], *len, *expect)),
                _ => None,
            }),
        )
    }

    /// Keeps a place for an entry, if one can be had.
    fn keep(&mut self, fingerprint: u64, object: u64) -> Result<Option<Entry>, Refusal> {
        let table = self.growth.inserts_to(&self.index.tables);
        let room = self.index.make_room(table, fingerprint).map_err(|e| log::io(&e))?;
        let Ok(free) = room else { return Ok(None) };
        let head = self.log.geometry.head_of(fingerprint);
        Ok(Some(self.index.prepare(free, Meta::new(fingerprint, head, Hint::of(object)))))
    }

    /// Those that have no entry, each once: fingerprints, and the objects' lengths.
    fn all_new<'k>(&self, keys: impl Iterator<Item = (&'k [u8], u64, Expect)>) -> Vec<(u64, u64)> {
        let mut seen = BTreeSet::new();
        let new = keys.filter_map(|(key, len, expect)| self.is_new(key, len, expect));
        new.filter(|(fingerprint, _)| seen.insert(*fingerprint)).collect()
    }

    /// The fingerprint and the object's length, if the key has no entry, and could have one.
    fn is_new(&self, key: &[u8], len: u64, expect: Expect) -> Option<(u64, u64)> {
        let fingerprint = self.fingerprint(key).ok()?;
        Current::Absent(None).check(expect).ok()?;
        let (object, chunks) = self.layout(key, len).ok()?;
        let new = !self.prepared.contains_key(&fingerprint) && self.index.candidates(fingerprint).is_empty();
        (new && chunks.is_empty()).then_some((fingerprint, object))
    }

    /// Gives back what is left of entries that were prepared for these.
    pub(super) fn release(&mut self, kept: &[u64]) {
        for fingerprint in kept {
            if let Some(entry) = self.prepared.remove(fingerprint) {
                self.free_kept(entry);
            }
        }
    }

    fn free_kept(&mut self, mut entry: Entry) {
        self.index.set_word(&mut entry, Word::FREE);
    }

    /// Writes an object and names it.
    fn name(&mut self, now: u64, put: &Inline<'_>) -> Result<(Option<Named>, Changed), Refusal> {
        let fingerprint = self.fingerprint(put.key)?;
        let current = self.settled(now, put.key, fingerprint)?;
        current.check(put.expect)?;
        let Some(value) = put.value else { return self.name_tombstone(&current, put.key, fingerprint) };
        let (object, chunks) = self.layout(put.key, value.len() as u64)?;
        if !chunks.is_empty() {
            return Err(Refusal::Malformed);
        }
        let head = self.log.geometry.head_of(fingerprint);
        self.admit(now, &current, put.expect, object, &[])?;
        self.room_for(head, &[], object)?;
        let free = self.entry_for(now, &current, fingerprint)?;
        let start = |object| Start { fingerprint, object };
        let room = self.log.hand_out(head, object, start, Purpose::Store)?;
        let version = self.next_version();
        self.put_object(head, room.offset, version, put.expires, put.key, Content::Value(value));
        let meta = Meta::new(fingerprint, head, Hint::of(object));
        let counted = Counted {
            first: put.key[0],
            head,
            expires: put.expires,
            object: (room.offset, object),
            chunks: Vec::new(),
        };
        let entry = self.point(&current, free, meta, Some(&counted), |word| word.update(room.offset))?;
        let (offset, epoch, at) = (room.offset, room.epoch, room.at);
        let place = Reserved { version, head, offset, epoch, at, extents: Vec::new() };
        Ok((Some(Named { entry, meta }), Changed::Value(place)))
    }

    /// The same for a deletion. Where there is no room for a tombstone the entry goes, which takes a wait of its own.
    fn name_tombstone(
        &mut self,
        current: &Current,
        key: &[u8],
        fingerprint: u64,
    ) -> Result<(Option<Named>, Changed), Refusal> {
        if matches!(current, Current::Absent(_)) {
            return Ok((None, Changed::Gone(0)));
        }
        let (head, object) = (self.log.geometry.head_of(fingerprint), object_len(key.len(), 0));
        let version = self.next_version();
        let start = |object| Start { fingerprint, object };
        let room = match self.log.hand_out(head, object, start, Purpose::Delete) {
            Err(Refusal::Full) => {
                return self.forget_key(current).map(|()| (None, Changed::Gone(version)));
            }
            room => room?,
        };
        self.put_object(head, room.offset, version, 0, key, Content::Deleted);
        let meta = Meta::new(fingerprint, head, Hint::of(object));
        let entry = self.point(current, None, meta, None, |word| word.update(room.offset))?;
        Ok((Some(Named { entry, meta }), Changed::Gone(version)))
    }

    /// What was named is durable: the word says so.
    fn settle_named(&mut self, named: &Named) {
        let Named { mut entry, meta } = *named;
        let word = entry.slot.word;
        // A later one of the same batch may have moved the entry, or have been of the same key. Both words tell: another head's
        // entry, with the same offset in its log, may have taken the place.
        let [meta_there, word_there] = [0, 8].map(|word| load(&self.index.medium, entry.at() + word));
        if (meta_there, Word(word_there)) != (entry.slot.meta.seal(), word) {
            let place = word.new_offset().expect("it names a new version");
            let found = self.index.at_place(meta.fingerprint(), meta.head(), place);
            let Some(moved) = found.filter(|moved| moved.slot.word == word) else { return };
            entry = moved;
        }
        // This store may be lost: recovery looks at pending entries.
        self.index.set_word(&mut entry, word.settled());
        if entry.slot.meta != meta {
            self.index.set_meta(&mut entry, meta);
        }
    }
}
