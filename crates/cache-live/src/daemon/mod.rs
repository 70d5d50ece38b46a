//! The daemon: owns the log, hands it out to programs, and has what is in it synced into its files.
//!
//! One loop that sleeps until something happens: a question, a process that died, a file that lost its last name, something that was done, the
//! signal to end. What takes long is done by a thread of its own (`work.rs`). It survives its programs: of one that died the unfinished entries
//! become holes, the locks are broken, and the files marked. In the mode *through* it writes no data: the kernel's page cache has it; so it
//! syncs each file of a batch once, and then moves the tail.
//!
//! **What fails stops it.** After a sync that failed a page cache may have dropped what it could not write, so a second one would prove nothing. The
//! log keeps everything, the program's next sync says the error, and a recovery writes from the log.

mod copying;
mod dirty;
mod files;
mod imaging;
mod records;
mod rules;
mod seats;
mod short;
mod watch;
mod work;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use remanence_cache::cleaner::{self, Action, Cleaner, Feed};
use remanence_cache::entry::Owner;
use remanence_cache::format::{self, Geometry, Layout, OpenError, Promise};
use remanence_cache::log::Log;
use remanence_cache::table::FileTable;
use remanence_cache::words::{Word, Words as _};
use remanence_pmem::image::Fault;
use remanence_pmem::layout::Uuid;
use remanence_pmem::{Region, StoreGranularity};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, getrlimit, pidfd_open, setrlimit};

use copying::Copying;
pub use dirty::recovered;
use files::Files;
pub use rules::{Paths, Rule};
use seats::{Numbers, Places};
use watch::LogWatch;
use work::{Done, Failed, Job, OwnLog, Worker};

use crate::copies::Copies;
use crate::memory;
use crate::segment::{self, CLIENTS, Count, DAEMON, FILES, Segment, why};
use crate::sys;
use crate::wire::{self, Answer, Kind, Question};

/// Entries of a log that is made, if nobody says how many: 128 MiB of them.
const ENTRIES: u64 = (128 << 20) / (4096 + 64);
/// How soon the next entry is looked at again whose writer is at it.
const AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
/// So many have connected and asked nothing yet, or wait for an answer.
const ASKING: usize = 512;
/// So many questions are answered before anything else is done again.
const AT_ONCE: usize = 32;
/// Files that a status lists, and about how many bytes of them: it is one message.
const LISTED: usize = 200;
const LISTED_MAX: usize = 64 << 10;

/// How a daemon is to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The file of the log, which is made if it is not there.
    pub log: PathBuf,
    /// Entries that the log has, if that is asked for: one that is there already has to have as many.
    pub entries: Option<u64>,
    /// A batch ends with so many entries; by default as many as [`cleaner::Options::usual`] says.
    pub batch: Option<u64>,
    /// What is cached.
    pub paths: Paths,
    /// Who has a copy of the log, for which syncs wait.
    pub copies: Option<Copies>,
    /// Each change is to be durable when it returns, and not only when the program syncs.
    pub strict: bool,
    /// What has lain in the log for so long comes into its files; `None`: as long as there is room.
    pub drain_after: Option<Duration>,
}

/// Why a daemon does not run, or has not ended well.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The log cannot be used.
    #[error("{0}: {1}")]
    Log(PathBuf, OpenError),
    /// The log's file cannot be used.
    #[error("{0}")]
    Medium(#[from] remanence_pmem::Error),
    /// The system refuses something.
    #[error("{0}: {1}")]
    System(String, io::Error),
    /// A sentence that says what to do.
    #[error("{0}")]
    Said(String),
}

fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> DaemonError {
    let what = what.into();
    move |why| DaemonError::System(what, why)
}

/// Where the daemon of a log listens.
#[must_use]
pub fn socket_of(log: &Path) -> PathBuf {
    let mut path = log.as_os_str().to_owned();
    path.push(".sock");
    path.into()
}

/// What is said of a log that is not as large as somebody asks.
#[must_use]
pub fn of_another_size(log: &Path, has: u64, wants: u64) -> String {
    format!(
        "{} is there already and has {has} entries, and one of the size that is asked for has {wants}: leave the size out, or name another log",
        log.display()
    )
}

/// Where the segment of a log's daemon is: in memory, and gone with the kernel, as it has nothing that a recovery needs.
///
/// # Errors
/// The log's file cannot be looked at, or there is no such memory.
pub fn segment_of(log: &File) -> io::Result<PathBuf> {
    Ok(memory::own()?.join(segment::name_of(&log.metadata()?)))
}

/// Serves until `stop` can be read or somebody asks it to end. A log that was not closed is recovered first, where that needs nobody's decision. `ready` is called
/// when programs can join, with what is to be said of a recovery.
///
/// # Errors
/// It cannot begin; or something is left in the log, which is to be recovered.
pub fn serve(
    options: &Options,
    stop: BorrowedFd<'_>,
    ready: impl FnOnce(Option<&str>),
) -> Result<(), DaemonError> {
    let (mut daemon, listener, recovered) = Daemon::open(options)?;
    ready(recovered.as_deref());
    let ended = daemon.run(stop, &listener);
    drop(listener);
    // Nobody finds it any more; and whoever has the segment is told by it. Where another daemon has a log in the place of ours the socket is its.
    let socket = socket_of(&daemon.path);
    if identity_of(&socket).is_ok_and(|there| there == daemon.socket) {
        let _ = fs::remove_file(socket);
    }
    // Programs that go on look for the next one from now on.
    daemon.segment.retire();
    if daemon.lost.is_some() {
        // Nobody comes to look for it: another log has another one.
        let _ = fs::remove_file(&daemon.segment_path);
    }
    let asked = daemon.ending.take().unwrap_or_default();
    let closed = ended.and_then(|()| daemon.close());
    // Nobody has the log any more when they hear of it.
    let error = if closed.is_ok() { 0 } else { libc::EIO };
    for asked in asked {
        answered(&asked, &Answer { error, ..Answer::default() }.emit(), &[]);
    }
    closed
}

