//! A change of a file: the kernel's call first, then an entry of just what it took, both under the file's lock.
//!
//! The kernel first, as only then the offset of an appending write, a short write, and what was refused are known. The bytes are copied
//! once into a buffer of ours: the program may go on writing its own meanwhile, and an entry's checksum has to be that of what it says.

use std::mem::MaybeUninit;
use std::sync::atomic::Ordering;

use remanence_cache::entry::Mtime;
use remanence_cache::log::AppendError;
use remanence_cache::op::Op;
use remanence_cache::table::FileId;
use remanence_intercept::{Syscall, Verdict};

use super::{COPY_MS, Face, Me, exclusive, filled, plain, uninit};
use crate::segment::{Count, File, Taken, why};
use crate::sys::{self, Stat};

/// Bytes of the longest entry that a write becomes; a longer one becomes several.
const PIECE: usize = 32 << 10;
/// How long a change waits for room in the log.
const ROOM_MS: u64 = 5000;

/// How old the last time is that the log has durably of a file which is changed: a half of [`GRACE`](remanence_cache::recovery::GRACE).
const WITNESS_NS: u64 = 1_000_000_000;
/// How often that is said on a disk that takes longer, before the log has no need of it.
const WITNESSES: usize = 3;

const RWF_DSYNC: u64 = 2;
const RWF_SYNC: u64 = 4;
const RWF_APPEND: u64 = 0x10;
const RWF_NOAPPEND: u64 = 0x20;
/// `FALLOC_FL_COLLAPSE_RANGE` and `FALLOC_FL_INSERT_RANGE`.
const ALLOCATE_MOVES: u64 = 0x08 | 0x20;

/// Where a write's bytes are in the program.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source {
    Flat(u64),
    /// The address of so many vectors.
    Vectors(u64, u64),
}

/// Where a write goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WriteOffset {
    /// Where the descriptor is.
    Current,
    /// To this offset.
    At(u64),
}

/// What a call asks for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change {
    Write { source: Source, place: WriteOffset, flags: u64 },
    Truncate { len: u64 },
    Allocate { mode: u64, offset: u64, len: u64 },
}

impl Change {
    fn of(call: &Syscall) -> Option<Self> {
        let [_, a, b, c, _, flags] = call.arguments;
        let vectors = Source::Vectors(a, b);
        Some(match i64::from(call.number as u32) {
            libc::SYS_write => Self::Write { source: Source::Flat(a), place: WriteOffset::Current, flags: 0 },
            libc::SYS_pwrite64 => {
                Self::Write { source: Source::Flat(a), place: WriteOffset::At(c), flags: 0 }
            }
            libc::SYS_writev => Self::Write { source: vectors, place: WriteOffset::Current, flags: 0 },
            libc::SYS_pwritev => Self::Write { source: vectors, place: WriteOffset::At(c), flags: 0 },
            libc::SYS_pwritev2 => {
                let place = if c == u64::MAX { WriteOffset::Current } else { WriteOffset::At(c) };
                Self::Write { source: vectors, place, flags: flags & 0xffff_ffff }
            }
            libc::SYS_ftruncate => Self::Truncate { len: a },
            libc::SYS_fallocate => Self::Allocate { mode: a & 0xffff_ffff, offset: b, len: c },
            _ => return None,
        })
    }

    /// Which bytes a write without any flag writes, and where.
    pub(super) const fn written(&self) -> Option<(Source, WriteOffset)> {
        match *self {
            Self::Write { source, place, flags: 0 } => Some((source, place)),
            _ => None,
        }
    }

    /// Whether the program asks for a sync with it.
    fn syncs(&self) -> bool {
        matches!(self, Self::Write { flags, .. } if flags & (RWF_DSYNC | RWF_SYNC) != 0)
    }
}

/// The descriptor of a change, and how its number stood before it was asked which file that is.
#[derive(Clone, Copy, Debug)]
struct Descriptor {
    fd: i32,
    generation: u32,
}

/// What is to be done behind a change that the program wants to be durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Owes {
    /// It does not.
    Nothing,
    /// The kernel has made it durable: the log must have nothing that would undo it.
    Log,
    /// The log is to make it durable, or a sync.
    Sync,
}

