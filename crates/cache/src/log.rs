//! The log while it is open: whoever appends, syncs or cleans it does so through here, from many threads and processes.
//!
//! **An append** is four steps: a group of consecutive entries is [reserved](Log::reserve), [filled](Log::fill), committed by one word
//! ([`commit`](Log::commit)), and, under [`Promise::AtReturn`], waited for. Whoever locks pages does so before it reserves and until it has committed:
//! then overlapping writes have one order, which is the log's.
//!
//! **To reserve is lock-free, and leaves no unknown owner.** The place at the head is claimed by a swap of the word in its header, which then says
//! the lap, the owner and the length of the group; after that anybody may move the head on by as much. A writer that dies between any two instructions
//! has claimed nothing, or is named by what it claimed. (Taking a number first and writing the owner then would leave a place that is nobody's.)
//! It writes one more word of a line that is about to be written anyway.
//!
//! **A sync without a wait for others.** [`persist_up_to`](Log::persist_up_to) finds entries below it that are claimed and not committed. It
//! does not wait for them (their writer may be stopped): it raises the word [`Passed`](Word::Passed), looks again, makes what is committed
//! durable, appends a *mark* with the places that it found still in progress, and waits for that. A writer that finds, behind its commit word, that
//! a sync has passed it waits itself, and then says so in that word (*fenced*). Either the sync sees the commit word or the writer sees that it was passed, as
//! each writes before it reads with a full fence between. So after a crash: what lies below the highest mark, or below what any entry says was durable, is
//! there, or a place that a mark names; and what lies above was promised to nobody and counts up to the first gap. Usually nothing is in
//! progress, and a sync is one wait. Behind it, what it has made durable says so in its commit words as well: that reaches the medium when it does, and tells damage of the last
//! entries from what a crash tore.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::atomic::{Ordering, fence};

use remanence_codec::TooLong;
use remanence_pmem::Medium;

use crate::entry::{
    Age, CLAIM, Claim, Commit, GROUP_MAX, HEADER_LEN, Header, INDEX_MAX, Kind, Mtime, Owner, commit,
    data_checksum, stamp,
};
use crate::format::{Layout, OpenError, Promise, Record};
use crate::op::Op;
use crate::read::{self, Damage, Entry};
use crate::table::{FileId, Identity, TableError};
use crate::words::{Word, Words};

/// `FALLOC_FL_COLLAPSE_RANGE` and `FALLOC_FL_INSERT_RANGE`.
const ALLOCATE_MOVES: u32 = 0x08 | 0x20;
/// Bytes of a place in progress in a mark.
const PASSED_LEN: usize = 10;

/// Entries that somebody has reserved, and nobody else will touch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "entries that were reserved and are never committed hold the cleaner"]
pub struct Reserved {
    first: u64,
    count: u16,
    owner: Owner,
}

impl Reserved {
    /// The index of the first.
    #[must_use]
    pub const fn first(&self) -> u64 {
        self.first
    }

    /// The index behind the last, for [`Log::persist_up_to`].
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.first + self.count as u64
    }
}

/// What is at a place of the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Look {
    /// Nobody has reserved it.
    End,
    /// It was reserved, and is not committed.
    Pending {
        /// The index of the first entry.
        first: u64,
        /// By whom it was reserved.
        owner: Owner,
    },
    /// A change that is to be carried out; or a hole or a mark, of which nothing is to be done.
    Entry(Entry),
    /// It was committed, and is damaged.
    Damaged(Damage),
}

/// A log that is open.
#[derive(Debug)]
pub struct Log<M, W> {
    medium: M,
    words: W,
    layout: Layout,
    promise: Promise,
}

impl<M: Medium, W: Words> Log<M, W> {
    /// Opens a log that is empty: nobody else has it open. It is dirty from now on, until it is [closed](Self::close) or recovered.
    ///
    /// # Errors
    /// There is no log, it is dirty, or its medium failed.
    pub fn start(medium: M, words: W, promise: Promise) -> Result<Self, OpenError> {
        let layout = Layout::read(&medium)?;
        let record = Record::read(&medium, &layout)?;
        if record.open || record.seal.is_some() {
            return Err(OpenError::Dirty);
        }
        Record { promise, open: true, ..record }.store(&medium)?;
        let tail = record.tail;
        for index in tail..tail + layout.geometry.entries {
            // None can be of this lap or a later one, unless it is damaged: nobody would ever get past it.
            let at = layout.header(index) + CLAIM;
            if Claim::of(medium.load_u64(at)).age(layout.lap(index)) != Age::Earlier {
                medium.store_u64(at, 0);
            }
        }
        for word in [Word::Head, Word::Tail, Word::Passed, Word::Durable] {
            words.store(word, tail);
        }
        Ok(Self { medium, words, layout, promise })
    }

