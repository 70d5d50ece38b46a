//! The log's copy on servers: a thread that sends them what is committed, when a sync asks for it, and says what they have.
//!
//! The servers are those of `rem log serve`, and the copy is a log of theirs with records of [`remanence_cache::copy`]. Its writer is this daemon
//! alone: whoever opens it later, to recover it elsewhere, shuts this one out, and every sync from then on fails. A server that is lost is done without, and
//! connected to again, as long as enough of them acknowledge. If too few are left, all is begun anew with those that can be reached: the log has
//! everything that is not in its files, and it is sent again.
//!
//! One thing goes on at a time: what is asked for meanwhile goes with the next record, so many syncs share one.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use remanence_cache::copy::Copier;
use rustix::event::{EventfdFlags, eventfd};

use super::DaemonError;
use super::work::OwnLog;
use crate::copies::{Copies, Failed, Servers};
use crate::segment::Segment;
use crate::sys;

/// Records that are sent together.
const TOGETHER: usize = 8;
/// How long servers are looked for, of which too few are left, before programs are told.
const LOOKED_FOR_MS: u64 = 10_000;
/// How long the log's tail may take to move on when the servers' logs are full.
const ROOM_MS: u64 = 10_000;

/// How the copy stands.
#[derive(Clone, Default, Debug)]
pub(super) struct Standing {
    /// How many servers acknowledge, of how many.
    pub(super) quorum: (usize, usize),
    /// The servers that do without, and why.
    pub(super) lost: Vec<(String, String)>,
    /// Why nothing is copied any more.
    pub(super) failed: Option<String>,
}

/// What the thread is to do.
const GO_ON: u8 = 0;
const CLOSE: u8 = 1;
const END: u8 = 2;

#[derive(Debug)]
struct Shared {
    ask: AtomicU8,
    standing: Mutex<Standing>,
    /// It can be read when the tail is to move on, or something has failed.
    wake: OwnedFd,
}

impl Shared {
    fn standing(&self) -> MutexGuard<'_, Standing> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1_u64.to_le_bytes());
    }
}

/// The thread that copies, as the daemon has it.
#[derive(Debug)]
pub(super) struct Copying {
    shared: Arc<Shared>,
    segment: Segment,
    thread: Option<JoinHandle<()>>,
}

impl Copying {
    /// Opens the copy, which has to be closed or of this very log; it is when this returns.
    pub(super) fn start(copies: &Copies, log: Arc<OwnLog>, segment: Segment) -> Result<Self, DaemonError> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = eventfd(0, flags).map_err(|why| DaemonError::System("an eventfd".into(), why.into()))?;
        let standing = Mutex::default();
        let shared = Arc::new(Shared { ask: AtomicU8::new(GO_ON), standing, wake });
        let (opened, result) = mpsc::channel();
        let (told, copies) = (Arc::clone(&shared), copies.clone());
        let run = move || run(copies, &log, segment, &told, &opened);
        let thread = std::thread::Builder::new().name("cache-copy".into()).spawn(run);
        let thread = thread.map_err(|why| DaemonError::System("a thread".into(), why))?;
        let copying = Self { shared, segment, thread: Some(thread) };
        let said = result.recv().unwrap_or_else(|_| Err("the thread that copies the log has ended".into()));
        said.map(|()| copying).map_err(DaemonError::Said)
    }

    /// What can be read when [`take`](Self::take) has something to say.
    pub(super) fn ready(&self) -> BorrowedFd<'_> {
        self.shared.wake.as_fd()
    }

    /// Whether the log is to be drained, as the servers have no room for more; or why nothing is copied any more.
    pub(super) fn take(&self) -> (bool, Option<String>) {
        let asked = rustix::io::read(&self.shared.wake, &mut [0_u8; 8]).is_ok();
        (asked, self.shared.standing().failed.clone())
    }

    pub(super) fn standing(&self) -> Standing {
        self.shared.standing().clone()
    }

    /// Says to the servers that all is in its files, and ends.
    pub(super) fn close(mut self) -> Result<(), DaemonError> {
        self.end(CLOSE);
        match self.shared.standing().failed.take() {
            Some(why) => Err(DaemonError::Said(why)),
            None => Ok(()),
        }
    }

    fn end(&mut self, how: u8) {
        if let Some(thread) = self.thread.take() {
            self.shared.ask.store(how, Ordering::SeqCst);
            self.segment.ask_to_copy();
            // It has told of its panic itself.
            let _ = thread.join();
        }
    }
}

