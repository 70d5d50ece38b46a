//! The arithmetic of INCRBYFLOAT: x86's 80-bit `long double`, in integers.
//!
//! Redis adds in `long double` and prints with 17 decimals; a gateway whose sums differ from Redis' in the last digit
//! would be found out by any client that compares. Rust has no such type, so here are the three operations that the
//! command needs: reading (`strtold`), adding, and printing (`%.17Lf`, zeros trimmed), each rounded once, to nearest,
//! ties to even, as IEEE 754 has it.

use std::cmp::Ordering;

/// The largest exponent of the format: magnitudes are below 2^16384.
const EXPONENT_MAX: i64 = 16383;
/// Half of the smallest magnitude above zero is 2^-16446; what is not above it is zero.
const HALF_OF_SMALLEST: i64 = -16446;

/// A number of the format. Denormal numbers keep all their bits, which no sum or printed digit can tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Float80 {
    /// (-1)^negative * mantissa * 2^exponent; the mantissa has its highest bit set, or is 0.
    Finite {
        /// Whether the number is below zero, or is a negative zero.
        negative: bool,
        /// The 64 significant bits.
        mantissa: u64,
        /// The power of two.
        exponent: i64,
    },
    /// Beyond the largest, by its sign; true is negative.
    Infinite(bool),
}

impl Float80 {
    /// The number 0, with the positive sign.
    pub const ZERO: Self = Self::Finite { negative: false, mantissa: 0, exponent: 0 };

    /// Reads what `strtold` reads, all of it: decimal or hexadecimal, with a point and an exponent or without, or
    /// infinity. `None` for anything else, for what is too large or too small to hold, and for NaN.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        // Redis copies into a buffer of this size.
        if text.is_empty() || text.len() >= 5 * 1024 {
            return None;
        }
        let (negative, rest) = match text {
            [b'-', rest @ ..] => (true, rest),
            [b'+', rest @ ..] => (false, rest),
            rest => (false, rest),
        };
        if rest.eq_ignore_ascii_case(b"inf") || rest.eq_ignore_ascii_case(b"infinity") {
            return Some(Self::Infinite(negative));
        }
        let (number, sticky, exponent) = match rest {
            [b'0', b'x' | b'X', digits @ ..] => hexadecimal(digits)?,
            digits => decimal(digits)?,
        };
        if number == 0 {
            return Some(Self::Finite { negative, mantissa: 0, exponent: 0 });
        }
        let value = round(negative, number, sticky, exponent);
        let Self::Finite { mantissa, exponent, .. } = value else { return None };
        let top = exponent + 63;
        let underflows = top < HALF_OF_SMALLEST || (top == HALF_OF_SMALLEST && mantissa == 1 << 63);
        (!underflows).then_some(value)
    }

    /// The sum; `None` where it is no number (infinities of opposite signs).
    #[must_use]
    pub fn plus(self, other: Self) -> Option<Self> {
        let (a, b) = match (self, other) {
            (Self::Infinite(a), Self::Infinite(b)) => return (a == b).then_some(self),
            (Self::Infinite(_), Self::Finite { .. }) => return Some(self),
            (Self::Finite { .. }, Self::Infinite(_)) => return Some(other),
            (
                Self::Finite { negative: sa, mantissa: a, exponent: ea },
                Self::Finite { negative: sb, mantissa: b, exponent: eb },
            ) => ((sa, a, ea), (sb, b, eb)),
        };
        match (a.1, b.1) {
            (0, 0) => return Some(Self::Finite { negative: a.0 && b.0, mantissa: 0, exponent: 0 }),
            (0, _) => return Some(other),
            (_, 0) => return Some(self),
            _ => {}
        }
        // Mantissas are normal, so that the exponents order the magnitudes but for equal ones.
        let (large, small) = if (a.2, a.1) >= (b.2, b.1) { (a, b) } else { (b, a) };
        // 62 bits of room below the larger one, and one above for a carry. Where the smaller one reaches further down
        // than that, at most one bit can cancel, and a bit that says "and a little" rounds the rest.
        let distance = (large.2 - small.2).min(127) as u32;
        let high = u128::from(large.1) << 62;
        let low = u128::from(small.1) << 62;
        let (low, lost) = (low >> distance, low & ((1 << distance) - 1) != 0);
        let sum = if large.0 == small.0 { high + low } else { high - low - u128::from(lost) };
        if sum == 0 && !lost {
            return Some(Self::ZERO);
        }
        Some(round(large.0, sum, lost, large.2 - 62))
    }

    /// The number as `ld2string(LD_STR_HUMAN)` prints it: 17 decimals at most, without zeros at the end. `None` for
    /// infinity.
    #[must_use]
    pub fn print(self) -> Option<String> {
        let Self::Finite { negative, mantissa, exponent } = self else { return None };
        let text =
            if exponent >= 0 { integer(mantissa, exponent as u32) } else { fraction(mantissa, -exponent) };
        Some(if negative && text != "0" { format!("-{text}") } else { text })
    }
}