    /// Joins those who have a log open, whose words these are.
    ///
    /// # Errors
    /// There is no log, it is not open, or its medium failed.
    pub fn attach(medium: M, words: W) -> Result<Self, OpenError> {
        let layout = Layout::read(&medium)?;
        let record = Record::peek(&medium, &layout)?;
        if !record.open || record.seal.is_some() {
            return Err(OpenError::Dirty);
        }
        Ok(Self { medium, words, layout, promise: record.promise })
    }

    /// Closes a log of which all is in its files, when nobody appends any more.
    ///
    /// # Errors
    /// Something is not, or the medium failed: it is still dirty.
    pub fn close(self) -> Result<(), OpenError> {
        if self.used() > 0 {
            return Err(OpenError::Dirty);
        }
        Record::empty(self.words.load(Word::Tail), self.promise).store(&self.medium)
    }

    /// Where things lie.
    #[must_use]
    pub const fn layout(&self) -> &Layout {
        &self.layout
    }

    /// When entries are durable.
    #[must_use]
    pub const fn promise(&self) -> Promise {
        self.promise
    }

    /// The next index that nobody has reserved.
    pub fn head(&self) -> u64 {
        loop {
            let head = self.words.load(Word::Head);
            let claim = self.claim(head);
            if claim.age(self.layout.lap(head)) != Age::Same {
                return head;
            }
            self.move_on(head, claim);
        }
    }

    /// Entries below are free.
    pub fn tail(&self) -> u64 {
        self.words.load(Word::Tail)
    }

    /// How many entries are in use.
    pub fn used(&self) -> u64 {
        let tail = self.tail();
        self.head().saturating_sub(tail)
    }

    /// Whose entries are in use, those in progress too: their numbers are nobody else's.
    pub fn owners(&self) -> BTreeSet<Owner> {
        let (mut at, head) = (self.tail(), self.head());
        let mut owners = BTreeSet::new();
        while at < head {
            let claim = self.claim(at);
            if claim.age(self.layout.lap(at)) == Age::Same {
                owners.insert(claim.owner);
                at += u64::from(claim.count.max(1));
            } else {
                // It was freed meanwhile.
                at = self.tail().max(at + 1);
            }
        }
        owners
    }

    /// How many entries an operation takes.
    ///
    /// # Errors
    /// It is too long for this log: a write can be cut into several, and a name cannot be as long.
    pub fn entries_of(&self, op: &Op<'_>) -> Result<u16, AppendError> {
        let len = match op {
            Op::Write { bytes, offset, .. } => {
                let len = bytes.len() as u64;
                offset.checked_add(len).map(|_| len).ok_or(AppendError::TooLong { max: self.longest() })?
            }
            // What moves bytes is no absolute change: replayed, it would be carried out twice.
            Op::Allocate { mode, .. } if mode & ALLOCATE_MOVES != 0 => return Err(AppendError::Moves),
            other => {
                other.payload().map_err(|TooLong { max, .. }| AppendError::TooLong { max: max as u64 })?.len()
                    as u64
            }
        };
        let count = len.div_ceil(self.layout.geometry.slot.into()).max(1);
        if count > self.group_max() {
            return Err(AppendError::TooLong { max: self.longest() });
        }
        Ok(count as u16)
    }

    /// Bytes of the longest write that is one group. Longer ones are several, and not atomic together.
    pub fn longest(&self) -> u64 {
        self.group_max() * u64::from(self.layout.geometry.slot)
    }

    fn group_max(&self) -> u64 {
        self.limit().min(GROUP_MAX)
    }

    /// Entries that may be in use, but for marks: a sync needs a place also when the log is full.
    fn limit(&self) -> u64 {
        let entries = self.layout.geometry.entries;
        entries - (entries / 8).clamp(1, 64)
    }

    /// The same for an operation: what says that something is settled finds room where nothing else does, as a sync of the kernel waits for it. The other half is left
    /// for marks.
    fn limit_of(&self, op: &Op<'_>) -> u64 {
        match op {
            Op::Settled { upto: 1.., .. } => (self.limit() + self.layout.geometry.entries) / 2,
            _ => self.limit(),
        }
    }

