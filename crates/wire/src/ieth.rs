//! IETH, the invalidate extended transport header: the R_Key that a SEND takes away at the responder.
//!
//! Read first: IBA Vol 1, 9.3.

use crate::types::Rkey;

/// Bytes of an IETH.
pub const LEN: usize = 4;

/// An IETH as the engine acts on it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Repr {
    /// The key to invalidate.
    pub rkey: Rkey,
}

impl Repr {
    /// Reads the header.
    #[must_use]
    pub const fn parse(bytes: &[u8; LEN]) -> Self {
        Self { rkey: Rkey(u32::from_be_bytes(*bytes)) }
    }

    /// Writes the header.
    pub const fn emit(&self, bytes: &mut [u8; LEN]) {
        *bytes = self.rkey.0.to_be_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout() {
        let mut bytes = [0; LEN];
        Repr { rkey: Rkey(0x0102_0304) }.emit(&mut bytes);
        assert_eq!(bytes, [1, 2, 3, 4]);
        assert_eq!(Repr::parse(&bytes).rkey, Rkey(0x0102_0304));
    }
}
