//! The CM's clocks: exponents of 4.096 us (IBA Vol 1, 12.7.4, 12.7.26, 12.7.34).

use std::time::Duration;

/// The largest exponent that we believe from a peer: 68 s, what cma.c itself asks for in an MRA. The field could
/// say 2.4 hours, and a peer must not pin our memory for so long.
const EXPONENT_MAX: u8 = 24;

/// The time that an exponent stands for, 4.096 us x 2^n.
pub(super) fn duration(exponent: u8) -> Duration {
    Duration::from_nanos(4096 << u64::from(exponent.min(EXPONENT_MAX)))
}

/// The exponent of a local ACK timeout: twice the packet lifetime plus the ACK delay, rounded up to what an
/// exponent can say (12.7.34).
pub(super) fn ack_timeout(packet_lifetime: u8, ack_delay: u8) -> u8 {
    let nanos = 2 * duration(packet_lifetime).as_nanos() + duration(ack_delay).as_nanos();
    (0..EXPONENT_MAX).find(|&n| duration(n).as_nanos() >= nanos).unwrap_or(EXPONENT_MAX)
}

/// The packet lifetime that a peer's local ACK timeout speaks of, at most.
pub(super) const fn packet_lifetime(ack_timeout: u8) -> u8 {
    ack_timeout.saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponents_are_powers_of_two_times_4096_ns() {
        assert_eq!(duration(0), Duration::from_nanos(4096));
        assert_eq!(duration(18), Duration::from_nanos(1_073_741_824));
        assert_eq!(duration(255), duration(24), "a peer's 2.4 hours are cut down");
    }

    #[test]
    fn the_ack_timeout_covers_both_ways_and_the_delay() {
        assert_eq!(ack_timeout(16, 0), 18, "anything above 2 x 2^16 needs the next power");
        assert_eq!(ack_timeout(14, 16), 17);
        assert_eq!(ack_timeout(31, 31), 24);
    }
}