/// number * 2^exponent, and a little more if `sticky`, to the nearest of the format. The number is not 0.
fn round(negative: bool, number: u128, sticky: bool, exponent: i64) -> Float80 {
    let shift = 64 - i64::from(number.leading_zeros());
    let (mut mantissa, mut exponent) = if shift <= 0 {
        // Exact, unless a little more was cut off, which callers only say of numbers that are long enough.
        ((number << -shift) as u64, exponent + shift)
    } else {
        let kept = (number >> shift) as u64;
        let rest = number & ((1 << shift) - 1);
        let up = match rest.cmp(&(1 << (shift - 1))) {
            Ordering::Greater => true,
            Ordering::Equal => sticky || kept & 1 == 1,
            Ordering::Less => false,
        };
        match kept.overflowing_add(u64::from(up)) {
            (_, true) => (1 << 63, exponent + shift + 1),
            (rounded, false) => (rounded, exponent + shift),
        }
    };
    if exponent + 63 > EXPONENT_MAX {
        return Float80::Infinite(negative);
    }
    if mantissa == 0 {
        (mantissa, exponent) = (0, 0);
    }
    Float80::Finite { negative, mantissa, exponent }
}

/// Digits, a point and an exponent: the digits without leading zeros, and by what power the number is them.
fn split(text: &[u8], radix: u32, mark: u8) -> Option<(Vec<u8>, i64)> {
    let (mut digits, mut seen, mut point, mut power) = (Vec::new(), false, false, 0_i64);
    let mut rest = text;
    while let [byte, after @ ..] = rest {
        if let Some(digit) = char::from(*byte).to_digit(radix) {
            seen = true;
            power -= i64::from(point);
            if digit != 0 || !digits.is_empty() {
                digits.push(digit as u8);
            }
        } else if *byte == b'.' && !point {
            point = true;
        } else {
            break;
        }
        rest = after;
    }
    if !seen {
        return None;
    }
    let step = if radix == 16 { 4 } else { 1 };
    power *= step;
    match rest {
        [] => {}
        [letter, exponent @ ..] if letter.eq_ignore_ascii_case(&mark) => {
            let (negative, exponent) = match exponent {
                [b'-', rest @ ..] => (true, rest),
                [b'+', rest @ ..] => (false, rest),
                rest => (false, rest),
            };
            if exponent.is_empty() || !exponent.iter().all(u8::is_ascii_digit) {
                return None;
            }
            // Far beyond what any digits could bring back, and far from overflow.
            let value = exponent
                .iter()
                .fold(0, |value: i64, digit| (value * 10 + i64::from(digit - b'0')).min(1 << 40));
            power += if negative { -value } else { value };
        }
        _ => return None,
    }
    Some((digits, power))
}

/// The leading bits of a hexadecimal number, whether there is more, and their power of two.
fn hexadecimal(text: &[u8]) -> Option<(u128, bool, i64)> {
    let (digits, mut power) = split(text, 16, b'p')?;
    let (mut number, mut sticky) = (0_u128, false);
    for digit in digits {
        if number >> 120 == 0 {
            number = number << 4 | u128::from(digit);
        } else {
            sticky |= digit != 0;
            power += 4;
        }
    }
    Some((number, sticky, power))
}

