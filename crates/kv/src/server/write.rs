//! Changes of keys: room for a client to write a value, values and tombstones that the server writes itself.

use remanence_pmem::Medium;

use super::index::Entry;
use super::log::{Purpose, SPARE, Start};
use super::room::Counted;
use super::settle::Settling;
use super::{ClientId, Current, Server, Unfinished, log};
use crate::format::object::{CHUNK_LEN, Content, LIST_LEN, chunk_lens, emit, object_len};
use crate::format::{Hint, Meta, ObjectAddress, Offset, Slot, Word};
use crate::proto::{Expect, Extent, Inline, Refusal, Reply, Reserved};
use crate::view::Mode;

impl<M: Medium + Clone> Server<M> {
    /// Hands out room for a value (3.3). The entry names it from here on, and is pending.
    pub(super) fn reserve(
        &mut self,
        now: u64,
        client: ClientId,
        key: &[u8],
        len: u64,
        expires: u64,
        expect: Expect,
    ) -> Result<Reserved, Refusal> {
        let fingerprint = self.fingerprint(key)?;
        if self.clients[&client].unfinished.len() >= self.options.unfinished_max {
            // Most of them are done, and nobody has looked yet.
            let versions: Vec<u64> = self.clients[&client].unfinished.iter().copied().collect();
            self.finish(&versions)?;
            if self.clients[&client].unfinished.len() >= self.options.unfinished_max {
                return Err(Refusal::TooMany);
            }
        }
        let current = self.settled(now, key, fingerprint)?;
        current.check(expect)?;
        let (object, chunks) = self.layout(key, len)?;
        let head = self.log.geometry.head_of(fingerprint);
        self.admit(now, &current, expect, object, &chunks)?;
        self.room_for(head, &chunks, object)?;
        let free = self.entry_for(now, &current, fingerprint)?;
        // The object last, so that its chunks' starts can name it; both are known only together.
        let mut extents = Vec::with_capacity(chunks.len());
        for chunk in &chunks {
            let start = |object| Start { fingerprint, object };
            let room = self.log.hand_out(head, u64::from(*chunk), start, Purpose::Store)?;
            extents.push(Extent { offset: room.offset, at: room.at, len: *chunk });
        }
        let start = |object| Start { fingerprint, object };
        let room = self.log.hand_out(head, object, start, Purpose::Store)?;
        self.own_chunks(head, extents.iter().map(|e| e.offset), room.offset);

        let version = self.next_version();
        let hint = if extents.is_empty() { Hint::of(object) } else { Hint::CHAINED };
        let meta = Meta::new(fingerprint, head, hint);
        let extents_of = |extents: &[Extent]| extents.iter().map(|e| (e.offset, e.len)).collect::<Vec<_>>();
        let counted = Counted {
            first: key[0],
            head,
            expires,
            object: (room.offset, object),
            chunks: extents_of(&extents),
        };
        self.point(&current, free, meta, Some(&counted), |word| word.update(room.offset))?;
        let unfinished = Unfinished {
            client,
            expires,
            key: key.to_vec(),
            fingerprint,
            head,
            offset: room.offset,
            room: object,
            extents: counted.chunks,
            until: now.saturating_add(self.options.lease),
            progress: 0,
        };
        self.leases.insert((unfinished.until, version));
        self.unfinished.insert(version, unfinished);
        self.places.insert((head, room.offset), version);
        self.clients.get_mut(&client).expect("it is connected").unfinished.insert(version);
        self.stats.reserved += 1;
        let (offset, epoch, at) = (room.offset, room.epoch, room.at);
        Ok(Reserved { version, head, offset, epoch, at, extents })
    }

