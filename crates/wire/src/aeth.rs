//! AETH, the ACK extended transport header: the responder's verdict, and how far it has come.
//!
//! Read first: IBA Vol 1, 9.3 (layout), 9.7.5.2 (syndromes), 9.7.5.2.8 (RNR NAK timer), 9.7.7.2 (credits).
//!
//! ```text
//!  0     syndrome: zero(1) kind(2) value(5); kinds 0 ACK, 1 RNR NAK, 2 reserved, 3 NAK
//!  1..4  MSN
//! ```

use std::fmt;
use std::time::Duration;

use crate::Error;
use crate::types::Msn;

/// Bytes of an AETH.
pub const LEN: usize = 4;

const KIND_SHIFT: u32 = 5;
const VALUE_MASK: u8 = 0x1f;

/// End-to-end flow control credits, as the 5-bit code of an ACK.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Credits(u8);

impl Credits {
    /// The code for "no end-to-end flow control": send as you like.
    pub const UNLIMITED: Self = Self(31);

    /// The largest code that promises no more than `count` receive WQEs.
    #[must_use]
    pub const fn at_most(count: u32) -> Self {
        let mut code = 30;
        while Self::COUNT[code as usize] > count {
            code -= 1;
        }
        Self(code)
    }

    /// How many receive WQEs are promised; `None` without end-to-end flow control.
    #[must_use]
    pub const fn count(self) -> Option<u32> {
        if self.0 == Self::UNLIMITED.0 { None } else { Some(Self::COUNT[self.0 as usize]) }
    }

    /// The code, 0 to 31.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }

    /// Code to count, IBA Vol 1, 9.7.7.2: powers of two and the points halfway between them.
    const COUNT: [u32; 31] = {
        let mut table =
            [0, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let mut code = 5;
        while code < 31 {
            table[code] = if code % 2 == 1 { table[code - 1] / 2 * 3 } else { table[code - 2] * 2 };
            code += 1;
        }
        table
    };
}

impl fmt::Debug for Credits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.count() {
            Some(count) => write!(f, "Credits({count})"),
            None => f.write_str("Credits(unlimited)"),
        }
    }
}

/// The 5-bit RNR NAK timer code: how long the requester must stay away.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RnrTimer(u8);

impl RnrTimer {
    /// The timer of a code; only the low five bits count.
    #[must_use]
    pub const fn new(code: u8) -> Self {
        Self(code & VALUE_MASK)
    }

    /// The shortest timer that is at least `delay`; the longest there is if none.
    #[must_use]
    pub fn at_least(delay: Duration) -> Self {
        // Code 0 is the longest timer, so that it comes last.
        let code = (1..32).find(|&code| Self(code).duration() >= delay);
        Self(code.unwrap_or(0))
    }

    /// The code, 0 to 31.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The time to wait.
    #[must_use]
    pub const fn duration(self) -> Duration {
        // In units of 10 us, IBA Vol 1, 9.7.5.2.8.
        const TENS_OF_MICROS: [u32; 32] = [
            65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
            2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
        ];
        Duration::from_micros(TENS_OF_MICROS[self.0 as usize] as u64 * 10)
    }
}

impl fmt::Debug for RnrTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RnrTimer({}: {:?})", self.0, self.duration())
    }
}

/// Why a responder refuses a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum NakCode {
    /// A request before this one is missing: go back.
    PsnSequenceError = 0,
    /// The request is unsupported, malformed, out of sequence or too long.
    InvalidRequest = 1,
    /// The key, the bounds or the rights do not allow it.
    RemoteAccessError = 2,
    /// The responder could not carry it out.
    RemoteOperationalError = 3,
    /// Of the RD transport only.
    InvalidRdRequest = 4,
}

impl fmt::Display for NakCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PsnSequenceError => "PSN sequence error",
            Self::InvalidRequest => "invalid request",
            Self::RemoteAccessError => "remote access error",
            Self::RemoteOperationalError => "remote operational error",
            Self::InvalidRdRequest => "invalid RD request",
        })
    }
}

/// What an AETH says: its syndrome.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Aeth {
    /// Everything up to the packet's PSN was received, and this many credits are granted.
    Ack(Credits),
    /// Receiver not ready: no receive WQE; come back after the timer.
    RnrNak(RnrTimer),
    /// The request with the packet's PSN was refused, for the reason that the code gives.
    Nak(NakCode),
}

