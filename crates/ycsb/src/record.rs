//! What is in a record.

use crate::random::Random;

/// Fields by number, with their bytes. A read gives them in ascending order.
pub type Record = Vec<(usize, Vec<u8>)>;

/// Printable bytes, six to a draw and five bits of it to each, as YCSB's `RandomByteIterator` makes them.
#[must_use]
pub fn random_bytes(len: usize, random: &mut impl Random) -> Vec<u8> {
    const MASKS: [u32; 6] = [31, 63, 95, 31, 63, 95];
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        // Java shifts a signed integer, so that the sixth byte sees its sign twice.
        let draw = random.next_u32().cast_signed();
        for (index, mask) in MASKS.into_iter().enumerate().take(len - bytes.len()) {
            let bits = (draw >> (5 * index)).cast_unsigned() & mask;
            bytes.push(b' ' + bits as u8);
        }
    }
    bytes
}

/// The value that `dataintegrity` expects of a field: key, field name and hashes of what stands before them, up to the
/// length.
#[must_use]
pub fn deterministic(key: &[u8], field: &str, len: usize) -> Vec<u8> {
    let mut value = Vec::with_capacity(len + 16);
    value.extend_from_slice(key);
    value.push(b':');
    value.extend_from_slice(field.as_bytes());
    // Java's `String.hashCode`, which can be carried on from what it was over the part before.
    let mut hashed = 0;
    let mut hash = 0_i32;
    while value.len() < len {
        value.push(b':');
        for &byte in &value[hashed..] {
            hash = hash.wrapping_mul(31).wrapping_add(i32::from(byte));
        }
        hashed = value.len();
        value.extend_from_slice(hash.to_string().as_bytes());
    }
    value.truncate(len);
    value
}

#[cfg(test)]
mod tests {
    use super::{deterministic, random_bytes};
    use crate::random::Seeded;

    #[test]
    fn random_values_are_printable_and_of_the_asked_length() {
        let mut random = Seeded::new(1, 0);
        for len in [0, 1, 5, 6, 7, 100] {
            let value = random_bytes(len, &mut random);
            assert_eq!(value.len(), len);
            assert!(value.iter().all(|byte| (b' '..=b' ' + 95).contains(byte)), "{value:?}");
        }
    }

    #[test]
    fn expected_values_start_with_what_they_belong_to() {
        let value = deterministic(b"user42", "field3", 100);
        assert_eq!(value.len(), 100);
        assert!(value.starts_with(b"user42:field3:"));
        assert_eq!(deterministic(b"user42", "field3", 4), b"user");
    }
}
