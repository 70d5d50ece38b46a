//! A cache: one log, or pages in its place, one thread that cleans it, and the files that are open through it.

use std::fs;
use std::fs::File as SystemFile;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::SystemTime;

use remanence_cache::cleaner::{self, Cleaner};
use remanence_cache::format::{self, Geometry, Layout, OpenError, Promise};
use remanence_cache::log::Log;
use remanence_cache::reads::{self, Reads};
use remanence_cache::table::{FileTable, TableError};
use remanence_cache::words::LocalWords;
use remanence_cache_live::daemon;
use remanence_cache_live::recover::real::identity;
use remanence_pmem::image::Fault;
use remanence_pmem::layout::Uuid;
use remanence_pmem::{FileOptions, Region, StoreGranularity, Survives};

use crate::about::{About, path_of};
use crate::error::Error;
use crate::file::{File, Stat};
use crate::inner::{Engine, Inner, Opening, Parts, Shared};
use crate::inode::Inode;
use crate::options::{Keeps, OpenOptions, Options};
use crate::{PAGE, cleaning, forks, paging};

/// Entries of a log that is made, if nobody says how many: 128 MiB of them.
const ENTRIES: u64 = (128 << 20) / (4096 + 64);
/// How many entries a miss puts over a page before the cleaner is waited for instead.
const PATCHES: usize = 64;
/// So many descriptors of pages are looked at in one step of the read cache.
const SCAN: usize = 512;

/// Bytes of memory that the description of a page takes, or of an entry.
const DESCRIBED: u64 = 256;

/// Which failures what was acknowledged survives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Survival {
    /// What a write that returned survives.
    pub at_return: Survives,
    /// What it survives when a sync behind it has returned.
    pub at_sync: Survives,
}

/// How a cache stands.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Status {
    /// Entries that the log has; or pages, if there are such in its place.
    pub entries: u64,
    /// Those that are in use; of pages, those that files may lack.
    pub used: u64,
    /// Changes that were logged, since the cache was opened.
    pub changes: u64,
    /// Bytes of those that were writes.
    pub bytes: u64,
    /// Pages that were read from their files.
    pub misses: u64,
    /// How often a change had to wait for room in the log.
    pub waits: u64,
    /// Batches that the cleaner has brought into their files.
    pub batches: u64,
}

/// A cache. Clones are the same one; it ends when all clones and all of its files are gone, or by [`close`](Self::close).
#[derive(Clone, Debug)]
pub struct Cache(pub(crate) Arc<Keeper>);

/// Ends the cache when nobody has it any more.
#[derive(Debug)]
pub(crate) struct Keeper {
    pub(crate) inner: Arc<dyn Engine>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// A name that nothing else has, and a salt.
pub(crate) fn random() -> Result<(Uuid, u64), Error> {
    let mut bytes = [0; 24];
    let read =
        SystemFile::open("/dev/urandom").and_then(|mut file| io::Read::read_exact(&mut file, &mut bytes));
    read.map_err(Error::system("/dev/urandom", "read"))?;
    let (mut uuid, mut salt) = ([0; 16], [0; 8]);
    uuid.copy_from_slice(&bytes[..16]);
    salt.copy_from_slice(&bytes[16..]);
    Ok((Uuid(uuid), u64::from_le_bytes(salt)))
}

impl Cache {
    /// Opens the log, or makes it, and begins to clean it. A log that was not closed is recovered first, where that needs nobody's decision. Nobody else
    /// can open it meanwhile, `rem run` and `rem cache` neither.
    ///
    /// # Errors
    /// It is in use, of another size, or no log; its medium failed; or somebody has to decide something before it can be recovered, and the sentence names the option
    /// of `rem cache recover` for that.
    pub fn open(options: &Options) -> Result<Self, Error> {
        let path = std::path::absolute(&options.log).map_err(Error::system(&options.log, "found"))?;
        let process = forks::this().map_err(Error::system(&path, "kept from forked children"))?;
        let (inner, thread) = match options.keeps {
            Keeps::Log => Self::over_log(path, process, options)?,
            Keeps::Pages => paging::open(path, process, options)?,
        };
        Ok(Self(Arc::new(Keeper { inner, thread: Mutex::new(Some(thread)) })))
    }

