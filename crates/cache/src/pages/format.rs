//! What lies where on the medium of a page cache. Little-endian.
//!
//! ```text
//! page 0   superblock          page 2   root, in two copies          then, each from a page on:
//! page 1   its second copy     page 4   file table (as a log's)      watermarks, lines of slots, lines of records, data of records, data of slots
//! ```
//! Data of slots begins at a page and has whole pages, so that it can be handed to O_DIRECT as it is.
//!
//! ```text
//! line of a slot (two cache lines)                         line of a record
//!  0  file     u32                                           0  commit   u64  stored last, in the first of a group
//!  4  crc      u32  of salt, slot, file, page and born       8  seq      u64  of the write
//!  8  page     u64                                          16  born     u64  of the slot; of a truncation the length
//! 16  born     u64  the write that made the page dirty      24  slot     u32  of a truncation the file
//! 24  free     u64  a stamp of born: it holds no more       28  offset   u32  in the page
//! 32  mark     u64  in place: seq, and bytes in the file    32  length   u32
//! 40  content  u32  CRC-32 of the page then                 36  data     u32  CRC-32 of salt, seq and data
//! 44  check    u32  of salt, slot, born and these           40  back u16, count u16, kind u16, zeros
//! 48  mark, content and check that are written in turn      48  durable  u64  all up to there was durable before
//! 64  a copy of both, and at 96 one of free                 56  zeros, and at 60 the CRC-32 of salt and all from 8 on
//! ```

use remanence_codec::{Malformed, Reader, Writer};
use remanence_pmem::image::{
    Checksum, Format, Making, Places, ROOT_PAYLOAD_MAX, Root, RootFormat, Signature, Version,
};
use remanence_pmem::layout::Uuid;
use remanence_pmem::{FileOptions, Image, Medium};

use super::Fault;
use crate::format::{self, Promise};
use crate::table::FileId;

/// The version of the format that is written and read.
pub const VERSION: u32 = 1;

const PAGE: u64 = 4096;
const ROOT_AT: u64 = 2 * PAGE;
const ROOT_TAG: u64 = u64::from_le_bytes(*b"REMNVPGr");
const ROOT: RootFormat = RootFormat::pages(ROOT_AT, ROOT_TAG);
/// Bytes of the line of a record.
pub(crate) const LINE: usize = 64;
/// Bytes of the line of a slot.
pub(crate) const SLOT_LINE: usize = 128;
/// No write has as high a number.
pub(crate) const SEQ_MAX: u64 = 1 << 47;

/// What tells a page cache from all else.
pub const FORMAT: Format = Format {
    signature: Signature {
        magic: *b"REMNVPG\0",
        second: Some(PAGE),
        making: Some(Making { at: 512, mark: b"REMNVPGm", ends: false }),
        head: 2 * PAGE as usize,
        note: Some((
            1024,
            "recover with a copy of the file that is whole; what is left is listed by a dry run",
        )),
    },
    versions: &[Version { number: VERSION, crc_at: 76, len: 80, twice: true }],
    places: Places::COMMON,
    checksum: Checksum::CRC32,
};

/// The fields behind those that every format has.
mod field {
    pub(super) const SALT: usize = 40;
    pub(super) const SLOTS: usize = 48;
    pub(super) const RECORDS: usize = 52;
    pub(super) const PAGE: usize = 56;
    pub(super) const FILES: usize = 60;
    pub(super) const PATH_MAX: usize = 64;
}

/// How a page cache divides its medium.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// How many pages it holds.
    pub slots: u32,
    /// How many records its redo log has, each of which takes as many bytes as a page.
    pub records: u32,
    /// Bytes of a page: 4096 where it is to fit a disk; a multiple of 64.
    pub page: u32,
    /// How many files it can name at a time.
    pub files: u32,
    /// Bytes of the longest path that it keeps of a file.
    pub path_max: u32,
}