    pub(crate) const fn medium(&self) -> &M {
        &self.medium
    }

    pub(crate) const fn words(&self) -> &W {
        &self.words
    }

    pub(crate) fn claim(&self, index: u64) -> Claim {
        Claim::of(self.medium.load_u64(self.layout.header(index) + CLAIM))
    }

    fn move_on(&self, head: u64, claim: Claim) {
        self.words.compare_and_swap(Word::Head, head, head + u64::from(claim.count.max(1)));
    }

    /// Reserves so many consecutive entries. Nothing waits in here.
    ///
    /// # Errors
    /// The log is full: it is known what to wait for. Or no log has so many.
    pub fn reserve(&self, owner: Owner, count: u16) -> Result<Reserved, AppendError> {
        self.reserve_below(owner, count, self.limit())
    }

    fn reserve_below(&self, owner: Owner, count: u16, limit: u64) -> Result<Reserved, AppendError> {
        if count == 0 || u64::from(count) > limit {
            return Err(AppendError::TooLong { max: limit * u64::from(self.layout.geometry.slot) });
        }
        loop {
            let head = self.words.load(Word::Head);
            let tail = self.words.load(Word::Tail);
            let end = head + u64::from(count);
            if end >= INDEX_MAX {
                return Err(AppendError::Exhausted);
            }
            let at = self.layout.header(head) + CLAIM;
            let was = self.medium.load_u64(at);
            let lap = self.layout.lap(head);
            match Claim::of(was).age(lap) {
                // Others have gone round since the head was read. If not, no writer wrote this word.
                Age::Later if self.words.load(Word::Head) == head => {
                    return Err(AppendError::Damaged { index: head });
                }
                Age::Later => {}
                Age::Same => self.move_on(head, Claim::of(was)),
                Age::Earlier if end.saturating_sub(tail) > limit => {
                    if self.words.load(Word::Head) == head {
                        return Err(AppendError::Full { until: end - limit });
                    }
                }
                Age::Earlier => {
                    let claim = Claim::new(lap, count, owner);
                    if self.medium.compare_and_swap(at, was, claim.word()) == was {
                        self.move_on(head, claim);
                        return Ok(Reserved { first: head, count, owner });
                    }
                }
            }
        }
    }

    /// Writes an operation into the entries that were reserved for it, and the file's mtime as it is after the call that it tells of. It is not committed.
    ///
    /// # Panics
    /// It takes another number of entries than were reserved.
    pub fn fill(&self, reserved: &Reserved, op: &Op<'_>, mtime: Mtime) {
        assert_eq!(
            self.entries_of(op).ok(),
            Some(reserved.count),
            "entries were reserved for another operation than {op:?}"
        );
        match op {
            Op::Write { file, offset, bytes } => {
                self.put(reserved, Kind::Write, file.0, mtime, *offset, bytes);
            }
            Op::Settled { file, upto } => self.put(reserved, Kind::Settled, file.0, mtime, *upto, &[]),
            other => {
                let payload = other.payload().expect("it was measured");
                self.put(reserved, Kind::Change, other.file().0, mtime, 0, &payload);
            }
        }
    }

    fn put(&self, reserved: &Reserved, kind: Kind, file: u32, mtime: Mtime, offset: u64, payload: &[u8]) {
        let slot = self.layout.geometry.slot as usize;
        let claim = Claim::new(self.layout.lap(reserved.first), reserved.count, reserved.owner).word();
        let durable = self.words.load(Word::Durable);
        for n in 0..u64::from(reserved.count) {
            let index = reserved.first + n;
            let from = (n as usize * slot).min(payload.len());
            let piece = &payload[from..payload.len().min(from + slot)];
            if !piece.is_empty() {
                self.medium.write(self.layout.data(index), piece);
            }
            let header = Header {
                index,
                claim,
                durable,
                mtime,
                offset: offset + n * slot as u64,
                file,
                length: piece.len() as u32,
                data: data_checksum(self.layout.salt, index, piece),
                back: n as u16,
                count: reserved.count,
                kind,
            };
            self.put_header(&header);
        }
    }

