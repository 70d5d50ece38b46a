//! What opening finds damaged: put right where what is beside it tells what it was, and otherwise left alone and named, while the
//! rest is served.
//!
//! Directory, head and meta words have check bits, which put one flipped bit right. Beyond that an object says where it lies: its
//! checksum covers the head, the offset and the region's epoch, and its key gives the fingerprint. So one object tells what its
//! region is, and what its entry was. An atomic word has a parity bit only: of the words that are one bit away, those count
//! that name a whole object of the entry's fingerprint, and of these the one with the highest version.

use std::collections::BTreeMap;
use std::fmt;

use remanence_pmem::Medium;

use super::index::{Entry, load, store};
use super::{OpenError, Server};
use crate::format::object::HEADER_LEN;
use crate::format::slot::{FINGERPRINT_BITS, NEIGHBOURHOOD, TableAt, fingerprint};
use crate::format::{
    Geometry, HEAD_WORDS, HEADS_MAX, HeadWord, Header, Hint, KEY_MAX, Meta, Object, ObjectAddress, Offset,
    RegionKind, RegionWord, Slot, Superblock, UNIT, Word, hash,
};

/// Findings that are kept at most.
const FINDINGS_MAX: usize = 4096;
/// Links that are tried for the objects of a region whose word is lost.
const TRIES_MAX: u64 = 1 << 20;

/// Something that was found damaged.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The word or the value that was damaged.
    pub at: DamageLocation,
    /// The key whose value it concerns, if that is known.
    pub key: Option<Vec<u8>>,
    /// What became of it.
    pub fate: Fate,
}

/// Where damage was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DamageLocation {
    /// A copy of the superblock: 0 is the one at the start.
    Superblock(usize),
    /// One of the two slots of the root record.
    Root,
    /// The word of this head.
    Head(u16),
    /// The directory's word of this region.
    Region(u32),
    /// An entry: the byte of the medium where it is.
    Entry(u64),
    /// The value of an entry.
    Value {
        /// The fingerprint of the entry that names it.
        fingerprint: u64,
    },
}

/// What became of something damaged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It is as it was before.
    Mended,
    /// The key went back to the version before, which mode `erda` allows.
    Older,
    /// It is left alone, and what it stood for is not served.
    Lost,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.at {
            DamageLocation::Superblock(copy) => write!(f, "copy {copy} of the superblock")?,
            DamageLocation::Root => write!(f, "a copy of the root record")?,
            DamageLocation::Head(head) => write!(f, "the word of head {head}")?,
            DamageLocation::Region(region) => write!(f, "the directory's word of region {region}")?,
            DamageLocation::Entry(at) => write!(f, "the entry at byte {at}")?,
            DamageLocation::Value { fingerprint } => {
                write!(f, "the value with fingerprint {fingerprint:012x}")?
            }
        }
        if let Some(key) = &self.key {
            write!(f, ", of key {}", shown(key))?;
        }
        f.write_str(match self.fate {
            Fate::Mended => ": put right",
            Fate::Older => ": the version before takes its place",
            Fate::Lost => ": lost",
        })
    }
}

/// A key as a person reads it: text, or hexadecimal digits where it is none.
fn shown(key: &[u8]) -> String {
    match std::str::from_utf8(key) {
        Ok(text) if !text.chars().any(char::is_control) => format!("{text:?}"),
        _ => format!("0x{}", key.iter().map(|byte| format!("{byte:02x}")).collect::<String>()),
    }
}

/// What an object that stands at a byte of a region says of the region and of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Known {
    /// The head in whose log it stands.
    pub head: u8,
    /// Where it stands in that log.
    pub offset: Offset,
    /// What the object says first.
    pub header: Header,
}

