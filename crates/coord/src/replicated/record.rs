//! What the records of a service's log say. Little-endian.
//!
//! | first byte | record | then |
//! |---|---|---|
//! | 1 | a session begins | how many there may be, `u32` |
//! | 2 | a command | session, number, `u64` each; the command |
//! | 3 | a part of a snapshot | which part, of how many, `u32` each; its bytes |
//!
//! The parts of a snapshot follow each other in the log with nothing in between, and are the state that the records before the first of them
//! lead to. One that has not all of its parts, as its host ended within it, is never what a log begins with: the records
//! before a snapshot are given up only when its last part is acknowledged. The next host appends the parts that it lacks, if they are those of its
//! own state, before anything else; if not, it is passed over.

use remanence_codec::{Malformed, Reader, Writer};

/// Bytes of a snapshot's part besides what it carries.
pub const PART_HEADER: u64 = 9;
/// Bytes of a command's record besides the command.
pub const COMMAND_HEADER: u64 = 17;

/// What a record says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Record<'a> {
    /// A session begins, and there may be so many from here on. Its number is that of the record.
    Open {
        /// How many sessions there may be.
        keep: u32,
    },
    /// A command of a session.
    Command {
        /// Of which session.
        session: u64,
        /// Which of the session.
        number: u64,
        /// What is applied.
        command: &'a [u8],
    },
    /// A part of a snapshot.
    Part {
        /// Which one, from 0.
        part: u32,
        /// Of how many.
        parts: u32,
        /// What it carries of the snapshot.
        bytes: &'a [u8],
    },
}

impl<'a> Record<'a> {
    /// The bytes of the record.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let mut out = Writer::new(usize::MAX);
        match *self {
            Self::Open { keep } => {
                out.u8(1);
                out.u32_le(keep);
            }
            Self::Command { session, number, command } => {
                out.u8(2);
                out.u64_le(session);
                out.u64_le(number);
                out.bytes(command);
            }
            Self::Part { part, parts, bytes } => {
                out.u8(3);
                out.u32_le(part);
                out.u32_le(parts);
                out.bytes(bytes);
            }
        }
        out.finish().expect("it has no limit")
    }

    /// What the bytes say.
    ///
    /// # Errors
    /// They are no record of a service.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        match reader.u8()? {
            1 => {
                let keep = reader.u32_le()?;
                reader.end().map(|()| Self::Open { keep })
            }
            2 => {
                let (session, number) = (reader.u64_le()?, reader.u64_le()?);
                Ok(Self::Command { session, number, command: reader.rest() })
            }
            3 => {
                let (part, parts) = (reader.u32_le()?, reader.u32_le()?);
                if part >= parts {
                    reader.fail()
                } else {
                    Ok(Self::Part { part, parts, bytes: reader.rest() })
                }
            }
            _ => reader.fail(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes are what lies on media: another release reads them.
    #[test]
    fn records_are_these_bytes() {
        let all = [
            (Record::Open { keep: 7 }, &[1, 7, 0, 0, 0][..]),
            (
                Record::Command { session: 2, number: 3, command: b"x" },
                &[2, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, b'x'],
            ),
            (Record::Part { part: 1, parts: 2, bytes: b"y" }, &[3, 1, 0, 0, 0, 2, 0, 0, 0, b'y']),
        ];
        for (record, bytes) in all {
            assert_eq!(record.emit(), bytes);
            assert_eq!(Record::parse(bytes), Ok(record));
        }
        for bytes in [&[][..], &[0], &[1, 7], &[1, 7, 0, 0, 0, 0], &[2, 1], &[3, 2, 0, 0, 0, 2, 0, 0, 0]] {
            assert!(Record::parse(bytes).is_err(), "{bytes:?}");
        }
    }
}
