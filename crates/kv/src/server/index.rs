//! The hopscotch hash table on the medium, and crash-safe displacement.
//!
//! An entry is created in two steps: its meta word, made durable, and then the atomic word. Until then the entry is free,
//! whatever its meta word says. Where many are created together they are *prepared* first: the meta words, and a word that keeps
//! the place and stands for no version, in any order; then one wait serves all of them. An entry goes in one step: the atomic
//! word becomes 0.
//!
//! Displacement copies an entry to a free one further on, and then clears the first (the order of the paper's hopscotch
//! hashing reversed, which clears nothing before the copy is durable). Entries that move to a larger table do so together, and
//! share the waits between the steps. A crash in between leaves two equal entries, of which
//! recovery clears one. A one-sided reader that looks while the entry moves may read the new place before the copy and the
//! old one after the clearing, and so miss it. That is what the table's count of moves is for: it is raised between the
//! two, so a reader that found nothing looks at the count, the entries and the count again, and believes a miss only if the
//! count did not change.

use std::io;

use remanence_pmem::Medium;

use crate::format::slot::{NEIGHBOURHOOD, NEVER, SLOT_LEN, TableAt};
use crate::format::{Meta, Offset, Slot, UNIT, Word};

/// How far from its home a free entry is looked for, in entries.
const PROBE_MAX: u64 = 1024;

/// An entry, and where it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    pub(super) table: TableAt,
    pub(super) index: u64,
    pub(super) slot: Slot,
}

impl Entry {
    pub(super) const fn at(&self) -> u64 {
        self.table.slot(self.index)
    }
}

/// No free entry can be brought into the neighbourhood.
#[derive(Debug)]
pub(super) struct NoPlace;

pub(super) struct Index<M> {
    pub(super) medium: M,
    /// Heads of the store: an entry's fingerprint says which is its own.
    pub(super) heads: u16,
    /// The table, and while it grows the one that entries move to.
    pub(super) tables: Vec<TableAt>,
    /// Entries that are not free, of all tables.
    pub(super) used: u64,
    /// Entries that were displaced.
    pub(super) moves: u64,
}

/// Whether an entry stands for a version. Otherwise it is free, or its place is kept.
pub(super) fn stands(slot: &Slot) -> bool {
    !slot.word.is_free() && slot.word != Word::GOING
}

pub(super) fn load(medium: &impl Medium, at: u64) -> u64 {
    u64::from_le(medium.load_u64(at))
}

pub(super) fn store(medium: &impl Medium, at: u64, value: u64) {
    medium.store_u64(at, value.to_le());
}

impl<M: Medium> Index<M> {
    pub(super) fn slots(&self, table: TableAt, first: u64, count: u64) -> Vec<Slot> {
        self.stored(table, first, count).into_iter().map(|slot| slot.of(self.heads)).collect()
    }

    /// The same, their meta words as they are stored.
    pub(super) fn stored(&self, table: TableAt, first: u64, count: u64) -> Vec<Slot> {
        let count = count.min(table.slots().saturating_sub(first));
        let mut bytes = vec![0; (count * SLOT_LEN) as usize];
        self.medium.read(table.slot(first), &mut bytes);
        Slot::parse_all(&bytes).collect()
    }

    /// The entries of one table that stand for a version and have this fingerprint.
    pub(super) fn matching(&self, table: TableAt, fingerprint: u64) -> Vec<Entry> {
        let home = table.home(fingerprint);
        let mut bytes = [0; (NEIGHBOURHOOD * SLOT_LEN) as usize];
        self.medium.read(table.slot(home), &mut bytes);
        Slot::parse_all(&bytes)
            .enumerate()
            .filter(|(_, slot)| stands(slot) && slot.meta.fingerprint() == fingerprint)
            .map(|(n, slot)| Entry { table, index: home + n as u64, slot: slot.of(self.heads) })
            .collect()
    }

    /// The same of all tables, in the order in which entries move between them.
    pub(super) fn candidates(&self, fingerprint: u64) -> Vec<Entry> {
        match self.tables[..] {
            [table] => self.matching(table, fingerprint),
            _ => self.tables.iter().flat_map(|table| self.matching(*table, fingerprint)).collect(),
        }
    }

    /// The entry one of whose versions lies there.
    pub(super) fn at_place(&self, fingerprint: u64, head: u8, offset: Offset) -> Option<Entry> {
        self.candidates(fingerprint).into_iter().find(|entry| {
            let word = entry.slot.word;
            entry.slot.meta.head() == head && [word.new_offset(), word.old_offset()].contains(&Some(offset))
        })
    }

    /// Stores the word of an entry and asks for its write-back.
    pub(super) fn set_word(&mut self, entry: &mut Entry, word: Word) {
        if word.is_free() {
            self.used = self.used.saturating_sub(1);
        }
        entry.slot.word = word;
        store(&self.medium, entry.at() + 8, word.0);
        self.medium.pwb(entry.at()..entry.at() + SLOT_LEN);
    }

    /// Stores the meta word of an entry and asks for its write-back.
    pub(super) fn set_meta(&self, entry: &mut Entry, meta: Meta) {
        entry.slot.meta = meta;
        store(&self.medium, entry.at(), meta.seal());
        self.medium.pwb(entry.at()..entry.at() + SLOT_LEN);
    }

    /// A new entry, durable as far as a fence goes before its word.
    pub(super) fn create(&mut self, at: Entry, meta: Meta, word: Word) -> io::Result<Entry> {
        let mut entry = at;
        self.set_meta(&mut entry, meta);
        self.medium.pfence()?;
        self.used += 1;
        self.set_word(&mut entry, word);
        Ok(entry)
    }

