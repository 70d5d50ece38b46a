//! The file table: which file a number means.
//!
//! A slot is durable before the first entry that names it is promised, and is used for another file only when no entry at or above the persistent
//! tail names the first one: [`release`](FileTable::release) is told the head of that moment. So a slot that is torn by a crash is one that no entry
//! names that was promised, and one that such an entry names and is not whole is damaged.
//!
//! **Where a sync is long** ([`durable_with_entries`](FileTable::durable_with_entries)) nobody waits for a slot: the sync that makes an entry durable makes its slot durable as well, which was
//! written before. An entry that nobody was promised may then be there without it, and the slot must not say that it is about another file: so each slot is blank,
//! durably, before it is used again, and many of them are made so by one sync.
//!
//! **Spare numbers** ([`spares`](FileTable::spares)) are for who makes a file and asks nobody: he writes the slot himself ([`Log::name`](crate::log::Log::name)), durably, before his first entry names it, and whoever
//! hands out numbers [takes note](FileTable::adopt) of it later. A spare number is in use from the moment when it was given away, so nothing else is to be known of it before: the rule above is kept by who writes.

use std::fmt;
use std::io;

use remanence_codec::printable;
use remanence_pmem::Medium;

use crate::format::Layout;

/// Bytes of a slot before the path.
pub(crate) const SLOT_HEAD: usize = 256;
/// Bytes of the longest file handle (`MAX_HANDLE_SZ`).
pub const HANDLE_MAX: usize = 128;

const CRC: usize = 0;
const PATH_LEN: usize = 4;
const DEVICE: usize = 8;
const INODE: usize = 16;
const BORN: usize = 24;
const HANDLE_TYPE: usize = 32;
const HANDLE_LEN: usize = 36;
const SLOT: usize = 40;
const HANDLE: usize = 64;

/// The number of a file in a log.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileId(pub u32);

impl fmt::Display for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "file {}", self.0)
    }
}

/// What a file is known by, as no other file of this machine ever is: an inode's number alone is used again.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Identity {
    /// The device of its file system.
    pub device: u64,
    /// The number of its inode.
    pub inode: u64,
    /// When it was made, in nanoseconds since 1970; 0 where the file system does not say.
    pub born: u64,
    /// Type of the file handle.
    pub handle_type: u32,
    /// The file handle (`name_to_handle_at`), which has the inode's generation; empty where there is none.
    pub handle: Vec<u8>,
    /// Its path when it was opened: what it is known by on another machine.
    pub path: Vec<u8>,
}

impl Identity {
    /// Whether both are one file, wherever it was moved to since.
    #[must_use]
    pub fn is_same_file(&self, other: &Self) -> bool {
        self.device == other.device
            && self.inode == other.inode
            && self.born == other.born
            && self.handle_type == other.handle_type
            && self.handle == other.handle
    }

    /// Its path, fit to be shown.
    #[must_use]
    pub fn shown(&self) -> String {
        printable(&self.path)
    }

    /// Whether a log's slots have room for it.
    fn fit(&self, layout: &Layout) -> Result<(), TableError> {
        let max = layout.geometry.path_max;
        if self.path.len() > max as usize || self.handle.len() > HANDLE_MAX {
            return Err(TableError::TooLong { path: self.shown(), max });
        }
        Ok(())
    }

    /// Writes the slot of a [spare](FileTable::spares) number, durably.
    pub(crate) fn store(
        &self,
        medium: &impl Medium,
        layout: &Layout,
        file: FileId,
    ) -> Result<(), TableError> {
        self.fit(layout)?;
        medium.write_nt(layout.file(file), &self.emit(layout, file));
        Ok(medium.psync()?)
    }

    fn emit(&self, layout: &Layout, file: FileId) -> Vec<u8> {
        let mut slot = vec![0; SLOT_HEAD + self.path.len()];
        let mut put = |at: usize, bytes: &[u8]| slot[at..at + bytes.len()].copy_from_slice(bytes);
        put(PATH_LEN, &(self.path.len() as u32).to_le_bytes());
        put(DEVICE, &self.device.to_le_bytes());
        put(INODE, &self.inode.to_le_bytes());
        put(BORN, &self.born.to_le_bytes());
        put(HANDLE_TYPE, &self.handle_type.to_le_bytes());
        put(HANDLE_LEN, &(self.handle.len() as u32).to_le_bytes());
        put(SLOT, &file.0.to_le_bytes());
        put(HANDLE, &self.handle);
        put(SLOT_HEAD, &self.path);
        let crc = checksum(layout, &slot);
        slot[CRC..CRC + 4].copy_from_slice(&crc.to_le_bytes());
        slot
    }

