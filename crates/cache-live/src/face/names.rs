//! A change of names: an entry's place is reserved, the kernel's call is made, and the entry is committed; all under the locks of the directories.
//!
//! **A directory is a file whose content is names.** It has a slot from its first sync on, its time of change tells whether anybody else was at it, and its syncs are
//! absorbed while each of its changes since the last one of the kernel is in the log: each of its names is then durable, or is one that the log has. A name is only logged in a
//! directory that is absorbed, and a rename or a link only between two that are: so what an entry names is found by whoever recovers, or is made by him.
//!
//! **A file that is made** in such a directory is in the log from its first moment: it has a number before anybody is told of it, its syncs are absorbed from the first one on,
//! and after a loss of the machine it is made again. The number is one of those that the daemon has left for that, or else is asked for. If the daemon has none for it, or does not want to have it, the directory is due.
//!
//! **Who is killed** before the kernel's call has left a hole. Who is killed behind it, before the entry is committed, has left a directory that is locked: the
//! daemon marks it, and brings all of the log into the files. The machine can die there too: then the name is as it was or as it became, and nobody was told. What the kernel made durable of it
//! in that instant is a change that the log lacks, as one of somebody else: it is left alone if it gave the name to a file, and else undone.
//!
//! **Who changes many names and syncs nothing** (an archive that is unpacked) has the daemon sync each file; so from the 256th change on they are the kernel's, until there is a sync.
//!
//! **What is not logged** is the kernel's, and the directory is due: symbolic links, devices and pipes, the renaming of directories, and what comes from a directory
//! that is not absorbed. `O_TMPFILE` has no name; a link to it, or to any descriptor, is one of these.

use std::ffi::{CStr, CString};
use std::sync::atomic::Ordering;

use remanence_cache::entry::Mtime;
use remanence_cache::log::{AppendError, Reserved};
use remanence_cache::op::{Name, Op};
use remanence_cache::table::{FileId, Identity};
use remanence_intercept::{Syscall, Verdict};

use super::{Face, Me, exclusive, own};
use crate::segment::{Count, File, Key, LOCK_MS, Taken};
use crate::sys::{self, Own, Stat};

/// How long a change waits for room in the log.
const ROOM_MS: u64 = 5000;
/// A directory that was synced by the kernel so often, and has still changes that the log lacks, is not synced for its files any more.
const COVERED: u64 = 16;
/// So many directories above a new file are synced for it at most.
const ABOVE: usize = 8;

/// So many changes of names of a process are logged one behind the other, without a sync.
const CHANGED: u64 = 256;

const CREATE: u64 = libc::O_CREAT as u64;
const EXCLUSIVE: u64 = libc::O_EXCL as u64;
/// Opens that make no file under a name, whatever else they say.
const NAMELESS: u64 = (libc::O_PATH | libc::O_DIRECTORY) as u64;
const TRUNCATE: u64 = libc::O_TRUNC as u64;
const REMOVE_DIRECTORY: u64 = libc::AT_REMOVEDIR as u64;
const NO_REPLACE: u64 = libc::RENAME_NOREPLACE as u64;
const EXCHANGE: u64 = libc::RENAME_EXCHANGE as u64;
/// What `linkat` takes.
const FOLLOWS: u64 = (libc::AT_SYMLINK_FOLLOW | libc::AT_EMPTY_PATH) as u64;

/// A path, as a call has it.
#[derive(Clone, Copy, Debug)]
struct At {
    directory: i32,
    path: u64,
}

/// What a call asks for.
#[derive(Clone, Copy, Debug)]
enum Change {
    /// A file is opened, and made if it is not there, or cut short if it is.
    Open {
        at: At,
        flags: u64,
        mode: u64,
    },
    /// A directory is made.
    Directory {
        at: At,
        mode: u64,
    },
    Unlink {
        at: At,
        flags: u64,
    },
    Rename {
        from: At,
        to: At,
        flags: u64,
    },
    Link {
        from: At,
        to: At,
    },
    /// A file is opened, and may be made, in a way that is not logged.
    Opened {
        at: At,
        flags: u64,
    },
    /// What is not logged.
    Other {
        at: At,
    },
}

/// Whether an open may make a file.
const fn creates(flags: u64) -> bool {
    flags & CREATE != 0 && flags & NAMELESS == 0
}

/// Whether an open may make a file, or cut it short.
pub(super) const fn changes(flags: u64) -> bool {
    flags & (CREATE | TRUNCATE) != 0 && flags & NAMELESS == 0
}

