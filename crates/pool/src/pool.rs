//! The pool: reservations become data, data becomes durable, and a durable record makes it a blob.
//!
//! Pure but for the medium under it. What a blob goes through:
//!
//! ```text
//! reserve ──► [data is written] ──► data_durable ──► commit ──► (overwritten or deleted) ──► blocks free again
//!    └── abandon: blocks free again                     └─ the frame's psync decides that it is a blob
//! ```
//!
//! Read first: the crash argument in [`crate::format`]. The other way in, for an existing pool, is
//! [`crate::recover`](mod@crate::recover).

use std::collections::BTreeMap;

use remanence_pmem::Medium;

use crate::alloc::{Allocator, Extent, push_joined};
use crate::blob::{BlobName, Digest, Listing, State, Version};
use crate::error::{OpenError, PoolError};
use crate::format::ceiling;
use crate::format::frame::{self, Record};
use crate::format::root::Root;
use crate::format::superblock::{Superblock, Uuid};
use crate::format::{BLOCK, Geometry, Half, MAX_EXTENTS};
use crate::promise::{AHEAD, Promises};

/// A snapshot's frames are closed once they hold this many bytes.
const SNAPSHOT_CUT: usize = 256 << 10;

/// Names a reservation while the server lives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ReservationId(pub u64);

/// Names a read lease while the server lives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LeaseId(pub u64);

/// A change that a commit makes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// The reserved data becomes the blob of that name.
    Put {
        /// The reservation that has the data and the blob's name.
        reservation: ReservationId,
        /// The blob's new version.
        version: Version,
        /// The blob's length in bytes; what was reserved beyond is free again.
        len: u64,
        /// The digest of the blob's bytes, as its writer computed it; the pool does not check it here.
        digest: Digest,
    },
    /// The blob of that name goes.
    Delete {
        /// The name of the blob, which need not be known here.
        name: BlobName,
        /// The deletion's version.
        version: Version,
    },
}

/// How full a pool is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    /// How many names stand for a blob; deletions do not count.
    pub blobs: u64,
    /// Bytes of the whole pool.
    pub size: u64,
    /// Bytes that blobs can have in all.
    pub capacity: u64,
    /// Bytes of these that are free.
    pub free: u64,
    /// Frames ever written; grows with each commit.
    pub sequence: u64,
}

/// A committed blob, with where its bytes lie.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// The version that was committed last.
    pub version: Version,
    /// Bytes of the blob.
    pub len: u64,
    /// The digest that its writer gave with the commit.
    pub digest: Digest,
    /// The blocks that have the blob's bytes, in their order; the last one may be used in part.
    pub extents: Vec<Extent>,
}

#[derive(Debug)]
struct Reservation {
    name: BlobName,
    extents: Vec<Extent>,
    durable: bool,
}

/// What readers hold on to. A blob's extents are free again when it is gone *and* the last lease is released.
#[derive(Debug)]
struct Body {
    extents: Vec<Extent>,
    leases: u32,
    gone: bool,
}

#[derive(Debug)]
pub(crate) enum Entry {
    Live { version: Version, len: u64, digest: Digest, body: u64 },
    Deleted { version: Version },
}

impl Entry {
    const fn version(&self) -> Version {
        match self {
            Self::Live { version, .. } | Self::Deleted { version } => *version,
        }
    }
}

/// A pool on a medium.
#[derive(Debug)]
pub struct Pool<M> {
    medium: M,
    superblock: Superblock,
    root: Root,
    /// Where the next frame goes, from the start of the half.
    log_end: u64,
    /// The number of the last frame; 0 if none was ever written.
    sequence: u64,
    /// The generation that the next move takes; above any that a frame on the medium has.
    next_generation: u64,
    catalogue: BTreeMap<BlobName, Entry>,
    /// Bytes of all records that a snapshot would hold.
    record_bytes: usize,
    /// How many names of the catalogue stand for a blob.
    blobs: u64,
    alloc: Allocator,
    bodies: BTreeMap<u64, Body>,
    reservations: BTreeMap<ReservationId, Reservation>,
    leases: BTreeMap<LeaseId, u64>,
    /// The version numbers that were promised.
    promises: Promises,
    /// The next body, reservation or lease has this number.
    next_id: u64,
    /// Set when the medium failed: see [`PoolError::Medium`].
    failed: Option<PoolError>,
}