impl Drop for Copying {
    fn drop(&mut self) {
        self.end(END);
    }
}

fn run(
    copies: Copies,
    log: &Arc<OwnLog>,
    segment: Segment,
    shared: &Shared,
    opened: &Sender<Result<(), String>>,
) {
    let mut copy = match Copy::open(copies, Arc::clone(log), segment) {
        Ok(copy) => copy,
        Err(why) => return opened.send(Err(why)).unwrap_or_default(),
    };
    copy.tell(shared);
    if opened.send(Ok(())).is_err() {
        return;
    }
    loop {
        let seen = segment.asked().load(Ordering::SeqCst);
        let ask = shared.ask.load(Ordering::SeqCst);
        let done = match ask {
            GO_ON => copy.turn(shared),
            CLOSE => copy.close(),
            _ => return,
        };
        copy.tell(shared);
        match done {
            Ok(true) => {}
            Ok(false) if ask == CLOSE => return,
            Ok(false) => sys::wait(segment.asked(), seen as u32, u64::from(u32::MAX)),
            Err(why) => {
                shared.standing().failed = Some(format!("the log's copies failed: {why}"));
                segment.fail();
                return shared.wake();
            }
        }
    }
}

/// A record that is not given up.
struct Kept {
    number: u64,
    /// It is needed as long as the tail is below.
    upto: u64,
    bytes: u64,
}

struct Copy {
    copies: Copies,
    log: Arc<OwnLog>,
    segment: Segment,
    copier: Copier,
    servers: Servers,
    kept: VecDeque<Kept>,
    /// Bytes of those.
    bytes: u64,
    /// The highest tail that was sent.
    tail: u64,
}

impl Copy {
    fn open(copies: Copies, log: Arc<OwnLog>, segment: Segment) -> Result<Self, String> {
        let (servers, found) = Servers::open(&copies)?;
        // What an earlier daemon of this very log has left is in it, and was recovered from there.
        if !found.is_closed() && (found.is_taken() || found.layout() != Some(log.layout())) {
            return Err(format!(
                "the log on these servers was not closed, and may have what files lack: `rem cache recover --from {copies}`"
            ));
        }
        let copier = Copier::new(&log);
        let (kept, bytes) = (VecDeque::new(), 0);
        let mut copy = Self { copies, log, segment, copier, servers, kept, bytes, tail: 0 };
        copy.shrink()?;
        copy.segment.copied_tail(copy.tail);
        Ok(copy)
    }

    fn tell(&self, shared: &Shared) {
        let (quorum, lost) = self.servers.standing();
        let mut standing = shared.standing();
        standing.quorum = quorum;
        standing.lost = lost;
    }

    /// Copies what is asked for. Whether there was anything.
    fn turn(&mut self, shared: &Shared) -> Result<bool, String> {
        let until = sys::monotonic() + LOOKED_FOR_MS * 1_000_000;
        let mut done = self.try_turn(shared);
        loop {
            match done {
                Ok(any) => return Ok(any),
                Err(Failed::ForGood(why)) => return Err(why),
                Err(Failed::Lost(why)) if sys::monotonic() >= until => return Err(why),
                Err(Failed::Lost(_)) => {}
            }
            done = match Servers::open(&self.copies) {
                // This machine was given up, and what was on its way is with whoever recovers it.
                Ok((_, found))
                    if found.is_closed() || found.is_taken() || found.layout() != Some(self.log.layout()) =>
                {
                    Err(Failed::ForGood("somebody else has recovered the log, or does".into()))
                }
                Ok((servers, _)) => self.begin_anew(servers).map(|()| true),
                Err(failed) => Err(failed),
            };
        }
    }

