//! The cache's side of a program: it sees the program's system calls, logs what changes files, and absorbs their syncs.
//!
//! It runs inside a hook (`remanence_intercept`): it makes raw calls only, waits in bounded time only, and uses nothing that belongs to a thread. It
//! *allocates* where an entry or a sync of the log takes a buffer, so whoever links it gives it an allocator that is not the program's
//! (the crate `preload` does).
//!
//! **It knows nothing of descriptors**, but which of them lead to no file at all (`plain.rs`) or to one that nobody else has open (`exclusive.rs`). Which file a call is about is otherwise asked of the kernel each time: so
//! `dup`, `fork`, `exec`, descriptors that were sent, `close_range` and numbers that are used again cannot make it wrong. It has the log and the segment mapped, and a connection to the daemon exists for the length of
//! one question. It rests on no descriptor of its own: one tells who opens such files, and where two of the log make a sync of it shorter, it does without when they are gone (`medium.rs`).
//!
//! **Who it is** is on a page that is zeros in a forked child, which then asks for a number of its own. The child of `vfork` has its parent's memory
//! and another process id: what it changes is marked, and goes to the kernel.
//!
//! | file | what it is |
//! |---|---|
//! | `mod.rs` | joining, and what is asked of the daemon |
//! | `again.rs` | joining the daemon that comes next |
//! | `calls.rs` | which call does what |
//! | `change.rs` | a change of a file: the kernel first, then the log |
//! | `attributes.rs` | a change of permissions, owners or times |
//! | `names.rs` | a change of names: the same for directories |
//! | `plain.rs` | descriptors that lead to no regular file |
//! | `exclusive.rs` | files that nobody else has open, of which less is asked |
#![expect(unsafe_code, reason = "one mapping that is made here becomes the log's")]

mod again;
mod attributes;
mod calls;
mod change;
mod exclusive;
mod names;
mod plain;

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use remanence_cache::entry::Owner;
use remanence_cache::format::Promise;
use remanence_cache::log::{Log, Synced};
use remanence_cache::words::{Word, Words as _};
use remanence_pmem::{PersistenceDomain, Region};

pub use calls::{NUMBERS, handle, unseen, unseen_any, wait_changes, wants};

use crate::medium::{LogMedium, Short};
use crate::memory;
use crate::segment::{self, Client, File, Segment, SegmentWords, TURN_MS};
use crate::sys::{self, Address, Errno, FDS, Socket};
use crate::wire::{self, Answer, Kind, Question};

/// How long a question may take.
const ASK_MS: u64 = 10_000;
/// How long it may take where somebody has waited for the daemon in vain.
const CALL_MS: u64 = 1000;
/// How long a sync waits until what is older is in its file.
const DRAIN_MS: u64 = 30_000;
/// How long it waits for the log's copies: longer than the daemon looks for servers that it has lost.
const COPY_MS: u64 = 30_000;

/// All that a program has of the cache.
#[derive(Debug)]
pub(crate) struct Face {
    address: Address,
    segment: Segment,
    log: Log<LogMedium, SegmentWords>,
    /// Entries of a whole lap.
    lap: u64,
    /// On a page that is zeros in a forked child.
    own: &'static [AtomicU64],
    /// That of the daemon before.
    before: Option<&'static Self>,
}

static FACE: AtomicPtr<Face> = AtomicPtr::new(std::ptr::null_mut());
/// This process has changed files, or may, in a way that nothing can tell the end of. A child inherits that.
static TAINTED: AtomicBool = AtomicBool::new(false);

/// Who this process is, and what it does, in its own page.
mod own {
    /// One of the states below, or an owner's number and [`JOINED`].
    pub(super) const STATE: usize = 0;
    pub(super) const CLIENT: usize = 1;
    pub(super) const PROCESS: usize = 2;
    /// How many changes of names it has logged since it has synced anything.
    pub(super) const CHANGED: usize = 3;
    /// How many calls are under way.
    pub(super) const CALLS: usize = 4;
    /// Whether it counts as a change under way, for those that have begun with the face before.
    pub(super) const HELD: usize = 5;
    /// When the next daemon is looked for again.
    pub(super) const LOOKED: usize = 6;
    /// Somebody else has had its memory, or has it.
    pub(super) const FORKED: usize = 7;

    pub(super) const NOBODY: u64 = 0;
    pub(super) const JOINING: u64 = 1;
    pub(super) const ALONE: u64 = 2;
    pub(super) const JOINED: u64 = 1 << 32;
}

/// An incarnation of a process, as the log knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Me {
    owner: Owner,
    client: Client,
}