/// Sees to it that programs which a daemon has left behind append nothing to its log any more: before somebody else owns it, or recovers it.
///
/// # Errors
/// One of them is in the middle of a change, and does not go on; or the segment is not ours.
pub fn retire(log: &File) -> Result<(), DaemonError> {
    let path = segment_of(log).map_err(system("the log's file"))?;
    refuse_strangers(&path)?;
    let mut options = File::options();
    let left = match options.read(true).write(true).custom_flags(libc::O_NOFOLLOW).open(&path) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(()),
        left => left.map_err(system(path.display().to_string()))?,
    };
    let found = left.metadata().map_err(system(path.display().to_string()))?;
    if found.uid() != rustix::process::geteuid().as_raw() {
        return Err(DaemonError::Said(format!("{} is no segment of ours: remove it", path.display())));
    }
    if found.len() < segment::LEN {
        // Its maker was killed before anybody had it.
        return fs::remove_file(&path).map_err(system(path.display().to_string()));
    }
    let words = sys::map_words(left.as_raw_fd(), segment::WORDS).map_err(|errno| {
        DaemonError::System(path.display().to_string(), io::Error::from_raw_os_error(errno))
    })?;
    if let Some(segment) = Segment::of(words).filter(|segment| segment.is_ours()) {
        let live = |owner: u32| {
            (0..CLIENTS).any(|slot| {
                let client = segment.client(slot);
                let process = client.process().load(Ordering::SeqCst);
                client.owner().load(Ordering::SeqCst) == owner.into() && is_running(process)
            })
        };
        segment.fail();
        segment.retire();
        (0..FILES).for_each(|slot| segment.file(slot).refuse(why::ENDED));
        for slot in 0..FILES {
            let file = segment.file(slot);
            let holder = file.holder();
            if holder != 0 && !live(holder) {
                file.break_lock(holder);
            }
            if file.holder() != 0 {
                if !file.lock(DAEMON, segment::LOCK_MS) {
                    return Err(DaemonError::Said(
                        "a program that a killed daemon has left is in the middle of a change and does not go on: end it first".into(),
                    ));
                }
                // Who takes it from now on sees that nothing is logged any more, and is not to wait for us.
                file.unlock();
            }
        }
    }
    fs::remove_file(&path).map_err(system(path.display().to_string()))
}

/// Whether a process has not ended. One whose parent has not asked for its end still has its number, and a place below `/proc`.
fn is_running(process: u64) -> bool {
    let pid = i32::try_from(process).ok().and_then(Pid::from_raw);
    let Some(lives) = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else { return false };
    let mut ended = [PollFd::new(&lives, PollFlags::IN)];
    matches!(poll(&mut ended, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(0) | Err(_))
}

/// Refuses what another user has put in the place of a file of ours: where all may write, as in `/dev/shm`, anybody may, also a link that leads elsewhere.
fn refuse_strangers(path: &Path) -> Result<(), DaemonError> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.uid() != rustix::process::geteuid().as_raw() => Err(DaemonError::Said(format!(
            "{} belongs to another user (number {}): name a log of your own, in a directory of your own",
            path.display(),
            found.uid()
        ))),
        _ => Ok(()),
    }
}

/// Which file is at a path.
fn identity_of(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}

/// A process that has joined.
#[derive(Debug)]
struct Joined {
    process: i32,
    slot: usize,
    /// It can be read when the process is gone.
    lives: OwnedFd,
}

struct Daemon {
    path: PathBuf,
    log_watch: LogWatch,
    /// The socket, as the file that it is.
    socket: (u64, u64),
    region: Region,
    log: Arc<OwnLog>,
    segment: Segment,
    segment_file: File,
    segment_path: PathBuf,
    /// The root of the log's file system, where that makes programs' syncs of the log shorter.
    root: Option<File>,
    copying: Option<Copying>,
    worker: Worker,
    cleaner: Cleaner,
    /// So many entries begin a batch.
    batch: u64,
    files: Files,
    joined: BTreeMap<u32, Joined>,
    numbers: Numbers,
    places: Places,
    /// Who has connected, and asked nothing yet.
    asking: Vec<OwnedFd>,
    /// Who waits until all below an index is in its file.
    draining: Vec<(OwnedFd, u64)>,
    /// Who waits until nothing is logged any more, before all that was is drained.
    freezing: Vec<OwnedFd>,
    /// It is to end; who asked for that waits.
    ending: Option<Vec<OwnedFd>>,
    /// Until when those who are at a file may take to end.
    patience: u64,
    /// How long something may lie in the log, and until when that which does, below an index.
    drain_after: Option<Duration>,
    due: Option<(u64, u64)>,
    /// Somebody is at something that is waited for.
    waits: bool,
    /// Why nothing is synced any more.
    failed: Option<String>,
    /// What has become of the log, if it is not where it was.
    lost: Option<&'static str>,
    /// How often a file could not be taken in of which an image is to be kept.
    unheld: u64,
}

