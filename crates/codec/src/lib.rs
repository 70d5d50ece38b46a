//! Bytes of messages, in and out, bounded: nothing is read past the end, and no length from a peer is believed.
//!
//! A [`Reader`] takes values off the front of a message. It never panics, never allocates more than the message has bytes for, and
//! says at which byte it failed. A [`Writer`] appends values to a message that may have so many bytes, and says in the end whether
//! they were enough. Both name the byte order at each call, as messages of both orders are there: those of `pool` and `remote` are
//! big-endian, as the headers of the packets that they travel in; those of `kv` and `remotelog` are little-endian.
//!
//! **New messages are little-endian.** What lies on media is, and messages carry parts of that as they are (a log's
//! superblock and root in its status, objects of a store), so a message has one order, and not two.
//!
//! ```
//! use remanence_codec::{Malformed, Reader, Writer};
//!
//! let mut message = Writer::new(64);
//! message.u16_le(7);
//! message.bytes(b"abc");
//! let message = message.finish().expect("64 bytes are enough");
//!
//! let mut reader = Reader::new(&message);
//! assert_eq!(reader.u16_le()?, 7);
//! assert_eq!(reader.take(3)?, b"abc");
//! assert_eq!(reader.u8(), Err(Malformed { at: 5 }));
//! reader.end()?;
//! # Ok::<(), Malformed>(())
//! ```
//!
//! A message of several fields is a table of [`fields`] or [`tagged`], which is both read and written by it.
#![forbid(unsafe_code)]

mod table;

pub use table::{Field, Lists, Protocol};

/// Bytes that are no message of the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the peer sent bytes that are no message of this protocol (from byte {at} on); are both sides of the same release?"
)]
pub struct Malformed {
    /// The byte from which on they cannot be read.
    pub at: usize,
}

/// A message that would have more bytes than it may.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a message of {len} bytes was to be made, and it may have {max}")]
pub struct TooLong {
    /// Bytes that it would have.
    pub len: usize,
    /// Bytes that it may have.
    pub max: usize,
}

/// Takes values off the front of a message.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

macro_rules! integers {
    ($($integer:ident $be:ident $le:ident,)*) => {
        impl Reader<'_> {
            $(
                #[doc = concat!("Takes a big-endian `", stringify!($integer), "`.")]
                ///
                /// # Errors
                /// There are not so many bytes.
                pub fn $be(&mut self) -> Result<$integer, Malformed> {
                    self.array().map($integer::from_be_bytes)
                }

                #[doc = concat!("Takes a little-endian `", stringify!($integer), "`.")]
                ///
                /// # Errors
                /// There are not so many bytes.
                pub fn $le(&mut self) -> Result<$integer, Malformed> {
                    self.array().map($integer::from_le_bytes)
                }
            )*
        }

        impl Writer {
            $(
                #[doc = concat!("Appends a big-endian `", stringify!($integer), "`.")]
                pub fn $be(&mut self, value: $integer) {
                    self.bytes(&value.to_be_bytes());
                }

                #[doc = concat!("Appends a little-endian `", stringify!($integer), "`.")]
                pub fn $le(&mut self, value: $integer) {
                    self.bytes(&value.to_le_bytes());
                }
            )*
        }
    };
}

integers! {
    u16 u16_be u16_le,
    u32 u32_be u32_le,
    u64 u64_be u64_le,
}

impl<'a> Reader<'a> {
    /// Reads a message from its first byte on.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// How many bytes were taken.
    #[must_use]
    pub const fn at(&self) -> usize {
        self.at
    }

    /// The bytes that are left.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        &self.bytes[self.at..]
    }

    /// Says that what was taken last, or comes next, cannot be.
    ///
    /// # Errors
    /// It always does.
    pub const fn fail<T>(&self) -> Result<T, Malformed> {
        Err(self.malformed())
    }

    /// What [`fail`](Self::fail) returns, for who has an option.
    #[must_use]
    pub const fn malformed(&self) -> Malformed {
        Malformed { at: self.at }
    }

    /// Takes so many bytes.
    ///
    /// # Errors
    /// There are not so many.
    pub fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let taken = self.rest().get(..len).ok_or(self.malformed())?;
        self.at += len;
        Ok(taken)
    }

    /// Takes an array.
    ///
    /// # Errors
    /// There are not so many bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let taken = *self.rest().first_chunk().ok_or(self.malformed())?;
        self.at += N;
        Ok(taken)
    }

    /// Takes a byte.
    ///
    /// # Errors
    /// There is none.
    pub fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    /// Takes a byte that is 0 or 1.
    ///
    /// # Errors
    /// It is another one, or there is none.
    pub fn bool(&mut self) -> Result<bool, Malformed> {
        let here = self.malformed();
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(here),
        }
    }

    /// Takes so many items, each of which has `least` bytes at least: a count that the rest cannot hold is refused before anything
    /// is allocated for it.
    ///
    /// # Errors
    /// There are not so many bytes, or an item cannot be read.
    pub fn many<T>(
        &mut self,
        count: usize,
        least: usize,
        mut item: impl FnMut(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        if count > self.rest().len() / least.max(1) {
            return self.fail();
        }
        (0..count).map(|_| item(self)).collect()
    }

    /// Says that the message ends here.
    ///
    /// # Errors
    /// It does not.
    pub fn end(&self) -> Result<(), Malformed> {
        if self.rest().is_empty() { Ok(()) } else { self.fail() }
    }
}

/// Appends values to a message that has a limit.
#[derive(Clone, Debug)]
pub struct Writer {
    bytes: Vec<u8>,
    max: usize,
    /// Bytes that it would have.
    len: usize,
}