/// Where a file and a descriptor were before a change, and are behind it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Around {
    pub(super) size: [u64; 2],
    pub(super) position: [Option<u64>; 2],
}

/// Where the `taken` bytes of a write lie in the file; `None` if that cannot be told for certain.
pub(super) fn offset(place: WriteOffset, appends: bool, around: &Around, taken: u64) -> Option<u64> {
    if appends {
        let [before, after] = around.size;
        return (before.checked_add(taken) == Some(after)).then_some(before);
    }
    match (place, around.position) {
        (WriteOffset::At(offset), _) => Some(offset),
        (WriteOffset::Current, [Some(before), Some(after)]) => {
            (before.checked_add(taken) == Some(after)).then_some(before)
        }
        (WriteOffset::Current, _) => None,
    }
}

/// The bytes of a write, in pieces.
struct Pieces {
    source: Source,
    /// Of the vector that is being read, what is left.
    at: u64,
    left: u64,
}

impl Pieces {
    fn new(source: Source, taken: u64) -> Self {
        match source {
            Source::Flat(at) => Self { source: Source::Vectors(0, 0), at, left: taken },
            vectors @ Source::Vectors(..) => Self { source: vectors, at: 0, left: 0 },
        }
    }

    /// Fills a buffer. `false`: there are not as many.
    fn next(&mut self, into: &mut [MaybeUninit<u8>]) -> bool {
        let mut done = 0;
        while done < into.len() {
            if self.left == 0 {
                let Source::Vectors(at, count @ 1..) = self.source else { return false };
                let Some([base, len]) = sys::peek::<2>(at) else { return false };
                self.source = Source::Vectors(at.wrapping_add(16), count - 1);
                (self.at, self.left) = (base, len);
                continue;
            }
            let n = (into.len() - done).min(usize::try_from(self.left).unwrap_or(usize::MAX));
            if !sys::copy_in(self.at, &mut into[done..done + n]) {
                return false;
            }
            done += n;
            self.at += n as u64;
            self.left -= n as u64;
        }
        true
    }
}

impl Face {
    /// Carries out a call that changes a file.
    pub(super) fn change(&self, call: &Syscall, fd: i32) -> Verdict {
        let Some(change) = Change::of(call) else { return Verdict::Pass };
        let number = fd.cast_unsigned().into();
        if let Some(verdict) = self.change_exclusive(call, &change, number) {
            return verdict;
        }
        let before = plain::before(number);
        let descriptor = Descriptor { fd, generation: before };
        let Ok(stat) = Stat::of(fd) else { return Verdict::Pass };
        if !stat.is_regular() {
            if self.is_itself() {
                plain::noted(number, before);
            }
            return Verdict::Pass;
        }
        let Some(me) = self.me() else { return self.marking(call, &stat) };
        if let Some(file) = self.segment.find(&stat.key)
            && let Some(verdict) = self.change_known(&me, call, &change, &file, &stat, descriptor)
        {
            return verdict;
        }
        let mut is_forwarded = false;
        let verdict = self.unlogged(&me, || {
            // Looked for again: whoever takes it into the table from now on waits for us.
            let known = self.segment.find(&stat.key);
            let verdict =
                known.and_then(|file| self.change_known(&me, call, &change, &file, &stat, descriptor));
            verdict.unwrap_or_else(|| {
                is_forwarded = true;
                Verdict::Return(sys::forward(call))
            })
        });
        if is_forwarded { self.strictly(&stat, fd, verdict) } else { verdict }
    }

    /// Makes a change durable that is in no log, where each has to be; but of what has no name, or is excluded, nothing is promised.
    fn strictly(&self, stat: &Stat, fd: i32, done: Verdict) -> Verdict {
        let Verdict::Return(value @ 0..) = done else { return done };
        let is_excluded = || self.segment.find(&stat.key).is_some_and(|file| file.why() & why::EXCLUDED != 0);
        if !self.segment.is_strict() || stat.links == 0 || is_excluded() || !sys::is_on_disk(fd) {
            return done;
        }
        Verdict::Return(self.synced(fd, value))
    }

