//! NVPages in a log's place: pages in persistent memory, which have what files have and what they lack, each change first in a redo log
//! ([`remanence_cache::pages`]); and the thread that writes pages back.
//!
//! **Locks, in the order in which they are taken**: a descriptor's position, a file's extent, one's turn while nothing is free, the turn of truncations, pages, the
//! keeper. Who waits for a page or a record that is free has given up what he had; a read that finds none reads past the pages; the thread holds the keeper for no call on a file, and no page. So it always goes on.
//!
//! **Acknowledged is a prefix**, as with a log: under [`Promise::AtSync`] a write returns when all before it are committed.
//!
//! **A truncation waits** for who is in the file, and for the batch that is on its way, as that would make the file longer again; nobody gets into the file before it is
//! cut. If a disk takes nothing, it says so.

use std::ops::Deref;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use remanence_cache::format::Promise;
use remanence_cache::pages::format::{Geometry, Layout, file_options, make};
use remanence_cache::pages::keeper::{self, Action, Keeper, Progress, Token};
use remanence_cache::pages::{Access, Fault, PageOf, Pages, Step};
use remanence_cache::table::{FileId, FileTable, Identity};
use remanence_cache_live::recover::pages::recovered;
use remanence_pmem::Region;
use remanence_pmem::image;

use crate::PAGE;
use crate::cache::{Running, passes, random, region_of, spawn};
use crate::cleaning::{Retry, Thread, run};
use crate::error::Error;
use crate::inner::{Engine, GLANCES, Parts, Patient, Shared};
use crate::inode::{Block, Inode};
use crate::options::Options;

/// Bytes of a file with pages that is made, if nobody says how many.
const BYTES: u64 = 128 << 20;
/// The fewest pages that there are.
const LEAST: u32 = 64;

/// Pages, and who keeps them.
#[derive(Debug)]
struct Paging {
    shared: Shared,
    pages: Pages<Region>,
    keeper: Mutex<Keeper>,
    /// From so many dirty pages on the keeper works without being asked.
    low: usize,
    /// After so many steps each page was looked at for a place.
    passes: u32,
    /// All writes up to there are in their files.
    filed: AtomicU64,
    /// How often the keeper has set something free.
    freed: AtomicU64,
    /// One truncation at a time.
    cutting: Mutex<()>,
    syncing: Mutex<()>,
}

impl Deref for Paging {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

/// How pages divide so many bytes, as far as they can.
fn geometry(bytes: u64) -> Geometry {
    let size = |slots: u32| Geometry::usual(slots).size();
    let (mut fits, mut beyond) = (LEAST, 1 << 28);
    while beyond - fits > 1 {
        let middle = fits + (beyond - fits) / 2;
        if size(middle) <= bytes {
            fits = middle;
        } else {
            beyond = middle;
        }
    }
    Geometry::usual(fits)
}

/// Opens pages, or makes them, and begins to keep them.
pub(crate) fn open(path: PathBuf, process: u64, options: &Options) -> Result<Running, Error> {
    let failed = |source: Fault| Error::Pages { pages: path.clone(), source };
    let wanted = geometry(options.bytes.unwrap_or(BYTES));
    let (region, promise) = region_of(&path, file_options(), wanted.size())?;
    // Also those in whose making somebody was killed.
    let is_blank =
        matches!(Layout::read(&region), Err(Fault::Image(image::Fault::Blank | image::Fault::Making)));
    if is_blank && region.len() == wanted.size() {
        let (uuid, salt) = random()?;
        make(&region, uuid, wanted, salt, promise).map_err(failed)?;
    }
    let has = Layout::read(&region).map_err(failed)?.geometry;
    let shown = path.display();
    if options.bytes.is_some() && has.slots != wanted.slots {
        let (has, wants) = (has.slots, wanted.slots);
        return Err(Error::Recovery(format!(
            "{shown} is there already and has {has} pages, and one of the size that is asked for has {wants}: leave the size out, or name another file"
        )));
    }
    if has.page as usize != PAGE {
        let has = has.page;
        return Err(Error::Recovery(format!(
            "{shown} has pages of {has} bytes, and a cache has such of {PAGE}: name another file"
        )));
    }
    let recovered = recovered(&path, &region).map_err(Error::Recovery)?;
    let pages = Pages::start(region.clone(), promise).map_err(failed)?;
    let usual = keeper::Options::usual(has.slots);
    let batch = options.batch.map_or(usual.batch, |batch| batch.min(usual.batch as u64) as usize);
    let shared = Shared::new(Parts {
        path: path.clone(),
        table: FileTable::empty(region.clone(), pages.layout().table()),
        region,
        strict: options.strict,
        direct: options.direct,
        patience: options.patience,
        longest: pages.longest() / PAGE as u64 * PAGE as u64,
        recovered,
        process,
    });
    let paging = Arc::new(Paging {
        shared,
        keeper: Mutex::new(Keeper::new(keeper::Options { batch, ..usual })),
        low: usual.low,
        passes: passes(has.slots as usize),
        filed: AtomicU64::new(pages.ticket()),
        freed: AtomicU64::new(0),
        cutting: Mutex::new(()),
        syncing: Mutex::new(()),
        pages,
    });
    let keeps = paging.clone();
    let thread = spawn(path, options.begins, move || run(&keeps, Keeping::new(&keeps)))?;
    Ok((paging, thread))
}

/// How many pages so many bytes lie in.
const fn pages_of(offset: u64, len: usize) -> usize {
    ((offset % PAGE as u64) as usize + len).div_ceil(PAGE)
}

impl Paging {
    fn keeper(&self) -> MutexGuard<'_, Keeper> {
        self.keeper.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is something to be done for the thread.
    fn has_work(&self) -> bool {
        self.pages.dirty() >= self.low || self.pages.is_scarce()
    }