/// What recovery found; see [`crate::recover`].
pub(crate) struct Recovered<M> {
    pub(crate) medium: M,
    pub(crate) superblock: Superblock,
    pub(crate) root: Root,
    pub(crate) log_end: u64,
    pub(crate) sequence: u64,
    pub(crate) next_generation: u64,
    pub(crate) records: BTreeMap<BlobName, Record>,
    /// The ceiling of promised version numbers; `None` in a pool that an earlier release made.
    pub(crate) ceiling: Option<u64>,
}

impl<M: Medium> Pool<M> {
    /// Makes an empty pool that fills `medium`. `salt` and `uuid` are the caller's randomness.
    ///
    /// The superblock comes last: a crash before leaves a file that holds no pool.
    ///
    /// # Errors
    /// The medium is too small or too large, or fails.
    pub fn create(medium: M, uuid: Uuid, salt: u64) -> Result<Self, OpenError> {
        let geometry = Geometry::for_size(medium.len()).ok_or(OpenError::BadSize(medium.len()))?;
        if geometry.size != medium.len() {
            return Err(OpenError::BadSize(medium.len()));
        }
        let superblock = Superblock { uuid, geometry, salt };
        let root = Root { generation: 1, reached: 0, half: Half::First };
        let this = Self::assemble(Recovered {
            medium,
            superblock,
            root,
            log_end: 0,
            sequence: 0,
            next_generation: 2,
            records: BTreeMap::new(),
            ceiling: Some(0),
        })?;
        // An old pool may have been here: its superblock must not come back to life over our roots.
        this.store(0, &[0; BLOCK as usize]);
        this.sync().map_err(|e| OpenError::medium(&e))?;
        this.store_root().map_err(|e| OpenError::medium(&e))?;
        this.store_ceiling(0).map_err(|e| OpenError::medium(&e))?;
        this.store(0, &superblock.emit());
        this.sync().map_err(|e| OpenError::medium(&e))?;
        Ok(this)
    }

    /// Puts together what recovery read: here it is found out whether two blobs claim one block.
    pub(crate) fn assemble(found: Recovered<M>) -> Result<Self, OpenError> {
        let highest = found.records.values().map(|record| record.version().counter).max().unwrap_or(0);
        let mut this = Self {
            medium: found.medium,
            superblock: found.superblock,
            root: found.root,
            log_end: found.log_end,
            sequence: found.sequence,
            next_generation: found.next_generation,
            catalogue: BTreeMap::new(),
            record_bytes: 0,
            blobs: 0,
            alloc: Allocator::new(found.superblock.geometry.data_blocks),
            bodies: BTreeMap::new(),
            reservations: BTreeMap::new(),
            leases: BTreeMap::new(),
            promises: Promises::recover(found.ceiling, highest),
            next_id: 1,
            failed: None,
        };
        for (name, record) in found.records {
            if let Record::Put { len, extents, .. } = &record {
                let blocks = extents.iter().try_fold(0_u64, |sum, e| sum.checked_add(e.blocks));
                if blocks != Some(len.div_ceil(BLOCK)) {
                    return Err(OpenError::catalogue(format!("blob {name:?} has a wrong length")));
                }
                for extent in extents {
                    this.alloc.claim(*extent).map_err(|_| {
                        OpenError::catalogue(format!("blob {name:?} claims blocks that are not free"))
                    })?;
                }
            }
            this.apply(record);
        }
        Ok(this)
    }

    /// The medium, for who writes the data.
    pub const fn medium(&self) -> &M {
        &self.medium
    }

    /// Gives the medium back; the pool is forgotten as in a crash.
    #[must_use]
    pub fn into_medium(self) -> M {
        self.medium
    }

    /// The UUID of this pool.
    #[must_use]
    pub const fn uuid(&self) -> Uuid {
        self.superblock.uuid
    }

    /// How the pool is divided.
    #[must_use]
    pub const fn geometry(&self) -> Geometry {
        self.superblock.geometry
    }

    /// How full the pool is.
    #[must_use]
    pub fn usage(&self) -> Usage {
        Usage {
            blobs: self.blobs,
            size: self.superblock.geometry.size,
            capacity: self.alloc.blocks() * BLOCK,
            free: self.alloc.free_blocks() * BLOCK,
            sequence: self.sequence,
        }
    }

    // ---- reservations ----

    /// Opens a reservation for a blob of that name, with no room yet. Any number may be open for one name; the
    /// versions decide which commit wins.
    pub fn reserve(&mut self, name: BlobName) -> ReservationId {
        let id = ReservationId(self.new_id());
        self.reservations.insert(id, Reservation { name, extents: Vec::new(), durable: false });
        id
    }

