//! What clients ask a host, and what they are answered, in bytes. Little-endian, as all new messages are.

use std::fmt;

use remanence_codec::{Field, Malformed, Protocol, Reader, Writer, clipped, fields};

use crate::log::Epoch;

/// Bytes of a sentence in a message, at most.
const SENTENCE: usize = 800;

/// What a client asks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// For a session.
    Open,
    /// To have a command carried out.
    Command {
        /// The session, which is the number of the record that has begun it.
        session: u64,
        /// Which command of the session; from 1 on, and higher than all before. The same number asks again for the same command.
        number: u64,
        /// What is to be applied.
        command: Vec<u8>,
    },
}

/// What a client is answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// There is a session of this number, and every later host knows it.
    Opened(u64),
    /// The command was applied once, and this is what came of it; both are durable.
    Done(Vec<u8>),
    /// What was asked just now has changed nothing, and will not. An earlier attempt with the same number may have.
    Refused(Refusal),
    /// The command may have been applied, or may still be: ask again with the same number. A sentence that says why.
    Unknown(String),
    /// The command was applied once, and is durable; but its answer does not fit into a message.
    Oversized {
        /// Bytes of the answer.
        len: u64,
        /// Bytes that an answer can have here.
        max: u64,
    },
}

/// Why nothing was done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// Too many commands wait already.
    Busy,
    /// The servers' logs have no room for it.
    Full,
    /// It could not be begun in its time.
    Late,
    /// There is no such session any more: others have taken its place. Of a command that was not answered nothing will be known.
    Expired,
    /// A later command of the session was applied already.
    Stale,
    /// No record of the log can be that long, or no message to the host: bytes that a command can have at most.
    TooLong(u64),
    /// Too few servers are there. A sentence.
    TooFew(String),
    /// Another host has taken over, with this epoch: ask that one.
    Replaced(Epoch),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy => write!(f, "too many commands wait; ask again later"),
            Self::Full => {
                write!(f, "the log of too many servers is full; serve larger logs, or send less at a time")
            }
            Self::Late => write!(f, "the command could not be begun in its time; ask again"),
            Self::Expired => {
                write!(f, "the session has ended, as too many others were begun since; open a new one")
            }
            Self::Stale => write!(f, "a later command of this session was carried out already"),
            Self::TooLong(max) => {
                write!(
                    f,
                    "a command can have {max} bytes at most here; serve logs with longer segments, or hosts with longer messages"
                )
            }
            Self::TooFew(why) => write!(f, "nothing can be made durable now: {why}"),
            Self::Replaced(epoch) => write!(f, "another host has taken over (epoch {epoch}); ask that one"),
        }
    }
}

/// The protocol of a host, for the tables of its messages.
enum Host {}

impl Protocol for Host {
    const BIG_ENDIAN: bool = false;
}

fields! { Host: enum Request {
    1 = Open,
    2 = Command { session, number, command },
} }

fields! { Host: enum Reply {
    1 = Opened(session),
    2 = Done(answer),
    3 = Unknown(why),
    4 = Refused(refusal),
    5 = Oversized { len, max },
} }

fields! { Host: enum Refusal {
    1 = Busy,
    2 = Full,
    3 = Late,
    4 = Expired,
    5 = Stale,
    6 = TooLong(max),
    7 = TooFew(why),
    8 = Replaced(epoch),
} }

fields!(Host: Epoch { 0 });

/// Bytes are the last of a message.
impl Field<Host> for Vec<u8> {
    fn emit(&self, to: &mut Writer) {
        to.bytes(self);
    }

    fn parse(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        from.take(from.rest().len()).map(<[u8]>::to_vec)
    }
}

/// And so is a sentence, which is cut if it is too long.
impl Field<Host> for String {
    fn emit(&self, to: &mut Writer) {
        to.bytes(clipped(self, SENTENCE).as_bytes());
    }

    fn parse(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self::from_utf8_lossy(from.take(from.rest().len())?).into_owned())
    }
}

/// The bytes of a message.
fn emit(message: &impl Field<Host>) -> Vec<u8> {
    let mut out = Writer::new(usize::MAX);
    message.emit(&mut out);
    out.finish().expect("it has no limit")
}

/// All of the bytes of a message.
fn parse<T: Field<Host>>(bytes: &[u8]) -> Result<T, Malformed> {
    let mut reader = Reader::new(bytes);
    let message = T::parse(&mut reader)?;
    reader.end().map(|()| message)
}

impl Request {
    /// The bytes of the request.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        emit(self)
    }

    /// What the bytes say.
    ///
    /// # Errors
    /// They are no request.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        parse(bytes)
    }
}

impl Reply {
    /// The bytes of the answer, of which there are so many at most.
    #[must_use]
    pub fn emit_within(&self, max: usize) -> Vec<u8> {
        match self {
            Self::Done(answer) if answer.len() >= max => {
                let (len, max) = (answer.len() as u64, max.saturating_sub(1) as u64);
                Self::Oversized { len, max }.emit()
            }
            reply => reply.emit(),
        }
    }

    /// The bytes of the answer. A sentence that is too long is cut.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        emit(self)
    }

    /// What the bytes say.
    ///
    /// # Errors
    /// They are no answer.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        parse(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_nothing_else_is() {
        let command = Request::Command { session: 7, number: 3, command: b"add".to_vec() };
        for request in [Request::Open, command] {
            assert_eq!(Request::parse(&request.emit()), Ok(request));
        }
        let refusals = [
            Refusal::Busy,
            Refusal::Full,
            Refusal::Late,
            Refusal::Expired,
            Refusal::Stale,
            Refusal::TooLong(9),
            Refusal::TooFew("one is away".into()),
            Refusal::Replaced(Epoch::new(4, 2)),
        ];
        let oversized = Reply::Oversized { len: 5000, max: 4071 };
        let others = [Reply::Opened(5), Reply::Done(vec![1, 2]), Reply::Unknown("why".into()), oversized];
        for reply in refusals.map(Reply::Refused).into_iter().chain(others) {
            assert_eq!(Reply::parse(&reply.emit()), Ok(reply));
        }
        for bytes in [&[][..], &[9], &[1, 0], &[2, 0, 0], &[4], &[4, 9]] {
            assert!(Request::parse(bytes).is_err(), "{bytes:?}");
        }
        for bytes in [&[][..], &[9], &[1, 0], &[4], &[4, 9], &[4, 1, 0]] {
            assert!(Reply::parse(bytes).is_err(), "{bytes:?}");
        }
        let answer = Reply::Done(vec![7; 99]);
        assert_eq!(answer.emit_within(100), answer.emit());
        assert_eq!(answer.emit_within(99), Reply::Oversized { len: 99, max: 98 }.emit());
        let long = Reply::Unknown("ä".repeat(1000));
        assert!(long.emit().len() <= SENTENCE + 1);
    }
}
