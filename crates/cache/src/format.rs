//! What lies where on the log's medium, and the record that says where the log begins. Little-endian.
//!
//! ```text
//! page 0   superblock              page 2   root, in two copies: where the log begins, and what a recovery has decided
//! page 1   its second copy         page 4   file table, and from a page on the entries, in one of two ways
//! ```
//! | version | entries | of |
//! |---|---|---|
//! | 1 | all headers, and from a page on all data: a log that has only begun takes little memory, and recovery reads 64 bytes an entry | media where each store is durable by itself, and logs of older releases |
//! | 2 | each header with its data behind it, so that what a sync makes durable lies in one place, and is one write | media of which pages are written ([`Promise::AtSync`]) |
//!
//! What a crash may leave of both is the same, as no order is asked of a header and its data: each has a checksum. A page has parts of several entries in both, and is written again
//! with those that were durable before as they are.

use remanence_codec::{Malformed, Reader, Writer};
use remanence_pmem::image::{
    Checksum, Fault, Format, Making, Places, Root, RootError, RootFormat, Signature, Version,
};
use remanence_pmem::layout::Uuid;
use remanence_pmem::{FileOptions, Image, Medium};

use crate::entry::{HEADER_LEN, INDEX_MAX};
use crate::table::{FileId, SLOT_HEAD};

/// The latest version of the format, in which the data of an entry lies behind its header.
pub const VERSION: u32 = 2;
/// The version in which all headers lie in front of all data.
const APART: u32 = 1;

const PAGE: u64 = 4096;
const ROOT_AT: u64 = 2 * PAGE;
const TABLE_AT: u64 = 4 * PAGE;
const ROOT_TAG: u64 = u64::from_le_bytes(*b"REMNVLGr");
const ROOT: RootFormat = RootFormat::pages(ROOT_AT, ROOT_TAG);
/// Bytes before the payload of a root record in two pages.
const ROOT_HEADER: usize = ROOT.framing.header;
/// So many files are named one by one in the root record; more are held as all are.
const HELD_MAX: usize = 450;

/// What tells a log from all else.
pub const FORMAT: Format = Format {
    signature: Signature {
        magic: *b"REMNVLG\0",
        second: Some(PAGE),
        making: Some(Making { at: 512, mark: b"REMNVLGm", ends: false }),
        head: 2 * PAGE as usize,
        note: Some((
            1024,
            "recover with a copy of the file that is whole; what is left is listed by a dry run",
        )),
    },
    versions: &[
        Version { number: VERSION, crc_at: 76, len: 80, twice: true },
        Version { number: APART, crc_at: 76, len: 80, twice: true },
    ],
    places: Places::COMMON,
    checksum: Checksum::CRC32,
};

/// The fields behind those that every format has.
mod field {
    pub(super) const ENTRIES: usize = 40;
    pub(super) const SALT: usize = 48;
    pub(super) const SLOT: usize = 56;
    pub(super) const FILES: usize = 60;
    pub(super) const PATH_MAX: usize = 64;
}

/// How a log divides its medium.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// How many entries it has, 8 at least.
    pub entries: u64,
    /// Bytes of an entry's data: a multiple of 64, and of a page where data is to be handed on as it is.
    pub slot: u32,
    /// How many files it can name at a time.
    pub files: u32,
    /// Bytes of the longest path that it keeps of a file.
    pub path_max: u32,
}

impl Geometry {
    /// With slots of a page, a thousand files and the longest paths that Linux has.
    #[must_use]
    pub const fn usual(entries: u64) -> Self {
        Self { entries, slot: 4096, files: 1024, path_max: 4096 }
    }

    /// Whether there can be such a log.
    #[must_use]
    pub const fn is_fair(&self) -> bool {
        self.entries >= 8
            && self.entries <= 1 << 32
            && self.slot >= 64
            && self.slot <= 1 << 20
            && self.slot.is_multiple_of(64)
            && self.files >= 1
            && self.files <= 1 << 20
            && self.path_max >= 64
            && self.path_max <= 1 << 16
            && self.path_max.is_multiple_of(64)
    }

    /// Bytes of a slot of the file table.
    #[must_use]
    pub(crate) const fn file_slot(&self) -> u64 {
        SLOT_HEAD as u64 + self.path_max as u64
    }

    /// Where the entries begin.
    const fn headers_at(&self) -> u64 {
        TABLE_AT + (self.files as u64 * self.file_slot()).next_multiple_of(PAGE)
    }

    /// Where their data begins, if it lies apart.
    const fn data_at(&self) -> u64 {
        self.headers_at() + (self.entries * HEADER_LEN as u64).next_multiple_of(PAGE)
    }

