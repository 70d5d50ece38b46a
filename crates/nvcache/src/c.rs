//! The functions that C programs call: `nvcache.h`, in `include`, says what each does. They convert, call the cache, and convert back.
//!
//! A process has one cache here. A descriptor is a number that no other descriptor of the process has, as it is one of the system: by itself it can neither be read nor
//! written (`O_PATH`), so a program that takes `read` or `write` for `nvread` or `nvwrite` is told (EBADF), and goes past no log. One that takes `close` for `nvclose` has given the number
//! back to the system, which may have another file by it: that is never closed here.
//!
//! **A call that is under way** has what it needs lent to it. Who closes the last descriptor of a file, or ends the cache, waits until all calls have given that back, as what they write is to be in the file
//! when it returns; each of them has an end, which is the cache's patience.
//!
//! The promise of this room: pointers are those of the C program, which the header has it keep valid for the length of the call; what it writes is copied
//! once before anything is done with it, as its other threads may change it meanwhile.
#![expect(unsafe_code, reason = "a C interface")]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_uint, c_void};
use std::io::SeekFrom;
use std::ops::Deref;
use std::os::fd::{AsRawFd as _, IntoRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, SystemTime};

use rustix::fs::{CWD, Mode, OFlags};

use crate::events::{Events, Waiter};
use crate::forks;
use crate::{Cache, Error, File, OpenOptions, Options, Stat};

/// `struct nv_options`: zeros stand for what is usual.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NvOptions {
    /// Bytes of this structure, as the program knows it.
    pub size: usize,
    /// Bytes of a log that is made.
    pub log_size: u64,
    /// Bytes of file content in memory.
    pub memory: u64,
    /// `NV_STRICT`, `NV_PAGES` and `NV_DIRECT`, or some of them.
    pub flags: c_uint,
    /// Milliseconds that a call waits while the disk takes nothing.
    pub patience_ms: c_uint,
}

/// `NV_STRICT`: each write waits until it is durable.
pub const NV_STRICT: c_uint = 1;
/// `NV_PAGES`: there are pages in the log's place.
pub const NV_PAGES: c_uint = 2;
/// `NV_DIRECT`: they are read from their files and written to them by `O_DIRECT`.
pub const NV_DIRECT: c_uint = 4;

/// What was lent is given back by one call.
static GIVEN_BACK: LazyLock<Events> = LazyLock::new(Events::default);

/// What somebody has until this is dropped, which those hear who wait for it.
struct Lent<T>(Option<T>);

impl<T> Deref for Lent<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("it is there until it is dropped")
    }
}

impl<T> Drop for Lent<T> {
    fn drop(&mut self) {
        self.0 = None;
        GIVEN_BACK.happened();
    }
}

/// Waits until nobody else has it.
fn wait_alone<T>(lent: &Arc<T>) {
    let mut waiter: Option<Waiter<'_>> = None;
    while Arc::strong_count(lent) > 1 {
        match &mut waiter {
            // It is looked at once more, now that nothing that happens is missed.
            None => waiter = Some(GIVEN_BACK.waiter()),
            Some(waiter) => drop(waiter.wait(None)),
        }
    }
}

/// A descriptor: the file, and the number that stands for it.
struct Descriptor {
    file: Lent<Arc<File>>,
    place: OwnedFd,
}

impl Descriptor {
    /// Gives its number back, unless the program has done so by `close`: it may be another file's by now.
    fn freed(self) -> Lent<Arc<File>> {
        let Self { file, place } = self;
        let is_path = rustix::fs::fcntl_getfl(&place).is_ok_and(|flags| flags.contains(OFlags::PATH));
        let is_same = match (rustix::fs::fstat(&place), rustix::fs::fstat(file.system())) {
            (Ok(one), Ok(other)) => (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino),
            _ => false,
        };
        if !is_path || !is_same {
            let _ = place.into_raw_fd();
        }
        file
    }
}

/// What the process has.
struct Library {
    cache: Cache,
    open: BTreeMap<c_int, Descriptor>,
}

/// Closes a file of which a descriptor was taken out of those that are open; unless one of these is of the same.
fn close(mut file: Lent<Arc<File>>, is_shared: bool) -> Result<(), Error> {
    if is_shared {
        return Ok(());
    }
    wait_alone(&file);
    file.0.take().and_then(Arc::into_inner).map_or(Ok(()), File::close)
}