    fn put_header(&self, header: &Header) {
        let at = self.layout.header(header.index);
        let line = header.emit(self.layout.salt);
        // Others look at the claim of the first meanwhile, and it says so already. The commit word is nobody's but `commit`'s.
        self.medium.write(at + 8, &line[8..16]);
        if header.back > 0 {
            self.medium.store_u64(at + CLAIM, header.claim);
        }
        self.medium.write(at + CLAIM + 8, &line[CLAIM as usize + 8..]);
    }

    /// Commits entries that were filled. Under [`Promise::AtReturn`] they are durable on return.
    ///
    /// # Errors
    /// The medium failed: the entries are committed, or are not, and are not durable.
    pub fn commit(&self, reserved: &Reserved) -> io::Result<()> {
        let (first, count) = (reserved.first, u64::from(reserved.count));
        match self.promise {
            Promise::AtReturn => {
                read::write_back(&self.medium, &self.layout, first, count);
                self.medium.pfence()?;
                self.stamp(first, true)
            }
            Promise::AtSync => {
                self.medium.store_u64(self.layout.header(first), stamp(self.layout.salt, first, false));
                fence(Ordering::SeqCst);
                if self.words.load(Word::Passed) <= first {
                    return Ok(());
                }
                // Who was told that all is durable up to somewhere above did not wait for this one.
                read::write_back(&self.medium, &self.layout, first, count);
                self.medium.psync()?;
                self.stamp(first, true)
            }
        }
    }

    /// Stores the commit word, durably.
    fn stamp(&self, first: u64, fenced: bool) -> io::Result<()> {
        let at = self.layout.header(first);
        self.medium.store_u64(at, stamp(self.layout.salt, first, fenced));
        self.medium.persist(at..at + 8)
    }

    /// Reserves, fills and commits; returns the index behind, for [`persist_up_to`](Self::persist_up_to). Where a [copier](crate::copy) has passed it meanwhile
    /// it is appended once more.
    ///
    /// # Errors
    /// The log is full, the operation too long, or the medium failed.
    pub fn append(&self, owner: Owner, op: &Op<'_>, mtime: Mtime) -> Result<u64, AppendError> {
        let count = self.entries_of(op)?;
        loop {
            let reserved = self.reserve_below(owner, count, self.limit_of(op))?;
            self.fill(&reserved, op, mtime);
            self.commit(&reserved)?;
            if !self.was_passed(&reserved) {
                return Ok(reserved.end());
            }
        }
    }

    /// The rest of an [`append`](Self::append) whose entries were reserved before what it tells of was done: so there is nothing to be waited for between that
    /// and its entry. Who has done nothing then [abandons](Self::abandon) them.
    ///
    /// # Errors
    /// As of [`append`](Self::append).
    ///
    /// # Panics
    /// It takes another number of entries than were reserved.
    pub fn complete(&self, reserved: &Reserved, op: &Op<'_>, mtime: Mtime) -> Result<u64, AppendError> {
        self.fill(reserved, op, mtime);
        self.commit(reserved)?;
        if self.was_passed(reserved) { self.append(reserved.owner, op, mtime) } else { Ok(reserved.end()) }
    }

    /// Whether the copier has gone past entries before they were committed. Where an append is durable when it returns, who was passed has waited.
    fn was_passed(&self, reserved: &Reserved) -> bool {
        fence(Ordering::SeqCst);
        self.promise != Promise::AtSync && self.words.load(Word::Passed) > reserved.first
    }

    /// Makes all entries durable that are committed and lie below, and with them a prefix of the log. `owner` is whose the mark is,
    /// if there has to be one.
    ///
    /// # Errors
    /// The medium failed. Or entries below are in progress, and the log has no place for a mark: it is known what to wait for.
    pub fn persist_up_to(&self, owner: Owner, upto: u64) -> Result<(), AppendError> {
        self.sync_up_to(owner, upto).map(|synced| self.fence_all(&synced))
    }

    /// The same, for who has others go on before it says of the [`Synced`] groups that they were durable ([`fence_all`](Self::fence_all)).
    ///
    /// # Errors
    /// As of [`persist_up_to`](Self::persist_up_to).
    pub fn sync_up_to(&self, owner: Owner, upto: u64) -> Result<Synced, AppendError> {
        if self.promise == Promise::AtReturn || self.words.load(Word::Durable) >= upto {
            return Ok(Synced::default());
        }
        let mut survey = self.survey(upto);
        if !survey.pending.is_empty() {
            self.words.raise(Word::Passed, survey.end);
            fence(Ordering::SeqCst);
            survey = self.survey(survey.end);
        }
        for (first, count) in &survey.committed {
            read::write_back(&self.medium, &self.layout, *first, *count);
        }
        self.medium.psync()?;
        if !survey.pending.is_empty() {
            self.mark(owner, &survey)?;
        }
        self.words.raise(Word::Durable, survey.end);
        Ok(Synced(survey.committed))
    }