    /// Adds room for `bytes` to a reservation, rounded up to blocks, behind what it has. Returns the new extents, at
    /// most `max_extents`: on a fragmented pool that may be less room than was asked for, but never none.
    ///
    /// # Errors
    /// No such reservation, or no room; nothing has changed then.
    pub fn extend(
        &mut self,
        id: ReservationId,
        bytes: u64,
        max_extents: usize,
    ) -> Result<Vec<Extent>, PoolError> {
        self.usable()?;
        let reservation = self.reservations.get_mut(&id).ok_or(PoolError::NoSuchReservation)?;
        let free = self.alloc.free_blocks() * BLOCK;
        if bytes > free {
            return Err(PoolError::Full { wanted: bytes, free });
        }
        let after = reservation.extents.last().map(|e| e.end());
        let most = max_extents.min(MAX_EXTENTS - reservation.extents.len());
        let new = self.alloc.allocate(bytes.div_ceil(BLOCK), after, most);
        if bytes > 0 && new.is_empty() {
            return Err(PoolError::Fragmented);
        }
        new.iter().for_each(|extent| push_joined(&mut reservation.extents, *extent));
        reservation.durable = false;
        Ok(new)
    }

    /// Notes that all data of the reservation is in the medium's persistence domain. Who says so has flushed it.
    ///
    /// # Errors
    /// No such reservation.
    pub fn data_durable(&mut self, id: ReservationId) -> Result<(), PoolError> {
        self.reservations.get_mut(&id).ok_or(PoolError::NoSuchReservation)?.durable = true;
        Ok(())
    }

    /// Gives a reservation up; its blocks are free again.
    ///
    /// # Errors
    /// No such reservation.
    pub fn abandon(&mut self, id: ReservationId) -> Result<(), PoolError> {
        let reservation = self.reservations.remove(&id).ok_or(PoolError::NoSuchReservation)?;
        reservation.extents.iter().for_each(|extent| self.alloc.release(*extent));
        Ok(())
    }

    // ---- version numbers ----

    /// Draws a version number: higher than any that this pool has, gave out or left behind, ever.
    ///
    /// # Errors
    /// The medium failed, or all numbers are used up.
    pub fn ticket(&mut self) -> Result<u64, PoolError> {
        let number = self.promises.next().ok_or(PoolError::NumbersUsedUp)?;
        self.promise(number)
    }

    /// Leaves `number` behind: all tickets from now on are higher. Returns the highest number that was given out or left
    /// behind. Durable when this returns.
    ///
    /// # Errors
    /// The medium failed.
    pub fn promise(&mut self, number: u64) -> Result<u64, PoolError> {
        self.usable()?;
        if let Some(ceiling) = self.promises.ceiling_for(number, AHEAD) {
            self.attempt(|this| this.store_ceiling(ceiling))?;
            self.promises.raised(ceiling);
        }
        self.promises.promise(number);
        Ok(self.promises.last())
    }

    fn store_ceiling(&self, ceiling: u64) -> std::io::Result<()> {
        ceiling::store(ceiling, &self.medium, self.superblock.salt)
    }

    // ---- commits ----

    /// Makes a batch of changes durable with one frame, so with one wait for the medium. Each change is accepted
    /// or refused alone; the accepted ones are durable when this returns.
    ///
    /// # Errors
    /// The medium failed. Then none of the changes may be believed, and the pool refuses all later ones.
    pub fn commit(&mut self, changes: &[Change]) -> Result<Vec<Result<Version, PoolError>>, PoolError> {
        self.usable()?;
        let mut records: Vec<Record> = Vec::new();
        let mut verdicts = Vec::with_capacity(changes.len());
        let mut record_bytes = self.record_bytes;
        for (n, change) in changes.iter().enumerate() {
            let verdict = match change {
                Change::Put { reservation, .. } if used(&changes[..n], &verdicts, *reservation) => {
                    Err(PoolError::NoSuchReservation)
                }
                _ => self.judge(change, &records, record_bytes),
            };
            verdicts.push(verdict.map(|(record, bytes)| {
                record_bytes = bytes;
                let version = record.version();
                records.push(record);
                version
            }));
        }
        if !records.is_empty() {
            self.append(&records)?;
        }
        for (change, verdict) in changes.iter().zip(&verdicts) {
            if let (Change::Put { reservation, len, .. }, Ok(_)) = (change, verdict) {
                self.settle(*reservation, *len);
            }
        }
        records.into_iter().for_each(|record| self.apply(record));
        Ok(verdicts)
    }