    /// Carries an access to its end, which takes so many records.
    fn carry_out(&self, access: &mut Access<'_>, inode: &Inode, records: usize) -> Result<(), Error> {
        let mut patient = Patient::new(self);
        let (mut turn, mut freed, mut looks) = (None, None, 0);
        let outcome = loop {
            if turn.is_none() && records > 0 && self.room.is_taken() {
                // Nobody waits with pages that another one may need in his turn.
                self.pages.give_up(access);
                patient.tell();
                if let Err(refusal) = self.room.wait_turn(self.patience) {
                    break Err(self.refused(refusal));
                }
            }
            let step = match self.pages.step(access) {
                Ok(step) => step,
                Err(Fault::TooLong { .. }) => break Err(Error::OutOfBounds),
                Err(why) => break Err(self.lost(why.to_string())),
            };
            let next = match step {
                Step::Done => break Ok(()),
                Step::Load(of) => self.load(access, inode, of),
                Step::Busy => patient.wait(GLANCES, || self.is_let_in(inode)),
                Step::Full if records == 0 => {
                    looks += 1;
                    match looks % self.passes {
                        0 => self.read_past(access, inode),
                        _ => Ok(()),
                    }
                }
                Step::Full => {
                    // It had pages, and has them no more.
                    patient.tell();
                    if freed.replace(self.freed.load(Ordering::SeqCst)) != freed {
                        patient.hope();
                    }
                    // Of places another look finds more, of records it does not.
                    let glances = if self.pages.free_records() < records { 1 } else { self.passes };
                    patient.wait(glances, || {
                        self.counts.waits.fetch_add(1, Ordering::Relaxed);
                        if turn.is_none() {
                            turn = self.room.turn();
                        }
                        if turn.is_some() { self.make_room() } else { Ok(()) }
                    })
                }
            };
            if let Err(why) = next {
                break Err(why);
            }
        };
        if outcome.is_err() {
            self.pages.give_up(access);
        }
        patient.tell();
        outcome
    }

    /// Whether somebody who waits for a file may hope to get into it.
    fn is_let_in(&self, inode: &Inode) -> Result<(), Error> {
        match self.room.failure_of(inode.id) {
            Some(failure) if self.pages.is_closed(inode.id) => Err(self.said(failure)),
            _ => Ok(()),
        }
    }

    /// Whether the pages themselves can be used: a write that failed on its way is waited for by nobody.
    fn check_medium(&self) -> Result<(), Error> {
        let failure = self.room.failure().filter(|failure| failure.file.is_none());
        failure.map_or(Ok(()), |failure| Err(self.said(failure)))
    }

    /// Whether disks take what is due, as far as is known.
    fn check_disk(&self) -> Result<(), Error> {
        self.room.failure().map_or(Ok(()), |failure| Err(self.said(failure)))
    }

    /// Has each page that is dirty be written back, whatever was before.
    fn sweep_again(&self) -> Result<(), Error> {
        self.check_disk()?;
        self.keeper().sweep_again();
        self.bell.happened();
        Ok(())
    }

    /// Has pages be written back, or records set free.
    fn make_room(&self) -> Result<(), Error> {
        self.check_disk()?;
        if self.has_work() {
            self.bell.happened();
        } else if self.pages.dirty() > 0 {
            self.want(self.head());
        }
        Ok(())
    }

    /// Reads a page from its file.
    fn load(&self, access: &mut Access<'_>, inode: &Inode, of: PageOf) -> Result<(), Error> {
        let mut page = Block::new();
        let read = inode.read_page(of.page * PAGE as u64, &mut page);
        let len = read.map_err(Error::system(&inode.path, "read"))?;
        self.pages.loaded(access, &page.0[..len]);
        self.counts.misses.fetch_add(1, Ordering::Relaxed);
        self.events.happened();
        Ok(())
    }

