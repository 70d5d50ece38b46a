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

/// A view of an AtomicETH.
#[derive(Clone, Copy, Debug)]
pub struct Header<'a>(&'a [u8; LEN]);

impl<'a> Header<'a> {
    /// The view of exactly an AtomicETH's bytes.
    #[must_use]
    pub const fn of(bytes: &'a [u8; LEN]) -> Self {
        Self(bytes)
    }

    const fn u64_at(self, at: usize) -> u64 {
        let b = self.0;
        u64::from_be_bytes([
            b[at],
            b[at + 1],
            b[at + 2],
            b[at + 3],
            b[at + 4],
            b[at + 5],
            b[at + 6],
            b[at + 7],
        ])
    }

    /// The responder's virtual address of the 8 bytes that the atomic works on.
    #[must_use]
    pub const fn va(self) -> u64 {
        self.u64_at(0)
    }

    /// The key of the memory region or window that holds the operand.
    #[must_use]
    pub const fn rkey(self) -> Rkey {
        Rkey(u32::from_be_bytes([self.0[8], self.0[9], self.0[10], self.0[11]]))
    }

    /// What to store (CmpSwap) or to add (FetchAdd).
    #[must_use]
    pub const fn swap_or_add(self) -> u64 {
        self.u64_at(12)
    }

    /// What to compare with (CmpSwap).
    #[must_use]
    pub const fn compare(self) -> u64 {
        self.u64_at(20)
    }
}

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
    /// Reads a view.
    #[must_use]
    pub const fn parse(header: Header<'_>) -> Self {
        Self {
            va: header.va(),
            rkey: header.rkey(),
            swap_or_add: header.swap_or_add(),
            compare: header.compare(),
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
        assert_eq!(Repr::parse(Header::of(&bytes)), repr);
    }
}
