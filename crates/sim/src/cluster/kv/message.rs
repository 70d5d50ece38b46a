//! What members and clients say to each other, as bytes: a byte that says what, and the rest.

use std::time::Duration;

use remanence_coord::log::Epoch;
use remanence_coord::takeover::{Role, Statement};

/// What a primary asks of a member's log, and the answer.
pub(super) const LOG: u8 = 1;
/// What a primary asks of a member's image, and the answer.
pub(super) const ORDER: u8 = 2;
/// What a member says of itself, and the answer, which is the same of the other one.
pub(super) const BEAT: u8 = 3;
/// A client asks a member what it is; the answer is as for a beat.
pub(super) const ASK: u8 = 4;
/// A client begins at a primary; the answer has its epoch and its view.
pub(super) const HELLO: u8 = 5;
/// A client's request to the store, and the reply.
pub(super) const REQUEST: u8 = 6;
/// A client asks a primary for its epoch, and the answer.
pub(super) const LEAD: u8 = 7;
/// A primary tells a client that there is a new view.
pub(super) const NOTICE: u8 = 8;

/// The bytes of a message that has these parts.
pub(super) fn message(what: u8, parts: &[&[u8]]) -> Vec<u8> {
    let mut bytes = vec![what];
    parts.iter().for_each(|part| bytes.extend_from_slice(part));
    bytes
}

/// A number at the beginning of what was said, and the rest.
pub(super) fn number(bytes: &[u8]) -> (u64, &[u8]) {
    let (number, rest) = bytes.split_first_chunk().expect("what was written is read");
    (u64::from_le_bytes(*number), rest)
}

/// What a member says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Said {
    pub(super) statement: Statement,
    /// How many members acknowledge; 0 if it is new.
    pub(super) acks: u64,
    /// Clients can connect to it.
    pub(super) serves: bool,
}

impl Said {
    pub(super) fn emit(&self) -> Vec<u8> {
        let Statement { role, epoch, life, stalled, failed, has_image, belongs, holds } = self.statement;
        let flags = [has_image, belongs, self.serves, failed, holds];
        let flags = (0..).zip(flags).fold(0, |all, (bit, flag)| all | u64::from(flag) << bit);
        let words = [role as u64, epoch.0, life, stalled.as_nanos() as u64, flags, self.acks];
        words.into_iter().flat_map(u64::to_le_bytes).collect()
    }

    pub(super) fn parse(mut bytes: &[u8]) -> Self {
        let mut word = || {
            let (word, rest) = number(bytes);
            bytes = rest;
            word
        };
        let role = match word() {
            0 => Role::Waiting,
            1 => Role::Follower,
            2 => Role::TakingOver,
            _ => Role::Primary,
        };
        let (epoch, life, stalled) = (Epoch(word()), word(), Duration::from_nanos(word()));
        let (flags, acks) = (word(), word());
        let flag = |bit: u32| flags & 1 << bit != 0;
        let (has_image, belongs, failed, holds) = (flag(0), flag(1), flag(3), flag(4));
        let statement = Statement { role, epoch, life, stalled, failed, has_image, belongs, holds };
        Self { statement, acks, serves: flag(2) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_member_says_comes_through() {
        for role in [Role::Waiting, Role::Follower, Role::TakingOver, Role::Primary] {
            for bits in 0..32 {
                let statement = Statement {
                    role,
                    epoch: Epoch::new(7, 9),
                    life: 5,
                    stalled: Duration::from_millis(3),
                    failed: bits & 8 != 0,
                    has_image: bits & 1 != 0,
                    belongs: bits & 2 != 0,
                    holds: bits & 16 != 0,
                };
                let said = Said { statement, acks: 2, serves: bits & 4 != 0 };
                assert_eq!(Said::parse(&said.emit()), said);
            }
        }
    }
}