    /// Keeps a free entry for a key. A wait for the medium must come before [`name_prepared`](Self::name_prepared).
    pub(super) fn prepare(&mut self, at: Entry, meta: Meta) -> Entry {
        let mut entry = at;
        self.set_meta(&mut entry, meta);
        self.used += 1;
        self.set_word(&mut entry, Word::GOING);
        entry
    }

    /// The second step for an entry that was prepared.
    pub(super) fn name_prepared(&mut self, mut entry: Entry, meta: Meta, word: Word) -> Entry {
        debug_assert_eq!((entry.slot.meta, entry.slot.word), (meta, Word::GOING), "as it was prepared");
        self.set_word(&mut entry, word);
        entry
    }

    /// Finds a free entry in the neighbourhood of a fingerprint, and displaces others until there is one.
    pub(super) fn make_room(
        &mut self,
        table: TableAt,
        fingerprint: u64,
    ) -> io::Result<Result<Entry, NoPlace>> {
        let home = table.home(fingerprint);
        let Some(mut free) = self.first_free(table, home) else { return Ok(Err(NoPlace)) };
        while free - home >= NEIGHBOURHOOD {
            let first = free + 1 - NEIGHBOURHOOD;
            let slots = self.slots(table, first, NEIGHBOURHOOD - 1);
            // The furthest one that may go there: fewest steps.
            let movable = slots.iter().enumerate().find(|(_, slot)| {
                let distance = free.checked_sub(table.home(slot.meta.fingerprint()));
                // Who keeps a place relies on it.
                stands(slot) && distance.is_some_and(|distance| distance < NEIGHBOURHOOD)
            });
            let Some((n, slot)) = movable else { return Ok(Err(NoPlace)) };
            let from = Entry { table, index: first + n as u64, slot: *slot };
            self.displace(from, free)?;
            free = from.index;
        }
        let slot = Slot { meta: Meta(0), word: Word::FREE };
        Ok(Ok(Entry { table, index: free, slot }))
    }

    fn first_free(&self, table: TableAt, home: u64) -> Option<u64> {
        let mut at = home;
        while at < (home + PROBE_MAX).min(table.slots()) {
            let slots = self.slots(table, at, NEIGHBOURHOOD);
            if let Some(n) = slots.iter().position(|slot| slot.word.is_free()) {
                return Some(at + n as u64);
            }
            at += NEIGHBOURHOOD;
        }
        None
    }

    fn displace(&mut self, from: Entry, to: u64) -> io::Result<()> {
        let free = Entry { index: to, slot: Slot { meta: Meta(0), word: Word::FREE }, ..from };
        self.move_entry(from, free)
    }

    /// Copies an entry to a free one, of the same table or another, and clears it.
    pub(super) fn move_entry(&mut self, mut from: Entry, to: Entry) -> io::Result<()> {
        self.create(to, from.slot.meta, from.slot.word)?;
        self.medium.psync()?;
        let count = load(&self.medium, from.table.at).wrapping_add(1);
        store(&self.medium, from.table.at, count);
        self.moves += 1;
        self.set_word(&mut from, Word::FREE);
        // Whoever takes the cleared entry next stores its meta word first, which must not meet the old atomic word.
        self.medium.pfence()
    }

    /// Names entries that were [prepared](Self::prepare) as copies of others, and clears those: three waits, however many they
    /// are. Between the second and the third both are there, equal, and nothing else may be stored.
    pub(super) fn move_together(&mut self, moving: &mut [(Entry, Entry)]) -> io::Result<()> {
        let Some((first, _)) = moving.first() else { return Ok(()) };
        let table = first.table;
        self.medium.pfence()?;
        for (from, to) in &mut *moving {
            self.set_word(to, from.slot.word);
        }
        self.medium.psync()?;
        let count = load(&self.medium, table.at).wrapping_add(moving.len() as u64);
        store(&self.medium, table.at, count);
        self.moves += moving.len() as u64;
        for (from, _) in moving {
            self.set_word(from, Word::FREE);
        }
        // A copy that changes from here on must not meet what it was copied from.
        self.medium.pfence()
    }

    /// Whether the table should grow before it must.
    pub(super) fn is_crowded(&self) -> bool {
        let slots = self.tables[0].slots();
        self.tables.len() == 1 && self.used * 100 > slots * filled(slots)
    }
}

/// How full a table of so many entries may be, in percent, before it is time for a larger one: the more neighbourhoods there are,
/// the sooner one of them has no room. Of ten million random keys the first found none in a table that was 57 % full.
pub(super) const fn filled(slots: u64) -> u64 {
    if slots < 1 << 20 { 80 } else { 54 }
}

/// Makes an empty table, a part at a time: from byte `from` for at most `len` bytes, whole entries both. Returns where to go on.
pub(super) fn clear(medium: &impl Medium, table: TableAt, from: u64, len: u64) -> u64 {
    let end = TableAt::bytes(table.buckets).min(from + len);
    let mut never = [0; 4096];
    never
        .chunks_exact_mut(SLOT_LEN as usize)
        .for_each(|slot| slot[..8].copy_from_slice(&NEVER.to_le_bytes()));
    let mut at = from;
    if at == 0 && end >= UNIT {
        medium.write_nt(table.at, &[0; UNIT as usize]);
        at = UNIT;
    }
    while at < end {
        let part = (end - at).min(never.len() as u64);
        medium.write_nt(table.at + at, &never[..part as usize]);
        at += part;
    }
    at
}

const _: () = assert!(UNIT.is_multiple_of(SLOT_LEN) && super::PER_THING.is_multiple_of(UNIT));
