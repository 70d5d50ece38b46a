//! A log's copy on other machines: what is sent of it, record by record, and how it is made again of them.
//!
//! A log in memory that goes with its machine is as durable as the machines that have a copy. The [`Copier`] goes behind those who append, and
//! makes *records* of what they have committed; whoever runs it puts them into a log on other machines, in order, and says when they are durable
//! there ([`Word::Copied`]). [`Rebuilt`] takes the records that a crash left there, and writes a log that is the one that was lost, place by place: a recovery finds
//! what it would have found in it.
//!
//! **Nobody is waited for.** A group that is claimed and not committed when the copier comes by may never be committed. The copier raises
//! [`Word::Passed`] above it, looks once more, and goes on; [`Log::append`] finds, behind its commit, that it was passed, and appends the same once more. (A change is absolute, and its
//! writer has its file locked: a second time changes nothing.) Either the copier sees the commit or the writer sees that it was passed, as each writes before it
//! reads with a full fence between. So what is copied is all below an index but what was in progress, which is promised to nobody.
//!
//! **A record has all that it needs.** With its groups go the slots of the file table that they name, where those are not sent yet, and the tail, which is read
//! after the slots: a slot is used for another file only when all that named the first one is below the tail. Records may be sent again, and
//! whole runs of them, in the same order: a group of an index is always the same group.
//!
//! Beside these are records of [`images`](crate::images), which have what files were before all that. Where there are such, each record of groups has all the
//! slots that it names, as those before it may be given up.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{Ordering, fence};

use remanence_codec::{Malformed, Reader, Writer};
use remanence_pmem::Medium;
use remanence_pmem::layout::Uuid;

use crate::entry::{Age, Claim, GROUP_MAX, HEADER_LEN, Header, INDEX_MAX, Kind, Owner, stamp};
use crate::format::{self, Geometry, Held, Layout, Lost, OpenError, Promise, Record, Seal};
use crate::log::Log;
use crate::op::Op;
use crate::read::{self, Damage, Flaw};
use crate::table::{FileId, Identity};
use crate::words::{Word, Words};

/// Bytes of the longest group that is a change of names, of its headers, and of the slots that it may name: no record is too short for one.
pub const RECORD_MIN: usize = 128 << 10;
/// What a record begins with: a version, and what it is.
const PIECE: u8 = 0x11;
const CLOSED: u8 = 0x12;
const TAKEN: u8 = 0x13;
/// What a file is (`images.rs`), and that one is no more.
pub(crate) const IMAGE: u8 = 0x14;
pub(crate) const GONE: u8 = 0x15;
/// Bytes of what each record has: which log it is of, and its tail.
pub(crate) const HEAD: usize = 53;
/// Bytes before the slots and groups of a piece.
const PIECE_HEAD: usize = HEAD + 6;

/// Why nothing more is sent.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// An entry is damaged: the log is to be recovered from what is left of it.
    #[error("{0}")]
    Damaged(Damage),
    /// A group fits into no record.
    #[error(
        "entry {first} is a change that takes a record of {len} bytes, and the servers' logs have none as long"
    )]
    TooLong {
        /// The index of its first entry.
        first: u64,
        /// Bytes of the record.
        len: usize,
    },
}

/// What is to be sent next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Batch {
    /// The bytes of the record.
    pub record: Vec<u8>,
    /// When it is durable, all that is committed below this index is.
    pub upto: u64,
    /// And it is known that all below this one is in its files.
    pub tail: u64,
}

/// Goes behind those who append to a log, and makes records of what they commit. There is one for a log.
#[derive(Debug)]
pub struct Copier {
    next: u64,
    /// Slots that were sent, as they were then.
    slots: BTreeMap<FileId, Vec<u8>>,
    /// Each record has all the slots that its groups name.
    whole: bool,
}

/// A group as it lies in the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Group {
    pub(crate) headers: Vec<u8>,
    pub(crate) data: Vec<u8>,
}

impl Group {
    fn count(&self) -> u64 {
        (self.headers.len() / HEADER_LEN) as u64
    }

    fn len(&self) -> usize {
        14 + self.headers.len() + self.data.len()
    }
}

