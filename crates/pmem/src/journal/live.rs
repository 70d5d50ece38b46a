//! A journal under a region that is used: who writes, who waits, and the checkpoint that nobody waits for.
//!
//! One psync writes at a time, as on a page cache without a journal (`flush::page`): who comes meanwhile waits, and then
//! one of those who waited writes for all of them. When a half is full, a thread syncs the region while psyncs go on in the
//! other half; they wait for it only when that is full, too.
//!
//! A failure of either is final, and for the same reason as there.
//!
//! A forked child has neither the thread nor the state that goes on in its parent: its psyncs fail.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::format::{self, BLOCK, JournalLayout, MARK, Name};
use super::log::{Copy, Disk, Log, Outcome, Part};
use super::pending::Pending;
use crate::cache;
use crate::flush::LINE;
use crate::flush::page::Failure;

/// A file whose end is a journal.
#[derive(Debug)]
pub(super) struct FileDisk {
    pub(super) file: Arc<File>,
    /// The same, opened with O_DSYNC: a write to it waits for its own bytes and for no other of the file's.
    pub(super) through: Arc<File>,
    pub(super) place: JournalLayout,
}

impl Disk for FileDisk {
    fn write(&mut self, block: u64, bytes: &[u8]) -> io::Result<()> {
        self.through.write_all_at(bytes, self.place.block(block))
    }
    fn read(&mut self, block: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, self.place.block(block))
    }
    fn sync(&mut self) -> io::Result<()> {
        self.file.sync_data()
    }
    fn restore(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, at)
    }
    fn check(&mut self) -> io::Result<()> {
        cache::check(&self.through, self.place.mark())
    }
    fn prove(&mut self) -> io::Result<()> {
        self.file.sync_data()?;
        cache::sync_all_of_system(&self.file)
    }
    fn mark(&mut self, sequence: u64) -> io::Result<()> {
        mark(&self.through, &self.place, sequence)
    }
    fn marked(&mut self) -> io::Result<Option<u64>> {
        let mut bytes = [0; MARK];
        self.file.read_exact_at(&mut bytes, self.place.mark())?;
        Ok(format::marked(&bytes, &self.place.name))
    }
    fn forget(&mut self, part: Part) -> io::Result<()> {
        match part {
            Part::Region => cache::forget(&self.file, 0, self.place.start()),
            Part::Halves => cache::forget(&self.file, self.place.block(0), self.place.blocks() * BLOCK),
        }
    }
}

fn mark(through: &File, place: &JournalLayout, sequence: u64) -> io::Result<()> {
    let write = || through.write_all_at(&format::mark(&place.name, sequence), place.mark());
    // The first write may be told of the very failure that the mark is about.
    write().or_else(|_| write())
}

/// The journal of one region.
#[derive(Debug)]
pub(crate) struct Journal {
    pending: Mutex<Pending>,
    /// Locked by the thread that writes, for as long as it does.
    state: Mutex<State>,
    checkpoint: Arc<Checkpoint>,
    place: JournalLayout,
    /// The process that opened the journal: a forked child has neither its thread nor its state.
    process: u32,
}

#[derive(Debug)]
struct State {
    log: Log,
    disk: FileDisk,
    failed: Option<Failure>,
}

impl State {
    fn close(&mut self) -> io::Result<()> {
        self.log.close(&mut self.disk).inspect_err(|_| drop(self.disk.mark(self.log.checkpoint())))
    }
}

/// The sync of the region that is under way, if any.
#[derive(Debug, Default)]
struct Checkpoint {
    phase: Mutex<Phase>,
    ended: Condvar,
}

#[derive(Debug, Default)]
enum Phase {
    #[default]
    Idle,
    Running,
    /// The sync has ended, with this outcome. The number is what [`Log::checkpoint`] said when it began.
    Ended(u64, io::Result<()>),
}

impl Journal {
    pub(super) fn new(log: Log, disk: FileDisk) -> Self {
        let lines_max = log.batch_max() / LINE as u64;
        Self {
            pending: Mutex::new(Pending::new(lines_max)),
            checkpoint: Arc::default(),
            place: disk.place,
            process: std::process::id(),
            state: Mutex::new(State { log, disk, failed: None }),
        }
    }

    /// Leaves nothing to be replayed, or says why that cannot be had.
    pub(super) fn finish(mut self) -> io::Result<()> {
        self.checkpoint.wait();
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.checkpoint.collect(&mut state.log)?;
        state.close()
    }

    /// Bytes of the journal's head and of its two halves, without the footer behind them.
    pub(crate) const fn len(&self) -> u64 {
        self.place.journal()
    }

