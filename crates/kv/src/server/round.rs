//! What goes round the store by itself, a few entries at a time: it counts keys, and takes away those whose time is over.
//!
//! Keys are counted by their first byte, which is what a gateway tells its databases by. The first round after the store was opened
//! finds how many there are. Like a scan it follows the order of fingerprints, so it is known of each key whether the round has
//! been there: a change of one that was counted changes the count, and the round will see the others as they are by then. From its
//! end on the counts are kept, and nobody counts.
//!
//! A key that expired is absent to everybody without that. Until the round or cleaning comes by, it takes an entry and room. A round
//! begins when the first that was met of those that will expire has.

use remanence_pmem::Medium;

use super::index::{Entry, stands};
use super::room::Counted;
use super::settle::Settling;
use super::{Server, log};
use crate::format::object::HEADER_LEN;
use crate::format::slot::FINGERPRINT_BITS;
use crate::format::{Header, Offset, Word};
use crate::proto::{Refusal, Reply};

/// Entries that one request has counted, or cleared, at most: about. Nobody is served meanwhile.
const COUNTED: usize = 256;
const CLEARED: usize = 1024;
/// Entries that a step looks at. The first round of a large store on a disk reads what nobody has read yet.
const LOOKED: usize = 16;
/// A round goes on after so many milliseconds where nothing else is a reason for a step.
const PACE: u64 = 100;

pub(super) struct Round {
    /// It has been at every fingerprint below this.
    at: u64,
    /// One has been everywhere: the counts are those of the whole store.
    whole: bool,
    counts: [u64; 256],
    /// The first that will expire of what was met in this round, or written since it began.
    ends: u64,
    /// When it went on last.
    last: u64,
}

impl Round {
    pub(super) const fn new() -> Self {
        Self { at: 0, whole: false, counts: [0; 256], ends: 0, last: 0 }
    }

    /// Of a store that has no keys: there is nothing to count.
    pub(super) const fn of_none() -> Self {
        Self { whole: true, ends: u64::MAX, ..Self::new() }
    }

    /// The counts are those of the whole store.
    pub(super) const fn is_whole(&self) -> bool {
        self.whole
    }

    /// Keys that were counted.
    pub(super) fn keys(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Something was written that will expire.
    pub(super) const fn note(&mut self, expires: u64) {
        if expires != 0 && expires < self.ends {
            self.ends = expires;
        }
    }

    /// When it goes on, if ever.
    pub(super) fn next(&self) -> Option<u64> {
        let goes_on = self.last.saturating_add(PACE);
        match (self.whole, self.at) {
            (true, 0) => (self.ends != u64::MAX).then(|| self.ends.max(goes_on)),
            (true, _) => Some(goes_on),
            (false, _) => Some(self.last),
        }
    }
}

impl<M: Medium + Clone> Server<M> {
    /// The header of a key's version and the first byte of the key. Not verified.
    pub(super) fn header(&self, head: u8, offset: Offset) -> Option<(Header, u8)> {
        let room = self.log.locate(head, offset)?;
        let mut bytes = [0; HEADER_LEN + 1];
        self.medium.read(room.at, &mut bytes);
        let header = Header::parse(&bytes).ok().filter(|header| header.epoch == room.epoch)?;
        Some((header, bytes[HEADER_LEN]))
    }

    /// A key's newest version is another or somewhere else, or its entry has gone.
    pub(super) fn recount(&mut self, fingerprint: u64, before: Option<&Counted>, after: Option<&Counted>) {
        if !self.round.whole && fingerprint >= self.round.at {
            return;
        }
        if let Some(before) = before {
            let count = &mut self.round.counts[usize::from(before.first)];
            *count = count.saturating_sub(1);
            self.log.weigh(before, false);
        }
        if let Some(after) = after {
            self.count_one(after);
        }
    }

    fn count_one(&mut self, counted: &Counted) {
        self.round.counts[usize::from(counted.first)] += 1;
        self.log.weigh(counted, true);
    }

    /// Frees the entry of a key that has no value any more. Before the entry is taken by another key that must be durable: its
    /// meta word may not meet the old word after a crash.
    pub(super) fn free_entry(&mut self, mut entry: Entry) {
        let (meta, offset) = (entry.slot.meta, entry.slot.word.new_offset());
        self.recount(meta.fingerprint(), self.counts_as(meta.head(), offset).as_ref(), None);
        self.mark(meta.head(), offset, true);
        self.index.set_word(&mut entry, Word::FREE);
        self.dirty = true;
    }