/// Why somebody has not joined. Nothing is formatted before it is said: inside a hook nobody asks.
#[derive(Debug)]
enum Refusal {
    Failed(&'static str, Errno),
    Said(&'static str),
    /// The log takes so many bytes of address space, and the program may have so many.
    Narrow(u64, u64),
    Region(remanence_pmem::Error),
    Log(remanence_cache::format::OpenError),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(what, errno) => write!(f, "{what}: {}", std::io::Error::from_raw_os_error(*errno)),
            Self::Said(what) => f.write_str(what),
            Self::Narrow(takes, limit) => write!(
                f,
                "the log takes {takes} bytes of address space, and this program may have {limit} (ulimit -v): allow it more, or make a smaller log"
            ),
            Self::Region(why) => why.fmt(f),
            Self::Log(why) => why.fmt(f),
        }
    }
}

/// Joins the cache whose daemon has a socket there. From then on [`handle`] has something to do.
///
/// # Errors
/// One sentence: there is no daemon, or it is another release's, or there is no memory.
pub fn join(socket: &[u8]) -> Result<(), String> {
    let address = Address::new(socket).ok_or("the path of the cache's socket is too long")?;
    let face = begin(address, segment_beside(socket)).map_err(|why| why.to_string())?;
    // The kernel's clock is looked for here, and not in a hook.
    let _ = sys::since_1970();
    let face = Box::leak(Box::new(face));
    face.leak_descriptors(true);
    FACE.store(face, Ordering::SeqCst);
    Ok(())
}

/// What a daemon has for this process. `beside` is its segment, for who has it.
fn begin(address: Address, beside: Option<Segment>) -> Result<Face, Refusal> {
    let asked = ask_first(&address, beside);
    let (answer, fds) =
        asked.map_err(|errno| Refusal::Failed("the cache's daemon does not answer", errno))?;
    let mapped = map(&answer, fds, beside);
    fds.into_iter().filter(|fd| *fd >= 0).for_each(sys::close);
    if answer.error != 0 {
        return Err(Refusal::Failed("the cache's daemon refuses", answer.error));
    }
    let (segment, log) = mapped?;
    let own = sys::wiped_page().map_err(|errno| Refusal::Failed("a page of memory", errno))?;
    let lap = log.layout().geometry.entries;
    let face = Face { address, segment, log, lap, own, before: None };
    face.become_somebody(&answer);
    Ok(face)
}

/// The segment of the daemon whose socket is there, for who has it not from the daemon yet: by this it is known whether that is silent.
fn segment_beside(socket: &[u8]) -> Option<Segment> {
    let log = fs::metadata(Path::new(OsStr::from_bytes(socket.strip_suffix(b".sock")?))).ok()?;
    let path = memory::of(log.uid())?.join(segment::name_of(&log));
    let mut options = fs::File::options();
    let options = options.read(true).write(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = options.open(path).ok()?;
    let found =
        file.metadata().ok().filter(|found| found.uid() == log.uid() && found.len() == segment::LEN)?;
    let words = found.is_file().then(|| sys::map_words(file.as_raw_fd(), segment::WORDS))?.ok()?;
    Segment::of(words).filter(|segment| segment.is_ours())
}

/// The first question. Where somebody has waited for the daemon in vain, one asks in a second, and waits no longer, before it is heard of again: programs that a script executes one after
/// the other wait once.
fn ask_first(address: &Address, beside: Option<Segment>) -> Result<(Answer, [i32; FDS]), Errno> {
    let milliseconds = match beside.filter(|segment| segment.is_silent()) {
        None => ASK_MS,
        Some(silent) if silent.is_to_call(sys::monotonic()) => CALL_MS,
        Some(_) => return Err(libc::ETIMEDOUT),
    };
    let question = Question { kind: Kind::Hello, segment: 0, about: sys::process() };
    let asked = ask(address, &question, None, milliseconds);
    if let (Err(libc::EAGAIN), Some(segment)) = (&asked, beside) {
        segment.silent(sys::monotonic());
    }
    asked
}

fn map(
    answer: &Answer,
    [segment, log, root]: [i32; FDS],
    beside: Option<Segment>,
) -> Result<(Segment, Log<LogMedium, SegmentWords>), Refusal> {
    let [_, segment_len, log_len, domain, ..] = answer.values;
    let domain = PersistenceDomain::ALL
        .into_iter()
        .find(|known| *known as u64 == domain)
        .filter(|_| segment >= 0 && log >= 0 && segment_len == segment::LEN)
        .ok_or(Refusal::Said("the cache's daemon is of another release"))?;
    let failed = |errno| Refusal::Failed("mapping the cache", errno);
    let is_it = |segment: &Segment| segment.is_ours() && segment.name() == answer.values[0];
    let segment = match beside.filter(is_it) {
        Some(segment) => segment,
        None => Segment::of(sys::map_words(segment, segment::WORDS).map_err(failed)?)
            .filter(is_it)
            .ok_or(Refusal::Said("the cache's segment is of another release"))?,
    };
    // At least a half is the program's: it would fail for want of memory otherwise, and be none the wiser.
    if let Some(limit) = sys::address_limit().filter(|limit| log_len > limit / 2) {
        return Err(Refusal::Narrow(log_len, limit));
    }
    let at = sys::map(log, log_len).map_err(failed)?;
    let base = NonNull::new(at as *mut u8).ok_or(Refusal::Said("the log is mapped nowhere"))?;
    // SAFETY: just mapped, as long as this, and never unmapped; no reference is ever made into it.
    let region = unsafe { Region::from_raw(base, log_len, Some(LogMedium::declared(domain))) };
    let short = if root >= 0 { Short::of([log, root]) } else { None };
    let medium = LogMedium::new(region.map_err(Refusal::Region)?, domain, segment, short);
    let log = Log::attach(medium, segment.log()).map_err(Refusal::Log)?;
    Ok((segment, log))
}

/// Asks the daemon, on a connection that is there for nothing else.
fn ask(
    address: &Address,
    question: &Question,
    fd: Option<i32>,
    milliseconds: u64,
) -> Result<(Answer, [i32; FDS]), Errno> {
    let socket = Socket::connect(address, milliseconds)?;
    socket.send(&question.emit(), fd.as_slice())?;
    let mut bytes = [0; wire::LEN];
    let (len, fds) = socket.receive(&mut bytes)?;
    let answer = bytes.get(..len).and_then(Answer::parse).ok_or(libc::EPROTO);
    if answer.is_err() {
        fds.into_iter().filter(|fd| *fd >= 0).for_each(sys::close);
    }
    Ok((answer?, fds))
}

/// What [`join`] has made.
fn face() -> Option<&'static Face> {
    // SAFETY: it is null, or a box that was leaked.
    unsafe { FACE.load(Ordering::SeqCst).as_ref() }
}

