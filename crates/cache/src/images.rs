//! The files on other machines, beside the log's copy: what is kept of them there, what of it may be given up, and how files are made again where
//! nothing is left.
//!
//! Among the records of a log's [copy] are *images*: a file's name, length and attributes, and pieces of its content, each as it was at an index of the log.
//! The groups below that index are in the records before it, and those from there on behind it. So whoever takes all records in their order, from any
//! of them on, and carries them out one by one, has each file as the last record left it, in all that these records provide.
//!
//! **What may be given up** is a beginning of the records. For each piece of a file, and for its name and length, the [`Keeper`] knows the oldest record that
//! provides something of it: the record that had it whole, or the first group that has made it. Records before the oldest of
//! all of these are needed by nobody ([`Keeper::begins`]). To give up more, the oldest pieces are sent once more, as they are by then ([`Keeper::oldest`]): their groups
//! are not needed any more either. That is all that a checkpoint is; there is none of a whole file, and nothing waits for one.
//!
//! **A piece is read** while nobody is in the middle of a change of its file that is logged; so it has exactly what the file's groups below an index
//! have made of it. A group that is sent again, below what its file has already, changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hasher as _};
use std::ops::Range;

use remanence_codec::{Malformed, Reader, Writer};

use crate::copy::{self, GONE, Group, HEAD, IMAGE, Opened, RECORD_MIN, RebuildError};
use crate::entry::{HEADER_LEN, Header, Kind, data_checksum};
use crate::format::Layout;
use crate::op::{Name, Op};
use crate::read::{Damage, Entry, Flaw};
use crate::table::{self, FileId};

/// Bytes of a piece of a file.
pub const PIECE: usize = 16 << 10;
/// Bytes of a piece in a record, before its content.
const PIECE_HEAD: usize = 12;
/// A piece that is all zeros has no content.
const ZEROS: u32 = 1 << 31;
/// In the place of a piece's number: the name, the length, and the attributes.
const META: u32 = u32::MAX;
/// Bytes of an image before its path.
const META_HEAD: usize = HEAD + 24 + 1 + 8 + 8 + 12 + 2 + 2;
/// No file is longer: the numbers of its pieces have 32 bits.
pub const FILE_MAX: u64 = (META as u64 - 1) * PIECE as u64;

/// `FALLOC_FL_KEEP_SIZE`, `FALLOC_FL_PUNCH_HOLE` and `FALLOC_FL_ZERO_RANGE`.
const KEEPS_SIZE: u32 = 1;
const ZEROES: u32 = 2 | 0x10;

/// Which file: by device, inode, and time of birth.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct FileKey {
    /// The device of its file system.
    pub device: u64,
    /// The number of its inode.
    pub inode: u64,
    /// When it was made.
    pub born: u64,
}

/// How much of a file is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// It is being sent for the first time: it could not be made again.
    Building,
    /// All of it.
    Whole,
    /// All of it, but what was changed without being logged since is being sent.
    Stale,
    /// Nothing: there was no room for it.
    GivenUp,
}

impl State {
    const ALL: [Self; 4] = [Self::Building, Self::Whole, Self::Stale, Self::GivenUp];
}

/// A file's name, length and attributes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Meta {
    /// Which file that is.
    pub key: FileKey,
    /// How much of it is there.
    pub state: State,
    /// So it was when all its groups below this index were carried out, and none from there on.
    pub at: u64,
    /// Bytes of the file.
    pub len: u64,
    /// Its type and permissions, as in `st_mode`.
    pub mode: u32,
    /// Whose it is: user and group.
    pub owner: [u32; 2],
    /// Its whole path.
    pub path: Vec<u8>,
}

/// How many pieces a record of `max` bytes has room for, beside a path.
#[must_use]
pub const fn pieces_of(max: usize, path: usize) -> usize {
    max.saturating_sub(META_HEAD + path) / (PIECE + PIECE_HEAD)
}

