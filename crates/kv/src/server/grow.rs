//! The table is resized without stopping.
//!
//! A larger table is cleared, a bit at a time. Then clients are told of it, and when all have said that they look into both,
//! entries move over, one by one or, where a wait is a system call, many at a time: all of them are copied, durable, then all
//! are cleared, so that recovery finds an entry in one table or equal ones in both. Readers look into the old table first, so an
//! entry that moves cannot be missed. When the old table is empty, clients are told, and when all have acknowledged that, its
//! regions are free.

use remanence_pmem::Medium;
use remanence_pmem::image::RootError;

use super::Server;
use super::index::{Entry, Index, clear, filled};
use super::log::{SPARE, io};
use crate::format::RegionWord;
use crate::format::slot::TableAt;
use crate::proto::Refusal;

/// How far resizing has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Growth {
    Idle,
    /// The larger table is being cleared; so many bytes are.
    Clearing(TableAt, u64),
    /// Clients are told; this view must be acknowledged.
    Announced(u64),
    /// Entries move, from this index on.
    Moving(u64),
    /// The old table is empty; when the view is acknowledged, it is free.
    Retiring(TableAt, u64),
}

impl Growth {
    pub(super) fn is_idle(self) -> bool {
        self == Self::Idle
    }

    /// The tables that clients look into.
    pub(super) fn view(self, tables: &[TableAt]) -> Vec<TableAt> {
        tables.to_vec()
    }

    /// Whether the larger table has no more room than the entries need that are still to move.
    pub(super) fn must_catch_up<M: Medium>(self, index: &Index<M>) -> bool {
        matches!(self, Self::Moving(_)) && index.used * 10 > index.tables[index.tables.len() - 1].slots() * 7
    }

    /// Where new entries go: to the larger table when every client looks there.
    pub(super) fn inserts_to(self, tables: &[TableAt]) -> TableAt {
        match self {
            Self::Moving(_) => *tables.last().expect("there is a table"),
            Self::Idle | Self::Clearing(..) | Self::Announced(_) | Self::Retiring(..) => tables[0],
        }
    }
}

/// By how much a table grows for which there is no room at twice its size.
const GROWTHS: [(u64, u64); 2] = [(3, 2), (5, 4)];
/// So many things are cleared in one step at most, and so many entries moved, whoever asks for it: new keys that come together
/// push for more than a step may take.
const CLEARED_MAX: usize = 64;
const MOVED_MAX: usize = 1024;
/// Entries of the old table that each new key pushes along.
const PUSHED: usize = 8;
/// Entries that move together at least, and the part of the old table that is enough, where a wait is a system call.
const TOGETHER: (u64, u64) = (1024, 16);

impl<M: Medium + Clone> Server<M> {
    /// Begins to move to a table with so many buckets. The entries in use must fit.
    ///
    /// # Errors
    /// The table is being resized already, it would be too small, there is no room, or the medium failed.
    pub fn resize(&mut self, buckets: u64) -> Result<(), Refusal> {
        if !self.growth.is_idle() {
            return Err(Refusal::Unfinished);
        }
        if buckets == 0 || buckets >= 1 << 40 || self.index.used * 10 > buckets * 9 {
            return Err(Refusal::Malformed);
        }
        let count = self.regions_of(buckets);
        // The cleaner must not be left without room.
        let fits = count as usize + SPARE <= self.log.free.len();
        let first = u32::try_from(count).ok().filter(|_| fits).and_then(|count| self.log.run_of_free(count));
        let first = first.ok_or(Refusal::Full)?;
        let words: Vec<(u32, RegionWord)> = (first..first + count as u32)
            .zip(self.log.next_epochs(count)?..)
            .map(|(region, epoch)| (region, RegionWord::table(epoch)))
            .collect();
        self.log.set_all(&words)?;
        let table = TableAt { at: self.log.geometry.region(first), buckets };
        self.growth = Growth::Clearing(table, 0);
        Ok(())
    }

    /// Buckets of the table that may come next, the best first: twice as many, or where so large a table finds no room, fewer,
    /// which new keys do not fill at once.
    pub(super) fn larger(&self) -> impl Iterator<Item = u64> + use<M> {
        let (buckets, used) = (self.index.tables[0].buckets, self.index.used);
        let (geometry, row) = (self.log.geometry, self.log.geometry.in_a_row());
        let fewer = GROWTHS.into_iter().map(move |(times, of)| buckets * times / of);
        std::iter::once((buckets * 2).max(used * 2))
            .chain(fewer.filter(move |some| used * 100 < some * (filled(*some) - 4)))
            // No cleaning makes room for what fits nowhere.
            .filter(move |some| TableAt::bytes(*some).div_ceil(geometry.region_len) <= row)
    }

    /// Regions of the smallest of these.
    pub(super) fn regions_to_grow(&self) -> u64 {
        self.larger().map(|buckets| self.regions_of(buckets)).min().unwrap_or(u64::MAX)
    }

    pub(super) const fn regions_of(&self, buckets: u64) -> u64 {
        TableAt::bytes(buckets).div_ceil(self.log.geometry.region_len)
    }

    /// Whether there may be room for a larger table by now.
    fn may_grow(&self) -> bool {
        self.cannot_grow.is_none_or(|freed| freed != self.log.loads.freed)
    }

