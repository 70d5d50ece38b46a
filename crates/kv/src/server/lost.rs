//! Entries whose both words are 0. No entry of a [marked](RegionWord::MARKED) table ever is, so a sector or a page of it was lost,
//! with what the entries named.
//!
//! Their objects are still in the logs. Of the keys that may have had such an entry, and have none, the newest object
//! gets one: a write that was acknowledged is there, and one that was deleted has a newer object that says so, as long as
//! an older one is there: cleaning frees the regions of a log together. What was never used is marked again.
//!
//! The newest may be damaged as well. In mode `durable` it gets the entry all the same, so that the key is an error and no older value: what is not
//! whole may also be a write that never ended, and nothing is left that would tell. Whose it is, its header and its key say: with the one bit
//! of them flipped back that makes it whole, or, where there is none such, as they stand there.
//!
//! A table of a program that made it of zeros is marked when it is opened: a crash meanwhile leaves it as it was, as the mark of
//! the table comes last.

use std::collections::{BTreeMap, BTreeSet};

use remanence_pmem::Medium;

use super::index::{Entry, store};
use super::mend::{DamageLocation, Fate, object_at};
use super::{Mode, OpenError, Server};
use crate::format::object::{EPOCH_AT, HEADER_LEN, WRITTEN_FROM};
use crate::format::slot::{NEIGHBOURHOOD, NEVER, SLOT_LEN, TableAt, fingerprint};
use crate::format::{
    Header, Hint, Meta, Object, ObjectAddress, Offset, RegionKind, RegionWord, Slot, UNIT, Word, get_u32,
    hash,
};

/// The entries of tables that are zeros.
#[derive(Debug, Default)]
pub(super) struct Zeros(Vec<(TableAt, BTreeSet<u64>)>);

impl Zeros {
    pub(super) fn note(&mut self, table: TableAt, index: u64, slot: &Slot) {
        if self.0.last().is_none_or(|(last, _)| *last != table) {
            self.0.push((table, BTreeSet::new()));
        }
        if let ((_, zeros), 0) = (self.0.last_mut().expect("it was put there"), slot.meta.0) {
            zeros.insert(index);
        }
    }

    /// The first of them that a key may have had.
    fn of(&self, fingerprint: u64) -> Option<(TableAt, u64)> {
        self.0.iter().find_map(|(table, zeros)| {
            let home = table.home(fingerprint);
            zeros.range(home..home + NEIGHBOURHOOD).next().map(|index| (*table, *index))
        })
    }

    fn take(&mut self, table: TableAt, index: u64) {
        if let Some((_, zeros)) = self.0.iter_mut().find(|(other, _)| *other == table) {
            zeros.remove(&index);
        }
    }
}

/// Bytes of the longest object that is looked for behind a flipped bit.
const MENDED_MAX: u64 = 64 << 10;

/// The newest object of a key.
struct Newest {
    version: u64,
    epoch: u32,
    head: u8,
    offset: Offset,
    hint: Hint,
    deleted: bool,
    /// It is not whole.
    damaged: bool,
}

impl Newest {
    /// Whether this one is newer. Of one version cleaning makes copies, of which a whole one is as good as any.
    fn is_after(&self, other: &Self) -> bool {
        match (self.damaged, other.damaged) {
            (true, _) => self.version > other.version,
            (false, true) => self.version >= other.version,
            (false, false) => (self.version, self.epoch) > (other.version, other.epoch),
        }
    }
}

impl<M: Medium + Clone> Server<M> {
    /// Gives keys back what they had of these entries, and marks the others.
    pub(super) fn fill(&mut self, zeros: &Zeros) -> Result<(), OpenError> {
        let mut unmarked = Vec::new();
        let mut lost = Zeros::default();
        for (table, zeros) in &zeros.0 {
            let region = self.log.geometry.region_at(table.at).expect("a table begins with a region");
            let word = self.log.regions[region as usize].word;
            if word.link != RegionWord::MARKED {
                unmarked.push((region, RegionWord { link: RegionWord::MARKED, ..word }));
                zeros.iter().for_each(|index| self.never(*table, *index));
            } else if !zeros.is_empty() {
                lost.0.push((*table, zeros.clone()));
            }
        }
        if !lost.0.is_empty() {
            self.give_back(lost)?;
        }
        if !unmarked.is_empty() {
            self.sync_now()?;
            self.log.set_all(&unmarked)?;
        }
        Ok(())
    }

    fn never(&self, table: TableAt, index: u64) {
        let at = table.slot(index);
        store(&self.medium, at, NEVER);
        self.medium.pwb(at..at + SLOT_LEN);
    }

