//! What a replica has in memory that others reach: the layout, and access to one's own.
//!
//! ```text
//!    0  superblock
//!  128  status      beat, head, place, length, stuck   written by the owner, read by all: see [`Status`]
//!  192  promised    u64                                the highest number that was granted here; durable before that is told; read with the status
//!  256  requests    16 x u64                           each peer writes the number that it asks for into its own
//!  384  grants      16 x u64                           each peer writes what it answers into its own
//!  512  decided     u64                                all entries below are decided, and durable here      } the zone:
//!  576  pushed      a snapshot that a leader sent                                                           } only who was
//!       slots                                                                                               } granted it
//!       two places for the owner's own snapshots
//! ```
//! All words are little-endian. Peers may always read, and write the two words that are their own; the zone is written by one peer at a
//! time, or by the owner while it leads.

use std::io;
use std::ops::Range;

use remanence_pmem::image::{Checksum, Fault, Format, Making, Places, Signature, Version};
use remanence_pmem::layout::Uuid;
use remanence_pmem::{FileOptions, Image, Medium};

use super::entry::{Entry, HEADER_LEN, Kind, len_of, u64_at};

/// Replicas that a group has at most.
pub const REPLICAS_MAX: usize = 16;
/// Where the owner says how it is.
pub const STATUS: u64 = 128;
/// Bytes of that.
pub const STATUS_LEN: u32 = 40;
/// Where it says which number it has promised last.
pub const PROMISED: u64 = 192;
const REQUESTS: u64 = 256;
const GRANTS: u64 = 384;
/// Where the zone begins: the first undecided entry, as far as it was told.
pub const DECIDED: u64 = 512;
/// Where a leader puts a snapshot.
pub const PUSHED: u64 = 576;
/// Bytes from the status to the end of the word that says what is promised.
pub const LOOK_LEN: u32 = (PROMISED + 8 - STATUS) as u32;
/// Bytes from the status to the end of the word that says what is decided.
pub const HEAD_LEN: u32 = (DECIDED + 8 - STATUS) as u32;

const VERSION: u32 = 1;
const SUPERBLOCK_LEN: usize = 128;
const FORMAT: Format = Format {
    signature: Signature {
        magic: *b"REMMU\0\0\0",
        second: None,
        making: Some(Making { at: 0, mark: b"REMMU\0\0m", ends: true }),
        head: SUPERBLOCK_LEN,
        note: None,
    },
    versions: &[Version { number: VERSION, crc_at: 124, len: SUPERBLOCK_LEN, twice: false }],
    places: Places::COMMON,
    checksum: Checksum::CRC32,
};

/// How a file with a replica's memory is opened: what is in a foreign one is not touched.
#[must_use]
pub fn file_options() -> FileOptions {
    FORMAT.signature.file_options(image)
}

/// What a file of this length has that begins so.
#[must_use]
pub fn image(head: &[u8], len: u64) -> Image {
    FORMAT.image(head, len)
}

mod field {
    pub(super) const SALT: usize = 40;
    pub(super) const SLOTS: usize = 48;
    pub(super) const SLOT: usize = 52;
    pub(super) const WINDOW: usize = 56;
    pub(super) const SNAPSHOT: usize = 60;
    pub(super) const REPLICAS: usize = 64;
    pub(super) const ME: usize = 66;
}

/// How the memory of each replica of a group is divided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// How many replicas there are.
    pub replicas: u16,
    /// Entries that a log has at a time.
    pub slots: u32,
    /// Bytes of a slot: the longest entry, with its header.
    pub slot: u32,
    /// Entries that are written and not decided, at most.
    pub window: u32,
    /// Bytes of the longest snapshot, with its header.
    pub snapshot: u32,
}

impl Geometry {
    /// Whether such a group can be: it has replicas, and a log with room for what is in flight four times.
    #[must_use]
    pub const fn is_fair(&self) -> bool {
        self.replicas >= 1
            && self.replicas as usize <= REPLICAS_MAX
            && self.window >= 1
            && self.slots / 4 >= self.window
            && self.slot as u64 > HEADER_LEN
            && self.slot.is_multiple_of(64)
            && self.snapshot as u64 > HEADER_LEN
            && self.snapshot.is_multiple_of(64)
    }

    /// How many replicas must have an entry before it is decided: the leader itself is one of them.
    #[must_use]
    pub const fn majority(&self) -> usize {
        self.replicas as usize / 2 + 1
    }

    /// Bytes of the longest value.
    #[must_use]
    pub const fn value_max(&self) -> usize {
        (self.slot as u64 - HEADER_LEN) as usize
    }

