//! What two devices of one host say to each other about memory, on the link's side channel.

use remanence_rnic::Access;
use remanence_wire::{Qpn, Rkey};

/// A message. Descriptors travel beside it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Message {
    /// A requester would like to reach the memory of `rkey` itself, through its connected QP.
    Ask {
        /// The requester's QP.
        from: Qpn,
        /// The responder's QP that is connected to it.
        to: Qpn,
        /// What it reaches for.
        rkey: Rkey,
    },
    /// The responder's guard page comes along, once for each peer.
    Guard,
    /// Here is the memory.
    Grant {
        /// The requester's QP.
        to: Qpn,
        /// The responder's QP that is connected to it.
        from: Qpn,
        /// The rkey that was asked for.
        rkey: Rkey,
        /// Where in the guard page the grant is, and what stands there while it is valid.
        index: u32,
        generation: u64,
        /// Virtual address of the first byte.
        base: u64,
        /// Bytes of memory that are granted.
        len: u64,
        /// What the memory's key allows a peer to do.
        access: Access,
    },
}

impl Message {
    pub(super) fn emit(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut word = |value: u32| bytes.extend(value.to_be_bytes());
        match *self {
            Self::Ask { from, to, rkey } => [1, from.value(), to.value(), rkey.0].into_iter().for_each(word),
            Self::Guard => word(2),
            Self::Grant { to, from, rkey, index, generation, base, len, access } => {
                [3, to.value(), from.value(), rkey.0, index, access.bits()].into_iter().for_each(word);
                [generation, base, len].into_iter().for_each(|value| bytes.extend(value.to_be_bytes()));
            }
        }
        bytes
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let message = match word(&mut rest)? {
            1 => Self::Ask { from: qpn(&mut rest)?, to: qpn(&mut rest)?, rkey: Rkey(word(&mut rest)?) },
            2 => Self::Guard,
            3 => {
                let (to, from, rkey) = (qpn(&mut rest)?, qpn(&mut rest)?, Rkey(word(&mut rest)?));
                let (index, access) = (word(&mut rest)?, Access::from_bits(word(&mut rest)?)?);
                let (generation, base, len) = (long(&mut rest)?, long(&mut rest)?, long(&mut rest)?);
                Self::Grant { to, from, rkey, index, generation, base, len, access }
            }
            _ => return None,
        };
        rest.is_empty().then_some(message)
    }
}

fn word(rest: &mut &[u8]) -> Option<u32> {
    let (word, tail) = rest.split_first_chunk()?;
    *rest = tail;
    Some(u32::from_be_bytes(*word))
}

fn long(rest: &mut &[u8]) -> Option<u64> {
    let (word, tail) = rest.split_first_chunk()?;
    *rest = tail;
    Some(u64::from_be_bytes(*word))
}

fn qpn(rest: &mut &[u8]) -> Option<Qpn> {
    let value = word(rest)?;
    (value < 1 << 24).then(|| Qpn::new(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_as_they_were_and_nothing_else_does() {
        let all = [
            Message::Ask { from: Qpn::new(17), to: Qpn::new(0xFF_FFFE), rkey: Rkey(0xDEAD_BEEF) },
            Message::Guard,
            Message::Grant {
                to: Qpn::new(1),
                from: Qpn::new(2),
                rkey: Rkey(3),
                index: 4,
                generation: 5 << 40,
                base: 6 << 40,
                len: 7 << 40,
                access: Access::REMOTE_WRITE | Access::REMOTE_READ,
            },
        ];
        for message in all {
            let bytes = message.emit();
            assert_eq!(Message::parse(&bytes), Some(message));
            for len in 0..bytes.len() {
                assert_eq!(Message::parse(&bytes[..len]), None);
            }
            assert_eq!(Message::parse(&[&bytes[..], &[0]].concat()), None);
        }
        assert_eq!(Message::parse(&[0, 0, 0, 9]), None);
        assert_eq!(
            Message::parse(&[0, 0, 0, 1, 0xFF, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            None,
            "a QPN has 24 bits"
        );
    }
}
