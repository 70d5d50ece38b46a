//! A file of the program that the cache has: it is behind the descriptor that the kernel has given the program, until it is handed back.
//!
//! **Nobody else has it open.** The descriptor gets a lease (`F_SETLEASE`, to write), which the kernel gives only where no other one of that file is open, and by which whoever opens it, or truncates it by its path,
//! waits until it was handed back (`keeper.rs`). The cache reads and writes by a duplicate of that descriptor, at offsets of its own, so that its own access breaks no lease.
//!
//! **Handing back**: no call of another thread is in the file any more, and those that come wait; all of it is in the file, durably; the kernel's descriptor gets the position that the program knows, and its `O_APPEND`; then
//! the lease is given back, and who has waited goes on. What of it is called from then on, the kernel answers. If the disk does not take it, nothing has changed, and the call for which it was to be handed
//! back fails with the disk's error.
//!
//! **Locks, in the order in which they are taken**: a file's state, the position's turn, the table and the list of files, each for a moment. Who waits for the cache has none of the last two.

use std::collections::BTreeMap;
use std::fs::File as SystemFile;
use std::io::SeekFrom;
use std::os::fd::FromRawFd as _;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use remanence_nvcache::programs::Count;
use remanence_nvcache::{File, OpenOptions};

use super::keeper::{self, SIGNAL};
use super::program::{About, Errno, Key, close, control, is_on_disk};
use super::{count, settings};

/// Files with higher numbers are the kernel's.
pub(super) const NUMBERS: usize = 4096;

const F_SETSIG: i32 = 10;
const F_SETOWN_EX: i32 = 15;
const F_OWNER_TID: i32 = 0;

/// The position itself.
pub(super) const HERE: SeekFrom = SeekFrom::Current(0);

/// What is behind a number.
mod mark {
    pub(super) const NOTHING: u8 = 0;
    pub(super) const FILE: u8 = 1;
    /// A descriptor of the cache's own.
    pub(super) const OURS: u8 = 2;
}

static MARKS: [AtomicU8; NUMBERS] = [const { AtomicU8::new(mark::NOTHING) }; NUMBERS];
static TABLE: [RwLock<Option<Arc<Open>>>; NUMBERS] = [const { RwLock::new(None) }; NUMBERS];
static FILES: Mutex<BTreeMap<Key, Arc<Open>>> = Mutex::new(BTreeMap::new());
/// How many there are.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// No file is taken any more.
static OFF: AtomicBool = AtomicBool::new(false);

/// A file that the program has opened, by however many numbers.
pub(super) struct Open {
    pub(super) key: Key,
    /// The cache's descriptor of it, which has the lease.
    own: i32,
    pub(super) appends: bool,
    numbers: Mutex<Vec<i32>>,
    /// Of calls that move the position.
    pub(super) turn: Mutex<()>,
    /// None: the kernel has it.
    state: RwLock<Option<File>>,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

fn marked(fd: u64) -> u8 {
    // The kernel looks at the low half of the register.
    MARKS.get(fd as u32 as usize).map_or(mark::NOTHING, |mark| mark.load(Ordering::SeqCst))
}

/// Whether the cache has a descriptor's file.
pub(super) fn has(fd: u64) -> bool {
    marked(fd) == mark::FILE
}

/// Whether it is one of the cache's own.
pub(super) fn is_own(fd: u64) -> bool {
    marked(fd) == mark::OURS
}

/// Whether the cache has any file.
pub(super) fn any() -> bool {
    COUNT.load(Ordering::SeqCst) > 0
}

/// From now on no file is taken.
pub(super) fn stop() {
    OFF.store(true, Ordering::SeqCst);
}

/// Notes that a descriptor is the cache's own.
pub(super) fn keep_own(fd: i32) {
    if let Some(mark) = MARKS.get(fd as usize) {
        mark.store(mark::OURS, Ordering::SeqCst);
    }
}

/// Those of the cache's own from one number up to another.
pub(super) fn own_between(from: u32, upto: u32) -> impl Iterator<Item = u32> {
    let upto = upto.min(NUMBERS as u32 - 1);
    (from..=upto).filter(|fd| is_own(u64::from(*fd)))
}

/// The numbers from one up to another that lead to files of the cache.
pub(super) fn files_between(from: u32, upto: u32) -> impl Iterator<Item = i32> {
    let upto = upto.min(NUMBERS as u32 - 1);
    (from..=upto).filter(|fd| has(u64::from(*fd))).map(u32::cast_signed)
}

/// In a forked child: forgets all, and closes what is the cache's, unless the child may have the same numbers as its parent. No lock is taken, as whoever had it is not there.
pub(super) fn forget_all() {
    let shares = OFF.load(Ordering::SeqCst);
    for (fd, mark) in MARKS.iter().enumerate() {
        if mark.swap(mark::NOTHING, Ordering::SeqCst) == mark::OURS && !shares {
            // The log is locked for as long as anybody has it.
            close(fd as i32);
        }
    }
    COUNT.store(0, Ordering::SeqCst);
}

/// The file behind a descriptor.
pub(super) fn of(fd: i32) -> Option<Arc<Open>> {
    let place = TABLE.get(usize::try_from(fd).ok()?)?;
    place.read().unwrap_or_else(PoisonError::into_inner).clone()
}

/// The file that is known by that.
pub(super) fn known(key: Key) -> Option<Arc<Open>> {
    lock(&FILES).get(&key).cloned()
}

/// The file whose lease belongs to a descriptor of ours.
pub(super) fn leased(own: i32) -> Option<Arc<Open>> {
    lock(&FILES).values().find(|open| open.own == own).cloned()
}

/// All of them.
pub(super) fn all() -> Vec<Arc<Open>> {
    lock(&FILES).values().cloned().collect()
}

/// Hands all files back; the first error, if there is one.
pub(super) fn hand_back_all(why: Count) -> Result<(), Errno> {
    let mut done = Ok(());
    for open in all() {
        done = done.and(open.hand_back(why));
    }
    done
}

/// Cache's own descriptors begin here: three quarters of those that there may be.
pub(super) fn high() -> i32 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: it writes into memory of ours.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    (limit.rlim_cur.min(NUMBERS as u64) * 3 / 4) as i32
}