    /// Syncs a file behind a change: gives what that gave, or why it is not durable.
    fn synced(&self, fd: i32, value: i64) -> i64 {
        let synced = match self.sync(fd) {
            Verdict::Return(synced) => synced,
            Verdict::Pass => sys::fsync(fd),
        };
        if synced < 0 { synced } else { value }
    }

    /// Changes a file that has a slot. `None`: it is another's by now, or says that nothing is logged for good.
    fn change_known(
        &self,
        me: &Me,
        call: &Syscall,
        change: &Change,
        file: &File,
        stat: &Stat,
        descriptor: Descriptor,
    ) -> Option<Verdict> {
        let fd = descriptor.fd;
        if let Some(errno) = file.error() {
            return Some(Verdict::Return(-i64::from(errno)));
        }
        if file.why() != 0 {
            return None;
        }
        match file.take(&stat.key, me.owner.number()) {
            Taken::Held => {}
            Taken::Busy => return Some(self.strictly(stat, fd, self.marking(call, stat))),
            Taken::Gone => return None,
        }
        let logged = file.last();
        let (value, owes) = self.change_held(me, call, change, file, stat, descriptor);
        let (last, absorbed) = (file.last(), file.is_absorbed());
        let owes = match value {
            0.. if owes == Owes::Nothing && self.segment.is_strict() => Owes::Sync,
            1.. => owes,
            _ => Owes::Nothing,
        };
        if !absorbed && owes == Owes::Log {
            self.settle(me, file, fd);
        }
        file.unlock();
        if last != logged && self.segment.is_to_kick(self.log.used()) {
            self.kick();
        }
        if owes == Owes::Sync && !(absorbed && self.persist(me, last)) {
            if absorbed {
                file.mark();
            }
            return Some(Verdict::Return(self.synced(fd, value)));
        }
        if absorbed && owes == Owes::Log && !self.persist(me, last) && self.segment.is_copied() {
            return Some(Verdict::Return(-i64::from(libc::EIO)));
        }
        if !absorbed && owes == Owes::Log && self.segment.keeps_images() {
            file.count_kernel(true);
            if !self.segment.wait_looked(COPY_MS) {
                return Some(Verdict::Return(-i64::from(libc::EIO)));
            }
        }
        Some(Verdict::Return(value))
    }

