//! A member's image of the store, which follows its log.
//!
//! The ledger says how far: a root record of its own, beside the image. An image at `n` has all records below `n`, durably;
//! it may have any part of those that were being applied when a crash came, which are applied again.
//! When a store of the ledger fails, either record may be found later, so nothing changes the image any more until its member is opened again:
//! records that are applied again from the old one on would take back what the new one says that it has.
//!
//! It also says which store the image is, from the first time on that its superblock was whole. So an image whose superblock is not, when
//! its member is [opened](Keeper::open) or is about to [serve it](Keeper::check), is damaged, or no image of this member at all: the one is
//! made anew from another member's, as if it were incomplete, and the other is refused. ARGUMENT that no crash is taken for damage: below
//! `n` the superblock is replaced copy by copy, each a change that is applied as a whole, so that at each record one is whole, or the store
//! is being made still. Beyond `n` a crash may leave any part of it; then the log has a record that is applied again, and writes there, or
//! it has gone on without this image, whose medium did not take what was applied: then the image is behind, and is sent anew in any case.

use std::ops::Range;

use remanence_codec::printable;
use remanence_coord::log::Epoch;
use remanence_coord::log::format::root::State;
use remanence_coord::log::format::superblock::Uuid;
use remanence_coord::log::store::{Reader, Store};
use remanence_coord::log::walk::Local;
use remanence_pmem::image::{ROOT_LEN, Root, RootError, Signature};
use remanence_pmem::{JOURNAL_NOTE_LEN, Medium};

use super::change::{apply, parse};
use crate::format::superblock::{COPIES, FORMAT, GROWN, JOURNAL_NOTE, LONGEST};
use crate::format::{Superblock, SuperblockError, get_u32, get_u64};

/// Bytes of the medium that a ledger needs.
pub const LEDGER_LEN: u64 = ROOT_LEN;
/// Where a ledger's file says that it has a journal
/// ([`FileOptions::journal_note`](remanence_pmem::FileOptions::journal_note)): a sector behind what the root record writes of its
/// first page, zeros in ledgers that were made before there were notes.
pub const LEDGER_NOTE: u64 = 1024;
/// Bytes of an image that are sent at once.
pub const BLOCK: usize = 16 << 10;
/// Bytes of records that are read and applied for one order, about: other orders are waiting, and the primary's clients where it is its own.
const PORTION: usize = 4 << 20;
/// Tells a ledger's root from others'. Its last 16 bits are the version of the format.
const TAG: u64 = 0x4C45_4447_4552_0001;
const VERSION: u16 = TAG as u16;
const LEDGER: usize = 32;

// A root record writes a header of 24 bytes and its payload.
const _: () = assert!(24 + LEDGER as u64 <= LEDGER_NOTE && LEDGER_NOTE + JOURNAL_NOTE_LEN as u64 <= 4096);

/// What to do where something that a member had is missing. Nobody else is known when it is opened: not whether any of them has an image, nor
/// whether they are enough without what this one has promised.
pub const ANEW: &str = "if another member serves the store (`rem kv stats`), take the directory of this member away: that one makes it \
     anew; if none does, what only this member has would be lost with it";
/// What tells a ledger from all else. A root record begins with its tag, in either of its slots.
pub const SIGNATURE: Signature = Signature {
    magic: TAG.to_le_bytes(),
    second: Some(LEDGER_LEN / 2),
    making: None,
    head: LEDGER_LEN as usize,
    note: Some((LEDGER_NOTE, ANEW)),
};

/// What the primary wants of a member's image. It is obeyed only while the log is promised to that primary.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Order {
    /// Apply the records below this number, which are acknowledged; a bounded part of them, so it is told again until it has.
    Apply {
        /// The first record that is not applied.
        below: u64,
    },
    /// An image is coming: what is there now is worth nothing.
    Begin,
    /// A part of the image.
    Block {
        /// The byte of the image at which the part begins.
        at: u64,
        /// The bytes of the part; empty if they are zeros.
        bytes: Vec<u8>,
        /// How many bytes.
        len: u32,
    },
    /// That was all of it: with the records from this number on it is the store.
    End {
        /// The number of the first record that the image does not have.
        applied: u64,
    },
    /// A part of the image, to be sent to another member.
    Read {
        /// The byte of the image at which the part begins.
        at: u64,
        /// How many bytes.
        len: u32,
    },
}

