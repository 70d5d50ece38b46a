//! The files and directories of the table: each with a descriptor of the daemon's own, by which it is synced, and a number in the log.
//!
//! The descriptor that a program sends is not kept: it would keep the program's `flock`, and its position. The file is opened anew, for reading.
//!
//! **What programs have made** and have given numbers to themselves ([`Segment::make_file`]) is [heard of](Files::hear) later, and opened by its path. Until then nothing keeps its inode from being another file's when it has lost its name, so that
//! is only done where [times](has_fine_times) tell the two apart: what the log has of the one is never found to be about the other. One that has lost its name by then, as the log says, is nobody's to sync. Where
//! somebody who does not use the cache has given the name to something else, or moved it, it is synced with all of its file system.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use remanence_cache::table::{FileId, FileTable, Identity, TableError};
use remanence_pmem::Region;
use rustix::fs::inotify;

use super::rules::Paths;
use super::work::Named;
use crate::segment::{self, First, Segment, why};
use crate::sys::{self, Errno, Marked, Opened, Stat};

/// A change that is older than this is over.
const OVER_NS: u64 = 2_000_000_000;
/// So many files that have lost their last name, as the log says, wait for their batch, or so many bytes of them.
const NAMELESS: usize = 128;
const NAMELESS_MAX: u64 = 64 << 20;
/// So many files are forgotten at a time where room is wanted.
const ROOM: usize = 64;

/// A file that is in the table.
#[derive(Debug)]
struct Held {
    path: PathBuf,
    /// What keeps its path from the cache, if something does.
    rule: Option<String>,
    id: Option<FileId>,
    /// None of one that is never absorbed, or was not found when it was heard of.
    own: Option<File>,
    /// Then, something of its file system.
    system: Option<File>,
    watch: Option<i32>,
    is_directory: bool,
    /// How long it was when it had no name any more.
    unlinked: Option<u64>,
    /// By what the kernel names it who tells of its openers, while it is exclusive.
    marked: Option<Marked>,
}

impl Held {
    /// Where it was, and where it is by now, if that is somewhere else.
    fn moved(&self) -> Option<(PathBuf, PathBuf)> {
        let own = self.own.as_ref().filter(|own| own.metadata().is_ok_and(|found| found.nlink() > 0))?;
        let now = std::fs::read_link(format!("/proc/self/fd/{}", own.as_raw_fd())).ok()?;
        (now != self.path).then(|| (self.path.clone(), now))
    }
}

/// Has the kernel remember that it has had a file and its directory in memory since now.
fn leave_traces(own: &File, path: &Path) {
    sys::leave_trace(own.as_raw_fd());
    let mut options = File::options();
    let options = options.read(true).custom_flags(libc::O_DIRECTORY);
    let directory = path.parent().and_then(|directory| options.open(directory).ok());
    directory.into_iter().for_each(|directory| sys::leave_trace(directory.as_raw_fd()));
}

/// Opens a file for reading, if it is at a path.
fn open_there(path: &Path, key: &segment::Key) -> Option<File> {
    let open = |path: &Path, flags| File::options().read(true).custom_flags(flags).open(path).ok();
    // Whatever else is there is not opened.
    let place = open(path, libc::O_PATH | libc::O_NOFOLLOW)?;
    let is_it = Stat::of(place.as_raw_fd()).is_ok_and(|stat| stat.key == *key);
    let this = format!("/proc/self/fd/{}", place.as_raw_fd());
    is_it.then(|| open(Path::new(&this), libc::O_NONBLOCK)).flatten()
}

/// Whether two changes never have the same time if somebody has looked in between; and so an inode that is used again, whose time somebody has looked at before it lost its name, is never born when it was before. That is so from Linux 6.13 on,
/// where the file system takes part.
fn has_fine_times(own: &File) -> bool {
    const SINCE: [u32; 2] = [6, 13];
    /// `EXT4_SUPER_MAGIC`, `XFS_SUPER_MAGIC`, `BTRFS_SUPER_MAGIC`.
    const TAKE_PART: [u64; 3] = [0xef53, 0x5846_5342, 0x9123_683e];
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut version = release.split(['.', '-']).map(|number| number.trim().parse().unwrap_or(0));
    let is_new = [(); 2].map(|()| version.next().unwrap_or(0)) >= SINCE;
    is_new
        && rustix::fs::fstatfs(own)
            .is_ok_and(|found| TAKE_PART.contains(&(found.f_type as u64 & 0xffff_ffff)))
}

