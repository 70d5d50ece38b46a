//! AtomicETH, the extended transport header of CmpSwap and FetchAdd requests.
//!
//! Read first: IBA Vol 1, 9.3 (extension headers).
//!
//! ```text
//!  0..8    virtual address
//!  8..12   R_Key
//!  12..20  swap data (CmpSwap) or add data (FetchAdd)
//!  20..28  compare data (CmpSwap); not looked at for FetchAdd
//! ```

use crate::types::Rkey;

/// Bytes of an AtomicETH.
pub const LEN: usize = 28;

/// An AtomicETH as the engine acts on it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Repr {
    /// Virtual address, 8-byte aligned if the request is to be executed.
    pub va: u64,
    /// The key of the memory region or window that holds the operand.
    pub rkey: Rkey,
    /// What to store (CmpSwap) or to add (FetchAdd).
    pub swap_or_add: u64,
    /// What to compare with (CmpSwap); zero for FetchAdd.
    pub compare: u64,
}

impl Repr {
    /// Reads the header.
    #[must_use]
    pub const fn parse(bytes: &[u8; LEN]) -> Self {
        let b = bytes;
        Self {
            va: u64::from_be_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]),
            rkey: Rkey(u32::from_be_bytes([b[8], b[9], b[10], b[11]])),
            swap_or_add: u64::from_be_bytes([b[12], b[13], b[14], b[15], b[16], b[17], b[18], b[19]]),
            compare: u64::from_be_bytes([b[20], b[21], b[22], b[23], b[24], b[25], b[26], b[27]]),
        }
    }

    /// Writes the header.
    pub fn emit(&self, bytes: &mut [u8; LEN]) {
        bytes[..8].copy_from_slice(&self.va.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.rkey.0.to_be_bytes());
        bytes[12..20].copy_from_slice(&self.swap_or_add.to_be_bytes());
        bytes[20..].copy_from_slice(&self.compare.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout() {
        let repr = Repr { va: 8, rkey: Rkey(9), swap_or_add: 0x0102_0304_0506_0708, compare: u64::MAX - 1 };
        let mut bytes = [0xee; LEN];
        repr.emit(&mut bytes);
        assert_eq!(bytes[..12], [0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 9]);
        assert_eq!(bytes[12..20], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(bytes[20..], [255, 255, 255, 255, 255, 255, 255, 254]);
        assert_eq!(Repr::parse(&bytes), repr);
    }
}
