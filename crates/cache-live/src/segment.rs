//! What the daemon and all programs share: the log's words, who is there, and of each file whether its syncs may be absorbed. A directory is a file like others, whose
//! content is names.
//!
//! It is a table of 64-bit words, and nothing else is ever read from it: whatever is written there, by whomever, no access leaves its bounds, and
//! no loop is longer than it is.
//!
//! **A file's syncs are absorbed** while everything that changed since it was last synced is in the log. For each file there is a *lock*, which whoever
//! changes it through the log holds from before the kernel's call until the entry is committed; so the order of the log is that of the page
//! cache. What goes around the log is found by the file's *time of change*: the kernel sets it with each change of content or attributes, and nobody can
//! set it back. It is looked at before each change and each sync: another one than our last change left means that somebody else was there.
//! Then syncs are *due*, which the kernel carries out, and nothing is logged until they were.
//!
//! **Of an exclusive file no time is kept** (`face/exclusive.rs`): nobody but programs of ours has it open, and who opens it from then on is told by the kernel before he can change it. Its length is kept, and when it was
//! changed last at the latest.
//!
//! | word | who changes it |
//! |---|---|
//! | key | who has the table's places to himself, while nobody finds the slot |
//! | lock | whoever takes it; the daemon breaks that of a process that died |
//! | marks | whoever changes the file without the lock, before and after: it is only counted up |
//! | why | anybody, and bits are only added: for good |
//! | exclusive | the daemon; anybody ends it |
//! | all others | who has the lock |
//!
//! **Who makes a file** takes its place in the table himself, and one of the log's numbers that the daemon has left there for that ([`make_file`](Segment::make_file)): so nobody asks the daemon for a file that is gone a moment later. It
//! [hears](Segment::made) of all of them at once, before it does anything that is about one. One at a time has the places to himself, from the look for one that is free until it can be found; for others
//! that is no wait: a program asks the daemon instead, and where a program was stopped there the daemon says that it cannot. Who has died over it has made nothing ([`places_left`](Segment::places_left)).

mod exclusive;

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::{AtomicU64, Ordering};

use remanence_cache::words::{Word, Words};

use crate::sys;

/// What a segment begins with: a name and a version.
const MAGIC: u64 = u64::from_le_bytes(*b"REMCSEG4");
/// How many processes can be there at a time.
pub(crate) const CLIENTS: usize = 4096;
/// How many files the table has room for: a power of two.
pub(crate) const FILES: usize = 2048;
/// A file is at one of so many places behind the one that its hash says.
const PROBES: usize = 64;

const LOG_AT: usize = 64;
const LEAKED_AT: usize = 128;
const LEAKED_WORDS: usize = 64;
const CLIENTS_AT: usize = LEAKED_AT + LEAKED_WORDS;
const CLIENT_WORDS: usize = 8;
const FILES_AT: usize = CLIENTS_AT + CLIENTS * CLIENT_WORDS;
const FILE_WORDS: usize = 32;
/// How many numbers can be left for files that programs make.
pub(crate) const SPARES: usize = 128;
const SPARES_AT: usize = FILES_AT + FILES * FILE_WORDS;
/// A number is free; or that of a file, in the slot that the word says above it.
const FREE: u64 = 1 << 62;
const MADE: u64 = 1 << 63;
/// Words of a segment.
pub(crate) const WORDS: usize = SPARES_AT + SPARES;
/// Bytes of it.
pub(crate) const LEN: u64 = WORDS as u64 * 8;

/// What the segment of a log's daemon is called in the [directory](crate::memory) of its user, by what the log's file is.
pub(crate) fn name_of(log: &Metadata) -> String {
    format!("{:x}-{:x}", log.dev(), log.ino())
}

/// The owner that a lock of the daemon's has.
pub(crate) const DAEMON: u32 = 0xff_ffff;
const OWNER: u64 = 0xff_ffff;
/// Somebody sleeps on the lock.
const WAITERS: u64 = 1 << 30;
/// Somebody has waited for as long as anybody does: nobody else need.
const STUCK: u64 = 1 << 31;
/// How often a daemon that is silent is called.
const CALL_NS: u64 = 1_000_000_000;
/// How long somebody waits for a file that another one has.
pub(crate) const LOCK_MS: u64 = 10_000;

/// What a file is known by.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Key {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) born: u64,
}

impl Key {
    fn place(&self) -> usize {
        let mixed = (self.inode ^ self.device.rotate_left(32) ^ self.born.rotate_left(17))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 32) as usize % FILES
    }
}

/// Why the syncs of a file are the kernel's for good, each a bit.
pub(crate) mod why {
    /// It is mapped by somebody who may write there.
    pub(crate) const MAPPED: u64 = 1;
    /// It is written by requests that run on when their call has returned.
    pub(crate) const ASYNCHRONOUS: u64 = 2;
    /// The user does not want it to be cached, or cannot have it.
    pub(crate) const EXCLUDED: u64 = 4;
    /// The daemon cannot open it again for reading.
    pub(crate) const UNREADABLE: u64 = 8;
    /// The log has no number left for it.
    pub(crate) const FULL: u64 = 16;
    /// The daemon has ended.
    pub(crate) const ENDED: u64 = 32;
    /// A sync of it has failed.
    pub(crate) const FAILED: u64 = 64;
    /// It is a directory in which two names can be one.
    pub(crate) const FOLDED: u64 = 128;