/// Whether there is another descriptor of a file.
fn is_shared(open: &BTreeMap<c_int, Descriptor>, file: &Arc<File>) -> bool {
    open.values().any(|other| Arc::ptr_eq(&other.file, file))
}

static LIBRARY: RwLock<Option<Library>> = RwLock::new(None);
/// The process that has it, or [`NOBODY`]: a forked child may find the lock taken, by a thread that it has not.
static PROCESS: AtomicU64 = AtomicU64::new(NOBODY);
const NOBODY: u64 = u64::MAX;

thread_local! {
    /// Why the last call of this thread that failed has.
    static WHY: RefCell<CString> = RefCell::default();
}

fn check_process() -> Result<(), Error> {
    let process = PROCESS.load(Ordering::Acquire);
    if process != NOBODY && forks::is_other(process) { Err(Error::Forked) } else { Ok(()) }
}

fn library() -> Result<RwLockReadGuard<'static, Option<Library>>, Error> {
    check_process()?;
    Ok(LIBRARY.read().unwrap_or_else(PoisonError::into_inner))
}

fn library_mut() -> Result<RwLockWriteGuard<'static, Option<Library>>, Error> {
    check_process()?;
    Ok(LIBRARY.write().unwrap_or_else(PoisonError::into_inner))
}

/// What a call gives that fails by -1 and `errno`.
fn given<T: From<i8>>(outcome: Result<T, Error>) -> T {
    outcome.unwrap_or_else(|why| {
        let errno = why.errno();
        let text = CString::new(why.to_string().replace('\0', "?")).unwrap_or_default();
        // In a thread's last moments there is no place for it any more.
        let _ = WHY.try_with(|last| *last.borrow_mut() = text);
        // SAFETY: the word of this thread.
        unsafe { *libc::__errno_location() = errno };
        T::from(-1)
    })
}

/// The path of a C program.
///
/// # Safety
/// It is null, or a string that ends with a zero.
unsafe fn path_at<'a>(path: *const c_char) -> Result<&'a Path, Error> {
    if path.is_null() {
        return Err(Error::Argument("the path is null"));
    }
    // SAFETY: as the caller promises.
    Ok(Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes())))
}

fn cache() -> Result<Lent<Cache>, Error> {
    let cache = library()?.as_ref().map(|library| library.cache.clone());
    cache.map(|cache| Lent(Some(cache))).ok_or(Error::BadDescriptor)
}

fn file(number: c_int) -> Result<Lent<Arc<File>>, Error> {
    let library = library()?;
    let found = library.as_ref().and_then(|library| library.open.get(&number));
    found.map(|found| Lent(Some(Arc::clone(&found.file)))).ok_or(Error::BadDescriptor)
}

/// Gives a file a number; a further one if it has one.
fn numbered(file: Lent<Arc<File>>, has: Option<c_int>) -> Result<c_int, Error> {
    let there = format!("/proc/self/fd/{}", file.system().as_raw_fd());
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let place = rustix::fs::openat(CWD, there, flags, Mode::empty());
    let place = place.map_err(|why| Error::system("a descriptor", "had")(why.into()))?;
    let number = place.as_raw_fd();
    let replaced = {
        let mut library = library_mut()?;
        let open = &mut library.as_mut().ok_or(Error::Closed)?.open;
        let is_closed = |has| open.get(&has).is_none_or(|other| !Arc::ptr_eq(&other.file, &file));
        // Somebody else has closed it meanwhile, and waits for us.
        if has.is_some_and(is_closed) {
            return Err(Error::BadDescriptor);
        }
        open.insert(number, Descriptor { file, place }).map(|Descriptor { file, place }| {
            // That number was closed by `close`, and is the new one's by now.
            let _ = place.into_raw_fd();
            let is_shared = is_shared(open, &file);
            (file, is_shared)
        })
    };
    if let Some((file, is_shared)) = replaced {
        // Who has closed it so has not asked.
        let _ = close(file, is_shared);
    }
    Ok(number)
}

/// `int nvinit(const char *log, const struct nv_options *options)`
///
/// # Safety
/// `log` is a string that ends with a zero; `options` is null or as long as it says itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvinit(log: *const c_char, options: *const NvOptions) -> c_int {
    // SAFETY: as the caller promises.
    let asked = unsafe { path_at(log) }.map(Options::new).and_then(|usual| {
        if options.is_null() {
            return Ok(usual);
        }
        // SAFETY: as above; the first field says how much there is.
        let size = unsafe { (&raw const (*options).size).read() };
        if size != size_of::<NvOptions>() {
            return Err(Error::Argument("nv_options.size is not that of this release"));
        }
        // SAFETY: it is as long.
        with(usual, &unsafe { options.read() })
    });
    given(asked.and_then(|options| {
        let mut library = library_mut()?;
        if library.is_some() {
            return Err(Error::Argument("this process has a cache already: nvshutdown ends it"));
        }
        let cache = Cache::open(&options)?;
        PROCESS.store(cache.0.inner.process, Ordering::Release);
        *library = Some(Library { cache, open: BTreeMap::new() });
        Ok(0)
    }))
}

