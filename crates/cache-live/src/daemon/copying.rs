//! The log's copy on servers: a thread that sends them what is committed, when a sync asks for it, and says what they have.
//!
//! The servers are those of `rem log serve`, and the copy is a log of theirs with records of [`remanence_cache::copy`]. Its writer is this daemon
//! alone: whoever opens it later, to recover it elsewhere, shuts this one out, and every sync from then on fails. A server that is lost is done without, and
//! connected to again, as long as enough of them acknowledge. If too few are left, all is begun anew with those that can be reached: the log has
//! everything that is not in its files, and it is sent again.
//!
//! One thing goes on at a time: what is asked for meanwhile goes with the next record, so many syncs share one.
//!
//! **Images of files**, where they are kept ([`remanence_cache::images`]), are records between these: one at a time, of a few pieces of a file, and behind each of them syncs are
//! looked after. The log's entries are then not freed before the servers have them (`work.rs`), and so are never waited for by what waits here. Of the servers' room
//! three times the log is for entries, some of which are sent twice; a half of the rest is for images, and the other half to move them.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use remanence_cache::copy::{Batch, Copier, Rebuilt};
use remanence_cache::format::Layout;
use remanence_cache::imager::Room;
use remanence_cache::images::is_image;
use rustix::event::{EventfdFlags, eventfd};

use super::DaemonError;
use super::imaging::{self, Imaging, Next};
use super::records::Records;
use super::work::OwnLog;
use crate::copies::{Copies, Failed, Servers};
use crate::segment::{Key, Segment};
use crate::sys;

/// Records that are sent together.
const TOGETHER: usize = 8;
/// How long servers are looked for, of which too few are left, before programs are told.
const LOOKED_FOR_MS: u64 = 10_000;
/// How long the log's tail may take to move on when the servers' logs are full.
const ROOM_MS: u64 = 10_000;
/// Why a log without images is not begun.
const HAS_IMAGES: &str = "these servers have images of files, which a log without them would give up: say --images, or serve another log";
/// Steps that send nothing before syncs are looked after.
const NOTHING: usize = 32;
/// How long a file is left alone that somebody is at all the time.
const BUSY_MS: u64 = 5;

/// How the copy stands.
#[derive(Clone, Default, Debug)]
pub(super) struct Standing {
    /// How many servers acknowledge, of how many.
    pub(super) quorum: (usize, usize),
    /// The servers that do without, and why.
    pub(super) lost: Vec<(String, String)>,
    /// Why nothing is copied any more.
    pub(super) failed: Option<String>,
    /// The images of files, if some are kept.
    pub(super) images: Option<imaging::Standing>,
}

/// What the thread is to do.
const GO_ON: u8 = 0;
const CLOSE: u8 = 1;
const END: u8 = 2;

#[derive(Debug)]
struct Shared {
    ask: AtomicU8,
    standing: Mutex<Standing>,
    /// Files of which images are to be kept, and which the thread does not know yet.
    fresh: Mutex<Vec<(Key, File)>>,
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
        let shared = Arc::new(Shared { ask: AtomicU8::new(GO_ON), standing, fresh: Mutex::default(), wake });
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