    /// The bits, said.
    pub(crate) const SAID: [(u64, &str); 8] = [
        (MAPPED, "it is mapped, and may be written there"),
        (ASYNCHRONOUS, "it is written by io_submit"),
        (EXCLUDED, "its path is excluded"),
        (UNREADABLE, "it cannot be opened for reading"),
        (FULL, "the log has no number left for it"),
        (ENDED, "the daemon has ended"),
        (FAILED, "a sync of it has failed"),
        (FOLDED, "its names are not told apart by their case"),
    ];
}

/// A count of the whole segment.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Count {
    /// Changes that were logged.
    Changes = 8,
    /// Bytes of those that were writes.
    Bytes = 9,
    /// Syncs that were absorbed.
    Absorbed = 10,
    /// Syncs of regular files that the kernel carried out.
    Kernel = 11,
    /// Times that a change waited for room in the log.
    Waits = 12,
    /// Changes that could not be logged, as there was no room or the log had failed.
    Refused = 13,
    /// Questions that the daemon was asked.
    Questions = 14,
}

/// All that is shared. Copies are the same.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment(&'static [AtomicU64]);

const NAME: usize = 1;
const FAILED: usize = 2;
const SPACE: usize = 3;
const KICKED: usize = 4;
const BATCH: usize = 5;
/// Since when the daemon is silent, and when it was called last; 0 where it is not.
const SILENT: usize = 6;
const CALLED: usize = 7;
/// What is asked of the copier, if the log is copied: how often, up to where, and which tail is to be known.
const ASKED: usize = 16;
const ASKED_UPTO: usize = 17;
const ASKED_TAIL: usize = 18;
/// The tail that the copies are known to have; 0 where there are none.
const COPIED_TAIL: usize = 19;
/// Whether images of files are kept beside the copies, how often files are to be looked at for that, and up to which time they were.
const IMAGES: usize = 20;
const ASKED_LOOK: usize = 21;
const LOOKED: usize = 22;
/// How many places of processes there ever were at a time.
const PLACES: usize = 23;
/// Whether nothing is logged now, as somebody wants all that was promised to be in the files; and whether nothing ever is any more, as the daemon has ended.
const FROZEN: usize = 24;
const RETIRED: usize = 25;
/// Whether each change is to be durable when it returns.
const STRICT: usize = 26;
/// Whether the daemon is to hear of the next change.
const LISTENS: usize = 27;
/// Whose turn it is to sync the log, and up to where somebody has asked for that.
const TURN: usize = 28;
const SYNC_UPTO: usize = 29;
/// How many files are exclusive; how often the daemon has begun or ended to look who has opened one, which is odd while it looks.
const EXCLUSIVES: usize = 34;
const DAEMON_LOOKS: usize = 31;
/// How many files there were; how often somebody has changed the flags of a description.
const STAMPS: usize = 32;
const FLAGS: usize = 33;

/// Who has the places of the table to himself.
const TABLE: usize = 30;
/// How often somebody looks whether he can have them.
const LOOKS: u32 = 4000;

/// Somebody has the turn.
const TAKEN: u64 = 1;
/// Somebody sleeps until it is given back.
const AWAITED: u64 = 2;
/// What the number of a turn counts by.
const NEXT: u64 = 4;
/// How long a turn is waited for: who has it may have been killed, or stopped.
pub(crate) const TURN_MS: u64 = 20;

impl Segment {
    /// That of these words; `None` if there are too few.
    pub(crate) fn of(words: &'static [AtomicU64]) -> Option<Self> {
        (words.len() >= WORDS).then_some(Self(words))
    }

    /// Whether it was made by this release.
    pub(crate) fn is_ours(self) -> bool {
        self.word(0).load(Ordering::Acquire) == MAGIC
    }

    /// Makes one of words that are zeros.
    pub(crate) fn make(self, name: u64, batch: u64) {
        self.word(NAME).store(name, Ordering::Release);
        self.word(BATCH).store(batch, Ordering::Release);
        self.word(0).store(MAGIC, Ordering::Release);
    }