impl Face {
    fn own(&self, at: usize) -> &'static AtomicU64 {
        &self.own[at % self.own.len()]
    }

    /// Notes what the daemon has called this process.
    fn become_somebody(&self, answer: &Answer) {
        let [.., owner, slot] = answer.values;
        let known = answer.error == 0 && owner > 0 && owner < segment::DAEMON.into();
        self.own(own::CLIENT).store(slot, Ordering::Relaxed);
        self.own(own::PROCESS).store(sys::process(), Ordering::Relaxed);
        if known && TAINTED.load(Ordering::SeqCst) {
            self.segment.client(slot as usize).unlogged().fetch_add(1, Ordering::SeqCst);
        }
        let state = if known { own::JOINED | owner } else { own::ALONE };
        self.own(own::STATE).store(state, Ordering::Release);
    }

    /// Who this process is; a forked child joins first. `None`: nobody, as the daemon has not answered, or this is the child of `vfork`.
    fn me(&self) -> Option<Me> {
        let state = self.own(own::STATE);
        for _ in 0..100_000 {
            match state.load(Ordering::Acquire) {
                own::NOBODY => {
                    let mine = state
                        .compare_exchange(own::NOBODY, own::JOINING, Ordering::SeqCst, Ordering::SeqCst)
                        .is_ok();
                    if mine {
                        let about = sys::process();
                        let question = Question { kind: Kind::Hello, segment: self.segment.name(), about };
                        let refused = Answer { error: libc::ECONNREFUSED, ..Answer::default() };
                        let answer = self.ask(&question, None, ASK_MS).unwrap_or(refused);
                        self.become_somebody(&answer);
                    }
                }
                own::JOINING => sys::yield_now(),
                own::ALONE => return None,
                joined => {
                    let same = self.own(own::PROCESS).load(Ordering::Relaxed) == sys::process();
                    return same.then_some(self.joined_as(joined));
                }
            }
        }
        None
    }

    /// The same, without a system call where nobody has had this process' memory.
    fn me_at_once(&self) -> Option<Me> {
        let state = self.own(own::STATE).load(Ordering::Acquire);
        let is_known = state & own::JOINED != 0 && self.own(own::FORKED).load(Ordering::SeqCst) == 0;
        if is_known { Some(self.joined_as(state)) } else { self.me() }
    }

    fn joined_as(&self, state: u64) -> Me {
        let slot = self.own(own::CLIENT).load(Ordering::Relaxed) as usize;
        Me { owner: Owner::new((state & 0xff_ffff) as u32), client: self.segment.client(slot) }
    }

    /// Asks the daemon. Where somebody has waited for it in vain, nobody waits any more before it is heard of again: it is only called now and then.
    fn ask(&self, question: &Question, fd: Option<i32>, milliseconds: u64) -> Result<Answer, Errno> {
        let (answer, fds) = self.ask_for(question, fd, milliseconds)?;
        fds.into_iter().filter(|fd| *fd >= 0).for_each(sys::close);
        Ok(answer)
    }

    /// The same, of who wants the descriptors that come with the answer.
    fn ask_for(
        &self,
        question: &Question,
        fd: Option<i32>,
        milliseconds: u64,
    ) -> Result<(Answer, [i32; 3]), Errno> {
        if self.segment.is_silent() {
            if self.segment.is_to_call(sys::monotonic()) {
                let call = Question { kind: Kind::Kick, segment: self.segment.name(), about: 0 };
                // Who goes on finds it, and that nobody waits.
                let _ = Socket::at_once(&self.address).and_then(|socket| socket.send(&call.emit(), &[]));
            }
            return Err(libc::ETIMEDOUT);
        }
        let asked = ask(&self.address, question, fd, milliseconds);
        if matches!(asked, Err(libc::EAGAIN)) {
            self.segment.silent(sys::monotonic());
        }
        asked
    }

    /// Has a file taken into the table. `why`: why its syncs are never absorbed, or 0.
    fn register(&self, fd: i32, why: u64) -> Option<File> {
        let question = Question { kind: Kind::Register, segment: self.segment.name(), about: why };
        let answer = self.ask(&question, Some(fd), ASK_MS).ok().filter(|answer| answer.error == 0)?;
        Some(self.segment.file(answer.values[0] as usize))
    }

    /// Whether this process has its numbers of descriptors and its memory to itself: not the child of `vfork`.
    fn is_itself(&self) -> bool {
        let joined = self.own(own::PROCESS).load(Ordering::Relaxed);
        joined == 0 || joined == sys::process()
    }

    /// Tells the daemon that there is work.
    fn kick(&self) {
        let question = Question { kind: Kind::Kick, segment: self.segment.name(), about: 0 };
        // It finds out itself when somebody asks for more; and whoever waits kicks again.
        if self.ask(&question, None, ASK_MS).is_err() {
            self.segment.kicked();
        }
    }

    /// Waits until all below an index is in its file.
    fn drain(&self, upto: u64) -> bool {
        if self.log.tail() >= upto {
            return true;
        }
        let question = Question { kind: Kind::Drain, segment: self.segment.name(), about: upto };
        self.ask(&question, None, DRAIN_MS).is_ok_and(|answer| answer.error == 0)
    }

    /// Waits until all below an index is durable in the log.
    fn persist(&self, me: &Me, upto: u64) -> bool {
        let words = self.segment.log();
        let from = words.load(Word::Durable).max(words.load(Word::Tail));
        // More is never in use: then the words are not what we and the daemon wrote.
        let is_fair = |upto: u64| upto.saturating_sub(from) <= self.lap;
        let is_durable = || match self.log.promise() {
            Promise::AtReturn => true,
            Promise::AtSync => {
                let mut synced = Synced::default();
                let is_durable = self.segment.sync_in_turn(upto, TURN_MS, |asked| {
                    let upto = if is_fair(asked) { upto.max(asked) } else { upto };
                    self.log.sync_up_to(me.owner, upto).map(|groups| synced = groups).is_ok()
                });
                // When all who have waited go on.
                self.log.fence_all(&synced);
                is_durable
            }
        };
        is_fair(upto)
            && !self.segment.has_failed()
            && is_durable()
            && (!self.segment.is_copied() || self.segment.wait_copied(upto, COPY_MS))
    }

    /// Waits until all below an index is in its file, and whoever recovers from the log's copies would know that.
    fn drain_known(&self, upto: u64) -> bool {
        self.drain(upto) && self.is_tail_known(upto)
    }

    /// Waits until whoever recovers from the log's copies, if it has some, would know that all below an index is in its file. `false` also where the copies are
    /// lost: this machine may have been given up.
    fn is_tail_known(&self, tail: u64) -> bool {
        !self.segment.is_copied()
            || !self.segment.has_failed() && self.segment.wait_copied_tail(tail, COPY_MS)
    }

    /// This process may change files from now on in ways that nobody sees: nobody begins to absorb while it lives.
    fn taint(&self) {
        if !TAINTED.swap(true, Ordering::SeqCst)
            && let Some(me) = self.me()
        {
            me.client.unlogged().fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// Bytes that were not written yet.
const fn uninit<const N: usize>() -> [MaybeUninit<u8>; N] {
    [const { MaybeUninit::uninit() }; N]
}

/// The same, when all of them were.
fn filled(bytes: &[MaybeUninit<u8>]) -> &[u8] {
    // SAFETY: the callers have written each of them.
    unsafe { &*(std::ptr::from_ref(bytes) as *const [u8]) }
}