    /// The record that a change would write, and the size of all records after it. Changes nothing.
    fn judge(
        &self,
        change: &Change,
        before: &[Record],
        record_bytes: usize,
    ) -> Result<(Record, usize), PoolError> {
        let (name, version) = match change {
            Change::Put { reservation, version, .. } => {
                let twice = PoolError::NoSuchReservation;
                (&self.reservations.get(reservation).ok_or(twice)?.name, *version)
            }
            Change::Delete { name, version } => (name, *version),
        };
        let earlier = before.iter().rev().find(|r| r.name() == name);
        let current = self.catalogue.get(name);
        let current_version =
            earlier.map_or_else(|| current.map_or(Version::NONE, Entry::version), Record::version);
        if version <= current_version {
            return Err(PoolError::Superseded { current: current_version });
        }
        let replaced = match (earlier, current) {
            (Some(record), _) => record.encoded_len(),
            (None, Some(entry)) => self.record(name, entry).encoded_len(),
            (None, None) => 0,
        };
        let (record, limit) = match change {
            Change::Put { reservation, len, digest, .. } => {
                let Reservation { extents, durable, .. } = &self.reservations[reservation];
                let reserved = extents.iter().map(|e| e.blocks * BLOCK).sum();
                if *len > reserved {
                    return Err(PoolError::TooLong { len: *len, reserved });
                }
                if !durable {
                    return Err(PoolError::NotDurable);
                }
                let extents = split(extents, len.div_ceil(BLOCK)).0;
                let record = Record::Put { name: name.clone(), version, len: *len, digest: *digest, extents };
                // A quarter stays free for frames between two moves; else a full catalogue would move each time.
                (record, self.superblock.geometry.half_len / 4 * 3)
            }
            Change::Delete { .. } => {
                // Also of a name that is deleted already, or was never here: a server that missed the blob must
                // remember that it is gone, or it could not contradict one that missed the deletion.
                let known = earlier.is_some() || current.is_some();
                let half = self.superblock.geometry.half_len;
                (Record::Delete { name: name.clone(), version }, if known { half } else { half / 4 * 3 })
            }
        };
        let record_bytes = record_bytes - replaced + record.encoded_len();
        // A batch is one frame.
        let batch = before.iter().chain([&record]).map(Record::encoded_len).sum::<usize>();
        if snapshot_bound(record_bytes) > limit || batch > frame::MAX_PAYLOAD {
            return Err(PoolError::CatalogueFull);
        }
        Ok((record, record_bytes))
    }

    /// Takes a committed reservation away; what was reserved beyond the blob's length is free again. The rest is
    /// the blob's from here on, see [`Self::apply`].
    fn settle(&mut self, id: ReservationId, len: u64) {
        let reservation = self.reservations.remove(&id).expect("judged a moment ago");
        split(&reservation.extents, len.div_ceil(BLOCK)).1.into_iter().for_each(|e| self.alloc.release(e));
    }

    /// Puts a durable record into the catalogue in memory. The extents of a put are owned already.
    fn apply(&mut self, record: Record) {
        self.promises.seen(record.version().counter);
        self.record_bytes += record.encoded_len();
        let (name, entry) = match record {
            Record::Put { name, version, len, digest, extents } => {
                let body = self.new_id();
                self.bodies.insert(body, Body { extents, leases: 0, gone: false });
                (name, Entry::Live { version, len, digest, body })
            }
            Record::Delete { name, version } => (name, Entry::Deleted { version }),
        };
        if let Some(old) = self.catalogue.get(&name) {
            self.record_bytes -= self.record(&name, old).encoded_len();
        }
        self.blobs += u64::from(matches!(entry, Entry::Live { .. }));
        if let Some(Entry::Live { body, .. }) = self.catalogue.insert(name, entry) {
            self.blobs -= 1;
            self.bodies.get_mut(&body).expect("each live entry has one").gone = true;
            self.reap(body);
        }
    }

    /// Frees a body that nobody can read any more.
    fn reap(&mut self, body: u64) {
        if let Some(Body { leases: 0, gone: true, .. }) = self.bodies.get(&body) {
            let body = self.bodies.remove(&body).expect("looked at a moment ago");
            body.extents.iter().for_each(|extent| self.alloc.release(*extent));
        }
    }

