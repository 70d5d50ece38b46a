//! What a command has been told by the store, while it waits for a change of its own.
//!
//! A command that has to wait is carried out again from its beginning. Where others were in the way nothing of it has been done. But where
//! the store's server has [not answered](StoreError::UnderWay) for a change yet, that may have been made meanwhile, and what the command
//! would read then is not what it has read before: INCR would add twice, DEL would not count what it has deleted itself. So the command
//! is told again, and at the same moment, what it was told before, until it comes to the change that it has to wait for. That one it asks for
//! again, and the store says what [came of it](Store::recall).

use std::hash::Hasher as _;

use siphasher::sip::SipHasher13;

use crate::engine::Moment;
use crate::store::{Change, Condition, Fetched, Key, Store, StoreError, StoreLimits, Version};

/// What a command has been told, in its order.
#[derive(Default, Debug)]
pub(crate) struct Record {
    answers: Vec<(u64, Answer)>,
    /// When the command was carried out for the first time.
    moment: Option<Moment>,
}

#[derive(Clone, Debug)]
enum Answer {
    Value(Result<Option<Version>, StoreError>, Vec<u8>),
    Values(Vec<Fetched>, Vec<u8>),
    Changed(Vec<Result<bool, StoreError>>),
}

impl Record {
    /// At which moment the command is to be carried out, if it is `now`.
    pub(crate) fn moment(&self, now: Moment) -> Moment {
        self.moment.unwrap_or(now)
    }
}

/// A store, and in front of it what a command has been told.
#[derive(Debug)]
pub(crate) struct Replay<'a, S> {
    store: &'a mut S,
    record: Record,
    /// What the command is told next of it.
    at: usize,
    is_under_way: bool,
}

/// What was asked: the kind of the question, the keys, and what they are to have.
fn asked<'k>(kind: u8, changes: impl Iterator<Item = Change<'k>>) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write_u8(kind);
    for Change { key, value, condition } in changes {
        hasher.write_u8(key.space);
        hasher.write_usize(key.name.len());
        hasher.write(key.name);
        hasher.write_usize(value.map_or(usize::MAX, <[u8]>::len));
        hasher.write(value.unwrap_or_default());
        let (kind, version) = match condition {
            Condition::Always => (0, None),
            Condition::Absent => (1, None),
            Condition::Is(version) => (2, Some(version)),
            Condition::Freeing(version) => (3, version),
            Condition::Moving(version) => (4, version),
        };
        hasher.write_u8(kind);
        hasher.write_u64(version.map_or(0, |version| version.0));
    }
    hasher.finish()
}

