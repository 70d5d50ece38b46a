//! Names of what is made on a medium.

use std::fmt;

/// Sixteen bytes that name something for as long as it exists: a pool, a log, a group of logs. Drawn at random by who
/// makes it; printed as RFC 9562 prints UUIDs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Uuid(pub [u8; 16]);

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, byte) in self.0.iter().enumerate() {
            f.write_str(if matches!(n, 4 | 6 | 8 | 10) { "-" } else { "" })?;
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_printed_as_the_rfc_prints_it() {
        let bytes = *b"\x01\x23\x45\x67\x89\xab\xcd\xef\x01\x23\x45\x67\x89\xab\xcd\xef";
        assert_eq!(Uuid(bytes).to_string(), "01234567-89ab-cdef-0123-456789abcdef");
    }
}