fn with(mut options: Options, asked: &NvOptions) -> Result<Options, Error> {
    if asked.flags & !(NV_STRICT | NV_PAGES | NV_DIRECT) != 0 {
        return Err(Error::Argument("nv_options.flags has a flag that this release does not know"));
    }
    if asked.flags & NV_PAGES != 0 {
        options = options.in_pages();
    }
    if asked.log_size > 0 {
        options = options.size(asked.log_size);
    }
    if asked.memory > 0 {
        options = options.memory(usize::try_from(asked.memory).unwrap_or(usize::MAX));
    }
    if asked.patience_ms > 0 {
        options = options.patience(Duration::from_millis(asked.patience_ms.into()));
    }
    Ok(options.strict(asked.flags & NV_STRICT != 0).direct(asked.flags & NV_DIRECT != 0))
}

/// `int nvshutdown(void)`
#[unsafe(no_mangle)]
pub extern "C" fn nvshutdown() -> c_int {
    let taken = library_mut().and_then(|mut library| {
        let taken = library.take().ok_or(Error::BadDescriptor)?;
        // A child that is forked from now on may have one of its own.
        PROCESS.store(NOBODY, Ordering::Release);
        Ok(taken)
    });
    given(taken.and_then(|Library { cache, mut open }| {
        let mut outcome = Ok(());
        while let Some((_, descriptor)) = open.pop_first() {
            let file = descriptor.freed();
            let is_shared = is_shared(&open, &file);
            let closed = close(file, is_shared);
            outcome = outcome.and(closed);
        }
        wait_alone(&cache.0);
        let ended = cache.close();
        outcome.and(ended).map(|()| 0)
    }))
}

/// `int nvopen(const char *path, int flags, mode_t mode)`
///
/// # Safety
/// `path` is a string that ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvopen(path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    // SAFETY: as the caller promises.
    let path = unsafe { path_at(path) };
    given(path.and_then(|path| {
        let options = opened_by(flags)?.mode(mode & 0o7777);
        numbered(Lent(Some(Arc::new(cache()?.open_file(path, &options)?))), None)
    }))
}

/// Flags that say something here.
const KNOWN: c_int = libc::O_ACCMODE
    | libc::O_APPEND
    | libc::O_CREAT
    | libc::O_EXCL
    | libc::O_TRUNC
    | libc::O_SYNC
    | libc::O_DSYNC
    | libc::O_NOFOLLOW;
/// Those with which a regular file is opened as without them, and `O_LARGEFILE`, which is 0 where the library says it.
const HARMLESS: c_int = libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NONBLOCK | 0o100_000;

fn opened_by(flags: c_int) -> Result<OpenOptions, Error> {
    if flags & (libc::O_PATH | libc::O_DIRECTORY | libc::O_TMPFILE) != 0 {
        return Err(Error::Argument("nvopen opens regular files that have a name"));
    }
    let has = |flag| flags & flag == flag;
    let access = flags & libc::O_ACCMODE;
    if flags & !(KNOWN | HARMLESS) != 0 || access == libc::O_ACCMODE {
        return Err(Error::Argument("nvopen does not know one of these flags, or not in this mode"));
    }
    let writes = access == libc::O_WRONLY || access == libc::O_RDWR;
    if has(libc::O_TRUNC) && !writes {
        return Err(Error::Argument("a file that is cut short is opened for writing"));
    }
    Ok(OpenOptions::new()
        .read(access == libc::O_RDONLY || access == libc::O_RDWR)
        .write(writes)
        .append(writes && has(libc::O_APPEND))
        .truncate(has(libc::O_TRUNC))
        .create(has(libc::O_CREAT))
        .create_new(has(libc::O_CREAT) && has(libc::O_EXCL))
        .no_follow(has(libc::O_NOFOLLOW))
        .sync(has(libc::O_DSYNC)))
}

