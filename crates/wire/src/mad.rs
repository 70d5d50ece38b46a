//! MAD, the management datagram: 256 bytes that travel as UD SEND Only between the QPs 1 of two ports.
//!
//! Read first: IBA Vol 1, 13.4 (MAD format).
//!
//! ```text
//!   0       base version        4..6   status             16..18  attribute id
//!   1       management class    6..8   class specific     18..20  reserved
//!   2       class version       8..16  transaction id     20..24  attribute modifier
//!   3       method                                        24..    data
//! ```

/// Bytes of a MAD.
pub const LEN: usize = 256;
/// Bytes of the common header.
pub const HEADER_LEN: usize = 24;
/// Bytes behind the common header.
pub const DATA_LEN: usize = LEN - HEADER_LEN;

/// The management class of communication management.
pub const CLASS_CM: u8 = 0x07;
/// The class version of communication management.
pub const CLASS_VERSION_CM: u8 = 2;
/// The method *Send*, which every communication management message uses.
pub const METHOD_SEND: u8 = 0x03;
const BASE_VERSION: u8 = 1;

/// The common header.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Header {
    /// Version of this header, 1.
    pub base_version: u8,
    /// The management class, which decides the format of the data.
    pub class: u8,
    /// Version of the class.
    pub class_version: u8,
    /// Method, with the response bit.
    pub method: u8,
    /// Status; zero in requests.
    pub status: u16,
    /// Bits that each management class defines for itself.
    pub class_specific: u16,
    /// Relates answers to questions.
    pub transaction_id: u64,
    /// What the data is about.
    pub attribute_id: u16,
    /// More about what.
    pub attribute_modifier: u32,
}

impl Header {
    /// The header of a communication management message.
    #[must_use]
    pub const fn cm(transaction_id: u64, attribute_id: u16) -> Self {
        Self {
            base_version: BASE_VERSION,
            class: CLASS_CM,
            class_version: CLASS_VERSION_CM,
            method: METHOD_SEND,
            status: 0,
            class_specific: 0,
            transaction_id,
            attribute_id,
            attribute_modifier: 0,
        }
    }

    /// Whether version, class and method are those of communication management.
    #[must_use]
    pub const fn is_cm(&self) -> bool {
        self.base_version == BASE_VERSION
            && self.class == CLASS_CM
            && self.class_version == CLASS_VERSION_CM
            && self.method == METHOD_SEND
    }

    /// Reads the header of a MAD.
    #[must_use]
    pub fn parse(mad: &[u8; LEN]) -> Self {
        let b = mad;
        Self {
            base_version: b[0],
            class: b[1],
            class_version: b[2],
            method: b[3],
            status: u16::from_be_bytes([b[4], b[5]]),
            class_specific: u16::from_be_bytes([b[6], b[7]]),
            transaction_id: u64::from_be_bytes([b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]]),
            attribute_id: u16::from_be_bytes([b[16], b[17]]),
            attribute_modifier: u32::from_be_bytes([b[20], b[21], b[22], b[23]]),
        }
    }

    /// Writes the header of a MAD; the data is left alone.
    pub fn emit(&self, mad: &mut [u8; LEN]) {
        mad[..4].copy_from_slice(&[self.base_version, self.class, self.class_version, self.method]);
        mad[4..6].copy_from_slice(&self.status.to_be_bytes());
        mad[6..8].copy_from_slice(&self.class_specific.to_be_bytes());
        mad[8..16].copy_from_slice(&self.transaction_id.to_be_bytes());
        mad[16..18].copy_from_slice(&self.attribute_id.to_be_bytes());
        mad[18..20].fill(0);
        mad[20..24].copy_from_slice(&self.attribute_modifier.to_be_bytes());
    }
}