    /// Reads a page from its file for which there is no place, as the pages that are here are such as files lack.
    fn read_past(&self, access: &mut Access<'_>, inode: &Inode) -> Result<(), Error> {
        let seen = self.freed.load(Ordering::SeqCst);
        let Some(of) = self.pages.at(access) else { return Ok(()) };
        let mut page = Block::new();
        let read = inode.read_page(of.page * PAGE as u64, &mut page);
        let len = read.map_err(Error::system(&inode.path, "read"))?;
        // If anything was written back meanwhile there is a place.
        if self.freed.load(Ordering::SeqCst) == seen && self.pages.pass(access, of, &page.0[..len]) {
            self.counts.misses.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Something was changed.
    fn changed(&self) {
        self.counts.changes.fetch_add(1, Ordering::Relaxed);
        std::sync::atomic::fence(Ordering::SeqCst);
        if self.hungry.load(Ordering::SeqCst) || self.has_work() {
            self.bell.happened();
        }
    }
}

impl Engine for Paging {
    fn promise(&self) -> Promise {
        self.pages.promise()
    }

    fn take_in(&self, file: FileId, len: u64) {
        self.pages.open_file(file, len);
    }

    fn let_go(&self, file: FileId) -> bool {
        let mut patient = Patient::new(self);
        loop {
            match self.keeper().forget(&self.pages, file) {
                Ok(Step::Done) => return true,
                Ok(_) => {}
                // Nobody knows it.
                Err(_) => return false,
            }
            // One of its pages was looked at when it was to be called clean; or another batch is on its way.
            if patient.wait(1, || self.sweep_again()).is_err() {
                return false;
            }
        }
    }

    fn len(&self, inode: &Inode) -> u64 {
        self.pages.size(inode.id).unwrap_or(0)
    }

    fn fill(&self, inode: &Inode, offset: u64, into: &mut [u8]) -> Result<usize, Error> {
        let mut access = Access::read(inode.id, offset, into);
        self.carry_out(&mut access, inode, 0)?;
        if self.hungry.load(Ordering::SeqCst) {
            self.bell.happened();
        }
        Ok(access.done())
    }

    fn put(&self, inode: &Inode, offset: u64, bytes: &[u8]) -> Result<Option<u64>, Error> {
        let mut access = Access::write(inode.id, offset, bytes);
        self.carry_out(&mut access, inode, pages_of(offset, bytes.len()))?;
        self.changed();
        Ok(Some(access.number()))
    }

    fn cut(&self, inode: &Inode, len: u64) -> Result<Option<u64>, Error> {
        let _alone = self.cutting.lock().unwrap_or_else(PoisonError::into_inner);
        let mut patient = Patient::new(self);
        loop {
            let step = self.keeper().truncate(&self.pages, inode.id, len);
            match step {
                Ok(Step::Done) => break,
                Ok(_) => {}
                Err(why) => return Err(self.lost(why.to_string())),
            }
            let waited = patient.wait(GLANCES, || {
                self.bell.happened();
                self.check_disk()
            });
            // When it is durable it waits for no disk any more.
            if let Err(why) = waited
                && self.keeper().give_up_truncation(&self.pages)
            {
                self.events.happened();
                return Err(why);
            }
        }
        // The thread has the file cut, and lets others in.
        self.changed();
        self.bell.happened();
        self.events.happened();
        Ok(Some(self.pages.ticket()))
    }

    fn order(&self, end: u64) -> Result<(), Error> {
        let mut patient = Patient::new(self);
        while self.promise() == Promise::AtSync && self.pages.settled() < end {
            patient.wait(GLANCES, || self.check_medium())?;
        }
        Ok(())
    }

    fn persist(&self, upto: u64) -> Result<(), Error> {
        let mut patient = Patient::new(self);
        let _alone = match self.promise() {
            Promise::AtReturn => None,
            Promise::AtSync => Some(self.syncing.lock().unwrap_or_else(PoisonError::into_inner)),
        };
        loop {
            match self.pages.sync(upto) {
                Ok(Step::Done) => return Ok(()),
                Ok(_) => patient.wait(GLANCES, || self.check_medium())?,
                Err(why) => return Err(self.lost(why.to_string())),
            }
        }
    }

    fn head(&self) -> u64 {
        self.pages.ticket()
    }

    fn tail(&self) -> u64 {
        self.filed.load(Ordering::SeqCst)
    }

    fn used(&self) -> [u64; 2] {
        [self.pages.dirty() as u64, self.pages.layout().geometry.slots.into()]
    }

    fn settle(&self, inode: &Inode) -> Result<(), Error> {
        let disowned = Identity::disown(&self.region, &self.pages.layout().table(), inode.id);
        disowned.map_err(|why| self.lost(why.to_string()))
    }

    fn empty(&self) -> Result<(), Error> {
        let mut patient = Patient::new(self);
        loop {
            self.wait_tail(self.head())?;
            if self.keeper().is_drained(&self.pages) {
                return Ok(());
            }
            patient.wait(1, || self.sweep_again())?;
        }
    }

    fn close(&self) -> Result<(), Error> {
        let closed = self.pages.close(&self.keeper());
        closed.map_err(|source| Error::Pages { pages: self.path.clone(), source })
    }
}

/// The thread: carries out what the keeper asks for, one thing at a time.
struct Keeping<'a> {
    paging: &'a Paging,
    page: Box<Block>,
    told: Progress,
    retry: Retry,
}

impl<'a> Keeping<'a> {
    fn new(paging: &'a Paging) -> Self {
        let told = paging.keeper().progress();
        Self { paging, page: Block::new(), told, retry: Retry::new() }
    }

