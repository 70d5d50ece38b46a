//! The CRC as what it is: arithmetic on polynomials over GF(2) modulo P.
//!
//! Because of that, the share of a byte in the CRC of a message depends on nothing but the byte and how many bytes
//! follow it, and shares add up (by xor). So the headers in front of a packet, of which only lengths and
//! identification change from one packet of a flow to the next, cost a few table look-ups; and an unknown
//! identification can be computed from the ICRC.
//!
//! A polynomial of degree below 32 is kept as the reflected CRC keeps it: bit 31 is the coefficient of x^0.

const POLYNOMIAL: u32 = 0xedb8_8320;
const ONE: u32 = 1 << 31;

/// The share of a byte in the CRC register `behind` bytes later: `BYTE[behind][byte]`.
type Table = [u32; 256];

const fn byte_table(behind: u32) -> Table {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut register = byte as u32;
        let mut bits = 8 * (behind + 1);
        while bits > 0 {
            register = times_x(register);
            bits -= 1;
        }
        table[byte] = register;
        byte += 1;
    }
    table
}

/// The register of a message, from its inverted start on.
pub(super) const fn register(message: &[u8]) -> u32 {
    let mut register = u32::MAX;
    let mut at = 0;
    while at < message.len() {
        register ^= message[at] as u32;
        let mut bits = 8;
        while bits > 0 {
            register = times_x(register);
            bits -= 1;
        }
        at += 1;
    }
    register
}

/// The share of a big-endian 16-bit number that `behind` bytes follow.
pub(super) struct Number16([Table; 2]);

impl Number16 {
    pub(super) const fn new(behind: usize) -> Self {
        Self([byte_table(behind as u32 + 1), byte_table(behind as u32)])
    }

    #[inline]
    pub(super) const fn share(&self, number: u16) -> u32 {
        let [high, low] = number.to_be_bytes();
        self.0[0][high as usize] ^ self.0[1][low as usize]
    }
}

/// The register after `N` more bytes.
pub(super) struct Bytes<const N: usize>([Table; N]);

impl<const N: usize> Bytes<N> {
    pub(super) const fn new() -> Self {
        let mut tables = [[0; 256]; N];
        let mut at = 0;
        while at < N {
            tables[at] = byte_table((N - 1 - at) as u32);
            at += 1;
        }
        Self(tables)
    }

    /// The first four bytes meet the register's; every look-up is independent of the others.
    #[inline]
    #[expect(
        clippy::little_endian_bytes,
        reason = "the register's least significant byte meets the first byte"
    )]
    pub(super) fn update(&self, register: u32, bytes: &[u8; N]) -> u32 {
        let mut front = [0; N];
        front[..4].copy_from_slice(&register.to_le_bytes());
        let mut share = 0;
        for ((table, byte), front) in self.0.iter().zip(bytes).zip(front) {
            share ^= table[usize::from(byte ^ front)];
        }
        share
    }
}

/// `p * x`.
const fn times_x(p: u32) -> u32 {
    p >> 1 ^ (POLYNOMIAL & (p & 1).wrapping_neg())
}

/// `p / x`.
const fn over_x(p: u32) -> u32 {
    // `times_x` sets the coefficient of x^0 exactly when it reduced.
    if p & ONE == 0 { p << 1 } else { (p ^ POLYNOMIAL) << 1 | 1 }
}

const fn over_x_to(mut p: u32, n: u32) -> u32 {
    let mut i = 0;
    while i < n {
        p = over_x(p);
        i += 1;
    }
    p
}

/// `a * b`.
const fn times(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut i = 0;
    while i < 32 {
        product ^= b & (a >> (31 - i) & 1).wrapping_neg();
        b = times_x(b);
        i += 1;
    }
    product
}

/// The 16-bit number whose share, `behind` bytes later, is `share`; `None` if there is none, which of 65,536 random
/// shares is so for all but one. The inverse of [`Number16::share`]: P has a constant term, so that x can be divided by.
pub(super) fn number_of_share(share: u32, behind: u16) -> Option<u16> {
    /// `x^-(8 * low + 32)` for the low byte of `behind`. (32 as the CRC multiplies its message by x^32.)
    static OVER_LOW: Table = {
        let mut table = [over_x_to(ONE, 32); 256];
        let mut i = 1;
        while i < 256 {
            table[i] = over_x_to(table[i - 1], 8);
            i += 1;
        }
        table
    };
    /// `x^-(8 * 256 * high)` for the high byte.
    static OVER_HIGH: Table = {
        let step = over_x_to(ONE, 8 * 256);
        let mut table = [ONE; 256];
        let mut i = 1;
        while i < 256 {
            table[i] = times(table[i - 1], step);
            i += 1;
        }
        table
    };
    let [high, low] = behind.to_be_bytes();
    let number = times(times(share, OVER_LOW[usize::from(low)]), OVER_HIGH[usize::from(high)]);
    // A 16-bit number is a polynomial of degree below 16. Its first bit on the wire is the highest power.
    (number & 0xffff == 0).then_some(((number >> 16) as u16).swap_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn division_undoes_multiplication() {
        for p in [1, ONE, 0x1234_5678, u32::MAX] {
            assert_eq!(over_x(times_x(p)), p);
            assert_eq!(times(p, ONE), p);
            assert_eq!(times(p, over_x(ONE)), over_x(p));
        }
    }

    #[test]
    fn shares_are_those_of_crc32fast() {
        // The register starts and ends inverted; in the difference of two messages that cancels out.
        let difference = |message: &[u8]| crc32fast::hash(message) ^ crc32fast::hash(&vec![0; message.len()]);
        static NUMBER: Number16 = Number16::new(5);
        assert_eq!(NUMBER.share(0xbeef), difference(&[0xbe, 0xef, 0, 0, 0, 0, 0]));
        assert_eq!(!register(b"123456789"), crc32fast::hash(b"123456789"));
        static BYTES: Bytes<12> = Bytes::new();
        let message: [u8; 12] = std::array::from_fn(|i| (i * 37 + 1) as u8);
        assert_eq!(!BYTES.update(u32::MAX, &message), crc32fast::hash(&message));
    }

    #[test]
    fn numbers_and_shares_map_onto_each_other() {
        let numbers = Number16::new(300);
        for number in [0, 1, 0x0080, 0x8000, 0xbeef, 0xffff] {
            assert_eq!(number_of_share(numbers.share(number), 300), Some(number));
            assert_eq!(number_of_share(numbers.share(number) ^ 1, 300), None);
        }
    }
}
