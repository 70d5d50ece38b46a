//! What a program, a command and the daemon say to each other: one question and one answer, of eight words each, on a connection of their own.
//!
//! With a question may come the descriptor of a file; with the answer to [`Kind::Hello`] come those of the segment and the log, and of the root of the log's file system where that makes a sync
//! shorter (`medium.rs`); and behind that to [`Kind::Status`] a text.

/// Bytes of a question, and of the fixed part of an answer.
pub(crate) const LEN: usize = 64;
/// What each message begins with: a name and a version.
const MAGIC: u64 = u64::from_le_bytes(*b"REMCMSG1");

/// What a question about exclusive files wants: a descriptor; and what it is about: one that is exclusive already.
pub(crate) const OPENERS: u64 = 1;
pub(crate) const AGAIN: u64 = 2;

/// What is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Give me the segment, the log and an owner's number. With a name of a segment: only the number.
    Hello = 1,
    /// Take this file, whose descriptor comes with it, into the table.
    Register = 2,
    /// There is work.
    Kick = 3,
    /// Answer when all entries below an index are in their files.
    Drain = 4,
    /// How does it stand?
    Status = 5,
    /// Drain, close the log, and end.
    Stop = 6,
    /// Log nothing any more, and answer when all that was is in its files.
    Freeze = 7,
    /// Log again what programs change.
    Thaw = 8,
    /// May this file be exclusive, or stay so ([`AGAIN`])? Its descriptor comes with it, and with the answer, if that is wanted ([`OPENERS`]), one that tells when somebody opens such a file.
    Exclusive = 9,
    /// Look who has opened exclusive files. The descriptor comes as with the one before.
    Look = 10,
}

impl Kind {
    const ALL: [Self; 10] = [
        Self::Hello,
        Self::Register,
        Self::Kick,
        Self::Drain,
        Self::Status,
        Self::Stop,
        Self::Freeze,
        Self::Thaw,
        Self::Exclusive,
        Self::Look,
    ];
}

/// A question, as it travels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Question {
    pub(crate) kind: Kind,
    /// The segment that the asker has, or 0.
    pub(crate) segment: u64,
    /// What it is about.
    pub(crate) about: u64,
}

impl Question {
    pub(crate) fn emit(&self) -> [u8; LEN] {
        emit([MAGIC, self.kind as u64, self.segment, self.about, 0, 0, 0, 0])
    }

    /// `None`: these bytes are none.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let [magic, kind, segment, about, ..] = words(bytes)?;
        let kind = Kind::ALL.into_iter().find(|known| *known as u64 == kind)?;
        (magic == MAGIC && bytes.len() == LEN).then_some(Self { kind, segment, about })
    }
}

/// An answer: an error's number or 0, and what was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Answer {
    pub(crate) error: i32,
    pub(crate) values: [u64; 6],
}

impl Answer {
    pub(crate) fn emit(&self) -> [u8; LEN] {
        let [a, b, c, d, e, f] = self.values;
        emit([MAGIC, self.error.unsigned_abs().into(), a, b, c, d, e, f])
    }

    /// Reads the fixed part. `None`: these bytes are none.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let [magic, error, values @ ..] = words(bytes)?;
        let error = i32::try_from(error).ok()?;
        (magic == MAGIC).then_some(Self { error, values })
    }
}

fn emit(words: [u64; 8]) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

fn words(bytes: &[u8]) -> Option<[u64; 8]> {
    let mut words = [0; 8];
    for (word, from) in words.iter_mut().zip(bytes.get(..LEN)?.chunks_exact(8)) {
        *word = u64::from_le_bytes(from.try_into().ok()?);
    }
    Some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_emitted_is_parsed_and_nothing_shorter_is() {
        for kind in Kind::ALL {
            let question = Question { kind, segment: 3, about: u64::MAX };
            let bytes = question.emit();
            assert_eq!(Question::parse(&bytes), Some(question));
            assert_eq!(Question::parse(&bytes[..LEN - 1]), None);
            assert_eq!(Answer::parse(&bytes[..8]), None);
        }
        let answer = Answer { error: 28, values: [1, 2, 3, 4, 5, 6] };
        assert_eq!(Answer::parse(&answer.emit()), Some(answer));
        let mut other = Question { kind: Kind::Kick, segment: 0, about: 0 }.emit();
        other[8] = 99;
        assert_eq!(Question::parse(&other), None, "nobody knows that one");
        assert_eq!(Question::parse(&[0; LEN]), None);
    }
}