/// A descriptor to sync a file by.
#[derive(Debug)]
pub(super) enum ToSync {
    /// By this the file alone is synced.
    File(OwnedFd),
    /// All of its file system.
    System(OwnedFd),
}

/// All of them.
#[derive(Debug)]
pub(super) struct Files {
    segment: Segment,
    table: FileTable<Region>,
    paths: Paths,
    log: PathBuf,
    held: BTreeMap<usize, Held>,
    by_id: BTreeMap<FileId, usize>,
    watches: BTreeMap<i32, usize>,
    inotify: OwnedFd,
    /// What tells of openers of exclusive files, where the kernel has it; and the files.
    openers: Option<OwnedFd>,
    exclusive: BTreeMap<Marked, usize>,
    /// Files that somebody may still log changes of, after that was ended.
    ending: Vec<usize>,
    /// It was, for good.
    ended: bool,
    /// How many numbers are left for files that programs make.
    spares: usize,
    /// Directories that may be elsewhere by now.
    moved: BTreeSet<usize>,
    /// Files that were taken into the table, for who keeps images of them, if somebody does.
    fresh: Option<Vec<(segment::Key, File)>>,
}

/// How a file stands, for a report.
#[derive(Debug)]
pub(super) struct Standing<'a> {
    pub(super) path: &'a Path,
    pub(super) rule: Option<&'a str>,
    pub(super) file: segment::File,
}

impl Files {
    pub(super) fn new(
        segment: Segment,
        table: FileTable<Region>,
        paths: Paths,
        log: PathBuf,
        spares: usize,
    ) -> io::Result<Self> {
        let inotify = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
        Ok(Self {
            segment,
            table,
            paths,
            log,
            held: BTreeMap::new(),
            by_id: BTreeMap::new(),
            watches: BTreeMap::new(),
            inotify,
            openers: sys::openers().ok(),
            exclusive: BTreeMap::new(),
            ending: Vec::new(),
            ended: false,
            spares,
            moved: BTreeSet::new(),
            fresh: segment.keeps_images().then(Vec::new),
        })
    }

    /// What can be read when a file may have lost its last name.
    pub(super) fn ready(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }

    /// Takes a file into the table, or says anew why it is never absorbed. Gives its slot.
    pub(super) fn register(&mut self, fd: &OwnedFd, why: u64, tail: u64, head: u64) -> Result<usize, Errno> {
        let why = why & (why::MAPPED | why::ASYNCHRONOUS);
        let stat = Stat::of(fd.as_raw_fd())?;
        if !stat.is_regular() && !stat.is_directory() || stat.links == 0 && why == 0 {
            return Err(libc::EINVAL);
        }
        if !sys::is_on_disk(fd.as_raw_fd()) {
            return Err(libc::EOPNOTSUPP);
        }
        self.hear();
        let known = self.segment.find(&stat.key).map(segment::File::slot);
        if let Some(slot) = known.filter(|slot| self.held.contains_key(slot)) {
            if why != 0 {
                self.segment.file(slot).refuse(why);
            }
            return Ok(slot);
        }
        let this = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let path = std::fs::read_link(&this).map_err(|_| libc::EBADF)?;
        let mut first = First { id: u32::MAX, why, due: 2, changed: stat.changed };
        let rule =
            if path == self.log { Some("it is the log".to_owned()) } else { self.paths.refuses(&path) };
        if rule.is_some() {
            first.why |= why::EXCLUDED;
        }
        // Whoever was at it before we looked is done, or there was nothing to be done yet.
        if stat.size == 0 || stat.changed.saturating_add(OVER_NS) < sys::since_1970() {
            first.due = 1;
        }
        // Not to wait for somebody's lease.
        let mut open = File::options();
        let open = open.read(true).custom_flags(libc::O_NONBLOCK);
        let own = match (first.why == 0).then(|| open.open(&this)) {
            None => None,
            Some(Ok(own)) => Some(own),
            // It is not the file's fault, and some will be free.
            Some(Err(why)) if matches!(why.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
                self.make_room(tail, head);
                return Err(libc::EMFILE);
            }
            Some(Err(_)) => {
                first.why = why::UNREADABLE;
                None
            }
        };
        // Where two names are one, the log would have two.
        let own = own.filter(|own| {
            let folds = stat.is_directory() && sys::folds_names(own.as_raw_fd());
            first.why |= if folds { why::FOLDED } else { 0 };
            !folds
        });
        // Its syncs are the kernel's, and what they made durable is kept all the same.
        if let (None, 0, Some(fresh)) =
            (&own, first.why & !(why::MAPPED | why::ASYNCHRONOUS), &mut self.fresh)
        {
            fresh.extend(open.open(&this).map(|file| (stat.key, file)));
        }
        let id = match &own {
            Some(own) => {
                leave_traces(own, &path);
                let (handle_type, handle) = sys::handle(own.as_raw_fd());
                if let Some(fresh) = &mut self.fresh {
                    fresh.push((stat.key, own.try_clone().map_err(|_| libc::EMFILE)?));
                }
                let segment::Key { device, inode, born } = stat.key;
                let path = path.as_os_str().as_bytes().to_vec();
                let identity = Identity { device, inode, born, handle_type, handle, path };
                Some(self.number(&identity, tail, head)?)
            }
            None => None,
        };
        first.id = id.map_or(u32::MAX, |id| id.0);
        let place = self.segment.insert(&stat.key, &first);
        let place = place.or_else(|| {
            self.make_room(tail, head);
            self.segment.insert(&stat.key, &first)
        });
        let Some(slot) = place else {
            id.into_iter().for_each(|id| self.table.release(id, head));
            // Its maker was quicker.
            let is_known = self.segment.find(&stat.key).is_some();
            return Err(if is_known { libc::EAGAIN } else { libc::ENOSPC });
        };
        let is_directory = stat.is_directory();
        if is_directory && own.as_ref().is_some_and(has_fine_times) {
            self.segment.file(slot).set_fine();
        }
        self.hold(
            slot,
            Held {
                path,
                rule,
                id,
                own,
                system: None,
                watch: None,
                is_directory,
                unlinked: None,
                marked: None,
            },
        );
        Ok(slot)
    }

