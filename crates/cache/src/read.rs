//! Reads a group of entries, and tells what is wrong with it.

use std::fmt;

use remanence_pmem::Medium;

use crate::entry::{HEADER_LEN, Header, Kind, LENGTH, LENGTH_MAX, Mtime, data_checksum};
use crate::format::Layout;
use crate::op::Op;
use crate::table::FileId;

/// A group of entries, which is one change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The index of the first.
    pub first: u64,
    /// How many there are.
    pub count: u64,
    /// What the change is.
    pub kind: Kind,
    /// The file that it is about.
    pub file: FileId,
    /// Where the bytes of a write lie in it.
    pub offset: u64,
    /// Bytes of data in all slots together.
    pub len: u64,
    /// When the file's bytes were last changed, as it said after the call.
    pub mtime: Mtime,
}

impl Entry {
    /// The index behind the last.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.first + self.count
    }

    /// The change, with the data that [`Log::payload`](crate::log::Log::payload) has read. `None`: it is none that this release knows.
    #[must_use]
    pub fn op<'a>(&self, payload: &'a [u8]) -> Option<Op<'a>> {
        match self.kind {
            Kind::Hole | Kind::Mark => None,
            Kind::Write => Some(Op::Write { file: self.file, offset: self.offset, bytes: payload }),
            Kind::Settled => Some(Op::Settled { file: self.file, upto: self.offset }),
            Kind::Change => Op::parse(self.file, payload).ok(),
        }
    }
}

/// What is wrong with an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flaw {
    /// It was durable, and is not there.
    Missing,
    /// The word that commits it was never written by anybody.
    Commit,
    /// The checksum of a header does not fit.
    Header,
    /// The headers of its group contradict each other.
    Group,
    /// The checksum of its data does not fit.
    Data,
    /// It is a change that this release does not know.
    Unknown,
    /// The file table does not say which file it is about.
    File,
}

/// An entry that is damaged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Damage {
    /// The index of its first entry.
    pub first: u64,
    /// How many entries are of one group with it, as far as that is known.
    pub count: u64,
    /// Which file it changed, and from where to where, if that is known.
    pub file: Option<(FileId, u64, u64)>,
    /// What it was, if that is known.
    pub kind: Option<Kind>,
    /// What is wrong.
    pub flaw: Flaw,
}

impl Damage {
    pub(crate) const fn unknown(first: u64, flaw: Flaw) -> Self {
        Self { first, count: 1, file: None, kind: None, flaw }
    }

    pub(crate) const fn of(entry: &Entry, flaw: Flaw) -> Self {
        let file = Some((entry.file, entry.offset, entry.offset.saturating_add(entry.len)));
        Self { first: entry.first, count: entry.count, file, kind: Some(entry.kind), flaw }
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.file {
            Some((file, from, to)) => write!(f, "entry {} ({file}, bytes {from}..{to}): ", self.first)?,
            None => write!(f, "entry {} (of a file that is not known any more): ", self.first)?,
        }
        f.write_str(match self.flaw {
            Flaw::Missing => "it was durable, and is not there",
            Flaw::Commit => "the word that commits it is damaged",
            Flaw::Header => "its header is damaged",
            Flaw::Group => "the headers of its group contradict each other",
            Flaw::Data => "its data is damaged",
            Flaw::Unknown => "it is a change that this release does not know",
            Flaw::File => "the log's table does not say which file that is",
        })
    }
}

/// The line of an index: its commit word, and its header if that is whole.
pub(crate) fn line(medium: &impl Medium, layout: &Layout, index: u64) -> (u64, Option<Header>) {
    let at = layout.header(index);
    // The word first: what it commits was written before it.
    let word = medium.load_u64(at);
    let mut line = [0; HEADER_LEN];
    medium.read(at, &mut line);
    (word, Header::parse(&line, layout.salt, index))
}

/// Reads the headers of the group that begins there.
pub(crate) fn group(medium: &impl Medium, layout: &Layout, first: u64) -> Result<Entry, Damage> {
    let slot = u64::from(layout.geometry.slot);
    let Some(head) = line(medium, layout, first).1 else {
        // The second header says which group it is of, and so what is lost.
        let mut damage = Damage::unknown(first, Flaw::Header);
        if let Some(next) = line(medium, layout, first + 1).1.filter(|next| next.back == 1) {
            damage.count = next.count.into();
            damage.kind = Some(next.kind);
            if next.kind == Kind::Write {
                let from = next.offset.saturating_sub(slot);
                let to = from.saturating_add(damage.count.saturating_mul(slot));
                damage.file = Some((FileId(next.file), from, to));
            }
        }
        return Err(damage);
    };
    let entry = Entry {
        first,
        count: head.count.into(),
        kind: head.kind,
        file: FileId(head.file),
        offset: head.offset,
        len: head.length.into(),
        mtime: head.mtime,
    };
    let damage = |flaw| Damage::of(&Entry { len: u64::from(head.count) * slot, ..entry }, flaw);
    if head.back != 0 || entry.count > layout.geometry.entries || entry.len > slot {
        return Err(damage(Flaw::Group));
    }
    if entry.kind == Kind::Hole {
        return Ok(entry);
    }
    let (mut before, mut len) = (head, entry.len);
    for n in 1..entry.count {
        let next = line(medium, layout, first + n).1.ok_or_else(|| damage(Flaw::Header))?;
        let follows = u64::from(next.back) == n
            && next.count == head.count
            && next.kind == head.kind
            && next.file == head.file
            && u64::from(before.length) == slot
            && u64::from(next.length) <= slot
            && before.offset.checked_add(slot) == Some(next.offset);
        if !follows {
            return Err(damage(Flaw::Group));
        }
        len += u64::from(next.length);
        before = next;
    }
    if entry.offset.checked_add(len).is_none() {
        return Err(damage(Flaw::Group));
    }
    Ok(Entry { len, ..entry })
}

/// Reads the data of a group, all slots one behind the other.
///
/// # Errors
/// It is not what was written: nothing of it may be used.
pub(crate) fn payload(
    medium: &impl Medium,
    layout: &Layout,
    entry: &Entry,
    into: &mut Vec<u8>,
) -> Result<(), Damage> {
    let damage = |flaw| Damage::of(entry, flaw);
    into.clear();
    if entry.kind == Kind::Hole {
        return Ok(());
    }
    for index in entry.first..entry.end() {
        let header = line(medium, layout, index).1.ok_or_else(|| damage(Flaw::Header))?;
        if header.length > layout.geometry.slot {
            return Err(damage(Flaw::Group));
        }
        let from = into.len();
        into.resize(from + header.length as usize, 0);
        medium.read(layout.data(index), &mut into[from..]);
        if data_checksum(layout.salt, index, &into[from..]) != header.data {
            return Err(damage(Flaw::Data));
        }
    }
    if into.len() as u64 == entry.len { Ok(()) } else { Err(damage(Flaw::Group)) }
}

/// Asks that all of a group goes to the persistence domain, whoever wrote it.
pub(crate) fn write_back(medium: &impl Medium, layout: &Layout, first: u64, count: u64) {
    for index in first..first + count {
        let at = layout.header(index);
        let mut length = [0; 4];
        medium.read(at + LENGTH as u64, &mut length);
        let length = (u32::from_le_bytes(length) & LENGTH_MAX).min(layout.geometry.slot);
        if length > 0 {
            medium.pwb(layout.data(index)..layout.data(index) + u64::from(length));
        }
        medium.pwb(at..at + HEADER_LEN as u64);
    }
}
