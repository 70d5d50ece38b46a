//! Log cleaning (4.4): merge, replicate, flip, and a fourth phase that the paper leaves to a time, retire.
//!
//! The head's log goes on in a new region (*Region 2*), and everything before it (*Region 1*) is to become free.
//!
//! * **Merge** scans Region 1 from its end. What an entry names as its newest version is copied to Region 2, and the entry's
//!   old place becomes that of the copy; tombstones and expired values lose their entries; the rest is garbage.
//! * **Replicate** goes over what could not be moved at first: entries that were pending, and those that were written again
//!   meanwhile, whose old version still lies in Region 1.
//! * **Flip** turns the new tag of each entry whose copy is durable: one atomic store, after which nothing names the original.
//! * **Retire** announces a view without Region 1, waits until every client has acknowledged it, and only then frees it.
//!
//! A value in chunks is moved as far as it lies in what is to become free: its copy is a list that names new chunks and those that stay.
//! So a region costs what is live in it, however long the values are that it has parts of. A start says which object its chunk was of
//! when that was put there, and another one of the same key may have taken it over since.
//!
//! Unlike the paper, clients read and write one-sidedly all the time. Offsets of the two regions are different (links are
//! numbered on), so a word means the same before, during and after; there is no moment at which "all tags flip" or a head
//! pointer changes, and hence none at which a crash could find half of it. Every phase may be cut short at any store: an
//! entry names the original, or the original and a copy, or the copy, and the original is intact until all have the copy
//! durably. Recovery needs no phase marker; what it finds unreferenced it frees.

use std::collections::BTreeSet;

use remanence_pmem::Medium;

use super::Server;
use super::index::Entry;
use super::log::{Purpose, Start};
use super::settle::Settling;
use crate::format::object::Content;
use crate::format::{Chunk, Hint, Offset, RegionKind};
use crate::proto::Refusal;

/// A phase, for tests and for those who watch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    Merge,
    Replicate,
    Flip,
    Retire(u64),
}

/// So many objects are copied before their entries go over to the copies: each time takes two waits for the medium.
const TOGETHER: usize = 1024;
/// Regions that become free with one wait, in one step.
const RELEASED: usize = 16;

/// An object, or the owner of a chunk, that lies in a region which is to become free.
#[derive(Clone, Copy, Debug)]
struct Item {
    region: u32,
    start: Start,
    copy: Option<Offset>,
}

/// What became of an item.
enum Moved {
    /// No entry names it.
    Gone,
    /// Its entry names a copy as the old version.
    Copied(Offset),
    /// Somebody may still write; later.
    Waiting,
    /// Some of its chunks are copied, and the step has done enough.
    Halfway(Vec<Copied>),
    /// It is damaged: the region must stay.
    Stuck,
}

/// A chunk as the copy of its object names it, and its start if it was copied, too: by its region and which of those there it is.
#[derive(Clone, Copy, Debug)]
struct Copied {
    chunk: Chunk,
    start: Option<(u32, usize)>,
}

#[derive(Debug)]
pub(super) struct Cleaning {
    head: u8,
    phase: Phase,
    regions: Vec<u32>,
    /// The same, for who looks for one.
    leaving: BTreeSet<u32>,
    /// Units that became free by it, and those that all copies had taken when it began.
    freed: u64,
    copied_before: u64,
    /// Which of them is scanned, and how many of its starts are left.
    region: usize,
    left: usize,
    /// What is gone over once more, and how far.
    items: Vec<Item>,
    at: usize,
    /// Items for the next pass.
    later: Vec<Item>,
    /// An item, and its chunks that are copied.
    half: Option<(Item, Vec<Copied>)>,
    /// Items whose copies wait for their flip, and how many have flipped.
    copied: Vec<Item>,
    flipped: usize,
    /// Of those, objects in chunks: each of their chunks' starts names them again.
    chained: BTreeSet<(u64, Offset)>,
    /// Regions that something lies in which cannot be moved.
    stay: BTreeSet<u32>,
    /// The step ends when so much is spent.
    limit: u64,
}

