//! Files that nobody else has open: they are changed, and their syncs absorbed, without a question about their times.
//!
//! A file's time of change tells who else was at it, and costs: two questions a change, one a sync, and, as the kernel gives a time that somebody has asked for only once, a new one with each write, which it writes
//! into the inode. So a file whose syncs were absorbed for some time becomes *exclusive*, if it has no other description than the one that asks (`daemon/files.rs`): a lease is had of it for an
//! instant. From then on the kernel tells of everybody who opens it (fanotify), before he can write to it: the descriptor on which it does is the daemon's, and each program's that has such files. Who syncs looks
//! whether there is something to be read; if so he has the daemon read it. A file that was opened is *doubted*: it is exclusive still if the kernel tells of nobody who has closed it behind writing, and another lease
//! says that nobody has it open to write. If not, somebody else was at it: two syncs are the kernel's.
//!
//! **What leads to a file without being opened** is a description of ours. It may be somebody's whose calls nobody sees: by `fork` and `exec`, and by a message. So the files that a program keeps over `exec`, those
//! that it was started with, and those that it sends, are never exclusive ([`Segment::leak`]). A `truncate` by path, which opens nothing, and a write by instructions that are not hooked, are told by the file's length
//! and its time, which are looked at every ten milliseconds; what they did before a later change of ours that left the length as it should be is not.
//!
//! **Which file a number leads to** is noted here, by the same rules as what leads to none (`plain.rs`): a note holds for a generation of the number, which ends before the number gets another meaning, and
//! is looked at before the kernel's call and behind it. With it is noted whether writes append, as nobody has changed the flags of a description since.

use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use remanence_cache::entry::Mtime;
use remanence_intercept::{Syscall, Verdict};

use super::change::{Around, Change, WriteOffset, offset};
use super::{CALL_MS, Face, Me, face, own, plain};
use crate::segment::{File, Segment, Taken};
use crate::sys::{self, Stat};
use crate::wire::{self, Kind, Question};

/// Higher numbers are not noted.
const NUMBERS: usize = 4096;
/// How long nobody looks at the time of an exclusive file.
const LOOK_NS: u64 = 10_000_000;
/// How often a program that closes all that it knows nothing of is given the descriptor once more.
const TIMES: u32 = 8;
const NONE: i32 = -1;

/// What is known of a number.
struct Note {
    /// The generation, the file's place, and whether writes append; 0 is nothing.
    file: AtomicU64,
    stamp: AtomicU64,
    flags: AtomicU64,
}

static NOTES: [Note; NUMBERS] =
    [const { Note { file: AtomicU64::new(0), stamp: AtomicU64::new(0), flags: AtomicU64::new(0) } }; NUMBERS];

/// On which the kernel tells of openers, of which segment's files, and how often we had one.
static OPENERS: AtomicI32 = AtomicI32::new(NONE);
static OPENERS_OF: AtomicU64 = AtomicU64::new(0);
static HAD: AtomicU32 = AtomicU32::new(0);
/// Somebody has this process' numbers, and not its memory.
static SHARED: AtomicU32 = AtomicU32::new(0);

/// The file that a number leads to.
#[derive(Clone, Copy)]
struct Known {
    number: u64,
    generation: u32,
    file: File,
    appends: bool,
    flags: u64,
}

impl Known {
    fn of(segment: Segment, number: u64) -> Option<Self> {
        let note = NOTES.get(number as u32 as usize)?;
        let word = note.file.load(Ordering::SeqCst);
        if word == 0 {
            return None;
        }
        let (stamp, flags) = (note.stamp.load(Ordering::SeqCst), note.flags.load(Ordering::SeqCst));
        let file = segment.file((word & 0xffff_ffff) as usize >> 1);
        let known = Self { number, generation: (word >> 32) as u32, file, appends: word & 1 != 0, flags };
        let is_one = note.file.load(Ordering::SeqCst) == word;
        (is_one && known.holds(segment) && file.stamp() == stamp && file.is_exclusive()).then_some(known)
    }

    /// Whether the number leads there still, and nobody has changed flags.
    fn holds(&self, segment: Segment) -> bool {
        plain::before(self.number) == self.generation
            && SHARED.load(Ordering::SeqCst) == 0
            && segment.flags_changed() == self.flags
    }
}

