//! A change of what a file is besides its bytes and names: its permissions, its owners, its time. The kernel's call first, then an entry with all of these as they are, both under the
//! file's lock. Of a file that is not absorbed it is the kernel's alone, as any change is.
//!
//! What else is changed by a path is the kernel's, and marked, so that nobody takes it for a part of what he does himself in that moment: extended attributes, a length, and all of a directory.

use std::ffi::CString;

use remanence_cache::op::Op;
use remanence_cache::table::FileId;
use remanence_intercept::{Syscall, Verdict};

use super::{Face, Me, exclusive};
use crate::segment::{File, Taken};
use crate::sys::{self, Own, Stat};

/// Whose attributes a call changes.
#[derive(Clone, Copy, Debug)]
enum Target {
    Descriptor(i32),
    /// What is at a path, or the link that is there.
    Path {
        directory: i32,
        path: u64,
        is_link: bool,
    },
}

impl Target {
    fn of(call: &Syscall) -> Option<Self> {
        let [a, b, _, d, e, _] = call.arguments;
        let no_follow = libc::AT_SYMLINK_NOFOLLOW as u64;
        let here = |path, is_link| Self::Path { directory: libc::AT_FDCWD, path, is_link };
        let at = |flags: u64| Self::Path { directory: a as i32, path: b, is_link: flags & no_follow != 0 };
        Some(match i64::from(call.number as u32) {
            libc::SYS_fchmod | libc::SYS_fchown | libc::SYS_fsetxattr | libc::SYS_fremovexattr => {
                Self::Descriptor(a as i32)
            }
            libc::SYS_utimensat | libc::SYS_futimesat if b == 0 => Self::Descriptor(a as i32),
            libc::SYS_chmod
            | libc::SYS_chown
            | libc::SYS_utime
            | libc::SYS_utimes
            | libc::SYS_setxattr
            | libc::SYS_removexattr
            | libc::SYS_truncate => here(a, false),
            libc::SYS_lchown | libc::SYS_lsetxattr | libc::SYS_lremovexattr => here(a, true),
            libc::SYS_fchmodat | libc::SYS_futimesat => at(0),
            libc::SYS_fchmodat2 | libc::SYS_utimensat => at(d),
            libc::SYS_fchownat => at(e),
            _ => return None,
        })
    }
}

impl Face {
    /// Carries out a call that changes attributes.
    pub(super) fn attributes(&self, call: &Syscall) -> Verdict {
        let (fd, _own) = match Target::of(call) {
            Some(Target::Descriptor(fd)) => (fd, None),
            Some(Target::Path { directory, path, is_link }) => {
                let path = sys::path(path).and_then(|path| CString::new(path).ok());
                let flags = if is_link { libc::O_NOFOLLOW } else { 0 };
                let Some(own) = path.and_then(|path| Own::look(directory, &path, flags).ok()) else {
                    return Verdict::Pass;
                };
                (own.0, Some(own))
            }
            None => return Verdict::Pass,
        };
        let Ok(stat) = Stat::of(fd) else { return Verdict::Pass };
        let Some(file) = self.segment.find(&stat.key).filter(|file| file.why() == 0) else {
            return Verdict::Pass;
        };
        match i64::from(call.number as u32) {
            libc::SYS_truncate if self.is_unsettled(&file) => {
                // As before anything that goes around the log.
                self.drain_known(file.last());
                return self.marking(call, &stat);
            }
            libc::SYS_truncate
            | libc::SYS_setxattr
            | libc::SYS_lsetxattr
            | libc::SYS_fsetxattr
            | libc::SYS_removexattr
            | libc::SYS_lremovexattr
            | libc::SYS_fremovexattr => return self.marking(call, &stat),
            _ if stat.is_directory() => return self.marking(call, &stat),
            _ => {}
        }
        let Some(me) = self.me() else { return self.marking(call, &stat) };
        match file.take(&stat.key, me.owner.number()) {
            Taken::Held => {}
            Taken::Busy => return self.marking(call, &stat),
            Taken::Gone => return Verdict::Pass,
        }
        let logged = file.last();
        let value = self.attributes_held(&me, call, &file, fd);
        let last = file.last();
        file.unlock();
        if last != logged && self.segment.is_to_kick(self.log.used()) {
            self.kick();
        }
        if last != logged && self.segment.is_strict() {
            self.persist(&me, last);
        }
        Verdict::Return(value)
    }

    /// Changes those of a file whose lock we have.
    fn attributes_held(&self, me: &Me, call: &Syscall, file: &File, fd: i32) -> i64 {
        let now = Stat::of(fd).ok();
        match &now {
            Some(now) => self.note(file, now, fd),
            None => file.make_due(),
        }
        let absorbed = file.is_absorbed() && !self.segment.has_failed();
        let value = sys::forward(call);
        let Ok(after) = Stat::of(fd) else {
            file.make_due();
            return value;
        };
        exclusive::left(file, &after);
        if !absorbed {
            file.owe();
            return value;
        }
        let complete = match value {
            0.. => {
                let (id, mode) = (FileId(file.id()), after.mode);
                let op = Op::Attributes { file: id, mode, user: after.user, group: after.group };
                self.log_change(me, file, &op, &after)
            }
            _ => now.is_some_and(|now| now.changed == after.changed),
        };
        if !complete {
            file.make_due();
        }
        value
    }
}