    /// Says of a file that has lost its last name that nothing is due to it: its slot has no path from now on, durably. One word says so, which a crash does not
    /// tear. Nothing is done of one whose slot says so already, or is damaged.
    ///
    /// # Errors
    /// The medium failed.
    pub fn disown(medium: &impl Medium, layout: &Layout, file: FileId) -> io::Result<()> {
        if Self::read(medium, layout, file).is_none_or(|found| found.is_nobodys()) {
            return Ok(());
        }
        let mut head = vec![0; SLOT_HEAD];
        let at = layout.file(file);
        medium.read(at, &mut head);
        head[PATH_LEN..PATH_LEN + 4].fill(0);
        let word = u64::from(checksum(layout, &head));
        medium.store_u64(at, word);
        medium.pwb(at..at + 8);
        medium.psync()
    }

    /// Whether nothing is due to it, as it has [lost its last name](Self::disown).
    #[must_use]
    pub const fn is_nobodys(&self) -> bool {
        self.path.is_empty()
    }

    /// The bytes of a file's slot, whatever they are.
    pub(crate) fn slot(medium: &impl Medium, layout: &Layout, file: FileId) -> Vec<u8> {
        let mut slot = vec![0; SLOT_HEAD];
        medium.read(layout.file(file), &mut slot);
        let path = u32::from_le_bytes(slot[PATH_LEN..PATH_LEN + 4].try_into().expect("four bytes"));
        slot.resize(SLOT_HEAD + path.min(layout.geometry.path_max) as usize, 0);
        medium.read(layout.file(file) + SLOT_HEAD as u64, &mut slot[SLOT_HEAD..]);
        slot
    }

    /// Reads the slot of a file. `None`: it has none, or its slot is damaged.
    #[must_use]
    pub fn read(medium: &impl Medium, layout: &Layout, file: FileId) -> Option<Self> {
        if file.0 >= layout.geometry.files {
            return None;
        }
        let mut slot = vec![0; SLOT_HEAD];
        medium.read(layout.file(file), &mut slot);
        let u32_at =
            |slot: &[u8], at: usize| u32::from_le_bytes(slot[at..at + 4].try_into().expect("four bytes"));
        let u64_at =
            |slot: &[u8], at: usize| u64::from_le_bytes(slot[at..at + 8].try_into().expect("eight bytes"));
        let path = u32_at(&slot, PATH_LEN);
        let handle = u32_at(&slot, HANDLE_LEN) as usize;
        if path > layout.geometry.path_max || handle > HANDLE_MAX {
            return None;
        }
        slot.resize(SLOT_HEAD + path as usize, 0);
        medium.read(layout.file(file) + SLOT_HEAD as u64, &mut slot[SLOT_HEAD..]);
        if u32_at(&slot, CRC) != checksum(layout, &slot) || u32_at(&slot, SLOT) != file.0 {
            return None;
        }
        Some(Self {
            device: u64_at(&slot, DEVICE),
            inode: u64_at(&slot, INODE),
            born: u64_at(&slot, BORN),
            handle_type: u32_at(&slot, HANDLE_TYPE),
            handle: slot[HANDLE..HANDLE + handle].to_vec(),
            path: slot[SLOT_HEAD..].to_vec(),
        })
    }
}

/// Which file a slot's bytes name, by device, inode and birth, and its path; `None` if they are not whole.
pub(crate) fn named(layout: &Layout, slot: &[u8]) -> Option<([u64; 3], Vec<u8>)> {
    let path = slot.get(SLOT_HEAD..)?;
    let word = |at: usize| u64::from_le_bytes(slot[at..at + 8].try_into().expect("eight bytes"));
    let whole = slot[CRC..CRC + 4] == checksum(layout, slot).to_le_bytes();
    whole.then(|| ([word(DEVICE), word(INODE), word(BORN)], path.to_vec()))
}

fn checksum(layout: &Layout, slot: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&layout.salt.to_le_bytes());
    crc.update(&slot[CRC + 4..]);
    crc.finalize()
}

/// What a slot is used for.
#[derive(Clone, Debug)]
struct Use {
    identity: Identity,
    /// Entries from there on do not name it; `None` while they may.
    until: Option<u64>,
}

/// Who hands out the numbers of files: one for a log, whoever else may append.
#[derive(Debug)]
pub struct FileTable<M> {
    medium: M,
    layout: Layout,
    uses: Vec<Option<Use>>,
    /// Numbers whose slots are blank durably; `None` where each slot is waited for.
    blank: Option<Vec<FileId>>,
}

/// So many slots are made blank at a time.
const BLANKS: usize = 64;

impl<M: Medium> FileTable<M> {
    /// That of a log without entries: no number is in use.
    #[must_use]
    pub fn empty(medium: M, layout: Layout) -> Self {
        let uses = vec![None; layout.geometry.files as usize];
        Self { medium, layout, uses, blank: None }
    }

    /// The same, where nobody waits for a slot: it is durable with the first entry that names it, as whoever syncs the log makes all of it durable that was written back before.
    #[must_use]
    pub fn durable_with_entries(self) -> Self {
        Self { blank: Some(Vec::new()), ..self }
    }

    /// That of a log with entries: each number that may be named by one up to `head` is in use until they are in their files.
    #[must_use]
    pub fn attach(medium: M, layout: Layout, head: u64) -> Self {
        let files = (0..layout.geometry.files).map(FileId);
        let uses = files
            .map(|file| Identity::read(&medium, &layout, file))
            .map(|found| found.map(|identity| Use { identity, until: Some(head) }))
            .collect();
        Self { medium, layout, uses, blank: None }
    }