/// Notes that a number leads to a file, as the kernel has said since its generation was looked at, and how it was opened.
pub(super) fn noted(number: u64, generation: u32, file: &File, opened: i32, flags_changed: u64) {
    let odd = libc::O_DIRECT | libc::O_DSYNC | libc::O_PATH;
    // A generation that is odd is that of no file.
    if opened & odd != 0 || !generation.is_multiple_of(2) {
        return;
    }
    let Some(note) = NOTES.get(number as u32 as usize) else { return };
    let appends = u64::from(opened & libc::O_APPEND != 0);
    note.file.store(0, Ordering::SeqCst);
    note.stamp.store(file.stamp(), Ordering::SeqCst);
    note.flags.store(flags_changed, Ordering::SeqCst);
    note.file.store(u64::from(generation) << 32 | (file.slot() as u64) << 1 | appends, Ordering::SeqCst);
}

/// The program closes numbers from one up to another: also that of ours, if it likes.
pub(super) fn closed(from: u64, upto: u64) {
    let openers = OPENERS.load(Ordering::SeqCst);
    if openers != NONE && (from as u32..=upto as u32).contains(&openers.cast_unsigned()) {
        let _ = OPENERS.compare_exchange(openers, NONE, Ordering::SeqCst, Ordering::SeqCst);
    }
}

/// Somebody is about to have this process' memory, or its numbers alone.
pub(super) fn cloned(flags: u64) {
    let has = |flag: i32| flags & u64::from(flag.cast_unsigned()) != 0;
    if has(libc::CLONE_VM)
        && !has(libc::CLONE_THREAD)
        && let Some(face) = face()
    {
        face.own(own::FORKED).store(1, Ordering::SeqCst);
    }
    if has(libc::CLONE_FILES) && !has(libc::CLONE_VM) {
        SHARED.store(1, Ordering::SeqCst);
    }
}

/// The flags of a description are about to be changed to these.
pub(super) fn flags_change(number: u64, flags: u64) {
    let told = (libc::O_APPEND | libc::O_DIRECT | libc::O_DSYNC) as u64;
    let appends =
        NOTES.get(number as u32 as usize).is_some_and(|note| note.file.load(Ordering::SeqCst) & 1 != 0);
    if (flags & told != 0 || appends)
        && let Some(face) = face()
    {
        face.segment.change_flags();
    }
}

/// Whether a message may carry descriptors of exclusive files.
pub(super) fn may_leak() -> bool {
    face().is_some_and(|face| face.segment.exclusives() > 0)
}

/// A change of ours of a file that is locked has left it like this.
pub(super) fn left(file: &File, after: &Stat) {
    file.set_changed(after.changed);
    if file.is_exclusive() {
        file.left(after.size, sys::since_1970());
    }
}

impl Face {
    /// Carries out a write to an exclusive file. `None`: nothing was done, and it is to be done as any other.
    pub(super) fn change_exclusive(&self, call: &Syscall, change: &Change, number: u64) -> Option<Verdict> {
        if self.segment.exclusives() == 0 || self.segment.is_strict() || sys::is_on_behalf() {
            return None;
        }
        let (source, place) = change.written()?;
        let known = Known::of(self.segment, number)?;
        if known.appends && place != WriteOffset::Current {
            // Where that went, only the file's length says.
            return None;
        }
        let me = self.me_at_once()?;
        let file = known.file;
        let logged = self.hold_exclusive(&me, &known)?;
        let fd = number as i32;
        let position = || if place == WriteOffset::Current { sys::position(fd).ok() } else { None };
        if !self.witness(&me, &file) {
            file.unlock();
            return None;
        }
        let size = file.size();
        // Who appends is then behind what was the end.
        let before = if known.appends { position().map(|_| size) } else { position() };
        let value = sys::forward(call);
        let after = position();
        let now = sys::since_1970();
        let complete = match u64::try_from(value) {
            Ok(0) => true,
            // The page cache takes nothing of what is refused; but the file may have grown for it.
            Err(_) => Stat::of(fd).is_ok_and(|after| after.size == size) && known.holds(self.segment),
            Ok(taken) => {
                let around = Around { size: [size; 2], position: [before, after] };
                let offset = offset(place, false, &around, taken);
                file.left(size.max(offset.unwrap_or(0).saturating_add(taken)), now);
                known.holds(self.segment)
                    && offset
                        .is_some_and(|offset| self.log_bytes(&me, &file, source, offset, taken, Mtime(now)))
            }
        };
        if !complete {
            file.end_exclusive();
            file.make_due();
        }
        let last = file.last();
        file.unlock();
        if last != logged && self.segment.is_to_kick(self.log.used()) {
            self.kick();
        }
        Some(Verdict::Return(value))
    }