    // ---- reading ----

    /// Holds on to a blob's blocks: even if it is overwritten or deleted they stay until the lease is released.
    ///
    /// # Errors
    /// No such blob.
    pub fn lease(&mut self, name: &BlobName) -> Result<(LeaseId, Found), PoolError> {
        let found = self.find(name).ok_or_else(|| PoolError::NoSuchBlob(name.clone()))?;
        let Some(Entry::Live { body, .. }) = self.catalogue.get(name) else { unreachable!("just found") };
        let body = *body;
        let id = LeaseId(self.new_id());
        self.bodies.get_mut(&body).expect("each live entry has one").leases += 1;
        self.leases.insert(id, body);
        Ok((id, found))
    }

    /// Gives a lease up: the blocks of a blob that is gone by now are free again with the last lease of it.
    ///
    /// # Errors
    /// No such lease.
    pub fn release(&mut self, id: LeaseId) -> Result<(), PoolError> {
        let body = self.leases.remove(&id).ok_or(PoolError::NoSuchLease)?;
        self.bodies.get_mut(&body).expect("leased").leases -= 1;
        self.reap(body);
        Ok(())
    }

    /// What is known of a blob.
    #[must_use]
    pub fn find(&self, name: &BlobName) -> Option<Found> {
        match self.catalogue.get(name)? {
            Entry::Live { version, len, digest, body } => Some(Found {
                version: *version,
                len: *len,
                digest: *digest,
                extents: self.bodies[body].extents.clone(),
            }),
            Entry::Deleted { .. } => None,
        }
    }

    /// The version of a name, [`Version::NONE`] if it never was; a deletion has one too.
    #[must_use]
    pub fn version(&self, name: &BlobName) -> Version {
        self.catalogue.get(name).map_or(Version::NONE, Entry::version)
    }

    /// The catalogue, deletions included, in the order of the names, from behind `after`.
    pub fn list(&self, after: Option<&BlobName>) -> impl Iterator<Item = Listing> {
        use std::ops::Bound::{Excluded, Unbounded};
        let from = after.map_or(Unbounded, Excluded);
        self.catalogue.range((from, Unbounded)).map(|(name, entry)| Listing {
            name: name.clone(),
            version: entry.version(),
            state: match entry {
                Entry::Live { len, digest, .. } => State::Live { len: *len, digest: *digest },
                Entry::Deleted { .. } => State::Deleted,
            },
        })
    }

    /// Reads a blob's bytes and compares their digest: `Some(true)` if they are what was committed, `None` if
    /// there is no such blob.
    #[must_use]
    pub fn verify(&self, name: &BlobName) -> Option<bool> {
        let found = self.find(name)?;
        let mut hasher = Digest::hasher();
        let mut buffer = vec![0; 256 << 10];
        let mut left = found.len;
        for extent in &found.extents {
            let mut offset = self.superblock.geometry.block(extent.start);
            let mut in_extent = left.min(extent.blocks * BLOCK);
            left -= in_extent;
            while in_extent > 0 {
                let part = &mut buffer[..in_extent.min(256 << 10) as usize];
                self.medium.read(offset, part);
                hasher.update(part);
                offset += part.len() as u64;
                in_extent -= part.len() as u64;
            }
        }
        Some(hasher.finish() == found.digest)
    }

    // ---- the medium ----

    /// Notes in the root how far the catalogue reaches, so that a later loss of its end cannot pass for a torn
    /// frame. A server that stops in good order does it; a pool whose server was killed is whole without.
    ///
    /// # Errors
    /// The medium failed.
    pub fn close(&mut self) -> Result<(), PoolError> {
        self.usable()?;
        self.root.reached = self.sequence;
        let last = self.promises.last();
        self.attempt(|this| {
            this.store_root()?;
            // A pool that was closed goes on with the next number, and skips none.
            this.store_ceiling(last)
        })?;
        self.promises.raised(last);
        Ok(())
    }

    /// Writes records as the next frame, or with all others to the other half if this one is full.
    fn append(&mut self, records: &[Record]) -> Result<(), PoolError> {
        let mut payload = Vec::new();
        records.iter().for_each(|record| record.emit(&mut payload));
        if self.log_end + frame::frame_len(payload.len()) > self.superblock.geometry.half_len {
            return self.attempt(|this| this.move_to_other_half(records));
        }
        self.attempt(|this| {
            this.store_frame(this.root.half, this.root.generation, this.log_end, &payload);
            this.log_end += frame::frame_len(payload.len());
            this.sync()
        })
    }