    /// Bytes of the longest state that a snapshot can be of.
    #[must_use]
    pub const fn state_max(&self) -> usize {
        (self.snapshot as u64 - HEADER_LEN) as usize
    }

    const fn slots_at(&self) -> u64 {
        PUSHED + self.snapshot as u64
    }

    /// Where the slot of an entry begins.
    #[must_use]
    pub const fn slot_at(&self, index: u64) -> u64 {
        self.slots_at() + index % self.slots as u64 * self.slot as u64
    }

    /// The zone: what one peer at a time may write.
    #[must_use]
    pub const fn zone(&self) -> Range<u64> {
        DECIDED..self.slots_at() + self.slots as u64 * self.slot as u64
    }

    /// Where one of the two places for the owner's snapshots begins.
    #[must_use]
    pub const fn snapshot_at(&self, place: u64) -> u64 {
        self.zone().end + place % 2 * self.snapshot as u64
    }

    /// Bytes of it all.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.snapshot_at(1) + self.snapshot as u64
    }

    /// The slots of entries that lie side by side, and how many: two runs where the end of the log is passed.
    pub(super) fn runs(&self, from: u64, count: u64) -> impl Iterator<Item = (u64, u64)> + use<> {
        let slots = u64::from(self.slots);
        let first = count.min(slots - from % slots);
        [(from, first), (from + first, count - first)].into_iter().filter(|(_, count)| *count > 0)
    }
}

/// Where a peer writes what it asks for.
#[must_use]
pub const fn request_at(peer: usize) -> u64 {
    REQUESTS + 8 * peer as u64
}

/// Where a peer writes what it answers.
#[must_use]
pub const fn grant_at(peer: usize) -> u64 {
    GRANTS + 8 * peer as u64
}

/// What a replica says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Status {
    /// Grows while it runs.
    pub beat: u64,
    /// Its own snapshot covers all entries below.
    pub head: u64,
    /// In which of the two places that snapshot lies.
    pub place: u64,
    /// Bytes of it.
    pub length: u64,
    /// It knows of decided entries that it does not have, and needs a snapshot.
    pub is_stuck: bool,
}

impl Status {
    fn emit(&self) -> [u8; STATUS_LEN as usize] {
        let words = [self.beat, self.head, self.place, self.length, u64::from(self.is_stuck)];
        let mut bytes = [0; STATUS_LEN as usize];
        bytes.chunks_exact_mut(8).zip(words).for_each(|(at, word)| at.copy_from_slice(&word.to_le_bytes()));
        bytes
    }

    /// Reads one, if these bytes are long enough.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..STATUS_LEN as usize)?;
        let [beat, head, place, length, stuck] = [0, 8, 16, 24, 32].map(|at| u64_at(bytes, at));
        Some(Self { beat, head, place, length, is_stuck: stuck != 0 })
    }
}

/// Why memory is not that of a replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no replica's memory here, or a damaged one.
    #[error(
        "this memory is no replica's that can be opened ({0:?}); make a new one, and let the others bring it up to date"
    )]
    Superblock(Fault),
    /// The superblock says what cannot be.
    #[error("the superblock of this replica's memory describes no group; make a new one in its place")]
    Geometry,
}

/// A replica's own memory.
#[derive(Debug)]
pub struct Memory<M> {
    medium: M,
    geometry: Geometry,
    salt: u64,
    me: usize,
}

impl<M: Medium> Memory<M> {
    /// Makes the memory of the replica `me` on a medium that has zeros. All replicas of a group have the same salt.
    ///
    /// # Errors
    /// The medium failed.
    ///
    /// # Panics
    /// Such a group cannot be, or the medium is too short.
    pub fn create(medium: &M, geometry: Geometry, me: u16, uuid: Uuid, salt: u64) -> io::Result<()> {
        let Geometry { replicas, slots, slot, window, snapshot } = geometry;
        assert!(geometry.is_fair() && me < replicas, "{geometry:?} has no replica {me}");
        assert!(medium.len() >= geometry.size(), "{} bytes for {geometry:?}", medium.len());
        let [slots, slot, window, snapshot] = [slots, slot, window, snapshot].map(u32::to_le_bytes);
        let [replicas, me] = [replicas, me].map(u16::to_le_bytes);
        let salt = salt.to_le_bytes();
        let own: [(usize, &[u8]); 7] = [
            (field::SALT, &salt),
            (field::SLOTS, &slots),
            (field::SLOT, &slot),
            (field::WINDOW, &window),
            (field::SNAPSHOT, &snapshot),
            (field::REPLICAS, &replicas),
            (field::ME, &me),
        ];
        FORMAT.make(medium, &FORMAT.emit(VERSION, uuid, geometry.size(), &own))
    }