/// What a member says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ImageReply {
    /// The image has all records below this number.
    Applied(u64),
    /// The image is another's, incomplete, or too old for what the log still has.
    NeedsImage,
    /// The bytes of the part of the image that was asked for.
    Bytes(Vec<u8>),
    /// The order was carried out, and there is nothing to say.
    Ok,
    /// The order was not carried out, for the reason in this sentence.
    Refused(String),
}

/// How far an image has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ledger {
    /// It has all records below this number.
    pub applied: u64,
    /// It is an image, and not the beginning of one.
    pub complete: bool,
    /// Of the log of this group; the default before the first record.
    pub group: Uuid,
    /// The first bytes of the name of the store that it is; `None`: it was not seen to be one, as the store is being made.
    pub store: Option<StoreTag>,
}

/// What tells a store from others in a ledger, which has no room for all of its name.
pub type StoreTag = [u8; 6];

impl Ledger {
    /// Whether its image was anything before: none was sent, and no record applied.
    #[must_use]
    pub fn is_fresh(&self) -> bool {
        self.complete && self.group == Uuid::default() && self.applied == 0
    }

    /// Whether its image goes on with a log in this state: it is one, that log's or nobody's yet, and has all that the log has no more.
    #[must_use]
    pub fn can_follow(&self, log: &State) -> bool {
        let is_ours = self.is_fresh() || self.group == log.group;
        self.complete && is_ours && self.applied >= log.head.sequence
    }

    fn emit(&self) -> [u8; LEDGER] {
        let mut bytes = [0; LEDGER];
        bytes[..8].copy_from_slice(&self.applied.to_le_bytes());
        bytes[8] = u8::from(self.complete);
        // Zeros in ledgers of earlier releases, which do not look here.
        if let Some(tag) = self.store {
            bytes[9] = 1;
            bytes[10..16].copy_from_slice(&tag);
        }
        bytes[16..].copy_from_slice(&self.group.0);
        bytes
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; LEDGER] = bytes.try_into().ok()?;
        let group = Uuid(bytes[16..].try_into().expect("16 bytes"));
        let complete = match bytes[8] {
            0 => false,
            1 => true,
            _ => return None,
        };
        let store = (bytes[9] == 1).then(|| bytes[10..16].try_into().expect("six bytes"));
        Some(Self { applied: get_u64(bytes, 0), complete, group, store })
    }
}

/// Why there is no image.
#[derive(Debug, thiserror::Error)]
pub enum KeeperError {
    /// Nothing says what it is.
    #[error(
        "the ledger of this member's image is missing or damaged: put the file back that was there, or {way}",
        way = ANEW
    )]
    Damaged,
    /// Another release wrote it.
    #[error(
        "the ledger of this member's image has format version {found}, and this program reads version {VERSION}; nothing was changed"
    )]
    Version {
        /// What it has.
        found: u16,
    },
    /// The image was written by a later release.
    #[error(
        "the image of this member has format {found}, and this program reads formats 1 to {GROWN}: serve the member with the release that \
         made it; nothing was changed"
    )]
    NewerImage {
        /// What it has.
        found: u32,
    },
    /// What lies in the image's place is something else.
    #[error(
        "the image of this member is not the one that it had: {0}; put the file back that was there, or {way}; if no member \
         has a whole image, `rem kv salvage` reads what is left of a damaged one",
        way = ANEW
    )]
    OtherImage(Unfit),
    /// The medium failed.
    #[error("the medium failed: {0}")]
    Medium(String),
}

/// Why an image is not the store that it was.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unfit {
    /// It has no superblock that could be read; the sentence of [`SuperblockError`] is for a store that lies on one server.
    #[error("{}", cause(.0))]
    Superblock(SuperblockError),
    /// Its superblock is whole, and another store's.
    #[error("it is another store's")]
    Another,
}

fn cause(error: &SuperblockError) -> String {
    match error {
        SuperblockError::Missing => "it is blank".into(),
        SuperblockError::Foreign => "its first bytes are those of something else".into(),
        SuperblockError::Unfinished => "its superblock is gone".into(),
        SuperblockError::Version(_) | SuperblockError::Damaged => {
            "both copies of its superblock are damaged".into()
        }
        SuperblockError::CutOff { store, medium } => {
            format!("it has {medium} bytes, and the store {store}: its end was cut off")
        }
        SuperblockError::Geometry(why) => format!("its geometry means nothing: {why}"),
    }
}