    fn over_log(path: PathBuf, process: u64, options: &Options) -> Result<Running, Error> {
        allowed(options)?;
        let (region, promise, recovered) = opened(&path, options)?;
        let failed = |source: OpenError| Error::Open { log: path.clone(), source };
        let log = Log::start(region.clone(), LocalWords::default(), promise).map_err(failed)?;
        let layout = *log.layout();
        let entries = layout.geometry.entries;
        let usual = cleaner::Options::usual(entries);
        let batch = options.batch.unwrap_or(usual.batch).clamp(1, entries / 2);
        let cleaning = cleaner::Options { batch, low: usual.low.max(batch) };
        let reading = reads::Options {
            patches: PATCHES,
            ..reads::Options::usual(layout.geometry.files, options.pages, entries as usize)
        };
        let slot = u64::from(layout.geometry.slot);
        let fits = (reading.descriptors / 4 * PAGE) as u64;
        // Half of a log, so that a long write need not wait until all of it is free.
        let longest = (log.longest() / 2).min(fits) / slot * slot;
        let cleaner = Cleaner::new(cleaning, log.tail());
        let shared = Shared::new(Parts {
            path: path.clone(),
            table: FileTable::empty(region.clone(), layout),
            region,
            strict: options.strict,
            direct: false,
            patience: options.patience,
            longest: longest.max(slot),
            recovered,
            process,
        });
        let inner =
            Arc::new(Inner::new(shared, log, Reads::new(reading), batch, passes(reading.descriptors)));
        let cleans = inner.clone();
        let run = move || cleaning::run(&cleans, cleaning::Cleaning::new(&cleans, cleaner));
        let thread = spawn(path, options.begins, run)?;
        Ok((inner, thread))
    }

    /// Opens a file, or makes it. All descriptors of a file in this cache see each other's changes at once; nobody else does, until the last of them is closed or
    /// [`drain`](Self::drain) has returned. Meanwhile the file is locked (`flock`), so no other cache has it; that no program changes it without one
    /// is for the user to see to.
    ///
    /// # Errors
    /// The system refuses it, it is no regular file, another program or cache has it, or the log has no number for it.
    pub fn open_file(&self, path: impl AsRef<Path>, options: &OpenOptions) -> Result<File, Error> {
        let inner = &self.0.inner;
        inner.check_process()?;
        let path = path.as_ref();
        if options.truncate && !options.writes() {
            return Err(Error::NotOpenedFor { path: path.to_owned(), what: "truncated" });
        }
        let inode = {
            let mut opening = inner.opening();
            if opening.closed {
                return Err(Error::Closed);
            }
            let (file, writes) = open_system(path, options)?;
            let inode = take(inner, &mut opening, path, file, writes)?;
            *opening.opens.entry(inode.id).or_insert(0) += 1;
            inode
        };
        let file = File::new(self.0.clone(), inode, options);
        // As a truncation of somebody who has it open.
        if options.truncate && !file.is_empty() {
            file.set_len(0)?;
        }
        Ok(file)
    }

