//! What takes time, on a thread of its own: syncs of files and of the log. One thing at a time, in the order that the cleaner says.

use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;

use remanence_cache::cleaner::Token;
use remanence_cache::log::Log;
use remanence_pmem::Region;
use rustix::event::{EventfdFlags, eventfd};

use crate::segment::{Segment, SegmentWords};

/// The log as the daemon has it.
pub(super) type OwnLog = Log<Region, SegmentWords>;

/// What is to be done.
#[derive(Debug)]
pub(super) enum Job {
    /// Make these entries durable in the log.
    Secure(Range<u64>),
    /// Sync a file.
    Sync(OwnedFd),
    /// Move the persistent tail.
    Advance(u64),
}

/// Why something failed: an error's number, if there is one, and a sentence.
pub(super) type Failed = (Option<i32>, String);

/// The thread, and the way to it and back.
#[derive(Debug)]
pub(super) struct Worker {
    jobs: Option<Sender<(Token, Job)>>,
    done: Receiver<(Token, Result<(), Failed>)>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    /// It has something to do.
    pub(super) busy: bool,
}

impl Worker {
    pub(super) fn start(log: Arc<OwnLog>, segment: Segment) -> std::io::Result<Self> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (jobs, todo) = mpsc::channel::<(Token, Job)>();
        let (results, done) = mpsc::channel();
        let waker = wake.clone();
        let thread = std::thread::Builder::new().name("cache-sync".into()).spawn(move || {
            for (token, job) in todo {
                if results.send((token, carry_out(&log, segment, job))).is_err() {
                    return;
                }
                // It is only full if nobody reads it, who then has something to read.
                let _ = rustix::io::write(&*waker, &1_u64.to_le_bytes());
            }
        })?;
        Ok(Self { jobs: Some(jobs), done, wake, thread: Some(thread), busy: false })
    }

    pub(super) fn ask(&mut self, token: Token, job: Job) {
        self.busy = self.jobs.as_ref().is_some_and(|jobs| jobs.send((token, job)).is_ok());
    }

    /// What can be read when something is done.
    pub(super) fn ready(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// What was done, if anything was.
    pub(super) fn take(&mut self) -> Option<(Token, Result<(), Failed>)> {
        let _ = rustix::io::read(&*self.wake, &mut [0_u8; 8]);
        let done = self.done.try_recv().ok()?;
        self.busy = false;
        Some(done)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // It has told of its panic itself.
            let _ = thread.join();
        }
    }
}

/// How long the servers may take to have a batch, of which they keep images: longer than they are looked for.
const COPY_MS: u64 = 60_000;

fn carry_out(log: &OwnLog, segment: Segment, job: Job) -> Result<(), Failed> {
    let said = |why: std::io::Error| (why.raw_os_error(), why.to_string());
    match job {
        Job::Secure(entries) => {
            log.secure(&entries).map_err(said)?;
            // What is in no image yet is there as entries alone.
            if segment.keeps_images() && !segment.wait_copied(entries.end, COPY_MS) {
                return Err((None, "the log's copies do not get it".into()));
            }
            Ok(())
        }
        Job::Sync(fd) => File::from(fd).sync_all().map_err(said),
        Job::Advance(tail) => log.advance(tail).map_err(|why| (None, why.to_string())),
    }
}
