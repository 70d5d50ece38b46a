//! A call of another process, as one of ours: with copies of its descriptors, which have its offsets and flags, and of its memory. The face then does with it what it
//! does with a call of its own process, and what it lets pass the program makes itself.
//!
//! | call | what becomes of it |
//! |---|---|
//! | `write` and its kin, `ftruncate`, `fallocate`, `fsync`, `fdatasync`, of a file on a disk | the face's, with what was copied: the file and the log get the same bytes, whatever the program does with its memory meanwhile |
//! | the same of anything else | the program's own: it may wait for long |
//! | `copy_file_range`, cloning, `sendfile` into a file | the face's |
//! | `mmap`, `splice`, `io_submit`, `sync` | the face is told; the program makes it |
//! | any of them, of a program that lets nobody look into it any more | the program makes it, when all of the log is in its files |
//! | `execve` | the program makes it, when what was done for processes that are gone has ended |
//!
//! A write with a limit to files' lengths, or one without buffers (`O_DIRECT`) from several places, or from memory that nobody else may read, is the
//! program's own: the limit, its signal and the alignment are the kernel's to judge. The file's syncs are the kernel's then ([`face::unseen`]).

use std::os::fd::{AsRawFd as _, OwnedFd};

use remanence_intercept::outside::filter::{ArgumentFilter, Rule};
use remanence_intercept::outside::{Caller, Notified};
use remanence_intercept::{Syscall, Verdict};
use rustix::fs::{FileType, OFlags};

use super::Slot;
use crate::{face, sys};

/// So many bytes are copied at once; a longer write becomes several.
const PIECE: usize = 64 << 20;
/// A longer buffer is given back when its write is done.
const KEEP: usize = 1 << 20;
/// The kernel writes no more at once (`MAX_RW_COUNT`).
const LONGEST: u64 = 0x7fff_f000;
/// So many parts a write may have (`UIO_MAXIOV`).
const VECTORS: u64 = 1024;
const PAGE: usize = 4096;

/// `FICLONE`.
const CLONE: u64 = 0x4004_9409;
/// `FICLONERANGE`.
const CLONE_RANGE: u64 = 0x4020_940d;
/// `IOCB_CMD_PWRITE` and `IOCB_CMD_PWRITEV`.
const SUBMITTED_WRITES: [u64; 2] = [1, 8];

const fn always(number: libc::c_long) -> Rule {
    Rule { number: number as u16, when: ArgumentFilter::Always }
}

/// The calls that a supervisor has to see.
pub(super) const RULES: [Rule; 19] = [
    always(libc::SYS_write),
    always(libc::SYS_pwrite64),
    always(libc::SYS_writev),
    always(libc::SYS_pwritev),
    always(libc::SYS_pwritev2),
    always(libc::SYS_ftruncate),
    always(libc::SYS_fallocate),
    always(libc::SYS_fsync),
    always(libc::SYS_fdatasync),
    always(libc::SYS_sync),
    always(libc::SYS_syncfs),
    always(libc::SYS_sendfile),
    always(libc::SYS_copy_file_range),
    always(libc::SYS_splice),
    always(libc::SYS_io_submit),
    always(libc::SYS_execve),
    always(libc::SYS_execveat),
    // Shared, and of a file: a private one, or one of no file, is nobody's but the program's.
    Rule {
        number: libc::SYS_mmap as u16,
        when: ArgumentFilter::Argument {
            at: 3,
            mask: 0xf | libc::MAP_ANONYMOUS as u32,
            is: &[libc::MAP_SHARED as u32, libc::MAP_SHARED_VALIDATE as u32],
        },
    },
    Rule {
        number: libc::SYS_ioctl as u16,
        when: ArgumentFilter::Argument { at: 1, mask: u32::MAX, is: &[CLONE as u32, CLONE_RANGE as u32] },
    },
];

/// The calls that do not exist under a supervisor: programs do without.
pub(super) const MISSING: [u16; 1] = [libc::SYS_io_uring_setup as u16];

/// Memory of ours for what is copied.
#[derive(Debug, Default)]
struct Buffer(Vec<u8>);

