//! The state of a service with its sessions: a function of the records of its log, in their order.
//!
//! A session is a client, and has one command after the other. The state has the number of the last one and what was answered, so a command
//! that comes again is answered and not applied. Their number is bounded: the one whose last record is oldest goes, which
//! the log decides and no clock, so that all hosts agree. Who comes with a session that is gone is told so, and nothing is applied: it
//! may be that the command was.

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};

use remanence_codec::{Malformed, Reader, Writer};

use super::StateMachine;
use super::record::Record;

/// The first bytes of a snapshot.
const VERSION: u32 = 1;
/// Bytes of a session in a snapshot at least.
const SESSION: usize = 28;

/// A client, as the state knows it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Session {
    /// The number of its last command; 0: none yet.
    number: u64,
    /// The record of that, or the one that has begun the session.
    record: u64,
    reply: Vec<u8>,
}

/// What is known of a command before it is appended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Known<'a> {
    /// It is new.
    New,
    /// It was applied by this record, with this answer.
    Done(u64, &'a [u8]),
    /// A later one was applied.
    Stale,
    /// There is no such session.
    Expired,
}

/// Why a record is not applied.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NotApplied {
    /// It is not a record of this service, or not one that can be here.
    #[error("is not one of this service: {0}")]
    Malformed(#[from] Malformed),
    /// [`StateMachine::apply`] has panicked.
    #[error(
        "cannot be carried out: the service panicked at command {number} of session {session} ({why}); nothing that was answered is lost, \
         and a host goes on whose release carries that command out"
    )]
    Panicked {
        /// The session whose command it is.
        session: u64,
        /// Which of its commands.
        number: u64,
        /// What the panic said.
        why: String,
    },
}

/// What a panic said.
fn said(panic: &(dyn Any + Send)) -> String {
    let text =
        panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("it gave no reason").to_owned()
}

/// The state of a service: that of its machine, and its sessions.
#[derive(Debug, Default)]
pub struct State<S> {
    machine: S,
    sessions: BTreeMap<u64, Session>,
    /// The parts of a snapshot that have been read, if it is not whole yet and nothing else is there.
    parts: Vec<u8>,
    /// Which part comes next, and of how many; none if there is a state.
    missing: Option<(u32, Option<u32>)>,
    /// The snapshot that is being passed over, and the last one that was whole: its first record, and one more than its last.
    passing: Option<Passed>,
    passed: Option<(u64, u64)>,
}

/// A snapshot that the log has, as far as it was read.
#[derive(Debug)]
struct Passed {
    first: u64,
    there: u32,
    parts: u32,
    bytes: Vec<u8>,
}

/// A snapshot in parts of so many bytes at most.
pub(super) fn parts(snapshot: &[u8], len: usize) -> VecDeque<Vec<u8>> {
    let parts = snapshot.len().div_ceil(len) as u32;
    let emit = |(part, bytes): (u32, &[u8])| Record::Part { part, parts, bytes }.emit();
    (0..).zip(snapshot.chunks(len)).map(emit).collect()
}

impl<S: StateMachine> State<S> {
    /// The state at the beginning of a log whose first record has this number: that of a log with all of its records is known, and any other
    /// begins with a snapshot.
    #[must_use]
    pub fn at(first: u64) -> Self {
        Self { missing: (first > 0).then_some((0, None)), ..Self::default() }
    }

    /// What the machine has.
    #[must_use]
    pub const fn machine(&self) -> &S {
        &self.machine
    }

    /// How many sessions there are.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// Whether all is known that is needed: not within the snapshot that a log begins with.
    #[must_use]
    pub const fn is_whole(&self) -> bool {
        self.missing.is_none()
    }

    /// The records of the last whole snapshot behind the one that the log begins with: the first, and one more than the last.
    #[must_use]
    pub const fn last_snapshot(&self) -> Option<(u64, u64)> {
        self.passed
    }

    /// If the log ends within a snapshot of this state: the first record of that, one more than its last, and the parts that it lacks. Whoever
    /// appends them makes it whole. To begin anew each time would fill the log where hosts end within their snapshots again and again.
    pub fn take_unfinished(&mut self) -> Option<(u64, u64, VecDeque<Vec<u8>>)> {
        let Passed { first, there, parts: of, bytes } = self.passing.take()?;
        let snapshot = self.snapshot();
        // All but the last part are of one length.
        let len = bytes.len() / there as usize;
        if len == 0 || !snapshot.starts_with(&bytes) {
            return None;
        }
        let mut missing = parts(&snapshot, len);
        let is_of_it = missing.len() == of as usize && bytes.len() == len * there as usize;
        missing.drain(..(there as usize).min(missing.len()));
        is_of_it.then_some((first, first + u64::from(there), missing))
    }