impl From<RootError> for KeeperError {
    fn from(error: RootError) -> Self {
        match error {
            RootError::Invalid { .. } => Self::Damaged,
            RootError::Medium(e) => Self::Medium(e.to_string()),
        }
    }
}

/// The version of the ledger's copy there, if it is one of another version.
fn other_version(ledger: &impl Medium, at: u64) -> Option<u16> {
    if at + 8 > ledger.len() {
        return None;
    }
    let mut tag = [0; 8];
    ledger.read(at, &mut tag);
    let tag = u64::from_le_bytes(tag);
    (tag >> 16 == TAG >> 16 && tag != TAG).then_some(tag as u16)
}

/// A member's image, and its ledger.
#[derive(Debug)]
pub struct Keeper<M> {
    image: M,
    root: Root<M>,
    ledger: Ledger,
    /// Where it reads the log on.
    reader: Option<Reader>,
    /// Bytes of records that it reads and applies for one order, about.
    portion: usize,
    /// The image has all that its ledger says, and is damaged.
    damage: Option<Unfit>,
    /// Why it is not known what the ledger says durably: a store of it failed, and either record may be found later.
    failed: Option<String>,
}

impl<M: Medium> Keeper<M> {
    /// Of a new member, whose image is all zeros: what a store is before its first record.
    ///
    /// # Errors
    /// The medium failed.
    pub fn create(image: M, ledger: M) -> Result<Self, KeeperError> {
        let state = Ledger { applied: 0, complete: true, group: Uuid::default(), store: None };
        let root = Root::format(ledger, 0, TAG, &state.emit())?;
        Ok(Self { image, root, ledger: state, reader: None, portion: PORTION, damage: None, failed: None })
    }

    /// As it was left, after any crash, beside this member's log. An image that is [damaged](Self::damage) is none until another is sent.
    ///
    /// # Errors
    /// The ledger means nothing, the image is of a later release or none of this member's, or the medium failed.
    pub fn open<L: Medium + Clone>(image: M, ledger: M, log: &mut Store<L>) -> Result<Self, KeeperError> {
        let other = [0, LEDGER_LEN / 2].into_iter().find_map(|at| other_version(&ledger, at));
        let (root, payload) = Root::open(ledger, 0, TAG).map_err(|error| match (error, other) {
            (RootError::Invalid { .. }, Some(found)) => KeeperError::Version { found },
            (error, _) => error.into(),
        })?;
        let ledger = Ledger::parse(&payload).ok_or(KeeperError::Damaged)?;
        let mut this =
            Self { image, root, ledger, reader: None, portion: PORTION, damage: None, failed: None };
        match this.look() {
            Ok(store) => this.ledger.store = store,
            // No crash has taken that.
            Err(cut @ Unfit::Superblock(SuperblockError::CutOff { .. })) => {
                return Err(KeeperError::OtherImage(cut));
            }
            Err(_) if this.is_to_be_written(log) => {}
            Err(Unfit::Superblock(SuperblockError::Version(found))) if found > GROWN => {
                return Err(KeeperError::NewerImage { found });
            }
            Err(Unfit::Superblock(error)) if this.may_be_torn(&error, log) => {}
            Err(Unfit::Superblock(
                damage @ (SuperblockError::Damaged
                | SuperblockError::Unfinished
                | SuperblockError::Version(_)
                | SuperblockError::Geometry(_)),
            )) => this.damage = Some(Unfit::Superblock(damage)),
            Err(other) => return Err(KeeperError::OtherImage(other)),
        }
        Ok(this)
    }

    /// Which store the image is, if it is one yet, with all that the ledger says, and nothing beyond that which a crash has left.
    fn look(&self) -> Result<Option<StoreTag>, Unfit> {
        let known = self.ledger.store;
        if !self.ledger.complete {
            return Ok(known);
        }
        match Superblock::read(&self.image) {
            Ok(found) => {
                let tag = tag_of(&found.superblock);
                if known.is_some_and(|known| known != tag) { Err(Unfit::Another) } else { Ok(Some(tag)) }
            }
            // The first record says that a store is being made.
            Err(SuperblockError::Missing) if known.is_none() && self.ledger.applied == 0 => Ok(None),
            Err(SuperblockError::Unfinished) if known.is_none() => Ok(None),
            Err(error) => Err(Unfit::Superblock(error)),
        }
    }