/// The leading bits of a decimal number, whether there is more, and their power of two.
fn decimal(text: &[u8]) -> Option<(u128, bool, i64)> {
    let (digits, power) = split(text, 10, b'e')?;
    if digits.is_empty() {
        return Some((0, false, 0));
    }
    // What is too large or too small by far need not be computed to be refused.
    let magnitude = digits.len() as i64 + power;
    if magnitude > 5000 {
        return Some((1, false, EXPONENT_MAX + 1));
    }
    if magnitude < -5000 {
        return Some((1, false, HALF_OF_SMALLEST - 1));
    }
    let mut number = Big::default();
    for digit in digits {
        number.multiply_add(10, u32::from(digit));
    }
    let mut divisor = Big(vec![1]);
    for _ in 0..power.abs() {
        if power > 0 {
            number.multiply_add(10, 0);
        } else {
            divisor.multiply_add(10, 0);
        }
    }
    Some(divide(number, divisor))
}

/// 100 bits of a quotient, whether there is more, and their power of two.
fn divide(mut number: Big, mut divisor: Big) -> (u128, bool, i64) {
    const BITS: i64 = 100;
    let lead = number.bits() - divisor.bits();
    if lead > 0 {
        divisor.shift_left(lead as u32)
    } else {
        number.shift_left((-lead) as u32)
    }
    // Of equal lengths now, so that the quotient's first bit is for 2^lead.
    let mut quotient = 0_u128;
    for _ in 0..BITS {
        quotient <<= 1;
        if number.compare(&divisor) != Ordering::Less {
            number.subtract(&divisor);
            quotient |= 1;
        }
        number.shift_left(1);
    }
    (quotient, number.bits() > 0, lead - (BITS - 1))
}

/// mantissa * 2^shift, all digits.
fn integer(mantissa: u64, shift: u32) -> String {
    let mut number = Big(vec![mantissa as u32, (mantissa >> 32) as u32]);
    number.shift_left(shift);
    let mut groups = Vec::new();
    while number.bits() > 0 {
        groups.push(number.divide_small(1_000_000_000));
    }
    let mut groups = groups.into_iter().rev();
    let mut text = groups.next().unwrap_or(0).to_string();
    for group in groups {
        text.push_str(&format!("{group:09}"));
    }
    text
}