impl Geometry {
    /// With pages of 4096 bytes, a record for each 16 of them, a thousand files and the longest paths that Linux has.
    #[must_use]
    pub const fn usual(slots: u32) -> Self {
        let records = if slots / 16 < 64 { 64 } else { slots / 16 };
        Self { slots, records, page: 4096, files: 1024, path_max: 4096 }
    }

    /// Whether there can be such a cache.
    #[must_use]
    pub const fn is_fair(&self) -> bool {
        self.slots >= 2
            && self.slots <= 1 << 28
            && self.records >= 2
            && self.records <= 1 << 24
            && self.page >= 64
            && self.page <= 4096
            && self.page.is_multiple_of(64)
            && self.table().is_fair()
    }

    /// That of a log with the same file table.
    const fn table(&self) -> format::Geometry {
        format::Geometry { entries: 8, slot: 64, files: self.files, path_max: self.path_max }
    }

    const fn mark_at(&self) -> u64 {
        2 * ROOT_AT + (self.files as u64 * self.table().file_slot()).next_multiple_of(PAGE)
    }

    /// All that a recovery looks at but the pages and the file table.
    pub(crate) const fn judged(&self) -> std::ops::Range<u64> {
        self.mark_at()..self.data_at()
    }

    const fn slots_at(&self) -> u64 {
        self.mark_at() + PAGE
    }

    const fn records_at(&self) -> u64 {
        self.slots_at() + (self.slots as u64 * SLOT_LINE as u64).next_multiple_of(PAGE)
    }

    const fn redo_at(&self) -> u64 {
        self.records_at() + (self.records as u64 * LINE as u64).next_multiple_of(PAGE)
    }

    const fn data_at(&self) -> u64 {
        self.redo_at() + (self.records as u64 * self.page as u64).next_multiple_of(PAGE)
    }

    /// Bytes of the whole cache.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.data_at() + (self.slots as u64 * self.page as u64).next_multiple_of(PAGE)
    }
}

/// Where things lie, and the salt of all that is checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// The name of the cache.
    pub uuid: Uuid,
    /// How it divides its medium.
    pub geometry: Geometry,
    /// It goes into each checksum, so that nothing of an earlier cache in the same place passes for something of this.
    pub salt: u64,
}

impl Layout {
    /// Where the data of a slot lies.
    #[must_use]
    pub const fn data(&self, slot: u32) -> u64 {
        self.geometry.data_at() + slot as u64 * self.geometry.page as u64
    }

    pub(crate) const fn slot(&self, slot: u32) -> u64 {
        self.geometry.slots_at() + slot as u64 * SLOT_LINE as u64
    }

    pub(crate) const fn record(&self, record: u32) -> u64 {
        self.geometry.records_at() + record as u64 * LINE as u64
    }

    pub(crate) const fn redo(&self, record: u32) -> u64 {
        self.geometry.redo_at() + record as u64 * self.geometry.page as u64
    }

    /// What the [file table](crate::table) takes for its layout, which is at the same place as a log's.
    #[must_use]
    pub const fn table(&self) -> format::Layout {
        let geometry = self.geometry.table();
        format::Layout { uuid: self.uuid, geometry, salt: self.salt, together: false }
    }

    /// Reads the head of a medium.
    ///
    /// # Errors
    /// It has no page cache of this version that is whole and fits.
    pub fn read(medium: &impl Medium) -> Result<Self, Fault> {
        let head = FORMAT.read(medium);
        let fields = FORMAT.judge(&head)?.fields;
        let geometry = Geometry {
            slots: fields.u32(field::SLOTS),
            records: fields.u32(field::RECORDS),
            page: fields.u32(field::PAGE),
            files: fields.u32(field::FILES),
            path_max: fields.u32(field::PATH_MAX),
        };
        if !geometry.is_fair() || geometry.size() != fields.size() {
            return Err(remanence_pmem::image::Fault::Damaged.into());
        }
        fields.fill(medium.len())?;
        Ok(Self { uuid: fields.uuid(), geometry, salt: fields.u64(field::SALT) })
    }
}

