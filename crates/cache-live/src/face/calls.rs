//! Which system call does what.
//!
//! | call | what is done |
//! |---|---|
//! | `write` and its kin, `ftruncate`, `fallocate` | the kernel's call, then an entry of the log (`change.rs`) |
//! | `open` and its kin that make a file, `mkdir`, `unlink`, `rename`, `link` and their kin | the same, of names (`names.rs`) |
//! | `chmod`, `chown`, `utimensat` and their kin, of a file that is absorbed | the same, of attributes (`attributes.rs`) |
//! | `open` with `O_TRUNC`, `truncate`, of a file that is there | the kernel's, when what the log has of the file is in it; and the file is marked |
//! | `setxattr` and its kin | the kernel's, and the file is marked |
//! | `fsync`, `fdatasync`, of files and directories | waits for the log; or the kernel's, where something is due |
//! | `sync`, `syncfs` | the kernel's, when all of the log is in its files |
//! | `mmap`, shared, of what may be written | the file's syncs are the kernel's for good |
//! | `io_submit` | the same for the files that it writes |
//! | `copy_file_range`, `sendfile`, cloning | the kernel's, and the file is marked |
//! | `splice` | the kernel's, and nobody begins to absorb while this process lives: it may wait for long |
//! | `close`, `close_range`, `dup2`, `dup3` | are only noticed (`plain.rs`) |
//! | `fcntl` with `F_SETFL`, `clone` and its kin, `execve`, messages that carry descriptors | the same (`exclusive.rs`) |
//! | `io_uring_setup` | is refused as on a kernel that lacks it, and programs do without |
//!
//! All else is the kernel's alone. What changes a file there changes its time of change, and so makes a sync due. `msync` and `sync_file_range` are the kernel's.
//!
//! **What the kernel has made durable is never undone** by the replay of what is older: where a sync is the kernel's, what the log has of the file by then comes into the file
//! first, or the log says that it is [settled](Face::settle).

use std::sync::atomic::Ordering;

use remanence_cache::op::Op;
use remanence_cache::table::FileId;
use remanence_intercept::{Syscall, Verdict};

use super::again::enter;
use super::{COPY_MS, Face, Me, exclusive, names, own, plain};
use crate::segment::{File, Taken, why};
use crate::sys::{self, Stat};

/// The numbers that a hook asks [`wants`] about.
pub const NUMBERS: [u16; 67] = [
    libc::SYS_write as u16,
    libc::SYS_pwrite64 as u16,
    libc::SYS_writev as u16,
    libc::SYS_pwritev as u16,
    libc::SYS_pwritev2 as u16,
    libc::SYS_ftruncate as u16,
    libc::SYS_fallocate as u16,
    libc::SYS_fsync as u16,
    libc::SYS_fdatasync as u16,
    libc::SYS_sync as u16,
    libc::SYS_syncfs as u16,
    libc::SYS_mmap as u16,
    libc::SYS_ioctl as u16,
    libc::SYS_sendfile as u16,
    libc::SYS_copy_file_range as u16,
    libc::SYS_splice as u16,
    libc::SYS_io_submit as u16,
    libc::SYS_io_uring_setup as u16,
    libc::SYS_close as u16,
    libc::SYS_close_range as u16,
    libc::SYS_dup2 as u16,
    libc::SYS_dup3 as u16,
    libc::SYS_open as u16,
    libc::SYS_openat as u16,
    libc::SYS_openat2 as u16,
    libc::SYS_creat as u16,
    libc::SYS_mkdir as u16,
    libc::SYS_mkdirat as u16,
    libc::SYS_mknod as u16,
    libc::SYS_mknodat as u16,
    libc::SYS_symlink as u16,
    libc::SYS_symlinkat as u16,
    libc::SYS_unlink as u16,
    libc::SYS_unlinkat as u16,
    libc::SYS_rmdir as u16,
    libc::SYS_rename as u16,
    libc::SYS_renameat as u16,
    libc::SYS_renameat2 as u16,
    libc::SYS_link as u16,
    libc::SYS_linkat as u16,
    libc::SYS_fchmod as u16,
    libc::SYS_fchown as u16,
    libc::SYS_chmod as u16,
    libc::SYS_chown as u16,
    libc::SYS_lchown as u16,
    libc::SYS_fchmodat as u16,
    libc::SYS_fchmodat2 as u16,
    libc::SYS_fchownat as u16,
    libc::SYS_utime as u16,
    libc::SYS_utimes as u16,
    libc::SYS_futimesat as u16,
    libc::SYS_utimensat as u16,
    libc::SYS_truncate as u16,
    libc::SYS_setxattr as u16,
    libc::SYS_lsetxattr as u16,
    libc::SYS_fsetxattr as u16,
    libc::SYS_removexattr as u16,
    libc::SYS_lremovexattr as u16,
    libc::SYS_fremovexattr as u16,
    libc::SYS_fcntl as u16,
    libc::SYS_clone as u16,
    libc::SYS_clone3 as u16,
    libc::SYS_vfork as u16,
    libc::SYS_execve as u16,
    libc::SYS_execveat as u16,
    libc::SYS_sendmsg as u16,
    libc::SYS_sendmmsg as u16,
];

