//! What a pool knows of a blob: name, digest, version.

use std::fmt;

use thiserror::Error;

/// The longest name, in bytes.
pub const MAX_NAME: usize = 1023;

/// A blob's name: 1 to [`MAX_NAME`] bytes of UTF-8 without control characters, so that it can be printed as it is.
///
/// Slashes have no meaning to a pool; who writes blobs into a file tree must check the parts (`rem get` does).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlobName(Box<str>);

/// Why a text is no blob name.
#[derive(Clone, Copy, PartialEq, Eq, Error)]
pub enum BadName {
    /// Empty.
    #[error("a blob name may not be empty")]
    Empty,
    /// Too long.
    #[error("a blob name may have at most {MAX_NAME} bytes")]
    TooLong,
    /// Not UTF-8.
    #[error("a blob name must be UTF-8")]
    NotUtf8,
    /// Control characters.
    #[error("a blob name may not hold control characters")]
    Control,
}

/// Debug is the sentence as well: it is what a program prints whose `main` returns the error.
impl fmt::Debug for BadName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl BlobName {
    /// Checks and takes a name.
    ///
    /// # Errors
    /// See [`BadName`].
    pub fn new(name: &str) -> Result<Self, BadName> {
        match name.len() {
            0 => Err(BadName::Empty),
            n if n > MAX_NAME => Err(BadName::TooLong),
            _ if name.chars().any(char::is_control) => Err(BadName::Control),
            _ => Ok(Self(name.into())),
        }
    }

    /// Checks and takes the bytes of a name.
    ///
    /// # Errors
    /// See [`BadName`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, BadName> {
        Self::new(std::str::from_utf8(bytes).map_err(|_| BadName::NotUtf8)?)
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for BlobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for BlobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &self.0)
    }
}

/// The BLAKE3 digest of a blob's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// The digest of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }

    /// Begins the digest of bytes that come in parts.
    #[must_use]
    pub fn hasher() -> DigestHasher {
        DigestHasher(blake3::Hasher::new())
    }
}

/// A digest in the making.
#[derive(Clone, Debug)]
pub struct DigestHasher(blake3::Hasher);

impl DigestHasher {
    /// The next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of all bytes so far.
    #[must_use]
    pub fn finish(&self) -> Digest {
        Digest(*self.0.finalize().as_bytes())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// Orders the states of one name on all servers: the larger one is the newer one.
///
/// A writer takes the largest counter that it saw on any server plus one; `writer`, a number drawn once per
/// client, decides between two that did so at the same time. All servers then end with the same one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Version {
    /// Counts the states of this name, from 1.
    pub counter: u64,
    /// Who wrote it.
    pub writer: u64,
}

impl Version {
    /// The version before any.
    pub const NONE: Self = Self { counter: 0, writer: 0 };

    /// The next one, by `writer`.
    #[must_use]
    pub const fn next(self, writer: u64) -> Self {
        Self { counter: self.counter.saturating_add(1), writer }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.counter)
    }
}

/// What a name stands for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum State {
    /// A blob of `len` bytes.
    Live {
        /// Bytes.
        len: u64,
        /// Their digest.
        digest: Digest,
    },
    /// Deleted; kept, so that a server that was away learns of it and does not bring the blob back.
    Deleted,
}

/// One line of a catalogue listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listing {
    /// The name.
    pub name: BlobName,
    /// Which version.
    pub version: Version,
    /// What it stands for.
    pub state: State,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_not_be_printed_or_stored_are_refused() {
        assert_eq!(BlobName::new(""), Err(BadName::Empty));
        assert_eq!(BlobName::new(&"x".repeat(1024)), Err(BadName::TooLong));
        assert_eq!(BlobName::new("a\nb"), Err(BadName::Control));
        assert_eq!(BlobName::new("\u{1b}[31m"), Err(BadName::Control));
        assert_eq!(BlobName::from_bytes(&[0xFF]), Err(BadName::NotUtf8));
        assert_eq!(BlobName::new(&"x".repeat(1023)).map(|n| n.as_str().len()), Ok(1023));
        assert_eq!(BlobName::new("src/ü.rs").map(|n| n.to_string()), Ok("src/ü.rs".into()));
    }

    #[test]
    fn the_digest_is_what_b3sum_prints() {
        assert_eq!(
            Digest::of(b"").to_string(),
            "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
        );
    }

    #[test]
    fn two_writers_at_once_are_decided_the_same_way_everywhere() {
        let seen = Version { counter: 7, writer: 99 };
        assert!(seen.next(1) > seen && seen.next(2) > seen.next(1));
        assert_eq!(Version::NONE.next(5), Version { counter: 1, writer: 5 });
    }
}
