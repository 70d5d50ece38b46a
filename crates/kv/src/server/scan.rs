//! Iteration and scrubbing: all entries, in the order of their fingerprints.
//!
//! The order is the same in tables of any size, so a cursor is a fingerprint, and goes on where it was whatever is displaced
//! or resized meanwhile: a key that is there all the time is seen once.

use std::ops::Range;

use remanence_pmem::{JOURNAL_NOTE_LEN, Medium};

use super::Server;
use super::index::{Entry, stands};
use super::mend::{DamageLocation, Fate};
use super::settle::Settling;
use crate::format::HEAD_WORDS;
use crate::format::object::{Object, WRITTEN_FROM};
use crate::format::slot::{FINGERPRINT_BITS, NEIGHBOURHOOD};
use crate::format::superblock::{COPIES, JOURNAL_NOTE, State};
use crate::proto::{Refusal, Reply};

/// The most keys of a page.
const PAGE_MAX: u32 = 1024;
/// Buckets that are looked at together at most, and for one page: nobody is served meanwhile, and a table may be all but empty.
const STRIDE: u64 = 64;
const LOOK_MAX: u64 = 4096;

/// What stands in front of the words that change while a store is served: a copy of the superblock, the root record, the other copy; but not
/// what a file says of its journal, which is each medium's own.
const FIRST_BYTES: [Range<u64>; 3] =
    [0..JOURNAL_NOTE, JOURNAL_NOTE + JOURNAL_NOTE_LEN as u64..COPIES[1], COPIES[1]..HEAD_WORDS];
/// What is no fingerprint, and stands for a copy of the superblock.
const NO_FINGERPRINT: u64 = 1 << FINGERPRINT_BITS;

/// What a scrub has found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Scrubbed {
    /// Objects that were read and verified.
    pub verified: u64,
    /// Damaged objects that were put right: from the copy that cleaning had made, or another member's; in mode `erda` by the
    /// version before. And copies of the superblock that were.
    pub repaired: u64,
    /// Keys whose value is lost.
    pub lost: u64,
    /// Where to go on; `None` at the end.
    pub next: Option<u64>,
}

impl<M: Medium + Clone> Server<M> {
    /// The entries of the buckets from a fingerprint on, until about `limit` are found or many buckets were empty; and where to
    /// go on.
    pub(super) fn entries_from(&self, cursor: u64, limit: usize) -> (Vec<Entry>, Option<u64>) {
        let narrow = self.index.tables[0];
        let mut found: Vec<Entry> = Vec::new();
        let (mut low, mut looked) = (cursor, 0);
        let stride = (limit as u64).clamp(1, STRIDE);
        while low < 1 << FINGERPRINT_BITS && found.len() < limit && looked < LOOK_MAX {
            // The fingerprints of some buckets of the first table.
            let bucket = u128::from((narrow.home(low) + stride).min(narrow.buckets));
            let high = (bucket << FINGERPRINT_BITS).div_ceil(narrow.buckets.into()) as u64;
            looked += stride;
            for table in &self.index.tables {
                let (first, last) = (table.home(low), table.home(high - 1));
                let slots = self.index.slots(*table, first, last - first + NEIGHBOURHOOD);
                found.extend(
                    slots
                        .into_iter()
                        .enumerate()
                        .filter(|(_, slot)| stands(slot) && (low..high).contains(&slot.meta.fingerprint()))
                        .map(|(n, slot)| Entry { table: *table, index: first + n as u64, slot }),
                );
            }
            low = high;
        }
        found.sort_by_key(|entry| entry.slot.meta.fingerprint());
        (found, (low < 1 << FINGERPRINT_BITS).then_some(low))
    }

    pub(super) fn scan(&mut self, now: u64, cursor: u64, limit: u32) -> Result<Reply, Refusal> {
        let (entries, next) = self.entries_from(cursor, limit.clamp(1, PAGE_MAX) as usize);
        let (mut keys, mut nameless) = (Vec::with_capacity(entries.len()), 0);
        // What is damaged is told to those who ask for it, and by a scrub: it has a name, if that can be told.
        let mut damaged =
            |server: &mut Self, entry: &Entry, keys: &mut Vec<Vec<u8>>| match server.key_of(entry) {
                Some(key) => keys.push(key),
                None => {
                    nameless += 1;
                    let at = DamageLocation::Value { fingerprint: entry.slot.meta.fingerprint() };
                    server.found(at, None, Fate::Lost);
                }
            };
        for entry in entries {
            let head = entry.slot.meta.head();
            let offset = match self.settle(entry) {
                Ok(Settling::Settled(entry)) => entry.slot.word.new_offset(),
                Ok(Settling::Gone) => None,
                Ok(Settling::Unfinished) => entry.slot.word.old_offset(),
                Err(Refusal::Damaged) => {
                    damaged(self, &entry, &mut keys);
                    continue;
                }
                Err(other) => return Err(other),
            };
            let Some(offset) = offset else { continue };
            let Ok(bytes) = self.object(head, offset) else {
                damaged(self, &entry, &mut keys);
                continue;
            };
            let object = self.parsed(&bytes, head, offset);
            if !object.header.deleted && !object.header.is_expired(now) {
                keys.push(object.key.to_vec());
            }
        }
        Ok(Reply::Page { next, keys, nameless })
    }

