//! A YCSB property file as a value, and the built-in workloads.

use std::fmt;
use std::str::FromStr;

/// How the record of an operation is chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    /// Every record alike.
    Uniform,
    /// Zipf's law, the hot records scattered.
    Zipfian,
    /// Zipf's law, the newest record the hottest.
    Latest,
    /// A hot set.
    Hotspot,
    /// Exponentially rarer with age.
    Exponential,
    /// One after the other.
    Sequential,
}

/// How the length of a field, or of a scan, is chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Length {
    /// Always the longest (fields only).
    Constant,
    /// Every length between shortest and longest alike.
    Uniform,
    /// Short ones more often.
    Zipfian,
}

/// In which order keys sort.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InsertOrder {
    /// `user` and the hash of the record's number.
    Hashed,
    /// `user` and the record's number.
    Ordered,
}

/// One of YCSB's core workloads, or what this project adds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Mix {
    /// Update heavy: 50 % reads, 50 % updates, zipfian.
    A,
    /// Read mostly: 95 % reads, 5 % updates, zipfian.
    B,
    /// Read only, zipfian.
    C,
    /// Read latest: 95 % reads, 5 % inserts.
    D,
    /// Short ranges: 95 % scans of 1 to 100 records, 5 % inserts, zipfian.
    E,
    /// Read-modify-write: 50 % reads, 50 % read-modify-writes, zipfian.
    F,
    /// Update only, zipfian: the fourth workload of paper 002, section 5.1.
    Update,
}

impl Mix {
    /// All of them, in order.
    pub const ALL: [Self; 7] = [Self::A, Self::B, Self::C, Self::D, Self::E, Self::F, Self::Update];
    /// The four of paper 002, in the order of its figures 14 to 17.
    pub const PAPER_002: [Self; 4] = [Self::C, Self::B, Self::A, Self::Update];
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::A => "a",
            Self::B => "b",
            Self::C => "c",
            Self::D => "d",
            Self::E => "e",
            Self::F => "f",
            Self::Update => "update",
        })
    }
}

impl FromStr for Mix {
    type Err = WorkloadError;

    fn from_str(text: &str) -> Result<Self, WorkloadError> {
        Self::ALL
            .into_iter()
            .find(|mix| mix.to_string() == text.to_ascii_lowercase())
            .ok_or_else(|| WorkloadError::Unknown { name: "workload", value: text.to_owned() })
    }
}

/// The value sizes of figures 14 to 17 of paper 002, in bytes: 16 to 4096 by factors of 4.
pub const PAPER_002_VALUE_SIZES: [usize; 5] = [16, 64, 256, 1024, 4096];
/// The client threads of its figures 18 to 21, swept by powers of two.
pub const PAPER_002_THREADS: [usize; 5] = [1, 2, 4, 8, 16];

/// Everything a run depends on but the seed and the number of threads. Field names follow YCSB's properties.
#[derive(Clone, PartialEq, Debug)]
pub struct Workload {
    /// `recordcount`: how many records the loading phase leaves in the store.
    pub records: u64,
    /// `operationcount`: how many operations the run makes; with inserts, how far the key space will grow.
    pub operations: u64,
    /// `insertstart`: the first record this instance loads and asks for.
    pub insert_start: u64,
    /// `insertcount`: how many it loads from there; `None` is all up to `records`.
    pub insert_count: Option<u64>,
    /// `fieldcount`: fields of a record.
    pub fields: usize,
    /// `fieldlength`: bytes of the longest field.
    pub field_len: usize,
    /// `minfieldlength`: bytes of the shortest field, where lengths vary.
    pub field_len_min: usize,
    /// `fieldlengthdistribution`.
    pub field_length: Length,
    /// `fieldnameprefix`.
    pub field_name_prefix: String,
    /// `readallfields`: a read fetches every field, not one of them.
    pub read_all: bool,
    /// `writeallfields`: an update writes every field, not one of them.
    pub write_all: bool,
    /// `dataintegrity`: field values follow from key and field, and reads are checked against that.
    pub integrity: bool,
    /// `readproportion`.
    pub reads: f64,
    /// `updateproportion`.
    pub updates: f64,
    /// `insertproportion`.
    pub inserts: f64,
    /// `scanproportion`.
    pub scans: f64,
    /// `readmodifywriteproportion`.
    pub read_modify_writes: f64,
    /// `requestdistribution`.
    pub request: Request,
    /// `minscanlength`, in records.
    pub scan_min: u64,
    /// `maxscanlength`, in records.
    pub scan_max: u64,
    /// `scanlengthdistribution`.
    pub scan_length: Length,
    /// `insertorder`.
    pub order: InsertOrder,
    /// `zeropadding`: digits of a key's number at least.
    pub zero_padding: usize,
    /// `hotspotdatafraction`.
    pub hot_items: f64,
    /// `hotspotopnfraction`.
    pub hot_share: f64,
    /// `exponential.percentile`.
    pub exponential_percentile: f64,
    /// `exponential.frac`.
    pub exponential_fraction: f64,
}