    /// The number of a file, which is the one that it has, if it has one; durable on return, or [with the first entry](Self::durable_with_entries). Entries below `tail` are in
    /// their files, and the persistent tail says so.
    ///
    /// # Errors
    /// All numbers are in use, the path or the handle is too long, or the medium failed.
    pub fn register(&mut self, identity: &Identity, tail: u64) -> Result<FileId, TableError> {
        identity.fit(&self.layout)?;
        // Also a number that is in use no more but for entries: one file never has two, as what overlaps is told by them.
        let known =
            |used: &Option<Use>| used.as_ref().is_some_and(|used| used.identity.is_same_file(identity));
        if let Some(known) = self.uses.iter().position(known) {
            let file = FileId(known as u32);
            // One that has a name again gets another number.
            if !Identity::read(&self.medium, &self.layout, file).is_some_and(|found| found.is_nobodys()) {
                self.uses[known].iter_mut().for_each(|used| used.until = None);
                return Ok(file);
            }
        }
        let file = if self.blank.is_some() { self.take_blank(tail)? } else { self.free(tail).next() };
        let file = file.ok_or(TableError::Full { files: self.layout.geometry.files })?;
        self.medium.write_nt(self.layout.file(file), &identity.emit(&self.layout, file));
        if self.blank.is_none() {
            self.medium.psync()?;
        }
        self.uses[file.0 as usize] = Some(Use { identity: identity.clone(), until: None });
        Ok(file)
    }

    /// The numbers that no entry names which may still be carried out.
    fn free(&self, tail: u64) -> impl Iterator<Item = FileId> {
        self.uses.iter().enumerate().filter_map(move |(number, used)| {
            let is_free = used.as_ref().is_none_or(|used| used.until.is_some_and(|until| until <= tail));
            is_free.then_some(FileId(number as u32))
        })
    }

    /// A number whose slot says nothing, whatever a crash leaves of it.
    fn take_blank(&mut self, tail: u64) -> io::Result<Option<FileId>> {
        if self.blank.as_ref().is_none_or(Vec::is_empty) {
            let mut free: Vec<FileId> = self.free(tail).take(BLANKS).collect();
            for file in &free {
                self.uses[file.0 as usize] = None;
                self.medium.write_nt(self.layout.file(*file), &[0; SLOT_HEAD]);
            }
            self.medium.psync()?;
            // The lowest goes first.
            free.reverse();
            self.blank = Some(free);
        }
        Ok(self.blank.as_mut().and_then(Vec::pop))
    }

    /// Numbers that are in use from now on, for files that others make: so many at most. None where [slots are durable with entries](Self::durable_with_entries), as who writes one would have to
    /// find it blank.
    pub fn spares(&mut self, tail: u64, count: usize) -> Vec<FileId> {
        let count = if self.blank.is_some() { 0 } else { count };
        let spares: Vec<FileId> = self.free(tail).take(count).collect();
        for file in &spares {
            self.uses[file.0 as usize] = Some(Use { identity: Identity::default(), until: None });
        }
        spares
    }

    /// Takes note of the file that somebody has given a spare number. `None`: its slot is not whole.
    pub fn adopt(&mut self, file: FileId) -> Option<Identity> {
        let used = self.uses.get_mut(file.0 as usize)?.as_mut()?;
        used.identity = Identity::read(&self.medium, &self.layout, file)?;
        Some(used.identity.clone())
    }

    /// Says where a file is by now, durably. No entry at or above the persistent tail names it, and none does before this returns.
    ///
    /// # Errors
    /// The path is too long, and the one that it had stays; or the medium failed.
    pub fn renew(&mut self, file: FileId, path: &[u8]) -> Result<(), TableError> {
        let Some(Some(used)) = self.uses.get_mut(file.0 as usize) else { return Ok(()) };
        let identity = Identity { path: path.to_vec(), ..used.identity.clone() };
        identity.fit(&self.layout)?;
        self.medium.write_nt(self.layout.file(file), &identity.emit(&self.layout, file));
        self.medium.psync()?;
        used.identity = identity;
        Ok(())
    }

    /// No entry from `head` on names this file: its number is free when all below are in their files.
    pub fn release(&mut self, file: FileId, head: u64) {
        if let Some(Some(used)) = self.uses.get_mut(file.0 as usize) {
            used.until = Some(head);
        }
    }
}

/// Why a file gets no number.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// Each number is in use.
    #[error("the log has numbers for {files} files, and all are in use: drain it, or make one for more")]
    Full {
        /// How many there are.
        files: u32,
    },
    /// The log keeps no path as long.
    #[error("the path {path} is longer than the {max} bytes that the log has for one")]
    TooLong {
        /// The path, fit to be shown.
        path: String,
        /// Bytes of the longest.
        max: u32,
    },
    /// The medium failed.
    #[error("the log's medium failed: {0}")]
    Medium(#[from] io::Error),
}