    /// Writes a value, or a tombstone, for a client that does not itself. Whole and durable (as far as the mode goes)
    /// when it returns.
    pub(super) fn write(
        &mut self,
        now: u64,
        key: &[u8],
        value: Option<(&[u8], u64)>,
        expect: Expect,
    ) -> Result<u64, Refusal> {
        let fingerprint = self.fingerprint(key)?;
        let current = self.settled(now, key, fingerprint)?;
        current.check(expect)?;
        if value.is_none() && matches!(current, Current::Absent(_)) {
            return Ok(0);
        }
        let head = self.log.geometry.head_of(fingerprint);
        let free = self.entry_for(now, &current, fingerprint)?;
        let purpose = Purpose::Store;
        let version = self.next_version();
        let start = |object| Start { fingerprint, object };
        let (offset, hint, counted) = match value {
            None => {
                let len = object_len(key.len(), 0);
                let room = match self.log.hand_out(head, len, start, Purpose::Delete) {
                    Err(Refusal::Full) => return self.forget_key(&current).map(|()| version),
                    room => room?,
                };
                self.put_object(head, room.offset, version, 0, key, Content::Deleted);
                (room.offset, Hint::of(object_len(key.len(), 0)), None)
            }
            Some((value, expires)) => {
                let (object, lens) = self.layout(key, value.len() as u64)?;
                self.admit(now, &current, expect, object, &lens)?;
                self.room_for(head, &lens, object)?;
                let mut chunks = Vec::with_capacity(lens.len());
                let mut rest = value;
                for len in &lens {
                    let (part, behind) = rest.split_at(*len as usize);
                    let room = self.log.hand_out(head, u64::from(*len), start, purpose)?;
                    self.medium.write_nt(room.at, part);
                    let crc = crate::format::object::crc64(&[part]);
                    chunks.push(crate::format::Chunk { offset: room.offset, len: *len, crc });
                    rest = behind;
                }
                let room = self.log.hand_out(head, object, start, purpose)?;
                self.own_chunks(head, chunks.iter().map(|c| c.offset), room.offset);
                let content = if lens.is_empty() { Content::Value(value) } else { Content::Chained(&chunks) };
                self.put_object(head, room.offset, version, expires, key, content);
                let hint = if lens.is_empty() { Hint::of(object) } else { Hint::CHAINED };
                let chunks = chunks.iter().map(|chunk| (chunk.offset, chunk.len)).collect();
                let counted = Counted { first: key[0], head, expires, object: (room.offset, object), chunks };
                (room.offset, hint, Some(counted))
            }
        };
        // The object before the word that names it.
        self.order()?;
        let meta = Meta::new(fingerprint, head, hint);
        let counts = counted.as_ref();
        match self.options.mode {
            Mode::Erda => {
                self.point(&current, free, meta, counts, |word| word.update(offset).settled())?;
            }
            Mode::Durable => {
                // Readers may see the word before it is durable. They must not believe it before: pending until then.
                let mut entry = self.point(&current, free, meta, counts, |word| word.update(offset))?;
                self.sync_now()?;
                // This store may be lost: recovery looks at pending entries.
                let word = entry.slot.word.settled();
                self.index.set_word(&mut entry, word);
                self.index.set_meta(&mut entry, meta);
            }
        }
        self.stats.written += 1;
        Ok(version)
    }

    /// Nothing is handed out of what is not enough: it would be garbage, and who asks again would make more of it. Whether it is
    /// cleaning that the refusal is to wait for, [`wait_for_room`](Self::wait_for_room) says.
    pub(super) fn room_for(&mut self, head: u8, chunks: &[u32], object: u64) -> Result<(), Refusal> {
        let all = chunks.iter().copied().map(u64::from).chain([object]);
        let regions = self.log.regions_for(head, all);
        if regions == 0 || regions + SPARE <= self.log.free.len() {
            return Ok(());
        }
        self.lacks = regions + SPARE;
        Err(Refusal::Cleaning)
    }

    /// One change by itself, and its reply.
    pub(super) fn write_one(&mut self, now: u64, change: &Inline<'_>) -> Result<Reply, Refusal> {
        let value = change.value.map(|value| (value, change.expires));
        self.write(now, change.key, value, change.expect).map(|version| Reply::Done { version })
    }

    /// A deletion where there is no room for a tombstone: the entry goes.
    pub(super) fn forget_key(&mut self, current: &Current) -> Result<(), Refusal> {
        let mut entry = current.entry().expect("there is a value");
        let (meta, new) = (entry.slot.meta, entry.slot.word.new_offset());
        self.recount(meta.fingerprint(), self.counts_as(meta.head(), new).as_ref(), None);
        self.mark(meta.head(), new, true);
        // Readers may see the entry gone before that is durable. They must not believe it before: it is pending, with no
        // version at all, until then.
        self.index.set_word(&mut entry, Word::GOING);
        self.order()?;
        self.index.set_word(&mut entry, Word::FREE);
        self.dirty = true;
        Ok(())
    }

    /// Bytes of the object, and of its chunks if the value does not fit a segment.
    pub(super) fn layout(&self, key: &[u8], len: u64) -> Result<(u64, Vec<u32>), Refusal> {
        let max = self.log.geometry.object_max();
        let pool = u64::from(self.log.geometry.regions()) * self.log.geometry.region_len;
        let too_large = Refusal::TooLarge { len, pool };
        if len > pool {
            return Err(too_large);
        }
        let object = object_len(key.len(), len);
        if object <= max {
            return Ok((object, Vec::new()));
        }
        let chunks = len.div_ceil(max);
        let object = object_len(key.len(), LIST_LEN as u64 + chunks * CHUNK_LEN as u64);
        if object > max {
            return Err(too_large);
        }
        Ok((object, chunk_lens(len, max).collect()))
    }

