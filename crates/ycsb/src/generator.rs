//! What one client thread asks for next.

use std::ops::Range;
use std::sync::Arc;

use crate::counter::Acknowledged;
use crate::distribution::{Discrete, Exponential, Hotspot, Sequential, Uniform};
use crate::random::Random;
use crate::record::{self, Record};
use crate::workload::{Length, Request, Workload, WorkloadError};
use crate::zipfian::{Latest, Scrambled, Zipfian};

/// Which fields a read fetches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fields {
    /// All of the record.
    All,
    /// One of them, by number.
    One(usize),
}

/// One operation. Records are numbers; [`Workload::key`] names them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Read a record.
    Read {
        /// The number of the record to read.
        record: u64,
        /// What of it.
        fields: Fields,
    },
    /// Replace fields of a record; the others stay as they are.
    Update {
        /// The number of the record to update.
        record: u64,
        /// What is written: the field numbers and their new bytes.
        values: Record,
    },
    /// Write a new record. Its number is to be acknowledged once it has been answered.
    Insert {
        /// The number of the new record.
        record: u64,
        /// All its fields.
        values: Record,
    },
    /// Read records in key order.
    Scan {
        /// The number of the record whose key the scan starts from.
        record: u64,
        /// How many at most.
        count: u64,
        /// What of each.
        fields: Fields,
    },
    /// Read a record and then, if that succeeded, update it.
    ReadModifyWrite {
        /// The number of the record to read and update.
        record: u64,
        /// What is read.
        fields: Fields,
        /// What is written.
        values: Record,
    },
}

/// The kinds of operation, in the order of YCSB's mix.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// [`Operation::Read`].
    Read,
    /// [`Operation::Update`].
    Update,
    /// [`Operation::Insert`].
    Insert,
    /// [`Operation::Scan`].
    Scan,
    /// [`Operation::ReadModifyWrite`].
    ReadModifyWrite,
}

impl Kind {
    /// YCSB's name for it in its reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "READ",
            Self::Update => "UPDATE",
            Self::Insert => "INSERT",
            Self::Scan => "SCAN",
            Self::ReadModifyWrite => "READ-MODIFY-WRITE",
        }
    }
}

impl Operation {
    /// The kind of operation, under which it is measured.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Read { .. } => Kind::Read,
            Self::Update { .. } => Kind::Update,
            Self::Insert { .. } => Kind::Insert,
            Self::Scan { .. } => Kind::Scan,
            Self::ReadModifyWrite { .. } => Kind::ReadModifyWrite,
        }
    }
}

#[derive(Clone, Debug)]
enum Chooser {
    Uniform(Uniform),
    Zipfian(Scrambled),
    Latest(Latest),
    Hotspot(Hotspot),
    Exponential(Exponential),
    Sequential(Sequential),
}

#[derive(Clone, Debug)]
enum Lengths {
    Constant(u64),
    Uniform(Uniform),
    Zipfian(Zipfian),
}

impl Lengths {
    fn new(distribution: Length, min: u64, max: u64) -> Self {
        match distribution {
            Length::Constant => Self::Constant(max),
            Length::Uniform => Self::Uniform(Uniform::new(min, max)),
            Length::Zipfian => Self::Zipfian(Zipfian::with_theta(min, max - min + 1, crate::zipfian::THETA)),
        }
    }

    fn next(&mut self, random: &mut impl Random) -> u64 {
        match self {
            Self::Constant(len) => *len,
            Self::Uniform(lengths) => lengths.next(random),
            Self::Zipfian(lengths) => lengths.next(random),
        }
    }
}

/// The operations of one thread.
///
/// Threads of one run share the [`Workload`] and the insert sequence, and have each a random stream of their own. (In
/// YCSB they share the choosers too; a chooser of each thread's own draws from the same distribution. With
/// `sequential` requests each thread goes through the records by itself.)
#[derive(Debug)]
pub struct Generator<R> {
    workload: Arc<Workload>,
    inserts: Arc<Acknowledged>,
    random: R,
    mix: Discrete<Kind>,
    chooser: Chooser,
    field_lengths: Lengths,
    field: Uniform,
    scan_lengths: Lengths,
}