    /// Changes a file whose lock we have. Gives what the kernel gave, and what is still to be done for a sync that the program asked for with it.
    fn change_held(
        &self,
        me: &Me,
        call: &Syscall,
        change: &Change,
        file: &File,
        stat: &Stat,
        descriptor: Descriptor,
    ) -> (i64, Owes) {
        let (fd, flags_changed) = (descriptor.fd, self.segment.flags_changed());
        let opened = sys::flags(fd).ok();
        let at_end = matches!(change, Change::Write { flags, .. } if flags & RWF_APPEND != 0)
            || opened.is_some_and(|opened| opened & libc::O_APPEND != 0);
        // What was seen before the lock is as good if nothing came between; but a write that was under way then sets the time first, and the length when it is done.
        let is_same = stat.changed == file.changed() && !at_end && !file.is_exclusive();
        let now = if is_same { Some(*stat) } else { Stat::of(fd).ok() };
        let (Some(now), Some(opened)) = (now, opened) else {
            file.make_due();
            return (sys::forward(call), if change.syncs() { Owes::Log } else { Owes::Nothing });
        };
        let is_synchronous = change.syncs() || opened & libc::O_DSYNC != 0;
        let behind = if is_synchronous { Owes::Log } else { Owes::Nothing };
        self.note(file, &now, fd);
        if self.is_itself() {
            exclusive::noted(fd.cast_unsigned().into(), descriptor.generation, file, opened, flags_changed);
        }
        let direct = opened & libc::O_DIRECT != 0;
        let moves = matches!(change, Change::Allocate { mode, .. } if mode & ALLOCATE_MOVES != 0);
        let odd = matches!(change, Change::Write { flags, .. } if flags & RWF_NOAPPEND != 0);
        if direct || moves || odd || self.segment.has_failed() {
            file.make_due();
        }
        if !file.is_absorbed() {
            if self.is_unsettled(file) {
                self.settle(me, file, fd);
            }
            let value = sys::forward(call);
            // Also where nothing was due to it before, as nothing is logged now at all.
            file.owe();
            if let Ok(after) = Stat::of(fd) {
                exclusive::left(file, &after);
            }
            return (value, behind);
        }
        let here = matches!(change, Change::Write { place: WriteOffset::Current, .. });
        let position = || if here { sys::position(fd).ok() } else { None };
        let before = position();
        let (mut made, mut owes) = (*call, behind);
        if change.syncs() {
            // The sync is of the log.
            made.arguments[5] &= !(RWF_DSYNC | RWF_SYNC);
            owes = Owes::Sync;
        }
        if !self.witness(me, file) && self.is_unsettled(file) {
            // Then there is nothing that a recovery could take somebody else's change for a reason to keep from it.
            self.settle(me, file, fd);
        }
        let cut = self.cut_first(me, file, change, &now);
        let value = sys::forward(&made);
        if cut && value < 0 {
            // The log says what never was.
            self.settle(me, file, fd);
        }
        let Ok(after) = Stat::of(fd) else {
            file.make_due();
            return (value, owes);
        };
        exclusive::left(file, &after);
        let around = Around { size: [now.size, after.size], position: [before, position()] };
        let complete = match (change, u64::try_from(value)) {
            // It may have done a part of what it refused in the end.
            (_, Err(_)) => after.changed == now.changed,
            (Change::Write { .. }, Ok(0)) => true,
            (Change::Write { source, place, flags }, Ok(taken)) => {
                let appends = opened & libc::O_APPEND != 0 || flags & RWF_APPEND != 0;
                offset(*place, appends, &around, taken)
                    .is_some_and(|offset| self.log_bytes(me, file, *source, offset, taken, after.modified))
            }
            (Change::Truncate { len }, Ok(_)) => {
                self.log_change(me, file, &Op::Truncate { file: FileId(file.id()), len: *len }, &after)
            }
            (Change::Allocate { mode, offset, len }, Ok(_)) => {
                let id = FileId(file.id());
                let op = Op::Allocate { file: id, mode: *mode as u32, offset: *offset, len: *len };
                self.log_change(me, file, &op, &after)
            }
        };
        if !complete {
            file.make_due();
        }
        (value, owes)
    }

    /// Logs the bytes of a write. `false`: not all of them.
    pub(super) fn log_bytes(
        &self,
        me: &Me,
        file: &File,
        source: Source,
        offset: u64,
        taken: u64,
        modified: Mtime,
    ) -> bool {
        let mut buffer = uninit::<PIECE>();
        let mut pieces = Pieces::new(source, taken);
        let longest = self.log.longest().min(PIECE as u64);
        let mut done = 0;
        while done < taken {
            let piece = &mut buffer[..(taken - done).min(longest) as usize];
            if !pieces.next(piece) {
                return false;
            }
            let bytes = filled(piece);
            let op = Op::Write { file: FileId(file.id()), offset: offset + done, bytes };
            if !self.log_at(me, file, &op, modified) {
                return false;
            }
            done += bytes.len() as u64;
            file.count_bytes(bytes.len() as u64);
        }
        true
    }

    /// Before a file is changed, and somewhat before its time can be one that the log does not explain: the log says durably that it may be changed by us from now on. The loss of the machine can
    /// take the entry of a change that has come to the disk, and a recovery would take that for somebody else's. Where that takes the log's disk longer than it is good for, it is said
    /// once more. `false`: it was not said in time.
    pub(super) fn witness(&self, me: &Me, file: &File) -> bool {
        for _ in 0..WITNESSES {
            let now = sys::since_1970();
            if now < file.witnessed().saturating_add(WITNESS_NS) {
                return true;
            }
            let witness = Op::Settled { file: FileId(file.id()), upto: 0 };
            let appended = self.log.append(me.owner, &witness, Mtime(now));
            if !appended.is_ok_and(|end| self.persist(me, end)) {
                return false;
            }
            file.witness(now);
        }
        sys::since_1970() < file.witnessed().saturating_add(WITNESS_NS)
    }

