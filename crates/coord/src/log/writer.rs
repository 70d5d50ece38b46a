//! The writer's half of one log: where the next record goes, and which updates put it there.
//!
//! Pure: it neither sends nor waits. [`Writer::append`] gives the updates, whoever holds the connection makes them durable
//! with a recipe ([`Writer::request`] is what its planner is asked), and [`Writer::acknowledged`] says that it has.

use remanence_persist::plan::Request;

use crate::log::error::AppendError;
use crate::log::format::record::{Header, emit, record_len};
use crate::log::format::{Cursor, Epoch, Geometry, Mode};

/// What a writer must know of a log that a server has granted it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grant {
    /// How the region is divided.
    pub geometry: Geometry,
    /// What goes into the checksum of the log's records.
    pub salt: u64,
    /// How the end of the log is found.
    pub mode: Mode,
    /// Where the tail word is, in the region.
    pub tail_word: u64,
    /// The position of the first record that was not trimmed.
    pub head: u64,
    /// Where the log goes on.
    pub tail: Cursor,
}

/// The updates of an append, in the order in which they must become durable.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Updates {
    /// Where the records go, in the region.
    pub offset: u64,
    /// The bytes of the records, one behind the other: headers, payloads and padding.
    pub records: Vec<u8>,
    /// The tail word that makes them count, where there is one, and what it shall be.
    pub tail: Option<(u64, [u8; 8])>,
    /// The number of the first record, and of the one behind the last.
    pub sequences: (u64, u64),
}

impl Updates {
    /// The updates as offsets in the region and bytes.
    #[must_use]
    pub fn list(&self) -> Vec<(u64, &[u8])> {
        self.with(<[_]>::to_vec)
    }