/// Takes a file that the program has just opened, if that can be.
pub(super) fn take(fd: i32, flags: i32, made: bool) {
    match taken(fd, flags, made) {
        Ok(()) => count(Count::Deferred, 1),
        Err(why) => count(why, 1),
    }
}

fn taken(fd: i32, flags: i32, made: bool) -> Result<(), Count> {
    let settings = settings().ok_or(Count::NoLog)?;
    if OFF.load(Ordering::SeqCst) {
        return Err(Count::Elsewhere);
    }
    let about = About::of(fd).ok().filter(About::is_regular).ok_or(Count::Refused)?;
    let only_written = flags & libc::O_ACCMODE == libc::O_WRONLY;
    if flags & libc::O_DIRECT != 0 || about.links == 0 {
        return Err(Count::Direct);
    }
    if only_written && settings.pages {
        return Err(Count::WriteOnly);
    }
    if !is_on_disk(fd) {
        return Err(Count::NoLease);
    }
    if !settings.paths.include.is_empty() || !settings.paths.exclude.is_empty() {
        let path = std::fs::read_link(format!("/proc/self/fd/{fd}")).map_err(|_| Count::Refused)?;
        if settings.paths.refuses(&path).is_some() {
            return Err(Count::Excluded);
        }
    }
    let cache = keeper::cache().ok_or(Count::NoLog)?;
    let own = control(fd, libc::F_DUPFD_CLOEXEC, high() as u64).map_err(|_| Count::Refused)?;
    // SAFETY: a new descriptor, which is ours.
    let file = unsafe { SystemFile::from_raw_fd(own) };
    if own as usize >= NUMBERS || fd as usize >= NUMBERS {
        return Err(Count::Refused);
    }
    keep_own(own);
    let open = Arc::new(Open {
        key: about.key,
        own,
        appends: flags & libc::O_APPEND != 0,
        numbers: Mutex::default(),
        turn: Mutex::new(()),
        state: RwLock::new(None),
    });
    // Whoever breaks the lease from its first moment on finds the file, and waits until it is here.
    let mut state = write(&open.state);
    {
        let mut files = lock(&FILES);
        if files.contains_key(&open.key) {
            // Another thread is at it, or something is due to it that the disk does not take.
            free_own(own);
            return Err(Count::InUse);
        }
        files.insert(open.key, open.clone());
        COUNT.store(files.len(), Ordering::SeqCst);
    }
    let options = OpenOptions::new()
        .read(!only_written)
        .write(true)
        .append(open.appends)
        .sync(flags & libc::O_DSYNC != 0);
    let adopted = open.lease().and_then(|()| {
        cache.adopt(file, made, &options).map_err(|_| {
            release(fd, open.appends);
            Count::Refused
        })
    });
    match adopted {
        Ok(file) => {
            *state = Some(file);
            open.name(fd);
            Ok(())
        }
        Err(why) => {
            open.forget();
            Err(why)
        }
    }
}

