//! Bytes in and out, bounded: nothing here reads past the end, and no length from the wire is believed.

use crate::blob::{BlobName, Digest, Version};

/// A message that is not one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a malformed control message")]
pub struct Malformed;

/// Takes values off the front of a message. Integers are big-endian, as everything that travels.
#[derive(Debug)]
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) fn bytes<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*head)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.bytes::<1>()?[0])
    }

    pub(super) fn u16(&mut self) -> Result<u16, Malformed> {
        self.bytes().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Malformed> {
        self.bytes().map(u32::from_be_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Malformed> {
        self.bytes().map(u64::from_be_bytes)
    }

    pub(super) fn bool(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed),
        }
    }

    fn slice(&mut self) -> Result<&'a [u8], Malformed> {
        let len = self.u16()?.into();
        let (head, rest) = self.0.split_at_checked(len).ok_or(Malformed)?;
        self.0 = rest;
        Ok(head)
    }

    pub(super) fn name(&mut self) -> Result<BlobName, Malformed> {
        BlobName::from_bytes(self.slice()?).map_err(|_| Malformed)
    }

    pub(super) fn text(&mut self) -> Result<String, Malformed> {
        let text = std::str::from_utf8(self.slice()?).map_err(|_| Malformed)?;
        // It will be printed: no terminal may be told what to do by a peer.
        if text.chars().any(char::is_control) { Err(Malformed) } else { Ok(text.to_owned()) }
    }

    pub(super) fn version(&mut self) -> Result<Version, Malformed> {
        Ok(Version { counter: self.u64()?, writer: self.u64()? })
    }

    pub(super) fn digest(&mut self) -> Result<Digest, Malformed> {
        self.bytes().map(Digest)
    }

    /// A counted list. An element takes bytes of its own, so the count cannot make it larger than the message.
    pub(super) fn list<T>(
        &mut self,
        mut element: impl FnMut(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let count = self.u16()?;
        let mut list = Vec::new();
        for _ in 0..count {
            list.push(element(self)?);
        }
        Ok(list)
    }

    pub(super) const fn end(self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed) }
    }
}

/// Appends values to a message.
#[derive(Debug, Default)]
pub(super) struct Writer(pub(super) Vec<u8>);

impl Writer {
    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    pub(super) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(super) fn u16(&mut self, value: u16) {
        self.bytes(&value.to_be_bytes());
    }

    pub(super) fn u32(&mut self, value: u32) {
        self.bytes(&value.to_be_bytes());
    }

    pub(super) fn u64(&mut self, value: u64) {
        self.bytes(&value.to_be_bytes());
    }

    pub(super) fn text(&mut self, text: &str) {
        self.u16(text.len().try_into().expect("texts are bounded by who makes the message"));
        self.bytes(text.as_bytes());
    }

    pub(super) fn version(&mut self, version: Version) {
        self.u64(version.counter);
        self.u64(version.writer);
    }

    pub(super) fn list<T>(&mut self, list: &[T], mut element: impl FnMut(&mut Self, &T)) {
        self.u16(list.len().try_into().expect("lists are bounded by who makes the message"));
        list.iter().for_each(|item| element(self, item));
    }
}
