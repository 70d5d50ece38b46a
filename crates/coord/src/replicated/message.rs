//! What clients ask a host, and what they are answered, in bytes. Little-endian, as all new messages are.

use std::fmt;

use remanence_codec::{Malformed, Reader, Writer};

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

impl Request {
    /// The bytes of the request.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let mut out = Writer::new(usize::MAX);
        match self {
            Self::Open => out.u8(1),
            Self::Command { session, number, command } => {
                out.u8(2);
                out.u64_le(*session);
                out.u64_le(*number);
                out.bytes(command);
            }
        }
        out.finish().expect("it has no limit")
    }

    /// What the bytes say.
    ///
    /// # Errors
    /// They are no request.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        match reader.u8()? {
            1 => reader.end().map(|()| Self::Open),
            2 => {
                let (session, number) = (reader.u64_le()?, reader.u64_le()?);
                Ok(Self::Command { session, number, command: reader.rest().to_vec() })
            }
            _ => reader.fail(),
        }
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
        let mut out = Writer::new(usize::MAX);
        match self {
            Self::Opened(session) => {
                out.u8(1);
                out.u64_le(*session);
            }
            Self::Done(bytes) => {
                out.u8(2);
                out.bytes(bytes);
            }
            Self::Unknown(why) => {
                out.u8(3);
                out.bytes(clipped(why));
            }
            Self::Oversized { len, max } => {
                out.u8(5);
                out.u64_le(*len);
                out.u64_le(*max);
            }
            Self::Refused(refusal) => {
                out.u8(4);
                match refusal {
                    Refusal::Busy => out.u8(1),
                    Refusal::Full => out.u8(2),
                    Refusal::Late => out.u8(3),
                    Refusal::Expired => out.u8(4),
                    Refusal::Stale => out.u8(5),
                    Refusal::TooLong(max) => {
                        out.u8(6);
                        out.u64_le(*max);
                    }
                    Refusal::TooFew(why) => {
                        out.u8(7);
                        out.bytes(clipped(why));
                    }
                    Refusal::Replaced(epoch) => {
                        out.u8(8);
                        out.u64_le(epoch.0);
                    }
                }
            }
        }
        out.finish().expect("it has no limit")
    }

    /// What the bytes say.
    ///
    /// # Errors
    /// They are no answer.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let reply = match reader.u8()? {
            1 => Self::Opened(reader.u64_le()?),
            2 => return Ok(Self::Done(reader.rest().to_vec())),
            3 => return Ok(Self::Unknown(String::from_utf8_lossy(reader.rest()).into_owned())),
            4 => Self::Refused(match reader.u8()? {
                1 => Refusal::Busy,
                2 => Refusal::Full,
                3 => Refusal::Late,
                4 => Refusal::Expired,
                5 => Refusal::Stale,
                6 => Refusal::TooLong(reader.u64_le()?),
                7 => {
                    let why = String::from_utf8_lossy(reader.rest()).into_owned();
                    return Ok(Self::Refused(Refusal::TooFew(why)));
                }
                8 => Refusal::Replaced(Epoch(reader.u64_le()?)),
                _ => return reader.fail(),
            }),
            5 => Self::Oversized { len: reader.u64_le()?, max: reader.u64_le()? },
            _ => return reader.fail(),
        };
        reader.end().map(|()| reply)
    }
}

fn clipped(sentence: &str) -> &[u8] {
    &sentence.as_bytes()[..sentence.floor_char_boundary(SENTENCE)]
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