impl Buffer {
    /// Room for so many bytes, as far behind the begin of a page as their source is: what the kernel says of their alignment is true.
    fn room(&mut self, source: u64, len: usize) -> &mut [u8] {
        let wanted = len + 2 * PAGE;
        if self.0.len() < wanted {
            self.0 = vec![0; wanted.max(16 * PAGE)];
        }
        let base = self.0.as_ptr().addr();
        let at = base.next_multiple_of(PAGE) - base + source as usize % PAGE;
        &mut self.0[at..at + len]
    }

    fn give_back(&mut self) {
        if self.0.len() > KEEP {
            self.0 = Vec::new();
        }
    }
}

/// A call with other arguments.
fn with<const N: usize>(call: &Syscall, other: [(usize, u64); N]) -> Syscall {
    let mut call = *call;
    for (at, value) in other {
        call.arguments[at] = value;
    }
    call
}

fn number_of(fd: &OwnedFd) -> u64 {
    i64::from(fd.as_raw_fd()).cast_unsigned()
}

fn address(words: &[u64]) -> u64 {
    words.as_ptr() as u64
}

fn is(fd: &OwnedFd, kind: FileType) -> bool {
    rustix::fs::fstat(fd).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == kind)
}

fn is_regular(fd: &OwnedFd) -> bool {
    is(fd, FileType::RegularFile)
}

fn is_directory(fd: &OwnedFd) -> bool {
    is(fd, FileType::Directory)
}

/// Whether it is a file of which anything is ever logged. What is written to others may mean the one who writes, as in `/proc` and in control groups.
fn is_logged(fd: &OwnedFd) -> bool {
    is_regular(fd) && sys::is_on_disk(fd.as_raw_fd())
}

/// Parts of memory without the first bytes of them.
fn behind(parts: &[(u64, usize)], mut bytes: usize) -> Vec<(u64, usize)> {
    let mut left = Vec::new();
    for &(at, len) in parts {
        let skipped = bytes.min(len);
        bytes -= skipped;
        if len > skipped {
            left.push((at + skipped as u64, len - skipped));
        }
    }
    left
}

/// What one thread of a supervisor works with.
#[derive(Debug)]
pub(super) struct Calls {
    slot: Slot,
    buffer: Buffer,
}

impl Calls {
    pub(super) fn new(slot: Slot) -> Self {
        Self { slot, buffer: Buffer::default() }
    }

    /// Carries out a call, or says that the program may make it.
    pub(super) fn carry_out(&mut self, notified: &Notified) -> Verdict {
        // Where a hook has the site of a call, it has the number by which is asked whether anybody still waits for it.
        let call = Syscall { site: notified.id, ..notified.call };
        match call.number.cast_signed() {
            libc::SYS_sync | libc::SYS_syncfs => face::handle(&call),
            _ => Caller::of(notified.thread)
                .ok()
                .and_then(|caller| self.of(&caller, &call))
                .unwrap_or(Verdict::Pass),
        }
    }