impl Copier {
    /// One that begins with all that is in the log. It knows of no slot that was sent.
    #[must_use]
    pub fn new<M: Medium, W: Words>(log: &Log<M, W>) -> Self {
        Self { next: log.tail(), slots: BTreeMap::new(), whole: false }
    }

    /// The same, whose records of groups need none before them.
    #[must_use]
    pub fn with_images<M: Medium, W: Words>(log: &Log<M, W>) -> Self {
        Self { whole: true, ..Self::new(log) }
    }

    /// All that is committed below was made records of.
    #[must_use]
    pub const fn sent(&self) -> u64 {
        self.next
    }

    /// The record that says that all is in its files, and the log closed at this tail.
    #[must_use]
    pub fn closed(layout: &Layout, tail: u64) -> Vec<u8> {
        let mut out = Writer::new(HEAD);
        head(&mut out, CLOSED, layout, tail);
        out.finish().expect("its length is known")
    }

    /// The record that says that somebody recovers the log, whose writer was given up.
    #[must_use]
    pub fn taken(layout: &Layout, tail: u64) -> Vec<u8> {
        let mut out = Writer::new(HEAD);
        head(&mut out, TAKEN, layout, tail);
        out.finish().expect("its length is known")
    }

    /// The next record, of no more than `max` bytes, which are [`RECORD_MIN`] at least; `None` if all that is committed was sent. What has come into its
    /// files before it was sent is not: a record then says that the tail is behind it, or older bytes of earlier ones would be put over it.
    ///
    /// # Errors
    /// An entry is damaged, or longer than a record.
    ///
    /// # Panics
    /// `max` is less.
    pub fn next<M: Medium, W: Words>(
        &mut self,
        log: &Log<M, W>,
        max: usize,
    ) -> Result<Option<Batch>, CopyError> {
        self.next_below(log, max, u64::MAX)
    }

    /// The same of what lies below an index, which was the log's head.
    ///
    /// # Errors
    /// An entry is damaged, or longer than a record.
    ///
    /// # Panics
    /// `max` is less than [`RECORD_MIN`].
    pub fn next_below<M: Medium, W: Words>(
        &mut self,
        log: &Log<M, W>,
        max: usize,
        limit: u64,
    ) -> Result<Option<Batch>, CopyError> {
        assert!(max >= RECORD_MIN, "a record of {max} bytes has no room for a group");
        loop {
            let tail = log.tail();
            let from = self.next.max(tail);
            let head = log.head().min(limit);
            if from >= head && from == self.next {
                return Ok(None);
            }
            let found = self.collect(log, from, head, max);
            // What was freed meanwhile may have been written over while it was read.
            if log.tail() > from {
                continue;
            }
            let Found { groups, slots, end } = found?;
            if end == from && groups.is_empty() && from == self.next {
                return Err(CopyError::Damaged(Damage::unknown(from, Flaw::Missing)));
            }
            let tail = log.tail();
            if tail > from {
                continue;
            }
            let mut out = Writer::new(max);
            emit(&mut out, log.layout(), tail, &slots, &groups);
            let record = out.finish().expect("what is collected fits");
            self.next = end;
            if !self.whole {
                self.slots.extend(slots);
            }
            return Ok(Some(Batch { record, upto: end, tail }));
        }
    }

    /// Records that say all that earlier ones have said and is still needed, but for groups: with them durable, those are needed no more whose groups are
    /// all below this tail, which is returned with them.
    pub fn base<M: Medium, W: Words>(&self, log: &Log<M, W>, max: usize) -> (u64, Vec<Vec<u8>>) {
        let tail = log.tail();
        let mut records = Vec::new();
        let mut slots: BTreeMap<FileId, Vec<u8>> = BTreeMap::new();
        let mut len = PIECE_HEAD;
        let mut put = |slots: &mut BTreeMap<FileId, Vec<u8>>| {
            let mut out = Writer::new(max);
            emit(&mut out, log.layout(), tail, &std::mem::take(slots), &BTreeMap::new());
            records.push(out.finish().expect("what is collected fits"));
        };
        for (file, slot) in &self.slots {
            if len + slot.len() + 6 > max {
                put(&mut slots);
                len = PIECE_HEAD;
            }
            len += slot.len() + 6;
            slots.insert(*file, slot.clone());
        }
        put(&mut slots);
        (tail, records)
    }