impl Cleaning {
    /// Whether all of the regions have been scanned.
    const fn is_scanned(&self) -> bool {
        self.region == self.regions.len()
    }

    /// Whether nothing is left to be looked at in this pass.
    const fn is_at_end(&self) -> bool {
        self.is_scanned() && self.half.is_none() && self.at == self.items.len()
    }
}

impl<M: Medium + Clone> Server<M> {
    /// Starts to clean a head's log. Returns whether there is anything to clean.
    ///
    /// # Errors
    /// Another head is being cleaned ([`Refusal::Unfinished`]), or the medium failed.
    pub fn clean(&mut self, head: u8) -> Result<bool, Refusal> {
        if self.cleaning.is_some() {
            return Err(Refusal::Unfinished);
        }
        if usize::from(head) >= self.log.heads.len() {
            return Err(Refusal::Malformed);
        }
        match self.log.cut(head) {
            // Then the last region stays, and the others are cleaned into it.
            Ok(()) | Err(Refusal::Full) => {}
            Err(other) => return Err(other),
        }
        let regions: Vec<u32> = (0..self.log.regions.len() as u32)
            .filter(|region| {
                let word = self.log.regions[*region as usize].word;
                word.kind == RegionKind::Log && word.head == head && !self.log.is_tail(*region)
            })
            .collect();
        let mut regions = regions;
        // Oldest first: should room run out, these are the ones that become free.
        regions.sort_by_key(|region| self.log.regions[*region as usize].word.epoch);
        Ok(self.begin_cleaning(head, regions))
    }

    /// Starts to clean some regions of a head's log into its end. Returns whether there are any.
    fn begin_cleaning(&mut self, head: u8, regions: Vec<u32>) -> bool {
        let Some(first) = regions.first() else { return false };
        let left = self.log.regions[*first as usize].starts.len();
        let mut cleaning = Cleaning {
            head,
            phase: Phase::Merge,
            leaving: regions.iter().copied().collect(),
            freed: 0,
            copied_before: self.log.loads.copied,
            regions,
            region: 0,
            left,
            items: Vec::new(),
            at: 0,
            later: Vec::new(),
            half: None,
            copied: Vec::new(),
            flipped: 0,
            chained: BTreeSet::new(),
            stay: BTreeSet::new(),
            limit: 0,
        };
        self.to_next_region(&mut cleaning);
        self.cleaning = Some(cleaning);
        true
    }

    /// Goes on with cleaning; returns whether there is more to do at once.
    pub(super) fn clean_step(&mut self, now: u64, budget: usize) -> Result<bool, Refusal> {
        if self.cleaning.is_none() {
            if !self.options.clean_by_itself || !self.needs_cleaning() {
                return Ok(false);
            }
            let Some((head, regions)) = self.next_to_clean(now) else { return Ok(false) };
            return Ok(self.begin_cleaning(head, regions));
        }
        let mut cleaning = self.cleaning.take().expect("it is there");
        let outcome = self.advance(now, budget, &mut cleaning);
        match outcome {
            Ok(Progress::Over) => {
                let copied = self.log.loads.copied - cleaning.copied_before;
                self.log.cleaned(cleaning.head, cleaning.freed, copied);
                return Ok(self.needs_cleaning());
            }
            Ok(Progress::More) => {}
            Ok(Progress::Waits) | Err(_) => {
                self.cleaning = Some(cleaning);
                return outcome.map(|_| false);
            }
        }
        self.cleaning = Some(cleaning);
        Ok(true)
    }

    pub(super) fn needs_cleaning(&self) -> bool {
        self.wants_room > 0 || self.log.free.len() < self.low()
    }