    /// Goes on, if there is a reason to; returns whether there is more to do at once.
    pub(super) fn go_round(&mut self, now: u64, budget: usize) -> bool {
        let over = self.round.at == 0 && now < self.round.ends;
        if self.round.whole && (over || now <= self.round.last) {
            return false;
        }
        self.round.last = now;
        if self.round.at == 0 {
            self.round.ends = u64::MAX;
        }
        let (looked, expired) = self.look_round(now, budget.min(LOOKED));
        // Where a quarter has expired there is more.
        !self.round.whole || expired > 0 && expired * 4 >= looked
    }

    fn look_round(&mut self, now: u64, limit: usize) -> (usize, usize) {
        let (entries, next) = self.entries_from(self.round.at, limit);
        let (looked, mut expired) = (entries.len(), 0);
        self.spent += 1 + looked as u64;
        for entry in entries {
            let (head, offset) = (entry.slot.meta.head(), entry.slot.word.new_offset());
            let found = offset.and_then(|offset| self.header(head, offset));
            if entry.slot.word.is_pending() {
                // By then it is known what became of it.
                self.round.note(now.saturating_add(self.options.lease));
            } else if let Some((header, _)) = found
                && header.expires != 0
            {
                // A flipped bit is no reason to take a value away.
                if header.is_expired(now) && offset.is_some_and(|offset| self.object(head, offset).is_ok()) {
                    // Of the first round it has not been counted yet.
                    self.free_entry(entry);
                    expired += 1;
                    continue;
                }
                self.round.note(header.expires);
            }
            if !self.round.whole
                && let Some(counted) = self.counts_as(head, offset)
            {
                self.count_one(&counted);
            }
        }
        self.stats.expired += expired as u64;
        self.round.at = next.unwrap_or(0);
        if next.is_none() && !std::mem::replace(&mut self.round.whole, true) {
            // Of all that lies in the logs it is known now whether it is garbage.
            self.log.loads.shed = u64::MAX;
            self.log.heads.iter_mut().for_each(|head| head.exhausted = None);
        }
        (looked, expired)
    }

    /// How many keys there are, by their first byte, those that expired and that nobody has met included.
    pub(super) fn count(&mut self, now: u64) -> Reply {
        if !self.round.whole {
            self.look_round(now, COUNTED);
        }
        let counts = self.round.counts.iter().zip(0..=u8::MAX).filter(|(count, _)| **count > 0);
        let counts = counts.map(|(count, first)| (first, *count)).collect();
        Reply::Counts { whole: self.round.whole, counts }
    }

    /// Takes away what some keys have, from a cursor on: those that begin with a byte, or all. One wait serves them all. Keys of which a
    /// write is under way stay.
    pub(super) fn clear_keys(&mut self, first: Option<u8>, cursor: u64) -> Result<Reply, Refusal> {
        let (entries, next) = self.entries_from(cursor, CLEARED);
        let mut going = Vec::new();
        for entry in entries {
            let entry = match self.settle(entry) {
                Ok(Settling::Settled(entry)) => entry,
                // What was written lies where nobody can look, and may have been acknowledged.
                Ok(Settling::Gone | Settling::Unfinished) | Err(Refusal::Damaged) => continue,
                Err(refusal) => return Err(refusal),
            };
            let (head, offset) = (entry.slot.meta.head(), entry.slot.word.new_offset());
            // A value that is damaged goes as well, if it is of such a key: a flipped bit that makes it look like one is no reason.
            let begins = || self.key_of(&entry).and_then(|key| key.first().copied());
            if first.is_none_or(|first| begins() == Some(first)) {
                let counted = self.counts_as(head, offset);
                going.push((entry, counted));
            }
        }
        // As for one that is deleted without a tombstone: readers do not believe that it has gone before that is durable.
        for (entry, counted) in &mut going {
            let meta = entry.slot.meta;
            self.recount(meta.fingerprint(), counted.as_ref(), None);
            self.mark(meta.head(), entry.slot.word.new_offset(), true);
            self.index.set_word(entry, Word::GOING);
        }
        if !going.is_empty() {
            self.medium.psync().map_err(|e| log::io(&e))?;
        }
        for (entry, _) in &mut going {
            debug_assert!(!stands(&entry.slot), "it has gone");
            self.index.set_word(entry, Word::FREE);
            self.dirty = true;
        }
        Ok(Reply::Page {
            next: next.filter(|next| *next < 1 << FINGERPRINT_BITS),
            keys: Vec::new(),
            nameless: 0,
        })
    }
}
