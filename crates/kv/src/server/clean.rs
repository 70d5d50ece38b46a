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
//! Unlike the paper, clients read and write one-sidedly all the time. Offsets of the two regions are different (links are
//! numbered on), so a word means the same before, during and after; there is no moment at which "all tags flip" or a head
//! pointer changes, and hence none at which a crash could find half of it. Every phase may be cut short at any store: an
//! entry names the original, or the original and a copy, or the copy, and the original is intact until all have the copy
//! durably. Recovery needs no phase marker; what it finds unreferenced it frees.

use std::collections::BTreeSet;

use remanence_pmem::Medium;

use super::Server;
use super::index::Entry;
use super::log::{Purpose, SPARE, Start};
use super::settle::Settling;
use crate::format::object::Content;
use crate::format::{Chunk, Offset, RegionKind, Word};
use crate::proto::Refusal;

/// A phase, for tests and for those who watch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    Merge,
    Replicate,
    Flip,
    Retire(u64),
}

/// An object, or the owner of a chunk, that lies in a region which is to become free.
#[derive(Clone, Copy, Debug)]
struct Item {
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
    /// It is damaged, and so is the version before: the region must stay.
    Stuck,
}

#[derive(Debug)]
pub(super) struct Cleaning {
    head: u8,
    phase: Phase,
    regions: Vec<u32>,
    /// In the order of the scan.
    items: Vec<Item>,
    /// Where the phase has come to.
    at: usize,
    /// Items for the next pass.
    later: Vec<Item>,
    /// Items whose copies are durable.
    copied: Vec<Item>,
    /// What cannot be moved.
    stuck: Vec<Start>,
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
        self.log.heads[usize::from(head)].written = 0;
        if regions.is_empty() {
            return Ok(false);
        }
        let mut regions = regions;
        // Oldest first: should room run out, these are the ones that become free.
        regions.sort_by_key(|region| self.log.regions[*region as usize].word.epoch);
        let mut seen = BTreeSet::new();
        let items = regions
            .iter()
            .flat_map(|region| self.log.regions[*region as usize].starts.iter().rev())
            .filter(|start| seen.insert((start.fingerprint, start.object)))
            .map(|start| Item { start: *start, copy: None })
            .collect();
        self.cleaning = Some(Cleaning {
            head,
            phase: Phase::Merge,
            regions,
            items,
            at: 0,
            later: Vec::new(),
            copied: Vec::new(),
            stuck: Vec::new(),
        });
        Ok(true)
    }

    /// Goes on with cleaning; returns whether there is more to do at once.
    pub(super) fn clean_step(&mut self, now: u64, budget: usize) -> Result<bool, Refusal> {
        if self.cleaning.is_none() {
            if !self.options.clean_by_itself || !self.needs_cleaning() {
                return Ok(false);
            }
            let Some(head) = self.fullest_head(now) else {
                self.wants_room = false;
                return Ok(false);
            };
            self.wants_room = false;
            return self.clean(head);
        }
        let mut cleaning = self.cleaning.take().expect("it is there");
        let outcome = self.advance(now, budget, &mut cleaning);
        match outcome {
            Ok(Progress::Over) => return Ok(self.needs_cleaning()),
            Ok(Progress::More) => {}
            Ok(Progress::Waits) | Err(_) => {
                self.cleaning = Some(cleaning);
                return outcome.map(|_| false);
            }
        }
        self.cleaning = Some(cleaning);
        Ok(true)
    }

    /// What who asked is told of a refusal: if it is for want of room, whether to wait for cleaning. It comes to an end: a head
    /// that was cleaned is not cleaned again until somebody has written to it.
    pub(super) fn wait_for_room(&mut self, refusal: Refusal) -> Refusal {
        if refusal != Refusal::Full {
            return refusal;
        }
        self.wants_room = true;
        let may = self.options.clean_by_itself && self.log.heads.iter().any(|head| head.written > 0);
        if may || self.cleaning.is_some() { Refusal::Cleaning } else { Refusal::Full }
    }

    fn needs_cleaning(&self) -> bool {
        let low = SPARE + 1 + self.log.regions.len() / 16;
        self.wants_room || self.log.free.len() < low
    }

    /// The head that was written to most since it was cleaned, if that is worth while. If somebody waits for room, and now
    /// and then, the one with the longest log: values may have expired.
    fn fullest_head(&mut self, now: u64) -> Option<u8> {
        let least = if self.wants_room { 1 } else { u64::from(self.log.geometry.region_units()) };
        let (head, state) = self.log.heads.iter().enumerate().max_by_key(|(_, head)| head.written)?;
        if state.written >= least {
            return Some(head as u8);
        }
        if !self.wants_room || now.saturating_sub(self.cleaned_anyway) < self.options.lease {
            return None;
        }
        self.cleaned_anyway = now;
        let links = |head: u8| self.log.links.range((head, 0)..=(head, u16::MAX)).count();
        (0..self.log.heads.len() as u16).map(|head| head as u8).max_by_key(|head| links(*head))
    }

    fn advance(&mut self, now: u64, budget: usize, cleaning: &mut Cleaning) -> Result<Progress, Refusal> {
        match cleaning.phase {
            Phase::Merge | Phase::Replicate => self.merge(now, budget, cleaning),
            Phase::Flip => self.flip(budget, cleaning),
            Phase::Retire(view) => self.retire(view, cleaning),
        }
    }

    fn merge(&mut self, now: u64, budget: usize, cleaning: &mut Cleaning) -> Result<Progress, Refusal> {
        for _ in 0..budget {
            let Some(mut item) = cleaning.items.get(cleaning.at).copied() else { break };
            cleaning.at += 1;
            match self.move_object(now, cleaning.head, item.start) {
                Ok(Moved::Gone) => {}
                Ok(Moved::Copied(copy)) => {
                    item.copy = Some(copy);
                    cleaning.copied.push(item);
                }
                Ok(Moved::Waiting) => cleaning.later.push(item),
                // No room: what was moved so far makes some.
                Ok(Moved::Stuck) | Err(Refusal::Full | Refusal::Damaged) => cleaning.stuck.push(item.start),
                Err(other) => return Err(other),
            }
        }
        if cleaning.at < cleaning.items.len() {
            return Ok(Progress::More);
        }
        // The copies, and the words that name them as the old version, are durable before any tag flips.
        self.sync_now()?;
        cleaning.phase = Phase::Flip;
        cleaning.at = 0;
        cleaning.items = std::mem::take(&mut cleaning.copied);
        Ok(Progress::More)
    }

    fn flip(&mut self, budget: usize, cleaning: &mut Cleaning) -> Result<Progress, Refusal> {
        for _ in 0..budget {
            let Some(item) = cleaning.items.get(cleaning.at).copied() else { break };
            cleaning.at += 1;
            let entry = self.index.at_place(item.start.fingerprint, cleaning.head, item.start.object);
            let Some(mut entry) = entry else { continue };
            let word = entry.slot.word;
            let unchanged = !word.is_pending()
                && word.new_offset() == Some(item.start.object)
                && word.old_offset() == item.copy;
            if unchanged {
                // Who cached the original would not notice a later update of the copy.
                self.mark(cleaning.head, Some(item.start.object), true);
                self.index.set_word(&mut entry, word.flipped());
                self.dirty = true;
                self.stats.objects_moved += 1;
            } else {
                cleaning.later.push(Item { copy: None, ..item });
            }
        }
        if cleaning.at < cleaning.items.len() {
            return Ok(Progress::More);
        }
        self.sync_now()?;
        cleaning.at = 0;
        cleaning.items = std::mem::take(&mut cleaning.later);
        if !cleaning.items.is_empty() {
            cleaning.phase = Phase::Replicate;
            // Clients are to be given time; the host calls again.
            return Ok(Progress::Waits);
        }
        let stuck = std::mem::take(&mut cleaning.stuck);
        cleaning.regions.retain(|region| {
            let starts = &self.log.regions[*region as usize].starts;
            !starts.iter().any(|start| stuck.contains(start))
        });
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
        for region in &cleaning.regions {
            self.log.release(*region)?;
            self.stats.regions_freed += 1;
        }
        Ok(Progress::Over)
    }

    /// Makes one object's entry independent of the region that goes away.
    fn move_object(&mut self, now: u64, head: u8, start: Start) -> Result<Moved, Refusal> {
        let Some(entry) = self.index.at_place(start.fingerprint, head, start.object) else {
            return Ok(Moved::Gone);
        };
        let entry = match self.settle(entry)? {
            Settling::Settled(entry) => entry,
            Settling::Gone => return Ok(Moved::Gone),
            Settling::Unfinished => return Ok(Moved::Waiting),
        };
        if entry.slot.word.new_offset() != Some(start.object) {
            // It was the version before, and nobody needs that: the newer one is whole and durable.
            return self.forget_old(entry).map(|()| Moved::Gone);
        }
        let mut entry = match self.verified(entry) {
            Ok(Some(entry)) if entry.slot.word.new_offset() == Some(start.object) => entry,
            // Repaired: the version before may lie in a region that goes away, too. Its own item is at hand.
            Ok(Some(entry)) => return self.move_repaired(now, head, entry),
            Ok(None) => return Ok(Moved::Gone),
            Err(Refusal::Damaged) => return Ok(Moved::Stuck),
            Err(other) => return Err(other),
        };
        let (bytes, chunks) = self.whole(head, start.object).map_err(|_| Refusal::Damaged)?;
        let object = self.parsed(&bytes, head, start.object);
        if object.header.deleted || object.header.is_expired(now) {
            self.mark(head, Some(start.object), true);
            self.index.set_word(&mut entry, Word::FREE);
            self.dirty = true;
            return Ok(Moved::Gone);
        }
        let copy = self.copy_object(head, start.fingerprint, &bytes, &object, &chunks)?;
        // The copy and its word may become durable in any order: until the tag flips, the old place is only looked at
        // when the new one is damaged, and verified.
        let word = entry.slot.word.with_old(Some(copy));
        self.index.set_word(&mut entry, word);
        self.dirty = true;
        Ok(Moved::Copied(copy))
    }

    fn move_repaired(&mut self, now: u64, head: u8, entry: Entry) -> Result<Moved, Refusal> {
        let fingerprint = entry.slot.meta.fingerprint();
        let object = entry.slot.word.new_offset().ok_or(Refusal::Damaged)?;
        match self.move_object(now, head, Start { fingerprint, object })? {
            // Its flip is not this item's: the next pass finds it.
            Moved::Copied(_) | Moved::Waiting => Ok(Moved::Waiting),
            other => Ok(other),
        }
    }

    fn forget_old(&mut self, mut entry: Entry) -> Result<(), Refusal> {
        let word = entry.slot.word.with_old(None);
        self.index.set_word(&mut entry, word);
        self.dirty = true;
        Ok(())
    }

    fn copy_object(
        &mut self,
        head: u8,
        fingerprint: u64,
        bytes: &[u8],
        object: &crate::format::Object<'_>,
        chunks: &[Chunk],
    ) -> Result<Offset, Refusal> {
        let start = |object| Start { fingerprint, object };
        let mut copies = Vec::with_capacity(chunks.len());
        for chunk in chunks {
            let part = self.chunk(head, chunk).map_err(|_| Refusal::Damaged)?;
            let room = self.log.hand_out(head, part.len() as u64, start, Purpose::Reclaim)?;
            self.medium.write_nt(room.at, &part);
            copies.push(Chunk { offset: room.offset, ..*chunk });
        }
        let room = self.log.hand_out(head, bytes.len() as u64, start, Purpose::Reclaim)?;
        self.own_chunks(head, copies.iter().map(|chunk| chunk.offset), room.offset);
        let content: Content<'_> = Self::content(object, &copies);
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
