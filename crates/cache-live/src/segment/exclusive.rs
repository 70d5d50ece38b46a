//! What a segment says of files that nobody else has open (`face/exclusive.rs`).

use std::sync::atomic::{AtomicU64, Ordering};

use super::{DAEMON, DAEMON_LOOKS, EXCLUSIVES, FLAGS, File, Key, LEAKED_AT, LEAKED_WORDS, Segment};
use crate::sys;

impl Segment {
    /// How many files are exclusive.
    pub(crate) fn exclusives(self) -> u64 {
        self.word(EXCLUSIVES).load(Ordering::SeqCst)
    }

    /// The same, said: the daemon's alone.
    pub(crate) fn set_exclusives(self, count: usize) {
        self.word(EXCLUSIVES).store(count as u64, Ordering::SeqCst);
    }

    /// How often the daemon has begun, or ended, to look who has opened exclusive files: odd while it looks.
    pub(crate) fn looks(self) -> u64 {
        self.word(DAEMON_LOOKS).load(Ordering::SeqCst)
    }

    /// The daemon begins to look, or ends: what it has found is said in between.
    pub(crate) fn look(self) {
        self.word(DAEMON_LOOKS).fetch_add(1, Ordering::SeqCst);
    }

    /// How often somebody has changed flags of an open file.
    pub(crate) fn flags_changed(self) -> u64 {
        self.word(FLAGS).load(Ordering::SeqCst)
    }

    /// Somebody is about to.
    pub(crate) fn change_flags(self) {
        self.word(FLAGS).fetch_add(1, Ordering::SeqCst);
    }

    fn leaked_bit(self, key: &Key) -> (&'static AtomicU64, u64) {
        let mixed = (key.inode ^ key.device.rotate_left(32) ^ key.born.rotate_left(17))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let bit = (mixed >> 40) as usize % (LEAKED_WORDS * 64);
        (self.word(LEAKED_AT + bit / 64), 1 << (bit % 64))
    }

    /// Somebody whose calls nobody sees may have a descriptor of ours that leads to this file: it is never exclusive, and a few others with it.
    pub(crate) fn leak(self, key: &Key) {
        let (word, bit) = self.leaked_bit(key);
        word.fetch_or(bit, Ordering::SeqCst);
        if let Some(file) = self.find(key) {
            file.end_exclusive();
        }
    }

    /// Whether somebody may.
    pub(crate) fn is_leaked(self, key: &Key) -> bool {
        let (word, bit) = self.leaked_bit(key);
        word.load(Ordering::SeqCst) & bit != 0
    }
}

impl File {
    const EXCLUSIVE: usize = 25;
    const SIZE: usize = 26;
    const TIME: usize = 21;
    const TRIED: usize = 22;
    const LOOKED: usize = 24;
    const YES: u64 = 1;
    const DOUBTED: u64 = 2;

    /// Whether nobody but programs of ours has it open.
    pub(crate) fn is_exclusive(self) -> bool {
        self.get(Self::EXCLUSIVE) == Self::YES
    }

    /// Whether it was exclusive, and somebody has opened it since, maybe only to read it.
    pub(crate) fn is_doubted(self) -> bool {
        self.get(Self::EXCLUSIVE) == Self::DOUBTED
    }

    /// Nobody but programs of ours has it open: the daemon says so, and who has its lock [says](Self::left) how it is then.
    pub(crate) fn begin_exclusive(self) {
        self.set(Self::EXCLUSIVE, Self::YES);
    }

    /// Somebody else has opened it.
    pub(crate) fn doubt_exclusive(self) {
        let word = self.word(Self::EXCLUSIVE);
        let _ = word.compare_exchange(Self::YES, Self::DOUBTED, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// He has not written to it, and has closed it, or cannot.
    pub(crate) fn prove_exclusive(self) {
        let word = self.word(Self::EXCLUSIVE);
        let _ = word.compare_exchange(Self::DOUBTED, Self::YES, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// The only description that led to an exclusive file is closed: it is one as any other, if it is as we left it. The daemon's alone.
    pub(crate) fn close_exclusive(self, found: &sys::Stat) {
        if !self.lock(DAEMON, 0) {
            return;
        }
        if self.is_exclusive() && found.size == self.size() && found.changed <= self.time() {
            self.set_changed(found.changed);
            let word = self.word(Self::EXCLUSIVE);
            let _ = word.compare_exchange(Self::YES, 0, Ordering::SeqCst, Ordering::SeqCst);
            // Nobody else was there: who opens it next tries as soon as the first.
            self.set(Self::TRIED, 0);
        }
        self.unlock();
    }

    /// Somebody else may have changed it.
    pub(crate) fn end_exclusive(self) {
        if self.word(Self::EXCLUSIVE).swap(0, Ordering::SeqCst) != 0 {
            // The time that was noted last is that of long ago.
            self.mark();
        }
    }

    /// How long an exclusive file is behind its last change, and when that was at the latest.
    pub(crate) fn left(self, size: u64, time: u64) {
        self.set(Self::SIZE, size);
        self.set(Self::TIME, time);
    }

    /// How long an exclusive file is.
    pub(crate) fn size(self) -> u64 {
        self.get(Self::SIZE)
    }

    /// When an exclusive file was changed last, at the latest.
    pub(crate) fn time(self) -> u64 {
        self.get(Self::TIME)
    }

    /// What no other file has.
    pub(crate) fn stamp(self) -> u64 {
        self.get(Self::STAMP)
    }

    /// When its time and its length were looked at last.
    pub(crate) fn looked(self) -> u64 {
        self.get(Self::LOOKED)
    }

    /// They were looked at.
    pub(crate) fn look(self, now: u64) {
        self.set(Self::LOOKED, now);
    }

    /// Counts a sync that was absorbed. Whether it is worth asking for an exclusive file now: after some, and after twice as many each time, whatever came of it.
    pub(crate) fn is_to_try(self) -> bool {
        const FIRST: u64 = 8;
        const MOST: u64 = 16;
        let tried = self.get(Self::TRIED);
        let (times, count) = (tried >> 32, (tried & 0xffff_ffff) + 1);
        let is_due = count >= FIRST << times.min(MOST);
        self.set(Self::TRIED, if is_due { (times.min(MOST) + 1) << 32 } else { times << 32 | count });
        is_due
    }
}
