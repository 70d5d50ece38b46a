//! What tells a medium of ours from a blank one and from all others, by its first bytes alone.

use std::io;

use super::Fault;
use crate::{FileOptions, Image, JOURNAL_NOTE_LEN, Medium, is_journal_note};

/// How the media of a format begin.
#[derive(Clone, Copy, Debug)]
pub struct Signature {
    /// The first eight bytes: a magic number, or the tag of a [root record](super::Root).
    pub magic: [u8; 8],
    /// Where they stand once more, if there are two copies of what they begin: by either of them a medium is ours.
    pub second: Option<u64>,
    /// What says that an image is being made, if the format says that.
    pub making: Option<Making>,
    /// Bytes of the head: all of them are zeros if a medium is blank, and both copies lie in them. 64 KiB at most, as no opener of
    /// a file is [shown](FileOptions::image) more.
    pub head: usize,
    /// Where the format leaves [`JOURNAL_NOTE_LEN`] bytes for the note of its file's journal, and what an owner is told to do
    /// when that journal is missing ([`FileOptions::journal_note`]). No format says anything of its own there.
    pub note: Option<(u64, &'static str)>,
}

/// The mark that a medium has while an image is made on it: what a crash leaves then is as good as blank.
#[derive(Clone, Copy, Debug)]
pub struct Making {
    /// Where it lies, a multiple of eight.
    pub at: u64,
    /// Its words of eight bytes. A crash that leaves only some of them, and zeros in place of the others, leaves the mark.
    pub mark: &'static [u8],
    /// Whether it is gone when the image is whole. Then nothing else counts while it is there; otherwise it says nothing where
    /// the magic number stands.
    pub ends: bool,
}

impl Signature {
    /// Tells whose a medium is that begins with these bytes.
    ///
    /// # Errors
    /// It is not ours: [`Fault::Blank`], [`Fault::Making`], [`Fault::OtherByteOrder`], or [`Fault::Foreign`].
    pub fn judge(&self, head: &[u8]) -> Result<(), Fault> {
        match () {
            () if self.making.is_some_and(|making| making.ends && making.is_in(head)) => Err(Fault::Making),
            () if self.is_ours(head) => Ok(()),
            () if self.making.is_some_and(|making| making.is_in(head)) => Err(Fault::Making),
            () if self.is_blank(head) => Err(Fault::Blank),
            () if head.iter().take(8).rev().eq(&self.magic) => Err(Fault::OtherByteOrder),
            () => Err(Fault::Foreign),
        }
    }

    /// Whether one of the copies begins there, whole or not.
    pub(super) fn is_ours(&self, head: &[u8]) -> bool {
        let begins = |at: u64| head.get(at as usize..).is_some_and(|copy| copy.starts_with(&self.magic));
        begins(0) || self.second.is_some_and(begins)
    }

    /// Whether a medium that begins so has nothing: zeros, but for what may be noted of its file's journal. That is of the file,
    /// and is there before there is an image; what is no [note](is_journal_note) is somebody else's.
    #[must_use]
    pub fn is_blank(&self, head: &[u8]) -> bool {
        let head = &head[..head.len().min(self.head)];
        let note = self.note.map_or(0..0, |(at, _)| at as usize..at as usize + JOURNAL_NOTE_LEN);
        head.iter().enumerate().all(|(at, byte)| *byte == 0 || note.contains(&at))
            && (note.is_empty() || head.get(note).is_none_or(is_journal_note))
    }

    /// What a file has that begins so, for [`FileOptions::image`]: `ours` is how long the image is then. It is one also if it is
    /// damaged: whoever opens it gets to know what is wrong, and nobody makes another in its place.
    #[must_use]
    pub fn image(&self, head: &[u8], ours: u64) -> Image {
        match self.judge(head) {
            Ok(()) => Image::Ours { len: ours },
            Err(Fault::Blank | Fault::Making) => Image::Blank,
            Err(_) => Image::Foreign,
        }
    }

    /// How every opener of a file in this format opens it: with what tells whether it has an image, and with the note of its
    /// journal, if the format leaves room for that. `look` is the format's own question to [`image`](Self::image).
    #[must_use]
    pub fn file_options(&self, look: fn(&[u8], u64) -> Image) -> FileOptions {
        let options = FileOptions::new().image(look);
        match self.note {
            Some((at, way)) => options.journal_note(at, way),
            None => options,
        }
    }

    /// The head of a medium; all of it, if it is shorter.
    #[must_use]
    pub fn read(&self, medium: &impl Medium) -> Vec<u8> {
        let mut head = vec![0; (self.head as u64).min(medium.len()) as usize];
        medium.read(0, &mut head);
        head
    }