    fn word(self, at: usize) -> &'static AtomicU64 {
        &self.0[at % WORDS]
    }

    /// What tells it from one of another daemon.
    pub(crate) fn name(self) -> u64 {
        self.word(NAME).load(Ordering::Acquire)
    }

    /// The log's medium has failed for one of those who use it, and so for all.
    pub(crate) fn fail(self) {
        self.word(FAILED).store(1, Ordering::SeqCst);
    }

    pub(crate) fn has_failed(self) -> bool {
        self.word(FAILED).load(Ordering::SeqCst) != 0
    }

    /// The word that changes when entries are freed.
    pub(crate) fn space(self) -> &'static AtomicU64 {
        self.word(SPACE)
    }

    /// Entries were freed.
    pub(crate) fn freed(self) {
        self.space().fetch_add(1, Ordering::SeqCst);
        sys::wake(self.space());
    }

    /// The log has copies, whose tail is this: nothing is durable before they have it.
    pub(crate) fn copied_tail(self, tail: u64) {
        self.word(COPIED_TAIL).fetch_max(tail, Ordering::SeqCst);
        sys::wake(self.word(COPIED_TAIL));
    }

    /// Whether it has.
    pub(crate) fn is_copied(self) -> bool {
        self.word(COPIED_TAIL).load(Ordering::SeqCst) != 0
    }

    /// What is committed below is durable in the log's copies.
    pub(crate) fn copied_upto(self) -> u64 {
        self.log().load(Word::Copied)
    }

    /// The same, said.
    pub(crate) fn copied(self, upto: u64) {
        self.log().raise(Word::Copied, upto);
        sys::wake(self.log().at(Word::Copied));
    }

    /// The word that changes when something is asked of the copier.
    pub(crate) fn asked(self) -> &'static AtomicU64 {
        self.word(ASKED)
    }

    /// Up to where all is to be copied, and which tail is to be known.
    pub(crate) fn asked_to_copy(self) -> (u64, u64) {
        let [upto, tail] = [ASKED_UPTO, ASKED_TAIL].map(|at| self.word(at).load(Ordering::SeqCst));
        (upto, tail)
    }

    /// Wakes the copier.
    pub(crate) fn ask_to_copy(self) {
        self.word(ASKED).fetch_add(1, Ordering::SeqCst);
        sys::wake(self.word(ASKED));
    }

    /// Waits until what is committed below an index is copied, or for so many milliseconds. Whether it is.
    pub(crate) fn wait_copied(self, upto: u64, milliseconds: u64) -> bool {
        self.word(ASKED_UPTO).fetch_max(upto, Ordering::SeqCst);
        self.wait_asked(self.log().at(Word::Copied), upto, milliseconds)
    }

    /// The same until the copies know that all below a tail is in its files.
    pub(crate) fn wait_copied_tail(self, tail: u64, milliseconds: u64) -> bool {
        self.word(ASKED_TAIL).fetch_max(tail, Ordering::SeqCst);
        self.wait_asked(self.word(COPIED_TAIL), tail, milliseconds)
    }

    /// Images of files are kept: what the kernel has synced counts when the servers have it.
    pub(crate) fn keep_images(self) {
        self.word(IMAGES).store(1, Ordering::SeqCst);
    }

    pub(crate) fn keeps_images(self) -> bool {
        self.word(IMAGES).load(Ordering::SeqCst) != 0
    }

    /// Nobody keeps any from now on, and nobody is waited for.
    pub(crate) fn end_images(self) {
        self.word(IMAGES).store(0, Ordering::SeqCst);
        self.looked(u64::MAX);
    }

    /// Has files looked at, as names or what is not logged may have changed. Which time it is.
    pub(crate) fn ask_to_look(self) -> u64 {
        let time = self.word(ASKED_LOOK).fetch_add(1, Ordering::SeqCst) + 1;
        self.ask_to_copy();
        time
    }

    /// How often that was asked for.
    pub(crate) fn asked_to_look(self) -> u64 {
        self.word(ASKED_LOOK).load(Ordering::SeqCst)
    }

    /// The servers have what files were like when that was asked for so often.
    pub(crate) fn looked(self, time: u64) {
        self.word(LOOKED).fetch_max(time, Ordering::SeqCst);
        sys::wake(self.word(LOOKED));
    }

    /// Has files looked at, and waits until the servers have what they lacked, or for so many milliseconds. Whether they have.
    pub(crate) fn wait_looked(self, milliseconds: u64) -> bool {
        let time = self.ask_to_look();
        self.wait_asked(self.word(LOOKED), time, milliseconds) && !self.has_failed()
    }

    fn wait_asked(self, word: &AtomicU64, least: u64, milliseconds: u64) -> bool {
        if word.load(Ordering::SeqCst) >= least {
            return true;
        }
        self.ask_to_copy();
        let until = sys::monotonic().saturating_add(milliseconds * 1_000_000);
        loop {
            let seen = word.load(Ordering::SeqCst);
            let now = sys::monotonic();
            if seen >= least || self.has_failed() || now >= until {
                return seen >= least;
            }
            // A failure wakes nobody who looked just before: it is looked for now and then.
            sys::wait(word, seen as u32, (until - now).div_ceil(1_000_000).min(100));
        }
    }

    /// Waits until all below an index is durable, for which one of those who wait syncs the log for all: `sync`, which is told up to where somebody has
    /// asked. A disk takes as long for the entries of several as for those of one. Who has waited for so many milliseconds takes the turn away, which does no
    /// harm: two that sync at a time are as good as one behind the other.
    pub(crate) fn sync_in_turn(
        self,
        upto: u64,
        milliseconds: u64,
        mut sync: impl FnMut(u64) -> bool,
    ) -> bool {
        self.word(SYNC_UPTO).fetch_max(upto, Ordering::SeqCst);
        let word = self.word(TURN);
        let until = sys::monotonic().saturating_add(milliseconds * 1_000_000);
        loop {
            if self.has_failed() || self.log().load(Word::Durable) >= upto {
                return !self.has_failed();
            }
            let turn = word.load(Ordering::SeqCst);
            let left = until.saturating_sub(sys::monotonic());
            let swap = |to| word.compare_exchange(turn, to, Ordering::SeqCst, Ordering::SeqCst).is_ok();
            if turn & TAKEN != 0 && left > 0 {
                if turn & AWAITED != 0 || swap(turn | AWAITED) {
                    sys::wait(word, (turn | AWAITED) as u32, left.div_ceil(1_000_000));
                }
            } else if swap(turn.wrapping_add(NEXT) | TAKEN) {
                let done = sync(self.word(SYNC_UPTO).load(Ordering::SeqCst));
                self.give_back(turn.wrapping_add(NEXT) | TAKEN);
                return done;
            }
        }
    }

    /// Ends a turn, if nobody has taken it away.
    fn give_back(self, turn: u64) {
        let word = self.word(TURN);
        let ended = word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |now| {
            (now | AWAITED == turn | AWAITED).then_some(now & !(TAKEN | AWAITED))
        });
        if ended.is_ok_and(|was| was & AWAITED != 0) {
            sys::wake(word);
        }
    }

    /// Whether the caller is to tell the daemon that there is work.
    pub(crate) fn is_to_kick(self, used: u64) -> bool {
        let listens = self.word(LISTENS);
        let is_heard = listens.load(Ordering::SeqCst) != 0 && listens.swap(0, Ordering::SeqCst) != 0;
        (is_heard || used >= self.word(BATCH).load(Ordering::Relaxed).max(1)) && self.kick()
    }

    /// Whoever changes something next tells the daemon, or need not.
    pub(crate) fn listen(self, listens: bool) {
        self.word(LISTENS).store(listens.into(), Ordering::SeqCst);
    }

    /// Whether the daemon is to be told: nobody has, since it had nothing to do. As long as it has, it looks for more by itself.
    pub(crate) fn kick(self) -> bool {
        self.word(KICKED).swap(1, Ordering::SeqCst) == 0
    }

    /// The daemon has nothing to do but what it finds from now on; or could not be told.
    pub(crate) fn kicked(self) {
        self.word(KICKED).store(0, Ordering::SeqCst);
    }

    /// Somebody has waited in vain for an answer of the daemon: nobody else need, until it is heard of again.
    pub(crate) fn silent(self, now: u64) {
        self.word(CALLED).store(now, Ordering::SeqCst);
        self.word(SILENT).store(now.max(1), Ordering::SeqCst);
    }

    /// The daemon does something.
    pub(crate) fn heard(self) {
        if self.is_silent() {
            self.word(SILENT).store(0, Ordering::SeqCst);
        }
    }

    pub(crate) fn is_silent(self) -> bool {
        self.word(SILENT).load(Ordering::SeqCst) != 0
    }

    /// Whether the caller is to call the daemon, without a wait for its answer: somebody does so now and then, as it may have gone on just before it was said to be
    /// silent.
    pub(crate) fn is_to_call(self, now: u64) -> bool {
        let word = self.word(CALLED);
        let last = word.load(Ordering::SeqCst);
        now.saturating_sub(last) >= CALL_NS
            && word.compare_exchange(last, now, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    pub(crate) fn count(self, what: Count, by: u64) {
        self.word(what as usize).fetch_add(by, Ordering::Relaxed);
    }

    pub(crate) fn counted(self, what: Count) -> u64 {
        self.word(what as usize).load(Ordering::Relaxed)
    }

    /// The log's words.
    pub(crate) const fn log(self) -> SegmentWords {
        SegmentWords(self)
    }

    /// A process' place.
    pub(crate) fn client(self, slot: usize) -> Client {
        Client(self, CLIENTS_AT + slot % CLIENTS * CLIENT_WORDS)
    }

    /// There are so many places of processes, before the last of them is anybody's.
    pub(crate) fn places(self, count: usize) {
        self.word(PLACES).fetch_max(count as u64, Ordering::SeqCst);
    }

    /// Nothing is logged from now on, until it is thawed: all syncs are the kernel's.
    pub(crate) fn freeze(self, is_frozen: bool) {
        self.word(FROZEN).store(is_frozen.into(), Ordering::SeqCst);
    }

    pub(crate) fn is_frozen(self) -> bool {
        self.word(FROZEN).load(Ordering::SeqCst) != 0
    }

    /// Each change is durable when it returns, whoever syncs.
    pub(crate) fn be_strict(self) {
        self.word(STRICT).store(1, Ordering::SeqCst);
    }

    pub(crate) fn is_strict(self) -> bool {
        self.word(STRICT).load(Ordering::Relaxed) != 0
    }

    /// Nothing is logged by it any more: its daemon has ended, or another one has the log.
    pub(crate) fn retire(self) {
        self.word(RETIRED).store(1, Ordering::SeqCst);
    }

    pub(crate) fn is_retired(self) -> bool {
        self.word(RETIRED).load(Ordering::SeqCst) != 0
    }

    /// Whether no change of a file without a slot is under way, at some moment after the call: a few turns are waited for that.
    pub(crate) fn is_quiet(self) -> bool {
        let places = self.word(PLACES).load(Ordering::SeqCst).min(CLIENTS as u64) as usize;
        (0..places).all(|slot| {
            let unlogged = self.client(slot).unlogged();
            (0..200).any(|turn| {
                if turn > 0 {
                    sys::yield_now();
                }
                unlogged.load(Ordering::SeqCst) == 0
            })
        })
    }

    /// Waits until each file that somebody has now was given back once, and changes of files without a slot have ended as [`is_quiet`](Self::is_quiet) says; for so
    /// many milliseconds at most. Who has a file for one change after the other gives it back between them, and that is looked for without a pause.
    pub(crate) fn wait_changes(self, milliseconds: u64) {
        let until = sys::monotonic().saturating_add(milliseconds * 1_000_000);
        for file in (0..FILES).map(|slot| self.file(slot)) {
            let holder = file.holder();
            for turn in 1_u32.. {
                if holder == 0 || file.holder() != holder {
                    break;
                }
                match turn % 256 {
                    0 if sys::monotonic() >= until => return,
                    0 => sys::yield_now(),
                    _ => std::hint::spin_loop(),
                }
            }
        }
        self.is_quiet();
    }

    /// A file's place.
    pub(crate) fn file(self, slot: usize) -> File {
        File(self, FILES_AT + slot % FILES * FILE_WORDS)
    }

    /// The file of a key, if it is known. By the time that it is locked the slot can be another's.
    pub(crate) fn find(self, key: &Key) -> Option<File> {
        for n in 0..PROBES {
            let file = self.file(key.place() + n);
            match file.state().load(Ordering::SeqCst) {
                File::NONE => return None,
                File::LIVE if file.is(key) => return Some(file),
                _ => {}
            }
        }
        None
    }

    /// Has the places of the table to itself for a moment. `None`: somebody else has, and does not go on.
    fn with_places<T>(self, owner: u32, change: impl FnOnce() -> Option<T>) -> Option<T> {
        let word = self.word(TABLE);
        let is_mine = (0..LOOKS).any(|look| {
            let taken = word.compare_exchange(0, owner.into(), Ordering::SeqCst, Ordering::SeqCst);
            match look % 64 {
                _ if taken.is_ok() => {}
                63 => sys::yield_now(),
                _ => std::hint::spin_loop(),
            }
            taken.is_ok()
        });
        let changed = is_mine.then(change)?;
        word.store(0, Ordering::SeqCst);
        changed
    }

    /// A place for a file that has none. `None`: it has one by now, or there is none left.
    fn place_for(self, key: &Key) -> Option<File> {
        let places = (0..PROBES).map(|n| self.file(key.place() + n));
        let is_known = places.clone().any(|file| file.is_live() && file.is(key));
        places.filter(|_| !is_known).find(|file| !file.is_live())
    }

    /// Makes a place for a file that has none: the daemon's alone. `None`: it has one by now, there is none left, or none to be had now.
    pub(crate) fn insert(self, key: &Key, first: &First) -> Option<usize> {
        self.with_places(DAEMON, || {
            let file = self.place_for(key)?;
            file.begin(key, first, true);
            Some(file.slot())
        })
    }

    /// Makes a place for a file that its maker has just made, who has its lock then, and gives it one of the numbers that the daemon has left. `name` says durably in the log what that number means, before anybody
    /// can find the file. `None`: nothing was done, and the daemon is to be asked.
    pub(crate) fn make_file(
        self,
        key: &Key,
        owner: u32,
        changed: u64,
        name: impl FnOnce(u32) -> bool,
    ) -> Option<File> {
        self.with_places(owner, || {
            let file = self.place_for(key)?;
            let (at, free) = self.spares().find(|(_, word)| word & FREE != 0)?;
            let id = free as u32;
            if !name(id) || !file.lock(owner, 0) {
                return None;
            }
            let made = MADE | (file.slot() as u64) << 32 | u64::from(id);
            if at.compare_exchange(free, made, Ordering::SeqCst, Ordering::SeqCst).is_err() {
                // The daemon ends.
                file.unlock();
                return None;
            }
            file.begin(key, &First { id, why: 0, due: 1, changed }, false);
            Some(file)
        })
    }

    fn spares(self) -> impl Iterator<Item = (&'static AtomicU64, u64)> {
        (0..SPARES).map(move |n| {
            let at = self.word(SPARES_AT + n);
            (at, at.load(Ordering::SeqCst))
        })
    }

    /// Leaves numbers for files that programs make, as many as `numbers` gives of those that there is room for, if half of them are gone: the daemon's alone.
    pub(crate) fn leave_spares(self, numbers: impl FnOnce(usize) -> Vec<u32>) {
        let room: Vec<&AtomicU64> =
            self.spares().filter_map(|(at, word)| (word == 0).then_some(at)).collect();
        if room.len() >= SPARES / 2 {
            for (at, number) in room.iter().zip(numbers(room.len())) {
                at.store(FREE | u64::from(number), Ordering::SeqCst);
            }
        }
    }

    /// Takes all of them back: no file is made any more but by who is at it.
    pub(crate) fn take_spares(self) {
        for (at, word) in self.spares().filter(|(_, word)| word & FREE != 0) {
            let _ = at.compare_exchange(word, 0, Ordering::SeqCst, Ordering::SeqCst);
        }
    }

    /// Whether there are any.
    pub(crate) fn has_spares(self) -> bool {
        self.spares().any(|(_, word)| word & FREE != 0)
    }

    /// Whether half of them are gone, and the daemon does not know.
    pub(crate) fn lacks_spares(self) -> bool {
        self.word(SPARES_AT + SPARES / 2).load(Ordering::SeqCst) & MADE != 0
    }

    /// The files that were made since this was asked last, and their numbers: the daemon's alone.
    pub(crate) fn made(self) -> Vec<(File, u32)> {
        let made = self.spares().filter(|(_, word)| word & MADE != 0).filter_map(|(at, word)| {
            let (file, id) = (self.file((word >> 32) as usize % FILES), word as u32);
            // If not, somebody is at it.
            (file.is_live() && file.id() == id).then(|| {
                at.store(0, Ordering::SeqCst);
                file.set(File::UNHEARD, 0);
                (file, id)
            })
        });
        made.collect()
    }

    /// A process died. If it had the places to itself, the number that it had just taken is free again.
    pub(crate) fn places_left(self, owner: u32) {
        let word = self.word(TABLE);
        if word.load(Ordering::SeqCst) != u64::from(owner) {
            return;
        }
        for (at, word) in self.spares().filter(|(_, word)| word & MADE != 0) {
            let (file, id) = (self.file((word >> 32) as usize % FILES), word as u32);
            if !(file.is_live() && file.id() == id) {
                at.store(FREE | u64::from(id), Ordering::SeqCst);
            }
        }
        // The lock of a place that was not filled yet, too.
        for slot in 0..FILES {
            self.file(slot).break_lock(owner);
        }
        word.store(0, Ordering::SeqCst);
    }

    /// Takes a file's place away: the daemon's alone, who has its lock. `false`: somebody has just said why it is not absorbed for good, or is making a file, and it
    /// stays.
    pub(crate) fn remove(self, slot: usize) -> bool {
        let removed = self.with_places(DAEMON, || {
            let file = self.file(slot);
            let said = file.why();
            file.state().store(File::GONE, Ordering::SeqCst);
            if file.why() != said {
                file.state().store(File::LIVE, Ordering::SeqCst);
                return None;
            }
            if self.file(slot + 1).state().load(Ordering::SeqCst) == File::NONE {
                file.state().store(File::NONE, Ordering::SeqCst);
            }
            Some(())
        });
        removed.is_some()
    }
}

/// How a file's place begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct First {
    pub(crate) id: u32,
    pub(crate) why: u64,
    pub(crate) due: u64,
    pub(crate) changed: u64,
}