    /// Takes a file that the caller has opened as the options say, and `made` if it was not there: what it has now is durable then, and its name is. That nobody else has it open is for the caller to know, as by a lease
    /// (`F_SETLEASE`). The cache reads and writes by this descriptor, at offsets of its own, and may move its position. It must not append (`O_APPEND`) nor go around the page cache; and if it can only be written, there must be a log, as
    /// pages are read before they are written.
    ///
    /// # Errors
    /// It is no regular file, another cache has it, it has no name, the disk does not take it, or the log has no number for it.
    pub fn adopt(&self, file: SystemFile, made: bool, options: &OpenOptions) -> Result<File, Error> {
        let inner = &self.0.inner;
        inner.check_process()?;
        let path = path_of(&file).map_err(Error::system("/proc/self/fd", "read"))?;
        let durable = if made { make_durable(&file, &path) } else { file.sync_all() };
        durable.map_err(Error::system(&path, "made durable"))?;
        let inode = {
            let mut opening = inner.opening();
            if opening.closed {
                return Err(Error::Closed);
            }
            let inode = take(inner, &mut opening, &path, file, options.writes())?;
            *opening.opens.entry(inode.id).or_insert(0) += 1;
            inode
        };
        Ok(File::new(self.0.clone(), inode, options))
    }

    /// What is at a path, as [`File::stat`] says it if the cache has that file.
    ///
    /// # Errors
    /// The system refuses it.
    pub fn stat(&self, path: impl AsRef<Path>) -> Result<Stat, Error> {
        let inner = &self.0.inner;
        inner.check_process()?;
        let path = path.as_ref();
        let about = About::at(path, true).map_err(Error::system(path, "looked at"))?;
        let known = inner.files().by_key.get(&about.key).cloned();
        match known {
            Some(inode) => Stat::of(&**inner, &inode),
            None => Stat::of_system(fs::metadata(path).map_err(Error::system(path, "looked at"))?, path),
        }
    }

    /// Takes a name of a file away. Of one that the cache has open, all is brought into it first, and nothing is kept of it after a crash if that was its last name. (A
    /// file that loses its last name by other means is held by a recovery until somebody says where to put it.)
    ///
    /// # Errors
    /// The system refuses it, or the disk does not take what the log has.
    pub fn unlink(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let inner = &self.0.inner;
        inner.check_process()?;
        let path = path.as_ref();
        let about = About::at(path, false).map_err(Error::system(path, "looked at"))?;
        let known = inner.files().by_key.get(&about.key).cloned();
        if let Some(inode) = &known {
            inner.drain(inode)?;
        }
        fs::remove_file(path).map_err(Error::system(path, "removed"))?;
        let Some(inode) = known else { return Ok(()) };
        if About::of(inode.file()).is_ok_and(|about| about.links == 0) {
            inode.nameless.store(true, Ordering::SeqCst);
            // What was written between these two.
            inner.settle(&inode)?;
        }
        Ok(())
    }

    /// Waits until all that was written is in its files, durably: other programs see it then.
    ///
    /// # Errors
    /// The disk does not take it: the log keeps it, and it is tried again.
    pub fn drain(&self) -> Result<(), Error> {
        self.0.inner.check_process()?;
        self.0.inner.wait_tail(self.0.inner.head())
    }

    /// Brings all that the log has into its files, closes it, and ends.
    ///
    /// # Errors
    /// Files are open: nothing was done. Or the disk does not take what the log has: the cache has ended, the log keeps it, and who opens it next recovers it.
    pub fn close(self) -> Result<(), Error> {
        self.0.inner.check_process()?;
        self.0.end(true)
    }

    /// Which failures what was written survives, when a write has returned and when a sync has.
    #[must_use]
    pub fn survives(&self) -> Survival {
        let inner = &self.0.inner;
        let guarantee = inner.region.domain().guarantee();
        let waits = inner.strict || inner.promise() == Promise::AtReturn;
        let at_sync = guarantee.after_psync;
        Survival { at_return: if waits { at_sync } else { guarantee.before_psync }, at_sync }
    }

    /// What became of a log that was not closed, in a sentence; none if it was.
    #[must_use]
    pub fn recovered(&self) -> Option<&str> {
        self.0.inner.recovered.as_deref()
    }

    /// Bytes of the longest write that is one change: after a crash all of it is there, or nothing. A longer one is several, which are there
    /// as a prefix.
    #[must_use]
    pub fn longest(&self) -> u64 {
        self.0.inner.longest
    }