    /// What a record that begins there has.
    fn collect<M: Medium, W: Words>(
        &self,
        log: &Log<M, W>,
        from: u64,
        head: u64,
        max: usize,
    ) -> Result<Found, CopyError> {
        let mut found = Found { groups: BTreeMap::new(), slots: BTreeMap::new(), end: from };
        let mut len = PIECE_HEAD;
        let mut passed = Vec::new();
        while found.end < head {
            let at = found.end;
            let claim = log.claim(at);
            // It was freed, and is another lap's: who called sees that the tail has moved.
            if claim.age(log.layout().lap(at)) != Age::Same {
                break;
            }
            let count = u64::from(claim.count.max(1));
            if !log.committed(at) {
                passed.push(at);
            } else if !self.take(log, at, &mut found, &mut len, max)? {
                break;
            }
            found.end = at + count;
        }
        if passed.is_empty() {
            return Ok(found);
        }
        log.words().raise(Word::Passed, found.end);
        fence(Ordering::SeqCst);
        for at in passed {
            if log.committed(at) && !self.take(log, at, &mut found, &mut len, max)? {
                // It goes with the next one, and so does what is behind it, which may be a later change of the same file.
                found.end = at;
                found.groups.split_off(&at);
                break;
            }
        }
        Ok(found)
    }

    /// Takes a group, and the slots that it names, if there is room for both.
    fn take<M: Medium, W: Words>(
        &self,
        log: &Log<M, W>,
        first: u64,
        found: &mut Found,
        len: &mut usize,
        max: usize,
    ) -> Result<bool, CopyError> {
        let (medium, layout) = (log.medium(), log.layout());
        let entry = read::group(medium, layout, first).map_err(CopyError::Damaged)?;
        if matches!(entry.kind, Kind::Hole | Kind::Mark) {
            return Ok(true);
        }
        let mut group = Group { headers: vec![0; entry.count as usize * HEADER_LEN], data: Vec::new() };
        read::payload(medium, layout, &entry, &mut group.data).map_err(CopyError::Damaged)?;
        for (n, line) in group.headers.chunks_exact_mut(HEADER_LEN).enumerate() {
            medium.read(layout.header(first + n as u64), line);
        }
        let files: BTreeSet<FileId> = entry
            .op(&group.data)
            .iter()
            .flat_map(Op::files)
            .filter(|file| file.0 < layout.geometry.files)
            .collect();
        let mut slots = Vec::new();
        for file in files {
            let slot = Identity::slot(medium, layout, file);
            let sent = if self.whole { None } else { self.slots.get(&file) };
            if found.slots.get(&file).or(sent) != Some(&slot) {
                slots.push((file, slot));
            }
        }
        let more = group.len() + slots.iter().map(|(_, slot)| slot.len() + 6).sum::<usize>();
        if PIECE_HEAD + more > max {
            return Err(CopyError::TooLong { first, len: PIECE_HEAD + more });
        }
        if *len + more > max {
            return Ok(false);
        }
        *len += more;
        found.slots.extend(slots);
        found.groups.insert(first, group);
        Ok(true)
    }
}

/// What goes into one record.
struct Found {
    groups: BTreeMap<u64, Group>,
    slots: BTreeMap<FileId, Vec<u8>>,
    end: u64,
}

pub(crate) fn head(out: &mut Writer, kind: u8, layout: &Layout, tail: u64) {
    let Layout { uuid, geometry, salt, together: _ } = *layout;
    out.u8(kind);
    out.bytes(&uuid.0);
    out.u64_le(salt);
    out.u64_le(geometry.entries);
    out.u32_le(geometry.slot);
    out.u32_le(geometry.files);
    out.u32_le(geometry.path_max);
    out.u64_le(tail);
}