impl Daemon {
    fn open(options: &Options) -> Result<(Self, OwnedFd, Option<String>), DaemonError> {
        let path = std::path::absolute(&options.log).map_err(system(options.log.display().to_string()))?;
        allow_descriptors();
        let failed = |why: OpenError| DaemonError::Log(path.clone(), why);
        let said = |what: &Path| what.display().to_string();
        let geometry = Geometry::usual(options.entries.unwrap_or(ENTRIES));
        let open = format::file_options();
        refuse_strangers(&path)?;
        refuse_strangers(&socket_of(&path))?;
        let before = fs::metadata(&path);
        let made = before.is_err();
        let open = match before {
            // Whoever owns it reads all that is written through it.
            Ok(found) if found.uid() != rustix::process::geteuid().as_raw() => {
                let log = path.display();
                return Err(DaemonError::Said(format!(
                    "{log} belongs to another user (number {}): name a log of your own",
                    found.uid()
                )));
            }
            Ok(found) if found.is_file() && found.len() == 0 => open.create(geometry.size()),
            Ok(_) => open,
            Err(_) => open.create_new(geometry.size()),
        };
        let region = open.open(&path)?;
        let promise = match region.domain().granularity() {
            StoreGranularity::Page => Promise::AtSync,
            StoreGranularity::Byte | StoreGranularity::CacheLine | StoreGranularity::None => {
                Promise::AtReturn
            }
        };
        let random = random().map_err(system("random numbers"))?;
        // Also one in whose making somebody was killed.
        let is_blank = matches!(Layout::read(&region), Err(OpenError::Image(Fault::Blank | Fault::Making)));
        if is_blank && region.len() == geometry.size() {
            let [a, b, salt, _] = random;
            let mut uuid = [0; 16];
            uuid[..8].copy_from_slice(&a.to_le_bytes());
            uuid[8..].copy_from_slice(&b.to_le_bytes());
            format::make(&region, Uuid(uuid), geometry, salt, promise).map_err(failed)?;
        }
        let file = File::from(region.share().map_err(system(said(&path)))?);
        let has = Layout::read(&region).map_err(failed)?.geometry.entries;
        if let Some(wants) = options.entries.filter(|wants| *wants != has) {
            return Err(DaemonError::Said(of_another_size(&path, has, wants)));
        }
        retire(&file)?;
        let log_watch =
            file.try_clone().and_then(|file| LogWatch::new(&path, file)).map_err(system("inotify"))?;
        let recovered = dirty::recovered(&path, &region)?;
        let root = short::root_of(&path, &file);
        let segment_path = segment_of(&file).map_err(system(said(&path)))?;
        let mut new = File::options();
        let segment_file = new.read(true).write(true).create_new(true).mode(0o600).open(&segment_path);
        let segment_file = segment_file.map_err(system(said(&segment_path)))?;
        segment_file.set_len(segment::LEN).map_err(system(said(&segment_path)))?;
        let words = sys::map_words(segment_file.as_raw_fd(), segment::WORDS)
            .map_err(|errno| system(said(&segment_path))(io::Error::from_raw_os_error(errno)))?;
        let segment = Segment::of(words)
            .ok_or_else(|| DaemonError::Said("the segment has too few words for its release".into()))?;
        let log = Log::start(region.clone(), segment.log(), promise).map_err(|why| {
            // Nobody has it.
            let _ = fs::remove_file(&segment_path);
            failed(why)
        })?;
        let usual = cleaner::Options::usual(log.layout().geometry.entries);
        let batch = options.batch.unwrap_or(usual.batch).max(1);
        segment.make(random[3] | 1, batch);
        let cleaning = cleaner::Options { batch, low: usual.low.max(batch) };
        // The page cache has it, names too.
        let cleaner = Cleaner::new(cleaning, log.tail()).of_what_was_done();
        let table = FileTable::empty(region.clone(), *log.layout());
        // A sync of the log that comes behind an entry comes behind the slots that it names.
        let table = if promise == Promise::AtSync { table.durable_with_entries() } else { table };
        if options.copies.as_ref().is_some_and(|copies| copies.images) {
            segment.keep_images();
        }
        if options.strict {
            segment.be_strict();
        }
        // Programs number files themselves where nobody else has to see them first: whether their paths are wanted, or to copy what they are; nor to find a number blank.
        let is_free = promise == Promise::AtReturn
            && options.copies.is_none()
            && options.paths.include.is_empty()
            && options.paths.exclude.is_empty();
        let spares = if is_free { segment::SPARES.min(log.layout().geometry.files as usize / 8) } else { 0 };
        let files = Files::new(segment, table, options.paths.clone(), path.clone(), spares);
        let files = files.map_err(system("inotify"))?;
        let log = Arc::new(log);
        let copying = options.copies.as_ref().map(|copies| Copying::start(copies, log.clone(), segment));
        let copying = match copying.transpose() {
            Ok(copying) => copying,
            Err(why) => {
                // Nobody has it yet, and it is as it was.
                let _ = fs::remove_file(&segment_path);
                drop(files);
                let closed = Arc::into_inner(log).map_or(Ok(()), Log::close).map_err(failed);
                if made {
                    let _ = fs::remove_file(&path);
                }
                return closed.and(Err(why));
            }
        };
        let worker = Worker::start(log.clone(), segment).map_err(system("a thread"))?;
        let listener = listen(&socket_of(&path))?;
        let socket = socket_of(&path);
        let socket = identity_of(&socket).map_err(system(said(&socket)))?;
        let daemon = Self {
            path,
            log_watch,
            socket,
            region,
            log,
            segment,
            segment_file,
            segment_path,
            root,
            copying,
            worker,
            cleaner,
            batch,
            files,
            joined: BTreeMap::new(),
            numbers: Numbers::new(),
            places: Places::default(),
            asking: Vec::new(),
            draining: Vec::new(),
            freezing: Vec::new(),
            ending: None,
            patience: 0,
            drain_after: options.drain_after,
            due: None,
            waits: false,
            failed: None,
            lost: None,
            unheld: 0,
        };
        Ok((daemon, listener, recovered))
    }

