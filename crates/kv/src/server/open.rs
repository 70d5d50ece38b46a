//! Making a store, and finding it again after a clean end or any crash.
//!
//! Recovery reads the table once. Entries that are not pending were whole and durable when they were settled, so only pending
//! ones are checked, wherever their objects lie (the paper checks each log's last segment, and a slow client's object may
//! lie before it): a whole object is settled, and otherwise the entry goes back to the version before. Nobody can write any
//! more: the keys of the last run went with its process.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;

use remanence_pmem::Medium;
use remanence_pmem::image::{Root, RootError};

use super::grow::Growth;
use super::index::{Entry, Index, clear};
use super::log::{Log, Start};
use super::lost::Zeros;
use super::mend::{self, DamageLocation, Fate, Finding};
use super::settle::Settling;
use super::upgrade::upgrade;
use super::{Options, Server, Stats};
use crate::format::slot::{NEIGHBOURHOOD, TableAt};
use crate::format::superblock::{FORMAT, Found, State};
use crate::format::{
    BadGeometry, Geometry, HEAD_WORDS, HEADS_MAX, HeadWord, Hint, ROOT, RegionKind, RegionWord, Superblock,
    SuperblockError, UNIT, Word, get_u32, get_u64,
};
use crate::proto::Refusal;

/// Why a store cannot be made or opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is none that this program can use.
    #[error(transparent)]
    Superblock(#[from] SuperblockError),
    /// It cannot be made like that.
    #[error("no store can be made: {0}")]
    Geometry(#[from] BadGeometry),
    /// What a crash cannot do was done to it.
    #[error("the store is damaged ({0}): `rem kv salvage` reads what is left, or restore it from a copy")]
    Damaged(&'static str),
    /// The medium failed.
    #[error("the medium failed: {0}")]
    Medium(String),
}

impl OpenError {
    fn medium(error: &impl fmt::Display) -> Self {
        Self::Medium(error.to_string())
    }

    fn root(error: RootError) -> Self {
        match error {
            RootError::Invalid { .. } => Self::Damaged("its root record is not there"),
            RootError::Medium(e) => Self::medium(&e),
        }
    }
}

impl From<Refusal> for OpenError {
    fn from(refusal: Refusal) -> Self {
        Self::medium(&refusal)
    }
}

/// What recovery found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Recovered {
    /// Entries in use, tombstones included.
    pub entries: u64,
    /// Entries that were pending.
    pub pending: u64,
    /// Of those, entries whose object was whole.
    pub completed: u64,
    /// Of those, entries that went back to the version before, or to nothing.
    pub rolled_back: u64,
    /// Equal entries that a move had left, cleared.
    pub doubled: u64,
    /// Regions that nothing refers to, set free.
    pub freed: u64,
    /// Words that were damaged and are put right: [`Server::findings`] has them.
    pub mended: u64,
    /// Words that are left damaged: entries and regions that are not served.
    pub lost: u64,
    /// The store was in an earlier format.
    pub upgraded: bool,
}

/// Makes an empty store. What was on the medium before is gone. Durable on return.
///
/// The salt is to be drawn at random; `buckets` is how many keys the first table is for, about.
///
/// # Errors
/// The geometry will not do, or the medium failed.
pub fn format<M: Medium + Clone>(
    medium: &M,
    geometry: &Geometry,
    buckets: u64,
    salt: u64,
    uuid: [u8; 16],
) -> Result<(), OpenError> {
    geometry.check()?;
    if geometry.size > medium.len() {
        return Err(BadGeometry("the medium is shorter than the store").into());
    }
    let buckets = buckets.max(NEIGHBOURHOOD);
    let regions = TableAt::bytes(buckets).div_ceil(geometry.region_len);
    if regions + 2 > u64::from(geometry.regions()) {
        return Err(BadGeometry("the first table leaves no room for anything else").into());
    }
    let failed = |e: std::io::Error| OpenError::medium(&e);
    // Until the end there is no store: a crash leaves none, or all of it.
    FORMAT.erase(medium).map_err(failed)?;
    for head in 0..u64::from(HEADS_MAX) {
        super::index::store(medium, HEAD_WORDS + 8 * head, HeadWord::emit(None));
    }
    medium.pwb(HEAD_WORDS..HEAD_WORDS + 8 * u64::from(HEADS_MAX));
    for region in 0..geometry.regions() {
        let word = if u64::from(region) < regions { RegionWord::table(1) } else { RegionWord::FREE };
        super::index::store(medium, geometry.directory(region), word.emit());
    }
    directories(geometry).for_each(|words| medium.pwb(words));
    let table = TableAt { at: geometry.region(0), buckets };
    clear(medium, table, 0, u64::MAX / 2);
    let payload = root_payload(0, &[table]);
    Root::format(medium.clone(), ROOT, salt, &payload).map_err(OpenError::root)?;
    medium.psync().map_err(failed)?;
    let superblock = Superblock { geometry: *geometry, salt, uuid };
    FORMAT.make(medium, &superblock.emit()).map_err(failed)
}

/// Where the directory's words lie.
fn directories(geometry: &Geometry) -> impl Iterator<Item = Range<u64>> + use<> {
    let geometry = *geometry;
    let mut next = (geometry.regions() > 0).then_some(0);
    std::iter::from_fn(move || {
        let first = next?;
        let at = geometry.directory(first);
        let words = (first..geometry.regions())
            .take_while(|region| geometry.directory(*region) == at + 8 * u64::from(region - first))
            .count() as u32;
        next = Some(first + words).filter(|next| *next < geometry.regions());
        Some(at..at + 8 * u64::from(words))
    })
}

/// Has a store that nobody serves use so many bytes of its medium, which is that long. Durable on return; a crash meanwhile leaves it
/// as large as it was. Returns how many it used before, if it has grown.
///
/// # Errors
/// There is no store, it is in an earlier format or damaged, it cannot grow so far, or the medium failed.
pub fn extend<M: Medium + Clone>(medium: &M, size: u64) -> Result<Option<u64>, OpenError> {
    let failed = |e: std::io::Error| OpenError::medium(&e);
    let Found { superblock, state, whole } = Superblock::read(medium)?;
    if size <= superblock.geometry.size {
        return Ok(None);
    }
    if state != State::Current || whole != [true, true] {
        return Err(OpenError::Damaged("it is to be opened as it is, and to end well, before it can grow"));
    }
    let geometry = superblock.geometry.grown_to(size)?;
    if size > medium.len() {
        return Err(BadGeometry("the medium is shorter than the store").into());
    }
    // The room behind the store may have anything in it.
    for region in superblock.geometry.regions()..geometry.regions() {
        super::index::store(medium, geometry.directory(region), RegionWord::FREE.emit());
    }
    directories(&geometry).for_each(|words| medium.pwb(words));
    medium.psync().map_err(failed)?;
    Superblock { geometry, ..superblock }.write(medium, State::Current).map_err(failed)?;
    Ok(Some(superblock.geometry.size))
}

/// How often the store was opened, and its tables.
pub(super) fn root_payload(boot: u32, tables: &[TableAt]) -> Vec<u8> {
    let mut bytes = boot.to_le_bytes().to_vec();
    for table in tables {
        bytes.extend(table.at.to_le_bytes());
        bytes.extend(table.buckets.to_le_bytes());
    }
    bytes
}

pub(crate) fn parse_root(bytes: &[u8], geometry: &Geometry) -> Option<(u32, Vec<TableAt>)> {
    let (boot, rest) = bytes.split_at_checked(4)?;
    if !matches!(rest.len(), 16 | 32) {
        return None;
    }
    let tables: Vec<TableAt> =
        rest.chunks_exact(16).map(|t| TableAt { at: get_u64(t, 0), buckets: get_u64(t, 8) }).collect();
    let fair = tables.iter().all(|table| {
        (NEIGHBOURHOOD..1 << 40).contains(&table.buckets)
            && geometry.regions_at(table.at, TableAt::bytes(table.buckets)).is_some()
    });
    fair.then_some((get_u32(boot, 0), tables))
}

impl<M: Medium + Clone> Server<M> {
    /// Opens the store on a medium, after a clean end or a crash.
    ///
    /// # Errors
    /// There is none, it is damaged, or the medium failed.
    pub fn open(medium: M, options: Options) -> Result<(Self, Recovered), OpenError> {
        let Found { superblock, state, whole } = Superblock::read(&medium)?;
        let geometry = superblock.geometry;
        let mut findings: Vec<Finding> = Vec::new();
        let mended = |at| Finding { at, key: None, fate: Fate::Mended };
        findings
            .extend((0..2).filter(|copy| !whole[*copy]).map(|copy| mended(DamageLocation::Superblock(copy))));
        // The second slot was written once, and says the same, since format 2.
        if Root::slots(&medium, ROOT, superblock.salt).len() == 1 && state == State::Current {
            findings.push(mended(DamageLocation::Root));
        }
        let (mut root, payload) =
            Root::open(medium.clone(), ROOT, superblock.salt).map_err(OpenError::root)?;
        let (boot, tables) =
            parse_root(&payload, &geometry).ok_or(OpenError::Damaged("its root record means nothing"))?;
        let boot = boot.checked_add(1).ok_or(OpenError::Damaged("it was opened too often"))?;
        // Before anything else: versions of this run are higher than all before, whatever becomes of it.
        root.store(&root_payload(boot, &tables)).map_err(OpenError::root)?;
        let failed = |e: std::io::Error| OpenError::medium(&e);
        if state != State::Current {
            upgrade(&medium, &superblock, state, &tables).map_err(failed)?;
        } else if whole != [true; 2] {
            superblock.write(&medium, state).map_err(failed)?;
        }
        findings.extend(mend::words(&medium, &superblock, &tables));
        let log = Log::open(medium.clone(), geometry);
        let growth = if tables.len() == 2 { Growth::Moving(0) } else { Growth::Idle };
        let mut server = Self {
            index: Index { medium: medium.clone(), heads: geometry.heads, tables, used: 0, moves: 0 },
            medium,
            superblock,
            root,
            options,
            boot,
            log,
            counter: 0,
            unfinished: Default::default(),
            leases: Default::default(),
            written: Default::default(),
            places: Default::default(),
            begun: Default::default(),
            confirmed: Default::default(),
            clients: Default::default(),
            next_client: u64::from(boot) << 32,
            view: 1,
            view_since: 0,
            last_step: 0,
            prepared: Default::default(),
            ahead: Default::default(),
            growth,
            pushed: 0,
            cleaned_at: 0,
            cleaning: None,
            wants_room: 0,
            lacks: 0,
            wants_entries: false,
            cannot_grow: None,
            events: Default::default(),
            round: super::round::Round::new(),
            spent: 0,
            dirty: true,
            stats: Stats::default(),
            findings,
            replicated: false,
            revoke: None,
            copies: None,
            scrubbing: (0, BTreeSet::new()),
        };
        let mut recovered = server.recover()?;
        if server.index.used == 0 {
            // Else what is written before the first round would be admitted as if there were always room.
            server.round = super::round::Round::of_none();
            server.log.loads.shed = u64::MAX;
        }
        let lost = server.findings.iter().filter(|finding| finding.fate == Fate::Lost).count() as u64;
        recovered.lost = lost;
        recovered.mended = server.findings.len() as u64 - lost;
        recovered.upgraded = state != State::Current;
        Ok((server, recovered))
    }

    fn recover(&mut self) -> Result<Recovered, OpenError> {
        let mut recovered = Recovered::default();
        let tables = self.index.tables.clone();
        // After the death of the process alone, what is read here may still be on its way into the domain.
        self.medium.pwb(HEAD_WORDS..HEAD_WORDS + 8 * u64::from(HEADS_MAX));
        directories(&self.superblock.geometry).for_each(|words| self.medium.pwb(words));
        tables.iter().for_each(|table| self.medium.pwb(table.at..table.at + TableAt::bytes(table.buckets)));
        self.sync_now()?;
        let mut zeros = Zeros::default();
        for table in &tables {
            let mut index = 0;
            while index < table.slots() {
                let slots = self.index.stored(*table, index, 256);
                let count = slots.len() as u64;
                for (n, slot) in slots.into_iter().enumerate() {
                    if slot.word.is_free() {
                        zeros.note(*table, index + n as u64, &slot);
                    } else {
                        self.index.used += 1;
                        if let Some(entry) = self.believed(*table, index + n as u64, slot)? {
                            self.recover_entry(entry, &mut recovered)?;
                        }
                    }
                }
                index += count;
            }
        }
        self.sync_now()?;
        self.fill(&zeros)?;
        recovered.entries = self.index.used;
        recovered.freed = self.free_unreferenced()?;
        self.stats = Stats::default();
        Ok(recovered)
    }

    fn recover_entry(&mut self, mut entry: Entry, recovered: &mut Recovered) -> Result<(), OpenError> {
        let (table, meta) = (entry.table, entry.slot.meta);
        let fingerprint = meta.fingerprint();
        // It was being made, and perhaps has no meta word yet, or was going.
        if entry.slot.word.new_offset().is_none() {
            self.index.set_word(&mut entry, Word::FREE);
            return Ok(());
        }
        // A crash within a move leaves two equal entries; nothing is changed in between, so either may go.
        let doubled = self.index.candidates(fingerprint).into_iter().any(|other| {
            let later = other.table != table || other.index > entry.index;
            let behind = self.index.tables.last() == Some(&other.table);
            later
                && behind_or_same(behind, other.table == table)
                && other.slot.meta.head() == meta.head()
                && other.slot.word.new_offset() == entry.slot.word.new_offset()
        });
        if doubled {
            recovered.doubled += 1;
            self.index.set_word(&mut entry, Word::FREE);
            return self.medium.pfence().map_err(|e| OpenError::medium(&e));
        }
        if entry.slot.word.is_pending() {
            recovered.pending += 1;
            let had = entry.slot.word.new_offset();
            let settled = match self.settle(entry) {
                Ok(Settling::Settled(settled)) => Some(settled),
                Ok(Settling::Gone) => None,
                Ok(Settling::Unfinished) => unreachable!("nothing was handed out in this run"),
                Err(Refusal::Damaged) => {
                    let key = self.key_of(&entry);
                    self.found(DamageLocation::Entry(entry.at()), key, Fate::Lost);
                    return Ok(());
                }
                Err(other) => return Err(other.into()),
            };
            if settled.is_some_and(|settled| settled.slot.word.new_offset() == had) {
                recovered.completed += 1;
            } else {
                recovered.rolled_back += 1;
            }
            let Some(settled) = settled else { return Ok(()) };
            entry = settled;
            if let Some(new) = entry.slot.word.new_offset() {
                self.refresh_hint(&mut entry, new)?;
            }
        }
        self.remember(&entry);
        Ok(())
    }

    /// Tells regions what they hold of this entry's newest version.
    pub(super) fn remember(&mut self, entry: &Entry) {
        let head = entry.slot.meta.head();
        let Some(object) = entry.slot.word.new_offset() else { return };
        let start = Start { fingerprint: entry.slot.meta.fingerprint(), object };
        let mut places = vec![(object, entry.slot.meta.hint().len())];
        if entry.slot.meta.hint() == Hint::CHAINED
            && let Ok(bytes) = self.object(head, object)
        {
            let chunks = self.parsed(&bytes, head, object).chunks();
            places
                .extend(chunks.into_iter().flat_map(|(_, chunks)| chunks).map(|c| (c.offset, c.len.into())));
        }
        for (place, bytes) in places {
            if let Some(region) = self.log.region_of(head, place) {
                let region = &mut self.log.regions[region as usize];
                region.starts.push(start);
                let units: u64 = bytes.div_ceil(UNIT);
                region.load.found = region.load.found.saturating_add(units as u32);
            }
        }
    }

    /// Regions that cleaning had emptied, that were linked too early, or that were to become tables.
    fn free_unreferenced(&mut self) -> Result<u64, OpenError> {
        let geometry = self.superblock.geometry;
        let in_tables = |region: u32| mend::in_tables(&geometry, &self.index.tables, region);
        let unreferenced: Vec<u32> = (0..geometry.regions())
            .filter(|index| {
                let region = &self.log.regions[*index as usize];
                match region.word.kind {
                    RegionKind::Free => false,
                    RegionKind::Table => !in_tables(*index),
                    RegionKind::Log => region.starts.is_empty() && !self.log.is_tail(*index),
                }
            })
            .collect();
        for region in &unreferenced {
            self.log.release(*region)?;
        }
        Ok(unreferenced.len() as u64)
    }
}

/// Of two equal entries in one table, and of one in each of two, the first goes.
const fn behind_or_same(behind: bool, same: bool) -> bool {
    behind || same
}

const _: () = assert!(UNIT == 64);