impl Change {
    /// `None`: it changes no name.
    fn of(call: &Syscall) -> Option<Self> {
        let [a, b, c, d, e, _] = call.arguments;
        let here = |path| At { directory: libc::AT_FDCWD, path };
        let at = |fd: u64, path| At { directory: fd as i32, path };
        Some(match i64::from(call.number as u32) {
            libc::SYS_open if changes(b) => Self::Open { at: here(a), flags: b, mode: c },
            libc::SYS_openat if changes(c) => Self::Open { at: at(a, b), flags: c, mode: d },
            libc::SYS_creat => {
                let flags = CREATE | TRUNCATE | libc::O_WRONLY as u64;
                Self::Open { at: here(a), flags, mode: b }
            }
            // It refuses what the others let through, and may be told where not to look.
            libc::SYS_openat2 => match sys::peek::<1>(c)? {
                [flags] if creates(flags) => Self::Opened { at: at(a, b), flags },
                _ => return None,
            },
            libc::SYS_mkdir => Self::Directory { at: here(a), mode: b },
            libc::SYS_mkdirat => Self::Directory { at: at(a, b), mode: c },
            libc::SYS_unlink => Self::Unlink { at: here(a), flags: 0 },
            libc::SYS_rmdir => Self::Unlink { at: here(a), flags: REMOVE_DIRECTORY },
            libc::SYS_unlinkat => Self::Unlink { at: at(a, b), flags: c & 0xffff_ffff },
            libc::SYS_rename => Self::Rename { from: here(a), to: here(b), flags: 0 },
            libc::SYS_renameat => Self::Rename { from: at(a, b), to: at(c, d), flags: 0 },
            libc::SYS_renameat2 => Self::Rename { from: at(a, b), to: at(c, d), flags: e & 0xffff_ffff },
            libc::SYS_link => Self::Link { from: here(a), to: here(b) },
            // That of a descriptor has an empty path, or leads there through one of the kernel's links, and is not logged. What else there is for flags is refused.
            libc::SYS_linkat if e & 0xffff_ffff & !FOLLOWS != 0 => return None,
            libc::SYS_linkat => Self::Link { from: at(a, b), to: at(c, d) },
            libc::SYS_symlink => Self::Other { at: here(b) },
            libc::SYS_symlinkat => Self::Other { at: at(b, c) },
            libc::SYS_mknod => Self::Other { at: here(a) },
            libc::SYS_mknodat => Self::Other { at: at(a, b) },
            _ => return None,
        })
    }

    fn places(&self) -> [Option<At>; 2] {
        match *self {
            Self::Open { at, .. }
            | Self::Directory { at, .. }
            | Self::Unlink { at, .. }
            | Self::Opened { at, .. }
            | Self::Other { at } => [Some(at), None],
            Self::Rename { from, to, .. } | Self::Link { from, to } => [Some(from), Some(to)],
        }
    }
}

/// A name that is to change.
#[derive(Debug)]
struct DirectoryEntry {
    directory: i32,
    /// The path of the directory that has it.
    parent: CString,
    name: CString,
    /// Which directory that is.
    key: Key,
    /// The path says that it is a directory's.
    ends_with_slash: bool,
}

impl DirectoryEntry {
    /// `None`: there is no such directory, or the path ends with no name, as that of a descriptor.
    fn of(at: At) -> Option<Self> {
        Self::at(at.directory, &sys::path(at.path)?)
    }

    fn at(directory: i32, path: &[u8]) -> Option<Self> {
        let end = path.iter().rposition(|byte| *byte != b'/')? + 1;
        let ends_with_slash = end < path.len();
        let path = &path[..end];
        let (parent, name) = match path.iter().rposition(|byte| *byte == b'/') {
            None => (&b"."[..], path),
            Some(0) => (&b"/"[..], &path[1..]),
            Some(slash) => (&path[..slash], &path[slash + 1..]),
        };
        if matches!(name, b"." | b"..") {
            return None;
        }
        let (parent, name) = (CString::new(parent).ok()?, CString::new(name).ok()?);
        let stat = Stat::at(directory, &parent, 0).ok().filter(Stat::is_directory)?;
        Some(Self { directory, parent, name, key: stat.key, ends_with_slash })
    }
}

/// A directory whose names may be changed, locked and looked at; and a name in it.
struct Within<'a> {
    slot: File,
    fd: Own,
    name: &'a CStr,
}