    /// Reads and verifies about `limit` values from a cursor on (0 at first), and repairs what can be repaired.
    ///
    /// # Errors
    /// [`Refusal::Unfinished`]: other members are being asked for what is damaged here, so scrub from the same cursor again. Or the medium
    /// failed.
    pub fn scrub(&mut self, cursor: u64, limit: usize) -> Result<Scrubbed, Refusal> {
        self.scrub_with(cursor, limit, |_| {})
    }

    /// As [`scrub`](Self::scrub), and says what on the medium is whole: its first bytes, with the superblock, and of each value its object
    /// without the mark, and its chunks.
    ///
    /// # Errors
    /// As for [`scrub`](Self::scrub).
    pub fn scrub_with(
        &mut self,
        cursor: u64,
        limit: usize,
        mut sound: impl FnMut(Range<u64>),
    ) -> Result<Scrubbed, Refusal> {
        let (entries, next) = self.entries_from(cursor, limit.max(1));
        let mut scrubbed = Scrubbed { next, ..Scrubbed::default() };
        // What was repaired when this was begun is whole by now.
        let (from, mut repaired) = std::mem::take(&mut self.scrubbing);
        if from != cursor {
            repaired.clear();
        }
        if cursor == 0 {
            repaired.extend(self.put_superblock_right()?.into_iter().map(|copy| NO_FINGERPRINT + copy));
            scrubbed.repaired = repaired.range(NO_FINGERPRINT..).count() as u64;
            FIRST_BYTES.into_iter().for_each(&mut sound);
        }
        let mut unfinished = false;
        for entry in entries {
            let at = DamageLocation::Value { fingerprint: entry.slot.meta.fingerprint() };
            let entry = match self.settle(entry) {
                Ok(Settling::Settled(entry)) => entry,
                Ok(Settling::Gone | Settling::Unfinished) => continue,
                Err(Refusal::Damaged) => {
                    scrubbed.lost += 1;
                    let key = self.key_of(&entry);
                    self.found(at, key, Fate::Lost);
                    continue;
                }
                Err(other) => return Err(other),
            };
            let before = self.stats.repaired;
            match self.verified(entry) {
                Ok(entry) => {
                    let fingerprint = entry.slot.meta.fingerprint();
                    if self.stats.repaired != before {
                        repaired.insert(fingerprint);
                    }
                    let was_whole = !repaired.contains(&fingerprint);
                    *if was_whole { &mut scrubbed.verified } else { &mut scrubbed.repaired } += 1;
                    self.extents(&entry).into_iter().for_each(&mut sound);
                }
                Err(Refusal::Damaged) => scrubbed.lost += 1,
                // Those behind it are asked for together with it.
                Err(Refusal::Unfinished) => unfinished = true,
                Err(other) => return Err(other),
            }
        }
        self.sync()?;
        if unfinished {
            self.scrubbing = (cursor, repaired);
            return Err(Refusal::Unfinished);
        }
        Ok(scrubbed)
    }

    /// Has the medium say what the store is as it said when that was opened. Which copies of the superblock did not.
    fn put_superblock_right(&mut self) -> Result<Vec<u64>, Refusal> {
        let right = self.superblock.emit();
        let is_wrong = |at: u64| {
            let mut found = vec![0; right.len()];
            self.medium.read(at, &mut found);
            found != right
        };
        let wrong: Vec<u64> =
            (0..).zip(COPIES).filter(|(_, at)| is_wrong(*at)).map(|(copy, _)| copy).collect();
        if !wrong.is_empty() {
            self.superblock.write(&self.medium, State::Current).map_err(|e| super::log::io(&e))?;
            wrong
                .iter()
                .for_each(|copy| self.found(DamageLocation::Superblock(*copy as usize), None, Fate::Mended));
        }
        Ok(wrong)
    }

    /// Where the object of a settled entry lies, without its mark, and its chunks.
    fn extents(&self, entry: &Entry) -> Vec<Range<u64>> {
        let head = entry.slot.meta.head();
        let object = entry.slot.word.new_offset().and_then(|offset| {
            let (at, _) = self.place(head, offset)?;
            Some((at, self.object(head, offset).ok()?))
        });
        let Some((at, bytes)) = object else { return Vec::new() };
        let chained = Object::split(&bytes).ok().filter(|object| object.header.chained);
        let chunks = chained.and_then(|object| object.chunks()).map_or(Vec::new(), |(_, chunks)| chunks);
        let places = chunks.iter().filter_map(|chunk| {
            let at = self.log.locate(head, chunk.offset)?.at;
            Some(at..at + u64::from(chunk.len))
        });
        std::iter::once(at + WRITTEN_FROM as u64..at + bytes.len() as u64).chain(places).collect()
    }

    /// What the medium has in a range now is durable, wherever this medium keeps it, on return: without storing it again, as
    /// clients may be writing there.
    ///
    /// # Errors
    /// The medium failed.
    pub fn persist(&mut self, range: Range<u64>) -> Result<(), Refusal> {
        self.medium.pwb(range);
        self.sync_now()
    }
}