/// A process' place in a segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Client(Segment, usize);

impl Client {
    pub(crate) fn owner(self) -> &'static AtomicU64 {
        self.0.word(self.1)
    }

    pub(crate) fn process(self) -> &'static AtomicU64 {
        self.0.word(self.1 + 1)
    }

    /// How many changes of files without a slot are under way.
    pub(crate) fn unlogged(self) -> &'static AtomicU64 {
        self.0.word(self.1 + 2)
    }
}

/// A file's place in a segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct File(Segment, usize);

impl File {
    const NONE: u64 = 0;
    const LIVE: u64 = 1;
    const GONE: u64 = 2;

    const LOCK: usize = 4;
    const ID: usize = 5;
    const WHY: usize = 6;
    const DUE: usize = 7;
    const CHANGED: usize = 8;
    const LAST: usize = 9;
    const MARKS: usize = 10;
    const SEEN: usize = 11;
    const ERROR: usize = 12;
    const ABSORBED: usize = 13;
    const KERNEL: usize = 14;
    const BYTES: usize = 15;
    const NAMELESS: usize = 16;
    const WITNESSED: usize = 17;
    const SETTLED: usize = 18;
    /// A program has made it, and the daemon has not heard of it.
    const UNHEARD: usize = 19;
    /// Times tell files apart that have the same inode one after the other.
    const FINE: usize = 20;
    const STAMP: usize = 23;

