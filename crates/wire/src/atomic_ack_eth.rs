//! AtomicAckETH: the value that an atomic found.
//!
//! Read first: IBA Vol 1, 9.3 (extension headers).

/// Bytes of an AtomicAckETH.
pub const LEN: usize = 8;

/// An AtomicAckETH as the engine acts on it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Repr {
    /// What was there before the atomic.
    pub original: u64,
}

impl Repr {
    /// Reads the header.
    #[must_use]
    pub const fn parse(bytes: &[u8; LEN]) -> Self {
        Self { original: u64::from_be_bytes(*bytes) }
    }

    /// Writes the header.
    pub const fn emit(&self, bytes: &mut [u8; LEN]) {
        *bytes = self.original.to_be_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout() {
        let mut bytes = [0; LEN];
        Repr { original: 0x0102_0304_0506_0708 }.emit(&mut bytes);
        assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(Repr::parse(&bytes).original, 0x0102_0304_0506_0708);
    }
}