    fn run(&mut self, stop: BorrowedFd<'_>, listener: &OwnedFd) -> Result<(), DaemonError> {
        loop {
            self.drain_old();
            self.pump();
            if self.has_ended()? {
                return Ok(());
            }
            let due = self.look_for_new();
            let wanted = !self.draining.is_empty() || !self.freezing.is_empty() || self.ending.is_some();
            let again = (self.waits && wanted && self.failed.is_none()).then_some(AGAIN);
            let timeout = again.or_else(|| due.and_then(|due| Timespec::try_from(due).ok()));
            let mut fds: Vec<PollFd<'_>> = Vec::new();
            let mut watch = |fd| fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN));
            // Once it ends, it needs no telling.
            watch(if self.ending.is_some() { self.worker.ready() } else { stop });
            watch(listener.as_fd());
            watch(self.worker.ready());
            watch(self.files.ready());
            watch(self.copying.as_ref().map_or(self.worker.ready(), Copying::ready));
            watch(self.log_watch.ready());
            watch(self.files.openers().unwrap_or_else(|| self.worker.ready()));
            self.asking.iter().for_each(|fd| watch(fd.as_fd()));
            self.joined.values().for_each(|joined| watch(joined.lives.as_fd()));
            match poll(&mut fds, timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(why) => return Err(system("poll")(why.into())),
            }
            let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            drop(fds);
            self.segment.heard();
            self.happened(&ready, listener)?;
        }
    }

    /// Has what has lain in the log for long enough drained.
    fn drain_old(&mut self) {
        let now = sys::monotonic();
        if let Some((_, upto)) = self.due.take_if(|(until, _)| now >= *until) {
            self.cleaner.drain_to(upto);
        }
    }

    /// In how long there is something to be drained, if there is anything in the log; if not, whoever changes something next says so. It comes behind a look at the log: who was not to tell
    /// of what he has changed before that is seen here.
    fn look_for_new(&mut self) -> Option<Duration> {
        let after = self.drain_after.filter(|_| self.failed.is_none())?;
        let now = sys::monotonic();
        if self.due.is_none() {
            self.segment.listen(true);
            // Who has changed something before that may not have seen it.
            let (tail, head) = (self.cleaner.tail(), self.log.head());
            if tail == head {
                return None;
            }
            self.segment.listen(false);
            self.due = Some((now + u64::try_from(after.as_nanos()).unwrap_or(u64::MAX / 2), head));
        }
        self.due.map(|(until, _)| Duration::from_nanos(until.saturating_sub(now)))
    }

    /// Does what has to be done for each descriptor that can be read, in the order in which they were watched.
    fn happened(&mut self, ready: &[bool], listener: &OwnedFd) -> Result<(), DaemonError> {
        let (ready, asked) = ready.split_at(7);
        let (asked, dead) = asked.split_at(self.asking.len());
        if ready[0] && self.ending.is_none() {
            self.end(None);
        }
        while let Some(done) = self.worker.take() {
            match done {
                Done::One(token, outcome) => self.done(token, outcome),
                Done::All(outcome) => self.saved(&outcome),
            }
        }
        if ready[5] {
            self.log_watch.take();
            self.look_for_log();
        }
        if ready[6] {
            self.files.look_for_openers(None);
        }
        if ready[3] {
            self.files.look_for_unlinked().map_err(system("inotify"))?;
            if self.segment.keeps_images() {
                self.segment.ask_to_look();
            }
        }
        if let Some(copying) = &self.copying {
            let (drains, failed) = copying.take();
            if drains {
                self.cleaner.drain_to(self.log.head());
            }
            self.failed = self.failed.take().or(failed);
        }
        // The dead first: a process that asks may be what another one became.
        let owners: Vec<u32> = self
            .joined
            .keys()
            .copied()
            .zip(dead)
            .filter(|(_, dead)| **dead)
            .map(|(owner, _)| owner)
            .collect();
        owners.into_iter().for_each(|owner| self.died(owner));
        let asking = std::mem::take(&mut self.asking);
        for (connection, asked) in asking.into_iter().zip(asked) {
            match asked {
                true => self.asked(connection),
                false => self.asking.push(connection),
            }
        }
        if ready[1] {
            self.accept(listener);
        }
        Ok(())
    }

    fn accept(&mut self, listener: &OwnedFd) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // Who comes behind so many is answered when the log was looked after.
        for _ in 0..AT_ONCE {
            let Ok(connection) = rustix::net::accept_with(listener, flags) else { return };
            let peer = rustix::net::sockopt::socket_peercred(&connection);
            let own = peer.is_ok_and(|peer| peer.uid == rustix::process::geteuid());
            if own && self.asking.len() + self.draining.len() + self.freezing.len() < ASKING {
                // Most have asked by now.
                self.asked(connection);
            }
        }
    }

    /// Answers a question, or waits for it.
    fn asked(&mut self, connection: OwnedFd) {
        let mut bytes = [0; wire::LEN + 1];
        let (len, fds) = match sys::receive_owned(connection.as_fd(), &mut bytes) {
            Ok(received) => received,
            Err(libc::EAGAIN) => return self.asking.push(connection),
            Err(_) => return,
        };
        let Some(question) = Question::parse(&bytes[..len.min(bytes.len())]) else { return };
        self.segment.count(Count::Questions, 1);
        let about_us = question.segment == self.segment.name();
        let ok = |values| Answer { error: 0, values };
        let refused = |error| Answer { error, ..Answer::default() };
        let nothing = Answer::default();
        let answer = match question.kind {
            Kind::Hello if question.segment == 0 || about_us => return self.hello(&connection, about_us),
            Kind::Register if about_us && self.ending.is_none() => {
                let (tail, head) = (self.cleaner.tail(), self.log.head());
                let slot = fds.first().ok_or(libc::EBADF);
                let slot = slot.and_then(|fd| self.files.register(fd, question.about, tail, head));
                if let Some(copying) = &self.copying {
                    copying.fresh(self.files.fresh());
                }
                match slot {
                    Ok(slot) => ok([slot as u64, 0, 0, 0, 0, 0]),
                    Err(errno) => {
                        self.unheld += u64::from(errno != libc::EINVAL && self.segment.keeps_images());
                        if errno == libc::ENOSPC {
                            self.cleaner.drain_to(head);
                        }
                        refused(errno)
                    }
                }
            }
            Kind::Exclusive if about_us && self.ending.is_none() => {
                let again = question.about & wire::AGAIN != 0;
                let fd = fds.into_iter().next().ok_or(libc::EBADF);
                let made = fd.and_then(|fd| self.files.make_exclusive(fd, again));
                return self.openers_answered(&connection, question.about, &made);
            }
            Kind::Look if about_us => {
                self.files.look_for_openers(None);
                return self.openers_answered(&connection, question.about, &Ok(()));
            }
            // What there is to be done is looked for in any case.
            Kind::Kick if about_us => nothing,
            // A command asks for all that there is, and knows no segment.
            Kind::Drain if about_us || question.segment == 0 => {
                let upto = question.about.min(self.log.head());
                self.cleaner.drain_to(upto);
                self.draining.push((connection, upto));
                return;
            }
            Kind::Status => {
                self.look_for_log();
                self.files.hear();
                let mut bytes = nothing.emit().to_vec();
                bytes.extend_from_slice(self.status().as_bytes());
                return answered(&connection, &bytes, &[]);
            }
            Kind::Stop => return self.end(Some(connection)),
            Kind::Freeze if self.ending.is_none() => return self.freeze(connection),
            Kind::Thaw => {
                self.segment.freeze(false);
                nothing
            }
            Kind::Hello
            | Kind::Register
            | Kind::Kick
            | Kind::Drain
            | Kind::Freeze
            | Kind::Exclusive
            | Kind::Look => refused(libc::ESTALE),
        };
        answered(&connection, &answer.emit(), &[]);
    }

    /// Answers who has asked about exclusive files; with the descriptor that tells who opens one, if it is wanted.
    fn openers_answered(&self, connection: &OwnedFd, about: u64, done: &Result<(), i32>) {
        let tells = self.files.openers().filter(|_| done.is_ok() && about & wire::OPENERS != 0);
        let tells: Vec<i32> = tells.iter().map(AsRawFd::as_raw_fd).collect();
        let answer = Answer { error: done.err().unwrap_or(0), ..Answer::default() };
        answered(connection, &answer.emit(), &tells);
    }

    fn hello(&mut self, connection: &OwnedFd, has_segment: bool) {
        let refuse = |errno| answered(connection, &Answer { error: errno, ..Answer::default() }.emit(), &[]);
        let Ok(peer) = rustix::net::sockopt::socket_peercred(connection) else { return };
        let process = peer.pid.as_raw_nonzero().get();
        // It has executed another program: its threads are gone, whatever they were doing.
        let before = |(owner, joined): (&u32, &Joined)| (joined.process == process).then_some(*owner);
        let before: Vec<u32> = self.joined.iter().filter_map(before).collect();
        before.into_iter().for_each(|owner| self.died(owner));
        if self.ending.is_some() || self.joined.len() >= CLIENTS {
            return refuse(libc::EAGAIN);
        }
        let Ok(lives) = pidfd_open(peer.pid, PidfdFlags::empty()) else { return refuse(libc::ESRCH) };
        // While the connection stands, the process is still the one that has connected.
        let mut hung = [PollFd::new(connection, PollFlags::empty())];
        if poll(&mut hung, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_err()
            || hung[0].revents().contains(PollFlags::HUP)
        {
            return;
        }
        let (joined, log) = (&self.joined, &self.log);
        let in_use = || {
            let owners = log.owners().into_iter().map(Owner::number);
            owners.chain(joined.keys().copied()).collect::<BTreeSet<u32>>()
        };
        let Some(owner) = self.numbers.take(in_use) else { return refuse(libc::EAGAIN) };
        let Some(slot) = self.places.take() else { return refuse(libc::EAGAIN) };
        // Before anything of it can be seen there.
        self.segment.places(self.places.used());
        let client = self.segment.client(slot);
        client.process().store(process.unsigned_abs().into(), Ordering::SeqCst);
        client.unlogged().store(0, Ordering::SeqCst);
        client.owner().store(owner.into(), Ordering::SeqCst);
        self.joined.insert(owner, Joined { process, slot, lives });
        let domain = self.region.domain().domain() as u64;
        let name = self.segment.name();
        let values = [name, segment::LEN, self.region.len(), domain, owner.into(), slot as u64];
        let answer = Answer { error: 0, values }.emit();
        match self.region.share() {
            Ok(log) if !has_segment => {
                let mut fds = vec![self.segment_file.as_raw_fd(), log.as_raw_fd()];
                fds.extend(self.root.as_ref().map(File::as_raw_fd));
                answered(connection, &answer, &fds);
            }
            Err(why) if !has_segment => refuse(why.raw_os_error().unwrap_or(libc::EIO)),
            _ => answered(connection, &answer, &[]),
        }
    }

    fn died(&mut self, owner: u32) {
        let Some(joined) = self.joined.remove(&owner) else { return };
        let broken = self.files.owner_died(owner);
        let client = self.segment.client(joined.slot);
        client.unlogged().store(0, Ordering::SeqCst);
        client.owner().store(0, Ordering::SeqCst);
        client.process().store(0, Ordering::SeqCst);
        self.places.give_back(joined.slot);
        // What it was at may lack its entry: then nothing else is left for a recovery to build on.
        if broken || self.joined.is_empty() {
            self.cleaner.drain_to(self.log.head());
        }
    }

    /// Has nothing logged any more, until it is thawed; and what was is drained.
    fn freeze(&mut self, asks: OwnedFd) {
        self.segment.freeze(true);
        self.files.hush();
        self.patience = sys::monotonic() + segment::LOCK_MS * 1_000_000;
        self.freezing.push(asks);
    }

    /// Whether those were done who were at a file when that was said; who takes longer than anybody may is not waited for, and nothing is frozen then.
    fn pump_freezing(&mut self) {
        if self.freezing.is_empty() {
            return;
        }
        if self.files.is_still() {
            let head = self.log.head();
            self.cleaner.drain_to(head);
            self.draining.extend(self.freezing.drain(..).map(|asks| (asks, head)));
        } else if sys::monotonic() > self.patience {
            self.segment.freeze(false);
            let answer = Answer { error: libc::EBUSY, ..Answer::default() }.emit();
            self.freezing.drain(..).for_each(|asks| answered(&asks, &answer, &[]));
        } else {
            self.waits = true;
        }
    }

    /// Begins to end: nothing is logged any more, and what was is drained.
    fn end(&mut self, asks: Option<OwnedFd>) {
        if self.ending.is_none() {
            self.files.end();
            self.patience = sys::monotonic() + segment::LOCK_MS * 1_000_000;
        }
        self.ending.get_or_insert_default().extend(asks);
    }

    fn has_ended(&mut self) -> Result<bool, DaemonError> {
        if self.ending.is_none() || self.worker.is_busy() {
            return Ok(false);
        }
        if self.failed.is_none() && !self.files.is_still() {
            if sys::monotonic() > self.patience {
                self.failed = Some("a program is in the middle of a change and does not go on".into());
            } else {
                self.waits = true;
                return Ok(false);
            }
        }
        match &self.failed {
            None => Ok(self.cleaner.is_idle() && self.log.used() == 0),
            Some(why) if self.lost.is_some() => Err(DaemonError::Said(why.clone())),
            Some(why) => Err(DaemonError::Said(format!(
                "{why}: what is in the log is kept, and `rem cache recover {}` brings it into its files",
                self.path.display()
            ))),
        }
    }

    fn close(self) -> Result<(), DaemonError> {
        let Self { worker, log, path, segment_path, files, copying, .. } = self;
        let copied = copying.map_or(Ok(()), Copying::close);
        drop((worker, files));
        let log = Arc::into_inner(log)
            .ok_or_else(|| DaemonError::Said("the log is still in use by a thread of the daemon".into()))?;
        log.close().map_err(|why| DaemonError::Log(path, why))?;
        fs::remove_file(&segment_path).map_err(system(segment_path.display().to_string()))?;
        copied
    }

    /// Does what can be done now.
    fn pump(&mut self) {
        self.waits = false;
        self.pump_freezing();
        if self.ending.is_some() {
            // A sync that was under way may have left a mark.
            self.cleaner.drain_to(self.log.head());
        }
        let tail = loop {
            self.files.hear();
            self.clean();
            let (tail, head) = (self.cleaner.tail(), self.log.head());
            self.files.leave_spares(tail);
            let wanted = self.files.follow_moved(tail).max(self.files.forget_unlinked(tail, head));
            wanted.into_iter().for_each(|upto| self.cleaner.drain_to(upto));
            if self.worker.is_busy() || self.failed.is_some() {
                // When that is done the log is looked at in any case, however much was changed meanwhile: nobody need tell.
                break tail;
            }
            self.segment.kicked();
            // Who has filled a batch before that has told nobody.
            if self.waits || wanted.is_none() && self.log.used() < self.batch {
                break tail;
            }
        };
        let failed = self.failed.is_some();
        for (connection, upto) in std::mem::take(&mut self.draining) {
            match (tail >= upto, failed) {
                (true, _) => answered(&connection, &Answer::default().emit(), &[]),
                (false, true) => {
                    let answer = Answer { error: libc::EIO, ..Answer::default() };
                    answered(&connection, &answer.emit(), &[]);
                }
                (false, false) => self.draining.push((connection, upto)),
            }
        }
    }

    /// Has the cleaner go on as far as it can now.
    fn clean(&mut self) {
        while self.failed.is_none() {
            let joined = &self.joined;
            // More places than there are would be none of ours: somebody has written over the words.
            let mut left = self.log.layout().geometry.entries;
            let dead = |owner: Owner| {
                left = left.saturating_sub(1);
                left > 0 && !joined.contains_key(&owner.number())
            };
            match self.cleaner.feed(&self.log, dead) {
                Ok(Feed::Fed) => {}
                Ok(Feed::Waits { .. }) => self.waits = true,
                Ok(Feed::Damaged(damage)) => {
                    self.failed = Some(damage.to_string());
                    self.segment.fail();
                }
                Err(why) => {
                    self.failed = Some(format!("the log's medium failed: {why}"));
                    self.segment.fail();
                }
            }
            if self.worker.is_busy() {
                break;
            }
            let Some((token, action)) = self.cleaner.poll(|_| true) else { break };
            let durable = match self.log.promise() {
                Promise::AtReturn => u64::MAX,
                Promise::AtSync => self.segment.log().load(Word::Durable),
            };
            let copied = if self.segment.is_copied() { self.segment.copied_upto() } else { u64::MAX };
            let durable = durable.min(copied);
            if matches!(action, Action::Sync { file } if !self.files.knows(file)) {
                // It was made since.
                self.files.hear();
            }
            match action {
                Action::Apply { .. } | Action::Names => self.cleaner.done(token),
                Action::Persist { from, upto } => self.worker.ask(token, Job::Secure(from..upto)),
                Action::Sync { file } if self.files.is_nameless(file, durable) => self.cleaner.done(token),
                Action::Sync { file } => match self.files.to_sync(file) {
                    Some((_, Ok(fd))) => self.worker.ask(token, Job::Sync(fd)),
                    Some((_, Err(why))) => self.done(token, Err((why.raw_os_error(), why.to_string()))),
                    None => self.done(token, Err((None, format!("{file} is not known any more")))),
                },
                Action::Advance { tail } => {
                    self.worker.ask(token, Job::Advance(tail));
                    self.look_for_log();
                }
                Action::Free { tail } => {
                    self.log.free(tail);
                    self.cleaner.done(token);
                    self.segment.freed();
                }
            }
        }
    }

    /// Looks whether the log is where it was. If not, what it promises would be found by nobody: nothing is absorbed any more, and the kernel syncs all that it has.
    fn look_for_log(&mut self) {
        if self.lost.is_some() {
            return;
        }
        let Some(lost) = self.log_watch.lost() else { return };
        self.lost = Some(lost);
        self.segment.fail();
        let files = self.files.all_to_sync();
        self.tell_lost(lost, &format!("{} are being synced", files.len()));
        self.worker.sync(files);
    }

    /// The kernel has synced what a log had that is not where it was.
    fn saved(&mut self, outcome: &Result<(), String>) {
        let Some(lost) = self.lost else { return };
        match outcome {
            Ok(()) => self.tell_lost(lost, "what it had is in them, durably"),
            Err(why) => self.tell_lost(lost, &format!("some could not be synced ({why})")),
        }
    }

    /// Says so in the status, and on the way that a daemon complains.
    fn tell_lost(&mut self, lost: &str, files: &str) {
        let log = self.path.display();
        let said =
            format!("the log {log} {lost}: syncs are the kernel's from now on, and of its files {files}");
        eprintln!("remanence: {said}");
        self.failed = Some(said);
    }

    /// Something that was asked of the thread is done.
    fn done(&mut self, token: cleaner::Token, outcome: Result<(), Failed>) {
        let Err((errno, why)) = outcome else { return self.cleaner.done(token) };
        self.cleaner.failed(token, &why);
        if self.lost.is_some() {
            // It is known, and all files are synced by themselves.
            return;
        }
        let stopped = self.cleaner.stopped().cloned();
        let slot =
            stopped.as_ref().and_then(|stopped| stopped.file).and_then(|file| self.files.to_sync(file));
        self.failed = Some(match (slot, stopped.map(|stopped| stopped.doing)) {
            (Some((slot, _)), Some(Action::Sync { .. })) => {
                self.files.distrust(slot);
                self.segment.file(slot).fail(errno.unwrap_or(libc::EIO));
                format!("{} could not be synced: {why}", self.files.path(slot).display())
            }
            _ => {
                self.segment.fail();
                format!("the log's medium failed: {why}")
            }
        });
    }

    /// How it stands, as JSON.
    fn status(&self) -> String {
        let count = |what| self.segment.counted(what);
        let rules = |rules: &[Rule]| {
            let rules: Vec<String> = rules.iter().map(|rule| quoted(&rule.to_string())).collect();
            format!("[{}]", rules.join(","))
        };
        let state = match (&self.failed, &self.ending) {
            (Some(_), _) => "failed",
            (None, Some(_)) => "ending",
            (None, None) if self.segment.is_frozen() => "frozen",
            (None, None) => "serving",
        };
        let failed = self.failed.as_deref().map_or("null".into(), quoted);
        let copies = self.copying.as_ref().map_or("null".into(), |copying| {
            let standing = copying.standing();
            let lost: Vec<String> =
                standing.lost.iter().map(|(server, why)| quoted(&format!("{server}: {why}"))).collect();
            let (acks, members) = standing.quorum;
            let images = standing.images.map_or("null".into(), |images| {
                let lacking: Vec<String> = images.lacking.iter().map(lacking).collect();
                let imaging::Standing { whole, size, room, .. } = images;
                format!(
                    "{{\"whole\":{whole},\"bytes\":{size},\"room\":{room},\"unheld\":{},\"lacking\":[{}]}}",
                    self.unheld,
                    lacking.join(",")
                )
            });
            format!(
                "{{\"acks\":{acks},\"members\":{members},\"lost\":[{}],\"images\":{images}}}",
                lost.join(",")
            )
        });
        let mut files = String::new();
        let mut all: Vec<_> = self.files.standing().collect();
        // Those that are not absorbed first, and then those that were changed last.
        all.sort_by_key(|standing| Reverse((standing.file.why() != 0, standing.file.last())));
        for standing in all.iter().take(LISTED) {
            if files.len() > LISTED_MAX {
                break;
            }
            let why = standing.file.why();
            let said = why::SAID.iter().find(|(bit, _)| why & bit != 0).map(|(_, said)| *said);
            let [absorbed, kernel, bytes] = standing.file.counts();
            let comma = if files.is_empty() { "" } else { "," };
            files += &format!(
                "{comma}{{\"path\":{},\"absorbed\":{absorbed},\"kernel\":{kernel},\"bytes\":{bytes},\"last\":{},\"exclusive\":{},\"why\":{},\"rule\":{}}}",
                quoted(&standing.path.to_string_lossy()),
                standing.file.last(),
                standing.file.is_exclusive() || standing.file.is_doubted(),
                said.map_or("null".into(), quoted),
                standing.rule.map_or("null".into(), quoted),
            );
        }
        format!(
            "{{\"log\":{},\"state\":\"{state}\",\"failed\":{failed},\"medium\":{},\"strict\":{},\"entries\":{},\"used\":{},\"tail\":{},\"programs\":{},\"copies\":{copies},\
             \"changes\":{},\"bytes\":{},\"syncs_absorbed\":{},\"syncs_kernel\":{},\"waits\":{},\"refused\":{},\"questions\":{},\"include\":{},\"exclude\":{},\"files\":[{files}]}}",
            quoted(&self.path.to_string_lossy()),
            quoted(self.region.domain().domain().name()),
            self.segment.is_strict(),
            self.log.layout().geometry.entries,
            self.log.used(),
            self.cleaner.tail(),
            self.joined.len(),
            count(Count::Changes),
            count(Count::Bytes),
            count(Count::Absorbed),
            count(Count::Kernel),
            count(Count::Waits),
            count(Count::Refused),
            count(Count::Questions),
            rules(&self.files.paths().include),
            rules(&self.files.paths().exclude),
        )
    }
}

