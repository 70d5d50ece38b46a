//! The two schemes that Erda is compared with (paper 002, 5.1): Redo Logging and Read After Write.
//!
//! Same medium, same requests, same checksummed records, same costs. Both first put a record into a buffer on the medium,
//! and apply it to the destination later, where an index of key and address finds it; both answer reads by the server's CPU,
//! which looks among the records that are not applied yet, and then into the destination.
//!
//! * **Redo Logging**: the client sends the value; the server appends it to the redo log, durable, and acknowledges.
//! * **Read After Write**: the client asks for a place in the ring, writes there itself, and a READ after the WRITE makes it
//!   durable. The server polls the ring.
//!
//! ```text
//!  0     applied u64          records up to this number are in the destination; durable now and then, and counted apart
//!  8     table                per entry: address u64 (0: free), key
//!  ...   buffer               records: CRC-32 u32, key, value
//!  ...   destination          key, value
//! ```
//! A record's checksum begins with its number, so one of an earlier lap does not count. Recovery applies what is whole behind
//! the applied number. That is tuned as Table 1 counts it: nothing but a checksum is written twice.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use remanence_kv::Geometry;
use remanence_kv::client::{Client, Completion, Error, Operation, Progress, Verb};
use remanence_kv::format::Offset;
use remanence_kv::format::slot::TableAt;
use remanence_kv::proto::{Expect, Refusal, Reply, Request, Reserved};
use remanence_kv::view::{Mode, View};
use remanence_pmem::Medium;

use crate::get_u32;
use crate::paper::Written;

/// What a client of a baseline begins with: nobody reads these stores one-sidedly, but a client has a view.
#[must_use]
pub fn client() -> Client {
    let view = View {
        number: 1,
        boot: 1,
        mode: Mode::Durable,
        replicated: false,
        inline_max: 0,
        geometry: Geometry::for_size(1 << 20),
        salt: 0,
        tables: vec![TableAt { at: 0, buckets: 1 }],
        links: BTreeMap::new(),
    };
    Client::new(view, 0)
}

/// Which of the two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scheme {
    /// The server's CPU writes the log.
    RedoLogging,
    /// The client writes the ring, and reads it back.
    ReadAfterWrite,
}

/// How large everything is.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Bytes of each key.
    pub key: usize,
    /// Bytes of each value.
    pub value: usize,
    /// Keys that the destination has room for.
    pub keys: u64,
    /// Records that the buffer has room for.
    pub records: u64,
}

impl Sizes {
    /// The size of one key-value pair, Table 1's N.
    #[must_use]
    pub const fn pair(&self) -> usize {
        self.key + self.value
    }

    /// Bytes of a record in the buffer.
    #[must_use]
    pub const fn record(&self) -> usize {
        4 + self.pair()
    }

    const fn entry(&self, index: u64) -> u64 {
        8 + index * (8 + self.key as u64).next_multiple_of(8)
    }

    const fn slot(&self, number: u64) -> u64 {
        self.entry(self.keys) + (number % self.records) * (self.record() as u64).next_multiple_of(64)
    }

    const fn place(&self, index: u64) -> u64 {
        self.entry(self.keys)
            + self.records * (self.record() as u64).next_multiple_of(64)
            + index * (self.pair() as u64).next_multiple_of(64)
    }

    /// Bytes of medium that a store takes.
    #[must_use]
    pub const fn medium(&self) -> u64 {
        self.place(self.keys)
    }
}

/// The server of a baseline.
#[derive(Debug)]
pub struct Baseline<M> {
    medium: M,
    scheme: Scheme,
    sizes: Sizes,
    /// The index, as it is on the medium: entry and address.
    index: BTreeMap<Vec<u8>, u64>,
    free: BTreeSet<u64>,
    /// Records that were begun and not applied, oldest first: number and key, so that a reader need not look into others'.
    waiting: VecDeque<(u64, Vec<u8>)>,
    next: u64,
    /// The applied number on the medium.
    applied: u64,
    written: Written,
    bookkeeping: u64,
}

fn checksum(number: u64, pair: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&number.to_le_bytes());
    hasher.update(pair);
    hasher.finalize()
}

/// A record as it is written to the buffer.
#[must_use]
pub fn record(number: u64, key: &[u8], value: &[u8]) -> Vec<u8> {
    let pair = [key, value].concat();
    let mut bytes = checksum(number, &pair).to_le_bytes().to_vec();
    bytes.extend(pair);
    bytes
}

impl<M: Medium> Baseline<M> {
    /// An empty store.
    ///
    /// # Errors
    /// The medium failed.
    pub fn format(medium: M, scheme: Scheme, sizes: Sizes) -> std::io::Result<Self> {
        medium.write(0, &vec![0; sizes.medium() as usize]);
        medium.persist(0..sizes.medium())?;
        Self::recover(medium, scheme, sizes)
    }