/// How every opener of a page cache's file opens it.
#[must_use]
pub fn file_options() -> FileOptions {
    fn image(head: &[u8], len: u64) -> Image {
        FORMAT.image(head, len)
    }
    FORMAT.signature.file_options(image).written(true)
}

/// Makes an empty page cache on a medium that is blank, or on which one was being made; durable on return.
///
/// # Errors
/// There is something on the medium, it has not the cache's size, or it failed.
pub fn make(
    medium: &impl Medium,
    uuid: Uuid,
    geometry: Geometry,
    salt: u64,
    promise: Promise,
) -> Result<Layout, Fault> {
    use remanence_pmem::image::Fault as Head;
    match FORMAT.signature.judge(&FORMAT.read(medium)) {
        Err(Head::Blank | Head::Making) => {}
        Ok(()) => return Err(Fault::Exists),
        Err(fault) => return Err(fault.into()),
    }
    if !geometry.is_fair() || medium.len() != geometry.size() {
        return Err(Fault::Size { has: medium.len(), wants: geometry.size() });
    }
    FORMAT.signature.begin(medium)?;
    // A medium that is blank need have no zeros behind its head. What has some is left alone, so that a sparse file stays one.
    let mut at = ROOT_AT;
    let mut page = [0; PAGE as usize];
    while at < geometry.redo_at() {
        medium.read(at, &mut page);
        if page.iter().any(|byte| *byte != 0) {
            medium.write_nt(at, &[0; PAGE as usize]);
        }
        at += PAGE;
    }
    medium.psync()?;
    Root::format(medium, ROOT_AT, ROOT_TAG, &Record::empty(1, promise).emit())?;
    let own: [(usize, &[u8]); 6] = [
        (field::SALT, &salt.to_le_bytes()),
        (field::SLOTS, &geometry.slots.to_le_bytes()),
        (field::RECORDS, &geometry.records.to_le_bytes()),
        (field::PAGE, &geometry.page.to_le_bytes()),
        (field::FILES, &geometry.files.to_le_bytes()),
        (field::PATH_MAX, &geometry.path_max.to_le_bytes()),
    ];
    FORMAT.make(medium, &FORMAT.emit(VERSION, uuid, geometry.size(), &own))?;
    Ok(Layout { uuid, geometry, salt })
}

/// The root record: the paper's flag (4.2), and from where on anything counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// What has a lower number is of an earlier life, and is in its file.
    pub floor: u64,
    /// When writes are durable.
    pub promise: Promise,
    /// Somebody writes, or may have: what lies here is to be recovered before anybody else does.
    pub open: bool,
    /// A recovery has begun that had lost nothing, and has made all durable that it has found: so nothing was lost for the next one either.
    pub kept: bool,
}

impl Record {
    /// That of a cache of which all is in its files.
    #[must_use]
    pub const fn empty(floor: u64, promise: Promise) -> Self {
        Self { floor, promise, open: false, kept: false }
    }

    fn emit(&self) -> Vec<u8> {
        let mut out = Writer::new(ROOT_PAYLOAD_MAX);
        out.u64_le(self.floor);
        out.u8(u8::from(self.promise == Promise::AtSync));
        out.u8(u8::from(self.open));
        out.u8(u8::from(self.kept));
        out.finish().expect("eleven bytes fit")
    }

    fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut bytes = Reader::new(bytes);
        let floor = bytes.u64_le()?;
        let promise = if bytes.bool()? { Promise::AtSync } else { Promise::AtReturn };
        let (open, kept) = (bytes.bool()?, bytes.bool()?);
        bytes.end()?;
        if floor == 0 || floor >= 2 * SEQ_MAX {
            bytes.fail()
        } else {
            Ok(Self { floor, promise, open, kept })
        }
    }

    /// Reads the root record; both its copies say so durably from then on.
    ///
    /// # Errors
    /// Both copies are damaged, or the medium failed.
    pub fn read(medium: &impl Medium) -> Result<Self, Fault> {
        let (_, payload) = Root::open(medium, ROOT_AT, ROOT_TAG)?;
        Self::parse(&payload).map_err(|_| Fault::Root)
    }

    /// The same, without a change of the medium, for who only looks.
    ///
    /// # Errors
    /// No copy is whole.
    pub fn peek(medium: &impl Medium) -> Result<Self, Fault> {
        let newest = Root::slots(&medium, ROOT_AT, ROOT_TAG).pop().ok_or(Fault::Root)?;
        Self::parse(&newest).map_err(|_| Fault::Root)
    }

    /// Replaces the root record; durable on return.
    ///
    /// # Errors
    /// The medium failed: either record may be found later.
    pub fn store(&self, medium: &impl Medium) -> Result<(), Fault> {
        let payload = self.emit();
        let mut header = vec![0; ROOT.framing.header];
        header[..8].copy_from_slice(&ROOT.magic);
        header[16..20].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        Ok(ROOT.store(medium, &header, &payload)?)
    }
}

fn crc(parts: &[&[u8]]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    parts.iter().for_each(|part| crc.update(part));
    crc.finalize()
}

/// A word that says a number and that it was written for this place.
fn stamp(salt: u64, place: u64, number: u64) -> u64 {
    let check = crc(&[&salt.to_le_bytes(), &place.to_le_bytes(), &number.to_le_bytes()]);
    number << 16 | u64::from(check & 0xffff)
}

/// Stamps of records that are to be carried out no more are for other places.
const GONE: u64 = 1 << 40;

/// What is known of all writes up to a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Level {
    /// None is in progress, and all is in place, durably: no record of theirs is needed.
    InPlace,
    /// They are durable.
    Durable,
}

impl Level {
    /// Where its words lie, and which place the stamps are for: none that a slot or a record has.
    const fn words(self) -> ([u64; 2], u64) {
        match self {
            Self::InPlace => ([0, PAGE / 2], u64::MAX),
            Self::Durable => ([64, PAGE / 2 + 64], u64::MAX - 1),
        }
    }

    /// Says so; to be waited for.
    pub(crate) fn put(self, medium: &impl Medium, layout: &Layout, seq: u64) {
        let (places, place) = self.words();
        for at in places {
            let at = layout.geometry.mark_at() + at;
            medium.store_u64(at, stamp(layout.salt, place, seq));
            medium.pwb(at..at + 8);
        }
    }

    pub(crate) fn read(self, medium: &impl Medium, layout: &Layout) -> u64 {
        let (places, place) = self.words();
        let words = places.map(|at| medium.load_u64(layout.geometry.mark_at() + at));
        let whole = words.into_iter().filter(|word| *word == stamp(layout.salt, place, word >> 16));
        whole.map(|word| word >> 16).max().unwrap_or(0)
    }
}

fn u64_at(line: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(line[at..at + 8].try_into().expect("eight bytes"))
}

fn u32_at(line: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(line[at..at + 4].try_into().expect("four bytes"))
}

fn u16_at(line: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(line[at..at + 2].try_into().expect("two bytes"))
}

/// What is in place in a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mark {
    /// All records of the slot up to this write.
    pub(crate) seq: u64,
    /// So many bytes of the page are of the file.
    pub(crate) valid: u32,
    /// CRC-32 of the whole page.
    pub(crate) content: u32,
}

/// What the line of a slot says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SlotLine {
    pub(crate) file: FileId,
    pub(crate) page: u64,
    pub(crate) born: u64,
    /// It holds the page no more.
    pub(crate) free: bool,
    /// The marks that are whole, the newest first.
    pub(crate) marks: [Option<Mark>; 2],
}

