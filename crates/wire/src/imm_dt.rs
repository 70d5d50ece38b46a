//! ImmDt: 4 bytes of immediate data, which reach the responder's consumer in a work completion.
//!
//! Read first: IBA Vol 1, 9.3. The bytes are the consumer's; we call their big-endian value *the* immediate,
//! as verbs programs do when they write `htonl(value)`.

/// Bytes of an ImmDt.
pub const LEN: usize = 4;

/// An ImmDt as the engine acts on it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Repr {
    /// The immediate, in host order.
    pub imm: u32,
}

impl Repr {
    /// Reads the header.
    #[must_use]
    pub const fn parse(bytes: &[u8; LEN]) -> Self {
        Self { imm: u32::from_be_bytes(*bytes) }
    }

    /// Writes the header.
    pub const fn emit(&self, bytes: &mut [u8; LEN]) {
        *bytes = self.imm.to_be_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout() {
        let mut bytes = [0; LEN];
        Repr { imm: 0x0102_0304 }.emit(&mut bytes);
        assert_eq!(bytes, [1, 2, 3, 4]);
        assert_eq!(Repr::parse(&bytes).imm, 0x0102_0304);
    }
}
