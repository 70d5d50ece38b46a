//! A service on the replicas of a group: a [`StateMachine`] whose commands are the values of the log, its clients' sessions, and reads that are in no log.
//!
//! It stands beside a replica's machine, and is handed what that says ([`Action`](super::Action)): whoever drives both passes on what a
//! client asks ([`ask`](Service::ask)), what is [applied](Service::applied), and what is [known](Service::confirmed) or
//! [not](Service::refused) of a token.
//!
//! **Once.** A client has a session, which is an entry of the log, and numbers its commands. The state has the last number of each session and what it was answered
//! ([`sessions`](crate::replicated::sessions)), so that a command that is sent again, to this replica or another one, is applied once. What a replica has
//! applied is decided, so of what it knows to be applied it can tell the answer, whoever leads.
//!
//! **Reads** are answered from the state of a leader that was confirmed behind the question ([`Input::Confirm`](super::Input::Confirm)).

use std::collections::BTreeMap;

use remanence_codec::{Field, Lists, Malformed, Protocol, Reader, Writer, fields};

use super::Refusal;
use crate::replicated::StateMachine;
use crate::replicated::record::{COMMAND_HEADER, Record};
use crate::replicated::sessions::{Known, NotApplied, State};

/// What can be asked of a state without changing it.
pub trait Query: StateMachine {
    /// What a question is answered. One that makes no sense is answered, too.
    fn query(&self, question: &[u8]) -> Vec<u8>;
}

/// What a client asks a replica.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ask {
    /// For a session.
    Open,
    /// To have a command carried out.
    Command {
        /// The session: the index of the entry that has begun it.
        session: u64,
        /// Which command of the session; from 1 on, and higher than all before. The same number asks again for the same command.
        number: u64,
        /// What is to be applied.
        command: Vec<u8>,
    },
    /// What the state says now.
    Query(Vec<u8>),
    /// How the replica is.
    Status,
}

/// What it is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Told {
    /// There is a session of this number, and every replica will know it.
    Opened(u64),
    /// The command was applied once, and this is what came of it; both are durable on a majority. Or what a question is answered.
    Done(Vec<u8>),
    /// This attempt has changed nothing. Another replica leads: [`NOBODY`] if it is not known which.
    Elsewhere(u16),
    /// This attempt has changed nothing, as too many others wait.
    Busy,
    /// A later command of the session was applied.
    Stale,
    /// There is no such session any more. Of a command that was not answered nothing will be known.
    Expired,
    /// A command can have so many bytes at most.
    TooLong(u64),
    /// The command may be applied, or may have been: ask again with the same number.
    Unknown,
    /// How the replica is.
    Status(Status),
}

/// In the place of a replica's number: none.
pub const NOBODY: u16 = u16::MAX;

/// How a replica is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Status {
    /// The number that it has in the group.
    pub me: u16,
    /// How many there are.
    pub replicas: u16,
    /// Whom it takes for the leader, or [`NOBODY`].
    pub leader: u16,
    /// The number under which it leads; 0 if it does not.
    pub term: u64,
    /// The first entry that it has not applied.
    pub applied: u64,
    /// Its snapshot covers all entries below.
    pub snapshot: u64,
    /// Sessions of clients that the state has.
    pub sessions: u32,
    /// Others to which it has both connections.
    pub connected: u16,
}

/// The protocol of replicas with their clients.
enum Smr {}

impl Protocol for Smr {
    const BIG_ENDIAN: bool = false;
}

impl Lists for Smr {
    const WIDE: bool = true;
}

fields! { Smr: enum Ask {
    1 = Open,
    2 = Command { session, number, command },
    3 = Query(question),
    4 = Status,
} }

fields! { Smr: enum Told {
    1 = Opened(session),
    2 = Done(answer),
    3 = Elsewhere(leader),
    4 = Busy,
    5 = Stale,
    6 = Expired,
    7 = TooLong(max),
    8 = Unknown,
    9 = Status(status),
} }

fields!(Smr: Status { me, replicas, leader, term, applied, snapshot, sessions, connected });

fn emit(message: &impl Field<Smr>) -> Vec<u8> {
    let mut out = Writer::new(usize::MAX);
    message.emit(&mut out);
    out.finish().expect("it has no limit")
}

fn parse<T: Field<Smr>>(bytes: &[u8]) -> Result<T, Malformed> {
    let mut reader = Reader::new(bytes);
    let message = T::parse(&mut reader)?;
    reader.end().map(|()| message)
}

impl Ask {
    /// The bytes of what is asked.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        emit(self)
    }

    /// What the bytes ask.
    ///
    /// # Errors
    /// Nothing that can be asked.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        parse(bytes)
    }
}

impl Told {
    /// The bytes of what is told.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        emit(self)
    }

    /// What the bytes tell.
    ///
    /// # Errors
    /// Nothing that a replica tells.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        parse(bytes)
    }
}

/// What is to be done about what a client asks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// It is told this at once.
    Tell(Told),
    /// This is to be a value of the log, with the token.
    Propose(Vec<u8>),
    /// That the state can be read is to be confirmed for the token.
    Confirm,
}