    fn give_back(&mut self, mut lost: Zeros) -> Result<(), OpenError> {
        // By their homes, so that the first place that is left serves the first of those who can have it.
        for ((fingerprint, key), newest) in self.newest_of(&lost) {
            let mut others = self.index.candidates(fingerprint).into_iter();
            let has = others.any(|entry| self.key_of(&entry).is_none_or(|of| of == key));
            if newest.deleted && !newest.damaged || has {
                continue;
            }
            let Some((table, index)) = lost.of(fingerprint) else {
                self.found(DamageLocation::Value { fingerprint }, Some(key), Fate::Lost);
                continue;
            };
            lost.take(table, index);
            let meta = Meta::new(fingerprint, newest.head, newest.hint);
            let mut entry = Entry { table, index, slot: Slot { meta, word: Word::FREE } };
            // The word first, and not as an entry is created: a crash in between leaves one that says by its object whose it is,
            // and not one that looks free.
            self.index.used += 1;
            self.index.set_word(&mut entry, Word::FREE.update(newest.offset).settled());
            self.medium.pfence().map_err(|e| OpenError::Medium(e.to_string()))?;
            self.index.set_meta(&mut entry, meta);
            self.remember(&entry);
            let fate = if newest.damaged { Fate::Lost } else { Fate::Mended };
            self.found(DamageLocation::Entry(entry.at()), Some(key), fate);
        }
        // Nothing is to be found out about the others any more.
        self.sync_now()?;
        for (table, zeros) in lost.0 {
            for index in zeros {
                self.never(table, index);
                self.found(DamageLocation::Entry(table.slot(index)), None, Fate::Mended);
            }
        }
        Ok(self.sync_now()?)
    }

    /// The newest object of each key that may have had one of these entries.
    fn newest_of(&self, lost: &Zeros) -> BTreeMap<(u64, Vec<u8>), Newest> {
        let mut all: BTreeMap<(u64, Vec<u8>), Newest> = BTreeMap::new();
        for (region, word) in self.log.regions.iter().map(|region| region.word).enumerate() {
            let mut unit = 0;
            while word.kind == RegionKind::Log && unit < self.log.geometry.region_units() {
                let place = (region as u32, unit);
                let link = std::iter::once(word.link);
                let found = object_at(&self.medium, &self.superblock, place, link, &mut 0)
                    .filter(|(known, _)| known.head == word.head && known.header.epoch == word.epoch);
                let (header, key, damaged) = match found {
                    Some((known, bytes)) => {
                        let key = bytes[HEADER_LEN..HEADER_LEN + usize::from(known.header.key_len)].to_vec();
                        (known.header, key, false)
                    }
                    None => match self.damaged_at(place, &word) {
                        Some((header, key)) => (header, key, true),
                        None => {
                            unit += 1;
                            continue;
                        }
                    },
                };
                // How long one that is damaged is need not be true.
                unit += if damaged { 1 } else { header.len().div_ceil(UNIT) as u32 };
                let fingerprint = fingerprint(hash(self.superblock.salt, &key));
                let newest = Newest {
                    version: header.version,
                    epoch: header.epoch,
                    head: word.head,
                    offset: self.log.geometry.join(word.link, place.1),
                    hint: if header.chained { Hint::CHAINED } else { Hint::of(header.len()) },
                    deleted: header.deleted,
                    damaged,
                };
                let had = all.get(&(fingerprint, key.clone()));
                if lost.of(fingerprint).is_some() && had.is_none_or(|had| newest.is_after(had)) {
                    all.insert((fingerprint, key), newest);
                }
            }
        }
        all
    }

    /// The header and the key of an object that was written at a unit of a log's region, and is not whole.
    fn damaged_at(&self, (region, unit): (u32, u32), word: &RegionWord) -> Option<(Header, Vec<u8>)> {
        let geometry = &self.log.geometry;
        let at = geometry.region(region) + u64::from(unit) * UNIT;
        let room = geometry.segment_len - u64::from(unit) * UNIT % geometry.segment_len;
        let mut head = [0; HEADER_LEN];
        self.medium.read(at, &mut head);
        let is_of_region = (get_u32(&head, EPOCH_AT) ^ word.epoch).count_ones() <= 1;
        // In mode `erda` a key may go back to the version before.
        if self.options.mode == Mode::Erda
            || !is_of_region
            || head[WRITTEN_FROM..].iter().all(|byte| *byte == 0)
        {
            return None;
        }
        let mut bytes = vec![0; room.min(MENDED_MAX) as usize];
        self.medium.read(at, &mut bytes);
        let stands = Header::parse(&bytes).ok();
        let end = HEADER_LEN + stands.map_or(0, |header| usize::from(header.key_len));
        let salt = self.superblock.salt;
        let place = ObjectAddress {
            salt,
            head: word.head,
            offset: geometry.join(word.link, unit),
            epoch: word.epoch,
        };
        for bit in WRITTEN_FROM * 8..end.min(bytes.len()) * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            if let Ok(object) = Object::parse(&bytes, &place) {
                return Some((object.header, object.key.to_vec()));
            }
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        let header = stands.filter(|header| header.epoch == word.epoch && header.len() <= room)?;
        let key = bytes.get(HEADER_LEN..end)?.to_vec();
        (geometry.head_of(fingerprint(hash(salt, &key))) == word.head).then_some((header, key))
    }
}