/// A workload that cannot be.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WorkloadError {
    /// A line of a property file that is not `name=value`.
    #[error("line {line} of the workload is {text:?}: write name=value")]
    Line {
        /// The number of the line, from 1.
        line: usize,
        /// What it says.
        text: String,
    },
    /// A value of a property that cannot be read.
    #[error("{name} is {value:?}, which is not one of its values")]
    Unknown {
        /// The name of the property.
        name: &'static str,
        /// What it was set to.
        value: String,
    },
    /// A property that YCSB has and this crate does not.
    #[error("the property {name} is not supported: leave it out")]
    Unsupported {
        /// The name of the property.
        name: String,
    },
    /// Values that do not go together.
    #[error("{0}")]
    Contradiction(&'static str),
}

impl Default for Workload {
    /// What YCSB takes for properties that are not given.
    fn default() -> Self {
        Self {
            records: 1000,
            operations: 1000,
            insert_start: 0,
            insert_count: None,
            fields: 10,
            field_len: 100,
            field_len_min: 1,
            field_length: Length::Constant,
            field_name_prefix: "field".to_owned(),
            read_all: true,
            write_all: false,
            integrity: false,
            reads: 0.95,
            updates: 0.05,
            inserts: 0.0,
            scans: 0.0,
            read_modify_writes: 0.0,
            request: Request::Uniform,
            scan_min: 1,
            scan_max: 1000,
            scan_length: Length::Uniform,
            order: InsertOrder::Hashed,
            zero_padding: 1,
            hot_items: 0.2,
            hot_share: 0.8,
            exponential_percentile: 95.0,
            exponential_fraction: 0.857_142_857_1,
        }
    }
}

impl Workload {
    /// A core workload as its property file defines it, with 1000 records and 1000 operations.
    #[must_use]
    pub fn core(mix: Mix) -> Self {
        let base = Self { reads: 0.0, updates: 0.0, request: Request::Zipfian, ..Self::default() };
        match mix {
            Mix::A => Self { reads: 0.5, updates: 0.5, ..base },
            Mix::B => Self { reads: 0.95, updates: 0.05, ..base },
            Mix::C => Self { reads: 1.0, ..base },
            Mix::D => Self { reads: 0.95, inserts: 0.05, request: Request::Latest, ..base },
            Mix::E => Self { scans: 0.95, inserts: 0.05, scan_max: 100, ..base },
            Mix::F => Self { reads: 0.5, read_modify_writes: 0.5, ..base },
            Mix::Update => Self { updates: 1.0, ..base },
        }
    }

    /// A workload as paper 002 measures it: the record is one value of `value_len` bytes, which an update replaces
    /// whole. Stock YCSB rewrites one field of ten, so that its figures and these do not compare.
    #[must_use]
    pub fn paper_002(mix: Mix, value_len: usize) -> Self {
        Self {
            fields: 1,
            field_len: value_len,
            field_len_min: value_len.min(1),
            write_all: true,
            ..Self::core(mix)
        }
    }

    /// The same over another number of records and operations.
    #[must_use]
    pub fn sized(self, records: u64, operations: u64) -> Self {
        Self { records, operations, ..self }
    }