    /// `None`: the program may make it.
    fn of(&mut self, caller: &Caller, call: &Syscall) -> Option<Verdict> {
        let fd = |at: usize| {
            let own = caller.descriptor(call.arguments[at] as i32);
            // It has forbidden that since (`PR_SET_DUMPABLE`). It goes on alone.
            if own.as_ref().is_err_and(|why| why.raw_os_error() == Some(libc::EPERM)) {
                face::unseen_any();
            }
            own.ok()
        };
        let file = |at: usize| fd(at).filter(is_logged);
        let is_unlimited = |file: &OwnedFd| {
            let is_unlimited = caller.is_unlimited();
            if !is_unlimited {
                face::unseen(file.as_raw_fd());
            }
            is_unlimited
        };
        match call.number.cast_signed() {
            libc::SYS_write
            | libc::SYS_pwrite64
            | libc::SYS_writev
            | libc::SYS_pwritev
            | libc::SYS_pwritev2 => {
                let file = file(0)?;
                is_unlimited(&file).then_some(())?;
                let verdict = self.write(caller, call, &file);
                self.buffer.give_back();
                verdict
            }
            libc::SYS_ftruncate | libc::SYS_fallocate => {
                let file = file(0)?;
                is_unlimited(&file).then_some(())?;
                Some(self.change(&with(call, [(0, number_of(&file))])))
            }
            libc::SYS_fsync | libc::SYS_fdatasync => {
                let synced = fd(0).filter(|fd| is_logged(fd) || is_directory(fd))?;
                Some(face::handle(&with(call, [(0, number_of(&synced))])))
            }
            libc::SYS_mmap => Some(face::handle(&with(call, [(4, number_of(&file(4)?))]))),
            libc::SYS_splice => Some(face::handle(&with(call, [(2, number_of(&file(2)?))]))),
            libc::SYS_io_submit => submit(caller, call),
            libc::SYS_ioctl => {
                let to = file(0)?;
                if call.arguments[1] & 0xffff_ffff == CLONE {
                    let from = fd(2).filter(is_regular)?;
                    return Some(self.change(&with(call, [(0, number_of(&to)), (2, number_of(&from))])));
                }
                let mut range = caller.words::<4>(call.arguments[2])?;
                let from = caller.descriptor(range[0] as i32).ok().filter(is_regular)?;
                range[0] = number_of(&from);
                Some(self.change(&with(call, [(0, number_of(&to)), (2, address(&range))])))
            }
            libc::SYS_copy_file_range => {
                let (from, to) = (fd(0).filter(is_regular)?, file(2)?);
                is_unlimited(&to).then_some(())?;
                self.copy(caller, call, [(0, number_of(&from)), (2, number_of(&to))], [1, 3])
            }
            libc::SYS_sendfile => {
                let to = file(0)?;
                let Some(from) = fd(1).filter(is_regular) else {
                    // It may wait for long.
                    face::unseen(to.as_raw_fd());
                    return None;
                };
                is_unlimited(&to).then_some(())?;
                self.copy(caller, call, [(0, number_of(&to)), (1, number_of(&from))], [2, 2])
            }
            _ => None,
        }
    }

    /// Has the face carry out a change.
    fn change(&self, call: &Syscall) -> Verdict {
        self.slot.changes();
        face::handle(call)
    }

    /// A copy within the kernel from one file to another, whose offsets, if the program has named some, are words of its memory.
    fn copy(
        &self,
        caller: &Caller,
        call: &Syscall,
        files: [(usize, u64); 2],
        offsets: [usize; 2],
    ) -> Option<Verdict> {
        let mut local = with(call, files);
        let mut words = [0_u64; 2];
        let named = offsets.map(|at| call.arguments[at]);
        for ((word, at), named) in words.iter_mut().zip(offsets).zip(named) {
            if named != 0 {
                [*word] = caller.words(named)?;
                local.arguments[at] = std::ptr::from_mut(word) as u64;
            }
        }
        let verdict = self.change(&local);
        if matches!(verdict, Verdict::Return(1..)) {
            // Where there is one only, the second word is the one that was used.
            for n in if offsets[0] == offsets[1] { 1..2 } else { 0..2 } {
                if named[n] != 0 && !caller.write_word(named[n], words[n]) {
                    return Some(Verdict::Return(-i64::from(libc::EFAULT)));
                }
            }
        }
        Some(verdict)
    }

    fn write(&mut self, caller: &Caller, call: &Syscall, file: &OwnedFd) -> Option<Verdict> {
        let [_, at, len, offset, ..] = call.arguments;
        let number = call.number.cast_signed();
        let is_flat = matches!(number, libc::SYS_write | libc::SYS_pwrite64);
        // What of it is wrong is for the kernel to say.
        let parts = if is_flat { vec![(at, usize::try_from(len).ok()?)] } else { vectors(caller, at, len)? };
        let whole = parts.iter().try_fold(0_u64, |sum, (_, len)| sum.checked_add(*len as u64))?;
        let whole = if i64::try_from(whole).is_ok() { whole.min(LONGEST) as usize } else { return None };
        let is_direct = rustix::fs::fcntl_getfl(file).is_ok_and(|flags| flags.contains(OFlags::DIRECT));
        if is_direct && !is_flat {
            face::unseen(file.as_raw_fd());
            return None;
        }
        let is_placed = match number {
            libc::SYS_pwrite64 | libc::SYS_pwritev => true,
            libc::SYS_pwritev2 => offset != u64::MAX,
            _ => false,
        };
        let mut done = 0;
        while done < whole {
            let left = behind(&parts, done);
            let room = self.buffer.room(left.first()?.0, (whole - done).min(PIECE));
            let wanted = room.len();
            let read = caller.read(&left, room);
            if read == 0 {
                if done == 0 {
                    face::unseen(file.as_raw_fd());
                    return None;
                }
                break;
            }
            let from = room.as_ptr() as u64;
            let vector = [from, read as u64];
            let (source, count) = if is_flat { (from, read as u64) } else { (address(&vector), 1) };
            let offset = if is_placed { offset.wrapping_add(done as u64) } else { offset };
            let piece = with(call, [(0, number_of(file)), (1, source), (2, count), (3, offset)]);
            match self.change(&piece) {
                Verdict::Return(taken @ 1..) => {
                    done += taken as usize;
                    if (taken as usize) < wanted {
                        break;
                    }
                }
                verdict if done == 0 => return Some(verdict),
                _ => break,
            }
        }
        // Nothing at all is asked for: the kernel looks whether it may.
        (whole > 0).then_some(Verdict::Return(done as i64))
    }
}