    /// Opens the memory that a replica has left.
    ///
    /// # Errors
    /// It is none, or damaged.
    pub fn open(medium: M) -> Result<Self, OpenError> {
        let head = FORMAT.read(&medium);
        let fields = FORMAT.judge(&head).map_err(OpenError::Superblock)?.fields;
        let geometry = Geometry {
            replicas: fields.u16(field::REPLICAS),
            slots: fields.u32(field::SLOTS),
            slot: fields.u32(field::SLOT),
            window: fields.u32(field::WINDOW),
            snapshot: fields.u32(field::SNAPSHOT),
        };
        let (salt, me) = (fields.u64(field::SALT), usize::from(fields.u16(field::ME)));
        if !geometry.is_fair() || me >= geometry.replicas.into() || medium.len() < geometry.size() {
            return Err(OpenError::Geometry);
        }
        Ok(Self { medium, geometry, salt, me })
    }

    /// How it is divided.
    pub const fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// What goes into the checksum of each entry.
    pub const fn salt(&self) -> u64 {
        self.salt
    }

    /// Which replica's it is.
    pub const fn me(&self) -> usize {
        self.me
    }

    fn word(&self, at: u64) -> u64 {
        u64::from_le(self.medium.load_u64(at))
    }

    fn set(&self, at: u64, word: u64) {
        self.medium.store_u64(at, word.to_le());
    }

    /// The highest number that was granted here.
    pub fn promised(&self) -> u64 {
        self.word(PROMISED)
    }

    /// Grants a number: durable on return.
    pub(super) fn promise(&self, number: u64) -> io::Result<()> {
        self.set(PROMISED, number);
        self.medium.persist(PROMISED..PROMISED + 8)
    }

    /// What a peer asks for.
    pub(super) fn request(&self, peer: usize) -> u64 {
        self.word(request_at(peer))
    }

    /// What a peer has answered.
    pub(super) fn grant(&self, peer: usize) -> u64 {
        self.word(grant_at(peer))
    }

    /// All entries below are decided, as far as a leader has said so.
    pub fn decided(&self) -> u64 {
        self.word(DECIDED)
    }

    /// Visible, not durable: whoever says so knows that the entries are durable here.
    pub(super) fn set_decided(&self, decided: u64) {
        self.set(DECIDED, decided);
    }

    /// Says how the owner is.
    pub(super) fn say(&self, status: &Status) {
        for (n, word) in status.emit().chunks_exact(8).enumerate() {
            self.set(STATUS + 8 * n as u64, u64_at(word, 0));
        }
    }

    fn frame(&self, at: u64, room: u32) -> Option<Entry> {
        let mut header = [0; HEADER_LEN as usize];
        self.medium.read(at, &mut header);
        let mut frame = vec![0; len_of(&header, room.into())?];
        self.medium.read(at, &mut frame);
        Entry::parse(&frame, self.salt)
    }

    /// The entry with an index, if it is here, whole.
    pub fn entry(&self, index: u64) -> Option<Entry> {
        let found = self.frame(self.geometry.slot_at(index), self.geometry.slot)?;
        (found.index == index && found.kind != Kind::Snapshot).then_some(found)
    }

    /// As [`put`](Self::put), where the same values may lie under other numbers: each is there at each moment.
    pub(super) fn rewrite(&self, entries: &[Entry]) -> io::Result<()> {
        for entry in entries {
            let (at, word) = Entry::renumber(&entry.emit(self.salt));
            let at = self.geometry.slot_at(entry.index) + at;
            self.medium.write(at, &word);
            self.medium.pwb(at..at + 8);
        }
        self.medium.psync()?;
        self.put(entries)
    }

    /// Puts entries into their slots: durable on return.
    pub(super) fn put(&self, entries: &[Entry]) -> io::Result<()> {
        for entry in entries {
            self.medium.write(self.geometry.slot_at(entry.index), &entry.emit(self.salt));
        }
        self.persist(entries.iter().map(|entry| entry.index))
    }

    /// Makes the slots of entries durable as they are.
    pub(super) fn persist(&self, indexes: impl Iterator<Item = u64>) -> io::Result<()> {
        for index in indexes {
            let at = self.geometry.slot_at(index);
            self.medium.pwb(at..at + u64::from(self.geometry.slot));
        }
        self.medium.psync()
    }

    fn is_snapshot(found: &Entry) -> bool {
        found.kind == Kind::Snapshot
    }