    /// Says of groups that were made durable in their own commit words that they were: else nothing tells damage of the last ones from what a crash tore, before there is
    /// another entry. Nobody waits for that; it comes to the medium with the next sync, or when the kernel writes the page.
    pub fn fence_all(&self, synced: &Synced) {
        for (first, _) in &synced.0 {
            let words = [false, true].map(|fenced| stamp(self.layout.salt, *first, fenced));
            let at = self.layout.header(*first);
            // Whose place it is by now has another word there.
            if self.medium.compare_and_swap(at, words[0], words[1]) == words[0] {
                self.medium.pwb(at..at + 8);
            }
        }
    }

    /// Looks at what a sync up to there has to care for.
    fn survey(&self, upto: u64) -> Survey {
        let head = self.head();
        let mut survey = Survey::default();
        let mut at = self.words.load(Word::Durable).max(self.tail());
        while at < upto.min(head) {
            let claim = self.claim(at);
            if claim.age(self.layout.lap(at)) != Age::Same {
                // It was freed meanwhile, and is durable in its file.
                at = self.tail().max(at + 1);
                continue;
            }
            let count = u64::from(claim.count.max(1));
            match self.committed(at) {
                true => survey.committed.push((at, count)),
                false => survey.pending.push((at, claim.count)),
            }
            at += count;
        }
        survey.end = at;
        survey
    }

    pub(crate) fn committed(&self, first: u64) -> bool {
        let word = self.medium.load_u64(self.layout.header(first));
        let entries = self.layout.geometry.entries;
        commit(self.layout.salt, first, entries, word) != Commit::Unset
    }

    /// Appends what a sync has found in progress, and waits for that.
    fn mark(&self, owner: Owner, survey: &Survey) -> Result<(), AppendError> {
        let mut payload = Vec::with_capacity(survey.pending.len() * PASSED_LEN);
        for (first, count) in &survey.pending {
            payload.extend_from_slice(&first.to_le_bytes());
            payload.extend_from_slice(&count.to_le_bytes());
        }
        let count = payload.len().div_ceil(self.layout.geometry.slot as usize);
        let reserved = self.reserve_below(owner, count as u16, self.layout.geometry.entries)?;
        self.put(&reserved, Kind::Mark, 0, Mtime::UNKNOWN, survey.end, &payload);
        let first = reserved.first;
        self.medium.store_u64(self.layout.header(first), stamp(self.layout.salt, first, false));
        read::write_back(&self.medium, &self.layout, first, count as u64);
        Ok(self.medium.psync()?)
    }

    /// Makes all from the tail up to an index durable, where everything is committed, whoever had promised to: before it is carried out on a file. A commit word is
    /// seen before its writer has waited for it, and what is on a file in part has to be in the log whole.
    ///
    /// # Errors
    /// The medium failed.
    pub fn secure(&self, entries: &Range<u64>) -> io::Result<()> {
        let mut at = entries.start;
        while at < entries.end {
            let count = u64::from(self.claim(at).count.max(1));
            read::write_back(&self.medium, &self.layout, at, count.min(entries.end - at));
            at += count;
        }
        self.medium.psync()?;
        self.words.raise(Word::Durable, entries.end);
        Ok(())
    }

    /// How far all is committed, from an index on where a group begins or began, and not further than another: for who tells nobody of an entry before
    /// those below it are there too.
    pub fn committed_up_to(&self, from: u64, upto: u64) -> u64 {
        let mut at = from.max(self.tail());
        while at < upto {
            let claim = self.claim(at);
            let is_there = claim.age(self.layout.lap(at)) == Age::Same && self.committed(at);
            match (is_there, self.tail()) {
                // It was freed meanwhile.
                (_, tail) if tail > at => at = tail,
                (true, _) => at += u64::from(claim.count.max(1)),
                (false, _) => break,
            }
        }
        at
    }