    /// Sixteen bytes that tell the journal's blocks from those of all other journals.
    pub(crate) const fn name(&self) -> Name {
        self.place.name
    }

    /// Bytes of the file, with the journal at its end; the length must stay as it is.
    pub(crate) const fn file_len(&self) -> u64 {
        self.place.file()
    }

    /// Notes the lines that hold a byte of the range.
    pub(crate) fn pwb(&self, range: Range<u64>) {
        if !range.is_empty() {
            lock(&self.pending).add(range.start / LINE as u64..range.end.div_ceil(LINE as u64));
        }
    }

    /// Writes what is pending, once nobody else writes; `copy` adds the bytes of lines of the region to the end.
    pub(crate) fn psync(&self, mut copy: impl Copy) -> io::Result<()> {
        // Asked before the lock, which a thread of the parent may have held.
        if std::process::id() != self.process {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "a forked child cannot persist a file with a journal: open it in one process only",
            ));
        }
        let mut state =
            self.state.lock().map_err(|_| io::Error::other("an earlier psync was interrupted"))?;
        if let Some(failure) = &state.failed {
            return Err(failure.to_error());
        }
        let written = self.write(&mut state, &mut copy);
        written.inspect_err(|e| {
            state.failed = Some(Failure::of(e));
            let State { log, disk, .. } = &mut *state;
            // Without the mark, the next one to open the file may still hear of the failure from the kernel.
            let _ = disk.mark(log.checkpoint());
        })
    }

    fn write(&self, State { log, disk, .. }: &mut State, copy: &mut impl Copy) -> io::Result<()> {
        self.checkpoint.collect(log)?;
        // Taken after the lock: what others asked for while they waited is written along.
        let Some(work) = lock(&self.pending).take() else { return Ok(()) };
        if log.syncs(&work) {
            self.checkpoint.wait();
            self.checkpoint.collect(log)?;
        }
        while log.commit(disk, &work, &mut *copy)? == Outcome::Full {
            self.checkpoint.start(log, disk);
            self.checkpoint.wait();
            self.checkpoint.collect(log)?;
        }
        if log.wants_checkpoint() {
            self.checkpoint.start(log, disk);
        }
        Ok(())
    }
}

impl Drop for Journal {
    /// Leaves nothing to be replayed: an orderly end, and an orderly shutdown after it, undo no store.
    fn drop(&mut self) {
        if std::process::id() != self.process {
            return;
        }
        self.checkpoint.wait();
        let Ok(state) = self.state.get_mut() else { return };
        if state.failed.is_none() && self.checkpoint.collect(&mut state.log).is_ok() {
            // If that fails, the next one to open the file has what this one acknowledged from the journal.
            let _ = state.close();
        }
    }
}

impl Checkpoint {
    /// Begins a sync of the region in a thread of its own, unless one is under way.
    fn start(self: &Arc<Self>, log: &Log, disk: &mut FileDisk) {
        let mut phase = lock(&self.phase);
        if !matches!(*phase, Phase::Idle) {
            return;
        }
        let (begun, shared, file) = (log.checkpoint(), self.clone(), disk.file.clone());
        let (through, place) = (disk.through.clone(), disk.place);
        *phase = Phase::Running;
        drop(phase);
        let work = move || {
            let synced = file.sync_data();
            if synced.is_err() {
                // Marked at once, and not when the next psync hears of the failure: the process may end before.
                let _ = mark(&through, &place, begun);
            }
            shared.end(begun, synced);
        };
        let thread = std::thread::Builder::new().name("remanence-checkpoint".into());
        if thread.spawn(work).is_err() {
            // No thread can be had, so the one that is here does the sync itself.
            self.end(begun, disk.sync().inspect_err(|_| drop(disk.mark(begun))));
        }
    }

    fn end(&self, begun: u64, outcome: io::Result<()>) {
        *lock(&self.phase) = Phase::Ended(begun, outcome);
        self.ended.notify_all();
    }

    /// Waits until no sync is under way.
    fn wait(&self) {
        let mut phase = lock(&self.phase);
        while matches!(*phase, Phase::Running) {
            phase = self.ended.wait(phase).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Tells the log of the sync that has ended, if one has.
    fn collect(&self, log: &mut Log) -> io::Result<()> {
        let mut phase = lock(&self.phase);
        if matches!(*phase, Phase::Running) {
            return Ok(());
        }
        match std::mem::take(&mut *phase) {
            Phase::Idle | Phase::Running => Ok(()),
            Phase::Ended(begun, outcome) => {
                outcome?;
                log.checkpointed(begun);
                Ok(())
            }
        }
    }
}

/// Locks a plain value that is replaced whole, so that a thread which died within a change has left no half of one.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