    /// Files were taken into the table.
    pub(super) fn fresh(&self, files: Vec<(Key, File)>) {
        self.shared.fresh.lock().unwrap_or_else(PoisonError::into_inner).extend(files);
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
            CLOSE => copy.close(shared),
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

struct Copy {
    copies: Copies,
    log: Arc<OwnLog>,
    segment: Segment,
    copier: Copier,
    servers: Servers,
    records: Records,
    /// The highest tail that was sent.
    tail: u64,
    /// The number behind the last record that is known.
    behind: u64,
    imaging: Option<Imaging>,
    /// The images have changed since they were told of.
    imaged: bool,
}

/// What became of a step of the images.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stepped {
    /// There is none.
    Idle,
    /// Somebody is at the file.
    Busy,
    /// The servers have it already.
    Nothing,
    /// A record was sent.
    Sent,
}

/// What so many bytes of a record take on a server, with its head and what is left at the end of a segment.
const fn taken(bytes: usize) -> u64 {
    bytes as u64 + bytes as u64 / 8 + 64
}

/// Bytes of all entries of a log.
fn entries(layout: &Layout) -> u64 {
    layout.geometry.entries * (u64::from(layout.geometry.slot) + 64)
}

impl Copy {
    fn open(copies: Copies, log: Arc<OwnLog>, segment: Segment) -> Result<Self, String> {
        let mut imaging = copies.images.then(|| Imaging::new(0));
        let mut all = Records::default();
        let mut told = |number: u64, record: &[u8]| {
            let Some(imaging) = &mut imaging else {
                return if is_image(record) { Err(HAS_IMAGES.into()) } else { Ok(()) };
            };
            all.push(number, 0, taken(record.len()));
            imaging.imager.recorded(number, record).map_err(|why| why.to_string())
        };
        let (servers, found) = Servers::open(&copies, &mut told)?;
        // What an earlier daemon of this very log has left is in it, and was recovered from there.
        if !found.is_closed() && (found.is_taken() || found.layout() != Some(log.layout())) {
            return Err(format!(
                "the log on these servers was not closed, and may have what files lack: `rem cache recover --from {copies}`"
            ));
        }
        if let Some(imaging) = &mut imaging {
            let (has, log_layout) = (servers.capacity(), log.layout());
            let log = entries(log_layout);
            if has < log * 4 {
                return Err(format!(
                    "the logs of these servers have room for {has} bytes each, and with images of files they need {} at least: four times the log here, and twice the files; serve larger ones, or choose a smaller log with --size",
                    log * 4
                ));
            }
            imaging.imager.set_room((has - log * 3) / 2);
            let is_here = found.layout() == Some(log_layout);
            imaging
                .find(is_here)
                .map_err(|why| format!("{why} {copies} --into DIRECTORY` makes them again"))?;
            segment.ask_to_look();
        }
        let copier = if copies.images { Copier::with_images(&log) } else { Copier::new(&log) };
        let mut copy = Self {
            copies,
            log,
            segment,
            copier,
            servers,
            records: all,
            tail: 0,
            behind: 0,
            imaging,
            imaged: true,
        };
        copy.shrink()?;
        copy.segment.copied_tail(copy.tail);
        Ok(copy)
    }