    /// A file that is cut short, of which the log has something: that is said durably before it is done, and after everything before it. The file system makes a length durable when it likes, and a
    /// recovery without that entry would carry out what is older on a file that is shorter, to a length that it never had. Whether it was said; behind the call it is said once more, with the time that
    /// the file has then.
    fn cut_first(&self, me: &Me, file: &File, change: &Change, now: &Stat) -> bool {
        let Change::Truncate { len } = change else { return false };
        if *len >= now.size || !self.is_unsettled(file) {
            return false;
        }
        let op = Op::Truncate { file: FileId(file.id()), len: *len };
        let said = self.log_at(me, file, &op, Mtime(sys::since_1970()));
        if said {
            // Where that fails, the log has failed for all.
            self.persist(me, file.last());
        }
        said
    }

    /// Appends an entry, which says what the file's time is behind its change.
    pub(super) fn log_change(&self, me: &Me, file: &File, op: &Op<'_>, after: &Stat) -> bool {
        self.log_at(me, file, op, after.modified)
    }

    /// The same for any time; waits for room, but not for ever.
    fn log_at(&self, me: &Me, file: &File, op: &Op<'_>, modified: Mtime) -> bool {
        let until = sys::monotonic() + ROOM_MS * 1_000_000;
        loop {
            let space = self.segment.space().load(Ordering::SeqCst) as u32;
            match self.log.append(me.owner, op, modified) {
                Ok(end) if !self.segment.has_failed() => {
                    file.set_last(end);
                    self.segment.count(Count::Changes, 1);
                    return true;
                }
                Err(AppendError::Full { .. }) if sys::monotonic() < until => {
                    self.segment.count(Count::Waits, 1);
                    if self.segment.kick() {
                        self.kick();
                    }
                    sys::wait(self.segment.space(), space, 50);
                }
                other => {
                    if matches!(other, Err(AppendError::Medium(_))) {
                        self.segment.fail();
                    }
                    self.segment.count(Count::Refused, 1);
                    return false;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offset_is_told_only_if_it_is_certain() {
        let around = |size, position| Around { size, position };
        let here = around([100, 104], [Some(50), Some(54)]);
        assert_eq!(offset(WriteOffset::Current, false, &here, 4), Some(50));
        assert_eq!(offset(WriteOffset::At(7), false, &here, 4), Some(7));
        assert_eq!(offset(WriteOffset::Current, true, &here, 4), Some(100), "it appends");
        assert_eq!(offset(WriteOffset::At(7), true, &here, 4), Some(100), "as pwrite does then");
        let moved = around([100, 108], [Some(50), Some(58)]);
        assert_eq!(offset(WriteOffset::Current, false, &moved, 4), None, "somebody else moved it");
        assert_eq!(offset(WriteOffset::Current, true, &moved, 4), None, "somebody else appended");
        assert_eq!(offset(WriteOffset::Current, false, &around([0, 0], [None, None]), 4), None, "a pipe");
    }

    #[test]
    fn vectors_are_read_one_behind_the_other_as_far_as_the_kernel_took_them() {
        let (one, two, three) = (*b"abc", *b"", *b"defgh");
        let vectors =
            [&one[..], &two[..], &three[..]].map(|bytes| [bytes.as_ptr() as u64, bytes.len() as u64]);
        let mut pieces = Pieces::new(Source::Vectors(vectors.as_ptr() as u64, 3), 7);
        let mut buffer = uninit::<4>();
        assert!(pieces.next(&mut buffer));
        assert_eq!(filled(&buffer), b"abcd");
        assert!(pieces.next(&mut buffer[..3]));
        assert_eq!(filled(&buffer[..3]), b"efg");
        assert!(!pieces.next(&mut buffer), "there are not as many");
        let mut pieces = Pieces::new(Source::Flat(three.as_ptr() as u64), 5);
        assert!(pieces.next(&mut buffer));
        assert_eq!(filled(&buffer), b"defg");
        assert!(!pieces.next(&mut buffer));
    }
}