/// `int nvclose(int nvd)`
#[unsafe(no_mangle)]
pub extern "C" fn nvclose(number: c_int) -> c_int {
    let taken = library_mut().and_then(|mut library| {
        let open = library.as_mut().map(|library| &mut library.open).ok_or(Error::BadDescriptor)?;
        let file = open.remove(&number).ok_or(Error::BadDescriptor)?.freed();
        let is_shared = is_shared(open, &file);
        Ok((file, is_shared))
    });
    given(taken.and_then(|(file, is_shared)| close(file, is_shared)).map(|()| 0))
}

/// `int nvdup(int nvd)`
#[unsafe(no_mangle)]
pub extern "C" fn nvdup(number: c_int) -> c_int {
    given(file(number).and_then(|file| numbered(file, Some(number))))
}

/// What a C program reads into.
///
/// # Safety
/// So many bytes can be written there, and nobody else does meanwhile.
unsafe fn buffer<'a>(at: *mut c_void, len: usize) -> Result<&'a mut [u8], Error> {
    if len == 0 {
        return Ok(&mut []);
    }
    if at.is_null() || isize::try_from(len).is_err() {
        return Err(Error::Argument("the buffer is null, or longer than any is"));
    }
    // SAFETY: as the caller promises.
    Ok(unsafe { std::slice::from_raw_parts_mut(at.cast(), len) })
}

/// Writes what a C program has, in pieces that were copied before.
///
/// # Safety
/// So many bytes can be read there.
unsafe fn written(
    at: *const c_void,
    len: usize,
    mut write: impl FnMut(&[u8], u64) -> Result<usize, Error>,
) -> Result<isize, Error> {
    if len > 0 && at.is_null() || isize::try_from(len).is_err() {
        return Err(Error::Argument("the buffer is null, or longer than any is"));
    }
    let longest = usize::try_from(cache()?.longest()).unwrap_or(usize::MAX);
    let mut copy = vec![0; len.min(longest)];
    let mut done = 0;
    loop {
        let piece = (len - done).min(longest);
        if piece > 0 {
            // SAFETY: it lies within what the caller promises, and the copy is as long.
            unsafe { std::ptr::copy_nonoverlapping(at.cast::<u8>().add(done), copy.as_mut_ptr(), piece) };
        }
        match write(&copy[..piece], done as u64) {
            Ok(some) => {
                done += some;
                if some < piece || done == len {
                    return Ok(done as isize);
                }
            }
            Err(why) if done == 0 => return Err(why),
            Err(_) => return Ok(done as isize),
        }
    }
}

/// `ssize_t nvread(int nvd, void *into, size_t len)`
///
/// # Safety
/// `len` bytes can be written at `into`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvread(number: c_int, into: *mut c_void, len: usize) -> isize {
    // SAFETY: as the caller promises.
    let into = unsafe { buffer(into, len) };
    given(into.and_then(|into| Ok(file(number)?.read(into)? as isize)))
}

/// `ssize_t nvpread(int nvd, void *into, size_t len, int64_t offset)`
///
/// # Safety
/// `len` bytes can be written at `into`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvpread(number: c_int, into: *mut c_void, len: usize, offset: i64) -> isize {
    // SAFETY: as the caller promises.
    let into = unsafe { buffer(into, len) };
    given(into.and_then(|into| Ok(file(number)?.read_at(into, at(offset)?)? as isize)))
}

fn at(offset: i64) -> Result<u64, Error> {
    u64::try_from(offset).map_err(|_| Error::OutOfBounds)
}

/// `ssize_t nvwrite(int nvd, const void *from, size_t len)`
///
/// # Safety
/// `len` bytes can be read at `from`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvwrite(number: c_int, from: *const c_void, len: usize) -> isize {
    let file = file(number);
    // SAFETY: as the caller promises.
    given(file.and_then(|file| unsafe { written(from, len, |bytes, _| file.write(bytes)) }))
}

/// `ssize_t nvpwrite(int nvd, const void *from, size_t len, int64_t offset)`
///
/// # Safety
/// `len` bytes can be read at `from`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvpwrite(number: c_int, from: *const c_void, len: usize, offset: i64) -> isize {
    let file = file(number).and_then(|file| Ok((file, at(offset)?)));
    // SAFETY: as the caller promises.
    given(file.and_then(|(file, offset)| unsafe {
        written(from, len, |bytes, done| file.write_at(bytes, offset.saturating_add(done)))
    }))
}