    fn tell(&mut self, shared: &Shared) {
        let (quorum, lost) = self.servers.standing();
        let mut standing = shared.standing();
        standing.quorum = quorum;
        standing.lost = lost;
        if std::mem::take(&mut self.imaged) {
            standing.images = self.imaging.as_ref().map(Imaging::standing);
        }
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
            let opened = self.open_again();
            done = match opened {
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

    /// Opens the servers' log again. What they have of the last records, which nobody has acknowledged, counts.
    fn open_again(&mut self) -> Result<(Servers, Rebuilt), Failed> {
        let Self { copies, imaging, records, behind, .. } = self;
        let mut told = |number: u64, record: &[u8]| match imaging {
            Some(imaging) if number >= *behind => {
                *behind = number + 1;
                records.push(number, 0, taken(record.len()));
                imaging.imager.recorded(number, record).map_err(|why| why.to_string())
            }
            _ => Ok(()),
        };
        Servers::open(copies, &mut told)
    }

    /// Sends all that the log has to servers that were opened again.
    fn begin_anew(&mut self, servers: Servers) -> Result<(), Failed> {
        self.servers = servers;
        if self.imaging.is_some() {
            // What was acknowledged has the numbers that it had, and is needed for what it was.
            self.copier = Copier::with_images(&self.log);
            return self.send_all();
        }
        self.copier = Copier::new(&self.log);
        // What is there already is needed until all was sent again.
        let upto = self.log.head();
        self.records.replace(0, upto);
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
        Ok(self.image(shared)? || any)
    }

    /// Does the next thing for images of files. Whether there was anything.
    fn image(&mut self, shared: &Shared) -> Result<bool, Failed> {
        if self.imaging.is_some() {
            self.make_room(shared)?;
        }
        let Some(imaging) = &mut self.imaging else { return Ok(false) };
        imaging.take(self.segment, || {
            std::mem::take(&mut *shared.fresh.lock().unwrap_or_else(PoisonError::into_inner))
        });
        let is_full = self.records.bytes() > 2 * imaging.imager.room();
        // What is in no file yet is drained first.
        let is_held = self.records.is_held(self.log.tail());
        if is_full && is_held {
            shared.wake();
        }
        let room = if is_full && !is_held { Room::Low } else { Room::Enough };
        let seen = self.segment.asked().load(Ordering::SeqCst);
        let mut any = true;
        for _ in 0..NOTHING {
            match self.image_step(room)? {
                Stepped::Sent => break,
                // It costs a reading.
                Stepped::Nothing => {}
                Stepped::Idle => {
                    any = false;
                    break;
                }
                Stepped::Busy => {
                    sys::wait(self.segment.asked(), seen as u32, BUSY_MS);
                    break;
                }
            }
        }
        self.imaged |= any;
        if is_full && self.is_shrinking() {
            self.shrink()?;
        }
        if let Some(imaging) = &mut self.imaging {
            imaging.serve(self.segment);
        }
        Ok(any)
    }

    /// Does one step of the images.
    fn image_step(&mut self, room: Room) -> Result<Stepped, Failed> {
        let max = self.servers.record();
        let Some(imaging) = &mut self.imaging else { return Ok(Stepped::Idle) };
        let (at, step, read) = match imaging.next(&self.log, self.segment, max, room) {
            Next::Idle => return Ok(Stepped::Idle),
            Next::Busy => return Ok(Stepped::Busy),
            Next::Step(at, step, read) => (at, step, read),
        };
        // What the servers have of the file is told by what comes before it.
        if self.copier.sent() < at {
            self.send(at, None)?;
        }
        let record = self.imaging.as_mut().and_then(|imaging| imaging.record(&self.log, &step, read));
        match record {
            Some(record) => self.send(at, Some(record)).map(|()| Stepped::Sent),
            None => Ok(Stepped::Nothing),
        }
    }

    /// Whether the oldest record is needed by nobody.
    fn is_shrinking(&mut self) -> bool {
        let tail = self.log.tail();
        self.records.oldest().is_some_and(|oldest| self.begins(tail, u64::MAX) > oldest)
    }

    /// With which record what is needed may begin, `below` at most, where the log has all below `tail` in its files.
    fn begins(&mut self, tail: u64, below: u64) -> u64 {
        let below = self.records.first_needed(tail).unwrap_or(below);
        self.imaging.as_ref().map_or(below, |imaging| imaging.imager.keeper().begins(below))
    }

    /// Sends what is committed.
    fn send_all(&mut self) -> Result<(), Failed> {
        self.send(u64::MAX, None)
    }

    /// Sends what is committed below an index, and an image behind it.
    fn send(&mut self, limit: u64, mut image: Option<Vec<u8>>) -> Result<(), Failed> {
        let is_image = image.is_some();
        if is_image && self.copier.sent() > limit {
            // What came behind it is sent already: it is made anew.
            return Ok(());
        }
        loop {
            let mut batches = Vec::new();
            while batches.len() < TOGETHER {
                let next = self.copier.next_below(&self.log, self.servers.record(), limit);
                match next.map_err(|why| Failed::ForGood(why.to_string()))? {
                    Some(batch) => batches.push(batch),
                    None => break,
                }
            }
            let more = batches.len() == TOGETHER;
            if !more && let Some(record) = image.take() {
                batches.push(Batch { record, upto: 0, tail: 0 });
            }
            if !batches.is_empty() {
                let about: Vec<(u64, u64, u64)> =
                    batches.iter().map(|batch| (batch.upto, taken(batch.record.len()), batch.tail)).collect();
                let records: Vec<Vec<u8>> = batches.into_iter().map(|batch| batch.record).collect();
                let copied = if self.imaging.is_some() { records.clone() } else { Vec::new() };
                let first = self.servers.send(records)?;
                self.behind = first + about.len() as u64;
                for (number, (upto, bytes, tail)) in (first..).zip(about) {
                    self.records.push(number, upto, bytes);
                    self.tail = self.tail.max(tail);
                }
                if let Some(imaging) = &mut self.imaging {
                    for (number, record) in (first..).zip(&copied) {
                        let taken = imaging.imager.recorded(number, record);
                        taken.map_err(|why| Failed::ForGood(why.to_string()))?;
                    }
                }
            }
            self.segment.copied(self.copier.sent());
            if !more {
                if is_image && let Some(imaging) = &mut self.imaging {
                    imaging.imager.done();
                }
                return Ok(());
            }
        }
    }

    /// Says what the servers need to know still, and gives up what they do not.
    fn shrink(&mut self) -> Result<(), Failed> {
        let (tail, records) = self.copier.base(&self.log, self.servers.record());
        let sizes: Vec<u64> = records.iter().map(|record| taken(record.len())).collect();
        let base = self.servers.send(records)?;
        self.behind = base + sizes.len() as u64;
        self.tail = self.tail.max(tail);
        let below = self.begins(tail, base);
        self.records.give_up(below);
        if let Some(imaging) = &mut self.imaging {
            imaging.imager.trimmed(below);
            // They lie between what is kept.
            (base..).zip(sizes).for_each(|(number, bytes)| self.records.push(number, 0, bytes));
        }
        Ok(self.servers.trim(below)?)
    }

    /// Sees to it that a half of the servers' logs is free.
    fn make_room(&mut self, shared: &Shared) -> Result<(), Failed> {
        if self.imaging.is_some() {
            return self.make_room_of_images(shared);
        }
        let (quarter, half) = (self.servers.capacity() / 4, self.servers.capacity() / 2);
        if self.records.bytes() < quarter {
            return Ok(());
        }
        self.shrink()?;
        let until = sys::monotonic() + ROOM_MS * 1_000_000;
        while self.records.bytes() >= half {
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

    /// Sees to it that there is room for twice the log, whatever comes. Entries are sent meanwhile, as no file has them otherwise.
    fn make_room_of_images(&mut self, shared: &Shared) -> Result<(), Failed> {
        let most = self.servers.capacity().saturating_sub(2 * entries(self.log.layout()));
        let mut until = sys::monotonic() + ROOM_MS * 1_000_000;
        let mut oldest = None;
        while self.records.bytes() >= most {
            let front = self.records.oldest();
            if front != oldest {
                (oldest, until) = (front, sys::monotonic() + ROOM_MS * 1_000_000);
            }
            if sys::monotonic() >= until {
                let why = "the servers' logs are full, and nothing of what they have can be given up";
                return Err(Failed::ForGood(why.into()));
            }
            let space = self.segment.space().load(Ordering::SeqCst);
            self.send_all()?;
            if self.is_shrinking() {
                self.shrink()?;
                continue;
            }
            let is_held = self.records.is_held(self.log.tail());
            let stepped = if is_held { Stepped::Idle } else { self.image_step(Room::None)? };
            if matches!(stepped, Stepped::Idle | Stepped::Busy) {
                shared.wake();
                sys::wait(self.segment.space(), space as u32, 100);
            }
        }
        Ok(())
    }

    /// Says that all is in its files; their images stay.
    fn close(&mut self, shared: &Shared) -> Result<bool, String> {
        if self.imaging.is_some() {
            self.segment.ask_to_look();
            let until = sys::monotonic() + LOOKED_FOR_MS * 1_000_000;
            while self.image(shared).map_err(String::from)?
                && self.imaging.as_ref().is_some_and(|imaging| imaging.imager.is_waited_for())
                && sys::monotonic() < until
            {}
            self.shrink().map_err(String::from)?;
            self.segment.end_images();
        }
        let below = self.records.oldest().filter(|_| self.imaging.is_some());
        self.servers
            .close(Copier::closed(self.log.layout(), self.log.tail()), below)
            .map_err(|why| why.to_string())?;
        Ok(false)
    }
}