/// Where the two marks of a slot's line lie, each in its copies.
const MARKS: [[usize; 2]; 2] = [[32, 64], [48, 80]];
const FREE: [usize; 2] = [24, 96];

fn slot_crc(salt: u64, slot: u32, line: &[u8]) -> u32 {
    crc(&[&salt.to_le_bytes(), &slot.to_le_bytes(), &line[..4], &line[8..24]])
}

impl Mark {
    fn emit(&self, salt: u64, slot: u32, born: u64) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&(self.seq << 16 | u64::from(self.valid)).to_le_bytes());
        bytes[8..12].copy_from_slice(&self.content.to_le_bytes());
        let check = crc(&[&salt.to_le_bytes(), &slot.to_le_bytes(), &born.to_le_bytes(), &bytes[..12]]);
        bytes[12..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    fn parse(bytes: &[u8], layout: &Layout, slot: u32, born: u64) -> Option<Self> {
        let word = u64_at(bytes, 0);
        let mark = Self { seq: word >> 16, valid: word as u32 & 0xffff, content: u32_at(bytes, 8) };
        (mark.valid <= layout.geometry.page && *bytes == mark.emit(layout.salt, slot, born)).then_some(mark)
    }

    /// Writes one of the two. A crash may tear it: then the other one counts. A bit that rots is only in one of its copies.
    pub(crate) fn put(&self, medium: &impl Medium, layout: &Layout, slot: u32, born: u64, which: usize) {
        let bytes = self.emit(layout.salt, slot, born);
        for at in MARKS[which] {
            let at = layout.slot(slot) + at as u64;
            medium.write(at, &bytes);
            medium.pwb(at..at + 16);
        }
    }

    /// Those of a line that are whole, the newest first.
    fn all(line: &[u8; SLOT_LINE], layout: &Layout, slot: u32, born: u64) -> [Option<Self>; 2] {
        let mut marks = MARKS.map(|copies| {
            copies.into_iter().find_map(|at| Self::parse(&line[at..at + 16], layout, slot, born))
        });
        marks.sort_by_key(|mark| std::cmp::Reverse(mark.map(|mark| mark.seq)));
        marks
    }
}

impl SlotLine {
    /// Says that a slot holds a page from now on. The word that says that it does not is left as it is: it is of the life before.
    pub(crate) fn put(medium: &impl Medium, layout: &Layout, slot: u32, page: (FileId, u64), born: u64) {
        let mut line = [0; 24];
        line[..4].copy_from_slice(&page.0.0.to_le_bytes());
        line[8..16].copy_from_slice(&page.1.to_le_bytes());
        line[16..].copy_from_slice(&born.to_le_bytes());
        let sum = slot_crc(layout.salt, slot, &line);
        line[4..8].copy_from_slice(&sum.to_le_bytes());
        let at = layout.slot(slot);
        medium.write(at, &line);
        medium.pwb(at..at + 24);
    }

    /// Says that it holds the page no more.
    pub(crate) fn free(medium: &impl Medium, layout: &Layout, slot: u32, born: u64) {
        for at in FREE {
            let at = layout.slot(slot) + at as u64;
            medium.store_u64(at, stamp(layout.salt, slot.into(), born));
            medium.pwb(at..at + 8);
        }
    }

    /// The last life of a slot that was said to be over; those before it are as well.
    pub(crate) fn freed(medium: &impl Medium, layout: &Layout, slot: u32) -> u64 {
        let words = FREE.map(|at| medium.load_u64(layout.slot(slot) + at as u64));
        let whole = words.into_iter().filter(|word| *word == stamp(layout.salt, slot.into(), word >> 16));
        whole.map(|word| word >> 16).max().unwrap_or(0)
    }

