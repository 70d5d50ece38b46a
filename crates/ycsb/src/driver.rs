//! Carries a generator's operations out on a store, and measures.
//!
//! A thread owns a [`Client`] with its generator, a handle of the store and a clock, and calls [`Client::load`] or
//! [`Client::step`] as often as it likes; how many threads there are and when they stop is up to the caller. Latency is
//! taken around the store's call alone: drawing an operation and checking its answer are not charged to the store.

use std::fmt::Display;

use crate::generator::{Fields, Generator, Kind, Operation};
use crate::measure::Measurements;
use crate::random::Random;
use crate::record::{self, Record};

/// A store with records. Handles belong to one thread.
pub trait Store {
    /// What can go wrong.
    type Error: Display;

    /// Reads a record's fields, in ascending order; `None` if there is no such record.
    ///
    /// # Errors
    /// The error that the store gives.
    fn read(&mut self, key: &[u8], fields: Fields) -> Result<Option<Record>, Self::Error>;

    /// Replaces fields of a record; whether there was one. A store that cannot tell writes and says that there was.
    ///
    /// # Errors
    /// The error that the store gives.
    fn update(&mut self, key: &[u8], values: &Record) -> Result<bool, Self::Error>;

    /// Writes a new record.
    ///
    /// # Errors
    /// The error that the store gives.
    fn insert(&mut self, key: &[u8], values: &Record) -> Result<(), Self::Error>;

    /// Reads up to `count` records from `start` on, in key order.
    ///
    /// # Errors
    /// The store's, and that it has no scans.
    fn scan(&mut self, start: &[u8], count: u64, fields: Fields) -> Result<Vec<Record>, Self::Error>;
}

/// Time, as the caller has it. Threads whose measurements are merged share the zero.
pub trait Clock {
    /// Nanoseconds since some fixed moment; never less than before.
    fn now(&self) -> u64;
}

impl<F: Fn() -> u64> Clock for F {
    fn now(&self) -> u64 {
        self()
    }
}

/// How an operation ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// As it should.
    Done,
    /// There was no such record.
    Missing,
    /// The store failed it.
    Failed,
}

/// One thread's driver.
#[derive(Debug)]
pub struct Client<R> {
    generator: Generator<R>,
    measured: Measurements,
    /// Nanoseconds between the starts of operations, if there is a target rate.
    period: Option<f64>,
    first_start: Option<u64>,
    started: u64,
    key: Vec<u8>,
}

impl<R: Random> Client<R> {
    /// Drives `generator`'s operations, and keeps a timeline in slices of `slice` nanoseconds.
    #[must_use]
    pub fn new(generator: Generator<R>, slice: u64) -> Self {
        let measured = Measurements::new(slice);
        Self { generator, measured, period: None, first_start: None, started: 0, key: Vec::new() }
    }

    /// Asks for so many operations a second of this thread, evenly spaced: the caller waits for [`Self::due`] before
    /// each step. Latencies from the intended start are then recorded too, so that a stall is charged to every
    /// operation that it held up.
    #[must_use]
    pub fn with_target(mut self, per_second: f64) -> Self {
        self.period = (per_second > 0.0).then(|| 1e9 / per_second);
        self
    }

    /// When the next operation should start, on the clock; `None` if at once.
    #[must_use]
    pub fn due(&self) -> Option<u64> {
        Some(self.first_start? + (self.period? * self.started as f64) as u64)
    }

    /// Loads the thread's part of the records: every `threads`-th of the workload's, from number `thread` on. Stops at
    /// the first failure.
    ///
    /// # Errors
    /// The store's, of the record that could not be written.
    pub fn load<S: Store>(
        &mut self,
        store: &mut S,
        clock: &impl Clock,
        thread: u64,
        threads: u64,
    ) -> Result<u64, S::Error> {
        let workload = self.generator.workload().clone();
        let end = workload.insert_start + workload.loads();
        let mut loaded = 0;
        let mut record = workload.insert_start + thread;
        while record < end {
            let values = self.generator.all_values(record);
            self.named(record);
            let start = clock.now();
            let result = store.insert(&self.key, &values);
            self.finish(Kind::Insert, start, clock.now(), None, result.map(|()| true))?;
            self.measured.operations += 1;
            loaded += 1;
            record += threads.max(1);
        }
        Ok(loaded)
    }

    /// Draws one operation and carries it out.
    pub fn step<S: Store>(&mut self, store: &mut S, clock: &impl Clock) -> (Kind, Outcome) {
        let operation = self.generator.operation();
        let intended = self.due();
        let kind = operation.kind();
        let start = clock.now();
        self.first_start.get_or_insert(start);
        self.started += 1;
        let outcome = self.carry_out(operation, store, clock, start, intended);
        self.measured.operations += 1;
        (kind, outcome)
    }

    /// What was measured so far.
    #[must_use]
    pub const fn measured(&self) -> &Measurements {
        &self.measured
    }

    /// The same, as the thread ends.
    #[must_use]
    pub fn into_measured(self) -> Measurements {
        self.measured
    }