    fn advance(&mut self, now: u64, budget: usize, cleaning: &mut Cleaning) -> Result<Progress, Refusal> {
        cleaning.limit = self.spent + budget as u64;
        match cleaning.phase {
            Phase::Merge | Phase::Replicate => self.merge(now, cleaning),
            Phase::Flip => self.flip(cleaning),
            Phase::Retire(view) => self.retire(view, cleaning),
        }
    }

    /// What is to be looked at next: of the region that is scanned, from its end on, and then what had to wait.
    fn next_item(&self, cleaning: &mut Cleaning) -> Option<Item> {
        let Some(region) = cleaning.regions.get(cleaning.region).copied() else {
            let item = cleaning.items.get(cleaning.at).copied();
            cleaning.at += usize::from(item.is_some());
            return item;
        };
        cleaning.left -= 1;
        let start = self.log.regions[region as usize].starts.get(cleaning.left)?;
        self.to_next_region(cleaning);
        Some(Item { region, start, copy: None })
    }

    fn to_next_region(&self, cleaning: &mut Cleaning) {
        while cleaning.left == 0 && !cleaning.is_scanned() {
            cleaning.region += 1;
            let next = cleaning.regions.get(cleaning.region);
            cleaning.left = next.map_or(0, |next| self.log.regions[*next as usize].starts.len());
        }
    }

    fn merge(&mut self, now: u64, cleaning: &mut Cleaning) -> Result<Progress, Refusal> {
        while cleaning.copied.len() < TOGETHER && !cleaning.is_at_end() {
            if self.spent >= cleaning.limit {
                return Ok(Progress::More);
            }
            let half = cleaning.half.take();
            let next = half.or_else(|| self.next_item(cleaning).map(|item| (item, Vec::new())));
            let Some((mut item, chunks)) = next else { break };
            self.spent += 1;
            match self.move_object(now, cleaning, &mut item, chunks) {
                Ok(Moved::Gone) => {}
                Ok(Moved::Copied(copy)) => {
                    item.copy = Some(copy);
                    cleaning.copied.push(item);
                }
                Ok(Moved::Waiting) => cleaning.later.push(item),
                Ok(Moved::Halfway(chunks)) => cleaning.half = Some((item, chunks)),
                // No room: what was moved so far makes some.
                Ok(Moved::Stuck) | Err(Refusal::Full | Refusal::Damaged) => self.stays(cleaning, &item),
                Err(other) => return Err(other),
            }
        }
        // The copies, and the words that name them as the old version, are durable before any tag flips.
        self.sync_now()?;
        cleaning.phase = Phase::Flip;
        cleaning.flipped = 0;
        Ok(Progress::More)
    }

    /// What cannot be moved keeps its regions: its chunks' as well, which other items may have been passed over for.
    fn stays(&self, cleaning: &mut Cleaning, item: &Item) {
        cleaning.stay.insert(item.region);
        cleaning.chained.remove(&(item.start.fingerprint, item.start.object));
        let Ok(bytes) = self.object(cleaning.head, item.start.object) else { return };
        let object = self.parsed(&bytes, cleaning.head, item.start.object);
        let chunks =
            object.chunks().filter(|_| object.header.chained).map_or_else(Vec::new, |(_, chunks)| chunks);
        let places = chunks.iter().map(|chunk| chunk.offset).chain([item.start.object]);
        cleaning.stay.extend(places.filter_map(|place| self.log.region_of(cleaning.head, place)));
    }