impl Within<'_> {
    fn at(&self) -> Name<'_> {
        Name { directory: FileId(self.slot.id()), name: self.name.to_bytes() }
    }

    fn place(&self) -> (i32, &CStr) {
        (self.fd.0, self.name)
    }

    /// What has the name.
    fn look(&self) -> Option<(Own, Stat)> {
        let node = Own::look(self.fd.0, self.name, libc::O_NOFOLLOW).ok()?;
        let stat = Stat::of(node.0).ok()?;
        Some((node, stat))
    }
}

impl Face {
    /// Carries out a call that changes names.
    pub(super) fn names(&self, call: &Syscall) -> Verdict {
        let Some(change) = Change::of(call) else { return Verdict::Pass };
        let mut opened = None;
        if let Change::Open { at, flags, .. } = change {
            let Some(path) = sys::path(at.path).and_then(|path| CString::new(path).ok()) else {
                return Verdict::Pass;
            };
            let follows = if flags & (EXCLUSIVE | libc::O_NOFOLLOW as u64) == 0 {
                0
            } else {
                libc::AT_SYMLINK_NOFOLLOW
            };
            match Stat::at(at.directory, &path, follows) {
                Ok(stat) if stat.is_regular() => return self.open_there(call, at, flags, &stat),
                // A pipe may be waited for, by the program.
                Ok(_) => return Verdict::Pass,
                Err(_) if !creates(flags) => return Verdict::Pass,
                Err(_) => opened = Some(DirectoryEntry::at(at.directory, path.as_bytes())),
            }
        }
        let wanted = change.places().into_iter().flatten().count();
        let places: Vec<DirectoryEntry> = match opened {
            Some(place) => place.into_iter().collect(),
            None => change.places().into_iter().flatten().filter_map(DirectoryEntry::of).collect(),
        };
        if places.is_empty() {
            return Verdict::Pass;
        }
        let Some(me) = self.me() else { return Verdict::Return(self.marking_names(call, &places)) };
        let of_directory =
            matches!(change, Change::Directory { .. } | Change::Unlink { flags: REMOVE_DIRECTORY, .. });
        let is_plain = |place: &DirectoryEntry| of_directory || !place.ends_with_slash;
        if places.len() == wanted
            && places.iter().all(is_plain)
            && let Some(value) = self.names_known(&me, call, &change, &places)
        {
            return Verdict::Return(value);
        }
        // Looked for again: whoever takes one of them into the table from now on waits for us.
        Verdict::Return(self.unlogged(&me, || self.marking_names(call, &places)))
    }

    /// Opens a file that is there; most of these change nothing. What the log has of one that is cut short comes into it first, as that itself is not logged. And where
    /// somebody takes the file away in that moment and another one is made, the directory has a name that nobody has seen.
    fn open_there(&self, call: &Syscall, at: At, flags: u64, stat: &Stat) -> Verdict {
        let directory = if creates(flags) { DirectoryEntry::of(at) } else { None };
        let directory = directory.and_then(|place| self.segment.find(&place.key));
        let cut = if flags & TRUNCATE != 0 { self.segment.find(&stat.key) } else { None };
        if directory.is_none() && cut.is_none() {
            return Verdict::Pass;
        }
        if let Some(cut) = cut.filter(|cut| self.is_unsettled(cut)) {
            self.drain_known(cut.last());
        }
        cut.into_iter().for_each(File::mark);
        let value = sys::forward(call);
        cut.into_iter().for_each(File::mark);
        if value >= 0 && Stat::of(value as i32).is_ok_and(|opened| opened.key != stat.key) {
            directory.into_iter().for_each(File::mark);
        }
        Verdict::Return(value)
    }

    /// Marks the directories before and behind the kernel's call.
    fn marking_names(&self, call: &Syscall, places: &[DirectoryEntry]) -> i64 {
        let mark = || {
            let known = places.iter().filter_map(|place| self.segment.find(&place.key));
            known.for_each(File::mark);
        };
        self.settle_names(call, places.iter().filter_map(|place| self.segment.find(&place.key)));
        mark();
        let value = sys::forward(call);
        mark();
        value
    }