    /// Whether the command is to be appended.
    #[must_use]
    pub fn look(&self, session: u64, number: u64) -> Known<'_> {
        match self.sessions.get(&session) {
            None => Known::Expired,
            Some(known) if number > known.number => Known::New,
            Some(known) if number == known.number && number > 0 => Known::Done(known.record, &known.reply),
            Some(_) => Known::Stale,
        }
    }

    /// Applies the record with this number.
    ///
    /// # Errors
    /// It is not a record of this service, or not one that can be here. Or the service has panicked: what it had is of no use any more.
    pub fn apply(&mut self, at: u64, record: &[u8]) -> Result<(), NotApplied> {
        let record = Record::parse(record)?;
        if !matches!(record, Record::Part { .. }) {
            self.passing = None;
        }
        match (self.missing, record) {
            (Some(expected), Record::Part { part, parts, bytes }) => {
                Ok(self.put_together(expected, part, parts, bytes)?)
            }
            (Some(_), _) => Err(Malformed { at: 0 }.into()),
            // What it says is known.
            (None, Record::Part { part, parts, bytes }) => {
                self.pass(at, part, parts, bytes);
                Ok(())
            }
            (None, Record::Open { keep }) => {
                self.sessions.insert(at, Session { record: at, ..Session::default() });
                while self.sessions.len() > keep.max(1) as usize {
                    let oldest = self.sessions.iter().min_by_key(|(_, session)| session.record);
                    let oldest = *oldest.expect("there are several").0;
                    self.sessions.remove(&oldest);
                }
                Ok(())
            }
            (None, Record::Command { session, number, command }) => {
                if self.look(session, number) == Known::New {
                    let reply = catch_unwind(AssertUnwindSafe(|| self.machine.apply(command)))
                        .map_err(|why| NotApplied::Panicked { session, number, why: said(&*why) })?;
                    self.sessions.insert(session, Session { number, record: at, reply });
                }
                Ok(())
            }
        }
    }

    fn pass(&mut self, at: u64, part: u32, parts: u32, bytes: &[u8]) {
        let follows = |passing: &Passed| {
            passing.first + u64::from(passing.there) == at && (passing.there, passing.parts) == (part, parts)
        };
        let begun = self.passing.take().filter(follows);
        let anew = || (part == 0).then(|| Passed { first: at, there: 0, parts, bytes: Vec::new() });
        let Some(mut passing) = begun.or_else(anew) else { return };
        passing.there += 1;
        passing.bytes.extend_from_slice(bytes);
        if passing.there == parts {
            self.passed = Some((passing.first, at + 1));
        } else {
            self.passing = Some(passing);
        }
    }

    fn put_together(
        &mut self,
        (expected, of): (u32, Option<u32>),
        part: u32,
        parts: u32,
        bytes: &[u8],
    ) -> Result<(), Malformed> {
        if part != expected || of.is_some_and(|of| of != parts) {
            return Err(Malformed { at: 1 });
        }
        self.parts.extend_from_slice(bytes);
        self.missing = Some((part + 1, Some(parts)));
        if part + 1 == parts {
            *self = Self::restore(&std::mem::take(&mut self.parts))?;
        }
        Ok(())
    }

    /// All of it as bytes.
    #[must_use]
    pub fn snapshot(&self) -> Vec<u8> {
        let mut out = Writer::new(usize::MAX);
        out.u32_le(VERSION);
        out.u32_le(self.sessions.len() as u32);
        for (id, session) in &self.sessions {
            out.u64_le(*id);
            out.u64_le(session.number);
            out.u64_le(session.record);
            out.u32_le(session.reply.len() as u32);
            out.bytes(&session.reply);
        }
        out.bytes(&self.machine.snapshot());
        out.finish().expect("it has no limit")
    }

    /// The state that a [snapshot](Self::snapshot) is of.
    ///
    /// # Errors
    /// The bytes are no snapshot of this service.
    pub fn restore(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        if reader.u32_le()? != VERSION {
            return reader.fail();
        }
        let count = reader.u32_le()? as usize;
        let sessions = reader.many(count, SESSION, |reader| {
            let (id, number, record) = (reader.u64_le()?, reader.u64_le()?, reader.u64_le()?);
            let len = reader.u32_le()? as usize;
            Ok((id, Session { number, record, reply: reader.take(len)?.to_vec() }))
        })?;
        let machine = S::restore(reader.rest())?;
        Ok(Self { machine, sessions: sessions.into_iter().collect(), ..Self::default() })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A sum, to which each command adds its first byte.
    #[derive(Default, PartialEq, Eq, Debug)]
    pub(crate) struct Sum(pub(crate) u64);

    impl StateMachine for Sum {
        fn apply(&mut self, command: &[u8]) -> Vec<u8> {
            self.0 += u64::from(command[0]);
            self.snapshot()
        }

        fn snapshot(&self) -> Vec<u8> {
            self.0.to_le_bytes().to_vec()
        }

        fn restore(snapshot: &[u8]) -> Result<Self, Malformed> {
            Reader::new(snapshot).u64_le().map(Self)
        }
    }

    fn apply(state: &mut State<Sum>, at: u64, record: Record<'_>) {
        state.apply(at, &record.emit()).expect("it is one");
    }

    fn add(session: u64, number: u64, command: &[u8]) -> Record<'_> {
        Record::Command { session, number, command }
    }

    #[test]
    fn a_command_that_comes_again_is_answered_and_not_applied() {
        let mut state = State::<Sum>::at(0);
        apply(&mut state, 0, Record::Open { keep: 2 });
        assert_eq!(state.look(0, 1), Known::New);
        apply(&mut state, 1, add(0, 1, &[5]));
        apply(&mut state, 2, add(0, 1, &[5]));
        assert_eq!(state.machine(), &Sum(5));
        assert_eq!(state.look(0, 1), Known::Done(1, &5_u64.to_le_bytes()));
        apply(&mut state, 3, add(0, 4, &[1]));
        assert_eq!(
            (state.look(0, 1), state.look(0, 0), state.look(0, 5)),
            (Known::Stale, Known::Stale, Known::New)
        );
        assert_eq!((state.look(9, 1), state.machine()), (Known::Expired, &Sum(6)));
        apply(&mut state, 4, add(9, 1, &[1]));
        assert_eq!((state.machine(), state.sessions()), (&Sum(6), 1));
    }

    #[test]
    fn the_session_that_was_silent_for_longest_goes() {
        let mut state = State::<Sum>::at(0);
        apply(&mut state, 0, Record::Open { keep: 2 });
        apply(&mut state, 1, Record::Open { keep: 2 });
        apply(&mut state, 2, add(0, 1, &[1]));
        apply(&mut state, 3, Record::Open { keep: 2 });
        assert_eq!(
            (state.look(1, 1), state.look(0, 2), state.look(3, 1)),
            (Known::Expired, Known::New, Known::New)
        );
        apply(&mut state, 4, Record::Open { keep: 0 });
        assert_eq!((state.sessions(), state.look(4, 1)), (1, Known::New));
    }

    #[test]
    fn a_snapshot_with_which_the_log_ends_is_known_as_far_as_it_is_there() {
        let mut state = State::<Sum>::at(0);
        apply(&mut state, 0, Record::Open { keep: 2 });
        apply(&mut state, 1, add(0, 1, &[5]));
        let bytes = state.snapshot();
        let records = Vec::from(parts(&bytes, 10));
        assert!(records.len() > 3 && !bytes.len().is_multiple_of(10));
        let appended = |state: &mut State<Sum>, records: &[Vec<u8>]| {
            for (at, record) in (2..).zip(records) {
                state.apply(at, record).expect("it is one");
            }
        };
        for there in 1..records.len() {
            appended(&mut state, &records[..there]);
            let missing = records.iter().skip(there).cloned().collect();
            assert_eq!(state.take_unfinished(), Some((2, 2 + there as u64, missing)));
            assert_eq!(state.take_unfinished(), None);
        }
        // One of something else, and one behind which something was done.
        let mut other = bytes.clone();
        other[15] ^= 1;
        appended(&mut state, &[parts(&other, 10)[0].clone(), parts(&other, 10)[1].clone()]);
        assert_eq!(state.take_unfinished(), None);
        appended(&mut state, &[records[0].clone()]);
        apply(&mut state, 3, add(0, 2, &[5]));
        assert_eq!(state.take_unfinished(), None);
    }

    #[test]
    fn a_log_begins_with_a_whole_snapshot_and_passes_others_over() {
        let mut state = State::<Sum>::at(0);
        apply(&mut state, 0, Record::Open { keep: 2 });
        apply(&mut state, 1, add(0, 1, &[5]));
        let bytes = state.snapshot();
        let (one, two) = bytes.split_at(10);
        apply(&mut state, 2, Record::Part { part: 0, parts: 2, bytes: one });
        assert!(state.is_whole() && state.last_snapshot().is_none());
        apply(&mut state, 3, Record::Part { part: 0, parts: 2, bytes: one });
        apply(&mut state, 4, Record::Part { part: 1, parts: 2, bytes: two });
        assert_eq!(state.last_snapshot(), Some((3, 5)));
        apply(&mut state, 5, Record::Part { part: 0, parts: 2, bytes: one });
        apply(&mut state, 6, add(0, 1, &[5]));
        apply(&mut state, 7, Record::Part { part: 1, parts: 2, bytes: two });
        assert_eq!(state.last_snapshot(), Some((3, 5)), "the rest of it does not follow");
        let mut later = State::<Sum>::at(2);
        assert!(!later.is_whole());
        apply(&mut later, 2, Record::Part { part: 0, parts: 2, bytes: one });
        assert!(later.apply(3, &add(0, 2, &[1]).emit()).is_err(), "half a snapshot is no state");
        assert!(later.apply(3, &Record::Part { part: 0, parts: 2, bytes: two }.emit()).is_err());
        apply(&mut later, 3, Record::Part { part: 1, parts: 2, bytes: two });
        assert!(later.is_whole());
        assert_eq!((later.machine(), later.look(0, 1)), (&Sum(5), Known::Done(1, &5_u64.to_le_bytes()[..])));
        assert!(State::<Sum>::at(2).apply(2, &add(0, 1, &[1]).emit()).is_err());
        assert!(State::<Sum>::restore(&bytes[..20]).is_err());
    }
}