/// What waits for its token.
#[derive(Debug)]
enum Waits {
    Session,
    Command { session: u64, number: u64 },
    Question(Vec<u8>),
}

/// A service on one replica.
#[derive(Debug)]
pub struct Service<S> {
    state: State<S>,
    /// Sessions that there may be.
    sessions: u32,
    waits: BTreeMap<u64, Waits>,
}

impl<S: Query> Service<S> {
    /// Before the first entry. A session that begins takes the place of the one that has been silent for the most entries, where there are so many.
    #[must_use]
    pub fn new(sessions: u32) -> Self {
        Self { state: State::at(0), sessions, waits: BTreeMap::new() }
    }

    /// The state, with the sessions.
    #[must_use]
    pub const fn state(&self) -> &State<S> {
        &self.state
    }

    /// A client asks, and is to be told with this token. How the replica is, this does not know.
    pub fn ask(&mut self, token: u64, ask: Ask) -> Step {
        let (waits, step) = match ask {
            Ask::Open => (Waits::Session, Step::Propose(Record::Open { keep: self.sessions }.emit())),
            Ask::Command { session, number, command } => {
                match self.state.look(session, number) {
                    Known::Done(_, answer) => return Step::Tell(Told::Done(answer.to_vec())),
                    Known::Stale => return Step::Tell(Told::Stale),
                    // Who leads may know a session that has not come here yet.
                    Known::New | Known::Expired => {}
                }
                let record = Record::Command { session, number, command: &command };
                (Waits::Command { session, number }, Step::Propose(record.emit()))
            }
            Ask::Query(question) => (Waits::Question(question), Step::Confirm),
            Ask::Status => return Step::Tell(Told::Unknown),
        };
        self.waits.insert(token, waits);
        step
    }

    /// An entry is applied. What the one who waits for it is told.
    ///
    /// # Errors
    /// The entry is none of this service, or the service has panicked: nothing more can be applied here.
    pub fn applied(
        &mut self,
        index: u64,
        value: Option<&[u8]>,
        token: Option<u64>,
    ) -> Result<Option<Told>, NotApplied> {
        if let Some(value) = value {
            self.state.apply(index, value)?;
        }
        let told = match token.and_then(|token| self.waits.remove(&token)) {
            Some(Waits::Session) => Told::Opened(index),
            Some(Waits::Command { session, number }) => match self.state.look(session, number) {
                Known::Done(_, answer) => Told::Done(answer.to_vec()),
                Known::Stale => Told::Stale,
                Known::New | Known::Expired => Told::Expired,
            },
            Some(Waits::Question(_)) | None => return Ok(None),
        };
        Ok(Some(told))
    }

    /// The state can be read for this token.
    pub fn confirmed(&mut self, token: u64) -> Option<Told> {
        match self.waits.remove(&token)? {
            Waits::Question(question) => Some(Told::Done(self.state.machine().query(&question))),
            Waits::Session | Waits::Command { .. } => None,
        }
    }

    /// Nothing was proposed for this token, or not confirmed. A value can have so many bytes.
    pub fn refused(&mut self, token: u64, why: Refusal, value_max: usize) -> Option<Told> {
        self.waits.remove(&token)?;
        Some(match why {
            Refusal::Elsewhere { leader } => Told::Elsewhere(leader.map_or(NOBODY, |leader| leader as u16)),
            Refusal::Busy => Told::Busy,
            Refusal::TooLong => Told::TooLong((value_max as u64).saturating_sub(COMMAND_HEADER)),
        })
    }

    /// Nothing is known of what was proposed for this token.
    pub fn forgotten(&mut self, token: u64) -> Option<Told> {
        self.waits.remove(&token).map(|_| Told::Unknown)
    }

    /// All of the state as bytes.
    #[must_use]
    pub fn snapshot(&self) -> Vec<u8> {
        self.state.snapshot()
    }