    /// Changes names in directories that have slots. `None`: one of them has none, or cannot be had; nothing was done.
    fn names_known(
        &self,
        me: &Me,
        call: &Syscall,
        change: &Change,
        places: &[DirectoryEntry],
    ) -> Option<i64> {
        let mut within = Vec::with_capacity(places.len());
        for place in places {
            let slot = self.segment.find(&place.key)?;
            let fd = Own::look(place.directory, &place.parent, libc::O_DIRECTORY).ok()?;
            within.push((Within { slot, fd, name: &place.name }, place.key));
        }
        let mut slots: Vec<(File, Key)> = within.iter().map(|(within, key)| (within.slot, *key)).collect();
        slots.sort_by_key(|(slot, _)| slot.place());
        slots.dedup_by_key(|(slot, _)| slot.place());
        let before: Vec<u64> = slots.iter().map(|(slot, _)| slot.last()).collect();
        for (n, (slot, key)) in slots.iter().enumerate() {
            if slot.take(key, me.owner.number()) != Taken::Held {
                slots[..n].iter().for_each(|(slot, _)| slot.unlock());
                return None;
            }
        }
        let same = within.iter().all(|(within, key)| match Stat::of(within.fd.0) {
            Ok(stat) if stat.key == *key => {
                within.slot.note(stat.changed);
                true
            }
            _ => false,
        });
        let within: Vec<Within<'_>> = within.into_iter().map(|(within, _)| within).collect();
        let value = same.then(|| self.names_held(me, call, change, &within));
        drop(within);
        slots.iter().for_each(|(slot, _)| slot.unlock());
        let logged = slots.iter().zip(before).any(|((slot, _), before)| slot.last() != before);
        let lacks_spares = || self.segment.lacks_spares() && self.segment.kick();
        if logged && (self.segment.is_to_kick(self.log.used()) || lacks_spares()) {
            self.kick();
        }
        if logged && self.segment.is_strict() {
            // If not, the log has failed for all.
            self.persist(me, slots.iter().map(|(slot, _)| slot.last()).max().unwrap_or(0));
        }
        match (*change, value?) {
            // The descriptor of the directory may have been the last one that there was.
            (Change::Open { .. } | Change::Opened { .. }, value) if value == -i64::from(libc::EMFILE) => None,
            // And the program gets the lowest number, as some count on.
            (Change::Open { flags, .. } | Change::Opened { flags, .. }, value @ 0..) => {
                Some(sys::lowest(value as i32, flags & libc::O_CLOEXEC as u64 != 0).into())
            }
            (_, value) => Some(value),
        }
    }