/// The object at a unit of a region, if there is one: its checksum says in which link of which head's log. `links` are to be
/// tried; returns how many were.
pub fn object_at(
    medium: &impl Medium,
    superblock: &Superblock,
    (region, unit): (u32, u32),
    links: impl Iterator<Item = u16>,
    tries: &mut u64,
) -> Option<(Known, Vec<u8>)> {
    let geometry = superblock.geometry;
    let at = geometry.region(region) + u64::from(unit) * UNIT;
    let room = geometry.segment_len - u64::from(unit) * UNIT % geometry.segment_len;
    let mut bytes = [0; HEADER_LEN];
    medium.read(at, &mut bytes);
    let header = Header::parse(&bytes).ok().filter(|header| header.len() <= room)?;
    let mut bytes = vec![0; header.len() as usize];
    medium.read(at, &mut bytes);
    let key = &bytes[HEADER_LEN..HEADER_LEN + usize::from(header.key_len)];
    let head = geometry.head_of(fingerprint(hash(superblock.salt, key)));
    for link in links {
        *tries += 1;
        let offset = geometry.join(link, unit);
        let place = ObjectAddress { salt: superblock.salt, head, offset, epoch: header.epoch };
        if Object::parse(&bytes, &place).is_ok() {
            return Some((Known { head, offset, header }, bytes));
        }
    }
    None
}

/// What a region is by the first object that is found in it.
pub(crate) fn identify(medium: &impl Medium, superblock: &Superblock, region: u32) -> Option<RegionWord> {
    let geometry = superblock.geometry;
    let mut tries = 0;
    (0..geometry.region_units()).find_map(|unit| {
        if tries > TRIES_MAX {
            return None;
        }
        let links = (0..geometry.links()).map(|link| link as u16);
        let (known, _) = object_at(medium, superblock, (region, unit), links, &mut tries)?;
        let (link, _) = geometry.split(known.offset);
        Some(RegionWord { kind: RegionKind::Log, head: known.head, link, epoch: known.header.epoch })
    })
}

/// Which regions are parts of these tables.
pub(crate) fn in_tables(geometry: &Geometry, tables: &[TableAt], region: u32) -> bool {
    let at = geometry.region(region);
    tables.iter().any(|table| (table.at..table.at + TableAt::bytes(table.buckets)).contains(&at))
}

/// Looks through directory and head words, and puts right what can be.
pub(super) fn words(medium: &impl Medium, superblock: &Superblock, tables: &[TableAt]) -> Vec<Finding> {
    let geometry = superblock.geometry;
    let mut findings = Vec::new();
    let mut links: BTreeMap<(u8, u16), (u32, u32)> = BTreeMap::new();
    for region in 0..geometry.regions() {
        let at = geometry.directory(region);
        let table = in_tables(&geometry, tables, region);
        let fair = |word: &RegionWord| match word.kind {
            RegionKind::Log => {
                let known = u16::from(word.head) < geometry.heads && u32::from(word.link) < geometry.links();
                known && !table && !links.contains_key(&(word.head, word.link))
            }
            RegionKind::Table => true,
            RegionKind::Free => !table,
        };
        let stored = load(medium, at);
        let word = match RegionWord::check(stored) {
            Some((word, mended)) if fair(&word) => Some((word, mended)),
            _ if table => Some((RegionWord { kind: RegionKind::Table, epoch: 0, ..RegionWord::FREE }, true)),
            _ => identify(medium, superblock, region).filter(fair).map(|word| (word, true)),
        };
        match word {
            Some((word, mended)) => {
                if word.kind == RegionKind::Log {
                    links.insert((word.head, word.link), (word.epoch, region));
                }
                if mended {
                    store(medium, at, word.emit());
                    medium.pwb(at..at + 8);
                }
                if !mended {
                    continue;
                }
                findings.push(Finding { at: DamageLocation::Region(region), key: None, fate: Fate::Mended });
            }
            None => {
                // Not free and no link of a log: what lies there is not touched. A word that says something impossible would
                // do so at every later look as well, and is made one that says nothing.
                if RegionWord::parse(stored).is_some() {
                    store(medium, at, 0);
                    medium.pwb(at..at + 8);
                }
                findings.push(Finding { at: DamageLocation::Region(region), key: None, fate: Fate::Lost });
            }
        }
    }
    for head in 0..HEADS_MAX {
        let at = HEAD_WORDS + 8 * u64::from(head);
        let fair = |word: &Option<HeadWord>| match word {
            Some(word) => {
                head < geometry.heads
                    && u32::from(word.link) < geometry.links()
                    && u64::from(word.segment) < geometry.region_len / geometry.segment_len
            }
            None => true,
        };
        let word = match HeadWord::check(load(medium, at)) {
            Some((word, false)) if fair(&word) => continue,
            Some((word, true)) if fair(&word) => word,
            // All of the youngest link may have been handed out.
            _ => links
                .range((head as u8, 0)..=(head as u8, u16::MAX))
                .filter(|_| head < geometry.heads)
                .max_by_key(|(_, (epoch, _))| *epoch)
                .map(|((_, link), _)| HeadWord {
                    link: *link,
                    segment: (geometry.region_len / geometry.segment_len - 1) as u32,
                }),
        };
        store(medium, at, HeadWord::emit(word));
        medium.pwb(at..at + 8);
        findings.push(Finding { at: DamageLocation::Head(head), key: None, fate: Fate::Mended });
    }
    findings
}