    /// How the cache stands.
    #[must_use]
    pub fn status(&self) -> Status {
        let inner = &self.0.inner;
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let [used, entries] = inner.used();
        Status {
            entries,
            used,
            changes: count(&inner.counts.changes),
            bytes: count(&inner.counts.bytes),
            misses: count(&inner.counts.misses),
            waits: count(&inner.counts.waits),
            batches: count(&inner.counts.batches),
        }
    }
}

/// Refuses what no log or no memory is large enough for, before anything is made.
fn allowed(options: &Options) -> Result<(), Error> {
    let entries = options.entries.unwrap_or(ENTRIES);
    if !Geometry::usual(entries).is_fair() {
        return Err(Error::Argument("no log has as many entries: name a smaller size"));
    }
    // What is not told is not known.
    let told = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = told.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"));
    let has = total.and_then(|total| total.parse::<u64>().ok()).map_or(u64::MAX, |total| total << 10);
    let pages = options.pages as u64;
    let takes = pages.saturating_mul(PAGE as u64 + DESCRIBED).saturating_add(2 * entries * DESCRIBED);
    if takes > has {
        return Err(Error::Argument(
            "it would take more memory than this machine has: name less, or a smaller log",
        ));
    }
    Ok(())
}

/// What keeps changes, and the thread that brings them into their files.
pub(crate) type Running = (Arc<dyn Engine>, JoinHandle<()>);

/// After so many steps each of so many descriptors of pages was looked at for a place.
pub(crate) const fn passes(descriptors: usize) -> u32 {
    (2 * descriptors / SCAN + 2) as u32
}

/// Starts the thread of a cache.
pub(crate) fn spawn(
    path: PathBuf,
    begins: Option<fn()>,
    run: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, Error> {
    let thread = std::thread::Builder::new().name("nvcache-cleaner".into());
    let all = move || {
        begins.into_iter().for_each(|begins| begins());
        run();
    };
    thread.spawn(all).map_err(Error::system(path, "cleaned by a thread"))
}

/// The file of a log, or of pages, which is made of so many bytes if it is not there; and when what is written there is durable.
pub(crate) fn region_of(path: &Path, open: FileOptions, size: u64) -> Result<(Region, Promise), Error> {
    let open = match fs::metadata(path) {
        // Whoever owns it reads all that is written through it.
        Ok(found) if found.uid() != rustix::process::geteuid().as_raw() => {
            let log = path.display();
            return Err(Error::Recovery(format!("{log} belongs to another user: name a log of your own")));
        }
        Ok(found) if found.is_file() && found.len() == 0 => open.create(size),
        Ok(_) => open,
        Err(_) => open.create_new(size),
    };
    let region = open.open(path)?;
    let promise = match region.domain().granularity() {
        StoreGranularity::Page => Promise::AtSync,
        StoreGranularity::Byte | StoreGranularity::CacheLine | StoreGranularity::None => Promise::AtReturn,
    };
    Ok((region, promise))
}

/// The log's file, whose log is whole, empty and of the size that is asked for.
fn opened(path: &Path, options: &Options) -> Result<(Region, Promise, Option<String>), Error> {
    let failed = |source: OpenError| Error::Open { log: path.to_owned(), source };
    let geometry = Geometry::usual(options.entries.unwrap_or(ENTRIES));
    let (region, promise) = region_of(path, format::file_options(), geometry.size())?;
    // Also one in whose making somebody was killed.
    let is_blank = matches!(Layout::read(&region), Err(OpenError::Image(Fault::Blank | Fault::Making)));
    if is_blank && region.len() == geometry.size() {
        let (uuid, salt) = random()?;
        format::make(&region, uuid, geometry, salt, promise).map_err(failed)?;
    }
    let has = Layout::read(&region).map_err(failed)?.geometry;
    if let Some(wants) = options.entries.filter(|wants| *wants != has.entries) {
        return Err(Error::Recovery(daemon::of_another_size(path, has.entries, wants)));
    }
    if has.slot as usize != PAGE {
        return Err(Error::Recovery(format!(
            "{} has entries of {} bytes, and a cache has such of {PAGE}: name another log",
            path.display(),
            has.slot
        )));
    }
    let shared = SystemFile::from(region.share().map_err(Error::system(path, "shared"))?);
    daemon::retire(&shared)?;
    let recovered = daemon::recovered(path, &region)?;
    Ok((region, promise, recovered))
}

/// The open file at a path, which the cache has from now on. It can be written, if it `writes`.
fn take(
    inner: &Arc<dyn Engine>,
    opening: &mut Opening,
    path: &Path,
    file: SystemFile,
    writes: bool,
) -> Result<Arc<Inode>, Error> {
    let bad = |what| Error::system(path, what);
    let about = About::of(&file).map_err(bad("looked at"))?;
    if !about.is_regular {
        return Err(Error::NotRegular { path: path.to_owned() });
    }
    let known = inner.files().by_key.get(&about.key).cloned();
    if let Some(inode) = known {
        if writes {
            inode.can_be_written_by(file);
        }
        return Ok(inode);
    }
    let there = path_of(&file).map_err(bad("found"))?;
    if there == inner.path {
        return Err(Error::InUse { path: path.to_owned() });
    }
    file.try_lock().map_err(|why| match why {
        fs::TryLockError::WouldBlock => Error::InUse { path: path.to_owned() },
        fs::TryLockError::Error(why) => bad("locked")(why),
    })?;
    let identity = identity(&there).ok().filter(|found| {
        (found.device, found.inode) == (about.key.device, about.key.inode)
            && found.path == there.as_os_str().as_bytes()
    });
    let identity = identity.ok_or_else(|| Error::Moved { path: path.to_owned() })?;
    let direct = inner.direct.then(|| open_direct(&file, writes)).transpose();
    let direct = direct.map_err(bad("opened with O_DIRECT"))?;
    let id = match opening.table.register(&identity, inner.tail()) {
        // Those of files that were closed are free when nothing of them is in the log.
        Err(TableError::Full { .. }) => {
            inner.wait_tail(inner.head())?;
            opening.table.register(&identity, inner.tail())?
        }
        id => id?,
    };
    // Nobody changes it from now on.
    let len = About::of(&file).map_err(bad("looked at"))?.len;
    inner.take_in(id, len);
    let inode = Arc::new(Inode::new(id, about.key, there, file, writes, direct));
    let mut files = inner.files();
    files.by_key.insert(about.key, inode.clone());
    files.by_id.insert(id, inode.clone());
    Ok(inode)
}

/// The same file, past the kernel's page cache.
fn open_direct(file: &SystemFile, writes: bool) -> io::Result<SystemFile> {
    let there = format!("/proc/self/fd/{}", file.as_raw_fd());
    SystemFile::options().read(true).write(writes).custom_flags(libc::O_DIRECT).open(there)
}

/// Opens a file of the system to read and, if that can be, to write; whether it can be written.
fn open_system(path: &Path, options: &OpenOptions) -> Result<(SystemFile, bool), Error> {
    let bad = |what| Error::system(path, what);
    let mut open = SystemFile::options();
    // What is no regular file must not hold us, nor become our terminal.
    open.read(true).write(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    let found = if options.no_follow {
        open.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_NOFOLLOW);
        fs::symlink_metadata(path)
    } else {
        fs::metadata(path)
    };
    let refused = |what, errno| Err(bad(what)(io::Error::from_raw_os_error(errno)));
    let made = match found {
        Ok(_) if options.create_new => return refused("made", libc::EEXIST),
        Ok(found) if found.is_symlink() => return refused("opened", libc::ELOOP),
        Ok(found) if !found.is_file() => return Err(Error::NotRegular { path: path.to_owned() }),
        Ok(_) => false,
        Err(why) if why.kind() == io::ErrorKind::NotFound && (options.create || options.create_new) => {
            open.create(true).create_new(options.create_new).mode(options.mode.unwrap_or(0o666));
            true
        }
        Err(why) => return Err(bad("opened")(why)),
    };
    let (file, writes) = match open.open(path) {
        Ok(file) => (file, true),
        Err(why) if !options.writes() && !made && is_read_only(&why) => {
            (open.write(false).open(path).map_err(bad("opened"))?, false)
        }
        Err(why) => return Err(bad("opened")(why)),
    };
    if made {
        let there = path_of(&file).map_err(bad("found"))?;
        make_durable(&file, &there).map_err(bad("made durable"))?;
    }
    Ok((file, writes))
}

/// Makes a file that is new durable, with its name: what is durable in the log is nobody's if its file is not there.
fn make_durable(file: &SystemFile, there: &Path) -> io::Result<()> {
    file.sync_all()?;
    SystemFile::open(there.parent().unwrap_or(Path::new("/")))?.sync_all()
}

fn is_read_only(why: &io::Error) -> bool {
    matches!(why.raw_os_error(), Some(libc::EACCES | libc::EPERM | libc::EROFS | libc::ETXTBSY))
}

impl Keeper {
    /// A descriptor of a file is closed. With the last one all of it comes into the file, which is anybody's then.
    pub(crate) fn closed(&self, inode: &Arc<Inode>) -> Result<(), Error> {
        let inner = &self.inner;
        inner.check_process()?;
        let is_last = {
            let mut opening = inner.opening();
            let opens = opening.opens.entry(inode.id).or_insert(1);
            *opens -= 1;
            *opens == 0
        };
        if !is_last {
            return Ok(());
        }
        let drained = inner.drain(inode);
        let mut opening = inner.opening();
        if drained.is_ok() {
            self.forget(&mut opening, inode);
        }
        drained
    }

    /// Lets a file go that nobody has open and whose entries are all in it.
    fn forget(&self, opening: &mut Opening, inode: &Arc<Inode>) {
        let inner = &self.inner;
        let is_open = opening.opens.get(&inode.id).is_some_and(|opens| *opens > 0);
        let is_ours = inner.files().by_id.get(&inode.id).is_some_and(|known| Arc::ptr_eq(known, inode));
        // If something of it is due still, it stays until it is opened and closed again.
        if is_open || !is_ours || inner.tail() < inode.last() || !inner.let_go(inode.id) {
            return;
        }
        inner.events.happened();
        opening.opens.remove(&inode.id);
        opening.table.release(inode.id, inner.head());
        let mut files = inner.files();
        files.by_id.remove(&inode.id);
        files.by_key.remove(&inode.key);
        drop(files);
        // A child that was forked meanwhile has the descriptor still. It fails for no open file.
        let _ = inode.file().unlock();
    }

    /// Ends the cache; the first time, and if it `must` not be in use.
    fn end(&self, must: bool) -> Result<(), Error> {
        let inner = &self.inner;
        {
            let mut opening = inner.opening();
            let count = opening.opens.values().filter(|opens| **opens > 0).count();
            if must && count > 0 {
                return Err(Error::FilesOpen { count });
            }
            if std::mem::replace(&mut opening.closed, true) {
                return if must { Err(Error::Closed) } else { Ok(()) };
            }
        }
        let drained = inner.empty();
        inner.room.state().ends = true;
        inner.bell.happened();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // It has told of its panic itself.
            let _ = thread.join();
        }
        drained?;
        inner.close()
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // A forked child has neither the thread nor the log.
        if self.inner.check_process().is_ok() {
            // What is not closed is recovered.
            let _ = self.end(false);
        }
    }
}

/// The time of a file's last change, as the cache has it.
pub(crate) fn modified(inode: &Inode, system: &fs::Metadata) -> SystemTime {
    inode.modified().or_else(|| system.modified().ok()).unwrap_or(SystemTime::UNIX_EPOCH)
}

const _: () = assert!(PAGE == 4096, "a slot of the log is a page");
