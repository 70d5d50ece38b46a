//! Values that the server writes itself, several at once, for clients in its own process.
//!
//! Each object is written and named, and the word that names it stays pending, as if a client were about to write there. One
//! wait for the medium makes all of them durable, objects and words, in no order among each other: a crash before its end
//! leaves some pending words, and recovery goes by the checksums of what they name, as after a client that died. Then the words
//! are settled. Keys that are new take one more wait, for all of them: their entries are prepared before anything is written
//! (`index.rs`), as those of a batch of reservations are. Readers believe nothing meanwhile: an old version is marked before its successor is named, and of a pending
//! word they ask, which is answered after the end of this.

use std::collections::BTreeSet;

use remanence_pmem::Medium;

use super::index::{Entry, load};
use super::log::{self, Purpose, Start};
use super::{ClientId, Current, Server};
use crate::format::object::Content;
use crate::format::{Hint, Meta, Word};
use crate::proto::{Expect, Inline, Refusal, Request, Reserved};

/// A value that is written, and not settled yet.
struct Named {
    entry: Entry,
    /// What the entry is to say of it.
    meta: Meta,
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
        done: &mut Vec<Result<Reserved, Refusal>>,
    ) {
        let refusal = match self.clients.get(&client) {
            Some(state) if state.fencing => Some(Refusal::Fenced),
            Some(state) if state.reads_only => Some(Refusal::ReadOnly),
            Some(_) => None,
            None => Some(Refusal::Fenced),
        };
        if let Some(refusal) = refusal {
            done.extend(puts.iter().map(|_| Err(refusal.clone())));
            return;
        }
        let (first, mut named) = (done.len(), Vec::with_capacity(puts.len()));
        let keys = puts.iter().map(|put| (put.key, put.value.len() as u64, put.expect));
        let Ok(kept) = self.prepare_new(now, keys) else {
            done.extend(puts.iter().map(|_| Err(Refusal::Medium)));
            return;
        };
        for put in puts {
            done.push(self.name(now, put).map(|(one, reserved)| {
                named.push(one);
                reserved
            }));
            match done.last() {
                Some(Err(Refusal::Unfinished)) => self.stats.unfinished += 1,
                Some(Err(Refusal::Full)) => self.wants_room = true,
                _ => {}
            }
        }
        self.release(&kept);
        if self.dirty && self.order().is_err() {
            done[first..].fill(Err(Refusal::Medium));
            return;
        }
        self.stats.written += named.len() as u64;
        named.into_iter().for_each(|one| self.settle_named(&one));
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
        let mut seen = BTreeSet::new();
        let mut new: Vec<(u64, u64)> =
            keys.filter_map(|(key, len, expect)| self.is_new(key, len, expect)).collect();
        new.retain(|(fingerprint, _)| seen.insert(*fingerprint));
        // One is created as well by itself.
        if new.len() < 2 {
            return Ok(kept);
        }
        self.push_along(now, new.len())?;
        for (fingerprint, object) in new {
            if self.growth.must_catch_up(&self.index) {
                break;
            }
            let table = self.growth.inserts_to(&self.index.tables);
            let room = self.index.make_room(table, fingerprint).map_err(|e| log::io(&e))?;
            let Ok(free) = room else { continue };
            let head = self.log.geometry.head_of(fingerprint);
            let entry = self.index.prepare(free, Meta::new(fingerprint, head, Hint::of(object)));
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
            if let Some(mut entry) = self.prepared.remove(fingerprint) {
                self.index.set_word(&mut entry, Word::FREE);
            }
        }
    }

    /// Writes an object and names it.
    fn name(&mut self, now: u64, put: &Inline<'_>) -> Result<(Named, Reserved), Refusal> {
        let fingerprint = self.fingerprint(put.key)?;
        let current = self.settled(now, put.key, fingerprint)?;
        current.check(put.expect)?;
        let (object, chunks) = self.layout(put.key, put.value.len() as u64)?;
        if !chunks.is_empty() {
            return Err(Refusal::Malformed);
        }
        let head = self.log.geometry.head_of(fingerprint);
        let free = self.entry_for(now, &current, fingerprint)?;
        let start = |object| Start { fingerprint, object };
        let room = self.log.hand_out(head, object, start, Purpose::Store)?;
        let version = self.next_version();
        self.put_object(head, room.offset, version, put.expires, put.key, Content::Value(put.value));
        let meta = Meta::new(fingerprint, head, Hint::of(object));
        let entry = self.point(&current, free, meta, |word| word.update(room.offset))?;
        let (offset, epoch, at) = (room.offset, room.epoch, room.at);
        Ok((Named { entry, meta }, Reserved { version, head, offset, epoch, at, extents: Vec::new() }))
    }

    /// What was named is durable: the word says so.
    fn settle_named(&mut self, named: &Named) {
        let Named { mut entry, meta } = *named;
        let word = entry.slot.word;
        // A later one of the same batch may have moved the entry, or have been of the same key. Both words tell: another head's
        // entry, with the same offset in its log, may have taken the place.
        let [meta_there, word_there] = [0, 8].map(|word| load(&self.index.medium, entry.at() + word));
        if (Meta(meta_there), Word(word_there)) != (entry.slot.meta, word) {
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
