//! The modes *deferred* and *pages*: files that the program opens to be written are read and written in this process, by the cache of `remanence_nvcache`, and all that the cache cannot answer has the file [handed back](open)
//! to the kernel first.
//!
//! **The descriptor stays the kernel's**: its number, its flags, who may have it, and what it is when a program is executed are right without us. The table here says only behind which numbers a file is that the cache has, and a
//! file gets there by an `open` that is seen from its beginning to its end. So a number that came by another way (inherited, sent, of another call) is the kernel's.
//!
//! **Anything by which somebody else could come to see the file hands it back**, before it is carried out: `calls.rs` has the list. What no call of this process does, a second open by somebody else, the
//! kernel tells by a lease (`keeper.rs`).
//!
//! **Children.** A forked one has the kernel's descriptors and nothing of the cache: what is here is forgotten there with its first call, as a page says that is zeros in it. A file that another thread took between the moment in which all were handed back
//! and the fork itself is opened there, which breaks its lease, so that the parent hands it back. A child that has its parent's memory (`vfork`) is known by its number; all of its calls are the kernel's.
//!
//! This process has the log if it was the first that wanted it. Others, and children, have the kernel.
//!
//! | file | what it is |
//! |---|---|
//! | `mod.rs` | who is asked, and what is counted |
//! | `calls.rs` | which call does what |
//! | `open.rs` | a file that the cache has, and how it is handed back |
//! | `keeper.rs` | the thread that opens the log, and hands back what somebody else wants |
//! | `program.rs` | the program's memory, and the kernel's words |

mod calls;
mod keeper;
mod open;
mod program;

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use remanence_intercept::{Hook, Scope, Syscall, Verdict, install};
use remanence_nvcache::programs::{Count, Settings};

const PAGE: usize = 4096;

/// What the process is.
mod word {
    /// A child whose first call comes.
    pub(super) const CHILD: u64 = 0;
    /// That which has begun with the library.
    pub(super) const HERE: u64 = 1;
    /// A child that has forgotten all, or there is nothing yet.
    pub(super) const NOBODY: u64 = 2;
}

static SETTINGS: OnceLock<Settings> = OnceLock::new();
/// A word that is zero in a forked child: one of [`word`].
static OWN: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());
/// The words of the counts, if somebody wants them.
static COUNTS: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());
/// A process has had the same memory as this one.
static SHARES_MEMORY: AtomicBool = AtomicBool::new(false);
/// The number of the process that the state here belongs to.
static PROCESS: AtomicU64 = AtomicU64::new(0);
/// Threads of the program.
static THREADS: AtomicU32 = AtomicU32::new(1);

fn settings() -> Option<&'static Settings> {
    SETTINGS.get()
}

/// Counts what becomes of files and calls.
fn count(what: Count, by: u64) {
    let counts = COUNTS.load(Ordering::Relaxed);
    if !counts.is_null() {
        // SAFETY: as many words are mapped, for as long as this process lives.
        unsafe { &*counts.add(what as usize) }.fetch_add(by, Ordering::Relaxed);
    }
}

/// Maps memory: of a file, or zeros. None: there is none.
fn map(len: usize, file: Option<&File>) -> Option<*mut AtomicU64> {
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let (kind, fd) = match file {
        Some(file) => (libc::MAP_SHARED, file.as_raw_fd()),
        None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
    };
    // SAFETY: new memory.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, rights, kind, fd, 0) };
    (at != libc::MAP_FAILED).then(|| at.cast())
}

/// Has this program's files read and written by a cache, as the settings say.
///
/// # Errors
/// One sentence: the program's calls cannot be seen, or there is no memory.
pub(crate) fn start(settings: Settings) -> Result<(), String> {
    // SAFETY: a name that is looked for.
    if unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"gnu_get_libc_version".as_ptr()) }.is_null() {
        return Err("threads end in another way in this C library than in GNU's".into());
    }
    let own = map(PAGE, None).ok_or("there is no memory")?;
    // SAFETY: a page of ours.
    if unsafe { libc::madvise(own.cast(), PAGE, libc::MADV_WIPEONFORK) } != 0 {
        return Err("the kernel cannot tell forked children apart (MADV_WIPEONFORK)".into());
    }
    // SAFETY: a word of that page, which stays.
    unsafe { &*own }.store(word::HERE, Ordering::SeqCst);
    if let Some(path) = &settings.counts
        && let Ok(file) = File::options().read(true).write(true).open(path)
        && file.metadata().is_ok_and(|found| found.len() == Count::LEN)
        && let Some(counts) = map(Count::LEN as usize, Some(&file))
    {
        COUNTS.store(counts, Ordering::SeqCst);
    }
    PROCESS.store(program::process(), Ordering::SeqCst);
    // There is one thread yet.
    let _ = SETTINGS.set(settings);
    OWN.store(own, Ordering::SeqCst);
    let hook = Hook { wants, handle };
    // A call that is not seen would go past the cache, whoever makes it.
    install(hook, calls::NUMBERS, Scope::All).map_err(|why| why.to_string())?;
    keeper::start().map_err(|why| format!("a thread cannot be had ({why})"))?;
    // But for the keeper.
    THREADS.store(1, Ordering::SeqCst);
    Ok(())
}

/// What this process is. The child that has its parent's memory is not told apart.
fn own() -> Option<&'static AtomicU64> {
    // SAFETY: it is null, or a word that stays.
    unsafe { OWN.load(Ordering::Relaxed).as_ref() }
}

fn wants(call: &Syscall) -> bool {
    match own().map_or(word::NOBODY, |own| own.load(Ordering::Relaxed)) {
        word::HERE => calls::wants(call) && !keeper::is_ours(),
        word::CHILD => true,
        _ => false,
    }
}

fn handle(call: &Syscall) -> Verdict {
    program::keeping_errno(|| {
        if own().is_none_or(|own| own.load(Ordering::Relaxed) != word::HERE) {
            forked();
            return Verdict::Pass;
        }
        if SHARES_MEMORY.load(Ordering::SeqCst) && program::process() != PROCESS.load(Ordering::SeqCst) {
            return Verdict::Pass;
        }
        calls::answer(call)
    })
}

/// In a forked child: a file that its parent has taken in the very moment of the fork is handed back there.
fn forked() {
    for fd in open::files_between(0, u32::MAX) {
        if let Ok(path) = std::ffi::CString::new(format!("/proc/self/fd/{fd}")) {
            program::break_lease(&path);
        }
    }
    open::forget_all();
    if let Some(own) = own() {
        own.store(word::NOBODY, Ordering::SeqCst);
    }
}