/// What no sync of the kernel's returns.
const ABSORBED: i64 = 1;

const CLONE: u64 = 0x4004_9409;
const CLONE_RANGE: u64 = 0x4020_940d;
const SUBMITTED_WRITE: u64 = 1;
const SUBMITTED_VECTORS: u64 = 8;
/// Longer copies are cut short, which the program may meet at any time: signals wait for the end of a call that is made here.
const COPY_MAX: u64 = 16 << 20;

fn number(call: &Syscall) -> libc::c_long {
    i64::from(call.number as u32)
}

/// What [`Hook::wants`](remanence_intercept::Hook::wants) is for the cache.
#[must_use]
pub fn wants(call: &Syscall) -> bool {
    let arguments = &call.arguments;
    match number(call) {
        libc::SYS_mmap => {
            let (kind, anonymous) = (arguments[3] & 0xf, libc::MAP_ANONYMOUS as u64);
            (kind == libc::MAP_SHARED as u64 || kind == libc::MAP_SHARED_VALIDATE as u64)
                && arguments[3] & anonymous == 0
        }
        libc::SYS_ioctl => matches!(arguments[1] & 0xffff_ffff, CLONE | CLONE_RANGE),
        libc::SYS_write | libc::SYS_pwrite64 | libc::SYS_writev | libc::SYS_pwritev | libc::SYS_pwritev2 => {
            !plain::is_noted(arguments[0])
        }
        libc::SYS_open => names::changes(arguments[1]),
        libc::SYS_openat => names::changes(arguments[2]),
        libc::SYS_close => closed(arguments[0], arguments[0]),
        libc::SYS_close_range => closed(arguments[0], arguments[1]),
        libc::SYS_dup2 | libc::SYS_dup3 => closed(arguments[1], arguments[1]),
        libc::SYS_fcntl => {
            if arguments[1] as i32 == libc::F_SETFL {
                exclusive::flags_change(arguments[0], arguments[2]);
            }
            false
        }
        libc::SYS_clone => {
            exclusive::cloned(arguments[0]);
            false
        }
        libc::SYS_vfork => {
            exclusive::cloned(libc::CLONE_VM as u64);
            false
        }
        libc::SYS_sendmsg | libc::SYS_sendmmsg => exclusive::may_leak(),
        _ => true,
    }
}

/// Numbers from one up to another are about to get another meaning.
fn closed(from: u64, upto: u64) -> bool {
    plain::closed(from, upto);
    exclusive::closed(from, upto);
    false
}

