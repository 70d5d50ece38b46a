//! Records on a store that has keys and values, and no fields.
//!
//! A record of one field is its bytes, so that a value size is what the store sees. A record of several is each
//! field's length (four bytes, little-endian) and bytes, in order; to update one field of it is to read the record and
//! to write it back, as YCSB's bindings for such stores do, and is charged for both.

use crate::driver::Store;
use crate::generator::Fields;
use crate::record::Record;

/// A store of keys and values.
pub trait KeyValue {
    /// What can go wrong.
    type Error: std::fmt::Display;

    /// Puts the value of `key` into `value`, which is empty; whether there is one.
    ///
    /// # Errors
    /// The error that the store gives.
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, Self::Error>;

    /// Writes a value, new or not.
    ///
    /// # Errors
    /// The error that the store gives.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Self::Error>;

    /// Shows `each` up to `count` values of keys from `start` on, in an order that the store has; `None` if it has none,
    /// which makes workload E impossible.
    ///
    /// # Errors
    /// The error that the store gives.
    fn scan(
        &mut self,
        start: &[u8],
        count: u64,
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Option<Result<(), Self::Error>> {
        let _ = (start, count, each);
        None
    }
}

/// A [`KeyValue`] store as the driver wants it.
#[derive(Debug)]
pub struct Packed<K> {
    store: K,
    fields: usize,
    value: Vec<u8>,
}

/// Why an operation failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PackedError<E> {
    /// The store says so.
    #[error("{0}")]
    Store(E),
    /// A value that no record was packed into.
    #[error("the value of {key:?} is no record of {fields} fields: was the store loaded with this workload?")]
    Damaged {
        /// The key whose value it is.
        key: String,
        /// How many fields it should have.
        fields: usize,
    },
    /// The store cannot scan.
    #[error("this store has no scans: leave workload E out")]
    NoScan,
}

impl<K: KeyValue> Packed<K> {
    /// Records of `fields` fields on `store`.
    pub const fn new(store: K, fields: usize) -> Self {
        Self { store, fields, value: Vec::new() }
    }

    /// The store that the records are packed into.
    pub const fn store(&mut self) -> &mut K {
        &mut self.store
    }

    fn load(&mut self, key: &[u8]) -> Result<Option<Record>, PackedError<K::Error>> {
        self.value.clear();
        if !self.store.get(key, &mut self.value).map_err(PackedError::Store)? {
            return Ok(None);
        }
        unpack(&self.value, self.fields).map(Some).ok_or_else(|| damaged(key, self.fields))
    }
}

fn damaged<E>(key: &[u8], fields: usize) -> PackedError<E> {
    PackedError::Damaged { key: String::from_utf8_lossy(key).into_owned(), fields }
}

/// The value that a whole record, its fields in order, is packed into.
#[must_use]
pub fn pack(record: &Record) -> Vec<u8> {
    if let [(_, only)] = record.as_slice() {
        return only.clone();
    }
    let mut value = Vec::with_capacity(record.iter().map(|(_, bytes)| 4 + bytes.len()).sum());
    for (_, bytes) in record {
        value.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        value.extend_from_slice(bytes);
    }
    value
}

/// The record of a value; `None` if it is not one of so many fields.
#[must_use]
pub fn unpack(value: &[u8], fields: usize) -> Option<Record> {
    if fields == 1 {
        return Some(vec![(0, value.to_vec())]);
    }
    let mut rest = value;
    let mut record = Vec::with_capacity(fields);
    for field in 0..fields {
        let (len, after) = rest.split_first_chunk::<4>()?;
        let (bytes, after) = after.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        record.push((field, bytes.to_vec()));
        rest = after;
    }
    rest.is_empty().then_some(record)
}

fn select(mut record: Record, fields: Fields) -> Record {
    if let Fields::One(wanted) = fields {
        record.retain(|(field, _)| *field == wanted);
    }
    record
}

impl<K: KeyValue> Store for Packed<K> {
    type Error = PackedError<K::Error>;

    fn read(&mut self, key: &[u8], fields: Fields) -> Result<Option<Record>, Self::Error> {
        Ok(self.load(key)?.map(|record| select(record, fields)))
    }

    fn update(&mut self, key: &[u8], values: &Record) -> Result<bool, Self::Error> {
        let value = if values.len() == self.fields {
            pack(values)
        } else {
            let Some(mut record) = self.load(key)? else { return Ok(false) };
            for (field, bytes) in values {
                bytes.clone_into(&mut record[*field].1);
            }
            pack(&record)
        };
        self.store.put(key, &value).map_err(PackedError::Store)?;
        Ok(true)
    }

    fn insert(&mut self, key: &[u8], values: &Record) -> Result<(), Self::Error> {
        self.store.put(key, &pack(values)).map_err(PackedError::Store)
    }

    fn scan(&mut self, start: &[u8], count: u64, fields: Fields) -> Result<Vec<Record>, Self::Error> {
        let (mut records, mut torn) = (Vec::new(), None);
        let wanted = self.fields;
        let scanned = self.store.scan(start, count, &mut |key, value| match unpack(value, wanted) {
            Some(record) => records.push(select(record, fields)),
            None => torn = Some(damaged(key, wanted)),
        });
        scanned.ok_or(PackedError::NoScan)?.map_err(PackedError::Store)?;
        torn.map_or(Ok(records), Err)
    }
}