impl<M: Medium + Clone> Server<M> {
    /// What was found damaged when the store was opened, and by scrubs since; the first thousands of it.
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    pub(super) fn found(&mut self, at: DamageLocation, key: Option<Vec<u8>>, fate: Fate) {
        let finding = Finding { at, key, fate };
        if self.findings.len() < FINDINGS_MAX && !self.findings.contains(&finding) {
            self.findings.push(finding);
        }
    }

    /// The key and the version of the whole object there.
    fn named_at(&self, head: u8, offset: Offset) -> Option<(Vec<u8>, Header)> {
        let (bytes, _) = self.whole(head, offset).ok()?;
        let object = self.parsed(&bytes, head, offset);
        Some((object.key.to_vec(), object.header))
    }

    /// The key of an entry, though its objects may be damaged: what stands in a whole one, or bytes that have its fingerprint,
    /// after one bit of them is put right if need be.
    pub(super) fn key_of(&self, entry: &Entry) -> Option<Vec<u8>> {
        let (head, word) = (entry.slot.meta.head(), entry.slot.word);
        [word.new_offset(), word.old_offset()].into_iter().flatten().find_map(|offset| {
            if let Ok(bytes) = self.object(head, offset) {
                return Some(self.parsed(&bytes, head, offset).key.to_vec());
            }
            let (at, _) = self.place(head, offset)?;
            let room = self.log.left_in_segment(offset);
            let mut bytes = vec![0; room.min((HEADER_LEN + KEY_MAX) as u64) as usize];
            self.medium.read(at, &mut bytes);
            let (header, behind) = bytes.split_at_mut_checked(HEADER_LEN)?;
            let is_it = |key: &[u8]| self.fingerprint(key) == Ok(entry.slot.meta.fingerprint());
            // Nothing of the header is believed, so any length may be the key's.
            let whole = (1..=behind.len()).find(|len| is_it(&behind[..*len]));
            if let Some(len) = whole {
                return Some(behind[..len].to_vec());
            }
            let key = behind.get_mut(..usize::from(Header::parse(header).ok()?.key_len))?;
            (0..key.len() * 8).find_map(|bit| {
                key[bit / 8] ^= 1 << (bit % 8);
                let found = is_it(key).then(|| key.to_vec());
                key[bit / 8] ^= 1 << (bit % 8);
                found
            })
        })
    }