    /// Compacts: the catalogue as it will be with `records` goes to the other half, then the root moves.
    fn move_to_other_half(&mut self, records: &[Record]) -> std::io::Result<()> {
        let newer: BTreeMap<&BlobName, &Record> = records.iter().map(|r| (r.name(), r)).collect();
        let kept = self.catalogue.iter().filter(|(name, _)| !newer.contains_key(name));
        let kept: Vec<Record> = kept.map(|(name, entry)| self.record(name, entry)).collect();
        let (half, generation) = (self.root.half.other(), self.next_generation);
        let (mut at, mut payload) = (0, Vec::new());
        let mut all = kept.iter().chain(newer.into_values()).peekable();
        while let Some(record) = all.next() {
            record.emit(&mut payload);
            if payload.len() >= SNAPSHOT_CUT || all.peek().is_none() {
                self.store_frame(half, generation, at, &payload);
                at += frame::frame_len(payload.len());
                payload.clear();
            }
        }
        assert!(at <= self.superblock.geometry.half_len, "{at} bytes of snapshot; `judge` bounds it");
        self.sync()?;
        self.root = Root { generation, reached: self.sequence, half };
        self.next_generation += 1;
        self.log_end = at;
        self.store_root()
    }

    fn store_frame(&mut self, half: Half, generation: u64, at: u64, payload: &[u8]) {
        self.sequence += 1;
        let bytes = frame::emit(self.superblock.salt, generation, self.sequence, payload);
        self.store(self.superblock.geometry.half(half) + at, &bytes);
    }

    pub(crate) fn store_root(&self) -> std::io::Result<()> {
        self.root.store(&self.medium, self.superblock.salt)
    }

    /// Writes bytes and starts their way into the persistence domain; [`Self::sync`] waits for it.
    fn store(&self, offset: u64, bytes: &[u8]) {
        self.medium.write_nt(offset, bytes);
    }

    fn sync(&self) -> std::io::Result<()> {
        self.medium.psync()
    }

    /// Runs what writes to the medium. After a failure nobody knows what is durable, and asking again would not
    /// tell (the page cache forgets an error once it was reported), so the pool stays failed.
    fn attempt(&mut self, act: impl FnOnce(&mut Self) -> std::io::Result<()>) -> Result<(), PoolError> {
        act(self).map_err(|error| {
            let error = PoolError::medium(&error);
            self.failed = Some(error.clone());
            error
        })
    }

    fn usable(&self) -> Result<(), PoolError> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    fn record(&self, name: &BlobName, entry: &Entry) -> Record {
        let name = name.clone();
        match entry {
            Entry::Live { version, len, digest, body } => Record::Put {
                name,
                version: *version,
                len: *len,
                digest: *digest,
                extents: self.bodies[body].extents.clone(),
            },
            Entry::Deleted { version } => Record::Delete { name, version: *version },
        }
    }

    fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }
}

/// Whether an accepted change of the batch has taken the reservation already.
fn used(before: &[Change], verdicts: &[Result<Version, PoolError>], id: ReservationId) -> bool {
    before.iter().zip(verdicts).any(|(change, verdict)| {
        matches!(change, Change::Put { reservation, .. } if *reservation == id) && verdict.is_ok()
    })
}

/// The most bytes that a snapshot of so many record bytes takes: each frame but the last holds at least
/// [`SNAPSHOT_CUT`] of them, and costs a header and padding.
fn snapshot_bound(record_bytes: usize) -> u64 {
    let frames = record_bytes / SNAPSHOT_CUT + 1;
    record_bytes as u64 + frames as u64 * (frame::HEADER as u64 + frame::ALIGN)
}

/// The first `blocks` blocks of `extents`, and the rest.
fn split(extents: &[Extent], mut blocks: u64) -> (Vec<Extent>, Vec<Extent>) {
    let (mut head, mut tail) = (Vec::new(), Vec::new());
    for extent in extents {
        let first = extent.blocks.min(blocks);
        blocks -= first;
        if first > 0 {
            head.push(Extent { start: extent.start, blocks: first });
        }
        if first < extent.blocks {
            tail.push(Extent { start: extent.start + first, blocks: extent.blocks - first });
        }
    }
    (head, tail)
}

#[cfg(test)]
mod tests;