fn emit(
    out: &mut Writer,
    layout: &Layout,
    tail: u64,
    slots: &BTreeMap<FileId, Vec<u8>>,
    groups: &BTreeMap<u64, Group>,
) {
    head(out, PIECE, layout, tail);
    out.u16_le(slots.len() as u16);
    for (file, slot) in slots {
        out.u32_le(file.0);
        out.u16_le(slot.len() as u16);
        out.bytes(slot);
    }
    out.u32_le(groups.len() as u32);
    for (first, group) in groups {
        out.u64_le(*first);
        out.u16_le(group.count() as u16);
        out.u32_le(group.data.len() as u32);
        out.bytes(&group.headers);
        out.bytes(&group.data);
    }
}

/// What a record begins with, and what is behind that.
pub(crate) struct Opened<'a> {
    pub(crate) kind: u8,
    pub(crate) layout: Layout,
    pub(crate) tail: u64,
    pub(crate) bytes: Reader<'a>,
}

/// Reads what a record begins with.
pub(crate) fn opened(record: &[u8]) -> Result<Opened<'_>, Malformed> {
    let mut bytes = Reader::new(record);
    let kind = bytes.u8()?;
    let uuid = Uuid(bytes.array()?);
    let salt = bytes.u64_le()?;
    let geometry = Geometry {
        entries: bytes.u64_le()?,
        slot: bytes.u32_le()?,
        files: bytes.u32_le()?,
        path_max: bytes.u32_le()?,
    };
    let tail = bytes.u64_le()?;
    if !geometry.is_fair() || !(geometry.entries..INDEX_MAX).contains(&tail) {
        return bytes.fail();
    }
    // That in which it is made again.
    let layout = Layout { uuid, geometry, salt, together: false };
    Ok(Opened { kind, layout, tail, bytes })
}

/// Whether a record has groups.
pub(crate) const fn is_piece(kind: u8) -> bool {
    kind == PIECE
}

type Pieces = (BTreeMap<FileId, Vec<u8>>, BTreeMap<u64, Group>);

/// The slots and groups of a record that has such.
pub(crate) fn pieces(layout: &Layout, bytes: &mut Reader<'_>) -> Result<Pieces, Malformed> {
    let geometry = layout.geometry;
    let (mut all_slots, mut all_groups) = (BTreeMap::new(), BTreeMap::new());
    let slots = bytes.u16_le()?;
    for _ in 0..slots {
        let file = bytes.u32_le()?;
        let len = bytes.u16_le()?;
        let slot = bytes.take(len.into())?;
        if file >= geometry.files || slot.len() as u64 > geometry.file_slot() {
            return bytes.fail();
        }
        all_slots.insert(FileId(file), slot.to_vec());
    }
    let groups = bytes.u32_le()?;
    for _ in 0..groups {
        let first = bytes.u64_le()?;
        let count = u64::from(bytes.u16_le()?);
        let len = u64::from(bytes.u32_le()?);
        let fair = (1..=GROUP_MAX.min(geometry.entries)).contains(&count)
            && (geometry.entries..INDEX_MAX).contains(&first)
            && len <= count * u64::from(geometry.slot);
        if !fair {
            return bytes.fail();
        }
        let headers = bytes.take(count as usize * HEADER_LEN)?.to_vec();
        let data = bytes.take(len as usize)?.to_vec();
        all_groups.insert(first, Group { headers, data });
    }
    bytes.end()?;
    Ok((all_slots, all_groups))
}

/// The log that records tell of.
#[derive(Default, Debug)]
pub struct Rebuilt {
    layout: Option<Layout>,
    tail: u64,
    open: bool,
    is_taken: bool,
    slots: BTreeMap<FileId, Vec<u8>>,
    groups: BTreeMap<u64, Group>,
}

