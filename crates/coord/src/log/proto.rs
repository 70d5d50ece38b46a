//! What clients ask of a server besides reading and writing its region, and what it answers. Little-endian.
//!
//! Appends need none of it. Every answer that is no refusal is the log's status after what was asked was done.

use remanence_codec::{Malformed, Reader, printable};

use crate::log::error::{Damage, Fault, Proof, Refused};
use crate::log::format::record::HEADER_LEN;
use crate::log::format::root::{ROOT_LEN, State};
use crate::log::format::superblock::{Superblock, Uuid};
use crate::log::format::{Cursor, Epoch, u32_at, u64_at};
use crate::log::store::{Run, Status};

/// The most stretches of records that are told; older ones are left out, which costs a rebuild at worst.
pub const RUNS_MAX: usize = 32;
/// The most bytes that a request has.
pub const REQUEST_MAX: usize = 64;
/// Bytes of the superblock that mean something.
const SUPERBLOCK: usize = 64;

/// What a client asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    /// Asks how the log is.
    Status,
    /// Asks to be the log's only writer.
    Grant {
        /// The epoch of the new writer.
        epoch: Epoch,
    },
    /// Asks to cut off the records from that number on.
    Truncate {
        /// The epoch of the writer that asks, to which the log must be promised.
        epoch: Epoch,
        /// The first record that goes.
        sequence: u64,
    },
    /// Asks to empty the log, and to go on with that number.
    Reset {
        /// The epoch of the writer that asks, to which the log must be promised.
        epoch: Epoch,
        /// The number of the next record.
        sequence: u64,
        /// The epoch of the record before that number, which the server does not have.
        after: Epoch,
    },
    /// Asks to take the log as it is for the one that the group has chosen.
    Adopt {
        /// The epoch of the writer that asks, to which the log must be promised.
        epoch: Epoch,
        /// The number of the next record.
        sequence: u64,
        /// The UUID of the group that the log belongs to from now on.
        group: Uuid,
        /// How many servers the group has.
        members: u16,
        /// How many of them must have a record before it is acknowledged.
        acks: u16,
    },
    /// Asks to give up the records below that number.
    Trim {
        /// The first record that stays.
        below: u64,
    },
    /// Asks to remember that the records below that number were acknowledged.
    Known {
        /// The epoch of the writer that asks, to which the log must be promised.
        epoch: Epoch,
        /// One more than the number of the last record that was acknowledged.
        below: u64,
    },
}

impl Request {
    /// The bytes of the request, to be sent.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let (tag, words): (u8, Vec<u64>) = match *self {
            Self::Status => (0, vec![]),
            Self::Grant { epoch } => (1, vec![epoch.0]),
            Self::Truncate { epoch, sequence } => (2, vec![epoch.0, sequence]),
            Self::Reset { epoch, sequence, after } => (3, vec![epoch.0, sequence, after.0]),
            Self::Adopt { epoch, sequence, group, members, acks } => {
                let half = |n| u64::from_le_bytes(group.0[n..n + 8].try_into().expect("eight bytes"));
                let numbers = u64::from(members) << 16 | u64::from(acks);
                (4, vec![epoch.0, sequence, half(0), half(8), numbers])
            }
            Self::Trim { below } => (5, vec![below]),
            Self::Known { epoch, below } => (6, vec![epoch.0, below]),
        };
        let mut out = vec![tag];
        words.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
        out
    }

    /// Reads the bytes of a request.
    ///
    /// # Errors
    /// They are no request of this protocol.
    pub fn parse(bytes: &[u8]) -> Result<Self, Refused> {
        let mut from = Reader::new(bytes);
        let request = Self::parse_from(&mut from).and_then(|request| from.end().map(|()| request));
        request.map_err(|_| {
            Refused::Nonsense(format!(
                "{} bytes, beginning {:02x?}",
                bytes.len(),
                &bytes[..bytes.len().min(4)]
            ))
        })
    }

    fn parse_from(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let tag = from.u8()?;
        let mut word = || from.u64_le();
        Ok(match tag {
            0 => Self::Status,
            1 => Self::Grant { epoch: Epoch(word()?) },
            2 => Self::Truncate { epoch: Epoch(word()?), sequence: word()? },
            3 => {
                let (epoch, sequence, after) = (Epoch(word()?), word()?, Epoch(word()?));
                if sequence >= 1 << 62 {
                    return from.fail();
                }
                Self::Reset { epoch, sequence, after }
            }
            4 => {
                let (epoch, sequence) = (Epoch(word()?), word()?);
                let (group, numbers) = (Uuid(from.array()?), from.u64_le()?);
                if numbers >> 32 != 0 {
                    return from.fail();
                }
                Self::Adopt { epoch, sequence, group, members: (numbers >> 16) as u16, acks: numbers as u16 }
            }
            5 => Self::Trim { below: word()? },
            6 => Self::Known { epoch: Epoch(word()?), below: word()? },
            _ => return from.fail(),
        })
    }
}