    /// The store after a clean end or a crash: records that are whole are applied.
    ///
    /// # Errors
    /// The medium failed.
    pub fn recover(medium: M, scheme: Scheme, sizes: Sizes) -> std::io::Result<Self> {
        let applied = u64::from_le(medium.load_u64(0));
        let mut this = Self {
            medium,
            scheme,
            sizes,
            index: BTreeMap::new(),
            free: (0..sizes.keys).collect(),
            waiting: VecDeque::new(),
            next: applied,
            applied,
            written: Written::default(),
            bookkeeping: 0,
        };
        for index in 0..sizes.keys {
            let address = u64::from_le(this.medium.load_u64(sizes.entry(index)));
            if address != 0 {
                let mut key = vec![0; sizes.key];
                this.medium.read(sizes.entry(index) + 8, &mut key);
                this.index.insert(key, index);
                this.free.remove(&index);
            }
        }
        // Read After Write hands places out in order, and a client may have died within one: look at the whole ring.
        for number in applied..applied + sizes.records {
            if let Some(mut pair) = this.pair(number) {
                this.next = number + 1;
                pair.truncate(sizes.key);
                this.waiting.push_back((number, pair));
            }
        }
        this.apply(usize::MAX)?;
        this.written = Written::default();
        Ok(this)
    }

    /// What operations wrote, as Table 1 counts it.
    #[must_use]
    pub const fn written(&self) -> Written {
        self.written
    }

    /// What was written besides: the applied number, once per lot.
    #[must_use]
    pub const fn bookkeeping(&self) -> u64 {
        self.bookkeeping
    }

    /// Records that wait to be applied.
    #[must_use]
    pub fn backlog(&self) -> usize {
        self.waiting.len()
    }

    /// The key-value pair of a whole record.
    fn pair(&self, number: u64) -> Option<Vec<u8>> {
        let mut bytes = vec![0; self.sizes.record()];
        self.medium.read(self.sizes.slot(number), &mut bytes);
        let pair = bytes.split_off(4);
        (checksum(number, &pair) == get_u32(&bytes, 0)).then_some(pair)
    }

    /// Applies records to the destination, at most so many, oldest first; stops at one that its client is still writing.
    /// Returns how many are left.
    ///
    /// # Errors
    /// The medium failed.
    pub fn apply(&mut self, at_most: usize) -> std::io::Result<usize> {
        let mut applied = None;
        for _ in 0..at_most {
            let Some((number, _)) = self.waiting.front() else { break };
            let number = *number;
            let Some(pair) = self.pair(number) else { break };
            let key = pair[..self.sizes.key].to_vec();
            match self.index.get(&key) {
                Some(index) => {
                    let at = self.sizes.place(*index);
                    self.medium.write_nt(at, &pair);
                    self.written.data += pair.len() as u64;
                }
                None => {
                    let Some(index) = self.free.pop_first() else { break };
                    let (at, entry) = (self.sizes.place(index), self.sizes.entry(index));
                    self.medium.write_nt(at, &pair);
                    self.medium.write(entry + 8, &key);
                    self.medium.pwb(entry + 8..entry + 8 + key.len() as u64);
                    self.medium.pfence()?;
                    self.medium.store_u64(entry, at.to_le());
                    self.medium.pwb(entry..entry + 8);
                    self.written.data += pair.len() as u64;
                    self.written.metadata += 8 + key.len() as u64;
                    self.index.insert(key, index);
                }
            }
            self.waiting.pop_front();
            applied = Some(number + 1);
        }
        if let Some(applied) = applied {
            self.medium.psync()?;
            self.applied = applied;
            self.medium.store_u64(0, applied.to_le());
            self.medium.persist(0..8)?;
            self.bookkeeping += 8;
        }
        Ok(self.waiting.len())
    }

    /// Gives up on a record that its client will not finish.
    pub fn skip_unfinished(&mut self) {
        if let Some((number, _)) = self.waiting.front()
            && self.pair(*number).is_none()
        {
            self.waiting.pop_front();
        }
    }