    /// Whether the log has records that are still to be applied, and write where an image says what it is: a crash may have left any part
    /// of them there.
    fn is_to_be_written<L: Medium + Clone>(&self, log: &mut Store<L>) -> bool {
        let Ok(status) = log.status() else { return false };
        let mut reader = Reader::new(&status);
        while reader.next_sequence() < status.tail.sequence {
            let Ok(record) = reader.read(&mut Local(log.medium()));
            let Ok((found, payload)) = record else { return false };
            let is_ahead = found.header.sequence >= self.ledger.applied;
            if is_ahead && names_the_image(payload, self.image.len()) {
                return true;
            }
        }
        false
    }

    /// Whether the log has no more what is still to be applied, and a crash may have left that much of it where an image says what it is:
    /// one that was a store had a whole superblock, in the place of which another one of the same store was put.
    fn may_be_torn<L: Medium + Clone>(&self, error: &SuperblockError, log: &Store<L>) -> bool {
        let is_behind = self.ledger.applied < log.state().head.sequence;
        let is_torn = matches!(error, SuperblockError::Damaged | SuperblockError::Version(_));
        is_behind && (self.ledger.store.is_none() || is_torn)
    }

    /// Looks whether the image, which has all records of the log, is the store that it was, before its member serves it.
    ///
    /// # Errors
    /// It is [damaged](Self::damage) from now on. A sentence.
    pub fn check(&mut self) -> Result<(), String> {
        if self.damage.is_none() {
            self.damage = self.look().err();
        }
        self.damage().map_or(Ok(()), Err)
    }

    /// Why the image, of which the ledger says that it is one, is none, in a sentence.
    #[must_use]
    pub fn damage(&self) -> Option<String> {
        let damage = self.damage.as_ref()?;
        Some(format!(
            "its image is damaged ({damage}), and is made anew when a member with a whole one serves the store"
        ))
    }

    /// About so many bytes of records are read and applied for one order, in place of 4 MiB.
    #[must_use]
    pub fn portion(self, bytes: usize) -> Self {
        Self { portion: bytes, ..self }
    }

    /// The memory that the image is in, as far as it has come.
    pub const fn image(&self) -> &M {
        &self.image
    }

    /// How far the image has come. One that is damaged is none.
    #[must_use]
    pub const fn ledger(&self) -> Ledger {
        Ledger { complete: self.ledger.complete && self.damage.is_none(), ..self.ledger }
    }

    /// Why the image takes no change any more, until its member is opened again: its ledger could not be written.
    #[must_use]
    pub fn failure(&self) -> Option<&str> {
        self.failed.as_deref()
    }

    /// Does what the primary of an epoch wants, beside the member's log.
    pub fn obey<L: Medium + Clone>(&mut self, log: &mut Store<L>, epoch: Epoch, order: &Order) -> ImageReply {
        let promised = log.state().promised;
        if promised != epoch {
            return ImageReply::Refused(format!("the log is promised to another primary (epoch {promised})"));
        }
        // If the ledger says durably how far it was to be, nothing that was applied by then may be applied again in part.
        if let Some(why) = self.failed.as_ref().filter(|_| !matches!(order, Order::Read { .. })) {
            return ImageReply::Refused(format!(
                "its ledger's medium failed, until it is started again: {why}"
            ));
        }
        self.carry_out(log, order).unwrap_or_else(ImageReply::Refused)
    }

    fn carry_out<L: Medium + Clone>(
        &mut self,
        log: &mut Store<L>,
        order: &Order,
    ) -> Result<ImageReply, String> {
        let size = self.image.len();
        let inside = |at: u64, len: u32| at.checked_add(len.into()).is_some_and(|end| end <= size);
        match order {
            Order::Apply { below } => self.apply(log, *below),
            Order::Begin => {
                // Durably worth nothing, before the first byte of it changes.
                self.set(Ledger { complete: false, store: None, ..self.ledger })?;
                self.damage = None;
                Ok(ImageReply::Ok)
            }
            Order::Block { at, bytes, len } => {
                let fits = inside(*at, *len) && (bytes.is_empty() || bytes.len() == *len as usize);
                if self.ledger.complete || !fits {
                    return Err("no such part of an image is wanted".into());
                }
                let mut bytes = bytes.clone();
                bytes.resize(*len as usize, 0);
                if let Some((note, within)) = note_in(*at, *len) {
                    self.image.read(note, &mut bytes[within]);
                }
                self.image.write_nt(*at, &bytes);
                Ok(ImageReply::Ok)
            }
            Order::End { applied } => {
                if self.ledger.complete {
                    return Err("no image was begun".into());
                }
                self.image.psync().map_err(|e| e.to_string())?;
                let (group, store) = (log.state().group, self.store());
                self.set(Ledger { applied: *applied, complete: true, group, store })?;
                Ok(ImageReply::Ok)
            }
            Order::Read { at, len } => {
                if *len as usize > BLOCK || !inside(*at, *len) {
                    return Err("no such part of the image".into());
                }
                let mut bytes = vec![0; *len as usize];
                self.image.read(*at, &mut bytes);
                if let Some((_, within)) = note_in(*at, *len) {
                    bytes[within].fill(0);
                }
                Ok(ImageReply::Bytes(bytes))
            }
        }
    }