/// The bytes of an answer.
#[must_use]
pub fn emit_reply(reply: &Result<Status, Refused>) -> Vec<u8> {
    match reply {
        Ok(status) => {
            let mut out = vec![0];
            out.extend_from_slice(&status.superblock.emit()[..SUPERBLOCK]);
            out.extend_from_slice(&status.state.emit());
            let tail = &status.tail;
            for word in [tail.position, tail.sequence, tail.epoch.0, u64::from(tail.stamp)] {
                out.extend_from_slice(&word.to_le_bytes());
            }
            out.extend_from_slice(&emit_damage(status.damage.as_ref()));
            let skip = status.runs.len().saturating_sub(RUNS_MAX);
            for run in &status.runs[skip..] {
                out.extend_from_slice(&run.epoch.0.to_le_bytes());
                out.extend_from_slice(&run.from.to_le_bytes());
            }
            out
        }
        Err(Refused::Fenced { promised }) => {
            let mut out = vec![1];
            out.extend_from_slice(&promised.0.to_le_bytes());
            out
        }
        Err(Refused::Busy) => vec![3],
        Err(other) => {
            let mut out = vec![2];
            out.extend_from_slice(other.to_string().as_bytes());
            out.truncate(1000);
            out
        }
    }
}

/// Reads the bytes of an answer.
///
/// # Errors
/// The server's refusal, or that the bytes are none of this protocol.
pub fn parse_reply(bytes: &[u8]) -> Result<Status, Refused> {
    let mut from = Reader::new(bytes);
    let parsed = parse_reply_from(&mut from).and_then(|reply| from.end().map(|()| reply));
    parsed.unwrap_or_else(|_| Err(Refused::Nonsense(format!("an answer of {} bytes", bytes.len()))))
}

fn parse_reply_from(from: &mut Reader<'_>) -> Result<Result<Status, Refused>, Malformed> {
    Ok(match from.u8()? {
        0 => Ok(parse_status(from)?),
        1 => Err(Refused::Fenced { promised: Epoch(from.u64_le()?) }),
        2 => Err(Refused::Said(printable(from.take(from.rest().len())?))),
        3 => Err(Refused::Busy),
        _ => return from.fail(),
    })
}

fn parse_status(from: &mut Reader<'_>) -> Result<Status, Malformed> {
    let superblock = from.take(SUPERBLOCK)?;
    let superblock = Superblock::parse(superblock, u64_at(superblock, 32)).map_err(|_| from.malformed())?;
    let state = State::parse(from.take(ROOT_LEN)?).ok_or(from.malformed())?;
    let tail = Cursor {
        position: from.u64_le()?,
        sequence: from.u64_le()?,
        epoch: Epoch(from.u64_le()?),
        stamp: from.u64_le()? as u32,
    };
    let capacity = superblock.geometry.capacity();
    let used = tail.position.checked_sub(state.head.position).ok_or(from.malformed())?;
    let records = tail.sequence.checked_sub(state.head.sequence).ok_or(from.malformed())?;
    if used > capacity || records > capacity / HEADER_LEN || !tail.position.is_multiple_of(8) {
        return from.fail();
    }
    let damage = parse_damage(from.take(DAMAGE)?, &state).ok_or(from.malformed())?;
    let run = |from: &mut Reader<'_>| Ok(Run { epoch: Epoch(from.u64_le()?), from: from.u64_le()? });
    let runs = from.many(from.rest().len() / 16, 16, run)?;
    if !runs.is_sorted_by(|a, b| a.from < b.from) {
        return from.fail();
    }
    Ok(Status { superblock, state, tail, runs, damage })
}

const DAMAGE: usize = 40;

fn emit_damage(damage: Option<&Damage>) -> [u8; DAMAGE] {
    let mut out = [0; DAMAGE];
    let Some(damage) = damage else { return out };
    let (proof, sequence) = match damage.proof {
        Proof::Tail => (0_u32, 0),
        Proof::Later { sequence } => (1, sequence),
        Proof::Root { sequence } => (2, sequence),
    };
    let fault = FAULTS.iter().position(|fault| *fault == damage.fault).unwrap_or(0) as u32 + 1;
    out[..4].copy_from_slice(&fault.to_le_bytes());
    out[4..8].copy_from_slice(&proof.to_le_bytes());
    for (n, word) in [damage.sequence, damage.first, damage.offset, sequence].into_iter().enumerate() {
        out[8 + n * 8..16 + n * 8].copy_from_slice(&word.to_le_bytes());
    }
    out
}

const FAULTS: [Fault; 6] =
    [Fault::Nothing, Fault::Length, Fault::Sequence, Fault::Stale, Fault::Checksum, Fault::Tail];

