//! Bytes in and out, bounded: nothing here reads past the end, and no length from a peer is believed.

/// Bytes that are no message of this protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the peer sent bytes that are no message of this protocol; are both sides of the same release?")]
pub struct Malformed;

/// Takes values off the front. Integers are big-endian, as everything that travels.
#[derive(Debug)]
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn bytes<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*head)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.bytes::<1>()?[0])
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Malformed> {
        self.bytes().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        self.bytes().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        self.bytes().map(u64::from_be_bytes)
    }

    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (head, rest) = self.0.split_at_checked(len).ok_or(Malformed)?;
        self.0 = rest;
        Ok(head)
    }

    /// What is left.
    pub(crate) const fn rest(&self) -> &'a [u8] {
        self.0
    }
}

/// A sentence of a peer, as far as it may be printed: no terminal is told what to do by it, and the zeros that pad the
/// field are not part of it.
pub(crate) fn sentence(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.trim_end_matches('\0').chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// As much of a sentence as fits.
pub(crate) fn clipped(text: &str, max: usize) -> &[u8] {
    let mut end = text.len().min(max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text.as_bytes()[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_is_clipped_at_a_character_and_tells_no_terminal_what_to_do() {
        assert_eq!(clipped("a\u{e9}", 2), b"a");
        assert_eq!(clipped("abc", 10), b"abc");
        assert_eq!(sentence(b"no\x1b[2Jway\0\0"), "no [2Jway");
    }
}