    fn apply<L: Medium + Clone>(&mut self, log: &mut Store<L>, below: u64) -> Result<ImageReply, String> {
        let status = log.status().map_err(|e| e.to_string())?;
        let group = status.state.group;
        if !self.ledger().can_follow(&status.state) {
            return Ok(ImageReply::NeedsImage);
        }
        if below <= self.ledger.applied {
            return Ok(ImageReply::Applied(self.ledger.applied));
        }
        if below > status.tail.sequence && status.damage.is_some() {
            return Err(format!("record {} is not there", status.tail.sequence));
        }
        // What its log has not got yet comes: it is told to again.
        let below = below.min(status.tail.sequence);
        if below <= self.ledger.applied {
            return Ok(ImageReply::Applied(self.ledger.applied));
        }
        // It goes on where it has come to, if that is a place of this log still.
        let kept = self
            .reader
            .take()
            .filter(|reader| reader.can_go_on(&status) && reader.next_sequence() <= self.ledger.applied);
        let mut reader = kept.unwrap_or_else(|| Reader::new(&status));
        reader.refresh(&status);
        let (mut read, mut applied) = (0, self.ledger.applied);
        while reader.next_sequence() < below && read < self.portion {
            let Ok(record) = reader.read(&mut Local(log.medium()));
            let (found, payload) = record.map_err(|fault| fault.to_string())?;
            read += payload.len();
            if found.header.sequence >= applied {
                apply(payload, &self.image).map_err(|e| e.to_string())?;
                applied = found.header.sequence + 1;
            }
        }
        self.image.psync().map_err(|e| e.to_string())?;
        let store = self.ledger.store.or_else(|| self.store());
        self.set(Ledger { applied, complete: true, group, store })?;
        self.reader = Some(reader);
        Ok(ImageReply::Applied(applied))
    }

    /// The store that the image is, if it is one yet.
    fn store(&self) -> Option<StoreTag> {
        Superblock::read(&self.image).ok().map(|found| tag_of(&found.superblock))
    }

    fn set(&mut self, ledger: Ledger) -> Result<(), String> {
        if ledger != self.ledger {
            self.root.store(&ledger.emit()).map_err(|e| {
                self.failed = Some(e.to_string());
                e.to_string()
            })?;
            self.ledger = ledger;
        }
        Ok(())
    }
}

fn tag_of(superblock: &Superblock) -> StoreTag {
    *superblock.uuid.first_chunk().expect("sixteen bytes")
}

/// Whether a record writes where an image says what it is: a copy of its superblock, or the mark that it is being made.
fn names_the_image(record: &[u8], size: u64) -> bool {
    let making = FORMAT.signature.making.map(|making| making.at..making.at + making.mark.len() as u64);
    let copies = COPIES.map(|at| at..at + LONGEST as u64);
    let is_there = |(at, len): (u64, u64)| {
        let mut places = copies.iter().chain(&making);
        places.any(|place| at < place.end && place.start < at + len)
    };
    parse(record, size).is_ok_and(|changes| changes.into_iter().any(|(at, len, _)| is_there((at, len))))
}

/// Where a part of an image has what its member's file says of its own journal, and where within the part: that is no part of the
/// store, and another member's file may have no journal.
fn note_in(at: u64, len: u32) -> Option<(u64, Range<usize>)> {
    let (from, to) =
        (JOURNAL_NOTE.max(at), (JOURNAL_NOTE + JOURNAL_NOTE_LEN as u64).min(at + u64::from(len)));
    (from < to).then(|| (from, (from - at) as usize..(to - at) as usize))
}