/// `int64_t nvlseek(int nvd, int64_t offset, int whence)`
#[unsafe(no_mangle)]
pub extern "C" fn nvlseek(number: c_int, offset: i64, whence: c_int) -> i64 {
    given(file(number).and_then(|file| {
        let to = match whence {
            libc::SEEK_SET => SeekFrom::Start(at(offset)?),
            libc::SEEK_CUR => SeekFrom::Current(offset),
            libc::SEEK_END => SeekFrom::End(offset),
            // All of a file is data, and behind it is a hole.
            libc::SEEK_DATA | libc::SEEK_HOLE => {
                let len = file.len();
                let offset = u64::try_from(offset).ok().filter(|offset| *offset < len);
                let none = || std::io::Error::from_raw_os_error(libc::ENXIO);
                let offset = offset.ok_or_else(|| Error::system("the file", "searched there")(none()))?;
                SeekFrom::Start(if whence == libc::SEEK_DATA { offset } else { len })
            }
            _ => return Err(Error::Argument("whence is none that lseek has")),
        };
        Ok(file.seek(to)? as i64)
    }))
}

/// `int nvftruncate(int nvd, int64_t len)`
#[unsafe(no_mangle)]
pub extern "C" fn nvftruncate(number: c_int, len: i64) -> c_int {
    given(file(number).and_then(|file| file.set_len(at(len)?)).map(|()| 0))
}

/// `int nvfsync(int nvd)`
#[unsafe(no_mangle)]
pub extern "C" fn nvfsync(number: c_int) -> c_int {
    given(file(number).and_then(|file| file.sync()).map(|()| 0))
}

/// `int nvflush(int nvd)`
#[unsafe(no_mangle)]
pub extern "C" fn nvflush(number: c_int) -> c_int {
    let drained = match number {
        -1 => cache().and_then(|cache| cache.drain()),
        number => file(number).and_then(|file| file.drain()),
    };
    given(drained.map(|()| 0))
}

/// `int nvunlink(const char *path)`
///
/// # Safety
/// `path` is a string that ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvunlink(path: *const c_char) -> c_int {
    // SAFETY: as the caller promises.
    let path = unsafe { path_at(path) };
    given(path.and_then(|path| cache()?.unlink(path)).map(|()| 0))
}

/// `int nvstat(const char *path, struct stat *about)`
///
/// # Safety
/// `path` is a string that ends with a zero, and a `struct stat` can be written at `about`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvstat(path: *const c_char, about: *mut libc::stat) -> c_int {
    // SAFETY: as the caller promises.
    let path = unsafe { path_at(path) };
    let found = path.and_then(|path| cache()?.stat(path));
    // SAFETY: as above.
    given(found.and_then(|found| unsafe { put(&found, about) }))
}

/// `int nvfstat(int nvd, struct stat *about)`
///
/// # Safety
/// A `struct stat` can be written at `about`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfstat(number: c_int, about: *mut libc::stat) -> c_int {
    let found = file(number).and_then(|file| file.stat());
    // SAFETY: as the caller promises.
    given(found.and_then(|found| unsafe { put(&found, about) }))
}

/// Fills a `struct stat`.
///
/// # Safety
/// It is null, or one can be written there.
unsafe fn put(found: &Stat, into: *mut libc::stat) -> Result<c_int, Error> {
    if into.is_null() {
        return Err(Error::Argument("there is no struct stat to be filled"));
    }
    // SAFETY: numbers only, for which zeros are values.
    let mut about: libc::stat = unsafe { std::mem::zeroed() };
    let system = &found.system;
    about.st_dev = system.dev() as _;
    about.st_ino = system.ino() as _;
    about.st_mode = system.mode() as _;
    about.st_nlink = system.nlink() as _;
    about.st_uid = system.uid() as _;
    about.st_gid = system.gid() as _;
    about.st_rdev = system.rdev() as _;
    about.st_size = found.len as _;
    about.st_blksize = system.blksize() as _;
    about.st_blocks = system.blocks() as _;
    about.st_atime = system.atime() as _;
    about.st_atime_nsec = system.atime_nsec() as _;
    about.st_ctime = system.ctime() as _;
    about.st_ctime_nsec = system.ctime_nsec() as _;
    let modified = found.modified.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    about.st_mtime = modified.as_secs() as _;
    about.st_mtime_nsec = modified.subsec_nanos() as _;
    // SAFETY: as the caller promises.
    unsafe { into.write(about) };
    Ok(0)
}

/// `const char *nverror(void)`
#[unsafe(no_mangle)]
pub extern "C" fn nverror() -> *const c_char {
    WHY.try_with(|why| why.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}
