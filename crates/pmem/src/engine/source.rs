//! What is copied: owned by the engine until the copy is done, so that nothing can change it under the copy.

use std::fmt;
use std::ops::Range;

use super::Bytes;
use crate::region::Region;

/// Bytes to be copied.
pub struct Source(Kind);

enum Kind {
    Owned { bytes: Vec<u8>, range: Range<usize> },
    Region { region: Region, offset: u64, len: u64 },
}

impl Source {
    /// Part of a buffer: a message without the header in front of it, say.
    ///
    /// # Panics
    /// The range does not lie in the buffer.
    #[must_use]
    pub fn part(bytes: Vec<u8>, range: Range<usize>) -> Self {
        assert!(
            range.start <= range.end && range.end <= bytes.len(),
            "{range:?} does not lie in a buffer of {}",
            bytes.len()
        );
        Self(Kind::Owned { bytes, range })
    }

    /// Part of a region, such as a receive buffer that is copied where it lies. Whoever gave the region to a peer sees
    /// to it that the peer does not write there before the copy is done: else it copies a mixture.
    ///
    /// # Panics
    /// The range does not lie in the region.
    #[must_use]
    pub fn region(region: &Region, offset: u64, len: u64) -> Self {
        assert!(region.contains(offset, len), "{len} bytes at {offset} do not lie in {}", region.len());
        Self(Kind::Region { region: region.clone(), offset, len })
    }

    /// How many bytes are copied.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.bytes().len()
    }

    /// Whether no byte is copied.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The buffer, whole, to be used again; `None` of a region.
    #[must_use]
    pub fn into_bytes(self) -> Option<Vec<u8>> {
        match self.0 {
            Kind::Owned { bytes, .. } => Some(bytes),
            Kind::Region { .. } => None,
        }
    }

    /// What stands for a source that went down with its engine.
    pub(super) const fn lost() -> Self {
        Self(Kind::Owned { bytes: Vec::new(), range: 0..0 })
    }

    pub(super) fn bytes(&self) -> Bytes<'_> {
        match &self.0 {
            Kind::Owned { bytes, range } => Bytes::Slice(&bytes[range.clone()]),
            Kind::Region { region, offset, len } => Bytes::Region(region, *offset, *len),
        }
    }
}

impl From<Vec<u8>> for Source {
    /// All of a buffer.
    fn from(bytes: Vec<u8>) -> Self {
        let range = 0..bytes.len();
        Self(Kind::Owned { bytes, range })
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Owned { range, .. } => write!(f, "Source({} bytes, owned)", range.len()),
            Kind::Region { offset, len, .. } => write!(f, "Source({len} bytes at {offset} of a region)"),
        }
    }
}