    fn carry_out<S: Store>(
        &mut self,
        operation: Operation,
        store: &mut S,
        clock: &impl Clock,
        start: u64,
        intended: Option<u64>,
    ) -> Outcome {
        let kind = operation.kind();
        match operation {
            Operation::Read { record, fields } => {
                self.named(record);
                let answer = store.read(&self.key, fields);
                let end = clock.now();
                self.verify(record, fields, answer.as_ref().ok().and_then(Option::as_ref));
                self.end(kind, start, end, intended, answer.map(|found| found.is_some()))
            }
            Operation::Update { record, values } => {
                self.named(record);
                let answer = store.update(&self.key, &values);
                self.end(kind, start, clock.now(), intended, answer)
            }
            Operation::Insert { record, values } => {
                self.named(record);
                let answer = store.insert(&self.key, &values);
                let end = clock.now();
                self.generator.inserts().acknowledge(record);
                self.end(kind, start, end, intended, answer.map(|()| true))
            }
            Operation::Scan { record, count, fields } => {
                self.named(record);
                let answer = store.scan(&self.key, count, fields);
                self.end(kind, start, clock.now(), intended, answer.map(|_| true))
            }
            Operation::ReadModifyWrite { record, fields, values } => {
                self.named(record);
                let answer = store.read(&self.key, fields);
                let middle = clock.now();
                let read = answer.as_ref().ok().cloned().flatten();
                let mut outcome = self.half(Kind::Read, start, middle, answer.map(|found| found.is_some()));
                let mut end = middle;
                if outcome == Outcome::Done {
                    let answer = store.update(&self.key, &values);
                    end = clock.now();
                    outcome = self.half(Kind::Update, middle, end, answer);
                }
                self.verify(record, fields, read.as_ref());
                self.note(kind, start, end, intended, outcome);
                outcome
            }
        }
    }

    fn named(&mut self, record: u64) {
        self.key.clear();
        self.generator.workload().key(record, &mut self.key);
    }

    /// Checks a read against what `dataintegrity` wrote.
    fn verify(&mut self, record: u64, fields: Fields, read: Option<&Record>) {
        let workload = self.generator.workload();
        let Some(read) = read.filter(|_| workload.integrity) else { return };
        let wanted = match fields {
            Fields::All => 0..workload.fields,
            Fields::One(field) => field..field + 1,
        };
        debug_assert!(self.key.starts_with(b"user"), "the key of record {record}");
        let fine = read.len() == wanted.len()
            && wanted.zip(read).all(|(field, (number, bytes))| {
                let expected =
                    record::deterministic(&self.key, &workload.field_name(field), workload.field_len);
                field == *number && expected == *bytes
            });
        if !fine {
            self.measured.series(Kind::Read).wrong += 1;
        }
    }

    fn end<E: Display>(
        &mut self,
        kind: Kind,
        start: u64,
        end: u64,
        intended: Option<u64>,
        answer: Result<bool, E>,
    ) -> Outcome {
        match self.finish(kind, start, end, intended, answer) {
            Ok(outcome) => outcome,
            Err(_) => Outcome::Failed,
        }
    }

    /// A half of a read-modify-write: in its kind's series, and not on the timeline.
    fn half<E: Display>(&mut self, kind: Kind, start: u64, end: u64, answer: Result<bool, E>) -> Outcome {
        let outcome = self.outcome(&answer);
        self.record(kind, start, end, None, outcome);
        outcome
    }

    fn finish<E: Display>(
        &mut self,
        kind: Kind,
        start: u64,
        end: u64,
        intended: Option<u64>,
        answer: Result<bool, E>,
    ) -> Result<Outcome, E> {
        let outcome = self.outcome(&answer);
        self.note(kind, start, end, intended, outcome);
        answer.map(|_| outcome)
    }

    fn outcome<E: Display>(&mut self, answer: &Result<bool, E>) -> Outcome {
        match answer {
            Ok(true) => Outcome::Done,
            Ok(false) => Outcome::Missing,
            Err(error) => {
                self.measured.first_error.get_or_insert_with(|| error.to_string());
                Outcome::Failed
            }
        }
    }

    fn note(&mut self, kind: Kind, start: u64, end: u64, intended: Option<u64>, outcome: Outcome) {
        self.record(kind, start, end, intended, outcome);
        self.measured.spanned(start, end);
        if outcome == Outcome::Done {
            self.measured.tick(start, end);
        }
    }

    fn record(&mut self, kind: Kind, start: u64, end: u64, intended: Option<u64>, outcome: Outcome) {
        let series = self.measured.series(kind);
        match outcome {
            Outcome::Done => {
                // The histograms grow by themselves; only a value beyond 2^63 could fail.
                let _ = series.latency.record(end.saturating_sub(start));
                if let Some(intended) = intended {
                    let _ = series.intended.record(end.saturating_sub(intended));
                }
            }
            Outcome::Missing => series.missing += 1,
            Outcome::Failed => series.failed += 1,
        }
    }
}