    /// An entry that is not free as it was stored, if it can be believed, or be put right. Otherwise it stays as it is, or is
    /// found to be free.
    pub(super) fn believed(
        &mut self,
        table: TableAt,
        index: u64,
        stored: Slot,
    ) -> Result<Option<Entry>, OpenError> {
        let heads = self.index.heads;
        let fair = |meta: &Meta| {
            let home = table.home(meta.fingerprint());
            (home..home + NEIGHBOURHOOD).contains(&index)
        };
        let meta = Meta::check(stored.meta.0, heads).filter(|(meta, _)| fair(meta));
        let entry = |meta| Entry { table, index, slot: Slot { meta, word: stored.word } };
        let at = DamageLocation::Entry(table.slot(index));
        let goes = stored.word.is_sound() && stored.word.new_offset().is_none();
        match meta {
            // It was being made, and perhaps has no meta word yet, or was going.
            _ if goes => Ok(Some(entry(Meta::loaded(stored.meta.0, heads)))),
            Some((meta, false)) if stored.word.is_sound() => Ok(Some(entry(meta))),
            Some((meta, true)) if stored.word.is_sound() => {
                let mut entry = entry(meta);
                self.index.set_meta(&mut entry, meta);
                let key = self.key_of(&entry);
                self.found(at, key, Fate::Mended);
                Ok(Some(entry))
            }
            Some((meta, _)) => self.word_mended(entry(meta)),
            None => {
                let Some(meta) = self.meta_of(stored, fair) else {
                    self.found(at, None, Fate::Lost);
                    return Ok(None);
                };
                let mut entry = entry(meta);
                self.index.set_meta(&mut entry, meta);
                let key = self.key_of(&entry);
                self.found(at, key, Fate::Mended);
                Ok(Some(entry))
            }
        }
    }

    /// What the meta word of an entry with this atomic word is, by its objects. Offsets are of any head: of what they name, if
    /// that is several objects, the one whose meta word is most like the stored one.
    fn meta_of(&self, stored: Slot, fair: impl Fn(&Meta) -> bool) -> Option<Meta> {
        let places = [stored.word.new_offset(), stored.word.old_offset()].into_iter().flatten();
        let heads = 0..self.index.heads;
        places
            .flat_map(|offset| heads.clone().map(move |head| (head as u8, offset)))
            .filter_map(|(head, offset)| {
                let (key, header) = self.named_at(head, offset)?;
                let fingerprint = self.fingerprint(&key).ok()?;
                let hint = if header.chained { Hint::CHAINED } else { Hint::of(header.len()) };
                (self.log.geometry.head_of(fingerprint) == head).then(|| Meta::new(fingerprint, head, hint))
            })
            .filter(fair)
            .min_by_key(|meta| (meta.seal() ^ stored.meta.0).count_ones())
    }

    /// An entry whose atomic word has a wrong parity.
    fn word_mended(&mut self, mut entry: Entry) -> Result<Option<Entry>, OpenError> {
        let at = DamageLocation::Entry(entry.at());
        let (meta, flipped) = (entry.slot.meta, entry.slot.word);
        let named = |offset: Option<Offset>| {
            let (key, header) = self.named_at(meta.head(), offset?)?;
            (self.fingerprint(&key) == Ok(meta.fingerprint())).then_some((header.version, key))
        };
        let free = flipped.neighbours().any(|word| word.is_free() || word == Word::GOING);
        let best = flipped
            .neighbours()
            .filter_map(|word| {
                let (new, old) = (named(word.new_offset()), named(word.old_offset()));
                let before = old.as_ref().map_or(0, |(version, _)| *version);
                // Pending, the object may not be there.
                let (version, key) = match new {
                    Some(new) => new,
                    None => old.filter(|_| word.is_pending())?,
                };
                Some(((version, before), word, key))
            })
            .max_by_key(|(versions, word, _)| (*versions, word.0));
        match (best, free) {
            (Some((_, word, key)), false) => {
                self.index.set_word(&mut entry, word);
                self.found(at, Some(key), Fate::Mended);
                Ok(Some(entry))
            }
            // A free entry may have any meta word, and one of a key that went may have had this bit.
            (Some((_, _, key)), true) => {
                self.found(at, Some(key), Fate::Lost);
                Ok(None)
            }
            (None, true) => {
                self.index.set_word(&mut entry, Word::FREE);
                self.found(at, None, Fate::Mended);
                Ok(None)
            }
            (None, false) => {
                self.found(at, None, Fate::Lost);
                Ok(None)
            }
        }
    }
}

const _: () = assert!(FINGERPRINT_BITS == 48);