    /// Absorbs a sync of an exclusive file. `None`: nothing was done, and it is to be done as any other.
    pub(super) fn sync_exclusive(&self, number: u64) -> Option<()> {
        if self.segment.exclusives() == 0 || sys::is_on_behalf() {
            return None;
        }
        let known = Known::of(self.segment, number)?;
        let me = self.me_at_once()?;
        let file = known.file;
        if sys::since_1970() >= file.looked().saturating_add(LOOK_NS) {
            return None;
        }
        let upto = self.hold_exclusive(&me, &known)?;
        let is_alone = self.is_exclusive(&file) && known.holds(self.segment);
        let time = file.time();
        file.unlock();
        if !is_alone || !self.persist(&me, upto) {
            return None;
        }
        if upto > self.log.tail() {
            file.witness(time);
        }
        file.count_absorbed();
        Some(())
    }

    /// Locks an exclusive file whose changes are logged. Gives the index behind its last entry.
    fn hold_exclusive(&self, me: &Me, known: &Known) -> Option<u64> {
        let file = known.file;
        if file.error().is_some() || self.segment.has_failed() {
            return None;
        }
        if file.take(&file.key(), me.owner.number()) != Taken::Held {
            return None;
        }
        // Of a place that was given to another file meanwhile nothing is as it was.
        if Known::of(self.segment, known.number).is_some_and(|now| now.file.slot() == file.slot())
            && file.is_absorbed()
        {
            return Some(file.last());
        }
        file.unlock();
        None
    }

    /// Looks at a file that is locked, before what others may have done counts: at its time, or, if it is exclusive, whether nobody else has written to it and it is as we left it.
    pub(super) fn note(&self, file: &File, now: &Stat, fd: i32) {
        if file.is_exclusive() || file.is_doubted() {
            let is_alone =
                self.is_exclusive(file) || file.is_doubted() && self.asked_exclusive(file, fd, wire::AGAIN);
            if is_alone && now.size == file.size() && now.changed <= file.time() {
                file.set_changed(now.changed);
                file.look(sys::since_1970());
            } else {
                file.end_exclusive();
                file.make_due();
            }
        }
        file.note(now.changed);
    }

    /// Whether a file is exclusive at this moment: nobody has opened one of which the daemon has not read yet.
    fn is_exclusive(&self, file: &File) -> bool {
        let looks = self.segment.looks();
        let openers = OPENERS.load(Ordering::SeqCst);
        if !self.lacks_openers()
            && looks.is_multiple_of(2)
            && sys::readable(openers) == Ok(0)
            && OPENERS.load(Ordering::SeqCst) == openers
            && self.segment.looks() == looks
        {
            return file.is_exclusive();
        }
        // Behind the answer the daemon has read what there was.
        let question = Question { kind: Kind::Look, segment: self.segment.name(), about: self.wanted() };
        let asked = self.ask_for(&question, None, CALL_MS);
        let is_told = asked.as_ref().is_ok_and(|(answer, _)| answer.error == 0);
        asked.into_iter().for_each(|(_, fds)| self.keep_openers(fds));
        if !is_told {
            file.end_exclusive();
        }
        file.is_exclusive()
    }

    /// Whether this process does not see who opens exclusive files.
    fn lacks_openers(&self) -> bool {
        OPENERS.load(Ordering::SeqCst) == NONE || OPENERS_OF.load(Ordering::SeqCst) != self.segment.name()
    }

    /// Whether it wants to.
    fn wanted(&self) -> u64 {
        let wants = self.lacks_openers() && HAD.load(Ordering::SeqCst) < TIMES;
        if wants { wire::OPENERS } else { 0 }
    }