/// Sends an answer; who does not wait for it has gone.
fn answered(connection: &OwnedFd, bytes: &[u8], fds: &[i32]) {
    let _ = sys::send(connection.as_raw_fd(), bytes, fds);
}

/// A file that could not be made again as it is, in JSON.
fn lacking(file: &imaging::Lacking) -> String {
    format!(
        "{{\"path\":{},\"state\":\"{}\",\"has\":{},\"of\":{}}}",
        quoted(&file.path),
        imaging::name_of(file.state),
        file.has,
        file.len
    )
}

/// A text in JSON.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if u32::from(c) < 0x20 => quoted += &format!("\\u{:04x}", u32::from(c)),
            c => quoted.push(c),
        }
    }
    quoted + "\""
}

fn random() -> io::Result<[u64; 4]> {
    let mut bytes = [0; 32];
    io::Read::read_exact(&mut File::open("/dev/urandom")?, &mut bytes)?;
    Ok(std::array::from_fn(|n| {
        bytes[n * 8..n * 8 + 8].iter().fold(0, |word, byte| word << 8 | u64::from(*byte))
    }))
}

/// Each file that is absorbed takes one: as many as the system lets us have, and not those that a shell begins with.
fn allow_descriptors() {
    let limits = getrlimit(Resource::Nofile);
    // With fewer of them files are absorbed in turn.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limits.maximum, ..limits });
}