    /// Tells what has become free, or is in its file, since the last time; whether anything has.
    fn tell(&mut self, now: Progress) -> bool {
        let before = std::mem::replace(&mut self.told, now);
        if before == now {
            return false;
        }
        let paging = self.paging;
        paging.filed.fetch_max(now.filed, Ordering::SeqCst);
        paging.freed.fetch_add(1, Ordering::SeqCst);
        if before.batches < now.batches {
            self.retry.succeeded();
            paging.room.freed();
        } else {
            paging.room.moved();
        }
        let batches = now.batches - before.batches;
        paging.counts.batches.fetch_add(batches, Ordering::Relaxed);
        paging.events.happened();
        true
    }

    fn inode(&self, file: FileId) -> Option<Arc<Inode>> {
        self.paging.files().by_id.get(&file).cloned()
    }

    fn carry_out(&self, inode: &Inode, action: Action) -> std::io::Result<()> {
        match action {
            Action::Write { offset, len, .. } => inode.write_page(offset, &self.page, len as usize),
            Action::Truncate { len, .. } => inode.to_write()?.set_len(len),
            Action::Sync { .. } => inode.file().sync_data(),
        }
    }

    fn ended(&mut self, token: Token, action: Action) {
        let (Action::Write { file, .. } | Action::Truncate { file, .. } | Action::Sync { file }) = action;
        let paging = self.paging;
        let Some(inode) = self.inode(file) else {
            let why = format!("{file} of the pages is not open");
            paging.keeper().failed(token, &why);
            paging.lost(why);
            return;
        };
        match self.carry_out(&inode, action) {
            Ok(()) => paging.keeper().done(&paging.pages, token),
            Err(why) => {
                paging.keeper().failed(token, &why.to_string());
                self.retry.failed(paging, &inode, &why);
            }
        }
    }
}

impl Thread for Keeping<'_> {
    fn again(&self) -> Option<Instant> {
        self.retry.at
    }

    fn work(&mut self, wanted: u64) -> bool {
        let paging = self.paging;
        if self.retry.is_due() {
            paging.keeper().retry();
        }
        let mut did = false;
        loop {
            let (asked, progress) = {
                let mut keeper = paging.keeper();
                keeper.drain_to(wanted);
                let asked = keeper.poll(&paging.pages);
                if let Ok(Some((token, Action::Write { .. }))) = asked {
                    let bytes = keeper.bytes(token).unwrap_or_default();
                    self.page.0[..bytes.len()].copy_from_slice(bytes);
                }
                paging.hungry.store(matches!(asked, Ok(None)) && keeper.is_hungry(), Ordering::SeqCst);
                (asked, keeper.progress())
            };
            did |= self.tell(progress);
            match asked {
                Ok(Some((token, action))) => self.ended(token, action),
                Ok(None) => return did,
                Err(why) => {
                    paging.lost(why.to_string());
                    return false;
                }
            }
            did = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_pages_as_fit_are_made() {
        for bytes in [BYTES, 5 << 20, 1 << 30, 123_456_789] {
            let found = geometry(bytes);
            let more = Geometry::usual(found.slots + 1);
            assert!(found.is_fair() && found.size() <= bytes && more.size() > bytes, "{bytes}: {found:?}");
        }
        assert_eq!(geometry(0).slots, LEAST);
        assert_eq!(geometry(0).size(), geometry(1 << 20).size());
    }

    #[test]
    fn each_page_that_is_touched_is_counted() {
        for (offset, len, count) in
            [(0, 1, 1), (0, 4096, 1), (4095, 2, 2), (1, 4096, 2), (8191, 1, 1), (5, 8192, 3)]
        {
            assert_eq!(pages_of(offset, len), count, "{offset} {len}");
        }
    }
}