/// Why a log is not made again of records.
#[derive(Debug, thiserror::Error)]
pub enum RebuildError {
    /// These bytes are no record.
    #[error(
        "a record is none of a write cache's log: these servers have another log, or one of another release"
    )]
    Malformed(#[from] Malformed),
    /// Records do not belong together.
    #[error("the records are not those of one log: the first ones are missing, or a log was never closed")]
    Apart,
    /// The log cannot be written.
    #[error(transparent)]
    Open(#[from] OpenError),
}

impl Rebuilt {
    /// Takes the next record.
    ///
    /// # Errors
    /// It is none, or not one of this log.
    pub fn add(&mut self, record: &[u8]) -> Result<(), RebuildError> {
        let Opened { kind, layout, tail, mut bytes } = opened(record)?;
        if self.layout != Some(layout) {
            // All that another one had is in its files, or this is not its successor.
            if self.open {
                return Err(RebuildError::Apart);
            }
            *self = Self { layout: Some(layout), tail, ..Self::default() };
        }
        match kind {
            PIECE => {
                let (slots, groups) = pieces(&layout, &mut bytes)?;
                self.slots.extend(slots);
                self.groups.extend(groups);
            }
            CLOSED | TAKEN => bytes.end()?,
            // They are for who has lost the files as well.
            IMAGE | GONE => {}
            _ => return Err(bytes.malformed().into()),
        }
        self.tail = self.tail.max(tail);
        self.groups = self.groups.split_off(&self.tail);
        self.open = kind != CLOSED;
        self.is_taken = kind == TAKEN;
        Ok(())
    }

    /// Whether nothing is due, as the log was closed, or there never was one.
    #[must_use]
    pub const fn is_closed(&self) -> bool {
        !self.open
    }

    /// Whether somebody has begun to recover it, and its writer is not to go on.
    #[must_use]
    pub const fn is_taken(&self) -> bool {
        self.is_taken
    }

    /// Where the log lay, if there was one.
    #[must_use]
    pub const fn layout(&self) -> Option<&Layout> {
        self.layout.as_ref()
    }

    /// Where the log began.
    #[must_use]
    pub const fn tail(&self) -> u64 {
        self.tail
    }

    /// The index behind the last group.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.groups.last_key_value().map_or(self.tail, |(first, group)| self.tail.max(first + group.count()))
    }

    /// Writes the log to a medium that is blank and as long as [its geometry](Self::layout) says. It is one that was not closed.
    ///
    /// # Errors
    /// There was none, or the medium is not such a one, or it failed.
    pub fn write(&self, medium: &impl Medium) -> Result<(), RebuildError> {
        let layout = self.layout.ok_or(RebuildError::Apart)?;
        let (geometry, slot) = (layout.geometry, layout.geometry.slot as usize);
        format::make(medium, layout.uuid, geometry, layout.salt, Promise::AtReturn)?;
        for (file, slot) in &self.slots {
            medium.write(layout.file(*file), slot);
        }
        let mut next = self.tail;
        for (&first, group) in &self.groups {
            let end = first + group.count();
            // One log never has two groups at one place, nor more than a lap of them.
            if first < next || end > self.tail + geometry.entries {
                return Err(RebuildError::Apart);
            }
            for index in next..first {
                let hole = Header::hole(index, Claim::new(layout.lap(index), 1, Owner::new(0)), 0);
                let mut line = hole.emit(layout.salt);
                line[..8].copy_from_slice(&stamp(layout.salt, index, true).to_le_bytes());
                medium.write(layout.header(index), &line);
            }
            for (n, line) in group.headers.chunks_exact(HEADER_LEN).enumerate() {
                let piece = group.data.get(n * slot..).unwrap_or_default();
                let index = first + n as u64;
                medium.write(layout.data(index), &piece[..piece.len().min(slot)]);
                medium.write(layout.header(index), line);
            }
            next = end;
        }
        medium.pwb(0..medium.len());
        medium.psync().map_err(OpenError::from)?;
        // Whoever recovers from it, and whoever goes on with that on the same medium, is to know that this machine's files lost what nobody had synced: it is not a log whose processes alone
        // have died, wherever it lies.
        let seal = Seal { end: self.end(), lost: Lost::Unsynced, due: Held::All, foreign: None };
        Ok(Record { tail: self.tail, promise: Promise::AtReturn, open: true, seal: Some(seal) }
            .store(medium)?)
    }
}

const _: () = assert!(HEAD == 1 + 16 + 8 + 8 + 3 * 4 + 8);