/// What [`Hook::handle`](remanence_intercept::Hook::handle) is for the cache.
#[must_use]
pub fn handle(call: &Syscall) -> Verdict {
    let Some(face) = enter() else { return Verdict::Pass };
    let fd = |n: usize| call.arguments[n] as i32;
    match number(call) {
        libc::SYS_write
        | libc::SYS_pwrite64
        | libc::SYS_writev
        | libc::SYS_pwritev
        | libc::SYS_pwritev2
        | libc::SYS_ftruncate
        | libc::SYS_fallocate => face.change(call, fd(0)),
        libc::SYS_fsync | libc::SYS_fdatasync => face.sync(fd(0)),
        libc::SYS_sync | libc::SYS_syncfs => {
            // What the kernel makes durable may be newer than what the log has of it. Of a log that has failed there may be nothing left to be read.
            if !face.segment.has_failed()
                && let Some(me) = face.me()
                && !face.drain_known(face.log.head())
            {
                face.persist(&me, face.log.head());
            }
            Verdict::Pass
        }
        libc::SYS_mmap => {
            let writable = |flags: i32| flags & libc::O_ACCMODE == libc::O_RDWR && flags & libc::O_PATH == 0;
            if sys::flags(fd(4)).is_ok_and(writable) {
                face.refuse(fd(4), why::MAPPED);
            }
            Verdict::Pass
        }
        libc::SYS_io_submit => {
            face.refuse_submitted(call.arguments[1], call.arguments[2]);
            Verdict::Pass
        }
        libc::SYS_ioctl => face.outside(call, fd(0)),
        libc::SYS_copy_file_range => face.outside(&cut(call, 4), fd(2)),
        libc::SYS_sendfile => face.outside(&cut(call, 3), fd(0)),
        libc::SYS_splice => {
            if Stat::of(fd(2)).is_ok_and(|stat| stat.is_regular()) {
                face.taint();
                face.marked(fd(2));
            }
            Verdict::Pass
        }
        libc::SYS_io_uring_setup => Verdict::Return(-i64::from(libc::ENOSYS)),
        libc::SYS_clone3 => {
            if let Some([flags]) = sys::peek::<1>(call.arguments[0]) {
                exclusive::cloned(flags);
            }
            Verdict::Pass
        }
        libc::SYS_execve | libc::SYS_execveat => {
            face.leak_descriptors(false);
            Verdict::Pass
        }
        libc::SYS_sendmsg => {
            face.leak_message(call.arguments[1]);
            Verdict::Pass
        }
        libc::SYS_sendmmsg => {
            /// Bytes of a message in a list of them, and how many there are at most.
            const LEN: u64 = 64;
            const MOST: u64 = 1024;
            (0..(call.arguments[2] & 0xffff_ffff).min(MOST))
                .for_each(|n| face.leak_message(call.arguments[1].wrapping_add(n * LEN)));
            Verdict::Pass
        }
        libc::SYS_fchmod
        | libc::SYS_fchown
        | libc::SYS_chmod
        | libc::SYS_chown
        | libc::SYS_lchown
        | libc::SYS_fchmodat
        | libc::SYS_fchmodat2
        | libc::SYS_fchownat
        | libc::SYS_utime
        | libc::SYS_utimes
        | libc::SYS_futimesat
        | libc::SYS_utimensat
        | libc::SYS_truncate
        | libc::SYS_setxattr
        | libc::SYS_lsetxattr
        | libc::SYS_fsetxattr
        | libc::SYS_removexattr
        | libc::SYS_lremovexattr
        | libc::SYS_fremovexattr => face.attributes(call),
        _ => face.names(call),
    }
}

/// A descriptor's file is about to be changed by somebody of whom nobody sees when he has done it: its next syncs are the kernel's, and nobody begins to absorb while
/// this process lives.
pub fn unseen(fd: i32) {
    if let Some(face) = enter() {
        face.taint();
        face.marked(fd);
    }
}

/// The same of files that nobody can tell: nothing is left in the log that a recovery would carry out over what is changed there.
pub fn unseen_any() {
    if let Some(face) = enter() {
        face.taint();
        face.drain_known(face.log.head());
    }
}

/// Waits until whoever is in the middle of a change now has ended it; for so many milliseconds at most.
pub fn wait_changes(milliseconds: u64) {
    if let Some(face) = enter() {
        face.segment.wait_changes(milliseconds);
    }
}

/// A call of which one argument, a length, is not too long.
fn cut(call: &Syscall, at: usize) -> Syscall {
    let mut call = *call;
    call.arguments[at] = call.arguments[at].min(COPY_MAX);
    call
}

impl Face {
    /// Has the kernel carry out a change that is not logged.
    fn outside(&self, call: &Syscall, fd: i32) -> Verdict {
        let Some(stat) = Stat::of(fd).ok().filter(Stat::is_regular) else { return Verdict::Pass };
        let Some(me) = self.me() else { return self.marking(call, &stat) };
        self.unlogged(&me, || match self.segment.find(&stat.key) {
            Some(file) => {
                self.settle_now(&me, &file, &stat, fd);
                self.marking(call, &stat)
            }
            None => Verdict::Return(sys::forward(call)),
        })
    }

    /// Before something goes around the log of which nobody can say what it was: what the log has of the file comes into it first. Else a recovery would find bytes that are newer, and
    /// could put what was promised only beside the file.
    fn settle_now(&self, me: &Me, file: &File, stat: &Stat, fd: i32) {
        if self.is_unsettled(file) && file.take(&stat.key, me.owner.number()) == Taken::Held {
            self.settle(me, file, fd);
            file.unlock();
        }
    }

    /// Whether the log has something of a file that may not be in it durably.
    fn is_behind(&self, file: &File) -> bool {
        self.log.tail().max(file.settled()) < file.last()
    }

    /// Whether it has, and can still say that it is settled.
    pub(super) fn is_unsettled(&self, file: &File) -> bool {
        self.is_behind(file) && !self.segment.has_failed()
    }