    /// Bytes of the whole log, of either version.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.data_at() + (self.entries * self.slot as u64).next_multiple_of(PAGE)
    }
}

/// Where things lie, and the salt of all that is checked. Two are equal if they are of one log: its copies do not know how its entries lie.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// The name of the log.
    pub uuid: Uuid,
    /// How it divides its medium.
    pub geometry: Geometry,
    /// It goes into each stamp and checksum, so that nothing of an earlier log in the same place passes for one of this.
    pub salt: u64,
    /// The data of each entry lies behind its header, and not apart from all headers.
    pub together: bool,
}

impl PartialEq for Layout {
    fn eq(&self, other: &Self) -> bool {
        (self.uuid, self.geometry, self.salt) == (other.uuid, other.geometry, other.salt)
    }
}

impl Eq for Layout {}

impl Layout {
    /// The lap that an index is in.
    pub(crate) const fn lap(&self, index: u64) -> u64 {
        index / self.geometry.entries
    }

    /// Where the header of an index lies.
    #[must_use]
    pub const fn header(&self, index: u64) -> u64 {
        let slot = if self.together { self.geometry.slot as u64 } else { 0 };
        self.geometry.headers_at() + index % self.geometry.entries * (HEADER_LEN as u64 + slot)
    }

    /// Where the data of an index lies.
    #[must_use]
    pub const fn data(&self, index: u64) -> u64 {
        match self.together {
            true => self.header(index) + HEADER_LEN as u64,
            false => self.geometry.data_at() + index % self.geometry.entries * self.geometry.slot as u64,
        }
    }

    /// Where the slot of a file lies.
    pub(crate) const fn file(&self, file: FileId) -> u64 {
        TABLE_AT + file.0 as u64 * self.geometry.file_slot()
    }

    /// Reads the head of a medium.
    ///
    /// # Errors
    /// It has no log of this version that is whole and fits.
    pub fn read(medium: &impl Medium) -> Result<Self, OpenError> {
        let head = FORMAT.read(medium);
        let fields = FORMAT.judge(&head)?.fields;
        let geometry = Geometry {
            entries: fields.u64(field::ENTRIES),
            slot: fields.u32(field::SLOT),
            files: fields.u32(field::FILES),
            path_max: fields.u32(field::PATH_MAX),
        };
        if !geometry.is_fair() || geometry.size() != fields.size() {
            return Err(Fault::Damaged.into());
        }
        fields.fill(medium.len())?;
        let together = fields.version() != APART;
        Ok(Self { uuid: fields.uuid(), geometry, salt: fields.u64(field::SALT), together })
    }
}

/// How every opener of a log's file opens it.
#[must_use]
pub fn file_options() -> FileOptions {
    fn image(head: &[u8], len: u64) -> Image {
        FORMAT.image(head, len)
    }
    FORMAT.signature.file_options(image).written(true)
}

/// Makes an empty log on a medium that is blank, or on which one was being made; durable on return. By what it promises it is known which version is better for its medium; either
/// can promise both.
///
/// # Errors
/// There is something on the medium, it has not the log's size, or it failed.
pub fn make(
    medium: &impl Medium,
    uuid: Uuid,
    geometry: Geometry,
    salt: u64,
    promise: Promise,
) -> Result<Layout, OpenError> {
    match FORMAT.signature.judge(&FORMAT.read(medium)) {
        Err(Fault::Blank | Fault::Making) => {}
        Ok(()) => return Err(OpenError::Exists),
        Err(fault) => return Err(fault.into()),
    }
    if !geometry.is_fair() || medium.len() != geometry.size() {
        return Err(OpenError::Size { has: medium.len(), wants: geometry.size() });
    }
    FORMAT.signature.begin(medium)?;
    let together = promise == Promise::AtSync;
    let (version, headers_end) =
        if together { (VERSION, geometry.size()) } else { (APART, geometry.data_at()) };
    // A medium that is blank need have no zeros behind its head. What has some is left alone, so that a sparse file stays one.
    let mut at = ROOT_AT;
    let mut page = [0; PAGE as usize];
    while at < headers_end {
        medium.read(at, &mut page);
        if page.iter().any(|byte| *byte != 0) {
            medium.write_nt(at, &[0; PAGE as usize]);
        }
        at += PAGE;
    }
    medium.psync()?;
    // From the second lap on: a stamp of index 0 could not be told from zeros.
    Record::empty(geometry.entries, promise).create(medium)?;
    let own: [(usize, &[u8]); 5] = [
        (field::ENTRIES, &geometry.entries.to_le_bytes()),
        (field::SALT, &salt.to_le_bytes()),
        (field::SLOT, &geometry.slot.to_le_bytes()),
        (field::FILES, &geometry.files.to_le_bytes()),
        (field::PATH_MAX, &geometry.path_max.to_le_bytes()),
    ];
    FORMAT.make(medium, &FORMAT.emit(version, uuid, geometry.size(), &own))?;
    Ok(Layout { uuid, geometry, salt, together })
}