impl Writer {
    /// Begins a message of at most so many bytes.
    #[must_use]
    pub const fn new(max: usize) -> Self {
        Self { bytes: Vec::new(), max, len: 0 }
    }

    /// Appends bytes. What does not fit is left out, with all that follows; [`finish`](Self::finish) says so.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.len = self.len.saturating_add(bytes.len());
        if self.len <= self.max {
            self.bytes.extend_from_slice(bytes);
        }
    }

    /// Appends a byte.
    pub fn u8(&mut self, value: u8) {
        self.bytes(&[value]);
    }

    /// Ends the message, and hands out its bytes.
    ///
    /// # Errors
    /// It would have more bytes than it may.
    pub fn finish(self) -> Result<Vec<u8>, TooLong> {
        if self.len > self.max { Err(TooLong { len: self.len, max: self.max }) } else { Ok(self.bytes) }
    }
}

/// A peer's text, as far as it may be shown: no terminal is told what to do by it, and the zeros that pad its field are not
/// part of it.
#[must_use]
pub fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.trim_end_matches('\0').chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// As much of a text as fits so many bytes.
#[must_use]
pub fn clipped(text: &str, max: usize) -> &str {
    &text[..text.floor_char_boundary(max)]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_order_of_bytes_is_what_the_call_names() {
        let mut message = Writer::new(100);
        message.u8(1);
        message.u16_be(0x0203);
        message.u16_le(0x0302);
        message.u32_be(0x0405_0607);
        message.u32_le(0x0706_0504);
        message.u64_be(8);
        message.u64_le(9);
        let bytes = message.finish().expect("there is room");
        assert_eq!(bytes[..13], [1, 2, 3, 2, 3, 4, 5, 6, 7, 4, 5, 6, 7]);
        assert_eq!((bytes[20], bytes[21], bytes.len()), (8, 9, 29));
        let mut reader = Reader::new(&bytes);
        assert_eq!((reader.u8(), reader.u16_be(), reader.u16_le()), (Ok(1), Ok(0x0203), Ok(0x0302)));
        assert_eq!((reader.u32_be(), reader.u32_le()), (Ok(0x0405_0607), Ok(0x0706_0504)));
        assert_eq!((reader.u64_be(), reader.u64_le(), reader.end()), (Ok(8), Ok(9), Ok(())));
    }

    #[test]
    fn it_says_where_it_failed_and_takes_nothing_then() {
        let mut reader = Reader::new(&[1, 0, 2, 9]);
        assert_eq!(
            (reader.bool(), reader.bool(), reader.bool()),
            (Ok(true), Ok(false), Err(Malformed { at: 2 }))
        );
        assert_eq!((reader.u16_le(), reader.take(2)), (Err(Malformed { at: 3 }), Err(Malformed { at: 3 })));
        assert_eq!((reader.end(), reader.rest()), (Err(Malformed { at: 3 }), &[9][..]));
        assert_eq!((reader.take(1), reader.end(), reader.at()), (Ok(&[9][..]), Ok(()), 4));
    }

    #[test]
    fn a_message_ends_at_its_limit() {
        for (max, fits) in [(4, true), (3, false), (0, false)] {
            let mut message = Writer::new(max);
            message.bytes(&[1, 2]);
            message.bytes(&[3, 4]);
            let expected = if fits { Ok(vec![1, 2, 3, 4]) } else { Err(TooLong { len: 4, max }) };
            assert_eq!(message.finish(), expected);
        }
    }

    #[test]
    fn a_count_that_the_rest_cannot_hold_allocates_nothing() {
        let mut reader = Reader::new(&[0; 9]);
        assert_eq!(reader.many(usize::MAX, 0, Reader::u8), Err(Malformed { at: 0 }));
        assert_eq!(reader.many(5, 2, Reader::u16_be), Err(Malformed { at: 0 }));
        assert_eq!(reader.many(4, 2, Reader::u16_be), Ok(vec![0; 4]));
    }

    #[test]
    fn a_text_is_clipped_at_a_character_and_tells_no_terminal_what_to_do() {
        assert_eq!((clipped("a\u{e9}", 2), clipped("abc", 10), clipped("", 0)), ("a", "abc", ""));
        assert_eq!(printable(b"no\x1b[2Jw\xc2\x9bay\r\n\x7f\0\0"), "no [2Jw ay   ");
        assert_eq!(printable(b"\xff ok \0 \xc3\xa9"), "\u{fffd} ok   \u{e9}");
    }

    proptest! {
        #[test]
        fn any_reading_of_any_bytes_stays_within_them(
            bytes in prop::collection::vec(any::<u8>(), 0..40),
            steps in prop::collection::vec((0_u8..8, 0_usize..50), 0..20),
        ) {
            let mut reader = Reader::new(&bytes);
            for (step, count) in steps {
                let before = reader.at();
                let took = match step {
                    0 => reader.take(count).map(<[u8]>::len),
                    1 => reader.u8().map(|_| 1),
                    2 => reader.u16_le().map(|_| 2),
                    3 => reader.u32_be().map(|_| 4),
                    4 => reader.u64_le().map(|_| 8),
                    5 => reader.array::<3>().map(|_| 3),
                    6 => reader.bool().map(|_| 1),
                    _ => reader.many(count, 1, Reader::u8).map(|all| all.len()),
                };
                match took {
                    Ok(took) => prop_assert_eq!(reader.at(), before + took),
                    Err(Malformed { at }) => prop_assert!((before..=bytes.len()).contains(&at)),
                }
                prop_assert_eq!(reader.rest(), &bytes[reader.at()..]);
            }
        }
    }
}