/// An order, and the epoch of who gives it, as they are sent.
#[must_use]
pub fn emit_order(epoch: Epoch, order: &Order) -> Vec<u8> {
    let (tag, at, len, bytes): (u8, u64, u32, &[u8]) = match order {
        Order::Apply { below } => (0, *below, 0, &[]),
        Order::Begin => (1, 0, 0, &[]),
        Order::Block { at, bytes, len } => (2, *at, *len, bytes),
        Order::End { applied } => (3, *applied, 0, &[]),
        Order::Read { at, len } => (4, *at, *len, &[]),
    };
    let mut out = Vec::with_capacity(21 + bytes.len());
    out.push(tag);
    out.extend_from_slice(&epoch.0.to_le_bytes());
    out.extend_from_slice(&at.to_le_bytes());
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(bytes);
    out
}

/// The inverse of [`emit_order`]; `None` for anything else.
#[must_use]
pub fn parse_order(bytes: &[u8]) -> Option<(Epoch, Order)> {
    let (header, rest) = bytes.split_at_checked(21)?;
    let (epoch, at, len) = (Epoch(get_u64(header, 1)), get_u64(header, 9), get_u32(header, 17));
    let order = match header[0] {
        0 if len == 0 => Order::Apply { below: at },
        1 if (at, len) == (0, 0) => Order::Begin,
        2 if len as usize <= BLOCK => {
            let order = Order::Block { at, bytes: rest.to_vec(), len };
            return (rest.is_empty() || rest.len() == len as usize).then_some((epoch, order));
        }
        3 if len == 0 => Order::End { applied: at },
        4 => Order::Read { at, len },
        _ => return None,
    };
    rest.is_empty().then_some((epoch, order))
}

/// What a member says, as it is sent.
#[must_use]
pub fn emit_told(told: &ImageReply) -> Vec<u8> {
    let (tag, number, bytes): (u8, u64, &[u8]) = match told {
        ImageReply::Applied(below) => (0, *below, &[]),
        ImageReply::NeedsImage => (1, 0, &[]),
        ImageReply::Bytes(bytes) => (2, 0, bytes),
        ImageReply::Ok => (3, 0, &[]),
        ImageReply::Refused(why) => (4, 0, why.as_bytes()),
    };
    let mut out = vec![tag];
    out.extend_from_slice(&number.to_le_bytes());
    out.extend_from_slice(bytes);
    out
}

