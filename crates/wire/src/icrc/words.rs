//! The CRC of long messages without tables, for CPUs without an instruction for carry-less products: emulated ones above
//! all, where a look-up in a table for each byte costs several times as much as a few operations on a register.
//!
//! P divides x^300 + x^155 + x^117 + x^89 + 1, found by search: no multiple with so few terms has a lower degree. So a 64-bit
//! word may be taken out of the message if it is added again 145, 183, 211 and 300 bits later, all of which is in the
//! words behind it: eight shifts and as many additions, where tables take eight loads. What has been added to each of the next
//! five words is in registers. The last words are left for tables. Read first: Russell, *Chorba: a novel CRC32
//! implementation* (2024), who has the idea and a family of such multiples.

use std::array;

/// A message must leave this much behind the loop, for what the last word adds.
const CARRIED: usize = 5 * WORD;
const WORD: usize = 8;
/// Bytes of one turn of the loop.
const BLOCK: usize = 8 * WORD;

/// Shorter messages are done sooner by tables, and too short for the loop anyway.
const MIN: usize = 192;

/// Whether this is faster than what `crc32fast` would do with so many bytes here.
#[inline]
pub(super) fn pays(len: usize) -> bool {
    len >= MIN && !has_products()
}

/// `crc32fast` has a version for this CPU that does without tables.
#[cfg(target_arch = "x86_64")]
fn has_products() -> bool {
    std::is_x86_feature_detected!("pclmulqdq") && std::is_x86_feature_detected!("sse4.1")
}

/// This CPU has CRC instructions, which `crc32fast` uses.
#[cfg(target_arch = "aarch64")]
fn has_products() -> bool {
    std::arch::is_aarch64_feature_detected!("crc")
}

/// `crc32fast` has no version for this kind of CPU that does without tables.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn has_products() -> bool {
    false
}

/// The words that begin a message, which has as many bytes.
#[inline]
#[expect(clippy::little_endian_bytes, reason = "the first bit of the message is the least significant one")]
fn words<const N: usize>(bytes: &[u8]) -> [u64; N] {
    array::from_fn(|i| u64::from_le_bytes(array::from_fn(|j| bytes[WORD * i + j])))
}

/// The register behind `message`, which is at least [`MIN`] bytes long.
pub(super) fn update(register: u32, message: &[u8]) -> u32 {
    let blocks = (message.len() - CARRIED) / BLOCK;
    let (body, rest) = message.split_at(blocks * BLOCK);
    let [mut a, mut b, mut c, mut d, mut e] = [u64::from(register), 0, 0, 0, 0];
    for block in body.chunks_exact(BLOCK) {
        for word in words::<8>(block) {
            let word = word ^ a;
            a = b;
            b = c ^ word << 17 ^ word << 55;
            c = d ^ word >> 47 ^ word >> 9 ^ word << 19;
            d = e ^ word >> 45 ^ word << 44;
            e = word >> 20;
        }
    }
    let mut last = [0; CARRIED + BLOCK];
    let last = &mut last[..rest.len()];
    last.copy_from_slice(rest);
    let carried = [a, b, c, d, e].into_iter().flat_map(u64::to_le_bytes);
    for (byte, carried) in last.iter_mut().zip(carried) {
        *byte ^= carried;
    }
    super::by_library(0, last)
}

#[cfg(test)]
mod tests {
    use super::super::by_library;
    use super::*;

    #[test]
    fn every_length_and_register_comes_out_as_from_the_library() {
        let message: Vec<u8> = (0..9000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        for len in (MIN..MIN + 3 * BLOCK).chain([1024, 2047, 4096, 4112, 8999]) {
            for register in [0, 1, 0x8000_0000, 0x1234_5678, u32::MAX] {
                for from in [0, 1] {
                    let message = &message[from..from + len];
                    assert_eq!(update(register, message), by_library(register, message), "{len} bytes");
                }
            }
        }
    }

    #[test]
    fn each_bit_of_a_word_counts() {
        let mut message = vec![0; 4096];
        for bit in 0..64 * 16 {
            message[bit / 8] = 1 << (bit % 8);
            assert_eq!(update(0, &message), by_library(0, &message), "bit {bit}");
            message[bit / 8] = 0;
        }
    }
}