    /// The same, for a function that carries them out.
    pub fn with<'a, T>(&'a self, carry: impl FnOnce(&[(u64, &'a [u8])]) -> T) -> T {
        let records = (self.offset, &self.records[..]);
        match &self.tail {
            Some((offset, word)) => carry(&[records, (*offset, &word[..])]),
            None => carry(&[records]),
        }
    }
}

/// The writer of one log.
#[derive(Clone, Debug)]
pub struct Writer {
    grant: Grant,
    epoch: Epoch,
    end: Cursor,
    acknowledged: u64,
}

impl Writer {
    /// A writer of a log that was granted to this epoch.
    #[must_use]
    pub const fn new(grant: Grant, epoch: Epoch) -> Self {
        Self { grant, epoch, end: grant.tail, acknowledged: grant.tail.sequence }
    }

    /// The number of the next record.
    #[must_use]
    pub const fn next(&self) -> u64 {
        self.end.sequence
    }

    /// All records below this number were acknowledged.
    #[must_use]
    pub const fn durable(&self) -> u64 {
        self.acknowledged
    }

    /// How the end of this log is found.
    #[must_use]
    pub const fn mode(&self) -> Mode {
        self.grant.mode
    }

    /// Bytes that are free, of which the ends of segments may not be usable.
    #[must_use]
    pub const fn free(&self) -> u64 {
        (self.grant.head + self.grant.geometry.capacity()).saturating_sub(self.end.position)
    }

    /// Whether less than half of the log is free.
    #[must_use]
    pub const fn is_half_full(&self) -> bool {
        self.free() < self.grant.geometry.capacity() / 2
    }

    /// Whether a record of so many bytes could be appended.
    ///
    /// # Errors
    /// [`AppendError`]: why it could not.
    pub fn fits(&self, payload: usize) -> Result<(), AppendError> {
        self.place(payload as u64).map(drop)
    }

    fn place(&self, payload: u64) -> Result<u64, AppendError> {
        let geometry = self.grant.geometry;
        if payload > geometry.payload_max() {
            return Err(AppendError::TooLong { len: payload, max: geometry.payload_max() });
        }
        let needed = record_len(payload);
        let position = geometry.place(self.end.position, needed);
        if position + needed > self.grant.head + geometry.capacity() {
            return Err(AppendError::Full {
                needed: position + needed - self.end.position,
                free: self.free(),
            });
        }
        Ok(position)
    }

    /// Appends a record: the updates that put it there.
    ///
    /// # Errors
    /// It does not fit. Nothing has changed then.
    pub fn append(&mut self, payload: &[u8]) -> Result<Updates, AppendError> {
        self.append_copy(self.epoch, payload)
    }

    /// Appends records that lie behind one another, as many of the first ones as do: one update for all of them. At least
    /// one, if there is one.
    ///
    /// # Errors
    /// The first one does not fit. Nothing has changed then.
    pub fn append_batch(&mut self, payloads: &[&[u8]]) -> Result<Updates, AppendError> {
        let Some((first, rest)) = payloads.split_first() else { return Ok(Updates::default()) };
        let mut updates = self.append(first)?;
        for payload in rest {
            let end = self.end.position;
            let record = match self.place(payload.len() as u64) {
                Ok(position) if position == end && !end.is_multiple_of(self.grant.geometry.segment) => {
                    self.append(payload)?
                }
                _ => break,
            };
            updates.records.extend_from_slice(&record.records);
            updates.tail = record.tail;
            updates.sequences.1 = record.sequences.1;
        }
        Ok(updates)
    }

    /// Keeps the room of a record of so many bytes, as if it had been appended: to find out what fits behind one another.
    ///
    /// # Errors
    /// It does not fit. Nothing has changed then.
    pub fn reserve(&mut self, payload: usize) -> Result<(), AppendError> {
        let position = self.place(payload as u64)?;
        self.end = Cursor {
            position: position + record_len(payload as u64),
            sequence: self.end.sequence + 1,
            ..self.end
        };
        Ok(())
    }

    /// Appends a record of an earlier writer, for a server that has missed it.
    ///
    /// # Errors
    /// It does not fit. Nothing has changed then.
    pub fn append_copy(&mut self, epoch: Epoch, payload: &[u8]) -> Result<Updates, AppendError> {
        let position = self.place(payload.len() as u64)?;
        let sequence = self.end.sequence;
        let pending = u32::try_from(sequence - self.acknowledged).unwrap_or(u32::MAX);
        let stamp = self.epoch.counter();
        let header = Header { length: 0, crc: 0, sequence, epoch, stamp, pending };
        let mut records = Vec::with_capacity(record_len(payload.len() as u64) as usize);
        emit(&header, self.grant.salt, payload, &mut records);
        let after = position + records.len() as u64;
        self.end = Cursor { position: after, sequence: sequence + 1, epoch, stamp };
        Ok(Updates {
            offset: self.grant.geometry.offset(position),
            records,
            tail: (self.grant.mode == Mode::Compound).then(|| (self.grant.tail_word, after.to_le_bytes())),
            sequences: (sequence, sequence + 1),
        })
    }

    /// What a planner is asked for updates of this size. Sizes are rounded up, so that there are few plans.
    #[must_use]
    pub fn request(&self, updates: &Updates, message_max: u32) -> Request {
        let size = u32::try_from(updates.records.len().next_power_of_two()).unwrap_or(u32::MAX);
        let request = match self.grant.mode {
            Mode::Singleton => Request::record(size),
            Mode::Compound => Request::append(size),
        };
        Request { message_max, ..request }
    }

    /// Notes that all records below this number are durable.
    pub fn acknowledged(&mut self, below: u64) {
        assert!(below <= self.end.sequence, "{below} was acknowledged, and {} comes next", self.end.sequence);
        self.acknowledged = self.acknowledged.max(below);
    }

    /// Notes that records were trimmed: the log begins at this position now.
    pub fn trimmed(&mut self, head: u64) {
        self.grant.head = self.grant.head.max(head.min(self.end.position));
    }
}