    /// Whether a line that is not whole is one that held a page, and not one that was torn when it got another: then one of its marks says so, with the
    /// number that the line says or one that differs in a bit, and nothing says that it is over.
    pub(crate) fn held(medium: &impl Medium, layout: &Layout, slot: u32, floor: u64) -> bool {
        let mut line = [0; SLOT_LINE];
        medium.read(layout.slot(slot), &mut line);
        let said = u64_at(&line, 16);
        let first = floor.max(Self::freed(medium, layout, slot) + 1);
        let flips = std::iter::once(0).chain((0..64).map(|bit| 1 << bit));
        flips.map(|flip| said ^ flip).filter(|born| (first..SEQ_MAX).contains(born)).any(|born| {
            let [newest, _] = Mark::all(&line, layout, slot, born);
            newest.is_some_and(|mark| mark.seq >= born)
        })
    }

    /// Reads the line of a slot. `None`: it is blank, or not whole.
    pub(crate) fn read(medium: &impl Medium, layout: &Layout, slot: u32) -> Option<Self> {
        let mut line = [0; SLOT_LINE];
        medium.read(layout.slot(slot), &mut line);
        let born = u64_at(&line, 16);
        if u32_at(&line, 4) != slot_crc(layout.salt, slot, &line) || !(1..SEQ_MAX).contains(&born) {
            return None;
        }
        Some(Self {
            file: FileId(u32_at(&line, 0)),
            page: u64_at(&line, 8),
            born,
            free: Self::freed(medium, layout, slot) >= born,
            marks: Mark::all(&line, layout, slot, born),
        })
    }
}

/// What a record does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Bytes,
    Truncate,
}

/// What the line of a record says, its commit word apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RecordLine {
    pub(crate) seq: u64,
    /// Of a truncation the length.
    pub(crate) born: u64,
    /// Of a truncation the file.
    pub(crate) slot: u32,
    pub(crate) offset: u32,
    pub(crate) len: u32,
    pub(crate) data: u32,
    pub(crate) back: u16,
    pub(crate) count: u16,
    pub(crate) kind: Kind,
    pub(crate) durable: u64,
}

/// What a commit word says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Commit {
    Nothing,
    /// The commit word of this write.
    Of(u64),
    /// This truncation, which its file has.
    Gone(u64),
    /// No writer wrote it.
    Damaged,
}

pub(crate) fn data_crc(salt: u64, seq: u64, data: &[u8]) -> u32 {
    crc(&[&salt.to_le_bytes(), &seq.to_le_bytes(), data])
}

pub(crate) fn content_crc(page: &[u8]) -> u32 {
    crc(&[page])
}

impl RecordLine {
    /// Writes all but the commit word.
    pub(crate) fn put(&self, medium: &impl Medium, layout: &Layout, record: u32) {
        let mut line = [0; LINE];
        let mut set = |at: usize, bytes: &[u8]| line[at..at + bytes.len()].copy_from_slice(bytes);
        set(8, &self.seq.to_le_bytes());
        set(16, &self.born.to_le_bytes());
        set(24, &self.slot.to_le_bytes());
        set(28, &self.offset.to_le_bytes());
        set(32, &self.len.to_le_bytes());
        set(36, &self.data.to_le_bytes());
        set(40, &self.back.to_le_bytes());
        set(42, &self.count.to_le_bytes());
        set(44, &u16::from(self.kind == Kind::Truncate).to_le_bytes());
        set(48, &self.durable.to_le_bytes());
        let sum = crc(&[&layout.salt.to_le_bytes(), &line[8..60]]);
        line[60..].copy_from_slice(&sum.to_le_bytes());
        let at = layout.record(record);
        medium.write(at + 8, &line[8..]);
        medium.pwb(at + 8..at + LINE as u64);
    }

