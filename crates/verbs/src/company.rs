//! Doorbells that wait for company: small requests that a consumer posts one by one leave together.
//!
//! A system call costs as much as ten small requests. Who posts a list has told which belong together; who posts one after
//! the other, as most programs do, has not. But a consumer that refills its queue and then polls shows it: while answers to
//! earlier requests are under way, it posts many in a row, and polls at once. Where that is the habit of a device, a
//! doorbell is not rung before the poll that finds nothing, or before there is enough for a train. Whoever drives rings it, so that a
//! request never waits longer than a packet would wait to be received.
//!
//! It is TCP's rule for small segments (RFC 896: nothing waits while nothing is in flight), and its corking. What
//! Nagle's rule is notorious for, a sender that waits for an answer and does not send what it is the answer to, is what the
//! habit excludes: a consumer that does something else between post and poll has kept requests back once, and must show the
//! habit for twice as long the next time.

use std::time::Duration;

use remanence_rnic::Instant;

use crate::handover::Pace;

/// Between two posts, and between the last one and the poll, of a consumer that does nothing else.
const PAUSE: Duration = Duration::from_micros(20);

/// Rows of posts that ended in a poll and make a habit, at first and at most: one row in so many is then late at worst, and a
/// consumer that the scheduler interrupts between post and poll is not taken for another one for long.
const ROWS_MIN: u16 = 4;
const ROWS_MAX: u16 = 64;
/// This many rows were held back, and ended in time: half as many make a habit from now on.
const PARDON: u16 = 64;

/// See the head of the file. Lives under the device lock.
#[derive(Debug)]
pub(crate) struct Company {
    pause: Duration,
    /// Posts since somebody drove, and when the last one was.
    posts: u32,
    last: Instant,
    /// One of them waits.
    waits: bool,
    /// Rows that ended in time, one after the other.
    rows: u16,
    needed: u16,
    kept: u16,
}

impl Company {
    pub(crate) fn new(pace: Pace) -> Self {
        let pause = pace.of(PAUSE);
        Self { pause, posts: 0, last: Instant::ZERO, waits: false, rows: 0, needed: ROWS_MIN, kept: 0 }
    }

    /// A consumer posted; `may`: nothing but its habits speaks against keeping that back. Says whether it waits.
    #[inline]
    pub(crate) fn posted(&mut self, now: Instant, may: bool) -> bool {
        if self.posts > 0 && now.since(self.last) > self.pause {
            self.disappoint();
        }
        self.posts += 1;
        self.last = now;
        let waits = may && self.rows >= self.needed;
        self.waits |= waits;
        waits
    }

    /// Somebody drives: what waited leaves.
    #[inline]
    pub(crate) fn driven(&mut self, now: Instant) {
        // One post and a poll is what everybody does.
        if self.posts > 1 || self.waits {
            if now.since(self.last) > self.pause {
                self.disappoint();
            } else {
                self.rows = (self.rows + 1).min(self.needed);
                self.kept += u16::from(self.waits);
                if self.kept == PARDON {
                    (self.needed, self.kept) = ((self.needed / 2).max(ROWS_MIN), 0);
                }
            }
        }
        (self.posts, self.waits) = (0, false);
    }

    /// Whether a request was posted whose doorbell has not rung: whoever drives the device has to ring it.
    #[inline]
    pub(crate) const fn waits(&self) -> bool {
        self.waits
    }

    /// What waited leaves, and not because somebody drives.
    #[inline]
    pub(crate) const fn left(&mut self) {
        self.waits = false;
    }

    fn disappoint(&mut self) {
        self.rows = 0;
        if std::mem::take(&mut self.waits) {
            (self.needed, self.kept) = ((self.needed * 2).min(ROWS_MAX), 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Instant {
        Instant::from_nanos((1_000_000 + micros) * 1000)
    }

    /// Posts four, a microsecond apart, and polls `later`; says how many of them waited.
    fn row(company: &mut Company, start: u64, later: u64) -> usize {
        let waited = (0..4).filter(|n| company.posted(at(start + n), true)).count();
        company.driven(at(start + 3 + later));
        waited
    }

    #[test]
    fn who_posts_in_rows_and_polls_soon_is_waited_for() {
        let mut company = Company::new(Pace::ONE);
        let waited: Vec<usize> = (0..6).map(|n| row(&mut company, n * 1000, 5)).collect();
        assert_eq!(waited, [0, 0, 0, 0, 4, 4]);
        assert!(!company.posted(at(10_000), false), "what must not wait does not");
    }

    #[test]
    fn who_does_something_else_between_post_and_poll_is_not() {
        let mut company = Company::new(Pace::ONE);
        for n in 0..100 {
            assert_eq!(row(&mut company, n * 1000, 21), 0);
        }
        // Nor who posts one at a time.
        for n in 200..300 {
            assert!(!company.posted(at(n * 1000), true));
            company.driven(at(n * 1000 + 1));
        }
    }

    #[test]
    fn a_habit_that_is_broken_takes_twice_as_long_to_come_back() {
        let mut company = Company::new(Pace::ONE);
        for (needed, broken) in [(4, 0), (8, 1), (16, 2), (32, 3)] {
            let start = broken * 1_000_000;
            for n in 0..needed {
                assert_eq!(row(&mut company, start + n * 1000, 5), 0, "{broken}: {n} of {needed}");
            }
            assert_eq!(row(&mut company, start + 900_000, 500), 4, "kept back for nothing");
        }
        for n in 0..64 {
            assert_eq!(row(&mut company, 5_000_000 + n * 1000, 5), 0);
        }
        // And what was kept back, and left in time, pardons.
        for n in 0..u64::from(PARDON) {
            assert_eq!(row(&mut company, 6_000_000 + n * 1000, 5), 4);
        }
        assert_eq!(company.needed, 32);
    }

    #[test]
    fn a_pause_within_a_row_breaks_the_habit() {
        let mut company = Company::new(Pace::ONE);
        for n in 0..4 {
            row(&mut company, n * 1000, 5);
        }
        assert!(company.posted(at(10_000), true));
        assert!(!company.posted(at(10_030), true), "it leaves now, and with it the one before");
    }
}
