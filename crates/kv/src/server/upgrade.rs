//! From format 1 to the one of now, when a store is opened: in place, and again from the start where a crash cut it short.
//!
//! First every atomic word gets its new offset first, which format 1 has as well; that is durable before the superblock says
//! that words get their check bits. These depend on the rest of the word alone, so it does not matter which have them already.
//! When all have, durably, the superblock says so. A program that knows format 1 only refuses the store from the second step on.

use std::io;

use remanence_pmem::Medium;

use super::index::{load, store};
use super::mend::in_tables;
use crate::format::object::{HEADER_LEN, Object};
use crate::format::slot::{Hint, Meta, NEIGHBOURHOOD, SLOT_LEN, TableAt, fingerprint};
use crate::format::superblock::State;
use crate::format::{
    Flaw, HEAD_WORDS, HEADS_MAX, ObjectAddress, Offset, RegionKind, RegionWord, Superblock, UNIT, hash, v1,
};

/// Entries between two waits for the medium.
const LOT: u64 = 4096;

/// Brings a store up to the format of now.
pub(super) fn upgrade(
    medium: &impl Medium,
    superblock: &Superblock,
    state: State,
    tables: &[TableAt],
) -> io::Result<()> {
    if state == State::First {
        let regions = regions(medium, superblock);
        entries(medium, tables, |table, index, [meta, word]| {
            // An entry without a version was being made when the store was left, or was going.
            let meta = mended(medium, superblock, &regions, (table, index), [meta, word]).unwrap_or(meta);
            [meta, v1::new_first(word)]
        })?;
        superblock.write(medium, State::Upgrading)?;
    }
    entries(medium, tables, |_, _, [meta, word]| [v1::meta(meta), v1::word(word).0])?;
    for region in 0..superblock.geometry.regions() {
        let in_table = in_tables(&superblock.geometry, tables, region);
        replace(medium, superblock.geometry.directory(region), |word| v1::region(word, in_table));
    }
    for head in 0..u64::from(HEADS_MAX) {
        replace(medium, HEAD_WORDS + 8 * head, v1::head_word);
    }
    medium.psync()?;
    superblock.write(medium, State::Current)
}

fn replace(medium: &impl Medium, at: u64, change: impl FnOnce(u64) -> u64) {
    let had = load(medium, at);
    let new = change(had);
    if new != had {
        store(medium, at, new);
        medium.pwb(at..at + 8);
    }
}

/// Changes all entries that are not free, durably.
fn entries(
    medium: &impl Medium,
    tables: &[TableAt],
    change: impl Fn(TableAt, u64, [u64; 2]) -> [u64; 2],
) -> io::Result<()> {
    for table in tables {
        for index in 0..table.slots() {
            let at = table.slot(index);
            let had = [load(medium, at), load(medium, at + 8)];
            if had[1] != 0 {
                let new = change(*table, index, had);
                // The word last, should it be the meta word that was wrong.
                replace(medium, at, |_| new[0]);
                replace(medium, at + 8, |_| new[1]);
            }
            if index % LOT == LOT - 1 {
                medium.psync()?;
            }
        }
    }
    medium.psync()
}

/// The regions of logs: head, link, and where they are.
type Regions = std::collections::BTreeMap<(u8, u16), (u32, u32)>;

fn regions(medium: &impl Medium, superblock: &Superblock) -> Regions {
    let geometry = superblock.geometry;
    let all = (0..geometry.regions()).map(|region| (region, load(medium, geometry.directory(region))));
    all.filter(|(_, word)| *word as u8 == 1)
        .map(|(region, word)| (((word >> 8) as u8, (word >> 16) as u16), (region, (word >> 32) as u32)))
        .collect()
}

/// The meta word of an entry whose own is where it cannot be, or of another head, by the object that it names: in format 1 one
/// flipped bit of it made the store unusable.
fn mended(
    medium: &impl Medium,
    superblock: &Superblock,
    regions: &Regions,
    (table, index): (TableAt, u64),
    [meta, word]: [u64; 2],
) -> Option<u64> {
    let geometry = superblock.geometry;
    let fits = |fingerprint: u64, head: u8| {
        let home = table.home(fingerprint);
        (home..home + NEIGHBOURHOOD).contains(&index) && head == geometry.head_of(fingerprint)
    };
    if fits(meta >> 16, v1::head(meta)) {
        return None;
    }
    v1::offsets(word).into_iter().flatten().find_map(|offset| {
        (0..geometry.heads).map(|head| head as u8).find_map(|head| {
            let (key, len, chained) = read(medium, superblock, regions, head, offset)?;
            let fingerprint = fingerprint(hash(superblock.salt, &key));
            let hint = if chained { Hint::CHAINED } else { Hint::of(len) };
            fits(fingerprint, head).then(|| Meta::new(fingerprint, head, hint).0)
        })
    })
}

fn read(
    medium: &impl Medium,
    superblock: &Superblock,
    regions: &Regions,
    head: u8,
    offset: Offset,
) -> Option<(Vec<u8>, u64, bool)> {
    let geometry = superblock.geometry;
    let (link, unit) = geometry.split(offset);
    let (region, epoch) = *regions.get(&(head, link))?;
    let at = geometry.region(region) + u64::from(unit) * UNIT;
    let room = geometry.segment_len - u64::from(unit) * UNIT % geometry.segment_len;
    let place = ObjectAddress { salt: superblock.salt, head, offset, epoch };
    let mut bytes = vec![0; HEADER_LEN];
    medium.read(at, &mut bytes);
    if let Err(Flaw::Short(len)) = Object::parse(&bytes, &place)
        && len <= room
    {
        bytes.resize(len as usize, 0);
        medium.read(at, &mut bytes);
    }
    let object = Object::parse(&bytes, &place).ok()?;
    Some((object.key.to_vec(), object.header.len(), object.header.chained))
}

const _: () = assert!(SLOT_LEN == 16 && RegionWord::FREE.kind as u8 == RegionKind::Free as u8);
