//! The thread of ours in a program: it opens the log when the first file wants it, hands files back that somebody else wants, and ends a process whose last thread has ended.
//!
//! It sleeps until it is signalled, by a number that nobody else has it for: a lease is broken, as the kernel says, with the lease's descriptor; or a thread of the program has asked for something. The signal is sent to this
//! thread alone, which is the only one that waits for it. All others are blocked in it, and in the cache's thread.
//!
//! The log is opened by this thread, and not where it is asked for, as that begins a thread: the program's may be in the middle of anything.

use std::mem::zeroed;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use remanence_nvcache::programs::{Count, Settings};
use remanence_nvcache::{Cache, Options};

use super::open::{self, lock};
use super::program::{Fill, thread};
use super::settings;

/// `SIGRTMAX`.
pub(super) const SIGNAL: i32 = 64;
/// How long the program's thread waits for the log: it is recovered already, but where another process has died with it since.
const PATIENCE: Duration = Duration::from_secs(60);

/// What the keeper is asked for.
struct Asked {
    /// How often somebody wanted the log, and how often that was answered.
    wanted: u64,
    answered: u64,
    /// The process is to end, with that status.
    ends: Option<i32>,
}

static ASKED: Mutex<Asked> = Mutex::new(Asked { wanted: 0, answered: 0, ends: None });
static ANSWERED: Condvar = Condvar::new();
static CACHE: OnceLock<Cache> = OnceLock::new();
static THREAD: AtomicI32 = AtomicI32::new(0);

/// The threads that are ours, by what tells them apart; how many there are.
static OURS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
static OUR_COUNT: AtomicUsize = AtomicUsize::new(0);

/// Whether the thread that asks is one of ours: its calls are nobody's to answer.
pub(super) fn is_ours() -> bool {
    let own = thread();
    OURS.iter().any(|ours| ours.load(Ordering::Relaxed) == own)
}

/// This thread is one of ours. There are two: a log is opened once.
fn become_ours() {
    let place = OUR_COUNT.fetch_add(1, Ordering::SeqCst) % OURS.len();
    OURS[place].store(thread(), Ordering::SeqCst);
}

/// This thread is one of the program's.
fn become_the_programs() {
    let own = thread();
    for ours in &OURS {
        let _ = ours.compare_exchange(own, 0, Ordering::SeqCst, Ordering::SeqCst);
    }
}

/// The keeper, for whom leases are broken.
pub(super) fn thread_id() -> i32 {
    THREAD.load(Ordering::SeqCst)
}

fn set() -> libc::sigset_t {
    // SAFETY: a set of ours, which is made before it is used.
    unsafe {
        let mut set: libc::sigset_t = zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, SIGNAL);
        set
    }
}

/// Starts the thread. Signals are blocked in it, but those by which the C library has all threads do something.
pub(super) fn start() -> std::io::Result<()> {
    // SAFETY: sets of ours.
    let before = unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = (zeroed(), zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        before
    };
    let started = std::thread::Builder::new().name("rem-deferred".into()).spawn(run);
    // SAFETY: as it was.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    started?;
    // Whoever has a file is to know whom the kernel tells.
    let mut asked = lock(&ASKED);
    while thread_id() == 0 {
        asked = ANSWERED.wait(asked).unwrap_or_else(PoisonError::into_inner);
    }
    Ok(())
}

fn run() {
    become_ours();
    {
        let _asked = lock(&ASKED);
        // SAFETY: it takes nothing.
        THREAD.store(unsafe { libc::gettid() }, Ordering::SeqCst);
        ANSWERED.notify_all();
    }
    let set = set();
    loop {
        // SAFETY: numbers only, for which zeros are values.
        let mut info: libc::siginfo_t = unsafe { zeroed() };
        // SAFETY: both are ours.
        if unsafe { libc::sigwaitinfo(&raw const set, &raw mut info) } != SIGNAL {
            continue;
        }
        if info.si_code > 0 {
            // SAFETY: of a signal about a descriptor, whose number is behind 24 bytes.
            let fd = unsafe { (&raw const info).cast::<i32>().add(6).read() };
            if let Some(open) = open::leased(fd) {
                // What the disk does not take stays here: whoever wants the file waits as long as the kernel has him wait.
                let _ = open.hand_back(Count::Shared);
            }
        }
        answer();
    }
}

/// Does what somebody has asked for.
fn answer() {
    let mut asked = lock(&ASKED);
    if let Some(status) = asked.ends {
        drop(asked);
        // What follows are calls of the program: what is left in its buffers is written.
        become_the_programs();
        // SAFETY: as the C library ends a process whose last thread has ended.
        unsafe { libc::exit(status) }
    }
    if asked.answered == asked.wanted {
        return;
    }
    let upto = asked.wanted;
    drop(asked);
    if let (None, Some(settings)) = (CACHE.get(), settings())
        && let Some(cache) = opened(settings)
    {
        // Nobody else does.
        let _ = CACHE.set(cache);
    }
    asked = lock(&ASKED);
    asked.answered = upto;
    drop(asked);
    ANSWERED.notify_all();
}

/// Opens the log, unless another process has it. Its descriptor is none of the low ones, which the program expects.
fn opened(settings: &Settings) -> Option<Cache> {
    let options = if settings.pages { Options::pages(&settings.log) } else { Options::new(&settings.log) };
    let fill = Fill::below(open::high())?;
    let cache = Cache::open(&options.thread_begins(become_ours)).ok()?;
    drop(fill);
    let entries = std::fs::read_dir("/proc/self/fd").ok()?;
    for entry in entries.flatten() {
        let is_log = std::fs::read_link(entry.path()).is_ok_and(|path| path == settings.log);
        if is_log && let Some(number) = entry.file_name().to_str().and_then(|name| name.parse().ok()) {
            open::keep_own(number);
        }
    }
    Some(cache)
}

fn wake() {
    // SAFETY: a signal for a thread of ours that waits for it.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread_id(), SIGNAL) };
}

/// The cache, if this process can have the log.
pub(super) fn cache() -> Option<&'static Cache> {
    if CACHE.get().is_some() || is_ours() {
        return CACHE.get();
    }
    let until = Instant::now() + PATIENCE;
    let mut asked = lock(&ASKED);
    asked.wanted += 1;
    let mine = asked.wanted;
    wake();
    while asked.answered < mine {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        asked = ANSWERED.wait_timeout(asked, left).unwrap_or_else(PoisonError::into_inner).0;
    }
    CACHE.get()
}

/// Has the keeper end the process, as its last thread has.
pub(super) fn end_process(status: i32) {
    lock(&ASKED).ends = Some(status);
    wake();
}

/// The process ends: what the cache has is in its files, and the log is closed. What the disk does not take stays in the log.
pub(super) fn end() {
    open::stop();
    let _ = open::hand_back_all(Count::Kept);
    if let Some(cache) = CACHE.get() {
        let _ = cache.clone().close();
    }
}