    /// Carries out a request: GET, DELETE, and the PUT of the scheme.
    ///
    /// # Errors
    /// The medium failed.
    pub fn handle(&mut self, request: &Request) -> std::io::Result<Reply> {
        Ok(match request {
            Request::Get { key } => self.get(key),
            Request::PutInline { key, value, .. } if self.scheme == Scheme::RedoLogging => {
                if !self.fits(key, value.len() as u64) {
                    return Ok(Reply::Refused(Refusal::Malformed));
                }
                if !self.has_room(key)? {
                    return Ok(Reply::Refused(Refusal::Full));
                }
                let number = self.begin(key);
                let bytes = record(number, key, value);
                self.medium.write_nt(self.sizes.slot(number), &bytes);
                self.medium.psync()?;
                Reply::Done { version: number + 1 }
            }
            Request::Put { key, len, .. } if self.scheme == Scheme::ReadAfterWrite => {
                if !self.fits(key, *len) {
                    return Ok(Reply::Refused(Refusal::Malformed));
                }
                if !self.has_room(key)? {
                    return Ok(Reply::Refused(Refusal::Full));
                }
                let number = self.begin(key);
                let at = self.sizes.slot(number);
                let version = number + 1;
                Reply::Reserved(Reserved {
                    version,
                    head: 0,
                    offset: Offset(0),
                    epoch: 0,
                    at,
                    extents: Vec::new(),
                })
            }
            Request::Delete { key, .. } => self.delete(key)?,
            _ => Reply::Refused(Refusal::Malformed),
        })
    }

    fn fits(&self, key: &[u8], value: u64) -> bool {
        key.len() == self.sizes.key && value == self.sizes.value as u64
    }

    fn has_room(&mut self, key: &[u8]) -> std::io::Result<bool> {
        if self.next - self.applied >= self.sizes.records {
            self.apply(usize::MAX)?;
        }
        let table = self.index.contains_key(key) || self.waiting.len() < self.free.len();
        Ok(table && self.next - self.applied < self.sizes.records)
    }

    fn begin(&mut self, key: &[u8]) -> u64 {
        let number = self.next;
        self.next += 1;
        self.waiting.push_back((number, key.to_vec()));
        self.written.data += self.sizes.record() as u64;
        number
    }

    fn get(&self, key: &[u8]) -> Reply {
        let own = self.waiting.iter().rev().filter(|(_, of)| of == key);
        let newest = own.filter_map(|(number, _)| Some((*number, self.pair(*number)?))).next();
        let (version, pair) = match newest {
            Some((number, pair)) => (number + 1, pair),
            None => {
                let Some(index) = self.index.get(key) else { return Reply::Absent };
                let mut pair = vec![0; self.sizes.pair()];
                self.medium.read(self.sizes.place(*index), &mut pair);
                (0, pair)
            }
        };
        Reply::Value { version, expires: 0, value: pair[self.sizes.key..].to_vec() }
    }

    fn delete(&mut self, key: &[u8]) -> std::io::Result<Reply> {
        self.apply(usize::MAX)?;
        let Some(index) = self.index.remove(key) else { return Ok(Reply::Done { version: 0 }) };
        // Table 1: the entry is set to 0, key and address.
        let entry = self.sizes.entry(index);
        self.medium.store_u64(entry, 0);
        self.medium.write(entry + 8, &vec![0; key.len()]);
        self.medium.persist(entry..entry + 8 + key.len() as u64)?;
        self.written.metadata += 8 + key.len() as u64;
        self.free.insert(index);
        Ok(Reply::Done { version: 1 })
    }
}

/// The client's PUT of Read After Write: a place, a WRITE, a READ.
#[derive(Debug)]
pub struct ReadAfterWritePut {
    key: Vec<u8>,
    value: Vec<u8>,
    asked: bool,
    version: u64,
}

impl ReadAfterWritePut {
    /// Of this key.
    #[must_use]
    pub fn new(key: &[u8], value: &[u8]) -> Self {
        Self { key: key.to_vec(), value: value.to_vec(), asked: false, version: 0 }
    }
}

impl Operation for ReadAfterWritePut {
    type Output = Result<u64, Error>;

    fn step(&mut self, _: &mut Client, _: u64, mut completions: Vec<Completion>) -> Progress<Self::Output> {
        if !self.asked {
            self.asked = true;
            let (key, len) = (self.key.clone(), self.value.len() as u64);
            let expect = Expect::Any;
            return Progress::Post(vec![Verb::Call(Request::Put { key, len, expires: 0, expect })]);
        }
        match completions.pop() {
            Some(Completion::Reply(Reply::Reserved(reserved))) => {
                self.version = reserved.version;
                let bytes = record(reserved.version - 1, &self.key, &self.value);
                // The last byte is read back on the same QP: it pushes what was written before it.
                let last = reserved.at + bytes.len() as u64 - 1;
                Progress::Post(vec![Verb::Write { at: reserved.at, bytes }, Verb::Read { at: last, len: 1 }])
            }
            Some(Completion::Read(_)) => Progress::Done(Ok(self.version)),
            Some(Completion::Reply(Reply::Refused(refusal))) => Progress::Done(Err(refusal.into())),
            _ => Progress::Done(Err(Error::Protocol("no answer to a PUT"))),
        }
    }

    fn cancel(&mut self, _: &mut Client) -> Option<Request> {
        None
    }
}
