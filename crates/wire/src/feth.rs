//! FETH, the FLUSH extended transport header: what a FLUSH asks for, and of how much memory.
//!
//! Read first: IBA Vol 1, Annex A19 (memory placement extensions).
//!
//! ```text
//!  0..3  reserved
//!  3     reserved(2) selectivity level(2) placement type(4)
//! ```

use bitflags::bitflags;

/// Bytes of a FETH.
pub const LEN: usize = 4;

const SELECTIVITY_SHIFT: u32 = 4;
const PLACEMENT_MASK: u32 = 0x0f;

bitflags! {
    /// Placement type: one bit per guarantee. Reserved bits are kept, so that a responder can refuse them.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct PlacementType: u8 {
        /// Visible to every observer of the responder's memory.
        const GLOBAL_VISIBILITY = 1 << 0;
        /// In the persistence domain.
        const PERSISTENCE = 1 << 1;
    }
}

/// How much of the memory a FLUSH covers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum SelectivityLevel {
    /// The range of the RETH.
    Range = 0,
    /// The whole memory region of the RETH's key.
    MemoryRegion = 1,
    /// Value 2, to which Annex A19 gives no meaning.
    Reserved2 = 2,
    /// Value 3, to which Annex A19 gives no meaning.
    Reserved3 = 3,
}

/// A FETH as the engine acts on it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Repr {
    /// What is asked for.
    pub placement: PlacementType,
    /// Of how much memory.
    pub selectivity: SelectivityLevel,
}

impl Repr {
    /// Reads the header.
    #[must_use]
    pub const fn parse(bytes: &[u8; LEN]) -> Self {
        let bits = u32::from_be_bytes(*bytes);
        let selectivity = match bits >> SELECTIVITY_SHIFT & 3 {
            0 => SelectivityLevel::Range,
            1 => SelectivityLevel::MemoryRegion,
            2 => SelectivityLevel::Reserved2,
            _ => SelectivityLevel::Reserved3,
        };
        Self { placement: PlacementType::from_bits_retain((bits & PLACEMENT_MASK) as u8), selectivity }
    }

    /// Writes the header.
    pub const fn emit(&self, bytes: &mut [u8; LEN]) {
        let bits =
            (self.selectivity as u32) << SELECTIVITY_SHIFT | self.placement.bits() as u32 & PLACEMENT_MASK;
        *bytes = bits.to_be_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout() {
        let repr =
            Repr { placement: PlacementType::PERSISTENCE, selectivity: SelectivityLevel::MemoryRegion };
        let mut bytes = [0xee; LEN];
        repr.emit(&mut bytes);
        assert_eq!(bytes, [0, 0, 0, 0x12]);
        assert_eq!(Repr::parse(&bytes), repr);
    }

    #[test]
    fn all_64_values_survive_a_round_trip() {
        for value in 0..64 {
            let mut bytes = [0; LEN];
            Repr::parse(&[0, 0, 0, value]).emit(&mut bytes);
            assert_eq!(bytes, [0, 0, 0, value]);
        }
    }
}