    /// Changes names in directories whose locks we have.
    fn names_held(&self, me: &Me, call: &Syscall, change: &Change, within: &[Within<'_>]) -> i64 {
        let absorbed = within.iter().all(|within| within.slot.is_absorbed()) && !self.segment.has_failed();
        let done = if absorbed { self.log_names(me, change, within) } else { None };
        let value = done.unwrap_or_else(|| {
            self.settle_names(call, within.iter().map(|within| within.slot));
            let value = sys::forward(call);
            // Who has its lock has done it when he gives that back: one sync behind it is enough.
            within.iter().filter(|_| value >= 0).for_each(|within| within.slot.owe());
            value
        });
        for within in within {
            match Stat::of(within.fd.0) {
                // What was refused may have done a part.
                Ok(after) if after.changed != within.slot.changed() => {
                    if value < 0 {
                        within.slot.make_due();
                    }
                    within.slot.set_changed(after.changed);
                }
                Ok(_) => {}
                Err(_) => within.slot.make_due(),
            }
        }
        value
    }

    /// What comes before a change that is not logged. What the log has of the directories is carried out first, so that no recovery undoes the change, however long it was there. And what gets a name that the
    /// log does not know is found by nobody who recovers: what the log has of it is brought into it, and of all that is below if it is a directory.
    fn settle_names(&self, call: &Syscall, directories: impl Iterator<Item = File>) {
        for directory in directories.filter(|directory| directory.last() > self.log.tail()) {
            self.drain_known(directory.last());
        }
        // A link is made by a descriptor, too.
        let any = |at: At| (at, libc::AT_EMPTY_PATH, 0);
        let moved = match Change::of(call) {
            Some(Change::Rename { from, to, flags }) => {
                [Some(any(from)), (flags == EXCHANGE).then_some(any(to))]
            }
            Some(Change::Link { from, .. }) => [Some(any(from)), None],
            // What it has for names besides, the log may not know.
            Some(Change::Unlink { at, flags: 0 }) => [Some((at, libc::AT_SYMLINK_NOFOLLOW, 2)), None],
            _ => return,
        };
        for (at, follows, links) in moved.into_iter().flatten() {
            let Some(path) = sys::path(at.path).and_then(|path| CString::new(path).ok()) else { continue };
            let found = Stat::at(at.directory, &path, follows).ok();
            let Some(stat) = found.filter(|stat| stat.links >= links) else { continue };
            let upto = match self.segment.find(&stat.key) {
                _ if stat.is_directory() => self.log.head(),
                Some(file) => file.last(),
                None => 0,
            };
            if self.log.tail() < upto && !self.drain_known(upto) && stat.is_regular() {
                // By its directory: who closes a descriptor of the file gives up the locks that this process has on it.
                let flags = (libc::O_DIRECTORY | libc::O_NONBLOCK | libc::O_CLOEXEC) as u64;
                let place = DirectoryEntry::of(at);
                let opened = place.map(|place| sys::open(at.directory, &place.parent, flags, 0));
                if let Some(Ok(fd @ 0..)) = opened.map(i32::try_from) {
                    sys::sync_all(Own(fd).0);
                }
            }
        }
    }

    /// Does it, and logs that. `None`: it is not logged, and was not done.
    fn log_names(&self, me: &Me, change: &Change, within: &[Within<'_>]) -> Option<i64> {
        // Whoever changes so many and syncs nothing has no use of that, and the daemon would sync each file that he makes.
        if self.own(own::CHANGED).load(Ordering::Relaxed) >= CHANGED {
            return None;
        }
        match (*change, within) {
            (Change::Open { flags, mode, .. }, [at]) => self.log_create(me, at, flags, mode),
            (Change::Directory { mode, .. }, [at]) => self.log_directory(me, at, mode),
            (Change::Unlink { flags, .. }, [at]) => self.log_unlink(me, at, flags),
            (Change::Rename { flags, .. }, [from, to]) => self.log_rename(me, from, to, flags),
            (Change::Link { .. }, [from, to]) => self.log_link(me, from, to),
            _ => None,
        }
    }

    fn log_create(&self, me: &Me, at: &Within<'_>, flags: u64, mode: u64) -> Option<i64> {
        let reserved = self.reserve(me, &Op::Create { file: FileId(0), at: at.at(), mode: 0 })?;
        let value = sys::open(at.fd.0, at.name, flags | EXCLUSIVE, mode);
        if value == -i64::from(libc::EEXIST) && flags & EXCLUSIVE == 0 {
            // A link that leads to nothing yet, or somebody was quicker.
            self.give_up(me, &reserved);
            return None;
        }
        if value < 0 {
            self.give_up(me, &reserved);
            return Some(value);
        }
        let made = value as i32;
        let stat = Stat::of(made).ok();
        let stat = stat.filter(|stat| stat.is_regular() && stat.size == 0 && stat.links == 1);
        self.log_made(me, at, &reserved, made, stat.as_ref(), || true);
        Some(value)
    }

    fn log_directory(&self, me: &Me, at: &Within<'_>, mode: u64) -> Option<i64> {
        if at.look().is_some() {
            return Some(Self::in_vain(&[at], sys::mkdir(at.fd.0, at.name, mode)));
        }
        let reserved = self.reserve(me, &Op::Create { file: FileId(0), at: at.at(), mode: 0 })?;
        let value = sys::mkdir(at.fd.0, at.name, mode);
        if value < 0 {
            self.give_up(me, &reserved);
            return Some(value);
        }
        let flags = (libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC) as u64;
        let made = i32::try_from(sys::open(at.fd.0, at.name, flags, 0)).ok().filter(|fd| *fd >= 0).map(Own);
        let fd = made.as_ref().map_or(-1, |made| made.0);
        let stat = Stat::of(fd).ok().filter(Stat::is_directory);
        self.log_made(me, at, &reserved, fd, stat.as_ref(), || sys::is_empty(fd));
        Some(value)
    }

    /// Gives a file that was just made a number and a slot, whose lock we have then, without a question to the daemon. `None`: that has to be asked. Where the file is, the log says in the daemon's words: whoever made it
    /// may see another root.
    fn make(&self, me: &Me, at: &Within<'_>, fd: i32, stat: &Stat) -> Option<File> {
        const READABLE: u32 = 0o400;
        if !at.slot.is_fine() || !self.segment.has_spares() || stat.mode & READABLE == 0 {
            return None;
        }
        let directory = self.log.identity(FileId(at.slot.id())).filter(|found| !found.is_nobodys())?;
        let Key { device, inode, born } = stat.key;
        if device != directory.device {
            return None;
        }
        let mut path = directory.path;
        if !path.ends_with(b"/") {
            path.push(b'/');
        }
        path.extend_from_slice(at.name.to_bytes());
        let (handle_type, handle) = sys::handle(fd);
        let identity = Identity { device, inode, born, handle_type, handle, path };
        // As the daemon leaves one for what it takes in.
        sys::leave_trace(fd);
        let name = |number| self.log.name(FileId(number), &identity).is_ok();
        self.segment.make_file(&stat.key, me.owner.number(), stat.changed, name)
    }

    /// Logs what was just made, and looks like this. If that cannot be, its directory is due.
    fn log_made(
        &self,
        me: &Me,
        at: &Within<'_>,
        reserved: &Reserved,
        fd: i32,
        stat: Option<&Stat>,
        is_new: impl FnOnce() -> bool,
    ) {
        let made = stat.and_then(|stat| {
            let made = if stat.is_regular() { self.make(me, at, fd, stat) } else { None };
            let asked = || {
                let file = self.register(fd, 0).filter(|file| file.number().is_some())?;
                self.take_below(me, &file, stat).then_some(file)
            };
            let file = made.or_else(asked)?;
            Some((file, FileId(file.id()), stat))
        });
        let Some((file, id, stat)) = made else {
            self.give_up(me, reserved);
            return at.slot.make_due();
        };
        let op = Op::Create { file: id, at: at.at(), mode: stat.mode };
        // Who had found no slot of it is done then.
        let quiet = self.segment.is_quiet() && is_new();
        match self.complete(reserved, &op) {
            Some(end) => {
                // Others may have found it, and logged what they did, before we had its lock.
                file.born(stat.changed, quiet, end);
                // Of a file of which the log has nothing more it knows no time that could be too early.
                file.witness(stat.modified.0);
                at.slot.set_last(end);
            }
            None => at.slot.make_due(),
        }
        file.unlock();
    }

    fn log_unlink(&self, me: &Me, at: &Within<'_>, flags: u64) -> Option<i64> {
        let Some((node, stat)) = at.look() else {
            return Some(Self::in_vain(&[at], sys::unlink(at.fd.0, at.name, flags)));
        };
        let is_fit =
            if flags == REMOVE_DIRECTORY { stat.is_directory() } else { flags == 0 && stat.is_regular() };
        if !is_fit {
            return None;
        }
        let file = self.named(&node, &stat)?;
        let all = [(file, &node, &stat)];
        let (held, ids) = self.hold(me, &all)?;
        let op = Op::Unlink { file: ids[0], at: at.at() };
        let value = self.done(me, &op, &[at], || sys::unlink(at.fd.0, at.name, flags));
        held.release(&all, value);
        value.map(|(value, _)| value)
    }

    fn log_rename(&self, me: &Me, from: &Within<'_>, to: &Within<'_>, flags: u64) -> Option<i64> {
        let Some((node, stat)) = from.look() else {
            return Some(Self::in_vain(&[from, to], sys::rename(from.place(), to.place(), flags)));
        };
        if !stat.is_regular() || !matches!(flags, 0 | NO_REPLACE | EXCHANGE) {
            return None;
        }
        let other = to.look();
        if other.as_ref().is_some_and(|(_, other)| !other.is_regular() || other.key == stat.key) {
            return None;
        }
        let file = self.heard(&node, &stat)?;
        let replaced = match (&other, flags) {
            (Some((node, stat)), EXCHANGE) => Some((self.heard(node, stat)?, node, stat)),
            (Some((node, stat)), 0) if stat.links > 1 => Some((self.heard(node, stat)?, node, stat)),
            (Some((node, stat)), 0) => {
                let known = self.segment.find(&stat.key).filter(|file| file.number().is_some());
                known.map(|file| (file, node, stat))
            }
            _ => None,
        };
        let mut all = vec![(file, &node, &stat)];
        all.extend(replaced);
        let (held, ids) = self.hold(me, &all)?;
        let exchanged = if flags == EXCHANGE { ids.get(1).copied() } else { None };
        // What is replaced may change later, by another name or a descriptor: whoever finds it has to know that it had this name before.
        if let (0, Some(replaced)) = (flags, ids.get(1)) {
            let had = Op::Link { file: *replaced, at: to.at() };
            let end = self.complete(&self.reserve(me, &had)?, &had)?;
            all[1].0.set_last(end);
            to.slot.set_last(end);
        }
        let op = Op::Rename { file: ids[0], from: from.at(), to: to.at(), exchanged };
        let value = self.done(me, &op, &[from, to], || sys::rename(from.place(), to.place(), flags));
        held.release(&all, value);
        value.map(|(value, _)| value)
    }

    fn log_link(&self, me: &Me, from: &Within<'_>, to: &Within<'_>) -> Option<i64> {
        let (node, stat) = from.look().filter(|(_, stat)| stat.is_regular())?;
        let file = self.heard(&node, &stat)?;
        let all = [(file, &node, &stat)];
        let (held, ids) = self.hold(me, &all)?;
        let op = Op::Link { file: ids[0], at: to.at() };
        let value = self.done(me, &op, &[to], || sys::link(from.place(), to.place()));
        held.release(&all, value);
        value.map(|(value, _)| value)
    }

    /// What was to fail, and is no change that is logged. If somebody has just seen to it that it did not, it is his.
    fn in_vain(within: &[&Within<'_>], value: i64) -> i64 {
        within.iter().filter(|_| value >= 0).for_each(|within| within.slot.make_due());
        value
    }

    /// The slot of what has a name, which gets one if it has none.
    fn named(&self, node: &Own, stat: &Stat) -> Option<File> {
        self.segment
            .find(&stat.key)
            .or_else(|| self.register(node.0, 0))
            .filter(|file| file.number().is_some())
    }

    /// The same of what gets another name: the daemon has it open, and finds it without its name.
    fn heard(&self, node: &Own, stat: &Stat) -> Option<File> {
        let file = self.named(node, stat)?;
        if file.is_unheard() {
            self.register(node.0, 0).filter(|heard| heard.place() == file.place())
        } else {
            Some(file)
        }
    }

    /// Locks files whose names change: their times of change are ours then. Gives their numbers.
    fn hold(&self, me: &Me, files: &[Named<'_>]) -> Option<(Held, Vec<FileId>)> {
        let mut order = files.to_vec();
        order.sort_by_key(|(file, ..)| file.place());
        let mut held = Held(Vec::with_capacity(order.len()));
        for (file, node, stat) in order {
            if !self.take_below(me, &file, stat) {
                return None;
            }
            held.0.push(file);
            // What changed before is not ours. What was seen before the lock is as good if nothing came between.
            let is_same = stat.changed == file.changed() && !file.is_exclusive() && !file.is_doubted();
            let now = if is_same { *stat } else { Stat::of(node.0).ok()? };
            self.note(&file, &now, node.0);
        }
        Some((held, files.iter().map(|(file, ..)| FileId(file.id())).collect()))
    }

    /// Locks what is in a directory that is locked. A directory may be locked by who waits for that one: it is not waited for.
    fn take_below(&self, me: &Me, file: &File, stat: &Stat) -> bool {
        let milliseconds = if stat.is_directory() { 0 } else { LOCK_MS };
        file.take_within(&stat.key, me.owner.number(), milliseconds) == Taken::Held
    }

    /// Reserves, makes the call, and commits. Gives what the kernel gave, and the index behind the entry, if there is one. `None`: nothing was done.
    fn done(
        &self,
        me: &Me,
        op: &Op<'_>,
        within: &[&Within<'_>],
        call: impl FnOnce() -> i64,
    ) -> Option<(i64, Option<u64>)> {
        let reserved = self.reserve(me, op)?;
        let value = call();
        if value < 0 {
            self.give_up(me, &reserved);
            return Some((value, None));
        }
        let end = self.complete(&reserved, op);
        for within in within {
            match end {
                Some(end) => within.slot.set_last(end),
                None => within.slot.make_due(),
            }
        }
        Some((value, end))
    }

    /// Reserves the entries of a change; waits for room, but not for ever.
    fn reserve(&self, me: &Me, op: &Op<'_>) -> Option<Reserved> {
        let count = self.log.entries_of(op).ok()?;
        let mut until = None;
        let mut is_time =
            || sys::monotonic() < *until.get_or_insert_with(|| sys::monotonic() + ROOM_MS * 1_000_000);
        loop {
            let space = self.segment.space().load(Ordering::SeqCst) as u32;
            match self.log.reserve(me.owner, count) {
                Ok(reserved) => return Some(reserved),
                Err(AppendError::Full { .. }) if is_time() && !self.segment.has_failed() => {
                    self.segment.count(Count::Waits, 1);
                    if self.segment.kick() {
                        self.kick();
                    }
                    sys::wait(self.segment.space(), space, 50);
                }
                Err(_) => {
                    self.segment.count(Count::Refused, 1);
                    return None;
                }
            }
        }
    }

    /// Commits what was reserved. `None`: the log's medium has failed.
    fn complete(&self, reserved: &Reserved, op: &Op<'_>) -> Option<u64> {
        match self.log.complete(reserved, op, Mtime(sys::since_1970())) {
            Ok(end) if !self.segment.has_failed() => {
                self.segment.count(Count::Changes, 1);
                self.own(own::CHANGED).fetch_add(1, Ordering::Relaxed);
                Some(end)
            }
            other => {
                if matches!(other, Err(AppendError::Medium(_))) {
                    self.segment.fail();
                }
                self.segment.count(Count::Refused, 1);
                None
            }
        }
    }

    /// Nothing was done: the places that were reserved are a hole.
    fn give_up(&self, me: &Me, reserved: &Reserved) {
        if self.log.abandon(reserved.first(), me.owner).is_err() {
            self.segment.fail();
        }
    }

    /// The kernel has synced a new file, whose name is durable with it on most file systems. It has its directory synced as well, and the one above if that is new too, so that the next file that is made
    /// there is in the log from its first moment: a program that never syncs a directory would have each first sync of a file from the kernel else.
    pub(super) fn cover(&self, fd: i32) {
        let (Some(mut path), Ok(file)) = (sys::shown(fd), Stat::of(fd)) else { return };
        for _ in 0..ABOVE {
            let Some(slash) = path.iter().rposition(|byte| *byte == b'/') else { return };
            path.truncate(slash.max(1));
            let Ok(parent) = CString::new(path.clone()) else { return };
            let Ok(found) = Stat::at(libc::AT_FDCWD, &parent, 0) else { return };
            if found.key.device != file.key.device {
                return;
            }
            if let Some(known) = self.segment.find(&found.key)
                && (known.why() != 0 || known.is_absorbed() || known.counts()[1] >= COVERED)
            {
                return;
            }
            let flags = (libc::O_DIRECTORY | libc::O_CLOEXEC | libc::O_NONBLOCK) as u64;
            let opened = i32::try_from(sys::open(libc::AT_FDCWD, &parent, flags, 0));
            let Ok(fd @ 0..) = opened else { return };
            let own = Own(fd);
            let _ = self.sync_for(own.0, false);
            if !found.is_new() {
                return;
            }
        }
    }
}

/// A file whose name changes, what it was found as, and how it was then.
type Named<'a> = (File, &'a Own, &'a Stat);

/// Files that are locked until this is dropped.
struct Held(Vec<File>);

impl Held {
    /// Their names have changed: `done` says what the kernel gave, and where the entry ends.
    fn release(self, files: &[Named<'_>], done: Option<(i64, Option<u64>)>) {
        let Some((0.., end)) = done else { return };
        for (file, node, _) in files {
            let Ok(after) = Stat::of(node.0) else {
                file.make_due();
                continue;
            };
            exclusive::left(file, &after);
            let Some(end) = end else {
                file.make_due();
                continue;
            };
            file.set_last(end);
            if after.links == 0 {
                file.set_nameless(end);
            }
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.iter().for_each(|file| file.unlock());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(path: &CStr) -> Option<(CString, CString)> {
        let at = At { directory: libc::AT_FDCWD, path: path.as_ptr() as u64 };
        DirectoryEntry::of(at).map(|place| (place.parent, place.name))
    }

    #[test]
    fn a_path_is_a_directory_and_a_name_in_it() {
        for (path, parent, name) in [
            (c"name", c".", c"name"),
            (c"/name", c"/", c"name"),
            (c"/tmp/name", c"/tmp", c"name"),
            (c"/tmp//name//", c"/tmp/", c"name"),
            (c"../..name", c"..", c"..name"),
        ] {
            assert_eq!(place(path), Some((parent.to_owned(), name.to_owned())), "{path:?}");
        }
        for path in [c"", c"/", c".", c"/tmp/..", c"/nowhere at all/name"] {
            assert_eq!(place(path), None, "{path:?}");
        }
    }

    #[test]
    fn an_open_that_makes_no_name_is_let_through() {
        let flags = |flags: i32| creates(flags as u64);
        let changes = |flags: i32| changes(flags as u64);
        assert!(flags(libc::O_CREAT) && flags(libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY));
        assert!(!flags(libc::O_RDWR | libc::O_TRUNC) && !flags(libc::O_TMPFILE | libc::O_RDWR));
        assert!(!flags(libc::O_PATH | libc::O_CREAT));
        assert!(changes(libc::O_TRUNC | libc::O_WRONLY) && changes(libc::O_CREAT));
        assert!(
            !changes(libc::O_RDWR) && !changes(libc::O_PATH | libc::O_TRUNC) && !changes(libc::O_TMPFILE)
        );
    }
}
