//! The records on servers that are not given up, and which of them are needed: the oldest one is known without a look at the others.

use std::collections::VecDeque;

/// A record that is not given up.
#[derive(Debug)]
struct Kept {
    number: u64,
    /// It is needed as long as the tail is below.
    upto: u64,
    bytes: u64,
}

/// All of them, in their order.
#[derive(Default, Debug)]
pub(super) struct Records {
    kept: VecDeque<Kept>,
    /// The numbers of those whose entries were in no file when that was asked last, and up to where these are. The tail never goes back: who was passed is passed.
    needed: VecDeque<(u64, u64)>,
    bytes: u64,
}

impl Records {
    /// One that is needed as long as the tail is below `upto`, behind all others.
    pub(super) fn push(&mut self, number: u64, upto: u64, bytes: u64) {
        self.kept.push_back(Kept { number, upto, bytes });
        self.needed.extend((upto > 0).then_some((number, upto)));
        self.bytes += bytes;
    }

    /// In place of all that there are comes one, which takes as much.
    pub(super) fn replace(&mut self, number: u64, upto: u64) {
        let bytes = std::mem::take(self).bytes;
        self.push(number, upto, bytes);
    }

    /// Those below a number are given up.
    pub(super) fn give_up(&mut self, below: u64) {
        while let Some(kept) = self.kept.pop_front_if(|kept| kept.number < below) {
            self.bytes -= kept.bytes;
        }
        while self.needed.pop_front_if(|(number, _)| *number < below).is_some() {}
    }

    /// The number of the oldest one.
    pub(super) fn oldest(&self) -> Option<u64> {
        self.kept.front().map(|kept| kept.number)
    }

    /// Whether the oldest one has entries that are in no file, where all below `tail` are.
    pub(super) fn is_held(&self, tail: u64) -> bool {
        self.kept.front().is_some_and(|kept| kept.upto > tail)
    }

    /// The number of the first one that has entries which are in no file, where all below `tail` are.
    pub(super) fn first_needed(&mut self, tail: u64) -> Option<u64> {
        while self.needed.pop_front_if(|(_, upto)| *upto <= tail).is_some() {}
        self.needed.front().map(|(number, _)| *number)
    }

    /// Bytes of all of them.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records of a log that was sent anew meanwhile, with images between them: as a look at all of them says.
    #[test]
    fn the_first_one_that_is_needed_is_known_however_they_were_sent() {
        let uptos = [4, 9, 0, 12, 5, 7, 0, 0, 13, 14, 12, 20];
        let mut records = Records::default();
        (0..).zip(uptos).for_each(|(number, upto)| records.push(number, upto, 10));
        for tail in 0..22 {
            let first = (0..).zip(uptos).find(|(_, upto)| *upto > tail).map(|(number, _)| number);
            assert_eq!(records.first_needed(tail), first, "{tail}");
        }
        assert_eq!((records.oldest(), records.bytes()), (Some(0), 120));
        records.give_up(9);
        assert!(records.is_held(13) && !records.is_held(14));
        assert_eq!((records.oldest(), records.bytes()), (Some(9), 30));
        records.replace(0, 30);
        assert_eq!((records.oldest(), records.bytes(), records.first_needed(29)), (Some(0), 30, Some(0)));
    }
}
