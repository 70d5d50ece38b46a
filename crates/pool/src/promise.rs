//! The numbers of which a server says: never again.
//!
//! A put takes a number that is above every number that an earlier one can have taken. It cannot learn that from the
//! versions of the blobs alone: an earlier put may have failed, and left its blob on the one server that is away now.
//! So nobody writes a blob under a number before a majority of the servers has promised to give out higher ones only;
//! any two majorities have a server in common, and who asks a majority later is told a higher number by that server.
//!
//! One row of numbers serves all names of a pool. [`Promises`] is what a server keeps of it; `crate::quorum` is the
//! client's side. Pure: the caller makes the ceiling durable.

/// How far the durable ceiling is put ahead of the numbers: one wait for the medium buys so many.
pub const AHEAD: u64 = 256;

/// A pool that an earlier release served goes on so far above all that it knows: those releases chose a name's number
/// without asking a majority, one above the highest that they saw, and a server that is away may have a few more.
pub const GAP: u64 = 1 << 20;

/// What a server has promised.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Promises {
    /// The highest number that was given out or left behind.
    last: u64,
    /// The highest number that may be, before a higher ceiling is durable.
    ceiling: u64,
}

impl Promises {
    /// After a start: `ceiling` is the durable one, `highest` the highest number that any version in the pool has.
    #[must_use]
    pub fn recover(ceiling: Option<u64>, highest: u64) -> Self {
        let last = match ceiling {
            Some(ceiling) => ceiling.max(highest),
            None => highest.saturating_add(GAP),
        };
        Self { last, ceiling: ceiling.unwrap_or(0) }
    }

    /// Of a new pool: nothing was promised.
    #[must_use]
    pub const fn none() -> Self {
        Self { last: 0, ceiling: 0 }
    }

    /// The highest number that was given out or left behind.
    #[must_use]
    pub const fn last(&self) -> u64 {
        self.last
    }

    /// The number that a ticket would have; `None` if there is no number left.
    #[must_use]
    pub const fn next(&self) -> Option<u64> {
        self.last.checked_add(1)
    }

    /// The ceiling that must be durable before `number` is promised; `None` if it is high enough as it is.
    #[must_use]
    pub const fn ceiling_for(&self, number: u64, ahead: u64) -> Option<u64> {
        if number <= self.ceiling || number <= self.last { None } else { Some(number.saturating_add(ahead)) }
    }

    /// That ceiling is durable.
    pub const fn raised(&mut self, ceiling: u64) {
        self.ceiling = ceiling;
    }

    /// Promises a number, whose ceiling is durable.
    ///
    /// # Panics
    /// It is above the ceiling: a crash would break the promise.
    pub fn promise(&mut self, number: u64) {
        assert!(number <= self.ceiling || number <= self.last, "{number} is promised above {}", self.ceiling);
        self.last = self.last.max(number);
    }

    /// A version with that number is durable in the pool; that outlives a crash by itself.
    pub fn seen(&mut self, number: u64) {
        self.last = self.last.max(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a pool does it.
    fn promise(promises: &mut Promises, durable: &mut Option<u64>, number: u64, ahead: u64) {
        if let Some(ceiling) = promises.ceiling_for(number, ahead) {
            *durable = Some(ceiling);
            promises.raised(ceiling);
        }
        promises.promise(number);
    }

    #[test]
    fn a_number_is_never_given_twice_whenever_the_server_crashes() {
        let (mut promises, mut durable, mut last) = (Promises::none(), Some(0), 0);
        for turn in 0..1000_u64 {
            if turn % 7 == 3 {
                promises = Promises::recover(durable, 0);
            }
            let number = promises.next().expect("there are many");
            assert!(number > last);
            last = number;
            promise(&mut promises, &mut durable, number, 16);
        }
        let (mut promises, mut durable, mut waits) = (Promises::none(), Some(0), 0);
        for _ in 0..1000 {
            let (number, before) = (promises.next().expect("there are many"), durable);
            promise(&mut promises, &mut durable, number, 99);
            waits += usize::from(durable != before);
        }
        assert_eq!(waits, 10, "one wait for a hundred numbers");
    }

    #[test]
    fn a_pool_of_an_earlier_release_goes_on_far_above_what_it_knows() {
        let promises = Promises::recover(None, 5);
        assert_eq!(promises.next(), Some(5 + GAP + 1));
        assert_eq!(promises.ceiling_for(5 + GAP + 1, AHEAD), Some(5 + GAP + 1 + AHEAD));
        assert_eq!(Promises::recover(Some(7), 5).next(), Some(8));
        assert_eq!(Promises::recover(Some(7), 9).next(), Some(10));
    }

    #[test]
    fn when_all_numbers_are_used_up_there_is_none() {
        let mut promises = Promises::recover(Some(u64::MAX), 0);
        assert_eq!(promises.next(), None);
        assert_eq!(promises.ceiling_for(u64::MAX, AHEAD), None);
        promises.promise(u64::MAX);
    }
}