    /// What is at an index, which is the tail, or the [end](Entry::end) of what was there before.
    pub fn look(&self, at: u64) -> Look {
        if at >= self.head() {
            return Look::End;
        }
        // Not before the head: what is there then may be the claim of somebody who died a lap ago.
        let claim = self.claim(at);
        if !self.committed(at) {
            return Look::Pending { first: at, owner: claim.owner };
        }
        match read::group(&self.medium, &self.layout, at) {
            Ok(entry) => Look::Entry(entry),
            Err(damage) => Look::Damaged(damage),
        }
    }

    /// Reads the data of an entry.
    ///
    /// # Errors
    /// It is damaged: nothing of it may be used.
    pub fn payload(&self, entry: &Entry, into: &mut Vec<u8>) -> Result<(), Damage> {
        read::payload(&self.medium, &self.layout, entry, into)
    }

    /// Makes a hole of entries of an owner that is dead, so that others get past them; returns whether it did, and they were
    /// not committed or another's. It may be done again if whoever did it died over it.
    ///
    /// # Errors
    /// The medium failed.
    pub fn abandon(&self, first: u64, owner: Owner) -> io::Result<bool> {
        let claim = self.claim(first);
        let is_its = claim.age(self.layout.lap(first)) == Age::Same && claim.owner == owner;
        if !is_its || self.committed(first) {
            return Ok(false);
        }
        self.put_header(&Header::hole(first, claim, self.words.load(Word::Durable)));
        self.commit(&Reserved { first, count: 1, owner: claim.owner }).map(|()| true)
    }

    /// Says durably which file a [spare](crate::table::FileTable::spares) number means, that was given to the caller alone. No entry names it before this returns.
    ///
    /// # Errors
    /// The path or the handle is too long, or the medium failed.
    pub fn name(&self, file: FileId, identity: &Identity) -> Result<(), TableError> {
        identity.store(&self.medium, &self.layout, file)
    }

    /// Which file a number means. `None`: none, or somebody is about to say where it is by now.
    pub fn identity(&self, file: FileId) -> Option<Identity> {
        Identity::read(&self.medium, &self.layout, file)
    }

    /// Says durably that all entries below are in their files. It is the cleaner's alone, and comes before [`free`](Self::free).
    ///
    /// # Errors
    /// The medium failed.
    pub fn advance(&self, tail: u64) -> Result<(), OpenError> {
        Record { tail, promise: self.promise, open: true, seal: None }.store(&self.medium)
    }

    /// Lets others have the entries below, which the persistent tail is not below.
    pub fn free(&self, tail: u64) {
        self.words.raise(Word::Tail, tail);
    }
}

/// What a sync has made durable, of which nothing but later entries says so.
#[derive(Debug, Default)]
#[must_use = "damage of the last of them is not told from what a crash tore"]
pub struct Synced(Vec<(u64, u64)>);

/// What a sync has to care for.
#[derive(Debug, Default)]
struct Survey {
    committed: Vec<(u64, u64)>,
    pending: Vec<(u64, u16)>,
    end: u64,
}

/// The places that a mark names, each with how many entries it has.
pub(crate) fn passed(payload: &[u8]) -> impl Iterator<Item = (u64, u64)> {
    payload.chunks_exact(PASSED_LEN).map(|place| {
        let first = u64::from_le_bytes(place[..8].try_into().expect("eight bytes"));
        (first, u64::from(u16::from_le_bytes([place[8], place[9]])))
    })
}

const _: () = assert!(CLAIM as usize + 8 < HEADER_LEN);

/// Why something was not appended.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    /// There is no room.
    #[error("the log is full until the tail is at {until}")]
    Full {
        /// Where the tail has to be for it to be worth another attempt.
        until: u64,
    },
    /// No group of this log is as long.
    #[error("the longest change that is one group has {max} bytes")]
    TooLong {
        /// Bytes of the longest.
        max: u64,
    },
    /// The change moves bytes of a file, and so cannot be carried out twice.
    #[error(
        "this mode of fallocate moves bytes of the file, and is no change that a log can have: drain the file first"
    )]
    Moves,
    /// Indexes are used up.
    #[error("the log has used up its indexes: drain it, and make another")]
    Exhausted,
    /// A word that says who has a place was written by nobody.
    #[error("the place of index {index} is damaged: drain the log, and start it again")]
    Damaged {
        /// The index whose place it is.
        index: u64,
    },
    /// The medium failed.
    #[error("the log's medium failed: {0}")]
    Medium(#[from] io::Error),
}
