//! What messages of a pool have besides integers, which are big-endian, as everything that travels.

use remanence_codec::{Malformed, Reader, Writer};

use crate::blob::{BlobName, Digest, Version};

/// Values that are taken off the front of a message.
pub(super) trait Take: Sized {
    fn name(&mut self) -> Result<BlobName, Malformed>;
    fn text(&mut self) -> Result<String, Malformed>;
    fn version(&mut self) -> Result<Version, Malformed>;
    fn digest(&mut self) -> Result<Digest, Malformed>;
    /// A counted list. An element takes bytes of its own, so the count cannot make it larger than the message.
    fn list<T>(
        &mut self,
        element: impl FnMut(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed>;
}

impl Take for Reader<'_> {
    fn name(&mut self) -> Result<BlobName, Malformed> {
        let (len, here) = (self.u16_be()?, self.malformed());
        BlobName::from_bytes(self.take(len.into())?).map_err(|_| here)
    }

    fn text(&mut self) -> Result<String, Malformed> {
        let (len, here) = (self.u16_be()?, self.malformed());
        let text = std::str::from_utf8(self.take(len.into())?).map_err(|_| here)?;
        // It will be printed: no terminal may be told what to do by a peer.
        if text.chars().any(char::is_control) { Err(here) } else { Ok(text.to_owned()) }
    }

    fn version(&mut self) -> Result<Version, Malformed> {
        Ok(Version { counter: self.u64_be()?, writer: self.u64_be()? })
    }

    fn digest(&mut self) -> Result<Digest, Malformed> {
        self.array().map(Digest)
    }

    fn list<T>(
        &mut self,
        element: impl FnMut(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let count = self.u16_be()?;
        self.many(count.into(), 1, element)
    }
}

/// Values that are appended to a message.
pub(super) trait Put {
    fn text(&mut self, text: &str);
    fn version(&mut self, version: Version);
    fn list<T>(&mut self, list: &[T], element: impl FnMut(&mut Self, &T));
}

impl Put for Writer {
    fn text(&mut self, text: &str) {
        self.u16_be(text.len().try_into().expect("texts are bounded by who makes the message"));
        self.bytes(text.as_bytes());
    }

    fn version(&mut self, version: Version) {
        self.u64_be(version.counter);
        self.u64_be(version.writer);
    }

    fn list<T>(&mut self, list: &[T], mut element: impl FnMut(&mut Self, &T)) {
        self.u16_be(list.len().try_into().expect("lists are bounded by who makes the message"));
        list.iter().for_each(|item| element(self, item));
    }
}
