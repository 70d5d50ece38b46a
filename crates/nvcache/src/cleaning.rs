//! The cleaner's thread: carries out what the machine of [`remanence_cache::cleaner`] asks for, one thing at a time, and sleeps until something is to be
//! done. That of [pages](crate::paging) sleeps and tries again as this one does.
//!
//! **What fails is told, and tried again.** The log keeps everything. A batch that has failed is begun anew with its writes, and not with the sync that has failed:
//! a page cache may have dropped what it could not write, and call it clean. So a disk that has room again, or takes what is written again, loses
//! nothing, and needs nobody; the time between two attempts doubles. What the log's own medium has lost is not tried again: a recovery decides.

use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use remanence_cache::Entry;
use remanence_cache::cleaner::{Action, Cleaner, Feed};
use remanence_cache::op::Op;
use remanence_cache::table::FileId;

use crate::about::About;
use crate::events::Waiter;
use crate::inner::{Inner, Shared};
use crate::inode::Inode;
use crate::room::Failure;

/// How long after the first failure it is tried again, and how long at most after a later one.
const AGAIN: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

/// Why something was not carried out.
enum Failed {
    /// A file does not take it.
    File(Arc<Inode>, std::io::Error),
    /// The log has failed, or is damaged.
    Log(String),
}

/// When what has failed is tried again.
#[derive(Debug)]
pub(crate) struct Retry {
    pub(crate) at: Option<Instant>,
    /// How long is waited after the next failure.
    pause: Duration,
}

impl Retry {
    pub(crate) const fn new() -> Self {
        Self { at: None, pause: AGAIN.0 }
    }

    /// Whether it is time.
    pub(crate) fn is_due(&mut self) -> bool {
        self.at.take_if(|at| Instant::now() >= *at).is_some()
    }

    /// A file does not take what is due to it: everybody is told.
    pub(crate) fn failed(&mut self, shared: &Shared, inode: &Inode, why: &std::io::Error) {
        self.at = Some(Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(AGAIN.1);
        shared.room.failed(Failure {
            file: Some(inode.id),
            path: inode.path.display().to_string(),
            errno: Shared::number_of(why),
            why: why.to_string(),
        });
        shared.events.happened();
    }

    /// The disk takes it.
    pub(crate) const fn succeeded(&mut self) {
        self.pause = AGAIN.0;
    }
}

/// A thread that brings changes into their files.
pub(crate) trait Thread {
    /// Does what can be done now; all up to a number is wanted. Whether anything was done.
    fn work(&mut self, wanted: u64) -> bool;

    /// When it is to be called again, whatever happens.
    fn again(&self) -> Option<Instant>;
}

/// Runs until it is to end, which is when somebody has seen to it that nothing is left, or has given that up.
pub(crate) fn run(shared: &Shared, mut thread: impl Thread) {
    let mut waiter: Option<Waiter<'_>> = None;
    loop {
        let (ends, wanted) = {
            let state = shared.room.state();
            (state.ends, state.wanted)
        };
        if ends {
            return;
        }
        if thread.work(wanted) {
            waiter = None;
            continue;
        }
        // Looked at once more before it sleeps, now that nothing that happens is missed.
        match &mut waiter {
            None => waiter = Some(shared.bell.waiter()),
            Some(sleeps) => {
                sleeps.wait(thread.again());
                waiter = None;
            }
        }
    }
}

/// The thread of a log.
pub(crate) struct Cleaning<'a> {
    inner: &'a Inner,
    cleaner: Cleaner,
    payload: Vec<u8>,
    /// The file that was written last.
    inode: Option<Arc<Inode>>,
    retry: Retry,
}

impl Thread for Cleaning<'_> {
    fn again(&self) -> Option<Instant> {
        self.retry.at
    }

    fn work(&mut self, wanted: u64) -> bool {
        self.cleaner.drain_to(wanted);
        if self.retry.is_due() {
            self.cleaner.retry();
        }
        let inner = self.inner;
        let fed = self.cleaner.feed(&inner.log, |_| false);
        inner.hungry.store(matches!(fed, Ok(Feed::Waits { .. })), Ordering::SeqCst);
        match fed {
            Ok(Feed::Fed | Feed::Waits { .. }) => {}
            Ok(Feed::Damaged(damage)) => drop(inner.lost(damage.to_string())),
            Err(why) => drop(inner.lost(why.to_string())),
        }
        let mut did = false;
        while let Some((token, action)) = self.cleaner.poll(|_| true) {
            did = true;
            match self.carry_out(action) {
                Ok(()) => self.cleaner.done(token),
                Err(failed) => self.failed(token, failed),
            }
            if matches!(action, Action::Free { .. }) && self.cleaner.stopped().is_none() {
                self.retry.succeeded();
                inner.room.freed();
                inner.events.happened();
                // What was wanted meanwhile comes in as well.
                break;
            }
        }
        did
    }
}

