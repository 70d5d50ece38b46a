//! Plain SETs of several connections, at once.
//!
//! A store that waits for a disk, or for another machine, waits once for all that it is given at once. The SETs of a pipeline
//! are given to it so; those of different connections that have come by the same time can be as well. Each connection's are
//! [put off](crate::engine::Session::put_off), then all are [written](Joint::write), and only then is any of them
//! [answered](crate::engine::Session::answer): nobody can tell in which order they were carried out, or whether one that
//! another has replaced ever was. A connection's next request has to wait for that answer, which is the caller's part.

use std::ops::Range;

use super::run::answer_sets;
use super::{Command, Id};
use crate::engine::{Session, Shared};
use crate::protocol::Run;
use crate::store::{Key, Store, StoreError};
use crate::value::{Head, Kind};

/// So many are put off at most.
const PUTS_MAX: usize = 512;
/// Bytes of keys and values that are put off at most. What is larger gains nothing by company.
const BYTES_MAX: usize = 1 << 20;

/// SETs that were put off.
#[derive(Default, Debug)]
pub struct Joint {
    /// Names and values, one behind the other.
    bytes: Vec<u8>,
    puts: Vec<Put>,
    written: Vec<Result<(), StoreError>>,
}

#[derive(Debug)]
struct Put {
    space: u8,
    name: Range<usize>,
    value: Range<usize>,
}

impl Joint {
    /// Which command they are, for the counts.
    ///
    /// # Panics
    /// Never: there is such a command.
    #[must_use]
    pub fn command() -> &'static Command {
        let set = Command::find(b"SET").expect("SET is a command");
        debug_assert_eq!(set.id, Id::Set);
        set
    }

    /// Has the store write all of them.
    ///
    /// # Panics
    /// The store does not answer for each of them.
    pub fn write<S: Store>(&mut self, store: &mut S, shared: &Shared) {
        let put = |put: &Put| {
            let key = Key { space: put.space, name: &self.bytes[put.name.clone()] };
            (key, &self.bytes[put.value.clone()])
        };
        let puts: Vec<(Key<'_>, &[u8])> = self.puts.iter().map(put).collect();
        self.written.clear();
        store.put_many(&puts, &mut self.written);
        puts.iter().for_each(|(key, _)| shared.wrote(*key));
        assert_eq!(self.written.len(), puts.len(), "a store answers for each value");
    }

    /// There are none any more.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(64 * 1024);
        self.puts.clear();
        self.written.clear();
    }

    /// Adds those of a run, all or none. `None`: there is no room for them.
    pub(crate) fn add(&mut self, run: &Run<'_>, space: u8) -> Option<Range<usize>> {
        let bytes: usize = run.requests().map(|request| request.word(1).len() + request.word(2).len()).sum();
        if self.puts.len() + run.len() > PUTS_MAX || self.bytes.len() + bytes > BYTES_MAX {
            return None;
        }
        let first = self.puts.len();
        for request in run.requests() {
            let start = self.bytes.len();
            self.bytes.extend_from_slice(request.word(1));
            let middle = self.bytes.len();
            Head::new(Kind::String).emit(&mut self.bytes);
            self.bytes.extend_from_slice(request.word(2));
            self.puts.push(Put { space, name: start..middle, value: middle..self.bytes.len() });
        }
        Some(first..self.puts.len())
    }

    /// Answers some of them.
    pub(crate) fn answer(
        &self,
        some: Range<usize>,
        session: &mut Session,
        shared: &Shared,
        out: &mut Vec<u8>,
    ) {
        answer_sets(session, Self::command(), self.written[some].iter().cloned(), shared, out);
    }
}