/// When an entry is durable. It is chosen when the log is opened, while it is empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Promise {
    /// When the append returns: for media where a fence and a wait are instructions.
    AtReturn,
    /// When a sync that is behind it returns, and always a prefix in the order of the log: for media where a wait is long. A program that wants
    /// the other promise there syncs behind each append, which is one wait and not two.
    AtSync,
}

/// What a crash took from what was visible.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lost {
    /// Nothing: processes died, and the memory with their last stores stands.
    Nothing,
    /// What nobody had waited for: the machine died.
    Unsynced,
}

/// Which files are not replayed, as something of them is damaged.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Held {
    /// These, and no others.
    Files(Vec<FileId>),
    /// All, as it is not known whose entry was damaged.
    All,
}

impl Held {
    /// Nothing is held.
    #[must_use]
    pub const fn nothing() -> Self {
        Self::Files(Vec::new())
    }

    /// Whether no file is held.
    #[must_use]
    pub const fn is_nothing(&self) -> bool {
        matches!(self, Self::Files(files) if files.is_empty())
    }

    /// Whether a file is held.
    #[must_use]
    pub fn has(&self, file: FileId) -> bool {
        match self {
            Self::Files(files) => files.contains(&file),
            Self::All => true,
        }
    }

    fn emit(&self, out: &mut Writer) {
        let files = match self {
            Self::Files(files) if files.len() <= HELD_MAX => &files[..],
            _ => &[],
        };
        let all = matches!(self, Self::All) || files.is_empty() && !self.is_nothing();
        out.u8(u8::from(all));
        out.u32_le(files.len() as u32);
        files.iter().for_each(|file| out.u32_le(file.0));
    }

    fn parse(bytes: &mut Reader<'_>) -> Result<Self, Malformed> {
        let all = bytes.bool()?;
        let count = bytes.u32_le()? as usize;
        let files = bytes.many(count, 4, |bytes| bytes.u32_le().map(FileId))?;
        Ok(if all { Self::All } else { Self::Files(files) })
    }
}

/// What a recovery has decided, before it changed any file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seal {
    /// Entries below count, if they are whole; none from here on does.
    pub end: u64,
    /// What had been lost when that was decided.
    pub lost: Lost,
    /// The only files of which entries are still due. All, until a recovery has come to its end.
    pub due: Held,
    /// Files that others had changed when a recovery began; `None` until one has looked. It is decided once, as a recovery changes files itself.
    pub foreign: Option<Held>,
}

/// The root record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// The persistent tail: entries below are in their files.
    pub tail: u64,
    /// When entries are durable.
    pub promise: Promise,
    /// Somebody appends, or may have: what lies from the tail on is to be recovered before anybody else does.
    pub open: bool,
    /// A recovery has begun.
    pub seal: Option<Seal>,
}

impl Record {
    /// That of a log without entries.
    #[must_use]
    pub const fn empty(tail: u64, promise: Promise) -> Self {
        Self { tail, promise, open: false, seal: None }
    }

    fn emit(&self) -> Vec<u8> {
        let mut out = Writer::new(remanence_pmem::image::ROOT_PAYLOAD_MAX);
        out.u64_le(self.tail);
        out.u8(u8::from(self.promise == Promise::AtSync));
        out.u8(u8::from(self.open));
        out.u8(u8::from(self.seal.is_some()));
        if let Some(seal) = &self.seal {
            out.u64_le(seal.end);
            out.u8(u8::from(seal.lost == Lost::Unsynced));
            seal.due.emit(&mut out);
            out.u8(u8::from(seal.foreign.is_some()));
            if let Some(foreign) = &seal.foreign {
                foreign.emit(&mut out);
            }
        }
        out.finish().expect("the root record fits its page")
    }

    fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut bytes = Reader::new(bytes);
        let tail = bytes.u64_le()?;
        let promise = if bytes.bool()? { Promise::AtSync } else { Promise::AtReturn };
        let open = bytes.bool()?;
        let seal = if bytes.bool()? {
            let end = bytes.u64_le()?;
            let lost = if bytes.bool()? { Lost::Unsynced } else { Lost::Nothing };
            let due = Held::parse(&mut bytes)?;
            let foreign = if bytes.bool()? { Some(Held::parse(&mut bytes)?) } else { None };
            Some(Seal { end, lost, due, foreign })
        } else {
            None
        };
        bytes.end()?;
        Ok(Self { tail, promise, open, seal })
    }

    fn create(&self, medium: &impl Medium) -> Result<(), OpenError> {
        Root::format(medium, ROOT_AT, ROOT_TAG, &self.emit())?;
        Ok(())
    }

    /// Reads the root record; both its copies say so durably from then on.
    ///
    /// # Errors
    /// Both copies are damaged, or the medium failed.
    pub fn read(medium: &impl Medium, layout: &Layout) -> Result<Self, OpenError> {
        let (_, payload) = Root::open(medium, ROOT_AT, ROOT_TAG)?;
        Self::checked(&payload, layout)
    }

    /// The same, without a change of the medium, for who only looks.
    ///
    /// # Errors
    /// No copy is whole.
    pub fn peek(medium: &impl Medium, layout: &Layout) -> Result<Self, OpenError> {
        let newest = Root::slots(&medium, ROOT_AT, ROOT_TAG).pop().ok_or(OpenError::Root)?;
        Self::checked(&newest, layout)
    }

    fn checked(payload: &[u8], layout: &Layout) -> Result<Self, OpenError> {
        let record = Self::parse(payload).map_err(|_| OpenError::Root)?;
        let Some(lap) = record.tail.checked_add(layout.geometry.entries) else { return Err(OpenError::Root) };
        let sealed = |seal: &Seal| (record.tail..=lap).contains(&seal.end);
        // A recovery may move it somewhat above the highest index, where nothing is reserved any more.
        let fair = record.tail >= layout.geometry.entries && record.tail < 2 * INDEX_MAX;
        if fair && record.seal.as_ref().is_none_or(sealed) { Ok(record) } else { Err(OpenError::Root) }
    }

    /// Replaces the root record; durable on return.
    ///
    /// # Errors
    /// The medium failed: either record may be found later.
    pub fn store(&self, medium: &impl Medium) -> Result<(), OpenError> {
        let payload = self.emit();
        let mut header = [0; ROOT_HEADER];
        header[..8].copy_from_slice(&ROOT.magic);
        header[16..20].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        Ok(ROOT.store(medium, &header, &payload)?)
    }
}

/// Why a log cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no log, or none that can be used.
    #[error("{}", said(*.0))]
    Image(Fault),
    /// A log was to be made where there is one.
    #[error("there is a log already: recover and remove it, or take another file")]
    Exists,
    /// The medium is not as long as the log that was to be made.
    #[error(
        "a log like this takes {wants} bytes, and the medium has {has}; its sizes may be out of bounds as well"
    )]
    Size {
        /// Bytes of the medium.
        has: u64,
        /// Bytes of the log.
        wants: u64,
    },
    /// The root record is damaged.
    #[error("both copies of the log's root record are damaged: where it begins is not known any more")]
    Root,
    /// The log was not closed.
    #[error("the log was not closed, and may have entries that their files lack: recover it first")]
    Dirty,
    /// The medium failed.
    #[error("the log's medium failed: {0}")]
    Medium(#[from] std::io::Error),
}

impl From<Fault> for OpenError {
    fn from(fault: Fault) -> Self {
        Self::Image(fault)
    }
}

impl From<RootError> for OpenError {
    fn from(error: RootError) -> Self {
        match error {
            RootError::Invalid { .. } => Self::Root,
            RootError::Medium(error) => Self::Medium(error),
        }
    }
}

fn said(fault: Fault) -> String {
    match fault {
        Fault::TooShort => "the medium is too short for a log".into(),
        Fault::Blank => "the medium is blank: make a log on it first".into(),
        Fault::Making => "a log was being made here, and nothing is in it: make it again".into(),
        Fault::Foreign => "the medium has something else than a log".into(),
        Fault::OtherByteOrder => "the log was written on a machine of the other byte order".into(),
        Fault::OtherVersion { found } => {
            format!("the log is of version {found}, and this release reads versions {APART} and {VERSION}")
        }
        Fault::Damaged => "both copies of the log's superblock are damaged".into(),
        Fault::Truncated { has, wants } => format!("the log has {wants} bytes, of which {has} are left"),
        Fault::Grown { has, wants } => format!("the log has {wants} bytes, and its medium {has}"),
    }
}