    /// Has a file in the table from now on.
    fn hold(&mut self, slot: usize, held: Held) {
        // Of a directory the first would be told of each file in it.
        let attributes =
            if held.is_directory { inotify::WatchFlags::empty() } else { inotify::WatchFlags::ATTRIB };
        let flags = attributes | inotify::WatchFlags::MOVE_SELF;
        let watch = held.own.as_ref().and_then(|own| {
            let this = format!("/proc/self/fd/{}", own.as_raw_fd());
            inotify::add_watch(&self.inotify, this.as_str(), flags).ok()
        });
        self.watches.extend(watch.map(|watch| (watch, slot)));
        self.by_id.extend(held.id.map(|id| (id, slot)));
        self.held.insert(slot, Held { watch, ..held });
    }

    /// Takes the files into the table that programs have made, and given numbers to.
    pub(super) fn hear(&mut self) {
        for (file, number) in self.segment.made() {
            let (slot, id, key) = (file.slot(), FileId(number), file.key());
            if self.held.contains_key(&slot) || self.by_id.contains_key(&id) {
                // No program of ours says that of a file.
                continue;
            }
            let identity = self.table.adopt(id);
            if self.ended {
                file.refuse(why::ENDED);
                self.ending.push(slot);
            } else if identity.is_none() {
                file.refuse(why::UNREADABLE);
            }
            let path =
                PathBuf::from(OsString::from_vec(identity.map(|found| found.path).unwrap_or_default()));
            let is_named = file.nameless() == 0;
            let own = is_named.then(|| open_there(&path, &key)).flatten();
            let system = (is_named && own.is_none()).then(|| self.system_of(&path, &key)).flatten();
            // It is forgotten when all of it is in the file, and comes in again when somebody syncs it.
            let unlinked = own.is_none().then_some(0);
            let (id, rule, is_directory) = (Some(id), None, false);
            self.hold(
                slot,
                Held { path, rule, id, own, system, watch: None, is_directory, unlinked, marked: None },
            );
        }
    }

    /// Leaves numbers for files that programs make.
    pub(super) fn leave_spares(&mut self, tail: u64) {
        if self.spares > 0 && !self.ended {
            let (table, most) = (&mut self.table, self.spares);
            self.segment.leave_spares(|room| {
                let count = room.min((most + room).saturating_sub(segment::SPARES));
                table.spares(tail, count).into_iter().map(|file| file.0).collect()
            });
        }
    }