    fn flip(&mut self, cleaning: &mut Cleaning) -> Result<Progress, Refusal> {
        while let Some(item) = cleaning.copied.get(cleaning.flipped).copied() {
            if self.spent >= cleaning.limit {
                return Ok(Progress::More);
            }
            self.spent += 1;
            cleaning.flipped += 1;
            let entry = self.index.at_place(item.start.fingerprint, cleaning.head, item.start.object);
            let Some(mut entry) = entry else { continue };
            let word = entry.slot.word;
            let unchanged = !word.is_pending()
                && word.new_offset() == Some(item.start.object)
                && word.old_offset() == item.copy;
            if unchanged {
                // Who cached the original would not notice a later update of the copy.
                self.mark(cleaning.head, Some(item.start.object), true);
                let before = self.counts_as(cleaning.head, Some(item.start.object));
                let after = self.counts_as(cleaning.head, item.copy);
                self.recount(item.start.fingerprint, before.as_ref(), after.as_ref());
                self.index.set_word(&mut entry, word.flipped());
                self.stats.objects_moved += 1;
            } else {
                cleaning.later.push(Item { copy: None, ..item });
            }
        }
        self.sync_now()?;
        cleaning.copied.clear();
        cleaning.chained.clear();
        if !cleaning.is_at_end() {
            cleaning.phase = if cleaning.is_scanned() { Phase::Replicate } else { Phase::Merge };
            return Ok(Progress::More);
        }
        cleaning.at = 0;
        cleaning.items = std::mem::take(&mut cleaning.later);
        if !cleaning.items.is_empty() {
            cleaning.phase = Phase::Replicate;
            // Clients are to be given time; the host calls again.
            return Ok(Progress::Waits);
        }
        let Cleaning { regions, stay, leaving, .. } = cleaning;
        regions.retain(|region| !stay.contains(region));
        stay.intersection(leaving).for_each(|region| self.log.is_stuck(*region));
        for region in &cleaning.regions {
            self.log.regions[*region as usize].retiring = true;
        }
        if cleaning.regions.is_empty() {
            return Ok(Progress::Over);
        }
        cleaning.phase = Phase::Retire(0);
        Ok(Progress::More)
    }

    fn retire(&mut self, view: u64, cleaning: &mut Cleaning) -> Result<Progress, Refusal> {
        if view == 0 {
            cleaning.phase = Phase::Retire(self.new_view_at_step());
            return Ok(Progress::More);
        }
        if !self.all_have(view) {
            return Ok(Progress::Waits);
        }
        let left = cleaning.regions.split_off(cleaning.regions.len().min(RELEASED));
        let released = std::mem::replace(&mut cleaning.regions, left);
        self.spent += released.len() as u64;
        self.stats.regions_freed += released.len() as u64;
        cleaning.freed += released.len() as u64 * self.log.units();
        self.log.release_all(released)?;
        Ok(if cleaning.regions.is_empty() { Progress::Over } else { Progress::More })
    }