/// `None` if these bytes are not of this protocol.
fn parse_damage(bytes: &[u8], state: &State) -> Option<Option<Damage>> {
    let fault = match u32_at(bytes, 0) {
        0 => return Some(None),
        n => *FAULTS.get(n as usize - 1)?,
    };
    let sequence = u64_at(bytes, 32);
    let proof = match u32_at(bytes, 4) {
        0 => Proof::Tail,
        1 => Proof::Later { sequence },
        2 => Proof::Root { sequence },
        _ => return None,
    };
    let damage = Damage {
        sequence: u64_at(bytes, 8),
        first: u64_at(bytes, 16),
        offset: u64_at(bytes, 24),
        fault,
        proof,
        members: state.members,
        acks: state.acks,
    };
    Some(Some(damage))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::format::root::Fence;
    use crate::log::format::{Geometry, Mode};

    fn status() -> Status {
        let geometry = Geometry::new(1 << 20, 4096).expect("fair");
        let epoch = Epoch::new(3, 8);
        Status {
            superblock: Superblock { uuid: Uuid([1; 16]), geometry, salt: 5, mode: Mode::Singleton },
            state: State {
                promised: epoch,
                fence: Fence { sequence: 4, stamp: 3 },
                head: Cursor { position: 64, sequence: 2, epoch, stamp: 3 },
                members: 3,
                acks: 2,
                ..State::default()
            },
            tail: Cursor { position: 640, sequence: 9, epoch, stamp: 3 },
            runs: vec![Run { epoch: Epoch::new(1, 1), from: 2 }, Run { epoch, from: 5 }],
            damage: Some(Damage {
                sequence: 9,
                first: 2,
                offset: 17024,
                fault: Fault::Checksum,
                proof: Proof::Later { sequence: 12 },
                members: 3,
                acks: 2,
            }),
        }
    }

    #[test]
    fn every_message_is_read_as_it_was_written() {
        let epoch = Epoch::new(9, 4);
        for request in [
            Request::Status,
            Request::Grant { epoch },
            Request::Truncate { epoch, sequence: 7 },
            Request::Reset { epoch, sequence: 7, after: Epoch::new(2, 2) },
            Request::Adopt { epoch, sequence: 7, group: Uuid(*b"0123456789abcdef"), members: 3, acks: 2 },
            Request::Trim { below: 5 },
            Request::Known { epoch, below: 6 },
        ] {
            let bytes = request.emit();
            assert!(bytes.len() <= REQUEST_MAX);
            assert_eq!(Request::parse(&bytes), Ok(request));
            assert!(Request::parse(&bytes[..bytes.len() - 1]).is_err());
        }
        assert!(Request::parse(&[9]).is_err());
        assert_eq!(parse_reply(&emit_reply(&Err(Refused::Busy))), Err(Refused::Busy));
        let fenced = Err(Refused::Fenced { promised: epoch });
        for reply in [Ok(status()), Ok(Status { damage: None, runs: vec![], ..status() }), fenced] {
            assert_eq!(parse_reply(&emit_reply(&reply)), reply);
        }
        assert_eq!(
            parse_reply(&emit_reply(&Err(Refused::Nonsense("x".into())))),
            Err(Refused::Said(Refused::Nonsense("x".into()).to_string()))
        );
        // No terminal is told what to do by a server.
        assert_eq!(parse_reply(b"\x02go\x1b[2J\n"), Err(Refused::Said("go [2J ".into())));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let good = emit_reply(&Ok(status()));
        for len in 0..good.len() {
            assert!(parse_reply(&good[..len]).is_err() || (good.len() - len).is_multiple_of(16), "{len}");
        }
        let wrong = Status { tail: Cursor { position: 8, ..status().tail }, ..status() };
        assert!(parse_reply(&emit_reply(&Ok(wrong))).is_err(), "a tail before the head");
    }

    #[test]
    fn logs_agree_up_to_the_last_record_of_one_writer() {
        let runs = |runs: &[(u32, u64)], tail: u64| {
            let runs = runs.iter().map(|(e, from)| Run { epoch: Epoch::new(*e, 0), from: *from }).collect();
            let tail = Cursor { sequence: tail, position: tail * 40, ..Cursor::default() };
            Status { state: State::default(), runs, tail, damage: None, ..status() }
        };
        let a = runs(&[(1, 0), (2, 5), (4, 9)], 20);
        assert_eq!(a.agrees_until(&runs(&[(1, 0), (2, 5), (4, 9)], 15)), 15);
        assert_eq!(a.agrees_until(&runs(&[(1, 0), (2, 5), (3, 9)], 30)), 9);
        assert_eq!(a.agrees_until(&runs(&[(1, 0), (2, 5)], 12)), 9);
        assert_eq!(a.agrees_until(&runs(&[(1, 0), (3, 4)], 12)), 4);
        assert_eq!(a.agrees_until(&runs(&[(7, 0)], 12)), 0);
        assert_eq!(a.agrees_until(&runs(&[], 0)), 0);
    }
}