    /// Marks a medium as one on which an image is being made, durably: before anything else of it is touched.
    ///
    /// # Errors
    /// The medium failed.
    pub fn begin(&self, medium: &impl Medium) -> io::Result<()> {
        self.making.map_or(Ok(()), |Making { at, mark, .. }| put(medium, at, mark))
    }

    /// Takes the mark away: the image is whole, durably.
    ///
    /// # Errors
    /// The medium failed.
    pub fn end(&self, medium: &impl Medium) -> io::Result<()> {
        self.making.map_or(Ok(()), |Making { at, mark, .. }| put(medium, at, &vec![0; mark.len()]))
    }
}

impl Making {
    fn is_in(&self, head: &[u8]) -> bool {
        let found = head.get(self.at as usize..).and_then(|rest| rest.get(..self.mark.len()));
        let words = || found.unwrap_or_default().chunks(8).zip(self.mark.chunks(8));
        words().all(|(found, word)| found == word || found == [0; 8])
            && words().any(|(found, word)| found == word)
    }
}

/// Durable on return.
pub(super) fn put(medium: &impl Medium, at: u64, bytes: &[u8]) -> io::Result<()> {
    medium.write(at, bytes);
    medium.persist(at..at + bytes.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARK: Making = Making { at: 64, mark: b"making itnow so ", ends: false };
    const SIGNATURE: Signature = Signature {
        magic: *b"REMTEST\0",
        second: Some(256),
        making: Some(MARK),
        head: 512,
        note: Some((128, "ask its owner")),
    };

    fn head(parts: &[(usize, &[u8])]) -> [u8; 600] {
        let mut head = [0; 600];
        parts.iter().for_each(|(at, part)| head[*at..at + part.len()].copy_from_slice(part));
        head
    }

    #[test]
    fn only_zeros_but_for_the_note_are_blank() {
        assert_eq!(SIGNATURE.judge(&head(&[])), Err(Fault::Blank));
        for byte in 0..600 {
            let expected = if byte < SIGNATURE.head { Fault::Foreign } else { Fault::Blank };
            assert_eq!(
                SIGNATURE.judge(&head(&[(byte, &[1])])),
                Err(expected),
                "byte {byte}: also in the note, as it is none"
            );
        }
        let no_note = Signature { note: None, ..SIGNATURE };
        assert!(no_note.is_blank(&[0; 512]) && !no_note.is_blank(&[1; 1]) && SIGNATURE.is_blank(&[]));
    }

    #[test]
    fn a_medium_is_ours_by_either_copy() {
        for at in [0, 256] {
            assert_eq!(SIGNATURE.judge(&head(&[(500, b"x"), (at, &SIGNATURE.magic)])), Ok(()));
        }
        assert_eq!(SIGNATURE.image(&head(&[(256, &SIGNATURE.magic)]), 9), Image::Ours { len: 9 });
        assert_eq!(SIGNATURE.judge(&head(&[(0, b"\0TSETMER")])), Err(Fault::OtherByteOrder));
        assert_eq!(SIGNATURE.judge(&head(&[(8, &SIGNATURE.magic)])), Err(Fault::Foreign));
        let once = Signature { second: None, ..SIGNATURE };
        assert_eq!(once.image(&head(&[(256, &SIGNATURE.magic)]), 9), Image::Foreign);
    }

    #[test]
    fn half_a_mark_counts_and_an_image_counts_more_unless_the_mark_ends() {
        let dirt: (usize, &[u8]) = (300, b"of what was being made");
        for mark in [MARK.mark, &MARK.mark[..8], b"\0\0\0\0\0\0\0\0tnow so "] {
            assert_eq!(SIGNATURE.judge(&head(&[dirt, (64, mark)])), Err(Fault::Making));
            assert_eq!(SIGNATURE.image(&head(&[dirt, (64, mark)]), 9), Image::Blank);
        }
        for other in [&b"making it      x"[..], b"Making itnow so ", b"\0\0\0\0\0\0\0\0"] {
            assert_eq!(SIGNATURE.judge(&head(&[dirt, (64, other)])), Err(Fault::Foreign));
        }
        let whole = head(&[(0, &SIGNATURE.magic), (64, MARK.mark)]);
        assert_eq!(SIGNATURE.judge(&whole), Ok(()));
        let ends = Signature { making: Some(Making { ends: true, ..MARK }), ..SIGNATURE };
        assert_eq!(ends.judge(&whole), Err(Fault::Making));
    }
}