    /// Makes one object's entry independent of the region that goes away.
    fn move_object(
        &mut self,
        now: u64,
        cleaning: &mut Cleaning,
        item: &mut Item,
        copied: Vec<Copied>,
    ) -> Result<Moved, Refusal> {
        let head = cleaning.head;
        let Some(entry) = self.entry_of(head, item) else { return Ok(Moved::Gone) };
        let mut entry = match self.settle(entry)? {
            Settling::Settled(entry) => entry,
            Settling::Gone => return Ok(Moved::Gone),
            Settling::Unfinished => return Ok(Moved::Waiting),
        };
        match entry.slot.word.new_offset() {
            Some(new) if new == item.start.object => {}
            // It has taken a chunk over.
            Some(new) if self.has_chunk_in(head, &entry, new, item.region) => item.start.object = new,
            _ => {
                // It was the version before, and nobody needs that: the newer one is whole and durable.
                self.forget_old(entry);
                return Ok(Moved::Gone);
            }
        }
        let start = item.start;
        let Ok(bytes) = self.object(head, start.object) else {
            return self.move_damaged(now, cleaning, *item, entry);
        };
        let object = self.parsed(&bytes, head, start.object);
        if object.header.deleted || object.header.is_expired(now) {
            self.stats.expired += u64::from(!object.header.deleted);
            self.free_entry(entry);
            return Ok(Moved::Gone);
        }
        let mut chunks = Vec::new();
        if object.header.chained {
            if !cleaning.chained.insert((start.fingerprint, start.object)) {
                return Ok(Moved::Gone);
            }
            chunks = object.chunks().ok_or(Refusal::Damaged)?.1;
        }
        if copied.is_empty() {
            // Not a part of it: that would be garbage, and take the room that others could be moved to.
            let leaves = |chunk: &&Chunk| !self.stays_where_it_is(cleaning, chunk);
            let parts = chunks.iter().filter(leaves).map(|chunk| u64::from(chunk.len));
            if self.log.regions_for(head, parts.chain([bytes.len() as u64])) > self.log.free.len() {
                return Err(Refusal::Full);
            }
        }
        let copied = match self.copy_chunks(cleaning, start, &chunks, copied) {
            Ok(copied) => copied,
            Err(Refusal::Damaged) => return self.move_damaged(now, cleaning, *item, entry),
            Err(other) => return Err(other),
        };
        if copied.len() < chunks.len() {
            cleaning.chained.remove(&(start.fingerprint, start.object));
            return Ok(Moved::Halfway(copied));
        }
        let copy = self.copy_object(head, start.fingerprint, &bytes, &object, &copied)?;
        // The copy and its word may become durable in any order: until the tag flips, the old place is only looked at
        // when the new one is damaged, and verified.
        let word = entry.slot.word.with_old(Some(copy));
        self.index.set_word(&mut entry, word);
        Ok(Moved::Copied(copy))
    }

    /// The entry one of whose versions lies at the item's place, or has a chunk in its region.
    fn entry_of(&mut self, head: u8, item: &Item) -> Option<Entry> {
        let entries = self.index.candidates(item.start.fingerprint);
        let named = |entry: &Entry| {
            let word = entry.slot.word;
            [word.new_offset(), word.old_offset()].into_iter().flatten().collect::<Vec<_>>()
        };
        let own = |entry: &&Entry| entry.slot.meta.head() == head;
        if let Some(entry) =
            entries.iter().filter(own).find(|entry| named(entry).contains(&item.start.object))
        {
            return Some(*entry);
        }
        let mut others = entries.iter().filter(own);
        others
            .find(|entry| named(entry).into_iter().any(|at| self.has_chunk_in(head, entry, at, item.region)))
            .copied()
    }

    /// Whether the version of an entry that lies there has a chunk in a region: if nobody can tell, perhaps.
    fn has_chunk_in(&mut self, head: u8, entry: &Entry, object: Offset, region: u32) -> bool {
        // The hint says so of any version that has.
        if entry.slot.meta.hint() != Hint::CHAINED {
            return false;
        }
        self.spent += 1;
        let Ok(bytes) = self.object(head, object) else {
            // What somebody is still writing has starts of its own.
            return !(entry.slot.word.is_pending() && entry.slot.word.new_offset() == Some(object));
        };
        self.spent += bytes.len() as u64 / super::PER_THING;
        let object = self.parsed(&bytes, head, object);
        let chunks = object.header.chained.then(|| object.chunks()).flatten();
        let mut chunks = chunks.into_iter().flat_map(|(_, chunks)| chunks);
        chunks.any(|chunk| self.log.region_of(head, chunk.offset) == Some(region))
    }

    /// Whether a chunk lies where nothing becomes free.
    fn stays_where_it_is(&self, cleaning: &Cleaning, chunk: &Chunk) -> bool {
        self.log
            .region_of(cleaning.head, chunk.offset)
            .is_some_and(|region| !cleaning.leaving.contains(&region))
    }

