//! What the server remembers of a log besides its records: a [root record](remanence_pmem::image::Root), replaced as a whole.

use super::superblock::Uuid;
use super::{Cursor, Epoch, TAILS, u32_at, u64_at};

/// Bytes of the payload.
pub const ROOT_LEN: usize = 120;

/// From this number on records must carry at least this stamp.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Fence {
    /// The first number that it is about.
    pub sequence: u64,
    /// The least stamp.
    pub stamp: u32,
}

/// The server's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct State {
    /// No writer of an epoch below this is listened to.
    pub promised: Epoch,
    /// The log is the one that the writer of this epoch has chosen. None: it was never part of a group.
    pub adopted: Epoch,
    /// What was cut off stays dead.
    pub fence: Fence,
    /// The first record that was not trimmed.
    pub head: Cursor,
    /// All records below this number were acknowledged.
    pub known: u64,
    /// Which of the tail words counts (compound mode).
    pub slot: u16,
    /// Which group this log belongs to.
    pub group: Uuid,
    /// How many servers the group has.
    pub members: u16,
    /// How many of them must have a record durably before it is acknowledged.
    pub acks: u16,
}

impl State {
    /// The bytes to write.
    #[must_use]
    pub fn emit(&self) -> [u8; ROOT_LEN] {
        let mut out = [0; ROOT_LEN];
        out[..8].copy_from_slice(&self.promised.0.to_le_bytes());
        out[8..16].copy_from_slice(&self.adopted.0.to_le_bytes());
        out[16..24].copy_from_slice(&self.fence.sequence.to_le_bytes());
        out[24..32].copy_from_slice(&self.head.position.to_le_bytes());
        out[32..40].copy_from_slice(&self.head.sequence.to_le_bytes());
        out[40..48].copy_from_slice(&self.head.epoch.0.to_le_bytes());
        out[48..52].copy_from_slice(&self.head.stamp.to_le_bytes());
        out[52..56].copy_from_slice(&self.fence.stamp.to_le_bytes());
        out[56..64].copy_from_slice(&self.known.to_le_bytes());
        out[64..80].copy_from_slice(&self.group.0);
        out[80..82].copy_from_slice(&self.slot.to_le_bytes());
        out[82..84].copy_from_slice(&self.members.to_le_bytes());
        out[84..86].copy_from_slice(&self.acks.to_le_bytes());
        out
    }

    /// Reads them; `None` if no server of this version wrote them.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        if bytes.len() != ROOT_LEN || bytes[86..].iter().any(|byte| *byte != 0) {
            return None;
        }
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let state = Self {
            promised: Epoch(u64_at(bytes, 0)),
            adopted: Epoch(u64_at(bytes, 8)),
            fence: Fence { sequence: u64_at(bytes, 16), stamp: u32_at(bytes, 52) },
            head: Cursor {
                position: u64_at(bytes, 24),
                sequence: u64_at(bytes, 32),
                epoch: Epoch(u64_at(bytes, 40)),
                stamp: u32_at(bytes, 48),
            },
            known: u64_at(bytes, 56),
            slot: half(80),
            group: Uuid(bytes[64..80].try_into().expect("16 bytes")),
            members: half(82),
            acks: half(84),
        };
        let fair = state.slot < TAILS
            && state.head.position.is_multiple_of(8)
            && state.head.position < 1 << 62
            && state.head.sequence < 1 << 62
            && state.fence.sequence < 1 << 62
            && state.adopted <= state.promised
            && state.acks <= state.members;
        fair.then_some(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_emitted_is_parsed_and_nonsense_is_not() {
        let state = State {
            promised: Epoch::new(7, 3),
            adopted: Epoch::new(6, 1),
            fence: Fence { sequence: 40, stamp: 7 },
            head: Cursor { position: 4096, sequence: 12, epoch: Epoch::new(2, 9), stamp: 3 },
            known: 39,
            slot: 511,
            group: Uuid([5; 16]),
            members: 3,
            acks: 2,
        };
        assert_eq!(State::parse(&state.emit()), Some(state));
        assert_eq!(State::parse(&State { slot: 512, ..state }.emit()), None);
        assert_eq!(State::parse(&State { acks: 4, ..state }.emit()), None);
        assert_eq!(State::parse(&State { adopted: Epoch::new(8, 0), ..state }.emit()), None);
        assert_eq!(State::parse(&[0; 12]), None);
    }
}