    /// Has the daemon say whether a file, whose lock we have, is exclusive.
    fn asked_exclusive(&self, file: &File, fd: i32, about: u64) -> bool {
        let about = about | self.wanted();
        let question = Question { kind: Kind::Exclusive, segment: self.segment.name(), about };
        let asked = self.ask_for(&question, Some(fd), CALL_MS);
        asked.into_iter().for_each(|(_, fds)| self.keep_openers(fds));
        file.is_exclusive()
    }

    /// A sync of a file was absorbed: it may be exclusive from now on, if that is worth a question.
    pub(super) fn try_exclusive(&self, me: &Me, file: &File, stat: &Stat, fd: i32) {
        let is_possible = stat.is_regular() && !self.segment.is_strict() && !sys::is_on_behalf();
        if !is_possible
            || file.is_exclusive()
            || file.is_doubted()
            || !file.is_to_try()
            || self.segment.is_silent()
        {
            return;
        }
        if self.lacks_openers() && self.wanted() == 0 || self.segment.is_leaked(&stat.key) {
            return;
        }
        if file.take_within(&stat.key, me.owner.number(), 0) != Taken::Held {
            return;
        }
        self.asked_exclusive(file, fd, 0);
        // Who has changed it before it was watched has left another time.
        match Stat::of(fd) {
            Ok(now) if file.is_absorbed() && now.changed == file.changed() => {
                let time = sys::since_1970();
                file.left(now.size, time);
                file.look(time);
            }
            _ => file.end_exclusive(),
        }
        file.unlock();
    }

    /// Keeps the descriptor that tells of openers, if one has come, under a number that programs do not come to.
    fn keep_openers(&self, [fd, others @ ..]: [i32; 3]) {
        others.into_iter().filter(|fd| *fd >= 0).for_each(sys::close);
        if fd < 0 {
            return;
        }
        let high = sys::put_high(fd);
        sys::close(fd);
        let Ok(high) = high else {
            HAD.store(TIMES, Ordering::SeqCst);
            return;
        };
        HAD.fetch_add(1, Ordering::SeqCst);
        let before = OPENERS.swap(NONE, Ordering::SeqCst);
        OPENERS_OF.store(self.segment.name(), Ordering::SeqCst);
        OPENERS.store(high, Ordering::SeqCst);
        if before != NONE {
            sys::close(before);
        }
    }

    /// What this process keeps open when it executes another program, or was started with, may be had by somebody whose calls nobody sees.
    pub(super) fn leak_descriptors(&self, is_start: bool) {
        let mut each = |fd: i32| {
            if (is_start || sys::stays_at_exec(fd) == Some(true)) && sys::flags(fd).is_ok_and(is_writable) {
                self.leak(fd);
            }
        };
        if sys::descriptors(&mut each).is_err() {
            (0..NUMBERS as i32).for_each(each);
        }
    }

    /// A descriptor is about to be somebody else's as well.
    pub(super) fn leak(&self, fd: i32) {
        if let Ok(stat) = Stat::of(fd)
            && stat.is_regular()
        {
            self.segment.leak(&stat.key);
        }
    }

    /// The descriptors that a message carries.
    pub(super) fn leak_message(&self, message: u64) {
        const CONTROL_AT: u64 = 32;
        const HEAD: usize = 16;
        const WORDS: u64 = 256;
        let Some([at, len]) = sys::peek::<2>(message.wrapping_add(CONTROL_AT)) else { return };
        let mut bytes = Vec::new();
        for n in 0..len.div_ceil(8).min(WORDS) {
            let Some([word]) = sys::peek::<1>(at.wrapping_add(n * 8)) else { break };
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        let word = |bytes: &[u8], at: usize| {
            bytes.get(at..at + 4).map(|four| i32::from_le_bytes([four[0], four[1], four[2], four[3]]))
        };
        let mut left = &bytes[..];
        while let (Some(len), Some(level), Some(kind)) = (word(left, 0), word(left, 8), word(left, 12)) {
            let len = usize::try_from(len).unwrap_or(0).min(left.len());
            if len < HEAD {
                break;
            }
            if (level, kind) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                (HEAD..len).step_by(4).filter_map(|at| word(left, at)).for_each(|fd| self.leak(fd));
            }
            left = &left[len.next_multiple_of(8).min(left.len())..];
        }
    }
}

fn is_writable(flags: i32) -> bool {
    flags & libc::O_PATH == 0 && flags & libc::O_ACCMODE != libc::O_RDONLY
}