/// mantissa / 2^shift to 17 decimals, without zeros at the end.
fn fraction(mantissa: u64, shift: i64) -> String {
    const ONE: u128 = 100_000_000_000_000_000;
    // 64 bits and 57 more.
    let scaled = u128::from(mantissa) * ONE;
    let rounded = if shift >= 128 {
        0
    } else {
        let kept = scaled >> shift;
        let rest = scaled & ((1 << shift) - 1);
        let half = 1 << (shift - 1);
        kept + u128::from(rest > half || (rest == half && kept & 1 == 1))
    };
    let text = format!("{}.{:017}", rounded / ONE, rounded % ONE);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A natural number, low words first.
#[derive(Default)]
struct Big(Vec<u32>);

impl Big {
    fn trim(&mut self) {
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
    }

    fn bits(&self) -> i64 {
        let top = self.0.iter().rposition(|&word| word != 0);
        top.map_or(0, |top| top as i64 * 32 + 32 - i64::from(self.0[top].leading_zeros()))
    }

    fn multiply_add(&mut self, factor: u32, addend: u32) {
        let mut carry = u64::from(addend);
        for word in &mut self.0 {
            carry += u64::from(*word) * u64::from(factor);
            *word = carry as u32;
            carry >>= 32;
        }
        if carry > 0 {
            self.0.push(carry as u32);
        }
    }

    fn shift_left(&mut self, by: u32) {
        let (words, bits) = (by / 32, by % 32);
        if bits > 0 {
            let mut carry = 0;
            for word in &mut self.0 {
                let shifted = u64::from(*word) << bits;
                *word = shifted as u32 | carry;
                carry = (shifted >> 32) as u32;
            }
            self.0.push(carry);
        }
        self.0.splice(0..0, std::iter::repeat_n(0, words as usize));
        self.trim();
    }

    fn compare(&self, other: &Self) -> Ordering {
        self.bits().cmp(&other.bits()).then_with(|| {
            let top = self.0.len().max(other.0.len());
            let word = |big: &Self, index: usize| big.0.get(index).copied().unwrap_or(0);
            (0..top)
                .rev()
                .map(|index| word(self, index).cmp(&word(other, index)))
                .find(|o| o.is_ne())
                .unwrap_or(Ordering::Equal)
        })
    }

    /// Takes away what is not larger.
    fn subtract(&mut self, other: &Self) {
        let mut borrow = 0;
        for (index, word) in self.0.iter_mut().enumerate() {
            let taken = i64::from(*word) - i64::from(other.0.get(index).copied().unwrap_or(0)) - borrow;
            borrow = i64::from(taken < 0);
            *word = taken as u32;
        }
        self.trim();
    }

    /// Divides in place; the remainder.
    fn divide_small(&mut self, divisor: u32) -> u32 {
        let mut rest = 0;
        for word in self.0.iter_mut().rev() {
            let value = u64::from(rest) << 32 | u64::from(*word);
            *word = (value / u64::from(divisor)) as u32;
            rest = (value % u64::from(divisor)) as u32;
        }
        self.trim();
        rest
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Float80;

    fn sum(a: &str, b: &str) -> String {
        let parsed = |text: &str| Float80::parse(text.as_bytes()).unwrap_or_else(|| panic!("{text}"));
        parsed(a).plus(parsed(b)).and_then(Float80::print).unwrap_or_else(|| panic!("{a} + {b}"))
    }

    /// Replies of a Redis 7.0 server to SET and INCRBYFLOAT.
    #[test]
    fn sums_print_as_redis_prints_them() {
        for (a, b, expected) in [
            ("0", "0.1", "0.1"),
            ("0.1", "0.2", "0.3"),
            ("3.0e3", "200", "3200"),
            ("10.50", "0.1", "10.6"),
            ("-1", "1", "0"),
            ("1", "-1.5", "-0.5"),
            ("1e20", "1", "100000000000000000000"),
            ("1e18", "1", "1000000000000000001"),
            ("0x10", "0.5", "16.5"),
            ("-0", "0", "0"),
            ("1e-20", "0", "0"),
        ] {
            assert_eq!(sum(a, b), expected, "{a} + {b}");
        }
    }

    #[test]
    fn what_strtold_does_not_take_whole_is_refused() {
        for text in [
            "", ".", "e5", "1e", "1e+", "1x", " 1", "1 ", "0x", "0xp1", "nan", "-nan", "1e5000", "1e-5000",
            "--1", "1.2.3",
        ] {
            assert_eq!(Float80::parse(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(Float80::parse(b"-inF"), Some(Float80::Infinite(true)));
    }

    #[test]
    fn infinities_cancel_to_nothing() {
        let (plus, minus) = (Float80::Infinite(false), Float80::Infinite(true));
        assert_eq!(plus.plus(minus), None);
        assert_eq!(plus.plus(plus).and_then(Float80::print), None);
        let large = Float80::parse(b"1e4932").unwrap();
        assert_eq!(large.plus(large), Some(plus));
    }

    proptest! {
        /// Integers of 63 bits and their sums are exact in this format.
        #[test]
        fn integers_add_exactly(a in any::<i64>(), b in any::<i64>()) {
            let expected = i128::from(a) + i128::from(b);
            // 65 bits may be rounded.
            prop_assume!(i64::try_from(expected).is_ok());
            prop_assert_eq!(sum(&a.to_string(), &b.to_string()), expected.to_string());
        }

        /// Dyadic fractions are exact, so that printing them must be too.
        #[test]
        fn fractions_print_exactly(a in -(1_i64 << 40)..(1_i64 << 40)) {
            let value = a as f64 / 1024.0;
            let printed = sum(&value.to_string(), "0");
            prop_assert_eq!(printed.parse::<f64>().unwrap(), value);
        }

        #[test]
        fn no_text_panics(text in "[-+0-9a-fxpeEinf.]{0,12}") {
            if let Some(value) = Float80::parse(text.as_bytes()) {
                let _ = value.plus(value).and_then(Float80::print);
                prop_assert_eq!(value.plus(Float80::ZERO).and_then(Float80::print), value.print());
            }
        }
    }
}
