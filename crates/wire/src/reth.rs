//! RETH, the RDMA extended transport header: where in the responder's memory, and how much.
//!
//! Read first: IBA Vol 1, 9.3.3.
//!
//! ```text
//!  0..8    virtual address
//!  8..12   R_Key
//!  12..16  DMA length
//! ```

use crate::types::Rkey;

/// Bytes of a RETH.
pub const LEN: usize = 16;

/// A RETH as the engine acts on it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Repr {
    /// First virtual address.
    pub va: u64,
    /// The key of the memory region or window that holds the range.
    pub rkey: Rkey,
    /// Length of the whole message, in bytes.
    pub dma_len: u32,
}

impl Repr {
    /// Reads the header.
    #[must_use]
    pub const fn parse(bytes: &[u8; LEN]) -> Self {
        let b = bytes;
        Self {
            va: u64::from_be_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]),
            rkey: Rkey(u32::from_be_bytes([b[8], b[9], b[10], b[11]])),
            dma_len: u32::from_be_bytes([b[12], b[13], b[14], b[15]]),
        }
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, bytes: &mut [u8; LEN]) {
        bytes[..8].copy_from_slice(&self.va.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.rkey.0.to_be_bytes());
        bytes[12..].copy_from_slice(&self.dma_len.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout() {
        let repr = Repr { va: 0x0102_0304_0506_0708, rkey: Rkey(0x1112_1314), dma_len: 0x8000_0000 };
        let mut bytes = [0xee; LEN];
        repr.emit(&mut bytes);
        assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0x80, 0, 0, 0]);
        assert_eq!(Repr::parse(&bytes), repr);
    }
}