    /// An entry to use: the key's own, or a free one in its neighbourhood.
    pub(super) fn entry_for(
        &mut self,
        now: u64,
        current: &Current,
        fingerprint: u64,
    ) -> Result<Option<Entry>, Refusal> {
        if current.entry().is_some() {
            return Ok(None);
        }
        if let Some(prepared) = self.prepared.get(&fingerprint) {
            return Ok(Some(*prepared));
        }
        self.push_along(now, 1)?;
        if self.growth.must_catch_up(&self.index) {
            return Err(Refusal::Growing);
        }
        let table = self.growth.inserts_to(&self.index.tables);
        if let Ok(entry) = self.index.make_room(table, fingerprint).map_err(|e| log::io(&e))? {
            return Ok(Some(entry));
        }
        // A tombstone is only good for recovery and for the version before it: take its place.
        let slots = self.index.slots(table, table.home(fingerprint), crate::format::slot::NEIGHBOURHOOD);
        for (n, slot) in slots.into_iter().enumerate() {
            let entry = Entry { table, index: table.home(fingerprint) + n as u64, slot };
            if slot.word.is_free() || slot.word.is_pending() {
                continue;
            }
            if matches!(self.current(now, Some(entry)), Ok(Current::Absent(_))) {
                self.free_entry(entry);
                self.order()?;
                let slot = Slot { word: Word::FREE, ..slot };
                return Ok(Some(Entry { slot, ..entry }));
            }
        }
        // The table that is on its way may have the place.
        self.wants_entries |= self.growth.is_idle();
        Err(match self.cannot_grow {
            None => Refusal::Growing,
            Some(_) if self.can_free(self.regions_to_grow()) => Refusal::Cleaning,
            Some(_) => Refusal::Full,
        })
    }

    /// Points the key's entry to a new place. What was new becomes old, and clients that cached it will notice. The new version
    /// [counts](Self::counts_as) as this.
    pub(super) fn point(
        &mut self,
        current: &Current,
        free: Option<Entry>,
        meta: Meta,
        counts: Option<&Counted>,
        word: impl FnOnce(Word) -> Word,
    ) -> Result<Entry, Refusal> {
        self.dirty = true;
        let before = current.entry().map(|entry| (entry.slot.meta.head(), entry.slot.word.new_offset()));
        let before = before.and_then(|(head, offset)| self.counts_as(head, offset));
        self.recount(meta.fingerprint(), before.as_ref(), counts);
        let Some(mut entry) = current.entry() else {
            let mut free = free.expect("a key without an entry was given a free one");
            if self.prepared.remove(&meta.fingerprint()).is_some() {
                // It may have been prepared for an object of another length: recovery finds chunks by the hint.
                if free.slot.meta != meta {
                    self.index.set_meta(&mut free, meta);
                    if meta.hint() == Hint::CHAINED {
                        self.order()?;
                    }
                }
                return Ok(self.index.name_prepared(free, meta, word(Word::FREE)));
            }
            return self.index.create(free, meta, word(Word::FREE)).map_err(|e| log::io(&e));
        };
        let old = entry.slot.word;
        self.mark(entry.slot.meta.head(), old.new_offset(), true);
        // Recovery finds chunks by the hint: it says so before the word names such an object, and as long as it may.
        if entry.slot.meta != meta && entry.slot.meta.hint() != Hint::CHAINED {
            self.index.set_meta(&mut entry, meta);
            if meta.hint() == Hint::CHAINED {
                self.order()?;
            }
        }
        self.index.set_word(&mut entry, word(old));
        self.dirty = true;
        Ok(entry)
    }

    /// Writes an object and asks for its write-back.
    pub(super) fn put_object(
        &mut self,
        head: u8,
        offset: Offset,
        version: u64,
        expires: u64,
        key: &[u8],
        content: Content<'_>,
    ) {
        self.round.note(expires);
        let (at, place): (u64, ObjectAddress) = self.place(head, offset).expect("it was handed out");
        let bytes = emit(&place, version, expires, key, content);
        // With the mark: the same version may have been here before, and been marked when it was moved away.
        self.medium.write_nt(at, &bytes);
    }

    /// Chunks are handed out before their object: tell their regions whose they are.
    pub(super) fn own_chunks(&mut self, head: u8, chunks: impl Iterator<Item = Offset>, object: Offset) {
        for chunk in chunks {
            let region = self.log.region_of(head, chunk).expect("it was handed out");
            self.log.regions[region as usize].starts.own(chunk, object);
        }
    }

    /// The key's state when nothing of it is pending, which is when it may be changed: rule 1.
    pub(super) fn settled(&mut self, now: u64, key: &[u8], fingerprint: u64) -> Result<Current, Refusal> {
        let entry = match self.lookup(key, fingerprint) {
            Some(entry) if entry.slot.word.is_pending() => match self.settle(entry)? {
                Settling::Settled(entry) => Some(entry),
                Settling::Gone => None,
                Settling::Unfinished => return Err(Refusal::Unfinished),
            },
            entry => entry,
        };
        match self.current(now, entry) {
            Err(Refusal::Damaged) => {}
            current => return current,
        }
        let entry = entry.expect("what is damaged is there");
        match self.verified(entry) {
            Ok(entry) => self.current(now, Some(entry)),
            Err(Refusal::Damaged) => Ok(Current::Damaged(entry)),
            Err(other) => Err(other),
        }
    }
}