const _: () = assert!(pieces_of(RECORD_MIN, 4096) >= 4);

/// How many pieces a file of so many bytes has.
#[must_use]
pub const fn count_of(len: u64) -> u32 {
    len.div_ceil(PIECE as u64) as u32
}

/// The pieces that have some bytes from one offset up to another.
fn pieces_in(from: u64, to: u64) -> Range<u32> {
    let to = count_of(to.min(FILE_MAX));
    ((from.min(FILE_MAX) / PIECE as u64) as u32).min(to)..to
}

/// What tells a piece from what it was.
#[must_use]
pub fn digest(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

/// The record of an image, with some of its pieces.
#[must_use]
pub fn record(layout: &Layout, tail: u64, meta: &Meta, pieces: &[(u32, &[u8])]) -> Vec<u8> {
    let len = pieces.iter().map(|(_, bytes)| PIECE_HEAD + bytes.len()).sum::<usize>();
    let mut out = Writer::new(META_HEAD + meta.path.len() + len);
    copy::head(&mut out, IMAGE, layout, tail);
    put_key(&mut out, &meta.key);
    out.u8(meta.state as u8);
    out.u64_le(meta.at);
    out.u64_le(meta.len);
    out.u32_le(meta.mode);
    meta.owner.iter().for_each(|id| out.u32_le(*id));
    out.u16_le(meta.path.len() as u16);
    out.bytes(&meta.path);
    out.u16_le(pieces.len() as u16);
    for (number, bytes) in pieces {
        let zeros = bytes.iter().all(|byte| *byte == 0);
        out.u32_le(*number);
        out.u32_le(bytes.len() as u32 | if zeros { ZEROS } else { 0 });
        out.u32_le(crc32fast::hash(bytes));
        if !zeros {
            out.bytes(bytes);
        }
    }
    out.finish().expect("its length is known")
}

/// The record that says that a file is no more.
#[must_use]
pub fn gone(layout: &Layout, tail: u64, key: &FileKey) -> Vec<u8> {
    let mut out = Writer::new(HEAD + 24);
    copy::head(&mut out, GONE, layout, tail);
    put_key(&mut out, key);
    out.finish().expect("its length is known")
}

fn put_key(out: &mut Writer, key: &FileKey) {
    [key.device, key.inode, key.born].into_iter().for_each(|word| out.u64_le(word));
}

fn key(bytes: &mut Reader<'_>) -> Result<FileKey, Malformed> {
    Ok(FileKey { device: bytes.u64_le()?, inode: bytes.u64_le()?, born: bytes.u64_le()? })
}

/// Pieces of a file: the number of each, and its bytes.
pub type Pieces = Vec<(u32, Vec<u8>)>;

fn image(bytes: &mut Reader<'_>) -> Result<(Meta, Pieces), Malformed> {
    let key = key(bytes)?;
    let state = State::ALL.get(usize::from(bytes.u8()?)).copied();
    let (at, len, mode) = (bytes.u64_le()?, bytes.u64_le()?, bytes.u32_le()?);
    let owner = [bytes.u32_le()?, bytes.u32_le()?];
    let path = bytes.u16_le()?;
    let path = bytes.take(path.into())?.to_vec();
    let Some(state) = state.filter(|_| len <= FILE_MAX) else { return bytes.fail() };
    let mut pieces = Vec::new();
    for _ in 0..bytes.u16_le()? {
        let (number, len, crc) = (bytes.u32_le()?, bytes.u32_le()?, bytes.u32_le()?);
        let (zeros, len) = (len & ZEROS != 0, (len & !ZEROS) as usize);
        if number == META || len > PIECE {
            return bytes.fail();
        }
        let piece = if zeros { vec![0; len] } else { bytes.take(len)?.to_vec() };
        if crc32fast::hash(&piece) != crc {
            return bytes.fail();
        }
        pieces.push((number, piece));
    }
    bytes.end()?;
    Ok((Meta { key, state, at, len, mode, owner, path }, pieces))
}

/// A change that a record has, and the bytes of it, checked.
fn change(layout: &Layout, first: u64, group: &Group) -> Result<(Entry, Vec<u8>), Damage> {
    let damaged = |flaw| Damage::unknown(first, flaw);
    let (mut entry, mut payload) = (None, Vec::with_capacity(group.data.len()));
    let count = group.headers.len() / HEADER_LEN;
    for (n, line) in group.headers.chunks_exact(HEADER_LEN).enumerate() {
        let index = first + n as u64;
        let line = line.try_into().expect("a line has as many");
        let header = Header::parse(line, layout.salt, index).ok_or_else(|| damaged(Flaw::Header))?;
        if usize::from(header.back) != n || usize::from(header.count) != count {
            return Err(damaged(Flaw::Group));
        }
        let from = payload.len();
        let piece =
            group.data.get(from..from + header.length as usize).ok_or_else(|| damaged(Flaw::Group))?;
        if data_checksum(layout.salt, index, piece) != header.data {
            return Err(damaged(Flaw::Data));
        }
        payload.extend_from_slice(piece);
        entry.get_or_insert(Entry {
            first,
            count: count as u64,
            kind: header.kind,
            file: FileId(header.file),
            offset: header.offset,
            len: 0,
            mtime: header.mtime,
        });
    }
    let entry: Entry = entry.ok_or_else(|| damaged(Flaw::Group))?;
    let is_known = entry.kind != Kind::Change || entry.op(&payload).is_some();
    let fits = entry.offset.checked_add(payload.len() as u64).is_some_and(|end| end <= i64::MAX as u64);
    if !is_known || entry.kind == Kind::Write && !fits {
        return Err(damaged(Flaw::Unknown));
    }
    Ok((Entry { len: payload.len() as u64, ..entry }, payload))
}

/// Why a record is not taken.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// It is none of these.
    #[error(transparent)]
    Record(#[from] RebuildError),
    /// An entry in it is damaged.
    #[error("{0}")]
    Damaged(Damage),
}

impl From<Malformed> for ImageError {
    fn from(malformed: Malformed) -> Self {
        Self::Record(malformed.into())
    }
}

/// What a number in the log's table means, as far as records have said.
#[derive(Default, Debug)]
struct Names {
    layout: Option<Layout>,
    slots: BTreeMap<FileId, (FileKey, Vec<u8>)>,
}

impl Names {
    /// Whether it is another log now.
    fn begin(&mut self, layout: &Layout) -> bool {
        let another = self.layout != Some(*layout);
        if another {
            self.slots.clear();
        }
        self.layout = Some(*layout);
        another
    }

    fn take(&mut self, layout: &Layout, slots: &BTreeMap<FileId, Vec<u8>>) {
        for (file, slot) in slots {
            match table::named(layout, slot) {
                Some(([device, inode, born], path)) => {
                    self.slots.insert(*file, (FileKey { device, inode, born }, path));
                }
                None => drop(self.slots.remove(file)),
            }
        }
    }

    fn key(&self, file: FileId) -> Option<FileKey> {
        self.slots.get(&file).map(|(key, _)| *key)
    }

    fn path(&self, name: &Name<'_>) -> Option<Vec<u8>> {
        let (_, directory) = self.slots.get(&name.directory)?;
        Some([directory.strip_suffix(b"/").unwrap_or(directory), b"/", name.name].concat())
    }
}

/// A piece that is there.
#[derive(Clone, Copy, Debug)]
struct Piece {
    /// The oldest record that provides something of it.
    since: u64,
    /// That of its content, if no group has changed that since.
    digest: Option<u64>,
}

/// What is kept of a file.
#[derive(Debug)]
pub struct Image {
    meta: Meta,
    /// The oldest record that provides something of that.
    since: u64,
    pieces: BTreeMap<u32, Piece>,
}

impl Image {
    /// What was said of it last.
    #[must_use]
    pub const fn meta(&self) -> &Meta {
        &self.meta
    }

    /// How many of its pieces are there.
    #[must_use]
    pub fn count(&self) -> usize {
        self.pieces.len()
    }

    /// Whether a piece is there as it is now.
    #[must_use]
    pub fn has(&self, number: u32, bytes: &[u8]) -> bool {
        self.pieces.get(&number).is_some_and(|piece| piece.digest == Some(digest(bytes)))
    }

    /// About so many bytes of records it takes.
    #[must_use]
    pub fn size(&self) -> u64 {
        (self.pieces.len() * (PIECE + PIECE_HEAD) + META_HEAD + self.meta.path.len()) as u64
    }
}

/// What is kept of all files, and where.
#[derive(Default, Debug)]
pub struct Keeper {
    names: Names,
    images: BTreeMap<FileKey, Image>,
    /// The oldest record, the file, and which part of it is provided from there on.
    order: BTreeSet<(u64, FileKey, u32)>,
    /// Records that have groups from before what an earlier record says of their file, as a log that is sent anew is sent from its tail on; with
    /// the oldest such earlier record. One is left out if a later one has an older one: so the first from some record on has the oldest of all of these.
    again: BTreeMap<u64, u64>,
    size: u64,
}

impl Keeper {
    /// Takes a record that is durable, and its number; in their order.
    ///
    /// # Errors
    /// It is none.
    pub fn add(&mut self, number: u64, record: &[u8]) -> Result<(), ImageError> {
        let Opened { kind, layout, mut bytes, .. } = copy::opened(record)?;
        if self.names.begin(&layout) {
            // Indexes of another log say nothing of this one's.
            self.images.values_mut().for_each(|image| image.meta.at = 0);
        }
        match kind {
            IMAGE => {
                let (meta, pieces) = image(&mut bytes)?;
                self.image(number, meta, &pieces);
            }
            GONE => {
                let key = key(&mut bytes)?;
                bytes.end()?;
                self.forget(&key);
            }
            kind if copy::is_piece(kind) => {
                let (slots, groups) = copy::pieces(&layout, &mut bytes)?;
                self.names.take(&layout, &slots);
                for (first, group) in &groups {
                    let (entry, payload) = change(&layout, *first, group).map_err(ImageError::Damaged)?;
                    if let Some(op) = entry.op(&payload) {
                        self.group(number, &entry, &op);
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn image(&mut self, number: u64, meta: Meta, pieces: &[(u32, Vec<u8>)]) {
        let key = meta.key;
        let count = if meta.state == State::GivenUp { 0 } else { count_of(meta.len) };
        let mut image = self.images.remove(&key).unwrap_or_else(|| Image {
            meta: meta.clone(),
            since: number,
            pieces: BTreeMap::new(),
        });
        if self.order.remove(&(image.since, key, META)) {
            self.size -= image.size();
        }
        for (cut, piece) in image.pieces.split_off(&count) {
            self.order.remove(&(piece.since, key, cut));
        }
        (image.meta, image.since) = (meta, number);
        self.order.insert((number, key, META));
        for (at, bytes) in pieces.iter().filter(|(at, _)| *at < count) {
            let piece = Piece { since: number, digest: Some(digest(bytes)) };
            if let Some(before) = image.pieces.insert(*at, piece) {
                self.order.remove(&(before.since, key, *at));
            }
            self.order.insert((number, key, *at));
        }
        self.size += image.size();
        self.images.insert(key, image);
    }

    fn forget(&mut self, key: &FileKey) {
        let Some(image) = self.images.remove(key) else { return };
        self.order.remove(&(image.since, *key, META));
        for (at, piece) in &image.pieces {
            self.order.remove(&(piece.since, *key, *at));
        }
        self.size -= image.size();
    }

    fn group(&mut self, number: u64, entry: &Entry, op: &Op<'_>) {
        let Some(key) = self.names.key(op.file()) else { return };
        let Some(image) = self.images.get_mut(&key) else { return };
        if image.meta.state == State::GivenUp {
            return;
        }
        if entry.first < image.meta.at {
            let since = image.since;
            while self.again.last_entry().is_some_and(|last| *last.get() >= since) {
                self.again.pop_last();
            }
            self.again.entry(number).or_insert(since);
            return;
        }
        self.size -= image.size();
        let (from, to) = match *op {
            Op::Write { offset, bytes, .. } => (offset, offset + bytes.len() as u64),
            Op::Truncate { len, .. } => {
                let cut = image.pieces.split_off(&count_of(len.min(FILE_MAX)));
                for (at, piece) in cut {
                    self.order.remove(&(piece.since, key, at));
                }
                (len, len)
            }
            Op::Allocate { mode, offset, len, .. } if mode & ZEROES != 0 => {
                // One that is not there is zeros already, or comes with a scan: the range may be longer than anybody has pieces of.
                for piece in image.pieces.range_mut(pieces_in(offset, offset.saturating_add(len))) {
                    piece.1.digest = None;
                }
                (0, 0)
            }
            _ => (0, 0),
        };
        for at in pieces_in(from, to) {
            match image.pieces.get_mut(&at) {
                Some(piece) => piece.digest = None,
                None => {
                    image.pieces.insert(at, Piece { since: number, digest: None });
                    self.order.insert((number, key, at));
                }
            }
        }
        image.meta.at = entry.end();
        image.meta.len = after(image.meta.len, op);
        self.size += image.size();
    }

    /// The images of all files.
    pub fn images(&self) -> impl Iterator<Item = &Image> {
        self.images.values()
    }

    /// That of a file.
    #[must_use]
    pub fn get(&self, key: &FileKey) -> Option<&Image> {
        self.images.get(key)
    }

    /// The number of the record with which what is kept may begin, so that files can be made again of the rest: `below` at most.
    ///
    /// That is not behind any record that something is provided by; nor behind what was said of a file and before groups of the time before that, which
    /// would else be carried out on it.
    #[must_use]
    pub fn begins(&self, below: u64) -> u64 {
        let mut begins = self.order.first().map_or(below, |(number, ..)| below.min(*number));
        while let Some((_, before)) =
            self.again.range(begins..).next().filter(|(_, before)| **before < begins)
        {
            begins = *before;
        }
        begins
    }

    /// Records below this one are given up.
    pub fn given_up(&mut self, below: u64) {
        self.again = self.again.split_off(&below);
    }

    /// The file, and some of its pieces, that are to be sent once more so that [what is kept](Self::begins) begins later.
    #[must_use]
    pub fn oldest(&self, most: usize) -> Option<(FileKey, Vec<u32>)> {
        let (_, key, _) = self.order.first()?;
        let same = self.order.iter().take(most * 4).filter(|(_, other, at)| other == key && *at != META);
        Some((*key, same.map(|(.., at)| *at).take(most).collect()))
    }

    /// About so many bytes all of that takes.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.size
    }
}

/// How long a file is behind a change.
fn after(len: u64, op: &Op<'_>) -> u64 {
    match *op {
        Op::Write { offset, bytes, .. } if !bytes.is_empty() => len.max(offset + bytes.len() as u64),
        Op::Truncate { len, .. } => len,
        Op::Allocate { mode, offset, len: more, .. } if mode & KEEPS_SIZE == 0 => {
            len.max(offset.saturating_add(more))
        }
        _ => len,
    }
}

/// Where files are made again.
pub trait RestoreTarget {
    /// What can go wrong there.
    type Error;

    /// Writes bytes of a file, which is made if it is not there.
    ///
    /// # Errors
    /// The target's own.
    fn write(&mut self, key: &FileKey, offset: u64, bytes: &[u8]) -> Result<(), Self::Error>;

    /// Makes zeros of a range that is in the file.
    ///
    /// # Errors
    /// The target's own.
    fn zero(&mut self, key: &FileKey, from: u64, to: u64) -> Result<(), Self::Error>;

    /// Cuts a file, or extends it with zeros; it is made if it is not there.
    ///
    /// # Errors
    /// The target's own.
    fn set_len(&mut self, key: &FileKey, len: u64) -> Result<(), Self::Error>;

    /// Takes a file away, if it is there.
    ///
    /// # Errors
    /// The target's own.
    fn discard(&mut self, key: &FileKey) -> Result<(), Self::Error>;
}

/// A file that was made again.
#[derive(Clone, Debug)]
pub struct Built {
    /// What it is, as of the last change.
    pub meta: Meta,
    /// Its name is its own still.
    named: bool,
    /// Some record has said what it is.
    told: bool,
}

impl Built {
    /// One whose name is its own, and of which a record has told.
    #[must_use]
    pub const fn new(meta: Meta) -> Self {
        Self { meta, named: true, told: true }
    }
}

/// Whether a record is of an image.
#[must_use]
pub fn is_image(record: &[u8]) -> bool {
    record.first() == Some(&IMAGE)
}

/// Takes records, and makes files again.
#[derive(Default, Debug)]
pub struct Builder {
    names: Names,
    files: BTreeMap<FileKey, Built>,
    /// Of each path, the files whose name it is still.
    named: BTreeMap<Vec<u8>, BTreeSet<FileKey>>,
    /// Changes of names below were carried out.
    renamed: u64,
}

/// Why a record is not carried out.
#[derive(Debug, thiserror::Error)]
pub enum BuildError<E> {
    /// The record's fault.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// It is the fault of the target.
    #[error("{0}")]
    Target(E),
}

impl Builder {
    /// Carries out the next record.
    ///
    /// # Errors
    /// It is none, or the place failed.
    pub fn add<P: RestoreTarget>(
        &mut self,
        record: &[u8],
        place: &mut P,
    ) -> Result<(), BuildError<P::Error>> {
        let Opened { kind, layout, mut bytes, .. } = copy::opened(record).map_err(ImageError::from)?;
        if self.names.begin(&layout) {
            self.files.values_mut().for_each(|file| file.meta.at = 0);
            self.renamed = 0;
        }
        match kind {
            IMAGE => {
                let (meta, pieces) = image(&mut bytes).map_err(ImageError::from)?;
                self.image(meta, &pieces, place).map_err(BuildError::Target)?;
            }
            GONE => {
                let key = key(&mut bytes).map_err(ImageError::from)?;
                self.loses_name(&key);
                self.files.remove(&key);
                place.discard(&key).map_err(BuildError::Target)?;
            }
            kind if copy::is_piece(kind) => {
                let (slots, groups) = copy::pieces(&layout, &mut bytes).map_err(ImageError::from)?;
                self.names.take(&layout, &slots);
                for (first, group) in &groups {
                    let (entry, payload) = change(&layout, *first, group).map_err(ImageError::Damaged)?;
                    if let Some(op) = entry.op(&payload) {
                        self.group(&entry, &op, place).map_err(BuildError::Target)?;
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn image<P: RestoreTarget>(
        &mut self,
        meta: Meta,
        pieces: &[(u32, Vec<u8>)],
        place: &mut P,
    ) -> Result<(), P::Error> {
        let key = meta.key;
        if meta.state == State::GivenUp {
            place.discard(&key)?;
        } else {
            // What is cut off first is not there any more if the file is longer again.
            place.set_len(&key, meta.len)?;
            for (number, bytes) in pieces {
                let from = u64::from(*number) * PIECE as u64;
                let to = (from + bytes.len() as u64).min(meta.len);
                if from < to && bytes.iter().all(|byte| *byte == 0) {
                    place.zero(&key, from, to)?;
                } else {
                    place.write(&key, from, bytes)?;
                }
            }
        }
        self.loses_name(&key);
        self.takes_name(key, &meta.path);
        self.files.insert(key, Built::new(meta));
        Ok(())
    }

    /// A name is another file's from now on.
    fn takes_name(&mut self, key: FileKey, path: &[u8]) {
        self.is_free(path);
        self.named.insert(path.to_vec(), BTreeSet::from([key]));
    }

    /// A name is nobody's any more.
    fn is_free(&mut self, path: &[u8]) {
        for key in self.named.remove(path).unwrap_or_default() {
            if let Some(had) = self.files.get_mut(&key) {
                had.named = false;
            }
        }
    }

    /// A file has no name any more.
    fn loses_name(&mut self, key: &FileKey) {
        let Some(file) = self.files.get_mut(key).filter(|file| file.named) else { return };
        file.named = false;
        if let Some(files) = self.named.get_mut(&file.meta.path) {
            files.remove(key);
            if files.is_empty() {
                self.named.remove(&file.meta.path);
            }
        }
    }

    fn group<P: RestoreTarget>(&mut self, entry: &Entry, op: &Op<'_>, place: &mut P) -> Result<(), P::Error> {
        self.rename(entry, op);
        let Some((key, path)) = self.names.slots.get(&op.file()).cloned() else { return Ok(()) };
        if op.span().is_none() {
            return Ok(());
        }
        // Its image may come later, and may lack a piece that only groups have made.
        let file = self.files.entry(key).or_insert_with(|| {
            self.named.entry(path.clone()).or_default().insert(key);
            let meta = Meta { key, state: State::Building, at: 0, len: 0, mode: 0, owner: [0; 2], path };
            Built { meta, named: true, told: false }
        });
        if file.meta.state == State::GivenUp || entry.first < file.meta.at {
            return Ok(());
        }
        match *op {
            Op::Write { offset, bytes, .. } => place.write(&key, offset, bytes)?,
            Op::Truncate { len, .. } => place.set_len(&key, len)?,
            Op::Allocate { mode, offset, len, .. } if mode & ZEROES != 0 => {
                let to = offset.saturating_add(len).min(file.meta.len);
                if offset < to {
                    place.zero(&key, offset, to)?;
                }
            }
            Op::Attributes { mode, user, group, .. } => {
                (file.meta.mode, file.meta.owner) = (mode, [user, group]);
            }
            _ => {}
        }
        let len = after(file.meta.len, op);
        if len > file.meta.len && !matches!(op, Op::Write { .. } | Op::Truncate { .. }) {
            place.set_len(&key, len)?;
        }
        (file.meta.at, file.meta.len) = (entry.end(), len);
        Ok(())
    }

    fn rename(&mut self, entry: &Entry, op: &Op<'_>) {
        let meanings = op.meanings();
        if meanings.iter().all(Option::is_none) || entry.first < self.renamed {
            return;
        }
        self.renamed = entry.end();
        for (name, file) in meanings.into_iter().flatten() {
            let Some(path) = self.names.path(&name) else { continue };
            self.is_free(&path);
            let key = file.and_then(|file| self.names.key(file)).filter(|key| self.files.contains_key(key));
            if let Some(key) = key {
                self.loses_name(&key);
                self.takes_name(key, &path);
            }
            if let Some(file) = key.and_then(|key| self.files.get_mut(&key)) {
                (file.meta.path, file.named) = (path, true);
            }
        }
    }

    /// Which log the records were of.
    #[must_use]
    pub const fn layout(&self) -> Option<&Layout> {
        self.names.layout.as_ref()
    }

    /// The files, when all records were taken: those that are there no more, or of which nobody has kept an image, are discarded.
    ///
    /// # Errors
    /// The place failed.
    pub fn finish<P: RestoreTarget>(self, place: &mut P) -> Result<Vec<Built>, P::Error> {
        let mut built = Vec::new();
        for (key, file) in self.files {
            if file.told && file.named {
                built.push(file);
            } else {
                place.discard(&key)?;
            }
        }
        Ok(built)
    }
}