/// The addresses and lengths that a write of several parts names.
fn vectors(caller: &Caller, at: u64, count: u64) -> Option<Vec<(u64, usize)>> {
    if count > VECTORS {
        return None;
    }
    let mut bytes = vec![0; count as usize * 16];
    if caller.read(&[(at, bytes.len())], &mut bytes) != bytes.len() {
        return None;
    }
    let word = |bytes: &[u8]| bytes.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
    bytes.chunks_exact(16).map(|part| Some((word(part)?, usize::try_from(word(&part[8..])?).ok()?))).collect()
}

/// The face is told which files are written to by requests.
fn submit(caller: &Caller, call: &Syscall) -> Option<Verdict> {
    let [_, count, at, ..] = call.arguments;
    let mut kept = Vec::new();
    let mut requests = Vec::new();
    for n in 0..count.min(VECTORS) {
        let Some([request]) = caller.words::<1>(at.wrapping_add(n * 8)) else { break };
        let Some([_, _, what]) = caller.words::<3>(request) else { break };
        if SUBMITTED_WRITES.contains(&(what & 0xffff))
            && let Ok(file) = caller.descriptor((what >> 32) as i32)
        {
            requests.push([0, 0, number_of(&file) << 32 | what & 0xffff_ffff]);
            kept.push(file);
        }
    }
    let pointers: Vec<u64> = requests.iter().map(|request| address(request)).collect();
    Some(face::handle(&with(call, [(1, pointers.len() as u64), (2, address(&pointers))])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_supervisor_sees_is_what_a_hook_sees() {
        let only_noticed =
            [libc::SYS_close, libc::SYS_close_range, libc::SYS_dup2, libc::SYS_dup3, libc::SYS_fcntl];
        let programs = [libc::SYS_execve, libc::SYS_execveat];
        let mut seen: Vec<u16> = RULES.iter().map(|rule| rule.number).chain(MISSING).collect();
        seen.retain(|number| !programs.contains(&i64::from(*number)));
        seen.sort_unstable();
        let mut hooked: Vec<u16> = face::NUMBERS.to_vec();
        hooked.retain(|number| !only_noticed.contains(&i64::from(*number)));
        hooked.sort_unstable();
        let lacking: Vec<u16> = seen.into_iter().filter(|number| !hooked.contains(number)).collect();
        assert!(lacking.is_empty(), "the face knows nothing of {lacking:?}");
        assert!(
            [libc::SYS_write, libc::SYS_fsync, libc::SYS_mmap].iter().all(|n| hooked.contains(&(*n as u16)))
        );
    }

    #[test]
    fn a_buffer_begins_where_its_source_does_in_a_page() {
        let mut buffer = Buffer::default();
        for (source, len) in [(0, 1), (4095, 10), (0x1234, 70_000), (8, 3 << 20)] {
            let room = buffer.room(source, len);
            assert_eq!((room.as_ptr().addr() % PAGE, room.len()), (source as usize % PAGE, len));
        }
        buffer.give_back();
        assert!(buffer.0.is_empty());
    }

    #[test]
    fn parts_go_on_where_they_were_left() {
        let parts = [(100, 5), (200, 0), (300, 7)];
        assert_eq!(behind(&parts, 0), [(100, 5), (300, 7)]);
        assert_eq!(behind(&parts, 5), [(300, 7)]);
        assert_eq!(behind(&parts, 7), [(302, 5)]);
        assert_eq!(behind(&parts, 12), []);
    }
}