impl<'a> Cleaning<'a> {
    pub(crate) const fn new(inner: &'a Inner, cleaner: Cleaner) -> Self {
        Self { inner, cleaner, payload: Vec::new(), inode: None, retry: Retry::new() }
    }

    fn failed(&mut self, token: remanence_cache::cleaner::Token, failed: Failed) {
        let inner = self.inner;
        match failed {
            Failed::Log(why) => {
                self.cleaner.failed(token, &why);
                inner.lost(why);
            }
            Failed::File(inode, why) => {
                self.cleaner.failed(token, &why.to_string());
                self.retry.failed(inner, &inode, &why);
            }
        }
    }

    fn carry_out(&mut self, action: Action) -> Result<(), Failed> {
        let log = &self.inner.log;
        match action {
            Action::Persist { from, upto } => {
                log.secure(&(from..upto)).map_err(|why| Failed::Log(why.to_string()))
            }
            Action::Apply { entry } => self.apply(&entry),
            Action::Sync { file } => self.sync(file),
            // No entry of ours is about names.
            Action::Names => Ok(()),
            Action::Advance { tail } => log.advance(tail).map_err(|why| Failed::Log(why.to_string())),
            Action::Free { tail } => {
                self.settle(tail);
                // A file that is closed as soon as all is in it is somebody else's then.
                self.inode = None;
                log.free(tail);
                self.inner.counts.batches.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
        }
    }

    /// Waits until no page is being loaded that needs an entry below: whoever loads it is at a read of the file, and tells.
    fn settle(&self, tail: u64) {
        let mut waiter: Option<Waiter<'_>> = None;
        while !self.inner.reads.settle(tail) {
            match &mut waiter {
                None => waiter = Some(self.inner.events.waiter()),
                Some(waiter) => drop(waiter.wait(None)),
            }
        }
    }

    fn inode(&mut self, file: FileId) -> Result<Arc<Inode>, Failed> {
        if let Some(inode) = self.inode.as_ref().filter(|inode| inode.id == file) {
            return Ok(inode.clone());
        }
        let known = self.inner.files().by_id.get(&file).cloned();
        let inode = known.ok_or_else(|| Failed::Log(format!("{file} of the log is not open")))?;
        self.inode = Some(inode.clone());
        Ok(inode)
    }

    fn apply(&mut self, entry: &Entry) -> Result<(), Failed> {
        let inode = self.inode(entry.file)?;
        let mut payload = std::mem::take(&mut self.payload);
        let read = self.inner.log.payload(entry, &mut payload);
        let done = match read {
            Ok(()) => self.write(&inode, entry, &payload),
            Err(damage) => Err(Failed::Log(damage.to_string())),
        };
        self.payload = payload;
        done
    }

    fn write(&self, inode: &Arc<Inode>, entry: &Entry, payload: &[u8]) -> Result<(), Failed> {
        let file = inode.to_write();
        let done = match entry.op(payload) {
            Some(Op::Write { offset, bytes, .. }) => file.and_then(|file| file.write_all_at(bytes, offset)),
            Some(Op::Truncate { len, .. }) => file.and_then(|file| file.set_len(len)),
            _ => Err(std::io::ErrorKind::InvalidData.into()),
        };
        done.map_err(|why| Failed::File(inode.clone(), why))
    }

    fn sync(&mut self, file: FileId) -> Result<(), Failed> {
        let inode = self.inode(file)?;
        // From now on its entries say that they are not due after a crash.
        if About::of(inode.file()).is_ok_and(|about| about.links == 0) {
            inode.nameless.store(true, Ordering::Relaxed);
        }
        inode.file().sync_data().map_err(|why| Failed::File(inode.clone(), why))
    }
}
