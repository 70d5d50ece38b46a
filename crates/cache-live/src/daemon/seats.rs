//! What each process is given that joins: a number, by which the log has it as an owner, and a place in the segment.

use std::collections::BTreeSet;

use crate::segment::{CLIENTS, DAEMON};

/// The numbers of owners, from 1 on. They come round after 16.7 million processes; from then on none is given that somebody has, or that the log has an entry of: who died over that
/// would be taken for one that lives.
#[derive(Debug)]
pub(super) struct Numbers {
    next: u32,
    /// Those that are left out until they come round once more.
    taken: BTreeSet<u32>,
}

impl Numbers {
    pub(super) const fn new() -> Self {
        Self { next: 1, taken: BTreeSet::new() }
    }

    /// The next one. `in_use` says which are somebody's, or in the log: it is asked when they come round. `None`: all are.
    pub(super) fn take(&mut self, in_use: impl FnOnce() -> BTreeSet<u32>) -> Option<u32> {
        let mut in_use = Some(in_use);
        loop {
            if self.next == DAEMON {
                self.taken = in_use.take()?();
                self.next = 1;
            }
            let number = self.next;
            self.next += 1;
            if !self.taken.contains(&number) {
                return Some(number);
            }
        }
    }
}

/// The places of a segment that are free: the lowest is given first, so that who looks at all of them has few to look at.
#[derive(Default, Debug)]
pub(super) struct Places {
    free: BTreeSet<usize>,
    /// Higher ones nobody has ever had.
    used: usize,
}

impl Places {
    /// `None`: each of them is somebody's.
    pub(super) fn take(&mut self) -> Option<usize> {
        self.free.pop_first().or_else(|| {
            let place = self.used;
            self.used += usize::from(place < CLIENTS);
            (place < CLIENTS).then_some(place)
        })
    }

    pub(super) fn give_back(&mut self, place: usize) {
        self.free.insert(place);
    }

    /// How many there have ever been at a time.
    pub(super) const fn used(&self) -> usize {
        self.used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_round_and_leave_out_whose_owners_live_or_have_entries() {
        let nobody = || -> BTreeSet<u32> { panic!("they have not come round") };
        let mut numbers = Numbers::new();
        assert_eq!([numbers.take(nobody), numbers.take(nobody)], [Some(1), Some(2)]);
        numbers.next = DAEMON - 1;
        assert_eq!(numbers.take(nobody), Some(DAEMON - 1));
        let in_use = || BTreeSet::from([1, 3, DAEMON - 1]);
        assert_eq!(numbers.take(in_use), Some(2));
        assert_eq!(numbers.take(nobody), Some(4));
        numbers.next = DAEMON;
        assert_eq!(numbers.take(BTreeSet::new), Some(1), "nobody has it any more");
    }

    #[test]
    fn the_lowest_place_that_is_free_is_given() {
        let mut places = Places::default();
        assert!((0..CLIENTS).all(|place| places.take() == Some(place)));
        assert_eq!(places.take(), None);
        places.give_back(9);
        places.give_back(4);
        assert_eq!([places.take(), places.take(), places.take()], [Some(4), Some(9), None]);
        assert_eq!(places.used(), CLIENTS);
    }
}
