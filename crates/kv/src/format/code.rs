//! Check bits inside of a word of 8 bytes, so that it is still stored atomically.
//!
//! A Hsiao code: every bit of the word has a column of check bits, all of them different and of odd weight. One flipped bit
//! gives its own column as the syndrome and is put right; two give one of even weight, which is no bit's, and are told. The
//! check bits of a word of zeros are not zero: an erased word is not taken for one.

/// Where the check bits of a kind of word are. The rest of the word, or what `data` has of it, is what they check.
#[derive(Debug)]
pub struct Code<const BITS: usize> {
    /// Bit by bit, which bits of the word it sums up, itself included.
    sums: [u64; BITS],
    columns: [u8; 64],
    shift: u32,
    data: u64,
}

/// What a word was found to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Checked {
    /// As it was sealed.
    Sound,
    /// One bit was wrong; this is the word without that.
    Mended(u64),
    /// More than one.
    Unsound,
}

impl<const BITS: usize> Code<BITS> {
    /// Check bits from bit `shift` on, over these bits.
    ///
    /// # Panics
    /// There are too few of them, at compile time.
    #[must_use]
    pub const fn new(shift: u32, data: u64) -> Self {
        let mut columns = [0; 64];
        let mut sums = [0; BITS];
        let (mut bit, mut next) = (0, 0_u8);
        while bit < 64 {
            let own = bit >= shift && bit < shift + BITS as u32;
            if own {
                columns[bit as usize] = 1 << (bit - shift);
            } else if data >> bit & 1 == 1 {
                next += 1;
                while next.count_ones().is_multiple_of(2) || next.count_ones() == 1 {
                    next += 1;
                }
                assert!(next >> (BITS - 1) <= 1, "more data than so few bits can check");
                columns[bit as usize] = next;
            }
            let mut check = 0;
            while check < BITS {
                if columns[bit as usize] >> check & 1 == 1 {
                    sums[check] |= 1 << bit;
                }
                check += 1;
            }
            bit += 1;
        }
        Self { sums, columns, shift, data }
    }

    /// What the check bits of zeros are.
    const ZERO: u8 = 0b0101_0101 & (0xFF >> (8 - BITS));

    const fn syndrome(&self, word: u64) -> u8 {
        let (mut check, mut syndrome) = (0, Self::ZERO);
        while check < BITS {
            syndrome ^= ((word & self.sums[check]).count_ones() as u8 & 1) << check;
            check += 1;
        }
        syndrome
    }

    const fn field(&self) -> u64 {
        ((1 << BITS) - 1) << self.shift
    }

    /// The word with its check bits.
    #[must_use]
    pub const fn seal(&self, word: u64) -> u64 {
        let word = word & !self.field();
        word | (self.syndrome(word) as u64) << self.shift
    }

    /// Whether a word is as it was sealed.
    #[must_use]
    pub const fn check(&self, word: u64) -> Checked {
        let syndrome = self.syndrome(word);
        let spare = word & !(self.data | self.field());
        if syndrome == 0 && spare == 0 {
            return Checked::Sound;
        }
        // A bit that nothing uses and that is set is a flipped one as well.
        if syndrome == 0 && spare.is_power_of_two() {
            return Checked::Mended(word & !spare);
        }
        let mut bit = 0;
        while bit < 64 && spare == 0 {
            if self.columns[bit] == syndrome {
                return Checked::Mended(word ^ 1 << bit);
            }
            bit += 1;
        }
        Checked::Unsound
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FULL: Code<7> = Code::new(1, !0xFE);
    const SPARE: Code<7> = Code::new(56, 1 << 63 | 0xFFFF_FFFF_FFFF);

    #[test]
    fn words_of_equal_bits_are_none() {
        for word in [0, !0] {
            assert_ne!(FULL.check(word), Checked::Sound);
            assert_ne!(SPARE.check(word), Checked::Sound);
        }
    }

    proptest! {
        #[test]
        fn one_flipped_bit_is_put_right_and_two_are_told(word: u64, first in 0_u32..64, second in 0_u32..64) {
            for code in [&FULL, &SPARE] {
                let sealed = code.seal(word & (code.data | code.field()));
                prop_assert_eq!(code.check(sealed), Checked::Sound);
                prop_assert_eq!(code.check(sealed ^ 1 << first), Checked::Mended(sealed));
                if first != second {
                    prop_assert_eq!(code.check(sealed ^ 1 << first ^ 1 << second), Checked::Unsound);
                }
            }
        }
    }
}