    /// The state is that of a snapshot now.
    ///
    /// # Errors
    /// It is no snapshot of this service.
    pub fn restore(&mut self, snapshot: &[u8]) -> Result<(), Malformed> {
        self.state = State::restore(snapshot)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replicated::sessions::tests::Sum;

    impl Query for Sum {
        fn query(&self, question: &[u8]) -> Vec<u8> {
            [question, &self.snapshot()].concat()
        }
    }

    fn answer(sum: u64) -> Told {
        Told::Done(sum.to_le_bytes().to_vec())
    }

    /// A service with a session, and the command of it that adds so much.
    fn opened() -> (Service<Sum>, impl Fn(u64, u8) -> Ask) {
        let mut service = Service::<Sum>::new(2);
        let Step::Propose(value) = service.ask(1, Ask::Open) else { panic!("it is proposed") };
        assert_eq!(service.applied(7, Some(&value), Some(1)), Ok(Some(Told::Opened(7))));
        (service, |number, add| Ask::Command { session: 7, number, command: vec![add] })
    }

    #[test]
    fn a_command_that_is_asked_for_twice_is_applied_once_and_answered_twice() {
        let (mut service, add) = opened();
        // It was sent again before the first attempt was decided: both are in the log.
        let values = [2, 3].map(|token| match service.ask(token, add(1, 5)) {
            Step::Propose(value) => value,
            other => panic!("{other:?}"),
        });
        assert_eq!(service.applied(8, Some(&values[0]), Some(2)), Ok(Some(answer(5))));
        assert_eq!(service.applied(9, Some(&values[1]), Some(3)), Ok(Some(answer(5))));
        assert_eq!(service.ask(4, add(1, 5)), Step::Tell(answer(5)), "and is known from then on");
        assert_eq!(service.state().machine(), &Sum(5));
        let Step::Propose(value) = service.ask(5, add(2, 1)) else { panic!("it is new") };
        assert_eq!(service.applied(10, Some(&value), Some(5)), Ok(Some(answer(6))));
        assert_eq!(service.ask(6, add(1, 5)), Step::Tell(Told::Stale));
        assert_eq!(service.applied(11, None, None), Ok(None), "a hole says nothing");
    }

    #[test]
    fn a_session_that_is_not_known_here_is_asked_for_in_the_log() {
        let mut service = Service::<Sum>::new(2);
        let ask = Ask::Command { session: 3, number: 1, command: vec![1] };
        let Step::Propose(value) = service.ask(1, ask) else { panic!("it may be known to others") };
        assert_eq!(service.applied(9, Some(&value), Some(1)), Ok(Some(Told::Expired)));
        assert_eq!(service.state().machine(), &Sum(0));
    }

    #[test]
    fn a_question_is_answered_when_it_may_be_and_changes_nothing() {
        let (mut service, _) = opened();
        assert_eq!(service.ask(2, Ask::Query(b"?".to_vec())), Step::Confirm);
        assert_eq!(service.confirmed(9), None);
        assert_eq!(service.confirmed(2), Some(Told::Done(b"?\0\0\0\0\0\0\0\0".to_vec())));
        assert_eq!(service.confirmed(2), None, "once");
        assert_eq!(service.ask(3, Ask::Query(Vec::new())), Step::Confirm);
        let why = Refusal::Elsewhere { leader: Some(2) };
        assert_eq!(service.refused(3, why, 100), Some(Told::Elsewhere(2)));
        assert_eq!(service.refused(3, why, 100), None);
    }

    #[test]
    fn what_became_of_a_token_is_told_once() {
        let (mut service, add) = opened();
        let mut asks = |token| service.ask(token, add(1, 5));
        (2..5).for_each(|token| assert!(matches!(asks(token), Step::Propose(_))));
        assert_eq!(service.forgotten(2), Some(Told::Unknown));
        assert_eq!(service.forgotten(2), None);
        assert_eq!(service.refused(3, Refusal::Busy, 100), Some(Told::Busy));
        assert_eq!(service.refused(4, Refusal::TooLong, 100), Some(Told::TooLong(83)));
        assert_eq!(
            service.refused(4, Refusal::Elsewhere { leader: None }, 100),
            None,
            "what is told once is not told again"
        );
    }

    #[test]
    fn a_snapshot_has_the_sessions() {
        let (mut service, add) = opened();
        let Step::Propose(value) = service.ask(2, add(1, 5)) else { panic!("it is new") };
        let _ = service.applied(8, Some(&value), Some(2));
        let mut other = Service::<Sum>::new(2);
        assert_eq!(other.restore(&service.snapshot()), Ok(()));
        assert_eq!(other.ask(1, add(1, 5)), Step::Tell(answer(5)));
        assert!(other.restore(b"no snapshot").is_err());
    }

    #[test]
    fn what_was_said_is_read_and_nothing_else_is() {
        let command = Ask::Command { session: 7, number: 3, command: b"add".to_vec() };
        for ask in [Ask::Open, command, Ask::Query(b"q".to_vec()), Ask::Status] {
            assert_eq!(Ask::parse(&ask.emit()), Ok(ask));
        }
        let status = Status {
            me: 1,
            replicas: 3,
            leader: NOBODY,
            term: 1 << 16,
            applied: 5,
            snapshot: 4,
            sessions: 2,
            connected: 1,
        };
        let told = [Told::Opened(5), Told::Done(vec![1, 2]), Told::Elsewhere(2), Told::Busy, Told::Stale];
        let more = [Told::Expired, Told::TooLong(9), Told::Unknown, Told::Status(status)];
        for told in told.into_iter().chain(more) {
            assert_eq!(Told::parse(&told.emit()), Ok(told));
        }
        for bytes in [&[][..], &[9], &[1, 0], &[2, 0, 0], &[3, 9, 0, 0, 0]] {
            assert!(Ask::parse(bytes).is_err(), "{bytes:?}");
        }
        for bytes in [&[][..], &[12], &[1, 0], &[4, 1]] {
            assert!(Told::parse(bytes).is_err(), "{bytes:?}");
        }
    }
}