    /// Counts what is done as a change that is under way, of a file that may have no slot: nobody begins to absorb meanwhile.
    pub(super) fn unlogged<T>(&self, me: &Me, change: impl FnOnce() -> T) -> T {
        me.client.unlogged().fetch_add(1, Ordering::SeqCst);
        let done = change();
        me.client.unlogged().fetch_sub(1, Ordering::SeqCst);
        done
    }

    /// Marks the file before and behind the kernel's call: whoever syncs it meanwhile, or later, has the kernel do it.
    pub(super) fn marking(&self, call: &Syscall, stat: &Stat) -> Verdict {
        let mark = || self.segment.find(&stat.key).into_iter().for_each(File::mark);
        mark();
        let value = sys::forward(call);
        mark();
        Verdict::Return(value)
    }

    /// The file's next syncs are the kernel's.
    fn marked(&self, fd: i32) {
        if let Ok(stat) = Stat::of(fd)
            && let Some(file) = self.segment.find(&stat.key)
        {
            if let Some(me) = self.me() {
                self.settle_now(&me, &file, &stat, fd);
            }
            file.mark();
        }
    }

    /// The file's syncs are the kernel's for good.
    fn refuse(&self, fd: i32, why: u64) {
        let Some(stat) = Stat::of(fd).ok().filter(|stat| stat.is_regular() && sys::is_on_disk(fd)) else {
            return;
        };
        if let Some(file) = self.segment.find(&stat.key) {
            file.refuse(why);
            // The daemon takes no slot away that says why; but it may have been about to.
            if self.segment.find(&stat.key).is_some() {
                if let Some(me) = self.me() {
                    // Whoever was at it has logged that.
                    if file.take(&stat.key, me.owner.number()) == Taken::Held {
                        self.settle(&me, &file, fd);
                        file.unlock();
                    }
                }
                return;
            }
        }
        if self.register(fd, why).is_none() {
            self.taint();
        }
    }

    /// The same for the files that requests write.
    fn refuse_submitted(&self, count: u64, requests: u64) {
        for n in 0..count.min(1 << 16) {
            let Some([request]) = sys::peek::<1>(requests.wrapping_add(n * 8)) else { return };
            let Some([_, _, what]) = sys::peek::<3>(request) else { return };
            // Behind 16 bytes come the opcode, the priority, and the descriptor.
            if matches!(what & 0xffff, SUBMITTED_WRITE | SUBMITTED_VECTORS) {
                self.refuse((what >> 32) as i32, why::ASYNCHRONOUS);
            }
        }
    }

    /// `fsync` and `fdatasync`. Where servers keep images of files, what the kernel has synced counts when they have it, be it names or bytes.
    pub(super) fn sync(&self, fd: i32) -> Verdict {
        self.own(own::CHANGED).store(0, Ordering::Relaxed);
        self.sync_for(fd, true)
    }

    /// The same. `asked`: the program has asked for it, who is told how many of its syncs were the kernel's.
    pub(super) fn sync_for(&self, fd: i32, asked: bool) -> Verdict {
        let synced = match self.sync_or_absorb(fd, asked) {
            Verdict::Return(ABSORBED) => return Verdict::Return(0),
            other if !self.segment.keeps_images() || !sys::is_on_disk(fd) => return other,
            Verdict::Return(synced) => synced,
            Verdict::Pass => sys::fsync(fd),
        };
        let is_there = synced != 0 || self.segment.wait_looked(COPY_MS);
        Verdict::Return(if is_there { synced } else { -i64::from(libc::EIO) })
    }