    /// The same of one that is damaged: it stays where it is, unless it can be put right.
    fn move_damaged(
        &mut self,
        now: u64,
        cleaning: &mut Cleaning,
        item: Item,
        entry: Entry,
    ) -> Result<Moved, Refusal> {
        cleaning.chained.remove(&(item.start.fingerprint, item.start.object));
        match self.verified(entry) {
            Ok(entry) if entry.slot.word.new_offset() == Some(item.start.object) => Ok(Moved::Waiting),
            // The copy may lie in a region that goes away, too. Its own item is at hand.
            Ok(entry) => self.move_repaired(now, cleaning, item, entry),
            Err(Refusal::Damaged) => Ok(Moved::Stuck),
            // Other members are being asked.
            Err(Refusal::Unfinished) => Ok(Moved::Waiting),
            Err(other) => Err(other),
        }
    }

    fn move_repaired(
        &mut self,
        now: u64,
        cleaning: &mut Cleaning,
        item: Item,
        entry: Entry,
    ) -> Result<Moved, Refusal> {
        let object = entry.slot.word.new_offset().ok_or(Refusal::Damaged)?;
        let mut repaired = Item { start: Start { object, ..item.start }, copy: None, ..item };
        match self.move_object(now, cleaning, &mut repaired, Vec::new())? {
            // Its flip is not this item's: the next pass finds it.
            Moved::Copied(_) | Moved::Waiting | Moved::Halfway(_) => Ok(Moved::Waiting),
            other => Ok(other),
        }
    }

    fn forget_old(&mut self, mut entry: Entry) {
        let word = entry.slot.word.with_old(None);
        self.index.set_word(&mut entry, word);
    }

    /// Copies chunks, behind those that are copied, until the step has done enough: one at least. Those that stay are named as they are.
    fn copy_chunks(
        &mut self,
        cleaning: &Cleaning,
        start: Start,
        chunks: &[Chunk],
        mut copied: Vec<Copied>,
    ) -> Result<Vec<Copied>, Refusal> {
        let before = copied.len();
        for chunk in &chunks[before..] {
            if copied.len() > before && self.spent >= cleaning.limit {
                break;
            }
            if self.stays_where_it_is(cleaning, chunk) {
                copied.push(Copied { chunk: *chunk, start: None });
                continue;
            }
            let part = self.chunk(cleaning.head, chunk).map_err(|_| Refusal::Damaged)?;
            let own = |object| Start { fingerprint: start.fingerprint, object };
            let room = self.log.hand_out(cleaning.head, part.len() as u64, own, Purpose::Reclaim)?;
            self.medium.write_nt(room.at, &part);
            self.spent += (part.len() as u64).div_ceil(super::PER_THING);
            let region = self.log.region_of(cleaning.head, room.offset).expect("it was handed out");
            let nth = self.log.regions[region as usize].starts.len() - 1;
            let chunk = Chunk { offset: room.offset, ..*chunk };
            copied.push(Copied { chunk, start: Some((region, nth)) });
        }
        Ok(copied)
    }

    fn copy_object(
        &mut self,
        head: u8,
        fingerprint: u64,
        bytes: &[u8],
        object: &crate::format::Object<'_>,
        copied: &[Copied],
    ) -> Result<Offset, Refusal> {
        let start = |object| Start { fingerprint, object };
        let room = self.log.hand_out(head, bytes.len() as u64, start, Purpose::Reclaim)?;
        self.spent += bytes.len() as u64 / super::PER_THING;
        for (region, nth) in copied.iter().filter_map(|copied| copied.start) {
            self.log.regions[region as usize].starts.set(nth, start(room.offset));
        }
        let chunks: Vec<Chunk> = copied.iter().map(|copied| copied.chunk).collect();
        let content: Content<'_> = Self::content(object, &chunks);
        let header = object.header;
        self.put_object(head, room.offset, header.version, header.expires, object.key, content);
        Ok(room.offset)
    }

    fn new_view_at_step(&mut self) -> u64 {
        let since = self.last_step;
        self.new_view(since)
    }
}

pub(super) enum Progress {
    /// There is more to do at once.
    More,
    /// It waits for clients.
    Waits,
    /// It is at its end.
    Over,
}