    /// Sends all that the log has to servers that were opened again.
    fn begin_anew(&mut self, servers: Servers) -> Result<(), Failed> {
        self.servers = servers;
        self.copier = Copier::new(&self.log);
        // What is there already is needed until all was sent again.
        let upto = self.log.head();
        self.kept.clear();
        self.kept.push_back(Kept { number: 0, upto, bytes: self.bytes });
        self.send_all()
    }

    fn try_turn(&mut self, shared: &Shared) -> Result<bool, Failed> {
        let (upto, tail) = self.segment.asked_to_copy();
        // Whoever has the segment can write there what he likes.
        let (upto, tail) = (upto.min(self.log.head()), tail.min(self.log.tail()));
        let mut any = false;
        if self.segment.copied_upto() < upto {
            any = true;
            self.make_room(shared)?;
            self.send_all()?;
        }
        if self.tail < tail {
            any = true;
            self.shrink()?;
        }
        self.segment.copied_tail(self.tail);
        Ok(any)
    }

    /// Sends what is committed.
    fn send_all(&mut self) -> Result<(), Failed> {
        loop {
            let mut batches = Vec::new();
            while batches.len() < TOGETHER {
                let next = self.copier.next(&self.log, self.servers.record());
                match next.map_err(|why| Failed::ForGood(why.to_string()))? {
                    Some(batch) => batches.push(batch),
                    None => break,
                }
            }
            let more = batches.len() == TOGETHER;
            if !batches.is_empty() {
                let about: Vec<(u64, u64, u64)> =
                    batches.iter().map(|batch| (batch.upto, batch.record.len() as u64, batch.tail)).collect();
                let records = batches.into_iter().map(|batch| batch.record).collect();
                let first = self.servers.send(records)?;
                for (number, (upto, bytes, tail)) in (first..).zip(about) {
                    self.kept.push_back(Kept { number, upto, bytes });
                    self.bytes += bytes;
                    self.tail = self.tail.max(tail);
                }
            }
            self.segment.copied(self.copier.sent());
            if !more {
                return Ok(());
            }
        }
    }

    /// Says what the servers need to know still, and gives up what they do not.
    fn shrink(&mut self) -> Result<(), Failed> {
        let (tail, records) = self.copier.base(&self.log, self.servers.record());
        let base = self.servers.send(records)?;
        self.tail = self.tail.max(tail);
        while self.kept.front().is_some_and(|kept| kept.upto <= tail) {
            self.bytes -= self.kept.pop_front().map_or(0, |kept| kept.bytes);
        }
        let below = self.kept.front().map_or(base, |kept| kept.number);
        Ok(self.servers.trim(below)?)
    }

    /// Sees to it that a half of the servers' logs is free.
    fn make_room(&mut self, shared: &Shared) -> Result<(), Failed> {
        let (quarter, half) = (self.servers.capacity() / 4, self.servers.capacity() / 2);
        if self.bytes < quarter {
            return Ok(());
        }
        self.shrink()?;
        let until = sys::monotonic() + ROOM_MS * 1_000_000;
        while self.bytes >= half {
            let space = self.segment.space().load(Ordering::SeqCst);
            shared.wake();
            if sys::monotonic() >= until {
                let why = "the servers' logs are full, and nothing of what they have comes into its files";
                return Err(Failed::ForGood(why.into()));
            }
            sys::wait(self.segment.space(), space as u32, 100);
            self.shrink()?;
        }
        Ok(())
    }

    /// Says that all is in its files.
    fn close(&self) -> Result<bool, String> {
        self.servers
            .close(Copier::closed(self.log.layout(), self.log.tail()))
            .map_err(|why| why.to_string())?;
        Ok(false)
    }
}