    /// Absorbs a sync, which gives [`ABSORBED`], or has the kernel carry it out.
    fn sync_or_absorb(&self, fd: i32, asked: bool) -> Verdict {
        if self.sync_exclusive(fd.cast_unsigned().into()).is_some() {
            return Verdict::Return(ABSORBED);
        }
        // Images have no entries of names: beside them names are the kernel's.
        let is_ours = |stat: &Stat| stat.is_regular() || stat.is_directory() && !self.segment.keeps_images();
        let Some(stat) = Stat::of(fd).ok().filter(is_ours) else { return Verdict::Pass };
        // A descriptor that only stands for a path cannot be synced, as the kernel says.
        if sys::flags(fd).is_ok_and(|flags| flags & libc::O_PATH != 0) {
            return Verdict::Pass;
        }
        let known = self.segment.find(&stat.key);
        let Some(me) = self.me() else {
            let synced = known.map_or_else(|| sys::fsync(fd), |file| self.sync_held(&file, fd));
            known.map(|file| self.drain_known(file.last()));
            known.into_iter().for_each(|file| file.count_kernel(asked));
            return Verdict::Return(synced);
        };
        let file = match known {
            Some(file) => file,
            // What has no name is gone when it is closed, whatever is durable of it.
            None if stat.links == 0 || !sys::is_on_disk(fd) => return Verdict::Pass,
            None => match self.register(fd, 0) {
                Some(file) => file,
                None => return Verdict::Pass,
            },
        };
        let for_good = file.why();
        if for_good != 0 && for_good & why::FAILED == 0 && !self.is_behind(&file) {
            file.count_kernel(asked);
            return Verdict::Pass;
        }
        match file.take(&stat.key, me.owner.number()) {
            Taken::Held => {}
            Taken::Gone => return Verdict::Pass,
            Taken::Busy => {
                let synced = self.sync_held(&file, fd);
                self.drain_known(file.last());
                file.count_kernel(asked);
                return Verdict::Return(synced);
            }
        }
        // What was seen before the lock is as good if nothing came between: the sync is about what was changed before it began.
        let is_same = stat.changed == file.changed() && !file.is_exclusive();
        if file.is_absorbed()
            && let Ok(now) = if is_same { Ok(stat) } else { Stat::of(fd) }
        {
            self.note(&file, &now, fd);
            if file.is_absorbed() {
                let upto = file.last();
                file.unlock();
                if self.persist(&me, upto) {
                    if upto > self.log.tail() {
                        // That of its last entry, which is durable by now.
                        file.witness(now.modified.0);
                    }
                    file.count_absorbed();
                    self.try_exclusive(&me, &file, &stat, fd);
                    return Verdict::Return(ABSORBED);
                }
                // The log has failed, or is in disorder. The kernel has all of the file; but what copies were to have, no disk has for them.
                file.mark();
                let synced = self.sync_held(&file, fd);
                return Verdict::Return(if self.segment.is_copied() {
                    -i64::from(libc::EIO)
                } else {
                    synced
                });
            }
        }
        let synced = self.sync_due(&me, &file, fd, asked);
        file.unlock();
        if synced == 0 && stat.is_regular() && stat.is_new() {
            self.cover(fd);
        }
        Verdict::Return(synced)
    }

    /// Sees to it that no entry of a file, whose lock we have, is ever replayed over what the kernel has made durable of it: all of them are in the file; or, if the
    /// daemon does not answer, the log says so. `false`: the log is another daemon's by now, has failed, or has no room.
    pub(super) fn settle(&self, me: &Me, file: &File, fd: i32) -> bool {
        let upto = file.last();
        if !self.is_behind(file) {
            return self.is_tail_known(self.log.tail().min(upto));
        }
        if self.drain(upto) {
            return self.is_tail_known(upto);
        }
        if self.segment.has_failed() || self.sync_held(file, fd) != 0 {
            return false;
        }
        let Ok(stat) = Stat::of(fd) else { return false };
        let settled = Op::Settled { file: FileId(file.id()), upto };
        let appended = self.log.append(me.owner, &settled, stat.modified);
        let settled = appended.is_ok_and(|end| self.persist(me, end));
        if settled {
            // It has none that counts. The daemon has still to pass them: until then it keeps the file.
            file.set_settled(upto);
        }
        settled
    }

    /// The kernel's sync of a file of which the log may have something that is in the page cache only.
    fn sync_held(&self, file: &File, fd: i32) -> i64 {
        if let Some(errno) = file.error() {
            return -i64::from(errno);
        }
        let synced = sys::fsync(fd);
        if synced < 0 && self.is_behind(file) {
            file.fail(synced as i32);
            sys::take_trace(fd);
        }
        synced
    }

    /// The kernel's sync of a file that is locked. It is fsync also for fdatasync: what is absorbed later promises the attributes too.
    fn sync_due(&self, me: &Me, file: &File, fd: i32, asked: bool) -> i64 {
        if let Some(errno) = file.error() {
            return -i64::from(errno);
        }
        // Whoever began before the file had a slot is done, and then the time is looked at.
        let quiet = self.segment.is_quiet();
        if let Ok(now) = Stat::of(fd) {
            self.note(file, &now, fd);
        }
        let before = file.before_sync();
        let synced = self.sync_held(file, fd);
        if synced == 0 {
            // Entries from before the change that the log lacks must not be replayed over it.
            let settled = self.settle(me, file, fd);
            let after = Stat::of(fd).ok();
            if after.is_some_and(|after| after.is_directory()) && sys::folds_names(fd) {
                // Since it was taken in: two names of the log can be one there.
                file.refuse(why::FOLDED);
            }
            file.synced(before, quiet && settled, after.map_or(0, |after| after.changed));
            file.count_kernel(asked);
            if !settled && self.segment.is_copied() {
                return -i64::from(libc::EIO);
            }
        }
        synced
    }
}