impl<R: Random> Generator<R> {
    /// The operations of one thread on a store that the loading phase has filled. All threads are given clones of one
    /// insert sequence, which [`Self::inserts_of`] makes.
    ///
    /// # Errors
    /// What [`Workload::check`] finds.
    pub fn new(
        workload: Arc<Workload>,
        inserts: Arc<Acknowledged>,
        random: R,
    ) -> Result<Self, WorkloadError> {
        workload.check()?;
        let w = &*workload;
        let (first, last) = (w.insert_start, w.insert_start + w.loads() - 1);
        let mix = Discrete::new(&[
            (w.reads, Kind::Read),
            (w.updates, Kind::Update),
            (w.inserts, Kind::Insert),
            (w.scans, Kind::Scan),
            (w.read_modify_writes, Kind::ReadModifyWrite),
        ]);
        let chooser = match w.request {
            Request::Uniform => Chooser::Uniform(Uniform::new(first, last)),
            // Room for the records that will be inserted, times 2 to be sure: the hot ones must not change when the
            // key space grows. What is not there yet is drawn again. The end is inclusive, one past the last record:
            // so YCSB has it.
            Request::Zipfian => {
                let expected = (w.operations as f64 * w.inserts * 2.0) as u64;
                Chooser::Zipfian(Scrambled::new(first, last + 1 + expected))
            }
            Request::Latest => Chooser::Latest(Latest::new(w.records - 1)),
            Request::Hotspot => Chooser::Hotspot(Hotspot::new(first, last, w.hot_items, w.hot_share)),
            Request::Exponential => Chooser::Exponential(Exponential::new(
                w.exponential_percentile,
                w.records as f64 * w.exponential_fraction,
            )),
            Request::Sequential => Chooser::Sequential(Sequential::new(first, last)),
        };
        Ok(Self {
            field_lengths: Lengths::new(w.field_length, w.field_len_min as u64, w.field_len as u64),
            field: Uniform::new(0, w.fields as u64 - 1),
            scan_lengths: Lengths::new(w.scan_length, w.scan_min, w.scan_max),
            mix,
            chooser,
            workload,
            inserts,
            random,
        })
    }

    /// The operations of another thread of the same run, without summing its distribution's zeta anew.
    #[must_use]
    pub fn for_thread<T: Random>(&self, random: T) -> Generator<T> {
        Generator {
            workload: self.workload.clone(),
            inserts: self.inserts.clone(),
            random,
            mix: self.mix.clone(),
            chooser: self.chooser.clone(),
            field_lengths: self.field_lengths.clone(),
            field: self.field.clone(),
            scan_lengths: self.scan_lengths.clone(),
        }
    }

    /// The insert sequence that the threads of a run share.
    #[must_use]
    pub fn inserts_of(workload: &Workload) -> Arc<Acknowledged> {
        Arc::new(Acknowledged::new(workload.records))
    }

    /// The workload that operations are drawn from.
    #[must_use]
    pub const fn workload(&self) -> &Arc<Workload> {
        &self.workload
    }

    /// The insert sequence.
    #[must_use]
    pub const fn inserts(&self) -> &Arc<Acknowledged> {
        &self.inserts
    }

    /// The next operation.
    pub fn operation(&mut self) -> Operation {
        // `check` has seen to it that some operation has a share.
        match self.mix.next(&mut self.random).unwrap_or(Kind::Read) {
            Kind::Read => Operation::Read { record: self.record(), fields: self.read_fields() },
            Kind::Update => {
                let record = self.record();
                Operation::Update { record, values: self.update_values(record) }
            }
            Kind::Insert => {
                let record = self.inserts.next();
                Operation::Insert { record, values: self.all_values(record) }
            }
            Kind::Scan => {
                let record = self.record();
                let count = self.scan_lengths.next(&mut self.random);
                Operation::Scan { record, count, fields: self.read_fields() }
            }
            Kind::ReadModifyWrite => {
                let record = self.record();
                let fields = self.read_fields();
                Operation::ReadModifyWrite { record, fields, values: self.update_values(record) }
            }
        }
    }

    /// All fields of a record, as the loading phase and inserts write them.
    pub fn all_values(&mut self, record: u64) -> Record {
        self.values(record, 0..self.workload.fields)
    }

    /// A record that is there.
    fn record(&mut self) -> u64 {
        let random = &mut self.random;
        loop {
            let count = self.inserts.count();
            let record = match &mut self.chooser {
                Chooser::Uniform(records) => records.next(random),
                Chooser::Zipfian(records) => records.next(random),
                Chooser::Latest(records) => records.next(count - 1, random),
                Chooser::Hotspot(records) => records.next(random),
                Chooser::Sequential(records) => records.next(),
                Chooser::Exponential(ages) => {
                    // A distance beyond the first record, infinity too, is drawn again.
                    match (count - 1).checked_sub(ages.next(random) as u64) {
                        Some(record) => record,
                        None => continue,
                    }
                }
            };
            if record < count {
                return record;
            }
        }
    }

    fn read_fields(&mut self) -> Fields {
        if self.workload.read_all {
            return Fields::All;
        }
        Fields::One(self.field.next(&mut self.random) as usize)
    }

    fn update_values(&mut self, record: u64) -> Record {
        if self.workload.write_all {
            return self.all_values(record);
        }
        let field = self.field.next(&mut self.random) as usize;
        self.values(record, field..field + 1)
    }

    /// Fresh values of some fields. YCSB makes its values lazily: each draws its length and six bytes that it never uses
    /// when it is made, and its bytes when the database reads it, which is after all of them have been made.
    fn values(&mut self, record: u64, fields: Range<usize>) -> Record {
        let integrity = self.workload.integrity;
        let mut made = Vec::with_capacity(fields.len());
        for field in fields {
            made.push((field, self.field_lengths.next(&mut self.random) as usize));
            if !integrity {
                self.random.next_u32();
            }
        }
        let mut key = Vec::new();
        if integrity {
            self.workload.key(record, &mut key);
        }
        let value = |(field, len)| {
            let bytes = if integrity {
                record::deterministic(&key, &self.workload.field_name(field), len)
            } else {
                record::random_bytes(len, &mut self.random)
            };
            (field, bytes)
        };
        made.into_iter().map(value).collect()
    }
}
