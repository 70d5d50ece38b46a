//! What takes time, on a thread of its own: syncs of files and of the log. One thing at a time, in the order that the cleaner says.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;

use remanence_cache::cleaner::Token;
use remanence_cache::log::Log;
use remanence_pmem::Region;
use rustix::event::{EventfdFlags, eventfd};

use super::files::ToSync;
use crate::segment::{Segment, SegmentWords};

/// The log as the daemon has it.
pub(super) type OwnLog = Log<Region, SegmentWords>;

/// What is to be done.
#[derive(Debug)]
pub(super) enum Job {
    /// Make these entries durable in the log.
    Secure(Range<u64>),
    /// Sync a file.
    Sync(ToSync),
    /// Move the persistent tail.
    Advance(u64),
}

/// Files, by the paths that they had when they were opened.
pub(super) type Named = Vec<(PathBuf, io::Result<OwnedFd>)>;

/// Why something failed: an error's number, if there is one, and a sentence.
pub(super) type Failed = (Option<i32>, String);

/// What is asked of the thread.
enum Asked {
    /// By the cleaner.
    One(Token, Job),
    /// Sync all of these, whatever becomes of one of them.
    All(Named),
}

/// What it has done.
#[derive(Debug)]
pub(super) enum Done {
    /// What the cleaner has asked for.
    One(Token, Result<(), Failed>),
    /// All were synced; or which could not be.
    All(Result<(), String>),
}

/// The thread, and the way to it and back.
#[derive(Debug)]
pub(super) struct Worker {
    jobs: Option<Sender<Asked>>,
    done: Receiver<Done>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    /// How much it has to do.
    asked: usize,
}

impl Worker {
    pub(super) fn start(log: Arc<OwnLog>, segment: Segment) -> io::Result<Self> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (jobs, todo) = mpsc::channel::<Asked>();
        let (results, done) = mpsc::channel();
        let waker = wake.clone();
        let thread = std::thread::Builder::new().name("cache-sync".into()).spawn(move || {
            for asked in todo {
                let done = match asked {
                    Asked::One(token, job) => Done::One(token, carry_out(&log, segment, job)),
                    Asked::All(files) => Done::All(sync_all(files)),
                };
                if results.send(done).is_err() {
                    return;
                }
                // It is only full if nobody reads it, who then has something to read.
                let _ = rustix::io::write(&*waker, &1_u64.to_le_bytes());
            }
        })?;
        Ok(Self { jobs: Some(jobs), done, wake, thread: Some(thread), asked: 0 })
    }

    pub(super) fn ask(&mut self, token: Token, job: Job) {
        self.send(Asked::One(token, job));
    }

    /// Has files synced, behind what was asked for.
    pub(super) fn sync(&mut self, files: Named) {
        self.send(Asked::All(files));
    }

    fn send(&mut self, asked: Asked) {
        self.asked += usize::from(self.jobs.as_ref().is_some_and(|jobs| jobs.send(asked).is_ok()));
    }

    /// Whether it has something to do.
    pub(super) const fn is_busy(&self) -> bool {
        self.asked > 0
    }

    /// What can be read when something is done.
    pub(super) fn ready(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// What was done, if anything was.
    pub(super) fn take(&mut self) -> Option<Done> {
        let _ = rustix::io::read(&*self.wake, &mut [0_u8; 8]);
        let done = self.done.try_recv().ok()?;
        self.asked -= 1;
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
    let said = |why: io::Error| (why.raw_os_error(), why.to_string());
    match job {
        Job::Secure(entries) => {
            log.secure(&entries).map_err(said)?;
            // What is in no image yet is there as entries alone.
            if segment.keeps_images() && !segment.wait_copied(entries.end, COPY_MS) {
                return Err((None, "the log's copies do not get it".into()));
            }
            Ok(())
        }
        Job::Sync(ToSync::File(fd)) => File::from(fd).sync_all().map_err(said),
        Job::Sync(ToSync::System(fd)) => rustix::fs::syncfs(fd).map_err(|why| said(why.into())),
        Job::Advance(tail) => log.advance(tail).map_err(|why| (None, why.to_string())),
    }
}

fn sync_all(files: Named) -> Result<(), String> {
    let failed = |(path, fd): (PathBuf, io::Result<OwnedFd>)| {
        let synced = fd.and_then(|fd| File::from(fd).sync_all());
        synced.err().map(|why| format!("{}: {why}", path.display()))
    };
    let failed: Vec<String> = files.into_iter().filter_map(failed).collect();
    match &failed[..] {
        [] => Ok(()),
        [only] => Err(only.clone()),
        [first, more @ ..] => Err(format!("{first}; and {} more", more.len())),
    }
}