    /// Reads the line of a record, if it is whole.
    pub(crate) fn read(medium: &impl Medium, layout: &Layout, record: u32) -> Option<Self> {
        let mut line = [0; LINE];
        medium.read(layout.record(record), &mut line);
        if u32_at(&line, 60) != crc(&[&layout.salt.to_le_bytes(), &line[8..60]]) {
            return None;
        }
        let kind = match u16_at(&line, 44) {
            0 => Kind::Bytes,
            1 => Kind::Truncate,
            _ => return None,
        };
        let found = Self {
            seq: u64_at(&line, 8),
            born: u64_at(&line, 16),
            slot: u32_at(&line, 24),
            offset: u32_at(&line, 28),
            len: u32_at(&line, 32),
            data: u32_at(&line, 36),
            back: u16_at(&line, 40),
            count: u16_at(&line, 42),
            kind,
            durable: u64_at(&line, 48),
        };
        let fair = (1..SEQ_MAX).contains(&found.seq)
            && found.durable < found.seq
            && found.back < found.count
            && u64::from(found.offset) + u64::from(found.len) <= layout.geometry.page.into()
            && match kind {
                Kind::Bytes => found.slot < layout.geometry.slots,
                Kind::Truncate => found.slot < layout.geometry.files && found.count == 1,
            };
        fair.then_some(found)
    }

    /// Stores the commit word of a write.
    pub(crate) fn commit(medium: &impl Medium, layout: &Layout, record: u32, seq: u64) {
        let at = layout.record(record);
        medium.store_u64(at, stamp(layout.salt, record.into(), seq));
        medium.pwb(at..at + 8);
    }

    /// What a commit word says.
    pub(crate) fn committed(medium: &impl Medium, layout: &Layout, record: u32) -> Commit {
        let word = medium.load_u64(layout.record(record));
        match word >> 16 {
            seq if word == stamp(layout.salt, record.into(), seq) => Commit::Of(seq),
            seq if word == stamp(layout.salt, GONE | u64::from(record), seq) => Commit::Gone(seq),
            _ if word == 0 => Commit::Nothing,
            _ => Commit::Damaged,
        }
    }

    /// Says of a truncation that its file has it.
    pub(crate) fn let_go(medium: &impl Medium, layout: &Layout, record: u32, seq: u64) {
        let at = layout.record(record);
        medium.store_u64(at, stamp(layout.salt, GONE | u64::from(record), seq));
        medium.pwb(at..at + 8);
    }
}

#[cfg(test)]
mod tests {
    use remanence_pmem::PersistenceDomain;
    use remanence_pmem::crash_image::CrashImage;

    use super::*;

    fn made() -> (CrashImage, Layout) {
        let geometry = Geometry { slots: 4, records: 4, page: 64, files: 2, path_max: 64 };
        let image = CrashImage::new(geometry.size(), PersistenceDomain::Adr);
        let layout = make(&image, Uuid([3; 16]), geometry, 99, Promise::AtReturn).unwrap();
        (image, layout)
    }

    fn flip(image: &CrashImage, at: u64, bit: u64) {
        let mut byte = [0];
        image.read(at + bit / 8, &mut byte);
        image.write(at + bit / 8, &[byte[0] ^ 1 << (bit % 8)]);
    }

    #[test]
    fn what_was_made_is_read_and_another_is_not_made_over_it() {
        let (image, layout) = made();
        assert_eq!(Layout::read(&image).unwrap(), layout);
        assert_eq!(Record::read(&image).unwrap(), Record::empty(1, Promise::AtReturn));
        let again = make(&image, Uuid([3; 16]), layout.geometry, 99, Promise::AtReturn);
        assert!(matches!(again, Err(Fault::Exists)));
        assert!(layout.data(0).is_multiple_of(4096) && layout.redo(0).is_multiple_of(4096));
        let usual = Geometry::usual(1 << 16);
        assert!(usual.is_fair() && usual.size().is_multiple_of(4096));
        assert_eq!(layout.data(3) + 64, layout.geometry.size() - 4096 + 256, "the last slot lies inside");
    }