    /// Reads a YCSB property file: `name=value` lines, `#` comments. What is not given has YCSB's default.
    ///
    /// # Errors
    /// [`WorkloadError`] for lines, names and values that YCSB has no meaning for, and for properties that would
    /// change what is measured and are not supported here. The `workload` class and `table` are read over.
    pub fn parse(text: &str) -> Result<Self, WorkloadError> {
        let mut made = Self::default();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with(['#', '!']) {
                continue;
            }
            let (name, value) = line
                .split_once('=')
                .ok_or_else(|| WorkloadError::Line { line: index + 1, text: line.to_owned() })?;
            made.set(name.trim(), value.trim())?;
        }
        made.check()?;
        Ok(made)
    }

    /// Sets one YCSB property. [`Self::check`] says whether all of them go together.
    ///
    /// # Errors
    /// [`WorkloadError::Unsupported`] for a name, [`WorkloadError::Unknown`] for a value.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), WorkloadError> {
        match name {
            "workload" | "table" => {}
            "recordcount" => self.records = number("recordcount", value)?,
            "operationcount" => self.operations = number("operationcount", value)?,
            "insertstart" => self.insert_start = number("insertstart", value)?,
            "insertcount" => self.insert_count = Some(number("insertcount", value)?),
            "fieldcount" => self.fields = number("fieldcount", value)?,
            "fieldlength" => self.field_len = number("fieldlength", value)?,
            "minfieldlength" => self.field_len_min = number("minfieldlength", value)?,
            "fieldnameprefix" => value.clone_into(&mut self.field_name_prefix),
            "fieldlengthdistribution" => {
                self.field_length = match value {
                    "constant" => Length::Constant,
                    "uniform" => Length::Uniform,
                    "zipfian" => Length::Zipfian,
                    _ => return Err(unknown("fieldlengthdistribution", value)),
                }
            }
            "readallfields" => self.read_all = truth(value),
            "writeallfields" => self.write_all = truth(value),
            "dataintegrity" => self.integrity = truth(value),
            "readproportion" => self.reads = number("readproportion", value)?,
            "updateproportion" => self.updates = number("updateproportion", value)?,
            "insertproportion" => self.inserts = number("insertproportion", value)?,
            "scanproportion" => self.scans = number("scanproportion", value)?,
            "readmodifywriteproportion" => {
                self.read_modify_writes = number("readmodifywriteproportion", value)?;
            }
            "requestdistribution" => {
                self.request = match value {
                    "uniform" => Request::Uniform,
                    "zipfian" => Request::Zipfian,
                    "latest" => Request::Latest,
                    "hotspot" => Request::Hotspot,
                    "exponential" => Request::Exponential,
                    "sequential" => Request::Sequential,
                    _ => return Err(unknown("requestdistribution", value)),
                }
            }
            "minscanlength" => self.scan_min = number("minscanlength", value)?,
            "maxscanlength" => self.scan_max = number("maxscanlength", value)?,
            "scanlengthdistribution" => {
                self.scan_length = match value {
                    "uniform" => Length::Uniform,
                    "zipfian" => Length::Zipfian,
                    _ => return Err(unknown("scanlengthdistribution", value)),
                }
            }
            // As in YCSB, whatever is not `hashed` is ordered.
            "insertorder" if value == "hashed" => self.order = InsertOrder::Hashed,
            "insertorder" => self.order = InsertOrder::Ordered,
            "zeropadding" => self.zero_padding = number("zeropadding", value)?,
            "hotspotdatafraction" => self.hot_items = number("hotspotdatafraction", value)?,
            "hotspotopnfraction" => self.hot_share = number("hotspotopnfraction", value)?,
            "exponential.percentile" => {
                self.exponential_percentile = number("exponential.percentile", value)?
            }
            "exponential.frac" => self.exponential_fraction = number("exponential.frac", value)?,
            _ => return Err(WorkloadError::Unsupported { name: name.to_owned() }),
        }
        Ok(())
    }

    /// Whether the values go together.
    ///
    /// # Errors
    /// [`WorkloadError::Contradiction`], which says what to change.
    pub fn check(&self) -> Result<(), WorkloadError> {
        let shares = [self.reads, self.updates, self.inserts, self.scans, self.read_modify_writes];
        let fault = if self.records == 0 || self.loads() == 0 {
            "there are no records to ask for: raise recordcount or insertcount"
        } else if self.insert_start.checked_add(self.loads()).is_none_or(|end| end > self.records) {
            "insertstart and insertcount go past recordcount: raise recordcount"
        } else if self.fields == 0 {
            "a record without fields cannot be written: set fieldcount to 1 or more"
        } else if self.field_length != Length::Constant && self.field_len_min > self.field_len {
            "minfieldlength is above fieldlength: swap them"
        } else if self.integrity && self.field_length != Length::Constant {
            "dataintegrity needs fields of constant length: set fieldlengthdistribution=constant"
        } else if self.scan_min == 0 || self.scan_min > self.scan_max {
            "minscanlength must be between 1 and maxscanlength"
        } else if shares.iter().any(|share| !(0.0..=1e9).contains(share)) {
            "a proportion is negative or not a number: give shares between 0 and 1"
        } else if shares.iter().all(|&share| share == 0.0) {
            "all proportions are 0: give one operation a share"
        } else if self.request == Request::Latest && self.records < 2 {
            "the latest distribution needs two records: raise recordcount"
        } else {
            return Ok(());
        };
        Err(WorkloadError::Contradiction(fault))
    }

    /// How many records the loading phase writes, from `insert_start` on.
    #[must_use]
    pub fn loads(&self) -> u64 {
        self.insert_count.unwrap_or(self.records.saturating_sub(self.insert_start))
    }

    /// The name of a field.
    #[must_use]
    pub fn field_name(&self, field: usize) -> String {
        format!("{}{field}", self.field_name_prefix)
    }

    /// Bytes of a record's fields where their lengths are constant: 1000 for stock YCSB.
    #[must_use]
    pub const fn record_len(&self) -> usize {
        self.fields * self.field_len
    }

    /// The key of a record, appended to `into`.
    pub fn key(&self, record: u64, into: &mut Vec<u8>) {
        let number = match self.order {
            InsertOrder::Hashed => crate::fnv::hash64(record),
            InsertOrder::Ordered => record,
        };
        into.extend_from_slice(format!("user{number:0width$}", width = self.zero_padding).as_bytes());
    }
}

fn unknown(name: &'static str, value: &str) -> WorkloadError {
    WorkloadError::Unknown { name, value: value.to_owned() }
}

fn number<T: FromStr>(name: &'static str, value: &str) -> Result<T, WorkloadError> {
    value.parse().map_err(|_| unknown(name, value))
}

/// Java's `Boolean.parseBoolean`.
fn truth(value: &str) -> bool {
    value.eq_ignore_ascii_case("true")
}