    /// Goes on; returns whether there is more to do at once.
    pub(super) fn grow(&mut self, now: u64, budget: usize) -> Result<bool, Refusal> {
        self.last_step = now;
        match self.growth {
            Growth::Idle if self.wants_entries || self.index.is_crowded() && self.may_grow() => {
                self.wants_entries = false;
                for buckets in self.larger() {
                    match self.resize(buckets) {
                        Ok(()) => {
                            self.cannot_grow = None;
                            return Ok(true);
                        }
                        Err(Refusal::Full) => {}
                        Err(other) => return Err(other),
                    }
                }
                self.cannot_grow = Some(self.log.loads.freed);
                let regions = self.regions_to_grow();
                let most = self.log.regions.len();
                let wanted = usize::try_from(regions).unwrap_or(most).min(most) + SPARE;
                self.wants_room = if self.can_free(regions) { wanted } else { 0 };
                Ok(false)
            }
            Growth::Idle => Ok(false),
            Growth::Clearing(table, done) => {
                let things = budget.clamp(1, CLEARED_MAX) as u64;
                let done = clear(&self.medium, table, done, super::PER_THING * things);
                self.growth = Growth::Clearing(table, done);
                self.spent += things;
                // Or the whole table would be waited for at the end.
                self.dirty = true;
                if done < TableAt::bytes(table.buckets) {
                    return Ok(true);
                }
                self.sync_now()?;
                self.index.tables.push(table);
                self.store_root()?;
                self.growth = Growth::Announced(self.new_view(now));
                Ok(true)
            }
            // What is kept for a client in the table that is left would not move: nothing more is kept there from here on.
            Growth::Announced(view) if self.all_have(view) && self.ahead.is_empty() => {
                self.growth = Growth::Moving(0);
                Ok(true)
            }
            Growth::Announced(_) => Ok(false),
            Growth::Moving(from) => self.move_entries(now, from, budget),
            Growth::Retiring(table, view) if self.all_have(view) => {
                self.free_table(table)?;
                self.growth = Growth::Idle;
                self.stats.grown += 1;
                Ok(false)
            }
            Growth::Retiring(..) => Ok(false),
        }
    }

    /// So many new keys are about to have entries, which must not fill the larger table before the old ones have moved: each
    /// pushes the move along.
    pub(super) fn push_along(&mut self, now: u64, keys: usize) -> Result<(), Refusal> {
        // What moves would leave behind who relies on its place.
        if self.growth.is_idle() || !self.prepared.is_empty() {
            return Ok(());
        }
        self.pushed += PUSHED * keys;
        if self.pushed < self.together() && !self.growth.must_catch_up(&self.index) {
            return Ok(());
        }
        let budget = std::mem::take(&mut self.pushed);
        self.grow(now, budget).map(drop)
    }

    /// How many entries move together at least.
    fn together(&self) -> usize {
        let (most, part) = TOGETHER;
        let some = (self.index.tables[0].slots() / part).clamp(1, most);
        if self.options.defer { some as usize } else { 1 }
    }

    fn move_entries(&mut self, now: u64, from: u64, budget: usize) -> Result<bool, Refusal> {
        let [old, new] = self.index.tables[..] else { panic!("entries move between two tables") };
        let count = budget.max(self.together()).min(MOVED_MAX) as u64;
        let mut until = old.slots().min(from.saturating_add(count));
        self.spent += until - from;
        let mut moving = Vec::new();
        for (n, slot) in self.index.slots(old, from, until - from).into_iter().enumerate() {
            if slot.word.is_free() {
                continue;
            }
            let entry = Entry { table: old, index: from + n as u64, slot };
            let Ok(free) = self.index.make_room(new, slot.meta.fingerprint()).map_err(|e| io(&e))? else {
                // Twice the table and no place: only keys that were made to collide do that, or what moves together leaves
                // none of its own company. The entry stays, both tables are looked into, and the next step tries again.
                until = entry.index;
                break;
            };
            moving.push((entry, self.index.prepare(free, slot.meta)));
            // Where a wait costs little, fewer things can be half done.
            if !self.options.defer {
                self.index.move_together(&mut moving).map_err(|e| io(&e))?;
                moving.clear();
            }
        }
        self.index.move_together(&mut moving).map_err(|e| io(&e))?;
        let stays = until < old.slots() && until == from;
        self.growth = Growth::Moving(until);
        if until < old.slots() {
            return Ok(!stays);
        }
        self.sync_now()?;
        self.index.tables.remove(0);
        self.store_root()?;
        self.growth = Growth::Retiring(old, self.new_view(now));
        Ok(true)
    }

    pub(super) fn free_table(&mut self, table: TableAt) -> Result<(), Refusal> {
        let regions = self.log.geometry.regions_at(table.at, TableAt::bytes(table.buckets));
        self.log.release_all(regions.expect("a table begins with a region"))
    }

    /// Stores which tables there are.
    pub(super) fn store_root(&mut self) -> Result<(), Refusal> {
        let payload = super::open::root_payload(self.boot, &self.index.tables);
        self.root.store(&payload).map_err(|error| match error {
            RootError::Medium(e) => io(&e),
            RootError::Invalid { .. } => Refusal::Medium,
        })
    }
}