impl Aeth {
    /// The syndrome of a byte; `None` if it is reserved.
    #[must_use]
    #[inline]
    pub const fn from_u8(syndrome: u8) -> Option<Self> {
        let value = syndrome & VALUE_MASK;
        Some(match syndrome >> KIND_SHIFT {
            0 => Self::Ack(Credits(value)),
            1 => Self::RnrNak(RnrTimer(value)),
            3 => Self::Nak(match value {
                0 => NakCode::PsnSequenceError,
                1 => NakCode::InvalidRequest,
                2 => NakCode::RemoteAccessError,
                3 => NakCode::RemoteOperationalError,
                4 => NakCode::InvalidRdRequest,
                _ => return None,
            }),
            _ => return None,
        })
    }

    /// The syndrome byte.
    #[must_use]
    #[inline]
    pub const fn to_u8(self) -> u8 {
        match self {
            Self::Ack(credits) => credits.0,
            Self::RnrNak(timer) => 1 << KIND_SHIFT | timer.0,
            Self::Nak(code) => 3 << KIND_SHIFT | code as u8,
        }
    }
}

/// An AETH as the engine acts on it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Repr {
    /// What the syndrome says of the request: acknowledged, refused, or to be repeated later.
    pub aeth: Aeth,
    /// Messages completed so far, modulo 2^24.
    pub msn: Msn,
}

impl Repr {
    /// Reads the header.
    ///
    /// # Errors
    /// When the syndrome is reserved.
    #[inline]
    pub fn parse(bytes: &[u8; LEN]) -> Result<Self, Error> {
        let aeth = Aeth::from_u8(bytes[0]).ok_or(Error::Syndrome(bytes[0]))?;
        Ok(Self { aeth, msn: Msn::new(u32::from_be_bytes([0, bytes[1], bytes[2], bytes[3]])) })
    }

    /// Writes the header.
    #[inline]
    pub const fn emit(&self, bytes: &mut [u8; LEN]) {
        *bytes = ((self.aeth.to_u8() as u32) << 24 | self.msn.value()).to_be_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syndromes_are_those_of_the_specification() {
        assert_eq!(Aeth::from_u8(0x1f), Some(Aeth::Ack(Credits::UNLIMITED)));
        assert_eq!(Aeth::from_u8(0x2e), Some(Aeth::RnrNak(RnrTimer(14))));
        assert_eq!(Aeth::from_u8(0x60), Some(Aeth::Nak(NakCode::PsnSequenceError)));
        assert_eq!(Aeth::from_u8(0x61), Some(Aeth::Nak(NakCode::InvalidRequest)));
        assert_eq!(Aeth::from_u8(0x62), Some(Aeth::Nak(NakCode::RemoteAccessError)));
        assert_eq!(Aeth::from_u8(0x63), Some(Aeth::Nak(NakCode::RemoteOperationalError)));
        let known: Vec<u8> = (0..=255).filter(|&s| Aeth::from_u8(s).is_some()).collect();
        assert_eq!(known, (0x00..0x40).chain(0x60..0x65).collect::<Vec<u8>>());
        assert!(known.iter().all(|&s| Aeth::from_u8(s).unwrap().to_u8() == s));
    }

    #[test]
    fn layout() {
        let repr = Repr { aeth: Aeth::RnrNak(RnrTimer::new(1)), msn: Msn::new(0x0a_0b0c) };
        let mut bytes = [0xee; LEN];
        repr.emit(&mut bytes);
        assert_eq!(bytes, [0x21, 0x0a, 0x0b, 0x0c]);
        assert_eq!(Repr::parse(&bytes), Ok(repr));
        assert_eq!(Repr::parse(&[0x40, 0, 0, 0]), Err(Error::Syndrome(0x40)));
    }

    #[test]
    fn credits_round_down_and_never_promise_too_much() {
        assert_eq!(Credits(30).count(), Some(32768));
        assert_eq!(Credits(11).count(), Some(48));
        assert_eq!(Credits::UNLIMITED.count(), None);
        for count in 0..70_000 {
            let promised = Credits::at_most(count).count().unwrap();
            assert!(promised <= count && promised * 3 / 2 >= count.min(32768));
        }
    }

    #[test]
    fn rnr_timers_round_up() {
        assert_eq!(RnrTimer::new(0).duration(), Duration::from_micros(655_360));
        assert_eq!(RnrTimer::new(12).duration(), Duration::from_micros(640));
        assert_eq!(RnrTimer::at_least(Duration::from_micros(641)), RnrTimer(13));
        assert_eq!(RnrTimer::at_least(Duration::ZERO), RnrTimer(1));
        assert_eq!(RnrTimer::at_least(Duration::from_millis(500)), RnrTimer(0));
        assert_eq!(RnrTimer::at_least(Duration::from_secs(9)), RnrTimer(0));
    }
}
