//! The 24-bit packet sequence number, which compares on the circle.

use std::fmt;

/// A 24-bit packet sequence number (IBA Vol 1, 9.7.2).
///
/// PSNs live on a circle, so there is no `Ord`: use [`Psn::diff`], [`Psn::is_before`] or [`Psn::in_window`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Psn(u32);

impl Psn {
    /// The number of distinct PSNs, 2^24.
    pub const COUNT: u32 = 1 << 24;
    const MASK: u32 = Self::COUNT - 1;

    /// The PSN of the low 24 bits of `value`.
    #[must_use]
    pub const fn new(value: u32) -> Self {
        Self(value & Self::MASK)
    }

    /// The value, 0 to 2^24 - 1.
    #[must_use]
    pub const fn value(self) -> u32 {
        self.0
    }

    /// The PSN `n` after this one.
    #[must_use]
    pub const fn add(self, n: u32) -> Self {
        Self::new(self.0.wrapping_add(n))
    }

    /// The PSN `n` before this one.
    #[must_use]
    pub const fn sub(self, n: u32) -> Self {
        Self::new(self.0.wrapping_sub(n))
    }

    /// The PSN after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        self.add(1)
    }

    /// The signed distance `self - other` on the circle, -2^23 to 2^23 - 1.
    #[must_use]
    pub const fn diff(self, other: Self) -> i32 {
        ((self.0.wrapping_sub(other.0) << 8) as i32) >> 8
    }

    /// Whether this PSN is strictly before `other` on the circle (less than half of it away).
    #[must_use]
    pub const fn is_before(self, other: Self) -> bool {
        self.diff(other) < 0
    }

    /// Whether this PSN is one of the `len` PSNs that begin at `start`.
    #[must_use]
    pub const fn in_window(self, start: Self, len: u32) -> bool {
        self.0.wrapping_sub(start.0) & Self::MASK < len
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Psn({:#08x})", self.0)
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_is_signed_on_the_circle() {
        assert_eq!(Psn::new(0).diff(Psn::new(0xff_ffff)), 1);
        assert_eq!(Psn::new(0xff_ffff).diff(Psn::new(0)), -1);
        assert_eq!(Psn::new(0x80_0000).diff(Psn::new(0)), -0x80_0000);
        assert!(Psn::new(0xff_fff0).is_before(Psn::new(3)));
        assert!(!Psn::new(3).is_before(Psn::new(0xff_fff0)));
        assert!(!Psn::new(7).is_before(Psn::new(7)));
    }

    #[test]
    fn windows_wrap() {
        assert!(Psn::new(1).in_window(Psn::new(0xff_fffe), 4));
        assert!(!Psn::new(2).in_window(Psn::new(0xff_fffe), 4));
        assert!(!Psn::new(0xff_fffd).in_window(Psn::new(0xff_fffe), 4));
        assert!(!Psn::new(5).in_window(Psn::new(5), 0));
    }
}