/// Listens where nobody else does: whoever owns the log owns its socket.
fn listen(path: &Path) -> Result<OwnedFd, DaemonError> {
    let what = path.display().to_string();
    if sys::Address::new(path.as_os_str().as_bytes()).is_none() {
        return Err(DaemonError::Said(format!(
            "{what} is too long for the path of a socket: put the log in another directory"
        )));
    }
    refuse_strangers(path)?;
    match fs::remove_file(path) {
        Err(why) if why.kind() != io::ErrorKind::NotFound => return Err(system(what)(why)),
        _ => {}
    }
    let make = || -> rustix::io::Result<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        rustix::net::bind(&listener, &SocketAddrUnix::new(path)?)?;
        rustix::fs::chmod(path, rustix::fs::Mode::from_raw_mode(0o600))?;
        rustix::net::listen(&listener, 128)?;
        Ok(listener)
    };
    make().map_err(|why| system(what)(why.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_nobody_has_asked_for_its_end_is_not_running() {
        assert!(is_running(std::process::id().into()));
        let mut child = std::process::Command::new("true").spawn().expect("it starts");
        let process = u64::from(child.id());
        let lives = pidfd_open(Pid::from_raw(process as i32).expect("a number"), PidfdFlags::empty());
        let lives = lives.expect("it is there");
        poll(&mut [PollFd::new(&lives, PollFlags::IN)], None).expect("it ends");
        assert!(Path::new("/proc").join(process.to_string()).exists() && !is_running(process));
        child.wait().expect("it has ended");
        assert!(!is_running(0));
    }

    #[test]
    fn a_text_in_json_is_quoted() {
        assert_eq!(quoted("a\"b\\c\n"), "\"a\\\"b\\\\c\\u000a\"");
    }
}