    /// Fills its place, for who has the places to himself; from then on it is found. `is_heard`: by the daemon.
    fn begin(self, key: &Key, first: &First, is_heard: bool) {
        for (at, value) in [(1, key.device), (2, key.inode), (3, key.born)] {
            self.set(at, value);
        }
        (5..FILE_WORDS).for_each(|at| self.set(at, 0));
        self.set(Self::ID, first.id.into());
        self.set(Self::WHY, first.why);
        self.set(Self::DUE, first.due);
        self.set(Self::CHANGED, first.changed);
        self.set(Self::UNHEARD, (!is_heard).into());
        // No two files have the same, also not those of two segments, whose names are random.
        let stamp = self.0.name().wrapping_add(self.0.word(STAMPS).fetch_add(1, Ordering::SeqCst));
        self.set(Self::STAMP, stamp);
        self.state().store(Self::LIVE, Ordering::SeqCst);
    }

    /// Which of all slots it is.
    pub(crate) const fn slot(self) -> usize {
        (self.1 - FILES_AT) / FILE_WORDS
    }

    /// No inode in this directory has the time of birth of one before it.
    pub(crate) fn set_fine(self) {
        self.set(Self::FINE, 1);
    }

    /// Whether the daemon has said so.
    pub(crate) fn is_fine(self) -> bool {
        self.get(Self::FINE) != 0
    }