fn free_own(fd: i32) {
    MARKS[fd as usize].store(mark::NOTHING, Ordering::SeqCst);
}

/// Gives the lease back, and `O_APPEND`, by any descriptor of the same.
fn release(fd: i32, appends: bool) {
    if appends && let Ok(flags) = control(fd, libc::F_GETFL, 0) {
        let _ = control(fd, libc::F_SETFL, (flags | libc::O_APPEND) as u64);
    }
    let _ = control(fd, libc::F_SETLEASE, libc::F_UNLCK as u64);
    let _ = control(fd, F_SETSIG, 0);
    let _ = control(fd, libc::F_SETOWN, 0);
}

impl Open {
    /// Has the kernel tell the keeper when somebody wants it, which it does only if nobody has it now. The cache's descriptor appends nothing: it has offsets of its own.
    fn lease(&self) -> Result<(), Count> {
        let owner = [F_OWNER_TID, keeper::thread_id()];
        let lease = || -> Result<(), Errno> {
            control(self.own, F_SETSIG, SIGNAL as u64)?;
            control(self.own, F_SETOWN_EX, owner.as_ptr() as u64)?;
            control(self.own, libc::F_SETLEASE, libc::F_WRLCK as u64)?;
            if self.appends {
                let flags = control(self.own, libc::F_GETFL, 0)?;
                control(self.own, libc::F_SETFL, (flags & !libc::O_APPEND) as u64)?;
            }
            Ok(())
        };
        lease().map_err(|errno| {
            release(self.own, false);
            if errno == libc::EAGAIN { Count::InUse } else { Count::NoLease }
        })
    }

    /// A number leads to it from now on. The state is ours.
    fn name(self: &Arc<Self>, fd: i32) {
        lock(&self.numbers).push(fd);
        *write(&TABLE[fd as usize]) = Some(self.clone());
        MARKS[fd as usize].store(mark::FILE, Ordering::SeqCst);
    }

    /// A number leads to it no more, if it has. Whether others do.
    fn unname(&self, fd: i32) -> bool {
        let mut numbers = lock(&self.numbers);
        if let Some(at) = numbers.iter().position(|number| *number == fd) {
            numbers.swap_remove(at);
            clear(fd);
        }
        !numbers.is_empty()
    }

    /// Nobody finds it any more, and its descriptor is nobody's.
    fn forget(&self) {
        free_own(self.own);
        let mut files = lock(&FILES);
        files.remove(&self.key);
        COUNT.store(files.len(), Ordering::SeqCst);
    }

    /// The file, for one call: meanwhile it is not handed back. None: it was, and the kernel has it.
    pub(super) fn state(&self) -> RwLockReadGuard<'_, Option<File>> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands the file back to the kernel: see above. It is done when this returns, whoever has done it.
    pub(super) fn hand_back(&self, why: Count) -> Result<(), Errno> {
        let mut state = write(&self.state);
        let Some(file) = state.as_ref() else { return Ok(()) };
        file.drain().map_err(|why| why.errno())?;
        let position = file.seek(HERE).map_err(|why| why.errno())?;
        // SAFETY: it takes numbers.
        unsafe { libc::lseek64(self.own, position.cast_signed(), libc::SEEK_SET) };
        let file = state.take();
        for fd in std::mem::take(&mut *lock(&self.numbers)) {
            clear(fd);
        }
        // Who has waited for the file knows why.
        count(why, 1);
        release(self.own, self.appends);
        // All of it is there already.
        let closed = file.map_or(Ok(()), File::close);
        self.forget();
        closed.map_err(|why| why.errno())
    }
}

fn clear(fd: i32) {
    MARKS[fd as usize].store(mark::NOTHING, Ordering::SeqCst);
    *write(&TABLE[fd as usize]) = None;
}

/// A number that leads to a file is about to be closed: with the last one all of the file comes into it.
pub(super) fn closing(fd: i32) -> Result<(), Errno> {
    match of(fd) {
        Some(open) if !open.unname(fd) => open.hand_back(Count::Kept),
        _ => Ok(()),
    }
}

/// A number that the kernel has just given leads to the same as another one.
pub(super) fn duplicated(open: &Arc<Open>, fd: i32) -> Result<(), Errno> {
    let is_kept = {
        let state = open.state();
        // Handed back since, it is the kernel's under this number too.
        let is_kept = state.is_none() || (fd as usize) < NUMBERS;
        if state.is_some() && is_kept {
            open.name(fd);
        }
        is_kept
    };
    if is_kept { Ok(()) } else { open.hand_back(Count::Other) }
}