    #[test]
    fn each_flipped_bit_of_a_line_is_found() {
        let (image, layout) = made();
        SlotLine::put(&image, &layout, 2, (FileId(1), 77), 5);
        Mark { seq: 4, valid: 64, content: 9 }.put(&image, &layout, 2, 5, 1);
        let slot = SlotLine::read(&image, &layout, 2).unwrap();
        let mark = Mark { seq: 4, valid: 64, content: 9 };
        assert_eq!((slot.file, slot.page, slot.born, slot.free), (FileId(1), 77, 5, false));
        assert_eq!(slot.marks, [Some(mark), None]);
        for bit in 0..24 * 8 {
            flip(&image, layout.slot(2), bit);
            assert_eq!(SlotLine::read(&image, &layout, 2), None, "bit {bit}");
            flip(&image, layout.slot(2), bit);
        }
        for bit in 0..16 * 8 {
            flip(&image, layout.slot(2) + 48, bit);
            assert_eq!(SlotLine::read(&image, &layout, 2).unwrap().marks, [Some(mark), None], "bit {bit}");
            flip(&image, layout.slot(2) + 80, bit);
            assert_eq!(SlotLine::read(&image, &layout, 2).unwrap().marks, [None, None], "bit {bit}");
            flip(&image, layout.slot(2) + 48, bit);
            flip(&image, layout.slot(2) + 80, bit);
        }
        assert!(
            !SlotLine::held(&image, &layout, 2, 1),
            "nothing is in place of the write that made it dirty"
        );
        Mark { seq: 5, ..mark }.put(&image, &layout, 2, 5, 0);
        flip(&image, layout.slot(2) + 16, 9);
        assert!(SlotLine::read(&image, &layout, 2).is_none() && SlotLine::held(&image, &layout, 2, 1));
        flip(&image, layout.slot(2) + 16, 9);
        SlotLine::free(&image, &layout, 2, 5);
        flip(&image, layout.slot(2) + 24, 60);
        assert!(SlotLine::read(&image, &layout, 2).unwrap().free && !SlotLine::held(&image, &layout, 2, 1));
        SlotLine::put(&image, &layout, 2, (FileId(1), 77), 6);
        let again = SlotLine::read(&image, &layout, 2).unwrap();
        assert_eq!((again.free, again.marks), (false, [None, None]), "of another life");

        let line = RecordLine {
            seq: 9,
            born: 6,
            slot: 2,
            offset: 8,
            len: 4,
            data: 7,
            back: 0,
            count: 1,
            kind: Kind::Bytes,
            durable: 8,
        };
        line.put(&image, &layout, 3);
        assert_eq!(RecordLine::read(&image, &layout, 3), Some(line));
        assert_eq!(RecordLine::committed(&image, &layout, 3), Commit::Nothing);
        for bit in 64..512 {
            flip(&image, layout.record(3), bit);
            assert_eq!(RecordLine::read(&image, &layout, 3), None, "bit {bit}");
            flip(&image, layout.record(3), bit);
        }
        RecordLine::commit(&image, &layout, 3, 9);
        assert_eq!(RecordLine::committed(&image, &layout, 3), Commit::Of(9));
        flip(&image, layout.record(3), 40);
        assert_eq!(RecordLine::committed(&image, &layout, 3), Commit::Damaged);
        RecordLine::let_go(&image, &layout, 3, 9);
        assert_eq!(RecordLine::committed(&image, &layout, 3), Commit::Gone(9));
        Level::InPlace.put(&image, &layout, 12);
        Level::Durable.put(&image, &layout, 15);
        let levels = || [Level::InPlace, Level::Durable].map(|level| level.read(&image, &layout));
        assert_eq!(levels(), [12, 15]);
        flip(&image, layout.geometry.mark_at(), 20);
        flip(&image, layout.geometry.mark_at() + 64, 20);
        assert_eq!(levels(), [12, 15], "there is another copy");
    }
}