/// A question of keys alone.
fn looked(kind: u8, keys: &[Key<'_>]) -> u64 {
    asked(kind, keys.iter().map(|key| Change { key: *key, value: None, condition: Condition::Always }))
}

impl<'a, S: Store> Replay<'a, S> {
    /// For a command that has been told this.
    pub(crate) const fn new(store: &'a mut S, record: Record) -> Self {
        Self { store, record, at: 0, is_under_way: false }
    }

    /// What the command is to be told again, if a change of its is under way.
    pub(crate) fn into_record(self, moment: Moment) -> Option<Record> {
        self.is_under_way.then_some(Record { moment: Some(moment), ..self.record })
    }

    /// What it was told here. A command that asks for something else now, as others have changed what it depends on beside the store, goes on
    /// from here by itself.
    fn told(&mut self, asked: u64) -> Option<Answer> {
        match self.record.answers.get(self.at) {
            Some((before, answer)) if *before == asked => {
                self.at += 1;
                Some(answer.clone())
            }
            _ => {
                self.record.answers.truncate(self.at);
                None
            }
        }
    }

    fn keep(&mut self, asked: u64, answer: Answer) {
        self.record.answers.push((asked, answer));
        self.at += 1;
    }

    fn look(
        &mut self,
        kind: u8,
        key: Key<'_>,
        value: &mut Vec<u8>,
        look: impl FnOnce(&mut S, Key<'_>, &mut Vec<u8>) -> Result<Option<Version>, StoreError>,
    ) -> Result<Option<Version>, StoreError> {
        let asked = looked(kind, &[key]);
        if let Some(Answer::Value(found, bytes)) = self.told(asked) {
            value.extend_from_slice(&bytes);
            return found;
        }
        let start = value.len();
        let found = look(self.store, key, value);
        if !found.as_ref().is_err_and(StoreError::waits) {
            self.keep(asked, Answer::Value(found.clone(), value[start..].to_vec()));
        }
        found
    }

    fn look_at_many(
        &mut self,
        kind: u8,
        keys: &[Key<'_>],
        values: &mut Vec<u8>,
        found: &mut Vec<Fetched>,
        look: impl FnOnce(&mut S, &[Key<'_>], &mut Vec<u8>, &mut Vec<Fetched>),
    ) {
        let (asked, start) = (looked(kind, keys), values.len());
        let moved = |fetched: Fetched, by: usize| {
            fetched.map(|found| found.map(|(version, range)| (version, range.start + by..range.end + by)))
        };
        if let Some(Answer::Values(answers, bytes)) = self.told(asked) {
            values.extend_from_slice(&bytes);
            found.extend(answers.into_iter().map(|fetched| moved(fetched, start)));
            return;
        }
        let (mut bytes, mut answers) = (Vec::new(), Vec::with_capacity(keys.len()));
        look(self.store, keys, &mut bytes, &mut answers);
        values.extend_from_slice(&bytes);
        found.extend(answers.iter().map(|fetched| moved(fetched.clone(), start)));
        if !answers.iter().any(|fetched| fetched.as_ref().is_err_and(StoreError::waits)) {
            self.keep(asked, Answer::Values(answers, bytes));
        }
    }

    fn change(&mut self, change: Change<'_>) -> Result<bool, StoreError> {
        let mut done = Vec::with_capacity(1);
        self.change_many(&[change], &mut done);
        done.pop().expect("a store answers for each change")
    }
}

impl<S: Store> Store for Replay<'_, S> {
    fn limits(&self) -> StoreLimits {
        self.store.limits()
    }

    fn get(&mut self, key: Key<'_>, value: &mut Vec<u8>) -> Result<Option<Version>, StoreError> {
        self.look(0, key, value, S::get)
    }

    fn head(&mut self, key: Key<'_>, head: &mut Vec<u8>) -> Result<Option<Version>, StoreError> {
        self.look(1, key, head, S::head)
    }

    fn put(&mut self, key: Key<'_>, value: &[u8], condition: Condition) -> Result<bool, StoreError> {
        self.change(Change { key, value: Some(value), condition })
    }

    fn delete(&mut self, key: Key<'_>, condition: Condition) -> Result<bool, StoreError> {
        self.change(Change { key, value: None, condition })
    }

    fn get_many(&mut self, keys: &[Key<'_>], values: &mut Vec<u8>, found: &mut Vec<Fetched>) {
        self.look_at_many(2, keys, values, found, S::get_many);
    }

    fn beneath(&mut self, keys: &[Key<'_>], values: &mut Vec<u8>, found: &mut Vec<Fetched>) {
        self.look_at_many(3, keys, values, found, S::beneath);
    }

    fn is_outdated(&mut self, key: Key<'_>) -> bool {
        self.store.is_outdated(key)
    }

    fn change_many(&mut self, changes: &[Change<'_>], done: &mut Vec<Result<bool, StoreError>>) {
        let asked = asked(4, changes.iter().copied());
        if let Some(Answer::Changed(answers)) = self.told(asked) {
            return done.extend(answers);
        }
        let start = done.len();
        self.store.change_many(changes, done);
        let waits = |done: &Result<bool, StoreError>| done.as_ref().is_err_and(StoreError::waits);
        self.is_under_way |= done[start..].contains(&Err(StoreError::UnderWay));
        if !done[start..].iter().any(waits) {
            self.keep(asked, Answer::Changed(done[start..].to_vec()));
        }
    }

    // What goes over many keys is not told twice: it goes on from where it was.

    fn scan(
        &mut self,
        space: u8,
        cursor: u64,
        count: usize,
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<u64, StoreError> {
        self.store.scan(space, cursor, count, each)
    }

    fn anywhere(&self, random: u64) -> u64 {
        self.store.anywhere(random)
    }

    fn facts(&mut self) -> Vec<(&'static str, String)> {
        self.store.facts()
    }

    fn count(&mut self, space: u8) -> Result<Option<u64>, StoreError> {
        self.store.count(space)
    }

    fn clear(&mut self, space: Option<u8>, cursor: u64) -> Result<u64, StoreError> {
        self.store.clear(space, cursor)
    }
}