    /// The owner's snapshot with the highest index, and in which place it is.
    pub fn snapshot(&self) -> Option<(u64, Entry)> {
        let both = [0, 1].map(|place| {
            let found = self.frame(self.geometry.snapshot_at(place), self.geometry.snapshot)?;
            Self::is_snapshot(&found).then_some((place, found))
        });
        both.into_iter().flatten().max_by_key(|(_, found)| found.index)
    }

    /// Makes a snapshot durable in that place.
    pub(super) fn keep(&self, place: u64, bytes: &[u8]) -> io::Result<()> {
        let at = self.geometry.snapshot_at(place);
        self.medium.write(at, bytes);
        self.medium.persist(at..at + bytes.len() as u64)
    }

    /// The snapshot that a leader has sent last, if it is whole.
    pub(super) fn pushed(&self) -> Option<Entry> {
        self.frame(PUSHED, self.geometry.snapshot).filter(Self::is_snapshot)
    }

    /// The index that what a leader has sent last begins with, whole or not.
    pub(super) fn pushed_index(&self) -> u64 {
        self.word(PUSHED + 8)
    }
}

#[cfg(test)]
mod tests {
    use remanence_pmem::PersistenceDomain;
    use remanence_pmem::crash_image::{CrashImage, Failure, Seeded};

    use super::*;

    const GEOMETRY: Geometry = Geometry { replicas: 3, slots: 16, slot: 256, window: 4, snapshot: 256 };

    fn memory() -> Memory<CrashImage> {
        let medium = CrashImage::new(GEOMETRY.size(), PersistenceDomain::Adr);
        Memory::create(&medium, GEOMETRY, 1, Uuid([3; 16]), 7).expect("a new medium is healthy");
        Memory::open(medium).expect("it was made")
    }

    #[test]
    fn the_layout_is_what_it_says() {
        assert_eq!((STATUS, PROMISED, request_at(0), grant_at(0), DECIDED), (128, 192, 256, 384, 512));
        assert_eq!(request_at(REPLICAS_MAX), grant_at(0), "there is room for all");
        assert!(grant_at(REPLICAS_MAX) <= DECIDED && STATUS + u64::from(STATUS_LEN) <= PROMISED);
        assert_eq!(GEOMETRY.zone(), 512..576 + 256 + 16 * 256);
        assert_eq!((GEOMETRY.slot_at(0), GEOMETRY.slot_at(17)), (832, 832 + 256));
        assert_eq!((GEOMETRY.snapshot_at(0), GEOMETRY.size()), (4928, 4928 + 512));
        let runs: Vec<(u64, u64)> = GEOMETRY.runs(30, 4).collect();
        assert_eq!(runs, [(30, 2), (32, 2)]);
        assert_eq!(GEOMETRY.runs(5, 3).collect::<Vec<_>>(), [(5, 3)]);
        assert_eq!(memory().geometry(), &GEOMETRY);
    }

    #[test]
    fn a_value_is_there_at_each_moment_of_its_being_written_again() {
        let before =
            Entry { index: 5, proposal: 1 << 16, decided: 4, kind: Kind::Value, payload: vec![9; 100] };
        let after = Entry { proposal: 0x1234_5678 << 16 | 3 << 12, ..before.clone() };
        for syncs in 0..=2 {
            let memory = memory();
            memory.put(std::slice::from_ref(&before)).expect("a healthy medium");
            memory.medium.fail_after_psyncs(syncs);
            let result = memory.rewrite(std::slice::from_ref(&after));
            assert_eq!(result.is_ok(), syncs == 2);
            for seed in 0..200 {
                let left = memory.medium.crash(Failure::PowerLoss, &mut Seeded::new(seed));
                let found = Memory::open(left).expect("it was made").entry(5).expect("it may be decided");
                let is_new = found == after;
                assert!(is_new || found == before && syncs == 0, "{found:?}");
            }
        }
    }

    #[test]
    fn of_two_snapshots_the_later_whole_one_counts() {
        let memory = memory();
        let emit = |index: u64| {
            let payload = vec![index as u8; 50];
            Entry { index, proposal: 0, decided: index, kind: Kind::Snapshot, payload }.emit(7)
        };
        assert!(memory.snapshot().is_none());
        memory.keep(0, &emit(4)).expect("a healthy medium");
        memory.keep(1, &emit(8)).expect("a healthy medium");
        assert_eq!(memory.snapshot().map(|(place, found)| (place, found.index)), Some((1, 8)));
        memory.medium.write(GEOMETRY.snapshot_at(1) + 50, &[0xFF]);
        assert_eq!(memory.snapshot().map(|(place, found)| (place, found.index)), Some((0, 4)));
    }
}