    /// Something of the file system that a file is on which was not found where it was made: its directory, which is held since before that, or any other.
    fn system_of(&self, path: &Path, key: &segment::Key) -> Option<File> {
        let mut found = None;
        for (slot, held) in &self.held {
            let Some(own) = &held.own else { continue };
            if self.segment.file(*slot).key().device != key.device {
                continue;
            }
            let is_parent = path.parent().is_some_and(|parent| held.path.as_path() == parent);
            if is_parent || found.is_none() {
                found = Some(own);
            }
            if is_parent {
                break;
            }
        }
        found.and_then(|own| own.try_clone().ok())
    }

    /// What can be read when somebody has opened an exclusive file, where the kernel tells that.
    pub(super) fn openers(&self) -> Option<BorrowedFd<'_>> {
        self.openers.as_ref().map(AsFd::as_fd)
    }

    /// Makes a file exclusive, if the description that this descriptor has is the only one that leads to it, but for those that the kernel tells of from now on. Whoever asks has its lock, and looks behind the
    /// answer whether it changed meanwhile. `again`: it is exclusive, and somebody has opened it since: it stays so if he cannot write, and has not.
    ///
    /// # Errors
    /// Somebody else has it open, or may have; or the kernel does not tell.
    pub(super) fn make_exclusive(&mut self, fd: OwnedFd, again: bool) -> Result<(), Errno> {
        const TRIES: usize = 3;
        let raw = fd.as_raw_fd();
        let stat = Stat::of(raw)?;
        let file = self.segment.find(&stat.key).ok_or(libc::ENOENT)?;
        let slot = file.slot();
        let marked = sys::marked(raw).ok_or(libc::EOPNOTSUPP)?;
        if self.held.get(&slot).is_none_or(|held| held.own.is_none()) {
            return Err(libc::ENOENT);
        }
        // An image is told by the time that is kept of its file.
        if !stat.is_regular() || stat.links == 0 || file.why() != 0 || self.segment.keeps_images() {
            return Err(libc::EINVAL);
        }
        if self.segment.is_leaked(&stat.key) {
            return Err(libc::EAGAIN);
        }
        sys::tell_openers(self.openers().ok_or(libc::EOPNOTSUPP)?, raw, true)?;
        let mut is_alone = false;
        for _ in 0..TRIES {
            self.look_for_openers(None);
            if again && !self.exclusive.contains_key(&marked) {
                break;
            }
            // Our own one counts as well where readers are counted.
            self.held.entry(slot).and_modify(|held| held.own = None);
            let has_none = !sys::is_alone(raw);
            let mut open = File::options();
            let opened = open.read(true).custom_flags(libc::O_NONBLOCK).open(format!("/proc/self/fd/{raw}"));
            let Ok(own) = opened else {
                // There is no number left: then it is held by the program's own description, which keeps its locks until it is forgotten, as something has to sync it.
                self.exclusive.remove(&marked);
                file.end_exclusive();
                self.end_exclusive(Some(&marked), Some(&fd));
                self.held
                    .entry(slot)
                    .and_modify(|held| (held.own, held.marked) = (Some(File::from(fd)), None));
                return Err(libc::EMFILE);
            };
            self.held.entry(slot).and_modify(|held| held.own = Some(own));
            // Of ours the kernel has told by the name that we have for the file; who came before it may have a description that writes.
            let [ours, others] = self.look_for_openers(Some(&marked));
            if has_none || !ours {
                break;
            }
            is_alone = !others;
            if is_alone {
                break;
            }
        }
        let was = self.exclusive.contains_key(&marked);
        if is_alone && was == again {
            if again {
                file.prove_exclusive();
            } else {
                self.exclusive.insert(marked.clone(), slot);
                self.held.entry(slot).and_modify(|held| held.marked = Some(marked));
                file.begin_exclusive();
            }
            if self.segment.is_leaked(&stat.key) {
                file.end_exclusive();
            }
        } else {
            if was {
                file.end_exclusive();
            }
            let held = self.held.get_mut(&slot);
            let marked = held.and_then(|held| held.marked.take()).unwrap_or(marked);
            self.end_exclusive(Some(&marked), Some(&fd));
        }
        self.segment.set_exclusives(self.exclusive.len());
        if file.is_exclusive() { Ok(()) } else { Err(libc::EAGAIN) }
    }

    /// Looks who has opened exclusive files: they are doubted; or has written to them: they are none any more. Whether one file was opened by this process, and by another one.
    pub(super) fn look_for_openers(&mut self, about: Option<&Marked>) -> [bool; 2] {
        let Self { segment, openers, exclusive, held, .. } = self;
        let Some(group) = openers.as_ref().map(AsFd::as_fd) else { return [false; 2] };
        let mut seen = [false; 2];
        let end = |held: &mut BTreeMap<usize, Held>, slot: usize| {
            segment.file(slot).end_exclusive();
            let Some(held) = held.get_mut(&slot) else { return };
            held.marked = None;
            if let Some(own) = &held.own {
                let _ = sys::tell_openers(group, own.as_raw_fd(), false);
            }
        };
        // Whose only description was closed, and how they were then.
        let mut closed: BTreeMap<Marked, (usize, Option<Stat>)> = BTreeMap::new();
        // Who looks whether there is something to be read sees by this that it was just read.
        segment.look();
        while let Some(events) = sys::read_openers(group) {
            for event in events {
                match event {
                    Opened::Ours(file) => seen[0] |= about == Some(&file),
                    Opened::Others(file) => {
                        seen[1] |= about == Some(&file);
                        exclusive
                            .get(&file)
                            .into_iter()
                            .for_each(|slot| segment.file(*slot).doubt_exclusive());
                        closed.remove(&file).into_iter().for_each(|(slot, _)| end(held, slot));
                    }
                    Opened::Closed(file) => {
                        seen[1] |= about == Some(&file);
                        if let Some(slot) = exclusive.remove(&file) {
                            let own = held.get(&slot).and_then(|held| held.own.as_ref());
                            let found = own.and_then(|own| Stat::of(own.as_raw_fd()).ok());
                            closed.insert(file, (slot, found));
                        }
                    }
                    Opened::Changed(file) => {
                        seen[1] |= about == Some(&file);
                        let slots = [exclusive.remove(&file), closed.remove(&file).map(|(slot, _)| slot)];
                        slots.into_iter().flatten().for_each(|slot| end(held, slot));
                    }
                    Opened::Unknown => {
                        seen[1] = true;
                        let closed = std::mem::take(&mut closed).into_values().map(|(slot, _)| slot);
                        closed
                            .chain(std::mem::take(exclusive).into_values())
                            .for_each(|slot| end(held, slot));
                    }
                }
            }
        }
        // Nobody has opened these between their end and that look at them.
        for (slot, found) in closed.into_values() {
            found.iter().for_each(|found| segment.file(slot).close_exclusive(found));
            end(held, slot);
        }
        segment.set_exclusives(exclusive.len());
        segment.look();
        seen
    }

    /// A file is forgotten.
    fn end_exclusive(&mut self, marked: Option<&Marked>, own: Option<&impl AsRawFd>) {
        let Some(marked) = marked else { return };
        self.exclusive.remove(marked);
        self.segment.set_exclusives(self.exclusive.len());
        if let (Some(group), Some(own)) = (&self.openers, own) {
            let _ = sys::tell_openers(group.as_fd(), own.as_raw_fd(), false);
        }
    }

    /// The files that have come since this was asked last.
    pub(super) fn fresh(&mut self) -> Vec<(segment::Key, File)> {
        self.fresh.as_mut().map(std::mem::take).unwrap_or_default()
    }

    fn number(&mut self, identity: &Identity, tail: u64, head: u64) -> Result<FileId, Errno> {
        for again in [true, false] {
            match self.table.register(identity, tail) {
                Ok(id) => return Ok(id),
                Err(TableError::Full { .. }) if again => self.make_room(tail, head),
                Err(TableError::Full { .. }) => return Err(libc::ENOSPC),
                Err(TableError::TooLong { .. }) => return Err(libc::ENAMETOOLONG),
                Err(TableError::Medium(_)) => return Err(libc::EIO),
            }
        }
        Err(libc::ENOSPC)
    }

    /// Forgets files that can be known again when somebody syncs them.
    fn make_room(&mut self, tail: u64, head: u64) {
        let for_good = !(why::EXCLUDED | why::UNREADABLE | why::FOLDED);
        let segment = self.segment;
        let may_go = |slot: &usize| {
            let file = segment.file(*slot);
            file.why() & for_good == 0 && file.last() <= tail
        };
        let slots: Vec<usize> = self.held.keys().copied().filter(may_go).take(ROOM).collect();
        for slot in slots {
            self.forget(slot, tail, head);
        }
    }

    /// Takes a file out of the table, if nobody has it and all of it is in its file.
    fn forget(&mut self, slot: usize, tail: u64, head: u64) -> bool {
        let file = self.segment.file(slot);
        if !file.lock(segment::DAEMON, 0) {
            return false;
        }
        let goes = file.last() <= tail && self.segment.remove(slot);
        file.unlock();
        if goes && let Some(held) = self.held.remove(&slot) {
            self.end_exclusive(held.marked.as_ref(), held.own.as_ref());
            if let Some(id) = held.id {
                self.by_id.remove(&id);
                self.table.release(id, head);
            }
            if let Some(watch) = held.watch {
                self.watches.remove(&watch);
                // It goes with the file if that is gone.
                let _ = inotify::remove_watch(&self.inotify, watch);
            }
        }
        goes
    }

    /// Looks which files have lost their last name: they are forgotten, so that their blocks are free. Gives the index up to which
    /// entries are to be drained before some of them can be.
    pub(super) fn look_for_unlinked(&mut self) -> Result<(), io::Error> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.inotify, &mut buffer);
        let mut slots = Vec::new();
        loop {
            match reader.next() {
                Ok(event) => slots.extend(self.watches.get(&event.wd())),
                Err(rustix::io::Errno::WOULDBLOCK) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(why) => return Err(why.into()),
            }
        }
        for slot in slots {
            if let Some(held) = self.held.get_mut(&slot)
                && let Some(own) = &held.own
            {
                let Ok(stat) = Stat::of(own.as_raw_fd()) else { continue };
                held.unlinked = held.unlinked.or((stat.links == 0).then_some(stat.size));
                // Where a file is, the names say that the log has given it; no entry tells of a directory that was moved.
                if held.is_directory {
                    self.moved.insert(slot);
                }
            }
        }
        Ok(())
    }

    /// Has the log know where directories are that were moved, and those below, when nothing of them is due any more: who recovers looks for them there. Gives the index up to which
    /// entries are to be drained before some of them can be.
    pub(super) fn follow_moved(&mut self, tail: u64) -> Option<u64> {
        let (mut todo, mut seen, mut wait) = (std::mem::take(&mut self.moved), BTreeSet::new(), None);
        while let Some(slot) = todo.pop_first() {
            let moved = self.held.get(&slot).filter(|_| seen.insert(slot)).and_then(Held::moved);
            let Some((before, now)) = moved else { continue };
            if !self.follow(slot, &now, tail) {
                wait = wait.max(Some(self.segment.file(slot).last()));
                self.moved.insert(slot);
                continue;
            }
            let below = self.held.iter().filter(|(_, held)| held.path.starts_with(&before));
            todo.extend(below.filter(|(_, held)| held.is_directory).map(|(other, _)| *other));
        }
        wait.filter(|wait| *wait > tail)
    }

    /// The same of one that is at this path by now. `false`: something of it is due, or somebody is at it.
    fn follow(&mut self, slot: usize, now: &Path, tail: u64) -> bool {
        let file = self.segment.file(slot);
        if !file.lock(segment::DAEMON, 0) {
            return false;
        }
        let is_drained = file.last() <= tail;
        if is_drained
            && let Some(held) = self.held.get_mut(&slot)
            && let Some(id) = held.id
        {
            // Of a path that is too long for the log it keeps the one that it has.
            if self.table.renew(id, now.as_os_str().as_bytes()).is_ok() {
                held.path = now.to_owned();
            }
        }
        file.unlock();
        is_drained
    }

    /// Forgets what has no name and no entry any more. Gives the index up to which the others are to be drained now: those of which the log says that they have no
    /// name are nobody's to sync, and go with their batch, unless they are many or long.
    pub(super) fn forget_unlinked(&mut self, tail: u64, head: u64) -> Option<u64> {
        let segment = self.segment;
        // Of a directory nobody tells that it was removed, but the log.
        let unlinked = |(slot, held): (&usize, &Held)| {
            let said = (segment.file(*slot).nameless() != 0).then_some(0);
            Some((*slot, held.unlinked.or(said)?))
        };
        let slots: Vec<(usize, u64)> = self.held.iter().filter_map(unlinked).collect();
        let (mut wait, mut later, mut count, mut bytes) = (None, None, 0, 0_u64);
        for (slot, len) in slots {
            if self.forget(slot, tail, head) {
                continue;
            }
            let file = self.segment.file(slot);
            // Who has taken the name away, and has not said so yet, has the file's lock.
            if file.nameless() == 0 && file.holder() == 0 {
                wait = wait.max(Some(file.last()));
            } else {
                later = later.max(Some(file.last()));
                (count, bytes) = (count + 1, bytes.saturating_add(len));
            }
        }
        if count > NAMELESS || bytes > NAMELESS_MAX {
            wait = wait.max(later);
        }
        wait.filter(|wait| *wait > tail)
    }

    /// Whether a file has lost its last name, and the log says so below an index that is durable there: what its bytes are is nobody's concern any more, also not of who
    /// recovers, as its names come to nothing.
    pub(super) fn is_nameless(&self, id: FileId, durable: u64) -> bool {
        let Some(slot) = self.by_id.get(&id) else { return false };
        let said = self.segment.file(*slot).nameless();
        let own = self.held.get(slot).and_then(|held| held.own.as_ref());
        (1..=durable).contains(&said)
            && own.is_none_or(|own| Stat::of(own.as_raw_fd()).is_ok_and(|stat| stat.links == 0))
    }

    /// Whether a number is known.
    pub(super) fn knows(&self, id: FileId) -> bool {
        self.by_id.contains_key(&id)
    }

    /// A descriptor to sync a file by, and its slot.
    pub(super) fn to_sync(&self, id: FileId) -> Option<(usize, io::Result<ToSync>)> {
        let slot = *self.by_id.get(&id)?;
        let held = self.held.get(&slot)?;
        let own = |own: &File| own.try_clone().map(OwnedFd::from);
        let by_itself = held.own.as_ref().map(|file| own(file).map(ToSync::File));
        let with_all = || held.system.as_ref().map(|system| own(system).map(ToSync::System));
        Some((slot, by_itself.or_else(with_all)?))
    }

    /// A descriptor to sync each file by that may have something in the log.
    pub(super) fn all_to_sync(&self) -> Named {
        let own = |own: &File| match own.try_clone() {
            Ok(own) => Some(Ok(OwnedFd::from(own))),
            // There are too many: then it is done here.
            Err(_) => own.sync_all().err().map(Err),
        };
        let system = |system: &File| rustix::fs::syncfs(system).err().map(|why| Err(io::Error::from(why)));
        let held = self.held.values().filter_map(|held| {
            let found = held.own.as_ref().map_or_else(|| held.system.as_ref().and_then(system), own)?;
            Some((held.path.clone(), found))
        });
        held.collect()
    }

    /// A sync of a file has failed: nobody relies on what its page cache has.
    pub(super) fn distrust(&self, slot: usize) {
        if let Some(own) = self.held.get(&slot).and_then(|held| held.own.as_ref()) {
            sys::take_trace(own.as_raw_fd());
        }
    }

    pub(super) fn path(&self, slot: usize) -> &Path {
        self.held.get(&slot).map_or(Path::new("?"), |held| &held.path)
    }

    /// A process died: what it had locked is free, and marked. Whether it had something.
    pub(super) fn owner_died(&mut self, owner: u32) -> bool {
        self.hear();
        let broken = self.held.keys().filter(|slot| self.segment.file(**slot).break_lock(owner)).count();
        self.segment.places_left(owner);
        broken > 0
    }

    /// From now on nothing of any file is logged, but by who is at it already.
    pub(super) fn end(&mut self) {
        self.ended = true;
        self.segment.take_spares();
        self.hear();
        self.held.keys().for_each(|slot| self.segment.file(*slot).refuse(why::ENDED));
        self.hush();
    }

    /// The same was said in another way, of all files.
    pub(super) fn hush(&mut self) {
        self.hear();
        self.ending = self.held.keys().copied().collect();
    }

    /// Whether those who were at a file when that was said have ended. Who has a lock now has seen it.
    pub(super) fn is_still(&mut self) -> bool {
        let segment = self.segment;
        self.ending.retain(|slot| segment.file(*slot).holder() != 0);
        // Who had the lock of a directory may have made one there.
        self.hear();
        self.ending.is_empty()
    }

    pub(super) fn standing(&self) -> impl Iterator<Item = Standing<'_>> {
        self.held.iter().map(|(slot, held)| Standing {
            path: &held.path,
            rule: held.rule.as_deref(),
            file: self.segment.file(*slot),
        })
    }

    pub(super) const fn paths(&self) -> &Paths {
        &self.paths
    }
}