    /// Whether the daemon has not heard of it yet.
    pub(crate) fn is_unheard(self) -> bool {
        self.get(Self::UNHEARD) != 0
    }

    fn word(self, at: usize) -> &'static AtomicU64 {
        self.0.word(self.1 + at)
    }

    fn state(self) -> &'static AtomicU64 {
        self.word(0)
    }

    pub(crate) fn is_live(self) -> bool {
        self.state().load(Ordering::SeqCst) == Self::LIVE
    }

    fn get(self, at: usize) -> u64 {
        self.word(at).load(Ordering::SeqCst)
    }

    fn set(self, at: usize, value: u64) {
        self.word(at).store(value, Ordering::SeqCst);
    }

    pub(crate) fn key(self) -> Key {
        Key { device: self.get(1), inode: self.get(2), born: self.get(3) }
    }

    fn is(self, key: &Key) -> bool {
        self.key() == *key
    }

    /// Takes the lock, if that is to be had within a time.
    pub(crate) fn lock(self, owner: u32, milliseconds: u64) -> bool {
        let word = self.word(Self::LOCK);
        let mut until = None;
        for turn in 0_u32.. {
            match word.compare_exchange(0, owner.into(), Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return true,
                Err(held) if held & STUCK != 0 => return false,
                Err(_) if turn < 100 => std::hint::spin_loop(),
                Err(held) => {
                    let now = sys::monotonic();
                    let until = *until.get_or_insert(now.saturating_add(milliseconds * 1_000_000));
                    if now >= until {
                        let stuck = held | STUCK;
                        if milliseconds >= LOCK_MS {
                            // If it is another one's by now, that one has just begun.
                            let _ = word.compare_exchange(held, stuck, Ordering::SeqCst, Ordering::SeqCst);
                        }
                        return false;
                    }
                    let waits = held | WAITERS;
                    let told = held == waits
                        || word.compare_exchange(held, waits, Ordering::SeqCst, Ordering::SeqCst).is_ok();
                    if told {
                        sys::wait(word, waits as u32, (until - now).div_ceil(1_000_000).min(100));
                    }
                }
            }
        }
        false
    }

    pub(crate) fn unlock(self) {
        let word = self.word(Self::LOCK);
        if word.swap(0, Ordering::SeqCst) & WAITERS != 0 {
            sys::wake(word);
        }
    }

    /// Who has the lock; 0 is nobody.
    pub(crate) fn holder(self) -> u32 {
        (self.get(Self::LOCK) & OWNER) as u32
    }

    /// Breaks the lock of a process that died: what it had begun is in the page cache, and may not be in the log. Whether it had it.
    pub(crate) fn break_lock(self, owner: u32) -> bool {
        let had = self.holder() == owner;
        if had {
            self.mark();
            self.unlock();
        }
        had
    }

    /// Locks a file that was found, if it is still this one.
    pub(crate) fn take(self, key: &Key, owner: u32) -> Taken {
        self.take_within(key, owner, LOCK_MS)
    }

    /// The same, for who waits as long as that.
    pub(crate) fn take_within(self, key: &Key, owner: u32, milliseconds: u64) -> Taken {
        if !self.lock(owner, milliseconds) {
            return Taken::Busy;
        }
        if self.is_live() && self.is(key) {
            return Taken::Held;
        }
        self.unlock();
        Taken::Gone
    }

    /// The file was changed, or is about to be, by somebody who has not its lock.
    pub(crate) fn mark(self) {
        self.word(Self::MARKS).fetch_add(1, Ordering::SeqCst);
    }

    /// Its syncs are the kernel's from now on.
    pub(crate) fn refuse(self, why: u64) {
        self.word(Self::WHY).fetch_or(why, Ordering::SeqCst);
    }

    pub(crate) fn why(self) -> u64 {
        self.get(Self::WHY)
    }

    /// Its number in the log.
    pub(crate) fn id(self) -> u32 {
        self.get(Self::ID) as u32
    }

    /// Looks at the file's time of change, and at marks: what somebody else did makes syncs due.
    pub(crate) fn note(self, changed: u64) {
        let marks = self.get(Self::MARKS);
        if marks != self.get(Self::SEEN) {
            self.set(Self::SEEN, marks);
            self.make_due();
        }
        if changed != self.changed() {
            self.set(Self::CHANGED, changed);
            self.make_due();
        }
    }

    /// The file changed in a way that the log lacks. Two syncs: during the first one, whoever did it may still be at it.
    pub(crate) fn make_due(self) {
        self.set(Self::DUE, 2);
    }

    /// The same of a change that is over, and nobody else's: one sync.
    pub(crate) fn owe(self) {
        self.set(Self::DUE, self.get(Self::DUE).max(1));
    }

    /// The time of its last change that was ours, or was noted.
    pub(crate) fn changed(self) -> u64 {
        self.get(Self::CHANGED)
    }

    /// A change of ours has left this time.
    pub(crate) fn set_changed(self, changed: u64) {
        self.set(Self::CHANGED, changed);
    }

    /// Whether changes of it are logged, and its syncs absorbed.
    pub(crate) fn is_absorbed(self) -> bool {
        self.get(Self::DUE) == 0
            && self.why() == 0
            && self.get(Self::MARKS) == self.get(Self::SEEN)
            && !self.0.is_frozen()
    }

    /// The index behind its last entry.
    pub(crate) fn last(self) -> u64 {
        self.get(Self::LAST)
    }

    pub(crate) fn set_last(self, end: u64) {
        self.set(Self::LAST, end);
    }

    /// Below which index the log says that it is [settled](remanence_cache::op::Op::Settled).
    pub(crate) fn settled(self) -> u64 {
        self.get(Self::SETTLED)
    }

    /// The log says so durably.
    pub(crate) fn set_settled(self, upto: u64) {
        self.set(Self::SETTLED, upto);
    }

    /// Its number in the log, if it has one.
    pub(crate) fn number(self) -> Option<u32> {
        u32::try_from(self.get(Self::ID)).ok().filter(|id| *id != u32::MAX)
    }

    /// Where it lies among others: who locks several does so in this order, directories before what is in them.
    pub(crate) const fn place(self) -> usize {
        self.1
    }

    /// It was just made by who has its lock, whose entry says so; where nobody else has been at it, all of it is in the log. `changed`: its time of change behind its
    /// making; `quiet`: nobody was at anything without a slot since then; `end`: the index behind its entry. Others may have found it before we had its lock: what they have logged of it is behind
    /// that entry, whose place was reserved before there was a file, and counts.
    pub(crate) fn born(self, changed: u64, quiet: bool, end: u64) {
        let untouched = changed == self.changed() && self.get(Self::MARKS) == self.get(Self::SEEN);
        if quiet && untouched && self.last() == 0 {
            self.set(Self::DUE, 0);
        }
        self.set_last(end.max(self.last()));
    }

    /// It has lost its last name, and the log says so below this index.
    pub(crate) fn set_nameless(self, end: u64) {
        self.set(Self::NAMELESS, end);
    }

    /// Below which index the log says that it has lost its last name; 0 if it does not.
    pub(crate) fn nameless(self) -> u64 {
        self.get(Self::NAMELESS)
    }

    /// The latest time of the file that the log has durably.
    pub(crate) fn witnessed(self) -> u64 {
        self.get(Self::WITNESSED)
    }

    /// The log has a time of the file durably.
    pub(crate) fn witness(self, time: u64) {
        self.word(Self::WITNESSED).fetch_max(time, Ordering::SeqCst);
    }

    /// How it stands, for [`synced`](Self::synced).
    pub(crate) fn before_sync(self) -> u64 {
        self.get(Self::MARKS)
    }

    /// The kernel has synced it. `quiet`: nobody was at it; `changed`: its time of change behind the sync.
    pub(crate) fn synced(self, before: u64, quiet: bool, changed: u64) {
        let due = self.get(Self::DUE);
        if quiet && self.get(Self::MARKS) == before && changed == self.changed() {
            self.set(Self::DUE, due.saturating_sub(1));
        }
    }

    /// A sync of it has failed while the log has something of it: nothing but a recovery can tell what the kernel has given up. Until then each sync says so, and
    /// nobody changes it any more, so that nothing is newer than the log.
    pub(crate) fn fail(self, errno: i32) {
        self.set(Self::ERROR, errno.unsigned_abs().into());
        self.refuse(why::FAILED);
    }

    /// The error that is to be told.
    pub(crate) fn error(self) -> Option<i32> {
        i32::try_from(self.get(Self::ERROR)).ok().filter(|errno| (1..4096).contains(errno))
    }

    pub(crate) fn count_absorbed(self) {
        self.word(Self::ABSORBED).fetch_add(1, Ordering::Relaxed);
        self.0.count(Count::Absorbed, 1);
    }

    /// Counts a sync of the kernel; of those that a program has asked for, in all.
    pub(crate) fn count_kernel(self, asked: bool) {
        self.word(Self::KERNEL).fetch_add(1, Ordering::Relaxed);
        self.0.count(Count::Kernel, asked.into());
    }

    pub(crate) fn count_bytes(self, bytes: u64) {
        self.word(Self::BYTES).fetch_add(bytes, Ordering::Relaxed);
        self.0.count(Count::Bytes, bytes);
    }

    /// Syncs that were absorbed, syncs of the kernel, bytes that were logged.
    pub(crate) fn counts(self) -> [u64; 3] {
        [self.get(Self::ABSORBED), self.get(Self::KERNEL), self.get(Self::BYTES)]
    }
}

/// What became of an attempt to lock a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Taken {
    /// It is locked.
    Held,
    /// The slot is another's by now.
    Gone,
    /// Somebody has it for longer than anybody waits.
    Busy,
}

/// The words of the log in a segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentWords(Segment);

impl SegmentWords {
    /// No index is as high, and the sum of any two of these is one.
    const MOST: u64 = (1 << 50) - 1;

    fn at(self, word: Word) -> &'static AtomicU64 {
        self.0.word(LOG_AT + word as usize * 8)
    }
}

impl Words for SegmentWords {
    fn load(&self, word: Word) -> u64 {
        self.at(word).load(Ordering::SeqCst).min(Self::MOST)
    }

    fn store(&self, word: Word, value: u64) {
        self.at(word).store(value, Ordering::SeqCst);
    }

    fn compare_and_swap(&self, word: Word, compare: u64, swap: u64) -> u64 {
        let swapped = self.at(word).compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst);
        swapped.unwrap_or_else(|was| was)
    }
}

#[cfg(test)]
pub(crate) mod tests;
