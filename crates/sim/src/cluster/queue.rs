//! Simulated time: what happens next, and clocks that show something else than the time.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::time::Duration;

use crate::rng::Rng;

#[derive(Debug)]
struct Scheduled<E> {
    at: u64,
    order: u64,
    event: E,
}

impl<E> PartialEq for Scheduled<E> {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}

impl<E> Eq for Scheduled<E> {}

impl<E> PartialOrd for Scheduled<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Scheduled<E> {
    /// The earliest first, as a heap gives its greatest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

/// What is to happen, in the order of time; at one time in the order in which it was said.
#[derive(Debug)]
pub(super) struct Queue<E> {
    now: u64,
    order: u64,
    heap: BinaryHeap<Scheduled<E>>,
}

impl<E> Queue<E> {
    pub(super) const fn new() -> Self {
        Self { now: 0, order: 0, heap: BinaryHeap::new() }
    }

    /// The time of what happened last, in nanoseconds.
    pub(super) const fn now(&self) -> u64 {
        self.now
    }

    /// Has something happen at a time, or now if that is over.
    pub(super) fn push(&mut self, at: u64, event: E) {
        self.order += 1;
        self.heap.push(Scheduled { at: at.max(self.now), order: self.order, event });
    }

    pub(super) fn pop(&mut self) -> Option<E> {
        let Scheduled { at, event, .. } = self.heap.pop()?;
        self.now = at;
        Some(event)
    }
}

/// A clock that began anywhere and is too fast or too slow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Clock {
    /// What it showed when the run began, in nanoseconds.
    pub offset: u64,
    /// How many microseconds it gains in a second; it loses some if this is negative.
    pub ppm: i32,
}

impl Clock {
    /// So many clocks, each of which began anywhere, if not now, and runs at one of these rates.
    pub(super) fn draw(rng: &mut Rng, count: usize, ppm: &[i32]) -> Vec<Self> {
        let one = |_| {
            let offset = if rng.one_in(2) { 0 } else { rng.below(1 << 50) };
            Self { offset, ppm: rng.pick(ppm) }
        };
        (0..count).map(one).collect()
    }

    fn rate(self) -> u128 {
        u128::try_from(1_000_000 + i64::from(self.ppm)).expect("no clock runs backwards")
    }

    /// What it shows.
    pub(super) fn local(self, now: u64) -> Duration {
        let gone = u128::from(now) * self.rate() / 1_000_000;
        Duration::from_nanos(self.offset.saturating_add(u64::try_from(gone).unwrap_or(u64::MAX)))
    }

    /// When it shows this time or a later one for the first time.
    pub(super) fn when(self, local: Duration) -> u64 {
        let nanos = local.as_nanos().saturating_sub(u128::from(self.offset));
        let when = nanos.saturating_mul(1_000_000).div_ceil(self.rate());
        u64::try_from(when).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_first_happens_first_at_one_time() {
        let mut queue = Queue::new();
        for (at, event) in [(5, 'c'), (3, 'a'), (5, 'd'), (4, 'b')] {
            queue.push(at, event);
        }
        assert_eq!(std::iter::from_fn(|| queue.pop()).collect::<String>(), "abcd");
        assert_eq!(queue.now(), 5);
        queue.push(1, 'e');
        assert_eq!((queue.pop(), queue.now()), (Some('e'), 5), "nothing happens in the past");
    }

    #[test]
    fn a_clock_has_come_to_a_time_when_it_says_so_and_not_before() {
        for ppm in [-200_000, -31, 0, 7, 250_000] {
            let clock = Clock { offset: 1_000_000_007, ppm };
            for nanos in [1, 999, 123_456_789, 60_000_000_001] {
                let local = Duration::from_nanos(clock.offset + nanos);
                let when = clock.when(local);
                assert!(clock.local(when) >= local && clock.local(when - 1) < local, "{ppm} {nanos}");
            }
            assert_eq!(clock.when(Duration::ZERO), 0);
        }
    }
}
