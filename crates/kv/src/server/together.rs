//! Values that the server writes itself, several at once, for clients in its own process.
//!
//! Each object is written and named, and the word that names it stays pending, as if a client were about to write there. One
//! wait for the medium makes all of them durable, objects and words, in no order among each other: a crash before its end
//! leaves some pending words, and recovery goes by the checksums of what they name, as after a client that died. Then the words
//! are settled. Keys that are new take one more wait, for all of them: their entries are prepared before anything is written
//! (`index.rs`). Readers believe nothing meanwhile: an old version is marked before its successor is named, and of a pending
//! word they ask, which is answered after the end of this.

use std::collections::BTreeSet;

use remanence_pmem::Medium;

use super::index::{Entry, load};
use super::log::{self, Purpose, Start};
use super::{ClientId, Current, Server};
use crate::format::object::{Content, object_len};
use crate::format::{Hint, Meta, Word};
use crate::proto::{Inline, Refusal, Reserved};

/// A value that is written, and not settled yet.
struct Named {
    entry: Entry,
    /// What the entry is to say of it.
    meta: Meta,
}

impl<M: Medium + Clone> Server<M> {
    /// Writes values for a client, and appends to `done` what became of each, in their order: where it lies, or why not. They
    /// share one wait for the medium, after which what was written is as durable as the mode promises. A value that does not fit
    /// one object is [`Refusal::Malformed`]: it is for [`Request::Put`](crate::proto::Request::Put).
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
        let Ok(mut prepared) = self.prepare_new(now, puts) else {
            done.extend(puts.iter().map(|_| Err(Refusal::Medium)));
            return;
        };
        for (n, put) in puts.iter().enumerate() {
            let entry = prepared.get_mut(n).and_then(Option::take);
            done.push(self.name(now, put, entry).map(|(one, reserved)| {
                named.push(one);
                reserved
            }));
            match done.last() {
                Some(Err(Refusal::Unfinished)) => self.stats.unfinished += 1,
                Some(Err(Refusal::Full)) => self.wants_room = true,
                _ => {}
            }
        }
        if self.dirty && self.order().is_err() {
            done[first..].fill(Err(Refusal::Medium));
            return;
        }
        self.stats.written += named.len() as u64;
        named.into_iter().for_each(|one| self.settle_named(&one));
    }

    /// Prepares an entry for each key that has none, and waits once for all of them. What cannot be had is left to who asks for
    /// it again, one by one.
    fn prepare_new(&mut self, now: u64, puts: &[Inline<'_>]) -> Result<Vec<Option<Entry>>, Refusal> {
        // Where a wait is no system call, looking for all keys twice costs more than it spares. One is created as well by itself;
        // and while the table grows, entries move with each that is made.
        if !self.options.defer || puts.len() < 2 || !self.growth.is_idle() {
            return Ok(Vec::new());
        }
        let mut prepared: Vec<Option<Entry>> = Vec::with_capacity(puts.len());
        let mut seen = BTreeSet::new();
        for put in puts {
            // Of a key that comes twice, the later one finds what the earlier one made.
            let first = self.fingerprint(put.key).ok().filter(|fingerprint| seen.insert(*fingerprint));
            let new = first.filter(|fingerprint| self.index.candidates(*fingerprint).is_empty());
            let entry = new.and_then(|fingerprint| self.prepare_one(now, put, fingerprint));
            prepared.push(entry);
        }
        if prepared.iter().any(Option::is_some) {
            self.index.medium.pfence().map_err(|e| log::io(&e))?;
        }
        Ok(prepared)
    }

    fn prepare_one(&mut self, now: u64, put: &Inline<'_>, fingerprint: u64) -> Option<Entry> {
        Current::Absent(None).check(put.expect).ok()?;
        let (object, chunks) = self.layout(put.key, put.value.len() as u64).ok()?;
        if !chunks.is_empty() || !self.growth.is_idle() {
            return None;
        }
        let head = self.log.geometry.head_of(fingerprint);
        let free = self.entry_for(now, &Current::Absent(None), fingerprint).ok()??;
        self.dirty = true;
        Some(self.index.prepare(free, Meta::new(fingerprint, head, Hint::of(object))))
    }

    /// Writes an object and names it, by the entry that was prepared for its key, if one was.
    fn name(
        &mut self,
        now: u64,
        put: &Inline<'_>,
        prepared: Option<Entry>,
    ) -> Result<(Named, Reserved), Refusal> {
        let Some(mut entry) = prepared else { return self.name_found(now, put) };
        let (fingerprint, head) = (entry.slot.meta.fingerprint(), entry.slot.meta.head());
        let object = object_len(put.key.len(), put.value.len() as u64);
        let start = |object| Start { fingerprint, object };
        let room = match self.log.hand_out(head, object, start, Purpose::Store) {
            Ok(room) => room,
            Err(refusal) => {
                self.index.set_word(&mut entry, Word::FREE);
                return Err(refusal);
            }
        };
        let version = self.next_version();
        self.put_object(head, room.offset, version, put.expires, put.key, Content::Value(put.value));
        let meta = entry.slot.meta;
        let entry = self.index.name_prepared(entry, meta, Word::FREE.update(room.offset));
        let (offset, epoch, at) = (room.offset, room.epoch, room.at);
        Ok((Named { entry, meta }, Reserved { version, head, offset, epoch, at, extents: Vec::new() }))
    }

    fn name_found(&mut self, now: u64, put: &Inline<'_>) -> Result<(Named, Reserved), Refusal> {
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