/// The inverse of [`emit_told`]; `None` for anything else.
#[must_use]
pub fn parse_told(bytes: &[u8]) -> Option<ImageReply> {
    let (header, rest) = bytes.split_at_checked(9)?;
    let told = match header[0] {
        0 => ImageReply::Applied(get_u64(header, 1)),
        1 => ImageReply::NeedsImage,
        2 => return Some(ImageReply::Bytes(rest.to_vec())),
        3 => ImageReply::Ok,
        4 => return Some(ImageReply::Refused(printable(rest))),
        _ => return None,
    };
    rest.is_empty().then_some(told)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use remanence_coord::log::store::Make;
    use remanence_coord::log::{Geometry, Mode};
    use remanence_pmem::Region;

    use super::*;

    fn new_log() -> Store<Region> {
        let make = Make {
            mode: Mode::Singleton,
            geometry: Geometry::for_size(1 << 20).expect("room"),
            uuid: Uuid([1; 16]),
            salt: 1,
        };
        Store::create(Region::memfd("log", 1 << 20).expect("memory"), &make).expect("a log")
    }

    #[test]
    fn what_is_said_comes_through() {
        let orders = [
            Order::Apply { below: 7 },
            Order::Begin,
            Order::Block { at: 4096, bytes: vec![1; 100], len: 100 },
            Order::Block { at: 4096, bytes: vec![], len: 100 },
            Order::End { applied: 9 },
            Order::Read { at: 1, len: 2 },
        ];
        for order in orders {
            assert_eq!(parse_order(&emit_order(Epoch(5), &order)), Some((Epoch(5), order)));
        }
        let all = [
            ImageReply::Applied(3),
            ImageReply::NeedsImage,
            ImageReply::Bytes(vec![4; 9]),
            ImageReply::Ok,
            ImageReply::Refused("no".into()),
        ];
        for told in all {
            assert_eq!(parse_told(&emit_told(&told)), Some(told));
        }
        let hostile = ImageReply::Refused("no\x1b[2J".into());
        assert_eq!(parse_told(&emit_told(&hostile)), Some(ImageReply::Refused("no [2J".into())));
    }

    /// What a member's file says of its own journal would have another member's refused, which has none.
    #[test]
    fn a_ledger_of_another_release_is_told_from_a_damaged_one() {
        let memory = |name: &str, len| Region::memfd(name, len).expect("memory");
        let ledger = || {
            let ledger = memory("ledger", LEDGER_LEN);
            Keeper::create(memory("image", 4096), ledger.clone()).expect("a ledger");
            ledger
        };
        let mut log = new_log();
        let mut open = |ledger| Keeper::open(memory("image", 4096), ledger, &mut log).map(drop);
        let newer = ledger();
        for at in [0, LEDGER_LEN / 2] {
            let mut tag = [0; 8];
            newer.read(at, &mut tag);
            assert_eq!(u64::from_le_bytes(tag), TAG, "both copies are there");
            newer.write(at, &(TAG + 90).to_le_bytes());
        }
        assert!(matches!(open(newer), Err(KeeperError::Version { found: 91 })));
        let damaged = ledger();
        [0, LEDGER_LEN / 2].iter().for_each(|at| damaged.write(*at, &[7; 8]));
        assert!(matches!(open(damaged), Err(KeeperError::Damaged)));
    }

    #[test]
    fn what_is_noted_of_a_member_s_journal_stays_with_it() {
        let epoch = Epoch(1 << 32);
        let note = JOURNAL_NOTE..JOURNAL_NOTE + JOURNAL_NOTE_LEN as u64;
        let memory = |name: &str, len| Region::memfd(name, len).expect("memory");
        let mut log = new_log();
        log.grant(epoch).expect("nobody else's");
        let member = |byte| {
            let image = memory("image", 64 << 10);
            image.write(0, &vec![byte; 64 << 10]);
            Keeper::create(image, memory("ledger", LEDGER_LEN)).expect("a ledger")
        };
        let (mut from, mut to) = (member(1), member(2));
        assert_eq!(to.obey(&mut log, epoch, &Order::Begin), ImageReply::Ok);
        for (at, len) in [(0, 1000), (1000, 50), (1050, 10), (1060, 5000), (6060, 10_000)] {
            let ImageReply::Bytes(bytes) = from.obey(&mut log, epoch, &Order::Read { at, len }) else {
                panic!("it is a part of the image")
            };
            for (at, byte) in (at..).zip(&bytes) {
                assert_eq!(*byte, u8::from(!note.contains(&at)), "byte {at}");
            }
            // An older member may send its own.
            for bytes in [vec![1; len as usize], bytes] {
                let block = Order::Block { at, bytes, len };
                assert_eq!(to.obey(&mut log, epoch, &block), ImageReply::Ok);
            }
        }
        assert_eq!(
            to.obey(&mut log, epoch, &Order::Block { at: 0, bytes: vec![], len: 1100 }),
            ImageReply::Ok
        );
        let mut image = vec![0; 16_060];
        to.image().read(0, &mut image);
        for (at, byte) in (0..).zip(image) {
            let sent = u8::from(at >= 1100);
            assert_eq!(byte, if note.contains(&at) { 2 } else { sent }, "byte {at}");
        }
    }

    /// The ledger that was there before says that the image is whole, which it is no more.
    #[test]
    fn an_image_that_was_begun_stays_so_when_a_copy_of_the_ledger_is_damaged() {
        let epoch = Epoch(1 << 32);
        let memory = |name: &str, len| Region::memfd(name, len).expect("memory");
        let mut log = new_log();
        log.grant(epoch).expect("nobody else's");
        let (image, ledger) = (memory("image", 64 << 10), memory("ledger", LEDGER_LEN));
        let mut keeper = Keeper::create(image.clone(), ledger.clone()).expect("a ledger");
        assert_eq!(keeper.obey(&mut log, epoch, &Order::Begin), ImageReply::Ok);
        for copy in [0, LEDGER_LEN / 2] {
            ledger.write(copy + 30, b"rot");
            let keeper = Keeper::open(image.clone(), ledger.clone(), &mut log).expect("one copy is whole");
            assert!(!keeper.ledger().complete, "the copy at {copy} is damaged");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Some((epoch, order)) = parse_order(&bytes) {
                prop_assert_eq!(emit_order(epoch, &order), bytes.clone());
            }
            let _ = parse_told(&bytes);
        }
    }
}
